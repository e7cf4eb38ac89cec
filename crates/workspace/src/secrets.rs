//! Secrets in a session's worktree: finds them, applies the project's grants, and records them
//! beside the worktree.
//!
//! Files that a session makes itself belong to it, whatever their names are. So the secrets of an
//! environment are those in the worktree at its start. They are also recorded by inode, so that the
//! secrets of a moved directory stay withheld. Without an environment, the secrets are those that
//! exist now.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use overmind_core::secret_file::{SEARCHED, SMALL, Suspect, suspect};
use serde::{Deserialize, Serialize};

use crate::database::template::expression;
use crate::opener::Dir;

/// The file beside a worktree, where no sandbox shows it.
const NOTES: &str = "withheld.json";
/// If there are more, they are no secrets but data of the project.
const MOST: usize = 1000;

/// Directories whose files are not searched for secret content.
const OTHERS: &[&str] =
    &[".git", "node_modules", "vendor", "target", ".venv", "venv", "site-packages"];

/// The secrets in a worktree at its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Noted {
    pub(crate) withheld: Vec<Secret>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Secret {
    /// The path from the top of the worktree.
    pub(crate) path: PathBuf,
    inode: u64,
    /// Whether it is in the repository's history, so that saving it reveals nothing new.
    #[serde(default)]
    pub(crate) tracked: bool,
}

/// The paths that sandboxes and tools withhold in a directory, relative to it. `worktrees` is the
/// directory of environments' worktrees, of which only the secrets at their start are withheld.
///
/// # Errors
///
/// Fails if a directory cannot be read, or there are more secrets than can be withheld.
pub fn withheld(worktrees: &Path, workspace: &Path) -> io::Result<Vec<PathBuf>> {
    let real = workspace.canonicalize()?;
    let Some((place, top)) = room_of(worktrees, &real) else {
        return Ok(found(&real)?.into_iter().map(|secret| secret.path).collect());
    };
    let all = match read(&place)? {
        Some(noted) => noted.withheld,
        None => found(&top)?,
    };
    let still = still_there(&top, all)?;
    let beneath = still.into_iter().filter_map(|path| {
        let path = top.join(path);
        path.strip_prefix(&real).map(Path::to_owned).ok()
    });
    Ok(beneath.collect())
}

/// Whether [`withheld`] has a file with a single name, at this path in the directory without links.
/// Looks into no other file.
///
/// # Errors
///
/// See [`withheld`].
pub fn withholds(worktrees: &Path, workspace: &Path, path: &Path) -> io::Result<bool> {
    let real = workspace.canonicalize()?;
    if room_of(worktrees, &real).is_some() {
        let all = withheld(worktrees, workspace)?;
        return Ok(all.iter().any(|secret| path.starts_with(secret)));
    }
    Ok(search(&real, Some(path))?.iter().any(|secret| path.starts_with(&secret.path)))
}

/// The directory and the top of the environment's worktree that contains a directory. One further
/// down that looks like a worktree was made by the session.
fn room_of(worktrees: &Path, real: &Path) -> Option<(PathBuf, PathBuf)> {
    let worktrees = worktrees.canonicalize().ok()?;
    let mut parts = real.strip_prefix(&worktrees).ok()?.components();
    let place = worktrees.join(parts.next()?).join(parts.next()?);
    (parts.next()? == Component::Normal("tree".as_ref()))
        .then(|| (place.clone(), place.join("tree")))
}

/// The current paths of these secrets: their original paths, whatever is there, and the paths to
/// which they were moved.
fn still_there(top: &Path, all: Vec<Secret>) -> io::Result<Vec<PathBuf>> {
    let mut paths = BTreeSet::new();
    let mut moved = BTreeSet::new();
    for Secret { path, inode, .. } in all {
        let there = top.join(&path).symlink_metadata();
        if !there.as_ref().is_ok_and(|there| there.ino() == inode) {
            moved.insert(inode);
        }
        if is_beneath(top, &path) && there.is_ok_and(|there| !there.is_symlink()) {
            paths.insert(path);
        }
    }
    if !moved.is_empty() {
        walk(top, &mut |path, entry| {
            if moved.contains(&entry.metadata()?.ino()) {
                paths.insert(path.to_owned());
            }
            Ok(true)
        })?;
    }
    Ok(paths.into_iter().collect())
}

