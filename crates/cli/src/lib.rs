//! The command line: from arguments to an exit code.
//!
//! [`main`] is what the binary runs. Commands that talk to a server run on one thread and load
//! nothing that they do not need: `overmind ps` is done in a few milliseconds.
//!
//! This crate does not decide anything about agents (the engine does), does not know a wire
//! format (that is `api` and `client`) and which adapter is behind which port (that is `node`). It
//! alone writes to the terminal.

pub mod action;
pub mod admin;
pub mod agent;
pub mod args;
pub mod args_artifact;
pub mod args_budget;
pub mod args_command;
pub mod args_global;
pub mod args_inbox;
pub mod args_logs;
pub mod args_mcp;
pub mod args_mesh;
pub mod args_more;
pub mod args_resource;
pub mod args_room;
pub mod args_shape;
pub mod args_vault;
pub mod artifact;
pub mod asked;
pub mod attach;
pub mod bench;
pub mod beside;
pub mod budget;
pub mod command;
pub mod complete;
pub mod config_cmd;
pub mod context;
mod create;
mod cron;
pub mod dash;
pub mod demo;
mod doctor;
pub mod duration;
#[cfg(test)]
mod examples;
pub mod exit;
pub mod ids;
pub mod inbox;
pub mod inbox_answer;
pub mod init;
pub mod init_agent;
pub mod live;
pub mod logs_agent;
pub mod logs_all;
pub mod look;
pub mod loops;
pub mod mcp;
pub mod mcp_serve;
pub mod mesh;
pub mod output;
#[cfg(test)]
#[path = "../../e2e/tests/it/pages.rs"]
mod pages;
pub mod parse;
pub mod policy_cmd;
pub mod programs;
pub mod progress;
pub mod ps;
pub mod reference;
pub mod remote;
pub mod resource;
pub mod resource_apply;
pub mod resource_file;
mod resource_wait;
mod rollout;
pub mod room;
pub mod run;
mod run_refused;
pub mod sandbox;
pub mod sandbox_image;
pub mod session;
pub mod shell;
pub mod show;
pub mod spoken;
pub mod story;
pub mod subscribe;
pub mod things;
pub mod top;
pub mod topics;
mod trust;
pub mod up;
pub mod vault;
pub mod watch;
pub mod whole;

use std::process::ExitCode;

use overmind_node::config::Env;

use args::{Cli, Command, Global};
use args_command::{MonitorArgs, SubscribeArgs, TopArgs};
use args_more::AuditCommand;
use context::Context;
use exit::{Exit, Failure, Outcome};

/// Runs the command that the process's arguments name.
pub fn main() -> ExitCode {
    match complete::asked() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(_) => return ExitCode::FAILURE,
    }
    let Cli { global, command } = parse::parse();
    run(global, |cx| dispatch(cx, command))
}

/// Runs the command of the arguments and the environment, and prints its error.
pub fn run(global: Global, work: impl FnOnce(&Context) -> Outcome) -> ExitCode {
    let env = Env::of_process();
    let out = crate::output::Output::new(&global, &env);
    let outcome = Context::new(global, env).and_then(|cx| work(&cx));
    match outcome {
        Ok(exit) => exit.into(),
        Err(failure) => {
            if !failure.message.is_empty() {
                out.error(&failure.message, failure.hint.as_deref());
            }
            failure.exit.into()
        }
    }
}

fn dispatch(cx: &Context, command: Command) -> Outcome {
    match command {
        Command::Up(args) => up::up(cx, &args),
        Command::Start(args) => up::up(cx, &args::UpArgs { detach: true, ..args }),
        Command::Down(args) => up::down(cx, &args),
        Command::Config(command) => config_cmd::run(cx, &command),
        Command::Policy(command) => policy_cmd::run(cx, &command),
        Command::Prices(args) => budget::prices(cx, &args),
        Command::Completions { shell } => complete::script(cx, shell),
        Command::Man { of } => shell::man(cx, &of),
        Command::Help { words } => whole::help(cx, &words),
        Command::Openapi => {
            cx.out.line(&overmind_server::openapi())?;
            Ok(Exit::Done)
        }
        Command::Bench(args) => bench::run(cx, &args),
        other => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|err| Failure::failed(format!("preparing to wait: {err}")))?;
            runtime.block_on(Box::pin(client(cx, other)))
        }
    }
}

