//! The caller of the engine, and its permissions.

use overmind_core::ids::{ApiKeyId, ColonyId, SessionId};
use overmind_core::row::Role;
use overmind_core::trace::Traceparent;

use crate::error::EngineError;

/// An authenticated identity. Only [`crate::Engine::authenticate`] and the tests make one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// `admin`, the name of an API key, or a session's id. Stands in the audit log.
    pub name: String,
    pub rights: Rights,
    /// The span in which it calls, if it gave one.
    pub trace: Option<Traceparent>,
    /// It acts for a caller who may run programs on the host: a run without a sandbox.
    pub on_host: bool,
    /// The API key that it called with. A later key of that name is another caller.
    pub key: Option<ApiKeyId>,
    /// It starts children of this session in its name, which may begin where that one works.
    pub child_of: Option<SessionId>,
    /// The colony in which names are looked up and new objects are made.
    pub colony: ColonyId,
    /// Whether lists contain the objects of every colony that it may reach.
    pub all: bool,
    /// The only colony that it reaches, also by ids. `None`: every colony.
    pub wall: Option<ColonyId>,
}

/// The colonies whose objects a list contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    All,
    One(ColonyId),
}

impl Sight {
    /// As a condition of a list: `None` for all colonies.
    pub fn only(self) -> Option<ColonyId> {
        match self {
            Self::All => None,
            Self::One(colony) => Some(colony),
        }
    }

    pub fn sees(self, colony: ColonyId) -> bool {
        self.only().is_none_or(|only| only == colony)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rights {
    Role(Role),
    /// A session's own token: it calls its own tools, reads itself and the sessions below it, and
    /// starts and ends such as its agent may.
    Session {
        session: SessionId,
        epoch: u32,
    },
    /// A part of the server that acts on its own. No caller can sign in as one: its name is reserved.
    System(Part),
}

/// A part of the server that acts on its own, with the rights that its work needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Changes the actual state to the declared one, and removes objects without an owner. Its runs
    /// have the rights of the author of the record.
    Reconcilers,
    /// Starts a run for a message to an agent, which may run on the host: the sender's rights are
    /// checked before.
    Dispatcher,
}

impl Part {
    /// The name in the audit log; no API key may have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reconcilers => "system",
            Self::Dispatcher => "postmaster",
        }
    }

    const fn role(self) -> Role {
        match self {
            Self::Reconcilers => Role::Admin,
            Self::Dispatcher => Role::Operator,
        }
    }
}

impl Caller {
    /// The holder of the data directory.
    pub fn admin() -> Self {
        Self::new("admin", Rights::Role(Role::Admin))
    }

    /// A part of the server that acts on its own.
    pub(crate) fn system(part: Part) -> Self {
        let on_host = part == Part::Dispatcher;
        Self { on_host, ..Self::new(part.name(), Rights::System(part)) }
    }

    /// The caller's role; a run's own token has none.
    pub fn role(&self) -> Option<Role> {
        match self.rights {
            Rights::Role(role) => Some(role),
            Rights::System(part) => Some(part.role()),
            Rights::Session { .. } => None,
        }
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.role() == Some(Role::Admin)
    }

    pub fn new(name: impl Into<String>, rights: Rights) -> Self {
        Self {
            name: name.into(),
            rights,
            trace: None,
            on_host: false,
            key: None,
            child_of: None,
            colony: ColonyId::DEFAULT,
            all: false,
            wall: None,
        }
    }

    /// The same caller, in this colony and no other.
    pub(crate) fn within(self, colony: ColonyId) -> Self {
        Self { colony, all: false, wall: Some(colony), ..self }
    }

    /// The colonies whose objects it is shown in lists.
    pub fn sight(&self) -> Sight {
        match self.wall {
            Some(wall) => Sight::One(wall),
            None if self.all => Sight::All,
            None => Sight::One(self.colony),
        }
    }

    /// Whether it may reach objects of this colony by their ids.
    pub fn reaches(&self, colony: ColonyId) -> bool {
        self.wall.is_none_or(|wall| wall == colony)
    }

    /// The scope of its Idempotency-Keys for this kind of things.
    pub(crate) fn repeats(&self, things: &str) -> String {
        let things = match self.colony {
            ColonyId::DEFAULT => things.to_owned(),
            colony => format!("{colony}/{things}"),
        };
        match self.key {
            Some(key) => format!("{}/{key}/{things}", self.name),
            None => format!("{}/{things}", self.name),
        }
    }

    /// Refuses callers below `least`, and all sessions.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub fn require(&self, least: Role) -> Result<(), EngineError> {
        match self.role() {
            Some(role) if role >= least => Ok(()),
            Some(role) => Err(EngineError::Forbidden {
                message: format!(
                    "`{}` has the role {}; this needs {}",
                    self.name,
                    role.as_str(),
                    least.as_str()
                ),
            }),
            None => Err(EngineError::Forbidden {
                message: format!("a session's token cannot do this; it needs {}", least.as_str()),
            }),
        }
    }

    /// Refuses callers who may not run programs on the host itself, without a sandbox, or in its
    /// directories: all but admins, and runs that they started there.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub(crate) fn require_host(&self, what: &str) -> Result<(), EngineError> {
        if self.on_host || self.is_admin() {
            return Ok(());
        }
        Err(EngineError::Forbidden {
            message: format!(
                "only an admin may {what}: all others must use a sandbox (`--sandbox namespace`)"
            ),
        })
    }

    /// Refuses callers who may not call models.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub(crate) fn require_models(&self) -> Result<(), EngineError> {
        match self.rights {
            Rights::Role(Role::Model) => Ok(()),
            Rights::Role(_) | Rights::System(_) | Rights::Session { .. } => {
                self.require(Role::Operator)
            }
        }
    }

    /// Refuses callers below `least`, and sessions other than `session`.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub fn require_for(&self, least: Role, session: SessionId) -> Result<(), EngineError> {
        match &self.rights {
            Rights::Session { session: own, .. } if *own == session => Ok(()),
            Rights::Session { .. } => Err(EngineError::Forbidden {
                message: "a run's token may do this for that run only".into(),
            }),
            Rights::Role(_) | Rights::System(_) => self.require(least),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ColonyId = ColonyId::from_u128(1);
    const B: ColonyId = ColonyId::from_u128(2);

    #[test]
    fn a_bound_caller_sees_and_reaches_one_colony_whatever_it_asks_for() {
        let free = Caller { colony: A, ..Caller::admin() };
        assert_eq!(free.sight(), Sight::One(A));
        assert!(free.reaches(B), "its ids reach every colony");
        assert_eq!(Caller { all: true, ..free.clone() }.sight(), Sight::All);
        let bound = free.within(A);
        for bound in [Caller { all: true, ..bound.clone() }, Caller { colony: B, ..bound }] {
            assert_eq!(bound.sight(), Sight::One(A));
            assert!(bound.reaches(A) && !bound.reaches(B));
        }
        assert!(Sight::All.sees(B) && !Sight::One(A).sees(B));
    }

    #[test]
    fn a_repeated_request_in_another_colony_is_another_request() {
        let by = Caller::admin();
        assert_eq!(by.repeats("runs"), "admin/runs");
        assert_ne!(Caller { colony: B, ..by.clone() }.repeats("runs"), by.repeats("runs"));
    }
}
