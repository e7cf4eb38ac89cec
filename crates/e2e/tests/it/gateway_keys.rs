//! A key of the vault, a command with a placeholder for it, and the gateway between them.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use overmind_testkit::upstream::{Say, Script, Upstream};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::commands::Commands;
use crate::home::{Home, until};

/// The key in the vault: only the upstream may see it.
const KEY: &str = "sk-proj-vault-4711-abcdefghijklmnop";

struct Door {
    url: String,
    client: reqwest::Client,
    runtime: Runtime,
}

impl Door {
    fn ask(&self, path: &str, token: &str, model: &str) -> (u16, String) {
        let body = json!({"model": model, "max_tokens": 8, "messages": [
            {"role": "user", "content": "hello"}]});
        let request = self.client.post(format!("{}/{path}", self.url)).bearer_auth(token);
        self.runtime.block_on(async {
            let answer = request.json(&body).send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        })
    }
}

fn environ(pid: &Value) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    bytes.split(|byte| *byte == 0).map(|one| String::from_utf8_lossy(one).into_owned()).collect()
}

#[test]
fn a_placeholder_reaches_only_the_models_of_its_service_with_the_vaults_key() {
    let runtime = Runtime::new().unwrap();
    let script = Script::always(Say::text("good day").usage(10, 2)).key(KEY).for_strangers();
    let upstream = runtime.block_on(Upstream::start(script));
    let chat = format!("{}/chat/completions", upstream.base_url());
    let mut home = Home::new();
    let said = home.start(
        &["--listen", "127.0.0.1:0"],
        &[
            ("OVERMIND_OPENAI_CHAT_COMPLETIONS_URL", chat.as_str()),
            ("OVERMIND_MODEL_BASE_URL", upstream.base_url().as_str()),
        ],
    );
    let url = said["url"].as_str().unwrap().to_owned();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let door = Door { url: format!("{url}/llm/openai/v1"), client, runtime };
    let home = Commands(home);
    home.0.set("openai_api_key", KEY, &[]);
    let agent = json!({
        "name": "talker", "role": "talks", "model": "command", "sandbox": "none",
        "command": {
            "argv": ["sh", "-c", "sleep 600"], "env_from": {"OPENAI_API_KEY": "service:openai"},
        },
    });
    let file = home.0.path().join("agent.json");
    std::fs::write(&file, agent.to_string()).unwrap();
    home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
    home.run(&["vault", "grant", "talker", "--service", "openai"]).ok();
    home.run(&["run", "--agent", "talker", "--name", "talks", ""]).ok();
    let environ = environ(&home.alive("talks"));
    assert!(!environ.iter().any(|one| one.contains(KEY)), "the key is in the environment");
    let var = |name: &str| {
        let found = environ.iter().find_map(|one| one.strip_prefix(&format!("{name}=")));
        found.unwrap_or_else(|| panic!("no {name} in {environ:?}")).to_owned()
    };
    assert_eq!(var("OPENAI_BASE_URL"), door.url);
    let token = var("OPENAI_API_KEY");
    assert!(token.starts_with("sk-ovm-"), "{token}");

    let (status, answer) = door.ask("chat/completions", &token, "openai:gpt-4o-mini");
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("good day"), "{answer}");
    let asked = upstream.requests();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].headers["authorization"], format!("Bearer {KEY}"));

    // Another provider's model, a forged token, and a missing token reach no provider.
    let (status, answer) = door.ask("chat/completions", &token, "custom:something");
    assert_eq!(status, 403, "{answer}");
    assert!(answer.contains("this placeholder is for `openai` alone"), "{answer}");
    for wrong in [format!("{token}0"), token.replace("-1-", "-2-"), "sk-ovm-".to_owned()] {
        assert_eq!(door.ask("chat/completions", &wrong, "openai:gpt-4o-mini").0, 401, "{wrong}");
    }
    assert_eq!(upstream.requests().len(), 1, "nothing of that arrived");

    // A call that the permission matrix denies is refused as soon as the matrix changes.
    let matrix = json!({"permissions": {"talker": {"models": ["openai:gpt-4o"]}}});
    std::fs::write(home.0.data().join("permissions.json"), matrix.to_string()).unwrap();
    let refused = until("the matrix counts", || {
        let (status, answer) = door.ask("chat/completions", &token, "openai:gpt-4o-mini");
        (status == 403).then_some(answer)
    });
    assert!(refused.contains("Agent talker cannot use model openai:gpt-4o-mini"), "{refused}");
    assert_eq!(door.ask("chat/completions", &token, "openai:gpt-4o").0, 200);

    home.run(&["kill", "talks"]).ok();
    home.until("talks", "it is over", |run| {
        run["status"] == "canceled" || run["status"] == "failed"
    });
    assert_eq!(door.ask("chat/completions", &token, "openai:gpt-4o").0, 401);
    home.0.keeps_none_of(&[KEY, &token]);
}

