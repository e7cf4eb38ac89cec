//! Environments: the isolated directories and services in which runs work, and the decisions about
//! that work.

use std::collections::BTreeMap;

use overmind_core::room as core;
use overmind_core::room::{history, stay};
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::problem::FieldError;
use crate::{Attestation, Run, SandboxLevel};

/// When a run gets an environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoomWhen {
    /// In a git repository it does; elsewhere the run works in the directory where it was started.
    #[default]
    Auto,
    /// Always. Outside of git, the environment is a copy of the directory.
    Always,
    /// Never: the run works in the directory itself.
    Never,
}

/// The decision about a worktree when its run ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoomEnd {
    /// The worktree stays until somebody decides about its work (`POST /api/runs/{id}/done`).
    /// Without work it is removed. Services, ports and databases are removed.
    #[default]
    Decide,
    /// The worktree is removed; uncommitted changes are first committed to its branch.
    Park,
    /// The worktree stays. Services, ports and databases are removed.
    Keep,
    /// The worktree is removed with all that it contains.
    Discard,
}

/// The environment that a run requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RoomWish {
    pub when: RoomWhen,
    /// The branch, tag or commit at which the run's branch begins. Default: the choice of the
    /// project's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 250, example = "main"))]
    pub base: Option<String>,
    /// Also copies the project's uncommitted changes.
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
            reach: core::RoomReach::default(),
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
    /// The result of the run is decided, and its environment is being removed. The run ends after
    /// that.
    Closing,
    /// The environment was removed.
    Closed,
    /// The environment was removed except for its worktree.
    Kept,
    /// The environment could not be created.
    Failed,
    /// The environment could not be removed completely; parts may remain.
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

/// The environment of a run, now or earlier. The API never returns its variables, because some
/// contain passwords.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Room {
    pub phase: RoomPhase,
    /// The directory in which its command starts.
    pub directory: Option<String>,
    /// Top directory of its own worktree; `null` if it works in the project's directory itself.
    pub worktree: Option<String>,
    /// The branch that contains its work.
    pub branch: Option<String>,
    /// The commit at which the branch began.
    pub base: Option<String>,
    /// The last commit of its work, set when the environment is removed.
    pub commit: Option<String>,
    /// Whether the server made that commit, from uncommitted changes.
    pub parked: bool,
    /// Path of the worktree, if it still exists after the run.
    pub kept: Option<String>,
    /// Whether the worktree is kept because nobody has decided about the work yet.
    #[serde(default)]
    pub undecided: bool,
    /// Its ports, by the variable that contains the port, or by `service/port`.
    pub ports: BTreeMap<String, u16>,
    /// The URLs of its services, by service.
    pub urls: BTreeMap<String, String>,
    /// The sandbox level that the project requires for commands.
    pub sandbox: Option<SandboxLevel>,
    /// Files of the worktree that contain secrets, relative to its top. Sandboxes do not show them.
    #[serde(default)]
    pub withheld: Vec<String>,
    /// Why it could not be created or removed.
    pub error: Option<String>,
    pub warnings: Vec<String>,
    /// Resources that the check found after the removal. An empty list means that nothing remains.
    pub leaks: Vec<Leak>,
    /// The last decision about its work.
    pub done: Option<RoomDecision>,
    /// The measured isolation of the sandboxes of its services, hooks and ready checks, from when
    /// each last started; empty if they run without a sandbox.
    #[serde(default)]
    pub attested: Vec<RoomAttested>,
    /// The size of its changes, compared with the base. They are counted when its files are saved
    /// and when the environment is removed. Omitted if they were never counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<RoomChanges>,
    /// Who ended the run while it was idle: a person, or the setting `engine.rest_hours`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_ended_by: Option<String>,
}

/// The size of a run's changes, compared with the commit at which its branch began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoomChanges {
    /// Number of files that were added, changed or deleted.
    pub files: u32,
    /// Number of lines added.
    pub added: u64,
    pub removed: u64,
}

impl From<history::RoomChanges> for RoomChanges {
    fn from(counted: history::RoomChanges) -> Self {
        let history::RoomChanges { files, added, removed } = counted;
        Self { files, added, removed }
    }
}

/// A program of an environment, with the isolation that was measured in its sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoomAttested {
    /// The program: `service db`, `ready check of db`, `template of db`, `setup: npm ci`.
    #[cfg_attr(feature = "openapi", schema(example = "service db"))]
    pub of: String,
    /// The sandbox driver, with the network that it gave.
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

