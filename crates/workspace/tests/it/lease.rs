//! Whole leases with processes, files and hooks.

use overmind_workspace::config::Config;
use overmind_workspace::lease::{BuildError, LeasePhase, Place, Resumed, TeardownError, TreeEnd};
use overmind_workspace::services::runner::ProcessState;

use crate::support::{Bench, chain, git, runs, until};

#[tokio::test]
async fn without_a_project_file_a_session_gets_one_port() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    let mut ports = Vec::new();
    for session in ["s1", "s2"] {
        let mut request = bench.request(session, "");
        request.config = Config::load(&bench.path("project")).unwrap();
        let lease = workspace.build(request, &bench.told).await.unwrap();
        assert_eq!(lease.ports.keys().collect::<Vec<_>>(), ["PORT"]);
        assert_eq!(lease.env["PORT"], lease.ports["PORT"].to_string());
        assert_eq!(lease.env["OVERMIND_SESSION_ID"], session);
        assert_eq!(lease.env["OVERMIND_WORKTREE"], lease.worktree.to_string_lossy());
        assert_eq!(lease.env["OVERMIND_BRANCH"], "overmind/test");
        assert_eq!(workspace.lease(session).unwrap().unwrap(), lease);
        ports.push(lease.ports["PORT"]);
    }
    assert_ne!(ports[0], ports[1]);
    let again = workspace.build(bench.request("s1", ""), &bench.told).await.unwrap_err();
    assert!(chain(&again).contains("has a lease already"), "{again}");
    for session in ["s1", "s2"] {
        let report = workspace.teardown(session, TreeEnd::Park, &bench.told).await.unwrap();
        assert_eq!(report.leaks, []);
        assert_eq!(
            report.undone,
            ["ports for PORT", "the directory for temporary files", "the worktree"]
        );
        // A repeated call does nothing and is no error.
        workspace.teardown(session, TreeEnd::Park, &bench.told).await.unwrap();
    }
    bench.assert_nothing_left(&workspace).await;
}

const APP: &str = "
  names: [ADMIN_PORT]
services:
  api:
    strategy: process
    command: exec python3 -m http.server \"$PORT\" --bind 127.0.0.1
    ports: [http, extra]
    ready: {http: /marker}
  web:
    strategy: process
    command: [python3, -m, http.server, '${self.port}', --bind, 127.0.0.1]
    ports: [http]
    depends_on: [api]
    env: {API: 'http://${api.host}:${api.http}'}
env:
  API_URL: ${api.url}/v1?x=$$1
  WEB_PORT: ${web.port}
env_file: .env.session
setup:
  - echo marker > marker; echo set up on $ADMIN_PORT with $API_URL
teardown: test -f marker && echo gone >> \"$OVERMIND_PROJECT/teardown.txt\"
";

#[tokio::test]
async fn a_session_runs_its_services_and_leaves_nothing() {
    let bench = Bench::new();
    let project = bench.path("project");
    git(&project, &["init", "-q"]);
    std::fs::write(project.join("README"), "x").unwrap();
    git(&project, &["add", "."]);
    git(&project, &["commit", "-qm", "first"]);
    let exclude = project.join(".git/info/exclude");
    let before = std::fs::read_to_string(&exclude).unwrap_or_default();
    let workspace = bench.workspace();
    let mut request = bench.request("s1", APP);
    // The primary checkout itself, so that git is asked about the file.
    request.place = Place::Directory(project.clone());
    let lease = workspace.build(request, &bench.told).await.unwrap();
    assert_eq!(lease.ports.len(), 4);
    let api = lease.ports["api/http"];
    assert_eq!(lease.env["API_URL"], format!("http://127.0.0.1:{api}/v1?x=$1"));
    assert_eq!(lease.env["WEB_PORT"], lease.ports["web/http"].to_string());
    let told = bench.told.lines();
    let said =
        format!(": set up on {} with http://127.0.0.1:{api}/v1?x=$1", lease.ports["ADMIN_PORT"]);
    assert!(told.iter().any(|line| line.ends_with(&said)), "{told:#?}");
    let file = std::fs::read_to_string(project.join(".env.session")).unwrap();
    assert!(file.contains(&format!("API_URL='http://127.0.0.1:{api}/v1?x=$1'")), "{file}");
    assert_eq!(git(&project, &["status", "--short"]), "?? marker\n");
    assert!(matches!(workspace.process_state("s1", "web"), ProcessState::Running { .. }));
    assert!(lease.logs["api"].exists());
    assert!(std::fs::read_to_string(&lease.logs["api"]).unwrap().contains("GET /marker"));

    let report = workspace.teardown("s1", TreeEnd::Park, &bench.told).await.unwrap();
    assert_eq!((report.leaks, report.warnings), (vec![], vec![]));
    assert_eq!(std::fs::read_to_string(project.join("teardown.txt")).unwrap(), "gone\n");
    assert!(!project.join(".env.session").exists());
    assert_eq!(std::fs::read_to_string(&exclude).unwrap_or_default(), before);
    for port in lease.ports.values() {
        assert!(overmind_workspace::ports::is_free(*port));
    }
    bench.assert_nothing_left(&workspace).await;
}

