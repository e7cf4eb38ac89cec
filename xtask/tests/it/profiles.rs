//! Every profile is seen to reach the compiler, in a small program made for it.

use std::process::Command;

use crate::fixture;

/// A profile, flags that rustc must get for our crate, and flags that it must not get.
const PROFILES: &[(&str, &[&str], &[&str])] = &[
    ("dev", &[], &["debuginfo=", "opt-level", "lto=", "panic=abort"]),
    ("debugging", &["debuginfo=2"], &["opt-level", "panic=abort"]),
    (
        "release",
        &["opt-level=2", "strip=symbols"],
        &["debuginfo=", "lto=", "codegen-units", "panic=abort"],
    ),
    (
        "release-debug",
        &["opt-level=2", "debuginfo=line-tables-only"],
        &["strip=", "lto=", "codegen-units", "panic=abort"],
    ),
];

#[test]
fn every_profile_reaches_the_compiler() {
    let root = fixture::root();
    let manifest: toml::Table =
        fixture::read(&root.join("Cargo.toml")).parse().expect("Cargo.toml is TOML");
    let profiles = manifest["profile"].as_table().expect("profiles");
    let mut configured: Vec<&str> = profiles.keys().map(String::as_str).collect();
    configured.sort_unstable();
    let mut listed: Vec<&str> = PROFILES.iter().map(|(name, ..)| *name).collect();
    listed.sort_unstable();
    assert_eq!(listed, configured, "this test knows every profile");

    let dir = fixture::dir("profiles");
    let mut text = String::from(
        "[package]\nname = \"tiny\"\nversion = \"0.0.0\"\nedition = \"2024\"\nbuild = \"build.rs\"\n\n\
         [dependencies]\n",
    );
    // Stand-ins for the packages that the dev profile optimises.
    let packages = profiles["dev"]["package"].as_table().expect("packages");
    let optimised: Vec<(&str, i64)> = packages
        .iter()
        .map(|(name, set)| (name.as_str(), set["opt-level"].as_integer().expect("a level")))
        .collect();
    for (name, _) in &optimised {
        text += &format!("{name} = {{ path = \"{name}\" }}\n");
        fixture::write(
            &dir.join(name).join("Cargo.toml"),
            &format!("[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n"),
        );
        fixture::write(&dir.join(name).join("src/lib.rs"), "//! Nothing.\n");
    }
    text += "\n[workspace]\n\n";
    let only_profiles: toml::Table =
        [("profile".to_owned(), manifest["profile"].clone())].into_iter().collect();
    text += &toml::to_string(&only_profiles).expect("profiles are TOML again");
    fixture::write(&dir.join("Cargo.toml"), &text);
    fixture::write(&dir.join("build.rs"), "fn main() {}\n");
    fixture::write(&dir.join("src/main.rs"), "fn main() {}\n");

    let mut wrong = Vec::new();
    for (profile, wanted, unwanted) in PROFILES {
        let commands = rustc_commands(&dir, profile);
        let command = |name: &str| {
            let word = format!("--crate-name {} ", name.replace('-', "_"));
            commands.iter().find(|command| command.contains(&word)).unwrap_or_else(|| {
                panic!("{profile}: rustc was not run for {name}:\n{}", commands.join("\n"))
            })
        };
        let own = command("tiny");
        for flag in wanted.iter().filter(|flag| !own.contains(**flag)) {
            wrong.push(format!("{profile}: no {flag} in {own}"));
        }
        for flag in unwanted.iter().filter(|flag| own.contains(**flag)) {
            wrong.push(format!("{profile}: unwanted {flag} in {own}"));
        }
        for (name, level) in &optimised {
            let command = command(name);
            // `debugging` inherits the packages' settings from dev; release has none.
            let level = if profile.starts_with("release") { 2 } else { *level };
            if !command.contains(&format!("opt-level={level} ")) {
                wrong.push(format!("{profile}: no opt-level={level} in {command}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The rustc command lines of a build from nothing.
fn rustc_commands(dir: &std::path::Path, profile: &str) -> Vec<String> {
    let target = dir.join("target");
    if target.exists() {
        std::fs::remove_dir_all(&target).expect("removing the last build");
    }
    let mut cargo: Command = fixture::cargo(dir);
    let out = cargo
        .args(["build", "--offline", "--verbose", "--profile", profile])
        .output()
        .expect("cargo runs");
    let stderr = String::from_utf8(out.stderr).expect("cargo writes UTF-8");
    assert!(out.status.success(), "{stderr}");
    stderr
        .lines()
        .filter(|line| line.trim_start().starts_with("Running `"))
        .map(str::to_owned)
        .collect()
}
