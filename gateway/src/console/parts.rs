//! Small parts that several pages share.

use maud::{Markup, html};
use quorate_domain::UnixMs;
use quorate_domain::approval::{ApprovalStatus, RiskTier};
use serde_json::Value;

use super::visit::Visit;
use crate::cluster::now_unix_ms;
use crate::tools::receipts::ReceiptVerify;

/// An instant: how long ago, and exactly on pointing at it. The script keeps the former true.
pub fn ago(at: UnixMs) -> Markup {
    let ms = now_unix_ms().0.saturating_sub(at.0);
    html! { time datetime=(at.to_rfc3339()) title=(exact(at)) data-ago=(at.0) { (span(ms)) " ago" } }
}

/// A deadline: how long yet.
pub fn left(until: UnixMs) -> Markup {
    let ms = until.0.saturating_sub(now_unix_ms().0);
    html! {
        time.left datetime=(until.to_rfc3339()) title=(exact(until)) data-until=(until.0) {
            @if ms == 0 { "over" } @else { (span(ms)) " left" }
        }
    }
}

/// `2026-11-30 12:00:05 UTC`.
pub fn exact(at: UnixMs) -> String {
    let text = at.to_rfc3339();
    match text.split_once('T') {
        Some((day, time)) => format!("{day} {} UTC", time.split('.').next().unwrap_or(time)),
        None => text,
    }
}

/// A length of time in its largest unit, or in two where one says too little: `45 s`, `12 min`, `3 h 20 min`, `5 d`.
pub fn span(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (minutes, hours) = (seconds / 60, seconds / 3_600);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{minutes} min"),
        3_600..36_000 if minutes % 60 > 0 => format!("{hours} h {} min", minutes % 60),
        3_600..172_800 => format!("{hours} h"),
        _ => format!("{} d", hours / 24),
    }
}

pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut size = bytes as f64;
    let mut unit = 0;
    while size >= 1_024.0 && unit + 1 < UNITS.len() {
        size /= 1_024.0;
        unit += 1;
    }
    if unit == 0 || size >= 100.0 { format!("{size:.0} {}", UNITS[unit]) } else { format!("{size:.1} {}", UNITS[unit]) }
}

/// A word in a coloured frame; the colour never says more than the word.
pub fn badge(tone: &str, word: &str) -> Markup {
    html! { span.badge data-tone=(tone) { (word.replace('_', " ")) } }
}

pub fn risk(tier: RiskTier) -> Markup {
    let tone = match tier {
        RiskTier::Low => "calm",
        RiskTier::Medium => "warn",
        RiskTier::High => "bad",
    };
    badge(tone, &format!("{} risk", tier.word()))
}

pub fn decision(status: ApprovalStatus) -> Markup {
    let tone = match status {
        ApprovalStatus::Pending => "info",
        ApprovalStatus::Approved => "good",
        ApprovalStatus::Rejected => "bad",
        ApprovalStatus::Expired => "calm",
    };
    badge(tone, status.word())
}

/// JSON as somebody reads it.
pub fn json(value: &Value) -> Markup {
    let text = serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string());
    html! { pre.json tabindex="0" { (text) } }
}

/// Where a list goes on.
pub fn more(visit: &Visit, next_cursor: Option<&str>) -> Markup {
    html! {
        @if let Some(cursor) = next_cursor {
            p { a.button href=(visit.with("cursor", cursor)) { "Show more" } }
        }
    }
}

/// What every form that changes something carries.
pub fn form_key(visit: &Visit) -> Markup {
    html! {
        input type="hidden" name="key" value=(visit.pass.form_key(&visit.app));
        input type="hidden" name="once" value=(uuid::Uuid::new_v4().simple().to_string());
    }
}

/// A receipt's id, which leads to it for who may see it.
pub fn receipt_link(visit: &Visit, id: &str) -> Markup {
    html! {
        @if visit.may::<ReceiptVerify>() { a href={ "/console/receipts/" (segment(id)) } { code { (id) } } } @else { code { (id) } }
    }
}

/// A segment of an address, so that no name in it ends it.
pub fn segment(name: &str) -> String {
    // Encoded as in a form, where only the blank differs.
    form_urlencoded::byte_serialize(name.as_bytes()).collect::<String>().replace('+', "%20")
}

/// `name` as the value of the parameter `key` of an address.
pub fn link(path: &str, pairs: &[(&str, &str)]) -> String {
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    format!("{path}?{query}")
}

/// An empty list says that it is one.
pub fn nothing(text: &str) -> Markup {
    html! { p.nothing { (text) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_told_in_units_that_people_use() {
        let told = [0, 59_999, 60_000, 3_600_000, 12_000_000, 36_000_000, 172_800_000].map(span);
        assert_eq!(told, ["0 s", "59 s", "1 min", "1 h", "3 h 20 min", "10 h", "2 d"]);
        assert_eq!([0, 1_023, 1_536, 500 << 30].map(bytes), ["0 B", "1023 B", "1.5 KiB", "500 GiB"]);
    }

    #[test]
    fn a_name_in_an_address_stays_one_segment() {
        assert_eq!(segment("a/b ?#%\"<"), "a%2Fb%20%3F%23%25%22%3C");
    }
}
