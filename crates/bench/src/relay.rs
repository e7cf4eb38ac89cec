//! The cost of the gateway for models: the same calls directly and through `/llm`, alternating.
//!
//! Three processes: a provider that answers at once, a server of ours with everything on, and this one,
//! which asks. All share the machine's processors, so the rates are those of all three together.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overmind_cli::demo::daemon::{Daemon, Setup};
use overmind_cli::exit::Failure;
use overmind_core::time::Clock as _;
use overmind_node::app::clock::SystemClock;
use overmind_node::config::{DataDir, Env};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{Figure, Goal, Setting, percentile, process, rate};

/// Connections of the figures of latency.
pub(super) const FEW: u32 = 10;
/// The requests per second of each without load.
const PACE: u32 = 100;
/// Connections of the figure of throughput.
pub(super) const MANY: u32 = 64;
const STREAMS: u32 = 1_000;
/// Longest that all streams together may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two measurements of a server's memory.
const LOOK: Duration = Duration::from_millis(50);
/// Events of a stream, and the time between them.
const EVENTS: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(50);

const WHOLE: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}"#;
const EVENT: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word \"},\"finish_reason\":null}]}\n\n";

/// The server to call, and the complete request.
#[derive(Clone, Debug)]
pub(super) struct Target {
    port: u16,
    request: Arc<[u8]>,
}

impl Target {
    pub(super) fn new(port: u16, path: &str, token: &str, stream: bool) -> Self {
        let body = format!(
            "{{\"model\":\"m\",\"stream\":{stream},\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]}}",
            "word ".repeat(200)
        );
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        Self { port, request: (head + &body).into_bytes().into() }
    }
}

/// The provider, in a process of its own that ends with this value.
pub(super) struct Provider {
    child: Child,
    pub(super) port: u16,
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Provider {
    pub(super) fn start() -> Result<Self, Failure> {
        let fail = |what: &str, why: &dyn std::fmt::Display| {
            Failure::failed(format!("{what} the provider to measure with: {why}"))
        };
        let program = std::env::current_exe().map_err(|err| fail("finding", &err))?;
        let mut child = Command::new(program)
            .arg("--serve-provider")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|err| fail("starting", &err))?;
        let mut line = String::new();
        if let Some(pipe) = child.stdout.take() {
            BufReader::new(pipe).read_line(&mut line).map_err(|err| fail("hearing", &err))?;
        }
        match line.trim().parse() {
            Ok(port) => Ok(Self { child, port }),
            Err(err) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(fail("hearing", &err))
            }
        }
    }
}

/// Answers every request at once, until it is killed. `say` reports the port.
///
/// # Errors
///
/// When it cannot listen.
pub(super) async fn serve(say: impl FnOnce(u16)) -> std::io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    say(listener.local_addr()?.port());
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await?;
        let _ = socket.set_nodelay(true);
        connections.spawn(provide(socket));
        while connections.try_join_next().is_some() {}
    }
}

async fn provide(mut socket: TcpStream) -> std::io::Result<()> {
    let whole = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{WHOLE}",
        WHOLE.len()
    );
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let piece = format!("{:x}\r\n{EVENT}\r\n", EVENT.len());
    let done = "data: [DONE]\n\n";
    let last = format!("{:x}\r\n{done}\r\n0\r\n\r\n", done.len());
    let mut seen: Vec<u8> = Vec::with_capacity(8192);
    loop {
        let length = loop {
            if let Some(length) = message_length(&seen)
                && seen.len() >= length
            {
                break length;
            }
            if socket.read_buf(&mut seen).await? == 0 {
                return Ok(());
            }
        };
        let streams = memory_find(&seen[..length], b"\"stream\":true");
        seen.drain(..length);
        if !streams {
            socket.write_all(whole.as_bytes()).await?;
            continue;
        }
        socket.write_all(head.as_bytes()).await?;
        for n in 0..EVENTS {
            if n > 0 {
                SystemClock.sleep_until(SystemClock.now().after(BETWEEN)).await;
            }
            socket.write_all(piece.as_bytes()).await?;
        }
        socket.write_all(last.as_bytes()).await?;
    }
}

