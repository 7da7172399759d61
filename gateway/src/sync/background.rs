//! Pulls by itself: one gateway at a time, under the card `service://sync-connector`.
//!
//! The card only saves work: two that pull at once don't disturb each other. Each write is made under it all the same, so a gateway
//! that lost it writes nothing more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_domain::corpus::CONNECTOR;
use quorate_domain::{Principal, Tier};
use tokio::sync::watch;

use super::client::Remote;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::lease::{Card, LOOK_EVERY, Lease};
use crate::server::{Services, stopped};

const CARD: &str = "service://sync-connector";
/// How long one stretch of a pull takes; between two the card is renewed. Shorter than that lasts.
const STRETCH: Duration = Duration::from_secs(8);
/// Waits after faults: they double up to the longest.
const BACKOFF_MIN: Duration = Duration::from_secs(2);
const BACKOFF_MAX: Duration = Duration::from_secs(5 * 60);
/// How long the card is left alone at the most while nothing is to be done.
const STEP: Duration = Duration::from_secs(1);

/// Starts pulling, if that is set up.
pub fn start(services: &Arc<Services>, cluster: &Cluster, stopping: watch::Receiver<bool>) {
    let Some((remote, poll)) = services.sync.clone().and_then(|remote| Some((remote.clone(), remote.poll?))) else { return };
    let (services, cluster) = (services.clone(), cluster.clone());
    tokio::spawn(async move { run(remote, poll, services, cluster, stopping).await });
}

async fn run(remote: Remote, poll: Duration, services: Arc<Services>, cluster: Cluster, mut stopping: watch::Receiver<bool>) {
    let passport = format!("sync-connector-{}", uuid::Uuid::new_v4().simple());
    let me = Principal { tenant: remote.tenant.clone(), passport, tier: Tier::Verified, scopes: [CONNECTOR.to_string()].into() };
    let lease = Lease { cluster, me, resource: CARD, reason: "pulls facts of another cluster" };
    loop {
        let card = tokio::select! {
            () = stopped(&mut stopping) => return,
            card = lease.take() => card,
        };
        if let Some(mut card) = card {
            tracing::info!(tenant = remote.tenant, remote = remote.name, "this gateway pulls");
            tokio::select! {
                () = stopped(&mut stopping) => return card.give_back().await,
                // Comes back when the card is lost.
                error = pull_on(&remote, poll, &services, &lease, &mut card) => tracing::warn!(%error, "this gateway pulls no more"),
            }
        }
        tokio::select! {
            () = stopped(&mut stopping) => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Pulls whenever it is time.
async fn pull_on(remote: &Remote, poll: Duration, services: &Arc<Services>, lease: &Lease, card: &mut Card<'_>) -> CallError {
    let (mut next, mut backoff) = (Instant::now(), BACKOFF_MIN);
    loop {
        if let Err(error) = card.keep().await {
            return error;
        }
        let wait = next.saturating_duration_since(Instant::now());
        if wait > Duration::ZERO {
            tokio::time::sleep(wait.min(STEP)).await;
            continue;
        }
        let ctx = CallContext {
            fencing_token: Some(card.token),
            ..CallContext::new(Some(Arc::new(lease.me.clone())), Instant::now() + STRETCH, services.clone())
        };
        let problem = match super::pull(&ctx, &lease.cluster, remote, None).await {
            Ok(pulled) if pulled.is_complete => None,
            // There is more.
            Ok(pulled) if pulled.is_out_of_time => continue,
            Ok(pulled) => pulled.problem,
            Err(error) => Some(error.to_string()),
        };
        match problem {
            None => (next, backoff) = (Instant::now() + poll, BACKOFF_MIN),
            Some(problem) => {
                tracing::warn!(problem, "facts are pulled later");
                next = Instant::now() + backoff.max(poll.min(BACKOFF_MAX));
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        }
    }
}
