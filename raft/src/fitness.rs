//! Whether this node, and each of the others, is fit to lead.
//!
//! What makes a node unfit, as the stable words that readiness, answers to the leader and log lines use:
//! * `disk_low`: hardly any room on its disk, or under its quota. It still takes entries.
//! * `disk_full`: not even that. It refuses entries, and so is out of the quorum until there is room again.
//! * `disk_stalled`: a group of the log has been on its way to the disk for longer than an election takes.
//! * `clock_off`: its wall clock is too far from what a majority of the voters say.
//!
//! Nodes tell their words, and their clocks, in every answer to another. A leader compares clocks by them: where a majority
//! agrees with each other and not with a node, that node is told with the next request. If no majority agrees, nobody is
//! called wrong. The word `clock_off` is judged anew for each entry that a leader stamps, so a clock that jumps stamps nothing.
//!
//! Everything is measured on [`Clock`], so a simulation sees the same. What is done about it stands in [`crate::warden`].

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use quorate_domain::level;
use quorate_storage::Room;

use crate::clock::Clock;
use crate::config::{Config, SpaceMarks};
use crate::types::MetricsReceiver;

pub const DISK_LOW: &str = "disk_low";
pub const DISK_FULL: &str = "disk_full";
pub const DISK_STALLED: &str = "disk_stalled";
pub const CLOCK_OFF: &str = "clock_off";

/// What a node said of itself, or was told, counts for so long.
const FRESH: Duration = Duration::from_secs(10);

/// How much room a disk has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Space {
    #[default]
    Enough,
    Low,
    Full,
}

impl Space {
    /// The next state; between the marks it stays what it was, so that it does not flicker.
    fn after(self, room: Room, marks: SpaceMarks) -> Self {
        let reserve = marks.reserve_bytes();
        // Only real space: a quota that is exceeded is an operator's wish, and deletes shall go on.
        if room.disk_bytes < reserve || (self == Space::Full && room.disk_bytes < 2 * reserve) {
            return Space::Full;
        }
        let left = room.left_bytes();
        if left < marks.low_bytes || (self != Space::Enough && left < marks.clear_bytes) { Space::Low } else { Space::Enough }
    }
}

/// What is known of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockVerdict {
    /// No majority says otherwise.
    Right,
    /// So many ms ahead of a majority; negative when behind.
    Off(i64),
    /// Too few voters have said what their clocks show.
    Unknown,
}

#[derive(Default)]
struct Own {
    space: Space,
    room: Option<Room>,
    stalled: bool,
    /// What a leader said of this node's clock, and when.
    told_off: Option<(Duration, i64)>,
    heard_leader: Option<Duration>,
}

#[derive(Clone, Default)]
struct Report {
    at: Duration,
    /// Its wall clock less this node's time since boot, in ms: so that a jump of this node's wall clock shows at once.
    ahead_ms: Option<i64>,
    unfit: Vec<String>,
    /// Up to which level it can apply commands.
    feature_level_max: u64,
}

/// Shared by all that asks or tells.
pub struct Fitness {
    node_id: u64,
    clock: Arc<dyn Clock>,
    pub marks: Option<SpaceMarks>,
    clock_offset_ms_max: u64,
    /// Up to which level this node can apply commands.
    pub feature_level_max: u64,
    own: Mutex<Own>,
    peers: Mutex<BTreeMap<u64, Report>>,
    metrics: OnceLock<MetricsReceiver>,
}

impl Fitness {
    pub fn new(config: &Config) -> Arc<Self> {
        Arc::new(Self {
            node_id: config.node_id,
            clock: Arc::clone(&config.clock),
            marks: config.space,
            clock_offset_ms_max: config.clock_offset_ms_max,
            feature_level_max: config.feature_level_max,
            own: Mutex::default(),
            peers: Mutex::default(),
            metrics: OnceLock::new(),
        })
    }

    /// openraft's metrics, once it runs: who votes.
    pub fn observe(&self, metrics: MetricsReceiver) {
        // A second call would come from a second node with the same fitness, which nobody makes.
        let _ = self.metrics.set(metrics);
    }

    pub fn now(&self) -> Duration {
        self.clock.since_boot()
    }

    pub fn wall_unix_ms(&self) -> u64 {
        self.clock.wall().0
    }

    pub fn voters(&self) -> Vec<u64> {
        self.metrics.get().map_or_else(Vec::new, |metrics| metrics.borrow_watched().membership_config.voter_ids().collect())
    }

