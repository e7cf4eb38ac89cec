//! The steps of a new user, as the documentation prints them, from an empty machine: at a terminal and
//! piped. What the terminal showed is kept as `docs/journey.md`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use overmind_testkit::upstream::{Answer, Received, Say, Script, Upstream};
use regex::Regex;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::home::{Done, Home, done, until};
use crate::pages::{joined, repository};
use crate::program::program;
use crate::tty::Person;

/// If set, the recorded pages are written again.
const RECORD: &str = "OVERMIND_RECORD_JOURNEY";
/// The title of a window.
const END: &str = "\\033]0;end-of-line\\007";
const SLUG: &str = include_str!("../../../cli/src/demo/project/slug.sh");
const TEST: &str = include_str!("../../../cli/src/demo/project/test.sh");

/// A machine with a repository, a provider's key, and only the program of Overmind.
pub(crate) struct Newcomer {
    pub(crate) home: Home,
    pub(crate) upstream: Upstream,
    /// The directory with the programs of agents, besides the usual directories; ends in `:`.
    programs: String,
    _runtime: Runtime,
}

/// A model that mends the test of the demo's project, turn by turn.
fn mends(asked: &Received) -> Answer {
    let turns = asked.body["messages"].as_array().unwrap();
    let said = turns.iter().filter(|turn| turn["role"] == "assistant").count();
    let call = |text: &str, tool: &str, args: Value| {
        Say::text(text).call(&format!("call_{said}"), tool, &args)
    };
    let old = "        tr -c 'a-z0-9' '-' |\n";
    let new = "        tr -cs 'a-z0-9' '-' |\n";
    let say = match said {
        0 => call("I read the code first.", "read_file", json!({"path": "lib/slug.sh"})),
        1 => call("Now the test.", "run_shell", json!({"command": "sh test.sh"})),
        2 => call(
            "`tr -cs` squeezes a run of odd characters into one dash.",
            "edit_file",
            json!({"path": "lib/slug.sh", "old": old, "new": new}),
        ),
        3 => call("Does it hold?", "run_shell", json!({"command": "sh test.sh"})),
        _ => Say::text("All 6 cases pass; I changed one line of lib/slug.sh and no test."),
    };
    say.usage(1200 + 200 * u64::try_from(said).unwrap(), 60).into()
}

impl Newcomer {
    fn new() -> Self {
        Self::with(Script::by(mends), None)
    }

    /// With this model, and the programs in this directory.
    pub(crate) fn with(script: Script, programs: Option<&str>) -> Self {
        let runtime = Runtime::new().unwrap();
        let upstream = runtime.block_on(Upstream::start(script));
        let home = Home::new();
        let programs = programs.map(|dir| format!("{dir}:")).unwrap_or_default();
        let this = Self { home, upstream, programs, _runtime: runtime };
        let (bin, project) = (this.home.path().join("bin"), this.project());
        std::fs::create_dir_all(project.join("lib")).unwrap();
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(program(), bin.join("overmind")).unwrap();
        std::fs::write(project.join("lib/slug.sh"), SLUG).unwrap();
        std::fs::write(project.join("test.sh"), TEST.replace("sleep 0.1", ":")).unwrap();
        for line in [
            "git config --global user.name Ann",
            "git config --global user.email ann@example.com",
            "git init --quiet --initial-branch main",
            "git add --all",
            "git commit --quiet --message 'a small library'",
        ] {
            this.piped(line).ok();
        }
        this
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.home.path().join("slug")
    }

    /// A line, given to a shell in the project.
    pub(crate) fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        let home = self.home.path();
        command.args(["-c", line]).current_dir(self.project()).env_clear();
        command
            .env("HOME", home)
            .env("PATH", format!("{}/bin:{}/usr/bin:/bin", home.display(), self.programs));
        command.env("ANTHROPIC_API_KEY", "sk-ant-of-the-journey");
        // Settings that a user does not need: the provider's address, and no fixed port.
        let provider = format!("{}/v1/messages", self.upstream.base_url().trim_end_matches("/v1"));
        command.env("OVERMIND_ANTHROPIC_MESSAGES_URL", provider);
        command.env("OVERMIND_LISTEN", "127.0.0.1:0");
        command
    }

    pub(crate) fn piped(&self, line: &str) -> Done {
        done(self.shell(line).stdin(Stdio::null()).output().unwrap())
    }

    pub(crate) fn terminal(&self, line: &str) -> Person {
        // An invisible mark marks the end of the output.
        let line = format!("{line}\ncode=$?; printf '{END}'; exit $code");
        Person::with(self.shell(&line), 100, 300)
    }

    /// Runs a line and waits for its end.
    pub(crate) fn at_terminal(&self, line: &str) -> Done {
        let mut person = self.terminal(line);
        let code = left(&mut person);
        Done { code, out: person.screen(), err: String::new() }
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let _ = self.shell("overmind down").stdin(Stdio::null()).output();
    }
}

