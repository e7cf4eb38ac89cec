//! Periodic work: moved repositories, unused bases, old discarded work, projects without sessions.

use std::collections::HashSet;
use std::path::Path;

use super::Trees;
use super::error::{At, TreeError};
use super::finish::{DISCARDED, DISCARDED_MORE};
use super::gitdir;
use super::notes::{Held, Origin, TreeIntent};
use super::primary::Update;
use super::source::{Settings, Source};
use crate::opener::Dir;

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Base commits that no session borrows any more.
    pub bases: usize,
    /// Discarded sessions whose time was over.
    pub discarded: usize,
    /// Directories of projects without sessions.
    pub projects: usize,
}

impl Trees {
    /// Tells a tree where its repository is now, after it was moved.
    ///
    /// # Errors
    ///
    /// [`TreeError::RepositoryGone`] if `to` has no repository, or one without the base commit.
    pub fn relink(&self, intent: &TreeIntent, to: &Path) -> Result<TreeIntent, TreeError> {
        let mut held = Held::take(intent)?;
        let gone = || TreeError::RepositoryGone { repo: to.to_owned(), tree: intent.tree() };
        let (source, _) = super::source::find(to)?.ok_or_else(gone)?;
        let Some(was) = held.notes.intent.source() else {
            return Err(TreeError::NoRepository { session: intent.session.clone() });
        };
        if let Some(base) = &intent.anchor
            && self.present(&source.common, &[base])?.is_empty()
        {
            return Err(gone());
        }
        for unit in &mut held.notes.units {
            let Ok(within) = unit.source.as_path().strip_prefix(&was.common) else { continue };
            unit.source = source.common.join(within).into();
            let text = gitdir::alternates(&[unit.source.as_path().join("objects")]);
            let paths = unit.paths(&held.place);
            let ours = paths.ours.join("objects/info/alternates");
            std::fs::write(&ours, &text).at("writing", &ours)?;
            let theirs = Dir::open(&intent.tree())
                .and_then(|tree| tree.sub(unit.theirs.as_path()))
                .and_then(|dir| dir.write(Path::new("objects/info/alternates"), &text));
            theirs.at("writing the alternates of", &paths.theirs)?;
        }
        let format = match &intent.origin {
            Origin::Repository { format, .. } => format.as_str(),
            Origin::Directory { .. } => "sha1",
        };
        held.notes.intent.origin = Origin::of(&source, format);
        if let Some(base) = &intent.anchor {
            self.keep_base(&source, base)?;
        }
        note_project(intent.home(), &held.notes.intent.origin)?;
        held.write()?;
        Ok(held.notes.intent.clone())
    }

    /// Lets go of what nothing needs any more: bases that no session borrows, work that was discarded
    /// before `discarded_before` (seconds since 1970), directories of projects without sessions.
    ///
    /// # Errors
    ///
    /// The first error; earlier work is kept, and the next sweep continues.
    pub fn sweep(&self, discarded_before: i64) -> Result<Swept, TreeError> {
        let mut swept = Swept::default();
        for home in self.homes()? {
            let Some(source) = project_of(&home) else { continue };
            let mut remains = true;
            if source.is_there() {
                swept.bases += self.release_bases(&home, &source)?;
                let (expired, left) = self.expire(&source, discarded_before)?;
                swept.discarded += expired;
                remains = left > 0;
            }
            remains |= self.expire_files(&home, discarded_before)? > 0;
            if !remains && self.remove_empty_home(&home)? {
                swept.projects += 1;
            }
        }
        Ok(swept)
    }

    /// Removes discarded work that is too old. Returns how much went, and how much is left.
    fn expire(&self, source: &Source, before: i64) -> Result<(usize, usize), TreeError> {
        let list = self
            .git
            .call("list discarded sessions")
            .shared(source)
            .args(["for-each-ref", "--format=%(objectname) %(committerdate:unix) %(refname)"])
            .args([DISCARDED, DISCARDED_MORE])
            .run()?;
        let text = String::from_utf8_lossy(&list.stdout).into_owned();
        let all: Vec<(&str, Option<i64>, &str)> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.splitn(3, ' ');
                Some((words.next()?, words.next()?.parse().ok(), words.next()?))
            })
            .collect();
        let sessions: Vec<_> = all
            .iter()
            .filter_map(|(id, date, name)| Some((*id, *date, name.strip_prefix(DISCARDED)?)))
            .collect();
        let old: HashSet<&str> = sessions
            .iter()
            .filter(|(_, date, _)| date.is_some_and(|date| date < before))
            .map(|(_, _, session)| *session)
            .collect();
        let updates: Vec<Update> = all
            .iter()
            .filter(|(_, _, name)| {
                let session = name
                    .strip_prefix(DISCARDED)
                    .or_else(|| name.strip_prefix(DISCARDED_MORE)?.split('/').next());
                session.is_some_and(|session| old.contains(session))
            })
            .map(|(id, _, name)| Update::Delete {
                name: (*name).to_owned(),
                from: (*id).to_owned(),
            })
            .collect();
        if !updates.is_empty() {
            self.update(source, "let discarded sessions go", &updates)?;
        }
        Ok((old.len(), sessions.len() - old.len()))
    }
}

/// Records the repository of a project's directory, for the time after its last session.
pub(crate) fn note_project(home: &Path, origin: &Origin) -> Result<(), TreeError> {
    let path = home.join(".project");
    if path.is_file() {
        return Ok(());
    }
    let text = serde_json::to_vec(origin)
        .map_err(|source| TreeError::Notes { place: home.to_owned(), source })?;
    // Several sessions of a project may be the first at the same time.
    let half = home.join(format!(".project-{:?}", std::thread::current().id()));
    std::fs::write(&half, text).at("writing", &half)?;
    std::fs::rename(&half, &path).at("writing", &path)
}

/// The same, of a project that has no session yet.
pub(crate) fn note_project_of(
    home: &Path,
    source: &Source,
    settings: &Settings,
) -> Result<(), TreeError> {
    note_project(home, &Origin::of(source, settings.format()))
}

pub(crate) fn project_of(home: &Path) -> Option<Source> {
    let text = std::fs::read(home.join(".project")).ok()?;
    serde_json::from_slice::<Origin>(&text).ok()?.source()
}
