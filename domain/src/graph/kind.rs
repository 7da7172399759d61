//! The kinds that entities can have: what their payloads look like, and which edges may lead from one to another.
//!
//! Some kinds are there for every tenant; an operator registers others for the own one. A registration can be replaced and not
//! taken back: there may be entities of it. What was stored under the one before stays as it is.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::entity::ROWS_BYTES;
use crate::cursor::Cursors;
use crate::event;
use crate::fact::at_most;
use crate::identity::{check_name, needs_admin};
use crate::key::Key;
use crate::limit::{KIND_RULES_MAX, KIND_SCHEMA_BYTES_MAX, KINDS_MAX, NAME_BYTES_MAX, REPLY_WRAPPER_BYTES, STATE_DEPTH_MAX};
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::session::is_deeper;
use crate::stamp::{ReadStamp, Revision, Stamp};
use crate::tx::{Read, StorageError, Tx};

/// One kind of entity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    pub kind: String,
    pub description: String,
    /// JSON Schema of the payload.
    pub json_schema: Value,
    /// Edges from an entity of this kind.
    pub outgoing: Vec<Rule>,
    /// When it was registered as it is; `None` for a kind that is there for every tenant.
    pub revision: Option<Revision>,
}

/// An edge that is allowed, and the kinds that it may lead to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    pub edge_kind: String,
    pub to: Vec<String>,
}

/// A registration of a tenant's own.
#[derive(Serialize, Deserialize)]
struct Registered {
    tenant: String,
    registration: Registration,
}

impl Record for Registered {
    const KIND: Kind = Kind::GraphKind;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.registration.kind)
    }
}

pub(super) const CAPABILITY: &str = "capability";
const REPO: &str = "repo";
const TRACE_NODE: &str = "agent_trace_node";

/// The kinds that are there for every tenant, by name.
pub fn built_in() -> Vec<Registration> {
    let kind = |kind: &str, description: &str, json_schema: Value, outgoing: &[(&str, &[&str])]| Registration {
        kind: kind.into(),
        description: description.into(),
        json_schema,
        outgoing: outgoing
            .iter()
            .map(|(edge_kind, to)| Rule { edge_kind: (*edge_kind).into(), to: to.iter().map(ToString::to_string).collect() })
            .collect(),
        revision: None,
    };
    let trace_node = json!({
        "type": "object",
        "properties": {
            "tool": { "type": "string" },
            "session_id": { "type": "string" },
            "summary": { "type": "string" },
            "outcome": { "type": "string" },
        },
    });
    let repo = json!({
        "type": "object",
        "required": ["id", "slug", "name"],
        "properties": {
            "id": { "type": "string" },
            "slug": { "type": "string" },
            "name": { "type": "string" },
            "description": { "type": "string" },
            "clone_url": { "type": "string" },
        },
    });
    vec![
        kind(
            TRACE_NODE,
            "A step of an agent's work: what it did, and what it touched.",
            trace_node,
            &[("follows", &[TRACE_NODE]), ("touches", &[CAPABILITY, REPO])],
        ),
        kind(
            CAPABILITY,
            "Something that the product can do: where it lives, how mature and how well tested it is.",
            capability(),
            &[("depends_on", &[CAPABILITY]), ("uses", &[CAPABILITY]), ("part_of", &[REPO])],
        ),
        kind(REPO, "A repository of source code.", repo, &[("depends_on", &[REPO])]),
    ]
}

/// The schema of the features lens: what it needs to tell gaps and coverage.
fn capability() -> Value {
    let texts = json!({ "type": "array", "items": { "type": "string" } });
    json!({
        "type": "object",
        "required": ["id", "name", "system", "maturity"],
        "properties": {
            "id": { "type": "string" },
            "name": { "type": "string" },
            "system": { "type": "string", "maxLength": NAME_BYTES_MAX },
            "maturity": { "enum": ["planned", "documented", "building", "built", "shipped", "deferred"] },
            "subsystem": { "type": "string" },
            "description": { "type": "string" },
            "feature_flag": { "type": "string" },
            "repo_id": { "type": "string" },
            "files": texts,
            "depends_on": texts,
            "depended_by": texts,
            "tests": {
                "type": "object",
                "properties": { "unit": texts, "integration": texts, "e2e": texts },
            },
            "audit": {
                "type": "object",
                "properties": {
                    "status": { "enum": ["audited", "gap", "waived", "blocked"] },
                    "last_audited": { "type": "string" },
                    "auditor": { "type": "string" },
                    "notes": { "type": "string" },
                },
            },
            "dod": texts,
            "promise_alignment": { "type": "array", "items": { "type": "integer", "minimum": 1, "maximum": 10 } },
            "external_deps": texts,
        },
    })
}

