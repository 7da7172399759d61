//! What a list of tools shows of a catalog, and what each tool is for.
//!
//! Shaping only narrows a list; what it leaves out can be called all the same. The flag decides how far: `full` leaves the list as
//! it is, `minimal` keeps what every session needs, `dynamic` adds what the caller's declared intent speaks for.

use std::sync::Arc;

use quorate_domain::flag::{Definition, Flags};
use quorate_domain::{Principal, flag};
use schemars::JsonSchema;
use serde::Serialize;

use crate::registry::{Effect, Entry};
use crate::tools::group;

/// What a tool is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Retrieval,
    Proofing,
    Memory,
    Journaling,
    Audit,
    Coordination,
}

impl Kind {
    pub const ALL: [Kind; 6] = [Kind::Retrieval, Kind::Proofing, Kind::Memory, Kind::Journaling, Kind::Audit, Kind::Coordination];

    /// What it is for, from the group under which it is declared and whether it writes.
    pub fn of(entry: &Entry) -> Self {
        match (entry.group, entry.effect) {
            (group::FACTS | group::MEMORY | group::GRAPH | group::FEATURES, Effect::Read) => Kind::Retrieval,
            (group::FACTS | group::MEMORY | group::GRAPH | group::FEATURES, _) => Kind::Memory,
            (group::RECEIPTS | group::IDENTITY, _) => Kind::Proofing,
            (group::SESSIONS | group::DECISIONS | group::OBSERVATIONS, _) => Kind::Journaling,
            (group::AUDIT | group::CONSTRAINTS | group::APPROVALS, _) => Kind::Audit,
            _ => Kind::Coordination,
        }
    }
}

/// The intents that carry weight, and for what. Any other is kept and weighs nothing.
const INTENTS: [(&str, &[(Kind, u32)]); 5] = [
    ("audit_review", &[(Kind::Audit, 30), (Kind::Proofing, 20), (Kind::Retrieval, 10)]),
    ("document_ingest", &[(Kind::Memory, 30), (Kind::Journaling, 20), (Kind::Retrieval, 10)]),
    ("session_review", &[(Kind::Journaling, 30), (Kind::Memory, 20)]),
    ("compliance_export", &[(Kind::Audit, 30), (Kind::Proofing, 25)]),
    ("knowledge_query", &[(Kind::Retrieval, 30), (Kind::Memory, 20), (Kind::Journaling, 5)]),
];

/// How much an intent speaks for tools of a kind.
pub fn weight(intent: Option<&str>, kind: Kind) -> u32 {
    let known = INTENTS.iter().find(|(name, _)| Some(*name) == intent);
    let weights = known.map_or(&[][..], |(_, weights)| weights);
    weights.iter().find(|(of, _)| *of == kind).map_or(0, |(_, weight)| *weight)
}

/// What every session needs, as far as a list has it, in this order.
const FLOOR: [&str; 16] = [
    "cuecrux_session",
    "query",
    "query_scan",
    "query_expand",
    "store_fact",
    "query_facts",
    "get_bootstrap",
    "memory_view",
    "save_session",
    "get_session",
    "get_agent_identity",
    "get_passport",
    "receipt_verify",
    "sync_status",
    "create_handoff",
    "accept_handoff",
];
/// Tools that an intent adds to these.
const ADDED_MAX: usize = 12;

/// Whether a list is to be narrowed.
pub fn is_narrow(flags: &Flags) -> bool {
    value(flags, flag::TOOL_SURFACE) != "full"
}

/// Whether the caller's intent has a say in it.
pub fn asks_for_intent(flags: &Flags) -> bool {
    value(flags, flag::TOOL_SURFACE) == "dynamic"
}

