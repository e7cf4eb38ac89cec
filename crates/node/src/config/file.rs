//! Writes the configuration file: one setting at a time, or a sample with all of them.
//!
//! The rest of the file, including comments, is unchanged. The file is replaced only after the
//! whole new text was parsed and is valid.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value};

use super::env::Env;
use super::error::ConfigError;
use super::layers::{self, Layers, Source};
use super::settings::{FAMILIES, Kind, SETTINGS, Setting};

/// The width of a comment in the sample, in columns.
const WIDTH: usize = 96;

/// The file's text; empty if there is no file.
///
/// # Errors
///
/// [`ConfigError::Read`] if it cannot be read.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

/// `text` with `key` set to `value`, in the form of a variable: lists are separated by commas.
/// [`replace`] checks whether it is valid.
///
/// # Errors
///
/// [`ConfigError::Syntax`] if `text` is not TOML, or has another value in place of a table.
pub fn set(text: &str, path: &Path, key: &str, value: &str) -> Result<String, ConfigError> {
    let kind = layers::known(key).map_or(Kind::Text, |setting| setting.kind);
    let value = value_of(kind, value);
    let mut document = parsed(text, path)?;
    let (tables, last) = key.rsplit_once('.').unwrap_or(("", key));
    let mut table: &mut dyn TableLike = document.as_table_mut();
    for name in tables.split('.').filter(|name| !name.is_empty()) {
        let inner = table.entry(name).or_insert_with(|| {
            let mut table = Table::new();
            table.set_implicit(true);
            Item::Table(table)
        });
        table = inner.as_table_like_mut().ok_or_else(|| ConfigError::Syntax {
            path: path.to_owned(),
            line: 1,
            message: format!("`{name}` is not a table, so it cannot contain `{key}`"),
        })?;
    }
    match table.get_mut(last).and_then(Item::as_value_mut) {
        Some(before) => {
            // A comment after the value is kept.
            let decor = before.decor().clone();
            *before = value;
            *before.decor_mut() = decor;
        }
        None => {
            table.insert(last, Item::Value(value));
        }
    }
    Ok(document.to_string())
}

/// `text` without `key`; `None` if it is not set there.
///
/// # Errors
///
/// [`ConfigError::Syntax`] if `text` is not TOML.
pub fn unset(text: &str, path: &Path, key: &str) -> Result<Option<String>, ConfigError> {
    let mut document = parsed(text, path)?;
    let (tables, last) = key.rsplit_once('.').unwrap_or(("", key));
    let mut table: &mut dyn TableLike = document.as_table_mut();
    for name in tables.split('.').filter(|name| !name.is_empty()) {
        match table.get_mut(name).and_then(Item::as_table_like_mut) {
            Some(inner) => table = inner,
            None => return Ok(None),
        }
    }
    Ok(table.remove(last).map(|_| document.to_string()))
}

/// Replaces the file by `text`, with mode 0600, if all of it is valid. `data` is the data
/// directory, which defaults refer to.
///
/// # Errors
///
/// [`ConfigError`] describes the error in the text, with its line, or why it could not be written.
pub fn replace(path: &Path, data: &Path, text: &str) -> Result<(), ConfigError> {
    let failed = |source| ConfigError::Data { attempt: "writing", path: path.to_owned(), source };
    // A link is kept, and its target is replaced.
    let place = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let directory = place.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory).map_err(failed)?;
    let mut draft = tempfile::Builder::new()
        .prefix(".overmind-toml-")
        .tempfile_in(directory)
        .map_err(failed)?;
    draft.write_all(text.as_bytes()).map_err(failed)?;
    draft.as_file().sync_all().map_err(failed)?;
    Layers::collect(data, draft.path(), &Env::default(), &[], directory)
        .map_err(|err| of_file(err, path))?;
    draft.persist(&place).map_err(|err| failed(err.error))?;
    Ok(())
}

