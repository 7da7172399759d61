//! The decision: may this edit go on, and who leases what it changes.
//!
//! Before an edit every name of every file is checked with a linearizable read. If another holds one of them, the edit is
//! denied, or in advisory mode allowed with a warning. Otherwise the caller takes a lease on what it is about to change, unless
//! it holds one that lasts long enough. The lease is marked with the session, and given back when the session ends; a lease
//! that the agent took itself is renewed and never given back here.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::future::{join, join_all};
use quorate_domain::Refusal;
use quorate_domain::config_audit::{CheckConfigAudit, ConfigFile};
use quorate_domain::limit::LIST_MAX;
use quorate_domain::punchcard::{CheckPunchcard, ListPunchcards, PunchIn, PunchOut, Punchcard, PunchcardChecked, PunchedIn, Status};
use quorate_domain::refusal::shown;
use quorate_domain::resource::Resource;
use serde::{Deserialize, Serialize};

use super::host::Moment;
use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, Consistency};
use crate::registry::Tool;
use crate::tools::constraints::CheckConfigAudit as AuditsTool;
use crate::tools::punchcards::{CheckPunchcard as CheckTool, PunchIn as TakeTool};

/// The tools of the same names do the same by hand, so their scopes are asked for.
pub const CHECK: &str = CheckTool::SCOPE;
const TAKE: &str = TakeTool::SCOPE;
const AUDITS: &str = AuditsTool::SCOPE;
/// A lease that the guard takes ends so long after the last edit, in case the session's end is never told.
const LEASE_MS: u64 = 10 * 60 * 1_000;
/// Names that one event may have. Each costs a read.
const NAMES_MAX: usize = 256;
/// Calls to the cluster at a time.
const AT_ONCE: usize = 32;
/// Cards of others that one answer tells of; that there are more is said.
const TOLD: usize = 10;
/// Pages of cards that the end of a session looks through.
const PAGES_MAX: usize = 20;

/// What a front end asks.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    pub moment: Moment,
    /// Host and session, as people read them.
    #[serde(default)]
    pub host: String,
    #[serde(default)]
    pub session: String,
    /// What is about to change, by its name in its repository: checked, and leased.
    #[serde(default)]
    pub take: Vec<String>,
    /// Other names of the same files: checked only.
    #[serde(default)]
    pub check: Vec<String>,
    /// Whose change it is, when it is not the caller's: a CI asks for the author. Nothing is leased then.
    #[serde(default)]
    pub passport: Option<String>,
    /// How long the caller waits, in ms.
    pub within_ms: u64,
    /// When a session starts: the files that configure it, hashed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<ConfigFile>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Allow,
    /// Allowed, and there is something to say.
    Warn,
    Deny,
}

/// What a front end is told. `text` is for the model that wants to edit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub decision: Decision,
    pub text: String,
    /// What the caller holds now of what it asked for.
    #[serde(default)]
    pub leases: Vec<Lease>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    pub resource: String,
    pub fencing_token: u64,
    pub expires_at_unix_ms: u64,
}

impl Lease {
    fn of(card: &Punchcard) -> Self {
        Self { resource: card.resource.clone(), fencing_token: card.fencing_token.0, expires_at_unix_ms: card.expires_at.0 }
    }
}

impl Verdict {
    pub fn allow() -> Self {
        Self { decision: Decision::Allow, text: String::new(), leases: Vec::new() }
    }

    pub fn deny(text: impl Into<String>) -> Self {
        Self { decision: Decision::Deny, text: text.into(), leases: Vec::new() }
    }

    pub fn warn(text: impl Into<String>) -> Self {
        Self { decision: Decision::Warn, text: text.into(), leases: Vec::new() }
    }
}

impl Guard {
    /// An error means that nobody knows: what then is to be done is up to the caller.
    pub async fn decide(self, ctx: &CallContext, cluster: &Cluster) -> Result<Verdict, CallError> {
        let ctx = CallContext { deadline: ctx.deadline.min(Instant::now() + Duration::from_millis(self.within_ms)), ..ctx.clone() };
        if !ctx.principal()?.may(CHECK) {
            return Err(CallError::MissingScope { scope: CHECK.into() });
        }
        let names = self.take.len() + self.check.len();
        if names > NAMES_MAX {
            return Ok(Verdict::deny(format!(
                "this changes files under {names} names, and the guard checks {NAMES_MAX} at once. Nothing was changed. Do it in smaller steps."
            )));
        }
        match self.moment {
            Moment::SessionStart => self.session_starts(&ctx, cluster).await,
            Moment::BeforeEdit => self.before(&ctx, cluster).await,
            Moment::AfterEdit => self.after(&ctx, cluster).await,
            Moment::SessionEnd => self.session_ends(&ctx, cluster).await,
        }
    }

