//! The answers of a model provider, over a real connection: headers, framing and events of all
//! three wire formats are the far side's to choose.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use overmind_core::model::{Message, ModelDelta, ModelRequest, Models, ToolChoice};
use overmind_llm::{Config, Format, Gateway, Provider, Retry, Secret};

/// Must not appear in any failure, even when the provider sends it back.
const KEY: &str = "key-that-nobody-may-see";

struct Place {
    runtime: tokio::runtime::Runtime,
    gateways: Vec<Gateway>,
    request: ModelRequest,
    /// The next answer of the server.
    answer: Arc<Mutex<Vec<u8>>>,
}

/// The first byte chooses the format and the head of the answer; the rest is the body.
pub(super) fn run(data: &[u8]) {
    let Some((first, body)) = data.split_first() else { return };
    let place = Place::get();
    let head = match first / 3 % 4 {
        0 => "200 OK\r\ncontent-type: text/event-stream",
        1 => "200 OK\r\ncontent-type: application/json",
        2 => "400 Bad Request\r\ncontent-type: application/json",
        _ => "429 Too Many Requests\r\nretry-after: 1\r\ncontent-type: text/plain",
    };
    let mut answer = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n").into_bytes();
    answer.extend_from_slice(body);
    *place.answer.lock().expect("no panic while it is held") = answer;

    let gateway = &place.gateways[usize::from(first % 3)];
    match place.runtime.block_on(gateway.complete(&place.request, &|_: ModelDelta| {})) {
        // What it says is the provider's business, contradictions within one stream included.
        Ok(reply) => assert!(!reply.provider.is_empty()),
        Err(failure) => {
            assert!(!format!("{failure:?}").contains(KEY), "the key is told: {failure:?}");
            assert!(!failure.code.is_empty() && !failure.message.is_empty());
        }
    }
}

impl Place {
    fn get() -> &'static Self {
        static PLACE: OnceLock<Place> = OnceLock::new();
        PLACE.get_or_init(|| {
            let answer: Arc<Mutex<Vec<u8>>> = Arc::default();
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port of the loopback");
            let address = listener.local_addr().expect("a bound socket has an address");
            let answers = answer.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    // A client that has left already is no concern of the server.
                    let _ = serve(&stream, &answers.lock().expect("no panic while it is held"));
                }
            });
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime starts");
            let gateway = |format| {
                let mut provider = Provider::custom(&format!("http://{address}"), Secret::new(KEY));
                provider.format = format;
                let retry = Retry { max_attempts: 1, ..Retry::default() };
                Gateway::new(Config { providers: vec![provider], retry, ..Config::default() })
            };
            let formats = [Format::OpenAiChat, Format::OpenAiResponses, Format::AnthropicMessages];
            let request = ModelRequest {
                model: "m".into(),
                system: "s".into(),
                messages: Arc::new(vec![Message::User { text: "t".into() }]),
                tools: Arc::default(),
                tool_choice: ToolChoice::Auto,
                max_output_tokens: None,
                temperature: None,
                reasoning_effort: None,
                idle_timeout: Duration::from_secs(2),
                total_timeout: Duration::from_secs(3),
                traceparent: None,
            };
            Self { runtime, gateways: formats.map(gateway).into(), request, answer }
        })
    }
}

fn serve(stream: &TcpStream, answer: &[u8]) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut request = BufReader::new(stream);
    let mut length = 0_usize;
    let mut line = String::new();
    while request.read_line(&mut line)? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        line.clear();
    }
    // Read whole: closing with unread bytes would reset the connection under the answer.
    request.read_exact(&mut vec![0; length])?;
    let mut stream = stream;
    stream.write_all(answer)
}
