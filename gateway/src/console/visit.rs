//! One request of somebody who is signed in: what it asks the cluster, and what it does there.
//!
//! Reads may be a few seconds old, so that followers answer them by themselves and the leader is left alone. While no leader is
//! known they may be a minute old, and the page says so. A page that comes after an act, or after a change that the event stream
//! told of, names that revision (`?seen=`), and is no older.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{Response, StatusCode, Uri, header};
use quorate_domain::{CommandKind, Principal, QueryKind, Revision};
use serde_json::Value;

use super::door::{self, Pass};
use super::page::{self, Page};
use crate::call::{CallContext, CallError};
use crate::cluster::Consistency;
use crate::edge;
use crate::events;
use crate::limit::{CONSOLE_ASKED_FOR, CONSOLE_READ_WITHIN, CONSOLE_STALE_MS, STANDING_STALE_MS_MAX};
use crate::plans;
use crate::registry::{Answer, Tool};
use crate::server::App;
use crate::tools::work::ListWork;

type Pairs = Vec<(String, String)>;

/// A request, and who makes it.
pub struct Visit {
    pub app: Arc<App>,
    pub caller: Arc<Principal>,
    pub pass: Pass,
    pub uri: Uri,
    query: Pairs,
    /// The oldest revision that a part of the page was read at.
    revision: AtomicU64,
    /// How old the oldest part may be.
    age_ms: AtomicU64,
    /// What is fresh was asked for in vain: the other parts of the page need not wait for it too.
    is_late: AtomicBool,
}

impl FromRequestParts<Arc<App>> for Visit {
    type Rejection = Response<Body>;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Self::Rejection> {
        let deadline = Instant::now() + CONSOLE_READ_WITHIN;
        let (pass, caller) = match door::visitor(app, &parts.headers, deadline).await {
            Ok(Some(visitor)) => visitor,
            Ok(None) => return Err(door::turn_away(&parts.uri)),
            Err(error) => return Err(page::trouble_bare(&error)),
        };
        let query = Query::<Pairs>::try_from_uri(&parts.uri).map(|Query(pairs)| pairs).unwrap_or_default();
        let (uri, revision, age_ms) = (parts.uri.clone(), AtomicU64::new(u64::MAX), AtomicU64::new(0));
        Ok(Self { app: app.clone(), caller, pass, uri, query, revision, age_ms, is_late: AtomicBool::new(false) })
    }
}

impl Visit {
    /// A parameter of the address that is there and not empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(found, _)| found == name).map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }

    /// The same as text of its own, as queries take it.
    pub fn owned(&self, name: &str) -> Option<String> {
        self.text(name).map(String::from)
    }

    /// This address with one parameter set; what belongs to one moment is left out.
    pub fn with(&self, name: &str, value: &str) -> String {
        let kept = self.query.iter().filter(|(found, _)| found != name && found != "seen" && found != "said");
        let mut pairs = form_urlencoded::Serializer::new(String::new());
        kept.for_each(|(name, value)| {
            pairs.append_pair(name, value);
        });
        format!("{}?{}", self.uri.path(), pairs.append_pair(name, value).finish())
    }

    pub fn may<T: Tool>(&self) -> bool {
        T::SCOPE.is_empty() || self.caller.may(T::SCOPE)
    }

    /// What a tool asks the cluster, for whoever may call that tool.
    pub async fn ask<T: Tool, Q: QueryKind + Clone>(&self, query: Q) -> Result<Q::Output, CallError> {
        if !self.may::<T>() {
            return Err(CallError::MissingScope { scope: T::SCOPE.into() });
        }
        self.read(query).await
    }

    /// The same for what no tool asks; the query itself says who may.
    pub async fn read<Q: QueryKind + Clone>(&self, query: Q) -> Result<Q::Output, CallError> {
        let (now, caller, cluster) = (Instant::now(), &self.caller, &self.app.cluster);
        let fresh = match self.text("seen").and_then(|seen| seen.parse().ok()) {
            Some(seen) => Consistency::AtLeast(Revision(seen)),
            None => Consistency::Stale { max_age_ms: CONSOLE_STALE_MS },
        };
        let old = Consistency::Stale { max_age_ms: STANDING_STALE_MS_MAX };
        let first = if self.is_late.load(Relaxed) { None } else { Some(fresh) };
        let asked = match first {
            Some(fresh) => cluster.read_as(caller, query.clone(), fresh, now + CONSOLE_ASKED_FOR).await,
            None => cluster.read_as(caller, query.clone(), old, now + CONSOLE_READ_WITHIN).await,
        };
        let (found, served) = match asked {
            Err(CallError::Unreadable { .. }) if first.is_some() => {
                self.is_late.store(true, Relaxed);
                cluster.read_as(caller, query, old, now + CONSOLE_READ_WITHIN).await?
            }
            asked => asked?,
        };
        self.revision.fetch_min(served.revision.0, Relaxed);
        self.age_ms.fetch_max(served.age_ms, Relaxed);
        Ok(found)
    }

