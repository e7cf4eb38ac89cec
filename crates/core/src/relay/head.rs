//! The headers that are passed on, to the provider and back.
//!
//! Unknown headers are passed on unchanged, because providers and their programs add headers
//! freely. Never passed on: headers of one connection, headers that identify the caller (tokens,
//! cookies, addresses), and the choice of a paying account, because the provider key belongs to
//! this server. `accept-encoding` becomes `identity`, because the server reads the usage in the
//! answer.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::Refusal;

/// Headers of one connection, by RFC 9110 and by custom.
const HOP_BY_HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers that identify the caller, or that this server sets.
const OURS: &[&str] = &[
    "accept-encoding",
    "api-key",
    "authorization",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "openai-organization",
    "openai-project",
    "true-client-ip",
    "via",
    "x-api-key",
    "x-goog-api-key",
    "x-real-ip",
];

/// Prefixes of such headers.
const OUR_FAMILIES: &[&str] = &["x-forwarded-", "x-overmind-", "cf-connecting-"];

/// Headers of an answer that are not passed back, in addition to those of one connection.
const NOT_BACK: &[&str] =
    &["alt-svc", "clear-site-data", "set-cookie", "strict-transport-security", "www-authenticate"];

/// Headers that a request may contain only once, because servers read duplicates differently.
const ONCE: &[HeaderName] =
    &[header::CONTENT_TYPE, header::CONTENT_LENGTH, header::CONTENT_ENCODING, header::HOST];

/// Returns the headers of a request that are passed on.
///
/// # Errors
///
/// Returns what is wrong with a head that servers may read in different ways: two lengths or types,
/// a `Connection` that names headers of the message, or a compressed body, whose model cannot be
/// read.
pub fn request(headers: &HeaderMap) -> Result<HeaderMap, Refusal> {
    for name in ONCE {
        if headers.get_all(name).iter().nth(1).is_some() {
            return Err(Refusal::bad_request(format!("the request has more than one {name}")));
        }
    }
    if headers.contains_key(header::TRANSFER_ENCODING)
        && headers.contains_key(header::CONTENT_LENGTH)
    {
        let text = "the request has a content-length and a transfer-encoding";
        return Err(Refusal::bad_request(text));
    }
    for named in options(headers) {
        if !matches!(named.as_str(), "close" | "keep-alive" | "te" | "upgrade") {
            let text = format!(
                "the Connection header names `{named}`: headers that are meant for us alone cannot \
                 be named so"
            );
            return Err(Refusal::bad_request(text));
        }
    }
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING)
        && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        let text = "the body is compressed, and its model cannot be read: send it as it is, without \
                    content-encoding";
        return Err(Refusal::bad_request(text));
    }
    let mut passed = HeaderMap::with_capacity(headers.len() + 2);
    for (name, value) in headers {
        // Gateways before a server may read `_` as `-`.
        let plain = match name.as_str() {
            odd if odd.contains('_') => Cow::Owned(odd.replace('_', "-")),
            plain => Cow::Borrowed(plain),
        };
        let known = plain.as_ref();
        let dropped = HOP_BY_HOP.contains(&known)
            || OURS.contains(&known)
            || OUR_FAMILIES.iter().any(|family| known.starts_with(family));
        if !dropped {
            passed.append(name.clone(), value.clone());
        }
    }
    passed.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    own(&mut passed);
    Ok(passed)
}

/// Copies the values into one new allocation. As parsed, they refer to a connection's buffer, which
/// cannot be reused while they exist, so the connection would allocate another.
fn own(headers: &mut HeaderMap) {
    let mut all = Vec::with_capacity(headers.values().map(HeaderValue::len).sum());
    for value in headers.values() {
        all.extend_from_slice(value.as_bytes());
    }
    let mut all = Bytes::from(all);
    for value in headers.values_mut() {
        let copy = all.split_to(value.len());
        *value = HeaderValue::from_maybe_shared(copy).expect("what was a value is one");
    }
}

/// Returns the headers of an answer that are passed back. `as_it_is`: the body is unchanged, so its
/// length is passed back too.
pub fn response(headers: &HeaderMap, as_it_is: bool) -> HeaderMap {
    let named: Vec<String> = options(headers).collect();
    // Each answer of ours has three more.
    let mut passed = HeaderMap::with_capacity(headers.len() + 3);
    for (name, value) in headers {
        let known = name.as_str();
        let of_body = name == header::CONTENT_LENGTH || name == header::CONTENT_ENCODING;
        let dropped = HOP_BY_HOP.contains(&known)
            || NOT_BACK.contains(&known)
            || named.iter().any(|named| named == known)
            || (of_body && !as_it_is);
        if !dropped {
            passed.append(name.clone(), value.clone());
        }
    }
    passed
}

