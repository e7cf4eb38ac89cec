//! The live output of a running tool call: output as it is written, and reported progress.
//!
//! It is for people who watch. No decision depends on it: the whole result comes at the end, and
//! live output becomes observations in the log, which a replay skips. So it may be cut, gathered
//! and dropped, but secrets in it must always be masked.

use std::fmt;
use std::sync::Arc;

use crate::sandbox::OutputStream;

/// Maximum number of bytes of a call's output that are passed on, of both streams together. The
/// rest is only counted.
pub const MAX_BYTES: usize = 64 << 10;

/// One piece of live output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Live<'a> {
    /// The next bytes of one stream, in order.
    Output { stream: OutputStream, bytes: &'a [u8] },
    /// Progress in the tool's own unit. The message is the tool's text and untrusted.
    Progress { progress: f64, total: Option<f64>, message: Option<&'a str> },
}

/// Receives live output. It is called where output is read, so it must not block.
#[derive(Clone, Default)]
pub struct LiveSink(Option<Arc<Hear>>);

type Hear = dyn Fn(Live<'_>) + Send + Sync;

impl LiveSink {
    pub fn new(hear: impl Fn(Live<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hear)))
    }

    /// Returns whether there is a listener. If not, a tool need not report anything.
    pub fn is_heard(&self) -> bool {
        self.0.is_some()
    }

    pub fn say(&self, what: Live<'_>) {
        if let Some(hear) = &self.0 {
            hear(what);
        }
    }
}

impl fmt::Debug for LiveSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LiveSink").field(&self.is_heard()).finish()
    }
}

/// Live output that a Hive gathered for the Cortex.
#[derive(Clone, Debug, PartialEq)]
pub enum LivePiece {
    /// Output; `offset` is the position of the bytes in the stream.
    Output {
        stream: OutputStream,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// The call has written more than is passed on. From now on only these counts are sent.
    Capped {
        stdout_bytes: u64,
        stderr_bytes: u64,
    },
    Progress {
        progress: f64,
        total: Option<f64>,
        message: Option<String>,
    },
}
