//! The whole grammar for people: commands in groups, a word that was nearly right, help on topics.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _};
use overmind_core::nearest::nearest;

use crate::args::Cli;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::topics::TOPICS;

/// What `--help` lists: each command that is not hidden stands in one group. The first is what people
/// use all day, and has at most twelve.
pub const GROUPS: [(&str, &[&str]); 7] = [
    (
        "Daily use",
        &[
            "up", "run", "ps", "send", "logs", "work", "done", "undo", "inbox", "dash", "apply",
            "get",
        ],
    ),
    (
        "Runs",
        &[
            "agent", "info", "wait", "result", "attach", "answer", "approve", "deny", "stop",
            "kill", "diff", "fork", "prune", "replay", "events", "top", "url", "artifact",
        ],
    ),
    (
        "Declared things",
        &[
            "describe",
            "cron",
            "scale",
            "rollout",
            "edit",
            "label",
            "delete",
            "explain",
            "api-resources",
        ],
    ),
    ("What agents use", &["tool", "mcp", "memory", "mesh", "mail", "acl"]),
    ("Keys and what is allowed", &["vault", "key", "policy", "sandbox"]),
    ("Spending", &["budget", "costs", "prices", "halt", "resume"]),
    (
        "Setting up and keeping up",
        &[
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
    ),
];

/// The grammar, whose help shows the groups.
pub fn command() -> Command {
    let plain = Cli::command();
    let (header, literal) = (*plain.get_styles().get_header(), *plain.get_styles().get_literal());
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max();
    let width = width.unwrap_or_default();
    let mut groups = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(groups, "{header}{heading}:{header:#}");
        for name in names {
            let about = plain.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(groups, "  {literal}{name:<width$}{literal:#}  {about}");
        }
        groups.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}\
         {header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    plain.help_template(template)
}

/// The error, with the command that may have been meant: clap looks at how words begin, and finds
/// nothing for `rnu`.
pub fn with_nearest(mut err: clap::Error, args: &[OsString]) -> clap::Error {
    if err.kind() != ErrorKind::InvalidSubcommand {
        return err;
    }
    let Some(ContextValue::String(given)) = err.get(ContextKind::InvalidSubcommand) else {
        return err;
    };
    let mut whole = Cli::command();
    whole.build();
    let mut parent = &whole;
    for word in args.iter().skip(1).filter_map(|word| word.to_str()) {
        parent = parent.find_subcommand(word).unwrap_or(parent);
    }
    let shown = parent.get_subcommands().filter(|command| !command.is_hide_set());
    let near = nearest(given, shown.map(Command::get_name)).map(str::to_owned);
    if let Some(near) = near {
        err.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![near]));
    }
    err
}

/// `overmind help`: the whole, a command or a topic.
///
/// # Errors
///
/// When there is neither of this name.
pub fn help(cx: &Context, words: &[String]) -> Outcome {
    if let [word] = words
        && let Some((_, text)) = TOPICS.iter().find(|(topic, _)| topic == word)
    {
        cx.out.text(text)?;
        return Ok(Exit::Done);
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
    let text = found.render_long_help();
    if cx.out.colour {
        cx.out.text(&text.ansi().to_string())?
    } else {
        cx.out.text(&text.to_string())?
    }
    Ok(Exit::Done)
}

fn unknown(all: &str, word: &str, commands: &[String]) -> Failure {
    let topics = TOPICS.iter().map(|(topic, _)| *topic);
    let failure = Failure::usage(format!("there is no command and no topic `{all}`"));
    match nearest(word, commands.iter().map(String::as_str).chain(topics.clone())) {
        Some(near) => failure.hint(format!("did you mean `{near}`?")),
        None => failure.hint(format!(
            "`overmind help` lists the commands; topics are {}",
            topics.collect::<Vec<_>>().join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_that_is_shown_stands_in_one_group_and_twelve_are_for_daily_use() {
        let listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let once: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(once.len(), listed.len());
        let whole = Cli::command();
        let shown: BTreeSet<&str> = whole
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(Command::get_name)
            .collect();
        assert_eq!(shown, once);
        assert!(GROUPS[0].1.len() <= 12);
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
