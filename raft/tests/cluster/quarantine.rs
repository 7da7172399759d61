//! States that differ: found while everybody works, never by chance, and rebuilt.

use quorate_raft::quarantine;

use super::*;

fn compares_often(config: &mut Config) {
    config.compare_ms = 20;
}

impl Replica {
    /// Something has changed a row behind the back of the log.
    fn diverge(&self) {
        let state = self.node().state();
        let marker = state.applied().unwrap().unwrap_or_default();
        state.commit([((Table::Records, b"rogue".to_vec()), Some(b"row".to_vec()))].into(), marker).unwrap();
    }

    fn restart_from_quarantine(&mut self) {
        let why = self.block_on(async { tokio::time::timeout(PATIENCE, self.node().stopped()).await }).expect("it goes into quarantine");
        assert!(why.contains("in quarantine") && why.contains("differs from that of a majority"), "{why}");
        let read = self.read_flag(Consistency::Stale { age_max: PATIENCE });
        assert!(matches!(&read, Err(ReadError::Unavailable(_))), "it serves nothing more: {read:?}");
        assert!(quarantine::read(&self.dir).unwrap().is_some());
        self.kill();
        self.start();
        assert_eq!(quarantine::read(&self.dir).unwrap(), None);
    }
}

#[test]
fn a_state_that_differs_is_found_quarantined_and_rebuilt_from_the_others() {
    let mut cluster = Cluster::tweaked(3, compares_often);
    for _ in 0..20 {
        cluster.leader_decides(&unique());
    }
    let follower = cluster.follower().id;
    cluster.at(follower).diverge();
    cluster.at(follower).restart_from_quarantine();
    cluster.assert_same_everywhere();

    // The leader itself may be the one.
    let leader = cluster.leader().id;
    cluster.at(leader).diverge();
    cluster.at(leader).restart_from_quarantine();
    cluster.leader_decides(&unique());
    cluster.assert_same_everywhere();
}

#[test]
fn equal_states_are_compared_under_load_and_nobody_is_suspected() {
    let cluster = Cluster::tweaked(3, compares_often);
    let compared = |cluster: &Cluster| {
        let text: String = cluster.running().map(|replica| replica.node().exposition()).collect();
        let counted = text.lines().filter_map(|line| line.strip_prefix("quorate_states_compared_total "));
        counted.map(|count| count.parse::<u64>().unwrap()).sum::<u64>()
    };
    wait("the whole state, compared three times", || {
        cluster.leader_decides(&unique());
        (compared(&cluster) >= 3).then_some(())
    });
    assert!(cluster.running().all(|replica| quarantine::read(&replica.dir).unwrap().is_none()));
    cluster.assert_same_everywhere();
}

#[test]
fn a_node_whose_log_is_damaged_stays_out_whatever_else_is_whole() {
    let mut cluster = Cluster::of(3);
    cluster.leader_decides(&unique());
    let follower = cluster.follower().id;
    cluster.at(follower).kill();
    let reason = quarantine::Reason { damaged: quarantine::Damaged::Log, text: "a byte".into() };
    let dir = cluster.at(follower).dir.clone();
    // A predecessor's threads may hold the folder for a moment.
    wait("its refusal", || {
        quarantine::write(&dir, &reason).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        match runtime.block_on(RaftNode::start(cluster.at(follower).config())) {
            Err(error @ StartError::LogDamaged(_)) => {
                assert!(error.to_string().contains("quorate replace"), "{error}");
                Some(())
            }
            Err(StartError::Identity(_)) => None,
            other => panic!("{:?}", other.map(|_| ())),
        }
    });
    cluster.leader_decides(&unique());
}
