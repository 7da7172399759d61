//! A card of the gateway's own, so that of several gateways one does what needs doing once.

use std::time::{Duration, Instant};

use quorate_domain::punchcard::{CheckPunchcard, PunchIn, PunchOut, PunchedIn};
use quorate_domain::{Principal, Refusal};

use crate::call::CallError;
use crate::cluster::{Cluster, Consistency, new_request};

/// How long the card lasts without a renewal, and when it is renewed: a gateway that dies is missed for that long.
const CARD_TTL: Duration = Duration::from_secs(15);
const CARD_RENEWED: Duration = Duration::from_secs(5);
/// How often who has no card looks whether somebody does.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long one write or read of the cluster may take. Shorter than the card lasts.
pub const WITHIN: Duration = Duration::from_secs(5);

/// What can be held, and by whom.
pub struct Lease {
    pub cluster: Cluster,
    /// A name for each run: one that was restarted must not take the card of its former life for its own.
    pub me: Principal,
    pub resource: &'static str,
    pub reason: &'static str,
}

/// The card, for as long as it is ours.
pub struct Card<'a> {
    lease: &'a Lease,
    pub token: u64,
    renewed: Instant,
}

impl Lease {
    /// Takes the card if nobody has it. Looked at first: a refusal would be an entry of the log every two seconds.
    pub async fn take(&self) -> Option<Card<'_>> {
        let deadline = Instant::now() + WITHIN;
        let look = CheckPunchcard { resource: self.resource.into(), mode: None, passport: None };
        let (seen, _) = self.cluster.read_as(&self.me, look, Consistency::Linearizable, deadline).await.ok()?;
        if seen.held_by_other {
            return None;
        }
        let mut card = Card { lease: self, token: 0, renewed: Instant::now() };
        match card.punch_in(None).await {
            Ok(()) => Some(card),
            // Another gateway was quicker.
            Err(CallError::Refused(Refusal::Held { .. }) | CallError::Overloaded) => None,
            Err(error) => {
                tracing::warn!(%error, resource = self.resource, "this gateway gets no punchcard");
                None
            }
        }
    }
}

impl Card<'_> {
    async fn punch_in(&mut self, under: Option<u64>) -> Result<(), CallError> {
        let Lease { cluster, me, resource, reason } = self.lease;
        let ask = PunchIn {
            resource: (*resource).into(),
            holder_passport: me.passport.clone(),
            tenant_id: None,
            mode: None,
            reason: Some((*reason).into()),
            ttl_ms: Some(u64::try_from(CARD_TTL.as_millis()).unwrap_or(u64::MAX)),
            expires_at: None,
            wait_ms: None,
            lock_delay_ms: None,
            attended: false,
        };
        let asked = Instant::now();
        match cluster.propose_as(me, ask, under, new_request(), asked + WITHIN).await?.0 {
            // In advisory mode another one may hold it all the same; there is one holder only if this one steps back.
            PunchedIn::Granted { card, conflict: None, .. } => {
                (self.token, self.renewed) = (card.fencing_token.0, asked);
                Ok(())
            }
            PunchedIn::Granted { .. } | PunchedIn::Queued { .. } | PunchedIn::Left { .. } => Err(CallError::Overloaded),
        }
    }

    /// Renews the card when it is time. An error: it is lost, or nobody can tell.
    pub async fn keep(&mut self) -> Result<(), CallError> {
        if self.renewed.elapsed() < CARD_RENEWED {
            return Ok(());
        }
        match self.punch_in(Some(self.token)).await {
            // It may still be ours; the next try comes before it ends.
            Err(CallError::NoLeader { .. } | CallError::Unknown { .. }) if self.renewed.elapsed() < CARD_TTL => Ok(()),
            kept => kept,
        }
    }

    pub async fn give_back(&self) {
        let Lease { cluster, me, resource, .. } = self.lease;
        let holder_passport = me.passport.clone();
        let out = PunchOut { resource: (*resource).into(), holder_passport, tenant_id: None, release_commit_sha: None };
        let deadline = Instant::now() + Duration::from_secs(2);
        // If it fails, the card ends by itself.
        let _ = cluster.propose_as(me, out, Some(self.token), new_request(), deadline).await;
    }
}
