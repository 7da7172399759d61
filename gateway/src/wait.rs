//! Waiting for what a change event tells: a look at the state, and another one when something happened.
//!
//! The state decides, and events only save looks: where no node streams them, the look comes at intervals.

use std::time::Duration;

use quorate_domain::{Principal, Revision};
use quorate_proto::cluster::{Event, WatchResponse, watch_response};

use crate::cluster::Cluster;
use crate::limit::TICKET_POLL_BLIND;

/// Says when to look again.
pub struct Watcher<'a> {
    cluster: &'a Cluster,
    caller: &'a Principal,
    since: Revision,
    stream: Option<tonic::Streaming<WatchResponse>>,
}

/// The stream of events is over.
struct Ended;

impl<'a> Watcher<'a> {
    pub async fn open(cluster: &'a Cluster, caller: &'a Principal, since: Revision) -> Self {
        Self { cluster, caller, since, stream: cluster.watch(caller, since).await }
    }

    /// Comes back after an event that is wanted, and after `every` in any case.
    pub async fn look_again(&mut self, every: Duration, wanted: impl Fn(&Event) -> bool) {
        match &mut self.stream {
            Some(stream) => {
                if let Ok(Err(Ended)) = tokio::time::timeout(every, next_event(stream, wanted)).await {
                    self.stream = None;
                }
            }
            None => {
                tokio::time::sleep(every.min(TICKET_POLL_BLIND)).await;
                self.stream = self.cluster.watch(self.caller, self.since).await;
            }
        }
    }
}

async fn next_event(stream: &mut tonic::Streaming<WatchResponse>, wanted: impl Fn(&Event) -> bool) -> Result<(), Ended> {
    loop {
        match stream.message().await {
            Ok(Some(message)) => match message.result {
                Some(watch_response::Result::Events(events)) if events.events.iter().any(&wanted) => return Ok(()),
                Some(watch_response::Result::CompactedThrough(_)) => return Err(Ended),
                _ => {}
            },
            Ok(None) | Err(_) => return Err(Ended),
        }
    }
}