/// A resource of a removed run that still exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Leak {
    /// The kind of resource: `process`, `port`, `container`, `volume`, `database`, `worktree`,
    /// `branch`, `mount`, `socket`, `temp_files` and others; `unchecked` if the check itself
    /// failed.
    pub kind: String,
    /// The resource: the number of a process or port, a path, or a database.
    pub what: String,
    /// The run to which it belonged, if that is known.
    pub session: Option<String>,
    /// A hint for the user.
    pub how: String,
    /// Whether it certainly belongs to this server, so that `POST /api/rooms/fix` removes it.
    pub fixable: bool,
    pub bytes: Option<u64>,
}

impl From<core::Leak> for Leak {
    fn from(leak: core::Leak) -> Self {
        let core::Leak { kind, what, session, how, fixable, bytes } = leak;
        Self { kind, what, session, how, fixable, bytes }
    }
}

/// All resources that belong to no living run.
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

/// A run's changes in its environment, compared with the commit at which it began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoomWork {
    pub branch: Option<String>,
    pub base: Option<String>,
    /// Files with changes.
    pub files: u32,
    pub insertions: u64,
    pub deletions: u64,
    /// Commits on the branch since the base.
    pub commits: u32,
    /// A unified diff. If `truncated`, only its beginning.
    pub diff: String,
    pub truncated: bool,
    /// Changed files that other programs run automatically after a merge, such as `.envrc`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs_later: Vec<RunsLater>,
}

/// A file that other programs run automatically.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunsLater {
    /// Path relative to the top of the project.
    #[cfg_attr(feature = "openapi", schema(example = ".envrc"))]
    pub path: String,
    /// The program that runs it, and when.
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

/// A decision about a run's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoomAction {
    /// Merges the work into a branch of the project, or into the branch that is checked out there.
    Merge,
    /// Creates a branch in the project's repository, ready to be pushed. Uncommitted changes are
    /// committed.
    PrBranch,
    /// Keeps the worktree.
    Keep,
    /// Removes the worktree. Uncommitted changes are first committed to the run's branch.
    Park,
    /// Discards the work.
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
    /// For a merge: the target branch. Default: the branch that is checked out in the project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 250, example = "main"))]
    pub into: Option<String>,
    /// For a pull request: the name of the new branch. Default: the name of the run's branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 250, example = "mend-login"))]
    pub name: Option<String>,
    /// Message of the commit that is made, of uncommitted changes or of a merge. Default: the first
    /// line of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 10000, example = "Fix the login"))]
    pub message: Option<String>,
    /// For a merge: files from the `runs_later` list of the run's work that somebody has reviewed.
    /// A merge that changes other such files is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 1000, example = json!([".envrc"])))]
    pub accept: Vec<String>,
}

/// Longest commit message, in bytes.
const MESSAGE_BYTES: usize = 10_000;
/// Maximum number of files that one request may accept.
const MOST_ACCEPTED: usize = 1000;

impl RoomDone {
    /// Creates a request with this action and no options.
    pub fn of(action: RoomAction) -> Self {
        Self { action, into: None, name: None, message: None, accept: Vec::new() }
    }

    /// Returns the mistakes in the fields; empty if there are none.
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

/// A decision about a run's work, and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoomDecision {
    pub action: RoomAction,
    pub by: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// The result in one sentence.
    pub said: String,
    pub branch: Option<String>,
    /// After a merge, the resulting commit. After a discard, the commit from which the work can be
    /// restored for some time.
    pub commit: Option<String>,
    /// Path of the kept worktree.
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
    /// The snapshot: a step such as `3`, for the files as they were before that step, or the full
    /// name of a snapshot, such as `3.1`. Default: the last snapshot before the latest change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = r"^[0-9]{1,9}(\.[0-9]{1,9})?$", example = "3")
    )]
    pub to: Option<String>,
}

impl RoomUndo {
    /// Returns the mistakes in the fields; empty if there are none.
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

/// The change of a file.
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

/// A file, relative to the top of its worktree.
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

/// Answer of `POST /api/runs/{id}/undo`: the files that were restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoomUndone {
    /// The snapshot that the files now match.
    pub to: String,
    /// A snapshot of the files before this undo. An undo to it reverts this undo.
    pub saved: String,
    /// The change of each file, at most 1,000.
    pub files: Vec<RoomFile>,
    /// Number of further changed files.
    pub more: u32,
    /// Files that could not be restored, each with the reason.
    pub failed: Vec<String>,
    /// Files that are too large for a snapshot and were not changed.
    pub left_out: Vec<String>,
}

impl From<history::RoomUndone> for RoomUndone {
    fn from(undone: history::RoomUndone) -> Self {
        let history::RoomUndone { to, saved, files, more, failed, left_out, changes: _ } = undone;
        let files = files.into_iter().map(Into::into).collect();
        Self { to, saved, files, more, failed, left_out }
    }
}
