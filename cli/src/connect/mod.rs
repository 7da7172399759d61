//! `quorate connect`: the configuration that makes a client speak to Quorate and guard its edits.
//!
//! [`clients`] says what each client wants in which file; [`file`] puts it into what is there already. The pages in
//! `docs/clients/` are made from the same source, and a test compares.

mod clients;
mod file;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde_json::json;

use crate::exit::Failure;
use crate::output;
use clients::{Client, Part};

/// Print or write the configuration of a client.
#[derive(Args)]
pub struct Connect {
    /// Which client
    client: Client,
    /// MCP endpoint of a gateway; of several, separated by commas, the client gets the bridge `quorate mcp`, which tries them in turn
    #[arg(long, env = "QUORATE_URL", value_delimiter = ',', default_value = "http://127.0.0.1:7400/mcp")]
    url: Vec<String>,
    /// Folder of the project, for what belongs there
    #[arg(long, default_value = ".")]
    project: PathBuf,
    /// Leave the edit guard out
    #[arg(long)]
    no_guard: bool,
    /// Write it, after showing what changes; what is there otherwise stays
    #[arg(long)]
    write: bool,
    /// Write without asking
    #[arg(long, requires = "write")]
    yes: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A file, as it is and as it has to be.
struct Change {
    path: PathBuf,
    before: Option<String>,
    after: String,
}

impl Change {
    fn state(&self) -> &'static str {
        match &self.before {
            Some(before) if *before == self.after => "unchanged",
            Some(_) => "changed",
            None => "new",
        }
    }

    /// What is added and what goes, line by line.
    fn diff(&self) -> String {
        let before = self.before.as_deref().unwrap_or_default();
        let (old, new) = (self.path.display().to_string(), self.path.display().to_string());
        similar::TextDiff::from_lines(before, &self.after).unified_diff().header(&old, &new).to_string()
    }

    fn write(&self) -> anyhow::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        // A link is kept, and what it points to is replaced in one step.
        let target = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let draft = target.with_extension("quorate-new");
        std::fs::write(&draft, &self.after).with_context(|| format!("cannot write {}", draft.display()))?;
        if let Ok(there) = std::fs::metadata(&target) {
            std::fs::set_permissions(&draft, there.permissions())?;
        }
        std::fs::rename(&draft, &target).with_context(|| format!("cannot write {}", target.display()))
    }
}

impl Connect {
    pub fn run(self) -> Result<(), Failure> {
        let urls = self.url.iter().map(|url| endpoint(url)).collect::<Result<Vec<_>, _>>()?;
        let parts = self.client.parts(&urls, !self.no_guard);
        if !self.write {
            return self.print(&parts);
        }
        let changes = parts.iter().map(|part| self.change(part)).collect::<Result<Vec<_>, _>>()?;
        let files: Vec<_> =
            changes.iter().map(|change| json!({"path": change.path.display().to_string(), "state": change.state()})).collect();
        let all = json!({"ok": true, "client": self.client.word(), "files": files, "next": self.client.next()});
        let wanted: Vec<&Change> = changes.iter().filter(|change| change.state() != "unchanged").collect();
        if !self.json {
            wanted.iter().for_each(|change| println!("{}", change.diff()));
        }
        if !wanted.is_empty() && !self.yes {
            self.ask()?;
        }
        wanted.iter().try_for_each(|change| change.write())?;
        let text = changes.iter().map(|change| format!("{}: {}\n", change.path.display(), change.state())).collect::<String>();
        output::print(self.json, &all, &format!("{text}\n{}", self.client.next()));
        Ok(())
    }

    fn print(&self, parts: &[Part]) -> Result<(), Failure> {
        let mut files = Vec::new();
        let mut text = String::new();
        for part in parts {
            let content = part.fresh();
            text += &format!("# {}\n{content}\n", part.shown());
            files.push(json!({"path": part.shown(), "content": content}));
        }
        let next = self.client.next();
        output::print(
            self.json,
            &json!({"ok": true, "client": self.client.word(), "files": files, "next": next}),
            &format!("{text}{next}"),
        );
        Ok(())
    }

    fn change(&self, part: &Part) -> Result<Change, Failure> {
        let path = match part.home {
            None => self.project.join(&part.path),
            Some(_) => part.in_home().ok_or_else(|| Failure::usage("HOME is not set, so the client's folder is not known"))?,
        };
        let before = match std::fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(Failure::failed(format!("cannot read {}: {error}", path.display()))),
        };
        let after = part
            .merged(before.as_deref())
            .map_err(|why| Failure::failed(format!("{} is left as it is: {why}. Add this by hand:\n{}", path.display(), part.fresh())))?;
        Ok(Change { path, before, after })
    }

    fn ask(&self) -> Result<(), Failure> {
        if !std::io::stdin().is_terminal() {
            return Err(Failure::usage("nothing was written: nobody is there to be asked; `--yes` writes without asking"));
        }
        eprint!("Write this? [y/N] ");
        std::io::stderr().flush().ok();
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
        match answer.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(Failure::failed("nothing was written")),
        }
    }
}

/// The URL as clients get it: a gateway's base URL gets the everyday endpoint.
fn endpoint(url: &str) -> Result<String, Failure> {
    let url = url.trim().trim_end_matches('/');
    match url.split_once("://") {
        Some(("http" | "https", rest)) if !rest.is_empty() && !url.contains(['"', '\\', '\n']) => {}
        _ => return Err(Failure::usage(format!("`{url}` is no URL such as http://127.0.0.1:7400/mcp"))),
    }
    Ok(if url.splitn(4, '/').nth(3).is_some() { url.into() } else { format!("{url}/mcp") })
}

