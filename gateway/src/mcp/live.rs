//! What a gateway holds of the calls that run on it: questions without an answer yet, how to cancel, and what a stream has
//! brought so far. None of it outlives the gateway: who comes back to another one is told that, and never left to wait.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use tokio::sync::{oneshot, watch};

use crate::limit::{KEEP_ALIVE_EVERY, REPLAY_BYTES_MAX, REPLAY_KEPT, REPLAYS_MAX, RETRY_MS};
use crate::sse::{Frame, Gone, KEEP_ALIVE, Reader};

type Answer = Result<Value, String>;

struct Asked {
    owner: String,
    answer: oneshot::Sender<Answer>,
}

#[derive(Default)]
pub struct Live {
    asked: Mutex<HashMap<String, Asked>>,
    running: Mutex<HashMap<String, oneshot::Sender<()>>>,
    replays: Mutex<HashMap<u64, Arc<Replay>>>,
    /// Streams of the oldest transport by session.
    readers: Mutex<HashMap<String, Reader>>,
}

/// A question that is open, until it is dropped.
pub struct Open<'a> {
    live: &'a Live,
    name: String,
}

impl Open<'_> {
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.live.asked.lock().expect("no panic under the lock").remove(&self.name);
    }
}

/// A call that can be cancelled, until it is dropped.
pub struct Running {
    live: Arc<Live>,
    name: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.live.running.lock().expect("no panic under the lock").remove(&self.name);
    }
}

impl Live {
    /// A new question to the owner of a session.
    pub fn ask(&self, owner: &str) -> (Open<'_>, oneshot::Receiver<Answer>) {
        let (answer, answered) = oneshot::channel();
        let name = format!("q-{:032x}", rand::random::<u128>());
        self.asked.lock().expect("no panic under the lock").insert(name.clone(), Asked { owner: owner.into(), answer });
        (Open { live: self, name }, answered)
    }

    /// An answer came. One that nobody waits for here is of a call that ended, or runs on another gateway.
    pub fn answer(&self, owner: &str, name: &str, answer: Answer) {
        let mut asked = self.asked.lock().expect("no panic under the lock");
        if asked.get(name).is_some_and(|asked| asked.owner == owner)
            && let Some(asked) = asked.remove(name)
        {
            // The call may have ended meanwhile.
            let _ = asked.answer.send(answer);
        }
    }

    /// Makes a call known by its session and request id; `None` when one of that name runs already.
    pub fn run(self: &Arc<Self>, name: String) -> Option<(Running, oneshot::Receiver<()>)> {
        let mut running = self.running.lock().expect("no panic under the lock");
        if running.contains_key(&name) {
            return None;
        }
        let (cancel, cancelled) = oneshot::channel();
        running.insert(name.clone(), cancel);
        Some((Running { live: self.clone(), name }, cancelled))
    }

    pub fn cancel(&self, name: &str) {
        if let Some(cancel) = self.running.lock().expect("no panic under the lock").remove(name) {
            let _ = cancel.send(());
        }
    }

    pub fn keep_reader(&self, session: &str, reader: Reader) {
        self.readers.lock().expect("no panic under the lock").insert(session.into(), reader);
    }

    pub fn reader(&self, session: &str) -> Option<Reader> {
        self.readers.lock().expect("no panic under the lock").get(session).cloned()
    }

    pub fn forget_reader(&self, session: &str) {
        self.readers.lock().expect("no panic under the lock").remove(session);
    }

    /// A stream that can be gone on with, if there is room for one more.
    pub fn replay(&self, owner: &str, request: &Value) -> Option<Arc<Replay>> {
        let mut replays = self.replays.lock().expect("no panic under the lock");
        replays.retain(|_, replay| !replay.is_over_for(REPLAY_KEPT));
        if replays.len() >= REPLAYS_MAX {
            return None;
        }
        let id = rand::random();
        let (state, _) = watch::channel(State::default());
        let replay = Arc::new(Replay { id, owner: owner.into(), request: request.clone(), state });
        replays.insert(id, replay.clone());
        Some(replay)
    }

    /// The stream of a place in it, if it was the caller's and is still here.
    pub fn find(&self, owner: &str, place: &Place) -> Option<Arc<Replay>> {
        let replays = self.replays.lock().expect("no panic under the lock");
        let is_whole = |replay: &&Arc<Replay>| replay.state.borrow().first <= place.frame.saturating_add(1);
        replays.get(&place.stream).filter(|replay| replay.owner == owner).filter(is_whole).cloned()
    }
}

/// Where somebody stands in the stream of a call. It names the call, so that a gateway without the stream can still say which
/// answer will not come.
#[derive(Debug, PartialEq)]
pub struct Place {
    stream: u64,
    frame: usize,
    pub request: Value,
}

