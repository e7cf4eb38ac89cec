//! Agents with their own protocols: Claude Code, Codex, and other programs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::fmt::Write as _;
use std::path::Path;

use overmind_testkit::real::counterpart;
use overmind_testkit::upstream::{Answer, Received, Say, Script, Upstream};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::commands::Commands;
use crate::home::{Home, until};
use crate::tty::Person;

/// The value of the server's `OVERMIND_CRED_MODEL`, which the model asks for.
const KEY: &str = "model-key-4711-abcdefgh";

/// A model that other people's programs talk to.
struct Model {
    upstream: Upstream,
    // The upstream lives on it.
    _runtime: Runtime,
}

impl Model {
    fn new(answer: impl Fn(&Received) -> Answer + Send + 'static) -> Self {
        let runtime = Runtime::new().unwrap();
        let script = Script::by(answer).key(KEY).for_strangers();
        let upstream = runtime.block_on(Upstream::start(script));
        Self { upstream, _runtime: runtime }
    }

    /// The requests to the model itself.
    fn asked(&self) -> Vec<Received> {
        let all = self.upstream.requests().into_iter();
        all.filter(|request| request.wire.is_some()).collect()
    }
}

/// The conversation of a request, as text.
fn said(request: &Received) -> String {
    let body = &request.body;
    [&body["messages"], &body["input"]].map(ToString::to_string).concat()
}

/// Whether a tool has just answered.
fn after_tool(request: &Received) -> bool {
    let last = |name: &str| request.body[name].as_array().and_then(|all| all.last()).cloned();
    match (last("messages"), last("input")) {
        (Some(message), _) => message.to_string().contains("\"tool_result\""),
        (None, Some(item)) => item["type"].as_str().is_some_and(|kind| kind.ends_with("_output")),
        (None, None) => false,
    }
}

fn text(text: &str) -> Answer {
    Answer::say(Say::text(text).usage(1000, 100))
}

fn call(name: &str, args: &Value) -> Answer {
    Answer::say(Say::nothing().call("toolu_01", name, args).usage(1000, 100))
}

/// A server whose commands find the program in `bin`, and which has the model's key.
fn up(bin: &str) -> Commands {
    let mut home = Home::new();
    start(&mut home, bin);
    Commands(home)
}

fn start(home: &mut Home, bin: &str) {
    let path = format!("{bin}:/usr/local/bin:/usr/bin:/bin");
    let key = [("PATH", path.as_str()), ("OVERMIND_CRED_MODEL", KEY)];
    home.start(&["--listen", "none"], &key);
}

impl Commands {
    fn events(&self, name: &str, kind: &str) -> Vec<Value> {
        let all = self.run(&["events", name, "--limit", "1000", "-o", "json"]).ok().json();
        let events = all.as_array().unwrap().iter();
        events
            .filter(|event| event["type"] == kind)
            .map(|event| event["payload_json"].clone())
            .collect()
    }

    fn event(&self, name: &str, kind: &str) -> Value {
        until(kind, || self.events(name, kind).pop())
    }

    /// The key is in nothing that is stored or shown.
    fn keeps_no_key(&self, name: &str) {
        for args in [&["events", name, "-o", "json"][..], &["ps", "--all", "-o", "json"]] {
            assert!(!self.run(args).ok().out.contains(KEY), "{args:?} shows the key");
        }
        let mut dirs = vec![self.0.data()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap().flatten() {
                let path = entry.path();
                match entry.file_type().unwrap() {
                    kind if kind.is_dir() => dirs.push(path),
                    kind if kind.is_file() => {
                        let bytes = std::fs::read(&path).unwrap_or_default();
                        let found = bytes.windows(KEY.len()).any(|some| some == KEY.as_bytes());
                        assert!(!found, "{} has the key", path.display());
                    }
                    _ => {}
                }
            }
        }
    }
}

/// The flags by which Claude Code talks to our model.
fn claude(model: &Model) -> Vec<String> {
    let url = format!("ANTHROPIC_BASE_URL={}", model.upstream.base_url());
    let quiet = "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1";
    let flags = ["--agent", "claude", "--model", "sonnet", "--env", &url, "--env", quiet];
    let key = ["--env-from", "ANTHROPIC_API_KEY=MODEL"];
    flags.into_iter().chain(key).map(str::to_owned).collect()
}

