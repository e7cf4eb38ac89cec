//! No file outside the workspace is read, written, created or listed, whatever the path.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use overmind_testkit::soak;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Bench, is, names_in};

const SECRET: &str = "outside secret";

/// Every file, with its text.
fn tree(dir: &std::path::Path) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for name in names_in(dir) {
        let path = dir.join(&name);
        match path.is_dir() && !path.is_symlink() {
            true => {
                all.push((path.display().to_string(), String::new()));
                all.extend(tree(&path));
            }
            false => all.push((
                path.display().to_string(),
                std::fs::read_to_string(&path).unwrap_or_default(),
            )),
        }
    }
    all
}

/// A workspace beside a sibling whose name begins with the workspace's name, and a secret file.
fn hostile() -> Bench {
    let bench = Bench::new();
    let outside = bench.outer.path();
    std::fs::create_dir(outside.join("ws2")).unwrap();
    std::fs::write(outside.join("ws2/x"), SECRET).unwrap();
    std::fs::write(outside.join("secret"), SECRET).unwrap();
    bench.put("in/file", "inside");
    symlink("../secret", bench.path("to_secret")).unwrap();
    symlink("../ws2", bench.path("to_sibling")).unwrap();
    symlink(outside.join("secret"), bench.path("absolute")).unwrap();
    symlink("/proc/self/root", bench.path("root")).unwrap();
    symlink("in", bench.path("inner")).unwrap();
    symlink("inner/../../secret", bench.path("crooked")).unwrap();
    bench
}

fn calls(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("read_file", json!({"path": path})),
        ("write_file", json!({"path": path, "content": "planted"})),
        ("edit_file", json!({"path": path, "old": "outside", "new": "planted"})),
        ("list_files", json!({"path": path})),
    ]
}

fn assert_untouched(bench: &Bench) {
    let outside = bench.outer.path();
    assert_eq!(names_in(outside), ["secret", "ws", "ws2"]);
    assert_eq!(names_in(&outside.join("ws2")), ["x"]);
    assert_eq!(std::fs::read_to_string(outside.join("secret")).unwrap(), SECRET);
    assert_eq!(std::fs::read_to_string(outside.join("ws2/x")).unwrap(), SECRET);
}

#[tokio::test]
async fn every_escape_gets_the_same_error() {
    let bench = hostile();
    let absolute = bench.outer.path().join("secret").to_str().unwrap().to_owned();
    let sibling = format!("{}2/x", bench.context.workspace.to_str().unwrap());
    for path in [
        "..",
        "../secret",
        "../ws2/x",
        "../ws/in/file",
        "in/../../secret",
        "in/../../ws2/new/deep/file",
        "to_secret",
        "to_sibling",
        "to_sibling/x",
        "to_sibling/new",
        "crooked",
        "absolute",
        "root",
        "root/etc/hostname",
        "/etc/hostname",
        "/",
        "/workspace2/x",
        "/workspace/../secret",
        "/proc/self/root/etc/hostname",
        "/proc/self/cwd",
        &absolute,
        &sibling,
    ] {
        for (tool, args) in calls(path) {
            let got = bench.bad(tool, args).await;
            assert_eq!(got, is("tool_error", "Path escapes workspace"), "{tool} {path}");
        }
    }
    assert_untouched(&bench);
}

#[tokio::test]
async fn inside_paths_work_in_every_spelling() {
    let bench = hostile();
    let absolute = bench.path("in/file").to_str().unwrap().to_owned();
    for path in [
        "in/file",
        "./in//./file",
        "in/../in/file",
        "inner/file",
        "/workspace/in/file",
        "/workspace//inner/file",
        &absolute,
    ] {
        let got = bench.good("read_file", json!({"path": path})).await;
        assert_eq!(
            (&got["path"], &got["content"]),
            (&json!("in/file"), &json!("inside")),
            "{path}"
        );
    }
    let got = bench.good("write_file", json!({"path": "inner/new/f", "content": "y"})).await;
    assert_eq!(got["path"], json!("in/new/f"));
    assert_eq!(bench.get("in/new/f"), "y");
}

