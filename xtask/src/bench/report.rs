//! The report: figures, floors, goals, and the machine they belong to.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::sample::Samples;

/// One thing measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The name of the measurement, in the words of the product's goals.
    pub name: String,
    /// For example `events/s`, `ms`, `MB`.
    pub unit: String,
    pub value: f64,
    /// The same work without the product, in the same unit.
    #[serde(default)]
    pub floor: Option<Floor>,
    #[serde(default)]
    pub goal: Option<Goal>,
    /// Why a goal is missed, or how to read the figure.
    #[serde(default)]
    pub note: Option<String>,
}

/// The value with which a metric is compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Floor {
    pub name: String,
    pub value: f64,
}

/// The goal, in the metric's unit, or as a share of its floor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// The figure over its floor; needs a floor.
    RatioAtLeast(f64),
    /// At most this many times the floor.
    RatioAtMost(f64),
    /// The floor plus this much; needs a floor.
    FloorPlusAtMost(f64),
}

impl Figure {
    /// The figure over its floor. `None` without a floor, or with one of zero.
    pub fn ratio(&self) -> Option<f64> {
        let floor = self.floor.as_ref()?.value;
        (floor != 0.0).then(|| self.value / floor)
    }

    /// Whether the goal is met. `None` without a goal, or without the floor that it needs.
    pub fn met(&self) -> Option<bool> {
        let floor = self.floor.as_ref().map(|floor| floor.value);
        match self.goal? {
            Goal::AtLeast(goal) => Some(self.value >= goal),
            Goal::AtMost(goal) => Some(self.value <= goal),
            Goal::RatioAtLeast(goal) => Some(self.ratio()? >= goal),
            Goal::RatioAtMost(goal) => Some(self.ratio()? <= goal),
            Goal::FloorPlusAtMost(extra) => Some(self.value <= floor? + extra),
        }
    }
}

/// Everything one run measured.
#[derive(Clone, Debug)]
pub struct Report {
    pub machine: Machine,
    /// Append of 4 KiB and `fdatasync`.
    pub fsync: Samples,
    /// Start and end of `/bin/true`.
    pub spawn: Samples,
    pub figures: Vec<Figure>,
    /// The measurements that were not possible on this machine, and the reasons.
    pub left_out: Vec<String>,
}

impl Report {
    /// The text of `docs/benchmarks.md`.
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "# Benchmarks\n\nMeasured by `cargo xtask bench`, which writes this file. A *floor* is the same work without\n\
             Overmind, measured in the same run on the same machine; *ratio* is figure over floor.\n\n## Machine\n\n",
        );
        let _ = writeln!(text, "{}", self.machine.markdown());
        text += "## Floors of the machine\n\n| floor | p50 | p99 |\n|---|---:|---:|\n";
        for (name, samples) in
            [("append 4 KiB + fdatasync", self.fsync), ("start and end of /bin/true", self.spawn)]
        {
            let _ = writeln!(
                text,
                "| {name} | {} ms | {} ms |",
                number(samples.p50_ms()),
                number(samples.p99_ms())
            );
        }
        text += "\n## Figures\n\n| figure | value | floor | ratio | goal | met |\n|---|---:|---|---:|---:|---|\n";
        for figure in &self.figures {
            let unit = &figure.unit;
            let floor = figure.floor.as_ref().map_or("–".into(), |floor| {
                format!("{}: {} {unit}", floor.name, number(floor.value))
            });
            let ratio = figure.ratio().map_or("–".into(), number);
            let goal = figure.goal.map_or("–".into(), |goal| match goal {
                Goal::AtLeast(goal) => format!("≥ {} {unit}", number(goal)),
                Goal::AtMost(goal) => format!("≤ {} {unit}", number(goal)),
                Goal::RatioAtLeast(goal) => format!("≥ {} × floor", number(goal)),
                Goal::RatioAtMost(goal) => format!("≤ {} × floor", number(goal)),
                Goal::FloorPlusAtMost(extra) => format!("≤ floor + {} {unit}", number(extra)),
            });
            let met = figure.met().map_or("–", |met| if met { "yes" } else { "**no**" });
            let value = number(figure.value);
            let _ = writeln!(
                text,
                "| {} | {value} {unit} | {floor} | {ratio} | {goal} | {met} |",
                figure.name
            );
        }
        let notes: Vec<_> = self
            .figures
            .iter()
            .filter_map(|figure| Some(format!("* {}: {}\n", figure.name, figure.note.as_ref()?)))
            .collect();
        if !notes.is_empty() {
            let _ = write!(text, "\n## Notes\n\n{}", notes.concat());
        }
        if !self.left_out.is_empty() {
            text += "\n## Not measured here\n\n";
            for reason in &self.left_out {
                let _ = writeln!(text, "* {reason}");
            }
        }
        text
    }
}

