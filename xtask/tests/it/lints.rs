//! Every lint and every ban that we turned on is seen to fire, in a crate made for it.
//!
//! The crate takes its lint table from the root `Cargo.toml` and our `clippy.toml` as they are,
//! so that a lint that is renamed, a path that no longer resolves, or a line added without a
//! violation here, fails. It lives in the target directory, so that tokio is checked once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::fixture;

/// A lint, and the body of a module that breaks it.
const LINTS: &[(&str, &str)] = &[
    (
        "await_holding_lock",
        "pub async fn f(m: &std::sync::Mutex<u8>) { let g = m.lock().expect(\"x\"); std::future::ready(()).await; drop(g); }",
    ),
    ("cast_possible_truncation", "pub fn f(x: u64) -> u8 { x as u8 }"),
    ("cast_sign_loss", "pub fn f(x: i32) -> u32 { x as u32 }"),
    ("dbg_macro", "pub fn f() { dbg!(1); }"),
    ("exit", "pub fn f() { std::process::exit(1); }"),
    (
        "large_futures",
        "pub async fn big() -> u8 { let x = [0_u8; 65_536]; std::future::ready(()).await; x[0] }\n\
         pub async fn f() -> u8 { big().await }",
    ),
    ("missing_debug_implementations", "pub struct S;"),
    ("print_stdout", "pub fn f() { println!(); }"),
    (
        "ref_option",
        "fn f(x: &Option<String>) -> usize { x.iter().count() }\n\
         pub fn g() -> usize { f(&None) }",
    ),
    (
        "undocumented_unsafe_blocks",
        "#![allow(unsafe_code)] pub fn f(x: *const u8) -> u8 { unsafe { *x } }",
    ),
    ("unreachable_pub", "mod inner { pub fn f() {} } pub fn g() { inner::f() }"),
    (
        "unsafe_code",
        "pub fn f(x: *const u8) -> u8 {\n    // SAFETY: never called\n    unsafe { *x }\n}",
    ),
    ("unwrap_used", "pub fn f(x: Option<u8>) -> u8 { x.unwrap() }"),
];

/// A banned path, and a use of it.
const BANS: &[(&str, &str)] = &[
    (
        "std::env::set_var",
        "#![allow(unsafe_code)] pub fn f() {\n    // SAFETY: never called\n    unsafe { std::env::set_var(\"a\", \"b\") }\n}",
    ),
    ("std::env::var", "pub fn f() { let _ = std::env::var(\"a\"); }"),
    ("std::env::var_os", "pub fn f() { let _ = std::env::var_os(\"a\"); }"),
    ("std::time::SystemTime::now", "pub fn f() { let _ = std::time::SystemTime::now(); }"),
    ("tokio::spawn", "pub fn f() { tokio::spawn(async {}); }"),
    (
        "tokio::time::sleep",
        "pub async fn f() { tokio::time::sleep(std::time::Duration::ZERO).await; }",
    ),
];

