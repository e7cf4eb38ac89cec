//! Reads the whole log and reports inconsistencies.
//!
//! One pass over the events in their global order checks each hash, the numbers of each stream and
//! the global numbers. Then it checks the heads, the index, and the checkpoints with their
//! signatures. Everything is read in one snapshot, so commits may continue meanwhile; the
//! write-ahead log cannot be reset until the audit ends, and grows for that time.
//!
//! Memory is bounded: only the last event of recently seen streams is kept; for other streams it is
//! read again from the file. The records of retention go to temporary tables.
//!
//! A changed byte is found wherever it is: in a value (the event's hash is wrong), a number (there
//! is a gap), the index (it lists something else) or the file's structure (a page cannot be read;
//! then the pass ends there and reports it). The audit cannot detect one thing: the global order
//! *between* streams is complete but not signed. The end of the log is compared with what was
//! promised, see [`crate::witness`], and with the checkpoints.

use std::path::Path;

use overmind_core::store::{AuditFinding, AuditReport, StoreError, StreamId, chain_hash};
use rusqlite::{Connection, OptionalExtension, Row, Rows, params};

use crate::attestations;
use crate::error::{Fault, Outcome, closed, explain_io};
use crate::key::{fingerprint, hex, verify};
use crate::read::rows::{Cells, int};
use crate::recent::Recent;
use crate::schema::open_reader;
use crate::witness::{self, Promise};
use crate::writer::checkpoint::Digest;
use crate::writer::log::{name_of, stream_of};
use crate::writer::prune::{PRUNED, Record};

/// Maximum number of findings that are listed; the first ones show what is wrong.
const MAX_FINDINGS: usize = 100;
/// Streams whose last event is remembered.
const REMEMBERED: usize = 32_768;
/// Rows between two checks whether the store is being closed.
const STOP_EVERY: u64 = 4_096;

/// Audits the store at `path`. `trusted` are the public keys whose checkpoints count, the own one
/// first; `witness` is the key of the promises; `stop` reports that the store is being closed.
///
/// # Errors
///
/// Fails only if the audit itself cannot continue; damage is a finding.
pub(crate) fn audit(
    path: &Path,
    trusted: &[[u8; 32]],
    witness: &[u8; 32],
    stop: &dyn Fn() -> bool,
) -> Result<AuditReport, StoreError> {
    // Read before the snapshot, so everything that is promised by now is in it.
    let promises = witness::read(path, witness).map_err(|err| {
        explain_io(&err, &witness::file_of(path), "reading what was acknowledged")
    })?;
    let explain = |fault: Fault| fault.explain(path, "auditing the log");
    let conn = open_audit(path).map_err(explain)?;
    let own = trusted.first().map(|key| fingerprint(key)).unwrap_or_default();
    let report = AuditReport { key: own, ..AuditReport::default() };
    let mut audit = Audit { conn: &conn, trusted, stop, report, last: 0, last_signed: 0 };
    audit.run(&promises).map_err(explain)?;
    Ok(audit.report)
}

fn open_audit(path: &Path) -> Outcome<Connection> {
    let conn = open_reader(path)?;
    // The file is opened read-only, but the temporary tables must be writable.
    conn.execute_batch(
        "PRAGMA query_only = OFF;
         PRAGMA cache_size = -16384;
         CREATE TEMP TABLE explained (first INTEGER, count INTEGER);
         CREATE TEMP TABLE pruned (name BLOB PRIMARY KEY, seq INTEGER, hash TEXT) WITHOUT ROWID;",
    )?;
    Ok(conn)
}

struct Audit<'a> {
    conn: &'a Connection,
    trusted: &'a [[u8; 32]],
    stop: &'a dyn Fn() -> bool,
    report: AuditReport,
    /// The last global number.
    last: u64,
    /// The global number that the newest checkpoint covers.
    last_signed: u64,
}

/// The last event of a stream that the pass has read so far.
struct Seen {
    stream: StreamId,
    seq: u64,
    hash: [u8; 32],
    /// The correct hash, if the stored one was wrong. If only the *hash* was changed, the next
    /// event continues from this value and is not at fault.
    should_be: Option<[u8; 32]>,
}

/// An order-independent sum over the contents of a set of rows.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Sum(u64, u64);

impl Sum {
    fn add(&mut self, stream: i64, seq: u64, global: u64) {
        let mixed = mix(mix(mix(stream.cast_unsigned()) ^ seq) ^ global);
        self.0 = self.0.wrapping_add(mixed);
        self.1 = self.1.wrapping_add(mix(mixed ^ 0x9e37_79b9_7f4a_7c15));
    }
}

