//! The main job of a person who has a repository with a failing test, Claude Code and a key: from
//! an empty machine, at a terminal and piped, across a `kill -9` of the server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::process::Stdio;

use overmind_testkit::real::counterpart;
use overmind_testkit::upstream::{Answer, Received, Say, Script};
use serde_json::{Value, json};

use crate::home::{Done, PATIENCE, until, until_within};
use crate::journey::Newcomer;

const OLD: &str = "        tr -c 'a-z0-9' '-' |\n";
const NEW: &str = "        tr -cs 'a-z0-9' '-' |\n";
/// The git and temporary-directory commands that a built-in agent runs before it reads the code.
const LOOK: &str = "git status --short && git log --oneline && git diff --stat && \
                    test -d \"$(dirname \"$(mktemp)\")\" && echo all is there";

fn says(text: &str) -> Answer {
    Answer::say(Say::text(text).usage(1_000, 60))
}

fn calls(number: usize, tool: &str, args: &Value) -> Answer {
    Answer::say(Say::nothing().call(&format!("toolu_{number:02}"), tool, args).usage(1_000, 60))
}

/// The number of tool results since the person's last message, and that message.
fn now(request: &Received) -> (usize, String) {
    let messages: Vec<String> =
        request.body["messages"].as_array().into_iter().flatten().map(Value::to_string).collect();
    let is_task = |text: &String| {
        ["fix the failing test", "add a test", "number-"].iter().any(|task| text.contains(task))
    };
    let at = messages.iter().rposition(is_task).unwrap_or_default();
    let answered = messages[at..].iter().map(|text| text.matches("\"tool_result\"").count()).sum();
    (answered, messages.get(at).cloned().unwrap_or_default())
}

/// The model of both agents: fixes the test, and adds a file for each further message.
fn works(request: &Received) -> Answer {
    let tools = request.body["tools"].as_array().map_or(0, Vec::len);
    if tools == 0 {
        return says("A title");
    }
    let (done, said) = now(request);
    let built_in = request.body["tools"].to_string().contains("\"run_shell\"");
    let (shell, command) =
        if built_in { ("run_shell", json!({})) } else { ("Bash", json!({"description": "d"})) };
    let run = |line: &str| {
        let mut args = command.clone();
        args["command"] = json!(line);
        calls(done, shell, &args)
    };
    let number = said
        .split("number-")
        .nth(1)
        .map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    match (number, said.contains("add a test"), done) {
        // One of eight: each changes its own file, in three steps.
        (Some(number), _, 0) => run(&format!("echo begun > work-{number}.txt")),
        (Some(number), _, 1) => {
            run(&format!("echo done >> work-{number}.txt && git add work-{number}.txt"))
        }
        (Some(_), _, _) => says("It is done."),
        (None, true, _) if !request.body.to_string().contains("echo one more case") => {
            run("printf 'echo one more case\\n' >> test.sh")
        }
        (None, true, _) => says("There is a test more."),
        (None, false, 0) => run(LOOK),
        (None, false, 1) if built_in => {
            calls(1, "edit_file", &json!({"path": "lib/slug.sh", "old": OLD, "new": NEW}))
        }
        (None, false, 1) => run("sed -i \"s/tr -c 'a/tr -cs 'a/\" lib/slug.sh"),
        (None, false, 2) => run("sh test.sh"),
        (None, false, 3) if built_in => run("git commit --quiet --all --message 'squeeze dashes'"),
        (None, false, _) => says("All 6 cases pass."),
    }
}

struct Person {
    newcomer: Newcomer,
    terminal: bool,
}

impl Person {
    fn new(bin: &str, terminal: bool) -> Self {
        Self::of(Script::by(works), bin, terminal)
    }

    fn of(script: Script, bin: &str, terminal: bool) -> Self {
        Self { newcomer: Newcomer::with(script.for_strangers(), Some(bin)), terminal }
    }

    #[track_caller]
    fn does(&self, line: &str) -> Done {
        let done = self.tries(line);
        assert_eq!(done.code, 0, "$ {line}\n{}{}", done.out, done.err);
        // A terminal shows both.
        Done { code: 0, out: done.out + &done.err, err: String::new() }
    }

    fn tries(&self, line: &str) -> Done {
        match self.terminal {
            true => self.newcomer.at_terminal(line),
            // Without a terminal, output is not followed: a script must request it.
            false => self.newcomer.piped(&line.replace("overmind run ", "overmind run --follow ")),
        }
    }

    /// The rows of `ps --all` by name.
    fn row(&self, name: &str) -> Value {
        let rows = self.newcomer.piped("overmind ps --all -o json").ok().json();
        let mut rows = rows.as_array().unwrap().iter();
        rows.find(|row| row["name"] == name).cloned().unwrap_or_default()
    }

