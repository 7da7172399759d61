//! A tenant's change events, followed from node to node, and `GET /v1/events`.
//!
//! Any node serves them from its own state. A node that dies, or says nothing for long, is left for another one, and the
//! stream goes on after the last event it brought: none is told twice, none is left out. Where a reader went on reading from
//! is gone, that is said and never passed over.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};
use quorate_domain::event::KINDS;
use quorate_domain::identity::token_hash;
use quorate_domain::refusal::shown;
use quorate_domain::{Principal, Revision, codec, flag};
use quorate_proto::cluster as wire;
use serde_json::{Value, json};
use tokio::time::{timeout, timeout_at};
use tonic::Streaming;

use crate::auth::Credential;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::edge;
use crate::http::{identify, refusal};
use crate::limit::{BACKOFF_MAX, BACKOFF_MIN, EVENTS_PROGRESS, KINDS_MAX, STREAM_TOKEN_CHECKED, WATCH_SILENCE};
use crate::server::{App, stopped};
use crate::sse::{Frame, Gone, Reader};

/// What a token has to hold to read them.
pub const SCOPE: &str = "crux-mcp.events";

/// Up to where somebody has read: everything through a revision, or only so many events of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub revision: Revision,
    /// `None`: the whole revision; else the number of the last event of it that was read, from 0 on.
    pub event: Option<u64>,
}

impl Position {
    pub fn through(revision: Revision) -> Self {
        Self { revision, event: None }
    }

    /// The revision that is read whole, and how many events of the next one.
    fn split(self) -> (Revision, u64) {
        match self.event {
            None => (self.revision, 0),
            Some(event) => (Revision(self.revision.0.saturating_sub(1)), event.saturating_add(1)),
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.event {
            None => write!(f, "{}", self.revision),
            Some(event) => write!(f, "{}.{event}", self.revision),
        }
    }
}

impl FromStr for Position {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (revision, event) = match text.split_once('.') {
            None => (text, None),
            Some((revision, event)) => (revision, Some(event.parse()?)),
        };
        Ok(Self { revision: Revision(revision.parse()?), event })
    }
}

/// One change, and where it stands.
#[derive(Clone, Debug)]
pub struct Change {
    pub at: Position,
    pub kind: String,
    pub id: String,
    pub about: Value,
}

/// What comes next.
#[derive(Debug)]
pub enum Next {
    /// Whole revisions, in order.
    Changes(Vec<Change>),
    /// Nothing more happened up to this revision.
    Nothing(Revision),
    /// What happened up to this revision is gone.
    Compacted(Revision),
}

/// Follows the events of one tenant.
pub struct Follower {
    cluster: Cluster,
    caller: Arc<Principal>,
    through: Revision,
    /// Events of the revision after that which the reader has already.
    skip: u64,
    stream: Option<Streaming<wire::WatchResponse>>,
    /// When the stream last brought something.
    heard: Instant,
}

impl Follower {
    pub fn new(cluster: Cluster, caller: Arc<Principal>, since: Position) -> Self {
        let (through, skip) = since.split();
        Self { cluster, caller, through, skip, stream: None, heard: Instant::now() }
    }

    /// Up to where all was handed out.
    pub fn through(&self) -> Revision {
        self.through
    }

