//! The connector to GitHub: reads selected repositories for one tenant, and puts what it finds into the corpus.
//!
//! Every gateway that is set up for it stands ready; the one that holds the card `service://github-connector` reads. What a page
//! told and where to go on are one entry of the log, made under that card: when the reader dies, another one goes on from there,
//! and nothing is lost or told twice. A webhook is taken for a hint to read now, by whichever gateway it comes to.
//!
//! Reading order: [`settings`] (what is read), [`client`] (one request, and what its answer asks for), [`shape`] (what is kept of it),
//! [`sync`] (how a repository is read), [`git`] (a repository on this machine), [`webhook`].

pub mod client;
mod git;
pub mod settings;
mod shape;
mod sync;
pub mod webhook;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_domain::corpus::{CONNECTOR, GetSources, HintSource, Source};
use quorate_domain::punchcard::{CheckPunchcard, PunchIn, PunchOut, PunchedIn};
use quorate_domain::{Principal, Refusal, Tier};
use tokio::sync::watch;

use crate::call::CallError;
use crate::cluster::{Cluster, Consistency, new_request, now_unix_ms};
use crate::server::stopped;
use client::Client;
use settings::GitHub;
use sync::Visit;

/// What the reader holds.
const CARD: &str = "service://github-connector";
/// How long the card lasts without a renewal, and when it is renewed: a reader that dies is missed for that long.
const CARD_TTL: Duration = Duration::from_secs(15);
const CARD_RENEWED: Duration = Duration::from_secs(5);
/// How often who is not the reader looks whether there is one, and the reader looks for hints.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const HINTS_EVERY: Duration = Duration::from_secs(1);
/// How long one write or read of the cluster may take. Shorter than the card lasts.
const WITHIN: Duration = Duration::from_secs(5);

/// One gateway's connector.
pub struct Connector {
    settings: GitHub,
    cluster: Cluster,
    me: Principal,
}

/// The card, for as long as it is ours.
pub(crate) struct Card<'a> {
    connector: &'a Connector,
    token: u64,
    renewed: Instant,
}

impl Connector {
    pub fn new(settings: GitHub, cluster: Cluster) -> Self {
        // A name for each run: one that was restarted must not take the card of its former life for its own.
        let passport = format!("github-connector-{}", uuid::Uuid::new_v4().simple());
        let me = Principal { tenant: settings.tenant.clone(), passport, tier: Tier::Verified, scopes: [CONNECTOR.to_string()].into() };
        Self { settings, cluster, me }
    }

