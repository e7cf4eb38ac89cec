//! Reading the arguments, without building what they do not name.
//!
//! clap gives every command a copy of every global option before it looks at a word: some four
//! hundred of them, which is more work than most commands are. So the first word that is the name of
//! a command is taken for it, and all is read with a grammar of that command alone. That grammar is
//! a part of the whole one: what it accepts means the same there. What it does not accept is read
//! with the whole one, which then says what is wrong, or shows the help.
//!
//! Even the bare list of all commands is half a megabyte of builders. Those that scripts and people
//! say all day are known here by their words, without the list.

use std::ffi::OsString;

use clap::{ArgMatches, Args as _, CommandFactory as _, FromArgMatches as _};

use crate::args::{Cli, Command, Format, Global, LogsArgs, PsArgs, RunArgs};
use crate::args_command::{KillArgs, OneRunArgs, SendArgs, StopArgs, WaitArgs};
use crate::whole;

/// Parses the arguments of the process. Prints help and usage errors itself, and ends with 0 or 2.
pub fn parse() -> Cli {
    let args = colony_spelled(std::env::args_os().collect());
    let mut cli = quickly(&args).unwrap_or_else(|| {
        let found = whole::command().try_get_matches_from(&args);
        let cli = found.and_then(|mut found| Cli::from_arg_matches_mut(&mut found));
        cli.unwrap_or_else(|err| whole::with_nearest(err, &args).exit())
    });
    if cli.global.json {
        cli.global.output = Format::Json.into();
    }
    cli
}

/// Global options with a value, which may stand before the command.
const VALUED: [&str; 8] =
    ["--data", "--config", "--server", "--output", "-o", "--color", "--colony", "--namespace"];
/// Commands that take `-n` as kubectl's do, also behind their name. Others have a meaning for it.
const KUBECTL: [&str; 9] =
    ["get", "describe", "apply", "diff", "edit", "delete", "label", "create", "ps"];

/// The arguments with `--colony` for each `-n` that means it: before the command and, for some
/// commands, also behind it.
pub(crate) fn colony_spelled(mut args: Vec<OsString>) -> Vec<OsString> {
    let (mut at, mut command) = (1, None::<String>);
    while let Some(arg) = args.get(at).and_then(|arg| arg.to_str()).map(str::to_owned) {
        match arg.as_str() {
            "--" => break,
            "-n" => args[at] = "--colony".into(),
            other if command.is_none() && !other.starts_with('-') => {
                if !KUBECTL.contains(&other) {
                    break;
                }
                command = Some(other.to_owned());
            }
            _ => {}
        }
        let valued = args[at].to_str().is_some_and(|arg| VALUED.contains(&arg));
        at += if valued { 2 } else { 1 };
    }
    args
}

/// Whether `--` precedes the last words of the arguments.
pub fn after_dashes(words: &[String]) -> bool {
    let args: Vec<OsString> = std::env::args_os().collect();
    let before = args.len().checked_sub(words.len() + 1).and_then(|at| args.get(at));
    before.is_some_and(|arg| arg == "--")
}

/// Parses the arguments of the process, with options of `run` at any position; the first option
/// that equals `without` is left out.
///
/// # Errors
///
/// The usage error in this case.
pub fn interspersed(without: Option<&str>) -> Result<(Global, RunArgs), clap::Error> {
    let words = |words: clap::Arg| words.trailing_var_arg(false).allow_hyphen_values(false);
    let run = RunArgs::augment_args(clap::Command::new("run")).mut_arg("words", words);
    let mut args = colony_spelled(std::env::args_os().collect());
    if let Some(at) = args.iter().position(|arg| without.is_some_and(|word| arg == word)) {
        args.remove(at);
    }
    let mut found = globals().subcommand(run).try_get_matches_from(args)?;
    let (_, mut inner) = found.remove_subcommand().expect("a command is required");
    let args = RunArgs::from_arg_matches_mut(&mut inner)?;
    let mut global = Global::from_arg_matches_mut(&mut found)?;
    if global.json {
        global.output = Format::Json.into();
    }
    Ok((global, args))
}

