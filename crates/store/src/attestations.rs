//! Reads attestation records, which hold what was measured in a sandbox, and checks their
//! signatures.
//!
//! A record is stored once under its digest; a session's row and its `sandbox.attested` event name
//! it. The event is in the hash chain, while row and record are not, so both are compared with it.

use std::collections::HashMap;

use overmind_core::attest::{AttestationRef, Attested, Kept, Seal};
use overmind_core::ids::SessionId;
use overmind_core::room::stay::RoomAttested;
use overmind_core::session::{Recorded, SANDBOX_ATTESTED};
use overmind_core::store::StreamId;
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{Fault, Outcome};
use crate::key::{fingerprint, verify_attestation};
use crate::read::rows::Cells;
use crate::writer::log::name_of;

/// Maximum number of sessions with a wrong record that are listed; the first ones show the problem.
const MAX_WRONG: usize = 100;

/// The record that is stored under `digest`.
///
/// # Errors
///
/// [`Fault::Row`] if the stored data is no record.
pub(crate) fn fetch(
    conn: &Connection,
    digest: &str,
    trusted: &[[u8; 32]],
) -> Outcome<Option<Kept>> {
    let record: Option<String> = conn
        .prepare_cached("SELECT record FROM attestations WHERE digest = ?1")?
        .query_row([digest], |row| row.get(0))
        .optional()?;
    record.map(|record| kept(digest, &record, trusted)).transpose()
}

fn kept(digest: &str, record: &str, trusted: &[[u8; 32]]) -> Outcome<Kept> {
    let attested: Attested = serde_json::from_str(record).map_err(|err| Fault::Row {
        at: format!("attestation {digest}"),
        why: format!("it is not a record: {err}"),
    })?;
    // The digest that it is stored under counts, not the one in the record.
    let seal = if attested.digest == digest { seal(&attested, trusted) } else { Seal::Broken };
    Ok(Kept { attested, seal })
}

fn seal(attested: &Attested, trusted: &[[u8; 32]]) -> Seal {
    let key = |signer: &str| trusted.iter().find(|key| fingerprint(*key) == signer);
    attested.seal(
        |signer| key(signer).is_some(),
        |signer, digest, signature| {
            key(signer).is_some_and(|key| verify_attestation(key, digest, signature))
        },
    )
}

/// Checks every record and every session that names one. Returns the number of records, and which
/// are wrong and why.
///
/// # Errors
///
/// Fails if the tables cannot be read.
pub(crate) fn wrong(
    conn: &Connection,
    trusted: &[[u8; 32]],
) -> Outcome<(u64, Vec<(String, String)>)> {
    let (mut count, mut wrong) = (0, Vec::new());
    let mut known: HashMap<String, Option<AttestationRef>> = HashMap::new();
    let mut all = conn.prepare("SELECT digest, record FROM attestations ORDER BY digest")?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        let cells = Cells::new(row, "attestations");
        let digest = cells.text(0)?;
        count += 1;
        let (gist, why) = match kept(&digest, cells.str(1)?, trusted) {
            Ok(Kept { attested, seal }) => (Some(AttestationRef::from(&attested)), blame(seal)),
            Err(Fault::Row { why, .. }) => (None, Some(why)),
            Err(fault) => return Err(fault),
        };
        if let Some(why) = why
            && wrong.len() < MAX_WRONG
        {
            wrong.push((digest.clone(), why));
        }
        known.insert(digest, gist);
    }
    let mut all = conn.prepare(
        "SELECT id, attestation, json_extract(room, '$.attested') AS attested FROM sessions
         WHERE attestation IS NOT NULL OR (room IS NOT NULL AND attested IS NOT NULL)",
    )?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()?
        && wrong.len() < MAX_WRONG
    {
        let cells = Cells::new(row, "sessions");
        let session = SessionId::from_u128(cells.u128(0)?);
        let Some(named) = named(cells.opt(1, Cells::str)?, cells.opt(2, Cells::str)?) else {
            wrong.push((String::new(), format!("run {session} does not name a record")));
            continue;
        };
        let said = logged(conn, session)?;
        for (of, gist) in named {
            let why = match (known.get(&gist.digest), said.get(&of)) {
                (None, _) => "names it, and it is not there",
                (Some(Some(record)), _) if *record != gist => "says something else than it",
                // The row agrees, or the record was already found wrong above. An event cannot be
                // removed without breaking the chain, which is checked elsewhere.
                (Some(Some(_) | None), None) => continue,
                (Some(Some(_) | None), Some(Some(said))) if *said == gist => continue,
                (Some(Some(_) | None), Some(_)) => "names it, and its log names another",
            };
            let of = of.map(|of| format!(" for `{of}`")).unwrap_or_default();
            wrong.push((gist.digest, format!("run {session} {why}{of}")));
        }
    }
    Ok((count, wrong))
}

/// The owner of a sandbox: a program of the session's environment, or `None` for the session's own
/// commands.
type Of = Option<String>;

/// The attestations that a session's row names. `None` if the row cannot be read.
fn named(own: Option<&str>, room: Option<&str>) -> Option<Vec<(Of, AttestationRef)>> {
    let mut all = Vec::new();
    if let Some(own) = own {
        all.push((None, serde_json::from_str(own).ok()?));
    }
    if let Some(room) = room {
        let room: Vec<RoomAttested> = serde_json::from_str(room).ok()?;
        all.extend(room.into_iter().map(|one| (Some(one.of), one.attestation)));
    }
    Some(all)
}

/// The attestations in the last event about each sandbox in the session's log, which is
/// hash-chained. `None` if no event can be read.
fn logged(conn: &Connection, session: SessionId) -> Outcome<HashMap<Of, Option<AttestationRef>>> {
    let mut find = conn.prepare_cached(
        "SELECT e.payload FROM streams s CROSS JOIN events e ON e.stream = s.n
         WHERE s.name = ?1 AND e.kind = ?2 ORDER BY e.seq",
    )?;
    let stream = name_of(StreamId::Session(session));
    let mut rows = find.query(params![stream.as_slice(), SANDBOX_ATTESTED])?;
    let mut said = HashMap::new();
    while let Some(row) = rows.next()? {
        let payload = Cells::new(row, "events");
        let (of, gist) = match Recorded::decode(SANDBOX_ATTESTED, payload.str(0)?) {
            Ok(Recorded::Attested(said)) => (None, Some(*said)),
            Ok(Recorded::RoomAttested(one)) => (Some(one.of), Some(one.attestation)),
            Ok(
                Recorded::Queued(_)
                | Recorded::Input(_)
                | Recorded::Decision
                | Recorded::RoomDone(_)
                | Recorded::RoomChanges(_)
                | Recorded::Observation,
            )
            | Err(_) => (None, None),
        };
        said.insert(of, gist);
    }
    Ok(said)
}

/// Why a signature is a finding. A record without a signature is not one by itself: if a signature
/// was removed, the sessions that name the record name another signer.
fn blame(seal: Seal) -> Option<String> {
    match seal {
        Seal::Holds | Seal::Unsigned => None,
        Seal::UnknownKey => Some("it is signed with an unknown key".to_owned()),
        Seal::Broken => Some("it is not what was signed".to_owned()),
    }
}
