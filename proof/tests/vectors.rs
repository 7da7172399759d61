//! The published vectors: a file of every form, made of one log with one key, and what becomes of each when it is tampered with.
//!
//! `UPDATE_EXPECT=1` writes them anew. They are for whoever writes a verifier of their own: `docs/vectors/verify.py` is one.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::PathBuf;

use ed25519_dalek::VerifyingKey;
use quorate_domain::acknowledgement::{AcknowledgeUse, UseAcknowledged, UseIntent};
use quorate_domain::approval::{Approval, DecideApproval, Decision, RequestApproval, RiskTier};
use quorate_domain::attestation::{AttestOutput, OutputAttested};
use quorate_domain::decision::{DecisionRecorded, RecordDecision};
use quorate_domain::fact::{
    Confidence, ConsolidateFacts, EndRecovery, ExportFacts, ExportStarted, ExportedFacts, FactReverified, FactStored, FactsConsolidated,
    FactsForgotten, FactsRecovered, ForgetFacts, ForgetScope, GetExport, RecordExport, RecoverFacts, RecoveryEnded, ReverifyFact,
    ScopeKind, SignedExport, StartExport, StoreFact,
};
use quorate_domain::handoff::{AcceptHandoff, CreateHandoff, HandoffAccepted, HandoffCreated};
use quorate_domain::identity::{PutToken, TokenPut};
use quorate_domain::key_ring::{AddCosigner, ListReceiptKeys, ReceiptKeys, RotateReceiptKey};
use quorate_domain::machine::{self, Body, Call, Clock, Entry};
use quorate_domain::observation::{AppendObservations, GetObservation, NewObservation, ObservationView, ObservationsAppended};
use quorate_domain::overlay::{Nothing, Overlay, Writes};
use quorate_domain::passport::{
    ConflictPolicy, DeviceLinked, LinkDevice, MergePassports, PassportRevoked, PassportSplit, PassportsMerged, RevokePassport,
    SplitPassport,
};
use quorate_domain::punchcard::{ForceRelease, PunchIn, PunchOut, Punchcard, PunchedIn};
use quorate_domain::receipt::{Consistency, GetLogHead, Inclusion, LogHead, ProveConsistency, ProveInclusion, ProveReceipt, ProvenReceipt};
use quorate_domain::session::{SaveSession, SessionSaved};
use quorate_domain::session_plan::{OpenPlan, PlanOpened};
use quorate_domain::{Command, CommandKind, Principal, Query, QueryKind, ReadStamp, RequestId, Revision, Tier, UnixMs, codec, identity};
use quorate_proof::bundle::Contents;
use quorate_proof::file::{self, ConsistencyFile, HeadFile, InclusionFile, OutputFile, ReceiptFile};
use quorate_proof::heads::CosignedHeadFile;
use quorate_proof::note::Head;
use quorate_proof::{Cosigner, Fault, Signer, c2pa, ring};

/// The secret key of the vectors. It signs nothing else.
const SECRET: &str = "4242424242424242424242424242424242424242424242424242424242424242";

struct World {
    writes: Writes,
    revision: u64,
    signer: Signer,
    keys: Vec<(String, VerifyingKey)>,
}

fn person(passport: &str) -> Principal {
    let tier = if passport == "olga" { Tier::Operator } else { Tier::Verified };
    Principal { tenant: "acme".into(), passport: passport.into(), tier, scopes: ["*".to_string()].into() }
}

impl World {
    fn new() -> Self {
        let public = hex::decode(quorate_proof::public_key(SECRET).unwrap()).unwrap();
        let key = VerifyingKey::from_bytes(public.as_slice().try_into().unwrap()).unwrap();
        let keys = vec![(identity::key_fingerprint(&public), key)];
        Self { writes: Writes::new(), revision: 0, signer: Signer::from_hex(SECRET, "vectors").unwrap(), keys }
    }

    fn run<C: CommandKind>(&mut self, who: &str, command: C) -> C::Output {
        self.run_as(person(who), command)
    }