    fn members(&self) -> Vec<u64> {
        let ids = |metrics: &MetricsReceiver| metrics.borrow_watched().membership_config.membership().nodes().map(|(id, _)| *id).collect();
        self.metrics.get().map_or_else(Vec::new, ids)
    }

    // -------------------------------------------------------------- this node

    /// What keeps this node from leading.
    pub fn unfit(&self) -> Vec<&'static str> {
        let mut unfit = match self.own().space {
            Space::Enough => vec![],
            Space::Low => vec![DISK_LOW],
            Space::Full => vec![DISK_FULL],
        };
        if self.own().stalled {
            unfit.push(DISK_STALLED);
        }
        if self.clock_off_ms().is_some() {
            unfit.push(CLOCK_OFF);
        }
        unfit
    }

    pub fn space(&self) -> Space {
        self.own().space
    }

    pub fn room(&self) -> Option<Room> {
        self.own().room
    }

    pub fn is_stalled(&self) -> bool {
        self.own().stalled
    }

    pub fn measured(&self, room: Room) {
        let Some(marks) = self.marks else { return };
        let mut own = self.own();
        own.room = Some(room);
        own.space = own.space.after(room, marks);
    }

    pub fn set_stalled(&self, stalled: bool) {
        self.own().stalled = stalled;
    }

    /// A leader sent entries, or a sign of life, and what it thinks of this node's clock.
    pub fn hear_leader(&self, clock_off_ms: Option<i64>) {
        let now = self.now();
        let mut own = self.own();
        own.heard_leader = Some(now);
        own.told_off = clock_off_ms.map(|off_ms| (now, off_ms));
    }

    /// Since when no leader was heard of; nothing if none ever was.
    pub fn leaderless_for(&self) -> Option<Duration> {
        let heard = self.own().heard_leader?;
        Some(self.now().saturating_sub(heard))
    }

    /// How far this node's clock is off, if it is too far.
    pub fn clock_off_ms(&self) -> Option<i64> {
        if let ClockVerdict::Off(off_ms) = self.clock_verdict() {
            return Some(off_ms);
        }
        let (at, off_ms) = self.own().told_off?;
        (self.now().saturating_sub(at) <= FRESH).then_some(off_ms)
    }

    /// What the voters' clocks say of this node's.
    pub fn clock_verdict(&self) -> ClockVerdict {
        self.verdict_of(self.node_id)
    }

    fn verdict_of(&self, node: u64) -> ClockVerdict {
        let voters = self.voters();
        let majority = voters.len() / 2 + 1;
        let (boot_ms, wall_ms) = (self.now().as_millis() as i64, self.clock.wall().0 as i64);
        let (mut offsets, mut of_node, mut known) = (Vec::new(), None, 0);
        let reports = self.reports();
        for voter in &voters {
            let offset = match reports.get(voter) {
                _ if *voter == self.node_id => Some(0),
                // Of a version that does not tell.
                Some(Report { ahead_ms: None, .. }) => {
                    known += 1;
                    continue;
                }
                Some(Report { ahead_ms: Some(ahead_ms), .. }) => Some(ahead_ms + boot_ms - wall_ms),
                None => None,
            };
            if let Some(offset) = offset {
                known += 1;
                offsets.push(offset);
                if *voter == node {
                    of_node = Some(offset);
                }
            }
        }
        if node != self.node_id && of_node.is_none() {
            // A learner, perhaps.
            of_node = reports.get(&node).and_then(|report| report.ahead_ms).map(|ahead_ms| ahead_ms + boot_ms - wall_ms);
        }
        match off_by(&mut offsets, of_node.unwrap_or(0), majority, self.clock_offset_ms_max as i64) {
            Some(off_ms) => ClockVerdict::Off(off_ms),
            None if known < majority => ClockVerdict::Unknown,
            None => ClockVerdict::Right,
        }
    }

    /// What another node has to be told of its clock.
    pub fn clock_off_of(&self, node: u64) -> Option<i64> {
        match self.verdict_of(node) {
            ClockVerdict::Off(off_ms) => Some(off_ms),
            ClockVerdict::Right | ClockVerdict::Unknown => None,
        }
    }

    /// Prometheus text. `alarms` are those that this node tells besides.
    pub fn exposition(&self, alarms: &[&str]) -> String {
        let unfit = self.unfit();
        let is = |code: &str| u64::from(unfit.contains(&code) || alarms.contains(&code));
        let mut text = String::new();
        let gauges = [
            ("disk_low", "1 while hardly any room is left on the disk, or under the quota.", is(DISK_LOW)),
            ("disk_full", "1 while this node takes no entries, for want of room on its disk.", is(DISK_FULL)),
            ("disk_stalled", "1 while a write of the log has not ended within an election timeout.", is(DISK_STALLED)),
            ("clock_off", "1 while a majority of the voters has another time than this node.", is(CLOCK_OFF)),
            ("space_alarm", "1 while the cluster refuses writes that grow.", is("space_alarm")),
            (
                "disk_room_bytes",
                "What may still be written, by the file system and by the quota.",
                self.room().map_or(0, |room| room.left_bytes()),
            ),
        ];
        for (name, help, value) in gauges {
            // Writing to a String can't fail.
            let _ = write!(text, "# HELP quorate_{name} {help}\n# TYPE quorate_{name} gauge\nquorate_{name} {value}\n");
        }
        let off_ms = self.clock_off_ms().unwrap_or(0);
        text + &format!(
            "# HELP quorate_clock_off_seconds How far this node's clock is ahead of a majority's, while that is too far.\n\
             # TYPE quorate_clock_off_seconds gauge\nquorate_clock_off_seconds {}\n",
            off_ms as f64 / 1_000.0
        )
    }

    // -------------------------------------------------------------- the others

    /// Another node answered, and said this of itself.
    pub fn report(&self, node: u64, unfit: &[String], feature_level_max: u64) {
        let now = self.now();
        let mut peers = self.peers();
        let report = peers.entry(node).or_default();
        report.at = now;
        if report.unfit != unfit {
            report.unfit = unfit.to_vec();
        }
        // Of a version that knew no levels.
        report.feature_level_max = feature_level_max.max(level::FIRST);
    }

    /// What its wall clock showed somewhere between two moments here.
    pub fn read_clock(&self, node: u64, wall_unix_ms: u64, sent: Duration, received: Duration) {
        let half_way = received.saturating_sub(sent);
        // Too long a way to tell anything by.
        if wall_unix_ms == 0 || half_way.as_millis() as u64 > self.clock_offset_ms_max {
            return;
        }
        let at_ms = ((sent + received) / 2).as_millis() as i64;
        self.peers().entry(node).or_default().ahead_ms = Some(wall_unix_ms as i64 - at_ms);
    }

    /// Whether another node has said lately that it is fit to lead.
    pub fn is_fit(&self, node: u64) -> bool {
        self.reports().get(&node).is_some_and(|report| report.unfit.is_empty())
    }

    /// The members that are not known to apply commands up to a level, and up to which one each does; nothing of one that has not been
    /// heard of lately.
    pub fn below_level(&self, level: u64) -> Vec<(u64, Option<u64>)> {
        let reports = self.reports();
        let of = |member: u64| match member == self.node_id {
            true => Some(self.feature_level_max),
            false => reports.get(&member).map(|report| report.feature_level_max),
        };
        self.members().into_iter().map(|member| (member, of(member))).filter(|(_, known)| known.is_none_or(|known| known < level)).collect()
    }

    /// Voters by what they said of their disks: those with room, those without, and those that refuse entries. One that has not been
    /// heard of lately is in none.
    pub fn spaces(&self) -> Spaces {
        let reports = self.reports();
        let mut spaces = Spaces::default();
        let voters = self.voters();
        spaces.majority = voters.len() / 2 + 1;
        for voter in voters {
            let space = match reports.get(&voter) {
                _ if voter == self.node_id => self.space(),
                Some(report) if report.unfit.iter().any(|word| word == DISK_FULL) => Space::Full,
                Some(report) if report.unfit.iter().any(|word| word == DISK_LOW) => Space::Low,
                Some(_) => Space::Enough,
                None => continue,
            };
            match space {
                Space::Enough => spaces.roomy.push(voter),
                Space::Low => spaces.low.push(voter),
                Space::Full => spaces.full.push(voter),
            }
        }
        spaces
    }

    fn reports(&self) -> BTreeMap<u64, Report> {
        let now = self.now();
        let peers = self.peers();
        peers.iter().filter(|(_, report)| now.saturating_sub(report.at) <= FRESH).map(|(id, report)| (*id, report.clone())).collect()
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        // Fields are assigned one by one, and each is right by itself.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<u64, Report>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Spaces {
    pub majority: usize,
    pub roomy: Vec<u64>,
    pub low: Vec<u64>,
    pub full: Vec<u64>,
}