/// The tools of a narrowed list: what every session needs, and what the intent speaks for most; ties keep the catalog's order.
pub fn narrowed<'a>(tools: &[&'a Arc<Entry>], intent: Option<&str>) -> Vec<&'a Arc<Entry>> {
    let mut shown: Vec<&Arc<Entry>> = FLOOR.iter().filter_map(|name| tools.iter().find(|entry| entry.name == *name).copied()).collect();
    let others = tools.iter().copied().filter(|entry| !FLOOR.contains(&entry.name));
    let mut added: Vec<(u32, &Arc<Entry>)> = others.map(|entry| (weight(intent, Kind::of(entry)), entry)).collect();
    added.retain(|(weight, _)| *weight > 0);
    // Stable: the order of the catalog stays among equals.
    added.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    shown.extend(added.into_iter().take(ADDED_MAX).map(|(_, entry)| entry));
    shown
}

/// The value of a flag among those that were read.
pub fn value(flags: &Flags, flag: Definition) -> &str {
    flags.flags.iter().find(|set| set.name == flag.name).map_or(flag.default, |set| &set.value)
}

/// Beginnings of names that only operators' tools have.
const RESERVED: [&str; 3] = ["__agent::", "__ops::", "__bootstrap__::"];

/// Why a caller can't use a tool now, as a fragment; `None` when it can. What a tool's own rules say of its arguments comes on top.
pub fn why_denied(name: &str, scope: &str, switch: Option<Definition>, caller: &Principal, flags: &Flags) -> Option<String> {
    if RESERVED.iter().any(|prefix| name.starts_with(prefix)) && !caller.may("admin") {
        return Some("reserved-prefix tool".into());
    }
    if !scope.is_empty() && !caller.may(scope) {
        return Some(format!("your token has no scope `{scope}`"));
    }
    let off = switch.filter(|switch| value(flags, *switch) == "off");
    off.map(|switch| format!("switched off by the flag `{}`", switch.name))
}

#[cfg(test)]
mod tests {
    use quorate_domain::Tier;
    use quorate_domain::flag::FlagSet;

    use super::*;
    use crate::tools;

    fn shown(intent: Option<&str>) -> Vec<&'static str> {
        let catalog = tools::crux();
        narrowed(&catalog.entries().iter().collect::<Vec<_>>(), intent).iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn a_narrow_list_has_what_every_session_needs_and_twelve_tools_that_the_intent_speaks_for() {
        let floor = shown(None);
        assert_eq!(floor[0], "cuecrux_session");
        assert!(floor.iter().all(|name| FLOOR.contains(name)));
        assert_eq!(shown(Some("have a look")), floor, "words without weight add nothing");
        for (intent, weights) in INTENTS {
            let list = shown(Some(intent));
            assert_eq!((&list[..floor.len()], list.len()), (&floor[..], floor.len() + ADDED_MAX), "{intent}");
            let catalog = tools::crux();
            let first = Kind::of(catalog.find(list[floor.len()]).unwrap());
            assert_eq!(first, weights[0].0, "{intent}: what weighs most comes first");
        }
        assert!(shown(Some("audit_review")).contains(&"audit_config"));
    }

    #[test]
    fn a_tool_of_a_reserved_name_is_denied_to_callers_without_operator_standing() {
        let flags = Flags { flags: vec![FlagSet { name: flag::COORD.name.into(), value: "off".into() }] };
        let why = |name, scope, switch, caller: &str| why_denied(name, scope, switch, &by(caller), &flags);
        assert_eq!(why("__ops::rotate", "", None, "crux-mcp.*").as_deref(), Some("reserved-prefix tool"));
        assert_eq!(why("__ops::rotate", "", None, "*"), None);
        assert_eq!(
            why("store_fact", "crux-mcp.store_fact", None, "nothing").as_deref(),
            Some("your token has no scope `crux-mcp.store_fact`")
        );
        assert_eq!(why("x", "", Some(flag::COORD), "nothing").as_deref(), Some("switched off by the flag `CORECRUXD_COORD`"));
        assert_eq!(why("x", "", Some(flag::OBSERVE), "nothing"), None);
    }

    fn by(scope: &str) -> Principal {
        Principal { tenant: "t".into(), passport: "p".into(), tier: Tier::Verified, scopes: [scope.to_string()].into() }
    }
}