fn memory_find(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

/// The length of the first message, head and body, once its head is complete.
pub(super) fn message_length(got: &[u8]) -> Option<usize> {
    let end = got.windows(4).position(|end| end == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&got[..end]).ok()?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    Some(end + 4 + length.unwrap_or(0))
}

pub(super) async fn measure(setting: &Setting) -> Result<Vec<Figure>, Failure> {
    let (dir, work) = (setting.place("relay")?, setting.place("relay-work")?);
    let data = dir.join("data");
    DataDir::locate(Some(&data), &Env::default(), &dir)?.prepare()?;
    let provider = Provider::start()?;
    let setup = Setup {
        env: vec![("OVERMIND_MODEL_BASE_URL", format!("http://127.0.0.1:{}/v1", provider.port))],
        ..setting.setup(&[
            "--listen",
            "127.0.0.1:0",
            "--workspace",
            &work.to_string_lossy(),
            "--log",
            "warn",
        ])
    };
    let daemon = Daemon::start(&data, &setup)?;
    let url = daemon.server.url.clone().unwrap_or_default();
    let port = url.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let port = port.ok_or_else(|| Failure::failed(format!("{url} has no port")))?;
    let token = DataDir::locate(Some(&data), &Env::default(), &dir)?.admin_token()?;
    let both = |stream| {
        (
            Target::new(provider.port, "/v1/chat/completions", "none", stream),
            Target::new(port, "/llm/openai/v1/chat/completions", token.expose(), stream),
        )
    };
    let (direct, relayed) = both(false);
    let time = setting.time(Duration::from_secs(3));
    let (mut there, mut here) = (Vec::new(), Vec::new());
    let (mut fast, mut through) = (0.0_f64, 0.0_f64);
    let (mut calm_there, mut calm_here) = (Vec::new(), Vec::new());
    let (mut worked, mut busy) = (Duration::ZERO, 0);
    // Alternating, so that other load on the machine affects both.
    for _ in 0..3 {
        there.extend(load(&direct, FEW, time / 3).await?);
        let before = process::cpu(daemon.pid());
        let hurrying = watched(load(&relayed, FEW, time / 3), || process::rss(daemon.pid()));
        let (times, memory) = hurrying.await;
        here.extend(times?);
        busy = busy.max(memory);
        worked += process::cpu(daemon.pid()).saturating_sub(before);
        calm_there.extend(paced(&direct, time / 3).await?);
        calm_here.extend(paced(&relayed, time / 3).await?);
        fast = fast.max(per_second(load(&direct, MANY, time / 3).await?.len(), time / 3));
        through = through.max(per_second(load(&relayed, MANY, time / 3).await?.len(), time / 3));
    }
    for times in [&mut there, &mut here, &mut calm_there, &mut calm_here] {
        times.sort_unstable();
    }
    let each = worked.as_secs_f64() * 1e6 / rate_of(here.len());
    let (direct, relayed) = both(true);
    let rounds = setting.count(100).min(100);
    let (mut first_there, mut first_here) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        first_there.push(stream(&direct, true).await.map_err(|err| asking(&err))?);
        first_here.push(stream(&relayed, true).await.map_err(|err| asking(&err))?);
    }
    first_there.sort_unstable();
    first_here.sort_unstable();
    let count = setting.count(STREAMS);
    let (errors, peak) = crowd(&relayed, count, daemon.pid()).await;
    let at = |times: &[Duration], part: f64| percentile(times, part).as_secs_f64() * 1e3;
    let note = format!(
        "{FEW} connections, each asks again as soon as it has its answer, 1 kB, beside the same \
         calls without us: no machine is idle, so a latency is {FEW} calls' work"
    );
    let calm = format!(
        "{FEW} connections, each asks {PACE} times a second, 1 kB, beside the same calls without us"
    );
    Ok(vec![
        Figure::new("relay latency p50", at(&here, 0.5), "ms")
            .floor("provider alone", at(&there, 0.5))
            .goal(Goal::OverFloor(0.5))
            .note(note.clone()),
        Figure::new("relay latency p99", at(&here, 0.99), "ms")
            .floor("provider alone", at(&there, 0.99))
            .goal(Goal::OverFloor(3.0))
            .note(note),
        Figure::new("relay paced p50", at(&calm_here, 0.5), "ms")
            .floor("provider alone", at(&calm_there, 0.5))
            .goal(Goal::OverFloor(0.5))
            .note(calm.clone()),
        Figure::new("relay paced p99", at(&calm_here, 0.99), "ms")
            .floor("provider alone", at(&calm_there, 0.99))
            .goal(Goal::OverFloor(3.0))
            .note(calm),
        Figure::new("relay processor time", each, "µs")
            .note("of the server for a call, all its threads, at 10 connections that hurry"),
        Figure::new("relay rss, requests", mib(busy), "MiB")
            .goal(Goal::Most(40.0))
            .note("resident memory of the server while those hurry, at most"),
        Figure::new("relay requests", through, "requests/s")
            .floor("provider alone", fast)
            .goal(Goal::Least(6_000.0))
            .note(format!("{MANY} connections; load, provider and server on one machine")),
        Figure::new("relay first byte p50", at(&first_here, 0.5), "ms")
            .floor("provider alone", at(&first_there, 0.5))
            .goal(Goal::OverFloor(1.0))
            .note("of a stream, from sending the request to the first event"),
        Figure::new("relay streams failed", f64::from(errors), "streams")
            .goal(Goal::Most(0.0))
            .note(format!("of {count} at once, of {EVENTS} events each")),
        Figure::new("relay rss", peak, "MiB")
            .goal(Goal::Most(40.0))
            .note("resident memory of the server while those run, at most"),
    ])
}

