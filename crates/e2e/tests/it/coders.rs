//! Claude Code, Codex, Gemini CLI and opencode at work on a project, as a person has them: in a sandbox
//! where they ask nobody and have no key, and without one, where they ask.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use overmind_testkit::real::counterpart;
use overmind_testkit::upstream::{Answer, Received, Say, Script, Upstream};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::commands::Commands;
use crate::home::{Done, Home, done, until};
use crate::worktrees::git_in;

/// The key of the upstream: only the server may see it.
const KEY: &str = "model-key-8888-abcdefgh";
/// The files of the project that no agent may see.
const SECRET: &str = "db-password-5512-qrstuv";

/// A repository with a test that fails, a server that has a key, and the model behind it.
struct Shop {
    home: Commands,
    project: PathBuf,
    upstream: Upstream,
    bin: String,
    // The upstream lives on it.
    _runtime: Runtime,
}

impl Shop {
    fn new(bin: &str, answer: impl Fn(&Received) -> Answer + Send + 'static) -> Self {
        Self::of(bin, Script::by(answer).key(KEY).for_strangers())
    }

    fn of(bin: &str, script: Script) -> Self {
        let runtime = Runtime::new().unwrap();
        let upstream = runtime.block_on(Upstream::start(script));
        let home = Commands(Home::new());
        let project = home.0.work().canonicalize().unwrap().join("shop");
        std::fs::create_dir(&project).unwrap();
        for (file, text) in [
            ("answer.txt", "41\n"),
            ("test.sh", "grep -qx 42 answer.txt && echo the test has passed\n"),
            (".gitignore", ".env\n"),
            (".env", &format!("DB_PASSWORD={SECRET}\n")),
        ] {
            std::fs::write(project.join(file), text).unwrap();
        }
        for args in [&["init", "-q", "-b", "main"][..], &["add", "-A"], &["commit", "-qm", "first"]]
        {
            git_in(&project, args);
        }
        let services =
            format!("[services.gemini-native]\nbase_url = \"{}\"\n", upstream.base_url());
        std::fs::write(home.0.path().join("overmind.toml"), services).unwrap();
        let mut shop = Self { home, project, upstream, bin: bin.to_owned(), _runtime: runtime };
        shop.start();
        shop
    }