fn run(home: &Commands, flags: &[String], more: &[&str]) {
    let flags = flags.iter().map(String::as_str);
    let args: Vec<&str> = ["run"].into_iter().chain(flags).chain(more.iter().copied()).collect();
    home.run(&args).ok();
}

fn kill_9(pid: &Value) {
    let kill = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(kill.unwrap().success());
}

fn made(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[test]
fn needs_claude_code_a_task_has_a_tool_call_a_result_and_a_cost() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let home = up(&bin);
    let file = home.0.work().canonicalize().unwrap().join("made.txt");
    let args = json!({"file_path": file, "content": "made by a tool\n"});
    let model = Model::new(move |request| match after_tool(request) {
        true => text("All done."),
        false => call("Write", &args),
    });
    run(&home, &claude(&model), &["--name", "mend", "--", "-do", "it"]);
    assert_eq!(home.run(&["wait", "mend"]).code, 0, "{}", home.run(&["logs", "mend"]).out);
    assert_eq!(made(&file).as_deref(), Some("made by a tool\n"));
    let row = home.named("mend");
    assert_eq!((&row["status"], &row["final_answer"]), (&json!("succeeded"), &json!("All done.")));
    assert!(row["cost_usd"].as_f64().unwrap() > 0.0, "{row}");
    assert!(row["usage"]["output_tokens"].as_u64().unwrap() >= 200, "{row}");
    let conversation = row["process"]["conversation"].as_str().unwrap();
    assert_eq!(home.event("mend", "agent.conversation")["conversation"], conversation);
    let used = home.event("mend", "agent.tool_use");
    assert_eq!((&used["tool_name"], &used["life"]), (&json!("Write"), &json!(1)));
    assert_eq!(used["args"]["file_path"], json!(file));
    assert_eq!(home.event("mend", "agent.tool_result")["ok"], true);
    assert_eq!(home.event("mend", "agent.said")["text"], "All done.");
    assert_eq!(home.event("mend", "agent.result")["is_error"], false);
    // The program got the task unchanged, though it looks like an option.
    let first = model.asked().into_iter().find(|request| said(request).contains("-do it"));
    assert!(first.unwrap().body["model"].as_str().unwrap().contains("sonnet"));
    home.keeps_no_key("mend");
    home.check();
}

#[test]
fn needs_claude_code_a_run_continues_after_kills_of_the_server_and_of_itself() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let mut home = up(&bin);
    let file = home.0.work().canonicalize().unwrap().join("made.txt");
    let args = json!({"file_path": file, "content": "once"});
    let model = Model::new(move |request| {
        if said(request).contains("You were interrupted") {
            text("Mended.")
        } else if after_tool(request) {
            Answer::hang()
        } else {
            call("Write", &args)
        }
    });
    let restart = ["--restart", "on-failure", "--backoff", "10ms", "--name", "long"];
    run(&home, &claude(&model), &[&restart[..], &["a task to remember"]].concat());
    until("the model hangs", || model.asked().iter().any(after_tool).then_some(()));
    let before = home.named("long");
    home.0.kill();
    start(&mut home.0, &bin);
    // The same process; no output is lost or repeated.
    let after = home.status("long", "running");
    assert_eq!(before["process"]["pid"], after["process"]["pid"]);
    assert_eq!(home.event("long", "agent.tool_result")["ok"], true);
    let row = home.named("long");
    kill_9(&row["process"]["pid"]);
    assert_eq!(home.run(&["wait", "long"]).code, 0, "{}", home.run(&["logs", "long"]).out);
    let ended = home.named("long");
    assert_eq!((&ended["process"]["life"], &ended["final_answer"]), (&json!(2), &json!("Mended.")));
    assert_eq!(ended["process"]["conversation"], row["process"]["conversation"]);
    let started = home.events("long", "process.starting");
    let resumed = started.last().unwrap()["argv"].to_string();
    assert!(resumed.contains("--resume"), "{resumed}");
    let asked = model.asked();
    let last = asked.iter().find(|request| said(request).contains("You were interrupted"));
    assert!(said(last.unwrap()).contains("a task to remember"), "the conversation is the same");
    for kind in ["agent.tool_use", "agent.tool_result", "agent.result"] {
        assert_eq!(home.events("long", kind).len(), 1, "{kind}");
    }
    home.check();
}

