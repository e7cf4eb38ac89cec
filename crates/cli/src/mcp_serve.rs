//! `mcp serve`: a run's own MCP endpoint over standard input and output.
//!
//! One message is one line. Each is sent to the server unchanged, and each answer is printed
//! unchanged; several are in progress at once, because one may wait for a message.

use std::io::{BufRead as _, Read as _};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::context::Context;
use crate::exit::Failure;
use crate::remote::Remote;

/// Maximum number of concurrent messages; more wait in the pipe.
const UNDER_WAY: usize = 16;
/// Longest line, in bytes.
const LINE: u64 = 2 << 20;

/// Reads lines until the input ends, in a thread of its own: a pipe cannot be asked whether it has
/// something. It ends with the process.
fn lines() -> std::io::Result<mpsc::Receiver<Result<Vec<u8>, String>>> {
    let (send, receive) = mpsc::channel(UNDER_WAY);
    let read = move || {
        let mut input = std::io::stdin().lock();
        loop {
            let mut line = Vec::new();
            let read = match (&mut input).take(LINE).read_until(b'\n', &mut line) {
                Ok(0) => return,
                Ok(read) if read as u64 == LINE => {
                    Err(format!("a message has more than {LINE} bytes"))
                }
                Ok(_) => Ok(line),
                Err(err) => Err(format!("reading a message: {err}")),
            };
            let last = read.is_err();
            if send.blocking_send(read).is_err() || last {
                return;
            }
        }
    };
    std::thread::Builder::new().name("stdin".into()).spawn(read)?;
    Ok(receive)
}

/// Serves until standard input ends and everything is answered.
///
/// # Errors
///
/// When standard input breaks, or a line is longer than 2 MiB.
pub async fn serve(cx: &Context, remote: &Remote) -> Result<(), Failure> {
    let mut lines =
        lines().map_err(|err| Failure::failed(format!("preparing to read messages: {err}")))?;
    let mut under_way = JoinSet::new();
    while let Some(line) = lines.recv().await {
        let line = line.map_err(Failure::failed)?;
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        while under_way.len() >= UNDER_WAY {
            under_way.join_next().await;
        }
        let (client, out) = (remote.client().clone(), cx.out.clone());
        let message: Result<Value, _> = serde_json::from_slice(&line);
        under_way.spawn(async move {
            let answer = match message {
                Err(err) => Some(failed(&Value::Null, -32700, &format!("not JSON: {err}"))),
                // A notification asks for no answer, and nothing here waits for one.
                Ok(message) => match message.get("id").cloned() {
                    None => None,
                    Some(id) => Some(match client.mcp_message(&message).await {
                        Ok(answer) => answer,
                        Err(err) => failed(&id, -32603, &err.to_string()),
                    }),
                },
            };
            if let Some(answer) = answer {
                // A reader that left ends the input as well.
                let _ = out.line(&answer.to_string());
            }
        });
    }
    while under_way.join_next().await.is_some() {}
    Ok(())
}

fn failed(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}