#[test]
fn every_lint_and_ban_of_the_workspace_fires() {
    let root = fixture::root();
    let manifest: toml::Table =
        fixture::read(&root.join("Cargo.toml")).parse().expect("Cargo.toml is TOML");
    let clippy: toml::Table =
        fixture::read(&root.join("clippy.toml")).parse().expect("clippy.toml is TOML");
    let tables = &manifest["workspace"]["lints"];

    // The tables above name what the configuration names, no more and no less.
    let configured: BTreeSet<&str> = ["rust", "clippy"]
        .iter()
        .flat_map(|tool| tables[*tool].as_table().expect("a table of lints").keys())
        .map(String::as_str)
        .collect();
    assert_eq!(LINTS.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(), configured);
    let banned = clippy["disallowed-methods"].as_array().expect("a list of bans");
    let banned: BTreeSet<&str> =
        banned.iter().map(|ban| ban["path"].as_str().expect("each ban has a path")).collect();
    assert_eq!(BANS.iter().map(|(path, _)| *path).collect::<BTreeSet<_>>(), banned);

    let dir = fixture::dir("lints");
    let mut lib = String::from("//! A crate that breaks every rule once.\npub mod clean;\n");
    let modules: Vec<(String, &str, String)> = LINTS
        .iter()
        .map(|(name, body)| (format!("lint_{name}"), *body, code_of(name)))
        .chain(BANS.iter().map(|(path, body)| {
            (
                format!("ban_{}", path.replace("::", "_")),
                *body,
                "clippy::disallowed_methods".to_owned(),
            )
        }))
        .collect();
    for (name, body, _) in &modules {
        lib += &format!("pub mod {name};\n");
        fixture::write(&dir.join(format!("src/{name}.rs")), body);
    }
    fixture::write(&dir.join("src/lib.rs"), &lib);
    // What our style asks for, and what tests may do, is left in peace.
    fixture::write(
        &dir.join("src/clean.rs"),
        "//! Nothing wrong here.\n\n/// Adds.\npub fn f(x: Option<u8>) -> u8 { x.expect(\"given\") }\n\n\
         #[cfg(test)]\nmod tests {\n    #[test]\n    fn t() { assert_eq!(super::f(Some(1)), [1].first().copied().unwrap()); }\n}\n",
    );
    fixture::write(&dir.join("clippy.toml"), &fixture::read(&root.join("clippy.toml")));
    fixture::write(
        &dir.join("Cargo.toml"),
        &format!(
            "[package]\nname = \"breaks-every-rule\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
             [dependencies]\ntokio = {{ version = \"1\", features = [\"rt\", \"time\"] }}\n\n[workspace]\n\n[lints]\n{}",
            lint_tables(tables)
        ),
    );
    // The same tokio as ours, so that nothing has to be downloaded.
    std::fs::copy(root.join("Cargo.lock"), dir.join("Cargo.lock")).expect("copying Cargo.lock");

    let reported = clippy_codes_by_file(&dir);
    let mut silent = Vec::new();
    for (name, _, code) in &modules {
        let codes = reported.get(&format!("src/{name}.rs"));
        if !codes.is_some_and(|codes| codes.contains(code)) {
            silent.push(format!("{name}: wanted {code}, got {codes:?}"));
        }
    }
    assert!(silent.is_empty(), "rules that do not fire:\n{}", silent.join("\n"));
    assert_eq!(reported.get("src/clean.rs"), None, "clean code is left in peace");
}

fn code_of(lint: &str) -> String {
    match lint {
        "missing_debug_implementations" | "unreachable_pub" | "unsafe_code" => lint.to_owned(),
        clippy => format!("clippy::{clippy}"),
    }
}

/// `[workspace.lints]` as the `[lints]` of one package.
fn lint_tables(tables: &toml::Value) -> String {
    let mut text = String::new();
    for tool in ["rust", "clippy"] {
        text += &format!("[lints.{tool}]\n");
        for (name, level) in tables[tool].as_table().expect("a table of lints") {
            text += &format!("{name} = {level}\n");
        }
    }
    text
}

/// Which lints clippy reports for which file, tests included.
fn clippy_codes_by_file(dir: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let out = fixture::cargo(dir)
        .args(["clippy", "--offline", "--all-targets", "--keep-going", "--message-format=json"])
        .output()
        .expect("cargo runs");
    let stdout = String::from_utf8(out.stdout).expect("cargo prints JSON");
    let mut reported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in stdout.lines() {
        let message: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
        let Some(code) = message["message"]["code"]["code"].as_str() else { continue };
        for span in message["message"]["spans"].as_array().into_iter().flatten() {
            let file = span["file_name"].as_str().unwrap_or_default().to_owned();
            reported.entry(file).or_default().insert(code.to_owned());
        }
    }
    assert!(!reported.is_empty(), "clippy said nothing:\n{}", String::from_utf8_lossy(&out.stderr));
    reported
}

#[test]
fn every_allowed_lint_has_its_reason() {
    // `#[allow]` and `#[expect]` without a reason hide a decision.
    let tree = xtask::layout::Tree::read(&fixture::root()).expect("the checkout can be read");
    let mut bare = Vec::new();
    for file in tree.rust() {
        let code = xtask::layout::code_only(&file.text);
        for (n, _) in code.match_indices("#[").chain(code.match_indices("#![")) {
            let attribute = attribute_at(&code[n..]);
            let name = attribute.trim_start_matches(['#', '!', '[']);
            let silences = name.starts_with("allow(") || name.starts_with("expect(");
            // `unsafe_code` is argued in the module's own documentation and its SAFETY comments.
            if silences && !attribute.contains("reason") && !attribute.contains("unsafe_code") {
                let line = code[..n].matches('\n').count() + 1;
                bare.push(format!("{}:{line}: {attribute}", file.path));
            }
        }
    }
    assert!(bare.is_empty(), "without `reason = \"…\"`:\n{}", bare.join("\n"));
}

/// The attribute that `code` begins with, to its closing bracket.
fn attribute_at(code: &str) -> &str {
    let mut depth = 0_usize;
    for (i, c) in code.char_indices() {
        match c {
            '[' => depth += 1,
            ']' if depth <= 1 => return &code[..=i],
            ']' => depth -= 1,
            _ => {}
        }
    }
    code
}

#[test]
fn scripts_pass_the_shells_own_check() {
    let out = Command::new("bash")
        .arg("-n")
        .arg(fixture::root().join(".ci/run"))
        .output()
        .expect("bash runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
