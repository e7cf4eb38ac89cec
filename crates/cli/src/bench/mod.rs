//! `overmind bench`: this machine's own figures, each beside a floor measured in the same run.
//!
//! A floor is what the machine can do at best without Overmind: a bare fsync, a bare commit, a
//! bare server of the same stack, the start of a process. The ratio to it says more than the
//! figure, for it moves less from machine to machine. Nothing outside a temporary directory is
//! touched, and all traffic stays on loopback or a unix socket.
//!
//! What it does not say: how it would be under other load, or with agents that think.

mod approval;
mod attestation;
mod budgets;
mod engine;
mod floors;
mod gateway;
mod http;
mod litellm;
mod lives;
mod memory;
mod mesh;
mod policy;
mod process;
mod relay;
mod rooms;
mod sandbox;
mod store;
mod telemetry;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use crate::args::Format;
use crate::args_more::BenchArgs;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::{Table, Tone};
use crate::progress;
use crate::show::{cell, or_dash};
use floors::Floors;

/// One measured figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Figure {
    name: &'static str,
    unit: &'static str,
    value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    floor: Option<Floor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    goal: Option<Goal>,
    /// How it was measured and how to read it.
    #[serde(skip_serializing_if = "String::is_empty")]
    note: String,
}

/// What the machine can do at best, in the figure's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Floor {
    name: &'static str,
    value: f64,
}

/// What a figure should be, in its own unit or by its floor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
enum Goal {
    #[serde(rename = "at_least")]
    Least(f64),
    #[serde(rename = "at_most")]
    Most(f64),
    /// At least this part of the floor.
    #[serde(rename = "ratio_at_least")]
    PartOfFloor(f64),
    /// At most this many times the floor.
    #[serde(rename = "ratio_at_most")]
    TimesFloor(f64),
    /// At most the floor and this.
    #[serde(rename = "floor_plus_at_most")]
    OverFloor(f64),
}

impl Figure {
    fn new(name: &'static str, value: f64, unit: &'static str) -> Self {
        Self { name, unit, value, floor: None, goal: None, note: String::new() }
    }

    fn floor(mut self, name: &'static str, value: f64) -> Self {
        self.floor = Some(Floor { name, value });
        self
    }

    fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// How many times the floor it is: for times, how much longer; for rates, which part.
    fn ratio(&self) -> Option<f64> {
        let floor = self.floor?.value;
        (floor > 0.0).then(|| self.value / floor)
    }

    /// Whether it is what it should be; `None` when nothing says what that is.
    fn met(&self) -> Option<bool> {
        let floor = self.floor.map(|floor| floor.value);
        match self.goal? {
            Goal::Least(least) => Some(self.value >= least),
            Goal::Most(most) => Some(self.value <= most),
            Goal::PartOfFloor(part) => Some(self.value >= part * floor?),
            Goal::TimesFloor(times) => Some(self.value <= times * floor?),
            Goal::OverFloor(more) => Some(self.value <= floor? + more),
        }
    }
}

impl Goal {
    fn text(self) -> String {
        match self {
            Self::Least(least) => format!("≥ {}", number(least)),
            Self::Most(most) => format!("≤ {}", number(most)),
            Self::PartOfFloor(part) => format!("≥ {part} × floor"),
            Self::TimesFloor(times) => format!("≤ {times} × floor"),
            Self::OverFloor(more) => format!("≤ floor + {}", number(more)),
        }
    }
}

/// What a measurement needs to know.
#[derive(Clone, Debug)]
struct Setting {
    /// A directory that is empty and goes away afterwards.
    dir: PathBuf,
    quick: bool,
}

impl Setting {
    /// The number for a thorough run, or about a tenth of it.
    fn count(&self, thorough: u32) -> u32 {
        if self.quick { (thorough / 10).max(1) } else { thorough }
    }

    fn time(&self, thorough: Duration) -> Duration {
        if self.quick { thorough / 5 } else { thorough }
    }

    /// A fresh directory within.
    fn place(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.dir.join(name);
        std::fs::create_dir(&path)
            .map_err(|err| Failure::failed(format!("making {}: {err}", path.display())))?;
        Ok(path)
    }
}

/// # Errors
///
/// What kept it from measuring. A goal that is not met is no error.
pub(crate) fn run(cx: &Context, args: &BenchArgs) -> Outcome {
    if args.serve_provider {
        return provide(cx);
    }
    if cfg!(debug_assertions) {
        cx.out.warn("this is a debug build: its figures say nothing about the product");
    }
    let base = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let home =
        tempfile::Builder::new().prefix("overmind-bench-").tempdir_in(&base).map_err(|err| {
            Failure::failed(format!("making a directory in {}: {err}", base.display()))
        })?;
    let setting = Setting { dir: home.path().to_owned(), quick: args.quick };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|err| Failure::failed(format!("starting threads: {err}")))?;
    let left_out = RefCell::default();
    let figures = runtime.block_on(Box::pin(measure(
        cx,
        &setting,
        &left_out,
        args.only.as_deref(),
        args.embedding_model
            .as_deref()
            .map(|model| memory::Sources { model, manual: &args.manual })
            .as_ref(),
        args.litellm.as_deref(),
    )))?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    show(cx, &figures, &left_out.into_inner(), home.path())
}

