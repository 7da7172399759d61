//! What a node answers to each role, over real connections with real certificates.

use std::net::TcpListener;
use std::path::Path;

use quorate_domain::identity::{RevokeToken, system};
use quorate_domain::{Command, codec};
use quorate_link::{Files, Link, Mutual, Name, Role};
use quorate_node::{Config, Ended, run};
use quorate_proto::cluster as wire;
use quorate_proto::cluster::cluster_client::ClusterClient;
use quorate_proto::raft::RaftRequest;
use quorate_proto::raft::raft_client::RaftClient;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tonic::Code;
use tonic::transport::Channel;

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate().unwrap();
        Self { pem: params.self_signed(&key).unwrap().pem(), issuer: Issuer::new(params, key) }
    }

    /// Files for a holder of some names.
    fn issue(&self, dir: &Path, file: &str, names: &[String]) -> Files {
        let key = KeyPair::generate().unwrap();
        let made = CertificateParams::new(names.to_vec()).unwrap().signed_by(&key, &self.issuer).unwrap();
        let path = |kind| dir.join(format!("{file}.{kind}"));
        let files = Files { ca: path("ca"), certificate: path("pem"), key: path("key") };
        std::fs::write(&files.ca, &self.pem).unwrap();
        std::fs::write(&files.certificate, made.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}

fn named(role: Role, cluster: &str) -> String {
    Name::new(role, cluster).unwrap().to_string()
}

fn free() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

async fn channel(files: &Files, role: Role, address: &str) -> Channel {
    let link = Link::mutual(Mutual::open(files.clone(), role, None).unwrap());
    link.lazy(address, |endpoint| endpoint).unwrap()
}

fn code<T>(answer: Result<T, tonic::Status>) -> Code {
    answer.err().map_or(Code::Ok, |status| status.code())
}

#[tokio::test]
async fn each_role_gets_what_is_its_own_and_a_stranger_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let files = |authority: &Authority, file: &str, role, cluster: &str| authority.issue(dir.path(), file, &[named(role, cluster)]);
    let own = files(&ours, "own", Role::Node, "acme");
    let config = Config {
        node_id: 1,
        cluster_id: "acme".into(),
        data: dir.path().join("data"),
        grpc: free(),
        http: free(),
        receipt_key: "07".repeat(32),
        tls_ca: Some(own.ca.clone()),
        tls_certificate: Some(own.certificate.clone()),
        tls_key: Some(own.key.clone()),
        ..Config::default()
    };
    let address = config.grpc.clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let until_stopped = async move {
        let _ = stopped.await;
    };
    let running = tokio::spawn(run(config, true, |_, _| {}, until_stopped));

    // The certificate it was started with shows a client to be of the same cluster, and the answer that it serves.
    let node = channel(&own, Role::Node, &address).await;
    let hello = || RaftRequest::default();
    for _ in 0..400 {
        if code(RaftClient::new(node.clone()).vote(hello()).await) == Code::FailedPrecondition {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    assert_eq!(code(RaftClient::new(node.clone()).vote(hello()).await), Code::FailedPrecondition, "heard, and refused for saying nothing");
    assert_eq!(code(ClusterClient::new(node).status(wire::StatusRequest {}).await), Code::PermissionDenied);

    let gateway = channel(&files(&ours, "gateway", Role::Gateway, "acme"), Role::Gateway, &address).await;
    assert_eq!(code(RaftClient::new(gateway.clone()).vote(hello()).await), Code::PermissionDenied);
    assert_eq!(code(RaftClient::new(gateway.clone()).read_index(hello()).await), Code::PermissionDenied);
    let mut gateway = ClusterClient::new(gateway);
    assert_eq!(code(gateway.status(wire::StatusRequest {}).await), Code::Ok);
    let change = wire::ChangeMembershipRequest {
        change: Some(wire::change_membership_request::Change::Remove(wire::Removal { id: 1, force: true })),
        dry_run: false,
    };
    assert_eq!(code(gateway.init(wire::InitRequest::default()).await), Code::PermissionDenied);
    assert_eq!(code(gateway.change_membership(change.clone()).await), Code::PermissionDenied);
    assert_eq!(code(gateway.transfer_leader(wire::TransferLeaderRequest { to: 1 }).await), Code::PermissionDenied);
    // The system's own name is an operator's: with it, a gateway would stand above all tenants.
    let revoke: Command = RevokeToken { hash: "0".repeat(64) }.into();
    let caller = system();
    let caller =
        wire::Caller { tenant: caller.tenant, passport: caller.passport, tier: caller.tier.word().into(), scopes: vec!["*".into()] };
    let as_system = wire::ProposeRequest { caller: Some(caller), command: codec::encode(&revoke).into(), ..Default::default() };
    assert_eq!(code(gateway.propose(as_system.clone()).await), Code::PermissionDenied);

    let operator = channel(&files(&ours, "operator", Role::Operator, "acme"), Role::Operator, &address).await;
    assert_eq!(code(RaftClient::new(operator.clone()).vote(hello()).await), Code::PermissionDenied);
    let mut operator = ClusterClient::new(operator);
    assert_eq!(code(operator.status(wire::StatusRequest {}).await), Code::Ok);
    assert_ne!(code(operator.change_membership(change).await), Code::PermissionDenied);
    assert_ne!(code(operator.propose(as_system).await), Code::PermissionDenied);

    // Of the same authority, and of another cluster: it does not even take this node for one of its own.
    let other = channel(&files(&ours, "other", Role::Node, "other"), Role::Node, &address).await;
    assert_eq!(code(RaftClient::new(other).vote(hello()).await), Code::Unavailable);
    // Of another authority, under the right name.
    let mut strange = files(&theirs, "strange", Role::Node, "acme");
    strange.ca = own.ca.clone();
    let strange = channel(&strange, Role::Node, &address).await;
    let refused = RaftClient::new(strange).vote(hello()).await;
    assert!(!matches!(code(refused), Code::Ok | Code::FailedPrecondition), "the handshake fails");
    // Without TLS.
    let plain = Link::plain().lazy(&address, |endpoint| endpoint).unwrap();
    assert!(!matches!(code(ClusterClient::new(plain).status(wire::StatusRequest {}).await), Code::Ok));

    stop.send(()).unwrap();
    assert!(matches!(running.await.unwrap(), Ended::Stopped));
}

#[tokio::test]
async fn a_certificate_of_another_role_cluster_or_of_two_roles_is_not_started_with() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new();
    let two = [named(Role::Node, "acme"), named(Role::Operator, "acme")];
    for (names, why) in [
        (vec![named(Role::Gateway, "acme")], "gateway.acme.quorate.internal"),
        (vec![named(Role::Node, "other")], "node.other.quorate.internal"),
        (two.to_vec(), "no one role"),
        (vec!["node.example".to_string()], "no one role"),
    ] {
        let files = ours.issue(dir.path(), "n", &names);
        let error = Mutual::open(files, Role::Node, Some("acme")).err().expect("refused").to_string();
        assert!(error.contains(why) && error.contains("needs one for `node.acme.quorate.internal`"), "{error}");
    }
    let (one, other) = (ours.issue(dir.path(), "a", &two[..1]), ours.issue(dir.path(), "b", &two[..1]));
    let error = Mutual::open(Files { key: other.key, ..one }, Role::Node, Some("acme")).err().expect("refused").to_string();
    assert!(error.contains("do not belong together"), "{error}");
}
