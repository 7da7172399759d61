//! What might be used again: the capabilities whose words a description shares.
//!
//! A word is a run of letters and digits, in lower case, of three or more characters (two where they are no ASCII, since a
//! Chinese word is often that short); it matches as a whole. A capability's words are those of its name, its description and
//! the paths of its files. At least two have to be shared, or one of a description that has one only. One read examines as
//! much as the search for files does, ranks what it found, and says how to go on.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::CHUNK;
use crate::codec;
use crate::cursor::Cursors;
use crate::flag::{self, refuse_off};
use crate::graph::entity::Entity;
use crate::graph::kind::CAPABILITY;
use crate::identity::{check_name, check_text};
use crate::limit::{FEATURE_SCAN_BYTES_MAX, REUSE_CANDIDATES_MAX, REUSE_FILES_SHOWN, REUSE_ROWS_BYTES};
use crate::record::{Kind, ReadRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Principal, ReadStamp};
use crate::tx::{Read, StorageError, Table};

/// The words of a text, each once, in the order in which they first stand there.
pub fn terms(text: &str) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let words = text.split(|letter: char| !letter.is_alphanumeric()).map(str::to_lowercase);
    let is_long = |word: &String| word.chars().count() >= if word.is_ascii() { 3 } else { 2 };
    words.filter(|word| is_long(word) && seen.insert(word.clone())).collect()
}

