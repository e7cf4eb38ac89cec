//! The work of a session, and its end: from its tree if it exists, otherwise from the branch on
//! which it was saved.

use std::path::PathBuf;
use std::sync::Arc;

use overmind_core::ids::SessionId;
use overmind_core::room::later::{runs_by_itself, settings_of_repositories};
use overmind_core::room::{
    RoomClosed, RoomDone, RoomEnd, RoomError, RoomErrorKind, RoomMade, RoomOrder, RoomOutcome,
    RoomReach, RoomWork,
};

use super::maker::{Maker, Whose, blocking, brought_back};
use super::{Core, LocalRooms, say};
use crate::lease::chain;
use crate::tree::{Diff, Ending, Left, MergeInto, Merged, TreeError, TreeIntent};

/// The maximum size of a shown diff.
const PATCH_BYTES: u64 = 512 * 1024;

/// The location of a session's work.
#[derive(Clone, Debug)]
pub(super) enum Where {
    /// In its tree; whether its room is open.
    Tree { intent: Box<TreeIntent>, open: bool },
    /// On a branch of the project's repository.
    Branch { branch: String, commit: String, published: bool },
    /// It changed nothing that could be saved.
    Nowhere { why: Option<String> },
}

/// Names and paths of one order, as owned values for a blocking thread.
#[derive(Clone, Debug)]
pub(super) struct About {
    pub(super) session: String,
    pub(super) name: String,
    about: String,
    agent: String,
    project: PathBuf,
    reach: RoomReach,
    branch: Option<String>,
    base: Option<String>,
    pub(super) worktree: PathBuf,
    home: Option<PathBuf>,
}

impl About {
    fn left<'a>(&'a self, branch: &'a str, commit: &'a str) -> Left<'a> {
        let (project, base) = (self.project.as_path(), self.base.as_deref());
        Left { project, reach: &self.reach, branch, commit, base, keep_branch: false }
    }

    fn whose(&self) -> Whose {
        let Self { name, about, agent, .. } = self.clone();
        Whose { name, about, agent }
    }
}

impl LocalRooms {
    pub(super) fn about(&self, order: &RoomOrder, made: &RoomMade) -> Result<About, RoomError> {
        let Some(worktree) = made.worktree.clone() else {
            return Err(say::not_found(format!(
                "{} works directly in {}; its changes are only in that directory",
                order.name,
                made.directory.display()
            )));
        };
        Ok(About {
            session: order.session.to_string(),
            name: order.name.clone(),
            about: order.about.clone(),
            agent: order.agent.clone(),
            project: order.project.clone(),
            reach: order.wish.reach.clone(),
            branch: made.branch.clone(),
            base: made.base.clone(),
            worktree,
            home: self.options.environment.get("HOME").map(PathBuf::from),
        })
    }

    pub(super) async fn find_work(
        &self,
        core: &Arc<Core>,
        about: &mut About,
        closed: Option<&RoomClosed>,
    ) -> Result<Where, RoomError> {
        let (maker, at) = (core.maker.clone(), about.clone());
        let found = blocking(move || maker.own(&at.session, &at.worktree)).await?;
        if let Some(found) = found {
            let open = self.lease_dir(&about.session).exists();
            return Ok(Where::Tree { intent: Box::new(found.intent), open });
        }
        // A result that a crash kept from its caller is recorded here.
        let known = core.maker.ended(&about.session);
        if let Some(primary) = known.as_ref().and_then(|known| known.primary.clone()) {
            about.project = primary;
        }
        let Some(closed) = known.as_ref().map(|known| &known.closed).or(closed) else {
            return Err(say::not_found(format!("the worktree of {} is gone", about.name)));
        };
        Ok(match (&closed.branch, &closed.commit) {
            (Some(branch), Some(commit)) => {
                let (branch, commit) = (branch.clone(), commit.clone());
                Where::Branch { branch, commit, published: closed.published }
            }
            (_, commit) => {
                let why = commit.as_ref().map(|commit| match closed.warnings.as_slice() {
                    [] => format!("the work of {} is at {commit} already", about.name),
                    some => some.join("; "),
                });
                Where::Nowhere { why }
            }
        })
    }

