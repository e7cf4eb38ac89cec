//! Processes that an earlier server left: found at the start, then claimed by their sessions or ended.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use overmind_core::ids::SessionId;
use overmind_core::process::{Adopted, ProcessKey};

use super::{Found, Lives};

impl Lives {
    /// Finds what an earlier process left, and ends what nobody wants any more.
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
            let _ = lives.found.subscribe().wait_for(Option::is_some).await;
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

    pub(super) async fn found(&self, key: ProcessKey) -> Option<Adopted> {
        let mut found = self.found.subscribe();
        // The sender lives as long as this does.
        let _ = found.wait_for(Option::is_some).await;
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

    /// A session is canceled after the start has found its process wanted, and before it was recovered.
    #[tokio::test]
    async fn a_process_whose_session_ends_before_it_is_claimed_is_ended() {
        let processes = FakeProcesses::new(Journal::default());
        let [ends, goes_on] =
            [1, 2].map(|number| ProcessKey { session: SessionId::from_u128(number), epoch: 1 });
        for key in [ends, goes_on] {
            processes
                .start(ProcessSpec::new(key, vec!["sleeps".to_owned()], "/".into()))
                .await
                .unwrap();
        }
        let lives = Arc::new(Lives::new(
            processes.clone(),
            None,
            Arc::new(ManualClock::default()),
            Vec::new(),
            Credentials::default(),
            None,
            Tasks::default(),
        ));
        // Before and after it is known what is there.
        lives.end_unclaimed(SessionId::from_u128(3));
        lives.end_unclaimed(ends.session);
        let wanted = [ends, goes_on].map(|key| (key.session, key.epoch)).to_vec();
        lives.keep(wanted).await;
        tokio::time::timeout(Duration::from_secs(30), lives.gone(ends.session)).await.unwrap();
        assert_eq!(processes.alive(), 1);
        assert!(matches!(lives.found(goes_on).await, Some(Adopted::Live(_))));
    }
}