/// Converts an error of a draft to an error of the file that it should replace.
fn of_file(err: ConfigError, file: &Path) -> ConfigError {
    let path = file.to_owned();
    match err {
        ConfigError::Read { source, .. } => ConfigError::Read { path, source },
        ConfigError::Syntax { line, message, .. } => ConfigError::Syntax { path, line, message },
        ConfigError::UnknownKey { key, line, suggestion, .. } => {
            ConfigError::UnknownKey { key, path, line, suggestion }
        }
        ConfigError::BadValue { key, at: Source::File { line, .. }, given, wanted } => {
            ConfigError::BadValue { key, at: Source::File { path, line }, given, wanted }
        }
        other => other,
    }
}

fn parsed(text: &str, path: &Path) -> Result<DocumentMut, ConfigError> {
    text.parse().map_err(|err: toml_edit::TomlError| {
        let at = err.span().map_or(0, |span| span.start);
        let before = text.get(..at).unwrap_or_default();
        let line = 1 + before.matches('\n').count();
        ConfigError::Syntax { path: path.to_owned(), line, message: err.message().to_owned() }
    })
}

/// A value in the form of the file. An invalid one stays a text, which is then refused.
fn value_of(kind: Kind, text: &str) -> Value {
    match kind {
        Kind::Whole { .. } => text.trim().parse::<i64>().map_or_else(|_| text.into(), Value::from),
        Kind::Seconds => match (text.trim().parse::<i64>(), text.trim().parse::<f64>()) {
            (Ok(whole), _) => whole.into(),
            (Err(_), Ok(part)) => part.into(),
            (Err(_), Err(_)) => text.into(),
        },
        Kind::List => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Value::Array(items.collect::<Array>())
        }
        Kind::Text
        | Kind::Lines
        | Kind::Path
        | Kind::PathOrNone
        | Kind::Choice(_)
        | Kind::Listen
        | Kind::Url
        | Kind::Secret => text.into(),
    }
}

/// A configuration file with every setting, its meaning and its default. All settings are comments,
/// so it changes nothing.
pub fn sample() -> String {
    let mut text =
        "# Every setting of Overmind with its default. Remove the # before a setting to change \
            it.\n\
                    # `overmind config show` shows the current values and their sources.\n"
            .to_owned();
    let table = |setting: &Setting| setting.key.split_once('.').map_or("", |(table, _)| table);
    let mut tables: Vec<&str> = SETTINGS.iter().map(table).collect();
    let mut seen = std::collections::BTreeSet::new();
    tables.retain(|table| seen.insert(*table));
    for name in tables {
        let _ = write!(text, "\n[{name}]\n");
        for setting in SETTINGS.iter().filter(|setting| table(setting) == name) {
            one(&mut text, setting.key.strip_prefix(name).unwrap_or_default(), setting);
        }
    }
    for (family, fields) in FAMILIES {
        let _ = write!(text, "\n# [{family}.NAME]\n");
        for setting in *fields {
            one(&mut text, setting.key, setting);
        }
    }
    text
}

