//! Snapshots of an environment's files: saved at the end of each step, restored on request.

use std::path::Path;

use overmind_core::ids::SessionId;
use overmind_core::room::history::{
    FileChange, MAX_NAMED, RoomFile, RoomMark, RoomSnapshot, RoomUndone,
};
use overmind_core::room::{RoomClosed, RoomError, RoomMade, RoomOrder};

use super::maker::blocking;
use super::work::Where;
use super::{LocalRooms, say};
use crate::tree::{Change, ChangeKind, FilesAt, Restored};

/// Files that are too large, as many as are named.
const MOST_LEFT_OUT: usize = 20;

impl LocalRooms {
    /// Saves the files of an open room.
    pub(super) async fn save_files(
        &self,
        session: SessionId,
        mark: RoomMark,
    ) -> Result<Option<RoomSnapshot>, RoomError> {
        let session = session.to_string();
        if !self.lease_dir(&session).exists() {
            return Ok(None);
        }
        let _gate = self.gate.read().await;
        let _alone = self.alone(&session).await;
        let core = self.core().await?;
        let Some(lease) = core.lease(&session).await? else { return Ok(None) };
        let maker = core.maker.clone();
        let step = match mark {
            RoomMark::Before(step) => Some(step),
            RoomMark::Turn => None,
            // No label goes back.
            RoomMark::Again => Some(0),
        };
        let saved = blocking(move || {
            let Some(found) = maker.own(&session, &lease.worktree)? else { return Ok(None) };
            maker.trees().save_files(&found.intent, step, maker.now()).map(Some)
        });
        let saved = saved.await?.filter(|saved| saved.new);
        Ok(saved.map(|saved| RoomSnapshot {
            changes: saved.changes,
            ..told(&saved.at, names(&saved.left_out))
        }))
    }

    /// Brings the files of a session's tree back.
    pub(super) async fn bring_back(
        &self,
        order: &RoomOrder,
        made: &RoomMade,
        closed: Option<&RoomClosed>,
        to: Option<&str>,
    ) -> Result<RoomUndone, RoomError> {
        let _gate = self.gate.read().await;
        let mut about = self.about(order, made)?;
        let _alone = self.alone(&about.session).await;
        let core = self.core().await?;
        let (intent, maker) = match self.find_work(&core, &mut about, closed).await? {
            Where::Tree { intent, .. } => (intent, core.maker.clone()),
            Where::Branch { branch, .. } => {
                return Err(say::conflict(format!(
                    "the worktree of {} is gone, and its work is on {branch}: `overmind fork {0} \
                     --at STEP` starts a run with the files as they were before that step",
                    about.name
                )));
            }
            Where::Nowhere { why: _ } => {
                return Err(say::conflict(format!(
                    "the worktree of {} is gone: there are no files to bring back",
                    about.name
                )));
            }
        };
        let to = to.map(str::to_owned);
        let restored =
            blocking(move || maker.trees().restore_files(&intent, to.as_deref(), maker.now()));
        Ok(undone(restored.await?))
    }

    /// Brings the files of an open room back to what they were before a step that was cut off.
    pub(super) async fn take_back(
        &self,
        session: SessionId,
        step: u32,
    ) -> Result<Option<RoomUndone>, RoomError> {
        let session = session.to_string();
        let _gate = self.gate.read().await;
        let _alone = self.alone(&session).await;
        let core = self.core().await?;
        let Some(lease) = core.lease(&session).await? else { return Ok(None) };
        let maker = core.maker.clone();
        let restored = blocking(move || {
            let Some(found) = maker.own(&session, &lease.worktree)? else { return Ok(None) };
            maker.trees().restore_before(&found.intent, step, maker.now())
        });
        Ok(restored.await?.map(undone))
    }

    /// The files saved before a step, as the start of another environment.
    pub(super) async fn saved_files(
        &self,
        order: &RoomOrder,
        made: &RoomMade,
        step: u32,
    ) -> Result<Option<RoomSnapshot>, RoomError> {
        let Ok(about) = self.about(order, made) else { return Ok(None) };
        let core = self.core().await?;
        let maker = core.maker.clone();
        let found = blocking(move || maker.trees().files_at(&about.worktree, &about.session, step));
        Ok(found.await?.map(|at| told(&at, Vec::new())))
    }
}

fn told(at: &FilesAt, left_out: Vec<String>) -> RoomSnapshot {
    RoomSnapshot { label: at.label(), commit: at.commit.clone(), left_out, changes: None }
}

fn names(paths: &[impl AsRef<Path>]) -> Vec<String> {
    let named = paths.iter().take(MOST_LEFT_OUT);
    named.map(|path| path.as_ref().display().to_string()).collect()
}

pub(super) fn file(change: &Change) -> RoomFile {
    RoomFile {
        path: change.path.display().to_string(),
        change: match change.kind {
            ChangeKind::Added => FileChange::Added,
            ChangeKind::Modified | ChangeKind::Retyped => FileChange::Modified,
            ChangeKind::Deleted => FileChange::Deleted,
        },
    }
}

fn undone(restored: Restored) -> RoomUndone {
    let Restored { to, from, changes, failed, left_out, beside_base } = restored;
    let failed = failed.into_iter().take(MAX_NAMED);
    RoomUndone {
        to: to.label(),
        saved: from.label(),
        files: changes.iter().take(MAX_NAMED).map(file).collect(),
        more: u32::try_from(changes.len().saturating_sub(MAX_NAMED)).unwrap_or(u32::MAX),
        failed: failed.map(|(path, why)| format!("{}: {why}", path.display())).collect(),
        left_out: names(&left_out),
        changes: beside_base,
    }
}
