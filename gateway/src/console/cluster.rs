//! The cluster as this gateway sees it: who leads, how far the others are behind, disks, alarms, and how fast nodes answer.
//!
//! Nothing is asked for this page. The gateway asks every node once a second how it is, to know who leads; what they told last is
//! shown.

use std::fmt::Write;

use axum::body::Body;
use axum::http::Response;
use maud::{Markup, html};
use quorate_proto::cluster::StatusResponse;

use super::page::Page;
use super::parts::{badge, bytes, nothing, span};
use super::visit::Visit;
use crate::call::CallError;
use crate::cluster::{NodeSeen, RoundTrip, now_unix_ms};
use crate::limit::{CONSOLE_REFRESH_MS, PROBE_CALM, ROUND_TRIPS_KEPT};

/// A disk with less free than one part in so many is an alarm.
const DISK_FREE_PART: u64 = 10;
/// So many entries behind the leader, a follower would take long to be of use as one.
const LAG_ALARM: u64 = 5_000;
/// Certificates are to be renewed by then.
const CERTIFICATE_ALARM_S: i64 = 14 * 24 * 60 * 60;

/// `GET /console/cluster`.
pub async fn show(visit: Visit) -> Response<Body> {
    let made = match visit.caller.may("admin") {
        true => Ok(page(&visit)),
        false => Err(CallError::MissingScope { scope: "admin".into() }),
    };
    visit.show(made)
}

fn page(visit: &Visit) -> Page {
    let (view, nodes) = (visit.app.cluster.view(), visit.app.cluster.nodes_seen());
    let statuses: Vec<&StatusResponse> = nodes.iter().filter_map(|node| node.status.as_ref().ok()).collect();
    let leader = statuses.iter().filter(|status| status.role == "leader").max_by_key(|status| status.term).copied();
    let alarms = alarms(visit, view.leader.is_some(), &nodes, leader);
    let body = html! {
        div #alarms data-live {
            @if alarms.is_empty() { p.notice.good { "No alarms: a leader, and every node answers and keeps up." } }
            @else { div.notice.bad role="status" { h2 { "Alarms" } ul { @for alarm in &alarms { li { (alarm) } } } } }
        }
        div #nodes data-live {
            @if let Some(leader) = leader {
                p.quiet {
                    "Node " (leader.node_id) " leads in term " (leader.term) ", committed up to " (leader.committed) ". Cluster " code {
                        (leader.cluster_id)
                    }
                    ", lineage " (leader.lineage) "."
                }
            }
            div.nodes {
                @for (number, node) in nodes.iter().enumerate() { (card(number, node, leader)) }
                @if nodes.is_empty() { (nothing("No node was asked yet.")) }
            }
        }
        section aria-labelledby="latency" {
            h2 #latency { "How fast nodes answer this gateway" }
            div #chart data-live { (chart(&nodes)) }
            p.quiet { "The way to each node and back, asked once a second; a gap is a question without an answer." }
        }
    };
    Page { title: "Cluster".into(), refresh_ms: Some(CONSOLE_REFRESH_MS), body, ..Page::default() }
}

/// What somebody has to look after.
fn alarms(visit: &Visit, has_leader: bool, nodes: &[NodeSeen], leader: Option<&StatusResponse>) -> Vec<String> {
    let mut alarms = Vec::new();
    if !has_leader {
        alarms.push("No node leads: nothing can be written.".into());
    }
    for node in nodes {
        match &node.status {
            Err(problem) => alarms.push(format!("{} does not say how it is: {problem}.", node.address)),
            Ok(status) => {
                let name = format!("Node {}", status.node_id);
                for reason in &status.not_ready {
                    alarms.push(format!("{name} is not ready: {}.", reason.replace('_', " ")));
                }
                let lag = leader.map_or(0, |leader| leader.committed.saturating_sub(status.applied));
                if lag > LAG_ALARM {
                    alarms.push(format!("{name} is {lag} entries behind."));
                }
                if status.disk_total_bytes > 0 && status.disk_free_bytes < status.disk_total_bytes / DISK_FREE_PART {
                    alarms.push(format!("{name} has {} of disk left.", bytes(status.disk_free_bytes)));
                }
            }
        }
    }
    for expiry in visit.app.certificates().0 {
        if expiry.left_s < CERTIFICATE_ALARM_S {
            let left = span(u64::try_from(expiry.left_s).unwrap_or(0) * 1_000);
            alarms.push(format!("The certificate {} of this gateway ends in {left}.", expiry.certificate.replace('_', " ")));
        }
    }
    alarms
}

