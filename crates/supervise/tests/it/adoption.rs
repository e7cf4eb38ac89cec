//! The daemon dies; its programs continue.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use overmind_core::ids::SessionId;
use overmind_core::process::{
    Adopted, End, Ended, EndedBy, ExitStatus, LogKind, ProcessKey, ProcessSpec, Processes,
};
use overmind_supervise::{Options, Supervisor};
use rustix::process::Signal;

use crate::common::{
    PROGRAM, Place, TERMINAL, ended, eventually, exit, first, kill, leftovers, lives, parent,
    session, shell, text,
};

/// A separate daemon, with attempts of a command.
struct Daemon {
    child: Child,
    base: u128,
}

impl Daemon {
    fn start(root: &Path, io: &str, count: u32, script: &str) -> Self {
        let base = session();
        let (first, count) = (base.to_string(), count.to_string());
        let mut child = Command::new(PROGRAM)
            .args(["daemon", root.to_str().unwrap(), io, &first, &count, "sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, base: base.as_u128() }
    }

    /// The first life of its `n`-th session.
    fn key(&self, n: u128) -> ProcessKey {
        first(SessionId::from_u128(self.base + n))
    }

    /// Like the kernel: without a message.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

async fn live(supervisor: &Supervisor) -> Vec<ProcessKey> {
    let adopted = supervisor.adopt_all().await.unwrap();
    adopted
        .into_iter()
        .map(|one| match one {
            Adopted::Live(started) => started.key,
            other => panic!("{other:?}"),
        })
        .collect()
}

/// The raw output of a session, without markers.
async fn output(supervisor: &Supervisor, session: SessionId, follow: bool) -> Vec<u8> {
    let mut reader = supervisor.pieces(session, 0, follow).await.unwrap();
    let mut all = Vec::new();
    loop {
        let pieces = reader.next().await.unwrap();
        if pieces.is_empty() {
            return all;
        }
        for piece in pieces {
            if matches!(piece.kind, LogKind::Output) {
                all.extend(piece.bytes);
            }
        }
    }
}

#[tokio::test]
async fn output_is_complete_after_the_server_is_killed() {
    for (io, line_end) in [("pipes", "\n"), ("terminal", "\r\n")] {
        let dir = tempfile::tempdir().unwrap();
        let script =
            "if [ -t 0 ]; then stty -echo; fi; seq 1 300000; read go; echo \"got $go\"; exit 9";
        let daemon = Daemon::start(dir.path(), io, 2, script);
        let keys = [daemon.key(0), daemon.key(1)];
        let log = dir.path().join(keys[0].session.to_string());
        eventually("output flows", async || {
            let files = std::fs::read_dir(&log).into_iter().flatten().flatten();
            files.map(|file| file.metadata().map_or(0, |meta| meta.len())).sum::<u64>() > 1000
        })
        .await;
        daemon.kill();
        let supervisor = Place::supervisor(dir.path());
        assert_eq!(live(&supervisor).await, keys);
        let expected: String = (1..=300_000).map(|n| format!("{n}{line_end}")).collect();
        for key in keys {
            // A new reader sees everything from the beginning, and later output.
            let reading = output(&supervisor, key.session, true);
            let talking = async {
                supervisor.write(key, b"on\n".to_vec(), Duration::from_secs(20)).await.unwrap();
                exit(&supervisor, key).await
            };
            let (all, exit) = tokio::join!(reading, talking);
            assert_eq!((exit.status, exit.by), (ExitStatus::Code(9), EndedBy::Itself));
            let all = String::from_utf8(all).unwrap();
            let numbers: String =
                all.split_inclusive(line_end).filter(|line| !line.contains("o")).collect();
            assert_eq!(numbers.len(), expected.len(), "{io}");
            assert!(numbers == expected, "{io}");
            assert!(all.contains("got on"));
            supervisor.acknowledge(key).await.unwrap();
        }
    }
}

#[tokio::test]
async fn an_exit_without_a_server_is_reported_until_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), "pipes", 1, "read go; echo last; exit 7");
    // The input stays open after the daemon: the shim holds it. So end it by hand.
    let key = daemon.key(0);
    let supervisor = Place::supervisor(dir.path());
    daemon.kill();
    assert_eq!(live(&supervisor).await, [key]);
    supervisor.write(key, b"go\n".to_vec(), Duration::from_secs(20)).await.unwrap();
    let first_told = exit(&supervisor, key).await;
    assert_eq!(first_told.status, ExitStatus::Code(7));
    // This daemon dies too, before it has recorded the end.
    drop(supervisor);
    let on_disk = || {
        let left = leftovers(dir.path(), key.session);
        left.iter().any(|name| name == "exit-1") && !left.iter().any(|name| name.contains("sock"))
    };
    eventually("the end is on the disk, and its keeper is gone", async || on_disk()).await;
    for _ in 0..2 {
        let supervisor = Place::supervisor(dir.path());
        let adopted = supervisor.adopt_all().await.unwrap();
        assert_eq!(adopted, [Adopted::Ended(key, Ended::Exited(first_told))]);
        assert_eq!(exit(&supervisor, key).await, first_told);
        assert_eq!(text(&supervisor, key.session).await, "last\n--- ended: exit code 7 ---\n");
    }
    let supervisor = Place::supervisor(dir.path());
    supervisor.adopt_all().await.unwrap();
    supervisor.acknowledge(key).await.unwrap();
    assert!(leftovers(dir.path(), key.session).is_empty());
    assert_eq!(supervisor.adopt_all().await.unwrap(), []);
}

