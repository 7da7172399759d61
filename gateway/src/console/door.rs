//! Who comes in: signing in with a token, the cookie that remembers it, and what every answer tells browsers not to do.
//!
//! The cookie is a [`Pass`], sealed with the key that the gateways share, so that any of them lets in whom another one let in, and
//! none remembers anybody. It holds the hash of the token, which is looked at anew with every request: when that token or its
//! passport is revoked, it is over everywhere within a second.
//!
//! A request that changes something has to come from a page of ours: its `Origin` is the host that it goes to, and its form
//! carries a key that only a page made for this pass can have.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header};
use axum::middleware::Next;
use maud::{Markup, html};
use quorate_domain::Principal;
use quorate_domain::identity::token_hash;
use serde_json::json;

use super::page;
use super::visit::Form;
use crate::call::CallError;
use crate::cluster::now_unix_ms;
use crate::edge;
use crate::limit::{CONSOLE_PASS_MS, TOKEN_BYTES_MAX};
use crate::server::App;

const PASS: &str = "console pass";
const FORM: &str = "console form";
/// Where whoever is signed in begins.
pub const START: &str = "/console";
const SIGN_IN: &str = "/console/sign-in";

/// What the cookie says.
#[derive(Clone, Debug, PartialEq)]
pub struct Pass {
    pub token_hash: String,
    /// Tells apart the passes of one token.
    nonce: u64,
    ends_unix_ms: u64,
}

impl Pass {
    fn new(token: &str) -> Self {
        Self { token_hash: token_hash(token), nonce: rand::random(), ends_unix_ms: now_unix_ms().0 + CONSOLE_PASS_MS }
    }

    fn seal(&self, app: &App) -> String {
        app.services.sessions.seal(PASS, &json!([self.token_hash, self.nonce, self.ends_unix_ms]), self.ends_unix_ms)
    }

    fn open(app: &App, text: &str) -> Option<Self> {
        let content = app.services.sessions.unseal(PASS, text, now_unix_ms().0)?;
        let (token_hash, nonce, ends_unix_ms) = serde_json::from_value(content).ok()?;
        Some(Self { token_hash, nonce, ends_unix_ms })
    }

    /// What a form of a page that is made for this pass carries.
    pub fn form_key(&self, app: &App) -> String {
        app.services.sessions.seal(FORM, &json!(self.nonce), self.ends_unix_ms)
    }

    pub fn is_form_key(&self, app: &App, text: &str) -> bool {
        app.services.sessions.unseal(FORM, text, now_unix_ms().0) == Some(json!(self.nonce))
    }
}

/// The cookie's name is the cluster's own: browsers send the cookies of one port of a host to all its ports.
fn cookie_name(app: &App) -> String {
    let key = blake3::derive_key("quorate 2026 console cookie", &app.settings.session_key);
    format!("quorate_{}", hex::encode(&key[..4]))
}

/// Who is signed in; an error when the cluster can't tell.
pub async fn visitor(app: &Arc<App>, headers: &HeaderMap, deadline: Instant) -> Result<Option<(Pass, Arc<Principal>)>, CallError> {
    let name = cookie_name(app);
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(';'));
    let mut values = cookies.filter_map(|cookie| cookie.trim().split_once('=')).filter(|(found, _)| *found == name).map(|(_, value)| value);
    let Some(pass) = values.find_map(|value| Pass::open(app, value)) else { return Ok(None) };
    let caller = app.tokens.resolve_hash(&app.cluster, &pass.token_hash, deadline).await?;
    Ok(caller.map(|caller| (pass, caller)))
}

/// Sends to the sign-in, which leads back here.
pub fn turn_away(uri: &Uri) -> Response<Body> {
    let here = uri.path_and_query().map_or(START, |here| here.as_str());
    let next: String = form_urlencoded::byte_serialize(here.as_bytes()).collect();
    page::redirect(&if here == START { SIGN_IN.into() } else { format!("{SIGN_IN}?next={next}") })
}

/// Whether a request comes from a page of this very host.
pub fn is_own_origin(app: &App, headers: &HeaderMap, uri: &Uri) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).or(uri.authority().map(|authority| authority.as_str()));
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let (Some(host), Some(origin)) = (host, origin) else { return false };
    let same = origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host));
    // Behind a proxy that goes by another name: what an operator has named.
    same || app.settings.allowed_origins.iter().any(|allowed| allowed.trim_end_matches('/').eq_ignore_ascii_case(origin))
}

// ------------------------------------------------------------------ signing in and out

/// `GET /console/sign-in`.
pub async fn ask(Query(query): Query<Vec<(String, String)>>) -> Response<Body> {
    page::html(StatusCode::OK, sign_in_page(next_of(&query), None))
}

