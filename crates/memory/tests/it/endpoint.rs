//! An embeddings endpoint on a loopback socket: it keeps what it was sent and answers from a
//! function. A real model cannot be asked in every test; this one speaks the same protocol.

use std::sync::{Arc, Mutex};

use overmind_core::Fut;
use overmind_core::budget::{Came, Meter, Metered, NotMetered, Refusal, Wish};
use overmind_core::time::Timestamp;
use overmind_memory::{Config, HttpConfig, HttpEmbedder};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// One request, as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Request line and headers, lower case.
    pub(crate) head: String,
    pub(crate) body: Value,
}

pub(crate) struct Endpoint {
    pub(crate) url: String,
    pub(crate) requests: Arc<Mutex<Vec<Request>>>,
    server: AbortHandle,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.server.abort();
    }
}

type Answer = Arc<dyn Fn(&Value) -> Option<String> + Send + Sync>;

impl Endpoint {
    /// `answer` creates the whole HTTP response from a request's body; `None` never answers.
    pub(crate) async fn start(
        answer: impl Fn(&Value) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/embeddings", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (requests.clone(), Arc::new(answer) as Answer);
        #[expect(clippy::disallowed_methods, reason = "a test's own server, aborted on drop")]
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serve(stream, seen.clone(), answer.clone()).await;
            }
        })
        .abort_handle();
        Self { url, requests, server }
    }

    /// An embedder for this endpoint, with its settings read as the product reads them.
    pub(crate) fn embedder(&self, model: &str, dims: Option<&str>) -> Arc<HttpEmbedder> {
        Arc::new(HttpEmbedder::new(config(&self.url, model, dims), Arc::<Books>::default()))
    }

    /// An endpoint whose calls are recorded in `books`.
    pub(crate) fn embedder_in(&self, model: &str, books: &Arc<Books>) -> Arc<HttpEmbedder> {
        let meter = Arc::clone(books) as Arc<dyn Meter>;
        Arc::new(HttpEmbedder::new(config(&self.url, model, None), meter))
    }

    pub(crate) fn last(&self) -> Request {
        self.requests.lock().unwrap().last().expect("the endpoint was asked").clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

pub(crate) const KEY: &str = "sk-test-0123456789";

pub(crate) fn config(url: &str, model: &str, dims: Option<&str>) -> HttpConfig {
    let config = Config::from_vars(&|name| match name {
        "OVERMIND_EMBEDDING_PROVIDER" => Some("openai".into()),
        "OPENAI_API_KEY" => Some(KEY.into()),
        "OVERMIND_OPENAI_EMBEDDINGS_URL" => Some(url.into()),
        "OVERMIND_EMBEDDING_MODEL" => Some(model.into()),
        "OVERMIND_EMBEDDING_DIMS" => dims.map(str::to_owned),
        _ => None,
    });
    match config.unwrap() {
        Config::OpenAi(config) => config,
        Config::Local | Config::File(_) => panic!("a key means openai"),
    }
}

async fn serve(mut stream: TcpStream, seen: Arc<Mutex<Vec<Request>>>, answer: Answer) {
    let mut bytes = Vec::new();
    let (head, length) = loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some(end) = text.find("\r\n\r\n") {
            let head = text[..end].to_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |n| n.parse::<usize>().unwrap());
            break (head, end + 4 + length);
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    };
    while bytes.len() < length {
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let body: Value = serde_json::from_slice(&bytes[head.len() + 4..]).unwrap();
    let response = answer(&body);
    seen.lock().unwrap().push(Request { head, body });
    match response {
        Some(response) => {
            stream.write_all(response.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
        None => std::future::pending().await,
    }
}

pub(crate) fn respond(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )
}

pub(crate) fn vector(numbers: &[f32]) -> Option<String> {
    let body = json!({
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": numbers}],
        "model": "m",
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    });
    Some(respond("200 OK", &body.to_string()))
}

/// A crude sense of meaning: how much of a text is about animals, ships and bread.
pub(crate) fn meaning(body: &Value) -> Option<String> {
    let text = body["input"].as_str().unwrap().to_lowercase();
    let about = |words: &[&str]| -> f32 {
        words.iter().map(|word| f32::from(u8::from(text.contains(word)))).sum()
    };
    vector(&[
        0.1 + about(&["cat", "kitten", "dog", "puppy"]),
        about(&["ship", "boat", "sail"]),
        about(&["bread", "flour", "oven"]),
    ])
}

/// Books that note each call and its end in words.
#[derive(Debug, Default)]
pub(crate) struct Books {
    told: Arc<Mutex<Vec<String>>>,
    /// Refuses each call.
    closed: bool,
}

impl Books {
    pub(crate) fn closed() -> Arc<Self> {
        Arc::new(Self { closed: true, ..Self::default() })
    }

    pub(crate) fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }
}

struct Noted {
    told: Arc<Mutex<Vec<String>>>,
    ended: bool,
}

impl Metered for Noted {
    fn end(mut self: Box<Self>, came: Came) {
        self.ended = true;
        self.told.lock().unwrap().push(format!("{came:?}"));
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        if !self.ended {
            self.told.lock().unwrap().push("forgotten".to_owned());
        }
    }
}

impl Meter for Books {
    fn open(&self, wish: Wish) -> Fut<'_, Result<Box<dyn Metered>, NotMetered>> {
        let Wish { behalf, provider, model, format, input_tokens } = wish;
        let (session, caller) = (behalf.session, behalf.caller);
        self.told.lock().unwrap().push(format!(
            "{provider} {model} {format} for {session:?} of `{caller}`: {input_tokens} tokens at most"
        ));
        let noted = Noted { told: Arc::clone(&self.told), ended: false };
        let halted = Refusal::Halted {
            by: "admin".into(),
            reason: "a test".into(),
            since: Timestamp::default(),
        };
        let closed = self.closed;
        Box::pin(async move {
            if closed {
                return Err(NotMetered::Refused(halted));
            }
            Ok(Box::new(noted) as Box<dyn Metered>)
        })
    }
}
