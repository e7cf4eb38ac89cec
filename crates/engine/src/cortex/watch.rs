//! Watchers of streams, and the newest event of each watched stream.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use overmind_core::store::StreamId;
use tokio::sync::watch;

/// The watchers of streams. A stream without watchers costs nothing.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    /// The number of commits while all streams were watched.
    all: watch::Sender<u64>,
    streams: Mutex<HashMap<StreamId, watch::Sender<u64>>>,
}

impl Watchers {
    /// The receiver's value is the newest sequence number since it began to watch, 0 before that.
    /// It tells *that* something came; the store has the events.
    pub(crate) fn watch(&self, stream: StreamId) -> watch::Receiver<u64> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|_, sender| sender.receiver_count() > 0);
        streams.entry(stream).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// The receiver's value changes with each commit, whatever its streams are.
    pub(crate) fn watch_all(&self) -> watch::Receiver<u64> {
        self.all.subscribe()
    }

    /// Called by the store's writer after each durable commit.
    pub(crate) fn committed(&self, places: &[(StreamId, u64)]) {
        if self.all.receiver_count() > 0 && !places.is_empty() {
            self.all.send_modify(|commits| *commits += 1);
        }
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.is_empty() {
            return;
        }
        for (stream, seq) in places {
            if let Some(sender) = streams.get(stream) {
                sender.send_modify(|newest| *newest = (*newest).max(*seq));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_sees_the_newest_number_and_unwatched_streams_are_dropped() {
        let watchers = Watchers::default();
        let receiver = watchers.watch(StreamId::System);
        watchers.committed(&[(StreamId::System, 7), (StreamId::System, 6)]);
        assert_eq!(*receiver.borrow(), 7);
        let mut all = watchers.watch_all();
        watchers.committed(&[(StreamId::System, 8)]);
        assert!(all.has_changed().unwrap());
        all.borrow_and_update();
        watchers.committed(&[]);
        assert!(!all.has_changed().unwrap());
        drop(receiver);
        let session = StreamId::Session(overmind_core::ids::SessionId::from_u128(1));
        let _other = watchers.watch(session);
        assert_eq!(watchers.streams.lock().unwrap().len(), 1);
    }
}
