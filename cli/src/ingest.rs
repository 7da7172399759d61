//! `quorate ingest`: files and folders, so that their text is found by `query`.
//!
//! Every file is hashed here, and only those that the cluster does not have as they are get sent. So a run that was interrupted, or
//! one over a folder in which little changed, is repeated as it is.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};

use crate::door::{Door, Gateway};
use crate::exit::{self, Failure};

/// Files that one question asks for.
const CHECKED_AT_ONCE: usize = 200;
/// Folders that hold nothing anybody wrote.
const SKIPPED: [&str; 5] = ["target", "node_modules", "__pycache__", "venv", "dist"];

/// Make the text of files found by `query`: Markdown, text and code.
#[derive(Args)]
pub struct Ingest {
    /// Files and folders; in folders, hidden files and folders, and those made by tools, are left out
    #[arg(value_name = "PATH", required_unless_present_any = ["list", "remove"])]
    paths: Vec<PathBuf>,
    /// List what was ingested, those whose names begin with PREFIX
    #[arg(long, value_name = "PREFIX", num_args = 0..=1, default_missing_value = "", conflicts_with = "paths")]
    list: Option<String>,
    /// Remove documents by their names
    #[arg(long, value_name = "NAME", num_args = 1.., conflicts_with_all = ["paths", "list"])]
    remove: Vec<String>,
    /// Only say which files would be sent
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    door: Door,
}

struct File {
    path: PathBuf,
    name: String,
    content_hash: String,
}

/// What became of a run.
#[derive(Default)]
struct Done {
    sent: Vec<Value>,
    unchanged: u64,
    failed: Vec<Value>,
}

impl Ingest {
    pub fn json(&self) -> bool {
        self.door.json
    }

    pub async fn run(self) -> Result<(), Failure> {
        let gateway = Gateway::open(&self.door)?;
        if let Some(prefix) = &self.list {
            return self.show(&gateway, prefix).await;
        }
        if !self.remove.is_empty() {
            return self.take_away(&gateway).await;
        }
        self.send(&gateway).await
    }

    async fn send(&self, gateway: &Gateway) -> Result<(), Failure> {
        let (mut files, mut skipped) = (Vec::new(), Vec::new());
        for path in &self.paths {
            gather(path, true, &mut files, &mut skipped)
                .map_err(|error| Failure::failed(format!("cannot read {}: {error}", path.display())))?;
        }
        files.sort();
        files.dedup();
        let mut done = Done::default();
        for chunk in files.chunks(CHECKED_AT_ONCE) {
            let mut known = Vec::new();
            for path in chunk {
                match fs::read(path) {
                    Ok(bytes) => known.push(File {
                        name: name_of(path),
                        path: path.clone(),
                        content_hash: quorate_gateway::ingest::content_hash(&bytes),
                    }),
                    Err(error) => done.failed.push(json!({ "file": path, "why": error.to_string() })),
                }
            }
            let documents: Vec<Value> = known.iter().map(|file| json!({ "name": file.name, "content_hash": file.content_hash })).collect();
            let checked = gateway.ask(gateway.request(Method::POST, "/v1/ingest/check").json(&json!({ "documents": documents }))).await?;
            let unchanged = checked["unchanged"].as_array().cloned().unwrap_or_default();
            for (n, file) in known.into_iter().enumerate() {
                if unchanged.get(n) == Some(&Value::Bool(true)) {
                    done.unchanged += 1;
                } else if self.dry_run {
                    done.sent.push(json!({ "name": file.name }));
                } else {
                    self.send_one(gateway, file, &mut done).await?;
                }
                self.show_progress(&done, files.len());
            }
        }
        done.tell(self.door.json, self.dry_run, &skipped)
    }

    fn show_progress(&self, done: &Done, of: usize) {
        if !self.door.json {
            let Done { sent, unchanged, failed } = done;
            let (sent, failed) = (sent.len() as u64, failed.len() as u64);
            eprint!("\r{} of {of} files: {sent} sent, {unchanged} unchanged, {failed} failed ", sent + unchanged + failed);
        }
    }

