//! A cluster in this process: the true rules and the true search index over an in-memory state, behind true gRPC, with faults to
//! order.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::Stream;
use quorate_domain::event::{self, Watched};
use quorate_domain::identity::{self, PutToken, token_hash};
use quorate_domain::key_ring::RotateReceiptKey;
use quorate_domain::machine::{self, Body, Call, Clock, Entry};
use quorate_domain::overlay::{Nothing, Overlay, Writes};
use quorate_domain::search::{Asked, Hits};
use quorate_domain::{Command, Principal, Query, ReadStamp, RequestId, Revision, Tier, UnixMs, codec};
use quorate_proof::{Cosigner, Signer};
use quorate_proto::cluster as wire;
use quorate_proto::cluster::cluster_server::{Cluster, ClusterServer};
use quorate_search::Indexer;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};

/// What a node does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Takes requests and never answers, as a paused process does.
    Hangs,
    /// Does not know who leads.
    Lost,
    /// Decides the next command and loses the answer.
    LosesAnswer,
    /// Says that it is overloaded.
    Overloaded,
    /// Is too far behind for a read of any age, and has to ask the leader.
    Behind,
}

struct World {
    writes: Writes,
    revision: u64,
    term: u64,
    leader: u64,
    moved: Instant,
    addresses: BTreeMap<u64, SocketAddr>,
    faults: BTreeMap<u64, Fault>,
    /// Every proposal that reached a node: node and request id.
    proposals: Vec<(u64, String)>,
    /// Every read that reached a node, and whether a stale answer was enough.
    reads: Vec<(u64, bool)>,
    /// The names of all queries that were asked.
    queries: Vec<&'static str>,
    /// Events up to here are gone.
    forgotten: u64,
    blobs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Made when somebody searches, with its files.
    index: Option<(Indexer, tempfile::TempDir)>,
}

/// The cluster.
#[derive(Clone)]
pub struct Fake {
    world: Arc<Mutex<World>>,
    signer: Arc<Signer>,
    /// Signs once a rotation says so.
    next_signer: Arc<Signer>,
}

const RECEIPT_KEY_HEX: &str = "0707070707070707070707070707070707070707070707070707070707070707";

pub const TOKENS: [(&str, &str, &str, Tier, &str); 5] = [
    ("token-a", "default", "agent-a", Tier::Verified, "crux-mcp.* corecrux.*"),
    ("token-b", "default", "agent-b", Tier::Verified, "crux-mcp.* corecrux.*"),
    ("token-operator", "default", "operator", Tier::Operator, "*"),
    ("token-other", "other", "agent-c", Tier::Verified, "crux-mcp.* corecrux.*"),
    ("token-bare", "default", "bare", Tier::Verified, "nothing"),
];

