//! HTTP to a gateway.

use std::path::Path;

use quorate_link::trusting;

use crate::exit::Failure;

/// A client for a base URL. For `https` it trusts the authorities of `ca`, or those of the system.
pub fn client(url: &str, ca: Option<&Path>) -> Result<reqwest::Client, Failure> {
    built(builder(is_https(url), ca)?)
}

pub fn built(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, Failure> {
    builder.build().map_err(|error| Failure::failed(format!("cannot make an HTTP client: {error}")))
}

pub fn is_https(url: &str) -> bool {
    url.trim().starts_with("https://")
}

/// The same, for who has more to set; `https` is whether any of its URLs is of that kind.
pub fn builder(https: bool, ca: Option<&Path>) -> Result<reqwest::ClientBuilder, Failure> {
    let builder = reqwest::Client::builder();
    Ok(match ca {
        None if https => builder,
        // For plain HTTP nobody is trusted, and the system's authorities, which may not be there, are not read.
        ca => builder.tls_backend_preconfigured(trusting(ca).map_err(|error| Failure::usage(error.to_string()))?),
    })
}
