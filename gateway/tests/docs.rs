//! The checked-in page of tools is what the registry declares. `UPDATE_EXPECT=1` writes it anew.

use expect_test::expect_file;

#[test]
fn the_page_of_tools_is_what_the_registry_declares() {
    expect_file!["../../docs/tools.md"].assert_eq(&quorate_gateway::docs());
}

#[test]
fn the_page_of_events_has_every_kind_once_in_order() {
    let page = include_str!("../../docs/events.md");
    let told: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(kind, _)| kind).collect();
    assert_eq!(told, quorate_domain::event::KINDS);
}

#[test]
fn the_page_of_http_names_every_code_of_an_error() {
    let page = include_str!("../../docs/http.md");
    let refusals = include_str!("../../domain/src/refusal.rs");
    let calls = include_str!("../src/call.rs");
    // What the two functions answer that turn an error to its code.
    let codes_of = |source: &'static str| {
        let body = source.split_once("pub fn code(&self)").unwrap().1.split_once("pub fn ").unwrap().0;
        body.split('"').skip(1).step_by(2)
    };
    // And what is answered before anything is called.
    let written = |source: &'static str| source.split("\"code\": \"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let edges = [include_str!("../src/server.rs"), include_str!("../src/events.rs"), include_str!("../src/github/webhook.rs")];
    let codes: std::collections::BTreeSet<&str> =
        codes_of(refusals).chain(codes_of(calls)).chain(edges.into_iter().flat_map(written)).collect();
    assert!(codes.len() > 30 && codes.contains("METHOD_NOT_ALLOWED") && codes.contains("UNREADY"), "{codes:?}");
    // The page says of -32601 that it is the code of a flag that is off.
    let missing: Vec<&&str> = codes.iter().filter(|code| **code != "-32601" && !page.contains(&format!("`{code}`"))).collect();
    assert!(missing.is_empty(), "docs/http.md does not tell of {missing:?}");
}
