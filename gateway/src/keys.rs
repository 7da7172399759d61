//! Keys of passports: Ed25519, one for each passport, the same on every gateway of a cluster.
//!
//! A private key is derived from the secret that the cluster's gateways share, and from tenant and name of the passport. So it
//! is stored nowhere, any gateway can sign for a passport, and signatures made before a restart of everything still hold after
//! it. Whoever has that secret can sign for every passport; a new secret gives every passport a new key.

use ed25519_dalek::{SigningKey, VerifyingKey};

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