/// Whether a path contains no link.
fn is_beneath(top: &Path, path: &Path) -> bool {
    let above = path.ancestors().skip(1);
    above
        .filter(|dir| !dir.as_os_str().is_empty())
        .all(|dir| top.join(dir).symlink_metadata().is_ok_and(|found| found.is_dir()))
}

/// All secrets in a directory: by their names, by their content, and by other hard links to the
/// same files.
pub(crate) fn found(top: &Path) -> io::Result<Vec<Secret>> {
    search(top, None)
}

/// The same; with `only`, files at other paths are not opened, and may be missing from the result.
fn search(top: &Path, only: Option<&Path>) -> io::Result<Vec<Secret>> {
    let mut all = BTreeSet::new();
    let mut linked = BTreeSet::new();
    walk(top, &mut |path, entry| {
        let name = entry.file_name();
        // A name that is not UTF-8 cannot be the name of a known secret.
        let Some(why) = name.to_str().and_then(suspect) else { return Ok(true) };
        let Some((real, found)) = target(top, path)? else { return Ok(true) };
        if why != Suspect::Directory && only.is_some_and(|only| only != real) {
            return Ok(true);
        }
        let is_secret = match why {
            Suspect::Directory => found.is_dir(),
            Suspect::Always => found.is_file(),
            Suspect::Holding(texts) => found.is_file() && holds(top, &real, texts)?,
            Suspect::SmallHolding(texts) => {
                let is_sought = found.is_file() && found.len() <= SMALL && !is_others(&real);
                is_sought && holds(top, &real, texts)?
            }
        };
        if is_secret {
            if found.is_file() && found.nlink() > 1 {
                linked.insert((found.dev(), found.ino()));
            }
            all.insert(Secret { path: real, inode: found.ino(), tracked: false });
        }
        // Everything in a withheld directory is withheld with it.
        Ok(!(is_secret && why == Suspect::Directory))
    })?;
    if !linked.is_empty() {
        walk(top, &mut |path, entry| {
            let found = entry.metadata()?;
            if found.is_file() && linked.contains(&(found.dev(), found.ino())) {
                all.insert(Secret { path: path.to_owned(), inode: found.ino(), tracked: false });
            }
            Ok(true)
        })?;
    }
    if all.len() > MOST {
        return Err(io::Error::other(format!(
            "{} holds more than {MOST} files that look like secrets (.env, keys, credentials), \
             which no sandbox can withhold: keep them elsewhere",
            top.display()
        )));
    }
    Ok(all.into_iter().collect())
}

/// Whether a file belongs to a package or to git: there are thousands of those, and their names
/// prove nothing.
fn is_others(path: &Path) -> bool {
    path.components().any(|part| OTHERS.iter().any(|name| part.as_os_str() == *name))
}

/// The real file, if it is in the directory and is no link to elsewhere.
fn target(top: &Path, path: &Path) -> io::Result<Option<(PathBuf, Metadata)>> {
    let full = top.join(path);
    let found = match full.symlink_metadata() {
        Ok(found) => found,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(err),
    };
    if !found.is_symlink() {
        return Ok(Some((path.to_owned(), found)));
    }
    let real = full.canonicalize().ok();
    let real = real.and_then(|real| Some((real.strip_prefix(top).ok()?.to_owned(), real)));
    Ok(real
        .filter(|(path, _)| !path.as_os_str().is_empty())
        .and_then(|(path, real)| Some((path, real.metadata().ok()?))))
}

/// Whether one of the texts is near the beginning of a file. An unreadable file reveals it to
/// nobody.
fn holds(top: &Path, file: &Path, texts: &[&str]) -> io::Result<bool> {
    let mut begin = Vec::new();
    let opened = Dir::open(top).and_then(|top| top.file(file));
    match opened.and_then(|file| file.take(SEARCHED).read_to_end(&mut begin)) {
        Ok(_) => {}
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(_) => return Ok(true),
    }
    let has = |text: &&str| begin.windows(text.len()).any(|part| part == text.as_bytes());
    Ok(texts.iter().any(has))
}

