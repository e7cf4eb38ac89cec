//! Embeddings: a text becomes a vector. [`HttpEmbedder`] asks a server that speaks OpenAI's
//! format; [`crate::FileEmbedder`] has a model file.

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
    /// that the model knows. What it costs is counted as `behalf`'s.
    ///
    /// # Errors
    ///
    /// [`EmbedError`]; there is no other way to learn that the embedder is down.
    fn embed<'a>(
        &'a self,
        text: &'a str,
        behalf: &'a Behalf,
    ) -> Fut<'a, Result<Vec<f32>, EmbedError>>;
}

/// Who is billed for the embeddings, by the name that the price table has for it: the variables are OpenAI's,
/// wherever they lead.
const PROVIDER: &str = "openai";

/// `POST {model, input}` to an OpenAI-compatible endpoint.
///
/// Within 10 seconds or not at all; not repeated here, since the engine repeats what may succeed
/// later. The client is built at the first use, so that a start without memory costs nothing.
#[derive(Debug)]
pub struct HttpEmbedder {
    config: HttpConfig,
    client: OnceLock<Result<Client, EmbedError>>,
    meter: Arc<dyn Meter>,
}

#[derive(Debug, Deserialize)]
struct Answer {
    data: Vec<Datum>,
    // Read apart: figures of any shape do not make an embedding worthless.
    usage: Option<Value>,
}

impl Answer {
    /// What it says to be billed. Nothing at all is no figure: a text has tokens.
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
    /// `meter` keeps the books: nothing is asked that it refuses.
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
        // From here on whoever forgets the call pays for it: it may have been done.
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

    /// Ends the call by what its answer says of itself.
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

/// A call that may not be made.
fn unpaid(err: &NotMetered) -> EmbedError {
    EmbedError { message: err.to_string(), transient: err.is_temporary() }
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
