//! The streams of MCP: a call that says something before it is done, and what happens outside of calls.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use quorate_domain::limit::CLIENT_SUBSCRIPTIONS_MAX;
use quorate_domain::{Revision, flag};
use tokio::sync::broadcast::error::RecvError;

use super::live::{Place, Replay};
use super::resources::Watched;
use super::*;
use crate::events::{Follower, Next, Position};
use crate::limit::{KEEP_ALIVE_EVERY, RETRY_MS};
use crate::server::stopped;
use crate::sse::{Frame, Gone, KEEP_ALIVE, Reader};

/// The first revision whose clients take an event without data, so that they have a place before the first message.
const PRIMED: &str = "2025-11-25";

// ------------------------------------------------------------------ calls

/// Runs a call to its end. It answers with JSON, unless it says something first.
pub(super) async fn run(
    live: &Arc<Live>,
    era: &Era,
    id: &Value,
    running: impl Future<Output = Outgoing> + Send + 'static,
    said: Option<mpsc::Receiver<Said>>,
) -> Outgoing {
    let named = era.owner().and_then(|owner| live.run(call_name(&owner, id)));
    let mut running: Pin<Box<dyn Future<Output = Outgoing> + Send>> = Box::pin(async move {
        let Some((_named, cancelled)) = named else { return running.await };
        tokio::select! {
            done = running => done,
            // The client wants no answer any more. What was written stays.
            Ok(()) = cancelled => Outgoing::accepted(),
        }
    });
    let Some(mut said) = said else { return running.await };
    // What was said goes before what was done.
    let (first, done) = tokio::select! {
        biased;
        Some(first) = said.recv() => (first, None),
        done = &mut running => match said.try_recv() {
            Ok(first) => (first, Some(done)),
            Err(_) => return done,
        },
    };
    let (reader, response) = Reader::new();
    let stream = Stream { running, done, said };
    match era {
        Era::Stateless => {
            tokio::spawn(async move {
                tokio::select! {
                    () = stream.into_reader(first, &reader) => {}
                    // In this era, to leave is to cancel.
                    () = reader.gone() => {}
                }
            });
        }
        Era::Legacy(legacy) => match era.owner().and_then(|owner| live.replay(&owner, id)) {
            Some(replay) => {
                if legacy.protocol == PRIMED {
                    replay.push(String::new());
                }
                tokio::spawn(stream.into_replay(first, replay.clone()));
                tokio::spawn(async move { replay.follow(None, &reader).await });
            }
            // Without a session, or too many: the call goes on when its client leaves, and nobody can come back for it.
            None => {
                tokio::spawn(async move { stream.into_reader(first, &reader).await });
            }
        },
    }
    Outgoing::stream(response)
}

struct Stream {
    running: Pin<Box<dyn Future<Output = Outgoing> + Send>>,
    done: Option<Outgoing>,
    said: mpsc::Receiver<Said>,
}

impl Stream {
    /// What comes next: something that was said, or at last the answer.
    async fn next(&mut self) -> Result<Said, String> {
        if self.done.is_none() {
            tokio::select! {
                biased;
                Some(said) = self.said.recv() => return Ok(said),
                done = &mut self.running => self.done = Some(done),
            }
        }
        match self.said.try_recv() {
            Ok(said) => Ok(said),
            Err(_) => Err(self.done.take().map(|done| done.body).unwrap_or_default()),
        }
    }

    async fn into_replay(mut self, first: Said, replay: Arc<Replay>) {
        let mut next: Result<Said, String> = Ok(first);
        loop {
            match next {
                Ok(Said::Message(message)) => replay.push(message),
                Ok(Said::HangUp) => replay.hang_up(),
                Err(answer) => {
                    // Empty when it was cancelled.
                    if !answer.is_empty() {
                        replay.push(answer);
                    }
                    return replay.end();
                }
            }
            next = self.next().await;
        }
    }

