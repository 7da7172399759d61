//! Client sessions: what a client's connection needs every gateway to know.
//!
//! The id of a client session is made and signed by a gateway and looked up nowhere, so most sessions have no record. One comes
//! with the first thing to remember: that the client ended the session, which resources it watches, or how much it wants
//! to be told. Invariants:
//! * A session belongs to one passport; to any other caller it looks like one without a record.
//! * What has ended stays so until its deadline, which the gateway sets to when the id runs out by itself.
//! * It is there while its deadline lies after the lease clock; the sweep only frees its space.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::deadline;
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::{CLIENT_SESSIONS_MAX, CLIENT_SUBSCRIPTIONS_MAX};
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{LeaseTime, Principal, ReadStamp, Stamp};
use crate::tx::{Read, StorageError, Tx};

/// What is remembered of one client session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ClientSession {
    tenant: String,
    passport: String,
    id: String,
    kept: ClientSessionKept,
    deadline: LeaseTime,
}

/// The part of it that gateways read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientSessionKept {
    /// The client said that it is done.
    pub ended: bool,
    /// The least severe message that it wants to be told; `None` for what the gateway does by default.
    pub level: Option<String>,
    /// URIs of the resources whose changes it wants to be told.
    pub subscriptions: BTreeSet<String>,
}

impl Record for ClientSession {
    const KIND: Kind = Kind::ClientSession;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        session_key(&self.passport, &self.id)
    }
}

fn session_key(passport: &str, id: &str) -> Key {
    Key::new().text(passport).text(id)
}

/// How many of a tenant have a record.
#[derive(Serialize, Deserialize)]
struct Count {
    tenant: String,
    count: u64,
}

impl Record for Count {
    const KIND: Kind = Kind::ClientSessionCount;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

fn count(view: &impl Read, tenant: &str) -> Result<Count, StorageError> {
    let count: Option<Count> = view.get(tenant, &Key::new())?;
    Ok(count.unwrap_or(Count { tenant: tenant.into(), count: 0 }))
}

/// What is to be remembered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ClientSessionChange {
    End,
    SetLevel(String),
    Subscribe(String),
    Unsubscribe(String),
}

/// Remembers something of one of the caller's client sessions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeClientSession {
    pub id: String,
    pub change: ClientSessionChange,
    /// When the id runs out by itself, from now.
    pub ttl_ms: u64,
}

impl ChangeClientSession {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<ClientSessionKept> {
        let named = match &self.change {
            ClientSessionChange::End => None,
            ClientSessionChange::SetLevel(level) => check_name("level", level),
            ClientSessionChange::Subscribe(uri) | ClientSessionChange::Unsubscribe(uri) => check_name("uri", uri),
        };
        if let Some(refusal) = check_name("session", &self.id).or(named) {
            return Ok(Err(refusal));
        }
        let Principal { tenant, passport, .. } = &at.caller;
        let stored: Option<ClientSession> = tx.get(tenant, &session_key(passport, &self.id))?;
        let mut count = count(tx, tenant)?;
        if stored.is_none() {
            if count.count >= CLIENT_SESSIONS_MAX {
                let what = "the table of client sessions".into();
                return Ok(Err(Refusal::Full { what, limit: CLIENT_SESSIONS_MAX, retry_after_ms: 60_000 }));
            }
            count.count += 1;
        }
        // One that has run out and is not swept yet is begun anew.
        let live = stored.as_ref().filter(|session| session.deadline > at.lease_now);
        let mut kept = live.map(|session| session.kept.clone()).unwrap_or_default();
        match self.change {
            // Nothing else of it matters any more.
            ClientSessionChange::End => kept = ClientSessionKept { ended: true, ..Default::default() },
            _ if kept.ended => return Ok(Err(Refusal::not_found("client session", &self.id))),
            ClientSessionChange::SetLevel(level) => kept.level = Some(level),
            ClientSessionChange::Subscribe(uri) => {
                kept.subscriptions.insert(uri);
            }
            ClientSessionChange::Unsubscribe(uri) => {
                kept.subscriptions.remove(&uri);
            }
        }
        if kept.subscriptions.len() > CLIENT_SUBSCRIPTIONS_MAX {
            let (what, limit) = ("the list of subscriptions of this session".into(), CLIENT_SUBSCRIPTIONS_MAX as u64);
            return Ok(Err(Refusal::Full { what, limit, retry_after_ms: 60_000 }));
        }
        let deadline = at.lease_now.plus_ms(self.ttl_ms);
        let session = ClientSession { tenant: tenant.clone(), passport: passport.clone(), id: self.id, kept, deadline };
        if let Some(stored) = &stored {
            deadline::delete(tx, Kind::ClientSessionByDeadline, stored.deadline, tenant, &deadline_id(stored));
        }
        deadline::put(tx, Kind::ClientSessionByDeadline, deadline, tenant, &deadline_id(&session));
        tx.put(&count);
        tx.put(&session);
        Ok(Ok(session.kept))
    }
}

/// Its name among deadlines.
fn deadline_id(session: &ClientSession) -> String {
    serde_json::json!([session.passport, session.id]).to_string()
}

