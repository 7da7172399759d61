//! `quorate token`: bearer tokens, which the cluster keeps as hashes only.

use std::collections::BTreeSet;

use clap::{Args, Subcommand};
use quorate_domain::flag::SetFlag;
use quorate_domain::identity::{self, ListPassports, ListTokens, PutToken, RevokeToken, SetSignInKey, TokenRow, check_name, token_hash};
use quorate_domain::{Principal, Refusal, Tier, UnixMs};
use quorate_gateway::cluster::{Cluster, now_unix_ms};
use serde_json::{Value, json};

use crate::admin::{self, Declined};
use crate::deployment::{Nodes, Target, TokenEntry};
use crate::dev::secret;
use crate::exit::Failure;
use crate::output;
use crate::shell::page::{Column, Page, at, cut, whole};

const DAY_MS: u64 = 24 * 3_600_000;
/// What an agent may do unless something else is said: use every tool, search included.
pub const AGENT_SCOPES: [&str; 2] = ["crux-mcp.*", "corecrux.*"];

#[derive(Subcommand)]
pub enum Token {
    /// Make a passport, if it is new, and a token for it; the token is shown this once
    Create(Create),
    /// List tokens by their hashes, with whose they are and how long they last
    ///
    /// The text of a token is nowhere: the cluster keeps its hash only. Tokens that were made before the cluster kept a list of
    /// them are not in it until they are made again.
    List(List),
    /// End a token, within a second on every gateway
    Revoke(Revoke),
    /// Set the public key with which a passport signs in for short-lived tokens, or take it away
    Key(KeyOf),
}

/// Set the public key with which a passport signs in for short-lived tokens, or take it away.
///
/// Whoever holds the private half signs what `POST /v1/auth/challenge` gives, and gets a token of 15 minutes for it. Tokens that the
/// passport has stay. Running it again changes nothing.
#[derive(Args)]
pub struct KeyOf {
    /// Name of the agent or person
    #[arg(long)]
    passport: String,
    /// Team that it belongs to
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Ed25519, 64 hex digits
    #[arg(long, value_name = "PUBLIC_KEY", required_unless_present = "remove", conflicts_with = "remove")]
    set: Option<String>,
    /// Take the key away
    #[arg(long)]
    remove: bool,
    #[command(flatten)]
    target: Target,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Make a passport, if it is new, and a token for it; the token is shown this once.
#[derive(Args)]
pub struct Create {
    /// Name of the agent or person
    #[arg(long)]
    passport: String,
    /// Team that it belongs to
    #[arg(long, default_value = "default")]
    tenant: String,
    /// unverified, verified, elite or operator; elite may decide approvals of low and medium risk, operator all
    #[arg(long, default_value = "verified", value_parser = parse_tier)]
    tier: Tier,
    /// Permission, such as crux-mcp.store_fact or crux-mcp.*; may be repeated
    #[arg(long = "scope", default_values = AGENT_SCOPES)]
    scopes: Vec<String>,
    /// Days until it expires; without it, it lasts until it is revoked
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=36_500))]
    days: Option<u64>,
    #[command(flatten)]
    target: Target,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// End a token, within a second on every gateway.
#[derive(Args)]
pub struct Revoke {
    /// The token, or its hash as `token list` shows it
    token: String,
    #[command(flatten)]
    target: Target,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// List tokens by their hashes, with whose they are and how long they last.
#[derive(Args)]
pub struct List {
    /// Tokens of this passport; of all of the team without it
    #[arg(long)]
    passport: Option<String>,
    /// Team that they belong to
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Ended ones as well
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    target: Target,
}

fn parse_tier(word: &str) -> Result<Tier, String> {
    let words: Vec<&str> = Tier::ALL.into_iter().map(Tier::word).collect();
    Tier::parse(word).ok_or_else(|| format!("is none of {}", words.join(", ")))
}

impl Token {
    pub fn json(&self) -> bool {
        match self {
            Token::Create(create) => create.target.json,
            Token::List(list) => list.target.json,
            Token::Revoke(revoke) => revoke.target.json,
            Token::Key(key) => key.target.json,
        }
    }

    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Token::Create(create) => create.run().await,
            Token::List(list) => list.run().await,
            Token::Revoke(revoke) => revoke.run().await,
            Token::Key(key) => key.run().await,
        }
    }
}

impl KeyOf {
    async fn run(self) -> Result<(), Failure> {
        let Self { passport, tenant, set, target, dry_run, .. } = self;
        let what = if set.is_some() { "signs in with that key" } else { "signs in with no key" };
        if dry_run {
            let json = json!({"ok": true, "changed": false, "dry_run": true, "passport": passport, "tenant": tenant});
            output::print(target.json, &json, &format!("would have it that {passport} of tenant {tenant} {what}"));
            return Ok(());
        }
        let command = SetSignInKey { tenant: tenant.clone(), passport: passport.clone(), public_key: set };
        let done = admin::propose(&target.nodes()?, command).await?;
        let json = json!({"ok": true, "changed": done.changed, "dry_run": false, "passport": passport, "tenant": tenant,
            "public_key": done.public_key});
        let already = if done.changed { "now" } else { "already" };
        output::print(target.json, &json, &format!("{passport} of tenant {tenant} {what} {already}"));
        Ok(())
    }
}

