//! Errors, findings and progress of this crate in the words of the port.

use overmind_core::room::{self, Leak, RoomError, RoomErrorKind, RoomProgress, RoomSink};

use super::maker::Whose;
use crate::git::GitError;
use crate::leaks::Finding;
use crate::lease::{self, BuildError, Progress, TeardownError, chain};
use crate::tree::TreeError;

/// Tells a session's sink.
pub(super) struct Teller(pub(super) RoomSink);

impl lease::Sink for Teller {
    fn tell(&self, progress: Progress<'_>) {
        (self.0)(match progress {
            Progress::Step { what } => RoomProgress::Step(what.to_owned()),
            Progress::Line { source, line, .. } => {
                RoomProgress::Line { source: source.to_owned(), line: line.to_owned() }
            }
            Progress::Warning { text } => RoomProgress::Warning(text.to_owned()),
        });
    }
}

/// The message that secrets of a repository are not shown to its session.
pub(super) fn withheld(paths: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<&str> = paths.iter().take(SHOWN).map(String::as_str).collect();
    let more = match paths.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "secrets of the repository are withheld from this run: {}{more}; to grant one, name it in \
         `secrets` in {}, for example `secrets: [{:?}]`",
        shown.join(", "),
        crate::config::FILE,
        paths.first().map(String::as_str).unwrap_or_default()
    )
}

pub(super) fn failed(why: impl Into<String>) -> RoomError {
    RoomError::new(RoomErrorKind::Failed, why)
}

pub(super) fn not_found(why: impl Into<String>) -> RoomError {
    RoomError::new(RoomErrorKind::NotFound, why)
}

pub(super) fn conflict(why: impl Into<String>) -> RoomError {
    RoomError::new(RoomErrorKind::Conflict, why)
}

pub(super) fn of_tree(err: &TreeError) -> RoomError {
    let kind = match err {
        TreeError::BrokenRedirect { .. }
        | TreeError::Unsound { .. }
        | TreeError::Led { .. }
        | TreeError::Beyond { .. }
        | TreeError::NotOurs { .. }
        | TreeError::OffLimits { .. }
        | TreeError::NoSuchBase { .. }
        | TreeError::NoSuchBranch { .. }
        | TreeError::BadBranch { .. }
        | TreeError::ContainsUs { .. } => RoomErrorKind::Project,
        TreeError::NoRepository { .. }
        | TreeError::Gone { .. }
        | TreeError::RepositoryGone { .. }
        | TreeError::WorkGone { .. } => RoomErrorKind::NotFound,
        TreeError::NoFilesAt { label: Some(_), .. } => RoomErrorKind::Project,
        TreeError::NoFilesAt { label: None, .. } => RoomErrorKind::Conflict,
        TreeError::NameTaken { .. }
        | TreeError::BranchTaken { .. }
        | TreeError::Busy { .. }
        | TreeError::Unsaved { .. }
        | TreeError::Kept { .. }
        | TreeError::NoBranch { .. }
        | TreeError::CheckoutUnknown { .. }
        | TreeError::Uncommitted { .. }
        | TreeError::CheckedOut { .. }
        | TreeError::PrimaryBusy { .. }
        | TreeError::PrimaryInTheWay { .. }
        | TreeError::Git(GitError::Locked { .. }) => RoomErrorKind::Conflict,
        // A missing project is a mistake of the project, whoever named it.
        TreeError::File { attempt: "finding the project", .. } => RoomErrorKind::Project,
        TreeError::File { .. }
        | TreeError::Git(_)
        | TreeError::InUse { .. }
        | TreeError::TooLarge { .. }
        | TreeError::Notes { .. } => RoomErrorKind::Failed,
    };
    RoomError::new(kind, chain(err))
}

pub(super) fn of_build(err: &BuildError) -> RoomError {
    let kind = match err {
        BuildError::Session(_) | BuildError::NotADirectory(_) | BuildError::Env { .. } => {
            RoomErrorKind::Project
        }
        BuildError::Busy(_) => RoomErrorKind::Conflict,
        BuildError::Journal(_)
        | BuildError::NoTree
        | BuildError::Tree(_)
        | BuildError::Temp { .. }
        | BuildError::Ports(_)
        | BuildError::Service { .. }
        | BuildError::EnvFile(_)
        | BuildError::Setup(_)
        | BuildError::SetupWords(_)
        | BuildError::Sandbox(_)
        | BuildError::Task { .. } => RoomErrorKind::Failed,
    };
    RoomError::new(kind, chain(err))
}

pub(super) fn of_teardown(err: &TeardownError) -> RoomError {
    let kind = match err {
        TeardownError::Busy(_) => RoomErrorKind::Conflict,
        TeardownError::Journal(_) | TeardownError::Left { .. } | TeardownError::Hook(_) => {
            RoomErrorKind::Failed
        }
    };
    RoomError::new(kind, chain(err))
}

/// The message of a commit of a session's work: what it was to do, and which run and agent did it.
pub(super) fn message(whose: &Whose) -> String {
    let Whose { name, about, agent } = whose;
    let title = if about.is_empty() { format!("Work of {name}") } else { about.clone() };
    let agent = match room::about(agent).as_str() {
        "" => String::new(),
        agent => format!("Overmind-Agent: {agent}\n"),
    };
    format!("{title}\n\nOvermind-Run: {name}\n{agent}")
}

pub(super) fn leak(finding: Finding) -> Leak {
    let Finding { kind, what, session, how, fixable, bytes } = finding;
    let kind = match serde_json::to_value(kind) {
        Ok(serde_json::Value::String(kind)) => kind,
        Ok(_) | Err(_) => format!("{kind:?}").to_lowercase(),
    };
    Leak { kind, what, session, how, fixable, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaks::LeakKind;

    #[test]
    fn a_leak_is_reported_by_its_kind() {
        let finding = Finding {
            kind: LeakKind::TempFiles,
            what: "/t".to_owned(),
            session: None,
            how: "look".to_owned(),
            fixable: true,
            bytes: Some(3),
        };
        let told = leak(finding);
        assert_eq!((told.kind.as_str(), told.bytes), ("temp_files", Some(3)));
    }
}
