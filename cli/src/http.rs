//! HTTP to a gateway.

use std::path::Path;

use quorate_link::trusting;

use crate::exit::Failure;

/// A client for a base URL. For `https` it trusts the authorities of `ca`, or those of the system.
pub fn client(url: &str, ca: Option<&Path>) -> Result<reqwest::Client, Failure> {
    let builder = reqwest::Client::builder();
    let builder = match ca {
        None if url.starts_with("https://") => builder,
        // For plain HTTP nobody is trusted, and the system's authorities, which may not be there, are not read.
        ca => builder.tls_backend_preconfigured(trusting(ca).map_err(|error| Failure::usage(error.to_string()))?),
    };
    builder.build().map_err(|error| Failure::failed(format!("cannot make an HTTP client: {error}")))
}
