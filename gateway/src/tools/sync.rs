//! Exchange of the team's shared facts with another cluster.

use std::time::Duration;

use quorate_domain::fact::sync::{ListSyncConflicts, Promoted};
use quorate_domain::identity::check_name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;
use crate::sync::client::{Fault, Remote};
use crate::sync::{self, Room, Wanted};

/// How long a look at how things stand waits for the other cluster: hooks ask for it when a session starts.
const PROBE_WITHIN: Duration = Duration::from_secs(2);
/// Conflicts that a reply shows at the most.
const CONFLICTS_SHOWN: u64 = 20;

/// A name that none can have is refused before it is asked whether there is anybody to ask for it.
fn check_tenant(tenant: Option<&str>) -> Result<(), CallError> {
    let refusal = tenant.and_then(|tenant| check_name("tenant_id", tenant));
    refusal.map_or(Ok(()), |refusal| Err(CallError::Refused(refusal)))
}

/// The two differ, and each cluster keeps its own.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Conflict {
    entity: String,
    key: String,
    /// The other cluster's version.
    remote_fact_id: String,
    /// The version here; null when it was deleted, and then the next pull takes theirs.
    local_fact_id: Nullable<String>,
}

async fn conflicts(ctx: &CallContext, cluster: &Cluster, remote: &Remote) -> Result<Vec<Conflict>, CallError> {
    let list = ListSyncConflicts { remote: remote.name.clone(), after: None, limit: CONFLICTS_SHOWN };
    let (listed, _) = cluster.read(ctx, list).await?;
    let mut room = Room::default();
    let fitting = listed.conflicts.into_iter().take_while(|conflict| room.take(&[&conflict.entity, &conflict.key]));
    let shown = fitting.map(|conflict| Conflict {
        entity: conflict.entity,
        key: conflict.key,
        remote_fact_id: conflict.theirs,
        local_fact_id: Nullable(conflict.ours),
    });
    Ok(shown.collect())
}

// ------------------------------------------------------------------ sync_pull

/// Copy what is new in the shared memory of another cluster into your team's, going on where the last pull ended.
///
/// A copy's `actor` is `sync:<their tenant>/<their author>`. A copy follows its original; what your team wrote itself is never
/// replaced: where the two differ, both stay as they are and the pair is told as a conflict. Private facts are not touched. To take
/// theirs, delete yours with `delete_fact` and pull again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SyncPull {
    /// Leave it out, or empty: parts of the memory can't be pulled alone, and any other prefix is refused.
    #[serde(default)]
    entity_prefix: String,
    /// The other cluster's tenant that you mean; the one its token is for when absent, and any other is refused.
    tenant_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Pulled {
    /// Whose memory it is there.
    tenant_id: String,
    /// Versions that this call stored here.
    facts_pulled: u64,
    /// Copies that went because their originals did.
    facts_removed: u64,
    /// Facts that this cluster does not take from others: reserved names, and what is over its limits.
    facts_refused: u64,
    /// Where the next pull goes on.
    cursor: String,
    /// True when everything there is has been taken over; else call again.
    complete: bool,
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// Pulls of your team that came to their end, by all gateways.
    total_pull_count: u64,
    /// Places that are kept of pulling: 1 after the first.
    collection_cursor_count: u64,
    /// Pairs that differ there and here.
    conflict_count: u64,
    /// The first of them, as far as they fit.
    conflicts: Vec<Conflict>,
}

