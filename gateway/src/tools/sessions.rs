//! Sessions: an agent's saved working state, by a name of its own choosing.

use quorate_domain::limit::LIST_DEFAULT;
use quorate_domain::{Revision, session};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};

#[derive(Debug, Serialize, JsonSchema)]
pub struct SessionSaved {
    session_id: String,
    updated_at: String,
    /// Size of the stored state, at four bytes a token.
    total_tokens: u64,
    archived: bool,
    /// Pass it as `expected_revision` to overwrite only what you saw.
    revision: u64,
}

impl From<session::SessionSaved> for SessionSaved {
    fn from(saved: session::SessionSaved) -> Self {
        Self {
            session_id: saved.session_id,
            updated_at: saved.updated_at.to_rfc3339(),
            total_tokens: saved.total_tokens,
            archived: saved.archived,
            revision: saved.revision.0,
        }
    }
}

fn ttl_ms(ttl_seconds: Option<u64>) -> Option<u64> {
    ttl_seconds.map(|seconds| seconds.saturating_mul(1_000))
}

// ------------------------------------------------------------------ get_session

/// Load the working state that you saved under a session's name.
///
/// Sessions belong to the agent that saved them. Answers the state as it was sent, and the revision for a later
/// `save_session` with `expected_revision`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetSession {
    /// The name you gave it.
    session_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SessionView {
    session_id: String,
    state: Map<String, Value>,
    updated_at: String,
    total_tokens: u64,
    archived: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    archive_reason: Option<String>,
    revision: u64,
    /// The passport that saved it.
    actor: String,
}

impl Tool for GetSession {
    const NAME: &'static str = "get_session";
    const TITLE: &'static str = "Load a session";
    const SCOPE: &'static str = "crux-mcp.get_session";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::SESSIONS;
    const IDEMPOTENT: bool = true;
    type Output = SessionView;

