//! Remembers the names of the providers that had a key at the last start. A server that is
//! restarted from another shell may lack one: then the model calls of open runs would fail one by
//! one. So it does not start, and names the missing key and the runs that use it; `up --force`
//! starts it anyway.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

use overmind_core::agent::{Agent, AgentSpec, PolicyKind};
use overmind_core::ids::AgentId;
use overmind_core::process::prompt::Provider;
use overmind_core::relay::{Dialect, Upstreams as _};
use overmind_core::row::{SessionRow, SessionStatus};
use overmind_core::store::{Page, SessionFilter, Store};
use overmind_engine::Vault;
use overmind_llm::Gateway;

use super::error::{MissingKey, StartError};
use crate::config::{Config, ConfigError, DataDir, settings};

/// Open runs that are read at once.
const PAGE: u32 = 500;

/// Refuses to start without a key that the last start had and an open run needs.
///
/// # Errors
///
/// [`StartError::Keys`]; [`StartError::Store`] if runs cannot be read.
pub(super) async fn check(
    config: &Config,
    store: &dyn Store,
    models: &Gateway,
    vault: &Vault,
) -> Result<(), StartError> {
    // Answers from recordings need no provider.
    if config.without_keys || config.text(settings::GATEWAY_REPLAY).is_some() {
        return Ok(());
    }
    let before = read(&config.data);
    let missing: BTreeMap<_, _> = models
        .unkeyed()
        .into_iter()
        .filter(|lacks| before.contains(&lacks.provider))
        // A key in a vault that waits for its passphrase counts as present.
        .filter(|lacks| !lacks.secret.as_ref().is_some_and(|name| vault.holds(name)))
        .map(|lacks| (lacks.provider.clone(), lacks))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut agents: BTreeMap<(AgentId, u32), Option<Agent>> = BTreeMap::new();
    let statuses = SessionStatus::ALL.into_iter().filter(|status| !status.is_terminal());
    let filter = SessionFilter { statuses: statuses.collect(), ..SessionFilter::default() };
    let mut after = None;
    loop {
        let page = Page { limit: PAGE, after };
        let rows: Vec<SessionRow> = store.session_list(filter.clone(), page).await?;
        for row in &rows {
            let agent = match agents.entry((row.agent, row.agent_version)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    // The order is newest first, so the one before the next version is this one.
                    let page = Page { limit: 1, after: row.agent_version.checked_add(1) };
                    place.insert(store.agent_versions(row.agent, page).await?.pop())
                }
            };
            let Some(agent) = agent else { continue };
            let needs = provider_of(&agent.spec, models, &before);
            if let Some(needs) = needs.filter(|name| missing.contains_key(name)) {
                users.entry(needs).or_default().push(row.name.clone());
            }
        }
        if rows.len() < usize::try_from(PAGE).unwrap_or(usize::MAX) {
            break;
        }
        after = rows.last().map(|row| row.id);
    }
    if users.is_empty() {
        return Ok(());
    }
    let keys = users.into_iter().filter_map(|(provider, runs)| {
        let lacks = missing.get(&provider)?;
        Some(MissingKey { what_to_do: lacks.what_to_do.clone(), provider, runs })
    });
    Err(StartError::Keys(keys.collect()))
}

/// Records the providers that have a key now, for the next start.
///
/// # Errors
///
/// [`ConfigError::Data`].
pub(super) fn note(data: &DataDir, models: &Gateway, vault: &Vault) -> Result<(), ConfigError> {
    let path = data.keyed_file();
    let waits = models
        .unkeyed()
        .into_iter()
        .filter(|lacks| lacks.secret.as_ref().is_some_and(|name| vault.holds(name)));
    let names: BTreeSet<String> =
        models.keyed().into_iter().chain(waits.map(|lacks| lacks.provider)).collect();
    let write = || -> io::Result<()> {
        let mut draft = data.draft()?;
        serde_json::to_writer(&mut draft, &names)?;
        draft.persist(&path).map_err(|err| err.error)?;
        Ok(())
    };
    write().map_err(|source| ConfigError::Data { attempt: "writing", path: path.clone(), source })
}

/// The providers that had a key at the last start; none before the first start.
fn read(data: &DataDir) -> BTreeSet<String> {
    let path = data.keyed_file();
    match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|err| {
            tracing::warn!(path = %path.display(), error = %err, "not a list of providers; it is replaced");
            BTreeSet::new()
        }),
        Err(err) => {
            if err.kind() != io::ErrorKind::NotFound {
                tracing::warn!(path = %path.display(), error = %err, "cannot be read");
            }
            BTreeSet::new()
        }
    }
}

/// The provider that runs of an agent call through this server, if those in `before` have a key.
/// `None` for agents that call none, and for programs whose provider is unknown.
fn provider_of(spec: &AgentSpec, models: &Gateway, before: &BTreeSet<String>) -> Option<String> {
    let Some(command) = &spec.command else {
        return match spec.policy.resolve(&spec.model) {
            PolicyKind::Deterministic => None,
            PolicyKind::Auto | PolicyKind::Model => models.provider_with(&spec.model, before),
        };
    };
    let own = command.env.iter().chain(&command.env_from).any(|(name, _)| {
        ["ANTHROPIC_", "OPENAI_", "CODEX_"].iter().any(|start| name.starts_with(start))
    });
    let (provider, dialect) = match command.provider {
        Provider::Claude => ("anthropic", Dialect::Anthropic),
        Provider::Codex => ("openai", Dialect::OpenAi),
        Provider::Raw | Provider::Lines => return None,
    };
    let asks = command.gateway.unwrap_or(!own);
    // Another provider may serve the same programs.
    (asks && !models.is_ready(dialect)).then(|| provider.to_owned())
}
