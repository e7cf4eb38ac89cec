//! The findings of `audit` in a changed file.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use overmind_core::attest::{AttestationRef, Attested, Seal};
use overmind_core::ids::SessionId;
use overmind_core::room::stay::{RoomAttested, RoomRow};
use overmind_core::row::SessionStatus;
use overmind_core::session::SANDBOX_ATTESTED;
use overmind_core::store::{
    AuditFinding, AuditReport, Change, Commit, Store, StoreError, StreamId, chain_hash,
};
use overmind_core::time::Timestamp;
use overmind_store::{Options, Sqlite};
use overmind_testkit::soak;
use overmind_testkit::store_conformance::{World, at, attestation, event, one_event};
use proptest::prelude::*;
use rusqlite::{Connection, params};
use serde_json::json;

/// A log of three sessions and the system stream, in turns: event `n` of session `s` (from 0)
/// has global number `4 * (n - 1) + s + 1`, the system stream comes last in each turn. The
/// first checkpoint covers six turns, the second all eight.
fn build(path: &Path) -> [SessionId; 3] {
    let world = World::default();
    let sessions = [world.session_id(), world.session_id(), world.session_id()];
    let run = async {
        let store = Sqlite::open(Options::new(path)).unwrap();
        for n in 0..8 {
            let mut commit = one_event(StreamId::Session(sessions[0]), json!({ "n": n }));
            for stream in [StreamId::Session(sessions[1]), StreamId::Session(sessions[2])] {
                commit.events.push(event(stream, json!({ "text": format!("needle {n}") })));
            }
            commit.events.push(event(StreamId::System, json!({ "n": n })));
            store.commit(commit).await.unwrap();
            if n == 5 {
                store.checkpoint(at(10)).await.unwrap();
            }
        }
        store.close().await.unwrap();
    };
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run);
    sessions
}

fn audit(path: &Path) -> Result<AuditReport, StoreError> {
    let store = Sqlite::open(Options::new(path))?;
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(store.audit())
}

/// Builds a store, lets `tamper` change the file, and audits it.
#[track_caller]
fn findings(tamper: impl FnOnce(&Connection, [SessionId; 3])) -> Vec<AuditFinding> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let sessions = build(&path);
    assert_eq!(audit(&path).unwrap().findings, [], "before tampering");
    let conn = Connection::open(&path).unwrap();
    tamper(&conn, sessions);
    drop(conn);
    // The attacker also removes the witness: the chains and their signatures alone find the change.
    fs::remove_file(dir.path().join("s.db.witness")).unwrap();
    audit(&path).unwrap().findings
}

fn name(session: SessionId) -> String {
    session.to_string()
}

/// The number in the file of a session's stream.
fn n(conn: &Connection, session: SessionId) -> i64 {
    let id = session.as_u128().to_be_bytes();
    conn.query_row("SELECT n FROM streams WHERE name = ?1", [id], |row| row.get(0)).unwrap()
}

#[test]
fn only_the_changed_event_is_reported() {
    for change in [
        "payload = replace(payload, 'needle', 'noodle')",
        "payload = payload || ' '",
        "kind = 'test.other'",
        "ts = ts + 1",
        "hash = zeroblob(32)",
    ] {
        let mut who = None;
        let found = findings(|conn, sessions| {
            who = Some(name(sessions[1]));
            let sql = format!("UPDATE events SET {change} WHERE stream = ?1 AND seq = 3");
            assert_eq!(conn.execute(&sql, [n(conn, sessions[1])]).unwrap(), 1);
        });
        let kind = if change.starts_with("kind") { "test.other" } else { "test.done" };
        let wanted =
            AuditFinding::BadHash { stream: who.unwrap(), seq: 3, global: 10, kind: kind.into() };
        assert_eq!(found, [wanted], "{change}");
    }
}

#[test]
fn a_changed_head_is_detected() {
    let mut who = String::new();
    let found = findings(|conn, sessions| {
        who = name(sessions[0]);
        let stream = n(conn, sessions[0]);
        conn.execute("UPDATE streams SET head_hash = zeroblob(32) WHERE n = ?1", [stream]).unwrap();
    });
    assert_eq!(found, [AuditFinding::BadHead { stream: who, recorded: 8, found: 8 }]);
}

