//! How the processes of a cluster reach each other: the one place that opens and accepts connections between them.
//!
//! A [`Link`] is plain, for loopback, or mutual TLS. With TLS both sides show a certificate of the cluster's own authority whose
//! name says what they are and of which cluster ([`Name`]): a client goes no further than to a node of its cluster, and a server
//! learns who called ([`PeerName`]) and decides what that role may ask. The files are looked at every few seconds, and new
//! connections use what is in them by then ([`Reloading`]).
//!
//! The crate also holds what any listening process needs against strangers who connect and then say nothing ([`Lobby`]), and the
//! certificate of a gateway's own front door ([`Front`]). It knows no service, no message and no configuration file.

mod files;
mod link;
mod lobby;
mod name;
mod reload;
mod tls;
mod x509;

pub use files::{Certificate, FileError, Files};
pub use link::{Connect, Incoming, Io, Link, PeerName, bottom, reason};
pub use lobby::{Lobby, Seat};
pub use name::{BadCluster, Name, Role, authority, cluster_of_authority};
pub use reload::{Expiry, Reloading, exposition};
pub use tls::{Front, Mutual, trusting};

/// Makes `ring` what TLS is computed with, for libraries that ask for the process's choice. Doing it twice does no harm.
pub fn install_crypto() {
    // An error means that a choice was made before, which is the same one.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
}
