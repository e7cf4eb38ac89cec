//! Ends calls together with their token: each call holds a [`Pass`], which reports when the token
//! ends.
//!
//! Nothing polls. A pass is taken before the token is checked: the check sees an end that was
//! written before, and a later end finds the pass here. Code that ends tokens calls
//! [`Passes::moved`], [`Passes::revoked`] or [`Passes::regranted`] directly after its commit, and
//! for a key also before, because streams may see the commit first. All calls with one token share
//! one notification.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use overmind_core::ids::SessionId;
use tokio_util::sync::CancellationToken;

/// The message for a call whose token was valid at first.
pub const LAPSED: &str = "the token is no longer valid: its key was revoked, or its run has ended \
                          or begun again";

/// The owner that a token names, after its signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The owner of the data directory, whose token never ends.
    Admin,
    /// The hash of a possible key.
    Key([u8; 32]),
    Session {
        session: SessionId,
        /// The start or process number for which it was made.
        start: u32,
        /// The service, if a grant is also needed.
        service: Option<String>,
    },
}

/// Held by a call while it is in progress.
#[derive(Clone, Debug)]
pub struct Pass(Option<Arc<Entry>>);

#[derive(Debug)]
struct Entry {
    whose: Whose,
    end: CancellationToken,
    passes: Passes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Whose {
    Key([u8; 32]),
    Session(SessionId),
}

#[derive(Debug)]
struct Slot {
    start: u32,
    service: Option<String>,
    /// The agent whose grant of that service is used, once it is known.
    agent: Option<String>,
    end: CancellationToken,
    entry: Weak<Entry>,
}

/// The tokens of calls in progress. There are at most as many as requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passes(Arc<Mutex<HashMap<Whose, Vec<Slot>>>>);

impl Pass {
    /// Whether the token is no longer valid.
    #[cfg(test)]
    pub(crate) fn has_ended(&self) -> bool {
        self.0.as_ref().is_some_and(|entry| entry.end.is_cancelled())
    }

    /// Waits until the token is no longer valid.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: an ended token stays ended.
    pub(crate) async fn ended(&self) {
        match &self.0 {
            Some(entry) => entry.end.cancelled().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let this: *const Self = self;
        let mut all = self.passes.lock();
        if let Some(slots) = all.get_mut(&self.whose) {
            slots.retain(|slot| !std::ptr::eq(slot.entry.as_ptr(), this));
            if slots.is_empty() {
                all.remove(&self.whose);
            }
        }
    }
}

impl Passes {
    fn lock(&self) -> MutexGuard<'_, HashMap<Whose, Vec<Slot>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take it before the token is checked.
    pub(crate) fn enter(&self, holder: &Holder) -> Pass {
        let (whose, start, service) = match holder {
            Holder::Admin => return Pass(None),
            Holder::Key(hash) => (Whose::Key(*hash), 0, None),
            Holder::Session { session, start, service } => {
                (Whose::Session(*session), *start, service.as_deref())
            }
        };
        let mut all = self.lock();
        let slots = all.entry(whose).or_default();
        let same = |slot: &&Slot| slot.start == start && slot.service.as_deref() == service;
        // One that is being dropped removes itself from the list; there may be two for a moment.
        if let Some(entry) = slots.iter().filter(same).find_map(|slot| slot.entry.upgrade()) {
            return Pass(Some(entry));
        }
        let end = CancellationToken::new();
        let entry = Arc::new(Entry { whose, end: end.clone(), passes: self.clone() });
        let service = service.map(str::to_owned);
        slots.push(Slot { start, service, agent: None, end, entry: Arc::downgrade(&entry) });
        Pass(Some(entry))
    }

    /// Sets the agent whose grant a pass needs. The grant must be checked after this.
    pub(crate) fn bind(&self, pass: &Pass, agent: &str) {
        let Some(entry) = &pass.0 else { return };
        let mut all = self.lock();
        let slots = all.get_mut(&entry.whose).into_iter().flatten();
        for slot in slots.filter(|slot| std::ptr::eq(slot.entry.as_ptr(), Arc::as_ptr(entry))) {
            if slot.agent.is_none() {
                slot.agent = Some(agent.to_owned());
            }
        }
    }

