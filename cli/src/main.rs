//! `quorate`, the one executable: the whole product on one machine (`dev`), its two processes (`node`, `gateway`), and what
//! operators and scripts say to them.
//!
//! Each verb is a module with its flags on top. A verb ends with one of the codes in [`exit`], and with `--json` its output
//! is one JSON object; diagnostics go to standard error.

/// In place of the macros of `std`, which panic when whoever reads has seen enough and went away, as `head` does.
macro_rules! print {
    ($($text:tt)*) => {{
        $crate::output::text(&format!($($text)*));
    }};
}
macro_rules! println {
    ($($text:tt)*) => {{
        $crate::output::line(&format!($($text)*));
    }};
}

mod admin;
mod backup;
mod cert;
mod config;
mod connect;
mod demo;
mod deployment;
mod dev;
mod doctor;
mod door;
mod exit;
mod export;
mod force;
mod founding;
mod guard;
mod hook;
mod http;
mod import;
mod ingest;
mod key;
mod man;
mod mcp;
mod membership;
mod output;
mod purge;
mod quota;
mod restore;
mod run;
mod scan;
mod scrub;
mod shell;
mod sse;
mod status;
mod token;
mod tool;
mod transfer;
mod upgrade;
mod verify;

use clap::{CommandFactory, Parser, Subcommand};

/// Memory and coordination for teams of AI agents: facts, leases, approvals, receipts and sessions, replicated by Raft.
///
/// Start with `quorate dev`: three nodes and a gateway on this machine, and the lines to paste into an MCP client. Every
/// other verb finds that deployment by the same `--data`, or a real one by `--nodes`.
#[derive(Parser)]
#[command(name = "quorate", version, propagate_version = true, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const AFTER_HELP: &str = "\
Examples:
  quorate dev                                     everything on this machine
  quorate status                                  who leads, and how far each node has applied
  quorate fact set svc:api owner platform --as agent-a
  quorate lease take file://src/lib.rs --as agent-a
  quorate work list --watch --as agent-a          again at each change
  quorate inbox --as operator                     what waits for you
  quorate tool call list_projects --as agent-a    any tool there is
  quorate replace 3                               a new member for a lost disk; run it again if it was interrupted
  quorate backup monday.tar                       everything in one file, while all work
  quorate doctor                                  what is wrong, and what to do about it
  quorate token create --passport ci --tenant default
  quorate cert ca --cluster acme                  then cert node, gateway, operator; docs/security.md has all steps
  quorate connect claude-code --write             its configuration, with the edit guard
  quorate guard install                           the same guard before commits and pushes

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 unreachable or no leader, 70 a node's engine or a gateway
stopped, 78 a data directory, an address or the configuration was refused. A hook ends with 2 to say no.";

#[derive(Subcommand)]
enum Verb {
    /// Run three nodes and a gateway on this machine, supervised, with ready tokens
    Dev(dev::Dev),
    /// Live a scripted day of 30 agents and 3 people, on a cluster that is started, hurt and stopped
    Demo(demo::Demo),
    /// Run one node: a replica of the log and the state machine
    Node(run::Node),
    /// Run one gateway: MCP and HTTP in front of the nodes
    Gateway(run::Gateway),
    /// Show the leader, the term, and how far each node has applied
    Status(status::Status),
    /// Hand leadership to another voter
    Transfer(transfer::Transfer),
    /// Form a new cluster out of fresh nodes, once
    Init(transfer::Init),
    /// Add the fresh node that runs at an address, as a learner
    Join(membership::Join),
    /// Make a learner that has caught up a voter
    Promote(membership::Promote),
    /// Take a member out of the cluster, for good
    Remove(membership::Remove),
    /// Give a node's place to a new one, which `quorate dev` starts by itself
    Replace(membership::Replace),
    /// Make and renew the certificates of a cluster, for TLS
    #[command(subcommand)]
    Cert(cert::Cert),
    /// Write the state at one revision into one file, or check such a file
    Backup(backup::Backup),
    /// Make a deployment's folder out of a backup
    Restore(restore::Restore),
    /// Write all of one tenant into one file, or check such a file
    Export(export::Export),
    /// Take a tenant in that another cluster has exported
    Import(import::Import),
    /// Compare the whole state of all nodes, and name one that differs
    Scrub(scrub::Scrub),
    /// Say what is wrong with the cluster and what to do about it
    Doctor(doctor::Doctor),
    /// Begin a new cluster from the best survivor, when a majority is gone for good
    ForceNewCluster(force::ForceNewCluster),
    /// Go to a new version: check, restart one node after the other, finalise
    #[command(subcommand)]
    Upgrade(upgrade::Upgrade),
    /// Create, list and revoke bearer tokens
    #[command(subcommand)]
    Token(token::Token),
    /// Say how much a tenant may store, and see what is used
    #[command(subcommand)]
    Quota(quota::Quota),
    /// List the public keys of receipts, add one, rotate them, and enroll the nodes' own
    #[command(subcommand)]
    Key(key::Key),
    /// See and check receipts, and save them with their proofs
    #[command(subcommand)]
    Receipt(shell::receipt::Receipt),
    /// Check a saved receipt, proof or bundle, with no server
    #[command(visible_aliases = ["audit-verify", "output-verify"])]
    Verify(verify::Verify),
    /// Make the text of files found by `query`
    Ingest(ingest::Ingest),
    /// Call any tool from the shell
    #[command(subcommand)]
    Tool(tool::Tool),
    /// Scan a repository, and tell the cluster which endpoint calls what
    Scan(scan::Scan),
    /// See what waits for a decision, what became of it, and decide
    #[command(subcommand)]
    Approve(shell::approve::Approve),
    /// See what waits for you, and decide
    Inbox(shell::inbox::Inbox),
    /// See and store what the team knows, and forget it
    #[command(subcommand)]
    Fact(shell::fact::Fact),
    /// See who holds what, take it, and give it back
    #[command(subcommand)]
    Lease(shell::lease::Lease),
    /// See the team's work, add to it, and move it
    #[command(subcommand)]
    Work(shell::work::Work),
    /// See your saved sessions, and who is at work now
    #[command(subcommand)]
    Session(shell::session::Session),
    /// Search all that the team knows, in your own words
    Search(shell::Reading<shell::search::Find>),
    /// Bridge MCP on standard input and output to a gateway
    Mcp(mcp::Mcp),
    /// Connect an agent's client: print or write its configuration, with the edit guard
    Connect(connect::Connect),
    /// Write the manual as man pages, one a verb
    Man(man::Man),
    /// Print a script that completes verbs and flags in a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Put the edit guard into git's hooks, or check a range of commits
    #[command(subcommand)]
    Guard(guard::Guard),
    /// Guard edits: what hosts of agents, and git, run around a change of a file
    #[command(subcommand)]
    Hook(hook::Hook),
}