#[tokio::test]
async fn an_env_file_never_overwrites_a_tracked_file() {
    let bench = Bench::new();
    let project = bench.path("project");
    git(&project, &["init", "-q"]);
    std::fs::write(project.join(".env.local"), "KEEP=1\n").unwrap();
    git(&project, &["add", "."]);
    git(&project, &["commit", "-qm", "first"]);
    let workspace = bench.workspace();
    let mut request = bench.request("s1", "env: {A: b}\nenv_file: .env.local\n");
    request.place = Place::Directory(project.clone());
    let err = workspace.build(request.clone(), &bench.told).await.unwrap_err();
    assert!(chain(&err).contains("is a tracked file"), "{}", chain(&err));
    // Nor a foreign one that exists.
    git(&project, &["rm", "-q", "--cached", ".env.local"]);
    let err = workspace.build(request, &bench.told).await.unwrap_err();
    assert!(chain(&err).contains("was not written by Overmind"), "{}", chain(&err));
    assert_eq!(std::fs::read_to_string(project.join(".env.local")).unwrap(), "KEEP=1\n");
    bench.assert_nothing_left(&workspace).await;
}

#[tokio::test]
async fn a_failed_setup_undoes_everything_and_gives_the_reason() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    let text = "
services:
  box: {strategy: process, command: exec sleep 86121, start: before_setup}
setup: |
  setsid sh -c 'sleep 86122 & exec sleep 86123' &
  echo half done
  echo broken >&2
  exit 7
";
    let err = workspace.build(bench.request("s1", text), &bench.told).await.unwrap_err();
    let said = chain(&err);
    assert!(matches!(err, BuildError::Setup(_)) && said.contains("exit status: 7"), "{said}");
    assert!(said.contains("half done") && said.contains("broken"), "{said}");
    for argument in ["86121", "86122", "86123"] {
        assert!(!runs(argument), "{argument} is still there");
    }
    bench.assert_nothing_left(&workspace).await;
}

#[tokio::test]
async fn a_setup_that_times_out_is_killed_with_its_children() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    let text = "
setup:
  - command: (setsid sleep 86131 &) ; sleep 86132 & echo waiting; sleep 86133
    timeout: 500ms
";
    let err = workspace.build(bench.request("s1", text), &bench.told).await.unwrap_err();
    let said = chain(&err);
    assert!(said.contains("was ended after 0.5 s") && said.contains("waiting"), "{said}");
    for argument in ["86131", "86132", "86133"] {
        assert!(!runs(argument), "{argument} is still there");
    }
    bench.assert_nothing_left(&workspace).await;
}

#[tokio::test]
async fn a_failed_step_with_warn_is_reported() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    let text = "
setup:
  - {command: exit 3, on_failure: warn, name: lint}
teardown:
  - {command: exit 4, on_failure: block}
";
    let lease = workspace.build(bench.request("s1", text), &bench.told).await.unwrap();
    assert_eq!(lease.warnings.len(), 1);
    assert!(lease.warnings[0].contains("`lint` ended with exit status: 3"), "{lease:?}");
    // A blocking teardown hook stops the first attempt; the next continues without it.
    let err = workspace.teardown("s1", TreeEnd::Park, &bench.told).await.unwrap_err();
    assert!(matches!(err, TeardownError::Hook(_)), "{err}");
    assert_eq!(workspace.sessions(), [("s1".to_owned(), LeasePhase::Ending)]);
    workspace.teardown("s1", TreeEnd::Park, &bench.told).await.unwrap();
    bench.assert_nothing_left(&workspace).await;
}

#[tokio::test]
async fn a_failed_service_is_reported_with_its_last_output() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    let text = "
services:
  web:
    strategy: process
    command: echo no such table; exit 1
    ports: [http]
    restart: never
