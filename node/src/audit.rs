//! One line for each act of administration: who did what to whom, and how it ended.
//!
//! A line has the target [`TARGET`] and always the same fields; `docs/security.md` lists them. The node that was asked writes it,
//! also when the act was refused. It names a token by the start of its hash; no token, key or secret is ever in it.

use quorate_domain::{Command, Principal};
use quorate_link::PeerName;

/// What the lines are filtered by.
pub const TARGET: &str = "quorate_audit";
/// So much of a token's hash names it.
const HASH_DIGITS: usize = 16;

/// An act, as the log will name it.
pub struct Act {
    pub name: &'static str,
    /// What it is done to.
    pub subject: String,
}

/// How an act ended.
pub enum End<'a> {
    /// Decided at a revision; `replayed` for the answer of an earlier attempt.
    Done {
        revision: u64,
        replayed: bool,
    },
    Refused {
        code: &'a str,
    },
    /// This node can't tell, or another one has to be asked.
    Undecided {
        why: &'a str,
    },
}

impl Act {
    /// The act that a command is, if it is one of administration.
    pub fn of(command: &Command) -> Option<Self> {
        let (name, subject) = match command {
            Command::PutToken(put) => ("token_create", format!("{}/{} token {}", put.tenant, put.passport, short(&put.hash))),
            Command::RevokeToken(revoke) => ("token_revoke", format!("token {}", short(&revoke.hash))),
            Command::SetFlag(set) => ("flag_set", format!("{}={}", set.name, set.value)),
            Command::SetWorkGate(set) => ("work_gate_set", format!("{}/{} gated={}", set.tenant, set.passport, set.gated)),
            Command::SetApprovalPolicy(set) => {
                ("approval_policy_set", format!("approve_low={} approve_medium={}", set.approve_low, set.approve_medium))
            }
            Command::EndRecovery(_) => ("forgotten_purge", "all recovery windows".into()),
            Command::AddReceiptKey(add) => ("receipt_key_add", format!("key {}", short(&add.public_key))),
            Command::RotateReceiptKey(rotate) => {
                ("receipt_key_rotate", format!("key {} after {}", short(&rotate.public_key), short(&rotate.predecessor)))
            }
            Command::SetSignInKey(set) => {
                let what = if set.public_key.is_some() { "set" } else { "removed" };
                ("sign_in_key_set", format!("{}/{} {what}", set.tenant, set.passport))
            }
            Command::AddCosigner(add) => ("cosigner_add", format!("node {} key {}", add.node_id, short(&add.public_key))),
            Command::ForceRelease(release) => ("force_release", format!("punchcard {}", release.punchcard_id)),
            Command::SetQuota(set) => {
                let told = |max: Option<u64>| max.map_or("none".into(), |max| max.to_string());
                ("quota_set", format!("{} records={} bytes={}", set.tenant, told(set.records_max), told(set.bytes_max)))
            }
            Command::BeginImport(begin) => {
                ("tenant_import", format!("{} from cluster {} export {}", begin.tenant, begin.origin.cluster_id, short(&begin.import_id)))
            }
            _ => return None,
        };
        Some(Self { name, subject })
    }

    /// Writes the line.
    pub fn record(&self, by: Option<&Principal>, peer: &PeerName, request_id: &str, end: &End<'_>) {
        let (outcome, code, revision, replayed) = match end {
            End::Done { revision, replayed } => ("done", "", *revision, *replayed),
            End::Refused { code } => ("refused", *code, 0, false),
            End::Undecided { why } => ("undecided", *why, 0, false),
        };
        let (tenant, passport) = by.map_or(("", ""), |by| (by.tenant.as_str(), by.passport.as_str()));
        let peer = match peer {
            PeerName::Unasked => "loopback".into(),
            PeerName::None => "unnamed".into(),
            PeerName::Shown(name) => name.to_string(),
        };
        let (act, subject) = (self.name, self.subject.as_str());
        tracing::info!(target: TARGET, act, outcome, code, tenant, passport, peer, subject, request_id, revision, replayed);
    }
}

/// Hashes are hex by rule, but a refused command may hold anything.
fn short(hash: &str) -> String {
    hash.chars().filter(char::is_ascii_hexdigit).take(HASH_DIGITS).collect()
}

#[cfg(test)]
mod tests {
    use quorate_domain::flag::SetFlag;
    use quorate_domain::identity::RevokeToken;

    use super::*;

    #[test]
    fn a_token_is_named_by_the_start_of_its_hash_and_ordinary_work_is_no_act() {
        let act = Act::of(&RevokeToken { hash: "ab".repeat(32) }.into()).expect("an act");
        assert_eq!((act.name, act.subject.as_str()), ("token_revoke", "token abababababababab"));
        let act = Act::of(&SetFlag { name: "F".into(), value: "on".into() }.into()).expect("an act");
        assert_eq!(act.subject, "F=on");
        let work = quorate_domain::fact::DeleteFact { fact_id: "f".into() };
        assert!(Act::of(&work.into()).is_none());
    }
}
