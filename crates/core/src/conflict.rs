//! The details of a conflict: the object, its expected state and its actual state. Programs compare
//! these fields; people read the text.

use std::fmt;

/// A kind of object that is unique or has a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConflictKind {
    Session,
    /// The name of a session that has not ended.
    SessionName,
    Step,
    Agent,
    AgentName,
    ApiKey,
    /// The scope of an idempotency key.
    IdempotencyKey,
    /// A key of the shared state.
    BoardKey,
    /// The permissions in the mesh.
    Permissions,
    /// A resource: its kind and name.
    Record,
    Message,
    Memory,
    /// A name that differs only in case from that of another artifact.
    Artifact,
    Reservation,
    ModelCall,
    /// The file of a store.
    Store,
    /// A colony's quota of sessions that have not ended.
    Quota,
    /// Content of a colony that is to be deleted: its sort.
    Colony,
    /// The file of a backup.
    Backup,
}

/// An expected or actual state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stands {
    Absent,
    Present,
    Open,
    Ended,
    Version(u64),
    Epoch(u32),
    /// The object is at this place, or has this name.
    At(String),
    /// At most this many objects.
    AtMost(u64),
    /// The object has changed; its actual state was not read.
    Changed,
}

/// A conflict with the actual state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub kind: ConflictKind,
    /// The id, name, key or path for people.
    pub name: String,
    pub expected: Stands,
    pub found: Stands,
}

impl Conflict {
    pub fn new(
        kind: ConflictKind,
        name: impl ToString,
        expected: Stands,
        found: Stands,
    ) -> Box<Self> {
        Box::new(Self { kind, name: name.to_string(), expected, found })
    }

    /// Creates the conflict of a new object that already exists.
    pub fn taken(kind: ConflictKind, name: impl ToString) -> Box<Self> {
        Self::new(kind, name, Stands::Absent, Stands::Present)
    }

    /// Returns the object's name, with its kind if the name alone is not clear.
    fn thing(&self) -> String {
        let name = &self.name;
        match self.kind {
            ConflictKind::Session => format!("session {name}"),
            ConflictKind::SessionName => format!("a run called `{name}`"),
            ConflictKind::Step => format!("step {name}"),
            ConflictKind::Agent => format!("agent {name}"),
            ConflictKind::AgentName => format!("an agent called `{name}`"),
            ConflictKind::ApiKey => format!("an API key named `{name}`"),
            ConflictKind::IdempotencyKey => format!("an answer to this key of {name}"),
            ConflictKind::BoardKey => format!("`{name}`"),
            ConflictKind::Message => format!("letter {name}"),
            ConflictKind::Memory => format!("memory item {name}"),
            ConflictKind::Artifact => {
                format!("an artifact whose name differs from `{name}` only in case")
            }
            ConflictKind::Reservation => format!("a reservation of {name}"),
            ConflictKind::ModelCall => format!("model call {name}"),
            ConflictKind::Quota => format!("the quota of colony {name}"),
            ConflictKind::Colony => format!("{name} in the colony"),
            ConflictKind::Permissions
            | ConflictKind::Record
            | ConflictKind::Store
            | ConflictKind::Backup => name.clone(),
        }
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, thing) = (&self.name, self.thing());
        // Where a sentence of its own helps the reader more.
        match (self.kind, &self.expected, &self.found) {
            (ConflictKind::SessionName, Stands::Absent, Stands::Present) => {
                return write!(f, "another run that has not ended is called `{name}`");
            }
            (ConflictKind::AgentName, Stands::Absent, Stands::Present) => {
                return write!(f, "there is an agent `{name}` already");
            }
            (ConflictKind::Store, Stands::Absent, Stands::Present) => {
                return write!(f, "a store exists already at {name}");
            }
            (ConflictKind::BoardKey, _, Stands::Absent) => {
                return write!(f, "{thing} is not there");
            }
            (ConflictKind::BoardKey, _, Stands::Version(at)) => {
                return write!(f, "{thing} stands at version {at}");
            }
            (ConflictKind::Record, Stands::Absent, Stands::Version(_)) => {
                return write!(f, "{thing} exists already");
            }
            (ConflictKind::Record, Stands::At(other), _) => {
                return write!(f, "record {thing} is not {other}");
            }
            (ConflictKind::Record, _, Stands::Changed) => {
                return f.write_str("other callers keep changing the record");
            }
            (ConflictKind::Memory, _, Stands::Changed) => {
                return write!(
                    f,
                    "{thing} cannot be replaced: it is not in this collection, or it was replaced \
                     before"
                );
            }
            (ConflictKind::Quota, Stands::AtMost(most), _) => {
                return write!(f, "{thing} is reached: {most} runs have not ended");
            }
            (ConflictKind::Step, Stands::At(place), _) => {
                return write!(f, "{thing} stands at another place than {place}");
            }
            _ => {}
        }
        match (&self.found, &self.expected) {
            (Stands::Absent, _) => write!(f, "{thing} does not exist"),
            (Stands::Present, _) => write!(f, "{thing} exists already"),
            (Stands::Ended, _) => write!(f, "{thing} has ended"),
            (Stands::Open, _) => write!(f, "{thing} has not ended"),
            (Stands::Version(at), Stands::Version(wanted)) => {
                write!(f, "{thing} stands at version {at}, not {wanted}")
            }
            (Stands::Version(at), _) => write!(f, "{thing} stands at version {at}"),
            (Stands::Epoch(at), Stands::Epoch(wanted)) => {
                write!(f, "{thing} stands at epoch {at}, not {wanted}")
            }
            (Stands::Epoch(at), _) => write!(f, "{thing} stands at epoch {at}"),
            (Stands::At(place), _) => write!(f, "{thing} is {place}"),
            (Stands::AtMost(most), _) => write!(f, "{thing} is limited to {most}"),
            (Stands::Changed, _) => write!(f, "{thing} has moved on meanwhile"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_conflict_matches_its_type() {
        use ConflictKind::{
            Agent, AgentName, BoardKey, Message, Record, Session, SessionName, Step,
        };
        use Stands::{Absent, At, Changed, Ended, Epoch, Open, Present, Version};
        for (kind, name, expected, found, words) in [
            (Session, "s", Present, Absent, "session s does not exist"),
            (Session, "s", Open, Ended, "session s has ended"),
            (Session, "s", Ended, Open, "session s has not ended"),
            (Session, "s", Epoch(2), Epoch(3), "session s stands at epoch 3, not 2"),
            (Session, "s", Absent, Present, "session s exists already"),
            (
                SessionName,
                "build",
                Absent,
                Present,
                "another run that has not ended is called `build`",
            ),
            (Agent, "a", Version(1), Version(2), "agent a stands at version 2, not 1"),
            (AgentName, "ann", Absent, Present, "there is an agent `ann` already"),
            (BoardKey, "k", Version(1), Version(2), "`k` stands at version 2"),
            (BoardKey, "k", Version(1), Absent, "`k` is not there"),
            (Record, "note/a", Absent, Version(3), "note/a exists already"),
            (Record, "note/a", Version(2), Version(3), "note/a stands at version 3, not 2"),
            (Record, "note/a", Version(2), Absent, "note/a does not exist"),
            (Record, "r", At("note/a".into()), Changed, "record r is not note/a"),
            (Message, "m", Present, Changed, "letter m has moved on meanwhile"),
            (
                Step,
                "x",
                At("3 of session s".into()),
                Changed,
                "step x stands at another place than 3 of session s",
            ),
        ] {
            assert_eq!(Conflict::new(kind, name, expected, found).to_string(), words);
        }
    }
}
