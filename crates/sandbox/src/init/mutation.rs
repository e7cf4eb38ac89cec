//! Lets a test omit layers, to prove that the attestation notices.
//!
//! Without the feature `mutations` (only this crate's own tests enable it) there is no field that
//! asks for it and no code that would obey: [`skips`] is `false` at compile time. With the feature
//! only a driver that was *made* broken asks; no request can.

#[cfg(feature = "mutations")]
use std::path::PathBuf;
#[cfg(feature = "mutations")]
use std::sync::OnceLock;

#[cfg(feature = "mutations")]
use serde::{Deserialize, Serialize};

/// A layer of the sandbox that can be omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "mutations", derive(Serialize, Deserialize))]
#[cfg_attr(not(feature = "mutations"), expect(unreachable_pub, reason = "tests name it"))]
pub enum Layer {
    NetworkNamespace,
    IpcNamespace,
    UtsNamespace,
    CgroupNamespace,
    /// Also shows the host's `/proc`, because a new one cannot be mounted then.
    ProcessNamespace,
    /// Shows the host's `/proc` instead of a new one.
    FreshProc,
    /// Shows the host's root.
    OwnRoot,
    /// Omits the last step of the root, which makes it read-only.
    ReadOnlyRoot,
    ReadOnlyProc,
    NoSuidMounts,
    /// Runs the command as user 0 inside.
    PlainUser,
    Capabilities,
    /// Also omits the layers that need it: Landlock and the filters.
    NoNewPrivileges,
    Landlock,
    /// Both filters.
    Filter,
    /// Omits only the refusals by name or argument.
    Refusals,
    /// Omits only the allow-list.
    AllowList,
    /// Leaves a descriptor open.
    CloseOnExec,
    /// Passes the daemon's variables on.
    CleanEnvironment,
    /// Adds a listener beside the proxy.
    OneDoor,
    /// Shows the server's own files if they are in a shown directory.
    Masks,
}

/// A defect of a sandbox, made by a test.
#[cfg(feature = "mutations")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mutation {
    Without(Layer),
    /// Shows this path of the host at the same path inside.
    Shows(PathBuf),
    /// Makes the mesh proxy lead to this socket.
    LeadsTo(PathBuf),
    /// Makes every outgoing port lead to this port of the host.
    LeadsOutTo(u16),
    /// Also forwards this port to the host.
    LetsOut(u16),
}

#[cfg(feature = "mutations")]
static MUTATION: OnceLock<Mutation> = OnceLock::new();

/// Applies the order's mutation. The init is a separate process for each command, so this affects
/// one sandbox.
#[cfg(feature = "mutations")]
pub(crate) fn obey(mutation: Option<&Mutation>) {
    if let Some(mutation) = mutation {
        let _ = MUTATION.set(mutation.clone());
    }
}

/// Whether a test omits this layer.
#[cfg(feature = "mutations")]
pub(crate) fn skips(layer: Layer) -> bool {
    matches!(MUTATION.get(), Some(Mutation::Without(skipped)) if *skipped == layer)
}

#[cfg(not(feature = "mutations"))]
pub(crate) const fn skips(_layer: Layer) -> bool {
    false
}

/// The path that a test shows in addition.
#[cfg(feature = "mutations")]
pub(crate) fn shown() -> Option<&'static std::path::Path> {
    match MUTATION.get() {
        Some(Mutation::Shows(path)) => Some(path),
        Some(
            Mutation::Without(_)
            | Mutation::LeadsTo(_)
            | Mutation::LeadsOutTo(_)
            | Mutation::LetsOut(_),
        )
        | None => None,
    }
}

/// The socket to which a test redirects the relay.
#[cfg(feature = "mutations")]
pub(crate) fn door() -> Option<&'static std::path::Path> {
    match MUTATION.get() {
        Some(Mutation::LeadsTo(path)) => Some(path),
        Some(
            Mutation::Without(_)
            | Mutation::Shows(_)
            | Mutation::LeadsOutTo(_)
            | Mutation::LetsOut(_),
        )
        | None => None,
    }
}

/// The outgoing ports with their targets, as a test changes them.
#[cfg(feature = "mutations")]
pub(crate) fn ways_out(ways: impl Iterator<Item = (u16, u16)>) -> impl Iterator<Item = (u16, u16)> {
    let (all, more) = match MUTATION.get() {
        Some(Mutation::LeadsOutTo(port)) => (Some(*port), None),
        Some(Mutation::LetsOut(port)) => (None, Some((*port, *port))),
        Some(Mutation::Without(_) | Mutation::Shows(_) | Mutation::LeadsTo(_)) | None => {
            (None, None)
        }
    };
    ways.map(move |(port, end)| (port, all.unwrap_or(end))).chain(more)
}