/// Returns the names in the `Connection` headers, in lower case.
fn options(headers: &HeaderMap) -> impl Iterator<Item = String> {
    let values = headers.get_all(header::CONNECTION).iter();
    values.flat_map(|value| {
        let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
        let names = text.split(',').map(|name| name.trim().to_owned());
        names.filter(|name| !name.is_empty()).collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_headers_do_not_keep_the_read_buffer_alive() {
        let buffer = Bytes::from(b"one two three".to_vec());
        let mut headers = HeaderMap::new();
        for (name, at) in [("x-one", 0..3), ("x-two", 4..7), ("x-two", 8..13)] {
            let value = HeaderValue::from_maybe_shared(buffer.slice(at)).unwrap();
            headers.append(name, value);
        }
        let passed = request(&headers).unwrap();
        drop(headers);
        assert!(buffer.is_unique());
        let two: Vec<_> = passed.get_all("x-two").iter().collect();
        assert_eq!(
            (passed["x-one"].as_bytes(), two.as_slice()),
            (&b"one"[..], &["two", "three"].map(HeaderValue::from_static).each_ref()[..])
        );
        assert_eq!(passed["accept-encoding"], "identity");
    }

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn unknown_headers_are_forwarded_and_headers_about_the_caller_are_not() {
        let passed = request(&map(&[
            ("anthropic-version", "2023-06-01"),
            ("anthropic-beta", "a,b"),
            ("anthropic-beta", "c"),
            ("anthropic-never-heard-of", "1"),
            ("x-stainless-lang", "python"),
            ("user-agent", "x"),
            ("x-base-url", "http://evil.example"),
            ("authorization", "Bearer ovs_1"),
            ("x-api-key", "ovs_1"),
            ("cookie", "a=b"),
            ("host", "localhost"),
            ("x-forwarded-for", "1.2.3.4"),
            ("forwarded", "for=1.2.3.4"),
            ("connection", "keep-alive"),
            ("keep-alive", "1"),
            ("te", "trailers"),
            ("openai-organization", "org-other"),
            ("accept-encoding", "gzip"),
            ("content-length", "3"),
        ]))
        .unwrap();
        let mut names: Vec<&str> = passed.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "accept-encoding",
                "anthropic-beta",
                "anthropic-never-heard-of",
                "anthropic-version",
                "user-agent",
                "x-base-url",
                "x-stainless-lang"
            ]
        );
        assert_eq!(passed.get_all("anthropic-beta").iter().count(), 2);
        assert_eq!(passed["accept-encoding"], "identity");
    }

    #[test]
    fn an_ambiguous_head_is_refused() {
        for (headers, says) in [
            (&[("content-length", "3"), ("content-length", "4")][..], "content-length"),
            (&[("content-length", "3"), ("transfer-encoding", "chunked")], "transfer-encoding"),
            (&[("content-type", "a/b"), ("content-type", "a/c")], "content-type"),
            (&[("connection", "close, anthropic-version")], "anthropic-version"),
            (&[("content-encoding", "zstd")], "compressed"),
        ] {
            let err = request(&map(headers)).unwrap_err();
            assert!(err.message.contains(says), "{err}");
        }
        request(&map(&[("connection", "Keep-Alive, Upgrade, TE"), ("upgrade", "h2c")])).unwrap();
    }

    #[test]
    fn response_headers_for_callers_are_kept_and_cookies_dropped() {
        let answered = map(&[
            ("retry-after", "7"),
            ("request-id", "req_1"),
            ("x-request-id", "req_2"),
            ("anthropic-ratelimit-requests-remaining", "3"),
            ("content-length", "3"),
            ("set-cookie", "a=b"),
            ("transfer-encoding", "chunked"),
            ("connection", "close, x-mine"),
            ("x-mine", "1"),
        ]);
        let names = |as_it_is| {
            let mut names: Vec<String> =
                response(&answered, as_it_is).keys().map(ToString::to_string).collect();
            names.sort_unstable();
            names.join(" ")
        };
        let kept = "anthropic-ratelimit-requests-remaining content-length request-id retry-after \
                    x-request-id";
        assert_eq!(names(true), kept);
        assert_eq!(names(false), kept.replace("content-length ", ""));
    }
}
