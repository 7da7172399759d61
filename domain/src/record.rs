//! Records: what is stored, under `tenant / kind / id`.

use serde::{Serialize, de::DeserializeOwned};

use crate::codec;
use crate::key::Key;
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// The kind of a record or index row, as it stands in its key. On disk: numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    // Records
    Fact = 1,
    FactHead = 2,
    Punchcard = 10,
    Waiter = 11,
    Queue = 12,
    Approval = 20,
    ApprovalPolicy = 21,
    ApprovalCount = 22,
    Session = 30,
    SessionState = 31,
    MemoryPin = 32,
    Certificate = 33,
    Standing = 34,
    MintRequest = 35,
    Revocation = 36,
    Device = 37,
    Handoff = 38,
    Constraint = 39,
    Passport = 40,
    Token = 41,
    Flag = 42,
    Work = 44,
    WorkComment = 45,
    FeedEvent = 46,
    Intent = 47,
    Presence = 48,
    GraphEntity = 50,
    GraphEntityVersion = 51,
    GraphEdge = 52,
    GraphEdgeVersion = 53,
    GraphKind = 248,
    Orchestrator = 54,
    FeatureTotals = 55,
    ClientSession = 56,
    ClientSessionCount = 57,
    FeatureSystem = 58,
    TokenUsage = 59,
    TokenBudget = 247,
    // Receipts
    ReceiptBody = 60,
    ReceiptLink = 61,
    ReceiptHead = 62,
    ReceiptNode = 63,
    ReceiptTree = 64,
    ReceiptTreeFill = 65,
    Observation = 66,
    ObservationLink = 67,
    ObservationHead = 68,
    ReceiptKey = 69,
    // Search
    SearchFeed = 170,
    SearchFeedKept = 171,
    Document = 172,
    Passage = 173,
    SearchGap = 174,
    SearchGapOrder = 175,
    SearchGapsKept = 176,
    DocumentName = 177,
    DocumentLeaving = 178,
    // Dedup
    Answer = 70,
    AnswerOrder = 71,
    AnswerFloor = 72,
    // Meta
    Clock = 80,
    EventsKept = 81,
    Swept = 82,
    SpaceAlarm = 83,
    FeatureLevel = 84,
    Lineage = 89,
    // Measures: records, their deadlines, and where turns are
    TraceBatch = 210,
    TracesKept = 211,
    MeasureByDeadline = 212,
    HoldOut = 213,
    Activity = 214,
    SettlingCount = 215,
    Webhook = 216,
    Notice = 217,
    NoticeCount = 218,
    Project = 219,
    // Index
    FactById = 100,
    FactByRank = 101,
    EntityByName = 102,
    PunchcardByResource = 110,
    PunchcardByDeadline = 111,
    PunchcardByHolder = 112,
    PunchcardByPath = 113,
    PunchcardByStatus = 114,
    WaiterByDeadline = 115,
    WaiterByHolder = 116,
    WaiterByPath = 117,
    HandOver = 118,
    ApprovalByDeadline = 120,
    ApprovalPending = 121,
    ApprovalByRevision = 122,
    SessionByDeadline = 130,
    LeavingHolder = 131,
    MergedInto = 132,
    HandoffByDeadline = 133,
    WorkOrder = 140,
    FeedOrder = 141,
    IntentByDeadline = 142,
    GraphEdgeByTarget = 143,
    GraphEdgeByKind = 144,
    OrchestratorOrder = 145,
    FeatureGap = 146,
    SettlingByPath = 150,
    SettlingByDeadline = 151,
    ApprovalByEscalation = 152,
    NoticeDue = 153,
    NoticeOrder = 154,
    NoticeForgotten = 155,
    ClientSessionByDeadline = 156,
    ReceiptById = 160,
    ObservationById = 161,
    ObservationByProvider = 162,
    // Forgetting: records, an order of them, and what is due cluster-wide
    Forgetting = 180,
    ForgottenFact = 181,
    ForgettingByDeadline = 182,
    ErasureDue = 183,
    // Artefacts, and which blobs are named
    BlobNamed = 184,
    Artefact = 185,
    ArtefactByBlob = 186,
    ArtefactOrder = 187,
    ArtefactByDeadline = 188,
    ArtefactCount = 189,
    TokenByPassport = 230,
    // Other clusters: what is known of one, which versions there and here agree, and which differ
    SyncRemote = 231,
    SyncPair = 232,
    SyncConflict = 233,
    IdentityLink = 237,
    // Records
    SessionPlan = 190,
    TurnUse = 191,
    // Repositories: records and, among them, the index of stored parts
    Repo = 200,
    RepoScan = 201,
    ScanPart = 202,
    ScanPartStored = 203,
    LatestScan = 204,
    // The corpus: records, then its orders and words
    CorpusItem = 205,
    CorpusSource = 206,
    CorpusOrder = 207,
    CorpusWord = 208,
    // Keys, under the cluster
    ReceiptSigningKey = 240,
    Cosigner = 241,
    // Tenants that came from another cluster
    TenantArrivals = 244,
    TenantImport = 245,
    // How much a tenant may store, and stores
    Quotas = 246,
    StoredUsage = 249,
    // Signing in: keys of passports, and an index
    SignInKey = 242,
    SignInToken = 243,
}

