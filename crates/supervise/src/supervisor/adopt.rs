//! Finds the processes that earlier daemons left.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use futures_util::StreamExt;
use overmind_core::ids::SessionId;
use overmind_core::process::{Adopted, Ended, ProcessError, ProcessKey};

use crate::record::{self, Kind};
use crate::supervisor::life::{self, Unreached, recorded};
use crate::supervisor::lost::LostLife;
use crate::supervisor::{Shared, lost};

/// Maximum number of supervisor processes that are contacted at the same time.
const AT_ONCE: usize = 64;

/// The processes of which files are left, in order. Blocks.
fn left(root: &Path) -> std::io::Result<Vec<ProcessKey>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(session) = name.to_str().and_then(|name| name.parse::<SessionId>().ok()) else {
            continue;
        };
        let Ok(files) = std::fs::read_dir(entry.path()) else { continue };
        for file in files.flatten() {
            if let Some((_, epoch)) = file.file_name().to_str().and_then(Kind::parse) {
                found.insert(ProcessKey { session, epoch });
            }
        }
    }
    Ok(found.into_iter().collect())
}

/// The state that was found for one process.
enum Found {
    Known(Adopted),
    Lost(LostLife),
    /// The earlier daemon was killed before its order reached a supervisor process: no command was
    /// started, and the start can be repeated.
    NotStarted,
}

pub(crate) async fn adopt_all(shared: &Arc<Shared>) -> Result<Vec<Adopted>, ProcessError> {
    let root = shared.ground.options.root.clone();
    let refused = |reason: String| ProcessError::Directory {
        path: shared.ground.options.root.clone(),
        reason,
    };
    let left = tokio::task::spawn_blocking(move || left(&root)).await;
    let left = left.map_err(|err| refused(err.to_string()))?;
    let left = left.map_err(|err| refused(err.to_string()))?;
    let found: Vec<Found> = futures_util::stream::iter(left)
        .map(|key| Box::pin(adopt(shared, key)))
        .buffered(AT_ONCE)
        .collect()
        .await;
    let mut adopted: BTreeMap<ProcessKey, Adopted> = BTreeMap::new();
    let mut gone = Vec::new();
    for one in found {
        match one {
            Found::Known(one) => {
                adopted.insert(key_of(&one), one);
            }
            Found::Lost(life) => gone.push(life),
            Found::NotStarted => {}
        }
    }
    if !gone.is_empty() {
        let of = Arc::clone(shared);
        let lives = gone.clone();
        // All are handled together, because each scan of all environments costs milliseconds.
        let killed = tokio::task::spawn_blocking(move || {
            lost::clean(&lives, &of.ground.bases, of.ground.options.log.into())
        });
        let killed = killed.await.unwrap_or_default();
        for life in gone {
            let killed = killed.get(&life.key).copied().unwrap_or(0);
            let ended = Ended::Lost { reason: lost::REASON.to_owned(), killed };
            shared.entry_or_new(life.key.session).begin_ended(life.key, ended.clone());
            adopted.insert(life.key, Adopted::Ended(life.key, ended));
        }
    }
    Ok(adopted.into_values().collect())
}

fn key_of(adopted: &Adopted) -> ProcessKey {
    match adopted {
        Adopted::Live(started) => started.key,
        Adopted::Ended(key, _) | Adopted::Unreachable { key, .. } => *key,
    }
}

async fn adopt(shared: &Arc<Shared>, key: ProcessKey) -> Found {
    let entry = shared.entry_or_new(key.session);
    match life::reach(&entry.dir, key).await {
        Ok((connection, running)) => {
            life::serve(shared, &entry, connection, &running);
            Found::Known(Adopted::Live(running.started()))
        }
        Err(Unreached::Gone) => match recorded(&entry.dir, key) {
            Some(ended) => {
                entry.begin_ended(key, ended.clone());
                Found::Known(Adopted::Ended(key, ended))
            }
            None if was_started(&entry.dir, key) => {
                Found::Lost(LostLife { key, dir: entry.dir.clone() })
            }
            None => {
                // An entry with a watcher stays for the next process.
                let _ = shared.forget(key.session, true);
                Found::NotStarted
            }
        },
        Err(other) => {
            let reason = other.into_error(key).to_string();
            Found::Known(Adopted::Unreachable { key, reason })
        }
    }
}

/// Whether a supervisor process came as far as starting the command. If none did, removes what is
/// left of the attempt. If that cannot be determined, assumes that the command was started.
fn was_started(dir: &Path, key: ProcessKey) -> bool {
    let Ok(opened) = record::open_dir(dir) else { return true };
    match record::exists(&opened, Kind::Life, key.epoch) {
        Ok(false) => {
            Kind::ALL.into_iter().any(|kind| record::remove(&opened, kind, key.epoch).is_err())
        }
        Ok(true) | Err(_) => true,
    }
}