    fn start(&mut self) {
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.bin);
        let base = self.upstream.base_url();
        let config = self.home.0.path().join("overmind.toml");
        let env = [
            ("PATH", path.as_str()),
            ("OVERMIND_CONFIG", config.to_str().unwrap()),
            ("OVERMIND_MODEL_BASE_URL", &base),
            ("OVERMIND_MODEL_API_KEY", KEY),
            ("OVERMIND_CRED_MODEL", KEY),
        ];
        self.home.0.start(&["--listen", "none"], &env);
    }

    /// A command of the person, in the project, with the same program in the PATH as the server.
    fn run(&self, args: &[&str]) -> Done {
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.bin);
        let mut command = self.home.0.command(args);
        done(command.env("PATH", path).current_dir(&self.project).output().unwrap())
    }

    fn events(&self, name: &str, kind: &str) -> Vec<Value> {
        let all = self.home.run(&["events", name, "--limit", "1000", "-o", "json"]).ok().json();
        let events = all.as_array().unwrap().iter();
        events
            .filter(|event| event["type"] == kind)
            .map(|event| event["payload_json"].clone())
            .collect()
    }

    fn told(&self, name: &str) -> String {
        self.home.run(&["logs", name]).ok().out
    }

    /// It has ended well, in a sandbox, having asked nobody; its work is in its branch, and neither the
    /// key nor the project's secret has come to it.
    fn worked_boxed(&self, name: &str) {
        let waited = self.run(&["wait", name]);
        assert_eq!(waited.code, 0, "{} {}", self.told(name), self.home.0.log());
        let row = self.home.named(name);
        assert_eq!(row["sandbox"], "namespace");
        assert!(is_good(&row), "{row}");
        assert_eq!(row["final_answer"], "The test passes.");
        self.asked_nobody(name);
        let told = self.told(name);
        assert!(
            told.contains("the test has passed")
                && told.contains("ANTHROPIC_") | told.contains("OPENAI_"),
            "{told}"
        );
        let all = self.home.run(&["logs", name, "--raw"]).ok().out;
        for secret in [KEY, SECRET] {
            assert!(!all.contains(secret), "{all}");
        }
        for request in self.upstream.requests().iter().filter(|request| request.wire.is_some()) {
            assert!(format!("{:?}", request.headers).contains(KEY), "the server's own key");
            assert!(!request.body.to_string().contains(SECRET), "the secret has left the project");
        }
        assert!(!self.events(name, "budget.settled").is_empty(), "its calls are the run's");
    }

    fn asked_no_person(&self, name: &str) {
        assert_eq!(self.events(name, "run.awaiting_input"), [json!(null); 0]);
    }

    /// Its work is on its branch, and it asked no question.
    fn asked_nobody(&self, name: &str) {
        self.asked_no_person(name);
        self.run(&["work", name]).ok().shows("-41").shows("+42");
    }

    /// The same for a program whose output is not parsed: its text is in its log, and the output of
    /// its tools is in the requests to its model.
    fn worked_unread(&self, name: &str, seen: &str) {
        let waited = self.run(&["wait", name]);
        assert_eq!(waited.code, 0, "{} {}", self.told(name), self.home.0.log());
        let row = self.home.named(name);
        assert_eq!(row["sandbox"], "namespace");
        assert!(is_good(&row), "{row}");
        self.asked_nobody(name);
        let told = self.told(name);
        assert!(told.contains("The test passes."), "{told}");
        let requests = self.upstream.requests();
        let heard: String = requests.iter().map(|request| request.body.to_string()).collect();
        assert!(heard.contains("the test has passed") && heard.contains(seen), "{heard}");
        assert!(!heard.contains(SECRET) && !told.contains(SECRET), "{told} {heard}");
        // The project itself is as it was, until the person takes the work.
        assert_eq!(std::fs::read_to_string(self.project.join("answer.txt")).unwrap(), "41\n");
        self.run(&["done", name, "--merge"]).ok();
        assert_eq!(std::fs::read_to_string(self.project.join("answer.txt")).unwrap(), "42\n");
    }

    /// Every call had the key, which was in no body and in no log: the server inserted it.
    fn kept_its_key(&self, name: &str, header: &str) {
        let all = self.home.run(&["logs", name, "--raw"]).ok().out;
        assert!(!all.contains(KEY), "{all}");
        for request in self.upstream.requests() {
            assert!(request.headers[header].contains(KEY), "{request:?}");
            assert!(!request.body.to_string().contains(KEY), "{request:?}");
        }
    }

    /// The flags by which Claude Code talks to the model with a key of its own, as on a machine whose
    /// server has none.
    fn own_key(&self) -> Vec<String> {
        let url = format!("ANTHROPIC_BASE_URL={}", self.upstream.base_url());
        let quiet = "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1";
        [
            "--agent",
            "claude",
            "--env",
            &url,
            "--env",
            quiet,
            "--env-from",
            "ANTHROPIC_API_KEY=MODEL",
        ]
        .map(str::to_owned)
        .into()
    }

    fn begin_asking(&self, name: &str) -> Done {
        let own = self.own_key();
        let own = own.iter().map(String::as_str);
        let args: Vec<&str> =
            ["run", "--name", name].into_iter().chain(own).chain(["make the test pass"]).collect();
        self.run(&args).ok()
    }
}

/// How often a tool has answered in this conversation, of Claude Code's or Codex'.
fn answered(request: &Received) -> usize {
    let body = &request.body;
    let claude = body["messages"].to_string().matches("\"tool_result\"").count();
    let codex = body["input"].to_string().matches("call_output\"").count();
    claude + codex
}

/// Whether its task is done: it has ended, or is idle until the next message.
fn is_good(row: &Value) -> bool {
    row["error"].is_null() && row["status"] == "succeeded"
}

fn has_tools(request: &Received) -> bool {
    request.body["tools"].as_array().is_some_and(|tools| tools.len() > 3)
}

fn says(text: &str) -> Answer {
    Answer::say(Say::text(text).usage(1000, 100))
}

fn call(id: usize, name: &str, args: &Value) -> Answer {
    let id = format!("toolu_{id:02}");
    Answer::say(Say::nothing().call(&id, name, args).usage(1000, 100))
}

/// The task of a person: reads, edits, runs the test, and looks for what it should not see.
const CHECK: &str = "sh test.sh; env; cat .env; true";

