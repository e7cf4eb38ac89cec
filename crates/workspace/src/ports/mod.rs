//! Ports of a session: leased, tested, and unchanged as long as the worktree exists.
//!
//! [`Ports::take`] finds a number that nobody has leased and on which nothing listens, in either
//! address family. Leases are files in one directory of the machine, see `registry`, so that two
//! daemons and two users can share one range without conflict. A program that binds a port between
//! two checks without a lease cannot be detected: leases bind only sessions, and other programs are
//! only tested for.

pub(crate) mod registry;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::path::Path;

pub use registry::{Owner, Registry, RegistryError, default_dir};

/// The name of TCP ports in the registry.
pub(crate) const FAMILY: &str = "ports";

/// Why a session got no port.
#[derive(Debug, thiserror::Error)]
pub enum PortsError {
    #[error(
        "none of the ports {}-{} is free for `{name}`: {leased} are leased; end a session, or give \
         `ports.range` more room", range.start(), range.end()
    )]
    NoneFree { name: String, range: RangeInclusive<u16>, leased: usize },
    #[error("leasing a port for `{name}`")]
    Registry {
        name: String,
        #[source]
        source: RegistryError,
    },
}

/// Leases of ports.
#[derive(Clone, Debug)]
pub struct Ports {
    registry: Registry,
}

impl Ports {
    pub fn new(registry: Registry) -> Self {
        Self { registry }
    }

    /// Leases one port for each of `names`. On failure this call leaves no lease.
    ///
    /// The start of the search depends on owner and name, so that sessions rarely collide.
    ///
    /// # Errors
    ///
    /// [`PortsError::NoneFree`] if the range is used up.
    pub fn take(
        &self,
        names: &[String],
        range: &RangeInclusive<u16>,
        owner: &Owner,
    ) -> Result<BTreeMap<String, u16>, PortsError> {
        let mut taken = BTreeMap::new();
        for name in names {
            match self.take_one(name, range, owner) {
                Ok(port) => {
                    taken.insert(name.clone(), port);
                }
                Err(err) => {
                    self.release(taken.values().copied(), owner);
                    return Err(err);
                }
            }
        }
        Ok(taken)
    }

    fn take_one(
        &self,
        name: &str,
        range: &RangeInclusive<u16>,
        owner: &Owner,
    ) -> Result<u16, PortsError> {
        let registry = |source| PortsError::Registry { name: name.to_owned(), source };
        let count = u64::from(range.end() - range.start()) + 1;
        let hash = blake3::hash(format!("{}\0{}\0{name}", owner.home, owner.session).as_bytes());
        let bytes: [u8; 8] = hash.as_bytes()[..8].try_into().expect("a hash has 32 bytes");
        let begin = u64::from_le_bytes(bytes) % count;
        let numbers = (0..count).map(|n| {
            let offset = u16::try_from((begin + n) % count).expect("less than the range's length");
            range.start() + offset
        });
        let found = self.registry.take(FAMILY, numbers, owner, is_free).map_err(registry)?;
        found.ok_or_else(|| {
            let leased = self.registry.list(FAMILY).map_or(0, |held| held.len());
            PortsError::NoneFree { name: name.to_owned(), range: range.clone(), leased }
        })
    }

    /// Records leases again that a restart of the machine has erased. Returns those that somebody
    /// else holds by now.
    ///
    /// # Errors
    ///
    /// Fails if the registry cannot be used at all.
    pub fn reassert(
        &self,
        ports: impl IntoIterator<Item = u16>,
        owner: &Owner,
    ) -> Result<Vec<u16>, RegistryError> {
        let mut lost = Vec::new();
        for port in ports {
            // Our own service may already listen on it, so it is only leased and not tested.
            if !self.registry.hold(FAMILY, port, owner)? {
                lost.push(port);
            }
        }
        Ok(lost)
    }

    /// Releases ports; those that `owner` does not hold are not changed.
    pub fn release(&self, ports: impl IntoIterator<Item = u16>, owner: &Owner) {
        for port in ports {
            self.registry.release(FAMILY, port, owner);
        }
    }

    /// Releases every port that `owner` holds, known or not; returns their number.
    pub fn release_all(&self, owner: &Owner) -> usize {
        self.registry.release_all(FAMILY, owner)
    }

    /// Every lease on this machine that this user may read.
    pub fn list(&self) -> Vec<(u16, Owner)> {
        self.registry.list(FAMILY).unwrap_or_default()
    }
}

/// Whether nothing listens on the port, at any address of either family.
///
/// If the machine lacks a family, nothing can listen on it.
pub fn is_free(port: u16) -> bool {
    let addresses: [SocketAddr; 4] = [
        (Ipv4Addr::LOCALHOST, port).into(),
        (Ipv6Addr::LOCALHOST, port).into(),
        (Ipv4Addr::UNSPECIFIED, port).into(),
        (Ipv6Addr::UNSPECIFIED, port).into(),
    ];
    addresses.into_iter().all(|address| match TcpListener::bind(address) {
        Ok(_) => true,
        Err(err) => match err.raw_os_error() {
            Some(code) => {
                // EADDRNOTAVAIL and EAFNOSUPPORT mean that the machine lacks the family.
                [
                    rustix::io::Errno::ADDRNOTAVAIL.raw_os_error(),
                    rustix::io::Errno::AFNOSUPPORT.raw_os_error(),
                ]
                .contains(&code)
            }
            None => false,
        },
    })
}

/// Whether `path` still marks a living owner.
pub(crate) fn is_there(path: &Path) -> bool {
    // A path that cannot be examined (in another user's directory) counts as alive.
    !matches!(std::fs::symlink_metadata(path), Err(err) if err.kind() == std::io::ErrorKind::NotFound)
}