/// The lines of a setting: its meaning, and its form.
fn one(text: &mut String, key: &str, setting: &Setting) {
    let key = key.trim_start_matches('.');
    let mut line = String::from("#");
    for word in setting.help.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(text, "{line}");
            line = "#".to_owned();
        }
        line.push(' ');
        line.push_str(word);
    }
    if let Kind::Choice(choices) = setting.kind {
        line.push_str(": ");
        line.push_str(&choices.join(", "));
    }
    let _ = writeln!(text, "{line}");
    if let Some(name) = setting.env {
        let _ = writeln!(text, "# In the environment: {name}");
    }
    let value = setting.default.map(|default| value_of(setting.kind, default));
    let _ = match value {
        Some(value) => writeln!(text, "#{key} = {value}"),
        None => writeln!(text, "#{key} =    # not set"),
    };
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const PATH: &str = "/etc/overmind.toml";

    fn with(text: &str, key: &str, value: &str) -> String {
        set(text, Path::new(PATH), key, value).unwrap()
    }

    #[test]
    fn a_setting_is_written_to_its_table_and_the_rest_is_unchanged() {
        let text = "# mine\n[server] # here\nlisten = \"none\" # no port\n";
        let changed = with(text, "server.listen", "127.0.0.1:1");
        assert_eq!(changed, "# mine\n[server] # here\nlisten = \"127.0.0.1:1\" # no port\n");
        let more = with(&changed, "log.level", "debug");
        assert!(
            more.starts_with(&changed) && more.contains("[log]\nlevel = \"debug\"\n"),
            "{more}"
        );
        assert_eq!(with("", "store.retention_days", "7"), "[store]\nretention_days = 7\n");
        assert_eq!(
            with("", "providers.lab.base_url", "http://a"),
            "[providers.lab]\nbase_url = \"http://a\"\n"
        );
        let list = with("", "tools.allow_hosts", "a.example, b.example");
        assert_eq!(list, "[tools]\nallow_hosts = [\"a.example\", \"b.example\"]\n");
        let path = Path::new(PATH);
        assert_eq!(unset(&more, path, "log.level").unwrap().unwrap().matches("level").count(), 0);
        assert_eq!(unset(&more, path, "log.format").unwrap(), None);
        let err = set("server = 1\n", path, "server.listen", "none").unwrap_err();
        assert!(err.to_string().contains("`server` is not a table"), "{err}");
        let err = set("a = 1\nb = \n", path, "server.listen", "none").unwrap_err();
        assert!(err.to_string().starts_with("/etc/overmind.toml:2 is not TOML"), "{err}");
    }

    #[test]
    fn only_a_valid_text_replaces_the_file_which_stays_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overmind.toml");
        replace(&path, dir.path(), "[log]\nlevel = \"debug\"\n").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for (wrong, told) in [
            ("[log]\nlevle = \"debug\"\n", "overmind.toml:2: there is no setting `log.levle`"),
            ("[store]\nretention_days = \"x\"\n", "overmind.toml:2 is `x`; it must be a whole"),
            ("[log\n", "overmind.toml:1 is not TOML"),
        ] {
            let err = replace(&path, dir.path(), wrong).unwrap_err().to_string();
            assert!(err.contains(told), "{err}");
        }
        assert_eq!(read(&path).unwrap(), "[log]\nlevel = \"debug\"\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no draft stays");
    }

    #[test]
    fn the_sample_file_contains_every_setting_with_its_default() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overmind.toml");
        let collect = || {
            let none = Env::default();
            Layers::collect(dir.path(), &path, &none, &[], dir.path()).unwrap()
        };
        let defaults = collect();
        replace(&path, dir.path(), &sample()).unwrap();
        assert!(collect().0.values().all(|placed| placed.source == Source::Default));
        // Without the comment signs, settings with a default have exactly that default.
        let set = |line: &str| {
            let line = line.strip_prefix('#').filter(|line| !line.starts_with(' ')).unwrap_or(line);
            let line = line.replace("<data>", &dir.path().to_string_lossy());
            if line.ends_with("# not set") { String::new() } else { line }
        };
        let text = sample();
        let families = text.find("\n# [").unwrap();
        let lines: Vec<String> = text[..families].lines().map(set).collect();
        replace(&path, dir.path(), &lines.join("\n")).unwrap();
        let said = collect();
        for setting in SETTINGS {
            let key = setting.key;
            let (_, last) = key.split_once('.').unwrap();
            assert!(text.contains(&format!("\n#{last} =")), "{key}");
            assert_eq!(said.get(key), defaults.get(key), "{key}");
            let from_file =
                matches!(&said.0.get(key).map(|it| &it.source), Some(Source::File { .. }));
            assert_eq!(from_file, setting.default.is_some(), "{key}");
        }
        for (family, fields) in FAMILIES {
            let part = text.split(&format!("[{family}.NAME]")).nth(1).unwrap();
            assert!(fields.iter().all(|field| part.contains(&format!("\n#{} =", field.key))));
        }
    }
}
