//! The mesh in the whole product: agents with their own tokens, kills, changed files.

use std::io::{BufRead as _, Read as _};
use std::process::Command;

use serde_json::{Value, json};

use crate::commands::Commands;
use crate::home::{Done, until};
use crate::program::program;

/// Tells its token, then every line that it reads.
const AGENT: &str = "while read line; do echo \"heard $line\"; done";

fn agent(home: &Commands, name: &str) {
    agent_with(home, name, &[]);
}

/// An agent whose list names these tools.
fn agent_with(home: &Commands, name: &str, tools: &[&str]) {
    let command = json!({"provider": "raw", "argv": ["sh", "-c", AGENT], "kind": "session"});
    let agent = json!({
        "name": name, "role": "talks", "model": "command", "sandbox": "none", "command": command,
        "tools_allowed": tools,
    });
    let file = home.0.path().join("agent.json");
    std::fs::write(&file, agent.to_string()).expect("the home can be written");
    home.run(&["agent", "create", "--file", file.to_str().expect("a path")]).ok();
}

/// A run of the agent that lives, and its token.
fn at_work(home: &Commands, name: &str) -> String {
    home.run(&["run", "--name", name, name]).ok();
    home.variable(name, "OVERMIND_TOKEN")
}

fn permit(home: &Commands, permissions: &Value) {
    use std::os::unix::fs::DirBuilderExt as _;
    let file = home.0.data().join("permissions.json");
    let mut dir = std::fs::DirBuilder::new();
    dir.recursive(true).mode(0o700).create(home.0.data()).expect("the data directory");
    std::fs::write(file, json!({"permissions": permissions}).to_string()).expect("it is written");
}

fn as_agent(home: &Commands, token: &str, args: &[&str]) -> Done {
    home.0.run_env(&[("OVERMIND_TOKEN", token)], args)
}

/// A request of a plain HTTP client.
fn curl(
    home: &Commands,
    token: &str,
    method: &str,
    path: &str,
    body: Option<&str>,
) -> (u16, Value) {
    let socket = home.0.data().join("overmind.sock");
    let mut command = Command::new("curl");
    command.args(["-s", "--max-time", "20", "--unix-socket", socket.to_str().expect("a path")]);
    command.args(["-X", method, "-w", "\n%{http_code}"]);
    command.args(["-H", &format!("Authorization: Bearer {token}")]);
    if let Some(body) = body {
        command.args(["-H", "Content-Type: application/json", "-d", body]);
    }
    let out = command.arg(format!("http://localhost{path}")).output().expect("curl runs");
    let text = String::from_utf8(out.stdout).expect("it is text");
    let (body, status) = text.rsplit_once('\n').expect("a status");
    (status.parse().expect("a number"), serde_json::from_str(body).unwrap_or(Value::Null))
}