impl Spaces {
    /// Whether what grows has to be refused: without those that are short of room there is no quorum.
    pub fn needs_alarm(&self) -> bool {
        !(self.low.is_empty() && self.full.is_empty()) && self.roomy.len() < self.majority
    }

    /// Whether so many refuse entries that nothing can be decided.
    pub fn are_full(&self) -> bool {
        !self.full.is_empty() && self.roomy.len() + self.low.len() < self.majority
    }

    pub fn short(&self) -> Vec<u64> {
        let mut short: Vec<u64> = self.low.iter().chain(&self.full).copied().collect();
        short.sort_unstable();
        short
    }
}

/// How far `one` is ahead of a majority that agrees, if it is more than `bound`; all in ms.
fn off_by(offsets: &mut [i64], one: i64, majority: usize, bound: i64) -> Option<i64> {
    offsets.sort_unstable();
    let mut off = None;
    for agreed in offsets.windows(majority.max(1)) {
        let (first, last) = (agreed[0], agreed[agreed.len() - 1]);
        if last.saturating_sub(first) > bound {
            continue;
        }
        if one.saturating_sub(last) <= bound && first.saturating_sub(one) <= bound {
            return None;
        }
        off = Some(one.saturating_sub(agreed[agreed.len() / 2]));
    }
    off
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_wrong_when_a_majority_agrees_without_it() {
        let off = |offsets: &[i64], one| off_by(&mut offsets.to_vec(), one, offsets.len() / 2 + 1, 1_000);
        assert_eq!(off(&[0, 10, -20], 0), None);
        assert_eq!(off(&[0, 60_000, 60_100], 0), Some(-60_100));
        assert_eq!(off(&[0, 60_000, 60_100], 60_000), None);
        assert_eq!(off(&[0, 90_000, 60_000], 0), None, "nobody agrees, so nobody is wrong");
        let five = [0, 200, 900, 1_900, 3_000];
        assert_eq!(off(&five, 3_000), Some(2_800));
        assert_eq!(off(&five, 1_900), None, "near enough to one of those that agree");
        assert_eq!(off(&[0], 0), None);
        assert_eq!(off_by(&mut [0, 7_200_000], 0, 2, 1_000), None, "two of three differ, and it can't be said who is right");
    }

    #[test]
    fn space_is_low_below_one_mark_until_it_is_above_the_other() {
        let marks = SpaceMarks { quota_bytes: Some(1_000), low_bytes: 100, clear_bytes: 200 };
        let after = |before: Space, disk_bytes, quota_bytes| before.after(Room { disk_bytes, quota_bytes: Some(quota_bytes) }, marks);
        assert_eq!(after(Space::Enough, 10_000, 150), Space::Enough);
        assert_eq!(after(Space::Enough, 10_000, 99), Space::Low);
        assert_eq!(after(Space::Low, 10_000, 150), Space::Low);
        assert_eq!(after(Space::Low, 10_000, 200), Space::Enough);
        assert_eq!(after(Space::Low, 10_000, 0), Space::Low, "a quota takes no entries away");
        assert_eq!(after(Space::Enough, 24, 900), Space::Full);
        assert_eq!(after(Space::Full, 49, 900), Space::Full);
        assert_eq!(after(Space::Full, 50, 900), Space::Low);
    }

    #[test]
    fn the_alarm_is_for_a_quorum_that_needs_those_without_room() {
        let spaces =
            |roomy: &[u64], low: &[u64], full: &[u64]| Spaces { majority: 2, roomy: roomy.into(), low: low.into(), full: full.into() };
        assert!(!spaces(&[1, 2], &[3], &[]).needs_alarm(), "one full disk does not stop the others");
        assert!(!spaces(&[1], &[], &[]).needs_alarm(), "silence is not shortage");
        assert!(spaces(&[1], &[2], &[]).needs_alarm(), "the third is silent");
        assert!(spaces(&[1], &[2], &[3]).needs_alarm());
        assert!(!spaces(&[1], &[2], &[3]).are_full());
        assert!(spaces(&[1], &[], &[2, 3]).are_full());
        assert_eq!(spaces(&[], &[3], &[1]).short(), [1, 3]);
    }
}