impl Create {
    async fn run(self) -> Result<(), Failure> {
        let wrong = check_name("passport", &self.passport).or_else(|| check_name("tenant", &self.tenant));
        if let Some(refusal) = wrong {
            return Err(Failure::usage(refusal.to_string()));
        }
        let expires_at = self.days.map(|days| UnixMs(now_unix_ms().0 + days * DAY_MS));
        let until = expires_at.map_or_else(String::new, |end| format!(", until {}", end.to_rfc3339()));
        if self.dry_run {
            let text = format!("would make a token for passport {} of tenant {}{until}", self.passport, self.tenant);
            let json = json!({"ok": true, "dry_run": true, "passport": self.passport, "tenant": self.tenant,
                "expires_at": expires_at.map(|end| end.to_rfc3339())});
            output::print(self.target.json, &json, &text);
            return Ok(());
        }
        let token = format!("qt_{}", secret());
        let command = PutToken {
            hash: token_hash(&token),
            tenant: self.tenant,
            passport: self.passport,
            tier: self.tier,
            scopes: self.scopes.into_iter().collect(),
            expires_at,
        };
        let hash = command.hash.clone();
        let put = admin::propose(&self.target.nodes()?, command).await?;
        let json = json!({"ok": true, "token": token, "hash": hash, "passport": put.passport, "tenant": put.tenant,
            "expires_at": expires_at.map(|end| end.to_rfc3339())});
        output::print(self.target.json, &json, &format!("{token}\n\nIt is shown this once{until}; the cluster keeps its hash only."));
        Ok(())
    }
}

/// Rows of one question; there are as many as it takes.
const ROWS: u64 = 1_000;

impl List {
    async fn run(self) -> Result<(), Failure> {
        let wrong = self.passport.as_deref().and_then(|name| check_name("passport", name)).or_else(|| check_name("tenant", &self.tenant));
        if let Some(refusal) = wrong {
            return Err(Failure::usage(refusal.to_string()));
        }
        let cluster = admin::cluster(&self.target.nodes()?)?;
        let operator = Principal { tenant: self.tenant.clone(), ..identity::system() };
        let mut tokens = Vec::new();
        for passport in self.passports(&cluster, &operator).await? {
            let mut cursor = None;
            loop {
                let page = admin::read_as(&cluster, &operator, ListTokens { passport: passport.clone(), limit: ROWS, cursor }).await?;
                tokens.extend(page.tokens.into_iter().map(|token| row(&self.tenant, &passport, token)));
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
            }
        }
        tokens.retain(|token| self.all || token["state"] == "valid");
        let facts = json!({ "tokens": tokens });
        let mut page = Page::of_terminal();
        page.table(&COLUMNS, &facts["tokens"], "there is no such token");
        output::print(self.target.json, &facts, &page.text());
        Ok(())
    }

    /// Whose tokens are meant.
    async fn passports(&self, cluster: &Cluster, operator: &Principal) -> Result<Vec<String>, Failure> {
        if let Some(passport) = &self.passport {
            return Ok(vec![passport.clone()]);
        }
        let (mut names, mut cursor) = (Vec::new(), None);
        loop {
            let page = admin::read_as(cluster, operator, ListPassports { limit: ROWS, cursor }).await?;
            names.extend(page.passports.into_iter().map(|passport| passport.name));
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(names);
            }
        }
    }
}

const COLUMNS: [Column; 5] =
    [cut("PASSPORT", "passport"), whole("STATE", "state"), at("MADE", "created_at"), at("EXPIRES", "expires_at"), whole("HASH", "hash")];

fn row(tenant: &str, passport: &str, token: TokenRow) -> Value {
    let state = match (token.revoked_at, token.expires_at) {
        (Some(_), _) => "revoked",
        (None, Some(end)) if end <= now_unix_ms() => "expired",
        _ => "valid",
    };
    let instant = |at: Option<UnixMs>| at.map(UnixMs::to_rfc3339);
    json!({ "hash": token.hash, "tenant": tenant, "passport": passport, "state": state, "created_at": token.created_at.to_rfc3339(),
        "expires_at": instant(token.expires_at), "revoked_at": instant(token.revoked_at) })
}

impl Revoke {
    async fn run(self) -> Result<(), Failure> {
        let is_hash = self.token.len() == 64 && self.token.bytes().all(|byte| byte.is_ascii_hexdigit());
        let hash = if is_hash { self.token.to_lowercase() } else { token_hash(&self.token) };
        if self.dry_run {
            output::print(
                self.target.json,
                &json!({"ok": true, "dry_run": true, "hash": hash}),
                &format!("would revoke the token with hash {hash}"),
            );
            return Ok(());
        }
        let revoked = admin::propose(&self.target.nodes()?, RevokeToken { hash }).await?;
        let json = json!({"ok": true, "passport": revoked.passport, "tenant": revoked.tenant});
        output::print(self.target.json, &json, &format!("a token of {} is revoked", revoked.passport));
        Ok(())
    }
}

/// Puts a deployment's ready tokens in; those that are in already stay as they are.
pub async fn put_all(nodes: &Nodes, tokens: &[TokenEntry]) -> Result<(), Failure> {
    for entry in tokens {
        let command = PutToken {
            hash: token_hash(&entry.token),
            tenant: entry.tenant.clone(),
            passport: entry.passport.clone(),
            tier: parse_tier(&entry.tier).map_err(Failure::config)?,
            scopes: entry.scopes.iter().cloned().collect::<BTreeSet<_>>(),
            expires_at: None,
        };
        match admin::try_propose(nodes, command).await {
            // An operator's revocation outlives a restart.
            Ok(_) | Err(Declined::Refused(Refusal::Revoked { .. } | Refusal::Denied { .. })) => {}
            Err(declined) => return Err(declined.into()),
        }
    }
    Ok(())
}

/// Sets replicated flags.
pub async fn set_flags(nodes: &Nodes, flags: &[(String, String)]) -> Result<(), Failure> {
    for (name, value) in flags {
        admin::propose(nodes, SetFlag { name: name.clone(), value: value.clone() }).await?;
    }
    Ok(())
}
