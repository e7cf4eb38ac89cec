//! Mounts the parts that [`crate::repository`] lists over themselves.

use std::os::fd::OwnedFd;
use std::path::Path;

use crate::init::root::{clone_tree, open_beneath_root, put};
use crate::init::spec::{Doing, Step, Stop};
use crate::repository::Fixed;
use crate::sys::{Depth, MOUNT_NODEV, MOUNT_NOSUID, MOUNT_RDONLY};

/// Mounts parts of a repository over themselves: a mount point can be neither moved nor removed.
pub(crate) fn lay(root: &OwnedFd, fixed: &Fixed) -> Result<(), Stop> {
    let itself = |(inside, read_only): (&'_ Path, bool)| {
        let place = open_beneath_root(root, inside).doing(Step::Mount, inside.display())?;
        Ok((clone_tree(&place, Path::new(""))?, inside.to_owned(), read_only))
    };
    // All are opened before the first is mounted, because a writable one may be inside of a
    // read-only one.
    let all = fixed.all().into_iter().map(itself).collect::<Result<Vec<_>, Stop>>()?;
    for (tree, inside, read_only) in all {
        let set = if read_only { MOUNT_RDONLY } else { 0 };
        put(root, &tree, Depth::Recursive, set | MOUNT_NOSUID | MOUNT_NODEV, &inside)?;
    }
    Ok(())
}
