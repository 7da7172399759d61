//! Whether one order of all calls explains all answers: linearizability.
//!
//! A history is linearizable if every call can be given one moment between its sending and its answer so that the calls, made one
//! after the other in the order of these moments, would have given the same answers. The search is that of Wing and Gong: take
//! a call that nothing unplaced had to precede, let the [`Model`] say whether its answer fits, go on from there, and step back
//! when nothing fits. What makes it bearable is Lowe's memory: a set of placed calls that led to the same state was tried before.
//!
//! A call without an answer may have its moment at any time after its sending, or never. The problem is NP-complete, so there is
//! a budget: a history that exceeds it is *undecided*, which is told and never passes for a yes.

use std::collections::HashSet;
use std::hash::Hash;

use crate::history::Moment;

/// What the calls are made to.
pub trait Model {
    type Call: Clone;
    type State: Clone + Eq + Hash;

    /// Before the first call.
    fn init(&self) -> Self::State;

    /// The state after a call, if its answer is right in `state`. A call without an answer has no wrong one.
    fn step(&self, state: &Self::State, call: &Self::Call) -> Option<Self::State>;

    /// When it was sent and answered; no answer, no second moment.
    fn interval(&self, call: &Self::Call) -> (Moment, Option<Moment>);

    /// Whether it changes nothing in any state, so that a history stays as wrong or right as it is without it or better.
    fn is_read(&self, call: &Self::Call) -> bool;

    /// The call as it was before its answer came.
    fn unanswered(&self, call: &Self::Call) -> Self::Call;
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Linearizability {
    Linearizable,
    /// No order explains the answers. `placed` calls could be put in order at most; the calls in `stuck`, by their places among
    /// the calls sorted by sending, were next and did not fit.
    Violated {
        placed: usize,
        stuck: Vec<usize>,
    },
    /// The budget was not enough.
    Undecided,
}

/// States remembered before a search gives up; some hundred bytes each.
const BUDGET: usize = 1_000_000;

/// A set of calls by their places.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Places(Box<[u64]>);

impl Places {
    fn none(of: usize) -> Self {
        Self(vec![0; of.div_ceil(64)].into())
    }

    fn has(&self, place: usize) -> bool {
        self.0[place / 64] >> (place % 64) & 1 == 1
    }