    fn run_as<C: CommandKind>(&mut self, caller: Principal, command: C) -> C::Output {
        self.revision += 1;
        let wall = UnixMs(1_900_000_000_000 + self.revision * 1_000);
        let request = RequestId { id: format!("r{}", self.revision), issued_at: wall, keyed: false };
        let command: Command = command.into();
        let body = Body::Call(Call { caller, request, under: None, command });
        let mut tx = Overlay::with_writes(&Nothing, std::mem::take(&mut self.writes));
        let entry = Entry { wall, advance_ms: 1_000, stamped_term: 1, body };
        let decided = machine::apply(&mut tx, Revision(self.revision), 1, entry).unwrap().unwrap();
        self.writes = tx.into_writes();
        codec::decode(&decided.outcome.unwrap()).unwrap()
    }

    /// As a node answers: signed.
    fn ask<Q: QueryKind>(&self, query: Q) -> Q::Output {
        let view = Overlay::with_writes(&Nothing, self.writes.clone());
        let Clock { lease_now, wall, revision, .. } = Clock::read(&view).unwrap();
        let query: Query = query.into();
        let sign = Signer::of(&query);
        let answer = query.run(&view, &ReadStamp { revision, lease_now, wall, caller: person("olga") }).unwrap().unwrap();
        codec::decode(&sign.map_or(answer.clone(), |sign| sign(&self.signer, &answer).unwrap())).unwrap()
    }

    fn prove(&self, receipt_id: &str) -> ProvenReceipt {
        self.ask(ProveReceipt { receipt_id: receipt_id.into(), size: None })
    }

    fn receipt(&self, receipt_id: &str) -> Vec<u8> {
        file::text(&ReceiptFile::of(self.prove(receipt_id), &self.keys).unwrap()).into_bytes()
    }

    fn store(&mut self, key: &str, value: &str, source_receipt: Option<&str>) -> String {
        let command = StoreFact {
            entity: "svc:api".into(),
            key: key.into(),
            value: value.into(),
            source_receipt: source_receipt.map(Into::into),
            confidence: Confidence(900_000),
            private: false,
            horizon_class: None,
            freshness_horizon: None,
            supersedes: BTreeSet::new(),
        };
        let FactStored { fact_id, .. } = self.run("mara", command);
        fact_id
    }
}

