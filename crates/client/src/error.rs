//! Errors of calls to the server.

use std::io;
use std::time::Duration;

use overmind_api::{Problem, ProblemKind};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("reaching the server at {target}")]
    Connect {
        target: String,
        #[source]
        source: io::Error,
    },
    #[error("speaking TLS with {target}: {why}")]
    Tls { target: String, why: String },
    #[error("the server at {target} did not answer within {after:?}")]
    Timeout { target: String, after: Duration },
    /// The connection broke during a request, which may have been executed.
    #[error("the connection to {target} broke during {attempt}")]
    Broken {
        target: String,
        /// For example `POST /api/runs`.
        attempt: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server refused the request, with this reason.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// The answer does not come from an Overmind server.
    #[error("{target} answered {attempt} with {status} and no problem document: {body}")]
    Foreign { target: String, attempt: String, status: u16, body: String },
    /// This client cannot read the answer, usually because the server has another version.
    #[error("the answer to {attempt} is not what this client expects: {why}")]
    Unreadable { attempt: String, why: String },
    /// No request can be made from this argument.
    #[error("{what}: {why}")]
    Argument { what: &'static str, why: &'static str },
}

impl ClientError {
    /// Returns the HTTP status of the answer, if there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused(problem) => Some(problem.status),
            Self::Foreign { status, .. } => Some(*status),
            Self::Connect { .. }
            | Self::Tls { .. }
            | Self::Timeout { .. }
            | Self::Broken { .. }
            | Self::Unreadable { .. }
            | Self::Argument { .. } => None,
        }
    }

    /// Returns the server's problem, if it sent one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            Self::Connect { .. }
            | Self::Tls { .. }
            | Self::Timeout { .. }
            | Self::Broken { .. }
            | Self::Foreign { .. }
            | Self::Unreadable { .. }
            | Self::Argument { .. } => None,
        }
    }

    /// Returns what the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Connect { source, .. } => match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    "is the server running? `overmind up -d` starts it"
                }
                io::ErrorKind::PermissionDenied => {
                    "the socket belongs to another user; run as the one who started the server"
                }
                _ => return None,
            },
            Self::Tls { why, .. } if why.contains("CaUsedAsEndEntity") => {
                "the server's certificate is itself a certificate authority (CA:TRUE); make one for the \
                 server that is signed by it: docs/cli.md"
            }
            Self::Tls { .. } => "a certificate of your own needs its CA file named",
            Self::Timeout { .. } | Self::Broken { .. } => {
                "`overmind status` says whether the server is well; what was asked may still happen"
            }
            Self::Refused(problem) => match (&problem.hint, problem.known_kind()) {
                (Some(hint), _) => return Some(hint.clone()),
                (None, Some(ProblemKind::Unauthenticated)) => {
                    "the token is not this server's; see `--data` and `--token`"
                }
                (None, Some(ProblemKind::RateLimited | ProblemKind::Unavailable)) => {
                    "try again in a moment"
                }
                (None, Some(ProblemKind::Internal)) => {
                    let id = problem.request_id.as_deref().unwrap_or("?");
                    return Some(format!("the server's log has more under {id}"));
                }
                (None, _) => return None,
            },
            Self::Foreign { .. } => "is that address an Overmind server?",
            Self::Unreadable { .. } => "compare `overmind --version` with the server's",
            Self::Argument { .. } => return None,
        };
        Some(text.to_owned())
    }

    /// Returns whether the same call may succeed a moment later and can safely be repeated, because
    /// nothing was done.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Timeout { .. } | Self::Broken { .. } => true,
            Self::Refused(problem) => matches!(problem.status, 429 | 503 | 504),
            Self::Tls { .. }
            | Self::Foreign { .. }
            | Self::Unreadable { .. }
            | Self::Argument { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_answer_gets_the_hint_to_start_one() {
        let source = io::Error::from(io::ErrorKind::ConnectionRefused);
        let err = ClientError::Connect { target: "http://localhost:1".into(), source };
        assert!(err.hint().unwrap().contains("overmind up"));
        assert_eq!(err.status(), None);
    }

    #[test]
    fn a_problem_keeps_its_own_hint_and_words() {
        let problem = Problem::new(ProblemKind::NotFound, "Run not found").with_hint("look again");
        let err = ClientError::Refused(Box::new(problem));
        assert_eq!(err.to_string(), "Run not found");
        assert_eq!(err.hint().as_deref(), Some("look again"));
        assert_eq!(err.status(), Some(404));
    }
}
