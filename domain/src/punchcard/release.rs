//! Letting a card go: its holder gives it back, or an operator takes it away.

use serde::{Deserialize, Serialize};

use super::held::Held;
use super::{Ending, Punchcard, Status, by_resource, card, end, holder, indexed, not_this_card, text};
use crate::identity::{check_name, check_text};
use crate::limit::HAND_OVERS_PER_ENTRY;
use crate::refusal::{Applied, Refusal, shown};
use crate::resource::Resource;
use crate::stamp::{Principal, Stamp, Tier};
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// Gives a card back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PunchOut {
    pub resource: String,
    pub holder_passport: String,
    pub tenant_id: Option<String>,
    pub release_commit_sha: Option<String>,
}

impl PunchOut {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Punchcard> {
        let holder = match holder(tx, at, self.holder_passport, self.tenant_id.as_deref())? {
            Ok(holder) => holder,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let resource = match Resource::parse(&self.resource) {
            Ok(resource) => resource,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(refusal) = self.release_commit_sha.as_deref().and_then(|sha| check_name("release_commit_sha", sha)) {
            return Ok(Err(refusal));
        }
        let held = Held::now(&*tx, &at.caller.tenant, at.lease_now);
        let own = held.on(&resource)?.into_iter().find(|hold| hold.holder == holder);
        // What this very entry granted from the queue, the caller did not hold when it called.
        let Some(hold) = own.filter(|hold| hold.token != at.revision) else {
            return not_held(tx, at, &resource, &holder).map(Err);
        };
        if at.under.is_some_and(|token| token != hold.token) {
            return Ok(Err(not_this_card(at, &resource)));
        }
        let card = indexed(tx, &at.caller.tenant, &hold.id)?;
        let card = Punchcard { release_commit_sha: self.release_commit_sha, ..card };
        end(tx, at, card, Ending::Released, &mut { HAND_OVERS_PER_ENTRY }).map(Ok)
    }
}

/// Why there is nothing to let go, and who holds it now or held it last.
pub(super) fn not_held(view: &impl Read, at: &Stamp, resource: &Resource, holder: &str) -> Result<Refusal, StorageError> {
    let (tenant, now) = (&at.caller.tenant, at.lease_now);
    let asked = shown(&resource.to_string());
    if let Some(hold) = Held::now(view, tenant, now).other(resource, holder)? {
        let on = shown(&indexed(view, tenant, &hold.id)?.resource);
        let problem = format!("`{asked}` is not held by `{holder}`: `{}` holds `{on}` under token {}", hold.holder, hold.token);
        return Ok(Refusal::StaleToken { problem });
    }
    let history = by_resource(tenant, &resource.to_string());
    let last = view.scan_bytes(Table::Index, history.as_bytes(), &history.after_prefix(), Direction::Ascending, 1)?.pop();
    let Some((_, id)) = last else { return Ok(Refusal::not_found("punchcard", resource.to_string())) };
    let last = indexed(view, tenant, &text(&id)?)?.seen_at(now);
    let problem = match last.status {
        Status::Held => format!("`{asked}` was granted to `{holder}` only now, under token {}", last.fencing_token),
        status => format!("`{asked}` is not held by `{holder}`: the last card, of `{}`, is {}", last.holder, status.word()),
    };
    Ok(Refusal::StaleToken { problem })
}

/// Takes a card from its holder: an operator's act, with a reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForceRelease {
    pub punchcard_id: String,
    pub confirm: bool,
    pub reason: Option<String>,
    /// A claim: must be the caller.
    pub by_passport: Option<String>,
}

impl ForceRelease {
    /// Whether somebody may take another's card at all.
    pub fn is_for(caller: &Principal) -> bool {
        caller.may("admin") || caller.tier >= Tier::Operator
    }

    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Punchcard> {
        let caller = &at.caller;
        if !ForceRelease::is_for(caller) {
            return Ok(Err(Refusal::Denied { problem: "taking another's card needs the scope `admin` or the tier operator".into() }));
        }
        if self.by_passport.as_ref().is_some_and(|claim| *claim != caller.passport) {
            return Ok(Err(Refusal::Denied { problem: format!("`by_passport` is not the caller, who is `{}`", caller.passport) }));
        }
        if !self.confirm {
            return Ok(Err(Refusal::invalid("confirm", "must be true: this takes the card from its holder")));
        }
        if let Some(refusal) = check_name("punchcard_id", &self.punchcard_id)
            .or_else(|| self.reason.as_deref().and_then(|reason| check_text("reason", reason)))
        {
            return Ok(Err(refusal));
        }
        let Some(card) = card(tx, &caller.tenant, &self.punchcard_id)? else {
            return Ok(Err(Refusal::not_found("punchcard", self.punchcard_id)));
        };
        let found = match card.clone().seen_at(at.lease_now).status {
            Status::Held if card.fencing_token == at.revision => Some("granted only now"),
            Status::Held => None,
            ended => Some(ended.word()),
        };
        if let Some(found) = found {
            return Ok(Err(Refusal::Changed { what: "punchcard".into(), id: card.id, expected: "held".into(), found: found.into() }));
        }
        let by = caller.passport.clone();
        end(tx, at, card, Ending::Forced { by, reason: self.reason }, &mut { HAND_OVERS_PER_ENTRY }).map(Ok)
    }
}
