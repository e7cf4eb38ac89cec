//! `run_shell`: the request to the driver, and the conversion of its answer.

use std::sync::Arc;
use std::time::Duration;

use overmind_core::sandbox::{Captured, Exit, SandboxError, SandboxLevel};
use serde_json::json;

use crate::support::{Bench, FakeSandbox, SESSION, error, is};

#[tokio::test]
async fn a_command_runs_read_only_by_default() {
    let bench = Bench::new();
    let result = bench.good("run_shell", json!({"command": " echo hi "})).await;
    assert_eq!(
        result,
        json!({
            "ok": true, "exit_code": 0, "stdout": "out\n", "stderr": "", "latency_ms": 12,
            "working_dir": ".", "sandbox": "namespace", "command": " echo hi ",
        })
    );
    let asked = bench.shell.last();
    assert_eq!(asked.argv, ["sh", "-lc", " echo hi "]);
    assert_eq!(asked.workspace, bench.context.workspace);
    assert_eq!(asked.writable, None);
    assert_eq!(asked.cwd.to_str(), Some("."));
    assert_eq!(asked.timeout, Duration::from_secs(20));
    assert_eq!(asked.stdin, b"");
    assert_eq!(asked.limits, bench.context.limits);
    assert!(!bench.path(".overmind_runs").exists(), "nothing was made");
}

#[tokio::test]
async fn environment_commands_run_in_its_sandbox_without_the_hosts_tmpdir() {
    let mut bench = Bench::new();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let variables = [
        pair("API", "http://127.0.0.1:9"),
        pair("TMPDIR", "/tmp/of-the-host"),
        pair("HOME", "/root"),
    ];
    bench.context.variables = variables.into();
    let room = Arc::new(FakeSandbox::default());
    bench.context.driver = Some(room.clone());
    bench.good("run_shell", json!({"command": "mktemp"})).await;
    let asked = room.last();
    let value = |name: &str| {
        let found = asked.env.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    };
    assert_eq!(value("API"), Some("http://127.0.0.1:9"));
    assert_eq!((value("TMPDIR"), value("HOME")), (None, Some("/tmp")));
    assert_eq!(bench.shell.asked.lock().unwrap().len(), 0, "not the driver of its level");
    // Without a sandbox, it is the host's own.
    bench.context.driver = None;
    bench.context.sandbox = SandboxLevel::None;
    bench.good("run_shell", json!({"command": "mktemp"})).await;
    let asked = bench.shell.last();
    assert!(asked.env.contains(&pair("TMPDIR", "/tmp/of-the-host")), "{:?}", asked.env);
}

#[tokio::test]
async fn the_commands_environment_is_small_and_contains_nothing_of_the_server() {
    let bench = Bench::new();
    bench.good("run_shell", json!({"command": "env"})).await;
    let env = bench.shell.last().env;
    let names: Vec<_> = env.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["PATH", "HOME", "LANG", "TERM", "OVERMIND_SESSION"]);
    assert!(env.contains(&("HOME".into(), "/tmp".into())));
    assert!(env.contains(&("TERM".into(), "dumb".into())));
    assert!(env.contains(&("OVERMIND_SESSION".into(), SESSION.to_string())));
}

#[tokio::test]
async fn a_command_writes_to_the_sessions_directory_unless_another_is_named() {
    let bench = Bench::new();
    let own = format!(".overmind_runs/{SESSION}");
    bench.put("link_target/keep", "");
    std::os::unix::fs::symlink("link_target", bench.path("link")).unwrap();
    for (subdir, wanted) in [
        (json!(null), own.as_str()),
        (json!(""), own.as_str()),
        (json!("  "), own.as_str()),
        (json!("out/deep"), "out/deep"),
        (json!("/out"), "out"),
        (json!("/workspace/build"), "build"),
        (json!("."), "."),
        (json!("/workspace"), "."),
        (json!("a/../b"), "b"),
        // The driver gets the real directory.
        (json!("link"), "link_target"),
    ] {
        std::fs::create_dir_all(bench.path("a")).unwrap();
        let args = json!({"command": "true", "allow_write": true, "write_subdir": subdir});
        let result = bench.good("run_shell", args).await;
        assert_eq!(result["working_dir"], json!(wanted), "{subdir}");
        let asked = bench.shell.last();
        assert_eq!(asked.writable.as_deref().and_then(|p| p.to_str()), Some(wanted), "{subdir}");
        assert_eq!(asked.cwd.to_str(), Some(wanted));
        assert!(bench.path(wanted).is_dir(), "{wanted} exists when the driver is called");
    }
}