impl Tool for SyncPull {
    const NAME: &'static str = "sync_pull";
    const TITLE: &'static str = "Pull shared facts of another cluster";
    const SCOPE: &'static str = "crux-mcp.sync_pull";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::SYNC;
    const IDEMPOTENT: bool = true;
    type Output = Pulled;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Pulled>, CallError> {
        if !self.entity_prefix.is_empty() {
            return Err(CallError::arguments("`entity_prefix` is not implemented", "Leave it out; a pull takes all that is shared."));
        }
        check_tenant(self.tenant_id.as_deref())?;
        let remote = sync::needed(ctx)?;
        let pulled = sync::pull(ctx, cluster, remote, self.tenant_id.as_deref()).await?;
        let (state, revision) = sync::state(ctx, cluster, Some(remote)).await?;
        let conflicts = if state.conflicts == 0 { Vec::new() } else { conflicts(ctx, cluster, remote).await? };
        Ok(Reply::at(
            revision,
            Pulled {
                tenant_id: pulled.tenant_id,
                facts_pulled: pulled.stored,
                facts_removed: pulled.deleted,
                facts_refused: pulled.refused,
                collection_cursor_count: state.pull_cursor.is_some().into(),
                cursor: state.pull_cursor.unwrap_or_default(),
                complete: pulled.is_complete,
                problem: pulled.problem,
                total_pull_count: state.pulls,
                conflict_count: state.conflicts,
                conflicts,
            },
        ))
    }
}

// ------------------------------------------------------------------ sync_push