fn asking(err: &std::io::Error) -> Failure {
    Failure::failed(format!("asking for a model: {err}"))
}

fn rate_of(count: usize) -> f64 {
    f64::from(u32::try_from(count.max(1)).unwrap_or(u32::MAX))
}

pub(super) fn per_second(count: usize, time: Duration) -> f64 {
    rate(u32::try_from(count).unwrap_or(u32::MAX), time)
}

/// Asks again and again on so many connections; how long each answer took.
pub(super) async fn load(
    target: &Target,
    connections: u32,
    time: Duration,
) -> Result<Vec<Duration>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..connections {
        clients.spawn(ask(target.clone(), Arc::clone(&stop)));
    }
    SystemClock.sleep_until(SystemClock.now().after(time)).await;
    stop.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    while let Some(done) = clients.join_next().await {
        let done = done.map_err(|err| Failure::failed(format!("a client ended: {err}")))?;
        times.extend(done.map_err(|err| asking(&err))?);
    }
    Ok(times)
}

/// Does `work`, and looks meanwhile how much memory there is, in bytes: the most of it.
async fn watched<T>(work: impl Future<Output = T>, memory: impl Fn() -> u64) -> (T, u64) {
    let (mut work, mut peak) = (std::pin::pin!(work), 0);
    loop {
        let look = SystemClock.sleep_until(SystemClock.now().after(LOOK));
        tokio::select! {
            done = &mut work => return (done, peak.max(memory())),
            () = look => peak = peak.max(memory()),
        }
    }
}

fn mib(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes >> 10).unwrap_or(u32::MAX)) / 1024.0
}

