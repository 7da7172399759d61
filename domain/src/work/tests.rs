//! Transcripts and properties of work.

use std::collections::BTreeSet;
use std::fmt::Write;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;
use crate::approval::{DecideApproval, Decision, ListApprovals};
use crate::flag::SetFlag;
use crate::identity::{PutToken, SetWorkGate, token_hash};
use crate::limit::{LIST_MAX, REPLY_BYTES_DEFAULT, REPLY_BYTES_MAX};
use crate::passport::RevokePassport;
use crate::receipt::GetReceipt;
use crate::stamp::Tier;
use crate::transcript::{Line, World, person};

struct Play {
    world: World,
    revision: u64,
    work: Vec<String>,
    actions: Vec<String>,
    projects: Vec<String>,
}

fn state(word: &str) -> Option<State> {
    let all = [State::Planned, State::InProgress, State::Blocked, State::Archive, State::Complete, State::Deployed];
    all.into_iter().find(|state| state.word() == word)
}

impl Play {
    fn new() -> Self {
        Self { world: World::new(), revision: 0, work: Vec::new(), actions: Vec::new(), projects: Vec::new() }
    }

    /// `w1` is the first item that was created, `q1` the first move that was made to wait.
    fn id(&self, word: &str) -> String {
        let nth = |known: &[String], n: &str| n.parse::<usize>().ok().and_then(|n| known.get(n - 1).cloned());
        let known = word.strip_prefix('w').and_then(|n| nth(&self.work, n));
        let known = known.or_else(|| word.strip_prefix('q').and_then(|n| nth(&self.actions, n)));
        known.or_else(|| word.strip_prefix('p').and_then(|n| nth(&self.projects, n))).unwrap_or(word.into())
    }

    /// `w1,w2`; `none` is none of them.
    fn ids(&self, words: Option<String>) -> Option<Vec<String>> {
        let words = words?;
        Some(words.split(',').filter(|word| *word != "none").map(|word| self.id(word)).collect())
    }

    fn told(&self, text: String) -> String {
        let text = self.work.iter().enumerate().fold(text, |text, (n, id)| text.replace(id, &format!("w{}", n + 1)));
        let text = self.projects.iter().enumerate().fold(text, |text, (n, id)| text.replace(id, &format!("p{}", n + 1)));
        self.actions.iter().enumerate().fold(text, |text, (n, id)| text.replace(id, &format!("q{}", n + 1)))
    }