";
    let err = workspace.build(bench.request("s1", text), &bench.told).await.unwrap_err();
    let said = chain(&err);
    assert!(said.contains("`web` ended before it was ready (exit status: 1)"), "{said}");
    assert!(said.contains("no such table"), "{said}");
    let text = "
services:
  web:
    strategy: process
    command: echo starting; exec sleep 86141
    ports: [http]
    ready: {tcp: true, timeout: 400ms}
";
    let err = workspace.build(bench.request("s1", text), &bench.told).await.unwrap_err();
    let said = chain(&err);
    assert!(said.contains("was not ready within 0.4 s") && said.contains("starting"), "{said}");
    assert!(!runs("86141"));
    bench.assert_nothing_left(&workspace).await;
}

#[tokio::test]
async fn a_failed_process_is_restarted_and_a_stopped_one_is_not() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    let text = "
services:
  web:
    strategy: process
    command: echo run >> runs; test $(wc -l < runs) -ge 3 || exit 1; echo up at last; exec sleep 86151
    restart: {policy: on-failure, backoff: 20ms, max: 5}
    ready: {log: 'up at last'}
";
    let lease = workspace.build(bench.request("s1", text), &bench.told).await.unwrap();
    let runs_file = lease.worktree.join("runs");
    assert_eq!(std::fs::read_to_string(&runs_file).unwrap(), "run\nrun\nrun\n");
    workspace.teardown("s1", TreeEnd::Keep, &bench.told).await.unwrap();
    assert!(!runs("86151"));
    assert_eq!(std::fs::read_to_string(&runs_file).unwrap(), "run\nrun\nrun\n");
}

#[tokio::test]
async fn independent_services_start_concurrently_and_dependents_wait() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    // Each of the two waits for the start of the other: in sequence they would not end.
    let text = "
services:
  a: {strategy: process, command: 'touch a; exec sleep 86161', ready: {command: test -f b}}
  b: {strategy: process, command: 'touch b; exec sleep 86162', ready: {command: test -f a}}
  c:
    strategy: process
    command: test -f a && test -f b && touch c; exec sleep 86163
    depends_on: [a, b]
    ready: {command: test -f c, timeout: 5s}
";
    workspace.build(bench.request("s1", text), &bench.told).await.unwrap();
    workspace.teardown("s1", TreeEnd::Park, &bench.told).await.unwrap();
    bench.assert_nothing_left(&workspace).await;
}

#[tokio::test]
async fn processes_that_leave_their_group_are_ended() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    let text = "
services:
  wild:
    strategy: process
    command: |
      setsid sleep 86171 &
      (setsid env -i sleep 86172 &) &
      sh -c '(sleep 86173 &)'
      trap '' TERM
      touch started
      while :; do sleep 1; done
    grace: 100ms
    ready: {command: test -f started}
";
    workspace.build(bench.request("s1", text), &bench.told).await.unwrap();
    until("the wild ones", || runs("86171") && runs("86172") && runs("86173")).await;
    workspace.teardown("s1", TreeEnd::Park, &bench.told).await.unwrap();
    assert!(!runs("86171") && !runs("86173"));
    if std::path::Path::new("/sys/fs/cgroup").exists() && rustix::process::geteuid().is_root() {
        // Only a control group contains this process; without one, it is the documented limit.
        assert!(!runs("86172"));
    }
    bench.assert_nothing_left(&workspace).await;
}

#[tokio::test]
async fn a_lease_survives_a_server_restart() {
    let bench = Bench::new();
    let text = "
services:
  web:
    strategy: process
    command: exec python3 -m http.server \"$PORT\" --bind 127.0.0.1
    ports: [http]
";
    let first = bench.workspace();
    let lease = first.build(bench.request("s1", text), &bench.told).await.unwrap();
    let ProcessState::Running { pid } = first.process_state("s1", "web") else { panic!() };
    drop(first);
    // As after a reboot, too: the content of the directory for temporary files.
    std::fs::remove_dir_all(bench.path("registry/ports")).unwrap();
    let second = bench.workspace();
    let resumed = second.resume(&bench.told).await;
    let [Resumed::Kept { lease: kept, warnings, .. }] = resumed.as_slice() else {
        panic!("{resumed:?}")
    };
    assert_eq!((&**kept, warnings.len()), (&lease, 0));
    assert_eq!(second.process_state("s1", "web"), ProcessState::Running { pid });
    // Its end is detected although it is no child of this process, and it is restarted.
    let number = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(number, rustix::process::Signal::KILL).unwrap();
    until("a new process", || {
        matches!(second.process_state("s1", "web"), ProcessState::Running { pid: now } if now != pid)
    })
    .await;
    second.teardown("s1", TreeEnd::Park, &bench.told).await.unwrap();
    bench.assert_nothing_left(&second).await;
}

