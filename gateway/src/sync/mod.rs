//! Exchange of facts with another Quorate: what a gateway asks it for and sends it, for one tenant.
//!
//! Where both have come to stands in the cluster, and each page moves it in one entry, so any gateway goes on where another one
//! died. Two that are at it at once don't disturb each other: the entry of the slower one is refused, and it looks again. The rules
//! stand in `quorate_domain::fact::sync`; here is what goes over the wire, and no value is kept.
//!
//! Reading order: [`settings`] (which other one), [`client`] (one request to it), this page (a pull, a push), [`background`] (pulls by
//! itself), [`serve`] (the other side).

pub mod background;
pub mod client;
pub mod serve;
pub mod settings;

use std::time::Duration;

use quorate_domain::fact::SharedFact;
use quorate_domain::fact::sync::{
    FactsMirrored, GetSync, ListSyncConflicts, MirrorFacts, PlanPush, Promoted, Promotion, PushPlan, RecordPush, Sent, SyncState,
};
use quorate_domain::refusal::shown;
use quorate_domain::{Refusal, Revision};
use serde_json::json;

use crate::call::{CallContext, CallError, Wrote};
use crate::cluster::Cluster;
use client::{Fault, Remote};

/// What an entry takes of a page.
const ROWS_PER_ENTRY: usize = 100;
const ENTRY_BYTES_MAX: usize = 400 * 1024;
/// How long before its deadline a call begins no further page.
const MARGIN: Duration = Duration::from_secs(5);
/// How often a page is looked at again because another gateway went on meanwhile.
const LOOKS_MAX: u32 = 50;
/// Conflicts that one look compares.
const CONFLICTS_PER_LOOK: u64 = 100;

/// What the contract has a caller read who asks for an exchange that is not set up.
pub const NOT_CONFIGURED: &str = "sync not configured: CORECRUXD_SYNC_REMOTE_URL is not set";

/// The other cluster, for callers of the tenant that exchanges facts with it.
pub fn remote_for(ctx: &CallContext) -> Result<Option<&Remote>, CallError> {
    let caller = ctx.principal()?;
    Ok(ctx.services.sync.as_ref().filter(|remote| remote.tenant == caller.tenant))
}

/// The same, where there has to be one.
pub fn needed(ctx: &CallContext) -> Result<&Remote, CallError> {
    let fix = "An operator sets `sync_remote_url`, `sync_token_file` and `sync_tenant` of the gateways; `sync_status` shows how it stands.";
    remote_for(ctx)?.ok_or_else(|| CallError::NotSetUp { problem: NOT_CONFIGURED.into(), fix: fix.into() })
}

pub async fn state(ctx: &CallContext, cluster: &Cluster, remote: Option<&Remote>) -> Result<(SyncState, Revision), CallError> {
    let (state, served) = cluster.read(ctx, GetSync { remote: remote.map(|remote| remote.name.clone()) }).await?;
    Ok((state, served.revision))
}

/// What a call did before it ended.
#[derive(Debug, Default)]
pub struct Pulled {
    pub tenant_id: String,
    pub stored: u64,
    pub deleted: u64,
    pub refused: u64,
    /// Everything that there is has been taken over.
    pub is_complete: bool,
    /// Why it ended before.
    pub problem: Option<String>,
    /// The only reason is that the call's time was over.
    pub is_out_of_time: bool,
}

impl Pulled {
    fn add(&mut self, mirrored: &FactsMirrored) {
        self.stored += mirrored.stored;
        self.deleted += mirrored.deleted;
        self.refused += mirrored.refused;
    }
}

