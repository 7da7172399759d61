//! Every limit, in one place. A limit that a caller meets is named in the refusal.

/// A fact's value: so that one version always fits a reply.
pub const FACT_VALUE_BYTES_MAX: usize = 16 * 1024;
/// The same as JSON text, where a control character takes six bytes: with names and the rest of its row it stays under
/// [`REPLY_BYTES_MAX`].
pub const FACT_VALUE_JSON_BYTES_MAX: usize = 24 * 1024;
/// Index rows that one recall or list examines before it stops and says how to go on. Few in tests, which so go over it.
pub const SCAN_ROWS_MAX: usize = if cfg!(test) { 40 } else { 20_000 };
/// Names: entity, key, session id, resource, passport.
pub const NAME_BYTES_MAX: usize = 512;
/// How deep a path of a resource goes. A card has an index row at each tree above it.
pub const RESOURCE_SEGMENTS_MAX: usize = 64;
/// Free text beside a decision: reasons, notes, summaries.
pub const TEXT_BYTES_MAX: usize = 4 * 1024;
/// A session's state and an approval's payload, as compact JSON.
pub const STATE_BYTES_MAX: usize = 16 * 1024;
/// Ids of facts that one write may retire.
pub const SUPERSEDES_MAX: usize = 100;
/// Alternatives, or references, of one decision.
pub const DECISION_LIST_MAX: usize = 100;
/// What a message repeats of a text that its reader sent.
pub const SHOWN_BYTES_MAX: usize = 200;
/// A request id or idempotency key.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

/// Rows of a list when no `limit` is given, and at the most.
pub const LIST_DEFAULT: usize = 50;
pub const LIST_MAX: usize = 1_000;
/// A reply's facts, as compact JSON: what it holds by default and at the most (design, 9).
pub const REPLY_BYTES_DEFAULT: usize = 8 * 1024;
pub const REPLY_BYTES_MAX: usize = 32 * 1024;
/// Tokens (4 bytes of compact JSON) of a reply, by default, where the contracts name them.
pub const VIEW_TOKENS_DEFAULT: u64 = 2_000;
pub const CONTRADICTIONS_TOKENS_DEFAULT: u64 = 500;
pub const FRESHNESS_TOKENS_DEFAULT: u64 = 500;
/// What a reply's rows leave to the names around them, the cursor and the reason why they end.
pub const REPLY_WRAPPER_BYTES: usize = 256;
/// Levels of objects and arrays in a session's state.
pub const STATE_DEPTH_MAX: usize = 64;

/// Why a passport should be minted.
pub const MINT_REASON_BYTES_MAX: usize = 2_048;
/// Cards, and tickets, of a revoked holder that one entry ends; the next entries end the rest.
pub const REVOKED_PER_ENTRY: usize = if cfg!(test) { 4 } else { 32 };

/// Private facts that go over to another passport in one split or merge.
pub const ADOPTED_FACTS_MAX: usize = if cfg!(test) { 6 } else { 500 };
/// The body of a merge's receipt, which stands in its reply as hex.
pub const MERGE_RECEIPT_BYTES_MAX: usize = 8 * 1024;
/// Passports that are merged into one.
pub const MERGED_MAX: usize = 16;
/// Devices of one passport, and capabilities of one device.
pub const DEVICES_MAX: usize = 32;
pub const DEVICE_CAPABILITIES_MAX: usize = 32;

/// What a hand-off carries: in Base64, with all around it, it fits a reply.
pub const HANDOFF_PAYLOAD_BYTES_MAX: usize = 22 * 1024;
/// Ids that it names, facts of one entity, and entries of one list of its task.
pub const HANDOFF_ITEMS_MAX: usize = 100;
/// How long it can be accepted.
pub const HANDOFF_TTL_MS: u64 = 7 * 24 * 60 * 60 * 1_000;

/// Constraints of one tenant, of which a check looks at each, and what one says.
pub const CONSTRAINTS_MAX: usize = if cfg!(test) { 20 } else { 200 };
pub const ASSERTION_BYTES_MAX: usize = 1_024;
/// The compiled form of a pattern.
pub const PATTERN_BYTES_MAX: usize = 256 * 1_024;
/// Principals, and resources, that are told of one action.
pub const ACTION_ITEMS_MAX: usize = 50;
/// Files whose audits are asked for at once: their rows fit a reply, however long their paths are.
pub const AUDITED_ITEMS_MAX: usize = 25;

