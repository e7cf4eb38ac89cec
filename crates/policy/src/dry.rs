//! Dry runs: show what a policy would decide, in tables and without a server.

use overmind_core::gate::{Decision, GateRequest, GateVerdict};
use overmind_core::sandbox::SandboxLevel;
use serde::{Deserialize, Serialize};

use crate::policy::Policy;

/// The output of `policy explain`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    pub request: GateRequest,
    pub verdict: GateVerdict,
}

/// Judges one shell command as if an agent in a namespace sandbox had called it.
pub fn explain_command(policy: &Policy, command: &str) -> Explanation {
    explain(policy, request("run_shell", serde_json::json!({ "command": command })))
}

/// Judges one call.
pub fn explain(policy: &Policy, request: GateRequest) -> Explanation {
    let verdict = policy.judge(&request);
    Explanation { request, verdict }
}

/// A request with default values for everything that is not given.
pub fn request(tool: &str, args: serde_json::Value) -> GateRequest {
    GateRequest {
        colony: "default".to_owned(),
        agent: String::new(),
        tool: tool.to_owned(),
        args,
        workspace: "/workspace".to_owned(),
        cwd: String::new(),
        scratch: overmind_core::gate::scratch_of("session"),
        sandbox: SandboxLevel::Namespace,
        labels: overmind_core::gate::Labels::default(),
        room: false,
    }
}

/// One recorded call of a file for `policy test`. Besides the request's own keys it may contain the
/// expected decision.
#[derive(Clone, Debug, Deserialize)]
struct Recorded {
    #[serde(flatten)]
    call: serde_json::Map<String, serde_json::Value>,
    expect: Option<Decision>,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TestLine {
    /// The line in the file, counted from 1.
    pub line: usize,
    pub tool: String,
    /// The command, or the arguments as JSON.
    pub call: String,
    pub expect: Option<Decision>,
    pub verdict: GateVerdict,
}

impl TestLine {
    pub fn as_expected(&self) -> bool {
        self.expect.is_none_or(|expect| expect == self.verdict.decision)
    }
}

/// The error for a line that is no recorded call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct RecordError {
    pub line: usize,
    pub message: String,
}

/// Judges recorded calls in JSON Lines, one request each: `{"tool": …, "args": {…}}`, optionally
/// with `agent`, `colony`, `workspace`, `cwd`, `sandbox`, `labels`, and `expect`. Blank lines are
/// skipped.
///
/// # Errors
///
/// [`RecordError`] for the first line that cannot be read.
pub fn test_records(policy: &Policy, text: &str) -> Result<Vec<TestLine>, RecordError> {
    let mut table = Vec::new();
    for (n, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        let line = n + 1;
        let wrong = |err: serde_json::Error| RecordError { line, message: err.to_string() };
        let recorded: Recorded = serde_json::from_str(text).map_err(wrong)?;
        let request: GateRequest =
            serde_json::from_value(serde_json::Value::Object(recorded.call)).map_err(wrong)?;
        let verdict = policy.judge(&request);
        let call = match request.args.get("command").and_then(serde_json::Value::as_str) {
            Some(command) => command.to_owned(),
            None => request.args.to_string(),
        };
        table.push(TestLine { line, tool: request.tool, call, expect: recorded.expect, verdict });
    }
    Ok(table)
}