    /// Ends calls after a session's row was written: only the token of the start `good` stays
    /// valid; with `None` the session has ended, and no token does.
    pub(crate) fn moved(&self, session: SessionId, good: Option<u32>) {
        let whose = Whose::Session(session);
        let mut all = self.lock();
        let Some(slots) = all.get_mut(&whose) else { return };
        let over: Vec<Slot> = slots.extract_if(.., |slot| Some(slot.start) != good).collect();
        if slots.is_empty() {
            all.remove(&whose);
        }
        drop(all);
        end(over);
    }

    /// Ends the calls of a revoked key.
    pub(crate) fn revoked(&self, hash: [u8; 32]) {
        let over = self.lock().remove(&Whose::Key(hash));
        end(over.unwrap_or_default());
    }

    /// Grants were revoked: calls stay if `may_call` allows the agent to call the service.
    pub(crate) fn regranted(&self, may_call: impl Fn(&str, &str) -> bool) {
        let mut over = Vec::new();
        self.lock().retain(|_, slots| {
            over.extend(slots.extract_if(.., |slot| match (&slot.agent, &slot.service) {
                (Some(agent), Some(service)) => !may_call(agent, service),
                (_, _) => false,
            }));
            !slots.is_empty()
        });
        end(over);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().len()
    }
}

/// This is not done under the lock, because a notified call may drop its pass, which takes the
/// lock.
fn end(over: Vec<Slot>) {
    for slot in over {
        slot.end.cancel();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const ONE: SessionId = SessionId::from_u128(1);

    fn of(session: SessionId, start: u32, service: Option<&str>) -> Holder {
        Holder::Session { session, start, service: service.map(str::to_owned) }
    }

    #[test]
    fn revoking_a_session_token_ends_only_the_calls_of_its_own_start() {
        let passes = Passes::default();
        let (first, same) = (passes.enter(&of(ONE, 1, None)), passes.enter(&of(ONE, 1, None)));
        let next = passes.enter(&of(ONE, 2, None));
        let other = passes.enter(&of(SessionId::from_u128(2), 1, None));
        passes.moved(ONE, Some(1));
        assert!(next.has_ended() && !first.has_ended(), "what was forged ahead never counts");
        let next = passes.enter(&of(ONE, 2, None));
        passes.moved(ONE, Some(2));
        assert!(first.has_ended() && same.has_ended() && !next.has_ended());
        assert!(same.ended().now_or_never().is_some() && next.ended().now_or_never().is_none());
        passes.moved(ONE, None);
        assert!(next.has_ended() && !other.has_ended());
        assert_eq!(passes.len(), 1);
        drop(other);
        assert_eq!(passes.len(), 0, "nothing is kept of who has gone");
    }

    #[test]
    fn revoking_a_key_ends_only_its_own_calls() {
        let passes = Passes::default();
        let one = passes.enter(&Holder::Key([1; 32]));
        let two = passes.enter(&Holder::Key([2; 32]));
        let admin = passes.enter(&Holder::Admin);
        passes.revoked([1; 32]);
        assert!(one.has_ended() && !two.has_ended() && !admin.has_ended());
        assert!(admin.ended().now_or_never().is_none());
        // Later calls with the token have their own pass; the token is checked after that.
        assert!(!passes.enter(&Holder::Key([1; 32])).has_ended());
        drop((one, two));
        assert_eq!(passes.len(), 0);
    }

    #[test]
    fn revoking_a_grant_ends_the_calls_that_use_it() {
        let passes = Passes::default();
        let mail = passes.enter(&of(ONE, 1, Some("mail")));
        let maps = passes.enter(&of(ONE, 1, Some("maps")));
        let plain = passes.enter(&of(ONE, 1, None));
        passes.bind(&mail, "ann");
        passes.bind(&maps, "ann");
        passes.regranted(|agent, service| agent == "ann" && service == "maps");
        assert!(mail.has_ended() && !maps.has_ended() && !plain.has_ended());
        passes.moved(ONE, None);
        assert!(maps.has_ended() && plain.has_ended());
    }

    #[test]
    fn a_pass_taken_while_another_is_dropped_is_still_found() {
        let passes = Passes::default();
        for _ in 0..100 {
            let all = passes.clone();
            std::thread::scope(|scope| {
                scope.spawn(move || (0..100).for_each(|_| drop(all.enter(&of(ONE, 1, None)))));
                for _ in 0..100 {
                    let pass = passes.enter(&of(ONE, 1, None));
                    passes.moved(ONE, None);
                    assert!(pass.has_ended());
                }
            });
        }
        assert_eq!(passes.len(), 0);
    }
}
