//! Which role or scope a route takes: said here once, held before any handler begins, and written to
//! `docs/roles.md`. The engine asks again, for what depends on more than the route.

use std::fmt::Write as _;

use overmind_api::ProblemKind;
use overmind_core::row::Role;
use overmind_engine::{Caller, Rights};

use super::ROUTES;
use crate::fault::Fault;

/// What a route asks of an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// No token at all.
    Nothing,
    /// This role, or one above it.
    Role(Role),
    /// As an operator, and the scope `runs`.
    Runs,
    /// As an operator, and the scope `mcp`.
    Mcp,
}

/// Routes that read and are not for viewers.
const READ_BY_MORE: &[(&str, Role)] = &[
    ("/api/keys", Role::Admin),
    ("/api/settings/{name}", Role::Admin),
    ("/api/vault/secrets", Role::Admin),
    ("/api/rooms/leaks", Role::Operator),
    ("/api/projects/trust", Role::Admin),
];

/// Routes that change something and are for admins alone, by how their paths begin.
const CHANGED_BY_ADMINS: &[&str] = &[
    "/api/backup",
    "/api/budgets",
    "/api/keys",
    "/api/loops/",
    "/api/memory/reembed",
    "/api/projects/",
    "/api/prune",
    "/api/rooms/fix",
    "/api/settings/",
    "/api/vault",
    "/mesh/permissions/",
];

/// Routes that the scope `runs` has beside reading runs and the inbox.
const OF_RUNS: &[&str] = &[
    "/api/runs",
    "/api/runs/{id}/approvals/{approval_id}",
    "/api/runs/{id}/cancel",
    "/api/runs/{id}/fork",
    "/api/runs/{id}/input",
    "/api/runs/{id}/send",
    "/api/runs/{id}/stop",
    "/api/inbox/answer",
    "/api/inbox/{id}/answer",
];

/// What `runs` may read.
const READ_BY_RUNS: &[&str] =
    &["/api/runs", "/api/inbox", "/api/agents/{id}", "/api/version", "/api/openapi.json"];

fn needs(method: &str, path: &str) -> Needs {
    if matches!(path, "/health" | "/healthz" | "/readyz") {
        return Needs::Nothing;
    }
    if path == "/mcp" {
        return Needs::Mcp;
    }
    if path.starts_with("/api/services/") || path == "/mesh/api" {
        return Needs::Role(Role::Admin);
    }
    let reads = method == "get" || path == "/api/memory/search";
    if reads {
        let more = READ_BY_MORE.iter().find(|(of, _)| *of == path);
        return Needs::Role(more.map_or(Role::Viewer, |(_, role)| *role));
    }
    if OF_RUNS.contains(&path) {
        return Needs::Runs;
    }
    match CHANGED_BY_ADMINS.iter().any(|start| path.starts_with(start)) {
        true => Needs::Role(Role::Admin),
        false => Needs::Role(Role::Operator),
    }
}

/// Whether a key of this role may call the route; `method` in lower case.
fn may(role: Role, method: &str, path: &str) -> bool {
    let needs = needs(method, path);
    match role {
        Role::Mcp => matches!(needs, Needs::Nothing | Needs::Mcp),
        Role::Model => needs == Needs::Nothing,
        Role::Runs => match needs {
            Needs::Nothing | Needs::Runs => true,
            Needs::Role(Role::Viewer) => READ_BY_RUNS.iter().any(|start| path.starts_with(start)),
            Needs::Role(_) | Needs::Mcp => false,
        },
        Role::Viewer | Role::Operator | Role::Admin => match needs {
            Needs::Nothing => true,
            Needs::Role(least) => role >= least,
            Needs::Runs | Needs::Mcp => role >= Role::Operator,
        },
    }
}

/// What a run's own token reaches by a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    Nothing,
    All,
    /// Of the run alone.
    Itself,
    /// Of the run, and of those below it.
    Tree,
    /// Of those that were started by it, or below it.
    Below,
    /// What the permissions of its agent say.
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