fn card(number: usize, node: &NodeSeen, leader: Option<&StatusResponse>) -> Markup {
    let last = node.round_trips.iter().rev().find_map(|trip| trip.took);
    match &node.status {
        Err(problem) => html! {
            article.card data-node=(number) {
                header { h2 { span.key {} (node.address) } (badge("bad", "no answer")) } p.text { (problem) }
            }
        },
        Ok(status) => {
            let lag = leader.map_or(0, |leader| leader.committed.saturating_sub(status.applied));
            let used = status.disk_total_bytes.saturating_sub(status.disk_free_bytes);
            let tone = if status.role == "leader" { "good" } else { "calm" };
            html! {
                article.card data-node=(number) {
                    header {
                        h2 { span.key {} "Node " (status.node_id) }
                        (badge(tone, &status.role)) @if !status.not_ready.is_empty() { (badge("bad", "not ready")) }
                    }
                    dl.facts {
                        div { dt { "Behind" } dd { (lag) @if lag == 1 { " entry" } @else { " entries" } } }
                        div { dt { "Applied" } dd { (status.applied) } }
                        div { dt { "Fsync, 99 %" } dd { (format!("{:.1}", status.log_fsync_p99_us as f64 / 1_000.0)) " ms" } }
                        @if let Some(took) = last {
                            div { dt { "Answers in" } dd { (format!("{:.1}", took.as_secs_f64() * 1_000.0)) " ms" } }
                        }
                        @if status.disk_total_bytes > 0 {
                            div {
                                dt { "Disk" }
                                dd {
                                    meter min="0" max=(status.disk_total_bytes) high=(status.disk_total_bytes / 10 * 9) value=(used)
                                        aria-label={ "Disk used by node " (status.node_id) } {}
                                    " " (bytes(status.disk_free_bytes)) " free of " (bytes(status.disk_total_bytes))
                                }
                            }
                        }
                        div { dt { "Address" } dd { code { (node.address) } } }
                    }
                }
            }
        }
    }
}

// ------------------------------------------------------------------ the chart

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 160.0;
const LEFT: f64 = 48.0;
const BOTTOM: f64 = 20.0;

/// Times of answers over the last two minutes, one line for each node.
fn chart(nodes: &[NodeSeen]) -> Markup {
    let now = now_unix_ms().0;
    let window_ms = PROBE_CALM.as_millis() as f64 * ROUND_TRIPS_KEPT as f64;
    let longest = nodes.iter().flat_map(|node| &node.round_trips).filter_map(|trip| trip.took).max().unwrap_or_default();
    let top_ms = nice(longest.as_secs_f64() * 1_000.0);
    let place = |trip: &RoundTrip| {
        let x = LEFT + (WIDTH - LEFT) * (1.0 - now.saturating_sub(trip.at.0) as f64 / window_ms).max(0.0);
        trip.took.map(|took| (x, (HEIGHT - BOTTOM) * (1.0 - took.as_secs_f64() * 1_000.0 / top_ms)))
    };
    let told = nodes.iter().map(|node| {
        let mut times: Vec<_> = node.round_trips.iter().filter_map(|trip| trip.took).collect();
        times.sort();
        let median = times.get(times.len() / 2).map_or("no answer".into(), |took| format!("{:.1} ms", took.as_secs_f64() * 1_000.0));
        format!("{} {median}", name(node))
    });
    let summary = format!("Times of answers in the last two minutes, medians: {}", told.collect::<Vec<_>>().join(", "));
    html! {
        svg.chart viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(summary) {
            @for (part, label) in [(0.0, format!("{top_ms} ms")), (0.5, format!("{} ms", top_ms / 2.0)), (1.0, "0".into())] {
                @let y = (HEIGHT - BOTTOM) * part;
                line.grid x1=(LEFT) x2=(WIDTH) y1=(y) y2=(y) {}
                text x=(LEFT - 6.0) y=(if part == 0.0 { y + 11.0 } else { y + 4.0 }) text-anchor="end" { (label) }
            }
            text x=(LEFT) y=(HEIGHT - 4.0) { "2 min ago" }
            text x=(WIDTH) y=(HEIGHT - 4.0) text-anchor="end" { "now" }
            @for (number, node) in nodes.iter().enumerate() {
                path.line data-node=(number) d=(path(node.round_trips.iter().map(place))) fill="none" {}
            }
        }
        ul.legend { @for (number, node) in nodes.iter().enumerate() { li data-node=(number) { span.key {} (name(node)) } } }
    }
}

fn name(node: &NodeSeen) -> String {
    node.status.as_ref().map_or_else(|_| node.address.clone(), |status| format!("node {}", status.node_id))
}

/// A line that breaks where there is no point.
fn path(points: impl Iterator<Item = Option<(f64, f64)>>) -> String {
    let (mut path, mut is_drawing) = (String::new(), false);
    for point in points {
        if let Some((x, y)) = point {
            // Writing into a String does not fail.
            let _ = write!(path, "{}{x:.1} {y:.1}", if is_drawing { "L" } else { "M" });
        }
        is_drawing = point.is_some();
    }
    path
}

/// The least of 1, 2, 5, 10, 20 ... that is no less.
fn nice(ms: f64) -> f64 {
    let mut step = 1.0;
    for factor in [2.0, 2.5, 2.0].into_iter().cycle() {
        if step >= ms || step >= 1e6 {
            break;
        }
        step *= factor;
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_breaks_where_a_node_did_not_answer() {
        let points = [Some((0.0, 1.0)), Some((1.0, 2.0)), None, Some((3.0, 4.0))];
        assert_eq!(path(points.into_iter()), "M0.0 1.0L1.0 2.0M3.0 4.0");
    }

    #[test]
    fn the_scale_ends_at_a_round_number() {
        assert_eq!([0.0, 0.4, 1.2, 3.0, 7.0, 90.0, 300.0].map(nice), [1.0, 1.0, 2.0, 5.0, 10.0, 100.0, 500.0]);
    }
}
