//! Every limit of the front door, in one place. Limits on what is stored stand in `quorate_domain::limit`.

use std::time::Duration;

/// A request's body.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// What is still read of a body that is over the limit, so that its sender gets to read the refusal.
pub const BODY_BYTES_DRAINED: usize = 8 << 20;
/// Files whose text is read at once; each holds its file and its passages in memory.
pub const INGESTING_MAX: usize = 4;
/// Brackets within brackets in a request.
pub const JSON_DEPTH_MAX: usize = 64;
/// Messages of one batch (2025-03-26).
pub const BATCH_MAX: usize = 50;
/// Rows of one page of a list of MCP.
pub const LIST_PAGE: usize = 100;
/// How long a client may keep such a list.
pub const LIST_TTL_MS: u64 = 60_000;
/// A bearer token's text.
pub const TOKEN_BYTES_MAX: usize = 4 * 1024;

/// How long a resolved token is believed, from before the cluster was asked about it: a revocation counts on every gateway within a
/// second. Longer: a revoked token reads for so long; writes are refused at once all the same.
pub const TOKEN_KNOWN_FOR: Duration = Duration::from_millis(600);
/// The same for a token that is not valid: short, so that a new one works soon after it is made.
pub const TOKEN_UNKNOWN_FOR: Duration = Duration::from_millis(500);
/// How long a quorum is asked who is calling before the state of a single node has to do, and how long when no leader is known.
pub const STANDING_ASKED_FOR: Duration = Duration::from_millis(2_500);
pub const STANDING_ASKED_FOR_LEADERLESS: Duration = Duration::from_millis(300);
/// How old that state may be.
pub const STANDING_STALE_MS_MAX: u64 = 60 * 1_000;
/// How long a list of tools waits to hear which are switched off.
pub const FLAGS_ASKED_FOR: Duration = Duration::from_millis(1_000);
/// Resolved tokens kept at once.
pub const TOKENS_KEPT: usize = 10_000;

/// A legacy session id's life. Long, because some clients never recover from a session that ended.
pub const SESSION_ID_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1_000;

/// How long a challenge can be answered.
pub const CHALLENGE_MS: u64 = 60_000;

/// Time to reach a node at all.
pub const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// One attempt at a write. A leader that is paused or cut off costs no longer than this, and mostly less: see `cluster`.
pub const PROPOSE_ATTEMPT: Duration = Duration::from_secs(4);
/// One attempt at a read.
pub const READ_ATTEMPT: Duration = Duration::from_millis(1_000);
/// After so long without an answer a read is also asked of another node.
pub const READ_HEDGE: Duration = Duration::from_millis(250);
/// How long `check_punchcard` looks for an answer before it says `unknown`: a hook waits for it before every edit.
pub const CHECK_DEADLINE: Duration = Duration::from_secs(3);
/// How often the nodes are asked who leads, when all is well and when nobody is known to.
pub const PROBE_CALM: Duration = Duration::from_millis(1_000);
pub const PROBE_ANXIOUS: Duration = Duration::from_millis(150);
pub const PROBE_TIMEOUT: Duration = Duration::from_millis(400);
/// Answers to that of each node whose times are kept: two minutes when all is well.
pub const ROUND_TRIPS_KEPT: usize = 120;
/// Waits between attempts: doubled each time, with jitter.
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);
pub const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// How often a queued `punch_in` looks at its ticket, with a watch open and without one.
pub const TICKET_POLL_WATCHED: Duration = Duration::from_millis(1_000);
pub const TICKET_POLL_BLIND: Duration = Duration::from_millis(200);
/// How often a queued `punch_in` shows that it is still there: several times in what the cluster waits for it.
pub const TICKET_ALIVE_EVERY: Duration = Duration::from_secs(8);
/// How long a call may wait for the decision of an approval, and how often it looks whatever events say.
pub const APPROVAL_WAIT_MS_MAX: u64 = 10 * 60 * 1_000;
pub const APPROVAL_POLL: Duration = Duration::from_secs(5);
/// A command on its way to a node, which takes so much and what surrounds it.
pub const COMMAND_BYTES_MAX: usize = quorate_proto::REQUEST_BYTES_MAX - 64 * 1024;
/// A node's answer.
pub const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Frames that wait for a reader of a stream, and how long it may leave all of them waiting.
pub const READER_FRAMES: usize = 32;
pub const SLOW_READER: Duration = Duration::from_secs(30);
/// Streams that one gateway serves at once, calls apart. More get 503.
pub const STREAMS_MAX: usize = 4_096;
/// A stream without news shows so often that it lives.
pub const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
/// How often a stream looks whether its token still holds.
pub const STREAM_TOKEN_CHECKED: Duration = Duration::from_secs(5);
/// A node that has said nothing for so long is left for another one; it shows every five seconds that it lives.
pub const WATCH_SILENCE: Duration = Duration::from_secs(12);
/// A reader of events is told so often where it stands, whatever its filter lets through.
pub const EVENTS_PROGRESS: Duration = Duration::from_secs(1);
/// Kinds that one reader of events may name.
pub const KINDS_MAX: usize = 32;

