//! Edges between entities.
//!
//! An edge stands in three orders: by its source (its own key), by its target, and by its kind. A list reads the order that its
//! filters narrow best and passes over the rest, a bounded number of rows.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::entity::{self, ROWS_BYTES};
use super::walk::Toward;
use super::{check_payload, kind};
use crate::codec;
use crate::cursor::Cursors;
use crate::event;
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::{REPLY_WRAPPER_BYTES, SCAN_ROWS_MAX};
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Table, Tx};

/// The five parts that name an edge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EdgeEnds {
    pub from_kind: String,
    pub from_id: String,
    pub edge_kind: String,
    pub to_kind: String,
    pub to_id: String,
}

/// The current version of an edge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edge {
    pub tenant: String,
    pub ends: EdgeEnds,
    pub payload: Option<Value>,
    pub created_at: UnixMs,
    pub updated_at: UnixMs,
    /// From 1 on, without gaps.
    pub version: u64,
    pub deleted: bool,
    pub actor: String,
}

impl Record for Edge {
    const KIND: Kind = Kind::GraphEdge;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        self.ends.by_source()
    }
}

/// A version that another one followed.
#[derive(Serialize, Deserialize)]
struct Former(Edge);

impl Record for Former {
    const KIND: Kind = Kind::GraphEdgeVersion;
    fn tenant(&self) -> &str {
        &self.0.tenant
    }
    fn id(&self) -> Key {
        self.0.id().number(self.0.version)
    }
}

impl Edge {
    fn reply_bytes(&self) -> usize {
        // Its name stands there twice: as parts, and as one id in which separators are escaped.
        serde_json::to_string(self).map_or(0, |json| json.len()) + 3 * self.ends.edge_id().len() + REPLY_WRAPPER_BYTES
    }
}

impl EdgeEnds {
    /// `from_kind/from_id|edge_kind|to_kind/to_id`; a separator or percent sign within a part is percent-encoded, so that no two
    /// edges share an id.
    pub fn edge_id(&self) -> String {
        let part = |text: &str| text.replace('%', "%25").replace('/', "%2F").replace('|', "%7C");
        let Self { from_kind, from_id, edge_kind, to_kind, to_id } = self;
        format!("{}/{}|{}|{}/{}", part(from_kind), part(from_id), part(edge_kind), part(to_kind), part(to_id))
    }

    fn by_source(&self) -> Key {
        Key::new().text(&self.from_kind).text(&self.from_id).text(&self.edge_kind).text(&self.to_kind).text(&self.to_id)
    }

    fn by_target(&self, tenant: &str) -> Key {
        by_target(tenant).text(&self.to_kind).text(&self.to_id).text(&self.edge_kind).text(&self.from_kind).text(&self.from_id)
    }

    fn by_kind(&self, tenant: &str) -> Key {
        by_kind(tenant).text(&self.edge_kind).raw(self.by_source().as_bytes())
    }

    fn check_names(&self) -> Result<(), Refusal> {
        let Self { from_kind, from_id, edge_kind, to_kind, to_id } = self;
        let parts = [("from_kind", from_kind), ("from_id", from_id), ("edge_kind", edge_kind), ("to_kind", to_kind), ("to_id", to_id)];
        parts.into_iter().find_map(|(field, part)| check_name(field, part)).map_or(Ok(()), Err)
    }
}

fn by_target(tenant: &str) -> Key {
    kind_prefix(tenant, Kind::GraphEdgeByTarget)
}

fn by_kind(tenant: &str) -> Key {
    kind_prefix(tenant, Kind::GraphEdgeByKind)
}

fn current(view: &impl Read, tenant: &str, ends: &EdgeEnds) -> Result<Option<Edge>, StorageError> {
    view.get(tenant, &ends.by_source())
}

/// The end of an edge that is no live entity.
fn missing_end<'a>(view: &impl Read, tenant: &str, ends: &'a EdgeEnds) -> Result<Option<(&'a String, &'a String)>, StorageError> {
    for (kind, id) in [(&ends.from_kind, &ends.from_id), (&ends.to_kind, &ends.to_id)] {
        if entity::current(view, tenant, kind, id)?.is_none_or(|entity| entity.deleted) {
            return Ok(Some((kind, id)));
        }
    }
    Ok(None)
}

