//! `overmind-bench`: every metric for the developers of Overmind, each beside a floor measured in
//! the same run. `cargo xtask bench` runs it and writes `docs/benchmarks.md`.
//!
//! A floor is what the machine can do at best without Overmind: a bare fsync, a bare commit, a
//! bare server of the same stack, the start of a process. Nothing outside a temporary directory is
//! touched, and all traffic stays on loopback or a unix socket.
//!
//! The measurements of `overmind bench`, and the display of metrics, are in the command line's own
//! module `bench`. What concerns whole processes is measured of another program, `--program`; the
//! rest is the same libraries in this one.

mod approval;
mod attestation;
mod budgets;
mod dashboard;
mod engine;
mod http;
mod litellm;
mod lives;
mod memory;
mod mesh;
mod policy;
mod process;
mod relay;
mod resources;
mod rooms;
mod sandbox;
mod store;
mod telemetry;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueHint};
use overmind_cli::args::Global;
use overmind_cli::bench::floors::{self, Floors};
use overmind_cli::bench::{
    Figure, Goal, Setting, gateway, leave_out, measured, ms, percentile, rate, store as of_store,
};
use overmind_cli::context::Context;
use overmind_cli::exit::{Exit, Failure, Outcome};
use overmind_cli::progress;

/// Measures this machine: every figure beside its floor, in one run.
#[derive(Debug, Parser)]
#[command(name = "overmind-bench", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    global: Global,
    /// A tenth of the work: a first impression in a fraction of the time
    #[arg(long)]
    quick: bool,
    /// Only figures whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Directory to measure in, for its disk [default: the system's temporary directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
    /// The program `overmind` to measure [default: the one beside this program]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    program: Option<PathBuf>,
    /// Directory with a static embedding model, for the figures of memory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    embedding_model: Option<PathBuf>,
    /// Directory of manual pages, which the figures of memory are measured on
    #[arg(
        long,
        value_name = "DIR",
        value_hint = ValueHint::DirPath,
        default_value = "/usr/share/man"
    )]
    manual: PathBuf,
    /// Directory with LiteLLM's Python packages, to measure its proxy beside the gateway
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    litellm: Option<PathBuf>,
    /// Be the provider that the figures of the relay are measured with
    #[arg(long, hide = true)]
    serve_provider: bool,
}

fn main() -> ExitCode {
    // Like the product: sandboxes and shims of commands are made from this program, too.
    overmind_sandbox::init::main_if_requested();
    overmind_supervise::zygote::main_if_requested();
    overmind_node::sys::frugal_allocator();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let args = Args::parse();
    overmind_cli::run(args.global.clone(), |cx| {
        if args.serve_provider { provide(cx) } else { bench(cx, &args) }
    })
}

fn bench(cx: &Context, args: &Args) -> Outcome {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => std::env::current_exe()
            .map_err(|err| Failure::failed(format!("finding this program's own file: {err}")))?
            .with_file_name("overmind"),
    };
    if !program.is_file() {
        return Err(Failure::usage(format!("there is no program at {}", program.display()))
            .hint("build it with `cargo build --release`, or name one by --program"));
    }
    let setting = |dir: &Path| Setting { dir: dir.to_owned(), quick: args.quick, program };
    let left_out = RefCell::default();
    measured(cx, args.dir.as_deref(), setting, async |setting| {
        let figures = measure(
            cx,
            &setting,
            &left_out,
            args.only.as_deref(),
            args.embedding_model
                .as_deref()
                .map(|model| memory::Sources { model, manual: &args.manual })
                .as_ref(),
            args.litellm.as_deref(),
        )
        .await?;
        Ok((figures, left_out.take()))
    })
}

/// Is the provider that the figures of the relay are measured with, until it is killed.
fn provide(cx: &Context) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|err| Failure::failed(format!("starting threads: {err}")))?;
    let served = runtime.block_on(relay::serve(|port| {
        // The starting process reads it, or has ended.
        let _ = cx.out.line(&port.to_string());
    }));
    served.map_err(|err| Failure::failed(format!("serving: {err}")))?;
    Ok(Exit::Done)
}

