//! Requirements for every driver, and allowed differences ([`Gives`](crate::support::Gives)).
//!
//! Scripts use only features that both a full system and busybox have.

use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overmind_core::sandbox::{Exit, OutputSink, OutputStream, SandboxLevel};
use overmind_testkit::soak;

use crate::support::{
    Holdings, Place, Subject, host_listener, marker, pause, peak_memory, processes_with, until,
};

/// Makes one test per case for a driver.
macro_rules! suite {
    ($subject:path) => {
        crate::conformance::suite!(@ $subject;
            the_exit_code_is_the_commands
            a_signal_is_reported
            the_streams_are_kept_apart
            standard_input_arrives_whole_and_ends
            the_environment_is_the_requests
            the_command_starts_where_asked
            a_workspace_is_read_only_unless_asked
            a_writable_directory_is_written_and_nothing_else_is
            the_whole_workspace_can_be_writable
            a_writable_directory_outside_is_refused
            a_working_directory_outside_or_missing_is_refused
            a_missing_program_is_refused_by_name
            a_timeout_kills_the_whole_tree
            a_dropped_call_kills_the_whole_tree
            a_background_child_does_not_hold_the_call
            a_hundred_megabytes_of_output_are_counted_and_not_kept
            binary_output_becomes_text
            both_streams_are_bounded_each
            output_is_handed_over_while_the_command_runs
            the_hosts_network_is_out_of_reach
            the_hosts_files_are_out_of_sight
            the_hosts_processes_are_out_of_sight
            the_command_has_no_privileges
            the_number_of_processes_is_bounded
            a_fork_bomb_ends_with_the_timeout
            the_size_of_a_file_is_bounded
            temporary_space_is_bounded
            a_disk_filler_is_bounded
            memory_is_bounded
            many_runs_at_once_do_not_mix
            many_runs_leave_nothing_behind
            a_thousand_calls_dropped_at_random_leave_nothing_behind
        );
    };
    (@ $subject:path; $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(subject) = $subject().await {
                    crate::conformance::$case(&subject).await;
                }
            }
        )*
    };
}
pub(crate) use suite;

pub(crate) async fn the_exit_code_is_the_commands(subject: &Subject) {
    let place = Place::new();
    for code in [0, 1, 7, 125, 126, 127, 255] {
        let result = subject.run(place.sh(&format!("exit {code}"))).await;
        assert_eq!(result.exit, Exit::Code(code));
        assert_eq!(result.level, subject.sandbox.level());
    }
}

pub(crate) async fn a_signal_is_reported(subject: &Subject) {
    let place = Place::new();
    for signal in [9, 15] {
        let result = subject.run(place.sh(&format!("kill -{signal} $$"))).await;
        let expected =
            if subject.gives.signals { Exit::Signal(signal) } else { Exit::Code(128 + signal) };
        assert_eq!(result.exit, expected);
    }
}

pub(crate) async fn the_streams_are_kept_apart(subject: &Subject) {
    let place = Place::new();
    let result = subject.run(place.sh("echo out; echo err >&2; echo more")).await;
    assert_eq!(result.stdout.text, "out\nmore\n");
    assert_eq!(result.stderr.text, "err\n");
    assert_eq!((result.stdout.total_bytes, result.stderr.total_bytes), (9, 4));
    assert!(!result.stdout.truncated && !result.stderr.truncated);
    assert!(result.elapsed > Duration::ZERO);
}

pub(crate) async fn standard_input_arrives_whole_and_ends(subject: &Subject) {
    let place = Place::new();
    let mut request = place.request(&["cat"]);
    request.stdin = "über\nlast".as_bytes().to_vec();
    assert_eq!(subject.run(request).await.stdout.text, "über\nlast");

    assert_eq!(subject.says(&place, "wc -c").await.trim(), "0", "none given: at its end at once");

    let mut request = place.sh("wc -c");
    request.stdin = vec![0xfe; 3 << 20];
    assert_eq!(subject.run(request).await.stdout.text.trim(), (3 << 20).to_string());

    let mut unread = place.sh("exit 3");
    unread.stdin = vec![b'x'; 3 << 20];
    assert_eq!(subject.run(unread).await.exit, Exit::Code(3));
}

