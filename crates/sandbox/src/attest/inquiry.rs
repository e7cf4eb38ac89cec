//! One measurement, from its traps to its record: the part that all drivers share.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use overmind_core::attest::{Attestation, Bound};
use overmind_core::enclosure::Network;
use overmind_core::sandbox::{
    Exit, SandboxError, SandboxLevel, SandboxLimits, SandboxRequest, SandboxResult,
};

use super::facts::{Facts, MachineFacts};
use super::judge::{Subject, judge};
use super::keeper::now;
use super::questions::Traps;
use super::{ARGUMENT, MAX_ANSWER_BYTES};

/// The directory in which the probe starts: one that certainly exists and holds no secret.
const WORKSPACE: &str = "/usr";

/// The time limit of the probe. A healthy machine needs some milliseconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A measurement under way. Dropping it removes its traps.
#[derive(Debug)]
pub(crate) struct Inquiry {
    level: SandboxLevel,
    begun: Instant,
    pub(crate) traps: Traps,
    pub(crate) request: SandboxRequest,
    /// Devices that the driver gives to commands deliberately.
    devices: Vec<String>,
    /// The network, if the sandbox is for long-running commands.
    living: Option<Network>,
    called: bool,
}

impl Inquiry {
    /// Sets the traps. [`Traps::set`] explains `private` and `sockets`.
    ///
    /// # Errors
    ///
    /// Fails if the traps cannot be set.
    pub(crate) fn begin(
        level: SandboxLevel,
        private: &[PathBuf],
        sockets: &[PathBuf],
        writable: &[&str],
    ) -> Result<Self, SandboxError> {
        let begun = Instant::now();
        let writable: Vec<PathBuf> = writable.iter().map(PathBuf::from).collect();
        let traps = Traps::set(private, sockets, &writable)
            .map_err(|err| failed(level, &format!("the traps cannot be set: {err}")))?;
        let request = SandboxRequest {
            argv: vec!["overmind".to_owned(), ARGUMENT.to_owned()],
            workspace: PathBuf::from(WORKSPACE),
            writable: None,
            cwd: PathBuf::new(),
            env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
            home: Vec::new(),
            stdin: Vec::new(),
            timeout: TIMEOUT,
            limits: SandboxLimits { output_bytes: MAX_ANSWER_BYTES, ..SandboxLimits::default() },
        };
        let (devices, living, called) = (Vec::new(), None, false);
        Ok(Self { level, begun, traps, request, devices, living, called }.asked())
    }

    /// Changes the questions.
    pub(crate) fn with(mut self, change: impl FnOnce(Traps) -> Traps) -> Self {
        self.traps = change(self.traps);
        self.asked()
    }

    /// Shows a directory that contains a hidden file, instead of the usual one.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be made.
    pub(crate) fn hiding(mut self, at_workspace: bool) -> Result<Self, SandboxError> {
        let failed = |err: std::io::Error| failed(self.level, &format!("the traps: {err}"));
        self.request.workspace = self.traps.hide(at_workspace).map_err(failed)?;
        Ok(self.asked())
    }

    /// Accepts these devices and no others.
    pub(crate) fn accepting(mut self, devices: &[PathBuf]) -> Self {
        self.devices = devices.iter().map(|path| path.display().to_string()).collect();
        self
    }

    /// Declares the sandbox as one for long-running commands, or for tool calls in an environment,
    /// with this network.
    pub(crate) fn of_the_living(mut self, network: Network, called: bool) -> Self {
        (self.living, self.called) = (Some(network), called);
        self
    }

    fn asked(mut self) -> Self {
        self.request.stdin = self.traps.stdin();
        self
    }

    /// Judges the probe's answer.
    ///
    /// # Errors
    ///
    /// Fails if the probe gave no answer, or a wrong one.
    pub(crate) fn conclude(
        self,
        result: &SandboxResult,
        machine: Option<MachineFacts>,
        config: String,
        bounds: Vec<Bound>,
    ) -> Result<Attestation, SandboxError> {
        if result.exit != Exit::Code(0) {
            let words = result.stderr.text.trim();
            let why = format!("the probe ended with {:?}: {words}", result.exit);
            return Err(failed(self.level, &why));
        }
        let nonce = &self.traps.questions().nonce;
        let mut facts = Facts::parse(result.stdout.text.as_bytes(), nonce)
            .map_err(|why| failed(self.level, &why))?;
        // Only the driver may report findings about the machine.
        facts.machine = machine;
        let subject = Subject {
            door: self.traps.questions().door,
            hides: self.traps.questions().hidden.is_some(),
            reaches: self.traps.questions().reaches.clone(),
            level: self.level,
            variables: self.request.env.into_iter().map(|(name, _)| name).collect(),
            at: now(),
            took: self.begun.elapsed(),
            config,
            devices: self.devices,
            living: self.living,
            called: self.called,
            bounds,
        };
        Ok(judge(subject, &facts))
    }
}

pub(crate) fn failed(level: SandboxLevel, why: &str) -> SandboxError {
    SandboxError::Failed { level: level.as_str(), message: format!("measuring the sandbox: {why}") }
}
