//! Servers of tools in the whole product: added, listed, called by a run, gone.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::process::Command;

use overmind_testkit::real::counterpart;
use serde_json::json;

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
fn the_routes_of_the_earlier_api_are_there_and_name_what_is_wrong() {
    let home = Home::up();
    assert_eq!(home.run(&["mcp", "list", "-o", "json"]).ok().json(), json!([]));
    home.run(&["mcp", "rm", "nobody"]).fails(3).says("MCP server not found");
    home.run(&["mcp", "add", "Bad Name", "--", "true"]).fails(2).says("id must be a-z");
    home.run(&["mcp", "add", "none"]).fails(2).says("neither a program nor a --url");
    // It is added, and what is wrong with it is told.
    let gone = home.run(&["mcp", "add", "gone", "--", "no-such-program-anywhere"]).fails(1);
    gone.says("`gone` has failed");
    let listed = home.run(&["mcp", "list", "-o", "json"]).ok().json();
    assert_eq!((&listed[0]["id"], &listed[0]["state"]), (&json!("gone"), &json!("failed")));
    assert_eq!(listed[0]["command"], "no-such-program-anywhere");
    home.run(&["mcp", "rm", "gone"]).ok();
    assert_eq!(home.run(&["mcp", "list", "-o", "json"]).ok().json(), json!([]));
}

#[test]
fn needs_python_a_run_calls_a_tool_of_a_server_and_servers_outlive_a_kill() {
    let Some(root) = counterpart("MCP_PYTHON") else { return };
    let mut home = Home::up();
    let found = Command::new("python3")
        .args(["-c", "import os, sys; print(os.path.realpath(sys.executable)); print(os.path.realpath(sys.base_prefix))"])
        .output()
        .unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    let (python, prefix) = found.trim().split_once('\n').unwrap();
    let script = home.path().join("server.py");
    std::fs::write(&script, SERVER).unwrap();
    let mut shown = vec![root.clone(), home.path().to_str().unwrap().to_owned()];
    if !prefix.starts_with("/usr") {
        shown.push(prefix.to_owned());
    }
    let config = json!({"id": "small", "transport": {
        "kind": "stdio", "command": python, "args": [script], "read_only": shown,
        "env": {"PYTHONPATH": root},
    }});
    let file = home.path().join("small.json");
    std::fs::write(&file, config.to_string()).unwrap();
    home.run(&["mcp", "add", "--file", file.to_str().unwrap()]).ok().shows("mcp.small.add");

    let call = json!([
        {"calls": [{"name": "mcp.small.add", "args": {"a": 20, "b": 22}}]},
        {"text": "the sum is there"},
    ]);
    home.scripted("sums", &call, &["--tools", "mcp.small.add"]);
    let id = home.run(&["run", "sums", "add up", "-o", "name"]).ok().line().to_owned();
    // What a tool of another program does is not known here, so the built-in policy asks.
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
