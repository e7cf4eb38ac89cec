//! Merges the layers of settings, defaults < file < environment < flags; each value remembers its
//! source.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use overmind_core::nearest::nearest;
use toml::de::{DeTable, DeValue};

use super::env::{self, Env};
use super::error::ConfigError;
use super::settings::{self, Kind, Setting};

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    File { path: PathBuf, line: usize },
    Env(&'static str),
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// A checked value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    Text(String),
    Whole(u64),
    List(Vec<String>),
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Whole(number) => number.fmt(f),
            Self::List(items) => f.write_str(&items.join(",")),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    pub value: Given,
    pub source: Source,
}

/// All values, by key. Keys of named tables (`providers.<name>.<field>`) come only from the file.
#[derive(Clone, Debug, Default)]
pub struct Layers(pub BTreeMap<String, Placed>);

/// The directory to which relative paths of a value refer.
struct Base<'a> {
    directory: &'a Path,
    home: Option<&'a Path>,
}

impl Layers {
    /// Merges the four layers. `flags` are `(key, flag's name, value)`; relative paths outside of
    /// the file refer to `cwd`. A missing file counts as empty.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the key, its place and valid values.
    pub fn collect(
        data: &Path,
        file: &Path,
        env: &Env,
        flags: &[(&'static str, &'static str, String)],
        cwd: &Path,
    ) -> Result<Self, ConfigError> {
        let home = env.path(env::HOME);
        let here = Base { directory: cwd, home: home.as_deref() };
        let mut layers = Self::default();
        for setting in settings::SETTINGS {
            if let Some(default) = setting.default {
                let text = default.replace("<data>", &data.to_string_lossy());
                layers.text(setting.key, setting.kind, &text, Source::Default, &here)?;
            }
        }
        layers.file(file, home.as_deref())?;
        for setting in settings::SETTINGS {
            let Some(name) = setting.env else { continue };
            if let Some(text) = env.text(name) {
                layers.text(setting.key, setting.kind, text, Source::Env(name), &here)?;
            }
        }
        // The two parts of the address are used only if the whole was not given.
        let (host, port) = (env.text(env::HOST), env.text(env::PORT));
        if env.text(env::LISTEN).is_none() && (host.is_some() || port.is_some()) {
            let name = if host.is_some() { env::HOST } else { env::PORT };
            let host = host.unwrap_or("127.0.0.1");
            let bare_v6 = host.contains(':') && !host.starts_with('[');
            let host = if bare_v6 { format!("[{host}]") } else { host.to_owned() };
            let text = format!("{host}:{}", port.unwrap_or("8420"));
            layers.text(settings::LISTEN, Kind::Listen, &text, Source::Env(name), &here)?;
        }
        for (key, flag, text) in flags {
            let setting = settings::by_key(key).expect("flags name keys of the table");
            layers.text(key, setting.kind, text, Source::Flag(flag), &here)?;
        }
        Ok(layers)
    }

    pub fn get(&self, key: &str) -> Option<&Given> {
        self.0.get(key).map(|placed| &placed.value)
    }

