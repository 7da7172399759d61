//! Health and metrics of a node, over HTTP.
//!
//! * `/livez`: the process answers. Never red for a full disk or a lost quorum: a restart would not help.
//! * `/readyz`: this node can serve; with `?verbose`, why not, as stable words, and what is wrong although it serves (`alarms`).
//! * `/metrics`: Prometheus text.

use std::fmt::Write;
use std::io;

use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use axum::{Json, Router};
use futures::StreamExt;
use quorate_domain::quota::{self, QuotaView};
use quorate_link::{Incoming, Io, Link};
use quorate_proto::cluster::StatusResponse;
use quorate_raft::RaftNode;
use serde_json::json;
use tokio::sync::watch;

use crate::search::SearchIndex;

/// How far the process has come.
#[derive(Clone)]
pub enum Stage {
    /// Not yet started, for this reason.
    Waiting(&'static str),
    Running(RaftNode, SearchIndex),
}

type Stages = watch::Receiver<Stage>;

/// The routes.
pub fn routes(stages: Stages, link: Link) -> Router {
    let metrics = get(move |State(stages): State<Stages>| async move {
        let stage = stages.borrow().clone();
        match stage {
            Stage::Running(raft, search) => metrics(&raft, &search, &link),
            Stage::Waiting(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not started: {reason}\n")).into_response(),
        }
    });
    Router::new().route("/livez", get(|| async { "ok\n" })).route("/readyz", get(readyz)).route("/metrics", metrics).with_state(stages)
}

/// Connections of a link, as axum takes them.
pub struct Door(Incoming);

impl Door {
    pub fn new(incoming: Incoming) -> Self {
        Self(incoming)
    }
}

impl Listener for Door {
    type Io = Io;
    /// Nobody asks who it is.
    type Addr = ();

    async fn accept(&mut self) -> (Io, ()) {
        loop {
            match self.0.next().await {
                Some(Ok(io)) => return (io, ()),
                Some(Err(_)) => {}
                // The runtime is ending.
                None => return std::future::pending().await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

async fn readyz(State(stages): State<Stages>, RawQuery(query): RawQuery) -> Response {
    let stage = stages.borrow().clone();
    let status = match stage {
        Stage::Running(raft, _) => raft.status(),
        Stage::Waiting(reason) => StatusResponse { not_ready: vec![reason.into()], role: "starting".into(), ..StatusResponse::default() },
    };
    let code = if status.not_ready.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let verbose = query.is_some_and(|query| query.split('&').any(|part| part == "verbose" || part.starts_with("verbose=")));
    if !verbose {
        return (code, if code == StatusCode::OK { "ok\n" } else { "not ready\n" }).into_response();
    }
    let body = json!({
        "ready": status.not_ready.is_empty(), "reasons": status.not_ready, "alarms": status.alarms, "role": status.role, "term": status.term,
        "leader": status.leader_id, "applied": status.applied, "last_log": status.last_log,
    });
    (code, Json(body)).into_response()
}

fn metrics(raft: &RaftNode, search: &SearchIndex, link: &Link) -> Response {
    let text = exposition(&raft.status())
        + &stored(&quota::quotas(&**raft.state()).unwrap_or_default())
        + &raft.exposition()
        + &search.exposition()
        + &quorate_link::exposition(&link.expiries(), link.reload_failures());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// What tenants with a quota store. A state that can't be read is told of elsewhere.
fn stored(quotas: &[QuotaView]) -> String {
    let mut text = String::new();
    let mut add = |name: &str, help: &str, value: &dyn Fn(&QuotaView) -> Option<u64>| {
        let _ = write!(text, "# HELP quorate_tenant_{name} {help}\n# TYPE quorate_tenant_{name} gauge\n");
        for quota in quotas {
            let tenant = quota.tenant.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            if let Some(value) = value(quota) {
                let _ = writeln!(text, "quorate_tenant_{name}{{tenant=\"{tenant}\"}} {value}");
            }
        }
    };
    add("stored_records", "Records of a tenant that has a quota.", &|quota| Some(quota.records));
    add("stored_bytes", "Bytes of a tenant that has a quota.", &|quota| Some(quota.bytes));
    add("quota_records", "Records that it may have.", &|quota| quota.records_max);
    add("quota_bytes", "Bytes that it may have.", &|quota| quota.bytes_max);
    text
}

fn exposition(status: &StatusResponse) -> String {
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, help: &str, value: u64| {
        // Writing to a String can't fail.
        let _ = write!(text, "# HELP quorate_{name} {help}\n# TYPE quorate_{name} {kind}\nquorate_{name} {value}\n");
    };
    add("term", "gauge", "Current Raft term.", status.term);
    add("is_leader", "gauge", "1 on the leader.", u64::from(status.role == "leader"));
    add("ready", "gauge", "1 when /readyz is green.", u64::from(status.not_ready.is_empty()));
    add("last_log_index", "gauge", "Index of the last entry in the log.", status.last_log);
    add("committed_index", "gauge", "Index of the last committed entry.", status.committed);
    add("applied_index", "gauge", "Index of the last applied entry: the revision of the state.", status.applied);
    add("snapshot_index", "gauge", "Index of the last entry in the last snapshot.", status.snapshot);
    add("purged_index", "gauge", "Index of the last entry purged from the log.", status.purged);
    add("lease_clock_ms", "gauge", "The lease clock, in ms.", status.lease_now_ms);
    add("log_fsyncs_total", "counter", "Fsyncs of the log.", status.log_fsyncs);
    add("log_entries_total", "counter", "Entries written to the log.", status.log_entries);
    add("log_fsync_p99_microseconds", "gauge", "99th percentile of the log's recent fsyncs.", status.log_fsync_p99_us);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_help_type_and_one_value() {
        let text = exposition(&StatusResponse { term: 7, role: "leader".into(), ..Default::default() });
        assert!(text.contains("\nquorate_is_leader 1\n"));
        assert!(text.contains("quorate_term 7\n"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len() % 3, 0);
        for metric in lines.chunks(3) {
            assert!(
                metric[0].starts_with("# HELP ") && metric[1].starts_with("# TYPE ") && metric[2].starts_with("quorate_"),
                "{metric:?}"
            );
        }
    }
}