#[tokio::test]
async fn a_sqlite_database_is_copied_from_a_template_created_once() {
    let bench = Bench::new();
    let workspace = bench.workspace();
    let text = "
services:
  db:
    strategy: database
    engine: sqlite
    file: db/app.sqlite3
    template:
      files: [schema.sql]
      sql: [schema.sql]
      command: echo made >> \"$OVERMIND_PROJECT/made\"; test -f \"$DB\"
env: {DB: '${db.file}'}
";
    let files = [("schema.sql", "CREATE TABLE t (n); INSERT INTO t VALUES (1);")];
    for session in ["s1", "s2"] {
        let request = bench.request_with(session, text, &files);
        let lease = workspace.build(request, &bench.told).await.unwrap();
        let file = lease.env["DB"].clone();
        assert!(file.starts_with(&*lease.worktree.to_string_lossy()), "{file}");
        let database = rusqlite::Connection::open(&file).unwrap();
        database.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        let rows: i64 = database.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 2, "nobody else's rows");
    }
    assert_eq!(std::fs::read_to_string(bench.path("project/made")).unwrap(), "made\n");
    for session in ["s1", "s2"] {
        workspace.teardown(session, TreeEnd::Park, &bench.told).await.unwrap();
    }
    bench.assert_nothing_left(&workspace).await;
}

/// A program that answers like the client with its compose plugin, and records its arguments. For a
/// project, it returns the content of `config.json` beside it.
fn fake_docker(bench: &Bench, version: Option<&str>) -> String {
    use std::os::unix::fs::PermissionsExt;
    let bin = bench.path("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let answer = match version {
        None => "echo \"docker: 'compose' is not a docker command.\" >&2; exit 1".to_owned(),
        Some(version) => format!(
            "echo \"$* TAG=$TAG LD=$LD_PRELOAD\" >> {bin}/calls\ncase \"$*\" in\n*version*) echo \
             {version};;\n*config*) cat {bin}/config.json;;\nesac",
            bin = bin.display()
        ),
    };
    let program = bin.join("docker");
    std::fs::write(&program, format!("#!/bin/sh\n{answer}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:/usr/bin:/bin", bin.display())
}

fn with_compose(bench: &Bench, version: Option<&str>) -> overmind_workspace::lease::Workspace {
    let mut options = bench.options();
    options.environment.insert("PATH".to_owned(), fake_docker(bench, version));
    overmind_workspace::lease::Workspace::open(options).unwrap()
}

#[tokio::test]
async fn a_compose_project_gets_its_own_name_and_ports_or_a_reason() {
    let bench = Bench::new();
    let text = "services: {stack: {strategy: compose, env: {TAG: '3', LD_PRELOAD: /w/evil.so}}}\n\
                env: {WEB: '${stack.web_3000}'}\n";
    for (version, wanted) in [
        (None, "is not installed (docker: 'compose' is not a docker command.)"),
        (Some("2.20.3"), "`docker compose` is 2.20.3: Overmind needs version 2.24 or newer"),
    ] {
        let workspace = with_compose(&bench, version);
        let err = workspace.build(bench.request("s1", text), &bench.told).await.unwrap_err();
        assert!(chain(&err).contains(wanted), "{}", chain(&err));
        bench.assert_nothing_left(&workspace).await;
    }
    let workspace = with_compose(&bench, Some("2.26.1"));
    let config = r#"{"services": {"web": {"image": "busybox:3", "environment": {"A": "$$b"}, "ports":
        [{"target": 3000, "published": "3000", "protocol": "tcp"}]}}}"#;
    std::fs::write(bench.path("bin/config.json"), config).unwrap();
    let files = [("compose.yaml", "services: {}\n")];
    let request = bench.request_with("s1", text, &files);
    let lease = workspace.build(request, &bench.told).await.unwrap();
    let port = lease.ports["stack/web_3000"];
    assert_eq!(lease.env["WEB"], port.to_string());
    let started = std::fs::read(bench.path("home/leases/s1/stack.compose.json")).unwrap();
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&started).unwrap(),
        serde_json::json!({"services": {"web": {"image": "busybox:3", "environment": {"A": "$$b"},
            "ports": [format!("127.0.0.1:{port}:3000/tcp")]}}})
    );
    workspace.teardown("s1", TreeEnd::Park, &bench.told).await.unwrap();
    let calls = std::fs::read_to_string(bench.path("bin/calls")).unwrap();
    let line = |word: &str| calls.lines().find(|line| line.contains(word)).unwrap();
    let (config, up, down) = (line(" config "), line(" up --detach"), line(" down --volumes"));
    assert!(calls.find(up) < calls.find(down), "{calls}");
    assert!(config.ends_with("TAG=3 LD=") && config.contains("--project-name ovm-"), "{config}");
    assert!(
        config.contains("/compose.yaml") && config.contains("--env-file /dev/null"),
        "{config}"
    );
    for line in [up, down] {
        assert!(line.contains("leases/s1/stack.compose.json"), "{line}");
        assert!(!line.contains("compose.yaml") && line.ends_with("TAG= LD="), "{line}");
    }
    bench.assert_nothing_left(&workspace).await;
}

