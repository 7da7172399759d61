//! The team lives the script: agents race for work, wait for each other and for people, edit under leases, hand off and merge.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde_json::{Value, json};

use super::caller::{Caller, Lines, No};
use super::cluster::Cluster;
use super::script::{Course, PEOPLE, Script};
use crate::exit::Failure;

/// The project that every tenant has.
pub const PROJECT: &str = "p_default";
const LOOK_EVERY: Duration = Duration::from_millis(150);
/// How long one call queues for a lease.
const QUEUE_MS: u64 = 8_000;
const LEASE_MS: u64 = 120_000;
/// When something is killed: at these shares of the work, in percent.
const KILLS: [(usize, Kill); 3] = [(20, Kill::Leader), (45, Kill::Gateway), (70, Kill::Leader)];

#[derive(Clone, Copy)]
enum Kill {
    Leader,
    Gateway,
}

/// What was lived.
pub struct Lived {
    pub faults: Vec<String>,
    pub calls: u64,
    pub resent: u64,
}

/// What agents tell each other outside of the cluster: packages on their way, and that work is over.
struct Room {
    script: Script,
    /// Items that have reached their end.
    finished: Mutex<BTreeSet<usize>>,
    /// Packages for each agent.
    inboxes: Vec<Mutex<VecDeque<Package>>>,
}

struct Package {
    item: usize,
    work_id: String,
    text: String,
}

/// An item that can't go on yet.
struct Parked {
    item: usize,
    work_id: String,
    /// The request that a person has to decide, where it waits for one.
    request: Option<String>,
}

pub async fn live(script: &Script, cluster: &mut Cluster, faults: bool, within: Duration, say: &impl Fn(&str)) -> Result<Lived, Failure> {
    let lines = Arc::new(Lines::new(cluster.doors.clone())?);
    let caller = |name: &str, door: usize| Caller::new(name, cluster.token(name), lines.clone(), door);
    let room = Arc::new(Room {
        script: Script::of(script.seed, script.agents.len() as u64, script.items.len() as u64),
        finished: Mutex::default(),
        inboxes: script.agents.iter().map(|_| Mutex::default()).collect(),
    });
    let mut team = tokio::task::JoinSet::new();
    let planner = caller(PEOPLE[2].0, 0);
    let planned = room.clone();
    team.spawn(async move { plan(&planner, &planned).await });
    for (place, (name, _)) in PEOPLE.iter().enumerate().take(2) {
        let (person, room) = (caller(name, place), room.clone());
        team.spawn(async move { decide(&person, &room).await });
    }
    for (place, name) in script.agents.iter().enumerate() {
        let (agent, room) = (caller(name, place), room.clone());
        team.spawn(async move { Agent { caller: agent, place, room, parked: Vec::new(), lost: BTreeSet::new() }.work().await });
    }

    let (began, total) = (Instant::now(), script.items.len());
    let (mut killed, mut told, mut kills) = (Vec::new(), usize::MAX, KILLS.iter().peekable());
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            one = team.join_next() => match one {
                None => break,
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(no))) => return Err(Failure::failed(format!("a call was refused that the script needs: {} ({})", no.message, no.code))),
                Some(Err(error)) => return Err(anyhow!("one of the team failed: {error}").into()),
            },
            _ = look.tick() => {
                if began.elapsed() > within {
                    return Err(Failure::failed(format!("the day is not over after {} s", within.as_secs())));
                }
                let done = room.finished.lock().expect("no panic under the lock").len();
                if let (true, Some((_, kill))) = (faults, kills.next_if(|(share, _)| done * 100 >= share * total)) {
                    let what = match kill {
                        Kill::Leader => cluster.kill_leader().await?,
                        Kill::Gateway => cluster.kill_gateway()?,
                    };
                    say(&format!("  {:>5.1} s  killed {what}", began.elapsed().as_secs_f64()));
                    killed.push(what);
                }
                if done * 10 / total != told {
                    told = done * 10 / total;
                    say(&format!("  {:>5.1} s  {done} of {total} items are at their end", began.elapsed().as_secs_f64()));
                }
            }
        }
    }
    Ok(Lived { faults: killed, calls: lines.calls.load(Relaxed), resent: lines.resent.load(Relaxed) })
}

impl Room {
    fn is_over(&self) -> bool {
        self.finished.lock().expect("no panic under the lock").len() == self.script.items.len()
    }

    fn is_finished(&self, item: usize) -> bool {
        self.finished.lock().expect("no panic under the lock").contains(&item)
    }

    fn finish(&self, item: usize) {
        self.finished.lock().expect("no panic under the lock").insert(item);
    }
}

/// Puts the work on the board.
async fn plan(person: &Caller, room: &Room) -> Result<(), No> {
    for (n, item) in room.script.items.iter().enumerate() {
        let arguments = json!({ "project_id": PROJECT, "title": item.title, "created_by_passport": person.passport });
        person.call("create_work", &arguments, Some(&room.script.key(n, "create"))).await?;
    }
    Ok(())
}

