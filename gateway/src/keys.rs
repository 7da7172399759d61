//! Keys of passports, and public keys of receipts.
//!
//! Those of passports are Ed25519, one for each passport, the same on every gateway of a cluster. A private key is derived from the secret that the cluster's gateways share, and from tenant and name of the passport. So it
//! is stored nowhere, any gateway can sign for a passport, and signatures made before a restart of everything still hold after
//! it. Whoever has that secret can sign for every passport; a new secret gives every passport a new key.
//!
//! Those of receipts are in a gateway's settings, and it goes on from them to those that they lead to: by the word of both keys of each
//! rotation, and not because the cluster says so. So a rotation needs no change of settings.

use std::sync::RwLock;
use std::time::Instant;

use ed25519_dalek::{SigningKey, VerifyingKey};
use quorate_domain::key_ring::ListReceiptKeys;
use quorate_domain::{Principal, Revision};
use quorate_proof::ring::{Keys, trusted};

use crate::call::CallError;
use crate::cluster::{Cluster, Consistency};

/// Derives keys of passports.
pub struct PassportKeys {
    secret: [u8; 32],
}

impl PassportKeys {
    pub fn new(session_key: &[u8; 32]) -> Self {
        Self { secret: blake3::derive_key("quorate 2026 passport keys", session_key) }
    }

    pub fn signing(&self, tenant: &str, passport: &str) -> SigningKey {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        // The length stands before the tenant, so that no two pairs are the same bytes.
        hasher.update(&(tenant.len() as u64).to_be_bytes()).update(tenant.as_bytes()).update(passport.as_bytes());
        SigningKey::from_bytes(hasher.finalize().as_bytes())
    }

    pub fn public(&self, tenant: &str, passport: &str) -> VerifyingKey {
        self.signing(tenant, passport).verifying_key()
    }

    pub fn public_hex(&self, tenant: &str, passport: &str) -> String {
        hex::encode(self.public(tenant, passport).to_bytes())
    }
}

/// Public keys of receipts by id.
pub struct ReceiptKeys {
    pinned: Keys,
    /// These and those that they have led to so far.
    known: RwLock<Keys>,
}

impl ReceiptKeys {
    pub fn new(pinned: Keys) -> Self {
        Self { known: RwLock::new(pinned.clone()), pinned }
    }

    pub fn known(&self) -> Keys {
        self.known.read().expect("no panic under the lock").clone()
    }

    /// Those known, once the one of this id was looked for in the ring as it is at that revision or later, or as it is now.
    pub async fn with(
        &self,
        key_id: Option<&str>,
        cluster: &Cluster,
        caller: &Principal,
        at_least: Option<Revision>,
        deadline: Instant,
    ) -> Result<Keys, CallError> {
        let known = self.known();
        let is_known = key_id.is_none_or(|key_id| known.iter().any(|(id, _)| id == key_id));
        if is_known { Ok(known) } else { self.look(cluster, caller, at_least, deadline).await }
    }

    /// Those known, once the ring was looked at.
    pub async fn look(
        &self,
        cluster: &Cluster,
        caller: &Principal,
        at_least: Option<Revision>,
        deadline: Instant,
    ) -> Result<Keys, CallError> {
        // Where no key is pinned, none can be led to.
        if self.pinned.is_empty() {
            return Ok(Keys::new());
        }
        let consistency = at_least.map_or(Consistency::Linearizable, Consistency::AtLeast);
        let (ring, _) = cluster.read_as(caller, ListReceiptKeys {}, consistency, deadline).await?;
        let found = trusted(&self.pinned, &ring);
        *self.known.write().expect("no panic under the lock") = found.clone();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::PassportKeys;

    #[test]
    fn a_key_is_of_one_passport_of_one_tenant_and_the_same_again() {
        let keys = PassportKeys::new(&[7; 32]);
        let all = [("a", "bc"), ("ab", "c"), ("a", "b"), ("b", "a")].map(|(tenant, passport)| keys.public_hex(tenant, passport));
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
        assert_eq!(all[0], PassportKeys::new(&[7; 32]).public_hex("a", "bc"));
        assert_ne!(all[0], PassportKeys::new(&[8; 32]).public_hex("a", "bc"));
    }
}
