//! The grammar as documented.

use overmind_workspace::config::{Config, ReadyCheck, Strategy};

fn documentation() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/overmind-yml.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_example_of_the_documentation_is_accepted() {
    let text = documentation();
    let blocks: Vec<&str> =
        text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 3, "only {} examples", blocks.len());
    for block in &blocks {
        let parsed = Config::parse(block);
        assert!(parsed.is_ok(), "{:#?}\n{block}", parsed.unwrap_err());
    }
    let full = Config::parse(blocks[0]).unwrap();
    assert!(full.services.len() >= 5 && !full.setup.is_empty() && !full.teardown.is_empty());
    for strategy in ["Process", "Container", "Database", "Compose"] {
        let has =
            full.services.iter().any(|one| format!("{:?}", one.strategy).starts_with(strategy));
        assert!(has, "the full example shows no {strategy}");
    }
}

fn problems(text: &str) -> Vec<String> {
    Config::parse(text).unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn all_errors_of_a_file_are_reported_at_once() {
    let told = problems(
        "version: 1
sevices: {}
worktree: {bas: main, directories: {../up: share, node_modules: lnik}}
ports: {range: 80-90, names: [my-port]}
services:
  web:
    strategy: proces
  api:
    strategy: process
    comand: x
  db:
    strategy: database
    engine: sqlite
    file: /etc/passwd
    server: embedded
env: {A: '${db', OVERMIND_X: y}
setup: [{command: x, timeout: 5 minutes, on_failure: ignore}]
isolation: {sandbox: dokcer}
",
    );
    assert_eq!(
        told,
        [
            "2:1: sevices: unknown key; did you mean `services`?",
            "3:12: worktree.bas: unknown key; did you mean `base`?",
            "3:37: worktree.directories.../up: is not a path beneath the project",
            "3:65: worktree.directories.node_modules: does not know `lnik`; known here: share, \
             reflink, copy, skip",
            "4:16: ports.range: wants two ports from 1024 to 65535; for example `20000-29999`",
            "4:30: ports.names: `my-port` cannot be the name of a variable",
            "7:15: services.web.strategy: does not know `proces`; did you mean `process`?",
            "9:5: services.api: needs a `command`",
            "10:5: services.api.comand: unknown key; did you mean `command`?",
            "14:11: services.db.file: `/etc/passwd` is not a path beneath the worktree; a relative \
             path without `..`, and not in `.git`",
            "15:5: services.db.server: means nothing to the engine `sqlite`",
            "16:10: env.A: `${` at character 1 is never closed: write `$$` for a dollar sign",
            "16:18: env.OVERMIND_X: names that begin with OVERMIND_ are set by Overmind",
            "17:31: setup[0].timeout: must be a length of time, not `5 minutes`; write `250ms`, `90s`, \
             `5m` or `1h`",
            "17:54: setup[0].on_failure: does not know `ignore`; known here: block, warn",
            "18:22: isolation.sandbox: does not know `dokcer`; did you mean `docker`?",
        ]
    );
}

#[test]
fn a_version_is_required_and_only_the_current_one_is_accepted() {
    assert_eq!(
        problems("services: {}\n"),
        ["1:1: has no version; begin the file with `version: 1`"]
    );
    assert!(problems("version: 2\n")[0].contains("is not a version that this program reads"));
    assert_eq!(problems("- a\n"), ["1:1: must be a mapping of keys, not a list"]);
}

#[test]
fn checks_are_derived_from_the_declarations() {
    let config = Config::parse(
        "version: 1
services:
  a: {strategy: process, command: x, ports: [http]}
  b: {strategy: process, command: x}
  c: {strategy: process, command: x, ports: [http, admin], ready: {http: /up, port: admin, status: 204}}
",
    )
    .unwrap();
    assert_eq!(config.services[0].ready.check, ReadyCheck::Tcp { port: "http".to_owned() });
    assert_eq!(config.services[1].ready.check, ReadyCheck::Started);
    let wanted = ReadyCheck::Http { port: "admin".into(), path: "/up".into(), status: 204..=204 };
    assert_eq!(config.services[2].ready.check, wanted);
    assert_eq!(
        config.ports.names,
        Vec::<String>::new(),
        "`PORT` alone is for when nothing is declared"
    );
    let Strategy::Process(process) = &config.services[0].strategy else { panic!() };
    assert_eq!(process.ports, ["http"]);
}

#[test]
fn a_database_extension_with_network_access_is_refused() {
    let of = |names: &str| {
        format!(
            "version: 1\nservices:\n  db: {{strategy: database, engine: postgres, extensions: {names}}}\n"
        )
    };
    for name in ["dblink", "postgres_fdw", "file_fdw", "adminpack", "plpython3u", "pg_cron"] {
        let told = problems(&of(&format!("[pgcrypto, {name}]")));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains(&format!("services.db.extensions: `{name}` ")), "{told:?}");
        assert!(told[0].contains("outside of every sandbox; remove it: "), "{told:?}");
    }
    // A text alone is a list of one.
    assert_eq!(problems(&of("dblink")).len(), 1);
    Config::parse(&of("[pgcrypto, uuid-ossp, vector, timescaledb]")).unwrap();
}
