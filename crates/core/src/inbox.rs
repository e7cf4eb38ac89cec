//! The inbox: approvals, questions, budget requests (`Raise`) and undecided work, as one type.
//!
//! An [`InboxItem`] is a projection. When a session starts to wait, the same commit writes one open
//! item, and the commit that ends the wait closes it. So there is one list of everything that
//! waits, and the first answer from any client closes an item.
//!
//! [`Waiting`] is the session's part: what it waits for. The pure state machine decides it, so it
//! is the same in every replay. Where to start: [`crate::session::Session::waiting`].
//!
//! A budget request (see [`crate::budget`]) comes from a session that the limit stopped. A warning
//! that a soft limit was reached has the same kind, but no session waits for it.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use crate::ids::{AgentId, ColonyId, InboxId, RecordId, SessionId};
use crate::session::Input;
use crate::time::Timestamp;

/// Longest title, in characters.
const TITLE: usize = 200;
/// Largest arguments that an item contains in full, in bytes of JSON. In larger ones, each text is
/// shortened.
const ARGS_WHOLE: usize = 32 << 10;
/// Longest text in shortened arguments, in characters.
const ARG_CUT: usize = 2_000;

/// The answer that refuses a budget request and ends the session. Every other answer lets it try
/// again.
pub const DENY: &str = "deny";

/// The kind of answer that an item needs from a human.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InboxKind {
    /// Consent to one action.
    Approval,
    /// A text that answers a question.
    Question,
    /// A higher limit.
    Raise,
    /// A decision about the work of a run that nobody watched: see [`crate::session::left`].
    Work,
}

impl InboxKind {
    pub const ALL: [Self; 4] = [Self::Approval, Self::Question, Self::Raise, Self::Work];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::Question => "question",
            Self::Raise => "raise",
            Self::Work => "work",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// The state of an item. Only open items can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InboxState {
    Open,
    Approved,
    Denied,
    Answered,
    /// It was approved too late. The approval is requested again, as another item.
    Expired,
    /// The session that created it has ended, so no answer is needed.
    Withdrawn,
}

impl InboxState {
    pub const ALL: [Self; 6] =
        [Self::Open, Self::Approved, Self::Denied, Self::Answered, Self::Expired, Self::Withdrawn];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Answered => "answered",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// A request or warning for a human.
#[derive(Clone, Debug, PartialEq)]
pub struct InboxItem {
    pub id: InboxId,
    pub colony: ColonyId,
    /// The session that waits; `None` if there is none.
    pub session: Option<SessionId>,
    /// The record, such as a fleet, that owns the session and for which the item was created.
    pub owner: Option<RecordId>,
    pub agent: Option<AgentId>,
    /// The agent's name at the time of the request; empty if there is no agent.
    pub agent_name: String,
    /// The session's epoch at the time of the request.
    pub epoch: u32,
    pub kind: InboxKind,
    pub state: InboxState,
    /// A one-line summary, at most 200 characters.
    pub title: String,
    /// An object. For an approval: the fields of `approval.requested`, with `prompt`, `sandbox` and
    /// `workspace`. Arguments above 32 KiB are shortened, and `args_cut` is then true. For a
    /// question: `prompt`, `reason` and `step_id`.
    pub details: Value,
    /// Group key. Items with the same key may be shown and answered together.
    pub group: Option<String>,
    pub asked_at: Timestamp,
    /// Time after which an approval is too late.
    pub expires_at: Option<Timestamp>,
    /// Time at which it was closed.
    pub answered_at: Option<Timestamp>,
    /// Who closed it.
    pub answered_by: Option<String>,
    /// The text of the answer, or the reason given with a decision.
    pub answer: Option<String>,
    /// Position of its last change in the order of all commits. Writers set 0; the store fills it
    /// in.
    pub changed: u64,
}

impl InboxItem {
    /// Creates an open item without session, agent, group and expiry.
    pub fn open(
        id: InboxId,
        colony: ColonyId,
        kind: InboxKind,
        title: String,
        details: Value,
        asked_at: Timestamp,
    ) -> Self {
        Self {
            id,
            colony,
            session: None,
            owner: None,
            agent: None,
            agent_name: String::new(),
            epoch: 0,
            kind,
            state: InboxState::Open,
            title,
            details,
            group: None,
            asked_at,
            expires_at: None,
            answered_at: None,
            answered_by: None,
            answer: None,
            changed: 0,
        }
    }