/// Visits all entries of a directory without following links. It enters a directory if `see`
/// returns true.
fn walk(
    top: &Path,
    see: &mut dyn FnMut(&Path, &std::fs::DirEntry) -> io::Result<bool>,
) -> io::Result<()> {
    let mut waiting = vec![PathBuf::new()];
    while let Some(dir) = waiting.pop() {
        let entries = match std::fs::read_dir(top.join(&dir)) {
            Ok(entries) => entries,
            // It was removed meanwhile, or we cannot read it, and so our programs cannot either.
            Err(err) if !dir.as_os_str().is_empty() && is_nothing(&err) => continue,
            Err(err) => return Err(err),
        };
        for entry in entries {
            let entry = entry?;
            let path = dir.join(entry.file_name());
            match see(&path, &entry) {
                Ok(true) if entry.file_type().is_ok_and(|kind| kind.is_dir()) => waiting.push(path),
                Ok(_) => {}
                Err(err) if is_nothing(&err) => {}
                Err(err) => return Err(err),
            }
        }
    }
    Ok(())
}

fn is_nothing(err: &io::Error) -> bool {
    matches!(
        err.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory
    )
}

impl Noted {
    /// The secrets of a new worktree. `grants` are patterns of those that the session gets: a name
    /// at any depth, or a path from the top; `*`, `?` and `**` as in other lists.
    pub(crate) fn of(tree: &Path, grants: &[String]) -> io::Result<Self> {
        let grants: Vec<_> = grants
            .iter()
            .filter_map(|grant| match grant.trim_end_matches('/').contains('/') {
                true => expression(grant.trim_start_matches('/')),
                false => expression(&format!("**/{grant}")),
            })
            .collect();
        let is_granted = |secret: &Secret| {
            let path = secret.path.to_string_lossy();
            grants.iter().any(|grant| grant.is_match(&path))
        };
        let withheld = found(tree)?.into_iter().filter(|secret| !is_granted(secret)).collect();
        Ok(Self { withheld })
    }

    /// Records them beside the worktree.
    pub(crate) fn write(&self, place: &Path) -> io::Result<()> {
        let half = place.join(format!("{NOTES}.half"));
        std::fs::write(&half, serde_json::to_vec(self)?)?;
        std::fs::rename(&half, place.join(NOTES))
    }
}

/// The current paths of an environment's secrets that are in no history: they are never saved,
/// whatever the session configures in git.
pub(crate) fn unsaved(place: &Path, tree: &Path) -> io::Result<Vec<PathBuf>> {
    let withheld = read(place)?.unwrap_or_default().withheld;
    still_there(tree, withheld.into_iter().filter(|secret| !secret.tracked).collect())
}

