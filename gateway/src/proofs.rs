//! Receipts and the log over HTTP, in the forms in which they are saved and verified without a server.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use quorate_domain::key_ring::{Cosigner, ListReceiptKeys, ReceiptKeys};
use quorate_domain::limit::LIST_DEFAULT;
use quorate_domain::receipt::{GetLogHead, ListReceipts, ProveConsistency, ProveInclusion, ProveReceipt};
use quorate_domain::refusal::shown;
use quorate_domain::{QueryKind, Revision};
use quorate_proof::file::{self, ConsistencyFile, HeadFile, InclusionFile, ReceiptFile};
use quorate_proof::heads::CosignedHeadFile;
use quorate_proof::note;
use quorate_proof::ring::{self, Keys};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::call::{CallContext, CallError};
use crate::cluster::Consistency;
use crate::edge;
use crate::http::{REVISION, get_deadline, identify, refusal};
use crate::registry::Reply;
use crate::rest::{self, Page};
use crate::server::App;
use crate::tools::receipts::SCOPE;

/// `GET /v1/receipts?limit=&cursor=`: what proves what, the newest first.
pub async fn list(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(app, request, &[SCOPE], |ctx, Page { limit, cursor }: Page| async move {
        let (found, served) = cluster.read(&ctx, ListReceipts { limit: limit.unwrap_or(LIST_DEFAULT as u64), cursor }).await?;
        let receipts = found.receipts.into_iter().map(|row| Receipt {
            receipt_id: row.receipt_id,
            kind: row.kind,
            seq: row.seq,
            made_at: row.made_at.to_rfc3339(),
            signer_passport: row.signer_passport,
        });
        Ok(Reply::at(served.revision, Receipts { receipts: receipts.collect(), size: found.size, next_cursor: found.next_cursor }))
    })
    .await
}

#[derive(Serialize, JsonSchema)]
pub struct Receipts {
    receipts: Vec<Receipt>,
    /// How many there are in all.
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub struct Receipt {
    receipt_id: String,
    /// What it proves, where its body says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// Its number in the log.
    seq: u64,
    made_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    signer_passport: Option<String>,
}

/// What a parameter of the proofs means.
pub fn about(name: &str) -> &'static str {
    match name {
        "size" => "How many receipts the head covers; the newest when absent.",
        "seq" => "The receipt's number in the log.",
        "from" => "How many receipts the earlier head covers.",
        "to" => "How many the later one covers; the newest when absent.",
        COSIGNERS => "Nodes that have to have signed it; a majority when absent.",
        _ => "Answers as of this revision or a later one, from any node.",
    }
}

type Pairs = [(String, String)];

/// `GET /v1/receipts/{id}?size=`: a receipt with its proof, as `quorate verify` reads it.
pub async fn receipt(app: &Arc<App>, receipt_id: String, query: &Pairs, headers: &HeaderMap) -> Response<Body> {
    let ask = |numbers: Numbers| Ok(ProveReceipt { receipt_id, size: numbers.get("size") });
    serve(app, headers, query, &["size"], ask, |found, keys| ReceiptFile::of(found, keys)).await
}

/// `GET /v1/log/head?size=`: the newest head of the caller's log, or an earlier one.
pub async fn head(app: &Arc<App>, query: &Pairs, headers: &HeaderMap) -> Response<Body> {
    serve(app, headers, query, &["size"], |numbers| Ok(GetLogHead { size: numbers.get("size") }), |found, keys| HeadFile::of(found, keys))
        .await
}

/// `GET /v1/log/proof/inclusion?seq=&size=`: that receipt number `seq` stands in the log.
pub async fn inclusion(app: &Arc<App>, query: &Pairs, headers: &HeaderMap) -> Response<Body> {
    let ask = |numbers: Numbers| Ok(ProveInclusion { seq: numbers.needed("seq")?, size: numbers.get("size") });
    serve(app, headers, query, &["seq", "size"], ask, |found, keys| InclusionFile::of(found, keys)).await
}

/// `GET /v1/log/proof/consistency?from=&to=`: that the head of `to` receipts continues the head of `from`.
pub async fn consistency(app: &Arc<App>, query: &Pairs, headers: &HeaderMap) -> Response<Body> {
    let ask = |numbers: Numbers| Ok(ProveConsistency { from: numbers.needed("from")?, to: numbers.get("to") });
    serve(app, headers, query, &["from", "to"], ask, |found, keys| ConsistencyFile::of(found, keys)).await
}