/// The page of a client.
#[cfg(test)]
fn page(client: Client) -> String {
    let mut page = format!("# {}\n\nMade from `cli/src/connect`. {}\n", client.title(), client.about());
    page += &format!(
        "\n    quorate connect {0}            # prints what follows\n    quorate connect {0} --write    # puts it into what is there, after showing the change\n",
        client.word()
    );
    let block = |part: &Part| format!("\n`{}`\n\n```{}\n{}\n```\n", part.shown(), part.language(), part.fresh().trim_end());
    for part in client.parts(&["http://127.0.0.1:7400/mcp".into()], true) {
        page += &block(&part);
    }
    page += &format!("\n{}\n", client.next());
    if client == Client::ClaudeDesktop {
        return page + "\nSeveral gateways in `QUORATE_URL`, separated by commas, are tried in turn.\n";
    }
    page += "\n## Several gateways\n\nWith several in `QUORATE_URL`, separated by commas, the server is a bridge on this machine. It goes on at the next gateway when one\ndies, in the middle of a call too, which has one effect and its answer all the same.\n";
    let several = ["a", "b"].map(|host| format!("http://{host}.example:7400/mcp"));
    page + &block(&client.parts(&several, false)[0])
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    fn one() -> Vec<String> {
        vec!["http://h:1/mcp".into()]
    }

    fn two() -> Vec<String> {
        vec!["http://h:1/mcp".into(), "http://i:1/mcp".into()]
    }

    #[test]
    fn every_page_shows_what_the_program_writes() {
        for client in Client::value_variants() {
            let path = format!("{}/../docs/clients/{}.md", env!("CARGO_MANIFEST_DIR"), client.word());
            expect_test::expect_file![path].assert_eq(&page(*client));
        }
    }

    #[test]
    fn writing_twice_changes_nothing_more_and_keeps_what_is_there() {
        for client in Client::value_variants() {
            for part in client.parts(&one(), true) {
                let fresh = part.merged(None).expect("into nothing");
                assert_eq!(part.merged(Some(&fresh)).expect("again"), fresh, "{}", part.shown());
            }
        }
        let mcp = &Client::ClaudeCode.parts(&one(), true)[0];
        let kept = mcp.merged(Some(r#"{"z": 1, "mcpServers": {"other": {"command": "x"}, "quorate": {"url": "old"}}}"#)).expect("merged");
        let kept: serde_json::Value = serde_json::from_str(&kept).expect("JSON");
        assert_eq!((&kept["z"], &kept["mcpServers"]["other"]["command"]), (&json!(1), &json!("x")));
        assert_eq!(kept["mcpServers"]["quorate"]["url"], "http://h:1/mcp");
    }

    #[test]
    fn a_hook_of_somebody_else_stays_and_an_older_one_of_ours_is_replaced() {
        let hooks = &Client::ClaudeCode.parts(&one(), true)[1];
        let there = r#"{"hooks": {"PreToolUse": [
            {"matcher": "Bash", "hooks": [{"type": "command", "command": "mine"}]},
            {"matcher": "Edit", "hooks": [{"type": "command", "command": "quorate hook pre-tool-use"}]}]}}"#;
        let merged: serde_json::Value = serde_json::from_str(&hooks.merged(Some(there)).expect("merged")).expect("JSON");
        let entries = merged["hooks"]["PreToolUse"].as_array().expect("a list");
        assert_eq!(entries.len(), 2, "{merged:#}");
        assert_eq!(entries[0]["hooks"][0]["command"], "mine");
    }

    #[test]
    fn comments_and_order_of_a_toml_file_stay_and_a_file_that_can_t_be_read_is_left_alone() {
        let part = &Client::Codex.parts(&one(), true)[0];
        let merged = part.merged(Some("# mine\nmodel = \"m\" # why\n\n[mcp_servers.other]\ncommand = \"x\"\n")).expect("merged");
        assert!(merged.starts_with("# mine\nmodel = \"m\" # why\n\n[mcp_servers.other]\ncommand = \"x\"\n"), "{merged}");
        assert!(merged.contains("[mcp_servers.quorate]\nurl = \"http://h:1/mcp\"\n"), "{merged}");
        for (client, text) in
            [(Client::Codex, "a = = 1"), (Client::ClaudeCode, "{ // a comment\n}"), (Client::ClaudeCode, "{\"mcpServers\": []}")]
        {
            assert!(client.parts(&one(), true)[0].merged(Some(text)).is_err(), "{text}");
        }
    }

    /// In TOML, what was there stays where it was.
    fn lines(text: &str) -> Vec<&str> {
        let mut lines: Vec<_> = text.trim().lines().collect();
        lines.sort_unstable();
        lines
    }

    #[test]
    fn several_gateways_make_it_a_bridge_and_leave_nothing_of_the_other_way() {
        for client in Client::value_variants() {
            let (http, bridge) = (&client.parts(&one(), false)[0], &client.parts(&two(), false)[0]);
            assert!(bridge.fresh().contains("http://h:1/mcp,http://i:1/mcp"), "{}", bridge.fresh());
            // Goose's file is printed only.
            if *client != Client::Goose {
                let switched = bridge.merged(Some(&http.fresh())).expect("to the bridge");
                assert_eq!(lines(&switched), lines(&bridge.fresh()), "{}", client.word());
                let back = http.merged(Some(&switched)).expect("and back");
                assert_eq!(lines(&back), lines(&http.fresh()), "{}", client.word());
            }
        }
    }

    #[test]
    fn a_base_url_gets_the_everyday_endpoint() {
        assert_eq!(endpoint("http://h:1/").expect("a URL"), "http://h:1/mcp");
        assert_eq!(endpoint("https://h/mcp/crux").expect("a URL"), "https://h/mcp/crux");
        assert_eq!(endpoint("h:1").expect_err("none").code, crate::exit::USAGE);
    }
}
