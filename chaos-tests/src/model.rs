//! What Quorate promises to be, as models for the search in [`crate::linear`]: a chain of versions, a lease with fencing tokens, a
//! session with compare-and-set, a decision.
//!
//! Each looks at the events of one object. Values are unique, as the workloads send them.

use std::collections::BTreeMap;

use crate::history::{Event, Moment, Operation, Outcome};
use crate::linear::{self, Linearizability, Model};

/// What kind of thing an operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Chain,
    Lease,
    Session,
    Decision,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Chain, Kind::Lease, Kind::Session, Kind::Decision];

    pub fn word(self) -> &'static str {
        match self {
            Kind::Chain => "fact",
            Kind::Lease => "lease",
            Kind::Session => "session",
            Kind::Decision => "approval",
        }
    }
}

/// The events of each object, in the order of the history. A store under a lease belongs to the lease and to the name.
pub fn objects(history: &[Event]) -> BTreeMap<(Kind, &str), Vec<Event>> {
    let mut found: BTreeMap<(Kind, &str), Vec<Event>> = BTreeMap::new();
    for event in history {
        let kind = match &event.operation {
            Operation::Store { .. } | Operation::Read { .. } | Operation::Latest { .. } => Kind::Chain,
            Operation::StoreUnder { name, .. } => {
                found.entry((Kind::Chain, name)).or_default().push(event.clone());
                Kind::Lease
            }
            Operation::Acquire { .. } | Operation::Release { .. } | Operation::Force { .. } | Operation::Check { .. } => Kind::Lease,
            Operation::Save { .. } | Operation::Load { .. } => Kind::Session,
            Operation::Decide { .. } => Kind::Decision,
        };
        found.entry((kind, event.operation.object())).or_default().push(event.clone());
    }
    found
}

/// Decides the history of one object; of a violated one also its smallest part.
pub fn check(kind: Kind, events: &[Event]) -> (Linearizability, Vec<Event>) {
    match kind {
        Kind::Chain => check_with(&Chain, events),
        Kind::Lease => check_with(&Lease, events),
        Kind::Session => check_with(&Session::of(events), events),
        Kind::Decision => check_with(&Decision, events),
    }
}

fn check_with<M: Model<Call = Event>>(model: &M, events: &[Event]) -> (Linearizability, Vec<Event>) {
    match linear::check(model, events) {
        Linearizability::Violated { .. } => {
            let smallest = linear::smallest(model, events);
            (linear::check(model, &smallest), smallest)
        }
        other => (other, Vec::new()),
    }
}

/// What all four have in common.
macro_rules! of_events {
    () => {
        type Call = Event;

        fn interval(&self, event: &Event) -> (Moment, Option<Moment>) {
            (event.sent, (event.outcome != Outcome::Unknown).then_some(event.answered))
        }

        fn is_read(&self, event: &Event) -> bool {
            event.operation.is_read() || event.outcome == Outcome::Refused
        }

        fn unanswered(&self, event: &Event) -> Event {
            Event { outcome: Outcome::Unknown, revision: None, ..event.clone() }
        }
    };
}

/// Versions under one name: each store appends, each read shows all or the last.
pub struct Chain;

impl Model for Chain {
    of_events!();
    type State = Vec<String>;

    fn init(&self) -> Vec<String> {
        Vec::new()
    }

    fn step(&self, versions: &Vec<String>, event: &Event) -> Option<Vec<String>> {
        let last = versions.last().map(|value| (versions.len() as u64, value.clone()));
        let same = |fits: bool| fits.then(|| versions.clone());
        match (&event.operation, &event.outcome) {
            (Operation::Store { value, .. } | Operation::StoreUnder { value, .. }, Outcome::Stored { .. } | Outcome::Unknown) => {
                let longer: Vec<String> = versions.iter().chain([value]).cloned().collect();
                match event.outcome {
                    Outcome::Stored { version } if version != longer.len() as u64 => None,
                    _ => Some(longer),
                }
            }
            (_, Outcome::Versions(seen)) => same(seen == versions),
            (_, Outcome::Version(seen)) => same(*seen == last),
            (_, Outcome::Unknown | Outcome::Refused | Outcome::Stale) => same(true),
            _ => None,
        }
    }
}

