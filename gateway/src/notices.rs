//! Delivers notices to the addresses that operators have named.
//!
//! What there is to send, who sends it and what came of it is in the cluster (`quorate_domain::notice`). Each gateway looks for
//! notices that are due, takes one at a time, sends it, and says what came of it; one that dies on the way leaves it to the
//! next gateway, half a minute later. So a notice is sent by one gateway at a time, at least once, and twice only around a crash or
//! a lost cluster; its id is the same each time, for the receiver to drop what it has seen.
//!
//! A notice is signed: `Quorate-Signature: t=<unix seconds>,v1=<hex>`, HMAC-SHA256 under the address's secret over `<t>.<body>`.
//! The secret is derived from what the gateways of a cluster share, and stored nowhere.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::stream::{self, StreamExt};
use quorate_domain::approval::RiskTier;
use quorate_domain::notice::{DueNotices, Format, ListWebhooks, Notice, PutWebhook, SettleNotice, TakeNotice, Webhook};
use quorate_domain::{Principal, Tier, identity};
use ring::hmac;
use serde_json::{Value, json};

use crate::call::CallError;
use crate::cluster::{Cluster, Consistency};
use crate::egress::{self, Allowed};
use crate::limit::STANDING_STALE_MS_MAX;

/// How often a gateway looks for notices that are due.
const EVERY: Duration = Duration::from_millis(1_000);
/// How long an address may take to answer; less than a notice is kept for this gateway.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long the cluster may take to hear of it.
const SAID_WITHIN: Duration = Duration::from_secs(10);
/// HTTPS, or plain HTTP on this machine.
const ALLOWED: Allowed = Allowed { loopback_http: true, plain_http: false };
/// Notices on their way at once.
const AT_ONCE: usize = 8;

/// Derives the secrets of addresses.
pub struct WebhookKeys {
    secret: [u8; 32],
}

impl WebhookKeys {
    pub fn new(session_key: &[u8; 32]) -> Self {
        Self { secret: blake3::derive_key("quorate 2026 webhook keys", session_key) }
    }

    /// The text that signs, for the receiver to keep. One that is deleted and made anew has another.
    pub fn secret(&self, webhook: &Webhook) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        // Lengths stand before texts, so that no two addresses are the same bytes.
        for part in [&webhook.tenant, &webhook.id] {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(part.as_bytes());
        }
        hasher.update(&webhook.revision.0.to_be_bytes());
        format!("whsec_{}", hex::encode(hasher.finalize().as_bytes()))
    }
}

/// The value of `Quorate-Signature`.
pub fn signature(secret: &str, unix_s: u64, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    format!("t={unix_s},v1={}", hex::encode(hmac::sign(&key, format!("{unix_s}.{body}").as_bytes())))
}

/// Looks for notices and delivers them, for as long as the gateway runs.
pub async fn deliver(cluster: Cluster, keys: WebhookKeys) {
    quorate_link::install_crypto();
    let client = reqwest::Client::builder()
        .timeout(ANSWER_WITHIN)
        // An address that leads elsewhere would be told what its operator did not mean to tell.
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("quorate/", env!("CARGO_PKG_VERSION")))
        .build();
    let client = match client {
        Ok(client) => client,
        Err(error) => return tracing::error!(%error, "this gateway delivers no notices"),
    };
    loop {
        tokio::time::sleep(EVERY).await;
        let age = Consistency::Stale { max_age_ms: STANDING_STALE_MS_MAX };
        let due = match cluster.read_as(&identity::system(), DueNotices {}, age, Instant::now() + SAID_WITHIN).await {
            Ok((found, _)) => found.due,
            Err(error) => {
                tracing::debug!(%error, "whether notices are due is not known now");
                continue;
            }
        };
        let one = |(tenant, id): (String, String)| {
            let (cluster, keys, client) = (&cluster, &keys, &client);
            async move {
                if let Err(error) = deliver_one(cluster, keys, client, &tenant, &id).await {
                    tracing::warn!(%error, notice = id, "a notice waits for its next attempt");
                }
            }
        };
        stream::iter(due).for_each_concurrent(AT_ONCE, one).await;
    }
}

/// An incoming webhook of Slack that a setting names, and the tenant whose approvals it is told of.
#[derive(Clone, Debug)]
pub struct Slack {
    pub url: String,
    pub tenant: String,
}

impl Slack {
    /// Under which id it stands among the tenant's addresses.
    const ID: &'static str = "slack-setting";

    fn command(&self) -> PutWebhook {
        let (id, url) = (Self::ID.into(), self.url.clone());
        PutWebhook { id, url, format: Format::Slack, risk_tier_min: RiskTier::Low, kinds: Vec::new() }
    }

    /// Why it can't be an address. It is not repeated: it is a secret.
    pub fn problem(&self) -> Option<String> {
        if let Some(refusal) = self.command().refuse() {
            return Some(refusal.to_string());
        }
        refuse(&self.url).map(|problem| format!("may not be called: {problem}"))
    }
}