    /// Each line is one entry of the log; reads have no number.
    fn play(&mut self, lines: &str) -> String {
        let mut told = String::new();
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let line = Line::parse(line);
            let is_read = matches!(line.verb, "list" | "show" | "feed" | "projects" | "project");
            self.revision += u64::from(!is_read);
            let number = if is_read { "-".to_string() } else { self.revision.to_string() };
            let answer = self.line(&line).unwrap_or_else(|refusal| format!("refused: {refusal}"));
            let _ = writeln!(told, "{number} {}", self.told(answer));
        }
        told
    }

    fn line(&mut self, line: &Line) -> Result<String, Refusal> {
        let (time, caller) = (line.time, person(line.who));
        let claim = line.option("as").unwrap_or(line.who.into());
        match line.verb {
            "tick" => {
                self.world.tick(time);
                Ok("ticked".into())
            }
            "flag" => {
                let command = SetFlag { name: line.word(0).into(), value: line.word(1).into() };
                self.world.call(time, caller, None, command).map(|flag| format!("flag: {}", flag.value))
            }
            "token" => {
                let passport = person(line.word(0));
                let put = PutToken {
                    hash: token_hash(line.word(0)),
                    tenant: passport.tenant.clone(),
                    passport: passport.passport.clone(),
                    tier: passport.tier,
                    scopes: passport.scopes,
                    expires_at: None,
                };
                self.world.call(time, caller, None, put).map(|put| format!("token of {}", put.passport))
            }
            "revoke" => {
                let revoke = RevokePassport { target: Some(line.word(0).into()), reason: None };
                self.world.call(time, caller, None, revoke).map(|_| "revoked".into())
            }
            "gate" => {
                let (passport, gated) = (line.word(0).into(), line.word(1) != "off");
                let gate = SetWorkGate { tenant: line.option("tenant").unwrap_or("acme".into()), passport, gated };
                self.world.call(time, caller, None, gate).map(|passport| format!("gate of {}: {}", passport.name, passport.agent_work_gate))
            }
            "create" => {
                let command = CreateWork {
                    project_id: line.option("project").map_or(DEFAULT_PROJECT.into(), |word| self.id(&word)),
                    title: line.word(0).into(),
                    created_by_passport: claim,
                    body: line.option("body"),
                    state: line.option("state").and_then(|word| state(&word)),
                    assignee_passport: line.option("for"),
                    tenant_id: line.option("tenant"),
                    linked_pr: line.option("pr"),
                    linked_issue: None,
                    blocker_reason: line.option("reason"),
                    depends_on: self.ids(line.option("after")).unwrap_or_default(),
                };
                let work = self.world.call(time, caller, None, command)?;
                self.work.push(work.id.clone());
                Ok(row(&work))
            }
            "move" => {
                let command = MoveWork {
                    work_id: self.id(line.word(0)),
                    state: state(line.word(1)).unwrap(),
                    by_passport: claim,
                    blocker_reason: line.option("reason"),
                    blocker_kind: line.option("kind").map(|kind| match kind.as_str() {
                        "needs_approval" => BlockerKind::NeedsApproval,
                        _ => BlockerKind::NeedsInfo,
                    }),
                    expected_state: line.option("expected").and_then(|word| state(&word)),
                    assignee_passport: line.option("for"),
                    depends_on: self.ids(line.option("after")),
                };
                match self.world.call(time, caller, None, command)? {
                    Moved::Applied(work) => Ok(row(&work)),
                    Moved::Queued(queued) => {
                        if !self.actions.contains(&queued.action_id) {
                            self.actions.push(queued.action_id.clone());
                        }
                        Ok(format!("{} waits: {} to {}", queued.action_id, queued.work_id, queued.target_state.word()))
                    }
                }
            }
            "comment" => {
                let command = CommentOnWork { work_id: self.id(line.word(0)), author_passport: claim, body: line.word(1).into() };
                self.world
                    .call(time, caller, None, command)
                    .map(|comment| format!("{} on {}: {}", comment.author, comment.work_id, comment.body))
            }
            "approve" | "reject" => {
                let decision = if line.verb == "approve" { Decision::Approve } else { Decision::Reject };
                let command = DecideApproval {
                    request_id: self.id(line.word(0)),
                    decision,
                    reviewer_notes: None,
                    reviewer_tier: None,
                    reviewer_tenant_id: None,
                };
                self.world.call(time, caller, None, command).map(|approval| format!("{} {}", approval.request_id, approval.status.word()))
            }
            "projects" => {
                let found = self.world.ask(time, caller, ListProjects::default())?;
                Ok(format!("{:?}", found.projects.iter().map(|project| &*project.id).collect::<Vec<_>>()))
            }
            "found" => {
                let names = |names: Option<String>| names.map_or_else(Vec::new, |names| names.split(',').map(Into::into).collect());
                let command = PutProject {
                    id: line.option("id").map(|word| self.id(&word)),
                    name: line.words.first().map(ToString::to_string),
                    default_passport_id: line.option("default"),
                    add_members: names(line.option("add")),
                    remove_members: names(line.option("remove")),
                };
                let project = self.world.call(time, caller, None, command)?;
                if !self.projects.contains(&project.id) {
                    self.projects.push(project.id.clone());
                }
                Ok(format!("{} {} [{}]", project.id, project.name, project.members.into_iter().collect::<Vec<_>>().join(", ")))
            }
            "project" => {
                let found = self.world.ask(time, caller, GetProject { project_id: self.id(line.word(0)), limit: 50, cursor: None })?;
                let members: Vec<String> = found.members.iter().map(|member| format!("{} ({})", member.passport, member.role)).collect();
                Ok(format!("{} of {}: {}", found.project.id, found.tenant, members.join(", ")))
            }
            "show" => {
                let mut pages = Vec::new();
                let mut cursor = None;
                loop {
                    let ask = GetWork { work_id: self.id(line.word(0)), limit: line.ms("limit").unwrap_or(50), cursor };
                    let page = self.world.ask(time, caller.clone(), ask)?;
                    let item = page.work.iter().map(|work| format!("{} with {} comments", row(work), work.comments));
                    let comments = page.comments.iter().map(|comment| format!("{}: {}", comment.author, comment.body));
                    pages.push(item.chain(comments).collect::<Vec<_>>().join(", "));
                    cursor = page.next_cursor;
                    if cursor.is_none() {
                        return Ok(format!("[{}]", pages.join(" | ")));
                    }
                }
            }
            "list" => {
                let mut pages = Vec::new();
                let mut cursor = None;
                loop {
                    let word = line.option("state").unwrap_or_default();
                    let ask = ListWork {
                        project_id: line.option("project").map(|word| self.id(&word)),
                        state: state(&word),
                        pending_approval: word == "pending_approval",
                        tenant_id: line.option("tenant"),
                        assignee_passport: line.option("for"),
                        ready: line.words.contains(&"ready"),
                        reply_bytes: None,
                        limit: line.ms("limit").unwrap_or(50),
                        cursor,
                    };
                    let page = self.world.ask(time, caller.clone(), ask)?;
                    let requests = page.approvals.iter().map(|request| format!("{} {}", request.request_id, request.action_summary));
                    pages.push(page.work.iter().map(row).chain(requests).collect::<Vec<_>>().join(", "));
                    cursor = page.next_cursor;
                    if cursor.is_none() {
                        return Ok(format!("[{}]", pages.join(" | ")));
                    }
                }
            }
            "feed" => {
                let work_id = line.words.first().map(|word| self.id(word));
                let mut pages = Vec::new();
                let mut cursor = None;
                loop {
                    let ask = StatusFeed { work_id: work_id.clone(), limit: line.ms("limit").unwrap_or(200), cursor };
                    let page = self.world.ask(time, caller.clone(), ask)?;
                    if !page.enabled {
                        return Ok("off".into());
                    }
                    let told = page.events.iter().map(|event| {
                        let from = event.from.map_or("nothing", State::word);
                        format!("{} {} by {} ({from} to {})", event.work_id, event.verb.word(), event.by, event.to.word())
                    });
                    pages.push(told.collect::<Vec<_>>().join("; "));
                    cursor = page.next_cursor;
                    if cursor.is_none() {
                        return Ok(format!("[{}]", pages.join(" | ")));
                    }
                }
            }
            verb => panic!("no verb `{verb}`"),
        }
    }
}

fn row(work: &Work) -> String {
    let blocker = work.blocker.as_ref().map(|blocker| format!(" ({}, {:?})", blocker.reason, blocker.kind)).unwrap_or_default();
    let open = Some(work.open_dependencies).filter(|open| *open > 0).map(|open| format!(", {open} to come first")).unwrap_or_default();
    format!("{} {} {}{blocker} for {}{open}", work.id, work.title, work.state.word(), work.assignee)
}

fn check(lines: &str, expected: Expect) {
    expected.assert_eq(&Play::new().play(lines));
}

