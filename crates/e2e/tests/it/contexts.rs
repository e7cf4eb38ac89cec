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
fn runs_of_every_kind_are_given_the_values_and_the_prompt_of_contexts() {
    let home = Home::up();
    apply(&home, &context("greeting", "{values: {TONGUE: en, ONLY: here}, prompt: Be brief.}"));
    apply(&home, &context("german", "{values: {TONGUE: de}, prompt: Say why.}"));

    // A command: the later one wins, and the pieces of the prompt stand one after the other.
    let both = ["--context", "greeting", "--context", "german"];
    let shell = ["--", "sh", "-c", "echo \"$TONGUE/$ONLY/$OVERMIND_PROMPT/$HOME\""];
    let run = [&["run", "--once", "--follow"][..], &both, &shell].concat();
    let done = home.run(&run).ok();
    done.shows("de/here/Be brief.").shows("Say why.");

    // What was given stays, whatever the context says later.
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
fn what_cannot_be_given_is_refused_before_anything_starts() {
    let home = Home::up();
    apply(&home, &context("odd", "{values: {PATH: /evil}}"));
    apply(&home, &context("files", "{files: {a: b}}"));
    let run = |name: &str| home.run(&["run", "--once", "--context", name, "--", "true"]);
    run("nobody").fails(3).says("there is no context/nobody");
    run("odd").fails(2).says("the value `PATH` decides what runs");
    run("files").fails(2).says("has files");
    run("A b").fails(2);
    assert_eq!(home.run(&["ps", "-a", "-o", "name"]).ok().out, "");
}

/// `BASH_ENV` and its like are code that a program runs before its own.
#[test]
fn a_run_that_reaches_the_host_is_given_no_context_that_somebody_else_wrote() {
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
    // Nor is one that is given secrets, whatever its sandbox.
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

    // An admin who changes its labels does not answer for its values; who writes it does.
    home.run(&["label", "context", "sly", "seen=yes"]).ok();
    run("none").fails(6);
    home.run(&["delete", "context", "sly"]).ok();
    home.run(&apply).ok();
    run("none").ok();
    assert!(mark.exists());
}
