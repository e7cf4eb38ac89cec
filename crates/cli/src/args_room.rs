//! The grammar of environments: what runs work in.

use clap::{ArgGroup, Args};
use overmind_api::{RoomAction, RoomDone, RoomEnd, RoomWhen, RoomWish};

// Options of `run`. No doc comment: it would become that of `run`.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Environment options")]
pub struct RoomFlags {
    /// Work in the directory itself: no worktree, ports, databases or services of its own
    #[arg(long, conflicts_with_all = ["room", "base", "carry", "keep", "park"])]
    pub here: bool,
    /// Create an environment even outside of git, from a copy of the directory
    #[arg(long)]
    pub room: bool,
    /// The branch, tag or commit at which its branch starts [default: what is checked out]
    #[arg(long, value_name = "REV")]
    pub base: Option<String>,
    /// Also copy uncommitted changes
    #[arg(long)]
    pub carry: bool,
    /// Keep the worktree when the run ends, whatever is decided about its work
    #[arg(long)]
    pub keep: bool,
    /// When the run ends, save its work on its branch and remove the worktree; decide later
    #[arg(long, conflicts_with = "keep")]
    pub park: bool,
}

impl RoomFlags {
    /// `None` if nothing is requested: the server's own choice.
    pub fn wish(&self) -> Option<RoomWish> {
        let Self { here, room, base, carry, keep, park } = self;
        let when = match (here, room) {
            (true, _) => RoomWhen::Never,
            (false, true) => RoomWhen::Always,
            (false, false) => RoomWhen::Auto,
        };
        let end = match (keep, park) {
            (true, _) => RoomEnd::Keep,
            (false, true) => RoomEnd::Park,
            (false, false) => RoomEnd::Decide,
        };
        let wish = RoomWish { when, base: base.clone(), carry_changes: *carry, end };
        (wish != RoomWish::default()).then_some(wish)
    }
}

#[derive(Clone, Debug, Args)]
pub struct WorkArgs {
    /// The run: an id, a name, or a unique part of one
    pub id: String,
    /// Only the summary
    #[arg(long)]
    pub stat: bool,
}

#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["merge", "pr_branch", "keep", "park", "discard"]))]
pub struct DoneArgs {
    /// The runs: whole names, ids, or unique parts of ids
    #[arg(required = true, value_name = "RUN")]
    pub ids: Vec<String>,
    /// Merge the work into the checked-out branch of the project
    #[arg(long)]
    pub merge: bool,
    /// Merge into this branch instead
    #[arg(long, value_name = "BRANCH", requires = "merge", conflicts_with_all = ["pr_branch", "keep", "park", "discard"])]
    pub into: Option<String>,
    /// Put its work on a branch of the project's repository that you can push; also while it runs
    #[arg(long, value_name = "NAME", num_args = 0..=1)]
    pub pr_branch: Option<Option<String>>,
    /// Keep the worktree
    #[arg(long)]
    pub keep: bool,
    /// Save its work on its branch and remove the worktree; decide later
    #[arg(long)]
    pub park: bool,
    /// Throw its work away
    #[arg(long)]
    pub discard: bool,
    /// Message of the commit [default: the first line of the task]
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["keep", "discard"])]
    pub message: Option<String>,
    /// Do not ask before work is discarded, or before files are merged that are executed
    /// automatically
    #[arg(short, long)]
    pub yes: bool,
}

impl DoneArgs {
    pub fn done(&self) -> RoomDone {
        let (action, into, name) = match &self.pr_branch {
            Some(name) => (RoomAction::PrBranch, None, name.clone()),
            None if self.merge => (RoomAction::Merge, self.into.clone(), None),
            None if self.keep => (RoomAction::Keep, None, None),
            None if self.park => (RoomAction::Park, None, None),
            None => (RoomAction::Discard, None, None),
        };
        RoomDone { into, name, message: self.message.clone(), ..RoomDone::of(action) }
    }
}

#[derive(Clone, Debug, Args)]
pub struct RmArgs {
    /// The runs: whole names, ids, or unique parts of ids
    #[arg(required = true, value_name = "RUN")]
    pub ids: Vec<String>,
    /// Discard undecided work
    #[arg(long)]
    pub discard: bool,
    /// Do not ask before a log is removed
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Clone, Debug, Args)]
pub struct UndoArgs {
    /// The run: an id, a name, or a unique part of one
    pub id: String,
    /// The files as they were before this step; or a snapshot by its name, such as 3.1
    /// [default: before the latest change]
    #[arg(long, value_name = "STEP")]
    pub to: Option<String>,
}

#[derive(Clone, Debug, Args)]
pub struct PruneArgs {
    /// Only runs that ended longer ago than this, such as 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = crate::duration::parse)]
    pub older_than: Option<std::time::Duration>,
    /// Only list them
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Clone, Debug, Args)]
pub struct UrlArgs {
    /// The run: an id, a name, or a unique part of one
    pub id: String,
    /// Only the address of this service
    pub service: Option<String>,
}
