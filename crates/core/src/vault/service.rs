//! Services: outside APIs to which one secret gives access, declared as data.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::SecretName;

/// Maximum number of services that are declared on top of the built-in ones.
pub const MAX_DECLARED: usize = 200;
/// Maximum number of rules, actions and fixed headers of a service, of each kind.
pub const MAX_ENTRIES: usize = 64;
/// Longest URL, path pattern or header value of a declaration, in bytes.
pub const MAX_TEXT: usize = 512;

/// An outside API, and how it is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Small letters, digits, `_` and `-`; a letter or digit first.
    pub name: String,
    /// `https://host[:port][/path]`, without user, query and fragment. Plain `http` only to this
    /// machine, or with `plaintext`.
    pub base_url: String,
    pub auth: AuthPlacement,
    /// The secret that contains its key.
    pub secret: SecretName,
    /// Whether it may be called without a key, as local servers often are.
    #[serde(default, skip_serializing_if = "is_default")]
    pub key_optional: bool,
    /// Whether plain `http` to another machine is allowed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub plaintext: bool,
    /// Whether its name may resolve to a private address.
    #[serde(default, skip_serializing_if = "is_default")]
    pub private: bool,
    /// The allowed calls; all others are refused. Paths are relative to the base URL.
    pub allow: Vec<Allow>,
    /// Headers that are sent with each call, and override the caller's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub limits: Limits,
    /// The format, when it is a model server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<LlmFormat>,
    /// Calls by name, for `POST /mesh/api`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The API format of a model server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LlmFormat {
    /// `/chat/completions`, `/responses`, `/embeddings`, `/models` below the base URL.
    Openai,
    /// `/v1/messages` and related paths below the base URL.
    Anthropic,
    /// Gemini's own format.
    Gemini,
}

impl LlmFormat {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }
}

/// The place of the key in a request. Written as `bearer`, `header NAME`, `query NAME`, `basic
/// USER` (the key is the password; USER may be empty) or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthPlacement {
    /// `Authorization: Bearer KEY`.
    Bearer,
    /// A header of its own, by its name in small letters.
    Header(String),
    /// A parameter of the query.
    Query(String),
    /// `Authorization: Basic`.
    Basic(String),
    /// The service has no key.
    None,
}

/// A text that is no [`AuthPlacement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is `bearer`, `header NAME`, `query NAME`, `basic USER` or `none`")]
pub struct AuthError;

impl FromStr for AuthPlacement {
    type Err = AuthError;

    fn from_str(text: &str) -> Result<Self, AuthError> {
        let (kind, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let rest = rest.trim();
        match kind {
            "bearer" if rest.is_empty() => Ok(Self::Bearer),
            "none" if rest.is_empty() => Ok(Self::None),
            "header" if is_token(rest) => Ok(Self::Header(rest.to_ascii_lowercase())),
            "query" if is_parameter(rest) => Ok(Self::Query(rest.to_owned())),
            "basic" if is_user(rest) => Ok(Self::Basic(rest.to_owned())),
            _ => Err(AuthError),
        }
    }
}

impl fmt::Display for AuthPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bearer => f.write_str("bearer"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::Query(name) => write!(f, "query {name}"),
            Self::Basic(user) if user.is_empty() => f.write_str("basic"),
            Self::Basic(user) => write!(f, "basic {user}"),
            Self::None => f.write_str("none"),
        }
    }
}

impl Serialize for AuthPlacement {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AuthPlacement {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    /// By its name in capitals.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Get, Self::Head, Self::Post, Self::Put, Self::Patch, Self::Delete]
            .into_iter()
            .find(|method| method.as_str() == text)
    }
}

/// A rule for allowed calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allow {
    pub methods: Vec<Method>,
    /// A pattern as [`super::glob::path`] reads it: `*` stops at `/`, `**` does not.
    pub path: String,
}

/// Limits of each call, and of the number of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    pub request_bytes: u64,
    pub response_bytes: u64,
    /// Time limit of the whole call. Model servers ignore it, because a stream may take any time.
    pub timeout_ms: u32,
    /// Maximum number of calls per minute of all sessions together; 0 means no limit.
    pub per_minute: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { request_bytes: 1 << 20, response_bytes: 4 << 20, timeout_ms: 60_000, per_minute: 0 }
    }
}