/// Send facts that were made here to another cluster's shared memory; without `confirm`, only show which ones.
///
/// Sent is what your team wrote itself and has not sent before, as new versions there. Never sent: private facts, what is reserved for
/// services, entities that begin with `finance:`, `health:` or `personal:`, and what came from another cluster. Where the other
/// cluster has a version that you don't know, nothing is replaced and the pair is a conflict. Deletions are not sent.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SyncPush {
    /// True sends. False, the default, asks nobody and changes nothing: it shows what would be sent.
    #[serde(default)]
    confirm: bool,
    /// The other cluster's tenant that you mean; the one its token is for when absent, and any other is refused.
    tenant_id: Option<String>,
    /// What may be sent, at most 50 of `*`, `facts`, `plans` (entities under `plan:` and `execplan:`), `constraints` (under
    /// `constraint:`), `collection:<one of these three>` and `entity:<name>`, which is that entity and those under `<name>::`.
    /// Absent: everything that may leave.
    allowlist: Option<Vec<String>>,
    /// True also replaces the other cluster's version where the two are in conflict.
    #[serde(default)]
    overwrite: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Pushed {
    /// `tenant_promotion_preview` or `tenant_promotion`.
    mode: String,
    /// Whose memory it is there, as far as it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_id: Option<String>,
    /// New versions there. Absent in a preview.
    #[serde(skip_serializing_if = "Option::is_none")]
    facts_pushed: Option<u64>,
    /// Sent, and the other cluster said the same already.
    #[serde(skip_serializing_if = "Option::is_none")]
    facts_unchanged: Option<u64>,
    /// Sent, and not taken there.
    #[serde(skip_serializing_if = "Option::is_none")]
    facts_refused: Option<u64>,
    /// The first reasons.
    refusals: Vec<String>,
    /// Of a preview: the first of what would be sent, as far as it fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    would_promote: Option<Vec<Promoting>>,
    /// And how many it would be.
    #[serde(skip_serializing_if = "Option::is_none")]
    would_promote_count: Option<u64>,
    /// BLAKE3 in hex over all of it: the same for two previews that would send the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    preview_hash: Option<String>,
    /// Of the facts that changed since the last push with this allowlist: those that never leave, and your own private ones.
    skipped_private: u64,
    /// Of the same, those that were sent before or came from another cluster.
    skipped_synced: u64,
    skipped_not_allowlisted: u64,
    /// Of the same, those of which the other cluster has a version that is not known here.
    skipped_in_conflict: u64,
    /// True when everything was looked at; else call again.
    complete: bool,
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// Pushes of your team that came to their end, by all gateways.
    total_push_count: u64,
    /// Places that are kept of pushing, one for each allowlist.
    collection_cursor_count: u64,
    conflict_count: u64,
    /// The first pairs that differ there and here.
    conflicts: Vec<Conflict>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Promoting {
    entity: String,
    key: String,
    fact_id: String,
    /// The other cluster's version that it would replace.
    replaces: Nullable<String>,
}

fn promoting(fact: Promoted) -> Promoting {
    let Promoted { entity, key, fact_id, replaces, .. } = fact;
    Promoting { entity, key, fact_id, replaces: Nullable(replaces) }
}

impl Tool for SyncPush {
    const NAME: &'static str = "sync_push";
    const TITLE: &'static str = "Push facts to another cluster";
    const SCOPE: &'static str = "crux-mcp.sync_push";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::SYNC;
    const IDEMPOTENT: bool = true;
    type Output = Pushed;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Pushed>, CallError> {
        let Self { confirm, tenant_id, allowlist, overwrite } = self;
        check_tenant(tenant_id.as_deref())?;
        let remote = sync::needed(ctx)?;
        let wanted = Wanted { allowlist: allowlist.unwrap_or_default(), overwrite };
        let done = match confirm {
            true => sync::push(ctx, cluster, remote, &wanted, tenant_id.as_deref()).await?,
            false => sync::preview(ctx, cluster, remote, &wanted).await?,
        };
        let (state, revision) = sync::state(ctx, cluster, Some(remote)).await?;
        let known_tenant = done.tenant_id.clone().or(state.remote_tenant);
        if let (Some(named), Some(known)) = (&tenant_id, &known_tenant)
            && named != known
        {
            return Err(CallError::RemoteRefused {
                detail: "the other cluster's memory for this token is not that of `tenant_id`".into(),
                wrote: crate::call::Wrote::No,
            });
        }
        let preview = |value| (!confirm).then_some(value);
        let real = |value| confirm.then_some(value);
        let conflicts = if state.conflicts == 0 { Vec::new() } else { conflicts(ctx, cluster, remote).await? };
        Ok(Reply::at(
            revision,
            Pushed {
                mode: if confirm { "tenant_promotion" } else { "tenant_promotion_preview" }.into(),
                tenant_id: known_tenant,
                facts_pushed: real(done.stored),
                facts_unchanged: real(done.unchanged),
                facts_refused: real(done.refused),
                refusals: done.refusals,
                would_promote: (!confirm).then(|| done.facts.into_iter().map(promoting).collect()),
                would_promote_count: preview(done.facts_count),
                preview_hash: (!confirm).then(|| done.hash.finalize().to_hex().to_string()),
                skipped_private: done.skipped_private,
                skipped_synced: done.skipped_synced,
                skipped_not_allowlisted: done.skipped_not_allowlisted,
                skipped_in_conflict: done.in_conflict,
                complete: done.is_complete,
                problem: done.problem,
                total_push_count: state.pushes,
                collection_cursor_count: state.push_cursors,
                conflict_count: state.conflicts,
                conflicts,
            },
        ))
    }
}

// ------------------------------------------------------------------ sync_status

/// See whether your team exchanges facts with another cluster, whether that answers now, and how far pulls and pushes have come.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SyncStatus {}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Status {
    /// `local-only` without another cluster; `cloud-mirror configured` with one that is asked when somebody calls; `full background sync`
    /// with one that is pulled from all the time, while pushes still take a call; `degraded` while the other one does not serve.
    mode: String,
    configured: bool,
    /// Whether gateways pull by themselves, one at a time.
    background_sync_enabled: bool,
    remote_url: Nullable<String>,
    api_key_configured: bool,
    /// Whether the other cluster answered just now; null when there is none to ask.
    platform_online: Nullable<bool>,
    degraded: bool,
    /// Why, or why there is nothing to exchange.
    degraded_reason: Nullable<String>,
    /// What an operator could do next.
    onboarding_hint: Nullable<String>,
    /// When all that was shared had been taken over last.
    last_pull_at: Nullable<String>,
    last_push_at: Nullable<String>,
    /// Pulls that came to their end, and pushes, by all gateways.
    pull_count: u64,
    push_count: u64,
    collection_pull_cursor_count: u64,
    collection_push_cursor_count: u64,
    /// Whether the other cluster says whose memory it shares.
    tenant_manifest_supported: bool,
    /// Active facts of your team, private ones left out.
    local_fact_count: u64,
    /// True when there are more, in more entities than are counted.
    local_fact_count_is_partial: bool,
    /// Whose memory it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_tenant_id: Option<String>,
    /// Versions taken over and sent, in all.
    facts_pulled: u64,
    facts_pushed: u64,
    /// Pairs that differ there and here; `sync_pull` names them.
    conflict_count: u64,
}

