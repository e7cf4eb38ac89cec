//! Commands in a sandbox whose only network is the mesh: what they reach, what they do not, and
//! real agents' programs that ask for models from inside.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use overmind_testkit::real::counterpart;
use overmind_testkit::upstream::{Answer, Received, Say, Script, Upstream};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::home::{Home, until};
use crate::program::program;

/// The key of the upstream: only the server may see it.
const KEY: &str = "model-key-2342-abcdefgh";

/// A server that listens on no TCP port at all, and the one model that it has.
struct Meshed {
    home: Home,
    upstream: Upstream,
    path: String,
    // The upstream lives on it.
    _runtime: Runtime,
}

impl Meshed {
    fn new(bin: &str, answer: impl Fn(&Received) -> Answer + Send + 'static) -> Self {
        let runtime = Runtime::new().unwrap();
        let script = Script::by(answer).key(KEY).for_strangers();
        let upstream = runtime.block_on(Upstream::start(script));
        let path = format!("{bin}:/usr/local/bin:/usr/bin:/bin");
        let home = Home::new();
        std::fs::DirBuilder::new().mode(0o700).create(home.data()).unwrap();
        let notes = ["notes/*"];
        let all = json!({"blackboard_read": notes, "blackboard_write": notes, "models": ["*"],
            "spawn": ["command"]});
        let permissions = json!({"permissions": {"default": all}}).to_string();
        std::fs::write(home.data().join("permissions.json"), permissions).unwrap();
        let prices = "as_of = \"2026-11-22\"\nsource = \"the test\"\n\
                      [models.\"upstream-1\"]\ninput = 1.25\noutput = 10\n";
        std::fs::write(home.data().join("prices.toml"), prices).unwrap();
        let mut meshed = Self { home, upstream, path, _runtime: runtime };
        meshed.start();
        meshed
    }

    fn start(&mut self) {
        let base = self.upstream.base_url();
        let env = [
            ("OVERMIND_MODEL_BASE_URL", base.as_str()),
            ("OVERMIND_MODEL_API_KEY", KEY),
            ("PATH", &self.path),
        ];
        self.home.start(&["--listen", "none"], &env);
    }

    /// The beginning of a command line in a sandbox, with the default network.
    fn begin(&self, name: &str, words: &[&str]) {
        let args = ["run", "--name", name, "--sandbox", "namespace", "--pipes", "--"];
        self.home.run(&[&args, words].concat()).ok();
    }

    /// Begins an agent of another's, as a sandbox shows it: with the directory of its program.
    fn agent(&self, provider: &str, bin: &str, more: &Value) {
        let program = Path::new(bin).canonicalize().unwrap();
        let modules = program.ancestors().find(|path| path.ends_with("node_modules"));
        let mut command = json!({"provider": provider, "read": [modules.unwrap_or(&program)]});
        command.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let agent = json!({"name": "boxed", "role": "r", "model": "command",
            "sandbox": "namespace", "command": command});
        let file = self.home.path().join("agent.json");
        std::fs::write(&file, agent.to_string()).unwrap();
        self.home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
    }

    fn named(&self, name: &str) -> Value {
        let all = self.home.run(&["ps", "--all", "-o", "json"]).ok().json();
        let mut runs = all.as_array().unwrap().iter();
        runs.find(|run| run["name"] == name).unwrap_or_else(|| panic!("no {name}")).clone()
    }

    fn log(&self, name: &str) -> String {
        self.home.run(&["logs", name]).out
    }

    fn wait(&self, name: &str) {
        let waited = self.home.run(&["wait", name]);
        assert_eq!(waited.code, 0, "{} {} {}", waited.out, self.log(name), self.home.log());
    }

    /// The records of model calls in the run's log.
    fn settled(&self, name: &str) -> Vec<Value> {
        let all = self.home.run(&["events", name, "--limit", "1000", "-o", "json"]).ok().json();
        let all = all.as_array().unwrap().iter();
        all.filter(|event| event["type"] == "budget.settled")
            .map(|event| event["payload_json"].clone())
            .collect()
    }

