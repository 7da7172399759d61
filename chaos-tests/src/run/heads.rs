//! Witnesses of the log of receipts: they take its signed heads through one gateway after the other while everything is hurt, and have
//! each later head shown to continue the earlier ones.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use super::Stage;

const LOOK_EVERY: Duration = Duration::from_millis(700);
const ANSWER_WITHIN: Duration = Duration::from_secs(4);
/// At the end, so many of all heads are shown to be continued by the last one.
const HEADS_ASKED_AT_THE_END: usize = 30;

/// What was seen of the log.
#[derive(Default)]
pub struct Heads(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The signed part of each head, by its size.
    heads: BTreeMap<u64, String>,
    /// Proofs that were checked, and what was wrong.
    asked_of: usize,
    found: Vec<String>,
}

/// A head as it was signed: its size, and its origin, size and root in three lines.
type Head = (u64, String);

impl Heads {
    /// Proofs that were checked, and what was wrong.
    pub fn found(&self) -> (usize, Vec<String>) {
        let seen = self.lock();
        (seen.asked_of, seen.found.clone())
    }

    /// Heads of different sizes.
    pub fn count(&self) -> usize {
        self.lock().heads.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wrong(&self, what: String) {
        self.lock().found.push(what);
    }

    /// Looks until it is aborted.
    pub async fn witness(&self, stage: &Stage, number: usize) {
        let mut before: Option<Head> = None;
        for attempt in number.. {
            if let Some((head, _)) = self.look(stage, attempt).await {
                if let Some(before) = before.take() {
                    if head.0 < before.0 {
                        self.wrong(format!("a head of {} receipts was served after one of {}", head.0, before.0));
                    }
                    self.check_continued(stage, attempt + 1, &before, &head).await;
                }
                before = Some(head);
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// When nobody writes any more: the last head, with the revision it was read at, continues every one that anybody saw.
    pub async fn look_back(&self, stage: &Stage) -> Option<(u64, u64)> {
        let (last, revision) = self.look(stage, 0).await?;
        let heads: Vec<Head> = self.lock().heads.iter().map(|(size, head)| (*size, head.clone())).collect();
        let step = heads.len().div_ceil(HEADS_ASKED_AT_THE_END).max(1);
        for (place, head) in heads.iter().step_by(step).enumerate() {
            self.check_continued(stage, place, head, &last).await;
        }
        Some((last.0, revision))
    }

    /// The newest head, signed and noted, and the revision it was read at; None when it could not be had.
    async fn look(&self, stage: &Stage, attempt: usize) -> Option<(Head, u64)> {
        let (text, revision) = ask(stage, attempt, "/v1/log/head").await?;
        match quorate_proof::verify(text.as_bytes(), None) {
            Ok(report) if stage.receipt_key.as_ref().is_none_or(|key| *key == report.public_key) => {}
            Ok(report) => self.wrong(format!("a head is signed by the key {}", report.public_key)),
            Err(fault) => self.wrong(format!("a head: {fault}")),
        }
        let head = signed(&serde_json::from_str::<Value>(&text).ok()?["head"])?;
        let known = self.lock().heads.entry(head.0).or_insert_with(|| head.1.clone()).clone();
        if known != head.1 {
            self.wrong(format!("two heads of {} receipts differ: {known:?} and {:?}", head.0, head.1));
        }
        Some((head, revision))
    }

    /// Has it proven that one head continues another, and that the proof is of these two.
    async fn check_continued(&self, stage: &Stage, attempt: usize, from: &Head, to: &Head) {
        let (low, high) = (from.0.min(to.0), from.0.max(to.0));
        if low == 0 {
            // Everything continues an empty log.
            return;
        }
        let Some((text, _)) = ask(stage, attempt, &format!("/v1/log/proof/consistency?from={low}&to={high}")).await else { return };
        self.lock().asked_of += 1;
        if let Err(fault) = quorate_proof::verify(text.as_bytes(), None) {
            self.wrong(format!("the head of {high} receipts does not continue that of {low}: {fault}"));
        }
        let file: Value = serde_json::from_str(&text).unwrap_or_default();
        for name in ["from", "to"] {
            let Some(head) = signed(&file[name]) else { continue };
            let known = self.lock().heads.entry(head.0).or_insert_with(|| head.1.clone()).clone();
            if known != head.1 {
                self.wrong(format!("a proof is of another head of {} receipts than was served: {known:?} and {:?}", head.0, head.1));
            }
        }
    }
}

/// The signed lines of a note, and the size in them.
fn signed(note: &Value) -> Option<Head> {
    let lines: Vec<&str> = note.as_str()?.lines().take(3).collect();
    Some((lines.get(1)?.parse().ok()?, lines.join("\n")))
}

/// One question through one gateway; its answer and the revision it is of.
async fn ask(stage: &Stage, attempt: usize, path: &str) -> Option<(String, u64)> {
    let token = &stage.cast.clients[attempt % stage.cast.clients.len()].token;
    let request = stage.doors.http(attempt).get(format!("{}{path}", stage.doors.base(attempt))).bearer_auth(token);
    let response = request.timeout(ANSWER_WITHIN).send().await.ok()?.error_for_status().ok()?;
    let revision = response.headers().get("quorate-revision")?.to_str().ok()?.parse().ok()?;
    Some((response.text().await.ok()?, revision))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_note_the_signed_lines_count_and_not_who_signed_it() {
        let note = |signature: &str| Value::from(format!("quorate/c/t\n12\nAAAA\n\n— key {signature}\n"));
        assert_eq!(signed(&note("a")), Some((12, "quorate/c/t\n12\nAAAA".to_owned())));
        assert_eq!(signed(&note("a")), signed(&note("b")));
        assert_eq!(signed(&Value::from("x")), None);
    }
}
