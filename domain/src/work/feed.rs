//! The status feed: what happened to work, in six words.

use serde::{Deserialize, Serialize};

use crate::cursor::Cursors;
use crate::flag;
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::{REPLY_BYTES_MAX, REPLY_WRAPPER_BYTES};
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Table, Tx};
use crate::work::{BlockerKind, State, Work, page, work};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    Claimed,
    Blocked,
    HumanHold,
    Resumed,
    Done,
    Failed,
}

impl Verb {
    pub fn word(self) -> &'static str {
        match self {
            Verb::Claimed => "CLAIMED",
            Verb::Blocked => "BLOCKED",
            Verb::HumanHold => "HUMAN_HOLD",
            Verb::Resumed => "RESUMED",
            Verb::Done => "DONE",
            Verb::Failed => "FAILED",
        }
    }
}

/// One line of the feed. Moves that have no word of it, such as back to planned, leave none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeedEvent {
    pub transition_id: String,
    pub tenant: String,
    pub work_id: String,
    pub verb: Verb,
    /// `None` when the item was created there.
    pub from: Option<State>,
    /// Of a move that waits or failed: where it was to go.
    pub to: State,
    pub by: String,
    pub at: UnixMs,
    pub revision: Revision,
}

impl Record for FeedEvent {
    const KIND: Kind = Kind::FeedEvent;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.transition_id)
    }
}

/// The lines of an item or of all, newest first.
fn order(tenant: &str, work_id: Option<&str>) -> Key {
    kind_prefix(tenant, Kind::FeedOrder).text(work_id.unwrap_or_default())
}

fn add(tx: &mut impl Tx, at: &Stamp, n: u64, work: &Work, verb: Verb, (from, to): (Option<State>, State), by: &str) {
    let event = FeedEvent {
        transition_id: at.new_id("wt", n),
        tenant: work.tenant.clone(),
        work_id: work.id.clone(),
        verb,
        from,
        to,
        by: by.into(),
        at: at.wall,
        revision: at.revision,
    };
    for of in [None, Some(work.id.as_str())] {
        tx.put_index(order(&work.tenant, of).number_descending(at.revision.0).text(&event.transition_id), event.transition_id.as_bytes());
    }
    tx.put(&event);
}

/// Tells of a move that was made.
pub(super) fn moved(tx: &mut impl Tx, at: &Stamp, work: &Work, from: Option<State>, by: &str) {
    let is_finished = |state| matches!(state, State::Complete | State::Deployed | State::Archive);
    let verb = match work.state {
        State::Planned => None,
        State::InProgress if from == Some(State::Blocked) => Some(Verb::Resumed),
        State::InProgress => Some(Verb::Claimed),
        State::Blocked => match &work.blocker {
            Some(blocker) if blocker.kind == BlockerKind::NeedsApproval => Some(Verb::HumanHold),
            _ => Some(Verb::Blocked),
        },
        State::Complete | State::Deployed => Some(Verb::Done),
        // What was finished is only put away.
        State::Archive => (!from.is_none_or(is_finished)).then_some(Verb::Failed),
    };
    if let Some(verb) = verb {
        add(tx, at, 0, work, verb, (from, work.state), by);
    }
}

/// Tells of a move that waits for a person.
pub(super) fn held(tx: &mut impl Tx, at: &Stamp, work: &Work, to: State, by: &str) {
    add(tx, at, 0, work, Verb::HumanHold, (Some(work.state), to), by);
}

/// Tells of a waiting move that was rejected or that nobody decided.
pub(super) fn failed(tx: &mut impl Tx, at: &Stamp, work: &Work, to: State, by: &str, n: u64) {
    add(tx, at, n, work, Verb::Failed, (Some(work.state), to), by);
}

/// The newest lines of the feed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusFeed {
    pub work_id: Option<String>,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Feed {
    pub enabled: bool,
    /// Oldest first.
    pub events: Vec<FeedEvent>,
    /// For the ones before.
    pub next_cursor: Option<String>,
}

impl StatusFeed {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Feed> {
        let (tenant, work_id) = (&at.caller.tenant, self.work_id.as_deref());
        let cursors = Cursors::of("status feed", &at.caller, &work_id);
        let checked = cursors.page(self.limit, self.cursor.as_deref());
        let (limit, from) = match checked {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(id) = work_id {
            if let Some(refusal) = check_name("work_id", id) {
                return Ok(Err(refusal));
            }
            if work(view, tenant, id)?.is_none() {
                return Ok(Err(Refusal::not_found("work", id)));
            }
        }
        if !flag::is_on(view, flag::STATUS_FEED)? {
            return Ok(Ok(Feed { enabled: false, events: Vec::new(), next_cursor: None }));
        }
        let read = |id: &[u8]| {
            let event: Option<FeedEvent> = view.get(tenant, &Key::new().text(&String::from_utf8_lossy(id)))?;
            let event = event.ok_or_else(|| StorageError::corrupt("a row of the status feed points nowhere"))?;
            let bytes = serde_json::to_string(&event).map_or(0, |json| json.len()) + 40;
            Ok(Some((event, bytes)))
        };
        let budget = REPLY_BYTES_MAX - 2 * REPLY_WRAPPER_BYTES;
        let found = page(view, Table::Index, &order(tenant, work_id), from.as_deref(), limit, budget, read)?;
        let mut events = found.items;
        events.reverse();
        Ok(Ok(Feed { enabled: true, events, next_cursor: found.next.map(|next| cursors.seal(&next)) }))
    }
}
