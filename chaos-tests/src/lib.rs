//! Histories of what clients saw, and the invariants that every history has to keep whatever was killed meanwhile.
//!
//! A history is recorded at the clients: when each operation was sent, when it was answered, and with what. An operation without
//! an answer is *unknown*: it may have had its effect, at any moment from its sending on, or never. The checks here therefore
//! report only what no order of events explains.
//!
//! Reading order: [`history`] (recording), [`invariant`] (the checks, named as in the literature). Each check has a test that
//! plants the fault it is for. These two know nothing of the product beyond what a client sees. [`sim`] runs the product itself, in
//! one process on simulated time.
//!
//! What is not here yet: a linearizability checker over whole histories. The first workloads that kill real processes are
//! `tests/system` and `tests/clients`.

pub mod history;
pub mod invariant;
pub mod sim;