#[tokio::test]
async fn a_compose_project_beyond_its_containers_is_refused_before_a_start() {
    let bench = Bench::new();
    let workspace = with_compose(&bench, Some("2.26.1"));
    let text = "services: {stack: {strategy: compose}}\n";
    let outside = bench.path("secret.env");
    std::fs::write(&outside, "A=secret\n").unwrap();
    for (config, wanted) in [
        (
            r#"{"services": {"web": {"privileged": true}}}"#,
            "service web: `privileged` reaches beyond",
        ),
        (
            r#"{"services": {"db": {"volumes": [{"type": "bind", "source": "/", "target": "/h"}]}}}"#,
            "service db: `volumes` names /, which is outside of the worktree",
        ),
        (
            r#"{"services": {}, "volumes": {"x": {"external": true, "name": "prod"}}}"#,
            "volume x: `external`",
        ),
    ] {
        std::fs::write(bench.path("bin/config.json"), config).unwrap();
        let request = bench.request_with("s1", text, &[("compose.yaml", "services: {}\n")]);
        let err = workspace.build(request, &bench.told).await.unwrap_err();
        assert!(chain(&err).contains(wanted), "{}", chain(&err));
    }
    let calls = || std::fs::read_to_string(bench.path("bin/calls")).unwrap();
    assert!(!calls().contains(" up "), "{}", calls());
    // And files that the plugin would read itself are checked before it runs.
    let asked = calls().matches(" config ").count();
    let deep = format!("{}x", "a/".repeat(3));
    for (compose, wanted) in [
        ("services: {web: {env_file: ../../secret.env}}\n".to_owned(), "leads out of the worktree"),
        (format!("services: {{web: {{env_file: {}}}}}\n", outside.display()), "leads out"),
        ("services: {web: {env_file: [{path: /etc/shadow}]}}\n".to_owned(), "leads out"),
        ("services: {web: {env_file: '${X:-/etc/shadow}'}}\n".to_owned(), "without variables"),
        ("x: &x {env_file: /etc/shadow}\nservices: {web: {<<: *x}}\n".to_owned(), "leads out"),
        ("services: {web: {label_file: /etc/shadow}}\n".to_owned(), "leads out"),
        ("services: {web: {extends: {file: /etc/passwd, service: x}}}\n".to_owned(), "leads out"),
        (format!("services: {{web: {{extends: {{file: {deep}}}}}}}\n"), "is not there"),
        ("include: [/etc/passwd]\n".to_owned(), "leads out"),
        ("include: ['https://example.com/x.git']\n".to_owned(), "without variables"),
        ("include: [{path: [a.yaml, /etc/passwd]}]\n".to_owned(), "leads out"),
        ("include: [{path: compose.yaml, env_file: /etc/shadow}]\n".to_owned(), "leads out"),
        ("include: [{path: compose.yaml, project_directory: /etc}]\n".to_owned(), "leads out"),
        ("secrets: {a: {file: /etc/shadow}}\n".to_owned(), "leads out"),
        ("configs: {a: {file: ../../x}}\n".to_owned(), "leads out"),
        ("services: [\n".to_owned(), "is not YAML"),
    ] {
        let request = bench.request_with("s1", text, &[("compose.yaml", &compose)]);
        let err = workspace.build(request, &bench.told).await.unwrap_err();
        assert!(chain(&err).contains(wanted), "{compose}: {}", chain(&err));
        assert!(!chain(&err).contains("root:"), "{}", chain(&err));
    }
    assert_eq!(calls().matches(" config ").count(), asked, "{}", calls());
    bench.assert_nothing_left(&workspace).await;
}
