//! The keys of a node: the receipt keys, which all nodes of a cluster share, and one of its own to cosign heads with.
//!
//! Which receipt key signs is in the state; which ones this node holds is in its configuration and in a file that is looked at
//! again whenever the state names one that is not known yet. So a new key is brought to all nodes first, and then signs from one
//! entry on, without any restart. A node that lacks the key that signs serves nothing that has to be signed: the others do.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use quorate_domain::receipt::{GetLogHead, LogHead};
use quorate_domain::tx::Read;
use quorate_domain::{ReadStamp, StorageError, key_ring};
use quorate_proof::{Cosigner, Signer};

/// All keys of a node.
pub struct NodeKeys {
    cluster_id: String,
    /// The one that it was set up with, which signs until the state names another.
    own: Arc<Signer>,
    /// Further receipt keys, one in hex a line.
    file: Option<PathBuf>,
    /// Those of the file by public key.
    more: RwLock<BTreeMap<String, Arc<Signer>>>,
    witness: Option<Witness>,
}

impl NodeKeys {
    /// With one receipt key and no other: what a simulation has, since its files are real.
    pub fn of(own: Signer, cluster_id: &str) -> Self {
        Self { cluster_id: cluster_id.into(), own: Arc::new(own), file: None, more: RwLock::default(), witness: None }
    }

    /// With further ones in a file, which need not be there yet, and a witness.
    pub(crate) fn with(self, file: Option<PathBuf>, witness: Witness) -> Self {
        Self { file, witness: Some(witness), ..self }
    }

    pub(crate) fn witness(&self) -> Option<&Witness> {
        self.witness.as_ref()
    }

    /// Public halves of all receipt keys that this node holds.
    pub(crate) fn held(&self) -> Vec<String> {
        self.look();
        let more = self.more.read().expect("no panic under the lock");
        let own = self.own.public_key();
        let others = more.keys().filter(|key| **key != own).cloned();
        others.chain([own.clone()]).collect()
    }

    /// The receipt key of this public half, if the node holds it by now.
    pub(crate) fn named(&self, public_key: &str) -> Option<Arc<Signer>> {
        if self.own.public_key() == public_key {
            return Some(Arc::clone(&self.own));
        }
        let known = || self.more.read().expect("no panic under the lock").get(public_key).cloned();
        known().or_else(|| {
            self.look();
            known()
        })
    }

    /// The receipt key that signs what is served from this state; the error is its public half when the node does not hold it.
    pub(crate) fn signing(&self, view: &impl Read) -> Result<Result<Arc<Signer>, String>, StorageError> {
        Ok(match key_ring::signing_key(view)? {
            None => Ok(Arc::clone(&self.own)),
            Some(public_key) => self.named(&public_key).ok_or(public_key),
        })
    }

    /// Reads the file anew. What can't be used is told, and the keys that are known stay.
    fn look(&self) {
        let Some(file) = &self.file else { return };
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => return tracing::error!(file = %file.display(), %error, "the file of receipt keys can't be read"),
        };
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        for (n, line) in lines.enumerate() {
            match Signer::from_hex(line, &self.cluster_id) {
                Ok(signer) => {
                    let mut more = self.more.write().expect("no panic under the lock");
                    more.entry(signer.public_key()).or_insert_with(|| Arc::new(signer));
                }
                Err(problem) => {
                    tracing::error!(file = %file.display(), key = n + 1, problem, "a key in the file of receipt keys can't be used")
                }
            }
        }
    }
}

/// What cosigns heads, and remembers which: never two of one log that are not of one history.
pub(crate) struct Witness {
    cosigner: Cosigner,
    /// One file a log: the largest head that was cosigned.
    folder: PathBuf,
    /// One at a time: between looking up what was cosigned and writing down what is, nothing else may be.
    turn: Mutex<()>,
}

/// The folder of a witness within the replica's.
const FOLDER: &str = "cosigner";