#[test]
fn a_removed_event_leaves_a_gap_in_its_stream_and_in_the_log() {
    let mut who = String::new();
    let found = findings(|conn, sessions| {
        who = name(sessions[1]);
        let stream = n(conn, sessions[1]);
        conn.execute("DELETE FROM events WHERE stream = ?1 AND seq = 3", [stream]).unwrap();
    });
    assert_eq!(
        found,
        [
            AuditFinding::GlobalGap { expected: 10, found: 11 },
            AuditFinding::Gap { stream: who, expected: 3, found: 4 },
        ]
    );
}

#[test]
fn a_moved_event_is_detected() {
    for change in ["seq = 99", "stream = 1, seq = 99", "stream = 77"] {
        let found = findings(|conn, sessions| {
            let sql = format!("UPDATE events SET {change} WHERE stream = ?1 AND seq = 3");
            conn.execute(&sql, [n(conn, sessions[1])]).unwrap();
        });
        assert!(!found.is_empty(), "{change}");
    }
    let found = findings(|conn, _| {
        conn.execute("UPDATE events SET global = 1000 WHERE global = 10", []).unwrap();
    });
    assert!(found.contains(&AuditFinding::GlobalGap { expected: 10, found: 11 }), "{found:?}");
}

#[test]
fn a_truncated_stream_is_detected_even_with_a_corrected_head() {
    let mut who = String::new();
    let found = findings(|conn, sessions| {
        who = name(sessions[1]);
        let stream = n(conn, sessions[1]);
        conn.execute("DELETE FROM events WHERE stream = ?1 AND seq > 5", [stream]).unwrap();
        conn.execute(
            "UPDATE streams SET head_seq = 5, head_hash =
               (SELECT hash FROM events WHERE stream = ?1 AND seq = 5) WHERE n = ?1",
            [stream],
        )
        .unwrap();
    });
    for number in [1, 2] {
        let seq = if number == 1 { 6 } else { 8 };
        let wanted = AuditFinding::CheckpointMismatch { number, stream: who.clone(), seq };
        assert!(found.contains(&wanted), "{found:?}");
    }
    assert!(found.contains(&AuditFinding::GlobalGap { expected: 22, found: 23 }), "{found:?}");
}

#[test]
fn a_truncated_log_is_detected_by_its_checkpoints() {
    let found = findings(|conn, _| {
        conn.execute_batch(
            "DELETE FROM events WHERE global > 20;
             UPDATE streams SET
               head_seq = (SELECT max(seq) FROM events WHERE stream = n),
               head_hash = (SELECT hash FROM events WHERE stream = n ORDER BY seq DESC LIMIT 1);",
        )
        .unwrap();
    });
    let covers = |finding: &AuditFinding| match finding {
        AuditFinding::BadCheckpoint { why, .. } => why.contains("ends at 20"),
        _ => false,
    };
    assert!(found.iter().any(covers), "{found:?}");
    let mismatch =
        |finding: &&AuditFinding| matches!(finding, AuditFinding::CheckpointMismatch { .. });
    assert_eq!(found.iter().filter(mismatch).count(), 8, "four heads in each: {found:?}");
}

#[test]
fn a_removed_stream_is_detected() {
    let mut who = String::new();
    let found = findings(|conn, sessions| {
        who = name(sessions[2]);
        let stream = n(conn, sessions[2]);
        conn.execute("DELETE FROM events WHERE stream = ?1", [stream]).unwrap();
        conn.execute("DELETE FROM streams WHERE n = ?1", [stream]).unwrap();
    });
    let wanted = AuditFinding::CheckpointMismatch { number: 2, stream: who, seq: 8 };
    assert!(found.contains(&wanted), "{found:?}");
    assert!(found.contains(&AuditFinding::GlobalGap { expected: 3, found: 4 }), "{found:?}");
}

#[test]
fn a_rewritten_stream_with_valid_hashes_is_detected_by_the_signature() {
    let mut who = String::new();
    let found = findings(|conn, sessions| {
        who = name(sessions[1]);
        let (stream, id) = (n(conn, sessions[1]), StreamId::Session(sessions[1]));
        let mut prev = [0; 32];
        for seq in 1..=8_u32 {
            let ts: i64 = conn
                .query_row(
                    "SELECT ts FROM events WHERE stream = ?1 AND seq = ?2",
                    [stream, seq.into()],
                    |row| row.get(0),
                )
                .unwrap();
            let ts = Timestamp::from_micros(ts);
            let hash = chain_hash(&prev, id, seq.into(), ts, "test.done", "{\"lie\":1}");
            conn.execute(
                "UPDATE events SET payload = '{\"lie\":1}', hash = ?3
                 WHERE stream = ?1 AND seq = ?2",
                params![stream, seq, hash],
            )
            .unwrap();
            prev = hash;
        }
        conn.execute("UPDATE streams SET head_hash = ?2 WHERE n = ?1", params![stream, prev])
            .unwrap();
    });
    let mismatch =
        |number, seq| AuditFinding::CheckpointMismatch { number, stream: who.clone(), seq };
    assert_eq!(found, [mismatch(1, 6), mismatch(2, 8)]);
}