fn own(method: &str, path: &str) -> Own {
    match (method, path) {
        (_, "/api/version" | "/api/openapi.json") => Own::All,
        _ if needs(method, path) == Needs::Nothing => Own::All,
        ("get", "/api/runs/usage") => Own::Nothing,
        (
            "post",
            "/api/runs/kill"
            | "/api/runs/{id}/cancel"
            | "/api/runs/{id}/send"
            | "/api/runs/{id}/stop",
        ) => Own::Below,
        ("post", "/api/runs/{id}/tools/call") | ("put", "/api/runs/{id}/artifacts/{*name}") => {
            Own::Itself
        }
        ("post", "/api/runs" | "/mcp") => Own::AsAgent,
        ("get", "/api/agents" | "/api/agents/{id}") => Own::AsAgent,
        ("get", "/api/runs") => Own::Tree,
        ("get", path) if path.starts_with("/api/runs/{id}") => Own::Tree,
        ("get", "/mesh/can" | "/mesh/permissions/{agent}") => Own::Itself,
        (_, path) if path.starts_with("/mesh/permissions") => Own::Nothing,
        (_, path) if path.starts_with("/mesh/") || path.starts_with("/api/services/") => {
            Own::AsAgent
        }
        (_, _) => Own::Nothing,
    }
}

/// Refuses a caller that the route is not for. Which run, which agent, which key of the shared state is
/// the engine's to judge.
///
/// # Errors
///
/// 403.
pub(super) fn check(caller: &Caller, method: &str, path: &str) -> Result<(), Fault> {
    let method = if method == "head" { "get" } else { method };
    let Rights::Role(role) = caller.rights else {
        return match own(method, path) {
            Own::Nothing => {
                let method = method.to_uppercase();
                let text = format!("a run's own token cannot do this: {method} {path}");
                Err(Fault::new(ProblemKind::Forbidden, text))
            }
            Own::All | Own::Itself | Own::Tree | Own::Below | Own::AsAgent => Ok(()),
        };
    };
    if may(role, method, path) {
        return Ok(());
    }
    let least = match needs(method, path) {
        Needs::Nothing => return Ok(()),
        Needs::Role(role) => role.as_str(),
        Needs::Runs => "operator, or the scope runs",
        Needs::Mcp => "operator, or the scope mcp",
    };
    let text = format!("`{}` has the role {}; this needs {least}", caller.name, role.as_str());
    Err(Fault::new(ProblemKind::Forbidden, text))
}

/// The roles and scopes, as the columns of the table.
const COLUMNS: [Role; 6] =
    [Role::Viewer, Role::Operator, Role::Admin, Role::Model, Role::Mcp, Role::Runs];

/// `docs/roles.md`.
pub fn roles_document() -> String {
    let mut text = String::from(INTRODUCTION);
    let heads: Vec<&str> = COLUMNS.iter().map(|role| role.as_str()).collect();
    let _ = writeln!(text, "| route | {} | a run |\n|---|{}", heads.join(" | "), "---|".repeat(7));
    let mut line = |what: &str, may: [bool; 6], own: Own| {
        let cells: Vec<&str> = may.iter().map(|may| if *may { "yes" } else { "–" }).collect();
        let _ = writeln!(text, "| {what} | {} | {} |", cells.join(" | "), own.as_str());
    };
    for route in ROUTES {
        let what = format!("`{} {}`", route.method.to_uppercase(), route.path);
        let roles = COLUMNS.map(|role| may(role, route.method, route.path));
        line(&what, roles, own(route.method, route.path));
    }
    line("`/llm/…`", [false, true, true, true, false, false], Own::AsAgent);
    text
}

const INTRODUCTION: &str = "\
# Roles and scopes

Who may call which route, by the role or the scope of an API key (`overmind key create NAME --role ROLE`, or `--scope SCOPE` for a program that
does one thing). The admin token of the data directory is an admin. This page is made from the table that the server holds
(`crates/server/src/routes/roles.rs`) by `cargo run -q -p overmind-server --example roles > docs/roles.md`; a test tries each line on a server.

| | may |
|---|---|
| `viewer` | read everything but keys, secrets and settings |
| `operator` | also make and change agents and runs, answer questions, call models. Bounded by sandboxes: the level `none`, `--here`, grants of host paths and what they are given to are an admin's |
| `admin` | everything |
| `model` | call models by the gateway (`/llm`), and nothing else |
| `mcp` | call tools by MCP (`/mcp`), and nothing else |
| `runs` | start and end runs, read them and their logs, answer the inbox; not agents, policy, memory, budgets or keys |

The last column is a run's own token (`OVERMIND_TOKEN` inside the run). *Its tree*: that run and all runs below it. *Below it*: the runs that it or one of
them started; a run that somebody else started there can be read and not ended. All other runs answer 404. *As its agent may*: as the
[permissions](mesh.md#permissions) of its agent and of all agents above it say, `spawn` for runs and agents.

";
