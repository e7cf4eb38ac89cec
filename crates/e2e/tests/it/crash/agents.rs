//! The agents of the load and their actions: each one tests another promise.
//!
//! A run works in a workspace of its own. Commands that count leave a *mark*: one line
//! `<session>-<n>` in `marks/marks.txt`, where `n` is unique within the cassette. The marks are
//! the world's side of the story, which no log can make up.

use std::path::Path;

use overmind_api::{AgentCreate, AgentLimits, OnUnknown};
use serde_json::{Value, json};

/// The first content of `seed.txt` in every workspace.
pub(crate) const SEED: &str = "count: 0\n";
/// The content after one edit; a second edit would add another `+`.
pub(crate) const EDITED: &str = "count: 0+\n";
/// The file of the marks, in a workspace.
pub(crate) const MARKS: &str = "marks/marks.txt";

pub(crate) const RULES: &str = "rules";

/// Every agent of the load, with its cassette if a script plays its model.
pub(crate) fn all(tag: &str) -> Vec<(AgentCreate, Option<Value>)> {
    let tools = [
        "run_shell",
        "read_file",
        "write_file",
        "edit_file",
        "list_files",
        "store_memory",
        "search_memory",
        "save_artifact",
    ];
    let agent = |name: &str, on_unknown, script: Option<Vec<Value>>| {
        let model = script.as_ref().map_or("deterministic".into(), |_| format!("scripted:{name}"));
        let create = AgentCreate {
            name: name.into(),
            role: "A worker of the crash test.".into(),
            model,
            tools_allowed: tools.map(String::from).to_vec(),
            on_unknown: Some(on_unknown),
            ..AgentCreate::default()
        };
        (create, script.map(|turns| json!({"name": name, "turns": turns})))
    };
    let asks_approval = |(mut create, script): (AgentCreate, Option<Value>)| {
        create.approvals = Some(vec!["run_shell".into()]);
        (create, script)
    };
    let short = |(mut create, script): (AgentCreate, Option<Value>)| {
        create.limits = Some(AgentLimits { max_steps: 5, ..AgentLimits::default() });
        (create, script)
    };
    vec![
        agent(RULES, OnUnknown::Ask, None),
        agent("rules-report", OnUnknown::Report, None),
        agent("steady", OnUnknown::Ask, Some(steady(tag))),
        agent("marker", OnUnknown::Ask, Some(marker(tag))),
        agent("eager", OnUnknown::Retry, Some(marker(tag))),
        agent("frank", OnUnknown::Report, Some(marker(tag))),
        asks_approval(agent("careful", OnUnknown::Ask, Some(careful(tag)))),
        agent("curious", OnUnknown::Ask, Some(curious(tag))),
        agent("chatty", OnUnknown::Ask, Some(chatty(tag))),
        short(agent("short", OnUnknown::Ask, Some(steady(tag)))),
        agent("unlucky", OnUnknown::Ask, Some(unlucky())),
    ]
}

/// Writes the cassettes.
pub(crate) fn write_cassettes(dir: &Path, tag: &str) {
    for (agent, cassette) in all(tag) {
        let Some(cassette) = cassette else { continue };
        let path = dir.join(format!("{}.json", agent.name));
        std::fs::write(path, cassette.to_string()).expect("the cassette is written");
    }
}

/// A workspace as every run finds it.
pub(crate) fn make_workspace(dir: &Path) {
    std::fs::create_dir_all(dir).expect("a workspace");
    std::fs::write(dir.join("seed.txt"), SEED).expect("the seed is written");
}

/// The n-th mark, by a command that takes its time before or after it.
fn mark(n: u32, before: &str, after: &str, tag: &str) -> Value {
    let command = format!("{before}echo \"$OVERMIND_SESSION-{n}\" >> marks.txt{after} # {tag}");
    json!({"name": "run_shell", "args": {
        "command": command, "allow_write": true, "write_subdir": "marks",
    }})
}

/// The number in the command of a mark, wherever the command is quoted.
pub(crate) fn mark_number(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("OVERMIND_SESSION-")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

fn call(name: &str, args: &Value) -> Value {
    json!({"name": name, "args": args})
}

fn turn(calls: Vec<Value>) -> Value {
    json!({"calls": calls})
}

/// Every kind of effect: parallel pure ones, idempotent ones, once ones, several in one turn.
fn steady(tag: &str) -> Vec<Value> {
    let path = json!({"path": "seed.txt"});
    vec![
        turn(vec![
            call("list_files", &json!({})),
            call("read_file", &path),
            call("search_memory", &json!({"collection": "crash", "query": "note"})),
            call("save_artifact", &json!({"name": "early.txt", "content": "kept early\n"})),
        ]),
        turn(vec![mark(1, "", "", tag)]),
        turn(vec![
            call("write_file", &json!({"path": "out/out.txt", "content": "written\n"})),
            call("edit_file", &json!({"path": "seed.txt", "old": "count: 0", "new": "count: 0+"})),
            call("store_memory", &json!({"collection": "crash", "text": "a steady note"})),
            call("save_artifact", &json!({"name": "out/result.txt", "content": "kept\n"})),
        ]),
        turn(vec![mark(2, "", "; sleep 0.05", tag), mark(3, "sleep 0.05; ", "", tag)]),
        json!({"text": "All of it is done."}),
    ]
}

/// Commands above all, with a pure and an idempotent call among them.
fn marker(tag: &str) -> Vec<Value> {
    vec![
        turn(vec![
            mark(1, "", "; sleep 0.03", tag),
            call("read_file", &json!({"path": "seed.txt"})),
            mark(2, "sleep 0.03; ", "", tag),
            call("store_memory", &json!({"collection": "crash", "text": "a marker's note"})),
            call("save_artifact", &json!({"name": "mark.txt", "content": "marked\n"})),
        ]),
        turn(vec![
            call("run_shell", &json!({"command": format!("exit 3 # {tag}")})),
            mark(3, "", "", tag),
        ]),
        json!({"text": "Marked."}),
    ]
}

/// Every command waits for a human's consent.
fn careful(tag: &str) -> Vec<Value> {
    vec![
        turn(vec![mark(1, "", "; sleep 0.02", tag)]),
        turn(vec![call("read_file", &json!({"path": "seed.txt"})), mark(2, "", "", tag)]),
        turn(vec![call("final_answer", &json!({"message": "With consent."}))]),
    ]
}

/// Asks its human, alone and in the middle of other calls.
fn curious(tag: &str) -> Vec<Value> {
    vec![
        turn(vec![call("ask_user", &json!({"message": "Which way?"}))]),
        turn(vec![
            mark(1, "", "", tag),
            call("ask_user", &json!({"message": "And now?"})),
            call("write_file", &json!({"path": "out.txt", "content": "answered\n"})),
        ]),
        json!({"text": "Thank you."}),
    ]
}

/// Streams for so long that most crashes find it in a model's answer.
fn chatty(tag: &str) -> Vec<Value> {
    let words = "one word after the other until somebody pulls the plug ".repeat(3);
    vec![
        json!({"reasoning": words, "text": words, "calls": [mark(1, "", "", tag)], "delay_ms": 120}),
        json!({"text": words, "delay_ms": 150}),
    ]
}

/// Its model is never reached: a human gives up in the end.
fn unlucky() -> Vec<Value> {
    let fail = json!({"code": "overloaded", "message": "busy", "transient": true});
    vec![json!({"fail": fail})]
}
