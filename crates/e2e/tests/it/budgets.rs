//! Budgets in the whole product: nothing passes them, whatever is killed; the command line tells
//! what was spent and what is left.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use overmind_testkit::upstream::{Answer, Say, Script, Upstream};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::gateway::{Gateway, messages};
use crate::home::{Home, until};

/// A dollar for a million tokens in, two out.
const PRICES: &str = "as_of = \"2026-11-22\"\nsource = \"the test\"\n\
                      [models.m-1]\ninput = 1\noutput = 2\n";
const RUNS: u64 = 100;
const BOUNDS: &str =
    "[engine]\nmax_running = 200\nmax_running_per_agent = 200\nmax_running_per_colony = 200\n";

/// A data directory before its first start.
fn private_dir(at: &Path) {
    std::fs::DirBuilder::new().mode(0o700).create(at).unwrap();
}

struct World {
    home: Home,
    upstream: Upstream,
    /// Whether the model answers; otherwise it is silent for ever after its first words.
    answers: Arc<AtomicBool>,
    // The upstream lives on it.
    _runtime: Runtime,
}

impl World {
    fn new() -> Self {
        let (runtime, answers) = (Runtime::new().unwrap(), Arc::new(AtomicBool::new(false)));
        let open = Arc::clone(&answers);
        let script = Script::by(move |_| {
            let say = Answer::say(Say::text("all is well, so far as I can tell").usage(1_000, 100));
            if open.load(Ordering::SeqCst) { say } else { say.stall_after(3) }
        });
        let upstream = runtime.block_on(Upstream::start(script));
        let mut home = Home::new();
        private_dir(&home.data());
        std::fs::write(home.data().join("prices.toml"), PRICES).unwrap();
        std::fs::write(home.data().join("overmind.toml"), BOUNDS).unwrap();
        Self::start(&mut home, &upstream);
        home.run(&["agent", "create", "--name", "worker", "--model", "m-1"]).ok();
        Self { home, upstream, answers, _runtime: runtime }
    }

    fn start(home: &mut Home, upstream: &Upstream) {
        let url = upstream.base_url();
        home.start(&["--listen", "none"], &[("OVERMIND_MODEL_BASE_URL", url.as_str())]);
    }

    fn restart(&mut self) {
        Self::start(&mut self.home, &self.upstream);
    }

    fn answer(&self) {
        self.answers.store(true, Ordering::SeqCst);
    }

    /// The current state of the one limit.
    fn budget(&self) -> Value {
        let all = self.home.run(&["budget", "list", "-o", "json"]).ok().json();
        assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
        all[0].clone()
    }

    fn used(&self) -> u64 {
        self.budget()["used"]["microusd"].as_u64().unwrap()
    }

    fn reserved(&self) -> u64 {
        self.budget()["reserved"]["microusd"].as_u64().unwrap()
    }

    /// Dollars in millionths and calls, in all.
    fn costs(&self, by: &str) -> (u64, u64) {
        let rows = self.home.run(&["costs", "--by", by, "-o", "json"]).ok().json();
        let sum = |field: &str| {
            rows.as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).sum()
        };
        (sum("microusd"), sum("calls"))
    }

    fn runs(&self, status: &str) -> Vec<String> {
        let args = ["ps", "--all", "--status", status, "-o", "name", "--limit", "1000"];
        self.home.run(&args).ok().out.lines().map(str::to_owned).collect()
    }
}