/// Takes over what is new there, until all is taken or the call's time is over.
pub async fn pull(ctx: &CallContext, cluster: &Cluster, remote: &Remote, tenant_id: Option<&str>) -> Result<Pulled, CallError> {
    let mut done = Pulled::default();
    let (mut looks, mut pages) = (0, 0);
    let mut before = state(ctx, cluster, Some(remote)).await?.0.pull_cursor;
    loop {
        let page = match remote.facts(before.as_deref(), tenant_id, ctx.time_left()).await {
            Ok(page) => page,
            // What is taken over is in the cluster, and the next call goes on.
            Err(fault) if pages > 0 => {
                done.problem = Some(fault.to_string());
                return Ok(done);
            }
            Err(fault) => return Err(fault.of_call(Wrote::No)),
        };
        done.tenant_id = page.tenant_id.clone();
        if pages == 0
            && let Err(error) = look_again(ctx, cluster, remote, before.as_deref(), &page.tenant_id, &mut done).await?
        {
            return Err(error.of_call(Wrote::No));
        }
        match take_over(ctx, cluster, remote, &page, before.as_deref(), &mut done).await {
            Ok(()) => {
                pages += 1;
                before = Some(page.cursor);
            }
            // Another gateway took this page over.
            Err(CallError::Refused(Refusal::Changed { .. })) if looks < LOOKS_MAX => {
                looks += 1;
                before = state(ctx, cluster, Some(remote)).await?.0.pull_cursor;
                continue;
            }
            Err(error) => return Err(error),
        }
        if !page.more {
            done.is_complete = true;
            return Ok(done);
        }
        if ctx.time_left() < MARGIN {
            (done.problem, done.is_out_of_time) = (Some("the time of one call is over".into()), true);
            return Ok(done);
        }
    }
}

/// Puts a page into the cluster, in as few entries as it fits; the place after it comes with the last.
async fn take_over(
    ctx: &CallContext,
    cluster: &Cluster,
    remote: &Remote,
    page: &client::Page,
    before: Option<&str>,
    done: &mut Pulled,
) -> Result<(), CallError> {
    let groups = grouped(page.facts.clone());
    let last = groups.len() - 1;
    for (n, facts) in groups.into_iter().enumerate() {
        let command = MirrorFacts {
            remote: remote.name.clone(),
            remote_tenant: page.tenant_id.clone(),
            facts,
            before: before.map(Into::into),
            cursor: (n == last).then(|| page.cursor.clone()),
            is_end: n == last && !page.more,
        };
        done.add(&cluster.propose_step(ctx, command).await?.0);
    }
    Ok(())
}

fn grouped(facts: Vec<SharedFact>) -> Vec<Vec<SharedFact>> {
    let (mut groups, mut bytes) = (vec![Vec::new()], 0);
    for fact in facts {
        let size = fact.entity.len() + fact.key.len() + fact.now.as_ref().map_or(0, |now| now.value.len() + now.actor.len());
        bytes += size;
        if bytes > ENTRY_BYTES_MAX || groups.last().is_some_and(|group| group.len() == ROWS_PER_ENTRY) {
            groups.push(Vec::new());
            bytes = size;
        }
        groups.last_mut().expect("there is one").push(fact);
    }
    groups
}

/// Compares anew what differed and has changed here since: a cursor alone would not come back to it.
async fn look_again(
    ctx: &CallContext,
    cluster: &Cluster,
    remote: &Remote,
    before: Option<&str>,
    remote_tenant: &str,
    done: &mut Pulled,
) -> Result<Result<(), Fault>, CallError> {
    let mut after = None;
    loop {
        let list = ListSyncConflicts { remote: remote.name.clone(), after: after.take(), limit: CONFLICTS_PER_LOOK };
        let (listed, _) = cluster.read(ctx, list).await?;
        after = listed.conflicts.last().map(|last| (last.entity.clone(), last.key.clone()));
        let changed = listed.conflicts.into_iter().filter(|conflict| conflict.has_changed);
        let pairs: Vec<(String, String)> = changed.map(|conflict| (conflict.entity, conflict.key)).collect();
        if !pairs.is_empty() {
            let page = match remote.pairs(pairs, ctx.time_left()).await {
                Ok(page) => page,
                Err(fault) => return Ok(Err(fault)),
            };
            for facts in grouped(page.facts) {
                let (remote, remote_tenant) = (remote.name.clone(), remote_tenant.to_string());
                let before = before.map(Into::into);
                let command = MirrorFacts { remote, remote_tenant, facts, before, cursor: None, is_end: false };
                match cluster.propose_step(ctx, command).await {
                    Ok((mirrored, _)) => done.add(&mirrored),
                    // Another gateway is at it, and compares them too.
                    Err(CallError::Refused(Refusal::Changed { .. })) => return Ok(Ok(())),
                    Err(error) => return Err(error),
                }
            }
        }
        if !listed.more || ctx.time_left() < MARGIN {
            return Ok(Ok(()));
        }
    }
}

