//! `--watch`: an answer that is asked for again when something happened to what it tells of.
//!
//! The stream of changes says when; nothing is asked for in between. A gateway or a stream that goes away is opened again where
//! the changes were followed to, so none is missed. On a terminal the page is drawn in place, and each second anew, from the same
//! answer, for what is told as time left; elsewhere an answer that has changed is printed below the one before.

use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout_at};

use super::{Ask, page, text};
use crate::door::{Answer, Gateway, json_of, refused};
use crate::exit::{Failure, UNAVAILABLE};
use crate::output;
use crate::sse::{Event, Events};

/// Between two questions, however much happens.
const ASK_EVERY_MIN: Duration = Duration::from_millis(200);
/// Between two attempts to reach a gateway, growing.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// A gateway tells its progress every few seconds; one that tells nothing for so long is left.
const SILENT_FOR: Duration = Duration::from_secs(25);
/// What is told as time left is right to the second.
const DRAW_EVERY: Duration = Duration::from_secs(1);

struct Watch<'a, A> {
    ask: &'a A,
    gateway: &'a Gateway,
    screen: Screen,
    facts: Value,
    revision: Option<u64>,
    /// Up to which revision or event changes have been followed; nothing: from whenever the stream is opened.
    since: Option<String>,
    /// When to ask again.
    due: Option<Instant>,
    asked: Instant,
    /// Why what is shown may be old.
    trouble: Option<String>,
}

enum Screen {
    Terminal,
    /// An answer below the other, as text or as JSON.
    Lines {
        as_json: bool,
    },
}

/// Shows the answer, and again when it changes, until it is interrupted or can't go on.
pub async fn follow<A: Ask>(ask: &A, gateway: Result<Gateway, Failure>, as_json: bool) -> Result<(), Failure> {
    let gateway = &gateway?;
    let Answer { facts, revision } = ask.ask(gateway).await?;
    let screen = if as_json || page::terminal().is_none() { Screen::Lines { as_json } } else { Screen::Terminal };
    let since = revision.map(|revision| revision.to_string());
    let mut watch = Watch { ask, gateway, screen, facts, revision, since, due: None, asked: Instant::now(), trouble: None };
    watch.show(true)?;
    let mut pause = PAUSE_MIN;
    loop {
        let end = match watch.open().await {
            Ok(stream) => {
                pause = PAUSE_MIN;
                watch.follow(stream).await?
            }
            Err(failure) if failure.facts.get("code").is_some_and(|code| code == "COMPACTED") => End::Compacted,
            Err(failure) if failure.code == UNAVAILABLE => {
                watch.trouble = Some(failure.message);
                End::Broken
            }
            Err(failure) => return Err(failure),
        };
        if let End::Compacted = end {
            (watch.since, watch.due) = (None, Some(Instant::now()));
        }
        watch.show(false)?;
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// How a stream ended.
enum End {
    /// It can be opened where it was.
    Broken,
    /// What happened meanwhile is gone.
    Compacted,
}

impl<A: Ask> Watch<'_, A> {
    async fn open(&self) -> Result<Response, Failure> {
        let mut query = vec![("kinds", A::KINDS.join(","))];
        query.extend(self.since.clone().map(|since| ("since", since)));
        let response = self.gateway.send(self.gateway.request(Method::GET, "/v1/events").query(&query)).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let text = response.text().await.map_err(|error| Failure::unavailable(format!("the answer broke off: {error}")))?;
        Err(refused(status, &json_of(status, &text)?))
    }

    async fn follow(&mut self, mut stream: Response) -> Result<End, Failure> {
        let (mut events, mut heard) = (Events::default(), Instant::now());
        let mut draw = interval(DRAW_EVERY);
        draw.set_missed_tick_behavior(MissedTickBehavior::Skip);
        // What went wrong before is over, but for a question that is still open.
        if self.due.is_none() {
            self.trouble = None;
        }
        loop {
            let due = self.due.unwrap_or(heard);
            tokio::select! {
                chunk = timeout_at(heard + SILENT_FOR, stream.chunk()) => {
                    let Ok(Ok(Some(chunk))) = chunk else { return Ok(End::Broken) };
                    heard = Instant::now();
                    for event in events.take(&chunk) {
                        if let Some(end) = self.take(event)? {
                            return Ok(end);
                        }
                    }
                }
                () = sleep_until(due), if self.due.is_some() => self.look().await?,
                _ = draw.tick(), if matches!(self.screen, Screen::Terminal) => self.show(false)?,
            }
        }
    }

    /// What one event asks for.
    fn take(&mut self, event: Event) -> Result<Option<End>, Failure> {
        self.since = event.id.or(self.since.take());
        match event.name.as_deref() {
            Some("change") => {
                let at: Option<u64> = self.since.as_deref().and_then(|since| since.split('.').next()?.parse().ok());
                // What is shown may have it already.
                if self.revision.is_none() || at > self.revision {
                    self.due = self.due.or(Some(Instant::now().max(self.asked + ASK_EVERY_MIN)));
                }
            }
            Some("compacted") => return Ok(Some(End::Compacted)),
            Some("stopping") => return Ok(Some(End::Broken)),
            Some("refused") => return Err(Failure::failed("the token is unknown, expired or revoked by now")),
            _ => {}
        }
        Ok(None)
    }

    /// Asks again.
    async fn look(&mut self) -> Result<(), Failure> {
        self.asked = Instant::now();
        match self.ask.ask(self.gateway).await {
            Ok(Answer { facts, revision }) => {
                (self.due, self.trouble, self.revision) = (None, None, revision);
                let has_changed = facts != self.facts;
                self.facts = facts;
                self.show(has_changed)
            }
            Err(failure) if failure.code == UNAVAILABLE => {
                (self.due, self.trouble) = (Some(Instant::now() + PAUSE_MAX), Some(failure.message));
                self.show(false)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Draws what there is; in lines, only what has changed.
    fn show(&self, has_changed: bool) -> Result<(), Failure> {
        let line = match self.screen {
            Screen::Terminal => self.drawn(),
            Screen::Lines { .. } if !has_changed => return Ok(()),
            Screen::Lines { as_json: true } => self.facts.to_string(),
            Screen::Lines { as_json: false } => text(self.ask, &self.facts),
        };
        // Whoever reads may have seen enough and gone: that is the end, and no failure.
        if output::line(&line) { Ok(()) } else { Err(Failure::new(0, "")) }
    }

    /// The page in place of the one before: each line over the old one, and the rest of the screen cleared.
    fn drawn(&self) -> String {
        let (width, height) = page::terminal().unwrap_or((usize::MAX, usize::MAX));
        let status = match (&self.trouble, self.revision) {
            (Some(trouble), _) => format!("may be old: {}", page::safe(trouble)),
            (None, Some(revision)) => format!("as of revision {revision}; Ctrl-C ends"),
            (None, None) => "Ctrl-C ends".into(),
        };
        let text = text(self.ask, &self.facts);
        let mut lines: Vec<String> = text.lines().map(|line| page::cut_to(line, width)).collect();
        // One for the status, one that the cursor stands on.
        let room = height.saturating_sub(2).max(1);
        if lines.len() > room {
            let hidden = lines.len() - (room - 1);
            lines.truncate(room - 1);
            lines.push(format!("… {hidden} more lines than the terminal has"));
        }
        lines.insert(0, page::cut_to(&status, width));
        let lines: Vec<String> = lines.into_iter().map(|line| format!("{line}\u{1b}[K")).collect();
        format!("\u{1b}[H{}\u{1b}[J", lines.join("\n"))
    }
}