#[test]
fn a_kill_during_a_hundred_calls_keeps_the_limits_and_the_sums() {
    let mut world = World::new();
    let limit = 2_000_000;
    let set = world.home.run(&["budget", "set", "swarm", "--usd", "2", "--per", "month"]).ok();
    set.shows("swarm");
    for _ in 0..RUNS {
        world.home.run(&["run", "worker", "go"]).ok();
    }
    // Only as many as fit call the model. Reserved amounts may be released: all others wait for
    // that, and not for a person.
    let (asked, reserved) = until("no other call would fit", || {
        let asked = u64::try_from(world.upstream.requests().len()).unwrap();
        let reserved = world.reserved();
        (asked > 0 && reserved + reserved / asked > limit).then_some((asked, reserved))
    });
    assert!(asked > 10 && asked < RUNS, "{asked} asked: the limit is to be in the middle");
    assert!(reserved <= limit && world.used() == 0, "{}", world.budget());
    assert_eq!(u64::try_from(world.runs("running").len()).unwrap(), RUNS);

    world.home.kill();
    world.answer();
    world.restart();
    let budget = world.budget();
    // Unfinished calls count in full, because the provider's bill is unknown. Continued calls find
    // nothing left.
    assert_eq!(world.used(), reserved, "{budget}");
    assert_eq!(world.reserved(), 0, "{budget}");
    until("all wait", || {
        (u64::try_from(world.runs("awaiting_input").len()).unwrap() == RUNS).then_some(())
    });
    assert_eq!(u64::try_from(world.upstream.requests().len()).unwrap(), asked);
    assert_eq!(world.used(), reserved);

    // One answer, for all that wait for this limit.
    let items = world.home.run(&["inbox", "--kind", "raise", "--flat", "-o", "json"]).ok().json();
    let item = items[0]["id"].as_str().unwrap().to_owned();
    world.home.run(&["approve", &item, "--usd", "50"]).ok();
    until("all are done", || {
        (u64::try_from(world.runs("succeeded").len()).unwrap() == RUNS).then_some(())
    });
    let call = 1_000 + 2 * 100;
    let spent = reserved + RUNS * call;
    until("the last settlement is written", || {
        (world.costs("day") == (spent, asked + RUNS)).then_some(())
    });
    assert_eq!(world.used(), spent);
    assert_eq!(world.reserved(), 0);
    for by in ["agent", "model", "session"] {
        assert_eq!(world.costs(by), (spent, asked + RUNS), "{by}");
    }
    let succeeded = world.runs("succeeded");
    for run in succeeded.iter().take(5) {
        world.home.run(&["replay", run, "--verify"]).ok();
    }
    world.home.run(&["audit", "verify"]).ok();
}

#[test]
fn an_emergency_stop_survives_a_kill_until_it_is_ended() {
    let mut world = World::new();
    world.answer();
    world.home.run(&["halt", "--reason", "who is this"]).ok().says("halted by admin");
    let run = world.home.run(&["run", "worker", "go", "-o", "name"]).ok().line().to_owned();
    world.home.kill();
    world.restart();
    assert_eq!(world.home.fetch(&run)["status"], "queued");
    assert!(world.upstream.requests().is_empty());
    world.home.run(&["resume"]).ok().says("resumed");
    world.home.wait_for(&run, "succeeded");
    world.home.run(&["resume"]).fails(5).says("nothing is halted");
    let killed = world.home.run(&["halt", "--kill", "-o", "json"]).ok().json();
    assert_eq!((&killed["halted"], &killed["canceled_runs"]), (&true.into(), &0.into()));
}

#[test]
fn a_limit_of_a_ritual_applies_to_its_runs_and_is_removed_with_it() {
    let world = World::new();
    world.answer();
    let home = &world.home;
    let ritual = json!({
        "apiVersion": "overmind/v1", "kind": "Ritual", "metadata": {"name": "daily"},
        "spec": {
            "schedule": "@daily", "suspend": true, "template": {"agent": "worker", "task": "go"},
        },
    });
    std::fs::write(home.work().join("ritual.json"), ritual.to_string()).unwrap();
    home.run(&["apply", "-f", "ritual.json"]).ok();
    home.run(&["budget", "set", "ritual/weekly", "--usd", "1", "--per", "day"]).fails(3);
    home.run(&["budget", "set", "project/p", "--usd", "1", "--per", "day"])
        .fails(2)
        .says("no run exists for a project");
    home.run(&["cron", "run", "daily"]).ok();
    until("the first has run", || (world.runs("succeeded").len() == 1).then_some(()));
    let set = ["budget", "set", "ritual/daily", "--usd", "0.0013", "--per", "total"];
    home.run(&set).ok().shows("ritual/daily");
    until("what it spent before counts", || (world.used() == 1_200).then_some(()));
    home.run(&["cron", "run", "daily"]).ok();
    let items = until("the second one asks for more", || {
        let items = home.run(&["inbox", "-o", "json"]).ok().json();
        (!items.as_array().unwrap().is_empty()).then_some(items)
    });
    let asked = items[0]["details"]["prompt"].as_str().unwrap().to_owned();
    assert!(asked.contains("ritual/daily"), "{items}");
    // Calls without an owner are not limited by it.
    let run = home.run(&["run", "worker", "go", "-o", "name"]).ok().line().to_owned();
    home.wait_for(&run, "succeeded");
    home.run(&["approve", items[0]["id"].as_str().unwrap(), "--usd", "1"]).ok();
    until("the second has run", || (world.runs("succeeded").len() == 3).then_some(()));
    until("it is counted", || (world.used() == 2_400 && world.reserved() == 0).then_some(()));
    home.run(&["delete", "ritual", "daily"]).ok();
    until("its limit is gone", || {
        let all = home.run(&["budget", "list", "-o", "json"]).ok().json();
        all.as_array().unwrap().is_empty().then_some(())
    });
}

