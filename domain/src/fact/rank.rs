//! The order of recall, and the walk that follows it.
//!
//! Facts are ranked by effective confidence, then newest first. Effective confidence falls by half when a fact passes its
//! horizon, without a write, so no index can hold that order as such. What the index holds is, for each state and horizon
//! class, stored confidence and then age, since the fact was stored or last reverified: within one class and confidence the
//! fresh facts stand before the stale ones. A walk merges the fresh half and the stale half of every class, each read lazily
//! and jumping over the other half, and so reads about as many rows as it yields.
//!
//! Rows stand in two lanes: of one owner, and of one entity of one owner.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use super::{Fact, HorizonClass};
use crate::key::Key;
use crate::record::{Kind, kind_prefix};
use crate::stamp::UnixMs;
use crate::tx::{Direction, Read, Row, StorageError, Table};

/// What a version is now. On disk: part of index keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    Active = 0,
    Superseded = 1,
    Deleted = 2,
    /// In no list: its value is gone.
    Forgotten = 3,
}

/// A fact's place among others: what comes first is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    /// Effective confidence in half millionths, so that halving loses nothing.
    strength: Reverse<u32>,
    stored_at: Reverse<u64>,
    revision: Reverse<u64>,
    tie: [u8; 16],
}

impl Order {
    const BYTES: usize = 4 + 8 + 8 + 16;

    pub(super) fn of(fact: &Fact, now: UnixMs) -> Self {
        Ranked::of(fact).order(now)
    }

    /// Effective confidence in half millionths.
    pub(super) fn strength(&self) -> u32 {
        self.strength.0 & !NAMED
    }

    /// The same place among those that come before all others: what was asked for by its name.
    pub(super) fn named(self) -> Self {
        Self { strength: Reverse(self.strength.0 | NAMED), ..self }
    }

    pub(super) fn is_named(&self) -> bool {
        self.strength.0 & NAMED != 0
    }

    /// Before every fact of this strength that was stored at or before `stored_at`.
    fn before(strength: u32, stored_at: u64) -> Self {
        Self { strength: Reverse(strength), stored_at: Reverse(stored_at), revision: Reverse(u64::MAX), tie: [0; 16] }
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        [&self.strength.0.to_be_bytes()[..], &self.stored_at.0.to_be_bytes(), &self.revision.0.to_be_bytes(), &self.tie].concat()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        Some(Self {
            strength: Reverse(u32::from_be_bytes(part(bytes, 0))),
            stored_at: Reverse(u64::from_be_bytes(part(bytes, 4))),
            revision: Reverse(u64::from_be_bytes(part(bytes, 12))),
            tie: part(bytes, 20),
        })
    }
}

/// The `N` bytes at `start`; the callers' buffers have a fixed, larger size.
fn part<const N: usize>(bytes: &[u8], start: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[start + i])
}

/// Far above every strength.
const NAMED: u32 = 1 << 31;

/// What an index key says of a version, after its lane.
struct Ranked {
    state: u8,
    class: HorizonClass,
    confidence: u32,
    stored_at: u64,
    revision: u64,
    tie: [u8; 16],
}

impl Ranked {
    const BYTES: usize = 1 + 1 + 4 + 8 + 8 + 16;

    fn of(fact: &Fact) -> Self {
        // Hashed, so that an id of any form makes a tie of one length.
        let tie = part(blake3::hash(fact.fact_id.as_bytes()).as_bytes(), 0);
        Self {
            state: fact.state() as u8,
            class: fact.horizon_class,
            confidence: fact.confidence.0,
            stored_at: fact.anchor().0,
            revision: fact.revision.0,
            tie,
        }
    }

    fn key(&self, lane: Key) -> Key {
        let within = Order {
            strength: Reverse(self.confidence),
            stored_at: Reverse(self.stored_at),
            revision: Reverse(self.revision),
            tie: self.tie,
        };
        key_at(lane.byte(self.state).byte(self.class.code()), within)
    }

    /// Reads the end of an index key.
    fn read(key: &[u8]) -> Result<Self, StorageError> {
        let bytes = key.len().checked_sub(Self::BYTES).map(|start| &key[start..]);
        let class = bytes.and_then(|bytes| HorizonClass::ALL.into_iter().find(|class| class.code() == bytes[1]));
        let (Some(bytes), Some(class)) = (bytes, class) else {
            return Err(StorageError::corrupt("a row of the rank index has another form"));
        };
        Ok(Self {
            state: bytes[0],
            class,
            confidence: u32::MAX - u32::from_be_bytes(part(bytes, 2)),
            stored_at: u64::MAX - u64::from_be_bytes(part(bytes, 6)),
            revision: u64::MAX - u64::from_be_bytes(part(bytes, 14)),
            tie: part(bytes, 22),
        })
    }