    async fn send_one(&self, gateway: &Gateway, file: File, done: &mut Done) -> Result<(), Failure> {
        let bytes = match fs::read(&file.path) {
            Ok(bytes) => bytes,
            Err(error) => {
                done.failed.push(json!({ "file": file.path, "why": error.to_string() }));
                return Ok(());
            }
        };
        let request = gateway.request(Method::POST, "/v1/ingest").query(&[("name", &file.name)]).body(bytes);
        match gateway.ask(request).await {
            Ok(facts) => done.sent.push(facts),
            // One file that can't be read must not keep out the others; a cluster that does not answer keeps out all.
            Err(error) if error.code == exit::FAILED => done.failed.push(json!({ "file": file.path, "why": error.message })),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Done {
    fn tell(self, as_json: bool, dry_run: bool, skipped: &[PathBuf]) -> Result<(), Failure> {
        let Self { sent, unchanged, failed } = self;
        let count = |name: &str| sent.iter().filter_map(|facts| facts[name].as_u64()).sum::<u64>();
        let passages = count("passages_sent");
        if as_json {
            let facts = json!({
                "dry_run": dry_run, "sent": sent, "unchanged": unchanged, "failed": failed, "skipped": skipped.len(), "passages": passages,
            });
            println!("{facts}");
        } else {
            let verb = if dry_run { "would be sent" } else { "sent" };
            eprintln!();
            println!("{} {verb} ({passages} passages), {unchanged} unchanged, {} left out as no text", sent.len(), skipped.len());
            for problem in &failed {
                println!("not taken: {}: {}", problem["file"].as_str().unwrap_or("?"), problem["why"].as_str().unwrap_or("?"));
            }
        }
        match failed.len() {
            0 => Ok(()),
            n => Err(Failure::failed(format!("{n} files were not taken; all others were"))),
        }
    }
}

impl Ingest {
    async fn show(&self, gateway: &Gateway, prefix: &str) -> Result<(), Failure> {
        let mut cursor: Option<String> = None;
        let mut all = Vec::new();
        loop {
            let mut request = gateway.request(Method::GET, "/v1/documents").query(&[("prefix", prefix), ("limit", "500")]);
            if let Some(cursor) = &cursor {
                request = request.query(&[("cursor", cursor)]);
            }
            let mut page = gateway.ask(request).await?;
            for row in page["documents"].as_array_mut().map(std::mem::take).unwrap_or_default() {
                if self.door.json {
                    all.push(row);
                } else {
                    let state = if row["complete"] == true { "" } else { " (not complete)" };
                    println!("{} {} passages{state}", row["name"].as_str().unwrap_or("?"), row["passages"]);
                }
            }
            cursor = page["next_cursor"].as_str().map(Into::into);
            if cursor.is_none() {
                break;
            }
        }
        if self.door.json {
            println!("{}", json!({ "documents": all }));
        }
        Ok(())
    }

    async fn take_away(&self, gateway: &Gateway) -> Result<(), Failure> {
        let mut removed = Vec::new();
        for name in &self.remove {
            if self.dry_run {
                removed.push(json!({ "name": name, "dry_run": true }));
                continue;
            }
            let answer = gateway.ask(gateway.request(Method::DELETE, "/v1/documents").query(&[("name", name)])).await?;
            removed.push(json!({ "name": name, "removed": answer["removed"] }));
        }
        match self.door.json {
            true => println!("{}", json!({ "documents": removed })),
            false => removed.iter().for_each(|row| match row["removed"].as_bool() {
                Some(true) => println!("{}: removed", row["name"].as_str().unwrap_or("?")),
                Some(false) => println!("{}: there is no such document", row["name"].as_str().unwrap_or("?")),
                None => println!("{}: would be removed", row["name"].as_str().unwrap_or("?")),
            }),
        }
        Ok(())
    }
}

/// The name of a document: its path as it was given, without what makes the same path look different.
fn name_of(path: &Path) -> String {
    let parts = path.components().filter(|part| !matches!(part, std::path::Component::CurDir));
    parts.collect::<PathBuf>().to_string_lossy().into_owned()
}

/// The files under a path that are worth reading. What was named is read in any case; links are not followed into folders.
fn gather(path: &Path, is_named: bool, files: &mut Vec<PathBuf>, skipped: &mut Vec<PathBuf>) -> io::Result<()> {
    let about = if is_named { fs::metadata(path)? } else { fs::symlink_metadata(path)? };
    let file_name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if about.is_dir() {
        if !is_named && (file_name.starts_with('.') || SKIPPED.contains(&file_name.as_str())) {
            return Ok(());
        }
        let mut entries = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
        entries.sort();
        return entries.iter().try_for_each(|entry| gather(entry, false, files, skipped));
    }
    let wanted = is_named || about.is_file() && !file_name.starts_with('.') && quorate_gateway::ingest::is_readable_name(&file_name);
    match wanted {
        true => files.push(path.to_owned()),
        false => skipped.push(path.to_owned()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_gives_its_texts_and_leaves_out_what_nobody_wrote() {
        let folder = tempfile::tempdir().expect("a folder");
        for (file, text) in [("a.md", "a"), ("src/b.rs", "b"), (".git/c.md", "c"), ("target/d.rs", "d"), ("e.png", "e"), (".env.md", "f")] {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        let (mut files, mut skipped) = (Vec::new(), Vec::new());
        gather(folder.path(), true, &mut files, &mut skipped).expect("readable");
        let names: Vec<_> = files.iter().map(|file| file.strip_prefix(folder.path()).expect("within").to_owned()).collect();
        assert_eq!(names, [PathBuf::from("a.md"), PathBuf::from("src/b.rs")]);
        assert_eq!(skipped.len(), 2);
        gather(&folder.path().join("e.png"), true, &mut files, &mut skipped).expect("readable");
        assert_eq!(files.len(), 3, "what is named is tried");
        assert_eq!(name_of(Path::new("./docs/./a.md")), "docs/a.md");
    }
}
