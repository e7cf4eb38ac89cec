//! The way in: requests a second against a bare server of the same stack, and queued runs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overmind_api::{AgentCreate, RunCreate, RunStatus};
use overmind_cli::demo::daemon::Daemon;
use overmind_cli::exit::Failure;
use overmind_client::{Client, ClientError, Target};
use overmind_core::time::Clock as _;
use overmind_node::app::clock::SystemClock;
use overmind_node::config::{DataDir, Env};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use super::engine::start_app;
use super::{Figure, Goal, Setting, rate};

const CONNECTIONS: u32 = 32;
const REQUEST: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// Longest that the queued runs may take.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) async fn measure(setting: &Setting) -> Result<Vec<Figure>, Failure> {
    let mut figures = vec![health(setting).await?];
    figures.extend(runs(setting).await?);
    Ok(figures)
}

/// Both servers in this process, by turns, on unix sockets, with the same load.
async fn health(setting: &Setting) -> Result<Figure, Failure> {
    let dir = setting.place("http")?;
    let time = setting.time(Duration::from_secs(2));
    let bare_path = dir.join("bare.sock");
    let listener = UnixListener::bind(&bare_path)
        .map_err(|err| Failure::failed(format!("listening on {}: {err}", bare_path.display())))?;
    let hello = axum::Router::new().route(
        "/health",
        axum::routing::get(|| async { axum::Json(serde_json::json!({"ok": true})) }),
    );
    let mut bare = JoinSet::new();
    bare.spawn(async move { axum::serve(listener, hello).await });
    let app = start_app(&dir).await?;
    let own_path = dir.join("data/overmind.sock");
    // Alternating, so that other load on the machine affects both.
    let (mut hello, mut own) = (0.0_f64, 0.0_f64);
    for _ in 0..3 {
        hello = hello.max(load(&bare_path, time / 3).await?);
        own = own.max(load(&own_path, time / 3).await?);
    }
    bare.abort_all();
    let _ = app.stop(std::future::pending()).await;
    Ok(Figure::new("health requests", own, "requests/s")
        .floor("bare axum hello", hello)
        .goal(Goal::PartOfFloor(0.8))
        .note(format!(
            "{CONNECTIONS} connections on a unix socket, load and server in one process"
        )))
}

/// Asks again and again on every connection; requests a second.
async fn load(path: &Path, time: Duration) -> Result<f64, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        clients.spawn(ask(path.to_owned(), Arc::clone(&stop)));
    }
    let start = Instant::now();
    SystemClock.sleep_until(SystemClock.now().after(time)).await;
    stop.store(true, Ordering::Relaxed);
    let mut asked = 0;
    while let Some(done) = clients.join_next().await {
        let done = done.map_err(|err| Failure::failed(format!("a client ended: {err}")))?;
        asked +=
            done.map_err(|err| Failure::failed(format!("asking {}: {err}", path.display())))?;
    }
    Ok(rate(asked, start.elapsed()))
}

async fn ask(path: std::path::PathBuf, stop: Arc<AtomicBool>) -> std::io::Result<u32> {
    let mut stream = UnixStream::connect(path).await?;
    let mut buffer = vec![0; 4096];
    let mut length = None;
    let mut asked = 0;
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(REQUEST).await?;
        let mut got = 0;
        while length.is_none_or(|length| got < length) {
            let read = stream.read(&mut buffer[got..]).await?;
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            got += read;
            // Every answer is as long as the first one.
            length = length.or_else(|| answer_length(&buffer[..got]));
        }
        if !buffer.starts_with(b"HTTP/1.1 200") {
            let text = String::from_utf8_lossy(&buffer[..got]).into_owned();
            return Err(std::io::Error::other(text));
        }
        asked += 1;
    }
    Ok(asked)
}

/// How long an answer is, head and body, once its head is there.
fn answer_length(got: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(got).ok()?;
    let head = text.find("\r\n\r\n")?;
    let length = text[..head].lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    })?;
    Some(head + 4 + length)
}

