//! `quorate hook`: what the hosts of agents, and git, run around an edit.
//!
//! A hook is short: it reads what the host sends, works out which files are meant ([`place`]), asks a gateway's `/v1/guard`
//! ([`ask`]), and answers in the host's form. When a session starts it hashes what configures the agent ([`config`]) and has that
//! looked up too. It ends within 300 ms before an edit, whatever happens; when nobody could be asked
//! in that time, the policy in [`settings`] decides, and what was let through is noted in the [`journal`].
//!
//! Exit code 2 is a no to the host here, and nothing else: a hook that fails for another reason must not look like one.

mod ask;
mod commit;
mod config;
mod journal;
pub mod place;
mod settings;

pub use commit::range;
pub use settings::{base, token_in_file};

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use quorate_gateway::hook::{Decision, Event, Guard, Host, Moment, Names, Verdict};
use serde_json::Value;

use crate::exit::Failure;
use settings::Settings;

/// From the start of the process to its answer, before an edit and when a session starts; the rest of 300 ms is for starting it.
const IN_A_HURRY: Duration = Duration::from_millis(230);
/// At the other moments nobody waits so impatiently.
const AT_LEISURE: Duration = Duration::from_millis(2_500);
/// What a host may send. A file's whole new content is in it.
const INPUT_BYTES_MAX: u64 = 64 << 20;

#[derive(Subcommand)]
pub enum Hook {
    /// Before a tool call: lease what it changes, or deny it
    PreToolUse(Run),
    /// After a tool call: renew the leases of what it changed
    PostToolUse(Run),
    /// When a session starts: say who holds what, and which configuration nobody has audited
    SessionStart(Run),
    /// When a session ends: give back what was leased for it
    SessionEnd(Run),
    /// Git's hook: refuse a commit that changes what another holds
    PreCommit,
    /// Git's hook: the same for a push
    PrePush(commit::PrePush),
    /// Send what was noted while no cluster could be asked
    SendJournal,
}

/// A hook of a host: JSON on standard input, the answer in the host's form, exit code 2 for a no.
#[derive(Args)]
pub struct Run {
    /// claude-code, codex, gemini, cursor, opencode, goose or vscode; by default, the one whose input looks like this
    #[arg(long, value_parser = parse_host)]
    host: Option<Host>,
}

fn parse_host(word: &str) -> Result<Host, String> {
    let words: Vec<&str> = Host::ALL.into_iter().map(Host::word).collect();
    Host::parse(word).ok_or_else(|| format!("is none of {}", words.join(", ")))
}

impl Hook {
    pub fn run(self, start: Instant) -> ExitCode {
        match self {
            Hook::PreToolUse(run) => run.run(Moment::BeforeEdit, start),
            Hook::PostToolUse(run) => run.run(Moment::AfterEdit, start),
            Hook::SessionStart(run) => run.run(Moment::SessionStart, start),
            Hook::SessionEnd(run) => run.run(Moment::SessionEnd, start),
            Hook::PreCommit => ended(commit::pre_commit()),
            Hook::PrePush(push) => ended(push.run()),
            Hook::SendJournal => ended(journal::send(&Settings::of(&working_directory()))),
        }
    }
}

fn ended(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => crate::exit::report(failure, false),
    }
}

fn working_directory() -> PathBuf {
    std::env::current_dir().unwrap_or_else(|_| "/".into())
}

impl Run {
    fn run(self, moment: Moment, start: Instant) -> ExitCode {
        let mut text = Vec::new();
        let until_now = start.elapsed();
        let read = std::io::stdin().lock().take(INPUT_BYTES_MAX).read_to_end(&mut text);
        let input: Result<Value, String> = match read {
            Ok(size) if size as u64 == INPUT_BYTES_MAX => Err(format!("more than {INPUT_BYTES_MAX} bytes were sent")),
            Ok(_) => serde_json::from_slice(&text).map_err(|error| format!("what was sent is no JSON: {error}")),
            Err(error) => Err(format!("the input can't be read: {error}")),
        };
        // The time that the host took to send is not the hook's.
        let start = Instant::now().checked_sub(until_now).unwrap_or(start);
        let host = self.host.unwrap_or_else(|| input.as_ref().map_or(Host::ClaudeCode, Host::of));
        let verdict = match input {
            Ok(input) => look(host, moment, &input, start),
            Err(why) => {
                let settings = Settings::of(&working_directory());
                let unread = Asked { host, moment, event: None, placed: &Placed::default(), settings: &settings };
                unread.by_policy(&format!("the edit guard can't tell what is edited: {why}"))
            }
        };
        let answer = host.answer(moment, &verdict);
        // A host that has closed an output still reads the exit code.
        if !answer.stdout.is_empty() {
            let _ = writeln!(std::io::stdout(), "{}", answer.stdout);
        }
        let _ = write!(std::io::stderr(), "{}", answer.stderr);
        ExitCode::from(answer.exit_code)
    }
}