/// Behaves like Claude Code, which reports its worktree itself.
fn as_claude(request: &Received) -> Answer {
    if !has_tools(request) {
        return says("A title");
    }
    let text = request.body.to_string();
    let place = text.split("rimary working directory: ").nth(1).unwrap_or_default();
    let place = place.split(['\\', '"', '\n']).next().unwrap_or_default();
    let file = format!("{place}/answer.txt");
    match answered(request) {
        0 => call(0, "Read", &json!({"file_path": file})),
        1 => call(1, "Edit", &json!({"file_path": file, "old_string": "41", "new_string": "42"})),
        2 => call(2, "Bash", &json!({"command": CHECK, "description": "d"})),
        _ => says("The test passes."),
    }
}

/// Gives the programs of a shop a context with a prompt and a file.
fn with_context(shop: &Shop) {
    let document = json!({
        "apiVersion": "overmind/v1", "kind": "Context", "metadata": {"name": "house"},
        "spec": {"prompt": "Say \"why\" first.", "files": {"rules/a.md": "rule-41"}},
    });
    std::fs::write(shop.project.join("house.json"), document.to_string()).unwrap();
    shop.run(&["apply", "-f", "house.json"]).ok();
    std::fs::remove_file(shop.project.join("house.json")).unwrap();
}

/// Reads the file of the context, and cannot write it.
const READ: &str = "cat \"$OVERMIND_CONTEXT_FILES/house/rules/a.md\"; \
    truncate -s 0 \"$OVERMIND_CONTEXT_FILES/house/rules/a.md\" || echo no-write";

/// Each conversation with the model got the context's prompt, and the program read its file.
fn was_told(shop: &Shop, name: &str) {
    let waited = shop.run(&["wait", name]);
    assert_eq!(waited.code, 0, "{} {}", shop.told(name), shop.home.0.log());
    let requests = shop.upstream.requests();
    let talks: Vec<_> = requests.iter().filter(|request| has_tools(request)).collect();
    assert!(talks.len() > 1, "{requests:?}");
    for request in talks {
        let body = request.body.to_string();
        assert!(body.contains(r#"Say \"why\" first."#), "{body}");
        assert!(body.contains("in $OVERMIND_CONTEXT_FILES:\\nhouse/rules/a.md"), "{body}");
    }
    let told = shop.told(name);
    assert!(told.contains("rule-41") && told.contains("no-write"), "{told}");
}

#[test]
fn needs_claude_code_a_context_reaches_the_model_and_its_files_are_read() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let shop = Shop::new(&bin, |request| match (has_tools(request), answered(request)) {
        (false, _) => says("A title"),
        (true, 0) => call(0, "Bash", &json!({"command": READ, "description": "d"})),
        (true, _) => says("The test passes."),
    });
    with_context(&shop);
    shop.run(&["run", "--agent", "claude", "--context", "house", "--name", "fix", "read"]).ok();
    was_told(&shop, "fix");
    // A continued conversation gets it again.
    let before = shop.upstream.requests().len();
    shop.run(&["send", "fix", "and again"]).ok();
    shop.run(&["wait", "fix"]).ok();
    assert!(shop.upstream.requests().len() > before);
    was_told(&shop, "fix");
    shop.home.check();
}

#[test]
fn needs_codex_a_context_reaches_the_model_and_its_files_are_read() {
    let Some(bin) = counterpart("CODEX") else { return };
    let shop = Shop::new(&bin, |request| match answered(request) {
        0 => call(0, "exec_command", &json!({"cmd": READ})),
        _ => says("The test passes."),
    });
    with_context(&shop);
    let words = ["run", "--agent", "codex", "--model", "gpt-5", "--context", "house"];
    shop.run(&[&words[..], &["--name", "fix", "read"]].concat()).ok();
    was_told(&shop, "fix");
    shop.home.check();
}

fn kill_9(pid: &Value) {
    let kill = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(kill.unwrap().success());
}

#[test]
fn needs_claude_code_it_edits_and_tests_in_a_sandbox_without_questions_or_the_key() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let shop = Shop::new(&bin, as_claude);
    let run = shop.run(&["run", "--agent", "claude", "--name", "fix", "make the test pass"]).ok();
    assert!(!run.err.contains("without a sandbox"), "{}", run.err);
    shop.worked_boxed("fix");
    let started = shop.events("fix", "process.starting")[0]["argv"].to_string();
    assert!(started.contains("bypassPermissions"), "{started}");
    // The project itself is as it was, until the person takes the work.
    assert_eq!(std::fs::read_to_string(shop.project.join("answer.txt")).unwrap(), "41\n");
    shop.run(&["done", "fix", "--merge"]).ok();
    assert_eq!(std::fs::read_to_string(shop.project.join("answer.txt")).unwrap(), "42\n");
    shop.home.check();
}

