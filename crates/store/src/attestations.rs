//! Records of what sandboxes were measured to give: read back, and their signatures looked at.
//!
//! The record stands once under its digest; a session's row and its `sandbox.attested` event name
//! it. The event is in the hash chain; row and record are not, so both are compared here.

use std::collections::HashMap;

use overmind_core::attest::{AttestationRef, Attested, Kept, Seal};
use overmind_core::ids::SessionId;
use overmind_core::session::{Recorded, SANDBOX_ATTESTED};
use overmind_core::store::StreamId;
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{Fault, Outcome};
use crate::key::{fingerprint, verify_attestation};
use crate::read::rows::Cells;
use crate::writer::log::name_of;

/// Sessions that name a wrong record are listed up to this many; the first ones say enough.
const MAX_WRONG: usize = 100;

/// The record that stands under `digest`.
///
/// # Errors
///
/// [`Fault::Row`] when it is no record at all.
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
    // The name that it stands under counts, not the one that it gives itself.
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

/// Looks at every record and at every session that names one. Answers how many records there
/// are, and which are wrong and why.
///
/// # Errors
///
/// When the tables cannot be read.
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
    let mut all =
        conn.prepare("SELECT id, attestation FROM sessions WHERE attestation IS NOT NULL")?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()?
        && wrong.len() < MAX_WRONG
    {
        let cells = Cells::new(row, "sessions");
        let session = SessionId::from_u128(cells.u128(0)?);
        let Ok(gist) = serde_json::from_str::<AttestationRef>(cells.str(1)?) else {
            wrong.push((String::new(), format!("run {session} does not name a record")));
            continue;
        };
        let why = match known.get(&gist.digest) {
            None => "names it, and it is not there",
            Some(Some(record)) if *record != gist => "says something else than it",
            // As it says, or a record that was found wrong above.
            Some(Some(_) | None) if logged(conn, session, &gist)? => continue,
            Some(Some(_) | None) => "names it, and its log names another",
        };
        wrong.push((gist.digest, format!("run {session} {why}")));
    }
    Ok((count, wrong))
}

/// Whether the last event about it in the session's log, which is chained, says the same.
fn logged(conn: &Connection, session: SessionId, gist: &AttestationRef) -> Outcome<bool> {
    let payload: Option<String> = conn
        .prepare_cached(
            "SELECT e.payload FROM streams s CROSS JOIN events e ON e.stream = s.n
             WHERE s.name = ?1 AND e.kind = ?2 ORDER BY e.seq DESC LIMIT 1",
        )?
        .query_row(
            params![name_of(StreamId::Session(session)).as_slice(), SANDBOX_ATTESTED],
            |row| row.get(0),
        )
        .optional()?;
    // An event cannot be taken out without breaking the chain, which is looked at elsewhere.
    Ok(payload.is_none_or(|payload| match Recorded::decode(SANDBOX_ATTESTED, &payload) {
        Ok(Recorded::Attested(said)) => *said == *gist,
        Ok(
            Recorded::Queued(_)
            | Recorded::Input(_)
            | Recorded::Decision
            | Recorded::RoomDone(_)
            | Recorded::Observation,
        )
        | Err(_) => false,
    }))
}

/// Why a seal is a finding. A record that nobody signed is none by itself: if a signature was
/// taken off, the sessions that name the record say another signer.
fn blame(seal: Seal) -> Option<String> {
    match seal {
        Seal::Holds | Seal::Unsigned => None,
        Seal::UnknownKey => Some("it is signed with an unknown key".to_owned()),
        Seal::Broken => Some("it is not what was signed".to_owned()),
    }
}