    /// The calls of a run: recorded for the run, with tokens and cost, and made with the server's key.
    fn calls(&self, name: &str, at_least: usize) {
        let calls = until("its calls are told", || {
            Some(self.settled(name)).filter(|calls| calls.len() >= at_least)
        });
        let id = self.named(name)["id"].clone();
        for call in &calls {
            assert_eq!((&call["run_id"], &call["usage"]["output_tokens"]), (&id, &json!(100)));
        }
        // A program may ask another model for a title, whose price is unknown.
        let priced = calls.iter().filter(|call| call["spent"]["microusd"] == 2250).count();
        assert!(priced >= at_least, "{calls:?}");
        for request in self.upstream.requests() {
            let headers = format!("{:?}", request.headers);
            assert!(headers.contains(KEY) && !headers.contains("ovs_"), "{headers}");
        }
        assert!(!self.log(name).contains(KEY));
        let verified = self.home.run(&["sandbox", "verify", name]).ok();
        verified.shows("network mesh").shows("listening: tcp 127.0.0.1:80, udp 127.0.0.1:53");
    }
}

fn says(text: &str) -> Answer {
    Answer::say(Say::text(text).usage(1000, 100))
}

/// Calls the server from inside, through the relay: `ask METHOD PATH TOKEN BODY` prints status and body.
const ASK: &str = r#"
import http.client, json, os, socket, sys, time

def ask(method, path, token=None, body=None):
    door = http.client.HTTPConnection("127.0.0.1", 80, timeout=60)
    headers = {"content-type": "application/json"}
    if token:
        headers["authorization"] = "Bearer " + token
    door.request(method, path, body and json.dumps(body), headers)
    answer = door.getresponse()
    return answer.status, answer.read().decode()

def model(token, text="hello"):
    body = {"model": "upstream-1", "messages": [{"role": "user", "content": text}]}
    return ask("POST", "/llm/openai/v1/chat/completions", token, body)

def show(name, value):
    print(name, value, flush=True)

def reaches(host, port):
    began = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=60).close()
        return "reached"
    except OSError as err:
        # Not by patience: the kernel says so.
        return "late" if isinstance(err, TimeoutError) else "refused"

own = os.environ["OVERMIND_TOKEN"]
"#;

