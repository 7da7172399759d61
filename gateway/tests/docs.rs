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
