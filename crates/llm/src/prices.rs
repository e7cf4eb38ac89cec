//! The price of a call, in millionths of a US dollar.
//!
//! The catalogue holds the list prices of well-known models as of [`AS_OF`], read from the public
//! price pages of OpenAI, Anthropic and DeepSeek. It covers the standard service tier only: no
//! batch, flex or priority prices, no regional surcharge, no contract. DeepSeek has cheaper hours;
//! the catalogue has the higher prices, so that a budget errs on the safe side. A model that is
//! missing here has no price rather than a guessed one; [`Config::prices`](crate::Config::prices)
//! adds models and replaces prices.

use std::collections::BTreeMap;

pub use overmind_core::budget::Price;
use overmind_core::budget::PriceRow;

/// The day on which the catalogue was read.
pub const AS_OF: &str = "2026-11-21";

/// Converts prices from thousandths of a dollar per million tokens: 0.3 dollars are 300.
const fn usd(input: u64, cached_input: u64, cache_write: u64, output: u64) -> Price {
    Price {
        input: input * 1000,
        cached_input: cached_input * 1000,
        cache_write: cache_write * 1000,
        output: output * 1000,
        long_above: None,
        long_input_percent: 100,
        long_output_percent: 100,
    }
}

const fn long(mut price: Price, above: u64, input_percent: u64, output_percent: u64) -> Price {
    price.long_above = Some(above);
    price.long_input_percent = input_percent;
    price.long_output_percent = output_percent;
    price
}

/// Rows of provider, model and price. Dated names and `-latest` of a model have the same price.
const CATALOGUE: &[(&str, &str, Price)] = &[
    ("openai", "gpt-6.2-astra", long(usd(8000, 400, 10_000, 40_000), 272_000, 200, 150)),
    ("openai", "gpt-6.2-sol", long(usd(2000, 100, 2500, 10_000), 272_000, 200, 150)),
    ("openai", "gpt-6.1-sol", long(usd(2000, 100, 2500, 10_000), 272_000, 200, 150)),
    ("openai", "gpt-6.1-terra", long(usd(1000, 50, 1250, 5000), 272_000, 200, 150)),
    ("openai", "gpt-6-astra", long(usd(10_000, 1000, 12_500, 50_000), 272_000, 200, 150)),
    ("openai", "gpt-6-sol", long(usd(2000, 200, 2500, 10_000), 272_000, 200, 150)),
    ("openai", "gpt-6-luna", long(usd(100, 10, 125, 500), 272_000, 200, 150)),
    ("openai", "gpt-5.6-sol", usd(4000, 400, 5000, 20_000)),
    ("openai", "gpt-5.6-terra", usd(2000, 200, 2500, 12_000)),
    ("openai", "gpt-5.6-luna", usd(200, 20, 250, 1200)),
    ("openai", "gpt-5.5", usd(5000, 500, 5000, 30_000)),
    ("openai", "gpt-5.4", usd(2500, 250, 2500, 15_000)),
    ("openai", "gpt-5.4-mini", usd(750, 75, 750, 4500)),
    ("openai", "gpt-5.3-codex", usd(1750, 175, 1750, 14_000)),
    ("openai", "gpt-5.2", usd(1750, 175, 1750, 14_000)),
    ("openai", "gpt-5.2-codex", usd(1750, 175, 1750, 14_000)),
    ("openai", "gpt-5.1", usd(1250, 125, 1250, 10_000)),
    ("openai", "gpt-5", usd(1250, 125, 1250, 10_000)),
    ("openai", "gpt-5-codex", usd(1250, 125, 1250, 10_000)),
    ("openai", "gpt-5-mini", usd(250, 25, 250, 2000)),
    ("openai", "gpt-5-nano", usd(50, 5, 50, 400)),
    ("openai", "gpt-4.1", usd(2000, 500, 2000, 8000)),
    ("openai", "gpt-4.1-mini", usd(400, 100, 400, 1600)),
    ("openai", "gpt-4.1-nano", usd(100, 25, 100, 400)),
    ("openai", "gpt-4o", usd(2500, 1250, 2500, 10_000)),
    ("openai", "gpt-4o-mini", usd(150, 75, 150, 600)),
    ("openai", "o3", usd(2000, 500, 2000, 8000)),
    ("openai", "o3-mini", usd(1100, 550, 1100, 4400)),
    ("openai", "o4-mini", usd(1100, 275, 1100, 4400)),
    // Embeddings have no output.
    ("openai", "text-embedding-3-small", usd(20, 20, 20, 0)),
    ("openai", "text-embedding-3-large", usd(130, 130, 130, 0)),
    ("openai", "text-embedding-ada-002", usd(100, 100, 100, 0)),
    ("anthropic", "claude-fable-5-1", usd(10_000, 250, 12_500, 50_000)),
    ("anthropic", "claude-fable-5", usd(10_000, 1000, 12_500, 50_000)),
    ("anthropic", "claude-opus-5-5", usd(4000, 200, 5000, 20_000)),
    ("anthropic", "claude-opus-5", usd(5000, 500, 6250, 25_000)),
    ("anthropic", "claude-opus-4-8", usd(5000, 500, 6250, 25_000)),
    ("anthropic", "claude-opus-4-7", usd(5000, 500, 6250, 25_000)),
    ("anthropic", "claude-opus-4-6", usd(5000, 500, 6250, 25_000)),
    ("anthropic", "claude-opus-4-5", usd(5000, 500, 6250, 25_000)),
    ("anthropic", "claude-sonnet-5-5", usd(2000, 100, 2500, 10_000)),
    ("anthropic", "claude-sonnet-5", usd(2000, 200, 2500, 10_000)),
    ("anthropic", "claude-sonnet-4-6", usd(3000, 300, 3750, 15_000)),
    ("anthropic", "claude-sonnet-4-5", usd(3000, 300, 3750, 15_000)),
    ("anthropic", "claude-haiku-5-5", long(usd(100, 10, 125, 500), 100_000, 500, 500)),
    ("anthropic", "claude-haiku-4-5", usd(1000, 100, 1250, 5000)),
    ("deepseek", "deepseek-flash", usd(300, 6, 300, 1200)),
    ("deepseek", "deepseek-v4-flash", usd(300, 6, 300, 1200)),
    ("deepseek", "deepseek-v4-pro", usd(1320, 44, 1320, 3960)),
];

