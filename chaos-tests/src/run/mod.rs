//! `quorate-chaos run`: real processes, hurt on purpose, and what their clients saw.
//!
//! [`cluster`] starts nodes and gateways as processes of their own, [`proxy`] stands in every link between them, [`nemesis`] hurts
//! both, [`workload`] is what the clients do through [`client`], [`watch`] sees who leads, [`outcome`] puts the verdict together and
//! [`report`] shows it. The schedule of faults and of the clients' choices comes from the seed; what the machine makes of it does
//! not, so that a seed repeats the attempt, not the run.

pub mod client;
pub mod cluster;
pub mod export;
pub mod follow;
pub mod heads;
pub mod namespaces;
pub mod nemesis;
pub mod outcome;
pub mod proxy;
pub mod report;
pub mod watch;
pub mod workload;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use client::{Caller, Doors};
use cluster::{Cluster, Verbs};
use follow::Watched;
use heads::Heads;
use namespaces::Namespaces;
use nemesis::{Fault, Nemesis};
use outcome::{Run, Summary, Verdict};
use proxy::{Fabric, Party};
use workload::{Cast, Client, Workload};

use crate::history::{Event, Outcome, Recorder};
use crate::told::{self, Told};
use crate::verdict::{self, Finding, Property};

/// Start a cluster of real processes, hurt it while clients work, and hold what they saw to what is promised
///
/// Exit codes: 0 every promise held and every chosen fault bit; 1 a promise was broken; 2 inconclusive: something that was to be
/// tried was not.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Faults as docs/chaos.md names them, separated by commas, or `all`; `none` for the workload alone
    #[arg(long, value_delimiter = ',', default_value = "all", value_parser = parse_nemeses)]
    nemesis: Vec<Chosen>,
    /// How long faults are made
    #[arg(long, default_value_t = 120, overrides_with = "seconds")]
    seconds: u64,
    /// Repeats the schedule of an earlier run
    #[arg(long)]
    seed: Option<u64>,
    /// Clients at work at once [default: 8; of a day 50]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=256))]
    clients: Option<u64>,
    /// What the clients do
    #[arg(long, value_enum, default_value_t = Workload::Mixed)]
    workload: Workload,
    /// Nodes of the cluster
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(3..=7))]
    nodes: u64,
    /// Gateways in front of it
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=5))]
    gateways: u64,
    /// A network namespace for each node: links are cut by dropping packets. Takes root and `ip`
    #[arg(long, conflicts_with = "target")]
    netns: bool,
    /// Two faults at a time
    #[arg(long)]
    overlap: bool,
    /// The executable under test [default: `quorate` beside this one]
    #[arg(long, env = "QUORATE")]
    quorate: Option<PathBuf>,
    /// Run against a gateway of a cluster of your own, with faults that do it no harm; may be repeated
    #[arg(long, requires = "token")]
    target: Vec<String>,
    /// gRPC addresses of its nodes: leadership is handed around, with the secret and certificates that the environment has for the
    /// operator's verbs (QUORATE_CLUSTER_SECRET, QUORATE_TLS_*)
    #[arg(long, requires = "target", value_delimiter = ',')]
    target_nodes: Vec<String>,
    /// Bearer token for it; with several, each client takes one, and leases are contended for
    #[arg(long, env = "QUORATE_TOKEN", value_delimiter = ',', hide_env_values = true)]
    token: Vec<String>,
    /// Bearer tokens of operators for it, who decide approvals
    #[arg(long, value_delimiter = ',')]
    operator_token: Vec<String>,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
    /// Write a report to look at
    #[arg(long)]
    report: Option<PathBuf>,
    /// Write what every client saw, as JSON lines (docs/chaos.md)
    #[arg(long)]
    history: Option<PathBuf>,
    /// Keep the cluster's data and logs in this empty or new folder
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// One word of `--nemesis`.
#[derive(Clone, Debug)]
enum Chosen {
    All,
    None,
    One(Nemesis),
}

fn parse_nemeses(word: &str) -> Result<Chosen, String> {
    match word {
        "all" => Ok(Chosen::All),
        "none" => Ok(Chosen::None),
        word => word.parse().map(Chosen::One),
    }
}

