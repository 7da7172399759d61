//! Lineages: how a cluster begins anew from a backup or a survivor, and what that ends.
//!
//! A restore goes back to the state at one revision and leaves the rest of the old history behind, although its revisions and
//! fencing tokens are out in the world and its nodes may still run. So the new history begins so much higher that no revision
//! of any other one can meet it, and the gap is written down:
//! * No token of the old lineage is valid: those of cards that were held are handed out again as higher ones (the holder learns
//!   its new one by punching in again), and those handed out after the backup are of no card here.
//! * A resource outside that remembers the highest token it has seen goes on accepting the new ones.
//! * A watcher, or a read, that names a revision of the gap is told that it is gone.
//!
//! A card that was held stays held for the time that was left of it on the lease clock: its holder may still be at work.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::machine::Clock;
use crate::overlay::{Overlay, Writes};
use crate::punchcard;
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords};
use crate::stamp::{Revision, Stamp, UnixMs};
use crate::tenant::Arrivals;
use crate::tx::{Read, StorageError, Table};

/// 2026-01-01T00:00:00Z. Revisions that begin as below stay exact as JSON numbers (2^53) until 2094.
const EPOCH_UNIX_S: u64 = 1_767_225_600;
/// A lineage that began at any time before has not reached the revision of a later second, unless it wrote 2^22 entries a
/// second all along.
const REVISIONS_PER_SECOND: u32 = 22;
/// Where the clock says less: a second's worth. More would let two restores of one backup begin at the same revision.
const AHEAD_MIN: u64 = 1 << REVISIONS_PER_SECOND;
/// A clock that is behind the state's own last entry is wrong; so much is taken to have passed since, more than the old lineage
/// writes after its backup.
const CLOCK_BEHIND_MS: u64 = 24 * 3_600 * 1_000;
/// Cards in one commit.
const BATCH: usize = 500;

/// Where histories were cut.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lineage {
    /// In order; each was an operator's act, so they are few.
    pub cuts: Vec<Cut>,
}

/// The end of one lineage and the begin of the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// The lineage that begins.
    pub lineage: u64,
    /// The last revision of the one before that is kept.
    pub through: Revision,
    /// Everything below this and above `through` is of a history that is no more.
    pub from: Revision,
    /// By the clock of the machine that began it.
    pub at: UnixMs,
}

impl Record for Lineage {
    const KIND: Kind = Kind::Lineage;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

impl Lineage {
    pub fn read(view: &(impl Read + ?Sized)) -> Result<Self, StorageError> {
        Ok(view.get(CLUSTER, &Key::new())?.unwrap_or_default())
    }

