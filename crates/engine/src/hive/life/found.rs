//! Processes that an earlier server left: found at the start, then claimed by their sessions or ended.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use overmind_core::ids::SessionId;
use overmind_core::process::{Adopted, ProcessKey};

use super::{Found, Lives};

impl Lives {
    /// Finds processes that an earlier server left, and ends those without a session.
    pub(crate) async fn keep(self: &Arc<Self>, lives: Vec<(SessionId, u32)>) {
        let wanted: HashSet<ProcessKey> =
            lives.into_iter().map(|(session, epoch)| ProcessKey { session, epoch }).collect();
        let adopted = match self.processes.adopt_all().await {
            Ok(adopted) => adopted,
            Err(err) => {
                tracing::error!(error = %err, "processes of an earlier start cannot be found");
                Vec::new()
            }
        };
        let mut found = HashMap::new();
        let mut unwanted = Vec::new();
        for one in adopted {
            let key = match &one {
                Adopted::Live(started) => started.key,
                Adopted::Ended(key, _) | Adopted::Unreachable { key, .. } => *key,
            };
            if wanted.contains(&key) {
                found.insert(key, one);
            } else {
                unwanted.push((one, self.busy(key.session)));
            }
        }
        self.found.send_replace(Some(found));
        for (one, _busy) in unwanted {
            self.end_unwanted(one).await;
        }
    }

    async fn end_unwanted(&self, one: Adopted) {
        match one {
            Adopted::Live(started) => {
                tracing::info!(life = %started.key, "a process that nobody wants is ended");
                self.kill(started.key, "its session has ended").await;
            }
            Adopted::Ended(key, _) => self.acknowledge(key).await,
            Adopted::Unreachable { key, reason } => {
                tracing::warn!(life = %key, reason, "a process is left alone");
            }
        }
    }

    /// Ends what an earlier process left of a session that has ended since. It was wanted when the
    /// server started, and the session was canceled before it asked for it again.
    pub(crate) fn end_unclaimed(self: &Arc<Self>, session: SessionId) {
        let is_its = |found: &Found| match found {
            Some(found) => found.keys().any(|key| key.session == session),
            None => true,
        };
        if !is_its(&self.found.borrow()) {
            return;
        }
        let (lives, busy) = (Arc::clone(self), self.busy(session));
        self.tasks.spawn(move |_stop| async move {
            lives.looked().await;
            let mut left = Vec::new();
            lives.found.send_if_modified(|found| {
                let found = found.iter_mut();
                left.extend(found.flat_map(|all| all.extract_if(|key, _| key.session == session)));
                false
            });
            for (_, one) in left {
                lives.end_unwanted(one).await;
            }
            drop(busy);
        });
    }

    /// Acknowledges an exit that was recorded. If a process of an earlier server still runs, its
    /// session was canceled before it was recovered, and the process is ended first.
    pub(crate) fn recorded(self: &Arc<Self>, key: ProcessKey) {
        let (lives, busy) = (Arc::clone(self), self.busy(key.session));
        self.tasks.spawn(move |_stop| async move {
            match lives.found(key).await {
                Some(one) => lives.end_unwanted(one).await,
                None => lives.acknowledge(key).await,
            }
            drop(busy);
        });
    }

    /// Waits until the processes of earlier servers have been searched for. Until then a process
    /// that runs can be unknown.
    pub(crate) async fn looked(&self) {
        // The sender lives as long as this does.
        let _ = self.found.subscribe().wait_for(Option::is_some).await;
    }

    pub(super) async fn found(&self, key: ProcessKey) -> Option<Adopted> {
        self.looked().await;
        let mut taken = None;
        self.found.send_if_modified(|found| {
            taken = found.as_mut().and_then(|found| found.remove(&key));
            false
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use overmind_core::process::{ProcessSpec, Processes as _};
    use overmind_testkit::clock::ManualClock;
    use overmind_testkit::processes::FakeProcesses;
    use overmind_testkit::rooms::Journal;

    use super::*;
    use crate::credentials::Credentials;
    use crate::tasks::Tasks;

    /// Processes of an earlier server, of sessions 1 to `count`.
    async fn left_running(count: u128) -> (Arc<FakeProcesses>, Arc<Lives>, Vec<ProcessKey>) {
        let processes = FakeProcesses::new(Journal::default());
        let keys: Vec<_> = (1..=count)
            .map(|number| ProcessKey { session: SessionId::from_u128(number), epoch: 1 })
            .collect();
        for key in &keys {
            let spec = ProcessSpec::new(*key, vec!["sleeps".to_owned()], "/".into());
            processes.start(spec).await.unwrap();
        }
        let lives = Lives::new(
            processes.clone(),
            None,
            Arc::new(ManualClock::default()),
            Vec::new(),
            Credentials::default(),
            None,
            Tasks::default(),
        );
        (processes, Arc::new(lives), keys)
    }

    /// A session is canceled after the start has found its process wanted, and before it was recovered.
    #[tokio::test]
    async fn a_process_whose_session_ends_before_it_is_claimed_is_ended() {
        let (processes, lives, keys) = left_running(2).await;
        let (ends, goes_on) = (keys[0], keys[1]);
        // Before and after the search for existing processes.
        lives.end_unclaimed(SessionId::from_u128(3));
        lives.end_unclaimed(ends.session);
        lives.keep(keys.iter().map(|key| (key.session, key.epoch)).collect()).await;
        tokio::time::timeout(Duration::from_secs(30), lives.gone(ends.session)).await.unwrap();
        assert_eq!(processes.alive(), 1);
        assert!(matches!(lives.found(goes_on).await, Some(Adopted::Live(_))));
    }

    /// A canceled session has a recorded exit before the earlier server's process was found.
    #[tokio::test]
    async fn a_process_with_a_recorded_exit_is_ended_once_it_is_found() {
        let (processes, lives, keys) = left_running(1).await;
        lives.recorded(keys[0]);
        tokio::task::yield_now().await;
        assert_eq!(processes.alive(), 1);
        lives.keep(vec![(keys[0].session, keys[0].epoch)]).await;
        tokio::time::timeout(Duration::from_secs(30), lives.gone(keys[0].session)).await.unwrap();
        assert_eq!(processes.alive(), 0);
        assert_eq!(lives.found(keys[0]).await, None);
    }
}
