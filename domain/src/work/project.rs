//! Projects: what work belongs to.
//!
//! Each tenant has one project from the start, without a write. Its members are the tenant's passports.

use serde::{Deserialize, Serialize};

use crate::cursor::Cursors;
use crate::identity::{Passport, check_name};
use crate::limit::{REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES};
use crate::query;
use crate::record::{Record, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Tier, UnixMs};
use crate::tx::{Read, StorageError};
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
}

impl Project {
    fn default_of_tenant() -> Self {
        Self { id: DEFAULT_PROJECT.into(), name: "Default".into(), default_passport_id: None, created_at: UnixMs(0) }
    }
}

pub(crate) fn check_project(id: &str) -> Option<Refusal> {
    check_name("project_id", id).or_else(|| (id != DEFAULT_PROJECT).then(|| Refusal::not_found("project", id)))
}

/// The projects of the caller's tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListProjects {}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Projects {
    pub projects: Vec<Project>,
}

impl ListProjects {
    pub fn run(self, _: &impl Read, _: &ReadStamp) -> Applied<Projects> {
        Ok(Ok(Projects { projects: vec![Project::default_of_tenant()] }))
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
        if let Some(refusal) = check_project(&self.project_id) {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let cursors = Cursors::of("members", &at.caller, &self.project_id);
        let (limit, from) = match query::rows(self.limit).and_then(|limit| Ok((limit, cursors.open_from(self.cursor.as_deref())?))) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let member = |bytes: &[u8]| {
            let passport: Passport = codec::decode(bytes).map_err(|error| StorageError::new("passport", error))?;
            let role = if passport.tier == Tier::Operator { "operator" } else { "member" };
            let member = Member { passport: passport.name, role: role.into() };
            let bytes = serde_json::to_string(&member).map_or(0, |json| json.len()) + 8;
            // A revoked passport is no member any more.
            Ok(passport.revoked_at.is_none().then_some((member, bytes)))
        };
        let passports = kind_prefix(tenant, Passport::KIND);
        let budget = REPLY_BYTES_DEFAULT - REPLY_WRAPPER_BYTES * 6;
        let found = page(view, Table::Records, &passports, from.as_deref(), limit, budget, member)?;
        Ok(Ok(ProjectContext {
            project: Project::default_of_tenant(),
            members: found.items,
            tenant: tenant.clone(),
            next_cursor: found.next.map(|next| cursors.seal(&next)),
        }))
    }
}
