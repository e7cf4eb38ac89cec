//! This crate is called only through its port.

use std::sync::Arc;

use overmind_core::tool_source::{ToolServerError, ToolServers, ToolSource};
use serde_json::json;

use crate::support::{Bench, bad, helper};

#[tokio::test]
async fn the_tool_list_is_stable_without_changes() {
    let bench = Bench::new().await;
    assert_eq!(bench.servers.prefix(), "mcp.");
    bench.servers.put(bad("good", "good")).await.unwrap();
    let first = bench.servers.specs();
    assert_eq!(first.len(), 11);
    assert!(first.iter().all(|spec| !spec.internal && spec.name.starts_with("mcp.good.")));
    bench.servers.restart("good").await.unwrap();
    assert!(Arc::ptr_eq(&first, &bench.servers.specs()), "a restart changes nothing");
    bench.servers.set_enabled("good", false).await.unwrap();
    assert_eq!(bench.servers.specs().len(), 0);
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn servers_are_printed_and_read_as_json() {
    let bench = Bench::new().await;
    let servers: Arc<dyn ToolServers> = Arc::clone(&bench.servers) as Arc<dyn ToolServers>;
    let program = helper();
    let added = servers
        .put(json!({"id": "a", "transport": {"kind": "stdio", "command": program, "args": ["serve", "flipped"],
            "env": {"A": "open"}, "read_only": [program.parent()]}}))
        .await
        .unwrap();
    assert_eq!((&added["state"], &added["command"]), (&json!("ready"), &json!(program)));
    assert_eq!(added["env"], json!({"A": "***"}), "shown masked");
    assert_eq!(added["tools"][0]["full_name"], "mcp.a.echo");
    let again = servers.put(added["config"].clone()).await.unwrap();
    assert_eq!(again["state"], "ready");
    assert!(bench.text("mcp.a.env", json!({})).await.contains("A=open"), "what was masked stayed");
    let mut other = added["config"].clone();
    other["transport"]["args"][1] = "good".into();
    let changed = servers.put(other).await.unwrap();
    assert_eq!(changed["tools"][0]["state"], "changed");
    assert!(changed["tools"][0]["diff"].as_str().unwrap().contains("+Echoes."));
    let hash = changed["tools"][0]["hash"].as_str().unwrap();
    let pinned = servers.pin("a", Some("echo"), Some(hash)).await.unwrap();
    assert_eq!(pinned["tools"][0]["state"], "ready");
    let bad = servers.put(json!({"id": "B", "command": "x"})).await.unwrap_err();
    assert!(matches!(bad, ToolServerError::Bad { field, .. } if field == "id"));
    servers.remove("a").await.unwrap();
    let none = servers.remove("a").await.unwrap_err();
    assert_eq!(none.to_string(), "MCP server not found");
    bench.servers.shutdown().await;
}
