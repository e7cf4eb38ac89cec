//! Naming things shortly: an id by a unique beginning or ending, an agent or key by its name.
//!
//! Ids begin with the time they were made, so their last digits tell them apart soonest; tables
//! show those, and they are accepted wherever an id is.

use overmind_core::nearest::nearest;

use crate::exit::{Exit, Failure};

/// Digits of an id that tables show.
const SHORT: usize = 8;

/// The last digits of an id.
pub fn short(id: &str) -> &str {
    let at = id.len().saturating_sub(SHORT);
    id.get(at..).unwrap_or(id)
}

/// Whether `given` is a beginning or an ending of `id`, with or without the prefix.
pub fn matches(given: &str, id: &str) -> bool {
    let digits = id.split_once('_').map_or(id, |(_, digits)| digits);
    let bare = given.split_once('_').map_or(given, |(_, rest)| rest);
    id.starts_with(given)
        || (bare == given && (digits.starts_with(given) || digits.ends_with(given)))
}

/// Whether `given` could be part of an id at all: enough digits, nothing else.
pub fn plausible(given: &str, prefix: &str) -> bool {
    let digits = given.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_'));
    let digits = digits.unwrap_or(given);
    (3..=32).contains(&digits.len())
        && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// The only candidate, or the reason why there is none.
///
/// # Errors
///
/// [`Exit::NotFound`] for none, [`Exit::Usage`] for several, which are named.
pub fn only(
    what: &str,
    given: &str,
    mut found: Vec<String>,
    list: &str,
) -> Result<String, Failure> {
    match found.len() {
        0 => Err(none(what, given, list)),
        1 => Ok(found.remove(0)),
        several => {
            let shown: Vec<&str> = found.iter().take(5).map(String::as_str).collect();
            Err(Failure::usage(format!("`{given}` could be {several} {what}s"))
                .hint(format!("give a longer part of the id: {}", shown.join(", "))))
        }
    }
}

/// The error for an unknown object, with a suggested name.
pub fn none_but<'a>(
    what: &str,
    given: &str,
    names: impl IntoIterator<Item = &'a str>,
    list: &str,
) -> Failure {
    match nearest(given, names) {
        Some(near) => Failure::new(Exit::NotFound, format!("there is no {what} `{given}`"))
            .hint(format!("did you mean `{near}`? `{list}` lists them")),
        None => none(what, given, list),
    }
}

/// Why there is no such thing; `list` is the command that shows those that there are.
pub fn none(what: &str, given: &str, list: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no {what} `{given}`"))
        .hint(format!("`{list}` lists them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "ses_0190b2c4d5e67000800000000000002a";

    #[test]
    fn an_id_is_found_by_its_start_or_end_with_or_without_prefix() {
        for given in [ID, "ses_0190", "0190b2c4", "002a", &ID[4..], short(ID)] {
            assert!(matches(given, ID), "{given}");
        }
        for given in ["agt_0190", "ses_002a", "b2c4", "x"] {
            assert!(!matches(given, ID), "{given}");
        }
    }

    #[test]
    fn only_digits_of_plausible_length_count_as_part_of_an_id() {
        assert!(plausible("002a", "ses") && plausible("ses_0190", "ses"));
        for given in ["", "2a", "coder", "ses_", "agt_0190", "00 2a", "A0F3"] {
            assert!(!plausible(given, "ses"), "{given}");
        }
    }

    #[test]
    fn no_match_and_several_matches_are_different_errors() {
        let none = only("run", "x", vec![], "overmind ps --all").unwrap_err();
        assert_eq!((none.exit, none.message.as_str()), (Exit::NotFound, "there is no run `x`"));
        let several = only("run", "0", vec!["a".into(), "b".into()], "l").unwrap_err();
        assert_eq!(several.exit, Exit::Usage);
        assert_eq!(several.hint.unwrap(), "give a longer part of the id: a, b");
    }
}