#[tokio::test]
async fn a_running_process_cannot_be_acknowledged_before_it_is_adopted() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), "pipes", 1, "read go");
    let key = daemon.key(0);
    daemon.kill();
    let supervisor = Place::supervisor(dir.path());
    let err = supervisor.acknowledge(key).await.unwrap_err();
    assert!(err.to_string().contains("it is alive"), "{err}");
    // Its socket is still there, so the next step can end it.
    assert_eq!(live(&supervisor).await, [key]);
    supervisor.end(key, End::Kill, None).await.unwrap();
    exit(&supervisor, key).await;
    supervisor.acknowledge(key).await.unwrap();
    assert!(leftovers(dir.path(), key.session).is_empty());
}

#[tokio::test]
async fn a_shim_killed_with_the_server_is_reported_as_lost() {
    for io in ["pipes", "bare"] {
        let dir = tempfile::tempdir().unwrap();
        let script = "setsid sh -c 'trap \"\" HUP TERM; while :; do sleep 0.01; done' & echo $!; \
                      while :; do sleep 0.01; done";
        let daemon = Daemon::start(dir.path(), io, 1, script);
        let key = daemon.key(0);
        let looking = Place::supervisor(dir.path());
        eventually("it has begun", async || text(&looking, key.session).await.ends_with('\n'))
            .await;
        let apart: i32 = text(&looking, key.session).await.trim().parse().unwrap();
        let Adopted::Live(started) = looking.adopt_all().await.unwrap().remove(0) else {
            panic!("it lives")
        };
        looking.close().await;
        daemon.kill();
        kill(parent(started.pid), Signal::KILL);
        let supervisor = Place::supervisor(dir.path());
        let adopted = supervisor.adopt_all().await.unwrap();
        let Adopted::Ended(found, Ended::Lost { killed, .. }) = &adopted[0] else {
            panic!("{adopted:?}")
        };
        assert!(*found == key && *killed >= 1, "{adopted:?}");
        assert!(!lives(apart) && !lives(i32::try_from(started.pid).unwrap()));
        supervisor.acknowledge(key).await.unwrap();
        assert!(leftovers(dir.path(), key.session).is_empty());
    }
}

/// The daemon binds the socket, and is killed before the supervisor process has its order.
#[tokio::test]
async fn a_start_that_did_not_reach_its_shim_can_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let key = first(session());
    let cut_off = |record: Option<&str>| {
        let dir = dir.path().join(key.session.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        drop(UnixListener::bind(dir.join("keeper-1.sock")).unwrap());
        if let Some(record) = record {
            std::fs::write(dir.join(record), "{").unwrap();
        }
    };
    for draft in [None, Some("life-1.new")] {
        cut_off(draft);
        let supervisor = Place::supervisor(dir.path());
        assert_eq!(supervisor.adopt_all().await.unwrap(), [], "{draft:?}");
        assert!(leftovers(dir.path(), key.session).is_empty(), "{draft:?}");
        supervisor.close().await;
    }
    cut_off(None);
    let supervisor = Place::supervisor(dir.path());
    assert_eq!(supervisor.adopt_all().await.unwrap(), []);
    supervisor.start(shell(key, "exit 7")).await.unwrap();
    assert_eq!(exit(&supervisor, key).await.status, ExitStatus::Code(7));
    supervisor.acknowledge(key).await.unwrap();
    supervisor.close().await;

    // With this record, the command may have been started.
    cut_off(Some("life-1"));
    let supervisor = Place::supervisor(dir.path());
    let adopted = supervisor.adopt_all().await.unwrap();
    assert!(matches!(adopted[..], [Adopted::Ended(_, Ended::Lost { .. })]), "{adopted:?}");
    supervisor.acknowledge(key).await.unwrap();
    assert!(leftovers(dir.path(), key.session).is_empty());
}

