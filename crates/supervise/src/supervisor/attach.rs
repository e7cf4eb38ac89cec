//! Viewers, which see the log grow and may type.
//!
//! A viewer reads from the files at its own pace; nobody waits for it. A viewer that is too far
//! behind jumps to the end and is informed what it missed, or gets the current screen.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overmind_core::Fut;
use overmind_core::process::{
    AttachOptions, Attachment, Ended, LogFrom, LogKind, Painted, ProcessError, ProcessKey, Seen,
    TerminalSize,
};

use crate::log::follow::{Follower, blocking};
use crate::supervisor::entry::Entry;
use crate::supervisor::life::{Life, Request, What};
use crate::supervisor::pulse::{State, Watching};
use crate::supervisor::{Shared, request};
use crate::wire::Ask;

/// How many bytes a viewer may be behind the end before it jumps there.
const BEHIND: u64 = 1 << 20;
/// Maximum number of bytes that one call returns.
const STEP: usize = 64 << 10;
/// The time between two screens for a slow viewer; people cannot see more.
const BETWEEN_SCREENS: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Viewer {
    key: ProcessKey,
    entry: Arc<Entry>,
    life: Arc<Life>,
    follower: Follower,
    watching: Watching,
    options: AttachOptions,
    id: u64,
    /// The end of the last piece.
    expected: u64,
    /// The number of bytes skipped since the last shown piece.
    skipped: u64,
    ready: std::collections::VecDeque<Seen>,
    painted_at: Option<Instant>,
    ended: Option<Ended>,
}

impl Viewer {
    pub(crate) async fn open(
        shared: &Arc<Shared>,
        key: ProcessKey,
        options: AttachOptions,
    ) -> Result<Self, ProcessError> {
        let entry = shared.known(key)?;
        let life = entry.life(key)?;
        if options.paint && life.terminal.is_none() {
            return Err(ProcessError::NoTerminal(key));
        }
        let watching = entry.watch();
        let end = entry.pulse.borrow().offset;
        let from = end.saturating_sub(options.replay_bytes).max(life.started.offset.min(end));
        let from = if options.replay_bytes == 0 { LogFrom::End } else { LogFrom::Offset(from) };
        let follower = Follower::open(key.session, &entry.dir, from, Some(entry.watch())).await?;
        let expected = follower.offset();
        let id = entry.next_id();
        let mut viewer = Self {
            key,
            entry,
            life,
            follower,
            watching,
            options,
            id,
            expected,
            skipped: 0,
            ready: std::collections::VecDeque::new(),
            painted_at: None,
            ended: None,
        };
        if let Some(size) = options.size {
            viewer.activate(size, true).await?;
        }
        if options.paint {
            viewer.paint(0).await?;
        }
        Ok(viewer)
    }

    /// Shows the current screen, and continues after it.
    ///
    /// If dropped halfway, nothing has changed.
    async fn paint(&mut self, skipped: u64) -> Result<(), ProcessError> {
        if let Some(left) = self.painted_at.and_then(|at| BETWEEN_SCREENS.checked_sub(at.elapsed()))
        {
            // This only pauses.
            let _ = tokio::time::timeout(left, pending::<()>()).await;
        }
        let size = self.entry.lock().terminal.unwrap_or_default();
        let (dir, epoch) = (self.entry.dir.clone(), self.key.epoch);
        let drawn = blocking(self.key.session, move || crate::screen::paint(&dir, size, epoch));
        let (painted, to) = drawn.await?;
        self.follower.jump(to);
        self.expected = to;
        self.skipped = 0;
        self.painted_at = Some(Instant::now());
        self.ready.push_back(Seen::Screen(Painted { skipped, ..painted }));
        Ok(())
    }

    /// Makes this the viewer whose size is used.
    async fn activate(&self, size: TerminalSize, redraw: bool) -> Result<(), ProcessError> {
        if self.options.read_only || self.life.terminal.is_none() {
            return Ok(());
        }
        let changed = {
            let mut inner = self.entry.lock();
            inner.viewers.retain(|(id, _)| *id != self.id);
            inner.viewers.push((self.id, size));
            inner.terminal != Some(size)
        };
        if changed || redraw {
            request::resize(&self.entry, &self.life, size, redraw).await?;
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<(), ProcessError> {
        let end = self.watching.now().offset;
        let behind = end.saturating_sub(self.follower.offset());
        if behind > BEHIND && self.options.paint {
            return self.paint(behind).await;
        }
        if behind > BEHIND {
            let to = end.saturating_sub(self.options.replay_bytes.min(BEHIND / 2));
            self.follower.jump(to);
        }
        let chunks = self.follower.chunks(STEP).await?;
        let mut bytes = Vec::new();
        let over = chunks.is_empty();
        for chunk in chunks {
            let at = chunk.record.offset;
            if at > self.expected {
                self.skipped += at - self.expected;
            }
            self.expected = chunk.end();
            let shown = match chunk.record.kind {
                LogKind::Output | LogKind::Stderr => chunk.record.epoch == self.key.epoch,
                LogKind::Note(_) => false,
            };
            if shown {
                if self.skipped > 0 {
                    if !bytes.is_empty() {
                        self.ready.push_back(Seen::Output(std::mem::take(&mut bytes)));
                    }
                    self.ready.push_back(Seen::Skipped(std::mem::take(&mut self.skipped)));
                }
                bytes.extend_from_slice(&chunk.bytes);
            }
        }
        if !bytes.is_empty() {
            self.ready.push_back(Seen::Output(bytes));
        }
        if over {
            let pulse = self.watching.now();
            let ended = match pulse.state {
                State::Ended(ended) if pulse.epoch == self.key.epoch => ended,
                State::Ended(_) | State::Idle | State::Live => Ended::Lost {
                    reason: "the session goes on in another life, or was forgotten".to_owned(),
                    killed: 0,
                },
            };
            self.ended = Some(ended);
        }
        Ok(())
    }
}

impl Attachment for Viewer {
    fn next(&mut self) -> Fut<'_, Result<Seen, ProcessError>> {
        Box::pin(async move {
            loop {
                if let Some(seen) = self.ready.pop_front() {
                    return Ok(seen);
                }
                if let Some(ended) = &self.ended {
                    return Ok(Seen::Ended(ended.clone()));
                }
                self.read().await?;
            }
        })
    }

    fn write(&mut self, bytes: Vec<u8>, limit: Duration) -> Fut<'_, Result<(), ProcessError>> {
        Box::pin(async move {
            if self.options.read_only {
                return Err(ProcessError::ReadOnly(self.key));
            }
            if let Some(size) = self.options.size {
                self.activate(size, false).await?;
            }
            request::write(&self.entry, &self.life, &bytes, limit).await
        })
    }

    fn resize(&mut self, size: TerminalSize) -> Fut<'_, Result<(), ProcessError>> {
        Box::pin(async move {
            self.options.size = Some(size);
            self.activate(size, false).await
        })
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut inner = self.entry.lock();
        let was_active = inner.viewers.last().is_some_and(|(id, _)| *id == self.id);
        inner.viewers.retain(|(id, _)| *id != self.id);
        let Some((_, size)) = inner.viewers.last().copied().filter(|_| was_active) else { return };
        if inner.terminal == Some(size) {
            return;
        }
        inner.terminal = Some(size);
        let what = What::Ask(Ask::Resize { size: size.into(), redraw: false });
        let request = Box::new(Request { id: self.entry.next_id(), what, reply: None });
        // If the queue is full, the next key of the remaining viewer corrects it.
        let _ = self.life.requests.try_send(request);
    }
}
