//! The forms in which Raft's own data is written to disk and to peers.
//!
//! They are ours, so that a new openraft is a change of code and never a migration of data. Structs are CBOR with named
//! fields and grow by addition only. An entry is framed by hand, because there are many: one byte of kind, eight of term, and
//! the payload as it came. The index is the key in the log and follows from the position in a request.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use quorate_domain::codec;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::types::{self, Address, Entry, LogId, Membership, Proposal, SnapshotMeta, StoredMembership, Vote};

/// Bytes that are not what they were read as. On disk it is damage, from a peer a fault in one of the two programs.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FormError(String);

impl From<FormError> for std::io::Error {
    fn from(error: FormError) -> Self {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }
}

impl From<codec::DecodeError> for FormError {
    fn from(error: codec::DecodeError) -> Self {
        Self(error.to_string())
    }
}

pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FormError> {
    Ok(codec::decode(bytes)?)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogIdForm {
    pub term: u64,
    pub index: u64,
}

impl From<LogId> for LogIdForm {
    fn from(id: LogId) -> Self {
        Self { term: id.committed_leader_id().term, index: id.index() }
    }
}

impl From<LogIdForm> for LogId {
    fn from(form: LogIdForm) -> Self {
        types::log_id(form.term, form.index)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteForm {
    pub term: u64,
    pub node: u64,
    /// Granted by a quorum: `node` leads `term`.
    pub committed: bool,
}

impl From<Vote> for VoteForm {
    fn from(vote: Vote) -> Self {
        Self { term: vote.leader_id.term, node: vote.leader_id.voted_for, committed: vote.committed }
    }
}

impl From<VoteForm> for Vote {
    fn from(form: VoteForm) -> Self {
        match form.committed {
            true => Vote::new_committed(form.term, form.node),
            false => Vote::new(form.term, form.node),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipForm {
    /// One set of voters; two while the membership changes.
    pub configs: Vec<BTreeSet<u64>>,
    /// All members; those outside `configs` are learners.
    pub nodes: BTreeMap<u64, Address>,
}

impl From<&Membership> for MembershipForm {
    fn from(membership: &Membership) -> Self {
        Self {
            configs: membership.get_joint_config().clone(),
            nodes: membership.nodes().map(|(id, address)| (*id, address.clone())).collect(),
        }
    }
}

impl TryFrom<MembershipForm> for Membership {
    type Error = FormError;

    fn try_from(form: MembershipForm) -> Result<Self, FormError> {
        if form.configs.is_empty() && form.nodes.is_empty() {
            return Ok(Membership::default());
        }
        Membership::new(form.configs, form.nodes).map_err(|error| FormError(format!("invalid membership: {error}")))
    }
}

/// What the state machine stands at. Stored beside the state in the same batch, and in the manifest of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedForm {
    pub last: Option<LogIdForm>,
    pub membership_at: Option<LogIdForm>,
    pub membership: MembershipForm,
    /// Every id that was ever a member. None of them may join again: see [`crate::membership`].
    #[serde(default)]
    pub members_ever: BTreeSet<u64>,
}

impl AppliedForm {
    pub fn index(&self) -> u64 {
        self.last.map_or(0, |last| last.index)
    }

    pub fn decode(bytes: Option<&[u8]>) -> Result<Self, FormError> {
        bytes.map_or_else(|| Ok(Self::default()), decode)
    }

    pub fn encode(&self) -> Bytes {
        codec::encode(self).into()
    }

    pub fn stored_membership(&self) -> Result<StoredMembership, FormError> {
        Ok(StoredMembership::new(self.membership_at.map(LogId::from), self.membership.clone().try_into()?))
    }

    pub fn snapshot_meta(&self) -> Result<SnapshotMeta, FormError> {
        Ok(SnapshotMeta { last_log_id: self.last.map(LogId::from), last_membership: self.stored_membership()? })
    }
}

// ------------------------------------------------------------------ entries

/// Kinds of entries, on disk; never reused.
const BLANK: u8 = 1;
const NORMAL: u8 = 2;
const MEMBERSHIP: u8 = 3;
const FRAME_HEADER_BYTES: usize = 1 + 8;

/// An entry as the log and a request hold it.
pub fn encode_entry(entry: &Entry) -> Bytes {
    let membership;
    let (kind, payload): (u8, &[u8]) = match &entry.payload {
        EntryPayload::Blank => (BLANK, &[]),
        EntryPayload::Normal(proposal) => (NORMAL, &proposal.0),
        EntryPayload::Membership(changed) => {
            membership = codec::encode(&MembershipForm::from(changed));
            (MEMBERSHIP, &membership)
        }
    };
    let mut frame = BytesMut::with_capacity(FRAME_HEADER_BYTES + payload.len());
    frame.put_u8(kind);
    frame.put_u64(entry.log_id().committed_leader_id().term);
    frame.put_slice(payload);
    frame.freeze()
}

/// The payload stays a slice of `frame`.
pub fn decode_entry(index: u64, mut frame: Bytes) -> Result<Entry, FormError> {
    if frame.len() < FRAME_HEADER_BYTES {
        return Err(FormError(format!("entry {index} has no header")));
    }
    let kind = frame.get_u8();
    let term = frame.get_u64();
    let payload = match kind {
        BLANK => EntryPayload::Blank,
        NORMAL => EntryPayload::Normal(Proposal(frame)),
        MEMBERSHIP => EntryPayload::Membership(decode::<MembershipForm>(&frame)?.try_into()?),
        other => return Err(FormError(format!("entry {index} is of the unknown kind {other}"))),
    };
    Ok(Entry::new(types::log_id(term, index), payload))
}

/// The term of an entry, whatever it holds.
pub fn decode_entry_term(index: u64, frame: Bytes) -> Result<u64, FormError> {
    Ok(decode_entry(index, frame)?.log_id().committed_leader_id().term)
}

// ------------------------------------------------------------------ requests between nodes

/// What stands before the entries of an append.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppendForm {
    pub vote: VoteForm,
    pub prev: Option<LogIdForm>,
    pub leader_commit: Option<LogIdForm>,
    /// How long ago the leader sent what a quorum last acknowledged. Until then nobody else led, so what this request says of
    /// the commit was true of the whole cluster then. Lets a follower tell the age of its state.
    pub quorum_age_ms: Option<u64>,
}

/// `u32` length and CBOR of the header, then `u32` length and frame of each entry.
pub fn encode_append(header: &AppendForm, entries: &[Entry]) -> Bytes {
    let header = codec::encode(header);
    let frames: Vec<Bytes> = entries.iter().map(encode_entry).collect();
    let bytes = 4 + header.len() + frames.iter().map(|frame| 4 + frame.len()).sum::<usize>();
    let mut body = BytesMut::with_capacity(bytes);
    for part in std::iter::once(header.as_slice()).chain(frames.iter().map(|frame| &frame[..])) {
        // Requests are bounded far below 4 GiB by the log reader.
        body.put_u32(part.len() as u32);
        body.put_slice(part);
    }
    body.freeze()
}

pub fn decode_append(mut body: Bytes) -> Result<(AppendForm, Vec<Entry>), FormError> {
    let header: AppendForm = decode(&take_part(&mut body)?)?;
    let mut index = header.prev.map_or(0, |prev| prev.index + 1);
    let mut entries = Vec::new();
    while !body.is_empty() {
        entries.push(decode_entry(index, take_part(&mut body)?)?);
        index += 1;
    }
    Ok((header, entries))
}

fn take_part(body: &mut Bytes) -> Result<Bytes, FormError> {
    let cut_short = || FormError("the request is cut short".into());
    let len = body.try_get_u32().map_err(|_| cut_short())? as usize;
    if len > body.len() {
        return Err(cut_short());
    }
    Ok(body.split_to(len))
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppendReplyForm {
    Matched(Option<LogIdForm>),
    Conflict(LogIdForm),
    HigherVote(VoteForm),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteRequestForm {
    pub vote: VoteForm,
    pub last_log: Option<LogIdForm>,
    pub leadership_transfer: bool,
    /// Only asks; nothing is granted or stored.
    pub pre_vote: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteReplyForm {
    pub vote: VoteForm,
    pub granted: bool,
    pub last_log: Option<LogIdForm>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferForm {
    pub from: VoteForm,
    pub to: u64,
    pub last_log: Option<LogIdForm>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransferReplyForm {
    Accepted,
    VoteChanged { actual: VoteForm },
    LogNotFlushed { actual: Option<LogIdForm> },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadIndexReplyForm {
    /// A read that waits until this index is applied sees all that was acknowledged before it was asked for.
    Index(u64),
    /// The node that was asked does not lead.
    NotLeader,
    /// It leads, but a quorum did not confirm it in time.
    NoQuorum(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership() -> Membership {
        let nodes = BTreeMap::from([1, 2, 3].map(|id| (id, Address { grpc: format!("10.0.0.{id}:7000"), http: String::new() })));
        Membership::new(vec![BTreeSet::from([1, 2])], nodes).unwrap()
    }

    #[test]
    fn every_kind_of_entry_comes_back_as_it_went() {
        let payloads =
            [EntryPayload::Blank, EntryPayload::Normal(Proposal(Bytes::from_static(b"abc"))), EntryPayload::Membership(membership())];
        for (index, payload) in (7..).zip(payloads) {
            let entry = Entry::new(types::log_id(3, index), payload);
            assert_eq!(decode_entry(index, encode_entry(&entry)).unwrap(), entry);
        }
    }

    #[test]
    fn the_stored_form_of_an_entry_is_pinned() {
        let entry = Entry::new(types::log_id(0x0102, 9), EntryPayload::Normal(Proposal(Bytes::from_static(b"\xaa"))));
        assert_eq!(encode_entry(&entry)[..], [2, 0, 0, 0, 0, 0, 0, 1, 2, 0xaa]);
    }

    #[test]
    fn an_append_carries_its_entries_behind_the_previous_one() {
        let header = AppendForm {
            vote: VoteForm { term: 4, node: 2, committed: true },
            prev: Some(LogIdForm { term: 3, index: 10 }),
            leader_commit: Some(LogIdForm { term: 3, index: 9 }),
            quorum_age_ms: Some(12),
        };
        let entries: Vec<Entry> = (11..14).map(|index| Entry::new(types::log_id(4, index), EntryPayload::Blank)).collect();
        let body = encode_append(&header, &entries);
        assert_eq!(decode_append(body.clone()).unwrap(), (header, entries));
        assert!(decode_append(body.slice(..body.len() - 1)).is_err());
    }

    #[test]
    fn what_is_applied_comes_back_with_its_membership() {
        let at = LogIdForm { term: 1, index: 1 };
        let applied = AppliedForm {
            last: Some(LogIdForm { term: 2, index: 40 }),
            membership_at: Some(at),
            membership: (&membership()).into(),
            members_ever: BTreeSet::from([1, 2, 3, 4]),
        };
        let again = AppliedForm::decode(Some(&applied.encode())).unwrap();
        assert_eq!(again, applied);
        assert_eq!(again.stored_membership().unwrap().membership(), &membership());
        assert_eq!(AppliedForm::decode(None).unwrap().index(), 0);
    }
}
