//! Secrets, services and grants: in memory for reading, on disk through commits.
//!
//! [`Vault::open`] reads all rows once and decrypts what it can. A vault that cannot be opened does
//! not prevent the start: it reports what is locked, and [`crate::Engine::vault_unlock`] tries
//! again. Reading takes a read lock and a map lookup; changes are committed one at a time and then
//! made in memory, so that a rotation applies from the next call on. `uses` records who used what.

mod absent;
mod calls;
mod change;
mod said;
mod services;
mod uses;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use overmind_core::ids::{ColonyId, SessionId};
use overmind_core::row::Role;
use overmind_core::store::{Store, StoreError};
use overmind_core::time::{Clock, Timestamp};
use overmind_core::vault::grant::{self, Grant, GrantKind, GrantRow};
use overmind_core::vault::outbound::Outbound;
use overmind_core::vault::placeholder::Placeholder;
use overmind_core::vault::rows::VaultRows;
use overmind_core::vault::service::{LlmFormat, Service};
use overmind_core::vault::words;
use overmind_core::vault::{
    Protection, SealError, Sealer, Secret, SecretName, SecretRow, SecretUses, Secrets, Use,
};

pub use self::calls::{ServiceCall, ServiceCaller, ServiceReply};
use crate::Engine;
use crate::caller::Caller;
use crate::cortex::tokens;
use crate::error::EngineError;
use uses::Pending;

/// The dependencies of a vault.
#[derive(Debug)]
pub struct VaultParts {
    pub store: Arc<dyn Store>,
    pub rows: Arc<dyn VaultRows>,
    pub sealer: Arc<dyn Sealer>,
    pub clock: Arc<dyn Clock>,
    /// Services that the operator's file declares. They override those of the API, and both
    /// override built-in ones of the same name.
    pub services: Vec<Service>,
    /// Credentials of the server's environment (`OVERMIND_CRED_…`). Secrets of the vault override
    /// them.
    pub environment: BTreeMap<SecretName, Secret>,
    /// The client for calls of services; without it, no service can be called.
    pub outbound: Option<Arc<dyn Outbound>>,
    /// The HTTP address of this server for commands, if there is one: `http://127.0.0.1:8420`.
    pub door: Option<String>,
    /// The key for making and checking placeholders: 32 random bytes that outlive a restart.
    pub token_key: [u8; 32],
}

/// The whole vault; [`Secrets`] is its interface for code that needs a key.
pub struct Vault {
    parts: VaultParts,
    state: RwLock<State>,
    /// Locked during a change, so that the decision and the commit see the same state.
    change: tokio::sync::Mutex<()>,
    pending: Pending,
    /// The calls of services within a minute.
    rates: calls::Rates,
}

#[derive(Default)]
struct State {
    secrets: BTreeMap<SecretName, Held>,
    grants: BTreeMap<Grant, GrantRow>,
    services: BTreeMap<String, (Arc<Service>, Origin)>,
    uses: HashMap<SecretName, SecretUses>,
    /// Why the whole vault cannot be opened.
    locked: Option<String>,
}

/// A secret with its versions.
struct Held {
    /// The versions, newest last. Never empty.
    versions: Vec<SecretRow>,
    current: Result<Secret, SealError>,
}

impl Held {
    fn newest(&self) -> &SecretRow {
        self.versions.last().expect("a secret has a version")
    }
}

/// The origin of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    BuiltIn,
    /// The API declared it.
    Declared,
    /// The operator's file declares it.
    File,
}

impl Origin {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BuiltIn => "built_in",
            Self::Declared => "declared",
            Self::File => "file",
        }
    }
}

/// A secret without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretView {
    pub name: SecretName,
    pub version: u32,
    /// All stored versions, newest first.
    pub versions: Vec<u32>,
    pub created_at: Timestamp,
    pub created_by: String,
    pub uses: u64,
    pub last_used_at: Option<Timestamp>,
    /// Why it cannot be used.
    pub problem: Option<String>,
    /// Whether the environment has one of this name, too, which this one overrides.
    pub shadows_environment: bool,
}

/// A service, and whether it can be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    pub service: Arc<Service>,
    pub origin: Origin,
    /// Whether there is a key for it, or it needs none.
    pub ready: bool,
}

/// A summary of the vault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaultStatus {
    pub locked: Option<String>,
    /// `None` while there is no key, or it is locked.
    pub protection: Option<Protection>,
    pub secrets: usize,
    /// Secrets that cannot be decrypted although the vault is open.
    pub damaged: usize,
}