impl Witness {
    /// Opens the node's own key, which is made once and stays in its folder.
    pub(crate) fn open(data: &Path, cluster_id: &str, node_id: u64) -> std::io::Result<Self> {
        let folder = data.join(FOLDER);
        fs::create_dir_all(&folder)?;
        let path = folder.join("key");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let text = hex::encode(rand::random::<[u8; 32]>());
                write_whole(&path, text.as_bytes())?;
                text
            }
            Err(error) => return Err(error),
        };
        let secret = hex::decode(text.trim()).ok().and_then(|bytes| bytes.try_into().ok());
        let secret = secret.ok_or_else(|| std::io::Error::other(format!("{} is not 32 bytes in hex", path.display())))?;
        Ok(Self { cosigner: Cosigner::new(&secret, cluster_id, node_id), folder, turn: Mutex::new(()) })
    }

    pub(crate) fn cosigner(&self) -> &Cosigner {
        &self.cosigner
    }

    /// Cosigns the head in a note that `signer` has signed, or says why not. It has to be a head of the caller's log as this node
    /// itself holds it, and to continue the one that it cosigned last.
    pub(crate) fn cosign(
        &self,
        signer: &Signer,
        note: &str,
        view: &impl Read,
        at: &ReadStamp,
    ) -> Result<Result<String, String>, StorageError> {
        let head = match signer.open_head(note, &at.caller.tenant) {
            Ok(head) => head,
            Err(problem) => return Ok(Err(problem)),
        };
        let root_at = |size: u64| -> Result<Option<String>, StorageError> {
            let told: Result<LogHead, _> = GetLogHead { size: Some(size) }.run(view, at)?;
            Ok(told.ok().map(|head| head.root_hash))
        };
        match root_at(head.size)? {
            None => return Ok(Err(format!("this node's log has not come to {} receipts", head.size))),
            Some(root) if root != hex::encode(head.root) => {
                tracing::error!(log = head.origin, size = head.size, "a head was shown that is not of this node's log");
                return Ok(Err(format!("this node's log of {} receipts has another root", head.size)));
            }
            Some(_) => {}
        }
        let _turn = self.turn.lock().expect("no panic under the lock");
        // A name may hold what no file name may.
        let path = self.folder.join(format!("head-{}", blake3_hex(&head.origin)));
        let last = match read_head(&path) {
            Ok(last) => last,
            Err(error) => return Ok(Err(format!("what was cosigned last can't be read: {error}"))),
        };
        if let Some((size, root)) = &last {
            if *size > head.size {
                return Ok(Err(format!("this node has cosigned a head of {size} receipts, and cosigns no smaller one after it")));
            }
            if root_at(*size)?.as_ref() != Some(root) {
                tracing::error!(log = head.origin, size, "the log does not continue what this node cosigned: its history was changed");
                return Ok(Err(format!("it does not continue the head of {size} receipts that this node has cosigned")));
            }
        }
        let now = (head.size, hex::encode(head.root));
        if last.as_ref() != Some(&now)
            && let Err(error) = write_whole(&path, format!("{} {}\n", now.0, now.1).as_bytes())
        {
            return Ok(Err(format!("what is cosigned can't be written down: {error}")));
        }
        let at_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Ok(Ok(self.cosigner.cosign(&head, at_unix_s)))
    }
}

fn blake3_hex(text: &str) -> String {
    quorate_domain::identity::token_hash(text)
}

fn read_head(path: &Path) -> std::io::Result<Option<(u64, String)>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let read = text.strip_suffix('\n').and_then(|line| line.split_once(' '));
    let read = read.and_then(|(size, root)| Some((size.parse().ok()?, root.to_owned())));
    read.map(Some).ok_or_else(|| std::io::Error::other(format!("{} is damaged", path.display())))
}

