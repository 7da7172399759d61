//! How a day ended, as the cluster tells it, held against the script.
//!
//! The digest is over what the script decides: where each item stands, how often each file was edited, what became of each
//! request and each handoff, that no lease is left, and the story of each item in the feed. Left out is what the race decides:
//! who did what, ids, times, revisions and the order of different items.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::caller::{Caller, Lines, No};
use super::cluster::Cluster;
use super::script::{Course, PEOPLE, Script};
use crate::exit::Failure;

pub struct Ended {
    /// BLAKE3 over all that the script decides.
    pub digest: String,
    /// Items by state, edits in all, requests by outcome, handoffs that were accepted, events of the feed by verb.
    pub states: BTreeMap<String, u64>,
    pub edits: u64,
    pub approvals: BTreeMap<String, u64>,
    pub handoffs: u64,
    pub feed: BTreeMap<String, u64>,
    /// Rules of the script that do not hold.
    pub broken: Vec<String>,
}

pub async fn look(script: &Script, cluster: &Cluster) -> Result<Ended, Failure> {
    let person = PEOPLE[0].0;
    let caller = Caller::new(person, cluster.token(person), Arc::new(Lines::new(cluster.doors.clone())?), 1);
    let found = Found::of(script, &caller).await;
    found.map(|found| found.judge(script)).map_err(|no| Failure::failed(format!("the end can't be read: {} ({})", no.message, no.code)))
}

/// What the cluster tells.
#[derive(Default)]
struct Found {
    /// By item: where it stands, and its story.
    states: BTreeMap<usize, String>,
    stories: BTreeMap<usize, Vec<String>>,
    /// By file.
    edits: BTreeMap<String, u64>,
    /// By item.
    approvals: BTreeMap<usize, String>,
    handoffs: BTreeMap<usize, u64>,
    cards: Vec<String>,
    /// Items that are on the board twice.
    twice: Vec<usize>,
}

