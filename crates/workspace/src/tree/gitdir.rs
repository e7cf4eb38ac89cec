//! Git directories of our own: written by hand, with a configuration that names no program.
//!
//! There are two for each working tree. **Ours** lies beside it, where no session can write; every
//! command that Overmind runs on the tree uses it. **Theirs** is the tree's `.git`, a repository of the
//! session's own. Both borrow the primary's objects through `objects/info/alternates` and share nothing
//! else with it: no reference, no configuration, no hook, no index.

use std::cell::LazyCell;
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use overmind_core::off_limits::{FileId, OffLimits};

use crate::opener::{self, Dir};

/// One setting: section, subsection, key, value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) section: String,
    pub(crate) sub: Option<String>,
    pub(crate) key: String,
    pub(crate) value: String,
}

impl Setting {
    pub(crate) fn new(section: &str, sub: Option<&str>, key: &str, value: &str) -> Self {
        Self {
            section: section.to_owned(),
            sub: sub.map(str::to_owned),
            key: key.to_owned(),
            value: value.to_owned(),
        }
    }

    /// From a key as git lists it: the subsection is the text between the first and last dot.
    pub(crate) fn parse(key: &str, value: &str) -> Option<Self> {
        let (section, rest) = key.split_once('.')?;
        Some(match rest.rsplit_once('.') {
            Some((sub, key)) => Self::new(section, Some(sub), key, value),
            None => Self::new(section, None, rest, value),
        })
    }
}

/// The content of a git directory besides its objects.
#[derive(Debug, Default)]
pub(crate) struct Layout<'a> {
    /// A branch's full name, or a commit.
    pub(crate) head: &'a str,
    pub(crate) settings: &'a [Setting],
    pub(crate) borrow: &'a [PathBuf],
    pub(crate) exclude: &'a [u8],
    pub(crate) sparse: Option<&'a [u8]>,
    pub(crate) shallow: Option<&'a [u8]>,
}

/// Writes a git directory if none exists.
pub(crate) fn write(at: &Path, layout: &Layout<'_>) -> io::Result<()> {
    let mut private = std::fs::DirBuilder::new();
    private.recursive(true).mode(0o700);
    private.create(at)?;
    for dir in ["objects/info", "objects/pack", "refs/heads", "refs/tags", "info", "hooks"] {
        std::fs::create_dir_all(at.join(dir))?;
    }
    set_head(at, layout.head)?;
    std::fs::write(at.join("config"), render(layout.settings))?;
    std::fs::write(at.join("info/exclude"), layout.exclude)?;
    std::fs::write(at.join("objects/info/alternates"), alternates(layout.borrow))?;
    if let Some(sparse) = layout.sparse {
        std::fs::write(at.join("info/sparse-checkout"), sparse)?;
    }
    if let Some(shallow) = layout.shallow {
        std::fs::write(at.join("shallow"), shallow)?;
    }
    Ok(())
}

/// The line of an exclude file that means this path and no other of its name. `None`: no line can.
pub(crate) fn pattern(path: &Path) -> Option<Vec<u8>> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.contains(&b'\n') {
        return None;
    }
    let mut line = vec![b'/'];
    for byte in bytes {
        if b"*?[]\\!# ".contains(byte) {
            line.push(b'\\');
        }
        line.push(*byte);
    }
    Some(line)
}

/// Points `HEAD` to a branch (`refs/…`) or to a commit.
pub(crate) fn set_head(at: &Path, head: &str) -> io::Result<()> {
    let text =
        if head.starts_with("refs/") { format!("ref: {head}\n") } else { format!("{head}\n") };
    std::fs::write(at.join("HEAD"), text)
}

/// Writes one reference as a file of its own. The name was checked by `names::is_reference`.
pub(crate) fn set_reference(at: &Path, name: &str, id: &str) -> io::Result<()> {
    let path = at.join(name);
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(path, format!("{id}\n"))
}

/// The text of `objects/info/alternates`.
pub(crate) fn alternates(paths: &[PathBuf]) -> Vec<u8> {
    let mut text = Vec::new();
    for path in paths {
        let bytes = path.as_os_str().as_bytes();
        let plain = !bytes.starts_with(b"#")
            && !bytes.starts_with(b"\"")
            && !bytes.iter().any(|byte| *byte < b' ' || *byte == 0x7f);
        if plain {
            text.extend_from_slice(bytes);
        } else {
            text.push(b'"');
            for byte in bytes {
                match byte {
                    b'"' | b'\\' => text.extend([b'\\', *byte]),
                    b' '..=b'~' => text.push(*byte),
                    other => text.extend(format!("\\{other:03o}").bytes()),
                }
            }
            text.push(b'"');
        }
        text.push(b'\n');
    }
    text
}

/// Maximum number of directories of objects that one repository borrows, and how many may borrow in
/// a row: git itself follows no more.
const MOST_LENT: usize = 64;
const IN_A_ROW: usize = 5;
/// The largest list of them.
const LIST: u64 = 64 << 10;

