//! Commands that `run` refuses before it starts anything: invalid names, options and tasks.

use overmind_api::Agent;
use overmind_core::nearest::nearest;

use crate::exit::Failure;
use crate::output::clean;
use crate::parse;

/// The error for a mistake in the options.
pub(crate) const OPTIONS: &str = "`overmind run --help` lists the options, which may also follow the task; put text in \
    quotes, or after `--`";

/// Refuses a name that no run can have, with one that it can.
pub(crate) fn named(name: &str) -> Result<(), Failure> {
    let Err(why) = overmind_core::name::check(name) else { return Ok(()) };
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let why = match name.chars().find(|c| !plain(*c)) {
        Some(' ') => "may contain small letters, digits and hyphens, but no space".to_owned(),
        // It may only look like another one: also by its code point.
        Some(c) if c.is_alphanumeric() && !c.is_ascii() => {
            let (rule, place) = why.split_once(", not ").unwrap_or((&why, ""));
            format!("{rule}, not `{c}` ({place})")
        }
        Some(_) | None => why,
    };
    let mut valid: String =
        name.to_lowercase().chars().map(|c| if plain(c) { c } else { '-' }).collect();
    while valid.contains("--") {
        valid = valid.replace("--", "-");
    }
    valid.truncate(40);
    let valid = match valid.trim_matches('-') {
        "" => "fix-login",
        valid => valid,
    };
    let name = clean::line(name);
    Err(Failure::usage(format!("--name `{name}`: a name {why}"))
        .hint(format!("for example: --name {valid}")))
}

/// Refuses an option that `run` does not have, with a suggested one.
pub(crate) fn no_option(given: &str) -> Failure {
    // Handles `--name=x`, and a text that only begins like an option.
    let word = given.split(['=', ' ']).next().unwrap_or_default();
    let message = format!("unexpected argument `{}`", clean::line(word));
    match nearest(word.trim_start_matches('-'), parse::options_of_run().iter().map(String::as_str))
    {
        Some(near) => Failure::usage(format!("{message}; did you mean `--{near}`?")),
        None => Failure::usage(message),
    }
    .hint(OPTIONS)
}

/// Whether the words of a task say nothing: there are none, or they are empty or only white space.
pub(crate) fn is_blank(words: &[String]) -> bool {
    words.iter().all(|word| word.trim().is_empty())
}

/// The refusal of a run without a task, with a command that has one.
pub(crate) fn no_task(agent: &Agent) -> Failure {
    Failure::usage(format!("a task is missing: tell `{}` what to do", agent.name))
        .hint(format!("for example: overmind run --agent {} \"fix the failing test\"", agent.name))
}

/// The error for a `run` without an agent and without a task.
pub(crate) fn nothing() -> Failure {
    Failure::usage("an agent and its task, or a program, are missing: nothing was started")
        .hint("for example: overmind run --agent claude \"fix the failing test\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn an_unknown_option_of_run_is_refused_with_the_right_option() {
        for (given, said) in [
            ("--nmae", "unexpected argument `--nmae`; did you mean `--name`?"),
            ("--nmae=fix", "unexpected argument `--nmae`; did you mean `--name`?"),
            ("-label", "unexpected argument `-label`; did you mean `--label`?"),
            ("--zzz", "unexpected argument `--zzz`"),
            ("--outptu", "unexpected argument `--outptu`; did you mean `--output`?"),
            ("- fix it", "unexpected argument `-`"),
        ] {
            let failure = no_option(given);
            assert_eq!((failure.exit, failure.message.as_str()), (Exit::Usage, said));
            assert!(failure.hint.unwrap().contains("after `--`"));
        }
    }

    #[test]
    fn an_invalid_run_name_is_refused_with_a_valid_one() {
        for (given, why, valid) in [
            ("a b", "no space", "--name a-b"),
            ("Fix", "not `F` at position 1", "--name fix"),
            ("né", "not `é` (U+00E9 at position 2)", "--name n"),
            ("a\u{200b}b", "U+200B", "--name a-b"),
            ("-a", "begin and end", "--name a"),
            ("é", "not `é`", "--name fix-login"),
        ] {
            let failure = named(given).unwrap_err();
            assert!(failure.message.contains(why), "{}", failure.message);
            assert_eq!(failure.hint.unwrap(), format!("for example: {valid}"));
            assert!(named(valid.trim_start_matches("--name ")).is_ok(), "{valid}");
        }
    }
}
