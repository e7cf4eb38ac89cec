//! Histograms of model calls, with the names and bounds of OpenTelemetry's conventions.
//!
//! They count from the start of the process. A caller may name any model, so the number of
//! attribute combinations is limited; further ones are counted together.

use std::collections::BTreeMap;

use super::Measured;

/// Maximum number of attribute combinations of one histogram; further ones are counted as one.
pub const MAX_SERIES: usize = 1000;

/// Upper bounds of `gen_ai.client.token.usage`.
pub const TOKEN_BOUNDS: &[f64] = &[
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// Upper bounds of `gen_ai.client.operation.duration`, in seconds.
pub const SECONDS_BOUNDS: &[f64] =
    &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];

/// Names and values; empty for the combinations beyond [`MAX_SERIES`].
pub type Labels = Vec<(&'static str, String)>;

/// The values of one attribute combination.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub count: u64,
    pub sum: f64,
    pub min: f64,
    pub max: f64,
    /// Counts per bucket, one more than there are bounds.
    pub buckets: Vec<u64>,
}

#[derive(Clone, Debug)]
pub struct Histogram {
    pub name: &'static str,
    pub unit: &'static str,
    pub help: &'static str,
    pub bounds: &'static [f64],
    pub series: BTreeMap<Labels, Series>,
}

impl Histogram {
    fn count(&mut self, labels: Labels, value: f64) {
        let fits = self.series.len() < MAX_SERIES || self.series.contains_key(&labels);
        let labels = if fits { labels } else { Labels::new() };
        let series = self.series.entry(labels).or_insert_with(|| Series {
            count: 0,
            sum: 0.0,
            min: value,
            max: value,
            buckets: vec![0; self.bounds.len() + 1],
        });
        series.count += 1;
        series.sum += value;
        series.min = series.min.min(value);
        series.max = series.max.max(value);
        // A bound belongs to the bucket below it.
        series.buckets[self.bounds.partition_point(|bound| *bound < value)] += 1;
    }
}

/// All exported histograms.
#[derive(Clone, Debug)]
pub struct Figures {
    tokens: Histogram,
    seconds: Histogram,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            tokens: Histogram {
                name: "gen_ai.client.token.usage",
                unit: "{token}",
                help: "Number of input and output tokens used",
                bounds: TOKEN_BOUNDS,
                series: BTreeMap::new(),
            },
            seconds: Histogram {
                name: "gen_ai.client.operation.duration",
                unit: "s",
                help: "GenAI operation duration",
                bounds: SECONDS_BOUNDS,
                series: BTreeMap::new(),
            },
        }
    }
}

impl Figures {
    #[expect(clippy::cast_precision_loss, reason = "tokens and milliseconds are far below 2^52")]
    pub fn count(&mut self, call: &Measured) {
        let Measured { labels, error, input_tokens, output_tokens, took_ms } = call;
        let mut timed = labels.clone();
        timed.extend(error.iter().map(|error| ("error.type", error.clone())));
        self.seconds.count(timed, *took_ms as f64 / 1000.0);
        for (kind, tokens) in [("input", input_tokens), ("output", output_tokens)] {
            if *tokens > 0 {
                let mut labels = labels.clone();
                labels.push(("gen_ai.token.type", kind.to_owned()));
                self.tokens.count(labels, *tokens as f64);
            }
        }
    }

    /// Returns the histograms that are not empty.
    pub fn all(&self) -> impl Iterator<Item = &Histogram> {
        [&self.tokens, &self.seconds].into_iter().filter(|all| !all.series.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(model: &str, input_tokens: u64, output_tokens: u64, took_ms: u64) -> Measured {
        let labels = vec![("gen_ai.request.model", model.to_owned())];
        Measured { labels, error: None, input_tokens, output_tokens, took_ms }
    }

    #[test]
    fn a_value_at_a_bound_belongs_to_the_bucket_below() {
        let mut figures = Figures::default();
        figures.count(&call("m", 4, 5, 10));
        let tokens: Vec<&Series> = figures.tokens.series.values().collect();
        assert_eq!((tokens[0].buckets[1], tokens[1].buckets[2]), (1, 1));
        let seconds = figures.seconds.series.values().next().unwrap();
        assert_eq!((seconds.buckets[0], seconds.count), (1, 1));
    }

    #[test]
    fn models_beyond_the_limit_are_counted_together() {
        let mut figures = Figures::default();
        for n in 0..3 * MAX_SERIES {
            figures.count(&call(&format!("m{n}"), 1, 0, 1));
        }
        for histogram in figures.all() {
            assert_eq!(histogram.series.len(), MAX_SERIES + 1, "{}", histogram.name);
            let counted: u64 = histogram.series.values().map(|series| series.count).sum();
            assert_eq!(counted, 3 * MAX_SERIES as u64);
        }
    }

    proptest! {
        #[test]
        fn nothing_is_counted_twice_or_lost(
            values in proptest::collection::vec((0_u64..1 << 40, 0_u64..1 << 40, 0_u64..1 << 40), 1..50)
        ) {
            let mut figures = Figures::default();
            for (input, output, took) in &values {
                figures.count(&call("m", *input, *output, *took));
            }
            for histogram in figures.all() {
                for series in histogram.series.values() {
                    prop_assert_eq!(series.buckets.iter().sum::<u64>(), series.count);
                    prop_assert!(series.min <= series.max);
                }
            }
            let seconds = figures.seconds.series.values().next().unwrap();
            prop_assert_eq!(seconds.count, values.len() as u64);
        }
    }
}