    /// Waits for as long as it takes, for the cluster too. Dropped while it waits, it loses nothing.
    pub async fn next(&mut self) -> Next {
        let mut pause = BACKOFF_MIN;
        loop {
            let Some(stream) = &mut self.stream else {
                self.stream = self.cluster.watch(&self.caller, self.through).await;
                self.heard = Instant::now();
                if self.stream.is_none() {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(BACKOFF_MAX);
                }
                continue;
            };
            // A node that hangs tells no progress; another one may. Counted from what came last, however often this is begun anew.
            let message = match timeout_at((self.heard + WATCH_SILENCE).into(), stream.message()).await {
                Ok(Ok(Some(message))) => {
                    self.heard = Instant::now();
                    message
                }
                _ => {
                    self.stream = None;
                    tokio::time::sleep(BACKOFF_MIN).await;
                    continue;
                }
            };
            match message.result {
                Some(wire::watch_response::Result::Events(events)) => match self.take(events.events) {
                    Ok(changes) => return Next::Changes(changes),
                    Err(error) => {
                        tracing::error!(%error, "a change event can't be read");
                        self.stream = None;
                        tokio::time::sleep(BACKOFF_MAX).await;
                    }
                },
                Some(wire::watch_response::Result::ProgressRevision(revision)) => {
                    // A node that lags may not have what another one told already.
                    self.advance(Revision(revision));
                    return Next::Nothing(self.through);
                }
                Some(wire::watch_response::Result::CompactedThrough(through)) => {
                    self.stream = None;
                    self.advance(Revision(through));
                    return Next::Compacted(Revision(through));
                }
                None => {}
            }
        }
    }

    fn advance(&mut self, through: Revision) {
        if through > self.through {
            (self.through, self.skip) = (through, 0);
        }
    }

    fn take(&mut self, events: Vec<wire::Event>) -> Result<Vec<Change>, codec::DecodeError> {
        let mut changes = Vec::with_capacity(events.len());
        let (first, mut last) = (Revision(self.through.0 + 1), None);
        let mut number = 0;
        for event in events {
            let revision = Revision(event.revision);
            number = if last == Some(revision) { number + 1 } else { 0 };
            last = Some(revision);
            if revision == first && number < self.skip {
                continue;
            }
            let about = codec::decode(&event.body)?;
            changes.push(Change { at: Position { revision, event: Some(number) }, kind: event.kind, id: event.id, about });
        }
        if let Some(last) = last {
            self.advance(last);
        }
        Ok(changes)
    }
}

// ------------------------------------------------------------------ GET /v1/events

/// `GET /v1/events?since=&kinds=`: every change of the caller's tenant as server-sent events.
///
/// `since` is a revision or the id of an event; the header `Last-Event-ID` goes before it, and without either the stream begins
/// now. `kinds` is a list of kinds such as `work.moved`, or beginnings such as `fact.`. Events: `change` is `{revision, kind, id,
/// about}`; `progress` is `{revision}`, up to where there is nothing more to tell; `compacted` is `{through}` and the last one:
/// list anew, and go on from there; `stopping` is the last one of a gateway that stops, and says where to go on.
pub async fn events(app: &Arc<App>, query: &[(String, String)], headers: &HeaderMap) -> Response<Body> {
    let deadline = Instant::now() + app.settings.call_deadline;
    let caller = match identify(app, headers, deadline).await {
        Ok(caller) => caller,
        Err(refused) => return refused,
    };
    let token_hash = match Credential::of(headers) {
        Credential::Bearer(token) => token_hash(&token),
        Credential::None | Credential::Malformed => String::new(),
    };
    answer(app, query, headers, caller, token_hash, deadline).await
}

/// The same for a caller whose token is known by its hash: the stream ends soon after that token does.
pub async fn answer(
    app: &Arc<App>,
    query: &[(String, String)],
    headers: &HeaderMap,
    caller: Option<Arc<Principal>>,
    token_hash: String,
    deadline: Instant,
) -> Response<Body> {
    match open(app, query, headers, caller, token_hash, deadline).await {
        Ok(response) => response,
        Err(Refused::Call(error)) => refusal(&error),
        Err(Refused::Compacted(through)) => {
            let message = format!("what happened up to revision {through} is gone: list anew, and go on with `since={through}`");
            let facts =
                json!({ "code": "COMPACTED", "message": message, "retryable": false, "wrote": "no", "data": { "through": through } });
            edge::problem(StatusCode::GONE, "Gone", facts)
        }
    }
}

enum Refused {
    Call(CallError),
    Compacted(Revision),
}

impl From<CallError> for Refused {
    fn from(error: CallError) -> Self {
        Refused::Call(error)
    }
}

