//! Hides the server's own files from every sandbox, in all shown directories.
//!
//! A directory that a session gets may contain the server's data directory, or a file of its
//! configuration, under any name: through a link, a bind mount, or a project beside them. [`masks`]
//! finds every path at which they appear in the shown directories, and the init mounts something
//! empty over each after all other mounts. A request to show only a part of the data directory is
//! refused, except for the environments that the server makes in it.
//!
//! Mounts are read from `/proc/self/mountinfo` at each start, because they change.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use overmind_core::off_limits::OffLimits;
use overmind_core::sandbox::SandboxError;

use crate::init::root::SYSTEM;
use crate::init::spec::Kind;
use crate::request::bad_config;

/// The server's own files, as configured in a driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hidden<'a> {
    /// Directories, such as the server's data.
    pub(crate) private: &'a [PathBuf],
    /// Files in other places.
    pub(crate) files: &'a [PathBuf],
    /// Directories in the private ones whose entries may be shown, each by itself.
    pub(crate) rooms: &'a [PathBuf],
    /// Decides which files of a repository are secret.
    pub(crate) off_limits: &'a OffLimits,
}

/// The paths, relative to its root, over which the init mounts something empty
/// ([`Spec::masks`](crate::init::spec::Spec::masks)). `own` may be shown although it is private,
/// because the driver itself needs it.
///
/// # Errors
///
/// Fails if a path that is shown is in a private directory.
pub(crate) fn masks(
    hidden: Hidden<'_>,
    own: &[PathBuf],
    kind: &Kind,
    workspace: &Path,
) -> Result<Vec<PathBuf>, SandboxError> {
    let Kind::Namespace { read_only, living, .. } = kind else { return Ok(Vec::new()) };
    let beneath = |path: &Path| path.strip_prefix("/").unwrap_or(path).to_owned();
    let system = SYSTEM.iter().map(|name| (Path::new("/").join(name), PathBuf::from(name)));
    let granted = living.iter().flat_map(|living| &living.writable).chain(read_only);
    let granted = granted.filter(|path| !own.contains(path));
    let mut shown: Vec<_> =
        system.chain(granted.map(|path| (path.clone(), beneath(path)))).collect();
    let inside = match living {
        None => PathBuf::from("workspace"),
        Some(_) => beneath(workspace),
    };
    shown.push((workspace.to_owned(), inside));
    hidden.in_all(&shown)
}

/// The paths, relative to its root, at which the init covers a secret of the workspace's repository
/// with a note. A secret that was granted by its own path is shown.
///
/// # Errors
///
/// Fails if the secrets cannot be determined.
pub(crate) fn secrets(
    hidden: Hidden<'_>,
    kind: &Kind,
    workspace: &Path,
) -> Result<Vec<PathBuf>, SandboxError> {
    let Kind::Namespace { read_only, living, .. } = kind else { return Ok(Vec::new()) };
    let inside = match living {
        None => Path::new("workspace"),
        Some(_) => workspace.strip_prefix("/").unwrap_or(workspace),
    };
    let granted = living.iter().flat_map(|living| &living.writable).chain(read_only);
    let granted: Vec<_> = granted.filter(|path| path.starts_with(workspace)).collect();
    let mut withheld = withheld_of(hidden, workspace)?;
    withheld
        .retain(|path| !granted.iter().any(|granted| workspace.join(path).starts_with(granted)));
    Ok(withheld.into_iter().map(|path| inside.join(path)).collect())
}

/// The secrets of a workspace, relative to it. A missing workspace has none; the init reports that
/// it is missing.
pub(crate) fn withheld_of(
    hidden: Hidden<'_>,
    workspace: &Path,
) -> Result<Vec<PathBuf>, SandboxError> {
    if !workspace.is_dir() {
        return Ok(Vec::new());
    }
    hidden.off_limits.withheld(workspace).map_err(|why| {
        bad_config(format!("the secrets of {} cannot be withheld: {why}", workspace.display()))
    })
}

