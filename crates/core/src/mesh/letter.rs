//! Messages (`Letter`): one message or event on its way to one agent.
//!
//! A message is delivered at least once. A reader holds it for some time. If it is not acknowledged
//! by then, it can be read again with the same id, each time a little later. After [`ATTEMPTS`]
//! deliveries it is dead, and kept for a person to examine.

use std::time::Duration;

use serde_json::Value;

use crate::ids::{AgentId, ColonyId, EffectId, LetterId, SessionId};
use crate::time::Timestamp;

/// Maximum number of deliveries of a message before it is dead.
pub const ATTEMPTS: u32 = 5;
/// Time for the first reader to acknowledge.
pub const FIRST_REDELIVERY: Duration = Duration::from_secs(30);
/// Longest time for a reader to acknowledge.
pub const LAST_REDELIVERY: Duration = Duration::from_secs(600);

/// Returns the time for the `attempt`-th reader, counted from 1, to acknowledge. It doubles each
/// time.
pub fn backoff(attempt: u32) -> Duration {
    let doubled = FIRST_REDELIVERY.saturating_mul(1 << attempt.saturating_sub(1).min(16));
    doubled.min(LAST_REDELIVERY)
}

/// The priority that the sender set. It is shown and does not change the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    Low,
    #[default]
    Normal,
    High,
    Urgent,
}

impl Priority {
    pub const ALL: [Self; 4] = [Self::Low, Self::Normal, Self::High, Self::Urgent];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
            Self::Urgent => "urgent",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|priority| priority.as_str() == text)
    }
}

/// Why a message is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dead {
    /// It was delivered [`ATTEMPTS`] times and never acknowledged.
    Unacknowledged,
    /// Its time to live is over.
    Expired,
}

impl Dead {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unacknowledged => "unacknowledged",
            Self::Expired => "expired",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Unacknowledged, Self::Expired].into_iter().find(|why| why.as_str() == text)
    }
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterState {
    /// It can be read.
    Waiting,
    /// Somebody has read it and may still acknowledge it.
    Held,
    Dead(Dead),
}

impl LetterState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Held => "held",
            Self::Dead(_) => "dead",
        }
    }
}

/// The part of a message that changes during its delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LetterMark {
    /// Number of deliveries.
    pub attempts: u32,
    /// Time from which it can be read.
    pub visible_at: Timestamp,
    /// The call that holds it. The session made that call.
    pub holder: Option<EffectId>,
    pub session: Option<SessionId>,
    pub dead: Option<Dead>,
}

impl LetterMark {
    /// Creates the mark of a message that nobody has read.
    pub fn fresh(at: Timestamp) -> Self {
        Self { attempts: 0, visible_at: at, holder: None, session: None, dead: None }
    }

    /// Returns the mark after it is read.
    #[must_use]
    pub fn read(
        self,
        now: Timestamp,
        holder: Option<EffectId>,
        session: Option<SessionId>,
    ) -> Self {
        let attempts = self.attempts + 1;
        Self { attempts, visible_at: now.after(backoff(attempts)), holder, session, dead: None }
    }

    /// Returns the mark after its holder gives it back or a push fails: it can be read after
    /// `wait`.
    #[must_use]
    pub fn given_back(self, now: Timestamp, wait: Duration) -> Self {
        Self { visible_at: now.after(wait), holder: None, session: None, ..self }
    }
}

/// A stored message.
#[derive(Clone, Debug, PartialEq)]
pub struct Letter {
    /// The id, the same in each delivery and for all recipients of an event. Use it to deduplicate.
    pub id: LetterId,
    pub colony: ColonyId,
    pub to: AgentId,
    /// The sender: an agent's name, `admin`, or the name of an API key.
    pub from: String,
    /// The topic of an event.
    pub topic: Option<String>,
    /// The kind that the sender set, such as `task_request` or `query`; `event` for published
    /// events.
    pub kind: String,
    pub payload: Value,
    pub workflow: Option<String>,
    pub reply_to: Option<String>,
    pub priority: Priority,
    pub sent_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub mark: LetterMark,
    /// Its position in the order of arrival, set by the store.
    pub place: u64,
}

