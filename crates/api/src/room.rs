//! Environments: what runs work in, and what becomes of their work.

use std::collections::BTreeMap;

use overmind_core::room as core;
use overmind_core::room::{history, stay};
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::problem::FieldError;
use crate::{Attestation, Run, SandboxLevel};

/// Whether a run gets an environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoomWhen {
    /// In a git repository; elsewhere the run works where it was started.
    #[default]
    Auto,
    /// Also outside of git: a copy of the directory.
    Always,
    /// It works in the directory itself.
    Never,
}

/// What becomes of a worktree when its run ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoomEnd {
    /// It stays until its work is decided (`POST /api/runs/{id}/done`), and goes if there is none. Services,
    /// ports and databases go.
    #[default]
    Decide,
    /// Removed; what is uncommitted becomes a commit on its branch first.
    Park,
    /// It stays. Services, ports and databases go.
    Keep,
    /// Removed with all that is in it.
    Discard,
}

/// What is wanted of a run's environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RoomWish {
    pub when: RoomWhen,
    /// The branch, tag or commit that its branch begins at. Not given: the project's own choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 250, example = "main"))]
    pub base: Option<String>,
    /// Copies the project's uncommitted changes along.
    pub carry_changes: bool,
    pub end: RoomEnd,
}

impl RoomWish {
    pub(crate) fn check(&self, errors: &mut Vec<FieldError>) {
        if let Some(base) = &self.base {
            check_name(errors, "room.base", base);
        }
    }
}

fn check_name(errors: &mut Vec<FieldError>, field: &'static str, name: &str) {
    if name.is_empty()
        || name.len() > 250
        || name.starts_with('-')
        || name.contains(char::is_control)
    {
        let why = "must be 1 to 250 bytes without control characters, and not begin with `-`";
        errors.push(FieldError::new(field, why));
    }
}

impl From<RoomWish> for core::RoomWish {
    fn from(wish: RoomWish) -> Self {
        let RoomWish { when, base, carry_changes, end } = wish;
        Self {
            when: match when {
                RoomWhen::Auto => core::RoomWhen::Auto,
                RoomWhen::Always => core::RoomWhen::Always,
                RoomWhen::Never => core::RoomWhen::Never,
            },
            base,
            carry_changes,
            end: match end {
                RoomEnd::Decide => core::RoomEnd::Decide,
                RoomEnd::Park => core::RoomEnd::Park,
                RoomEnd::Keep => core::RoomEnd::Keep,
                RoomEnd::Discard => core::RoomEnd::Discard,
            },
            reach: None,
        }
    }
}

/// The state of a run's environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoomPhase {
    Preparing,
    Ready,
    /// How the run ends is decided; it has ended when its environment is removed.
    Closing,
    /// Given back.
    Closed,
    /// Given back but for its worktree.
    Kept,
    /// It could not be made.
    Failed,
    /// It could not be given back: something may be left of it.
    Left,
}

impl RoomPhase {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Ready => "ready",
            Self::Closing => "closing",
            Self::Closed => "closed",
            Self::Kept => "kept",
            Self::Failed => "failed",
            Self::Left => "left",
        }
    }
}

impl From<stay::RoomPhase> for RoomPhase {
    fn from(phase: stay::RoomPhase) -> Self {
        match phase {
            stay::RoomPhase::Preparing => Self::Preparing,
            stay::RoomPhase::Ready => Self::Ready,
            stay::RoomPhase::Closing => Self::Closing,
            stay::RoomPhase::Closed => Self::Closed,
            stay::RoomPhase::Kept => Self::Kept,
            stay::RoomPhase::Failed => Self::Failed,
            stay::RoomPhase::Left => Self::Left,
        }
    }
}