    pub(super) async fn work_of(
        &self,
        order: &RoomOrder,
        made: &RoomMade,
        closed: Option<&RoomClosed>,
    ) -> Result<RoomWork, RoomError> {
        let mut about = self.about(order, made)?;
        let core = self.core().await?;
        let found = self.find_work(&core, &mut about, closed).await?;
        let (branch, maker, at) = (about.branch.clone(), core.maker.clone(), about.clone());
        let (branch, (diff, commits)) = match found {
            Where::Tree { intent, .. } => {
                (branch, blocking(move || maker.trees().work(&intent, PATCH_BYTES)).await?)
            }
            Where::Branch { branch, commit, published: _ } => {
                let name = branch.clone();
                let work = blocking(move || {
                    maker.trees().left_work(&at.left(&name, &commit), PATCH_BYTES)
                });
                (Some(branch), work.await?)
            }
            Where::Nowhere { why: None } => {
                return Ok(RoomWork { base: about.base, ..RoomWork::default() });
            }
            Where::Nowhere { why: Some(why) } => return Err(say::not_found(why)),
        };
        Ok(told(branch, about.base, &diff, commits))
    }

    pub(super) async fn decide(
        &self,
        order: &RoomOrder,
        made: &RoomMade,
        closed: Option<&RoomClosed>,
        done: RoomDone,
    ) -> Result<RoomOutcome, RoomError> {
        let _gate = self.gate.read().await;
        let mut about = self.about(order, made)?;
        let _alone = self.alone(&about.session).await;
        let core = self.core().await?;
        let found = self.find_work(&core, &mut about, closed).await?;
        match (done, found) {
            (RoomDone::Keep, Where::Tree { intent, open }) => {
                self.stay(&core, &about, *intent, open).await
            }
            (RoomDone::Keep, Where::Branch { branch, .. }) => Err(say::not_found(format!(
                "the worktree of {} is gone; its work is on {branch}",
                about.name
            ))),
            (RoomDone::Park, Where::Tree { intent, open }) => {
                self.put_aside(&core, &about, *intent, open).await
            }
            (RoomDone::Park, Where::Branch { branch, commit, .. }) => Ok(RoomOutcome {
                said: format!("The work of {} is on {branch}.", about.name),
                branch: Some(branch),
                commit: Some(commit),
                ..RoomOutcome::default()
            }),
            (RoomDone::Discard, Where::Tree { intent, open }) => {
                self.give_up(&core, &about, *intent, open).await
            }
            // The user who named it may have pushed it, or work on it.
            (RoomDone::Discard, Where::Branch { branch, published: true, .. }) => {
                Err(say::conflict(format!(
                    "the work of {} is on {branch}, which was asked for with --pr-branch and is yours: \
                     `git branch -D {branch}` removes it",
                    about.name
                )))
            }
            (RoomDone::Discard, Where::Branch { branch, commit, published: false }) => {
                let (maker, at) = (core.maker.clone(), about.clone());
                let name = branch.clone();
                let (kept, last) = blocking(move || {
                    let left = at.left(&name, &commit);
                    let (kept, last) = maker.trees().left_discard(&left, &at.name, maker.now())?;
                    let closed = RoomClosed {
                        commit: Some(last.clone()),
                        warnings: vec![brought_back(&kept)],
                        ..RoomClosed::default()
                    };
                    maker.note(&at.session, &closed);
                    maker.trees().forget_files_of(&at.worktree, &at.session)?;
                    Ok((kept, last))
                })
                .await?;
                Ok(RoomOutcome {
                    said: format!("The work of {} is discarded, and {branch} is gone.", about.name),
                    commit: Some(last),
                    warnings: vec![brought_back(&kept)],
                    ..RoomOutcome::default()
                })
            }
            (RoomDone::Merge { into }, Where::Tree { intent, open }) => {
                merge_tree(&core, &about, *intent, open, into).await
            }
            (RoomDone::Merge { into }, Where::Branch { branch, commit, published }) => {
                let (maker, at) = (core.maker.clone(), about.clone());
                let merged = blocking(move || {
                    let message = message(&at);
                    let into = how(&at, into.as_deref(), &message, maker.now());
                    let left = Left { keep_branch: published, ..at.left(&branch, &commit) };
                    maker.trees().left_merge(&left, &into)
                });
                merged_told(&about, merged.await?)
            }
            (RoomDone::PrBranch { name }, Where::Tree { intent, open }) => {
                publish_tree(&core, &about, *intent, open, name).await
            }
            (RoomDone::PrBranch { name }, Where::Branch { branch, commit, .. }) => {
                let (maker, at) = (core.maker.clone(), about.clone());
                let (branch, commit) = blocking(move || {
                    let left = at.left(&branch, &commit);
                    let (branch, commit) = maker.trees().left_branch(&left, name.as_deref())?;
                    // Its branch is called otherwise now.
                    if let Some(mut known) = maker.ended(&at.session) {
                        known.closed.branch = Some(branch.clone());
                        known.closed.commit = Some(commit.clone());
                        known.closed.published = true;
                        maker.note(&at.session, &known.closed);
                    }
                    Ok((branch, commit))
                })
                .await?;
                Ok(published(&about, branch, commit))
            }
            (RoomDone::PrBranch { .. }, Where::Nowhere { why: None }) => {
                Err(say::not_found(format!("{} has no changes, so it has no branch", about.name)))
            }
            (RoomDone::Merge { into: Some(branch) }, Where::Nowhere { why: None }) => {
                let (maker, at) = (core.maker.clone(), about.clone());
                blocking(move || {
                    let into = how(&at, Some(&branch), "", 0);
                    maker.trees().check_target(&at.project, &at.reach, &into)
                })
                .await?;
                Ok(nothing_to_do(&about))
            }
            (
                RoomDone::Merge { into: None } | RoomDone::Discard | RoomDone::Park,
                Where::Nowhere { why: None },
            ) => Ok(nothing_to_do(&about)),
            (RoomDone::Keep, Where::Nowhere { why: None }) => {
                Err(say::not_found(format!("the worktree of {} is gone", about.name)))
            }
            (_, Where::Nowhere { why: Some(why) }) => Err(say::not_found(why)),
        }
    }

