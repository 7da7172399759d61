//! Opening and accepting connections between the processes of a cluster.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, Stream};
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint};

use crate::files::Certificate;
use crate::lobby::Lobby;
use crate::name::Name;
use crate::reload::{Expiry, Reloading};
use crate::tls::{Front, Mutual};

/// A handshake that takes longer is given up.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// Handshakes under way at once; the oldest gives way to a newer one.
const HANDSHAKES_MAX: usize = 512;
/// Before the next connection is accepted, when one could not be: most often the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that are ready and not taken yet.
const READY_MAX: usize = 64;

/// Opens the channel of an endpoint, not before it is used.
pub type Connect = Arc<dyn Fn(Endpoint) -> Channel + Send + Sync>;

/// How this process and the others of its cluster reach each other. Clones share the certificates.
#[derive(Clone, Default)]
pub struct Link {
    tls: Option<Arc<Reloading<Mutual>>>,
    network: Option<Connect>,
}

impl Link {
    /// Without TLS. Reaches loopback only, since a secret would cross the network in the clear.
    pub fn plain() -> Self {
        Self::default()
    }

    pub fn mutual(tls: Arc<Reloading<Mutual>>) -> Self {
        Self { tls: Some(tls), network: None }
    }

    /// Over another network than the operating system's, such as a simulated one.
    pub fn over(network: Connect) -> Self {
        Self { tls: None, network: Some(network) }
    }

    /// A channel to `host:port` that connects when it is first used, and again when a connection breaks.
    pub fn lazy(&self, address: &str, settings: impl FnOnce(Endpoint) -> Endpoint) -> Result<Channel, tonic::transport::Error> {
        let endpoint = settings(endpoint(address)?);
        Ok(match &self.network {
            Some(network) => network(endpoint),
            None => endpoint.connect_with_connector_lazy(self.clone()),
        })
    }

    /// A channel to `host:port` that is connected.
    pub async fn connect(&self, address: &str, settings: impl FnOnce(Endpoint) -> Endpoint) -> Result<Channel, tonic::transport::Error> {
        settings(endpoint(address)?).connect_with_connector(self.clone()).await
    }

    async fn open(self, to: Uri) -> io::Result<TokioIo<Io>> {
        let (host, port) = (to.host().unwrap_or_default(), to.port_u16().unwrap_or(80));
        // An IPv6 address stands in brackets in a URI, and without them here.
        let tcp = TcpStream::connect((host.trim_start_matches('[').trim_end_matches(']'), port)).await?;
        tcp.set_nodelay(true)?;
        let Some(tls) = self.tls else {
            // Nothing was sent yet, the cluster secret least of all.
            if !tcp.peer_addr()?.ip().is_loopback() {
                return Err(io::Error::other(format!(
                    "{host} is not loopback and this link has no TLS: set tls_ca, tls_certificate and tls_key"
                )));
            }
            return Ok(TokioIo::new(Io { stream: Transport::Plain(tcp), peer: PeerName::Unasked }));
        };
        let tls = tls.now();
        let connector = TlsConnector::from(Arc::clone(&tls.client));
        let stream = connector.connect(tls.node.clone(), tcp).await?;
        Ok(TokioIo::new(Io { stream: Transport::Tls(Box::new(stream.into())), peer: PeerName::Unasked }))
    }

    /// Connections as they come in, ready to be served.
    pub fn listen(&self, listener: TcpListener) -> Incoming {
        let tls = self.tls.clone().map(|tls| Side { config: Box::new(move || Arc::clone(&tls.now().server)), asks_for_name: true });
        Incoming::start(tls, listener)
    }

    /// The same for clients without a certificate of the cluster, who are told who they speak to and not asked who they are.
    pub fn front(front: Arc<Reloading<Front>>, listener: TcpListener) -> Incoming {
        Incoming::start(Some(Side { config: Box::new(move || Arc::clone(&front.now().server)), asks_for_name: false }), listener)
    }

    /// How long the certificates still last; nothing without TLS.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.tls.as_ref().map(|tls| tls.expiries()).unwrap_or_default()
    }

    /// How often changed certificates could not be used.
    pub fn reload_failures(&self) -> u64 {
        self.tls.as_ref().map_or(0, |tls| tls.failures())
    }
}

