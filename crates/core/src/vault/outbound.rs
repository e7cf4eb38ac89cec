//! The port through which calls of services leave: one exchange with one place that was resolved
//! here ([`super::resolve`]).

use std::fmt;
use std::time::Duration;

use zeroize::Zeroizing;

use super::service::Method;
use crate::Fut;

/// Name, in small letters, and value of a header. The value may be the key.
pub type SecretHeader = (String, Zeroizing<Vec<u8>>);

/// One call, its key in place. Never printed.
pub struct OutboundCall {
    pub method: Method,
    /// The whole URL; the key may stand in it.
    pub url: Zeroizing<String>,
    pub headers: Vec<SecretHeader>,
    pub body: Vec<u8>,
    /// For all of it.
    pub timeout: Duration,
    /// Maximum number of bytes of the answer's body, unpacked.
    pub max_response: usize,
    /// The name may lead to loopback and private addresses. Link-local ones stay out of reach.
    pub private: bool,
}

impl fmt::Debug for OutboundCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundCall").field("method", &self.method).finish_non_exhaustive()
    }
}

/// The answer. It may repeat the key: the caller masks it before it forwards the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundReply {
    pub status: u16,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    /// The body was longer than the call allowed.
    pub truncated: bool,
}

/// Why nothing came back. The texts name no URL: the key may stand in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutboundError {
    /// The name leads to an address that may not be connected to.
    #[error("the service's name resolves to an address that is not allowed: {0}")]
    Refused(&'static str),
    #[error("the service did not answer in time")]
    Timeout,
    /// It redirects, and a key follows no redirect.
    #[error("the service answers with a redirect, which is not followed")]
    Redirect,
    #[error("the service could not be reached")]
    Unreachable,
    #[error("the service's answer cannot be read")]
    Broken,
}

/// Does exchanges with services. Redirects are never followed; a name is looked up once and only
/// what it led to is connected to; addresses that are not public are refused unless the call
/// says otherwise.
pub trait Outbound: Send + Sync + fmt::Debug {
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    fn send(&self, call: OutboundCall) -> Fut<'_, Result<OutboundReply, OutboundError>>;
}
