//! The zygote and its supervisor processes as a separate program, for this crate's tests; the
//! product's binary calls the same function from its own `main`.
//!
//! It also contains helpers that those tests need in separate processes: a daemon that can be
//! killed (`daemon ROOT terminal|pipes|bare SESSION COUNT COMMAND…`), and a client that connects to
//! a supervisor process's socket (`knock SOCKET`).

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use overmind_core::ids::SessionId;
use overmind_core::process::{
    GroupWish, ProcessIo, ProcessKey, ProcessSpec, Processes, StderrKind, StdinKind, TerminalSize,
};
use overmind_supervise::{Options, Supervisor};

fn main() -> ExitCode {
    overmind_supervise::zygote::main_if_requested();
    let mut words = std::env::args().skip(1);
    let done = match words.next().as_deref() {
        Some("daemon") => daemon(words.collect()),
        Some("knock") => words.next().map_or(Some("no socket".to_owned()), |path| knock(&path)),
        Some(_) | None => Some("this program is started by a supervisor, not by hand".to_owned()),
    };
    match done {
        None => ExitCode::SUCCESS,
        Some(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
    }
}

/// Starts a process for each of `COUNT` sessions, beginning with the given one, and waits to be
/// killed.
fn daemon(words: Vec<String>) -> Option<String> {
    let [root, io, session, count, command @ ..] = words.as_slice() else {
        return Some("daemon ROOT terminal|pipes|bare SESSION COUNT COMMAND…".to_owned());
    };
    let Ok(session) = session.parse::<SessionId>() else { return Some("no session".to_owned()) };
    let Ok(count) = count.parse::<u32>() else { return Some("no count".to_owned()) };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime can be made");
    runtime.block_on(async {
        let program = PathBuf::from("/proc/self/exe");
        let supervisor = Supervisor::open(Options::new(program, PathBuf::from(root)));
        let supervisor = match supervisor {
            Ok(supervisor) => supervisor,
            Err(err) => return Some(err.to_string()),
        };
        for n in 0..count {
            let session = SessionId::from_u128(session.as_u128() + u128::from(n));
            let key = ProcessKey { session, epoch: 1 };
            let mut spec = ProcessSpec::new(key, command.to_vec(), PathBuf::from("/"));
            spec.env.push(("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()));
            spec.io = match io.as_str() {
                "terminal" => ProcessIo::Terminal(TerminalSize::default()),
                _ => ProcessIo::Pipes { stdin: StdinKind::Open, stderr: StderrKind::Merged },
            };
            spec.group = if io == "bare" { GroupWish::Never } else { GroupWish::IfPossible };
            if let Err(err) = supervisor.start(spec).await {
                return Some(err.to_string());
            }
        }
        let mut out = std::io::stdout();
        if out.write_all(b"ready\n").and_then(|()| out.flush()).is_err() {
            return Some("nobody listens".to_owned());
        }
        std::future::pending().await
    })
}

/// Connects to a socket and reports whether a peer answers.
fn knock(path: &str) -> Option<String> {
    let mut stream = match std::os::unix::net::UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(err) => return Some(format!("closed: {err}")),
    };
    let hello = br#"{"Hello":{"protocol":1}}"#;
    let length = u32::try_from(hello.len() + 1).expect("a short text");
    let mut frame = length.to_le_bytes().to_vec();
    frame.push(0);
    frame.extend_from_slice(hello);
    let mut answer = [0; 64];
    let heard = stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .and_then(|()| stream.write_all(&frame))
        .and_then(|()| stream.read(&mut answer));
    match heard {
        Ok(1..) => None,
        Ok(0) => Some("turned away".to_owned()),
        Err(err) => Some(format!("turned away: {err}")),
    }
}