#[test]
fn needs_claude_code_a_session_accepts_messages_and_asks_for_permission() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let mut home = up(&bin);
    let outside = home.0.path().canonicalize().unwrap().join("outside.txt");
    let args = json!({"command": format!("touch {}", outside.display()), "description": "d"});
    let model = Model::new(move |request| {
        let now = said(request);
        match () {
            () if after_tool(request) => text("It was allowed."),
            () if now.contains("outside, please") => call("Bash", &args),
            () if now.contains("the second") => text("Second answer."),
            () => text("First answer."),
        }
    });
    run(&home, &claude(&model), &["--type", "session", "--name", "talk", "the first"]);
    until("it answers", || (home.events("talk", "agent.result").len() == 1).then_some(()));
    let cost = home.named("talk")["cost_usd"].as_f64().unwrap();
    home.run(&["send", "talk", "the", "second"]).ok();
    until("it answers", || (home.events("talk", "agent.result").len() == 2).then_some(()));
    let row = home.named("talk");
    assert_eq!((&row["status"], &row["process"]["life"]), (&json!("running"), &json!(1)));
    let twice = row["cost_usd"].as_f64().unwrap();
    assert!((twice - 2.0 * cost).abs() < cost / 2.0, "{cost} and then {twice}");
    // A question that waits through the server's death, and is answered in the protocol.
    home.run(&["send", "talk", "outside, please"]).ok();
    let row = home.status("talk", "awaiting_input");
    assert!(row["prompt"].as_str().unwrap().starts_with("Allow Bash: touch "), "{row}");
    home.0.kill();
    start(&mut home.0, &bin);
    home.status("talk", "awaiting_input");
    home.run(&["inbox"]).ok().shows("Allow Bash: touch");
    home.run(&["input", "talk", "yes"]).ok();
    until("it did what it asked for", || made(&outside));
    until("it answers", || (home.events("talk", "agent.result").len() == 3).then_some(()));
    home.run(&["logs", "talk"]).ok().shows("--- the second").shows("--- yes");
    home.run(&["stop", "talk"]).ok();
    home.status("talk", "canceled");
    home.check();
}

#[test]
fn needs_claude_code_a_failure_has_its_own_message() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let home = up(&bin);
    let model = Model::new(|_| Answer::status(400, "invalid_request_error", "no such model here"));
    run(&home, &claude(&model), &["--name", "bad", "anything"]);
    assert_ne!(home.run(&["wait", "bad"]).code, 0);
    let row = home.named("bad");
    assert_eq!(
        (&row["status"], &row["error"]["code"]),
        (&json!("failed"), &json!("provider_error"))
    );
    let message = row["error"]["message"].as_str().unwrap();
    assert!(message.contains("no such model here"), "{message}");
    // A missing credential is reported before a start.
    home.run(&["run", "--agent", "claude", "--env-from", "K=NOWHERE", "--name", "none", "x"])
        .fails(10);
    let row = home.status("none", "failed");
    assert!(row["error"]["message"].as_str().unwrap().contains("OVERMIND_CRED_NOWHERE"), "{row}");
    home.check();
}

/// An agent that is Codex, talking to our model.
fn codex(home: &Commands, model: &Model) {
    let provider = format!(
        "model_providers.om={{name=\"om\",base_url=\"{}/v1\",env_key=\"OM_KEY\",\
         wire_api=\"responses\"}}",
        model.upstream.base_url()
    );
    let argv = ["--dangerously-bypass-approvals-and-sandbox", "-c", "model_provider=om", "-c"];
    let argv: Vec<&str> = argv.into_iter().chain([provider.as_str()]).collect();
    let agent = json!({
        "name": "codex", "role": "writes code", "model": "command", "sandbox": "none",
        "command": {
            "provider": "codex", "argv": argv, "model": "gpt-5", "restart": "on-failure",
            "backoff_ms": 10, "env_from": {"OM_KEY": "MODEL"},
        },
    });
    let file = home.0.path().join("codex.json");
    std::fs::write(&file, agent.to_string()).unwrap();
    home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
}

