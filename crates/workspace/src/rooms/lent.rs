//! Files that a session is given to read, each session's in a directory of its own beneath the data
//! directory. They are made before they are needed and found again after a restart; a directory that is
//! there is whole, for it gets its name last.

use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use overmind_core::ids::SessionId;
use overmind_core::room::RoomError;
use rustix::fs::{AtFlags, FileType, renameat, unlinkat};

use super::say;
use crate::opener::{Dir, absent};

/// Their directory in the data directory.
pub(super) const LENT: &str = "lent";

pub(super) async fn lend(
    base: PathBuf,
    session: SessionId,
    files: Vec<(String, String)>,
) -> Result<PathBuf, RoomError> {
    let made = tokio::task::spawn_blocking(move || make(&base, session, &files)).await;
    let made = made.unwrap_or_else(|err| Err(io::Error::other(err)));
    made.map_err(|err| say::failed(format!("writing the files of the run's contexts: {err}")))
}

pub(super) async fn keep(base: PathBuf, wanted: Vec<SessionId>) {
    let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
    remove(base, move |name| !wanted.iter().any(|one| one == name)).await;
}

pub(super) async fn returned(base: PathBuf, session: SessionId) {
    let session = session.to_string();
    // Most have none. To look takes a microsecond; to have a thread look, fifty.
    if base.join(&session).symlink_metadata().is_ok() {
        remove(base, move |name| name == session).await;
    }
}

fn make(base: &Path, session: SessionId, files: &[(String, String)]) -> io::Result<PathBuf> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(base)?;
    let base = base.canonicalize()?;
    let (dir, name) = (Dir::open(&base)?, session.to_string());
    let place = base.join(&name);
    if dir.has_dir(Path::new(&name)) {
        return Ok(place);
    }
    // Two concurrent creations have separate directories.
    let partial = format!("{name}.{}-{:?}", std::process::id(), std::thread::current().id());
    absent(remove_all(&dir, Path::new(&partial)))?;
    let made = write(&dir.sub_made(Path::new(&partial))?, files)
        .and_then(|()| Ok(renameat(&dir.fd, &partial, &dir.fd, &name)?));
    if let Err(err) = made {
        remove_all(&dir, Path::new(&partial))?;
        // Unless the other one was quicker.
        return if dir.has_dir(Path::new(&name)) { Ok(place) } else { Err(err) };
    }
    Ok(place)
}

fn write(dir: &Dir, files: &[(String, String)]) -> io::Result<()> {
    for (path, text) in files {
        let (above, name) = dir.parent(Path::new(path), true)?;
        above.create(name, 0o444)?.write_all(text.as_bytes())?;
    }
    Ok(())
}

async fn remove(base: PathBuf, which: impl Fn(&str) -> bool + Send + 'static) {
    let removed = tokio::task::spawn_blocking(move || -> io::Result<()> {
        let Some(dir) = absent(Dir::open(&base))? else { return Ok(()) };
        for entry in dir.entries()? {
            if entry.name.to_str().is_some_and(&which) {
                remove_all(&dir, Path::new(&entry.name))?;
            }
        }
        Ok(())
    });
    match removed.await {
        Ok(Ok(())) => {}
        Ok(Err(err)) => tracing::warn!(%err, "files that a run was given stay behind"),
        Err(err) => tracing::warn!(%err, "files that a run was given stay behind"),
    }
}

/// Removes a directory and its content, without following links.
fn remove_all(dir: &Dir, name: &Path) -> io::Result<()> {
    let below = dir.sub(name)?;
    for entry in below.entries()? {
        match entry.kind {
            FileType::Directory => remove_all(&below, Path::new(&entry.name))?,
            _ => below.unlink(&entry.name)?,
        }
    }
    Ok(unlinkat(&dir.fd, name, AtFlags::REMOVEDIR)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(n: u128) -> SessionId {
        SessionId::from_u128(n)
    }

    fn file(path: &str, text: &str) -> (String, String) {
        (path.to_owned(), text.to_owned())
    }

    #[tokio::test]
    async fn context_files_are_complete_and_removed_with_their_session() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().join(LENT);
        returned(base.clone(), session(1)).await;
        let files = vec![file("ctx/a/b.md", "text"), file("ctx/c", "")];
        let place = lend(base.clone(), session(1), files.clone()).await.unwrap();
        let read = |path: &str| std::fs::read_to_string(place.join(path)).unwrap();
        assert_eq!((read("ctx/a/b.md"), read("ctx/c")), ("text".to_owned(), String::new()));
        // An incomplete directory of a killed server belongs to no session.
        std::fs::create_dir(base.join("half.1-x")).unwrap();
        let other = lend(base.clone(), session(2), files.clone()).await.unwrap();
        keep(base.clone(), vec![session(1)]).await;
        assert!(place.is_dir() && !other.exists() && !base.join("half.1-x").exists());
        assert_eq!(lend(base.clone(), session(1), Vec::new()).await.unwrap(), place);
        assert_eq!(read("ctx/a/b.md"), "text", "it was found");
        returned(base.clone(), session(1)).await;
        assert!(!place.exists());
    }

    #[tokio::test]
    async fn env_files_are_not_written_outside_or_through_links() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().join(LENT);
        for path in ["../x", "a/../../x", "/tmp/x"] {
            let refused = lend(base.clone(), session(1), vec![file(path, "x")]).await;
            assert!(refused.is_err(), "{path}");
        }
        assert_eq!(std::fs::read_dir(&base).unwrap().count(), 0);
        assert!(!temp.path().join("x").exists());
        // A link in place of the directory is not followed, and its target is not removed.
        let outside = temp.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "").unwrap();
        std::os::unix::fs::symlink(&outside, base.join(session(3).to_string())).unwrap();
        assert!(lend(base.clone(), session(3), vec![file("x", "x")]).await.is_err());
        returned(base.clone(), session(3)).await;
        assert!(outside.join("kept").exists() && !outside.join("x").exists());
    }
}