#[test]
fn budgets_are_set_shown_and_removed() {
    let world = World::new();
    world.answer();
    let home = &world.home;
    home.run(&["budget", "list"]).ok().says("there are no limits");
    home.run(&["budget", "set", "agent:worker", "--usd", "5", "--per", "day"]).ok().shows("$5");
    home.run(&["budget", "set", "agent:worker", "--tokens", "9", "--per", "total", "--soft"]).ok();
    // Each command changes one amount, and `--no-…` removes it.
    let day = |more: &[&str]| {
        let all = [&["budget", "set", "agent:worker", "--per", "day"], more].concat();
        home.run(&all)
    };
    day(&["--tokens", "90000000"])
        .ok()
        .shows("$5.00, 90,000,000 tok")
        .says("$5.00 stays; --no-usd");
    day(&["--usd", "6"]).ok().shows("$6.00, 90,000,000 tok").says("--no-tokens removes them");
    let json = day(&["--no-tokens", "-o", "json"]).ok();
    assert!(json.err.is_empty(), "{}", json.err);
    let left = json.json()[0].clone();
    assert_eq!((&left["microusd"], &left["tokens"]), (&6_000_000.into(), &Value::Null), "{left}");
    day(&["--no-usd"]).fails(2).says("would have no amount").says("overmind budget rm");
    home.run(&["budget", "set", "agent:nobody", "--usd", "5", "--per", "day"]).fails(3);
    home.run(&["budget", "set", "hive:x", "--usd", "5", "--per", "day"])
        .fails(2)
        .says("is not a scope");
    home.run(&["budget", "set", "swarm", "--usd=-5", "--per", "day"]).fails(2).says("usd");
    let run = home.run(&["run", "worker", "go", "-o", "name"]).ok().line().to_owned();
    home.wait_for(&run, "succeeded");
    until("it is counted", || {
        let all = home.run(&["budget", "list", "-o", "json"]).ok().json();
        let [day, total] = all.as_array().unwrap().as_slice() else { panic!("{all}") };
        let settled = day["reserved"]["microusd"] == 0 && day["used"]["microusd"] == 1_200;
        (settled && total["used"]["tokens"] == 1_100).then_some(())
    });
    // The soft limit has created its item.
    let items = home.run(&["inbox", "--kind", "raise", "-o", "json"]).ok().json();
    assert_eq!(items.as_array().unwrap().len(), 1, "{items}");
    let item = items[0]["id"].as_str().unwrap();
    home.run(&["deny", item]).ok();
    home.run(&["costs"]).ok().shows("worker").shows("$0.0012");
    let ids = home.run(&["budget", "list", "-o", "name"]).ok().out;
    for id in ids.lines() {
        home.run(&["budget", "rm", id]).ok();
    }
    home.run(&["budget", "rm", "lim_0"]).fails(3);
    home.run(&["budget", "list"]).ok().says("there are no limits");
}

#[test]
fn a_run_can_be_started_with_its_own_budget() {
    let world = World::new();
    world.answer();
    let home = &world.home;
    let args = ["run", "--usd", "0.000001", "--name", "thrifty", "-o", "name", "worker", "go"];
    let run = home.run(&args).ok().line().to_owned();
    home.wait_for(&run, "awaiting_input");
    home.run(&["budget", "list"]).ok().shows("session:").shows("$0.000001");
    // One name for it, and the way to grant it.
    home.run(&["ps"]).ok().shows("over budget");
    home.run(&["inbox"]).ok().shows("budget request");
    home.run(&["inbox", "--kind", "budget-request"]).ok().shows("thrifty");
    let followed =
        home.run(&["run", "--follow", "--usd", "0.000001", "--name", "bud", "worker", "go"]);
    followed.says("bud: over budget").says("overmind approve bud --usd 1, or overmind deny bud");
    home.run(&["deny", "bud"]).ok();
    home.run(&["approve", "thrifty", "--yes"])
        .fails(2)
        .says("give an amount: --usd N or --tokens N");
    home.run(&["approve", "thrifty", "--usd", "2"]).ok();
    home.wait_for(&run, "succeeded");
    home.run(&["run", "--usd=-1", "worker", "go"]).fails(2).says("usd");
    home.run(&["rm", "thrifty", "bud", "--yes"]).ok();
    home.run(&["budget", "list"]).ok().says("there are no limits");
}

