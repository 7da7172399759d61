//! Forgetting: facts of a scope lose their values, first where anybody could read them, then everywhere.
//!
//! [`ForgetFacts`] takes the value out of each version and keeps it aside, where no read looks, until its recovery window ends.
//! [`RecoverFacts`] brings it back from there. When the window is over, [`sweep`] removes what was kept aside, and the remembered
//! answers that may repeat it; from then on the rules know the value no more, and [`ErasureDue`] tells every node to rewrite the
//! files that still hold its bytes. Invariants:
//! * One resolver finds what is forgotten, for the trial and for the act.
//! * Receipts hold hashes, never values.
//! * A version stays when its value goes, so its number is never used again, and what was stored after it stays as it is.
//! * A version is brought back as the active one only if none was stored after it.
//!
//! Decisions:
//! * Superseded and deleted versions are forgotten too: their values stand in the history otherwise.
//! * Private facts go only where the scope names them: `passport_id`, or an `entity_prefix` that begins with the caller's own filed
//!   name. A scope that speaks of the team's facts leaves everybody's private ones alone.
//! * The window counts on the lease clock, which no wall clock moves. An operator can end all windows at once.
//! * One call reads and changes a bounded number of facts, and says where the next one goes on. Its budget cuts what that call
//!   found, oldest first.

mod purge;
mod resolve;

use serde::{Deserialize, Serialize};
use serde_json::json;

pub use self::purge::{EndRecovery, ErasureDue, ErasureState, GetErasure, RecoveryEnded, erasures_due, sweep};
use self::resolve::{Asked, Found, resolve};
use super::panel::EDIT;
use super::rank::State;
use super::recall::json_text_bytes;
use super::{Fact, by_id, change, entities, filed_name, head, leave_pair, pair_id, stored};
use crate::cursor::Cursors;
use crate::deadline;
use crate::event;
use crate::flag;
use crate::identity::{check_name, check_text};
use crate::key::Key;
use crate::limit::{FORGET_FACTS_MAX, REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES};
use crate::receipt;
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{LeaseTime, ReadStamp, Revision, Stamp, Tier, UnixMs};
use crate::tenant::Timed;
use crate::tx::{Read, StorageError, Tx};

/// What a scope goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScopeKind {
    /// Entities that begin so.
    EntityPrefix,
    /// Keys that match; `*` stands for any text.
    KeyGlob,
    /// The private facts of one passport, which is the caller.
    PassportId,
    /// The team's facts stored before an instant.
    BeforeTimestamp,
    /// Entities that begin with `tenant:`, `personal::` or `business::`, the id and `::`.
    TenantId,
}

impl ScopeKind {
    pub fn word(self) -> &'static str {
        match self {
            ScopeKind::EntityPrefix => "entity_prefix",
            ScopeKind::KeyGlob => "key_glob",
            ScopeKind::PassportId => "passport_id",
            ScopeKind::BeforeTimestamp => "before_timestamp",
            ScopeKind::TenantId => "tenant_id",
        }
    }
}

/// Which facts are meant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForgetScope {
    #[serde(rename = "type")]
    pub kind: ScopeKind,
    pub value: String,
}

/// One forgetting, as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Forgetting {
    tenant: String,
    receipt_id: String,
    /// Who asked for it, and may bring it back.
    passport: String,
    facts: u64,
    revision: Revision,
    forgotten_at: UnixMs,
    /// The end of the window, on the lease clock and for people.
    deadline: LeaseTime,
    recoverable_until: UnixMs,
    state: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Stage {
    Recoverable,
    Recovered,
    /// The window is over, and values or answers are left to be removed.
    Purging,
    Purged,
}

impl Record for Forgetting {
    const KIND: Kind = Kind::Forgetting;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.receipt_id)
    }
}

impl Timed for Forgetting {
    fn move_times(&mut self, to: &dyn Fn(LeaseTime) -> LeaseTime) {
        self.deadline = to(self.deadline);
    }
}

/// What was taken from one version, aside from where facts are read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ForgottenFact {
    tenant: String,
    receipt_id: String,
    n: u64,
    fact_id: String,
    value: String,
    source_receipt: Option<String>,
    valid_to: Option<UnixMs>,
    deleted_at: Option<UnixMs>,
}

