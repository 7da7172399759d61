//! The edit guard: what an agent's host is told before and after an edit.
//!
//! Hosts of agents (Claude Code, Codex, Gemini CLI ...) run a hook around every tool call, with JSON of their own on it. Reading
//! order: [`host`] (what they send, and how each wants its answer), [`touch`] (which files a call changes), [`patch`] and
//! [`shell`] (the same for the text of a patch and of a shell command), [`names`] (what a file is called in the cluster),
//! [`guard`] (the decision, and the leases taken for it), [`web`] (its addresses).
//!
//! All but the last two is pure. Two front ends share it: `quorate hook`, which runs beside the files and so can follow links and
//! find the repository of a file, and `POST /v1/hook/claude-code`, for a host that calls HTTP, which has only the names. Both
//! meet in [`guard::Guard::decide`], so that they can't decide differently. What happens when no cluster can be asked is the
//! front end's policy and not known here.

pub mod guard;
pub mod host;
pub mod names;
pub mod patch;
pub mod shell;
pub mod touch;
pub mod web;

pub use guard::{Decision, Guard, Verdict};
pub use host::{Event, Host, Moment};
pub use names::Names;
pub use touch::Touch;
