//! What stands in a session's log about its room beside inputs and decisions.

use overmind_core::room::history::{RoomChanges, RoomUndone};
use overmind_core::room::stay::{RoomDecision, RoomWord};
use overmind_core::session::{ROOM_DONE, ROOM_SNAPSHOT, ROOM_UNDONE};
use overmind_core::store::{Change, Commit, Guard, NewEvent, StreamId};
use serde_json::json;

use super::{Driver, Stop};

impl Driver {
    /// Writes down a step or a warning.
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

    /// Takes over what its work changes now; the row is written when it shows something else then.
    fn counted(&mut self, counted: Option<RoomChanges>) -> Vec<Change> {
        let Some((session, counted)) = self.held.as_mut().zip(counted) else { return Vec::new() };
        match session.note_changes(counted) {
            true => vec![Change::SessionUpdate(Box::new(session.row().clone()))],
            false => Vec::new(),
        }
    }

    /// Writes down that its files were brought back, also when it has ended.
    pub(super) async fn room_undone(&mut self, by: &str, undone: &RoomUndone) -> Result<(), Stop> {
        let payload = json!({"run_id": self.id, "by": by, "undone": undone});
        let (stream, ts) = (StreamId::Session(self.id), self.cortex.clock.now());
        let event = NewEvent { stream, kind: ROOM_UNDONE, ts, payload };
        let changes = self.counted(undone.changes);
        let guards = vec![self.guard()];
        self.commit(Commit { guards, events: vec![event], changes }).await
    }

    /// One that has ended has no epoch to be guarded by: nothing starts it again.
    fn guard(&self) -> Guard {
        let row = self.session().row();
        match row.status.is_terminal() {
            true => Guard::SessionExists { session: self.id },
            false => Guard::SessionEpoch { session: self.id, epoch: row.epoch },
        }
    }

    /// Writes down what was decided over its work, also when it has ended.
    pub(super) async fn room_done(&mut self, decision: RoomDecision) -> Result<(), Stop> {
        let mut payload = json!({"run_id": self.id, "decision": decision});
        // The row shows it as it is recorded.
        self.cortex.store.redact_record(&mut payload);
        let masked = serde_json::from_value(payload["decision"].clone());
        self.held.as_mut().expect("held between steps").note_done(masked.unwrap_or(decision));
        let (stream, ts) = (StreamId::Session(self.id), self.cortex.clock.now());
        let event = NewEvent { stream, kind: ROOM_DONE, ts, payload };
        let row = self.session().row().clone();
        let guards = vec![self.guard()];
        let changes = vec![Change::SessionUpdate(Box::new(row))];
        self.commit(Commit { guards, events: vec![event], changes }).await
    }
}