    /// Returns the item as closed by `input`. `now` is the commit's time.
    #[must_use]
    pub fn closed_by(self, input: &Input, now: Timestamp) -> Self {
        let late = self.expires_at.is_some_and(|at| now >= at);
        let (state, by, answer) = match input {
            Input::Answered { message, by, .. } => {
                let state = match self.kind {
                    InboxKind::Approval | InboxKind::Question | InboxKind::Work => {
                        InboxState::Answered
                    }
                    InboxKind::Raise if message.trim() == DENY => InboxState::Denied,
                    InboxKind::Raise => InboxState::Approved,
                };
                (state, by, Some(message))
            }
            Input::Decided { approve: true, by, reason, .. } => {
                let state = if late { InboxState::Expired } else { InboxState::Approved };
                (state, by, reason.as_ref())
            }
            Input::Decided { approve: false, by, reason, .. } => {
                (InboxState::Denied, by, reason.as_ref())
            }
            Input::Canceled { by, reason: _ } => (InboxState::Withdrawn, by, None),
            // None of these ends a wait today; an item never stays open without its session.
            Input::Started { .. }
            | Input::Recovered { .. }
            | Input::ToolDone { .. }
            | Input::ModelDone { .. }
            | Input::Judged { .. }
            | Input::Bound { .. }
            | Input::TimeLimit
            | Input::Told { .. }
            | Input::Restored { .. }
            | Input::Life(_)
            | Input::Room(_)
            | Input::Forked
            | Input::HandedOver { .. } => {
                let (answered_at, state) = (Some(now), InboxState::Withdrawn);
                return Self { state, answered_at, ..self };
            }
        };
        let (by, answer) = (Some(by.clone()), answer.cloned());
        Self { state, answered_at: Some(now), answered_by: by, answer, ..self }
    }

    /// Returns its position in a list.
    pub fn cursor(&self) -> InboxCursor {
        InboxCursor { asked_at: self.asked_at, id: self.id }
    }

    /// Returns a text field of the details.
    pub fn detail(&self, key: &str) -> Option<&str> {
        self.details.get(key).and_then(Value::as_str)
    }
}

/// A position in a list of items, newest first. An id alone does not say when an item was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InboxCursor {
    pub asked_at: Timestamp,
    pub id: InboxId,
}

impl fmt::Display for InboxCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{:032x}", self.asked_at.as_micros(), self.id.as_u128())
    }
}

/// The error for a text that is not a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor of the inbox")]
pub struct CursorError;

impl FromStr for InboxCursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let (micros, id) = text.split_once('_').ok_or(CursorError)?;
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
        if !digits(id) || id.len() != 32 || !micros.bytes().all(|b| b.is_ascii_digit()) {
            return Err(CursorError);
        }
        let micros = micros.parse().map_err(|_| CursorError)?;
        let id = u128::from_str_radix(id, 16).map_err(|_| CursorError)?;
        Ok(Self { asked_at: Timestamp::from_micros(micros), id: InboxId::from_u128(id) })
    }
}

/// The conditions of a list of items. All that are given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboxFilter {
    pub colony: Option<ColonyId>,
    pub state: Option<InboxState>,
    pub kind: Option<InboxKind>,
    pub session: Option<SessionId>,
    pub group: Option<String>,
}

/// Numbers of open items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InboxCounts {
    pub approvals: u64,
    pub questions: u64,
    pub raises: u64,
    pub works: u64,
}

impl InboxCounts {
    pub fn total(self) -> u64 {
        self.approvals + self.questions + self.raises + self.works
    }
}

/// The request of a session to a person.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    pub id: InboxId,
    pub kind: InboxKind,
    pub title: String,
    pub details: Value,
    pub group: Option<String>,
    pub asked_at: Timestamp,
    pub expires_at: Option<Timestamp>,
}

/// Returns a text as one line, shortened to the length of a title.
pub fn title(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        // More than enough; what a word is has no bound.
        if line.len() > 4 * TITLE {
            break;
        }
    }
    match line.char_indices().nth(TITLE) {
        Some(_) => {
            let kept: String = line.chars().take(TITLE - 1).collect();
            format!("{kept}…")
        }
        None => line,
    }
}

