//! Flags: one parser for all of them, replicated where they change what the state machine does.
//!
//! The originals read flags in six dialects; here `1 true yes on` and `0 false no off` in any letter case are the only words
//! for a switch, and an unknown word stops the start. Every feature is on unless a flag says otherwise.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal, shown};
use crate::stamp::{ReadStamp, Stamp};
use crate::tx::{Read, StorageError, Tx};

/// A flag of the state machine: its documented name, and the words it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    pub name: &'static str,
    pub default: &'static str,
    /// The accepted words when it is not a switch.
    pub words: &'static [&'static str],
    pub about: &'static str,
}

/// What `punch_in` does when another holds the resource.
pub const PUNCHCARD: Definition = Definition {
    name: "CORECRUXD_PUNCHCARD",
    default: "enforce",
    words: &["off", "advisory", "enforce"],
    about: "enforce refuses a card that overlaps another's; advisory grants it and names the other; off refuses every card",
};
pub const APPROVAL_QUEUE: Definition =
    Definition { name: "CORECRUXD_FEATURE_APPROVAL_QUEUE", default: "on", words: &[], about: "approval_request and approval_decide" };
pub const RECEIPT_VERIFY: Definition =
    Definition { name: "CORECRUXD_FEATURE_RECEIPT_VERIFY", default: "on", words: &[], about: "receipt_verify" };
pub const MEMORY_PANEL: Definition = Definition {
    name: "CORECRUXD_FEATURE_MEMORY_PANEL",
    default: "on",
    words: &[],
    about: "memory_view, memory_edit, memory_pin and memory_history",
};
pub const FRESHNESS: Definition = Definition {
    name: "CORECRUXD_FEATURE_FRESHNESS",
    default: "on",
    words: &[],
    about: "memory_freshness, memory_sweep_candidates, memory_set_horizon and memory_reverify",
};
pub const CONSOLIDATION: Definition = Definition {
    name: "CORECRUXD_FEATURE_CONSOLIDATION",
    default: "on",
    words: &[],
    about: "memory_contradictions and memory_consolidate",
};

pub const STATUS_FEED: Definition = Definition { name: "CORECRUXD_FEATURE_STATUS_FEED", default: "on", words: &[], about: "status_feed" };
pub const COORD: Definition = Definition { name: "CORECRUXD_COORD", default: "on", words: &[], about: "coord_announce and coord_status" };
/// Off, it is as if the tool did not exist.
pub const MINT_REQUESTS: Definition =
    Definition { name: "CORECRUXD_FEATURE_PASSPORT_MINT_REQUESTS", default: "on", words: &[], about: "request_passport_mint" };
pub const PASSPORT_REVOCATION: Definition = Definition {
    name: "CRUX_PASSPORT_REVOCATION",
    default: "on",
    words: &[],
    about: "whether revoked passports are refused; off, revoke_passport still marks them and ends their cards",
};
pub const IDENTITY_CONTINUITY: Definition = Definition {
    name: "CORECRUXD_FEATURE_IDENTITY_CONTINUITY",
    default: "on",
    words: &[],
    about: "passport_split, passport_merge and passport_link_device",
};
pub const ORCHESTRATORS: Definition = Definition {
    name: "CORECRUXD_ORCHESTRATORS",
    default: "on",
    words: &[],
    about: "create_orchestrator, attach_to_orchestrator, detach_from_orchestrator, list_orchestrators and update_orchestrator",
};
/// A number.
pub const SESSION_TOKEN_BUDGET: Definition = Definition {
    name: "CORECRUXD_SESSION_TOKEN_BUDGET",
    default: "0",
    words: &[],
    about: "tokens that session_token_usage reports as each passport's limit, 0 for none; nothing is refused beyond it",
};
/// A number.
pub const COORD_PRESENCE: Definition = Definition {
    name: "CORECRUXD_COORD_PRESENCE_TTL_SECS",
    default: "900",
    words: &[],
    about: "seconds after its last sign of life for which a session counts as live, 60 to 86400",
};

pub const OBSERVE: Definition = Definition {
    name: "CORECRUXD_OBSERVE",
    default: "on",
    words: &[],
    about: "list_observations, get_observation, verify_observation, and what records observations",
};
pub const AUDIT_EXPORT: Definition =
    Definition { name: "CORECRUXD_FEATURE_AUDIT_EXPORT", default: "on", words: &[], about: "audit_export_bundle" };

