//! Servers get the span of each call: in `_meta`, and over HTTP in the header, too.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use overmind_core::tool_source::ToolSource as _;
use overmind_core::trace::Traceparent;
use overmind_mcp::{ServerConfig, Transport};
use serde_json::{Value, json};

use crate::support::{Bench, bad, within};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn call(bench: &Bench, tool: &str, parent: Option<&str>) -> Value {
    let mut context = bench.context();
    context.traceparent = parent.and_then(Traceparent::parse);
    let args = json!({});
    within(bench.servers.call(&context, tool, &args)).await.result
}

fn said(result: &Value) -> Value {
    let text = result["mcp"]["result"]["content"][0]["text"].as_str();
    serde_json::from_str(text.unwrap_or_else(|| panic!("{result}"))).unwrap()
}

#[tokio::test]
async fn a_program_gets_the_span_of_each_call_in_its_meta() {
    for mode in ["plain", "modern"] {
        let bench = Bench::new().await;
        bench.servers.put(bad("tele", mode)).await.unwrap();
        let meta = said(&call(&bench, "mcp.tele.meta", Some(PARENT)).await);
        assert_eq!(meta["traceparent"], PARENT, "{mode}: {meta}");
        let meta = said(&call(&bench, "mcp.tele.meta", None).await);
        assert_eq!(meta.get("traceparent"), None, "{mode}: {meta}");
        bench.servers.shutdown().await;
    }
}

/// One request: its headers by small names, and its body.
fn request(reader: &mut BufReader<TcpStream>) -> Option<(BTreeMap<String, String>, Value)> {
    let mut headers = BTreeMap::new();
    let mut line = String::new();
    while reader.read_line(&mut line).ok()? > 0 {
        let text = line.trim_end();
        if text.is_empty() {
            let length = headers.get("content-length").map_or(0, |n: &String| n.parse().unwrap());
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            return Some((headers, serde_json::from_slice(&body).unwrap_or_default()));
        }
        if let Some((name, value)) = text.split_once(": ") {
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        line.clear();
    }
    None
}

/// The trace context of a call: the header, and the meta of its body.
type Came = (Option<String>, Value);

/// A server of the earlier revision without sessions; the metadata of calls.
fn serve(listener: TcpListener) -> Arc<Mutex<Vec<Came>>> {
    let came = Arc::<Mutex<Vec<Came>>>::default();
    let seen = Arc::clone(&came);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while let Some((headers, message)) = request(&mut reader) {
                    let (status, body) = answer(&headers, &message, &seen);
                    let kind = match body.starts_with("data:") {
                        true => "text/event-stream",
                        false => "application/json",
                    };
                    let text = format!(
                        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n\
                         Content-Length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    if (&stream).write_all(text.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    came
}

fn answer(
    headers: &BTreeMap<String, String>,
    message: &Value,
    seen: &Mutex<Vec<Came>>,
) -> (&'static str, String) {
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}}, "serverInfo": {"name": "web", "version": "1"},
        }),
        Some("tools/list") => json!({"tools": [
            {"name": "look", "description": "Looks.", "inputSchema": {"type": "object"}},
            {"name": "half", "description": "Cuts.", "inputSchema": {"type": "object"}}]}),
        Some("tools/call") if message["params"]["name"] == "half" => {
            let result = json!({"content": [{"type": "text", "text": "left ? right"}]});
            let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
            let body = body.to_string().replace('?', r"\ud83d");
            return ("200 OK", format!("data: {body}\n\n"));
        }
        Some("tools/call") => {
            let header = headers.get("traceparent").cloned();
            seen.lock().unwrap().push((header, message["params"]["_meta"]["traceparent"].clone()));
            json!({"content": [{"type": "text", "text": "{}"}]})
        }
        Some("server/discover") => {
            let error = json!({"code": -32601, "message": "no such method"});
            let body = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
            return ("404 Not Found", body.to_string());
        }
        Some(_) if message.get("id").is_none() => return ("202 Accepted", String::new()),
        // Without its own stream, and nothing else.
        _ => return ("405 Method Not Allowed", String::new()),
    };
    assert_eq!(headers["x-key"], "correct-horse-battery", "what is configured is there as before");
    ("200 OK", json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string())
}

#[tokio::test]
async fn an_http_server_also_gets_the_span_in_a_header() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let came = serve(listener);
    let bench = Bench::new().await;
    let key = overmind_mcp::Value::Secret { secret: "SECRET".into() };
    let transport = Transport::Http { url, headers: BTreeMap::from([("X-Key".to_owned(), key)]) };
    let view = bench.servers.put(ServerConfig::new("web", transport)).await.unwrap();
    assert_eq!(view.state.as_str(), "ready", "{view:?}");
    let other = PARENT.replace("00f067", "11f067");
    for parent in [Some(PARENT), Some(other.as_str()), None] {
        said(&call(&bench, "mcp.web.look", parent).await);
    }
    let wanted = [Some(PARENT), Some(other.as_str()), None]
        .map(|parent| (parent.map(str::to_owned), json!(parent)));
    assert_eq!(*came.lock().unwrap(), wanted);
    let half = call(&bench, "mcp.web.half", None).await;
    assert_eq!(half["mcp"]["result"]["content"][0]["text"], "left \u{fffd} right", "{half}");
    bench.servers.shutdown().await;
}
