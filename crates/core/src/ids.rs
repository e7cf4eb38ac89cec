//! Typed ids, each with a prefix in its text form. Ids of different types cannot be mixed.
//!
//! An id is a UUIDv7, so ids sort by the time of their creation. Ids of things that a session
//! decides (steps, effects, approvals) are *derived* from the session and a counter, so that a
//! replay of the session's log produces the same ids.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

/// A source of new ids. The engine gets one; tests use a seeded one.
pub trait IdSource: Send + Sync + fmt::Debug {
    /// Returns a value that was never returned before, in UUIDv7 layout.
    fn next(&self) -> u128;
}

/// Why a text is not an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("`{given}` is not a `{wanted}_…` id")]
    Prefix { given: String, wanted: &'static str },
    #[error("`{given}` is not an id: `{wanted}_` needs 32 hexadecimal digits after it")]
    Digits { given: String, wanted: &'static str },
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// The prefix of this id's text form, without the underscore.
            pub const PREFIX: &'static str = $prefix;

            pub fn mint(source: &dyn IdSource) -> Self {
                Self(Uuid::from_u128(source.next()))
            }

            pub const fn from_u128(raw: u128) -> Self {
                Self(Uuid::from_u128(raw))
            }

            pub const fn as_u128(self) -> u128 {
                self.0.as_u128()
            }

            /// Writes the text form into `place`, without allocation, because ids are written very
            /// often.
            fn text<'a>(&self, place: &'a mut [u8; concat!($prefix, "_").len() + 32]) -> &'a str {
                let (before, digits) = place.split_at_mut(concat!($prefix, "_").len());
                before.copy_from_slice(concat!($prefix, "_").as_bytes());
                self.0.simple().encode_lower(digits);
                std::str::from_utf8(place).expect("a prefix and hexadecimal digits")
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.text(&mut [0; _]))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                // Echoed text is bounded, because it came from outside.
                let given = || text.chars().take(64).collect::<String>();
                let Some(digits) = text.strip_prefix(concat!($prefix, "_")) else {
                    return Err(IdError::Prefix { given: given(), wanted: $prefix });
                };
                // `Uuid` also parses braces, URNs and dashes; one spelling is enough.
                let plain = digits.len() == 32
                    && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
                match Uuid::try_parse(digits) {
                    Ok(id) if plain => Ok(Self(id)),
                    Ok(_) | Err(_) => Err(IdError::Digits { given: given(), wanted: $prefix }),
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.text(&mut [0; _]))
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

ids! {
    /// A versioned definition of an agent.
    AgentId = "agt";
    /// A request for a human's approval of an action.
    ApprovalId = "apr";
    /// A named API key.
    ApiKeyId = "key";
    /// One call of a model, from any source.
    CallId = "call";
    /// A namespace to which every resource belongs.
    ColonyId = "col";
    /// An effect: a tool call or a model call.
    EffectId = "eff";
    /// A machine that runs sessions (node).
    HiveId = "hive";
    /// An item of the inbox. The item of an approval has the approval's digits.
    InboxId = "inb";
    /// A limit of a budget, derived from its scope and period.
    LimitId = "lim";
    /// One message to an agent. A published event has the same id for all recipients.
    LetterId = "msg";
    /// One item of the memory.
    MemoryId = "mem";
    /// One resource. Never reused, even if its name is.
    RecordId = "rec";
    /// One run of an agent. Never reused.
    SessionId = "ses";
    /// One step of a session.
    StepId = "stp";
    /// An agent's subscription to topics.
    SubscriptionId = "sub";
}

macro_rules! derived {
    ($($name:ident $tag:literal),*) => {$(
        impl $name {
            /// Returns the id of the `n`-th object of its kind in `session`. It is the same in
            /// every replay.
            pub fn derive(session: SessionId, n: u64) -> Self {
                let mut hash = blake3::Hasher::new();
                hash.update($tag).update(&session.as_u128().to_be_bytes()).update(&n.to_be_bytes());
                let mut raw = [0_u8; 16];
                raw.copy_from_slice(&hash.finalize().as_bytes()[..16]);
                // Version 8 of RFC 9562: a UUID whose bits have the maker's own meaning.
                Self(uuid::Builder::from_custom_bytes(raw).into_uuid())
            }
        }
    )*};
}
derived!(StepId b"step", EffectId b"effect", ApprovalId b"approval", InboxId b"question");

impl ColonyId {
    /// The colony of all objects that name none.
    pub const DEFAULT: Self = Self::from_u128(0x0000_0000_0000_7000_8000_0000_0000_0001);

    /// The name of [`ColonyId::DEFAULT`].
    pub const DEFAULT_NAME: &'static str = "default";
}

impl HiveId {
    /// The hive inside the Cortex's own process, in a server without other hives.
    pub const LOCAL: Self = Self::from_u128(0x0000_0000_0000_7000_8000_0000_0000_0001);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_parsed_back_and_kinds_of_ids_are_distinct() {
        let id = SessionId::from_u128(0x0190_0000_0000_7000_8000_0000_0000_00ff);
        assert_eq!(id.to_string(), "ses_019000000000700080000000000000ff");
        assert_eq!(id.to_string().parse(), Ok(id));
        let err = id.to_string().parse::<HiveId>().unwrap_err();
        assert_eq!(err.to_string(), "`ses_019000000000700080000000000000ff` is not a `hive_…` id");
        for bad in ["ses_", "ses_xyz", "ses_019000000000700080000000000000fF", "", "../x"] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn derived_ids_are_equal_for_equal_inputs_only() {
        let (a, b) = (SessionId::from_u128(1), SessionId::from_u128(2));
        assert_eq!(StepId::derive(a, 0), StepId::derive(a, 0));
        assert_ne!(StepId::derive(a, 0), StepId::derive(a, 1));
        assert_ne!(StepId::derive(a, 0), StepId::derive(b, 0));
        assert_ne!(StepId::derive(a, 0).as_u128(), EffectId::derive(a, 0).as_u128());
    }
}