/// `GET /v1/log/keys`: the public keys that receipts and heads were ever signed with, how they followed each other, and those of
/// the nodes that cosign: to compare a saved file's with.
pub async fn keys(app: &Arc<App>, query: &Pairs, headers: &HeaderMap) -> Response<Body> {
    serve(app, headers, query, &[], |_| Ok(ListReceiptKeys {}), |ring: ReceiptKeys, _: &Keys| Ok(show_ring(&ring))).await
}

/// The ring as `quorate verify --ring` reads it, with times as people read them, and keys as note tools take them.
fn show_ring(ring: &ReceiptKeys) -> Value {
    let mut shown = json!(ring);
    let beside = |rows: &mut Value, n: usize, name: &str, value: String| rows[n][name] = value.into();
    for (n, key) in ring.keys.iter().enumerate() {
        beside(&mut shown["keys"], n, "added_at", key.added_at.to_rfc3339());
    }
    for (n, cosigner) in ring.cosigners.iter().enumerate() {
        beside(&mut shown["cosigners"], n, "added_at", cosigner.added_at.to_rfc3339());
        let key = ring::public(&cosigner.public_key).map(|key| note::cosigner_key(&cosigner.name, &key));
        beside(&mut shown["cosigners"], n, "verifier_key", key.unwrap_or_default());
    }
    shown
}

const COSIGNERS: &str = "cosigners";

/// `GET /v1/log/cosigned?cosigners=`: the newest head with the cosignatures of so many nodes at least, by default of a majority.
pub async fn cosigned(app: &Arc<App>, query: &Pairs, headers: &HeaderMap) -> Response<Body> {
    answer_cosigned(app, query, headers, |made, revision| edge_answer(edge::json_response(StatusCode::OK, file::text(made)), revision))
        .await
}

/// `GET /v1/log/checkpoint?cosigners=`: the same as the bare note, as witnesses and monitors of logs read it.
pub async fn checkpoint(app: &Arc<App>, query: &Pairs, headers: &HeaderMap) -> Response<Body> {
    answer_cosigned(app, query, headers, |made, revision| {
        let mut response = Response::new(Body::from(made.head.clone()));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        edge_answer(response, revision)
    })
    .await
}

fn edge_answer(mut response: Response<Body>, revision: Revision) -> Response<Body> {
    response.headers_mut().insert(REVISION, HeaderValue::from(revision.0));
    response
}

async fn answer_cosigned(
    app: &Arc<App>,
    query: &Pairs,
    headers: &HeaderMap,
    answer: impl FnOnce(&CosignedHeadFile, Revision) -> Response<Body>,
) -> Response<Body> {
    let deadline = get_deadline(app);
    let caller = match identify(app, headers, deadline).await {
        Ok(caller) => caller,
        Err(refused) => return refused,
    };
    let ctx = CallContext::new(caller, deadline, app.services.clone());
    match cosign(app, &ctx, query).await {
        Ok((made, revision)) => answer(&made, revision),
        Err(error) => refusal(&error),
    }
}

async fn cosign(app: &Arc<App>, ctx: &CallContext, query: &Pairs) -> Result<(CosignedHeadFile, Revision), CallError> {
    let caller = ctx.principal()?;
    if !caller.may(SCOPE) {
        return Err(CallError::MissingScope { scope: SCOPE.into() });
    }
    let numbers = Numbers::of(query, &[COSIGNERS])?;
    let consistency = numbers.get(AT_LEAST).map_or(Consistency::Linearizable, |revision| Consistency::AtLeast(Revision(revision)));
    let (head, served) = app.cluster.read_as(caller, GetLogHead { size: None }, consistency, ctx.deadline).await?;
    let at_least = Consistency::AtLeast(served.revision);
    let (ring, _) = app.cluster.read_as(caller, ListReceiptKeys {}, at_least, ctx.deadline).await?;
    let cosigners: Keys = ring.cosigners.iter().filter_map(known).collect();
    let fault = |detail: String| CallError::Fault { detail };
    let note = head.note.clone().ok_or_else(|| fault("the node that served the head did not sign it".into()))?;
    let mut answers = app.cluster.cosign(caller, &note, served.revision, ctx.deadline).await;
    let wanted = numbers.get(COSIGNERS).unwrap_or(answers.len() as u64 / 2 + 1);

    let (text, _) = note::split(&note).map_err(fault)?;
    let is_known = |line: &str| cosigners.iter().any(|(name, key)| note::open_cosignature(line.trim_end(), text, name, key).is_ok());
    let unknown = || "it cosigned with a key that the ring does not hold: an operator adds it with `quorate key enroll`".to_string();
    for (_, answer) in &mut answers {
        if answer.as_ref().is_ok_and(|line| !is_known(line)) {
            *answer = Err(unknown());
        }
    }
    let (lines, without): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(_, answer)| answer.is_ok());
    let lines: Vec<String> = lines.into_iter().filter_map(|(_, line)| line.ok()).collect();
    if (lines.len() as u64) < wanted {
        let why: Vec<String> =
            without.iter().filter_map(|(address, answer)| Some(format!("{address}: {}", answer.as_ref().err()?))).collect();
        let detail = format!("{} of {wanted} nodes have cosigned the head; {}", lines.len(), why.join("; "));
        return Err(CallError::Unreadable { detail, retry_after_ms: 1_000 });
    }
    let keys = &ctx.services.receipt_keys;
    let made = match CosignedHeadFile::of(head.clone(), &keys.known(), &lines, &cosigners) {
        Ok(made) => made,
        Err(_) => {
            let keys = keys.look(&app.cluster, caller, Some(served.revision), ctx.deadline).await?;
            CosignedHeadFile::of(head, &keys, &lines, &cosigners).map_err(fault)?
        }
    };
    Ok((made, served.revision))
}