    /// The sessions whose trees were kept.
    pub(super) async fn kept_trees(&self) -> Result<Vec<SessionId>, RoomError> {
        if !self.was_used() {
            return Ok(Vec::new());
        }
        let maker = self.core().await?.maker.clone();
        let listed = blocking(move || maker.trees().list()).await?;
        let kept = listed.into_iter().filter(|one| one.ending == Some(Ending::Kept));
        Ok(kept.filter_map(|one| one.intent.owner?.parse().ok()).collect())
    }

    async fn stay(
        &self,
        core: &Arc<Core>,
        about: &About,
        intent: TreeIntent,
        open: bool,
    ) -> Result<RoomOutcome, RoomError> {
        let mut warnings = Vec::new();
        if open {
            let closed = self.end_alone(&about.session, RoomEnd::Keep, Arc::new(|_| {})).await?;
            warnings = closed.warnings;
        } else {
            let maker = core.maker.clone();
            blocking(move || maker.trees().keep(&intent, true)).await?;
        }
        Ok(RoomOutcome {
            said: format!("The worktree of {} stays at {}.", about.name, about.worktree.display()),
            branch: about.branch.clone(),
            kept: Some(about.worktree.clone()),
            warnings,
            ..RoomOutcome::default()
        })
    }

    /// Its work is saved on its branch, and the tree is removed.
    async fn put_aside(
        &self,
        core: &Arc<Core>,
        about: &About,
        intent: TreeIntent,
        open: bool,
    ) -> Result<RoomOutcome, RoomError> {
        let closed = if open {
            self.end_alone(&about.session, RoomEnd::Park, Arc::new(|_| {})).await?
        } else {
            let (maker, at) = (core.maker.clone(), about.clone());
            blocking(move || Ok(maker.park_kept(&at.session, at.whose(), &intent)))
                .await?
                .map_err(say::failed)?
        };
        let said = match (&closed.kept, &closed.branch) {
            (Some(kept), _) => format!("{} could not be removed: it stays.", kept.display()),
            (None, Some(branch)) => format!("The work of {} is on {branch}.", about.name),
            (None, None) => format!("{} changed nothing: its worktree is gone.", about.name),
        };
        Ok(RoomOutcome {
            said,
            branch: closed.branch,
            commit: closed.commit,
            kept: closed.kept,
            warnings: closed.warnings,
        })
    }

