//! Signed checkpoints over stream heads.
//!
//! A checkpoint lists the head (number and hash) of every stream that changed since the one
//! before. Its digest is
//!
//! ```text
//! BLAKE3("overmind checkpoint 1" ‖ number ‖ ts ‖ global ‖ prev ‖ count ‖
//!        for each head, by name: len(name) ‖ name ‖ seq ‖ hash)
//! ```
//!
//! Integers are 8 bytes big-endian, `prev` is the digest of the checkpoint before (zeros for the
//! first), and a name is the session's 16 bytes, or empty for the system stream. The digest is
//! signed with Ed25519.
//!
//! Each event's hash covers all events before it in its stream, so a signed head proves the whole
//! stream up to it: to rewrite or cut a stream, an attacker must forge a signature. There are
//! limits. A user who may write the file can replace everything that no checkpoint has signed yet,
//! since the hashes need no key, and can cut the log off at a checkpoint with everything after it.
//! Only a copy of the newest checkpoint in another place (a backup) reveals that. A user who can
//! read the key can sign anything.

use overmind_core::store::StreamId;
use overmind_core::time::Timestamp;
use rusqlite::{Connection, params};

use super::log::{Head, Log, Signed, name_of};
use crate::error::Outcome;
use crate::key::SigningKey;
use crate::read::rows::int;

/// Hashes a checkpoint's fields, then its heads in the order of their names.
pub(crate) struct Digest(blake3::Hasher);

impl Digest {
    pub(crate) fn new(
        number: u64,
        ts: Timestamp,
        global: u64,
        prev: &[u8; 32],
        count: u64,
    ) -> Self {
        let mut hash = blake3::Hasher::new();
        hash.update(b"overmind checkpoint 1");
        hash.update(&number.to_be_bytes());
        hash.update(&ts.as_micros().to_be_bytes());
        hash.update(&global.to_be_bytes());
        hash.update(prev);
        hash.update(&count.to_be_bytes());
        Self(hash)
    }

    pub(crate) fn head(&mut self, name: &[u8], seq: u64, hash: &[u8; 32]) {
        self.0.update(&(name.len() as u64).to_be_bytes()).update(name);
        self.0.update(&seq.to_be_bytes()).update(hash);
    }

    pub(crate) fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// Signs unsigned events in the current transaction; `None` if there are none.
pub(super) fn sign(
    conn: &Connection,
    log: &mut Log,
    key: &SigningKey,
    ts: Timestamp,
) -> Outcome<Option<Signed>> {
    let heads: Vec<(StreamId, Head)> = log.unsigned_heads();
    if heads.is_empty() {
        return Ok(None);
    }
    let number = log.signed.number + 1;
    let prev = log.signed.digest;
    let mut digest = Digest::new(number, ts, log.global(), &prev, heads.len() as u64);
    let mut insert = conn.prepare_cached(
        "INSERT INTO checkpoint_heads (checkpoint, stream, seq, hash) VALUES (?1, ?2, ?3, ?4)",
    )?;
    for (stream, head) in &heads {
        let name = name_of(*stream);
        digest.head(name.as_slice(), head.seq, &head.hash);
        insert.execute(params![int(number), name.as_slice(), int(head.seq), head.hash])?;
    }
    let digest = digest.finish();
    conn.prepare_cached(
        "INSERT INTO checkpoints (number, ts, global, heads, prev, digest, key, signature)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute(params![
        int(number),
        ts.as_micros(),
        int(log.global()),
        int(heads.len() as u64),
        prev,
        digest,
        key.public(),
        key.sign(&digest)
    ])?;
    let signed = Signed { number, global: log.global(), digest };
    log.note_signed(signed);
    Ok(Some(signed))
}
