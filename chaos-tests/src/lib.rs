//! Histories of what clients saw, and the invariants that every history has to keep whatever was killed meanwhile.
//!
//! A history is recorded at the clients: when each operation was sent, when it was answered, and with what. An operation without
//! an answer is *unknown*: it may have had its effect, at any moment from its sending on, or never. The checks here therefore
//! report only what no order of events explains.
//!
//! Reading order: [`history`] (recording), [`invariant`] and [`order`] (checks of whole histories, named as in the literature),
//! [`told`] (the same of what watchers were told), [`linear`] (the search for an order that explains every answer), [`model`] (what Quorate promises to be), [`verdict`] (all of
//! them asked at once), [`run`] (a cluster of real processes, hurt while clients work; `docs/chaos.md`), [`sim`] (the product itself
//! in one process, on simulated time), [`campaign`] (many of both, and one table), [`fuzz`] (answers to arguments that nobody should send). Each check has a test that plants the fault it is for; `tests/planted.rs` does so for the
//! whole verdict, `mutants.py` for the product. All but [`sim`] know nothing of the product beyond what a client sees.

pub mod campaign;
pub mod fuzz;
pub mod history;
pub mod invariant;
pub mod linear;
pub mod model;
pub mod order;
pub mod run;
pub mod sim;
pub mod told;
pub mod verdict;
