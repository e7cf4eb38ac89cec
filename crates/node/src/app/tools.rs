//! The tools as configured: their permitted targets, and the MCP servers with further tools.

use std::sync::Arc;

use overmind_core::canary::Planter;
use overmind_core::mesh::Mesh;
use overmind_core::time::Clock;
use overmind_core::tool::ToolSpec;
use overmind_core::vault::Secrets as _;
use overmind_engine::Vault;
use overmind_mcp::McpServers;
use overmind_sandbox::PipedLauncher;
use overmind_tools::egress::Egress;
use overmind_tools::{Commands, FileLabels, Gateway, Options, Parts, mesh_tools};

use super::{StartError, sandbox_options};
use crate::config::Config;

pub(super) fn gateway(
    config: &Config,
    parts: Parts,
    canaries: Option<Planter>,
    mesh: &Arc<dyn Mesh>,
) -> Result<Gateway, StartError> {
    let usual = FileLabels::default();
    let options = Options {
        egress: Egress::allowing(&config.allow_hosts)?,
        commands: Commands::new(config.commands.clone(), config.runner.clone())?,
        files: FileLabels {
            private: config.private_paths.clone().unwrap_or(usual.private),
            untrusted: config.untrusted_paths.clone().unwrap_or(usual.untrusted),
        },
        canaries,
        ..Options::default()
    };
    let gateway = Gateway::with_options(parts, options, mesh_tools(mesh));
    Ok(gateway.expect("the built-in tools have names of their own and sound schemas"))
}

/// Makes the MCP servers. The engine passes them their configuration and stores their state.
pub(super) fn mcp_servers<'a>(
    config: &Config,
    clock: &Arc<dyn Clock>,
    built_in: impl Iterator<Item = &'a ToolSpec>,
    vault: &Arc<Vault>,
) -> Arc<McpServers> {
    let (credentials, vault) = (config.credentials.clone(), Arc::clone(vault));
    McpServers::new(overmind_mcp::Parts {
        launcher: Arc::new(PipedLauncher::new(sandbox_options(config))),
        // Admins configure these servers, so they need no grant.
        secrets: Arc::new(move |name| {
            let of_vault = vault.get_for(name, super::vault::for_tool_servers());
            let of_vault = of_vault.map(|secret| secret.expose().to_owned());
            of_vault.or_else(|| Some(credentials.get(name)?.expose().to_owned()))
        }),
        clock: Arc::clone(clock),
        scratch: config.data.path().join("mcp"),
        built_in: built_in.map(|spec| spec.name.clone()).collect(),
    })
}
