//! A text that is never printed.

use std::fmt;

/// A key or token. `Debug` shows only that there is one; [`Secret::masked`] is for people.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself. Use it only where it is needed.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The first and last four characters; only stars if that would show half of it or more.
    pub fn masked(&self) -> String {
        let chars: Vec<char> = self.0.chars().collect();
        if chars.len() <= 16 {
            return "*".repeat(chars.len().min(8));
        }
        let head: String = chars[..4].iter().collect();
        let tail: String = chars[chars.len() - 4..].iter().collect();
        format!("{head}...{tail}")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_prints_at_most_its_ends() {
        let long = Secret::new("sk-abcdefghijklmnopqrstuvwxyz");
        assert_eq!(format!("{long:?}"), "Secret(…)");
        assert_eq!(long.masked(), "sk-a...wxyz");
        assert_eq!(Secret::new("short").masked(), "*****");
        assert_eq!(Secret::new("sixteen-chars-xx").masked(), "********");
        assert_eq!(Secret::new("").masked(), "");
    }
}
