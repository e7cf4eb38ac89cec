//! Computes the URL of a call from the caller's input. Only the declaration decides host and key;
//! no input of a caller can change them.

use std::borrow::Cow;

use super::service::{AuthPlacement, Method, Service};
use super::{Secret, glob};

/// Longest path and longest query of a caller, in bytes.
pub const MAX_PATH: usize = 2048;
pub const MAX_QUERY: usize = 8192;

/// An allowed call without its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    pub method: Method,
    /// The whole URL.
    pub url: String,
    /// Host as in the URL, for the audit.
    pub host: String,
}

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the path {0}")]
    Path(&'static str),
    #[error("the query {0}")]
    Query(&'static str),
    #[error(
        "`{service}` does not allow {} {path}; allowed: {allowed}", method.as_str()
    )]
    NotAllowed { service: String, method: Method, path: String, allowed: String },
    #[error("the declaration of the service `{0}` is invalid")]
    Declaration(String),
}

/// How a header of the caller is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFate {
    /// It is sent to the service unchanged.
    Forward,
    /// It is removed, because it describes this connection or identifies the caller.
    Drop,
    /// The whole call is refused, because it contains characters that would end a header.
    Refuse,
}

/// A key in its place: one header, or a URL with one more parameter.
pub enum Placed {
    Header {
        name: String,
        /// Treat as secret.
        value: zeroize::Zeroizing<String>,
    },
    /// The whole URL with the key in it. Treat as secret.
    Url(zeroize::Zeroizing<String>),
    Nothing,
}

impl std::fmt::Debug for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header { name, .. } => f.debug_tuple("Header").field(name).finish(),
            Self::Url(_) => f.write_str("Url(…)"),
            Self::Nothing => f.write_str("Nothing"),
        }
    }
}

impl Service {
    /// Returns the URL of a call: `path` is below the base URL and begins with `/`; `query` has no
    /// `?`.
    ///
    /// Percent-encoding in a path is kept. A part is refused if it decodes to `/`, `\`, `.`, `..`,
    /// `%` or a control character. An empty part is refused unless it is the last one.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the text for the caller.
    pub fn resolve(
        &self,
        method: Method,
        path: &str,
        query: Option<&str>,
    ) -> Result<Resolved, Refused> {
        let base = self.base().map_err(|_| Refused::Declaration(self.name.clone()))?;
        let parts = parts(path)?;
        if let Some(query) = query {
            check_query(query, &self.auth)?;
        }
        let fits = self
            .allow
            .iter()
            .any(|allow| allow.methods.contains(&method) && glob::path(&allow.path, &parts));
        if !fits {
            return Err(Refused::NotAllowed {
                service: self.name.clone(),
                method,
                path: path.to_owned(),
                allowed: self.allowed(),
            });
        }
        let scheme = if base.https { "https" } else { "http" };
        let port = base.port.map(|port| format!(":{port}")).unwrap_or_default();
        let mut url = format!("{scheme}://{}{port}{}{path}", base.host, base.path);
        if let Some(query) = query.filter(|query| !query.is_empty()) {
            url.push('?');
            url.push_str(query);
        }
        Ok(Resolved { method, url, host: base.host.to_owned() })
    }

    /// Returns the allowed calls as a text.
    fn allowed(&self) -> String {
        let one = |allow: &super::service::Allow| {
            let methods: Vec<&str> = allow.methods.iter().map(|method| method.as_str()).collect();
            format!("{} {}", methods.join("|"), allow.path)
        };
        let all: Vec<String> = self.allow.iter().take(8).map(one).collect();
        let more = if self.allow.len() > 8 { ", …" } else { "" };
        format!("{}{more}", all.join(", "))
    }

    /// Puts the key in its place.
    pub fn place(&self, resolved: &Resolved, key: &Secret) -> Placed {
        let header = |name: &str, value: String| Placed::Header {
            name: name.to_owned(),
            value: value.into(),
        };
        match &self.auth {
            AuthPlacement::Bearer => header("authorization", format!("Bearer {}", key.expose())),
            AuthPlacement::Header(name) => header(name, key.expose().to_owned()),
            AuthPlacement::Basic(user) => {
                let pair = zeroize::Zeroizing::new(format!("{user}:{}", key.expose()));
                header("authorization", format!("Basic {}", base64(pair.as_bytes())))
            }
            AuthPlacement::Query(name) => {
                let sign = if resolved.url.contains('?') { '&' } else { '?' };
                let key = zeroize::Zeroizing::new(percent(key.expose()));
                Placed::Url(format!("{}{sign}{name}={}", resolved.url, &*key).into())
            }
            AuthPlacement::None => Placed::Nothing,
        }
    }