/// Waits until the line has ended and all that it wrote is on the screen.
fn left(person: &mut Person) -> i32 {
    let code = person.leaves();
    until("the screen is whole", || person.has_written("end-of-line").then_some(()));
    code
}

/// The shell lines of the first block below a heading, without comments.
fn lines_of(page: &str, heading: &str) -> Vec<String> {
    let text = joined(&std::fs::read_to_string(repository().join(page)).unwrap());
    let (_, below) = text.split_once(heading).unwrap_or_else(|| panic!("{page}: no {heading}"));
    let (_, block) = below.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let bare = |line: &str| line.split("  #").next().unwrap_or_default().trim().to_owned();
    block.lines().map(bare).filter(|line| !line.is_empty()).collect()
}

/// The expected output of a step of the README.
fn wanted(line: &str) -> &'static [&'static str] {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.get(1).copied().unwrap_or_default() {
        "up" => &["pid", "at "],
        "init" => &["wrote", ".overmind.yml", "overmind agent create --name coder"],
        "agent" => &["coder"],
        "run" => &["edit_file lib/slug.sh", "All 6 cases pass"],
        "work" => &["tr -cs", "lib/slug.sh"],
        "done" => &["main"],
        "ps" => &["mend", "coder", "merged"],
        "replay" => &["no difference"],
        "fork" => &["run"],
        "down" => &[],
        other => panic!("the README has a step that this test does not know: {other}"),
    }
}

fn the_readme(walk: impl Fn(&Newcomer, &str) -> Done) {
    let newcomer = Newcomer::new();
    let lines = lines_of("README.md", "## On your own repository");
    let (mut steps, mut wrong) = (0, String::new());
    for line in lines {
        if line.starts_with("cargo install") || line.starts_with("export ") {
            continue;
        }
        steps += 1;
        let Done { code, out, err } = walk(&newcomer, &line);
        let said = format!("{out}{err}");
        let missing: Vec<_> = wanted(&line).iter().filter(|text| !said.contains(*text)).collect();
        if code != 0 || !missing.is_empty() {
            writeln!(wrong, "$ {line}\n[exit {code}; not seen: {missing:?}]\n{said}").unwrap();
        }
    }
    assert!(steps >= 8, "{steps} steps");
    assert!(wrong.is_empty(), "{wrong}");
    newcomer.piped("sh test.sh").ok().shows("all 6 passed");
    newcomer.upstream.assert_clean();
}

#[test]
fn the_steps_of_the_readme_run_as_printed_at_a_terminal() {
    the_readme(Newcomer::at_terminal);
}

#[test]
fn the_steps_of_the_readme_run_as_printed_when_piped() {
    the_readme(|newcomer, line| {
        // Without a terminal, output is not followed: a script must request it.
        newcomer.piped(&line.replace("overmind run ", "overmind run --follow "))
    });
}

/// One session at a terminal: the typed and the shown text.
struct Recorder<'a> {
    newcomer: &'a Newcomer,
    page: String,
}

impl Recorder<'_> {
    fn says(&mut self, text: &str) {
        write!(self.page, "\n{text}\n").unwrap();
    }

    fn shows(&mut self, line: &str, code: i32, screen: &str) {
        let screen = screen.trim_end();
        let screen = plain(screen, self.newcomer.home.path());
        let exit = if code == 0 { String::new() } else { format!("[exit {code}]\n") };
        let shown = if screen.is_empty() { screen } else { format!("{screen}\n") };
        write!(self.page, "\n```console\n$ {line}\n{shown}{exit}```\n").unwrap();
    }

    /// A line that ends by itself, with this exit code.
    #[track_caller]
    fn types(&mut self, line: &str, code: i32) {
        let did = self.newcomer.at_terminal(line);
        assert_eq!(did.code, code, "$ {line}\n{}", did.out);
        self.shows(line, code, &did.out);
    }

    /// A line during which the person types, each text when the screen shows the one before it.
    #[track_caller]
    fn talks(&mut self, line: &str, keys: &[(&str, &str)], code: i32) {
        let mut person = self.newcomer.terminal(line);
        for (seen, typed) in keys {
            person.sees(seen);
            person.types(typed);
        }
        let ended = left(&mut person);
        assert_eq!(ended, code, "$ {line}\n{}", person.screen());
        self.shows(line, code, &person.screen());
    }
}

