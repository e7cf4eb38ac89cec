//! Submodules: taken from the primary's own store, so that none needs the network.

use std::path::{Component, Path, PathBuf};

use super::error::TreeError;
use super::gitdir;
use super::source::{self, Source};
use crate::git::Git;
use crate::opener::{Dir, Own};

/// A submodule whose repository is on this machine.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) name: PathBuf,
    pub(crate) source: Source,
}

impl Found {
    pub(crate) fn has(&self, git: &Git, commit: &str) -> bool {
        git.call("look for a submodule's commit")
            .source(&self.source)
            .args(["cat-file", "-e", &format!("{commit}^{{commit}}")])
            .run()
            .is_ok()
    }
}

/// The repository of the submodule at `path` of a tree; `None` when it is not on this machine, or the
/// tree does not say what it is called.
pub(crate) fn locate(
    git: &Git,
    of: &Source,
    tree: &Path,
    path: &Path,
) -> Result<Option<Found>, TreeError> {
    let file = tree.join(".gitmodules");
    if !std::fs::symlink_metadata(&file).is_ok_and(|meta| meta.is_file()) {
        return Ok(None);
    }
    let settings = source::list(git, &file, &[tree])?;
    let name = settings.iter().find_map(|setting| {
        let here = setting.section == "submodule"
            && setting.key == "path"
            && Path::new(&setting.value) == path;
        if here { setting.sub.as_deref() } else { None }
    });
    let Some(name) = name.map(PathBuf::from).filter(|name| stays_within(name)) else {
        return Ok(None);
    };
    let module = Path::new("modules").join(&name);
    let mut places = vec![(of.git_dir.as_path(), module.clone()), (of.common.as_path(), module)];
    if let Some(top) = &of.top {
        // The layout before git kept them all in one place.
        places.push((top, path.join(".git")));
    }
    // No link leads to one: the tree contains its path, and would control the borrowed objects.
    let is_there = |(root, at): &(&Path, PathBuf)| {
        Dir::open_plain(root).is_ok_and(|root| root.has_dir(&at.join("objects")))
    };
    let Some((root, at)) = places.into_iter().find(is_there) else { return Ok(None) };
    let place = root.join(at);
    let within = of.within.clone();
    let source = Source { top: None, git_dir: place.clone(), common: place, within };
    // A submodule that borrows from elsewhere counts as one that is not on this machine.
    if source.within.is_some() {
        let stores = gitdir::stores(&source.objects());
        if !stores.is_some_and(|all| all.iter().all(|store| source.reaches(store))) {
            return Ok(None);
        }
    }
    source.check(&Own::default())?;
    Ok(Some(Found { name, source }))
}

fn stays_within(name: &Path) -> bool {
    let plain = |component: Component<'_>| match component {
        Component::Normal(name) => !name.eq_ignore_ascii_case(".git"),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
            false
        }
    };
    !name.as_os_str().is_empty() && name.components().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_outside_are_refused() {
        for bad in ["", "../x", "/x", "a/../../x", ".git", "a/.GIT"] {
            assert!(!stays_within(Path::new(bad)), "{bad}");
        }
        assert!(stays_within(Path::new("libs/x")));
    }
}
