//! Transcripts of coordination.

use std::fmt::Write;

use expect_test::{Expect, expect};

use super::*;
use crate::flag::SetFlag;
use crate::identity::{self, PutToken, token_hash};
use crate::limit::REPLY_BYTES_MAX;
use crate::passport::RevokePassport;
use crate::punchcard::{PunchIn, PunchOut};
use crate::transcript::{Line, World, person};
use crate::usage::{AddUsage, Used};
use crate::work::{CreateWork, DEFAULT_PROJECT};

/// Each line is one entry of the log; `status` has no number.
fn check(lines: &str, expected: Expect) {
    let (mut world, mut told, mut revision) = (World::new(), String::new(), 0);
    for line in lines.lines().map(str::trim) {
        let line = Line::parse(line);
        let is_read = line.verb == "status";
        revision += u64::from(!is_read);
        let number = if is_read { "-".to_string() } else { revision.to_string() };
        let answer = play(&mut world, &line).unwrap_or_else(|refusal| format!("refused: {refusal}"));
        let _ = writeln!(told, "{number} {answer}");
    }
    expected.assert_eq(&told);
}

fn play(world: &mut World, line: &Line) -> Result<String, Refusal> {
    let (time, caller) = (line.time, person(line.who));
    match line.verb {
        "tick" => {
            world.tick(time);
            Ok("ticked".into())
        }
        "flag" => {
            let command = SetFlag { name: line.word(0).into(), value: line.word(1).into() };
            world.call(time, caller, None, command).map(|flag| format!("flag: {}", flag.value))
        }
        "create" => {
            let command = CreateWork {
                project_id: DEFAULT_PROJECT.into(),
                title: line.word(0).into(),
                created_by_passport: line.who.into(),
                body: None,
                state: Some(State::InProgress),
                assignee_passport: None,
                tenant_id: None,
                linked_pr: None,
                linked_issue: None,
                blocker_reason: None,
                depends_on: Vec::new(),
            };
            world.call(time, caller, None, command).map(|work| work.title)
        }
        "punch_in" => {
            let (resource, holder_passport, ttl_ms) = (line.word(0).into(), line.who.into(), line.ms("ttl"));
            let command = PunchIn {
                resource,
                holder_passport,
                tenant_id: None,
                mode: None,
                reason: None,
                ttl_ms,
                expires_at: None,
                wait_ms: None,
                ..Default::default()
            };
            world.call(time, caller, None, command).map(|_| "granted".into())
        }
        "punch_out" => {
            let command =
                PunchOut { resource: line.word(0).into(), holder_passport: line.who.into(), tenant_id: None, release_commit_sha: None };
            world.call(time, caller, None, command).map(|card| card.status.word().into())
        }
        "announce" => {
            let command = Announce {
                session_id: line.word(0).into(),
                project_id: line.option("project").unwrap_or(DEFAULT_PROJECT.into()),
                by_passport: line.option("as"),
                execplan_slug: line.option("plan"),
                milestone: None,
                deploy_target: line.option("deploy"),
                paths: line.option("paths").map(|paths| paths.split(',').map(Into::into).collect()).unwrap_or_default(),
                note: None,
                ttl_seconds: line.option("ttl").map(|seconds| seconds.parse().unwrap()),
            };
            let done = world.call(time, caller, None, command)?;
            let peers: Vec<String> = done.peers.iter().map(|peer| format!("{}/{}", peer.passport, peer.session)).collect();
            let overlaps: Vec<String> = done
                .overlaps
                .iter()
                .map(|o| format!("{:?} of {}/{}: {} and my {}", o.kind, o.peer_passport, o.peer_session, o.theirs, o.yours))
                .collect();
            let word = if done.cleared { "cleared".into() } else { format!("at {:?}", done.intent.unwrap().paths) };
            Ok(format!("{word}; peers {peers:?}; {}", overlaps.join(", ")))
        }
        "status" => {
            let mut pages = Vec::new();
            let mut cursor = None;
            loop {
                let ask = CoordStatus { project_id: line.option("project"), limit: line.ms("limit").unwrap_or(50), cursor };
                let page = world.ask(time, caller.clone(), ask)?;
                let at = |time: UnixMs| (time.0 - crate::transcript::WALL) / 1_000;
                let sessions = page.sessions.iter().map(|session| {
                    let leases: Vec<&str> = session.leases.iter().map(|card| &*card.resource).collect();
                    let Session { intent, last_seen_at, active_until, .. } = session;
                    format!(
                        "{}/{} bound {} seen {} until {} {leases:?}",
                        intent.passport,
                        intent.session,
                        at(intent.bound_at),
                        at(*last_seen_at),
                        at(*active_until)
                    )
                });
                pages.push(sessions.chain(page.work.iter().map(|work| work.title.clone())).collect::<Vec<_>>().join(", "));
                cursor = page.next_cursor;
                if cursor.is_none() {
                    return Ok(format!("[{}]", pages.join(" | ")));
                }
            }
        }
        verb => panic!("no verb `{verb}`"),
    }
}