    /// The plans of the team, as `list_work` shows them; none where this gateway reads none for it.
    pub async fn plans(&self) -> Result<Option<plans::Rows>, CallError> {
        let plans = &self.app.services.plans;
        if !plans.are_for(&self.caller) {
            return Ok(None);
        }
        let ask = |query| async move { self.ask::<ListWork, _>(query).await.map(|told| (told, Revision(0))) };
        plans.rows(&self.caller, "", None, ask).await.map(Some)
    }

    /// Runs a tool, as whoever is signed in. `once` names the intent: the same form sent twice has one effect.
    pub async fn call<T: Tool>(&self, arguments: Value, once: Option<String>) -> Result<Answer, CallError> {
        let entry = self.app.tools.find(T::NAME).cloned().ok_or_else(|| CallError::Fault { detail: format!("no tool `{}`", T::NAME) })?;
        self.app.call(&entry, arguments, self.context(once)).await
    }

    /// Decides a command for which there is no tool; the command itself says who may.
    pub async fn propose<C: CommandKind>(&self, command: C, once: Option<String>) -> Result<(C::Output, Revision), CallError> {
        let _permit = self.app.permit()?;
        self.app.cluster.propose(&self.context(once), command).await
    }

    pub fn context(&self, idempotency_key: Option<String>) -> CallContext {
        let deadline = Instant::now() + self.app.settings.call_deadline;
        CallContext { idempotency_key, ..CallContext::new(Some(self.caller.clone()), deadline, self.app.services.clone()) }
    }

    /// What the page as a whole was read at, if anything was.
    pub fn revision(&self) -> Option<u64> {
        Some(self.revision.load(Relaxed)).filter(|revision| *revision != u64::MAX)
    }

    pub fn age(&self) -> Duration {
        Duration::from_millis(self.age_ms.load(Relaxed))
    }

    /// The answer: a page, or what went wrong as one.
    pub fn show(&self, made: Result<Page, CallError>) -> Response<Body> {
        match made {
            Ok(made) => page::html(StatusCode::OK, page::whole(self, made)),
            Err(error) => {
                let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let mut response = page::html(status, page::whole(self, page::trouble(&error)));
                edge::retry_after(&mut response, error.retry_after_ms());
                response
            }
        }
    }

    /// The answer to an act: to where its effect shows, or what went wrong.
    pub fn done(&self, done: Result<Revision, CallError>, to: &str, said: &str) -> Response<Body> {
        match done {
            Ok(revision) => page::redirect(&format!("{to}{}seen={revision}&said={said}", if to.contains('?') { '&' } else { '?' })),
            Err(error) => self.show(Err(error)),
        }
    }
}

// ------------------------------------------------------------------ forms

/// A form that a page of ours sent, its origin checked.
pub struct Form {
    pub fields: Pairs,
    /// Whether the page came over TLS, as its browser sees it.
    pub is_https: bool,
}

impl Form {
    pub async fn read(app: &Arc<App>, request: Request) -> Result<Self, Response<Body>> {
        let (parts, body) = request.into_parts();
        if !door::is_own_origin(app, &parts.headers, &parts.uri) {
            return Err(page::refused(
                StatusCode::FORBIDDEN,
                "This form was not sent by a page of this console. Open the console and try again.",
            ));
        }
        let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.to_ascii_lowercase().starts_with("application/x-www-form-urlencoded") {
            return Err(page::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "This is no form of the console."));
        }
        let body =
            edge::read_body(body, app.settings.patience.body).await.map_err(|error| page::refused(error.status(), &error.to_string()))?;
        let fields = form_urlencoded::parse(&body).into_owned().collect();
        let origin = parts.headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
        Ok(Self { fields, is_https: origin.is_some_and(|origin| origin.starts_with("https://")) })
    }

    pub fn text(&self, name: &str) -> &str {
        self.fields.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }

    /// What somebody wrote into a field, unless it is blank.
    pub fn note(&self, name: &str) -> Option<String> {
        // Browsers send line breaks as two characters.
        Some(self.text(name).replace("\r\n", "\n").trim().to_string()).filter(|note| !note.is_empty())
    }

    /// The name of the intent, told apart by what was pressed.
    pub fn once(&self, what: &str) -> Option<String> {
        Some(format!("console-{}-{what}", self.text("once")))
    }
}

/// A form, and who sent it: of a page that was made for the same pass.
pub struct Act {
    pub visit: Visit,
    pub form: Form,
}

impl FromRequest<Arc<App>> for Act {
    type Rejection = Response<Body>;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Self::Rejection> {
        let (mut parts, body) = request.into_parts();
        let visit = Visit::from_request_parts(&mut parts, app).await?;
        let form = Form::read(app, Request::from_parts(parts, body)).await?;
        if !visit.pass.is_form_key(app, form.text("key")) {
            return Err(page::refused(
                StatusCode::FORBIDDEN,
                "This form belongs to another sign-in. Go back, load the page again, and repeat what you did.",
            ));
        }
        Ok(Self { visit, form })
    }
}

// ------------------------------------------------------------------ the stream

/// `GET /console/stream?since=&kinds=`: the events of `/v1/events`, for whoever is signed in.
pub async fn stream(visit: Visit, request: Request) -> Response<Body> {
    let deadline = Instant::now() + visit.app.settings.call_deadline;
    let Visit { app, caller, pass, query, .. } = visit;
    events::answer(&app, &query, request.headers(), Some(caller), pass.token_hash, deadline).await
}