pub(crate) async fn the_environment_is_the_requests(subject: &Subject) {
    let place = Place::new();
    let mut request = place.request(&["env"]);
    request.env = [("PATH", "/usr/bin:/bin"), ("A", "1 = \"x\" $y"), ("EMPTY", ""), ("Ü", "ü")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .to_vec();
    let expected: Vec<String> =
        request.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let result = subject.run(request).await;
    let mut seen: Vec<&str> = result.stdout.text.lines().collect();
    if !subject.gives.exact_environment {
        let before = seen.len();
        seen.retain(|line| !line.starts_with("HOSTNAME=") && !line.starts_with("HOME="));
        assert!(seen.len() < before, "the limit is gone: make the table say so");
    }
    seen.sort_unstable();
    let mut expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

pub(crate) async fn the_command_starts_where_asked(subject: &Subject) {
    let place = Place::new();
    let base = match subject.inside {
        Some(inside) => inside.into(),
        None => place.workspace().canonicalize().unwrap(),
    };
    symlink("deep/er", place.workspace().join("link")).unwrap();
    for (cwd, expected) in
        [("", base.clone()), (".", base.clone()), ("deep/er", base.join("deep/er"))]
    {
        let mut request = place.request(&["pwd"]);
        request.cwd = cwd.into();
        let result = subject.run(request).await;
        assert_eq!(result.stdout.text.trim(), expected.to_str().unwrap(), "{cwd}");
    }
    let mut linked = place.request(&["pwd", "-P"]);
    linked.cwd = "link".into();
    let result = subject.run(linked).await;
    assert_eq!(result.stdout.text.trim(), base.join("deep/er").to_str().unwrap());
}

pub(crate) async fn a_workspace_is_read_only_unless_asked(subject: &Subject) {
    let place = Place::new();
    let result = subject.run(place.sh("cat hello; echo changed > hello")).await;
    assert_eq!(result.stdout.text, "hello\n");
    let after = std::fs::read_to_string(place.workspace().join("hello")).unwrap();
    if subject.gives.files {
        assert_ne!(result.exit, Exit::Code(0));
        assert_eq!(after, "hello\n");
    } else {
        assert_eq!((result.exit, after.as_str()), (Exit::Code(0), "changed\n"));
    }
}

pub(crate) async fn a_writable_directory_is_written_and_nothing_else_is(subject: &Subject) {
    let place = Place::new();
    let mut request = place.sh("echo new > out/file && mkdir out/sub && cat out/file");
    request.writable = Some("out".into());
    let result = subject.run(request).await;
    assert_eq!((result.exit, result.stdout.text.as_str()), (Exit::Code(0), "new\n"));
    let written = place.workspace().join("out/file");
    assert_eq!(std::fs::read_to_string(&written).unwrap(), "new\n");
    if subject.inside.is_some() && std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        let caller = std::fs::metadata("/proc/self").unwrap().uid();
        assert_eq!(std::fs::metadata(&written).unwrap().uid(), caller);
    }

    for elsewhere in ["hello", "deep/new", "new", "out/../new"] {
        let mut request = place.sh(&format!("echo x > {elsewhere}"));
        request.writable = Some("out".into());
        let refused = subject.run(request).await.exit != Exit::Code(0);
        assert_eq!(refused, subject.gives.files, "{elsewhere}");
    }
}

pub(crate) async fn the_whole_workspace_can_be_writable(subject: &Subject) {
    let place = Place::new();
    let mut request = place.sh("echo new > new && echo newer > out/newer");
    request.writable = Some(".".into());
    assert_eq!(subject.run(request).await.exit, Exit::Code(0));
    assert_eq!(std::fs::read_to_string(place.workspace().join("new")).unwrap(), "new\n");
    assert_eq!(std::fs::read_to_string(place.workspace().join("out/newer")).unwrap(), "newer\n");
}

pub(crate) async fn a_writable_directory_outside_is_refused(subject: &Subject) {
    let place = Place::new();
    let outside = place.workspace().parent().unwrap().join("outside");
    std::fs::create_dir(&outside).unwrap();
    symlink(&outside, place.workspace().join("absolute")).unwrap();
    symlink("../outside", place.workspace().join("relative")).unwrap();
    symlink("out", place.workspace().join("inner")).unwrap();
    // Even a link that stays inside is refused: it may point elsewhere a moment later.
    for escape in ["..", "../outside", "out/../..", "/etc", "absolute", "relative", "inner"] {
        let marker = marker();
        let mut request = place.sh(&format!("echo ran > hello # {marker}"));
        request.writable = Some(escape.into());
        let message = subject.refusal(request).await;
        assert_eq!(message, "write_subdir escapes workspace", "{escape}");
    }
    assert_eq!(std::fs::read_to_string(place.workspace().join("hello")).unwrap(), "hello\n");

    for (wrong, why) in [("missing", "No such file"), ("hello", "Not a directory")] {
        let mut request = place.sh("true");
        request.writable = Some(wrong.into());
        let message = subject.refusal(request).await;
        assert!(message.starts_with("cannot open the writable directory"), "{message}");
        assert!(message.contains(why), "{message}");
    }
}

pub(crate) async fn a_working_directory_outside_or_missing_is_refused(subject: &Subject) {
    let place = Place::new();
    symlink("/usr", place.workspace().join("absolute")).unwrap();
    symlink("..", place.workspace().join("relative")).unwrap();
    for escape in ["..", "/usr", "absolute", "relative", "deep/../.."] {
        let mut request = place.sh("true");
        request.cwd = escape.into();
        let message = subject.refusal(request).await;
        assert_eq!(message, "working directory escapes workspace", "{escape}");
    }
    let mut request = place.sh("true");
    request.cwd = "missing".into();
    let message = subject.refusal(request).await;
    assert!(message.starts_with("cannot open the working directory missing"), "{message}");

    let mut request = place.sh("true");
    request.workspace = place.workspace().join("nowhere");
    let message = subject.refusal(request).await;
    assert!(message.starts_with("cannot open the workspace"), "{message}");
}

pub(crate) async fn a_missing_program_is_refused_by_name(subject: &Subject) {
    let place = Place::new();
    for name in ["no-such-program", "/no/such/program", "./hello"] {
        if !subject.gives.signals {
            // The engine's init has started by then, and reports it as shells do.
            let result = subject.run(place.request(&[name])).await;
            assert!(matches!(result.exit, Exit::Code(126 | 127)), "{result:?}");
            assert!(result.stderr.text.contains(name), "{result:?}");
            continue;
        }
        let message = subject.refusal(place.request(&[name])).await;
        assert!(message.starts_with(&format!("cannot start `{name}`: ")), "{message}");
    }
}

/// A tree that tries to outlive its end: a child, a daemon that forked twice into a session of
/// its own, both deaf to polite signals. Says so when all of it runs.
fn stubborn_tree(marker: &str) -> String {
    format!(
        "trap '' TERM HUP INT; \
         sh -c 'trap \"\" TERM HUP INT; sleep 300; sleep 300' {marker} & \
         (setsid sh -c '(trap \"\" TERM HUP INT; sleep 300; sleep 300) & exec sleep 300' \
            {marker} </dev/null >/dev/null 2>&1 &) ; \
         echo ready > out/ready; \
         sleep 300; sleep 300; : {marker}"
    )
}

pub(crate) async fn a_timeout_kills_the_whole_tree(subject: &Subject) {
    let place = Place::new();
    let marker = marker();
    let mut request = place.sh(&stubborn_tree(&marker));
    request.writable = Some("out".into());
    request.timeout = Duration::from_millis(1500);
    let started = Instant::now();
    let running = async {
        until("the tree runs", || processes_with(&marker).len() >= 3).await;
    };
    let (result, ()) = tokio::join!(subject.run(request), running);
    assert_eq!(result.exit, Exit::TimedOut);
    assert!(result.elapsed >= Duration::from_millis(1500), "{:?}", result.elapsed);
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_eq!(processes_with(&marker), [0u32; 0], "gone when the call returns");
}

pub(crate) async fn a_dropped_call_kills_the_whole_tree(subject: &Subject) {
    let place = Place::new();
    let marker = marker();
    let mut request = place.sh(&stubborn_tree(&marker));
    request.writable = Some("out".into());
    {
        let call = subject.sandbox.run(request);
        let running = until("the tree runs", || processes_with(&marker).len() >= 3);
        tokio::select! {
            result = call => panic!("ended by itself: {result:?}"),
            () = running => {}
        }
    }
    until("the tree is gone", || processes_with(&marker).is_empty()).await;
}

pub(crate) async fn a_background_child_does_not_hold_the_call(subject: &Subject) {
    let place = Place::new();
    let marker = marker();
    let started = Instant::now();
    let result = subject.run(place.sh(&format!("sh -c 'sleep 300; :' {marker} & echo done"))).await;
    assert_eq!((result.exit, result.stdout.text.as_str()), (Exit::Code(0), "done\n"));
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_eq!(processes_with(&marker), [0u32; 0]);
}

pub(crate) async fn a_hundred_megabytes_of_output_are_counted_and_not_kept(subject: &Subject) {
    const BYTES: u64 = 100 << 20;
    let place = Place::new();
    subject.says(&place, "echo warm").await;
    let before = peak_memory();
    let result = subject.run(place.sh(&format!("head -c {BYTES} /dev/zero"))).await;
    assert_eq!(result.exit, Exit::Code(0));
    assert_eq!(result.stdout.total_bytes, BYTES);
    assert_eq!(result.stdout.text.len(), 100_000);
    assert!(result.stdout.truncated);
    let grown = peak_memory() - before;
    assert!(grown < 16 << 20, "{grown} bytes more");
}

pub(crate) async fn binary_output_becomes_text(subject: &Subject) {
    let place = Place::new();
    let result = subject.run(place.sh(r"printf 'a\000\377\376b\342\202'")).await;
    assert_eq!(result.stdout.text, "a\0\u{fffd}\u{fffd}b\u{fffd}");
    assert_eq!((result.stdout.total_bytes, result.stdout.truncated), (7, false));
}

pub(crate) async fn both_streams_are_bounded_each(subject: &Subject) {
    let place = Place::new();
    let mut request = place.sh("printf 'aü€xyz'; printf '0123456789' >&2");
    request.limits.output_bytes = 4;
    let result = subject.run(request).await;
    assert_eq!(result.stdout.text, "aü", "never half a character");
    assert_eq!(result.stderr.text, "0123");
    assert_eq!((result.stdout.total_bytes, result.stderr.total_bytes), (9, 10));
    assert!(result.stdout.truncated && result.stderr.truncated);
}

pub(crate) async fn output_is_handed_over_while_the_command_runs(subject: &Subject) {
    let place = Place::new();
    let heard: Arc<Mutex<[Vec<u8>; 2]>> = Arc::default();
    let into = Arc::clone(&heard);
    let sink: OutputSink = Arc::new(move |stream, piece| {
        assert!(!piece.is_empty() && piece.len() <= 64 << 10, "{}", piece.len());
        into.lock().unwrap()[usize::from(stream == OutputStream::Stderr)].extend(piece);
    });
    // More output is received than kept.
    let mut request =
        place.sh("printf 'aü€'; echo err >&2; while [ ! -e go ]; do :; done; echo end");
    request.limits.output_bytes = 2;
    let heard_early = async {
        until("the first words", || heard.lock().unwrap()[0] == "aü€".as_bytes()).await;
        // The command waits for this, so it has not ended.
        std::fs::write(place.workspace().join("go"), "").unwrap();
    };
    let call = subject.sandbox.run_streaming(request, sink);
    let (result, ()) = tokio::join!(call, heard_early);
    let result = result.unwrap();
    assert_eq!((result.exit, result.stdout.text.as_str()), (Exit::Code(0), "a"));
    assert_eq!(heard.lock().unwrap()[0], "aü€end\n".as_bytes());
    assert_eq!(heard.lock().unwrap()[1], b"err\n");
}

pub(crate) async fn the_hosts_network_is_out_of_reach(subject: &Subject) {
    let place = Place::new();
    let (_listener, port) = host_listener();
    // Full systems have bash, busybox has nc.
    let connect = format!(
        "if command -v bash >/dev/null; then bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'; \
         else nc -w 1 127.0.0.1 {port} </dev/null; fi 2>/dev/null && echo reached || echo alone"
    );
    let expected = if subject.gives.network { "alone" } else { "reached" };
    assert_eq!(subject.says(&place, &connect).await.trim(), expected);
    if subject.gives.network {
        let devices = subject.says(&place, "cat /proc/net/dev").await;
        let devices: Vec<_> =
            devices.lines().skip(2).map(|line| line.split(':').next().unwrap().trim()).collect();
        assert_eq!(devices, ["lo"]);
    }
}

pub(crate) async fn the_hosts_files_are_out_of_sight(subject: &Subject) {
    let place = Place::new();
    let secret = place.secret();
    let secret = secret.to_str().unwrap();
    let seen = subject.says(&place, &format!("cat {secret} 2>/dev/null || echo hidden")).await;
    if !subject.gives.files {
        assert_eq!(seen, "a-secret");
        return;
    }
    assert_eq!(seen, "hidden\n");
    for path in ["/root/.*rc", "/home/*/*", "/etc/shadow", "/run/*.sock", "/var/run/*.sock"] {
        let found = subject
            .says(&place, &format!("cat {path} 2>/dev/null; ls -d {path} 2>/dev/null; true"))
            .await;
        assert_eq!(found, "", "{path}");
    }
    // Visible files cannot be changed, and files that act on the machine are not writable.
    for path in
        ["/", "/usr", "/bin", "/etc", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"]
    {
        let tried = subject.says(&place, &format!("test -w {path} && echo writable; true")).await;
        assert_eq!(tried, "", "{path}");
    }
    subject.says(&place, "touch /tmp/a /dev/shm/b && test -w /dev/null").await;
}

pub(crate) async fn the_hosts_processes_are_out_of_sight(subject: &Subject) {
    let place = Place::new();
    let marker = marker();
    // `read` is a shell builtin, so that there is one process and it ends with its input.
    let mut stranger = std::process::Command::new("sh")
        .args(["-c", "read never", &marker])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    until("the stranger runs", || !processes_with(&marker).is_empty()).await;
    // In pieces, so that the search does not find itself.
    let (first, second) = marker.split_at(marker.len() / 2);
    let search = format!(
        "n=0; for p in /proc/[0-9]*; do \
         if grep -q \"{first}\"\"{second}\" $p/cmdline 2>/dev/null; then n=1; fi; done; echo $n"
    );
    let seen = subject.says(&place, &search).await;
    let environment =
        subject.says(&place, "cat /proc/1/environ 2>/dev/null | tr '\\0' '\\n'; true").await;
    let one = std::fs::read_to_string("/proc/1/environ").unwrap_or_default();
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    if subject.gives.processes {
        assert_eq!(seen.trim(), "0");
        for variable in one.split('\0').filter(|variable| variable.len() > 12) {
            assert!(!environment.contains(variable), "process 1 of the host is readable");
        }
    } else {
        assert_eq!(seen.trim(), "1");
    }
}

pub(crate) async fn the_command_has_no_privileges(subject: &Subject) {
    if !subject.gives.privileges {
        return; // Its table says so, and there is nothing to prove: it is the caller.
    }
    let place = Place::new();
    let status = subject.says(&place, "cat /proc/self/status").await;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
        line.split_once(':').unwrap().1.trim().to_owned()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&field(set), 16), Ok(0), "{set}");
    }
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2");
    for id in field("Uid").split_ascii_whitespace().chain(field("Gid").split_ascii_whitespace()) {
        assert_ne!(id, "0");
    }
}

