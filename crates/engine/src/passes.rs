//! Calls that may outlive their token: whoever makes one holds a [`Pass`], and hears when the token ends.
//!
//! Nobody polls. A pass is taken before the token is looked at: an end that was written before that look
//! is seen by it, and one that is written later finds the pass here. Whoever ends tokens says so right
//! after the commit that does it: [`Passes::moved`], [`Passes::revoked`], [`Passes::regranted`]. Of a key
//! it is said before as well, for the commit itself is told to streams.
//! All calls of one token share what they wait for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use overmind_core::ids::SessionId;
use tokio_util::sync::CancellationToken;

/// What is said of a token that was worth something when it was shown.
pub const LAPSED: &str = "the token is no longer valid: its key was revoked, or its run has ended \
                          or begun again";

/// What a token says of itself, once it is known that nobody forged it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Whoever holds the data directory: that never ends.
    Admin,
    /// The hash of something that may be a key.
    Key([u8; 32]),
    Session {
        session: SessionId,
        /// The start or life that it was given for.
        start: u32,
        /// The service that a grant is asked for, too.
        service: Option<String>,
    },
}

/// Held by a call for as long as it is under way.
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
    /// Whose grant of that service it is, once that is known.
    agent: Option<String>,
    end: CancellationToken,
    entry: Weak<Entry>,
}

/// The tokens that calls are under way with. As many at most as there are requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passes(Arc<Mutex<HashMap<Whose, Vec<Slot>>>>);

impl Pass {
    /// Whether the token is worth nothing any more.
    #[cfg(test)]
    pub(crate) fn has_ended(&self) -> bool {
        self.0.as_ref().is_some_and(|entry| entry.end.is_cancelled())
    }

    /// Waits until it is.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: what has ended stays so.
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

    /// To be taken before anybody looks whether the token is worth anything.
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
        // One that is being dropped takes itself off the list; there may be two for that moment.
        if let Some(entry) = slots.iter().filter(same).find_map(|slot| slot.entry.upgrade()) {
            return Pass(Some(entry));
        }
        let end = CancellationToken::new();
        let entry = Arc::new(Entry { whose, end: end.clone(), passes: self.clone() });
        let service = service.map(str::to_owned);
        slots.push(Slot { start, service, agent: None, end, entry: Arc::downgrade(&entry) });
        Pass(Some(entry))
    }

    /// Says whose grant of its service a pass stands on. The grant is to be looked at after this.
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

    /// A session's row was written: the token of `good` counts, and none where it has ended.
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

    /// A key was revoked.
    pub(crate) fn revoked(&self, hash: [u8; 32]) {
        let over = self.lock().remove(&Whose::Key(hash));
        end(over.unwrap_or_default());
    }

    /// Grants were taken back: those stay that `may_call` lets an agent call a service by.
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

/// Not under the lock: whoever is woken may drop its pass, which takes it.
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
    fn the_calls_of_a_start_end_with_it_and_those_of_the_next_do_not() {
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
    fn a_key_ends_alone_and_the_admin_never() {
        let passes = Passes::default();
        let one = passes.enter(&Holder::Key([1; 32]));
        let two = passes.enter(&Holder::Key([2; 32]));
        let admin = passes.enter(&Holder::Admin);
        passes.revoked([1; 32]);
        assert!(one.has_ended() && !two.has_ended() && !admin.has_ended());
        assert!(admin.ended().now_or_never().is_none());
        // Who comes with it later has a pass of its own; the token is looked at after that.
        assert!(!passes.enter(&Holder::Key([1; 32])).has_ended());
        drop((one, two));
        assert_eq!(passes.len(), 0);
    }

    #[test]
    fn a_grant_that_is_taken_back_ends_the_calls_that_stand_on_it() {
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
    fn a_pass_that_is_taken_while_another_goes_is_still_found() {
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
