//! Records attestations of sandboxes in the log and the row.

use std::sync::Arc;

use overmind_core::attest::{AttestationRef, Attested};
use overmind_core::room::stay::RoomAttested;
use overmind_core::row::SessionStatus;
use overmind_core::session::SANDBOX_ATTESTED;
use overmind_core::store::{Change, Commit, Guard, NewEvent, StreamId};
use serde_json::{Value, json};

use super::{Driver, Stop};

impl Driver {
    /// Records the attestation of a session's sandbox, once for each measurement.
    pub(super) async fn attested(
        &mut self,
        epoch: u32,
        attested: Arc<Attested>,
    ) -> Result<(), Stop> {
        let row = self.session().row();
        let known = row.attestation.as_ref().is_some_and(|known| known.digest == attested.digest);
        // If only its environment is still being removed, its end is already in the log.
        let over = row.status != SessionStatus::Running || self.session().is_closing();
        if known || epoch != row.epoch || over {
            return Ok(());
        }
        let gist = AttestationRef::from(&*attested);
        let event = NewEvent {
            stream: StreamId::Session(self.id),
            kind: SANDBOX_ATTESTED,
            ts: self.cortex.clock.now(),
            payload: json!({"run_id": self.id, "attestation": gist}),
        };
        self.held.as_mut().expect("held between steps").note_attestation(gist);
        let guard = Guard::SessionEpoch { session: self.id, epoch };
        let changes = vec![
            Change::AttestationPut(attested),
            Change::SessionUpdate(Box::new(self.session().row().clone())),
        ];
        self.commit(Commit { guards: vec![guard], events: vec![event], changes }).await
    }

    /// Records the attestation of the sandbox of a program in the session's environment, at each
    /// reported start, as long as there is an environment.
    pub(super) async fn room_attested(
        &mut self,
        of: String,
        attested: Arc<Attested>,
    ) -> Result<(), Stop> {
        let row = self.session().row();
        if !row.room.as_ref().is_some_and(|room| room.phase.is_open()) {
            return Ok(());
        }
        let epoch = row.epoch;
        // The row must equal the log, so it is masked first.
        let mut of = Value::String(of);
        self.cortex.store.redact(&mut of);
        let of = of.as_str().unwrap_or_default().to_owned();
        let one = RoomAttested::new(of, &attested);
        let event = NewEvent {
            stream: StreamId::Session(self.id),
            kind: SANDBOX_ATTESTED,
            ts: self.cortex.clock.now(),
            payload: json!({
                "run_id": self.id, "of": one.of, "driver": one.driver,
                "attestation": one.attestation,
            }),
        };
        self.held.as_mut().expect("held between steps").note_room_attested(one);
        let guard = Guard::SessionEpoch { session: self.id, epoch };
        let changes = vec![
            Change::AttestationPut(attested),
            Change::SessionUpdate(Box::new(self.session().row().clone())),
        ];
        self.commit(Commit { guards: vec![guard], events: vec![event], changes }).await
    }
}
