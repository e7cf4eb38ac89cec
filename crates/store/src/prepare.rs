//! The work on a commit before it is queued: mask secrets, write JSON, count bytes.
//!
//! It happens on the caller's thread, so that the single writer only hashes and binds values.
//! Everything that is written passes through [`prepare`].

use overmind_core::agent::Agent;
use overmind_core::artifact::{Artifact, ArtifactName};
use overmind_core::ids::{
    AgentId, ColonyId, EffectId, HiveId, LetterId, MemoryId, SessionId, SubscriptionId,
};
use overmind_core::inbox::InboxItem;
use overmind_core::memory::MemoryItem;
use overmind_core::mesh::{BoardEntry, Key, Letter, LetterMark, Registration, Subscription};
use overmind_core::row::{ApiKey, SessionRow, StepRow};
use overmind_core::store::{
    Change, Commit, Guard, IdempotentAnswer, NewEvent, StoreError, StreamId,
};
use overmind_core::time::Timestamp;
use serde_json::Value;

use crate::budgets::Sums;
use crate::records;
use crate::redact::Redactor;
use crate::vault::{self, VaultWrite};

/// A commit that is ready to be written.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) guards: Vec<Guard>,
    pub(crate) events: Vec<Event>,
    pub(crate) changes: Vec<Write>,
    /// About how many bytes of memory it uses.
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) stream: StreamId,
    pub(crate) kind: &'static str,
    pub(crate) ts: Timestamp,
    pub(crate) payload: String,
}

/// A [`Change`] whose JSON is already written.
#[derive(Debug)]
pub(crate) enum Write {
    AgentPut {
        agent: Box<Agent>,
        spec: String,
    },
    SessionInsert(Box<Session>),
    SessionUpdate(Box<Session>),
    StepPut {
        row: Box<StepRow>,
        input: String,
        output: Option<String>,
    },
    /// `details` holds the details as JSON; the field in the item is empty.
    InboxPut {
        item: Box<InboxItem>,
        details: String,
    },
    /// `vector` holds the embedding as bytes; the field in the item is empty.
    MemoryInsert {
        item: Box<MemoryItem>,
        metadata: String,
        vector: Vec<u8>,
        key: Option<EffectId>,
    },
    MemoryDelete(MemoryId),
    MemoryEmbed {
        id: MemoryId,
        model: String,
        vector: Vec<u8>,
    },
    ApiKeyPut(Box<ApiKey>),
    SettingPut {
        key: String,
        value: String,
        at: Timestamp,
    },
    SettingDelete {
        key: String,
    },
    AttestationPut {
        digest: String,
        at: Timestamp,
        record: String,
    },
    HivePut {
        hive: HiveId,
        name: String,
        seen_at: Timestamp,
    },
    IdempotencyPut {
        id: [u8; 32],
        scope: String,
        answer: IdempotentAnswer,
        at: Timestamp,
    },
    Vault(VaultWrite),
    Record(records::Write),
    Budget(Box<crate::budgets::Write>),
    /// `value` holds the value as JSON; the field in the entry is empty.
    BoardPut {
        entry: Box<BoardEntry>,
        value: String,
    },
    BoardDelete {
        colony: ColonyId,
        key: Key,
    },
    /// `payload` holds the payload as JSON; the field in the message is empty.
    LetterInsert {
        letter: Box<Letter>,
        payload: String,
    },
    LetterMark {
        to: AgentId,
        id: LetterId,
        mark: LetterMark,
        expires_at: Option<Timestamp>,
    },
    LetterDelete {
        to: AgentId,
        id: LetterId,
    },
    SubscriptionPut {
        subscription: Box<Subscription>,
        line: String,
    },
    SubscriptionDelete(SubscriptionId),
    RegistrationPut {
        registration: Box<Registration>,
        capabilities: String,
    },
    ArtifactPut(Box<Artifact>),
    ArtifactDelete {
        session: SessionId,
        name: ArtifactName,
    },
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) row: SessionRow,
    pub(crate) error: Option<String>,
    pub(crate) attestation: Option<String>,
    pub(crate) command: Option<String>,
    pub(crate) room: Option<String>,
}

/// The key under which an answer is remembered. Lengths are hashed too, so `("a", "bc")` and
/// `("ab", "c")` differ.
pub(crate) fn idempotency_id(scope: &str, key: &str) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    hash.update(&(scope.len() as u64).to_be_bytes()).update(scope.as_bytes());
    hash.update(key.as_bytes());
    *hash.finalize().as_bytes()
}

