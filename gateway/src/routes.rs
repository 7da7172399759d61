//! Routes with their gates: each address is declared once, with what it asks of its callers, and both the router and what is
//! shown of it come from there.

use axum::Router;
use axum::routing::MethodRouter;

/// What an address asks of its callers. Enforced where it is served; the tests hold the two together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anybody.
    Open,
    /// A valid token.
    Token,
    /// A token with one of these scopes.
    AnyScope(&'static [&'static str]),
    /// A token with the scope of the tool that is called.
    ScopeOfTool,
}

/// One address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub path: &'static str,
    pub access: Access,
}

/// A router, and its addresses in the order in which they were added.
pub struct Routes<S> {
    pub router: Router<S>,
    pub table: Vec<Route>,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    pub fn new() -> Self {
        Self { router: Router::new(), table: Vec::new() }
    }

    /// Adds an address with its gate.
    pub fn route(mut self, path: &'static str, access: Access, served: MethodRouter<S>) -> Self {
        self.table.push(Route { path, access });
        Self { router: self.router.route(path, served), table: self.table }
    }
}
