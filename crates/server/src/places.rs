//! How many connections are open at once: on each listener, and from each client of one.
//!
//! Listeners do not share slots: a client that takes all slots on TCP leaves those of the unix
//! socket free, which the owner of the machine uses. One address, or one sandbox, cannot take all
//! slots of a listener either: it has its own limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::front::Source;

/// The places of one listener.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    all: Arc<Semaphore>,
    taken: Arc<Mutex<HashMap<Source, usize>>>,
    per_source: usize,
}

/// A place on a listener; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
    _counted: Option<Counted>,
}

#[derive(Debug)]
struct Counted {
    source: Source,
    taken: Arc<Mutex<HashMap<Source, usize>>>,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    Listener,
    Source,
}

impl Places {
    pub(crate) fn new(all: usize, per_source: usize) -> Self {
        let all = Arc::new(Semaphore::new(all));
        Self { all, taken: Arc::default(), per_source }
    }

    /// A slot for a connection whose client is not known yet.
    pub(crate) fn take(&self) -> Result<Place, Full> {
        let permit = Arc::clone(&self.all).try_acquire_owned().map_err(|_| Full::Listener)?;
        Ok(Place { _permit: permit, _counted: None })
    }

    /// Counts a slot for its client.
    pub(crate) fn count(&self, place: Place, source: Source) -> Result<Place, Full> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let now = taken.entry(source).or_default();
        if *now >= self.per_source {
            return Err(Full::Source);
        }
        *now += 1;
        drop(taken);
        let taken = Arc::clone(&self.taken);
        Ok(Place { _counted: Some(Counted { source, taken }), ..place })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = taken.get_mut(&self.source) {
            *now -= 1;
            if *now == 0 {
                taken.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> Source {
        Source::Address([127, 0, 0, last].into())
    }

    #[test]
    fn one_client_leaves_slots_to_others_and_closed_connections_are_dropped() {
        let places = Places::new(3, 2);
        let take = |who: Source| places.take().and_then(|place| places.count(place, who));
        let (first, second) = (take(from(1)).unwrap(), take(from(1)).unwrap());
        assert_eq!(take(from(1)).unwrap_err(), Full::Source);
        let other = take(from(2)).unwrap();
        assert_eq!(take(from(2)).unwrap_err(), Full::Listener);
        drop(first);
        let again = take(from(1)).unwrap();
        drop((second, other, again));
        assert!(places.taken.lock().unwrap().is_empty());
        assert_eq!(places.all.available_permits(), 3);
    }
}
