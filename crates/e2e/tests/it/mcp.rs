//! Tool servers in the whole product: added, listed, called by a run, removed.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::process::Command;

use overmind_testkit::real::counterpart;
use serde_json::{Value, json};

use crate::home::Home;

const SERVER: &str = r#"
try:
    from mcp.server.mcpserver import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer
server = MCPServer("small")
@server.tool()
def add(a: int, b: int) -> int:
    "Adds two numbers."
    return a + b
server.run()
"#;

#[test]
fn routes_of_the_earlier_api_exist_and_report_errors() {
    let home = Home::up();
    assert_eq!(home.run(&["mcp", "list", "-o", "json"]).ok().json(), json!([]));
    home.run(&["mcp", "rm", "nobody"]).fails(3).says("MCP server not found");
    home.run(&["mcp", "add", "Bad Name", "--", "true"]).fails(2).says("id must be a-z");
    home.run(&["mcp", "add", "none"]).fails(2).says("neither a program nor a --url");
    // A server that does not start is not added, unless requested.
    let add = ["mcp", "add", "gone", "--", "no-such-program-anywhere"];
    home.run(&add).fails(1).says("`gone` was not added, because it does not start");
    assert_eq!(home.run(&["mcp", "list", "-o", "json"]).ok().json(), json!([]));
    let keep = ["mcp", "add", "gone", "--keep", "--", "no-such-program-anywhere"];
    home.run(&keep).fails(1).says("`gone` has failed");
    // A new configuration that does not start leaves the earlier one.
    let other = ["mcp", "add", "gone", "--", "no-such-program-either"];
    home.run(&other).fails(1).says("was not added");
    let listed = home.run(&["mcp", "list", "-o", "json"]).ok().json();
    assert_eq!((&listed[0]["id"], &listed[0]["state"]), (&json!("gone"), &json!("failed")));
    assert_eq!(listed[0]["command"], "no-such-program-anywhere");
    home.run(&["mcp", "pin", "--all"]).ok().says("no tools");
    home.run(&["mcp", "rm", "gone"]).ok();
    assert_eq!(home.run(&["mcp", "list", "-o", "json"]).ok().json(), json!([]));
}

/// The server `small`, as `mcp add` takes it: python with the packages in `root`.
fn small(home: &Home, root: &str, script: &std::path::Path) -> Value {
    let found = Command::new("python3")
        .args(["-c", "import os, sys; print(os.path.realpath(sys.executable)); print(os.path.realpath(sys.base_prefix))"])
        .output()
        .unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    let (python, prefix) = found.trim().split_once('\n').unwrap();
    let mut shown = vec![root.to_owned(), home.path().to_str().unwrap().to_owned()];
    if !prefix.starts_with("/usr") {
        shown.push(prefix.to_owned());
    }
    json!({"id": "small", "transport": {
        "kind": "stdio", "command": python, "args": [script], "read_only": shown,
        "env": {"PYTHONPATH": root},
    }})
}

#[test]
fn needs_python_a_run_calls_an_mcp_tool_and_servers_survive_a_kill() {
    let Some(root) = counterpart("MCP_PYTHON") else { return };
    let mut home = Home::up();
    let script = home.path().join("server.py");
    std::fs::write(&script, SERVER).unwrap();
    let config = small(&home, &root, &script);
    let file = home.path().join("small.json");
    std::fs::write(&file, config.to_string()).unwrap();
    home.run(&["mcp", "add", "--file", file.to_str().unwrap()]).ok().shows("mcp.small.add");

    let call = json!([
        {"calls": [{"name": "mcp.small.add", "args": {"a": 20, "b": 22}}]},
        {"text": "the sum is there"},
    ]);
    home.scripted("sums", &call, &["--tools", "mcp.small.add"]);
    let id = home.run(&["run", "sums", "add up", "-o", "name"]).ok().line().to_owned();
    // The effects of tools of other programs are unknown, so the built-in policy asks.
    let asks = home.wait_for(&id, "awaiting_approval");
    assert!(asks["prompt"].as_str().unwrap().contains("mcp.small.add"), "{asks}");
    home.run(&["approve", &id]).ok();
    home.wait_for(&id, "succeeded");
    let events = home.run(&["events", &id, "-o", "json"]).ok().json();
    let called = events.as_array().unwrap().iter().find(|e| e["type"] == "tool.called").unwrap();
    assert_eq!(called["payload_json"]["result"]["mcp"]["result"]["content"][0]["text"], "42");
    assert_eq!(called["payload_json"]["result"]["untrusted"], true);
    home.run(&["replay", &id, "--verify"]).ok();

    home.kill();
    home.start(&["--listen", "none"], &[]);
    crate::home::until("the server is there again", || {
        let listed = home.run(&["mcp", "list", "-o", "json"]).ok().json();
        (listed[0]["state"] == "ready").then_some(())
    });
    let tools = home.run(&["mcp", "tools", "small"]).ok();
    tools.shows("ready");
}

/// A tool that answers with a picture, beside that of [`SERVER`].
const PICTURE: &str = r#"
import base64
try:
    from mcp.server.mcpserver import Image
except ImportError:
    from mcp.server.fastmcp import Image
@server.tool()
def picture() -> Image:
    "A small picture."
    return Image(data=base64.b64decode("iVBORw0KGgo="), format="png")
server.run()
"#;

