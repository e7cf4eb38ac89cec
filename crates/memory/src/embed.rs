//! Embeddings turn a text into a vector. [`HttpEmbedder`] calls a server that speaks OpenAI's
//! format; [`crate::FileEmbedder`] uses a model file.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::budget::{Behalf, Came, Meter, Metered, NotMetered, Wish, estimate};
use overmind_core::json;
use overmind_core::model::Usage;
use reqwest::{Client, Response, StatusCode, Url, redirect};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::HttpConfig;

/// The time limit of one request, from connecting to the last byte of the answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of bytes of an answer; one with 65,536 numbers takes about 1.5 MB.
const MAX_ANSWER_BYTES: usize = 8 << 20;
/// Maximum number of characters that are kept of a server's error text.
const MAX_ERROR_CHARS: usize = 500;

/// Why a text has no vector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EmbedError {
    /// The request, the server and the error. It never contains the key.
    pub message: String,
    /// Whether the same request may succeed later.
    pub transient: bool,
}

/// Makes vectors. Vectors can be compared only with those of the same model.
pub trait Embedder: Send + Sync + fmt::Debug {
    /// The model's name, which is stored with each vector. Vectors with the same name are
    /// comparable.
    ///
    /// # Errors
    ///
    /// [`EmbedError`] if a model on this machine cannot be read; a server is not called.
    fn model(&self) -> Fut<'_, Result<Arc<str>, EmbedError>>;

    /// The size of the vectors, if it is configured.
    fn dims(&self) -> Option<u32> {
        None
    }

    /// The vector of `text`, which must not be empty; an empty vector if the model knows nothing in
    /// the text. The cost is billed to `behalf`.
    ///
    /// # Errors
    ///
    /// [`EmbedError`]; there is no other way to learn that the embedder does not work.
    fn embed<'a>(
        &'a self,
        text: &'a str,
        behalf: &'a Behalf,
    ) -> Fut<'a, Result<Vec<f32>, EmbedError>>;
}

/// The provider in the price table to which embeddings are billed: the variables are OpenAI's,
/// whatever their URLs are.
const PROVIDER: &str = "openai";

/// Sends `POST {model, input}` to an OpenAI-compatible endpoint.
///
/// A request takes at most 10 seconds. It is not repeated here, because the engine repeats calls
/// that may succeed later. The client is made at its first use, so that a start without memory
/// costs nothing.
#[derive(Debug)]
pub struct HttpEmbedder {
    config: HttpConfig,
    client: OnceLock<Result<Client, EmbedError>>,
    meter: Arc<dyn Meter>,
}

#[derive(Debug, Deserialize)]
struct Answer {
    data: Vec<Datum>,
    // It is parsed separately, so that unexpected usage data does not make an embedding useless.
    usage: Option<Value>,
}

impl Answer {
    /// The reported usage. Zero counts as missing, because a text has tokens.
    fn usage(&self) -> Option<Usage> {
        let usage = self.usage.as_ref()?;
        let names = ["prompt_tokens", "total_tokens"];
        let told = names.iter().find_map(|name| json::count(usage.get(*name)?));
        told.filter(|tokens| *tokens > 0)
            .map(|input_tokens| Usage { input_tokens, ..Usage::default() })
    }
}

#[derive(Debug, Deserialize)]
struct Datum {
    embedding: Vec<f32>,
}

impl HttpEmbedder {
    /// `meter` accounts for the costs: a call that it refuses is not made.
    pub fn new(config: HttpConfig, meter: Arc<dyn Meter>) -> Self {
        Self { config, client: OnceLock::new(), meter }
    }

    fn client(&self) -> Result<&Client, EmbedError> {
        let client = self.client.get_or_init(|| {
            build(&self.config.url).map_err(|err| EmbedError {
                message: format!("preparing the embeddings client failed: {}", chain(&err)),
                transient: false,
            })
        });
        client.as_ref().map_err(Clone::clone)
    }