impl Record for ForgottenFact {
    const KIND: Kind = Kind::ForgottenFact;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.receipt_id).number(self.n)
    }
}

/// Rows of one forgetting, from the first on.
fn taken(view: &impl Read, forgetting: &Forgetting, limit: usize) -> Result<Vec<ForgottenFact>, StorageError> {
    Ok(view.page(&forgetting.tenant, &Key::new().text(&forgetting.receipt_id), None, limit)?.items)
}

fn forgetting(view: &impl Read, tenant: &str, receipt_id: &str) -> Result<Option<Forgetting>, StorageError> {
    view.get(tenant, &Key::new().text(receipt_id))
}

fn fact_of(view: &impl Read, tenant: &str, fact_id: &str) -> Result<Fact, StorageError> {
    let id = view.get_bytes(crate::tx::Table::Index, by_id(tenant, fact_id).as_bytes())?;
    stored(view, tenant, &id.ok_or_else(|| StorageError::corrupt("a forgotten fact is not there"))?)
}

/// Refuses a tenant that is not the caller's own: it is a claim, as everywhere.
fn check_tenant(tenant_id: Option<&str>, tenant: &str) -> Result<(), Refusal> {
    match tenant_id {
        // What the documented default is called.
        None | Some("default") => Ok(()),
        Some(claim) if claim == tenant => Ok(()),
        Some(claim) => Err(check_name("tenant_id", claim).unwrap_or_else(|| Refusal::not_found("tenant", claim))),
    }
}

// ------------------------------------------------------------------ memory_forget

/// Takes the values of a scope's facts away. They can be brought back until the window ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForgetFacts {
    pub scope: ForgetScope,
    pub reason: String,
    /// A claim: must be the caller's tenant.
    pub tenant_id: Option<String>,
    pub token_budget: Option<u64>,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactsForgotten {
    pub receipt_id: String,
    pub facts_affected: u64,
    pub window_ms: u64,
    pub recoverable_until: UnixMs,
    /// The receipt's body; none where it is too large for a reply.
    pub body: Option<Vec<u8>>,
    pub body_hash: String,
    pub passport: String,
    /// Why there may be more of the scope: `facts`, `scan_limit` or `token_budget`.
    pub truncated: Option<String>,
    pub next_cursor: Option<String>,
}

/// A larger body stands in the receipt alone: as hex it would not fit a reply.
const BODY_SHOWN_BYTES_MAX: usize = 8 * 1024;

/// The body of a forgetting's receipt.
#[derive(Serialize)]
struct Body<'a> {
    schema: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    passport_id: &'a str,
    reason: &'a str,
    scope: &'a ForgetScope,
    facts_affected: Vec<Affected>,
    initiated_at: String,
    recovery_window_ends_at: String,
}

#[derive(Serialize)]
struct Affected {
    fact_id: String,
    pre_forget_value_hash_hex: String,
    entity: String,
    key: String,
}

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

