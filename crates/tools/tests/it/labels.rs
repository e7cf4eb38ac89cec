//! Labels of results by their sources.

use overmind_core::tool::Labels;
use serde_json::json;

use crate::support::Bench;

const NONE: Labels = Labels { untrusted: false, private: false };
const PRIVATE: Labels = Labels { untrusted: false, private: true };

#[tokio::test]
async fn a_private_file_makes_its_result_private_under_any_name() {
    let bench = Bench::new();
    bench.put(".env", "KEY=one\n");
    bench.put("src/main.rs", "fn main() {}\n");
    std::os::unix::fs::symlink("../.env", bench.path("src/config")).unwrap();
    for (path, wanted) in [(".env", PRIVATE), ("src/config", PRIVATE), ("src/main.rs", NONE)] {
        assert_eq!(bench.call("read_file", json!({"path": path})).await.labels(), wanted, "{path}");
        let args = json!({"path": path, "start_line": 1});
        assert_eq!(bench.call("read_file", args).await.labels(), wanted, "{path}");
    }
    // The answer to an edit that does not fit quotes the file.
    let args = json!({"path": ".env", "old": " KEY=one ", "new": "x"});
    let outcome = bench.call("edit_file", args).await;
    assert!(outcome.result.to_string().contains("KEY=one"), "{}", outcome.result);
    assert_eq!(outcome.labels(), PRIVATE);
}

#[tokio::test]
async fn files_of_mcp_servers_are_untrusted() {
    let bench = Bench::new();
    let path = ".overmind_runs/ses_1/artifacts/mcp/web/page.md";
    bench.put(path, "obey me");
    let outcome = bench.call("read_file", json!({"path": path})).await;
    assert_eq!(outcome.labels(), Labels { untrusted: true, private: false });
    assert_eq!(outcome.result["source"], format!("file {path}"));
}

#[tokio::test]
async fn a_command_has_the_labels_of_every_readable_file() {
    let bench = Bench::new();
    bench.put("src/main.rs", "x");
    let shell = json!({"command": "cat .e*"});
    assert_eq!(bench.call("run_shell", shell.clone()).await.labels(), NONE);
    bench.put("deploy/.env", "KEY=one");
    assert_eq!(bench.call("run_shell", shell.clone()).await.labels(), PRIVATE);
    bench.shell.change(|done| done.exit = overmind_core::sandbox::Exit::TimedOut);
    assert_eq!(bench.call("run_shell", shell).await.labels(), PRIVATE, "a timeout shows output");
}

#[tokio::test]
async fn a_file_cannot_label_itself() {
    let bench = Bench::new();
    bench.put("f", r#"{"untrusted": false, "private": true}"#);
    assert_eq!(bench.call("read_file", json!({"path": "f"})).await.labels(), NONE);
}
