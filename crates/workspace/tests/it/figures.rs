//! The cost of a warm lease.

use std::time::Instant;

use overmind_workspace::lease::TreeEnd;

use crate::support::{Bench, chain};

const APP: &str = "
  names: [ADMIN_PORT]
services:
  db:
    strategy: database
    engine: postgres
    template: {sql: [schema.sql]}
  web:
    strategy: process
    command: exec busybox httpd -f -p \"127.0.0.1:$PORT\"
    ports: [http]
    depends_on: [db]
env: {DATABASE_URL: '${db.url}'}
env_file: .env.session
";

#[tokio::test]
#[ignore = "prints figures"]
async fn a_warm_lease() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    let files =
        [("schema.sql", "CREATE TABLE t (n int); INSERT INTO t SELECT generate_series(1, 1000);")];
    let mut build = Vec::new();
    let mut end = Vec::new();
    for n in 0..12 {
        let session = format!("s{n}");
        let request = bench.request_with(&session, APP, &files);
        let begun = Instant::now();
        let built = workspace.build(request, &bench.told).await;
        let built_ms = begun.elapsed().as_secs_f64() * 1e3;
        built.unwrap_or_else(|err| panic!("{}", chain(&err)));
        let begun = Instant::now();
        workspace.teardown(&session, TreeEnd::Park, &bench.told).await.unwrap();
        let end_ms = begun.elapsed().as_secs_f64() * 1e3;
        if n == 0 {
            eprintln!(
                "cold: build {built_ms:.0} ms (database server and template made), end {end_ms:.0} ms"
            );
        } else {
            build.push(built_ms);
            end.push(end_ms);
        }
    }
    for (what, mut all) in [("build", build), ("end", end)] {
        all.sort_by(f64::total_cmp);
        eprintln!(
            "warm {what}: median {:.0} ms, worst {:.0} ms of {}",
            all[all.len() / 2],
            all[all.len() - 1],
            all.len()
        );
    }
    workspace.stop_database_server().await.unwrap();
}