#[test]
fn a_session_is_live_while_it_is_announced_and_its_passport_shows_signs_of_life() {
    check(
        "0s mara announce 0a
         0s jon  announce 0b ttl=60
         0s eve  announce 0c
         1s mara status
         59s mara status
         60s mara status
         61s -   tick
         800s mara create docs
         901s mara status
         1700s mara status
         1701s mara punch_in file://a ttl=1h
         3000s mara status
         3001s mara punch_out file://a
         3002s mara status
         3003s mara announce 0a
         3003s mara status
         3004s mara announce 0a ttl=0
         3004s mara status
         3004s mara announce 0d ttl=0",
        expect![[r#"
            1 at []; peers []; 
            2 at []; peers ["mara/0a"]; 
            3 at []; peers []; 
            - [mara/0a bound 0 seen 0 until 900 [], jon/0b bound 0 seen 0 until 60 []]
            - [mara/0a bound 0 seen 0 until 900 [], jon/0b bound 0 seen 0 until 60 []]
            - [mara/0a bound 0 seen 0 until 900 []]
            4 ticked
            5 docs
            - [mara/0a bound 0 seen 800 until 1700 [], docs]
            - [docs]
            6 granted
            - [mara/0a bound 0 seen 800 until 5301 ["file://a"], docs]
            7 released
            - [docs]
            8 at []; peers []; 
            - [mara/0a bound 0 seen 3003 until 3903 [], docs]
            9 cleared; peers []; 
            - [docs]
            10 cleared; peers []; 
        "#]],
    );
}

#[test]
fn a_target_of_deployment_meets_cards_and_other_announcements_in_every_spelling() {
    check(
        "0s jon  punch_in deploy://prod
         0s mara announce 0a deploy=deploy:prod
         0s mara announce 0a deploy=deploy://prod
         0s mara announce 0a deploy=prod
         0s mara announce 0a deploy=deploy:staging
         0s jon  announce 0b deploy=Deploy://staging
         0s jon  announce 0b deploy=prod",
        expect![[r#"
            1 granted
            2 at []; peers []; Lease of jon/: deploy://prod and my deploy:prod
            3 at []; peers []; Lease of jon/: deploy://prod and my deploy://prod
            4 at []; peers []; Lease of jon/: deploy://prod and my prod
            5 at []; peers []; 
            6 at []; peers ["mara/0a"]; DeployTarget of mara/0a: deploy:staging and my Deploy://staging
            7 at []; peers ["mara/0a"]; 
        "#]],
    );
}

#[test]
fn those_who_would_meet_are_told_and_nobody_is_stopped() {
    check(
        "0s mara announce 0a plan=p1 deploy=deploy:crux paths=src/parser,docs/a.md
         0s jon  announce 0b plan=p1 deploy=deploy:crux paths=./src//parser/lex.rs,doc
         0s jon  announce 0b plan=p2 paths=src,docs/a.md.bak
         0s jon  punch_in file://src/main.rs
         0s mara announce 0a paths=src
         0s mara announce 0e paths=tests
         0s mara announce 0f paths=src/main.rs
         0s jon  announce 0b ttl=0",
        expect![[r#"
            1 at ["src/parser", "docs/a.md"]; peers []; 
            2 at ["src/parser/lex.rs", "doc"]; peers ["mara/0a"]; Execplan of mara/0a: p1 and my p1, DeployTarget of mara/0a: deploy:crux and my deploy:crux, IntentPath of mara/0a: src/parser and my src/parser/lex.rs
            3 at ["src", "docs/a.md.bak"]; peers ["mara/0a"]; IntentPath of mara/0a: src/parser and my src
            4 granted
            5 at ["src"]; peers ["jon/0b"]; IntentPath of jon/0b: src and my src, Lease of jon/: file://src/main.rs and my src
            6 at ["tests"]; peers ["mara/0a", "jon/0b"]; 
            7 at ["src/main.rs"]; peers ["mara/0a", "jon/0b", "mara/0e"]; IntentPath of mara/0a: src and my src/main.rs, IntentPath of jon/0b: src and my src/main.rs, Lease of jon/: file://src/main.rs and my src/main.rs
            8 cleared; peers ["mara/0a", "mara/0e", "mara/0f"]; 
        "#]],
    );
}

#[test]
fn an_announcement_is_checked_before_it_is_stored() {
    let (long, many) = ("x".repeat(513), vec!["a"; 33].join(","));
    check(
        &format!(
            "0s mara announce q1.x
             0s mara announce
             0s mara announce 0a as=jon
             0s mara announce 0a as=mara project=p_9
             0s mara announce 0a ttl=86401
             0s mara announce 0a plan={long}
             0s mara announce 0a paths={many}
             0s mara announce 0a paths=../etc
             0s mara announce 0a paths=
             0s mara announce 01
             0s mara announce 02
             0s mara announce 03
             0s mara announce 04
             0s mara announce 05
             0s mara announce 06
             0s mara announce 05
             0s mara status limit=2
             0s mara create docs
             0s mara create tests
             0s mara status limit=1
             0s mara status limit=5
             0s mara status project=p_9
             0s olga flag CORECRUXD_COORD_PRESENCE_TTL_SECS 59
             0s olga flag CORECRUXD_COORD_PRESENCE_TTL_SECS 60
             60s mara status
             60s olga flag CORECRUXD_COORD no
             60s mara status
             60s mara announce 07"
        ),
        expect![[r#"
            1 refused: `session_id` must be at most 128 hex digits
            2 refused: `session_id` must not be empty
            3 refused: `by_passport` is not the caller, who is `mara`
            4 refused: there is no project `p_9`
            5 refused: `ttl_seconds` must be 0 to 86400, not 86401
            6 refused: `execplan_slug` is 513 bytes long, and the limit is 512 bytes
            7 refused: `paths` is 33 entries long, and the limit is 32 entries
            8 refused: `paths` leaves its root with `..`
            9 refused: `paths` names nothing after its scheme; the whole repository is `tree://.`
            10 at []; peers []; 
            11 at []; peers ["mara/01"]; 
            12 at []; peers ["mara/01", "mara/02"]; 
            13 at []; peers ["mara/01", "mara/02", "mara/03"]; 
            14 at []; peers ["mara/01", "mara/02", "mara/03", "mara/04"]; 
            15 refused: the list of announced sessions is full: the limit is 5
            16 at []; peers ["mara/01", "mara/02", "mara/03", "mara/04"]; 
            - [mara/01 bound 0 seen 0 until 900 [], mara/02 bound 0 seen 0 until 900 [] | mara/03 bound 0 seen 0 until 900 [], mara/04 bound 0 seen 0 until 900 [] | mara/05 bound 0 seen 0 until 900 []]
            17 docs
            18 tests
            - [mara/01 bound 0 seen 0 until 900 [], tests | mara/02 bound 0 seen 0 until 900 [], docs | mara/03 bound 0 seen 0 until 900 [] | mara/04 bound 0 seen 0 until 900 [] | mara/05 bound 0 seen 0 until 900 []]
            - [mara/01 bound 0 seen 0 until 900 [], mara/02 bound 0 seen 0 until 900 [], mara/03 bound 0 seen 0 until 900 [], mara/04 bound 0 seen 0 until 900 [], mara/05 bound 0 seen 0 until 900 [], tests, docs]
            - refused: there is no project `p_9`
            19 refused: `value` CORECRUXD_COORD_PRESENCE_TTL_SECS takes seconds from 60 to 86400, not `59`
            20 flag: 60
            - [tests, docs]
            21 flag: off
            - refused: coord_status is switched off by the flag `CORECRUXD_COORD`
            22 refused: coord_announce is switched off by the flag `CORECRUXD_COORD`
        "#]],
    );
}

#[test]
fn large_announcements_leave_a_reply_its_size() {
    let mut world = World::new();
    let announce = |session: &str| Announce {
        session_id: session.into(),
        project_id: DEFAULT_PROJECT.into(),
        by_passport: None,
        execplan_slug: Some("p".into()),
        milestone: None,
        deploy_target: None,
        paths: (0..COORD_PATHS_MAX).map(|n| format!("{}/{n}", "d".repeat(120))).collect(),
        note: Some("\"".repeat(200)),
        ttl_seconds: None,
    };
    for session in ["01", "02", "03"] {
        world.call("0s", person("mara"), None, announce(session)).unwrap();
    }
    let done = world.call("0s", person("jon"), None, announce("04")).unwrap();
    assert!(serde_json::to_string(&done).unwrap().len() <= REPLY_BYTES_MAX);
    assert_eq!((done.peers.len() as u64 + done.more_peers, done.overlaps.len() as u64 + done.more_overlaps), (3, 99));
    let (mut cursor, mut seen) = (None, 0);
    loop {
        let page = world.ask("0s", person("jon"), CoordStatus { project_id: None, limit: 50, cursor }).unwrap();
        assert!(serde_json::to_string(&page).unwrap().len() <= REPLY_BYTES_DEFAULT);
        seen += page.sessions.len();
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, 4);
}

fn announce(session: &str, paths: &[&str], ttl_seconds: u64) -> Announce {
    Announce {
        session_id: session.into(),
        project_id: DEFAULT_PROJECT.into(),
        by_passport: None,
        execplan_slug: None,
        milestone: None,
        deploy_target: None,
        paths: paths.iter().map(ToString::to_string).collect(),
        note: None,
        ttl_seconds: Some(ttl_seconds),
    }
}

#[test]
fn sessions_that_fill_a_page_leave_the_work_in_flight_its_half() {
    let mut world = World::new();
    let long: Vec<String> = (0..COORD_PATHS_MAX).map(|n| format!("{}/{n}", "d".repeat(60))).collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    for session in ["01", "02", "03", "04", "05"] {
        world.call("0s", person("mara"), None, announce(session, &long, 600)).unwrap();
    }
    for n in 0..40 {
        play(&mut world, &Line::parse(&format!("0s mara create item-{n}"))).unwrap();
    }
    let (mut cursor, mut sessions, mut work, mut pages) = (None, Vec::new(), Vec::new(), 0);
    loop {
        let page = world.ask("0s", person("jon"), CoordStatus { project_id: None, limit: 50, cursor }).unwrap();
        if pages == 0 {
            assert!(page.sessions.len() == 1 && page.work.len() >= 10, "{} sessions and {} items", page.sessions.len(), page.work.len());
            assert!(page.more_sessions && page.more_work);
        }
        let bytes: usize =
            page.work.iter().map(Work::reply_bytes).sum::<usize>() + page.sessions.iter().map(Session::reply_bytes).sum::<usize>();
        assert!(bytes <= REPLY_BYTES_DEFAULT, "{bytes}");
        assert_eq!(page.next_cursor.is_some(), page.more_sessions || page.more_work);
        sessions.extend(page.sessions.into_iter().map(|session| session.intent.session));
        work.extend(page.work.into_iter().map(|work| work.title));
        (cursor, pages) = (page.next_cursor, pages + 1);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(sessions, ["01", "02", "03", "04", "05"]);
    assert_eq!(work, (0..40).rev().map(|n| format!("item-{n}")).collect::<Vec<_>>());
}

#[test]
fn whatever_a_passport_calls_moves_its_presence_with_the_counts_of_all_calls() {
    let mut world = World::new();
    world.call("0s", person("mara"), None, announce("0a", &[], 3_600)).unwrap();
    let seen = |world: &mut World, time| play(world, &Line::parse(&format!("{time} jon status"))).unwrap();
    assert_eq!(seen(&mut world, "901s"), "[]");
    let counted = |tenant: &str| AddUsage {
        tenant: tenant.into(),
        used: vec![("mara".into(), Used { calls: 1, ..Used::default() }), ("jon".into(), Used::default())],
    };
    world.call("1000s", identity::system(), None, counted("other")).unwrap();
    assert_eq!(seen(&mut world, "1000s"), "[]", "one of another tenant is somebody else");
    world.call("1000s", identity::system(), None, counted("acme")).unwrap();
    assert_eq!(seen(&mut world, "1001s"), "[mara/0a bound 0 seen 1000 until 1900 []]");
}

#[test]
fn an_announcement_that_stands_is_answered_by_a_read_until_it_has_to_last_longer() {
    let mut world = World::new();
    let repeat = |world: &mut World, time: &str, announce: Announce| {
        world
            .ask(time, person("mara"), RepeatAnnounce { announce })
            .unwrap()
            .map(|told| (told.intent.unwrap().expires_at, told.peers.len()))
    };
    assert_eq!(repeat(&mut world, "0s", announce("0a", &["src"], 400)), None, "nothing stands yet");
    let first = world.call("0s", person("mara"), None, announce("0a", &["src"], 400)).unwrap().intent.unwrap();
    world.call("0s", person("jon"), None, announce("0b", &["docs"], 400)).unwrap();
    assert_eq!(repeat(&mut world, "1s", announce("0a", &["./src/"], 400)), Some((first.expires_at, 1)), "another spelling of the same");
    assert_eq!(repeat(&mut world, "100s", announce("0a", &["src"], 400)), Some((first.expires_at, 1)));
    for (time, other, why) in [
        ("101s", announce("0a", &["src"], 400), "a quarter of its time is over"),
        ("1s", announce("0a", &["src"], 300), "less time"),
        ("1s", announce("0a", &["src"], 800), "more time"),
        ("1s", announce("0a", &["src"], 0), "taken back"),
        ("1s", announce("0a", &["src", "docs"], 400), "other paths"),
        ("1s", announce("0b", &["docs"], 400), "the session of another"),
        ("1s", Announce { note: Some("n".into()), ..announce("0a", &["src"], 400) }, "a note"),
        ("400s", announce("0a", &["src"], 400), "over"),
    ] {
        assert_eq!(repeat(&mut world, time, other), None, "{why}");
    }
    let told = world.ask("1s", person("mara"), RepeatAnnounce { announce: announce("0a", &["../x"], 400) }).unwrap_err();
    assert_eq!(told.to_string(), "`paths` leaves its root with `..`");
    // Who was not seen for half of the presence window has to be told as there by an entry.
    world.call("1000s", person("mara"), None, announce("0a", &[], 36_000)).unwrap();
    assert!(repeat(&mut world, "1449s", announce("0a", &[], 36_000)).is_some());
    assert_eq!(repeat(&mut world, "1450s", announce("0a", &[], 36_000)), None);
}

#[test]
fn a_revoked_passport_is_live_to_nobody_from_that_entry_on() {
    let mut world = World::new();
    for name in ["mara", "jon"] {
        let Principal { tenant, passport, tier, scopes } = person(name);
        let put = PutToken { hash: token_hash(name), tenant, passport, tier, scopes, expires_at: None };
        world.call("0s", identity::system(), None, put).unwrap();
    }
    world.call("0s", person("mara"), None, announce("0a", &["src"], 600)).unwrap();
    let status = |world: &mut World| play(world, &Line::parse("1s olga status")).unwrap();
    let peers = |world: &mut World| world.call("1s", person("jon"), None, announce("0b", &["src"], 0)).unwrap().peers.len();
    assert_eq!((status(&mut world).as_str(), peers(&mut world)), ("[mara/0a bound 0 seen 0 until 600 []]", 1));
    world.call("1s", person("olga"), None, RevokePassport { target: Some("mara".into()), reason: None }).unwrap();
    assert_eq!((status(&mut world).as_str(), peers(&mut world)), ("[]", 0));
    // Where revocations are not enforced it goes on working, and is shown at it.
    play(&mut world, &Line::parse("1s olga flag CRUX_PASSPORT_REVOCATION off")).unwrap();
    assert_eq!(peers(&mut world), 1);
}