/// `POST /console/sign-in`.
pub async fn sign_in(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let deadline = Instant::now() + app.settings.call_deadline;
    let form = match Form::read(&app, request).await {
        Ok(form) => form,
        Err(refused) => return refused,
    };
    let next = next_of(&form.fields).to_string();
    let token = form.text("token").trim();
    let token = token.strip_prefix("Bearer ").unwrap_or(token).trim();
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        return page::html(
            StatusCode::BAD_REQUEST,
            sign_in_page(&next, Some("Paste the whole token; it begins with `qt_` if Quorate made it.")),
        );
    }
    match app.tokens.resolve(&app.cluster, token, deadline).await {
        Ok(Some(_)) => {
            let mut response = page::redirect(&next);
            set_cookie(&app, &form, &mut response, &Pass::new(token).seal(&app), CONSOLE_PASS_MS / 1_000);
            response
        }
        Ok(None) => {
            let problem = "This token is unknown, expired or revoked. An operator hands out new ones.";
            page::html(StatusCode::UNAUTHORIZED, sign_in_page(&next, Some(problem)))
        }
        Err(error) => {
            let mut response = page::html(StatusCode::SERVICE_UNAVAILABLE, sign_in_page(&next, Some(&error.text())));
            edge::retry_after(&mut response, error.retry_after_ms());
            response
        }
    }
}

/// `POST /console/sign-out`. Needs no form key: it takes nothing away that a sign-in does not bring back.
pub async fn sign_out(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    match Form::read(&app, request).await {
        Err(refused) => refused,
        Ok(form) => {
            let mut response = page::redirect(SIGN_IN);
            set_cookie(&app, &form, &mut response, "", 0);
            response
        }
    }
}

fn set_cookie(app: &App, form: &Form, response: &mut Response<Body>, value: &str, seconds: u64) {
    // Whoever came over TLS, here or up to a proxy, must not be asked for it in the clear.
    let secure = if app.is_tls() || form.is_https { "; Secure" } else { "" };
    let cookie = format!("{}={value}; Path=/console; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}", cookie_name(app));
    // Hex, Base64 and plain words.
    response.headers_mut().insert(header::SET_COOKIE, HeaderValue::from_str(&cookie).expect("a cookie of ours is ASCII"));
}

/// Where to go after the sign-in: a page of the console and nothing else.
fn next_of(query: &[(String, String)]) -> &str {
    let next = query.iter().find(|(name, _)| name == "next").map_or(START, |(_, next)| next.as_str());
    let is_ours = next == START || next.starts_with("/console/") || next.starts_with("/console?");
    let is_plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\') && !next.contains("..");
    if is_ours && is_plain && !next.starts_with(SIGN_IN) { next } else { START }
}

fn sign_in_page(next: &str, problem: Option<&str>) -> Markup {
    page::bare(
        "Sign in",
        html! {
            form.card.sign-in method="post" action=(SIGN_IN) {
                h1 { "Sign in to Quorate" }
                p.quiet { "You act here as the passport that the token stands for." }
                @if let Some(problem) = problem {
                    p.notice.bad role="alert" { (problem) }
                }
                label for="token" { "Token" }
                input #token name="token" type="password" autocomplete="current-password" spellcheck="false"
                    maxlength=(TOKEN_BYTES_MAX) autofocus required;
                input type="hidden" name="next" value=(next);
                button.primary type="submit" { "Sign in" }
                p.quiet {
                    "`quorate dev` prints tokens; elsewhere `quorate token` makes one. You stay signed in for 12 hours, "
                    "or until the token is revoked."
                }
            }
        },
    )
}

// ------------------------------------------------------------------ what browsers must not do

/// Nothing from elsewhere, no script or style inside of a page, no frame around it, nothing kept.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
                      base-uri 'none'; frame-ancestors 'none'";

/// Puts them on every answer of the console.
pub async fn hardened(request: Request, next: Next) -> Response<Body> {
    let mut response = next.run(request).await;
    harden(&mut response);
    response
}

/// Tells a browser what a page of ours never needs.
pub fn harden(response: &mut Response<Body>) {
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-frame-options", "DENY"),
        ("x-content-type-options", "nosniff"),
        // With `no-referrer`, browsers hide the origin of a form too.
        ("referrer-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_to_the_console_and_nowhere_else() {
        let next = |to: &str| next_of(&[("next".into(), to.into())]).to_string();
        assert_eq!(next("/console/work?state=blocked"), "/console/work?state=blocked");
        assert_eq!(next("/console?seen=3"), "/console?seen=3");
        for elsewhere in [
            "https://evil.example",
            "//evil.example",
            "/console.evil",
            "/console/../v1",
            "/console/\\evil",
            "/console/\r\nX: y",
            SIGN_IN,
            "",
        ] {
            assert_eq!(next(elsewhere), START, "{elsewhere:?}");
        }
    }
}