/// A named call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// `*` takes every name.
    pub name: String,
    pub method: Method,
    /// Below the base URL.
    pub path: String,
    pub params: Params,
}

/// The place of an action's parameters in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Params {
    Query,
    /// Returns a JSON object.
    Body,
}

/// A mistake in a declaration: where it is, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct BadService {
    pub field: &'static str,
    pub problem: String,
}

/// Scheme, host, port and path of a base URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base<'a> {
    pub https: bool,
    /// The written form: a name in small letters, an address, or an IPv6 address in brackets.
    pub host: &'a str,
    pub port: Option<u16>,
    /// Empty, or with a slash first and none last.
    pub path: &'a str,
}

impl Base<'_> {
    /// By its words: whether the host is this machine.
    pub fn is_loopback(&self) -> bool {
        let four = self.host.strip_prefix("127.").is_some_and(|rest| {
            rest.split('.').count() == 3 && rest.split('.').all(|part| part.parse::<u8>().is_ok())
        });
        four || matches!(self.host, "localhost" | "[::1]")
    }
}

impl Service {
    /// Takes the base URL apart.
    ///
    /// # Errors
    ///
    /// The problem. It is not quoted: it may hold a password.
    pub fn base(&self) -> Result<Base<'_>, BadService> {
        base(&self.base_url).map_err(|problem| bad("base_url", problem))
    }

    /// Whether this may be called at all.
    ///
    /// # Errors
    ///
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), BadService> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b);
        let first = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        if self.name.is_empty()
            || self.name.len() > super::MAX_NAME
            || !self.name.bytes().all(plain)
            || !self.name.bytes().next().is_some_and(first)
        {
            return Err(bad("name", "it has 1 to 64 small letters, digits, `_` and `-`"));
        }
        let base = self.base()?;
        if !base.https && !base.is_loopback() && !self.plaintext {
            let text = "plain http would show the key to the network: use https, or say \
                        `plaintext = true`";
            return Err(bad("base_url", text));
        }
        if self.allow.is_empty() {
            return Err(bad("allow", "nothing could be called: name methods and paths"));
        }
        if self.allow.len() > MAX_ENTRIES
            || self.actions.len() > MAX_ENTRIES
            || self.headers.len() > MAX_ENTRIES
        {
            return Err(bad("allow", format!("at most {MAX_ENTRIES} of each kind")));
        }
        for allow in &self.allow {
            if allow.methods.is_empty() {
                return Err(bad("allow", "a rule without a method allows nothing"));
            }
            if allow.path != "/" && !is_pattern(&allow.path) {
                return Err(bad("allow", "a path begins with `/` and has no `//`, `..`, `?`, `%`"));
            }
        }
        for action in &self.actions {
            let is_name = action.name == "*" || is_parameter(&action.name);
            if !is_name || !is_pattern(&action.path) || action.path.contains('*') {
                return Err(bad("actions", "an action has a name, and a path without patterns"));
            }
            if let Err(refused) = self.resolve(action.method, &action.path, None) {
                return Err(bad("actions", format!("`{}`: {refused}", action.name)));
            }
        }
        for (name, value) in &self.headers {
            let text = value.bytes().all(|b| (0x20..0x7f).contains(&b));
            if !is_token(name) || !text || value.len() > MAX_TEXT {
                return Err(bad(
                    "headers",
                    format!("`{name}` is not a header, or its value is odd"),
                ));
            }
            if super::resolve::is_reserved(name) || self.is_auth_header(name) {
                return Err(bad("headers", format!("`{name}` is not a declaration's to set")));
            }
        }
        if let AuthPlacement::Header(name) = &self.auth
            && super::resolve::is_framing(name)
        {
            return Err(bad("auth", format!("the key cannot be sent in `{name}`")));
        }
        let Limits { request_bytes, response_bytes, timeout_ms, per_minute: _ } = self.limits;
        let most = 64 << 20;
        if !(1..=most).contains(&request_bytes) || !(1..=most).contains(&response_bytes) {
            return Err(bad("limits", "bodies have 1 to 67108864 bytes"));
        }
        if !(100..=3_600_000).contains(&timeout_ms) {
            return Err(bad("limits", "timeout_ms is 100 to 3600000"));
        }
        Ok(())
    }

    /// Whether calls may go to loopback and private addresses.
    pub fn may_be_private(&self) -> bool {
        self.private || self.plaintext || self.base().is_ok_and(|base| base.is_loopback())
    }

    /// The action of this name.
    pub fn action(&self, name: &str) -> Option<&Action> {
        let exact = self.actions.iter().find(|action| action.name == name);
        exact.or_else(|| self.actions.iter().find(|action| action.name == "*"))
    }

    pub(super) fn is_auth_header(&self, name: &str) -> bool {
        matches!(&self.auth, AuthPlacement::Header(own) if own.eq_ignore_ascii_case(name))
    }
}

