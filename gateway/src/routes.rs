//! Routes with their gates: each address is declared once, with what it asks of its callers, and both the router and what is
//! shown of it come from there.

use axum::Router;
use axum::routing::MethodRouter;
use serde_json::Value;

use crate::openapi::Operation;

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
    /// A sign-in at the console, with a token that has one of these scopes; without any, with any token.
    SignIn(&'static [&'static str]),
}

/// One address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub path: &'static str,
    pub access: Access,
    /// By method, as OpenAPI tells them. None: it is told elsewhere, as MCP and the console are.
    pub operations: Vec<(String, Value)>,
}

/// A router, and its addresses in the order in which they were added.
pub struct Routes<S> {
    pub router: Router<S>,
    pub table: Vec<Route>,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// Without an address yet.
    pub fn empty() -> Self {
        Self { router: Router::new(), table: Vec::new() }
    }

    /// Adds an address with its gate.
    pub fn route(mut self, path: &'static str, access: Access, served: MethodRouter<S>) -> Self {
        self.table.push(Route { path, access, operations: Vec::new() });
        Self { router: self.router.route(path, served), table: self.table }
    }

    /// Adds an address of the HTTP API with its gate and its operations.
    pub fn api<const N: usize>(self, path: &'static str, access: Access, operations: [Operation<S>; N]) -> Self {
        operations.into_iter().fold(self, |routes, operation| routes.operation(path, access, operation))
    }

    /// Adds one operation; the address may have others.
    pub fn operation(mut self, path: &'static str, access: Access, operation: Operation<S>) -> Self {
        let (served, method, document) = operation.split();
        match self.table.iter_mut().find(|route| route.path == path && route.access == access) {
            Some(route) => route.operations.push((method, document)),
            None => self.table.push(Route { path, access, operations: vec![(method, document)] }),
        }
        Self { router: self.router.route(path, served), table: self.table }
    }
}