    /// Marks the leases of this session. It is compared as a whole, so it is made in one place.
    fn mark(&self) -> String {
        format!("edit guard of {}, session {}", shown(&self.host), shown(&self.session))
    }

    async fn checked(&self, ctx: &CallContext, cluster: &Cluster) -> Result<Vec<PunchcardChecked>, CallError> {
        let caller = ctx.principal()?;
        let mut found = Vec::new();
        let names: Vec<&String> = self.take.iter().chain(&self.check).collect();
        for some in names.chunks(AT_ONCE) {
            let asked = some.iter().map(|name| {
                let query = CheckPunchcard { resource: (*name).clone(), mode: None, passport: self.passport.clone() };
                cluster.read_as(caller, query, Consistency::Linearizable, ctx.deadline)
            });
            for answer in join_all(asked).await {
                found.push(answer?.0);
            }
        }
        Ok(found)
    }

    async fn before(&self, ctx: &CallContext, cluster: &Cluster) -> Result<Verdict, CallError> {
        let checked = self.checked(ctx, cluster).await?;
        let held = told(&checked);
        if checked.iter().any(|found| found.held_by_other && found.enforce) {
            return Ok(Verdict::deny(format!("{held} Nothing was changed.")));
        }
        let mut leases = Vec::new();
        if self.passport.is_none() && ctx.principal()?.may(TAKE) {
            let wanted: Vec<&PunchcardChecked> = checked[..self.take.len()].iter().collect();
            for some in wanted.chunks(AT_ONCE) {
                for taken in join_all(some.iter().map(|found| self.take(found, ctx, cluster))).await {
                    match taken {
                        Ok(lease) => leases.extend(lease),
                        // Another was quicker, or has waited for longer.
                        Err(CallError::Refused(refusal @ Refusal::Held { .. })) => {
                            return Ok(Verdict::deny(format!("{refusal}. {} Nothing was changed.", refusal.next_step())));
                        }
                        // No cards in this team: nothing to lease, and nobody is kept out.
                        Err(CallError::Refused(Refusal::FeatureOff { .. })) => return Ok(Verdict::allow()),
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        let verdict = if held.is_empty() { Verdict::allow() } else { Verdict::warn(format!("Punchcards are advisory here. {held}")) };
        Ok(Verdict { leases, ..verdict })
    }

    /// Takes or renews the lease on what was found free or the caller's own.
    async fn take(&self, found: &PunchcardChecked, ctx: &CallContext, cluster: &Cluster) -> Result<Option<Lease>, CallError> {
        let me = &ctx.principal()?.passport;
        let own = found.card.as_ref().filter(|card| card.holder == *me);
        let covers = |card: &Punchcard| match (Resource::parse(&card.resource), Resource::parse(&found.resource)) {
            (Ok(card), Ok(wanted)) => card.covers(&wanted),
            _ => false,
        };
        let command = match own.filter(|card| covers(card)) {
            Some(card) if found.left_ms.is_some_and(|left_ms| left_ms > card.ttl_ms.min(LEASE_MS) / 2) => return Ok(Some(Lease::of(card))),
            // For as long as it was taken for, and with what it was taken for.
            Some(card) => self.punch_in(me, &card.resource, None, None),
            None => self.punch_in(me, &found.resource, Some(LEASE_MS), Some(self.mark())),
        };
        match cluster.propose_step(ctx, command).await?.0 {
            PunchedIn::Granted { card, .. } => Ok(Some(Lease::of(&card))),
            PunchedIn::Queued { .. } | PunchedIn::Left { .. } => Ok(None),
        }
    }

    fn punch_in(&self, me: &str, resource: &str, ttl_ms: Option<u64>, reason: Option<String>) -> PunchIn {
        PunchIn {
            resource: resource.into(),
            holder_passport: me.into(),
            tenant_id: None,
            mode: None,
            reason,
            ttl_ms,
            expires_at: None,
            wait_ms: None,
            ..PunchIn::default()
        }
    }

    /// The edit is done: what the caller holds is renewed, and what another holds is told, since it can't be undone here.
    async fn after(&self, ctx: &CallContext, cluster: &Cluster) -> Result<Verdict, CallError> {
        let checked = self.checked(ctx, cluster).await?;
        let held = told(&checked);
        let mut leases = Vec::new();
        if ctx.principal()?.may(TAKE) {
            for found in checked[..self.take.len()].iter().filter(|found| !found.held_by_other && found.card.is_some()) {
                leases.extend(self.take(found, ctx, cluster).await?);
            }
        }
        let verdict = match held.is_empty() {
            true => Verdict::allow(),
            false => Verdict::warn(format!("You have changed what another holds: {held} Undo your change, or settle it with the holder.")),
        };
        Ok(Verdict { leases, ..verdict })
    }

    async fn session_starts(&self, ctx: &CallContext, cluster: &Cluster) -> Result<Verdict, CallError> {
        let me = &ctx.principal()?.passport;
        let list = ListPunchcards {
            resource: None,
            holder_passport: None,
            tenant_id: None,
            status: Some(Status::Held),
            limit: LIST_MAX as u64,
            cursor: None,
        };
        let (listed, unaudited) = join(cluster.read(ctx, list), self.unaudited(ctx, cluster)).await;
        let (found, _) = listed?;
        let others: Vec<&Punchcard> = found.punchcards.iter().filter(|card| card.holder != *me).collect();
        let mut text = format!("Edits are guarded by Quorate; you are `{}`. A file is leased to you when you first change it.", shown(me));
        if !others.is_empty() {
            let told = others.iter().take(TOLD).map(|card| format!("`{}` by `{}`", shown(&card.resource), shown(&card.holder)));
            text += &format!(" Held by others now: {}", told.collect::<Vec<_>>().join(", "));
            let is_all = others.len() <= TOLD && found.next_cursor.is_none();
            text += if is_all { "." } else { " and more; `list_punchcards` shows all." };
        }
        text += &unaudited;
        Ok(Verdict::warn(text))
    }

    /// What is to be said of the configuration that the session starts with. That it can't be looked up is said too, and keeps
    /// nobody from working.
    async fn unaudited(&self, ctx: &CallContext, cluster: &Cluster) -> String {
        if self.config.is_empty() {
            return String::new();
        }
        let caller = match ctx.principal() {
            Ok(caller) if caller.may(AUDITS) => caller,
            _ => return format!(" Whether your configuration was audited is not known: that needs the scope `{AUDITS}`."),
        };
        let query = CheckConfigAudit { files: self.config.clone() };
        match cluster.read_as(caller, query, Consistency::Linearizable, ctx.deadline).await {
            Ok((checked, _)) if checked.unaudited.is_empty() => String::new(),
            Ok((checked, _)) => {
                let told = checked.unaudited.iter().map(|file| format!("`{}` (SHA-256 {})", shown(&file.path), file.sha256));
                let told = told.collect::<Vec<_>>().join(", ");
                format!(
                    " Nobody has audited this configuration of yours: {told}. Tell your person; who has looked at it says so with `audit_config`."
                )
            }
            Err(error) => format!(" Whether your configuration was audited is not known: {error}."),
        }
    }

    /// Gives back what was taken for this session.
    async fn session_ends(&self, ctx: &CallContext, cluster: &Cluster) -> Result<Verdict, CallError> {
        let (me, mark) = (&ctx.principal()?.passport, self.mark());
        let (mut ours, mut cursor) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let list = ListPunchcards {
                resource: None,
                holder_passport: Some(me.clone()),
                tenant_id: None,
                status: Some(Status::Held),
                limit: LIST_MAX as u64,
                cursor,
            };
            let (found, _) = cluster.read(ctx, list).await?;
            ours.extend(found.punchcards.into_iter().filter(|card| card.reason.as_ref() == Some(&mark)));
            cursor = found.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        for some in ours.chunks(AT_ONCE) {
            let outs = some.iter().map(|card| {
                let command =
                    PunchOut { resource: card.resource.clone(), holder_passport: me.clone(), tenant_id: None, release_commit_sha: None };
                let ctx = CallContext { fencing_token: Some(card.fencing_token.0), ..ctx.clone() };
                async move { cluster.propose_step(&ctx, command).await }
            });
            for out in join_all(outs).await {
                match out {
                    // A card that ended meanwhile is what is wanted.
                    Ok(_) | Err(CallError::Refused(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(Verdict::allow())
    }
}

/// Who else holds what for how long, and what to do about it. One card is told once, whatever names led to it.
fn told(checked: &[PunchcardChecked]) -> String {
    let mut cards: Vec<(&PunchcardChecked, &Punchcard)> =
        checked.iter().filter(|found| found.held_by_other).filter_map(|found| Some((found, found.card.as_ref()?))).collect();
    let mut seen = BTreeSet::new();
    cards.retain(|(_, card)| seen.insert(&card.id));
    let mut text: Vec<String> = cards.iter().take(TOLD).map(|(found, card)| told_of(found, card)).collect();
    if cards.len() > TOLD {
        text.push(format!("Others hold {} more of what this changes.", cards.len() - TOLD));
    }
    text.join(" ")
}

fn told_of(found: &PunchcardChecked, card: &Punchcard) -> String {
    let refusal = Refusal::Held {
        resource: found.resource.clone(),
        held: card.resource.clone(),
        holder: card.holder.clone(),
        left_ms: found.left_ms.unwrap_or(0),
        expires_at_unix_ms: found.closed_until.unwrap_or(card.expires_at).0,
        waiting: false,
        settling: false,
    };
    let why = card.reason.as_ref().map(|reason| format!(" Its holder says: {}.", shown(reason))).unwrap_or_default();
    format!("{refusal}.{why} {}", refusal.next_step())
}