impl Fake {
    /// Starts so many nodes; the first one leads.
    pub async fn start(nodes: u64) -> Self {
        let world = World {
            writes: Writes::new(),
            revision: 0,
            term: 1,
            leader: 1,
            moved: Instant::now(),
            addresses: BTreeMap::new(),
            faults: BTreeMap::new(),
            proposals: Vec::new(),
            reads: Vec::new(),
            queries: Vec::new(),
            forgotten: 0,
            blobs: BTreeMap::new(),
            index: None,
        };
        let signer = Signer::from_hex(RECEIPT_KEY_HEX, "fake").unwrap();
        let next_signer = Arc::new(Signer::from_hex(&"08".repeat(32), "fake").unwrap());
        let fake = Self { world: Arc::new(Mutex::new(world)), signer: Arc::new(signer), next_signer };
        for id in 1..=nodes {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            fake.world.lock().unwrap().addresses.insert(id, listener.local_addr().unwrap());
            let service = ClusterServer::new(Node { id, fake: fake.clone() });
            tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));
        }
        for (token, tenant, passport, tier, scope) in TOKENS {
            let put = PutToken {
                hash: token_hash(token),
                tenant: tenant.into(),
                passport: passport.into(),
                tier,
                scopes: scope.split_whitespace().map(Into::into).collect(),
                expires_at: None,
            };
            fake.run(put.into()).unwrap();
        }
        fake
    }

    pub fn addresses(&self) -> Vec<String> {
        self.world.lock().unwrap().addresses.values().map(|address| address.to_string()).collect()
    }

    pub fn receipt_key_hex(&self) -> String {
        quorate_proof::public_key(RECEIPT_KEY_HEX).unwrap()
    }

    /// Has the next key sign from now on; answers its public half.
    pub fn rotate(&self) -> String {
        let (before, next) = (&self.signer, &self.next_signer);
        let rotate = RotateReceiptKey {
            public_key: next.public_key(),
            predecessor: before.public_key(),
            by_predecessor: before.succession(before, next),
            by_successor: next.succession(before, next),
        };
        self.run(rotate.into()).unwrap();
        next.public_key()
    }

    /// The key with which a node cosigns.
    pub fn cosigner(&self, id: u64) -> Cosigner {
        Cosigner::new(&[id as u8; 32], "fake", id)
    }

    /// Another node leads from now on.
    pub fn elect(&self, id: u64) {
        let mut world = self.world.lock().unwrap();
        world.term += 1;
        world.leader = id;
    }

    pub fn fault(&self, id: u64, fault: Fault) {
        self.world.lock().unwrap().faults.insert(id, fault);
    }

    pub fn heal(&self) {
        self.world.lock().unwrap().faults.clear();
    }

    /// The proposals since the last time this was asked.
    pub fn proposals(&self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.world.lock().unwrap().proposals)
    }

    /// The reads since the last time this was asked.
    pub fn reads(&self) -> Vec<(u64, bool)> {
        std::mem::take(&mut self.world.lock().unwrap().reads)
    }

    pub fn queries(&self) -> Vec<&'static str> {
        self.world.lock().unwrap().queries.clone()
    }

    /// The events so far are gone, for who watches from before this on; answers the revision.
    pub fn forget_events(&self) -> u64 {
        let mut world = self.world.lock().unwrap();
        world.forgotten = world.revision;
        world.revision
    }

    /// Runs a command as the system.
    pub fn run(&self, command: Command) -> Result<Vec<u8>, quorate_domain::Refusal> {
        let request = RequestId { id: format!("system-{}", self.world.lock().unwrap().revision), issued_at: now(), keyed: false };
        self.apply(Body::Call(Call { caller: identity::system(), request, under: None, command })).unwrap().outcome
    }

    fn apply(&self, body: Body) -> Option<machine::Decided> {
        let mut world = self.world.lock().unwrap();
        world.revision += 1;
        let (revision, term) = (Revision(world.revision), world.term);
        let advance_ms = world.moved.elapsed().as_millis() as u64;
        world.moved = Instant::now();
        let mut tx = Overlay::with_writes(&Nothing, std::mem::take(&mut world.writes));
        let decided = machine::apply(&mut tx, revision, term, Entry { wall: now(), advance_ms, stamped_term: term, body }).unwrap();
        world.writes = tx.into_writes();
        decided
    }

    /// Answers a query as a node does, with the revision.
    pub fn ask(&self, caller: Principal, mut query: Query) -> (u64, Result<Vec<u8>, quorate_domain::Refusal>) {
        self.apply(Body::Tick {});
        let mut world = self.world.lock().unwrap();
        world.queries.push(query.name());
        let view = Overlay::with_writes(&Nothing, world.writes.clone());
        let clock = Clock::read(&view).unwrap();
        if let Query::Search(search) = &mut query
            && let Ok(asked) = search.asked(&caller)
        {
            search.hits = world.hits(&view, &caller, &asked);
        }
        let sign = Signer::of(&query);
        let signing = quorate_domain::key_ring::signing_key(&view).unwrap();
        let at = ReadStamp { revision: clock.revision, lease_now: clock.lease_now, wall: clock.wall, caller };
        let answer = query.run(&view, &at).unwrap();
        let signed = |bytes: Vec<u8>| match sign {
            Some(sign) if signing == Some(self.next_signer.public_key()) => sign(&self.next_signer, &bytes).unwrap(),
            Some(sign) => sign(&self.signer, &bytes).unwrap(),
            None => bytes,
        };
        (world.revision, answer.map(signed))
    }
}

impl World {
    /// What the index names, once it has caught up.
    fn hits(&mut self, view: &Overlay<'_, Nothing>, caller: &Principal, asked: &Asked) -> Hits {
        let (indexer, _) = self.index.get_or_insert_with(|| {
            let folder = tempfile::tempdir().unwrap();
            (Indexer::open(folder.path(), "fake/0").unwrap(), folder)
        });
        let step = indexer.follow(view, &|| false).unwrap();
        indexer.index().search(caller, asked, step.through).unwrap()
    }
}

fn now() -> UnixMs {
    UnixMs(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64)
}

fn principal(caller: Option<wire::Caller>) -> Principal {
    let caller = caller.unwrap();
    Principal {
        tenant: caller.tenant,
        passport: caller.passport,
        tier: Tier::parse(&caller.tier).unwrap(),
        scopes: caller.scopes.into_iter().collect(),
    }
}

