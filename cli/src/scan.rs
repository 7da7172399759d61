//! `quorate scan`: reads a repository where it lies, and sends the cluster what it found, never the source.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use quorate_gateway::scans::{Dealt, FINISHES_MAX, deal};
use quorate_scan::{Cache, Options, Progress};
use reqwest::Method;
use serde::Serialize;
use serde_json::{Value, json};

use crate::door::{Door, Gateway};
use crate::exit::Failure;
use crate::output;

/// Scan a repository, and tell the cluster which endpoint calls what.
#[derive(Args)]
pub struct Scan {
    /// Folder of the repository
    #[arg(default_value = ".")]
    path: PathBuf,
    /// Its name in your team; without it, the one that is made of the folder's
    #[arg(long, value_name = "NAME")]
    repo: Option<String>,
    /// Leave the first lines of modules' documentation out too
    #[arg(long)]
    no_docs: bool,
    /// Read every file anew, whatever the last scan found
    #[arg(long)]
    no_cache: bool,
    /// Scan, and send nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    door: Door,
}

/// Where the scan is made, as the gateway is told it.
#[derive(Serialize)]
struct Place {
    root_path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    clone_url: Option<String>,
    is_named: bool,
}

/// What was sent.
struct Sent {
    scan_id: String,
    parts: usize,
}

impl Scan {
    pub fn json(&self) -> bool {
        self.door.json
    }

    pub async fn run(self) -> Result<(), Failure> {
        let root = self.path.canonicalize().map_err(|error| Failure::usage(format!("cannot read {}: {error}", self.path.display())))?;
        let place = root.to_string_lossy().into_owned();
        let repo = match self.repo.clone().or_else(|| quorate_domain::repo::slug(&place)) {
            Some(repo) => repo,
            None => return Err(Failure::usage(format!("no name can be made of {place}; give one with --repo"))),
        };
        let place = Place { clone_url: remote_of(&root), root_path: place, is_named: self.repo.is_some() };
        let kept = if self.no_cache { None } else { cache_of(&root) };
        let (options, shows) = (Options { docs: !self.no_docs, ..Options::default() }, std::io::stderr().is_terminal() && !self.door.json);
        let (scanned, dealt) = tokio::task::spawn_blocking(move || {
            let before = kept.as_deref().map(Cache::load).unwrap_or_default();
            let scanned = quorate_scan::scan(&root, options, &before, &mut |progress| show(shows, progress));
            let scanned = scanned.map_err(|error| Failure::failed(error.to_string()))?;
            if let Some(kept) = kept
                && let Err(error) = scanned.cache.save(&kept)
            {
                eprintln!("quorate: the next scan reads everything anew: cannot write {}: {error}", kept.display());
            }
            let dealt = deal(&scanned).map_err(|error| Failure::failed(error.to_string()))?;
            Ok::<_, Failure>((scanned.counts, dealt))
        })
        .await
        .map_err(|error| Failure::failed(format!("the scan ended: {error}")))??;
        let sent = if self.dry_run { None } else { Some(self.send(&repo, &place, &dealt).await?) };

        let mut facts = json!({
            "repo_id": repo,
            "files": scanned.files,
            "lines": scanned.lines,
            "routes": dealt.totals.routes,
            "unchanged": scanned.unchanged,
            "problems": scanned.problems,
        });
        let mut text = format!(
            "{repo}: {} files, {} lines, {} routes; {} files as before, {} not read in whole\n",
            scanned.files, scanned.lines, dealt.totals.routes, scanned.unchanged, scanned.problems
        );
        match sent {
            None => text += "nothing was sent\n",
            Some(Sent { scan_id, parts }) => {
                text += &format!("{scan_id}: sent {parts} of {} parts\n", dealt.files.len() + dealt.routes.len());
                facts["scan_id"] = scan_id.into();
                facts["parts_sent"] = parts.into();
            }
        }
        output::print(self.door.json, &facts, &text);
        Ok(())
    }

