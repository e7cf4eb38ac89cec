//! The whole grammar for people: commands in groups, a word that was nearly right, help on topics.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _};
use overmind_core::nearest::nearest;

use crate::args::Cli;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::topics::{EARLIER, TOPICS};

/// Commands that belong together.
#[derive(Debug)]
pub struct Group {
    /// The name of the group in `overmind help`.
    pub name: &'static str,
    /// The purpose of its commands, in one line.
    pub about: &'static str,
    pub commands: &'static [&'static str],
}

/// The commands for daily use, at most twelve: the only ones that `--help` lists.
pub const DAILY: [&str; 12] =
    ["up", "run", "ps", "send", "logs", "work", "done", "undo", "inbox", "dash", "apply", "get"];

/// All other visible commands: each is in one group, which `overmind help GROUP` lists.
pub const GROUPS: [Group; 6] = [
    Group {
        name: "runs",
        about: "Look into runs, wait for them, answer, stop and compare them",
        commands: &[
            "info", "wait", "result", "attach", "answer", "approve", "deny", "stop", "kill",
            "diff", "fork", "prune", "rm", "replay", "events", "top", "url", "artifact",
        ],
    },
    Group {
        name: "declare",
        about: "Declare resources, schedules and fleets, and change them",
        commands: &[
            "describe",
            "create",
            "cron",
            "scale",
            "rollout",
            "edit",
            "label",
            "delete",
            "explain",
            "api-resources",
        ],
    },
    Group {
        name: "agents",
        about: "Create agents, and manage their tools, memory and messages",
        commands: &["agent", "tool", "mcp", "memory", "mesh", "mail", "acl"],
    },
    Group {
        name: "keys",
        about: "Manage secrets, API keys, the policy and sandboxes",
        commands: &["vault", "key", "policy", "sandbox"],
    },
    Group {
        name: "spending",
        about: "Set budgets, see costs and prices, stop everything",
        commands: &["budget", "costs", "prices", "halt", "resume"],
    },
    Group {
        name: "setup",
        about: "Set up, check, back up and stop the server",
        commands: &[
            "demo",
            "down",
            "status",
            "init",
            "trust",
            "config",
            "doctor",
            "backup",
            "restore",
            "audit",
            "loop",
            "bench",
            "completions",
            "man",
            "help",
        ],
    },
];

/// Lines of names and what each is for, under a heading.
fn section(plain: &Command, heading: &str, lines: &[(&str, String)]) -> String {
    let (header, literal) = (*plain.get_styles().get_header(), *plain.get_styles().get_literal());
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let mut text = format!("{header}{heading}:{header:#}\n");
    for (name, about) in lines {
        let _ = writeln!(text, "  {literal}{name:<width$}{literal:#}  {about}");
    }
    text
}

/// Each command with what it is for.
fn abouts<'a>(plain: &Command, names: &[&'a str]) -> Vec<(&'a str, String)> {
    let about = |name: &str| plain.find_subcommand(name).and_then(Command::get_about);
    names
        .iter()
        .map(|name| (*name, about(name).map(ToString::to_string).unwrap_or_default()))
        .collect()
}

/// The grammar, whose help shows the commands of daily use and the names of the groups.
pub fn command() -> Command {
    let plain = Cli::command();
    let header = *plain.get_styles().get_header();
    let daily = section(&plain, "Daily use", &abouts(&plain, &DAILY));
    let groups: Vec<_> = GROUPS.iter().map(|group| (group.name, group.about.to_owned())).collect();
    let groups = section(&plain, "More commands, listed by `overmind help GROUP`", &groups);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{daily}\n{groups}\n\
         {header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    flowing(plain.help_template(template))
}

/// The grammar, with the paragraphs at the end of each help as one line each, which is wrapped to the
/// terminal: lines that were wrapped before are not wrapped twice.
fn flowing(mut command: Command) -> Command {
    if let Some(text) = command.get_after_help() {
        let text = joined(&text.to_string());
        command = command.after_help(text);
    }
    let names: Vec<String> =
        command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, flowing))
}

