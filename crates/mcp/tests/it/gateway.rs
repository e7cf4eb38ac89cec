//! Nothing of this crate is called but through its port.

use std::sync::Arc;

use overmind_core::tool_source::ToolSource;

use crate::support::{Bench, bad};

#[tokio::test]
async fn the_list_is_the_same_for_as_long_as_nothing_changes() {
    let bench = Bench::new().await;
    assert_eq!(bench.servers.prefix(), "mcp.");
    bench.servers.put(bad("good", "good")).await.unwrap();
    let first = bench.servers.specs();
    assert_eq!(first.len(), 10);
    assert!(first.iter().all(|spec| !spec.internal && spec.name.starts_with("mcp.good.")));
    bench.servers.restart("good").await.unwrap();
    assert!(Arc::ptr_eq(&first, &bench.servers.specs()), "a restart changes nothing");
    bench.servers.set_enabled("good", false).await.unwrap();
    assert_eq!(bench.servers.specs().len(), 0);
    bench.servers.shutdown().await;
}
