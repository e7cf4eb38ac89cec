//! The vault's rows, and the port to them. They change like all rows: in the commits that explain
//! them ([`crate::store::Change::Vault`]).

use std::fmt;

use serde_json::Value;

use super::grant::{Grant, GrantRow};
use super::{SecretName, SecretRow, SecretUses};
use crate::Fut;
use crate::store::StoreError;
use crate::time::Timestamp;

/// A change of the vault's rows.
#[derive(Clone, Debug, PartialEq)]
pub enum VaultChange {
    /// Inserts a version, or replaces what it was sealed with. Of the older versions of the secret
    /// the newest `keep` stay.
    SecretPut {
        row: Box<SecretRow>,
        keep: u32,
    },
    /// Removes all versions.
    SecretDelete(SecretName),
    /// Adds to what is counted of a secret, whether it is there or not.
    SecretUsed(SecretUses),
    /// One that is there already stays.
    GrantPut(Box<GrantRow>),
    GrantDelete(Grant),
    /// Inserts or replaces a declared service, as JSON.
    ServicePut {
        name: String,
        service: Value,
    },
    ServiceDelete(String),
}

/// Reads the vault's rows. There are at most [`super::MAX_SECRETS`] secrets of
/// [`super::MAX_KEPT`] + 1 versions, [`super::grant::MAX_GRANTS`] grants and
/// [`super::service::MAX_DECLARED`] services, and all are read once, at the start.
pub trait VaultRows: Send + Sync + fmt::Debug {
    /// Versions in the order of name and number, those after `after` only, at most `limit` of
    /// 1..=1000.
    fn secrets(
        &self,
        after: Option<(SecretName, u32)>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<SecretRow>, StoreError>>;

    /// The counts of uses of secrets, last used first.
    fn uses(&self) -> Fut<'_, Result<Vec<SecretUses>, StoreError>>;

    fn grants(&self) -> Fut<'_, Result<Vec<GrantRow>, StoreError>>;

    /// Name and declaration of each service that was put.
    fn services(&self) -> Fut<'_, Result<Vec<(String, Value)>, StoreError>>;

    /// Masks `secrets` in everything that is written from now on. `false` when one of them cannot
    /// be masked; the others are.
    #[must_use = "a secret that cannot be masked must be kept out in another way"]
    fn learn(&self, secrets: &[&str]) -> bool;
}

/// A time of the vault's events, for those who count by minutes.
pub fn minute(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(60_000_000)
}