    pub fn text_of(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Given::Text(text) => Some(text),
            Given::Whole(_) | Given::List(_) => None,
        }
    }

    pub fn whole_of(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Given::Whole(number) => Some(*number),
            Given::Text(_) | Given::List(_) => None,
        }
    }

    pub fn list_of(&self, key: &str) -> Vec<String> {
        match self.get(key) {
            Some(Given::List(items)) => items.clone(),
            Some(Given::Text(_) | Given::Whole(_)) | None => Vec::new(),
        }
    }

    /// Stores a value that is written as text: a default, a variable or a flag.
    fn text(
        &mut self,
        key: &str,
        kind: Kind,
        text: &str,
        source: Source,
        base: &Base<'_>,
    ) -> Result<(), ConfigError> {
        let value = match kind {
            Kind::Whole { .. } => text.trim().parse().map(Given::Whole).ok(),
            Kind::List => Some(Given::List(
                text.split(',')
                    .map(str::trim)
                    .filter(|item| !item.is_empty())
                    .map(str::to_owned)
                    .collect(),
            )),
            Kind::Text
            | Kind::Lines
            | Kind::Path
            | Kind::PathOrNone
            | Kind::Choice(_)
            | Kind::Listen
            | Kind::Seconds
            | Kind::Url
            | Kind::Secret => Some(Given::Text(text.to_owned())),
        };
        self.put(key, kind, value, text, source, base)
    }

    fn put(
        &mut self,
        key: &str,
        kind: Kind,
        value: Option<Given>,
        shown: &str,
        source: Source,
        base: &Base<'_>,
    ) -> Result<(), ConfigError> {
        let value = value.and_then(|value| fit(kind, value, base)).ok_or_else(|| {
            // An error about a secret does not contain it.
            let given =
                if kind == Kind::Secret { "…".into() } else { shown.chars().take(80).collect() };
            ConfigError::BadValue {
                key: key.to_owned(),
                at: source.clone(),
                given,
                wanted: wanted(kind),
            }
        })?;
        self.0.insert(key.to_owned(), Placed { value, source });
        Ok(())
    }

    fn file(&mut self, path: &Path, home: Option<&Path>) -> Result<(), ConfigError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(ConfigError::Read { path: path.to_owned(), source }),
        };
        let line_of = |at: usize| {
            1 + text.as_bytes()[..at.min(text.len())].iter().filter(|b| **b == b'\n').count()
        };
        let table = DeTable::parse(&text).map_err(|err| ConfigError::Syntax {
            path: path.to_owned(),
            line: line_of(err.span().map_or(0, |span| span.start)),
            message: err.message().to_owned(),
        })?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        let base = Base { directory, home };
        let mut flat = Vec::new();
        flatten("", table.get_ref(), &mut flat);
        for (key, at, value) in flat {
            let line = line_of(at);
            let setting = known(&key).ok_or_else(|| unknown_key(&key, path, line))?;
            if setting.kind == Kind::Secret {
                private(path, &key)?;
            }
            let (value, shown) = from_toml(setting.kind, value);
            let source = Source::File { path: path.to_owned(), line };
            self.put(&key, setting.kind, value, &shown, source, &base)?;
        }
        Ok(())
    }
}

/// The values of a table, as dotted keys with the offset of each key.
fn flatten<'t, 'i>(
    prefix: &str,
    table: &'t DeTable<'i>,
    into: &mut Vec<(String, usize, &'t DeValue<'i>)>,
) {
    for (name, value) in table {
        let key = if prefix.is_empty() {
            name.get_ref().to_string()
        } else {
            format!("{prefix}.{}", name.get_ref())
        };
        match value.get_ref() {
            DeValue::Table(inner) => flatten(&key, inner, into),
            leaf => into.push((key, name.span().start, leaf)),
        }
    }
}

/// The definition of a key in the file.
pub fn known(key: &str) -> Option<&'static Setting> {
    match of_family(key) {
        Some((_, fields, name, field)) => {
            let plain = !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
            fields.iter().find(|setting| plain && setting.key == field)
        }
        None => settings::by_key(key),
    }
}

/// Splits a key such as `providers.NAME.FIELD` into the family, its fields, the name and the field.
fn of_family(key: &str) -> Option<(&'static str, &'static [Setting], &str, &str)> {
    let (family, rest) = key.split_once('.')?;
    let (family, fields) = settings::FAMILIES.iter().find(|(name, _)| *name == family)?;
    let (name, field) = rest.split_once('.')?;
    Some((family, fields, name, field))
}

/// A similar key that may have been meant by an unknown one.
pub fn meant(key: &str) -> Option<String> {
    match of_family(key) {
        Some((family, fields, name, field)) => {
            let fields = fields.iter().map(|setting| setting.key);
            nearest(field, fields).map(|near| format!("{family}.{name}.{near}"))
        }
        None => {
            let keys = settings::SETTINGS.iter().map(|setting| setting.key);
            // A key without its table (`listen`), or in another table, is the most common error.
            let last = key.rsplit('.').next().unwrap_or(key);
            let tail = |known: &str| known.rsplit('.').next() == Some(last);
            let whole = keys.clone().find(|known| tail(known));
            let near = whole.or_else(|| nearest(key, keys.clone())).or_else(|| {
                let tails = keys.clone().filter_map(|known| known.rsplit('.').next());
                let near = nearest(last, tails)?;
                keys.clone().find(|known| known.rsplit('.').next() == Some(near))
            });
            near.map(str::to_owned)
        }
    }
}

fn unknown_key(key: &str, path: &Path, line: usize) -> ConfigError {
    let suggestion = meant(key);
    ConfigError::UnknownKey { key: key.to_owned(), path: path.to_owned(), line, suggestion }
}

/// Refuses a secret in a file that others can read.
fn private(path: &Path, key: &str) -> Result<(), ConfigError> {
    use std::os::unix::fs::PermissionsExt as _;
    let read = |source| ConfigError::Read { path: path.to_owned(), source };
    let mode = std::fs::metadata(path).map_err(read)?.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(ConfigError::OpenSecret { key: key.to_owned(), path: path.to_owned(), mode })
}

