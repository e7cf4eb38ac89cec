//! Repeated checks of tokens: a connection may outlive the right that opened it.
//!
//! A stream of events, a followed log and a terminal each hold a [`Proof`], and check it before
//! each message in either direction and with each ping. So a revoked key or an ended run receives
//! nothing more, and gets an error within one ping interval.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use overmind_engine::{Caller, ColonyWish, EngineError, LAPSED};

use crate::auth;
use crate::colony;
use crate::cx::Cx;
use crate::fault::Fault;

/// The token that a request came with.
pub(crate) struct Proof {
    token: String,
    colony: ColonyWish,
}

impl Proof {
    /// The current caller.
    ///
    /// # Errors
    ///
    /// [`EngineError::Unauthenticated`] when the token is worth nothing any more; what the store says
    /// when that cannot be found out. [`EngineError::NotFound`] when the request's colony was deleted.
    pub(crate) async fn again(&self, cx: &Cx) -> Result<Caller, EngineError> {
        let caller = cx.engine.authenticate(&self.token).await.map_err(|err| match err {
            EngineError::Unauthenticated { message: _ } => {
                EngineError::Unauthenticated { message: LAPSED.to_owned() }
            }
            err => err,
        })?;
        cx.engine.in_colony(caller, &self.colony)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Proof {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        let colony = colony::wish(&parts.headers)?;
        Ok(Self { token: auth::token(&parts.headers)?.to_owned(), colony })
    }
}
