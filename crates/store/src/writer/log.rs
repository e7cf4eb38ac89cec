//! The end of the log, in memory: the head of each stream, the last global number, and the changes
//! that no checkpoint has signed yet.
//!
//! The values always equal the durable state plus the changes of the current transaction. These
//! changes are held in two layers above the cache, one for the current commit and one for its
//! group, so that either can be dropped without a trace: [`Log::drop_commit`] and
//! [`Log::drop_group`].

use std::collections::HashMap;

use overmind_core::ids::SessionId;
use overmind_core::store::{StreamId, chain_hash};
use overmind_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Outcome;
use crate::prepare::Event;
use crate::read::rows::{self, Cells};
use crate::recent::Recent;

/// Maximum number of heads that are cached; others are read from the file when needed.
const REMEMBERED: usize = 16_384;

/// If more streams than this changed since the last checkpoint, the next one is due early: signing
/// is work inside of a commit and grows with their number.
const MAX_UNSIGNED_STREAMS: usize = 2_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// The stream's number in the file.
    pub(crate) n: i64,
    pub(crate) seq: u64,
    pub(crate) hash: [u8; 32],
}

/// The newest checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Signed {
    pub(crate) number: u64,
    pub(crate) global: u64,
    pub(crate) digest: [u8; 32],
}

/// The state to which a failed transaction returns.
#[derive(Clone, Copy, Debug)]
struct Ends {
    global: u64,
    next_stream: i64,
    ts: Timestamp,
}

#[derive(Debug)]
pub(crate) struct Log {
    heads: Recent<StreamId, Head>,
    group: HashMap<StreamId, Head>,
    commit: Vec<(StreamId, Head)>,
    now: Ends,
    at_group: Ends,
    at_commit: Ends,
    /// Streams changed since the newest checkpoint, with their heads.
    unsigned: HashMap<StreamId, Head>,
    pub(crate) signed: Signed,
    signed_in_group: Option<Signed>,
}

impl Log {
    pub(crate) fn load(conn: &Connection) -> Outcome<Self> {
        let last: Option<(i64, i64)> = conn
            .query_row("SELECT global, ts FROM events ORDER BY global DESC LIMIT 1", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()?;
        let (global, ts) = last.unwrap_or((0, 0));
        let next_stream: i64 =
            conn.query_row("SELECT max(n) + 1 FROM streams", [], |row| row.get(0))?;
        let ends = Ends {
            global: rows::unsigned(global, "events.global")?,
            next_stream,
            ts: Timestamp::from_micros(ts),
        };
        let mut log = Self {
            heads: Recent::new(REMEMBERED / 2),
            group: HashMap::new(),
            commit: Vec::new(),
            now: ends,
            at_group: ends,
            at_commit: ends,
            unsigned: HashMap::new(),
            signed: load_signed(conn)?,
            signed_in_group: None,
        };
        log.load_unsigned(conn)?;
        Ok(log)
    }

    fn load_unsigned(&mut self, conn: &Connection) -> Outcome<()> {
        let mut find = conn.prepare(
            "SELECT n, name, head_seq, head_hash FROM streams
             WHERE n IN (SELECT DISTINCT stream FROM events WHERE global > ?1)",
        )?;
        let mut found = find.query([rows::int(self.signed.global)])?;
        while let Some(row) = found.next()? {
            let cells = Cells::new(row, "streams");
            let head = Head { n: cells.int(0)?, seq: cells.u64(2)?, hash: cells.hash(3)? };
            self.unsigned.insert(stream_of(cells.blob(1)?)?, head);
        }
        Ok(())
    }

    /// The last global number, including the current transaction.
    pub(crate) fn global(&self) -> u64 {
        self.now.global
    }

    /// Time of the newest event; 1970 if there is none.
    pub(crate) fn last_ts(&self) -> Timestamp {
        self.now.ts
    }

    /// Appends an event and returns its place in its stream.
    pub(crate) fn append(&mut self, conn: &Connection, event: &Event) -> Outcome<u64> {
        let before = self.head(conn, event.stream)?;
        let seq = before.seq + 1;
        let hash =
            chain_hash(&before.hash, event.stream, seq, event.ts, event.kind, &event.payload);
        let global = self.now.global + 1;
        conn.prepare_cached(
            "INSERT INTO events (global, stream, seq, ts, hash, kind, payload)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            rows::int(global),
            before.n,
            rows::int(seq),
            event.ts.as_micros(),
            hash,
            event.kind,
            event.payload
        ])?;
        let head = Head { n: before.n, seq, hash };
        match self.commit.iter_mut().find(|(stream, _)| *stream == event.stream) {
            Some((_, known)) => *known = head,
            None => self.commit.push((event.stream, head)),
        }
        self.now.global = global;
        self.now.ts = event.ts;
        Ok(seq)
    }

    /// The stream's head; a new stream gets its number here.
    fn head(&mut self, conn: &Connection, stream: StreamId) -> Outcome<Head> {
        if let Some((_, head)) = self.commit.iter().find(|(known, _)| *known == stream) {
            return Ok(*head);
        }
        if let Some(head) = self.group.get(&stream) {
            return Ok(*head);
        }
        if let Some(head) = self.heads.get(&stream) {
            return Ok(*head);
        }
        let mut find =
            conn.prepare_cached("SELECT n, head_seq, head_hash FROM streams WHERE name = ?1")?;
        let mut found = find.query([name_of(stream).as_slice()])?;
        if let Some(row) = found.next()? {
            let cells = Cells::new(row, "streams");
            let head = Head { n: cells.int(0)?, seq: cells.u64(1)?, hash: cells.hash(2)? };
            self.heads.insert(stream, head);
            return Ok(head);
        }
        let n = self.now.next_stream;
        self.now.next_stream += 1;
        Ok(Head { n, seq: 0, hash: [0; 32] })
    }

