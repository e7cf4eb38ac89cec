//! Guides that claim to run as printed do so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::home::{Done, done};
use crate::pages::repository;
use crate::program::program;

/// The time within which the state that a block shows must be reached.
const SOON: Duration = Duration::from_secs(30);

/// A part of a guide: commands, and their expected output.
struct Step {
    commands: String,
    shown: Vec<String>,
}

/// The blocks of commands of a page, each with the blocks of text up to the next one.
fn steps(page: &str) -> Vec<Step> {
    let text = std::fs::read_to_string(repository().join(page)).unwrap();
    let mut steps: Vec<Step> = Vec::new();
    let mut blocks = text.split("```").skip(1).step_by(2);
    for block in blocks.by_ref() {
        let (language, body) = block.split_once('\n').unwrap();
        match (language, steps.last_mut()) {
            ("sh", _) => steps.push(Step { commands: body.to_owned(), shown: Vec::new() }),
            ("text", Some(step)) => step.shown.extend(body.lines().map(str::to_owned)),
            _ => {}
        }
    }
    steps
}

/// Whether a line of the output has the words of a line of the page, in their order.
fn shows(output: &str, line: &str) -> bool {
    output.lines().any(|shown| {
        let mut words = shown.split_whitespace();
        line.split_whitespace().all(|wanted| words.any(|word| word == wanted))
    })
}

/// The commands of a block, here-documents whole.
fn commands(block: &str) -> Vec<String> {
    let (mut all, mut until): (Vec<String>, Option<&str>) = (Vec::new(), None);
    for line in block.lines() {
        match (until, all.last_mut()) {
            (Some(end), Some(last)) => {
                last.push('\n');
                last.push_str(line);
                if line == end {
                    until = None;
                }
            }
            _ => all.push(line.to_owned()),
        }
        if line.contains("<<'EOF'") {
            until = Some("EOF");
        }
    }
    all
}

#[test]
fn the_guide_to_a_self_healing_fleet_runs_as_printed() {
    let home = tempfile::tempdir().unwrap();
    let bin = home.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(program(), bin.join("overmind")).unwrap();
    let place = std::cell::RefCell::new(home.path().to_owned());
    let run = |line: &str| -> Done {
        let mut command = Command::new("/bin/sh");
        // The directory in which a reader's shell would be next.
        let line = format!("{line}\ncode=$?; pwd > \"$HOME/.place\"; exit $code");
        command.args(["-c", &line]).current_dir(&*place.borrow()).env_clear();
        command.env("HOME", home.path()).env("OVERMIND_LISTEN", "127.0.0.1:0");
        command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
        let done = done(command.stdin(Stdio::null()).output().unwrap());
        let there = std::fs::read_to_string(home.path().join(".place")).unwrap();
        place.replace(there.trim().into());
        done
    };
    let steps = steps("docs/fleet-tutorial.md");
    assert!(steps.len() > 8, "{} blocks", steps.len());
    for Step { commands: block, shown } in steps {
        let all = commands(&block);
        let mut said: Vec<String> = all.iter().map(|line| run(line).ok().out).collect();
        let until = Instant::now() + SOON;
        loop {
            let text = said.concat();
            let missing: Vec<_> = shown.iter().filter(|line| !shows(&text, line)).collect();
            if missing.is_empty() {
                break;
            }
            assert!(Instant::now() < until, "{block}\nnot shown: {missing:?}\n{text}");
            // Commands that only read are repeated, as a reader would do.
            let last = all.last().unwrap();
            let looks =
                ["overmind get ", "overmind ps", "overmind logs ", "overmind rollout history"];
            assert!(
                looks.iter().any(|look| last.starts_with(look)),
                "{block}\n{missing:?}\n{text}"
            );
            said.push(run(last).ok().out);
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
