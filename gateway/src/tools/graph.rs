//! The graph: entities of registered kinds, the edges between them, and the kinds themselves.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use quorate_domain::graph;
use quorate_domain::graph::kind::{self, KindView, Registration};
use quorate_domain::limit::LIST_DEFAULT;
use quorate_domain::refusal::shown;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool, explain_in};
use crate::schema::Nullable;

/// One version of an entity as callers see it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Entity {
    kind: String,
    id: String,
    payload: Map<String, Value>,
    /// When its first version was stored.
    created_at: String,
    /// When this version was.
    updated_at: String,
    version: u64,
    deleted: bool,
    /// The passport that made this version.
    actor: String,
}

impl From<graph::Entity> for Entity {
    fn from(entity: graph::Entity) -> Self {
        Self {
            kind: entity.kind,
            id: entity.id,
            payload: object(entity.payload),
            created_at: entity.created_at.to_rfc3339(),
            updated_at: entity.updated_at.to_rfc3339(),
            version: entity.version,
            deleted: entity.deleted,
            actor: entity.actor,
        }
    }
}

/// Payloads are stored as objects only.
pub(super) fn object(payload: Value) -> Map<String, Value> {
    match payload {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct OneEntity {
    entity: Entity,
}

// ------------------------------------------------------------------ entity_upsert

/// Store an entity of the team's graph, or its next version. The whole payload is replaced.
///
/// `kind_list` shows the kinds, `kind_get` what a kind's payload has to look like.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EntityUpsert {
    /// A registered kind, such as `capability`.
    kind: String,
    /// Its name within the kind.
    id: String,
    /// An object that the kind's JSON Schema allows, of at most 16 KiB.
    payload: Map<String, Value>,
}

/// The schemas of the kinds that are there for every team.
static BUILT_IN: LazyLock<BTreeMap<String, jsonschema::Validator>> = LazyLock::new(|| {
    // A test compiles each.
    let of = |kind: Registration| (kind.kind, validator(&kind.json_schema).expect("a schema of ours compiles"));
    kind::built_in().into_iter().map(of).collect()
});

/// A schema is compiled as the document it is, so that `#` in it means itself. An error: it is no schema, or leads elsewhere.
fn validator(json_schema: &Value) -> Result<jsonschema::Validator, String> {
    jsonschema::meta::validate(json_schema).map_err(|error| error.to_string())?;
    jsonschema::validator_for(json_schema).map_err(|error| error.to_string())
}

/// Whether a text is a JSON Schema that payloads can be held to.
pub fn check_schema(json_schema: &Value) -> Result<(), CallError> {
    let refused = |problem: String| {
        let fix = "Write it in JSON Schema, without `$ref` to other documents.";
        CallError::arguments(format!("`json_schema` can't be used: {}", shown(&problem)), fix)
    };
    validator(json_schema).map(|_| ()).map_err(refused)
}

/// Holds a payload to its kind's schema.
fn check_payload(kind: &str, validator: &jsonschema::Validator, payload: Map<String, Value>) -> Result<Value, CallError> {
    let payload = Value::Object(payload);
    let problem = validator.iter_errors(&payload).next().map(|error| explain_in("payload", &error));
    match problem {
        None => Ok(payload),
        Some(problem) => Err(CallError::arguments(problem, format!("`kind_get` shows the schema of a `{}`.", shown(kind)))),
    }
}

impl Tool for EntityUpsert {
    const NAME: &'static str = "entity_upsert";
    const TITLE: &'static str = "Store an entity";
    const SCOPE: &'static str = "crux-mcp.entity_upsert";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::GRAPH;
    const IDEMPOTENT: bool = false;
    type Output = OneEntity;

    fn example() -> Value {
        json!({ "kind": "capability", "id": "search", "payload": { "id": "search", "name": "Search", "system": "core", "maturity": "built" } })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<OneEntity>, CallError> {
        let Self { kind, id, payload } = self;
        let (payload, kind_revision) = match BUILT_IN.get(&kind) {
            Some(validator) => (check_payload(&kind, validator, payload)?, None),
            None => match cluster.read(ctx, graph::GetKind { kind: kind.clone() }).await?.0 {
                Some(own) => {
                    let validator = validator(&own.registration.json_schema).map_err(|detail| CallError::Fault { detail })?;
                    (check_payload(&kind, &validator, payload)?, own.registration.revision)
                }
                // Refused with the command, which names the kinds that there are.
                None => (Value::Object(payload), None),
            },
        };
        let (entity, revision) = cluster.propose(ctx, graph::UpsertEntity { kind, id, payload, kind_revision }).await?;
        Ok(Reply::at(revision, OneEntity { entity: entity.into() }))
    }
}

// ------------------------------------------------------------------ entity_get

/// Get the current version of an entity, or null when there is none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EntityGet {
    /// Its kind, such as `capability`.
    kind: String,
    /// Its name within the kind.
    id: String,
    /// Also one that is deleted.
    #[serde(default)]
    include_deleted: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FoundEntity {
    /// Null when nothing matches.
    entity: Nullable<Entity>,
}

impl Tool for EntityGet {
    const NAME: &'static str = "entity_get";
    const TITLE: &'static str = "Get an entity";
    const SCOPE: &'static str = "crux-mcp.entity_get";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::GRAPH;
    const IDEMPOTENT: bool = true;
    type Output = FoundEntity;

    fn example() -> Value {
        json!({ "kind": "capability", "id": "search" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<FoundEntity>, CallError> {
        let Self { kind, id, include_deleted } = self;
        let (found, served) = cluster.read(ctx, graph::GetEntity { kind, id, include_deleted }).await?;
        Ok(Reply::at(served.revision, FoundEntity { entity: Nullable(found.map(Entity::from)) }))
    }
}

// ------------------------------------------------------------------ entity_list

/// List the team's entities by kind and then id.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EntityList {
    /// Only of this kind.
    kind: Option<String>,
    /// Rows of this page: 50 when absent, at most 1,000. Fewer come when they fill a reply.
    limit: Option<u64>,
    /// Also those that are deleted.
    #[serde(default)]
    include_deleted: bool,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct EntityPage {
    entities: Vec<Entity>,
    /// How many there are on this page.
    count: u64,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for EntityList {
    const NAME: &'static str = "entity_list";
    const TITLE: &'static str = "List entities of the graph";
    const SCOPE: &'static str = "crux-mcp.entity_list";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::GRAPH;
    const IDEMPOTENT: bool = true;
    type Output = EntityPage;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<EntityPage>, CallError> {
        let Self { kind, limit, include_deleted, cursor } = self;
        let query = graph::ListEntitiesOfKind { kind, include_deleted, limit: limit.unwrap_or(LIST_DEFAULT as u64), cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let entities: Vec<Entity> = found.entities.into_iter().map(Entity::from).collect();
        Ok(Reply::at(served.revision, EntityPage { count: entities.len() as u64, entities, next_cursor: found.next_cursor }))
    }
}

// ------------------------------------------------------------------ entity_delete

/// Delete an entity. Its versions stay, and storing it again goes on with the next one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EntityDelete {
    /// Its kind, such as `capability`.
    kind: String,
    /// Its name within the kind.
    id: String,
}

impl Tool for EntityDelete {
    const NAME: &'static str = "entity_delete";
    const TITLE: &'static str = "Delete an entity";
    const SCOPE: &'static str = "crux-mcp.entity_delete";
    const EFFECT: Effect = Effect::Destructive;
    const GROUP: &'static str = group::GRAPH;
    const IDEMPOTENT: bool = true;
    type Output = OneEntity;

    fn example() -> Value {
        json!({ "kind": "capability", "id": "search" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<OneEntity>, CallError> {
        let (entity, revision) = cluster.propose(ctx, graph::DeleteEntity { kind: self.kind, id: self.id }).await?;
        Ok(Reply::at(revision, OneEntity { entity: entity.into() }))
    }
}

// ------------------------------------------------------------------ entity_history

/// Show every version of an entity, oldest first. When it is deleted, the last one says so.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EntityHistory {
    /// Its kind, such as `capability`.
    kind: String,
    /// Its name within the kind.
    id: String,
    /// Rows of this page: 50 when absent, at most 1,000. Fewer come when they fill a reply.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct EntityVersions {
    versions: Vec<Entity>,
    /// How many there are on this page.
    count: u64,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for EntityHistory {
    const NAME: &'static str = "entity_history";
    const TITLE: &'static str = "Show an entity's versions";
    const SCOPE: &'static str = "crux-mcp.entity_history";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::GRAPH;
    const IDEMPOTENT: bool = true;
    type Output = EntityVersions;

    fn example() -> Value {
        json!({ "kind": "capability", "id": "search" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<EntityVersions>, CallError> {
        let Self { kind, id, limit, cursor } = self;
        let query = graph::EntityHistory { kind, id, limit: limit.unwrap_or(LIST_DEFAULT as u64), cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let versions: Vec<Entity> = found.versions.into_iter().map(Entity::from).collect();
        Ok(Reply::at(served.revision, EntityVersions { count: versions.len() as u64, versions, next_cursor: found.next_cursor }))
    }
}

// ------------------------------------------------------------------ edges

/// An edge as callers see it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Edge {
    /// Its five parts as one text; separators within a part are percent-encoded.
    edge_id: String,
    from_kind: String,
    from_id: String,
    edge_kind: String,
    to_kind: String,
    to_id: String,
    /// What was stored with it, or null.
    payload: Nullable<Map<String, Value>>,
    /// When its first version was stored.
    created_at: String,
    /// When this version was.
    updated_at: String,
    version: u64,
    deleted: bool,
    /// The passport that made this version.
    actor: String,
}

impl From<graph::Edge> for Edge {
    fn from(edge: graph::Edge) -> Self {
        let edge_id = edge.ends.edge_id();
        let graph::EdgeEnds { from_kind, from_id, edge_kind, to_kind, to_id } = edge.ends;
        Self {
            edge_id,
            from_kind,
            from_id,
            edge_kind,
            to_kind,
            to_id,
            payload: Nullable(edge.payload.map(object)),
            created_at: edge.created_at.to_rfc3339(),
            updated_at: edge.updated_at.to_rfc3339(),
            version: edge.version,
            deleted: edge.deleted,
            actor: edge.actor,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct OneEdge {
    edge: Edge,
}

fn example_edge() -> Value {
    json!({ "from_kind": "capability", "from_id": "search", "edge_kind": "uses", "to_kind": "capability", "to_id": "index" })
}

// ------------------------------------------------------------------ edge_upsert

/// Store an edge between two entities, or its next version. Its five parts name it.
///
/// Both entities have to be there, and the first one's kind has to allow the edge: see `kind_get`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EdgeUpsert {
    /// The kind of the entity that it leads from.
    from_kind: String,
    /// That entity's name.
    from_id: String,
    /// What kind of edge, such as `depends_on`.
    edge_kind: String,
    /// The kind of the entity that it leads to.
    to_kind: String,
    /// That entity's name.
    to_id: String,
    /// What to keep with it, of at most 16 KiB.
    payload: Option<Map<String, Value>>,
}

impl Tool for EdgeUpsert {
    const NAME: &'static str = "edge_upsert";
    const TITLE: &'static str = "Store an edge";
    const SCOPE: &'static str = "crux-mcp.edge_upsert";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::GRAPH;
    const IDEMPOTENT: bool = false;
    type Output = OneEdge;

    fn example() -> Value {
        example_edge()
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<OneEdge>, CallError> {
        let Self { from_kind, from_id, edge_kind, to_kind, to_id, payload } = self;
        let ends = graph::EdgeEnds { from_kind, from_id, edge_kind, to_kind, to_id };
        let (edge, revision) = cluster.propose(ctx, graph::UpsertEdge { ends, payload: payload.map(Value::Object) }).await?;
        Ok(Reply::at(revision, OneEdge { edge: edge.into() }))
    }
}

// ------------------------------------------------------------------ edge_get

/// Get an edge by its five parts, or null when there is none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EdgeGet {
    /// The kind of the entity that it leads from.
    from_kind: String,
    /// That entity's name.
    from_id: String,
    /// What kind of edge, such as `depends_on`.
    edge_kind: String,
    /// The kind of the entity that it leads to.
    to_kind: String,
    /// That entity's name.
    to_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FoundEdge {
    /// Null when nothing matches, and while an end of it is deleted.
    edge: Nullable<Edge>,
}

impl Tool for EdgeGet {
    const NAME: &'static str = "edge_get";
    const TITLE: &'static str = "Get an edge";
    const SCOPE: &'static str = "crux-mcp.edge_get";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::GRAPH;
    const IDEMPOTENT: bool = true;
    type Output = FoundEdge;

    fn example() -> Value {
        example_edge()
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<FoundEdge>, CallError> {
        let Self { from_kind, from_id, edge_kind, to_kind, to_id } = self;
        let ends = graph::EdgeEnds { from_kind, from_id, edge_kind, to_kind, to_id };
        let (found, served) = cluster.read(ctx, graph::GetEdge { ends }).await?;
        Ok(Reply::at(served.revision, FoundEdge { edge: Nullable(found.map(Edge::from)) }))
    }
}

// ------------------------------------------------------------------ edge_list

/// List edges that have all the parts you give; without any, all edges.
///
/// Give `from_kind` and `from_id` for what an entity leads to, `to_kind` and `to_id` for what leads to it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EdgeList {
    /// From entities of this kind.
    from_kind: Option<String>,
    /// From the entity of this name.
    from_id: Option<String>,
    /// To entities of this kind.
    to_kind: Option<String>,
    /// To the entity of this name.
    to_id: Option<String>,
    /// Of this kind.
    edge_kind: Option<String>,
    /// Rows of this page: 50 when absent, at most 1,000. Fewer come when they fill a reply.
    limit: Option<u64>,
    /// Also those that are deleted, or have an end that is.
    #[serde(default)]
    include_deleted: bool,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct EdgePage {
    edges: Vec<Edge>,
    /// How many there are on this page.
    count: u64,
    /// Pass it as `cursor` for the rest; a page may have few or no rows and others still follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for EdgeList {
    const NAME: &'static str = "edge_list";
    const TITLE: &'static str = "List edges";
    const SCOPE: &'static str = "crux-mcp.edge_list";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::GRAPH;
    const IDEMPOTENT: bool = true;
    type Output = EdgePage;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<EdgePage>, CallError> {
        let Self { from_kind, from_id, to_kind, to_id, edge_kind, limit, include_deleted, cursor } = self;
        let limit = limit.unwrap_or(LIST_DEFAULT as u64);
        let query = graph::ListEdges { from_kind, from_id, edge_kind, to_kind, to_id, include_deleted, limit, cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let edges: Vec<Edge> = found.edges.into_iter().map(Edge::from).collect();
        Ok(Reply::at(served.revision, EdgePage { count: edges.len() as u64, edges, next_cursor: found.next_cursor }))
    }
}

// ------------------------------------------------------------------ edge_delete

/// Delete an edge by its five parts. Storing it again goes on with the next version.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EdgeDelete {
    /// The kind of the entity that it leads from.
    from_kind: String,
    /// That entity's name.
    from_id: String,
    /// What kind of edge, such as `depends_on`.
    edge_kind: String,
    /// The kind of the entity that it leads to.
    to_kind: String,
    /// That entity's name.
    to_id: String,
}

impl Tool for EdgeDelete {
    const NAME: &'static str = "edge_delete";
    const TITLE: &'static str = "Delete an edge";
    const SCOPE: &'static str = "crux-mcp.edge_delete";
    const EFFECT: Effect = Effect::Destructive;
    const GROUP: &'static str = group::GRAPH;
    const IDEMPOTENT: bool = true;
    type Output = OneEdge;

    fn example() -> Value {
        example_edge()
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<OneEdge>, CallError> {
        let Self { from_kind, from_id, edge_kind, to_kind, to_id } = self;
        let ends = graph::EdgeEnds { from_kind, from_id, edge_kind, to_kind, to_id };
        let (edge, revision) = cluster.propose(ctx, graph::DeleteEdge { ends }).await?;
        Ok(Reply::at(revision, OneEdge { edge: edge.into() }))
    }
}

// ------------------------------------------------------------------ kinds

/// Edges of one kind, and the kinds of entities at their other end.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EdgeRule {
    edge_kind: String,
    kinds: Vec<String>,
}

fn rules(rules: Vec<kind::Rule>) -> Vec<EdgeRule> {
    rules.into_iter().map(|rule| EdgeRule { edge_kind: rule.edge_kind, kinds: rule.to }).collect()
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ListedKind {
    kind: String,
    description: String,
    /// Edges that may lead from an entity of this kind, and to which kinds.
    allowed_outgoing_edges: Vec<EdgeRule>,
    /// Edges that may lead to it, and from which kinds.
    allowed_incoming_edges: Vec<EdgeRule>,
}

/// List the kinds that entities can have, and the edges that may lead from one to another.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KindList {
    /// Kinds of this page: 50 when absent, at most 1,000.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Kinds {
    kinds: Vec<ListedKind>,
    count: u64,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for KindList {
    const NAME: &'static str = "kind_list";
    const TITLE: &'static str = "List kinds";
    const SCOPE: &'static str = "crux-mcp.kind_list";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::GRAPH;
    const IDEMPOTENT: bool = true;
    type Output = Kinds;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Kinds>, CallError> {
        let query = graph::ListKinds { limit: self.limit.unwrap_or(LIST_DEFAULT as u64), cursor: self.cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let listed = |KindView { registration, incoming }: KindView| ListedKind {
            kind: registration.kind,
            description: registration.description,
            allowed_outgoing_edges: rules(registration.outgoing),
            allowed_incoming_edges: rules(incoming),
        };
        let kinds: Vec<ListedKind> = found.kinds.into_iter().map(listed).collect();
        Ok(Reply::at(served.revision, Kinds { count: kinds.len() as u64, kinds, next_cursor: found.next_cursor }))
    }
}

/// Show one kind with the JSON Schema of its payload; null when there is no such kind.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KindGet {
    /// Its kind, such as `capability`.
    kind: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ShownKind {
    kind: String,
    description: String,
    /// What a payload of this kind has to look like.
    json_schema: Map<String, Value>,
    /// Edges that may lead from an entity of this kind, and to which kinds.
    allowed_outgoing_edges: Vec<EdgeRule>,
    /// Edges that may lead to it, and from which kinds.
    allowed_incoming_edges: Vec<EdgeRule>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FoundKind {
    /// Null for an unknown kind.
    registration: Nullable<ShownKind>,
}

impl Tool for KindGet {
    const NAME: &'static str = "kind_get";
    const TITLE: &'static str = "Show a kind";
    const SCOPE: &'static str = "crux-mcp.kind_get";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::GRAPH;
    const IDEMPOTENT: bool = true;
    type Output = FoundKind;

    fn example() -> Value {
        json!({ "kind": "capability" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<FoundKind>, CallError> {
        let (found, served) = cluster.read(ctx, graph::GetKind { kind: self.kind }).await?;
        let shown = |KindView { registration, incoming }: KindView| ShownKind {
            kind: registration.kind,
            description: registration.description,
            allowed_outgoing_edges: rules(registration.outgoing),
            allowed_incoming_edges: rules(incoming),
            json_schema: object(registration.json_schema),
        };
        Ok(Reply::at(served.revision, FoundKind { registration: Nullable(found.map(shown)) }))
    }
}

// ------------------------------------------------------------------ graph_traverse

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Toward {
    #[default]
    Out,
    In,
    Both,
}

/// Walk the graph from an entity along its edges, and tell what it comes to, nearest first and each once.
///
/// Deleted entities and edges are passed over. A walk looks at 1,000 edges at the most; when that ends it, the reply says so.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GraphTraverse {
    /// The kind of the entity that it begins at.
    kind: String,
    /// Its name within the kind.
    id: String,
    /// `out`: along edges from their source; `in`: against them; `both`.
    #[serde(default)]
    direction: Toward,
    /// Only edges of these kinds, at most 10; absent: of all.
    edge_kinds: Option<Vec<String>>,
    /// How many edges away.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 5))]
    depth: u64,
    /// Entities of this page: 50 when absent, at most 1,000. Fewer come when they fill a reply.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

fn one() -> u64 {
    1
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Traversal {
    reached: Vec<Reached>,
    count: u64,
    /// True when there may be more within `depth`: walk on from one of these, or name `edge_kinds`.
    truncated: bool,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Reached {
    kind: String,
    id: String,
    /// Edges between it and where the walk began.
    distance: u64,
    /// The last of them, as in `edge_list`.
    edge_id: String,
}

impl Tool for GraphTraverse {
    const NAME: &'static str = "graph_traverse";
    const TITLE: &'static str = "Walk the graph";
    const SCOPE: &'static str = "crux-mcp.graph_traverse";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::GRAPH;
    const IDEMPOTENT: bool = true;
    type Output = Traversal;

    fn example() -> Value {
        json!({ "kind": "capability", "id": "search" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Traversal>, CallError> {
        let Self { kind, id, direction, edge_kinds, depth, limit, cursor } = self;
        let toward = match direction {
            Toward::Out => graph::Toward::Out,
            Toward::In => graph::Toward::In,
            Toward::Both => graph::Toward::Both,
        };
        let (edge_kinds, limit) = (edge_kinds.unwrap_or_default(), limit.unwrap_or(LIST_DEFAULT as u64));
        let (walk, served) = cluster.read(ctx, graph::WalkGraph { kind, id, toward, edge_kinds, depth, limit, cursor }).await?;
        let reached: Vec<Reached> = walk
            .reached
            .into_iter()
            .map(|row| Reached { kind: row.kind, id: row.id, distance: row.distance, edge_id: row.by.edge_id() })
            .collect();
        let facts = Traversal { count: reached.len() as u64, reached, truncated: walk.is_cut, next_cursor: walk.next_cursor };
        Ok(Reply::at(served.revision, facts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(kind: &str, payload: Value) -> Result<Value, String> {
        check_payload(kind, &BUILT_IN[kind], object(payload)).map_err(|error| error.text())
    }

    #[test]
    fn a_payload_is_held_to_the_whole_schema_of_its_kind_and_the_refusal_names_the_place() {
        let good = json!({ "id": "s", "name": "S", "system": "core", "maturity": "built", "tests": { "unit": ["a"] }, "more": 1 });
        assert_eq!(told("capability", good.clone()), Ok(good));
        let bad = json!({ "id": "s", "name": "S", "system": "core", "maturity": "built", "tests": { "unit": ["a", 7] } });
        let text = told("capability", bad).unwrap_err();
        assert_eq!(
            text,
            "`payload.tests.unit.1` must be a string, not a number. Nothing was written. `kind_get` shows the schema of a `capability`."
        );
        let text = told("capability", json!({})).unwrap_err();
        assert!(text.starts_with("`payload`: \"id\" is a required property"), "{text}");
    }

    #[test]
    fn a_reference_of_a_schema_to_itself_is_followed_in_every_draft() {
        let held = |schema: &Value, payload: Value| {
            check_schema(schema).unwrap();
            check_payload("k", &validator(schema).unwrap(), object(payload)).map_err(|error| error.text())
        };
        let part =
            |keyword: &str| json!({ "properties": { "p": { "$ref": format!("#/{keyword}/p") } }, keyword: { "p": { "type": "string" } } });
        let named = |mut schema: Value, draft: &str| {
            schema["$schema"] = draft.into();
            schema
        };
        for schema in [
            part("$defs"),
            part("definitions"),
            named(part("$defs"), "https://json-schema.org/draft/2020-12/schema"),
            named(part("definitions"), "http://json-schema.org/draft-07/schema#"),
        ] {
            assert_eq!(held(&schema, json!({ "p": "text" })), Ok(json!({ "p": "text" })), "{schema}");
            let told = held(&schema, json!({ "p": 7 })).unwrap_err();
            assert!(told.starts_with("`payload.p` must be a string, not a number."), "{told}");
        }
        let chain = json!({ "type": "object", "required": ["n"], "properties": { "next": { "$ref": "#" } } });
        assert!(held(&chain, json!({ "n": 1, "next": { "n": 2, "next": { "n": 3 } } })).is_ok());
        let told = held(&chain, json!({ "n": 1, "next": { "x": 1 } })).unwrap_err();
        assert!(told.starts_with("`payload.next`: \"n\" is a required property"), "{told}");
    }

    #[test]
    fn the_schema_of_every_kind_compiles() {
        assert_eq!(BUILT_IN.len(), kind::built_in().len());
    }

    #[test]
    fn what_is_no_schema_is_refused_and_so_is_one_that_leads_elsewhere() {
        assert_eq!(check_schema(&json!({ "type": "object", "required": ["a"] })), Ok(()));
        for schema in [
            json!({ "type": "thing" }),
            json!({ "pattern": "(" }),
            json!({ "$ref": "https://example.org/schema" }),
            json!({ "$ref": "#/$defs/none" }),
        ] {
            let told = check_schema(&schema).unwrap_err().text();
            assert!(told.starts_with("`json_schema` can't be used: "), "{told}");
        }
    }
}