async fn open(
    app: &Arc<App>,
    query: &[(String, String)],
    headers: &HeaderMap,
    caller: Option<Arc<Principal>>,
    token_hash: String,
    deadline: Instant,
) -> Result<Response<Body>, Refused> {
    let caller = caller.ok_or(CallError::Unauthenticated)?;
    if !caller.may(SCOPE) {
        return Err(CallError::MissingScope { scope: SCOPE.into() }.into());
    }
    let (since, kinds) = arguments(query, headers)?;
    let permit = app.stream_permit()?;
    let ctx = CallContext::new(Some(caller.clone()), deadline, app.services.clone());
    let (_, now) = app.cluster.read(&ctx, flag::GetFlags {}).await?;
    let since = since.unwrap_or(Position::through(now.revision));
    if since.split().0 > now.revision {
        let problem = format!("`since` is {since}, and the last revision is {}", now.revision);
        return Err(CallError::arguments(problem, "Go on from a revision or an event that you have seen.").into());
    }
    let mut follower = Follower::new(app.cluster.clone(), caller, since);
    // The first message says whether what is asked for is there, in time for a status.
    let first = match timeout(ctx.time_left(), follower.next()).await {
        Ok(Next::Compacted(through)) => return Err(Refused::Compacted(through)),
        Ok(first) => first,
        Err(_) => return Err(CallError::Unreadable { detail: "no node streams events now".into(), retry_after_ms: 500 }.into()),
    };
    let (reader, response) = Reader::new();
    let told = Told { app: app.clone(), reader, kinds, position: since, at: Instant::now() };
    tokio::spawn(async move {
        let _permit = permit;
        told.run(follower, first, token_hash).await
    });
    Ok(response)
}

type Arguments = (Option<Position>, Vec<String>);

fn arguments(query: &[(String, String)], headers: &HeaderMap) -> Result<Arguments, CallError> {
    let read = |name: &str, text: &str| {
        let fix = "It is a revision such as `812`, or the id of an event such as `812.0`.";
        text.parse::<Position>().map(Some).map_err(|_| CallError::arguments(format!("`{name}` is no position: `{}`", shown(text)), fix))
    };
    let (mut since, mut kinds) = (None, Vec::new());
    for (name, value) in query {
        match name.as_str() {
            "since" => since = read("since", value)?,
            "kinds" => kinds.extend(value.split(',').filter(|kind| !kind.is_empty()).map(String::from)),
            _ => return Err(CallError::arguments(format!("`{}` is unknown", shown(name)), "The parameters are `since` and `kinds`.")),
        }
    }
    if let Some(unknown) = kinds.iter().find(|filter| !KINDS.iter().any(|kind| matches(filter, kind))) {
        let fix = "Give kinds such as `work.moved`, or beginnings up to the dot such as `fact.`; `docs/events.md` has all.";
        return Err(CallError::arguments(format!("`kinds` has `{}`, which no change is of", shown(unknown)), fix));
    }
    if kinds.len() > KINDS_MAX {
        return Err(CallError::arguments(format!("`kinds` names {} kinds, and the limit is {KINDS_MAX}", kinds.len()), "Name fewer."));
    }
    if let Some(id) = headers.get("last-event-id") {
        since = read("Last-Event-ID", id.to_str().unwrap_or_default())?;
    }
    Ok((since, kinds))
}

/// What one reader was told.
struct Told {
    app: Arc<App>,
    reader: Reader,
    /// Empty: all.
    kinds: Vec<String>,
    /// Up to where.
    position: Position,
    /// When.
    at: Instant,
}

impl Told {
    async fn run(mut self, mut follower: Follower, first: Next, token_hash: String) {
        let mut stopping = self.app.stopping();
        let mut next = Some(first);
        let mut check_token = tokio::time::interval(STREAM_TOKEN_CHECKED);
        check_token.reset();
        loop {
            let told = match next.take() {
                Some(next) => self.tell(next).await,
                None => tokio::select! {
                    found = follower.next() => {
                        next = Some(found);
                        Ok(true)
                    }
                    () = self.reader.gone() => Ok(false),
                    () = stopped(&mut stopping) => {
                        let data = json!({ "resume": self.position.to_string() }).to_string();
                        let _ = self.send("stopping", &data, Some(500)).await;
                        Ok(false)
                    }
                    _ = check_token.tick() => self.is_still_known(&token_hash).await,
                },
            };
            if told != Ok(true) {
                return;
            }
        }
    }

