//! Prices of models, and the port to their source.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::Usage;
use crate::nearest::nearest;

/// Prices of one model in millionths of a US dollar per million tokens: 2 dollars are 2 000 000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    pub input: u64,
    /// Price of input that the provider read from its cache.
    pub cached_input: u64,
    /// Price of input that the provider wrote to its cache.
    pub cache_write: u64,
    pub output: u64,
    /// Number of input tokens above which a request costs `long_*` percent of the prices above.
    #[serde(default)]
    pub long_above: Option<u64>,
    #[serde(default = "hundred")]
    pub long_input_percent: u64,
    #[serde(default = "hundred")]
    pub long_output_percent: u64,
}

fn hundred() -> u64 {
    100
}

impl Price {
    /// The price of free calls, such as answers from a file.
    pub const FREE: Self = Self {
        input: 0,
        cached_input: 0,
        cache_write: 0,
        output: 0,
        long_above: None,
        long_input_percent: 100,
        long_output_percent: 100,
    };

    /// Returns the cost of one call in millionths of a dollar, rounded to the nearest; saturates.
    pub fn cost(&self, usage: &Usage) -> u64 {
        let cached = usage.cached_input_tokens.min(usage.input_tokens);
        let written = usage.cache_write_tokens.min(usage.input_tokens - cached);
        let fresh = usage.input_tokens - cached - written;
        let (input_percent, output_percent) = self.percents(usage.input_tokens);
        let sum = part(fresh, self.input, input_percent)
            .saturating_add(part(cached, self.cached_input, input_percent))
            .saturating_add(part(written, self.cache_write, input_percent))
            .saturating_add(part(usage.output_tokens, self.output, output_percent));
        u64::try_from(sum.saturating_add(50_000_000) / 100_000_000).unwrap_or(u64::MAX)
    }

    /// Returns the highest cost of at most this many tokens, rounded up: all input at the highest
    /// of the three input prices, and at the prices of long requests if those are higher.
    pub fn worst(&self, input_tokens: u64, output_tokens: u64) -> u64 {
        let dearest = self.input.max(self.cached_input).max(self.cache_write);
        let (input, output) = self.percents(input_tokens);
        // A request that stays short may be billed at the plain prices, even if long ones are
        // cheaper.
        let sum = part(input_tokens, dearest, input.max(100)).saturating_add(part(
            output_tokens,
            self.output,
            output.max(100),
        ));
        u64::try_from(sum.saturating_add(99_999_999) / 100_000_000).unwrap_or(u64::MAX)
    }

    fn percents(&self, input_tokens: u64) -> (u64, u64) {
        let long = self.long_above.is_some_and(|above| input_tokens > above);
        if long { (self.long_input_percent, self.long_output_percent) } else { (100, 100) }
    }
}

/// Returns tokens × micro-dollars × percent. It saturates, because a provider's numbers are not
/// trusted and their product may exceed 128 bits.
fn part(tokens: u64, price: u64, percent: u64) -> u128 {
    (u128::from(tokens) * u128::from(price)).saturating_mul(u128::from(percent))
}

/// The provider and price for a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quote {
    pub provider: String,
    /// The model, as the provider names it.
    pub model: String,
    pub price: Option<Price>,
}

/// A row of the price table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriceRow {
    /// The provider; `*` for a price of all providers.
    pub provider: String,
    pub model: String,
    pub price: Price,
    /// The day on which the price was read, `2026-11-21`.
    pub as_of: String,
    /// The page from which it was read.
    pub source: String,
}

/// Returns a hint about a model that its provider does not seem to have; `None` if that cannot be
/// known, as for servers that accept any name. `table` contains the known models.
pub fn unknown_model(quote: &Quote, table: &[PriceRow]) -> Option<String> {
    let Quote { provider, model, price: None } = quote else { return None };
    let of = table.iter().filter(|row| row.provider == *provider);
    let mut names: Vec<&str> = of.map(|row| row.model.as_str()).collect();
    if names.is_empty() {
        return None;
    }
    let mut near = Vec::new();
    while let Some(name) = nearest(model, names.iter().copied()).filter(|_| near.len() < NEAR) {
        names.retain(|other| *other != name);
        near.push(format!("`{name}`"));
    }
    let meant = match near.is_empty() {
        true => String::new(),
        false => format!(" Did you mean {}?", near.join(" or ")),
    };
    Some(format!(
        "model `{model}` is not among the known models of {provider}, which refuses a name that it does not \
         have.{meant}"
    ))
}