/// Lines of prose put together; examples, tables and headings stay as they are.
fn joined(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let is_prose =
            |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
        match lines.last_mut() {
            Some(last) if is_prose(last) && is_prose(line) => {
                last.push(' ');
                last.push_str(line);
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
}

/// The help of a group: its commands, a line each.
fn of_group(group: &Group) -> clap::builder::StyledStr {
    let plain = Cli::command();
    let commands = section(&plain, "Commands", &abouts(&plain, group.commands));
    let text =
        format!("{}\n\n{commands}\n`overmind help COMMAND` shows examples of each.\n", group.about);
    text.into()
}

/// The error, with a hint: the command that was probably meant, because clap compares only the
/// beginnings of words and finds nothing for `rnu`; for an incomplete command, an example.
pub fn with_nearest(mut err: clap::Error, args: &[OsString]) -> clap::Error {
    if !matches!(err.kind(), ErrorKind::InvalidSubcommand | ErrorKind::MissingRequiredArgument) {
        return err;
    }
    let mut whole = Cli::command();
    whole.build();
    let mut parent = &whole;
    let mut examples = None;
    for word in args.iter().skip(1).filter_map(|word| word.to_str()) {
        let Some(command) = parent.find_subcommand(word) else { continue };
        let path = command.get_bin_name().unwrap_or_default();
        // Those of a verb may stand in the help of its noun.
        let own = [command, parent].into_iter().find_map(|help| example_of(help, path));
        (parent, examples) = (command, own);
    }
    if err.kind() == ErrorKind::MissingRequiredArgument {
        if let Some(example) = examples {
            let tip = vec![format!("for example: {example}").into()];
            err.insert(ContextKind::Suggested, ContextValue::StyledStrs(tip));
        }
        return err;
    }
    let Some(ContextValue::String(given)) = err.get(ContextKind::InvalidSubcommand) else {
        return err;
    };
    let shown = parent.get_subcommands().filter(|command| !command.is_hide_set());
    let near = nearest(given, shown.map(Command::get_name)).map(str::to_owned);
    if let Some(near) = near {
        err.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![near]));
    }
    err
}

/// The first example in a command's help that begins with `path`, without the remark after it.
fn example_of(command: &Command, path: &str) -> Option<String> {
    let help = command.get_after_help()?.to_string();
    let example = help.lines().map(str::trim_start).find(|line| line.starts_with(path))?;
    let example = example.split("   ").next().unwrap_or(example);
    Some(example.trim_end().to_owned())
}

/// `overmind help`: the whole, a group of commands, a command or a topic.
///
/// # Errors
///
/// When there is nothing of this name.
pub fn help(cx: &Context, words: &[String]) -> Outcome {
    if let [word] = words
        && let Some((_, text)) = TOPICS.iter().chain(&EARLIER).find(|(topic, _)| topic == word)
    {
        cx.out.text(text)?;
        return Ok(Exit::Done);
    }
    if let [word] = words
        && let Some(group) = GROUPS.iter().find(|group| group.name == word)
    {
        return styled(cx, &of_group(group));
    }
    let mut whole = command();
    whole.build();
    let mut found = &mut whole;
    for word in words {
        let names: Vec<String> = found
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(|command| command.get_name().to_owned())
            .collect();
        match found.find_subcommand_mut(word) {
            Some(command) => found = command,
            None => return Err(unknown(&words.join(" "), word, &names)),
        }
    }
    styled(cx, &found.render_long_help())
}

fn styled(cx: &Context, text: &clap::builder::StyledStr) -> Outcome {
    match cx.out.colour {
        true => cx.out.text(&text.ansi().to_string())?,
        false => cx.out.text(&text.to_string())?,
    }
    Ok(Exit::Done)
}

