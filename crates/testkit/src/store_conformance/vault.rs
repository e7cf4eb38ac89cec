//! Requirements for every implementation of [`VaultRows`].

use overmind_core::store::{Change, Store};
use overmind_core::vault::grant::{Grant, GrantKind, GrantRow};
use overmind_core::vault::rows::{VaultChange, VaultRows};
use overmind_core::vault::{Sealed, SecretName, SecretRow, SecretUses};
use serde_json::json;

use super::{at, one_change, one_event};

fn name(text: &str) -> SecretName {
    text.parse().unwrap()
}

fn row(text: &str, version: u32, master: &str) -> SecretRow {
    SecretRow {
        name: name(text),
        version,
        sealed: Sealed {
            master: master.into(),
            wrapped: vec![0, 255, u8::try_from(version).unwrap()],
            body: vec![1; 40],
        },
        created_at: at(i64::from(version)),
        created_by: "admin".into(),
    }
}

async fn change(store: &dyn Store, change: VaultChange) {
    store.commit(one_change(Change::Vault(change))).await.unwrap();
}

async fn versions(rows: &dyn VaultRows) -> Vec<(String, u32)> {
    let all = rows.secrets(None, 1000).await.unwrap();
    all.into_iter().map(|row| (row.name.to_string(), row.version)).collect()
}

/// Runs every case on one store, which must be new; both are that store.
///
/// # Panics
///
/// When a case does not hold.
pub async fn all(store: &dyn Store, rows: &dyn VaultRows) {
    assert_eq!(versions(rows).await, []);
    let put = |row: SecretRow, keep| VaultChange::SecretPut { row: Box::new(row), keep };
    for version in 1..=4 {
        change(store, put(row("b", version, "m1"), 2)).await;
    }
    change(store, put(row("a", 1, "m1"), 0)).await;
    let named = |all: &[(&str, u32)]| -> Vec<(String, u32)> {
        all.iter().map(|(name, version)| ((*name).to_owned(), *version)).collect()
    };
    assert_eq!(versions(rows).await, named(&[("a", 1), ("b", 2), ("b", 3), ("b", 4)]));
    let page = rows.secrets(Some((name("b"), 2)), 1).await.unwrap();
    assert_eq!(page, [row("b", 3, "m1")]);

    // The same version again: only what it is sealed with changes.
    let again = SecretRow { created_at: at(99), created_by: "x".into(), ..row("b", 4, "m2") };
    change(store, put(again, 2)).await;
    let page = rows.secrets(Some((name("b"), 3)), 9).await.unwrap();
    assert_eq!(page, [row("b", 4, "m2")]);

    change(store, put(row("b", 5, "m2"), 0)).await;
    assert_eq!(versions(rows).await, named(&[("a", 1), ("b", 5)]), "nothing older is kept");
    change(store, VaultChange::SecretDelete(name("b"))).await;
    change(store, VaultChange::SecretDelete(name("never"))).await;
    assert_eq!(versions(rows).await, named(&[("a", 1)]));

    for (uses, seconds) in [(2, 20), (3, 10)] {
        let uses = SecretUses { name: name("a"), uses, last_used_at: at(seconds) };
        change(store, VaultChange::SecretUsed(uses)).await;
    }
    let counted = SecretUses { name: name("a"), uses: 5, last_used_at: at(20) };
    assert_eq!(rows.uses().await.unwrap(), [counted]);

    let grant = |agent: &str| GrantRow {
        grant: Grant { agent: agent.into(), kind: GrantKind::Service, object: "openai".into() },
        created_at: at(1),
        created_by: "admin".into(),
    };
    change(store, VaultChange::GrantPut(Box::new(grant("y-*")))).await;
    change(store, VaultChange::GrantPut(Box::new(grant("x")))).await;
    let later = GrantRow { created_at: at(2), ..grant("x") };
    change(store, VaultChange::GrantPut(Box::new(later))).await;
    assert_eq!(rows.grants().await.unwrap(), [grant("x"), grant("y-*")]);
    change(store, VaultChange::GrantDelete(grant("x").grant)).await;
    assert_eq!(rows.grants().await.unwrap(), [grant("y-*")]);

    let service = |n: u32| json!({ "name": "s", "n": n });
    for n in [1, 2] {
        let put = VaultChange::ServicePut { name: "s".into(), service: service(n) };
        change(store, put).await;
    }
    assert_eq!(rows.services().await.unwrap(), [("s".to_owned(), service(2))]);
    change(store, VaultChange::ServiceDelete("s".into())).await;
    assert_eq!(rows.services().await.unwrap(), []);

    assert!(rows.learn(&["a-secret-of-the-vault"]));
    let said = json!({ "t": "x a-secret-of-the-vault y" });
    store.commit(one_event(overmind_core::store::StreamId::System, said)).await.unwrap();
    let page = overmind_core::store::Page { limit: 1, after: None };
    let event = store.events_newest(None, page).await.unwrap().remove(0);
    assert_eq!(event.value()["t"], json!("x [redacted:secret] y"));
    assert!(!rows.learn(&["short", "another-secret-of-it"]), "it would hide words");
}
