//! Agents, memory, keys, backups: created, listed, changed, removed, refused.

use serde_json::json;

use crate::home::Home;

#[test]
fn an_agent_is_created_shown_changed_and_disabled() {
    let home = Home::up();
    home.run(&["agent", "list"]).ok().says("no agents yet; create one");
    let id = home.agent("coder", &["--role", "You code.", "--max-steps", "9"]);
    let made = home.run(&["agent", "get", "coder", "-o", "json"]).ok().json();
    assert_eq!(made["id"], id);
    assert_eq!(made["limits"]["max_steps"], 9);
    assert_eq!(made["limits"]["failure_budget"], 3, "what is not given takes its default");
    home.run(&["agent", "get", &id[id.len() - 8..]]).ok().shows("You code.");

    let edit = ["agent", "edit", "coder", "--max-seconds", "60", "--tools", "", "-o", "json"];
    let edited = home.run(&edit).ok().json();
    assert_eq!(edited["version"], 2);
    assert_eq!(edited["limits"]["max_steps"], 9, "limits that are not named stay");
    assert_eq!(edited["limits"]["max_seconds"], 60);
    assert_eq!(edited["tools_allowed"], json!([]));
    home.run(&["agent", "edit", "coder"]).fails(2).says("nothing to change");
    home.run(&["agent", "edit", "coder", "--if-version", "1", "--model", "x"]).fails(5);

    home.run(&["agent", "disable", "coder"]).ok().shows("coder disabled (version 3");
    home.run(&["run", "coder", "x"]).fails(5).says("disabled");
    home.run(&["agent", "edit", "coder", "--enable"]).ok();
    home.run(&["run", "coder", "remember: x", "-o", "name"]).ok();
    let versions = home.run(&["agent", "versions", "coder", "-o", "json"]).ok().json();
    let numbers: Vec<u64> =
        versions.as_array().unwrap().iter().map(|v| v["version"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [4, 3, 2, 1]);
    home.run(&["agent", "list"]).ok().shows("NAME").shows("coder");
    assert_eq!(home.run(&["get", "agents", "-o", "name"]).ok().line(), "agent/coder");
    assert_eq!(home.run(&["get", "agent/coder", "-o", "json"]).ok().json()["metadata"]["uid"], id);
}

#[test]
fn an_agent_can_come_from_a_file() {
    let home = Home::up();
    let toml = "name = \"filed\"\nmodel = \"deterministic\"\ntools_allowed = [\"run_shell\"]\n\
                [limits]\nmax_steps = 4\n";
    std::fs::write(home.work().join("agent.toml"), toml).unwrap();
    let made = home.run(&["agent", "create", "-f", "agent.toml", "--model", "local", "-o", "json"]);
    let made = made.ok().json();
    assert_eq!((made["name"].as_str(), made["model"].as_str()), (Some("filed"), Some("local")));
    std::fs::write(home.work().join("bad.toml"), "name = \"x\"\nmodel = \"y\"\nmodell = 1\n")
        .unwrap();
    let bad = home.run(&["agent", "create", "-f", "bad.toml"]).fails(2);
    bad.says("unknown field `modell`");
    home.run(&["agent", "create", "-f", "missing.toml"]).fails(1).says("missing.toml");
}

#[test]
fn invalid_agents_are_refused_with_the_reason() {
    let home = Home::up();
    home.run(&["agent", "create", "--model", "x"]).fails(2).says("an agent needs a name");
    let blank = home.run(&["agent", "create", "--name", " ", "--model", "x"]).fails(2);
    blank.says("name: must not be blank");
    let odd = ["agent", "create", "--name", "a", "--model", "x", "--failure-budget", "99"];
    home.run(&odd).fails(2).says("failure_budget");
    let unknown = ["agent", "create", "--name", "a", "--model", "deterministic", "--tools", "nope"];
    home.run(&unknown).fails(2).says("no tool is called `nope`").says("overmind tool list");
    home.run(&["agent", "get", "nobody"]).fails(3).says("there is no agent `nobody`");
    home.run(&["agent", "get", ""]).fails(2);
}

#[test]
fn memory_is_stored_found_listed_and_removed() {
    let home = Home::up();
    home.run(&["memory", "list"]).ok().says("there are no texts yet");
    let add = |text: &str| {
        let args = ["memory", "add", text, "--metadata", "{\"by\":\"me\"}", "-o", "name"];
        home.run(&args).ok().line().to_owned()
    };
    let (port, host) = (add("the staging port is 8080"), add("the staging host is hive"));
    let found = home.run(&["memory", "search", "port", "-o", "json"]).ok().json();
    assert_eq!(found[0]["id"], port);
    assert_eq!(found[0]["metadata_json"]["by"], "me");
    home.run(&["memory", "search", "\" OR port NEAR (*"]).ok().shows("8080");
    home.run(&["memory", "search", "port", "--collection", "other"])
        .ok()
        .says("there are no texts");
    assert_eq!(home.run(&["memory", "list", "-o", "name"]).ok().out, format!("{host}\n{port}\n"));
    home.run(&["memory", "rm", &port[port.len() - 8..]]).ok().says(&format!("removed {port}"));
    home.run(&["memory", "rm", &port]).fails(3);
    assert_eq!(home.run(&["memory", "list", "-o", "name"]).ok().line(), host);
    let shown = home.run(&["memory", "get", &host, "-o", "json"]).ok().json();
    assert_eq!((&shown["author"], &shown["trust"]), (&"admin".into(), &"user".into()));
    let next =
        ["memory", "add", "the staging host is comb", "--supersedes", &host, "--ttl", "3600"];
    let key = home.run(&["key", "create", "ann", "--role", "operator", "-o", "name"]).ok();
    let ann = [("OVERMIND_TOKEN", key.line())];
    let newer = home.run_env(&ann, &[&next[..], &["-o", "name"]].concat()).ok().line().to_owned();
    home.run(&["memory", "get", &newer]).ok().shows("admin (user) → ann (user)");
    let told = home.run(&["events", "-o", "json"]).ok().json();
    let mut told = told.as_array().unwrap().iter().map(|event| &event["payload_json"]);
    let told = told.find(|said| said["item_id"] == newer).unwrap();
    assert_eq!((&told["author"], &told["was"]["author"]), (&"ann".into(), &"admin".into()));
    home.run(&next).fails(5).says("was replaced before");
    home.run(&["memory", "get", &host]).ok().shows("superseded by");
    let search = |more: &[&str]| {
        let args = [&["memory", "search", "staging", "-o", "name"][..], more].concat();
        home.run(&args).ok().out.lines().count()
    };
    assert_eq!((search(&[]), search(&["--history"])), (1, 2));
    assert_eq!(search(&["--history", "--filter", "by=me"]), 1);
    home.run(&["memory", "search", "x", "--filter", "nonsense"]).fails(2).says("field=value");
    // Once under a name, and no caller gets another caller's text.
    let keyed = |text| ["memory", "add", text, "--key", "door", "-o", "name"];
    let first = home.run(&keyed("the door is green")).ok().out;
    assert_eq!(home.run(&keyed("the door is red")).ok().out, first);
    let key = home.run(&["key", "create", "bob", "--role", "operator", "-o", "name"]).ok();
    let bob = [("OVERMIND_TOKEN", key.line())];
    assert_eq!(home.run_env(&bob, &keyed("the door is green")).ok().out, first);
    home.run_env(&bob, &keyed("the door is red")).fails(5).says("which admin stored");
    home.run(&["memory", "reembed"]).fails(2).says("no embedder is configured");
    home.run(&["memory", "add", "x", "--metadata", "{"]).fails(2).says("--metadata is not JSON");
}

#[test]
fn a_key_has_its_role_until_it_is_revoked() {
    let mut home = Home::new();
    let url = home.start(&["--listen", "127.0.0.1:0"], &[])["url"].as_str().unwrap().to_owned();
    home.run(&["key", "list"]).ok().says("no keys; create one");
    let key = home.run(&["key", "create", "ci", "--role", "viewer", "-o", "name"]).ok();
    let secret = key.line().to_owned();
    assert!(secret.starts_with("ovk_"));
    let by_key = |args: &[&str]| {
        let mut all = vec!["--server", url.as_str()];
        all.extend(args);
        home.run_env(&[("OVERMIND_TOKEN", &secret)], &all)
    };
    by_key(&["ps", "--all"]).ok();
    by_key(&["agent", "create", "--name", "x", "--model", "deterministic"]).fails(6).says("viewer");
    by_key(&["key", "list"]).fails(6);
    home.run(&["key", "list"]).ok().shows("ci").shows("viewer").shows("active");
    assert!(!home.run(&["key", "list", "-o", "json"]).ok().out.contains(&secret));
    home.run(&["key", "create", "ci"]).fails(5);
    home.run(&["key", "revoke", "ci"]).ok().shows("ci revoked");
    by_key(&["ps"]).fails(6);
    home.run(&["key", "revoke", "ci"]).fails(3);
    let wrong = home.run_env(&[("OVERMIND_TOKEN", "ovk_wrong")], &["ps"]).fails(6);
    assert!(!wrong.err.contains("ovk_wrong"));
}

#[test]
fn a_restore_of_a_backup_restores_everything() {
    let mut home = Home::up();
    let id = home.agent("kept", &[]);
    let file = home.path().join("backup.db");
    let file = file.to_str().unwrap();
    home.run(&["backup", "../backup.db"]).ok().shows(file);
    home.run(&["backup", file]).fails(5);
    home.agent("lost", &[]);
    home.run(&["restore", file]).fails(5).says("overmind down");
    home.run(&["down"]).ok();
    home.ended();
    home.run(&["restore", file]).fails(5).says("--force");
    home.run(&["restore", "/does/not/exist", "--force"]).fails(3);
    std::fs::write(home.path().join("junk"), "not a database at all").unwrap();
    home.run(&["restore", "../junk", "--force"]).fails(1);
    let done = home.run(&["restore", file, "--force", "-o", "json"]).ok().json();
    let aside = done["kept_aside"].as_str().unwrap();
    assert!(std::path::Path::new(aside).exists());
    home.start(&["--listen", "none"], &[]);
    assert_eq!(home.run(&["agent", "list", "-o", "name"]).ok().line(), id);
    home.run(&["audit", "verify"]).ok();
}

#[test]
fn an_audit_works_with_and_without_a_server_and_finds_a_changed_byte() {
    let mut home = Home::up();
    home.agent("sh", &[]);
    home.run(&["run", "sh", "shell: echo find-this-word", "--wait"]).ok();
    let online = home.run(&["audit", "verify", "-o", "json"]).ok().json();
    home.run(&["down"]).ok();
    home.ended();
    let offline = home.run(&["audit", "verify", "-o", "json"]).ok().json();
    assert_eq!(offline["ok"], true);
    assert!(offline["events"].as_u64() >= online["events"].as_u64());
    // Someone rewrites history in the file itself.
    let path = home.data().join("overmind.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let word = b"find-this-word";
    let at: Vec<usize> =
        (0..bytes.len() - word.len()).filter(|&at| &bytes[at..at + word.len()] == word).collect();
    assert!(!at.is_empty(), "the event is in the file");
    for at in at {
        bytes[at..at + word.len()].copy_from_slice(b"FIND-this-word");
    }
    std::fs::write(&path, bytes).unwrap();
    let done = home.run(&["audit", "verify"]).fails(1);
    done.says("event ").says("hint: `overmind restore`").shows("damages");
}
