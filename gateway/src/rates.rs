//! How often a tenant, and a passport, may call: buckets of this gateway, which fill up again with time.
//!
//! Calls that take, keep, look at or give back leases have a lane of their own: a flood of other calls never makes a holder lose
//! its lease, and a flood of renewals takes nothing from the other calls. A refused call takes nothing from any bucket.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use quorate_domain::Principal;

use crate::call::CallError;
use crate::limit::BUCKETS_MAX;
use crate::registry::Tool;
use crate::tools::punchcards::{CheckPunchcard, ForceRelease, PunchIn, PunchOut};

/// What a call is about, as far as rates tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    Ordinary,
    Leases,
}

impl Lane {
    pub const ALL: [Lane; 2] = [Lane::Ordinary, Lane::Leases];

    /// By the scope that a call needs.
    pub fn of(scope: &str) -> Self {
        match [PunchIn::SCOPE, PunchOut::SCOPE, CheckPunchcard::SCOPE, ForceRelease::SCOPE].contains(&scope) {
            true => Lane::Leases,
            false => Lane::Ordinary,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Lane::Ordinary => "ordinary",
            Lane::Leases => "leases",
        }
    }
}

/// Whose bucket it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Tenant,
    Passport,
}

impl Whose {
    pub const ALL: [Whose; 2] = [Whose::Tenant, Whose::Passport];

    pub fn word(self) -> &'static str {
        match self {
            Whose::Tenant => "tenant",
            Whose::Passport => "passport",
        }
    }
}

/// So many calls in a second over time, and so many at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub per_second: u32,
    pub burst: u32,
}

impl Rate {
    /// The time that one call takes out of a bucket.
    fn each(self) -> Duration {
        Duration::from_secs(1) / self.per_second
    }

    /// When a bucket is full that is full at `full_at` and gives one call away now; or how long to wait for that call.
    fn take(self, full_at: Option<Instant>, now: Instant) -> Result<Instant, Duration> {
        let next = full_at.map_or(now, |full_at| full_at.max(now)) + self.each();
        match (next - now).checked_sub(self.each() * self.burst).filter(|left| !left.is_zero()) {
            None => Ok(next),
            Some(left) => Err(left),
        }
    }
}

/// The rates of a gateway, and what was taken. A tenant's own bucket has an empty passport.
#[derive(Default)]
pub struct Rates {
    tenant: Option<Rate>,
    passport: Option<Rate>,
    full_at: Mutex<HashMap<(String, String, Lane), Instant>>,
    refused: [[AtomicU64; Whose::ALL.len()]; Lane::ALL.len()],
}

impl Rates {
    pub fn new(tenant: Option<Rate>, passport: Option<Rate>) -> Self {
        Self { tenant, passport, ..Self::default() }
    }

    /// Takes one call out of the buckets of its caller, or says how long it has to wait.
    pub fn take(&self, caller: &Principal, lane: Lane, now: Instant) -> Result<(), CallError> {
        if self.tenant.is_none() && self.passport.is_none() {
            return Ok(());
        }
        let buckets = [(Whose::Passport, self.passport, caller.passport.as_str()), (Whose::Tenant, self.tenant, "")];
        let mut known = self.full_at.lock().expect("no panic under the lock");
        let mut taken = Vec::with_capacity(buckets.len());
        for (whose, rate, passport) in buckets {
            let Some(rate) = rate else { continue };
            let key = (caller.tenant.clone(), passport.to_owned(), lane);
            match rate.take(known.get(&key).copied(), now) {
                Ok(full_at) => taken.push((key, full_at)),
                Err(left) => {
                    self.refused[lane as usize][whose as usize].fetch_add(1, Relaxed);
                    // Rounded up: nobody should come back a moment too early.
                    let retry_after_ms = u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
                    return Err(CallError::TooMany { whose, lane, per_second: rate.per_second, retry_after_ms });
                }
            }
        }
        if known.len() >= BUCKETS_MAX {
            // A full one is as good as none.
            known.retain(|_, full_at| *full_at > now);
        }
        known.extend(taken);
        Ok(())
    }

