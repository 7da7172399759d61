//! Projects: what work belongs to.
//!
//! Each tenant has one project from the start, without a write; its members are the tenant's passports. Operators make others,
//! with members of their own: work in those is created, moved and commented on by members and operators alone. Everybody of the
//! tenant reads all of it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::approval::refuse_all_but_operators;
use crate::cursor::Cursors;
use crate::event;
use crate::identity::{Passport, check_name};
use crate::key::Key;
use crate::limit::{PROJECT_MEMBERS_MAX, PROJECTS_MAX, REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES};
use crate::query;
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{self, Applied, Refusal};
use crate::stamp::{Principal, ReadStamp, Stamp, Tier, UnixMs};
use crate::tx::{Read, StorageError, Tx};
use crate::work::board::page;
use crate::{Table, codec};

/// The id of every tenant's own project.
pub const DEFAULT_PROJECT: &str = "p_default";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Project {
    pub id: String,
    pub name: String,
    pub default_passport_id: Option<String>,
    /// 0 for the one that was there from the start.
    pub created_at: UnixMs,
    #[serde(default)]
    pub tenant: String,
    /// Of a project that was made: its passports, in order. The first project has all.
    #[serde(default)]
    pub members: BTreeSet<String>,
}

impl Record for Project {
    const KIND: Kind = Kind::Project;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.id)
    }
}

impl Project {
    fn default_of(tenant: &str) -> Self {
        Self {
            id: DEFAULT_PROJECT.into(),
            name: "Default".into(),
            default_passport_id: None,
            created_at: UnixMs(0),
            tenant: tenant.into(),
            members: BTreeSet::new(),
        }
    }
}

pub(crate) fn project(view: &impl Read, tenant: &str, id: &str) -> Result<Option<Project>, StorageError> {
    match id {
        DEFAULT_PROJECT => Ok(Some(Project::default_of(tenant))),
        id => view.get(tenant, &Key::new().text(id)),
    }
}

/// Refuses a project that there is not.
pub(crate) fn check_project(view: &impl Read, tenant: &str, id: &str) -> Result<Option<Refusal>, StorageError> {
    if let Some(refusal) = check_name("project_id", id) {
        return Ok(Some(refusal));
    }
    Ok(project(view, tenant, id)?.is_none().then(|| Refusal::not_found("project", id)))
}

/// Refuses who does not work in a project, and a project that there is not.
pub(super) fn check_member(view: &impl Read, caller: &Principal, id: &str) -> Result<Option<Refusal>, StorageError> {
    if let Some(refusal) = check_name("project_id", id) {
        return Ok(Some(refusal));
    }
    if project(view, &caller.tenant, id)?.is_none() {
        return Ok(Some(Refusal::not_found("project", id)));
    }
    let problem = || format!("`{}` is no member of the project `{id}`; an operator can make it one", caller.passport);
    Ok((!is_member(view, caller, id)?).then(|| Refusal::Denied { problem: problem() }))
}

/// Whether somebody works in a project. Operators work in all.
pub(super) fn is_member(view: &impl Read, who: &Principal, id: &str) -> Result<bool, StorageError> {
    let Some(project) = project(view, &who.tenant, id)? else { return Ok(false) };
    Ok(id == DEFAULT_PROJECT || project.members.contains(&who.passport) || refuse_all_but_operators(who, "").is_none())
}

// ------------------------------------------------------------------ making and changing

/// Makes a project, or changes the one of this id. An operator's act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutProject {
    /// Nothing: a new one.
    pub id: Option<String>,
    pub name: Option<String>,
    /// Whose work it is when nobody is named. An empty name takes it back.
    pub default_passport_id: Option<String>,
    pub add_members: Vec<String>,
    pub remove_members: Vec<String>,
}

