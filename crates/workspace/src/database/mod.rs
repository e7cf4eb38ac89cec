//! Databases for a session.
//!
//! * `postgres`: a logical database in a server that others share, copied from a template, with
//!   a role that can connect to nothing else of ours;
//! * `cluster`: the server itself, when the project names none;
//! * `sqlite`: a copy of a file, taken so that a writer cannot tear it;
//! * `redis`: an index of a shared server. (A server of the session's own is a process.)
//!
//! `template` decides when a template is out of date.

pub(crate) mod cluster;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod sqlite;
pub(crate) mod template;

pub use cluster::{ClusterError, files_of, server_of};
pub use postgres::PostgresError;
pub use redis::RedisError;
pub use sqlite::SqliteError;
pub use template::TemplateFilesError;

/// A new password: 24 letters and digits, some 140 bits.
pub(crate) fn password() -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    random::<24>().iter().map(|byte| char::from(LETTERS[usize::from(byte % 64)])).collect()
}

/// Random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0_u8; N];
    let mut filled = 0;
    while filled < N {
        // It fails only if it is interrupted before the pool is ready.
        if let Ok(more) =
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
        {
            filled += more;
        }
    }
    bytes
}

/// The first `digits` hexadecimal digits of a hash.
pub(crate) fn short_hash(text: &str, digits: usize) -> String {
    let hash = blake3::hash(text.as_bytes()).to_hex();
    hash.as_str()[..digits].to_owned()
}