    /// Reads whenever no other gateway does, until the gateway stops.
    pub async fn run(&self, mut stopping: watch::Receiver<bool>) {
        let client = match Client::new(&self.settings) {
            Ok(client) => client,
            Err(error) => return tracing::error!(%error, "GitHub is not read: there is no HTTP client"),
        };
        loop {
            let card = tokio::select! {
                () = stopped(&mut stopping) => return,
                card = self.take_card() => card,
            };
            if let Some(mut card) = card {
                tracing::info!(tenant = self.settings.tenant, repositories = self.settings.repositories.len(), "this gateway reads GitHub");
                tokio::select! {
                    () = stopped(&mut stopping) => return self.give_back(&card).await,
                    // Comes back when the card is lost.
                    error = self.read_on(&client, &mut card) => tracing::warn!(%error, "this gateway reads GitHub no more"),
                }
            }
            tokio::select! {
                () = stopped(&mut stopping) => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// Takes the card if nobody has it. Looked at first: a refusal would be an entry of the log every two seconds.
    async fn take_card(&self) -> Option<Card<'_>> {
        let deadline = Instant::now() + WITHIN;
        let look = CheckPunchcard { resource: CARD.into(), mode: None, passport: None };
        let (seen, _) = self.cluster.read_as(&self.me, look, Consistency::Linearizable, deadline).await.ok()?;
        if seen.held_by_other {
            return None;
        }
        let mut card = Card { connector: self, token: 0, renewed: Instant::now() };
        match card.punch_in(None).await {
            Ok(()) => Some(card),
            // Another gateway was quicker.
            Err(CallError::Refused(Refusal::Held { .. }) | CallError::Overloaded) => None,
            Err(error) => {
                tracing::warn!(%error, "GitHub is not read: the connector gets no punchcard");
                None
            }
        }
    }

    async fn give_back(&self, card: &Card<'_>) {
        let out = PunchOut { resource: CARD.into(), holder_passport: self.me.passport.clone(), tenant_id: None, release_commit_sha: None };
        let deadline = Instant::now() + Duration::from_secs(2);
        // If it fails, the card ends by itself.
        let _ = self.cluster.propose_as(&self.me, out, Some(card.token), new_request(), deadline).await;
    }

    /// Visits each repository when its time has come or somebody hinted at it.
    async fn read_on(&self, client: &Client, card: &mut Card<'_>) -> CallError {
        let mut visits: BTreeMap<String, Visit> = BTreeMap::new();
        loop {
            if let Err(error) = card.keep().await {
                return error;
            }
            // Where they can't be told, the next renewal tells whether the card is lost.
            let sources = self.sources().await.unwrap_or_default();
            for source in sources {
                let (repo, hints) = (source.repo.clone(), source.hints);
                let visit = visits.entry(repo).or_insert_with(|| Visit::first(&source));
                if !visit.is_due(hints, self.settings.poll, now_unix_ms().0) {
                    continue;
                }
                if let Err(error) = sync::visit(self, client, card, source, visit).await {
                    return error;
                }
            }
            tokio::time::sleep(HINTS_EVERY).await;
        }
    }

    async fn sources(&self) -> Result<Vec<Source>, CallError> {
        let repos = self.settings.repositories.iter().chain(self.settings.git.keys()).cloned().collect();
        let (found, _) = self.cluster.read_as(&self.me, GetSources { repos }, Consistency::Linearizable, Instant::now() + WITHIN).await?;
        Ok(found.sources)
    }

    /// Tells whoever reads that a repository has changed.
    pub async fn hint(&self, repo: &str) -> Result<(), CallError> {
        self.cluster.propose_for(&self.me, HintSource { repo: repo.into() }, Instant::now() + WITHIN).await.map(|_| ())
    }

    pub fn settings(&self) -> &GitHub {
        &self.settings
    }
}

impl Card<'_> {
    async fn punch_in(&mut self, under: Option<u64>) -> Result<(), CallError> {
        let Connector { cluster, me, .. } = self.connector;
        let ask = PunchIn {
            resource: CARD.into(),
            holder_passport: me.passport.clone(),
            tenant_id: None,
            mode: None,
            reason: Some("reads GitHub for the corpus".into()),
            ttl_ms: Some(u64::try_from(CARD_TTL.as_millis()).unwrap_or(u64::MAX)),
            expires_at: None,
            wait_ms: None,
            lock_delay_ms: None,
            attended: false,
        };
        let asked = Instant::now();
        match cluster.propose_as(me, ask, under, new_request(), asked + WITHIN).await?.0 {
            // In advisory mode another one may hold it all the same; there is one reader only if this one steps back.
            PunchedIn::Granted { card, conflict: None, .. } => {
                (self.token, self.renewed) = (card.fencing_token.0, asked);
                Ok(())
            }
            PunchedIn::Granted { .. } | PunchedIn::Queued { .. } | PunchedIn::Left { .. } => Err(CallError::Overloaded),
        }
    }

    /// Renews the card when it is time. An error: it is lost, or nobody can tell.
    pub(crate) async fn keep(&mut self) -> Result<(), CallError> {
        if self.renewed.elapsed() < CARD_RENEWED {
            return Ok(());
        }
        match self.punch_in(Some(self.token)).await {
            // It may still be ours; the next try comes before it ends.
            Err(CallError::NoLeader { .. } | CallError::Unknown { .. }) if self.renewed.elapsed() < CARD_TTL => Ok(()),
            kept => kept,
        }
    }
}

/// Starts the connector if it is set up.
pub fn start(settings: Option<GitHub>, cluster: &Cluster, stopping: watch::Receiver<bool>) -> Option<Arc<Connector>> {
    let connector = Arc::new(Connector::new(settings?, cluster.clone()));
    let running = connector.clone();
    tokio::spawn(async move { running.run(stopping).await });
    Some(connector)
}