#[test]
fn needs_claude_code_a_killed_sandboxed_run_continues_its_conversation() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let hung = AtomicBool::new(false);
    let shop = Shop::new(&bin, move |request| {
        let text = request.body["messages"].to_string();
        match text.contains("You were interrupted") {
            true if text.contains("make the test pass") => says("The conversation is there."),
            true => says("What was I to do?"),
            // Only once: a program that starts again also ends.
            false if answered(request) == 3 && !hung.swap(true, Ordering::SeqCst) => Answer::hang(),
            false => as_claude(request),
        }
    });
    let restart = ["--restart", "on-failure", "--backoff", "10ms"];
    let words =
        [&["run", "--agent", "claude", "--name", "fix"], &restart[..], &["make the test pass"]];
    shop.run(&words.concat()).ok();
    until("the model hangs", || {
        shop.upstream.requests().iter().any(|request| answered(request) == 3).then_some(())
    });
    until("its test has passed", || {
        (shop.events("fix", "agent.tool_result").len() == 3).then_some(())
    });
    kill_9(&shop.home.named("fix")["process"]["pid"]);
    assert_eq!(shop.run(&["wait", "fix"]).code, 0, "{}", shop.told("fix"));
    let row = shop.home.named("fix");
    assert_eq!(
        (&row["final_answer"], &row["process"]["life"], &row["sandbox"]),
        (&json!("The conversation is there."), &json!(2), &json!("namespace"))
    );
    shop.home.check();
}

#[test]
fn needs_claude_code_without_a_sandbox_it_asks_and_continues_when_allowed() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let mut shop = Shop::new(&bin, as_claude);
    let run = shop.begin_asking("fix");
    assert!(run.err.contains("without a sandbox, because ANTHROPIC_BASE_URL"), "{}", run.err);
    let row = shop.home.status("fix", "awaiting_input");
    assert_eq!(row["prompt"], format!("Allow Bash: {CHECK}"), "{row}");
    shop.home.run(&["inbox"]).ok().shows("Allow Bash: sh test.sh");
    let open = |shop: &Shop| {
        let open = shop.home.run(&["inbox", "--flat", "-o", "json"]).ok().json();
        open[0]["id"].as_str().unwrap_or_default().to_owned()
    };
    let asked = open(&shop);
    // The question and the program survive the server. The question is asked again, and a person
    // who saw it before can answer it.
    shop.home.0.kill();
    shop.start();
    shop.home.status("fix", "awaiting_input");
    until("it is asked anew", || {
        let now = open(&shop);
        (now.starts_with("inb_") && now != asked).then_some(())
    });
    let answered = shop.home.run(&["answer", &asked, "yes"]);
    assert_eq!(answered.code, 0, "{answered:?} {} {}", shop.told("fix"), shop.home.0.log());
    assert_eq!(shop.run(&["wait", "fix"]).code, 0, "{} {}", shop.told("fix"), shop.home.0.log());
    let row = shop.home.named("fix");
    assert_eq!(
        (&row["final_answer"], &row["sandbox"], &row["process"]["exit_code"]),
        (&json!("The test passes."), &json!("none"), &json!(0))
    );
    assert!(is_good(&row), "{row}");
    shop.run(&["work", "fix"]).ok().shows("+42");
    shop.home.check();
}

