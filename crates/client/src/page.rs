//! Pages of lists, and how to get the next page.

use hyper::header::{HeaderMap, LINK};

/// A page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Path and query of the next page, for [`crate::Client::page_next`].
    pub next: Option<String>,
}

/// Returns the target of `Link: <…>; rel="next"`, if it is a path of this API.
pub(crate) fn next_of(headers: &HeaderMap) -> Option<String> {
    headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok()).find_map(|value| {
        value.split(',').find_map(|link| {
            let (target, params) = link.trim().strip_prefix('<')?.split_once('>')?;
            let next = params.split(';').any(|param| {
                let param = param.trim();
                param.eq_ignore_ascii_case("rel=\"next\"") || param.eq_ignore_ascii_case("rel=next")
            });
            // Only ever a path: a token must not follow a link to another server.
            (next && (target.starts_with("/api/") || target.starts_with("/mesh/")))
                .then(|| target.to_owned())
        })
    })
}

/// A path with a query, made of fixed parts and escaped segments.
pub(crate) struct TargetPath(String);

impl TargetPath {
    pub(crate) fn new(fixed: &str) -> Self {
        Self(fixed.to_owned())
    }

    /// Adds `/` and the escaped `segment`.
    pub(crate) fn segment(mut self, segment: &str) -> Self {
        self.0.push('/');
        escape(&mut self.0, segment);
        self
    }

    /// Adds fixed text.
    pub(crate) fn then(mut self, fixed: &str) -> Self {
        self.0.push_str(fixed);
        self
    }

    /// Adds `name=value` to the query, unless there is no value.
    pub(crate) fn query(mut self, name: &str, value: Option<impl ToString>) -> Self {
        if let Some(value) = value {
            self.0.push(if self.0.contains('?') { '&' } else { '?' });
            self.0.push_str(name);
            self.0.push('=');
            escape(&mut self.0, &value.to_string());
        }
        self
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Escapes all but the unreserved characters of RFC 3986.
fn escape(out: &mut String, text: &str) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn next(link: &'static str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(LINK, HeaderValue::from_static(link));
        next_of(&headers)
    }

    #[test]
    fn the_next_link_is_found_among_others() {
        let link = "</api/runs?cursor=a>; rel=\"prev\", </api/runs?cursor=b>; rel=\"next\"";
        assert_eq!(next(link).as_deref(), Some("/api/runs?cursor=b"));
        assert_eq!(next("</api/runs>; title=x; rel=next").as_deref(), Some("/api/runs"));
    }

    #[test]
    fn foreign_and_broken_next_links_are_ignored() {
        for link in [
            "<http://evil.example/api/runs>; rel=\"next\"",
            "<//evil.example>; rel=\"next\"",
            "</api/runs>",
            "</api/runs; rel=\"next\"",
            "",
            ">;<",
        ] {
            assert_eq!(next(link), None, "{link}");
        }
    }

    #[test]
    fn names_are_escaped_in_paths_and_queries() {
        let path = TargetPath::new("/api/agents").segment("a/b ?ü").then("/versions");
        let path = path.query("limit", Some(5)).query("cursor", None::<u8>).query("x", Some("a&b"));
        assert_eq!(path.as_str(), "/api/agents/a%2Fb%20%3F%C3%BC/versions?limit=5&x=a%26b");
    }
}
