//! Notices from the act to the address.

use super::*;
use crate::approval::{DecideApproval, Decision, RequestApproval};
use crate::event::{Watched, watch};
use crate::identity::system;
use crate::transcript::{World, person};

fn put(id: &str, format: Format, risk_tier_min: RiskTier, kinds: &[&str]) -> PutWebhook {
    let url = "https://hooks.example/x".to_string();
    PutWebhook { id: id.into(), url, format, risk_tier_min, kinds: kinds.iter().map(ToString::to_string).collect() }
}

fn ask(world: &mut World, time: &str, risk_tier: RiskTier) -> Approval {
    let (action_summary, scope) = ("drop the table".into(), "acme".into());
    let command = RequestApproval { action_summary, risk_tier, scope, tenant_id: None, payload: None, ttl_ms: Some(2_592_000_000) };
    world.call(time, person("mara"), None, command).unwrap()
}

fn due(world: &mut World, time: &str) -> Vec<(String, String)> {
    world.ask(time, system(), DueNotices {}).unwrap().due
}

fn take(world: &mut World, time: &str, id: &str) -> Option<(Notice, Webhook)> {
    world.call(time, system(), None, TakeNotice { tenant: "acme".into(), id: id.into() }).unwrap().taken
}

fn settle_as(world: &mut World, time: &str, id: &str, attempt: u64, error: Option<&str>) -> NoticeState {
    let command = SettleNotice { tenant: "acme".into(), id: id.into(), attempt, error: error.map(Into::into) };
    world.call(time, system(), None, command).unwrap().state
}

fn events(world: &World) -> Vec<String> {
    let Watched::Events(events) = watch(&world.state, "acme", Revision(0), 1_000).unwrap() else { panic!("nothing is gone") };
    events.into_iter().filter(|event| event.kind.starts_with("notice.")).map(|event| event.kind).collect()
}

#[test]
fn an_act_makes_one_notice_for_each_address_that_wants_it() {
    let mut world = World::new();
    let mut set = |put: PutWebhook| world.call("0s", person("olga"), None, put).unwrap();
    set(put("all", Format::Generic, RiskTier::Low, &[]));
    set(put("loud", Format::Slack, RiskTier::High, &["approval.requested"]));
    ask(&mut world, "1s", RiskTier::Low);
    let asked = ask(&mut world, "2s", RiskTier::High);
    let listed = world.ask("3s", person("olga"), ListNotices { limit: 2, cursor: None }).unwrap();
    let next = world.ask("3s", person("olga"), ListNotices { limit: 2, cursor: listed.next_cursor.clone() }).unwrap();
    let told = |notices: &Notices| notices.notices.iter().map(|notice| format!("{} {}", notice.webhook, notice.kind)).collect::<Vec<_>>();
    let mut newest = told(&listed);
    newest.sort();
    assert_eq!(newest, ["all approval.requested", "loud approval.requested"]);
    assert_eq!((told(&next), next.next_cursor), (vec!["all approval.requested".to_string()], None));
    // The queue of this test holds three. What does not fit is told.
    let decide = DecideApproval {
        request_id: asked.request_id,
        decision: Decision::Approve,
        reviewer_notes: None,
        reviewer_tier: None,
        reviewer_tenant_id: None,
    };
    world.call("4s", person("otto"), None, decide).unwrap();
    assert_eq!(events(&world), ["notice.not_made"]);
    assert_eq!(listed.notices[0].body["approval"]["action_summary"], "drop the table");
    assert!(listed.notices[0].body["approval"].get("payload").is_none());
}

#[test]
fn one_gateway_at_a_time_has_a_notice_and_another_goes_on_when_it_died() {
    let mut world = World::new();
    world.call("0s", person("olga"), None, put("all", Format::Generic, RiskTier::Low, &[])).unwrap();
    ask(&mut world, "1s", RiskTier::High);
    let id = due(&mut world, "1s").pop().unwrap().1;
    let (first, _) = take(&mut world, "2s", &id).unwrap();
    assert_eq!(first.attempts, 1);
    assert_eq!((due(&mut world, "3s"), take(&mut world, "3s", &id)), (vec![], None), "the second gateway comes too late");
    // The first gateway dies. Half a minute later the second one has it.
    let (second, _) = take(&mut world, "32s", &id).unwrap();
    assert_eq!((second.attempts, &second.id, &second.body), (2, &first.id, &first.body));
    // What the first one says of a failure counts no more.
    assert_eq!(settle_as(&mut world, "33s", &id, 1, Some("refused")), NoticeState::Waiting);
    assert_eq!(settle_as(&mut world, "34s", &id, 2, None), NoticeState::Delivered);
    assert_eq!(settle_as(&mut world, "35s", &id, 2, Some("late")), NoticeState::Delivered);
    assert_eq!((due(&mut world, "99h"), take(&mut world, "99h", &id)), (vec![], None));
    assert_eq!(events(&world), ["notice.delivered"]);
    // A week later it is forgotten.
    world.tick("300h");
    assert_eq!(world.ask("300h", person("olga"), ListNotices { limit: 9, cursor: None }).unwrap().notices, []);
}

