//! Finds characters that are invisible to people but not to a model.

/// The first character of `text` that does not belong in a description: control characters
/// (including a terminal's escape), and characters that are invisible, reorder text or are
/// unassigned.
pub(crate) fn hidden_in(text: &str) -> Option<char> {
    let mut before = None;
    for c in text.chars() {
        // This selector makes a symbol an emoji; several in a row could carry a message.
        let selector = c == '\u{fe0f}' && before.is_some_and(|b: char| !b.is_ascii() && b != c);
        if !matches!(c, '\n' | '\t' | '\r') && !selector && is_hidden(c) {
            return Some(c);
        }
        before = Some(c);
    }
    None
}

fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}' | '\u{e000}'..='\u{f8ff}'
            | '\u{f0000}'..='\u{10ffff}')
}

/// Returns a result's text without hidden characters, and how many there were.
///
/// Joiners are kept, because Persian, Indic scripts and emoji need them. All other invisible
/// characters, and all controls except tab and line ends, are removed.
pub(crate) fn clean(text: &str) -> (String, usize) {
    let goes = |c: char| {
        !matches!(c, '\n' | '\t' | '\r' | '\u{200c}' | '\u{200d}' | '\u{fe0f}')
            && (is_hidden(c) && !matches!(c, '\u{e000}'..='\u{f8ff}'))
    };
    let kept: String = text.chars().filter(|c| !goes(*c)).collect();
    let removed = text.chars().count() - kept.chars().count();
    (kept, removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_joiners_and_lose_hidden_characters() {
        assert_eq!(clean("می\u{200c}خواهم\n"), ("می\u{200c}خواهم\n".into(), 0));
        assert_eq!(clean("a\u{1b}[31mb\u{e0061}\u{202e}"), ("a[31mb".into(), 3));
    }

    #[test]
    fn a_series_of_variation_selectors_is_detected_as_hidden_text() {
        assert_eq!(hidden_in("👍\u{fe0f}"), None);
        assert_eq!(hidden_in("👍\u{fe0f}\u{fe0f}"), Some('\u{fe0f}'));
        assert_eq!(hidden_in("a\u{fe0f}"), Some('\u{fe0f}'));
        assert_eq!(hidden_in("👍\u{fe01}"), Some('\u{fe01}'));
    }
}