#[test]
fn needs_claude_code_it_continues_after_a_denial() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let mut shop = Shop::new(&bin, |request| match answered(request) {
        3 => as_claude(request).drip(Duration::from_secs(1)),
        _ => as_claude(request),
    });
    shop.begin_asking("fix");
    shop.home.status("fix", "awaiting_input");
    shop.home.run(&["answer", "fix", "no"]).ok();
    until("the model is told of the denial", || {
        let requests = shop.upstream.requests();
        requests.iter().any(|request| answered(request) == 3).then_some(())
    });
    // A server that starts between the denial and the result knows that a person was asked.
    shop.home.0.kill();
    shop.start();
    assert_eq!(shop.run(&["wait", "fix"]).code, 0, "{} {}", shop.told("fix"), shop.home.0.log());
    let row = shop.home.named("fix");
    assert!(is_good(&row), "{row}");
    assert_eq!(row["final_answer"], "The test passes.");
    let told = shop.upstream.requests().last().unwrap().body.to_string();
    assert!(told.contains("A person was asked, and said no."), "{told}");
    shop.home.check();
}

#[test]
fn needs_claude_code_a_task_fails_if_a_requested_permission_is_denied() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let shop = Shop::new(&bin, as_claude);
    // In this mode, Claude Code denies actions that it would otherwise ask a person about.
    let agent = json!({"name": "shy", "role": "tests", "model": "command", "sandbox": "none",
        "command": {"provider": "claude", "argv": ["--permission-mode", "dontAsk"]}});
    std::fs::write(shop.home.0.path().join("shy.json"), agent.to_string()).unwrap();
    let file = shop.home.0.path().join("shy.json");
    shop.home.run(&["agent", "create", "--file", file.to_str().unwrap()]).ok();
    let own = shop.own_key();
    let own: Vec<&str> = own[2..].iter().map(String::as_str).collect();
    let begin = [&["run", "--agent", "shy", "--name", "fix"], &own[..], &["make the test pass"]];
    shop.run(&begin.concat()).ok();
    assert_ne!(shop.run(&["wait", "fix"]).code, 0, "{}", shop.told("fix"));
    shop.asked_no_person("fix");
    let row = shop.home.named("fix");
    assert_eq!(row["status"], "failed", "{row}");
    let why = row["error"]["message"].as_str().unwrap();
    assert!(why.starts_with("it was not permitted: "), "{why}");
    assert!(why.ends_with("Its last words: The test passes."), "{why}");
    shop.home.check();
}

#[test]
fn needs_claude_code_a_question_of_its_model_gets_the_persons_answer() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let database = json!({"question": "Which database?", "header": "Database", "multiSelect": true,
    "options": [
        {"label": "PostgreSQL", "description": "as in production"},
        {"label": "SQLite", "description": "one file"},
    ]});
    let name = json!({"question": "Which name?", "header": "Name", "multiSelect": false,
    "options": [
        {"label": "shop", "description": "as now"}, {"label": "store", "description": "new"},
    ]});
    let one = json!({"questions": [name]});
    let two = json!({"questions": [database, name]});
    let shop = Shop::new(&bin, move |request| match (has_tools(request), answered(request)) {
        (false, _) => says("A title"),
        (true, 0) => call(0, "AskUserQuestion", &one),
        (true, 1) => call(1, "AskUserQuestion", &two),
        (true, 2) => call(2, "AskUserQuestion", &two),
        (true, _) => says("Thank you."),
    });
    shop.begin_asking("fix");
    let answers = ["2", "1, sqlite; our own", "decide yourself"];
    for (nth, answer) in answers.iter().enumerate() {
        let row = until("it asks", || {
            let row = shop.home.status("fix", "awaiting_input");
            let asked = shop.events("fix", "run.awaiting_input").len();
            (asked == nth + 1).then_some(row)
        });
        let prompt = row["prompt"].as_str().unwrap();
        assert!(prompt.contains("Which name?") && prompt.contains("2) store: new"), "{prompt}");
        assert_eq!(prompt.contains("1) PostgreSQL: as in production"), nth > 0, "{prompt}");
        shop.home.run(&["answer", "fix", answer]).ok();
    }
    assert_eq!(shop.run(&["wait", "fix"]).code, 0, "{} {}", shop.told("fix"), shop.home.0.log());
    assert!(is_good(&shop.home.named("fix")));
    let told = shop.upstream.requests().last().unwrap().body.to_string();
    for said in [
        r#"\"Which name?\"=\"store\""#,
        r#"\"Which database?\"=\"PostgreSQL, SQLite\""#,
        r#"\"Which name?\"=\"our own\""#,
        "decide yourself",
    ] {
        assert!(told.contains(said), "{said}: {told}");
    }
    shop.home.check();
}