#[test]
fn prices_are_shown_with_date_and_source() {
    let home = Home::new();
    home.run(&["prices", "gpt-5"]).ok().shows("gpt-5");
    home.run(&["prices", "nobodys-model"]).fails(3).says("is unknown");
    let known =
        home.run_env(&[("OPENAI_API_KEY", "k")], &["prices", "gpt-5-2025-08-07", "-o", "json"]);
    let known = known.ok().json();
    assert_eq!(known[0]["provider"], "openai");
    assert!(known[0]["as_of"].as_str().unwrap().starts_with("20"), "{known}");
    assert!(known[0]["source"].as_str().unwrap().starts_with("https://"), "{known}");
    private_dir(&home.data());
    std::fs::write(home.data().join("prices.toml"), PRICES).unwrap();
    home.run(&["prices"]).ok().shows("m-1").shows("the test").shows("claude-opus-5");
    std::fs::write(home.data().join("prices.toml"), "[models.x]\ninput = -1\noutput = 1\n")
        .unwrap();
    home.run(&["prices"]).fails(1).says("models.x.input");
}

#[test]
fn attempts_that_broke_off_after_the_request_are_counted() {
    let runtime = Runtime::new().unwrap();
    let said = Answer::say(Say::text("all is well").usage(1_000, 100));
    let script = Script::new([Answer::hang_up(), said.clone(), said]);
    let upstream = runtime.block_on(Upstream::start(script));
    let mut home = Home::new();
    private_dir(&home.data());
    std::fs::write(home.data().join("prices.toml"), PRICES).unwrap();
    World::start(&mut home, &upstream);
    home.run(&["agent", "create", "--name", "worker", "--model", "m-1"]).ok();
    let run = home.run(&["run", "worker", "go", "-o", "name"]).ok().line().to_owned();
    home.wait_for(&run, "succeeded");
    let row = until("it is settled", || {
        let rows = home.run(&["costs", "--by", "session", "-o", "json"]).ok().json();
        Some(rows[0].clone()).filter(|row| row["calls"] == 1)
    });
    assert_eq!(upstream.requests().len(), 2, "both are one call of the run");
    // The first may have been read whole: as many tokens as it has bytes.
    let body = upstream.requests()[0].body.to_string().len();
    let input = row["input_tokens"].as_u64().unwrap();
    assert!(input > 2_000 && input < 3_000 + 2 * u64::try_from(body).unwrap(), "{row}");
    assert_eq!(row["microusd"], input + 2 * 100, "{row}");
    // The run's own cost is the settled amount.
    let cost = home.fetch(&run)["cost_usd"].as_f64().unwrap();
    assert!((cost * 1e6 - row["microusd"].as_f64().unwrap()).abs() < 0.5, "{cost} {row}");

    // The cost of the first attempt is unknown, and every view of the cost marks that.
    assert_eq!(row["at_most_calls"], 1, "{row}");
    assert_eq!(home.fetch(&run)["cost_at_most"], true);
    let whole = home.run(&["run", "worker", "go", "-o", "name"]).ok().line().to_owned();
    home.wait_for(&whole, "succeeded");
    let marked = |args: &[&str], name: &str| {
        let told = home.run(args).ok().out;
        let line =
            told.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{told}"));
        assert!(line.contains("$0.00"), "{line}");
        line.contains("≤ $0.00")
    };
    let name = |run: &str| home.fetch(run)["name"].as_str().unwrap().to_owned();
    assert!(marked(&["ps", "--all"], &name(&run)));
    assert!(!marked(&["ps", "--all"], &name(&whole)));
    assert!(marked(&["costs", "--by", "run"], &name(&run)));
    assert!(!marked(&["costs", "--by", "run"], &name(&whole)));
    let table = home.run(&["costs", "--by", "run"]).ok().out;
    assert!(!table.contains(&run), "{table}");
    home.run(&["costs", "--by", "run", "-o", "wide"]).ok().shows(&run).shows(&name(&run));
    home.run(&["costs", "--by", "run", "--limit", "1"]).ok().says("--limit 10 lists more");
    assert!(marked(&["info", &run], "cost"));
    assert!(!marked(&["info", &whole], "cost"));
    assert_eq!(home.fetch(&whole).get("cost_at_most"), None);
}