impl Tool for SyncStatus {
    const NAME: &'static str = "sync_status";
    const TITLE: &'static str = "Show how the exchange of facts stands";
    const SCOPE: &'static str = "crux-mcp.sync_status";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::SYNC;
    const IDEMPOTENT: bool = true;
    type Output = Status;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Status>, CallError> {
        let remote = sync::remote_for(ctx)?;
        let (state, revision) = sync::state(ctx, cluster, remote).await?;
        let seen = match remote {
            None => None,
            Some(remote) => Some(remote.manifest(None, PROBE_WITHIN.min(ctx.time_left())).await),
        };
        let (problem, hint) = match &seen {
            None => (
                Some(sync::NOT_CONFIGURED.to_string()),
                Some(
                    "Facts stay in this cluster. To exchange them with another Quorate, an operator sets `sync_remote_url`, `sync_token_file` and `sync_tenant` of the gateways.",
                ),
            ),
            Some(Ok(manifest)) if !manifest.may_read => {
                let problem = "the token in `sync_token_file` may not read there";
                (Some(problem.into()), Some("The other cluster's operator can make one with the scope `crux-mcp.query_facts`."))
            }
            Some(Ok(manifest)) if !manifest.may_write => {
                (None, Some("Pulls only: for pushes the other cluster's token needs the scope `crux-mcp.store_fact`."))
            }
            Some(Ok(_)) if state.pulls == 0 => (None, Some("Call `sync_pull` for a first copy of what is shared there.")),
            Some(Ok(_)) => (None, None),
            Some(Err(fault)) => {
                let hint = "Facts here are served as ever; `sync_pull` and `sync_push` go on where they were once it answers.";
                (Some(fault.to_string()), Some(hint))
            }
        };
        let degraded = remote.is_some() && problem.is_some();
        let is_background = remote.is_some_and(|remote| remote.poll.is_some());
        let mode = match remote {
            None => "local-only",
            Some(_) if degraded => "degraded",
            Some(_) if is_background => "full background sync",
            Some(_) => "cloud-mirror configured",
        };
        let is_manifest_there = matches!(seen, Some(Ok(_)));
        Ok(Reply::at(
            revision,
            Status {
                mode: mode.into(),
                configured: remote.is_some(),
                background_sync_enabled: is_background,
                remote_url: Nullable(remote.map(|remote| remote.name.clone())),
                api_key_configured: remote.is_some(),
                // One that refuses is there.
                platform_online: Nullable(seen.as_ref().map(|seen| matches!(seen, Ok(_) | Err(Fault::Refused { .. })))),
                degraded,
                degraded_reason: Nullable(problem),
                onboarding_hint: Nullable(hint.map(Into::into)),
                last_pull_at: Nullable(state.pulled_at.map(|at| at.to_rfc3339())),
                last_push_at: Nullable(state.pushed_at.map(|at| at.to_rfc3339())),
                pull_count: state.pulls,
                push_count: state.pushes,
                collection_pull_cursor_count: state.pull_cursor.is_some().into(),
                collection_push_cursor_count: state.push_cursors,
                tenant_manifest_supported: is_manifest_there,
                local_fact_count: state.local_facts,
                local_fact_count_is_partial: state.counted_in_part,
                remote_tenant_id: state.remote_tenant,
                facts_pulled: state.facts_pulled,
                facts_pushed: state.facts_pushed,
                conflict_count: state.conflicts,
            },
        ))
    }
}
