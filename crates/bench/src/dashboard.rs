//! The dashboard as browsers use it, over TCP: the size of its first page, its delay beside many
//! live runs, and the delay of events in the live stream.
//!
//! Viewers here read the stream alone. A browser also reads its page again, at most eight times a second.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use overmind_api::BlackboardPutQuery;
use overmind_cli::exit::Failure;
use overmind_client::Client;
use overmind_core::time::Clock as _;
use overmind_node::app::clock::SystemClock;
use overmind_node::config::{DataDir, Env};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::lives::Place;
use super::process::{megabytes, mib, rss};
use super::relay::message_length;
use super::{Figure, Goal, Setting, ms, percentile};

/// Runs on the page that is weighed, and beside the page that is timed.
const FEW: u32 = 30;
const MANY: u32 = 2_000;
const READS: u32 = 200;
const VIEWERS: u32 = 50;
/// Events, and how many of them a second.
const EVENTS: u32 = 4_000;
const A_SECOND: u32 = 200;
/// Clients that cause events by turns.
const WRITERS: u32 = 8;
/// The pause between two measurements of the server's memory.
const LOOK: Duration = Duration::from_millis(100);
/// How long the last event may take to reach every viewer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The prefix of the keys of the events.
const KEY: &str = "bench/";

pub(super) async fn measure(setting: &Setting) -> Result<Vec<Figure>, Failure> {
    let place = Place::open(setting, "dashboard").await?;
    let figures = figures(setting, &place).await;
    place.end().await?;
    figures
}

async fn figures(setting: &Setting, place: &Place) -> Result<Vec<Figure>, Failure> {
    let browser = Browser::sign_in(place).await?;
    place.grow(0, FEW).await?;
    let (plain, packed) = browser.first_page().await?;

    let many = setting.count(MANY);
    place.grow(FEW, many).await?;
    // Less than a tenth, as the events below: the quick form is to take three seconds at most.
    let reads = if setting.quick { READS / 20 } else { READS };
    let reads = browser.reads(reads).await?;
    let seen = watched(setting, place, &browser).await?;
    let Seen { delays, cut_off, most, rate } = seen;
    let crowd = format!("beside {many} live runs");
    Ok(vec![
        Figure::new("dashboard page", 1_000.0 * megabytes(plain), "kB").note(format!(
            "`/` with {FEW} live runs, its style sheet and its scripts, as the server sends them"
        )),
        Figure::new("dashboard page compressed", 1_000.0 * megabytes(packed), "kB")
            .goal(Goal::Most(150.0))
            .note("what gzip makes of each of these; the server itself compresses nothing"),
        Figure::new("dashboard read p50", ms(percentile(&reads, 0.5)), "ms")
            .note(format!("`GET /`, one after the other on one connection, {crowd}")),
        Figure::new("dashboard read p99", ms(percentile(&reads, 0.99)), "ms"),
        Figure::new("dashboard events", rate, "events/s")
            .goal(Goal::Least(0.95 * f64::from(A_SECOND)))
            .note(format!(
                "that came about of {A_SECOND} wanted: each of {WRITERS} clients waits for the \
                 answer to its put; where they are fewer, the delays are those of less load"
            )),
        Figure::new("dashboard delay p50", ms(percentile(&delays, 0.5)), "ms")
            .goal(Goal::Most(50.0))
            .note(format!(
                "from sending a put until a viewer of the live stream is told of it; {} viewers, \
                 which do not read the page again, {crowd}",
                setting.count(VIEWERS)
            )),
        Figure::new("dashboard delay p99", ms(percentile(&delays, 0.99)), "ms")
            .goal(Goal::Most(250.0)),
        Figure::new("dashboard rss", mib(most), "MiB")
            .goal(Goal::Most(150.0))
            .note("resident memory of the server meanwhile, at most"),
        Figure::new("dashboard viewers cut off", f64::from(cut_off), "viewers")
            .goal(Goal::Most(0.0))
            .note("whose stream ended, or who were not told of each event"),
    ])
}

fn failed(err: &std::io::Error) -> Failure {
    Failure::failed(format!("reading the dashboard: {err}"))
}

/// A browser that is signed in.
#[derive(Clone, Debug)]
struct Browser {
    address: SocketAddr,
    cookie: String,
}

