//! Processes of a server end with it, its session, its removal or the daemon.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use overmind_core::ids::SessionId;
use overmind_core::sandbox::SandboxLevel;
use overmind_core::tool_source::ToolSource;
use overmind_mcp::{Limits, Scope, ServerConfig};
use serde_json::json;

use crate::support::{Bench, alive, gone, helper, living, marked, within};

/// A duration that no other process sleeps for.
fn mark(of: u32) -> String {
    format!("9{of}{}", std::process::id())
}

const LEVELS: [SandboxLevel; 2] = [SandboxLevel::Namespace, SandboxLevel::None];

#[tokio::test]
async fn a_stubborn_server_has_ended_when_its_removal_returns() {
    for (of, level) in [1, 2].into_iter().zip(LEVELS) {
        let (bench, mark) = (Bench::new().await, mark(of));
        let view = bench.servers.put(marked("s", "stubborn", &mark, level)).await.unwrap();
        assert_eq!(view.state.as_str(), "ready", "{view:?}");
        assert!(alive(&mark) > 0);
        within(bench.servers.remove("s")).await.unwrap();
        assert_eq!(alive(&mark), 0, "{level:?}");
    }
}

#[tokio::test]
async fn a_stubborn_server_has_ended_when_the_shutdown_returns() {
    for (of, level) in [3, 4].into_iter().zip(LEVELS) {
        let (bench, mark) = (Bench::new().await, mark(of));
        bench.servers.put(marked("s", "stubborn", &mark, level)).await.unwrap();
        assert!(alive(&mark) > 0);
        within(bench.servers.shutdown()).await;
        assert_eq!(alive(&mark), 0, "{level:?}");
    }
}

#[tokio::test]
async fn a_replaced_or_disabled_server_leaves_nothing_behind() {
    let (bench, mark) = (Bench::new().await, mark(5));
    let config = marked("s", "stubborn", &mark, SandboxLevel::Namespace);
    bench.servers.put(config.clone()).await.unwrap();
    let old = living(&mark);
    bench.servers.put(config).await.unwrap();
    let new = living(&mark);
    assert!(!old.is_empty() && !new.is_empty(), "{old:?} {new:?}");
    // Not by their number, because processes that build a sandbox may be in one of the scans.
    assert!(old.is_disjoint(&new), "the old one went before the new one came: {old:?} {new:?}");
    bench.servers.set_enabled("s", false).await.unwrap();
    assert_eq!(alive(&mark), 0);
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn a_sessions_server_ends_with_it_and_when_it_is_idle() {
    let (bench, mark) = (Bench::new().await, mark(6));
    let config = ServerConfig {
        scope: Scope::Session,
        ..marked("own", "stubborn", &mark, SandboxLevel::Namespace)
    };
    bench.servers.put(config.clone()).await.unwrap();
    assert_eq!(alive(&mark), 0, "the first look is over");
    let session = SessionId::from_u128(7);
    let (context, args) = (bench.context_of(session), json!({"text": "x"}));
    within(bench.servers.call(&context, "mcp.own.echo", &args)).await;
    assert!(alive(&mark) > 0);
    bench.servers.session_ended(session);
    gone(&mark).await;

    let limits = Limits { idle_ms: 200, ..config.limits };
    bench.servers.put(ServerConfig { limits, ..config }).await.unwrap();
    let outcome = within(bench.servers.call(&context, "mcp.own.echo", &args)).await;
    assert!(outcome.ok(), "{outcome:?}");
    gone(&mark).await;
    bench.until("own", |view| view.sessions == 0).await;
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn servers_end_with_a_killed_daemon() {
    let mark = mark(7);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut daemon = Command::new(helper())
        .args(["daemon", dir.path().to_str().unwrap(), &mark])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = lines.next().unwrap().unwrap();
        assert!(line.contains("\"ready\""), "{line}");
    }
    // The daemon's own arguments contain the mark as well.
    assert!(alive(&mark) > 4, "{}", alive(&mark));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    gone(&mark).await;
}