impl Letter {
    pub fn state(&self, now: Timestamp) -> LetterState {
        match self.mark.dead {
            Some(why) => LetterState::Dead(why),
            None if self.mark.visible_at > now => LetterState::Held,
            None => LetterState::Waiting,
        }
    }

    /// Returns the next time at which it becomes dead without any action, if there is one.
    pub fn dies_at(&self) -> Option<Timestamp> {
        dies_at(&self.mark, self.expires_at)
    }

    /// Returns how it is dead at `now`, if it is.
    pub fn fate(&self, now: Timestamp) -> Option<Dead> {
        if self.mark.dead.is_some() {
            return None;
        }
        if self.mark.attempts >= ATTEMPTS && self.mark.visible_at <= now {
            return Some(Dead::Unacknowledged);
        }
        (self.expires_at.is_some_and(|at| at <= now)).then_some(Dead::Expired)
    }
}

/// The same as [`Letter::dies_at`].
pub fn dies_at(mark: &LetterMark, expires_at: Option<Timestamp>) -> Option<Timestamp> {
    if mark.dead.is_some() {
        return None;
    }
    let spent = (mark.attempts >= ATTEMPTS).then_some(mark.visible_at);
    match (spent, expires_at) {
        (Some(spent), Some(expires)) => Some(spent.min(expires)),
        (one, other) => one.or(other),
    }
}

/// A selection of an agent's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterFilter {
    /// Messages that can be read at this time and are not dead.
    Readable(Timestamp),
    /// All messages that are not dead.
    Living,
    /// Messages that this session has read and not acknowledged.
    HeldBy(SessionId),
    Dead,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(expires_at: Option<Timestamp>) -> Letter {
        Letter {
            id: LetterId::from_u128(1),
            colony: ColonyId::DEFAULT,
            to: AgentId::from_u128(2),
            from: "a".into(),
            topic: None,
            kind: "query".into(),
            payload: Value::Null,
            workflow: None,
            reply_to: None,
            priority: Priority::Normal,
            sent_at: Timestamp::from_micros(0),
            expires_at,
            mark: LetterMark::fresh(Timestamp::from_micros(0)),
            place: 0,
        }
    }

    #[test]
    fn an_unacknowledged_message_is_redelivered_with_growing_delays_and_then_dies() {
        let mut letter = letter(None);
        let mut now = Timestamp::from_micros(0);
        let mut waits = Vec::new();
        while letter.fate(now).is_none() {
            assert_eq!(letter.state(now), LetterState::Waiting);
            letter.mark = letter.mark.read(now, None, None);
            assert_eq!(letter.state(now), LetterState::Held);
            waits.push((letter.mark.visible_at.as_micros() - now.as_micros()) / 1_000_000);
            now = letter.mark.visible_at;
        }
        assert_eq!(waits, [30, 60, 120, 240, 480]);
        assert_eq!(letter.fate(now), Some(Dead::Unacknowledged));
        assert_eq!(letter.dies_at(), Some(now));
        assert_eq!(backoff(u32::MAX), LAST_REDELIVERY);
    }

    #[test]
    fn an_expired_message_is_dead_even_while_it_is_delivered() {
        let at = Timestamp::from_micros(5_000_000);
        let mut letter = letter(Some(at));
        assert_eq!(letter.fate(Timestamp::from_micros(4_999_999)), None);
        letter.mark = letter.mark.read(Timestamp::from_micros(1), None, None);
        assert_eq!((letter.fate(at), letter.dies_at()), (Some(Dead::Expired), Some(at)));
        letter.mark.dead = Some(Dead::Expired);
        assert_eq!((letter.fate(at), letter.dies_at()), (None, None));
    }
}