/// Keeps the version before and puts the new one in its place, in every order.
fn follow(tx: &mut impl Tx, at: &Stamp, before: Option<Edge>, next: &Edge, what: &str) -> Result<(), StorageError> {
    match before {
        Some(before) => tx.put(&Former(before)),
        None => {
            let points_to = next.id();
            tx.put_index(next.ends.by_target(&next.tenant), points_to.as_bytes());
            tx.put_index(next.ends.by_kind(&next.tenant), points_to.as_bytes());
        }
    }
    tx.put(next);
    let about = json!({ "kind": next.ends.edge_kind, "version": next.version, "actor": next.actor });
    event::emit(tx, at, what, &next.ends.edge_id(), about)
}

// ------------------------------------------------------------------ writes

/// Stores an edge between two live entities, or its next version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpsertEdge {
    pub ends: EdgeEnds,
    /// Absent: an edge without one.
    pub payload: Option<Value>,
}

impl UpsertEdge {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Edge> {
        let Self { ends, payload } = self;
        let checked = ends.check_names().and_then(|()| payload.as_ref().map_or(Ok(()), check_payload));
        let tenant = &at.caller.tenant;
        let checked = match checked {
            Ok(()) => kind::check_edge(tx, tenant, &ends.from_kind, &ends.edge_kind, &ends.to_kind)?,
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = checked {
            return Ok(Err(refusal));
        }
        if let Some((kind, id)) = missing_end(tx, tenant, &ends)? {
            return Ok(Err(Refusal::not_found(kind.clone(), id.clone())));
        }
        let before = current(tx, tenant, &ends)?;
        let next = Edge {
            tenant: tenant.clone(),
            ends,
            payload,
            created_at: before.as_ref().map_or(at.wall, |before| before.created_at),
            updated_at: at.wall,
            version: before.as_ref().map_or(0, |before| before.version) + 1,
            deleted: false,
            actor: at.caller.passport.clone(),
        };
        follow(tx, at, before, &next, "edge.stored")?;
        Ok(Ok(next))
    }
}

/// Marks an edge as deleted by a version of its own. One that is deleted stays as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeleteEdge {
    pub ends: EdgeEnds,
}

impl DeleteEdge {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Edge> {
        if let Err(refusal) = self.ends.check_names() {
            return Ok(Err(refusal));
        }
        let Some(before) = current(tx, &at.caller.tenant, &self.ends)? else {
            return Ok(Err(Refusal::not_found("edge", self.ends.edge_id())));
        };
        if before.deleted {
            return Ok(Ok(before));
        }
        let next =
            Edge { version: before.version + 1, updated_at: at.wall, deleted: true, actor: at.caller.passport.clone(), ..before.clone() };
        follow(tx, at, Some(before), &next, "edge.deleted")?;
        Ok(Ok(next))
    }
}

// ------------------------------------------------------------------ reads

/// Kind and id of what live edges join to an entity, in either direction; so many rows of each are looked at.
pub(crate) fn neighbours(view: &impl Read, tenant: &str, kind: &str, id: &str, rows: usize) -> Result<Vec<(String, String)>, StorageError> {
    let (out, _) = edges_of(view, tenant, kind, id, Toward::Out, rows)?;
    let (to, _) = edges_of(view, tenant, kind, id, Toward::In, rows)?;
    let targets = out.into_iter().filter(|edge| !edge.deleted).map(|edge| (edge.ends.to_kind, edge.ends.to_id));
    let sources = to.into_iter().filter(|edge| !edge.deleted).map(|edge| (edge.ends.from_kind, edge.ends.from_id));
    Ok(targets.chain(sources).collect())
}

/// Edges that leave an entity, or lead to it, deleted ones too: at most `rows`, and whether these are all.
pub(super) fn edges_of(
    view: &impl Read,
    tenant: &str,
    kind: &str,
    id: &str,
    toward: Toward,
    rows: usize,
) -> Result<(Vec<Edge>, bool), StorageError> {
    if toward == Toward::In {
        let (found, next) = view.page_bytes(Table::Index, &by_target(tenant).text(kind).text(id), None, rows)?;
        let edge = |(_, points_to): (Vec<u8>, Vec<u8>)| {
            let edge: Option<Edge> = view.get(tenant, &Key::new().raw(&points_to))?;
            edge.ok_or_else(|| StorageError::corrupt("a row points to no edge"))
        };
        return Ok((found.into_iter().map(edge).collect::<Result<_, _>>()?, next.is_none()));
    }
    let found = view.page::<Edge>(tenant, &Key::new().text(kind).text(id), None, rows)?;
    Ok((found.items, found.next.is_none()))
}