impl Browser {
    async fn sign_in(place: &Place) -> Result<Self, Failure> {
        let url = place.url();
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let address: SocketAddr =
            address.parse().map_err(|err| Failure::failed(format!("{url}: {err}")))?;
        let found = DataDir::locate(Some(&place.data), &Env::default(), &place.dir)?;
        let token = found.admin_token()?;
        let body = format!("key={}&next=%2F", token.expose());
        let request = format!(
            "POST /login HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut tab = Tab::open(address).await.map_err(|err| failed(&err))?;
        let answer = tab.ask(request.as_bytes()).await.map_err(|err| failed(&err))?;
        let head = String::from_utf8_lossy(&answer).into_owned();
        let cookie = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            let value = value.split(';').next().unwrap_or_default();
            name.eq_ignore_ascii_case("set-cookie").then(|| value.to_owned())
        });
        let cookie = cookie.ok_or_else(|| {
            let status = head.lines().next().unwrap_or_default();
            Failure::failed(format!("the sign-in was answered with {status}"))
        })?;
        Ok(Self { address, cookie })
    }

    fn request(&self, path: &str) -> Vec<u8> {
        let Self { address, cookie } = self;
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\n\r\n").into_bytes()
    }

    /// The size of the first page with all its resources, uncompressed and with gzip.
    async fn first_page(&self) -> Result<(u64, u64), Failure> {
        let mut tab = Tab::open(self.address).await.map_err(|err| failed(&err))?;
        let page = self.body(&mut tab, "/").await?;
        let text = String::from_utf8_lossy(&page).into_owned();
        let mut bodies = vec![page];
        let loads: Vec<&str> =
            text.split('"').filter(|text| text.starts_with("/assets/")).collect();
        if loads.len() < 3 {
            return Err(Failure::failed(format!("the page loads only {loads:?}")));
        }
        for path in loads {
            bodies.push(self.body(&mut tab, path).await?);
        }
        let (mut plain, mut packed) = (0, 0);
        for body in bodies {
            plain += body.len() as u64;
            packed += gzip(&body).map_err(|err| failed(&err))?;
        }
        Ok((plain, packed))
    }

    async fn body(&self, tab: &mut Tab, path: &str) -> Result<Vec<u8>, Failure> {
        let answer = tab.ask(&self.request(path)).await.map_err(|err| failed(&err))?;
        if !answer.starts_with(b"HTTP/1.1 200") {
            let head = String::from_utf8_lossy(&answer).into_owned();
            let status = head.lines().next().unwrap_or_default();
            return Err(Failure::failed(format!("{path} was answered with {status}")));
        }
        let head = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(0);
        Ok(answer.get(head + 4..).unwrap_or_default().to_vec())
    }

    /// How long each of so many reads of the page takes, ascending.
    async fn reads(&self, count: u32) -> Result<Vec<Duration>, Failure> {
        let mut tab = Tab::open(self.address).await.map_err(|err| failed(&err))?;
        let mut took = Vec::new();
        for _ in 0..count {
            let began = Instant::now();
            self.body(&mut tab, "/").await?;
            took.push(began.elapsed());
        }
        took.sort_unstable();
        Ok(took)
    }
}

fn gzip(body: &[u8]) -> std::io::Result<u64> {
    use std::io::Write as _;

    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(body)?;
    Ok(packed.finish()?.len() as u64)
}

/// One connection of a browser.
struct Tab {
    stream: TcpStream,
    seen: Vec<u8>,
}

