//! Changes of secrets and grants: by admins, in one commit with the event.

use std::sync::Arc;

use overmind_core::name;
use overmind_core::row::Role;
use overmind_core::store::{Change, Commit, NewEvent, StreamId};
use overmind_core::vault::grant::{Grant, GrantRow, MAX_GRANTS};
use overmind_core::vault::rows::VaultChange;
use overmind_core::vault::words;
use overmind_core::vault::{MAX_KEPT, MAX_SECRETS, SealError, Secret, SecretName, SecretRow};
use serde_json::{Value, json};

use super::{Held, SecretView, Vault, VaultStatus};
use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;

/// Maximum number of secrets in one import.
const MAX_IMPORT: usize = 200;

impl From<SealError> for EngineError {
    fn from(err: SealError) -> Self {
        match err {
            SealError::Locked { .. } | SealError::Failed { .. } => {
                Self::Unavailable { message: err.to_string() }
            }
            SealError::WrongPassphrase { .. } => Self::invalid("passphrase", err.to_string()),
            SealError::Damaged { .. } => Self::conflict(err.to_string()),
        }
    }
}

/// A version that will be written.
struct New {
    row: SecretRow,
    secret: Secret,
    keep: u32,
    /// The version that it replaces.
    before: Option<u32>,
}

impl Engine {
    /// Sets a secret: its first version, or the next one, which is in use when this returns. An
    /// equal value changes nothing. `keep` is how many older versions stay for a restore.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`], [`EngineError::Unavailable`] if the vault is locked,
    /// [`EngineError::NotFound`] with `existing` if there is none of that name.
    pub async fn secret_set(
        &self,
        by: &Caller,
        name: &str,
        secret: Secret,
        keep: u32,
        existing: bool,
    ) -> Result<SecretView, EngineError> {
        by.require(Role::Admin)?;
        let name = named(name)?;
        self.names_no_key(&name, &secret)?;
        if keep > MAX_KEPT {
            let text = format!("keep is 0 to {MAX_KEPT}");
            return Err(EngineError::invalid("keep", text));
        }
        let vault = Arc::clone(&self.vault);
        let _turn = vault.change.lock().await;
        if existing && !vault.state().secrets.contains_key(&name) {
            return Err(EngineError::not_found("Secret"));
        }
        if let Some(new) = vault.new_version(by, &name, secret, keep)? {
            vault.write(by, vec![new], None).await?;
        }
        Ok(vault.shown(&name))
    }

    /// Makes the value of an earlier version the newest one again.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] if that version is not stored.
    pub async fn secret_restore(
        &self,
        by: &Caller,
        name: &str,
        version: u32,
    ) -> Result<SecretView, EngineError> {
        by.require(Role::Admin)?;
        let name = named(name)?;
        let vault = Arc::clone(&self.vault);
        let _turn = vault.change.lock().await;
        let (row, keep) = {
            let state = vault.state();
            let held = state.secrets.get(&name).ok_or_else(|| EngineError::not_found("Secret"))?;
            let row = held.versions.iter().find(|row| row.version == version).cloned();
            let keep = u32::try_from(held.versions.len()).unwrap_or(MAX_KEPT).min(MAX_KEPT);
            (row.ok_or_else(|| EngineError::not_found("Version"))?, keep)
        };
        let secret = vault.parts.sealer.open(&name, version, &row.sealed)?;
        if let Some(new) = vault.new_version(by, &name, secret, keep)? {
            vault.write(by, vec![new], Some(version)).await?;
        }
        Ok(vault.shown(&name))
    }