/// What a run works in, or worked in. Its variables are nowhere to be read: passwords are among
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Room {
    pub phase: RoomPhase,
    /// Where its command begins.
    pub directory: Option<String>,
    /// The top of its own worktree; `null`: it works in the project's directory itself.
    pub worktree: Option<String>,
    /// The branch that has its work.
    pub branch: Option<String>,
    /// The commit that the branch began at.
    pub base: Option<String>,
    /// The commit that its work ended at, once the environment was removed.
    pub commit: Option<String>,
    /// Whether that commit is ours, of what was not committed.
    pub parked: bool,
    /// Where the worktree still is after the run.
    pub kept: Option<String>,
    /// Whether it is there because nobody has decided over its work yet.
    #[serde(default)]
    pub undecided: bool,
    /// By the variable that names it, or by `service/port`.
    pub ports: BTreeMap<String, u16>,
    /// Where its services answer, by service.
    pub urls: BTreeMap<String, String>,
    /// What the project asks its commands to run in.
    pub sandbox: Option<SandboxLevel>,
    /// Files of its worktree that hold secrets and that sandboxes do not show, from its top.
    #[serde(default)]
    pub withheld: Vec<String>,
    /// Why it could not be made or given back.
    pub error: Option<String>,
    pub warnings: Vec<String>,
    /// What the check found after it was given back. Empty is the promise.
    pub leaks: Vec<Leak>,
    /// The last decision over its work.
    pub done: Option<RoomDecision>,
    /// What the sandboxes of its services, hooks and ready checks were measured to give when each
    /// last began; empty where they run in none.
    #[serde(default)]
    pub attested: Vec<RoomAttested>,
    /// How much its work changes beside the base, as it was last counted: when its files were saved, and
    /// when the environment was removed. Not given: it was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<RoomChanges>,
    /// Who ended the run while it rested: a person, or the setting `engine.rest_hours`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_ended_by: Option<String>,
}

/// How much of its project a run has changed, beside the commit that its branch began at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoomChanges {
    /// Files that were added, changed or deleted.
    pub files: u32,
    /// Lines.
    pub added: u64,
    pub removed: u64,
}

impl From<history::RoomChanges> for RoomChanges {
    fn from(counted: history::RoomChanges) -> Self {
        let history::RoomChanges { files, added, removed } = counted;
        Self { files, added, removed }
    }
}

/// A program of an environment, and what its sandbox was measured to give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoomAttested {
    /// What it is: `service db`, `ready check of db`, `template of db`, `setup: npm ci`.
    #[cfg_attr(feature = "openapi", schema(example = "service db"))]
    pub of: String,
    /// What gave the sandbox, with its network.
    pub driver: String,
    pub attestation: Attestation,
}

fn text(path: std::path::PathBuf) -> String {
    path.to_string_lossy().into_owned()
}

impl From<stay::RoomRow> for Room {
    fn from(row: stay::RoomRow) -> Self {
        let undecided = row.is_undecided();
        let stay::RoomRow { phase, made, closed, error, done, attested, changes, rest_ended_by } =
            row;
        let had = made.is_some();
        let made = made.unwrap_or_default();
        let closed = closed.unwrap_or_default();
        let mut warnings = made.warnings;
        warnings.extend(closed.warnings);
        Self {
            phase: phase.into(),
            directory: had.then(|| text(made.directory)),
            worktree: made.worktree.map(text),
            branch: closed.branch.or(made.branch),
            base: made.base,
            commit: closed.commit,
            parked: closed.parked,
            kept: closed.kept.map(text),
            undecided,
            ports: made.ports,
            urls: made.urls,
            sandbox: made.sandbox.map(Into::into),
            withheld: made.withheld,
            error: error.map(|error| error.message),
            warnings,
            leaks: closed.leaks.into_iter().map(Into::into).collect(),
            done: done.map(Into::into),
            attested: attested.into_iter().map(Into::into).collect(),
            changes: changes.map(Into::into),
            rest_ended_by,
        }
    }
}

impl From<stay::RoomAttested> for RoomAttested {
    fn from(one: stay::RoomAttested) -> Self {
        let stay::RoomAttested { of, driver, attestation } = one;
        Self { of, driver, attestation: attestation.into() }
    }
}

/// Something that is left of a run that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Leak {
    /// `process`, `port`, `container`, `volume`, `database`, `worktree`, `branch`, `mount`,
    /// `socket`, `temp_files` and their like; `unchecked`: it could not be looked.
    pub kind: String,
    /// A number of a process or port, a path, a database.
    pub what: String,
    /// The run whose it was, as far as it says.
    pub session: Option<String>,
    /// What a person can do.
    pub how: String,
    /// Whether it is ours for certain, so that `POST /api/rooms/fix` removes it.
    pub fixable: bool,
    pub bytes: Option<u64>,
}

impl From<core::Leak> for Leak {
    fn from(leak: core::Leak) -> Self {
        let core::Leak { kind, what, session, how, fixable, bytes } = leak;
        Self { kind, what, session, how, fixable, bytes }
    }
}

/// Everything that no living run accounts for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Leaks {
    pub leaks: Vec<Leak>,
}

