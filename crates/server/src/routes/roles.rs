//! The requirements of a route for its caller. Each line of the table of routes names one: it is
//! checked before any handler begins, and written to `docs/roles.md`. The engine checks again what
//! depends on more than the route.

use std::fmt::Write as _;

use overmind_api::ProblemKind;
use overmind_core::row::Role;
use overmind_engine::Caller;

use super::{ROUTES, Route};
use crate::cx::Cx;
use crate::fault::Fault;

/// The requirement of a route for an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// No token at all.
    Anyone,
    Viewer,
    /// A viewer, or the scope `runs`.
    ViewerOrRuns,
    Operator,
    /// An operator, or the scope `runs`.
    OperatorOrRuns,
    /// An operator, or the scope `mcp`.
    OperatorOrMcp,
    Admin,
}

impl Needs {
    /// The least role, beside scopes; `None` where no token is needed.
    const fn least(self) -> Option<Role> {
        match self {
            Self::Anyone => None,
            Self::Viewer | Self::ViewerOrRuns => Some(Role::Viewer),
            Self::Operator | Self::OperatorOrRuns | Self::OperatorOrMcp => Some(Role::Operator),
            Self::Admin => Some(Role::Admin),
        }
    }

    /// Whether a key of this role or scope may call the route.
    fn met_by(self, role: Role) -> bool {
        let Some(least) = self.least() else { return true };
        match role {
            Role::Model => false,
            Role::Mcp => self == Self::OperatorOrMcp,
            Role::Runs => matches!(self, Self::ViewerOrRuns | Self::OperatorOrRuns),
            Role::Viewer | Role::Operator | Role::Admin => role >= least,
        }
    }

    /// In the words of a refusal.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Anyone => "no token",
            Self::Viewer => "viewer",
            Self::ViewerOrRuns => "viewer, or the scope runs",
            Self::Operator => "operator",
            Self::OperatorOrRuns => "operator, or the scope runs",
            Self::OperatorOrMcp => "operator, or the scope mcp",
            Self::Admin => "admin",
        }
    }
}

/// The access of a run's own token through a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    Nothing,
    All,
    /// The run itself only.
    Itself,
    /// The run, and the runs below it.
    Tree,
    /// The runs that it started, and those below them.
    Below,
    /// The permissions of its agent decide.
    AsAgent,
}

impl Own {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "–",
            Self::All => "yes",
            Self::Itself => "itself",
            Self::Tree => "its tree",
            Self::Below => "below it",
            Self::AsAgent => "as its agent may",
        }
    }
}

/// What a route does for a key that is bound to a colony, and for requests that name one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// It is about the whole server. Bound keys may not call it, and the colony of a request does
    /// not matter.
    Swarm,
    /// It is about things of the colony `default` alone: bound keys and requests for another colony
    /// are refused.
    Default,
    /// It reads and changes things of the caller's colony alone.
    Colony,
    /// `{id}` is a run, which must belong to the colony of a bound key.
    Run,
}

impl Of {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Swarm | Self::Default => "–",
            Self::Colony | Self::Run => "its colony",
        }
    }
}

/// Refuses a caller that the route is not for. Which run, which agent, which key of the shared state is
/// the engine's to judge.
///
/// # Errors
///
/// 403.
pub(super) fn check(cx: &Cx, caller: &Caller, route: &Route) -> Result<(), Fault> {
    may_call(caller, route)?;
    match route.of {
        Of::Colony | Of::Run => Ok(()),
        Of::Default => Ok(cx.engine.only_default(caller, &named(route))?),
        Of::Swarm => may_call_of_swarm(cx, caller, route),
    }
}

