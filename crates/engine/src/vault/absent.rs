//! The vault of a server without one.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use overmind_core::Fut;
use overmind_core::store::{Store, StoreError};
use overmind_core::time::Clock;
use overmind_core::vault::grant::GrantRow;
use overmind_core::vault::rows::VaultRows;
use overmind_core::vault::{
    Protection, SealError, Sealed, Sealer, Secret, SecretName, SecretRow, SecretUses,
};
use serde_json::Value;

use super::{State, Vault, VaultParts, services, uses};

#[derive(Debug)]
struct Absent;

fn refused<T>() -> Result<T, SealError> {
    Err(SealError::Locked { reason: "this server has no vault".to_owned() })
}

impl Sealer for Absent {
    fn unlock(&self, _: &[String], _: Option<&Secret>) -> Result<(), SealError> {
        refused()
    }

    fn protection(&self) -> Option<Protection> {
        None
    }

    fn seal(&self, _: &SecretName, _: u32, _: &Secret) -> Result<Sealed, SealError> {
        refused()
    }

    fn open(&self, _: &SecretName, _: u32, _: &Sealed) -> Result<Secret, SealError> {
        refused()
    }

    fn master_new(&self, _: Option<&Secret>) -> Result<(), SealError> {
        refused()
    }

    fn rewrap(&self, _: &SecretName, _: u32, _: &Sealed) -> Result<Sealed, SealError> {
        refused()
    }

    fn master_forget_old(&self) -> Result<(), SealError> {
        refused()
    }
}

impl VaultRows for Absent {
    fn secrets(
        &self,
        _: Option<(SecretName, u32)>,
        _: u32,
    ) -> Fut<'_, Result<Vec<SecretRow>, StoreError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn uses(&self) -> Fut<'_, Result<Vec<SecretUses>, StoreError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn grants(&self) -> Fut<'_, Result<Vec<GrantRow>, StoreError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn services(&self) -> Fut<'_, Result<Vec<(String, Value)>, StoreError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn learn(&self, secrets: &[&str]) -> bool {
        secrets.is_empty()
    }
}

impl Vault {
    /// A vault that contains nothing and accepts nothing.
    pub(crate) fn absent(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        token_key: [u8; 32],
    ) -> Arc<Self> {
        Arc::new(Self {
            parts: VaultParts {
                store,
                rows: Arc::new(Absent),
                sealer: Arc::new(Absent),
                clock,
                services: Vec::new(),
                environment: BTreeMap::new(),
                outbound: None,
                door: None,
                token_key,
            },
            state: RwLock::new(State {
                services: services::before(&[]),
                locked: Some("this server has no vault".to_owned()),
                ..State::default()
            }),
            change: tokio::sync::Mutex::new(()),
            pending: uses::Pending::default(),
            rates: super::calls::Rates::default(),
        })
    }
}
