//! The vault as clients of the API see it.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use serde_json::{Value, json};

use crate::home::Home;

const PHRASE: &str = "correct horse battery";

/// The status and the body that `POST /api/vault/unlock` answers a passphrase with.
fn unlock(home: &Home, passphrase: &str) -> (String, Value) {
    let token = std::fs::read_to_string(home.data().join("admin.token")).unwrap();
    let output = std::process::Command::new("curl")
        .args(["--silent", "--write-out", "\n%{http_code} %{content_type}", "--unix-socket"])
        .arg(home.data().join("overmind.sock"))
        .args(["-H", &format!("Authorization: Bearer {}", token.trim())])
        .args(["--json", &json!({ "passphrase": passphrase }).to_string()])
        .arg("http://localhost/api/vault/unlock")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.to_owned(), serde_json::from_str(body).unwrap())
}

#[test]
fn a_wrong_passphrase_is_a_client_error_that_names_it() {
    let mut home = Home::up();
    home.fed("value-of-a-secret-1", &["vault", "set", "web_key", "--from-stdin"]).ok();
    home.kill();
    home.start(&["--listen", "none"], &[("OVERMIND_VAULT_PASSPHRASE", PHRASE)]);
    home.run(&["vault", "rotate", "--master"]).ok();
    home.kill();
    home.start(&["--listen", "none"], &[]);

    let (status, problem) = unlock(&home, "wrong horse battery");
    assert_eq!(status, "422 application/problem+json", "{problem}");
    assert_eq!(problem["status"], 422);
    assert!(problem["detail"].as_str().unwrap().contains("the passphrase is wrong"), "{problem}");
    assert!(problem.to_string().contains("\"passphrase\""), "names the field: {problem}");
    assert!(!problem.to_string().contains("horse"), "quotes what was sent: {problem}");

    let (status, vault) = unlock(&home, PHRASE);
    assert_eq!(status, "200 application/json", "{vault}");
    assert_eq!((&vault["locked"], &vault["protection"]), (&json!(null), &json!("passphrase")));
}