#[test]
fn two_agents_share_state_and_messages_and_cannot_impersonate_each_other() {
    let mut home = Commands(crate::home::Home::new());
    permit(
        &home,
        &json!({
            "ann": {"can_message": ["bob"], "blackboard_write": ["tasks/*"],
                    "blackboard_read": ["tasks/**"], "can_publish": ["work.**"]},
            "bob": {"can_subscribe": ["work.*"], "on_message": "queue"},
        }),
    );
    home.0.start(&["--listen", "none"], &[]);
    agent(&home, "ann");
    agent(&home, "bob");
    let (ann, bob) = (at_work(&home, "ann"), at_work(&home, "bob"));

    let put = |key: &str, token: &str| {
        curl(
            &home,
            token,
            "PUT",
            &format!("/mesh/blackboard/{key}?agent_id=ann"),
            Some(r#"{"n":1}"#),
        )
    };
    let (status, entry) = put("tasks/1", &ann);
    assert_eq!((status, &entry["version"], &entry["written_by"]), (200, &json!(1), &json!("ann")));
    let (status, denied) = put("tasks/1/deep", &ann);
    assert_eq!(status, 403);
    assert!(denied["error"].as_str().is_some_and(|text| text.contains("Agent ann cannot write")));
    let (status, other) = put("tasks/1", &bob);
    assert_eq!(status, 403, "{other}");
    assert!(other["error"].as_str().is_some_and(|text| text.contains(
        "the token belongs to \
        `bob`"
    )));
    let listed = curl(&home, &ann, "GET", "/mesh/blackboard/?prefix=tasks/&agent_id=ann", None);
    assert_eq!((listed.0, listed.1.as_array().map(Vec::len)), (200, Some(1)));
    let (status, _) = curl(&home, &bob, "GET", "/mesh/blackboard/tasks/1", None);
    assert_eq!(status, 403);
    let (status, _) = curl(&home, "ovs_no", "GET", "/mesh/blackboard/tasks/1", None);
    assert_eq!(status, 401);

    as_agent(&home, &bob, &["subscribe-topic", "work.*"]).ok();
    as_agent(&home, &bob, &["subscribe-topic", "**"]).fails(6).says("cannot subscribe");
    let done =
        as_agent(&home, &ann, &["publish", "work.done", "{\"a\":1}", "-o", "json"]).ok().json();
    assert_eq!(done["subscribers_notified"], 1);
    let sent = as_agent(&home, &ann, &["mail", "send", "bob", "hello", "-o", "json"]).ok().json();
    as_agent(&home, &bob, &["mail", "send", "ann", "hello"])
        .fails(6)
        .says("bob cannot message ann");

    // Killed between publish and acknowledgement: the same messages are delivered once more.
    let read = |home: &Commands| as_agent(home, &bob, &["mail", "read", "-o", "json"]).ok().json();
    let first = read(&home);
    let ids: Vec<String> = first
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["id"].as_str().expect("an id").to_owned())
        .collect();
    assert_eq!((ids.len(), &first[1]["id"]), (2, &sent["id"]));
    home.0.kill();
    home.0.start(&["--listen", "none"], &[]);
    assert_eq!(read(&home), json!([]), "bob holds them still");
    let mut give_back = vec!["mail", "requeue", "--agent", "bob"];
    give_back.extend(ids.iter().map(String::as_str));
    home.run(&give_back).ok();
    let again = read(&home);
    assert_eq!(again[0]["id"], first[0]["id"]);
    assert_eq!((again[1]["id"].clone(), &again[1]["attempt"]), (first[1]["id"].clone(), &json!(2)));
    let mut ack = vec!["mail", "ack"];
    ack.extend(ids.iter().map(String::as_str));
    as_agent(&home, &bob, &ack).ok();
    as_agent(&home, &bob, &ack).fails(3);
    assert_eq!(read(&home), json!([]));

    home.run(&["can", "ann", "message", "bob"]).ok();
    home.run(&["can", "ann", "message", "carl"]).fails(6).shows("acl allow");
    home.run(&["acl", "show", "ann"]).ok().shows("message bob");
    home.run(&["kill", "ann", "bob"]).ok();
    home.check();
}

