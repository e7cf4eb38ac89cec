//! Declared resources through the whole program, in the way of a kubectl user.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use serde_json::json;

use crate::home::{Done, Home};

const GREETING: &str = "\
apiVersion: overmind/v1
kind: Context
metadata:
  name: greeting
  labels: {app: web}
spec:
  values: {LANG: en}
  prompt: Say hello.
";

fn context(name: &str, text: &str) -> String {
    format!(
        "apiVersion: overmind/v1\nkind: Context\nmetadata: {{name: {name}, labels: {{app: web}}}}\n\
         spec: {{prompt: {text}}}\n"
    )
}

fn write(home: &Home, file: &str, text: &str) {
    let path = home.work().join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn piped(home: &Home, args: &[&str], text: &str) -> Done {
    let mut command = home.command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    crate::home::done(child.wait_with_output().unwrap())
}

#[test]
fn a_context_is_applied_shown_changed_and_deleted() {
    let home = Home::up();
    write(&home, "a.yaml", GREETING);
    let apply = ["apply", "-f", "a.yaml"];
    home.run(&["apply", "-f", "a.yaml", "--dry-run"]).ok().shows("created (dry run)");
    home.run(&["get", "context", "greeting"]).fails(3).says("there is no context/greeting");
    assert_eq!(home.run(&apply).ok().line(), "context/greeting created");
    assert_eq!(home.run(&apply).ok().line(), "context/greeting unchanged");
    write(&home, "a.yaml", &GREETING.replace("LANG: en", "LANG: de"));
    let diff = home.run(&["diff", "-f", "a.yaml"]).fails(1);
    diff.shows("-    LANG: en").shows("+    LANG: de");
    assert_eq!(home.run(&apply).ok().line(), "context/greeting configured");
    assert_eq!(home.run(&["diff", "-f", "a.yaml"]).ok().out, "");

    let one = home.run(&["get", "cm/greeting", "-o", "json"]).ok().json();
    assert_eq!(one["spec"]["values"], json!({"LANG": "de"}));
    assert_eq!((&one["kind"], &one["apiVersion"]), (&json!("Context"), &json!("overmind/v1")));
    assert_eq!(one["metadata"]["generation"], 2);
    assert_eq!(one["metadata"]["labels"], json!({"app": "web"}));
    home.run(&["get", "contexts"])
        .ok()
        .shows("NAME      VALUES  FILES  AGE")
        .shows("greeting  1       0");
    home.run(&["get", "ctx", "-o", "wide"]).ok().shows("Say hello.").shows("app=web");
    let list = home.run(&["get", "contexts", "-l", "app in (web, db)", "-o", "yaml"]).ok();
    list.shows("kind: List");
    assert_eq!(
        piped(&home, &["apply", "-f", "-"], &list.out).ok().line(),
        "context/greeting unchanged"
    );
    home.run(&["get", "contexts", "-l", "app=db"]).ok().says("no contexts found");
    home.run(&["get", "contexts", "-l", "app web"]).fails(2).says("selector");
    home.run(&["describe", "context", "greeting"]).ok().shows("Say hello.").shows("app=web");

    home.run(&["label", "context", "greeting", "tier=gold", "app-"]).ok().shows("labelled");
    let labelled = home.run(&["get", "context", "greeting", "-o", "json"]).ok().json();
    assert_eq!(labelled["metadata"]["labels"], json!({"tier": "gold"}));
    home.run(&["label", "context", "greeting", "tier=not this"])
        .fails(2)
        .says("metadata.labels.tier");

    home.run(&["explain", "context.spec.values"]).ok().shows("Variables: names and texts");
    home.run(&["explain", "context.spec.valeus"]).fails(3).says("did you mean `values`?");
    home.run(&["api-resources"]).ok().shows("contexts").shows("configmaps");
    home.run(&["get", "contxts"]).fails(2).says("did you mean `contexts`?");

    home.run(&["delete", "context", "nobody", "--ignore-not-found"]).ok();
    home.run(&["delete", "context", "nobody"]).fails(3);
    assert_eq!(home.run(&["delete", "-f", "a.yaml"]).ok().line(), "context/greeting deleted");
    home.run(&["get", "contexts", "-o", "name"]).ok();
    // Earlier words keep their meaning.
    home.run(&["get", "runs"]).ok();
    home.run(&["get", "nodes"]).ok().shows("local");
}

#[test]
fn a_concurrent_edit_is_refused_with_the_other_change() {
    let mut home = Home::up();
    write(&home, "a.yaml", GREETING);
    home.run(&["apply", "-f", "a.yaml"]).ok();
    let program = crate::program::program();
    let script = |text: &str| {
        let path = home.work().join("editor");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    };
    let editor = script("sed -i s/hello/goodbye/ \"$1\"");
    let edit = ["edit", "context/greeting"];
    home.run_env(&[("EDITOR", &editor)], &edit).ok().shows("context/greeting edited");
    home.run_env(&[("EDITOR", "true")], &edit).ok().shows("unchanged");
    let editor = script("sed -i s/prompt:/promt:/ \"$1\"");
    let typo = home.run_env(&[("EDITOR", &editor)], &edit).fails(2);
    typo.says("did you mean `prompt`?").says("your text is kept in");
    let editor = script(&format!(
        "{} label context greeting by=other >&2 && sed -i s/goodbye/mine/ \"$1\"",
        program
    ));
    let second = home.run_env(&[("EDITOR", &editor)], &edit).fails(5);
    second.says("somebody else has changed it").says("+    by: other").says("your text is kept in");
    home.run(&["get", "context", "greeting", "-o", "yaml"]).ok().shows("goodbye");
    home.kill();
    home.run(&["get", "contexts"]).fails(4).says("is the server running?");
}

#[test]
fn one_invalid_document_of_a_thousand_prevents_all_from_being_applied() {
    let home = Home::up();
    let mut many = String::new();
    for n in 0..1000 {
        let prompt = if n == 700 { "7" } else { "text" };
        let one = context(&format!("c{n}"), prompt);
        // Those that are pruned below.
        let one = if n < 40 { one } else { one.replace("app: web", "app: api") };
        let _ = write!(many, "---\n{one}");
    }
    write(&home, "many.yaml", &many);
    let bad = home.run(&["apply", "-f", "many.yaml"]).fails(2);
    bad.says("nothing was applied: 1 mistake").says("many.yaml:3505:8: spec.prompt must be a text");
    assert_eq!(home.run(&["get", "contexts", "-o", "name"]).ok().out, "");
    write(&home, "many.yaml", &many.replace("prompt: 7", "prompt: seven"));
    let applied = home.run(&["apply", "-f", "many.yaml"]).ok();
    assert_eq!(applied.out.matches(" created\n").count(), 1000);
    assert_eq!(home.run(&["get", "contexts", "-o", "name"]).ok().out.lines().count(), 1000);
    // Resources with the label and without a document are deleted; a dry run only lists them.
    write(&home, "few.yaml", &context("c1", "text"));
    let prune = ["apply", "-f", "few.yaml", "--prune", "-l", "app=web"];
    let dry = home.run(&[&prune[..], &["--dry-run"]].concat()).ok();
    assert_eq!(dry.out.matches("pruned (dry run)").count(), 39);
    assert_eq!(home.run(&prune).ok().out.matches(" pruned\n").count(), 39);
    let left = home.run(&["get", "contexts", "-l", "app=web", "-o", "name"]).ok();
    assert_eq!(left.line(), "context/c1");
}

#[test]
fn every_mistake_in_every_file_is_reported_with_its_position() {
    let home = Home::up();
    write(&home, "d/1.yaml", "apiVersion: overmind/v1\nkind: Contxt\nmetadata: {name: a/b}\n");
    write(&home, "d/2.yml", &format!("\u{feff}{}", context("x", "y").replace('\n', "\r\n")));
    write(
        &home,
        "d/3.json",
        "{\"apiVersion\": \"overmind/v1\", \"kind\": \"Context\",\n \"metadata\": {\"name\": \"x\"},\n \"spec\": {\"valeus\": {}}}",
    );
    write(&home, "d/4.yaml", "a: [\n");
    write(&home, "d/ignored.txt", "nothing");
    let bad = home.run(&["apply", "-f", "d"]).fails(2);
    bad.says("d/1.yaml:2:1: kind is `Contxt`, which is not a kind; did you mean `Context`?")
        .says("d/1.yaml:3:12: metadata.name may have small letters")
        .says("d/3.json:3:11: spec.valeus is not a field; did you mean `values`?")
        .says("d/4.yaml:");
    assert_eq!(home.run(&["get", "contexts", "-o", "name"]).ok().out, "");
    // Two documents with one name; none; too many.
    let twice = format!("{GREETING}---\n{GREETING}");
    let two = piped(&home, &["apply", "-f", "-"], &twice).fails(2);
    two.says("-:13:3: metadata.name names context/greeting a second time");
    piped(&home, &["apply", "-f", "-"], "# nothing\n").fails(2).says("there is no document in -");
    home.run(&["apply", "-f", "none.yaml"]).fails(3).says("none.yaml");
    let large = context("large", &"x".repeat(257 << 10));
    piped(&home, &["apply", "-f", "-"], &large).fails(2).says("262144 is the most");
    let bomb = format!("{GREETING}x: &a [{}]\n", "&b [1, 2]".to_owned() + &", *b".repeat(50));
    piped(&home, &["apply", "-f", "-"], &bomb).fails(2).says("-:9:1: x is not a field");
    home.run(&["get", "context", "a/b"]).fails(3);
    piped(&home, &["apply", "-f", "-"], GREETING).ok();
}

#[test]
fn output_follows_a_template() {
    let home = Home::up();
    write(&home, "a.yaml", &format!("{GREETING}---\n{}", context("other", "text")));
    home.run(&["apply", "-f", "a.yaml"]).ok();
    let get = |args: &[&str]| home.run(&[&["get", "contexts"], args].concat());
    let names = get(&["-o", "jsonpath={.items[*].metadata.name}"]).ok();
    assert_eq!(names.out, "greeting other");
    let one = get(&["greeting", "-o", "jsonpath={.spec.values.LANG}"]).ok();
    assert_eq!(one.out, "en");
    let lines = "jsonpath={range .items[*]}{.kind}/{.metadata.name}{\"\\n\"}{end}";
    assert_eq!(get(&["-o", lines]).ok().out, "Context/greeting\nContext/other\n");
    get(&["-o", "jsonpath={.items[}"]).fails(2).says("jsonpath: character 8");
    get(&["-o", "jsonpth={.a}"]).fails(2).says("possible values: table, wide, json");
    get(&["-A"]).ok().shows("COLONY   NAME").shows("default  greeting");
}

#[test]
fn a_watch_shows_the_existing_objects_and_then_each_change() {
    let home = Home::up();
    write(&home, "a.yaml", GREETING);
    home.run(&["apply", "-f", "a.yaml"]).ok();
    let mut command = home.command(&["get", "contexts", "-w", "-o", "name"]);
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!(next(), "context/greeting");
    piped(&home, &["apply", "-f", "-"], &context("second", "text")).ok();
    assert_eq!(next(), "context/second");
    home.run(&["label", "context", "greeting", "tier=gold"]).ok();
    assert_eq!(next(), "context/greeting");
    home.run(&["delete", "context", "second"]).ok();
    let mut said = BufReader::new(watch.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("context/second deleted")));
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn a_watch_of_agents_shows_additions_changes_and_removals() {
    let home = Home::up();
    home.agent("first", &[]);
    let mut command = home.command(&["get", "agents", "-w", "-o", "json"]);
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<serde_json::Value>(&lines.next().unwrap().unwrap());
    let mut named = |name: &str| loop {
        let one = next().unwrap();
        // Agents that the server creates itself exist, too.
        if one["metadata"]["name"] == name || one["deleted"]["name"] == name {
            return one;
        }
    };
    let first = named("first");
    home.agent("second", &[]);
    assert_eq!(named("second")["kind"], "Agent");
    home.run(&["agent", "disable", "first"]).ok();
    assert_ne!(named("first"), first);
    let waiting = home.command(&["wait", "--for", "delete", "agent/second", "--timeout", "1m"]);
    let waiting = { waiting }.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    home.run(&["agent", "rm", "second"]).ok();
    assert_eq!(named("second")["deleted"]["kind"], "Agent");
    assert!(waiting.wait_with_output().unwrap().status.success());
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn deletions_remove_owned_objects_and_wait_for_finalizers() {
    let home = Home::up();
    let family = || {
        piped(&home, &["apply", "-f", "-"], &context("owner", "text")).ok();
        let uid = home.run(&["get", "cm/owner", "-o", "jsonpath={.metadata.uid}"]).ok().out;
        let child = format!(
            "apiVersion: overmind/v1\nkind: Context\nmetadata:\n  name: child\n  \
             ownerReferences: [{{uid: {uid}}}]\n  finalizers: [test/held]\n"
        );
        piped(&home, &["apply", "-f", "-"], &child).ok();
    };
    let names = || home.run(&["get", "contexts", "-o", "name"]).ok().out;
    let release =
        "apiVersion: overmind/v1\nkind: Context\nmetadata: {name: child, finalizers: []}\n";
    family();
    home.run(&["delete", "context", "owner", "--cascade=foreground"]).ok().shows(
        "context/owner is being deleted; it waits for its finalizers or for resources that \
            it owns",
    );
    home.run(&["get", "contexts"]).ok().shows("deleting");
    piped(&home, &["apply", "-f", "-"], release).ok();
    assert_eq!(names(), "");
    family();
    home.run(&["delete", "context", "owner", "--cascade=orphan"]).ok().shows("owner deleted");
    assert_eq!(names(), "context/child\n");
    home.run(&["delete", "context", "child"]).ok().shows("is being deleted");
    piped(&home, &["apply", "-f", "-"], release).ok();
    assert_eq!(names(), "");
}

#[test]
fn a_secret_in_a_spec_is_masked_with_a_warning_and_in_a_label_refused() {
    let home = Home::up();
    let secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789";
    let done = piped(&home, &["apply", "-f", "-"], &context("a", secret)).ok();
    done.says(
        "context/a contains something that looks like a secret; it was \
        masked",
    )
    .says("overmind vault set");
    assert!(!home.run(&["get", "cm/a", "-o", "yaml"]).ok().out.contains(secret));
    let label = GREETING.replace("app: web", &format!("app: {secret}"));
    let refused = piped(&home, &["apply", "-f", "-"], &label).fails(2);
    refused.says("metadata.labels").says("holds a secret");
    assert!(!refused.err.contains(secret));
    assert_eq!(home.run(&["get", "contexts", "-o", "name"]).ok().line(), "context/a");
}
