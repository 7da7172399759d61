//! `quorate doctor`: everything an operator should know now, each with what to do about it.
//!
//! Read-only, and it ends: every question has a deadline. Each finding has a code that stays the same, so that a script can act
//! on it; `docs/operations.md` lists them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use quorate_proto::cluster::{ExamineRequest, ExamineResponse};
use serde::Serialize;
use serde_json::json;

use crate::deployment::{Deployment, Nodes, Target};
use crate::exit::{self, Failure};
use crate::founding::now_unix_ms;
use crate::output;
use crate::status::{NodeStatus, Survey, connect_operator, survey};

/// Look at every node, its disk, its clock and the membership, and say what is wrong and what to do.
///
/// Changes nothing. Exit code 0: no finding is an error (warnings may be there); 1: at least one is.
#[derive(Args)]
pub struct Doctor {
    #[command(flatten)]
    pub target: Target,
}

const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Entries that a node may lack.
const LAG_WARNING: u64 = 10_000;
/// Free space of the disk: little is less than so many percent and less than so many bytes, since a few percent of a large disk
/// last for long.
const FREE_WARNING: (u64, u64) = (15, 50 << 30);
const FREE_ERROR: (u64, u64) = (5, 5 << 30);
/// 99th percentile of the log's fsyncs: a tenth of the shortest election timeout, and of a second.
const FSYNC_WARNING_US: u64 = 30_000;
const FSYNC_ERROR_US: u64 = 100_000;
/// Between the clocks of two nodes. Leases do not depend on clocks; people's timestamps, and retries of requests, do.
const CLOCK_WARNING_MS: u64 = 1_000;
const CLOCK_ERROR_MS: u64 = 30_000;
/// A state that changes is put on disk once a minute.
const FLUSH_WARNING_MS: u64 = 10 * 60 * 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Severity {
    Error,
    Warning,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Finding {
    /// Stays the same.
    code: &'static str,
    severity: Severity,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<u64>,
    /// What is so.
    text: String,
    /// What to do.
    advice: String,
}

/// One node, as asked.
#[derive(Clone, Debug, Serialize)]
struct Patient {
    id: u64,
    role: String,
    voter: bool,
    reachable: bool,
    grpc: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lag: Option<u64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    vitals: Option<Vitals>,
}

#[derive(Clone, Debug, Serialize)]
struct Vitals {
    version: String,
    cluster_id: String,
    lineage: u64,
    applied: u64,
    disk_free_bytes: u64,
    disk_total_bytes: u64,
    log_fsync_p99_us: u64,
    /// Its wall clock less this machine's, with half the time of the question as doubt.
    clock_offset_ms: i64,
    clock_doubt_ms: u64,
    flushed: u64,
    flushed_ms_ago: u64,
    /// That records name, those of them that are not here, and files that were put aside as damaged.
    blobs: u64,
    blobs_missing: u64,
    blobs_damaged: u64,
    not_ready: Vec<String>,
    alarms: Vec<String>,
}

impl Doctor {
    pub async fn run(self) -> Result<(), Failure> {
        let nodes = self.target.nodes()?;
        let found = survey(&nodes).await;
        let asked = found.nodes.iter().cloned().map(|node| {
            let nodes = nodes.clone();
            tokio::spawn(async move {
                let vitals = tokio::time::timeout(ANSWER_WITHIN, examine(&node, &nodes)).await.ok().flatten();
                patient(node, vitals)
            })
        });
        let mut patients = Vec::new();
        for task in asked.collect::<Vec<_>>() {
            patients.push(task.await.map_err(|error| Failure::failed(format!("a question did not end: {error}")))?);
        }
        let mut findings = diagnose(&found, &patients);
        if self.target.nodes.is_empty() {
            findings.extend(of_files(&self.target.data, &self.target.deployment()?));
        }
        findings.sort_by_key(|finding| (finding.severity, finding.node));
        let ok = findings.iter().all(|finding| finding.severity != Severity::Error);
        let mut text =
            format!("{} nodes, {}\n", patients.len(), found.leader.map_or("no leader".into(), |leader| format!("node {leader} leads")));
        for finding in &findings {
            let word = if finding.severity == Severity::Error { "error" } else { "warning" };
            text += &format!("  {word:<8} {:<22} {}. {}\n", finding.code, finding.text, finding.advice);
        }
        if findings.is_empty() {
            text += "  nothing to say against it\n";
        }
        output::print(self.target.json, &json!({"ok": ok, "leader": found.leader, "nodes": patients, "findings": findings}), &text);
        if ok { Ok(()) } else { Err(Failure::new(exit::FAILED, "")) }
    }
}

async fn examine(node: &NodeStatus, nodes: &Nodes) -> Option<Vitals> {
    let mut client = connect_operator(&node.grpc, nodes).await.ok()?;
    let (begin, before) = (Instant::now(), now_unix_ms());
    let ExamineResponse {
        status,
        version,
        wall_unix_ms,
        disk_free_bytes,
        disk_total_bytes,
        flushed,
        flushed_ms_ago,
        blobs,
        blobs_missing,
        blobs_damaged,
    } = client.examine(ExamineRequest {}).await.ok()?.into_inner();
    let doubt_ms = (begin.elapsed().as_millis() as u64).div_ceil(2);
    let status = status.unwrap_or_default();
    Some(Vitals {
        version,
        cluster_id: status.cluster_id,
        lineage: status.lineage,
        applied: status.applied,
        disk_free_bytes,
        disk_total_bytes,
        log_fsync_p99_us: status.log_fsync_p99_us,
        clock_offset_ms: wall_unix_ms as i64 - (before + doubt_ms) as i64,
        clock_doubt_ms: doubt_ms,
        flushed,
        flushed_ms_ago,
        blobs,
        blobs_missing,
        blobs_damaged,
        not_ready: status.not_ready,
        alarms: status.alarms,
    })
}

fn patient(node: NodeStatus, vitals: Option<Vitals>) -> Patient {
    let NodeStatus { id, role, voter, grpc, lag, .. } = node;
    Patient { id, role, voter, reachable: vitals.is_some(), grpc, lag, vitals }
}

fn error(code: &'static str, node: Option<u64>, text: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { code, severity: Severity::Error, node, text: text.into(), advice: advice.into() }
}

fn warning(code: &'static str, node: Option<u64>, text: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { severity: Severity::Warning, ..error(code, node, text, advice) }
}

fn diagnose(survey: &Survey, patients: &[Patient]) -> Vec<Finding> {
    let mut findings = of_membership(survey, patients);
    for patient in patients {
        match &patient.vitals {
            Some(vitals) => findings.extend(of_node(patient, vitals)),
            None if patient.role == "removed" => {}
            None => findings.push(error(
                "node_unreachable",
                Some(patient.id),
                format!("node {} at {} does not answer", patient.id, patient.grpc),
                format!("Start it; if its disk is lost, `quorate replace {}`", patient.id),
            )),
        }
    }
    findings.extend(of_differences(patients));
    findings
}

fn of_membership(survey: &Survey, patients: &[Patient]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let voters: Vec<&Patient> = patients.iter().filter(|patient| patient.voter).collect();
    let live = voters.iter().filter(|voter| voter.reachable).count();
    if survey.leader.is_none() {
        let advice = "Wait a few seconds; if it stays so, bring voters back until a majority answers";
        findings.push(error("no_leader", None, "no node leads, so nothing is written", advice));
    }
    if !voters.is_empty() && live * 2 <= voters.len() {
        let advice = "Bring voters back; if their disks are gone for good, `quorate force-new-cluster` or `quorate restore`";
        findings.push(error("no_quorum", None, format!("{live} of {} voters answer", voters.len()), advice));
    } else if live < voters.len() && (live - 1) * 2 <= voters.len() {
        let text = format!("{live} of {} voters answer, and one more failure stops all writes", voters.len());
        findings.push(error("quorum_at_risk", None, text, "Bring the missing voters back, or replace them"));
    }
    if voters.len().is_multiple_of(2) && !voters.is_empty() {
        let text = format!("there are {} voters, and no more may fail than with one less", voters.len());
        findings.push(warning("voters_even", None, text, "Promote a learner, or remove a voter"));
    }
    if voters.len() == 1 {
        findings.push(warning("voters_single", None, "one voter has everything", "Join two more nodes and promote them"));
    }
    for patient in patients.iter().filter(|patient| patient.role == "learner") {
        let text = format!("node {} is a learner: it gets everything and its vote counts for nothing", patient.id);
        let advice = format!("`quorate promote {}` when it is meant to stay, else `quorate remove {0}`", patient.id);
        findings.push(warning("learner", Some(patient.id), text, advice));
    }
    for patient in patients.iter().filter(|patient| patient.role == "removed") {
        let text = format!("node {} was removed and still runs", patient.id);
        findings.push(warning("removed_node_runs", Some(patient.id), text, "Stop it and delete its folder"));
    }
    findings
}

fn of_node(patient: &Patient, vitals: &Vitals) -> Vec<Finding> {
    let (id, node) = (Some(patient.id), format!("node {}", patient.id));
    let mut findings = Vec::new();
    for alarm in &vitals.alarms {
        match alarm.as_str() {
            "space_alarm" => {
                let text = format!("writes that grow are refused, by what {node} has applied: a quorum is short of disk space");
                findings.push(error("space_alarm", id, text, "Delete what is not needed, enlarge disks or quotas; it ends by itself then"));
            }
            "disk_low" => findings.push(warning(
                "disk_low",
                id,
                format!("{node} has less room left than its `disk_low_bytes`"),
                "Free space, or enlarge its disk or quota",
            )),
            other => findings.push(warning("node_alarm", id, format!("{node} tells of {other}"), "See the node's log")),
        }
    }
    for reason in &vitals.not_ready {
        let unfit = match reason.as_str() {
            "disk_full" => Some(("disk_full", "Free space on its disk: it takes no entries until then, and comes back by itself")),
            "disk_stalled" => Some(("disk_stalled", "See what its disk does; it leads again once its writes end")),
            "clock_off" => Some(("clock_offset", "Correct its clock: it does not lead before")),
            _ => None,
        };
        if let Some((code, advice)) = unfit {
            findings.push(error(code, id, format!("{node} is not ready: {reason}"), advice));
            continue;
        }
        let (code, advice) = match reason.as_str() {
            "membership_changing" => ("membership_joint", "It ends by itself within seconds; if not, see whether all voters answer"),
            // Said once for all.
            "no_leader" => continue,
            _ => ("node_not_ready", "See the node's log"),
        };
        findings.push(warning(code, id, format!("{node} is not ready: {reason}"), advice));
    }
    if let Some(lag) = patient.lag.filter(|lag| *lag > LAG_WARNING) {
        findings.push(warning(
            "apply_lag",
            id,
            format!("{node} is {lag} entries behind"),
            "Give it time; if it falls behind further, look at its disk",
        ));
    }
    let (free, total) = (vitals.disk_free_bytes, vitals.disk_total_bytes);
    let is_below = |(percent, bytes): (u64, u64)| free < bytes && u128::from(free) * 100 <= u128::from(total) * u128::from(percent);
    let disk = format!("{} MiB of {} MiB are free on the disk of {node}", free >> 20, total >> 20);
    if is_below(FREE_ERROR) {
        findings.push(error("disk_full", id, disk, "Free space now: a node that can't write stops"));
    } else if is_below(FREE_WARNING) {
        findings.push(warning("disk_low", id, disk, "Free space or enlarge the disk"));
    }
    let fsync = format!("one fsync in a hundred takes {} ms on {node}", vitals.log_fsync_p99_us / 1_000);
    match vitals.log_fsync_p99_us {
        FSYNC_ERROR_US.. => {
            findings.push(error("fsync_slow", id, fsync, "Every write waits for it: move the data to a faster or quieter disk"))
        }
        FSYNC_WARNING_US.. => findings.push(warning("fsync_slow", id, fsync, "Every write waits for it: see what else uses the disk")),
        _ => {}
    }
    if vitals.applied > vitals.flushed && vitals.flushed_ms_ago > FLUSH_WARNING_MS {
        let text = format!("{node} last put its state on disk {} minutes ago", vitals.flushed_ms_ago / 60_000);
        findings.push(warning("snapshot_old", id, text, "A restart would replay a long log: see the node's log for why it does not flush"));
    }
    if vitals.blobs_missing > 0 {
        let text = format!("{node} lacks {} of {} blobs", vitals.blobs_missing, vitals.blobs);
        findings.push(warning(
            "blobs_missing",
            id,
            text,
            "It fetches them from the others within seconds; if not, bring the missing nodes back",
        ));
    }
    if vitals.blobs_damaged > 0 {
        let text = format!("{node} has put {} damaged blobs aside", vitals.blobs_damaged);
        findings.push(warning(
            "blobs_damaged",
            id,
            text,
            "Look at its disk; what was damaged was fetched anew, and `damaged-...` in its folder `blobs` can go",
        ));
    }
    findings
}

/// What has to be the same everywhere.
fn of_differences(patients: &[Patient]) -> Vec<Finding> {
    let known: Vec<(u64, &Vitals)> = patients.iter().filter_map(|patient| Some((patient.id, patient.vitals.as_ref()?))).collect();
    let Some(((_, first), others)) = known.split_first() else { return Vec::new() };
    let mut findings = Vec::new();
    for (id, vitals) in others {
        if vitals.cluster_id != first.cluster_id || vitals.lineage != first.lineage {
            let text = format!("node {id} is of cluster {} and lineage {}", vitals.cluster_id, vitals.lineage);
            findings.push(error("lineage_differs", Some(*id), text, "It takes no part: stop it, and join a new node on an empty folder"));
        }
        if vitals.version != first.version {
            let text = format!("node {id} runs version {}, another one {}", vitals.version, first.version);
            findings.push(warning("version_differs", Some(*id), text, "Finish the upgrade"));
        }
    }
    let earliest = known.iter().min_by_key(|(_, vitals)| vitals.clock_offset_ms);
    let latest = known.iter().max_by_key(|(_, vitals)| vitals.clock_offset_ms);
    if let (Some((one, early)), Some((other, late))) = (earliest, latest) {
        let apart = late.clock_offset_ms.abs_diff(early.clock_offset_ms).saturating_sub(early.clock_doubt_ms + late.clock_doubt_ms);
        let text = format!("the clocks of nodes {one} and {other} are at least {apart} ms apart");
        let advice = "Have both synchronise their clocks; leases do not depend on them, timestamps do";
        match apart {
            CLOCK_ERROR_MS.. => findings.push(error("clock_offset", Some(*other), text, advice)),
            CLOCK_WARNING_MS.. => findings.push(warning("clock_offset", Some(*other), text, advice)),
            _ => {}
        }
    }
    findings
}

/// What lies in the deployment's folder.
fn of_files(data: &Path, deployment: &Deployment) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut secrets = vec!["deployment.json".to_string(), "gateway.toml".into()];
    secrets.extend(deployment.nodes.iter().map(|node| format!("node-{}.toml", node.id)));
    for name in secrets {
        let path = data.join(&name);
        if let Ok(mode) = std::fs::metadata(&path).map(|file| file.permissions().mode() & 0o777)
            && mode & 0o077 != 0
        {
            let text = format!("{} holds secrets and others may read it (mode {mode:o})", path.display());
            let advice = format!("`chmod 600 {}`, and take its tokens and keys for known to them", path.display());
            findings.push(error("secrets_readable", None, text, advice));
        }
    }
    for node in deployment.nodes.iter().filter(|node| node.created) {
        let folder = crate::dev::node_folder(data, node.id);
        if std::fs::read_dir(&folder).map_or(true, |mut entries| entries.next().is_none()) {
            let text = format!("{} is empty or gone: the disk of node {} is lost or not mounted", folder.display(), node.id);
            findings.push(error("disk_lost", Some(node.id), text, format!("Mount it, or `quorate replace {}`", node.id)));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vitals() -> Vitals {
        Vitals {
            version: "0.1.0".into(),
            cluster_id: "c".into(),
            lineage: 0,
            applied: 100,
            disk_free_bytes: 50 << 20,
            disk_total_bytes: 100 << 20,
            log_fsync_p99_us: 5_000,
            clock_offset_ms: 0,
            clock_doubt_ms: 1,
            flushed: 100,
            flushed_ms_ago: 0,
            blobs: 3,
            blobs_missing: 0,
            blobs_damaged: 0,
            not_ready: Vec::new(),
            alarms: Vec::new(),
        }
    }

    fn node(id: u64, role: &str) -> Patient {
        let voter = matches!(role, "leader" | "follower" | "unreachable");
        let vitals = (role != "unreachable").then(vitals);
        Patient { id, role: role.into(), voter, reachable: vitals.is_some(), grpc: format!("g{id}"), lag: Some(0), vitals }
    }

    fn codes(patients: &[Patient]) -> Vec<&'static str> {
        let leader = patients.iter().find(|patient| patient.role == "leader").map(|patient| patient.id);
        let survey = Survey { leader, term: 1, cluster_id: "c".into(), nodes: Vec::new(), member_id_max: 3 };
        diagnose(&survey, patients).into_iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn a_healthy_cluster_has_no_findings() {
        assert!(codes(&[node(1, "leader"), node(2, "follower"), node(3, "follower")]).is_empty());
    }

    #[test]
    fn voters_that_are_away_are_found_by_what_is_left_of_the_quorum() {
        let at_risk = codes(&[node(1, "leader"), node(2, "follower"), node(3, "unreachable")]);
        assert_eq!(at_risk, ["quorum_at_risk", "node_unreachable"]);
        let lost = codes(&[node(1, "follower"), node(2, "unreachable"), node(3, "unreachable")]);
        assert_eq!(lost, ["no_leader", "no_quorum", "node_unreachable", "node_unreachable"]);
        let five: Vec<Patient> =
            ["leader", "follower", "follower", "follower", "unreachable"].iter().zip(1..).map(|(role, id)| node(id, role)).collect();
        assert_eq!(codes(&five), ["node_unreachable"], "another one may still fail");
    }

    #[test]
    fn each_ill_node_has_its_finding() {
        let ill = |change: fn(&mut Vitals)| {
            let mut third = node(3, "follower");
            change(third.vitals.as_mut().expect("it answers"));
            codes(&[node(1, "leader"), node(2, "follower"), third])
        };
        assert_eq!(ill(|vitals| vitals.disk_free_bytes = 10 << 20), ["disk_low"]);
        assert_eq!(ill(|vitals| vitals.disk_free_bytes = 4 << 20), ["disk_full"]);
        assert_eq!(ill(|vitals| (vitals.disk_free_bytes, vitals.disk_total_bytes) = (0, 0)), ["disk_full"], "it can't be told");
        assert!(ill(|vitals| (vitals.disk_free_bytes, vitals.disk_total_bytes) = (60 << 30, 4_000 << 30)).is_empty());
        assert_eq!(ill(|vitals| vitals.log_fsync_p99_us = 40_000), ["fsync_slow"]);
        assert_eq!(ill(|vitals| vitals.clock_offset_ms = -1_500), ["clock_offset"]);
        assert_eq!(ill(|vitals| vitals.lineage = 7), ["lineage_differs"]);
        assert_eq!(ill(|vitals| vitals.version = "0.2.0".into()), ["version_differs"]);
        assert_eq!(ill(|vitals| vitals.not_ready = vec!["membership_changing".into()]), ["membership_joint"]);
        assert_eq!(ill(|vitals| vitals.not_ready = vec!["disk_stalled".into(), "clock_off".into()]), ["disk_stalled", "clock_offset"]);
        assert_eq!(ill(|vitals| vitals.alarms = vec!["space_alarm".into(), "disk_low".into()]), ["space_alarm", "disk_low"]);
        assert_eq!(ill(|vitals| (vitals.applied, vitals.flushed_ms_ago) = (200, 700_000)), ["snapshot_old"]);
        assert_eq!(ill(|vitals| vitals.blobs_missing = 1), ["blobs_missing"]);
        assert_eq!(ill(|vitals| vitals.blobs_damaged = 1), ["blobs_damaged"]);
    }

    #[test]
    fn a_membership_that_can_be_better_is_told() {
        assert_eq!(codes(&[node(1, "leader"), node(2, "follower")]), ["voters_even"]);
        assert_eq!(codes(&[node(1, "leader")]), ["voters_single"]);
        let four = [node(1, "leader"), node(2, "follower"), node(3, "follower"), node(4, "learner")];
        assert_eq!(codes(&four), ["learner"]);
        let with_removed = [node(1, "leader"), node(2, "follower"), node(3, "follower"), node(4, "removed")];
        assert_eq!(codes(&with_removed), ["removed_node_runs"]);
    }

    #[test]
    fn files_that_others_can_read_and_folders_that_are_gone_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = r#"{"cluster_id": "c", "cluster_secret": "s", "session_key": "k", "receipt_key": "r", "gateway": "127.0.0.1:1",
            "nodes": [{"id": 1, "grpc": "g1", "http": "h1", "created": true}], "tokens": []}"#;
        let deployment: Deployment = serde_json::from_str(text).expect("a deployment");
        deployment.save(folder.path()).expect("saved");
        let codes = || of_files(folder.path(), &deployment).into_iter().map(|finding| finding.code).collect::<Vec<_>>();
        assert_eq!(codes(), ["disk_lost"]);
        std::fs::create_dir_all(folder.path().join("node-1/log")).expect("made");
        assert!(codes().is_empty());
        std::fs::set_permissions(folder.path().join("deployment.json"), std::fs::Permissions::from_mode(0o644)).expect("set");
        assert_eq!(codes(), ["secrets_readable"]);
    }
}