fn known(cosigner: &Cosigner) -> Option<(String, ed25519_dalek::VerifyingKey)> {
    Some((cosigner.name.clone(), ring::public(&cosigner.public_key)?))
}

/// Every address takes it: the answer is not older than that revision, and a node that has come so far need not ask the others.
const AT_LEAST: &str = "at_least";

async fn serve<Q: QueryKind, F: Serialize>(
    app: &Arc<App>,
    headers: &HeaderMap,
    query: &Pairs,
    names: &[&str],
    ask: impl FnOnce(Numbers) -> Result<Q, CallError>,
    file_of: impl Fn(Q::Output, &Keys) -> Result<F, String>,
) -> Response<Body>
where
    Q::Output: Clone,
{
    let deadline = get_deadline(app);
    let caller = match identify(app, headers, deadline).await {
        Ok(caller) => caller,
        Err(refused) => return refused,
    };
    let ctx = CallContext::new(caller, deadline, app.services.clone());
    match find(app, &ctx, query, names, ask, file_of).await {
        Ok((text, revision)) => {
            let mut response = edge::json_response(StatusCode::OK, text);
            response.headers_mut().insert(REVISION, HeaderValue::from(revision.0));
            response
        }
        Err(error) => refusal(&error),
    }
}

async fn find<Q: QueryKind, F: Serialize>(
    app: &Arc<App>,
    ctx: &CallContext,
    query: &Pairs,
    names: &[&str],
    ask: impl FnOnce(Numbers) -> Result<Q, CallError>,
    file_of: impl Fn(Q::Output, &Keys) -> Result<F, String>,
) -> Result<(String, Revision), CallError>
where
    Q::Output: Clone,
{
    let caller = ctx.principal()?;
    if !caller.may(SCOPE) {
        return Err(CallError::MissingScope { scope: SCOPE.into() });
    }
    let numbers = Numbers::of(query, names)?;
    let consistency = numbers.get(AT_LEAST).map_or(Consistency::Linearizable, |revision| Consistency::AtLeast(Revision(revision)));
    let (found, served) = app.cluster.read_as(caller, ask(numbers)?, consistency, ctx.deadline).await?;
    let keys = &ctx.services.receipt_keys;
    let made = match file_of(found.clone(), &keys.known()) {
        Ok(made) => made,
        // Maybe there was a rotation.
        Err(_) => {
            let keys = keys.look(&app.cluster, caller, Some(served.revision), ctx.deadline).await?;
            file_of(found, &keys).map_err(|detail| CallError::Fault { detail })?
        }
    };
    Ok((file::text(&made), served.revision))
}

/// The parameters of a request, which are numbers all.
struct Numbers(BTreeMap<String, u64>);

impl Numbers {
    fn of(query: &Pairs, names: &[&str]) -> Result<Self, CallError> {
        let known = || format!("The parameters are `{}`.", names.iter().chain(&[AT_LEAST]).copied().collect::<Vec<_>>().join("`, `"));
        let mut numbers = BTreeMap::new();
        for (name, value) in query {
            if !names.contains(&name.as_str()) && name != AT_LEAST {
                return Err(CallError::arguments(format!("`{}` is unknown", shown(name)), known()));
            }
            let number = value.parse().map_err(|_| CallError::arguments(format!("`{name}` is a number, 0 or more"), known()))?;
            if numbers.insert(name.clone(), number).is_some() {
                return Err(CallError::arguments(format!("`{name}` is given twice"), known()));
            }
        }
        Ok(Self(numbers))
    }

    fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    fn needed(&self, name: &str) -> Result<u64, CallError> {
        self.get(name).ok_or_else(|| CallError::arguments(format!("`{name}` is missing"), format!("Add `?{name}=`.")))
    }
}
