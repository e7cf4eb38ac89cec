//! A server with configured answers, which records its requests.

use std::sync::{Arc, Mutex};

use overmind_client::{Client, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The reaction of a connection to its n-th request: these bytes, and then it continues or closes.
#[derive(Clone, Debug)]
pub(crate) struct Say {
    pub(crate) bytes: String,
    pub(crate) close: bool,
}

impl Say {
    pub(crate) fn json(status: u16, body: &str) -> Self {
        Self::with(status, "", body)
    }

    pub(crate) fn with(status: u16, headers: &str, body: &str) -> Self {
        let length = body.len();
        let bytes =
            format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
        Self { bytes, close: false }
    }

    /// An event stream: the pieces are sent as chunks; `whole` says whether the end is sent.
    pub(crate) fn stream(pieces: &[&str], whole: bool) -> Self {
        let mut bytes = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                         transfer-encoding: chunked\r\n\r\n"
            .to_owned();
        for piece in pieces {
            bytes += &format!("{:x}\r\n{piece}\r\n", piece.len());
        }
        if whole {
            bytes += "0\r\n\r\n";
        }
        Self { bytes, close: true }
    }

    pub(crate) fn then_close(mut self) -> Self {
        self.close = true;
        self
    }
}

/// Connections in order, each with its answers in order. After its last answer a connection is
/// closed; after the last connection none is accepted.
pub(crate) struct Peer {
    pub(crate) client: Client,
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Peer {
    pub(crate) async fn new(connections: Vec<Vec<Say>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        #[expect(clippy::disallowed_methods, reason = "a test's own task, joined by the test")]
        let task = tokio::spawn(async move {
            for answers in connections {
                let (stream, _) = listener.accept().await.unwrap();
                play(stream, answers, &seen).await;
            }
        });
        let target: Target = target.parse().unwrap();
        Self { client: Client::connect(target, Some("ovk_test")).unwrap(), requests, task }
    }

    /// All requests, once all connections were used up.
    pub(crate) async fn requests(self) -> Vec<String> {
        let Self { requests, task, .. } = self;
        task.await.unwrap();
        let requests = requests.lock().unwrap();
        requests.clone()
    }

    pub(crate) fn so_far(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn play(mut stream: TcpStream, answers: Vec<Say>, seen: &Mutex<Vec<String>>) {
    for answer in answers {
        let Some(request) = read_request(&mut stream).await else { return };
        seen.lock().unwrap().push(request);
        stream.write_all(answer.bytes.as_bytes()).await.unwrap();
        if answer.close {
            return;
        }
    }
}

/// One request with its body, as text; `None` if the client has disconnected.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut text = Vec::new();
    loop {
        let mut byte = [0];
        if stream.read(&mut byte).await.ok()? == 0 {
            return None;
        }
        text.push(byte[0]);
        if text.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    let head = String::from_utf8(text).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    Some(head + &String::from_utf8(body).unwrap())
}
