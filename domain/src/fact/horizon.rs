//! How fast facts go stale.

use serde::{Deserialize, Serialize};

use crate::refusal::{Refusal, shown};
use crate::stamp::UnixMs;

const HOUR_MS: u64 = 60 * 60 * 1_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// When facts of each class go stale.
pub const VOLATILE_STALE_HOURS: u64 = 24;
pub const MEDIUM_STALE_DAYS: u64 = 35;
pub const STABLE_STALE_DAYS: u64 = 365;

/// How fast a fact goes stale: after a day, after five weeks, after a year, never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HorizonClass {
    Volatile,
    Medium,
    Stable,
    None,
}

/// The class of an entity whose fact names none, by how the entity begins.
const BY_PREFIX: [(&str, HorizonClass); 6] = [
    ("__ops::", HorizonClass::Volatile),
    ("__bootstrap__::", HorizonClass::Stable),
    ("__candidate_fact__::", HorizonClass::Medium),
    ("bench:", HorizonClass::Stable),
    ("execplan:", HorizonClass::Medium),
    ("incident:", HorizonClass::Medium),
];

impl HorizonClass {
    pub const ALL: [HorizonClass; 4] = [HorizonClass::Volatile, HorizonClass::Medium, HorizonClass::Stable, HorizonClass::None];

    pub fn word(self) -> &'static str {
        match self {
            HorizonClass::Volatile => "volatile",
            HorizonClass::Medium => "medium",
            HorizonClass::Stable => "stable",
            HorizonClass::None => "none",
        }
    }

    /// As it stands in index keys, so never another number.
    pub(super) fn code(self) -> u8 {
        match self {
            HorizonClass::Volatile => 1,
            HorizonClass::Medium => 2,
            HorizonClass::Stable => 3,
            HorizonClass::None => 4,
        }
    }

    pub(super) fn default_of(entity: &str) -> Self {
        BY_PREFIX.iter().find(|(prefix, _)| entity.starts_with(prefix)).map_or(HorizonClass::None, |(_, class)| *class)
    }

    /// Facts stored before this instant are stale, older than the horizon; zero means that none is.
    pub(super) fn stale_before(self, now: UnixMs) -> UnixMs {
        let horizon_ms = match self {
            HorizonClass::Volatile => VOLATILE_STALE_HOURS * HOUR_MS,
            HorizonClass::Medium => MEDIUM_STALE_DAYS * DAY_MS,
            HorizonClass::Stable => STABLE_STALE_DAYS * DAY_MS,
            HorizonClass::None => return UnixMs(0),
        };
        UnixMs(now.0.saturating_sub(horizon_ms))
    }

    /// Reads free text such as `24h`, `7 days` or `stable for years`: its words for a class and its lengths of time have to
    /// agree on one class. A length means volatile up to two days, stable from a year on, and medium between.
    pub(super) fn parse(text: &str) -> Result<Self, Refusal> {
        let mut found: Option<HorizonClass> = None;
        let mut number = None;
        for word in words(text) {
            if let Some(thousandths) = thousandths(&word) {
                number = Some(thousandths);
                continue;
            }
            let class = match unit_ms(&word) {
                Some(unit_ms) => Some(Self::of_length(number.take().unwrap_or(1_000), unit_ms)),
                None => Self::of_word(&word),
            };
            let negated = matches!(word.as_str(), "not" | "no" | "isn" | "non");
            if negated || found.is_some() && class.is_some() && found != class {
                return Err(unclear(text));
            }
            found = found.or(class);
        }
        // A number that no unit followed was not understood.
        found.filter(|_| number.is_none()).ok_or_else(|| unclear(text))
    }

    fn of_length(thousandths: u64, unit_ms: u64) -> Self {
        match thousandths.saturating_mul(unit_ms) / 1_000 {
            length if length <= 2 * DAY_MS => HorizonClass::Volatile,
            length if length < 365 * DAY_MS => HorizonClass::Medium,
            _ => HorizonClass::Stable,
        }
    }

    fn of_word(word: &str) -> Option<Self> {
        match word {
            "volatile" | "hourly" | "daily" | "ephemeral" | "temporary" => Some(HorizonClass::Volatile),
            "medium" | "weekly" | "monthly" | "quarterly" => Some(HorizonClass::Medium),
            "stable" | "frozen" | "immutable" | "historical" | "architecture" | "architectural" | "yearly" => Some(HorizonClass::Stable),
            "none" | "never" | "forever" | "permanent" => Some(HorizonClass::None),
            _ => None,
        }
    }
}

fn unclear(text: &str) -> Refusal {
    Refusal::invalid(
        "freshness_horizon",
        format!(
            "can't be read from `{}`; say for example `24h`, `7 days`, `6 months`, `stable`, `volatile` or `never`, or use `horizon_class`",
            shown(text)
        ),
    )
}

/// Lower-case runs of letters and runs of digits, so that `24h` is two words. A point stays between digits.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut last = ' ';
    for ch in text.to_lowercase().chars() {
        let goes_on =
            ch.is_alphabetic() && last.is_alphabetic() || (ch.is_ascii_digit() || ch == '.') && (last.is_ascii_digit() || last == '.');
        match words.last_mut() {
            Some(word) if goes_on => word.push(ch),
            _ if ch.is_alphabetic() || ch.is_ascii_digit() => words.push(ch.into()),
            _ => {}
        }
        last = ch;
    }
    words
}

/// `1.5` is 1500; what is too large for a number is the largest. `None` for a word that is not a number.
fn thousandths(word: &str) -> Option<u64> {
    if !word.starts_with(|ch: char| ch.is_ascii_digit()) {
        return None;
    }
    let (whole, fraction) = word.split_once('.').unwrap_or((word, ""));
    let fraction: String = fraction.chars().filter(char::is_ascii_digit).chain("000".chars()).take(3).collect();
    let whole = whole.parse::<u64>().unwrap_or(u64::MAX);
    Some(whole.saturating_mul(1_000).saturating_add(fraction.parse().unwrap_or(0)))
}

fn unit_ms(word: &str) -> Option<u64> {
    Some(match word {
        "s" | "sec" | "secs" | "second" | "seconds" => 1_000,
        "m" | "min" | "mins" | "minute" | "minutes" => 60 * 1_000,
        "h" | "hr" | "hrs" | "hour" | "hours" => HOUR_MS,
        "d" | "day" | "days" => DAY_MS,
        "w" | "week" | "weeks" => 7 * DAY_MS,
        "mo" | "month" | "months" => 30 * DAY_MS,
        "quarter" | "quarters" => 91 * DAY_MS,
        "y" | "yr" | "yrs" | "year" | "years" => 365 * DAY_MS,
        _ => return None,
    })
}