/// A group of figures that are measured together.
type Group = (&'static str, &'static [&'static str]);

const MEMORY_QUALITY: &[&str] =
    &["memory-quality words", "memory-quality vectors", "memory-quality hybrid"];
const MEMORY_SPEED: &[&str] = &[
    "memory-speed words p50",
    "memory-speed words p99",
    "memory-speed hybrid p50",
    "memory-speed hybrid p99",
    "memory-speed first search",
    "memory-speed rss",
];

const GATEWAY: &[&str] =
    &["gateway overhead p50", "gateway overhead, 100 kB", "read_file call p50"];
const RELAY: &[&str] = &[
    "relay latency p50",
    "relay latency p99",
    "relay paced p50",
    "relay paced p99",
    "relay processor time",
    "relay rss, requests",
    "relay requests",
    "relay first byte p50",
    "relay streams failed",
    "relay rss",
];
const SANDBOX: &[&str] = &[
    "namespace call p50",
    "namespace call p50, by floor",
    "namespace call p99",
    "namespace call without waiting",
    "docker call p50",
    "docker call without waiting",
    "microvm call p50",
    "microvm call that boots",
    "microvm emulated call p50",
    "microvm emulated call that boots",
];

const LITELLM: &[&str] = &[
    "litellm latency p50",
    "litellm latency p99",
    "litellm requests",
    "litellm streams failed",
    "litellm rss",
];
const MESH: &[&str] =
    &["mesh puts", "mesh gets", "mesh delivery p50", "mesh delivery p99", "mesh watch p50"];

const LIVES: &[&str] = &[
    "command to running",
    "crash to next life",
    "log lines",
    "log growth",
    "log tail",
    "log fetch",
    "rss of 500 lives",
    "rss of 2000 lives",
    "ps of 500 lives",
    "ps of 2000 lives",
    "idle cpu of 2000 lives",
    "kill of 2000 lives",
    "survivors of 2000 lives",
];

const DASHBOARD: &[&str] = &[
    "dashboard page",
    "dashboard page compressed",
    "dashboard read p50",
    "dashboard read p99",
    "dashboard events",
    "dashboard delay p50",
    "dashboard delay p99",
    "dashboard rss",
    "dashboard viewers cut off",
];

const RESOURCES: &[&str] = &[
    "apply of 1000 resources",
    "idle cpu of 10000 rituals",
    "rss of 10000 rituals",
    "fleet of 1000 runs",
    "heal of one run",
    "idle cpu of 10000 objects of the weaver",
];

const GROUPS: &[Group] = &[
    ("store", &["durable events", "commit p50", "commit p99"]),
    ("memory", &["memory of listing", "listing events"]),
    ("memory-quality", MEMORY_QUALITY),
    ("memory-speed", MEMORY_SPEED),
    ("engine", &["agent steps", "single step", "replay verify", "approval to resumed session"]),
    ("attestation", &["first command", "first command p90"]),
    ("http", &["health requests", "instant runs", "instant runs lost"]),
    ("policy", &["policy decision p50", "policy decision p99"]),
    ("gateway", GATEWAY),
    ("relay", RELAY),
    ("litellm", LITELLM),
    ("sandbox", SANDBOX),
    ("lives", LIVES),
    ("dashboard", DASHBOARD),
    ("resources", RESOURCES),
    ("rooms", &["warm room", "room given back"]),
    ("mesh", MESH),
    ("budgets", &["budget decision", "budget reservation p50", "budgeted calls"]),
    ("telemetry", &["telemetry steps", "telemetry cost", "telemetry processor time"]),
    ("process", &["start to ready", "cli ps", "idle rss", "binary size"]),
];

async fn measure(
    cx: &Context,
    setting: &Setting,
    left_out: &RefCell<Vec<String>>,
    only: Option<&str>,
    memory_from: Option<&memory::Sources<'_>>,
    litellm_from: Option<&Path>,
) -> Result<Vec<Figure>, Failure> {
    let wanted = |name: &&str| only.is_none_or(|only| name.contains(only));
    let groups: Vec<Group> =
        GROUPS.iter().copied().filter(|(_, names)| names.iter().any(wanted)).collect();
    if groups.is_empty() {
        let names: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        return Err(Failure::usage(format!("no figure's name contains `{}`", only.unwrap_or("")))
            .hint(format!("there are: {}", names.join(", "))));
    }
    let bar = cx.out.watched.then(|| progress::bar("measuring floors", Some(groups.len() as u64)));
    let leave_out = |text: &str| leave_out(cx, left_out, text);
    let floors = Floors::measure(setting)?;
    let mut figures = floors.figures();
    for (group, _) in groups {
        if let Some(bar) = &bar {
            bar.set_message(format!("measuring: {group}"));
        }
        cx.out.detail(&format!("measuring: {group}"));
        let more = match group {
            "store" => Box::pin(of_store::measure(setting, &floors)).await?,
            "memory" => Box::pin(store::listing(setting)).await?,
            "memory-quality" | "memory-speed" => {
                let Some(from) = memory_from else {
                    leave_out(&format!("{group} left out: it needs --embedding-model DIR"));
                    continue;
                };
                if group == "memory-quality" {
                    Box::pin(memory::quality(setting, from)).await?
                } else {
                    Box::pin(memory::speed(setting, from)).await?
                }
            }
            "engine" => Box::pin(engine::measure(setting, &floors)).await?,
            "attestation" => Box::pin(attestation::measure(setting)).await?,
            "http" => Box::pin(http::measure(setting)).await?,
            "policy" => policy::measure(setting)?,
            "gateway" => Box::pin(gateway::measure(setting)).await?,
            "relay" => Box::pin(relay::measure(setting)).await?,
            "litellm" => {
                let Some(packages) = litellm_from else {
                    leave_out("litellm left out: it needs --litellm DIR");
                    continue;
                };
                // Another program, which may not run here: no reason to have no figures at all.
                match Box::pin(litellm::measure(setting, packages)).await {
                    Ok(figures) => figures,
                    Err(why) => {
                        leave_out(&format!("litellm left out: {}", why.message));
                        continue;
                    }
                }
            }
            "sandbox" => {
                let config = cx.config(None)?;
                let drivers = sandbox::Drivers {
                    namespace: overmind_node::app::sandbox_options(&config),
                    docker: overmind_node::app::docker_options(&config, "bench"),
                    microvm: overmind_node::app::microvm_options(&config),
                };
                let wanted = |name: &str| wanted(&name);
                Box::pin(sandbox::measure(setting, drivers, wanted, leave_out)).await?
            }
            "rooms" => Box::pin(rooms::measure(setting, leave_out)).await?,
            "resources" => Box::pin(resources::measure(setting)).await?,
            "dashboard" => Box::pin(dashboard::measure(setting)).await?,
            "lives" => Box::pin(lives::measure(setting, &floors)).await?,
            "mesh" => Box::pin(mesh::measure(setting, &floors)).await?,
            "telemetry" => Box::pin(telemetry::measure(setting)).await?,
            "budgets" => Box::pin(budgets::measure(setting, &floors)).await?,
            _ => Box::pin(process::measure(setting)).await?,
        };
        figures.extend(more);
        if let Some(bar) = &bar {
            bar.inc(1);
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    figures.retain(|figure| only.is_none_or(|only| figure.name.contains(only)));
    Ok(figures)
}
