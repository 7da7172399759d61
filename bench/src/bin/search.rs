//! `quorate-search-bench`: searches at one node, without the network and the log: the rules over RocksDB, and the index beside it.
//!
//! It stores facts and documents through the state machine, builds the index, and times `query` and `query_facts` as a node serves
//! them, each from the words to the answer's bytes. Then it stores more while the index follows, and tells how far that is behind.
//! Figures are of this machine, and of this build's profile.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use quorate_domain::command::CommandKind;
use quorate_domain::document::{AddPassages, BeginDocument, PassageText};
use quorate_domain::fact::{Confidence, QueryFacts, StoreFact};
use quorate_domain::machine::{self, Body, Call, Entry};
use quorate_domain::overlay::Overlay;
use quorate_domain::search::{Hits, Search};
use quorate_domain::{Principal, Query, ReadStamp, RequestId, Revision, Tier, UnixMs};
use quorate_search::{Index, Indexer};
use quorate_storage::{StateOptions, StateStore};

/// Measures searches at one node.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[arg(long, default_value_t = 100_000)]
    facts: u64,
    /// Documents of ten passages each
    #[arg(long, default_value_t = 10_000)]
    documents: u64,
    /// Queries of each kind
    #[arg(long, default_value_t = 2_000)]
    queries: u64,
    /// Facts that are stored while the index follows, and how many a second
    #[arg(long, default_value_t = 20_000)]
    more: u64,
    #[arg(long, default_value_t = 2_000)]
    rate: u64,
    /// Folder for the data; by default beside this executable
    #[arg(long)]
    data: Option<PathBuf>,
}

const WALL: UnixMs = UnixMs(1_900_000_000_000);
/// Entries of one commit, as a busy node has them.
const BATCH: u64 = 256;

fn caller() -> Principal {
    Principal { tenant: "acme".into(), passport: "mara".into(), tier: Tier::Verified, scopes: Default::default() }
}

/// Words by Zipf's law over a vocabulary: a few are everywhere, most are rare.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn word(&mut self) -> String {
        let uniform = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        let rank = (50_000f64.powf(uniform)) as u64;
        format!("w{}", rank.wrapping_mul(2_654_435_761) % 1_000_000)
    }

    fn text(&mut self, words: usize) -> String {
        (0..words).map(|_| self.word()).collect::<Vec<_>>().join(" ")
    }
}

struct Node {
    state: Arc<StateStore>,
    revision: u64,
}

impl Node {
    fn entry(&mut self, command: impl CommandKind) -> (Revision, Entry) {
        self.revision += 1;
        let request = RequestId { id: format!("r{}", self.revision), issued_at: WALL, keyed: false };
        let call = Call { caller: caller(), request, under: None, command: command.into() };
        (Revision(self.revision), Entry { wall: WALL, advance_ms: 0, stamped_term: 1, body: Body::Call(call) })
    }

    fn apply(&mut self, entries: Vec<(Revision, Entry)>) -> anyhow::Result<()> {
        let mut overlay = Overlay::new(&*self.state);
        for (revision, entry) in entries {
            let decided = machine::apply(&mut overlay, revision, 1, entry)?;
            if let Some(Err(refusal)) = decided.map(|decided| decided.outcome) {
                anyhow::bail!("refused: {refusal}");
            }
        }
        Ok(self.state.commit(overlay.into_writes(), Default::default())?)
    }

    fn stamp(&self) -> ReadStamp {
        ReadStamp { revision: Revision(self.revision), lease_now: Default::default(), wall: WALL, caller: caller() }
    }
}

fn fact(n: u64, words: &mut Words) -> StoreFact {
    StoreFact {
        entity: format!("svc:{}", n / 20),
        key: format!("{}-{}", words.word(), n % 20),
        value: words.text(30),
        source_receipt: None,
        confidence: Confidence(500_000 + (words.next() % 500_000) as u32),
        private: false,
        horizon_class: None,
        freshness_horizon: None,
        supersedes: Default::default(),
    }
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let beside = std::env::current_exe()?.parent().context("the executable has no folder")?.to_path_buf();
    let data = options.data.clone().unwrap_or_else(|| beside.join("bench-data")).join(format!("search-{}", std::process::id()));
    std::fs::create_dir_all(&data)?;
    let done = measure(&options, &data);
    std::fs::remove_dir_all(&data)?;
    done
}