struct Node {
    id: u64,
    fake: Fake,
}

impl Node {
    /// What this node does wrong just now; a node that hangs never comes back from here.
    async fn fault(&self) -> Option<Fault> {
        let fault = self.fake.world.lock().unwrap().faults.get(&self.id).copied();
        if fault == Some(Fault::Hangs) {
            std::future::pending::<()>().await;
        }
        fault
    }
}

#[tonic::async_trait]
impl Cluster for Node {
    async fn put_blob(&self, request: Request<Streaming<wire::BlobChunk>>) -> Result<Response<wire::PutBlobResponse>, Status> {
        let (mut chunks, mut bytes) = (request.into_inner(), Vec::new());
        while let Some(chunk) = chunks.message().await? {
            bytes.extend_from_slice(&chunk.data);
        }
        let (hash, size_bytes) = (blake3::hash(&bytes).as_bytes().to_vec(), bytes.len() as u64);
        self.fake.world.lock().unwrap().blobs.insert(hash.clone(), bytes);
        Ok(Response::new(wire::PutBlobResponse { hash: hash.into(), size_bytes }))
    }

    type GetBlobStream = Pin<Box<dyn Stream<Item = Result<wire::BlobChunk, Status>> + Send>>;

    async fn get_blob(&self, request: Request<wire::GetBlobRequest>) -> Result<Response<Self::GetBlobStream>, Status> {
        let wire::GetBlobRequest { hash, offset, size_bytes } = request.into_inner();
        let found = self.fake.world.lock().unwrap().blobs.get(&hash[..]).cloned();
        let found = found.ok_or_else(|| Status::not_found("no such blob"))?;
        let data = found[offset as usize..(offset + size_bytes) as usize].to_vec().into();
        Ok(Response::new(Box::pin(futures::stream::iter([Ok(wire::BlobChunk { data })]))))
    }

    async fn propose(&self, request: Request<wire::ProposeRequest>) -> Result<Response<wire::ProposeResponse>, Status> {
        use wire::propose_response::Result as Proposed;
        let request = request.into_inner();
        let command: Command = codec::decode(&request.command).unwrap();
        // Counts of usage come by themselves, and are of no call.
        if !matches!(command, Command::AddUsage(_) | Command::AddMeasures(_)) {
            self.fake.world.lock().unwrap().proposals.push((self.id, request.request_id.clone()));
        }
        let fault = self.fault().await;
        let (leader, address) = {
            let world = self.fake.world.lock().unwrap();
            (world.leader, world.addresses[&world.leader].to_string())
        };
        let answer = |result| Ok(Response::new(wire::ProposeResponse { result: Some(result) }));
        match fault {
            Some(Fault::Lost) => return answer(Proposed::NotLeader(wire::NotLeader { leader_id: None, leader_grpc: String::new() })),
            Some(Fault::Overloaded) => {
                let unavailable =
                    wire::Unavailable { reason: "overloaded".into(), detail: String::new(), retry_after_ms: 50, maybe_written: false };
                return answer(Proposed::Unavailable(unavailable));
            }
            _ => {}
        }
        if leader != self.id {
            return answer(Proposed::NotLeader(wire::NotLeader { leader_id: Some(leader), leader_grpc: address }));
        }
        let call = Call {
            caller: principal(request.caller),
            request: RequestId { id: request.request_id, issued_at: UnixMs(request.issued_at_unix_ms), keyed: request.keyed },
            under: request.fencing_token.map(Revision),
            command,
        };
        let decided = self.fake.apply(Body::Call(call)).unwrap();
        if fault == Some(Fault::LosesAnswer) {
            self.fake.world.lock().unwrap().faults.remove(&self.id);
            return Err(Status::unavailable("the connection broke"));
        }
        let outcome = match decided.outcome {
            Ok(reply) => wire::decided::Outcome::Reply(reply.into()),
            Err(refusal) => wire::decided::Outcome::Refusal(codec::encode(&refusal).into()),
        };
        answer(Proposed::Decided(wire::Decided { revision: decided.revision.0, outcome: Some(outcome), replayed: decided.replayed }))
    }

