//! Reads `[canaries.NAME]`: canaries that are planted in addition to those of every session.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use overmind_core::canary::{Declared, FILE, Place, VARIABLE};

use super::error::ConfigError;
use super::layers::Layers;
use super::secret::Secret;

/// Maximum number of declared canaries: each call is searched for all of them.
const MOST: usize = 16;
/// Longest text of a file, in bytes.
const MAX_TEXT: usize = 4096;
/// Variables that commands have anyway.
const TAKEN: &[&str] = &["PATH", "HOME", "LANG", "TERM", "TMPDIR", "IFS", "PWD", VARIABLE];

/// A declared canary whose value was not looked up yet: only the server has the secrets.
#[derive(Clone, Debug)]
pub(super) struct DeclaredCanary {
    name: String,
    place: Place,
    /// The name of the secret that is its value.
    credential: Option<String>,
    text: Option<String>,
}

/// All declared canaries, each with a place of its own.
pub(super) fn declared(layers: &Layers) -> Result<Vec<DeclaredCanary>, ConfigError> {
    let mut names: Vec<&str> = layers
        .0
        .keys()
        .filter_map(|key| key.strip_prefix("canaries.")?.split_once('.').map(|(name, _)| name))
        .collect();
    names.dedup(); // the map is sorted
    if names.len() > MOST {
        return Err(ConfigError::Together {
            message: format!("[canaries.…] declares {} canaries", names.len()),
            hint: format!("at most {MOST} canaries can be declared"),
        });
    }
    let mut all: Vec<DeclaredCanary> = Vec::new();
    for name in names {
        let one = one(name, layers)?;
        let taken = all.iter().find(|other| same_place(&other.place, &one.place));
        if let Some(other) = taken {
            return Err(ConfigError::Together {
                message: format!(
                    "[canaries.{name}] uses the same place as another one: {}",
                    other.place
                ),
                hint: "give each canary its own variable or file; no file may be below another one"
                    .into(),
            });
        }
        all.push(one);
    }
    Ok(all)
}

/// The declared canaries with their values.
///
/// # Errors
///
/// [`ConfigError`] if a secret is missing, or ordinary text could contain it.
pub(super) fn resolved(
    declared: &[DeclaredCanary],
    credentials: &BTreeMap<String, Secret>,
) -> Result<Vec<Declared>, ConfigError> {
    let resolve = |one: &DeclaredCanary| {
        let value = match &one.credential {
            Some(secret) => Some(value_of(&one.name, secret, credentials)?),
            None => None,
        };
        Ok(Declared { place: one.place.clone(), value, text: one.text.clone() })
    };
    declared.iter().map(resolve).collect()
}

fn value_of(
    name: &str,
    secret: &str,
    credentials: &BTreeMap<String, Secret>,
) -> Result<String, ConfigError> {
    match credentials.get(secret) {
        Some(value) if Declared::can_be_found(value.expose()) => Ok(value.expose().to_owned()),
        Some(_) => {
            let (least, different) = Declared::LEAST;
            let what = format!("names the secret `{secret}`, which could occur in ordinary text");
            let hint = format!(
                "a canary has {least} letters and digits or more, {different} different ones, and \
                 no space; without `credential` each session gets a value of its own"
            );
            Err(wrong(name, "credential", &what, hint))
        }
        None => {
            let what = format!("names the secret `{secret}`, which is not set");
            let hint = format!("set OVERMIND_CRED_{secret} in the server's environment");
            Err(wrong(name, "credential", &what, hint))
        }
    }
}

fn wrong(name: &str, key: &str, what: &str, hint: String) -> ConfigError {
    ConfigError::Together { message: format!("`canaries.{name}.{key}` {what}"), hint }
}

fn one(name: &str, layers: &Layers) -> Result<DeclaredCanary, ConfigError> {
    let field = |field: &str| layers.text_of(&format!("canaries.{name}.{field}"));
    let wrong = |key: &str, what: &str, hint: String| wrong(name, key, what, hint);
    let place = match (field("env"), field("file")) {
        (Some(variable), None) if is_variable(variable) => Place::Env(variable.to_owned()),
        (Some(_), None) => {
            let hint = format!(
                "a variable's name has letters, digits and _, and is none of {} or of those that \
                 begin with OVERMIND_ or LD_",
                TAKEN.join(", ")
            );
            return Err(wrong("env", "cannot be a variable of commands", hint));
        }
        (None, Some(file)) if is_file(file) => Place::File(file.to_owned()),
        (None, Some(_)) => {
            let hint = format!("a file's path starts in the home, without .. , and is not {FILE}");
            return Err(wrong("file", "cannot be a file of the home", hint));
        }
        (Some(_), Some(_)) | (None, None) => {
            return Err(ConfigError::Together {
                message: format!("[canaries.{name}] needs `env` or `file`, and only one of them"),
                hint: "for example env = \"STRIPE_SECRET_KEY\", or file = \".vault-token\"".into(),
            });
        }
    };
    let text = field("text").map(str::to_owned);
    if let Some(text) = &text {
        let fits = matches!(place, Place::File(_)) && text.len() <= MAX_TEXT;
        if !fits || text.matches("{canary}").count() != 1 {
            let hint = format!(
                "it is what `file` says, in at most {MAX_TEXT} bytes, with {{canary}} once for the \
                 value"
            );
            return Err(wrong("text", "is not the text of a file with a canary", hint));
        }
    }
    let credential = field("credential").map(str::to_owned);
    Ok(DeclaredCanary { name: name.to_owned(), place, credential, text })
}

fn is_variable(name: &str) -> bool {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let reserved =
        TAKEN.contains(&name) || name.starts_with("OVERMIND_") || name.starts_with("LD_");
    plain && !reserved && name.starts_with(|first: char| !first.is_ascii_digit())
}

fn is_file(path: &str) -> bool {
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let own = same_place(&Place::File(path.to_owned()), &Place::File(FILE.to_owned()));
    plain
        && !own
        && !path.is_empty()
        && path.len() <= 255
        && !path.ends_with('/')
        && !path.contains('\0')
}

/// Whether both places conflict: they are equal, or one file would be the other's directory.
fn same_place(one: &Place, other: &Place) -> bool {
    match (one, other) {
        (Place::Env(one), Place::Env(other)) => one == other,
        (Place::File(one), Place::File(other)) => {
            let (one, other) = (Path::new(one), Path::new(other));
            one.starts_with(other) || other.starts_with(one)
        }
        (Place::Env(_), Place::File(_)) | (Place::File(_), Place::Env(_)) => false,
    }
}
