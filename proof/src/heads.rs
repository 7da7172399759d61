//! Heads that nodes have cosigned, and whether several files are of one history.
//!
//! A node cosigns a head only after it has found that it continues what the node cosigned before, with a key that no other node
//! has. So who holds the cluster's receipt key alone can't show two histories with the cosignatures of a majority on both.

use std::collections::BTreeMap;

use ed25519_dalek::VerifyingKey;
use quorate_domain::merkle::Hash;
use quorate_domain::receipt::LogHead;
use serde::{Deserialize, Serialize};

use crate::file::{self, ConsistencyFile, Cosigned, Fault, File, Report, head, key, key_of, note_of};
use crate::note::{self, Head};

/// A signed head with the cosignatures of nodes below the log's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CosignedHeadFile {
    pub form: String,
    /// One signature of the log, then one of each cosigner, in their order.
    pub head: String,
    /// The log's key as tools for signed notes take it.
    pub verifier_key: String,
    pub public_key: String,
    /// The nodes' keys as such tools take them, ordered by name.
    pub cosigners: Vec<String>,
}

impl File for CosignedHeadFile {
    const FORM: &'static str = "quorate.cosigned-head.v1";
}

impl CosignedHeadFile {
    /// The file of a head with the lines that nodes have answered. A line that none of these cosigners made is an error.
    pub fn of(
        head: LogHead,
        keys: &[(String, VerifyingKey)],
        lines: &[String],
        cosigners: &[(String, VerifyingKey)],
    ) -> Result<Self, String> {
        let mut note = note_of(head)?;
        let key = key_of(&note, keys)?;
        let verifier_key = note::verifier_key(note.split('\n').next().unwrap_or_default(), key);
        let public_key = hex::encode(key.as_bytes());
        let mut found = BTreeMap::new();
        {
            let (text, _) = note::split(&note)?;
            for line in lines {
                let bare = line.trim_end_matches('\n');
                let made = |(name, key): &&(String, VerifyingKey)| note::open_cosignature(bare, text, name, key).is_ok();
                let (name, key) = cosigners.iter().find(made).ok_or("a node's cosignature is by no key that the ring holds")?;
                found.insert(name.clone(), (format!("{bare}\n"), note::cosigner_key(name, key)));
            }
        }
        let mut cosigners = Vec::new();
        for (line, key) in found.into_values() {
            note += &line;
            cosigners.push(key);
        }
        Ok(Self { form: Self::FORM.into(), head: note, verifier_key, public_key, cosigners })
    }

    pub(crate) fn verify(self, pinned: Option<&VerifyingKey>) -> Result<Report, Fault> {
        let key = key(&self.public_key, pinned)?;
        let head = head("head", &self.head, &key)?;
        if self.verifier_key != note::verifier_key(&head.origin, &key) {
            return Err(Fault::at("verifier_key", "it is not the public key under the log's name"));
        }
        let (text, lines) = note::split(&self.head).map_err(|problem| Fault::at("head", problem))?;
        // Nothing is passed over here: every line is somebody's, and named.
        if lines.len() != self.cosigners.len() + 1 || text != head.text() {
            return Err(Fault::at("head", "it does not hold the log's signature and one of each cosigner, and nothing else"));
        }
        if note::open(&format!("{text}\n{}\n", lines[0]), &head.origin, &key).is_err() {
            return Err(Fault::at("head", "its first signature is not the log's"));
        }
        let mut cosigned_by: Vec<Cosigned> = Vec::new();
        for (n, (told, line)) in self.cosigners.iter().zip(&lines[1..]).enumerate() {
            let at = format!("cosigners[{n}]");
            let Some((name, cosigner)) = note::read_cosigner_key(told) else { return Err(Fault::at(at, "it is no key of a cosigner")) };
            if cosigned_by.last().is_some_and(|before| before.name >= name) {
                return Err(Fault::at(at, "cosigners stand in the order of their names, each once"));
            }
            let is_twice =
                cosigned_by.iter().any(|other| note::read_cosigner_key(&other.verifier_key).is_some_and(|(_, key)| key == cosigner));
            if is_twice || cosigner == key {
                return Err(Fault::at(at, "its key is the log's, or another cosigner's"));
            }
            let at_unix_s = note::open_cosignature(line, text, &name, &cosigner).map_err(|problem| Fault::at(at, problem))?;
            cosigned_by.push(Cosigned { name, verifier_key: told.clone(), at_unix_s });
        }
        let shows = format!("the log holds {} receipts, and {} nodes have cosigned that", head.size, cosigned_by.len());
        Ok(Report { cosigned_by, ..file::report::<Self>(head, &key, shows) })
    }
}

// ------------------------------------------------------------------ several files

/// What one file says of its log's history: heads, and that one continues the other.
struct Told {
    heads: Vec<Head>,
    key: Option<VerifyingKey>,
}

/// The heads within a file that was checked before.
fn told(contents: &[u8]) -> Told {
    #[derive(Deserialize)]
    struct Notes {
        head: Option<String>,
        from: Option<String>,
        to: Option<String>,
        public_key: Option<String>,
        receipt: Option<Box<Notes>>,
    }
    fn heads_in(notes: Notes) -> Told {
        let key = notes.public_key.as_deref().and_then(crate::ring::public);
        let found = [notes.head, notes.from, notes.to].into_iter().flatten();
        let heads: Vec<Head> = found.filter_map(|note| Head::open(&note, key.as_ref()?).ok()).collect();
        match notes.receipt {
            Some(receipt) if heads.is_empty() => heads_in(*receipt),
            _ => Told { heads, key },
        }
    }
    serde_json::from_slice(contents).map_or(Told { heads: Vec::new(), key: None }, heads_in)
}