    fn example() -> Value {
        json!({ "session_id": "build-42" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<SessionView>, CallError> {
        let (found, served) = cluster.read(ctx, session::GetSession { session_id: self.session_id }).await?;
        let Value::Object(state) = found.state else {
            return Err(CallError::Fault { detail: "a stored session's state is no object".into() });
        };
        let facts = SessionView {
            session_id: found.session_id,
            state,
            updated_at: found.updated_at.to_rfc3339(),
            total_tokens: found.total_tokens,
            archived: found.archived,
            archive_reason: found.archive_reason,
            revision: found.revision.0,
            actor: found.actor,
        };
        Ok(Reply::at(served.revision, facts))
    }
}

// ------------------------------------------------------------------ save_session

/// Save your working state under a name, so that you or a later run can go on from it.
///
/// Replaces what was saved under that name. With `expected_revision` it does so only if nobody saved in between. For the usual
/// fields of a work session, `session_checkpoint` is quicker.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SaveSession {
    /// A name of your choosing; only you see your sessions.
    session_id: String,
    /// Any JSON object, at most 16 KiB; `title` and `summary` are shown to people.
    state: Map<String, Value>,
    /// The session is removed so many seconds after this save; absent: kept.
    #[schemars(range(min = 0))]
    ttl_seconds: Option<u64>,
    /// Save only if the session still has this revision (from `get_session`); 0: only if it does not exist.
    #[schemars(range(min = 0))]
    expected_revision: Option<u64>,
}

impl Tool for SaveSession {
    const NAME: &'static str = "save_session";
    const BEYOND_BUDGET: bool = true;
    const TITLE: &'static str = "Save a session";
    const SCOPE: &'static str = "crux-mcp.save_session";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::SESSIONS;
    const IDEMPOTENT: bool = true;
    type Output = SessionSaved;

    fn example() -> Value {
        json!({ "session_id": "build-42", "state": { "title": "release work" } })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<SessionSaved>, CallError> {
        let command = session::SaveSession {
            session_id: self.session_id,
            state: Value::Object(self.state),
            ttl_ms: ttl_ms(self.ttl_seconds),
            expected_revision: self.expected_revision.map(Revision),
        };
        let (saved, revision) = cluster.propose(ctx, command).await?;
        Ok(Reply::at(revision, saved.into()))
    }
}

// ------------------------------------------------------------------ session_checkpoint

/// Save where your work stands: objective, milestone, decisions, open questions, files, commands, tests and the next step.
///
/// Stores them under `session_id` as `crux.session_checkpoint.v1`, over what was there; read it back with `get_session`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionCheckpoint {
    /// A name of your choosing; only you see your sessions.
    session_id: String,
    /// Tokens (4 bytes of JSON each) that the checkpoint may have; it is refused when it has more.
    #[schemars(range(min = 1))]
    token_budget: u64,
    /// What the work is for.
    objective: Option<String>,
    /// What you are at.
    current_milestone: Option<String>,
    /// What was decided; elements of any type.
    decisions: Option<Vec<Value>>,
    /// What is still open; elements of any type.
    open_questions: Option<Vec<Value>>,
    /// Paths that were changed.
    files_touched: Option<Vec<String>>,
    /// Commands that were run.
    commands_run: Option<Vec<String>>,
    /// How the tests stand; any JSON.
    #[serde(default)]
    test_status: Value,
    /// What to do first when the work goes on.
    next_action: Option<String>,
    /// The checkpoint is removed so many seconds after this save; absent: kept.
    #[schemars(range(min = 0))]
    ttl_seconds: Option<u64>,
}

impl SessionCheckpoint {
    fn state(&self) -> Map<String, Value> {
        let mut state = Map::new();
        state.insert("schema".into(), "crux.session_checkpoint.v1".into());
        let fields = [
            ("objective", json!(self.objective)),
            ("current_milestone", json!(self.current_milestone)),
            ("decisions", json!(self.decisions)),
            ("open_questions", json!(self.open_questions)),
            ("files_touched", json!(self.files_touched)),
            ("commands_run", json!(self.commands_run)),
            ("test_status", self.test_status.clone()),
            ("next_action", json!(self.next_action)),
        ];
        state.extend(fields.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.to_string(), value)));
        state
    }
}

impl Tool for SessionCheckpoint {
    const NAME: &'static str = "session_checkpoint";
    const TITLE: &'static str = "Checkpoint a session";
    const SCOPE: &'static str = "crux-mcp.session_checkpoint";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::SESSIONS;
    const IDEMPOTENT: bool = true;
    type Output = SessionSaved;

