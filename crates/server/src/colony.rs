//! The colony that a request is for, from its header.

use axum::http::{HeaderMap, HeaderName};
use overmind_api::COLONY_HEADER;
use overmind_engine::ColonyWish;

use crate::fault::Fault;
use crate::host::single;

/// The value for all colonies that the caller may reach.
const ALL: &str = "*";
/// Longest name that is looked up: that of a resource.
const LONGEST: usize = 253;

/// The colony that the header `overmind-colony` names.
///
/// # Errors
///
/// 400 for two headers, 422 for a value that no colony can have as its name.
pub(crate) fn wish(headers: &HeaderMap) -> Result<ColonyWish, Fault> {
    const HEADER: HeaderName = HeaderName::from_static(COLONY_HEADER);
    Ok(match single(headers, &HEADER)? {
        None | Some("") => ColonyWish::Own,
        Some(ALL) => ColonyWish::All,
        Some(name) if name.len() > LONGEST => {
            let text = format!("the header {COLONY_HEADER} has more than {LONGEST} characters");
            return Err(Fault::invalid(COLONY_HEADER, text));
        }
        Some(name) => ColonyWish::Named(name.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn read(value: &str) -> Option<ColonyWish> {
        let mut headers = HeaderMap::new();
        headers.insert(COLONY_HEADER, HeaderValue::from_str(value).unwrap());
        wish(&headers).ok()
    }

    #[test]
    fn the_header_names_one_colony_or_all() {
        assert_eq!(wish(&HeaderMap::new()).ok(), Some(ColonyWish::Own));
        assert_eq!(read(""), Some(ColonyWish::Own));
        assert_eq!(read("*"), Some(ColonyWish::All));
        assert_eq!(read("team-a"), Some(ColonyWish::Named("team-a".to_owned())));
        assert_eq!(read(&"a".repeat(254)), None);
        let mut twice = HeaderMap::new();
        for _ in 0..2 {
            twice.append(COLONY_HEADER, HeaderValue::from_static("team-a"));
        }
        assert!(wish(&twice).is_err());
    }
}
