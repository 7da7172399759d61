//! Walking the graph: what edges lead to from an entity, near things first.
//!
//! A walk is bounded by its depth and by [`WALK_EDGES_MAX`] edges looked at, and says when that ended it. Live edges lead to live
//! entities; what is deleted is neither told nor walked through. Each page walks anew, as of its own moment, and passes over
//! what the pages before told.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::edge::{EdgeEnds, edges_of};
use super::entity::{self, ROWS_BYTES};
use crate::cursor::Cursors;
use crate::fact::at_most;
use crate::identity::check_name;
use crate::limit::{REPLY_WRAPPER_BYTES, WALK_DEPTH_MAX, WALK_EDGE_KINDS_MAX, WALK_EDGES_MAX};
use crate::query;
use crate::refusal::{Applied, Refusal};
use crate::stamp::ReadStamp;
use crate::tx::{Read, StorageError};

/// Along which edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Toward {
    /// From their source.
    Out,
    /// From their target.
    In,
    Both,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WalkGraph {
    pub kind: String,
    pub id: String,
    pub toward: Toward,
    /// Edges of these kinds; none: of all.
    pub edge_kinds: Vec<String>,
    /// 1 to [`WALK_DEPTH_MAX`].
    pub depth: u64,
    pub limit: u64,
    pub cursor: Option<String>,
}

/// An entity that a walk came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reached {
    pub kind: String,
    pub id: String,
    /// Edges between it and where the walk began.
    pub distance: u64,
    /// The last of them.
    pub by: EdgeEnds,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Walk {
    /// Nearest first.
    pub reached: Vec<Reached>,
    /// There may be more within the depth: the walk ended at its bound of edges.
    pub is_cut: bool,
    pub next_cursor: Option<String>,
}

impl WalkGraph {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Walk> {
        let cursors = Cursors::of("graph walk", &at.caller, &(&self.kind, &self.id, self.toward, &self.edge_kinds, self.depth));
        let (limit, told) = match self.check(&cursors) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if entity::current(view, &at.caller.tenant, &self.kind, &self.id)?.is_none_or(|entity| entity.deleted) {
            return Ok(Err(Refusal::not_found(self.kind, self.id)));
        }
        // One more than this page shows, so that it is known whether another one follows.
        let (all, is_cut) = self.walk(view, &at.caller.tenant, told.saturating_add(limit).saturating_add(1))?;
        let (mut reached, mut left) = (Vec::new(), ROWS_BYTES);
        for row in all.into_iter().skip(told) {
            let bytes = serde_json::to_string(&row).map_or(0, |json| json.len()) + 2 * row.by.edge_id().len() + REPLY_WRAPPER_BYTES / 4;
            if reached.len() == limit || bytes > left && !reached.is_empty() {
                let position = (told + reached.len()) as u64;
                return Ok(Ok(Walk { reached, is_cut: false, next_cursor: Some(cursors.seal(&position.to_be_bytes())) }));
            }
            left = left.saturating_sub(bytes);
            reached.push(row);
        }
        Ok(Ok(Walk { reached, is_cut, next_cursor: None }))
    }

    /// The rows of a page, and how many the pages before told.
    fn check(&self, cursors: &Cursors) -> Result<(usize, usize), Refusal> {
        check_name("kind", &self.kind).or_else(|| check_name("id", &self.id)).map_or(Ok(()), Err)?;
        at_most("edge_kinds", self.edge_kinds.len(), WALK_EDGE_KINDS_MAX, "entries")?;
        self.edge_kinds.iter().find_map(|kind| check_name("edge_kinds", kind)).map_or(Ok(()), Err)?;
        if !(1..=WALK_DEPTH_MAX).contains(&self.depth) {
            return Err(Refusal::invalid("depth", format!("must be 1 to {WALK_DEPTH_MAX}, not {}", self.depth)));
        }
        let told = match cursors.open_from(self.cursor.as_deref())? {
            None => 0,
            Some(position) => match <[u8; 8]>::try_from(position) {
                Ok(bytes) => usize::try_from(u64::from_be_bytes(bytes)).unwrap_or(usize::MAX),
                Err(_) => return Err(Refusal::invalid("cursor", "is damaged")),
            },
        };
        Ok((query::rows(self.limit)?, told))
    }

