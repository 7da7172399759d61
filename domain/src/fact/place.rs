//! Whose a fact is, and what its entity is called.
//!
//! Facts are filed under an owner: nobody, so that the whole tenant sees them, or one passport, which alone does. Owner and
//! entity are separate parts of every key, so no spelling of an entity reaches another agent's facts. The *filed name*
//! `__agent::<passport>::<entity>` is how a private fact's entity is shown, and one way to ask for it.

use crate::identity::{check_name, check_name_start};
use crate::refusal::Refusal;
use crate::stamp::Principal;

/// Who may write under a reserved beginning of entities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reserved {
    /// Only the passport named in it, whose facts it files.
    AgentPrivate,
    /// Only commands of the service itself: what stands there is evidence.
    DaemonOwned,
}

const AGENT: &str = "__agent::";

/// Every reserved beginning. Others with the same look, such as `__ops::`, are open to clients.
const RESERVED: [(&str, Reserved); 13] = [
    (AGENT, Reserved::AgentPrivate),
    ("__agent_session::", Reserved::DaemonOwned),
    ("__decisions__::", Reserved::DaemonOwned),
    ("__incident__::", Reserved::DaemonOwned),
    ("__legal_hold__::", Reserved::DaemonOwned),
    ("__legal_hold_receipt__::", Reserved::DaemonOwned),
    ("__memory_pin::", Reserved::DaemonOwned),
    ("__mint_request__::", Reserved::DaemonOwned),
    ("__ops::config-audit", Reserved::DaemonOwned),
    ("__orchestrator_receipt__::", Reserved::DaemonOwned),
    ("__passport__::", Reserved::DaemonOwned),
    ("__reverify_receipts__::", Reserved::DaemonOwned),
    ("__session_binding__::", Reserved::DaemonOwned),
];

/// The beginning of `entity` that is reserved for the service, if it has one.
pub(super) fn daemon_owned(entity: &str) -> Option<&'static str> {
    RESERVED.iter().find(|(prefix, class)| *class == Reserved::DaemonOwned && entity.starts_with(prefix)).map(|(prefix, _)| *prefix)
}

/// Beginnings that clients may write under, and that people's memory panel leaves alone all the same.
const OPERATIONS: [&str; 2] = ["__ops::", "__bootstrap__::"];

/// The beginning for which the panel leaves facts of this place alone, if there is one: it neither shows nor edits them.
pub(super) fn off_panel(owner: &str, entity: &str) -> Option<&'static str> {
    let reserved = RESERVED.iter().map(|(prefix, _)| *prefix).chain(OPERATIONS);
    if owner == EVERYONE { reserved.into_iter().find(|prefix| entity.starts_with(prefix)) } else { Some(AGENT) }
}

/// Whether facts of this place are not told of in what others read: private ones, and those of operations.
pub(super) fn is_unspoken(owner: &str, entity: &str) -> bool {
    owner != EVERYONE || OPERATIONS.iter().any(|prefix| entity.starts_with(prefix))
}

/// The owner of facts that the whole tenant sees. No passport has this name.
pub(crate) const EVERYONE: &str = "";

fn own_prefix(caller: &Principal) -> String {
    format!("{AGENT}{}::", caller.passport)
}

/// Checks the name of an entity, to write or to read. Before the caller's own private ones may stand what files them.
pub(super) fn check_entity(entity: &str, caller: &Principal) -> Option<Refusal> {
    check_name("entity", entity.strip_prefix(&own_prefix(caller)).unwrap_or(entity))
}

/// The same for what entities begin with.
pub(super) fn check_entity_prefix(prefix: &str, caller: &Principal) -> Option<Refusal> {
    check_name_start("entity_prefix", prefix.strip_prefix(&own_prefix(caller)).unwrap_or(prefix))
}

/// The entity as replies show it.
pub(super) fn filed_name(owner: &str, entity: &str) -> String {
    if owner == EVERYONE { entity.into() } else { format!("{AGENT}{owner}::{entity}") }
}

/// Where a fact is filed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub owner: String,
    pub entity: String,
}

impl Place {
    /// Where the caller's fact about `entity` goes. Its own filed name means a private fact, with or without `private`.
    pub(super) fn to_write(entity: &str, private: bool, caller: &Principal) -> Result<Self, Refusal> {
        if let Some(refusal) = check_entity(entity, caller) {
            return Err(refusal);
        }
        let own = own_prefix(caller);
        let (owner, entity) = match entity.strip_prefix(&own) {
            Some(rest) => (caller.passport.as_str(), rest),
            None if private => (caller.passport.as_str(), entity),
            None => (EVERYONE, entity),
        };
        match RESERVED.iter().find(|(prefix, _)| entity.starts_with(prefix)) {
            Some((_, Reserved::AgentPrivate)) => Err(Refusal::Denied {
                problem: format!("entities under `{AGENT}` are private to the passport they name; yours begin with `{own}`"),
            }),
            Some((prefix, Reserved::DaemonOwned)) => Err(Refusal::Denied { problem: only_the_service(prefix) }),
            None => Ok(Self { owner: owner.into(), entity: entity.into() }),
        }
    }

    /// What a name stands for when the caller asks for it: a plain name for the tenant's facts and the caller's private ones,
    /// the caller's filed name for the private ones, another agent's filed name for nothing.
    pub(super) fn to_read(entity: &str, caller: &Principal) -> Vec<Self> {
        let place = |owner: &str, entity: &str| Self { owner: owner.into(), entity: entity.into() };
        match entity.strip_prefix(&own_prefix(caller)) {
            Some(rest) => vec![place(&caller.passport, rest)],
            None if entity.starts_with(AGENT) => Vec::new(),
            None => vec![place(EVERYONE, entity), place(&caller.passport, entity)],
        }
    }
}

pub(super) fn only_the_service(prefix: &str) -> String {
    format!("entities under `{prefix}` are written by the service alone")
}

/// Entities of one owner that begin alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub owner: String,
    pub prefix: String,
    /// What stands before an entity's name when it is shown as it was asked for: nothing, or the start of a filed name.
    pub shown_before: String,
}

impl Region {
    /// What a beginning of names stands for when the caller asks for it; plain and filed names both count.
    pub(super) fn to_read(prefix: &str, caller: &Principal) -> Vec<Self> {
        let own = own_prefix(caller);
        let everyones = Self { owner: EVERYONE.into(), prefix: prefix.into(), shown_before: String::new() };
        let private = |prefix: &str, shown_before: &str| Self {
            owner: caller.passport.clone(),
            prefix: prefix.into(),
            shown_before: shown_before.into(),
        };
        if let Some(rest) = prefix.strip_prefix(&own) {
            return vec![private(rest, &own)];
        }
        let private = match own.starts_with(prefix) && !prefix.is_empty() {
            true => private("", &own),
            false => private(prefix, ""),
        };
        match prefix.starts_with(AGENT) {
            true if own.starts_with(prefix) => vec![private],
            true => Vec::new(),
            false => vec![everyones, private],
        }
    }

    pub(super) fn holds(&self, owner: &str, entity: &str) -> bool {
        self.owner == owner && entity.starts_with(&self.prefix)
    }
}
