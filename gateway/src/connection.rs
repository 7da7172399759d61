//! Connections of clients: taken in, bounded, and closed when nobody speaks on them.
//!
//! A connection has to bring its first request within the header time-out, TLS handshake included; until then it waits in a
//! lobby that holds half of all connections, and the oldest there gives way when it is full. Later requests have the same time
//! from their first byte on. In between, and while an answer is not taken, a connection may say nothing for the idle time-out.
//! None of this counts while a call runs: that has its own deadline, and its body a time-out of its own (`edge::read_body`). An
//! answer that is sent bit by bit has to send something within the idle time-out.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use quorate_link::{Front, Lobby, Reloading, Seat};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::config::Patience;
use crate::metrics::Connections;

/// Before the next connection is accepted, when one could not be: most often the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A connection that gives way has given its place up by then, which takes no more than its task's next turn.
const HANDOVER: Duration = Duration::from_secs(1);
/// A connection that is told to end may take so long to say goodbye.
const FAREWELL: Duration = Duration::from_secs(1);

/// What all connections share.
struct Shared {
    router: Router,
    tls: Option<Arc<Reloading<Front>>>,
    patience: Patience,
    counters: Arc<Connections>,
    stop: watch::Receiver<bool>,
}

/// Takes connections in until `stop` says true, then ends when those that are open have ended.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Option<Arc<Reloading<Front>>>,
    patience: Patience,
    counters: Arc<Connections>,
    mut stop: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(patience.connections_max));
    let lobby = Lobby::new(patience.connections_max.div_ceil(2));
    let shared = Arc::new(Shared { router, tls, patience, counters, stop: stop.clone() });
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => break,
        };
        let tcp = match accepted {
            Ok((tcp, _)) => tcp,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = place(&places, &lobby).await else {
            shared.counters.refused.fetch_add(1, Relaxed);
            continue;
        };
        let (shared, seat) = (Arc::clone(&shared), lobby.enter());
        tokio::spawn(async move {
            let _place = place;
            shared.counters.open.fetch_add(1, Relaxed);
            one(&shared, tcp, seat).await;
            shared.counters.open.fetch_sub(1, Relaxed);
        });
    }
    drop(listener);
    // All places are free once every connection has ended. It fails when the semaphore is closed, which nobody does.
    let _ = places.acquire_many(u32::try_from(shared.patience.connections_max).unwrap_or(u32::MAX)).await;
}

/// A place for one more connection; if need be that of the one that has been silent longest.
async fn place(places: &Arc<Semaphore>, lobby: &Lobby) -> Option<OwnedSemaphorePermit> {
    if let Ok(free) = Arc::clone(places).try_acquire_owned() {
        return Some(free);
    }
    if !lobby.dismiss_oldest() {
        return None;
    }
    tokio::time::timeout(HANDOVER, Arc::clone(places).acquire_owned()).await.ok()?.ok()
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which is the end as well.
    let _ = stop.wait_for(|stopped| *stopped).await;
}

async fn one(shared: &Shared, tcp: TcpStream, seat: Seat) {
    // Without it, small answers wait 40 ms for the client's delayed acknowledgement.
    if let Err(error) = tcp.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let activity = Arc::<Activity>::default();
    let mut quiet = pin!(quiet(&activity, seat, &shared.patience));
    let Some(tls) = &shared.tls else { return http(shared, tcp, &activity, quiet).await };
    let handshake = TlsAcceptor::from(Arc::clone(&tls.now().server)).accept(tcp);
    let mut stop = shared.stop.clone();
    let stream = tokio::select! {
        stream = handshake => stream,
        _ = &mut quiet => {
            shared.counters.closed.fetch_add(1, Relaxed);
            return;
        }
        () = stopped(&mut stop) => return,
    };
    match stream {
        Ok(stream) => http(shared, stream, &activity, quiet).await,
        Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
    }
}