/// A key calls a server's tools by `/mcp`: a person is asked, by an item of the inbox, for each call; a
/// picture arrives as one, and what is structured as such.
#[test]
fn needs_python_an_http_call_waits_for_a_person_and_returns_the_result() {
    let Some(root) = counterpart("MCP_PYTHON") else { return };
    let home = Home::up();
    let script = home.path().join("server.py");
    let server = SERVER.replace("server.run()\n", "");
    std::fs::write(&script, format!("{server}{PICTURE}")).unwrap();
    let config = small(&home, &root, &script);
    let file = home.path().join("small.json");
    std::fs::write(&file, config.to_string()).unwrap();
    home.run(&["mcp", "add", "--file", file.to_str().unwrap()]).ok().shows("mcp.small.picture");
    let key = home.run(&["key", "create", "editor", "--scope", "mcp", "-o", "name"]).ok();
    let key = key.line().to_owned();
    let admin = std::fs::read_to_string(home.data().join("admin.token")).unwrap();
    let call = |name: &str, arguments: Value| {
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
            "params": {"name": name, "arguments": arguments}});
        asked(&home, &key, "POST", "/mcp", Some(&message.to_string()))["result"].clone()
    };
    // Each call waits for the item that it creates, and the item is answered.
    let answered = |name: &str, arguments: Value, answer: &str| {
        std::thread::scope(|scope| {
            let calling = scope.spawn(|| call(name, arguments.clone()));
            let item = crate::home::until("the call asks", || {
                let open = asked(&home, admin.trim(), "GET", "/api/inbox?state=open", None);
                open.as_array()?.first().cloned()
            });
            let title = item["title"].as_str().unwrap();
            assert_eq!(title, format!("Allow one call of `{name}`?"));
            home.run(&["answer", item["id"].as_str().unwrap(), answer]).ok();
            calling.join().unwrap()
        })
    };
    let sum = answered("mcp.small.add", json!({"a": 20, "b": 22}), "yes");
    assert_eq!(sum["content"][0]["text"], "42", "{sum}");
    assert_eq!(sum["structuredContent"], json!({"result": 42}), "{sum}");
    assert_eq!(sum["_meta"]["overmind/result"]["untrusted"], true);
    // The same call again is another question.
    let refused = answered("mcp.small.add", json!({"a": 20, "b": 22}), "not now");
    assert_eq!(refused["isError"], true, "{refused}");
    assert_eq!(refused["structuredContent"]["error"]["code"], "denied", "{refused}");
    let picture = answered("mcp.small.picture", json!({}), "yes");
    let image = json!({"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"});
    assert_eq!(picture["content"][0], image, "{picture}");
    // The caller of the tool is not the one who may answer.
    let own = asked(&home, &key, "GET", "/api/inbox", None);
    assert_eq!(own["status"], 403, "{own}");
    let operator = home.run(&["key", "create", "op", "--role", "operator", "-o", "name"]).ok();
    let operator = operator.line().to_owned();
    let other = home.run(&["key", "create", "other", "--role", "operator", "-o", "name"]).ok();
    let other = other.line().to_owned();
    let message = json!({"jsonrpc": "2.0", "id": 8, "method": "tools/call",
        "params": {"name": "mcp.small.add", "arguments": {"a": 1, "b": 2}}});
    std::thread::scope(|scope| {
        let calling =
            scope.spawn(|| asked(&home, &operator, "POST", "/mcp", Some(&message.to_string())));
        let item = crate::home::until("the operator's call asks", || {
            let open = asked(&home, admin.trim(), "GET", "/api/inbox?state=open", None);
            open.as_array()?.first().cloned()
        });
        let path = format!("/api/inbox/{}/answer", item["id"].as_str().unwrap());
        let yes = r#"{"decision":"answer","message":"yes"}"#;
        let refused = asked(&home, &operator, "POST", &path, Some(yes));
        assert_eq!(refused["status"], 403, "{refused}");
        asked(&home, &other, "POST", &path, Some(yes));
        let sum = calling.join().unwrap();
        assert_eq!(sum["result"]["content"][0]["text"], "3", "{sum}");
    });
    // A waiting call of a revoked key is not carried out.
    let late = std::thread::scope(|scope| {
        let calling = scope.spawn(|| call("mcp.small.add", json!({"a": 5, "b": 6})));
        let item = crate::home::until("the call asks", || {
            let open = asked(&home, admin.trim(), "GET", "/api/inbox?state=open", None);
            open.as_array()?.first().cloned()
        });
        home.run(&["key", "revoke", "editor"]).ok();
        home.run(&["answer", item["id"].as_str().unwrap(), "yes"]).ok();
        calling.join().unwrap()
    });
    assert!(!late.to_string().contains("11"), "{late}");
    let events = asked(&home, admin.trim(), "GET", "/api/events?limit=200", None);
    let kinds = |kind: &str| {
        events.as_array().unwrap().iter().filter(|event| event["type"] == kind).count()
    };
    assert_eq!((kinds("mcp.called"), kinds("mcp.denied")), (3, 1), "{events}");
}

/// The JSON that the server answers on its socket.
fn asked(home: &Home, token: &str, method: &str, path: &str, body: Option<&str>) -> Value {
    let mut curl = Command::new("curl");
    curl.args(["-s", "--max-time", "60", "-X", method, "--unix-socket"]);
    curl.arg(home.data().join("overmind.sock"));
    curl.args(["-H", &format!("Authorization: Bearer {token}")]);
    if let Some(body) = body {
        curl.args(["-H", "Content-Type: application/json", "-d", body]);
    }
    let out = curl.arg(format!("http://localhost{path}")).output().unwrap();
    serde_json::from_slice(&out.stdout).unwrap_or(Value::Null)
}
