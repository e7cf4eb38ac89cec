//! A server that is started again without a provider's key.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use overmind_testkit::upstream::{Answer, Script, Upstream};
use tokio::runtime::Runtime;

use crate::home::{Home, until};

const URL: &str = "OVERMIND_OPENAI_RESPONSES_URL";
const KEY: (&str, &str) = ("OPENAI_API_KEY", "sk-test-0123456789abcdef");
const UP: [&str; 4] = ["up", "-d", "--listen", "none"];

#[test]
fn a_start_without_a_key_of_unfinished_runs_is_refused_and_names_them() {
    let runtime = Runtime::new().unwrap();
    let busy = Answer::raw(503, "application/json", r#"{"error": {"message": "busy"}}"#);
    let script = Script::always(busy).every_path().for_strangers();
    let upstream = runtime.block_on(Upstream::start(script));
    let url = format!("{}/v1/responses", upstream.base_url());
    let mut home = Home::new();
    let keyed = |home: &mut Home| {
        home.start(&["--listen", "none"], &[KEY, (URL, url.as_str())]);
    };
    let down = |home: &mut Home| {
        home.run(&["down"]).ok();
        home.ended();
    };
    let run = |home: &Home| {
        let before = upstream.requests().len();
        let run = home.run(&["run", "worker", "go", "-o", "name"]).ok().line().to_owned();
        until("the model is asked", || (upstream.requests().len() > before).then_some(()));
        run
    };

    // At the first start there was no last one.
    keyed(&mut home);
    home.run(&["agent", "create", "--name", "worker", "--model", "gpt-5"]).ok();
    home.agent("ruled", &[]);
    let open = run(&home);
    let name = home.fetch(&open)["name"].as_str().unwrap().to_owned();
    down(&mut home);
    for args in [&UP[..], &["up", "--listen", "none"]] {
        let refused = home.run(args).fails(1);
        refused.says("had a key of openai").says(&name);
        refused.says("OPENAI_API_KEY").says("overmind vault set openai_api_key").says("--force");
    }
    let kept = std::fs::read_to_string(home.data().join("keyed.json")).unwrap();
    assert_eq!(kept, r#"["openai"]"#, "names and no keys");
    home.run(&[&UP[..], &["--force"]].concat()).ok();
    // Its next call finds no provider, which ends it, if this does not.
    let killed = home.run(&["kill", &open]);
    assert!(matches!(killed.code, 0 | 5), "{killed:?}");
    until("it has ended", || {
        let status = home.fetch(&open)["status"].as_str()?.to_owned();
        ["canceled", "failed"].contains(&status.as_str()).then_some(())
    });
    home.run(&["down"]).ok();

    // Without an open run that needs the key, no key is required.
    keyed(&mut home);
    down(&mut home);
    home.run(&UP).ok();
    home.run(&["down"]).ok();

    // A key in the vault is a key.
    keyed(&mut home);
    run(&home);
    home.fed(KEY.1, &["vault", "set", "openai_api_key", "--from-stdin"]).ok();
    down(&mut home);
    home.run_env(&[(URL, url.as_str())], &UP).ok();
    home.run(&["down"]).ok();
}