#[test]
fn a_changed_permission_file_applies_and_a_broken_one_does_not() {
    let mut home = Commands(crate::home::Home::new());
    home.0.start(&["--listen", "none"], &[]);
    let can = |home: &Commands| home.run(&["can", "ann", "read", "notes/a"]).code;
    assert_eq!(can(&home), 6);
    permit(&home, &json!({"default": {"blackboard_read": ["notes/*"]}}));
    until("the file is read", || (can(&home) == 0).then_some(()));
    let file = home.0.data().join("permissions.json");
    std::fs::write(&file, r#"{"permissions": {"default": {"blackbord_read": []}}}"#)
        .expect("it is written");
    until("the mistake is told", || home.0.log().contains("blackbord_read").then_some(()));
    assert_eq!(can(&home), 0, "the last one holds");
    home.run(&["acl", "allow", "ann", "message", "bob"]).ok();
    assert_eq!(can(&home), 6, "an own entry takes the place of the default");
    home.run(&["acl", "revoke", "ann", "message", "carl"]).fails(3);
    home.run(&["acl", "rm", "ann"]).ok();
    assert_eq!(can(&home), 0);
    home.0.kill();
    let refused = home.run(&["up", "--listen", "none"]).fails(1);
    refused.says("permissions.json is not a valid permission matrix");
}

#[test]
fn messages_start_a_command_and_keys_expire_are_watched_and_paged() {
    let mut home = Commands(crate::home::Home::new());
    permit(&home, &json!({"default": {"can_message": ["*"]}}));
    home.0.start(&["--listen", "none"], &[]);
    agent(&home, "ann");
    at_work(&home, "ann");
    home.run(&["mail", "send", "ann", "{\"say\":\"good morning\"}"]).ok();
    home.says("ann", "good morning");
    let waiting = home.run(&["mesh", "agents", "-o", "json"]).ok().json();
    until("it was taken", || {
        let now = home.run(&["mesh", "agents", "-o", "json"]).ok().json();
        (now[0]["waiting"] == 0).then_some(())
    });
    assert_eq!(waiting[0]["name"], "ann");

    home.run(&["mesh", "put", "brief/1", "1", "--ttl", "1"]).ok();
    for n in 0..5 {
        home.run(&["mesh", "put", &format!("long/{n}"), "[1]", "--new"]).ok();
    }
    home.run(&["mesh", "put", "long/1", "2", "--new"]).fails(5).says("stands at version 1");
    until("it has expired", || (home.run(&["mesh", "get", "brief/1"]).code == 3).then_some(()));
    let token = std::fs::read_to_string(home.0.data().join("admin.token")).expect("a token");
    until("the sweep has told of it", || {
        let (_, log) = curl(&home, token.trim(), "GET", "/api/events?limit=50", None);
        log.to_string().contains("blackboard.expired").then_some(())
    });
    assert_eq!(home.run(&["mesh", "list", "long/", "-o", "name"]).ok().out.lines().count(), 5);
    let (status, page) =
        curl(&home, token.trim(), "GET", "/mesh/blackboard?prefix=long/&limit=2", None);
    assert_eq!((status, page[1]["key"].clone()), (200, json!("long/1")));
    let (_, next) = curl(
        &home,
        token.trim(),
        "GET",
        "/mesh/blackboard?prefix=long/&limit=2&cursor=6c6f6e672f31",
        None,
    );
    assert_eq!(next[0]["key"], "long/2");
    home.run(&["mesh", "rm", "long/0"]).ok();
    home.run(&["mesh", "rm", "long/0"]).fails(3);
    // Changes of a key are listed with their author, also of a deleted key.
    let shown = home.run(&["mesh", "history", "long/0"]).ok().out;
    let rows: Vec<Vec<&str>> = shown.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["VERSION", "CHANGE", "BY", "AGE"]);
    assert_eq!(rows[1][..3], ["1", "deleted", "admin"], "{shown}");
    assert_eq!(rows[2][..3], ["1", "put", "admin"], "{shown}");
    let past = home.run(&["mesh", "history", "brief/1", "-o", "json"]).ok().json();
    let changes = past["changes"].as_array().expect("a list").iter();
    let changes: Vec<_> = changes.map(|one| (one["change"].clone(), one["by"].clone())).collect();
    assert_eq!(changes, [(json!("expired"), json!(null)), (json!("put"), json!("admin"))]);
    assert_eq!(past["truncated"], false);
    home.run(&["mesh", "history", "long/9"]).fails(3).says("Key not found: long/9");
    home.run(&["kill", "ann"]).ok();
    home.check();
}

/// The calls of a client of the official SDK at a run's endpoint, over HTTP and over pipes.
const SDK: &str = r#"
import asyncio, json, os, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

