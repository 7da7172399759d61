//! The X.509 certificate with which this gateway signs manifests of attested outputs for readers of C2PA, where it has one.
//!
//! It vouches for the organisation that runs the cluster, so it is set up by hand: a key, and a chain of certificates of an authority
//! that readers trust. The flag `CORECRUXD_FEATURE_C2PA_X509_SIGNER` switches it on for the whole cluster.

use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use quorate_domain::attestation::OutputClaim;
use quorate_proof::c2pa::{self, Algorithm};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use sha2::{Digest, Sha256};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use crate::config::{Config, ConfigError};

/// The one backend there is: the key stands in the settings.
const LOCAL: &str = "local";

enum Key {
    Ed25519(Ed25519KeyPair),
    P256(EcdsaKeyPair),
}

/// Key and certificates. Clones share them.
#[derive(Clone)]
pub struct X509Signer {
    key_id: String,
    key: Arc<Key>,
    chain: Arc<Vec<Vec<u8>>>,
}

impl X509Signer {
    /// The signer of the settings, if they name one; all of them or none.
    pub fn of(config: &Config) -> Result<Option<Self>, ConfigError> {
        let wrong = |field, problem: String| Err(ConfigError { field, problem });
        let Config { c2pa_signer_backend, c2pa_signer_key_id, c2pa_signer_signing_key_b64, c2pa_signer_certificates, .. } = config;
        match c2pa_signer_backend.as_deref() {
            Some(LOCAL) => {}
            Some(other) => return wrong("c2pa_signer_backend", format!("takes `{LOCAL}`, not `{other}`")),
            None if c2pa_signer_key_id.is_none() && c2pa_signer_signing_key_b64.is_none() && c2pa_signer_certificates.is_none() => {
                return Ok(None);
            }
            None => {
                return wrong("c2pa_signer_backend", format!("is missing beside the other settings of the signer; set it to `{LOCAL}`"));
            }
        }
        let (Some(key_id), Some(key), Some(path)) = (c2pa_signer_key_id, c2pa_signer_signing_key_b64, c2pa_signer_certificates) else {
            let problem = "needs `c2pa_signer_key_id`, `c2pa_signer_signing_key_b64` and `c2pa_signer_certificates` beside it";
            return wrong("c2pa_signer_backend", problem.into());
        };
        if key_id.trim().is_empty() {
            return wrong("c2pa_signer_key_id", "is empty".into());
        }
        let key = Key::read(key).map_err(|problem| ConfigError { field: "c2pa_signer_signing_key_b64", problem })?;
        let chain = certificates(path).map_err(|problem| ConfigError { field: "c2pa_signer_certificates", problem })?;
        // A certificate holds the public key as it is.
        let public = key.public();
        if !chain[0].windows(public.len()).any(|bytes| bytes == public) {
            let problem = format!("{}: the first certificate is not of the key in `c2pa_signer_signing_key_b64`", path.display());
            return wrong("c2pa_signer_certificates", problem);
        }
        Ok(Some(Self { key_id: key_id.clone(), key: Arc::new(key), chain: Arc::new(chain) }))
    }

    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// The manifest store of a claim about this content.
    pub fn manifest(&self, claim: &OutputClaim, content: &[u8]) -> Result<Vec<u8>, String> {
        let sha256 = Sha256::digest(content).into();
        c2pa::manifest_store(claim, &sha256, self.key.algorithm(), &self.chain, |bytes| self.key.sign(bytes))
    }
}

impl Key {
    /// PKCS#8 in base64. The text of a key is not repeated: it is a secret.
    fn read(text: &str) -> Result<Self, String> {
        let der = BASE64.decode(text.trim()).map_err(|_| "is no base64".to_string())?;
        if let Ok(key) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der) {
            return Ok(Self::Ed25519(key));
        }
        let p256 = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der, &SystemRandom::new());
        p256.map(Self::P256).map_err(|_| "is no PKCS#8 key of Ed25519 or of ECDSA on P-256, DER in base64".into())
    }

    fn public(&self) -> &[u8] {
        match self {
            Self::Ed25519(key) => key.public_key().as_ref(),
            Self::P256(key) => key.public_key().as_ref(),
        }
    }

    fn algorithm(&self) -> Algorithm {
        match self {
            Self::Ed25519(_) => Algorithm::Ed25519,
            Self::P256(_) => Algorithm::Es256,
        }
    }

    fn sign(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Self::Ed25519(key) => Ok(key.sign(bytes).as_ref().to_vec()),
            Self::P256(key) => {
                let signature = key.sign(&SystemRandom::new(), bytes).map_err(|_| "the system gave no randomness to sign with")?;
                Ok(signature.as_ref().to_vec())
            }
        }
    }
}

/// The chain of a PEM file, the signer's certificate first.
fn certificates(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let unreadable = |error: tokio_rustls::rustls::pki_types::pem::Error| format!("{}: {error}", path.display());
    let mut chain = Vec::new();
    for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
        chain.push(certificate.map_err(unreadable)?.to_vec());
    }
    match chain.is_empty() {
        true => Err(format!("{} holds no certificate", path.display())),
        false => Ok(chain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/vectors");

    fn config() -> Config {
        Config {
            c2pa_signer_backend: Some("local".into()),
            c2pa_signer_key_id: Some("acme-1".into()),
            // The key of the vectors, 32 times 0x44, in its PKCS#8 frame.
            c2pa_signer_signing_key_b64: Some(
                BASE64.encode([b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20".as_slice(), &[0x44; 32]].concat()),
            ),
            c2pa_signer_certificates: Some(Path::new(FOLDER).join("c2pa-chain.pem")),
            ..Config::default()
        }
    }

    fn refused(config: Config) -> ConfigError {
        X509Signer::of(&config).err().expect("refused")
    }

    #[test]
    fn a_signer_is_set_up_whole_or_not_at_all() {
        assert!(X509Signer::of(&Config::default()).expect("nothing is wrong").is_none());
        assert_eq!(X509Signer::of(&config()).expect("whole").expect("there").key_id(), "acme-1");
        assert_eq!(refused(Config { c2pa_signer_backend: None, ..config() }).field, "c2pa_signer_backend");
        assert_eq!(refused(Config { c2pa_signer_backend: Some("kms".into()), ..config() }).problem, "takes `local`, not `kms`");
        assert_eq!(refused(Config { c2pa_signer_certificates: None, ..config() }).field, "c2pa_signer_backend");
        assert_eq!(refused(Config { c2pa_signer_signing_key_b64: Some("AAAA".into()), ..config() }).field, "c2pa_signer_signing_key_b64");
    }

    #[test]
    fn a_certificate_of_another_key_is_refused_and_no_key_is_repeated() {
        let other = BASE64.encode([b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20".as_slice(), &[0x45; 32]].concat());
        let error = refused(Config { c2pa_signer_signing_key_b64: Some(other.clone()), ..config() });
        assert!(error.problem.contains("is not of the key") && !error.to_string().contains(&other), "{error}");
    }
}
