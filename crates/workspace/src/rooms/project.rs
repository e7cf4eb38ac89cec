//! A project and its settings: its location, the content of its file, the options of its trees.

use std::path::{Path, PathBuf};

use overmind_core::room::{RoomError, RoomErrorKind, RoomOrder, RoomOrigin, RoomReach};

use super::say;
use crate::config::{self, Config, ConfigError, DirectoryStrategy, FILE, Problem};
use crate::opener::{self, Own};
use crate::pool::PoolSize;
use crate::tree::{
    self, BigDirectory, Request, Strategy, TreeError, Trees, find, find_within, unlinked,
};

/// The largest project file that is read out of a commit, and the largest list of files to include.
const MAX_BYTES: u64 = 256 * 1024;

/// The location of a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    Repository,
    Directory,
}

/// A project, read.
#[derive(Clone, Debug)]
pub(super) struct Project {
    /// Its top: of the repository, or the directory itself.
    pub(super) top: PathBuf,
    pub(super) config: Config,
    /// The hash of its file, if there is one.
    pub(super) hash: Option<String>,
    /// The parts of the file that could not be applied.
    pub(super) warnings: Vec<String>,
    /// Which repositories it may lead to.
    pub(super) reach: RoomReach,
    /// The directories of other repositories' objects that its runs are shown.
    pub(super) lenders: Vec<PathBuf>,
    /// The shared git directory of its repository, if it is in one.
    repository: Option<PathBuf>,
    /// Files of the server.
    own: Own,
}

/// The location of the order's project. Blocks for a moment.
pub(super) fn ground(project: &Path, reach: &RoomReach) -> Result<Ground, RoomError> {
    if !project.is_dir() {
        let text = format!("{} is not a directory", project.display());
        return Err(RoomError::new(RoomErrorKind::Project, text));
    }
    let project = unlinked(project).map_err(|err| say::of_tree(&err))?;
    match find_within(&project, reach).map_err(|err| say::of_tree(&err))? {
        Some(_) => Ok(Ground::Repository),
        None => Ok(Ground::Directory),
    }
}

/// The top of the repository that contains a directory, as sessions see it; `None` outside of any,
/// and in one without a working tree. Blocks for a moment.
pub fn project_top(dir: &Path) -> Option<PathBuf> {
    match find(dir) {
        Ok(found) => found.and_then(|(source, _)| source.top),
        // Its top nevertheless: runs in it are refused with the remedy.
        Err(TreeError::NotOurs { dir, .. }) => Some(dir),
        Err(_) => None,
    }
}

/// Reads a project: its file as it is there now, or, where a repository has no working tree, as it
/// is in the base. Blocks.
pub(super) fn read(
    trees: &Trees,
    project: &Path,
    reach: &RoomReach,
    base: Option<&str>,
) -> Result<Project, RoomError> {
    let source = trees.source_of(project, reach).map_err(|err| say::of_tree(&err))?;
    let repository = source.as_ref().map(|source| source.common.clone());
    let lenders = source.as_ref().map(|source| trees.lenders(source)).unwrap_or_default();
    let (top, config) = match source {
        Some(source) => match source.top.clone() {
            Some(top) => (top.clone(), Config::load_hashed(&top, &trees.own())),
            None => {
                let text = trees.file_of(&source, base, FILE, MAX_BYTES);
                let text = text.map_err(|err| say::of_tree(&err))?;
                let config = match text {
                    Some(text) => {
                        let config = Config::parse(&String::from_utf8_lossy(&text));
                        let config = config.map(|config| (config, Some(config::hash(&text))));
                        config.map_err(|problems| ConfigError {
                            file: source.common.join(FILE),
                            problems,
                        })
                    }
                    None => Ok((Config::default(), None)),
                };
                (source.common, config)
            }
        },
        None => return read_directory(project, trees.own()),
    };
    let found = of_file(top, config, trees.own())?;
    Ok(Project { reach: reach.clone(), lenders, repository, ..found })
}

/// Whether a project is in the repository from which the session's worktree was created, if that is
/// known: a run that may write in the project could redirect it to another one.
pub(super) fn same(found: &Project, was: Option<&RoomOrigin>) -> Result<(), RoomError> {
    match was {
        Some(RoomOrigin::Repository(was)) if found.repository.as_ref() != Some(was) => {
            let text = format!(
                "the worktree of this run was made from the repository {}, and {} does not lie in it any \
                 more: start a new run",
                was.display(),
                found.top.display()
            );
            Err(RoomError::new(RoomErrorKind::Project, text))
        }
        Some(_) | None => Ok(()),
    }
}