/// Maximum number of suggested names.
const NEAR: usize = 3;

/// A source of prices. All prices are known in advance, so no call waits or fails.
pub trait Prices: Send + Sync + fmt::Debug {
    /// Returns the provider and the price of `model`, in the form in which agents name models.
    fn quote(&self, model: &str) -> Quote;

    /// Returns the price of `model` at `provider`, both as the provider names them.
    fn price(&self, provider: &str, model: &str) -> Option<Price>;

    /// Returns the whole table by provider and model, with the user's own rows first.
    fn table(&self) -> Vec<PriceRow>;
}

/// A source without prices.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPrices;

impl Prices for NoPrices {
    fn quote(&self, model: &str) -> Quote {
        Quote { provider: String::new(), model: model.to_owned(), price: None }
    }

    fn price(&self, _provider: &str, _model: &str) -> Option<Price> {
        None
    }

    fn table(&self) -> Vec<PriceRow> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prices() -> impl Strategy<Value = Price> {
        let cents = 0_u64..100_000_000;
        (
            cents.clone(),
            cents.clone(),
            cents.clone(),
            cents,
            proptest::option::of(0_u64..500_000),
            50_u64..600,
            50_u64..600,
        )
            .prop_map(|(input, cached_input, cache_write, output, long_above, li, lo)| {
                Price {
                    input,
                    cached_input,
                    cache_write,
                    output,
                    long_above,
                    long_input_percent: li,
                    long_output_percent: lo,
                }
            })
    }

    proptest! {
        #[test]
        fn no_call_costs_more_than_the_maximum_for_its_tokens(
            price in prices(),
            tokens in (0_u64..1_000_000, 0_u64..200_000),
            parts in (0_u64..=1000, 0_u64..=1000, 0_u64..=1000, 0_u64..=1000),
        ) {
            let (input, output) = tokens;
            let some = |of: u64, thousandths: u64| of * thousandths / 1000;
            let used = some(input, parts.0);
            let usage = Usage {
                input_tokens: used,
                output_tokens: some(output, parts.1),
                cached_input_tokens: some(used, parts.2),
                cache_write_tokens: some(used, parts.3),
                reasoning_tokens: 0,
            };
            prop_assert!(price.cost(&usage) <= price.worst(input, output));
        }
    }

    #[test]
    fn the_maximum_cost_saturates() {
        let dear = Price { input: u64::MAX, output: u64::MAX, ..Price::FREE };
        assert_eq!(dear.worst(u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(Price::FREE.worst(u64::MAX, u64::MAX), 0);
        assert_eq!(Price { output: 1, ..Price::FREE }.worst(0, 1), 1, "rounded up");
    }

    #[test]
    fn an_unknown_model_gets_the_nearest_name_unless_its_server_accepts_any() {
        let row = |provider: &str, model: &str| PriceRow {
            provider: provider.to_owned(),
            model: model.to_owned(),
            price: Price::FREE,
            as_of: String::new(),
            source: String::new(),
        };
        let table = [row("openai", "gpt-5.5"), row("openai", "o3"), row("*", "mine")];
        let of = |provider: &str, model: &str, price| {
            let quote = Quote { provider: provider.to_owned(), model: model.to_owned(), price };
            unknown_model(&quote, &table)
        };
        let told = of("openai", "gtp-5.5", None).unwrap();
        assert!(
            told.contains("model `gtp-5.5`") && told.ends_with("Did you mean `gpt-5.5`?"),
            "{told}"
        );
        let told = of("openai", "qwen", None).unwrap();
        assert!(told.ends_with("does not have."), "{told}");
        assert_eq!(of("openai", "gpt-5.5", Some(Price::FREE)), None);
        assert_eq!(of("custom", "gtp-5.5", None), None);
    }
}