    async fn give_up(
        &self,
        core: &Arc<Core>,
        about: &About,
        intent: TreeIntent,
        open: bool,
    ) -> Result<RoomOutcome, RoomError> {
        let closed = if open {
            self.end_alone(&about.session, RoomEnd::Discard, Arc::new(|_| {})).await?
        } else {
            let (maker, at) = (core.maker.clone(), about.clone());
            blocking(move || {
                let discarded = maker.trees().discard(&intent, maker.now())?;
                let mut closed = RoomClosed {
                    commit: last_commit(&maker, &intent)?,
                    warnings: vec![brought_back(&discarded.saved_as)],
                    ..RoomClosed::default()
                };
                maker.note(&at.session, &closed);
                remove(&maker, &at, &intent, &mut closed.kept, &mut closed.warnings);
                Ok(closed)
            })
            .await?
        };
        let said = match &closed.kept {
            None => format!("The work of {} is discarded.", about.name),
            Some(kept) => format!("{} could not be removed: it stays.", kept.display()),
        };
        Ok(RoomOutcome {
            said,
            commit: closed.commit,
            kept: closed.kept,
            warnings: closed.warnings,
            ..RoomOutcome::default()
        })
    }
}

impl Maker {
    /// See [`Maker::note_ended`]; for records that are only needed after a crash.
    fn note(&self, session: &str, closed: &RoomClosed) {
        if let Err(err) = self.note_ended(session, closed) {
            tracing::warn!(%err, session, "writing down what became of a session's work");
        }
    }
}

/// The commit that a discarded tree ends at.
pub(super) fn last_commit(maker: &Maker, intent: &TreeIntent) -> Result<Option<String>, TreeError> {
    let found = maker.trees().at(&intent.tree())?;
    Ok(found.and_then(|found| match found.ending {
        Some(Ending::Discarded { commit, .. }) => Some(commit),
        Some(Ending::Parked { .. } | Ending::Kept) | None => None,
    }))
}

/// Removes a kept tree with decided work. Unsaved work keeps it.
fn remove(
    maker: &Maker,
    about: &About,
    intent: &TreeIntent,
    kept: &mut Option<PathBuf>,
    warnings: &mut Vec<String>,
) {
    let trees = maker.trees();
    let removed = trees.at(&intent.tree()).and_then(|found| {
        if found.is_some_and(|found| found.ending == Some(Ending::Kept)) {
            trees.keep(intent, false)?;
        }
        trees.undo(intent)
    });
    if let Err(err) = removed {
        warnings.push(format!("{} stays: {}", about.worktree.display(), chain(&err)));
        *kept = Some(about.worktree.clone());
        if let Err(err) = trees.keep(intent, true) {
            warnings.push(chain(&err));
        }
    }
}

fn nothing_to_do(about: &About) -> RoomOutcome {
    RoomOutcome {
        said: format!("{} changed nothing: there was nothing to do.", about.name),
        ..RoomOutcome::default()
    }
}

fn message(about: &About) -> String {
    say::message(&about.whose())
}

fn how<'a>(about: &'a About, branch: Option<&'a str>, message: &'a str, now: i64) -> MergeInto<'a> {
    MergeInto { branch, commit_rest: true, message, now, home: about.home.as_deref() }
}

async fn merge_tree(
    core: &Arc<Core>,
    about: &About,
    intent: TreeIntent,
    open: bool,
    into: Option<String>,
) -> Result<RoomOutcome, RoomError> {
    let (maker, at) = (core.maker.clone(), about.clone());
    let (merged, kept, warnings) = blocking(move || {
        let message = message(&at);
        let into = how(&at, into.as_deref(), &message, maker.now());
        let merged = maker.trees().merge(&intent, &into)?;
        let (mut kept, mut warnings) = (None, Vec::new());
        if !open && !matches!(merged, Merged::Conflicts { .. }) {
            if let Some(commit) = commit_of(&merged) {
                let closed = RoomClosed { commit: Some(commit), ..RoomClosed::default() };
                maker.note(&at.session, &closed);
            }
            remove(&maker, &at, &intent, &mut kept, &mut warnings);
        }
        Ok((merged, kept, warnings))
    })
    .await?;
    let outcome = merged_told(about, merged)?;
    Ok(RoomOutcome { kept, warnings, ..outcome })
}

fn commit_of(merged: &Merged) -> Option<String> {
    match merged {
        Merged::Forward { commit, .. } | Merged::Joined { commit, .. } => Some(commit.clone()),
        Merged::Nothing { .. } | Merged::Conflicts { .. } => None,
    }
}