/// Spreads the bits of a number (the finishing steps of SplitMix64).
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Audit<'_> {
    fn run(&mut self, promises: &[Promise]) -> Outcome<()> {
        // One snapshot serves all following reads.
        self.conn.execute_batch("BEGIN")?;
        self.last_signed = self
            .conn
            .query_row("SELECT coalesce(max(global), 0) FROM checkpoints", [], |row| {
                row.get::<_, i64>(0)
            })
            .map(|global| u64::try_from(global).unwrap_or(0))?;
        self.part("reading the records of retention", Self::records)?;
        let mut in_table = None;
        self.part("reading the events", |audit| {
            in_table = Some(audit.events()?);
            Ok(())
        })?;
        self.part("reading the heads", Self::heads)?;
        if let Some(in_table) = in_table {
            self.part("reading the index of the events", |audit| audit.index(in_table))?;
        }
        self.part("reading the checkpoints", Self::checkpoints)?;
        self.part("looking for what was acknowledged", |audit| audit.promises(promises))?;
        self.part("reading the attestations", Self::attestations)?;
        self.conn.execute_batch("COMMIT")?;
        Ok(())
    }

    /// Runs one part, so that damage in one part of the file does not hide the others.
    fn part(&mut self, at: &str, work: impl FnOnce(&mut Self) -> Outcome<()>) -> Outcome<()> {
        match work(self) {
            Ok(()) => Ok(()),
            Err(Fault::Refused(err)) => Err(Fault::Refused(err)),
            Err(Fault::Row { at, why }) => {
                self.find(AuditFinding::Unreadable { at, why });
                Ok(())
            }
            Err(Fault::Sql(err)) => {
                self.find(AuditFinding::Unreadable { at: at.into(), why: err.to_string() });
                Ok(())
            }
        }
    }

    fn find(&mut self, finding: AuditFinding) {
        if self.report.findings.len() < MAX_FINDINGS {
            self.report.findings.push(finding);
        }
    }

    fn go_on(&self, rows: u64) -> Outcome<()> {
        if rows.is_multiple_of(STOP_EVERY) && (self.stop)() {
            return Err(Fault::Refused(closed()));
        }
        Ok(())
    }

    /// Puts the removals that retention recorded into temporary tables, sorted for their later
    /// lookups.
    fn records(&mut self) -> Outcome<()> {
        let mut find =
            self.conn.prepare("SELECT seq, payload FROM events WHERE stream = 1 AND kind = ?1")?;
        let mut explain =
            self.conn.prepare("INSERT INTO explained (first, count) VALUES (?1, ?2)")?;
        let mut note = self
            .conn
            .prepare("INSERT OR REPLACE INTO pruned (name, seq, hash) VALUES (?1, ?2, ?3)")?;
        let mut found = find.query([PRUNED])?;
        let mut rows = 0;
        while let Some(row) = found.next()? {
            rows += 1;
            self.go_on(rows)?;
            let cells = Cells::new(row, "events");
            let Some(record) = cells.str(1).ok().and_then(Record::parse) else {
                let at = format!("system.{}", cells.u64(0)?);
                self.find(AuditFinding::Unreadable {
                    at,
                    why: format!("its payload is not a record of {PRUNED}"),
                });
                continue;
            };
            for (first, count) in record.globals {
                explain.execute([int(first), int(count)])?;
            }
            if let Some((seq, hash)) = record.head {
                note.execute(params![name_of(record.stream).as_slice(), int(seq), hash])?;
            }
        }
        self.conn.execute_batch("CREATE INDEX temp.explained_by_first ON explained (first)")?;
        Ok(())
    }

    /// Checks all events. Returns a sum over their streams and numbers, to compare with the index.
    fn events(&mut self) -> Outcome<Sum> {
        let conn = self.conn;
        let mut all = conn.prepare(
            "SELECT global, stream, seq, hash, ts, kind, payload
             FROM events NOT INDEXED ORDER BY global",
        )?;
        let mut explained = conn.prepare("SELECT first, count FROM explained ORDER BY first")?;
        let mut explained = Explained { rows: explained.query([])?, run: Some((0, 0)) };
        let mut seen: Recent<i64, Seen> = Recent::new(REMEMBERED / 2);
        let mut sum = Sum::default();
        let mut rows = all.query([])?;
        loop {
            let row = match rows.next() {
                Ok(Some(row)) => row,
                Ok(None) => break,
                Err(err) => {
                    self.find(AuditFinding::Unreadable {
                        at: format!("events after number {}", self.last),
                        why: err.to_string(),
                    });
                    break;
                }
            };
            let cells = Cells::new(row, "events");
            let global = cells.u64(0)?;
            self.go_on(self.report.events)?;
            self.report.events += 1;
            if global > self.last_signed {
                self.report.unsigned_tail += 1;
            }
            if global != self.last + 1
                && let Some(expected) = explained.missing(self.last + 1, global)?
            {
                self.find(AuditFinding::GlobalGap { expected, found: global });
            }
            self.last = self.last.max(global);
            match (cells.int(1), cells.u64(2), cells.hash(3)) {
                (Ok(n), Ok(seq), Ok(hash)) => {
                    sum.add(n, seq, global);
                    self.event(&mut seen, row, n, seq, hash, global)?;
                }
                _ => self.find(AuditFinding::Unreadable {
                    at: format!("event number {global}"),
                    why: "its stream, number or hash is not one".into(),
                }),
            }
        }
        Ok(sum)
    }

    /// Checks one event against the one before it in its stream.
    fn event(
        &mut self,
        seen: &mut Recent<i64, Seen>,
        row: &Row<'_>,
        n: i64,
        seq: u64,
        hash: [u8; 32],
        global: u64,
    ) -> Outcome<()> {
        if seen.get(&n).is_none() {
            let Some(before) = self.before(n, seq)? else {
                self.find(AuditFinding::Unreadable {
                    at: format!("event number {global}"),
                    why: format!("it names stream number {n}, which is not listed"),
                });
                return Ok(());
            };
            seen.insert(n, before);
        }
        let before = seen.get(&n).expect("it was found or inserted above");
        let stream = before.stream;
        if seq != before.seq + 1 {
            let expected = before.seq + 1;
            // Its hash cannot be checked without the event before it.
            *before = Seen { stream, seq, hash, should_be: None };
            self.find(AuditFinding::Gap { stream: stream.to_string(), expected, found: seq });
            return Ok(());
        }
        let cells = Cells::new(row, "events");
        let (ts, kind, payload) = (cells.time(4), cells.str(5), cells.str(6));
        let mut should_be = None;
        if let (Ok(ts), Ok(kind), Ok(payload)) = (&ts, &kind, &payload) {
            let follows = |prev: &[u8; 32]| chain_hash(prev, stream, seq, *ts, kind, payload);
            let expected = follows(&before.hash);
            let fits =
                expected == hash || before.should_be.is_some_and(|prev| follows(&prev) == hash);
            if fits {
                *before = Seen { stream, seq, hash, should_be: None };
                return Ok(());
            }
            should_be = Some(expected);
        }
        *before = Seen { stream, seq, hash, should_be };
        let kind = kind.unwrap_or("?").chars().take(64).collect();
        self.find(AuditFinding::BadHash { stream: stream.to_string(), seq, global, kind });
        Ok(())
    }

    /// The event before `seq` in stream `n`; `None` if there is no such stream.
    fn before(&self, n: i64, seq: u64) -> Outcome<Option<Seen>> {
        let name: Option<Vec<u8>> = self
            .conn
            .prepare_cached("SELECT name FROM streams WHERE n = ?1")?
            .query_row([n], |row| row.get(0))
            .optional()?;
        let Some(name) = name else { return Ok(None) };
        let stream = stream_of(&name)?;
        let mut find = self.conn.prepare_cached(
            "SELECT seq, hash FROM events WHERE stream = ?1 AND seq < ?2
             ORDER BY seq DESC LIMIT 1",
        )?;
        let mut found = find.query([n, int(seq)])?;
        match found.next()? {
            Some(row) => {
                let cells = Cells::new(row, "events");
                let (seq, hash) = (cells.u64(0)?, cells.hash(1)?);
                Ok(Some(Seen { stream, seq, hash, should_be: None }))
            }
            None => Ok(Some(Seen { stream, seq: 0, hash: [0; 32], should_be: None })),
        }
    }

    fn heads(&mut self) -> Outcome<()> {
        let conn = self.conn;
        let mut all =
            conn.prepare("SELECT n, name, head_seq, head_hash FROM streams ORDER BY n")?;
        let mut last = conn
            .prepare("SELECT seq, hash FROM events WHERE stream = ?1 ORDER BY seq DESC LIMIT 1")?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            let cells = Cells::new(row, "streams");
            let (n, recorded, hash) = (cells.int(0)?, cells.u64(2)?, cells.hash(3)?);
            let stream = stream_of(cells.blob(1)?)?;
            self.go_on(self.report.streams)?;
            // The system stream always exists; it counts once it has an event.
            if n != 1 || recorded > 0 {
                self.report.streams += 1;
            }
            let mut found = last.query([n])?;
            let (found, fits) = match found.next()? {
                Some(row) => {
                    let cells = Cells::new(row, "events");
                    let found = cells.u64(0)?;
                    (found, found == recorded && cells.hash(1)? == hash)
                }
                None => (0, recorded == 0 && hash == [0; 32]),
            };
            if !fits {
                let stream = stream.to_string();
                self.find(AuditFinding::BadHead { stream, recorded, found });
            }
        }
        Ok(())
    }

    /// Checks that the index has exactly the streams and numbers of the table's rows.
    fn index(&mut self, in_table: Sum) -> Outcome<()> {
        let mut all = self.conn.prepare(
            "SELECT stream, seq, global FROM events INDEXED BY events_by_stream
             ORDER BY stream, seq",
        )?;
        let mut rows = all.query([])?;
        let (mut sum, mut count, mut sorted) = (Sum::default(), 0, true);
        let mut before = (0, 0);
        while let Some(row) = rows.next()? {
            let cells = Cells::new(row, "events_by_stream");
            let (n, seq) = (cells.int(0)?, cells.u64(1)?);
            sum.add(n, seq, cells.u64(2)?);
            sorted &= before < (n, seq);
            before = (n, seq);
            count += 1;
            self.go_on(count)?;
        }
        if sum != in_table || !sorted {
            self.find(AuditFinding::Unreadable {
                at: "the index of the events by stream".into(),
                why: "it does not list what the events say of themselves".into(),
            });
        }
        Ok(())
    }

    /// Checks that the log contains what was acknowledged.
    fn promises(&mut self, promises: &[Promise]) -> Outcome<()> {
        let mut end = self.conn.prepare("SELECT head_seq FROM streams WHERE name = ?1")?;
        for promise in witness::newest(promises) {
            let name = name_of(promise.stream);
            if !self.has(name.as_slice(), promise.seq, &promise.hash)? {
                let found: Option<i64> =
                    end.query_row([name.as_slice()], |row| row.get(0)).optional()?;
                let found = u64::try_from(found.unwrap_or(0)).unwrap_or(0);
                let (stream, promised) = (promise.stream.to_string(), promise.seq);
                self.find(AuditFinding::Lost { stream, promised, found });
            }
        }
        Ok(())
    }

    fn attestations(&mut self) -> Outcome<()> {
        let (count, wrong) = attestations::wrong(self.conn, self.trusted)?;
        self.report.attestations = count;
        for (digest, why) in wrong {
            self.find(AuditFinding::BadAttestation { digest, why });
        }
        Ok(())
    }

    fn checkpoints(&mut self) -> Outcome<()> {
        let conn = self.conn;
        let mut all = conn.prepare(
            "SELECT number, ts, global, heads, prev, digest, key, signature
             FROM checkpoints ORDER BY number",
        )?;
        let mut rows = all.query([])?;
        let (mut expected, mut prev) = (1, [0; 32]);
        while let Some(row) = rows.next()? {
            let cells = Cells::new(row, "checkpoints");
            let number = cells.u64(0)?;
            let digest = cells.hash(5)?;
            self.report.checkpoints += 1;
            let mut wrong = |why: &str| {
                self.find(AuditFinding::BadCheckpoint { number, why: why.into() });
            };
            if number != expected {
                wrong(&format!("number {expected} should stand here"));
            } else if cells.hash(4)? != prev {
                wrong("it does not follow the one before it");
            }
            (expected, prev) = (number + 1, digest);
            let key = cells.blob(6)?;
            if !self.trusted.iter().any(|trusted| trusted == key) {
                let why = format!("it is signed with the unknown key {}", fingerprint(key));
                self.find(AuditFinding::BadCheckpoint { number, why });
            } else if !verify(key, &digest, cells.blob(7)?) {
                let why = "its signature is wrong".into();
                self.find(AuditFinding::BadCheckpoint { number, why });
            }
            let global = cells.u64(2)?;
            if global > self.last {
                let why = format!("it covers event {global}, and the log ends at {}", self.last);
                self.find(AuditFinding::BadCheckpoint { number, why });
            }
            let fields =
                Digest::new(number, cells.time(1)?, global, &cells.hash(4)?, cells.u64(3)?);
            if self.signed_heads(number, fields)? != digest {
                let why = "its digest is not that of its fields and heads".into();
                self.find(AuditFinding::BadCheckpoint { number, why });
            }
        }
        Ok(())
    }

    /// Compares the heads that a checkpoint signed with the log and returns their digest.
    fn signed_heads(&mut self, number: u64, mut digest: Digest) -> Outcome<[u8; 32]> {
        let mut heads = self.conn.prepare_cached(
            "SELECT stream, seq, hash FROM checkpoint_heads WHERE checkpoint = ?1 ORDER BY stream",
        )?;
        let mut rows = heads.query([int(number)])?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            let cells = Cells::new(row, "checkpoint_heads");
            let (name, seq, hash) = (cells.blob(0)?, cells.u64(1)?, cells.hash(2)?);
            count += 1;
            self.go_on(count)?;
            digest.head(name, seq, &hash);
            if !self.has(name, seq, &hash)? {
                let stream = stream_of(name)?.to_string();
                self.find(AuditFinding::CheckpointMismatch { number, stream, seq });
            }
        }
        Ok(digest.finish())
    }

    /// Whether the log has this event with this hash, or retention recorded that it had.
    fn has(&self, name: &[u8], seq: u64, hash: &[u8; 32]) -> Outcome<bool> {
        let stored: Option<Vec<u8>> = self
            .conn
            .prepare_cached(
                "SELECT e.hash FROM streams s CROSS JOIN events e ON e.stream = s.n
                 WHERE s.name = ?1 AND e.seq = ?2",
            )?
            .query_row(params![name, int(seq)], |row| row.get(0))
            .optional()?;
        if let Some(stored) = stored {
            return Ok(stored == hash);
        }
        let pruned: Option<(i64, String)> = self
            .conn
            .prepare_cached("SELECT seq, hash FROM pruned WHERE name = ?1")?
            .query_row([name], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        Ok(match pruned {
            None => false,
            Some((head, at_head)) if head == int(seq) => at_head == hex(hash),
            Some((head, _)) => head > int(seq),
        })
    }
}

