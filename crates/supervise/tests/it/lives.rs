//! One attempt: its start, its input and output, its end.

use std::path::PathBuf;
use std::time::Duration;

use overmind_core::process::{
    End, EndedBy, ExitStatus, Leftovers, LogKind, LogQuery, NoteKind, ProcessError, ProcessIo,
    ProcessKey, ProcessSpec, Processes, StderrKind, StdinKind, TerminalSize,
};
use overmind_testkit::real::counterpart;
use rustix::process::Signal;

use crate::common::{
    PATIENCE, PIPES, Place, TERMINAL, eventually, first, groups, kill, leftovers, lines, marked,
    parent, refusal, session, shell,
};

const LIMIT: Duration = Duration::from_secs(10);
const STOP: End = End::Stop { grace: Duration::from_secs(20) };

#[tokio::test]
async fn the_exit_status_is_reported_for_terminals_and_pipes() {
    let place = Place::new();
    for io in [TERMINAL, PIPES] {
        for (script, status) in [
            ("exit 0", ExitStatus::Code(0)),
            ("echo bye; exit 3", ExitStatus::Code(3)),
            ("kill -9 $$", ExitStatus::Signal(9)),
            ("kill -15 $$", ExitStatus::Signal(15)),
        ] {
            let key = first(session());
            let exit = place.run(ProcessSpec { io, ..shell(key, script) }).await;
            assert_eq!((exit.status, exit.by), (status, EndedBy::Itself), "{script}");
            assert_eq!((exit.leftovers, exit.survivors), (0, 0));
            assert!(exit.started_at <= exit.ended_at && exit.max_resident_bytes > 0);
            place.supervisor.acknowledge(key).await.unwrap();
            eventually("the keeper goes", async || {
                leftovers(place.dir.path(), key.session).is_empty()
            })
            .await;
            assert!(groups(key.session).is_empty());
        }
    }
}