/// A lease: at most one holder; each grant has a higher token; it never ends before its time.
///
/// The cluster's clock for it started at some moment after the grant was sent, so until `sent + ttl` it is surely in force, and an
/// answer that came by then must not show it ended. How late it ends is not judged here.
pub struct Lease;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct LeaseState {
    holder: Option<Holder>,
    /// The highest token that was shown.
    token_max: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Holder {
    client: String,
    /// None while no answer has shown it.
    token: Option<u64>,
    in_force_until: Moment,
}

impl LeaseState {
    /// As it may be when an operation has its moment: what can be over may be over.
    fn may_be_free(&self, event: &Event) -> bool {
        self.holder.as_ref().is_none_or(|holder| event.outcome == Outcome::Unknown || event.answered > holder.in_force_until)
    }

    fn freed(&self) -> Self {
        Self { holder: None, ..self.clone() }
    }

    fn held(&self, event: &Event, token: Option<u64>, ttl: Moment) -> Self {
        let holder = Holder { client: event.client.clone(), token, in_force_until: event.sent + ttl };
        Self { holder: Some(holder), token_max: self.token_max.max(token.unwrap_or(0)) }
    }

    /// The holder, if it is this one by its name and, as far as it is known, by its token.
    fn is_held_by(&self, client: &str, token: u64) -> bool {
        self.is_held_under(token) && self.holder.as_ref().is_some_and(|holder| holder.client == client)
    }

    /// Whoever holds it.
    fn is_held_under(&self, token: u64) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.token.map_or(token > self.token_max, |known| known == token))
    }

    /// A token that was not known so far.
    fn learnt(&self, token: u64) -> Self {
        let holder = self.holder.clone().map(|holder| Holder { token: Some(token), ..holder });
        Self { holder, token_max: self.token_max.max(token) }
    }
}

impl Model for Lease {
    of_events!();
    type State = LeaseState;

    fn init(&self) -> LeaseState {
        LeaseState::default()
    }

    fn step(&self, state: &LeaseState, event: &Event) -> Option<LeaseState> {
        let client = event.client.as_str();
        let is_own = state.holder.as_ref().is_some_and(|holder| holder.client == client);
        match (&event.operation, &event.outcome) {
            (Operation::Acquire { ttl, .. }, Outcome::Granted { token }) => {
                let is_renewal = state.is_held_by(client, *token);
                let is_grant = state.may_be_free(event) && *token > state.token_max;
                (is_renewal || is_grant).then(|| state.held(event, Some(*token), *ttl))
            }
            (Operation::Acquire { ttl, .. }, Outcome::Unknown) => {
                let token = state.holder.as_ref().filter(|_| is_own).and_then(|holder| holder.token);
                // Refused or granted later, it is placed later.
                (is_own || state.may_be_free(event)).then(|| state.held(event, token, *ttl))
            }
            (Operation::Acquire { .. } | Operation::Check { .. }, Outcome::Holder(Some(seen))) => {
                let is_it = state.holder.as_ref().is_some_and(|holder| holder.client == *seen);
                is_it.then(|| state.clone())
            }
            (Operation::Check { .. }, Outcome::Holder(None)) => state.may_be_free(event).then(|| state.freed()),
            (Operation::StoreUnder { token, .. }, Outcome::Stored { .. }) => state.is_held_by(client, *token).then(|| state.learnt(*token)),
            (Operation::Release { token, .. }, Outcome::Released) => state.is_held_by(client, *token).then(|| state.learnt(*token).freed()),
            (Operation::Release { token, .. }, Outcome::Unknown) => {
                Some(if state.is_held_by(client, *token) { state.learnt(*token).freed() } else { state.clone() })
            }
            (Operation::StoreUnder { token, .. } | Operation::Release { token, .. }, Outcome::Stale) => {
                if !state.is_held_by(client, *token) {
                    return Some(state.clone());
                }
                state.may_be_free(event).then(|| state.learnt(*token).freed())
            }
            (Operation::Force { token, .. }, Outcome::Released) => state.is_held_under(*token).then(|| state.learnt(*token).freed()),
            (Operation::Force { token, .. }, Outcome::Unknown) => {
                Some(if state.is_held_under(*token) { state.learnt(*token).freed() } else { state.clone() })
            }
            // It was not held under that token any more.
            (Operation::Force { token, .. }, Outcome::Stale) => match state.is_held_under(*token) {
                true => state.may_be_free(event).then(|| state.learnt(*token).freed()),
                false => Some(state.clone()),
            },
            (_, Outcome::Unknown | Outcome::Refused) => Some(state.clone()),
            _ => None,
        }
    }
}