    /// Sets several secrets, all or none. Returns those that changed.
    ///
    /// # Errors
    ///
    /// The same as for [`Engine::secret_set`].
    pub async fn secret_import(
        &self,
        by: &Caller,
        all: Vec<(SecretName, Secret)>,
    ) -> Result<Vec<SecretView>, EngineError> {
        by.require(Role::Admin)?;
        if all.len() > MAX_IMPORT {
            let text = format!("at most {MAX_IMPORT} secrets come at once");
            return Err(EngineError::invalid("secrets", text));
        }
        let vault = Arc::clone(&self.vault);
        let _turn = vault.change.lock().await;
        let mut new: Vec<New> = Vec::new();
        for (name, secret) in all {
            if new.iter().any(|new| new.row.name == name) {
                let text = format!("`{name}` is there twice");
                return Err(EngineError::invalid("secrets", text));
            }
            self.names_no_key(&name, &secret)?;
            new.extend(vault.new_version(by, &name, secret, 0)?);
        }
        let first = |new: &&New| new.before.is_none();
        if vault.state().secrets.len() + new.iter().filter(first).count() > MAX_SECRETS {
            return Err(full());
        }
        let names: Vec<SecretName> = new.iter().map(|new| new.row.name.clone()).collect();
        if !new.is_empty() {
            vault.write(by, new, None).await?;
        }
        Ok(names.iter().map(|name| vault.shown(name)).collect())
    }

    /// Refuses a new name that is a key, because names appear unmasked in lists, events and logs.
    /// An existing one stays usable.
    fn names_no_key(&self, name: &SecretName, secret: &Secret) -> Result<(), EngineError> {
        if self.vault.state().secrets.contains_key(name) {
            return Ok(());
        }
        let same = secret.expose().eq_ignore_ascii_case(name.as_str());
        if !same && !name::looks_like_a_key(name.as_str()) {
            return self.no_secret("name", name.as_str());
        }
        let message = "name looks like a key, and names are shown in lists and logs: write what the \
                       secret is for, such as `openai_api_key`, and give the key on standard input";
        Err(EngineError::invalid("name", message))
    }

    /// Removes a secret with all its versions.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] if there is none of that name.
    pub async fn secret_remove(&self, by: &Caller, name: &str) -> Result<(), EngineError> {
        by.require(Role::Admin)?;
        let name = named(name)?;
        let vault = Arc::clone(&self.vault);
        let _turn = vault.change.lock().await;
        let versions = match vault.state().secrets.get(&name) {
            Some(held) => held.versions.len(),
            None => return Err(EngineError::not_found("Secret")),
        };
        let payload = json!({ "by": by.name, "secret": name, "versions": versions });
        let change = VaultChange::SecretDelete(name.clone());
        vault.commit("vault.secret_removed", payload, vec![change]).await?;
        vault.state_mut().secrets.remove(&name);
        Ok(())
    }

    /// Grants agents the use of a secret or a service.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`]; [`EngineError::Conflict`] if there are too many.
    pub async fn grant_put(&self, by: &Caller, grant: Grant) -> Result<GrantRow, EngineError> {
        by.require(Role::Admin)?;
        grant.check().map_err(|(field, text)| EngineError::invalid(field, text))?;
        let vault = Arc::clone(&self.vault);
        let _turn = vault.change.lock().await;
        let (there, count) = {
            let state = vault.state();
            (state.grants.get(&grant).cloned(), state.grants.len())
        };
        if let Some(there) = there {
            return Ok(there);
        }
        if count >= MAX_GRANTS {
            let text = format!("there are {MAX_GRANTS} grants: take one back");
            return Err(EngineError::conflict(text));
        }
        let created_at = vault.parts.clock.now();
        let row = GrantRow { grant: grant.clone(), created_at, created_by: by.name.clone() };
        let change = VaultChange::GrantPut(Box::new(row.clone()));
        vault.commit("vault.granted", told(by, &grant), vec![change]).await?;
        vault.state_mut().grants.insert(grant, row.clone());
        Ok(row)
    }

