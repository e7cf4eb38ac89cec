//! Reads from the index of a repository which directories are submodules.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

pub(super) const NAME: &str = "index";
/// The largest index that is read.
const LONGEST: u64 = 1 << 30;
/// The mode of an entry for a submodule.
const SUBMODULE: u32 = 0o160_000;
/// The bytes of an entry before its object's name, and the offset of the mode in them.
const NUMBERS: usize = 40;
const MODE: usize = 24;
/// Bytes of an object's name: SHA-1 and SHA-256.
const HASHES: [usize; 2] = [20, 32];
/// The flag for two more bytes of flags.
const EXTENDED: u16 = 0x4000;

/// The paths of submodules, relative to the checkout. Without an index there are none.
///
/// # Errors
///
/// Describes why they cannot be determined; the text follows the index's name.
pub(super) fn submodules(git_dir: &Path) -> Result<Vec<PathBuf>, String> {
    let Some(bytes) = read(&git_dir.join(NAME))? else { return Ok(Vec::new()) };
    let (mut all, shared) = parse(&bytes)?;
    if let Some(shared) = shared {
        let name = format!("sharedindex.{shared}");
        let bytes =
            read(&git_dir.join(&name))?.ok_or_else(|| format!("needs {name}, which is missing"))?;
        all.extend(parse(&bytes).map_err(|why| format!("needs {name}, which {why}"))?.0);
    }
    Ok(all)
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => std::fs::File::from(file),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(err) => return Err(format!("cannot be read: {err}")),
    };
    let found = file.metadata().map_err(|err| format!("cannot be read: {err}"))?;
    if !found.is_file() || found.len() > LONGEST {
        return Err(format!("is not a file of at most {LONGEST} bytes"));
    }
    let mut bytes = Vec::new();
    let done = io::Read::read_to_end(&mut io::Read::take(file, LONGEST), &mut bytes);
    done.map_err(|err| format!("cannot be read: {err}"))?;
    Ok(Some(bytes))
}

/// The submodules, and the name of the shared index that it extends.
type Found = (Vec<PathBuf>, Option<String>);

fn parse(bytes: &[u8]) -> Result<Found, String> {
    // The entries end at the right place only if the length of object names is right.
    let found = HASHES.iter().find_map(|hash| parse_with(bytes, *hash));
    found.ok_or_else(|| "is not an index of a version that is known here (2, 3 and 4)".to_owned())
}

fn parse_with(bytes: &[u8], hash: usize) -> Option<Found> {
    let body = bytes.get(..bytes.len().checked_sub(hash)?)?;
    let version = number(body, 4)?;
    if !body.starts_with(b"DIRC") || !(2..=4).contains(&version) {
        return None;
    }
    let (mut all, mut path) = (Vec::new(), Vec::new());
    let mut at = 12;
    for _ in 0..number(body, 8)? {
        let begin = at;
        let mode = number(body, begin + MODE)?;
        at += NUMBERS + hash;
        let flags = u16::from_be_bytes(body.get(at..at + 2)?.try_into().ok()?);
        at += 2;
        if flags & EXTENDED != 0 {
            at += 2;
        }
        match version {
            4 => {
                let cut = path.len().checked_sub(varint(body, &mut at)?)?;
                path.truncate(cut);
            }
            _ => path.clear(),
        }
        let end = at + body.get(at..)?.iter().position(|byte| *byte == 0)?;
        path.extend_from_slice(&body[at..end]);
        at = match version {
            4 => end + 1,
            // Entries are padded with one to eight zeros.
            _ => begin + ((end - begin) / 8 + 1) * 8,
        };
        if mode == SUBMODULE {
            let path = Path::new(OsStr::from_bytes(&path));
            // An entry without a path takes the path in the shared index, where it is not a
            // submodule.
            let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
            if path.as_os_str().is_empty() || !plain {
                return None;
            }
            all.push(path.to_owned());
        }
    }
    let mut shared = None;
    while at != body.len() {
        let name = body.get(at..at + 4)?;
        let length = usize::try_from(number(body, at + 4)?).ok()?;
        let content = body.get(at + 8..(at + 8).checked_add(length)?)?;
        if name == b"link" {
            let base = content.get(..hash)?;
            shared = base
                .iter()
                .any(|byte| *byte != 0)
                .then(|| base.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        at += 8 + length;
    }
    Some((all, shared))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Reads a length in git's format: seven bits a byte, each further one plus one.
fn varint(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let mut next = || {
        let byte = *bytes.get(*at)?;
        *at += 1;
        Some(byte)
    };
    let mut byte = next()?;
    let mut value = usize::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        byte = next()?;
        value = value.checked_add(1)?.checked_mul(128)?.checked_add(usize::from(byte & 0x7f))?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(dir: &Path, words: &[&str]) {
        let mut command = std::process::Command::new("git");
        command.args(["-c", "user.name=a", "-c", "user.email=a@a"]).args(words).current_dir(dir);
        command
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("HOME", dir)
            .stdout(std::process::Stdio::null());
        assert!(command.status().unwrap().success(), "{words:?}");
    }

    fn entry(dir: &Path, path: &str, hash: usize) {
        let entry = format!("160000,{},{path}", "1".repeat(hash * 2));
        git(dir, &["update-index", "--add", "--cacheinfo", &entry]);
    }

    #[test]
    fn submodules_are_found_in_each_kind_of_index_that_git_writes() {
        for hash in HASHES {
            let dir = tempfile::tempdir().unwrap();
            let top = dir.path();
            let format = if hash == 20 { "--object-format=sha1" } else { "--object-format=sha256" };
            git(top, &["init", "-q", format]);
            assert_eq!(submodules(&top.join(".git")).unwrap(), Vec::<PathBuf>::new());
            std::fs::create_dir(top.join("vendor")).unwrap();
            for name in ["a", "vendor/file-with-a-name", "vendor/zz", "zzz"] {
                std::fs::write(top.join(name), name).unwrap();
            }
            git(top, &["add", "."]);
            assert_eq!(submodules(&top.join(".git")).unwrap(), Vec::<PathBuf>::new());
            let mut wanted: Vec<PathBuf> =
                vec!["lib".into(), "vendor/lib".into(), "vendor/long-one".into()];
            for path in &wanted {
                entry(top, path.to_str().unwrap(), hash);
            }
            for version in ["2", "4"] {
                git(top, &["update-index", "--index-version", version]);
                assert_eq!(submodules(&top.join(".git")).unwrap(), wanted, "{hash} {version}");
            }
            // Version 3, by a flag that is only there.
            git(top, &["update-index", "--index-version", "2"]);
            git(top, &["update-index", "--skip-worktree", "a"]);
            assert_eq!(submodules(&top.join(".git")).unwrap(), wanted, "{hash} 3");
            git(top, &["update-index", "--split-index"]);
            entry(top, "new", hash);
            wanted.insert(0, "new".into());
            let mut found = submodules(&top.join(".git")).unwrap();
            found.sort();
            wanted.sort();
            assert_eq!(found, wanted, "{hash} split");
        }
    }

    #[test]
    fn an_incomplete_index_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        git(dir.path(), &["init", "-q"]);
        std::fs::write(dir.path().join("a"), "a").unwrap();
        git(dir.path(), &["add", "a"]);
        entry(dir.path(), "lib", 20);
        let whole = read(&dir.path().join(".git/index")).unwrap().unwrap();
        assert_eq!(parse(&whole).unwrap().0, [Path::new("lib")]);
        for length in 0..whole.len() {
            assert!(parse(&whole[..length]).is_err(), "{length}");
        }
    }
}
