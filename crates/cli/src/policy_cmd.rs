//! `overmind policy`: tests which calls are allowed, asked or denied. Works without a server.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueHint};
use overmind_core::gate::{Decision, PolicySource};
use overmind_node::app::{chain, gate};
use overmind_node::config::PolicyChoice;
use overmind_policy::{Explanation, Policy, TestLine};
use serde_json::json;

use crate::args_more::SandboxArg;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::{Table, Tone};
use crate::show::{self, cell, dim};

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Show what a command or a tool call would do, and the verdict of the policy
    #[command(after_help = "\
Examples:
  overmind policy explain --command 'env sh -c \"rm -rf src\"'
  overmind policy explain --tool write_file --args '{\"path\":\".git/config\"}' -o json
  overmind policy explain --command 'curl https://example.com' --untrusted --private")]
    Explain(ExplainArgs),
    /// Check recorded calls, one JSON object per line; exit code 1 if a verdict is not the expected one
    #[command(after_help = "\
Example:
  echo '{\"tool\":\"run_shell\",\"args\":{\"command\":\"sudo ls\"},\"expect\":\"deny\"}' > calls.jsonl
  overmind policy test calls.jsonl")]
    Test {
        /// The calls; `-` reads them from standard input
        #[arg(value_hint = ValueHint::FilePath)]
        calls: PathBuf,
        #[command(flatten)]
        policy: PolicyFileArg,
    },
    /// Print the policy in force, and its version
    #[command(after_help = "\
Examples:
  overmind policy show
  overmind policy show --builtin > policy.toml")]
    Show {
        #[command(flatten)]
        policy: PolicyFileArg,
    },
}

#[derive(Clone, Debug, Args)]
pub struct PolicyFileArg {
    /// The policy [default: what `policy.file` names, else the built-in one]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    /// The built-in policy, also if the configuration names another one
    #[arg(long, conflicts_with = "policy")]
    pub builtin: bool,
}

#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// A shell command, as an agent gives it to run_shell
    #[arg(long, value_name = "TEXT", required_unless_present = "tool", conflicts_with = "tool")]
    pub command: Option<String>,
    /// Another tool
    #[arg(long, value_name = "NAME")]
    pub tool: Option<String>,
    /// The tool's arguments, a JSON object
    #[arg(long, value_name = "JSON", requires = "tool", default_value = "{}")]
    pub args: String,
    /// The agent's name
    #[arg(long, default_value = "")]
    pub agent: String,
    /// The colony's name
    #[arg(long, default_value = "default")]
    pub colony: String,
    /// How the agent's commands are isolated from this machine
    #[arg(long, value_enum, default_value = "namespace")]
    pub sandbox: SandboxArg,
    /// The session has read untrusted text
    #[arg(long)]
    pub untrusted: bool,
    /// The session has read private data
    #[arg(long)]
    pub private: bool,
    #[command(flatten)]
    pub policy: PolicyFileArg,
}

/// # Errors
///
/// A policy or a file of calls that cannot be read.
pub fn run(cx: &Context, command: &PolicyCommand) -> Outcome {
    match command {
        PolicyCommand::Explain(args) => explain(cx, args),
        PolicyCommand::Test { calls, policy } => test(cx, calls, policy),
        PolicyCommand::Show { policy } => {
            let policy = load(cx, policy)?;
            let value = json!({
                "source": policy.source().as_str(), "file": policy.source().file(),
                "version": policy.version(), "text": policy.text(),
            });
            show::one(&cx.out, &value, &policy.version().to_string(), Vec::new)?;
            if cx.out.for_people() {
                cx.out.note(&format!("{} (version {})", origin(&policy), policy.version()));
                cx.out.text(policy.text())?;
            }
            Ok(Exit::Done)
        }
    }
}

/// The requested policy; by default the one with which a server here would start.
fn load(cx: &Context, file: &PolicyFileArg) -> Result<Policy, Failure> {
    if file.builtin {
        return Ok(Policy::default());
    }
    let choice = match &file.policy {
        Some(path) => PolicyChoice::File(cx.cwd.join(path)),
        None => cx.config(None)?.policy,
    };
    gate::read(&choice).map_err(|err| {
        Failure::failed(format!("reading the policy: {}", chain(&err)))
            .hint("docs/policy.md lists every key")
    })
}

/// The source of the policy, in words.
fn origin(policy: &Policy) -> String {
    match policy.source() {
        PolicySource::Builtin => "the built-in policy".to_owned(),
        PolicySource::File(file) => file.clone(),
        PolicySource::Off => gate::OFF.to_owned(),
    }
}

