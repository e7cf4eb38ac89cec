//! Gives our names of tools and calls a form that every provider accepts.
//!
//! Providers take `[A-Za-z0-9_-]{1,64}` for tool names and for ids of calls. A tool of an MCP
//! server may be called `mcp.files.read`; a fork may bring ids that another provider made.

use std::collections::{HashMap, HashSet};

const MAX_LEN: usize = 64;
/// Longest id of a call that OpenAI's chat takes.
pub(crate) const MAX_CHAT_ID: usize = 40;

/// A two-way map between real names and the ones on the wire.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    /// Holds only the names that had to change.
    wire: HashMap<String, String>,
    real: HashMap<String, String>,
}

impl Aliases {
    /// Gives each of `names` a unique wire name; a name that is already valid is kept.
    pub(crate) fn of<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self::within(MAX_LEN, names)
    }

    /// Does what [`of`](Self::of) does, with wire names of at most `most` bytes, which is at least
    /// 1.
    pub(crate) fn within<'a>(most: usize, names: impl Iterator<Item = &'a str>) -> Self {
        let mut seen = HashSet::new();
        let names: Vec<&str> = names.filter(|name| seen.insert(*name)).collect();
        let mut taken: HashSet<String> = names
            .iter()
            .filter(|name| is_valid(most, name))
            .map(|name| (*name).to_owned())
            .collect();
        let mut aliases = Self::default();
        for name in names.into_iter().filter(|name| !is_valid(most, name)) {
            let stem = sanitise(most, name);
            let mut alias = stem.clone();
            let mut n = 2;
            while !taken.insert(alias.clone()) {
                let suffix = format!("_{n}");
                alias = format!("{}{suffix}", &stem[..stem.len().min(most - suffix.len())]);
                n += 1;
            }
            aliases.wire.insert(name.to_owned(), alias.clone());
            aliases.real.insert(alias, name.to_owned());
        }
        aliases
    }

    /// The wire name of `real`; a name that was not given to [`of`](Self::of) is returned
    /// unchanged.
    pub(crate) fn wire<'a>(&'a self, real: &'a str) -> &'a str {
        self.wire.get(real).map_or(real, String::as_str)
    }

    /// The real name of `wire`; a name that the model made up is returned unchanged.
    pub(crate) fn real<'a>(&'a self, wire: &'a str) -> &'a str {
        self.real.get(wire).map_or(wire, String::as_str)
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

fn is_valid(most: usize, name: &str) -> bool {
    (1..=most).contains(&name.len()) && name.chars().all(is_plain)
}

/// The result is ASCII only, so that it may be cut at any byte.
fn sanitise(most: usize, name: &str) -> String {
    let plain: String =
        name.chars().take(most).map(|c| if is_plain(c) { c } else { '_' }).collect();
    if plain.is_empty() { "x".to_owned() } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_name_keeps_itself_even_if_it_equals_an_alias() {
        let aliases =
            Aliases::of(["mcp.files.read", "mcp_files_read", "mcp/files/read"].into_iter());
        assert_eq!(aliases.wire("mcp_files_read"), "mcp_files_read");
        assert_eq!(aliases.wire("mcp.files.read"), "mcp_files_read_2");
        assert_eq!(aliases.wire("mcp/files/read"), "mcp_files_read_3");
        assert_eq!(aliases.real("mcp_files_read"), "mcp_files_read");
        assert_eq!(aliases.real("mcp_files_read_2"), "mcp.files.read");
        assert_eq!(aliases.real("made_up"), "made_up");
    }

    #[test]
    fn aliases_are_valid_and_unique_for_all_names() {
        let long = "x.".repeat(100);
        let longer = format!("{long}y");
        let names = ["", " ", "ü", "日本", long.as_str(), longer.as_str(), "a b", "a.b", "a_b"];
        let aliases = Aliases::of(names.into_iter());
        let mut seen = HashSet::new();
        for name in names {
            let wire = aliases.wire(name);
            assert!(is_valid(MAX_LEN, wire), "{name:?} became {wire:?}");
            assert!(seen.insert(wire.to_owned()), "{wire:?} is the short form of two names");
            assert_eq!(aliases.real(wire), name);
        }
    }
}