#[test]
fn a_sandboxed_command_reaches_only_models_and_the_mesh_with_its_token() {
    let meshed = Meshed::new("/bin", |_| says("hello there"));
    // Another run's token, and an operator's, that are inside the sandbox.
    let work = meshed.home.work();
    meshed.begin("other", &["printf %s \"$OVERMIND_TOKEN\" > other.token; exec sleep 1000"]);
    let other = until("the other's token", || {
        std::fs::read_to_string(work.join("other.token")).ok().filter(|token| !token.is_empty())
    });
    assert!(other.starts_with("ovs_"), "{other}");
    let admin = std::fs::read_to_string(meshed.home.data().join("admin.token")).unwrap();
    std::fs::write(work.join("admin"), admin.trim()).unwrap();
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = host.local_addr().unwrap().port();
    let script = format!(
        r#"{ASK}
other, admin = open("other.token").read(), open("admin").read()
show("model", model(own)[0])
show("models", ask("GET", "/llm/anthropic/v1/models", own)[0])
show("put", ask("PUT", "/mesh/blackboard/notes/a", own, {{"value": 7}})[0])
show("got", json.loads(ask("GET", "/mesh/blackboard/notes/a", own)[1])["value"]["value"])
show("tools", ask("POST", "/mcp", own, {{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}})[0])
show("itself", ask("GET", "/api/runs/" + os.environ["OVERMIND_SESSION_ID"], own)[0])
for name, token in [("none", None), ("wrong", "ovs_x"), ("other", other), ("admin", admin)]:
    show(name, [model(token)[0], ask("GET", "/mesh/blackboard/notes/a", token)[0],
                ask("GET", "/api/runs", token)[0]])
for path in ["/api/keys", "/api/vault/secrets", "/metrics", "/api/settings/x", "/api/halt"]:
    show(path, [ask("GET", path, token)[0] for token in [None, own, admin]])
for host, port in [("127.0.0.1", {port}), ("169.254.169.254", 80), ("198.51.100.1", 443)]:
    show(host, reaches(host, port))
for name in ["example.com", "metadata.google.internal", "overmind.sh"]:
    try:
        socket.getaddrinfo(name, 443)
        show(name, "known")
    except socket.gaierror:
        show(name, "unknown")
show("localhost", socket.gethostbyname("localhost"))
show("server", [os.environ[name] for name in ["OVERMIND_SERVER", "OVERMIND_GATEWAY"]])
"#
    );
    std::fs::write(work.join("look.py"), script).unwrap();
    meshed.begin("look", &["python3", "look.py"]);
    meshed.wait("look");
    let log = meshed.log("look");
    let expected = [
        "model 200",
        "models 200",
        "put 200",
        "got 7",
        "tools 200",
        "itself 200",
        "none [401, 401, 401]",
        "wrong [401, 401, 401]",
        "other [403, 403, 403]",
        "admin [403, 403, 403]",
        "/api/keys [403, 403, 403]",
        "/api/vault/secrets [403, 403, 403]",
        "/metrics [403, 403, 403]",
        "/api/settings/x [403, 403, 403]",
        "/api/halt [403, 403, 403]",
        "127.0.0.1 refused",
        "169.254.169.254 refused",
        "198.51.100.1 refused",
        "example.com unknown",
        "metadata.google.internal unknown",
        "overmind.sh unknown",
        "localhost 127.0.0.1",
        "server ['http://127.0.0.1:80', 'http://127.0.0.1:80']",
    ];
    let said: Vec<&str> = log.lines().filter(|line| !line.starts_with("---")).collect();
    assert_eq!(said, expected);
    host.set_nonblocking(true).unwrap();
    assert!(host.accept().is_err(), "nobody came to the host's port");
    meshed.calls("look", 1);
    assert_eq!(meshed.settled("other"), [] as [Value; 0]);
    meshed.home.run(&["kill", "other"]).ok();
}

#[test]
fn a_call_after_a_server_kill_reaches_the_next_server() {
    let mut meshed = Meshed::new("/bin", |_| says("hello there"));
    let script = format!(
        r#"{ASK}
show("first", model(own)[0])
while not os.path.exists("go"):
    time.sleep(0.01)
# Begins while nobody is there.
show("second", model(own)[0])
show("third", model(own)[0])
"#
    );
    std::fs::write(meshed.home.work().join("ask.py"), script).unwrap();
    meshed.begin("ask", &["python3", "ask.py"]);
    until("its first call", || meshed.log("ask").contains("first 200").then_some(()));
    until("it is recorded", || (meshed.settled("ask").len() == 1).then_some(()));
    meshed.home.kill();
    std::fs::write(meshed.home.work().join("go"), "").unwrap();
    meshed.start();
    meshed.wait("ask");
    assert!(meshed.log("ask").contains("second 200\nthird 200\n"), "{}", meshed.log("ask"));
    assert_eq!(meshed.named("ask")["process"]["life"], 1);
    meshed.calls("ask", 3);
}

