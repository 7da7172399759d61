//! The report: one HTML file that needs nothing else, in the dark and in the light, on a desk and on a phone.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::nemesis::Fault;
use super::outcome::{Coverage, Run, Summary, latency};
use crate::history::{Event, Moment, Outcome};
use crate::verdict::{self, Finding, Property};

const CSS: &str = include_str!("report.css");

/// Findings of one property that are shown whole.
const SHOWN_MAX: usize = 5;

/// The page of a run.
pub fn page(run: &Run, summary: &Summary) -> String {
    let verdict = summary.verdict.word();
    let meaning = match verdict {
        "pass" => "Every promise held, and every fault that was to be tried bit.",
        "violation" => "A promise was broken. The smallest history that shows it stands below.",
        _ => "No promise was seen broken, but something that was to be tried was not, or could not be decided.",
    };
    let mut body = format!(
        "<header><h1>Quorate under faults</h1><span class=\"verdict {verdict}\">{verdict}</span></header>\
         <p>{meaning}</p><p class=\"soft\">Seed {}. This line repeats the schedule:</p><pre>{}</pre>",
        summary.seed,
        escaped(&summary.command)
    );
    body += &figures(summary);
    if summary.properties.iter().any(|property| !property.is_kept()) {
        body += "<h2>What was broken</h2>";
        summary.properties.iter().filter(|property| !property.is_kept()).for_each(|property| body += &broken(property));
    }
    let _ = write!(body, "<h2>Faults over operations</h2><div class=\"wide\">{}</div>", timeline(run));
    body += "<p class=\"soft\">Bars: writes acknowledged in each interval. Lines: how long answers took, \
             <b style=\"color:var(--p50)\">half of them</b> and <b style=\"color:var(--p99)\">99 of 100</b>, on a logarithmic scale, without \
             acquisitions, which may queue. Below: who led, and every fault from its making to its healing; a hollow one left no trace. \
             Point at a piece to read what it was.</p>";
    body += "<h2>Promises</h2><table><thead><tr><th>Promise</th><th>Verdict</th><th class=\"n\">Asked of</th></tr></thead><tbody>";
    summary.properties.iter().for_each(|property| body += &promise(property));
    body += "</tbody></table><h2>Coverage</h2><table><thead><tr><th>To be tried</th><th>Verdict</th><th class=\"n\">Bit</th></tr></thead><tbody>";
    summary.coverage.iter().for_each(|point| body += &covered(point));
    body += "</tbody></table>";
    if !run.faults.is_empty() {
        body += "<h2>Fault ledger</h2><table><thead><tr><th class=\"n\">From</th><th class=\"n\">Until</th><th>Fault</th><th>Evidence</th></tr></thead><tbody>";
        run.faults.iter().for_each(|fault| body += &ledger(fault));
        body += "</tbody></table>";
    }
    whole(verdict, &body)
}

/// A page around its content.
pub fn whole(verdict: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Quorate under faults: {verdict}</title><style>{CSS}</style></head><body><main>{body}</main></body></html>\n"
    )
}

fn figures(summary: &Summary) -> String {
    let rate = summary.operations as f64 / summary.seconds.max(0.001);
    let figures = [
        ("operations", summary.operations.to_string()),
        ("a second", format!("{rate:.0}")),
        ("writes acknowledged", summary.acknowledged_writes.to_string()),
        ("outcomes unknown", summary.unknown.to_string()),
        ("latency, half", format!("{:.0} ms", summary.latency.p50_ms)),
        ("latency, 99 of 100", format!("{:.0} ms", summary.latency.p99_ms)),
        ("longest call", format!("{:.1} s", summary.latency.max_ms / 1_000.0)),
        ("longest gap in writes", format!("{:.1} s", summary.gap_max_ms / 1_000.0)),
        ("leaders", summary.leaders.to_string()),
        ("latest end of a lease", format!("{:.1} s late", summary.lateness_max_ms / 1_000.0)),
        ("seconds", format!("{:.0}", summary.seconds)),
    ];
    let cells: String =
        figures.iter().map(|(name, value)| format!("<div><b>{value}</b><span class=\"soft\">{name}</span></div>")).collect();
    let during = match summary.gap_during.as_slice() {
        [] => String::new(),
        faults => format!("<p class=\"soft\">The longest gap came during {}.</p>", escaped(faults.join(" and "))),
    };
    format!("<div class=\"figures\">{cells}</div>{during}")
}

