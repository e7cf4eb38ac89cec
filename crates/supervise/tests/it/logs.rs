//! Reading the written log.

use std::time::Duration;

use overmind_core::process::{
    End, LogFrom, LogItem, LogKind, LogLimits, LogQuery, NoteKind, ProcessError, ProcessIo,
    ProcessKey, ProcessSpec, Processes, StderrKind, StdinKind,
};

use crate::common::{PIPES, Place, TERMINAL, first, lines, session, shell};

fn texts(lines: Vec<(LogKind, String)>) -> Vec<String> {
    lines.into_iter().map(|(_, text)| text).collect()
}

#[tokio::test]
async fn a_log_is_read_from_any_position_and_filtered() {
    let place = Place::new();
    let key = first(session());
    let script = "for n in 1 2 3 4 5; do printf '\\033[3%dmcolour %d\\033[0m\\n' $n $n; done";
    place.run(ProcessSpec { io: TERMINAL, ..shell(key, script) }).await;
    let read = async |query: LogQuery| texts(lines(&place.supervisor, key.session, query).await);
    let plain = LogQuery { strip: true, notes: false, ..LogQuery::default() };
    assert_eq!(
        read(plain.clone()).await,
        ["colour 1", "colour 2", "colour 3", "colour 4", "colour 5"]
    );
    let kept = read(LogQuery { notes: false, ..LogQuery::default() }).await;
    assert_eq!(kept[0], "\u{1b}[31mcolour 1\u{1b}[0m");
    let tail = read(LogQuery { from: LogFrom::Tail(2), ..plain.clone() }).await;
    assert_eq!(tail, ["colour 5"], "the marker of the end is a line, too");
    let found = read(LogQuery { grep: Some("colour [24]$".to_owned()), ..plain.clone() }).await;
    assert_eq!(found, ["colour 2", "colour 4"]);
    let bad = LogQuery { grep: Some("(".to_owned()), ..plain };
    let err = place.supervisor.log(key.session, bad).await.unwrap_err();
    assert!(matches!(err, ProcessError::Pattern { .. }), "{err}");
}

#[tokio::test]
async fn a_follower_gets_new_lines_and_the_end() {
    let place = Place::new();
    let session = session();
    let key = first(session);
    place.supervisor.start(ProcessSpec { io: PIPES, ..shell(key, "cat") }).await.unwrap();
    let query = LogQuery { follow: true, ..LogQuery::default() };
    let mut reader = place.supervisor.log(session, query).await.unwrap();
    let next = async |reader: &mut Box<dyn overmind_core::process::LogReader>| {
        let items = tokio::time::timeout(crate::common::PATIENCE, reader.next()).await;
        let items = items.expect("it comes").unwrap();
        items
            .into_iter()
            .map(|item| match item {
                LogItem::Line(line) => String::from_utf8(line.text).unwrap(),
                LogItem::Gap { .. } => panic!("nothing is gone"),
            })
            .collect::<Vec<_>>()
    };
    for n in 0..20 {
        let text = format!("line {n}\n");
        place.supervisor.write(key, text.into_bytes(), Duration::from_secs(10)).await.unwrap();
        assert_eq!(next(&mut reader).await, [format!("line {n}")]);
    }
    place.supervisor.note(session, NoteKind::Human, "are you\nthere?".to_owned()).await.unwrap();
    assert_eq!(next(&mut reader).await, ["[human] are you\nthere?"]);
    place.supervisor.close_input(key).await.unwrap();
    assert_eq!(next(&mut reader).await, ["--- ended: exit code 0 ---"]);
    assert!(next(&mut reader).await.is_empty());
    // A follower must ask again for the next attempt.
    let second = ProcessKey { session, epoch: 2 };
    place.supervisor.start(shell(second, "echo again; exec sleep 1000")).await.unwrap();
    assert_eq!(next(&mut reader).await, ["again"]);
    place.supervisor.end(second, End::Kill, None).await.unwrap();
    place.exit(second).await;
    // Markers also where no life runs.
    place.supervisor.note(session, NoteKind::Note, "parked".to_owned()).await.unwrap();
    assert!(place.text(session).await.ends_with("--- parked ---\n"));
}

