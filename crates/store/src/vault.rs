//! The tables of the vault. Secrets are encrypted when they come here and when they leave.

use overmind_core::Fut;
use overmind_core::store::StoreError;
use overmind_core::time::Timestamp;
use overmind_core::vault::grant::{Grant, GrantKind, GrantRow};
use overmind_core::vault::rows::{VaultChange, VaultRows};
use overmind_core::vault::{Sealed, SecretName, SecretRow, SecretUses};
use rusqlite::{Connection, Row, params};
use serde_json::Value;

use crate::error::Outcome;
use crate::read::queries::many;
use crate::read::rows::{Cells, int};
use crate::redact::Redactor;
use crate::sqlite::Sqlite;

/// A [`VaultChange`] that is ready to be written.
#[derive(Debug)]
pub(crate) enum VaultWrite {
    Same(VaultChange),
    ServicePut { name: String, service: String },
}

/// Masks texts that people wrote. Secrets are already encrypted.
pub(crate) fn prepare(change: VaultChange, redactor: &Redactor) -> (VaultWrite, usize) {
    match change {
        VaultChange::SecretPut { ref row, .. } => {
            let size = row.sealed.wrapped.len() + row.sealed.body.len();
            (VaultWrite::Same(change), size)
        }
        VaultChange::ServicePut { name, mut service } => {
            redactor.value(&mut service);
            let service = service.to_string();
            let size = service.len();
            (VaultWrite::ServicePut { name, service }, size)
        }
        VaultChange::SecretDelete(_)
        | VaultChange::SecretUsed(_)
        | VaultChange::GrantPut(_)
        | VaultChange::GrantDelete(_)
        | VaultChange::ServiceDelete(_) => (VaultWrite::Same(change), 0),
    }
}

pub(crate) fn apply(conn: &Connection, write: &VaultWrite) -> Outcome<()> {
    match write {
        VaultWrite::ServicePut { name, service } => service_put(conn, name, service),
        VaultWrite::Same(change) => match change {
            VaultChange::SecretPut { row, keep } => secret_put(conn, row, *keep),
            VaultChange::SecretDelete(name) => secret_delete(conn, name),
            VaultChange::SecretUsed(SecretUses { name, uses, last_used_at }) => {
                secret_used(conn, name, *uses, *last_used_at)
            }
            VaultChange::GrantPut(row) => grant_put(conn, row),
            VaultChange::GrantDelete(grant) => grant_delete(conn, grant),
            VaultChange::ServicePut { name, service } => {
                service_put(conn, name, &service.to_string())
            }
            VaultChange::ServiceDelete(name) => service_delete(conn, name),
        },
    }
}

impl VaultRows for Sqlite {
    fn secrets(
        &self,
        after: Option<(SecretName, u32)>,
        limit: u32,
    ) -> Fut<'_, Result<Vec<SecretRow>, StoreError>> {
        Box::pin(self.read("reading the vault", move |conn| secrets(conn, after.as_ref(), limit)))
    }

    fn uses(&self) -> Fut<'_, Result<Vec<SecretUses>, StoreError>> {
        Box::pin(self.read("reading the vault", uses))
    }

    fn grants(&self) -> Fut<'_, Result<Vec<GrantRow>, StoreError>> {
        Box::pin(self.read("reading the vault", grants))
    }

    fn services(&self) -> Fut<'_, Result<Vec<(String, Value)>, StoreError>> {
        Box::pin(self.read("reading the vault", services))
    }

    fn learn(&self, secrets: &[&str]) -> bool {
        self.learn_secrets(secrets)
    }
}

/// Inserts or replaces a version; of the older ones the newest `keep` remain.
fn secret_put(conn: &Connection, row: &SecretRow, keep: u32) -> Outcome<()> {
    let SecretRow { name, version, sealed, created_at, created_by } = row;
    conn.prepare_cached(
        "INSERT INTO vault_secrets
           (name, version, master, wrapped, body, created_at, created_by)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (name, version) DO UPDATE SET
           master = excluded.master, wrapped = excluded.wrapped, body = excluded.body",
    )?
    .execute(params![
        name.as_str(),
        version,
        sealed.master,
        sealed.wrapped,
        sealed.body,
        created_at.as_micros(),
        created_by
    ])?;
    conn.prepare_cached(
        "DELETE FROM vault_secrets WHERE name = ?1 AND version NOT IN (
           SELECT version FROM vault_secrets WHERE name = ?1 ORDER BY version DESC LIMIT ?2)",
    )?
    .execute(params![name.as_str(), i64::from(keep) + 1])?;
    Ok(())
}

