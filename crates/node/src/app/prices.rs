//! The file of the user's own prices, which take precedence over the built-in table.
//!
//! ```toml
//! as_of = "2026-11-22"
//! source = "our contract"
//!
//! [models."gpt-5"]            # US dollars for a million tokens
//! input = 1.25
//! cached_input = 0.125
//! cache_write = 1.25
//! output = 10
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use overmind_core::budget::Price;
use serde::Deserialize;

use super::StartError;

/// Highest accepted price, in dollars for a million tokens.
const DEAREST: f64 = 1e6;

/// The user's own prices.
#[derive(Debug)]
pub struct Own {
    pub prices: BTreeMap<String, Price>,
    /// Their date and source.
    pub from: (String, String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    as_of: String,
    #[serde(default)]
    source: String,
    #[serde(default)]
    models: BTreeMap<String, Model>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    input: f64,
    output: f64,
    /// The default is the price of `input`.
    cached_input: Option<f64>,
    cache_write: Option<f64>,
    long_above: Option<u64>,
    #[serde(default = "hundred")]
    long_input_percent: u64,
    #[serde(default = "hundred")]
    long_output_percent: u64,
}

fn hundred() -> u64 {
    100
}

/// Reads the file; `None` when there is none.
///
/// # Errors
///
/// [`StartError::Prices`] if the file cannot be read or contains an invalid price: a wrong price is
/// worse than none.
pub fn read(path: &Path) -> Result<Option<Own>, StartError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => {
            return Err(StartError::Prices(format!(
                "reading prices from {}: {err}",
                path.display()
            )));
        }
    };
    parse(&text, &path.display().to_string())
        .map(Some)
        .map_err(|why| StartError::Prices(format!("the prices in {}: {why}", path.display())))
}

fn parse(text: &str, path: &str) -> Result<Own, String> {
    let file: File = toml::from_str(text).map_err(|err| err.to_string())?;
    let mut prices = BTreeMap::new();
    for (model, given) in file.models {
        let micros = |field: &str, dollars: f64| {
            if !(0.0..=DEAREST).contains(&dollars) {
                return Err(format!(
                    "models.{model}.{field} must be from 0 to {DEAREST} dollars for a million tokens"
                ));
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "from 0 to 10^12"
            )]
            Ok((dollars * 1e6).round() as u64)
        };
        let input = micros("input", given.input)?;
        let or_input = |field: &str, dollars: Option<f64>| match dollars {
            Some(dollars) => micros(field, dollars),
            None => Ok(input),
        };
        let price = Price {
            input,
            cached_input: or_input("cached_input", given.cached_input)?,
            cache_write: or_input("cache_write", given.cache_write)?,
            output: micros("output", given.output)?,
            long_above: given.long_above,
            long_input_percent: given.long_input_percent,
            long_output_percent: given.long_output_percent,
        };
        prices.insert(model, price);
    }
    let source = if file.source.is_empty() { path.to_owned() } else { file.source };
    Ok(Own { prices, from: (file.as_of, source) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_become_millionths_and_cache_prices_default_to_the_input_price() {
        let text = "as_of = \"2026-11-22\"\n[models.\"gpt-5\"]\ninput = 1.25\noutput = 10\n\
                    cached_input = 0.125\n";
        let own = parse(text, "p.toml").unwrap();
        let price = own.prices["gpt-5"];
        assert_eq!((price.input, price.output), (1_250_000, 10_000_000));
        assert_eq!((price.cached_input, price.cache_write), (125_000, 1_250_000));
        assert_eq!(own.from, ("2026-11-22".to_owned(), "p.toml".to_owned()));
    }

    #[test]
    fn an_invalid_price_is_refused_with_its_position() {
        for (text, says) in [
            ("[models.x]\ninput = -1\noutput = 1", "models.x.input"),
            ("[models.x]\ninput = 1\noutput = nan", "models.x.output"),
            ("[models.x]\ninput = 1", "output"),
            ("[model.x]\ninput = 1\noutput = 1", "model"),
            ("[models.x]\ninput = 1\noutput = 1\ncached = 1", "cached"),
        ] {
            let why = parse(text, "p.toml").unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }
}