#[test]
fn needs_codex_a_task_continues_after_a_kill() {
    let Some(bin) = counterpart("CODEX") else { return };
    let mut home = up(&bin);
    let model = Model::new(|request| {
        if said(request).contains("You were interrupted") {
            text("Mended.")
        } else if after_tool(request) {
            Answer::hang()
        } else {
            call("exec_command", &json!({"cmd": "echo made >> made.txt"}))
        }
    });
    codex(&home, &model);
    let work = home.0.work().canonicalize().unwrap();
    let workspace = ["--workspace", work.to_str().unwrap(), "--name", "long"];
    home.run(&[&["run"], &workspace[..], &["codex", "a task to remember"]].concat()).ok();
    until("the model hangs", || model.asked().iter().any(after_tool).then_some(()));
    home.0.kill();
    start(&mut home.0, &bin);
    home.status("long", "running");
    assert_eq!(home.event("long", "agent.tool_result")["ok"], true);
    kill_9(&home.named("long")["process"]["pid"]);
    assert_eq!(home.run(&["wait", "long"]).code, 0, "{}", home.run(&["logs", "long"]).out);
    let row = home.named("long");
    assert_eq!((&row["process"]["life"], &row["final_answer"]), (&json!(2), &json!("Mended.")));
    assert_eq!(made(&work.join("made.txt")).as_deref(), Some("made\n"));
    assert!(row["usage"]["input_tokens"].as_u64().unwrap() >= 1000, "{row}");
    assert_eq!(row["cost_usd"], Value::Null, "Codex tells no price");
    let used = home.events("long", "agent.tool_use");
    assert_eq!((used.len(), &used[0]["tool_name"]), (1, &json!("shell")));
    let starts = home.events("long", "process.starting");
    let resumed: Vec<&str> =
        starts[1]["argv"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let id = row["process"]["conversation"].as_str().unwrap();
    assert!(resumed.windows(2).any(|two| two == ["resume", id]), "{resumed:?}");
    let asked = model.asked();
    let last = asked.iter().find(|request| said(request).contains("You were interrupted"));
    assert!(said(last.unwrap()).contains("a task to remember"), "the conversation is the same");
    home.keeps_no_key("long");
    home.check();
}

const SHELL_AGENT: &str = r#"
say() { printf '{"overmind":%s}\n' "$1"; }
echo "an ordinary line"
echo '{"overmind":{"said":"not this: it is an error output"}}' >&2
if [ -n "$OVERMIND_CONVERSATION" ]; then
  say '{"said":"I go on with '"$OVERMIND_CONVERSATION"'","usage":{"input_tokens":7,"output_tokens":1}}'
  say '{"result":"done after all"}'
  exit 0
fi
say '{"conversation":"talk-1"}'
say '{"tool":{"id":"1","name":"touch","args":{"path":"made.txt"}}}'
touch made.txt
say '{"tool_result":{"id":"1","ok":true},"usage":{"input_tokens":10,"output_tokens":2},"cost_usd":0.5}'
printf '{"overmind":{"said":"half a li'
kill -9 $$
"#;

const PYTHON_AGENT: &str = r#"
import json, os, sys

def say(**what):
    print(json.dumps({"overmind": what}), flush=True)

assert os.environ["OVERMIND_SERVER"].startswith("unix:/") and os.environ["OVERMIND_TOKEN"]
assert not [name for name in os.environ if name.startswith(("CLAUDE", "CODEX"))]
say(conversation="py-1", said="x" * 100_000)
say(asks={"text": "Shall I?", "options": ["yes", "no"]})
answer = sys.stdin.readline().strip()
say(said="You said " + answer)
for line in sys.stdin:
    say(said="echo " + line.strip())
    if line.strip() == "enough":
        break
say(result="no credit left", is_error=True)
"#;

/// An agent that reports its actions in `lines`.
fn lines(home: &Commands, name: &str, command: &Value) {
    let agent = json!({
        "name": name, "role": "speaks", "model": "command", "sandbox": "none", "command": command,
    });
    let file = home.0.path().join("agent.json");
    std::fs::write(&file, agent.to_string()).unwrap();
    home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
}

#[test]
fn a_script_reports_its_actions_and_continues_its_conversation() {
    let home = Commands::up();
    std::fs::write(home.0.work().join("agent.sh"), SHELL_AGENT).unwrap();
    let argv = ["sh", "agent.sh"];
    let restart =
        json!({"provider": "lines", "argv": argv, "restart": "on-failure", "backoff_ms": 10});
    lines(&home, "teller", &restart);
    home.run(&["run", "--name", "tell", "teller"]).ok();
    assert_eq!(home.run(&["wait", "tell"]).code, 0);
    let row = home.named("tell");
    assert_eq!(
        (&row["final_answer"], &row["process"]["life"]),
        (&json!("done after all"), &json!(2))
    );
    assert_eq!((&row["cost_usd"], &row["usage"]["input_tokens"]), (&json!(0.5), &json!(17)));
    let said = home.events("tell", "agent.said");
    let said: Vec<&str> = said.iter().filter_map(|event| event["text"].as_str()).collect();
    assert_eq!(said, ["I go on with talk-1"]);
    assert_eq!(home.event("tell", "agent.tool_use")["args"]["path"], "made.txt");
    home.run(&["logs", "tell"]).ok().shows("an ordinary line").shows("half a li");
    // People see its actions and costs in words; the original lines are kept.
    let told = home.run(&["logs", "tell"]).ok().out;
    for words in [
        "conversation talk-1",
        "▸ touch {\"path\":\"made.txt\"}",
        "$0.5 so far",
        "10 tokens in, 2 out",
        "I go on with talk-1",
        "done after all",
    ] {
        assert!(told.lines().any(|line| line.contains(words)), "{words}: {told}");
    }
    assert!(!told.contains("{\"overmind\":{\"tool\""), "{told}");
    let raw = home.run(&["logs", "tell", "--raw"]).ok().out;
    assert!(raw.contains("{\"overmind\":{\"tool\"") && !raw.contains("▸"), "{raw}");
    let all = home.run(&["logs", "--all"]).ok().out;
    assert!(all.contains("tell | ▸ touch") && !all.contains("{\"overmind\":{\"tool\""), "{all}");
    home.check();
}

#[test]
fn a_program_asks_is_answered_and_fails_with_its_message() {
    let home = Commands::up();
    std::fs::write(home.0.work().join("agent.py"), PYTHON_AGENT).unwrap();
    let argv = ["python3", "agent.py"];
    lines(&home, "asker", &json!({"provider": "lines", "argv": argv, "kind": "session"}));
    home.run(&["run", "--name", "ask", "asker"]).ok();
    let row = home.status("ask", "awaiting_input");
    assert_eq!(row["prompt"], "Shall I?", "{row}");
    home.run(&["input", "ask", "yes"]).ok();
    home.run(&["send", "ask", "hello"]).ok();
    home.run(&["send", "ask", "enough"]).ok();
    let row = home.status("ask", "failed");
    assert_eq!(row["error"]["code"], "provider_error");
    assert_eq!(row["error"]["message"], "no credit left");
    let said = home.events("ask", "agent.said");
    let said: Vec<&str> = said.iter().filter_map(|event| event["text"].as_str()).collect();
    assert_eq!(said[1..], ["You said yes", "echo hello", "echo enough"]);
    assert_eq!(said[0].len(), 16 << 10, "a long text is cut");
    home.check();
}

/// Writes the protocol of Claude Code. It is silent for longer than any silence detection, and
/// continues writing after its answer.
const CLAUDE_LIKE: &str = r#"
import json, sys, time

def say(**what):
    print(json.dumps(what), flush=True)

def text(words):
    say(type="assistant", message={"content": [{"type": "text", "text": words}]})

say(type="system", subtype="init", session_id="c-1", model="m")
for line in iter(sys.stdin.readline, ""):
    words = json.loads(line)["message"]["content"]
    text("I think about " + words)
    time.sleep(4)
    text("It is " + words.upper())
    say(type="result", result="It is " + words.upper(), total_cost_usd=0.25,
        usage={"input_tokens": 1000, "output_tokens": 5}, num_turns=1)
    while True:
        say(type="rate_limit_event")
        time.sleep(0.05)
"#;

#[test]
fn a_message_to_an_agent_is_answered_in_words_after_its_turn() {
    let home = Commands::up();
    std::fs::write(home.0.work().join("agent.py"), CLAUDE_LIKE).unwrap();
    let argv = ["python3", "agent.py"];
    lines(&home, "pair", &json!({"provider": "claude", "argv": argv, "kind": "session"}));
    home.run(&["run", "--name", "pair", "pair"]).ok();
    // The first lines of the program are parsed before a message is sent.
    home.says("pair", "conversation c-1");
    let said = home.run(&["send", "pair", "--wait", "apples"]).ok().out;
    assert_eq!(said, "I think about apples\nIt is APPLES\n1,000 tokens in, 5 out, $0.25 so far\n");
    home.run(&["kill", "pair"]).ok();
    home.check();
}

#[test]
fn attach_to_an_agent_without_a_terminal_shows_words_and_leaves_it_working() {
    let home = Commands::up();
    std::fs::write(home.0.work().join("agent.py"), CLAUDE_LIKE).unwrap();
    let argv = ["python3", "agent.py"];
    lines(&home, "pair", &json!({"provider": "claude", "argv": argv, "kind": "session"}));
    home.run(&["run", "--name", "pair", "pair"]).ok();
    home.says("pair", "conversation c-1");
    let mut person = Person::at(&home.0, 120, 30, &["attach", "pair"]);
    person.sees("pair has no terminal, so this shows its output");
    person.sees("conversation c-1");
    home.run(&["send", "pair", "apples"]).ok();
    for words in ["I think about apples", "It is APPLES", "1,000 tokens in, 5 out, $0.25 so far"] {
        person.sees(words);
    }
    let written = person.written();
    assert!(!written.contains("\"type\"") && !written.contains("rate_limit"), "{written}");
    // The original output is available on request.
    home.run(&["logs", "pair", "--raw"]).ok().shows("rate_limit_event");
    person.types("\x03");
    person.leaves();
    assert_ne!(home.named("pair")["process"]["pid"], Value::Null, "it goes on");
    home.run(&["kill", "pair"]).ok();
    home.run(&["wait", "pair"]).fails(137);
    home.run(&["attach", "--read-only", "pair"]).fails(5).says("overmind logs pair");
    home.check();
}

#[test]
fn repeated_server_kills_lose_and_double_no_fact() {
    let mut home = Commands::up();
    let mut script = String::from("i=0; while [ $i -lt 60 ]; do i=$((i+1)); ");
    script.push_str(
        "printf '{\"overmind\":{\"said\":\"%s\",\"usage\":{\"input_tokens\":1}}}\\n' $i; ",
    );
    let _ = write!(script, "sleep 0.1; done");
    lines(&home, "counter", &json!({"provider": "lines", "argv": ["sh", "-c", script]}));
    home.run(&["run", "--name", "count", "counter"]).ok();
    for round in 1..=3 {
        let seen = || home.events("count", "agent.said").len();
        let enough = seen() + 3;
        until("it says more", || (seen() > enough).then_some(()));
        // Once in the middle of a commit.
        home.0.kill();
        let fail = [("OVERMIND_FAILPOINTS", "driver.after_commit:4")];
        home.0.start(&["--listen", "none"], if round == 2 { &fail[..] } else { &[] });
        if round == 2 {
            home.0.ended();
            home.0.start(&["--listen", "none"], &[]);
        }
    }
    assert_eq!(home.run(&["wait", "count"]).code, 0);
    let said = home.events("count", "agent.said");
    let said: Vec<&str> = said.iter().filter_map(|event| event["text"].as_str()).collect();
    let all: Vec<String> = (1..=60).map(|n| n.to_string()).collect();
    assert_eq!(said, all);
    assert_eq!(home.named("count")["usage"]["input_tokens"], 60);
    home.check();
}

#[test]
fn only_admins_choose_the_credentials_of_a_command() {
    let mut home = Home::new();
    start(&mut home, "/bin");
    let home = Commands(home);
    let made = home.run(&["key", "create", "op", "--role", "operator", "-o", "name"]).ok();
    let token = made.line().to_owned();
    let operator = [("OVERMIND_TOKEN", token.as_str())];
    // Not the key itself: it would be masked in a task.
    let argv = ["sh", "-c", "test \"${MODEL_KEY%4711*}\" = \"$0\"", "{task}"];
    lines(&home, "keyed", &json!({"argv": argv, "env_from": {"MODEL_KEY": "MODEL"}}));
    home.run(&["run", "--name", "has", "keyed", "model-key-"]).ok();
    assert_eq!(home.run(&["wait", "has"]).code, 0, "the key has reached the program");
    // Another caller may run it unchanged, but cannot redirect the key or name another one.
    let boxed = ["run", "--name", "as-it-is", "--sandbox", "namespace", "keyed", "x"];
    home.0.run_env(&operator, &boxed).ok();
    let other = ["run", "--env", "PATH=/tmp", "keyed", "x"];
    home.0.run_env(&operator, &other).says("only an admin");
    let more = ["run", "--env-from", "A=MODEL", "true"];
    home.0.run_env(&operator, &more).says("only an admin");
    assert_eq!(home.run(&["wait", "as-it-is"]).code, 1);
    home.check();
}