/// The kinds of receipts that are about forgetting, passports and sessions, and their ids.
fn decided_of_people(world: &mut World, fact_id: &str) -> Vec<(&'static str, String)> {
    let mut receipts = Vec::new();
    let used = AcknowledgeUse {
        turn_id: "turn-1".into(),
        fact_ids: vec![fact_id.into()],
        intent: UseIntent::Answer,
        retrieved_chunk_ids: vec!["0:1".into()],
        confidence: Some(Confidence(900_000)),
        note: Some("quoted".into()),
    };
    let UseAcknowledged { receipt_id, .. } = world.run("mara", used);
    receipts.push(("receipt-memory-use.json", receipt_id));

    let forget = |world: &mut World, value: &str| {
        world.store("secret", value, None);
        let scope = ForgetScope { kind: ScopeKind::KeyGlob, value: "secret".into() };
        let FactsForgotten { receipt_id, .. } =
            world.run("mara", ForgetFacts { scope, reason: "a request".into(), tenant_id: None, token_budget: None, cursor: None });
        receipt_id
    };
    let forgotten = forget(world, "one");
    let FactsRecovered { receipt_id, .. } = world.run("mara", RecoverFacts { forget_receipt_id: forgotten.clone() });
    receipts.push(("receipt-forget.json", forgotten));
    receipts.push(("receipt-forget-recovery.json", receipt_id));
    let purged = forget(world, "two");
    let _: RecoveryEnded = world.run("olga", EndRecovery {});
    receipts.push(("receipt-permanent-purge.json", purged.replacen("r_forget_", "r_purge_", 1)));

    let public_key = hex::encode([7; 32]);
    for passport in ["mara", "olga", "ben"] {
        let token = PutToken {
            hash: identity::token_hash(passport),
            tenant: "acme".into(),
            passport: passport.into(),
            tier: person(passport).tier,
            scopes: person(passport).scopes,
            expires_at: None,
        };
        let _: TokenPut = world.run_as(identity::system(), token);
    }
    let plan = OpenPlan { intent: Some("audit".into()), graph_hash: hex::encode([5; 32]), public_key: public_key.clone() };
    let PlanOpened { plan_id, .. } = world.run("olga", plan);
    receipts.push(("receipt-session-plan.json", plan_id));
    let split = SplitPassport {
        target: "olga".into(),
        new_name: "olga-b".into(),
        reason: Some("two machines".into()),
        public_key: public_key.clone(),
    };
    let PassportSplit { proof, .. } = world.run("olga", split);
    receipts.push(("receipt-passport-split.json", proof.receipt_id));
    let merge = MergePassports {
        source: "olga-b".into(),
        target: "olga".into(),
        policy: ConflictPolicy::PreferTarget,
        reason: Some("one again".into()),
    };
    let PassportsMerged { proof, .. } = world.run("olga", merge);
    receipts.push(("receipt-passport-merge.json", proof.receipt_id));
    let link = LinkDevice { fingerprint: hex::encode([9; 32]), capabilities: vec!["facts:read".into()] };
    let DeviceLinked { proof, .. } = world.run("olga", link);
    receipts.push(("receipt-passport-link-device.json", proof.receipt_id));

    let state = serde_json::json!({"note": "half done"});
    let save = SaveSession { session_id: "build-42".into(), state, ttl_ms: None, expected_revision: None };
    let _: SessionSaved = world.run("mara", save);
    let pack = CreateHandoff {
        session_id: "build-42".into(),
        include_facts: false,
        target: Some("olga".into()),
        message: Some("yours".into()),
        task_record: None,
        punchcards: vec![],
    };
    let HandoffCreated { handoff_id, payload, .. } = world.run("mara", pack);
    receipts.push(("receipt-handoff-create.json", format!("rcx-handoff:create:{handoff_id}")));
    let _: HandoffAccepted = world.run("olga", AcceptHandoff { payload });
    receipts.push(("receipt-handoff-accept.json", format!("rcx-handoff:accept:{handoff_id}")));

    let revoke = RevokePassport { target: Some("ben".into()), reason: Some("lost laptop".into()) };
    let PassportRevoked { receipt_id, .. } = world.run("olga", revoke);
    receipts.push(("receipt-passport-revoke.json", receipt_id));
    receipts
}

