//! `overmind doctor`: problems that prevent Overmind from working here, and their remedies.
//!
//! Each check tries the real operation: a command runs in the sandbox, a file is synced, the port
//! is bound. It changes nothing except a file of a few bytes that it removes again, and with
//! `--fix` the remains of removed runs.

pub(crate) mod disk;
mod host;
mod rooms;
mod vault;

use overmind_core::gate::PolicySource;
use overmind_core::sandbox::SandboxError;
use overmind_node::app::lock::Holder;
use overmind_node::app::{self, lock};
use overmind_node::config::{Config, DataDir, PolicyChoice};
use overmind_sandbox::microvm::{Acceleration, Execution};
use serde::Serialize;

use crate::context::Context;
use crate::exit::{Exit, Outcome};
use crate::output::table::Tone;
use crate::output::{clean, paint, when};
use crate::remote::Remote;
use crate::{args::Format, show};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Health {
    Fine,
    /// Works, but not as well as it could; or a thing that only some need.
    Warning,
    /// Something will not work.
    Broken,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) check: &'static str,
    pub(crate) health: Health,
    pub(crate) found: String,
    pub(crate) remedy: Option<String>,
}

impl Finding {
    pub(crate) fn fine(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, health: Health::Fine, found: found.into(), remedy: None }
    }

    pub(crate) fn warning(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = Some(remedy.into());
        Self { check, health: Health::Warning, found: found.into(), remedy }
    }

    pub(crate) fn broken(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { health: Health::Broken, ..Self::warning(check, found, remedy) }
    }
}

/// # Errors
///
/// When there is no data directory to speak of, or the result cannot be written.
pub(crate) async fn run(cx: &Context, fix: bool) -> Outcome {
    let data = cx.data()?;
    let mut findings = host::program();
    findings.push(configuration(cx));
    findings.extend(disk::data(&data));
    // Without a valid configuration, the other checks use the defaults.
    let config = cx.config(None).ok();
    let held = lock::holder(&data);
    findings.push(server(cx, &data, &held).await);
    findings.extend(rooms::leaks(&data, &held, fix).await);
    if let Some(config) = &config {
        findings.extend(listeners(config, &held));
        findings.push(store(config, &held));
        findings.push(policy(config));
        findings.push(vault::key(config));
        findings.push(sandbox(config).await);
        findings.push(docker(config).await);
        findings.extend(microvm(config).await);
        findings.push(models(config));
    }
    findings.push(host::git());
    findings.extend(disk::postgres(&data));
    findings.extend(disk::space(&data));
    findings.push(disk::fsync(&data));
    findings.push(host::clock(&data, cx.now()));
    findings.push(host::open_files());
    show_all(cx, &findings)
}

fn show_all(cx: &Context, findings: &[Finding]) -> Outcome {
    let broken = findings.iter().filter(|finding| finding.health == Health::Broken).count();
    let warnings = findings.iter().filter(|finding| finding.health == Health::Warning).count();
    match cx.out.format {
        Format::Json | Format::Yaml => cx.out.value(&show::to_value(findings))?,
        Format::Name => {
            for finding in findings.iter().filter(|finding| finding.health == Health::Broken) {
                cx.out.line(finding.check)?;
            }
        }
        Format::Table | Format::Wide => {
            let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
            for finding in findings {
                let (mark, tone) = match finding.health {
                    Health::Fine => ("✓", Tone::Good),
                    Health::Warning => ("!", Tone::Waits),
                    Health::Broken => ("✗", Tone::Bad),
                };
                let mark = paint(mark, tone, cx.out.colour);
                let found = clean::line(&finding.found);
                cx.out.line(&format!("{mark} {:width$}  {found}", finding.check))?;
                if let Some(remedy) = &finding.remedy {
                    let arrow = paint("→", Tone::Busy, cx.out.colour);
                    cx.out.line(&format!("  {:width$}  {arrow} {}", "", clean::line(remedy)))?;
                }
            }
        }
    }
    match (broken, warnings) {
        (0, 0) => cx.out.note("all is well"),
        (0, warnings) => {
            let warnings = u64::try_from(warnings).unwrap_or(u64::MAX);
            cx.out.note(&format!("all is well; {}", when::counted(warnings, "remark")));
        }
        (broken, _) => cx.out.note(&format!("{broken} things are wrong")),
    }
    Ok(if broken == 0 { Exit::Done } else { Exit::Failed })
}

