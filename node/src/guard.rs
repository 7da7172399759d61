//! Who may call a node: the cluster secret, and with TLS the role in the caller's certificate.
//!
//! Whole services are guarded here ([`Guard`]); what within one is an operator's alone asks [`only_operators`]. Without TLS there
//! is no role to tell, and who holds the secret may call everything: that is for one machine.

use quorate_link::{Name, PeerName, Role};
use quorate_proto::secret::Want;
use tonic::service::Interceptor;
use tonic::{Extensions, Request, Status};

/// Lets calls of some roles of one cluster through.
#[derive(Clone)]
pub struct Guard {
    want: Want,
    cluster: String,
    roles: &'static [Role],
}

impl Guard {
    pub fn new(cluster_secret: Option<String>, cluster: &str, roles: &'static [Role]) -> Self {
        Self { want: Want::new(cluster_secret), cluster: cluster.into(), roles }
    }

    fn refuse(&self, peer: &PeerName) -> Option<String> {
        let allowed = || self.roles.iter().map(|role| role.word()).collect::<Vec<_>>().join(" or ");
        match peer {
            PeerName::Unasked => None,
            PeerName::None => Some(format!("this certificate names no role; this service is for a {}", allowed())),
            PeerName::Shown(name) if name.cluster != self.cluster => {
                Some(format!("this certificate is of cluster `{}`, this node of `{}`", name.cluster, self.cluster))
            }
            PeerName::Shown(name) if !self.roles.contains(&name.role) => {
                Some(format!("this certificate is of the role {}; this service is for a {}", name.role.word(), allowed()))
            }
            PeerName::Shown(_) => None,
        }
    }
}

impl Interceptor for Guard {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(why) = self.refuse(&peer(request.extensions())) {
            return Err(Status::permission_denied(why));
        }
        self.want.call(request)
    }
}

/// Who is at the other end. Every connection of a node comes out of its link, which tells.
pub fn peer(extensions: &Extensions) -> PeerName {
    extensions.get::<PeerName>().cloned().unwrap_or(PeerName::None)
}

/// Refuses a gateway or a node that asks for an operator's act.
pub fn only_operators(extensions: &Extensions, act: &str) -> Result<(), Status> {
    match peer(extensions) {
        PeerName::Unasked | PeerName::Shown(Name { role: Role::Operator, .. }) => Ok(()),
        PeerName::None | PeerName::Shown(_) => Err(Status::permission_denied(format!("{act} needs an operator's certificate"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(role: Role, cluster: &str) -> PeerName {
        PeerName::Shown(Name::new(role, cluster).expect("fits"))
    }

    #[test]
    fn a_service_is_open_to_its_roles_of_its_own_cluster_alone() {
        let guard = Guard::new(None, "acme", &[Role::Node]);
        assert_eq!(guard.refuse(&shown(Role::Node, "acme")), None);
        assert_eq!(guard.refuse(&PeerName::Unasked), None);
        let refused = [shown(Role::Gateway, "acme"), shown(Role::Operator, "acme"), shown(Role::Node, "other"), PeerName::None];
        let why: Vec<String> = refused.iter().map(|peer| guard.refuse(peer).expect("refused")).collect();
        assert_eq!(
            why,
            [
                "this certificate is of the role gateway; this service is for a node",
                "this certificate is of the role operator; this service is for a node",
                "this certificate is of cluster `other`, this node of `acme`",
                "this certificate names no role; this service is for a node",
            ]
        );
    }

    #[test]
    fn an_operators_act_is_refused_to_everybody_else_who_shows_a_certificate() {
        let as_peer = |name| {
            let mut extensions = Extensions::default();
            extensions.insert::<PeerName>(name);
            only_operators(&extensions, "init").map_err(|status| status.code())
        };
        assert_eq!(as_peer(shown(Role::Operator, "acme")), Ok(()));
        assert_eq!(as_peer(PeerName::Unasked), Ok(()));
        assert_eq!(as_peer(shown(Role::Gateway, "acme")), Err(tonic::Code::PermissionDenied));
        assert_eq!(as_peer(shown(Role::Node, "acme")), Err(tonic::Code::PermissionDenied));
    }
}