/// Every vector by the name of its file.
fn made() -> (BTreeMap<&'static str, Vec<u8>>, VerifyingKey) {
    let mut world = World::new();
    let mut files = BTreeMap::new();
    let mut receipts = Vec::new();

    let decide = RecordDecision {
        action: "use one parser".into(),
        rationale: "two of them drift".into(),
        alternatives: vec!["two".into()],
        confidence: Confidence::FULL,
        session_id: "build-42".into(),
        context_refs: vec![],
    };
    let DecisionRecorded { decision_id, .. } = world.run("mara", decide);
    receipts.push(("receipt-decision.json", decision_id.clone()));

    let fact_id = world.store("owner", "platform", Some(&decision_id));
    let FactReverified { receipt_id, .. } = world.run("jon", ReverifyFact { fact_id: fact_id.clone() });
    receipts.push(("receipt-reverify.json", receipt_id));
    let target = world.store("region", "eu", None);
    let consolidate = ConsolidateFacts {
        entity: "svc:api".into(),
        key: "region".into(),
        canonical_value: "eu-west".into(),
        target_fact_ids: [target].into(),
        protected_fact_ids: BTreeSet::new(),
        confidence: Confidence(900_000),
        protected_confidence_floor: Confidence(990_000),
        consolidation_id: None,
        horizon_class: None,
    };
    let FactsConsolidated { receipt_id, .. } = world.run("mara", consolidate);
    receipts.push(("receipt-consolidation.json", receipt_id));

    let punch = |resource: &str| PunchIn {
        resource: resource.into(),
        holder_passport: "mara".into(),
        tenant_id: None,
        mode: None,
        reason: None,
        ttl_ms: Some(3_600_000),
        expires_at: None,
        wait_ms: None,
        ..PunchIn::default()
    };
    let grant = |world: &mut World, resource: &str| match world.run("mara", punch(resource)) {
        PunchedIn::Granted { card, .. } => card,
        other => panic!("no grant: {other:?}"),
    };
    let card = grant(&mut world, "file://src/lib.rs");
    receipts.push(("receipt-punchcard-acquire.json", card.receipt_acquire));
    let out = PunchOut { resource: "file://src/lib.rs".into(), holder_passport: "mara".into(), tenant_id: None, release_commit_sha: None };
    let Punchcard { receipt_release, .. } = world.run("mara", out);
    receipts.push(("receipt-punchcard-release.json", receipt_release.unwrap()));
    let stuck = grant(&mut world, "service://billing");
    let force = ForceRelease { punchcard_id: stuck.id, confirm: true, reason: Some("its holder is gone".into()), by_passport: None };
    let Punchcard { receipt_release, .. } = world.run("olga", force);
    receipts.push(("receipt-punchcard-force-release.json", receipt_release.unwrap()));

    let request = RequestApproval {
        action_summary: "drop the table".into(),
        risk_tier: RiskTier::High,
        scope: "acme".into(),
        tenant_id: None,
        payload: None,
        ttl_ms: None,
    };
    let Approval { request_id, .. } = world.run("mara", request);
    let decision = Decision::Approve;
    let decide = DecideApproval { request_id, decision, reviewer_notes: Some("go".into()), reviewer_tier: None, reviewer_tenant_id: None };
    let Approval { receipt_id, .. } = world.run("olga", decide);
    receipts.push(("receipt-approval.json", receipt_id.unwrap()));

    let content_hash = blake3::hash(b"hello").to_hex().to_string();
    let attest = AttestOutput {
        receipt_id: decision_id,
        content_hash,
        content_type: Some("text/plain".into()),
        claim_generator: "vectors/1".into(),
    };
    let OutputAttested { manifest_id } = world.run("mara", attest);
    receipts.push(("receipt-output.json", manifest_id.clone()));

    let start = StartExport { since: None, until: None, entity_prefix: None, include_reserved: true };
    let started: ExportStarted = world.run("olga", start);
    let ExportStarted { since, until, scope, bundle_id } = started.clone();
    let page: ExportedFacts = world.ask(ExportFacts { since, until, scope, cursor: None });
    let contents = Contents::of(page.facts);
    let record = RecordExport {
        started,
        fact_count: contents.fact_count,
        receipt_count: contents.receipt_count,
        events_jsonl_sha256: contents.events_sha256(),
        entries_sha256: contents.entries_sha256(),
        receipts_cbor_sha256: contents.receipts_sha256(),
    };
    world.run("olga", record);
    receipts.push(("receipt-export.json", bundle_id.clone()));

    receipts.extend(decided_of_people(&mut world, &fact_id));
    for (name, receipt_id) in &receipts {
        files.insert(*name, world.receipt(receipt_id));
    }
    let output = OutputFile::of(world.prove(&manifest_id), &world.keys).unwrap();
    files.insert("output-manifest.json", file::text(&output).into_bytes());
    files.insert("c2pa-manifest.c2pa", store(&output));
    let SignedExport { manifest, .. } = world.ask(GetExport { bundle_id: bundle_id.clone() });
    let proof = ReceiptFile::of(world.prove(&bundle_id), &world.keys).unwrap();
    files.insert("audit-bundle.tar.zst", contents.pack(&manifest.unwrap(), &proof).unwrap());

    let head: LogHead = world.ask(GetLogHead { size: None });
    let size = head.size;
    files.insert("cosigned-head.json", cosigned(&head, &world.keys));
    files.insert("log-head.json", file::text(&HeadFile::of(head, &world.keys).unwrap()).into_bytes());
    let inclusion: Inclusion = world.ask(ProveInclusion { seq: 4, size: None });
    files.insert("log-inclusion.json", file::text(&InclusionFile::of(inclusion, &world.keys).unwrap()).into_bytes());
    let consistency: Consistency = world.ask(ProveConsistency { from: 3, to: Some(size) });
    files.insert("log-consistency.json", file::text(&ConsistencyFile::of(consistency, &world.keys).unwrap()).into_bytes());

    let told = |payload| NewObservation { provider: "codex-cli".into(), kind: "tool_use".into(), payload, client_ts: None };
    let observations = vec![told(serde_json::json!({"tool": "Read", "path": "a"})), told(serde_json::json!({"z": 1.5, "a": null}))];
    let done: ObservationsAppended = world.run("mara", AppendObservations { session_id: "build-42".into(), observations });
    for (name, observation_id) in ["observation-0.json", "observation-1.json"].into_iter().zip(done.observation_ids) {
        let seen: ObservationView = world.ask(GetObservation { session_id: "build-42".into(), observation_id });
        let (signed_by, signature) = seen.signature.unwrap();
        let vector = serde_json::json!({
            "body": seen.body, "body_hash": format!("blake3:{}", seen.body_hash), "alg": "ed25519", "signed_by": signed_by,
            "signature": signature, "public_key": hex::encode(world.keys[0].1.as_bytes()),
        });
        files.insert(name, (vector.to_string() + "\n").into_bytes());
    }
    files.insert("key-ring.json", rotated(&mut world));
    (files, world.keys[0].1)
}

