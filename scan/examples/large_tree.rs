//! How long scans take and how much memory, of a tree of a million lines that is the same one each time, in all six languages.
//!
//!     cargo run -p quorate-scan --example large_tree               # makes the tree in a folder of its own, and scans it
//!     cargo run -p quorate-scan --example large_tree -- 200000     # fewer lines
//!     cargo run -p quorate-scan --example large_tree -- --of DIR   # scans a tree that is there, and changes nothing in it
//!     cargo run -p quorate-scan --example large_tree -- 1000000 --to DIR    # only makes the tree, for `quorate scan DIR`
//!
//! Prints a line a scan: the first; one with what the first one left; and, of a tree of its own, one after one file has changed.
//! Times are those of `quorate scan` without sending: cache read, files read, cache written. Memory is the process's peak.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use quorate_scan::{Cache, Options, scan};

const LINES: usize = 1_000_000;
/// Files of one package, and functions of one file at the least and at the most.
const PACKAGE: usize = 50;
const FUNCTIONS: (u64, u64) = (4, 16);

/// How a language writes a file: its end, its manifest, its head, a function and a call in it. `{n}` is the file's number, `{p}` the
/// package's, `{f}` the function, `{b}` its body and `{c}` who is called.
struct Form {
    end: &'static str,
    manifest: &'static str,
    head: &'static str,
    function: &'static str,
    call: &'static str,
    tail: &'static str,
}

const FORMS: [Form; 6] = [
    Form {
        end: "rs",
        manifest: "Cargo.toml",
        head: "//! Module {n}.\nuse std::collections::BTreeMap;\n\n",
        function: "/// Does {f}.\npub fn {f}(input: &Input, limit: usize) -> Result<Output, Error> {\n{b}    Ok(Output::default())\n}\n\n",
        call: "    let value = {c}(input, limit.min(10))?;\n    if value.is_empty() {\n        return Err(Error::new(\"nothing\", limit));\n    }\n",
        tail: "fn router() -> Router {\n    Router::new().route(\"/v{p}/file{n}\", get(work_{n}_0))\n}\n",
    },
    Form {
        end: "py",
        manifest: "setup.py",
        head: "\"\"\"Module {n}.\"\"\"\nimport os\n\n\n@app.get(\"/v{p}/file{n}\")\n",
        function: "def {f}(given, limit=10):\n    \"\"\"Does {f}.\"\"\"\n{b}    return given\n\n\n",
        call: "    value = {c}(given, min(limit, 10))\n    if not value:\n        raise ValueError(\"nothing\", limit)\n",
        tail: "",
    },
    Form {
        end: "ts",
        manifest: "package.json",
        head: "/** Module {n}. */\nimport { Input } from './types';\n\n",
        function: "export async function {f}(given: Input, limit: number): Promise<Output> {\n{b}  return { given, limit };\n}\n\n",
        call: "  const value = await {c}(given, Math.min(limit, 10));\n  if (!value.length) {\n    throw new Error(`nothing ${limit}`);\n  }\n",
        tail: "app.get('/v{p}/file{n}', work_{n}_0);\n",
    },
    Form {
        end: "js",
        manifest: "package.json",
        head: "/** Module {n}. */\nconst os = require('os');\n\n",
        function: "async function {f}(given, limit) {\n{b}  return { given, limit };\n}\n\n",
        call: "  const value = await {c}(given, Math.min(limit, 10));\n  if (!value.length) {\n    throw new Error(`nothing ${limit}`);\n  }\n",
        tail: "app.get('/v{p}/file{n}', work_{n}_0);\n",
    },
    Form {
        end: "go",
        manifest: "go.mod",
        head: "// Package m{p} does things.\npackage m{p}\n\n",
        function: "func {f}(given Input, limit int) (Output, error) {\n{b}\treturn Output{}, nil\n}\n\n",
        call: "\tif value, err := {c}(given, limit); err != nil {\n\t\treturn value, err\n\t}\n",
        tail: "func register(mux *http.ServeMux) {\n\tmux.HandleFunc(\"GET /v{p}/file{n}\", work_{n}_0)\n}\n",
    },
    Form {
        end: "java",
        manifest: "pom.xml",
        head: "/** Module {n}. */\npackage org.acme.m{p};\n\nclass C{n} {\n    @GetMapping(\"/v{p}/file{n}\")\n",
        function: "    Output {f}(Input given, int limit) {\n{b}        return new Output(given);\n    }\n\n",
        call: "        var value = {c}(given, Math.min(limit, 10));\n        if (value.isEmpty()) {\n            throw new IllegalStateException(\"nothing\");\n        }\n",
        tail: "}\n",
    },
];