pub(crate) async fn the_number_of_processes_is_bounded(subject: &Subject) {
    if !subject.gives.processes {
        return; // A bound would count all of the user's processes on the host.
    }
    let place = Place::new();
    // The subshell dies when it can fork no more; the count needs no fork.
    let mut request = place
        .sh("(i=0; while [ $i -lt 200 ]; do sleep 300 & i=$((i+1)); done) >/dev/null 2>&1; \
         set -- /proc/[0-9]*; echo $#");
    request.limits.pids = 40;
    let result = subject.run(request).await;
    let count: usize = result.stdout.text.trim().parse().unwrap();
    // The driver's own processes may or may not count.
    assert!((30..=42).contains(&count), "{count} processes");
}

pub(crate) async fn a_fork_bomb_ends_with_the_timeout(subject: &Subject) {
    if !subject.gives.processes {
        return; // Without a bound it would be the host that is tried here.
    }
    let place = Place::new();
    let marker = marker();
    let mut request = place.sh(&format!("b() {{ b | b & }}; b; sleep 300; : {marker}"));
    request.limits.pids = 64;
    request.timeout = Duration::from_millis(1000);
    let result = subject.run(request).await;
    // The shell itself may be the first that cannot fork.
    assert!(matches!(result.exit, Exit::TimedOut | Exit::Code(_)), "{result:?}");
    assert_eq!(processes_with(&marker), [0u32; 0]);
    assert_eq!(subject.says(&place, "echo still here").await, "still here\n");
}

