//! Long-lived children with pipes: they can be talked to, and leave nothing behind.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use overmind_core::piped::{Launcher, Piped, PipedRequest};
use overmind_core::sandbox::{Exit, SandboxError, SandboxLevel, SandboxLimits};
use overmind_sandbox::{Options, PipedLauncher};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

fn launcher() -> PipedLauncher {
    let init_program = PathBuf::from(env!("CARGO_BIN_EXE_overmind-sandbox-init"));
    PipedLauncher::new(Options { init_program, ..Options::default() })
}

fn request(level: SandboxLevel, workspace: &Path, script: &str) -> PipedRequest {
    PipedRequest {
        level,
        argv: ["sh", "-c", script].map(str::to_owned).into(),
        workspace: workspace.to_owned(),
        writable: Some(PathBuf::from(".")),
        cwd: PathBuf::from("."),
        read_only: Vec::new(),
        env: vec![("ONLY".to_owned(), "this".to_owned())],
        limits: SandboxLimits::default(),
    }
}

async fn until(out: &mut pipe::Receiver, wanted: &str) -> String {
    let mut text = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&text).contains(wanted) {
            if out.read_buf(&mut text).await.unwrap() == 0 {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reading).await.expect("the child answers");
    String::from_utf8_lossy(&text).into_owned()
}

fn receiver(end: OwnedFd) -> pipe::Receiver {
    pipe::Receiver::from_owned_fd(end).unwrap()
}

/// Processes of the whole machine whose command line contains `mark`.
fn marked(mark: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    all.filter(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(mark)
    })
    .count()
}

async fn gone(mark: &str) {
    let wait = async {
        while marked(mark) > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("all of the tree is gone");
}

const LEVELS: [SandboxLevel; 2] = [SandboxLevel::Namespace, SandboxLevel::None];

#[tokio::test]
async fn a_childs_pipes_and_exit_are_reported() {
    for level in LEVELS {
        let dir = tempfile::tempdir().unwrap();
        let script = "read line; echo got $line in $ONLY $HOME; exit 3";
        let Piped { stdin, stdout, stderr: _stderr, mut tree, attested } =
            launcher().launch(request(level, dir.path(), script)).await.unwrap();
        // Measured before it was started, and the same for the next one.
        let level_of = attested.map(|attested| attested.attestation.achieved);
        let measured = (level == SandboxLevel::Namespace).then_some(level);
        assert_eq!(level_of, measured, "{level:?}");
        File::from(stdin).write_all(b"hello\n").unwrap();
        let said = until(&mut receiver(stdout), "\n").await;
        assert_eq!(said.trim(), "got hello in this", "{level:?}");
        assert_eq!(tree.ended().await, Exit::Code(3), "{level:?}");
    }
}

#[tokio::test]
async fn a_child_that_ignores_end_of_input_is_killed_with_its_tree() {
    for level in LEVELS {
        let dir = tempfile::tempdir().unwrap();
        let mark = format!("86{}{}", std::process::id(), level as u8);
        // A grandchild in its own session, whose parent has ended: a daemon.
        let script = format!(
            "trap '' TERM HUP; (setsid sleep {mark} &) ; echo up; sleep {mark}; sleep {mark}"
        );
        let Piped { stdin, stdout, stderr: _stderr, tree, attested: _ } =
            launcher().launch(request(level, dir.path(), &script)).await.unwrap();
        drop(stdin);
        until(&mut receiver(stdout), "up\n").await;
        assert!(marked(&mark) > 0);
        tree.kill().await;
        // After the kill was awaited, no child is left to wait for.
        assert_eq!(marked(&mark), 0, "{level:?}");
    }
}

#[tokio::test]
async fn dropping_a_tree_ends_all_its_processes() {
    for level in LEVELS {
        let dir = tempfile::tempdir().unwrap();
        let mark = format!("87{}{}", std::process::id(), level as u8);
        let script = format!("(setsid sleep {mark} &) ; echo up; sleep {mark}");
        let piped = launcher().launch(request(level, dir.path(), &script)).await.unwrap();
        until(&mut receiver(piped.stdout), "up\n").await;
        drop(piped.tree);
        gone(&mark).await;
    }
}

#[tokio::test]
async fn a_missing_program_is_an_error_with_its_name() {
    for level in LEVELS {
        let dir = tempfile::tempdir().unwrap();
        let mut request = request(level, dir.path(), "");
        request.argv = vec!["no-such-program".to_owned()];
        match launcher().launch(request).await {
            Err(SandboxError::BadConfig { message, .. }) => {
                assert!(message.starts_with("cannot start `no-such-program`"), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
    let refused = launcher().launch(request(SandboxLevel::Docker, Path::new("/tmp"), "true")).await;
    assert!(matches!(refused, Err(SandboxError::BadConfig { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_namespaced_child_is_isolated() {
    let dir = tempfile::tempdir().unwrap();
    // Not in /tmp, which is another one inside.
    let shown = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(shown.path().join("seen"), "yes").unwrap();
    let script = format!(
        "pwd; ls /proc/1/root 2>&1 | head -1; cat {0}/seen; echo; touch {0}/x 2>/dev/null || echo read-only; echo done",
        shown.path().display()
    );
    let mut request = request(SandboxLevel::Namespace, dir.path(), &script);
    request.read_only = vec![shown.path().to_owned()];
    let Piped { stdin: _stdin, stdout, stderr: _stderr, tree: _tree, attested: _ } =
        launcher().launch(request).await.unwrap();
    let said = until(&mut receiver(stdout), "done\n").await;
    assert!(said.starts_with("/workspace\n"), "{said}");
    assert!(said.contains("yes\nread-only\ndone"), "{said}");
}