/// The long options that people may give `run`, without their dashes.
pub fn options_of_run() -> Vec<String> {
    let run = RunArgs::augment_args(Global::augment_args(clap::Command::new("run")));
    let shown = run.get_arguments().filter(|arg| !arg.is_hide_set());
    shown.filter_map(clap::Arg::get_long).map(str::to_owned).collect()
}

/// The grammar of one command, and the conversion of its matches to a command.
struct Often {
    word: &'static str,
    augment: fn(clap::Command) -> clap::Command,
    read: fn(&mut ArgMatches) -> Result<Command, clap::Error>,
}

/// Frequent commands that have only arguments.
macro_rules! often {
    ($($word:literal => $variant:ident($args:ty)),+ $(,)?) => {
        fn often(word: &str) -> Option<Often> {
            match word {
                $($word => Some(Often {
                    word: $word,
                    augment: <$args>::augment_args,
                    read: |found| <$args>::from_arg_matches_mut(found).map(Command::$variant),
                }),)+
                _ => None,
            }
        }
    };
}

often! {
    "info" => Info(OneRunArgs),
    "kill" => Kill(KillArgs),
    "logs" => Logs(LogsArgs),
    "ps" => Ps(PsArgs),
    "result" => Result(OneRunArgs),
    "run" => Run(Box<RunArgs>),
    "send" => Send(SendArgs),
    "stop" => Stop(StopArgs),
    "wait" => Wait(WaitArgs),
}

/// Parses `args`, if they are valid and name a command.
pub fn quickly(args: &[OsString]) -> Option<Cli> {
    at_once(args).or_else(|| by_name(args)).or_else(|| bare(args))
}

/// The verb that a noun without a verb means: the first of these that it has.
const BARE: [&str; 3] = ["list", "show", "levels"];

/// A noun with verbs that was given without one: its list.
fn bare(args: &[OsString]) -> Option<Cli> {
    let whole = Cli::command();
    let word = |at: usize| args.get(at).and_then(|word| word.to_str());
    (1..args.len()).find_map(|at| {
        let mut noun = whole.find_subcommand(word(at)?)?.clone();
        noun.build();
        let verb = BARE.into_iter().find(|verb| noun.find_subcommand(verb).is_some())?;
        // A following word was meant as a verb, and is reported as one.
        if args.get(at + 1).is_some_and(|next| !next.to_string_lossy().starts_with('-')) {
            return None;
        }
        let mut said = args.to_vec();
        said.insert(at + 1, verb.into());
        by_name(&said)
    })
}

/// With the grammar of a command that is known by its word.
fn at_once(args: &[OsString]) -> Option<Cli> {
    let mut words = args.iter().skip(1).filter_map(|word| word.to_str());
    let Often { word, augment, read } = words.find_map(often)?;
    let part = globals().subcommand(augment(clap::Command::new(word)));
    let mut found = part.try_get_matches_from(args).ok()?;
    let (_, mut inner) = found.remove_subcommand()?;
    let command = read(&mut inner).ok()?;
    Some(Cli { global: Global::from_arg_matches_mut(&mut found).ok()?, command })
}

/// With the grammar of a command that is found in the list of all.
fn by_name(args: &[OsString]) -> Option<Cli> {
    let mut words = args.iter().skip(1).filter_map(|word| word.to_str());
    let whole = Cli::command();
    let command = words.find_map(|word| whole.find_subcommand(word))?.clone();
    let mut matches = globals().subcommand(command).try_get_matches_from(args).ok()?;
    Cli::from_arg_matches_mut(&mut matches).ok()
}

/// The global options if none is given.
pub fn no_globals() -> Global {
    let none = globals().subcommand_required(false).get_matches_from(["overmind"]);
    Global::from_arg_matches(&none).expect("every global option has a default or none")
}

