//! Work that blocks: disks, and computations that take long.

use std::io;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::spawn_blocking;

/// Runs `work` on a thread where it holds up no task. A runtime that has one thread on purpose, as a simulation's, gets it done in
/// place: a second thread would take away the one order of events that such a runtime is there for. Fails when `work` panics.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => Ok(work()),
        _ => spawn_blocking(work).await.map_err(io::Error::other),
    }
}