/// Every kind of a tenant, by name. There are few.
fn all(view: &impl Read, tenant: &str) -> Result<Vec<Registration>, StorageError> {
    let registered = view.page::<Registered>(tenant, &Key::new(), None, KINDS_MAX)?.items;
    let mut kinds: Vec<Registration> = built_in().into_iter().chain(registered.into_iter().map(|own| own.registration)).collect();
    kinds.sort_by(|a, b| a.kind.cmp(&b.kind));
    Ok(kinds)
}

/// A kind by its name.
fn named(view: &impl Read, tenant: &str, kind: &str) -> Result<Option<Registration>, StorageError> {
    if let Some(registration) = built_in().into_iter().find(|registration| registration.kind == kind) {
        return Ok(Some(registration));
    }
    let own: Option<Registered> = view.get(tenant, &Key::new().text(kind))?;
    Ok(own.map(|own| own.registration))
}

/// The edges that may lead to a kind, and from which kinds.
fn incoming(kinds: &[Registration], kind: &str) -> Vec<Rule> {
    let mut found: Vec<Rule> = Vec::new();
    for registration in kinds {
        for rule in registration.outgoing.iter().filter(|rule| rule.to.iter().any(|to| to == kind)) {
            let from = registration.kind.clone();
            match found.iter_mut().find(|known| known.edge_kind == rule.edge_kind) {
                Some(known) => known.to.push(from),
                None => found.push(Rule { edge_kind: rule.edge_kind.clone(), to: vec![from] }),
            }
        }
    }
    found
}

/// How many kinds a refusal names.
const KINDS_NAMED: usize = 20;

/// Refuses a kind that is not registered.
pub(super) fn check(view: &impl Read, tenant: &str, field: &str, kind: &str) -> Applied<Registration> {
    if let Some(registration) = named(view, tenant, kind)? {
        return Ok(Ok(registration));
    }
    let all = all(view, tenant)?;
    let names: Vec<String> = all.iter().take(KINDS_NAMED).map(|registration| format!("`{}`", registration.kind)).collect();
    let more = if all.len() > KINDS_NAMED { format!(" and {} more", all.len() - KINDS_NAMED) } else { String::new() };
    Ok(Err(Refusal::invalid(field, format!("is no registered kind; those are {}{more}", names.join(", ")))))
}

/// Refuses an edge that its source's kind does not allow.
pub(super) fn check_edge(view: &impl Read, tenant: &str, from: &str, edge_kind: &str, to: &str) -> Applied<()> {
    let source = match check(view, tenant, "from_kind", from)? {
        Ok(source) => source,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if let Err(refusal) = check(view, tenant, "to_kind", to)? {
        return Ok(Err(refusal));
    }
    let Some(rule) = source.outgoing.iter().find(|rule| rule.edge_kind == edge_kind) else {
        let known: Vec<String> = source.outgoing.iter().map(|rule| format!("`{}`", rule.edge_kind)).collect();
        let known = if known.is_empty() { "nothing".into() } else { known.join(", ") };
        return Ok(Err(Refusal::invalid("edge_kind", format!("can't lead from a `{from}`; what can is {known}"))));
    };
    if !rule.to.iter().any(|allowed| allowed == to) {
        let problem = format!("can't be where `{edge_kind}` leads from a `{from}`; it leads to {}", rule.to.join(", "));
        return Ok(Err(Refusal::invalid("to_kind", problem)));
    }
    Ok(Ok(()))
}

// ------------------------------------------------------------------ registering

/// Registers a kind for the caller's tenant, or replaces its registration. An operator's act. That the schema is one was seen to
/// at the gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutKind {
    pub kind: String,
    pub description: String,
    pub json_schema: Value,
    pub outgoing: Vec<Rule>,
}