/// # Errors
///
/// [`StoreError::Other`] if an agent cannot be written as JSON, if a name contains a secret, or if
/// records have more or fewer changes than events.
pub(crate) fn prepare(commit: Commit, redactor: &Redactor) -> Result<Prepared, StoreError> {
    // Rows and events have a fixed part; an estimate is enough for a bound.
    let mut bytes = 64 * commit.guards.len();
    let mut events = Vec::with_capacity(commit.events.len());
    for event in commit.events {
        let event = prepare_event(event, redactor);
        bytes += 160 + event.payload.len();
        events.push(event);
    }
    let mut changes = Vec::with_capacity(commit.changes.len());
    let mut sums = Sums::default();
    for change in commit.changes {
        let (change, size) = prepare_change(change, redactor)?;
        bytes += 256 + size;
        if let Write::Budget(change) = &change {
            sums.note(change);
        }
        changes.push(change);
    }
    let told = events.iter().filter(|event| event.stream == StreamId::Records).count();
    let written = changes.iter().filter(|change| matches!(change, Write::Record(_))).count();
    if told != written {
        return Err(StoreError::Other {
            attempt: "writing records".into(),
            detail: format!("{written} changes have {told} events: each needs one of its own"),
        });
    }
    changes.extend(sums.writes().map(|sum| Write::Budget(Box::new(sum))));
    Ok(Prepared { guards: commit.guards, events, changes, bytes })
}

pub(crate) fn prepare_event(event: NewEvent, redactor: &Redactor) -> Event {
    let NewEvent { stream, kind, ts, mut payload } = event;
    redactor.record(&mut payload);
    Event { stream, kind, ts, payload: json_text(&payload) }
}

/// Writes a value as JSON. It is faster than `Display`, which uses a formatter for each piece.
pub(crate) fn json_text(value: &Value) -> String {
    serde_json::to_string(value).expect("a value is JSON")
}