async def use(session):
    tools = {tool.name for tool in (await session.list_tools()).tools}
    assert {"write_shared_state", "read_messages", "spawn_agent", "save_artifact"} <= tools, tools
    assert "run_shell" not in tools, tools
    async def call(tool, /, **args):
        done = await session.call_tool(tool, args)
        failed = getattr(done, "isError", None)
        failed = done.is_error if failed is None else failed
        return failed, json.loads(done.content[0].text)
    failed, done = await call("write_shared_state", key="tasks/sdk", value={"by": "sdk"})
    assert not failed and done["written"], done
    failed, done = await call("read_shared_state", key="tasks/sdk")
    assert not failed and done["value"] == {"by": "sdk"} and done["written_by"] == "ann", done
    failed, done = await call("read_shared_state", key="secret/x")
    assert failed and done["error"]["code"] == "denied", done
    failed, done = await call("send_message", to="ann", message="to myself")
    assert not failed and done["sent"], done
    failed, done = await call("write_shared_state", key="tasks/sdk")
    assert failed and done["error"]["code"] == "bad_args", done
    failed, done = await call("save_artifact", name="sdk/notes.md", content="By the SDK\n")
    assert not failed and done["saved"] and done["shared"] is None, done
    failed, done = await call("save_artifact", name="sdk/raw.bin", content_base64="AP8B")
    assert not failed and done["size"] == 3 and not done["text"], done
    failed, done = await call("list_artifacts")
    assert not failed and [one["name"] for one in done["artifacts"]][0] == "sdk/raw.bin", done
    failed, done = await call("read_artifact", name="sdk/notes.md")
    assert not failed and done["content"] == "By the SDK\n" and done["untrusted"], done
    failed, done = await call("read_artifact", name="sdk/raw.bin", encoding="base64", offset=1)
    assert not failed and done["content_base64"] == "/wE=", done
    failed, done = await call("save_artifact", name="../up", content="x")
    assert failed and done["error"]["code"] == "bad_args", done
    failed, done = await call("read_artifact", name="x", agent="bob")
    assert failed and done["error"]["code"] == "denied", done
    failed, done = await call("cost_left")
    assert not failed and done["limits"][0]["used_tokens"] == 0, done
    assert done["left_tokens"] == 5000 and done["left_microusd"] is None, done
    failed, done = await call("ask_people", question="May I?\nIt is about the roof.")
    assert not failed and done["state"] == "open" and not done["answered"], done
    print("asked", done["question_id"], flush=True)
    failed, done = await call("read_answer", question_id=done["question_id"], wait_seconds=30)
    assert not failed and done["answered"] and done["answer"] == "You may.", done
    failed, done = await call("read_answer", question_id="inb_" + 32 * "0")
    assert failed and done["error"]["code"] == "not_found", done

async def begin(session, modern):
    await (session.discover() if modern else session.initialize())
    await use(session)

async def pipes(modern):
    env = {name: os.environ[name] for name in ("OVERMIND_TOKEN", "OVERMIND_DATA", "HOME", "PATH")}
    server = StdioServerParameters(command=sys.argv[1], args=["mcp", "serve"], env=env)
    async with stdio_client(server) as (read, write):
        async with ClientSession(read, write) as session:
            await begin(session, modern)

async def http(modern):
    import httpx2
    from mcp.client.streamable_http import streamable_http_client
    headers = {"Authorization": "Bearer " + os.environ["OVERMIND_TOKEN"]}
    async with httpx2.AsyncClient(headers=headers) as client:
        async with streamable_http_client(sys.argv[2] + "/mcp", http_client=client) as streams:
            async with ClientSession(streams[0], streams[1]) as session:
                await begin(session, modern)

for modern in (False, True):
    asyncio.run(pipes(modern))
    asyncio.run(http(modern))
print("all fine")
"#;

