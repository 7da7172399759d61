//! `quorate join`, `promote`, `remove` and `replace`: who takes part.
//!
//! The rules are the leader's; these verbs find it, ask it, and say what came of it. Each can be run again: what is done
//! already is not done twice. On a deployment of `quorate dev` one of them runs at a time.

use std::fs::File;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use quorate_proto::cluster::change_membership_request::Change;
use quorate_proto::cluster::change_membership_response::Result as Answer;
use quorate_proto::cluster::{ChangeMembershipRequest, Member, MembershipRefused, Promotion, Removal};
use serde_json::json;
use tonic::Code;

use crate::deployment::{Deployment, NodeEntry, Nodes, Target, try_lock};
use crate::exit::{self, Failure};
use crate::status::{Survey, ask, connect, silence, survey};
use crate::{key, output};

/// Add the fresh node that runs at an address, as a learner.
///
/// Start it with `quorate node --new` under an id that was never used. It gets everything and votes on nothing until it is
/// promoted.
#[derive(Args)]
pub struct Join {
    /// gRPC address of the new node, as the other nodes reach it, such as 127.0.0.1:7404
    address: String,
    #[command(flatten)]
    pub target: Target,
    /// Only check, and say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Make a learner that has caught up a voter.
///
/// Refused unless it has been close behind the leader, and heard of, for three seconds.
#[derive(Args)]
pub struct Promote {
    /// Id of the learner
    id: u64,
    #[command(flatten)]
    pub target: Target,
    /// Only check, and say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Take a member out of the cluster, for good: its id never comes back.
///
/// A leader hands over first. `quorate dev` stops the node; another one has to be stopped by whoever runs it.
#[derive(Args)]
pub struct Remove {
    /// Id of the member
    id: u64,
    /// Even if the voters that are left and answer make no quorum: writes stop until enough of the others are back
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub target: Target,
    /// Only check, and say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Give a node's place to a new one, which `quorate dev` starts by itself.
///
/// For a node whose disk was lost, and for one that shall go. The new node gets a new id and new addresses, catches up, and
/// takes the old one's vote in one step. Interrupted, the same command goes on where it was. The old folder stays.
#[derive(Args)]
pub struct Replace {
    /// Id of the node that goes
    old: u64,
    #[command(flatten)]
    pub target: Target,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// One request is answered by then: a promotion watches its learner for seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(12);
/// A change that is not decided by then is told as undecided; it may still happen.
const DECIDED_WITHIN: Duration = Duration::from_secs(30);
/// A node that was started answers by then.
const STARTED_WITHIN: Duration = Duration::from_secs(60);
/// A new member that comes no closer for so long is given up for now. A snapshot on its way shows no progress.
const CLOSER_WITHIN: Duration = Duration::from_secs(600);
/// A new member has heard of its membership by then.
const HEARD_WITHIN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

fn refused(why: MembershipRefused) -> Failure {
    Failure::failed(format!("{}. Nothing was changed", why.detail))
}

/// Has the leader make or check a change, whoever leads by then. True when something changed.
async fn change(nodes: &Nodes, change: Change, dry_run: bool) -> Result<Result<bool, MembershipRefused>, Failure> {
    let deadline = Instant::now() + DECIDED_WITHIN;
    let mut begun = false;
    let mut named: Option<String> = None;
    let mut why = String::from("there is no leader now");
    loop {
        let leader = match named.take() {
            Some(address) => Some(address),
            None => {
                let found = survey(nodes).await;
                if found.nodes.is_empty() {
                    let silence = silence(nodes).await;
                    if silence.code != exit::UNAVAILABLE {
                        return Err(silence);
                    }
                }
                found.leader.and_then(|leader| found.grpc_of(leader))
            }
        };
        if let Some(address) = leader {
            match request(nodes, &address, change.clone(), dry_run).await {
                Ok(Some(Answer::Done(done))) => return Ok(Ok(done.changed)),
                // Its own beginning, from an attempt whose answer was lost.
                Ok(Some(Answer::Refused(refused))) if refused.reason == "busy" && begun => why = refused.detail,
                Ok(Some(Answer::Refused(refused))) => return Ok(Err(refused)),
                Ok(Some(Answer::NotLeader(other))) => {
                    why = format!("{address} does not lead");
                    named = Some(other.leader_grpc).filter(|named| !named.is_empty() && *named != address);
                }
                Ok(Some(Answer::Unavailable(unavailable))) => {
                    begun |= unavailable.maybe_written;
                    why = unavailable.detail;
                }
                Ok(None) => return Err(Failure::failed(format!("{address} answered nothing; is it of another version?"))),
                Err(Refusal::Final(failure)) => return Err(failure),
                Err(Refusal::Unreachable { sent, detail }) => {
                    begun |= sent;
                    why = detail;
                }
            }
        }
        if Instant::now() > deadline {
            let certainty = if begun { "it may still happen: `quorate status` shows the members" } else { "nothing was changed" };
            return Err(Failure::unavailable(format!("not decided within {} s, {certainty} ({why})", DECIDED_WITHIN.as_secs())));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Why one request has no answer.
enum Refusal {
    Final(Failure),
    Unreachable { sent: bool, detail: String },
}

async fn request(nodes: &Nodes, address: &str, change: Change, dry_run: bool) -> Result<Option<Answer>, Refusal> {
    let unreachable = |failure: Failure| Refusal::Unreachable { sent: false, detail: failure.message };
    let mut client = connect(address, nodes).await.map_err(unreachable)?;
    let mut request = tonic::Request::new(ChangeMembershipRequest { change: Some(change), dry_run });
    request.set_timeout(ANSWER_WITHIN);
    match client.change_membership(request).await {
        Ok(answer) => Ok(answer.into_inner().result),
        Err(status) => match status.code() {
            Code::InvalidArgument | Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented => {
                Err(Refusal::Final(Failure::failed(format!("{address}: {}", status.message()))))
            }
            _ => Err(Refusal::Unreachable { sent: true, detail: format!("{address}: {}", status.message()) }),
        },
    }
}

/// Keeps a second change out of the same deployment. Without a folder, the leader alone keeps them apart.
fn only_change(target: &Target, dry_run: bool) -> Result<Option<File>, Failure> {
    if dry_run || !target.nodes.is_empty() {
        return Ok(None);
    }
    target.deployment()?;
    match try_lock(&target.data, "membership.lock")? {
        Some(lock) => Ok(Some(lock)),
        None => Err(Failure::failed("another change of the membership is running on this deployment; try again when it is done")),
    }
}

async fn with_leader(nodes: &Nodes) -> Result<Survey, Failure> {
    let found = survey(nodes).await;
    match found.leader {
        Some(_) => Ok(found),
        None if found.nodes.is_empty() => Err(silence(nodes).await),
        None => Err(Failure::unavailable("there is no leader now; try again in a few seconds. Nothing was changed")),
    }
}

impl Join {
    pub async fn run(self) -> Result<(), Failure> {
        let _only = only_change(&self.target, self.dry_run)?;
        let nodes = self.target.nodes()?;
        let address = self.address.trim_start_matches("http://").trim_end_matches('/').to_string();
        let new = ask(&address, &nodes)
            .await
            .map_err(|failure| Failure::new(failure.code, format!("{}. Nothing was changed", failure.message)))?;
        let id = new.node_id;
        let before = with_leader(&nodes).await?;
        if new.cluster_id != before.cluster_id {
            let (theirs, ours) = (new.cluster_id, before.cluster_id);
            return Err(Failure::failed(format!(
                "the node at {address} is set up for cluster `{theirs}`, and this is `{ours}`. Nothing was changed"
            )));
        }
        let is_fresh = new.role == "uninitialized";
        match before.nodes.iter().find(|node| node.id == id && node.role != "removed") {
            Some(known) if is_fresh && known.voter => {
                return Err(Failure::failed(format!(
                    "node {id} is a voter already, and the node at {address} is empty: an empty disk can't come back under its old id. \
                     Give its place to a new member with `quorate replace {id}`, or start this one under an id that was never used"
                )));
            }
            None if !is_fresh && before.member_id_max < id => {
                return Err(Failure::failed(format!(
                    "the node at {address} took part in something else already ({}); only a fresh node can join. Nothing was changed",
                    new.role
                )));
            }
            _ => {}
        }
        let member = Member { id, grpc: address.clone(), http: new.http, ..Member::default() };
        let changed = change(&nodes, Change::AddLearner(member), self.dry_run).await?.map_err(refused)?;
        let text = match (self.dry_run, changed) {
            (true, true) => format!("would add node {id} at {address} as a learner"),
            (_, false) => format!("node {id} at {address} is a member already"),
            (false, true) => format!("node {id} at {address} is a learner now; `quorate promote {id}` makes it a voter"),
        };
        if !self.dry_run {
            let deadline = Instant::now() + HEARD_WITHIN;
            while ask(&address, &nodes).await.is_ok_and(|node| node.role == "uninitialized") && Instant::now() < deadline {
                tokio::time::sleep(PAUSE).await;
            }
        }
        let json = json!({"ok": true, "id": id, "grpc": address, "changed": changed && !self.dry_run, "dry_run": self.dry_run});
        output::print(self.target.json, &json, &text);
        Ok(())
    }
}

/// A new voter's cosignatures are to count. That they don't yet is no reason to call the change itself failed.
async fn enroll(nodes: &Nodes) {
    let missing = match key::enroll(nodes, false).await {
        Ok(found) => found.values().any(|row| row["state"] == "unreachable"),
        Err(_) => true,
    };
    if missing {
        eprintln!("quorate: not every node's key is in the ring yet; run `quorate key enroll` when all nodes answer");
    }
}

impl Promote {
    pub async fn run(self) -> Result<(), Failure> {
        let _only = only_change(&self.target, self.dry_run)?;
        let nodes = self.target.nodes()?;
        let id = self.id;
        let promotion = Promotion { id, instead_of: None };
        let changed = change(&nodes, Change::Promote(promotion), self.dry_run).await?.map_err(refused)?;
        if !self.dry_run {
            enroll(&nodes).await;
        }
        let text = match (self.dry_run, changed) {
            (true, true) => format!("would make node {id} a voter, if it stays as close for some seconds"),
            (_, false) => format!("node {id} is a voter already"),
            (false, true) => format!("node {id} is a voter now"),
        };
        let json = json!({"ok": true, "id": id, "changed": changed && !self.dry_run, "dry_run": self.dry_run});
        output::print(self.target.json, &json, &text);
        Ok(())
    }
}

impl Remove {
    pub async fn run(self) -> Result<(), Failure> {
        let _only = only_change(&self.target, self.dry_run)?;
        let nodes = self.target.nodes()?;
        let id = self.id;
        let voters: Vec<u64> = survey(&nodes).await.nodes.iter().filter(|node| node.voter).map(|node| node.id).collect();
        let removal = Removal { id, force: self.force };
        let changed = change(&nodes, Change::Remove(removal), self.dry_run).await?.map_err(refused)?;
        let warning = if changed && voters.contains(&id) { fewer_voters(voters.len()) } else { None };
        if !self.dry_run && self.target.nodes.is_empty() {
            Deployment::update(&self.target.data, |deployment| deployment.retire(id, None))?;
        }
        let text = match (self.dry_run, changed) {
            (true, true) => format!("would remove node {id}"),
            (_, false) => format!("node {id} was removed before"),
            (false, true) => format!("node {id} is removed, and its id never comes back; its folder can go"),
        };
        let mut json = json!({"ok": true, "id": id, "changed": changed && !self.dry_run, "dry_run": self.dry_run});
        if let Some(warning) = warning {
            eprintln!("quorate: {warning}");
            json["warning"] = warning.into();
        }
        output::print(self.target.json, &json, &text);
        Ok(())
    }
}

/// What is left to say when one of so many voters goes: how many failures the others tolerate, if that is fewer than before or none.
fn fewer_voters(before: usize) -> Option<String> {
    let (left, tolerates) = (before.checked_sub(1)?, |voters: usize| voters.saturating_sub(1) / 2);
    let add = "add one with `quorate join` and `quorate promote`";
    match left {
        0 => None,
        1 => Some(format!("1 voter is left: nothing goes on when it fails, and nothing is left when its disk is lost; {add}")),
        2 => Some(format!("2 voters are left: nothing goes on when either of them fails; {add}")),
        _ if tolerates(left) < tolerates(before) => {
            let failures = if tolerates(left) == 1 { "1 failure".into() } else { format!("{} failures", tolerates(left)) };
            Some(format!("{left} voters are left, which tolerate {failures}, and it was {} before; {add}", tolerates(before)))
        }
        _ => None,
    }
}

impl Replace {
    pub async fn run(self) -> Result<(), Failure> {
        if !self.target.nodes.is_empty() {
            return Err(Failure::usage(
                "`replace` starts the new node by `quorate dev`, so it needs --data; elsewhere start a node with `quorate node --new`, \
                 then `join`, `promote` and `remove`",
            ));
        }
        let _only = only_change(&self.target, self.dry_run)?;
        let (data, old) = (self.target.data.as_path(), self.old);
        let deployment = self.target.deployment()?;
        let begun = deployment.nodes.iter().find(|node| node.replaces == Some(old)).cloned();
        if begun.is_none() {
            if let Some(gone) = deployment.retired.iter().find(|retired| retired.id == old) {
                let by = gone.replaced_by.map_or_else(|| "removed".into(), |by| format!("replaced by node {by}"));
                let json = json!({"ok": true, "replaced": old, "id": gone.replaced_by, "changed": false, "dry_run": self.dry_run});
                output::print(self.target.json, &json, &format!("node {old} was {by} before"));
                return Ok(());
            }
            if !deployment.nodes.iter().any(|node| node.id == old) {
                let known: Vec<String> = deployment.nodes.iter().map(|node| node.id.to_string()).collect();
                return Err(Failure::usage(format!("no node {old} in {}; there are {}", data.display(), known.join(", "))));
            }
        }
        let before = with_leader(&self.target.nodes()?).await?;
        if self.dry_run {
            let id = begun.map_or_else(|| deployment.next_id(before.member_id_max), |node| node.id);
            let json = json!({"ok": true, "replaced": old, "id": id, "changed": false, "dry_run": true});
            output::print(
                self.target.json,
                &json,
                &format!("would start node {id}, give it the vote of node {old}, and remove node {old}"),
            );
            return Ok(());
        }
        if try_lock(data, "dev.lock")?.is_some() {
            return Err(Failure::failed(format!(
                "no `quorate dev` runs on {}, and it has to start the new node; start it first. Nothing was changed",
                data.display()
            )));
        }
        let new = match begun {
            Some(new) => new,
            None => plan(data, old, before.member_id_max)?,
        };
        self.say(&format!("node {} at {} takes the place of node {old}", new.id, new.grpc));
        self.await_start(&new).await?;

        // With the new node's address: it may be the one that is asked when others are down.
        let nodes = self.target.nodes()?;
        let member = Member { id: new.id, grpc: new.grpc.clone(), http: new.http.clone(), ..Member::default() };
        change(&nodes, Change::AddLearner(member), false).await?.map_err(unfinished(old))?;
        self.say("it is a learner and catches up");
        self.promote(&nodes, new.id).await?;
        self.say("it votes");
        enroll(&nodes).await;
        let removal = Removal { id: old, force: false };
        match change(&nodes, Change::Remove(removal), false).await? {
            // `no_member`: it never got so far as to be one.
            Err(refused) if refused.reason != "no_member" => return Err(unfinished(old)(refused)),
            _ => {}
        }
        Deployment::update(data, |deployment| {
            deployment.retire(old, Some(new.id));
            if let Some(node) = deployment.nodes.iter_mut().find(|node| node.id == new.id) {
                node.replaces = None;
            }
        })?;
        let folder = data.join(format!("node-{}", new.id));
        let json = json!({
            "ok": true, "replaced": old, "id": new.id, "grpc": new.grpc, "http": deployment.http_of(&new),
            "data": folder.display().to_string(), "changed": true, "dry_run": false,
        });
        output::print(
            self.target.json,
            &json,
            &format!("node {} has the place of node {old}, with its data in {}", new.id, folder.display()),
        );
        Ok(())
    }

    fn say(&self, step: &str) {
        if !self.target.json {
            eprintln!("quorate: {step}");
        }
    }

    /// Waits until `dev` runs the new node, and has it written down before the node belongs to anything: from then on an empty
    /// folder is a lost disk.
    async fn await_start(&self, new: &NodeEntry) -> Result<(), Failure> {
        let nodes = self.target.nodes()?;
        let deadline = Instant::now() + STARTED_WITHIN;
        loop {
            let why = match ask(&new.grpc, &nodes).await {
                Ok(node) if node.node_id == new.id => break,
                Ok(node) => format!("node {} answers at {}", node.node_id, new.grpc),
                Err(failure) => failure.message,
            };
            if Instant::now() > deadline {
                if !new.created {
                    // Nothing depends on it yet; its port may have been taken. The next try gets new ones.
                    Deployment::update(&self.target.data, |deployment| deployment.retire(new.id, None))?;
                }
                let old = self.old;
                return Err(Failure::unavailable(format!("node {} did not start ({why}); run `quorate replace {old}` again", new.id)));
            }
            tokio::time::sleep(PAUSE).await;
        }
        Deployment::update(&self.target.data, |deployment| {
            if let Some(node) = deployment.nodes.iter_mut().find(|node| node.id == new.id) {
                node.created = true;
            }
        })?;
        Ok(())
    }

    /// Has the leader swap the votes as soon as the new node is close enough.
    async fn promote(&self, nodes: &Nodes, id: u64) -> Result<(), Failure> {
        let mut closest = u64::MAX;
        let mut deadline = Instant::now() + CLOSER_WITHIN;
        loop {
            let promotion = Promotion { id, instead_of: Some(self.old) };
            let refused = match change(nodes, Change::Promote(promotion), false).await? {
                Ok(_) => return Ok(()),
                Err(refused) => refused,
            };
            match refused.reason.as_str() {
                "behind" => {
                    let lag = refused.lag.unwrap_or(u64::MAX);
                    if lag < closest {
                        (closest, deadline) = (lag, Instant::now() + CLOSER_WITHIN);
                    }
                }
                "silent" | "busy" => {}
                _ => return Err(unfinished(self.old)(refused)),
            }
            if Instant::now() > deadline {
                return Err(unfinished(self.old)(refused));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn unfinished(old: u64) -> impl Fn(MembershipRefused) -> Failure {
    move |why| Failure::failed(format!("{}. The replacement is not finished: run `quorate replace {old}` again to go on", why.detail))
}

/// Writes the new node down, in one step. `dev` starts it as soon as it sees it.
fn plan(data: &std::path::Path, old: u64, used_max: u64) -> Result<NodeEntry, Failure> {
    // Both are held at once, so that they differ.
    let (grpc, http) =
        (TcpListener::bind("127.0.0.1:0").context("no free port")?, TcpListener::bind("127.0.0.1:0").context("no free port")?);
    let address = |listener: &TcpListener| listener.local_addr().map(|address| address.to_string()).context("no free port");
    let (grpc_address, http_address) = (address(&grpc)?, address(&http)?);
    drop((grpc, http));
    let planned = Deployment::update(data, |deployment| {
        let id = deployment.next_id(used_max);
        let node = NodeEntry { id, grpc: grpc_address, http: http_address, created: false, replaces: Some(old) };
        deployment.nodes.push(node.clone());
        node
    })?;
    Ok(planned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_that_costs_tolerance_says_what_is_left() {
        assert!(fewer_voters(2).is_some_and(|text| text.starts_with("1 voter is left")));
        assert!(fewer_voters(3).is_some_and(|text| text.starts_with("2 voters are left: nothing goes on when either")));
        assert!(fewer_voters(5).is_some_and(|text| text.contains("4 voters are left, which tolerate 1 failure, and it was 2 before")));
        assert_eq!((fewer_voters(1), fewer_voters(4), fewer_voters(6)), (None, None, None));
    }

    #[test]
    fn a_replacement_is_written_down_whole_under_an_id_that_nobody_ever_had() {
        let folder = tempfile::tempdir().expect("a folder");
        let deployment = r#"{"cluster_id": "c", "cluster_secret": "s", "session_key": "k", "receipt_key": "r", "gateway": "127.0.0.1:1",
            "nodes": [{"id": 1, "grpc": "g1", "http": "h1", "created": true}, {"id": 3, "grpc": "g3", "http": "h3", "created": true}],
            "retired": [{"id": 2, "replaced_by": 3}], "tokens": []}"#;
        std::fs::write(Deployment::path(folder.path()), deployment).expect("written");
        // The cluster knows a node 5 that this deployment never ran.
        let planned = plan(folder.path(), 1, 5).expect("planned");
        let saved = Deployment::load(folder.path()).expect("read").expect("there");
        let new = saved.nodes.last().expect("a node");
        assert_eq!((new.id, new.replaces, new.created), (6, Some(1), false));
        assert_eq!((new.grpc.as_str(), new.http.as_str()), (planned.grpc.as_str(), planned.http.as_str()));
        assert_ne!(new.grpc, new.http);
        assert_eq!(saved.nodes.len(), 3, "the old one runs until its vote is taken over");
    }
}
