//! Commands and errors when no server runs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::os::unix::fs::PermissionsExt as _;

use crate::home::Home;

fn write_private(path: &std::path::Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::set_permissions(path.parent().unwrap(), std::fs::Permissions::from_mode(0o700))
        .unwrap();
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn commands_that_need_a_server_explain_how_to_start_one() {
    let home = Home::new();
    for args in [
        &["ps"][..],
        &["status"],
        &["run", "x", "y"],
        &["agent", "list"],
        &["memory", "search", "x"],
        &["key", "list"],
        &["cancel", "0123"],
        &["tool", "list"],
        &["get", "nodes"],
        &["backup", "x.db"],
    ] {
        let done = home.run(args).fails(4);
        assert_eq!(done.out, "");
        done.says("error: no server runs on ").says("hint: `overmind up -d` starts one");
    }
    assert!(!home.data().exists(), "asking makes nothing");
}

#[test]
fn a_missing_server_and_a_killed_server_have_different_errors() {
    let mut home = Home::up();
    home.kill();
    home.run(&["ps"]).fails(4).says("reaching the server at unix:");
    home.run(&["down"]).ok().says("was killed");
    home.run(&["--server", "http://127.0.0.1:1", "ps"]).fails(6).says("there is no token for");
    let token = [("OVERMIND_TOKEN", "ovk_x")];
    let done = home.run_env(&token, &["--server", "http://127.0.0.1:1", "ps"]).fails(4);
    done.says("reaching the server at http://127.0.0.1:1").says("overmind up");
    home.run(&["--server", "localhost:8420", "ps"]).fails(2).says("write http://HOST:PORT");
}

#[test]
fn the_configuration_shows_each_value_and_its_source() {
    let home = Home::new();
    let file = home.data().join("overmind.toml");
    write_private(
        &file,
        "[engine]\nmax_running = 7\n\n[models]\nopenai_api_key = \"sk-abcdefghijklmnopqrst\"\n",
    );
    let env = [("OVERMIND_LISTEN", "127.0.0.1:9999"), ("OVERMIND_TYPO", "x")];
    let done = home.run_env(&env, &["config", "show", "-o", "json"]).ok();
    done.says("OVERMIND_TYPO is set, but this version does not know it");
    let all = done.json();
    let find = |key: &str| all.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap();
    assert_eq!(find("server.listen")["value"], "127.0.0.1:9999");
    assert_eq!(find("server.listen")["source"], "environment OVERMIND_LISTEN");
    assert_eq!(find("engine.max_running")["value"], 7);
    assert_eq!(find("engine.max_running")["source"], format!("{}:2", file.display()));
    assert_eq!(find("log.level")["source"], "default");
    assert_eq!(find("server.tls_cert")["source"], "unset");
    assert_eq!(find("models.openai_api_key")["value"], "sk-a...qrst");
    assert!(!done.out.contains("bcdefghijklmnopq"), "a secret is never shown");
    let table = home.run_env(&env, &["config", "show"]).ok();
    table.shows("KEY").shows("environment OVERMIND_LISTEN");
    assert_eq!(home.run(&["config", "path"]).ok().line(), file.display().to_string());
}

#[test]
fn a_configuration_mistake_is_reported_with_position_and_remedy() {
    let home = Home::new();
    let file = home.data().join("overmind.toml");
    write_private(&file, "[server]\nlisten = \"none\"\nlisen = \"x\"\n");
    let done = home.run(&["config", "show"]).fails(1);
    done.says("overmind.toml:3: there is no setting `server.lisen`");
    done.says("hint: did you mean `server.listen`?");
    home.run(&["up"]).fails(1).says("there is no setting `server.lisen`");
    home.run(&["up", "-d"]).fails(1).says("there is no setting `server.lisen`");
    write_private(&file, "models.openai_api_key = \"sk-x\"\n");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    home.run(&["config", "show"]).fails(1).says("mode is 0644").says("hint: chmod 600 ");
}

#[test]
fn a_server_beyond_loopback_without_tls_does_not_start() {
    let home = Home::new();
    let done = home.run(&["up", "--listen", "0.0.0.0:0"]).fails(1);
    done.says("without TLS").says("--tls-cert");
    home.run(&["up", "--listen", "example.org:80"])
        .fails(1)
        .says("flag --listen is `example.org:80`");
}

#[test]
fn a_data_directory_that_others_can_enter_is_refused() {
    let home = Home::new();
    std::fs::create_dir(home.data()).unwrap();
    std::fs::set_permissions(home.data(), std::fs::Permissions::from_mode(0o755)).unwrap();
    home.run(&["up", "--listen", "none"]).fails(1).says("mode 0755").says("hint: chmod 700 ");
    let doctor = home.run(&["doctor"]).fails(1);
    doctor.shows("mode 0755: others can get in").shows("chmod 700 ").says("things are wrong");
}

#[test]
fn a_port_in_use_is_reported_with_a_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let home = Home::new();
    let done = home.run(&["up", "--listen", &address]).fails(1);
    done.says(&format!("listening on {address}")).says("--listen 127.0.0.1:0");
    let env = [("OVERMIND_LISTEN", address.as_str())];
    home.run_env(&env, &["doctor"]).fails(1).shows("something else listens there");
}