/// Decides what waits for a person, as the script has it. Two do so at once, and the first one counts.
async fn decide(person: &Caller, room: &Room) -> Result<(), No> {
    while !room.is_over() {
        let waiting = person.get("/v1/approvals?status=pending&limit=100").await?;
        for request in waiting["approvals"].as_array().into_iter().flatten() {
            let place = request["action_summary"].as_str().and_then(Script::place);
            let (Some(place), Some(id)) = (place, request["request_id"].as_str()) else { continue };
            let approved = room.script.items.get(place).is_some_and(|item| item.course == Course::Asks { approved: true });
            let arguments = json!({ "request_id": id, "decision": if approved { "approve" } else { "reject" } });
            match person.call("approval_decide", &arguments, Some(&format!("decide-{}-{id}", person.passport))).await {
                Ok(_) => {}
                Err(no) if no.code == "ALREADY_DECIDED" => {}
                Err(no) => return Err(no),
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

struct Agent {
    caller: Caller,
    place: usize,
    room: Arc<Room>,
    parked: Vec<Parked>,
    /// Items that another one was faster with.
    lost: BTreeSet<usize>,
}

impl Agent {
    async fn work(mut self) -> Result<(), No> {
        while !self.room.is_over() {
            let package = self.room.inboxes[self.place].lock().expect("no panic under the lock").pop_front();
            let is_busy = match package {
                Some(package) => self.accept(package).await.map(|()| true)?,
                None => self.resume().await? || self.claim().await?,
            };
            if !is_busy {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        Ok(())
    }

    /// Takes an item from the board, if there is one and no other agent was faster.
    async fn claim(&mut self) -> Result<bool, No> {
        let planned = self.caller.call("list_work", &json!({ "state": "planned", "limit": 1_000 }), None).await?;
        let open: Vec<(usize, String)> = planned["work"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|item| Some((Script::place(item["title"].as_str()?)?, item["id"].as_str()?.to_string())))
            .filter(|(item, _)| !self.lost.contains(item))
            .collect();
        // The oldest first; agents spread over the first few, and still meet.
        let from_end = 1 + self.place % 4;
        let Some((item, work_id)) = open.len().checked_sub(from_end.min(open.len())).and_then(|at| open.get(at)).cloned() else {
            return Ok(false);
        };
        match self.shift(item, &work_id, "in_progress", "claim", json!({ "expected_state": "planned" })).await {
            Ok(()) => {}
            // Somebody else has it. `-32004`: it is no longer where it was expected.
            Err(no) if no.code == "-32004" => {
                self.lost.insert(item);
                return Ok(true);
            }
            Err(no) => return Err(no),
        }
        match self.room.script.items[item].course {
            Course::Plain => self.finish(item, &work_id).await?,
            Course::HandedOff => self.hand_off(item, work_id).await?,
            Course::WaitsFor(other) if self.room.is_finished(other) => {
                // Blocked all the same, so that the day tells the same story whoever was first.
                self.block(item, &work_id, other).await?;
                self.go_on(item, &work_id).await?;
            }
            Course::WaitsFor(other) => {
                self.block(item, &work_id, other).await?;
                self.parked.push(Parked { item, work_id, request: None });
            }
            Course::Asks { .. } => {
                let title = &self.room.script.items[item].title;
                let ask = json!({ "action_summary": title, "risk_tier": "medium", "scope": "default", "token_budget": 500 });
                let asked = self.caller.call("approval_request", &ask, Some(&self.key(item, "ask"))).await?;
                let why = json!({ "blocker_reason": "waits for a person", "blocker_kind": "needs_approval" });
                self.shift(item, &work_id, "blocked", "hold", why).await?;
                self.parked.push(Parked { item, work_id, request: asked["request_id"].as_str().map(String::from) });
            }
        }
        Ok(true)
    }

    /// Goes on with an item whose reason to wait is gone.
    async fn resume(&mut self) -> Result<bool, No> {
        for n in 0..self.parked.len() {
            let Parked { item, request, .. } = &self.parked[n];
            let answer = match (self.room.script.items[*item].course, request) {
                (Course::WaitsFor(other), _) => self.room.is_finished(other).then_some(true),
                (_, Some(request)) => self.decision(request).await?,
                (_, None) => None,
            };
            if let Some(yes) = answer {
                let Parked { item, work_id, .. } = self.parked.swap_remove(n);
                match yes {
                    true => self.go_on(item, &work_id).await?,
                    false => {
                        self.shift(item, &work_id, "archive", "archive", json!({})).await?;
                        self.room.finish(item);
                    }
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn decision(&self, request: &str) -> Result<Option<bool>, No> {
        let all = self.caller.get("/v1/approvals?status=all&limit=1000").await?;
        let mine = all["approvals"].as_array().into_iter().flatten().find(|one| one["request_id"] == request);
        Ok(match mine.and_then(|mine| mine["status"].as_str()) {
            Some("approved") => Some(true),
            Some("rejected") => Some(false),
            _ => None,
        })
    }

    async fn block(&self, item: usize, work_id: &str, other: usize) -> Result<(), No> {
        self.shift(item, work_id, "blocked", "block", json!({ "blocker_reason": format!("waits for item {other:03}") })).await
    }

    async fn go_on(&self, item: usize, work_id: &str) -> Result<(), No> {
        self.shift(item, work_id, "in_progress", "resume", json!({})).await?;
        self.finish(item, work_id).await
    }

    /// Hands an item to the next agent, with what is known of it.
    async fn hand_off(&self, item: usize, work_id: String) -> Result<(), No> {
        let next = (self.place + 1) % self.room.script.agents.len();
        let session = format!("item-{item:03}");
        let state = json!({ "session_id": session, "state": { "work_id": work_id, "next": "finish it" } });
        self.caller.call("save_session", &state, Some(&self.key(item, "save"))).await?;
        let pack = json!({ "session_id": session, "target_agent": self.room.script.agents[next] });
        let packed = self.caller.call("create_handoff", &pack, Some(&self.key(item, "pack"))).await?;
        let text = packed["package_json"].as_str().unwrap_or_default().to_string();
        self.room.inboxes[next].lock().expect("no panic under the lock").push_back(Package { item, work_id, text });
        Ok(())
    }

    async fn accept(&self, package: Package) -> Result<(), No> {
        let Package { item, work_id, text } = package;
        let accepted = self.caller.call("accept_handoff", &json!({ "package": text }), Some(&self.key(item, "accept"))).await?;
        if accepted["verified"] != true {
            return Err(No {
                code: "UNVERIFIED".into(),
                message: format!("the package of item {item} is not what was packed: {accepted}"),
            });
        }
        let told = json!({ "entity": format!("demo:item:{item:03}"), "key": "accepted_handoff", "value": "once" });
        self.caller.call("store_fact", &told, Some(&self.key(item, "told"))).await?;
        self.finish(item, &work_id).await
    }

    /// Edits the file under its lease, finishes the item, and merges it where the script says so.
    async fn finish(&self, item: usize, work_id: &str) -> Result<(), No> {
        let script = &self.room.script;
        let file = script.file(script.items[item].file);
        let token = self.lease(item, &format!("file://{file}"), "file").await?;
        // Read, add one, write: right only if nobody else does so meanwhile.
        let entity = format!("demo:file:{file}");
        let found = self.caller.call("query_facts", &json!({ "entity": entity, "key": "edits" }), None).await?;
        let edits: u64 = found["rows"][0]["value"].as_str().and_then(|edits| edits.parse().ok()).unwrap_or(0);
        let store = json!({ "entity": entity, "key": "edits", "value": (edits + 1).to_string(), "fencing_token": token });
        self.caller.call("store_fact", &store, Some(&self.key(item, "edit"))).await?;
        self.release(item, &format!("file://{file}"), "file-out").await?;
        self.shift(item, work_id, "complete", "complete", json!({})).await?;
        if script.items[item].merged {
            let token = self.lease(item, "deploy://main", "main").await?;
            self.shift(item, work_id, "deployed", "deploy", json!({ "fencing_token": token })).await?;
            self.release(item, "deploy://main", "main-out").await?;
        }
        self.room.finish(item);
        Ok(())
    }

    /// Queues for a lease until it is granted; its fencing token.
    async fn lease(&self, item: usize, resource: &str, step: &str) -> Result<u64, No> {
        for attempt in 0.. {
            let key = self.key(item, &format!("{step}-{attempt}"));
            let arguments =
                json!({ "resource": resource, "holder_passport": self.caller.passport, "ttl_ms": LEASE_MS, "wait_ms": QUEUE_MS });
            match self.caller.call("punch_in", &arguments, Some(&key)).await {
                Ok(card) => return card["fencing_token"].as_u64().ok_or_else(|| No { code: "NO_TOKEN".into(), message: card.to_string() }),
                Err(no) if no.code == "HELD" => {}
                Err(no) => return Err(no),
            }
        }
        unreachable!("the attempts do not end")
    }

    async fn release(&self, item: usize, resource: &str, step: &str) -> Result<(), No> {
        let arguments = json!({ "resource": resource, "holder_passport": self.caller.passport });
        self.caller.call("punch_out", &arguments, Some(&self.key(item, step))).await.map(|_| ())
    }

    /// Moves an item.
    async fn shift(&self, item: usize, work_id: &str, state: &str, step: &str, more: Value) -> Result<(), No> {
        let mut arguments = json!({ "work_id": work_id, "state": state, "by_passport": self.caller.passport });
        if let (Some(arguments), Value::Object(more)) = (arguments.as_object_mut(), more) {
            arguments.extend(more);
        }
        self.caller.call("update_work_state", &arguments, Some(&self.key(item, step))).await.map(|_| ())
    }

    /// A key is the caller's own, so the same step of two agents does not meet.
    fn key(&self, item: usize, step: &str) -> String {
        self.room.script.key(item, step)
    }
}
