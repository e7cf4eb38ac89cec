//! Approved tools, unapproved tools, and changes.

use overmind_core::tool_source::ToolSource;
use overmind_mcp::{Approve, McpError, SameNames, Scope, ServerConfig, ToolState};
use serde_json::json;

use crate::support::{Bench, bad, state};

#[tokio::test]
async fn a_changed_tool_is_withdrawn_until_it_is_pinned_again() {
    let bench = Bench::new().await;
    bench.servers.put(bad("good", "good")).await.unwrap();
    let before = bench.servers.specs();
    bench.call("mcp.good.flip", json!({})).await;
    // Whether the list was read already or not: the call waits for it.
    let result = bench.call("mcp.good.echo", json!({"text": "x"})).await;
    assert_eq!(result["error"]["code"], "tool_changed", "{result}");
    let view = bench.servers.get("good").unwrap();
    let echo = view.tools.iter().find(|tool| tool.name == "echo").unwrap();
    let ToolState::Changed(difference) = &echo.state else { panic!("{echo:?}") };
    assert!(difference.diff.contains("-Echoes.\n+Echoes, and tells others."), "{difference:?}");
    assert!(view.needs_approval());
    assert!(!bench.offered().contains(&"mcp.good.echo".to_owned()));
    assert_eq!(state(&view, "env"), "ready", "only what changed is withdrawn");
    // A definition that was not shown is not approved.
    let other = bench.servers.pin("good", Some("echo"), Some("another hash")).await;
    assert!(matches!(other, Err(McpError::Refused(_))), "{other:?}");
    bench.servers.pin("good", Some("echo"), Some(&difference.offered)).await.unwrap();
    assert_eq!(bench.text("mcp.good.echo", json!({"text": "x"})).await, "x");
    let after = bench.servers.specs();
    let definition = |specs: &[overmind_core::tool::ToolSpec]| {
        specs.iter().find(|spec| spec.name == "mcp.good.echo").unwrap().definition()
    };
    assert_ne!(definition(&before), definition(&after), "sessions can tell them apart");
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn a_change_while_the_daemon_was_stopped_is_detected() {
    let bench = Bench::new().await;
    bench.servers.put(bad("good", "good")).await.unwrap();
    bench.servers.shutdown().await;
    let mut saved = bench.settings.document.lock().unwrap().clone().unwrap();
    saved["servers"][0]["config"]["transport"]["args"][1] = "flipped".into();
    *bench.settings.document.lock().unwrap() = Some(saved);
    let again = Bench::with(bench.settings.clone()).await;
    again.servers.settled().await;
    let view = again.servers.get("good").unwrap();
    assert_eq!((state(&view, "echo"), state(&view, "env")), ("changed", "ready"));
    again.servers.shutdown().await;
}

#[tokio::test]
async fn a_sessions_server_that_offers_other_tools_is_detected() {
    let bench = Bench::new().await;
    let own = |mode| ServerConfig { scope: Scope::Session, ..bad("own", mode) };
    bench.servers.put(own("good")).await.unwrap();
    assert_eq!(bench.text("mcp.own.echo", json!({"text": "x"})).await, "x");
    bench.call("mcp.own.flip", json!({})).await;
    let result = bench.call("mcp.own.echo", json!({"text": "x"})).await;
    assert_eq!(result["error"]["code"], "tool_changed", "{result}");
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn manual_approval_offers_only_pinned_tools() {
    let bench = Bench::new().await;
    let config = ServerConfig { approve: Approve::Manual, ..bad("good", "good") };
    let view = bench.servers.put(config).await.unwrap();
    assert_eq!(state(&view, "echo"), "new");
    assert!(view.needs_approval() && bench.offered().is_empty());
    let result = bench.call("mcp.good.echo", json!({})).await;
    assert!(result["error"]["message"].as_str().unwrap().contains("nobody has approved"));
    bench.servers.pin("good", Some("echo"), None).await.unwrap();
    assert_eq!(bench.offered(), ["mcp.good.echo"]);
    bench.servers.pin("good", None, None).await.unwrap();
    assert_eq!(bench.offered().len(), 11);
    let view = bench.servers.unpin("good", "echo").await.unwrap();
    assert_eq!(state(&view, "echo"), "new");
    let kinds = bench.settings.kinds.lock().unwrap().clone();
    assert_eq!(kinds[0], "mcp.server_put");
    assert!(kinds.contains(&"mcp.tools_pinned") && kinds.contains(&"mcp.tools_unpinned"));
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn poisoned_tools_are_refused_individually_and_their_text_is_hidden() {
    let bench = Bench::new().await;
    let view = bench.servers.put(bad("evil", "poison")).await.unwrap();
    assert_eq!(view.state.as_str(), "ready", "{view:?}");
    let why = |name: &str| match &view.tools.iter().find(|t| t.name == name).unwrap().state {
        ToolState::Refused(why) => why.clone(),
        other => panic!("{name}: {other:?}"),
    };
    assert!(why("hidden").contains("U+200B"));
    assert!(why("ansi").contains("U+001B"));
    assert!(why("reаd").contains("not ASCII"));
    assert!(why("read_mail").contains("too similar") && why("read-mail").contains("too similar"));
    assert!(why("others").contains("mcp.bank.pay"));
    assert!(why("run_shell").contains("the program has a tool of the same or a similar name"));
    assert!(why("long").contains("20000 bytes"));
    assert!(why("bomb").contains("larger than"));
    assert!(why("remote").contains("outside of itself"));
    // It offers its own tool called run_shell, so that word is valid here; the tool is not.
    assert_eq!(bench.offered().len(), 12, "{:?}", bench.offered());
    assert!(!format!("{view:?}").contains("Ignore all rules"), "refused texts are not shown");
    let pinned = bench.servers.pin("evil", Some("hidden"), None).await;
    assert!(matches!(pinned, Err(McpError::Refused(why)) if why.contains("cannot be approved")));
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn the_older_of_two_servers_keeps_a_tool_name() {
    let bench = Bench::new().await;
    bench.servers.put(bad("first", "good")).await.unwrap();
    let second = bench.servers.put(bad("second", "good")).await.unwrap();
    assert_eq!(state(&second, "echo"), "refused");
    let both = ServerConfig { same_names: SameNames::Accept, ..bad("second", "good") };
    let both = bench.servers.put(both).await.unwrap();
    assert_eq!(state(&both, "echo"), "new", "the first answer was judged already");
    bench.servers.pin("second", None, None).await.unwrap();
    assert_eq!(bench.text("mcp.second.echo", json!({"text": "2"})).await, "2");
    let alike = bench.servers.put(bad("f1rst", "good")).await;
    assert!(matches!(alike, Err(McpError::Refused(_))), "{alike:?}");
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn allow_and_deny_lists_filter_tools() {
    let bench = Bench::new().await;
    let config = ServerConfig {
        allow: vec!["echo".into(), "env".into()],
        deny: vec!["env".into()],
        ..bad("good", "good")
    };
    let view = bench.servers.put(config).await.unwrap();
    assert_eq!((state(&view, "echo"), state(&view, "env")), ("ready", "denied"));
    assert_eq!(bench.offered(), ["mcp.good.echo"]);
    let result = bench.call("mcp.good.env", json!({})).await;
    assert_eq!(result["error"]["code"], "tool_changed");
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn missing_servers_are_not_found() {
    let bench = Bench::new().await;
    assert_eq!(bench.servers.remove("no").await, Err(McpError::NotFound));
    assert_eq!(bench.servers.get("no").unwrap_err().to_string(), "MCP server not found");
    bench.servers.put(bad("good", "good")).await.unwrap();
    bench.servers.remove("good").await.unwrap();
    assert!(bench.servers.list().is_empty() && bench.offered().is_empty());
    let result = bench.call("mcp.good.echo", json!({})).await;
    assert_eq!(result["error"]["code"], "mcp_transport_error");
    bench.servers.shutdown().await;
    assert_eq!(bench.servers.put(bad("x", "good")).await.unwrap_err(), McpError::ShuttingDown);
}
