//! A cache of valid session tokens, so that the store is not read each time.
//!
//! A cached value comes from a row that has not changed since. A driver marks the beginning and the
//! end of each write of a row, and a value that was read before or in between is not cached. So a
//! token is refused from the commit that ends its session or its process.

use std::collections::HashMap;
use std::sync::Mutex;

use overmind_core::ids::{ColonyId, SessionId};
use overmind_core::row::SessionRow;

use super::lock;

/// Maximum number of sessions that are remembered.
const MAX_KNOWN: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Tokens(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The start or process number whose token is valid, for sessions that have not ended, and the
    /// colony of the session.
    known: HashMap<SessionId, (u32, ColonyId)>,
    /// Sessions whose rows are being written. One driver writes a session, so once each.
    moving: HashMap<SessionId, u32>,
    /// Incremented by each write: a read that began before it is not cached.
    generation: u64,
}

/// The start or process number of a session's token; `None` once the session has ended.
pub(crate) fn start_of(row: &SessionRow) -> Option<u32> {
    // A command keeps its token for its whole process, over restarts of the server.
    let start = row.command.as_ref().map_or(row.epoch, |command| command.life);
    (!row.status.is_terminal()).then_some(start)
}

/// The generation at which a row was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAt(u64);

/// Held while a session's row is being written.
#[derive(Debug)]
pub(crate) struct Moving<'a> {
    tokens: &'a Tokens,
    session: SessionId,
}

impl Tokens {
    /// The session's colony, if the token of this start is valid; `Err` if the row must be read and
    /// then cached with [`Tokens::keep`].
    pub(crate) fn colony_of(
        &self,
        session: SessionId,
        start: u32,
    ) -> Result<Option<ColonyId>, ReadAt> {
        let inner = lock(&self.0);
        match inner.known.get(&session) {
            Some((known, colony)) => Ok((*known == start).then_some(*colony)),
            None => Err(ReadAt(inner.generation)),
        }
    }

    /// Caches the row of a session that has not ended, unless a row was written since.
    pub(crate) fn keep(&self, session: SessionId, start: u32, colony: ColonyId, read: ReadAt) {
        let mut inner = lock(&self.0);
        if inner.generation != read.0 || inner.moving.contains_key(&session) {
            return;
        }
        if inner.known.len() >= MAX_KNOWN {
            inner.known.clear();
        }
        inner.known.insert(session, (start, colony));
    }

    /// Returns a guard that the caller must hold while a commit writes the session's row.
    pub(crate) fn moving(&self, session: SessionId) -> Moving<'_> {
        let mut inner = lock(&self.0);
        inner.generation += 1;
        inner.known.remove(&session);
        *inner.moving.entry(session).or_default() += 1;
        Moving { tokens: self, session }
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let mut inner = lock(&self.tokens.0);
        inner.generation += 1;
        if let Some(count) = inner.moving.get_mut(&self.session) {
            *count -= 1;
            if *count == 0 {
                inner.moving.remove(&self.session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SessionId = SessionId::from_u128(1);
    const A: ColonyId = ColonyId::from_u128(2);

    #[test]
    fn a_cached_row_is_read_again_after_a_write() {
        let tokens = Tokens::default();
        let read = tokens.colony_of(ONE, 3).unwrap_err();
        tokens.keep(ONE, 3, A, read);
        assert_eq!(tokens.colony_of(ONE, 3).unwrap(), Some(A));
        assert_eq!(tokens.colony_of(ONE, 2).unwrap(), None, "the token of an earlier start");
        let moving = tokens.moving(ONE);
        let between = tokens.colony_of(ONE, 3).unwrap_err();
        tokens.keep(ONE, 3, A, between);
        assert!(tokens.colony_of(ONE, 3).is_err(), "what is read during the write is not kept");
        drop(moving);
        tokens.keep(ONE, 3, A, between);
        assert!(tokens.colony_of(ONE, 3).is_err(), "nor afterwards");
        tokens.keep(ONE, 3, A, read);
        assert!(tokens.colony_of(ONE, 3).is_err(), "nor what was read before");
        let read = tokens.colony_of(ONE, 4).unwrap_err();
        tokens.keep(ONE, 4, A, read);
        assert_eq!(tokens.colony_of(ONE, 3).unwrap(), None);
        assert_eq!(tokens.colony_of(ONE, 4).unwrap(), Some(A));
    }
}