/// Values that differ between runs are replaced: times, identifiers, numbers of processes.
fn plain(screen: &str, home: &Path) -> String {
    let mut text = screen.replace(&*home.to_string_lossy(), "/home/ann");
    for (what, by) in [
        (r"\b\d\d:\d\d:\d\d\b", "12:00:00"),
        (r"\b20\d\d-\d\d-\d\dT[0-9:.+Z]+", "2026-11-24T12:00:00Z"),
        (r"\bpid( +)\d+", "pid${1}4242"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:8420"),
        (r"\b(ses|agt|itm|apr)_[0-9a-f]{8,}…?", "${1}_0190b2c4"),
        (r"\b[0-9a-f]{10}-slug\b", "0323231cf4-slug"),
        (r"\bfrom [0-9a-f]{11}…", "from 5f3a9c1e5f3…"),
        (r"\bcommit( +)[0-9a-f]{11}…", "commit${1}5f3a9c1e5f3…"),
        (r"\([0-9a-f]{8}\)", "(0190b2c4)"),
        (r"\brun [0-9a-f]{8} ", "run 0190b2c4 "),
        (r"(?m)^[0-9a-f]{8}  ", "0190b2c4  "),
        (r"\b\d+(\.\d+)?( ?)(ms|µs)\b", "1${2}ms"),
        (r"\b(\d+\.\d+s|\d+[mh]\d\d[sm])\b", "1ms"),
        // A table row, whose columns are as wide as their content.
        (r"(merged|done|undecided|failed)( +)\d+[smh] ", "$1${2}2s "),
        (r"\b\d+ events read, \d+ decided", "77 events read, 34 decided"),
        (r"\b[0-9a-f]{40}\b", "5f3a9c1e5f3a9c1e5f3a9c1e5f3a9c1e5f3a9c1e"),
        (r"\bindex [0-9a-f]+\.\.[0-9a-f]+", "index 5f3a9c1..7b20d44"),
        (r"[ \t]+\n", "\n"),
    ] {
        text = Regex::new(what).unwrap().replace_all(&text, by).into_owned();
    }
    text
}

/// The page equals the terminal's output today, except for values that differ between runs.
#[expect(clippy::disallowed_methods, reason = "a wish of the person at the keyboard")]
fn recorded(page: &str, text: &str) {
    let path = repository().join(page);
    if std::env::var_os(RECORD).is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().zip(text.lines()).find(|(kept, now)| kept != now);
    assert!(
        kept == text,
        "{page} is not what the terminal shows: {differs:?}; after a look at it, record it by\n\
         {RECORD}=1 cargo nextest run -p overmind-e2e journey\n{text}"
    );
}

const HEAD: &str = "# The first ten minutes\n\n\
    This page shows a terminal of a new user who follows the README in a repository with a failing test. \
    The tests of\n`crates/e2e/tests/it/journey.rs` record and check it. Times, identifiers and ports are \
    placeholders.\n";

#[test]
fn the_first_ten_minutes_match_the_journey_page() {
    let newcomer = Newcomer::new();
    let mut page = Recorder { newcomer: &newcomer, page: HEAD.to_owned() };
    page.says("## An agent fixes a test");
    page.types("sh test.sh", 1);
    page.types("overmind up -d", 0);
    page.types("overmind init", 0);
    page.types(
        "overmind agent create --name coder --model claude-sonnet-5-5 \
         --tools run_shell,read_file,write_file,edit_file,list_files",
        0,
    );
    page.types("overmind run --name mend coder \"mend the failing test\"", 0);
    page.types("overmind work mend", 0);
    page.types("overmind done mend --merge", 0);
    page.types("sh test.sh", 0);
    page.types("overmind replay mend --verify", 0);

    page.says("## Programs can be runs");
    page.types("overmind run --name check sh test.sh", 0);
    page.types("overmind run --name wrong sh -c 'echo no; exit 3'", 3);
    page.types("overmind ps --all", 0);

    page.says("## Approvals are asked at the terminal");
    page.types(
        "overmind agent create --name careful --model deterministic --tools run_shell --approvals run_shell",
        0,
    );
    page.talks(
        "overmind run --name ask careful \"shell: echo hello\"",
        &[("[y]es, [n]o:", "y\n")],
        0,
    );

    page.says("## Typing mistakes start nothing");
    page.types("overmind run codre \"mend the failing test\"", 3);
    page.types("overmind rnu coder", 2);
    page.types("overmind work mned", 3);
    page.types("overmind down", 0);
    let text = page.page;
    recorded("docs/journey.md", &text);
}

#[test]
fn leaving_a_followed_run_leaves_it_running() {
    let newcomer = Newcomer::new();
    newcomer.piped("overmind up -d").ok();
    let mut person =
        newcomer.terminal("exec overmind run --name slow sh -c 'echo began; sleep 600'");
    person.sees("began");
    person.types("\u{3}");
    assert_eq!(person.leaves(), 130);
    person.sees("slow continues");
    let status = |wanted: &str| {
        until("the run is as it should be", || {
            let run = newcomer.piped("overmind info slow -o json").ok().json();
            (run["status"] == wanted).then_some(())
        });
    };
    status("running");
    newcomer.piped("overmind stop slow --grace 0").ok();
    status("canceled");
}
