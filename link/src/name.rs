//! What a certificate says its holder is.
//!
//! A DNS name among the certificate's alternative names: `node.acme.quorate.internal` is a node of cluster `acme`. It is looked
//! up nowhere (`internal` is reserved for private use); being a DNS name, every TLS library compares it.

use std::fmt;

const AUTHORITY: &str = "ca";
/// What follows the cluster in a name.
const SUFFIX: &str = ".quorate.internal";
/// A DNS label holds no more.
const CLUSTER_BYTES_MAX: usize = 63;

/// What a process is to its cluster, and so what it may ask of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A replica: speaks to the other nodes, and serves.
    Node,
    /// Forwards the calls of clients it has authenticated.
    Gateway,
    /// A person's or a script's verbs: members, tokens, flags.
    Operator,
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Node, Role::Gateway, Role::Operator];

    pub fn word(self) -> &'static str {
        match self {
            Role::Node => "node",
            Role::Gateway => "gateway",
            Role::Operator => "operator",
        }
    }
}

/// A role in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub role: Role,
    pub cluster: String,
}

/// A cluster id that can't stand in a certificate.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("cluster id `{0}` can't stand in a certificate: use 1 to 63 lowercase letters, digits and hyphens, with no hyphen at an end")]
pub struct BadCluster(pub String);

impl Name {
    pub fn new(role: Role, cluster: &str) -> Result<Self, BadCluster> {
        let fits = (1..=CLUSTER_BYTES_MAX).contains(&cluster.len())
            && cluster.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !cluster.starts_with('-')
            && !cluster.ends_with('-');
        if fits { Ok(Self { role, cluster: cluster.into() }) } else { Err(BadCluster(cluster.into())) }
    }

    /// Reads a DNS name; `None` for one that names no role.
    pub fn parse(dns: &str) -> Option<Self> {
        let (role, cluster) = dns.strip_suffix(SUFFIX)?.split_once('.')?;
        let role = Role::ALL.into_iter().find(|known| known.word() == role)?;
        Self::new(role, cluster).ok()
    }
}

/// The name of a cluster's own authority, by which `quorate cert` knows it again.
pub fn authority(cluster: &str) -> Result<String, BadCluster> {
    Name::new(Role::Node, cluster).map(|name| format!("{AUTHORITY}.{}{SUFFIX}", name.cluster))
}

/// The cluster in the name of an authority.
pub fn cluster_of_authority(dns: &str) -> Option<&str> {
    dns.strip_suffix(SUFFIX)?.strip_prefix(AUTHORITY)?.strip_prefix('.')
}

impl fmt::Display for Name {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}.{}{SUFFIX}", self.role.word(), self.cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_written_and_anything_else_is_none() {
        for role in Role::ALL {
            let name = Name::new(role, "acme-2").expect("fits");
            assert_eq!(Name::parse(&name.to_string()), Some(name));
        }
        for strange in ["node.acme.example.com", "root.acme.quorate.internal", "node..quorate.internal", "node.a.b.quorate.internal", "*"] {
            assert_eq!(Name::parse(strange), None, "{strange}");
        }
    }

    #[test]
    fn a_cluster_id_that_is_no_dns_label_is_refused() {
        for id in ["", "Acme", "a.b", "-a", "a-", "a b", &"a".repeat(64)] {
            assert_eq!(Name::new(Role::Node, id), Err(BadCluster(id.into())));
        }
    }
}