fn prepare_change(change: Change, redactor: &Redactor) -> Result<(Write, usize), StoreError> {
    let masked = |mut value: Value| {
        redactor.value(&mut value);
        json_text(&value)
    };
    Ok(match change {
        Change::AgentPut(mut agent) => {
            redactor.text(&mut agent.spec.name);
            redactor.text(&mut agent.spec.role);
            let spec = serde_json::to_string(&agent.spec).map_err(|err| StoreError::Other {
                attempt: format!("writing agent {} as JSON", agent.id),
                detail: err.to_string(),
            })?;
            let size = spec.len();
            (Write::AgentPut { agent, spec }, size)
        }
        Change::SessionInsert(row) => {
            let (session, size) = prepare_session(*row, redactor);
            (Write::SessionInsert(session), size)
        }
        Change::SessionUpdate(row) => {
            let (session, size) = prepare_session(*row, redactor);
            (Write::SessionUpdate(session), size)
        }
        Change::StepPut(mut row) => {
            redactor.option(&mut row.error);
            let input = masked(row.input.take());
            let output = row.output.take().map(masked);
            let size = input.len() + len(output.as_deref()) + len(row.error.as_deref());
            (Write::StepPut { row, input, output }, size)
        }
        Change::InboxPut(mut item) => {
            redactor.text(&mut item.title);
            redactor.text(&mut item.agent_name);
            redactor.option(&mut item.answered_by);
            redactor.option(&mut item.answer);
            let details = masked(item.details.take());
            let size = item.title.len() + details.len() + len(item.answer.as_deref());
            (Write::InboxPut { item, details }, size)
        }
        Change::MemoryInsert { mut item, key } => {
            redactor.text(&mut item.text);
            redactor.text(&mut item.provenance.author);
            redactor.option(&mut item.provenance.event);
            let metadata = masked(item.metadata.take());
            let vector = little_endian(&std::mem::take(&mut item.embedding));
            let size = item.text.len() + metadata.len() + vector.len();
            (Write::MemoryInsert { item, metadata, vector, key }, size)
        }
        Change::MemoryDelete(id) => (Write::MemoryDelete(id), 0),
        Change::MemoryEmbed { id, model, vector } => {
            let vector = little_endian(&vector);
            let size = vector.len();
            (Write::MemoryEmbed { id, model, vector }, size)
        }
        Change::ApiKeyPut(key) => (Write::ApiKeyPut(key), 0),
        Change::SettingPut { key, value, at } => {
            let value = masked(value);
            let size = value.len();
            (Write::SettingPut { key, value, at }, size)
        }
        Change::SettingDelete { key } => (Write::SettingDelete { key }, 0),
        Change::AttestationPut(attested) => {
            let digest = attested.digest.clone();
            let at = attested.attestation.at;
            // A record with a mask in it is no longer the one that was signed, and verification
            // reports that. Hiding the secret is more important.
            let mut record = serde_json::to_value(&*attested).map_err(|err| StoreError::Other {
                attempt: format!("writing attestation {digest} as JSON"),
                detail: err.to_string(),
            })?;
            redactor.record(&mut record);
            let record = json_text(&record);
            let size = record.len();
            (Write::AttestationPut { digest, at, record }, size)
        }
        Change::HivePut { hive, name, seen_at } => (Write::HivePut { hive, name, seen_at }, 0),
        Change::IdempotencyPut { scope, key, answer, at } => {
            let id = idempotency_id(&scope, &key);
            (Write::IdempotencyPut { id, scope, answer, at }, 0)
        }
        Change::Vault(change) => {
            let (change, size) = vault::prepare(change, redactor);
            (Write::Vault(change), size)
        }
        Change::Record(change) => {
            let (change, size) = records::prepare(*change, redactor)?;
            (Write::Record(change), size)
        }
        Change::Budget(change) => {
            let (write, size) = crate::budgets::prepare(*change, redactor);
            (Write::Budget(Box::new(write)), size)
        }
        Change::BoardPut(mut entry) => {
            redactor.option(&mut entry.workflow);
            let value = masked(entry.value.take());
            let size = value.len();
            (Write::BoardPut { entry, value }, size)
        }
        Change::BoardDelete { colony, key } => (Write::BoardDelete { colony, key }, 0),
        Change::LetterInsert(mut letter) => {
            redactor.text(&mut letter.kind);
            redactor.option(&mut letter.workflow);
            redactor.option(&mut letter.reply_to);
            let payload = masked(letter.payload.take());
            let size = payload.len();
            (Write::LetterInsert { letter, payload }, size)
        }
        Change::LetterMark { to, id, mark, expires_at } => {
            (Write::LetterMark { to, id, mark, expires_at }, 0)
        }
        Change::LetterDelete { to, id } => (Write::LetterDelete { to, id }, 0),
        Change::SubscriptionPut(subscription) => {
            let line = Value::from(subscription.line.clone()).to_string();
            let size = line.len();
            (Write::SubscriptionPut { subscription, line }, size)
        }
        Change::SubscriptionDelete(id) => (Write::SubscriptionDelete(id), 0),
        Change::RegistrationPut(registration) => {
            let capabilities = masked(Value::from(registration.capabilities.clone()));
            let size = capabilities.len();
            (Write::RegistrationPut { registration, capabilities }, size)
        }
        Change::ArtifactPut(mut artifact) => {
            let mut name = artifact.name.to_string();
            redactor.text(&mut name);
            if name != artifact.name.as_str() {
                // A masked name would be another name, and the event would differ from both.
                return Err(StoreError::Other {
                    attempt: "keeping an artifact".into(),
                    detail: "its name holds a secret".into(),
                });
            }
            redactor.text(&mut artifact.media_type);
            redactor.text(&mut artifact.author);
            let size = name.len() + artifact.media_type.len() + artifact.author.len();
            (Write::ArtifactPut(artifact), size)
        }
        Change::ArtifactDelete { session, name } => (Write::ArtifactDelete { session, name }, 0),
    })
}

fn prepare_session(mut row: SessionRow, redactor: &Redactor) -> (Box<Session>, usize) {
    redactor.text(&mut row.task);
    redactor.option(&mut row.prompt);
    redactor.option(&mut row.final_answer);
    let error = row.error.take().map(|mut error| {
        redactor.value(&mut error);
        error.to_string()
    });
    let attestation = row
        .attestation
        .as_ref()
        .map(|attestation| serde_json::to_string(attestation).expect("plain data has a JSON form"));
    let size = row.task.len()
        + len(row.prompt.as_deref())
        + len(row.final_answer.as_deref())
        + len(error.as_deref());
    let command = row
        .command
        .as_ref()
        .map(|command| serde_json::to_string(command).expect("plain data has a JSON form"));
    let room = row.room.as_ref().map(|room| {
        let mut room = serde_json::to_value(room).expect("plain data has a JSON form");
        redactor.record(&mut room);
        room.to_string()
    });
    let size = size + len(room.as_deref());
    (Box::new(Session { row, error, attestation, command, room }), size)
}

fn little_endian(numbers: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 * numbers.len());
    for number in numbers {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes
}

fn len(text: Option<&str>) -> usize {
    text.map_or(0, str::len)
}
