//! What a gateway has gathered, on its way to the cluster: one command of a tenant at a time, repeated under its request id until
//! its outcome is known, so that it counts once.

use std::collections::BTreeMap;
use std::time::Instant;

use quorate_domain::{CommandKind, RequestId, identity};
use tokio::sync::Mutex;

use crate::call::CallError;
use crate::cluster::{Cluster, new_request};

/// A command on its way, under the id that it keeps.
#[derive(Clone)]
struct Parcel<C> {
    command: C,
    request: RequestId,
}

pub struct Outbox<C> {
    /// Commands whose outcome is not known, one of a tenant at most. Held while one is handed over.
    unsure: Mutex<BTreeMap<String, Parcel<C>>>,
}

impl<C> Default for Outbox<C> {
    fn default() -> Self {
        Self { unsure: Mutex::default() }
    }
}

impl<C: CommandKind + Clone> Outbox<C> {
    /// Tenants with a command whose outcome is not known.
    pub async fn tenants(&self) -> Vec<String> {
        self.unsure.lock().await.keys().cloned().collect()
    }

    /// Hands over what is unsure of a tenant, and then what `take` gives until there is nothing more. `taken` hears what the cluster
    /// answered.
    pub async fn hand_over(
        &self,
        cluster: &Cluster,
        tenant: &str,
        deadline: Instant,
        take: impl Fn() -> Option<C> + Sync,
        taken: impl Fn(&C, C::Output) + Sync,
    ) -> Result<(), CallError> {
        let busy = || CallError::Unreadable { detail: "counts of other calls are still being handed over".into(), retry_after_ms: 1_000 };
        let mut unsure = tokio::time::timeout_at(deadline.into(), self.unsure.lock()).await.map_err(|_| busy())?;
        loop {
            let parcel = match unsure.get(tenant) {
                Some(parcel) => parcel.clone(),
                None => match take() {
                    Some(command) => Parcel { command, request: new_request() },
                    None => return Ok(()),
                },
            };
            unsure.insert(tenant.into(), parcel.clone());
            match cluster.propose_again(&identity::system(), parcel.command.clone(), parcel.request, deadline).await {
                Ok((answer, _)) => taken(&parcel.command, answer),
                // Repeating it can't help. One that is too old may have counted: its outcome stayed unknown for too long.
                Err(CallError::Refused(refusal)) => tracing::error!(tenant, %refusal, "what was gathered of calls is given up"),
                Err(error) => return Err(error),
            }
            unsure.remove(tenant);
        }
    }
}
