//! Git directories of our own: written by hand, with a configuration that names no program.
//!
//! There are two for each working tree. **Ours** lies beside it, where no session can write; every
//! command that Overmind runs on the tree uses it. **Theirs** is the tree's `.git`, a repository of the
//! session's own. Both borrow the primary's objects through `objects/info/alternates` and share nothing
//! else with it: no reference, no configuration, no hook, no index.

use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

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

    /// From a key as git lists it: the subsection is whatever lies between the first and last dot.
    pub(crate) fn parse(key: &str, value: &str) -> Option<Self> {
        let (section, rest) = key.split_once('.')?;
        Some(match rest.rsplit_once('.') {
            Some((sub, key)) => Self::new(section, Some(sub), key, value),
            None => Self::new(section, None, rest, value),
        })
    }
}

/// What a git directory holds besides its objects.
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

/// Writes a git directory where there is none.
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
    fn git_reads_back_what_was_rendered_whatever_is_in_it() {
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
