//! The transport of 2024-11-05, for clients that never learnt another one: a stream that stays open, and an address of its own
//! to send messages to, whose answers come on the stream.
//!
//! Unlike everything else here, it binds a client to the gateway that has its stream: a message that reaches another one is
//! refused, and the client opens a new stream. A call says nothing before it is done, and asks nothing.

use axum::http::{HeaderMap, Response, StatusCode};

use super::*;
use crate::limit::KEEP_ALIVE_EVERY;
use crate::server::stopped;
use crate::sse::{Frame, KEEP_ALIVE, Reader};

/// The revision that came with this transport.
const PROTOCOL: &str = "2024-11-05";

/// `GET /sse`.
pub async fn open(app: &Arc<App>, listing: &Arc<Listing>, headers: &HeaderMap) -> Response<Body> {
    let deadline = Instant::now() + app.settings.call_deadline;
    let caller = match identify(app, listing, headers, deadline).await {
        Ok(Some(caller)) => caller,
        Ok(None) => return crate::http::refusal(&CallError::Unauthenticated),
        Err(refused) => return refused.into_response(),
    };
    let permit = match app.stream_permit() {
        Ok(permit) => permit,
        Err(error) => return crate::http::refusal(&error),
    };
    let session = app.services.sessions.issue(PROTOCOL, Some(&caller), Vec::new(), now_unix_ms().0);
    let (reader, response) = Reader::new();
    app.live.keep_reader(&session, reader.clone());
    let (app, listing, headers) = (app.clone(), listing.clone(), headers.clone());
    tokio::spawn(async move {
        let _permit = permit;
        let mut stopping = app.stopping();
        let mut next = Frame { event: Some("endpoint"), data: &format!("/sse/message?session={session}"), ..Frame::default() }.text();
        while reader.send(next).await.is_ok() {
            tokio::select! {
                () = reader.gone() => break,
                // The stream ends with the last answer that is still to come.
                () = stopped(&mut stopping) => break,
                () = tokio::time::sleep(KEEP_ALIVE_EVERY) => next = KEEP_ALIVE.into(),
            }
            let known = identify(&app, &listing, &headers, Instant::now() + app.settings.call_deadline).await;
            if matches!(known, Err(refused) if refused.status == StatusCode::UNAUTHORIZED) {
                break;
            }
        }
        app.live.forget_reader(&session);
    });
    response
}

/// `POST /sse/message?session=`: taken at once; what there is to answer comes on the stream.
pub async fn message(app: &Arc<App>, listing: &Arc<Listing>, session: &str, request: Request<Body>) -> Response<Body> {
    let deadline = Instant::now() + app.settings.call_deadline;
    let (mut parts, body) = request.into_parts();
    let caller = match identify(app, listing, &parts.headers, deadline).await {
        Ok(caller) => caller,
        Err(refused) => return refused.into_response(),
    };
    let is_theirs = app.services.sessions.read(session, now_unix_ms().0).is_some_and(|known| known.is_of(caller.as_deref()));
    let (true, Some(reader), Ok(id)) = (is_theirs, app.live.reader(session), HeaderValue::from_str(session)) else {
        let message = "this stream is unknown, over, another caller's, or at another gateway: open a new one with `GET /sse`";
        return Outgoing::error(StatusCode::NOT_FOUND, &Value::Null, SESSION_NOT_FOUND, message, None).into_response();
    };
    let body = match edge::read_body(body, app.settings.patience.body).await {
        Ok(body) => body,
        Err(error) => return unread(&error).into_response(),
    };
    parts.headers.insert(SESSION_HEADER, id);
    // There is one stream, and its revision is known: neither another stream nor another era has a place here.
    parts.headers.remove(axum::http::header::ACCEPT);
    parts.headers.remove(VERSION_HEADER);
    let (app, listing) = (app.clone(), listing.clone());
    tokio::spawn(async move {
        let answer = answer(&app, &listing, Request::from_parts(parts, Body::from(body))).await;
        if !answer.body.is_empty() {
            // A client that closed its stream wants no answer.
            let _ = reader.send(Frame { event: Some("message"), data: &answer.body, ..Frame::default() }.text()).await;
        }
    });
    Outgoing::accepted().into_response()
}