#[test]
fn changed_checkpoints_are_detected() {
    for change in [
        "UPDATE checkpoints SET signature = zeroblob(64) WHERE number = 1",
        "UPDATE checkpoints SET ts = ts + 1 WHERE number = 1",
        "UPDATE checkpoints SET global = global - 1 WHERE number = 1",
        "UPDATE checkpoints SET prev = zeroblob(32) WHERE number = 2",
        "UPDATE checkpoints SET key = zeroblob(32) WHERE number = 2",
        "DELETE FROM checkpoints WHERE number = 1",
        "DELETE FROM checkpoint_heads WHERE checkpoint = 1 AND stream = x''",
        "UPDATE checkpoint_heads SET seq = 5 WHERE checkpoint = 1 AND stream = x''",
    ] {
        let found = findings(|conn, _| {
            assert_eq!(conn.execute(change, []).unwrap(), 1, "{change}");
        });
        let bad = |finding: &AuditFinding| matches!(finding, AuditFinding::BadCheckpoint { .. });
        assert!(found.iter().any(bad), "{change}: {found:?}");
    }
}

#[test]
fn a_retention_record_explains_only_the_events_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    build(&path);
    let conn = Connection::open(&path).unwrap();
    // An unreadable record is a separate finding.
    conn.execute(
        "UPDATE events SET kind = 'retention.pruned', payload = '{\"stream\":\"x\"}'
         WHERE global = 4",
        [],
    )
    .unwrap();
    drop(conn);
    let found = audit(&path).unwrap().findings;
    let record = |finding: &AuditFinding| match finding {
        AuditFinding::Unreadable { at, .. } => at == "system.1",
        _ => false,
    };
    let hash =
        |finding: &AuditFinding| matches!(finding, AuditFinding::BadHash { seq: 1, global: 4, .. });
    assert!(found.iter().any(record) && found.iter().any(hash), "{found:?}");
}

/// A room in which a service ran in the sandbox that was measured.
fn room(attested: &Attested) -> RoomRow {
    let mut room = RoomRow::preparing();
    room.note(RoomAttested::new("service db".into(), attested));
    room
}

/// A store with one run whose sandbox was measured, after `tamper` changed it.
fn attested(tamper: impl FnOnce(&Connection)) -> (String, AuditReport, Option<Seal>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = Sqlite::open(Options::new(&path)).unwrap();
    let attested = Attested::new(attestation(), Some(&store.notary()));
    let world = World::default();
    let mut row = world.session();
    row.attestation = Some(AttestationRef::from(&attested));
    row.room = Some(Box::new(room(&attested)));
    let payload = json!({"run_id": row.id, "attestation": row.attestation});
    let mut commit = one_event(StreamId::Session(row.id), payload);
    // Records of programs of its environment follow it; the last one of each counts.
    for of in ["service db", "service web", "service db"] {
        let payload = json!({"of": of, "driver": "docker", "attestation": row.attestation});
        commit.events.push(event(StreamId::Session(row.id), payload));
    }
    for event in &mut commit.events {
        event.kind = SANDBOX_ATTESTED;
    }
    commit.changes = vec![
        Change::AttestationPut(Arc::new(attested.clone())),
        Change::SessionInsert(Box::new(row)),
    ];
    runtime.block_on(async {
        store.commit(commit).await.unwrap();
        store.close().await.unwrap();
    });
    drop(store);
    let conn = Connection::open(&path).unwrap();
    tamper(&conn);
    drop(conn);
    let store = Sqlite::open(Options::new(&path)).unwrap();
    let seal = runtime.block_on(store.attestation_fetch(attested.digest.clone())).unwrap();
    let report = runtime.block_on(store.audit()).unwrap();
    (attested.digest, report, seal.map(|kept| kept.seal))
}