#[test]
fn needs_python_mcp_the_official_sdk_uses_a_runs_own_endpoint() {
    let Some(packages) = overmind_testkit::real::counterpart("MCP_PYTHON") else { return };
    let mut home = Commands(crate::home::Home::new());
    permit(
        &home,
        &json!({"ann": {"blackboard_write": ["tasks/*"], "blackboard_read": ["tasks/*"],
                        "can_message": ["ann"], "on_message": "queue"}}),
    );
    let server = home.0.start(&["--listen", "127.0.0.1:0"], &[]);
    let url = server["url"].as_str().expect("it listens").to_owned();
    agent(&home, "ann");
    home.run(&["budget", "set", "agent:ann", "--per", "day", "--tokens", "5000"]).ok();
    let token = at_work(&home, "ann");
    let script = home.0.path().join("sdk.py");
    std::fs::write(&script, SDK).expect("the home can be written");
    let mut done = Command::new("python3")
        .arg(&script)
        .args([program(), &url])
        .env("PYTHONPATH", packages)
        .env("OVERMIND_TOKEN", &token)
        .env("OVERMIND_DATA", home.0.data())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("python runs");
    // Somebody answers each of its questions.
    let mut lines = Vec::new();
    for line in std::io::BufReader::new(done.stdout.take().expect("piped")).lines() {
        let line = line.expect("text");
        if let Some(id) = line.strip_prefix("asked ") {
            home.run(&["answer", id, "You may."]).ok();
        }
        lines.push(line);
    }
    let mut told = String::new();
    done.stderr.take().expect("piped").read_to_string(&mut told).expect("text");
    done.wait().expect("it ends");
    assert_eq!(lines.last().map(String::as_str), Some("all fine"), "{told}");
    // An unanswered question is withdrawn with its run.
    let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                     "params": {"name": "ask_people", "arguments": {"question": "Still there?"}}});
    let (_, asked) = curl(&home, &token, "POST", "/mcp", Some(&ask.to_string()));
    let id = asked["result"]["structuredContent"]["question_id"].clone();
    home.run(&["inbox"]).ok().shows("Still there?");
    home.run(&["kill", "ann"]).ok();
    let admin = std::fs::read_to_string(home.0.data().join("admin.token")).expect("a token");
    until("it is withdrawn", || {
        let path = format!("/api/inbox/{}", id.as_str().unwrap_or_default());
        let (_, item) = curl(&home, admin.trim(), "GET", &path, None);
        (item["state"] == "withdrawn").then_some(())
    });
    home.check();
}

#[test]
fn the_mcp_endpoint_belongs_to_its_run_and_speaks_both_revisions() {
    let mut home = Commands(crate::home::Home::new());
    home.0.start(&["--listen", "none"], &[]);
    agent(&home, "ann");
    let token = at_work(&home, "ann");
    let admin = std::fs::read_to_string(home.0.data().join("admin.token")).expect("a token");
    let ask = |token: &str, method: &str, params: Value| {
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        curl(&home, token, "POST", "/mcp", Some(&message.to_string()))
    };
    assert_eq!(ask(admin.trim(), "tools/list", json!({})).0, 200, "a key has tools of its own");
    let (_, old) = ask(&token, "initialize", json!({"protocolVersion": "2025-11-25"}));
    assert_eq!(old["result"]["protocolVersion"], "2025-11-25");
    let (_, new) = ask(&token, "server/discover", json!({}));
    assert_eq!(new["result"]["supportedVersions"], json!(["2026-07-28", "2025-11-25"]));
    let (status, unknown) = ask(&token, "prompts/list", json!({}));
    assert_eq!((status, &unknown["error"]["code"]), (404, &json!(-32601)));
    let meta = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2031-01-01"}});
    let (status, other) = ask(&token, "tools/list", meta);
    assert_eq!((status, &other["error"]["code"]), (400, &json!(-32022)));
    let call = json!({"name": "write_shared_state", "arguments": {"key": "a", "value": 1}});
    let (status, denied) = ask(&token, "tools/call", call);
    assert_eq!((status, &denied["result"]["isError"]), (200, &json!(true)));
    let error = &denied["result"]["structuredContent"]["error"];
    assert_eq!(error["code"], "denied");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("acl allow")), "{error}");
    let (status, _) = curl(
        &home,
        &token,
        "POST",
        "/mcp",
        Some(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
    );
    assert_eq!(status, 202);
    home.run(&["kill", "ann"]).ok();
    home.status("ann", "canceled");
    assert_eq!(ask(&token, "tools/list", json!({})).0, 401, "its token ended with it");
    home.check();
}

/// Names of the tools in an answer.
fn offered(answer: &Value) -> Vec<&str> {
    let tools = answer["result"]["tools"].as_array().expect("a list").iter();
    tools.map(|tool| tool["name"].as_str().expect("a name")).collect()
}