/// Everything that the parts of a run share.
pub struct Stage {
    pub recorder: Recorder,
    doors: Doors,
    cast: Cast,
    /// The first part of every name in this run.
    prefix: String,
    cluster: Option<tokio::sync::Mutex<Cluster>>,
    /// On somebody else's cluster: the operator's verbs, if we may use them.
    verbs: Option<Verbs>,
    /// What heads of the log have to be signed with, in hex, where that is known.
    receipt_key: Option<String>,
    fabric: Arc<Fabric>,
    namespaces: Option<Arc<Namespaces>>,
    /// Where nodes tell their health.
    health: Mutex<Vec<(u64, String)>>,
    sights: watch::Sights,
    faults: Mutex<Vec<Fault>>,
    /// The fault under way.
    current: Mutex<Option<&'static str>>,
    surprises: Mutex<Vec<String>>,
}

/// After the last fault everything has to serve again within this time.
const RECOVERS_WITHIN: Duration = Duration::from_secs(60);
/// Clients that do not end by then hang: a tenure is some calls long.
const CLIENTS_END_WITHIN: Duration = Duration::from_secs(120);
/// Receipts that are checked at the end.
const RECEIPTS_MAX: usize = 40;
/// Watchers of the events, and as many witnesses of the log of receipts.
const WATCHERS: usize = 2;

impl Stage {
    /// Notes something that should not have happened.
    fn tell(&self, surprise: String) {
        self.surprises.lock().unwrap_or_else(PoisonError::into_inner).push(surprise);
    }

    fn note_addresses(&self, cluster: &Cluster) {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = cluster.health_addresses();
    }
}

impl Options {
    /// Runs to the end and tells the verdict.
    pub async fn run(self) -> ExitCode {
        if self.netns && !namespaces::is_hub() {
            return self.run_in_hub().await;
        }
        match self.perform().await {
            Ok(verdict) => ExitCode::from(verdict.exit_code()),
            Err(error) => {
                eprintln!("quorate-chaos: {error:#}");
                // Nothing is proven by a run that did not take place.
                ExitCode::from(Verdict::Inconclusive.exit_code())
            }
        }
    }