#[test]
fn a_changed_attestation_is_reported_wherever_it_was_changed() {
    let (_, report, seal) = attested(|_| ());
    assert_eq!((report.attestations, report.findings, seal), (1, vec![], Some(Seal::Holds)));

    let set = |what: &str| format!("UPDATE attestations SET record = json_{what}");
    let pairs = [
        // The record claims a stronger result than the signed one.
        (set("set(record, '$.attestation.took_us', 4)"), Some(Seal::Broken), "not what was signed"),
        // So does a consistent one without a signature.
        (set("set(record, '$.digest', 'x')"), Some(Seal::Broken), "not what was signed"),
        (
            set("set(record, '$.signature.signature', 'ab')"),
            Some(Seal::Broken),
            "not what was signed",
        ),
        (
            set("set(record, '$.signature.signer', 'me')"),
            Some(Seal::UnknownKey),
            "signed with an unknown key",
        ),
        (set("set(record, '$.signature', null)"), Some(Seal::Unsigned), "something else than it"),
        ("DELETE FROM attestations".to_owned(), None, "it is not there"),
        (
            "UPDATE sessions SET attestation = json_set(attestation, '$.achieved', 'microvm')"
                .to_owned(),
            Some(Seal::Holds),
            "something else than it",
        ),
        (
            "UPDATE sessions SET room = \
             json_set(room, '$.attested[0].attestation.achieved', 'microvm')"
                .to_owned(),
            Some(Seal::Holds),
            "something else than it for `service db`",
        ),
        (
            "UPDATE events SET payload = replace(payload, 'docker', 'microvm') WHERE seq = 4"
                .to_owned(),
            Some(Seal::Holds),
            "its log names another for `service db`",
        ),
    ];
    for (sql, expected, words) in pairs {
        let (digest, report, seal) = attested(|conn| conn.execute_batch(&sql).unwrap());
        assert_eq!(seal, expected, "{sql}");
        let named = |finding: &AuditFinding| match finding {
            AuditFinding::BadAttestation { digest: of, why } => {
                *of == digest && why.contains(words)
            }
            _ => false,
        };
        assert!(report.findings.iter().any(named), "{sql}: {:?}", report.findings);
    }
}

#[test]
fn retention_removes_an_attestation_with_the_last_run_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(Options::new(dir.path().join("s.db"))).unwrap();
    let attested = Attested::new(attestation(), Some(&store.notary()));
    let world = World::default();
    let mut row = world.session();
    row.attestation = Some(AttestationRef::from(&attested));
    row.status = SessionStatus::Succeeded;
    row.finished_at = Some(at(20));
    // A service of a later one ran in the same sandbox.
    let mut later = world.session();
    later.room = Some(Box::new(room(&attested)));
    later.status = SessionStatus::Succeeded;
    later.finished_at = Some(at(26));
    let digest = || attested.digest.clone();
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let changes = vec![
            Change::AttestationPut(Arc::new(attested.clone())),
            Change::SessionInsert(Box::new(row)),
            Change::SessionInsert(Box::new(later)),
        ];
        store.commit(Commit { changes, ..Commit::default() }).await.unwrap();
        store.prune(at(10), at(30)).await.unwrap();
        assert!(store.attestation_fetch(digest()).await.unwrap().is_some(), "a run names it");
        assert_eq!(store.prune(at(25), at(30)).await.unwrap().sessions, 1);
        assert!(store.attestation_fetch(digest()).await.unwrap().is_some(), "a room names it");
        assert_eq!(store.prune(at(28), at(30)).await.unwrap().sessions, 1);
        assert_eq!(store.attestation_fetch(digest()).await.unwrap(), None);
        assert_eq!(store.audit().await.unwrap().findings, []);
    });
}

#[test]
fn a_run_with_the_valid_attestation_of_another_sandbox_is_detected_by_its_log() {
    let (_, report, _) = attested(|conn| {
        // As if the other were signed with the same key: neither record nor row is wrong alone.
        conn.execute_batch(
            "INSERT INTO attestations SELECT 'other', at, json_set(record, '$.signature', null)
               FROM attestations;
             UPDATE events SET payload = replace(payload, 'docker', 'microvm');",
        )
        .unwrap();
    });
    let named = |finding: &AuditFinding| match finding {
        AuditFinding::BadAttestation { why, .. } => why.contains("its log names another"),
        _ => false,
    };
    assert!(report.findings.iter().any(named), "{:?}", report.findings);
}