/// Refuses a key that is bound to a colony; the limits of a run's own token are in another column.
fn may_call_of_swarm(cx: &Cx, caller: &Caller, route: &Route) -> Result<(), Fault> {
    let Some(wall) = caller.wall.filter(|_| caller.role().is_some()) else { return Ok(()) };
    if route.needs == Needs::Anyone {
        return Ok(());
    }
    let text = format!(
        "`{}` is bound to the colony `{}` and cannot do this: {} is about the whole server",
        caller.name,
        cx.engine.colony_name(wall),
        named(route)
    );
    Err(Fault::new(ProblemKind::Forbidden, text))
}

fn named(route: &Route) -> String {
    format!("{} {}", route.method.to_uppercase(), route.path)
}

fn may_call(caller: &Caller, route: &Route) -> Result<(), Fault> {
    let Some(role) = caller.role() else {
        return match route.own {
            Own::Nothing => {
                let method = route.method.to_uppercase();
                let text = format!("a run's own token cannot do this: {method} {}", route.path);
                Err(Fault::new(ProblemKind::Forbidden, text))
            }
            Own::All | Own::Itself | Own::Tree | Own::Below | Own::AsAgent => Ok(()),
        };
    };
    if route.needs.met_by(role) {
        return Ok(());
    }
    let (name, least) = (&caller.name, route.needs.as_str());
    let text = format!("`{name}` has the role {}; this needs {least}", role.as_str());
    Err(Fault::new(ProblemKind::Forbidden, text))
}

/// The roles and scopes, as the columns of the table.
const COLUMNS: [Role; 6] =
    [Role::Viewer, Role::Operator, Role::Admin, Role::Model, Role::Mcp, Role::Runs];

/// `docs/roles.md`.
pub fn roles_document() -> String {
    let mut text = String::from(INTRODUCTION);
    let heads: Vec<&str> = COLUMNS.iter().map(|role| role.as_str()).collect();
    let _ = writeln!(
        text,
        "| route | {} | a run | a bound key |\n|---|{}",
        heads.join(" | "),
        "---|".repeat(8)
    );
    let mut line = |what: &str, may: [bool; 6], of: Of, own: Own| {
        let cells: Vec<&str> = may.iter().map(|may| if *may { "yes" } else { "–" }).collect();
        let _ = writeln!(
            text,
            "| {what} | {} | {} | {} |",
            cells.join(" | "),
            own.as_str(),
            of.as_str()
        );
    };
    for route in ROUTES {
        let what = format!("`{} {}`", route.method.to_uppercase(), route.path);
        line(&what, COLUMNS.map(|role| route.needs.met_by(role)), route.of, route.own);
    }
    line("`/llm/…`", [false, true, true, true, false, false], Of::Colony, Own::AsAgent);
    text
}

const INTRODUCTION: &str = "\
# Roles and scopes

Who may call which route, by the role or the scope of an API key (`overmind key create NAME --role ROLE`, or `--scope SCOPE` for a program that
does one thing). The admin token of the data directory is an admin. This page is made from the table that the server holds
(`crates/server/src/routes/mod.rs`) by `cargo run -q -p overmind-server --example roles > docs/roles.md`; a test tries each line on a server.

| | may |
|---|---|
| `viewer` | read everything but keys, secrets and settings |
| `operator` | also make and change agents and runs, answer questions, call models. Bounded by sandboxes: the level `none`, `--here`, grants of host paths and what they are given to are an admin's |
| `admin` | everything |
| `model` | call models by the gateway (`/llm`), and nothing else |
| `mcp` | call tools by MCP (`/mcp`), and nothing else |
| `runs` | start and end runs, read them and their logs, answer the inbox; not agents, policy, memory, budgets or keys |

The column *a bound key* is for keys that are bound to a [colony](colonies.md) (`--colony NAME`): they reach what their role may, in that
colony alone. All other routes are closed to them.

The column *a run* is a run's own token (`OVERMIND_TOKEN` inside the run). *Its tree*: that run and all runs below it. *Below it*: the runs that it or one of
them started; a run that somebody else started there can be read and not ended. All other runs answer 404. *As its agent may*: as the
[permissions](mesh.md#permissions) of its agent and of all agents above it say, `spawn` for runs and agents.

";
