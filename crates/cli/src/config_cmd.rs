//! `overmind config …`: settings, their values and their sources.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use overmind_node::config::layers::{self, Given, Source};
use overmind_node::config::settings::{Kind, SETTINGS, by_key};
use overmind_node::config::{Config, ConfigError, Secret, env, file};
use serde_json::{Value, json};

use crate::args_more::ConfigCommand;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::{Table, Tone};
use crate::show::{self, cell, dim};

/// # Errors
///
/// The problem with the configuration.
pub fn run(cx: &Context, command: &ConfigCommand) -> Outcome {
    match command {
        ConfigCommand::Path => cx.out.line(&path(cx)?.display().to_string())?,
        ConfigCommand::Sample => cx.out.text(&file::sample())?,
        ConfigCommand::Get { key } => get(cx, key)?,
        ConfigCommand::Set { key, value } => {
            known(key)?;
            let value = match value.as_str() {
                "-" => {
                    let mut text = String::new();
                    std::io::stdin().read_to_string(&mut text).map_err(|err| {
                        Failure::failed(format!("reading the value from standard input: {err}"))
                    })?;
                    text.trim_end_matches('\n').to_owned()
                }
                value => value.to_owned(),
            };
            let path = path(cx)?;
            let text = file::set(&file::read(&path)?, &path, key, &value)?;
            write(cx, &path, &text, Some(key))?;
        }
        ConfigCommand::Unset { key } => {
            known(key)?;
            let path = path(cx)?;
            match file::unset(&file::read(&path)?, &path, key)? {
                Some(text) => write(cx, &path, &text, None)?,
                None => cx.out.note(&format!("{key} is not set in {}", path.display())),
            }
        }
        ConfigCommand::Edit => edit(cx)?,
        ConfigCommand::Show => show_all(cx, &cx.config(None)?)?,
    }
    Ok(Exit::Done)
}

/// The configuration file, whether it exists or not.
fn path(cx: &Context) -> Result<PathBuf, Failure> {
    match cx.global.config.clone().or_else(|| cx.env.path(env::CONFIG)) {
        Some(path) => Ok(cx.cwd.join(path)),
        None => Ok(cx.data()?.config_file()),
    }
}

/// Refuses an unknown key.
fn known(key: &str) -> Result<(), Failure> {
    if layers::known(key).is_some() {
        return Ok(());
    }
    let failure = Failure::new(Exit::NotFound, format!("there is no setting `{key}`"));
    Err(match layers::meant(key) {
        Some(near) => failure.hint(format!("did you mean `{near}`?")),
        None => failure.hint("`overmind config show` lists all settings"),
    })
}

fn get(cx: &Context, key: &str) -> Result<(), Failure> {
    known(key)?;
    let config = cx.config(None)?;
    let row = rows(&config).into_iter().find(|row| row.key == key);
    let value = row.as_ref().and_then(|row| row.value.clone());
    let text = match &value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            items.join(",")
        }
        Some(other) => other.to_string(),
        None => String::new(),
    };
    if !cx.out.for_people() {
        let source = row.map_or_else(|| "unset".to_owned(), |row| row.source);
        let shown = json!({"key": key, "value": value, "source": source});
        return show::one(&cx.out, &shown, &text, Vec::new);
    }
    if value.is_none() {
        cx.out.note(&format!("{key} is not set"));
        return Ok(());
    }
    Ok(cx.out.line(&text)?)
}

/// Replaces the text of the file, and reports further required settings. `set`: the key whose value
/// was given as an argument, which has no line in the file yet.
fn write(cx: &Context, path: &Path, text: &str, set: Option<&str>) -> Result<(), Failure> {
    let data = cx.data()?;
    // Before the first `up` this makes the directory, and only its owner may read it.
    if path.starts_with(data.path()) {
        data.prepare()?;
    }
    match file::replace(path, data.path(), text) {
        Err(ConfigError::BadValue { key, given, wanted, .. }) if set == Some(key.as_str()) => {
            return Err(Failure::failed(format!(
                "`{key}` cannot be `{given}`: it must be {wanted}; {} is as it was",
                path.display()
            )));
        }
        replaced => replaced?,
    }
    cx.out.note(&format!("wrote {}; the server reads it when it starts", path.display()));
    if let Err(failure) = cx.config(None) {
        cx.out.warn(&format!("the server would not start with it: {}", failure.message));
    }
    Ok(())
}

fn edit(cx: &Context) -> Result<(), Failure> {
    let path = path(cx)?;
    let before = match file::read(&path)? {
        text if text.is_empty() => file::sample(),
        text => text,
    };
    let failed = |err| Failure::failed(format!("writing a copy to edit: {err}"));
    let copy = tempfile::Builder::new().suffix(".toml").tempfile().map_err(failed)?;
    std::fs::write(copy.path(), &before).map_err(failed)?;
    let editor = cx.env.text(env::VISUAL).or_else(|| cx.env.text(env::EDITOR)).unwrap_or("vi");
    // Like git: the variable is a command line for the shell.
    let status = std::process::Command::new("sh")
        .args(["-c", &format!("{editor} \"$1\""), "sh"])
        .arg(copy.path())
        .status()
        .map_err(|err| Failure::failed(format!("starting {editor}: {err}")))?;
    if !status.success() {
        return Err(Failure::failed(format!("{editor} ended with {status}; nothing was changed")));
    }
    let after = std::fs::read_to_string(copy.path()).map_err(failed)?;
    if after == before {
        cx.out.note("nothing was changed");
        return Ok(());
    }
    write(cx, &path, &after, None).map_err(|failure| match copy.keep() {
        Ok((_, kept)) => {
            let hint = format!("nothing was changed; your text is in {}", kept.display());
            failure.hint(hint)
        }
        Err(_) => failure,
    })
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