pub const C2PA_OUTPUT: Definition = Definition { name: "CORECRUXD_FEATURE_C2PA_OUTPUT", default: "on", words: &[], about: "output_attest" };
pub const CUSTODY_AUDIT: Definition =
    Definition { name: "CRUX_CONTEXT_CUSTODY_AUDIT", default: "on", words: &[], about: "context_custody_audit" };

pub const AUTONOMY_CONTRACT: Definition =
    Definition { name: "CORECRUXD_FEATURE_AUTONOMY_CONTRACT", default: "on", words: &[], about: "autonomy_contract" };
pub const REUSE_CHECK: Definition = Definition { name: "CORECRUXD_FEATURE_REUSE_CHECK", default: "on", words: &[], about: "reuse_check" };
pub const ENGRAMS: Definition = Definition { name: "CORECRUXD_FEATURE_ENGRAM_MCP", default: "on", words: &[], about: "engram_resolve" };
pub const MEMORY_ACK: Definition =
    Definition { name: "CORECRUXD_FEATURE_MEMORY_ACK", default: "on", words: &[], about: "memory_acknowledge_use" };
/// Off, a session begins with whatever passport there is.
pub const AGENT_PASSPORTS: Definition = Definition {
    name: "CORECRUXD_AGENT_PASSPORTS",
    default: "on",
    words: &[],
    about: "whether cuecrux_session issues the caller's passport if it has none yet",
};
/// What `tools/list` shows at `/mcp/crux`; what is not listed can be called all the same.
pub const TOOL_SURFACE: Definition = Definition {
    name: "CORECRUXD_TOOL_SURFACE",
    default: "full",
    words: &["full", "minimal", "dynamic"],
    about: "full lists every tool; minimal the few that every session needs; dynamic these, and those that fit the caller's intent",
};

/// All flags that are replicated.
pub const ALL: [Definition; 24] = [
    PUNCHCARD,
    APPROVAL_QUEUE,
    RECEIPT_VERIFY,
    MEMORY_PANEL,
    FRESHNESS,
    CONSOLIDATION,
    STATUS_FEED,
    COORD,
    COORD_PRESENCE,
    OBSERVE,
    AUDIT_EXPORT,
    C2PA_OUTPUT,
    CUSTODY_AUDIT,
    MINT_REQUESTS,
    PASSPORT_REVOCATION,
    IDENTITY_CONTINUITY,
    ORCHESTRATORS,
    SESSION_TOKEN_BUDGET,
    AUTONOMY_CONTRACT,
    REUSE_CHECK,
    ENGRAMS,
    MEMORY_ACK,
    AGENT_PASSPORTS,
    TOOL_SURFACE,
];

/// Flags whose tools answer `CAPABILITY_DENIED` while they are off, as documented; the others answer -32030.
pub(crate) const DENYING: [Definition; 7] = [MEMORY_PANEL, FRESHNESS, CONSOLIDATION, AUDIT_EXPORT, C2PA_OUTPUT, REUSE_CHECK, ENGRAMS];

/// Flags whose tools answer -32601 while they are off, as documented.
pub(crate) const ABSENT: [Definition; 2] = [MINT_REQUESTS, IDENTITY_CONTINUITY];

impl Definition {
    pub fn find(name: &str) -> Option<Self> {
        ALL.into_iter().find(|flag| flag.name == name)
    }

    /// Of a flag that is a number: its unit and range.
    fn number(&self) -> Option<(&'static str, RangeInclusive<u64>)> {
        match *self {
            COORD_PRESENCE => Some(("seconds", 60..=86_400)),
            // The largest that every JSON reader keeps.
            SESSION_TOKEN_BUDGET => Some(("tokens", 0..=9_007_199_254_740_991)),
            _ => None,
        }
    }