#[tokio::test]
async fn a_log_stays_within_its_limit_and_reports_removed_lines() {
    let place = Place::new();
    let key = first(session());
    let mut spec = shell(key, "seq 1 600000");
    spec.log = LogLimits {
        total_bytes: 1 << 20,
        segment_bytes: 128 << 10,
        max_age: Duration::from_secs(3600),
    };
    place.run(spec).await;
    let dir = place.dir.path().join(key.session.to_string());
    let size: u64 =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(size < (1 << 20) + (512 << 10), "{size}");
    let mut reader = place.supervisor.log(key.session, LogQuery::default()).await.unwrap();
    let mut items = Vec::new();
    loop {
        let more = reader.next().await.unwrap();
        if more.is_empty() {
            break;
        }
        items.extend(more);
    }
    let LogItem::Gap { from: 0, lines: Some(gone), .. } = items[0] else {
        panic!("{:?}", items[0])
    };
    let LogItem::Line(first_line) = &items[1] else { panic!("{:?}", items[1]) };
    assert_eq!(first_line.number, gone);
    assert_eq!(first_line.text, (gone + 1).to_string().into_bytes(), "numbers count the lost");
    let LogItem::Line(last) = &items[items.len() - 2] else { panic!() };
    assert_eq!((last.number, last.text.as_slice()), (599_999, b"600000".as_slice()));
}

#[tokio::test]
async fn a_million_lines_of_two_streams_are_complete() {
    let place = Place::new();
    let key = first(session());
    let io = ProcessIo::Pipes { stdin: StdinKind::Null, stderr: StderrKind::Tagged };
    let script = "seq 1 500000 & seq 500001 1000000 >&2; wait";
    place.run(ProcessSpec { io, ..shell(key, script) }).await;
    let all = lines(&place.supervisor, key.session, LogQuery::default()).await;
    let of = |kind: LogKind| -> Vec<u32> {
        let mine = all.iter().filter(|(found, _)| *found == kind);
        mine.map(|(_, text)| text.parse().unwrap()).collect()
    };
    assert!(of(LogKind::Output).into_iter().eq(1..=500_000));
    assert!(of(LogKind::Stderr).into_iter().eq(500_001..=1_000_000));
}

#[tokio::test]
async fn a_removed_session_leaves_nothing_and_a_running_one_is_kept() {
    let place = Place::new();
    let key = first(session());
    place.supervisor.start(shell(key, "echo x; exec sleep 1000")).await.unwrap();
    let err = place.supervisor.forget(key.session).await.unwrap_err();
    assert!(matches!(err, ProcessError::AlreadyLive { .. }), "{err}");
    place.supervisor.end(key, End::Kill, None).await.unwrap();
    place.exit(key).await;
    place.supervisor.acknowledge(key).await.unwrap();
    place.supervisor.forget(key.session).await.unwrap();
    place.supervisor.forget(key.session).await.unwrap();
    let left = place.dir.path().join(key.session.to_string());
    assert!(!left.exists());
    assert_eq!(place.text(key.session).await, "");
}

