//! A queue of requests for one process, for the task that handles them.
//!
//! It is bounded like a channel, but a tenth of its size: there is one for each process, and it is
//! usually empty.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore};

#[derive(Debug)]
struct Queue<T> {
    inner: Mutex<Inner<T>>,
    /// The free places. Closed when the receiver is gone.
    room: Semaphore,
    news: Notify,
}

#[derive(Debug)]
struct Inner<T> {
    waiting: VecDeque<T>,
    /// Whether the sender is gone.
    ended: bool,
    /// Whether the receiver is gone.
    closed: bool,
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a value into a reserved place.
    fn put(&self, one: T) -> Result<(), Full> {
        {
            let mut inner = self.lock();
            if inner.closed {
                return Err(Full);
            }
            inner.waiting.push_back(one);
        }
        self.news.notify_one();
        Ok(())
    }
}

/// Makes both ends. Once `bound` values wait, senders wait too.
pub(crate) fn queue<T>(bound: usize) -> (Sender<T>, Receiver<T>) {
    let inner = Inner { waiting: VecDeque::new(), ended: false, closed: false };
    let (inner, room) = (Mutex::new(inner), Semaphore::new(bound));
    let queue = Arc::new(Queue { inner, room, news: Notify::new() });
    (Sender(Arc::clone(&queue)), Receiver(queue))
}

/// The error of a value that was not queued: the receiver is gone, or there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// The sending end. After its drop the receiver gets `None` at the end.
#[derive(Debug)]
pub(crate) struct Sender<T>(Arc<Queue<T>>);

impl<T> Sender<T> {
    /// Waits until there is room.
    ///
    /// # Errors
    ///
    /// [`Full`] if the receiver is gone.
    ///
    /// # Cancel safety
    ///
    /// If dropped, nothing was queued.
    pub(crate) async fn send(&self, one: T) -> Result<(), Full> {
        let place = self.0.room.acquire().await.map_err(|_| Full)?;
        place.forget();
        self.0.put(one)
    }

    /// # Errors
    ///
    /// [`Full`] at once, if there is no room or no receiver.
    pub(crate) fn try_send(&self, one: T) -> Result<(), Full> {
        let place = self.0.room.try_acquire().map_err(|_| Full)?;
        place.forget();
        self.0.put(one)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.news.notify_one();
    }
}

/// The receiving end. Dropping it drops the waiting values, and nothing more is accepted.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Queue<T>>);

impl<T> Receiver<T> {
    /// The oldest value; `None` if nothing more can come.
    ///
    /// # Cancel safety
    ///
    /// If dropped, no value is lost.
    pub(crate) async fn recv(&mut self) -> Option<T> {
        loop {
            {
                let mut inner = self.0.lock();
                if let Some(one) = inner.waiting.pop_front() {
                    if inner.waiting.is_empty() {
                        // Its memory is not kept for the next value.
                        inner.waiting = VecDeque::new();
                    }
                    self.0.room.add_permits(1);
                    return Some(one);
                }
                if inner.ended {
                    return None;
                }
            }
            // A value that was queued since then has set a notification.
            self.0.news.notified().await;
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.room.close();
        let left = {
            let mut inner = self.0.lock();
            inner.closed = true;
            std::mem::take(&mut inner.waiting)
        };
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_pending(future: impl Future) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[tokio::test]
    async fn a_sender_waits_until_the_queue_has_space() {
        let (sender, mut receiver) = queue(2);
        sender.send(1).await.unwrap();
        sender.try_send(2).unwrap();
        assert_eq!(sender.try_send(3), Err(Full));
        let mut third = Box::pin(sender.send(3));
        assert!(is_pending(third.as_mut()));
        assert_eq!(receiver.recv().await, Some(1));
        third.await.unwrap();
        assert_eq!(receiver.recv().await, Some(2));
        assert_eq!(receiver.recv().await, Some(3));
        assert!(is_pending(receiver.recv()));
        drop(sender);
        assert_eq!(receiver.recv().await, None);
    }

    #[tokio::test]
    async fn a_closed_queue_releases_its_waiting_senders() {
        let (sender, receiver) = queue(1);
        let (reply, answer) = tokio::sync::oneshot::channel::<()>();
        sender.send(reply).await.unwrap();
        let (other, _) = tokio::sync::oneshot::channel::<()>();
        let mut second = Box::pin(sender.send(other));
        assert!(is_pending(second.as_mut()));
        drop(receiver);
        assert_eq!(second.await, Err(Full));
        answer.await.unwrap_err();
        let (other, _) = tokio::sync::oneshot::channel::<()>();
        assert_eq!(sender.try_send(other).unwrap_err(), Full);
    }

    #[tokio::test]
    async fn a_waiting_receiver_gets_a_new_message() {
        let (sender, mut receiver) = queue(4);
        let mut readers = tokio::task::JoinSet::new();
        readers.spawn(async move {
            let mut read = Vec::new();
            while let Some(one) = receiver.recv().await {
                read.push(one);
            }
            read
        });
        for n in 0..1000 {
            sender.send(n).await.unwrap();
        }
        drop(sender);
        let read = readers.join_next().await.unwrap().unwrap();
        assert_eq!(read, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn an_empty_queue_is_small() {
        let size = size_of::<Queue<Box<u64>>>();
        assert!(size <= 192, "{size} bytes, and there is one for each life");
    }
}