    async fn into_reader(mut self, first: Said, reader: &Reader) {
        let mut next: Result<Said, String> = Ok(first);
        loop {
            let message = match next {
                Ok(Said::Message(message)) => message,
                // Nobody could come back.
                Ok(Said::HangUp) => String::new(),
                Err(answer) => {
                    if !answer.is_empty() {
                        let _ = reader.send(Frame { data: &answer, ..Frame::default() }.text()).await;
                    }
                    return;
                }
            };
            if !message.is_empty() {
                // A client that left is not told, and its call goes on.
                let _ = reader.send(Frame { data: &message, ..Frame::default() }.text()).await;
            }
            next = tokio::select! {
                next = self.next() => next,
                () = tokio::time::sleep(KEEP_ALIVE_EVERY) => {
                    let _ = reader.send(KEEP_ALIVE.into()).await;
                    Ok(Said::HangUp)
                }
            };
        }
    }
}

// ------------------------------------------------------------------ changes

/// Whose stream it is, and where.
pub(super) struct Here {
    pub app: Arc<App>,
    pub listing: Arc<Listing>,
    pub caller: Arc<Principal>,
    pub headers: HeaderMap,
}

/// What a stream tells.
enum Telling {
    /// Of the stateless era: named by its request, and fixed by it.
    Listen { id: Value, lists: BTreeSet<ListChange>, watched: Vec<Watched> },
    /// Of a session: whatever that is subscribed to.
    Session { session: SessionId },
}

/// `GET` of a session.
pub(super) async fn resume_or_begin(here: Here, session: SessionId, protocol: &str, deadline: Instant) -> Outgoing {
    let accepts = here.headers.get("accept").and_then(|accept| accept.to_str().ok());
    if !accepts.is_some_and(|accept| accept.contains("text/event-stream")) {
        let message = "a GET takes `Accept: text/event-stream`";
        return Outgoing::error(StatusCode::NOT_ACCEPTABLE, &Value::Null, INVALID_REQUEST, message, None);
    }
    let last = here.headers.get("last-event-id").and_then(|id| id.to_str().ok());
    if let Some(place) = last.and_then(Place::parse) {
        return resume_call(&here, &session, place);
    }
    let since = last.and_then(|last| last.strip_prefix("e.")).and_then(|revision| revision.parse::<Position>().ok());
    if last.is_some() && since.is_none() {
        return Outgoing::bad(&Value::Null, INVALID_REQUEST, "this `Last-Event-ID` is none of ours");
    }
    begin(here, Telling::Session { session }, since, protocol == PRIMED, deadline).await
}

/// The rest of a call's stream. A gateway that does not have it says so, since the client would else ask for ever.
fn resume_call(here: &Here, session: &SessionId, place: Place) -> Outgoing {
    let (reader, response) = Reader::new();
    match here.app.live.find(&session.name(), &place) {
        Some(replay) => {
            tokio::spawn(async move { replay.follow(Some(&place), &reader).await });
        }
        None => {
            let message = "the rest of this call's stream is gone: it ran on a gateway that stopped, or ended a while ago. Whether it wrote \
                           anything is unknown: repeat it with the same `idempotency_key`, or look before you repeat it without one.";
            let lost = Outgoing::error(StatusCode::OK, &place.request, UNAVAILABLE, message, Some(json!({ "code": "OUTCOME_UNKNOWN" })));
            tokio::spawn(async move { reader.send(Frame { data: &lost.body, ..Frame::default() }.text()).await });
        }
    }
    Outgoing::stream(response)
}

/// `subscriptions/listen`.
pub(super) async fn listen(here: Here, id: &Value, wanted: &Map<String, Value>, deadline: Instant) -> Outgoing {
    let mut lists = BTreeSet::new();
    let mut granted = Map::new();
    for change in ListChange::ALL {
        if here.listing.lists_change && wanted.get(change.filter()) == Some(&Value::Bool(true)) {
            lists.insert(change);
            granted.insert(change.filter().into(), true.into());
        }
    }
    let uris: Vec<&str> = match wanted.get("resourceSubscriptions") {
        None => Vec::new(),
        Some(Value::Array(uris)) if uris.len() <= CLIENT_SUBSCRIPTIONS_MAX => uris.iter().filter_map(Value::as_str).collect(),
        Some(_) => {
            let message = format!("`resourceSubscriptions` is a list of at most {CLIENT_SUBSCRIPTIONS_MAX} URIs");
            return Outgoing::error(StatusCode::OK, id, INVALID_PARAMS, message, None);
        }
    };
    let ctx = CallContext::new(Some(here.caller.clone()), deadline, here.app.services.clone());
    let (mut watched, mut readable) = (Vec::new(), Vec::new());
    for uri in uris {
        // What the caller can't read is left out of what is acknowledged.
        if let Ok(found) = here.listing.library.watch(&here.app, &ctx, uri) {
            readable.push(uri);
            watched.extend(found);
        }
    }
    if !readable.is_empty() {
        granted.insert("resourceSubscriptions".into(), json!(readable));
    }
    let telling = Telling::Listen { id: id.clone(), lists, watched };
    let params = json!({ "_meta": { META_SUBSCRIPTION: id }, "notifications": granted });
    let acknowledged = notification("notifications/subscriptions/acknowledged", params);
    begin_with(here, telling, None, Some(Frame { data: &acknowledged, ..Frame::default() }.text()), deadline).await
}

