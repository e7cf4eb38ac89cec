//! Layers that a test leaves out, to prove that the attestation notices.
//!
//! Without the feature `mutations` (nothing but this crate's own tests turns it on) there is no
//! field to ask for it and no code that would obey: [`skips`] is `false` at compile time. With
//! the feature only a driver that was *made* broken asks; no request can.

#[cfg(feature = "mutations")]
use std::path::PathBuf;
#[cfg(feature = "mutations")]
use std::sync::OnceLock;

#[cfg(feature = "mutations")]
use serde::{Deserialize, Serialize};

/// One layer of the sandbox, to be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "mutations", derive(Serialize, Deserialize))]
#[cfg_attr(not(feature = "mutations"), expect(unreachable_pub, reason = "tests name it"))]
pub enum Layer {
    NetworkNamespace,
    IpcNamespace,
    UtsNamespace,
    CgroupNamespace,
    /// Also shows the host's `/proc`: a fresh one cannot be mounted then.
    ProcessNamespace,
    /// The host's `/proc` instead of a fresh one.
    FreshProc,
    /// The host's root as it is.
    OwnRoot,
    /// The root's last step: read-only.
    ReadOnlyRoot,
    ReadOnlyProc,
    NoSuidMounts,
    /// The command is user 0 inside.
    PlainUser,
    Capabilities,
    /// And with it what needs it: Landlock and the filters.
    NoNewPrivileges,
    Landlock,
    /// Both filters.
    Filter,
    /// Only what is refused by name or argument.
    Refusals,
    /// Only what is on no list.
    AllowList,
    /// A descriptor stays open.
    CloseOnExec,
    /// The daemon's variables are passed on.
    CleanEnvironment,
    /// Another listener stands beside the door.
    OneDoor,
    /// What is the server's own is shown where it lies in what is shown.
    Masks,
}

/// What is wrong with a sandbox that a test makes.
#[cfg(feature = "mutations")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mutation {
    Without(Layer),
    /// Shows this path of the host inside, at the same place.
    Shows(PathBuf),
    /// The door of the mesh leads to this socket.
    LeadsTo(PathBuf),
    /// Every port that is let out leads to this one of the host's.
    LeadsOutTo(u16),
    /// This port of the host's is let out as well.
    LetsOut(u16),
}

#[cfg(feature = "mutations")]
static MUTATION: OnceLock<Mutation> = OnceLock::new();

/// Takes over what the order says. The init is a process of its own for each command, so this
/// holds for one sandbox.
#[cfg(feature = "mutations")]
pub(crate) fn obey(mutation: Option<&Mutation>) {
    if let Some(mutation) = mutation {
        let _ = MUTATION.set(mutation.clone());
    }
}

/// Whether a test has this layer left out.
#[cfg(feature = "mutations")]
pub(crate) fn skips(layer: Layer) -> bool {
    matches!(MUTATION.get(), Some(Mutation::Without(skipped)) if *skipped == layer)
}

#[cfg(not(feature = "mutations"))]
pub(crate) const fn skips(_layer: Layer) -> bool {
    false
}

/// What a test has shown besides.
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

/// Where a test has the door lead.
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

/// Where a test has ports lead that are let out, each with where it leads.
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
