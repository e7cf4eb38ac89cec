//! Checks that the promises of `SECURITY.md` name existing tests.

use crate::fixture;

/// The tests that the table of promises names.
fn named(text: &str) -> Vec<String> {
    let rows = text.lines().skip_while(|line| *line != "| promise | proved by |").skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.flat_map(|row| {
        let cell = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap_or_default();
        let names: Vec<String> =
            cell.split(", ").map(|name| name.trim_matches('`').into()).collect();
        assert!(names.iter().all(|name| name.contains('_')), "no test is named in: {row}");
        names
    })
    .collect()
}

/// All text of Rust beneath a directory.
fn sources(dir: &std::path::Path, into: &mut String) {
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            into.push_str(&fixture::read(&path));
        }
    }
}

#[test]
fn each_promise_names_an_existing_test() {
    let root = fixture::root();
    let names = named(&fixture::read(&root.join("SECURITY.md")));
    assert!(names.len() > 20, "{names:?}");
    let mut all = String::new();
    sources(&root.join("crates"), &mut all);
    for name in names {
        // Some tests are made by a macro: `name: Layer => Check;`.
        let there = [format!("fn {name}("), format!("    {name}: ")];
        assert!(there.iter().any(|form| all.contains(form)), "there is no test `{name}`");
    }
}