#[tokio::test]
async fn a_failed_start_names_the_step_and_cleans_up() {
    let place = Place::new();
    let script = place.dir.path().join("no-interpreter");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let of = |argv: &[&str], cwd: &str| {
        let argv = argv.iter().map(|&word| word.to_owned()).collect();
        ProcessSpec::new(first(session()), argv, PathBuf::from(cwd))
    };
    let long = "x".repeat(200 << 10);
    for (spec, step, words) in [
        (of(&["no-such-program"], "/"), "the program", "no `no-such-program` in the PATH"),
        (of(&[script.to_str().unwrap()], "/"), "the program", "interpreter"),
        (of(&["/etc/passwd"], "/"), "the program", "Permission denied"),
        (of(&["true"], "/no/such/dir"), "its directory", "/no/such/dir: No such file"),
        (of(&["true"], "relative"), "its directory", "absolute"),
        (of(&["true", &long], "/"), "the program", "128 KiB"),
        (of(&["true", "a\0b"], "/"), "an argument", "NUL"),
        (of(&[], "/"), "the program", "no command"),
    ] {
        let session = spec.key.session;
        let (found, reason) = refusal(place.supervisor.start(spec).await.unwrap_err());
        assert_eq!(found, step, "{reason}");
        assert!(reason.contains(words), "{reason}");
        eventually("nothing is left", async || {
            leftovers(place.dir.path(), session).is_empty() && groups(session).is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn a_command_inherits_nothing_from_the_server() {
    let place = Place::new();
    let key = first(session());
    let mut spec = shell(key, "pwd; umask; env; ls -1 /proc/self/fd");
    spec.cwd = PathBuf::from("/usr");
    spec.env.push(("GREETING".to_owned(), "hello world".to_owned()));
    place.run(spec).await;
    let text = place.text(key.session).await;
    let mut seen: Vec<&str> = text.lines().collect();
    seen.retain(|line| {
        !line.starts_with("PWD=") && !line.starts_with("_=") && !line.starts_with("---")
    });
    seen[2..].sort_unstable();
    let mark = format!("OVERMIND_LIFE={key}");
    let mut expected = vec![
        "GREETING=hello world",
        "PATH=/usr/local/bin:/usr/bin:/bin",
        &mark,
        // The last one is the directory that `ls` reads.
        "0",
        "1",
        "2",
        "3",
    ];
    expected.sort_unstable();
    assert_eq!(seen[..2], ["/usr", "0022"]);
    assert_eq!(seen[2..], expected);
}

#[tokio::test]
async fn input_arrives_in_order_and_can_be_closed() {
    let place = Place::new();
    let key = first(session());
    place.supervisor.start(ProcessSpec { io: PIPES, ..shell(key, "cat") }).await.unwrap();
    let all: String = (0..20_000).map(|n| format!("line {n}\n")).collect();
    for piece in all.as_bytes().chunks(70_001) {
        place.supervisor.write(key, piece.to_vec(), LIMIT).await.unwrap();
    }
    place.supervisor.close_input(key).await.unwrap();
    let exit = place.exit(key).await;
    assert_eq!(exit.status, ExitStatus::Code(0));
    let text = place.text(key.session).await;
    assert_eq!(text.strip_suffix("--- ended: exit code 0 ---\n"), Some(all.as_str()));
}

#[tokio::test]
async fn a_program_without_input_reads_end_of_file() {
    let place = Place::new();
    let key = first(session());
    place.run(shell(key, "cat; echo done")).await;
    assert!(place.text(key.session).await.starts_with("done\n"));
    let key = first(session());
    place.supervisor.start(shell(key, "sleep 1000")).await.unwrap();
    let refused = place.supervisor.write(key, b"x".to_vec(), LIMIT).await.unwrap_err();
    assert!(refused.to_string().contains("started without input"), "{refused}");
    place.supervisor.end(key, End::Kill, None).await.unwrap();
    place.exit(key).await;
}

#[tokio::test]
async fn a_program_that_does_not_read_blocks_its_writer_only_briefly() {
    let place = Place::new();
    let key = first(session());
    place
        .supervisor
        .start(ProcessSpec { io: PIPES, ..shell(key, "exec sleep 1000") })
        .await
        .unwrap();
    let given = 1 << 20;
    let short = Duration::from_millis(200);
    match place.supervisor.write(key, vec![b'x'; given], short).await {
        Err(ProcessError::InputFull { taken, given: of, .. }) => {
            assert!(taken > 0 && taken < given && of == given, "{taken}");
        }
        other => panic!("{other:?}"),
    }
    // Nothing else waits for it.
    place.supervisor.usage(key).await.unwrap();
    place.supervisor.end(key, End::Kill, Some("enough".to_owned())).await.unwrap();
    assert_eq!(place.exit(key).await.by, EndedBy::Kill);
}

#[tokio::test]
async fn a_writer_that_disconnects_does_not_block_the_next_one() {
    let place = Place::new();
    let key = first(session());
    let script = "read go < /dev/null; sleep 0.2; wc -c";
    place.supervisor.start(ProcessSpec { io: PIPES, ..shell(key, script) }).await.unwrap();
    let leaving = place.supervisor.write(key, vec![b'x'; 1 << 20], PATIENCE);
    assert!(tokio::time::timeout(Duration::from_millis(30), leaving).await.is_err());
    place.supervisor.write(key, b"more".to_vec(), PATIENCE).await.unwrap();
    place.supervisor.close_input(key).await.unwrap();
    assert_eq!(place.exit(key).await.status, ExitStatus::Code(0));
}

#[tokio::test]
async fn standard_error_is_tagged_on_request() {
    let place = Place::new();
    let key = first(session());
    let io = ProcessIo::Pipes { stdin: StdinKind::Null, stderr: StderrKind::Tagged };
    place.run(ProcessSpec { io, ..shell(key, "echo out; echo err >&2; printf half") }).await;
    let mut all = lines(&place.supervisor, key.session, LogQuery::default()).await;
    all.sort_by_key(|(_, text)| text.clone());
    assert_eq!(
        all,
        [
            (LogKind::Note(NoteKind::Ended), "--- ended: exit code 0 ---".to_owned()),
            (LogKind::Stderr, "err".to_owned()),
            (LogKind::Output, "half".to_owned()),
            (LogKind::Output, "out".to_owned()),
        ]
    );
}

#[tokio::test]
async fn a_terminal_has_the_requested_size_and_reports_changes() {
    let place = Place::new();
    let key = first(session());
    let script =
        "stty size; trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.01; done";
    place.supervisor.start(ProcessSpec { io: TERMINAL, ..shell(key, script) }).await.unwrap();
    place.until_says(key.session, "ready").await;
    place.supervisor.resize(key, TerminalSize { columns: 132, rows: 43 }).await.unwrap();
    assert_eq!(place.exit(key).await.status, ExitStatus::Code(0));
    let text = place.text(key.session).await;
    assert!(text.starts_with("24 80\nready\n43 132\n"), "{text}");
}

#[tokio::test]
async fn a_shell_in_a_terminal_answers() {
    let place = Place::new();
    let key = first(session());
    let mut spec = ProcessSpec { io: TERMINAL, ..shell(key, "") };
    spec.argv = vec!["sh".to_owned(), "-i".to_owned()];
    place.supervisor.start(spec).await.unwrap();
    place.supervisor.write(key, b"echo $((6*7)) && tty\n".to_vec(), LIMIT).await.unwrap();
    place.until_says(key.session, "/dev/pts/").await;
    let text = place.text(key.session).await;
    // After the shell's first prompt, if that came later than the typed line.
    let answers = |line: &str| line == "42" || line.ends_with(" 42");
    assert!(text.lines().any(answers), "{text}");
    let screen = place.supervisor.screen(key.session, 10).await.unwrap();
    assert!(screen.lines.iter().any(|line| answers(line)), "{screen:?}");
    // The terminal's end of file ends a shell.
    place.supervisor.close_input(key).await.unwrap();
    assert_eq!(place.exit(key).await.by, EndedBy::Itself);
}

#[tokio::test]
async fn needs_python_an_interpreter_in_a_terminal_answers() {
    if counterpart("MCP_PYTHON").is_none() {
        return;
    }
    let place = Place::new();
    let key = first(session());
    let mut spec = ProcessSpec { io: TERMINAL, ..shell(key, "") };
    spec.argv = vec!["python3".to_owned(), "-iq".to_owned()];
    place.supervisor.start(spec).await.unwrap();
    place.until_says(key.session, ">>>").await;
    place.supervisor.write(key, b"print(6 * 7)\n".to_vec(), LIMIT).await.unwrap();
    // With the next prompt: an end of input between them is lost when the shell resets its terminal.
    place.until_says(key.session, "\n42\n>>>").await;
    place.supervisor.close_input(key).await.unwrap();
    assert_eq!(place.exit(key).await.status, ExitStatus::Code(0));
}

#[tokio::test]
async fn a_line_that_the_terminal_would_truncate_is_refused() {
    let place = Place::new();
    let key = first(session());
    let script = "stty -echo; echo edited; read a; stty raw; echo raw; dd bs=1 count=5000 2>/dev/null | wc -c";
    place.supervisor.start(ProcessSpec { io: TERMINAL, ..shell(key, script) }).await.unwrap();
    place.until_says(key.session, "edited").await;
    let long = vec![b'x'; 5000];
    let refused = place.supervisor.write(key, long.clone(), LIMIT).await.unwrap_err();
    assert!(refused.to_string().contains("4095"), "{refused}");
    place.supervisor.write(key, b"short\n".to_vec(), LIMIT).await.unwrap();
    place.until_says(key.session, "raw").await;
    place.supervisor.write(key, long, LIMIT).await.unwrap();
    place.exit(key).await;
    assert!(place.text(key.session).await.contains("5000"));
}

#[tokio::test]
async fn a_stop_sends_term_first_and_kills_after_the_grace_period() {
    let place = Place::new();
    let polite = first(session());
    let script = "trap 'echo leaving; exit 7' TERM; echo ready; while :; do sleep 0.01; done";
    place.supervisor.start(shell(polite, script)).await.unwrap();
    place.until_says(polite.session, "ready").await;
    place.supervisor.end(polite, STOP, Some("no longer needed".to_owned())).await.unwrap();
    let exit = place.exit(polite).await;
    assert_eq!((exit.status, exit.by), (ExitStatus::Code(7), EndedBy::Stop));
    let text = place.text(polite.session).await;
    // A shell may print in between that its own child was terminated.
    assert!(text.starts_with("ready\n--- stopped: no longer needed ---\n"), "{text}");
    assert!(text.ends_with("leaving\n--- ended: exit code 7 ---\n"), "{text}");

    let deaf = first(session());
    let script = "trap '' TERM; echo ready; while :; do sleep 0.01; done";
    place.supervisor.start(shell(deaf, script)).await.unwrap();
    place.until_says(deaf.session, "ready").await;
    let short = End::Stop { grace: Duration::from_millis(50) };
    place.supervisor.end(deaf, short, None).await.unwrap();
    let exit = place.exit(deaf).await;
    assert_eq!((exit.status, exit.by), (ExitStatus::Signal(9), EndedBy::Stop));
    let text = place.text(deaf.session).await;
    assert!(text.contains("--- killed: it did not end within 50ms ---"), "{text}");
    assert!(marked(deaf.session).is_empty());
}

#[tokio::test]
async fn an_interactive_shell_that_ignores_term_ends_with_its_terminal() {
    let place = Place::new();
    let key = first(session());
    let mut spec = ProcessSpec { io: TERMINAL, ..shell(key, "") };
    spec.argv = vec!["sh".to_owned(), "-i".to_owned()];
    place.supervisor.start(spec).await.unwrap();
    place.supervisor.write(key, b"echo re''ady\n".to_vec(), LIMIT).await.unwrap();
    place.until_says(key.session, "ready").await;
    // With a grace period that is not waited for.
    place.supervisor.end(key, End::Stop { grace: PATIENCE * 10 }, None).await.unwrap();
    assert_eq!(place.exit(key).await.by, EndedBy::Stop);
}

#[tokio::test]
async fn processes_left_by_the_main_process_are_ended_and_counted() {
    let place = Place::new();
    let key = first(session());
    let exit = place.run(shell(key, "sleep 1000 & sleep 1000 & echo main; exit 5")).await;
    assert_eq!((exit.status, exit.leftovers), (ExitStatus::Code(5), 2));
    assert_eq!(exit.by, EndedBy::Itself);
    assert!(marked(key.session).is_empty());
    let text = place.text(key.session).await;
    assert!(text.contains("2 processes were left behind"), "{text}");

    let deaf = first(session());
    let mut spec = shell(deaf, "(trap '' TERM; echo on; while :; do sleep 0.01; done) & sleep 0.1");
    spec.leftovers = Leftovers::End { grace: Duration::from_millis(20) };
    let exit = place.run(spec).await;
    assert_eq!(exit.status, ExitStatus::Code(0));
    assert!(exit.leftovers >= 1 && marked(deaf.session).is_empty());

    let kept = first(session());
    let mut spec = shell(kept, "(sleep 0.1; echo late) & exit 4");
    spec.leftovers = Leftovers::Keep;
    let exit = place.run(spec).await;
    assert_eq!(exit.status, ExitStatus::Code(4));
    assert!(place.text(kept.session).await.starts_with("late\n"));
}

#[tokio::test]
async fn messages_about_an_earlier_attempt_do_not_affect_the_new_one() {
    let place = Place::new();
    let session = session();
    let (old, new) = (first(session), ProcessKey { session, epoch: 2 });
    place.run(shell(old, "echo one; exit 1")).await;
    let mut spec = shell(new, "echo two; exec sleep 1000");
    spec.opening = Some((NoteKind::Restart, "restart #1 at noon".to_owned()));
    place.supervisor.start(spec).await.unwrap();
    // Every message that names the old attempt is refused with the reason.
    let stale = |err: ProcessError| {
        assert!(matches!(err, ProcessError::Stale { newest: 2, .. }), "{err}");
    };
    stale(place.supervisor.end(old, End::Kill, None).await.unwrap_err());
    stale(place.supervisor.write(old, b"x".to_vec(), LIMIT).await.unwrap_err());
    stale(place.supervisor.usage(old).await.unwrap_err());
    assert!(place.supervisor.ended(old).await.is_err());
    assert_eq!(place.supervisor.activity(old), None);
    // Its late acknowledgement does not affect the new one.
    place.supervisor.acknowledge(old).await.unwrap();
    let live = place.supervisor.start(shell(old, "true")).await.unwrap_err();
    assert!(matches!(live, ProcessError::AlreadyLive { live } if live == new), "{live}");
    place.until_says(session, "two").await;
    place.supervisor.end(new, End::Kill, Some("test".to_owned())).await.unwrap();
    assert_eq!(place.exit(new).await.status, ExitStatus::Signal(9));
    stale(place.supervisor.start(shell(old, "true")).await.unwrap_err());
    stale(place.supervisor.start(shell(new, "true")).await.unwrap_err());
    assert_eq!(
        place.text(session).await,
        "one\n--- ended: exit code 1 ---\n--- restart #1 at noon ---\ntwo\n--- killed: test ---\n\
         --- ended: signal 9 ---\n"
    );
    // Also for a daemon without state, because the log contains it.
    let other = Place::supervisor(place.dir.path());
    place.supervisor.acknowledge(new).await.unwrap();
    let (step, reason) = refusal(other.start(shell(old, "true")).await.unwrap_err());
    assert_eq!((step, reason.as_str()), ("its log", "the session is in life 2 already"));
}

#[tokio::test]
async fn the_resource_use_of_a_tree_is_reported() {
    let place = Place::new();
    let key = first(session());
    let busy = "sleep 1000 & i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo busy; wait";
    place.supervisor.start(shell(key, busy)).await.unwrap();
    place.until_says(key.session, "busy").await;
    let usage = place.supervisor.usage(key).await.unwrap();
    assert!(usage.cpu > Duration::ZERO && usage.resident_bytes > 100_000, "{usage:?}");
    assert_eq!(usage.processes, 2);
    let activity = place.supervisor.activity(key).unwrap();
    assert_eq!(activity.offset, 5);
    place.supervisor.signal(key, Signal::INT.as_raw()).await.unwrap();
    let exit = place.exit(key).await;
    assert_eq!(exit.status, ExitStatus::Signal(2));
    assert!(exit.user + exit.system >= usage.cpu);
    assert!(marked(key.session).is_empty());
}

#[tokio::test]
async fn an_abandoned_start_is_cleaned_up() {
    let place = Place::new();
    for n in 0..30_u64 {
        let key = first(session());
        let starting = place.supervisor.start(shell(key, "exec sleep 1000"));
        let waited = tokio::time::timeout(Duration::from_micros(n * 150), starting).await;
        if waited.is_ok() {
            place.supervisor.end(key, End::Kill, None).await.unwrap();
            place.exit(key).await;
        }
        eventually("no process is left", async || {
            marked(key.session).is_empty() && groups(key.session).is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn the_end_of_an_attempt_is_reported_after_a_late_acknowledgement() {
    let place = Place::new();
    let one = first(session());
    let two = ProcessKey { epoch: one.epoch + 1, ..one };
    let started =
        place.supervisor.start(ProcessSpec { io: PIPES, ..shell(one, "read x") }).await.unwrap();
    let keeper = parent(started.pid);
    place.supervisor.write(one, b"\n".to_vec(), LIMIT).await.unwrap();
    place.exit(one).await;
    // Its shim answers only once the next attempt exists.
    kill(keeper, Signal::STOP);
    let mut acknowledged = std::pin::pin!(place.supervisor.acknowledge(one));
    let asked = tokio::time::timeout(Duration::from_millis(50), acknowledged.as_mut()).await;
    assert!(asked.is_err(), "a stopped keeper answers nothing");
    let spec = ProcessSpec { io: PIPES, ..shell(two, "read x; exit 3") };
    place.supervisor.start(spec).await.unwrap();
    kill(keeper, Signal::CONT);
    acknowledged.await.unwrap();
    place.supervisor.write(two, b"\n".to_vec(), LIMIT).await.unwrap();
    let told = tokio::time::timeout(LIMIT, place.exit(two)).await.expect("its end is told");
    assert_eq!(told.status, ExitStatus::Code(3));
    place.supervisor.acknowledge(two).await.unwrap();
}