fn broken(property: &Property) -> String {
    let mut text = format!("<h3 class=\"broken\">{}</h3><p class=\"soft\">{}</p>", escaped(&property.name), property.promise);
    for Finding { object, text: told, smallest } in property.findings.iter().take(SHOWN_MAX) {
        let _ = write!(text, "<p><code>{}</code> {}</p>", escaped(object), escaped(told));
        if smallest.is_empty() {
            continue;
        }
        let _ = write!(text, "<div class=\"wide\">{}</div>", lanes(smallest));
        text += "<table><thead><tr><th class=\"n\"></th><th class=\"n\">Sent</th><th class=\"n\">Answered</th><th>Client</th><th>Operation</th><th>Outcome</th></tr></thead><tbody>";
        for (place, event) in smallest.iter().enumerate() {
            let _ = write!(
                text,
                "<tr><td class=\"n\" data-name=\"operation\">{}</td><td class=\"n\" data-name=\"sent\">{:.4}</td><td class=\"n\" data-name=\"answered\">{:.4}</td><td>{}</td><td><code>{}</code></td><td><code>{}</code></td></tr>",
                place + 1,
                event.sent.as_secs_f64(),
                event.answered.as_secs_f64(),
                escaped(&event.client),
                escaped(verdict::asked(&event.operation)),
                escaped(verdict::answered(&event.outcome))
            );
        }
        text += "</tbody></table>";
    }
    if property.findings.len() > SHOWN_MAX {
        let _ = write!(text, "<p class=\"soft\">and {} more</p>", property.findings.len() - SHOWN_MAX);
    }
    text
}

fn promise(property: &Property) -> String {
    let word = match (property.is_kept(), property.undecided, property.asked_of) {
        (false, ..) => "broken",
        (true, 1.., _) => "undecided",
        (true, 0, 0) => "untried",
        (true, 0, _) => "ok",
    };
    format!(
        "<tr><td>{}<small>{}</small></td><td class=\"{word}\">{word}</td><td class=\"n\" data-name=\"asked of\">{}</td></tr>",
        escaped(&property.name),
        property.promise,
        property.asked_of
    )
}

fn covered(point: &Coverage) -> String {
    let word = if point.bit > 0 { "tried" } else { "untried" };
    let shown = point.evidence.as_ref().map_or_else(|| format!("needs: {}", point.needs), Clone::clone);
    format!(
        "<tr><td>{}<small>{}</small></td><td class=\"{word}\">{word}</td><td class=\"n\" data-name=\"bit\">{} of {}</td></tr>",
        escaped(&point.name),
        escaped(&shown),
        point.bit,
        point.made
    )
}

fn ledger(fault: &Fault) -> String {
    let seconds = |us: u64| us as f64 / 1e6;
    format!(
        "<tr><td class=\"n\" data-name=\"from\">{:.1} s</td><td class=\"n\" data-name=\"until\">{:.1} s</td><td>{}<small>{}</small></td><td>{}</td></tr>",
        seconds(fault.from_us),
        seconds(fault.until_us),
        fault.nemesis,
        escaped(&fault.detail),
        fault.evidence.as_deref().map_or_else(|| "<span class=\"untried\">none</span>".into(), escaped)
    )
}

// ------------------------------------------------------------------ the picture

/// The drawing's units; it scales with the page.
const WIDTH: f64 = 1_000.0;
const LEFT: f64 = 112.0;
const RIGHT: f64 = 12.0;
const PLOT_TOP: f64 = 14.0;
const PLOT_HEIGHT: f64 = 190.0;
const ROW: f64 = 16.0;
const LANE: f64 = 24.0;
const INTERVALS: usize = 150;
/// The ends of the scale of latency.
const LATENCY_MS: (f64, f64) = (1.0, 60_000.0);

struct Picture {
    end: Moment,
}

impl Picture {
    fn x(&self, at: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (at / self.end.as_secs_f64().max(0.001)).clamp(0.0, 1.0)
    }

    fn y(ms: f64) -> f64 {
        let (low, high) = (LATENCY_MS.0.ln(), LATENCY_MS.1.ln());
        let share = (ms.clamp(LATENCY_MS.0, LATENCY_MS.1).ln() - low) / (high - low);
        PLOT_TOP + PLOT_HEIGHT * (1.0 - share)
    }
}

