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

pub const SCOPED_FORGET: Definition = Definition {
    name: "CORECRUXD_FEATURE_SCOPED_FORGET",
    default: "on",
    words: &[],
    about: "memory_forget and memory_forget_undo; memory_forget_dry_run works either way",
};
/// A number.
pub const FORGET_RECOVERY: Definition = Definition {
    name: "CORECRUXD_FORGET_RECOVERY_WINDOW_DAYS",
    default: "7",
    words: &[],
    about: "days for which what memory_forget took can be brought back, 1 to 3650; it holds for what is forgotten from then on",
};
pub const ARTEFACTS: Definition =
    Definition { name: "CORECRUXD_FEATURE_ARTEFACTS", default: "on", words: &[], about: "artefact_put, artefact_get and artefact_list" };
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
    about: "tokens that each passport without a budget of its own should stay within, 0 for none; QUORATE_BEYOND_TOKEN_BUDGET says what \
            happens beyond it",
};
/// What it does, in the words of [`crate::usage::Beyond`].
pub const BEYOND_TOKEN_BUDGET: Definition = Definition {
    name: "QUORATE_BEYOND_TOKEN_BUDGET",
    default: "report",
    words: &["report", "warn", "stop"],
    about: "what happens to a passport beyond CORECRUXD_SESSION_TOKEN_BUDGET: report shows it in session_token_usage alone, warn tells it \
            with every answer too, stop refuses its calls",
};
pub const TOOL_TRACES: Definition = Definition {
    name: "CORECRUXD_FEATURE_TOOL_TRACES",
    default: "on",
    words: &[],
    about: "tool_trace_recent and learn, and keeping what they show",
};
/// A number.
pub const TOOL_TRACES_TTL: Definition = Definition {
    name: "CORECRUXD_FEATURE_TOOL_TRACES_TTL_SECS",
    default: "3600",
    words: &[],
    about: "seconds for which a trace is kept, 60 to 86400; of those that come from then on",
};
pub const ACTIVITY_LOG: Definition = Definition {
    name: "CORECRUXD_FEATURE_ACTIVITY_LOG",
    default: "on",
    words: &[],
    about: "activity_recent, POST /v1/activity, and a row for each call that names a session",
};
/// A number.
pub const ACTIVITY_LOG_TTL: Definition = Definition {
    name: "CORECRUXD_FEATURE_ACTIVITY_LOG_TTL_SECS",
    default: "31536000",
    words: &[],
    about: "seconds for which a row of the activity log is kept, 60 to 315360000; of those that come from then on",
};
/// A share.
pub const OUTPUT_HOLDOUT: Definition = Definition {
    name: "CRUX_OUTPUT_HOLDOUT",
    default: "0",
    words: &[],
    about: "the share of recalls, 0 to 1, that is answered without its token budget, for token_savings to compare; 0 is off",
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
/// Needs a certificate, which a gateway is given in its settings.
pub const C2PA_X509_SIGNER: Definition = Definition {
    name: "CORECRUXD_FEATURE_C2PA_X509_SIGNER",
    default: "off",
    words: &[],
    about: "whether output_attest also makes a manifest that readers of C2PA open, signed by the gateway's X.509 certificate",
};
pub const CUSTODY_AUDIT: Definition =
    Definition { name: "CRUX_CONTEXT_CUSTODY_AUDIT", default: "on", words: &[], about: "context_custody_audit" };

/// Off: observations can be read by the whole tenant, and a session's name is its passport's business.
pub const HANDOFF_OBSERVATIONS: Definition = Definition {
    name: "CORECRUXD_HANDOFF_OBSERVATIONS",
    default: "off",
    words: &[],
    about: "whether making and accepting a hand-off is observed in the session that it packs, where the tenant can read it",
};
/// Off: it tells each row of a recall twice.
pub const AUDIT_ENVELOPE: Definition = Definition {
    name: "CORECRUXD_FEATURE_AUDIT_ENVELOPE",
    default: "off",
    words: &[],
    about: "whether query_facts answers with an audit envelope too: which facts it showed, under which capability",
};

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
pub const ALL: [Definition; 36] = [
    PUNCHCARD,
    APPROVAL_QUEUE,
    RECEIPT_VERIFY,
    MEMORY_PANEL,
    FRESHNESS,
    CONSOLIDATION,
    SCOPED_FORGET,
    FORGET_RECOVERY,
    ARTEFACTS,
    STATUS_FEED,
    COORD,
    COORD_PRESENCE,
    OBSERVE,
    AUDIT_EXPORT,
    C2PA_OUTPUT,
    C2PA_X509_SIGNER,
    CUSTODY_AUDIT,
    MINT_REQUESTS,
    PASSPORT_REVOCATION,
    IDENTITY_CONTINUITY,
    ORCHESTRATORS,
    SESSION_TOKEN_BUDGET,
    BEYOND_TOKEN_BUDGET,
    TOOL_TRACES,
    TOOL_TRACES_TTL,
    ACTIVITY_LOG,
    ACTIVITY_LOG_TTL,
    OUTPUT_HOLDOUT,
    AUTONOMY_CONTRACT,
    REUSE_CHECK,
    ENGRAMS,
    MEMORY_ACK,
    AGENT_PASSPORTS,
    TOOL_SURFACE,
    HANDOFF_OBSERVATIONS,
    AUDIT_ENVELOPE,
];

/// Flags whose tools answer `CAPABILITY_DENIED` while they are off, as documented; the others answer -32030.
pub(crate) const DENYING: [Definition; 9] =
    [ARTEFACTS, MEMORY_PANEL, FRESHNESS, CONSOLIDATION, SCOPED_FORGET, AUDIT_EXPORT, C2PA_OUTPUT, REUSE_CHECK, ENGRAMS];

/// Flags whose tools answer -32601 while they are off, as documented.
pub(crate) const ABSENT: [Definition; 2] = [MINT_REQUESTS, IDENTITY_CONTINUITY];

impl Definition {
    pub fn find(name: &str) -> Option<Self> {
        ALL.into_iter().find(|flag| flag.name == name)
    }

    /// Of a flag that is a number: its unit and range.
    fn number(&self) -> Option<(&'static str, RangeInclusive<u64>)> {
        match *self {
            TOOL_TRACES_TTL => Some(("seconds", 60..=86_400)),
            ACTIVITY_LOG_TTL => Some(("seconds", 60..=315_360_000)),
            FORGET_RECOVERY => Some(("days", 1..=3_650)),
            COORD_PRESENCE => Some(("seconds", 60..=86_400)),
            // The largest that every JSON reader keeps.
            SESSION_TOKEN_BUDGET => Some(("tokens", 0..=9_007_199_254_740_991)),
            _ => None,
        }
    }

    /// What an environment's word is taken for where [`Definition::parse`] refuses it: of a share, the nearest one.
    pub fn nearest(&self, word: &str) -> Option<String> {
        let (share, _) = read_share(word.trim()).filter(|_| *self == OUTPUT_HOLDOUT)?;
        Some(show_share(share))
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
        if *self == OUTPUT_HOLDOUT {
            let share = parse_share(&lower)
                .ok_or_else(|| format!("{} takes a share from 0 to 1, such as 0.05, not `{}`", self.name, shown(word)))?;
            return Ok(show_share(share));
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

/// A whole share, in millionths.
const WHOLE: u64 = 1_000_000;

/// A decimal number from 0 to 1 in millionths, more digits dropped.
pub fn parse_share(word: &str) -> Option<u64> {
    read_share(word).and_then(|(share, is_within)| is_within.then_some(share))
}

/// The share nearest to a decimal number, and whether the number is a share itself.
fn read_share(word: &str) -> Option<(u64, bool)> {
    let (negative, digits) = word.strip_prefix('-').map_or((false, word), |rest| (true, rest));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() + fraction.len() == 0 || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let is_zero = |part: &str| part.bytes().all(|digit| digit == b'0');
    let digit = |place: usize| fraction.as_bytes().get(place).map_or(0, |digit| u64::from(digit - b'0'));
    Some(match (negative, is_zero(whole)) {
        (true, whole_is_zero) => (0, whole_is_zero && is_zero(fraction)),
        (false, true) => ((0..6).fold(0, |share, place| share * 10 + digit(place)), true),
        (false, false) => (WHOLE, whole.trim_start_matches('0') == "1" && is_zero(fraction)),
    })
}

fn show_share(share: u64) -> String {
    match share {
        WHOLE => "1".into(),
        0 => "0".into(),
        share => format!("0.{share:06}").trim_end_matches('0').into(),
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

/// The value in force of a flag that is a share, in millionths.
pub(crate) fn millionths(view: &(impl Read + ?Sized), flag: Definition) -> Result<u64, StorageError> {
    let value = value(view, flag)?;
    parse_share(&value).ok_or_else(|| StorageError::corrupt(format!("{} is `{value}`", flag.name)))
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
    fn a_share_is_a_decimal_number_kept_between_none_and_all() {
        let shares =
            [("0", "0"), ("1", "1"), ("0.05", "0.05"), (".5", "0.5"), ("1.0", "1"), ("-0", "0"), ("0.0000001", "0"), ("00.250", "0.25")];
        for (word, normal) in shares {
            assert_eq!(OUTPUT_HOLDOUT.parse(word).as_deref(), Ok(normal), "{word}");
        }
        for word in ["", ".", "-", "on", "5%", "0,05", "1e-2", "NaN", "--1", "0.5.5"] {
            assert!(OUTPUT_HOLDOUT.parse(word).is_err() && OUTPUT_HOLDOUT.nearest(word).is_none(), "{word}");
        }
        // What an environment says is brought into the range, and what an operator sets is refused with it.
        for (word, nearest) in [("2", "1"), ("5.", "1"), ("01.5", "1"), ("1.0000001", "1"), ("-1", "0"), ("-0.1", "0"), ("-.0000001", "0")]
        {
            let told = format!("CRUX_OUTPUT_HOLDOUT takes a share from 0 to 1, such as 0.05, not `{word}`");
            assert_eq!(OUTPUT_HOLDOUT.parse(word), Err(told));
            assert_eq!(OUTPUT_HOLDOUT.nearest(word).as_deref(), Some(nearest), "{word}");
        }
        assert_eq!(COORD_PRESENCE.nearest("5"), None, "other numbers are refused everywhere");
    }

    #[test]
    fn every_flag_reads_the_same_words_and_refuses_others() {
        let switches = ALL.into_iter().filter(|flag| flag.words.is_empty() && flag.number().is_none() && *flag != OUTPUT_HOLDOUT);
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
