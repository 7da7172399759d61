//! Transcripts of punchcards. Each line is one entry of the log, and its number there is its revision; reads have no number.

use expect_test::{Expect, expect};

use super::*;
use crate::event::{self, Watched};
use crate::flag::{self, SetFlag};
use crate::identity::{PutToken, system, token_hash};
use crate::receipt::GetReceipt;
use crate::stamp::Tier;
use crate::transcript::{Line, World, person};

fn check(lines: &str, expected: Expect) {
    let mut play = Play::new();
    let mut told = String::new();
    let mut revision = 0;
    for line in lines.lines().map(str::trim) {
        let line = Line::parse(line);
        let is_read = matches!(line.verb, "check" | "ticket" | "list" | "events" | "verify" | "waiters");
        revision += u64::from(!is_read);
        let number = if is_read { "-".to_string() } else { revision.to_string() };
        let answer = play.line(&line).unwrap_or_else(|refusal| format!("refused: {refusal}"));
        let answer = play.with_names(answer);
        told += &format!("{number} {answer}\n");
    }
    expected.assert_eq(&told);
}

struct Play {
    world: World,
    /// In the order of their first appearance; told as `t1`, `t2` ...
    tickets: Vec<String>,
    /// The same for cards, told as `c1`, `c2` ...
    cards: Vec<String>,
}

impl Play {
    fn new() -> Self {
        Self { world: World::new(), tickets: Vec::new(), cards: Vec::new() }
    }

    fn line(&mut self, line: &Line) -> Result<String, Refusal> {
        let (time, caller) = (line.time, person(line.who));
        let under = line.ms("under").map(Revision);
        let holder = line.option("as").unwrap_or(line.who.into());
        let tenant = line.option("tenant");
        let ticket = |play: &Self| play.tickets.get(line.word(0)[1..].parse::<usize>().unwrap() - 1).cloned().unwrap();
        match line.verb {
            "tick" => {
                self.world.tick(time);
                Ok("ticked".into())
            }
            "flag" => {
                let command = SetFlag { name: flag::PUNCHCARD.name.into(), value: line.word(0).into() };
                self.world.call(time, caller, None, command).map(|flag| format!("flag: {}", flag.value))
            }
            "punch_in" => {
                let ttl_ms = (!line.word(1).is_empty()).then(|| crate::transcript::ms(line.word(1)));
                let command = PunchIn {
                    resource: line.word(0).into(),
                    holder_passport: holder,
                    tenant_id: tenant,
                    mode: None,
                    reason: None,
                    ttl_ms,
                    expires_at: line.ms("until").map(|ms| UnixMs(1_900_000_000_000 + ms)),
                    wait_ms: line.ms("wait"),
                    lock_delay_ms: line.ms("delay"),
                    attended: line.words.contains(&"attended"),
                };
                self.world.call(time, caller, under, command).map(|reply| self.told(reply, time))
            }
            "punch_out" => {
                let command =
                    PunchOut { resource: line.word(0).into(), holder_passport: holder, tenant_id: tenant, release_commit_sha: None };
                self.world.call(time, caller, under, command).map(|card| self.ended(&card))
            }
            "force_release" => {
                let known = line.word(0).strip_prefix('c').and_then(|n| n.parse::<usize>().ok());
                let punchcard_id = known.map_or(line.word(0).into(), |n| self.cards[n - 1].clone());
                let confirm = line.option("confirm").is_none_or(|word| word == "true");
                let command = ForceRelease { punchcard_id, confirm, reason: line.option("reason"), by_passport: line.option("by") };
                self.world.call(time, caller, None, command).map(|card| self.ended(&card))
            }
            "leave" => {
                let command = LeaveQueue { ticket: ticket(self) };
                self.world.call(time, caller, None, command).map(|reply| self.told(reply, time))
            }
            "attend" => {
                let command = AttendTicket { ticket: ticket(self) };
                self.world.call(time, caller, None, command).map(|reply| self.told(reply, time))
            }
            "meet" => {
                let Principal { tenant, passport, tier, scopes } = caller;
                let put = PutToken { hash: token_hash(line.who), tenant, passport, tier, scopes, expires_at: None };
                self.world.call(time, system(), None, put).map(|put| format!("{} has a passport", put.passport))
            }
            "transfer" => {
                let command = TransferPunchcard {
                    resource: line.word(0).into(),
                    holder_passport: holder,
                    tenant_id: tenant,
                    to_passport: line.option("to").unwrap_or_default(),
                    release_commit_sha: None,
                };
                self.world.call(time, caller, under, command).map(|transferred| {
                    let released = self.ended(&transferred.released);
                    let granted = PunchedIn::Granted { card: transferred.card, renewed: false, conflict: None };
                    format!("{released}, {}", self.told(granted, time))
                })
            }
            "renew" => {
                let resources = line.words.iter().map(ToString::to_string).collect();
                let command = RenewPunchcards { holder_passport: holder, tenant_id: tenant, resources, ttl_ms: line.ms("ttl") };
                self.world.call(time, caller, None, command).map(|renewed| {
                    let now = LeaseTime(crate::transcript::ms(time));
                    let card = |card: &Punchcard| format!("{} {} ms", card.resource, now.ms_until(card.deadline));
                    let cards: Vec<String> = renewed.cards.iter().map(card).collect();
                    format!("renewed [{}], not held [{}]", cards.join(", "), renewed.not_held.join(", "))
                })
            }
            "verify" => {
                let fencing_token = Revision(line.word(1).parse().unwrap());
                let query = VerifyToken { resource: line.word(0).into(), fencing_token, holder_passport: line.option("holder") };
                self.world.ask(time, caller, query).map(|found| match (found.card, found.current) {
                    (Some(card), _) => format!("good: {} on {}, {} ms left", card.holder, card.resource, found.left_ms.unwrap_or_default()),
                    (None, Some(card)) => format!("not good: {} holds {} under {}", card.holder, card.resource, card.fencing_token),
                    (None, None) => "not good: nobody holds it".into(),
                })
            }
            "waiters" => {
                let (mut cursor, mut pages) = (None, Vec::new());
                loop {
                    let query = ListBlocked {
                        resource: line.option("resource"),
                        holder_passport: line.option("holder"),
                        limit: line.ms("limit").unwrap_or(50),
                        cursor,
                    };
                    let page = self.world.ask(time, caller.clone(), query)?;
                    let behind = |wait: &Wait| format!("{} on {}{}", wait.holder, wait.held, if wait.queued { " (queued)" } else { "" });
                    let row = |waiter: &Blocked| {
                        let behind: Vec<String> = waiter.behind.iter().map(behind).collect();
                        format!("{} for {} behind {}", waiter.holder, waiter.resource, behind.join(" and "))
                    };
                    pages.push(page.waiters.iter().map(row).collect::<Vec<_>>().join("; "));
                    cursor = page.next_cursor;
                    if cursor.is_none() {
                        return Ok(format!("[{}]", pages.join(" | ")));
                    }
                }
            }
            "ticket" => {
                let query = GetTicket { ticket: ticket(self) };
                self.world.ask(time, caller, query).map(|reply| self.told(reply, time))
            }
            "check" => {
                let query = CheckPunchcard { resource: line.word(0).into(), mode: None, passport: line.option("passport") };
                self.world.ask(time, caller, query).map(|checked| {
                    let by =
                        |card: &Punchcard| format!("{} on {}, {} ms left", card.holder, card.resource, checked.left_ms.unwrap_or_default());
                    let card = checked.card.as_ref().map_or("no card".into(), by);
                    let rule = if checked.enforce { "enforced" } else { "not enforced" };
                    format!("{}, {rule}: {card}", if checked.held_by_other { "held by other" } else { "free" })
                })
            }
            "list" => {
                let status = line.option("status").and_then(|word| Status::ALL.into_iter().find(|status| status.word() == word));
                let (resource, holder_passport) = (line.option("resource"), line.option("holder"));
                let limit = line.ms("limit").unwrap_or(50);
                let mut cursor = None;
                let mut pages = Vec::new();
                loop {
                    let query = ListPunchcards {
                        resource: resource.clone(),
                        holder_passport: holder_passport.clone(),
                        tenant_id: tenant.clone(),
                        status,
                        limit,
                        cursor: cursor.take(),
                    };
                    let page = self.world.ask(time, caller.clone(), query)?;
                    let row = |card: &Punchcard| format!("{} {} {}", card.fencing_token, card.resource, card.status.word());
                    pages.push(page.punchcards.iter().map(row).collect::<Vec<_>>().join(", "));
                    cursor = page.next_cursor;
                    if cursor.is_none() {
                        return Ok(format!("[{}]", pages.join(" | ")));
                    }
                }
            }
            "events" => {
                let watched = event::watch(&self.world.state, &caller.tenant, Revision(0), 100).expect("no fault");
                let Watched::Events(events) = watched else { panic!("a short transcript loses no event") };
                let events = events.iter().map(|event| format!("{} {}", event.revision, event.kind));
                Ok(events.collect::<Vec<_>>().join(", "))
            }
            verb => panic!("no verb `{verb}`"),
        }
    }