#[test]
fn a_key_with_scope_mcp_uses_tools_outside_of_a_run() {
    let mut home = Commands(crate::home::Home::new());
    permit(&home, &json!({}));
    let policy = "version = 1\n[[rule]]\nid = \"quiet\"\nverdict = \"deny\"\ntools = [\"publish_event\"]\n\
                  agents = [\"editor\"]\nreason = \"no events from there\"\n";
    std::fs::write(home.0.data().join("policy.toml"), policy).expect("it is written");
    home.0.start(&["--listen", "none"], &[]);
    let key = |name: &str, args: &[&str]| {
        let args = [&["key", "create", name, "-o", "name"], args].concat();
        home.run(&args).ok().line().to_owned()
    };
    let editor = key("editor", &["--scope", "mcp"]);
    let ask = |token: &str, method: &str, params: Value| {
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        curl(&home, token, "POST", "/mcp", Some(&message.to_string()))
    };
    for scope in [["--scope", "model"], ["--scope", "runs"], ["--role", "viewer"]] {
        let token = key(scope[1], &scope);
        assert_eq!(ask(&token, "tools/list", json!({})).0, 403, "{scope:?}");
    }
    assert_eq!(curl(&home, &editor, "GET", "/mesh/blackboard", None).0, 403, "and nothing else");
    let (_, list) = ask(&editor, "tools/list", json!({}));
    let names = offered(&list);
    assert!(names.contains(&"write_shared_state") && names.contains(&"spawn_agent"), "{names:?}");
    let of_runs = ["run_shell", "read_file", "read_messages", "ask_people", "save_artifact"];
    assert!(!names.iter().any(|name| of_runs.contains(name)), "{names:?}");

    let call = |name: &str, arguments: Value| {
        ask(&editor, "tools/call", json!({"name": name, "arguments": arguments}))
    };
    let (status, done) = call("write_shared_state", json!({"key": "tasks/1", "value": 7}));
    assert_eq!((status, &done["result"]["isError"]), (200, &json!(false)), "{done}");
    let (_, read) = call("read_shared_state", json!({"key": "tasks/1"}));
    let read = &read["result"]["structuredContent"];
    assert_eq!((&read["value"], &read["written_by"]), (&json!(7), &json!("editor")), "{read}");
    let (_, denied) = call("publish_event", json!({"topic": "a.b", "data": 1}));
    let error = &denied["result"]["structuredContent"]["error"];
    assert_eq!(error["code"], "denied", "{denied}");
    let (_, unknown) = call("run_shell", json!({"command": "id"}));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");

    let admin = std::fs::read_to_string(home.0.data().join("admin.token")).expect("a token");
    let (_, events) = curl(&home, admin.trim(), "GET", "/api/events?limit=200", None);
    let told = |kind: &str| {
        let all = events["items"].as_array().or(events.as_array()).expect("a list").iter();
        let payload = |event: &Value| event["payload_json"]["tool_name"].clone();
        all.filter(|event| event["type"] == kind).map(payload).collect::<Vec<_>>()
    };
    // The newest first.
    assert_eq!(told("mcp.called"), ["read_shared_state", "write_shared_state"], "{events}");
    assert_eq!(told("mcp.denied"), ["publish_event"]);
    home.check();
}

#[test]
fn a_command_agent_is_offered_the_tools_of_its_list() {
    let mut home = Commands(crate::home::Home::new());
    home.0.start(&["--listen", "none"], &[]);
    agent_with(&home, "ann", &["list_files"]);
    let token = at_work(&home, "ann");
    let ask = |method: &str, params: Value| {
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        curl(&home, &token, "POST", "/mcp", Some(&message.to_string())).1
    };
    let list = ask("tools/list", json!({}));
    let names = offered(&list);
    assert!(names.contains(&"list_files") && !names.contains(&"read_file"), "{names:?}");
    let done = ask("tools/call", json!({"name": "list_files", "arguments": {}}));
    assert_eq!(done["result"]["isError"], false, "{done}");
    home.run(&["kill", "ann"]).ok();
    home.check();
}
