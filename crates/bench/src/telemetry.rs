//! The cost of exporting the log to an OpenTelemetry collector on a busy server: the same steps of
//! agents with and without a collector, alternating.
//!
//! The collector is part of this process, on a loopback socket: it reads all data and ignores it.
//! The cost of reading is included.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use overmind_cli::exit::Failure;
use overmind_node::app::App;
use overmind_node::config::settings;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::engine::{agent, many, prepared, start_app_with};
use super::{Figure, Setting, ms, process, rate};

const SESSIONS: u32 = 64;
/// Each of them once without a collector and once with one.
const ROUNDS: usize = 5;
/// How long spans are gathered here: a round is shorter than the usual five seconds.
const GATHERED_MS: u64 = 500;

/// A collector, for as long as it is kept.
struct Collector {
    url: String,
    /// Requests for spans that it took.
    taken: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    _serving: JoinSet<()>,
}

impl Collector {
    async fn start() -> Result<Self, Failure> {
        let fail = |err: std::io::Error| Failure::failed(format!("a collector: {err}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(fail)?;
        let url = format!("http://{}", listener.local_addr().map_err(fail)?);
        let (taken, bytes) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let mut serving = JoinSet::new();
        let (requests, sum) = (Arc::clone(&taken), Arc::clone(&bytes));
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&requests), Arc::clone(&sum)));
            }
        });
        Ok(Self { url, taken, bytes, _serving: serving })
    }
}

/// Takes what one connection sends, until it ends.
async fn serve(mut stream: TcpStream, taken: Arc<AtomicU64>, bytes: Arc<AtomicU64>) {
    let mut held: Vec<u8> = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = held.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            match stream.read_buf(&mut held).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        };
        let text = String::from_utf8_lossy(&held[..head]).to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
        while held.len() < head + length {
            match stream.read_buf(&mut held).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        held.drain(..head + length);
        bytes.fetch_add(length as u64, Ordering::Relaxed);
        taken.fetch_add(u64::from(text.starts_with("post /v1/traces")), Ordering::Relaxed);
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.is_err() {
            return;
        }
    }
}

async fn app(dir: &Path, turns: u32, collector: Option<&str>) -> Result<App, Failure> {
    std::fs::create_dir(dir)
        .map_err(|err| Failure::failed(format!("making {}: {err}", dir.display())))?;
    let mut values = Vec::new();
    if let Some(url) = collector {
        values.push((settings::OTLP, "the bench", url.to_owned()));
        values.push((settings::OTEL_SPANS_EVERY, "the bench", GATHERED_MS.to_string()));
    }
    let app = start_app_with(dir, values).await?;
    prepared(dir, turns, &[("short", turns)])?;
    agent(app.engine(), "short").await?;
    // Warm: the first sessions pay for caches and threads.
    many(app.engine(), "short", 2).await?;
    Ok(app)
}

/// Steps a second, and processor time of this process for each step in milliseconds.
async fn round(app: &App) -> Result<(f64, f64), Failure> {
    let me = std::process::id();
    let before = process::cpu(me);
    let (steps, took) = many(app.engine(), "short", SESSIONS).await?;
    // The remaining spans belong to this round and not to the next one.
    let rest = Duration::from_millis(2 * GATHERED_MS);
    let _ = tokio::time::timeout(rest, std::future::pending::<()>()).await;
    let worked = process::cpu(me).saturating_sub(before);
    Ok((rate(steps, took), ms(worked) / f64::from(steps.max(1))))
}

fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

pub(super) async fn measure(setting: &Setting) -> Result<Vec<Figure>, Failure> {
    let dir = setting.place("telemetry")?;
    let turns = setting.count(60).max(10);
    let collector = Collector::start().await?;
    let without = Box::pin(app(&dir.join("without"), turns, None)).await?;
    let with = Box::pin(app(&dir.join("with"), turns, Some(&collector.url))).await?;
    let (mut plain, mut told) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        plain.push(round(&without).await?);
        told.push(round(&with).await?);
    }
    let _ = without.stop(std::future::pending()).await;
    let _ = with.stop(std::future::pending()).await;
    let (taken, bytes) =
        (collector.taken.load(Ordering::Relaxed), collector.bytes.load(Ordering::Relaxed));
    if taken == 0 {
        return Err(Failure::failed("the collector was told no span: nothing was measured"));
    }
    let of = |rounds: &[(f64, f64)], pick: fn(&(f64, f64)) -> f64| {
        middle(rounds.iter().map(pick).collect())
    };
    let ratio = middle(plain.iter().zip(&told).map(|(plain, told)| told.0 / plain.0).collect());
    let note = format!(
        "{SESSIONS} sessions at once as in `agent steps`, {ROUNDS} rounds without a collector and as \
         many with one, by turns; {taken} requests of spans, {bytes} bytes in all"
    );
    Ok(vec![
        Figure::new("telemetry steps", of(&told, |round| round.0), "steps/s")
            .floor("without", of(&plain, |round| round.0))
            .note(note.clone()),
        Figure::new("telemetry cost", ratio, "× without").note(format!(
            "the steps of a round with a collector by those of the round before it without; the \
             middle of {ROUNDS}; {note}"
        )),
        Figure::new("telemetry processor time", of(&told, |round| round.1), "ms/step")
            .floor("without", of(&plain, |round| round.1))
            .note(
                "of this process, its collector included, until all of a round is told; it moves less \
                 than rates do",
            ),
    ])
}
