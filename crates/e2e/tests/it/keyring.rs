//! The vault's key in the keyring of the operating system: a real GNOME Keyring on a separate bus.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::process::{Child, Command, Stdio};

use overmind_testkit::real::counterpart;
use serde_json::Value;

use crate::home::{Home, until};

const VALUE: &str = "vault-value-keyring-4711-abcdefgh";
const ENTRY: &str = "the-test";
const CONFIG: &str = "[vault]\nkey = \"keyring\"\nkeyring_entry = \"the-test\"\n";

/// A session's bus with a keyring on it, open.
struct Desktop {
    address: String,
    // The keyring ends before its bus.
    keyring: Child,
    bus: Child,
}

impl Drop for Desktop {
    fn drop(&mut self) {
        for child in [&mut self.keyring, &mut self.bus] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Desktop {
    fn start(home: &Home, daemon: &str) -> Self {
        let run = home.path().join("run");
        std::fs::DirBuilder::new().mode(0o700).create(&run).unwrap();
        let mut bus = Command::new("dbus-daemon")
            .args(["--session", "--nofork", "--print-address=1"])
            .env("XDG_RUNTIME_DIR", &run)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(bus.stdout.take().unwrap()).read_line(&mut address).unwrap();
        let address = address.trim().to_owned();
        let mut keyring = Command::new(daemon)
            .args(["--foreground", "--unlock", "--components=secrets"])
            .env_clear()
            .env("HOME", home.path())
            .env("XDG_RUNTIME_DIR", &run)
            .env("DBUS_SESSION_BUS_ADDRESS", &address)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        keyring.stdin.take().unwrap().write_all(b"of the login").unwrap();
        let this = Self { address, keyring, bus };
        until("the keyring is on the bus", || {
            let owner = this.call(
                "org.freedesktop.DBus",
                "/",
                &["org.freedesktop.DBus.NameHasOwner", "string:org.freedesktop.secrets"],
            );
            owner.contains("boolean true").then_some(())
        });
        this
    }

    fn env(&self) -> [(&'static str, &str); 1] {
        [("DBUS_SESSION_BUS_ADDRESS", self.address.as_str())]
    }

    fn call(&self, to: &str, path: &str, words: &[&str]) -> String {
        let mut command = Command::new("dbus-send");
        command.args(["--session", "--print-reply", &format!("--dest={to}"), path]).args(words);
        let output = command.envs(self.env()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `secret-tool`, on our entry.
    fn tool(&self, word: &[&str], input: &str) -> String {
        let mut command = Command::new("secret-tool");
        command.args(word).args(["application", "overmind", "vault", ENTRY]).envs(self.env());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    }

    fn lock(&self) {
        let at = "array:objpath:/org/freedesktop/secrets/collection/login";
        let lock = ["org.freedesktop.Secret.Service.Lock", at];
        let said = self.call("org.freedesktop.secrets", "/org/freedesktop/secrets", &lock);
        assert!(said.contains("collection/login"), "{said}");
    }
}

fn restart(home: &mut Home, env: &[(&str, &str)]) -> Value {
    home.kill();
    home.start(&["--listen", "none"], env);
    // A vault that is locked is a failure of this command's.
    home.run(&["vault", "status", "-o", "json"]).json()
}

#[track_caller]
fn is_locked(status: &Value, why: &str) {
    let locked = status["locked"].as_str().unwrap_or_default();
    assert!(locked.contains(why), "no `{why}` in {status}");
}

#[test]
fn needs_gnome_keyring_the_vault_key_is_in_the_keyring_and_never_created_twice() {
    let Some(daemon) = counterpart("GNOME_KEYRING") else { return };
    let mut home = Home::new();
    let desktop = Desktop::start(&home, &daemon);
    std::fs::DirBuilder::new().mode(0o700).create(home.data()).unwrap();
    std::fs::write(home.data().join("overmind.toml"), CONFIG).unwrap();
    home.start(&["--listen", "none"], &desktop.env());
    let doctor = home.run_env(&desktop.env(), &["doctor", "-o", "json"]).json();
    let found = |doctor: &Value| {
        let all = doctor.as_array().unwrap().iter();
        all.clone().find(|one| one["check"] == "vault").unwrap()["found"].to_string()
    };
    assert!(found(&doctor).contains("no key yet"), "{doctor}");

    home.set("a_token", VALUE, &[]);
    assert!(!home.data().join("vault.key").exists(), "there is no file");
    let first = desktop.tool(&["lookup"], "");
    let document: Value = serde_json::from_str(&first).unwrap();
    let key = document["keys"][0]["key"].as_str().unwrap();
    home.keeps_none_of(&[key, VALUE]);
    let status = restart(&mut home, &desktop.env());
    assert_eq!((&status["protection"], &status["locked"]), (&"keyring".into(), &Value::Null));
    let doctor = home.run_env(&desktop.env(), &["doctor", "-o", "json"]).json();
    assert!(found(&doctor).contains("the keyring's entry `the-test`"), "{doctor}");

    // Rotation puts another key there, and all is under it.
    home.run(&["vault", "rotate", "--master"]).ok();
    let second = desktop.tool(&["lookup"], "");
    let document: Value = serde_json::from_str(&second).unwrap();
    assert_eq!(document["keys"].as_array().unwrap().len(), 1);
    assert_ne!(first, second);
    let status = restart(&mut home, &desktop.env());
    assert_eq!((&status["damaged"], &status["locked"]), (&0.into(), &Value::Null));

    // Without a bus, locked, or without the entry: reported, and no new key is created.
    is_locked(&restart(&mut home, &[]), "cannot be had");
    desktop.tool(&["clear"], "");
    is_locked(&restart(&mut home, &desktop.env()), "the keyring's entry `the-test` is missing");
    home.run(&["vault", "list"]).ok();
    let refused = home.run(&["vault", "rm", "nothing"]);
    assert_ne!(refused.code, 0);
    assert_eq!(desktop.tool(&["lookup"], ""), "", "nothing was made");
    desktop.tool(&["store", "--label=brought back"], &second);
    home.run(&["vault", "unlock", "--key-file"]).ok();
    let status = home.run(&["vault", "status", "-o", "json"]).ok().json();
    assert_eq!((&status["damaged"], &status["locked"]), (&0.into(), &Value::Null));
    desktop.lock();
    is_locked(&restart(&mut home, &desktop.env()), "is locked: unlock the keyring");
    assert!(!home.data().join("vault.key").exists());
}

#[test]
fn needs_gnome_keyring_a_vault_with_a_key_file_moves_into_the_keyring_by_a_rotation() {
    let Some(daemon) = counterpart("GNOME_KEYRING") else { return };
    let mut home = Home::new();
    let desktop = Desktop::start(&home, &daemon);
    home.start(&["--listen", "none"], &desktop.env());
    home.set("a_token", VALUE, &[]);
    std::fs::write(home.data().join("overmind.toml"), CONFIG).unwrap();
    let status = restart(&mut home, &desktop.env());
    assert_eq!(status["protection"], "key_file", "it is there still");
    home.run_env(&desktop.env(), &["doctor"]).shows("the key is still in");
    home.run(&["vault", "rotate", "--master"]).ok();
    std::fs::remove_file(home.data().join("vault.key")).unwrap();
    let status = restart(&mut home, &desktop.env());
    assert_eq!((&status["protection"], &status["damaged"]), (&"keyring".into(), &0.into()));
    assert_eq!(status["locked"], Value::Null);
}
