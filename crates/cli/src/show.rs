//! Showing lists and single things in each of the five formats, in one place.

use serde::Serialize;
use serde_json::Value;

use crate::args::Format;
use crate::exit::Failure;
use crate::output::table::{Table, Tone};
use crate::output::{Output, clean, yaml};

/// A plain cell.
pub fn cell(text: impl Into<String>) -> (String, Tone) {
    (text.into(), Tone::Plain)
}

/// A cell of little weight.
pub fn dim(text: impl Into<String>) -> (String, Tone) {
    (text.into(), Tone::Dim)
}

/// The text in place of a missing value.
pub fn or_dash(text: Option<String>) -> (String, Tone) {
    text.map_or_else(|| dim("-"), cell)
}

/// Shows a list. `empty` is the hint for an empty list.
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

/// Says that a table may lack rows, where it has as many as were asked for, and how to list more.
pub fn tell_limit(out: &Output, rows: usize, limit: u32) {
    if out.for_people() && usize::try_from(limit).is_ok_and(|limit| rows >= limit) {
        let more = limit.saturating_mul(10);
        out.note(&format!("at most {limit} are listed; --limit {more} lists more"));
    }
}

/// Writes a JSON or YAML list in pieces, so that it need not be in memory: the text is that of
/// [`list`] with all of it.
#[derive(Debug)]
pub struct Pieces<'a> {
    out: &'a Output,
    begun: bool,
}

impl<'a> Pieces<'a> {
    /// `out` has no template: that needs the whole.
    pub fn new(out: &'a Output) -> Self {
        Self { out, begun: false }
    }

    /// Writes further items.
    ///
    /// # Errors
    ///
    /// When the result cannot be written.
    pub fn more<T: Serialize>(&mut self, items: &[T]) -> Result<(), Failure> {
        if items.is_empty() {
            return Ok(());
        }
        let text = piece(self.out.format, &to_value(items), self.begun);
        self.begun = true;
        match self.out.format == Format::Yaml {
            true => self.out.text(&text)?,
            false => self.out.text(&clean::json(&text))?,
        }
        Ok(())
    }

    /// Writes the end of the list.
    ///
    /// # Errors
    ///
    /// When the result cannot be written.
    pub fn end(self) -> Result<(), Failure> {
        match self.begun {
            true if self.out.format == Format::Yaml => {}
            true => self.out.text("\n]\n")?,
            false => self.out.value(&Value::Array(Vec::new()))?,
        }
        Ok(())
    }
}

/// The text of a part of a list, of which JSON lacks the closing bracket. `goes_on`: it is not the first.
fn piece(format: Format, items: &Value, goes_on: bool) -> String {
    if format == Format::Yaml {
        return yaml::to_string(items);
    }
    let text = format!("{items:#}");
    let text = text.strip_suffix("\n]").unwrap_or(&text);
    match goes_on {
        true => format!(",{}", text.trim_start_matches('[')),
        false => text.to_owned(),
    }
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
        let first = clean::line(rows.next().unwrap_or_default()).into_owned();
        let name = crate::output::paint(&format!("{name:width$}"), Tone::Dim, out.colour);
        out.line(&format!("{name}  {}", crate::output::paint(&first, tone, out.colour)))?;
        for row in rows {
            out.line(&format!("{:width$}  {}", "", clean::line(row)))?;
        }
    }
    Ok(())
}

/// The JSON of one of our types.
pub fn to_value<T: Serialize + ?Sized>(item: &T) -> Value {
    serde_json::to_value(item).expect("types of the API have string keys and finite numbers")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_chunked_list_equals_the_text_of_the_whole_list() {
        let items = [json!({"a": [1, "x\n]"]}), json!("b"), json!([]), json!({"c": {}})];
        for at in 1..items.len() {
            let (first, rest) = items.split_at(at);
            let (first, rest) = (Value::Array(first.into()), Value::Array(rest.into()));
            let all = Value::Array(items.to_vec());
            let json = piece(Format::Json, &first, false) + &piece(Format::Json, &rest, true);
            assert_eq!(json + "\n]", format!("{all:#}"));
            let yaml = piece(Format::Yaml, &first, false) + &piece(Format::Yaml, &rest, true);
            assert_eq!(yaml, yaml::to_string(&all));
        }
    }
}