    fn flip(&mut self, place: usize) {
        self.0[place / 64] ^= 1 << (place % 64);
    }
}

/// One placed call, and what is left to try in its stead.
struct Frame<S> {
    state: S,
    untried: Vec<usize>,
    placed: Option<usize>,
}

/// Decides a history, in any order.
pub fn check<M: Model>(model: &M, calls: &[M::Call]) -> Linearizability {
    check_within(model, calls, BUDGET)
}

fn check_within<M: Model>(model: &M, calls: &[M::Call], budget: usize) -> Linearizability {
    let calls = sorted(model, calls);
    let times: Vec<(Moment, Option<Moment>)> = calls.iter().map(|call| model.interval(call)).collect();
    let answered = times.iter().filter(|(_, answered)| answered.is_some()).count();
    let mut done = Places::none(calls.len());
    let mut done_answered = 0;
    let mut seen: HashSet<(Places, M::State)> = HashSet::new();
    let (mut deepest, mut stuck) = (0, next(&times, &done));
    let mut stack = vec![Frame { state: model.init(), untried: stuck.clone(), placed: None }];
    loop {
        if done_answered == answered {
            // What has no answer may never have happened.
            return Linearizability::Linearizable;
        }
        let Some(frame) = stack.last_mut() else { return Linearizability::Violated { placed: deepest, stuck } };
        let Some(place) = frame.untried.pop() else {
            if let Some(place) = frame.placed {
                done.flip(place);
                done_answered -= usize::from(times[place].1.is_some());
            }
            stack.pop();
            continue;
        };
        let Some(state) = model.step(&frame.state, &calls[place]) else { continue };
        done.flip(place);
        if !seen.insert((done.clone(), state.clone())) {
            done.flip(place);
            continue;
        }
        if seen.len() > budget {
            return Linearizability::Undecided;
        }
        done_answered += usize::from(times[place].1.is_some());
        let untried = next(&times, &done);
        if stack.len() > deepest {
            (deepest, stuck) = (stack.len(), untried.clone());
        }
        stack.push(Frame { state, untried, placed: Some(place) });
    }
}

fn sorted<M: Model>(model: &M, calls: &[M::Call]) -> Vec<M::Call> {
    let mut calls = calls.to_vec();
    calls.sort_by_key(|call| model.interval(call).0);
    calls
}

/// The calls that nothing unplaced had to precede; the most promising last.
fn next(times: &[(Moment, Option<Moment>)], done: &Places) -> Vec<usize> {
    let mut first_answer = Moment::MAX;
    let mut found = Vec::new();
    for (place, (sent, answered)) in times.iter().enumerate() {
        // They are sorted by sending: no later one can be first either.
        if *sent > first_answer {
            break;
        }
        if !done.has(place) {
            found.push(place);
            first_answer = first_answer.min(answered.unwrap_or(Moment::MAX));
        }
    }
    found.retain(|place| times[*place].0 <= first_answer);
    // Who was answered first probably was first; what was never answered is needed last.
    found.sort_by_key(|place| std::cmp::Reverse(times[*place].1.unwrap_or(Moment::MAX)));
    found
}

/// The smallest part of a violated history that was found and that is violated by itself: up to the first answer that nothing
/// explains, and without the reads that do not matter. Writes stay, since without them the rest would be wrong for that reason.
pub fn smallest<M: Model>(model: &M, calls: &[M::Call]) -> Vec<M::Call> {
    let calls = sorted(model, calls);
    let is_violated = |calls: &[M::Call]| matches!(check(model, calls), Linearizability::Violated { .. });
    let mut answers: Vec<Moment> = calls.iter().filter_map(|call| model.interval(call).1).collect();
    answers.sort();
    // Every longer history is violated as well.
    let first = answers.partition_point(|end| !is_violated(&until(model, &calls, *end)));
    let Some(end) = answers.get(first) else { return calls };
    let mut left = until(model, &calls, *end);
    left.retain(|call| !(model.is_read(call) && model.interval(call).1.is_none()));
    let mut place = 0;
    while place < left.len() {
        if model.is_read(&left[place]) {
            let mut fewer = left.clone();
            fewer.remove(place);
            if is_violated(&fewer) {
                left = fewer;
                continue;
            }
        }
        place += 1;
    }
    left
}

/// What was known at a moment.
fn until<M: Model>(model: &M, calls: &[M::Call], end: Moment) -> Vec<M::Call> {
    let sent = calls.iter().filter(|call| model.interval(call).0 <= end);
    sent.map(|call| match model.interval(call).1 {
        Some(answered) if answered > end => model.unanswered(call),
        _ => call.clone(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    /// A register of small numbers with compare-and-set.
    struct Register;

    #[derive(Clone, Debug)]
    enum Does {
        Write(u8),
        Read(u8),
        Swap { from: u8, to: u8, done: bool },
    }

    #[derive(Clone, Debug)]
    struct Call {
        sent: u64,
        answered: Option<u64>,
        does: Does,
    }

    impl Model for Register {
        type Call = Call;
        type State = u8;

        fn init(&self) -> u8 {
            0
        }

        fn step(&self, state: &u8, call: &Call) -> Option<u8> {
            let is_answered = call.answered.is_some();
            match call.does {
                Does::Write(value) => Some(value),
                Does::Read(value) => (!is_answered || value == *state).then_some(*state),
                Does::Swap { from, to, done } => match (from == *state, is_answered) {
                    (fits, true) if fits != done => None,
                    (true, _) => Some(to),
                    (false, _) => Some(*state),
                },
            }
        }

        fn interval(&self, call: &Call) -> (Moment, Option<Moment>) {
            (Duration::from_millis(call.sent), call.answered.map(Duration::from_millis))
        }

        fn is_read(&self, call: &Call) -> bool {
            matches!(call.does, Does::Read(_))
        }

        fn unanswered(&self, call: &Call) -> Call {
            Call { answered: None, ..call.clone() }
        }
    }

    /// By definition: every order of every choice of calls that has all the answered ones and keeps to the times.
    fn by_force(state: u8, left: &[Call]) -> bool {
        if left.iter().all(|call| call.answered.is_none()) {
            return true;
        }
        (0..left.len()).any(|place| {
            let call = &left[place];
            let is_first = left.iter().all(|other| other.answered.is_none_or(|answered| answered >= call.sent));
            let mut others = left.to_vec();
            others.remove(place);
            is_first && Register.step(&state, call).is_some_and(|state| by_force(state, &others))
        })
    }

    fn does() -> impl Strategy<Value = Does> {
        let value = 0..3_u8;
        prop_oneof![
            value.clone().prop_map(Does::Write),
            value.clone().prop_map(Does::Read),
            (value.clone(), value, any::<bool>()).prop_map(|(from, to, done)| Does::Swap { from, to, done }),
        ]
    }

    fn call() -> impl Strategy<Value = Call> {
        (0..12_u64, prop::option::weighted(0.8, 0..6_u64), does()).prop_map(|(sent, took, does)| Call {
            sent,
            answered: took.map(|took| sent + took),
            does,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn the_search_says_of_small_histories_what_trying_every_order_says(calls in prop::collection::vec(call(), 0..7)) {
            let found = check(&Register, &calls);
            prop_assert_eq!(found == Linearizability::Linearizable, by_force(0, &calls), "{:?}", found);
            prop_assert_ne!(found, Linearizability::Undecided);
        }

        #[test]
        fn what_is_left_of_a_violated_history_is_violated_by_itself(calls in prop::collection::vec(call(), 3..7)) {
            if !by_force(0, &calls) {
                let left = smallest(&Register, &calls);
                prop_assert!(!by_force(0, &left), "{:?}", left);
                prop_assert!(left.len() <= calls.len());
            }
        }
    }

    fn made(sent: u64, answered: u64, does: Does) -> Call {
        Call { sent, answered: Some(answered), does }
    }

    #[test]
    fn a_stale_read_is_found_and_cut_out_of_what_surrounds_it() {
        let mut calls: Vec<Call> = (0..20).map(|n| made(10 * n, 10 * n + 5, Does::Read(0))).collect();
        calls.push(made(300, 310, Does::Write(1)));
        calls.push(made(320, 330, Does::Read(0)));
        calls.extend((0..20).map(|n| made(400 + 10 * n, 405 + 10 * n, Does::Read(1))));
        assert_eq!(check(&Register, &calls), Linearizability::Violated { placed: 21, stuck: vec![21] });
        let left = smallest(&Register, &calls);
        assert_eq!(left.iter().map(|call| call.sent).collect::<Vec<_>>(), [300, 320]);
    }

    #[test]
    fn a_write_without_an_answer_may_happen_late_or_never_but_only_once() {
        let unknown = Call { sent: 0, answered: None, does: Does::Write(1) };
        let late = [unknown.clone(), made(10, 20, Does::Read(0)), made(30, 40, Does::Read(1))];
        assert_eq!(check(&Register, &late), Linearizability::Linearizable);
        let never = [unknown.clone(), made(10, 20, Does::Read(0))];
        assert_eq!(check(&Register, &never), Linearizability::Linearizable);
        let twice = [unknown, made(10, 20, Does::Read(1)), made(30, 40, Does::Write(0)), made(50, 60, Does::Read(1))];
        assert!(matches!(check(&Register, &twice), Linearizability::Violated { .. }));
    }

    #[test]
    fn a_search_that_exceeds_its_budget_is_undecided() {
        let calls: Vec<Call> = (0..30).map(|n| made(0, 100, Does::Write(n))).chain([made(0, 100, Does::Read(99))]).collect();
        assert_eq!(check_within(&Register, &calls, 1_000), Linearizability::Undecided);
    }
}
