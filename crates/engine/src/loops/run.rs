//! The task of one loop.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures_util::FutureExt as _;
use overmind_core::loops::{LoopStatus, Reconcile, Report};
use overmind_core::time::{Clock, Timestamp};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Order, lock};

pub(super) async fn turn(
    mut what: Box<dyn Reconcile>,
    status: Arc<Mutex<LoopStatus>>,
    mut orders: mpsc::Receiver<Order>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    loop {
        let (next, hears) = {
            let status = lock(&status);
            (status.next, status.hears())
        };
        let mut asked = Vec::new();
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            order = orders.recv() => match order {
                Some(Order::Run(reply)) => asked.push(reply),
                Some(Order::Look) => continue,
                None => break,
            },
            () = until(&*clock, next) => {}
            () = what.wakes_on(), if hears => {}
        }
        // All requests from before the pass are served by it.
        while let Ok(order) = orders.try_recv() {
            if let Order::Run(reply) = order {
                asked.push(reply);
            }
        }
        pass(&mut *what, &status, &*clock).await;
        for reply in asked {
            // The caller may have left.
            drop(reply.send(lock(&status).clone()));
        }
    }
    what.stopped(clock.now()).await;
}

/// Returns at `next`. A wall clock that is set back does not delay it: the remaining time at the
/// start of the wait is the limit.
async fn until(clock: &dyn Clock, next: Option<Timestamp>) {
    let Some(next) = next else { return std::future::pending().await };
    let left = next.since(clock.now());
    let _ = tokio::time::timeout(left, clock.sleep_until(next)).await;
}

async fn pass(what: &mut dyn Reconcile, status: &Mutex<LoopStatus>, clock: &dyn Clock) {
    let name = what.name();
    lock(status).began();
    let (now, began) = (clock.now(), Instant::now());
    let ended = AssertUnwindSafe(async { what.pass(now).await }).catch_unwind().await;
    let result = ended.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(format!("panicked: {}", text.unwrap_or("without a text")))
    });
    let mut status = lock(status);
    tell(name, status.last.as_ref().map(|last| &last.result), &result);
    status.ended(clock.now(), now, began.elapsed(), result);
}

/// An error is logged once, not with each pass that finds it again.
fn tell(name: &str, before: Option<&Result<String, String>>, result: &Result<Report, String>) {
    match (before, result) {
        (Some(Err(old)), Err(new)) if old == new => {
            tracing::debug!(name, error = new, "a loop fails as before");
        }
        (_, Err(error)) => tracing::warn!(name, error, "a loop failed; it tries again"),
        (Some(Err(_)), Ok(_)) => tracing::info!(name, "a loop works again"),
        (_, Ok(report)) if report.said.is_empty() => {}
        (_, Ok(report)) => tracing::debug!(name, said = report.said, "a loop did something"),
    }
}