fn unknown(all: &str, word: &str, commands: &[String]) -> Failure {
    let topics = TOPICS.iter().map(|(topic, _)| *topic);
    let failure = Failure::usage(format!("there is no command and no topic `{all}`"));
    let groups = GROUPS.iter().map(|group| group.name);
    match nearest(
        word,
        commands.iter().map(String::as_str).chain(groups.clone()).chain(topics.clone()),
    ) {
        // No part of a short word with another beginning is compared: `nope` is not `done`.
        Some(near) if word.len() > 4 || near.chars().next() == word.chars().next() => {
            failure.hint(format!("did you mean `{near}`?"))
        }
        Some(_) | None => failure.hint(format!(
            "`overmind help` lists commands; groups are {}; topics are {}",
            groups.collect::<Vec<_>>().join(", "),
            topics.collect::<Vec<_>>().join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_visible_command_is_daily_or_in_one_group() {
        let mut listed = DAILY.to_vec();
        listed.extend(GROUPS.iter().flat_map(|group| group.commands));
        let once: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(once.len(), listed.len());
        let whole = Cli::command();
        let shown: BTreeSet<&str> = whole
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(Command::get_name)
            .collect();
        assert_eq!(shown, once);
    }

    #[test]
    fn the_help_of_every_visible_command_has_an_example() {
        let mut whole = Cli::command();
        // Until then, the commands lack what their arguments add.
        whole.build();
        let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
        for command in whole.get_subcommands().filter(shown) {
            let has = |command: &Command| {
                let after = command.get_after_help().or(command.get_after_long_help());
                after.is_some_and(|after| after.to_string().contains("overmind "))
            };
            let any = has(command) || command.get_subcommands().any(has);
            assert!(any, "`{}` has no example", command.get_name());
        }
    }

    #[test]
    fn a_group_with_the_name_of_a_command_lists_that_command() {
        let whole = Cli::command();
        for group in GROUPS {
            if let Some(command) = whole.find_subcommand(group.name) {
                assert!(group.commands.contains(&command.get_name()), "{}", group.name);
            }
            assert!(TOPICS.iter().all(|(topic, _)| *topic != group.name), "{}", group.name);
        }
    }

    #[test]
    fn no_flattened_argument_struct_has_a_doc_comment() {
        // clap would show that as what the command is for.
        let mut text = String::new();
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with("args") && name.ends_with(".rs") {
                text.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
        let mut flattened = 0;
        for field in text.split("#[command(flatten)]").skip(1) {
            let kind = field.split(": ").nth(1).unwrap().split(',').next().unwrap();
            let kind = kind.trim_start_matches("Box<").trim_end_matches('>');
            let kind = kind.rsplit("::").next().unwrap();
            // The whole program, whose help is written separately.
            if kind == "Global" {
                continue;
            }
            let (before, _) = text.split_once(&format!("pub struct {kind} {{")).unwrap();
            let own = before.rsplit("\n}\n").next().unwrap();
            assert!(!own.lines().any(|line| line.starts_with("/// ")), "{kind}: use `//`");
            flattened += 1;
        }
        assert!(flattened > 5, "{flattened}");
    }

    #[test]
    fn a_command_with_a_missing_argument_is_refused_with_an_example() {
        for (line, example) in [
            ("overmind send", "tip: for example: overmind send "),
            ("overmind done fix", "tip: for example: overmind done "),
            ("overmind key create", "tip: for example: overmind key create ci --role operator\n"),
        ] {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let err = command().try_get_matches_from(&args).unwrap_err();
            let told = with_nearest(err, &args).to_string();
            assert!(told.contains(example), "{told}");
        }
    }

    #[test]
    fn no_topic_has_the_name_of_a_command() {
        let whole = Cli::command();
        for (topic, text) in TOPICS {
            assert!(whole.find_subcommand(topic).is_none(), "{topic}");
            assert!(
                text.ends_with('\n') && text.lines().all(|line| line.chars().count() <= 100),
                "{topic}"
            );
        }
    }
}
