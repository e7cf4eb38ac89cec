//! Secrets of this server that agents may name for the environment of their commands.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use overmind_core::ids::SessionId;
use overmind_core::store::Store;
use overmind_core::time::Clock;
use overmind_core::vault::Use;
use overmind_core::vault::grant::{self, GrantKind};
use overmind_core::vault::service::LlmFormat;
use zeroize::Zeroizing;

use crate::vault::Vault;

/// Credentials by name: those of the vault, then those of the server's own environment. They are
/// never printed, stored or sent: a Hive looks them up when it starts a command.
#[derive(Clone, Default)]
pub struct Credentials {
    environment: BTreeMap<String, String>,
    vault: Option<Arc<Vault>>,
}

impl Credentials {
    /// Makes credentials from the environment.
    pub fn new(all: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { environment: all.into_iter().collect(), vault: None }
    }

    #[must_use]
    pub fn with_vault(mut self, vault: Arc<Vault>) -> Self {
        self.vault = Some(vault);
        self
    }

    /// The vault, or an empty one whose errors explain that.
    pub(crate) fn vault(
        &self,
        store: &Arc<dyn Store>,
        clock: &Arc<dyn Clock>,
        token_key: [u8; 32],
    ) -> Arc<Vault> {
        let absent = || Vault::absent(Arc::clone(store), Arc::clone(clock), token_key);
        self.vault.clone().unwrap_or_else(absent)
    }

    /// The value that a command of the agent gets instead of a service's key, and the address of
    /// the service.
    ///
    /// # Errors
    ///
    /// Explains why there is none, and what to do.
    pub(crate) fn placeholder(
        &self,
        service: &str,
        agent: &str,
        session: SessionId,
        start: u32,
        at: Option<&str>,
    ) -> Result<(String, String, Option<LlmFormat>), String> {
        let Some(vault) = &self.vault else { return Err("this server has no vault".to_owned()) };
        let found = vault.service(service).ok_or_else(|| {
            format!("there is no service `{service}`: `overmind vault services` lists them")
        })?;
        if !vault.may_call(agent, service) {
            return Err(format!(
                "the agent `{agent}` may not call the service `{service}`; to do: {}",
                grant::remedy(agent, GrantKind::Service, service)
            ));
        }
        let url = vault.door(&found, at).ok_or(
            "this server listens on no TCP address, so programs cannot reach services: start it \
                with --listen 127.0.0.1:8420",
        )?;
        Ok((vault.placeholder(session, start, &found), url, found.kind))
    }

    /// The value that a command of the agent gets under this name. A secret of the vault takes
    /// precedence over one of the environment, and needs a grant.
    ///
    /// # Errors
    ///
    /// Explains why there is none, and what to do.
    pub(crate) fn take(
        &self,
        name: &str,
        agent: &str,
        session: SessionId,
    ) -> Result<Zeroizing<String>, String> {
        if let Some(vault) = &self.vault
            && let Some(found) = vault.for_agent(
                name,
                Use {
                    session: Some(session),
                    agent: Some(agent.to_owned()),
                    service: None,
                    host: Some("environment".to_owned()),
                },
            )
        {
            return found.map(|secret| Zeroizing::new(secret.expose().to_owned()));
        }
        match self.environment.get(name) {
            Some(value) => Ok(Zeroizing::new(value.clone())),
            None => Err(format!(
                "the credential `{name}` does not exist: run `overmind vault set {name}`, or set \
                    OVERMIND_CRED_{name} in the server's environment"
            )),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Credentials").field(&self.environment.len()).finish()
    }
}
