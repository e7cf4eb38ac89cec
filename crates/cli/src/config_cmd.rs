//! `overmind config …`: what is set, to what, and by whom.

use overmind_node::config::layers::{self, Given, Source};
use overmind_node::config::settings::{Kind, SETTINGS, by_key};
use overmind_node::config::{Config, Secret};
use serde_json::{Value, json};

use crate::args_more::ConfigCommand;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::{Table, Tone};
use crate::show::{self, cell, dim};

/// # Errors
///
/// What is wrong with the configuration.
pub fn run(cx: &Context, command: &ConfigCommand) -> Outcome {
    match command {
        ConfigCommand::Path => {
            let path = match &cx.global.config {
                Some(path) => cx.cwd.join(path),
                None => cx.env.path(overmind_node::config::env::CONFIG).map_or_else(
                    || Ok::<_, Failure>(cx.data()?.config_file()),
                    |path| Ok(cx.cwd.join(path)),
                )?,
            };
            cx.out.line(&path.display().to_string())?;
        }
        ConfigCommand::Show => show_all(cx, &cx.config(None)?)?,
    }
    Ok(Exit::Done)
}

/// One setting as it is shown.
struct Row {
    key: String,
    value: Option<Value>,
    source: String,
    help: &'static str,
    set: bool,
}

fn rows(config: &Config) -> Vec<Row> {
    let row = |key: &str, kind: Kind, help: &'static str| {
        let placed = config.layers.0.get(key);
        let value = placed.map(|placed| match &placed.value {
            Given::Text(text) if kind == Kind::Secret => json!(Secret::new(text).masked()),
            Given::Text(text) => json!(text),
            Given::Whole(number) => json!(number),
            Given::List(items) => json!(items),
        });
        let source = placed.map(|placed| placed.source.clone());
        Row {
            key: key.to_owned(),
            value,
            set: source.as_ref().is_some_and(|source| *source != Source::Default),
            source: source.map_or_else(|| "unset".to_owned(), |source| source.to_string()),
            help,
        }
    };
    let mut rows: Vec<Row> =
        SETTINGS.iter().map(|setting| row(setting.key, setting.kind, setting.help)).collect();
    let named = config.layers.0.keys().filter(|key| by_key(key).is_none());
    for (key, field) in named.filter_map(|key| Some((key, layers::known(key)?))) {
        rows.push(row(key, field.kind, field.help));
    }
    rows
}

fn show_all(cx: &Context, config: &Config) -> Result<(), Failure> {
    let rows = rows(config);
    let values: Vec<Value> = rows
        .iter()
        .map(|row| json!({"key": row.key, "value": row.value, "source": row.source, "help": row.help}))
        .collect();
    if cx.out.for_people() {
        let state = if config.file.exists() { "" } else { " (not there: defaults apply)" };
        cx.out.note(&format!("data  {}", config.data.path().display()));
        cx.out.note(&format!("file  {}{state}", config.file.display()));
    }
    show::list(
        &cx.out,
        &values,
        |row| row["key"].as_str().unwrap_or_default().to_owned(),
        |wide| {
            let header: &[&str] = if wide {
                &["KEY", "VALUE", "SOURCE", "MEANING"]
            } else {
                &["KEY", "VALUE", "SOURCE"]
            };
            let mut table = Table::new(header);
            for row in &rows {
                let value = match &row.value {
                    Some(Value::String(text)) => cell(text),
                    Some(Value::Array(items)) if items.is_empty() => dim("-"),
                    Some(other) => cell(other.to_string()),
                    None => dim("-"),
                };
                let tone = if row.set { Tone::Plain } else { Tone::Dim };
                let mut cells = vec![cell(&row.key), (value.0, tone), (row.source.clone(), tone)];
                if wide {
                    cells.push(cell(row.help));
                }
                table.row(cells);
            }
            table
        },
        "",
    )
}