#[test]
fn what_is_ready_is_planned_and_waits_for_nothing_unfinished() {
    check(
        "0s mara create parser
         0s mara create lexer
         0s mara create docs after=w1,w2,w1
         0s mara list ready
         1s mara move w1 complete
         1s mara move w2 in_progress
         1s mara list ready
         2s mara move w2 deployed
         2s mara list ready
         3s mara move w2 archive
         3s mara list ready
         4s mara move w1 in_progress
         4s mara list ready
         5s mara move w1 archive
         5s mara list ready
         5s mara move w1 planned
         5s mara list ready
         5s mara move w3 planned after=none
         5s mara list ready
         5s mara list ready state=blocked
         5s mara list ready state=pending_approval
         6s mara create more after=w9
         6s eve  create theirs after=w1",
        expect![[r#"
            1 w1 parser planned for mara
            2 w2 lexer planned for mara
            3 w3 docs planned for mara, 2 to come first
            - [w2 lexer planned for mara, w1 parser planned for mara]
            4 w1 parser complete for mara
            5 w2 lexer in_progress for mara
            - []
            6 w2 lexer deployed for mara
            - [w3 docs planned for mara]
            7 w2 lexer archive for mara
            - [w3 docs planned for mara]
            8 w1 parser in_progress for mara
            - []
            9 w1 parser archive for mara
            - [w3 docs planned for mara]
            10 w1 parser planned for mara
            - [w1 parser planned for mara]
            11 w3 docs planned for mara
            - [w3 docs planned for mara, w1 parser planned for mara]
            - refused: `ready` goes with the state `planned` only; leave `state` out
            - refused: `ready` goes with the state `planned` only; leave `state` out
            12 refused: there is no work `w9`
            13 refused: there is no work `w1`
        "#]],
    );
}

#[test]
fn what_waits_for_others_does_not_begin_before_them() {
    check(
        "0s mara create parser
         0s mara create lexer
         0s mara create docs after=w1,w2
         1s jon  move w3 in_progress expected=planned for=jon
         1s jon  move w3 in_progress
         1s mara create tests state=in_progress after=w1
         1s mara list for=jon
         2s mara move w3 blocked reason=early
         2s mara move w3 in_progress
         3s mara move w1 complete
         3s mara move w3 in_progress
         4s mara move w2 archive
         4s jon  move w3 in_progress for=jon
         5s mara move w1 planned
         5s jon  move w3 in_progress
         5s jon  move w3 complete
         6s mara create more after=w1
         6s jon  move w4 in_progress after=none for=jon
         7s mara create a after=w1
         7s mara create b after=w1
         7s mara create c after=w1
         7s mara create all after=w1,w4,w5,w6,w7
         7s mara move w8 in_progress",
        expect![[r#"
            1 w1 parser planned for mara
            2 w2 lexer planned for mara
            3 w3 docs planned for mara, 2 to come first
            4 refused: work `w3` waits for 2 items that are not finished: `w2`, `w1`
            5 refused: work `w3` waits for 2 items that are not finished: `w2`, `w1`
            6 refused: `state` can't be `in_progress` before what it depends on is finished, such as `w1`; create it as planned
            - []
            7 w3 docs blocked (early, NeedsInfo) for mara, 2 to come first
            8 refused: work `w3` waits for 2 items that are not finished: `w2`, `w1`
            9 w1 parser complete for mara
            10 refused: work `w3` waits for one item that is not finished: `w2`
            11 w2 lexer archive for mara
            12 w3 docs in_progress for jon
            13 w1 parser planned for mara
            14 w3 docs in_progress for jon, 1 to come first
            15 w3 docs complete for jon, 1 to come first
            16 w4 more planned for mara, 1 to come first
            17 w4 more in_progress for jon
            18 w5 a planned for mara, 1 to come first
            19 w6 b planned for mara, 1 to come first
            20 w7 c planned for mara, 1 to come first
            21 w8 all planned for mara, 5 to come first
            22 refused: work `w8` waits for 5 items that are not finished: `w4`, `w7`, `w6`, `w5`, `w1`
        "#]],
    );
}

#[test]
fn an_approval_of_a_move_that_has_to_wait_for_other_work_is_refused() {
    check(
        "0s olga token mara
         0s olga gate mara
         0s mara create a
         0s jon  create b
         0s mara move w1 in_progress
         1s jon  move w1 planned after=w2
         1s otto approve q1
         1s mara move w1 in_progress
         2s jon  move w2 complete
         2s otto approve q1",
        expect![[r#"
            1 token of mara
            2 gate of mara: true
            3 w1 a planned for mara
            4 w2 b planned for jon
            5 q1 waits: w1 to in_progress
            6 w1 a planned for mara, 1 to come first
            7 refused: work `w1` waits for one item that is not finished: `w2`
            8 refused: work `w1` waits for one item that is not finished: `w2`
            9 w2 b complete for jon
            10 q1 approved
        "#]],
    );
}

#[test]
fn work_is_given_to_passports_of_the_team_that_work_in_the_project() {
    check(
        "0s olga token jon
         0s olga token ben
         0s olga token otto
         0s evan token eve
         0s mara create a for=jon
         0s mara create b for=nobody
         0s mara create b for=Jon
         0s mara create b for=eve
         0s mara move w1 in_progress for=nobody
         0s mara move w1 in_progress for=mara
         1s olga found engine add=jon
         1s jon  create c project=p1 for=ben
         1s jon  create c project=p1 for=otto
         1s jon  move w2 planned for=ben
         2s olga revoke ben
         2s mara move w1 planned for=ben
         2s mara list",
        expect![[r#"
            1 token of jon
            2 token of ben
            3 token of otto
            4 refused: this needs the scope `admin`
            5 w1 a planned for jon
            6 refused: `assignee_passport` is `nobody`, and nobody of your team has that passport; `get_project_context` lists who there is
            7 refused: `assignee_passport` is `Jon`, and nobody of your team has that passport; `get_project_context` lists who there is
            8 refused: `assignee_passport` is `eve`, and nobody of your team has that passport; `get_project_context` lists who there is
            9 refused: `assignee_passport` is `nobody`, and nobody of your team has that passport; `get_project_context` lists who there is
            10 w1 a in_progress for mara
            11 p1 engine [jon]
            12 refused: `assignee_passport` is `ben`, who does not work in the project; `get_project_context` lists who does, and an operator can let more in
            13 w2 c planned for otto
            14 refused: `assignee_passport` is `ben`, who does not work in the project; `get_project_context` lists who does, and an operator can let more in
            15 revoked
            16 refused: `assignee_passport` is `ben`, whose passport is revoked; `get_project_context` lists who there is
            - [w2 c planned for otto, w1 a in_progress for mara]
        "#]],
    );
}

#[test]
fn a_plan_is_no_item_to_move_and_whoever_tries_is_told_how_it_moves() {
    check(
        "0s mara create a
         0s mara move execplan:search in_progress
         0s mara comment execplan:search hello
         0s mara move w1 planned after=execplan:search
         0s mara create b after=execplan:search
         0s mara show execplan:search",
        expect![[r#"
            1 w1 a planned for mara
            2 refused: `work_id` names a plan, which is a file and moves by its own status line and milestones: edit the file, or tell how a milestone ended with `execplan_gate`; what is done here needs an item of `create_work`
            3 refused: `work_id` names a plan, which is a file and moves by its own status line and milestones: edit the file, or tell how a milestone ended with `execplan_gate`; what is done here needs an item of `create_work`
            4 refused: `depends_on` names a plan, which is a file and moves by its own status line and milestones: edit the file, or tell how a milestone ended with `execplan_gate`; what is done here needs an item of `create_work`
            5 refused: `depends_on` names a plan, which is a file and moves by its own status line and milestones: edit the file, or tell how a milestone ended with `execplan_gate`; what is done here needs an item of `create_work`
            - refused: there is no work `execplan:search`
        "#]],
    );
}

#[test]
fn nothing_waits_for_itself_and_few_wait_for_one() {
    check(
        "0s mara create a
         0s mara create b after=w1
         0s mara create c after=w2
         0s mara move w1 planned after=w3
         0s mara move w1 planned after=w1
         0s mara create d after=w1
         0s mara create e after=w1
         0s mara create f after=w1
         0s mara create g after=w1
         0s mara create h after=w1",
        expect![[r#"
            1 w1 a planned for mara
            2 w2 b planned for mara, 1 to come first
            3 w3 c planned for mara, 1 to come first
            4 refused: `depends_on` would make `w1` wait for itself
            5 refused: `depends_on` would make `w1` wait for itself
            6 w4 d planned for mara, 1 to come first
            7 w5 e planned for mara, 1 to come first
            8 w6 f planned for mara, 1 to come first
            9 w7 g planned for mara, 1 to come first
            10 refused: `depends_on` has `w1`, on which 5 items depend already; let this one depend on one of those
        "#]],
    );
}

#[test]
fn a_claim_hands_the_item_to_the_one_that_wins_it() {
    check(
        "0s olga token ben
         0s mara create parser
         1s jon  move w1 in_progress expected=planned for=jon
         1s ben  move w1 in_progress expected=planned for=ben
         1s mara list for=jon
         1s mara list for=mara
         2s jon  move w1 in_progress for=ben
         2s mara list for=ben state=in_progress",
        expect![[r#"
            1 token of ben
            2 w1 parser planned for mara
            3 w1 parser in_progress for jon
            4 refused: work `w1` has changed: expected planned, found in_progress, assigned to `jon`
            - [w1 parser in_progress for jon]
            - []
            5 w1 parser in_progress for ben
            - [w1 parser in_progress for ben]
        "#]],
    );
}

#[test]
fn a_project_that_was_made_has_its_own_work_and_members() {
    check(
        "0s olga token mara
         0s olga token jon
         0s mara found engine
         0s olga found
         0s olga found engine add=mara,nobody
         0s olga found engine add=mara,jon default=jon
         0s olga found id=p1 default=ben
         0s olga found id=p_default x
         1s mara create parser project=p1
         1s ben  create lexer project=p1
         1s ben  create lexer
         1s olga create docs project=p1 for=olga
         1s mara list project=p1
         1s mara list project=p1 for=olga
         1s mara list project=p1 state=planned limit=1
         1s mara list project=p_default
         1s mara list
         2s ben  comment w1 hello
         2s ben  move w1 complete
         2s eve  create theirs project=p1
         2s eve  list project=p1
         3s olga found id=p1 core remove=jon default=
         3s olga found id=p1 add=jon remove=ben,jon
         3s mara project p1
         3s mara projects
         3s olga found a
         3s olga found b
         3s olga found c",
        expect![[r#"
            1 token of mara
            2 token of jon
            3 refused: making and changing projects needs the scope `admin` or the tier operator
            4 refused: `name` is missing: a new project needs one
            5 refused: there is no passport `nobody`
            6 p1 engine [jon, mara]
            7 refused: `default_passport_id` must be a member, which `ben` is not
            8 refused: `id` is the tenant's own project, which stays as it is; make another one
            9 w1 parser planned for jon
            10 refused: `ben` is no member of the project `p1`; an operator can make it one
            11 w2 lexer planned for ben
            12 w3 docs planned for olga
            - [w3 docs planned for olga, w1 parser planned for jon]
            - [w3 docs planned for olga]
            - [w3 docs planned for olga | w1 parser planned for jon]
            - [w2 lexer planned for ben]
            - [w3 docs planned for olga, w2 lexer planned for ben, w1 parser planned for jon]
            13 refused: `ben` is no member of the project `p1`; an operator can make it one
            14 refused: `ben` is no member of the project `p1`; an operator can make it one
            15 refused: there is no project `p1`
            - refused: there is no project `p1`
            16 p1 core [mara]
            17 refused: `remove_members` has `jon`, and so has `add_members`; name it in one of them
            - p1 of acme: mara (member)
            - ["p_default", "p1"]
            18 p2 a []
            19 p3 b []
            20 refused: `name` can't be one more: a tenant makes at most 3 projects
        "#]],
    );
}

#[test]
fn a_project_is_there_from_the_start_and_work_goes_through_its_states() {
    check(
        "0s olga token jon
         0s mara projects
         0s eve  projects
         0s mara create parser body=long pr=7
         0s mara create docs for=jon state=blocked reason=who
         0s jon  create tests project=p_1
         0s mara create tests project=
         1s jon  move w1 in_progress
         2s jon  move w1 in_progress
         2s jon  move w1 blocked
         2s jon  move w1 blocked reason=keys
         2s jon  move w1 blocked reason=keys kind=needs_approval
         3s jon  move w1 in_progress reason=keys
         3s jon  move w1 in_progress kind=needs_info
         3s jon  move w1 in_progress
         3s jon  move w1 complete
         3s jon  move w1 planned
         3s jon  move w9 planned
         3s jon  create odd state=blocked
         3s jon  list",
        expect![[r#"
            1 token of jon
            - ["p_default"]
            - ["p_default"]
            2 w1 parser planned for mara
            3 w2 docs blocked (who, NeedsInfo) for jon
            4 refused: there is no project `p_1`
            5 refused: `project_id` must not be empty
            6 w1 parser in_progress for mara
            7 w1 parser in_progress for mara
            8 refused: `blocker_reason` is missing: the state `blocked` needs to say why
            9 w1 parser blocked (keys, NeedsInfo) for mara
            10 w1 parser blocked (keys, NeedsApproval) for mara
            11 refused: `blocker_reason` goes with the state `blocked` only; leave it out
            12 refused: `blocker_kind` goes with the state `blocked` only; leave it out
            13 w1 parser in_progress for mara
            14 w1 parser complete for mara
            15 w1 parser planned for mara
            16 refused: there is no work `w9`
            17 refused: `blocker_reason` is missing: the state `blocked` needs to say why
            - [w2 docs blocked (who, NeedsInfo) for jon, w1 parser planned for mara]
        "#]],
    );
}

#[test]
fn claims_of_another_name_or_tenant_are_refused_and_a_foreign_item_looks_like_none() {
    check(
        "0s jon  create parser as=mara
         0s mara create parser tenant=other
         0s mara create parser tenant=acme
         0s jon  move w1 complete as=mara
         0s jon  comment w1 hello as=mara
         0s eve  move w1 complete
         0s eve  move w9 complete
         0s eve  comment w1 hello
         0s eve  comment w9 hello
         0s eve  show w1
         0s eve  show w9
         0s eve  feed w1
         0s eve  feed
         0s eve  list
         0s eve  list tenant=acme
         0s eve  list tenant=nowhere
         0s eve  list project=p_9
         0s jon  list",
        expect![[r#"
            1 refused: `created_by_passport` is not the caller, who is `jon`
            2 refused: there is no tenant `other`
            3 w1 parser planned for mara
            4 refused: `by_passport` is not the caller, who is `jon`
            5 refused: `author_passport` is not the caller, who is `jon`
            6 refused: there is no work `w1`
            7 refused: there is no work `w9`
            8 refused: there is no work `w1`
            9 refused: there is no work `w9`
            - refused: there is no work `w1`
            - refused: there is no work `w9`
            - refused: there is no work `w1`
            - []
            - []
            - refused: there is no tenant `acme`
            - refused: there is no tenant `nowhere`
            - refused: there is no project `p_9`
            - [w1 parser planned for mara]
        "#]],
    );
}

#[test]
fn lists_go_by_state_and_assignee_and_move_with_the_items() {
    check(
        "0s olga token mara
         0s olga token jon
         0s mara create a
         0s mara create b for=jon
         0s jon  create c
         0s jon  create d for=mara state=in_progress
         0s jon  move w1 in_progress
         0s jon  list
         0s jon  list limit=2
         0s jon  list limit=3 state=planned
         0s jon  list state=in_progress
         0s jon  list for=jon
         0s jon  list for=mara state=in_progress
         0s jon  list for=mara state=planned
         0s jon  list for=ghost
         0s jon  list for=
         0s jon  list project=p_default tenant=acme state=complete
         0s jon  list limit=0",
        expect![[r#"
            1 token of mara
            2 token of jon
            3 w1 a planned for mara
            4 w2 b planned for jon
            5 w3 c planned for jon
            6 w4 d in_progress for mara
            7 w1 a in_progress for mara
            - [w4 d in_progress for mara, w3 c planned for jon, w2 b planned for jon, w1 a in_progress for mara]
            - [w4 d in_progress for mara, w3 c planned for jon | w2 b planned for jon, w1 a in_progress for mara]
            - [w3 c planned for jon, w2 b planned for jon]
            - [w4 d in_progress for mara, w1 a in_progress for mara]
            - [w3 c planned for jon, w2 b planned for jon]
            - [w4 d in_progress for mara, w1 a in_progress for mara]
            - []
            - []
            - refused: `assignee_passport` must not be empty
            - []
            - refused: `limit` must be 1 to 1000, not 0
        "#]],
    );
}

#[test]
fn comments_are_kept_in_order_with_their_true_author() {
    check(
        "0s mara create a
         0s jon  comment w1 first
         0s mara comment w1 second
         0s mara comment w1
         0s jon  comment w1 third
         0s jon  show w1
         0s jon  show w1 limit=2
         0s jon  show w9",
        expect![[r#"
            1 w1 a planned for mara
            2 jon on w1: first
            3 mara on w1: second
            4 refused: `body` must not be empty
            5 jon on w1: third
            - [w1 a planned for mara with 3 comments, jon: first, mara: second, jon: third]
            - [w1 a planned for mara with 3 comments, jon: first, mara: second | jon: third]
            - refused: there is no work `w9`
        "#]],
    );
}

#[test]
fn the_feed_tells_six_words_and_keeps_the_newest() {
    check(
        "0s mara create a state=in_progress
         0s mara create b
         0s mara move w2 in_progress
         0s mara move w2 blocked reason=keys
         0s mara move w2 in_progress
         0s mara move w2 blocked reason=money kind=needs_approval
         0s mara move w2 in_progress
         0s mara move w2 complete
         0s mara move w2 archive
         0s mara move w1 archive
         0s mara move w1 planned
         0s jon  feed
         0s jon  feed w1
         0s jon  feed limit=3
         0s olga flag CORECRUXD_FEATURE_STATUS_FEED off
         0s jon  feed",
        expect![[r#"
            1 w1 a in_progress for mara
            2 w2 b planned for mara
            3 w2 b in_progress for mara
            4 w2 b blocked (keys, NeedsInfo) for mara
            5 w2 b in_progress for mara
            6 w2 b blocked (money, NeedsApproval) for mara
            7 w2 b in_progress for mara
            8 w2 b complete for mara
            9 w2 b archive for mara
            10 w1 a archive for mara
            11 w1 a planned for mara
            - [w1 CLAIMED by mara (nothing to in_progress); w2 CLAIMED by mara (planned to in_progress); w2 BLOCKED by mara (in_progress to blocked); w2 RESUMED by mara (blocked to in_progress); w2 HUMAN_HOLD by mara (in_progress to blocked); w2 RESUMED by mara (blocked to in_progress); w2 DONE by mara (in_progress to complete); w1 FAILED by mara (in_progress to archive)]
            - [w1 CLAIMED by mara (nothing to in_progress); w1 FAILED by mara (in_progress to archive)]
            - [w2 RESUMED by mara (blocked to in_progress); w2 DONE by mara (in_progress to complete); w1 FAILED by mara (in_progress to archive) | w2 BLOCKED by mara (in_progress to blocked); w2 RESUMED by mara (blocked to in_progress); w2 HUMAN_HOLD by mara (in_progress to blocked) | w1 CLAIMED by mara (nothing to in_progress); w2 CLAIMED by mara (planned to in_progress)]
            12 flag: off
            - off
        "#]],
    );
}

#[test]
fn a_gated_move_waits_for_a_person_and_happens_with_the_decision() {
    check(
        "0s olga token mara
         0s olga token otto
         0s mara gate mara
         0s olga gate mara
         0s olga gate eve tenant=other
         0s olga token mara
         0s mara create a
         0s mara create b state=complete
         0s mara move w1 complete
         0s mara move w1 complete
         0s mara move w1 deployed
         0s jon  list state=pending_approval
         0s jon  list state=pending_approval limit=1
         0s eve  list state=pending_approval
         0s jon  list state=pending_approval for=mara
         0s jon  list
         0s mara approve q1
         0s jon  approve q1
         0s otto approve q1
         0s otto approve q2
         0s otto reject q2
         0s jon  list
         0s jon  list state=pending_approval
         0s mara move w1 planned
         0s jon  feed w1
         25h - tick
         25h jon feed w1
         25h jon list
         25h olga flag CORECRUXD_FEATURE_APPROVAL_QUEUE off
         25h mara move w1 archive
         25h olga gate mara off
         25h mara move w1 archive
         25h jon project p_default",
        expect![[r#"
            1 token of mara
            2 token of otto
            3 refused: this needs the scope `admin`
            4 gate of mara: true
            5 refused: there is no passport `eve`
            6 token of mara
            7 w1 a planned for mara
            8 refused: the moves of `mara` wait for approval, so it creates work as planned only, not as complete
            9 q1 waits: w1 to complete
            10 q1 waits: w1 to complete
            11 q2 waits: w1 to deployed
            - [q1 work:w1:move:complete, q2 work:w1:move:deployed]
            - [q1 work:w1:move:complete | q2 work:w1:move:deployed]
            - []
            - []
            - [w1 a planned for mara]
            12 refused: deciding what is of high risk needs the tier operator, or the scope `approvals:decide`, and `mara` is verified
            13 refused: deciding what is of high risk needs the tier operator, or the scope `approvals:decide`, and `jon` is verified
            14 q1 approved
            15 refused: work `w1` has changed: expected planned, found complete, assigned to `mara`
            16 q2 rejected
            - [w1 a complete for mara]
            - []
            17 q3 waits: w1 to planned
            - [w1 HUMAN_HOLD by mara (planned to complete); w1 HUMAN_HOLD by mara (planned to deployed); w1 DONE by mara (planned to complete); w1 FAILED by otto (complete to deployed); w1 HUMAN_HOLD by mara (complete to planned)]
            18 ticked
            - [w1 HUMAN_HOLD by mara (planned to complete); w1 HUMAN_HOLD by mara (planned to deployed); w1 DONE by mara (planned to complete); w1 FAILED by otto (complete to deployed); w1 HUMAN_HOLD by mara (complete to planned); w1 FAILED by system (complete to planned)]
            - [w1 a complete for mara]
            19 flag: off
            20 refused: approval_request is switched off by the flag `CORECRUXD_FEATURE_APPROVAL_QUEUE`
            21 gate of mara: false
            22 w1 a archive for mara
            - p_default of acme: mara (member), otto (operator)
        "#]],
    );
}

#[test]
fn nothing_of_a_gated_call_is_made_before_its_decision_and_all_of_it_once_with_the_approval() {
    check(
        "0s olga token mara
         0s olga token zoe
         0s olga token ben
         0s olga gate mara
         0s jon  create first
         0s mara create a
         0s mara move w2 complete for=zoe after=w1
         0s jon  show w2
         0s mara move w2 complete for=zoe after=w1
         0s mara move w2 complete for=ben after=w1
         0s mara move w2 complete
         0s jon  list state=pending_approval
         1s otto reject q1
         1s jon  show w2
         1s otto approve q2
         1s otto approve q2
         1s jon  show w2
         1s otto approve q3
         2s jon  move w1 complete
         2s jon  list for=ben",
        expect![[r#"
            1 token of mara
            2 token of zoe
            3 token of ben
            4 gate of mara: true
            5 w1 first planned for jon
            6 w2 a planned for mara
            7 q1 waits: w2 to complete
            - [w2 a planned for mara with 0 comments]
            8 q1 waits: w2 to complete
            9 q2 waits: w2 to complete
            10 q3 waits: w2 to complete
            - [q1 work:w2:move:complete assignee=zoe depends_on=w1, q2 work:w2:move:complete assignee=ben depends_on=w1, q3 work:w2:move:complete]
            11 q1 rejected
            - [w2 a planned for mara with 0 comments]
            12 q2 approved
            13 refused: approval `q2` was already approved
            - [w2 a complete for ben, 1 to come first with 0 comments]
            14 refused: work `w2` has changed: expected planned, found complete, assigned to `ben`
            15 w1 first complete for jon
            - [w2 a complete for ben]
        "#]],
    );
}

#[test]
fn a_gated_caller_takes_no_work_from_another_and_frees_none_without_a_decision() {
    check(
        "0s olga token mara
         0s olga token jon
         0s olga token zoe
         0s olga gate mara
         0s jon  create first
         0s jon  create a state=in_progress
         0s jon  create b after=w1
         1s mara move w2 in_progress
         1s mara move w2 in_progress for=mara
         1s mara move w2 in_progress for=mara expected=planned
         1s mara move w3 in_progress after=none for=mara
         1s mara move w3 in_progress for=mara
         1s jon  list for=mara
         2s otto approve q1
         2s otto approve q2
         2s jon  list for=mara
         2s jon  feed w2
         3s mara move w2 in_progress for=zoe
         3s mara move w3 planned after=w1
         3s jon  move w2 in_progress for=jon
         3s jon  move w3 in_progress after=w2
         3s otto approve q3
         3s otto approve q4
         4s mara move w2 in_progress for=zoe
         4s mara move w2 in_progress after=w1
         4s jon  move w1 planned after=w2
         4s olga revoke zoe
         4s otto approve q5
         4s otto approve q6
         4s otto reject q5
         4s otto reject q6",
        expect![[r#"
            1 token of mara
            2 token of jon
            3 token of zoe
            4 gate of mara: true
            5 w1 first planned for jon
            6 w2 a in_progress for jon
            7 w3 b planned for jon, 1 to come first
            8 w2 a in_progress for jon
            9 q1 waits: w2 to in_progress
            10 refused: work `w2` has changed: expected planned, found in_progress, assigned to `jon`
            11 q2 waits: w3 to in_progress
            12 refused: work `w3` waits for one item that is not finished: `w1`
            - []
            13 q1 approved
            14 q2 approved
            - [w3 b in_progress for mara, w2 a in_progress for mara]
            - [w2 CLAIMED by jon (nothing to in_progress); w2 HUMAN_HOLD by mara (in_progress to in_progress); w2 CLAIMED by mara (in_progress to in_progress)]
            15 q3 waits: w2 to in_progress
            16 q4 waits: w3 to planned
            17 w2 a in_progress for jon
            18 w3 b in_progress for mara, 1 to come first
            19 refused: the assignee of work `w2` has changed: expected mara, found jon
            20 refused: what is depended on by work `w3` has changed: expected none, found w2
            21 q5 waits: w2 to in_progress
            22 q6 waits: w2 to in_progress
            23 w1 first planned for jon, 1 to come first
            24 revoked
            25 refused: `decision` can't be `approve`: `assignee_passport` is `zoe`, whose passport is revoked; `get_project_context` lists who there is; reject it, or let it expire
            26 refused: `decision` can't be `approve`: `depends_on` would make `w2` wait for itself; reject it, or let it expire
            27 q5 rejected
            28 q6 rejected
        "#]],
    );
}

#[test]
fn who_decides_a_gated_call_is_shown_all_of_it() {
    let mut play = Play::new();
    play.play(
        "0s olga token mara
         0s olga token zoe
         0s olga gate mara
         0s jon  create first
         0s mara create a
         0s mara move w2 blocked reason=why kind=needs_approval for=zoe after=w1",
    );
    let ask = GetWork { work_id: play.actions[0].clone(), limit: 50, cursor: None };
    let request = play.world.ask("0s", person("otto"), ask).unwrap().approval.unwrap();
    let (first, item) = (&play.work[0], &play.work[1]);
    assert_eq!(request.action_summary, format!("work:{item}:move:blocked assignee=zoe depends_on={first}"));
    let payload = json!({
        "work_id": item, "title": "a", "from_state": "planned", "target_state": "blocked",
        "blocker_reason": "why", "blocker_kind": "needs_approval",
        "from_assignee_passport": "mara", "assignee_passport": "zoe", "from_depends_on": [], "depends_on": [first],
    });
    assert_eq!(request.payload, Some(payload));
}

#[test]
fn a_request_is_shown_by_its_id_as_long_as_it_is_kept_and_to_its_team_only() {
    let mut play = Play::new();
    play.play(
        "0s olga token mara
         0s olga gate mara
         0s mara create a
         0s mara move w1 complete",
    );
    let ask = |play: &mut Play, who: &str| {
        let ask = GetWork { work_id: play.actions[0].clone(), limit: 50, cursor: None };
        play.world.ask("0s", person(who), ask).map(|found| (found.work.is_some(), found.approval.unwrap().status))
    };
    assert_eq!(ask(&mut play, "jon"), Ok((false, ApprovalStatus::Pending)));
    assert_eq!(ask(&mut play, "eve"), Err(Refusal::not_found("work", play.actions[0].clone())));
    play.play("1s otto approve q1");
    assert_eq!(ask(&mut play, "jon"), Ok((false, ApprovalStatus::Approved)));
}

#[test]
fn the_receipt_of_a_gated_move_names_the_move() {
    let mut play = Play::new();
    play.play(
        "0s olga token mara
         0s olga gate mara
         0s mara create a
         0s mara move w1 deployed
         0s otto approve q1",
    );
    let receipt_id = format!("ad_{}", play.actions[0]);
    let receipt = play.world.ask("0s", person("jon"), GetReceipt { receipt_id, tenant_id: None }).unwrap();
    let body: ciborium::Value = ciborium::from_reader(receipt.body.as_slice()).unwrap();
    let field = |wanted: &str| {
        let fields = body.as_map().unwrap().iter();
        fields.clone().find(|(name, _)| name.as_text() == Some(wanted)).and_then(|(_, value)| value.as_text()).unwrap().to_string()
    };
    assert_eq!(field("action_summary"), format!("work:{}:move:deployed", play.work[0]));
    assert_eq!((field("risk_tier"), field("reviewer_passport")), ("high".into(), "otto".into()));
}

#[test]
fn an_item_is_checked_before_it_is_stored() {
    let (name, title, body, reason) = ("x".repeat(513), "x".repeat(512), "x".repeat(16_385), "x".repeat(4_097));
    check(
        &format!(
            "0s mara create {name}
             0s mara create {title}x
             0s mara create
             0s mara create a body={body}
             0s mara create a for={name}
             0s mara create a pr={name}
             0s mara create a reason=why
             0s mara create a state=blocked reason=why
             0s mara move w1 blocked reason={reason}
             0s mara move w1 blocked reason=
             0s mara move {name} blocked reason=why
             0s mara comment w1 {body}"
        ),
        expect![[r#"
            1 refused: `title` is 513 bytes long, and the limit is 512 bytes
            2 refused: `title` is 513 bytes long, and the limit is 512 bytes
            3 refused: `title` must not be empty
            4 refused: `body` is 16385 bytes long, and the limit is 16384 bytes
            5 refused: `assignee_passport` is 513 bytes long, and the limit is 512 bytes
            6 refused: `linked_pr` is 513 bytes long, and the limit is 512 bytes
            7 refused: `blocker_reason` goes with the state `blocked` only; leave it out
            8 w1 a blocked (why, NeedsInfo) for mara
            9 refused: `blocker_reason` is 4097 bytes long, and the limit is 4096 bytes
            10 refused: `blocker_reason` must not be empty: the state `blocked` needs to say why
            11 refused: `work_id` is 513 bytes long, and the limit is 512 bytes
            12 refused: `body` is 16385 bytes long, and the limit is 16384 bytes
        "#]],
    );
}

/// The largest item that is taken, and the largest comment on it.
#[test]
fn what_is_taken_fits_a_reply_in_any_spelling() {
    let mut world = World::new();
    let create = |body: String| CreateWork {
        project_id: DEFAULT_PROJECT.into(),
        title: "\"".repeat(WORK_TITLE_BYTES_MAX),
        created_by_passport: "mara".into(),
        body: Some(body),
        state: None,
        assignee_passport: None,
        tenant_id: None,
        linked_pr: None,
        linked_issue: None,
        blocker_reason: None,
        depends_on: Vec::new(),
    };
    let refused = world.call("0s", person("mara"), None, create("\u{1}".repeat(6_000))).unwrap_err();
    assert!(refused.to_string().starts_with("`body` is 37"), "{refused}");
    let work = world.call("0s", person("mara"), None, create("\"".repeat(13_000))).unwrap();
    let comment = CommentOnWork { work_id: work.id.clone(), author_passport: "mara".into(), body: "\"".repeat(13_000) };
    world.call("0s", person("mara"), None, comment.clone()).unwrap();
    world.call("0s", person("mara"), None, comment).unwrap();
    let (mut cursor, mut seen) = (None, Vec::new());
    loop {
        let page = world.ask("0s", person("mara"), GetWork { work_id: work.id.clone(), limit: 50, cursor }).unwrap();
        assert!(serde_json::to_string(&page).unwrap().len() <= REPLY_BYTES_MAX);
        seen.push((page.work.is_some(), page.comments.len()));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, [(true, 0), (false, 1), (false, 1)]);
    let list = ListWork {
        project_id: None,
        state: None,
        pending_approval: false,
        tenant_id: None,
        assignee_passport: None,
        ready: false,
        reply_bytes: None,
        limit: 50,
        cursor: None,
    };
    let page = world.ask("0s", person("mara"), list).unwrap();
    assert_eq!((page.work.len(), page.next_cursor), (1, None));
}

// ------------------------------------------------------------------ properties

#[derive(Clone, Debug)]
enum Act {
    Create { who: usize, to: usize, size: usize },
    Move { who: usize, item: usize, to: usize },
    Decide { item: usize, yes: bool },
}

const WHO: [&str; 3] = ["mara", "jon", "elsa"];
const STATES: [State; 6] = [State::Planned, State::InProgress, State::Blocked, State::Archive, State::Complete, State::Deployed];

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let create = (0..3_usize, 0..3_usize, 0..3_000_usize).prop_map(|(who, to, size)| Act::Create { who, to, size });
    let moved = (0..3_usize, 0..20_usize, 0..6_usize).prop_map(|(who, item, to)| Act::Move { who, item, to });
    let decide = (0..10_usize, any::<bool>()).prop_map(|(item, yes)| Act::Decide { item, yes });
    prop::collection::vec(prop_oneof![3 => create, 6 => moved, 1 => decide], 1..60)
}

/// Every item of a filter, page by page; each page fits a reply.
fn all(world: &mut World, state: Option<State>, assignee: Option<&str>, limit: u64) -> Vec<Work> {
    let (mut cursor, mut found) = (None, Vec::new());
    loop {
        let ask = ListWork {
            project_id: None,
            state,
            pending_approval: false,
            tenant_id: None,
            assignee_passport: assignee.map(Into::into),
            ready: false,
            reply_bytes: None,
            limit,
            cursor,
        };
        let page = world.ask("1h", person("jon"), ask).unwrap();
        let bytes = page.work.iter().map(Work::reply_bytes).sum::<usize>();
        assert!(page.work.len() <= limit as usize && (bytes <= REPLY_BYTES_DEFAULT || page.work.len() == 1));
        found.extend(page.work);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return found;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happened, each list holds exactly the items of its filter, newest first, in pages of any size.
    #[test]
    fn every_order_holds_the_items_that_belong_to_it(acts in acts(), limit in 1..9_u64) {
        let mut world = World::new();
        let mut play = |gated: bool| -> Result<Vec<String>, TestCaseError> {
            let mut items = Vec::new();
            if gated {
                let put = PutToken {
                    hash: token_hash("mara"), tenant: "acme".into(), passport: "mara".into(),
                    tier: Tier::Verified, scopes: Default::default(), expires_at: None,
                };
                world.call("0s", person("olga"), None, put).unwrap();
                world.call("0s", person("olga"), None, SetWorkGate { tenant: "acme".into(), passport: "mara".into(), gated }).unwrap();
            }
            for who in WHO {
                let put = PutToken {
                    hash: token_hash(&format!("{who}'s")), tenant: "acme".into(), passport: who.into(),
                    tier: person(who).tier, scopes: Default::default(), expires_at: None,
                };
                world.call("0s", person("olga"), None, put).unwrap();
            }
            for act in &acts {
                match act {
                    Act::Create { who, to, size } => {
                        let command = CreateWork {
                            project_id: DEFAULT_PROJECT.into(), title: "t".into(), created_by_passport: WHO[*who].into(),
                            body: Some("x".repeat(*size)), state: None, assignee_passport: Some(WHO[*to].into()), tenant_id: None,
                            linked_pr: None, linked_issue: None, blocker_reason: None, depends_on: Vec::new(),
                        };
                        items.push(world.call("0s", person(WHO[*who]), None, command).unwrap().id);
                    }
                    Act::Move { who, item, to } => {
                        let Some(id) = items.get(*item) else { continue };
                        let command = MoveWork {
                            work_id: id.clone(), state: STATES[*to], by_passport: WHO[*who].into(),
                            blocker_reason: (STATES[*to] == State::Blocked).then(|| "why".into()), blocker_kind: None, expected_state: None, assignee_passport: None, depends_on: None
                        };
                        world.call("0s", person(WHO[*who]), None, command).unwrap();
                    }
                    Act::Decide { item, yes } => {
                        let ask = ListApprovals { pending_only: true, limit: LIST_MAX as u64, cursor: None };
                        let waiting = world.ask("0s", person("otto"), ask).unwrap().approvals;
                        let Some(request) = waiting.get(*item) else { continue };
                        let decision = if *yes { Decision::Approve } else { Decision::Reject };
                        let command = DecideApproval {
                            request_id: request.request_id.clone(), decision, reviewer_notes: None, reviewer_tier: None,
                            reviewer_tenant_id: None,
                        };
                        // An approval is refused where the item has moved since, and only then.
                        if let Err(refusal) = world.call("0s", person("otto"), None, command) {
                            prop_assert!(matches!(refusal, Refusal::WorkMoved { .. }), "{}", refusal);
                        }
                    }
                }
            }
            Ok(items)
        };
        let items = play(true)?;
        let everything = all(&mut world, None, None, limit);
        let listed: Vec<&String> = everything.iter().map(|work| &work.id).collect();
        prop_assert_eq!(listed, items.iter().rev().collect::<Vec<_>>());
        for state in STATES.map(Some).into_iter().chain([None]) {
            for assignee in WHO.map(Some).into_iter().chain([None]) {
                let belongs = |work: &&Work| state.is_none_or(|state| work.state == state) && assignee.is_none_or(|who| work.assignee == who);
                let wanted: Vec<Work> = everything.iter().filter(belongs).cloned().collect();
                prop_assert_eq!(all(&mut world, state, assignee, limit), wanted);
            }
        }
        // Transitions have names of their own, and the feed of an item is what the whole feed says of it.
        let ask = |work_id: Option<String>| StatusFeed { work_id, limit: LIST_MAX as u64, cursor: None };
        let whole = world.ask("0s", person("jon"), ask(None)).unwrap();
        prop_assume!(whole.next_cursor.is_none());
        let names: BTreeSet<&String> = whole.events.iter().map(|event| &event.transition_id).collect();
        prop_assert_eq!(names.len(), whole.events.len());
        for id in items {
            let own = world.ask("0s", person("jon"), ask(Some(id.clone()))).unwrap().events;
            let wanted: Vec<FeedEvent> = whole.events.iter().filter(|event| event.work_id == id).cloned().collect();
            prop_assert_eq!(own, wanted);
        }
    }
}
