//! Memory claims of a session: directories and memory collections that outlive it. They are copied
//! into the session's spec when it is created, like its contexts ([`super::given`]).

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::record::Name;

/// Maximum number of memory claims of one session.
pub const MAX_CLAIMS: usize = 8;
/// The suffix of a claim's name that asks for reading only.
const READ_ONLY: &str = ":ro";

/// A memory claim as it was when the session was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenClaim {
    pub name: String,
    pub generation: u64,
    /// Whether the session may only read: the claim or the session says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Whether commands get the claim's directory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub directory: bool,
    /// The memory collection that the session's memory tools use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collection: Option<String>,
}

impl GivenClaim {
    /// Returns the variable that contains the path of the claim's directory.
    pub fn variable(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        let name: String = self.name.chars().map(plain).collect();
        format!("OVERMIND_CLAIM_{name}")
    }

    fn access(&self) -> &'static str {
        if self.read_only { "read-only" } else { "read and write" }
    }
}

/// Parses a reference to a memory claim: its name, and `:ro` to read it only.
///
/// # Errors
///
/// Returns the reason, as words that follow the text.
pub fn parse(text: &str) -> Result<(Name, bool), String> {
    let (name, read_only) = match text.strip_suffix(READ_ONLY) {
        Some(name) => (name, true),
        None => (text, false),
    };
    let name = Name::parse(name).map_err(|why| {
        format!("{why}; write the name of a memory claim, or `NAME{READ_ONLY}` to read it only")
    })?;
    Ok((name, read_only))
}

/// Returns the reason why a session cannot have these claims together.
pub fn mistake(claims: &[GivenClaim]) -> Option<String> {
    if claims.len() > MAX_CLAIMS {
        return Some(format!("has {}; {MAX_CLAIMS} is the most", claims.len()));
    }
    for (at, claim) in claims.iter().enumerate() {
        for other in &claims[..at] {
            if other.variable() == claim.variable() {
                let variable = claim.variable();
                return Some(format!(
                    "`{}` and `{}` would both be the variable {variable}: name one of them",
                    other.name, claim.name
                ));
            }
            if claim.collection.is_some() && claim.collection == other.collection {
                return Some(format!(
                    "`{}` and `{}` have the same memory collection: name one of them",
                    other.name, claim.name
                ));
            }
        }
    }
    None
}

/// Returns the text that tells a model about its claims; empty without claims.
pub fn prompt(claims: &[GivenClaim]) -> String {
    let mut all = String::new();
    let mut directories = claims.iter().filter(|claim| claim.directory).peekable();
    if directories.peek().is_some() {
        all.push_str("Directories that stay for later runs:");
        for claim in directories {
            let _ = write!(all, "\n${} ({})", claim.variable(), claim.access());
        }
    }
    let mut collections = claims.iter().filter(|claim| claim.collection.is_some()).peekable();
    if collections.peek().is_some() {
        let between = if all.is_empty() { "" } else { "\n\n" };
        let _ = write!(all, "{between}Your memory has only these collections:");
        for claim in collections {
            let name = claim.collection.as_deref().unwrap_or_default();
            let _ = write!(all, "\n{name} ({})", claim.access());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, collection: Option<&str>) -> GivenClaim {
        GivenClaim {
            name: name.to_owned(),
            generation: 1,
            read_only: false,
            directory: true,
            collection: collection.map(str::to_owned),
        }
    }

    #[test]
    fn a_claim_reference_is_a_name_with_an_optional_ro_suffix() {
        assert_eq!(parse("notes").unwrap(), (Name::parse("notes").unwrap(), false));
        assert_eq!(parse("notes:ro").unwrap(), (Name::parse("notes").unwrap(), true));
        for bad in ["", ":ro", "notes:rw", "../x", "a/b", "Notes", "notes:ro:ro"] {
            let why = parse(bad).unwrap_err();
            assert!(why.contains("`NAME:ro` to read it only"), "{bad}: {why}");
        }
    }

    #[test]
    fn claims_with_the_same_variable_or_collection_are_refused() {
        assert_eq!(claim("team.notes-2", None).variable(), "OVERMIND_CLAIM_TEAM_NOTES_2");
        assert_eq!(
            mistake(&[claim("a", Some("x")), claim("b", None), claim("c", Some("y"))]),
            None
        );
        let why = mistake(&[claim("a-b", None), claim("a.b", None)]).unwrap();
        assert!(why.contains("both be the variable OVERMIND_CLAIM_A_B"), "{why}");
        let why = mistake(&[claim("a", Some("x")), claim("b", Some("x"))]).unwrap();
        assert!(why.contains("the same memory collection"), "{why}");
        let many: Vec<_> = (0..=MAX_CLAIMS).map(|n| claim(&format!("n{n}"), None)).collect();
        assert!(mistake(&many).unwrap().contains("8 is the most"));
    }

    #[test]
    fn a_model_gets_a_list_of_its_directories_and_collections() {
        assert_eq!(prompt(&[]), "");
        let reads = GivenClaim { read_only: true, ..claim("notes", Some("lessons")) };
        let told = prompt(&[reads, claim("cache", None)]);
        let directories =
            "$OVERMIND_CLAIM_NOTES (read-only)\n$OVERMIND_CLAIM_CACHE (read and write)";
        assert!(told.contains(directories), "{told}");
        assert!(told.ends_with("only these collections:\nlessons (read-only)"), "{told}");
    }
}
