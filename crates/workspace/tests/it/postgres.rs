//! Databases in a real PostgreSQL server that we start ourselves.

use overmind_testkit::real::counterpart;
use overmind_workspace::lease::{Lease, TreeEnd};
use tokio_postgres::{Client, NoTls};

use crate::support::{Bench, chain};

#[expect(clippy::disallowed_methods, reason = "a test's connection ends with its runtime")]
async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::task::spawn(async move {
        let _ = connection.await;
    });
    Ok(client)
}

const APP: &str = "
services:
  db:
    strategy: database
    engine: postgres
    extensions: [pgcrypto]
    template:
      files: ['migrations/**', more.sql]
      sql: [schema.sql]
      command: >-
        echo migrated >> \"$OVERMIND_PROJECT/made\" &&
        psql -v ON_ERROR_STOP=1 -q \"$DATABASE_URL\" -f more.sql
env: {DATABASE_URL: '${db.url}'}
";

const FILES: [(&str, &str); 2] = [
    ("schema.sql", "CREATE TABLE users (id serial PRIMARY KEY, name text);"),
    ("more.sql", "INSERT INTO users (name) VALUES ('seed'); CREATE VIEW v AS SELECT 1;"),
];

async fn count(url: &str) -> i64 {
    connect(url).await.unwrap().query_one("SELECT count(*) FROM users", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn needs_postgres_two_sessions_have_separate_copies() {
    let Some(_) = counterpart("POSTGRES") else { return };
    let bench = Bench::new();
    let workspace = bench.workspace();
    let mut leases: Vec<Lease> = Vec::new();
    for session in ["s1", "s2"] {
        let request = bench.request_with(session, APP, &FILES);
        let lease = workspace.build(request, &bench.told).await;
        leases.push(lease.unwrap_or_else(|err| panic!("{}", chain(&err))));
    }
    let made = || std::fs::read_to_string(bench.path("project/made")).unwrap();
    assert_eq!(made(), "migrated\n", "the second is a copy");
    let urls: Vec<&str> = leases.iter().map(|lease| lease.env["DATABASE_URL"].as_str()).collect();

    // Each role owns everything in its database, so a migration that needs the owner works.
    let one = connect(urls[0]).await.unwrap();
    one.batch_execute("ALTER TABLE users ADD COLUMN age int; DROP VIEW v; CREATE SCHEMA mine;")
        .await
        .unwrap();
    one.batch_execute("INSERT INTO users (name) VALUES ('a'); SELECT gen_random_bytes(4);")
        .await
        .unwrap();
    assert_eq!((count(urls[0]).await, count(urls[1]).await), (2, 1));

    // Its role can connect to no other database: the other session's, the template, the server's own.
    let databases: Vec<String> = one
        .query("SELECT datname::text FROM pg_database WHERE datname <> current_database()", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert!(databases.len() >= 5, "{databases:?}");
    for database in databases {
        let (server, _) = urls[0].rsplit_once('/').unwrap();
        let url = format!("{server}/{database}");
        let refused = connect(&url).await.map(drop).unwrap_err();
        let code = refused.code().map(|code| code.code().to_owned());
        // 42501: no privilege to connect; 55000: nobody may (templates).
        assert!(matches!(code.as_deref(), Some("42501" | "55000")), "{database}: {refused:?}");
    }
    // And cannot create, or become, other roles.
    for sql in [
        "CREATE DATABASE x",
        "CREATE ROLE x",
        "SET ROLE overmind",
        "SET SESSION AUTHORIZATION overmind",
    ] {
        assert!(one.batch_execute(sql).await.is_err(), "{sql}");
    }
    // Without the password, no connection works.
    let wrong = urls[0].replace(leases[0].values.get("db", "password").unwrap(), "wrong");
    assert!(connect(&wrong).await.is_err());

    // A changed migration creates another template; the same one does not.
    let files = [FILES[0], ("more.sql", "INSERT INTO users (name) VALUES ('x'), ('y'), ('z');")];
    let request = bench.request_with("s3", APP, &files);
    let third = workspace.build(request, &bench.told).await.unwrap();
    assert_eq!(count(&third.env["DATABASE_URL"]).await, 3);
    assert_eq!(made(), "migrated\nmigrated\n");

    // Ended with a connection open.
    for session in ["s1", "s2", "s3"] {
        let report = workspace.teardown(session, TreeEnd::Park, &bench.told).await.unwrap();
        assert_eq!(report.leaks, []);
    }
    assert!(one.query_one("SELECT 1", &[]).await.is_err());
    assert!(connect(urls[0]).await.is_err());
    bench.assert_nothing_left(&workspace).await;

    // The next daemon finds the same server, at the same port.
    let port = leases[0].values.get("db", "port").unwrap().to_owned();
    drop(workspace);
    let workspace = bench.workspace();
    let again = bench.request_with("s4", APP, &files);
    let fourth = workspace.build(again, &bench.told).await.unwrap();
    assert_eq!(fourth.values.get("db", "port").unwrap(), port);
    assert_eq!(made(), "migrated\nmigrated\n", "the template is still there");
    workspace.teardown("s4", TreeEnd::Park, &bench.told).await.unwrap();
    workspace.stop_database_server().await.unwrap();
    assert!(overmind_workspace::ports::is_free(port.parse().unwrap()));
}

#[tokio::test]
async fn needs_postgres_a_server_by_url_is_shared_and_a_failed_template_reported() {
    let Some(_) = counterpart("POSTGRES") else { return };
    let bench = Bench::new();
    // A server of one data directory is a shared server for another.
    let host = bench.workspace();
    let request = bench.request("s1", "services: {db: {strategy: database, engine: postgres}}\n");
    host.build(request, &bench.told).await.unwrap();
    let kept = std::fs::read_to_string(bench.path("home/postgres/server.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    let url = format!(
        "postgres://overmind:{}@127.0.0.1:{}/postgres",
        kept["password"].as_str().unwrap(),
        kept["port"]
    );
    let guest = Bench::new();
    let mut options = guest.options();
    options.secrets.insert("ADMIN_URL".to_owned(), url.clone());
    let workspace = overmind_workspace::lease::Workspace::open(options).unwrap();
    let text = "
services:
  db:
    strategy: database
    engine: postgres
    server: {url_env: ADMIN_URL}
    template: {files: [m.sql], command: 'env | grep -c ADMIN_URL; cat m.sql; exit 9'}
";
    let request = guest.request_with("s1", text, &[("m.sql", "select 1")]);
    let err = workspace.build(request, &guest.told).await.unwrap_err();
    let said = chain(&err);
    assert!(said.contains("exit status: 9") && said.contains("select 1"), "{said}");
    assert!(guest.told.lines().contains(&"template of db: 0".to_owned()), "the URL is a secret");
    let admin = connect(&url).await.unwrap();
    let left = || async {
        let rows = admin
            .query("SELECT datname::text FROM pg_database WHERE datname LIKE 'ovm%'", &[])
            .await
            .unwrap();
        let roles = admin
            .query("SELECT rolname::text FROM pg_roles WHERE rolname LIKE 'ovm%'", &[])
            .await
            .unwrap();
        (rows.len(), roles.len())
    };
    assert_eq!(left().await, (1, 1), "only the host's own");
    let text =
        "services: {db: {strategy: database, engine: postgres, server: {url_env: ADMIN_URL}}}\n";
    let lease = workspace.build(guest.request("s2", text), &guest.told).await.unwrap();
    assert_eq!(left().await, (2, 2));
    let own = connect(lease.values.get("db", "url").unwrap()).await.unwrap();
    own.batch_execute("CREATE TABLE t (n int)").await.unwrap();
    workspace.teardown("s2", TreeEnd::Park, &guest.told).await.unwrap();
    assert_eq!(left().await, (1, 1));
    host.teardown("s1", TreeEnd::Park, &bench.told).await.unwrap();
    host.stop_database_server().await.unwrap();
}
