//! `overmind bench`: what to expect of this machine, in five metrics, each beside a floor
//! measured in the same run. Those of a developer, many more, are in `crates/bench`, by the same means.
//!
//! A floor is what the machine can do at best without Overmind: a bare fsync, a bare commit, the
//! start of a process. The ratio to it says more than the metric, because it moves less from machine to
//! machine. Nothing outside a temporary directory is touched, and all traffic stays on loopback or a
//! unix socket.
//!
//! It does not measure other loads, or agents that call a real model.

pub mod engine;
pub mod floors;
pub mod gateway;
pub mod process;
pub mod sandbox;
pub mod store;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use crate::args::Format;
use crate::args_more::BenchArgs;
use crate::context::Context;
use crate::demo::daemon::Setup;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::{Table, Tone};
use crate::progress;
use crate::show::{cell, or_dash};
use floors::Floors;

/// The metrics that a user notices; each is measured together with some for developers.
const FIVE: [&str; 5] = [
    "start to ready",
    "single step",
    "durable events",
    "namespace call p50",
    "gateway overhead p50",
];

/// One measured metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    pub name: &'static str,
    pub unit: &'static str,
    pub value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<Floor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
    /// The method of the measurement and the meaning of the metric.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// The best value that the machine reaches, in the metric's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Floor {
    pub name: &'static str,
    pub value: f64,
}

/// The goal of a metric, in its own unit or relative to its floor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Goal {
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
    /// A metric without floor, goal and note.
    pub fn new(name: &'static str, value: f64, unit: &'static str) -> Self {
        Self { name, unit, value, floor: None, goal: None, note: String::new() }
    }

    /// Beside what the machine can do at best.
    #[must_use]
    pub fn floor(mut self, name: &'static str, value: f64) -> Self {
        self.floor = Some(Floor { name, value });
        self
    }

    /// Beside what it should be.
    #[must_use]
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// The method of the measurement and the meaning of the metric.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// The ratio to the floor: for times, how much longer; for rates, which part.
    fn ratio(&self) -> Option<f64> {
        let floor = self.floor?.value;
        (floor > 0.0).then(|| self.value / floor)
    }

    /// Whether it reaches its goal; `None` without a goal.
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

/// The context of a measurement.
#[derive(Clone, Debug)]
pub struct Setting {
    /// A directory that is empty and goes away afterwards.
    pub dir: PathBuf,
    pub quick: bool,
    /// The program that servers are started of.
    pub program: PathBuf,
}

impl Setting {
    /// The number for a thorough run, or about a tenth of it.
    pub fn count(&self, thorough: u32) -> u32 {
        if self.quick { (thorough / 10).max(1) } else { thorough }
    }

    /// The time for a thorough run, or a fifth of it.
    pub fn time(&self, thorough: Duration) -> Duration {
        if self.quick { thorough / 5 } else { thorough }
    }

    /// A fresh directory within.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn place(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.dir.join(name);
        std::fs::create_dir(&path)
            .map_err(|err| Failure::failed(format!("making {}: {err}", path.display())))?;
        Ok(path)
    }

    /// A server of the program, started with these arguments after `up`.
    pub fn setup(&self, args: &[&str]) -> Setup {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        Setup { program: Some(self.program.clone()), args, env: Vec::new() }
    }
}

/// # Errors
///
/// Returns an error if the measurement fails. A missed goal is no error.
pub(crate) fn run(cx: &Context, args: &BenchArgs) -> Outcome {
    let program = std::env::current_exe()
        .map_err(|err| Failure::failed(format!("finding this program's own file: {err}")))?;
    let setting = |dir: &Path| Setting { dir: dir.to_owned(), quick: args.quick, program };
    measured(cx, args.dir.as_deref(), setting, async |setting| five(cx, &setting).await)
}