fn timeline(run: &Run) -> String {
    let picture = Picture { end: run.end() };
    let mut rows: BTreeMap<&str, Vec<&Fault>> = BTreeMap::new();
    run.faults.iter().for_each(|fault| rows.entry(fault.nemesis.word()).or_default().push(fault));
    let leaders_y = PLOT_TOP + PLOT_HEIGHT + 26.0;
    let height = leaders_y + ROW * (rows.len() as f64 + 1.0) + 12.0;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Faults over throughput and latency\">");
    // Faults first, as bands behind everything.
    for fault in &run.faults {
        let (from, to) = (picture.x(fault.from_us as f64 / 1e6), picture.x(fault.until_us as f64 / 1e6));
        let width = (to - from).max(1.0);
        let _ = write!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{PLOT_TOP}\" width=\"{width:.1}\" height=\"{PLOT_HEIGHT}\" fill=\"var(--open)\" opacity=\"0.13\"/>"
        );
    }
    svg += &load(run, &picture);
    svg += &leaders(run, &picture, leaders_y);
    for (place, (word, faults)) in rows.iter().enumerate() {
        let y = leaders_y + ROW * (place as f64 + 1.0);
        let _ = write!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{word}</text>", LEFT - 6.0, y + 10.0);
        for fault in faults {
            let (from, to) = (picture.x(fault.from_us as f64 / 1e6), picture.x(fault.until_us as f64 / 1e6));
            let fill = if fault.evidence.is_some() { "var(--open)" } else { "none" };
            let title = format!("{}, {}", fault.detail, fault.evidence.as_deref().unwrap_or("no trace"));
            let _ = write!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{}\" rx=\"2\" fill=\"{fill}\" stroke=\"var(--open)\"><title>{}</title></rect>",
                y + 2.0,
                (to - from).max(3.0),
                ROW - 5.0,
                escaped(&title)
            );
        }
    }
    svg + "</svg>"
}

/// Axes, bars and lines.
fn load(run: &Run, picture: &Picture) -> String {
    let end = picture.end.as_secs_f64().max(0.001);
    let interval = end / INTERVALS as f64;
    let mut sorted: Vec<Vec<&Event>> = vec![Vec::new(); INTERVALS];
    for event in run.events.iter().filter(|event| event.outcome != Outcome::Unknown) {
        let place = ((event.answered.as_secs_f64() / interval) as usize).min(INTERVALS - 1);
        sorted[place].push(event);
    }
    let acknowledged = |events: &Vec<&Event>| events.iter().filter(|event| event.revision.is_some() && !event.operation.is_read()).count();
    let most = sorted.iter().map(acknowledged).max().unwrap_or(0).max(1);
    let mut svg = String::new();
    for (place, events) in sorted.iter().enumerate() {
        let height = PLOT_HEIGHT * 0.9 * acknowledged(events) as f64 / most as f64;
        let (from, to) = (picture.x(place as f64 * interval), picture.x((place + 1) as f64 * interval));
        let (top, width) = (PLOT_TOP + PLOT_HEIGHT - height, to - from - 0.8);
        let _ = write!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"var(--acked)\" opacity=\"0.45\"/>"
        );
    }
    for ms in [1.0, 10.0, 100.0, 1_000.0, 10_000.0] {
        let y = Picture::y(ms);
        let label = if ms < 1_000.0 { format!("{ms:.0} ms") } else { format!("{:.0} s", ms / 1_000.0) };
        let _ = write!(svg, "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"var(--line)\"/>", WIDTH - RIGHT);
        let _ = write!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 6.0, y + 4.0);
    }
    for (share, color) in [(0.5, "var(--p50)"), (0.99, "var(--p99)")] {
        let mut points = Vec::new();
        for (place, events) in sorted.iter().enumerate().filter(|(_, events)| !events.is_empty()) {
            let found = latency(events.iter().copied());
            let ms = if share < 0.9 { found.p50_ms } else { found.p99_ms };
            points.push(format!("{:.1},{:.1}", picture.x((place as f64 + 0.5) * interval), Picture::y(ms)));
        }
        let _ = write!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.4\"/>", points.join(" "));
    }
    let step = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0].into_iter().find(|step| end / step <= 12.0).unwrap_or(1_200.0);
    let mut at = 0.0;
    while at <= end {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{at:.0} s</text>",
            picture.x(at),
            PLOT_TOP + PLOT_HEIGHT + 15.0
        );
        at += step;
    }
    let _ = write!(
        svg,
        "<text class=\"strong\" x=\"{:.1}\" y=\"10\" text-anchor=\"end\">highest bar: {:.0} writes a second</text>",
        WIDTH - RIGHT,
        most as f64 / interval
    );
    svg
}