#[test]
fn the_command_line_in_a_sandbox_finds_its_server_through_the_relay() {
    let meshed = Meshed::new("/bin", |_| says("hello there"));
    let program = program();
    let directory = Path::new(program).parent().unwrap();
    let agent = json!({"name": "inner", "role": "r", "model": "command", "sandbox": "namespace",
        "command": {"argv": [program, "can", "me", "read", "{task}"], "read": [directory]}});
    let file = meshed.home.path().join("agent.json");
    std::fs::write(&file, agent.to_string()).unwrap();
    meshed.home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
    meshed.home.run(&["run", "--name", "inner", "inner", "notes/a"]).ok();
    meshed.wait("inner");
    meshed.home.run(&["run", "--name", "denied", "inner", "secrets/a"]).ok();
    assert_ne!(meshed.home.run(&["wait", "denied"]).code, 0, "{}", meshed.log("denied"));
    assert!(meshed.log("denied").contains("inner"), "{}", meshed.log("denied"));
    assert_eq!(meshed.home.run(&["info", "inner", "-o", "json"]).ok().json()["network"], "mesh");
    meshed.home.run(&["info", "inner"]).ok().shows("mesh");
}

/// Starts children, waits for them, reads what they wrote, and tries what it may not. `$om` is the
/// program, `$level` what its children are called after, `$other` a run of somebody else's.
const ORCHESTRATOR: &str = r#"
denied() { if "$om" "$@" > out 2> err; then echo "ALLOWED $*"; else echo "$? $*"; fi; }

"$om" run -d --name "$level-one" sh -c 'echo "one of $OVERMIND_SESSION_NAME"; exit 3' > ids 2> err
"$om" run -d --parent me --name "$level-two" 'echo two; echo "is two"' >> ids 2> err
"$om" run --parent "$OVERMIND_SESSION_ID" --name "$level-three" \
    sh -c 'read word; echo "heard $word"' >> ids 2> err
"$om" send "$level-three" apple > out
for kid in one two three; do
    "$om" wait "$level-$kid" > out; echo "$kid ended with $?"
    "$om" logs "$level-$kid" | grep -v -e '^---' -e '^apple' -e human | tr -d '\r'
done
"$om" run --name "$level-four" sleep 1000 >> ids 2> err
"$om" info "$level-four" -o json | grep -c "\"parent_id\": \"$OVERMIND_SESSION_ID\""
"$om" stop "$level-four" > out; "$om" wait "$level-four" > out; echo "four ended with $?"
"$om" ps --all -o json | grep '"name"' | sort
"$om" ps --children me --all -o name | wc -l
"$om" info me -o json | grep '"name"'
[ "$level" = boxed ] || exit 0
for verb in logs info stop kill wait result work; do denied $verb "$other"; done
denied send "$other" hello
denied run --parent "$other" true
denied run --agent inner true
denied run --sandbox none --name "$level-bare" true
denied stop me
denied agent create --name mine --model deterministic
denied key list
denied vault list
denied inbox
denied budget list
denied memory list
denied events
denied halt
denied done me --discard --yes
echo '{"spawn": ["**"]}' | denied acl set boss -
"#;

/// The answers there: exit codes for forbidden and for missing objects.
const DENIED: [&str; 15] = [
    "3 send OTHER hello",
    "6 run --parent OTHER true",
    "6 run --agent inner true",
    "6 run --sandbox none --name LEVEL-bare true",
    "6 stop me",
    "6 agent create --name mine --model deterministic",
    "6 key list",
    "6 vault list",
    "6 inbox",
    "6 budget list",
    "6 memory list",
    "6 events",
    "6 halt",
    "6 done me --discard --yes",
    "6 acl set boss -",
];

