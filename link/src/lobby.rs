//! Where connections wait until they have shown that somebody speaks on them.
//!
//! Who connects and then says nothing, or says it a byte at a time, costs a place here and no more: the places are few, and
//! when all are taken the one that has waited longest gives way to the newcomer. So a flood of silent connections ends itself,
//! and a client that speaks at once gets in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The waiting connections.
pub struct Lobby {
    places: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    /// By order of arrival.
    seats: BTreeMap<u64, Arc<Notify>>,
}

/// A connection's place; given up when dropped.
pub struct Seat {
    lobby: Arc<Lobby>,
    number: u64,
    given_away: Arc<Notify>,
}

impl Lobby {
    /// `places` is 1 at least.
    pub fn new(places: usize) -> Arc<Self> {
        Arc::new(Self { places: places.max(1), waiting: Mutex::default() })
    }

    /// Always has room, if need be by sending the one away that has waited longest.
    pub fn enter(self: &Arc<Self>) -> Seat {
        let mut waiting = self.lock();
        if waiting.seats.len() >= self.places {
            waiting.dismiss_oldest();
        }
        let number = waiting.next;
        waiting.next += 1;
        let given_away = Arc::new(Notify::new());
        waiting.seats.insert(number, Arc::clone(&given_away));
        Seat { lobby: Arc::clone(self), number, given_away }
    }

    /// Sends the one away that has waited longest, for what else it holds; false when nobody waits.
    pub fn dismiss_oldest(&self) -> bool {
        self.lock().dismiss_oldest()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn dismiss_oldest(&mut self) -> bool {
        let oldest = self.seats.pop_first();
        if let Some((_, oldest)) = &oldest {
            oldest.notify_one();
        }
        oldest.is_some()
    }
}

impl Seat {
    /// Done when the place was given to another.
    pub async fn given_away(&self) {
        self.given_away.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.lobby.lock().seats.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_full_lobby_sends_the_oldest_away_and_one_that_left_makes_room() {
        let lobby = Lobby::new(2);
        let (first, second) = (lobby.enter(), lobby.enter());
        assert!(first.given_away().now_or_never().is_none());
        let third = lobby.enter();
        assert!(first.given_away().now_or_never().is_some());
        drop(second);
        let fourth = lobby.enter();
        assert!(third.given_away().now_or_never().is_none());
        assert!(fourth.given_away().now_or_never().is_none());
        assert!(lobby.dismiss_oldest() && third.given_away().now_or_never().is_some());
        assert!(lobby.dismiss_oldest() && fourth.given_away().now_or_never().is_some());
        assert!(!lobby.dismiss_oldest(), "nobody is left");
    }
}