/// Reads the record; `None` for a worktree from before there were records.
fn read(place: &Path) -> io::Result<Option<Noted>> {
    match std::fs::read(place.join(NOTES)) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn yard() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        for (file, text) in [
            (".env", "A=1"),
            (".env.example", "A="),
            ("config/.env.local", "A=1"),
            ("certs/ca.pem", "-----BEGIN CERTIFICATE-----"),
            ("certs/tls.pem", "-----BEGIN PRIVATE KEY-----"),
            (".npmrc", "registry=https://r.example"),
            ("web/.npmrc", "//r.example/:_authToken=t"),
            (".aws/credentials", "x"),
            ("src/main.rs", ""),
            ("plain.txt", "A=1"),
        ] {
            std::fs::create_dir_all(top.join(file).parent().unwrap()).unwrap();
            std::fs::write(top.join(file), text).unwrap();
        }
        (dir, top)
    }

    fn names(found: Vec<PathBuf>) -> Vec<String> {
        found.iter().map(|path| path.to_string_lossy().into_owned()).collect()
    }

    /// Each file with a single name is withheld separately if it is listed.
    fn agree(top: &Path) {
        let all = withheld(Path::new("/nowhere"), top).unwrap();
        walk(top, &mut |path, entry| {
            let found = entry.metadata()?;
            if found.is_file() && found.nlink() == 1 {
                let one = withholds(Path::new("/nowhere"), top, path)?;
                let listed = all.iter().any(|secret| path.starts_with(secret));
                assert_eq!(one, listed, "{}", path.display());
            }
            Ok(true)
        })
        .unwrap();
    }

    #[test]
    fn secret_files_are_found_by_name_content_and_other_links() {
        let (_dir, top) = yard();
        std::fs::hard_link(top.join(".env"), top.join("src/innocent")).unwrap();
        symlink("../plain.txt", top.join("config/.env")).unwrap();
        symlink("/etc/passwd", top.join("id_rsa")).unwrap();
        let all = names(withheld(Path::new("/nowhere"), &top).unwrap());
        let wanted =
            [".aws", ".env", "certs/tls.pem", "config/.env.local", "plain.txt", "src/innocent"];
        assert_eq!(all, [wanted.as_slice(), &["web/.npmrc"]].concat());
        agree(&top);
    }

    #[test]
    fn keys_and_accounts_are_found_in_small_files_of_the_project() {
        let (_dir, top) = yard();
        let key = "-----BEGIN OPENSSH PRIVATE KEY-----\n";
        let account = "{\n  \"type\": \"service_account\",\n  \"project_id\": \"x\"\n}";
        let large = format!("{key}{}", "x".repeat(40 << 10));
        for (file, text) in [
            ("deploy", key),
            ("conf/gcp.json", account),
            ("notes.txt", "how to make a PRIVATE KEY"),
            ("package.json", "{}"),
            ("Prod.ENV", "A=1"),
            ("large", large.as_str()),
            ("node_modules/p/deploy", key),
            (".git/objects/ab/cdef", key),
        ] {
            std::fs::create_dir_all(top.join(file).parent().unwrap()).unwrap();
            std::fs::write(top.join(file), text).unwrap();
        }
        // Special files are never waited for.
        let pipe = top.join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o600))
            .unwrap();
        let all = names(withheld(Path::new("/nowhere"), &top).unwrap());
        let new: Vec<&String> = all.iter().filter(|name| !name.contains(".env")).collect();
        assert_eq!(
            new,
            [".aws", "Prod.ENV", "certs/tls.pem", "conf/gcp.json", "deploy", "web/.npmrc"]
        );
        agree(&top);
    }

    #[test]
    fn an_environment_withholds_its_initial_secret_files_after_moves_and_no_new_ones() {
        let (dir, worktrees) = yard();
        let place = worktrees.join("project/one");
        let tree = place.join("tree");
        std::fs::create_dir_all(&tree).unwrap();
        for name in [".env", "config", "certs", "src"] {
            std::fs::rename(worktrees.join(name), tree.join(name)).unwrap();
        }
        let note = |grants: &[&str]| {
            let grants: Vec<String> = grants.iter().map(|grant| (*grant).to_owned()).collect();
            let noted = Noted::of(&tree, &grants).unwrap();
            noted.write(&place).unwrap();
            noted
        };
        assert_eq!(note(&["certs/*", ".env.local"]).withheld.len(), 1);
        std::fs::write(tree.join("src/.env"), "made by the session").unwrap();
        let of = |dir: &Path| names(withheld(&worktrees, dir).unwrap());
        assert_eq!(of(&tree), [".env"]);
        assert_eq!(of(&tree.join("src")), Vec::<String>::new());

        let noted = note(&[]);
        assert_eq!(noted.withheld.len(), 4);
        std::fs::rename(tree.join("config"), tree.join("src/elsewhere")).unwrap();
        std::fs::create_dir(tree.join("config")).unwrap();
        std::fs::write(tree.join("config/.env.local"), "").unwrap();
        let all = of(&tree);
        assert!(all.contains(&"src/elsewhere/.env.local".to_owned()), "{all:?}");
        assert_eq!(of(&tree.join("src")), [".env", "elsewhere/.env.local"]);
        drop(dir);
    }
}