/// The price of `model` at `provider` (a [`Provider::name`](crate::Provider::name)). A user's price
/// in `own` takes precedence and applies to every provider.
pub fn price(own: &BTreeMap<String, Price>, provider: &str, model: &str) -> Option<Price> {
    if let Some(price) = own.get(model) {
        return Some(*price);
    }
    CATALOGUE
        .iter()
        .find(|(by, name, _)| *by == provider && is_version_of(model, name))
        .map(|(_, _, price)| *price)
}

/// The models of a provider that are in the catalogue.
pub(crate) fn of_provider(provider: &str) -> impl Iterator<Item = &'static str> {
    let of = CATALOGUE.iter().filter(move |(by, _, _)| *by == provider);
    of.map(|(_, name, _)| *name)
}

/// The pages from which the catalogue's prices were read.
pub const SOURCES: &[(&str, &str)] = &[
    ("openai", "https://openai.com/api/pricing"),
    ("anthropic", "https://www.anthropic.com/pricing"),
    ("deepseek", "https://api-docs.deepseek.com/quick_start/pricing"),
];

/// All prices, the user's own first, each with its date and its source. `from` holds the date and
/// source of the user's own.
pub fn table(own: &BTreeMap<String, Price>, from: &(String, String)) -> Vec<PriceRow> {
    let own = own.iter().map(|(model, price)| PriceRow {
        provider: "*".to_owned(),
        model: model.clone(),
        price: *price,
        as_of: from.0.clone(),
        source: from.1.clone(),
    });
    let catalogued = CATALOGUE.iter().map(|(provider, model, price)| PriceRow {
        provider: (*provider).to_owned(),
        model: (*model).to_owned(),
        price: *price,
        as_of: AS_OF.to_owned(),
        source: SOURCES
            .iter()
            .find(|(name, _)| name == provider)
            .map_or_else(String::new, |(_, source)| (*source).to_owned()),
    });
    own.chain(catalogued).collect()
}

/// Whether `model` is `name`, or `name` followed by `-latest` or a date.
fn is_version_of(model: &str, name: &str) -> bool {
    let Some(rest) = model.strip_prefix(name) else { return false };
    if rest.is_empty() || rest == "-latest" {
        return true;
    }
    let digits = rest.bytes().filter(u8::is_ascii_digit).count();
    let dashes = rest.bytes().filter(|b| *b == b'-').count();
    rest.starts_with('-') && digits == 8 && digits + dashes == rest.len() && matches!(dashes, 1 | 3)
}