/// What readers of C2PA take of the output, signed by the key of `c2pa-chain.pem`, which is 32 times `0x44`.
fn store(output: &OutputFile) -> Vec<u8> {
    let key = ed25519_dalek::SigningKey::from_bytes(&[0x44; 32]);
    let pem = std::fs::read_to_string(folder().join("c2pa-chain.pem")).unwrap();
    let base64: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let chain = [base64::Engine::decode(&base64::engine::general_purpose::STANDARD, base64).unwrap()];
    let sha256 = sha2::Digest::finalize(<sha2::Sha256 as sha2::Digest>::new_with_prefix(b"hello")).into();
    let sign = |bytes: &[u8]| Ok::<_, ()>(ed25519_dalek::Signer::sign(&key, bytes).to_bytes().to_vec());
    c2pa::manifest_store(&output.claim, &sha256, c2pa::Algorithm::Ed25519, &chain, sign).unwrap()
}

/// The head with the cosignatures of three nodes, whose keys are 32 times their id.
fn cosigned(head: &LogHead, keys: &[(String, VerifyingKey)]) -> Vec<u8> {
    let opened = Head::open(head.note.as_ref().unwrap(), &keys[0].1).unwrap();
    let nodes = [1, 2, 3].map(|id| Cosigner::new(&[id; 32], "vectors", id.into()));
    let known = nodes.iter().map(|node| (node.name().to_owned(), ring::public(&node.public_key()).unwrap())).collect::<Vec<_>>();
    let lines: Vec<String> = nodes.iter().map(|node| node.cosign(&opened, 1_900_000_000)).collect();
    file::text(&CosignedHeadFile::of(head.clone(), keys, &lines, &known).unwrap()).into_bytes()
}

/// The ring after the key of the vectors was followed by another, which is 32 times `0x43`.
fn rotated(world: &mut World) -> Vec<u8> {
    let next = Signer::from_hex(&"43".repeat(32), "vectors").unwrap();
    let rotate = RotateReceiptKey {
        public_key: next.public_key(),
        predecessor: world.signer.public_key(),
        by_predecessor: world.signer.succession(&world.signer, &next),
        by_successor: next.succession(&world.signer, &next),
    };
    world.run("olga", rotate);
    for id in 1..=3 {
        let node = Cosigner::new(&[id as u8; 32], "vectors", id);
        world.run("olga", AddCosigner { node_id: id, name: node.name().into(), public_key: node.public_key() });
    }
    let ring: ReceiptKeys = world.ask(ListReceiptKeys {});
    (serde_json::to_string(&ring).unwrap() + "\n").into_bytes()
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/vectors")
}

/// Forms that the verifier reads; an observation stands in its session's chain and is checked where it is, and a ring is what
/// others are checked with; a manifest store is for readers of C2PA.
fn is_proof(name: &str) -> bool {
    !name.starts_with("observation-") && !["key-ring.json", "c2pa-manifest.c2pa"].contains(&name)
}

