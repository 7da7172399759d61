//! What the transcripts of tests share: a state in memory, and calls that reach it as entries of a log.

use std::collections::BTreeMap;

use crate::command::CommandKind;
use crate::machine::{self, Body, Call, Clock, Entry};
use crate::overlay::{Nothing, Overlay};
use crate::query::QueryKind;
use crate::record::WriteRecords;
use crate::stamp::{LeaseTime, Principal, ReadStamp, RequestId, Revision, Tier, UnixMs};
use crate::{Refusal, codec};

/// The wall clock at the start of each transcript.
pub(crate) const WALL: u64 = 1_900_000_000_000;

pub(crate) struct World {
    pub state: Overlay<'static, Nothing>,
    revision: Revision,
    now_ms: u64,
}

impl World {
    pub fn new() -> Self {
        Self { state: Overlay::new(&Nothing), revision: Revision(0), now_ms: 0 }
    }

    /// The next entry is the one behind this revision, as after a restore.
    pub fn go_on_behind(&mut self, revision: Revision) {
        self.revision = revision;
    }

    /// Moves both clocks at once, further than one entry may, so that the numbers in a transcript stay small.
    fn at(&mut self, text: &str) -> Entry {
        let now_ms = ms(text);
        let advance_ms = u64::from(now_ms > self.now_ms);
        self.now_ms = now_ms;
        let lease_now = LeaseTime(now_ms - advance_ms);
        let has_terms = Clock::read(&self.state).expect("no fault").has_terms;
        self.state.put(&Clock { lease_now, wall: UnixMs(WALL + now_ms), revision: self.revision, has_terms });
        self.revision = Revision(self.revision.0 + 1);
        Entry { wall: UnixMs(WALL + now_ms), advance_ms, stamped_term: 1, body: Body::Tick {} }
    }

    pub fn tick(&mut self, time: &str) {
        let entry = self.at(time);
        machine::apply(&mut self.state, self.revision, 1, entry).expect("no fault");
    }

    pub fn call<C: CommandKind>(
        &mut self,
        time: &str,
        caller: Principal,
        under: Option<Revision>,
        command: C,
    ) -> Result<C::Output, Refusal> {
        let issued_at = UnixMs(WALL + ms(time));
        self.call_sent(time, issued_at, caller, under, command)
    }

    /// The same of a request that was first sent at another time.
    pub fn call_first_sent<C: CommandKind>(
        &mut self,
        time: &str,
        issued_at: UnixMs,
        caller: Principal,
        command: C,
    ) -> Result<C::Output, Refusal> {
        self.call_sent(time, issued_at, caller, None, command)
    }

    fn call_sent<C: CommandKind>(
        &mut self,
        time: &str,
        issued_at: UnixMs,
        caller: Principal,
        under: Option<Revision>,
        command: C,
    ) -> Result<C::Output, Refusal> {
        let entry = self.at(time);
        let request = RequestId { id: format!("r{}", self.revision), issued_at, keyed: false };
        let call = Call { caller, request, under, command: command.into() };
        let decided = machine::apply(&mut self.state, self.revision, 1, Entry { body: Body::Call(call), ..entry });
        let outcome = decided.expect("no fault").expect("a call is decided").outcome;
        outcome.map(|reply| codec::decode(&reply).expect("an answer is of its command's type"))
    }

    /// Reads as a node does whose lease clock stands at `time`, swept or not.
    pub fn ask<Q: QueryKind>(&mut self, time: &str, caller: Principal, query: Q) -> Result<Q::Output, Refusal> {
        let now_ms = ms(time);
        let at = ReadStamp { revision: self.revision, lease_now: LeaseTime(now_ms), wall: UnixMs(WALL + now_ms), caller };
        let answer = query.into().run(&self.state, &at).expect("no fault");
        answer.map(|answer| codec::decode(&answer).expect("an answer is of its query's type"))
    }
}

/// The people of the transcripts. `eve` and `evan` are of another tenant.
pub(crate) fn person(name: &str) -> Principal {
    let tenant = if ["eve", "evan"].contains(&name) { "other" } else { "acme" };
    let tier = match name {
        "olga" | "otto" | "evan" => Tier::Operator,
        "elsa" => Tier::Elite,
        _ => Tier::Verified,
    };
    let scopes: &[&str] = match name {
        "olga" => &["*"],
        "dana" => &["approvals:decide"],
        _ => &[],
    };
    Principal { tenant: tenant.into(), passport: name.into(), tier, scopes: scopes.iter().map(|scope| scope.to_string()).collect() }
}

/// A line `time who verb word... name=value...`.
pub(crate) struct Line<'a> {
    pub time: &'a str,
    pub who: &'a str,
    pub verb: &'a str,
    pub words: Vec<&'a str>,
    options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Line<'a> {
    pub fn parse(line: &'a str) -> Self {
        let mut parts = line.split_whitespace();
        let mut next = || parts.next().unwrap_or_default();
        let (time, who, verb) = (next(), next(), next());
        let (options, words): (Vec<_>, Vec<_>) = parts.partition(|part| part.contains('='));
        Self { time, who, verb, words, options: options.into_iter().filter_map(|option| option.split_once('=')).collect() }
    }

    pub fn word(&self, n: usize) -> &'a str {
        self.words.get(n).copied().unwrap_or_default()
    }

    pub fn option(&self, name: &str) -> Option<String> {
        self.options.get(name).map(ToString::to_string)
    }

    pub fn ms(&self, name: &str) -> Option<u64> {
        self.options.get(name).map(|text| ms(text))
    }
}

/// `99d`, `25h`, `3s`, `250ms` or plain milliseconds.
pub(crate) fn ms(text: &str) -> u64 {
    let units = [("ms", 1), ("s", 1_000), ("h", 3_600_000), ("d", 24 * 3_600_000), ("", 1)];
    let read = |(unit, ms): (&str, u64)| text.strip_suffix(unit)?.parse::<u64>().ok().map(|number| number * ms);
    units.into_iter().find_map(read).unwrap_or_else(|| panic!("`{text}` is no time"))
}