    fn is(&self, name: &str, status: &str) {
        let line = format!("overmind ps --all; overmind events {name}; overmind logs {name}");
        let what = || format!("{name}: {}", self.newcomer.piped(&line).out);
        // Eight programs of agents start at once, on a busy machine.
        until_within(4 * PATIENCE, what, || (self.row(name)["status"] == status).then_some(()));
    }
}

fn the_main_job(terminal: bool) {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let person = Person::new(&bin, terminal);
    let at = person.newcomer.project();
    let git = |line: &str| person.newcomer.piped(line).ok().out;
    let up = person.does("overmind up -d").out;
    let pid = up.lines().find_map(|line| line.strip_prefix("pid")).unwrap().trim().to_owned();
    person.does("overmind init").shows(".overmind.yml");
    git("git add .overmind.yml && git commit --quiet --message 'sessions'");
    // The files on which the person works meanwhile stay unchanged.
    std::fs::write(at.join("mine.txt"), "half a thought\n").unwrap();
    git("git add mine.txt");
    let staged = git("git diff --cached");

    // Claude Code: in words, in a sandbox, without a question.
    let run = person.does("overmind run --name fix --agent claude 'fix the failing test'");
    run.shows("All 6 cases pass.").shows("tr -cs");
    assert!(!run.out.contains("\"type\""), "words, not records: {}", run.out);
    let row = person.row("fix");
    assert_eq!((&row["status"], &row["sandbox"]), (&json!("idle"), &json!("namespace")), "{row}");
    // The built-in agent can use git and the temporary directory.
    person.does("overmind agent create --name coder --role 'Fixes bugs' --model claude-sonnet-5-5");
    person.does("overmind run --name mend coder 'fix the failing test'").shows("all is there");
    let list = person.does("overmind ps");
    for word in ["RUN", "AGENT", "STATE", "AGE", "COST", "BRANCH", "CHANGES", "your turn"] {
        list.shows(word);
    }
    assert_eq!(person.newcomer.piped("overmind inbox -o json").ok().json(), json!([]));
    person.does("overmind send --wait fix 'and add a test for it'");
    person.is("fix", "idle");
    person.does("overmind work fix").shows("one more case").shows("tr -cs");
    // Restored to its state before the second task, and merged with the person's name.
    person.does("overmind undo fix");
    let work = person.does("overmind work fix");
    assert!(!work.out.contains("one more case") && work.out.contains("tr -cs"), "{}", work.out);
    person.does("overmind done fix --merge").shows("main");
    person.newcomer.piped("sh test.sh").ok().shows("all 6 passed");
    assert_eq!(git("git diff --cached"), staged);
    let log = git("git log -1 --format='%an|%s|%b'");
    assert!(log.starts_with("Ann|") && log.contains("claude"), "{log}");
    // After the end, too, it continues with the same conversation.
    person.does("overmind send --wait fix 'and add a test for it'");
    person.is("fix", "idle");
    let asked = person.newcomer.upstream.requests();
    let last = asked.iter().rev().find(|asked| asked.body.to_string().contains("add a test"));
    let heard = last.unwrap().body["messages"].to_string();
    assert!(heard.contains("fix the failing test"), "the conversation is another one: {heard}");
    person.does("overmind done fix --discard --yes");
    // Both made the same change: the second is a conflict or empty, and is discarded by name.
    person.does("overmind done mend --discard --yes");

    // Eight runs at once; the server is killed at some moment, and no question is asked.
    for number in 0..8 {
        let agent = if number % 2 == 0 { "--agent claude" } else { "--agent coder" };
        let line = format!("overmind run --detach --name w{number} {agent} 'do number-{number}'");
        person.newcomer.piped(&line).ok();
    }
    until("one of them has begun", || {
        (0..8).any(|number| person.row(&format!("w{number}"))["status"] == "running").then_some(())
    });
    person.newcomer.piped(&format!("kill -9 {pid}")).ok();
    person.does("overmind up -d");
    for number in 0..8 {
        person.is(&format!("w{number}"), "idle");
    }
    assert_eq!(person.newcomer.piped("overmind inbox -o json").ok().json(), json!([]));
    let merges: Vec<_> = (0..8)
        .map(|number| {
            let line = format!("overmind done w{number} --merge");
            let mut command = person.newcomer.shell(&line);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for merge in merges {
        let output = merge.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    for number in 0..8 {
        let file = at.join(format!("work-{number}.txt"));
        let line = format!("overmind events w{number}; overmind logs w{number}");
        let text = std::fs::read_to_string(file).unwrap();
        assert_eq!(text, "begun\ndone\n", "{number}: {}", person.newcomer.piped(&line).out);
    }
    assert_eq!(git("git diff --cached"), staged);
    assert_eq!(git("git status --short"), "A  mine.txt\n");

    // Work to be discarded.
    person.newcomer.piped("overmind run --detach --name waste coder 'fix the failing test'").ok();
    person.does("overmind stop waste && overmind done waste --discard --yes");
    person.does("overmind prune");
    assert_eq!(git("git branch --list 'overmind/*'"), "");
    person.does("overmind down");
}

#[test]
fn needs_claude_code_a_killed_run_of_a_lineage_continues_its_conversation() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    let person = Person::new(&bin, false);
    let at = person.newcomer.project();
    person.does("overmind up -d");
    // The first run of a program creates its agent.
    person.does("overmind run --name first --agent claude 'fix the failing test'");
    let agent = person.row("first")["agent_name"].clone();
    person.does("overmind done first --discard --yes");
    let lineage = json!({
        "apiVersion": "overmind/v1", "kind": "Lineage", "metadata": {"name": "scribe"},
        "spec": {"template": {
            "agent": agent, "task": "fix the failing test", "project": at, "sandbox": "namespace",
        }},
    });
    std::fs::write(at.join("../lineage.json"), lineage.to_string()).unwrap();
    person.does("overmind apply -f ../lineage.json");
    person.is("scribe-0", "idle");
    let conversation = person.row("scribe-0")["process"]["conversation"].clone();
    assert!(conversation.is_string(), "{}", person.row("scribe-0"));
    person.does("overmind kill scribe-0");
    person.is("scribe-0", "idle");
    person.does("overmind send --wait scribe-0 'and add a test for it'");
    person.is("scribe-0", "idle");
    person.does("overmind work scribe-0").shows("one more case").shows("tr -cs");
    assert_eq!(person.row("scribe-0")["process"]["conversation"], conversation);
    let asked = person.newcomer.upstream.requests();
    let last = asked.iter().rev().find(|asked| asked.body.to_string().contains("add a test"));
    let heard = last.unwrap().body["messages"].to_string();
    assert!(heard.contains("fix the failing test"), "the conversation is another one: {heard}");
    person.does("overmind delete lineage scribe");
    person.is("scribe-0", "canceled");
    person.does("overmind done scribe-0 --discard --yes");
    person.does("overmind down");
}

#[test]
fn needs_claude_code_the_main_job_succeeds_at_a_terminal() {
    the_main_job(true);
}

#[test]
fn needs_claude_code_the_main_job_succeeds_with_pipes() {
    the_main_job(false);
}

#[test]
fn needs_claude_code_a_greeting_fits_a_limit_for_the_counted_tokens() {
    let Some(bin) = counterpart("CLAUDE_CODE") else { return };
    // A token of its prompts has some four bytes.
    let tokens = |request: &Received| request.body.to_string().len() as u64 / 4;
    let script = Script::by(move |request| match request.is_count() {
        true => Answer::count(request, tokens(request)),
        false => Say::text("Good day.").usage(tokens(request), 60).into(),
    });
    let person = Person::of(script.every_path(), &bin, false);
    person.does("overmind up -d");
    // Its `max_tokens` of 28,000 take $0.28 of this, and the bytes of its prompt $0.29 or more.
    let words = "--usd 0.55 --name hello --agent claude --model claude-sonnet-5-5 hi";
    person.does(&format!("overmind run {words}")).shows("Good day.");
    let row = person.row("hello");
    assert_eq!(row["status"], "idle", "{row}");
    assert!(row["cost_usd"].as_f64().is_some_and(|cost| cost > 0.0 && cost < 0.30), "{row}");
    assert_eq!(person.newcomer.piped("overmind inbox -o json").ok().json(), json!([]));
    person.does("overmind kill --all").shows("1 idle run was left: hello");
    assert_eq!(person.row("hello")["status"], "idle");
    let asked = person.newcomer.upstream.requests();
    assert!(asked.iter().any(Received::is_count), "it would have fitted without a count");
    let most = |request: &Received| request.body["max_tokens"].as_u64();
    let calls = || asked.iter().filter(|request| !request.is_count());
    assert!(calls().all(|request| most(request) <= Some(28_000)), "{asked:?}");
    // A value that the user set is kept.
    let own = "--env CLAUDE_CODE_MAX_OUTPUT_TOKENS=9000 --name own --agent claude";
    person.does(&format!("overmind run {own} --model claude-sonnet-5-5 hi")).shows("Good day.");
    let asked = person.newcomer.upstream.requests();
    assert!(asked.iter().any(|request| most(request) == Some(9_000)), "{asked:?}");
    person.does("overmind down");
}