/// Names the address of the setting to the cluster, as soon as that can be told.
pub async fn name_slack(cluster: Cluster, slack: Slack) {
    let caller = Principal {
        tenant: slack.tenant.clone(),
        passport: "gateway-setting".into(),
        tier: Tier::Operator,
        scopes: ["*".to_string()].into(),
    };
    loop {
        match put_slack(&cluster, &caller, &slack).await {
            Ok(()) => return,
            Err(CallError::Refused(refusal)) => {
                return tracing::error!(%refusal, "the address of `approvals_slack_webhook_url` is not told of approvals");
            }
            Err(error) => tracing::debug!(%error, "the address of `approvals_slack_webhook_url` is named later"),
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Writes nothing when it is there as it should be, so that restarts of gateways leave no entries.
async fn put_slack(cluster: &Cluster, caller: &Principal, slack: &Slack) -> Result<(), CallError> {
    let deadline = Instant::now() + SAID_WITHIN;
    let (found, _) = cluster.read_as(caller, ListWebhooks {}, Consistency::Linearizable, deadline).await?;
    let is_there = |webhook: &Webhook| webhook.id == Slack::ID && webhook.url == slack.url && webhook.format == Format::Slack;
    if !found.webhooks.iter().any(is_there) {
        cluster.propose_for(caller, slack.command(), deadline).await?;
    }
    Ok(())
}

async fn deliver_one(cluster: &Cluster, keys: &WebhookKeys, client: &reqwest::Client, tenant: &str, id: &str) -> Result<(), CallError> {
    let (system, take) = (identity::system(), TakeNotice { tenant: tenant.into(), id: id.into() });
    // Nothing: another gateway was quicker.
    let (taken, _) = cluster.propose_for(&system, take, Instant::now() + SAID_WITHIN).await?;
    let Some((notice, webhook)) = taken.taken else { return Ok(()) };
    let error = send(client, keys, &notice, &webhook).await.err();
    if let Some(error) = &error {
        tracing::info!(error, notice = id, attempt = notice.attempts, "a notice was not taken");
    }
    let settle = SettleNotice { tenant: tenant.into(), id: id.into(), attempt: notice.attempts, error };
    cluster.propose_for(&system, settle, Instant::now() + SAID_WITHIN).await?;
    Ok(())
}

/// Why an address may not be called: asked when it is named, and again before each call. The address itself, which can be a secret,
/// is not in it.
pub fn refuse(url: &str) -> Option<String> {
    let judged = egress::judge(url, ALLOWED);
    judged.map_or_else(Some, |verdict| (!verdict.allowed).then(|| verdict.reasons.join(", ")))
}

/// One attempt. What went wrong is told without the address, which can be a secret.
async fn send(client: &reqwest::Client, keys: &WebhookKeys, notice: &Notice, webhook: &Webhook) -> Result<(), String> {
    if let Some(reason) = refuse(&webhook.url) {
        return Err(format!("the address may not be called: {reason}"));
    }
    let body = match webhook.format {
        Format::Generic => notice.body.to_string(),
        Format::Slack => slack(&notice.body).to_string(),
    };
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let request = client
        .post(&webhook.url)
        .header("content-type", "application/json")
        .header("quorate-notice", &notice.id)
        .header("quorate-attempt", notice.attempts)
        .header("quorate-signature", signature(&keys.secret(webhook), unix_s, &body))
        .body(body);
    match request.send().await {
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(answer) => Err(format!("the address answered {}", answer.status().as_u16())),
        Err(error) if error.is_timeout() => Err(format!("the address did not answer within {} s", ANSWER_WITHIN.as_secs())),
        Err(error) if error.is_connect() => Err("the address can't be reached".into()),
        Err(error) => Err(error.without_url().to_string()),
    }
}

/// A notice as a message of Slack's.
fn slack(body: &Value) -> Value {
    let text = |field: &str| escaped(body["approval"][field].as_str().unwrap_or_default());
    let what = match body["kind"].as_str().unwrap_or_default() {
        "approval.requested" => "Approval wanted",
        "approval.approved_once" => "Approved by one of two",
        "approval.escalated" => "Still undecided",
        "approval.approved" => "Approved",
        "approval.rejected" => "Rejected",
        "approval.expired" => "Expired undecided",
        other => other,
    };
    let by = body["approval"]["reviewer"].as_str().map(|reviewer| format!(" by {}", escaped(reviewer))).unwrap_or_default();
    let message = format!(
        "*{what}*{by}: {} (risk {}, asked for by {}, expires {})\n`{}`",
        text("action_summary"),
        text("risk_tier"),
        text("requested_by"),
        text("expires_at"),
        text("request_id"),
    );
    json!({ "text": message })
}

/// So that a text of a caller's mentions nobody and links nowhere.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_hmac_sha256_over_time_and_body() {
        // The same by `printf '1700000000.{}' | openssl dgst -sha256 -hmac whsec_x`.
        let expected = "t=1700000000,v1=be8cb8325f2202445260a855532f967e30ad2a9394ce28da66ee02880ddcb661";
        assert_eq!(signature("whsec_x", 1_700_000_000, "{}"), expected);
    }

    #[test]
    fn a_message_for_slack_mentions_nobody() {
        let approval = json!({ "action_summary": "<!channel> & <http://x|y>", "risk_tier": "high", "requested_by": "a", "expires_at": "t", "request_id": "ar_1" });
        let message = slack(&json!({ "kind": "approval.requested", "approval": approval }));
        let told = "*Approval wanted*: &lt;!channel&gt; &amp; &lt;http://x|y&gt; (risk high, asked for by a, expires t)\n`ar_1`";
        assert_eq!(message["text"], told);
    }
}