/// These directories of objects and all that they borrow in turn, each once. Missing ones are left
/// out, and so are those in `ours`: sessions write there, and could choose what is shown to the
/// next session. Those in the server's data directory or in a system directory are left out as
/// well. A borrowed directory must be readable by its owner or by everybody, and must contain only
/// git objects: it is shown to sessions.
pub(crate) fn with_alternates(
    objects: Vec<PathBuf>,
    ours: &Path,
    off_limits: &OffLimits,
) -> Vec<PathBuf> {
    let ours = ours.canonicalize().unwrap_or_else(|_| ours.to_owned());
    let own = LazyCell::new(|| off_limits.all());
    let is_servers = |real: &Path| {
        let mut above = real.ancestors().filter_map(|above| above.metadata().ok());
        off_limits.refusal(real).is_some()
            || above.any(|found| own.contains(&FileId { device: found.dev(), inode: found.ino() }))
    };
    let owners: Vec<u32> = objects.iter().filter_map(|path| owner_of(path)).collect();
    let is_lent = |path: &Path| {
        let Ok(real) = path.canonicalize() else { return false };
        let common = real.parent().and_then(|common| Dir::open_plain(common).ok());
        real.ends_with("objects")
            && !real.starts_with(&ours)
            && !is_servers(&real)
            && common.is_some_and(|common| {
                matches!(common.read_within(Path::new("HEAD"), LIST), Ok(Some(_)))
                    && opener::check_objects(&common).is_ok()
            })
            && (owner_of(&real).is_some_and(|owner| owners.contains(&owner)) || is_public(&real))
    };
    let (mut all, mut last) = (objects.clone(), objects);
    for _ in 0..IN_A_ROW {
        let next: Vec<PathBuf> = last.iter().flat_map(|store| borrowed_by(store)).collect();
        last.clear();
        for path in next.into_iter().filter(|path| is_lent(path)) {
            if all.len() < MOST_LENT && !all.contains(&path) {
                all.push(path.clone());
                last.push(path);
            }
        }
    }
    all
}

/// Every path that git may read when it follows what a directory of objects borrows: as it is written,
/// because git resolves `..` in the text, and without links. `None` if a list is too long to be read, or if
/// they are too many: git has no such bounds.
pub(crate) fn stores(objects: &Path) -> Option<Vec<PathBuf>> {
    let (mut all, mut left) = (Vec::new(), vec![objects.to_owned()]);
    while let Some(store) = left.pop() {
        let list = super::source::read_small(&store.join("info/alternates"), LIST).ok()?;
        for line in lines_of(&list.unwrap_or_default()) {
            // Git takes a line that is quoted wrongly as it is.
            let text = unquoted(line).unwrap_or_else(|| line.to_vec());
            let written = plainly(&store.join(crate::git::path_of(&text)));
            let real = written.canonicalize().unwrap_or_else(|_| written.clone());
            if all.contains(&real) && all.contains(&written) {
                continue;
            }
            if all.len() >= MOST_LENT {
                return None;
            }
            left.push(real.clone());
            all.extend([written, real]);
        }
    }
    Some(all)
}

/// A path without `.` and `..`, by its text.
fn plainly(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            Component::Normal(_) | Component::RootDir | Component::Prefix(_) => plain.push(part),
        }
    }
    plain
}

/// The lines of a list of alternates that name something.
fn lines_of(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = list.split(|byte| *byte == b'\n');
    lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"))
}

fn owner_of(path: &Path) -> Option<u32> {
    Some(path.metadata().ok()?.uid())
}

/// Whether every user may read it.
fn is_public(path: &Path) -> bool {
    let mode = |path: &Path| path.metadata().map_or(0, |found| found.mode());
    mode(path) & 0o005 == 0o005 && path.ancestors().skip(1).all(|above| mode(above) & 0o001 != 0)
}

/// The directories that a directory of objects borrows, from its list.
fn borrowed_by(store: &Path) -> Vec<PathBuf> {
    let list = super::source::read_small(&store.join("info/alternates"), LIST);
    let Ok(Some(list)) = list else { return Vec::new() };
    let paths = lines_of(&list).filter_map(|line| {
        let path = store.join(crate::git::path_of(&unquoted(line)?));
        // Like git: inside a sandbox there is no parent directory to search.
        let climbs = path.components().any(|part| part == Component::ParentDir);
        if climbs { path.canonicalize().ok() } else { Some(path) }
    });
    paths.collect()
}

/// A line of such a list; `None` when it cannot be read.
fn unquoted(line: &[u8]) -> Option<Vec<u8>> {
    let Some(quoted) = line.strip_prefix(b"\"") else { return Some(line.to_vec()) };
    let (mut text, mut rest) = (Vec::new(), quoted.strip_suffix(b"\"")?);
    while let [first, more @ ..] = rest {
        rest = more;
        if *first != b'\\' {
            text.push(*first);
            continue;
        }
        let (escaped, more) = rest.split_first()?;
        rest = more;
        text.push(match escaped {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'"' | b'\\' => *escaped,
            b'0'..=b'3' => {
                let (digits, more) = rest.split_at_checked(2)?;
                rest = more;
                let octal = [&[*escaped], digits].concat();
                u8::from_str_radix(std::str::from_utf8(&octal).ok()?, 8).ok()?
            }
            _ => return None,
        });
    }
    Some(text)
}

