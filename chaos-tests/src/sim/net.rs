//! The network of a simulation: turmoil's TCP where a node or a gateway would open the operating system's.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use hyper_util::rt::TokioIo;
use quorate_link::{Connect, PeerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::codegen::http::Uri;
use tonic::transport::server::Connected;
use tower::service_fn;
use turmoil::net::{TcpListener, TcpStream};

/// Where every simulated node listens.
pub const PORT: u16 = 7400;

pub fn address(node: u64) -> String {
    format!("{}:{PORT}", name(node))
}

/// The host that a node runs on.
pub fn name(node: u64) -> String {
    format!("n{node}")
}

pub fn connect() -> Connect {
    Arc::new(|endpoint| {
        endpoint.connect_with_connector_lazy(service_fn(|uri: Uri| async move {
            let (host, port) = (uri.host().unwrap_or_default().to_owned(), uri.port_u16().unwrap_or(PORT));
            Ok::<_, io::Error>(TokioIo::new(TcpStream::connect((host, port)).await?))
        }))
    })
}

/// The connections that come in.
pub fn incoming(listener: TcpListener) -> impl Stream<Item = io::Result<Socket>> {
    futures::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| Socket(stream));
        Some((accepted, listener))
    })
}

/// A connection, for tonic.
pub struct Socket(TcpStream);

impl Connected for Socket {
    type ConnectInfo = PeerName;
    fn connect_info(&self) -> PeerName {
        PeerName::Unasked
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