/// What would be sent, or was.
#[derive(Debug, Default)]
pub struct Pushed {
    pub tenant_id: Option<String>,
    /// Of a preview, the first of what would be sent, and a hash over all of it.
    pub facts: Vec<Promoted>,
    pub facts_count: u64,
    /// What is left for the lists of the reply.
    room: Room,
    pub hash: blake3::Hasher,
    pub stored: u64,
    pub unchanged: u64,
    /// Why the other side did not take something, the first reasons.
    pub refusals: Vec<String>,
    pub refused: u64,
    pub skipped_private: u64,
    pub skipped_synced: u64,
    pub skipped_not_allowlisted: u64,
    pub in_conflict: u64,
    pub is_complete: bool,
    pub problem: Option<String>,
}

/// What one list of a reply may take, so that a reply keeps to its size whatever its names are.
#[derive(Debug)]
pub struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(6 * 1024)
    }
}

impl Room {
    /// Takes place for a row with these texts, if there is any left.
    pub fn take(&mut self, texts: &[&str]) -> bool {
        // And its ids and names of fields.
        let bytes = 256 + texts.iter().map(|text| json!(text).to_string().len()).sum::<usize>();
        let fits = bytes <= self.0;
        // Nothing comes after what was left out.
        self.0 = if fits { self.0 - bytes } else { 0 };
        fits
    }
}

impl Pushed {
    fn add(&mut self, plan: &PushPlan) {
        self.skipped_private += plan.skipped_private;
        self.skipped_synced += plan.skipped_synced;
        self.skipped_not_allowlisted += plan.skipped_not_allowlisted;
        self.in_conflict += plan.in_conflict;
    }
}

/// Which facts a push is about.
pub struct Wanted {
    pub allowlist: Vec<String>,
    pub overwrite: bool,
}

impl Wanted {
    async fn plan(&self, ctx: &CallContext, cluster: &Cluster, remote: &Remote, cursor: Option<String>) -> Result<PushPlan, CallError> {
        let Self { allowlist, overwrite } = self;
        let plan = PlanPush { remote: remote.name.clone(), allowlist: allowlist.clone(), overwrite: *overwrite, cursor };
        Ok(cluster.read(ctx, plan).await?.0)
    }
}

/// Tells what a push would send. Nothing is asked of the other cluster.
pub async fn preview(ctx: &CallContext, cluster: &Cluster, remote: &Remote, wanted: &Wanted) -> Result<Pushed, CallError> {
    let (mut told, mut cursor) = (Pushed { tenant_id: remote.tenant_seen(), ..Pushed::default() }, None);
    loop {
        let plan = wanted.plan(ctx, cluster, remote, cursor).await?;
        told.add(&plan);
        for fact in plan.facts {
            // What parts the texts can't be in them.
            told.hash.update(format!("{}\0{}\0{}\n", fact.entity, fact.key, fact.fact_id).as_bytes());
            told.facts_count += 1;
            if told.room.take(&[&fact.entity, &fact.key]) {
                told.facts.push(fact);
            }
        }
        if !plan.more {
            told.is_complete = true;
            return Ok(told);
        }
        if ctx.time_left() < MARGIN {
            told.problem = Some("the time of one call is over, and there is more".into());
            return Ok(told);
        }
        cursor = Some(plan.cursor);
    }
}