pub(crate) async fn the_size_of_a_file_is_bounded(subject: &Subject) {
    let place = Place::new();
    let mut request = place.sh("head -c 3000000 /dev/zero > out/big");
    request.writable = Some("out".into());
    request.limits.file_bytes = 1 << 20;
    let result = subject.run(request).await;
    assert_ne!(result.exit, Exit::Code(0));
    let size = std::fs::metadata(place.workspace().join("out/big")).unwrap().len();
    assert!(size <= 1 << 20, "{size} bytes");
}

pub(crate) async fn temporary_space_is_bounded(subject: &Subject) {
    if !subject.gives.files {
        return; // It is the host's own /tmp.
    }
    let place = Place::new();
    let mut request = place.sh("head -c 3000000 /dev/zero > /tmp/big; stat -c %s /tmp/big");
    request.limits.tmp_bytes = 1 << 20;
    let result = subject.run(request).await;
    let size: u64 = result.stdout.text.trim().parse().unwrap();
    assert!((1..=1 << 20).contains(&size), "{size} bytes");
}

pub(crate) async fn a_disk_filler_is_bounded(subject: &Subject) {
    if !subject.gives.files {
        return; // It is the host's own /tmp.
    }
    let place = Place::new();
    // Many files, each within its own limit.
    let mut request = place
        .sh("i=0; while [ $i -lt 60 ] && head -c 100000 /dev/zero > /tmp/f$i 2>/dev/null; do \
         i=$((i+1)); done; echo $i");
    request.limits.tmp_bytes = 1 << 20;
    let result = subject.run(request).await;
    let files: u32 = result.stdout.text.trim().parse().unwrap();
    assert!((1..=10).contains(&files), "{files} files of 100 kB in 1 MiB");
    // Not `-A`: a workspace at the host's path may be below a directory with a dot.
    assert_eq!(subject.says(&place, "ls /tmp").await, "", "and the next one starts empty");
}