impl PutProject {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Project> {
        let tenant = &at.caller.tenant;
        let refusal = refuse_all_but_operators(&at.caller, "making and changing projects")
            .or_else(|| self.name.as_deref().and_then(|name| check_name("name", name)))
            .or_else(|| self.add_members.iter().chain(&self.remove_members).find_map(|name| check_name("members", name)));
        if let Some(refusal) = refusal {
            return Ok(Err(refusal));
        }
        if let Some(name) = self.add_members.iter().find(|name| self.remove_members.contains(name)) {
            let problem = format!("has `{}`, and so has `add_members`; name it in one of them", refusal::shown(name));
            return Ok(Err(Refusal::invalid("remove_members", problem)));
        }
        let (mut changed, is_new) = match (&self.id, &self.name) {
            (None, None) => return Ok(Err(Refusal::invalid("name", "is missing: a new project needs one"))),
            (None, Some(name)) => {
                (Project { id: at.new_id("p", 0), name: name.clone(), created_at: at.wall, ..Project::default_of(tenant) }, true)
            }
            (Some(id), name) => {
                if let Some(refusal) = check_project(tx, tenant, id)? {
                    return Ok(Err(refusal));
                }
                if id == DEFAULT_PROJECT {
                    return Ok(Err(Refusal::invalid("id", "is the tenant's own project, which stays as it is; make another one")));
                }
                let Some(known) = project(tx, tenant, id)? else { return Ok(Err(Refusal::not_found("project", id.clone()))) };
                (Project { name: name.clone().unwrap_or(known.name.clone()), ..known }, false)
            }
        };
        if is_new && tx.page::<Project>(tenant, &Key::new(), None, PROJECTS_MAX)?.items.len() >= PROJECTS_MAX {
            return Ok(Err(Refusal::invalid("name", format!("can't be one more: a tenant makes at most {PROJECTS_MAX} projects"))));
        }
        for name in self.add_members {
            let known: Option<Passport> = tx.get(tenant, &Key::new().text(&name))?;
            if known.is_none() {
                return Ok(Err(Refusal::not_found("passport", name)));
            }
            changed.members.insert(name);
        }
        for name in &self.remove_members {
            changed.members.remove(name);
        }
        if changed.members.len() > PROJECT_MEMBERS_MAX {
            let (size, limit) = (changed.members.len() as u64, PROJECT_MEMBERS_MAX as u64);
            return Ok(Err(Refusal::TooLong { field: "members".into(), size, limit, unit: "entries".into() }));
        }
        if let Some(name) = self.default_passport_id {
            changed.default_passport_id = Some(name).filter(|name| !name.is_empty());
        }
        if let Some(name) = changed.default_passport_id.as_ref().filter(|name| !changed.members.contains(*name)) {
            return Ok(Err(Refusal::invalid("default_passport_id", format!("must be a member, which `{name}` is not"))));
        }
        tx.put(&changed);
        let kind = if is_new { "project.created" } else { "project.changed" };
        event::emit(tx, at, kind, &changed.id, json!({ "name": changed.name, "by": at.caller.passport }))?;
        Ok(Ok(changed))
    }
}

// ------------------------------------------------------------------ looking

/// The projects of the caller's tenant: the first one, then the others by id.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ListProjects {
    #[serde(default)]
    pub limit: Option<u64>,
    #[serde(default)]
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Projects {
    pub projects: Vec<Project>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

impl ListProjects {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Projects> {
        let tenant = &at.caller.tenant;
        let cursors = Cursors::of("projects", &at.caller, &());
        let limit = self.limit.unwrap_or(crate::limit::LIST_DEFAULT as u64);
        let (limit, from) = match query::rows(limit).and_then(|limit| Ok((limit, cursors.open_from(self.cursor.as_deref())?))) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut projects = Vec::new();
        if from.is_none() {
            projects.push(Project::default_of(tenant));
        }
        let read = |bytes: &[u8]| {
            let project: Project = codec::decode(bytes).map_err(|error| StorageError::new("project", error))?;
            // Members are told of one project at a time.
            let project = Project { members: BTreeSet::new(), ..project };
            let bytes = serde_json::to_string(&project).map_or(0, |json| json.len()) + 80;
            Ok(Some((project, bytes)))
        };
        let budget = REPLY_BYTES_DEFAULT - REPLY_WRAPPER_BYTES * 2;
        let found = page(view, Table::Records, &kind_prefix(tenant, Project::KIND), from.as_deref(), limit, budget, read)?;
        projects.extend(found.items);
        Ok(Ok(Projects { projects, next_cursor: found.next.map(|next| cursors.seal(&next)) }))
    }
}

/// One project with its members, by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetProject {
    pub project_id: String,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    pub passport: String,
    /// `operator` or `member`.
    pub role: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProjectContext {
    pub project: Project,
    pub members: Vec<Member>,
    pub tenant: String,
    pub next_cursor: Option<String>,
}

impl GetProject {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<ProjectContext> {
        let tenant = &at.caller.tenant;
        if let Some(refusal) = check_project(view, tenant, &self.project_id)? {
            return Ok(Err(refusal));
        }
        let Some(project) = project(view, tenant, &self.project_id)? else {
            return Ok(Err(Refusal::not_found("project", self.project_id)));
        };
        let cursors = Cursors::of("members", &at.caller, &self.project_id);
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let is_default = project.id == DEFAULT_PROJECT;
        let member = |bytes: &[u8]| {
            let passport: Passport = codec::decode(bytes).map_err(|error| StorageError::new("passport", error))?;
            // A revoked passport is no member any more.
            let is_in = passport.revoked_at.is_none() && (is_default || project.members.contains(&passport.name));
            let role = if passport.tier == Tier::Operator { "operator" } else { "member" };
            let member = Member { passport: passport.name, role: role.into() };
            let bytes = serde_json::to_string(&member).map_or(0, |json| json.len()) + 8;
            Ok(is_in.then_some((member, bytes)))
        };
        let budget = REPLY_BYTES_DEFAULT - REPLY_WRAPPER_BYTES * 6;
        // A page can be short, or even empty, where few of a tenant are members; the cursor leads on.
        let found = page(view, Table::Records, &kind_prefix(tenant, Passport::KIND), from.as_deref(), limit, budget, member)?;
        Ok(Ok(ProjectContext {
            project: Project { members: BTreeSet::new(), ..project.clone() },
            members: found.items,
            tenant: tenant.clone(),
            next_cursor: found.next.map(|next| cursors.seal(&next)),
        }))
    }
}