/// The value if its TOML type is right, and its text for an error otherwise.
fn from_toml(kind: Kind, value: &DeValue<'_>) -> (Option<Given>, String) {
    let shown = match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(yes) => yes.to_string(),
        DeValue::Datetime(at) => at.to_string(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    };
    let given = match (kind, value) {
        (Kind::Whole { .. }, DeValue::Integer(number)) => {
            u64::from_str_radix(&number.as_str().replace('_', ""), number.radix())
                .ok()
                .map(Given::Whole)
        }
        (Kind::Seconds, DeValue::Integer(_) | DeValue::Float(_)) => {
            Some(Given::Text(shown.clone()))
        }
        (Kind::List, DeValue::Array(items)) => items
            .iter()
            .map(|item| item.get_ref().as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>()
            .map(Given::List),
        (Kind::Whole { .. } | Kind::List | Kind::Seconds, _) => None,
        (Kind::Choice(choices), DeValue::Boolean(yes)) => {
            let word = choices.iter().find(|word| flag(word) == Some(*yes));
            word.map(|word| Given::Text((*word).to_owned()))
        }
        (_, DeValue::String(text)) => Some(Given::Text(text.to_string())),
        (_, _) => None,
    };
    (given, shown)
}

/// The TOML boolean for a word of a choice that has two such words.
fn flag(word: &str) -> Option<bool> {
    match word {
        "true" | "yes" | "on" | "enabled" => Some(true),
        "false" | "no" | "off" | "disabled" => Some(false),
        _ => None,
    }
}

/// The value in the program's form, if it is valid.
fn fit(kind: Kind, value: Given, base: &Base<'_>) -> Option<Given> {
    match (kind, &value) {
        (Kind::Whole { min, max }, Given::Whole(number)) => {
            (min..=max).contains(number).then_some(value)
        }
        (Kind::List, Given::List(_)) => Some(value),
        (Kind::PathOrNone, Given::Text(text)) if text == "none" => Some(value),
        (Kind::Path | Kind::PathOrNone, Given::Text(text)) => absolute(text, base).map(Given::Text),
        (Kind::Listen, Given::Text(text)) => {
            (text == "none" || listen_address(text).is_some()).then_some(value)
        }
        (Kind::Seconds, Given::Text(text)) => {
            let seconds: f64 = text.trim().parse().ok()?;
            (0.001..=86_400.0).contains(&seconds).then_some(value)
        }
        (Kind::Choice(choices), Given::Text(text)) => {
            choices.contains(&text.as_str()).then_some(value)
        }
        (Kind::Url, Given::Text(text)) => {
            let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
            rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/')).then_some(value)
        }
        (Kind::Lines, Given::Text(text)) => (!text.trim().is_empty()).then_some(value),
        (Kind::Text | Kind::Secret, Given::Text(text)) => {
            // A line break in a key is a copying error that no provider would explain.
            (!text.trim().is_empty() && !text.contains('\n'))
                .then(|| Given::Text(text.trim().to_owned()))
        }
        _ => None,
    }
}

/// Parses `localhost:8420`, `127.0.0.1:8420` or `[::1]:8420`. Names other than `localhost` are
/// refused, because their addresses may change while the server runs.
pub fn listen_address(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix("localhost:") {
        Some(port) => Some(SocketAddr::from(([127, 0, 0, 1], port.parse().ok()?))),
        None => text.parse().ok(),
    }
}

fn absolute(text: &str, base: &Base<'_>) -> Option<String> {
    if text.is_empty() {
        return None;
    }
    let path = match (text.strip_prefix("~/"), base.home) {
        (Some(rest), Some(home)) => home.join(rest),
        (Some(_), None) => return None,
        (None, _) => base.directory.join(text),
    };
    std::path::absolute(path).ok()?.to_str().map(str::to_owned)
}

/// Describes valid values in words.
fn wanted(kind: Kind) -> String {
    match kind {
        Kind::Text | Kind::Secret => "a text of one line that is not blank".into(),
        Kind::Lines => "a text that is not blank".into(),
        Kind::Path => "a path".into(),
        Kind::PathOrNone => "a path, or `none`".into(),
        Kind::Whole { min, max } => format!("a whole number from {min} to {max}"),
        Kind::Choice(choices) => format!("one of {}", choices.join(", ")),
        Kind::Seconds => "a number of seconds, more than 0 and at most 86400".into(),
        Kind::Listen => "an address such as 127.0.0.1:8420 or [::1]:8420, or `none`".into(),
        Kind::Url => "a URL that begins with http:// or https://".into(),
        Kind::List => "an array of texts (in a variable: separated by commas)".into(),
    }
}
