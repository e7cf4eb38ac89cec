//! The port through which pages use the server.

use std::pin::Pin;

use bytes::Bytes;
use http::{Method, StatusCode};
use overmind_api::{Problem, Role};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A future of a port.
pub type Fut<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The server as the pages use it.
pub trait Port: Send + Sync {
    /// Returns the owner of a cookie's key.
    fn visitor<'a>(&'a self, secret: &'a str) -> Fut<'a, Result<Visitor, Refusal>>;

    /// Returns the person whom the code of a link would sign in. Does not use up the code.
    fn invited<'a>(&'a self, code: &'a str) -> Fut<'a, Result<Visitor, Refusal>>;

    /// Verifies an identity, and creates a short-lived key with the same name and role for a
    /// cookie.
    fn sign_in<'a>(&'a self, by: SignIn<'a>) -> Fut<'a, Result<Pass, Refusal>>;

    /// Revokes the key of a cookie, and closes its streams.
    fn sign_out<'a>(&'a self, secret: &'a str) -> Fut<'a, Result<(), Refusal>>;

    /// Calls the API with the key `secret`.
    fn call<'a>(&'a self, secret: &'a str, call: Call) -> Fut<'a, Reply>;
}

/// The proof of identity for a sign-in.
#[derive(Clone, Copy)]
pub enum SignIn<'a> {
    /// With an API key or the admin token.
    Key(&'a str),
    /// The code of a link, which is valid once and for one minute.
    Code(&'a str),
}

impl std::fmt::Debug for SignIn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Key(_) => "Key",
            Self::Code(_) => "Code",
        })
    }
}

/// The user of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visitor {
    pub name: String,
    pub role: Role,
}

impl Visitor {
    /// Returns whether the visitor may start and end runs and answer items.
    pub fn acts(&self) -> bool {
        matches!(self.role, Role::Runs | Role::Operator | Role::Admin)
    }
}

impl Visitor {
    /// Returns whether the visitor may change agents and resources, and decide about work.
    pub fn changes(&self) -> bool {
        matches!(self.role, Role::Operator | Role::Admin)
    }

    /// Returns whether the visitor may change global settings.
    pub fn rules(&self) -> bool {
        self.role == Role::Admin
    }
}

/// A key for a cookie.
pub struct Pass {
    pub secret: String,
    /// Seconds until it expires.
    pub seconds: u64,
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pass").field("seconds", &self.seconds).finish_non_exhaustive()
    }
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub message: String,
}

/// One call of the API.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: Method,
    /// The path and the query.
    pub target: String,
    pub body: Option<Value>,
    /// Maximum number of bytes of the answer that are read. A longer answer is cut.
    pub most: usize,
}

/// Maximum number of bytes of a JSON answer.
const MOST: usize = 16 << 20;

impl Call {
    pub fn get(target: impl Into<String>) -> Self {
        Self { method: Method::GET, target: target.into(), body: None, most: MOST }
    }

    pub fn post(target: impl Into<String>, body: Value) -> Self {
        Self { method: Method::POST, target: target.into(), body: Some(body), most: MOST }
    }

    pub fn put(target: impl Into<String>, body: Value) -> Self {
        Self { method: Method::PUT, target: target.into(), body: Some(body), most: MOST }
    }

    pub fn patch(target: impl Into<String>, body: Value) -> Self {
        Self { method: Method::PATCH, target: target.into(), body: Some(body), most: MOST }
    }

    pub fn delete(target: impl Into<String>) -> Self {
        Self { method: Method::DELETE, target: target.into(), body: None, most: MOST }
    }

    /// Sets the most bytes of the answer that are read.
    #[must_use]
    pub fn most(mut self, most: usize) -> Self {
        self.most = most;
        self
    }
}

/// The API's answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: StatusCode,
    /// The `Link` header, which contains the next page.
    pub link: Option<String>,
    pub body: Bytes,
}

impl Reply {
    /// Returns the value of a successful answer.
    ///
    /// # Errors
    ///
    /// Returns the refusal of the API.
    pub fn value<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        self.check()?;
        serde_json::from_slice(&self.body).map_err(|err| Refusal {
            status: StatusCode::BAD_GATEWAY,
            message: format!("the answer of the API could not be read: {err}"),
        })
    }

    /// Checks that the call succeeded.
    ///
    /// # Errors
    ///
    /// Returns the refusal of the API.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.status.is_success() {
            return Ok(());
        }
        let message = match serde_json::from_slice::<Problem>(&self.body) {
            Ok(problem) => told(&problem),
            Err(_) => format!("the API answered {}", self.status),
        };
        Err(Refusal { status: self.status, message })
    }

    /// Returns the cursor of the next page.
    pub fn next(&self) -> Option<&str> {
        let (_, rest) = self.link.as_deref()?.split_once("cursor=")?;
        let end = rest.find(['&', '>']).unwrap_or(rest.len());
        rest.get(..end)
    }
}

fn told(problem: &Problem) -> String {
    let mut text = problem.error.clone();
    for error in &problem.errors {
        text.push_str(&format!(" · {}: {}", error.field, error.message));
    }
    if let Some(hint) = &problem.hint {
        text.push_str(&format!(" · {hint}"));
    }
    text
}