    /// Whether to go on.
    async fn tell(&mut self, next: Next) -> Result<bool, Gone> {
        match next {
            Next::Changes(changes) => {
                for change in changes {
                    self.position = change.at;
                    if self.kinds.is_empty() || self.kinds.iter().any(|kind| matches(kind, &change.kind)) {
                        let Change { at, kind, id, about } = change;
                        let data = json!({ "revision": at.revision, "kind": kind, "id": id, "about": about }).to_string();
                        self.send("change", &data, None).await?;
                    }
                }
                self.position = Position::through(self.position.revision);
                // A filter that lets nothing through must not leave its reader at a place that will be compacted.
                if self.at.elapsed() > EVENTS_PROGRESS { self.progress().await } else { Ok(true) }
            }
            Next::Nothing(revision) => {
                self.position = Position::through(revision);
                self.progress().await
            }
            Next::Compacted(through) => {
                self.position = Position::through(through);
                self.send("compacted", &json!({ "through": through }).to_string(), None).await?;
                Ok(false)
            }
        }
    }

    async fn progress(&mut self) -> Result<bool, Gone> {
        let data = json!({ "revision": self.position.revision }).to_string();
        self.send("progress", &data, None).await?;
        Ok(true)
    }

    async fn send(&mut self, event: &str, data: &str, retry_ms: Option<u64>) -> Result<(), Gone> {
        let id = self.position.to_string();
        self.at = Instant::now();
        self.reader.send(Frame { event: Some(event), id: Some(&id), retry_ms, data }.text()).await
    }

    /// A token that was revoked meanwhile ends the stream; a cluster that can't tell does not.
    async fn is_still_known(&mut self, token_hash: &str) -> Result<bool, Gone> {
        let deadline = Instant::now() + Duration::from_secs(2);
        let known = self.app.tokens.resolve_hash(&self.app.cluster, token_hash, deadline).await;
        let refused = known.is_ok_and(|caller| caller.is_none_or(|caller| !caller.may(SCOPE)));
        if refused {
            self.send("refused", &json!({ "reason": "the token is unknown, expired or revoked" }).to_string(), None).await?;
        }
        Ok(!refused)
    }
}

/// Whether a filter means a kind: the kind itself, or what it begins with up to a dot.
fn matches(filter: &str, kind: &str) -> bool {
    filter == kind || (filter.ends_with('.') && kind.starts_with(filter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_is_written_and_says_what_is_left_of_its_revision() {
        for (text, split) in [("812", (812, 0)), ("812.0", (811, 1)), ("812.3", (811, 4)), ("0", (0, 0))] {
            let position: Position = text.parse().expect("a position");
            assert_eq!(position.to_string(), text);
            assert_eq!(position.split(), (Revision(split.0), split.1), "{text}");
        }
        for nonsense in ["", "-1", "x", "1.", "1.x", ".1", "99999999999999999999999"] {
            assert!(nonsense.parse::<Position>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn a_filter_that_no_change_can_pass_is_refused() {
        let asked = |kinds: &str| arguments(&[("kinds".into(), kinds.into())], &HeaderMap::new());
        assert_eq!(asked("fact.stored,work.").ok().map(|(_, kinds)| kinds.len()), Some(2));
        for wrong in ["fact.strored", "fact", "facts.stored", "work.,nothing.", "."] {
            let refused = asked(wrong).expect_err(wrong).text();
            assert!(refused.contains("no change is of") && refused.contains("docs/events.md"), "{refused}");
        }
    }

    #[test]
    fn a_filter_means_a_kind_or_the_kinds_under_it() {
        assert!(matches("fact.", "fact.stored") && matches("fact.stored", "fact.stored"));
        assert!(!matches("fact", "fact.stored") && !matches("fact.", "facts.consolidated"));
    }
}
