//! Artefacts: outputs that an agent parks in the cluster and reads again, whole or in parts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use quorate_domain::{artefact, flag};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::envelope::Envelope;
use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;

/// Bytes that a reply holds as base64 besides its other fields.
const PART_BYTES_MAX: u64 = 20_000;

/// What is known of a parked output.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Artefact {
    /// `art_` and the BLAKE3 hash of the bytes: the same bytes have the same id.
    artefact_id: String,
    mime_type: String,
    /// The tool that made it.
    tool_origin: Nullable<String>,
    size_bytes: u64,
    created_at: String,
    /// Null: it never expires.
    expires_at: Nullable<String>,
}

impl From<artefact::Artefact> for Artefact {
    fn from(found: artefact::Artefact) -> Self {
        Self {
            artefact_id: found.artefact_id,
            mime_type: found.mime_type,
            tool_origin: Nullable(found.tool_origin),
            size_bytes: found.size_bytes,
            created_at: found.created_at.to_rfc3339(),
            expires_at: Nullable(found.expires_at.map(|at| at.to_rfc3339())),
        }
    }
}

// ------------------------------------------------------------------ artefact_put

fn week() -> u64 {
    604_800
}

/// Park an output for later, outside of your context: you get an id, and `artefact_get` gives the bytes back.
///
/// It is yours alone. A quorum of the nodes has the bytes on disk before this answers. The same bytes again renew it, with the MIME
/// type, origin and lifetime of the new call.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtefactPut {
    /// The bytes in base64; a request has at most 1 MiB in all.
    #[schemars(length(min = 1))]
    content_bytes_base64: String,
    /// Any label.
    #[schemars(length(min = 1, max = 512))]
    mime_type: String,
    /// The tool that made it.
    #[schemars(length(min = 1, max = 512))]
    tool_origin: Option<String>,
    /// Seconds until it goes: 7 days by default, at most 90 days; 0 for ever.
    #[serde(default = "week")]
    #[schemars(range(max = 7_776_000))]
    ttl_seconds: u64,
    /// Has no effect: what is stored is never cut.
    #[expect(dead_code, reason = "accepted, as documented, and without effect")]
    token_budget: Option<u64>,
}

impl Tool for ArtefactPut {
    const NAME: &'static str = "artefact_put";
    const TITLE: &'static str = "Park an output";
    const SCOPE: &'static str = "crux-mcp.artefact_put";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::ARTEFACTS;
    const SWITCH: Option<flag::Definition> = Some(flag::ARTEFACTS);
    const IDEMPOTENT: bool = true;
    type Output = Artefact;