#[test]
fn needs_claude_code_a_run_that_a_budget_ended_continues_after_a_raise() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    // Its first call spends so much that the next one does not fit.
    let shop = Shop::new(&bin, |request| match (has_tools(request), answered(request)) {
        (true, 0) => {
            let list = json!({"command": "ls", "description": "d"});
            Answer::say(Say::nothing().call("toolu_ls", "Bash", &list).usage(200_000, 10_000))
        }
        (true, 1) => call(1, "Bash", &json!({"command": "ls -a", "description": "d"})),
        (true, _) => says("The test passes."),
        (false, _) => says("A title"),
    });
    let words = "run --tokens 300000 --name fix --agent claude look";
    shop.run(&words.split(' ').collect::<Vec<_>>()).ok();
    let row = shop.home.status("fix", "failed");
    assert!(row["error"]["message"].as_str().unwrap().contains("budget"), "{row}");
    let open = || shop.home.run(&["inbox", "-o", "json"]).ok().json();
    let asked = open();
    assert_eq!(
        (&asked[0]["kind"], asked.as_array().unwrap().len()),
        (&json!("raise"), 1),
        "{asked}"
    );
    shop.run(&["approve", asked[0]["id"].as_str().unwrap(), "--tokens", "900000"]).ok();
    assert_eq!(shop.run(&["wait", "fix"]).code, 0, "{} {}", shop.told("fix"), shop.home.0.log());
    let row = shop.home.named("fix");
    assert!(is_good(&row), "{row}");
    assert_eq!(row["final_answer"], "The test passes.");
    assert_eq!(open(), json!([]));
    let told = shop.upstream.requests().last().unwrap().body.to_string();
    assert!(told.contains("toolu_ls") && told.contains("The budget was raised."), "{told}");
    shop.home.check();
}

#[test]
fn needs_codex_it_edits_and_tests_in_a_sandbox_without_the_key() {
    let Some(bin) = counterpart("CODEX") else { return };
    let shop = Shop::new(&bin, |request| match answered(request) {
        0 => call(0, "exec_command", &json!({"cmd": "sed -i s/41/42/ answer.txt"})),
        1 => call(1, "exec_command", &json!({"cmd": CHECK})),
        _ => says("The test passes."),
    });
    shop.run(&[
        "run",
        "--agent",
        "codex",
        "--model",
        "gpt-5",
        "--name",
        "fix",
        "make the test pass",
    ])
    .ok();
    shop.worked_boxed("fix");
    shop.home.check();
}

/// The commands of their shells: fix, test, leave the worktree, and look for hidden files.
const MEND: &str =
    "sed -i s/41/42/ answer.txt; sh test.sh; cp answer.txt /tmp/seen; env; cat .env; true";

#[test]
fn needs_opencode_it_edits_and_tests_in_a_sandbox_without_the_key() {
    let Some(bin) = counterpart("OPENCODE") else { return };
    let shop = Shop::new(&bin, |request| {
        let results = request.body["messages"].to_string().matches("\"tool_call_id\"").count();
        match (has_tools(request), results) {
            (false, _) => says("A title"),
            (true, 0) => call(0, "bash", &json!({"command": MEND, "description": "d"})),
            (true, _) => says("The test passes."),
        }
    });
    let words = ["run", "--agent", "opencode", "--name", "fix", "fix the failing test"];
    let run = shop.run(&words).ok();
    assert!(!run.err.contains("without a sandbox"), "{}", run.err);
    shop.worked_unread("fix", "OPENAI_BASE_URL=");
    shop.kept_its_key("fix", "authorization");
    assert!(!shop.events("fix", "budget.settled").is_empty(), "its calls are the run's");
    assert!(shop.upstream.requests().iter().all(|request| request.body["model"] == "gpt-5.5"));
    shop.home.check();
}

/// Behaves like Gemini CLI, in Gemini's own format.
fn as_gemini(request: &Received) -> Answer {
    let answered = request.body["contents"].to_string().matches("\"functionResponse\"").count();
    let args = json!({"command": MEND, "description": "d"});
    let part = match answered {
        0 => json!({"functionCall": {"name": "run_shell_command", "args": args}}),
        _ => json!({"text": "The test passes."}),
    };
    let said = json!({
        "candidates": [{
            "content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0,
        }],
        "usageMetadata": {"promptTokenCount": 1000, "candidatesTokenCount": 100, "totalTokenCount": 1100},
    });
    match request.path.contains(":streamGenerateContent") {
        true => Answer::raw(200, "text/event-stream", format!("data: {said}\r\n\r\n")),
        false => Answer::raw(200, "application/json", said.to_string()),
    }
}