/// Its owner's alone, and on the disk whole or not at all before this is done.
fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let draft = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use quorate_domain::machine::{self, Body, Call, Clock, Entry};
    use quorate_domain::overlay::{Nothing, Overlay, Writes};
    use quorate_domain::{Command, Principal, Query, RequestId, Revision, Tier, UnixMs, codec};

    use super::*;

    const RECEIPT_KEY: &str = "0707070707070707070707070707070707070707070707070707070707070707";

    fn mara() -> Principal {
        Principal { tenant: "acme".into(), passport: "mara".into(), tier: Tier::Operator, scopes: ["*".to_string()].into() }
    }

    /// A log to which decisions are added.
    #[derive(Clone, Default)]
    struct Log {
        writes: Writes,
        revision: u64,
    }

    impl Log {
        fn decide(&mut self, action: &str) {
            self.revision += 1;
            let wall = UnixMs(1_900_000_000_000 + self.revision);
            let command = quorate_domain::decision::RecordDecision {
                action: action.into(),
                rationale: "r".into(),
                alternatives: vec![],
                confidence: quorate_domain::fact::Confidence::FULL,
                session_id: "s".into(),
                context_refs: vec![],
            };
            let request = RequestId { id: format!("r{}", self.revision), issued_at: wall, keyed: false };
            let body = Body::Call(Call { caller: mara(), request, under: None, command: Command::from(command) });
            let mut tx = Overlay::with_writes(&Nothing, std::mem::take(&mut self.writes));
            let entry = Entry { wall, advance_ms: 1, stamped_term: 1, body };
            machine::apply(&mut tx, Revision(self.revision), 1, entry).expect("no fault").expect("decided").outcome.expect("accepted");
            self.writes = tx.into_writes();
        }

        fn read<T>(&self, read: impl FnOnce(&Overlay<'_, Nothing>, &ReadStamp) -> T) -> T {
            let view = Overlay::with_writes(&Nothing, self.writes.clone());
            let Clock { lease_now, wall, revision, .. } = Clock::read(&view).expect("a clock");
            read(&view, &ReadStamp { revision, lease_now, wall, caller: mara() })
        }

        /// The newest head as a node serves it.
        fn head(&self, signer: &Signer) -> String {
            self.read(|view, at| {
                let query = Query::from(GetLogHead { size: None });
                let sign = Signer::of(&query).expect("heads are signed");
                let answer = query.run(view, at).expect("no fault").expect("a head");
                let head: LogHead = codec::decode(&sign(signer, &answer).expect("signed")).expect("a head");
                head.note.expect("a note")
            })
        }
    }

    fn cosign(witness: &Witness, signer: &Signer, log: &Log, note: &str) -> Result<String, String> {
        log.read(|view, at| witness.cosign(signer, note, view, at).expect("no fault"))
    }

    #[test]
    fn a_node_cosigns_what_continues_its_last_head_and_nothing_else_also_after_a_restart() {
        let dir = tempfile::tempdir().expect("a folder");
        let signer = Signer::from_hex(RECEIPT_KEY, "c").expect("a key");
        let mut log = Log::default();
        log.decide("one");
        let fork = log.clone();
        let witness = Witness::open(dir.path(), "c", 1).expect("a witness");
        let first = log.head(&signer);
        cosign(&witness, &signer, &log, &first).expect("the first head");
        cosign(&witness, &signer, &log, &first).expect("the same again");
        log.decide("two");
        let second = log.head(&signer);
        cosign(&witness, &signer, &log, &second).expect("its continuation");

        let public_key = witness.cosigner().public_key();
        let witness = Witness::open(dir.path(), "c", 1).expect("the same after a restart");
        assert_eq!(witness.cosigner().public_key(), public_key);
        let smaller = cosign(&witness, &signer, &log, &first).expect_err("a smaller one");
        assert!(smaller.contains("cosigned a head of 2 receipts"), "{smaller}");
        // Another history of the same length and longer, with this node's state changed along with it.
        let mut fork = fork;
        fork.decide("another");
        let split = cosign(&witness, &signer, &fork, &fork.head(&signer)).expect_err("another history");
        assert!(split.contains("does not continue the head of 2 receipts"), "{split}");
        fork.decide("and on");
        cosign(&witness, &signer, &fork, &fork.head(&signer)).expect_err("its continuation");
        // A head that is signed, and not of this node's log.
        let foreign = cosign(&witness, &signer, &log, &fork.head(&signer)).expect_err("a longer log");
        assert!(foreign.contains("has not come to 3 receipts"), "{foreign}");
        let stranger = Signer::from_hex(&"08".repeat(32), "c").expect("a key");
        cosign(&witness, &signer, &log, &log.head(&stranger)).expect_err("signed by another key");
        cosign(&witness, &signer, &log, &second).expect("its own history goes on");
    }

    #[test]
    fn a_key_that_comes_into_the_file_is_found_without_a_restart() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("receipt-keys");
        let witness = Witness::open(dir.path(), "c", 1).expect("a witness");
        let keys = NodeKeys::of(Signer::from_hex(RECEIPT_KEY, "c").expect("a key"), "c").with(Some(file.clone()), witness);
        let next = Signer::from_hex(&"08".repeat(32), "c").expect("a key").public_key();
        assert!(keys.named(&next).is_none() && keys.held().len() == 1);
        fs::write(&file, format!("# the next one\nnonsense\n{}\n", "08".repeat(32))).expect("written");
        assert_eq!(keys.named(&next).expect("found").public_key(), next);
        assert_eq!(keys.held().len(), 2);
        fs::write(&file, "").expect("written");
        assert!(keys.named(&next).is_some(), "a key that may be signing is not forgotten while the node runs");
    }
}