    async fn ask(&self, text: &str, behalf: &Behalf) -> Result<Vec<f32>, EmbedError> {
        let client = self.client()?;
        let mut body = json!({"model": self.config.model, "input": text});
        if let Some(dims) = self.config.dims {
            body["dimensions"] = dims.into();
        }
        let wish = Wish {
            behalf: behalf.clone(),
            provider: PROVIDER.to_owned(),
            model: self.config.model.clone(),
            format: "embeddings",
            input_tokens: estimate::input_tokens(text.len() as u64, 1),
        };
        let call = self.meter.open(wish).await.map_err(|err| unpaid(&err))?;
        let sending = client
            .post(self.config.url.clone())
            .bearer_auth(self.config.key.expose())
            .json(&body)
            .send();
        // From here on a dropped call is billed, because the server may have done it.
        let mut answer = match sending.await {
            Ok(answer) => answer,
            Err(err) => {
                if err.is_connect() || err.is_builder() {
                    call.end(Came::Unbilled(0));
                }
                return Err(self.unreachable(&err));
            }
        };
        let status = answer.status();
        let bytes = match self.read(&mut answer).await {
            Ok(bytes) => bytes,
            Err(err) => {
                if status != StatusCode::OK {
                    call.end(Came::Unbilled(status.as_u16()));
                }
                return Err(err);
            }
        };
        if status != StatusCode::OK {
            call.end(Came::Unbilled(status.as_u16()));
            let transient = status.is_server_error()
                || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
            let said = String::from_utf8_lossy(&bytes);
            return Err(self.error(&format!("answered {status}: {}", said.trim()), transient));
        }
        let answer = self.answered(&bytes, call)?;
        let vector = answer.data.into_iter().next().map(|datum| datum.embedding);
        let vector = vector
            .filter(|v| !v.is_empty())
            .ok_or_else(|| self.error("answered without an embedding", false))?;
        match self.config.dims {
            Some(dims) if usize::try_from(dims) != Ok(vector.len()) => Err(self.error(
                &format!(
                    "answered {} dimensions where OVERMIND_EMBEDDING_DIMS wants {dims}",
                    vector.len()
                ),
                false,
            )),
            Some(_) | None => Ok(vector),
        }
    }

    /// Settles the call with the usage in its answer.
    fn answered(&self, bytes: &[u8], call: Box<dyn Metered>) -> Result<Answer, EmbedError> {
        let answer = serde_json::from_slice::<Answer>(bytes);
        call.end(Came::Answered(answer.as_ref().ok().and_then(Answer::usage)));
        answer.map_err(|err| {
            self.error(&format!("answered something other than embeddings: {err}"), false)
        })
    }

    async fn read(&self, answer: &mut Response) -> Result<Vec<u8>, EmbedError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|err| self.unreachable(&err))? {
            if bytes.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(
                    self.error(&format!("answered more than {MAX_ANSWER_BYTES} bytes"), false)
                );
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    fn unreachable(&self, err: &reqwest::Error) -> EmbedError {
        let why = if err.is_timeout() {
            format!("did not answer within {} s", TIMEOUT.as_secs())
        } else {
            format!("cannot be asked: {}", chain(err))
        };
        self.error(&why, !err.is_builder())
    }

    fn error(&self, why: &str, transient: bool) -> EmbedError {
        // Some servers repeat the key that they refuse.
        let why = why.replace(self.config.key.expose(), "…");
        let why: String = why.chars().take(MAX_ERROR_CHARS).collect();
        EmbedError {
            message: format!("the embeddings endpoint {} {why}", self.config.url),
            transient,
        }
    }
}

impl Embedder for HttpEmbedder {
    fn model(&self) -> Fut<'_, Result<Arc<str>, EmbedError>> {
        let model = Arc::from(self.config.model.as_str());
        Box::pin(std::future::ready(Ok(model)))
    }

    fn dims(&self) -> Option<u32> {
        self.config.dims
    }

    fn embed<'a>(
        &'a self,
        text: &'a str,
        behalf: &'a Behalf,
    ) -> Fut<'a, Result<Vec<f32>, EmbedError>> {
        Box::pin(self.ask(text, behalf))
    }
}

/// The error for a call that the budget refuses.
fn unpaid(err: &NotMetered) -> EmbedError {
    EmbedError { message: err.to_string(), transient: err.is_temporary() }
}

fn build(url: &Url) -> reqwest::Result<Client> {
    // The process has one provider of cryptography; the first caller installs it, and all callers
    // here install the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = Client::builder()
        .timeout(TIMEOUT)
        .connect_timeout(TIMEOUT / 2)
        // A redirect would send the key to an unconfigured place.
        .redirect(redirect::Policy::none());
    if url.scheme() == "http" {
        // No certificates are read for an endpoint without TLS.
        client = client.tls_certs_only([]);
    }
    let local = match url.host_str() {
        Some(host) => {
            host == "localhost"
                || host
                    .trim_matches(['[', ']'])
                    .parse::<std::net::IpAddr>()
                    .is_ok_and(|ip| ip.is_loopback())
        }
        None => false,
    };
    if local {
        // A proxy is only for addresses outside of this machine.
        client = client.no_proxy();
    } else if url.scheme() == "http" {
        tracing::warn!(%url, "texts and the key go to the embeddings endpoint unencrypted");
    }
    client.build()
}

/// Joins an error and its causes on one line, without the URL, which the caller names.
fn chain(err: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut next: Option<&dyn std::error::Error> = std::error::Error::source(err);
    while let Some(cause) = next {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    if text.is_empty() { err.to_string() } else { text }
}
