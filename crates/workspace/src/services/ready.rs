//! Waiting until a service can be used.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use overmind_core::time::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::command::{self, CommandSpec};
use crate::config::{Ready, ReadyCheck};
use crate::lease::Quiet;

/// The time limit of one check.
const LOOK: Duration = Duration::from_secs(5);
/// How many bytes at the end of a log are searched.
const LOG_WINDOW: u64 = 1 << 20;
/// How many of the log's last lines an error shows.
const TAIL: usize = 20;

/// Why a service is not ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadyError {
    #[error("`{service}` ended before it was ready ({status}){}", shown(tail))]
    Ended { service: String, status: String, tail: Vec<String> },
    #[error(
        "`{service}` was not ready within {} s: {last}{}; raise `ready.timeout`",
        timeout.as_secs_f32(), shown(tail)
    )]
    TooLong { service: String, timeout: Duration, last: String, tail: Vec<String> },
}

fn shown(tail: &[String]) -> String {
    if tail.is_empty() { String::new() } else { format!("; it last said:\n{}\n", tail.join("\n")) }
}

/// The service that is checked.
pub(crate) struct Looked<'a> {
    pub(crate) service: &'a str,
    pub(crate) ports: &'a BTreeMap<String, u16>,
    /// The path of its output.
    pub(crate) log: Option<&'a Path>,
    /// The data for a ready command; its words and time limit are replaced.
    pub(crate) command: Option<CommandSpec>,
    /// Whether another program may accept connections, and close them if the service itself is not
    /// running.
    pub(crate) through_proxy: bool,
    /// How it ended, if it ended for good.
    pub(crate) ended: &'a (dyn Fn() -> Option<String> + Send + Sync),
}

/// Returns when the check succeeds.
///
/// # Cancel safety
///
/// Dropping the future changes nothing.
pub(crate) async fn wait(
    ready: &Ready,
    looked: &Looked<'_>,
    clock: &dyn Clock,
) -> Result<(), ReadyError> {
    let deadline = clock.now().after(ready.timeout);
    // The first checks come quickly, because most services start at once.
    let mut pause = Duration::from_millis(5);
    loop {
        let last = match look(ready, looked, clock).await {
            Ok(()) => return Ok(()),
            Err(why) => why,
        };
        let service = looked.service.to_owned();
        if let Some(status) = (looked.ended)() {
            return Err(ReadyError::Ended { service, status, tail: tail(looked.log) });
        }
        let now = clock.now();
        if now >= deadline {
            let (timeout, tail) = (ready.timeout, tail(looked.log));
            return Err(ReadyError::TooLong { service, timeout, last, tail });
        }
        clock.sleep_until(now.after(pause).min(deadline)).await;
        pause = (pause * 2).min(ready.interval);
    }
}

async fn look(ready: &Ready, looked: &Looked<'_>, clock: &dyn Clock) -> Result<(), String> {
    let port = |name: &str| looked.ports.get(name).copied().unwrap_or_default();
    match &ready.check {
        ReadyCheck::Started => Ok(()),
        ReadyCheck::Tcp { port: name } => {
            let stream = connect(port(name)).await?;
            if looked.through_proxy { still_open(stream).await } else { Ok(()) }
        }
        ReadyCheck::Http { port: name, path, status } => http(port(name), path, status).await,
        ReadyCheck::Command(_) => {
            let Some(spec) = &looked.command else { return Ok(()) };
            let spec = CommandSpec { timeout: LOOK, ..spec.clone() };
            command::run(&spec, &Quiet, clock).await.map_err(|err| err.to_string())
        }
        ReadyCheck::Log(pattern) => {
            let expression = regex::Regex::new(pattern).map_err(|err| err.to_string())?;
            let text = looked.log.map(end_of).unwrap_or_default();
            match text.lines().any(|line| expression.is_match(line)) {
                true => Ok(()),
                false => Err(format!("no line of its output matches `{pattern}`")),
            }
        }
    }
}

/// A connection to the port, in whichever family something listens.
async fn connect(port: u16) -> Result<TcpStream, String> {
    let mut last = String::new();
    for address in [
        SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
    ] {
        match tokio::time::timeout(LOOK, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(err)) if last.is_empty() => last = format!("connecting to {address}: {err}"),
            Ok(Err(_)) => {}
            Err(_) => last = format!("connecting to {address} took too long"),
        }
    }
    Err(last)
}

/// Whether the other side keeps the connection for a moment, or sends something.
async fn still_open(mut stream: TcpStream) -> Result<(), String> {
    match tokio::time::timeout(Duration::from_millis(150), stream.read(&mut [0_u8; 1])).await {
        Ok(Ok(0)) | Ok(Err(_)) => Err("the connection is closed at once".to_owned()),
        Ok(Ok(_)) | Err(_) => Ok(()),
    }
}

/// Sends one `GET`; only the first line of the answer matters.
async fn http(port: u16, path: &str, wanted: &RangeInclusive<u16>) -> Result<(), String> {
    let mut stream = connect(port).await?;
    let exchange = async {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: overmind\r\nAccept: */*\r\n\
             Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut head = Vec::new();
        let mut piece = [0_u8; 512];
        while head.len() < 4096 && !head.contains(&b'\n') {
            match stream.read(&mut piece).await? {
                0 => break,
                read => head.extend_from_slice(&piece[..read]),
            }
        }
        Ok::<_, std::io::Error>(head)
    };
    let head = tokio::time::timeout(LOOK, exchange)
        .await
        .map_err(|_| format!("GET {path} was not answered within {} s", LOOK.as_secs()))?
        .map_err(|err| format!("GET {path}: {err}"))?;
    let head = String::from_utf8_lossy(&head);
    let status = head
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|code| code.trim().parse::<u16>().ok());
    match status {
        Some(status) if wanted.contains(&status) => Ok(()),
        Some(status) => Err(format!("GET {path} answers with {status}")),
        None => Err(format!("GET {path} is not answered in HTTP")),
    }
}

fn end_of(path: &Path) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_WINDOW)))?;
        let mut bytes = Vec::new();
        file.take(LOG_WINDOW).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

fn tail(log: Option<&Path>) -> Vec<String> {
    let text = log.map(end_of).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].iter().map(|line| (*line).to_owned()).collect()
}
