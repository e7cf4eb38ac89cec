//! Names: of a session as it may stand in a branch and a directory, and of references.

use std::collections::HashSet;

/// Bytes of a name within a branch or directory. Short: sockets within a tree have paths of at most
/// 107 bytes.
const LONGEST: usize = 48;

/// Turns any text into one component of a branch's name that is readable in a shell, too.
pub(crate) fn component(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        let letter =
            if letter.is_alphanumeric() || matches!(letter, '_' | '.') { letter } else { '-' };
        let twice = out.ends_with(letter) && matches!(letter, '-' | '.');
        if !twice && out.len() + letter.len_utf8() <= LONGEST {
            out.push(letter);
        }
    }
    let mut out = out.trim_matches(['-', '.']);
    while let Some(shorter) = out.strip_suffix(".lock") {
        out = shorter.trim_end_matches(['-', '.']);
    }
    if out.is_empty() { "session".to_owned() } else { out.to_owned() }
}

/// Whether git takes the text as a full name of a reference (`refs/…`).
pub(crate) fn is_reference(name: &str) -> bool {
    name.starts_with("refs/")
        && name.len() < 1024
        && !name.ends_with('.')
        && !name.contains("..")
        && !name.contains("@{")
        && !name.bytes().any(|byte| byte <= b' ' || byte == 0x7f || b"~^:?*[\\".contains(&byte))
        && name
            .split('/')
            .all(|part| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock"))
}

/// Whether a branch of this name can be made beside those that exist: neither the same, nor one where
/// the other needs a directory.
pub(crate) fn is_free(branch: &str, taken: &HashSet<&str>) -> bool {
    let full = format!("refs/heads/{branch}");
    let above = full.match_indices('/').map(|(at, _)| &full[..at]);
    let below = format!("{full}/");
    !taken.contains(full.as_str())
        && !above.into_iter().any(|parent| taken.contains(parent))
        && !taken.iter().any(|other| other.starts_with(&below))
}

/// The branch's name with a number behind it: none for the first.
pub(crate) fn numbered(name: &str, number: u32) -> String {
    if number <= 1 { name.to_owned() } else { format!("{name}-{number}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_becomes_a_readable_valid_git_name() {
        for (text, wanted) in [
            ("fix login", "fix-login"),
            ("a/b:c", "a-b-c"),
            ("..evil..lock", "evil.lock"),
            ("x.lock", "x"),
            ("x.lock.lock", "x"),
            ("--upload-pack=x", "upload-pack-x"),
            ("Änderung 7", "Änderung-7"),
            ("a\nb\0c", "a-b-c"),
            ("", "session"),
            ("///", "session"),
            ("@{-1}", "1"),
        ] {
            // `..` within a name is one dot, and `.lock` at its end is refused by git.
            let wanted = wanted.trim_end_matches(".lock");
            let got = component(text);
            assert_eq!(got, wanted, "{text:?}");
            assert!(is_reference(&format!("refs/heads/overmind/{got}")), "{got}");
        }
        assert!(component(&"é".repeat(500)).len() <= LONGEST);
    }

    #[test]
    fn branch_names_do_not_conflict_as_directories() {
        let taken = HashSet::from(["refs/heads/overmind/a", "refs/heads/x", "refs/heads/y/z/w"]);
        assert!(is_free("overmind/b", &taken));
        assert!(!is_free("overmind/a", &taken));
        assert!(!is_free("overmind/a/b", &taken));
        assert!(!is_free("x/y", &taken));
        assert!(!is_free("y/z", &taken));
        assert!(is_free("y/z2", &taken));
    }

    #[test]
    fn invalid_reference_names_are_refused() {
        for bad in
            ["HEAD", "refs/../x", "refs/heads/a b", "refs/heads/.x", "refs//x", "refs/heads/x.lock"]
        {
            assert!(!is_reference(bad), "{bad}");
        }
        assert!(is_reference("refs/stash"));
    }
}