/// The text of a configuration file.
pub(crate) fn render(settings: &[Setting]) -> String {
    let mut text = String::new();
    for Setting { section, sub, key, value } in settings {
        match sub {
            Some(sub) => {
                let sub = sub.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\0'], "");
                let _ = writeln!(text, "[{section} \"{sub}\"]");
            }
            None => {
                let _ = writeln!(text, "[{section}]");
            }
        }
        let value = value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n")
            .replace('\t', "\\t")
            .replace('\0', "");
        let _ = writeln!(text, "\t{key} = \"{value}\"");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::Git;

    #[test]
    fn rendered_git_settings_are_read_back_by_git() {
        let dir = tempfile::tempdir().unwrap();
        let odd = "a \"b\" \\c\n[core]\n\tfsmonitor = touch x ; # \t";
        let settings = [
            Setting::new("remote", Some("or\"i\\gin"), "url", odd),
            Setting::new("core", None, "bare", "false"),
        ];
        let file = dir.path().join("config");
        std::fs::write(&file, render(&settings)).unwrap();
        let git = Git::default();
        let list = git.call("list").args(["config", "-z", "--list", "--file"]).arg(&file).run();
        let list = String::from_utf8(list.unwrap().stdout).unwrap();
        assert_eq!(list, format!("remote.or\"i\\gin.url\n{odd}\0core.bare\nfalse\0"));
        let key = list.split('\n').next().unwrap();
        assert_eq!(Setting::parse(key, odd).unwrap(), settings[0]);
    }

    #[test]
    fn indirect_alternates_are_found_and_sessions_cannot_add_any() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).join("objects");
        let lends = |name: &str, lists: &[u8]| {
            std::fs::create_dir_all(at(name).join("info")).unwrap();
            std::fs::write(at(name).join("info/alternates"), lists).unwrap();
            std::fs::write(at(name).with_file_name("HEAD"), "ref: refs/heads/main").unwrap();
            at(name)
        };
        let (text, free) = (|paths: &[PathBuf]| alternates(paths), OffLimits::default());
        lends("end", b"");
        lends("we \"ird\n\u{e4}", &text(&[at("end"), at("main")]));
        lends("trees/session/tree/.git", b"");
        std::fs::create_dir_all(dir.path().join("no-store/objects")).unwrap();
        std::fs::create_dir_all(dir.path().join("other/pack")).unwrap();
        // A directory that is no directory of objects by its content, or belongs to no repository.
        std::fs::create_dir_all(lends("settings", b"").join("ssh")).unwrap();
        std::os::unix::fs::symlink("/etc", lends("link", b"").join("pack")).unwrap();
        std::fs::remove_file(lends("bare", b"").with_file_name("HEAD")).unwrap();
        let up = b"../../end/objects\n# /etc\n\"broken\n";
        lends("up", up);
        let all = [
            at("we \"ird\n\u{e4}"),
            at("up"),
            at("gone"),
            at("trees/session/tree/.git"),
            at("no-store"),
            at("settings"),
            at("link"),
            at("bare"),
            dir.path().join("other"),
        ];
        let main = lends("main", &text(&all));
        let found = with_alternates(vec![main.clone()], &dir.path().join("trees"), &free);
        let real = at("end").canonicalize().unwrap();
        let mut wanted = vec![main, all[0].clone(), all[1].clone(), at("end")];
        if real != at("end") {
            wanted.push(real);
        }
        assert_eq!(found, wanted);
        // A row, of which git follows so many and we no more.
        for n in 0..9 {
            lends(&format!("row{n}"), &text(&[at(&format!("row{}", n + 1))]));
        }
        let row = with_alternates(vec![at("row0")], &dir.path().join("trees"), &free);
        assert_eq!(row.len(), 1 + IN_A_ROW);
        let many: Vec<PathBuf> = (0..100).map(|n| lends(&format!("many{n}"), b"")).collect();
        let many = with_alternates(vec![lends("lots", &text(&many))], Path::new("/nowhere"), &free);
        assert_eq!(many.len(), MOST_LENT);
    }

    #[test]
    fn borrowed_objects_are_found_at_any_path() {
        for name in ["plain", "sp ace", "new\nline", "qu\"ote", "uml\u{e4}ut", "#hash"] {
            let dir = tempfile::tempdir().unwrap();
            let (one, two) = (dir.path().join(name), dir.path().join("two"));
            let settings = [Setting::new("core", None, "repositoryformatversion", "0")];
            let lend = Layout { head: "refs/heads/x", settings: &settings, ..Layout::default() };
            write(&one, &lend).unwrap();
            let git = Git::default();
            let id = git
                .call("write")
                .repo(&one)
                .args(["hash-object", "-w", "--stdin"])
                .input("hello")
                .run()
                .unwrap()
                .line();
            write(&two, &Layout { borrow: &[one.join("objects")], ..lend }).unwrap();
            let read = git.call("read").repo(&two).args(["cat-file", "-p", &id]).run().unwrap();
            assert_eq!(read.stdout, b"hello", "{name:?}");
        }
    }
}
