//! ExecPlan files on the board.

use std::path::Path;

use serde_json::{Value, json};

use crate::fake::Fake;
use crate::{Config, World, a, b, by, gateway_with, world};

async fn world_with(folder: &Path) -> World {
    let fake = Fake::start(1).await;
    let address = gateway_with(&fake, Config { execplans_root: Some(folder.into()), ..Config::default() }).await;
    World { fake, address }
}

fn ids(list: &Value) -> Vec<&str> {
    list["work"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn plans_come_after_the_work_as_their_files_and_their_gates_say_at_the_time_of_the_call() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    put("search.md", "# Faster search\n\nStatus: underway\n\n## Milestones\n- M1: index\n- M2: ranking\n");
    put("old.md", "# Older\n**Superseded by search**\n");
    let world = world_with(folder.path()).await;
    let created = json!({ "project_id": "p_default", "title": "parser", "created_by_passport": "agent-a" });
    let work = world.ok(&a(), "create_work", created).await["id"].as_str().unwrap().to_string();

    let list = world.ok(&a(), "list_work", json!({})).await;
    assert_eq!(ids(&list), [&work, "execplan:old", "execplan:search"]);
    assert_eq!((&list["count"], list.get("note")), (&json!(3), None));
    let (old, search) = (&list["work"][1], &list["work"][2]);
    assert_eq!((&old["state"], &old["body"]), (&json!("archive"), &json!("Superseded by search.")));
    assert_eq!((&search["state"], &search["title"], &search["kind"]), (&json!("planned"), &json!("Faster search"), &json!("execplan")));
    assert_eq!((&search["project_id"], &search["body"]), (&json!("execplans"), &json!("Status: underway.")));
    assert_eq!(search["created_by_passport"], "system:execplan-aggregator");

    // What is told of milestones, and what is written into the files, shows in the next call.
    let gate = |milestone: &str, status: &str| json!({ "slug": "search", "milestone": milestone, "status": status, "commit_sha": "93b41a7", "token_budget": 500 });
    world.ok(&b(), "execplan_gate", gate("M1", "passed")).await;
    let state = async || world.ok(&a(), "list_work", json!({ "work_id": "execplan:search" })).await["work"][0]["state"].clone();
    assert_eq!(state().await, "in_progress");
    world.ok(&b(), "execplan_gate", gate("M2", "blocked")).await;
    assert_eq!(state().await, "blocked");
    assert_eq!(ids(&world.ok(&a(), "list_work", json!({ "state": "blocked" })).await), ["execplan:search"]);
    world.ok(&b(), "execplan_gate", gate("M2", "skipped")).await;
    assert_eq!(state().await, "complete");
    put("new.md", "# New\n");
    std::fs::remove_file(folder.path().join("old.md")).unwrap();
    let plans = world.ok(&a(), "list_work", json!({ "project_id": "execplans" })).await;
    assert_eq!(ids(&plans), ["execplan:new", "execplan:search"]);

    // They are nobody's, not taken up from here, and moved by no call.
    for filter in [json!({ "assignee_passport": "agent-a" }), json!({ "ready": true }), json!({ "project_id": "p_default" })] {
        assert_eq!(ids(&world.ok(&a(), "list_work", filter).await), [&work]);
    }
    assert_eq!(ids(&world.ok(&a(), "list_work", json!({ "state": "pending_approval" })).await), Vec::<&str>::new());
    let moved = json!({ "work_id": "execplan:search", "state": "complete", "by_passport": "agent-a" });
    let told = world.call(&a(), "update_work_state", moved).await.told();
    assert!(told.contains("`work_id` names a plan") && told.contains("`execplan_gate`"), "{told}");
    let gone = world.call(&a(), "list_work", json!({ "work_id": "execplan:old" })).await.told();
    assert!(gone.contains("NOT_FOUND") && gone.contains("there is no work `execplan:old`"), "{gone}");
}

#[tokio::test]
async fn plans_are_paged_after_the_work_and_what_is_left_out_is_told() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..5 {
        std::fs::write(folder.path().join(format!("plan-{n}.md")), "# A plan\n").unwrap();
    }
    std::fs::write(folder.path().join("large.md"), vec![b'a'; (1 << 20) + 1]).unwrap();
    let world = world_with(folder.path()).await;
    let created = |title: &str| json!({ "project_id": "p_default", "title": title, "created_by_passport": "agent-a" });
    for title in ["one", "two"] {
        world.ok(&a(), "create_work", created(title)).await;
    }
    let (mut seen, mut cursor, mut pages) = (Vec::new(), None, 0);
    loop {
        let asked = cursor.map_or(json!({ "limit": 2 }), |cursor: Value| json!({ "limit": 2, "cursor": cursor }));
        let page = world.ok(&a(), "list_work", asked).await;
        seen.extend(page["work"].as_array().unwrap().iter().map(|item| item["title"].as_str().unwrap().to_string()));
        pages += 1;
        cursor = page.get("next_cursor").cloned();
        if cursor.is_none() {
            assert_eq!(page["note"], "Of the ExecPlan files, `large.md` is larger than 1048576 bytes.");
            break;
        }
    }
    assert_eq!((seen, pages), (["two", "one"].into_iter().chain(["A plan"; 5]).map(String::from).collect(), 4));
}

#[tokio::test]
async fn a_team_without_a_folder_of_plans_is_told_that_none_are_read() {
    let told = "ExecPlan files are not read: this gateway has no folder of them for your team (`execplans_root`, or CRUX_EXECPLANS_ROOT). \
                This is the work that was created with create_work.";
    assert_eq!(world().await.ok(&a(), "list_work", json!({})).await["note"], told);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("secret.md"), "# Secret\n").unwrap();
    let world = world_with(folder.path()).await;
    let list = world.ok(&by("token-other"), "list_work", json!({})).await;
    assert_eq!((ids(&list), &list["note"]), (Vec::new(), &json!(told)));
    for asked in [json!({ "work_id": "execplan:secret" }), json!({ "project_id": "execplans" }), json!({ "cursor": "plans.a" })] {
        let refused = world.call(&by("token-other"), "list_work", asked).await.told();
        assert!(!refused.contains("Secret") && refused.contains("wrote=no"), "{refused}");
    }
}