impl From<Vec<core::Leak>> for Leaks {
    fn from(leaks: Vec<core::Leak>) -> Self {
        Self { leaks: leaks.into_iter().map(Into::into).collect() }
    }
}

/// What a run has done in its environment, against the commit that it began at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoomWork {
    pub branch: Option<String>,
    pub base: Option<String>,
    /// Files that differ.
    pub files: u32,
    pub insertions: u64,
    pub deletions: u64,
    /// Commits on the branch beyond the base.
    pub commits: u32,
    /// A unified diff; its beginning only when `truncated`.
    pub diff: String,
    pub truncated: bool,
    /// Changed files that other programs run by themselves once they are merged, such as `.envrc`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs_later: Vec<RunsLater>,
}

/// A file that other programs run by themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunsLater {
    /// From the top of the project.
    #[cfg_attr(feature = "openapi", schema(example = ".envrc"))]
    pub path: String,
    /// What runs it, and when.
    #[cfg_attr(
        feature = "openapi",
        schema(example = "your shell runs it when you enter the directory")
    )]
    pub why: String,
}

impl From<core::RoomWork> for RoomWork {
    fn from(work: core::RoomWork) -> Self {
        let core::RoomWork {
            branch,
            base,
            files,
            insertions,
            deletions,
            commits,
            diff,
            truncated,
            runs_later,
        } = work;
        let runs_later = runs_later.into_iter().map(|(path, why)| RunsLater { path, why });
        let runs_later = runs_later.collect();
        Self { branch, base, files, insertions, deletions, commits, diff, truncated, runs_later }
    }
}

/// What is to become of a run's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoomAction {
    /// Merged into a branch of the project, or into what is checked out there.
    Merge,
    /// On a branch of the project's repository, to be pushed; what is uncommitted is committed.
    PrBranch,
    /// The worktree stays.
    Keep,
    /// The worktree goes; what is uncommitted becomes a commit on the run's branch first.
    Park,
    /// Thrown away.
    Discard,
}

impl RoomAction {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Merge => "merge",
            Self::PrBranch => "pr_branch",
            Self::Keep => "keep",
            Self::Park => "park",
            Self::Discard => "discard",
        }
    }
}

/// Body of `POST /api/runs/{id}/done`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RoomDone {
    pub action: RoomAction,
    /// Of a merge: the branch. Not given: what is checked out in the project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 250, example = "main"))]
    pub into: Option<String>,
    /// Of a branch for a pull request: what to call it. Not given: as the run's branch is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 250, example = "mend-login"))]
    pub name: Option<String>,
    /// What a commit says that is made for this: of what was not committed, or a merge. Not given: the
    /// first line of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 10000, example = "Fix the login"))]
    pub message: Option<String>,
    /// Of a merge: the changed files that other programs run by themselves and that somebody has seen,
    /// as `runs_later` of the run's work names them. A merge with others is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 1000, example = json!([".envrc"])))]
    pub accept: Vec<String>,
}

/// Longest message of a commit, in bytes.
const MESSAGE_BYTES: usize = 10_000;
/// Most files that are accepted at once.
const MOST_ACCEPTED: usize = 1000;

impl RoomDone {
    /// This and nothing else.
    pub fn of(action: RoomAction) -> Self {
        Self { action, into: None, name: None, message: None, accept: Vec::new() }
    }

    /// What is wrong with the values; empty when nothing is.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let (merge, branch) =
            (self.action == RoomAction::Merge, self.action == RoomAction::PrBranch);
        match &self.into {
            Some(_) if !merge => errors.push(FieldError::new("into", "is of a merge only")),
            Some(into) => check_name(&mut errors, "into", into),
            None => {}
        }
        if !self.accept.is_empty() && !merge {
            errors.push(FieldError::new("accept", "is of a merge only"));
        }
        if self.accept.len() > MOST_ACCEPTED {
            let why = format!("must have at most {MOST_ACCEPTED} files");
            errors.push(FieldError::new("accept", why));
        }
        match &self.name {
            Some(_) if !branch => errors.push(FieldError::new("name", "is of a `pr_branch` only")),
            Some(name) => check_name(&mut errors, "name", name),
            None => {}
        }
        let commits = !matches!(self.action, RoomAction::Keep | RoomAction::Discard);
        match &self.message {
            Some(_) if !commits => {
                let why =
                    "is of a `merge`, a `pr_branch` or a `park` only: nothing else makes a commit";
                errors.push(FieldError::new("message", why));
            }
            Some(text) if text.trim().is_empty() || text.len() > MESSAGE_BYTES => {
                let why = format!("must have 1 to {MESSAGE_BYTES} bytes, and not be blank");
                errors.push(FieldError::new("message", why));
            }
            Some(_) | None => {}
        }
        errors
    }
}