fn main() -> std::process::ExitCode {
    let start = std::time::Instant::now();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error, std::env::args_os()),
    };
    quorate_link::install_crypto();
    if let Verb::Hook(verb) = cli.verb {
        // A host waits for it before every edit, so it does without what the others start with.
        return verb.run(start);
    }
    if let Verb::Guard(verb) = cli.verb {
        // It asks from one thread, like a hook.
        let json = verb.json();
        return verb.run().map_or_else(|failure| exit::report(failure, json), |()| std::process::ExitCode::SUCCESS);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::report(exit::Failure::failed(format!("cannot start the runtime: {error}")), false),
    };
    let (json, done) = runtime.block_on(async {
        match cli.verb {
            Verb::Dev(verb) => (verb.target.json, verb.run().await),
            Verb::Demo(verb) => (verb.json, verb.run().await),
            Verb::Node(verb) => (false, verb.run().await),
            Verb::Gateway(verb) => (false, verb.run().await),
            Verb::Status(verb) => (verb.target.json, verb.run().await),
            Verb::Transfer(verb) => (verb.target.json, verb.run().await),
            Verb::Init(verb) => (verb.target.json, verb.run().await),
            Verb::Join(verb) => (verb.target.json, verb.run().await),
            Verb::Promote(verb) => (verb.target.json, verb.run().await),
            Verb::Remove(verb) => (verb.target.json, verb.run().await),
            Verb::Replace(verb) => (verb.target.json, verb.run().await),
            Verb::Cert(verb) => (verb.json(), verb.run()),
            Verb::Backup(verb) => (verb.target.json, verb.run().await),
            Verb::Restore(verb) => (verb.target.json, verb.run().await),
            Verb::Export(verb) => (verb.target.json, verb.run().await),
            Verb::Import(verb) => (verb.target.json, verb.run().await),
            Verb::Scrub(verb) => (verb.target.json, verb.run().await),
            Verb::Doctor(verb) => (verb.target.json, verb.run().await),
            Verb::ForceNewCluster(verb) => (verb.target.json, verb.run().await),
            Verb::Upgrade(verb) => (verb.json(), verb.run().await),
            Verb::Token(verb) => (verb.json(), verb.run().await),
            Verb::Quota(verb) => (verb.json(), verb.run().await),
            Verb::Key(verb) => (verb.json(), verb.run().await),
            Verb::Receipt(verb) => (false, verb.run().await),
            Verb::Verify(verb) => (verb.json, verb.run()),
            Verb::Ingest(verb) => (verb.json(), verb.run().await),
            Verb::Tool(verb) => (verb.json(), verb.run().await),
            Verb::Scan(verb) => (verb.json(), verb.run().await),
            // They say themselves whether their failures are wanted as JSON.
            Verb::Approve(verb) => (false, verb.run().await),
            Verb::Inbox(verb) => (false, verb.run().await),
            Verb::Fact(verb) => (false, verb.run().await),
            Verb::Lease(verb) => (false, verb.run().await),
            Verb::Work(verb) => (false, verb.run().await),
            Verb::Session(verb) => (false, verb.run().await),
            Verb::Search(verb) => (false, verb.run().await),
            Verb::Man(verb) => (false, verb.run(Cli::command())),
            Verb::Mcp(verb) => (false, verb.run().await),
            Verb::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "quorate", &mut script);
                print!("{}", String::from_utf8_lossy(&script));
                (false, Ok(()))
            }
            Verb::Connect(verb) => (verb.json, verb.run()),
            Verb::Hook(_) | Verb::Guard(_) => unreachable!("they have run and returned above"),
        }
    });
    // A task that hangs must not keep a stopped process alive.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(failure) => exit::report(failure, json),
    }
}