#[tokio::test]
async fn a_nul_and_an_endless_path_are_refused() {
    let bench = hostile();
    for (tool, args) in calls("in/\u{0}file") {
        let got = bench.bad(tool, args).await;
        assert_eq!(got, is("invalid_path", "Path contains a NUL character"), "{tool}");
    }
    let long_name = "n".repeat(300);
    let long_path = "d/".repeat(5000);
    for path in [long_name.as_str(), &long_path] {
        for (tool, args) in calls(path) {
            let (code, message) = bench.bad(tool, args).await;
            assert!(matches!(&*code, "tool_error" | "invalid_path"), "{tool}: {code}");
            // A long name is reported as a directory before it is opened.
            let said = message.contains("File name too long") || message.contains("is a directory");
            assert!(said, "{tool}: {message}");
            assert!(message.len() < 11_000, "{tool}: {} bytes", message.len());
        }
    }
    let turns = "in/../".repeat(50) + "in/file";
    assert_eq!(bench.good("read_file", json!({"path": turns})).await["content"], json!("inside"));
}

#[tokio::test]
async fn a_fifo_and_a_socket_are_refused_without_waiting() {
    let bench = hostile();
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    let fifo = bench.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(bench.path("socket")).unwrap();
    for name in ["fifo", "socket"] {
        for (tool, args) in calls(name) {
            let work = bench.bad(tool, args);
            let (code, message) = tokio::time::timeout(Duration::from_secs(5), work)
                .await
                .expect("nothing waits for a writer");
            assert_eq!(code, "invalid_path");
            let wanted = match tool {
                "list_files" => format!("{name} is not a directory"),
                _ => format!("{name} is not a regular file"),
            };
            assert_eq!(message, wanted, "{tool}");
        }
    }
    drop(socket);
}

#[tokio::test]
async fn a_listing_shows_symlinks_and_never_follows_them() {
    let bench = hostile();
    let listed = bench.good("list_files", json!({"depth": 20})).await;
    let text = listed.to_string();
    assert!(text.contains(r#"{"path":"to_sibling","type":"symlink"}"#), "{text}");
    assert!(!text.contains("to_sibling/x") && !text.contains("hostname"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_symlink_that_is_swapped_during_calls_never_leads_out() {
    let bench = hostile();
    // `door` is in turn a directory inside, and a symlink to the sibling outside.
    std::fs::create_dir(bench.path("good")).unwrap();
    std::fs::write(bench.path("good/x"), "inside").unwrap();
    symlink("../ws2", bench.path("bad")).unwrap();
    std::fs::rename(bench.path("good"), bench.path("door")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = std::thread::spawn({
        let (stop, root) = (stop.clone(), bench.context.workspace.clone());
        move || {
            let path = |name: &str| root.join(name);
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            let mut swaps = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let (a, b) = (path("door"), path("bad"));
                rustix::fs::renameat_with(rustix::fs::CWD, a, rustix::fs::CWD, b, flags).unwrap();
                swaps += 1;
            }
            swaps
        }
    });
    let (mut rounds, mut inside, mut refused) = (0, 0, 0);
    let begun = std::time::Instant::now();
    // Until both sides of the race were seen often.
    while (rounds < 300 || inside < 50 || refused < 50) && begun.elapsed() < Duration::from_secs(20)
    {
        rounds += 1;
        for (tool, args) in [
            ("read_file", json!({"path": "door/x"})),
            ("write_file", json!({"path": "door/planted", "content": "planted"})),
            ("write_file", json!({"path": "door/sub/planted", "content": "planted"})),
            ("list_files", json!({"path": "door"})),
        ] {
            let outcome = bench.call(tool, args).await;
            assert!(!outcome.result.to_string().contains(SECRET), "{}", outcome.result);
            if outcome.ok() { inside += 1 } else { refused += 1 }
        }
    }
    stop.store(true, Ordering::Relaxed);
    let swaps = swapper.join().unwrap();
    let seen = format!("{swaps} swaps, {inside} calls inside, {refused} refused");
    assert!(swaps > 100 && inside >= 50 && refused >= 50, "{seen}");
    assert_untouched(&bench);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: soak::count(40, 2560), ..ProptestConfig::default() })]

    #[test]
    fn dangerous_paths_never_leave_the_workspace(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "..", ".", "", "in", "inner", "to_secret", "to_sibling", "absolute", "root",
                "crooked", "ws", "ws2", "secret", "x", "file", "etc", "workspace", "new",
            ]),
            1..8,
        ),
        rooted in any::<bool>(),
    ) {
        let bench = hostile();
        let path = format!("{}{}", if rooted { "/" } else { "" }, parts.join("/"));
        if path.trim().is_empty() {
            return Ok(());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for (tool, args) in calls(&path) {
                let text = bench.call(tool, args).await.result.to_string();
                assert!(!text.contains(SECRET), "{tool} {path}: {text}");
            }
        });
        assert_untouched(&bench);
    }
}