/// Finds the capabilities that share words with a description.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FindReuse {
    pub description: String,
    /// A claim: must be the caller's tenant; `local` is whichever that is.
    pub tenant_id: String,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReuseCandidate {
    pub id: String,
    pub name: String,
    pub system: String,
    pub maturity: String,
    /// The first few; `more_files` counts the others.
    pub files: Vec<String>,
    pub more_files: u64,
    /// In the order of the description.
    pub overlap_terms: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReuseFound {
    /// Those that share the most words first, then by id.
    pub candidates: Vec<ReuseCandidate>,
    /// How many more of those examined match, and are not shown.
    pub left_out: u64,
    /// There are more capabilities than one read examines.
    pub next_cursor: Option<String>,
}

impl FindReuse {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<ReuseFound> {
        if let Some(refusal) = refuse_off(view, flag::REUSE_CHECK, "reuse_check")? {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("capabilities to use again", &at.caller, &self.description);
        let (wanted, from) = match self.check(&at.caller).and_then(|wanted| Ok((wanted, cursors.open_from(self.cursor.as_deref())?))) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let order = kind_prefix(&at.caller.tenant, Kind::GraphEntity).text(CAPABILITY);
        let mut from = from.map(|from| order.clone().raw(&from).into_bytes());
        let (mut found, mut matches, mut examined) = (Vec::new(), 0, 0);
        let next = 'pages: loop {
            let (rows, next) = view.page_bytes(Table::Records, &order, from.as_deref(), CHUNK)?;
            for (key, value) in rows {
                if examined >= FEATURE_SCAN_BYTES_MAX {
                    break 'pages Some(key);
                }
                examined += value.len();
                let entity: Entity = codec::decode(&value).map_err(|error| StorageError::new("entity", error))?;
                if let Some(candidate) = candidate(entity, &wanted) {
                    matches += 1;
                    // Rows come by id, so those that share as many words stay in that order.
                    let place = found.partition_point(|known: &ReuseCandidate| known.overlap_terms.len() >= candidate.overlap_terms.len());
                    found.insert(place, candidate);
                    found.truncate(self.limit as usize);
                }
            }
            match next {
                Some(next) => from = Some(next),
                None => break None,
            }
        };
        let mut left = REUSE_ROWS_BYTES;
        let fitting = found.iter().take_while(|candidate| {
            let bytes = serde_json::to_string(candidate).map_or(0, |json| json.len());
            let fits = bytes <= left;
            left = left.saturating_sub(bytes);
            fits
        });
        let shown = fitting.count().max(1).min(found.len());
        found.truncate(shown);
        let next_cursor = next.map(|next| cursors.seal(&next[order.as_bytes().len()..]));
        Ok(Ok(ReuseFound { left_out: matches - found.len() as u64, candidates: found, next_cursor }))
    }

    /// The words that are looked for.
    fn check(&self, caller: &Principal) -> Result<Vec<String>, Refusal> {
        check_name("tenant_id", &self.tenant_id).map_or(Ok(()), Err)?;
        if self.tenant_id != caller.tenant && self.tenant_id != "local" {
            return Err(Refusal::not_found("tenant", &self.tenant_id));
        }
        check_text("description", &self.description).map_or(Ok(()), Err)?;
        if !(1..=REUSE_CANDIDATES_MAX as u64).contains(&self.limit) {
            return Err(Refusal::invalid("limit", format!("must be from 1 to {REUSE_CANDIDATES_MAX}")));
        }
        let wanted = terms(&self.description);
        match wanted.is_empty() {
            true => Err(Refusal::invalid("description", "holds no word of three letters; say in one line what you are about to build")),
            false => Ok(wanted),
        }
    }
}

fn candidate(entity: Entity, wanted: &[String]) -> Option<ReuseCandidate> {
    let Entity { id, payload, deleted: false, .. } = entity else { return None };
    let text = |field: &str| payload[field].as_str().unwrap_or_default().to_string();
    let files: Vec<&str> = payload["files"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let texts = [text("name"), text("description")].into_iter().chain(files.iter().map(|file| file.to_string()));
    let words: BTreeSet<String> = texts.flat_map(|text| terms(&text)).collect();
    let overlap_terms: Vec<String> = wanted.iter().filter(|word| words.contains(*word)).cloned().collect();
    (overlap_terms.len() >= wanted.len().min(2)).then(|| ReuseCandidate {
        id,
        name: text("name"),
        system: text("system"),
        maturity: text("maturity"),
        files: files.iter().take(REUSE_FILES_SHOWN).map(|file| file.to_string()).collect(),
        more_files: files.len().saturating_sub(REUSE_FILES_SHOWN) as u64,
        overlap_terms,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::flag::SetFlag;
    use crate::graph::UpsertEntity;
    use crate::identity::system;
    use crate::transcript::{World, person};

    fn put(world: &mut World, who: &str, id: &str, name: &str, description: &str, files: &[&str]) {
        let payload = json!({ "id": id, "name": name, "description": description, "system": "core", "maturity": "built", "files": files });
        let upsert = UpsertEntity { kind: CAPABILITY.into(), id: id.into(), payload, kind_revision: None };
        world.call("0s", person(who), None, upsert).unwrap();
    }

    fn find(world: &mut World, description: &str, limit: u64) -> ReuseFound {
        let query = FindReuse { description: description.into(), tenant_id: "acme".into(), limit, cursor: None };
        world.ask("1s", person("mara"), query).unwrap()
    }

    fn told(found: &ReuseFound) -> String {
        let each = found.candidates.iter().map(|candidate| format!("{} ({})", candidate.id, candidate.overlap_terms.join(" ")));
        format!("{}; {} left out", each.collect::<Vec<_>>().join(", "), found.left_out)
    }

    #[test]
    fn capabilities_are_ranked_by_the_words_they_share_whole_and_two_at_least() {
        let mut world = World::new();
        put(&mut world, "mara", "b", "Receipt parser", "reads files", &[]);
        put(&mut world, "mara", "a", "Parser", "of receipts", &["src/receipt/parser.rs"]);
        put(&mut world, "mara", "c", "Parser", "for receipt files", &[]);
        put(&mut world, "mara", "d", "Parsers", "receipted", &[]);
        put(&mut world, "mara", "e", "Parser", "", &[]);
        put(&mut world, "eve", "f", "Receipt parser", "files", &[]);
        let whole = find(&mut world, "A parser for receipt FILES", 5);
        assert_eq!(told(&whole), "c (parser for receipt files), b (parser receipt files), a (parser receipt); 0 left out");
        assert_eq!(whole.candidates[2].files, ["src/receipt/parser.rs"]);
        assert_eq!(told(&find(&mut world, "a parser for receipt files", 1)), "c (parser for receipt files); 2 left out");
        assert_eq!(told(&find(&mut world, "parser", 9)), "a (parser), b (parser), c (parser), e (parser); 0 left out");
    }

    #[test]
    fn words_of_other_scripts_count_from_two_letters() {
        assert_eq!(terms("Go to the 検索 of a (search) SEARCH"), ["the", "検索", "search"]);
    }

    #[test]
    fn a_read_examines_a_bounded_part_and_says_how_to_go_on() {
        let mut world = World::new();
        for n in 0..20 {
            put(&mut world, "mara", &format!("c{n:02}"), "receipt parser", &"x".repeat(200), &[]);
        }
        let (mut seen, mut cursor, mut pages) = (0, None, 0);
        loop {
            let query = FindReuse { description: "receipt parser".into(), tenant_id: "local".into(), limit: 50, cursor };
            let found = world.ask("1s", person("mara"), query).unwrap();
            (seen, cursor, pages) = (seen + found.candidates.len(), found.next_cursor, pages + 1);
            if cursor.is_none() {
                break;
            }
        }
        assert!(pages > 1, "{pages}");
        assert_eq!(seen, 20);
    }

    #[test]
    fn many_files_are_counted_and_few_shown() {
        let mut world = World::new();
        let files: Vec<String> = (0..30).map(|n| format!("src/{n}.rs")).collect();
        put(&mut world, "mara", "a", "receipt parser", "", &files.iter().map(String::as_str).collect::<Vec<_>>());
        let found = find(&mut world, "receipt parser", 5);
        assert_eq!((found.candidates[0].files.len(), found.candidates[0].more_files), (10, 20));
    }

    #[test]
    fn another_tenant_an_empty_description_and_the_flag_are_refusals() {
        let mut world = World::new();
        let query = |description: &str, tenant_id: &str, limit| FindReuse {
            description: description.into(),
            tenant_id: tenant_id.into(),
            limit,
            cursor: None,
        };
        let ask = |world: &mut World, query| world.ask("1s", person("mara"), query).unwrap_err().to_string();
        assert_eq!(ask(&mut world, query("a parser", "other", 5)), "there is no tenant `other`");
        assert!(ask(&mut world, query("a b", "acme", 5)).contains("holds no word"));
        assert!(ask(&mut world, query("parser", "acme", 0)).starts_with("`limit`"));
        world.call("1s", system(), None, SetFlag { name: flag::REUSE_CHECK.name.into(), value: "no".into() }).unwrap();
        assert!(ask(&mut world, query("parser", "acme", 5)).contains(flag::REUSE_CHECK.name));
    }
}