#[test]
fn a_flipped_byte_on_disk_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let sessions = build(&path);
    let mut bytes = fs::read(&path).unwrap();
    let needle = b"needle 4";
    let place = bytes.windows(needle.len()).position(|part| part == needle).unwrap();
    bytes[place] ^= 0x01;
    fs::write(&path, bytes).unwrap();
    let found = audit(&path).unwrap().findings;
    let [AuditFinding::BadHash { stream, seq: 5, kind, .. }] = found.as_slice() else {
        panic!("{found:?}")
    };
    let streams = [name(sessions[1]), name(sessions[2])];
    assert!(streams.contains(stream) && kind == "test.done", "{found:?}");
}

#[test]
fn a_damaged_page_is_an_error_for_readers_and_reported_by_the_audit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let session = build(&path)[0];
    let page: u64 = {
        let conn = Connection::open(&path).unwrap();
        conn.query_row("SELECT max(pageno) FROM dbstat WHERE name = 'events'", [], |row| {
            row.get::<_, u32>(0)
        })
        .unwrap()
        .into()
    };
    let mut bytes = fs::read(&path).unwrap();
    let place = usize::try_from((page - 1) * 4096).unwrap();
    bytes[place..place + 4096].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    let is_corrupt = |err: &StoreError| matches!(err, StoreError::Corrupt { .. });
    match Sqlite::open(Options::new(&path)) {
        Err(err) => assert!(is_corrupt(&err), "{err:?}"),
        Ok(store) => {
            let run = async {
                let query = overmind_core::store::EventQuery {
                    stream: Some(StreamId::Session(session)),
                    after: 0,
                    kinds: &[],
                    limit: 100,
                };
                let err = store.events(query).await.unwrap_err();
                assert!(is_corrupt(&err), "{err:?}");
                let report = store.audit().await.unwrap();
                assert!(!report.findings.is_empty());
            };
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run);
        }
    }
}

/// All that the log's table and index contain, or that they cannot be read.
fn dump(path: &Path) -> Result<Vec<Vec<rusqlite::types::Value>>, rusqlite::Error> {
    let conn = Connection::open(path)?;
    let mut all = Vec::new();
    for (sql, columns) in [
        ("SELECT global, stream, seq, ts, hash, kind, payload FROM events NOT INDEXED", 7),
        ("SELECT stream, seq, global FROM events INDEXED BY events_by_stream", 3),
    ] {
        let mut find = conn.prepare(sql)?;
        let mut rows = find.query([])?;
        while let Some(row) = rows.next()? {
            all.push((0..columns).map(|at| row.get(at)).collect::<Result<Vec<_>, _>>()?);
        }
    }
    Ok(all)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak::count(30, 1500)))]

    /// Any byte of the log's pages: if the content changed, the audit reports it.
    #[test]
    fn the_audit_finds_every_flipped_byte(at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        // One store for all cases: building it takes longer than auditing it.
        static BUILT: std::sync::OnceLock<(tempfile::TempDir, Vec<u8>, Vec<usize>)> =
            std::sync::OnceLock::new();
        let (dir, pristine, places) = BUILT.get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("s.db");
            build(&path);
            let conn = Connection::open(&path).unwrap();
            let mut find = conn
                .prepare("SELECT pageno FROM dbstat WHERE name IN ('events', 'events_by_stream')")
                .unwrap();
            let pages: Vec<u32> =
                find.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
            let bytes = fs::read(&path).unwrap();
            // Free space within pages is no use to flip.
            let places = pages
                .iter()
                .flat_map(|page| {
                    let start = (*page as usize - 1) * 4096;
                    start..start + 4096
                })
                .filter(|place| bytes[*place] != 0)
                .collect();
            (dir, bytes, places)
        });
        let path = dir.path().join("s.db");
        fs::write(&path, pristine).unwrap();
        let before = dump(&path).unwrap();
        let mut bytes = pristine.clone();
        bytes[places[at.index(places.len())]] ^= 1 << bit;
        fs::write(&path, bytes).unwrap();
        let changed = dump(&path).map_or(true, |after| after != before);
        let seen = audit(&path).map_or(true, |report| !report.findings.is_empty());
        prop_assert!(seen || !changed, "the log has changed, and the audit did not say so");
    }
}
