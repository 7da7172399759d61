//! Certificates and keys as they lie on disk: PEM.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, RootCertStore};

use crate::name::Name;
use crate::x509;

/// Where a process finds the authority it trusts, its own certificate and the key to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// One certificate or more: during a change of authority both stand here.
    pub ca: PathBuf,
    /// Its own certificate first, then any between it and the authority.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Why certificates can't be used. Says which file, and what to do where that is known.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {path}: {problem}")]
    Unreadable { path: PathBuf, problem: String },
    #[error("{path} holds no {what} in PEM form")]
    Empty { path: PathBuf, what: &'static str },
    #[error("{path} holds a certificate that can't be read: {problem}")]
    Garbled { path: PathBuf, problem: String },
    #[error("{certificate} and {key} do not belong together: {problem}")]
    Unfit { certificate: PathBuf, key: PathBuf, problem: rustls::Error },
    #[error("{path} can't serve as the authority: {problem}")]
    Authority { path: PathBuf, problem: String },
    #[error("{path} is a certificate for {has}, and this needs one for {needs}; `quorate cert` makes one")]
    OtherName { path: PathBuf, has: String, needs: String },
}

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Its role and cluster, if it names exactly one.
    pub name: Option<Name>,
    /// Every DNS name and IP address that it stands for, roles included.
    pub hosts: Vec<String>,
    pub not_after: SystemTime,
}

impl Certificate {
    pub fn read(path: &Path) -> Result<Self, FileError> {
        Self::of(path, &certificates(path)?[0])
    }

    pub(crate) fn of(path: &Path, der: &CertificateDer<'_>) -> Result<Self, FileError> {
        Self::parse(der).map_err(|problem| FileError::Garbled { path: path.into(), problem })
    }

    pub(crate) fn parse(der: &[u8]) -> Result<Self, String> {
        let facts = x509::read(der).map_err(|error| error.to_string())?;
        let mut names: Vec<Name> = facts.hosts.iter().filter_map(|host| Name::parse(host)).collect();
        let not_after = UNIX_EPOCH + Duration::from_secs(u64::try_from(facts.not_after_unix_s).unwrap_or(0));
        Ok(Self { name: names.pop().filter(|_| names.is_empty()), hosts: facts.hosts, not_after })
    }
}

fn unreadable(path: &Path) -> impl Fn(rustls::pki_types::pem::Error) -> FileError {
    move |problem| FileError::Unreadable { path: path.into(), problem: problem.to_string() }
}

/// All certificates of a file, one at least.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let found = CertificateDer::pem_file_iter(path).map_err(unreadable(path))?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(unreadable(path))?;
    if found.is_empty() { Err(FileError::Empty { path: path.into(), what: "certificate" }) } else { Ok(found) }
}

pub(crate) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    match PrivateKeyDer::from_pem_file(path) {
        Ok(key) => Ok(key),
        Err(rustls::pki_types::pem::Error::NoItemsFound) => Err(FileError::Empty { path: path.into(), what: "private key" }),
        Err(error) => Err(unreadable(path)(error)),
    }
}

/// The authorities of a file, and the end of the one that lasts longest.
pub(crate) fn authorities(path: &Path) -> Result<(Arc<RootCertStore>, SystemTime), FileError> {
    let mut roots = RootCertStore::empty();
    let mut last = UNIX_EPOCH;
    for der in certificates(path)? {
        last = last.max(Certificate::of(path, &der)?.not_after);
        roots.add(der).map_err(|error| FileError::Authority { path: path.into(), problem: error.to_string() })?;
    }
    Ok((Arc::new(roots), last))
}

impl Files {
    /// Out of three settings that belong together; nothing when none of them is set. An error is what to say of the first.
    pub fn of_settings(ca: Option<&Path>, certificate: Option<&Path>, key: Option<&Path>) -> Result<Option<Self>, &'static str> {
        match (ca, certificate, key) {
            (Some(ca), Some(certificate), Some(key)) => Ok(Some(Self { ca: ca.into(), certificate: certificate.into(), key: key.into() })),
            (None, None, None) => Ok(None),
            _ => Err("belongs together with tls_certificate and tls_key: set all three, or none of them"),
        }
    }
}