/// The rights of a valid placeholder.
#[derive(Clone, Debug)]
pub struct Bound {
    pub session: SessionId,
    /// The start for which it was made.
    pub start: u32,
    pub colony: ColonyId,
    pub agent: overmind_core::ids::AgentId,
    pub agent_name: String,
    pub service: Arc<Service>,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault")
            .field("secrets", &self.state().secrets.len())
            .finish_non_exhaustive()
    }
}

impl Vault {
    /// Reads everything. Secrets that cannot be decrypted are logged and reported by
    /// [`crate::Engine::vault_status`].
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the rows cannot be read.
    pub async fn open(parts: VaultParts) -> Result<Arc<Self>, StoreError> {
        let this = Arc::new(Self {
            state: RwLock::new(State {
                services: services::before(&parts.services),
                ..State::default()
            }),
            parts,
            change: tokio::sync::Mutex::new(()),
            pending: Pending::default(),
            rates: calls::Rates::default(),
        });
        let mut secrets: BTreeMap<SecretName, Vec<SecretRow>> = BTreeMap::new();
        let mut after = None;
        loop {
            let page = this.parts.rows.secrets(after.take(), 1000).await?;
            let Some(last) = page.last() else { break };
            after = Some((last.name.clone(), last.version));
            for row in page {
                secrets.entry(row.name.clone()).or_default().push(row);
            }
        }
        let grants = this.parts.rows.grants().await?;
        let declared = this.parts.rows.services().await?;
        let uses = this.parts.rows.uses().await?;
        {
            let mut state = this.state_mut();
            for (name, value) in declared {
                services::declared(&mut state.services, &name, value);
            }
            state.grants = grants.into_iter().map(|row| (row.grant.clone(), row)).collect();
            state.uses = uses.into_iter().map(|uses| (uses.name.clone(), uses)).collect();
            let locked = || SealError::Locked { reason: "it was not opened yet".to_owned() };
            state.secrets = secrets
                .into_iter()
                .map(|(name, versions)| (name, Held { versions, current: Err(locked()) }))
                .collect();
        }
        if let Err(err) = this.unlock(None).await {
            tracing::warn!(error = %err, "secrets are not to be had");
        }
        Ok(this)
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the master key, and decrypts all secrets with it.
    async fn unlock(self: &Arc<Self>, passphrase: Option<Secret>) -> Result<(), SealError> {
        let needed: BTreeSet<String> = {
            let state = self.state();
            let rows = state.secrets.values().flat_map(|held| &held.versions);
            rows.map(|row| row.sealed.master.clone()).collect()
        };
        let this = Arc::clone(self);
        // Deriving a key from a passphrase is deliberately slow.
        let opened = tokio::task::spawn_blocking(move || {
            let needed: Vec<String> = needed.into_iter().collect();
            let opened = this.parts.sealer.unlock(&needed, passphrase.as_ref());
            this.decrypt();
            opened
        });
        let opened = opened.await.unwrap_or_else(|err| {
            let reason = format!("opening it failed: {err}");
            Err(SealError::Locked { reason })
        });
        let mut state = self.state_mut();
        state.locked = match (&opened, self.parts.sealer.protection()) {
            (Err(SealError::Locked { reason } | SealError::WrongPassphrase { reason }), None) => {
                Some(reason.clone())
            }
            (Err(err), None) => Some(err.to_string()),
            (Ok(()), _) | (Err(_), Some(_)) => None,
        };
        opened
    }

    /// Decrypts every version of every secret, because old ones must be masked too.
    fn decrypt(&self) {
        let mut state = self.state_mut();
        let mut plain = Vec::new();
        for (name, held) in &mut state.secrets {
            let newest = held.newest().version;
            for row in &held.versions {
                let opened = self.parts.sealer.open(name, row.version, &row.sealed);
                if let Ok(secret) = &opened {
                    if row.version == newest
                        && let Some(why) = words::refused(secret.expose())
                    {
                        // An earlier version of this program accepted such values.
                        tracing::warn!(secret = %name, "its value {why}: replace it, `overmind vault rotate`");
                    }
                    plain.push(secret.clone());
                }
                if row.version == newest {
                    if let Err(err @ SealError::Damaged { .. }) = &opened {
                        tracing::error!(error = %err, "a secret cannot be used");
                    }
                    held.current = opened;
                }
            }
        }
        let texts: Vec<&str> = plain.iter().map(Secret::expose).collect();
        if !self.parts.rows.learn(&texts) {
            tracing::error!("a secret of the vault cannot be masked in what is written");
        }
    }

    /// A secret for an agent; `None` if there is none of that name.
    ///
    /// # Errors
    ///
    /// The inner error explains why the agent does not get it, and what to do.
    pub(crate) fn for_agent(&self, name: &str, for_what: Use) -> Option<Result<Secret, String>> {
        let name: SecretName = name.parse().ok()?;
        let agent = for_what.agent.clone().unwrap_or_default();
        let found = {
            let state = self.state();
            let held = state.secrets.get(&name)?;
            let grants = state.grants.keys();
            if grant::by_which(grants, &agent, GrantKind::Secret, name.as_str()).is_none() {
                return Some(Err(format!(
                    "the agent `{agent}` may not use the secret `{name}`; to do: {}",
                    grant::remedy(&agent, GrantKind::Secret, name.as_str())
                )));
            }
            held.current.clone()
        };
        if found.is_ok() {
            self.pending.note(name, for_what, self.parts.clock.now());
        }
        Some(found.map_err(|err| err.to_string()))
    }

    /// A secret of the vault, otherwise that of the server's environment. The use is not recorded.
    fn peek(&self, name: &SecretName) -> Option<Secret> {
        match self.state().secrets.get(name) {
            Some(held) => held.current.clone().ok(),
            None => self.parts.environment.get(name).cloned(),
        }
    }

    /// Whether the agent may call the service.
    pub fn may_call(&self, agent: &str, service: &str) -> bool {
        let state = self.state();
        grant::by_which(state.grants.keys(), agent, GrantKind::Service, service).is_some()
    }

    /// A grant to agents of this name, ignoring those to all.
    pub(crate) fn granted_by_name(&self, agent: &str) -> Option<Grant> {
        let state = self.state();
        let mut named =
            state.grants.keys().filter(|grant| !grant.agent.trim_matches('*').is_empty());
        named.find(|grant| grant.is_for(agent)).cloned()
    }

    /// The current service of this name.
    pub fn service(&self, name: &str) -> Option<Arc<Service>> {
        self.state().services.get(name).map(|(service, _)| Arc::clone(service))
    }

    /// The address of the service for commands: on this server, in the form that its clients
    /// expect. `at` is this server's address for commands with another one.
    pub(crate) fn door(&self, service: &Service, at: Option<&str>) -> Option<String> {
        let door = at.or(self.parts.door.as_deref())?.trim_end_matches('/');
        Some(match service.kind {
            Some(LlmFormat::Openai) => format!("{door}/llm/openai/v1"),
            Some(LlmFormat::Anthropic) => format!("{door}/llm/anthropic"),
            Some(LlmFormat::Gemini) | None => format!("{door}/api/services/{}", service.name),
        })
    }

    /// The value that a start of a session gets instead of the service's key.
    pub fn placeholder(&self, session: SessionId, start: u32, service: &Service) -> String {
        let anthropic = service.kind == Some(LlmFormat::Anthropic);
        let service = service.name.clone();
        Placeholder { session, start, service }.token(&self.parts.token_key, anthropic)
    }

    /// What `token` gives access to: it was made here, its session is running in the token's start,
    /// its service exists, and the agent may still call it. This takes one look-up of a row by its
    /// id.
    pub async fn resolve_placeholder(&self, token: &str) -> Option<Bound> {
        self.bound(self.placeholder_of(token)?).await
    }

    /// The content of a token that was made here.
    fn placeholder_of(&self, token: &str) -> Option<Placeholder> {
        Placeholder::of_token(token, &self.parts.token_key)
    }

    /// Whether that content is valid now.
    async fn bound(&self, placeholder: Placeholder) -> Option<Bound> {
        let Placeholder { session, start, service } = placeholder;
        let row = self.parts.store.session_fetch(session).await.ok()??;
        // Grants name agents of the colony `default`.
        if tokens::start_of(&row) != Some(start) || row.colony != ColonyId::DEFAULT {
            return None;
        }
        let agent = self.parts.store.agent_fetch(row.agent).await.ok()??;
        let service = self.service(&service)?;
        if !self.may_call(&agent.spec.name, &service.name) {
            return None;
        }
        Some(Bound {
            session,
            start,
            colony: row.colony,
            agent: row.agent,
            agent_name: agent.spec.name,
            service,
        })
    }
}

impl Vault {
    /// Whether there is a secret of that name, even if the vault is locked.
    pub fn holds(&self, name: &str) -> bool {
        let Ok(name) = name.parse::<SecretName>() else { return false };
        self.state().secrets.contains_key(name.as_str()) || self.has(name.as_str())
    }
}

impl Secrets for Vault {
    fn get(&self, name: &str) -> Option<Secret> {
        self.get_for(name, Use::default())
    }