    /// The cut that left this revision behind.
    pub fn lost(&self, revision: Revision) -> Option<&Cut> {
        self.cuts.iter().find(|cut| cut.through < revision && revision < cut.from)
    }
}

/// Where a lineage begins that keeps another one's history up to `through`: above every revision that any lineage can have had
/// until now.
pub fn first_revision(through: Revision, now: UnixMs) -> Revision {
    let seconds = (now.0 / 1_000).saturating_sub(EPOCH_UNIX_S);
    Revision((seconds << REVISIONS_PER_SECOND).max(through.0 + AHEAD_MIN))
}

/// What a new lineage begins with.
#[derive(Clone, Debug, PartialEq)]
pub struct Begun {
    pub cut: Cut,
    /// The log goes on behind this.
    pub last: Revision,
    /// Cards that are held and got a new token.
    pub cards: usize,
}

/// Begins a lineage on a state that nobody else uses. `commit` makes the writes a part of `state`, batch by batch; one that is
/// interrupted leaves a state to throw away.
pub fn begin<S: Read>(
    state: &S,
    lineage: u64,
    through: Revision,
    now: UnixMs,
    mut commit: impl FnMut(Writes) -> Result<(), StorageError>,
) -> Result<Begun, StorageError> {
    let mut clock = Clock::read(state)?;
    let begins = if now > clock.wall { now } else { UnixMs(clock.wall.0.saturating_add(CLOCK_BEHIND_MS)) };
    clock.wall = clock.wall.max(now);
    let cut = Cut { lineage, through, from: first_revision(through, begins), at: now };
    clock.revision = cut.from;
    let held = punchcard::all_held(state)?;
    let arrivals = Arc::new(Arrivals::read(state)?);
    for batch in held.chunks(BATCH) {
        let mut tx = Overlay::new(state);
        for (tenant, card) in batch {
            clock.revision.0 += 1;
            let caller = crate::identity::system();
            let at = Stamp::of(clock.revision, clock.lease_now, clock.wall, caller, Arc::clone(&arrivals)).within(tenant);
            punchcard::reissue(&mut tx, &at, card)?;
        }
        commit(tx.into_writes())?;
    }
    let mut tx = Overlay::new(state);
    let mut known = Lineage::read(state)?;
    known.cuts.push(cut.clone());
    tx.put(&known);
    tx.put(&clock);
    commit(tx.into_writes())?;
    Ok(Begun { cut, last: clock.revision, cards: held.len() })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::event::{self, Watched};
    use crate::punchcard::{PunchIn, PunchOut, Punchcard, PunchedIn};
    use crate::refusal::Refusal;
    use crate::transcript::{WALL, World, person};
    use crate::tx::{Direction, Row};

    const HOUR_MS: u64 = 3_600_000;

    fn punch_in(resource: &str, holder: &str) -> PunchIn {
        PunchIn {
            resource: resource.into(),
            holder_passport: holder.into(),
            tenant_id: None,
            mode: None,
            reason: None,
            ttl_ms: Some(HOUR_MS),
            expires_at: None,
            wait_ms: None,
            ..PunchIn::default()
        }
    }

    fn card(world: &mut World, time: &str, resource: &str, holder: &str) -> Punchcard {
        match world.call(time, person(holder), None, punch_in(resource, holder)) {
            Ok(PunchedIn::Granted { card, .. }) => card,
            other => panic!("{resource} for {holder}: {other:?}"),
        }
    }

    /// A state that takes commits while it is read, as a store does.
    struct Shared(RefCell<World>);

    impl Read for Shared {
        fn get_bytes(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
            self.0.borrow().state.get_bytes(table, key)
        }
        fn scan_bytes(&self, table: Table, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> Result<Vec<Row>, StorageError> {
            self.0.borrow().state.scan_bytes(table, from, to, direction, limit)
        }
    }

    fn restored(world: World) -> (World, Begun) {
        let through = Clock::read(&world.state).expect("a clock").revision;
        let shared = Shared(RefCell::new(world));
        let commit = |writes| {
            shared.0.borrow_mut().state.absorb(writes);
            Ok(())
        };
        let begun = begin(&shared, 77, through, UnixMs(WALL), commit).expect("no fault");
        let mut world = shared.0.into_inner();
        world.go_on_behind(begun.last);
        (world, begun)
    }

    #[test]
    fn a_lineage_begins_above_whatever_another_can_have_reached() {
        let day = |n: u64| UnixMs((EPOCH_UNIX_S + n * 86_400) * 1_000);
        let first = first_revision(Revision(500), day(300));
        // The same backup again, a second later, after the first restore wrote four million entries.
        let again = first_revision(Revision(500), UnixMs(day(300).0 + 1_000));
        assert!(again.0 >= first.0 + 4_000_000);
        // The same soon after that: a backup of a young lineage, restored twice.
        let young = Revision(first.0 + 1_000);
        let (one, other) = (first_revision(young, UnixMs(day(300).0 + 60_000)), first_revision(young, UnixMs(day(300).0 + 120_000)));
        assert!(other.0 >= one.0 + 200_000_000 && one.0 > young.0 + 200_000_000);
        assert_eq!(first_revision(first, UnixMs(0)), Revision(first.0 + AHEAD_MIN));
        assert!(first_revision(Revision(500), day(60 * 365)).0 < 1 << 53, "a JSON number holds it");
    }

    #[test]
    fn a_card_that_was_held_stays_held_under_a_new_token_and_the_old_one_is_refused() {
        let mut world = World::new();
        let old = card(&mut world, "0s", "file://a", "mara");
        let (mut world, begun) = restored(world);
        assert_eq!(begun.cards, 1);

        let out = PunchOut { resource: "file://a".into(), holder_passport: "mara".into(), tenant_id: None, release_commit_sha: None };
        let late = world.call("1s", person("mara"), Some(old.fencing_token), out.clone());
        assert!(matches!(late, Err(Refusal::StaleToken { .. })), "{late:?}");
        let other = world.call("2s", person("jon"), None, punch_in("file://a", "jon"));
        assert!(matches!(other, Err(Refusal::Held { .. })), "{other:?}");

        let renewed = card(&mut world, "3s", "file://a", "mara");
        assert_eq!(renewed.id, old.id);
        assert!(renewed.fencing_token > begun.cut.from && renewed.fencing_token <= begun.last);
        world.call("4s", person("mara"), Some(renewed.fencing_token), out).expect("the new token is good");
        let next = card(&mut world, "5s", "file://a", "jon");
        assert!(next.fencing_token > renewed.fencing_token);
    }

    #[test]
    fn a_clock_that_is_wrong_leaves_the_old_tokens_far_below() {
        let mut world = World::new();
        card(&mut world, "0s", "file://a", "mara");
        let last = Clock::read(&world.state).expect("a clock").wall;
        let (_, begun) = restored(world);
        assert_eq!(begun.cut.at, last, "the clock has not moved since");
        assert!(begun.cut.from.0 >= first_revision(Revision(0), last).0 + (1 << 38));
    }

    #[test]
    fn each_card_gets_a_token_of_its_own_in_the_order_of_the_old_ones() {
        let mut world = World::new();
        for name in ["b", "a", "c"] {
            card(&mut world, "0s", &format!("file://{name}"), "mara");
        }
        let (mut world, _) = restored(world);
        let tokens: Vec<Revision> =
            ["b", "a", "c"].map(|name| card(&mut world, "1s", &format!("file://{name}"), "mara").fencing_token).into();
        assert!(tokens.is_sorted_by(|one, other| one < other), "{tokens:?}");
    }

    #[test]
    fn a_watcher_of_the_history_that_was_left_behind_is_told_so_and_an_older_one_goes_on() {
        let mut world = World::new();
        card(&mut world, "0s", "file://a", "mara");
        let (world, begun) = restored(world);
        let watch = |since: u64| event::watch(&world.state, "acme", Revision(since), 10).expect("no fault");
        assert_eq!(watch(begun.cut.through.0 + 5), Watched::Compacted { through: begun.cut.from });
        let Watched::Events(events) = watch(begun.cut.through.0) else { panic!("the kept history goes on") };
        assert_eq!(events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["punchcard.renewed"], "the new token is told");
    }
}
