//! Work that a run has left and nobody watches: one item of the inbox for each run that exists for a record.
//!
//! A person who starts a run sees its work in `ps`. Of a run that a fleet or a quest has started nobody
//! knows that it has ended, so its work asks to be decided about. Pure: an item opens when the row says
//! that the work is undecided, and closes when it says so no more.

use serde_json::json;

use crate::ids::InboxId;
use crate::inbox::{InboxItem, InboxKind, InboxState, title};
use crate::room::RoomDone;
use crate::row::SessionRow;
use crate::time::Timestamp;

/// Words that answer such an item, and what they do.
pub const ANSWERS: [&str; 3] = ["merge", "keep", "discard"];

/// What an answer does with the work: `merge` into what is checked out, `keep` on a branch of its own,
/// or `discard`. `None` for other words.
pub fn decision(answer: &str) -> Option<RoomDone> {
    match answer.trim().to_ascii_lowercase().as_str() {
        "merge" => Some(RoomDone::Merge { into: None }),
        "keep" => Some(RoomDone::Park),
        "discard" => Some(RoomDone::Discard),
        _ => None,
    }
}

/// Whether somebody has to be asked about the work of this run.
pub fn asks(row: &SessionRow) -> bool {
    row.owner.is_some() && row.room.as_ref().is_some_and(|room| room.is_undecided())
}

/// The id of the item about the work that a run left in this epoch. The same each time.
pub fn item_id(row: &SessionRow) -> InboxId {
    InboxId::derive(row.id, u64::MAX - u64::from(row.epoch))
}

/// The item that asks what becomes of a run's work.
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
    InboxItem {
        id: item_id(row),
        colony: row.colony,
        session: Some(row.id),
        owner: row.owner,
        agent: Some(row.agent),
        agent_name: agent.to_owned(),
        epoch: row.epoch,
        kind: InboxKind::Work,
        state: InboxState::Open,
        title: title(&format!("{} left {what}", row.name)),
        details: json!({
            "prompt": prompt, "reason": "work that is left", "run": row.name, "branch": branch,
            "files": files, "answers": ANSWERS,
        }),
        group: row.owner.map(|owner| format!("work:{owner}")),
        asked_at: now,
        expires_at: None,
        answered_at: None,
        answered_by: None,
        answer: None,
        changed: 0,
    }
}

/// The item as it stands once the work asks nobody any more.
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
    fn the_words_of_an_answer_are_decisions_and_no_other_words_are() {
        for word in ANSWERS {
            assert!(decision(word).is_some() && decision(&word.to_uppercase()).is_some(), "{word}");
        }
        assert_eq!(decision(" discard\n"), Some(RoomDone::Discard));
        for word in ["", "yes", "throw it away", "mergee"] {
            assert_eq!(decision(word), None, "{word}");
        }
    }
}
