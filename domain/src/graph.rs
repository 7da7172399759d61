//! The graph of a team's things: entities of registered kinds, and edges between them.
//!
//! Invariants:
//! * An entity's kind is registered ([`kind`]), and every change adds a version; the versions before stay readable.
//! * An edge joins two live entities in a way that its source's kind allows. Its five parts are its name.
//! * Deleting is soft: what was deleted keeps its versions, and storing it again goes on with the next one.
//!
//! A payload is held to its kind's JSON Schema at the gateway, with [`kind::Registration::json_schema`], and not here: an entry of
//! the log must not cost more than its size, which a schema's patterns can't promise. What apply needs of a payload it checks, and
//! that it was held to the schema that is in force.
//!
//! What the capabilities among the entities tell of coverage and of gaps is in [`feature`].
//!
//! Decisions: an edge outlives its ends, so that a deleted entity that comes back finds its edges. Meanwhile it is shown as one that is
//! deleted is, to who asks for those. Repeating a delete changes nothing.

mod edge;
mod entity;
pub mod feature;
pub mod kind;
#[cfg(test)]
mod tests;
mod walk;

pub use edge::{DeleteEdge, Edge, EdgeEnds, Edges, GetEdge, ListEdges, UpsertEdge};
pub use entity::{DeleteEntity, Entities, Entity, EntityHistory, EntityVersions, GetEntity, ListEntitiesOfKind, UpsertEntity};
pub use kind::{GetKind, ListKinds, PutKind};
pub use walk::{Reached, Toward, Walk, WalkGraph};

pub(crate) use edge::neighbours;
pub(crate) use entity::{current, entity_key};

use serde_json::Value;

use crate::limit::{STATE_BYTES_MAX, STATE_DEPTH_MAX};
use crate::refusal::Refusal;
use crate::session::is_deeper;

/// Refuses a payload that is no object, too deep or too long.
fn check_payload(payload: &Value) -> Result<(), Refusal> {
    if !payload.is_object() {
        return Err(Refusal::invalid("payload", "must be a JSON object"));
    }
    if is_deeper(payload, STATE_DEPTH_MAX) {
        return Err(Refusal::invalid("payload", format!("must not nest objects and arrays more than {STATE_DEPTH_MAX} levels deep")));
    }
    let size = payload.to_string().len();
    if size > STATE_BYTES_MAX {
        return Err(Refusal::TooLong { field: "payload".into(), size: size as u64, limit: STATE_BYTES_MAX as u64, unit: "bytes".into() });
    }
    Ok(())
}

const RESULT: &str = "entity:";

/// The id of an entity among results of a search: `entity:kind/id`, separators within its parts percent-encoded.
pub(crate) fn result_id(kind: &str, id: &str) -> String {
    let part = |text: &str| text.replace('%', "%25").replace('/', "%2F");
    format!("{RESULT}{}/{}", part(kind), part(id))
}

/// Kind and id of an entity, by its id among results.
pub(crate) fn parse_result_id(text: &str) -> Option<(String, String)> {
    let part = |text: &str| text.replace("%2F", "/").replace("%25", "%");
    let (kind, id) = text.strip_prefix(RESULT)?.split_once('/')?;
    Some((part(kind), part(id)))
}