fn configuration(cx: &Context) -> Finding {
    const CHECK: &str = "configuration";
    match cx.config(None) {
        Ok(config) => {
            let unknown = cx.env.unknown();
            if unknown.is_empty() {
                let what = if config.file.exists() { "read" } else { "no file; defaults apply" };
                Finding::fine(CHECK, format!("{}: {what}", config.file.display()))
            } else {
                Finding::warning(
                    CHECK,
                    format!("this version does not know {}", unknown.join(", ")),
                    "a typing error? `overmind config show -o wide` lists all settings",
                )
            }
        }
        Err(failure) => Finding::broken(CHECK, failure.message, failure.hint.unwrap_or_default()),
    }
}

async fn server(cx: &Context, data: &DataDir, held: &Holder) -> Finding {
    const CHECK: &str = "server";
    match held {
        Holder::Nobody => Finding::fine(CHECK, "not running; `overmind up -d` starts it"),
        Holder::Dead { pid } => Finding::fine(
            CHECK,
            format!("not running; the last one (pid {pid}) was killed, the next start recovers"),
        ),
        Holder::Server { pid, file: None } => Finding::warning(
            CHECK,
            format!("pid {pid} holds the data directory and does not say where it listens"),
            "it is starting, or was started by something else: look again, or `overmind down`",
        ),
        Holder::Server { pid, file: Some(file) } => {
            let asked = match Remote::to_server(file, data.path()) {
                Ok(remote) => remote.status().await,
                Err(failure) => Err(failure),
            };
            match asked {
                Ok(status) if status.ready.ok => {
                    Finding::fine(CHECK, format!("version {} is ready (pid {pid})", status.version))
                }
                Ok(status) => Finding::broken(
                    CHECK,
                    format!(
                        "pid {pid} is {}: {}",
                        status.ready.state,
                        status.ready.reason.unwrap_or_default()
                    ),
                    format!("its log says more: {}", data.log_file().display()),
                ),
                Err(failure) => {
                    cx.out.detail(&failure.message);
                    Finding::broken(
                        CHECK,
                        format!("pid {pid} does not answer: {}", failure.message),
                        "`overmind down` stops it, `overmind up -d` starts it again",
                    )
                }
            }
        }
    }
}

/// Whether the server could listen at its configured address, when it does not run.
fn listeners(config: &Config, held: &Holder) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(path) = &config.socket
        && !crate::up::socket_fits(path)
    {
        findings.push(Finding::broken(
            "socket",
            format!("{} is too long a path for a socket", path.display()),
            "set `server.socket` (OVERMIND_SOCKET) to a shorter one",
        ));
    }
    let runs = matches!(held, Holder::Server { .. });
    if let Some(address) = config.listen.filter(|_| !runs) {
        findings.push(match std::net::TcpListener::bind(address) {
            Ok(_) => Finding::fine("port", format!("{address} is free")),
            Err(err) => Finding::broken(
                "port",
                format!("{address}: {err}"),
                "something else listens there: choose another with --listen or `server.listen`",
            ),
        });
    }
    findings
}

/// A glance at the file. It is not opened: that could migrate it, and a doctor changes nothing.
fn store(config: &Config, held: &Holder) -> Finding {
    const CHECK: &str = "database";
    const MAGIC: &[u8; 16] = b"SQLite format 3\0";
    let path = config.store_path.display();
    if matches!(held, Holder::Server { .. }) {
        return Finding::fine(CHECK, format!("{path}: in use by the server"));
    }
    let mut head = [0; 16];
    let read = std::fs::File::open(&config.store_path).and_then(|mut file| {
        std::io::Read::read_exact(&mut file, &mut head)?;
        file.metadata()
    });
    match read {
        Ok(meta) if head == *MAGIC => {
            Finding::fine(CHECK, format!("{path}: {}", crate::output::when::bytes(meta.len())))
        }
        Ok(_) => Finding::broken(
            CHECK,
            format!("{path} is not a database"),
            "`overmind restore` puts a backup in its place and keeps this file aside",
        ),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => {
            Finding::fine(CHECK, format!("{path}: created at the first start"))
        }
        Err(err) if err.kind() == std::io::ErrorKind::UnexpectedEof => {
            Finding::fine(CHECK, format!("{path}: empty"))
        }
        Err(err) => Finding::broken(
            CHECK,
            format!("{path}: {err}"),
            "check its owner and its mode; it must be readable and writable by you",
        ),
    }
}

