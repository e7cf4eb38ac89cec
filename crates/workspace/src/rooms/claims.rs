//! The directories of memory claims, beneath the data directory: `claims/COLONY/NAME`. Sessions come
//! and go; nothing here is removed with them.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use overmind_core::ids::ColonyId;
use overmind_core::record::Name;
use overmind_core::room::RoomError;

use super::say;
use crate::opener::Dir;

/// The name of their directory in the data directory.
pub(super) const CLAIMS: &str = "claims";

/// The directory of a claim, which is created if it does not exist.
pub(super) async fn directory(
    base: PathBuf,
    colony: ColonyId,
    name: Name,
) -> Result<PathBuf, RoomError> {
    let made = tokio::task::spawn_blocking(move || make(&base, colony, &name)).await;
    let made = made.unwrap_or_else(|err| Err(io::Error::other(err)));
    made.map_err(|err| say::failed(format!("making the directory of a memory claim: {err}")))
}

fn make(base: &Path, colony: ColonyId, name: &Name) -> io::Result<PathBuf> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(base)?;
    let base = base.canonicalize()?;
    let colony = colony.to_string();
    let dir = Dir::open(&base)?.sub_made(Path::new(&colony))?;
    dir.sub_made(Path::new(name.as_str()))?;
    Ok(base.join(colony).join(name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_has_one_directory_per_colony() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("data/claims");
        let name = Name::parse("notes").unwrap();
        let first = make(&base, ColonyId::DEFAULT, &name).unwrap();
        std::fs::write(first.join("kept"), "1").unwrap();
        assert_eq!(make(&base, ColonyId::DEFAULT, &name).unwrap(), first);
        assert!(first.join("kept").exists());
        let other = make(&base, ColonyId::from_u128(7), &name).unwrap();
        assert!(other != first && !other.join("kept").exists());
    }

    #[test]
    fn a_link_in_place_of_a_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("claims");
        let name = Name::parse("notes").unwrap();
        let made = make(&base, ColonyId::DEFAULT, &name).unwrap();
        std::fs::remove_dir(&made).unwrap();
        std::os::unix::fs::symlink("/etc", &made).unwrap();
        make(&base, ColonyId::DEFAULT, &name).unwrap_err();
    }
}