async fn five(cx: &Context, setting: &Setting) -> Result<Measured, Failure> {
    let bar = cx.out.watched.then(|| progress::bar("measuring", Some(FIVE.len() as u64)));
    let step = || bar.iter().for_each(|bar| bar.inc(1));
    let floors = Floors::measure(setting)?;
    let place = process::Place::new(setting)?;
    let mut figures = vec![process::start_to_ready(setting, &place, process::bare(setting)?)?];
    step();
    figures.push(Box::pin(engine::measure(setting, &floors)).await?);
    step();
    figures.extend(Box::pin(store::measure(setting, &floors)).await?);
    step();
    let options = overmind_node::app::sandbox_options(&cx.config(None)?);
    let left_out = std::cell::RefCell::default();
    let note = |text: &str| leave_out(cx, &left_out, text);
    let place = setting.place("sandbox")?;
    figures.extend(Box::pin(sandbox::namespace(setting, &options, &place, &note)).await?);
    step();
    figures.extend(Box::pin(gateway::measure(setting)).await?);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    figures.retain(|figure| FIVE.contains(&figure.name));
    Ok((figures, left_out.into_inner()))
}

/// Metrics, and the omitted ones with their reasons.
pub type Measured = (Vec<Figure>, Vec<String>);

/// Reports missing parts at once and in the report, whose reader must see them, too.
pub fn leave_out(cx: &Context, left_out: &std::cell::RefCell<Vec<String>>, text: &str) {
    cx.out.note(text);
    left_out.borrow_mut().push(text.to_owned());
}

/// Measures in a temporary directory within `base`, and prints the measurements.
///
/// # Errors
///
/// Returns an error if the measurement fails.
pub fn measured(
    cx: &Context,
    base: Option<&Path>,
    setting: impl FnOnce(&Path) -> Setting,
    measure: impl AsyncFnOnce(Setting) -> Result<Measured, Failure>,
) -> Outcome {
    if cfg!(debug_assertions) {
        cx.out.warn("this is a debug build: its metrics say nothing about the product");
    }
    let base = base.map_or_else(std::env::temp_dir, Path::to_owned);
    let home =
        tempfile::Builder::new().prefix("overmind-bench-").tempdir_in(&base).map_err(|err| {
            Failure::failed(format!("making a directory in {}: {err}", base.display()))
        })?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|err| Failure::failed(format!("starting threads: {err}")))?;
    let setting = setting(home.path());
    let quick = setting.quick;
    let (mut figures, left_out) = runtime.block_on(Box::pin(measure(setting)))?;
    if quick {
        cx.out.note("a tenth of the work was done: the metrics are a first impression, and no goal is judged by them");
        figures.iter_mut().for_each(|figure| figure.goal = None);
    }
    runtime.shutdown_timeout(Duration::from_secs(1));
    show(cx, &figures, &left_out, home.path())
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
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The number per second.
pub fn rate(count: impl Into<f64>, time: Duration) -> f64 {
    count.into() / time.as_secs_f64()
}

/// The value below which `part` of the sorted times are.
pub fn percentile(sorted: &[Duration], part: f64) -> Duration {
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
    fn goals_are_judged_by_the_metric_and_its_floor() {
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
    fn metrics_are_written_as_documented_json() {
        let figure = Figure::new("x", 1.2345, "ms").floor("f", 2.0).goal(Goal::Most(3.0));
        assert_eq!(
            json!(figure.rounded()),
            json!({"name": "x", "unit": "ms", "value": 1.23, "floor": {"name": "f", "value": 2.0},
                   "goal": {"at_most": 3.0}})
        );
    }

    #[test]
    fn percentiles_are_taken_from_sorted_times() {
        let times: Vec<Duration> = (0..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 0.5), Duration::from_millis(50));
        assert_eq!(percentile(&times, 0.99), Duration::from_millis(99));
        assert_eq!(percentile(&[], 0.5), Duration::ZERO);
    }

    #[test]
    fn numbers_are_shown_with_their_significant_digits() {
        for (value, text) in [(0.0, "0"), (12_345.6, "12346"), (12.34, "12.3"), (0.01234, "0.0123")]
        {
            assert_eq!(number(value), text);
        }
    }
}
