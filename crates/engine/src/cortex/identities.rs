//! A cache of API keys' owners, so that the store is not read each time.
//!
//! It works as [`super::tokens`]: cached values come from rows that have not changed since. A
//! revocation marks its beginning before the row is written and its end after that; a value that
//! was read earlier or in between is not cached. So a key is useless from the commit that revokes
//! it.

use std::collections::HashMap;
use std::sync::Mutex;

use super::lock;
use crate::caller::Caller;

/// Maximum number of keys that are remembered.
const MAX_KNOWN: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct Identities(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The owners by the hash of a key that is not revoked.
    known: HashMap<[u8; 32], Caller>,
    /// How many revocations are being written.
    revoking: u32,
    /// Incremented by each revocation: a read that began before it is not cached.
    generation: u64,
}

/// The generation at which a row was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAt(u64);

/// Held while a key is being revoked.
#[derive(Debug)]
pub(crate) struct Revoking<'a>(&'a Identities);

impl Identities {
    /// The owner of this key; `Err` if its row must be read and then cached with
    /// [`Identities::keep`].
    pub(crate) fn of(&self, hash: &[u8; 32]) -> Result<Caller, ReadAt> {
        let inner = lock(&self.0);
        inner.known.get(hash).cloned().ok_or(ReadAt(inner.generation))
    }

    /// Caches the row of a valid key, unless one was revoked since it was read.
    pub(crate) fn keep(&self, hash: [u8; 32], caller: Caller, read: ReadAt) {
        let mut inner = lock(&self.0);
        if inner.generation != read.0 || inner.revoking > 0 {
            return;
        }
        if inner.known.len() >= MAX_KNOWN {
            inner.known.clear();
        }
        inner.known.insert(hash, caller);
    }

    /// Returns a guard that the caller must hold while a commit revokes a key.
    pub(crate) fn revoking(&self) -> Revoking<'_> {
        let mut inner = lock(&self.0);
        inner.generation += 1;
        inner.revoking += 1;
        inner.known.clear();
        Revoking(self)
    }
}

impl Drop for Revoking<'_> {
    fn drop(&mut self) {
        let mut inner = lock(&self.0.0);
        inner.generation += 1;
        inner.revoking -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_keys_are_read_again_after_a_revocation() {
        let (identities, hash) = (Identities::default(), [1; 32]);
        let read = identities.of(&hash).unwrap_err();
        identities.keep(hash, Caller::admin(), read);
        assert_eq!(identities.of(&hash).unwrap(), Caller::admin());
        let revoking = identities.revoking();
        let between = identities.of(&hash).unwrap_err();
        identities.keep(hash, Caller::admin(), between);
        assert!(identities.of(&hash).is_err(), "what is read during the write is not kept");
        drop(revoking);
        for old in [read, between] {
            identities.keep(hash, Caller::admin(), old);
            assert!(identities.of(&hash).is_err(), "nor what was read before it was over");
        }
        let read = identities.of(&hash).unwrap_err();
        identities.keep(hash, Caller::admin(), read);
        assert!(identities.of(&hash).is_ok());
    }
}