#[tokio::test]
async fn attach_and_exit_work_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let script = "echo before; while read line; do echo \"<$line>\"; done";
    let daemon = Daemon::start(dir.path(), "terminal", 3, script);
    daemon.kill();
    let supervisor = Place::supervisor(dir.path());
    let keys = live(&supervisor).await;
    assert_eq!(keys.len(), 3);
    for key in &keys {
        let mut viewer = supervisor.attach(*key, Default::default()).await.unwrap();
        viewer.write(b"hello\n".to_vec(), Duration::from_secs(20)).await.unwrap();
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains("<hello>") {
            match viewer.next().await.unwrap() {
                overmind_core::process::Seen::Output(bytes) => seen.extend(bytes),
                other => panic!("{other:?}"),
            }
        }
        assert!(String::from_utf8_lossy(&seen).starts_with("before\r\n"));
        supervisor.end(*key, End::Kill, None).await.unwrap();
        assert_eq!(exit(&supervisor, *key).await.status, ExitStatus::Signal(9));
        supervisor.acknowledge(*key).await.unwrap();
    }
}

#[tokio::test]
async fn a_shim_of_a_newer_version_is_refused_and_unchanged() {
    let place = Place::new();
    let key = first(session());
    let dir = place.dir.path().join(key.session.to_string());
    std::fs::create_dir(&dir).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(dir.join("keeper-1.sock")).unwrap();
    let newer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; 128];
        assert!(stream.read(&mut hello).unwrap() > 0);
        let running = format!(
            r#"{{"Running":{{"protocol":99,"key":{{"session":"{}","epoch":1}},"pid":1,"started_us":0,"offset":0,"end":0,"last_output_us":0,"terminal":null,"new":true}}}}"#,
            key.session
        );
        let mut frame = u32::try_from(running.len() + 1).unwrap().to_le_bytes().to_vec();
        frame.push(0);
        frame.extend(running.as_bytes());
        stream.write_all(&frame).unwrap();
        // The connection is closed, and nothing else is requested.
        assert_eq!(stream.read(&mut hello).unwrap(), 0);
    });
    let adopted = place.supervisor.adopt_all().await.unwrap();
    let Adopted::Unreachable { reason, .. } = &adopted[0] else { panic!("{adopted:?}") };
    assert!(reason.contains("protocol 99") && reason.contains("newer version"), "{reason}");
    newer.join().unwrap();
    assert!(dir.join("keeper-1.sock").exists());
}

#[tokio::test]
async fn a_directory_with_a_very_long_path_works() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("long".repeat(50)).join("longer".repeat(30));
    let supervisor = Supervisor::open(Options::new(PathBuf::from(PROGRAM), root.clone())).unwrap();
    let key = first(session());
    let spec = ProcessSpec { io: TERMINAL, ..shell(key, "echo here; read x; exit 4") };
    supervisor.start(spec).await.unwrap();
    drop(supervisor);
    let supervisor = Supervisor::open(Options::new(PathBuf::from(PROGRAM), root.clone())).unwrap();
    assert_eq!(live(&supervisor).await, [key]);
    supervisor.write(key, b"\n".to_vec(), Duration::from_secs(20)).await.unwrap();
    assert_eq!(exit(&supervisor, key).await.status, ExitStatus::Code(4));
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&root).unwrap());
    assert_eq!(mode & 0o777, 0o700);
}

#[tokio::test]
async fn two_daemons_may_adopt_and_both_get_the_exit() {
    let place = Place::new();
    let key = first(session());
    place.supervisor.start(shell(key, "exec sleep 1000")).await.unwrap();
    let other = Place::supervisor(place.dir.path());
    assert_eq!(live(&other).await, [key]);
    other.end(key, End::Kill, None).await.unwrap();
    let (one, two) = tokio::join!(ended(&place.supervisor, key), ended(&other, key));
    assert_eq!(one, two);
}
