//! A queue for what is rare: each session that moves has one for its mail, each life one for what
//! it says and one for what is wanted of it, and mostly all are empty. Then it holds a hundred
//! bytes, where a channel holds eight times that.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Letters for one reader, in their order. Not bounded: whoever writes is, by what a life can say
/// and by callers that wait for their answer.
#[derive(Debug)]
pub(crate) struct Letters<T> {
    waiting: Mutex<Waiting<T>>,
    news: Notify,
}

#[derive(Debug)]
struct Waiting<T> {
    letters: VecDeque<T>,
    /// Nobody reads any more.
    closed: bool,
}

impl<T> Default for Letters<T> {
    fn default() -> Self {
        let waiting = Waiting { letters: VecDeque::new(), closed: false };
        Self { waiting: Mutex::new(waiting), news: Notify::new() }
    }
}

impl<T> Letters<T> {
    fn waiting(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Dropped at once where nobody reads any more.
    pub(crate) fn put(&self, letter: T) {
        let mut waiting = self.waiting();
        if waiting.closed {
            drop(waiting);
            return drop(letter);
        }
        waiting.letters.push_back(letter);
        drop(waiting);
        self.news.notify_one();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting().letters.is_empty()
    }

    /// Nobody reads any more: what waits is dropped, and so is what comes.
    pub(crate) fn close(&self) {
        let mut waiting = self.waiting();
        waiting.closed = true;
        let left = std::mem::take(&mut waiting.letters);
        drop(waiting);
        drop(left);
    }

    /// The oldest one, if there is any.
    pub(crate) fn take(&self) -> Option<T> {
        let mut waiting = self.waiting();
        let letter = waiting.letters.pop_front();
        if waiting.letters.is_empty() {
            // Nothing is kept for the next.
            waiting.letters = VecDeque::new();
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

    #[test]
    fn who_waits_for_an_answer_to_a_letter_that_nobody_reads_is_let_go() {
        let letters = Letters::default();
        let (before, mut answer_before) = tokio::sync::oneshot::channel::<()>();
        let (after, mut answer_after) = tokio::sync::oneshot::channel::<()>();
        letters.put(before);
        assert!(!letters.is_empty());
        letters.close();
        letters.put(after);
        assert!(letters.is_empty());
        let closed = tokio::sync::oneshot::error::TryRecvError::Closed;
        assert_eq!(answer_before.try_recv(), Err(closed.clone()));
        assert_eq!(answer_after.try_recv(), Err(closed));
    }
}