pub(crate) async fn memory_is_bounded(subject: &Subject) {
    let place = Place::new();
    let script = "dd if=/dev/zero of=/dev/null bs=150M count=1 2>/dev/null";
    let mut enough = place.sh(script);
    enough.limits.memory_bytes = 400 << 20;
    assert_eq!(subject.run(enough).await.exit, Exit::Code(0));
    let mut little = place.sh(script);
    little.limits.memory_bytes = 64 << 20;
    assert_ne!(subject.run(little).await.exit, Exit::Code(0));
}

pub(crate) async fn many_runs_at_once_do_not_mix(subject: &Subject) {
    let place = Place::new();
    let runs = (0..16).map(|number| {
        let mut request = place.sh("cat; echo $NUMBER >&2; exit $NUMBER");
        request.stdin = format!("in {number}").into_bytes();
        request.env.push(("NUMBER".to_owned(), number.to_string()));
        async move {
            let result = subject.run(request).await;
            assert_eq!(result.exit, Exit::Code(number));
            assert_eq!(result.stdout.text, format!("in {number}"));
            assert_eq!(result.stderr.text, format!("{number}\n"));
        }
    });
    futures_util::future::join_all(runs).await;
}

pub(crate) async fn many_runs_leave_nothing_behind(subject: &Subject) {
    let place = Place::new();
    let marker = marker();
    let one = || async {
        let script = format!("(setsid sleep 300 &) ; : {marker}");
        assert_eq!(subject.run(place.sh(&script)).await.exit, Exit::Code(0));
    };
    one().await;
    let before = Holdings::now();
    // Creating a container takes a hundred times as long.
    let rounds = if subject.gives.signals { soak::count(8, 50) } else { soak::count(1, 5) };
    for _ in 0..rounds {
        tokio::join!(one(), one(), one(), one());
    }
    subject.close().await;
    // A connection of the first run may still have been closing when it was counted, so fewer
    // is as good; a leak would be one per run.
    until("no more descriptors, mounts or children than before", || {
        Holdings::now().within(&before)
    })
    .await;
    assert_eq!(processes_with(&marker), [0u32; 0]);
}