/// SplitMix64: the tree follows from its first number.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// Writes a tree, and answers one of its files.
fn make(root: &Path, lines: usize) -> std::io::Result<PathBuf> {
    let mut dice = Dice(20);
    let (mut written, mut n, mut last) = (0, 0, PathBuf::new());
    while written < lines {
        let package = n / PACKAGE;
        let form = &FORMS[package % FORMS.len()];
        let fill = |text: &str| text.replace("{n}", &n.to_string()).replace("{p}", &package.to_string());
        let mut text = fill(form.head);
        for f in 0..FUNCTIONS.0 + dice.below(FUNCTIONS.1 - FUNCTIONS.0 + 1) {
            let mut body = String::new();
            for _ in 0..1 + dice.below(4) {
                // Mostly near, as in true code: files of this package and of those before it.
                let (back, of) = (dice.below(200).min(n as u64), dice.below(8));
                body += &form.call.replace("{c}", &format!("work_{}_{of}", n as u64 - back));
            }
            text += &form.function.replace("{f}", &format!("work_{n}_{f}")).replace("{b}", &body);
        }
        text += &fill(form.tail);
        let folder = root.join(format!("pkg{package}"));
        let sources = folder.join("src");
        if n % PACKAGE == 0 {
            fs::create_dir_all(&sources)?;
            fs::write(folder.join(form.manifest), "")?;
        }
        last = sources.join(format!("file{n}.{}", form.end));
        fs::write(&last, &text)?;
        written += text.lines().count();
        n += 1;
    }
    Ok(last)
}

/// The most memory that this process ever had, in MB (10^6 bytes).
fn peak_mb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1_024 / 1_000_000
}

fn measure(name: &str, root: &Path, kept: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let found = scan(root, Options::default(), &Cache::load(kept), &mut |_| {})?;
    found.cache.save(kept)?;
    let (seconds, counts, routes) = (start.elapsed().as_secs_f64(), found.counts, found.storyline.routes.len());
    println!(
        "{name:<24} {:>7} {:>9} {routes:>7} {:>9} {:>9} {seconds:>8.2} {:>8}",
        counts.files,
        counts.lines,
        counts.unchanged,
        counts.problems,
        peak_mb()
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (lines, words) = match words.split_first().and_then(|(first, rest)| Some((first.parse().ok()?, rest))) {
        Some((lines, rest)) => (lines, rest),
        None => (LINES, &words[..]),
    };
    let own = tempfile::tempdir()?;
    let kept = own.path().join("kept.cbor");
    let (root, changes) = match words {
        [] => {
            let root = own.path().join("tree");
            let last = make(&root, lines)?;
            (root, Some(last))
        }
        ["--of", root] => (PathBuf::from(root), None),
        ["--to", root] => {
            make(Path::new(root), lines)?;
            return Ok(());
        }
        _ => return Err("[LINES] [--of DIR | --to DIR]".into()),
    };
    println!(
        "{:<24} {:>7} {:>9} {:>7} {:>9} {:>9} {:>8} {:>8}",
        "scan", "files", "lines", "routes", "as before", "in part", "s", "peak MB"
    );
    measure("the first", &root, &kept)?;
    measure("again", &root, &kept)?;
    if let Some(file) = changes {
        fs::write(&file, [fs::read(&file)?, b"\n".to_vec()].concat())?;
        measure("after one change", &root, &kept)?;
    }
    Ok(())
}
