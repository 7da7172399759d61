//! Entities and their versions.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{check_payload, feature, kind};
use crate::codec;
use crate::cursor::Cursors;
use crate::event;
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::{REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES};
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Table, Tx};
use crate::work;

/// One version of an entity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entity {
    pub tenant: String,
    pub kind: String,
    pub id: String,
    pub payload: Value,
    /// When its first version was stored.
    pub created_at: UnixMs,
    /// When this version was.
    pub updated_at: UnixMs,
    /// From 1 on, without gaps.
    pub version: u64,
    pub deleted: bool,
    /// Who made this version.
    pub actor: String,
}

impl Record for Entity {
    const KIND: Kind = Kind::GraphEntity;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        name(&self.kind, &self.id)
    }
}

/// A version that another one followed.
#[derive(Serialize, Deserialize)]
struct Former(Entity);

impl Record for Former {
    const KIND: Kind = Kind::GraphEntityVersion;
    fn tenant(&self) -> &str {
        &self.0.tenant
    }
    fn id(&self) -> Key {
        name(&self.0.kind, &self.0.id).number(self.0.version)
    }
}

impl Entity {
    /// What it takes of a reply, at the most.
    fn reply_bytes(&self) -> usize {
        serde_json::to_string(self).map_or(0, |json| json.len()) + REPLY_WRAPPER_BYTES
    }
}

fn name(kind: &str, id: &str) -> Key {
    Key::new().text(kind).text(id)
}

pub(crate) fn current(view: &impl Read, tenant: &str, kind: &str, id: &str) -> Result<Option<Entity>, StorageError> {
    view.get(tenant, &name(kind, id))
}

/// The key of an entity's record.
pub(crate) fn entity_key(tenant: &str, kind: &str, id: &str) -> Vec<u8> {
    kind_prefix(tenant, Kind::GraphEntity).raw(name(kind, id).as_bytes()).into_bytes()
}

/// What the rows of one page may take.
pub(super) const ROWS_BYTES: usize = REPLY_BYTES_DEFAULT - 2 * REPLY_WRAPPER_BYTES;

fn check_names(kind: &str, id: &str) -> Result<(), Refusal> {
    check_name("kind", kind).or_else(|| check_name("id", id)).map_or(Ok(()), Err)
}

/// Keeps the version before and puts the new one in its place.
pub(super) fn follow(tx: &mut impl Tx, at: &Stamp, before: Option<Entity>, next: &Entity, what: &str) -> Result<(), StorageError> {
    feature::follow(tx, before.as_ref(), next)?;
    if let Some(before) = before {
        tx.put(&Former(before));
    }
    tx.put(next);
    let about = json!({ "kind": next.kind, "version": next.version, "actor": next.actor });
    event::emit(tx, at, what, &next.id, about)
}

// ------------------------------------------------------------------ writes

/// Stores an entity, or its next version. The payload has been held to the kind's schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpsertEntity {
    pub kind: String,
    pub id: String,
    pub payload: Value,
    /// Of a kind that the tenant registered: the registration whose schema the payload was held to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind_revision: Option<Revision>,
}

impl UpsertEntity {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Entity> {
        let checked = check_names(&self.kind, &self.id)
            .and_then(|()| check_payload(&self.payload))
            .and_then(|()| feature::check(&self.kind, &self.payload));
        let tenant = &at.caller.tenant;
        let checked = match checked {
            Ok(()) => kind::check(tx, tenant, "kind", &self.kind)?,
            Err(refusal) => Err(refusal),
        };
        let registration = match checked {
            Ok(registration) => registration,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if registration.revision != self.kind_revision {
            let told = |revision: Option<Revision>| revision.map_or("none".into(), |revision| format!("revision {revision}"));
            return Ok(Err(Refusal::Changed {
                what: "kind".into(),
                id: self.kind,
                expected: told(self.kind_revision),
                found: told(registration.revision),
            }));
        }
        let before = current(tx, tenant, &self.kind, &self.id)?;
        let next = Entity {
            tenant: tenant.clone(),
            kind: self.kind,
            id: self.id,
            payload: self.payload,
            created_at: before.as_ref().map_or(at.wall, |before| before.created_at),
            updated_at: at.wall,
            version: before.as_ref().map_or(0, |before| before.version) + 1,
            deleted: false,
            actor: at.caller.passport.clone(),
        };
        follow(tx, at, before, &next, "entity.stored")?;
        Ok(Ok(next))
    }
}

/// Marks an entity as deleted by a version of its own. One that is deleted stays as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeleteEntity {
    pub kind: String,
    pub id: String,
}