#[test]
fn a_notice_is_tried_ever_more_rarely_for_about_a_day_and_then_given_up() {
    let mut world = World::new();
    world.call("0s", person("olga"), None, put("all", Format::Generic, RiskTier::Low, &[])).unwrap();
    ask(&mut world, "0s", RiskTier::High);
    let id = due(&mut world, "0s").pop().unwrap().1;
    let (mut now_ms, mut waits) = (1_000, Vec::new());
    for attempt in 1..=NOTICE_ATTEMPTS_MAX {
        let (notice, _) = take(&mut world, &format!("{now_ms}ms"), &id).unwrap();
        assert_eq!(notice.attempts, attempt);
        let state = settle_as(&mut world, &format!("{now_ms}ms"), &id, attempt, Some("the address answered 500"));
        if state == NoticeState::GivenUp {
            break;
        }
        let before = now_ms;
        while due(&mut world, &format!("{now_ms}ms")).is_empty() {
            now_ms += 1_000;
        }
        waits.push((now_ms - before) / 1_000);
    }
    assert_eq!(waits[..5], [5, 10, 20, 40, 80]);
    assert_eq!(waits.len() as u64, NOTICE_ATTEMPTS_MAX - 1);
    let hours = now_ms / 3_600_000;
    assert!((18..30).contains(&hours), "given up after {hours} hours");
    let listed = world.ask(&format!("{now_ms}ms"), person("olga"), ListNotices { limit: 9, cursor: None }).unwrap();
    assert_eq!(
        (listed.notices[0].state, listed.notices[0].last_error.as_deref()),
        (NoticeState::GivenUp, Some("the address answered 500"))
    );
    assert_eq!(events(&world), ["notice.given_up"]);
}

#[test]
fn addresses_are_an_operators_and_notices_are_delivered_by_the_system() {
    let mut world = World::new();
    let mut told = |who: &str, put: PutWebhook| world.call("0s", person(who), None, put).unwrap_err().to_string();
    let hook = put("h", Format::Generic, RiskTier::Low, &[]);
    assert_eq!(told("mara", hook.clone()), "naming an address for notices needs the scope `admin` or the tier operator");
    for url in ["ftp://x", "https://", "https:///x", "https://a b", "https://me:pw@host/"] {
        let refused = told("olga", PutWebhook { url: url.into(), ..hook.clone() });
        assert_eq!(refused, "`url` must be an `https://` or `http://` address without user name and spaces", "{url}");
    }
    assert!(told("olga", put("h", Format::Generic, RiskTier::Low, &["x"])).starts_with("`kinds` has `x`; known are"));
    for n in 0..WEBHOOKS_MAX {
        world.call("0s", person("olga"), None, put(&format!("h{n}"), Format::Generic, RiskTier::Low, &[])).unwrap();
    }
    let refused = world.call("0s", person("olga"), None, hook.clone()).unwrap_err().to_string();
    assert_eq!(refused, "`id` can't be one more: a tenant has at most 10 addresses, delete one first");
    let again = world.call("1s", person("otto"), None, put("h1", Format::Slack, RiskTier::Low, &[])).unwrap();
    assert_eq!((again.format, again.created_by.as_str(), again.created_at), (Format::Slack, "olga", UnixMs(1_900_000_000_000)));
    let refused = world.call("0s", person("olga"), None, TakeNotice { tenant: "acme".into(), id: "x".into() }).unwrap_err();
    assert_eq!(refused.to_string(), "notices are delivered by gateways");
    assert!(
        world.ask("1s", person("mara"), ListWebhooks {}).is_err()
            && world.ask("1s", person("mara"), ListNotices { limit: 1, cursor: None }).is_err()
    );
    assert_eq!(world.ask("1s", person("evan"), ListWebhooks {}).unwrap().webhooks, []);
}