    /// Ids as the names by which the lines know them.
    fn with_names(&self, answer: String) -> String {
        let named = |ids: &[String], prefix: &str, answer: String| {
            ids.iter().enumerate().fold(answer, |answer, (n, id)| answer.replace(id, &format!("{prefix}{}", n + 1)))
        };
        named(&self.cards, "c", named(&self.tickets, "t", answer))
    }

    fn told(&mut self, reply: PunchedIn, time: &str) -> String {
        let now = LeaseTime(crate::transcript::ms(time));
        match reply {
            PunchedIn::Granted { card, renewed, conflict } => {
                let word = if renewed { "renewed" } else { "granted" };
                let (name, left) = (name(&mut self.cards, "c", &card.id), now.ms_until(card.deadline));
                let conflict = conflict.map(|card| format!(", although {} holds {}", card.holder, card.resource)).unwrap_or_default();
                format!("{word} {name} to {}: token {}, {left} ms left{conflict}", card.holder, card.fencing_token)
            }
            PunchedIn::Queued { ticket, ahead, holder, held, left_ms } => {
                let name = name(&mut self.tickets, "t", &ticket);
                format!("queued {name}, {ahead} ahead, behind {holder} on {held} for {left_ms} ms")
            }
            PunchedIn::Left { ticket, holder, .. } => {
                format!("left {}, held by {}", name(&mut self.tickets, "t", &ticket), holder.unwrap_or("nobody".into()))
            }
        }
    }

    fn ended(&mut self, card: &Punchcard) -> String {
        format!("{} {} of {} on {}", card.status.word(), name(&mut self.cards, "c", &card.id), card.holder, card.resource)
    }
}

fn name(known: &mut Vec<String>, prefix: &str, id: &str) -> String {
    let n = known.iter().position(|known| known == id).unwrap_or_else(|| {
        known.push(id.into());
        known.len() - 1
    });
    format!("{prefix}{}", n + 1)
}

