//! Laying what [`crate::repository`] says over itself.

use std::os::fd::OwnedFd;
use std::path::Path;

use crate::init::root::{clone_tree, open_beneath_root, put};
use crate::init::spec::{Doing, Step, Stop};
use crate::repository::Fixed;
use crate::sys::{Depth, MOUNT_NODEV, MOUNT_NOSUID, MOUNT_RDONLY};

/// Lays parts of a repository over themselves: what is a mount point can be neither moved nor removed.
pub(crate) fn lay(root: &OwnedFd, fixed: &Fixed) -> Result<(), Stop> {
    let pinned = fixed.pinned.iter().map(|inside| (inside, 0));
    for (inside, set) in pinned.chain(fixed.read_only.iter().map(|path| (path, MOUNT_RDONLY))) {
        let place = open_beneath_root(root, inside).doing(Step::Mount, inside.display())?;
        let itself = clone_tree(&place, Path::new(""))?;
        put(root, &itself, Depth::Recursive, set | MOUNT_NOSUID | MOUNT_NODEV, inside)?;
    }
    Ok(())
}