/// Checks that a directory contains no file of the server: for a driver that cannot hide a part of
/// it.
///
/// # Errors
///
/// Fails if it contains one.
pub(crate) fn refuse_any(hidden: Hidden<'_>, shown: &Path) -> Result<(), SandboxError> {
    let masks = hidden.in_all(&[(shown.to_owned(), PathBuf::new())])?;
    match masks.first() {
        None => Ok(()),
        Some(found) => Err(bad_config(format!(
            "the directory {} holds {}, which is the server's own and cannot be hidden at this \
             level: work in another directory, or use the level namespace",
            shown.display(),
            shown.join(found).display()
        ))),
    }
}

impl Hidden<'_> {
    /// Refuses files of the server that have a second hard link, because that could be shown
    /// anywhere.
    fn refuse_links(self) -> Result<(), SandboxError> {
        let entries = self.private.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten();
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let linked = |path: &PathBuf| {
            let found = path.symlink_metadata();
            found.is_ok_and(|found| found.is_file() && found.nlink() > 1)
        };
        match paths.chain(self.files.iter().cloned()).find(linked) {
            None => Ok(()),
            Some(path) => Err(bad_config(format!(
                "{0} is the server's own and has a second name (a hard link), by which a sandbox \
                 could show it: find it with `find DIRECTORY -samefile {0}`, and remove it",
                path.display()
            ))),
        }
    }

    /// The paths of the server's own files in the shown directories, given as paths on the host and
    /// inside.
    fn in_all(&self, shown: &[(PathBuf, PathBuf)]) -> Result<Vec<PathBuf>, SandboxError> {
        self.refuse_links()?;
        let mounts = Mounts::read();
        let places = |paths: &[PathBuf]| -> Vec<PathBuf> {
            paths.iter().flat_map(|path| mounts.places(path)).collect()
        };
        let (private, rooms) = (places(self.private), places(self.rooms));
        let mut hidden = private.clone();
        hidden.extend(places(self.files));
        let mut masks = Vec::new();
        for (host, inside) in shown {
            // A missing directory cannot be shown; the init reports it.
            let Ok(real) = host.canonicalize() else { continue };
            for place in &hidden {
                if let Ok(rest) = place.strip_prefix(&real) {
                    // Joining an empty path would leave a slash at the end.
                    let rest = Some(rest).filter(|rest| !rest.as_os_str().is_empty());
                    masks.push(rest.map_or_else(|| inside.clone(), |rest| inside.join(rest)));
                }
            }
            let lies_in = private.iter().find(|place| real.starts_with(place) && real != **place);
            let in_a_room = rooms.iter().any(|room| real.starts_with(room) && real != *room);
            if let Some(place) = lies_in.filter(|_| !in_a_room) {
                return Err(bad_config(format!(
                    "{} lies in {}, which is the server's own: no sandbox shows it; work in \
                     another directory",
                    host.display(),
                    place.display()
                )));
            }
        }
        masks.sort();
        masks.dedup();
        Ok(masks)
    }
}

/// Every path by which a file or directory can be reached here, including its own: one more for
/// each bind mount that shows it or a part of it.
pub fn appearances(path: &Path) -> Vec<PathBuf> {
    Mounts::read().places(path)
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The file system, as `major:minor`.
    device: String,
    /// The part of the file system that is mounted.
    root: PathBuf,
    place: PathBuf,
}

#[derive(Debug)]
struct Mounts(Vec<Mount>);

impl Mounts {
    fn read() -> Self {
        let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        Self(text.split(|byte| *byte == b'\n').filter_map(mount_of).collect())
    }

    fn places(&self, path: &Path) -> Vec<PathBuf> {
        let Ok(real) = path.canonicalize() else { return Vec::new() };
        let mut places = vec![real.clone()];
        let id = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        let known = id(&real);
        // Of several mounts at one path, the last one is visible.
        let around = self.0.iter().filter(|mount| real.starts_with(&mount.place));
        let Some(own) = around.max_by_key(|mount| mount.place.components().count()) else {
            return places;
        };
        let Ok(rest) = real.strip_prefix(&own.place) else { return places };
        let in_file_system = join(&own.root, rest);
        for mount in self.0.iter().filter(|mount| mount.device == own.device) {
            let place = if let Ok(rest) = in_file_system.strip_prefix(&mount.root) {
                // Another mount may cover the path.
                Some(join(&mount.place, rest)).filter(|place| id(place) == known)
            } else {
                mount.root.starts_with(&in_file_system).then(|| mount.place.clone())
            };
            places.extend(place);
        }
        places.sort();
        places.dedup();
        places
    }
}