/// One edge between live entities that is not deleted, or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetEdge {
    pub ends: EdgeEnds,
}

impl GetEdge {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Option<Edge>> {
        if let Err(refusal) = self.ends.check_names() {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let is_joined = missing_end(view, tenant, &self.ends)?.is_none();
        Ok(Ok(current(view, tenant, &self.ends)?.filter(|edge| is_joined && !edge.deleted)))
    }
}

/// Edges that have all of the parts that are given. In the order of their targets if only a target is given, of their kinds if
/// only a kind is, of their sources otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListEdges {
    pub from_kind: Option<String>,
    pub from_id: Option<String>,
    pub edge_kind: Option<String>,
    pub to_kind: Option<String>,
    pub to_id: Option<String>,
    /// Also those that are deleted, or have an end that is.
    pub include_deleted: bool,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edges {
    pub edges: Vec<Edge>,
    /// Also there when a page ended because it had passed over as many rows as one read may.
    pub next_cursor: Option<String>,
}

impl ListEdges {
    fn filters(&self) -> [(&'static str, Option<&str>); 5] {
        [
            ("from_kind", self.from_kind.as_deref()),
            ("from_id", self.from_id.as_deref()),
            ("edge_kind", self.edge_kind.as_deref()),
            ("to_kind", self.to_kind.as_deref()),
            ("to_id", self.to_id.as_deref()),
        ]
    }

    fn takes(&self, edge: &Edge) -> bool {
        let EdgeEnds { from_kind, from_id, edge_kind, to_kind, to_id } = &edge.ends;
        let parts = [from_kind, from_id, edge_kind, to_kind, to_id];
        let has = self.filters().into_iter().zip(parts).all(|((_, wanted), part)| wanted.is_none_or(|wanted| wanted == part));
        has && (self.include_deleted || !edge.deleted)
    }

    /// The table, and the start of the rows, that the filters narrow best.
    fn order(&self, tenant: &str) -> (Table, Key) {
        let mut filters = self.filters();
        let (start, table) = match (&self.from_kind, &self.to_kind, &self.edge_kind) {
            (None, Some(_), _) => {
                filters = [filters[3], filters[4], filters[2], filters[0], filters[1]];
                (by_target(tenant), Table::Index)
            }
            (None, None, Some(_)) => {
                filters = [filters[2], filters[0], filters[1], filters[3], filters[4]];
                (by_kind(tenant), Table::Index)
            }
            _ => (kind_prefix(tenant, Kind::GraphEdge), Table::Records),
        };
        (table, filters.into_iter().map_while(|(_, part)| part).fold(start, Key::text))
    }

    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Edges> {
        let named = self.filters().into_iter().find_map(|(field, part)| part.and_then(|part| check_name(field, part)));
        if let Some(refusal) = named {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let cursors = Cursors::of("graph edges", &at.caller, &(self.filters(), self.include_deleted));
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let (table, order) = self.order(tenant);
        let mut from = from.map(|from| order.clone().raw(&from).into_bytes());
        let (mut edges, mut left, mut examined) = (Vec::new(), ROWS_BYTES, 0);
        let next = 'pages: loop {
            let (rows, next) = view.page_bytes(table, &order, from.as_deref(), CHUNK)?;
            for (key, value) in rows {
                let edge = match table {
                    Table::Index => {
                        view.get(tenant, &Key::new().raw(&value))?.ok_or_else(|| StorageError::corrupt("a row points to no edge"))?
                    }
                    _ => codec::decode::<Edge>(&value).map_err(|error| StorageError::new("edge", error))?,
                };
                if edges.len() == limit || examined == SCAN_ROWS_MAX {
                    break 'pages Some(key);
                }
                examined += 1;
                if self.takes(&edge) && (self.include_deleted || missing_end(view, tenant, &edge.ends)?.is_none()) {
                    let bytes = edge.reply_bytes();
                    if bytes > left && !edges.is_empty() {
                        break 'pages Some(key);
                    }
                    left = left.saturating_sub(bytes);
                    edges.push(edge);
                }
            }
            match next {
                Some(next) => from = Some(next),
                None => break None,
            }
        };
        let next_cursor = next.map(|next| cursors.seal(&next[order.as_bytes().len()..]));
        Ok(Ok(Edges { edges, next_cursor }))
    }
}

/// Rows read at once while a list looks for its edges.
const CHUNK: usize = 256;