/// What is remembered of one of the caller's client sessions; nothing is an answer too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetClientSession {
    pub id: String,
}

impl GetClientSession {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<ClientSessionKept> {
        if let Some(refusal) = check_name("session", &self.id) {
            return Ok(Err(refusal));
        }
        let session: Option<ClientSession> = view.get(&at.caller.tenant, &session_key(&at.caller.passport, &self.id))?;
        Ok(Ok(session.filter(|session| session.deadline > at.lease_now).map(|session| session.kept).unwrap_or_default()))
    }
}

/// Frees what has run out.
pub(crate) fn sweep(tx: &mut impl Tx, at: &Stamp) -> Result<(), StorageError> {
    for lapsed in deadline::lapsed(tx, Kind::ClientSessionByDeadline, at.lease_now)? {
        let (passport, id): (String, String) =
            serde_json::from_str(&lapsed.id).map_err(|error| StorageError::new("deadline of a client session", error))?;
        let session: Option<ClientSession> = tx.get(&lapsed.tenant, &session_key(&passport, &id))?;
        let session = session.ok_or_else(|| StorageError::corrupt("a deadline points to a client session that is not there"))?;
        deadline::delete(tx, Kind::ClientSessionByDeadline, session.deadline, &lapsed.tenant, &lapsed.id);
        tx.delete(&session);
        let mut count = count(tx, &lapsed.tenant)?;
        count.count -= 1;
        tx.put(&count);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::transcript::{World, person};

    /// Runs `time who verb word` lines, and tells what is kept of the session `s` after each.
    fn told(lines: &[&str]) -> String {
        let mut world = World::new();
        let mut told = String::new();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let (time, who, word) = (words[0], person(words[1]), words.get(3).copied().unwrap_or_default().to_string());
            let change = match words[2] {
                "end" => Some(ClientSessionChange::End),
                "level" => Some(ClientSessionChange::SetLevel(word)),
                "subscribe" => Some(ClientSessionChange::Subscribe(word)),
                "unsubscribe" => Some(ClientSessionChange::Unsubscribe(word)),
                _ => None,
            };
            let outcome = match change {
                Some(change) => world.call(time, who, None, ChangeClientSession { id: "s".into(), change, ttl_ms: 60_000 }),
                None => world.ask(time, who, GetClientSession { id: "s".into() }),
            };
            told += &match outcome {
                Ok(kept) => format!("ended {}, level {:?}, {:?}\n", kept.ended, kept.level, kept.subscriptions),
                Err(refusal) => format!("{refusal}\n"),
            };
        }
        told
    }

    #[test]
    fn a_session_remembers_until_it_ends_and_stays_ended_until_its_id_runs_out() {
        expect![[r#"
            ended false, level Some("error"), {}
            ended false, level Some("error"), {"quorate://work/w"}
            ended false, level Some("error"), {"quorate://work/v", "quorate://work/w"}
            ended false, level Some("error"), {"quorate://work/v"}
            ended false, level Some("error"), {"quorate://work/v"}
            ended false, level None, {}
            ended true, level None, {}
            there is no client session `s`
            ended true, level None, {}
            ended false, level None, {}
        "#]]
        .assert_eq(&told(&[
            "0s mara level error",
            "1s mara subscribe quorate://work/w",
            "2s mara subscribe quorate://work/v",
            "3s mara unsubscribe quorate://work/w",
            "4s mara show",
            "5s jon show",
            "6s mara end",
            "7s mara subscribe quorate://work/w",
            "65s mara show",
            "66s mara show",
        ]));
    }

    #[test]
    fn what_has_run_out_is_swept_and_makes_room() {
        let mut world = World::new();
        let end = |id: &str| ChangeClientSession { id: id.into(), change: ClientSessionChange::End, ttl_ms: 1_000 };
        world.call("0s", person("mara"), None, end("a")).expect("ended");
        world.call("0s", person("mara"), None, end("b")).expect("ended");
        assert_eq!(count(&world.state, "acme").expect("no fault").count, 2);
        world.tick("1s");
        assert_eq!(count(&world.state, "acme").expect("no fault").count, 0);
        assert!(world.state.get::<ClientSession>("acme", &session_key("mara", "a")).expect("no fault").is_none());
    }

    #[test]
    fn a_session_watches_no_more_than_its_limit() {
        let mut world = World::new();
        let watch = |n: usize| ChangeClientSession {
            id: "s".into(),
            change: ClientSessionChange::Subscribe(format!("quorate://work/{n}")),
            ttl_ms: 60_000,
        };
        for n in 0..CLIENT_SUBSCRIPTIONS_MAX {
            world.call("0s", person("mara"), None, watch(n)).expect("within the limit");
        }
        world.call("0s", person("mara"), None, watch(0)).expect("known already");
        let refused = world.call("0s", person("mara"), None, watch(CLIENT_SUBSCRIPTIONS_MAX)).expect_err("one too many");
        assert_eq!(refused.code(), Refusal::Full { what: String::new(), limit: 0, retry_after_ms: 0 }.code());
    }
}