fn bad(field: &'static str, problem: impl Into<String>) -> BadService {
    BadService { field, problem: problem.into() }
}

fn base(url: &str) -> Result<Base<'_>, String> {
    if url.len() > MAX_TEXT {
        return Err(format!("it has more than {MAX_TEXT} bytes"));
    }
    let (https, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (None, Some(rest)) => (false, rest),
        (None, None) => return Err("it begins with https:// or http://".to_owned()),
    };
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    if authority.contains('@') {
        return Err("it holds a user name or password: those belong into a secret".to_owned());
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let wrong = || "the text in brackets is not an IPv6 address in its usual form";
            let (inside, after) = rest.split_once(']').ok_or_else(wrong)?;
            let six: core::net::Ipv6Addr = inside.parse().map_err(|_| wrong())?;
            // Others read the unusual forms as other texts, or as IPv4.
            if six.to_ipv4_mapped().is_some() || six.to_string() != inside {
                return Err(wrong().to_owned());
            }
            let port = after.strip_prefix(':').or(after.is_empty().then_some(""));
            (&authority[..inside.len() + 2], port)
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, Some("")),
        },
    };
    let Some(port) = port else { return Err("after the host comes `:PORT` or nothing".to_owned()) };
    let label = |part: &str| {
        !part.is_empty()
            && part.len() <= 63
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    if !host.starts_with('[') {
        if host.is_empty() || host.len() > 253 || !host.split('.').all(label) {
            return Err("its host is not a name in small letters or an address".to_owned());
        }
        // Names whose last label is a number are read as addresses by URL parsers, in odd ways.
        let numeric = host.rsplit('.').next().is_some_and(|last| {
            last.bytes().all(|b| b.is_ascii_digit())
                || last.strip_prefix("0x").is_some_and(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))
        });
        let written = host.parse::<core::net::Ipv4Addr>().is_ok();
        if numeric && !written {
            return Err("its host looks like an address and is none".to_owned());
        }
    }
    let port = match port {
        "" if authority.ends_with(':') => return Err("its port is empty".to_owned()),
        "" => None,
        digits if digits.len() <= 5 && digits.bytes().all(|b| b.is_ascii_digit()) => {
            match digits.parse::<u16>() {
                Ok(port) if port != 0 => Some(port),
                Ok(_) | Err(_) => return Err("its port is not 1 to 65535".to_owned()),
            }
        }
        _ => return Err("its port is not a number".to_owned()),
    };
    let path = path.strip_suffix('/').unwrap_or(path);
    if !path.is_empty() && (!is_pattern(path) || path.contains('*')) {
        return Err("its path has only plain parts: no `//`, `..`, `?`, `#`, `%` or `*`".to_owned());
    }
    Ok(Base { https, host, port, path })
}

/// `/a/b`, each part of plain characters and stars.
fn is_pattern(path: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~:@*".contains(&b);
    path.len() <= MAX_TEXT
        && path.strip_prefix('/').is_some_and(|rest| {
            rest.split('/').all(|part| {
                !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain)
            })
        })
}

/// A name of a header as HTTP spells them.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 100
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn is_parameter(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 100
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

fn is_user(text: &str) -> bool {
    text.len() <= 100 && text.bytes().all(|b| (0x21..0x7f).contains(&b) && b != b':')
}
