//! Resources that are stored elsewhere as a [stream](crate::sse): existing ones, then changes.
//!
//! Nothing numbers their changes. So each look lists all of them and compares them with the last
//! list, at most once a second, when the log has grown. Such a stream is not resumed: a client that
//! reconnects gets all of them again.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use overmind_api::{Resource, ResourceGone, ResourceSnapshot};
use overmind_core::record::{KindInfo, Selector};
use overmind_engine::{Caller, EngineError};
use tokio::sync::watch;
use tokio::time::Instant;

use super::shown::{Wish, list};
use crate::cx::Cx;
use crate::sse::{Look, Source, say};

/// Between two lists.
const PAUSE: Duration = Duration::from_secs(1);
/// Resources listed at once, and those that one stream may compare.
const PAGE: u32 = 500;
const MOST: usize = 10_000;

/// The last list: name and hash of each resource, by uid.
type Known = BTreeMap<String, (String, u64)>;

pub(super) struct ShownSource {
    info: &'static KindInfo,
    selector: Selector,
    known: Option<Known>,
    next: Instant,
}

impl ShownSource {
    pub(super) fn new(info: &'static KindInfo, selector: Selector) -> Self {
        Self { info, selector, known: None, next: Instant::now() }
    }

    async fn all(&self, cx: &Cx, by: &Caller) -> Result<Vec<Resource>, EngineError> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let wish = Wish { selector: &self.selector, owner: None, after, limit: PAGE };
            let (found, next) = list(cx, by, self.info, wish).await?;
            all.extend(found);
            if all.len() > MOST {
                let message = format!(
                    "there are more than {MOST} {}: watch fewer with a selector, or list them",
                    self.info.plural
                );
                return Err(EngineError::conflict(message));
            }
            after = next;
            if after.is_none() {
                return Ok(all);
            }
        }
    }
}

impl Source for ShownSource {
    async fn look(&mut self, cx: &Cx, by: &Caller) -> Result<Look, EngineError> {
        tokio::time::sleep_until(self.next).await;
        let at = cx.engine.log_watch().borrow().to_string();
        let all = self.all(cx, by).await?;
        self.next = Instant::now() + PAUSE;
        let mut text = String::new();
        let mut before = self.known.take();
        let mut known = Known::new();
        for one in all {
            let (uid, name) = (one.metadata.uid.clone(), one.metadata.name.clone());
            let hash = hash(&one);
            let same = before.as_mut().and_then(|before| before.remove(&uid));
            if same.is_none_or(|(_, then)| then != hash) {
                say(&mut text, None::<u64>, Some("put"), &one);
            }
            known.insert(uid, (name, hash));
        }
        match before {
            None => {
                say(
                    &mut text,
                    None::<u64>,
                    Some("snapshot"),
                    &ResourceSnapshot { resource_version: at },
                );
            }
            Some(gone) => {
                for (uid, (name, _)) in gone {
                    let kind = overmind_api::kind_title(self.info.name);
                    let gone = ResourceGone { kind, name, uid, resource_version: at.clone() };
                    say(&mut text, None::<u64>, Some("deleted"), &gone);
                }
            }
        }
        self.known = Some(known);
        Ok(if text.is_empty() { Look::Nothing } else { Look::More(text) })
    }

    fn watch(&self, cx: &Cx) -> watch::Receiver<u64> {
        cx.engine.log_watch()
    }
}

fn hash(one: &Resource) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(one).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}
