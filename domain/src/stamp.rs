//! What an entry says of itself, and who asked for it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::quota::Quotas;
use crate::refusal::Refusal;
use crate::tenant::Arrivals;

/// The log index of the entry that made a change. It rises over the whole cluster and over restores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A point on the lease clock, in ms since the cluster began. Only log entries move that clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseTime(pub u64);

impl LeaseTime {
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// How long until `later`; zero once it has passed.
    pub fn ms_until(self, later: LeaseTime) -> u64 {
        later.0.saturating_sub(self.0)
    }
}

/// People's time: ms of the Unix epoch, from the leader's wall clock. Never used for expiry of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixMs(pub u64);

impl UnixMs {
    /// RFC 3339 in UTC with milliseconds, such as `2026-11-30T12:00:00.250Z`.
    pub fn to_rfc3339(self) -> String {
        // The last millisecond that jiff knows: a day before the end of the year 9999, so that every offset has a date.
        let ms = i64::try_from(self.0).unwrap_or(i64::MAX).min(253_402_207_200_000);
        let instant = jiff::Timestamp::from_millisecond(ms).expect("bounded to what jiff knows");
        format!("{instant:.3}")
    }

    /// Reads an RFC 3339 instant; an offset is required, and what is finer than a millisecond is dropped.
    pub fn from_rfc3339(text: &str) -> Option<Self> {
        let instant: jiff::Timestamp = text.parse().ok()?;
        u64::try_from(instant.as_millisecond()).ok().map(Self)
    }
}

/// How far a passport is trusted. Ranks are 0 to 3, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    Unverified,
    Verified,
    Elite,
    Operator,
}

impl Tier {
    pub const ALL: [Tier; 4] = [Tier::Unverified, Tier::Verified, Tier::Elite, Tier::Operator];

    pub fn word(self) -> &'static str {
        match self {
            Tier::Unverified => "unverified",
            Tier::Verified => "verified",
            Tier::Elite => "elite",
            Tier::Operator => "operator",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.word() == word)
    }

    pub fn rank(self) -> u8 {
        self as u8
    }
}

/// The name of a permission, such as `crux-mcp.store_fact` or `admin`. `*` is every one, `crux-mcp.*` all that begin so.
pub type Scope = String;

/// The authenticated caller of one request. Built by the gateway from a credential, never from arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    pub tenant: String,
    pub passport: String,
    pub tier: Tier,
    pub scopes: BTreeSet<Scope>,
}

impl Principal {
    pub fn may(&self, scope: &str) -> bool {
        let covers = |granted: &String| match granted.strip_suffix('*') {
            Some(start) => scope.starts_with(start),
            None => granted == scope,
        };
        self.scopes.iter().any(covers)
    }
}

/// Names one intended effect, so that a retry has none of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestId {
    pub id: String,
    /// When it was first sent. Older than what is still remembered: refused, never run again.
    pub issued_at: UnixMs,
    /// Chosen by the caller (an idempotency key), and so remembered for long.
    pub keyed: bool,
}

/// What one entry says of itself; nothing else comes into a rule from outside.
#[derive(Clone, Debug)]
pub struct Stamp {
    /// What the change is numbered by, in the tenant of the caller. The entry's log index, but in a tenant that came from another
    /// cluster: there it goes on above what that tenant ever had.
    pub revision: Revision,
    /// The log index of the entry.
    pub entry: Revision,
    pub lease_now: LeaseTime,
    /// Never behind the stamp of an earlier entry, whatever the leaders' clocks say.
    pub wall: UnixMs,
    pub caller: Principal,
    /// The live card of the caller that the call is made under, checked before the command runs.
    pub under: Option<Revision>,
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) quotas: Arc<Quotas>,
}

impl Stamp {
    /// The stamp of an entry for one caller, under no card.
    pub(crate) fn of(entry: Revision, lease_now: LeaseTime, wall: UnixMs, caller: Principal, arrivals: Arc<Arrivals>) -> Self {
        Self {
            revision: arrivals.within(&caller.tenant, entry),
            entry,
            lease_now,
            wall,
            caller,
            under: None,
            arrivals,
            quotas: Arc::default(),
        }
    }

    /// The same where no tenant has terms of its own: what a rule is asked with that is called by itself.
    pub fn plain(entry: Revision, lease_now: LeaseTime, wall: UnixMs, caller: Principal) -> Self {
        Self::of(entry, lease_now, wall, caller, Arc::default())
    }

    /// The same entry acting in another tenant: how a sweep ends that tenant's records.
    pub(crate) fn within(&self, tenant: &str) -> Self {
        let caller = Principal { tenant: tenant.into(), ..self.caller.clone() };
        Self { caller, revision: self.arrivals.within(tenant, self.entry), ..self.clone() }
    }

    /// The log index that a revision of the caller's tenant is of.
    pub(crate) fn entry_of(&self, revision: Revision) -> Revision {
        Revision(revision.0.saturating_sub(self.revision.0 - self.entry.0))
    }

    /// As a query is asked that a command needs answered.
    pub(crate) fn reading(&self) -> ReadStamp {
        ReadStamp { revision: self.entry, lease_now: self.lease_now, wall: self.wall, caller: self.caller.clone() }
    }

    /// The refusal of a call in a tenant that is not all here.
    pub(crate) fn refuse_arriving(&self) -> Option<Refusal> {
        self.arrivals.refuse(&self.caller.tenant)
    }

    /// A 32-digit id that every replica derives alike. `n` tells apart the ids of one entry.
    pub fn new_id(&self, prefix: &str, n: u64) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("quorate 2026 record id");
        hasher.update(&Key128(self.revision.0, n).bytes());
        hasher.update(self.caller.tenant.as_bytes());
        hasher.update(&[0]);
        hasher.update(prefix.as_bytes());
        format!("{prefix}_{}", hex::encode(&hasher.finalize().as_bytes()[..16]))
    }
}

struct Key128(u64, u64);

impl Key128 {
    fn bytes(&self) -> [u8; 16] {
        (u128::from(self.0) << 64 | u128::from(self.1)).to_be_bytes()
    }
}

/// What a query knows besides the state: who asks, and the serving node's clocks.
#[derive(Clone, Debug)]
pub struct ReadStamp {
    /// The last applied revision of the state that is read.
    pub revision: Revision,
    pub lease_now: LeaseTime,
    pub wall: UnixMs,
    pub caller: Principal,
}