impl DeleteEntity {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Entity> {
        if let Err(refusal) = check_names(&self.kind, &self.id) {
            return Ok(Err(refusal));
        }
        let Some(before) = current(tx, &at.caller.tenant, &self.kind, &self.id)? else {
            return Ok(Err(Refusal::not_found(self.kind, self.id)));
        };
        if before.deleted {
            return Ok(Ok(before));
        }
        let next =
            Entity { version: before.version + 1, updated_at: at.wall, deleted: true, actor: at.caller.passport.clone(), ..before.clone() };
        follow(tx, at, Some(before), &next, "entity.deleted")?;
        Ok(Ok(next))
    }
}

// ------------------------------------------------------------------ reads

/// The current version, or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetEntity {
    pub kind: String,
    pub id: String,
    pub include_deleted: bool,
}

impl GetEntity {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Option<Entity>> {
        if let Err(refusal) = check_names(&self.kind, &self.id) {
            return Ok(Err(refusal));
        }
        let found = current(view, &at.caller.tenant, &self.kind, &self.id)?;
        Ok(Ok(found.filter(|entity| self.include_deleted || !entity.deleted)))
    }
}

/// Current versions by kind and then id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListEntitiesOfKind {
    /// All kinds when absent.
    pub kind: Option<String>,
    pub include_deleted: bool,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entities {
    pub entities: Vec<Entity>,
    pub next_cursor: Option<String>,
}

impl ListEntitiesOfKind {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Entities> {
        let kind = self.kind.as_deref();
        if let Some(refusal) = kind.and_then(|kind| check_name("kind", kind)) {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("graph entities", &at.caller, &(kind, self.include_deleted));
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let all = kind_prefix(&at.caller.tenant, Kind::GraphEntity);
        let order = match kind {
            Some(kind) => all.text(kind),
            None => all,
        };
        let read = |row: &[u8]| {
            let entity: Entity = codec::decode(row).map_err(|error| StorageError::new("entity", error))?;
            let bytes = entity.reply_bytes();
            Ok((self.include_deleted || !entity.deleted).then_some((entity, bytes)))
        };
        let found = work::page(view, Table::Records, &order, from.as_deref(), limit, ROWS_BYTES, read)?;
        Ok(Ok(Entities { entities: found.items, next_cursor: found.next.map(|next| cursors.seal(&next)) }))
    }
}

/// Every version of one entity, the oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntityHistory {
    pub kind: String,
    pub id: String,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntityVersions {
    pub versions: Vec<Entity>,
    pub next_cursor: Option<String>,
}

impl EntityHistory {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<EntityVersions> {
        if let Err(refusal) = check_names(&self.kind, &self.id) {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let cursors = Cursors::of("versions of an entity", &at.caller, &(&self.kind, &self.id));
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Some(current) = current(view, tenant, &self.kind, &self.id)? else {
            return Ok(Ok(EntityVersions { versions: Vec::new(), next_cursor: None }));
        };
        let former = kind_prefix(tenant, Kind::GraphEntityVersion).raw(name(&self.kind, &self.id).as_bytes());
        let read = |row: &[u8]| {
            let Former(entity) = codec::decode(row).map_err(|error| StorageError::new("version of an entity", error))?;
            let bytes = entity.reply_bytes();
            Ok(Some((entity, bytes)))
        };
        let mut found = work::page(view, Table::Records, &former, from.as_deref(), limit, ROWS_BYTES, read)?;
        if found.next.is_none() {
            // The current version is the last one, and stands elsewhere: on this page if there is room, or on one of its own.
            let filled: usize = found.items.iter().map(Entity::reply_bytes).sum();
            if found.items.is_empty() || found.items.len() < limit && filled + current.reply_bytes() <= ROWS_BYTES {
                found.items.push(current);
            } else {
                found.next = Some(Key::new().number(current.version).into_bytes());
            }
        }
        Ok(Ok(EntityVersions { versions: found.items, next_cursor: found.next.map(|next| cursors.seal(&next)) }))
    }
}