impl ForgetFacts {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FactsForgotten> {
        if let Some(refusal) = flag::refuse_off(tx, flag::SCOPED_FORGET, "memory_forget")? {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("forget", &at.caller, &self.scope);
        let asked = match self.check(at, &cursors) {
            Ok(asked) => asked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Found { facts, truncated, next } = match resolve(tx, &at.caller, &self.scope, asked)? {
            Ok(found) => found,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let window_ms = flag::number(tx, flag::FORGET_RECOVERY)? * DAY_MS;
        let (tenant, passport) = (at.caller.tenant.clone(), at.caller.passport.clone());
        let receipt_id = self.receipt_id(at, facts.len());
        if receipt::is_there(tx, &tenant, &receipt_id)? {
            return Err(StorageError::corrupt(format!("receipt `{receipt_id}` of another forgetting is there already")));
        }
        let forgetting = Forgetting {
            tenant,
            receipt_id,
            passport,
            facts: facts.len() as u64,
            revision: at.revision,
            forgotten_at: at.wall,
            deadline: at.lease_now.plus_ms(window_ms),
            recoverable_until: UnixMs(at.wall.0.saturating_add(window_ms)),
            state: Stage::Recoverable,
        };
        let mut affected = Vec::with_capacity(facts.len());
        for (n, fact) in (0..).zip(facts) {
            affected.push(take(tx, at, &forgetting, n, fact)?);
        }
        let body = receipt::body(&Body {
            schema: "cuecrux.receipt.forget.v1",
            receipt_id: &forgetting.receipt_id,
            tenant_id: &forgetting.tenant,
            passport_id: &forgetting.passport,
            reason: &self.reason,
            scope: &self.scope,
            facts_affected: affected,
            initiated_at: at.wall.to_rfc3339(),
            recovery_window_ends_at: forgetting.recoverable_until.to_rfc3339(),
        });
        let shown = (body.len() <= BODY_SHOWN_BYTES_MAX).then(|| body.clone());
        let body_hash = receipt::append(tx, at, &forgetting.receipt_id, body, Some(&forgetting.passport))?;
        tx.put(&forgetting);
        deadline::put(tx, Kind::ForgettingByDeadline, forgetting.deadline, &forgetting.tenant, &forgetting.receipt_id);
        let about = json!({ "facts": forgetting.facts, "actor": forgetting.passport });
        event::emit(tx, at, "facts.forgotten", &forgetting.receipt_id, about)?;
        Ok(Ok(FactsForgotten {
            receipt_id: forgetting.receipt_id,
            facts_affected: forgetting.facts,
            window_ms,
            recoverable_until: forgetting.recoverable_until,
            body: shown,
            body_hash,
            passport: forgetting.passport,
            truncated,
            next_cursor: next.map(|position| cursors.seal(&position)),
        }))
    }

    fn check(&self, at: &Stamp, cursors: &Cursors) -> Result<Asked, Refusal> {
        if self.reason.trim().is_empty() {
            return Err(Refusal::invalid("reason", "must not be empty: it stands in the receipt, for who asks later"));
        }
        if let Some(refusal) = check_text("reason", &self.reason) {
            return Err(refusal);
        }
        check_tenant(self.tenant_id.as_deref(), &at.caller.tenant)?;
        Asked::new(self.token_budget, cursors.open_from(self.cursor.as_deref())?)
    }

    /// As documented, from what was asked; with the entry's revision, so that no two are the same.
    fn receipt_id(&self, at: &Stamp, facts: usize) -> String {
        let (ForgetScope { kind, value }, caller) = (&self.scope, &at.caller);
        let parts = [
            &caller.passport,
            &caller.tenant,
            &format!("{}:{value}", kind.word()),
            &facts.to_string(),
            &at.wall.to_rfc3339(),
            &at.revision.to_string(),
        ];
        let parts = parts.map(String::as_str).join("|");
        format!("r_forget_{}", &blake3::hash(parts.as_bytes()).to_hex()[..16])
    }
}

/// Takes the value of one version aside.
fn take(tx: &mut impl Tx, at: &Stamp, forgetting: &Forgetting, n: u64, fact: Fact) -> Result<Affected, StorageError> {
    let affected = Affected {
        fact_id: fact.fact_id.clone(),
        pre_forget_value_hash_hex: blake3::hash(fact.value.as_bytes()).to_hex().to_string(),
        entity: fact.filed_name(),
        key: fact.key.clone(),
    };
    // The reason of an edit is somebody's text about the value; other sources are ids of receipts.
    let is_text = fact.source_receipt.as_ref().is_some_and(|source| source.starts_with(EDIT));
    tx.put(&ForgottenFact {
        tenant: fact.tenant.clone(),
        receipt_id: forgetting.receipt_id.clone(),
        n,
        fact_id: fact.fact_id.clone(),
        value: fact.value.clone(),
        source_receipt: fact.source_receipt.clone().filter(|_| is_text),
        valid_to: fact.valid_to,
        deleted_at: fact.deleted_at,
    });
    if fact.state() == State::Active {
        leave_pair(tx, &fact)?;
    }
    let was_there = fact.deleted_at.is_none();
    let about = fact.about(&at.caller.passport);
    change(tx, fact, |fact| {
        fact.value = String::new();
        fact.source_receipt = fact.source_receipt.take().filter(|_| !is_text);
        fact.deleted_at = fact.deleted_at.or(Some(at.wall));
        fact.valid_to = fact.valid_to.or(Some(at.wall));
        fact.forgotten_by = Some(forgetting.receipt_id.clone());
    });
    if was_there {
        event::emit(tx, at, "fact.deleted", &affected.fact_id, about)?;
    }
    Ok(affected)
}

// ------------------------------------------------------------------ memory_forget_dry_run

/// What [`ForgetFacts`] with the same arguments would forget. Reads only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FindForgettable {
    pub scope: ForgetScope,
    pub token_budget: Option<u64>,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForgettableFacts {
    /// How many the one call would forget that this page belongs to.
    pub count: u64,
    pub facts: Vec<Forgettable>,
    /// Why `facts` end before the scope does: `reply_bytes`, or what ends the call as in [`FactsForgotten`].
    pub truncated: Option<String>,
    pub next_cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forgettable {
    pub fact_id: String,
    pub entity: String,
    pub key: String,
    pub stored_at: UnixMs,
    pub tokens: u64,
}

impl Forgettable {
    fn json_bytes(&self) -> usize {
        const NAMES: &str = r#"{"fact_id":,"entity":,"key":,"stored_at":"","tokens":},"#;
        const INSTANT_TOKENS: usize = 24 + 8;
        NAMES.len() + INSTANT_TOKENS + [&self.fact_id, &self.entity, &self.key].into_iter().map(|text| json_text_bytes(text)).sum::<usize>()
    }
}

/// What stands around the rows: the scope again, and a cursor in hex.
const DRY_RUN_FRAME_BYTES: usize = 4_096;

impl FindForgettable {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<ForgettableFacts> {
        let cursors = Cursors::of("forgettable", &at.caller, &(&self.scope, self.token_budget));
        let (from, shown) = match self.check(&cursors) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let asked = match Asked::new(self.token_budget, from.clone()) {
            Ok(asked) => asked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Found { facts, truncated, next } = match resolve(view, &at.caller, &self.scope, asked)? {
            Ok(found) => found,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut reply = ForgettableFacts { count: facts.len() as u64, facts: Vec::new(), truncated: None, next_cursor: None };
        let mut left = (REPLY_BYTES_DEFAULT + DRY_RUN_FRAME_BYTES).saturating_sub(DRY_RUN_FRAME_BYTES + REPLY_WRAPPER_BYTES);
        for fact in facts.iter().skip(shown) {
            let row = Forgettable {
                fact_id: fact.fact_id.clone(),
                entity: filed_name(&fact.owner, &fact.entity),
                key: fact.key.clone(),
                stored_at: fact.stored_at,
                tokens: resolve::tokens(fact),
            };
            let bytes = row.json_bytes();
            if bytes > left && !reply.facts.is_empty() {
                reply.truncated = Some("reply_bytes".into());
                let shown = (shown + reply.facts.len()) as u64;
                reply.next_cursor = Some(cursors.seal(&[&shown.to_be_bytes()[..], from.as_deref().unwrap_or_default()].concat()));
                return Ok(Ok(reply));
            }
            left = left.saturating_sub(bytes);
            reply.facts.push(row);
        }
        reply.truncated = truncated;
        reply.next_cursor = next.map(|position| cursors.seal(&[&0u64.to_be_bytes()[..], &position].concat()));
        Ok(Ok(reply))
    }

    /// Where the call that this page belongs to begins, and how many of its facts were shown before.
    fn check(&self, cursors: &Cursors) -> Result<(Option<Vec<u8>>, usize), Refusal> {
        let Some(position) = cursors.open_from(self.cursor.as_deref())? else { return Ok((None, 0)) };
        let parts = position.split_first_chunk::<8>();
        let (shown, from) = parts.ok_or_else(|| Refusal::invalid("cursor", "is damaged"))?;
        let shown = usize::try_from(u64::from_be_bytes(*shown)).unwrap_or(usize::MAX).min(FORGET_FACTS_MAX);
        Ok(((!from.is_empty()).then(|| from.to_vec()), shown))
    }
}

// ------------------------------------------------------------------ memory_forget_undo

/// Brings back what one forgetting took, while its window is open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoverFacts {
    pub forget_receipt_id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactsRecovered {
    pub forget_receipt_id: String,
    pub receipt_id: String,
    pub facts_recovered: u64,
    /// How many are the active version of their pair again.
    pub active: u64,
}

/// The body of a recovery's receipt.
#[derive(Serialize)]
struct Recovered<'a> {
    schema: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    passport_id: &'a str,
    source_forget_receipt_id: &'a str,
    facts_recovered: u64,
    recovered_at: String,
}

impl RecoverFacts {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FactsRecovered> {
        if let Some(refusal) = flag::refuse_off(tx, flag::SCOPED_FORGET, "memory_forget_undo")? {
            return Ok(Err(refusal));
        }
        if let Some(refusal) = check_name("forget_receipt_id", &self.forget_receipt_id) {
            return Ok(Err(refusal));
        }
        let found = forgetting(tx, &at.caller.tenant, &self.forget_receipt_id)?;
        let Some(mut forgetting) = found.filter(|found| found.passport == at.caller.passport || at.caller.tier == Tier::Operator) else {
            return Ok(Err(Refusal::not_found("forgetting", self.forget_receipt_id)));
        };
        let over = match forgetting.state {
            Stage::Recoverable if at.lease_now < forgetting.deadline => None,
            Stage::Recovered => Some("was undone before".to_string()),
            Stage::Recoverable | Stage::Purging | Stage::Purged => Some("can't be undone: its recovery window is over".into()),
        };
        if let Some(found) = over {
            return Ok(Err(Refusal::Spent { what: "forgetting".into(), id: self.forget_receipt_id, found }));
        }
        let rows = taken(tx, &forgetting, FORGET_FACTS_MAX)?;
        let (facts_recovered, mut active) = (rows.len() as u64, 0);
        for row in rows {
            active += u64::from(give_back(tx, at, row)?);
        }
        deadline::delete(tx, Kind::ForgettingByDeadline, forgetting.deadline, &forgetting.tenant, &forgetting.receipt_id);
        forgetting.state = Stage::Recovered;
        tx.put(&forgetting);
        let receipt_id = at.new_id("r_recover", 0);
        let body = receipt::body(&Recovered {
            schema: "cuecrux.receipt.forget_recovery.v1",
            receipt_id: &receipt_id,
            tenant_id: &at.caller.tenant,
            passport_id: &at.caller.passport,
            source_forget_receipt_id: &forgetting.receipt_id,
            facts_recovered,
            recovered_at: at.wall.to_rfc3339(),
        });
        receipt::append(tx, at, &receipt_id, body, Some(&at.caller.passport))?;
        let about = json!({ "facts": facts_recovered, "actor": at.caller.passport });
        event::emit(tx, at, "facts.recovered", &forgetting.receipt_id, about)?;
        Ok(Ok(FactsRecovered { forget_receipt_id: forgetting.receipt_id, receipt_id, facts_recovered, active }))
    }
}

/// Gives one version its value back; whether it is the active one again.
fn give_back(tx: &mut impl Tx, at: &Stamp, row: ForgottenFact) -> Result<bool, StorageError> {
    let fact = fact_of(tx, &row.tenant, &row.fact_id)?;
    let was_active = row.valid_to.is_none() && row.deleted_at.is_none();
    let mut head = head(tx, &fact.tenant, &fact.owner, &fact.entity, &fact.key)?;
    // What was stored meanwhile has replaced it.
    let successor = match was_active && head.last_version > fact.version {
        true => {
            let id = pair_id(&fact.owner, &fact.entity, &fact.key).number(fact.version + 1);
            Some(stored(tx, &fact.tenant, id.as_bytes())?)
        }
        false => None,
    };
    let is_active = was_active && successor.is_none();
    if is_active {
        head.active = Some(fact.version);
        tx.put(&head);
        entities::count(tx, &fact, 1)?;
    }
    let about = fact.about(&at.caller.passport);
    change(tx, fact, |fact| {
        fact.forgotten_by = None;
        fact.value = row.value.clone();
        fact.source_receipt = fact.source_receipt.take().or(row.source_receipt.clone());
        fact.deleted_at = row.deleted_at;
        if let Some(successor) = &successor {
            // It was valid up to its forgetting.
            fact.superseded_by = Some(successor.fact_id.clone());
        } else {
            fact.valid_to = row.valid_to;
        }
    });
    tx.delete(&row);
    if row.deleted_at.is_none() {
        event::emit(tx, at, "fact.recovered", &row.fact_id, about)?;
    }
    Ok(is_active)
}