    async fn run_in_hub(&self) -> ExitCode {
        let ended = async {
            if let Some(why) = namespaces::unavailable() {
                anyhow::bail!(why);
            }
            Ok(namespaces::in_hub()?.status().await?)
        };
        match ended.await {
            Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2)),
            Err(error) => {
                eprintln!("quorate-chaos: {error:#}");
                ExitCode::from(Verdict::Inconclusive.exit_code())
            }
        }
    }

    /// The chosen faults. `all` is what this cluster has the nodes for, and on somebody else's what does no harm; to name another one is
    /// a mistake.
    fn nemeses(&self) -> anyhow::Result<Vec<Nemesis>> {
        let is_guest = !self.target.is_empty();
        let problem = |nemesis: Nemesis| {
            if is_guest && !Nemesis::SAFE.contains(&nemesis) {
                Some(format!("`{nemesis}` would do harm to the target"))
            } else if is_guest && nemesis == Nemesis::Transfer && self.target_nodes.is_empty() {
                Some("`transfer` takes --target-nodes".into())
            } else if is_guest && nemesis == Nemesis::LostReplies && self.target.len() < 2 {
                Some("`lost-replies` takes two gateways, each a --target".into())
            } else if !is_guest && self.nodes < nemesis.nodes_min() {
                Some(format!("`{nemesis}` takes --nodes {}", nemesis.nodes_min()))
            } else if self.netns && Nemesis::RELAYED.contains(&nemesis) {
                Some(format!("`{nemesis}` takes the relays that --netns does without"))
            } else {
                None
            }
        };
        let mut chosen: Vec<Nemesis> = Vec::new();
        for word in &self.nemesis {
            match word {
                Chosen::All => chosen.extend(Nemesis::ALL.into_iter().filter(|nemesis| problem(*nemesis).is_none())),
                Chosen::None => {}
                Chosen::One(nemesis) => match problem(*nemesis) {
                    Some(problem) => anyhow::bail!(problem),
                    None => chosen.push(*nemesis),
                },
            }
        }
        chosen.sort();
        chosen.dedup();
        Ok(chosen)
    }

    fn clients(&self) -> u64 {
        self.clients.unwrap_or(match self.workload {
            Workload::Mixed => 8,
            Workload::Day => 50,
        })
    }

    async fn perform(&self) -> anyhow::Result<Verdict> {
        let seed = self.seed.unwrap_or_else(|| rand::random::<u32>().into());
        let nemeses = self.nemeses()?;
        let scratch = tempfile::Builder::new().prefix("quorate-chaos-").tempdir()?;
        let home = self.keep.clone().unwrap_or_else(|| scratch.path().to_path_buf());
        std::fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
        // A node on the data of an earlier run would belong to another cluster.
        anyhow::ensure!(std::fs::read_dir(&home)?.next().is_none(), "{} is not empty", home.display());
        let stage = Arc::new(self.set(seed, &home).await?);
        let command = self.command(seed, &nemeses);
        eprintln!("{command}");

        let looking = tokio::spawn(watch::look(Arc::clone(&stage)));
        let played = self.play(&stage, seed, &nemeses).await;
        looking.abort();
        if let Some(cluster) = &stage.cluster {
            let mut cluster = cluster.lock().await;
            if played.is_err() {
                eprintln!("{}", cluster.log_tail());
            }
            cluster.stop().await;
        }
        let live = played?;

        let events = stage.recorder.history();
        let faults = stage.faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let run = Run {
            seed,
            command,
            nemeses,
            events,
            faults,
            sights: stage.sights.all(),
            has_rivals: stage.cast.has_rivals,
            has_operators: !stage.cast.operators.is_empty(),
            is_guest: stage.cluster.is_none(),
        };
        eprintln!("{} operations; looking for an order that explains them", run.events.len());
        let summary = Summary::of(&run, live);
        if let Some(path) = &self.history {
            write(path, &export::lines(&run))?;
        }
        if let Some(path) = &self.report {
            write(path, &report::page(&run, &summary))?;
        }
        if summary.verdict == Verdict::Violation {
            write(&home.join("history.jsonl"), &export::lines(&run))?;
            // From here on it stays.
            let _ = scratch.keep();
            eprintln!("history, data and logs are in {}", home.display());
        }
        if self.json {
            println!("{}", serde_json::to_string(&summary)?);
        } else {
            print!("{}", summary.text());
        }
        Ok(summary.verdict)
    }

    /// The line that repeats this run.
    fn command(&self, seed: u64, nemeses: &[Nemesis]) -> String {
        let words: Vec<&str> = nemeses.iter().map(|nemesis| nemesis.word()).collect();
        let words = match words.len() {
            0 => "none".into(),
            _ if self.nemesis.iter().any(|chosen| matches!(chosen, Chosen::All)) => "all".into(),
            _ => words.join(","),
        };
        let mut command = format!("quorate-chaos run --nemesis {words} --seconds {} --seed {seed}", self.seconds);
        if let Some(clients) = self.clients {
            command += &format!(" --clients {clients}");
        }
        if self.workload == Workload::Day {
            command += " --workload day";
        }
        for target in &self.target {
            command += &format!(" --target {target}");
        }
        if !self.target_nodes.is_empty() {
            command += &format!(" --target-nodes {}", self.target_nodes.join(","));
        }
        if self.nodes != 3 {
            command += &format!(" --nodes {}", self.nodes);
        }
        if self.gateways != 2 {
            command += &format!(" --gateways {}", self.gateways);
        }
        if self.netns {
            command += " --netns";
        }
        if self.overlap {
            command += " --overlap";
        }
        command
    }

    /// Starts what is needed, or finds it.
    async fn set(&self, seed: u64, home: &Path) -> anyhow::Result<Stage> {
        let prefix = format!("chaos-{seed}-{:04x}", rand::random::<u16>());
        let executable = match &self.quorate {
            Some(executable) => executable.clone(),
            None => std::env::current_exe()?.with_file_name("quorate"),
        };
        let namespaces = if self.netns { Some(Arc::new(Namespaces::new()?)) } else { None };
        let (cluster, bases, cast) = if self.target.is_empty() {
            eprintln!("starting {} nodes and {} gateways", self.nodes, self.gateways);
            let cluster = Cluster::start(&executable, home, self.nodes, self.gateways as usize, namespaces.clone()).await?;
            let mut clients = Vec::new();
            for place in 0..self.clients() {
                let passport = format!("client-{place}");
                clients.push(Caller { token: cluster.token(&passport, "verified").await?, passport });
            }
            let shared = Caller { passport: "shared".into(), token: cluster.token("shared", "verified").await? };
            let mut operators = Vec::new();
            for passport in ["operator-1", "operator-2", "operator-3"] {
                operators.push(Caller { passport: passport.into(), token: cluster.token(passport, "operator").await? });
            }
            (Some(cluster), None, Cast::new(clients, shared, operators))
        } else {
            (None, Some(self.target.clone()), self.guests().await?)
        };
        let fabric = cluster.as_ref().map(|cluster| Arc::clone(&cluster.fabric)).unwrap_or_default();
        let bases = match bases {
            Some(targets) => Some(relayed(&fabric, &targets).await?),
            None => None,
        };
        let bases = bases.unwrap_or_else(|| cluster.as_ref().map(|cluster| cluster.doors.clone()).unwrap_or_default());
        Ok(Stage {
            recorder: Recorder::default(),
            doors: Doors::new(&bases)?,
            cast,
            prefix,
            fabric,
            namespaces,
            verbs: (!self.target_nodes.is_empty()).then(|| Verbs { executable, nodes: self.target_nodes.clone(), secret: None }),
            health: Mutex::new(cluster.as_ref().map(Cluster::health_addresses).unwrap_or_default()),
            receipt_key: cluster.is_some().then(|| cluster::RECEIPT_KEY_PUBLIC.to_owned()),
            cluster: cluster.map(tokio::sync::Mutex::new),
            sights: watch::Sights::default(),
            faults: Mutex::default(),
            current: Mutex::default(),
            surprises: Mutex::default(),
        })
    }

    /// The tokens' owners on somebody else's cluster.
    async fn guests(&self) -> anyhow::Result<Cast> {
        let clients: Vec<String> = self.token.iter().cycle().take(self.clients() as usize).cloned().collect();
        let clients = self.named(&clients).await?;
        // One operator alone decides each approval twice.
        let mut operators = self.named(&self.operator_token).await?;
        if let [only] = operators.as_slice() {
            operators.push(only.clone());
        }
        let shared = clients.first().cloned().context("no token")?;
        Ok(Cast::new(clients, shared, operators))
    }

    async fn named(&self, tokens: &[String]) -> anyhow::Result<Vec<Caller>> {
        let mut found = Vec::new();
        for token in tokens {
            let base = self.target[0].trim_end_matches('/');
            let asked = reqwest::Client::new().post(format!("{base}/v1/tools/crux/get_agent_identity")).bearer_auth(token);
            let told: serde_json::Value = asked.json(&serde_json::json!({})).send().await?.error_for_status()?.json().await?;
            let passport = told["agent_name"].as_str().context("the target does not tell who a token belongs to")?.to_string();
            found.push(Caller { passport, token: token.clone() });
        }
        Ok(found)
    }

    /// Clients and faults side by side, then the end of the faults, then a look at everything; what only a live cluster shows.
    async fn play(&self, stage: &Arc<Stage>, seed: u64, nemeses: &[Nemesis]) -> anyhow::Result<Vec<Property>> {
        let (stop_faults, faults_stop) = tokio::sync::watch::channel(false);
        let (stop_clients, clients_stop) = tokio::sync::watch::channel(false);
        let mut clients = JoinSet::new();
        for place in 0..stage.cast.clients.len() {
            clients.spawn(Client::new(Arc::clone(stage), place, seed, clients_stop.clone()).run(self.workload));
        }
        let watchers: Vec<Watched> = (0..WATCHERS).map(|_| Watched::default()).collect();
        let heads = Arc::new(Heads::default());
        let mut bystanders = JoinSet::new();
        for (number, watched) in watchers.iter().enumerate() {
            bystanders.spawn(watched.clone().follow(Arc::clone(stage), number));
            let (heads, stage) = (Arc::clone(&heads), Arc::clone(stage));
            bystanders.spawn(async move { heads.witness(&stage, number).await });
        }
        let mut hands = JoinSet::new();
        if !nemeses.is_empty() {
            for hand in 0..if self.overlap { 2 } else { 1 } {
                hands.spawn(nemesis::run(Arc::clone(stage), nemeses.to_vec(), seed.wrapping_add(hand), faults_stop.clone()));
            }
        }
        self.wait(stage).await;
        stop_faults.send_replace(true);
        while let Some(ended) = hands.join_next().await {
            ended.context("a nemesis broke down")?;
        }
        stage.fabric.heal_all();
        if let Some(namespaces) = &stage.namespaces {
            namespaces.heal_all();
        }
        if let Some(cluster) = &stage.cluster {
            cluster.lock().await.mend()?;
        }
        let mut serves = self.serves_again(stage).await;
        stop_clients.send_replace(true);
        let all_end = async {
            while let Some(ended) = clients.join_next().await {
                ended.context("a client broke down")?;
            }
            anyhow::Ok(())
        };
        // A cluster that is gone answers nobody: what is under way stays unknown.
        let patience = if serves.is_kept() { CLIENTS_END_WITHIN } else { Duration::ZERO };
        match timeout(patience, all_end).await {
            Ok(ended) => ended?,
            Err(_) => {
                if serves.is_kept() {
                    serves.findings.push(finding("a call has no answer long after the faults are over".into()));
                }
                clients.shutdown().await;
            }
        }

        let mut watches =
            Property::new("watches are complete", "Every watcher is told every change once and in order, and all are told the same.");
        let mut log =
            Property::new("the log of receipts only grows", "Every head continues every earlier one, and no two of one size differ.");
        let mut one_each = Property::new("one receipt each", "Each decision, grant and end of a lease has one receipt in the log.");
        let mut replicas = Property::new("replicas are equal", "All nodes have the same state at the same revision.");
        let mut members = Property::new("membership is kept", "A node that was removed stays removed, and one that was added stays.");
        let mut receipts = Property::new("receipts verify", "Every decision has a receipt whose bytes, chain and signature are right.");
        let history = stage.recorder.history();
        if serves.is_kept() {
            let reader = || Client::new(Arc::clone(stage), 0, seed, clients_stop.clone());
            reader().read_everything(&history).await;
            let (asked, wrong) = reader().verify_receipts(RECEIPTS_MAX).await;
            receipts.asked_of = asked;
            receipts.findings = wrong.into_iter().map(finding).collect();
            let last = history.iter().filter_map(|event| event.revision).max().unwrap_or_default();
            let head = heads.look_back(stage).await;
            let last = head.map_or(last, |(_, revision)| revision.max(last));
            watches.findings = told_by(&watchers, last).await.into_iter().map(finding).collect();
            let told: Vec<Told> = watchers.iter().map(Watched::told).collect();
            watches.asked_of = told.iter().map(|told| told.changes.len()).sum();
            watches.findings.extend(told::complete(&told, &writes(&history)).into_iter().map(finding));
            let (asked, wrong) = heads.found();
            (log.asked_of, log.findings) = (asked, wrong.into_iter().map(finding).collect());
            // On somebody else's cluster the log is older than the watch.
            if let (Some((size, revision)), Some(_)) = (head, &stage.cluster)
                && told[0].through >= revision
            {
                one_each.asked_of = size as usize;
                one_each.findings = told::one_receipt_each(&told[0], size, revision).into_iter().map(finding).collect();
            }
            if let Some(cluster) = &stage.cluster {
                let cluster = cluster.lock().await;
                replicas.asked_of = cluster.node_ids().len();
                replicas.findings = unequal(&cluster).await.into_iter().map(finding).collect();
                members.asked_of = cluster.node_ids().len();
                members.findings = misremembered(&cluster).await.into_iter().map(finding).collect();
            }
        }
        bystanders.shutdown().await;
        let mut quiet = Property::new("nothing unexpected", "No process ends by itself, and every answer is one that a client can act on.");
        quiet.asked_of = history.len();
        quiet.findings = stage.surprises.lock().unwrap_or_else(PoisonError::into_inner).drain(..).map(finding).collect();
        Ok(vec![serves, watches, receipts, one_each, log, replicas, members, quiet])
    }

    /// Shows how it goes, until the time is over or somebody asks for the end.
    async fn wait(&self, stage: &Arc<Stage>) {
        let end = Instant::now() + Duration::from_secs(self.seconds);
        let is_terminal = std::io::stderr().is_terminal();
        let mut told = Instant::now();
        let interrupted = tokio::signal::ctrl_c();
        tokio::pin!(interrupted);
        while Instant::now() < end {
            tokio::select! {
                _ = &mut interrupted => break,
                () = sleep(Duration::from_millis(250)) => {}
            }
            let every = Duration::from_secs(if is_terminal { 0 } else { 10 });
            if told.elapsed() < every {
                continue;
            }
            told = Instant::now();
            let left = end.saturating_duration_since(Instant::now()).as_secs();
            let operations = stage.recorder.count(|_| true);
            let unknown = stage.recorder.count(|event| event.outcome == Outcome::Unknown);
            let leader = stage.sights.last().leader.map_or("no leader".into(), |(term, id)| format!("node {id} leads in term {term}"));
            let made = stage.faults.lock().unwrap_or_else(PoisonError::into_inner).len();
            let current = stage.current.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or("calm");
            let line = format!("{left:>4} s left  {operations} operations, {unknown} unknown  {leader}  {made} faults, now {current}");
            if is_terminal {
                eprint!("\r\x1b[2K{line}");
                // A progress line that is not shown is no reason to stop.
                let _ = std::io::stderr().flush();
            } else {
                eprintln!("{line}");
            }
        }
        if is_terminal {
            eprintln!();
        }
    }

    async fn serves_again(&self, stage: &Arc<Stage>) -> Property {
        let mut property = Property::new("serves again", "Once the last fault is over, writes are acknowledged again.");
        property.asked_of = 1;
        let since = stage.recorder.now();
        let deadline = Instant::now() + RECOVERS_WITHIN;
        let nodes = stage.health.lock().unwrap_or_else(PoisonError::into_inner).len();
        loop {
            let written = stage.recorder.count(|event| event.sent >= since && event.revision.is_some() && !event.operation.is_read());
            if written > 0 && stage.sights.last().ready >= nodes {
                return property;
            }
            if Instant::now() > deadline {
                let ready = stage.sights.last().ready;
                let text = format!(
                    "{} s after the last fault {written} writes were acknowledged and {ready} of {nodes} nodes are ready",
                    RECOVERS_WITHIN.as_secs()
                );
                property.findings.push(finding(text));
                return property;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Relays before somebody else's gateways, so that answers can be lost on their way to us.
async fn relayed(fabric: &Arc<Fabric>, targets: &[String]) -> anyhow::Result<Vec<String>> {
    let mut bases = Vec::new();
    for (place, target) in targets.iter().enumerate() {
        // Over TLS a relay would have another name than the certificate.
        let Some(rest) = target.strip_prefix("http://") else {
            bases.push(target.clone());
            continue;
        };
        let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
        let upstream = if address.contains(':') { address.to_owned() } else { format!("{address}:80") };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        bases.push(format!("http://{}/{path}", listener.local_addr()?));
        fabric.serve(listener, Party::Gateway(place), upstream);
    }
    Ok(bases)
}

/// Waits until every watcher was told everything up to a revision; who was not.
async fn told_by(watchers: &[Watched], revision: u64) -> Vec<String> {
    let deadline = Instant::now() + RECOVERS_WITHIN;
    while watchers.iter().any(|watched| watched.through() < revision) && Instant::now() < deadline {
        sleep(Duration::from_millis(100)).await;
    }
    let behind = watchers.iter().enumerate().filter(|(_, watched)| watched.through() < revision);
    let within = RECOVERS_WITHIN.as_secs();
    let told = |(number, watched): (usize, &Watched)| {
        format!("{within} s after the end watcher {number} was told of revision {}, and the last one is {revision}", watched.through())
    };
    behind.map(told).collect()
}

/// The acknowledged writes that every watcher is told of. Nobody is told of a renewal, and an acquisition may be one.
fn writes(history: &[Event]) -> Vec<told::Write> {
    let is_due = |event: &&Event| {
        matches!(event.outcome, Outcome::Stored { .. } | Outcome::Released | Outcome::Saved { .. } | Outcome::Decided { .. })
    };
    history.iter().filter(is_due).filter_map(|event| Some((event.revision?, verdict::told(event)))).collect()
}

/// What `quorate scrub` says of the replicas, where it does not find all the same.
async fn unequal(cluster: &Cluster) -> Option<String> {
    match cluster.verb(&["scrub".into()]).await {
        Ok(found) if found["ok"] == true => None,
        Ok(found) => Some(found.to_string()),
        Err(error) => Some(format!("{error:#}")),
    }
}

/// How the members that the cluster tells differ from those that it was given.
async fn misremembered(cluster: &Cluster) -> Option<String> {
    let told = match cluster.verb(&["status".into()]).await {
        Ok(told) => told,
        Err(error) => return Some(format!("{error:#}")),
    };
    let is_member = |node: &&Value| node["role"] != "removed";
    let mut members: Vec<u64> =
        told["nodes"].as_array().into_iter().flatten().filter(is_member).filter_map(|node| node["id"].as_u64()).collect();
    members.sort_unstable();
    (members != cluster.node_ids())
        .then(|| format!("the cluster tells the members {members:?}, and they should be {:?}", cluster.node_ids()))
}

fn finding(text: String) -> Finding {
    Finding { object: String::new(), text, smallest: Vec::new() }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