    fn is_fresh(&self, now: UnixMs) -> bool {
        self.stored_at >= self.class.stale_before(now).0
    }

    fn order(&self, now: UnixMs) -> Order {
        let strength = if self.is_fresh(now) { self.confidence.saturating_mul(2) } else { self.confidence };
        Order { strength: Reverse(strength), stored_at: Reverse(self.stored_at), revision: Reverse(self.revision), tie: self.tie }
    }
}

/// The key of a place within one state and class, whose `strength` is a stored confidence.
fn key_at(half: Key, place: Order) -> Key {
    let confidence = (u32::MAX - place.strength.0).to_be_bytes();
    half.raw(&confidence).number_descending(place.stored_at.0).number_descending(place.revision.0).raw(&place.tie)
}

/// Rows of one owner, or of one of its entities.
pub(super) fn lane(tenant: &str, owner: &str, entity: Option<&str>) -> Key {
    let lane = kind_prefix(tenant, Kind::FactByRank).byte(entity.is_some().into()).text(owner);
    match entity {
        Some(entity) => lane.text(entity),
        None => lane,
    }
}

/// Both index keys of a version as it stands.
pub(super) fn keys(fact: &Fact) -> [Key; 2] {
    let ranked = Ranked::of(fact);
    [None, Some(fact.entity.as_str())].map(|entity| ranked.key(lane(&fact.tenant, &fact.owner, entity)))
}

/// One step of a walk: a fact's record id, or `None` where the walk only jumped on.
pub(super) struct Step {
    pub order: Order,
    pub id: Option<Vec<u8>>,
}

/// Facts in the order of recall.
pub(super) struct Walk<'a, V: Read> {
    halves: Vec<Half<'a, V>>,
    /// The next step of each half; those of no half came from elsewhere.
    heads: BTreeMap<(Order, usize), Option<Vec<u8>>>,
}

impl<'a, V: Read> Walk<'a, V> {
    /// Walks the lanes in order, past `after`.
    pub(super) fn lanes(view: &'a V, lanes: &[Key], states: &[State], now: UnixMs, after: Option<Order>) -> Result<Self, StorageError> {
        let parts = states.iter().flat_map(|state| [(*state, true), (*state, false)]);
        Self::parts(view, lanes, &parts.collect::<Vec<_>>(), now, after)
    }

    /// Walks the fresh (`true`) or the stale facts of some states in these lanes, in order, past `after`.
    pub(super) fn parts(
        view: &'a V,
        lanes: &[Key],
        parts: &[(State, bool)],
        now: UnixMs,
        after: Option<Order>,
    ) -> Result<Self, StorageError> {
        let mut walk = Self { halves: Vec::new(), heads: BTreeMap::new() };
        for lane in lanes {
            for (state, fresh) in parts {
                for class in HorizonClass::ALL {
                    let mut half = Half::new(view, lane.clone().byte(*state as u8).byte(class.code()), class, *fresh, now, after);
                    if let Some(step) = half.next()? {
                        walk.heads.insert((step.order, walk.halves.len()), step.id);
                    }
                    walk.halves.push(half);
                }
            }
        }
        Ok(walk)
    }

    /// Walks a small set that was found otherwise.
    pub(super) fn set(found: impl IntoIterator<Item = (Order, Vec<u8>)>, after: Option<Order>) -> Self {
        let heads = found.into_iter().filter(|(order, _)| after.is_none_or(|after| *order > after));
        Self { halves: Vec::new(), heads: heads.map(|(order, id)| ((order, usize::MAX), Some(id))).collect() }
    }

    /// Walks all entities of `owner` that begin with `prefix`, sorted in memory; `None` when they have more than `limit` rows.
    pub(super) fn region(
        view: &V,
        tenant: &str,
        regions: &[super::place::Region],
        states: &[State],
        now: UnixMs,
        after: Option<Order>,
        limit: usize,
    ) -> Result<Option<Self>, StorageError> {
        let mut found = Vec::new();
        let mut left = limit;
        for region in regions {
            let start = kind_prefix(tenant, Kind::FactByRank).byte(1).text(&region.owner).text_prefix(&region.prefix);
            let rows = view.scan_bytes(Table::Index, start.as_bytes(), &start.after_prefix(), Direction::Ascending, left + 1)?;
            if rows.len() > left {
                return Ok(None);
            }
            left -= rows.len();
            for (key, id) in rows {
                let ranked = Ranked::read(&key)?;
                if states.iter().any(|state| *state as u8 == ranked.state) {
                    found.push((ranked.order(now), id));
                }
            }
        }
        Ok(Some(Self::set(found, after)))
    }