fn explain(cx: &Context, args: &ExplainArgs) -> Outcome {
    let policy = load(cx, &args.policy)?;
    let (tool, call) = match (&args.command, &args.tool) {
        (Some(command), _) => ("run_shell", json!({ "command": command })),
        (None, Some(tool)) => {
            let call = serde_json::from_str(&args.args)
                .map_err(|err| Failure::usage(format!("--args is not JSON: {err}")))?;
            (tool.as_str(), call)
        }
        (None, None) => return Err(Failure::usage("name a --command or a --tool")),
    };
    let mut request = overmind_policy::request(tool, call);
    request.agent.clone_from(&args.agent);
    request.colony.clone_from(&args.colony);
    request.sandbox = match args.sandbox {
        SandboxArg::None => overmind_core::sandbox::SandboxLevel::None,
        SandboxArg::Namespace => overmind_core::sandbox::SandboxLevel::Namespace,
        SandboxArg::Docker => overmind_core::sandbox::SandboxLevel::Docker,
        SandboxArg::Microvm => overmind_core::sandbox::SandboxLevel::Microvm,
    };
    request.labels.untrusted = args.untrusted;
    request.labels.private = args.private;
    let Explanation { request, verdict } = overmind_policy::explain(&policy, request);
    let value = json!({"request": request, "verdict": verdict});
    show::one(&cx.out, &value, verdict.decision.as_str(), || {
        let mut lines = vec![
            ("verdict", (verdict.decision.to_string(), tone(verdict.decision))),
            ("reason", cell(verdict.reason.as_str())),
            ("rule", cell(format!("{} ({})", verdict.rule.id, verdict.rule.place))),
            ("risk", cell(verdict.risk.to_string())),
            ("policy", dim(verdict.policy.to_string())),
        ];
        for action in &verdict.actions {
            let mut words = action.via.clone();
            words.push(
                format!("{} {}", action.program, action.args.join(" ")).trim_end().to_owned(),
            );
            let mut text = format!("{}: {}", action.decision, words.join(" → "));
            for touch in &action.touches {
                text.push_str(&format!("\n  {} {}", touch.kind, touch.target.replace('\n', " ")));
            }
            lines.push(("action", (text, tone(action.decision))));
        }
        lines
    })?;
    Ok(Exit::Done)
}

fn tone(decision: Decision) -> Tone {
    match decision {
        Decision::Allow => Tone::Good,
        Decision::Ask => Tone::Waits,
        Decision::Deny => Tone::Bad,
    }
}

fn test(cx: &Context, calls: &Path, policy: &PolicyFileArg) -> Outcome {
    let policy = load(cx, policy)?;
    let name = calls.display();
    let wrong = |err: std::io::Error| Failure::failed(format!("reading the calls {name}: {err}"));
    let text = if calls == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(wrong)?;
        text
    } else {
        std::fs::read_to_string(cx.cwd.join(calls)).map_err(wrong)?
    };
    let table = overmind_policy::test_records(&policy, &text)
        .map_err(|err| Failure::failed(format!("reading the calls {name}: {err}")))?;
    show::list(
        &cx.out,
        &table,
        |line| line.line.to_string(),
        |wide| verdicts(&table, wide),
        "no calls",
    )?;
    let failed = table.iter().filter(|line| !line.as_expected()).count();
    if failed > 0 {
        return Err(Failure::failed(format!(
            "{failed} of {} calls are not judged as expected",
            table.len()
        )));
    }
    Ok(Exit::Done)
}

fn verdicts(table: &[TestLine], wide: bool) -> Table {
    let header: &[&str] = if wide {
        &["LINE", "VERDICT", "EXPECTED", "RULE", "RISK", "CALL", "REASON"]
    } else {
        &["LINE", "VERDICT", "EXPECTED", "RULE", "CALL"]
    };
    let mut shown = Table::new(header);
    for line in table {
        let verdict = &line.verdict;
        let expected = match line.expect {
            None => dim("-"),
            Some(expect) if line.as_expected() => dim(expect.as_str()),
            Some(expect) => (expect.to_string(), Tone::Bad),
        };
        let mut cells = vec![
            cell(line.line.to_string()),
            (verdict.decision.to_string(), tone(verdict.decision)),
            expected,
            cell(verdict.rule.id.as_str()),
        ];
        if wide {
            cells.push(cell(verdict.risk.to_string()));
        }
        cells.push(cell(line.call.replace('\n', " ")));
        if wide {
            cells.push(cell(verdict.reason.as_str()));
        }
        shown.row(cells);
    }
    shown
}