    pub fn refused(&self, lane: Lane, whose: Whose) -> u64 {
        self.refused[lane as usize][whose as usize].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use quorate_domain::Tier;

    use super::*;

    fn caller(tenant: &str, passport: &str) -> Principal {
        Principal { tenant: tenant.into(), passport: passport.into(), tier: Tier::Verified, scopes: Default::default() }
    }

    fn rate(per_second: u32, burst: u32) -> Option<Rate> {
        Some(Rate { per_second, burst })
    }

    /// How many of so many calls at one moment are served.
    fn served(rates: &Rates, caller: &Principal, lane: Lane, now: Instant, calls: usize) -> usize {
        (0..calls).filter(|_| rates.take(caller, lane, now).is_ok()).count()
    }

    #[test]
    fn a_burst_is_served_at_once_and_then_so_many_a_second() {
        let (rates, mara, begin) = (Rates::new(rate(10, 5), None), caller("acme", "mara"), Instant::now());
        assert_eq!(served(&rates, &mara, Lane::Ordinary, begin, 100), 5);
        assert_eq!(served(&rates, &mara, Lane::Ordinary, begin + Duration::from_millis(99), 100), 0);
        assert_eq!(served(&rates, &mara, Lane::Ordinary, begin + Duration::from_millis(300), 100), 3);
        assert_eq!(served(&rates, &mara, Lane::Ordinary, begin + Duration::from_secs(60), 100), 5, "never more than a burst");
    }

    #[test]
    fn who_waits_as_long_as_it_is_told_is_served() {
        let (rates, mara, begin) = (Rates::new(rate(3, 1), None), caller("acme", "mara"), Instant::now());
        rates.take(&mara, Lane::Ordinary, begin).expect("the first");
        let now = begin + Duration::from_millis(10);
        let Err(CallError::TooMany { whose, retry_after_ms, .. }) = rates.take(&mara, Lane::Ordinary, now) else { panic!("refused") };
        assert_eq!((whose, retry_after_ms), (Whose::Tenant, 324));
        assert!(rates.take(&mara, Lane::Ordinary, now + Duration::from_millis(retry_after_ms)).is_ok());
        // However short the wait is, it is told as one.
        let almost = now + Duration::from_millis(retry_after_ms) + Duration::from_secs(1) / 3 - Duration::from_nanos(1);
        let Err(CallError::TooMany { retry_after_ms, .. }) = rates.take(&mara, Lane::Ordinary, almost) else { panic!("refused") };
        assert_eq!(retry_after_ms, 1);
    }

    #[test]
    fn one_tenant_takes_nothing_from_another_and_one_passport_nothing_from_the_next() {
        let (rates, now) = (Rates::new(rate(10, 8), rate(10, 4)), Instant::now());
        assert_eq!(served(&rates, &caller("acme", "mara"), Lane::Ordinary, now, 100), 4);
        assert_eq!(served(&rates, &caller("acme", "jon"), Lane::Ordinary, now, 100), 4);
        assert_eq!(served(&rates, &caller("acme", "nina"), Lane::Ordinary, now, 100), 0, "the tenant's own bucket is empty");
        assert_eq!(served(&rates, &caller("other", "mara"), Lane::Ordinary, now, 100), 4);
        assert_eq!((rates.refused(Lane::Ordinary, Whose::Passport), rates.refused(Lane::Ordinary, Whose::Tenant)), (96 * 3, 100));
    }

    #[test]
    fn a_refused_call_takes_nothing_from_the_other_bucket() {
        let (rates, now) = (Rates::new(rate(10, 6), rate(10, 2)), Instant::now());
        assert_eq!(served(&rates, &caller("acme", "mara"), Lane::Ordinary, now, 100), 2);
        assert_eq!(served(&rates, &caller("acme", "jon"), Lane::Ordinary, now, 2), 2);
        assert_eq!(served(&rates, &caller("acme", "nina"), Lane::Ordinary, now, 2), 2, "six in all, whatever was refused to mara");
    }

    #[test]
    fn leases_have_a_lane_that_other_calls_never_use_up() {
        let (rates, mara, now) = (Rates::new(rate(10, 5), rate(10, 5)), caller("acme", "mara"), Instant::now());
        assert_eq!(served(&rates, &mara, Lane::Ordinary, now, 100), 5);
        assert_eq!(served(&rates, &mara, Lane::of(PunchIn::SCOPE), now, 100), 5);
        assert_eq!(Lane::of(PunchOut::SCOPE), Lane::Leases);
        assert_eq!(Lane::of("crux-mcp.store_fact"), Lane::Ordinary);
    }

    #[test]
    fn without_a_rate_nothing_is_refused_or_remembered() {
        let rates = Rates::default();
        assert_eq!(served(&rates, &caller("acme", "mara"), Lane::Ordinary, Instant::now(), 1_000), 1_000);
        assert!(rates.full_at.lock().expect("no panic").is_empty());
    }
}