    /// Revokes a grant, which has no effect when this returns.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`] if there is no such grant.
    pub async fn grant_remove(&self, by: &Caller, grant: &Grant) -> Result<(), EngineError> {
        by.require(Role::Admin)?;
        let vault = Arc::clone(&self.vault);
        let _turn = vault.change.lock().await;
        if !vault.state().grants.contains_key(grant) {
            return Err(EngineError::not_found("Grant"));
        }
        let change = VaultChange::GrantDelete(grant.clone());
        vault.commit("vault.revoked", told(by, grant), vec![change]).await?;
        vault.state_mut().grants.remove(grant);
        self.regranted();
        Ok(())
    }

    /// Opens a locked vault, with a passphrase or because its key file exists again.
    ///
    /// # Errors
    ///
    /// [`EngineError::Unavailable`] names the missing part.
    pub async fn vault_unlock(
        &self,
        by: &Caller,
        passphrase: Option<Secret>,
    ) -> Result<VaultStatus, EngineError> {
        by.require(Role::Admin)?;
        let vault = Arc::clone(&self.vault);
        let _turn = vault.change.lock().await;
        vault.unlock(passphrase).await?;
        vault.tell("vault.unlocked", json!({ "by": by.name })).await?;
        self.vault_status(by)
    }

    /// Re-encrypts all secrets under a new master key, and with a passphrase protects that with it.
    ///
    /// It can be interrupted at any point without loss: the key file contains both keys until every
    /// row is under the new one.
    ///
    /// # Errors
    ///
    /// [`EngineError::Unavailable`]; [`EngineError::Conflict`] if a secret is damaged: remove it
    /// first.
    pub async fn vault_rotate_master(
        &self,
        by: &Caller,
        passphrase: Option<Secret>,
    ) -> Result<VaultStatus, EngineError> {
        by.require(Role::Admin)?;
        let vault = Arc::clone(&self.vault);
        let _turn = vault.change.lock().await;
        let with = Arc::clone(&vault);
        let work = tokio::task::spawn_blocking(move || with.rewrapped(passphrase.as_ref()));
        let rows = work.await.map_err(|err| EngineError::Unavailable {
            message: format!("rotating the master key failed: {err}"),
        })??;
        let changes = rows
            .iter()
            .map(|row| VaultChange::SecretPut { row: Box::new(row.clone()), keep: MAX_KEPT });
        let payload = json!({ "by": by.name, "versions": rows.len() });
        vault.commit("vault.master_rotated", payload, changes.collect()).await?;
        {
            let mut state = vault.state_mut();
            for row in rows {
                if let Some(held) = state.secrets.get_mut(&row.name)
                    && let Some(old) =
                        held.versions.iter_mut().find(|old| old.version == row.version)
                {
                    *old = row;
                }
            }
        }
        let with = Arc::clone(&vault);
        let forget = tokio::task::spawn_blocking(move || with.parts.sealer.master_forget_old());
        match forget.await {
            Ok(forgotten) => forgotten?,
            Err(err) => tracing::error!(error = %err, "the old master key stays in the key file"),
        }
        self.vault_status(by)
    }
}

impl Vault {
    fn rewrapped(&self, passphrase: Option<&Secret>) -> Result<Vec<SecretRow>, SealError> {
        let rows: Vec<SecretRow> = {
            let state = self.state();
            state.secrets.values().flat_map(|held| held.versions.iter().cloned()).collect()
        };
        // All are checked before anything changes.
        for row in &rows {
            self.parts.sealer.open(&row.name, row.version, &row.sealed)?;
        }
        self.parts.sealer.master_new(passphrase)?;
        rows.into_iter()
            .map(|row| {
                let sealed = self.parts.sealer.rewrap(&row.name, row.version, &row.sealed)?;
                Ok(SecretRow { sealed, ..row })
            })
            .collect()
    }

