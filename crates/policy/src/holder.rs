//! Holds the policy for the engine: one policy at a time, replaced as a whole.

use std::sync::{Arc, PoisonError, RwLock};

use overmind_core::gate::{Gate, GateRequest, GateVerdict, PolicySource, PolicyVersion};

use crate::approvals::{group_key, propose};
use crate::policy::{Policy, PolicyError};

/// Holds a [`Policy`] that can be replaced while calls are being judged.
///
/// Each judgement uses one version from its beginning to its end. This type reads no file: a
/// watcher of a file calls [`PolicyGate::reload`] with the text.
#[derive(Debug)]
pub struct PolicyGate {
    now: RwLock<Arc<Policy>>,
    /// Why the newest text is not in force.
    refused: RwLock<Option<String>>,
}

impl PolicyGate {
    pub fn new(policy: Policy) -> Self {
        Self { now: RwLock::new(Arc::new(policy)), refused: RwLock::default() }
    }

    /// Stores the error of a policy that was to be used, until the next one is read.
    pub fn refuse(&self, why: String) {
        *self.refused.write().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    /// The policy in force.
    pub fn current(&self) -> Arc<Policy> {
        // A writer only replaces a pointer, so the value is valid after a panic.
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads a new text, puts it in force and returns its version.
    ///
    /// # Errors
    ///
    /// [`PolicyError`] if the text is wrong; the old policy stays in force then.
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
        // The caller that gathered the requests has decided how many are enough.
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