fn notification(method: &str, params: Value) -> String {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
}

async fn begin(here: Here, telling: Telling, since: Option<Position>, primed: bool, deadline: Instant) -> Outgoing {
    let first = primed.then(String::new);
    begin_with(here, telling, since, first, deadline).await
}

/// `first` goes out at once; an empty one stands for an event that only gives the place.
async fn begin_with(here: Here, telling: Telling, since: Option<Position>, first: Option<String>, deadline: Instant) -> Outgoing {
    let id = match &telling {
        Telling::Listen { id, .. } => id.clone(),
        Telling::Session { .. } => Value::Null,
    };
    let unavailable = |error: CallError| {
        let refused = Outgoing::error(StatusCode::SERVICE_UNAVAILABLE, &id, UNAVAILABLE, error.text(), Some(error.facts()));
        Outgoing { retry_after_ms: error.retry_after_ms(), ..refused }
    };
    let permit = match here.app.stream_permit() {
        Ok(permit) => permit,
        Err(error) => return unavailable(error),
    };
    let ctx = CallContext::new(Some(here.caller.clone()), deadline, here.app.services.clone());
    let since = match since {
        Some(since) => since,
        // Whatever happens from here on is told.
        None => match here.app.cluster.read(&ctx, flag::GetFlags {}).await {
            Ok((_, now)) => Position::through(now.revision),
            Err(error) => return unavailable(error),
        },
    };
    let (reader, response) = Reader::new();
    let follower = Follower::new(here.app.cluster.clone(), here.caller.clone(), since);
    let lists = here.app.services.list_changes.subscribe();
    tokio::spawn(async move {
        let _permit = permit;
        let first = match first {
            Some(first) if first.is_empty() => Some(primer(follower.through())),
            first => first,
        };
        if let Some(first) = first
            && reader.send(first).await.is_err()
        {
            return;
        }
        let _ = Changes { here, telling, reader, follower }.run(lists).await;
    });
    Outgoing::stream(response)
}

fn primer(through: Revision) -> String {
    Frame { id: Some(&format!("e.{through}")), retry_ms: Some(RETRY_MS), ..Frame::default() }.text()
}

struct Changes {
    here: Here,
    telling: Telling,
    reader: Reader,
    follower: Follower,
}

impl Changes {
    async fn run(mut self, mut lists: tokio::sync::broadcast::Receiver<ListChange>) -> Result<(), Gone> {
        let mut stopping = self.here.app.stopping();
        let mut keep_alive = tokio::time::interval(KEEP_ALIVE_EVERY);
        keep_alive.reset();
        loop {
            tokio::select! {
                next = self.follower.next() => self.tell(next).await?,
                change = lists.recv() => match change {
                    Ok(change) => self.list_changed(change).await?,
                    // So many changed that some were not told: all of them may have.
                    Err(RecvError::Lagged(_)) => for change in ListChange::ALL {
                        self.list_changed(change).await?;
                    },
                    Err(RecvError::Closed) => return Ok(()),
                },
                () = self.reader.gone() => return Err(Gone),
                () = stopped(&mut stopping) => return self.stop().await,
                _ = keep_alive.tick() => {
                    if !self.is_still_served().await {
                        return self.stop().await;
                    }
                    // A session that lost this stream goes on from here.
                    let sign = match &self.telling {
                        Telling::Session { .. } => format!("id: e.{}\n\n", self.follower.through()),
                        Telling::Listen { .. } => KEEP_ALIVE.into(),
                    };
                    self.reader.send(sign).await?;
                }
            }
        }
    }