#[test]
fn needs_gemini_cli_it_edits_and_tests_in_a_sandbox_without_the_key() {
    let Some(bin) = counterpart("GEMINI_CLI") else { return };
    let shop = Shop::of(&bin, Script::by(as_gemini).every_path().for_strangers());
    let named = ["run", "--agent", "gemini", "--model", "gemini-2.5-flash"];
    // Without a key, the person gets a hint before the start.
    let without = shop.run(&[&named[..], &["--name", "none", "fix the failing test"]].concat());
    assert!(without.err.contains("vault grant 'gemini' --service gemini-native"), "{without:?}");
    shop.run(&["kill", "none"]);
    shop.home.0.set("gemini_api_key", KEY, &[]);
    shop.home.run(&["vault", "grant", "gemini", "--service", "gemini-native"]).ok();
    let run = shop.run(&[&named[..], &["--name", "fix", "fix the failing test"]].concat()).ok();
    assert!(!run.err.contains("without a sandbox"), "{}", run.err);
    shop.worked_unread("fix", "GEMINI_API_KEY=");
    shop.kept_its_key("fix", "x-goog-api-key");
    shop.home.check();
}

#[test]
fn needs_gemini_cli_with_its_own_key_it_works_in_a_sandbox_with_the_hosts_network() {
    let Some(bin) = counterpart("GEMINI_CLI") else { return };
    let shop = Shop::of(&bin, Script::by(as_gemini).every_path().for_strangers());
    let base = format!("GOOGLE_GEMINI_BASE_URL={}", shop.upstream.base_url());
    let named = ["run", "--agent", "gemini", "--model", "gemini-2.5-flash", "--name", "fix"];
    let own = ["--sandbox", "namespace", "--network", "host", "--env", &base];
    let key = ["--env-from", "GEMINI_API_KEY=MODEL", "fix the failing test"];
    shop.run(&[&named[..], &own, &key].concat()).ok();
    shop.worked_unread("fix", "GEMINI_API_KEY=");
    let requests = shop.upstream.requests();
    assert!(requests.iter().all(|request| request.headers["x-goog-api-key"] == KEY));
    let all = shop.home.run(&["logs", "fix", "--raw"]).ok().out;
    assert!(!all.contains(KEY), "{all}");
    shop.home.check();
}

/// A program with this name, which prints these lines and succeeds.
fn pretends(dir: &Path, name: &str, lines: &[Value]) {
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    let text = format!("#!/bin/sh\ncat <<'END'\n{}\nEND\n", lines.join("\n"));
    std::fs::create_dir_all(dir).unwrap();
    let file = dir.join(name);
    std::fs::write(&file, text).unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn an_unfinished_answer_is_no_success() {
    let dir = tempfile::tempdir().unwrap();
    let shop = Shop::new(dir.path().to_str().unwrap(), |_| says("nobody asks"));
    let init = json!({"type": "system", "subtype": "init", "session_id": "c-1", "model": "m"});
    let said = json!({"type": "assistant", "message": {"content": [
        {"type": "text", "text": "I begin."}]}});
    let turns = json!({"type": "result", "subtype": "error_max_turns", "is_error": false,
        "session_id": "c-1", "num_turns": 3});
    let thread = json!({"type": "thread.started", "thread_id": "t-1"});
    for (name, agent, lines, code, why) in [
        ("silent", "claude", vec![init.clone(), said.clone()], "no_answer", "without an answer"),
        ("long", "claude", vec![init, said, turns], "provider_error", "all the turns"),
        ("empty", "codex", vec![thread], "no_answer", "without an answer"),
    ] {
        pretends(dir.path(), agent, &lines);
        shop.run(&["run", "--agent", agent, "--sandbox", "none", "--name", name, "do it"]).ok();
        assert_ne!(shop.run(&["wait", name]).code, 0);
        let row = shop.home.named(name);
        assert_eq!((&row["status"], &row["error"]["code"]), (&json!("failed"), &json!(code)));
        let message = row["error"]["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
    }
    shop.home.check();
}