#[test]
fn claude_code_uses_the_server_once_the_vault_has_a_key() {
    let mut home = Home::new();
    home.start(&["--listen", "127.0.0.1:0"], &[]);
    let home = Commands(home);
    let agent = json!({
        "name": "teller", "role": "tells", "model": "command", "sandbox": "none",
        "command": {"provider": "claude", "argv": ["sh", "-c", "echo \"asks <$ANTHROPIC_BASE_URL>\""]},
    });
    let file = home.0.path().join("agent.json");
    std::fs::write(&file, agent.to_string()).unwrap();
    home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
    home.run(&["run", "--agent", "teller", "--name", "before", ""]);
    home.says("before", "asks <>");
    home.0.set("anthropic_api_key", KEY, &[]);
    home.run(&["run", "--agent", "teller", "--name", "after", ""]);
    let said = home.says("after", "asks <http");
    assert!(said.contains("/llm/anthropic>"), "{said}");
}

#[test]
fn a_dollar_limit_knows_the_price_of_a_model_with_a_vault_key() {
    let runtime = Runtime::new().unwrap();
    let script = Script::always(Say::text("good day").usage(10, 2)).key(KEY);
    let upstream = runtime.block_on(Upstream::start(script));
    let messages = format!("{}/messages", upstream.base_url());
    let mut home = Home::new();
    let url = ("OVERMIND_ANTHROPIC_MESSAGES_URL", messages.as_str());
    home.start(&["--listen", "127.0.0.1:0"], &[url]);
    let home = Commands(home);
    home.0.set("anthropic_api_key", KEY, &[]);
    for (name, model) in [("coder", "claude-sonnet-5-5"), ("odd", "anthropic:unheard-of")] {
        let agent = ["agent", "create", "--name", name, "--role", "talks", "--model", model];
        home.run(&agent).ok();
        home.run(&["budget", "set", &format!("agent:{name}"), "--usd", "5", "--per", "day"]).ok();
    }
    home.run(&["run", "--name", "hello", "--once", "--wait", "coder", "hello"]).ok();
    home.run(&["run", "--name", "dear", "--usd", "1", "--once", "--wait", "coder", "hello"]).ok();
    assert_eq!(upstream.requests().len(), 2);

    // A model without a price is refused with the command to type.
    home.run(&["run", "-d", "--name", "strange", "odd", "hello"]).ok();
    let asked = until("it asks", || {
        let shown = home.run(&["inbox", "-o", "json"]).ok().out;
        shown.contains("unheard-of").then_some(shown)
    });
    assert!(asked.contains("agent:odd has a limit in dollars"), "{asked}");
    assert!(!asked.contains("and agent:agt_"), "{asked}");
    assert_eq!(upstream.requests().len(), 2, "nothing was sent");
    // As the text describes it.
    let allow =
        ["budget", "set", "agent:odd", "--usd", "5", "--per", "day", "--allow-unknown-price"];
    home.run(&allow).ok();
    home.0.keeps_none_of(&[KEY]);
}
