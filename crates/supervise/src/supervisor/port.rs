//! Implements the engine's port for [`Supervisor`].

use std::time::Duration;

use overmind_core::Fut;
use overmind_core::ids::SessionId;
use overmind_core::process::prompt::Screen;
use overmind_core::process::{
    Activity, Adopted, AttachOptions, Attachment, End, Ended, LogFrom, LogQuery, LogReader,
    NoteKind, PieceReader, ProcessError, ProcessKey, ProcessSpec, Processes, Started, TerminalSize,
    Usage,
};

use crate::log::follow::{Follower, Lines, Pieces, blocking};
use crate::supervisor::attach::Viewer;
use crate::supervisor::pulse::State;
use crate::supervisor::{Supervisor, adopt, request, start};
use crate::wire::Ask;

impl Processes for Supervisor {
    fn start(&self, spec: ProcessSpec) -> Fut<'_, Result<Started, ProcessError>> {
        Box::pin(async move { Box::pin(start::start(&self.shared, spec)).await })
    }

    fn adopt_all(&self) -> Fut<'_, Result<Vec<Adopted>, ProcessError>> {
        Box::pin(async move { Box::pin(adopt::adopt_all(&self.shared)).await })
    }

    fn end(
        &self,
        key: ProcessKey,
        how: End,
        reason: Option<String>,
    ) -> Fut<'_, Result<(), ProcessError>> {
        Box::pin(async move {
            let entry = self.shared.known(key)?;
            let life = entry.life(key)?;
            request::ask(&entry, &life, "ending it", Ask::end(&how, reason)).await.map(drop)
        })
    }

    fn signal(&self, key: ProcessKey, signal: i32) -> Fut<'_, Result<(), ProcessError>> {
        Box::pin(async move {
            let entry = self.shared.known(key)?;
            let life = entry.life(key)?;
            request::ask(&entry, &life, "sending a signal", Ask::Signal(signal)).await.map(drop)
        })
    }

    fn write(
        &self,
        key: ProcessKey,
        bytes: Vec<u8>,
        limit: Duration,
    ) -> Fut<'_, Result<(), ProcessError>> {
        Box::pin(async move {
            let entry = self.shared.known(key)?;
            let life = entry.life(key)?;
            request::write(&entry, &life, &bytes, limit).await
        })
    }

    fn close_input(&self, key: ProcessKey) -> Fut<'_, Result<(), ProcessError>> {
        Box::pin(async move {
            let entry = self.shared.known(key)?;
            let life = entry.life(key)?;
            request::ask(&entry, &life, "closing its input", Ask::CloseInput).await.map(drop)
        })
    }

    fn resize(&self, key: ProcessKey, size: TerminalSize) -> Fut<'_, Result<(), ProcessError>> {
        Box::pin(async move {
            let entry = self.shared.known(key)?;
            let life = entry.life(key)?;
            request::resize(&entry, &life, size, false).await
        })
    }

    fn note(
        &self,
        session: SessionId,
        kind: NoteKind,
        text: String,
    ) -> Fut<'_, Result<(), ProcessError>> {
        Box::pin(async move { request::note(&self.shared, session, kind, text).await })
    }

    fn usage(&self, key: ProcessKey) -> Fut<'_, Result<Usage, ProcessError>> {
        Box::pin(async move {
            let entry = self.shared.known(key)?;
            let life = entry.life(key)?;
            request::usage(&entry, &life).await
        })
    }

    fn usages(
        &self,
        keys: Vec<ProcessKey>,
    ) -> Fut<'_, Result<Vec<(ProcessKey, Usage)>, ProcessError>> {
        Box::pin(async move {
            let main = |key: ProcessKey| {
                let life = self.shared.entry(key.session)?.life(key).ok()?;
                Some((key, i32::try_from(life.started.pid).ok()?))
            };
            let mains: Vec<(ProcessKey, i32)> = keys.into_iter().filter_map(main).collect();
            let Some((first, _)) = mains.first() else { return Ok(Vec::new()) };
            blocking(first.session, move || Ok(crate::proc::usages(&mains))).await
        })
    }

    fn activity(&self, key: ProcessKey) -> Option<Activity> {
        let entry = self.shared.entry(key.session)?;
        let pulse = entry.pulse.borrow();
        (pulse.epoch == key.epoch).then(|| pulse.activity())
    }

    fn ended(&self, key: ProcessKey) -> Fut<'_, Result<Ended, ProcessError>> {
        Box::pin(async move {
            let entry = self.shared.known(key)?;
            let mut pulse = entry.pulse.subscribe();
            // The table's own reference would keep the sender alive after a `forget`.
            drop(entry);
            loop {
                {
                    let now = pulse.borrow_and_update();
                    if now.epoch != key.epoch {
                        return Err(ProcessError::NotAlive(key));
                    }
                    match &now.state {
                        State::Ended(ended) => return Ok(ended.clone()),
                        State::Idle => return Err(ProcessError::NotAlive(key)),
                        State::Live => {}
                    }
                }
                if pulse.changed().await.is_err() {
                    return Err(ProcessError::NotAlive(key));
                }
            }
        })
    }

    fn acknowledge(&self, key: ProcessKey) -> Fut<'_, Result<(), ProcessError>> {
        Box::pin(async move { request::acknowledge(&self.shared, key).await })
    }

    fn log(
        &self,
        session: SessionId,
        query: LogQuery,
    ) -> Fut<'_, Result<Box<dyn LogReader>, ProcessError>> {
        Box::pin(async move {
            let watching =
                self.shared.entry(session).filter(|_| query.follow).map(|entry| entry.watch());
            let lines = Lines::open(session, &self.shared.dir(session), query, watching).await?;
            Ok(Box::new(lines) as Box<dyn LogReader>)
        })
    }

    fn pieces(
        &self,
        session: SessionId,
        from: u64,
        follow: bool,
    ) -> Fut<'_, Result<Box<dyn PieceReader>, ProcessError>> {
        Box::pin(async move {
            let watching = self.shared.entry(session).filter(|_| follow).map(|entry| entry.watch());
            let dir = self.shared.dir(session);
            let follower = Follower::open(session, &dir, LogFrom::Offset(from), watching).await?;
            Ok(Box::new(Pieces(follower)) as Box<dyn PieceReader>)
        })
    }

    fn screen(&self, session: SessionId, rows: u16) -> Fut<'_, Result<Screen, ProcessError>> {
        Box::pin(async move {
            let terminal = self.shared.entry(session).and_then(|entry| entry.lock().terminal);
            let dir = self.shared.dir(session);
            blocking(session, move || crate::screen::draw(&dir, terminal, rows)).await
        })
    }

    fn attach(
        &self,
        key: ProcessKey,
        options: AttachOptions,
    ) -> Fut<'_, Result<Box<dyn Attachment>, ProcessError>> {
        Box::pin(async move {
            let viewer = Box::pin(Viewer::open(&self.shared, key, options)).await?;
            Ok(Box::new(viewer) as Box<dyn Attachment>)
        })
    }

    fn forget(&self, session: SessionId) -> Fut<'_, Result<(), ProcessError>> {
        Box::pin(async move {
            self.shared
                .forget(session, false)
                .map_err(|live| ProcessError::AlreadyLive { live })?;
            let dir = self.shared.dir(session);
            blocking(session, move || match std::fs::remove_dir_all(&dir) {
                Err(err) if err.kind() != std::io::ErrorKind::NotFound => Err(err),
                Ok(()) | Err(_) => Ok(()),
            })
            .await
        })
    }
}
