//! The two uses of TLS: mutual, between the processes of a cluster, and one-sided, at a gateway's front door.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{self, ClientConfig, ServerConfig};

use crate::files::{self, Certificate, FileError, Files};
use crate::name::{Name, Role};
use crate::reload::{Expires, Reloading};

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Both sides of a connection within the cluster, as one process sees them.
pub struct Mutual {
    /// What this process is.
    pub name: Name,
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    /// Whom it connects to: any node of its cluster.
    pub(crate) node: ServerName<'static>,
    ends: [(&'static str, SystemTime); 2],
}

impl Mutual {
    /// For a process of a role; its cluster is what its certificate says, and has to be `cluster` where one is given.
    pub fn open(files: Files, role: Role, cluster: Option<&str>) -> Result<Arc<Reloading<Self>>, FileError> {
        let paths = vec![files.ca.clone(), files.certificate.clone(), files.key.clone()];
        let cluster = cluster.map(String::from);
        Reloading::open(paths, Box::new(move || Self::load(&files, role, cluster.as_deref())))
    }

    fn load(files: &Files, role: Role, cluster: Option<&str>) -> Result<Self, FileError> {
        let (roots, ca_end) = files::authorities(&files.ca)?;
        let chain = files::certificates(&files.certificate)?;
        let key = files::key(&files.key)?;
        let own = Certificate::of(&files.certificate, &chain[0])?;
        let name = match own.name {
            Some(name) if name.role == role && cluster.is_none_or(|cluster| cluster == name.cluster) => name,
            other => {
                return Err(FileError::OtherName {
                    path: files.certificate.clone(),
                    has: other.map_or_else(|| "no one role".into(), |name| format!("`{name}`")),
                    needs: format!("`{}.{}.quorate.internal`", role.word(), cluster.unwrap_or("CLUSTER")),
                });
            }
        };
        let node = Name { role: Role::Node, cluster: name.cluster.clone() }.to_string();
        let node = ServerName::try_from(node).map_err(|error| garbled(&files.certificate, error))?;
        let unfit = |problem| FileError::Unfit { certificate: files.certificate.clone(), key: files.key.clone(), problem };
        let authority = |problem: String| FileError::Authority { path: files.ca.clone(), problem };

        let from_clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider()).build();
        let from_clients = from_clients.map_err(|error| authority(error.to_string()))?;
        let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).map_err(unfit)?;
        let server = builder.with_client_cert_verifier(from_clients).with_single_cert(chain.clone(), key.clone_key()).map_err(unfit)?;

        let from_nodes = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
        let from_nodes = from_nodes.map_err(|error| authority(error.to_string()))?;
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).map_err(unfit)?;
        let client = builder.with_webpki_verifier(from_nodes).with_client_auth_cert(chain, key).map_err(unfit)?;
        Ok(Self {
            name,
            client: fresh_client(client),
            server: fresh_server(server),
            node,
            ends: [("link", own.not_after), ("link_ca", ca_end)],
        })
    }
}

/// No connection goes on with what an earlier one proved: a certificate that is no longer good must not be remembered as good.
fn fresh_client(mut config: ClientConfig) -> Arc<ClientConfig> {
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

fn fresh_server(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

fn garbled(path: &Path, problem: impl ToString) -> FileError {
    FileError::Garbled { path: path.into(), problem: problem.to_string() }
}

impl Expires for Mutual {
    fn ends(&self) -> Vec<(&'static str, SystemTime)> {
        self.ends.to_vec()
    }
}

/// A door for HTTP clients, who prove who they are by other means.
pub struct Front {
    pub server: Arc<ServerConfig>,
    end: SystemTime,
}

impl Front {
    pub fn open(certificate: PathBuf, key: PathBuf) -> Result<Arc<Reloading<Self>>, FileError> {
        Reloading::open(vec![certificate.clone(), key.clone()], Box::new(move || Self::load(&certificate, &key)))
    }

    fn load(certificate: &Path, key: &Path) -> Result<Self, FileError> {
        let chain = files::certificates(certificate)?;
        let end = Certificate::of(certificate, &chain[0])?.not_after;
        let unfit = |problem| FileError::Unfit { certificate: certificate.into(), key: key.into(), problem };
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(unfit)?;
        let mut server = builder.with_no_client_auth().with_single_cert(chain, files::key(key)?).map_err(unfit)?;
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { server: Arc::new(server), end })
    }
}

impl Expires for Front {
    fn ends(&self) -> Vec<(&'static str, SystemTime)> {
        vec![("front", self.end)]
    }
}

/// The client side of a front door, for who trusts the authorities of a file; of nobody without one.
pub fn trusting(ca: Option<&Path>) -> Result<ClientConfig, FileError> {
    let roots = match ca {
        Some(path) => files::authorities(path)?.0,
        None => Arc::new(rustls::RootCertStore::empty()),
    };
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| garbled(ca.unwrap_or(Path::new("")), error))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