    async fn read(&self, request: Request<wire::ReadRequest>) -> Result<Response<wire::ReadResponse>, Status> {
        use wire::read_response::Result as Read;
        let request = request.into_inner();
        let is_stale = matches!(request.consistency, Some(wire::read_request::Consistency::Stale(_)));
        self.fake.world.lock().unwrap().reads.push((self.id, is_stale));
        let reason = match (self.fault().await, &request.consistency) {
            (Some(Fault::Lost), _) => Some("no_leader"),
            (Some(Fault::Behind), Some(wire::read_request::Consistency::Stale(_))) => Some("too_stale"),
            _ => None,
        };
        if let Some(reason) = reason {
            let unavailable = wire::Unavailable { reason: reason.into(), detail: String::new(), retry_after_ms: 50, maybe_written: false };
            return Ok(Response::new(wire::ReadResponse { result: Some(Read::Unavailable(unavailable)) }));
        }
        let (revision, answer) = self.fake.ask(principal(request.caller), codec::decode(&request.query).unwrap());
        let outcome = match answer {
            Ok(answer) => wire::served::Outcome::Answer(answer.into()),
            Err(refusal) => wire::served::Outcome::Refusal(codec::encode(&refusal).into()),
        };
        Ok(Response::new(wire::ReadResponse { result: Some(Read::Served(wire::Served { revision, age_ms: 0, outcome: Some(outcome) })) }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<wire::WatchResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<wire::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.fault().await;
        let request = request.into_inner();
        let tenant = principal(request.caller).tenant;
        let start = (self.fake.clone(), request.since_revision, tenant, true);
        let stream = futures::stream::unfold(start, |(fake, since, tenant, is_first)| async move {
            use wire::watch_response::Result as Sent;
            let answer = |result| Ok(wire::WatchResponse { result: Some(result) });
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                fake.apply(Body::Tick {});
                let watched = {
                    let world = fake.world.lock().unwrap();
                    let view = Overlay::with_writes(&Nothing, world.writes.clone());
                    match Revision(world.forgotten) {
                        through if since < through.0 => Watched::Compacted { through },
                        _ => event::watch(&view, &tenant, Revision(since), 100).unwrap(),
                    }
                };
                let events = match watched {
                    Watched::Events(events) => events,
                    // The next watch from there finds something; this one is over when the client has gone.
                    Watched::Compacted { through } => {
                        return Some((answer(Sent::CompactedThrough(through.0)), (fake, since, tenant, false)));
                    }
                };
                let Some(last) = events.last() else {
                    if is_first {
                        let revision = fake.world.lock().unwrap().revision;
                        return Some((answer(Sent::ProgressRevision(revision)), (fake, since, tenant, false)));
                    }
                    continue;
                };
                let since = last.revision.0;
                let events = events
                    .into_iter()
                    .map(|event| wire::Event {
                        revision: event.revision.0,
                        kind: event.kind,
                        id: event.id,
                        body: codec::encode(&event.about).into(),
                    })
                    .collect();
                return Some((answer(Sent::Events(wire::Events { events })), (fake, since, tenant, false)));
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn status(&self, _: Request<wire::StatusRequest>) -> Result<Response<wire::StatusResponse>, Status> {
        let lost = self.fault().await == Some(Fault::Lost);
        let world = self.fake.world.lock().unwrap();
        let members = world.addresses.iter().map(|(id, address)| wire::Member {
            id: *id,
            grpc: address.to_string(),
            http: String::new(),
            voter: true,
            ..Default::default()
        });
        let leads = world.leader == self.id && !lost;
        Ok(Response::new(wire::StatusResponse {
            node_id: self.id,
            term: world.term,
            leader_id: (!lost).then_some(world.leader),
            role: if leads { "leader" } else { "follower" }.into(),
            applied: world.revision,
            members: members.collect(),
            ..Default::default()
        }))
    }

    async fn cosign(&self, request: Request<wire::CosignRequest>) -> Result<Response<wire::CosignResponse>, Status> {
        use wire::cosign_response::Result as Answer;
        self.fault().await;
        let wire::CosignRequest { caller, note, .. } = request.into_inner();
        let head = self.fake.signer.open_head(&note, &caller.unwrap().tenant);
        let cosigner = self.fake.cosigner(self.id);
        let result = head.map_or_else(Answer::Refused, |head| Answer::Line(cosigner.cosign(&head, now().0 / 1_000)));
        Ok(Response::new(wire::CosignResponse { result: Some(result) }))
    }

    async fn init(&self, _: Request<wire::InitRequest>) -> Result<Response<wire::InitResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn transfer_leader(&self, _: Request<wire::TransferLeaderRequest>) -> Result<Response<wire::TransferLeaderResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn change_membership(
        &self,
        _: Request<wire::ChangeMembershipRequest>,
    ) -> Result<Response<wire::ChangeMembershipResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}