    pub(crate) fn begin_group(&mut self) {
        debug_assert!(self.group.is_empty() && self.commit.is_empty());
        self.at_group = self.now;
        self.at_commit = self.now;
    }

    pub(crate) fn begin_commit(&mut self) {
        self.at_commit = self.now;
    }

    /// Merges the commit's changes into the group's.
    pub(crate) fn keep_commit(&mut self) {
        self.group.extend(self.commit.drain(..));
    }

    pub(crate) fn drop_commit(&mut self) {
        self.commit.clear();
        self.now = self.at_commit;
    }

    /// Writes the heads that the group changed, one row for each stream, however many events it
    /// has.
    pub(crate) fn write_heads(&self, conn: &Connection) -> Outcome<()> {
        if self.group.is_empty() {
            return Ok(());
        }
        let mut update =
            conn.prepare_cached("UPDATE streams SET head_seq = ?2, head_hash = ?3 WHERE n = ?1")?;
        let mut insert = conn.prepare_cached(
            "INSERT INTO streams (n, head_seq, head_hash, name) VALUES (?1, ?2, ?3, ?4)",
        )?;
        for (stream, head) in &self.group {
            if head.n >= self.at_group.next_stream {
                let name = name_of(*stream);
                insert.execute(params![head.n, rows::int(head.seq), head.hash, name.as_slice()])?;
            } else {
                update.execute(params![head.n, rows::int(head.seq), head.hash])?;
            }
        }
        Ok(())
    }

    /// The heads that the group changed.
    pub(crate) fn moved(&self) -> impl Iterator<Item = (&StreamId, &Head)> {
        self.group.iter()
    }

    /// Merges the group's changes into the cache: the transaction is durable.
    pub(crate) fn keep_group(&mut self) {
        debug_assert!(self.commit.is_empty());
        let signed = self.signed_in_group.take();
        if let Some(signed) = signed {
            self.signed = signed;
            self.unsigned.clear();
        }
        for (stream, head) in self.group.drain() {
            self.heads.insert(stream, head);
            if signed.is_none() {
                self.unsigned.insert(stream, head);
            }
        }
    }

    /// Drops the group's changes: the transaction failed.
    pub(crate) fn drop_group(&mut self) {
        self.commit.clear();
        self.group.clear();
        self.signed_in_group = None;
        self.now = self.at_group;
    }

    /// Whether the group should end with a checkpoint.
    pub(crate) fn is_due(&self, every: u64) -> bool {
        !self.group.is_empty()
            && (self.now.global.saturating_sub(self.signed.global) >= every
                || self.unsigned.len() + self.group.len() > MAX_UNSIGNED_STREAMS)
    }

    /// The heads that a checkpoint would sign now, in the order in which they are signed.
    pub(crate) fn unsigned_heads(&self) -> Vec<(StreamId, Head)> {
        let mut heads: HashMap<StreamId, Head> = self.unsigned.clone();
        heads.extend(self.group.iter().map(|(stream, head)| (*stream, *head)));
        let mut heads: Vec<_> = heads.into_iter().collect();
        heads.sort_unstable_by_key(|(stream, _)| name_of(*stream));
        heads
    }

    pub(crate) fn note_signed(&mut self, signed: Signed) {
        self.signed_in_group = Some(signed);
    }

    /// Forgets streams that retention has removed in a durable transaction.
    pub(crate) fn forget(&mut self, streams: &[StreamId]) {
        for stream in streams {
            self.heads.remove(stream);
            self.unsigned.remove(stream);
        }
    }
}

fn load_signed(conn: &Connection) -> Outcome<Signed> {
    let mut find = conn
        .prepare("SELECT number, global, digest FROM checkpoints ORDER BY number DESC LIMIT 1")?;
    let mut found = find.query([])?;
    match found.next()? {
        Some(row) => {
            let cells = Cells::new(row, "checkpoints");
            Ok(Signed { number: cells.u64(0)?, global: cells.u64(1)?, digest: cells.hash(2)? })
        }
        None => Ok(Signed::default()),
    }
}

/// A stream's name in the file: a session's id, or empty for the system stream.
pub(crate) fn name_of(stream: StreamId) -> Name {
    match stream {
        StreamId::System => Name { bytes: [0; 16], len: 0 },
        StreamId::Mesh => Name { bytes: one_byte(MESH), len: 1 },
        StreamId::Records => Name { bytes: one_byte(RECORDS), len: 1 },
        StreamId::Session(id) => Name { bytes: id.as_u128().to_be_bytes(), len: 16 },
    }
}

/// The names of the streams of the mesh and of records are one byte, which is no id.
const MESH: u8 = b'm';
const RECORDS: u8 = b'r';

fn one_byte(name: u8) -> [u8; 16] {
    (u128::from(name) << 120).to_be_bytes()
}

/// Sorts as the blob does: the system stream first, then sessions by id with the other two streams
/// among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    bytes: [u8; 16],
    len: usize,
}

impl Name {
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

pub(crate) fn stream_of(name: &[u8]) -> Outcome<StreamId> {
    match name {
        [] => return Ok(StreamId::System),
        [MESH] => return Ok(StreamId::Mesh),
        [RECORDS] => return Ok(StreamId::Records),
        _ => {}
    }
    let id = rows::u128_of(name, "streams.name")?;
    Ok(StreamId::Session(SessionId::from_u128(id)))
}