impl PutKind {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Registration> {
        if let Err(refusal) = self.check(at) {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let all = all(tx, tenant)?;
        let is_known = |kind: &str| all.iter().any(|registration| registration.kind == kind);
        if !is_known(&self.kind) && all.iter().filter(|registration| registration.revision.is_some()).count() >= KINDS_MAX {
            return Ok(Err(Refusal::invalid("kind", format!("can't be one more: a tenant registers at most {KINDS_MAX} kinds"))));
        }
        if let Some(unknown) = self.outgoing.iter().flat_map(|rule| &rule.to).find(|to| **to != self.kind && !is_known(to)) {
            let problem = format!("lets an edge lead to `{unknown}`, which is no registered kind; register that one first");
            return Ok(Err(Refusal::invalid("outgoing", problem)));
        }
        let Self { kind, description, json_schema, outgoing } = self;
        let registration = Registration { kind, description, json_schema, outgoing, revision: Some(at.revision) };
        let registered = Registered { tenant: tenant.clone(), registration };
        tx.put(&registered);
        event::emit(tx, at, "kind.registered", &registered.registration.kind, json!({ "by": at.caller.passport }))?;
        Ok(Ok(registered.registration))
    }

    fn check(&self, at: &Stamp) -> Result<(), Refusal> {
        needs_admin(at)
            .or_else(|| check_name("kind", &self.kind))
            .or_else(|| check_name("description", &self.description))
            .map_or(Ok(()), Err)?;
        if built_in().iter().any(|registration| registration.kind == self.kind) {
            return Err(Refusal::invalid("kind", "is one that is there for every team, and stays as it is"));
        }
        if !self.json_schema.is_object() || is_deeper(&self.json_schema, STATE_DEPTH_MAX) {
            return Err(Refusal::invalid("json_schema", format!("must be a JSON object, at most {STATE_DEPTH_MAX} levels deep")));
        }
        at_most("json_schema", self.json_schema.to_string().len(), KIND_SCHEMA_BYTES_MAX, "bytes")?;
        at_most("outgoing", self.outgoing.iter().map(|rule| rule.to.len().max(1)).sum(), KIND_RULES_MAX, "pairs of edge and kind")?;
        for rule in &self.outgoing {
            check_name("edge_kind", &rule.edge_kind).map_or(Ok(()), Err)?;
            rule.to.iter().find_map(|to| check_name("to", to)).map_or(Ok(()), Err)?;
        }
        at_most("outgoing", json!(self.outgoing).to_string().len(), KIND_SCHEMA_BYTES_MAX / 2, "bytes")
    }
}

// ------------------------------------------------------------------ looking

/// A kind, and the edges that may lead to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindView {
    pub registration: Registration,
    /// Their `to` are the kinds that they lead from.
    pub incoming: Vec<Rule>,
}

/// One kind, or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetKind {
    pub kind: String,
}

impl GetKind {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Option<KindView>> {
        if let Some(refusal) = check_name("kind", &self.kind) {
            return Ok(Err(refusal));
        }
        let kinds = all(view, &at.caller.tenant)?;
        let incoming = incoming(&kinds, &self.kind);
        Ok(Ok(kinds
            .into_iter()
            .find(|registration| registration.kind == self.kind)
            .map(|registration| KindView { registration, incoming })))
    }
}

/// The kinds of the caller's tenant by name; their schemas are left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListKinds {
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindList {
    pub kinds: Vec<KindView>,
    pub next_cursor: Option<String>,
}

