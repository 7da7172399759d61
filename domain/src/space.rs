//! Room on the disks: what goes on, and what is refused, when a quorum of them is nearly full.
//!
//! The alarm is one replicated record, raised and cleared by the leader through the log. So every replica refuses the same
//! commands, whatever its own disk looks like. Invariants:
//! * While it is raised, a command that makes the state grow is refused with [`Refusal::OutOfSpace`] and leaves nothing but its answer.
//! * What frees room, keeps a lease alive, ends one, or is an operator's act is never refused for it.

use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::key::Key;
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Revision, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Table, Tx};

/// There while the alarm is raised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceAlarm {
    pub raised_at: UnixMs,
    pub revision: Revision,
    /// The nodes that were short of room when it was raised.
    pub nodes: Vec<u64>,
}

impl Record for SpaceAlarm {
    const KIND: Kind = Kind::SpaceAlarm;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

/// The alarm, while it is raised.
pub fn alarm(view: &(impl Read + ?Sized)) -> Result<Option<SpaceAlarm>, StorageError> {
    view.get(CLUSTER, &Key::new())
}

/// The refusal of whatever makes the state grow, while the alarm is raised.
pub(crate) fn refuse_growth(view: &(impl Read + ?Sized)) -> Result<Option<Refusal>, StorageError> {
    Ok(alarm(view)?.map(|alarm| Refusal::OutOfSpace { nodes: alarm.nodes }))
}

/// The same, for a command as a whole.
pub(crate) fn refuse(view: &(impl Read + ?Sized), command: &Command) -> Result<Option<Refusal>, StorageError> {
    if goes_on(command) { Ok(None) } else { refuse_growth(view) }
}

/// What goes on when room is short. Whatever is not named here is refused, so a new command is on the safe side.
pub(crate) fn goes_on(command: &Command) -> bool {
    matches!(
        command,
        // Makes room, now or once it is compacted away.
        Command::DeleteFact(_)
            | Command::ForgetFacts(_)
            | Command::DeleteSession(_)
            | Command::ArchiveSession(_)
            | Command::DeleteEntity(_)
            | Command::DeleteEdge(_)
            | Command::DetachMember(_)
            // Leases: renewals and releases. A new grant is refused in `punchcard`, which knows whether it is one.
            | Command::PunchIn(_)
            | Command::PunchOut(_)
            | Command::LeaveQueue(_)
            | Command::ForceRelease(_)
            | Command::AttendTicket(_)
            | Command::RenewPunchcards(_)
            | Command::TransferPunchcard(_)
            // What people and operators decide.
            | Command::DecideApproval(_)
            | Command::SetApprovalPolicy(_)
            | Command::DeleteWebhook(_)
            // One for a passport at the most.
            | Command::PutBudget(_)
            | Command::DeleteBudget(_)
            | Command::TakeNotice(_)
            | Command::SettleNotice(_)
            | Command::PutToken(_)
            | Command::RevokeToken(_)
            | Command::RevokePassport(_)
            | Command::SetFlag(_)
            | Command::SetWorkGate(_)
            | Command::AddReceiptKey(_)
            | Command::RotateReceiptKey(_)
            | Command::AddCosigner(_)
            | Command::SetSignInKey(_)
            | Command::OpenToken(_)
            | Command::SetSpaceAlarm(_)
            | Command::RaiseFeatureLevel(_)
            | Command::SetQuota(_)
            // Bounded in number, and nobody gets to the rest without a session. Usage is added to rows that are there.
            | Command::ChangeClientSession(_)
            | Command::AddUsage(_)
    )
}

/// Raises the alarm, or clears it. The leader's own act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetSpaceAlarm {
    pub raised: bool,
    /// Which nodes are short of room.
    pub nodes: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpaceAlarmSet {
    /// False when it was so already.
    pub changed: bool,
}

impl SetSpaceAlarm {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<SpaceAlarmSet> {
        if at.caller.tenant != CLUSTER {
            return Ok(Err(Refusal::Denied { problem: "the alarm for disk space is the cluster's own".into() }));
        }
        let known = alarm(tx)?;
        let changed = known.is_some() != self.raised;
        match (known, self.raised) {
            (None, true) => tx.put(&SpaceAlarm { raised_at: at.wall, revision: at.revision, nodes: self.nodes }),
            (Some(known), false) => tx.delete(&known),
            (Some(_), true) | (None, false) => {}
        }
        Ok(Ok(SpaceAlarmSet { changed }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::{Confidence, DeleteFact, StoreFact};
    use crate::identity;
    use crate::punchcard::{PunchIn, PunchOut, PunchedIn};
    use crate::transcript::{World, person};

    fn set(world: &mut World, time: &str, raised: bool) -> bool {
        world.call(time, identity::system(), None, SetSpaceAlarm { raised, nodes: vec![1, 3] }).expect("the cluster's own").changed
    }

    fn punch_in(resource: &str) -> PunchIn {
        PunchIn {
            resource: resource.into(),
            holder_passport: "mara".into(),
            tenant_id: None,
            mode: None,
            reason: None,
            ttl_ms: Some(60_000),
            expires_at: None,
            wait_ms: None,
            lock_delay_ms: None,
            attended: false,
        }
    }

    fn fact(key: &str) -> StoreFact {
        StoreFact {
            entity: "svc:api".into(),
            key: key.into(),
            value: "v".into(),
            source_receipt: None,
            confidence: Confidence::FULL,
            private: false,
            horizon_class: None,
            freshness_horizon: None,
            supersedes: Default::default(),
        }
    }

    #[test]
    fn short_of_room_what_grows_is_refused_and_deletes_renewals_and_releases_go_on() {
        let (mut world, mara) = (World::new(), || person("mara"));
        let kept = world.call("0s", mara(), None, fact("a")).expect("stored");
        world.call("1s", mara(), None, punch_in("file://a")).expect("granted");
        assert!(set(&mut world, "2s", true));
        assert!(!set(&mut world, "3s", true), "it is raised already");

        let refused = world.call("4s", mara(), None, fact("b")).expect_err("refused");
        assert_eq!(refused, Refusal::OutOfSpace { nodes: vec![1, 3] });
        assert!(refused.retryable() && refused.to_string().contains("node 1, 3") && refused.next_step().contains("operator"));
        assert_eq!(world.call("5s", mara(), None, punch_in("file://b")).expect_err("a new grant grows"), refused);
        let renewed = world.call("6s", mara(), None, punch_in("file://a")).expect("renewed");
        assert!(matches!(renewed, PunchedIn::Granted { renewed: true, .. }), "{renewed:?}");
        let release = PunchOut { resource: "file://a".into(), holder_passport: "mara".into(), tenant_id: None, release_commit_sha: None };
        world.call("7s", mara(), None, release).expect("released");
        world.call("8s", mara(), None, DeleteFact { fact_id: kept.fact_id }).expect("deleted");

        assert!(set(&mut world, "9s", false));
        world.call("10s", mara(), None, fact("b")).expect("stored again");
        world.call("11s", mara(), None, punch_in("file://b")).expect("granted again");
    }

    #[test]
    fn nobody_but_the_cluster_raises_the_alarm() {
        let mut world = World::new();
        let refused = world.call("0s", person("olga"), None, SetSpaceAlarm { raised: true, nodes: vec![] }).expect_err("refused");
        assert!(matches!(refused, Refusal::Denied { .. }));
        assert_eq!(alarm(&world.state).expect("read"), None);
    }
}
