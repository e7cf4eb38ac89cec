//! Checks the linked third-party code against the lists in `deny.toml`.
//!
//! cargo-deny does more (advisories, confidence in licence texts) and is run by hand; this is the
//! part that must never slip.

use std::collections::BTreeSet;

use crate::fixture;

fn deny() -> toml::Table {
    fixture::read(&fixture::root().join("deny.toml")).parse().expect("deny.toml is TOML")
}

/// Name and licence expression of every package that a Linux build links or runs.
fn packages() -> Vec<(String, String)> {
    let out = fixture::cargo(&fixture::root())
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value =
        serde_json::from_slice(&out.stdout).expect("cargo prints JSON");
    let used: BTreeSet<&str> = metadata["resolve"]["nodes"]
        .as_array()
        .expect("a resolved graph")
        .iter()
        .filter_map(|node| node["id"].as_str())
        .collect();
    let all = metadata["packages"].as_array().expect("packages").iter();
    all.filter(|package| package["id"].as_str().is_some_and(|id| used.contains(id)))
        .map(|package| {
            let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
            (text("name"), text("license"))
        })
        .collect()
}

#[test]
fn every_licence_in_the_build_is_allowed() {
    let deny = deny();
    let allowed: Vec<&str> = deny["licenses"]["allow"]
        .as_array()
        .expect("a list of licences")
        .iter()
        .map(|licence| licence.as_str().expect("licences are text"))
        .collect();
    let packages = packages();
    assert!(packages.len() > 50, "only {} packages: the check sees too little", packages.len());
    let refused: Vec<_> =
        packages.iter().filter(|(_, licence)| !satisfied(licence, &allowed)).collect();
    assert!(refused.is_empty(), "not in deny.toml's list: {refused:?}");
}

#[test]
fn no_banned_crate_is_in_the_build() {
    let deny = deny();
    let banned: Vec<&str> = deny["bans"]["deny"]
        .as_array()
        .expect("a list of bans")
        .iter()
        .map(|ban| ban["crate"].as_str().expect("a ban names a crate"))
        .collect();
    assert!(!banned.is_empty());
    let packages = packages();
    let found: Vec<_> =
        packages.iter().filter(|(name, _)| banned.contains(&name.as_str())).collect();
    assert!(found.is_empty(), "banned in deny.toml: {found:?}");
}

/// Whether someone who accepts `allowed` may use what is under `expression` (SPDX; `/` as older
/// crates write for OR).
fn satisfied(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let result = either(&words, &mut at, allowed);
    result && at == words.len()
}

fn either(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut result = both(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        // Not short-circuited: the right side must be read in any case.
        result |= both(words, at, allowed);
    }
    result
}

fn both(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut result = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        result &= one(words, at, allowed);
    }
    result
}

fn one(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let result = either(words, at, allowed);
        *at += 1; // the closing one; when it is missing, the whole is not satisfied
        return result;
    }
    if words.get(*at) == Some(&"WITH") {
        let whole = format!("{word} WITH {}", words.get(*at + 1).unwrap_or(&""));
        *at += 2;
        return allowed.contains(&whole.as_str());
    }
    allowed.contains(word)
}

#[test]
fn licence_expressions_are_read_with_their_logic() {
    let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "ISC"];
    for (expression, wanted) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("", false),
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("MIT AND ISC OR GPL-3.0", true),
        ("(GPL-3.0 OR MIT) AND ISC", true),
        ("(GPL-3.0 OR MIT) AND BSD", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("GPL-2.0 WITH LLVM-exception", false),
        ("(MIT", false),
        ("MIT extra", false),
    ] {
        assert_eq!(satisfied(expression, &allowed), wanted, "{expression}");
    }
}
