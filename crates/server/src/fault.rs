//! From a failure to a response.
//!
//! A handler answers with a [`Fault`]; `front` renders it at the end, when the request's id is
//! known. What the outside may not know (bugs, damaged state) is logged here and nowhere shown.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use overmind_api::{FieldError, Problem, ProblemKind};
use overmind_engine::EngineError;

/// Why a request failed, with the headers that its response needs.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    problem: Box<Problem>,
    retry_after: Option<Duration>,
    /// The request's body was not read to its end: the connection cannot be used again.
    close: bool,
}

impl Fault {
    pub(crate) fn new(kind: ProblemKind, error: impl Into<String>) -> Self {
        Problem::new(kind, error).into()
    }

    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(ProblemKind::NotFound, format!("{what} not found"))
    }

    pub(crate) fn invalid(field: &str, message: impl Into<String>) -> Self {
        Problem::invalid(vec![FieldError::new(field, message)]).into()
    }

    /// `Ok` when there are no field errors.
    pub(crate) fn unless_empty(errors: Vec<FieldError>) -> Result<(), Self> {
        if errors.is_empty() { Ok(()) } else { Err(Problem::invalid(errors).into()) }
    }

    /// A bug. The words go to the log; the client learns the request's id.
    pub(crate) fn internal(what: &str, why: &dyn std::fmt::Display) -> Self {
        tracing::error!(error = %why, "{what}");
        let error = "the server failed to answer; its log says why under this request's id";
        Self::new(ProblemKind::Internal, error)
    }

    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.problem.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub(crate) fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    #[must_use]
    pub(crate) fn closing(mut self) -> Self {
        self.close = true;
        self
    }

    pub(crate) fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Turns a conflict into "stale": for requests that name a version.
    #[must_use]
    pub(crate) fn conflict_is_stale(mut self) -> Self {
        if self.problem.known_kind() == Some(ProblemKind::Conflict) {
            let error = std::mem::take(&mut self.problem.error);
            *self.problem = Problem::new(ProblemKind::Stale, error)
                .with_hint("read the object again, check the change, and repeat with the new ETag");
        }
        self
    }

    /// Turns "unavailable" into a conflict: for requests whose purpose it is to end that state.
    #[must_use]
    pub(crate) fn unavailable_is_conflict(mut self) -> Self {
        if self.problem.known_kind() == Some(ProblemKind::Unavailable) {
            let error = std::mem::take(&mut self.problem.error);
            *self.problem = Problem::new(ProblemKind::Conflict, error);
        }
        self
    }

    /// The whole response.
    pub(crate) fn render(mut self, request_id: &str) -> Response {
        self.problem.request_id = Some(request_id.to_owned());
        let body = serde_json::to_vec(&self.problem).expect("a problem is texts and numbers");
        let status = StatusCode::from_u16(self.problem.status)
            .expect("every ProblemKind's status is a valid one");
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        if status == StatusCode::UNAUTHORIZED {
            let realm = HeaderValue::from_static("Bearer realm=\"overmind\"");
            headers.insert(header::WWW_AUTHENTICATE, realm);
        }
        if let Some(wait) = self.retry_after {
            // Whole seconds, rounded up: too late is polite, too early is not.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if self.close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        Self { problem: Box::new(problem), retry_after: None, close: false }
    }
}

impl From<EngineError> for Fault {
    fn from(err: EngineError) -> Self {
        match err {
            EngineError::Invalid { field, message } if field.is_empty() => {
                Self::new(ProblemKind::Invalid, message)
            }
            // The engine's words name the field already; the list is for programs.
            EngineError::Invalid { field, message } => {
                let errors = vec![FieldError::new(field, message.clone())];
                Problem { errors, ..Problem::new(ProblemKind::Invalid, message) }.into()
            }
            EngineError::Unauthenticated { message } => {
                Self::new(ProblemKind::Unauthenticated, message)
            }
            EngineError::Forbidden { message } => Self::new(ProblemKind::Forbidden, message),
            EngineError::Untrusted { message } => Self::new(ProblemKind::Untrusted, message),
            EngineError::NotFound { message } => Self::new(ProblemKind::NotFound, message),
            EngineError::Conflict { message, what: _ } => Self::new(ProblemKind::Conflict, message),
            EngineError::Busy { message } | EngineError::Unavailable { message } => {
                Self::new(ProblemKind::Unavailable, message).retry_after(Duration::from_secs(1))
            }
            EngineError::Store(err) => Self::internal("the store failed", &err),
        }
    }
}

impl IntoResponse for Fault {
    /// Only a carrier: `front` takes the fault out again and renders it.
    fn into_response(self) -> Response {
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use overmind_core::store::StoreError;

    use super::*;

    fn text(fault: &Fault) -> (u16, &str) {
        (fault.problem.status, &fault.problem.error)
    }

    #[test]
    fn each_engine_error_has_a_status_and_keeps_its_text() {
        let message = || "Run is not awaiting input".to_owned();
        for (err, status) in [
            (EngineError::Invalid { field: String::new(), message: message() }, 422),
            (EngineError::Unauthenticated { message: message() }, 401),
            (EngineError::Forbidden { message: message() }, 403),
            (EngineError::NotFound { message: message() }, 404),
            (EngineError::conflict(message()), 409),
            (EngineError::Busy { message: message() }, 503),
            (EngineError::Unavailable { message: message() }, 503),
        ] {
            assert_eq!(text(&Fault::from(err)), (status, "Run is not awaiting input"));
        }
        let invalid = EngineError::invalid("name", "name must not be blank");
        let fault = Fault::from(invalid);
        assert_eq!(text(&fault), (422, "name must not be blank"));
        assert_eq!(fault.problem.errors.len(), 1);
    }

    #[test]
    fn internal_store_errors_are_not_shown_to_clients() {
        let detail = "row 7 of /srv/secret.db".to_owned();
        let err = StoreError::Other { attempt: "reading".into(), detail };
        let fault = Fault::from(EngineError::Store(err));
        assert_eq!(fault.problem.status, 500);
        assert!(!fault.problem.error.contains("secret.db"), "{}", fault.problem.error);
    }

    #[test]
    fn a_fault_has_the_headers_of_its_status() {
        let fault = Fault::new(ProblemKind::RateLimited, "slow down")
            .retry_after(Duration::from_millis(1200));
        let response = fault.render("req-1");
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "2");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        let response = Fault::new(ProblemKind::Unauthenticated, "no").render("req-2");
        assert_eq!(response.headers()["www-authenticate"], "Bearer realm=\"overmind\"");
        let response = Fault::new(ProblemKind::TooLarge, "big").closing().render("req-3");
        assert_eq!(response.headers()["connection"], "close");
    }
}
