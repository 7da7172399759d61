//! The leader's part of the lease clock: how much time an entry may add.
//!
//! Time is taken from a clock that keeps running while the machine sleeps, so that a suspended leader can't hand out leases
//! that outlive the holder's own count. What a leader did not measure itself is never added: a leadership starts at zero, and
//! one entry adds at most [`LEASE_ADVANCE_MS_MAX`], whatever the clock says. Both only lengthen leases.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate_domain::UnixMs;
use quorate_domain::limit::LEASE_ADVANCE_MS_MAX;
use rustix::time::{ClockId, clock_gettime};

/// The clocks of a machine, which may be wrong in any way.
pub trait Clock: Send + Sync + 'static {
    /// Time since boot, including sleep.
    fn since_boot(&self) -> Duration;

    /// People's time.
    fn wall(&self) -> UnixMs;
}

/// Those of the machine that this process runs on.
pub struct SystemClock;

impl Clock for SystemClock {
    fn since_boot(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    fn wall(&self) -> UnixMs {
        // A clock before 1970 is a broken clock; the state machine never lets time run back, whatever is said here.
        UnixMs(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64))
    }
}

/// Up to where this leadership has already added its time to the lease clock.
#[derive(Default)]
pub struct LeaseMark {
    counted: Option<(u64, Duration)>,
}

impl LeaseMark {
    /// What the next entry of `term` adds, at `now` by [`Clock::since_boot`].
    pub fn advance_ms(&mut self, term: u64, now: Duration) -> u64 {
        let Some((marked_term, mark)) = self.counted.filter(|(marked_term, _)| *marked_term == term) else {
            self.counted = Some((term, now));
            return 0;
        };
        let elapsed_ms = now.saturating_sub(mark).as_millis() as u64;
        if elapsed_ms > LEASE_ADVANCE_MS_MAX {
            // The rest is dropped, not saved up: a leader that stood still must not run the clock to catch up.
            self.counted = Some((marked_term, now));
            return LEASE_ADVANCE_MS_MAX;
        }
        // By whole milliseconds, so that the fractions of many small steps are not lost.
        self.counted = Some((marked_term, mark + Duration::from_millis(elapsed_ms)));
        elapsed_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_leadership_starts_at_zero_and_keeps_fractions() {
        let mut mark = LeaseMark::default();
        let begin = ms(1_000_000);
        assert_eq!(mark.advance_ms(3, begin), 0);
        let added: u64 = (1..=101).map(|step| mark.advance_ms(3, begin + Duration::from_micros(700 * step))).sum();
        assert_eq!(added, 70, "70.7 ms less the fraction that is still open");
    }

    #[test]
    fn time_between_leaderships_counts_for_nothing() {
        let mut mark = LeaseMark::default();
        mark.advance_ms(3, ms(0));
        assert_eq!(mark.advance_ms(3, ms(400)), 400);
        assert_eq!(mark.advance_ms(7, ms(90_000)), 0);
        assert_eq!(mark.advance_ms(7, ms(90_100)), 100);
    }

    #[test]
    fn a_leader_that_stood_still_adds_the_cap_and_forgets_the_rest() {
        let mut mark = LeaseMark::default();
        mark.advance_ms(3, ms(0));
        assert_eq!(mark.advance_ms(3, ms(3_600_000)), LEASE_ADVANCE_MS_MAX);
        assert_eq!(mark.advance_ms(3, ms(3_600_010)), 10);
        assert_eq!(mark.advance_ms(3, ms(3_500_000)), 0, "a clock that runs back adds nothing");
    }
}