#[test]
fn a_shell_script_in_a_run_controls_only_its_own_tree() {
    let meshed = Meshed::new("/bin", |_| says("hello there"));
    let home = &meshed.home;
    let program = program();
    std::fs::write(home.work().join("orchestrate.sh"), ORCHESTRATOR).unwrap();
    let create = |agent: Value| {
        let file = home.path().join("agent.json");
        std::fs::write(&file, agent.to_string()).unwrap();
        home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
    };
    let read = [Path::new(program).parent().unwrap()];
    create(
        json!({"name": "inner", "role": "r", "model": "command", "command": {"argv": ["true"]}}),
    );
    let other = home.run(&["run", "-d", "-o", "name", "--name", "other", "sleep", "1000"]).ok();
    for level in ["namespace", "none"] {
        let word = if level == "none" { "bare" } else { "boxed" };
        let env =
            [format!("om={program}"), format!("level={word}"), format!("other={}", other.line())];
        // The default, and commands in a person's own shell.
        let mut agent = json!({"name": word, "role": "r", "model": "command",
            "command": {"argv": ["sh", "{task}"], "env": env}});
        match level {
            "none" => agent["sandbox"] = json!(level),
            _ => agent["command"]["read"] = json!(read),
        }
        create(agent);
        home.run(&["run", "-d", "--name", word, word, "orchestrate.sh"]).ok();
        meshed.wait(word);
        let log = meshed.log(word);
        let said: Vec<&str> = log.lines().filter(|line| !line.starts_with("---")).collect();
        let at = |text: &str| text.replace("LEVEL", word).replace("OTHER", other.line());
        let mut expected = vec![
            at("one ended with 3"),
            at("one of LEVEL-one"),
            at("two ended with 0"),
            at("two"),
            at("is two"),
            at("three ended with 0"),
            at("heard apple"),
            at("1"),
            at("four ended with 143"),
        ];
        let mut names = ["", "-four", "-one", "-three", "-two"].map(|kid| format!("{word}{kid}"));
        names.sort();
        expected.extend(names.iter().map(|name| format!("    \"name\": \"{name}\",")));
        expected.extend([at("4"), at("  \"name\": \"LEVEL\",")]);
        if level == "namespace" {
            let verbs = ["logs", "info", "stop", "kill", "wait", "result", "work"];
            expected.extend(verbs.map(|verb| at(&format!("3 {verb} OTHER"))));
            expected.extend(DENIED.map(at));
        }
        assert_eq!(said, expected, "{log}\n{}", home.log());
        for kid in ["one", "two", "three", "four"] {
            let row = meshed.named(&format!("{word}-{kid}"));
            assert_eq!((&row["sandbox"], &row["created_by"]), (&json!(level), &row["parent_id"]));
            assert_eq!(row["workspace"], meshed.named(word)["workspace"], "{row}");
        }
        // Requests beyond its tree did not affect the other run.
        assert_eq!(meshed.named("other")["status"], "running");
    }
    home.run(&["kill", "other"]).ok();
}

/// Whether a tool has just answered.
fn after_tool(request: &Received) -> bool {
    let last = |name: &str| request.body[name].as_array().and_then(|all| all.last()).cloned();
    last("messages").is_some_and(|message| message.to_string().contains("\"tool_result\""))
}

const QUIET: &str = "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1";

#[test]
fn needs_claude_code_a_sandboxed_run_works_through_the_relay_across_a_server_kill() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let (told, heard) = std::sync::mpsc::channel();
    let mut meshed = Meshed::new(&bin, move |request| {
        let text = request.body.to_string();
        if after_tool(request) {
            // The first time there is no answer until the server has ended.
            return match told.send(()) {
                Ok(()) => Answer::hang(),
                Err(_) => says("Abracadabra."),
            };
        }
        if text.contains("the magic word") && request.body["tools"].as_array().is_some() {
            let args = json!({"command": "echo made > made.txt", "description": "d"});
            return Answer::say(Say::nothing().call("toolu_01", "Bash", &args).usage(1000, 100));
        }
        says("A title")
    });
    let argv = ["--dangerously-skip-permissions"];
    meshed.agent("claude", &bin, &json!({"argv": argv, "model": "upstream-1", "env": [QUIET]}));
    meshed.home.run(&["run", "--name", "shot", "boxed", "say the magic word"]).ok();
    until("it has used its tool and asks again", || match heard.try_recv() {
        Ok(()) => Some(()),
        Err(_) => {
            let row = meshed.named("shot");
            assert_eq!(row["status"], "running", "{row} {}", meshed.log("shot"));
            None
        }
    });
    drop(heard);
    meshed.home.kill();
    meshed.start();
    meshed.wait("shot");
    let row = meshed.named("shot");
    assert_eq!(
        (&row["final_answer"], &row["process"]["life"]),
        (&json!("Abracadabra."), &json!(1))
    );
    let made = std::fs::read_to_string(meshed.home.work().join("made.txt")).unwrap();
    assert_eq!(made, "made\n", "it worked in its own directory");
    let settled = meshed.settled("shot");
    assert!(settled.len() >= 2, "{settled:?}");
}