    /// The normal form of a word, or the accepted words.
    pub fn parse(&self, word: &str) -> Result<String, String> {
        let lower = word.trim().to_lowercase();
        if let Some((unit, range)) = self.number() {
            let number = lower.parse::<u64>().ok().filter(|number| range.contains(number));
            return number
                .map(|number| number.to_string())
                .ok_or_else(|| format!("{} takes {unit} from {} to {}, not `{}`", self.name, range.start(), range.end(), shown(word)));
        }
        if !self.words.is_empty() {
            return match self.words.contains(&lower.as_str()) {
                true => Ok(lower),
                false => Err(format!("{} takes one of {}, not `{}`", self.name, self.words.join(", "), shown(word))),
            };
        }
        match lower.as_str() {
            "1" | "true" | "yes" | "on" => Ok("on".into()),
            "0" | "false" | "no" | "off" => Ok("off".into()),
            _ => Err(format!("{} takes 1, true, yes, on or 0, false, no, off, not `{}`", self.name, shown(word))),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Flag {
    name: String,
    value: String,
}

impl Record for Flag {
    const KIND: Kind = Kind::Flag;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new().text(&self.name)
    }
}

/// The value in force.
pub fn value(view: &(impl Read + ?Sized), flag: Definition) -> Result<String, StorageError> {
    let set: Option<Flag> = view.get(CLUSTER, &Key::new().text(flag.name))?;
    Ok(set.map_or_else(|| flag.default.into(), |flag| flag.value))
}

/// The value in force of a flag that is a number.
pub(crate) fn number(view: &(impl Read + ?Sized), flag: Definition) -> Result<u64, StorageError> {
    value(view, flag)?.parse().map_err(|error| StorageError::new(flag.name, error))
}

/// Refuses what a switch that is off takes away.
pub(crate) fn refuse_off(view: &(impl Read + ?Sized), flag: Definition, what: &str) -> Result<Option<Refusal>, StorageError> {
    Ok((!is_on(view, flag)?).then(|| Refusal::FeatureOff { what: what.into(), flag: flag.name.into() }))
}

/// Whether a switch is on.
pub fn is_on(view: &(impl Read + ?Sized), flag: Definition) -> Result<bool, StorageError> {
    Ok(value(view, flag)? == "on")
}

/// Sets a replicated flag. An operator's act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetFlag {
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlagSet {
    pub name: String,
    pub value: String,
}

impl SetFlag {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FlagSet> {
        if !at.caller.may("admin") {
            return Ok(Err(Refusal::Denied { problem: "setting a flag needs the scope `admin`".into() }));
        }
        let Some(flag) = Definition::find(&self.name) else {
            let known: Vec<&str> = ALL.iter().map(|flag| flag.name).collect();
            return Ok(Err(Refusal::invalid("name", format!("is no flag; known are {}", known.join(", ")))));
        };
        let value = match flag.parse(&self.value) {
            Ok(value) => value,
            Err(problem) => return Ok(Err(Refusal::invalid("value", problem))),
        };
        tx.put(&Flag { name: self.name.clone(), value: value.clone() });
        Ok(Ok(FlagSet { name: self.name, value }))
    }
}

/// Reads all replicated flags.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetFlags {}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flags {
    pub flags: Vec<FlagSet>,
}

impl GetFlags {
    pub fn run(self, view: &impl Read, _: &ReadStamp) -> Applied<Flags> {
        let mut flags = Vec::new();
        for flag in ALL {
            flags.push(FlagSet { name: flag.name.into(), value: value(view, flag)? });
        }
        Ok(Ok(Flags { flags }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_reads_the_same_words_and_refuses_others() {
        let switches = ALL.into_iter().filter(|flag| flag.words.is_empty() && flag.number().is_none());
        for flag in switches {
            for (words, value) in [(["1", "true", "YES", " On "], "on"), (["0", "False", "no", "OFF"], "off")] {
                assert!(words.iter().all(|word| flag.parse(word).as_deref() == Ok(value)), "{}", flag.name);
            }
            for word in ["", "enabled", "2", "y"] {
                let told = flag.parse(word).unwrap_err();
                assert_eq!(told, format!("{} takes 1, true, yes, on or 0, false, no, off, not `{word}`", flag.name));
            }
        }
    }

    #[test]
    fn a_flag_of_words_or_of_a_number_names_what_it_takes() {
        assert_eq!(TOOL_SURFACE.parse("Dynamic").as_deref(), Ok("dynamic"));
        assert_eq!(TOOL_SURFACE.parse("all").unwrap_err(), "CORECRUXD_TOOL_SURFACE takes one of full, minimal, dynamic, not `all`");
        let told = COORD_PRESENCE.parse("5").unwrap_err();
        assert_eq!(told, "CORECRUXD_COORD_PRESENCE_TTL_SECS takes seconds from 60 to 86400, not `5`");
        assert!(ALL.iter().all(|flag| flag.parse(flag.default).as_deref() == Ok(flag.default)), "a default is a word of its flag");
    }

    #[test]
    fn no_two_flags_have_one_name() {
        let names: std::collections::BTreeSet<&str> = ALL.iter().map(|flag| flag.name).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
