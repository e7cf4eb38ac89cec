//! A queue for what is rare: of each life there is one for what it says and one for what is wanted
//! of it, and mostly both are empty. Then it holds a hundred bytes, where a channel holds eight
//! times that.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Letters for one reader, in their order. Not bounded: whoever writes is, by what a life can say
/// and by callers that wait for their answer.
#[derive(Debug)]
pub(crate) struct Letters<T> {
    waiting: Mutex<VecDeque<T>>,
    news: Notify,
}

impl<T> Default for Letters<T> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), news: Notify::new() }
    }
}

impl<T> Letters<T> {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, letter: T) {
        self.waiting().push_back(letter);
        self.news.notify_one();
    }

    /// The oldest one, if there is any.
    pub(crate) fn take(&self) -> Option<T> {
        let mut waiting = self.waiting();
        let letter = waiting.pop_front();
        if waiting.is_empty() {
            // Nothing is kept for the next.
            *waiting = VecDeque::new();
        }
        letter
    }

    /// The oldest one, as soon as there is any.
    ///
    /// # Cancel safety
    ///
    /// Dropped, nothing is taken.
    pub(crate) async fn next(&self) -> T {
        loop {
            if let Some(letter) = self.take() {
                return letter;
            }
            // What was put since has left word.
            self.news.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn letters_come_in_their_order_also_to_who_waits_already() {
        let letters = Arc::new(Letters::default());
        let (reader, write) = (Arc::clone(&letters), Arc::clone(&letters));
        let mut readers = tokio::task::JoinSet::new();
        readers.spawn(async move {
            let mut read = Vec::new();
            while read.len() < 1000 {
                read.push(reader.next().await);
            }
            read
        });
        for n in 0..1000 {
            write.put(n);
            if n % 7 == 0 {
                tokio::task::yield_now().await;
            }
        }
        let read = readers.join_next().await.unwrap().unwrap();
        assert_eq!(read, (0..1000).collect::<Vec<_>>());
        assert_eq!(letters.take(), None);
    }
}