impl Tab {
    async fn open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, seen: Vec::new() })
    }

    /// The whole answer, which says how long it is.
    async fn ask(&mut self, request: &[u8]) -> std::io::Result<Vec<u8>> {
        self.seen.clear();
        self.stream.write_all(request).await?;
        loop {
            if let Some(length) = message_length(&self.seen)
                && self.seen.len() >= length
            {
                return Ok(std::mem::take(&mut self.seen));
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> std::io::Result<()> {
        match self.stream.read_buf(&mut self.seen).await? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// When each event was asked for.
type Sent = Arc<Vec<OnceLock<Instant>>>;

/// The events that viewers received.
struct Seen {
    /// The delays of each event at each viewer, ascending.
    delays: Vec<Duration>,
    cut_off: u32,
    /// Resident memory of the server, at most.
    most: u64,
    /// Events a second that came about.
    rate: f64,
}

/// Causes events at a steady pace while viewers read the live stream.
async fn watched(setting: &Setting, place: &Place, browser: &Browser) -> Result<Seen, Failure> {
    let count = setting.count(VIEWERS);
    // At this pace a tenth takes two seconds on any machine.
    let events = if setting.quick { EVENTS / 40 } else { EVENTS };
    let sent: Sent = Arc::new((0..events).map(|_| OnceLock::new()).collect());
    let mut viewers = JoinSet::new();
    for _ in 0..count {
        let viewer = Viewer::open(browser).await.map_err(|err| failed(&err))?;
        viewers.spawn(viewer.watch(Arc::clone(&sent)));
    }
    let done = Arc::new(AtomicBool::new(false));
    let mut memory = JoinSet::new();
    let (pid, over) = (place.pid(), Arc::clone(&done));
    memory.spawn(async move {
        let mut most = 0;
        while !over.load(Ordering::Relaxed) {
            most = most.max(rss(pid));
            SystemClock.sleep_until(SystemClock.now().after(LOOK)).await;
        }
        most
    });
    let began = Instant::now();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write(place.client.clone(), writer, Arc::clone(&sent)));
    }
    while let Some(done) = writers.join_next().await {
        done.map_err(|err| Failure::failed(format!("a writer ended: {err}")))??;
    }
    let rate = super::rate(events, began.elapsed());
    let (mut delays, mut cut_off) = (Vec::new(), 0);
    let all = async {
        while let Some(done) = viewers.join_next().await {
            let seen = done.map_err(|err| Failure::failed(format!("a viewer ended: {err}")))?;
            cut_off += u32::from(seen.len() < events as usize);
            delays.extend(seen);
        }
        Ok::<(), Failure>(())
    };
    let in_time = tokio::time::timeout(PATIENCE, all).await;
    done.store(true, Ordering::Relaxed);
    match in_time {
        Ok(done) => done?,
        // A viewer that still waits did not receive each event.
        Err(_) => cut_off += u32::try_from(viewers.len()).unwrap_or(u32::MAX),
    }
    let most = memory.join_next().await.and_then(Result::ok).unwrap_or(0);
    if delays.is_empty() {
        return Err(Failure::failed("no viewer was told of any event"));
    }
    delays.sort_unstable();
    Ok(Seen { delays, cut_off, most, rate })
}

/// Puts each of its keys at its time, or as soon after it as the one before is answered.
async fn write(client: Client, writer: u32, sent: Sent) -> Result<(), Failure> {
    let began = SystemClock.now();
    let events = u32::try_from(sent.len()).unwrap_or(u32::MAX);
    for event in (0..events).filter(|event| event % WRITERS == writer) {
        let due = Duration::from_secs(1) * event / A_SECOND;
        SystemClock.sleep_until(began.after(due)).await;
        if let Some(place) = sent.get(event as usize) {
            let _ = place.set(Instant::now());
        }
        let query = BlackboardPutQuery::default();
        client.board_put(&format!("{KEY}{event}"), &json!({"n": event}), &query).await?;
    }
    Ok(())
}

/// A reader of the live stream.
struct Viewer {
    tab: Tab,
}

impl Viewer {
    /// Answers when the stream has begun, so that no event is before it.
    async fn open(browser: &Browser) -> std::io::Result<Self> {
        let mut tab = Tab::open(browser.address).await?;
        tab.stream.write_all(&browser.request("/live")).await?;
        let end = loop {
            tab.more().await?;
            if let Some(at) = tab.seen.windows(4).position(|end| end == b"\r\n\r\n") {
                break at + 4;
            }
        };
        if !tab.seen.starts_with(b"HTTP/1.1 200") {
            let head = String::from_utf8_lossy(&tab.seen).into_owned();
            return Err(std::io::Error::other(head));
        }
        tab.seen.drain(..end);
        Ok(Self { tab })
    }

    /// How long each event took to arrive, until all have or the stream ends.
    async fn watch(mut self, sent: Sent) -> Vec<Duration> {
        let mut delays = Vec::with_capacity(sent.len());
        loop {
            let now = Instant::now();
            let whole =
                self.tab.seen.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            for line in self.tab.seen.drain(..whole).collect::<Vec<u8>>().split(|b| *b == b'\n') {
                let began = told(line).and_then(|event| sent.get(event)?.get());
                delays.extend(began.map(|began| now.duration_since(*began)));
            }
            if delays.len() >= sent.len() || self.tab.more().await.is_err() {
                return delays;
            }
        }
    }
}

/// The event in a line of the stream, if it is one of ours.
fn told(line: &[u8]) -> Option<usize> {
    let line = std::str::from_utf8(line.strip_prefix(b"data: ")?).ok()?;
    let (_, rest) = line.split_once(&format!("\"{KEY}"))?;
    rest.split('"').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_stream_line_gives_its_event_name() {
        let line =
            br#"data: {"type":"blackboard.put","payload_json":{"key":"bench/41","version":1}}"#;
        assert_eq!(super::told(line), Some(41));
        for other in [r#"data: {"key":"other/41"}"#, r#"id: 7"#, r#"{"key":"bench/41"}"#] {
            assert_eq!(super::told(other.as_bytes()), None, "{other}");
        }
    }
}
