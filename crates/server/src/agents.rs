//! Connections through the relay of a sandbox: their identity, and their allowed requests.
//!
//! The door is open to whatever runs in a sandbox whose network is the mesh. It opens nothing by
//! itself: what comes is treated as a client over TCP, reaches only what runs may use, and needs a
//! run's own token or a placeholder of the vault. The door says whose it is before anything comes
//! from inside ([`overmind_core::enclosure::whose_door`]), and only tokens of that very run count: that of
//! another one, or a key of an operator's, that fell into a sandbox is refused there.

use std::net::Ipv4Addr;

use overmind_api::ProblemKind;
use overmind_core::enclosure::{MAX_DOOR_LINE, door_of};
use overmind_core::ids::SessionId;
use overmind_engine::{Caller, Engine, Rights};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::fault::Fault;
use crate::front::Peer;

/// Reads the first bytes of a connection. `None`: they are invalid.
///
/// # Cancel safety
///
/// None: what was read is lost.
pub(crate) async fn whose(stream: &mut (impl AsyncRead + Unpin)) -> Option<Peer> {
    let mut line = Vec::with_capacity(MAX_DOOR_LINE);
    // Byte by byte, because the following bytes belong to another reader.
    loop {
        match stream.read_u8().await.ok()? {
            b'\n' => break,
            _ if line.len() >= MAX_DOOR_LINE => return None,
            byte => line.push(byte),
        }
    }
    let session = door_of(std::str::from_utf8(&line).ok()?)?;
    // Treated as a client over TCP. Nobody has this address, and nothing is counted by it.
    let (client, local) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST);
    Some(Peer { tcp: Some((client.into(), local.into())), door_of: Some(session), tls: false })
}

/// On requests that came by the door of this session's sandbox.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DoorOf(pub(crate) SessionId);

/// The served paths, and all below those that end in a slash.
const SERVED: &[&str] = &[
    "/health",
    "/healthz",
    "/readyz",
    "/llm/",
    "/mcp",
    "/mesh/",
    "/api/agents",
    "/api/agents/",
    "/api/costs",
    "/api/inbox",
    "/api/inbox/",
    "/api/memory",
    "/api/memory/",
    "/api/runs",
    "/api/runs/",
    "/api/services/",
    "/api/sessions",
    "/api/sessions/",
    "/api/tools",
    "/api/version",
];

/// # Errors
///
/// It is nothing for those inside.
pub(crate) fn may_ask(path: &str) -> Result<(), Fault> {
    let served =
        |one: &&str| if one.ends_with('/') { path.starts_with(*one) } else { *path == **one };
    if SERVED.iter().any(served) {
        return Ok(());
    }
    let shown: String = path.chars().take(200).collect();
    Err(Fault::new(ProblemKind::Forbidden, format!("{shown} is not served to sandboxes"))
        .with_hint("a sandboxed run can call models, the mesh, its tools and its own run"))
}

/// # Errors
///
/// The caller is not the run whose door it is.
pub(crate) fn is_run(caller: &Caller, whose: SessionId) -> Result<(), Fault> {
    match caller.rights {
        Rights::Session { session, .. } if session == whose => Ok(()),
        Rights::Session { .. } | Rights::Role(_) | Rights::System(_) => {
            let text = "from inside a sandbox only the token of its own run counts";
            Err(Fault::new(ProblemKind::Forbidden, text).with_hint("use OVERMIND_TOKEN"))
        }
    }
}

/// # Errors
///
/// The token is neither that of the run whose door it is, nor a placeholder of it.
pub(crate) async fn is_runs_token(
    engine: &Engine,
    token: &str,
    whose: SessionId,
) -> Result<(), Fault> {
    is_run(&engine.relay_caller(token).await?.caller, whose)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::ROUTES;

    #[test]
    fn sandboxed_callers_reach_run_routes_and_no_admin_routes() {
        for path in ["/llm/openai/v1/responses", "/mcp", "/mesh/publish", "/api/runs/x/steps"] {
            assert!(may_ask(path).is_ok(), "{path}");
        }
        for path in ["/", "/mcp/", "/metrics", "/api", "/api/runsx", "/llm", "/x", ""] {
            assert!(may_ask(path).is_err(), "{path}");
        }
        let governs = [
            "/metrics",
            "/api/keys",
            "/api/vault",
            "/api/settings",
            "/api/audit",
            "/api/backup",
            "/api/prune",
            "/api/halt",
            "/api/resume",
            "/api/budgets",
            "/api/rooms",
            "/api/events",
            "/api/status",
        ];
        let mut refused = 0;
        for route in ROUTES.iter().filter(|route| governs.iter().any(|g| route.path.starts_with(g)))
        {
            assert!(may_ask(route.path).is_err(), "{}", route.path);
            refused += 1;
        }
        assert!(refused > 20, "{refused}");
    }
}
