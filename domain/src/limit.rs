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
/// How long a resource stays closed to others after a card was lost.
pub const LOCK_DELAY_MS_MAX: u64 = 60 * 1_000;
/// Without a sign of life for so long, an attended place in the queue is given up.
pub const TICKET_ALIVE_MS: u64 = 30 * 1_000;
/// A card that was waited for by an attended call has to be taken by then.
pub const TICKET_CLAIM_MS: u64 = 15 * 1_000;
/// Cards of one call that renews or hands over many.
pub const CARDS_PER_CALL_MAX: usize = if cfg!(test) { 4 } else { 100 };
/// Who blocks whom is looked at so often for one wait; a longer search is given up, and then time-outs end a deadlock.
pub const DEADLOCK_STEPS_MAX: usize = 2_000;
/// Calls that may queue in one tenant.
pub const LEASE_WAITERS_MAX: usize = 1_000;
/// Waiting calls that one entry looks at to hand a freed resource on; the next entries look at the rest.
pub const HAND_OVERS_PER_ENTRY: usize = 32;
/// How long a ticket can be asked for after it has left the queue.
pub const TICKET_KEPT_MS: u64 = 60 * 60 * 1_000;
/// Cards and other deadlines that one entry ends; the next entries end the rest.
pub const SWEEP_PER_ENTRY: usize = 100;
/// Facts that one call forgets, and what it reads in search of them. Few in tests, which so need several calls.
pub const FORGET_FACTS_MAX: usize = if cfg!(test) { 4 } else { 1_000 };
pub const FORGET_SCAN_ROWS_MAX: usize = if cfg!(test) { 8 } else { 5_000 };
pub const FORGET_SCAN_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A parked output, and how many of them a passport has.
pub const ARTEFACT_BYTES_MAX: u64 = 16 * 1024 * 1024;
pub const ARTEFACTS_MAX: u64 = 10_000;
/// 90 days.
pub const ARTEFACT_TTL_S_MAX: u64 = 7_776_000;
/// Tenants that a cluster may ever import: every entry reads the list.
pub const IMPORTED_TENANTS_MAX: usize = 200;
/// Rows of one batch of an import, and about so many bytes of them.
pub const IMPORT_ROWS_MAX: usize = 1_000;
pub const IMPORT_BATCH_BYTES: usize = 256 * 1024;
/// Tenants that may have a quota: every entry reads them all.
pub const QUOTAS_MAX: usize = 200;
/// Rows that one entry counts of those that were there before a quota. Few in tests, which so need several entries.
pub const QUOTA_COUNTED_PER_ENTRY: usize = if cfg!(test) { 20 } else { 1_000 };
/// Keys that a cluster may ever sign receipts with.
pub const RECEIPT_KEYS_MAX: usize = 100;
/// Keys that its nodes may ever cosign heads with.
pub const COSIGNERS_MAX: usize = 200;
/// How long a token lives that was opened by a challenge.
pub const SIGN_IN_TOKEN_MS: u64 = 15 * 60_000;
/// Such tokens of one passport that live at a time.
pub const SIGN_IN_TOKENS_MAX: usize = 32;
/// A gateway's challenge: names of at most 512 bytes each, an instant and a nonce, sealed and encoded.
pub const SIGN_IN_CHALLENGE_BYTES_MAX: usize = 4_096;
/// Observations of one call.
pub const OBSERVATIONS_PER_CALL_MAX: usize = 100;
/// Fact versions that one read of an export looks at. Few in tests, which so need several.
pub const EXPORT_ROWS_PER_PAGE: usize = if cfg!(test) { 3 } else { 256 };
/// Pairs and bytes of values in one page of what another cluster reads, or is sent. Few in tests, which so need several.
pub const SHARED_ROWS_PER_PAGE: usize = if cfg!(test) { 3 } else { 256 };
pub const SHARED_BYTES_PER_PAGE: usize = if cfg!(test) { 256 } else { 256 * 1024 };
/// Entries of the list that says what is sent, and such lists whose place is remembered.
pub const SYNC_ALLOWED_MAX: usize = 50;
pub const SYNC_PUSHES_KEPT: usize = if cfg!(test) { 2 } else { 16 };
/// Entities whose facts are counted where a count is only told.
pub const COUNTED_ENTITIES_MAX: usize = 10_000;
/// Receipts that one entry adds to a tenant's tree beside its own, where the receipts are older than the tree.
pub const TREE_FILL_PER_ENTRY: u64 = if cfg!(test) { 3 } else { 64 };
/// The most that one entry may advance the lease clock.
pub const LEASE_ADVANCE_MS_MAX: u64 = 2_000;

