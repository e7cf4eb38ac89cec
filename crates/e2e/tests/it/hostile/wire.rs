//! Requests as bytes on separate sockets, and their answers.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longest time of an answer. No request here is expensive, so a longer one hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// The API whose error format a refusal must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// RFC 9457, as in our whole API.
    Problem,
    OpenAi,
    Anthropic,
    /// JSON-RPC where the message was read, a problem before that.
    Rpc,
}

/// The possible results of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// A 4xx in the shape of its API.
    Refused,
    /// It is no HTTP: a bare 4xx, or the connection is closed without a word.
    Broken,
    /// It may succeed, but only at its own place. Never a 5xx.
    Contained,
}

/// One request.
#[derive(Debug)]
pub(super) struct Case {
    /// The problem, for messages.
    pub(super) what: String,
    pub(super) bytes: Vec<u8>,
    pub(super) shape: Shape,
    pub(super) expect: Expect,
    /// Nothing follows it, and the server is informed: it would wait for the rest.
    pub(super) cut: bool,
}

/// The answer.
#[derive(Debug)]
pub(super) enum Got {
    Answer(Answer),
    /// Not a byte.
    Closed,
    Hung,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    kind: String,
    pub(super) body: Vec<u8>,
    /// Everything, as it came.
    pub(super) raw: Vec<u8>,
}

impl Answer {
    fn read(raw: Vec<u8>) -> Option<Self> {
        let end = raw.windows(4).position(|part| part == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&raw[..end]).ok()?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
        let kind = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-type").then(|| value.trim().to_owned())
        });
        let body = raw[end + 4..].to_vec();
        Some(Self { status, kind: kind.unwrap_or_default(), body, raw })
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Whether this refusal is as that API's users know refusals.
    fn is_shaped(&self, shape: Shape) -> bool {
        let body = self.json();
        let text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
        let problem = self.kind == "application/problem+json"
            && body["ok"] == Value::Bool(false)
            && body["status"] == self.status
            && text(&body["error"])
            && text(&body["type"]);
        let json = self.kind == "application/json";
        match shape {
            Shape::Problem => problem,
            Shape::OpenAi => {
                json && text(&body["error"]["message"]) && text(&body["error"]["type"])
            }
            Shape::Anthropic => {
                let error = &body["error"];
                json && body["type"] == "error" && text(&error["type"]) && text(&error["message"])
            }
            Shape::Rpc => {
                let error = &body["error"];
                let rpc = body["jsonrpc"] == "2.0" && error["code"].is_i64();
                problem || (json && rpc && text(&error["message"]))
            }
        }
    }
}

/// Sends it on a connection of its own and reads until the server closes it, or has said as much as
/// it announced.
pub(super) fn send(door: &str, case: &Case) -> Got {
    let mut stream = TcpStream::connect(door).expect("the server takes connections");
    let set = stream.set_read_timeout(Some(PATIENCE));
    set.and_then(|()| stream.set_write_timeout(Some(PATIENCE))).expect("a socket of ours");
    // A server that has refused already reads no further.
    let _ = stream.write_all(&case.bytes);
    if case.cut {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut raw = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                raw.extend_from_slice(&buffer[..count]);
                if whole(&raw) {
                    break;
                }
            }
            Err(err) if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Got::Hung;
            }
            Err(_) => break,
        }
    }
    Answer::read(raw).map_or(Got::Closed, Got::Answer)
}

/// Whether an answer with a length is complete.
fn whole(raw: &[u8]) -> bool {
    let Some(end) = raw.windows(4).position(|part| part == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&raw[..end]).to_ascii_lowercase();
    let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|text| text.trim().parse::<usize>().ok());
    length.is_some_and(|length| raw.len() >= end + 4 + length)
}

/// The problem with this, if anything.
pub(super) fn judged(case: &Case, got: &Got) -> Option<String> {
    let fault = match (case.expect, got) {
        (_, Got::Hung) => "it hangs".to_owned(),
        (Expect::Broken, Got::Closed) => return None,
        (Expect::Refused | Expect::Contained, Got::Closed) => "no answer".to_owned(),
        (_, Got::Answer(answer)) if answer.status >= 500 => {
            format!("{}: {}", answer.status, String::from_utf8_lossy(&answer.body))
        }
        (Expect::Broken, Got::Answer(answer)) if (400..500).contains(&answer.status) => {
            return None;
        }
        (Expect::Refused, Got::Answer(answer)) if (400..500).contains(&answer.status) => {
            if answer.is_shaped(case.shape) {
                return None;
            }
            let shown = String::from_utf8_lossy(&answer.raw).into_owned();
            format!("not in the shape {:?}: {shown}", case.shape)
        }
        (Expect::Contained, Got::Answer(_)) => return None,
        (Expect::Broken | Expect::Refused, Got::Answer(answer)) => {
            let body = String::from_utf8_lossy(&answer.body);
            format!("it passed with {}: {body}", answer.status)
        }
    };
    let head: String = String::from_utf8_lossy(&case.bytes).chars().take(600).collect();
    Some(format!("{}: {fault}\n  {}", case.what, head.escape_debug()))
}