/// Is the provider that the figures of the relay are measured with, until it is killed.
fn provide(cx: &Context) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|err| Failure::failed(format!("starting threads: {err}")))?;
    let served = runtime.block_on(relay::serve(|port| {
        // Whoever started this reads it, or is gone.
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
    // Not only said: whoever reads a report must see that figures are missing, and why.
    let leave_out = |text: &str| {
        cx.out.note(text);
        left_out.borrow_mut().push(text.to_owned());
    };
    let floors = Floors::measure(setting)?;
    let mut figures = floors.figures();
    for (group, _) in groups {
        if let Some(bar) = &bar {
            bar.set_message(format!("measuring: {group}"));
        }
        cx.out.detail(&format!("measuring: {group}"));
        let more = match group {
            "store" => Box::pin(store::measure(setting, &floors)).await?,
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

fn show(cx: &Context, figures: &[Figure], left_out: &[String], at: &Path) -> Outcome {
    match cx.out.format {
        Format::Json | Format::Yaml => {
            let rounded: Vec<Figure> = figures.iter().map(Figure::rounded).collect();
            cx.out.value(&json!({"figures": rounded, "left_out": left_out}))?;
        }
        Format::Name => {
            for figure in figures {
                cx.out.line(figure.name)?;
            }
        }
        Format::Table | Format::Wide => {
            cx.out.note(&format!("measured in {}", at.display()));
            cx.out.table(&table(figures))?;
            for figure in figures.iter().filter(|figure| cx.out.wide() && !figure.note.is_empty()) {
                cx.out.note(&format!("{}: {}", figure.name, figure.note));
            }
        }
    }
    Ok(Exit::Done)
}

fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new(&["FIGURE", "VALUE", "UNIT", "GOAL", "FLOOR", "RATIO", ""])
        .right("VALUE")
        .right("RATIO");
    for figure in figures {
        let (tone, verdict) = match figure.met() {
            Some(true) => (Tone::Good, "met"),
            Some(false) => (Tone::Bad, "missed"),
            None => (Tone::Plain, ""),
        };
        let floor = figure.floor.map(|floor| format!("{} {}", number(floor.value), floor.name));
        table.row(vec![
            cell(figure.name),
            (number(figure.value), tone),
            cell(figure.unit),
            or_dash(figure.goal.map(Goal::text)),
            or_dash(floor),
            or_dash(figure.ratio().map(|ratio| format!("{ratio:.2}"))),
            (verdict.to_owned(), tone),
        ]);
    }
    table
}

impl Figure {
    /// With the digits that mean something.
    fn rounded(&self) -> Self {
        let short = |value: f64| number(value).parse().expect("it is a number's text");
        let floor = self.floor.map(|floor| Floor { value: short(floor.value), ..floor });
        Self { value: short(self.value), floor, ..self.clone() }
    }
}

/// Three digits or so.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// Milliseconds.
fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// How many a second.
fn rate(count: impl Into<f64>, time: Duration) -> f64 {
    count.into() / time.as_secs_f64()
}

/// The value below which `part` of the sorted times lie.
fn percentile(sorted: &[Duration], part: f64) -> Duration {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index into a list of measurements"
    )]
    let at = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
    sorted.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_judged_by_the_figure_and_its_floor() {
        let met = |value, goal| Figure::new("x", value, "ms").floor("fsync", 2.0).goal(goal).met();
        assert_eq!(met(3.0, Goal::Most(3.0)), Some(true));
        assert_eq!(met(3.0, Goal::Least(3.5)), Some(false));
        assert_eq!(met(3.0, Goal::OverFloor(1.0)), Some(true));
        assert_eq!(met(3.1, Goal::OverFloor(1.0)), Some(false));
        assert_eq!(met(1.5, Goal::PartOfFloor(0.8)), Some(false));
        assert_eq!(met(1.6, Goal::PartOfFloor(0.8)), Some(true));
        assert_eq!(met(6.0, Goal::TimesFloor(3.0)), Some(true));
        assert_eq!(met(6.1, Goal::TimesFloor(3.0)), Some(false));
        let bare = Figure::new("x", 3.0, "ms");
        assert_eq!((bare.met(), bare.ratio()), (None, None));
        assert_eq!(bare.clone().goal(Goal::OverFloor(1.0)).met(), None, "there is no floor");
        assert_eq!(bare.floor("fsync", 2.0).ratio(), Some(1.5));
    }

    #[test]
    fn figures_are_written_for_machines_as_documented() {
        let figure = Figure::new("x", 1.2345, "ms").floor("f", 2.0).goal(Goal::Most(3.0));
        assert_eq!(
            json!(figure.rounded()),
            json!({"name": "x", "unit": "ms", "value": 1.23, "floor": {"name": "f", "value": 2.0},
                   "goal": {"at_most": 3.0}})
        );
    }

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let times: Vec<Duration> = (0..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 0.5), Duration::from_millis(50));
        assert_eq!(percentile(&times, 0.99), Duration::from_millis(99));
        assert_eq!(percentile(&[], 0.5), Duration::ZERO);
    }

    #[test]
    fn numbers_keep_the_digits_that_mean_something() {
        for (value, text) in [(0.0, "0"), (12_345.6, "12346"), (12.34, "12.3"), (0.01234, "0.0123")]
        {
            assert_eq!(number(value), text);
        }
    }
}