    /// The first `rows` entities that are reached, and whether the bound of edges ended it before that.
    fn walk(&self, view: &impl Read, tenant: &str, rows: usize) -> Result<(Vec<Reached>, bool), StorageError> {
        let mut seen = BTreeSet::from([(self.kind.clone(), self.id.clone())]);
        let (mut reached, mut edges_left): (Vec<Reached>, usize) = (Vec::new(), WALK_EDGES_MAX);
        // The entity that is left next: where it begins, and then those that were reached, in their order.
        let mut next = None;
        loop {
            let (kind, id, distance) = match next {
                None => (self.kind.clone(), self.id.clone(), 0),
                Some(n) => match reached.get::<usize>(n) {
                    Some(row) => (row.kind.clone(), row.id.clone(), row.distance),
                    None => return Ok((reached, false)),
                },
            };
            if distance == self.depth {
                return Ok((reached, false));
            }
            for toward in [Toward::Out, Toward::In].into_iter().filter(|toward| self.toward == Toward::Both || self.toward == *toward) {
                let (edges, is_whole) = edges_of(view, tenant, &kind, &id, toward, edges_left)?;
                edges_left -= edges.len();
                for ends in edges.into_iter().filter_map(|edge| (!edge.deleted).then_some(edge.ends)) {
                    if !self.edge_kinds.is_empty() && !self.edge_kinds.contains(&ends.edge_kind) {
                        continue;
                    }
                    let end = match toward {
                        Toward::In => (ends.from_kind.clone(), ends.from_id.clone()),
                        _ => (ends.to_kind.clone(), ends.to_id.clone()),
                    };
                    if seen.contains(&end) {
                        continue;
                    }
                    seen.insert(end.clone());
                    if entity::current(view, tenant, &end.0, &end.1)?.is_some_and(|entity| !entity.deleted) {
                        reached.push(Reached { kind: end.0, id: end.1, distance: distance + 1, by: ends });
                        if reached.len() == rows {
                            return Ok((reached, false));
                        }
                    }
                }
                if !is_whole {
                    return Ok((reached, true));
                }
            }
            next = Some(next.map_or(0, |n| n + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::graph::{DeleteEdge, DeleteEntity, UpsertEdge, UpsertEntity};
    use crate::transcript::{World, person};

    fn entity(world: &mut World, id: &str) {
        let command = UpsertEntity { kind: "agent_trace_node".into(), id: id.into(), payload: json!({}), kind_revision: None };
        world.call("1s", person("mara"), None, command).unwrap();
    }

    fn ends(from: &str, to: &str) -> EdgeEnds {
        let kind = "agent_trace_node".to_string();
        EdgeEnds { from_kind: kind.clone(), from_id: from.into(), edge_kind: "follows".into(), to_kind: kind, to_id: to.into() }
    }

    /// Entities of one letter, and edges as pairs of them.
    fn graph(edges: &[&str]) -> World {
        let mut world = World::new();
        let ids: BTreeSet<char> = edges.iter().flat_map(|edge| edge.chars()).collect();
        ids.iter().for_each(|id| entity(&mut world, &id.to_string()));
        for edge in edges {
            world.call("2s", person("mara"), None, UpsertEdge { ends: ends(&edge[..1], &edge[1..]), payload: None }).unwrap();
        }
        world
    }

    fn from(id: &str, toward: Toward, depth: u64) -> WalkGraph {
        let (kind, id) = ("agent_trace_node".into(), id.into());
        WalkGraph { kind, id, toward, edge_kinds: Vec::new(), depth, limit: 50, cursor: None }
    }

    fn told(world: &mut World, walk: WalkGraph) -> String {
        let found = world.ask("9s", person("jon"), walk).unwrap();
        let rows = found.reached.iter().map(|row| format!("{}{}", row.id, row.distance));
        rows.collect::<Vec<_>>().join(" ") + if found.is_cut { " cut" } else { "" }
    }

    #[test]
    fn near_entities_come_first_and_each_once_whatever_circles_there_are() {
        let mut world = graph(&["ab", "ac", "bd", "cd", "de", "ea", "fa"]);
        assert_eq!(told(&mut world, from("a", Toward::Out, 1)), "b1 c1");
        assert_eq!(told(&mut world, from("a", Toward::Out, 5)), "b1 c1 d2 e3");
        assert_eq!(told(&mut world, from("a", Toward::In, 2)), "e1 f1 d2");
        assert_eq!(told(&mut world, from("f", Toward::Both, 2)), "a1 b2 c2 e2");
        let of_another_kind = WalkGraph { edge_kinds: vec!["touches".into()], ..from("a", Toward::Out, 3) };
        assert_eq!(told(&mut world, of_another_kind), "");
    }

    #[test]
    fn what_is_deleted_is_neither_told_nor_walked_through() {
        let mut world = graph(&["ab", "bc", "ad", "de"]);
        world.call("3s", person("mara"), None, DeleteEntity { kind: "agent_trace_node".into(), id: "b".into() }).unwrap();
        world.call("3s", person("mara"), None, DeleteEdge { ends: ends("d", "e") }).unwrap();
        assert_eq!(told(&mut world, from("a", Toward::Out, 5)), "d1");
        assert!(matches!(world.ask("4s", person("jon"), from("b", Toward::Out, 1)), Err(Refusal::NotFound { .. })));
        let stranger = crate::Principal { tenant: "other".into(), ..person("jon") };
        assert!(matches!(world.ask("4s", stranger, from("a", Toward::Out, 1)), Err(Refusal::NotFound { .. })));
    }

    #[test]
    fn pages_tell_the_whole_walk_once_and_a_walk_that_is_cut_says_so() {
        let mut world = graph(&["ab", "ac", "bd", "cd", "de", "ea", "fa"]);
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let page = world.ask("9s", person("jon"), WalkGraph { limit: 2, cursor, ..from("a", Toward::Both, 5) }).unwrap();
            assert!(page.reached.len() <= 2 && !page.is_cut);
            all.extend(page.reached.into_iter().map(|row| row.id));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(all, ["b", "c", "e", "f", "d"]);
        // In tests the bound is low.
        let mut world = World::new();
        entity(&mut world, "hub");
        for n in 0..WALK_EDGES_MAX + 1 {
            entity(&mut world, &format!("n{n:03}"));
            world.call("2s", person("mara"), None, UpsertEdge { ends: ends("hub", &format!("n{n:03}")), payload: None }).unwrap();
        }
        let (mut told, mut cursor) = (0, None);
        let is_cut = loop {
            let page = world.ask("9s", person("jon"), WalkGraph { limit: 1_000, cursor, ..from("hub", Toward::Out, 2) }).unwrap();
            told += page.reached.len();
            cursor = page.next_cursor;
            if cursor.is_none() {
                break page.is_cut;
            }
            assert!(!page.is_cut, "said on the last page");
        };
        assert_eq!((told, is_cut), (WALK_EDGES_MAX, true));
    }

    #[test]
    fn a_walk_beyond_its_limits_is_refused_by_name() {
        let mut world = graph(&["ab"]);
        let mut refused = |walk: WalkGraph| world.ask("9s", person("jon"), walk).unwrap_err().to_string();
        assert_eq!(refused(from("a", Toward::Out, 0)), format!("`depth` must be 1 to {WALK_DEPTH_MAX}, not 0"));
        assert_eq!(refused(from("a", Toward::Out, WALK_DEPTH_MAX + 1)), format!("`depth` must be 1 to {WALK_DEPTH_MAX}, not 6"));
        assert!(refused(WalkGraph { cursor: Some("00".into()), ..from("a", Toward::Out, 1) }).contains("`cursor`"));
        assert!(refused(WalkGraph { edge_kinds: vec!["x".into(); 11], ..from("a", Toward::Out, 1) }).contains("the limit is 10 entries"));
    }
}
