//! Forms, cookies, and the CSRF token of forms.

use http::{HeaderMap, header};
use subtle::ConstantTimeEq;

/// The fields of a query or of a form, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Parses `a=b&c=d`. Invalid UTF-8 is replaced.
    pub(crate) fn parse(text: &str) -> Self {
        let pair = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (decoded(name), decoded(value))
        };
        Self(text.split('&').filter(|part| !part.is_empty()).map(pair).collect())
    }

    /// Returns the field's first value, trimmed; empty if there is none.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.raw(name).trim()
    }

    /// Returns the field's first value, not trimmed.
    pub(crate) fn raw(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// Returns all values of the field.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.0.retain(|(key, _)| key != name);
        self
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

impl std::fmt::Display for Fields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, (key, value)) in self.iter().enumerate() {
            let and = if n > 0 { "&" } else { "" };
            write!(f, "{and}{}={}", encoded(key), encoded(value))?;
        }
        Ok(())
    }
}

pub(crate) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let mut ahead = rest.clone();
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                match (digit(ahead.next()), digit(ahead.next())) {
                    (Some(high), Some(low)) => {
                        bytes.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
                        rest = ahead;
                    }
                    _ => bytes.push(b'%'),
                }
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Encodes a value for a query or a path segment.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                out.push(char::from(byte));
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

/// Returns a path of this server for a redirect: it begins with one slash, and contains nothing
/// that a browser would read as another host. Any other text becomes `/`.
pub(crate) fn own_path(text: &str) -> &str {
    let plain = text.bytes().all(|b| b.is_ascii_graphic() && b != b'\\');
    if plain && text.starts_with('/') && !text.starts_with("//") { text } else { "/" }
}

/// Returns the cookie's name. It contains the port, because browsers share cookies between the
/// ports of a host.
pub(crate) fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let port = host.rsplit_once(':').map_or("", |(_, port)| port);
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    format!("overmind-{}", if digits { port } else { "0" })
}

/// Returns the value of the session cookie.
pub(crate) fn cookie(headers: &HeaderMap) -> Option<String> {
    let name = cookie_name(headers);
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|text| text.split(';')).filter_map(|part| part.split_once('='));
    let value = pairs.find(|(key, _)| key.trim() == name)?.1.trim();
    (!value.is_empty() && value.len() <= 256).then(|| value.to_owned())
}

/// Returns a `Set-Cookie` header that sets or removes a key.
pub(crate) fn set_cookie(headers: &HeaderMap, value: &str, seconds: u64, secure: bool) -> String {
    let secure = if secure { "; Secure" } else { "" };
    let name = cookie_name(headers);
    format!("{name}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}")
}

/// Returns the CSRF token of a form, which is derived from the cookie's key. No other site can read
/// that key.
pub(crate) fn csrf(secret: &str) -> String {
    let key = blake3::derive_key("overmind dashboard csrf 1", secret.as_bytes());
    blake3::Hash::from_bytes(key).to_hex().to_string()
}

/// Returns whether a form has the right CSRF token.
pub(crate) fn is_ours(secret: &str, given: &str) -> bool {
    csrf(secret).as_bytes().ct_eq(given.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn form_fields_are_decoded_as_they_were_encoded() {
        let fields = Fields::parse("a=1+2&b=%C3%BC%26%3D&c&=x&bad=%zz%4");
        assert_eq!(fields.get("a"), "1 2");
        assert_eq!(fields.get("b"), "ü&=");
        assert_eq!((fields.get("c"), fields.get("none")), ("", ""));
        assert_eq!(fields.get("bad"), "%zz%4");
        assert_eq!(Fields::parse(&fields.to_string()), fields);
        assert_eq!(fields.without("a").get("a"), "");
    }

    #[test]
    fn redirects_never_lead_to_another_host() {
        for good in ["/", "/runs/ses_1?x=1", "/a//b"] {
            assert_eq!(own_path(good), good);
        }
        for bad in ["", "//evil.example", "https://evil.example", "/\\evil", "/a b", "javascript:1"]
        {
            assert_eq!(own_path(bad), "/", "{bad}");
        }
    }

    #[test]
    fn the_cookie_is_selected_by_the_port() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost:8420"));
        assert_eq!(cookie(&headers), None);
        let text = "overmind-1=x; overmind-8420=ovk_1.9; a=b";
        headers.insert(header::COOKIE, HeaderValue::from_static(text));
        assert_eq!(cookie(&headers).as_deref(), Some("ovk_1.9"));
        let set = set_cookie(&headers, "k", 60, true);
        let want = "overmind-8420=k; HttpOnly; SameSite=Strict; Path=/; Max-Age=60; Secure";
        assert_eq!(set, want);
        assert!(!set_cookie(&headers, "k", 60, false).contains("Secure"));
    }

    #[test]
    fn a_form_is_accepted_only_with_the_token_of_its_cookie() {
        assert!(is_ours("a", &csrf("a")));
        assert!(!is_ours("a", &csrf("b")));
        assert!(!is_ours("a", ""));
    }
}
