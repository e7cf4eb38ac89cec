//! Lists: bare arrays, with the way to the next page in a `Link` header.

use std::fmt;
use std::str::FromStr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use overmind_api::{DEFAULT_LIMIT, MAX_LIMIT};
use overmind_core::store::Page;
use serde::Serialize;

use crate::extract::Query;
use crate::fault::Fault;

/// Longest cursor of the kind [`Hex`]: more than any name or key takes.
const MAX_HEX: usize = 2048;

/// `limit` and `cursor` of a list.
pub(crate) struct Window<Cursor> {
    /// 1..=1000.
    pub(crate) limit: u32,
    pub(crate) after: Option<Cursor>,
}

impl<Cursor: FromStr> Window<Cursor> {
    /// Takes both from the query.
    ///
    /// # Errors
    ///
    /// 422 for a limit outside 1..=1000, and for a cursor that no page has handed out.
    pub(crate) fn take(query: &mut Query) -> Result<Self, Fault> {
        let wanted = format!("a whole number from 1 to {MAX_LIMIT}");
        let limit = query.take_parsed("limit", &wanted, |text| {
            text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit))
        })?;
        let wanted = "the cursor of an earlier page's Link header";
        let after = query.take_parsed("cursor", wanted, |text| text.parse().ok())?;
        Ok(Self { limit: limit.unwrap_or(DEFAULT_LIMIT), after })
    }
}

/// A list without filters.
impl<S: Send + Sync, Cursor: FromStr> FromRequestParts<S> for Window<Cursor> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        let mut query = Query::parse(parts.uri.query().unwrap_or_default())?;
        let window = Self::take(&mut query)?;
        query.finish()?;
        Ok(window)
    }
}

/// A text as a cursor: its bytes in hexadecimal, so that it needs no escaping.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hex(pub(crate) String);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Hex {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits = text.bytes().all(|b| b.is_ascii_hexdigit());
        if text.len() > MAX_HEX || !text.len().is_multiple_of(2) || !digits {
            return Err(());
        }
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| ());
        let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect::<Result<_, ()>>()?;
        String::from_utf8(bytes).map(Self).map_err(|_| ())
    }
}

impl<Cursor> From<Window<Cursor>> for Page<Cursor> {
    fn from(window: Window<Cursor>) -> Self {
        Self { limit: window.limit, after: window.after }
    }
}

/// The response of a list. A full page has a next one (which may turn out empty).
pub(crate) fn list<T, Row>(
    uri: &Uri,
    limit: u32,
    rows: Vec<T>,
    cursor: impl FnOnce(&T) -> String,
    show: impl FnMut(T) -> Row,
) -> Response
where
    Row: Serialize,
{
    let full = u32::try_from(rows.len()).is_ok_and(|n| n >= limit);
    let next = rows.last().filter(|_| full).map(cursor);
    let rows: Vec<Row> = rows.into_iter().map(show).collect();
    let mut response = json(&rows);
    if let Some(link) = next.and_then(|cursor| next_link(uri, &cursor)) {
        response.headers_mut().insert(header::LINK, link);
    }
    response
}

/// A JSON response.
pub(crate) fn json<T: Serialize>(value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let kind = HeaderValue::from_static("application/json");
            ([(header::CONTENT_TYPE, kind)], body).into_response()
        }
        Err(err) => Fault::internal("an answer could not be written as JSON", &err).into_response(),
    }
}

/// The same path and query with another cursor. Relative, so it is right behind any proxy.
pub(crate) fn next_link(uri: &Uri, cursor: &str) -> Option<HeaderValue> {
    let mut target = format!("{}?", uri.path());
    for pair in uri.query().unwrap_or_default().split('&') {
        if !pair.is_empty() && pair != "cursor" && !pair.starts_with("cursor=") {
            target.push_str(pair);
            target.push('&');
        }
    }
    // Cursors are ids and numbers: nothing in them needs escaping in a query.
    debug_assert!(cursor.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'));
    HeaderValue::from_str(&format!("<{target}cursor={cursor}>; rel=\"next\"")).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_text_cursor_round_trips_and_no_text_panics(text in ".{0,60}") {
            let cursor = Hex(text.clone()).to_string();
            prop_assert!(cursor.bytes().all(|b| b.is_ascii_alphanumeric()));
            prop_assert_eq!(cursor.parse::<Hex>(), Ok(Hex(text.clone())));
            let _ = text.parse::<Hex>();
        }
    }

    #[test]
    fn invalid_text_cursors_are_refused() {
        for bad in ["f", "+f", "zz", "ff", "\u{fc}", &"00".repeat(1025)] {
            assert_eq!(bad.parse::<Hex>(), Err(()), "{bad}");
        }
    }

    #[test]
    fn limits_and_cursors_are_checked() {
        let window = |text: &str| {
            let mut query = Query::parse(text).unwrap();
            Window::<u64>::take(&mut query)
                .map(|window| (window.limit, window.after))
                .map_err(|fault| fault.problem().error.clone())
        };
        assert_eq!(window(""), Ok((100, None)));
        assert_eq!(window("limit=1000&cursor=7"), Ok((1000, Some(7))));
        for bad in ["0", "1001", "-1", "ten", "", "1.0", "99999999999"] {
            let error = window(&format!("limit={bad}")).unwrap_err();
            assert_eq!(error, format!("limit: must be a whole number from 1 to 1000, not `{bad}`"));
        }
        assert!(window("cursor=x").unwrap_err().starts_with("cursor: must be the cursor"));
    }

    #[test]
    fn a_full_page_links_to_the_next_and_keeps_the_query() {
        let uri = Uri::from_static("/api/runs?status=failed&cursor=1&limit=2");
        let response = list(&uri, 2, vec![9, 8], u32::to_string, |n| n);
        assert_eq!(
            response.headers()["link"],
            "</api/runs?status=failed&limit=2&cursor=8>; rel=\"next\""
        );
        let response = list(&uri, 3, vec![9, 8], u32::to_string, |n| n);
        assert!(response.headers().get("link").is_none());
        let response = list(&uri, 3, Vec::new(), u32::to_string, |n| n);
        assert!(response.headers().get("link").is_none());
    }
}