/// About three digits that mean something, with thousands set apart.
fn number(value: f64) -> String {
    if value.abs() < 100.0 {
        let digits = if value.abs() < 10.0 { 2 } else { 1 };
        return format!("{value:.digits$}");
    }
    let whole = format!("{value:.0}");
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole.as_str()), |rest| ("-", rest));
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn figure(value: f64, floor: Option<f64>, goal: Goal) -> Figure {
        Figure {
            name: "a".into(),
            unit: "ms".into(),
            value,
            floor: floor.map(|value| Floor { name: "bare".into(), value }),
            goal: Some(goal),
            note: None,
        }
    }

    #[test]
    fn goals_are_checked_at_their_bounds_and_only_with_a_floor() {
        for (figure, met) in [
            (figure(10.0, None, Goal::AtLeast(10.0)), Some(true)),
            (figure(9.9, None, Goal::AtLeast(10.0)), Some(false)),
            (figure(10.0, None, Goal::AtMost(10.0)), Some(true)),
            (figure(10.1, None, Goal::AtMost(10.0)), Some(false)),
            (figure(8.0, Some(10.0), Goal::RatioAtLeast(0.8)), Some(true)),
            (figure(7.9, Some(10.0), Goal::RatioAtLeast(0.8)), Some(false)),
            (figure(7.9, None, Goal::RatioAtLeast(0.8)), None),
            (figure(6.0, Some(2.0), Goal::RatioAtMost(3.0)), Some(true)),
            (figure(6.1, Some(2.0), Goal::RatioAtMost(3.0)), Some(false)),
            (figure(3.0, Some(2.0), Goal::FloorPlusAtMost(1.0)), Some(true)),
            (figure(3.1, Some(2.0), Goal::FloorPlusAtMost(1.0)), Some(false)),
        ] {
            assert_eq!(figure.met(), met, "{figure:?}");
        }
        assert_eq!(figure(1.0, Some(0.0), Goal::AtMost(1.0)).ratio(), None);
    }

    #[test]
    fn numbers_are_short_and_grouped() {
        for (value, text) in [
            (0.0, "0.00"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1234.5, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-1234.0, "-1,234"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn the_report_has_one_row_per_metric_and_shows_missed_goals() {
        let samples = Samples::of(vec![Duration::from_millis(2)]).expect("not empty");
        let report = Report {
            machine: Machine::default(),
            fsync: samples,
            spawn: samples,
            figures: vec![
                Figure { note: Some("why".into()), ..figure(5.0, Some(2.0), Goal::AtMost(4.0)) },
                Figure { goal: None, floor: None, ..figure(20_000.0, None, Goal::AtLeast(1.0)) },
            ],
            left_out: Vec::new(),
        };
        let text = report.markdown();
        assert!(
            text.contains("| a | 5.00 ms | bare: 2.00 ms | 2.50 | ≤ 4.00 ms | **no** |"),
            "{text}"
        );
        assert!(text.contains("| a | 20,000 ms | – | – | – | – |"), "{text}");
        assert!(text.ends_with("## Notes\n\n* a: why\n"), "{text}");
        let text = Report { left_out: vec!["b: no engine".into()], ..report }.markdown();
        assert!(text.ends_with("* a: why\n\n## Not measured here\n\n* b: no engine\n"), "{text}");
    }

    #[test]
    fn a_metric_is_read_from_the_products_json() {
        let json = r#"{"name":"x","unit":"events/s","value":1.5,"floor":{"name":"f","value":2},"goal":{"at_least":1}}"#;
        let figure: Figure = serde_json::from_str(json).expect("the documented form");
        assert_eq!(figure.goal, Some(Goal::AtLeast(1.0)));
        assert_eq!(figure.met(), Some(true));
        assert!(
            serde_json::from_str::<Figure>(r#"{"name":"x","unit":"u","value":1,"gaol":1}"#)
                .is_err()
        );
    }
}