/// Returns the arguments as an item shows them, and whether they were shortened.
pub(crate) fn shown_args(args: &Value) -> (Value, bool) {
    fn cut(value: &Value) -> Value {
        match value {
            Value::String(text) => match text.char_indices().nth(ARG_CUT) {
                Some((end, _)) => {
                    let left = text[end..].chars().count();
                    Value::String(format!("{}… ({left} more characters)", &text[..end]))
                }
                None => value.clone(),
            },
            // Long lists and nested values are text first: their parts may be short and many.
            Value::Array(_) | Value::Object(_) => cut(&Value::String(value.to_string())),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }
    if args.to_string().len() <= ARGS_WHOLE {
        return (args.clone(), false);
    }
    match args {
        Value::Object(map) if map.len() <= 16 => {
            (map.iter().map(|(key, value)| (key.clone(), cut(value))).collect(), true)
        }
        other => (cut(other), true),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item() -> InboxItem {
        let session = SessionId::from_u128(1);
        InboxItem {
            id: InboxId::derive(session, 0),
            colony: ColonyId::DEFAULT,
            session: Some(session),
            owner: None,
            agent: None,
            agent_name: "coder".into(),
            epoch: 1,
            kind: InboxKind::Approval,
            state: InboxState::Open,
            title: "run_shell: ls".into(),
            details: json!({}),
            group: None,
            asked_at: Timestamp::from_micros(5),
            expires_at: Some(Timestamp::from_micros(10)),
            answered_at: None,
            answered_by: None,
            answer: None,
            changed: 0,
        }
    }

    fn decided(approve: bool) -> Input {
        Input::Decided {
            approval: crate::ids::ApprovalId::from_u128(1),
            approve,
            reason: Some("why".into()),
            by: "ann".into(),
            epoch: 2,
            hive: crate::ids::HiveId::LOCAL,
        }
    }

    #[test]
    fn the_event_that_closes_an_item_decides_its_status() {
        let (early, late) = (Timestamp::from_micros(9), Timestamp::from_micros(10));
        let cases = [
            (decided(true), early, InboxState::Approved),
            (decided(true), late, InboxState::Expired),
            (decided(false), late, InboxState::Denied),
            (Input::Canceled { by: "ann".into(), reason: None }, early, InboxState::Withdrawn),
        ];
        for (input, now, state) in cases {
            let closed = item().closed_by(&input, now);
            assert_eq!((closed.state, closed.answered_at), (state, Some(now)), "{input:?}");
            assert_eq!(closed.answered_by.as_deref(), Some("ann"));
        }
    }

    #[test]
    fn only_valid_cursor_texts_are_parsed() {
        let cursor = item().cursor();
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for bad in ["", "5", "5_", "_0", "-5_00000000000000000000000000000001", "5_+1", "5_1"] {
            assert_eq!(bad.parse::<InboxCursor>(), Err(CursorError), "{bad}");
        }
    }

    #[test]
    fn a_title_is_one_short_line() {
        assert_eq!(title(" a\n\tb \r\n c "), "a b c");
        let long = title(&"é ".repeat(500));
        assert_eq!(long.chars().count(), TITLE);
        assert!(long.ends_with('…'));
        assert_eq!(title(&"x".repeat(TITLE)).chars().count(), TITLE);
    }

    #[test]
    fn long_arguments_are_truncated_with_a_note() {
        let args = json!({"path": "a", "content": "é".repeat(40_000)});
        let (shown, cut) = shown_args(&args);
        assert!(cut);
        assert_eq!(shown["path"], "a");
        assert!(shown["content"].as_str().unwrap().ends_with("… (38000 more characters)"));
        assert!(shown.to_string().len() < ARGS_WHOLE);
        let (same, cut) = shown_args(&json!({"n": 1}));
        assert_eq!((same, cut), (json!({"n": 1}), false));
        let many: Value = (0..20_000).map(|n| (format!("k{n}"), json!(n))).collect();
        assert!(shown_args(&many).0.to_string().len() < ARGS_WHOLE);
    }

    #[test]
    fn words_are_parsed_back() {
        for state in InboxState::ALL {
            assert_eq!(InboxState::parse(state.as_str()), Some(state));
        }
        for kind in InboxKind::ALL {
            assert_eq!(InboxKind::parse(kind.as_str()), Some(kind));
        }
    }
}