    /// Returns how a caller's header is handled for this service.
    pub fn header_fate(&self, name: &str, value: &[u8]) -> HeaderFate {
        if !super::service::is_token(name) || value.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)) {
            return HeaderFate::Refuse;
        }
        let own = self.headers.keys().any(|own| own.eq_ignore_ascii_case(name));
        match own || is_reserved(name) || self.is_auth_header(name) {
            true => HeaderFate::Drop,
            false => HeaderFate::Forward,
        }
    }
}

/// Headers that decide where a request goes or how it is framed.
pub(super) fn is_framing(name: &str) -> bool {
    const FRAMING: [&str; 14] = [
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
    ];
    FRAMING.iter().any(|own| own.eq_ignore_ascii_case(name)) || name.starts_with(':')
}

/// Headers of a caller that no service gets: framing, other methods than that of the request, and
/// everything that may say who somebody is.
pub(super) fn is_reserved(name: &str) -> bool {
    const IDENTITY: [&str; 23] = [
        "api-key",
        "authorization",
        "cf-connecting-ip",
        "cookie",
        "cookie2",
        "forwarded",
        "idempotency-key-scope",
        "origin",
        "referer",
        "true-client-ip",
        "x-api-key",
        "x-auth-token",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-goog-api-key",
        "x-host",
        "x-http-method",
        "x-http-method-override",
        "x-method-override",
        "x-real-ip",
        "x-subscription-token",
        "x-token",
    ];
    // Servers behind a gateway may read `_` as `-`.
    let own = name.to_ascii_lowercase().replace('_', "-");
    is_framing(&own)
        || IDENTITY.contains(&own.as_str())
        || own.starts_with("x-forwarded-")
        || own.starts_with("x-original-")
        || own.starts_with("x-rewrite-")
        || own.starts_with("x-overmind-")
        || own.starts_with("x-mesh-")
}

/// The decoded parts of a path.
fn parts(path: &str) -> Result<Vec<String>, Refused> {
    if path.len() > MAX_PATH {
        return Err(Refused::Path("is longer than 2048 bytes"));
    }
    let Some(rest) = path.strip_prefix('/') else {
        return Err(Refused::Path("does not begin with `/`: it is below the service's own URL"));
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.is_empty() {
        return match path {
            "/" => Ok(Vec::new()),
            _ => Err(Refused::Path("has an empty part (`//`)")),
        };
    }
    rest.split('/').map(part).collect()
}

fn part(raw: &str) -> Result<String, Refused> {
    if raw.is_empty() {
        return Err(Refused::Path("has an empty part (`//`)"));
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%".contains(&b);
    if !raw.bytes().all(plain) {
        return Err(Refused::Path("has a character that must be percent-encoded, or may not be"));
    }
    let decoded = decode(raw, false).ok_or(Refused::Path("is not well percent-encoded"))?;
    // Some servers remove parameters (`;…`) before they evaluate the dots.
    if matches!(decoded.split(';').next(), Some("." | "..")) {
        return Err(Refused::Path("leaves its place (`..`)"));
    }
    if decoded.chars().any(|c| c.is_control() || "/\\%?#".contains(c)) {
        return Err(Refused::Path("hides a separator or a control character"));
    }
    Ok(decoded.into_owned())
}

fn check_query(query: &str, auth: &AuthPlacement) -> Result<(), Refused> {
    if query.len() > MAX_QUERY {
        return Err(Refused::Query("is longer than 8192 bytes"));
    }
    // Without `'`: URL parsers encode it in a query, and the checked text must equal the sent one.
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&()*+,;=:@/?%[]|".contains(&b);
    if !query.bytes().all(plain) {
        return Err(Refused::Query("has a character that must be percent-encoded"));
    }
    for pair in query.split(['&', ';']) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let wrong = Refused::Query("is not well percent-encoded");
        let (Some(name), Some(value)) = (decode(name, true), decode(value, true)) else {
            return Err(wrong);
        };
        if name.contains(['\r', '\n', '\0']) || value.contains('\0') {
            return Err(Refused::Query("hides a control character"));
        }
        if let AuthPlacement::Query(own) = auth
            && name.trim().eq_ignore_ascii_case(own)
        {
            return Err(Refused::Query("names the parameter that contains the key"));
        }
    }
    Ok(())
}

/// `None` if an escape is invalid, or the result is not UTF-8.
fn decode(text: &str, plus: bool) -> Option<Cow<'_, str>> {
    let encoded = text.contains('%') || (plus && text.contains('+'));
    if !encoded {
        return Some(Cow::Borrowed(text));
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                u8::try_from(high * 16 + low).ok()?
            }
            b'+' if plus => b' ',
            byte => byte,
        });
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

/// `text` as the value of a parameter.
pub fn percent(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let at = |n: usize| u32::from(group.get(n).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for (n, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            match n <= group.len() {
                true => out.push(char::from(DIGITS[(bits >> shift & 63) as usize])),
                false => out.push('='),
            }
        }
    }
    out
}