impl ListKinds {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<KindList> {
        let cursors = Cursors::of("graph kinds", &at.caller, &());
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let all = all(view, &at.caller.tenant)?;
        let (mut list, mut left) = (KindList { kinds: Vec::new(), next_cursor: None }, ROWS_BYTES);
        for registration in all.iter().filter(|registration| from.as_ref().is_none_or(|from| registration.kind.as_bytes() >= &from[..])) {
            let incoming = incoming(&all, &registration.kind);
            let registration = Registration { json_schema: Value::Null, ..registration.clone() };
            let kind = KindView { registration, incoming };
            let bytes = serde_json::to_string(&kind).map_or(0, |json| json.len()) + REPLY_WRAPPER_BYTES;
            if list.kinds.len() == limit || bytes > left && !list.kinds.is_empty() {
                list.next_cursor = Some(cursors.seal(kind.registration.kind.as_bytes()));
                break;
            }
            left = left.saturating_sub(bytes);
            list.kinds.push(kind);
        }
        Ok(Ok(list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{EdgeEnds, UpsertEdge, UpsertEntity};
    use crate::stamp::Principal;
    use crate::transcript::{World, person};

    fn put(kind: &str, to: &[&str]) -> PutKind {
        let rule = Rule { edge_kind: "runs".into(), to: to.iter().map(ToString::to_string).collect() };
        let outgoing = if to.is_empty() { Vec::new() } else { vec![rule] };
        PutKind { kind: kind.into(), description: "A thing.".into(), json_schema: json!({ "type": "object" }), outgoing }
    }

    fn names(world: &mut World, caller: Principal) -> Vec<String> {
        let found = world.ask("9s", caller, ListKinds { limit: 50, cursor: None }).unwrap();
        found.kinds.into_iter().map(|kind| kind.registration.kind).collect()
    }

    #[test]
    fn a_tenants_own_kinds_stand_beside_those_of_all_and_their_edges_are_held_to_their_rules() {
        let mut world = World::new();
        let service = world.call("1s", person("olga"), None, put("service", &["capability", "service"])).unwrap();
        assert_eq!(names(&mut world, person("mara")), ["agent_trace_node", "capability", "repo", "service"]);
        assert_eq!(names(&mut world, Principal { tenant: "other".into(), ..person("mara") }).len(), 3);
        let view = world.ask("2s", person("mara"), GetKind { kind: "capability".into() }).unwrap().unwrap();
        assert!(view.incoming.contains(&Rule { edge_kind: "runs".into(), to: vec!["service".into()] }));

        let entity = |id: &str, kind_revision| UpsertEntity { kind: "service".into(), id: id.into(), payload: json!({}), kind_revision };
        for id in ["a", "b"] {
            world.call("3s", person("mara"), None, entity(id, service.revision)).unwrap();
        }
        let edge = |edge_kind: &str| {
            let kind = "service".to_string();
            let ends =
                EdgeEnds { from_kind: kind.clone(), from_id: "a".into(), edge_kind: edge_kind.into(), to_kind: kind, to_id: "b".into() };
            UpsertEdge { ends, payload: None }
        };
        world.call("4s", person("mara"), None, edge("runs")).unwrap();
        let told = world.call("4s", person("mara"), None, edge("owns")).unwrap_err().to_string();
        assert_eq!(told, "`edge_kind` can't lead from a `service`; what can is `runs`");

        // A payload that was held to a schema which has been replaced meanwhile is not stored.
        let replaced = world.call("5s", person("olga"), None, put("service", &[])).unwrap();
        let told = world.call("6s", person("mara"), None, entity("c", service.revision)).unwrap_err();
        assert!(matches!(told, Refusal::Changed { .. }), "{told}");
        assert!(matches!(world.call("6s", person("mara"), None, entity("c", None)), Err(Refusal::Changed { .. })));
        world.call("7s", person("mara"), None, entity("c", replaced.revision)).unwrap();
        let told = world.call("8s", person("mara"), None, edge("runs")).unwrap_err().to_string();
        assert_eq!(told, "`edge_kind` can't lead from a `service`; what can is nothing");
    }

    #[test]
    fn kinds_are_registered_by_operators_within_limits_and_those_of_all_stay() {
        let mut world = World::new();
        let refused = |world: &mut World, put: PutKind| world.call("1s", person("olga"), None, put).unwrap_err().to_string();
        assert!(refused(&mut world, put("capability", &[])).contains("is one that is there for every team"));
        assert!(refused(&mut world, put("a", &["b"])).contains("lets an edge lead to `b`, which is no registered kind"));
        assert!(refused(&mut world, PutKind { json_schema: json!([]), ..put("a", &[]) }).contains("must be a JSON object"));
        let long = json!({ "description": "x".repeat(KIND_SCHEMA_BYTES_MAX) });
        assert!(refused(&mut world, PutKind { json_schema: long, ..put("a", &[]) }).contains("the limit is 12288 bytes"));
        assert!(refused(&mut world, put("a", &["a"; KIND_RULES_MAX + 1])).contains("the limit is 50 pairs"));
        for n in 0..KINDS_MAX {
            world.call("2s", person("olga"), None, put(&format!("k{n}"), &[])).unwrap();
        }
        assert!(refused(&mut world, put("more", &[])).contains("registers at most"));
        world.call("3s", person("olga"), None, put("k0", &["k1"])).unwrap();
        let agent = Principal { scopes: ["crux-mcp.*".to_string()].into(), ..person("mara") };
        assert!(matches!(world.call("4s", agent, None, put("k0", &[])), Err(Refusal::Denied { .. })));
    }

    #[test]
    fn kinds_are_paged() {
        let mut world = World::new();
        world.call("1s", person("olga"), None, put("service", &[])).unwrap();
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let page = world.ask("2s", person("mara"), ListKinds { limit: 3, cursor }).unwrap();
            all.extend(page.kinds.into_iter().map(|kind| kind.registration.kind));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(all, ["agent_trace_node", "capability", "repo", "service"]);
    }
}
