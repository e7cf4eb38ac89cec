//! Embeddings: a text becomes a vector. [`HttpEmbedder`] asks a server that speaks OpenAI's
//! format; [`crate::FileEmbedder`] has a model file.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use overmind_core::Fut;
use reqwest::{Client, Response, StatusCode, Url, redirect};
use serde::Deserialize;
use serde_json::json;

use crate::config::HttpConfig;

/// One request, from connecting to the last byte of the answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// An answer of 65,536 numbers takes about 1.5 MB.
const MAX_ANSWER_BYTES: usize = 8 << 20;
/// Kept of what a server says about an error.
const MAX_ERROR_CHARS: usize = 500;

/// Why a text has no vector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EmbedError {
    /// What was asked of whom, and what came of it. Never holds the key.
    pub message: String,
    /// The same request may succeed later.
    pub transient: bool,
}

/// Makes vectors. Vectors of one model can be compared with each other and with no others.
pub trait Embedder: Send + Sync + fmt::Debug {
    /// Recorded with each vector. The same name means comparable vectors.
    ///
    /// # Errors
    ///
    /// [`EmbedError`] when a model on this machine cannot be read; a server is not asked.
    fn model(&self) -> Fut<'_, Result<Arc<str>, EmbedError>>;

    /// The size of the vectors, where it is chosen and not the model's own.
    fn dims(&self) -> Option<u32> {
        None
    }

    /// The vector of `text`, of any length but zero; empty when there is nothing in the text
    /// that the model knows.
    ///
    /// # Errors
    ///
    /// [`EmbedError`]; there is no other way to learn that the embedder is down.
    fn embed<'a>(&'a self, text: &'a str) -> Fut<'a, Result<Vec<f32>, EmbedError>>;
}

/// `POST {model, input}` to an OpenAI-compatible endpoint.
///
/// Within 10 seconds or not at all; not repeated here, since the engine repeats what may succeed
/// later. The client is built at the first use, so that a start without memory costs nothing.
#[derive(Debug)]
pub struct HttpEmbedder {
    config: HttpConfig,
    client: OnceLock<Result<Client, EmbedError>>,
}

#[derive(Debug, Deserialize)]
struct Answer {
    data: Vec<Datum>,
}

#[derive(Debug, Deserialize)]
struct Datum {
    embedding: Vec<f32>,
}

impl HttpEmbedder {
    pub fn new(config: HttpConfig) -> Self {
        Self { config, client: OnceLock::new() }
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

    async fn ask(&self, text: &str) -> Result<Vec<f32>, EmbedError> {
        let mut body = json!({"model": self.config.model, "input": text});
        if let Some(dims) = self.config.dims {
            body["dimensions"] = dims.into();
        }
        let mut answer = self
            .client()?
            .post(self.config.url.clone())
            .bearer_auth(self.config.key.expose())
            .json(&body)
            .send()
            .await
            .map_err(|err| self.unreachable(&err))?;
        let status = answer.status();
        let bytes = self.read(&mut answer).await?;
        if status != StatusCode::OK {
            let transient = status.is_server_error()
                || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
            let said = String::from_utf8_lossy(&bytes);
            return Err(self.error(&format!("answered {status}: {}", said.trim()), transient));
        }
        let answer: Answer = serde_json::from_slice(&bytes).map_err(|err| {
            self.error(&format!("answered something other than embeddings: {err}"), false)
        })?;
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

    fn embed<'a>(&'a self, text: &'a str) -> Fut<'a, Result<Vec<f32>, EmbedError>> {
        Box::pin(self.ask(text))
    }
}

fn build(url: &Url) -> reqwest::Result<Client> {
    // One provider of cryptography for the whole process; whoever comes first installs it, and
    // everyone here installs the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = Client::builder()
        .timeout(TIMEOUT)
        .connect_timeout(TIMEOUT / 2)
        // A redirect would carry the key to a place that nobody configured.
        .redirect(redirect::Policy::none());
    if url.scheme() == "http" {
        // No certificates are read for an endpoint that needs none, present or not.
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
        // A proxy is for what is outside.
        client = client.no_proxy();
    } else if url.scheme() == "http" {
        tracing::warn!(%url, "texts and the key go to the embeddings endpoint unencrypted");
    }
    client.build()
}

/// An error with its causes, on one line, without the URL (the caller names it).
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