/// An approval's life before it expires undecided.
pub const APPROVAL_TTL_MS_MIN: u64 = 1_000;
pub const APPROVAL_TTL_MS_DEFAULT: u64 = 24 * 60 * 60 * 1_000;
pub const APPROVAL_TTL_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1_000;
/// Rules of a tenant's policy.
pub const APPROVAL_RULES_MAX: usize = 50;
/// Addresses that a tenant's notices go to, and the length of one.
pub const WEBHOOKS_MAX: usize = 10;
pub const WEBHOOK_URL_BYTES_MAX: usize = 2 * 1024;
/// Notices of one tenant that are not delivered yet. One more is not made, and that is told.
pub const NOTICES_WAITING_MAX: u64 = if cfg!(test) { 3 } else { 10_000 };
/// How long a gateway has for one attempt before another may make the next one.
pub const NOTICE_ATTEMPT_MS: u64 = 30 * 1_000;
/// Attempts at a notice, and the wait after the first failed one; it doubles up to the longest. All in all about a day.
pub const NOTICE_ATTEMPTS_MAX: u64 = 20;
pub const NOTICE_BACKOFF_MS: u64 = 5 * 1_000;
pub const NOTICE_BACKOFF_MS_MAX: u64 = 2 * 60 * 60 * 1_000;
/// How long what became of a notice can be looked at.
pub const NOTICE_KEPT_MS: u64 = 7 * 24 * 60 * 60 * 1_000;
/// Notices that one look for due ones finds.
pub const NOTICES_DUE_SHOWN: usize = 16;
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

/// Languages that a repository is said to have, and a name that is made of its path.
pub const REPO_LANGUAGES_MAX: usize = 32;
pub const REPO_SLUG_BYTES_MAX: usize = 64;
/// Parts of a scan: files and routes, what one holds, how many one call stores, and how many are kept of one repository.
pub const SCAN_FILE_PARTS_MAX: usize = 1_024;
pub const SCAN_ROUTE_PARTS_MAX: usize = 64;
pub const SCAN_PART_ROWS_MAX: usize = 4_096;
pub const SCAN_PART_BYTES_MAX: usize = 256 * 1024;
pub const SCAN_PARTS_PER_CALL_MAX: usize = 64;
pub const SCAN_PARTS_STORED_MAX: usize = if cfg!(test) { 8 } else { 4_096 };
/// A story: how deep it goes, files in it, names of one line, and what it takes of a reply.
pub const STORY_DEPTH_MAX: u64 = 5;
pub const STORY_NODES_MAX: usize = if cfg!(test) { 12 } else { 200 };
pub const STORY_SYMBOLS_MAX: usize = 5;
pub const STORY_BYTES_MAX: usize = 20 * 1024;
/// A file with its calls, in one row of a reply; calls beyond it are counted.
pub const STORY_FILE_BYTES_MAX: usize = 16 * 1024;

/// Repositories that a connector reads, and items that it tells in one call.
pub const CORPUS_SOURCES_MAX: usize = 200;
/// Sources that a list names which may be missing in it.
pub const CORPUS_BEHIND_SHOWN: usize = 5;
pub const CORPUS_ITEMS_PER_CALL_MAX: usize = 100;
/// What one item holds: its value, labels or parents, and words that it is found by.
pub const CORPUS_VALUE_BYTES_MAX: usize = 12 * 1024;
pub const CORPUS_LABELS_MAX: usize = 100;
pub const CORPUS_WORDS_MAX: usize = 128;
pub const CORPUS_WORD_BYTES_MAX: usize = 64;

/// Items that one depends on, and that depend on one; each of these changes in the entry in which that one is finished.
pub const WORK_DEPENDENCIES_MAX: usize = 50;
pub const WORK_DEPENDENTS_MAX: usize = if cfg!(test) { 5 } else { 100 };
/// Items that are looked at to see whether one would depend on itself.
pub const WORK_DEPENDENCY_STEPS_MAX: usize = 2_000;
/// Projects that a tenant makes, and the members of one.
pub const PROJECTS_MAX: usize = if cfg!(test) { 3 } else { 1_000 };
pub const PROJECT_MEMBERS_MAX: usize = 500;

/// Passports whose usage one addition tells.
pub const USAGE_ROWS_MAX: usize = 100;

/// Stored bytes of capabilities that one search for files reads before it stops and says how to go on.
pub const FEATURE_SCAN_BYTES_MAX: usize = if cfg!(test) { 1024 } else { 2 * 1024 * 1024 };

/// Members of an orchestrator, and the whole of it in a reply: it fits one by itself, with a longer name too.
pub const ORCHESTRATOR_MEMBERS_MAX: usize = if cfg!(test) { 8 } else { 200 };
/// Orchestrators, but for archived ones, that one item of work is a member of.
pub const WORK_ORCHESTRATORS_MAX: usize = if cfg!(test) { 8 } else { 50 };
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

/// Calls, and passports, that one hand-over of measures tells of.
pub const TRACES_PER_ADDITION_MAX: usize = 200;
pub const TRACED_PASSPORTS_MAX: usize = 100;
/// Traces kept of one passport, and of one tenant. Few in tests, which so go over it.
pub const TRACES_PER_PASSPORT_MAX: u64 = if cfg!(test) { 12 } else { 5_000 };
pub const TRACES_PER_TENANT_MAX: u64 = if cfg!(test) { 20 } else { 100_000 };
/// What one trace tells: effects, and its signature.
pub const TRACE_EFFECTS_MAX: usize = 4;
pub const TRACE_SIGNATURE_BYTES_MAX: usize = 400;
/// Tokens of a reply of traces by default.
pub const TRACE_TOKENS_DEFAULT: u64 = 2_000;
/// Loops that one reply tells of.
pub const LEARN_PROPOSALS_MAX: usize = 20;

