//! Showing lists and single things in each of the five formats, in one place.

use serde::Serialize;
use serde_json::Value;

use crate::args::Format;
use crate::exit::Failure;
use crate::output::Output;
use crate::output::table::{Table, Tone};

/// A plain cell.
pub fn cell(text: impl Into<String>) -> (String, Tone) {
    (text.into(), Tone::Plain)
}

/// A cell of little weight.
pub fn dim(text: impl Into<String>) -> (String, Tone) {
    (text.into(), Tone::Dim)
}

/// What stands for nothing.
pub fn or_dash(text: Option<String>) -> (String, Tone) {
    text.map_or_else(|| dim("-"), cell)
}

/// Shows a list. `empty` tells the person what to do when there is nothing.
///
/// # Errors
///
/// When the result cannot be written.
pub fn list<T: Serialize>(
    out: &Output,
    items: &[T],
    id: impl Fn(&T) -> String,
    table: impl FnOnce(bool) -> Table,
    empty: &str,
) -> Result<(), Failure> {
    match out.format {
        Format::Json | Format::Yaml => out.value(&to_value(items))?,
        Format::Name => {
            for item in items {
                out.line(&id(item))?;
            }
        }
        Format::Table | Format::Wide if items.is_empty() => out.note(empty),
        Format::Table | Format::Wide => out.table(&table(out.wide()))?,
    }
    Ok(())
}

/// Shows one thing: as its value, its id, or as lines of `name  value` for people.
///
/// # Errors
///
/// When the result cannot be written.
pub fn one<T: Serialize>(
    out: &Output,
    item: &T,
    id: &str,
    lines: impl FnOnce() -> Vec<(&'static str, (String, Tone))>,
) -> Result<(), Failure> {
    match out.format {
        Format::Json | Format::Yaml => out.value(&to_value(item))?,
        Format::Name => out.line(id)?,
        Format::Table | Format::Wide => facts(out, lines())?,
    }
    Ok(())
}

/// Lines of `name  value`, values aligned.
///
/// # Errors
///
/// When the result cannot be written.
pub fn facts(out: &Output, lines: Vec<(&'static str, (String, Tone))>) -> Result<(), Failure> {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, (text, tone)) in lines {
        let mut rows = text.lines();
        let first = crate::output::clean::line(rows.next().unwrap_or_default()).into_owned();
        let name = crate::output::paint(&format!("{name:width$}"), Tone::Dim, out.colour);
        out.line(&format!("{name}  {}", crate::output::paint(&first, tone, out.colour)))?;
        for row in rows {
            out.line(&format!("{:width$}  {}", "", crate::output::clean::line(row)))?;
        }
    }
    Ok(())
}

/// What a type of ours looks like as JSON.
pub fn to_value<T: Serialize + ?Sized>(item: &T) -> Value {
    serde_json::to_value(item).expect("types of the API have string keys and finite numbers")
}