    async fn tell(&mut self, next: Next) -> Result<(), Gone> {
        let library = self.here.listing.library.clone();
        let changes = match next {
            Next::Nothing(_) => return Ok(()),
            Next::Changes(changes) => Some(changes),
            Next::Compacted(_) => None,
        };
        let found;
        let watched = match &self.telling {
            Telling::Listen { watched, .. } => watched,
            Telling::Session { session } => {
                found = self.watched_by(session).await;
                &found
            }
        };
        let uris = match &changes {
            Some(changes) => library.changed(watched, changes),
            // What changed is not known any more, so everything may have.
            None => watched.iter().map(Watched::uri).collect(),
        };
        let mut uris = uris.into_iter().peekable();
        while let Some(uri) = uris.next() {
            // The place moves on with the last of them, so that one who is cut off in between misses none.
            self.notify("notifications/resources/updated", json!({ "uri": uri }), uris.peek().is_none()).await?;
        }
        Ok(())
    }

    /// What the session watches, as of what is being told.
    async fn watched_by(&self, session: &SessionId) -> Vec<Watched> {
        let app = &self.here.app;
        let at_least = Some(self.follower.through());
        loop {
            let deadline = Instant::now() + Duration::from_secs(5);
            match app.services.sessions.kept_at(&app.cluster, &self.here.caller, session, at_least, deadline).await {
                Ok(kept) => {
                    let ctx = CallContext::new(Some(self.here.caller.clone()), deadline, app.services.clone());
                    let watch = |uri: &String| self.here.listing.library.watch(app, &ctx, uri).ok().flatten();
                    return kept.subscriptions.iter().filter_map(watch).collect();
                }
                Err(error) => {
                    tracing::debug!(%error, "what a session watches can't be read now");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }

    async fn list_changed(&self, change: ListChange) -> Result<(), Gone> {
        let wanted = match &self.telling {
            Telling::Listen { lists, .. } => lists.contains(&change),
            Telling::Session { .. } => self.here.listing.lists_change,
        };
        if wanted { self.notify(change.method(), json!({}), false).await } else { Ok(()) }
    }

    async fn notify(&self, method: &str, mut params: Value, moves_on: bool) -> Result<(), Gone> {
        let id = match &self.telling {
            Telling::Listen { id, .. } => {
                params["_meta"] = json!({ META_SUBSCRIPTION: id });
                None
            }
            Telling::Session { .. } => moves_on.then(|| format!("e.{}", self.follower.through())),
        };
        self.reader.send(Frame { id: id.as_deref(), data: &notification(method, params), ..Frame::default() }.text()).await
    }

    /// A token that was revoked, or a session that was ended, has no stream; a cluster that can't tell ends none.
    async fn is_still_served(&self) -> bool {
        let Here { app, listing, caller, headers } = &self.here;
        let deadline = Instant::now() + Duration::from_secs(2);
        let known = match identify(app, listing, headers, deadline).await {
            Ok(known) => known.is_some_and(|known| known.tenant == caller.tenant && known.passport == caller.passport),
            Err(refused) => refused.status != StatusCode::UNAUTHORIZED,
        };
        match &self.telling {
            Telling::Session { session } => known && !app.services.sessions.kept(&app.cluster, caller, session, deadline).await.ended,
            Telling::Listen { .. } => known,
        }
    }

    /// Says where to go on, or that it is over, and ends.
    async fn stop(&self) -> Result<(), Gone> {
        let last = match &self.telling {
            Telling::Listen { id, .. } => {
                let result = json!({ "resultType": "complete", "_meta": { META_SUBSCRIPTION: id } });
                Frame { data: &Outgoing::result(id, &result.to_string()).body, ..Frame::default() }.text()
            }
            Telling::Session { .. } => format!("id: e.{}\nretry: {RETRY_MS}\n\n", self.follower.through()),
        };
        self.reader.send(last).await
    }
}
