//! What a tool call says while it is under way: output as it is written, progress as it is told.
//!
//! It is for people who watch. Nothing is decided on it: the whole result comes at the end, and
//! what was said before becomes observations in the log, which a replay passes over. So it may be
//! cut, gathered and dropped on its way; what may not happen is that a secret slips through.

use std::fmt;
use std::sync::Arc;

use crate::sandbox::OutputStream;

/// Bytes of a call's output that are passed on, both streams together; of the rest only counts.
pub const MAX_BYTES: usize = 64 << 10;

/// One thing that a call says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Live<'a> {
    /// The next bytes of one stream, in their order.
    Output { stream: OutputStream, bytes: &'a [u8] },
    /// How far it is, in its own unit. The message is the tool's word: untrusted.
    Progress { progress: f64, total: Option<f64>, message: Option<&'a str> },
}

/// Hears what a call says. It is called where output is read, so it must not block.
#[derive(Clone, Default)]
pub struct LiveSink(Option<Arc<Hear>>);

type Hear = dyn Fn(Live<'_>) + Send + Sync;

impl LiveSink {
    pub fn new(hear: impl Fn(Live<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hear)))
    }

    /// Whether anybody listens. If not, a tool need not take the trouble.
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

/// What a call said, gathered by its Hive for the way to the Cortex.
#[derive(Clone, Debug, PartialEq)]
pub enum LivePiece {
    /// `offset` is where in the stream the bytes stood.
    Output {
        stream: OutputStream,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// The call has written more than is passed on: from now on only these counts are.
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
