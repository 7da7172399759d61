//! The network between the processes, with faults: TCP relays of our own, so that no root and no firewall is needed.
//!
//! A relay stands before every node and every gateway; the cluster is formed with the relays' addresses. Who opened a connection
//! is looked up in the kernel's table of sockets and the processes' open files (Linux), so that each *link*, from one process to
//! another, can be hurt alone and in one direction. What a link holds back is delivered when it heals, late and in order, as TCP
//! would; a link that swallowed bytes closes its connections when it heals.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    Node(u64),
    Gateway(usize),
    /// The workload, and operator's verbs.
    Client,
}

/// What happens to bytes in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    #[default]
    Pass,
    /// Each piece waits so long.
    Delay(Duration),
    /// Nothing moves until the link heals.
    Hold,
    /// What is sent is lost.
    Swallow,
}

/// Both directions, as seen from who opened the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub there: Flow,
    pub back: Flow,
}

/// How many pieces met a fault.
#[derive(Debug, Default)]
pub struct Tally {
    pub held: AtomicU64,
    pub swallowed: AtomicU64,
    pub delayed: AtomicU64,
}

/// All links.
#[derive(Default)]
pub struct Fabric {
    links: Mutex<BTreeMap<(Party, Party), watch::Sender<Link>>>,
    processes: Mutex<HashMap<u32, Party>>,
    pub tally: Tally,
}

impl Fabric {
    /// Tells which process is which party. To be called before it opens its first connection.
    pub fn register(&self, pid: u32, party: Party) {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, party);
    }

    /// Changes a link, under way connections included.
    pub fn set(&self, from: Party, to: Party, link: Link) {
        self.link(from, to, |sender| {
            sender.send_replace(link);
        });
    }

    /// Every link as it should be.
    pub fn heal(&self, links: &[(Party, Party)]) {
        for (from, to) in links {
            self.set(*from, *to, Link::default());
        }
    }

    pub fn heal_all(&self) {
        for sender in self.links.lock().unwrap_or_else(PoisonError::into_inner).values() {
            sender.send_replace(Link::default());
        }
    }

    fn link<T>(&self, from: Party, to: Party, then: impl FnOnce(&watch::Sender<Link>) -> T) -> T {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        then(links.entry((from, to)).or_insert_with(|| watch::Sender::new(Link::default())))
    }

    /// Relays what comes to `listener`, until the runtime ends.
    pub fn serve(self: &Arc<Self>, listener: TcpListener, to: Party, upstream: String) {
        let fabric = Arc::clone(self);
        tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                let (fabric, upstream) = (Arc::clone(&fabric), upstream.clone());
                tokio::spawn(async move {
                    let from = match stream.local_addr() {
                        Ok(local) => fabric.who(peer, local),
                        Err(_) => return,
                    };
                    let link = fabric.link(from, to, watch::Sender::subscribe);
                    if let Ok(target) = TcpStream::connect(&upstream).await {
                        relay(stream, target, link, &fabric.tally).await;
                    }
                });
            }
        });
    }

    /// Whose end of a connection `peer` is.
    fn who(&self, peer: SocketAddr, local: SocketAddr) -> Party {
        let Some(inode) = inode_of(peer, local) else { return Party::Client };
        let socket = format!("socket:[{inode}]");
        let processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let holds = |pid: &u32| {
            let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
            files.is_ok_and(|files| {
                files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == socket.as_str()))
            })
        };
        processes.iter().find(|(pid, _)| holds(pid)).map_or(Party::Client, |(_, party)| *party)
    }
}

/// The socket with these ends, in the kernel's table.
fn inode_of(own: SocketAddr, other: SocketAddr) -> Option<u64> {
    let (SocketAddr::V4(own), SocketAddr::V4(other)) = (own, other) else { return None };
    let spelled = |address: std::net::SocketAddrV4| {
        // The table shows the address as the machine's own integer.
        format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port())
    };
    let (own, other) = (spelled(own), spelled(other));
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.len() > 9 && row[1] == own && row[2] == other)?;
    row[9].parse().ok()
}

