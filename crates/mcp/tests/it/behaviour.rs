//! Results of good and bad behaviour.

use overmind_core::ids::SessionId;
use overmind_core::live::LivePiece;
use overmind_core::sandbox::SandboxLevel;
use overmind_core::tool_source::ToolSource;
use overmind_mcp::{Limits, Protocol, ServerConfig};
use serde_json::json;

use crate::support::{Bench, SECRET, bad, marked, reason, within, written};

fn short(config: ServerConfig) -> ServerConfig {
    let limits = Limits { start_ms: 1500, call_ms: 700, call_total_ms: 5000, ..config.limits };
    ServerConfig { limits, ..config }
}

#[tokio::test]
async fn a_tool_is_called_and_its_result_is_labelled() {
    let bench = Bench::new().await;
    let view = bench.servers.put(bad("good", "good")).await.unwrap();
    assert_eq!(view.state.as_str(), "ready", "{:?}", view.state);
    assert_eq!(view.protocol, "2025-11-25");
    assert!(bench.offered().contains(&"mcp.good.echo".to_owned()));
    let result = bench.call("mcp.good.echo", json!({"text": "hi\u{202e}"})).await;
    assert_eq!(result["ok"], true);
    assert_eq!(result["untrusted"], true);
    assert_eq!(result["mcp"]["server_id"], "good");
    assert_eq!(result["mcp"]["result"]["content"][0]["text"], "hi");
    assert_eq!(result["hidden_characters_removed"], 1);
    let failed = bench.call("mcp.good.fail", json!({})).await;
    assert_eq!(failed["error"], json!({"code": "mcp_tool_error", "message": "no such row"}));
    let picture = bench.call("mcp.good.picture", json!({})).await;
    let path = bench.dir.path().join("ws").join(picture["artifacts"][0].as_str().unwrap());
    assert_eq!(std::fs::read(path).unwrap(), b"hello");
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn half_a_character_in_a_result_is_replaced_and_half_a_message_ends_the_call() {
    let bench = Bench::new().await;
    bench.servers.put(bad("odd", "odd")).await.unwrap();
    assert_eq!(bench.text("mcp.odd.half", json!({})).await, "left \u{fffd} right");
    let began = tokio::time::Instant::now();
    let torn = bench.call("mcp.odd.torn", json!({})).await;
    assert_eq!(torn["error"]["code"], "mcp_transport_error", "{torn}");
    let message = torn["error"]["message"].as_str().unwrap();
    assert!(message.contains("cannot be read"), "{message}");
    assert!(began.elapsed().as_secs() < 20, "the call's time limit is longer");
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn servers_without_a_handshake_work_and_their_changes_are_noticed() {
    let bench = Bench::new().await;
    let view = bench.servers.put(bad("new", "modern")).await.unwrap();
    assert_eq!((view.state.as_str(), view.protocol.as_str()), ("ready", "2026-07-28"), "{view:?}");
    assert_eq!(bench.text("mcp.new.echo", json!({"text": "a"})).await, "a");
    bench.call("mcp.new.flip", json!({})).await;
    bench.until("new", |view| crate::support::state(view, "echo") == "changed").await;
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn a_server_without_the_new_protocol_gets_the_handshake() {
    let bench = Bench::new().await;
    let view = bench.servers.put(bad("shy", "shy")).await.unwrap();
    assert_eq!((view.state.as_str(), view.protocol.as_str()), ("ready", "2025-11-25"), "{view:?}");
    let config = ServerConfig { protocol: Protocol::Handshake, ..bad("old", "shy") };
    assert_eq!(bench.servers.put(config).await.unwrap().state.as_str(), "ready");
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn one_broken_server_disables_only_itself() {
    let bench = Bench::new().await;
    bench.servers.put(bad("good", "good")).await.unwrap();
    let hanging = bench.servers.put(short(bad("hangs", "hang"))).await.unwrap();
    assert!(reason(&hanging).contains("did not answer within 1500 ms"), "{hanging:?}");
    let dead = bench.servers.put(bad("dies", "dies")).await.unwrap();
    let why = reason(&dead);
    assert!(why.contains("exited with code 3") && why.contains("no key"), "{why}");
    assert!(!why.contains(SECRET) && why.contains("***"), "{why}");
    let mut missing = bad("missing", "good");
    if let overmind_mcp::Transport::Stdio { command, .. } = &mut missing.transport {
        *command = "no-such-program".into();
    }
    let missing = bench.servers.put(missing).await.unwrap();
    assert!(reason(&missing).contains("no such program"), "{missing:?}");
    assert_eq!(bench.text("mcp.good.echo", json!({"text": "still"})).await, "still");
    assert!(bench.offered().iter().all(|name| name.starts_with("mcp.good.")));
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn servers_answer_in_parallel_when_the_daemon_starts() {
    let bench = Bench::new().await;
    for id in ["hang-a", "hang-b", "hang-c"] {
        let mut config = short(bad(id, "hang"));
        config.enabled = false;
        bench.servers.put(config).await.unwrap();
    }
    let mut saved = bench.settings.document.lock().unwrap().clone().unwrap();
    for server in saved["servers"].as_array_mut().unwrap() {
        server["config"]["enabled"] = true.into();
    }
    *bench.settings.document.lock().unwrap() = Some(saved);
    let again = Bench::with(bench.settings.clone()).await;
    within(again.servers.settled()).await;
    // All of them started before the first one's timeout.
    let tries: Vec<_> = again
        .servers
        .list()
        .into_iter()
        .map(|view| match view.state {
            overmind_mcp::ServerState::Failed { next_try, .. } => next_try.unwrap().as_micros(),
            other => panic!("{other:?}"),
        })
        .collect();
    let spread = tries.iter().max().unwrap() - tries.iter().min().unwrap();
    assert!(spread < 1_500_000, "one after the other: {tries:?}");
    again.servers.shutdown().await;
}

#[tokio::test]
async fn a_crash_in_a_call_is_reported_and_the_server_restarts() {
    let bench = Bench::new().await;
    bench.servers.put(bad("good", "good")).await.unwrap();
    let result = bench.call("mcp.good.crash", json!({})).await;
    assert_eq!(result["error"]["code"], "mcp_transport_error", "{result}");
    let message = result["error"]["message"].as_str().unwrap();
    assert!(message.contains("exited with code 3") && message.contains("boom"), "{message}");
    // The next call hurries the next start; the tools were offered all the time.
    assert!(bench.offered().contains(&"mcp.good.echo".to_owned()));
    assert_eq!(bench.text("mcp.good.echo", json!({"text": "back"})).await, "back");
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn floods_are_cut_off_and_garbage_is_skipped() {
    let bench = Bench::new().await;
    let flood = bench.servers.put(short(bad("flood", "stdout_flood"))).await.unwrap();
    assert!(reason(&flood).contains("bytes that are no messages"), "{flood:?}");
    for mode in ["stderr_flood", "garbage"] {
        let id = mode.replace('_', "-");
        let config = ServerConfig { same_names: overmind_mcp::SameNames::Accept, ..bad(&id, mode) };
        let view = bench.servers.put(config).await.unwrap();
        assert_eq!(view.state.as_str(), "ready", "{mode}: {view:?}");
        let said = bench.text(&format!("mcp.{id}.echo"), json!({"text": mode})).await;
        assert_eq!(said, mode);
    }
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn a_giant_result_ends_the_connection_and_a_large_one_is_truncated_with_counts() {
    let bench = Bench::new().await;
    bench.servers.put(bad("good", "good")).await.unwrap();
    let big = bench.call("mcp.good.big", json!({})).await;
    assert_eq!(big["ok"], true);
    assert_eq!(big["truncated"]["text_bytes"], 1 << 20);
    assert_eq!(big["truncated"]["kept_bytes"], 100_000);
    let giant = bench.call("mcp.good.giant", json!({})).await;
    assert_eq!(giant["error"]["code"], "mcp_transport_error");
    assert!(giant["error"]["message"].as_str().unwrap().contains("a message of more than"));
    assert_eq!(bench.text("mcp.good.echo", json!({"text": "back"})).await, "back");
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn duplicate_and_late_answers_are_dropped() {
    let bench = Bench::new().await;
    bench.servers.put(bad("good", "good")).await.unwrap();
    for _ in 0..3 {
        assert_eq!(bench.text("mcp.good.twice", json!({})).await, "first");
        assert_eq!(bench.text("mcp.good.echo", json!({"text": "own"})).await, "own");
    }
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn a_server_sees_only_the_environment_it_was_given_and_its_secret_is_masked() {
    let bench = Bench::new().await;
    bench.servers.put(bad("good", "good")).await.unwrap();
    let said = bench.text("mcp.good.env", json!({})).await;
    let mut names: Vec<&str> =
        said.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    names.sort_unstable();
    assert_eq!(names, ["HOME", "LANG", "PATH", "PLAIN", "SECRET", "TMPDIR"], "{said}");
    assert!(said.contains("SECRET=***") && !said.contains(SECRET), "{said}");
    let saved = bench.settings.document.lock().unwrap().clone().unwrap().to_string();
    assert!(!saved.contains(SECRET), "only the secret's name is kept");
    let shown = format!("{:?}", bench.servers.list());
    assert!(!shown.contains("\"plain\""), "plain values are masked for readers");
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_at_the_server_too() {
    let bench = Bench::new().await;
    bench.servers.put(marked("good", "good", "", SandboxLevel::None)).await.unwrap();
    let context = bench.context();
    let args = json!({});
    {
        let call = bench.servers.call(&context, "mcp.good.slow", &args);
        tokio::pin!(call);
        let heard = async {
            while bench.progress.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            outcome = &mut call => panic!("{outcome:?}"),
            () = within(heard) => {}
        }
    }
    let note = written(&bench.dir.path().join("scratch/good/cancelled")).await;
    assert!(note.contains("notifications/cancelled"), "{note}");
    let reports = bench.progress.lock().unwrap().clone();
    let message = Some("half[8m".to_owned());
    assert_eq!(reports, [LivePiece::Progress { progress: 1.0, total: Some(2.0), message }]);
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn a_call_without_progress_times_out_and_is_canceled() {
    let bench = Bench::new().await;
    let config = short(marked("good", "good", "", SandboxLevel::None));
    bench.servers.put(config).await.unwrap();
    let result = bench.call("mcp.good.slow", json!({})).await;
    assert_eq!(result["error"]["code"], "timeout", "{result}");
    written(&bench.dir.path().join("scratch/good/cancelled")).await;
    bench.servers.shutdown().await;
}

#[tokio::test]
async fn sessions_have_their_own_server_if_configured() {
    let bench = Bench::new().await;
    let config = ServerConfig { scope: overmind_mcp::Scope::Session, ..bad("own", "good") };
    let view = bench.servers.put(config).await.unwrap();
    assert_eq!((view.state.as_str(), view.sessions), ("ready", 0), "{view:?}");
    let (one, two) = (SessionId::from_u128(1), SessionId::from_u128(2));
    let mut homes = Vec::new();
    for session in [one, two] {
        let context = bench.context_of(session);
        let args = json!({});
        let said = within(bench.servers.call(&context, "mcp.own.env", &args)).await.result;
        let text = said["mcp"]["result"]["content"][0]["text"].as_str().unwrap().to_owned();
        homes.push(text.lines().find(|line| line.starts_with("HOME=")).unwrap().to_owned());
        let place = format!("ws/.overmind_runs/{session}/artifacts/mcp/own");
        assert!(bench.dir.path().join(place).is_dir());
    }
    assert_ne!(homes[0], homes[1]);
    assert_eq!(bench.servers.get("own").unwrap().sessions, 2);
    bench.servers.session_ended(one);
    assert_eq!(bench.servers.get("own").unwrap().sessions, 1);
    bench.servers.shutdown().await;
}