impl From<RoomDone> for core::RoomDone {
    fn from(done: RoomDone) -> Self {
        let RoomDone { action, into, name, message: _, accept: _ } = done;
        match action {
            RoomAction::Merge => Self::Merge { into },
            RoomAction::PrBranch => Self::PrBranch { name },
            RoomAction::Keep => Self::Keep,
            RoomAction::Park => Self::Park,
            RoomAction::Discard => Self::Discard,
        }
    }
}

/// What somebody decided over a run's work, and what was done then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoomDecision {
    pub action: RoomAction,
    pub by: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// One sentence.
    pub said: String,
    pub branch: Option<String>,
    /// Of a merge, what came of it; of what was discarded, by what it can be brought back for a
    /// while.
    pub commit: Option<String>,
    /// Where the worktree stays.
    pub kept: Option<String>,
    pub warnings: Vec<String>,
}

impl From<stay::RoomDecision> for RoomDecision {
    fn from(decision: stay::RoomDecision) -> Self {
        let stay::RoomDecision { what, by, at, outcome } = decision;
        let core::RoomOutcome { said, branch, commit, kept, warnings } = outcome;
        let action = match what {
            core::RoomDone::Merge { .. } => RoomAction::Merge,
            core::RoomDone::PrBranch { .. } => RoomAction::PrBranch,
            core::RoomDone::Keep => RoomAction::Keep,
            core::RoomDone::Park => RoomAction::Park,
            core::RoomDone::Discard => RoomAction::Discard,
        };
        Self { action, by, at, said, branch, commit, kept: kept.map(text), warnings }
    }
}

/// Answer of `POST /api/runs/{id}/done`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoomDoneResult {
    pub run: Run,
    pub decision: RoomDecision,
}

/// Body of `POST /api/runs/{id}/undo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RoomUndo {
    /// The snapshot: a step, `3`, for the files as they were before it; or the name of one in full,
    /// `3.1`. Not given: the last one before the latest change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = r"^[0-9]{1,9}(\.[0-9]{1,9})?$", example = "3")
    )]
    pub to: Option<String>,
}

impl RoomUndo {
    /// What is wrong with the values; empty when nothing is.
    pub fn check(&self) -> Vec<FieldError> {
        let number = |text: &str| {
            (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        let is_label = |to: &str| match to.split_once('.') {
            Some((step, count)) => number(step) && number(count),
            None => number(to),
        };
        match &self.to {
            Some(to) if !is_label(to) => {
                vec![FieldError::new("to", "must be a step, such as 3, or a snapshot, such as 3.1")]
            }
            Some(_) | None => Vec::new(),
        }
    }
}

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileChange {
    Added,
    Modified,
    Deleted,
}

impl FileChange {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Modified => "modified",
            Self::Deleted => "deleted",
        }
    }
}

impl From<history::FileChange> for FileChange {
    fn from(change: history::FileChange) -> Self {
        match change {
            history::FileChange::Added => Self::Added,
            history::FileChange::Modified => Self::Modified,
            history::FileChange::Deleted => Self::Deleted,
        }
    }
}

/// A file, from the top of its worktree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoomFile {
    pub path: String,
    pub change: FileChange,
}

impl From<history::RoomFile> for RoomFile {
    fn from(file: history::RoomFile) -> Self {
        Self { path: file.path, change: file.change.into() }
    }
}

/// Answer of `POST /api/runs/{id}/undo`: which files were brought back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoomUndone {
    /// The snapshot that the files are in now.
    pub to: String,
    /// The snapshot of what they were before: undoing to it undoes this.
    pub saved: String,
    /// What was done to each file, at most 1,000 of them.
    pub files: Vec<RoomFile>,
    /// How many more there are.
    pub more: u32,
    /// Files that could not be brought back, each with the reason.
    pub failed: Vec<String>,
    /// Files that are too large to be saved: they stayed as they are.
    pub left_out: Vec<String>,
}

impl From<history::RoomUndone> for RoomUndone {
    fn from(undone: history::RoomUndone) -> Self {
        let history::RoomUndone { to, saved, files, more, failed, left_out, changes: _ } = undone;
        let files = files.into_iter().map(Into::into).collect();
        Self { to, saved, files, more, failed, left_out }
    }
}