#[cfg(test)]
mod tests {
    use overmind_core::model::Usage;

    use super::*;

    fn usage(input: u64, cached: u64, written: u64, output: u64) -> Usage {
        Usage {
            input_tokens: input,
            output_tokens: output,
            cached_input_tokens: cached,
            cache_write_tokens: written,
            reasoning_tokens: 0,
        }
    }

    fn catalogued(provider: &str, model: &str) -> Option<Price> {
        price(&BTreeMap::new(), provider, model)
    }

    #[test]
    fn cached_and_written_tokens_are_parts_of_the_input_and_have_their_own_price() {
        let opus = catalogued("anthropic", "claude-opus-4-5-20251101").unwrap();
        // 100 fresh × $5 + 800 read × $0.50 + 100 written × $6.25 + 50 out × $25, per million.
        assert_eq!(opus.cost(&usage(1000, 800, 100, 50)), 500 + 400 + 625 + 1250);
        assert_eq!(opus.cost(&usage(1_000_000, 0, 0, 0)), 5_000_000);
    }

    #[test]
    fn half_a_millionth_is_rounded_up_and_less_is_rounded_down() {
        let luna = catalogued("openai", "gpt-6-luna").unwrap();
        assert_eq!(luna.cost(&usage(5, 0, 0, 0)), 1);
        assert_eq!(luna.cost(&usage(4, 0, 0, 0)), 0);
    }

    #[test]
    fn a_long_request_costs_more_as_a_whole() {
        let sol = catalogued("openai", "gpt-6.1-sol").unwrap();
        assert_eq!(sol.cost(&usage(272_000, 0, 0, 1000)), 544_000 + 10_000);
        assert_eq!(sol.cost(&usage(272_001, 0, 0, 1000)), 1_088_004 + 15_000);
    }

    #[test]
    fn extreme_numbers_saturate_instead_of_overflowing() {
        let own = Price { long_above: Some(0), long_input_percent: u64::MAX, ..usd(1, 1, 1, 1) };
        let dear =
            Price { input: u64::MAX, output: u64::MAX, long_output_percent: u64::MAX, ..own };
        assert_eq!(dear.cost(&usage(u64::MAX, 0, 0, u64::MAX)), u64::MAX);
        // More cached tokens than tokens: a provider's mistake, not an underflow.
        assert_eq!(usd(1000, 100, 0, 0).cost(&usage(10, 99, 99, 0)), 1);
    }

    #[test]
    fn dated_names_have_the_price_of_their_model_and_other_models_do_not() {
        let price = catalogued("openai", "gpt-5");
        assert!(price.is_some());
        for dated in ["gpt-5-2025-08-07", "gpt-5-20250807", "gpt-5-latest"] {
            assert_eq!(catalogued("openai", dated), price, "{dated}");
        }
        for other in ["gpt-5-pro", "gpt-5-2025", "gpt-5-2025-08-0x", "gpt-51", "gpt"] {
            assert_eq!(catalogued("openai", other), None, "{other}");
        }
        assert_ne!(catalogued("openai", "gpt-5-mini"), price);
        assert_eq!(catalogued("custom", "gpt-5"), None, "another server's gpt-5 is not OpenAI's");
    }

    #[test]
    fn the_users_prices_override_the_table() {
        let own = BTreeMap::from([
            ("gpt-5".to_owned(), usd(1, 1, 1, 1)),
            ("qwen3".to_owned(), usd(2, 2, 2, 2)),
        ]);
        assert_eq!(price(&own, "openai", "gpt-5"), Some(usd(1, 1, 1, 1)));
        assert_eq!(price(&own, "custom", "qwen3"), Some(usd(2, 2, 2, 2)));
    }

    #[test]
    fn the_price_table_has_no_duplicates_and_no_cache_price_above_the_input_price() {
        let mut seen = std::collections::HashSet::new();
        for (provider, model, price) in CATALOGUE {
            assert!(seen.insert((provider, model)), "{model} is defined twice");
            assert!(price.cached_input <= price.input, "{model}");
            let embeds = model.starts_with("text-embedding-");
            assert!(price.input < price.output || (embeds && price.output == 0), "{model}");
        }
    }
}