/// Checks several files by themselves, and then that the heads in them are of one history: those of one size are the same, and those
/// of different sizes are linked by proofs of consistency among the files. A fault is told with the number of its file, from 0 on.
pub fn verify_together(files: &[Vec<u8>], pinned: Option<&VerifyingKey>) -> Result<Vec<Report>, (usize, Fault)> {
    let mut reports = Vec::new();
    for (n, contents) in files.iter().enumerate() {
        reports.push(file::verify(contents, pinned).map_err(|fault| (n, fault))?);
    }
    if files.len() > 1 {
        check_history(files, &reports)?;
    }
    Ok(reports)
}

fn check_history(files: &[Vec<u8>], reports: &[Report]) -> Result<(), (usize, Fault)> {
    // By log and size: the root, and the file that told it first.
    let mut roots: BTreeMap<(String, u64), (Hash, usize)> = BTreeMap::new();
    // By log: which sizes are proven to be of one history.
    let mut linked: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
    for (n, contents) in files.iter().enumerate() {
        let Told { heads, key } = told(contents);
        if key.is_none() {
            continue;
        }
        for head in &heads {
            let (root, first) = *roots.entry((head.origin.clone(), head.size)).or_insert((head.root, n));
            if root != head.root {
                let problem = format!("its head of {} receipts is another than that of file {first}: the log was split", head.size);
                return Err((n, Fault::at("head", problem)));
            }
        }
        if let (ConsistencyFile::FORM, [from, to]) = (reports[n].form, heads.as_slice()) {
            linked.entry(from.origin.clone()).or_default().push((from.size, to.size));
        }
    }
    let logs: BTreeMap<&str, Vec<(u64, usize)>> = roots.iter().fold(BTreeMap::new(), |mut logs, ((origin, size), (_, n))| {
        logs.entry(origin.as_str()).or_default().push((*size, *n));
        logs
    });
    for (origin, sizes) in logs {
        let mut reached = vec![sizes[0].0];
        let links = linked.get(origin).map(Vec::as_slice).unwrap_or_default();
        while let Some(next) = links.iter().find_map(|&(from, to)| match (reached.contains(&from), reached.contains(&to)) {
            (true, false) => Some(to),
            (false, true) => Some(from),
            _ => None,
        }) {
            reached.push(next);
        }
        // An empty log is continued by every other.
        if let Some((size, n)) = sizes.iter().find(|(size, _)| !reached.contains(size) && sizes[0].0 != 0) {
            let problem = format!(
                "nothing shows that its head of {size} receipts continues the one of {}: add the file of /v1/log/proof/consistency?from={}&to={size}",
                sizes[0].0, sizes[0].0
            );
            return Err((*n, Fault::at("head", problem)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cosigner, Signer};

    fn cosigned(nodes: &[u64]) -> Vec<u8> {
        let signer = Signer::from_hex(&"07".repeat(32), "c").unwrap();
        let head = Head { origin: note::origin("c", "acme"), size: 3, root: [5; 32] };
        let note = note::sign(&head.text(), &head.origin, &signer.key);
        let told = LogHead { tenant: "acme".into(), size: 3, root_hash: hex::encode([5; 32]), note: Some(note) };
        let cosigners: Vec<Cosigner> = nodes.iter().map(|id| Cosigner::new(&[*id as u8; 32], "c", *id)).collect();
        let known: Vec<_> = cosigners.iter().map(|one| (one.name().to_string(), crate::ring::public(&one.public_key()).unwrap())).collect();
        let lines: Vec<String> = cosigners.iter().map(|one| one.cosign(&head, 1_900_000_000)).collect();
        let keys = [(String::new(), signer.key.verifying_key())];
        file::text(&CosignedHeadFile::of(told, &keys, &lines, &known).unwrap()).into_bytes()
    }

    #[test]
    fn a_cosigned_head_names_who_cosigned_it_and_no_byte_of_it_can_be_changed() {
        let whole = cosigned(&[2, 1, 3]);
        let report = crate::verify(&whole, None).unwrap();
        let names: Vec<&str> = report.cosigned_by.iter().map(|by| by.name.as_str()).collect();
        assert_eq!(names, ["quorate-node/c/1", "quorate-node/c/2", "quorate-node/c/3"]);
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(crate::verify(&changed, None).is_err(), "byte {at} may be changed");
        }
    }

    #[test]
    fn a_cosigner_counts_once_and_the_logs_own_key_never() {
        let edit = |change: &dyn Fn(&mut CosignedHeadFile)| {
            let mut file: CosignedHeadFile = serde_json::from_slice(&cosigned(&[1, 2])).unwrap();
            change(&mut file);
            crate::verify(file::text(&file).as_bytes(), None)
        };
        assert!(edit(&|_| ()).is_ok());
        let twice = |file: &mut CosignedHeadFile| {
            let line = file.head.lines().last().unwrap().to_string() + "\n";
            file.head += &line;
            file.cosigners.push(file.cosigners[1].clone());
        };
        assert!(edit(&twice).is_err());
        let unnamed = |file: &mut CosignedHeadFile| drop(file.cosigners.pop());
        assert!(edit(&unnamed).is_err());
        let own = |file: &mut CosignedHeadFile| {
            let signer = Signer::from_hex(&"07".repeat(32), "c").unwrap();
            let head = signer.open_head(&file.head, "acme").unwrap();
            file.head += &note::cosign(&head.text(), "z", &signer.key, 1);
            file.cosigners.push(note::cosigner_key("z", &signer.key.verifying_key()));
        };
        assert!(edit(&own).is_err());
    }
}
