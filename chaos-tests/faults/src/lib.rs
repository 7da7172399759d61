//! Faults of disks and clocks for a process that knows nothing of them: what the two sides share.
//!
//! The process under test is the one that ships. `quorate-chaos-preload`, a library that the dynamic linker loads in front of the C
//! library, stands between it and its disk:
//! * **slow and hanging syncs**, **failing syncs** and **no space**, switched on and off from outside through [`Control`], a page of
//!   memory that both sides share;
//! * a **wall clock** that is off by so many milliseconds;
//! * a **ledger**: every time a file was synced, its length is written down. Whoever kills the process can then cut each file back to
//!   what was synced ([`power_loss`]), which is what a power failure may leave; kill -9 alone keeps the page cache.
//!
//! What a power failure does is simplified: files only grow (RocksDB's do, and a node's), so a file is as long as it was at its last
//! sync, or any longer up to what was written. Names of files are on the disk at once: a directory that was not synced loses nothing.
//!
//! Only files below the folder in [`DATA`] are concerned; sockets, logs and everything else pass.

mod control;
mod ledger;

pub use control::{Control, Counter, PAGE_BYTES, Switch};
pub use ledger::{Lost, RECORD_BYTES, power_loss, record};

/// Names the folder with the control page and the ledger. Not set, the library does nothing.
pub const FAULTS: &str = "QUORATE_CHAOS_FAULTS";
/// Names the folder whose files are concerned.
pub const DATA: &str = "QUORATE_CHAOS_DATA";

pub const CONTROL_FILE: &str = "control";
pub const LEDGER_FILE: &str = "ledger";
