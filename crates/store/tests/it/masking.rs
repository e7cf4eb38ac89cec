//! For any secret of the vault, records are unchanged and the audit passes.

use overmind_core::store::{Page, Store, StreamId};
use overmind_core::vault::{MIN_SECRET, rows::VaultRows, words};
use overmind_testkit::store_conformance::one_event;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::open;

/// Possible secrets: words of Overmind, texts that look like ids and hashes, and others.
fn values() -> impl Strategy<Value = String> {
    prop_oneof![
        "(run|tool|approval)[._](queued|called|requested|awaiting_input)[a-z0-9]{0,3}",
        "(namespace|succeeded|postgres|microvm)[a-z-]{0,4}",
        "[0-9a-f]{8,40}",
        "[0-3]{8,40}",
        "ses_[0-9a-f]{8,32}",
        "2026-1[0-2]-[0-2][0-9]T?[0-9:]{0,8}",
        "[A-Za-z0-9/+_.-]{8,24}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn masking_does_not_change_the_meaning_of_records(
        secrets in proptest::collection::vec(values(), 1..8), id in any::<u128>(),
    ) {
        let mut accepted = secrets;
        accepted.retain(|value| value.len() >= MIN_SECRET && words::refused(value).is_none());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let store = open(dir.path());
            let learned: Vec<&str> = accepted.iter().map(String::as_str).collect();
            let rows: &dyn VaultRows = &store;
            prop_assert!(rows.learn(&learned));
            let fixed = json!({
                "run_id": format!("ses_{id:032x}"),
                "status": "awaiting_input",
                "state": { "kind": "approval.requested", "at": "2026-11-25T20:05:40.123456Z" },
                "agent": { "name": "namespace", "sandbox": "microvm" },
                "hash": blake3::hash(&id.to_be_bytes()).to_hex().to_string(),
                "workspace": format!("/home/{}/x", accepted.concat()),
                "n": 20_261_125,
            });
            let mut payload = fixed.clone();
            payload["args"] = json!({ "id": learned, "kind": { "path": learned } });
            payload["note"] = json!(accepted.join(" "));
            store.commit(one_event(StreamId::System, payload)).await.unwrap();
            store.close().await.unwrap();
            drop(store);
            let store = open(dir.path());
            prop_assert_eq!(store.audit().await.unwrap().findings, []);
            let page = Page { limit: 1, after: None };
            let mut kept = store.events_newest(None, page).await.unwrap().remove(0).value();
            let said = [kept["args"].take().to_string(), kept["note"].take().to_string()];
            for secret in &accepted {
                prop_assert!(said.iter().all(|said| !said.contains(secret)), "{said:?} has {secret}");
            }
            let fields = kept.as_object_mut().unwrap();
            fields.retain(|_, field| *field != Value::Null);
            prop_assert_eq!(kept, fixed);
            Ok(())
        })?;
    }
}
