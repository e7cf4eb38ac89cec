//! `run_command`: runs one program with its arguments in a sandbox, without a shell.
//!
//! It is for agents that should run only a few known programs: the settings list the allowed bare
//! names, and no argument is ever read as syntax. The arguments are not restricted: the sandbox
//! limits what a program may touch, as with `run_shell`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::sandbox::SandboxRequest;
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec};
use serde::Deserialize;
use serde_json::{Value, json};

use super::command::{Runner, may_write, writable};
use super::parts;
use crate::answer::{Answer, Failure, brief};
use crate::binding::Execution;
use crate::gateway::Tool;
use crate::options::{Commands, bare};
use crate::schema::{integer, parse};
use crate::workspace::{PathError, Root, Workspace, blocking};

/// Maximum number of arguments of one command, and of bytes of each.
const MAX_ARGS: usize = 64;
const MAX_ARG_BYTES: usize = 8192;

#[derive(Debug)]
pub(crate) struct RunCommand {
    runner: Runner,
    commands: Commands,
}

#[derive(Debug, Deserialize)]
struct Args {
    program: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    stdin: Option<String>,
    #[serde(default = "parts::command_timeout", deserialize_with = "integer")]
    timeout_s: u64,
    #[serde(default)]
    allow_write: Option<bool>,
    #[serde(default)]
    write_subdir: Option<String>,
}

impl RunCommand {
    pub(super) fn new(runner: Runner, commands: Commands) -> Self {
        Self { runner, commands }
    }
}

impl Tool for RunCommand {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "run_command".into(),
            description: "Run one program with arguments in a sandbox, in the workspace; no shell \
                          reads them. Only programs that the operator lists can be run. There is \
                          no network but to the services of the workspace's own environment. In a \
                          worktree of the run's own the program may write to the workspace, unless \
                          allow_write is false. Elsewhere the workspace is read-only unless \
                          allow_write is true, which makes write_subdir of it writable (. is all \
                          of it). A non-zero exit_code \
                          is a result, not a failure of the tool. Long output is cut."
                .into(),
            schema: json!({
                "type": "object",
                "properties": {
                    "program": {
                        "type": "string", "minLength": 1,
                        "description": "Its bare name, for example rg.",
                    },
                    "args": {
                        "type": "array", "items": {"type": "string"}, "maxItems": MAX_ARGS,
                        "default": [],
                        "description": "Each argument as the program is to get it.",
                    },
                    "cwd": {
                        "type": ["string", "null"], "default": null,
                        "description": "Directory to start in, relative to the workspace.",
                    },
                    "stdin": {
                        "type": ["string", "null"], "default": null,
                        "description": "What the program reads; empty without it.",
                    },
                    "timeout_s": parts::timeout(parts::command_timeout(), "program"),
                    "allow_write": parts::allow_write("program"),
                    "write_subdir": parts::write_subdir(),
                },
                "required": ["program"],
                "additionalProperties": false,
            }),
            class: EffectClass::Once,
            internal: false,
        }
    }

    fn call<'a>(&'a self, context: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(async move {
            let args: Args = parse(args)?;
            self.check(&args)?;
            let driver = self.runner.driver(context)?;
            let writable = match may_write(context, args.allow_write) {
                true => Some(writable(context, args.write_subdir.as_deref()).await?),
                false => None,
            };
            let cwd = match &args.cwd {
                Some(cwd) => directory(context, cwd).await?,
                None => writable.clone().unwrap_or_else(|| PathBuf::from(".")),
            };
            let request = SandboxRequest {
                argv: self.argv(&args),
                workspace: context.workspace.clone(),
                writable,
                cwd,
                env: self.runner.environment(context),
                home: self.runner.home(context),
                stdin: args.stdin.unwrap_or_default().into_bytes(),
                timeout: Duration::from_secs(args.timeout_s),
                limits: context.limits,
            };
            let mut done = self.runner.run(context, &*driver, request).await?;
            done.insert("program".into(), args.program.into());
            Ok(done)
        })
    }

    fn is_sandboxed(&self) -> bool {
        true
    }

    fn execution(&self, context: &ToolContext, args: &Value) -> Option<Execution> {
        let args: Args = parse(args).ok()?;
        let (argv, env) = (self.argv(&args), self.runner.environment(context));
        Some(Execution { argv, cwd: args.cwd.unwrap_or_default(), env })
    }
}

impl RunCommand {
    fn argv(&self, args: &Args) -> Vec<String> {
        let mut argv = self.commands.runner().to_vec();
        argv.push(args.program.clone());
        argv.extend(args.args.iter().cloned());
        argv
    }

    fn check(&self, args: &Args) -> Result<(), Failure> {
        bare(&args.program).map_err(|why| Failure::bad_args(format!("program: {why}")))?;
        if !self.commands.allows(&args.program) {
            let allowed = self.commands.allowed();
            let why = match allowed {
                [] => "tools.commands is empty, so no program can be run this way".to_owned(),
                _ => format!("tools.commands allows {}", brief(&allowed.join(", "))),
            };
            return Err(Failure::new(
                "permission_denied",
                format!("`{}` is not allowed: {why}", args.program),
            ));
        }
        for (n, arg) in args.args.iter().enumerate() {
            if arg.len() > MAX_ARG_BYTES {
                return Err(Failure::bad_args(format!(
                    "args/{n} must not exceed {MAX_ARG_BYTES} bytes"
                )));
            }
            if arg.contains('\0') {
                return Err(Failure::bad_args(format!(
                    "args/{n} must not contain a NUL character"
                )));
            }
        }
        Ok(())
    }
}

/// The real path of a directory that exists in the workspace.
async fn directory(context: &ToolContext, given: &str) -> Result<PathBuf, Failure> {
    let (root, given) = (Root::of(context), given.to_owned());
    blocking(move || {
        let workspace = Workspace::open(&root)?;
        let path = workspace.relative(&given)?;
        let dir = workspace.open_dir(&path).map_err(|err| match err {
            PathError::NotFound { .. } => Failure::new("not_found", "cwd not found")
                .with_details(json!({"cwd": brief(&given)})),
            err => err.into(),
        })?;
        Ok(workspace.real(&dir).ok_or(PathError::Escapes)?)
    })
    .await
    .map(|real| if real == Path::new("") { PathBuf::from(".") } else { real })
}