/// A lease's length.
pub const LEASE_TTL_MS_MIN: u64 = 1_000;
pub const LEASE_TTL_MS_DEFAULT: u64 = 30 * 60 * 1_000;
pub const LEASE_TTL_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// How long a call may queue for a card.
pub const LEASE_WAIT_MS_MAX: u64 = 10 * 60 * 1_000;
/// Calls that may queue in one tenant.
pub const LEASE_WAITERS_MAX: usize = 1_000;
/// Waiting calls that one entry looks at to hand a freed resource on; the next entries look at the rest.
pub const HAND_OVERS_PER_ENTRY: usize = 32;
/// How long a ticket can be asked for after it has left the queue.
pub const TICKET_KEPT_MS: u64 = 60 * 60 * 1_000;
/// Cards and other deadlines that one entry ends; the next entries end the rest.
pub const SWEEP_PER_ENTRY: usize = 100;
/// Keys that a cluster may ever sign receipts with.
pub const RECEIPT_KEYS_MAX: usize = 100;
/// Observations of one call.
pub const OBSERVATIONS_PER_CALL_MAX: usize = 100;
/// Fact versions that one read of an export looks at. Few in tests, which so need several.
pub const EXPORT_ROWS_PER_PAGE: usize = if cfg!(test) { 3 } else { 256 };
/// Receipts that one entry adds to a tenant's tree beside its own, where the receipts are older than the tree.
pub const TREE_FILL_PER_ENTRY: u64 = if cfg!(test) { 3 } else { 64 };
/// The most that one entry may advance the lease clock.
pub const LEASE_ADVANCE_MS_MAX: u64 = 2_000;

/// An approval's life before it expires undecided.
pub const APPROVAL_TTL_MS_MIN: u64 = 1_000;
pub const APPROVAL_TTL_MS_DEFAULT: u64 = 24 * 60 * 60 * 1_000;
pub const APPROVAL_TTL_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1_000;
/// Undecided approvals in one tenant.
pub const APPROVALS_PENDING_MAX: usize = 10_000;

/// How long answers are remembered by request id: those the caller named, and those that only guard retries.
pub const ANSWER_KEYED_KEPT_MS: u64 = 24 * 60 * 60 * 1_000;
pub const ANSWER_AUTO_KEPT_MS: u64 = 10 * 60 * 1_000;
/// Answers remembered in one tenant, of each of the two kinds.
pub const ANSWERS_KEPT_MAX: u64 = 1_000_000;
/// Change events kept in one tenant.
pub const EVENTS_KEPT_MAX: u64 = 100_000;

/// Client sessions of one tenant that something is remembered of, and the resources that each of them watches.
pub const CLIENT_SESSIONS_MAX: u64 = 100_000;
pub const CLIENT_SUBSCRIPTIONS_MAX: usize = 100;

/// A work item's title, and the body of an item or a comment.
pub const WORK_TITLE_BYTES_MAX: usize = 512;
pub const WORK_BODY_BYTES_MAX: usize = 16 * 1024;
/// A whole item, or a comment, as JSON: it fits a reply by itself.
pub const WORK_JSON_BYTES_MAX: usize = 28 * 1024;

/// Passports whose usage one addition tells.
pub const USAGE_ROWS_MAX: usize = 100;

/// Stored bytes of capabilities that one search for files reads before it stops and says how to go on.
pub const FEATURE_SCAN_BYTES_MAX: usize = if cfg!(test) { 1024 } else { 2 * 1024 * 1024 };

/// Members of an orchestrator, and the whole of it in a reply: it fits one by itself, with a longer name too.
pub const ORCHESTRATOR_MEMBERS_MAX: usize = if cfg!(test) { 8 } else { 200 };
pub const ORCHESTRATOR_BYTES_MAX: usize = 28 * 1024;

/// Sessions that are announced at once in one tenant, and the paths of each.
pub const COORD_INTENTS_MAX: usize = if cfg!(test) { 5 } else { 200 };
pub const COORD_PATHS_MAX: usize = 32;
/// An announcement as JSON, so that a reply holds one beside another and what they have in common.
pub const INTENT_JSON_BYTES_MAX: usize = 6 * 1024;
/// How long an announcement lasts.
pub const COORD_TTL_S_DEFAULT: u64 = 4 * 60 * 60;
pub const COORD_TTL_S_MAX: u64 = 24 * 60 * 60;
/// Cards that are told of one session.
pub const COORD_LEASES_SHOWN: usize = 5;

/// How long a session's plan, and the intent that it declares, count.
pub const PLAN_TTL_MS: u64 = 60 * 60 * 1_000;
/// Earlier plans that a plan's chain goes back to.
pub const PLAN_CHAIN_MAX: usize = 8;

/// Facts, and chunks, that one turn acknowledges, and the bytes of the facts' rows that its reply shows.
pub const ACKNOWLEDGED_MAX: usize = 100;
pub const ACKNOWLEDGED_ROWS_BYTES: usize = 24 * 1024;

/// Artefacts that one milestone's gate names.
pub const GATE_ARTIFACTS_MAX: usize = 100;

/// Capabilities that a check for reuse answers at the most, and the bytes of their rows.
pub const REUSE_CANDIDATES_MAX: usize = 50;
pub const REUSE_ROWS_BYTES: usize = 12 * 1024;
/// Files that it shows of one capability.
pub const REUSE_FILES_SHOWN: usize = 10;