    /// Sends what the cluster does not have, and makes it the scan that is shown.
    async fn send(&self, repo: &str, place: &Place, dealt: &Dealt) -> Result<Sent, Failure> {
        let gateway = Gateway::open(&self.door)?;
        let post = async |path: &[&str], body: &Value| gateway.ask(gateway.at(Method::POST, path)?.json(body)).await;
        let hashes = dealt.hashes();
        let all = [hashes.0.clone(), hashes.1.clone()].concat();
        let (mut parts, mut is_registered) = (0, false);
        let mut last = Failure::failed("the scan could not be finished");
        for _ in 0..FINISHES_MAX {
            let missing = match post(&["v1", "repos", repo, "scan", "missing"], &json!({ "parts": all, "place": place })).await {
                Err(failure) if is_not_found(&failure) && !is_registered => {
                    register(&gateway, repo, place).await?;
                    is_registered = true;
                    continue;
                }
                answer => answer?,
            };
            let missing: Vec<String> = serde_json::from_value(missing["missing"].clone())
                .map_err(|error| Failure::failed(format!("the gateway's answer is not understood: {error}")))?;
            parts += missing.len();
            for group in dealt.groups(&hashes, &missing) {
                post(&["v1", "repos", repo, "scan", "parts"], &json!({ "parts": group })).await?;
            }
            let finish = json!({ "file_parts": hashes.0, "route_parts": hashes.1, "totals": dealt.totals, "place": place });
            match post(&["v1", "repos", repo, "scan"], &finish).await {
                Ok(finished) => return Ok(Sent { scan_id: finished["scan_id"].as_str().unwrap_or_default().into(), parts }),
                // Another scan of it was finished meanwhile, and took parts with it.
                Err(failure) if is_not_found(&failure) => last = failure,
                Err(failure) => return Err(failure),
            }
        }
        Err(last)
    }
}

async fn register(gateway: &Gateway, repo: &str, Place { root_path, clone_url, is_named }: &Place) -> Result<(), Failure> {
    let mut arguments = json!({ "tenant_id": "local", "root_path": root_path });
    // A name that is made of the folder's is left to be made there, so that of two places of one name only one takes it.
    if *is_named {
        arguments["repo_id"] = repo.into();
    }
    if let Some(clone_url) = clone_url {
        arguments["clone_url"] = clone_url.as_str().into();
    }
    gateway.write("register_repo", &arguments).await.map(|_| ())
}

/// Where git clones the folder from; nothing for one within a checkout, which is not the whole of it.
fn remote_of(root: &Path) -> Option<String> {
    let git = |words: &[&str]| {
        let done = Command::new("git").arg("-C").arg(root).args(words).stdin(Stdio::null()).output().ok()?;
        let told = done.status.success().then_some(done.stdout)?;
        Some(String::from_utf8(told).ok()?.trim().to_string())
    };
    // How deep in its checkout it lies.
    git(&["rev-parse", "--show-prefix"]).filter(|prefix| prefix.is_empty())?;
    let url = git(&["remote", "get-url", "origin"])?;
    // A user of https may be a token, and the whole team reads the address.
    let shown = match url.split_once("://") {
        Some((scheme @ ("https" | "http"), rest)) => {
            let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
            format!("{scheme}://{}/{path}", authority.rsplit_once('@').map_or(authority, |(_, host)| host))
        }
        _ => url,
    };
    quorate_domain::repo::is_clone_url(&shown).then_some(shown)
}

fn is_not_found(failure: &Failure) -> bool {
    failure.facts.get("code").is_some_and(|code| code == "NOT_FOUND")
}

fn show(shows: bool, Progress { files_done, files_found }: Progress) {
    if shows {
        eprint!("\r{files_done} of {files_found} files{}", if files_done == files_found { "\n" } else { "" });
        // Nothing depends on it.
        let _ = std::io::stderr().flush();
    }
}

/// Where the last scan of a folder is kept: the user's cache, a file for each folder.
fn cache_of(root: &Path) -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = of("XDG_CACHE_HOME").filter(|path| path.is_absolute()).or_else(|| Some(of("HOME")?.join(".cache")))?;
    let name = quorate_domain::identity::token_hash(&root.to_string_lossy());
    Some(folder.join("quorate").join("scans").join(format!("{}.cbor", &name[..32])))
}
