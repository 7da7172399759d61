//! What is kept of a commit, pull request, issue or comment: the fields that the corpus documents, and no more.

use quorate_domain::UnixMs;
use quorate_domain::corpus::{ItemKind, Told};
use quorate_domain::limit::{CORPUS_LABELS_MAX, CORPUS_VALUE_BYTES_MAX, NAME_BYTES_MAX};
use serde_json::{Map, Value, json};

/// What is kept of a text; the value says so when there was more.
const BODY_BYTES_MAX: usize = 6 * 1024;
const LINE_BYTES_MAX: usize = 1_024;
/// What a search looks through.
const TEXT_BYTES_MAX: usize = 4 * 1024;

fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    path.iter().fold(value, |value, name| &value[*name]).as_str().unwrap_or_default()
}

fn time(text: &str) -> Option<UnixMs> {
    UnixMs::from_rfc3339(text)
}

/// The beginning of a text, cut between letters.
fn start(text: &str, bytes: usize) -> &str {
    let end = (0..=text.len().min(bytes)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}

/// A value of these fields: null ones are left out, and the long one is cut to what fits, with a note.
fn value(fields: Value, long: &'static str) -> String {
    let mut fields: Map<String, Value> = match fields {
        Value::Object(fields) => fields.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        _ => Map::new(),
    };
    let whole = fields.get(long).and_then(Value::as_str).unwrap_or_default().to_string();
    let mut bytes = BODY_BYTES_MAX;
    loop {
        if whole.len() > bytes {
            fields.insert(long.into(), start(&whole, bytes).into());
            fields.insert(format!("{long}_bytes"), whole.len().into());
        }
        let json = Value::Object(fields.clone()).to_string();
        // Control characters take six times their bytes.
        if json.len() <= CORPUS_VALUE_BYTES_MAX || bytes == 0 {
            return json;
        }
        bytes /= 2;
    }
}

fn name(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// What a search finds it by.
fn searched(parts: &[&str]) -> String {
    start(&parts.join("\n"), TEXT_BYTES_MAX).to_string()
}

/// A commit, as `git` and the API tell it alike.
pub struct Commit<'a> {
    pub sha: &'a str,
    pub message: &'a str,
    pub author_name: &'a str,
    pub author_login: Option<&'a str>,
    pub committed_at: &'a str,
    pub parents: Vec<&'a str>,
    pub html_url: &'a str,
}

impl Commit<'_> {
    pub fn told(&self) -> Option<Told> {
        let at = time(self.committed_at)?;
        let is_hash = |sha: &str| matches!(sha.len(), 40 | 64) && sha.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hash(self.sha) {
            return None;
        }
        let parents: Vec<&str> = self.parents.iter().copied().filter(|sha| is_hash(sha)).take(CORPUS_LABELS_MAX).collect();
        let fields = json!({
            "sha": self.sha,
            "message": self.message,
            "author_name": start(self.author_name, LINE_BYTES_MAX),
            "author_login": self.author_login,
            "committed_at": self.committed_at,
            "parents": parents,
            "html_url": start(self.html_url, LINE_BYTES_MAX),
        });
        Some(Told {
            kind: ItemKind::Commit,
            id: self.sha.into(),
            at,
            updated_at: at,
            is_open: true,
            labels: Vec::new(),
            text: searched(&[self.sha, self.author_name, self.author_login.unwrap_or_default(), self.message]),
            parents: parents.into_iter().map(Into::into).collect(),
            value: value(fields, "message"),
        })
    }
}

pub fn commit(of: &Value) -> Option<Told> {
    Commit {
        sha: text(of, &["sha"]),
        message: text(of, &["commit", "message"]),
        author_name: text(of, &["commit", "author", "name"]),
        author_login: name(text(of, &["author", "login"])),
        committed_at: text(of, &["commit", "committer", "date"]),
        parents: of["parents"].as_array().into_iter().flatten().map(|parent| text(parent, &["sha"])).collect(),
        html_url: text(of, &["html_url"]),
    }
    .told()
}

/// When an item of a list was last changed.
pub fn updated_at(of: &Value) -> Option<(&str, UnixMs)> {
    let told = text(of, &["updated_at"]);
    Some((told, time(told)?))
}

fn numbered(of: &Value, kind: ItemKind, fields: Value) -> Option<Told> {
    let labels = of["labels"].as_array().into_iter().flatten().map(|label| text(label, &["name"]));
    let labels = labels.filter(|label| !label.is_empty() && label.len() <= NAME_BYTES_MAX && !label.chars().any(char::is_control));
    let id = of["number"].as_u64()?.to_string();
    Some(Told {
        kind,
        at: time(text(of, &["created_at"]))?,
        updated_at: updated_at(of)?.1,
        is_open: text(of, &["state"]) == "open",
        labels: labels.take(CORPUS_LABELS_MAX).map(Into::into).collect(),
        parents: Vec::new(),
        value: value(fields, "body"),
        text: searched(&[&id, text(of, &["title"]), text(of, &["user", "login"]), text(of, &["body"])]),
        id,
    })
}

