//! The gate that the engine holds: one policy at a time, exchanged as a whole.

use std::sync::{Arc, PoisonError, RwLock};

use overmind_core::gate::{Gate, GateRequest, GateVerdict, PolicySource, PolicyVersion};

use crate::approvals::{group_key, propose};
use crate::policy::{Policy, PolicyError};

/// A [`Policy`] that can be replaced while others judge by it.
///
/// Each judgement is by one version from its beginning to its end. This type reads no file: who
/// watches one calls [`PolicyGate::reload`] with its text.
#[derive(Debug)]
pub struct PolicyGate {
    now: RwLock<Arc<Policy>>,
    /// Why the newest text does not hold.
    refused: RwLock<Option<String>>,
}

impl PolicyGate {
    pub fn new(policy: Policy) -> Self {
        Self { now: RwLock::new(Arc::new(policy)), refused: RwLock::default() }
    }

    /// Keeps what is wrong with the policy that somebody wants, until the next one is read.
    pub fn refuse(&self, why: String) {
        *self.refused.write().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    /// The policy that holds now.
    pub fn current(&self) -> Arc<Policy> {
        // A writer only exchanges a pointer, so what a panic left behind is whole.
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads a new text and puts it in force; answers its version.
    ///
    /// # Errors
    ///
    /// [`PolicyError`]; the old policy holds on then.
    pub fn reload(&self, text: &str, name: &str) -> Result<PolicyVersion, PolicyError> {
        let policy = Policy::parse(text, name).inspect_err(|err| self.refuse(err.to_string()))?;
        *self.refused.write().unwrap_or_else(PoisonError::into_inner) = None;
        let version = policy.version().clone();
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
        Ok(version)
    }
}

impl Default for PolicyGate {
    fn default() -> Self {
        Self::new(Policy::default())
    }
}

impl Gate for PolicyGate {
    fn judge(&self, request: &GateRequest) -> GateVerdict {
        self.current().judge(request)
    }

    fn group(&self, request: &GateRequest, verdict: &GateVerdict) -> Option<String> {
        Some(group_key(request, verdict))
    }

    fn propose(&self, approved: &[GateRequest]) -> Result<String, String> {
        // How many are enough was decided by whoever gathered them.
        propose(&self.current(), approved, 2).map_err(|err| err.to_string())
    }

    fn version(&self) -> PolicyVersion {
        self.current().version().clone()
    }

    fn source(&self) -> PolicySource {
        self.current().source().clone()
    }

    fn refused(&self) -> Option<String> {
        self.refused.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