    fn has(&self, name: &str) -> bool {
        let sound = |held: &Held| held.current.is_ok();
        // It is called for each provider at each model call, and nearly all names are in the stored
        // form.
        if !name.bytes().any(|b| b.is_ascii_uppercase()) {
            return match self.state().secrets.get(name) {
                Some(held) => sound(held),
                None => self.parts.environment.contains_key(name),
            };
        }
        let Ok(name) = name.parse::<SecretName>() else { return false };
        self.has(name.as_str())
    }

    fn get_for(&self, name: &str, for_what: Use) -> Option<Secret> {
        if !self.has(name) {
            return None;
        }
        let name: SecretName = name.parse().ok()?;
        let secret = self.peek(&name)?;
        if self.state().secrets.contains_key(&name) {
            self.pending.note(name, for_what, self.parts.clock.now());
        }
        Some(secret)
    }
}

impl Engine {
    /// A summary of the vault.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub fn vault_status(&self, by: &Caller) -> Result<VaultStatus, EngineError> {
        by.require(Role::Viewer)?;
        let state = self.vault.state();
        let damaged = |held: &&Held| matches!(held.current, Err(SealError::Damaged { .. }));
        Ok(VaultStatus {
            locked: state.locked.clone(),
            protection: self.vault.parts.sealer.protection(),
            secrets: state.secrets.len(),
            damaged: state.secrets.values().filter(damaged).count(),
        })
    }