/// A server of its own process, over TCP; as many runs as its clients can hand in.
async fn runs(setting: &Setting) -> Result<Vec<Figure>, Failure> {
    let (dir, work) = (setting.place("runs")?, setting.place("runs-work")?);
    let data = dir.join("data");
    DataDir::locate(Some(&data), &Env::default(), &dir)?.prepare()?;
    let setup = setting.setup(&[
        "--listen",
        "127.0.0.1:0",
        "--workspace",
        &work.to_string_lossy(),
        "--log",
        "warn",
    ]);
    let daemon = Daemon::start(&data, &setup)?;
    let url = daemon.server.url.clone().unwrap_or_default();
    let target: Target = url.parse().map_err(|err| Failure::failed(format!("{url}: {err}")))?;
    let token = DataDir::locate(Some(&data), &Env::default(), &dir)?.admin_token()?;
    let client = Client::connect(target.clone(), Some(token.expose()))?;
    let agent = client
        .agent_create(
            &AgentCreate {
                name: "instant".into(),
                role: "measure".into(),
                model: "deterministic".into(),
                tools_allowed: vec!["search_memory".into()],
                ..AgentCreate::default()
            },
            None,
        )
        .await?;

    let each = setting.count(125);
    let wanted = u64::from(each * CONNECTIONS);
    let mut clients = JoinSet::new();
    let start = Instant::now();
    for _ in 0..CONNECTIONS {
        let client = Client::connect(target.clone(), Some(token.expose()))?;
        clients.spawn(hand_in(client, agent.id.to_string(), each));
    }
    let mut throttled = 0;
    while let Some(done) = clients.join_next().await {
        throttled += done.map_err(|err| Failure::failed(format!("a client ended: {err}")))??;
    }
    let handed_in = start.elapsed();
    let (succeeded, other) = loop {
        let status = client.status().await?;
        let count = |wanted: RunStatus| {
            let found = status.store.runs.iter().find(|count| count.status == wanted);
            found.map_or(0, |count| count.count)
        };
        let succeeded = count(RunStatus::Succeeded);
        let other = count(RunStatus::Failed) + count(RunStatus::Canceled);
        if succeeded + other >= wanted || start.elapsed() > PATIENCE {
            break (succeeded, other);
        }
        SystemClock.sleep_until(SystemClock.now().after(Duration::from_millis(5))).await;
    };
    let elapsed = start.elapsed();
    drop(daemon);
    let lost = wanted.saturating_sub(succeeded);
    let count = |number: u64| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    Ok(vec![
        Figure::new("instant runs", rate(count(succeeded), elapsed), "runs/s")
            .goal(Goal::Least(1_000.0))
            .note(format!(
                "{wanted} runs of one tool call each by {CONNECTIONS} TCP connections, handed in \
                 after {:.1} s, all ended after {:.1} s; {throttled} were asked to slow down",
                handed_in.as_secs_f64(),
                elapsed.as_secs_f64()
            )),
        Figure::new("instant runs lost", count(lost), "runs")
            .goal(Goal::Most(0.0))
            .note(format!("acknowledged and not succeeded in the end; {other} failed")),
    ])
}

/// Hands runs in one after the other; how often the server asked to slow down.
async fn hand_in(client: Client, agent: String, count: u32) -> Result<u32, ClientError> {
    let draft =
        RunCreate { agent_id: agent, task: "recall: anything".into(), ..RunCreate::default() };
    let (mut done, mut throttled) = (0, 0);
    while done < count {
        match client.run_create(&draft, None).await {
            Ok(_) => done += 1,
            Err(err) if err.status() == Some(429) => {
                throttled += 1;
                SystemClock.sleep_until(SystemClock.now().after(Duration::from_millis(50))).await;
            }
            Err(err) => return Err(err),
        }
    }
    Ok(throttled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_response_includes_head_and_body() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"ok\":true}";
        assert_eq!(answer_length(answer), Some(answer.len()));
        assert_eq!(answer_length(&answer[..30]), None);
        assert_eq!(answer_length(b"HTTP/1.1 200 OK\r\n\r\n"), None);
    }
}