/// Asks at its own pace, whether there is an answer or not, on [`FEW`] connections; how long each
/// answer took. What was sent late, because an answer was, counts from when it was due.
async fn paced(target: &Target, time: Duration) -> Result<Vec<Duration>, Failure> {
    let gap = Duration::from_secs(1) / PACE;
    let mut clients = JoinSet::new();
    for client in 0..FEW {
        let target = target.clone();
        clients.spawn(async move {
            let mut socket = connect(&target).await?;
            let (mut seen, mut times) = (Vec::with_capacity(4096), Vec::new());
            let start = Instant::now() + gap * client / FEW;
            let mut due = start;
            while due.duration_since(start) < time {
                let now = Instant::now();
                let began = if now < due {
                    let wait = due.duration_since(now);
                    SystemClock.sleep_until(SystemClock.now().after(wait)).await;
                    Instant::now()
                } else {
                    due
                };
                exchange(&mut socket, &target, &mut seen).await?;
                times.push(began.elapsed());
                due += gap;
            }
            Ok::<_, std::io::Error>(times)
        });
    }
    let mut times = Vec::new();
    while let Some(done) = clients.join_next().await {
        let done = done.map_err(|err| Failure::failed(format!("a client ended: {err}")))?;
        times.extend(done.map_err(|err| asking(&err))?);
    }
    Ok(times)
}

async fn connect(target: &Target) -> std::io::Result<TcpStream> {
    let socket = TcpStream::connect(("127.0.0.1", target.port)).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Sends the request and reads the whole of its answer.
async fn exchange(
    socket: &mut TcpStream,
    target: &Target,
    seen: &mut Vec<u8>,
) -> std::io::Result<()> {
    socket.write_all(&target.request).await?;
    seen.clear();
    while message_length(seen).is_none_or(|length| seen.len() < length) {
        if socket.read_buf(seen).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    if seen.starts_with(b"HTTP/1.1 200") {
        return Ok(());
    }
    Err(std::io::Error::other(String::from_utf8_lossy(seen).into_owned()))
}

async fn ask(target: Target, stop: Arc<AtomicBool>) -> std::io::Result<Vec<Duration>> {
    let mut socket = connect(&target).await?;
    let (mut seen, mut times) = (Vec::with_capacity(4096), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        exchange(&mut socket, &target, &mut seen).await?;
        times.push(began.elapsed());
    }
    Ok(times)
}

/// One stream on a separate connection; the time to its first event. With `brief`, it is closed then.
async fn stream(target: &Target, brief: bool) -> std::io::Result<Duration> {
    let mut socket = TcpStream::connect(("127.0.0.1", target.port)).await?;
    socket.set_nodelay(true)?;
    let mut seen: Vec<u8> = Vec::with_capacity(8192);
    let began = Instant::now();
    socket.write_all(&target.request).await?;
    let mut first = None;
    while !memory_find(&seen, b"[DONE]") {
        if socket.read_buf(&mut seen).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if first.is_none() && memory_find(&seen, b"word") {
            first = Some(began.elapsed());
            if brief {
                break;
            }
        }
    }
    first.ok_or_else(|| std::io::Error::other(String::from_utf8_lossy(&seen).into_owned()))
}

/// Many streams at once: how many failed, and the most memory of the server meanwhile, in MiB.
async fn crowd(target: &Target, count: u32, pid: u32) -> (u32, f64) {
    crowd_of(target, count, || process::rss(pid)).await
}

/// The same of a server whose memory `memory` tells, in bytes.
pub(super) async fn crowd_of(target: &Target, count: u32, memory: impl Fn() -> u64) -> (u32, f64) {
    let mut streams = JoinSet::new();
    for _ in 0..count {
        let target = target.clone();
        streams.spawn(async move { stream(&target, false).await.is_ok() });
    }
    let began = Instant::now();
    let (mut failed, mut peak) = (0, 0);
    while !streams.is_empty() && began.elapsed() < PATIENCE {
        let look = SystemClock.sleep_until(SystemClock.now().after(LOOK));
        tokio::select! {
            Some(done) = streams.join_next() => failed += u32::from(!done.unwrap_or(false)),
            () = look => peak = peak.max(memory()),
        }
    }
    let left = u32::try_from(streams.len()).unwrap_or(u32::MAX);
    (failed + left, mib(peak))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_head_and_a_body() {
        assert_eq!(message_length(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"), Some(41));
        assert_eq!(message_length(b"GET / HTTP/1.1\r\n"), None);
    }
}
