//! How old the running program is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;
use crate::update::{BINARY_COMMIT, Comparison, Distance, Source};

/// Show how far the running program is behind its source, as far as this gateway can tell. Nothing is fetched or changed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateStatus {}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Status {
    /// Whether an operator gave this gateway a clone of the source to compare with, `update_checkout`.
    enabled: bool,
    /// `not_configured`, `current`, `behind`, `ahead`, `diverged`, or `unknown` with an `error`.
    state: String,
    /// `binary`: the commit that the running program was built from, which decides. `checkout`: the clone's, where the build was
    /// not told its commit.
    basis: String,
    /// What it is compared with.
    tracking_ref: Nullable<String>,
    /// The commit of the basis.
    current_commit: Nullable<String>,
    binary_commit: Nullable<String>,
    /// The commit of `tracking_ref`.
    latest_commit: Nullable<String>,
    ahead_by: Nullable<u64>,
    behind_by: Nullable<u64>,
    /// Where the clone stands.
    checkout_commit: Nullable<String>,
    checkout_ahead_by: Nullable<u64>,
    checkout_behind_by: Nullable<u64>,
    checked_at: Nullable<String>,
    error: Nullable<String>,
    /// True when the clone was not brought up to date for a day, so that there may be more.
    comparison_stale: bool,
    upgrade_hint: Nullable<String>,
    /// The version of the running program.
    version: String,
    /// What to ask `get_bootstrap` for, with the topic `docs`.
    upgrade_playbook_query: String,
    /// The same for what to do before it.
    backup_playbook_query: String,
}

fn state(distance: Distance) -> &'static str {
    match distance {
        Distance { ahead: 0, behind: 0 } => "current",
        Distance { ahead: 0, .. } => "behind",
        Distance { behind: 0, .. } => "ahead",
        Distance { .. } => "diverged",
    }
}

fn status(source: Option<&Source>, compared: Option<Result<Comparison, String>>, binary: Option<&str>) -> Status {
    let (comparison, error) = match compared {
        None => (None, None),
        Some(Ok(comparison)) => (Some(comparison), None),
        Some(Err(error)) => (None, Some(error)),
    };
    let error = error.or_else(|| comparison.as_ref().and_then(|comparison| comparison.problem.clone()));
    let told = comparison.as_ref();
    let (basis, current) = match binary {
        Some(commit) => ("binary", Some(commit.to_string())),
        None => ("checkout", told.map(|told| told.checkout_commit.clone())),
    };
    let distance = told.and_then(|told| if binary.is_some() { told.binary } else { Some(told.checkout) });
    let upgrade_hint = match (source, distance) {
        (None, _) => Some("Give the gateway `update_checkout`, a clone of the source, to have it compared.".to_string()),
        (Some(source), Some(Distance { behind, .. })) if behind > 0 => Some(format!(
            "{behind} commits behind {}: back up first, then upgrade the nodes one by one, and the gateways last.",
            source.reference
        )),
        _ => None,
    };
    Status {
        enabled: source.is_some(),
        state: match (source, distance) {
            (None, _) => "not_configured",
            (Some(_), Some(distance)) => state(distance),
            (Some(_), None) => "unknown",
        }
        .into(),
        basis: basis.into(),
        tracking_ref: Nullable(source.map(|source| source.reference.clone())),
        current_commit: Nullable(current),
        binary_commit: Nullable(binary.map(Into::into)),
        latest_commit: Nullable(told.map(|told| told.latest.clone())),
        ahead_by: Nullable(distance.map(|distance| distance.ahead)),
        behind_by: Nullable(distance.map(|distance| distance.behind)),
        checkout_commit: Nullable(told.map(|told| told.checkout_commit.clone())),
        checkout_ahead_by: Nullable(told.map(|told| told.checkout.ahead)),
        checkout_behind_by: Nullable(told.map(|told| told.checkout.behind)),
        checked_at: Nullable(told.map(|told| told.checked_at.to_rfc3339())),
        error: Nullable(error),
        comparison_stale: told.is_some_and(|told| told.stale),
        upgrade_hint: Nullable(upgrade_hint),
        version: env!("CARGO_PKG_VERSION").into(),
        upgrade_playbook_query: "upgrade".into(),
        backup_playbook_query: "backup".into(),
    }
}

impl Tool for UpdateStatus {
    const NAME: &'static str = "update_status";
    const TITLE: &'static str = "Show whether an update is due";
    const SCOPE: &'static str = "crux-mcp.update_status";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::AUDIT;
    const IDEMPOTENT: bool = true;
    type Output = Status;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, _: &Cluster) -> Result<Reply<Status>, CallError> {
        let updates = &ctx.services.updates;
        Ok(Reply::local(status(updates.source.as_ref(), updates.compare().await, BINARY_COMMIT)))
    }
}

#[cfg(test)]
mod tests {
    use quorate_domain::UnixMs;

    use super::*;

    fn comparison() -> Comparison {
        Comparison {
            checked_at: UnixMs(1),
            latest: "c".into(),
            binary: Some(Distance { ahead: 0, behind: 0 }),
            checkout_commit: "b".into(),
            checkout: Distance { ahead: 1, behind: 4 },
            stale: false,
            problem: None,
        }
    }

    fn source() -> Source {
        Source { checkout: "/src".into(), reference: "origin/main".into() }
    }

    #[test]
    fn the_built_in_commit_decides_and_the_clone_is_the_fallback() {
        let binary = status(Some(&source()), Some(Ok(comparison())), Some("a"));
        assert_eq!((binary.basis.as_str(), binary.state.as_str(), binary.current_commit.0.as_deref()), ("binary", "current", Some("a")));
        let checkout = status(Some(&source()), Some(Ok(comparison())), None);
        assert_eq!((checkout.basis.as_str(), checkout.state.as_str(), checkout.behind_by.0), ("checkout", "diverged", Some(4)));
        assert!(checkout.upgrade_hint.0.unwrap().contains("4 commits behind origin/main"));
    }

    #[test]
    fn a_clone_that_has_fallen_behind_shows_in_its_own_fields() {
        let told = status(Some(&source()), Some(Ok(comparison())), Some("a"));
        assert_eq!((told.checkout_commit.0.as_deref(), told.checkout_ahead_by.0, told.checkout_behind_by.0), (Some("b"), Some(1), Some(4)));
    }

    #[test]
    fn what_can_not_be_told_is_unknown_with_the_reason_and_never_current() {
        let failed = status(Some(&source()), Some(Err("git can't be run".into())), Some("a"));
        assert_eq!((failed.state.as_str(), failed.error.0.as_deref()), ("unknown", Some("git can't be run")));
        let foreign = Comparison { binary: None, problem: Some("unknown commit".into()), ..comparison() };
        let foreign = status(Some(&source()), Some(Ok(foreign)), Some("a"));
        assert_eq!((foreign.state.as_str(), foreign.error.0.as_deref()), ("unknown", Some("unknown commit")));
        let off = status(None, None, Some("a"));
        assert_eq!((off.enabled, off.state.as_str(), off.behind_by.0), (false, "not_configured", None));
    }
}
