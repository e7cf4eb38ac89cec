//! Makes a cgroup for each process tree, if this process may.
//!
//! Cgroups are only used to find the processes of a tree; nothing is limited. Version 2 and each
//! hierarchy of version 1 are suitable; without any, [`tree`](super::tree) uses other means.

use std::path::{Path, PathBuf};

/// The directory below which groups can be made, at most one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cgroups {
    base: Option<PathBuf>,
}

/// The prefix of the names of our groups.
const PREFIX: &str = "overmind-ws-";

impl Cgroups {
    /// Examines the running system and tests a group.
    pub(crate) fn discover() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let mut found = candidates(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        let base = found.drain(..).find(|base| {
            let probe = base.join(format!("{PREFIX}probe-{}", std::process::id()));
            let made = std::fs::create_dir(&probe).is_ok();
            let usable = made
                && std::fs::OpenOptions::new().write(true).open(probe.join("cgroup.procs")).is_ok();
            if made {
                let _ = std::fs::remove_dir(&probe);
            }
            usable
        });
        Self { base }
    }

    /// Makes a group; the same name gives the same group.
    pub(crate) fn make(&self, name: &str) -> Option<PathBuf> {
        let directory = self.base.as_ref()?.join(format!("{PREFIX}{name}"));
        match std::fs::create_dir(&directory) {
            Ok(()) => Some(directory),
            Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => Some(directory),
            Err(err) => {
                tracing::debug!(path = %directory.display(), %err, "no control group");
                None
            }
        }
    }

    /// The group of that name, if it exists.
    pub(crate) fn existing(&self, name: &str) -> Option<PathBuf> {
        let directory = self.base.as_ref()?.join(format!("{PREFIX}{name}"));
        directory.is_dir().then_some(directory)
    }

    /// Name and path of each of our groups whose name begins with `name`.
    pub(crate) fn named(&self, name: &str) -> Vec<(String, PathBuf)> {
        let Some(base) = &self.base else { return Vec::new() };
        let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
        let ours = entries.filter_map(|entry| {
            let file_name = entry.file_name();
            let own = file_name.to_str()?.strip_prefix(PREFIX)?;
            own.starts_with(name).then(|| (own.to_owned(), entry.path()))
        });
        ours.collect()
    }
}

/// This process's own group in each mounted hierarchy, version 2 first.
fn candidates(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let mut after = after.split(' ');
        let kind = after.next().unwrap_or_default();
        let options = after.nth(1).unwrap_or_default();
        let fields: Vec<&str> = before.split(' ').collect();
        let (Some(root), Some(point)) = (fields.get(3), fields.get(4)) else { continue };
        let own = match kind {
            "cgroup2" => groups.lines().find_map(|line| line.strip_prefix("0::")),
            "cgroup" => groups.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                let named = |one: &str| !one.is_empty() && options.split(',').any(|o| o == one);
                // Limits of these would apply to the tree too, or their groups need more set-up.
                let plain = !controllers.contains("cpuset") && !controllers.contains("memory");
                (plain && controllers.split(',').all(named)).then_some(path)
            }),
            _ => None,
        };
        let Some(own) = own else { continue };
        let inside = own.strip_prefix(root).unwrap_or(own).trim_start_matches('/');
        let path = Path::new(point).join(inside);
        if kind == "cgroup2" {
            found.insert(0, path);
        } else {
            found.push(path);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let groups = "9:name=systemd:/\n8:pids:/a\n4:memory:/m\n0::/own\n";
        let mounts = "30 1 0:26 / /cg/pids rw - cgroup cgroup rw,pids\n\
                      31 1 0:27 / /cg/memory rw - cgroup cgroup rw,memory\n\
                      32 1 0:28 / /cg/two rw - cgroup2 cgroup2 rw\n\
                      33 1 0:29 / /home rw - ext4 /dev/x rw\n";
        let found = candidates(groups, mounts);
        assert_eq!(found, [PathBuf::from("/cg/two/own"), PathBuf::from("/cg/pids/a")]);
    }
}