fn secret_delete(conn: &Connection, name: &SecretName) -> Outcome<()> {
    conn.prepare_cached("DELETE FROM vault_secrets WHERE name = ?1")?.execute([name.as_str()])?;
    Ok(())
}

fn secret_used(conn: &Connection, name: &SecretName, uses: u64, at: Timestamp) -> Outcome<()> {
    conn.prepare_cached(
        "INSERT INTO vault_uses (name, uses, last_used_at) VALUES (?1, ?2, ?3)
         ON CONFLICT (name) DO UPDATE SET
           uses = uses + excluded.uses, last_used_at = max(last_used_at, excluded.last_used_at)",
    )?
    .execute(params![name.as_str(), int(uses), at.as_micros()])?;
    Ok(())
}

fn grant_put(conn: &Connection, row: &GrantRow) -> Outcome<()> {
    let GrantRow { grant, created_at, created_by } = row;
    conn.prepare_cached(
        "INSERT OR IGNORE INTO vault_grants (agent, kind, object, created_at, created_by)
         VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![
        grant.agent,
        grant.kind.as_str(),
        grant.object,
        created_at.as_micros(),
        created_by
    ])?;
    Ok(())
}

fn grant_delete(conn: &Connection, grant: &Grant) -> Outcome<()> {
    conn.prepare_cached("DELETE FROM vault_grants WHERE agent = ?1 AND kind = ?2 AND object = ?3")?
        .execute(params![grant.agent, grant.kind.as_str(), grant.object])?;
    Ok(())
}

fn service_put(conn: &Connection, name: &str, service: &str) -> Outcome<()> {
    conn.prepare_cached("INSERT OR REPLACE INTO vault_services (name, service) VALUES (?1, ?2)")?
        .execute(params![name, service])?;
    Ok(())
}

fn service_delete(conn: &Connection, name: &str) -> Outcome<()> {
    conn.prepare_cached("DELETE FROM vault_services WHERE name = ?1")?.execute([name])?;
    Ok(())
}

fn secrets(
    conn: &Connection,
    after: Option<&(SecretName, u32)>,
    limit: u32,
) -> Outcome<Vec<SecretRow>> {
    let (name, version) = after.map_or(("", 0), |(name, version)| (name.as_str(), *version));
    many(
        conn,
        "SELECT name, version, master, wrapped, body, created_at, created_by FROM vault_secrets
         WHERE (name, version) > (?1, ?2) ORDER BY name, version LIMIT ?3",
        params![name, version, limit.clamp(1, 1000)],
        secret,
    )
}

fn secret(row: &Row<'_>) -> Outcome<SecretRow> {
    let cells = Cells::new(row, "vault_secrets");
    Ok(SecretRow {
        name: cells.parsed(0, "a name of a secret", |text| text.parse().ok())?,
        version: cells.u32(1)?,
        sealed: Sealed {
            master: cells.text(2)?,
            wrapped: cells.blob(3)?.to_vec(),
            body: cells.blob(4)?.to_vec(),
        },
        created_at: cells.time(5)?,
        created_by: cells.text(6)?,
    })
}

fn uses(conn: &Connection) -> Outcome<Vec<SecretUses>> {
    many(
        conn,
        "SELECT name, uses, last_used_at FROM vault_uses ORDER BY last_used_at DESC LIMIT 2000",
        [],
        |row| {
            let cells = Cells::new(row, "vault_uses");
            Ok(SecretUses {
                name: cells.parsed(0, "a name of a secret", |text| text.parse().ok())?,
                uses: cells.u64(1)?,
                last_used_at: cells.time(2)?,
            })
        },
    )
}

fn grants(conn: &Connection) -> Outcome<Vec<GrantRow>> {
    many(
        conn,
        "SELECT agent, kind, object, created_at, created_by FROM vault_grants
         ORDER BY agent, kind, object LIMIT 1000",
        [],
        |row| {
            let cells = Cells::new(row, "vault_grants");
            Ok(GrantRow {
                grant: Grant {
                    agent: cells.text(0)?,
                    kind: cells.parsed(1, "a kind of grant", GrantKind::parse)?,
                    object: cells.text(2)?,
                },
                created_at: cells.time(3)?,
                created_by: cells.text(4)?,
            })
        },
    )
}

fn services(conn: &Connection) -> Outcome<Vec<(String, Value)>> {
    many(conn, "SELECT name, service FROM vault_services ORDER BY name LIMIT 1000", [], |row| {
        let cells = Cells::new(row, "vault_services");
        Ok((cells.text(0)?, cells.json(1)?))
    })
}
