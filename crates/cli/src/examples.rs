//! Every example of the help texts and of the documentation is a command line that this program
//! takes: its verbs, flags and values exist. And each says what it is for.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Command, CommandFactory as _};

use crate::args::Cli;
use crate::pages::{joined, repository};

/// The words of a line for a shell, up to what ends a command or begins a comment. Knows quotes and
/// backslashes; expands nothing.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None::<char>);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            // Values from the output of another command are replaced with a number.
            (None | Some('"'), '$') if chars.peek() == Some(&'(') => {
                let mut depth = 0;
                for c in chars.by_ref() {
                    depth += i32::from(c == '(') - i32::from(c == ')');
                    if depth == 0 {
                        break;
                    }
                }
                word.get_or_insert_default().push('1');
            }
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '\\') => word.get_or_insert_default().extend(chars.next()),
            (None, ' ') => words.extend(word.take()),
            (None, '|' | ';' | '&' | '>' | '<' | ')' | '`') => break,
            (None, '#') if word.is_none() => break,
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The command line of an example: the text before its explanation, which follows two spaces.
fn example(line: &str) -> Option<Vec<String>> {
    let line = line.trim_start().trim_start_matches("$ ");
    let line = line.strip_prefix("overmind ")?;
    let (mut quoted, mut end) = (false, line.len());
    for (at, c) in line.char_indices() {
        quoted ^= c == '"' || c == '\'';
        if !quoted && line[at..].starts_with("  ") {
            end = at;
            break;
        }
    }
    Some(words(&line[..end]))
}

/// Why this program would not take the words; `None` when it would.
fn refused(given: &[String]) -> Option<String> {
    let all = std::iter::once("overmind").chain(given.iter().map(String::as_str));
    let all = crate::parse::colony_spelled(all.map(Into::into).collect());
    let err = Cli::command().try_get_matches_from(all).err()?;
    match err.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
        _ => Some(err.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

fn of_help(command: &Command, path: &str, check: &mut dyn FnMut(&str, &str)) {
    for text in [command.get_after_help(), command.get_after_long_help()].into_iter().flatten() {
        joined(&text.to_string()).lines().for_each(|line| check(path, line));
    }
    for below in command.get_subcommands() {
        of_help(below, &format!("{path} {}", below.get_name()), check);
    }
}

/// The README and every page of the documentation.
fn pages() -> Vec<PathBuf> {
    let listed = |dir: &str| std::fs::read_dir(repository().join(dir)).unwrap();
    let docs = listed("docs").chain(listed("docs/guides")).map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|kind| kind == "md"));
    pages.chain([repository().join("README.md")]).collect()
}

#[test]
fn every_example_in_help_and_docs_is_valid() {
    let (mut seen, mut wrong) = (0, Vec::new());
    let mut check = |at: &str, line: &str| {
        let Some(given) = example(line) else { return };
        seen += 1;
        if let Some(why) = refused(&given) {
            wrong.push(format!("{at}: `overmind {}`: {why}", given.join(" ")));
        }
    };
    of_help(&Cli::command(), "overmind", &mut check);
    for page in pages() {
        let text = joined(&std::fs::read_to_string(&page).unwrap());
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        let mut in_shell = false;
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let shown_refused = lines.peek().is_some_and(|next| next.starts_with("error: "));
            match line.trim_start().strip_prefix("```") {
                Some(kind) => in_shell = !in_shell && ["sh", "console", "bash"].contains(&kind),
                None if in_shell && !shown_refused => check(&name, line),
                None => {}
            }
        }
    }
    assert!(seen > 150, "only {seen} examples were found");
    assert!(wrong.is_empty(), "{} of {seen} examples:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn words_are_split_like_in_a_shell() {
    for (line, wanted) in [
        ("overmind run rm \"my dir\"  removes it", &["run", "rm", "my dir"][..]),
        ("  overmind ps | head -1", &["ps"]),
        (
            "$ overmind run -- sh -c 'echo a; b'  # says both",
            &["run", "--", "sh", "-c", "echo a; b"],
        ),
        ("overmind wait build; echo $?", &["wait", "build"]),
        ("overmind down # now", &["down"]),
    ] {
        assert_eq!(example(line).unwrap(), wanted, "{line}");
    }
    assert_eq!(example("cargo run"), None);
    assert!(refused(&["frobnicate".into()]).is_some());
}

fn every_command(of: &Command, path: &str, visit: &mut dyn FnMut(&str, &Command)) {
    for command in of.get_subcommands() {
        let path = format!("{path} {}", command.get_name());
        visit(&path, command);
        every_command(command, &path, visit);
    }
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_and_every_argument_has_a_description() {
    let root = Cli::command();
    let mut seen = 0;
    every_command(&root, "overmind", &mut |path, command| {
        seen += 1;
        assert!(command.get_about().is_some(), "{path} has no description");
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            // The two that say only which collection and role speak for themselves.
            let plain = ["collection", "shell", "role", "name", "model"];
            let told = arg.get_help().is_some() || plain.contains(&arg.get_id().as_str());
            assert!(told, "{path}: {} is not described", arg.get_id());
        }
    });
    assert!(seen > 40, "{seen}");
}
