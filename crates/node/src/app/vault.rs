//! The vault as configured: the place of its key, and the services that the operator declares.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use overmind_core::store::Store;
use overmind_core::time::Clock;
use overmind_core::vault::rows::VaultRows;
use overmind_core::vault::{Secret, Use};
use overmind_engine::{Vault, VaultParts};
use overmind_server::Listener;
use overmind_tools::egress::{Services, SystemResolver};

use super::StartError;
use crate::config::Config;

/// Opens the vault. If it stays locked, that is logged and the server starts anyway.
pub(super) async fn open(
    config: &Config,
    store: &Arc<overmind_store::Sqlite>,
    clock: &Arc<dyn Clock>,
    token_key: [u8; 32],
    listeners: &[Listener],
) -> Result<Arc<Vault>, StartError> {
    let passphrase = match (&config.vault_passphrase, &config.vault_passphrase_file) {
        (Some(text), _) => Secret::new(text.expose()).map_err(|err| err.to_string()),
        (None, Some(file)) => of_file(file),
        (None, None) => Err(String::new()),
    };
    let passphrase = match passphrase {
        Ok(passphrase) => {
            if !store.learn_secret(passphrase.expose()) {
                tracing::warn!("the vault's passphrase cannot be masked in what is written");
            }
            Some(passphrase)
        }
        Err(why) => {
            if !why.is_empty() {
                tracing::error!(why, "the vault's passphrase cannot be used");
            }
            None
        }
    };
    let options = overmind_vault::Options { passphrase, ..places(config) };
    let parts = VaultParts {
        store: Arc::clone(store) as Arc<dyn Store>,
        rows: Arc::clone(store) as Arc<dyn VaultRows>,
        sealer: Arc::new(overmind_vault::Vault::new(options)),
        clock: Arc::clone(clock),
        services: config.services.clone(),
        environment: config
            .credentials
            .iter()
            .filter_map(|(name, secret)| {
                Some((name.parse().ok()?, Secret::new(secret.expose()).ok()?))
            })
            .collect(),
        outbound: Some(Arc::new(Services::new(Arc::new(SystemResolver)))),
        door: listeners
            .iter()
            .find(|listener| listener.address().is_some())
            .map(|listener| listener.at().to_owned()),
        token_key,
    };
    Ok(Vault::open(parts).await?)
}

/// The places of the master keys, without the passphrase.
pub fn places(config: &Config) -> overmind_vault::Options {
    overmind_vault::Options {
        keyring: config.vault_keyring.as_ref().map(overmind_vault::Keyring::new),
        ..overmind_vault::Options::new(&config.vault_key_file)
    }
}

fn of_file(file: &Path) -> Result<Secret, String> {
    let at = file.display();
    let failed = |err: std::io::Error| format!("{at} cannot be read: {err}");
    let meta = std::fs::metadata(file).map_err(failed)?;
    let mode = meta.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(format!("{at} has mode {mode:04o}: others can read it; `chmod 600` it"));
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(format!("{at} belongs to another user"));
    }
    let text = std::fs::read_to_string(file).map_err(failed)?;
    Secret::new(&text).map_err(|err| format!("what {at} holds: {err}"))
}

/// The purpose for which MCP servers get their secrets.
pub(super) fn for_tool_servers() -> Use {
    Use { host: Some("tool server".to_owned()), ..Use::default() }
}