/// The program with its global options, and no command yet.
fn globals() -> clap::Command {
    Global::augment_args(clap::Command::new("overmind"))
        .propagate_version(true)
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .subcommand_required(true)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn the_fast_parser_agrees_with_the_full_parser() {
        for line in [
            "overmind ps",
            "overmind ps --all --agent coder -o json",
            "overmind --data ps ps -q",
            "overmind -o wide --color=never agents list",
            "overmind run coder do ps --data /tmp/x",
            "overmind run --name a -- sh -c true",
            "overmind kill --all",
            "overmind -q send build yes, go on",
            "overmind mesh get tasks/1 --server unix:/tmp/s",
            "overmind logs build -f -n 5 --data /tmp/x",
            "overmind info build -o json",
            "overmind result build",
            "overmind stop build --grace 30",
            "overmind wait build --timeout 3s -v",
            "overmind run --sandbox namespace --restart always make ps",
            "overmind memory search ps",
        ] {
            let args = words(line);
            let whole = Cli::try_parse_from(&args);
            let whole = whole.unwrap_or_else(|err| panic!("{line}: {err}"));
            let quick = quickly(&args).unwrap_or_else(|| panic!("{line}: not read quickly"));
            assert_eq!(format!("{quick:?}"), format!("{whole:?}"), "{line}");
        }
    }

    #[test]
    fn n_before_a_command_names_a_colony_and_behind_one_what_the_command_says() {
        for (said, means) in [
            ("overmind -n team-a ps", "overmind --colony team-a ps"),
            ("overmind -o json -n a get runs", "overmind -o json --colony a get runs"),
            ("overmind get -n a runs", "overmind get --colony a runs"),
            ("overmind -n a logs x -n 5", "overmind --colony a logs x -n 5"),
            ("overmind --data -n logs x -n 5", "overmind --data -n logs x -n 5"),
            ("overmind run make -n 5", "overmind run make -n 5"),
            ("overmind ps -- -n", "overmind ps -- -n"),
        ] {
            assert_eq!(colony_spelled(words(said)), words(means), "{said}");
        }
        let cli = quickly(&colony_spelled(words("overmind -n team-a ps -A"))).unwrap();
        assert_eq!(cli.global.colony.as_deref(), Some("team-a"));
    }

    #[test]
    fn a_noun_without_a_verb_means_list() {
        for (said, means) in [
            ("overmind agents", "overmind agent list"),
            ("overmind agent -o json", "overmind agent list -o json"),
            ("overmind -o wide loop", "overmind -o wide loop list"),
            ("overmind cron", "overmind cron list"),
            ("overmind vault", "overmind vault list"),
            ("overmind keys", "overmind key list"),
            ("overmind mcp", "overmind mcp list"),
            ("overmind memory --limit 3", "overmind memory list --limit 3"),
            ("overmind budgets", "overmind budget list"),
            ("overmind artifacts", "overmind artifact list"),
            ("overmind tools", "overmind tool list"),
            ("overmind mail", "overmind mail list"),
            ("overmind --data agent agent", "overmind --data agent agent list"),
            ("overmind config", "overmind config show"),
            ("overmind sandbox", "overmind sandbox levels"),
        ] {
            let bare = quickly(&words(said)).unwrap_or_else(|| panic!("{said}: not a list"));
            let whole = Cli::try_parse_from(words(means)).unwrap();
            assert_eq!(format!("{bare:?}"), format!("{whole:?}"), "{said}");
        }
        for wrong in ["overmind agents lsit", "overmind agent --help", "overmind memory --tp 1"] {
            assert!(quickly(&words(wrong)).is_none(), "{wrong}");
        }
    }

    #[test]
    fn the_fast_parser_leaves_errors_and_help_to_the_full_parser() {
        for line in [
            "overmind",
            "overmind --version",
            "overmind ps --help",
            "overmind ps --limit 0",
            "overmind stauts",
            "overmind --data ps",
            "overmind -q -v ps",
        ] {
            assert!(quickly(&words(line)).is_none(), "{line}");
        }
    }
}
