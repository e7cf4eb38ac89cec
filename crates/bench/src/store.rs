//! The cost of listing a long log.

use std::sync::Arc;
use std::time::Instant;

use overmind_cli::bench::store::event;
use overmind_cli::exit::Failure;
use overmind_core::ids::SessionId;
use overmind_core::store::{Commit, EventQuery, NewEvent, Store, StoreError};
use overmind_core::time::Timestamp;
use overmind_node::app::clock::SystemIds;
use overmind_store::{Options, Sqlite};
use serde_json::json;

use super::process::{mib, rss};
use super::{Figure, Goal, Setting, rate};

/// Events of one commit while a long log is made.
const BULK: u32 = 1000;
/// The maximum growth that counts as "flat", in MiB: a page of the list and the readers' caches.
const FLAT: f64 = 32.0;

/// The cost of reading a long log from end to end, page by page.
pub(super) async fn listing(setting: &Setting) -> Result<Vec<Figure>, Failure> {
    let dir = setting.place("long")?;
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(Options::new(dir.join("bench.db")))?);
    let events = setting.count(1_000_000);
    let ids: Vec<SessionId> = (0..16).map(|_| SessionId::mint(&SystemIds)).collect();
    for bulk in 0..events / BULK {
        let id = ids[bulk as usize % ids.len()];
        let events = (0..BULK).map(|n| NewEvent {
            ts: Timestamp::from_micros(i64::from(bulk)),
            payload: json!({"n": n, "text": "a line of what some tool has said"}),
            ..event(id, n)
        });
        store.commit(Commit { events: events.collect(), ..Commit::default() }).await?;
    }
    // The first pages fill the readers' caches, which are bounded and there to be filled.
    overmind_node::sys::give_back_memory();
    read_all(&*store, Some(50_000)).await?;
    let before = rss(std::process::id());
    let start = Instant::now();
    let (read, peak) = read_all(&*store, None).await?;
    let elapsed = start.elapsed();
    store.close().await?;
    if read != u64::from(events) {
        return Err(Failure::failed(format!("{events} events were written and {read} read back")));
    }
    let growth = mib(peak.saturating_sub(before));
    Ok(vec![
        Figure::new("memory of listing", growth, "MiB")
            .goal(Goal::Most(FLAT))
            .note(format!("growth of resident memory over {events} events, in pages of 1,000")),
        Figure::new("listing events", rate(events, elapsed), "events/s"),
    ])
}

/// Reads the log in pages; how many events there were, and the most memory seen on the way.
async fn read_all(store: &dyn Store, most: Option<u64>) -> Result<(u64, u64), StoreError> {
    let (mut after, mut read, mut peak) = (0, 0, 0);
    loop {
        let query = EventQuery { stream: None, after, kinds: &[], limit: 1000 };
        let page = store.events(query).await?;
        let Some(last) = page.last() else { return Ok((read, peak)) };
        after = last.global;
        read += page.len() as u64;
        if read.is_multiple_of(20_000) {
            peak = peak.max(rss(std::process::id()));
        }
        if most.is_some_and(|most| read >= most) {
            return Ok((read, peak));
        }
    }
}