impl Found {
    async fn of(script: &Script, caller: &Caller) -> Result<Self, No> {
        let mut found = Self::default();
        let mut places = BTreeMap::new();
        for item in all(caller, "list_work", &json!({ "limit": 1_000 }), "work").await? {
            let Some(place) = item["title"].as_str().and_then(Script::place) else { continue };
            places.insert(text(&item["id"]), place);
            if found.states.insert(place, text(&item["state"])).is_some() {
                found.twice.push(place);
            }
        }
        // A page is told oldest first, and the first page is the newest.
        let pages = pages(caller, "status_feed", &json!({ "limit": 1_000 }), "events").await?;
        for event in pages.into_iter().rev().flatten() {
            if let Some(place) = places.get(&text(&event["work_id"])) {
                found.stories.entry(*place).or_default().push(text(&event["verb"]));
            }
        }
        for file in 0..script.files {
            let name = script.file(file);
            let row = caller.call("query_facts", &json!({ "entity": format!("demo:file:{name}"), "key": "edits" }), None).await?;
            found.edits.insert(name, row["rows"][0]["value"].as_str().and_then(|edits| edits.parse().ok()).unwrap_or(0));
        }
        for (place, _) in script.items.iter().enumerate().filter(|(_, item)| item.course == Course::HandedOff) {
            let of = json!({ "entity": format!("demo:item:{place:03}"), "key": "accepted_handoff" });
            let versions = caller.call("fact_history", &of, None).await?;
            found.handoffs.insert(place, versions["versions"].as_array().map_or(0, |versions| versions.len() as u64));
        }
        let mut cursor = String::new();
        loop {
            let page = caller.get(&format!("/v1/approvals?status=all&limit=1000{cursor}")).await?;
            for request in page["approvals"].as_array().into_iter().flatten() {
                if let Some(place) = request["action_summary"].as_str().and_then(Script::place) {
                    found.approvals.insert(place, text(&request["status"]));
                }
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        let cards = all(caller, "list_punchcards", &json!({ "status": "held", "limit": 1_000 }), "punchcards").await?;
        found.cards = cards.iter().map(|card| text(&card["resource"])).collect();
        Ok(found)
    }

    fn judge(self, script: &Script) -> Ended {
        let mut broken = Vec::new();
        let mut rule = |name: &str, wrong: Vec<String>| {
            if !wrong.is_empty() {
                broken.push(format!("{name}: {}", wrong.join("; ")));
            }
        };
        let items = || script.items.iter().enumerate();
        let strange = |place: usize, wanted: &str, found: Option<&String>| {
            let found = found.map_or("nothing", String::as_str);
            (found != wanted).then(|| format!("item {place:03} is {found}, not {wanted}"))
        };
        rule(
            "every item is where the script has it",
            items().filter_map(|(place, item)| strange(place, item.end(), self.states.get(&place))).collect(),
        );
        rule("no item was made twice", self.twice.iter().map(|place| format!("item {place:03}")).collect());
        let edited = |file: usize| {
            let (name, wanted) = (script.file(file), script.edits(file));
            let found = self.edits.get(&name).copied().unwrap_or(0);
            (found != wanted).then(|| format!("{name} was edited {found} times, not {wanted}"))
        };
        rule("every edit counts once", (0..script.files).filter_map(edited).collect());
        let decided = |(place, item): (usize, &super::script::Item)| match item.course {
            Course::Asks { approved } => strange(place, if approved { "approved" } else { "rejected" }, self.approvals.get(&place)),
            _ => self.approvals.get(&place).map(|_| format!("item {place:03} was asked for")),
        };
        rule("every request was decided as the script has it", items().filter_map(decided).collect());
        let accepted = self.handoffs.iter().filter(|(_, times)| **times != 1);
        rule("every handoff was accepted once", accepted.map(|(place, times)| format!("item {place:03}: {times} times")).collect());
        rule("no lease is left", self.cards.clone());
        let told = |(place, item): (usize, &super::script::Item)| {
            let (wanted, found) = (item.story().join(" "), self.stories.get(&place).map(|story| story.join(" ")).unwrap_or_default());
            (wanted != found).then(|| format!("item {place:03} told `{found}`, not `{wanted}`"))
        };
        rule("the feed tells the story of every item", items().filter_map(told).collect());

        let decided = json!([self.states, self.stories, self.edits, self.approvals, self.handoffs, self.cards]);
        let counted = |words: &mut dyn Iterator<Item = &String>| {
            let mut counts = BTreeMap::new();
            words.for_each(|word| *counts.entry(word.clone()).or_default() += 1);
            counts
        };
        Ended {
            digest: blake3::hash(decided.to_string().as_bytes()).to_hex().to_string(),
            states: counted(&mut self.states.values()),
            edits: self.edits.values().sum(),
            approvals: counted(&mut self.approvals.values()),
            handoffs: self.handoffs.values().sum(),
            feed: counted(&mut self.stories.values().flatten()),
            broken,
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().into()
}

/// Every row of a list, page after page.
async fn all(caller: &Caller, tool: &str, arguments: &Value, rows: &str) -> Result<Vec<Value>, No> {
    Ok(pages(caller, tool, arguments, rows).await?.concat())
}

/// The pages of a list.
async fn pages(caller: &Caller, tool: &str, arguments: &Value, rows: &str) -> Result<Vec<Vec<Value>>, No> {
    let (mut found, mut arguments) = (Vec::new(), arguments.clone());
    loop {
        let page = caller.call(tool, &arguments, None).await?;
        found.push(page[rows].as_array().cloned().unwrap_or_default());
        match page["next_cursor"].as_str() {
            Some(next) => arguments["cursor"] = next.into(),
            None => return Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A day that ended as its script says.
    fn found(script: &Script) -> Found {
        let mut found = Found::default();
        for (place, item) in script.items.iter().enumerate() {
            found.states.insert(place, item.end().into());
            found.stories.insert(place, item.story().into_iter().map(String::from).collect());
            match item.course {
                Course::Asks { approved } => {
                    found.approvals.insert(place, if approved { "approved" } else { "rejected" }.into());
                }
                Course::HandedOff => {
                    found.handoffs.insert(place, 1);
                }
                Course::Plain | Course::WaitsFor(_) => {}
            }
        }
        for file in 0..script.files {
            found.edits.insert(script.file(file), script.edits(file));
        }
        found
    }

    #[test]
    fn a_day_that_ended_as_its_script_says_breaks_no_rule_and_has_one_digest() {
        let script = Script::of(3, 5, 60);
        let (first, second) = (found(&script).judge(&script), found(&script).judge(&script));
        assert_eq!(first.broken, Vec::<String>::new());
        assert_eq!(first.digest, second.digest);
        assert_eq!(first.states.values().sum::<u64>(), 60);
    }

    #[test]
    fn each_thing_that_went_wrong_is_named_and_changes_the_digest() {
        let script = Script::of(3, 5, 60);
        let right = found(&script).judge(&script).digest;
        type Spoil = fn(&mut Found);
        let spoil: [(&str, Spoil); 6] = [
            ("every item is where", |found| *found.states.get_mut(&0).unwrap() = "blocked".into()),
            ("every edit counts once", |found| *found.edits.get_mut("src/part-0.rs").unwrap() -= 1),
            ("every request was decided", |found| found.approvals.values_mut().for_each(|status| *status = "pending".into())),
            ("every handoff was accepted once", |found| found.handoffs.values_mut().for_each(|times| *times = 2)),
            ("no lease is left", |found| found.cards.push("deploy://main".into())),
            ("the feed tells", |found| found.stories.get_mut(&0).unwrap().clear()),
        ];
        for (rule, spoil) in spoil {
            let mut day = found(&script);
            spoil(&mut day);
            let ended = day.judge(&script);
            assert!(ended.broken.len() == 1 && ended.broken[0].starts_with(rule), "{rule}: {:?}", ended.broken);
            assert_ne!(ended.digest, right, "{rule}");
        }
    }
}