#[test]
fn the_published_vectors_are_what_is_made_today_and_every_one_verifies() {
    let (files, key) = made();
    for (name, bytes) in &files {
        let path = folder().join(name);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&path, bytes).unwrap();
        }
        let published = std::fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}; make it with UPDATE_EXPECT=1"));
        assert!(published == *bytes, "{name} is not what is made today: {}", String::from_utf8_lossy(bytes));
        if is_proof(name) {
            let report = quorate_proof::verify(bytes, Some(&key)).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            assert_eq!((report.origin.as_str(), report.size), ("quorate/vectors/acme", 23), "{name}");
        }
    }
    let published = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let unknown: Vec<String> = published
        .filter(|name| {
            !files.contains_key(name.as_str()) && !["README.md", "verify.py", "c2pa-chain.pem", "c2pa-root.pem"].contains(&&**name)
        })
        .collect();
    assert_eq!(unknown, Vec::<String>::new());
}

#[test]
fn no_byte_of_a_file_can_be_changed() {
    let (files, key) = made();
    for (name, bytes) in files.iter().filter(|(name, _)| is_proof(name) && name.ends_with(".json")) {
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(quorate_proof::verify(&changed, Some(&key)).is_err(), "{name}: byte {at} may be changed");
        }
        for keep in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            assert!(quorate_proof::verify(&bytes[..keep], Some(&key)).is_err(), "{name}: {keep} bytes are enough");
        }
        let other = VerifyingKey::from_bytes(&ed25519_dalek::SigningKey::from_bytes(&[1; 32]).verifying_key().to_bytes()).unwrap();
        let Err(Fault::Invalid { problem, .. }) = quorate_proof::verify(bytes, Some(&other)) else { panic!("{name}: any key will do") };
        assert!(problem.contains("the one you trust is"), "{problem}");
    }
}

#[test]
fn several_files_are_of_one_history_or_the_first_that_is_not_is_named() {
    let (files, key) = made();
    let verify = |names: &[&str]| {
        let chosen: Vec<Vec<u8>> = names.iter().map(|name| files[name].clone()).collect();
        quorate_proof::verify_together(&chosen, Some(&key))
    };
    assert_eq!(verify(&["cosigned-head.json", "receipt-decision.json", "log-consistency.json"]).unwrap()[0].cosigned_by.len(), 3);
    let signer = Signer::from_hex(SECRET, "vectors").unwrap();
    let head = |size: u64, root: u8| {
        let origin = quorate_proof::note::origin("vectors", "acme");
        let key = ed25519_dalek::SigningKey::from_bytes(&[0x42; 32]);
        let note = quorate_proof::note::sign(&Head { origin: origin.clone(), size, root: [root; 32] }.text(), &origin, &key);
        let told = LogHead { tenant: "acme".into(), size, root_hash: hex::encode([root; 32]), note: Some(note) };
        file::text(&HeadFile::of(told, &[(String::new(), ring::public(&signer.public_key()).unwrap())]).unwrap()).into_bytes()
    };
    let split = quorate_proof::verify_together(&[files["log-head.json"].clone(), head(23, 9)], Some(&key)).unwrap_err();
    assert!(split.0 == 1 && split.1.to_string().contains("the log was split"), "{split:?}");
    let unlinked = quorate_proof::verify_together(&[files["log-head.json"].clone(), head(5, 9)], Some(&key)).unwrap_err();
    assert!(unlinked.1.to_string().contains("add the file of /v1/log/proof/consistency?from=5&to=23"), "{unlinked:?}");
}

#[test]
fn the_published_ring_leads_from_the_key_of_the_vectors_to_the_next_and_names_the_nodes() {
    let (files, key) = made();
    let ring = ring::Ring::read(&files["key-ring.json"]).unwrap();
    let next = Signer::from_hex(&"43".repeat(32), "vectors").unwrap().public_key();
    let trusted: Vec<String> = ring.receipt_keys(&[key]).iter().map(|key| hex::encode(key.as_bytes())).collect();
    assert_eq!(trusted, [hex::encode(key.as_bytes()), next]);
    let report = quorate_proof::verify(&files["cosigned-head.json"], Some(&key)).unwrap();
    assert!(report.cosigned_by.iter().all(|by| ring.cosigner_keys().contains(&by.verifier_key)));
    let stranger = ed25519_dalek::SigningKey::from_bytes(&[1; 32]).verifying_key();
    assert_eq!(ring.receipt_keys(&[stranger]), [stranger], "the ring adds nothing to a key that is not in it");
}

