//! The socket that the network proxies of sandboxes connect to; see docs/sandbox.md.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use overmind_server::Listener;

use crate::config::Config;

const NAME: &str = "agents.sock";

pub(super) struct Agents {
    pub(super) listener: Listener,
    /// The path without links. Its directory stays the same over restarts, because open proxies
    /// connect there.
    pub(super) path: PathBuf,
}

/// Opens the socket; `None` if that is impossible: commands that want the mesh network are then
/// refused.
pub(super) async fn listen(config: &Config) -> Option<Agents> {
    match try_listen(config).await {
        Ok(agents) => Some(agents),
        Err(why) => {
            tracing::warn!(why, "no command in a sandbox can have the mesh for its network");
            None
        }
    }
}

async fn try_listen(config: &Config) -> Result<Agents, String> {
    let directory = match config.sandbox_run_as {
        None => config.data.path().to_owned(),
        // Another user cannot enter the data directory.
        Some(_) => shared(config.data.path()).map_err(|err| format!("its directory: {err}"))?,
    };
    let directory =
        directory.canonicalize().map_err(|err| format!("{}: {err}", directory.display()))?;
    let path = directory.join(NAME);
    let owner = config.sandbox_run_as.map(|(uid, _)| uid);
    let listener = Listener::agents(&path, owner).await.map_err(|err| {
        let cause = std::error::Error::source(&err).map(|cause| format!(": {cause}"));
        format!("{err}{}", cause.unwrap_or_default())
    })?;
    Ok(Agents { listener, path })
}

/// A directory that others may pass through but not list, named after the data directory.
fn shared(data: &Path) -> io::Result<PathBuf> {
    let name = blake3::hash(data.as_os_str().as_encoded_bytes()).to_hex();
    let make = |base: &Path| -> io::Result<PathBuf> {
        let directory = base.join(format!("overmind-{}", &name[..16]));
        match std::fs::DirBuilder::new().mode(0o711).create(&directory) {
            Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err),
            Ok(()) | Err(_) => {}
        }
        let found = std::fs::symlink_metadata(&directory)?;
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
            let text = format!("{} is somebody else's", directory.display());
            return Err(io::Error::other(text));
        }
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o711))?;
        Ok(directory)
    };
    make(Path::new("/run")).or_else(|_| make(&std::env::temp_dir()))
}