/// How long somebody stays signed in to the console with one sign-in.
pub const CONSOLE_PASS_MS: u64 = 12 * 60 * 60 * 1_000;
/// How old a page of the console may be when all is well: so old that any node has what it needs, leader or not.
pub const CONSOLE_STALE_MS: u64 = 3_000;
/// How long such a page is asked for before an older one does, and how long that.
pub const CONSOLE_ASKED_FOR: Duration = Duration::from_millis(1_500);
pub const CONSOLE_READ_WITHIN: Duration = Duration::from_secs(5);
/// A page that is older says so.
pub const CONSOLE_OLD: Duration = Duration::from_secs(4);
/// How often the page of the cluster looks again, in ms: the gateway asks the nodes no more often than that.
pub const CONSOLE_REFRESH_MS: u64 = 2_000;

/// Buckets of rates that are remembered; those that are full are forgotten then.
pub const BUCKETS_MAX: usize = 100_000;
/// Calls a second, and at once, that can be set.
pub const RATE_MAX: u32 = 1_000_000;

/// Changes of lists that a stream may have waiting; one that is behind by more is told that all have changed.
pub const LIST_CHANGES_WAITING: usize = 16;
/// What a running call may have said that its stream has not taken.
pub const SAID_WAITING: usize = 16;
/// What is kept of one call's stream for a client that comes back, for how long after its end, and of how many calls.
pub const REPLAY_BYTES_MAX: usize = 128 * 1024;
pub const REPLAY_KEPT: Duration = Duration::from_secs(60);
pub const REPLAYS_MAX: usize = 512;
/// When a client that lost a stream should come back, in ms.
pub const RETRY_MS: u64 = 500;
/// How long what is remembered of a client session is believed. Longer: a session that was ended at another gateway is served
/// for so long.
pub const SESSION_KNOWN_FOR: Duration = Duration::from_secs(2);
/// How long a call waits for its client, or the person there, to answer a question.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(5 * 60);
/// How long a call that waits for answers keeps its place: its state is not taken after that.
pub const REQUEST_STATE_MS_MAX: u64 = 10 * 60 * 1_000;
/// Completions of one answer, which is the protocol's limit.
pub const COMPLETIONS_MAX: usize = 100;
/// The everyday list as JSON. About four bytes make a token, and some clients show all of it to the model at every turn.
pub const EVERYDAY_BYTES_MAX: usize = 4 * 8_000;
/// Traces that wait to be handed to the cluster. More are counted and not kept.
pub const TRACES_WAITING_MAX: u64 = 20_000;

/// Bytes of a blob in one message to a node, and how long one node may take for a whole one.
pub const BLOB_PART_BYTES: usize = 512 << 10;
pub const BLOB_ATTEMPT: Duration = Duration::from_secs(10);