/// A small separate disk; `None` if this user may not mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m", "none"]).arg(dir.path());
        mount.status().is_ok_and(|status| status.success()).then_some(Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_full_disk_blocks_the_command_without_loss() {
    let Some(disk) = SmallDisk::mount() else {
        assert!(!rustix::process::geteuid().is_root() || cfg!(not(target_os = "linux")));
        return;
    };
    let root = disk.0.path().join("sessions");
    let supervisor = Place::supervisor(&root);
    let ballast = disk.0.path().join("ballast");
    let fill = || {
        // Until no more input is accepted, which is the subject of this test.
        let _ = std::fs::write(&ballast, vec![0; 8 << 20]);
    };
    let session = session();
    let key = first(session);
    supervisor
        .start(shell(key, "sleep 0.2; seq 1 100000; echo through >&2; exit 3"))
        .await
        .unwrap();
    fill();
    let size = || {
        let path = root.join(session.to_string()).join("0000000000000000.log");
        std::fs::metadata(path).map_or(0, |meta| meta.len())
    };
    let mut last = u64::MAX;
    crate::common::eventually("it stands still", async || {
        let pause = tokio::time::timeout(Duration::from_millis(400), std::future::pending::<()>());
        let _ = pause.await;
        let now = size();
        let stands = now == last;
        last = now;
        stands
    })
    .await;
    assert!(size() < 500_000, "{}", size());
    assert!(supervisor.usage(key).await.unwrap().processes >= 1, "it waits");
    std::fs::remove_file(&ballast).unwrap();
    let exit = crate::common::exit(&supervisor, key).await;
    assert_eq!(exit.status, overmind_core::process::ExitStatus::Code(3));
    let expected: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    let text = crate::common::text(&supervisor, session).await;
    assert!(text.starts_with(&expected), "{}", text.len());
    // An attempt that cannot write at all is ended nevertheless.
    let second = ProcessKey { session, epoch: 2 };
    supervisor.start(shell(second, "sleep 0.2; yes")).await.unwrap();
    fill();
    supervisor.end(second, End::Kill, None).await.unwrap();
    let exit = crate::common::exit(&supervisor, second).await;
    assert_eq!(exit.status, overmind_core::process::ExitStatus::Signal(9));
    supervisor.acknowledge(second).await.unwrap();
}

/// The content of all files of a session.
fn on_disk(dir: &std::path::Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => all.extend(on_disk(&entry.path())),
            kind if kind.is_file() => all.extend(std::fs::read(entry.path()).unwrap()),
            _ => {}
        }
    }
    all
}

#[tokio::test]
async fn secrets_of_a_command_are_masked_before_its_output_is_on_disk() {
    let place = Place::new();
    let secret = "value-of-a-secret-4711";
    for (n, io) in [PIPES, TERMINAL].into_iter().enumerate() {
        let key = first(session());
        let mut spec = ProcessSpec {
            io,
            // Whole, in pieces that are written one by one, encoded, and partly.
            ..shell(
                key,
                "echo one $KEY two; printf '%s' value-of-a-; read x; echo secret-4711; \
                 printf '%s' $KEY | od -An -tx1 -w64 | tr -d ' '; echo $OTHER; printf value-of",
            )
        };
        let token = format!("ovs_{}.1.{}", "0a".repeat(16), "1b".repeat(32));
        spec.env.push(("KEY".to_owned(), secret.to_owned()));
        spec.env.push(("OTHER".to_owned(), token.clone()));
        spec.secrets = vec![secret.to_owned()];
        place.supervisor.start(spec).await.unwrap();
        // A possible start of a secret is withheld only briefly.
        place.until_says(key.session, "value-of-a-").await;
        place.supervisor.write(key, b"\n".to_vec(), Duration::from_secs(10)).await.unwrap();
        place.exit(key).await;
        let query = LogQuery { notes: false, strip: true, ..LogQuery::default() };
        let mut shown = texts(lines(&place.supervisor, key.session, query).await);
        // A terminal shows the line end that was typed.
        shown.retain(|line| !line.is_empty());
        let rest = match n {
            0 => vec!["value-of-a-[redacted:secret]"],
            _ => vec!["value-of-a-", "secret-4711"],
        };
        let mut wanted = vec!["one [redacted:secret] two"];
        wanted.extend(rest);
        wanted.extend(["[redacted:secret]", "[redacted:session-token]", "value-of"]);
        assert_eq!(shown, wanted);
        let bytes = on_disk(place.dir.path());
        for text in [secret, &token[..40], &token[40..]] {
            let found = bytes.windows(text.len()).any(|part| part == text.as_bytes());
            assert!(!found, "{text} is on the disk");
        }
    }
}
