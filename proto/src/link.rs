//! How a process opens its connections.

use std::sync::Arc;

use tonic::transport::{Channel, Endpoint};

/// Opens the channel of an endpoint, not before it is used. A simulation puts its own network here.
pub type Connect = Arc<dyn Fn(Endpoint) -> Channel + Send + Sync>;

/// Over TCP.
pub fn tcp() -> Connect {
    Arc::new(|endpoint| endpoint.connect_lazy())
}