#[tokio::test]
async fn a_subdir_without_allow_write_is_not_created() {
    let bench = Bench::new();
    bench.good("run_shell", json!({"command": "true", "write_subdir": "out"})).await;
    assert_eq!(bench.shell.last().writable, None);
    assert!(!bench.path("out").exists());
}

#[tokio::test]
async fn a_subdir_outside_the_workspace_is_an_error_and_nothing_runs() {
    let bench = Bench::new();
    std::fs::create_dir(bench.outer.path().join("ws2")).unwrap();
    std::os::unix::fs::symlink("../ws2", bench.path("out")).unwrap();
    std::os::unix::fs::symlink("/", bench.path("root")).unwrap();
    for subdir in ["..", "../ws2", "a/../../ws2", "out", "out/x", "root/tmp", "/../ws2"] {
        let args = json!({"command": "touch x", "allow_write": true, "write_subdir": subdir});
        let outcome = bench.call("run_shell", args).await;
        assert_eq!(error(&outcome), is("bad_config", "write_subdir escapes workspace"), "{subdir}");
        assert_eq!(outcome.result["command"], json!("touch x"));
    }
    assert!(!bench.path("a").exists(), "no directory was made on the way");
    assert!(bench.shell.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_subdir_that_is_a_file_is_an_error() {
    let bench = Bench::new();
    bench.put("file", "x");
    for subdir in ["file", "file/below"] {
        let args = json!({"command": "x", "allow_write": true, "write_subdir": subdir});
        let wanted = is("bad_config", "write_subdir is not a directory");
        assert_eq!(bench.bad("run_shell", args).await, wanted, "{subdir}");
    }
    let args = json!({"command": "x", "allow_write": true, "write_subdir": "a\u{0}b"});
    let (code, message) = bench.bad("run_shell", args).await;
    assert_eq!(code, "bad_config");
    assert_eq!(message, "write_subdir cannot be used: Path contains a NUL character");
}

#[tokio::test]
async fn a_failing_command_is_a_result_without_an_error() {
    let bench = Bench::new();
    bench.shell.change(|done| done.exit = Exit::Code(3));
    let outcome = bench.call("run_shell", json!({"command": "exit 3"})).await;
    assert!(outcome.allowed && !outcome.ok());
    assert_eq!(outcome.result["exit_code"], json!(3));
    assert_eq!(outcome.result.get("error"), None);

    bench.shell.change(|done| done.exit = Exit::Signal(9));
    let outcome = bench.call("run_shell", json!({"command": "kill -9 $$"})).await;
    assert!(!outcome.ok());
    assert_eq!(outcome.result["exit_code"], json!(137));
    assert_eq!(outcome.result["signal"], json!(9));
}

#[tokio::test]
async fn a_timeout_returns_the_output_so_far() {
    let bench = Bench::new();
    for (level, backend) in [
        (SandboxLevel::Docker, "docker"),
        (SandboxLevel::None, "host"),
        (SandboxLevel::Namespace, "namespace"),
    ] {
        bench.shell.change(|done| {
            done.exit = Exit::TimedOut;
            done.level = level;
        });
        let outcome = bench.call("run_shell", json!({"command": "sleep 9", "timeout_s": 2})).await;
        assert_eq!(
            outcome.result["error"],
            json!({
                "code": "timeout",
                "message": "Command timed out after 2s; `timeout_s` can be up to 120",
                "details": {"timeout_s": 2, "backend": backend},
            })
        );
        assert_eq!(outcome.result["stdout"], json!("out\n"));
        assert_eq!(outcome.result["latency_ms"], json!(12));
        assert_eq!(outcome.result["command"], json!("sleep 9"));
        assert_eq!(bench.shell.last().timeout, Duration::from_secs(2));
    }
}

#[tokio::test]
async fn the_docker_line_is_shown_for_docker_only() {
    let bench = Bench::new();
    let line = "docker run --rm … '<redacted-command>'";
    bench.shell.change(|done| {
        done.level = SandboxLevel::Docker;
        done.shown_as = Some(line.into());
    });
    let result = bench.good("run_shell", json!({"command": "true"})).await;
    assert_eq!(result["docker_cmd"], json!(line));
    assert_eq!(result["sandbox"], json!("docker"));
    bench.shell.change(|done| done.level = SandboxLevel::Namespace);
    let result = bench.good("run_shell", json!({"command": "true"})).await;
    assert_eq!(result.get("docker_cmd"), None);
}

#[tokio::test]
async fn truncated_output_reports_the_missing_size() {
    let bench = Bench::new();
    bench.shell.change(|done| {
        done.stdout = Captured { text: "é".repeat(60_000), total_bytes: 500_000, truncated: true };
        done.stderr = Captured { text: "e".into(), total_bytes: 1, truncated: false };
    });
    let result = bench.good("run_shell", json!({"command": "yes"})).await;
    assert_eq!(result["stdout"].as_str().map(str::len), Some(100_000));
    assert_eq!(result["dropped_bytes"], json!({"stdout": 400_000, "stderr": 0}));
}

#[tokio::test]
async fn an_unavailable_driver_gives_the_reason_and_the_remedy() {
    let bench = Bench::new();
    let set = |err| *bench.shell.answer.lock().unwrap() = Err(err);
    set(SandboxError::Unavailable {
        code: "docker_unavailable".into(),
        message: "Docker daemon is unavailable or inaccessible".into(),
        reason: "docker_info_failed".into(),
        remedy: "start the daemon".into(),
    });
    let outcome = bench.call("run_shell", json!({"command": "true"})).await;
    assert_eq!(
        outcome.result["error"],
        json!({
            "code": "docker_unavailable",
            "message": "Docker daemon is unavailable or inaccessible",
            "details": {"reason": "docker_info_failed", "remedy": "start the daemon"},
        })
    );
    set(SandboxError::BadConfig { code: "image_not_pinned".into(), message: "no digest".into() });
    let outcome = bench.call("run_shell", json!({"command": "true"})).await;
    assert_eq!(error(&outcome), is("image_not_pinned", "no digest"));
    assert_eq!(outcome.result["command"], json!("true"));
    set(SandboxError::Failed { level: "namespace", message: "clone: EPERM".into() });
    let outcome = bench.call("run_shell", json!({"command": "true"})).await;
    let wanted = "running a command in the namespace sandbox: clone: EPERM";
    assert_eq!(error(&outcome), is("tool_error", wanted));
}

#[tokio::test]
async fn a_missing_level_is_refused_and_never_replaced_by_a_weaker_one() {
    let mut bench = Bench::new();
    bench.context.sandbox = SandboxLevel::Docker;
    let got = bench.bad("run_shell", json!({"command": "true"})).await;
    let wanted = "this hive has no `docker` sandbox; nothing was run";
    assert_eq!(got, is("unsupported_backend", wanted));
    assert!(bench.shell.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_invalid_shell_command_is_refused() {
    let bench = Bench::new();
    let got = bench.bad("run_shell", json!({"command": "echo \u{0}"})).await;
    assert_eq!(got, is("bad_args", "command must not contain a NUL character"));
    let long = "x".repeat(100_001);
    let outcome = bench.call("run_shell", json!({"command": long})).await;
    assert_eq!(error(&outcome), is("size_limit", "command exceeds max size"));
    assert!(outcome.result.to_string().len() < 1000, "it is not echoed");
}

#[tokio::test]
async fn dropping_a_call_ends_its_command() {
    let bench = Bench::new();
    let (ended, seen) = tokio::sync::oneshot::channel();
    *bench.shell.hang.lock().unwrap() = Some(ended);
    let call = bench.call("run_shell", json!({"command": "sleep 9"}));
    let late = tokio::time::timeout(Duration::from_millis(1), call).await;
    assert!(late.is_err(), "the command hangs");
    assert_eq!(bench.shell.last().argv[2], "sleep 9", "it had begun");
    // The driver's future was dropped, and its end of the channel with it.
    assert!(seen.await.is_err());
}