/// Commands like those of an agent: ignoring signals, forking away, with much output, quick.
const HABITS: &[&str] = &[
    "echo hi",
    "trap '' TERM HUP INT; sleep 300",
    "(setsid sh -c 'trap \"\" TERM HUP; sleep 300; :' </dev/null >/dev/null 2>&1 &); sleep 300",
    "sh -c 'sleep 300; :' & exit 3",
    "head -c 1000000 /dev/zero; sleep 300",
    "cat > /dev/null; exit 0",
    "i=0; while [ $i -lt 20 ]; do sleep 300 & i=$((i+1)); done; wait",
];

/// Calls end in every way at every moment; afterwards the host is as it was.
pub(crate) async fn a_thousand_calls_dropped_at_random_leave_nothing_behind(subject: &Subject) {
    let place = Place::new();
    let marker = marker();
    assert_eq!(subject.run(place.sh(&format!(": {marker}"))).await.exit, Exit::Code(0));
    let before = Holdings::now();
    // Creating a container or a guest takes a hundred times as long.
    let quick = matches!(subject.sandbox.level(), SandboxLevel::None | SandboxLevel::Namespace);
    let (calls, latest) = if quick { (soak::count(100, 1000), 40) } else { (24, 1500) };
    let mut random = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(std::process::id());
    eprintln!("random numbers from {random:#x}");
    let mut dropped = 0;
    let mut ended = 0;
    for round in 0..calls / 4 {
        let four = (0..4).map(|number| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let habit = HABITS[(round * 4 + number) % HABITS.len()];
            let mut request = place.sh(&format!("{habit}; : {marker}"));
            request.stdin = vec![b'x'; 1000];
            request.timeout = Duration::from_millis(500);
            let when = Duration::from_micros(random % (latest * 1000));
            async move {
                tokio::select! {
                    result = subject.sandbox.run(request) => {
                        // Missing features of the machine are not leaks.
                        result.unwrap_or_else(|err| panic!("{err:?}"));
                        true
                    }
                    () = pause(when) => false,
                }
            }
        });
        for whole in futures_util::future::join_all(four).await {
            if whole { ended += 1 } else { dropped += 1 }
        }
    }
    assert!(dropped > calls / 10, "{dropped} dropped, {ended} ended");
    until("no process is left", || processes_with(&marker).is_empty()).await;
    subject.close().await;
    let gone = || Holdings::now().within(&before);
    let started = Instant::now();
    while !gone() {
        let now = Holdings::now();
        assert!(started.elapsed() < Duration::from_secs(20), "before {before:?}, now {now:?}");
        pause(Duration::from_millis(20)).await;
    }
}