/// Reads a project that is in no repository. Blocks.
pub(super) fn read_directory(project: &Path, own: Own) -> Result<Project, RoomError> {
    let top = unlinked(project).map_err(|err| say::of_tree(&err))?;
    let config = Config::load_hashed(&top, &own);
    of_file(top, config, own)
}

fn of_file(
    top: PathBuf,
    config: Result<(Config, Option<String>), ConfigError>,
    own: Own,
) -> Result<Project, RoomError> {
    let config = config.map_err(|err| RoomError::new(RoomErrorKind::Project, mistakes(&err)));
    let (config, hash) = config?;
    let mut warnings = Vec::new();
    if config.earlier {
        warnings.push(format!(
            "{FILE} is in the earlier dialect: `overmind init --force` writes it in the present one"
        ));
    }
    if !config.worktree.submodules {
        warnings.push(
            "worktree.submodules: submodules are there all the same, as far as they are local"
                .to_owned(),
        );
    }
    let (reach, lenders, repository) = (RoomReach::Nothing, Vec::new(), None);
    Ok(Project { top, config, hash, warnings, reach, lenders, repository, own })
}

/// All mistakes of a file, one a line.
fn mistakes(err: &ConfigError) -> String {
    let count = match err.problems.as_slice() {
        [_] => "a mistake".to_owned(),
        many => format!("{} mistakes", many.len()),
    };
    format!("{FILE} has {count}:\n{err}")
}

/// The tree that an order asks for.
pub(super) fn request(
    order: &RoomOrder,
    project: &Project,
    excludes_file: Option<&Path>,
) -> Result<Request, RoomError> {
    let mut options = options(project, excludes_file)?;
    options.base = order.wish.base.clone().or(options.base);
    options.carry_changes = order.wish.carry_changes;
    let RoomOrder { project, name, wish, .. } = order;
    let (project, name, reach) = (project.clone(), name.clone(), wish.reach.clone());
    Ok(Request { project, name, options, reach })
}

/// The settings for trees in a project's file.
pub(super) fn options(
    project: &Project,
    excludes_file: Option<&Path>,
) -> Result<tree::Options, RoomError> {
    let worktree = &project.config.worktree;
    let mut options = tree::Options {
        base: worktree.base.clone(),
        branch_prefix: worktree.branch_prefix.clone(),
        excludes_file: excludes_file.map(Path::to_owned),
        ..tree::Options::default()
    };
    // Beside the usual ones: a line with `!` takes one of those back.
    options.include.extend(worktree.include.iter().cloned());
    // The usual file is read with the tree.
    if worktree.include_file != ".worktreeinclude" {
        options.include.extend(patterns(&project.top, &worktree.include_file, &project.own)?);
    }
    options.big = worktree
        .directories
        .iter()
        .map(|(path, strategy)| BigDirectory {
            path: path.clone(),
            strategy: match strategy {
                DirectoryStrategy::Share => Strategy::Share,
                DirectoryStrategy::Reflink | DirectoryStrategy::Copy => Strategy::Clone,
                DirectoryStrategy::Skip => Strategy::Skip,
            },
        })
        .collect();
    Ok(options)
}

fn patterns(top: &Path, file: &str, own: &Own) -> Result<Vec<String>, RoomError> {
    let path = top.join(file);
    let refuse = |why: String| {
        let at = crate::config::At { line: 1, column: 1 };
        let problem = Problem { at, path: String::new(), what: why, hint: None };
        let err = ConfigError { file: path.clone(), problems: vec![problem] };
        RoomError::new(RoomErrorKind::Project, err.to_string())
    };
    let text = opener::text(top, Path::new(file), MAX_BYTES, own);
    let Some(text) = text.map_err(|err| refuse(opener::why(&err)))? else { return Ok(Vec::new()) };
    let text = String::from_utf8(text).map_err(|_| refuse("is not text (UTF-8)".to_owned()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// How many trees wait for the next session.
pub(super) fn pool_size(project: &Project) -> PoolSize {
    PoolSize {
        trees: usize::try_from(project.config.pool.size).unwrap_or(0),
        ..PoolSize::default()
    }
}