fn unpacked(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let plain = zstd::decode_all(bytes).unwrap();
    let mut archive = tar::Archive::new(plain.as_slice());
    let read = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
        let (mut entry, mut data) = (entry.unwrap(), Vec::new());
        entry.read_to_end(&mut data).unwrap();
        (entry.path().unwrap().display().to_string(), data)
    };
    archive.entries().unwrap().map(read).collect()
}

fn packed(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, data) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        tar.append_data(&mut header, name, data.as_slice()).unwrap();
    }
    zstd::encode_all(tar.into_inner().unwrap().as_slice(), 1).unwrap()
}

#[test]
fn no_byte_within_a_bundle_can_be_changed_and_none_of_its_container_to_any_effect() {
    let (files, key) = made();
    let bundle = &files["audit-bundle.tar.zst"];
    let whole = unpacked(bundle);
    assert!(quorate_proof::verify(&packed(&whole), Some(&key)).is_ok(), "the same files, packed by others, are the same bundle");
    for (n, (name, data)) in whole.iter().enumerate() {
        for at in 0..data.len() {
            let mut changed = whole.clone();
            changed[n].1[at] ^= 1 << (at % 8);
            let fault = quorate_proof::verify(&packed(&changed), Some(&key)).expect_err(name).to_string();
            assert!(fault.contains(name.as_str()) || fault.contains("public_key"), "{name}, byte {at}: {fault}");
        }
        let without: Vec<_> = whole.iter().filter(|(other, _)| other != name).cloned().collect();
        assert_eq!(
            quorate_proof::verify(&packed(&without), Some(&key)),
            Err(Fault::Invalid { at: name.clone(), problem: "the bundle does not hold it".into() })
        );
    }
    for at in 0..bundle.len() {
        let mut changed = bundle.clone();
        changed[at] ^= 1 << (at % 8);
        // Some bits of a zstd frame, such as the size of its window, change nothing of what is in it.
        assert!(quorate_proof::verify(&changed, Some(&key)).is_err() || unpacked(&changed) == whole, "byte {at} may be changed");
        assert!(quorate_proof::verify(&bundle[..at], Some(&key)).is_err(), "{at} bytes are enough");
    }
    let twice = [whole.clone(), whole.clone()].concat();
    assert!(quorate_proof::verify(&packed(&twice), Some(&key)).unwrap_err().to_string().contains("twice"));
}

#[test]
fn the_first_bad_entry_of_a_bundle_is_named() {
    let (files, key) = made();
    let whole = unpacked(&files["audit-bundle.tar.zst"]);
    let lines: Vec<Vec<u8>> = whole[1].1.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    assert!(lines.len() >= 4, "{} entries", lines.len());
    let told = |lines: Vec<Vec<u8>>| {
        let mut changed = whole.clone();
        changed[1].1 = lines.concat();
        quorate_proof::verify(&packed(&changed), Some(&key)).unwrap_err().to_string()
    };
    let mut swapped = lines.clone();
    swapped.swap(1, 2);
    assert!(told(swapped).starts_with("invalid at events.jsonl entry 1 (f_"));
    assert!(told([&lines[..2], &lines[3..]].concat()).starts_with("invalid at events.jsonl entry 2 (f_"));
    assert!(told([&lines[..1], &lines[..]].concat()).starts_with("invalid at events.jsonl entry 1 (f_"));
    let last = lines.len() - 1;
    assert_eq!(told(lines[..last].to_vec()), format!("invalid at events.jsonl entry {last}: it is missing, and maybe more after it"));
    let more = [lines.clone(), vec![lines[0].clone()]].concat();
    assert!(told(more).starts_with(&format!("invalid at events.jsonl entry {} (f_", last + 1)));
}