async fn http<Io>(shared: &Shared, io: Io, activity: &Arc<Activity>, mut quiet: Pin<&mut impl Future<Output = Quiet>>)
where
    Io: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (router, of) = (shared.router.clone(), Arc::clone(activity));
    let service = tower::service_fn(move |request: Request<hyper::body::Incoming>| {
        let running = Running::begin(&of, request.version());
        let answer = router.clone().oneshot(request.map(Body::new));
        async move {
            let _running = running;
            answer.await
        }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    let io = TokioIo::new(Counted { io, activity: Arc::clone(activity) });
    let mut connection = pin!(builder.serve_connection(io, TowerToHyperService::new(service)));
    let mut stop = shared.stop.clone();
    tokio::select! {
        // A client that breaks off is nothing to tell.
        _ = connection.as_mut() => return,
        () = stopped(&mut stop) => {}
        quiet = &mut quiet => {
            shared.counters.closed.fetch_add(1, Relaxed);
            if let Quiet::Idle = quiet {
                connection.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(FAREWELL, connection).await;
            }
            return;
        }
    }
    connection.as_mut().graceful_shutdown();
    // Who says nothing now has no call running, and is not waited for.
    tokio::select! {
        _ = connection => {}
        _ = quiet => {}
    }
}

/// What is seen of a connection from outside.
#[derive(Default)]
struct Activity {
    requests: AtomicU64,
    running: AtomicUsize,
    read: AtomicU64,
    /// How much was read when the last answer began; what comes after that is the next request.
    read_answered: AtomicU64,
    written: AtomicU64,
    /// Its connection says things besides requests.
    is_http2: AtomicBool,
    first_request: Notify,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Mark {
    requests: u64,
    running: usize,
    read: u64,
    written: u64,
}

impl Activity {
    fn mark(&self) -> Mark {
        Mark {
            requests: self.requests.load(Relaxed),
            running: self.running.load(Relaxed),
            read: self.read.load(Relaxed),
            written: self.written.load(Relaxed),
        }
    }
}

/// A request whose head has arrived, until its answer begins.
struct Running(Arc<Activity>);

impl Running {
    fn begin(activity: &Arc<Activity>, version: Version) -> Self {
        activity.running.fetch_add(1, Relaxed);
        activity.requests.fetch_add(1, Relaxed);
        activity.is_http2.store(version == Version::HTTP_2, Relaxed);
        activity.first_request.notify_one();
        Self(Arc::clone(activity))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.read_answered.store(self.0.read.load(Relaxed), Relaxed);
        self.0.running.fetch_sub(1, Relaxed);
    }
}

/// A connection that is to be closed.
enum Quiet {
    /// It never brought a request, and is owed nothing.
    Silent,
    /// It did before.
    Idle,
}

/// Done when a connection has said nothing, or has been saying one thing, for too long.
async fn quiet(activity: &Activity, seat: Seat, patience: &Patience) -> Quiet {
    tokio::select! {
        () = activity.first_request.notified() => drop(seat),
        () = seat.given_away() => return Quiet::Silent,
        () = tokio::time::sleep(patience.header) => return Quiet::Silent,
    }
    let look_every = (patience.header.min(patience.idle) / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
    let (mut seen, mut quiet_since, mut head_since) = (activity.mark(), Instant::now(), None);
    loop {
        tokio::time::sleep(look_every).await;
        let now = activity.mark();
        if now.running > 0 || now.requests != seen.requests {
            (quiet_since, head_since) = (Instant::now(), None);
        } else if now != seen {
            quiet_since = Instant::now();
            // Not whatever was read since the last look: a body may arrive after its head was seen.
            if now.read != activity.read_answered.load(Relaxed) && !activity.is_http2.load(Relaxed) {
                head_since.get_or_insert(quiet_since);
            }
        }
        seen = now;
        if quiet_since.elapsed() >= patience.idle || head_since.is_some_and(|since| since.elapsed() >= patience.header) {
            return Quiet::Idle;
        }
    }
}

/// A stream whose bytes are counted.
struct Counted<Io> {
    io: Io,
    activity: Arc<Activity>,
}

impl<Io: AsyncRead + Unpin> AsyncRead for Counted<Io> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(context, buffer);
        self.activity.read.fetch_add((buffer.filled().len() - before) as u64, Relaxed);
        polled
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Counted<Io> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(context, bytes);
        self.count(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(context, parts);
        self.count(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

impl<Io> Counted<Io> {
    fn count(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(written)) = &polled {
            self.activity.written.fetch_add(*written as u64, Relaxed);
        }
        polled
    }
}
