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
use quorate_domain::{Principal, Tier};
use tokio::sync::watch;

use crate::call::CallError;
use crate::cluster::{Cluster, Consistency, now_unix_ms};
use crate::lease::{Card, LOOK_EVERY, Lease, WITHIN};
use crate::server::stopped;
use client::Client;
use settings::GitHub;
use sync::Visit;

/// What the reader holds.
const CARD: &str = "service://github-connector";
/// How often the reader looks for hints.
const HINTS_EVERY: Duration = Duration::from_secs(1);
/// One gateway's connector.
pub struct Connector {
    settings: GitHub,
    lease: Lease,
}

impl Connector {
    pub fn new(settings: GitHub, cluster: Cluster) -> Self {
        let passport = format!("github-connector-{}", uuid::Uuid::new_v4().simple());
        let me = Principal { tenant: settings.tenant.clone(), passport, tier: Tier::Verified, scopes: [CONNECTOR.to_string()].into() };
        let lease = Lease { cluster, me, resource: CARD, reason: "reads GitHub for the corpus" };
        Self { settings, lease }
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
                card = self.lease.take() => card,
            };
            if let Some(mut card) = card {
                tracing::info!(tenant = self.settings.tenant, repositories = self.settings.repositories.len(), "this gateway reads GitHub");
                tokio::select! {
                    () = stopped(&mut stopping) => return card.give_back().await,
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
        let (found, _) =
            self.lease.cluster.read_as(&self.lease.me, GetSources { repos }, Consistency::Linearizable, Instant::now() + WITHIN).await?;
        Ok(found.sources)
    }

    /// Tells whoever reads that a repository has changed.
    pub async fn hint(&self, repo: &str) -> Result<(), CallError> {
        self.lease.cluster.propose_for(&self.lease.me, HintSource { repo: repo.into() }, Instant::now() + WITHIN).await.map(|_| ())
    }

    pub fn settings(&self) -> &GitHub {
        &self.settings
    }
}

/// Starts the connector if it is set up.
pub fn start(settings: Option<GitHub>, cluster: &Cluster, stopping: watch::Receiver<bool>) -> Option<Arc<Connector>> {
    let connector = Arc::new(Connector::new(settings?, cluster.clone()));
    let running = connector.clone();
    tokio::spawn(async move { running.run(stopping).await });
    Some(connector)
}