#[test]
fn a_held_card_is_refused_until_its_lease_runs_out() {
    check(
        "0s  mara punch_in file://a 60s
         59s jon  punch_in file://a 60s
         59s jon  check    file://a
         59s mara check    file://a
         60s jon  check    file://a
         60s jon  punch_in file://./a 60s
         60s mara punch_out file://a under=1
         60s mara punch_in file://a under=1
         60s mara punch_out file://a
         61s jon  punch_out file://a
         61s mara punch_out file://a
         61s mara punch_out file://b",
        expect![[r#"
            1 granted c1 to mara: token 1, 60000 ms left
            2 refused: `file://a` is held by `mara` for another 1 s (lease on `file://a`)
            - held by other, enforced: mara on file://a, 1000 ms left
            - free, enforced: mara on file://a, 1000 ms left
            - free, enforced: no card
            3 granted c2 to jon: token 3, 60000 ms left
            4 refused: fencing token 1 is not that of a live card of `mara`
            5 refused: fencing token 1 is not that of a live card of `mara`
            6 refused: `file://a` is not held by `mara`: `jon` holds `file://a` under token 3
            7 released c2 of jon on file://a
            8 refused: `file://a` is not held by `mara`: the last card, of `jon`, is released
            9 refused: there is no punchcard `file://b`
        "#]],
    );
}

#[test]
fn the_holders_second_card_is_his_first_renewed() {
    check(
        "0s  mara punch_in file://a 60s
         30s mara punch_in file:///a
         31s mara punch_in file://a 90s under=1
         32s mara punch_in file://a 2s
         33s mara punch_in file://b under=1
         34s mara punch_in file://a 60s
         34s mara list
         34s mara events",
        expect![[r#"
            1 granted c1 to mara: token 1, 60000 ms left
            2 renewed c1 to mara: token 1, 60000 ms left
            3 renewed c1 to mara: token 1, 90000 ms left
            4 renewed c1 to mara: token 1, 2000 ms left
            5 refused: fencing token 1 is not that of a live card of `mara` on `file://b`
            6 granted c2 to mara: token 6, 60000 ms left
            - [6 file://a held, 1 file://a expired]
            - 1 punchcard.granted, 2 punchcard.renewed, 3 punchcard.renewed, 4 punchcard.renewed, 6 punchcard.expired, 6 punchcard.granted
        "#]],
    );
}

#[test]
fn a_tree_and_what_is_in_it_exclude_others_but_not_its_holder() {
    check(
        "0s mara punch_in tree://src/auth 60s
         0s jon  punch_in file://src/auth/jwt.rs
         0s jon  punch_in file://src/auth
         0s jon  punch_in tree://src
         0s jon  punch_in tree://.
         0s jon  punch_in tree://src/authz
         0s jon  punch_in file://src/auth.rs
         0s mara punch_in file://src/auth/jwt.rs
         0s mara punch_in tree://src
         0s mara punch_in file://lib/x
         0s jon  punch_in tree://lib
         0s eve  punch_in tree://src/auth
         0s jon  check    tree://.
         0s mara check    tree://src/auth/x",
        expect![[r#"
            1 granted c1 to mara: token 1, 60000 ms left
            2 refused: `file://src/auth/jwt.rs` is held by `mara` for another 60 s (lease on `tree://src/auth`)
            3 refused: `file://src/auth` is held by `mara` for another 60 s (lease on `tree://src/auth`)
            4 refused: `tree://src` is held by `mara` for another 60 s (lease on `tree://src/auth`)
            5 refused: `tree://.` is held by `mara` for another 60 s (lease on `tree://src/auth`)
            6 granted c2 to jon: token 6, 1800000 ms left
            7 granted c3 to jon: token 7, 1800000 ms left
            8 granted c4 to mara: token 8, 1800000 ms left
            9 refused: `tree://src` is held by `jon` for another 30 min 0 s (lease on `tree://src/authz`)
            10 granted c5 to mara: token 10, 1800000 ms left
            11 refused: `tree://lib` is held by `mara` for another 30 min 0 s (lease on `file://lib/x`)
            12 granted c6 to eve: token 12, 1800000 ms left
            - held by other, enforced: mara on file://lib/x, 1800000 ms left
            - free, enforced: mara on tree://src/auth, 60000 ms left
        "#]],
    );
}

#[test]
fn cards_whose_time_is_over_block_nobody_before_they_are_swept() {
    let mut play = Play::new();
    let mut line = |text: &str| play.line(&Line::parse(text)).unwrap_or_else(|refusal| format!("refused: {refusal}"));
    for n in 0..300 {
        line(&format!("0s mara punch_in file://src/f{n} 1s"));
    }
    assert!(line("0s jon punch_in tree://src").starts_with("refused: `tree://src` is held by `mara` for another 1 s"));
    // This entry sweeps a hundred of the three hundred.
    assert_eq!(line("1s jon punch_in tree://src"), "granted c301 to jon: token 302, 1800000 ms left");
    assert_eq!(line("1s jon check file://src/f299"), "free, enforced: jon on tree://src, 1800000 ms left");
    assert!(line("1s mara punch_in file://src/f299").starts_with("refused: `file://src/f299` is held by `jon`"));
}

#[test]
fn a_name_or_tenant_in_the_arguments_is_only_a_claim() {
    check(
        "0s mara punch_in  file://a 60s
         0s jon  punch_in  file://b 60s as=mara
         0s mara punch_in  file://b 60s as=MARA
         0s jon  punch_out file://a as=mara
         0s mara punch_in  file://b 60s tenant=other
         0s mara punch_in  file://b 60s tenant=nowhere
         0s mara list      tenant=other
         0s mara punch_in  file://b 60s tenant=acme
         0s olga punch_in  file://c 60s as=jon
         0s jon  punch_out file://c
         0s olga punch_out file://a as=mara",
        expect![[r#"
            1 granted c1 to mara: token 1, 60000 ms left
            2 refused: `holder_passport` is not the caller, who is `jon`; acting for another needs the scope `punchcard:impersonate`
            3 refused: `holder_passport` is not the caller, who is `mara`; acting for another needs the scope `punchcard:impersonate`
            4 refused: `holder_passport` is not the caller, who is `jon`; acting for another needs the scope `punchcard:impersonate`
            5 refused: there is no tenant `other`
            6 refused: there is no tenant `nowhere`
            - refused: there is no tenant `other`
            7 granted c2 to mara: token 7, 60000 ms left
            8 granted c3 to jon: token 8, 60000 ms left
            9 released c3 of jon on file://c
            10 released c1 of mara on file://a
        "#]],
    );
}

#[test]
fn the_length_of_a_lease_has_bounds_and_one_spelling() {
    check(
        "10s mara punch_in file://a 999ms
         10s mara punch_in file://a 86400001ms
         10s mara punch_in file://a 60s until=70s
         10s mara punch_in file://a until=9s
         10s mara punch_in file://a until=10500ms
         10s mara punch_in file://a until=12s
         11s mara check    file://a
         11s jon  punch_in file://a 60s wait=600001ms
         11s jon  punch_in file://a until=20s wait=5s
         11s jon  punch_in file://../a",
        expect![[r#"
            1 refused: `ttl_ms` must be 1000 to 86400000, not 999
            2 refused: `ttl_ms` must be 1000 to 86400000, not 86400001
            3 refused: `expires_at_unix_ms` can't be given with `ttl_ms`
            4 refused: `expires_at_unix_ms` is in the past: the cluster's clock says 1900000010000
            5 refused: `expires_at_unix_ms` must be 1000 to 86400000 ms ahead of the cluster's clock, not 500
            6 granted c1 to mara: token 6, 2000 ms left
            - free, enforced: mara on file://a, 1000 ms left
            7 refused: `wait_ms` must be 0 to 600000, not 600001
            8 refused: `expires_at_unix_ms` can't be given with `wait_ms`, because the grant may come late; use `ttl_ms`
            9 refused: `resource` leaves its root with `..`
        "#]],
    );
}

#[test]
fn who_waits_is_served_in_order_and_nobody_barges() {
    check(
        "0s mara punch_in file://a/x 60s
         0s jon  punch_in file://a/x 60s wait=30s
         1s ben  punch_in tree://a 60s wait=30s
         2s jon  punch_in file://a/x 60s wait=60s
         3s ida  punch_in file://a/y
         3s ida  punch_in file://a/y 10s wait=30s
         3s jon  ticket t1
         3s ben  ticket t2
         3s ida  ticket t3
         3s jon  ticket t2
         4s mara punch_out file://a/x
         4s jon  ticket t1
         4s ben  ticket t2
         5s jon  punch_out file://a/x
         5s ben  ticket t2
         5s ida  ticket t3
         6s ben  punch_out tree://a
         6s ida  ticket t3
         6s eve  ticket t3
         7s ida  events",
        expect![[r#"
            1 granted c1 to mara: token 1, 60000 ms left
            2 queued t1, 0 ahead, behind mara on file://a/x for 60000 ms
            3 queued t2, 1 ahead, behind mara on file://a/x for 59000 ms
            4 queued t1, 0 ahead, behind mara on file://a/x for 58000 ms
            5 refused: `file://a/y` is waited for by `ben` for another 28 s (queued for `tree://a`)
            6 queued t3, 1 ahead, behind ben on tree://a for 28000 ms
            - queued t1, 0 ahead, behind mara on file://a/x for 57000 ms
            - queued t2, 1 ahead, behind mara on file://a/x for 57000 ms
            - queued t3, 1 ahead, behind ben on tree://a for 28000 ms
            - refused: there is no ticket `t2`
            7 released c1 of mara on file://a/x
            - granted c2 to jon: token 7, 60000 ms left
            - queued t2, 0 ahead, behind jon on file://a/x for 60000 ms
            8 released c2 of jon on file://a/x
            - granted c3 to ben: token 8, 60000 ms left
            - queued t3, 0 ahead, behind ben on tree://a for 60000 ms
            9 released c3 of ben on tree://a
            - granted c4 to ida: token 9, 10000 ms left
            - refused: there is no ticket `t3`
            - 1 punchcard.granted, 2 punchcard.queued, 3 punchcard.queued, 6 punchcard.queued, 7 punchcard.released, 7 punchcard.granted, 8 punchcard.released, 8 punchcard.granted, 9 punchcard.released, 9 punchcard.granted
        "#]],
    );
}

#[test]
fn a_freed_file_is_kept_for_the_tree_that_waited_first() {
    check(
        "0s mara punch_in  file://a/x 60s
         0s cleo punch_in  file://a/z 60s
         0s jon  punch_in  tree://a 60s wait=30s
         0s ida  punch_in  file://a/z 60s wait=30s
         1s cleo punch_out file://a/z
         1s ida  ticket    t2
         1s ben  punch_in  file://a/z
         2s mara punch_out file://a/x
         2s jon  ticket    t1",
        expect![[r#"
            1 granted c1 to mara: token 1, 60000 ms left
            2 granted c2 to cleo: token 2, 60000 ms left
            3 queued t1, 0 ahead, behind cleo on file://a/z for 60000 ms
            4 queued t2, 1 ahead, behind cleo on file://a/z for 60000 ms
            5 released c2 of cleo on file://a/z
            - queued t2, 1 ahead, behind jon on tree://a for 29000 ms
            6 refused: `file://a/z` is waited for by `jon` for another 29 s (queued for `tree://a`)
            7 released c1 of mara on file://a/x
            - granted c3 to jon: token 7, 60000 ms left
        "#]],
    );
    // Here the freed tree is the larger one, and the first to wait is still blocked by another card in it.
    check(
        "0s mara punch_in  tree://. 60s
         0s mara punch_in  file://a/k 60s
         0s jon  punch_in  tree://a 60s wait=30s
         0s ida  punch_in  file://a/z 60s wait=30s
         0s ben  punch_in  file://b 60s wait=30s
         1s mara punch_out tree://.
         1s jon  ticket    t1
         1s ida  ticket    t2
         1s ben  ticket    t3",
        expect![[r#"
            1 granted c1 to mara: token 1, 60000 ms left
            2 granted c2 to mara: token 2, 60000 ms left
            3 queued t1, 0 ahead, behind mara on tree://. for 60000 ms
            4 queued t2, 1 ahead, behind mara on tree://. for 60000 ms
            5 queued t3, 0 ahead, behind mara on tree://. for 60000 ms
            6 released c1 of mara on tree://.
            - queued t1, 0 ahead, behind mara on file://a/k for 59000 ms
            - queued t2, 1 ahead, behind jon on tree://a for 29000 ms
            - granted c3 to ben: token 6, 60000 ms left
        "#]],
    );
}

#[test]
fn an_ended_lease_is_handed_to_who_waits_in_the_same_entry() {
    check(
        "0s  mara punch_in file://a 10s
         0s  jon  punch_in file://a 60s wait=30s
         10s ben  punch_in file://a 60s
         10s jon  ticket t1
         11s olga force_release c2
         11s olga list",
        expect![[r#"
            1 granted c1 to mara: token 1, 10000 ms left
            2 queued t1, 0 ahead, behind mara on file://a for 10000 ms
            3 refused: `file://a` is held by `jon` for another 60 s (lease on `file://a`)
            - granted c2 to jon: token 3, 60000 ms left
            4 force_released c2 of jon on file://a
            - [3 file://a force_released, 1 file://a expired]
        "#]],
    );
}

#[test]
fn what_an_entry_grants_from_the_queue_the_same_entry_does_not_end() {
    // Jon does not know yet that he holds it. Were it released and handed to ben here, both would have token 4.
    check(
        "0s  mara punch_in  file://a 10s
         0s  jon  punch_in  file://a 60s wait=30s
         0s  ben  punch_in  file://a 60s wait=30s
         10s jon  punch_out file://a
         11s jon  punch_out file://a
         11s ben  ticket t2",
        expect![[r#"
            1 granted c1 to mara: token 1, 10000 ms left
            2 queued t1, 0 ahead, behind mara on file://a for 10000 ms
            3 queued t2, 1 ahead, behind mara on file://a for 10000 ms
            4 refused: `file://a` was granted to `jon` only now, under token 4
            5 released c2 of jon on file://a
            - granted c3 to ben: token 5, 60000 ms left
        "#]],
    );
}

#[test]
fn a_wait_ends_by_time_or_by_leaving_and_lets_those_behind_pass() {
    check(
        "0s mara punch_in file://a/x 60s
         0s jon  punch_in tree://a 60s wait=5s
         0s ida  punch_in file://a/y 60s wait=30s
         5s jon  ticket t1
         5s -    tick
         5s ida  ticket t2
         6s jon  punch_in tree://a 60s wait=5s
         6s ben  punch_in file://a/z 60s wait=9s
         7s mara leave t3
         7s jon  leave t3
         7s jon  leave t3
         7s ben  ticket t4
         7s ben  leave t4",
        expect![[r#"
            1 granted c1 to mara: token 1, 60000 ms left
            2 queued t1, 0 ahead, behind mara on file://a/x for 60000 ms
            3 queued t2, 1 ahead, behind jon on tree://a for 5000 ms
            - left t1, held by mara
            4 ticked
            - granted c2 to ida: token 4, 60000 ms left
            5 queued t3, 0 ahead, behind ida on file://a/y for 59000 ms
            6 queued t4, 1 ahead, behind jon on tree://a for 5000 ms
            7 refused: there is no ticket `t3`
            8 left t3, held by ben
            9 left t3, held by ben
            - granted c3 to ben: token 8, 60000 ms left
            10 granted c3 to ben: token 8, 60000 ms left
        "#]],
    );
}

#[test]
fn a_tree_handed_back_wakes_more_waiters_than_one_entry_looks_at() {
    let mut lines = vec!["0s mara punch_in tree://a 60s".to_string()];
    for n in 0..70 {
        lines.push(format!("0s p{n} punch_in file://a/{n} 60s wait=30s"));
    }
    let mut play = Play::new();
    for line in &lines {
        play.line(&Line::parse(line)).unwrap();
    }
    let mut granted = Vec::new();
    for line in ["1s mara punch_out tree://a", "2s - tick", "3s - tick"] {
        play.line(&Line::parse(line)).unwrap();
        let held = ListPunchcards {
            resource: None,
            holder_passport: None,
            tenant_id: None,
            status: Some(Status::Held),
            limit: 1000,
            cursor: None,
        };
        granted.push(play.world.ask("3s", person("mara"), held).unwrap().punchcards.len());
    }
    assert_eq!(granted, [32, 64, 70]);
}

#[test]
fn a_revoked_waiter_is_passed_over() {
    let mut play = Play::new();
    let mut line = |text: &str| play.line(&Line::parse(text)).unwrap();
    line("0s mara punch_in file://a 60s");
    line("0s jon  punch_in file://a 60s wait=30s");
    line("0s ben  punch_in file://a 60s wait=30s");
    play.world.state.put(&crate::identity::Passport {
        tenant: "acme".into(),
        name: "jon".into(),
        tier: Tier::Verified,
        scopes: Default::default(),
        agent_work_gate: false,
        revoked_at: Some(UnixMs(1)),
    });
    let mut line = |text: &str| play.line(&Line::parse(text)).unwrap();
    line("1s mara punch_out file://a");
    assert_eq!(line("1s ben ticket t2"), "granted c2 to ben: token 4, 60000 ms left");
}

#[test]
fn one_holder_does_not_wait_twice_for_what_overlaps() {
    check(
        "0s mara punch_in file://a/x 60s
         0s jon  punch_in file://a/x 60s wait=5s
         0s jon  punch_in tree://a 60s wait=5s
         6s jon  punch_in tree://a 60s wait=5s",
        expect![[r#"
            1 granted c1 to mara: token 1, 60000 ms left
            2 queued t1, 0 ahead, behind mara on file://a/x for 60000 ms
            3 refused: `resource` overlaps `file://a/x`, for which `jon` waits already under the ticket `t1`
            4 queued t2, 0 ahead, behind mara on file://a/x for 54000 ms
        "#]],
    );
}

#[test]
fn who_holds_the_tree_may_take_what_is_in_it_although_another_waits_for_that() {
    check(
        "0s mara punch_in tree://a 60s
         0s jon  punch_in file://a/x 60s wait=30s
         1s mara punch_in file://a/x 60s
         2s mara punch_out tree://a
         2s jon  ticket t1",
        expect![[r#"
            1 granted c1 to mara: token 1, 60000 ms left
            2 queued t1, 0 ahead, behind mara on tree://a for 60000 ms
            3 granted c2 to mara: token 3, 60000 ms left
            4 released c1 of mara on tree://a
            - queued t1, 0 ahead, behind mara on file://a/x for 59000 ms
        "#]],
    );
}

#[test]
fn the_flag_decides_whether_a_conflict_is_refused_granted_or_no_matter() {
    check(
        "0s olga flag advisory
         0s mara punch_in file://a 60s
         0s jon  punch_in tree://. 60s
         0s jon  check    file://a
         0s olga flag off
         0s ben  punch_in file://b
         0s ben  check    file://a
         0s mara punch_out file://a
         0s jon  flag enforce
         0s olga flag enforce
         0s ben  punch_in file://b",
        expect![[r#"
            1 flag: advisory
            2 granted c1 to mara: token 2, 60000 ms left
            3 granted c2 to jon: token 3, 60000 ms left, although mara holds file://a
            - held by other, not enforced: mara on file://a, 60000 ms left
            4 flag: off
            5 refused: punch_in is switched off by the flag `CORECRUXD_PUNCHCARD`
            - free, not enforced: no card
            6 released c1 of mara on file://a
            7 refused: setting a flag needs the scope `admin`
            8 flag: enforce
            9 refused: `file://b` is held by `jon` for another 60 s (lease on `tree://.`)
        "#]],
    );
}

#[test]
fn taking_a_card_away_is_an_operators_act() {
    check(
        "0s mara punch_in file://a 60s
         0s jon  force_release c1
         0s eve  force_release c1
         0s eve  force_release pc_none
         0s otto force_release c1 confirm=false
         0s otto force_release c1 by=mara
         0s otto force_release pc_none
         0s evan force_release c1
         1s otto force_release c1 by=otto reason=gone
         1s otto force_release c1
         1s mara punch_out file://a under=1
         1s mara punch_in file://a 60s
         1s mara events",
        expect![[r#"
            1 granted c1 to mara: token 1, 60000 ms left
            2 refused: taking another's card needs the scope `admin` or the tier operator
            3 refused: taking another's card needs the scope `admin` or the tier operator
            4 refused: taking another's card needs the scope `admin` or the tier operator
            5 refused: `confirm` must be true: this takes the card from its holder
            6 refused: `by_passport` is not the caller, who is `otto`
            7 refused: there is no punchcard `pc_none`
            8 refused: there is no punchcard `c1`
            9 force_released c1 of mara on file://a
            10 refused: punchcard `c1` has changed: expected held, found force_released
            11 refused: fencing token 1 is not that of a live card of `mara`
            12 granted c2 to mara: token 12, 60000 ms left
            - 1 punchcard.granted, 9 punchcard.force_released, 12 punchcard.granted
        "#]],
    );
}

#[test]
fn lists_are_newest_first_and_filters_meet() {
    check(
        "0s mara punch_in file://a 60s
         0s mara punch_in file://b 5s
         0s jon  punch_in file://c 60s
         1s mara punch_out file://a
         1s jon  punch_in file://a 60s
         6s mara list limit=2
         6s mara list status=held
         6s mara list status=released
         6s mara list resource=file://a limit=1
         6s mara list resource=file://./a status=held
         6s mara list resource=file://a holder=mara
         6s mara list holder=mara
         6s mara list holder=jon status=held limit=1
         6s mara list limit=0
         6s eve  list
         7s -    tick
         7s mara list status=expired",
        expect![[r#"
            1 granted c1 to mara: token 1, 60000 ms left
            2 granted c2 to mara: token 2, 5000 ms left
            3 granted c3 to jon: token 3, 60000 ms left
            4 released c1 of mara on file://a
            5 granted c4 to jon: token 5, 60000 ms left
            - [5 file://a held, 3 file://c held | 2 file://b expired, 1 file://a released]
            - [5 file://a held, 3 file://c held]
            - [1 file://a released]
            - [5 file://a held | 1 file://a released]
            - [5 file://a held]
            - [1 file://a released]
            - [2 file://b expired, 1 file://a released]
            - [5 file://a held | 3 file://c held]
            - refused: `limit` must be 1 to 1000, not 0
            - []
            6 ticked
            - [2 file://b expired]
        "#]],
    );
}

#[test]
fn a_card_leaves_receipts_that_check_out_and_follow_each_other() {
    let mut play = Play::new();
    let mut line = |text: &str| play.line(&Line::parse(text)).unwrap();
    line("0s mara punch_in file://a 60s");
    line("1s mara punch_out file://a");
    let id = play.cards[0].clone();
    let receipt = |play: &mut Play, kind: &str, who: &str, tenant: Option<&str>| {
        let query = GetReceipt { receipt_id: format!("rcx-punchcard:{kind}:{id}"), tenant_id: tenant.map(Into::into) };
        play.world.ask("1s", person(who), query)
    };
    let acquire = receipt(&mut play, "acquire", "jon", None).unwrap();
    let release = receipt(&mut play, "release", "jon", Some("acme")).unwrap();
    assert_eq!((acquire.faults.as_slice(), release.faults.as_slice()), ([].as_slice(), [].as_slice()));
    assert_eq!((acquire.seq, acquire.previous_link_hash.as_str()), (0, "0".repeat(64).as_str()));
    assert_eq!((release.seq, &release.previous_link_hash), (1, &acquire.link_hash));
    assert_eq!(blake3::hash(&release.body).to_hex().to_string(), release.body_hash);
    let body: ciborium::Value = ciborium::from_reader(release.body.as_slice()).unwrap();
    let fields: Vec<&str> = body.as_map().unwrap().iter().map(|(name, _)| name.as_text().unwrap()).collect();
    expect![[r#"
        schema kind receipt_id tenant_id punchcard_id
        resource mode holder_passport fencing_token ttl_ms
        deadline lease_now revision made_at by_passport"#]]
    .assert_eq(&fields.chunks(5).map(|five| five.join(" ")).collect::<Vec<_>>().join("\n"));
    for (who, tenant) in [("eve", None), ("eve", Some("acme")), ("jon", Some("other"))] {
        assert!(matches!(receipt(&mut play, "release", who, tenant), Err(Refusal::NotFound { what, .. }) if what == "receipt"));
    }
}

#[test]
fn whoever_closes_a_circle_of_waits_is_refused_and_told_the_circle() {
    check(
        "0s  mara punch_in file://a
         0s  jon  punch_in file://b
         0s  ben  punch_in file://c
         0s  mara punch_in file://b wait=60s
         0s  jon  punch_in file://c wait=60s
         0s  ben  punch_in file://a wait=60s
         0s  ben  waiters
         0s  ben  punch_in file://d wait=60s
         0s  ben  punch_out file://c
         0s  ben  punch_in file://a wait=60s
         1s  mara waiters limit=1",
        expect![[r#"
            1 granted c1 to mara: token 1, 1800000 ms left
            2 granted c2 to jon: token 2, 1800000 ms left
            3 granted c3 to ben: token 3, 1800000 ms left
            4 queued t1, 0 ahead, behind jon on file://b for 1800000 ms
            5 queued t2, 0 ahead, behind ben on file://c for 1800000 ms
            6 refused: waiting for `file://a` would never end: `ben` wants `file://a`, held by `mara` (`file://a`), `mara` wants `file://b`, held by `jon` (`file://b`), `jon` wants `file://c`, held by `ben` (`file://c`)
            - [jon for file://c behind ben on file://c; mara for file://b behind jon on file://b]
            7 granted c4 to ben: token 7, 1800000 ms left
            8 released c3 of ben on file://c
            9 queued t3, 0 ahead, behind mara on file://a for 1800000 ms
            - [ben for file://a behind mara on file://a | mara for file://b behind jon on file://b]
        "#]],
    );
}

#[test]
fn who_came_first_is_waited_for_too() {
    // jon waits for all of `src`, since mara holds a file of it; so what mara wants of `src` besides is behind jon.
    check(
        "0s  mara punch_in file://src/a
         0s  jon  punch_in tree://src wait=60s
         0s  mara punch_in file://src/b wait=60s
         0s  mara punch_in tree://src wait=60s",
        expect![[r#"
            1 granted c1 to mara: token 1, 1800000 ms left
            2 queued t1, 0 ahead, behind mara on file://src/a for 1800000 ms
            3 refused: waiting for `file://src/b` would never end: `mara` wants `file://src/b`, waited for before by `jon` (`tree://src`), `jon` wants `tree://src`, held by `mara` (`file://src/a`)
            4 refused: waiting for `tree://src` would never end: `mara` wants `tree://src`, waited for before by `jon` (`tree://src`), `jon` wants `tree://src`, held by `mara` (`file://src/a`)
        "#]],
    );
}

#[test]
fn an_attended_place_is_given_up_without_signs_of_life_and_its_card_without_being_taken() {
    check(
        "0s  mara punch_in file://a 300s
         0s  jon  punch_in file://a 60s wait=200s attended
         20s jon  attend t1
         49s jon  ticket t1
         50s - tick
         50s jon  ticket t1
         50s jon  punch_in file://a 60s wait=200s attended
         51s ben  punch_in file://a 60s wait=200s
         52s mara punch_out file://a
         53s jon  ticket t2
         67s - tick
         67s jon  ticket t2
         67s jon  attend t2
         67s ben  ticket t3",
        expect![[r#"
            1 granted c1 to mara: token 1, 300000 ms left
            2 queued t1, 0 ahead, behind mara on file://a for 300000 ms
            3 queued t1, 0 ahead, behind mara on file://a for 280000 ms
            - queued t1, 0 ahead, behind mara on file://a for 251000 ms
            4 ticked
            - left t1, held by mara
            5 queued t2, 0 ahead, behind mara on file://a for 250000 ms
            6 queued t3, 1 ahead, behind mara on file://a for 249000 ms
            7 released c1 of mara on file://a
            - granted c2 to jon: token 7, 14000 ms left
            8 ticked
            - left t2, held by ben
            9 left t2, held by ben
            - granted c3 to ben: token 8, 60000 ms left
        "#]],
    );
}

#[test]
fn an_attended_place_that_takes_its_card_in_time_holds_it_as_long_as_was_asked_for() {
    check(
        "0s  mara punch_in file://a 300s
         0s  jon  punch_in file://a 60s wait=200s attended
         1s  mara punch_out file://a
         2s  jon  ticket t1
         2s  ben  attend t1
         3s  jon  attend t1
         4s  jon  attend t1
         50s jon  check file://a
         63s jon  ticket t1
         63s jon  check file://a",
        expect![[r#"
            1 granted c1 to mara: token 1, 300000 ms left
            2 queued t1, 0 ahead, behind mara on file://a for 300000 ms
            3 released c1 of mara on file://a
            - granted c2 to jon: token 3, 14000 ms left
            4 refused: there is no ticket `t1`
            5 granted c2 to jon: token 3, 60000 ms left
            6 granted c2 to jon: token 3, 59000 ms left
            - free, enforced: jon on file://a, 13000 ms left
            - granted c2 to jon: token 3, 0 ms left
            - free, enforced: no card
        "#]],
    );
}

#[test]
fn a_lock_delay_keeps_others_out_after_a_card_is_lost_and_not_after_it_is_given_back() {
    check(
        "0s   mara punch_in tree://db 10s delay=5s
         0s   jon  punch_in file://db/x 60s wait=60s
         9s   mara punch_in tree://db 10s
         19s  jon  ticket t1
         19s  jon  check file://db/x
         19s  ben  punch_in file://db/y
         19s  ben  punch_in file://other
         23s  mara punch_in file://db/y 1s
         23s  - tick
         24s  - tick
         24s  jon  ticket t1
         24s  ben  punch_in file://db/y delay=10s
         25s  ben  punch_out file://db/y
         25s  jon  punch_in file://db/y 60s delay=20s
         26s  olga force_release c6
         27s  ben  punch_in file://db/y
         27s  jon  punch_in file://db/y
         27s  jon  punch_in file://z delay=61s",
        expect![[r#"
            1 granted c1 to mara: token 1, 10000 ms left
            2 queued t1, 0 ahead, behind mara on tree://db for 10000 ms
            3 renewed c1 to mara: token 1, 10000 ms left
            - queued t1, 0 ahead, behind mara on tree://db for 5000 ms
            - held by other, enforced: mara on tree://db, 5000 ms left
            4 refused: `file://db/y` is kept closed after it was lost by `mara` for another 5 s (lease on `tree://db`)
            5 granted c2 to ben: token 5, 1800000 ms left
            6 granted c3 to mara: token 6, 1000 ms left
            7 ticked
            8 ticked
            - granted c4 to jon: token 8, 60000 ms left
            9 granted c5 to ben: token 9, 1800000 ms left
            10 released c5 of ben on file://db/y
            11 granted c6 to jon: token 11, 60000 ms left
            12 force_released c6 of jon on file://db/y
            13 refused: `file://db/y` is kept closed after it was lost by `jon` for another 19 s (lease on `file://db/y`)
            14 granted c7 to jon: token 14, 1800000 ms left
            15 refused: `lock_delay_ms` must be 0 to 60000, not 61000
        "#]],
    );
}

#[test]
fn a_card_is_handed_over_past_those_who_wait_and_its_old_token_is_refused() {
    check(
        "0s  jon  meet
         0s  ben  meet
         0s  mara punch_in file://a 60s
         1s  ben  punch_in file://a wait=100s
         2s  jon  punch_in file://a wait=100s
         3s  mara transfer file://a to=nobody
         3s  mara transfer file://a to=mara
         3s  jon  transfer file://a to=ben
         3s  jon  transfer file://a to=jon
         3s  mara transfer file://a to=jon under=9
         3s  mara transfer file://a to=jon
         4s  jon  ticket t2
         4s  mara punch_out file://a under=3
         4s  mara verify file://a 3
         4s  jon  verify file://a 10
         5s  ben  ticket t1
         6s  jon  punch_out file://a
         7s  ben  ticket t1
         7s  mara list resource=file://a",
        expect![[r#"
            1 jon has a passport
            2 ben has a passport
            3 granted c1 to mara: token 3, 60000 ms left
            4 queued t1, 0 ahead, behind mara on file://a for 59000 ms
            5 queued t2, 1 ahead, behind mara on file://a for 58000 ms
            6 refused: there is no passport `nobody`
            7 refused: `to_passport` holds the card already
            8 refused: `file://a` is not held by `jon`: `mara` holds `file://a` under token 3
            9 refused: `file://a` is not held by `jon`: `mara` holds `file://a` under token 3
            10 refused: fencing token 9 is not that of a live card of `mara`
            11 released c1 of mara on file://a, granted c2 to jon: token 11, 60000 ms left
            - granted c2 to jon: token 11, 59000 ms left
            12 refused: fencing token 3 is not that of a live card of `mara`
            - not good: jon holds file://a under 11
            - not good: jon holds file://a under 11
            - queued t1, 0 ahead, behind jon on file://a for 58000 ms
            13 released c2 of jon on file://a
            - granted c3 to ben: token 13, 1799000 ms left
            - [13 file://a held, 11 file://a released, 3 file://a released]
        "#]],
    );
}

#[test]
fn a_hand_over_that_closes_a_circle_of_waits_is_refused() {
    check(
        "0s  jon  meet
         0s  mara punch_in file://a
         0s  ben  punch_in file://b
         0s  jon  punch_in file://b wait=60s
         0s  ben  punch_in file://a wait=60s
         0s  mara transfer file://a to=jon
         0s  mara check file://a",
        expect![[r#"
            1 jon has a passport
            2 granted c1 to mara: token 2, 1800000 ms left
            3 granted c2 to ben: token 3, 1800000 ms left
            4 queued t1, 0 ahead, behind ben on file://b for 1800000 ms
            5 queued t2, 0 ahead, behind mara on file://a for 1800000 ms
            6 refused: waiting for `file://a` would never end: `jon` wants `file://b`, held by `ben` (`file://b`), `ben` wants `file://a`, held by `jon` (`file://a`)
            - free, enforced: mara on file://a, 1800000 ms left
        "#]],
    );
}

#[test]
fn many_cards_are_renewed_at_once_and_what_is_lost_is_told() {
    check(
        "0s  mara punch_in file://a 10s
         0s  mara punch_in file://b 20s
         0s  jon  punch_in file://c 20s
         9s  mara renew
         12s mara renew file://a file://./a file://c file://d ttl=30s
         13s mara renew a
         13s jon  renew as=mara
         13s mara punch_in file://d
         13s mara punch_in file://e
         13s mara punch_in file://f
         14s mara renew
         14s mara renew file://a file://b file://c file://d file://e",
        expect![[r#"
            1 granted c1 to mara: token 1, 10000 ms left
            2 granted c2 to mara: token 2, 20000 ms left
            3 granted c3 to jon: token 3, 20000 ms left
            4 renewed [file://b 20000 ms, file://a 10000 ms], not held []
            5 renewed [file://a 30000 ms], not held [file://c, file://d]
            6 refused: `resource` must begin with `file://`, `tree://`, `service://` or `deploy://`
            7 refused: `holder_passport` is not the caller, who is `jon`; acting for another needs the scope `punchcard:impersonate`
            8 granted c4 to mara: token 8, 1800000 ms left
            9 granted c5 to mara: token 9, 1800000 ms left
            10 granted c6 to mara: token 10, 1800000 ms left
            11 refused: `resources` must name which cards: `mara` has more than 4
            12 refused: `resources` is 5 entries long, and the limit is 4 entries
        "#]],
    );
}

#[test]
fn a_token_is_good_for_what_its_live_card_covers() {
    check(
        "0s  mara punch_in tree://deploy/eu 10s
         0s  jon  verify file://deploy/eu/app 1
         0s  jon  verify file://deploy/eu/app 1 holder=mara
         0s  jon  verify file://deploy/eu/app 1 holder=jon
         0s  jon  verify tree://deploy 1
         0s  jon  verify file://elsewhere 1
         0s  jon  verify file://deploy/eu/app 2
         0s  eve  verify file://deploy/eu/app 1
         10s jon  verify file://deploy/eu/app 1
         10s jon  punch_in file://deploy/eu/app
         10s jon  verify file://deploy/eu/app 1",
        expect![[r#"
            1 granted c1 to mara: token 1, 10000 ms left
            - good: mara on tree://deploy/eu, 10000 ms left
            - good: mara on tree://deploy/eu, 10000 ms left
            - not good: mara holds tree://deploy/eu under 1
            - not good: mara holds tree://deploy/eu under 1
            - not good: nobody holds it
            - not good: mara holds tree://deploy/eu under 1
            - not good: nobody holds it
            - not good: nobody holds it
            2 granted c2 to jon: token 2, 1800000 ms left
            - not good: jon holds file://deploy/eu/app under 2
        "#]],
    );
}
