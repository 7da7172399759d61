//! Watchers of a run: each follows the change events of the team through one gateway after the other, and goes on where it was when a
//! stream ends.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::Stage;
use crate::told::Told;

/// A stream that says nothing for so long is left: a gateway tells its progress more often than that.
const SILENCE: Duration = Duration::from_secs(15);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What one watcher was told so far. Clones are the same.
#[derive(Clone, Default)]
pub struct Watched(Arc<Mutex<Told>>);

impl Watched {
    pub fn told(&self) -> Told {
        self.lock().clone()
    }

    /// Up to which revision it was told everything.
    pub fn through(&self) -> u64 {
        self.lock().through
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows until it is aborted: from the first event on, or on somebody else's cluster from now on.
    pub async fn follow(self, stage: Arc<Stage>, number: usize) {
        let Ok(http) = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build() else { return };
        let token = &stage.cast.clients[number % stage.cast.clients.len()].token;
        let mut position = stage.cluster.is_some().then(|| "0".to_owned());
        for attempt in number.. {
            let since = position.as_ref().map(|at| format!("?since={at}")).unwrap_or_default();
            let request = http.get(format!("{}/v1/events{since}", stage.doors.base(attempt))).bearer_auth(token);
            match timeout(ANSWER_WITHIN, request.send()).await {
                Ok(Ok(response)) if response.status().is_success() => self.read(response, &mut position).await,
                Ok(Ok(response)) if response.status().as_u16() == 410 => {
                    self.lock().wrong.push("what comes next is gone, and so few events are never dropped".into());
                    return;
                }
                _ => {}
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Takes what a stream brings, until it ends or falls silent.
    async fn read(&self, mut response: reqwest::Response, position: &mut Option<String>) {
        let mut unread = Vec::new();
        while let Ok(Ok(Some(bytes))) = timeout(SILENCE, response.chunk()).await {
            unread.extend_from_slice(&bytes);
            while let Some(end) = unread.windows(2).position(|pair| pair == b"\n\n") {
                let frame: Vec<u8> = unread.drain(..end + 2).collect();
                self.take(&String::from_utf8_lossy(&frame), position);
            }
        }
    }

    fn take(&self, frame: &str, position: &mut Option<String>) {
        let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name));
        let (Some(event), Some(id), Some(data)) = (field("event: "), field("id: "), field("data: ")) else { return };
        let mut told = self.lock();
        let data: Value = match serde_json::from_str(data) {
            Ok(data) => data,
            Err(error) => return told.wrong.push(format!("an event that is no JSON: {error}")),
        };
        let (revision, place) = id.split_once('.').unwrap_or((id, ""));
        let Ok(revision) = revision.parse::<u64>() else { return told.wrong.push(format!("an event without a place: {id}")) };
        if position.is_none() {
            // What it was told first, it was told from there on.
            told.since = if event == "change" { revision.saturating_sub(1) } else { revision };
        }
        match event {
            "change" => {
                let text = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
                told.changes.push((revision, place.parse().unwrap_or_default(), text("kind"), text("id")));
                told.through = told.through.max(revision.saturating_sub(1));
            }
            "progress" => told.through = told.through.max(revision),
            // The last of a gateway that stops.
            "stopping" => return,
            other => return told.wrong.push(format!("`{other}` at {id}: {data}")),
        }
        *position = Some(id.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_keeps_its_place_within_a_revision_and_counts_only_whole_ones_as_told() {
        let (watched, mut position) = (Watched::default(), Some("0".to_owned()));
        let change = |id: &str| format!("event: change\nid: {id}\ndata: {{\"kind\":\"fact.stored\",\"id\":\"f\"}}\n\n");
        watched.take(&change("7.0"), &mut position);
        watched.take(&change("7.1"), &mut position);
        assert_eq!((position.as_deref(), watched.through()), (Some("7.1"), 6));
        watched.take("event: progress\nid: 9\ndata: {\"revision\":9}\n\n", &mut position);
        watched.take(": \n\n", &mut position);
        assert_eq!((position.as_deref(), watched.through()), (Some("9"), 9));
        assert_eq!(watched.told().changes.len(), 2);
        assert!(watched.told().wrong.is_empty());
        watched.take("event: compacted\nid: 12\ndata: {\"through\":12}\n\n", &mut position);
        assert_eq!(watched.told().wrong.len(), 1);
    }
}
