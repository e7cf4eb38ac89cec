//! Memory claims: directories and memory collections that outlive the runs that use them.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::{Value, json};

use crate::home::{Done, Home, until};

fn apply(home: &Home, kind: &str, name: &str, spec: &Value) -> Done {
    let document = json!({
        "apiVersion": "overmind/v1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    });
    std::fs::write(home.work().join("claim.json"), document.to_string()).unwrap();
    home.run(&["apply", "-f", "claim.json"])
}

fn shell(home: &Home, claims: &[&str], sandbox: &str, script: &str) -> Done {
    let claims = claims.iter().flat_map(|claim| ["--claim", claim]);
    let args: Vec<&str> = ["run", "--once", "--follow", "--sandbox", sandbox]
        .into_iter()
        .chain(claims)
        .chain(["--", "sh", "-c", script])
        .collect();
    home.run(&args)
}

#[test]
fn a_claimed_directory_outlives_runs_and_server_and_is_read_only_in_a_sandbox() {
    let mut home = Home::up();
    apply(&home, "MemoryClaim", "team.notes", &json!({})).ok();
    apply(&home, "MemoryClaim", "other", &json!({})).ok();
    let writes = "echo rule-41 > \"$OVERMIND_CLAIM_TEAM_NOTES/hints\" && echo written";
    shell(&home, &["team.notes", "other"], "namespace", writes).ok().shows("written");
    home.kill();
    home.start(&["--listen", "none"], &[]);
    let reads = "cat \"$OVERMIND_CLAIM_TEAM_NOTES/hints\"; \
        echo x 2>/dev/null > \"$OVERMIND_CLAIM_TEAM_NOTES/hints\" || echo no-write; \
        ls \"$OVERMIND_CLAIM_TEAM_NOTES/..\"; echo end";
    let done = shell(&home, &["team.notes:ro"], "namespace", reads).ok();
    done.shows("rule-41").shows("no-write").shows("team.notes\nend");
    assert!(!done.out.contains("other"), "another claim is visible: {}", done.out);
    shell(&home, &["team.notes"], "none", "cat \"$OVERMIND_CLAIM_TEAM_NOTES/hints\"")
        .ok()
        .shows("rule-41");
    // A deleted and recreated claim has its directory again.
    home.run(&["delete", "memoryclaim", "team.notes"]).ok();
    shell(&home, &["team.notes"], "namespace", "true")
        .fails(3)
        .says("no memory claim `team.notes`");
    apply(&home, "MemoryClaim", "team.notes", &json!({"readOnly": true})).ok();
    shell(&home, &["team.notes"], "namespace", reads).ok().shows("rule-41").shows("no-write");
    home.run(&["get", "pvc"]).ok().shows("team.notes").shows("read-only");
    home.run(&["get", "memoryclaim", "team.notes", "-o", "yaml"]).ok().shows("kind: MemoryClaim");
}

#[test]
fn runs_of_quests_and_built_in_agents_use_claims() {
    let home = Home::up();
    apply(&home, "MemoryClaim", "notes", &json!({"collection": "lessons"})).ok();
    let command = "echo $(($(cat \"$OVERMIND_CLAIM_NOTES/count\" || echo 0) + 1)) > \
        \"$OVERMIND_CLAIM_NOTES/count.new\" && mv \"$OVERMIND_CLAIM_NOTES/count.new\" \
        \"$OVERMIND_CLAIM_NOTES/count\"";
    let quest = json!({
        "command": ["sh", "-c", command], "sandbox": "namespace", "completions": 3,
        "memoryClaims": ["notes"],
    });
    apply(&home, "Quest", "count", &quest).ok();
    home.run(&["wait", "--for", "condition=Complete", "quest/count", "--timeout", "1m"]).ok();
    shell(&home, &["notes:ro"], "namespace", "cat \"$OVERMIND_CLAIM_NOTES/count\"").ok().shows("3");

    let call = |name: &str, args: Value| json!({"calls": [{"name": name, "args": args}]});
    let remembers = json!([
        call("store_memory", json!({"text": "run make first"})),
        call("store_memory", json!({"text": "x", "collection": "secrets"})),
        call("run_shell", json!({"command": "cat \"$OVERMIND_CLAIM_NOTES/count\""})),
        {"text": "done"},
    ]);
    let cassettes = home.data().join("cassettes");
    std::fs::create_dir_all(&cassettes).unwrap();
    let cassette = json!({"name": "remembers", "turns": remembers});
    std::fs::write(cassettes.join("remembers.json"), cassette.to_string()).unwrap();
    let create = ["agent", "create", "--name", "remembers", "--model", "scripted:remembers"];
    let tools = ["--tools", "run_shell,store_memory,search_memory"];
    home.run(&[&create[..], &tools].concat()).ok();
    let args = ["run", "remembers", "x", "--once", "--wait", "--claim", "notes", "-o", "name"];
    let id = home.run(&args).out.trim().to_owned();
    home.run(&["approve", &id]).ok();
    home.run(&["wait", &id]).ok();
    let told = home.run(&["logs", &id]).ok().out;
    assert!(told.contains("only the collections of its memory claims: lessons"), "{told}");
    until("it was stored", || {
        let found = home.run(&["memory", "search", "make", "--collection", "lessons"]).out;
        found.contains("run make first").then_some(())
    });
}

#[test]
fn unusable_claims_are_refused_before_a_start() {
    let home = Home::up();
    apply(&home, "MemoryClaim", "a-b", &json!({"collection": "x"})).ok();
    apply(&home, "MemoryClaim", "a.b", &json!({})).ok();
    apply(&home, "MemoryClaim", "same", &json!({"collection": "x", "directory": false})).ok();
    apply(&home, "MemoryClaim", "none", &json!({"directory": false}))
        .fails(2)
        .says("claims nothing");
    apply(&home, "MemoryClaim", "odd", &json!({"colection": "x"})).fails(2).says("`collection`");
    apply(&home, "Quest", "bad", &json!({"command": ["true"], "memoryClaims": ["a-b:rw"]}))
        .fails(2)
        .says("`NAME:ro` to read it only");
    for (claims, sandbox, code, says) in [
        (&["nobody"][..], "namespace", 3, "there is no memory claim `nobody`"),
        (&["../up"], "namespace", 2, "write the name of a memory claim"),
        (&["a-b", "a.b"], "namespace", 2, "both be the variable OVERMIND_CLAIM_A_B"),
        (&["a-b", "same"], "namespace", 2, "the same memory collection"),
        (&["a-b:ro"], "none", 2, "nothing keeps the directory of `a-b` read-only"),
    ] {
        shell(&home, claims, sandbox, "true").fails(code).says(says);
    }
    home.scripted("boxed", &json!([{"text": "done"}]), &["--sandbox", "docker"]);
    home.run(&["run", "boxed", "x", "--once", "--claim", "a-b"])
        .fails(2)
        .says("is not shown in a sandbox of the level `docker`");
    assert_eq!(home.run(&["ps", "-a", "-o", "name"]).ok().out, "");
}
