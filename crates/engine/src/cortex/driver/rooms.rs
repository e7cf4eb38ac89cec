//! Records in a session's log about its environment, in addition to inputs and decisions.

use overmind_core::inbox::InboxState;
use overmind_core::room::history::{RoomChanges, RoomUndone};
use overmind_core::room::stay::{RoomDecision, RoomWord};
use overmind_core::row::SessionRow;
use overmind_core::session::{ROOM_DONE, ROOM_SNAPSHOT, ROOM_UNDONE, left};
use overmind_core::store::{Change, Commit, Guard, NewEvent, StreamId};
use overmind_core::time::Timestamp;
use serde_json::json;

use super::{Driver, Stop};

impl Driver {
    /// Records a step or a warning.
    pub(super) async fn room_word(&mut self, word: RoomWord) -> Result<(), Stop> {
        let mut counted = None;
        let (kind, payload) = match word {
            RoomWord::Step(step) => ("room.progress", json!({"run_id": self.id, "step": step})),
            RoomWord::Warning(warning) => {
                ("room.progress", json!({"run_id": self.id, "warning": warning}))
            }
            RoomWord::Saved(snapshot) => {
                counted = snapshot.changes;
                (ROOM_SNAPSHOT, json!({"run_id": self.id, "snapshot": snapshot}))
            }
        };
        let (stream, ts) = (StreamId::Session(self.id), self.cortex.clock.now());
        let event = NewEvent { stream, kind, ts, payload };
        let epoch = self.session().row().epoch;
        let guards = vec![Guard::SessionEpoch { session: self.id, epoch }];
        let changes = self.counted(counted);
        self.commit(Commit { guards, events: vec![event], changes }).await
    }

    /// Stores the current size of its work's changes; the row is written if it differs then.
    fn counted(&mut self, counted: Option<RoomChanges>) -> Vec<Change> {
        let Some((session, counted)) = self.held.as_mut().zip(counted) else { return Vec::new() };
        match session.note_changes(counted) {
            true => vec![Change::SessionUpdate(Box::new(session.row().clone()))],
            false => Vec::new(),
        }
    }

    /// Records that its files were restored, also if the session has ended.
    pub(super) async fn room_undone(&mut self, by: &str, undone: &RoomUndone) -> Result<(), Stop> {
        let payload = json!({"run_id": self.id, "by": by, "undone": undone});
        let (stream, ts) = (StreamId::Session(self.id), self.cortex.clock.now());
        let event = NewEvent { stream, kind: ROOM_UNDONE, ts, payload };
        let changes = self.counted(undone.changes);
        let guards = vec![self.guard()];
        self.commit(Commit { guards, events: vec![event], changes }).await
    }

    /// An ended session has no epoch as a guard, because nothing starts it again.
    fn guard(&self) -> Guard {
        let row = self.session().row();
        match row.status.is_terminal() {
            true => Guard::SessionExists { session: self.id },
            false => Guard::SessionEpoch { session: self.id, epoch: row.epoch },
        }
    }

    /// Records the decision about its work, also if the session has ended.
    pub(super) async fn room_done(&mut self, decision: RoomDecision) -> Result<(), Stop> {
        let mut payload = json!({"run_id": self.id, "decision": decision});
        // The row shows it in the recorded form.
        self.cortex.store.redact_record(&mut payload);
        let masked = serde_json::from_value(payload["decision"].clone());
        let before = self.session().row().clone();
        self.held.as_mut().expect("held between steps").note_done(masked.unwrap_or(decision));
        let (stream, ts) = (StreamId::Session(self.id), self.cortex.clock.now());
        let event = NewEvent { stream, kind: ROOM_DONE, ts, payload };
        let row = self.session().row().clone();
        let guards = vec![self.guard()];
        let changes = vec![Change::SessionUpdate(Box::new(row))];
        let mut commit = Commit { guards, events: vec![event], changes };
        let inbox_moves = self.follow_work(&before, ts, &mut commit).await;
        self.commit(commit).await?;
        if inbox_moves {
            self.cortex.inbox_moved();
        }
        Ok(())
    }

    /// Adds the inbox item about work that the session has left to `commit`, or closes it. `before`
    /// is the session's previous row. Returns whether the inbox changes.
    pub(super) async fn follow_work(
        &self,
        before: &SessionRow,
        now: Timestamp,
        commit: &mut Commit,
    ) -> bool {
        let row = self.session().row();
        match (left::asks(before), left::asks(row)) {
            (false, true) => {
                let mut item = left::item(row, &self.session().agent().name, now);
                self.cortex.store.redact(&mut item.details);
                commit.changes.push(Change::InboxPut(Box::new(item)));
                true
            }
            (true, false) => match self.cortex.store.inbox_fetch(left::item_id(before)).await {
                Ok(Some(item)) if item.state == InboxState::Open => {
                    let closed = left::closed(item, row, now);
                    commit.changes.push(Change::InboxPut(Box::new(closed)));
                    true
                }
                Ok(_) => false,
                Err(err) => {
                    tracing::error!(error = %err, "the inbox still asks about work that is decided");
                    false
                }
            },
            (false, false) | (true, true) => false,
        }
    }
}