/// What a status says, and what lies below it where that says more: why a handshake failed, for instance.
pub fn reason(status: &tonic::Status) -> String {
    let below = bottom(status);
    if std::error::Error::source(status).is_none() || below.contains(status.message()) {
        return status.message().into();
    }
    format!("{}: {below}", status.message())
}

/// What is at the bottom of an error: a transport error says only there what went wrong.
pub fn bottom(error: &dyn std::error::Error) -> String {
    let mut bottom = error;
    while let Some(source) = bottom.source() {
        bottom = source;
    }
    bottom.to_string()
}

/// The scheme decides nothing here, the link does.
fn endpoint(address: &str) -> Result<Endpoint, tonic::transport::Error> {
    let address = address.trim().trim_end_matches('/');
    let bare = address.split_once("://").map_or(address, |(_, bare)| bare);
    Endpoint::from_shared(format!("http://{bare}"))
}

impl tower::Service<Uri> for Link {
    type Response = TokioIo<Io>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<TokioIo<Io>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        self.clone().open(to).boxed()
    }
}

/// The accepting side of TLS.
struct Side {
    config: Box<dyn Fn() -> Arc<ServerConfig> + Send + Sync>,
    /// Whether who connects has to show a certificate.
    asks_for_name: bool,
}

async fn accept(tls: Option<Side>, listener: TcpListener, ready: mpsc::Sender<io::Result<Io>>) {
    let lobby = Lobby::new(HANDSHAKES_MAX);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ready.closed() => return,
        };
        let (tcp, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // What goes wrong here, the first use of the connection finds as well.
        let _ = tcp.set_nodelay(true);
        let Some(tls) = &tls else {
            let io = Io { stream: Transport::Plain(tcp), peer: PeerName::Unasked };
            if ready.send(Ok(io)).await.is_err() {
                return;
            }
            continue;
        };
        let (acceptor, seat, ready) = (TlsAcceptor::from((tls.config)()), lobby.enter(), ready.clone());
        let asks_for_name = tls.asks_for_name;
        tokio::spawn(async move {
            let shaken = tokio::select! {
                shaken = timeout(HANDSHAKE_WITHIN, acceptor.accept(tcp)) => shaken,
                () = seat.given_away() => return,
            };
            drop(seat);
            match shaken {
                Ok(Ok(stream)) => {
                    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                    let name = shown.and_then(|der| Certificate::parse(der).ok()).and_then(|shown| shown.name);
                    let peer = match name {
                        Some(name) => PeerName::Shown(name),
                        None if asks_for_name => PeerName::None,
                        None => PeerName::Unasked,
                    };
                    let _ = ready.send(Ok(Io { stream: Transport::Tls(Box::new(stream.into())), peer })).await;
                }
                Ok(Err(error)) => tracing::debug!(%address, %error, "a TLS handshake failed"),
                Err(_) => tracing::debug!(%address, "a TLS handshake took too long"),
            }
        });
    }
}

/// The accepted connections; the listener closes when it is dropped.
pub struct Incoming {
    ready: mpsc::Receiver<io::Result<Io>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Incoming {
    fn start(tls: Option<Side>, listener: TcpListener) -> Self {
        let (sender, ready) = mpsc::channel(READY_MAX);
        let accepting = tokio::spawn(accept(tls, listener, sender));
        Self { ready, accepting }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Io>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(context)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// What the certificate at the other end of an accepted connection says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerName {
    /// It was not asked for a certificate: the link is plain, or a front door.
    Unasked,
    /// It shows nothing that names exactly one role.
    None,
    Shown(Name),
}

/// One connection.
pub struct Io {
    stream: Transport,
    peer: PeerName,
}

enum Transport {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::TlsStream<TcpStream>>),
}

impl Connected for Io {
    type ConnectInfo = PeerName;

    fn connect_info(&self) -> PeerName {
        self.peer.clone()
    }
}

impl Io {
    fn stream(self: Pin<&mut Self>) -> Pin<&mut (dyn Duplex + '_)> {
        match &mut self.get_mut().stream {
            Transport::Plain(stream) => Pin::new(stream),
            Transport::Tls(stream) => Pin::new(&mut **stream),
        }
    }
}

trait Duplex: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_read(context, buffer)
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream().poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(context)
    }

    fn poll_write_vectored(self: Pin<&mut Self>, context: &mut Context<'_>, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