#[tokio::test]
async fn file_tools_read_but_never_write_dot_git() {
    let bench = Bench::new();
    for (file, text) in [
        (".git/HEAD", "ref: refs/heads/main\n"),
        (".git/config", "[core]\n"),
        (".git/refs/heads/main", "0\n"),
        (".git/modules/one/config", "[core]\n"),
        (".git/worktrees/two/HEAD", "0\n"),
        ("libs/one/.git", "gitdir: ../../.git/modules/one\n"),
        ("store/HEAD", "ref: refs/heads/main\n"),
        ("store/config", "[core]\n"),
        ("store/objects/info/packs", "\n"),
        ("store/refs/heads/main", "0\n"),
        ("HEAD", "a file of the project\n"),
        ("refs/one", "1\n"),
    ] {
        bench.put(file, text);
    }
    symlink(".git", bench.path("link")).unwrap();
    symlink("../.git/config", bench.path("libs/config")).unwrap();
    symlink("store", bench.path("away")).unwrap();
    let whole = || tree(&bench.context.workspace);
    let before = whole();
    for path in [
        ".git",
        ".git/config",
        ".git/./config",
        "libs/../.git/config",
        ".GIT/config",
        ".git/HEAD",
        ".git/hooks/post-checkout",
        ".git/info/attributes",
        ".git/objects/info/alternates",
        ".git/commondir",
        ".git/config.worktree",
        ".git/new/deep/file",
        ".git/modules/one/config",
        ".git/modules/new/config",
        ".git/worktrees/two/commondir",
        "libs/one/.git",
        "libs/new/.git",
        "libs/new/.git/config",
        "link/config",
        "link/hooks/pre-commit",
        "libs/config",
        "store/config",
        "store/hooks/post-checkout",
        "store/objects/info/alternates",
        "away/config",
        "/workspace/.git/config",
    ] {
        let write = json!({"path": path, "content": "planted"});
        let edit = json!({"path": path, "old": "core", "new": "planted"});
        for (tool, arguments) in [("write_file", write), ("edit_file", edit)] {
            let (code, message) = bench.bad(tool, arguments).await;
            let known = code == "forbidden" && message.contains("belongs to a git repository");
            // No text can be edited, and no file can be created there.
            let nothing = tool == "edit_file"
                && ["not_found", "no_match", "tool_error"].contains(&code.as_str());
            assert!(known || nothing, "{tool} {path}: {code} {message}");
        }
    }
    assert_eq!(whole(), before);
    let written = json!({"path": "refs/new/two", "content": "2"});
    bench.good("write_file", written).await;
    assert_eq!(bench.get("refs/new/two"), "2");
    bench.good("write_file", json!({"path": ".gitignore", "content": "x"})).await;
    bench.good("read_file", json!({"path": ".git/config"})).await;
}
