//! Reads a log in the daemon without blocking it, and waits for new output.

use std::path::{Path, PathBuf};

use overmind_core::Fut;
use overmind_core::ids::SessionId;
use overmind_core::process::{
    LogFrom, LogItem, LogPiece, LogQuery, LogReader, PieceReader, ProcessError,
};
use regex::bytes::RegexBuilder;

use crate::log::lines::{Cutter, piece};
use crate::log::reader::{Chunk, Cursor};
use crate::supervisor::pulse::Watching;

/// Bytes of a log that are read at once.
const STEP: usize = 256 << 10;

/// A position in a session's log, with a watch for more output.
#[derive(Debug)]
pub(crate) struct Follower {
    session: SessionId,
    dir: PathBuf,
    offset: u64,
    /// `None` after a call was dropped halfway; then the segment is opened again.
    cursor: Option<Cursor>,
    /// With `None`, only the existing log is read.
    watching: Option<Watching>,
}

fn failed(session: SessionId, err: &std::io::Error) -> ProcessError {
    ProcessError::Log { session, reason: err.to_string() }
}

/// Runs work on another thread that blocks on a file only as long as the page cache takes.
pub(crate) async fn blocking<T: Send + 'static>(
    session: SessionId,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, ProcessError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|err| failed(session, &err)),
        Err(err) => Err(ProcessError::Log { session, reason: err.to_string() }),
    }
}

impl Follower {
    /// Finds the position. `watching` must be taken before, so that nothing is missed in between.
    pub(crate) async fn open(
        session: SessionId,
        dir: &Path,
        from: LogFrom,
        watching: Option<Watching>,
    ) -> Result<Self, ProcessError> {
        let of = dir.to_owned();
        let cursor = blocking(session, move || Cursor::find(of, from)).await?;
        let offset = cursor.offset;
        Ok(Self { session, dir: dir.to_owned(), offset, cursor: Some(cursor), watching })
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Moves to another position.
    pub(crate) fn jump(&mut self, offset: u64) {
        self.offset = offset;
        self.cursor = None;
    }

    /// The next chunks; empty at the end, which while watching is the end of the process.
    ///
    /// Cancel safe: the position moves only when the chunks are returned.
    pub(crate) async fn chunks(&mut self, max_bytes: usize) -> Result<Vec<Chunk>, ProcessError> {
        loop {
            // This is checked first: everything written until then is found by the read.
            let over = self.watching.as_mut().is_none_or(Watching::look);
            let mut cursor =
                self.cursor.take().unwrap_or_else(|| Cursor::new(self.dir.clone(), self.offset));
            let (cursor, chunks) = blocking(self.session, move || {
                let chunks = cursor.next(max_bytes)?;
                Ok((cursor, chunks))
            })
            .await?;
            if !chunks.is_empty() || over {
                self.offset = cursor.offset;
                self.cursor = Some(cursor);
                return Ok(chunks);
            }
            self.cursor = Some(cursor);
            if let Some(watching) = &mut self.watching {
                watching.changed().await;
            }
        }
    }
}

/// Implements [`LogReader`].
#[derive(Debug)]
pub(crate) struct Lines {
    follower: Follower,
    cutter: Cutter,
    out: Vec<LogItem>,
}

impl Lines {
    pub(crate) async fn open(
        session: SessionId,
        dir: &Path,
        query: LogQuery,
        watching: Option<Watching>,
    ) -> Result<Self, ProcessError> {
        let grep = match query.grep {
            None => None,
            Some(pattern) => match RegexBuilder::new(&pattern).size_limit(1 << 20).build() {
                Ok(regex) => Some(regex),
                Err(err) => return Err(ProcessError::Pattern { pattern, reason: err.to_string() }),
            },
        };
        let mut cutter = Cutter::new(grep, query.strip, query.notes);
        match query.from {
            LogFrom::Start => cutter.begins(0, Some(0)),
            LogFrom::Offset(offset) => cutter.begins(offset, None),
            LogFrom::Since(_) | LogFrom::Tail(_) | LogFrom::End => {}
        }
        let follower = Follower::open(session, dir, query.from, watching).await?;
        Ok(Self { follower, cutter, out: Vec::new() })
    }
}

impl LogReader for Lines {
    fn next(&mut self) -> Fut<'_, Result<Vec<LogItem>, ProcessError>> {
        Box::pin(async move {
            // A step without a complete or matching line is not the end.
            while self.out.is_empty() {
                let chunks = self.follower.chunks(STEP).await?;
                if chunks.is_empty() {
                    self.cutter.flush(&mut self.out);
                    break;
                }
                for chunk in chunks {
                    self.cutter.push(chunk, &mut self.out);
                }
            }
            Ok(std::mem::take(&mut self.out))
        })
    }
}

/// Implements [`PieceReader`].
#[derive(Debug)]
pub(crate) struct Pieces(pub(crate) Follower);

impl PieceReader for Pieces {
    fn next(&mut self) -> Fut<'_, Result<Vec<LogPiece>, ProcessError>> {
        Box::pin(async move {
            let chunks = self.0.chunks(STEP).await?;
            Ok(chunks.into_iter().map(piece).collect())
        })
    }
}
