//! The clocks of a simulated node: the simulation's time, and what is wrong with it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorate_domain::UnixMs;
use quorate_raft::Clock;

use super::plant::Plant;
use super::process;

/// Clones are the same clocks.
#[derive(Clone, Default)]
pub struct SkewedClock {
    skew: Arc<Mutex<Skew>>,
    /// A planted bug: the lease clock is told the wall clock's time.
    lease_by_wall: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Skew {
    /// Of the wall clock, which jumps.
    wall_ms: i64,
    /// How much faster both clocks run, in a million.
    drift_ppm: i64,
    /// When the drift began, and what it had come to by then.
    since: Duration,
    drifted_us: i64,
}

impl Skew {
    fn drifted_us(&self, now: Duration) -> i64 {
        self.drifted_us + (now.saturating_sub(self.since).as_micros() as i64) * self.drift_ppm / 1_000_000
    }
}

impl SkewedClock {
    pub fn new(plant: Option<Plant>) -> Self {
        Self { skew: Arc::default(), lease_by_wall: plant == Some(Plant::LeaseByWallClock) }
    }

    /// Puts the wall clock so far off.
    pub fn step_wall(&self, wall_ms: i64) {
        self.lock().wall_ms = wall_ms;
    }

    /// Lets both clocks run so much faster from now on. What the monotonic one has gained stays: it never jumps.
    pub fn drift(&self, drift_ppm: i64) {
        let now = process::elapsed();
        let mut skew = self.lock();
        skew.drifted_us = skew.drifted_us(now);
        skew.since = now;
        skew.drift_ppm = drift_ppm;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Skew> {
        self.skew.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for SkewedClock {
    fn since_boot(&self) -> Duration {
        if self.lease_by_wall {
            return Duration::from_millis(self.wall().0);
        }
        const BOOTED_BEFORE_US: i64 = 1_000_000_000;
        let now = process::elapsed();
        let us = BOOTED_BEFORE_US + now.as_micros() as i64 + self.lock().drifted_us(now);
        // More than the drift of any run can take away.
        Duration::from_micros(us.unsigned_abs())
    }

    fn wall(&self) -> UnixMs {
        let now = process::elapsed();
        let skew = *self.lock();
        let true_ms = (process::WALL_BASE + now).as_millis() as u64;
        UnixMs(true_ms.saturating_add_signed(skew.wall_ms + skew.drifted_us(now) / 1_000))
    }
}