/// The policy that a server would start with now.
fn policy(config: &Config) -> Finding {
    const CHECK: &str = "policy";
    let read = match app::gate::read(&config.policy) {
        Ok(policy) => policy,
        Err(err) => {
            let hint = err.hint().unwrap_or_else(|| "docs/policy.md lists every key".to_owned());
            return Finding::broken(CHECK, err.to_string(), hint);
        }
    };
    match (read.source(), &config.policy) {
        (PolicySource::Off, PolicyChoice::Off { said }) => Finding::warning(
            CHECK,
            format!("{} ({said})", app::gate::OFF),
            "remove `policy.file = \"none\"` (OVERMIND_POLICY): then the built-in policy applies",
        ),
        (PolicySource::File(file), _) => Finding::fine(CHECK, file.clone()),
        (PolicySource::Builtin | PolicySource::Off, _) => {
            Finding::fine(CHECK, "built in; `overmind policy show` prints it")
        }
    }
}

async fn sandbox(config: &Config) -> Finding {
    const CHECK: &str = "sandbox namespace";
    let driver = overmind_sandbox::Namespace::new(app::sandbox_options(config));
    match host::run_one_command(&driver).await {
        Ok(took) => {
            let ms = took.as_secs_f64() * 1000.0;
            Finding::fine(CHECK, format!("a command ran in it, in {ms:.1} ms"))
        }
        Err(SandboxError::Unavailable { message, remedy, .. }) => {
            Finding::broken(CHECK, message, remedy)
        }
        Err(err) => Finding::broken(
            CHECK,
            err.to_string(),
            "agents can use `--sandbox docker`, or `--sandbox none` without isolation",
        ),
    }
}

/// Docker is a choice: without it nothing is broken.
async fn docker(config: &Config) -> Finding {
    const CHECK: &str = "sandbox docker";
    let driver = overmind_sandbox::Docker::new(app::docker_options(config, "doctor"));
    match overmind_core::sandbox::Sandbox::check(&driver).await {
        Ok(()) => {
            Finding::fine(CHECK, format!("the engine answers; image {}", config.docker_image))
        }
        Err(SandboxError::Unavailable { message, remedy, .. }) => {
            Finding::warning(CHECK, message, format!("only for agents with `docker`: {remedy}"))
        }
        Err(err) => Finding::warning(CHECK, err.to_string(), "only for agents with `docker`"),
    }
}

/// Users without an image have not chosen this level. No machine is started with a kernel, but KVM
/// is tested.
async fn microvm(config: &Config) -> Option<Finding> {
    const CHECK: &str = "sandbox microvm";
    let options = app::microvm_options(config);
    overmind_sandbox::microvm::image::current(&options.dir)?;
    let asked_for = options.acceleration == Acceleration::Emulation;
    let driver = overmind_sandbox::Microvm::new(options, app::sandbox_options(config));
    let execution = match overmind_core::sandbox::Sandbox::check(&driver).await {
        Ok(()) => driver.execution().await,
        Err(err) => Err(err),
    };
    Some(match execution {
        Ok(Execution::Emulated { why }) if !asked_for => Finding::warning(
            CHECK,
            format!("KVM runs no guest here, so they are emulated, which is slow: {why}"),
            "use a machine whose processor KVM supports, and let the user of commands open the \
                device (group kvm, or its mode)",
        ),
        Ok(execution) => Finding::fine(CHECK, execution.to_string()),
        Err(SandboxError::Unavailable { message, remedy, .. }) => {
            Finding::warning(CHECK, message, format!("only for agents with `microvm`: {remedy}"))
        }
        Err(err) => Finding::warning(CHECK, err.to_string(), "only for agents with `microvm`"),
    })
}

fn models(config: &Config) -> Finding {
    const CHECK: &str = "models";
    match app::models(config, None) {
        Err(err) => Finding::broken(
            CHECK,
            err.to_string(),
            err.hint().unwrap_or_else(|| "`overmind config show` says where it is set".into()),
        ),
        Ok(_) if app::has_real_models(config) => Finding::fine(CHECK, app::models_line(config)),
        Ok(_) => Finding::warning(
            CHECK,
            "only deterministic and scripted models",
            "set OPENAI_API_KEY or ANTHROPIC_API_KEY, or `models.base_url` for a server of yours",
        ),
    }
}