    /// Adds a small set that was found otherwise.
    pub(super) fn and_set(&mut self, found: impl IntoIterator<Item = (Order, Vec<u8>)>, after: Option<Order>) {
        self.heads.append(&mut Self::set(found, after).heads);
    }

    pub(super) fn next(&mut self) -> Result<Option<Step>, StorageError> {
        let Some(((order, from), id)) = self.heads.pop_first() else { return Ok(None) };
        if let Some(half) = self.halves.get_mut(from)
            && let Some(step) = half.next()?
        {
            self.heads.insert((step.order, from), step.id);
        }
        Ok(Some(Step { order, id }))
    }
}

/// The fresh or the stale facts of one lane, state and class, best first.
struct Half<'a, V: Read> {
    view: &'a V,
    prefix: Key,
    fresh: bool,
    stale_before: u64,
    now: UnixMs,
    /// Where the next rows are read from; `None` when there are no more.
    from: Option<Vec<u8>>,
    rows: VecDeque<Row>,
    chunk: usize,
}

const CHUNK_FIRST: usize = 16;
const CHUNK_MAX: usize = 256;

impl<'a, V: Read> Half<'a, V> {
    fn new(view: &'a V, prefix: Key, class: HorizonClass, fresh: bool, now: UnixMs, after: Option<Order>) -> Self {
        let stale_before = class.stale_before(now).0;
        let mut half = Self { view, prefix, fresh, stale_before, now, from: None, rows: VecDeque::new(), chunk: CHUNK_FIRST };
        // Otherwise nothing is stale yet, or ever.
        if fresh || stale_before > 0 {
            half.from = Some(after.map_or_else(|| half.prefix.as_bytes().to_vec(), |after| half.key_after(after)));
        }
        half
    }

    /// The first key whose place comes after `order`.
    fn key_after(&self, order: Order) -> Vec<u8> {
        let strength = order.strength.0;
        let at = |confidence| key_at(self.prefix.clone(), Order { strength: Reverse(confidence), ..order }).byte(0).into_bytes();
        match self.fresh {
            false => at(strength),
            true if strength.is_multiple_of(2) => at(strength / 2),
            // Between two confidences: all of the lower one comes after.
            true => self.prefix.clone().raw(&(u32::MAX - strength / 2).to_be_bytes()).into_bytes(),
        }
    }

    fn next(&mut self) -> Result<Option<Step>, StorageError> {
        self.fill()?;
        let Some((key, id)) = self.rows.pop_front() else { return Ok(None) };
        let ranked = Ranked::read(&key)?;
        if ranked.is_fresh(self.now) == self.fresh {
            return Ok(Some(Step { order: ranked.order(self.now), id: Some(id) }));
        }
        // The other half of this confidence stands here. The jump is a step of its own, so that a walk over many confidences
        // with nothing of this half can stop at any of them and go on from there.
        let jump = match (self.fresh, ranked.confidence.checked_sub(1)) {
            (false, _) => Some(Order::before(ranked.confidence, self.stale_before - 1)),
            (true, Some(lower)) => Some(Order::before(lower.saturating_mul(2), u64::MAX)),
            (true, None) => None,
        };
        self.rows.clear();
        self.from = jump.map(|order| self.key_after(order));
        self.chunk = CHUNK_FIRST;
        Ok(jump.map(|order| Step { order, id: None }))
    }

    fn fill(&mut self) -> Result<(), StorageError> {
        if !self.rows.is_empty() {
            return Ok(());
        }
        let Some(from) = self.from.take() else { return Ok(()) };
        let rows = self.view.scan_bytes(Table::Index, &from, &self.prefix.after_prefix(), Direction::Ascending, self.chunk)?;
        if rows.len() == self.chunk {
            self.from = rows.last().map(|(key, _)| [key.as_slice(), &[0]].concat());
        }
        self.rows = rows.into();
        self.chunk = (self.chunk * 2).min(CHUNK_MAX);
        Ok(())
    }
}