    /// The key of a model provider that was found, and its place: the vault or the server's
    /// environment.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub fn provider_key(
        &self,
        by: &Caller,
        name: &str,
    ) -> Result<Option<(Secret, &'static str)>, EngineError> {
        by.require(Role::Admin)?;
        let Ok(name) = name.parse::<SecretName>() else { return Ok(None) };
        let kept = self.vault.state().secrets.contains_key(&name);
        let place = if kept { "vault" } else { "environment" };
        Ok(self.vault.peek(&name).map(|secret| (secret, place)))
    }

    /// Secrets by name after `after`, at most `limit`, without their values.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] for all but admins, because names reveal much.
    pub fn secret_list(
        &self,
        by: &Caller,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<SecretView>, EngineError> {
        by.require(Role::Admin)?;
        let state = self.vault.state();
        let all = state.secrets.iter().filter(|(name, _)| after.is_none_or(|a| name.as_str() > a));
        Ok(all
            .take(limit as usize)
            .map(|(name, held)| self.vault.view(&state, name, held))
            .collect())
    }

    /// Grants in order after `after`, at most `limit`.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub fn grant_list(
        &self,
        by: &Caller,
        after: Option<&Grant>,
        limit: u32,
    ) -> Result<Vec<GrantRow>, EngineError> {
        by.require(Role::Viewer)?;
        let state = self.vault.state();
        let all = state.grants.values().filter(|row| after.is_none_or(|after| row.grant > *after));
        Ok(all.take(limit as usize).cloned().collect())
    }

    /// Services by name after `after`, at most `limit`.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub fn service_list(
        &self,
        by: &Caller,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<ServiceView>, EngineError> {
        by.require(Role::Viewer)?;
        let state = self.vault.state();
        let all = state.services.iter().filter(|(name, _)| after.is_none_or(|a| name.as_str() > a));
        let view = |(_, (service, origin)): (&String, &(Arc<Service>, Origin))| {
            let held = state.secrets.get(&service.secret);
            ServiceView {
                service: Arc::clone(service),
                origin: *origin,
                ready: service.key_optional
                    || held.is_some_and(|held| held.current.is_ok())
                    || (held.is_none()
                        && self.vault.parts.environment.contains_key(&service.secret)),
            }
        };
        Ok(all.take(limit as usize).map(view).collect())
    }
}

impl Vault {
    fn view(&self, state: &State, name: &SecretName, held: &Held) -> SecretView {
        let newest = held.newest();
        let uses = state.uses.get(name);
        let pending = self.pending.of(name);
        SecretView {
            name: name.clone(),
            version: newest.version,
            versions: held.versions.iter().rev().map(|row| row.version).collect(),
            created_at: newest.created_at,
            created_by: newest.created_by.clone(),
            uses: uses.map_or(0, |uses| uses.uses) + pending.map_or(0, |(uses, _)| uses),
            last_used_at: pending.map(|(_, at)| at).or(uses.map(|uses| uses.last_used_at)),
            problem: held.current.as_ref().err().map(ToString::to_string),
            shadows_environment: self.parts.environment.contains_key(name),
        }
    }
}
