//! The vault from outside: secrets are stored and never printed, whatever happens to the server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use overmind_testkit::upstream::{Answer, Say, Script, Upstream};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::commands::Commands;
use crate::home::{Done, Home, until};
use crate::tty::Person;

const FIRST: &str = "vault-value-one-4711-abcdefgh";
const SECOND: &str = "vault-value-two-0815-ijklmnop";

impl Home {
    /// Runs a command with this on its standard input.
    pub(crate) fn fed(&self, input: &str, args: &[&str]) -> Done {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        Done {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Sets a secret; no output of the command contains its value.
    #[track_caller]
    pub(crate) fn set(&self, name: &str, value: &str, more: &[&str]) -> Value {
        let args = [&["vault", "set", name, "--from-stdin", "-o", "json"], more].concat();
        let done = self.fed(&format!("{value}\n"), &args).ok();
        assert!(!done.out.contains(value) && !done.err.contains(value), "{done:?}");
        done.json()[0].clone()
    }

    fn secret(&self, name: &str) -> Value {
        let all = self.run(&["vault", "list", "-o", "json"]).ok().json();
        let mut all = all.as_array().unwrap().clone().into_iter();
        all.find(|secret| secret["name"] == name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// Payloads of the events of this kind, oldest first.
    pub(crate) fn told(&self, kind: &str) -> Vec<Value> {
        let all = self.run(&["events", "--limit", "1000", "-o", "json"]);
        let all = all.ok().json();
        let mut all: Vec<Value> = all
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["type"] == kind)
            .map(|event| event["payload_json"].clone())
            .collect();
        all.reverse();
        all
    }

    /// None of these is in any file of the data directory, or in the server's log.
    #[track_caller]
    pub(crate) fn keeps_none_of(&self, texts: &[&str]) {
        let mut dirs = vec![self.data()];
        let mut looked = 0;
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap().flatten() {
                let path = entry.path();
                match entry.file_type().unwrap() {
                    kind if kind.is_dir() => dirs.push(path),
                    kind if kind.is_file() => {
                        looked += 1;
                        holds_none_of(&path, texts);
                    }
                    _ => {}
                }
            }
        }
        assert!(looked > 3, "{looked} files");
        holds_none_of(&self.path().join("server.log"), texts);
    }
}

#[track_caller]
fn holds_none_of(path: &Path, texts: &[&str]) {
    let bytes = std::fs::read(path).unwrap_or_default();
    for text in texts {
        let found = bytes.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(!found, "{} has a secret", path.display());
    }
}

/// None of these is in the arguments of any process of this machine.
#[track_caller]
fn no_arguments_hold(texts: &[&str]) {
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        if entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()) {
            holds_none_of(&entry.path().join("cmdline"), texts);
        }
    }
}