/// Joins paths without a slash at the end if the second is empty.
fn join(base: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { base.to_owned() } else { base.join(rest) }
}

/// Parses one line of mountinfo.
fn mount_of(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ').skip(2);
    let device = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let (root, place) = (unescaped(fields.next()?), unescaped(fields.next()?));
    Some(Mount { device, root, place })
}

/// Decodes white space and backslashes, which the kernel writes as three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code.filter(|_| *first == b'\\') {
            Some(code) => {
                bytes.push(code);
                rest = &more[3..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mountinfo_line_is_parsed_with_its_escapes() {
        let line = b"36 35 98:0 /a\\040b /mnt/a\\134\\040b rw,noatime master:1 - ext3 /dev/r rw";
        let found = mount_of(line).unwrap();
        assert_eq!(found.device, "98:0");
        assert_eq!((found.root, found.place), ("/a b".into(), "/mnt/a\\ b".into()));
        assert_eq!(mount_of(b""), None);
    }

    #[test]
    fn a_directory_is_found_at_every_bind_mount_that_shows_part_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        for made in ["home/data/rooms", "part", "link"] {
            std::fs::create_dir_all(real.join(made)).unwrap();
        }
        // As if `part` were a bind mount of a piece of the data, and something else at `link`.
        let mount = |root: &str, place: &Path| Mount {
            device: "1:2".to_owned(),
            root: root.into(),
            place: place.to_owned(),
        };
        let mounts = Mounts(vec![
            mount("/", &real),
            mount("/home/data/rooms", &real.join("part")),
            mount("/home", &real.join("link")),
        ]);
        let data = real.join("home/data");
        assert_eq!(mounts.places(&data), [data.clone(), real.join("part")]);
        std::os::unix::fs::symlink(real.join("home/data"), real.join("link/data")).unwrap();
        let link = real.join("link/data");
        assert_eq!(mounts.places(&data), [data, link, real.join("part")]);
        assert_eq!(mounts.places(&real.join("missing")), Vec::<PathBuf>::new());
    }

    #[test]
    fn shown_directories_hide_server_files() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        let (data, room) = (real.join("home/data"), real.join("home/data/rooms/one"));
        std::fs::create_dir_all(&room).unwrap();
        std::fs::write(real.join("home/policy.toml"), "").unwrap();
        std::os::unix::fs::symlink(&data, real.join("link")).unwrap();
        let (private, files) = ([data.clone()], [real.join("home/policy.toml")]);
        let rooms = [data.join("rooms")];
        let off_limits = OffLimits::default();
        let hidden =
            Hidden { private: &private, files: &files, rooms: &rooms, off_limits: &off_limits };
        let linked = real.join("home/other");
        std::fs::hard_link(real.join("home/policy.toml"), &linked).unwrap();
        let err = hidden.in_all(&[]).unwrap_err().to_string();
        assert!(err.contains("has a second name (a hard link)"), "{err}");
        std::fs::remove_file(linked).unwrap();
        let shows = |host: PathBuf| hidden.in_all(&[(host, PathBuf::from("w"))]);
        let path = PathBuf::from;
        assert_eq!(shows(real.join("home")).unwrap(), [path("w/data"), path("w/policy.toml")]);
        assert_eq!(shows(real.clone()).unwrap(), [path("w/home/data"), path("w/home/policy.toml")]);
        assert_eq!(shows(real.join("link")).unwrap(), [path("w")], "all of it is hidden");
        assert_eq!(shows(room).unwrap(), Vec::<PathBuf>::new());
        for within in [data.join("rooms"), real.join("link/rooms")] {
            let err = shows(within).unwrap_err().to_string();
            assert!(err.contains("which is the server's own"), "{err}");
        }
        assert!(refuse_any(hidden, &real.join("home")).is_err());
        assert_eq!(refuse_any(hidden, &real.join("home/data/rooms/one")), Ok(()));
    }
}
