//! The checkout keeps to its own map. What each rule catches is tested beside the rule.

use xtask::host::Host;

#[test]
fn the_checkout_has_no_layout_problem() {
    let host = Host::from_environment().expect("cargo tells where the checkout is");
    let problems = xtask::layout::check(&host).expect("the checkout can be read");
    assert!(problems.is_empty(), "{} problem(s):\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn the_crate_graph_matches_the_drawing() {
    let host = Host::from_environment().expect("cargo tells where the checkout is");
    let packages = xtask::layout::packages(&host).expect("cargo metadata works");
    let found: Vec<(String, Vec<String>)> = {
        let mut found: Vec<_> = packages
            .into_iter()
            .map(|package| (package.name, package.uses_of_ours.into_iter().collect()))
            .collect();
        found.sort();
        found
    };
    let drawn: Vec<(String, Vec<String>)> = xtask::layout::EDGES
        .iter()
        .map(|(name, uses)| {
            ((*name).to_owned(), uses.iter().map(|&used| used.to_owned()).collect())
        })
        .collect();
    assert_eq!(found, drawn);
}