    fn example() -> Value {
        json!({ "session_id": "build-42", "token_budget": 500 })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<SessionSaved>, CallError> {
        let state = Value::Object(self.state());
        let tokens = (state.to_string().len() as u64).div_ceil(4);
        if tokens > self.token_budget {
            let problem = format!("the checkpoint has {tokens} tokens, and `token_budget` allows {}", self.token_budget);
            return Err(CallError::arguments(problem, "Shorten it, or allow more."));
        }
        let command =
            session::SaveSession { session_id: self.session_id, state, ttl_ms: ttl_ms(self.ttl_seconds), expected_revision: None };
        let (saved, revision) = cluster.propose(ctx, command).await?;
        Ok(Reply::at(revision, saved.into()))
    }
}

// ------------------------------------------------------------------ list_sessions

/// List the names of your sessions, sorted; archived ones, and what each is called, only on request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListSessions {
    /// True adds archived sessions.
    #[serde(default)]
    include_archived: bool,
    /// Names that begin so.
    session_prefix: Option<String>,
    /// Names of this page: 50 when absent, at most 1,000.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before, with the same `session_prefix` and `include_archived`.
    cursor: Option<String>,
    /// True adds `rows`, with the title of each session.
    #[serde(default)]
    titles: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SessionRow {
    session_id: String,
    /// `title` of the state; else the first of `decisions[0]`, `note`, `context_summary` and `summary` that says something, and at
    /// last the beginning of the name.
    title: String,
    /// True when the state has no `title`.
    untitled: bool,
    archived: bool,
    updated_at: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Sessions {
    sessions: Vec<String>,
    /// The same, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<Vec<SessionRow>>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for ListSessions {
    const NAME: &'static str = "list_sessions";
    const TITLE: &'static str = "List sessions";
    const SCOPE: &'static str = "crux-mcp.list_sessions";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::SESSIONS;
    const IDEMPOTENT: bool = true;
    type Output = Sessions;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Sessions>, CallError> {
        let query = session::ListSessions {
            include_archived: self.include_archived,
            limit: self.limit.unwrap_or(LIST_DEFAULT as u64),
            cursor: self.cursor,
            with_titles: self.titles,
            session_prefix: self.session_prefix,
        };
        let (found, served) = cluster.read(ctx, query).await?;
        let row = |(session_id, row): (&String, session::SessionTitle)| SessionRow {
            session_id: session_id.clone(),
            title: row.title,
            untitled: row.untitled,
            archived: row.archived,
            updated_at: row.updated_at.to_rfc3339(),
        };
        let rows = self.titles.then(|| found.sessions.iter().zip(found.titles).map(row).collect());
        Ok(Reply::at(served.revision, Sessions { sessions: found.sessions, rows, next_cursor: found.next_cursor }))
    }
}

// ------------------------------------------------------------------ delete_session

/// Remove one of your sessions for good. To only hide it, use `archive_session`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteSession {
    /// The name you gave it.
    session_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SessionDeleted {
    deleted: bool,
    session_id: String,
}

impl Tool for DeleteSession {
    const NAME: &'static str = "delete_session";
    const TITLE: &'static str = "Delete a session";
    const SCOPE: &'static str = "crux-mcp.delete_session";
    const EFFECT: Effect = Effect::Destructive;
    const GROUP: &'static str = group::SESSIONS;
    const IDEMPOTENT: bool = true;
    type Output = SessionDeleted;

    fn example() -> Value {
        json!({ "session_id": "build-42" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<SessionDeleted>, CallError> {
        let (done, revision) = cluster.propose(ctx, session::DeleteSession { session_id: self.session_id }).await?;
        Ok(Reply::at(revision, SessionDeleted { deleted: done.deleted, session_id: done.session_id }))
    }
}

// ------------------------------------------------------------------ archive_session, unarchive_session

/// Hide one of your sessions from the plain list; its whole state stays, and `unarchive_session` brings it back.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArchiveSession {
    /// The name you gave it.
    session_id: String,
    /// Why, for later readers.
    reason: Option<String>,
}

impl Tool for ArchiveSession {
    const NAME: &'static str = "archive_session";
    const TITLE: &'static str = "Archive a session";
    const SCOPE: &'static str = "crux-mcp.archive_session";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::SESSIONS;
    const IDEMPOTENT: bool = true;
    type Output = SessionSaved;

    fn example() -> Value {
        json!({ "session_id": "build-42" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<SessionSaved>, CallError> {
        let (saved, revision) = cluster.propose(ctx, session::ArchiveSession { session_id: self.session_id, reason: self.reason }).await?;
        Ok(Reply::at(revision, saved.into()))
    }
}

/// Bring an archived session back into the plain list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnarchiveSession {
    /// The name you gave it.
    session_id: String,
}

impl Tool for UnarchiveSession {
    const NAME: &'static str = "unarchive_session";
    const TITLE: &'static str = "Unarchive a session";
    const SCOPE: &'static str = "crux-mcp.unarchive_session";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::SESSIONS;
    const IDEMPOTENT: bool = true;
    type Output = SessionSaved;

    fn example() -> Value {
        json!({ "session_id": "build-42" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<SessionSaved>, CallError> {
        let (saved, revision) = cluster.propose(ctx, session::UnarchiveSession { session_id: self.session_id }).await?;
        Ok(Reply::at(revision, saved.into()))
    }
}