/// A small history as it happened: a lane for each client, a numbered bar from each sending to its answer. Moments stand side by side in
/// their order, however far apart they were.
fn lanes(events: &[Event]) -> String {
    let mut moments: Vec<Moment> = events.iter().flat_map(|event| [event.sent, event.answered]).collect();
    moments.sort();
    moments.dedup();
    let mut clients: Vec<&str> = events.iter().map(|event| event.client.as_str()).collect();
    clients.sort();
    clients.dedup();
    let x = |moment: Moment| {
        let place = moments.partition_point(|known| *known < moment) as f64;
        LEFT + (WIDTH - LEFT - RIGHT) * place / (moments.len().max(2) - 1) as f64
    };
    let height = 8.0 + LANE * clients.len() as f64;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"The operations, one lane a client\">");
    for (place, client) in clients.iter().enumerate() {
        let y = 4.0 + LANE * place as f64;
        let _ = write!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", LEFT - 6.0, y + 14.0, escaped(client));
        for (number, event) in events.iter().enumerate().filter(|(_, event)| event.client == *client) {
            let is_open = event.outcome == Outcome::Unknown;
            let from = x(event.sent);
            // Without an answer it may still be under way at the end.
            let to = if is_open { WIDTH - RIGHT } else { x(event.answered) };
            let color = if event.operation.is_read() { "var(--n2)" } else { "var(--n1)" };
            let dashes = if is_open { " stroke-dasharray=\"4 3\" stroke=\"var(--open)\" fill-opacity=\"0.15\"" } else { "" };
            let _ = write!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{}\" rx=\"3\" fill=\"{color}\"{dashes}><title>{}</title></rect>",
                y + 2.0,
                (to - from).max(4.0),
                LANE - 6.0,
                escaped(verdict::told(event))
            );
            let _ = write!(svg, "<text class=\"strong\" x=\"{:.1}\" y=\"{:.1}\">{}</text>", from + 4.0, y + 15.0, number + 1);
        }
    }
    svg + "</svg>"
}

fn leaders(run: &Run, picture: &Picture, y: f64) -> String {
    let changes = run.leaders();
    let mut svg = format!("<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">leader</text>", LEFT - 6.0, y + 10.0);
    for (place, (at, term, node)) in changes.iter().enumerate() {
        let until = changes.get(place + 1).map_or(picture.end, |next| next.0);
        let (from, to) = (picture.x(at.as_secs_f64()), picture.x(until.as_secs_f64()));
        let (fill, title) = match node {
            0 => ("var(--none)".into(), "no leader seen".into()),
            node => (format!("var(--n{})", (node - 1) % 5 + 1), format!("node {node} in term {term}")),
        };
        let (width, height) = ((to - from).max(0.5), ROW - 3.0);
        let _ = write!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{fill}\"><title>{title}</title></rect>"
        );
        if *node > 0 && width > 14.0 {
            let _ = write!(svg, "<text class=\"strong\" x=\"{:.1}\" y=\"{:.1}\">{node}</text>", from + 3.0, y + 10.5);
        }
    }
    svg
}

/// Text as a page shows it.
pub fn escaped(text: impl AsRef<str>) -> String {
    text.as_ref().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::history::Operation;

    #[test]
    fn a_page_stands_alone_and_shows_what_was_broken_without_running_it() {
        let event = |version, outcome| {
            let operation = Operation::Store { name: "n".into(), value: "<script>".into(), request: "r".into() };
            let at = Duration::from_secs(version);
            Event { client: "c".into(), operation, outcome, sent: at, answered: at, revision: Some(version), via: Vec::new() }
        };
        let events = vec![event(1, Outcome::Stored { version: 1 }), event(2, Outcome::Stored { version: 3 })];
        let run = Run { events, ..Run::default() };
        let page = page(&run, &Summary::of(&run, Vec::new()));
        assert!(page.contains("What was broken") && page.contains("&lt;script&gt;") && !page.contains("<script"));
        assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("src="), "it needs nothing from outside");
    }
}
