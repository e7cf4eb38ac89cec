//! The terminal of a run whose agent runs a program.

use overmind_api::{Role, Run, RunStatus, SandboxLevel};

/// The part of the page `/runs/{id}/terminal` below the summary of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminalPanel {
    /// Whether a program runs in a terminal now, so that one can attach to it.
    pub live: bool,
    /// Whether the visitor may type in it.
    pub may_type: bool,
    /// An explanation of the state, in a sentence or two.
    pub hint: &'static str,
}

impl TerminalPanel {
    /// Creates the panel. `terminal`: whether the agent's program has a terminal; `None` if
    /// unknown.
    pub fn new(run: &Run, terminal: Option<bool>, role: Role) -> Self {
        let runs = run.process.as_ref().is_some_and(|process| process.pid.is_some());
        let live = runs && terminal != Some(false);
        // Typing in a program without a sandbox is running commands on the host itself.
        let on_host = run.sandbox == SandboxLevel::None;
        let acts = matches!(role, Role::Runs | Role::Operator | Role::Admin);
        let may_type = live && acts && (role == Role::Admin || !on_host);
        let hint = match (terminal, run.status, runs) {
            (Some(false), _, _) => {
                "This program works behind pipes and has no terminal. Its output is shown as text."
            }
            (_, status, _) if status.is_terminal() => {
                "The run has ended. The last lines that it wrote are below."
            }
            (_, RunStatus::Queued, false) => "The program has not started yet.",
            (_, _, false) => {
                "The program is between two attempts. The terminal opens when it starts again."
            }
            (_, _, true) if may_type => {
                "You watch. Nothing that you press reaches the program until you take over."
            }
            (_, _, true) if acts => {
                "You watch. Only admins type in a program that runs on the host itself."
            }
            (_, _, true) => "You watch. Your role cannot type here.",
        };
        Self { live, may_type, hint }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(status: &str, pid: Option<u32>, sandbox: &str) -> Run {
        let at = "2026-11-25T16:00:00+00:00";
        serde_json::from_value(json!({
            "id": "ses_00000000000000000000000000000001", "name": "fix", "parent_id": null,
            "agent_id": "agt_00000000000000000000000000000001", "task": "t", "status": status,
            "step_limit": 0, "created_at": at, "started_at": at, "finished_at": null,
            "agent_version": 1, "epoch": 1, "hive": null, "prompt": null, "approval_id": null,
            "final_answer": null, "error": null, "cost_usd": 0.0,
            "usage": {"input_tokens": 0, "output_tokens": 0, "cached_input_tokens": 0,
                "cache_write_tokens": 0, "reasoning_tokens": 0},
            "step_count": 0, "model_call_count": 0, "sandbox": sandbox, "workspace": "/w",
            "forked_from": null, "created_by": "ann",
            "colony": "col_00000000000000000000000000000001",
            "process": {"life": 1, "pid": pid, "restarts": 0, "exit_code": null, "signal": null,
                "restart_at": null, "conversation": null}}))
        .unwrap()
    }

    #[test]
    fn only_a_program_with_a_terminal_is_live_and_only_some_roles_type() {
        let panel = |status, pid, terminal, role| {
            let panel = TerminalPanel::new(&run(status, pid, "namespace"), terminal, role);
            (panel.live, panel.may_type, panel.hint.split('.').next().unwrap_or_default())
        };
        let cases = [
            (panel("running", Some(7), Some(true), Role::Admin), (true, true, "You watch")),
            (panel("running", Some(7), None, Role::Runs), (true, true, "You watch")),
            (panel("running", Some(7), Some(true), Role::Viewer), (true, false, "You watch")),
            (
                panel("running", Some(7), Some(false), Role::Admin),
                (false, false, "This program works behind pipes and has no terminal"),
            ),
            (
                panel("running", None, Some(true), Role::Admin),
                (false, false, "The program is between two attempts"),
            ),
            (
                panel("queued", None, Some(true), Role::Admin),
                (false, false, "The program has not started yet"),
            ),
            (
                panel("succeeded", None, Some(true), Role::Admin),
                (false, false, "The run has ended"),
            ),
        ];
        for (found, want) in cases {
            assert_eq!(found, want);
        }
        let host = |role| TerminalPanel::new(&run("running", Some(7), "none"), None, role);
        assert!(host(Role::Admin).may_type && !host(Role::Operator).may_type);
        assert!(host(Role::Operator).hint.contains("Only admins"));
    }
}
