//! The feature level: which kinds of commands may stand in the log.
//!
//! A newer version applies kinds of commands that an older one does not know, and a node that meets one of those stops. So each
//! kind says from which level on it exists ([`Command::level`]), and the cluster has a level, a replicated number. Invariants:
//! * A command above the cluster's level is refused, by whoever is asked first and by the log.
//! * The level is raised only to what every member can apply, as the leader knows it from their answers, and never lowered.

use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::key::Key;
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Revision, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Table, Tx};

/// Where every cluster begins.
pub const FIRST: u64 = 1;

/// What this version can apply. To be raised by one with the first kind of command that the version before does not know.
pub const LEVEL: u64 = 1;

/// There once the level was raised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureLevel {
    pub level: u64,
    pub raised_at: UnixMs,
    pub revision: Revision,
}

impl Record for FeatureLevel {
    const KIND: Kind = Kind::FeatureLevel;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

/// The level of the cluster.
pub fn level(view: &(impl Read + ?Sized)) -> Result<u64, StorageError> {
    let raised: Option<FeatureLevel> = view.get(CLUSTER, &Key::new())?;
    Ok(raised.map_or(FIRST, |raised| raised.level))
}

/// The refusal of a command that not every member may know.
pub fn refuse(view: &(impl Read + ?Sized), command: &Command) -> Result<Option<Refusal>, StorageError> {
    refuse_kind(view, command.name(), command.level())
}

fn refuse_kind(view: &(impl Read + ?Sized), name: &str, needs: u64) -> Result<Option<Refusal>, StorageError> {
    // Most are of the first level, and cost no look.
    if needs <= FIRST {
        return Ok(None);
    }
    let level = level(view)?;
    Ok((needs > level).then(|| Refusal::TooNew { what: name.into(), needs, level }))
}

/// Lets commands up to a level be proposed from now on. The leader sees to it that every member can apply them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RaiseFeatureLevel {
    pub to: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureLevelRaised {
    pub level: u64,
    /// False when it was there already.
    pub changed: bool,
}

impl RaiseFeatureLevel {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FeatureLevelRaised> {
        if at.caller.tenant != CLUSTER {
            return Ok(Err(Refusal::Denied { problem: "the feature level is the cluster's own".into() }));
        }
        let level = level(tx)?;
        let changed = self.to > level;
        if changed {
            tx.put(&FeatureLevel { level: self.to, raised_at: at.wall, revision: at.revision });
        }
        Ok(Ok(FeatureLevelRaised { level: level.max(self.to), changed }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity;
    use crate::transcript::{World, person};

    fn raise(world: &mut World, time: &str, to: u64) -> (u64, bool) {
        let raised = world.call(time, identity::system(), None, RaiseFeatureLevel { to }).expect("the cluster's own");
        (raised.level, raised.changed)
    }

    #[test]
    fn a_kind_of_a_higher_level_is_refused_until_the_cluster_is_there() {
        let mut world = World::new();
        let refused = |world: &World, needs| refuse_kind(&world.state, "NewThing", needs).expect("read");
        assert_eq!(refused(&world, 1), None);
        assert_eq!(refused(&world, 2), Some(Refusal::TooNew { what: "NewThing".into(), needs: 2, level: 1 }));
        assert_eq!(raise(&mut world, "1s", 2), (2, true));
        assert_eq!(refused(&world, 2), None);
        assert_eq!(refused(&world, 3), Some(Refusal::TooNew { what: "NewThing".into(), needs: 3, level: 2 }));
    }

    #[test]
    fn the_level_never_falls_and_to_raise_it_again_changes_nothing() {
        let mut world = World::new();
        assert_eq!(raise(&mut world, "1s", 3), (3, true));
        assert_eq!(raise(&mut world, "2s", 3), (3, false));
        assert_eq!(raise(&mut world, "3s", 1), (3, false));
    }

    #[test]
    fn nobody_but_the_cluster_raises_the_level() {
        let mut world = World::new();
        let refused = world.call("0s", person("olga"), None, RaiseFeatureLevel { to: 2 }).expect_err("refused");
        assert!(matches!(refused, Refusal::Denied { .. }));
        assert_eq!(level(&world.state).expect("read"), FIRST);
    }
}
