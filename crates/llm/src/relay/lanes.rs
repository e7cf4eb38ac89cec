//! Limits of each provider: calls at once, calls per minute, and pauses after failures.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use overmind_core::relay::{Refusal, RefusalKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::{Provider, RelayLimits};

/// Maximum number of pairs of provider and model whose pause is remembered.
const MAX_RESTING: usize = 1024;

/// The limits of one provider.
#[derive(Debug)]
struct Lane {
    calls: Arc<Semaphore>,
    /// The slots of the queue of waiting calls.
    queue: Arc<Semaphore>,
    /// The number of calls that may begin at once, and the time of that count.
    bucket: Option<Mutex<(f64, Instant)>>,
    per_minute: f64,
}

/// The limits of all providers.
#[derive(Debug)]
pub(crate) struct Lanes {
    limits: RelayLimits,
    lanes: HashMap<String, Lane>,
    /// The time until which a provider's model is skipped if there is another choice.
    resting: Mutex<HashMap<(String, String), Instant>>,
}

impl Lanes {
    pub(crate) fn new(providers: &[Provider], limits: RelayLimits) -> Self {
        let lanes = providers.iter().map(|provider| {
            let at_once = provider.max_concurrent.unwrap_or(limits.max_concurrent).max(1);
            let per_minute = provider.max_per_minute;
            let lane = Lane {
                calls: Arc::new(Semaphore::new(at_once.min(Semaphore::MAX_PERMITS))),
                queue: Arc::new(Semaphore::new(limits.max_queued)),
                bucket: per_minute.map(|n| Mutex::new((f64::from(n), Instant::now()))),
                per_minute: f64::from(per_minute.unwrap_or(0)),
            };
            (provider.name.clone(), lane)
        });
        Self { limits, lanes: lanes.collect(), resting: Mutex::default() }
    }

    /// Takes a slot for a call to a provider; dropping it frees the slot.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if no slot is free: at once if the queue is full or the calls of the minute are
    /// used up, otherwise after `queue_wait`.
    pub(crate) async fn enter(
        &self,
        provider: &str,
    ) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
        let Some(lane) = self.lanes.get(provider) else { return Ok(None) };
        lane.count(provider)?;
        if let Ok(place) = Arc::clone(&lane.calls).try_acquire_owned() {
            return Ok(Some(place));
        }
        let busy = |why: &str| {
            let text = format!("provider {provider} has no place for another call: {why}");
            Refusal::new(RefusalKind::Overloaded, text).after(Duration::from_secs(1))
        };
        let Ok(_waiting) = Arc::clone(&lane.queue).try_acquire_owned() else {
            return Err(busy("the queue for it is full"));
        };
        let place = Arc::clone(&lane.calls).acquire_owned();
        match tokio::time::timeout(self.limits.queue_wait, place).await {
            Ok(Ok(place)) => Ok(Some(place)),
            Ok(Err(_)) => Err(busy("it is closed")),
            Err(_) => Err(busy("none became free in time")),
        }
    }

    /// Starts a model's pause after a failure.
    pub(crate) fn rest(&self, provider: &str, model: &str, asked: Option<Duration>) {
        let wait = asked.unwrap_or(self.limits.cool_down).min(self.limits.max_cool_down);
        let now = Instant::now();
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        if resting.len() >= MAX_RESTING {
            resting.retain(|_, until| *until > now);
        }
        if resting.len() < MAX_RESTING {
            resting.insert((provider.to_owned(), model.to_owned()), now + wait);
        }
    }

    pub(crate) fn is_resting(&self, provider: &str, model: &str) -> bool {
        let resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        if resting.is_empty() {
            return false;
        }
        let until = resting.get(&(provider.to_owned(), model.to_owned()));
        until.is_some_and(|until| *until > Instant::now())
    }
}

impl Lane {
    /// Counts one call against the limit per minute.
    fn count(&self, provider: &str) -> Result<(), Refusal> {
        let Some(bucket) = &self.bucket else { return Ok(()) };
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let per_second = self.per_minute / 60.0;
        let grown = now.duration_since(bucket.1).as_secs_f64() * per_second;
        *bucket = ((bucket.0 + grown).min(self.per_minute), now);
        if bucket.0 < 1.0 {
            let wait = Duration::try_from_secs_f64((1.0 - bucket.0) / per_second);
            let text = format!(
                "provider {provider} is given no more than {} calls a minute here",
                self.per_minute
            );
            let wait = wait.unwrap_or(Duration::from_secs(60));
            return Err(Refusal::new(RefusalKind::RateLimited, text).after(wait));
        }
        bucket.0 -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Format;

    fn lanes(at_once: usize, queued: usize, per_minute: Option<u32>) -> Lanes {
        let provider = Provider {
            max_concurrent: Some(at_once),
            max_per_minute: per_minute,
            ..Provider::new("p", Format::OpenAiChat, "http://127.0.0.1:1")
        };
        let limits = RelayLimits { max_queued: queued, ..RelayLimits::default() };
        Lanes::new(&[provider], limits)
    }

    #[tokio::test]
    async fn a_full_queue_refuses_with_retry_after() {
        let lanes = lanes(1, 1, None);
        let first = lanes.enter("p").await.unwrap();
        let mut second = Box::pin(lanes.enter("p"));
        assert!(futures_pending(&mut second).await);
        let refused = lanes.enter("p").await.unwrap_err();
        assert_eq!(refused.kind, RefusalKind::Overloaded);
        assert!(refused.retry_after.is_some());
        drop(first);
        assert!(second.await.unwrap().is_some());
    }

    /// Whether a future does not end when it is asked once.
    async fn futures_pending<F: Future + Unpin>(future: &mut F) -> bool {
        let mut future = std::pin::Pin::new(future);
        std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending()))
            .await
    }

    #[tokio::test]
    async fn calls_per_minute_are_limited() {
        let lanes = lanes(9, 9, Some(2));
        for _ in 0..2 {
            lanes.enter("p").await.unwrap();
        }
        let refused = lanes.enter("p").await.unwrap_err();
        assert_eq!(refused.kind, RefusalKind::RateLimited);
        assert!(refused.retry_after.unwrap() <= Duration::from_secs(30));
    }

    #[test]
    fn a_model_is_not_called_for_the_requested_delay() {
        let lanes = lanes(1, 1, None);
        assert!(!lanes.is_resting("p", "m"));
        lanes.rest("p", "m", None);
        assert!(lanes.is_resting("p", "m") && !lanes.is_resting("p", "other"));
        lanes.rest("p", "m", Some(Duration::ZERO));
        assert!(!lanes.is_resting("p", "m"));
    }
}