    /// The next version; `None` if the newest has the same value.
    fn new_version(
        &self,
        by: &Caller,
        name: &SecretName,
        secret: Secret,
        keep: u32,
    ) -> Result<Option<New>, EngineError> {
        let (before, count) = {
            let state = self.state();
            let held = state.secrets.get(name);
            if held.is_some_and(|held| held.current.as_ref() == Ok(&secret)) {
                return Ok(None);
            }
            (held.map(|held| held.newest().version), state.secrets.len())
        };
        if before.is_none() && count >= MAX_SECRETS {
            return Err(full());
        }
        if let Some(why) = words::refused(secret.expose()) {
            let text = format!(
                "the value of `{name}` {why}: masking it everywhere would make the log \
                    unreadable. Choose a longer, random value: `openssl rand -hex 24` creates one"
            );
            return Err(EngineError::invalid("value", text));
        }
        let version = before.unwrap_or(0) + 1;
        // This comes first, so that the value is masked everywhere from now on.
        if !self.parts.rows.learn(&[secret.expose()]) {
            let text = format!("`{name}` could not be masked in what is written: choose another");
            return Err(EngineError::invalid("value", text));
        }
        let sealed = self.parts.sealer.seal(name, version, &secret)?;
        let created_at = self.parts.clock.now();
        let created_by = by.name.clone();
        let row = SecretRow { name: name.clone(), version, sealed, created_at, created_by };
        Ok(Some(New { row, secret, keep, before }))
    }

    async fn write(
        &self,
        by: &Caller,
        all: Vec<New>,
        restored: Option<u32>,
    ) -> Result<(), EngineError> {
        let ts = self.parts.clock.now();
        let event = |new: &New| NewEvent {
            stream: StreamId::System,
            kind: match new.before {
                None => "vault.secret_set",
                Some(_) => "vault.secret_rotated",
            },
            ts,
            payload: json!({
                "by": by.name, "secret": new.row.name, "version": new.row.version,
                "before": new.before, "restored": restored, "kept": new.keep,
            }),
        };
        let change = |new: &New| {
            let row = Box::new(new.row.clone());
            Change::Vault(VaultChange::SecretPut { row, keep: new.keep })
        };
        let commit = Commit {
            guards: Vec::new(),
            events: all.iter().map(event).collect(),
            changes: all.iter().map(change).collect(),
        };
        self.parts.store.commit(commit).await?;
        let mut state = self.state_mut();
        state.locked = None;
        for New { row, secret, keep, before: _ } in all {
            let mut versions = state.secrets.remove(&row.name).map_or(Vec::new(), |h| h.versions);
            let name = row.name.clone();
            versions.push(row);
            let surplus = versions.len().saturating_sub(keep as usize + 1);
            versions.drain(..surplus);
            state.secrets.insert(name, Held { versions, current: Ok(secret) });
        }
        Ok(())
    }

    fn shown(&self, name: &SecretName) -> SecretView {
        let state = self.state();
        let held = state.secrets.get(name).expect("it was set, and changes take turns");
        self.view(&state, name, held)
    }

    pub(super) async fn commit(
        &self,
        kind: &'static str,
        payload: Value,
        changes: Vec<VaultChange>,
    ) -> Result<(), EngineError> {
        let ts = self.parts.clock.now();
        let event = NewEvent { stream: StreamId::System, kind, ts, payload };
        let changes = changes.into_iter().map(Change::Vault).collect();
        let commit = Commit { guards: Vec::new(), events: vec![event], changes };
        self.parts.store.commit(commit).await?;
        Ok(())
    }

    async fn tell(&self, kind: &'static str, payload: Value) -> Result<(), EngineError> {
        self.commit(kind, payload, Vec::new()).await
    }
}

fn named(name: &str) -> Result<SecretName, EngineError> {
    name.parse().map_err(|err: overmind_core::vault::NameError| {
        EngineError::invalid("name", err.to_string())
    })
}

fn full() -> EngineError {
    EngineError::conflict(format!("there are {MAX_SECRETS} secrets: remove one"))
}

fn told(by: &Caller, grant: &Grant) -> Value {
    json!({ "by": by.name, "agent": grant.agent, "kind": grant.kind, "object": grant.object })
}