async fn relay(source: TcpStream, target: TcpStream, link: watch::Receiver<Link>, tally: &Tally) {
    // The processes behind switch Nagle's algorithm off, too.
    let _ = (source.set_nodelay(true), target.set_nodelay(true));
    let (source_read, source_write) = source.into_split();
    let (target_read, target_write) = target.into_split();
    // When either end closes, the other one hears of it at once, as of a process that died.
    tokio::select! {
        () = pump(source_read, target_write, link.clone(), |link| link.there, tally) => {}
        () = pump(target_read, source_write, link, |link| link.back, tally) => {}
    }
}

/// Moves bytes in one direction until an end closes.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut link: watch::Receiver<Link>,
    direction: fn(&Link) -> Flow,
    tally: &Tally,
) {
    let mut piece = vec![0; 64 << 10];
    let mut is_broken = false;
    loop {
        let read = tokio::select! {
            read = from.read(&mut piece) => read,
            // Bytes are missing in between: no protocol can go on from there.
            _ = link.wait_for(|link| is_broken && direction(link) != Flow::Swallow) => return,
        };
        let length = match read {
            Ok(0) | Err(_) => return,
            Ok(length) => length,
        };
        let flow = direction(&link.borrow());
        match flow {
            Flow::Pass => {}
            Flow::Delay(time) => {
                tally.delayed.fetch_add(1, Relaxed);
                tokio::time::sleep(time).await;
            }
            Flow::Hold => {
                tally.held.fetch_add(1, Relaxed);
                if link.wait_for(|link| direction(link) != Flow::Hold).await.is_err() {
                    return;
                }
            }
            Flow::Swallow => {
                tally.swallowed.fetch_add(1, Relaxed);
                is_broken = true;
                continue;
            }
        }
        if is_broken || to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A relay before an echo, and the party that this process is.
    async fn echo(fabric: &Arc<Fabric>) -> SocketAddr {
        let upstream = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = upstream.local_addr().expect("bound");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = upstream.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let relay = listener.local_addr().expect("bound");
        fabric.register(std::process::id(), Party::Node(1));
        fabric.serve(listener, Party::Node(2), address.to_string());
        relay
    }

    async fn heard(stream: &mut TcpStream) -> Option<String> {
        let mut bytes = [0; 16];
        match tokio::time::timeout(Duration::from_millis(300), stream.read(&mut bytes)).await {
            Ok(Ok(length)) => Some(String::from_utf8_lossy(&bytes[..length]).into_owned()),
            _ => None,
        }
    }

    #[tokio::test]
    async fn a_held_link_delivers_late_and_one_of_another_process_is_not_touched() {
        let fabric = Arc::new(Fabric::default());
        let address = echo(&fabric).await;
        let mut stream = TcpStream::connect(address).await.expect("connected");
        fabric.set(Party::Client, Party::Node(2), Link { there: Flow::Hold, back: Flow::Hold });
        stream.write_all(b"one").await.expect("sent");
        assert_eq!(heard(&mut stream).await.as_deref(), Some("one"));

        fabric.set(Party::Node(1), Party::Node(2), Link { there: Flow::Hold, back: Flow::Pass });
        stream.write_all(b"two").await.expect("sent");
        assert_eq!(heard(&mut stream).await, None);
        fabric.heal(&[(Party::Node(1), Party::Node(2))]);
        assert_eq!(heard(&mut stream).await.as_deref(), Some("two"));
        assert_eq!(fabric.tally.held.load(Relaxed), 1);
    }

    #[tokio::test]
    async fn an_answer_is_lost_one_way_and_its_connection_ends_with_the_fault() {
        let fabric = Arc::new(Fabric::default());
        let address = echo(&fabric).await;
        fabric.set(Party::Node(1), Party::Node(2), Link { there: Flow::Pass, back: Flow::Swallow });
        let mut stream = TcpStream::connect(address).await.expect("connected");
        stream.write_all(b"lost").await.expect("sent");
        assert_eq!(heard(&mut stream).await, None);
        assert_eq!(fabric.tally.swallowed.load(Relaxed), 1);
        fabric.heal(&[(Party::Node(1), Party::Node(2))]);
        assert_eq!(heard(&mut stream).await.as_deref(), Some(""), "closed");
    }
}