/// The `cksum` of a text: identifies a value without showing it.
fn digest(text: &str) -> String {
    let mut child = std::process::Command::new("cksum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

#[test]
fn a_secret_survives_a_kill_and_is_stored_nowhere_in_plain_text() {
    let mut home = Home::up();
    assert_eq!(home.run(&["vault", "status", "-o", "json"]).ok().json()["secrets"], 0);
    let set = home.set("WEB_KEY", FIRST, &["--keep", "1"]);
    assert_eq!((&set["name"], &set["version"]), (&json!("web_key"), &json!(1)));
    let mode = home.data().join("vault.key").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    home.kill();
    home.start(&["--listen", "none"], &[]);
    assert_eq!(home.secret("web_key")["version"], 1);

    // The same value is no new version; another one is, and the old one can be restored.
    assert_eq!(home.set("web_key", FIRST, &["--keep", "1"])["version"], 1);
    assert_eq!(home.set("web_key", SECOND, &["--keep", "1"])["version"], 2);
    home.kill();
    home.start(&["--listen", "none"], &[]);
    assert_eq!(home.secret("web_key")["versions"], json!([2, 1]));
    let back = home.run(&["vault", "rotate", "web_key", "--to", "1", "-o", "json"]).ok().json();
    assert_eq!(back[0]["version"], 3);
    let kinds = ["vault.secret_set", "vault.secret_rotated"].map(|kind| home.told(kind).len());
    assert_eq!(kinds, [1, 2]);

    // Whatever is written from now on, the values are masked in it.
    home.agent("worker", &[]);
    std::fs::write(home.work().join("leaked.txt"), format!("{FIRST} {SECOND}\n")).unwrap();
    let task = "shell: cat leaked.txt";
    let id = home.run(&["run", "worker", task, "--wait", "-o", "name"]).ok();
    let logs = home.run(&["logs", id.line()]).ok();
    logs.shows("[redacted:secret]");
    assert!(!logs.out.contains(FIRST) && !logs.out.contains(SECOND), "{}", logs.out);
    home.keeps_none_of(&[FIRST, SECOND]);

    home.run(&["vault", "rm", "web_key"]).ok();
    home.run(&["vault", "rm", "web_key"]).fails(3).says("Secret not found");
    assert_eq!(home.told("vault.secret_removed").len(), 1);
    home.run(&["audit", "verify"]).ok();
}

#[test]
fn a_secret_value_is_never_an_argument_and_is_typed_without_echo() {
    let home = Home::up();
    for args in [
        &["vault", "set", "web_key", FIRST][..],
        &["vault", "set", "web_key", "--", FIRST],
        &["vault", "set", &format!("web_key={FIRST}")],
        &["vault", "rotate", "web_key", FIRST],
    ] {
        let done = home.run(args).fails(2);
        done.says("cannot be an argument").says("--from-stdin");
        assert!(!done.err.contains(FIRST), "{}", done.err);
    }
    home.run(&["vault", "set", "web_key"]).fails(2).says("--from-stdin");
    let short = home.fed("hunter2", &["vault", "set", "web_key", "--from-stdin"]).fails(2);
    assert!(!short.err.contains("hunter2"), "{}", short.err);

    let mut person = Person::at(&home, 100, 20, &["vault", "set", "web_key"]);
    person.sees("Value of web_key:");
    person.types(&format!("x{}\x7f\x7f{FIRST}\r", "y"));
    person.sees("web_key");
    assert_eq!(person.leaves(), 0);
    assert!(!person.written().contains(FIRST), "the value was shown");
    assert_eq!(home.secret("web_key")["version"], 1);
    // Cancelled in the middle: nothing changes, and the terminal is restored.
    let mut person = Person::at(&home, 100, 20, &["vault", "rotate", "web_key"]);
    person.sees("Value of web_key:");
    person.types("half a value\x03");
    person.sees("canceled");
    assert_eq!(person.leaves(), 1);
    assert_eq!(home.secret("web_key")["version"], 1);
}

#[test]
fn a_key_is_rotated_while_runs_use_it() {
    let runtime = Runtime::new().unwrap();
    let script = Script::by(|_| Answer::say(Say::text("done").usage(10, 2))).for_strangers();
    let model = runtime.block_on(Upstream::start(script));
    let mut home = Home::new();
    std::fs::create_dir(home.data()).unwrap();
    std::fs::set_permissions(home.data(), PermissionsExt::from_mode(0o700)).unwrap();
    let file = home.data().join("overmind.toml");
    let text = format!(
        "[providers.acme]\nbase_url = \"{}/v1\"\napi_key = \"vault:acme\"\nmodels = [\"acme-*\"]\n",
        model.base_url()
    );
    std::fs::write(&file, text).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    home.start(&["--listen", "none"], &[]);
    home.set("acme", FIRST, &[]);
    home.run(&["agent", "create", "--name", "talker", "--model", "acme-1"]).ok();
    let keys = || -> Vec<String> {
        let asked = model.requests().into_iter();
        asked.filter_map(|request| request.headers.get("authorization").cloned()).collect()
    };
    home.run(&["run", "talker", "say it", "--wait"]).ok();
    assert_eq!(keys().last().unwrap(), &format!("Bearer {FIRST}"));
    home.fed(SECOND, &["vault", "rotate", "acme", "--from-stdin"]).ok();
    home.run(&["run", "talker", "say it", "--wait"]).ok();
    assert_eq!(keys().last().unwrap(), &format!("Bearer {SECOND}"));
    home.keeps_none_of(&[FIRST, SECOND]);

    // Its users are in the log, and not once for each call.
    let used = until("uses are told", || Some(home.told("vault.used")).filter(|t| !t.is_empty()));
    assert_eq!(
        (&used[0]["secret"], &used[0]["service"], &used[0]["host"]),
        (&json!("acme"), &json!("acme"), &json!("127.0.0.1"))
    );
    assert!(used.len() <= 2, "{used:?}");
    assert!(home.secret("acme")["uses"].as_u64().unwrap() >= 2);
}

#[test]
fn commands_get_a_secret_only_with_a_grant() {
    let home = Commands::up();
    home.0.set("npm_token", FIRST, &[]);
    let show = "printf %s \"$TOKEN\" | cksum | cut -d' ' -f1";
    let agent = json!({
        "name": "builder", "role": "builds", "model": "command", "sandbox": "none",
        "command": {"argv": ["sh", "-c", show], "env_from": {"TOKEN": "NPM_TOKEN"}},
    });
    let file = home.0.path().join("agent.json");
    std::fs::write(&file, agent.to_string()).unwrap();
    home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
    home.run(&["run", "--agent", "builder", "--name", "without", ""]).fails(10);
    let refused = home.status("without", "failed");
    let message = refused["error"]["message"].as_str().unwrap();
    let remedy = "overmind vault grant 'builder' --secret npm_token";
    assert!(message.contains("may not use the secret") && message.contains(remedy), "{message}");

    home.run(&["vault", "grant", "builder", "--secret", "npm_token"]).ok();
    home.run(&["run", "--agent", "builder", "--name", "with", ""]).ok();
    home.status("with", "succeeded");
    home.says("with", &digest(FIRST));
    // Rotated: the next start has the new one.
    home.0.fed(SECOND, &["vault", "rotate", "npm_token", "--from-stdin"]).ok();
    home.run(&["run", "--agent", "builder", "--name", "later", ""]).ok();
    home.status("later", "succeeded");
    home.says("later", &digest(SECOND));
    home.run(&["vault", "revoke", "builder", "--secret", "npm_token"]).ok();
    home.run(&["run", "--agent", "builder", "--name", "after", ""]).fails(10);
    home.status("after", "failed");
    let used = until("uses are told", || {
        let told = home.0.told("vault.used");
        Some(told).filter(|told| told.len() == 2)
    });
    assert!(used.iter().all(|used| used["agent"] == "builder" && used["host"] == "environment"));
    let kinds = ["vault.granted", "vault.revoked"].map(|kind| home.0.told(kind).len());
    assert_eq!(kinds, [1, 1]);
    home.0.keeps_none_of(&[FIRST, SECOND]);
    no_arguments_hold(&[FIRST, SECOND]);
}

#[test]
fn a_server_without_its_key_file_starts_and_reports_the_locked_vault() {
    let mut home = Home::up();
    home.set("web_key", FIRST, &[]);
    home.kill();
    let (key, away) = (home.data().join("vault.key"), home.path().join("away.key"));
    std::fs::rename(&key, &away).unwrap();
    home.start(&["--listen", "none"], &[]);
    let status = home.run(&["vault", "status", "-o", "json"]).fails(1).json();
    assert!(status["locked"].as_str().unwrap().contains("vault.key is missing"), "{status}");
    let listed = home.secret("web_key");
    assert!(listed["problem"].as_str().unwrap().contains("is missing"), "{listed}");
    home.fed(FIRST, &["vault", "set", "other", "--from-stdin"]).fails(1).says("is missing");
    assert!(!key.exists(), "no new key is made over what the old one opened");
    home.run(&["status"]).ok();
    std::fs::rename(&away, &key).unwrap();
    home.run(&["vault", "unlock", "--key-file"]).ok();
    assert!(home.secret("web_key")["problem"].is_null());
    home.kill();

    // Readable by others: refused, and reported.
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
    home.start(&["--listen", "none"], &[]);
    home.run(&["vault", "status"]).fails(1).shows("chmod 600");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    home.run(&["vault", "unlock", "--key-file"]).ok();

    // One row is damaged: that secret alone is.
    home.set("good", SECOND, &[]);
    home.kill();
    let store = rusqlite::Connection::open(home.data().join("overmind.db")).unwrap();
    let changed = store.execute(
        "UPDATE vault_secrets SET body = zeroblob(length(body)) WHERE name = 'web_key'",
        [],
    );
    assert_eq!(changed.unwrap(), 1);
    drop(store);
    home.start(&["--listen", "none"], &[]);
    let status = home.run(&["vault", "status", "-o", "json"]).ok().json();
    assert_eq!((&status["secrets"], &status["damaged"]), (&json!(2), &json!(1)));
    assert!(home.secret("web_key")["problem"].as_str().unwrap().contains("damaged"));
    assert!(home.secret("good")["problem"].is_null());
    home.run(&["vault", "rotate", "--master"]).fails(5).says("`web_key` (version 1) is damaged");
    home.run(&["vault", "rm", "web_key"]).ok();
    home.run(&["vault", "rotate", "--master"]).ok();
}

#[test]
fn a_passphrase_protects_the_key_file_after_a_rotation() {
    const PHRASE: &str = "correct horse battery";
    let mut home = Home::up();
    home.set("web_key", FIRST, &["--keep", "2"]);
    home.set("web_key", SECOND, &["--keep", "2"]);
    home.kill();
    let phrase = [("OVERMIND_VAULT_PASSPHRASE", PHRASE)];
    home.start(&["--listen", "none"], &phrase);
    let before = std::fs::read(home.data().join("vault.key")).unwrap();
    let status = home.run(&["vault", "rotate", "--master", "-o", "json"]).ok().json();
    assert_eq!(status["protection"], "passphrase");
    assert_ne!(std::fs::read(home.data().join("vault.key")).unwrap(), before);
    home.kill();
    home.start(&["--listen", "none"], &[]);
    home.run(&["vault", "status"]).fails(1).shows("needs its passphrase");
    let wrong = home.fed("wrong horse battery", &["vault", "unlock", "--from-stdin"]).fails(2);
    wrong.says("the passphrase is wrong");
    assert!(!wrong.err.contains("horse"), "{}", wrong.err);
    home.fed(PHRASE, &["vault", "unlock", "--from-stdin"]).ok();
    assert_eq!(home.secret("web_key")["versions"], json!([2, 1]));
    home.run(&["vault", "rotate", "web_key", "--to", "1"]).ok();
    home.kill();
    home.start(&["--listen", "none"], &phrase);
    assert!(home.secret("web_key")["problem"].is_null());
    home.keeps_none_of(&[FIRST, SECOND, PHRASE]);
}

#[test]
fn secrets_are_imported_from_files_and_environments_completely_or_not_at_all() {
    let home = Home::up();
    let file = home.path().join("keys.env");
    std::fs::write(&file, format!("A_KEY={FIRST}\nexport B_KEY='{SECOND}'\n")).unwrap();
    let path = file.to_str().unwrap();
    let came = home.run(&["vault", "import", path, "-o", "name"]).ok();
    assert_eq!(came.out, "a_key\nb_key\n");
    home.run(&["vault", "import", path]).ok().says("2 already had these values");
    let env = [("OVERMIND_CRED_C", "value-of-c-000"), ("OPENLEGION_CRED_D", "value-of-d-000")];
    let came = home.run_env(&env, &["vault", "import", "--env", "-o", "name"]).ok();
    assert_eq!(came.out, "c\nd\n");
    let bad = home.fed("E_KEY=value-of-e-000\nF_KEY=x\n", &["vault", "import", "-"]).fails(2);
    assert!(bad.err.contains("F_KEY") && !bad.err.contains("value-of-e"), "{}", bad.err);
    let names = home.run(&["vault", "list", "-o", "name"]).ok();
    assert_eq!(names.out, "a_key\nb_key\nc\nd\n");
    home.keeps_none_of(&[FIRST, SECOND, "value-of-c-000"]);
}

#[test]
fn only_admins_declare_services_and_the_operators_file_overrides_them() {
    let mut home = Home::new();
    std::fs::create_dir(home.data()).unwrap();
    std::fs::set_permissions(home.data(), PermissionsExt::from_mode(0o700)).unwrap();
    let text = "[services.openai]\nbase_url = \"https://proxy.corp.example/openai/v1\"\n";
    std::fs::write(home.data().join("overmind.toml"), text).unwrap();
    home.start(&["--listen", "none"], &[]);
    let all = home.run(&["vault", "services", "-o", "json"]).ok().json();
    let find = |all: &Value, name: &str| {
        all.as_array().unwrap().iter().find(|one| one["name"] == name).cloned().unwrap()
    };
    let openai = find(&all, "openai");
    assert_eq!(openai["origin"], "file");
    assert_eq!(openai["service"]["base_url"], "https://proxy.corp.example/openai/v1");
    assert_eq!(openai["service"]["secret"], "openai_api_key");
    assert_eq!(find(&all, "hunter")["ready"], false);
    home.set("hunter_api_key", FIRST, &[]);
    let declare = ["--base-url", "https://api.tracker.example/v2", "--secret", "tracker_token"];
    let allow = ["--allow", "GET /issues/**", "--allow", "POST|PATCH /issues/*"];
    let args = [&["vault", "declare", "tracker"], &declare[..], &allow].concat();
    home.run(&args).ok();
    home.run(&[&["vault", "declare", "openai"], &declare[..], &allow].concat())
        .fails(5)
        .says("[services.openai]");
    let bad = ["--base-url", "https://user:pw@evil.example", "--secret", "tracker_token"];
    home.run(&[&["vault", "declare", "evil"], &bad[..], &allow].concat()).fails(2);
    // An operator's key may not change where keys are sent, nor set or read any.
    let key = home.run(&["key", "create", "op", "--role", "operator", "-o", "json"]);
    let key = key.ok().json()["secret"].as_str().unwrap().to_owned();
    let socket = format!("unix:{}", home.data().join("overmind.sock").display());
    let env = [("OVERMIND_TOKEN", key.as_str()), ("OVERMIND_SERVER", &socket)];
    home.run_env(&env, &args).fails(6);
    home.run_env(&env, &["vault", "list"]).fails(6);
    home.run_env(&env, &["vault", "grant", "x", "--service", "tracker"]).fails(6);
    home.run_env(&env, &["vault", "services"]).ok();
    home.kill();
    home.start(&["--listen", "none"], &[]);
    let all = home.run(&["vault", "services", "-o", "json"]).ok().json();
    assert_eq!(find(&all, "tracker")["origin"], "declared");
    assert_eq!(find(&all, "hunter")["ready"], true);
    home.run(&["vault", "undeclare", "tracker"]).ok();
    home.run(&["vault", "undeclare", "hunter"]).fails(5);
}
