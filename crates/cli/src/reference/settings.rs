//! Every setting, from the table that reads the configuration.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use overmind_node::config::settings::{FAMILIES, Kind, SETTINGS, Setting};

use super::{cell, code, head};

/// `docs/reference/config.md`.
pub(super) fn page() -> String {
    let mut text = head(
        "Configuration",
        "A flag overrides an environment variable, which overrides the file `overmind.toml` in the data \
         directory, which overrides the default. `overmind config show` prints the effective values and where they come \
         from, `overmind config set KEY VALUE` changes the file, and `overmind config sample` prints a file \
         with every key. The server reads the file when it starts.",
    );
    let table = |setting: &Setting| setting.key.split_once('.').map_or("", |(table, _)| table);
    let mut seen = BTreeSet::new();
    let tables: Vec<&str> = SETTINGS.iter().map(table).filter(|name| seen.insert(*name)).collect();
    for name in tables {
        let _ = write!(text, "\n## `{name}`\n\n");
        rows(&mut text, SETTINGS.iter().filter(|setting| table(setting) == name));
    }
    for (family, fields) in FAMILIES {
        let _ = write!(
            text,
            "\n## `{family}.NAME`\n\nA table for each: `[{family}.NAME]`, with a name that you choose.\n\n"
        );
        rows(&mut text, fields.iter());
    }
    text
}

fn rows<'a>(text: &mut String, settings: impl Iterator<Item = &'a Setting>) {
    text.push_str("| key | default | environment | type | meaning |\n|---|---|---|---|---|\n");
    for setting in settings {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            code(setting.key),
            code(setting.default.unwrap_or_default()),
            code(setting.env.unwrap_or_default()),
            kind(setting.kind),
            cell(setting.help),
        );
    }
}

/// The type of a value.
fn kind(kind: Kind) -> String {
    match kind {
        Kind::Text => "text".to_owned(),
        Kind::Lines => "text of several lines".to_owned(),
        Kind::Path => "path".to_owned(),
        Kind::PathOrNone => "path, or `none`".to_owned(),
        Kind::Whole { min, max } if max >= i64::MAX as u64 => format!("integer from {min}"),
        Kind::Whole { min, max } => format!("integer, {min} to {max}"),
        Kind::Choice(words) => {
            let words: Vec<String> = words.iter().map(|word| code(word)).collect();
            words.join(", ")
        }
        Kind::Seconds => "seconds".to_owned(),
        Kind::Listen => "`HOST:PORT`, or `none`".to_owned(),
        Kind::Url => "URL".to_owned(),
        Kind::List => "array of texts; separated by commas in the environment".to_owned(),
        Kind::Secret => "secret".to_owned(),
    }
}