/// What is touched, by name.
#[derive(Default)]
pub struct Placed {
    pub names: Names,
    /// Paths that can't be the name of a resource.
    pub unnameable: Vec<String>,
    /// A path that the settings close.
    pub closed: Option<String>,
}

fn look(host: Host, moment: Moment, input: &Value, start: Instant) -> Verdict {
    let event = Event::read(input, &|name| std::env::var(name).ok());
    let cwd = match event.cwd.as_str() {
        "" => working_directory(),
        cwd => working_directory().join(cwd),
    };
    let is_edit = matches!(moment, Moment::BeforeEdit | Moment::AfterEdit);
    if is_edit && event.touched.is_empty() {
        return Verdict::allow();
    }
    let touched = if is_edit { event.touched.as_slice() } else { &[] };
    let files = place::files(touched, &cwd);
    let settings = Settings::of(files.first().and_then(|file| file.root()).unwrap_or(&cwd));
    let placed = place::named(&files, &settings);
    if is_edit && placed.names.is_empty() && placed.unnameable.is_empty() {
        return Verdict::allow();
    }
    let asked = Asked { host, moment, event: Some(&event), placed: &placed, settings: &settings };
    let within = if matches!(moment, Moment::BeforeEdit | Moment::SessionStart) { IN_A_HURRY } else { AT_LEISURE };
    let hashed = match moment {
        // The other half of the time is for asking.
        Moment::SessionStart => config::hashed(&cwd, home().as_deref(), start + within / 2),
        _ => config::Hashed::default(),
    };
    let guard = Guard {
        moment,
        host: host.word().into(),
        session: event.session.clone(),
        take: placed.names.take.clone(),
        check: placed.names.check.clone(),
        passport: None,
        within_ms: 0,
        config: hashed.files,
    };
    let verdict = match ask::guard(&settings, guard, start + within) {
        Ok(verdict) => {
            journal::send_later(&settings);
            match placed.unnameable.first() {
                // What nobody can lease, nobody can know to be free either.
                Some(path) if verdict.decision != Decision::Deny => asked.by_policy(&format!("`{path}` can't be the name of a resource")),
                _ => verdict,
            }
        }
        Err(why) if is_edit => asked.by_policy(&why),
        // Nothing depends on these: a lease that is not given back ends by itself.
        Err(why) => Verdict::warn(format!("Quorate could not be asked: {why}.")),
    };
    match hashed.problems.is_empty() {
        true => verdict,
        false => Verdict { text: format!("{} Of your configuration, {}.", verdict.text, hashed.problems.join(", ")), ..verdict },
    }
}

/// What there was to decide, for the case that nobody could.
struct Asked<'a> {
    host: Host,
    moment: Moment,
    event: Option<&'a Event>,
    placed: &'a Placed,
    settings: &'a Settings,
}

impl Asked<'_> {
    fn by_policy(&self, why: &str) -> Verdict {
        let closed = self.settings.closed || self.placed.closed.is_some();
        if self.moment == Moment::AfterEdit {
            return Verdict::warn(format!("{why}. The lease of what you changed was not renewed."));
        }
        if closed {
            let rule = match &self.placed.closed {
                Some(path) => format!("`{path}` is closed while that is so"),
                None => "the policy is closed".into(),
            };
            return Verdict::deny(format!("{why}. Nothing was changed: {rule}. Try again in a few seconds, or ask a person."));
        }
        let noted = match journal::note(self.settings, self.host, self.event, &self.placed.names, why) {
            Ok(path) => format!("noted in {}", path.display()),
            Err(error) => format!("and could not even be noted: {error}"),
        };
        Verdict::warn(format!("{why}. The edit goes on unguarded (policy open), {noted}."))
    }
}

/// The folder of a deployment's or a user's own state.
fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}

/// `folder` below the place that the XDG variable names, or below the home folder.
fn xdg(variable: &str, fallback: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    named.or_else(|| Some(home()?.join(fallback))).map(|base| base.join("quorate"))
}
