//! The token in a request's headers. What it proves is the engine's business.

use axum::http::{HeaderMap, HeaderName, header};
use overmind_api::{ATTACH_TOKEN_PROTOCOL, ProblemKind};

use crate::fault::Fault;
use crate::host::single;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The header in which Google's clients send a key.
const GOOGLE_KEY: HeaderName = HeaderName::from_static("x-goog-api-key");
/// Longer than any token we make.
const MAX_TOKEN: usize = 512;

/// The request's token: `Authorization: Bearer …`, `x-api-key` or `x-goog-api-key`.
///
/// A browser can set neither on a WebSocket: there a protocol `overmind.token.…` will do, which only
/// a page that knows the token can offer.
///
/// Never from the query or a cookie: those end up in logs and are sent by foreign pages.
pub(crate) fn token(headers: &HeaderMap) -> Result<&str, Fault> {
    let bearer = match single(headers, &header::AUTHORIZATION)? {
        None => None,
        Some(text) => Some(
            bearer(text)
                .ok_or_else(|| refused("the Authorization header is not `Bearer` and a token"))?,
        ),
    };
    let all = [bearer, single(headers, &API_KEY)?, single(headers, &GOOGLE_KEY)?];
    let mut given = all.into_iter().flatten();
    let token = match given.next() {
        Some(token) if given.all(|other| other == token) => token,
        Some(_) => {
            return Err(refused(
                "the Authorization, x-api-key and x-goog-api-key headers carry different tokens",
            ));
        }
        None => protocol(headers).ok_or_else(|| refused("the request carries no token"))?,
    };
    let sound = !token.is_empty()
        && token.len() <= MAX_TOKEN
        && token.bytes().all(|b| b.is_ascii_graphic());
    if sound { Ok(token) } else { Err(refused("the token is empty, too long, or not plain text")) }
}

/// The token among the protocols of a WebSocket's handshake.
fn protocol(headers: &HeaderMap) -> Option<&str> {
    let upgrade = headers.get(header::UPGRADE)?.to_str().ok()?;
    if !upgrade.eq_ignore_ascii_case("websocket") {
        return None;
    }
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let mut offered = offered.filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(','));
    offered.find_map(|protocol| protocol.trim().strip_prefix(ATTACH_TOKEN_PROTOCOL))
}

fn bearer(text: &str) -> Option<&str> {
    let (scheme, token) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' '))
}

fn refused(why: &str) -> Fault {
    Fault::new(ProblemKind::Unauthenticated, why).with_hint(
        "send `Authorization: Bearer TOKEN`: the admin token is in the data directory, and \
            `overmind key create` creates others",
    )
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn read(headers: &[(&'static str, &str)]) -> Result<String, u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        token(&map).map(str::to_owned).map_err(|fault| fault.problem().status)
    }

    #[test]
    fn a_token_is_read_from_either_header() {
        for header in [
            ("authorization", "Bearer ovk_1"),
            ("authorization", "bearer ovk_1"),
            ("authorization", "BEARER  ovk_1"),
            ("x-api-key", "ovk_1"),
            ("x-goog-api-key", "ovk_1"),
        ] {
            assert_eq!(read(&[header]).as_deref(), Ok("ovk_1"), "{header:?}");
        }
        let both = [("authorization", "Bearer t"), ("x-api-key", "t")];
        assert_eq!(read(&both).as_deref(), Ok("t"));
    }

    #[test]
    fn a_browsers_token_is_read_from_websocket_protocols_only() {
        let protocol = ("sec-websocket-protocol", "overmind.attach.v1, overmind.token.ovk_1");
        assert_eq!(read(&[("upgrade", "websocket"), protocol]).as_deref(), Ok("ovk_1"));
        assert_eq!(read(&[protocol]), Err(401));
        let both = [("upgrade", "websocket"), protocol, ("authorization", "Bearer ovk_2")];
        assert_eq!(read(&both).as_deref(), Ok("ovk_2"), "a header is what counts");
        let without = ("sec-websocket-protocol", "overmind.attach.v1, overmind.token.");
        assert_eq!(read(&[("upgrade", "websocket"), without]), Err(401));
    }

    #[test]
    fn missing_and_ambiguous_tokens_are_401_or_400() {
        for headers in [
            &[][..],
            &[("authorization", "")],
            &[("authorization", "Bearer")],
            &[("authorization", "Bearer ")],
            &[("authorization", "Basic dXNlcjpwYXNz")],
            &[("authorization", "ovk_1")],
            &[("authorization", "Bearer a b")],
            &[("x-api-key", "")],
            &[("authorization", "Bearer a"), ("x-api-key", "b")],
            &[("x-api-key", "a"), ("x-goog-api-key", "b")],
        ] {
            assert_eq!(read(headers), Err(401), "{headers:?}");
        }
        let twice = [("authorization", "Bearer a"), ("authorization", "Bearer b")];
        assert_eq!(read(&twice), Err(400));
        assert_eq!(read(&[("x-api-key", &"x".repeat(513))]), Err(401));
    }

    proptest! {
        #[test]
        fn no_header_value_panics_and_tokens_are_plain_ascii(value in proptest::collection::vec(any::<u8>(), 0..64)) {
            let Ok(value) = HeaderValue::from_bytes(&value) else { return Ok(()) };
            let mut map = HeaderMap::new();
            map.insert(header::AUTHORIZATION, value);
            if let Ok(token) = token(&map) {
                prop_assert!(!token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic()));
            }
        }
    }
}