/// Rows kept of one session's activity, its texts, what rows show of them, and the ids that one row names.
pub const ACTIVITY_ROWS_MAX: u64 = if cfg!(test) { 6 } else { 5_000 };
pub const ACTIVITY_TEXT_BYTES_MAX: usize = 16 * 1024;
pub const ACTIVITY_PREVIEW_BYTES_MAX: usize = 160;
pub const ACTIVITY_REFS_MAX: usize = 20;
/// Tokens of a reply of activity by default.
pub const ACTIVITY_TOKENS_DEFAULT: u64 = 500;
/// A search's text, results that one can page through in all, and those that the index is asked for beyond a page, in place of
/// any that the state no longer holds.
pub const SEARCH_QUERY_BYTES_MAX: usize = 2 * 1024;
pub const SEARCH_DEPTH_MAX: usize = if cfg!(test) { 20 } else { 1_000 };
pub const SEARCH_SPARE: usize = if cfg!(test) { 4 } else { 40 };
/// Best results whose neighbours in the graph are looked at, edges of each, and facts about what they lead to.
pub const SEARCH_SEEDS: usize = 8;
pub const SEARCH_EDGES: usize = 16;
pub const SEARCH_FACTS: usize = 3;
/// Ids that are expanded at once, and their bytes in all.
pub const EXPAND_IDS_MAX: usize = 50;
pub const EXPAND_IDS_BYTES_MAX: usize = 4 * 1024;
/// Revisions for which the changes of what can be found are kept. An index that is further behind is built anew.
pub const SEARCH_FEED_REVISIONS: u64 = if cfg!(test) { 20 } else { 200_000 };
/// What nothing was found for: how many are kept in a tenant, the words of one, and how long one is not noted again.
pub const SEARCH_GAPS_MAX: u64 = if cfg!(test) { 5 } else { 200 };
pub const SEARCH_GAP_BYTES_MAX: usize = 200;
pub const SEARCH_GAP_AGAIN_MS: u64 = 60 * 60 * 1_000;

/// A file that is ingested, the passages of its text, and the bytes of one.
pub const DOCUMENT_BYTES_MAX: usize = 16 * 1024 * 1024;
pub const DOCUMENT_PASSAGES_MAX: usize = 16 * 1024;
pub const PASSAGE_BYTES_MAX: usize = 2 * 1024;
/// Passages that one entry adds, and their bytes.
pub const PASSAGES_PER_ENTRY_MAX: usize = 64;
pub const PASSAGES_PER_ENTRY_BYTES_MAX: usize = 128 * 1024;
/// Passages of a leaving document that one entry takes away; the next entries take the rest.
pub const PASSAGES_SWEPT_PER_ENTRY: u64 = if cfg!(test) { 3 } else { 64 };
/// Names that point to one content, and names that one question asks for.
pub const DOCUMENT_NAMES_MAX: usize = 64;
pub const DOCUMENTS_CHECKED_MAX: usize = 500;

/// How long a session's plan, and the intent that it declares, count.
pub const PLAN_TTL_MS: u64 = 60 * 60 * 1_000;
/// Earlier plans that a plan's chain goes back to.
pub const PLAN_CHAIN_MAX: usize = 8;

/// Facts, and chunks, that one turn acknowledges, and the bytes of the facts' rows that its reply shows.
pub const ACKNOWLEDGED_MAX: usize = 100;
pub const ACKNOWLEDGED_ROWS_BYTES: usize = 24 * 1024;

/// Edges that a walk of the graph looks at, how far it goes, and the kinds of edges that it names.
pub const WALK_EDGES_MAX: usize = if cfg!(test) { 40 } else { 1_000 };
pub const WALK_DEPTH_MAX: u64 = 5;
pub const WALK_EDGE_KINDS_MAX: usize = 10;
/// Kinds of entities that a tenant registers, edges that may leave one, kinds that each may lead to, and a kind's schema.
pub const KINDS_MAX: usize = if cfg!(test) { 3 } else { 100 };
pub const KIND_RULES_MAX: usize = 50;
pub const KIND_SCHEMA_BYTES_MAX: usize = 12 * 1024;
/// Plans that are asked for at once, and gates of each that are told.
pub const PLANS_ASKED_MAX: usize = 200;
pub const PLAN_GATES_MAX: usize = 200;
/// For how long after its last change a plan's file that nobody told anything of counts as planned.
pub const PLAN_FRESH_MS: u64 = 90 * 24 * 60 * 60 * 1_000;
/// Artefacts that one milestone's gate names.
pub const GATE_ARTIFACTS_MAX: usize = 100;

/// Capabilities that a check for reuse answers at the most, and the bytes of their rows.
pub const REUSE_CANDIDATES_MAX: usize = 50;
pub const REUSE_ROWS_BYTES: usize = 12 * 1024;
/// Files that it shows of one capability.
pub const REUSE_FILES_SHOWN: usize = 10;