fn merged_told(about: &About, merged: Merged) -> Result<RoomOutcome, RoomError> {
    let commit = commit_of(&merged);
    let (said, branch) = match merged {
        Merged::Nothing { branch } => {
            (format!("{branch} has all of {} already.", about.name), branch)
        }
        Merged::Forward { branch, .. } => {
            (format!("{branch} is at the last commit of {} now.", about.name), branch)
        }
        Merged::Joined { branch, .. } => {
            (format!("A merge commit joins {} to {branch}.", about.name), branch)
        }
        Merged::Conflicts { branch, files, told } => {
            let shown: Vec<String> =
                files.iter().take(50).map(|file| file.display().to_string()).collect();
            let more = match files.len().checked_sub(shown.len()) {
                Some(0) | None => String::new(),
                Some(more) => format!(" and {more} more"),
            };
            let name = &about.name;
            let way = match told {
                true => format!(
                    "its worktree has {branch} as it is now, so the run can solve that: `overmind send {name} \
                     \"commit your work, merge {branch} and solve the conflicts\"`, then merge again; or "
                ),
                false => String::new(),
            };
            return Err(say::conflict(format!(
                "{branch} and {name} both changed {0}{more}; nothing was merged: {way}`overmind done \
                 {name} --pr-branch` puts its work on a branch, which you merge by hand",
                shown.join(", ")
            )));
        }
    };
    Ok(RoomOutcome { said, branch: Some(branch), commit, ..RoomOutcome::default() })
}

async fn publish_tree(
    core: &Arc<Core>,
    about: &About,
    intent: TreeIntent,
    open: bool,
    name: Option<String>,
) -> Result<RoomOutcome, RoomError> {
    let (maker, at) = (core.maker.clone(), about.clone());
    let found = blocking(move || {
        let message = message(&at);
        let stamp = (message.as_str(), maker.now());
        let Some(done) = maker.trees().pr_branch_of_all(&intent, name.as_deref(), stamp)? else {
            return Ok(None);
        };
        let mut outcome = published(&at, done.branch, done.commit);
        if !open {
            let closed = RoomClosed {
                branch: outcome.branch.clone(),
                commit: outcome.commit.clone(),
                published: true,
                ..RoomClosed::default()
            };
            maker.note(&at.session, &closed);
            remove(&maker, &at, &intent, &mut outcome.kept, &mut outcome.warnings);
        }
        Ok(Some(outcome))
    });
    found.await?.ok_or_else(|| {
        let text =
            format!("{} has changed nothing: there is nothing to put on a branch", about.name);
        RoomError::new(RoomErrorKind::NotFound, text)
    })
}

fn published(about: &About, branch: String, commit: String) -> RoomOutcome {
    RoomOutcome {
        said: format!(
            "The work of {} is on {branch}: `git push -u REMOTE {branch}` pushes it.",
            about.name
        ),
        branch: Some(branch),
        commit: Some(commit),
        ..RoomOutcome::default()
    }
}

fn told(branch: Option<String>, base: Option<String>, diff: &Diff, commits: u64) -> RoomWork {
    RoomWork {
        branch,
        base,
        files: u32::try_from(diff.files.len()).unwrap_or(u32::MAX),
        insertions: diff.files.iter().filter_map(|file| file.added).sum(),
        deletions: diff.files.iter().filter_map(|file| file.removed).sum(),
        commits: u32::try_from(commits).unwrap_or(u32::MAX),
        diff: String::from_utf8_lossy(&diff.patch).into_owned(),
        truncated: diff.cut,
        runs_later: runs_later(diff),
    }
}

/// The changed files that other programs run by themselves, and how they do.
fn runs_later(diff: &Diff) -> Vec<(String, String)> {
    let paths: Vec<_> = diff.files.iter().map(|file| file.path.to_string_lossy()).collect();
    let mut found: Vec<_> = paths
        .iter()
        .filter_map(|path| Some((path.to_string(), runs_by_itself(path)?.to_owned())))
        .collect();
    let paths: Vec<&str> = paths.iter().map(AsRef::as_ref).collect();
    let repositories = settings_of_repositories(&paths).into_iter();
    found.extend(repositories.map(|(path, why)| (path.to_owned(), why.to_owned())));
    found.sort();
    found.dedup();
    found
}
