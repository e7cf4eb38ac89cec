//! Inbox items for work that nobody watches: one for each run that a resource started and that left
//! work.
//!
//! A person who starts a run sees its work in `ps`. Nobody notices the end of a run that a fleet or
//! a quest started, so its work asks for a decision. Pure: an item opens when the row says that the
//! work is undecided, and closes when it no longer does.

use serde_json::json;

use crate::ids::InboxId;
use crate::inbox::{InboxItem, InboxKind, InboxState, title};
use crate::room::RoomDone;
use crate::row::SessionRow;
use crate::time::Timestamp;

/// The answers to such an item, with the decision that each stands for. `merge` merges into the
/// checked-out branch, and `keep` keeps the work on its own branch.
const ANSWERS: [(&str, RoomDone); 3] = [
    ("merge", RoomDone::Merge { into: None }),
    ("keep", RoomDone::Park),
    ("discard", RoomDone::Discard),
];

/// Returns the decision for an answer; `None` if the text is not one of the answers.
pub fn decision(answer: &str) -> Option<RoomDone> {
    let answer = answer.trim();
    let found = ANSWERS.iter().find(|(word, _)| word.eq_ignore_ascii_case(answer))?;
    Some(found.1.clone())
}

/// Returns whether somebody must be asked about the work of this run.
pub fn asks(row: &SessionRow) -> bool {
    row.owner.is_some() && row.room.as_ref().is_some_and(|room| room.is_undecided())
}

/// Returns the id of the item about the work of a run in this epoch. It is the same each time.
pub fn item_id(row: &SessionRow) -> InboxId {
    InboxId::derive(row.id, u64::MAX - u64::from(row.epoch))
}

/// Creates the item that asks for a decision about a run's work.
pub fn item(row: &SessionRow, agent: &str, now: Timestamp) -> InboxItem {
    let room = row.room.as_ref();
    let files = room.and_then(|room| room.changes.as_ref()).map(|changes| changes.files);
    let what = match files {
        Some(1) => "1 changed file".to_owned(),
        Some(files) => format!("{files} changed files"),
        None => "work".to_owned(),
    };
    let branch = room.and_then(|room| room.made.as_ref()).and_then(|made| made.branch.clone());
    let why = row.error.as_ref().and_then(|error| error.get("message")?.as_str());
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    let prompt = format!(
        "{} has ended{why} and left {what} that nobody has decided about. Answer merge, keep (on its \
         branch) or discard.",
        row.name
    );
    let details = json!({
        "prompt": prompt, "reason": "work that is left", "run": row.name, "branch": branch,
        "files": files, "answers": ANSWERS.each_ref().map(|(word, _)| word),
    });
    let title = title(&format!("{} left {what}", row.name));
    InboxItem {
        session: Some(row.id),
        owner: row.owner,
        agent: Some(row.agent),
        agent_name: agent.to_owned(),
        epoch: row.epoch,
        group: row.owner.map(|owner| format!("work:{owner}")),
        ..InboxItem::open(item_id(row), row.colony, InboxKind::Work, title, details, now)
    }
}

/// Returns the item as closed, after the work needs no decision any more.
#[must_use]
pub fn closed(item: InboxItem, row: &SessionRow, now: Timestamp) -> InboxItem {
    let done = row.room.as_ref().and_then(|room| room.done.as_ref());
    let (state, by, answer) = match done {
        Some(done) => {
            let word = match done.what {
                RoomDone::Merge { .. } => "merge",
                RoomDone::PrBranch { .. } => "branch",
                RoomDone::Keep | RoomDone::Park => "keep",
                RoomDone::Discard => "discard",
            };
            (InboxState::Answered, Some(done.by.clone()), Some(word.to_owned()))
        }
        None => (InboxState::Withdrawn, None, None),
    };
    InboxItem { state, answered_at: Some(now), answered_by: by, answer, ..item }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_about_work_are_parsed_from_their_words_only() {
        for (word, what) in ANSWERS {
            assert_eq!(decision(&word.to_uppercase()), Some(what), "{word}");
        }
        assert_eq!(decision(" discard\n"), Some(RoomDone::Discard));
        for word in ["", "yes", "throw it away", "mergee"] {
            assert_eq!(decision(word), None, "{word}");
        }
    }
}