/// The runs of global numbers that retention removed, in ascending order.
struct Explained<'s> {
    rows: Rows<'s>,
    /// First number and end (exclusive) of the current run; `None` after the last one.
    run: Option<(u64, u64)>,
}

impl Explained<'_> {
    /// The first number of `from..to` that no record explains. Must be called with ascending
    /// ranges.
    fn missing(&mut self, mut from: u64, to: u64) -> Outcome<Option<u64>> {
        if from > to {
            // The order went backwards, which no record explains.
            return Ok(Some(from));
        }
        while from < to {
            let Some((first, end)) = self.run else { return Ok(Some(from)) };
            if from < first {
                return Ok(Some(from));
            }
            if from < end {
                from = end;
                continue;
            }
            self.run = match self.rows.next()? {
                Some(row) => {
                    let cells = Cells::new(row, "explained");
                    let first = cells.u64(0)?;
                    Some((first, first.saturating_add(cells.u64(1)?)))
                }
                None => None,
            };
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_explained_only_by_runs_that_cover_it() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(
            "CREATE TABLE explained (first INTEGER, count INTEGER);
             INSERT INTO explained VALUES (3, 2), (5, 1), (10, 5), (20, 1);",
        )
        .unwrap();
        let mut all = conn.prepare("SELECT first, count FROM explained ORDER BY first").unwrap();
        let mut explained = Explained { rows: all.query([]).unwrap(), run: Some((0, 0)) };
        assert_eq!(explained.missing(3, 6).unwrap(), None);
        assert_eq!(explained.missing(8, 9).unwrap(), Some(8));
        assert_eq!(explained.missing(10, 12).unwrap(), None);
        assert_eq!(explained.missing(13, 16).unwrap(), Some(15), "13 and 14 are explained");
        assert_eq!(explained.missing(20, 21).unwrap(), None);
        assert_eq!(explained.missing(30, 31).unwrap(), Some(30));
    }

    #[test]
    fn checksums_depend_on_content_and_not_on_order() {
        let (mut a, mut b, mut c) = (Sum::default(), Sum::default(), Sum::default());
        a.add(1, 2, 3);
        a.add(4, 5, 6);
        b.add(4, 5, 6);
        b.add(1, 2, 3);
        c.add(1, 5, 3);
        c.add(4, 2, 6);
        assert!(a == b);
        assert!(a != c);
    }
}