#[test]
fn doctor_accepts_this_machine_and_leaves_no_trace() {
    let home = Home::new();
    let env = [("OVERMIND_LISTEN", "127.0.0.1:0")];
    let done = home.run_env(&env, &["doctor", "-o", "json"]).ok();
    let findings = done.json();
    let health = |check: &str| {
        let all = findings.as_array().unwrap();
        all.iter().find(|finding| finding["check"] == check).map(|f| f["health"].clone())
    };
    for check in ["configuration", "data directory", "server", "port", "sandbox namespace", "git"] {
        assert_eq!(health(check).unwrap(), "fine", "{check}: {findings:#}");
    }
    for finding in findings.as_array().unwrap() {
        assert_eq!(finding["health"] == "fine", finding["remedy"].is_null(), "{finding}");
    }
    assert!(!home.data().exists());
}

#[test]
fn doctor_reports_an_invalid_database() {
    let home = Home::new();
    write_private(&home.data().join("overmind.db"), "this is certainly no database at all");
    home.run(&["doctor"]).fails(1).shows("is not a database").shows("overmind restore");
}

#[test]
fn an_audit_without_a_database_fails() {
    Home::new().run(&["audit", "verify"]).fails(3).says("there is no database at");
}

#[test]
fn a_quick_bench_measures_every_metric_and_judges_none() {
    let home = Home::new();
    let done = home.run(&["bench", "--quick", "-o", "json"]).ok();
    done.says("debug build").says("no goal is judged");
    let figures = done.json()["figures"].clone();
    let figures = figures.as_array().unwrap();
    let names: Vec<&str> = figures.iter().map(|one| one["name"].as_str().unwrap()).collect();
    let wanted = ["start to ready", "single step", "durable events"];
    assert!(wanted.iter().all(|name| names.contains(name)), "{names:?}");
    for one in figures {
        assert!(one["value"].as_f64().unwrap() > 0.0, "{one}");
        assert_eq!(one.get("goal"), None, "a tenth of the work is no full figure: {one}");
    }
}

#[test]
fn sandbox_levels_are_reported_without_a_server() {
    let home = Home::new();
    let told = home.run(&["sandbox", "levels"]).ok().out;
    assert!(told.contains("none       yes  NO ISOLATION AT ALL: "), "{told}");
    assert!(told.contains("strongest: "), "{told}");
}

#[test]
fn init_proposes_a_project_file_and_never_overwrites_one() {
    let home = Home::new();
    let project = home.data().parent().unwrap().join("shop");
    std::fs::create_dir_all(project.join(".git/objects")).unwrap();
    std::fs::create_dir_all(project.join(".git/refs")).unwrap();
    std::fs::write(project.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    std::fs::create_dir_all(project.join("app")).unwrap();
    std::fs::write(project.join("Procfile"), "web: bin/serve\n").unwrap();
    std::fs::write(project.join("compose.yaml"), "services: {db: {image: 'postgres:16'}}\n")
        .unwrap();
    let file = project.join(".overmind.yml");
    let inside = project.join("app").display().to_string();
    let shown = home.run(&["init", "--print", &inside]).ok();
    assert!(shown.out.contains("# From the Procfile."), "{}", shown.out);
    assert!(shown.out.contains("command: bin/serve") && shown.out.contains("engine: postgres"));
    assert!(!file.exists());
    home.run(&["init", &inside]).ok().says(&format!("wrote {}", file.display()));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), shown.out);
    std::fs::write(&file, "version: 1\n").unwrap();
    let refused = home.run(&["init", &inside]).fails(5);
    refused.says("already exists").says("`--force` replaces it");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "version: 1\n");
    let json = home.run(&["init", "--force", "-o", "json", &inside]).ok();
    let told: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(told["written"], true);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), shown.out);
    home.run(&["init", &format!("{inside}/nowhere")]).fails(3).says("nowhere");
    assert!(!home.data().exists(), "asking makes nothing");
}

#[test]
fn init_proposes_a_file_and_an_agent_with_a_usable_model() {
    let home = Home::new();
    let file = home.work().join(".overmind.yml");
    let key = [("ANTHROPIC_API_KEY", "sk-ant-REDACTED")];
    let refused = home.run_env(&key, &["init"]).fails(5);
    refused.says("is not in a git repository: nothing was written").says("git init");
    assert!(!file.exists());
    let done = home.run_env(&key, &["init", "--here"]).ok();
    done.shows("version: 1").says("overmind agent create --name coder");
    done.says("--model claude-sonnet-5-5").says("overmind run coder");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), done.out);
    // Neither a key nor a program of an agent: the message names the settings.
    home.run(&["init", "--print"]).ok().says("Set ANTHROPIC_API_KEY");
    let earlier = "services:\n  web:\n    command: ./serve.sh\n    port: 3000\n";
    std::fs::write(&file, earlier).unwrap();
    home.run(&["init", "--print"]).ok().shows("WEB_PORT: \"${web.port}\"");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), earlier);
    home.run(&["init", "--force"]).fails(5).says("overmind init --here");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), earlier);
    home.run(&["init", "--force", "--here", "-o", "json"]).ok().shows("overmind config show");
    assert!(std::fs::read_to_string(&file).unwrap().contains("strategy: process"));
}