#[test]
fn needs_claude_code_a_sandboxed_run_calls_models_with_a_worthless_token() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let meshed = Meshed::new(&bin, |_| says("Abracadabra."));
    meshed.agent("claude", &bin, &json!({"model": "upstream-1", "env": [QUIET]}));
    meshed.home.run(&["run", "--name", "shot", "boxed", "say the magic word"]).ok();
    meshed.wait("shot");
    assert_eq!(meshed.named("shot")["final_answer"], "Abracadabra.");
    meshed.calls("shot", 1);
}

#[test]
fn needs_codex_a_sandboxed_run_calls_models_with_a_worthless_token() {
    let Some(bin) = counterpart("CODEX") else { return };
    let meshed = Meshed::new(&bin, |_| says("Abracadabra."));
    meshed.agent("codex", &bin, &json!({"model": "upstream-1"}));
    meshed.home.run(&["run", "--name", "shot", "boxed", "say the magic word"]).ok();
    meshed.wait("shot");
    assert_eq!(meshed.named("shot")["final_answer"], "Abracadabra.");
    meshed.calls("shot", 1);
}

#[test]
fn needs_claude_code_and_llama_a_real_model_answers_through_another_api() {
    let (Some(bin), Some(llama)) = (counterpart("CLAUDE_CODE"), counterpart("LLAMA")) else {
        return;
    };
    let mut meshed = Meshed::new(&bin, |_| says("not this one"));
    meshed.home.kill();
    let file = meshed.home.path().join("overmind.toml");
    let config = format!(
        "[aliases.small]\nto = [\"llama:SmolLM2\"]\n[providers.llama]\nbase_url = \"{llama}/v1\"\n"
    );
    std::fs::write(&file, config).unwrap();
    let env = [("PATH", meshed.path.as_str()), ("OVERMIND_CONFIG", file.to_str().unwrap())];
    meshed.home.start(&["--listen", "none"], &env);
    // No more than the small model can read.
    let argv = ["--tools", "", "--system-prompt", "You answer in one short sentence."];
    let bound = "CLAUDE_CODE_MAX_OUTPUT_TOKENS=512";
    // Otherwise its prompt begins with words about bills, and the model continues about them.
    let env = [QUIET, bound, "CLAUDE_CODE_ATTRIBUTION_HEADER=0"];
    let more = json!({"argv": argv, "model": "small", "env": env, "gateway": true});
    meshed.agent("claude", &bin, &more);
    // A model of this size is random: at times it finds no end, or no word. Then it is asked again.
    let asked = ["real-1", "real-2", "real-3", "real-4", "real-5"];
    let answered = asked.into_iter().find(|name| {
        meshed.home.run(&["run", "--name", name, "boxed", "Say hello."]).ok();
        let ended = meshed.home.run(&["wait", name]).code == 0;
        assert!(
            ended || meshed.log(name).contains("exceeded the 512 output token"),
            "{}",
            meshed.log(name)
        );
        let answer = meshed.named(name)["final_answer"].as_str().unwrap_or_default().to_owned();
        ended && answer.trim().len() > 1
    });
    let answered = answered.expect("one of five answers ends and says something");
    assert_eq!(meshed.upstream.requests().len(), 0);
    let calls = until("its calls are told", || {
        Some(meshed.settled(answered)).filter(|calls| !calls.is_empty())
    });
    for call in calls {
        assert!(call["usage"]["output_tokens"].as_u64().unwrap() > 0, "{call}");
    }
}