impl Place {
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix("c.")?.split('.');
        let (stream, frame, request) = (parts.next()?, parts.next()?, parts.next()?);
        let request = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(request).ok()?).ok()?;
        Some(Self { stream: u64::from_str_radix(stream, 16).ok()?, frame: frame.parse().ok()?, request })
    }

    fn text(&self) -> String {
        format!("c.{:x}.{}.{}", self.stream, self.frame, URL_SAFE_NO_PAD.encode(self.request.to_string()))
    }
}

/// The messages of one call's stream, kept for a client that lost the connection.
pub struct Replay {
    id: u64,
    owner: String,
    request: Value,
    state: watch::Sender<State>,
}

#[derive(Default)]
struct State {
    /// Those that are kept, and the number of the first of them: over the limit, the oldest go, and nobody can come back to them.
    messages: VecDeque<String>,
    first: usize,
    bytes: usize,
    /// Readers from before hang up.
    hang_ups: u64,
    over: Option<Instant>,
}

impl Replay {
    pub fn push(&self, message: String) {
        self.state.send_modify(|state| {
            state.bytes += message.len();
            state.messages.push_back(message);
            while state.bytes > REPLAY_BYTES_MAX
                && let Some(oldest) = state.messages.pop_front()
            {
                state.bytes -= oldest.len();
                state.first += 1;
            }
        });
    }

    pub fn hang_up(&self) {
        self.state.send_modify(|state| state.hang_ups += 1);
    }

    pub fn end(&self) {
        self.state.send_modify(|state| state.over = Some(Instant::now()));
    }

    fn is_over_for(&self, span: Duration) -> bool {
        self.state.borrow().over.is_some_and(|over| over.elapsed() > span)
    }

    /// Sends what comes after a place, or everything, until the stream is over or hangs up.
    pub async fn follow(&self, after: Option<&Place>, reader: &Reader) -> Result<(), Gone> {
        let mut state = self.state.subscribe();
        let mut next = after.map_or(0, |place| place.frame.saturating_add(1));
        // Who comes back comes after the hang-ups so far.
        let hang_ups = after.map(|_| state.borrow().hang_ups).unwrap_or_default();
        loop {
            let (new, over): (Vec<String>, bool) = {
                let state = state.borrow_and_update();
                // A reader that is so far behind is cut off, and told when it comes back.
                let Some(skip) = next.checked_sub(state.first) else { return Err(Gone) };
                (state.messages.iter().skip(skip).cloned().collect(), state.over.is_some() || state.hang_ups > hang_ups)
            };
            for message in new {
                let id = Place { stream: self.id, frame: next, request: self.request.clone() }.text();
                let retry_ms = message.is_empty().then_some(RETRY_MS);
                reader.send(Frame { id: Some(&id), retry_ms, data: &message, ..Frame::default() }.text()).await?;
                next += 1;
            }
            if over {
                return Ok(());
            }
            tokio::select! {
                changed = state.changed() => if changed.is_err() { return Ok(()) },
                () = reader.gone() => return Err(Gone),
                () = tokio::time::sleep(KEEP_ALIVE_EVERY) => reader.send(KEEP_ALIVE.into()).await?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_place_names_its_call_and_reads_as_it_is_written() {
        for request in [json!(1), json!("a.b")] {
            let place = Place { stream: 0xabc, frame: 3, request };
            assert_eq!(Place::parse(&place.text()), Some(place));
        }
        for nonsense in ["", "e.4", "c.x.1.MQ", "c.a.b.MQ", "c.a.1.!", "c.a.1"] {
            assert_eq!(Place::parse(nonsense), None, "{nonsense}");
        }
    }

    #[tokio::test]
    async fn a_question_takes_the_answer_of_its_owner_alone() {
        let live = Live::default();
        let (open, answered) = live.ask("mara");
        live.answer("jon", open.name(), Ok(json!(1)));
        live.answer("mara", "q-0", Ok(json!(2)));
        live.answer("mara", open.name(), Ok(json!(3)));
        assert_eq!(answered.await, Ok(Ok(json!(3))));
        drop(open);
        assert!(live.asked.lock().expect("no panic").is_empty());
    }

    #[test]
    fn what_is_over_the_limit_can_not_be_gone_on_with_and_strangers_find_nothing() {
        let live = Live::default();
        let replay = live.replay("mara", &json!(1)).expect("room");
        replay.push("x".into());
        let place = Place { stream: replay.id, frame: 0, request: json!(1) };
        assert!(live.find("mara", &place).is_some());
        assert!(live.find("jon", &place).is_none());
        // The one that it has is dropped, the ones that it lacks are not; and then those are.
        replay.push("x".repeat(REPLAY_BYTES_MAX));
        assert!(live.find("mara", &place).is_some());
        replay.push("x".into());
        assert!(live.find("mara", &place).is_none());
    }
}