fn measure(options: &Options, data: &std::path::Path) -> anyhow::Result<()> {
    let mut words = Words(88_172_645_463_325_252);
    let state = Arc::new(StateStore::open(&data.join("state"), StateOptions::default())?);
    let mut node = Node { state, revision: 0 };
    let mut n = 0;
    while n < options.facts {
        let until = (n + BATCH).min(options.facts);
        let entries = (n..until).map(|n| node.entry(fact(n, &mut words))).collect();
        node.apply(entries)?;
        n = until;
    }
    for n in 0..options.documents {
        let passages: Vec<PassageText> = (0..10).map(|_| PassageText { heading: words.text(3), text: words.text(150) }).collect();
        let bytes = passages.iter().map(|passage| passage.text.len() as u64).sum();
        let content_hash = format!("{n:064x}");
        let name = format!("docs/{}/{n}.md", words.word());
        let begin = BeginDocument { name, content_hash, media_type: "text/markdown".into(), bytes, passages: 10 };
        let begun = node.entry(begin);
        let state = Arc::clone(&node.state);
        let mut overlay = Overlay::new(&*state);
        let decided = machine::apply(&mut overlay, begun.0, 1, begun.1)?.context("a call is decided")?;
        let outcome = decided.outcome.map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
        let begun: quorate_domain::document::DocumentBegun = quorate_domain::codec::decode(&outcome)?;
        let (revision, entry) = node.entry(AddPassages { document_id: begun.document_id, from: 0, passages });
        machine::apply(&mut overlay, revision, 1, entry)?;
        state.commit(overlay.into_writes(), Default::default())?;
    }
    node.state.flush()?;
    println!("state: {} facts, {} documents of 10 passages, revision {}", options.facts, options.documents, node.revision);

    let before = memory_bytes()?;
    let start = Instant::now();
    let mut indexer = Indexer::open(&data.join("search"), "bench")?;
    let step = indexer.follow(&node.state.view(), &|| false)?;
    let index = indexer.index();
    let size = index.size();
    println!(
        "index: {} records in {:.1} s, {} segments, {:.1} MB on disk, {:.1} MB more memory of the process",
        step.looked_at,
        start.elapsed().as_secs_f64(),
        size.segments,
        size.disk_bytes as f64 / 1e6,
        (memory_bytes()? as f64 - before as f64) / 1e6
    );

    for (name, count) in [("query, 3 words", 3), ("query, 8 words", 8)] {
        times(name, options.queries, || {
            let search = Search {
                tenant_id: "acme".into(),
                query: words.text(count),
                limit: 10,
                token_budget: None,
                score_min: None,
                with_snippets: true,
                cursor: None,
                hits: Hits::default(),
                with_pointers: false,
                with_pairs: false,
            };
            search_once(&node, &index, search, step.through)
        })?;
    }
    for (name, with_entity) in [("query_facts, a word", false), ("query_facts, a word within an entity", true)] {
        times(name, options.queries, || {
            let entity = with_entity.then(|| format!("svc:{}", words.next() % (options.facts / 20).max(1)));
            facts_once(&node, &index, words.word(), entity, step.through)
        })?;
    }
    lag(options, node, indexer, &mut words)
}

fn search_once(node: &Node, index: &Index, mut search: Search, through: Revision) -> anyhow::Result<()> {
    let asked = search.asked(&caller()).map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
    search.hits = index.search(&caller(), &asked, through)?;
    run(node, search.into())
}

fn facts_once(node: &Node, index: &Index, query: String, entity: Option<String>, through: Revision) -> anyhow::Result<()> {
    let mut facts = QueryFacts {
        query: Some(query),
        entity,
        entity_prefix: None,
        key: None,
        top_k: 10,
        token_budget: None,
        include_superseded: false,
        as_of: None,
        min_effective_confidence: None,
        cursor: None,
        hits: Default::default(),
        with_pointers: false,
        with_envelope: false,
    };
    if let Some(asked) = facts.asked() {
        facts.hits = index.facts(&caller(), &asked, through)?;
    }
    run(node, facts.into())
}

fn run(node: &Node, query: Query) -> anyhow::Result<()> {
    let answer = query.run(&node.state.view(), &node.stamp())?;
    answer.map(drop).map_err(|refusal| anyhow::anyhow!("{refusal}"))
}

fn times(name: &str, count: u64, mut once: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut taken = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        once()?;
        taken.push(start.elapsed());
    }
    taken.sort();
    let at = |share: f64| taken[((taken.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!("{name}: p50 {:.2} ms, p95 {:.2} ms, p99 {:.2} ms, the longest {:.2} ms", at(0.5), at(0.95), at(0.99), at(1.0));
    Ok(())
}

/// Stores at a rate while the index follows on a thread of its own, and looks how far that is behind.
fn lag(options: &Options, mut node: Node, mut indexer: Indexer, words: &mut Words) -> anyhow::Result<()> {
    let (stop, through) = (AtomicBool::new(false), AtomicU64::new(node.revision));
    let state = Arc::clone(&node.state);
    let (mut worst, mut sum, mut looks) = (0, 0, 0u64);
    let start = Instant::now();
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let follower = scope.spawn(|| -> anyhow::Result<u64> {
            let mut steps = 0;
            while !stop.load(Ordering::Relaxed) {
                let step = indexer.follow(&state.view(), &|| false)?;
                through.store(step.through.0, Ordering::Relaxed);
                steps += 1;
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(steps)
        });
        let (mut n, batch) = (0, (options.rate / 100).max(1));
        while n < options.more {
            let entries = (n..n + batch).map(|n| node.entry(fact(options.facts + n, words))).collect();
            node.apply(entries)?;
            n += batch;
            let behind = node.revision - through.load(Ordering::Relaxed);
            (worst, sum, looks) = (worst.max(behind), sum + behind, looks + 1);
            let due = start + Duration::from_millis(n * 1_000 / options.rate.max(1));
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        stop.store(true, Ordering::Relaxed);
        let steps = follower.join().map_err(|_| anyhow::anyhow!("the follower panicked"))??;
        println!(
            "following {} facts at {:.0} a second: {} behind on average, {worst} at the most, {steps} steps",
            options.more,
            n as f64 / start.elapsed().as_secs_f64(),
            sum / looks.max(1)
        );
        Ok(())
    })
}

/// What the process holds in memory, mapped files included.
fn memory_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kilobytes * 1_024)
}
