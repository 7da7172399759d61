//! The checked-in page of tools is what the registry declares. `UPDATE_EXPECT=1` writes it anew.

use expect_test::expect_file;

#[test]
fn the_page_of_tools_is_what_the_registry_declares() {
    expect_file!["../../docs/tools.md"].assert_eq(&quorate_gateway::docs());
}