/// Sends what was not sent before, page by page, and notes what became of each.
pub async fn push(
    ctx: &CallContext,
    cluster: &Cluster,
    remote: &Remote,
    wanted: &Wanted,
    tenant_id: Option<&str>,
) -> Result<Pushed, CallError> {
    // Who may not send is told so before the other cluster hears of it.
    let mut plan = wanted.plan(ctx, cluster, remote, None).await?;
    let manifest = remote.manifest(tenant_id, ctx.time_left()).await.map_err(|fault| fault.of_call(Wrote::No))?;
    let mut done = Pushed { tenant_id: Some(manifest.tenant_id.clone()), ..Pushed::default() };
    let (mut looks, mut pages) = (0, 0);
    loop {
        let outcomes = match plan.facts.is_empty() {
            true => Vec::new(),
            false => match send(ctx, remote, &plan.facts, &manifest.tenant_id).await {
                Ok(outcomes) => outcomes,
                Err(fault) if pages > 0 => {
                    done.problem = Some(fault.to_string());
                    return Ok(done);
                }
                Err(fault) => {
                    let wrote = if fault.may_have_arrived() { Wrote::Unknown } else { Wrote::No };
                    return Err(fault.of_call(wrote));
                }
            },
        };
        let more = plan.more;
        match note(ctx, cluster, remote, &plan, &outcomes, &manifest.tenant_id).await {
            Ok(()) => {
                pages += 1;
                done.add(&plan);
                tally(&mut done, &plan.facts, outcomes);
            }
            // Another gateway sent this page; the other side took each fact once.
            Err(CallError::Refused(Refusal::Changed { .. })) if looks < LOOKS_MAX => {
                looks += 1;
                plan = wanted.plan(ctx, cluster, remote, None).await?;
                continue;
            }
            Err(error) => return Err(error),
        }
        if !more {
            done.is_complete = true;
            return Ok(done);
        }
        if ctx.time_left() < MARGIN {
            done.problem = Some("the time of one call is over".into());
            return Ok(done);
        }
        plan = wanted.plan(ctx, cluster, remote, None).await?;
    }
}

/// Sends a page under a key that is made of it: whoever sends the same again, here or at another gateway, gets the first answer.
async fn send(ctx: &CallContext, remote: &Remote, facts: &[Promoted], tenant_id: &str) -> Result<Vec<Promotion>, Fault> {
    let body = json!({ "facts": facts, "tenant_id": tenant_id });
    let key = format!("sync-{}", &blake3::hash(body.to_string().as_bytes()).to_hex()[..32]);
    let sent = match remote.promote(&body, &key, ctx.time_left()).await {
        // Nothing was written under this key, and the answer to it would stay the same.
        Err(Fault::Refused { retryable: true, .. }) => {
            let fresh = format!("{key}-{}", uuid::Uuid::new_v4().simple());
            remote.promote(&body, &fresh, ctx.time_left()).await?
        }
        sent => sent?,
    };
    match sent.outcomes.len() == facts.len() {
        true => Ok(sent.outcomes),
        false => Err(Fault::Strange { why: format!("{} facts were sent, and it told of {}", facts.len(), sent.outcomes.len()) }),
    }
}

async fn note(
    ctx: &CallContext,
    cluster: &Cluster,
    remote: &Remote,
    plan: &PushPlan,
    outcomes: &[Promotion],
    remote_tenant: &str,
) -> Result<(), CallError> {
    let sent = plan.facts.iter().zip(outcomes).map(|(fact, became)| Sent {
        entity: fact.entity.clone(),
        key: fact.key.clone(),
        fact_id: fact.fact_id.clone(),
        became: became.clone(),
    });
    let command = RecordPush {
        remote: remote.name.clone(),
        remote_tenant: remote_tenant.into(),
        list: plan.list.clone(),
        before: plan.before.clone(),
        cursor: plan.cursor.clone(),
        sent: sent.collect(),
        is_end: !plan.more,
    };
    cluster.propose_step(ctx, command).await.map(|_| ())
}

fn tally(done: &mut Pushed, facts: &[Promoted], outcomes: Vec<Promotion>) {
    for (fact, became) in facts.iter().zip(outcomes) {
        match became {
            Promotion::Stored { .. } => done.stored += 1,
            Promotion::Unchanged { .. } => done.unchanged += 1,
            Promotion::InConflict { .. } => done.in_conflict += 1,
            Promotion::Refused { problem } => {
                done.refused += 1;
                let refusal = format!("{} {}: {}", fact.entity, fact.key, shown(&problem));
                if done.room.take(&[&refusal]) {
                    done.refusals.push(refusal);
                }
            }
        }
    }
}