#[test]
fn embedding_calls_are_reserved_settled_and_stopped_like_other_calls() {
    let runtime = Runtime::new().unwrap();
    let body =
        r#"{"data":[{"embedding":[3.0,4.0]}],"usage":{"prompt_tokens":500,"total_tokens":500}}"#;
    let answer = Answer::raw(200, "application/json", body);
    let script = Script::always(answer).every_path().for_strangers();
    let upstream = runtime.block_on(Upstream::start(script));
    let mut home = Home::new();
    let url = format!("{}/v1/embeddings", upstream.base_url());
    let key = ("OPENAI_API_KEY", "embeddings-key-0815");
    home.start(&["--listen", "none"], &[key, ("OVERMIND_OPENAI_EMBEDDINGS_URL", url.as_str())]);
    let asked = || upstream.requests().len();
    let cost = |by: &str| -> Value { home.run(&["costs", "--by", by, "-o", "json"]).ok().json() };

    // The default model has a price: a limit in dollars lets it pass.
    home.run(&["budget", "set", "swarm", "--usd", "1", "--per", "day"]).ok();
    home.run(&["memory", "add", "the harbour of Oslo"]).ok();
    let rows = until("it is settled", || Some(cost("model")).filter(|rows| rows[0]["calls"] == 1));
    assert_eq!(rows[0]["key"], "text-embedding-3-small", "{rows}");
    // 500 tokens at two cents for a million.
    assert_eq!((&rows[0]["input_tokens"], &rows[0]["microusd"]), (&500.into(), &10.into()));

    // A session's memory calls count for the session and its agent.
    home.agent("keeper", &[]);
    let run = home.run(&["run", "keeper", "remember: Bergen has rain", "-o", "name"]).ok();
    let run = run.line().to_owned();
    home.wait_for(&run, "succeeded");
    let mine =
        |rows: &Value| rows.as_array().unwrap().iter().find(|row| row["key"] == run).cloned();
    let row = until("the session's is settled", || mine(&cost("session")));
    assert_eq!((&row["input_tokens"], &row["microusd"]), (&500.into(), &10.into()), "{row}");
    home.run(&["replay", &run, "--verify"]).ok();

    // An emergency stop applies to them, and so does a spent limit.
    let before = asked();
    home.run(&["halt", "--reason", "who is this"]).ok();
    home.run(&["memory", "search", "Oslo"]).fails(1).says("halted by admin");
    home.run(&["resume"]).ok();
    home.run(&["budget", "set", "swarm", "--tokens", "1100", "--per", "day"]).ok();
    home.run(&["memory", "search", "Oslo"]).fails(1).says("swarm");
    assert_eq!(asked(), before, "nothing was sent");
}

#[test]
fn gateway_costs_of_a_key_are_shown_and_limited() {
    let say = Answer::say(Say::text("hello").usage(1_000, 100));
    let dir = tempfile::tempdir().unwrap();
    let prices = dir.path().join("prices.toml");
    std::fs::write(&prices, PRICES.replace("m-1", "small-1")).unwrap();
    let config = format!("[models]\nprices = {prices:?}\n");
    let gateway = Gateway::with(Script::always(say), &[], &config);
    let home = &gateway.home;
    let key = home.run(&["key", "create", "ci", "--role", "operator", "-o", "name"]).ok();
    let key = key.line().to_owned();
    let ask = |token: &str| {
        let url = format!("{}/llm/anthropic/v1/messages", gateway.url);
        gateway.send(gateway.client.post(url).bearer_auth(token).json(&messages("hi")))
    };
    assert_eq!(ask(&key).status, 200);
    assert_eq!(ask(gateway.admin()).status, 200);
    let rows = home.run(&["costs", "--by", "key", "-o", "json"]).ok().json();
    let told: Vec<_> =
        rows.as_array().unwrap().iter().map(|row| (&row["key"], &row["microusd"])).collect();
    assert_eq!(told, [(&"admin".into(), &1_200.into()), (&"ci".into(), &1_200.into())], "{rows}");

    // Earlier spending counts, and another key has its own limit.
    home.run(&["budget", "set", "key:nobody", "--usd", "1", "--per", "day"]).fails(3);
    home.run(&["budget", "set", "key:ci", "--tokens", "1200", "--per", "day"]).ok().shows("key:ci");
    let refused = ask(&key);
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert!(refused.body.contains("key:ci"), "{}", refused.body);
    assert_eq!(ask(gateway.admin()).status, 200);
}
