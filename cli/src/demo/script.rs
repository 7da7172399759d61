//! The script of a day: what is to be done, and how it has to end. Made by a seed alone.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Who decides, and who plans: names and tiers.
pub const PEOPLE: [(&str, &str); 3] = [("mara", "operator"), ("jon", "elite"), ("petra", "verified")];

/// How an item of work goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// Claimed, done.
    Plain,
    /// Blocked until an earlier item is finished.
    WaitsFor(usize),
    /// Blocked until a person decides; archived when the answer is no.
    Asks { approved: bool },
    /// Begun by one agent, handed off, finished by another.
    HandedOff,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub title: String,
    /// The file that it changes.
    pub file: usize,
    pub course: Course,
    /// Whether it is merged once it is done.
    pub merged: bool,
}

impl Item {
    /// Where it ends.
    pub fn end(&self) -> &'static str {
        match self.course {
            Course::Asks { approved: false } => "archive",
            _ if self.merged => "deployed",
            _ => "complete",
        }
    }

    /// Whether its file is edited.
    pub fn is_edited(&self) -> bool {
        self.course != Course::Asks { approved: false }
    }

    /// What the status feed has to tell of it, in this order.
    pub fn story(&self) -> Vec<&'static str> {
        let mut story = vec!["CLAIMED"];
        match self.course {
            Course::WaitsFor(_) => story.extend(["BLOCKED", "RESUMED"]),
            Course::Asks { approved: true } => story.extend(["HUMAN_HOLD", "RESUMED"]),
            Course::Asks { approved: false } => story.extend(["HUMAN_HOLD", "FAILED"]),
            Course::Plain | Course::HandedOff => {}
        }
        if self.is_edited() {
            story.push("DONE");
        }
        if self.end() == "deployed" {
            story.push("DONE");
        }
        story
    }
}

pub struct Script {
    pub seed: u64,
    pub agents: Vec<String>,
    pub items: Vec<Item>,
    pub files: usize,
}

impl Script {
    pub fn of(seed: u64, agents: u64, items: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        // So few files that agents meet at them.
        let files = (items as usize / 8).max(2);
        let mut made: Vec<Item> = Vec::new();
        for n in 0..items as usize {
            let plain: Vec<usize> = (0..n).filter(|before| made[*before].course == Course::Plain).collect();
            let course = match rng.random_range(0..10_u32) {
                0 | 1 if !plain.is_empty() => Course::WaitsFor(plain[rng.random_range(0..plain.len())]),
                2 | 3 => Course::Asks { approved: rng.random_range(0..3_u32) > 0 },
                4 => Course::HandedOff,
                _ => Course::Plain,
            };
            let (file, merged) = (rng.random_range(0..files), rng.random_range(0..3_u32) == 0);
            made.push(Item { title: format!("item {n:03}: change src/part-{file}.rs"), file, course, merged });
        }
        let agents = (1..=agents).map(|n| format!("agent-{n:02}")).collect();
        Self { seed, agents, items: made, files }
    }

    /// The item that a title is of.
    pub fn place(title: &str) -> Option<usize> {
        title.strip_prefix("item ")?.split(':').next()?.parse().ok()
    }

    pub fn file(&self, file: usize) -> String {
        format!("src/part-{file}.rs")
    }

    /// How often a file is edited in the end.
    pub fn edits(&self, file: usize) -> u64 {
        self.items.iter().filter(|item| item.file == file && item.is_edited()).count() as u64
    }

    /// A key that makes a repeated call have one effect.
    pub fn key(&self, item: usize, step: &str) -> String {
        format!("demo-{}-{item}-{step}", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_day_and_every_course_is_in_a_usual_one() {
        let (day, again) = (Script::of(1, 30, 90), Script::of(1, 30, 90));
        assert_eq!(day.items, again.items);
        assert_ne!(day.items, Script::of(2, 30, 90).items);
        let ends: std::collections::BTreeSet<&str> = day.items.iter().map(Item::end).collect();
        assert_eq!(ends.into_iter().collect::<Vec<_>>(), ["archive", "complete", "deployed"]);
        for course in [Course::Plain, Course::HandedOff, Course::Asks { approved: true }, Course::Asks { approved: false }] {
            assert!(day.items.iter().any(|item| item.course == course), "{course:?}");
        }
        assert!(day.items.iter().any(|item| matches!(item.course, Course::WaitsFor(_))));
        assert_eq!(day.items.iter().map(|item| Script::place(&item.title)).collect::<Vec<_>>(), (0..90).map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn an_item_waits_only_for_an_earlier_one_that_waits_for_nobody() {
        for seed in 0..50 {
            let day = Script::of(seed, 2, 60);
            for (place, item) in day.items.iter().enumerate() {
                if let Course::WaitsFor(other) = item.course {
                    assert!(other < place && day.items[other].course == Course::Plain);
                }
            }
            let edits: u64 = (0..day.files).map(|file| day.edits(file)).sum();
            assert_eq!(edits as usize, day.items.iter().filter(|item| item.is_edited()).count());
        }
    }
}
