//! Words in commands that people copy from an error or a hint.

/// Returns a text as one word of a POSIX shell: as it is if that is safe, else in single quotes.
pub fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_only_if_a_shell_would_change_it() {
        for (text, word) in [
            ("/a/b-c_d.e:f=g,h+i@j%", "/a/b-c_d.e:f=g,h+i@j%"),
            ("", "''"),
            ("/my repo", "'/my repo'"),
            ("it's", "'it'\\''s'"),
            ("$(x)", "'$(x)'"),
            ("~/a", "'~/a'"),
            ("ü", "'ü'"),
        ] {
            assert_eq!(shell_word(text), word, "{text}");
        }
    }
}
