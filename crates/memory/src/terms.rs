//! Splits a query into words.
//!
//! A query is plain text. Syntax of search engines (quotes, `NEAR`, `*`, `col:`, hyphens) has no
//! effect: the text is cut at every character that is neither letter nor digit.

use std::collections::HashSet;

/// Maximum number of words of a query that are searched; later ones are ignored.
pub const MAX_TERMS: usize = 64;
/// Longer runs of letters are ignored.
const MAX_TERM_BYTES: usize = 256;

/// The distinct words of `query`, in lower case, in the order of their first appearance.
///
/// A word is a run of Unicode letters and digits; combining marks stay with the letter before them.
/// Scripts without spaces (Chinese, Japanese, Thai) give long runs, which match only the same run
/// in a text.
pub fn terms(query: &str) -> Vec<String> {
    let mut seen = HashSet::new();
    query
        .split(|c: char| !c.is_alphanumeric() && !is_mark(c))
        // Marks without a letter belong to no word.
        .map(|word| word.trim_start_matches(is_mark))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .filter(|word| word.len() <= MAX_TERM_BYTES)
        .filter(|word| seen.insert(word.clone()))
        .take(MAX_TERMS)
        .collect()
}

/// The blocks of combining marks for Latin, Greek and Cyrillic text in decomposed form.
fn is_mark(c: char) -> bool {
    matches!(c,
        '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn query_syntax_is_read_as_plain_words() {
        for (query, wanted) in [
            ("fastapi sqlite", vec!["fastapi", "sqlite"]),
            (
                r#"title:"drop table" NEAR(x, 3) OR -y*"#,
                vec!["title", "drop", "table", "near", "x", "3", "or", "y"],
            ),
            ("  \t\n ", vec![]),
            (r#""*^(){}:-+'"#, vec![]),
            ("Straße STRASSE straße", vec!["straße", "strasse"]),
            ("cafe\u{301} \u{301}", vec!["cafe\u{301}"]),
            ("store_memory", vec!["store", "memory"]),
            ("日本語 テスト", vec!["日本語", "テスト"]),
        ] {
            assert_eq!(terms(query), wanted, "{query}");
        }
    }

    #[test]
    fn a_query_is_bounded() {
        let long: String = (0..1000).map(|n| format!("w{n} ")).collect();
        assert_eq!(terms(&long).len(), MAX_TERMS);
        assert_eq!(terms(&"a".repeat(257)), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn terms_contain_only_letters_digits_and_marks_and_are_stable(query in any::<String>()) {
            let words = terms(&query);
            prop_assert!(words.len() <= MAX_TERMS);
            for word in &words {
                prop_assert!(!word.is_empty());
                // Lower-casing may yield a mark after a letter (`İ`), never anything else.
                prop_assert!(word.chars().all(|c| c.is_alphanumeric() || is_mark(c)), "{word:?}");
            }
            // The terms of the joined terms are the same.
            prop_assert_eq!(terms(&words.join(" ")), words);
        }
    }
}
