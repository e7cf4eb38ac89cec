//! Contexts: values and pieces of a prompt that runs are given by name.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::json;

use crate::home::{Home, until};

fn apply(home: &Home, text: &str) {
    std::fs::write(home.work().join("context.yaml"), text).unwrap();
    home.run(&["apply", "-f", "context.yaml"]).ok();
}

fn context(name: &str, spec: &str) -> String {
    format!("apiVersion: overmind/v1\nkind: Context\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

#[test]
fn runs_of_every_kind_get_values_and_prompts_of_contexts() {
    let home = Home::up();
    apply(&home, &context("greeting", "{values: {TONGUE: en, ONLY: here}, prompt: Be brief.}"));
    apply(&home, &context("german", "{values: {TONGUE: de}, prompt: Say why.}"));

    // A command: the later one wins, and the pieces of the prompt stand one after the other.
    let both = ["--context", "greeting", "--context", "german"];
    let shell = ["--", "sh", "-c", "echo \"$TONGUE/$ONLY/$OVERMIND_PROMPT/$HOME\""];
    let run = [&["run", "--once", "--follow"][..], &both, &shell].concat();
    let done = home.run(&run).ok();
    done.shows("de/here/Be brief.").shows("Say why.");

    // The values of a run do not change when the context changes.
    let turn = json!({"calls": [{"name": "run_shell", "args": {"command": "printenv TONGUE"}}]});
    let turns = json!([turn, {"text": "done"}]);
    home.scripted("speaks", &turns, &[]);
    let run =
        home.run(&["run", "speaks", "x", "--once", "--wait", "--context", "german", "-o", "name"]);
    let id = run.ok().line().to_owned();
    home.run(&["logs", &id]).ok().shows("de");

    // A quest gives them to each run.
    let quest = json!({"apiVersion": "overmind/v1", "kind": "Quest", "metadata": {"name": "q"},
        "spec": {"command": ["sh", "-c", "echo quest-$TONGUE"], "contexts": ["german"]}});
    apply(&home, &quest.to_string());
    home.run(&["wait", "--for", "condition=Complete", "quest/q", "--timeout", "1m"]).ok();
    until("it was said", || home.run(&["logs", "q-0"]).out.contains("quest-de").then_some(()));
}

#[test]
fn unusable_contexts_are_refused_before_a_start() {
    let home = Home::up();
    apply(&home, &context("odd", "{values: {PATH: /evil}}"));
    apply(&home, &context("files", "{files: {a: b}}"));
    apply(&home, &context("clash", "{files: {a: b, a/c: d}}"));
    apply(&home, &context("bell", "{prompt: \"\\a\"}"));
    let many = (0..257).map(|n| format!("f{n}: x")).collect::<Vec<_>>().join(", ");
    apply(&home, &context("many", &format!("{{files: {{{many}}}}}")));
    apply(&home, &context("long", &format!("{{prompt: {}}}", "x".repeat(62 << 10))));
    apply(&home, &context("large", &format!("{{files: {{a: {}}}}}", "x".repeat(200 << 10))));
    apply(&home, &context("huge", &format!("{{files: {{a: {}}}}}", "x".repeat(57 << 10))));
    let run = |name: &str| home.run(&["run", "--once", "--context", name, "--", "true"]);
    run("nobody").fails(3).says("there is no context/nobody");
    run("odd").fails(2).says("the value `PATH` controls which programs run");
    run("clash").fails(2).says("`a` is also the directory of another file");
    run("bell").fails(2).says("control character");
    run("many").fails(2).says("257 files together; 256 is the most");
    run("long").fails(2).says("more than 60 KiB").says("put long texts into `files`");
    let two = ["run", "--once", "--context", "large", "--context", "huge", "--", "true"];
    home.run(&two).fails(2).says("more than 256 KiB");
    let out = context("out", "{files: {../a: b}}");
    std::fs::write(home.work().join("out.yaml"), out).unwrap();
    home.run(&["apply", "-f", "out.yaml"]).fails(2).says("without `..`");
    home.scripted("boxed", &json!([{"text": "done"}]), &["--sandbox", "docker"]);
    let boxed = ["run", "boxed", "x", "--once", "--context", "files"];
    home.run(&boxed).fails(2).says("a sandbox of the level `docker` does not show");
    run("A b").fails(2);
    assert_eq!(home.run(&["ps", "-a", "-o", "name"]).ok().out, "");
}

/// Reads a file of its context, tries to write it and to read files of others, and waits.
const READS: &str = "cat \"$OVERMIND_CONTEXT_FILES/manual/a/b.md\"; \
    echo evil 2>/dev/null > \"$OVERMIND_CONTEXT_FILES/manual/a/b.md\" || echo no-write; \
    echo evil 2>/dev/null > \"$OVERMIND_CONTEXT_FILES/new\" || echo no-new; \
    ls \"$OVERMIND_CONTEXT_FILES/..\"; pwd";

#[test]
fn context_files_are_readable_in_every_run_and_read_only_in_a_sandbox() {
    let mut home = Home::up();
    apply(&home, &context("manual", "{files: {a/b.md: rule-41, c: other}, prompt: Be brief.}"));
    let place = home.data().join("lent");
    let lent = || -> Vec<String> {
        let entries = std::fs::read_dir(&place).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };

    // A program in a sandbox sees its own files and no others.
    let shell = ["--", "sh", "-c", READS];
    let base = ["run", "--once", "--follow", "--context", "manual"];
    let boxed = [&base[..], &["--name", "boxed", "--sandbox", "namespace"], &shell].concat();
    let done = home.run(&boxed).ok();
    done.shows("rule-41").shows("no-write").shows("no-new");
    let all = home.run(&["ps", "-a", "-o", "json"]).ok().json();
    let id = all[0]["id"].as_str().unwrap().to_owned();
    assert!(done.out.contains(&id), "{}", done.out);
    until("they are gone", || lent().is_empty().then_some(()));
    // One on the host reads them as well.
    let host = [&base[..], &["--name", "host", "--sandbox", "none"], &shell].concat();
    home.run(&host).ok().shows("rule-41");
    // The shell of a built-in agent.
    let read = "cat \"$OVERMIND_CONTEXT_FILES/manual/a/b.md\"; printenv OVERMIND_PROMPT";
    let command = json!({"command": read});
    let turns = json!([{"calls": [{"name": "run_shell", "args": command}]}, {"text": "done"}]);
    home.scripted("reader", &turns, &[]);
    let read = ["run", "reader", "x", "--once", "--wait", "--context", "manual", "-o", "name"];
    // The policy asks, as for every file outside of its project.
    let id = home.run(&read).fails(12).line().to_owned();
    home.run(&["approve", &id]).ok();
    home.run(&["wait", &id]).ok();
    home.run(&["logs", &id]).ok().shows("rule-41").shows("manual/a/b.md");

    // They survive a restart, and a later change of the context changes no run.
    let go = home.work().join("go");
    let wait = format!("until test -e {}; do sleep 0.05; done; {READS}", go.display());
    let waits = ["run", "-d", "--once", "--name", "waits", "--sandbox", "none"];
    home.run(&[&waits[..], &["--context", "manual", "--", "sh", "-c", &wait]].concat()).ok();
    until("they are there", || (lent().len() == 1).then_some(()));
    std::fs::create_dir(place.join("half.1-x")).unwrap();
    apply(&home, &context("manual", "{files: {a/b.md: rule-42}}"));
    home.kill();
    home.start(&["--listen", "none"], &[]);
    until("what was half made is gone", || (lent().len() == 1).then_some(()));
    std::fs::write(&go, "").unwrap();
    home.run(&["wait", "waits"]).ok();
    home.run(&["logs", "waits"]).ok().shows("rule-41");
    // A run that continues after its end has the files again.
    let again = [&base[..], &["--name", "again", "--sandbox", "namespace"], &shell].concat();
    home.run(&again).ok().shows("rule-42");
}

/// `BASH_ENV` and similar variables are code that a program runs before its own.
#[test]
fn an_unsandboxed_run_of_an_admin_gets_no_context_of_another_author() {
    let home = Home::up();
    let key = home.run(&["key", "create", "op", "--role", "operator", "-o", "name"]).ok();
    let key = key.line().to_owned();
    let mark = home.work().join("reached");
    let code = home.work().join("code.sh");
    std::fs::write(&code, format!("touch {}\n", mark.display())).unwrap();
    let spec = format!("{{values: {{BASH_ENV: {}}}}}", code.display());
    std::fs::write(home.work().join("context.yaml"), context("sly", &spec)).unwrap();
    let apply = ["apply", "-f", "context.yaml"];
    home.run_env(&[("OVERMIND_TOKEN", &key)], &apply).ok();

    let run = |level: &str| {
        let words = ["run", "--once", "--wait", "--sandbox", level, "--context", "sly"];
        home.run(&[&words[..], &["--", "bash", "-c", "true"]].concat())
    };
    run("none").fails(6).says("context sly was written by somebody who is no admin");
    let quest = json!({"apiVersion": "overmind/v1", "kind": "Quest", "metadata": {"name": "q"},
        "spec": {"command": ["bash", "-c", "true"], "sandbox": "none", "contexts": ["sly"]}});
    std::fs::write(home.work().join("quest.json"), quest.to_string()).unwrap();
    home.run(&["apply", "-f", "quest.json"]).ok();
    home.run(&["wait", "--for", "condition=Waiting", "quest/q", "--timeout", "1m"]).ok();
    home.run(&["get", "quest", "q", "-o", "json"]).ok().shows("Forbidden");
    // Nor is a run that gets secrets, in any sandbox.
    for (name, env_from) in [("keyed", json!({"KEY": "some_key"})), ("granted", json!({}))] {
        let agent = json!({
            "name": name, "role": "runs", "model": "command", "sandbox": "namespace",
            "command": {"argv": ["bash", "-c", "true"], "exact": true, "env_from": env_from},
        });
        let file = home.path().join(format!("{name}.json"));
        std::fs::write(&file, agent.to_string()).unwrap();
        home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
    }
    home.run(&["vault", "grant", "granted", "--secret", "some_key"]).ok();
    for name in ["keyed", "granted"] {
        let run = home.run(&["run", "--once", "--wait", "--context", "sly", name]);
        run.fails(6).says("or that is given secrets");
    }
    assert!(!mark.exists(), "an operator's code ran on the host");

    // An admin who changes its labels is not its author; the writer of its values is.
    home.run(&["label", "context", "sly", "seen=yes"]).ok();
    run("none").fails(6);
    home.run(&["delete", "context", "sly"]).ok();
    home.run(&apply).ok();
    run("none").ok();
    assert!(mark.exists());
}