    fn example() -> Value {
        json!({ "content_bytes_base64": "aGVsbG8=", "mime_type": "text/plain" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Artefact>, CallError> {
        let Self { content_bytes_base64, mime_type, tool_origin, ttl_seconds, .. } = self;
        let bytes = BASE64.decode(&content_bytes_base64).map_err(|error| {
            CallError::arguments(format!("`content_bytes_base64` is no base64: {error}"), "Encode it with padding and without line breaks.")
        })?;
        let (hash, size_bytes) = (*blake3::hash(&bytes).as_bytes(), bytes.len() as u64);
        if size_bytes > 0 {
            cluster.put_blob(hash, bytes, ctx.deadline).await?;
        }
        let command = artefact::PutArtefact { artefact_id: artefact::artefact_id(&hash), size_bytes, mime_type, tool_origin, ttl_seconds };
        let (put, revision) = cluster.propose(ctx, command).await?;
        Ok(Reply::at(revision, put.into()))
    }
}

// ------------------------------------------------------------------ artefact_get

/// Give a parked output back: the whole of it while it fits a reply (20,000 bytes), else in parts by `offset` and `limit_bytes`.
///
/// Bytes are never cut without being asked: one that does not fit is refused with its size. Another passport's is refused with
/// `CAPABILITY_DENIED`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtefactGet {
    /// `art_` and 64 hex digits.
    artefact_id: String,
    /// Tokens (4 bytes each) that the content may have; what has more is refused with its size.
    token_budget: Option<u64>,
    /// Where the part begins, in bytes. Given, a part is answered, and `next_offset` where there is more.
    offset: Option<u64>,
    /// Bytes of the part, at most 20,000.
    #[schemars(range(min = 1, max = 20_000))]
    limit_bytes: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ArtefactContent {
    #[serde(flatten)]
    artefact: Artefact,
    content_base64: String,
    /// Where the content begins, when a part was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    /// Pass it as `offset` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<u64>,
}

impl Tool for ArtefactGet {
    const NAME: &'static str = "artefact_get";
    const TITLE: &'static str = "Get a parked output";
    const SCOPE: &'static str = "crux-mcp.artefact_get";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::ARTEFACTS;
    const SWITCH: Option<flag::Definition> = Some(flag::ARTEFACTS);
    const IDEMPOTENT: bool = true;
    type Output = ArtefactContent;

    fn example() -> Value {
        json!({ "artefact_id": format!("art_{}", "0".repeat(64)) })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<ArtefactContent>, CallError> {
        let Self { artefact_id, token_budget, offset, limit_bytes } = self;
        let (found, served) = cluster.read(ctx, artefact::GetArtefact { artefact_id: artefact_id.clone() }).await?;
        let size = found.size_bytes;
        let is_part = offset.is_some() || limit_bytes.is_some();
        let begin = offset.unwrap_or(0);
        if begin > size {
            return Err(CallError::arguments(format!("`offset` is {begin}, and the artefact has {size} bytes"), "Begin within it."));
        }
        let wanted = if is_part { limit_bytes.unwrap_or(PART_BYTES_MAX).min(size - begin) } else { size };
        if let Some(budget) = token_budget.filter(|budget| wanted.div_ceil(4) > *budget) {
            let problem = format!("`token_budget` is {budget}, and these {wanted} bytes of {size} are {} tokens", wanted.div_ceil(4));
            return Err(CallError::arguments(problem, "Raise it, leave it out, or read parts with `offset` and `limit_bytes`."));
        }
        if wanted > PART_BYTES_MAX {
            let problem = format!("the artefact has {size} bytes, and a reply holds at most {PART_BYTES_MAX}");
            return Err(CallError::arguments(problem, "Read it in parts with `offset` and `limit_bytes`."));
        }
        // The domain gave it out, so it is an id.
        let hash = artefact::blob_of(&artefact_id).ok_or_else(|| CallError::Fault { detail: "an artefact's id is no hash".into() })?;
        let bytes = cluster.get_blob(hash, begin, wanted, ctx.deadline).await?;
        let end = begin + wanted;
        let content = ArtefactContent {
            artefact: found.into(),
            content_base64: BASE64.encode(bytes),
            offset: is_part.then_some(begin),
            next_offset: (end < size).then_some(end),
        };
        Ok(Reply::at(served.revision, content))
    }
}

// ------------------------------------------------------------------ artefact_list

fn twenty() -> u64 {
    20
}

/// List what you parked and has not expired, newest first.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtefactList {
    /// How many at the most, 1 to 1,000.
    #[serde(default = "twenty")]
    top_k: u64,
    /// Looked for in MIME type and origin.
    #[schemars(length(min = 1, max = 512))]
    scope: Option<String>,
    /// Tokens (4 bytes each) that the rows may have; whole rows are left for the next page.
    token_budget: Option<u64>,
    /// `next_cursor` of the reply before, with the same `scope`.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Artefacts {
    artefacts: Vec<Artefact>,
    /// How many this reply has.
    count: u64,
    /// Why they end although there are more: `top_k`, `token_budget`, `reply_bytes` or `scan_limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// Its `memories_used` are the ids of the artefacts that were shown.
    envelope: Envelope<String>,
}

impl Tool for ArtefactList {
    const NAME: &'static str = "artefact_list";
    const TITLE: &'static str = "List parked outputs";
    const SCOPE: &'static str = "crux-mcp.artefact_list";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::ARTEFACTS;
    const SWITCH: Option<flag::Definition> = Some(flag::ARTEFACTS);
    const IDEMPOTENT: bool = true;
    type Output = Artefacts;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Artefacts>, CallError> {
        let Self { top_k, scope, token_budget, cursor } = self;
        let (found, served) = cluster.read(ctx, artefact::ListArtefacts { limit: top_k, scope, token_budget, cursor }).await?;
        let artefacts: Vec<Artefact> = found.artefacts.into_iter().map(Into::into).collect();
        let shown = artefacts.iter().map(|artefact| artefact.artefact_id.clone()).collect();
        let listed = Artefacts {
            count: artefacts.len() as u64,
            envelope: Envelope::of_read(ctx, Self::SCOPE, "tool_dispatch", shown)?,
            artefacts,
            truncated: found.truncated,
            next_cursor: found.next_cursor,
        };
        Ok(Reply::at(served.revision, listed))
    }
}