/// Commands that wait for a server, or for a process of their own.
async fn client(cx: &Context, command: Command) -> Outcome {
    match command {
        Command::Status => admin::status(cx).await,
        Command::Agent(command) => Box::pin(agent::run(cx, command)).await,
        Command::Run(args) => Box::pin(run::run(cx, *args)).await,
        Command::Ps(args) => ps::ps(cx, &args).await,
        Command::Logs(args) => Box::pin(watch::logs(cx, &args)).await,
        Command::Events(args) if args.stream => {
            let args::EventsArgs { id, from, kind, no_follow, .. } = args;
            let args = SubscribeArgs { id, run: None, kind, from, no_follow };
            Box::pin(subscribe::subscribe(cx, &args)).await
        }
        Command::Events(args) => Box::pin(watch::events(cx, &args)).await,
        Command::Input { id, message } => session::input(cx, &id, &message).await,
        Command::Inbox(args) => Box::pin(inbox::run(cx, args)).await,
        Command::Approve(args) => Box::pin(inbox_answer::approve(cx, args)).await,
        Command::Deny(args) => Box::pin(inbox_answer::deny(cx, args)).await,
        Command::Answer(args) => Box::pin(inbox_answer::answer(cx, args)).await,
        Command::Stop(args) => command::stop(cx, &args).await,
        Command::Kill(args) => command::kill(cx, &args).await,
        Command::Send(args) => Box::pin(command::send(cx, &args)).await,
        Command::Attach(args) => Box::pin(attach::attach(cx, &args)).await,
        Command::Top(TopArgs { id: Some(id), once }) => {
            Box::pin(top::monitor(cx, &MonitorArgs { id, once })).await
        }
        Command::Top(TopArgs { id: None, once }) => Box::pin(top::top(cx, once)).await,
        Command::Monitor(args) => Box::pin(top::monitor(cx, &args)).await,
        Command::Info(args) => look::info(cx, &args).await,
        Command::Result(args) => look::result(cx, &args).await,
        Command::Subscribe(args) => Box::pin(subscribe::subscribe(cx, &args)).await,
        Command::Wait(args) => Box::pin(command::wait(cx, &args)).await,
        Command::Cancel { ids, cascade } => session::cancel(cx, &ids, cascade).await,
        Command::Replay { id, verify: true, .. } => session::verify(cx, &id).await,
        Command::Replay { id, follow, .. } => Box::pin(watch::replay(cx, &id, follow)).await,
        Command::Fork(args) => Box::pin(session::fork(cx, args)).await,
        Command::Diff { from, .. } if !from.files.is_empty() => {
            Box::pin(resource_apply::diff(cx, &from)).await
        }
        Command::Diff { a, b, .. } => {
            session::diff(cx, &a.unwrap_or_default(), &b.unwrap_or_default()).await
        }
        Command::Create(command) => create::create(cx, &command).await,
        Command::Apply(args) => Box::pin(resource_apply::apply(cx, &args)).await,
        Command::Describe(args) => Box::pin(resource::describe(cx, &args)).await,
        Command::Delete(args) => Box::pin(resource::delete(cx, &args)).await,
        Command::Edit(args) => Box::pin(resource_apply::edit(cx, &args)).await,
        Command::Label(args) => Box::pin(resource::label(cx, &args)).await,
        Command::Explain(args) => Box::pin(resource::explain(cx, &args)).await,
        Command::ApiResources => resource::kinds(cx).await,
        Command::Work(args) => room::work(cx, &args).await,
        Command::Prune(args) => room::prune(cx, &args).await,
        Command::Trust(args) => Box::pin(trust::run(cx, &args)).await,
        Command::Init(args) => Box::pin(init::run(cx, &args)).await,
        Command::Undo(args) => room::undo(cx, args).await,
        Command::Rm(args) => Box::pin(room::rm(cx, &args)).await,
        Command::Done(args) => Box::pin(room::done(cx, &args)).await,
        Command::Url(args) => room::url(cx, &args).await,
        Command::Tool(command) => Box::pin(things::tool(cx, command)).await,
        Command::Memory(command) => Box::pin(things::memory(cx, command)).await,
        Command::Mcp(command) => Box::pin(mcp::run(cx, command)).await,
        Command::Artifact(command) => Box::pin(artifact::run(cx, command)).await,
        Command::Mesh(command) => Box::pin(mesh::mesh(cx, command)).await,
        Command::Publish(args) => mesh::publish(cx, &args).await,
        Command::SubscribeTopic(args) => mesh::subscribe_topic(cx, args).await,
        Command::Mail(command) => Box::pin(mesh::mail(cx, command)).await,
        Command::Can(args) => mesh::can(cx, args).await,
        Command::Acl(command) => Box::pin(mesh::acl(cx, command)).await,
        Command::Dash => Box::pin(dash::run(cx)).await,
        Command::Scale(args) => Box::pin(rollout::scale(cx, &args)).await,
        Command::Rollout(command) => Box::pin(rollout::command(cx, command)).await,
        Command::Cron(command) => Box::pin(cron::command(cx, command)).await,
        Command::Loop(command) => Box::pin(loops::run(cx, command)).await,
        Command::Key(command) => Box::pin(things::key(cx, command)).await,
        Command::Vault(command) => Box::pin(vault::run(cx, command)).await,
        Command::Get(args) => Box::pin(things::get(cx, &args)).await,
        Command::Backup { file } => admin::backup(cx, &file).await,
        Command::Restore { file, force } => admin::restore(cx, &file, force).await,
        Command::Audit(AuditCommand::Verify) => admin::audit(cx).await,
        Command::Doctor { fix } => Box::pin(crate::doctor::run(cx, fix)).await,
        Command::Sandbox(command) => Box::pin(sandbox::run(cx, command)).await,
        Command::Demo(args) => Box::pin(crate::demo::run(cx, &args)).await,
        Command::Budget(command) => Box::pin(budget::run(cx, command)).await,
        Command::Costs(args) => Box::pin(budget::costs(cx, &args)).await,
        Command::Halt(args) => budget::halt(cx, args).await,
        Command::Resume => budget::resume(cx).await,
        Command::Up(_)
        | Command::Start(_)
        | Command::Down(_)
        | Command::Config(_)
        | Command::Policy(_)
        | Command::Prices(_)
        | Command::Completions { .. }
        | Command::Man { .. }
        | Command::Help { .. }
        | Command::Openapi
        | Command::Bench(_) => unreachable!("`dispatch` has done these"),
    }
}

impl From<overmind_node::app::StartError> for Failure {
    fn from(err: overmind_node::app::StartError) -> Self {
        use overmind_node::app::StartError;
        let exit = match &err {
            StartError::AlreadyRunning { .. } => Exit::Conflict,
            StartError::Config(_)
            | StartError::Workspace { .. }
            | StartError::Listen(_)
            | StartError::Store(_)
            | StartError::Keys(_)
            | StartError::Models(_)
            | StartError::Prices(_)
            | StartError::Memory(_)
            | StartError::Hosts(_)
            | StartError::Commands(_)
            | StartError::Policy(_)
            | StartError::Mcp(_)
            | StartError::Telemetry(_)
            | StartError::Processes(_)
            | StartError::Engine(_) => Exit::Failed,
        };
        Self { exit, message: overmind_node::app::chain(&err), hint: err.hint() }
    }
}
