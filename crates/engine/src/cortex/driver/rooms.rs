//! What stands in a session's log about its room beside inputs and decisions.

use overmind_core::room::stay::{RoomDecision, RoomWord};
use overmind_core::session::ROOM_DONE;
use overmind_core::store::{Change, Commit, Guard, NewEvent, StreamId};
use serde_json::json;

use super::{Driver, Stop};

impl Driver {
    /// Writes down a step or a warning.
    pub(super) async fn room_word(&mut self, word: RoomWord) -> Result<(), Stop> {
        let payload = match word {
            RoomWord::Step(step) => json!({"run_id": self.id, "step": step}),
            RoomWord::Warning(warning) => json!({"run_id": self.id, "warning": warning}),
        };
        let (stream, ts) = (StreamId::Session(self.id), self.cortex.clock.now());
        let event = NewEvent { stream, kind: "room.progress", ts, payload };
        let epoch = self.session().row().epoch;
        let guards = vec![Guard::SessionEpoch { session: self.id, epoch }];
        self.commit(Commit { guards, events: vec![event], changes: Vec::new() }).await
    }

    /// Writes down what was decided over its work, also when it has ended.
    pub(super) async fn room_done(&mut self, decision: RoomDecision) -> Result<(), Stop> {
        let mut payload = json!({"run_id": self.id, "decision": decision});
        // The row shows it as it is recorded.
        self.cortex.store.redact(&mut payload);
        let masked = serde_json::from_value(payload["decision"].clone());
        self.held.as_mut().expect("held between steps").note_done(masked.unwrap_or(decision));
        let (stream, ts) = (StreamId::Session(self.id), self.cortex.clock.now());
        let event = NewEvent { stream, kind: ROOM_DONE, ts, payload };
        let row = self.session().row().clone();
        // One that has ended has no epoch to be guarded by: nothing starts it again.
        let guard = match row.status.is_terminal() {
            true => Guard::SessionExists { session: self.id },
            false => Guard::SessionEpoch { session: self.id, epoch: row.epoch },
        };
        let guards = vec![guard];
        let changes = vec![Change::SessionUpdate(Box::new(row))];
        self.commit(Commit { guards, events: vec![event], changes }).await
    }
}