pub fn pull_request(of: &Value) -> Option<Told> {
    let fields = json!({
        "title": start(text(of, &["title"]), LINE_BYTES_MAX),
        "state": text(of, &["state"]),
        "author_login": name(text(of, &["user", "login"])),
        "head_sha": text(of, &["head", "sha"]),
        "base_branch": text(of, &["base", "ref"]),
        "body": text(of, &["body"]),
        "merged_at": of["merged_at"],
        "closed_at": of["closed_at"],
        "html_url": start(text(of, &["html_url"]), LINE_BYTES_MAX),
    });
    numbered(of, ItemKind::PullRequest, fields)
}

/// An issue; a pull request, which the API lists among them, is none.
pub fn issue(of: &Value) -> Option<Told> {
    if of.get("pull_request").is_some() {
        return None;
    }
    let labels: Vec<&str> =
        of["labels"].as_array().into_iter().flatten().map(|label| text(label, &["name"])).take(CORPUS_LABELS_MAX).collect();
    let fields = json!({
        "title": start(text(of, &["title"]), LINE_BYTES_MAX),
        "state": text(of, &["state"]),
        "labels": labels,
        "body": text(of, &["body"]),
        "closed_at": of["closed_at"],
        "html_url": start(text(of, &["html_url"]), LINE_BYTES_MAX),
    });
    numbered(of, ItemKind::Issue, fields)
}

fn remark(of: &Value, id: String, parent: &str) -> Option<Told> {
    let parent_number: u64 = text(of, &[parent]).rsplit('/').next()?.parse().ok()?;
    let fields = json!({
        "author_login": name(text(of, &["user", "login"])),
        "body": text(of, &["body"]),
        "posted_at": text(of, &["created_at"]),
        "parent_number": parent_number,
        "html_url": start(text(of, &["html_url"]), LINE_BYTES_MAX),
    });
    Some(Told {
        kind: ItemKind::Comment,
        at: time(text(of, &["created_at"]))?,
        updated_at: updated_at(of)?.1,
        is_open: true,
        labels: Vec::new(),
        parents: Vec::new(),
        value: value(fields, "body"),
        text: searched(&[text(of, &["user", "login"]), text(of, &["body"])]),
        id,
    })
}

/// A comment on an issue or a pull request.
pub fn comment(of: &Value) -> Option<Told> {
    remark(of, of["id"].as_u64()?.to_string(), "issue_url")
}

/// A comment on a line of a pull request. Its numbers are its own, so its name says what it is.
pub fn review_comment(of: &Value) -> Option<Told> {
    remark(of, format!("review-{}", of["id"].as_u64()?), "pull_request_url")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_letters_and_its_length_is_told() {
        let body = "é".repeat(BODY_BYTES_MAX);
        let of = json!({ "id": 7, "issue_url": "https://x/repos/a/b/issues/3", "body": body, "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-02T00:00:00Z", "user": null });
        let told = comment(&of).unwrap();
        let value: Value = serde_json::from_str(&told.value).unwrap();
        assert_eq!((value["body"].as_str().unwrap().len(), value["body_bytes"].as_u64()), (BODY_BYTES_MAX, Some(body.len() as u64)));
        assert_eq!((value["parent_number"].as_u64(), value.get("author_login")), (Some(3), None));
        let mut control = of.clone();
        control["body"] = "\u{1}".repeat(BODY_BYTES_MAX).into();
        assert!(comment(&control).unwrap().value.len() <= CORPUS_VALUE_BYTES_MAX);
    }

    #[test]
    fn a_pull_request_is_no_issue_and_nonsense_is_neither() {
        let of = json!({ "number": 5, "title": "t", "state": "open", "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-02T00:00:00Z", "labels": [{ "name": "bug" }], "pull_request": {} });
        assert!(issue(&of).is_none());
        let told = pull_request(&of).unwrap();
        assert_eq!((told.id.as_str(), told.labels, told.is_open), ("5", vec!["bug".to_string()], true));
        for nonsense in [json!(null), json!([]), json!({ "number": "x" }), json!({ "number": 5, "created_at": "yesterday" })] {
            assert!(
                issue(&nonsense).is_none()
                    && pull_request(&nonsense).is_none()
                    && comment(&nonsense).is_none()
                    && commit(&nonsense).is_none()
            );
        }
    }
}