/// A saved session: a value and its revision, with compare-and-set on the revision.
pub struct Session {
    /// The revision under which each value was seen: an unanswered save that somebody saw has one, too.
    revisions: BTreeMap<String, u64>,
}

impl Session {
    pub fn of(events: &[Event]) -> Self {
        let mut revisions = BTreeMap::new();
        for event in events {
            let seen = match (&event.operation, &event.outcome) {
                (Operation::Save { value, .. }, Outcome::Saved { revision }) => Some((value, revision)),
                (_, Outcome::Session(Some((revision, value)))) => Some((value, revision)),
                _ => None,
            };
            if let Some((value, revision)) = seen {
                revisions.entry(value.clone()).or_insert(*revision);
            }
        }
        Self { revisions }
    }
}

impl Model for Session {
    of_events!();
    /// The value, and its revision if anybody ever saw it.
    type State = Option<(String, Option<u64>)>;

    fn init(&self) -> Self::State {
        None
    }

    fn step(&self, state: &Self::State, event: &Event) -> Option<Self::State> {
        let revision = state.as_ref().map(|(_, revision)| *revision);
        match (&event.operation, &event.outcome) {
            (Operation::Save { value, expected, .. }, outcome) => {
                let is_expected = match expected {
                    None => true,
                    Some(0) => state.is_none(),
                    // A revision that nobody saw is none that anybody expects.
                    Some(expected) => revision == Some(Some(*expected)),
                };
                let saved = Some((value.clone(), self.revisions.get(value).copied()));
                match outcome {
                    Outcome::Saved { revision: told } => {
                        let rises = revision.flatten().is_none_or(|before| before < *told);
                        let is_one = self.revisions.get(value) == Some(told);
                        (is_expected && rises && is_one).then_some(saved)
                    }
                    Outcome::Changed => (!is_expected).then(|| state.clone()),
                    Outcome::Unknown => Some(if is_expected { saved } else { state.clone() }),
                    Outcome::Refused => Some(state.clone()),
                    _ => None,
                }
            }
            (_, Outcome::Session(seen)) => {
                let fits = match (seen, state) {
                    (None, None) => true,
                    (Some((revision, value)), Some((current, known))) => value == current && Some(*revision) == *known,
                    _ => false,
                };
                fits.then(|| state.clone())
            }
            (_, Outcome::Unknown | Outcome::Refused) => Some(state.clone()),
            _ => None,
        }
    }
}

/// An approval: the first decision stands.
pub struct Decision;

impl Model for Decision {
    of_events!();
    type State = Option<bool>;

    fn init(&self) -> Option<bool> {
        None
    }

    fn step(&self, decided: &Option<bool>, event: &Event) -> Option<Option<bool>> {
        let Operation::Decide { approve, .. } = &event.operation else { return None };
        match &event.outcome {
            Outcome::Decided { approve: told } => (decided.is_none() && told == approve).then_some(Some(*approve)),
            Outcome::AlreadyDecided { approve: first } => (*decided == Some(*first)).then_some(*decided),
            Outcome::Unknown => Some(decided.or(Some(*approve))),
            Outcome::Refused => Some(*decided),
            _ => None,
        }
    }
}
