//! Servers that others wrote. `cargo xtask test` installs them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use overmind_core::live::LivePiece;
use overmind_core::sandbox::SandboxLevel;
use overmind_mcp::{SameNames, Scope, ServerConfig, Transport, Value};
use overmind_testkit::real::counterpart;
use serde_json::json;

use crate::support::{Bench, state};

/// A program that reads the directories of `read_only`.
fn program(id: &str, argv: &[&str], read_only: Vec<PathBuf>) -> ServerConfig {
    let (command, args) = argv.split_first().unwrap();
    ServerConfig::new(
        id,
        Transport::Stdio {
            command: (*command).to_owned(),
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            env: BTreeMap::new(),
            sandbox: SandboxLevel::Namespace,
            read_only,
            writes_workspace: false,
        },
    )
}

fn package(root: &Path, name: &str) -> String {
    let file = root.join("node_modules/@modelcontextprotocol").join(name).join("dist/index.js");
    file.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn needs_node_every_feature_works_over_pipes_in_the_sandbox() {
    let Some(root) = counterpart("MCP_NODE").map(PathBuf::from) else { return };
    let bench = Bench::new().await;
    let script = package(&root, "server-everything");
    let config = program("everything", &["node", &script, "stdio"], vec![root]);
    let view = bench.servers.put(config).await.unwrap();
    assert_eq!(view.state.as_str(), "ready", "{view:?}");
    assert_eq!(view.protocol, "2025-11-25");
    for tool in &view.tools {
        assert_eq!(tool.state.as_str(), "ready", "{tool:?}");
    }
    let said = bench.text("mcp.everything.echo", json!({"message": "hello"})).await;
    assert_eq!(said, "Echo: hello");
    let sum = bench.text("mcp.everything.get-sum", json!({"a": 2, "b": 3})).await;
    assert!(sum.contains('5'), "{sum}");
    let image = bench.call("mcp.everything.get-tiny-image", json!({})).await;
    let path = bench.dir.path().join("ws").join(image["artifacts"][0].as_str().unwrap());
    assert_eq!(&std::fs::read(path).unwrap()[1..4], b"PNG");
    let long = json!({"duration": 1, "steps": 2});
    let long = bench.call("mcp.everything.trigger-long-running-operation", long).await;
    assert_eq!(long["ok"], true, "{long}");
    let reports = bench.progress.lock().unwrap().clone();
    let of_two = |report: &LivePiece| matches!(report, LivePiece::Progress { total, .. } if *total == Some(2.0));
    assert!(reports.iter().any(of_two), "{reports:?}");
    let structured = json!({"location": "New York"});
    let structured = bench.call("mcp.everything.get-structured-content", structured).await;
    assert!(structured["mcp"]["result"]["structuredContent"].is_object(), "{structured}");
    let wrong = bench.call("mcp.everything.echo", json!({})).await;
    assert_eq!(wrong["ok"], false, "{wrong}");
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn needs_node_a_sessions_filesystem_server_sees_only_that_session() {
    let Some(root) = counterpart("MCP_NODE").map(PathBuf::from) else { return };
    let bench = Bench::new().await;
    std::fs::write(bench.dir.path().join("ws/note.txt"), "from the workspace").unwrap();
    let script = package(&root, "server-filesystem");
    let mut config = program("files", &["node", &script, "/workspace"], vec![root]);
    config.scope = Scope::Session;
    config.same_names = SameNames::Accept;
    if let Transport::Stdio { writes_workspace, .. } = &mut config.transport {
        *writes_workspace = true;
    }
    let view = bench.servers.put(config).await.unwrap();
    assert_eq!(state(&view, "read_text_file"), "ready", "{view:?}");
    let read = json!({"path": "/workspace/note.txt"});
    assert_eq!(bench.text("mcp.files.read_text_file", read).await, "from the workspace");
    let write = json!({"path": "/workspace/new.txt", "content": "from the server"});
    bench.call("mcp.files.write_file", write).await;
    let written = std::fs::read_to_string(bench.dir.path().join("ws/new.txt")).unwrap();
    assert_eq!(written, "from the server");
    let outside = bench.call("mcp.files.read_text_file", json!({"path": "/etc/passwd"})).await;
    assert_eq!(outside["ok"], false, "{outside}");
    bench.servers.shutdown().await;
}

/// Ended with the test.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn needs_node_every_feature_works_over_http() {
    let Some(root) = counterpart("MCP_NODE").map(PathBuf::from) else { return };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let bench = Bench::new().await;
    // The server takes a number and no descriptor: one that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut served = Command::new("node")
        .args([&package(&root, "server-everything"), "streamableHttp"])
        .env("PORT", port.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = served.stderr.take().unwrap();
    let _served = Served(served);
    let listening = BufReader::new(stderr).lines().map_while(Result::ok);
    let mut said = Vec::new();
    for line in listening {
        said.push(line);
        if said.last().unwrap().contains("listening") {
            break;
        }
    }
    let url = format!("http://127.0.0.1:{port}/mcp");
    let header = Value::Secret { secret: "SECRET".into() };
    let transport =
        Transport::Http { url, headers: BTreeMap::from([("X-Key".to_owned(), header)]) };
    let view = bench.servers.put(ServerConfig::new("web", transport)).await.unwrap();
    assert_eq!(view.state.as_str(), "ready", "{view:?} {said:?}");
    let said = bench.text("mcp.web.echo", json!({"message": "over http"})).await;
    assert_eq!(said, "Echo: over http");
    bench.servers.shutdown().await;
}

const SMALL: &str = r#"
try:
    from mcp.server.mcpserver import MCPServer, Context
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer, Context
mcp = MCPServer("small")
@mcp.tool()
def add(a: int, b: int) -> int:
    "Adds two numbers."
    return a + b
@mcp.tool()
def refuse() -> str:
    "Always fails."
    raise ValueError("not today")
@mcp.tool()
async def count(to: int, ctx: Context) -> str:
    "Counts, with progress."
    for n in range(to):
        await ctx.report_progress(n + 1, to)
    return "counted"
mcp.run()
"#;

#[tokio::test]
async fn needs_python_a_python_server_is_called() {
    let Some(root) = counterpart("MCP_PYTHON").map(PathBuf::from) else { return };
    let bench = Bench::new().await;
    let found = Command::new("python3")
        .args(["-c", "import os, sys; print(os.path.realpath(sys.executable)); print(os.path.realpath(sys.base_prefix))"])
        .output()
        .unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    let (python, prefix) = found.trim().split_once('\n').unwrap();
    let mut shown = vec![root.clone()];
    if !prefix.starts_with("/usr") {
        shown.push(PathBuf::from(prefix));
    }
    let script = bench.dir.path().join("server.py");
    std::fs::write(&script, SMALL).unwrap();
    shown.push(bench.dir.path().to_owned());
    let mut config = program("small", &[python, script.to_str().unwrap()], shown);
    if let Transport::Stdio { env, .. } = &mut config.transport {
        env.insert("PYTHONPATH".into(), Value::Plain(root.display().to_string()));
    }
    let view = bench.servers.put(config).await.unwrap();
    assert_eq!(view.state.as_str(), "ready", "{view:?}");
    let sum = bench.call("mcp.small.add", json!({"a": 20, "b": 22})).await;
    assert_eq!(sum["mcp"]["result"]["content"][0]["text"], "42", "{sum}");
    let refused = bench.call("mcp.small.refuse", json!({})).await;
    assert_eq!(refused["error"]["code"], "mcp_tool_error", "{refused}");
    // The library names the tool, and since its version 2 keeps the exception to itself.
    assert!(refused["error"]["message"].as_str().unwrap().contains("refuse"), "{refused}");
    assert_eq!(bench.text("mcp.small.count", json!({"to": 3})).await, "counted");
    assert!(!bench.progress.lock().unwrap().is_empty());
    bench.servers.shutdown().await;
}
