//! Ports of a session: leased, tested, the same for as long as the worktree lives.
//!
//! [`Ports::take`] finds a number that nobody has leased and nothing listens on, on either
//! address family. Leases are files in one directory of the machine, see `registry`, so that
//! two daemons and two users share one range without meeting. What refuses to be known is who
//! binds a port between two looks without asking: a lease is a promise among sessions, and a
//! test of the rest.

pub(crate) mod registry;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::path::Path;

pub use registry::{Owner, Registry, RegistryError, default_dir};

/// The registry's family for TCP ports.
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

    /// Leases one port for each of `names`. On failure nothing stays leased by this call.
    ///
    /// Where the search begins depends on owner and name, so that sessions rarely meet.
    ///
    /// # Errors
    ///
    /// [`PortsError::NoneFree`] when the range is used up.
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

    /// Writes leases down again that a restart of the machine has wiped away. Those that
    /// somebody else holds by now are returned.
    ///
    /// # Errors
    ///
    /// When the registry cannot be used at all.
    pub fn reassert(
        &self,
        ports: impl IntoIterator<Item = u16>,
        owner: &Owner,
    ) -> Result<Vec<u16>, RegistryError> {
        let mut lost = Vec::new();
        for port in ports {
            // Our own service may listen on it already: held is held, bound or not.
            if !self.registry.hold(FAMILY, port, owner)? {
                lost.push(port);
            }
        }
        Ok(lost)
    }

    /// Gives ports back; those that `owner` does not hold are left alone.
    pub fn release(&self, ports: impl IntoIterator<Item = u16>, owner: &Owner) {
        for port in ports {
            self.registry.release(FAMILY, port, owner);
        }
    }

    /// Gives back every port that `owner` holds, known or not; how many there were.
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
/// A family that the machine does not have cannot be listened on.
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
                // EADDRNOTAVAIL, EAFNOSUPPORT: there is no such family here.
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
    // What cannot be looked at (another user's directory) counts as alive.
    !matches!(std::fs::symlink_metadata(path), Err(err) if err.kind() == std::io::ErrorKind::NotFound)
}