/// The tenant name under which cluster-wide state lives. It can't be a tenant: names are not empty.
pub const CLUSTER: &str = "";

/// The start of every key of one kind in one tenant.
pub fn kind_prefix(tenant: &str, kind: Kind) -> Key {
    Key::new().text(tenant).byte(kind as u8)
}

/// A stored object.
pub trait Record: Serialize + DeserializeOwned {
    const KIND: Kind;
    const TABLE: Table = Table::Records;

    fn tenant(&self) -> &str;

    /// The part of the key after tenant and kind.
    fn id(&self) -> Key;
}

fn record_key<R: Record>(tenant: &str, id: &Key) -> Vec<u8> {
    kind_prefix(tenant, R::KIND).raw(id.as_bytes()).into_bytes()
}

fn decode<R: Record>(bytes: &[u8]) -> Result<R, StorageError> {
    codec::decode(bytes).map_err(|error| StorageError::new(format!("record of kind {:?}", R::KIND), error))
}

/// One page of a list.
pub struct Page<T> {
    pub items: Vec<T>,
    /// Where the next page begins; `None` when this is the last.
    pub next: Option<Vec<u8>>,
}

/// Typed reads over any [`Read`].
pub trait ReadRecords: Read {
    fn get<R: Record>(&self, tenant: &str, id: &Key) -> Result<Option<R>, StorageError> {
        self.get_bytes(R::TABLE, &record_key::<R>(tenant, id))?.map(|bytes| decode(&bytes)).transpose()
    }

    /// At most `limit` records of one kind whose id begins with `prefix`, from `cursor` on (the `next` of the page before).
    fn page<R: Record>(&self, tenant: &str, prefix: &Key, cursor: Option<&[u8]>, limit: usize) -> Result<Page<R>, StorageError> {
        let start = kind_prefix(tenant, R::KIND).raw(prefix.as_bytes());
        let (rows, next) = self.page_bytes(R::TABLE, &start, cursor, limit)?;
        let items = rows.iter().map(|(_, value)| decode(value)).collect::<Result<_, _>>()?;
        Ok(Page { items, next })
    }

    /// Rows under a prefix, from `cursor` on, and where the next page begins. A cursor outside the prefix reads as its start,
    /// so that a made-up cursor can't reach another tenant.
    #[expect(clippy::type_complexity, reason = "rows and cursor, named in the doc")]
    fn page_bytes(
        &self,
        table: Table,
        prefix: &Key,
        cursor: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Vec<(Vec<u8>, Vec<u8>)>, Option<Vec<u8>>), StorageError> {
        let end = prefix.after_prefix();
        let from = cursor.filter(|cursor| cursor.starts_with(prefix.as_bytes())).unwrap_or(prefix.as_bytes());
        let mut rows = self.scan_bytes(table, from, &end, Direction::Ascending, limit.saturating_add(1))?;
        let next = (rows.len() > limit).then(|| rows.split_off(limit).swap_remove(0).0);
        Ok((rows, next))
    }
}

impl<T: Read + ?Sized> ReadRecords for T {}

/// Typed writes over any [`Tx`].
pub trait WriteRecords: Tx {
    fn put<R: Record>(&mut self, record: &R) {
        self.put_bytes(R::TABLE, record_key::<R>(record.tenant(), &record.id()), codec::encode(record));
    }

    fn delete<R: Record>(&mut self, record: &R) {
        self.delete_bytes(R::TABLE, record_key::<R>(record.tenant(), &record.id()));
    }

    /// An index row: its key is the order, its value what it points to.
    fn put_index(&mut self, key: Key, points_to: &[u8]) {
        self.put_bytes(Table::Index, key.into_bytes(), points_to.to_vec());
    }

    fn delete_index(&mut self, key: Key) {
        self.delete_bytes(Table::Index, key.into_bytes());
    }
}

impl<T: Tx + ?Sized> WriteRecords for T {}
