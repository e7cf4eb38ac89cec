//! Builtins of the shell that change how later commands are read, or that run a text.

use overmind_core::gate::TouchKind;

use super::expand::{HOLE, SPLIT, is_open, is_private};
use super::run::{Call, is_option};
use super::variables::{dangerous_variable, environment};
use super::wrap::script_file;

pub(super) fn eval(call: &mut Call<'_, '_>) {
    let args = call.args();
    let text = args.iter().filter(|arg| *arg != "--").cloned().collect::<Vec<_>>().join(" ");
    if is_open(&text) || text.chars().any(is_private) {
        return call.unknown("`eval` runs a text that is known only at run time");
    }
    // Unlike other wrappers it runs in the same shell; variables that it sets are not followed.
    call.text(&text);
    if text.contains("cd ") || text.contains("pushd") {
        call.walk.cwds = vec![HOLE.to_string()];
    }
}

pub(super) fn source(call: &mut Call<'_, '_>) {
    let args = call.args();
    match args.first() {
        Some(file) if !is_option(file) => {
            script_file(call, file, &args[1..]);
            // It may have changed the directory, but a virtual environment does not.
            if !file.ends_with("/activate") {
                call.walk.cwds = vec![HOLE.to_string()];
            }
        }
        Some(_) | None => call.unknown("a script that is not named"),
    }
}

/// `jobs -x program …` runs the program.
pub(super) fn jobs(call: &mut Call<'_, '_>) {
    let args = call.args();
    if let Some(at) = args.iter().position(|arg| is_option(arg) && arg.contains('x')) {
        call.inner(&args[at + 1..]);
    }
}

/// `history -s text; history -w file` writes any text to any file.
pub(super) fn history(call: &mut Call<'_, '_>) {
    let args = call.args();
    if args.iter().all(|arg| arg.chars().all(|c| c.is_ascii_digit())) {
        return;
    }
    for arg in args.iter().filter(|arg| !is_option(arg)) {
        call.path(TouchKind::Write, arg);
    }
    call.unknown("it changes the list of commands, or writes it to a file");
}

/// Whether a shell option cannot change the meaning of patterns and names here.
pub(super) fn tame_option(name: &str) -> bool {
    matches!(
        name,
        "nullglob"
            | "failglob"
            | "globstar"
            | "extglob"
            | "lastpipe"
            | "expand_aliases"
            | "inherit_errexit"
            | "checkwinsize"
            | "histappend"
            | "nocasematch"
            | "xpg_echo"
    )
}

/// `shopt -s dotglob` makes `*` match hidden files, too.
pub(super) fn shopt(call: &mut Call<'_, '_>) {
    let args = call.args();
    let sets = args.iter().any(|arg| is_option(arg) && arg.contains(['s', 'o']));
    if sets && !args.iter().filter(|arg| !is_option(arg)).all(|name| tame_option(name)) {
        call.unknown("a setting of the shell that changes what patterns stand for");
    }
}

pub(super) fn trap(call: &mut Call<'_, '_>) {
    let args = call.args();
    match args.iter().find(|arg| *arg != "--") {
        None => {}
        Some(arg) if matches!(arg.as_str(), "-" | "-p" | "-l" | "") => {}
        Some(text) => call.text(text),
    }
}

pub(super) fn alias(call: &mut Call<'_, '_>) {
    for arg in call.args() {
        if arg.contains(SPLIT) || arg.starts_with(HOLE) {
            call.unknown("an alias that is known only at run time");
        }
        if let Some((name, text)) = arg.split_once('=') {
            call.walk.aliases.insert(name.to_owned());
            call.text(text);
        }
    }
}

pub(super) fn export(call: &mut Call<'_, '_>) {
    for arg in call.args() {
        let (name, value) = match arg.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (arg.as_str(), None),
        };
        if name.contains([HOLE, SPLIT]) {
            call.unknown("which variable is set is known only at run time");
        }
        if is_option(name) && name.contains(['i', 'n']) && call.name() != "export" {
            call.unknown("a variable that is evaluated when it is set");
        }
        if dangerous_variable(name) && (value.is_some() || call.name() == "export") {
            let mut act = std::mem::take(&mut call.act);
            environment(&mut act, name, value);
            call.act = act;
        }
    }
}

pub(super) fn set(call: &mut Call<'_, '_>) {
    let harmless = call.args().iter().enumerate().all(|(n, arg)| {
        let letters = arg.strip_prefix(['-', '+']);
        letters.is_some_and(|letters| letters.chars().all(|c| "abefhkmnptuvxBCEHPTo".contains(c)))
            || (n > 0
                && matches!(arg.as_str(), "pipefail" | "errexit" | "nounset" | "xtrace" | "noglob"))
    });
    if !harmless {
        call.unknown("it sets the arguments of the shell itself");
    }
}

pub(super) fn cd(call: &mut Call<'_, '_>) {
    let args = call.args();
    let mut named = args.iter().filter(|arg| !matches!(arg.as_str(), "--" | "-P" | "-L"));
    let to = named.next().map(String::as_str);
    let strange = named.next().is_some() || call.name() != "cd";
    call.walk.change_directory(if strange { Some("-") } else { to });
}

/// Builtins that set variables by name: `printf -v PATH …`, `read PATH`. `hash -p` assigns a name
/// to another program.
pub(super) fn sets(call: &mut Call<'_, '_>) {
    let args = call.args();
    let name = call.name().to_owned();
    if name == "hash" && args.iter().any(|arg| is_option(arg) && arg != "-r") {
        call.unknown("a name is given to another program");
    }
    if matches!(name.as_str(), "mapfile" | "readarray") && super::run::has_option(&args, "C", &[]) {
        call.unknown("an option that runs a program");
    }
    if name == "unset" {
        call.walk.functions.clear();
    }
    if args.first().is_some_and(|arg| arg.contains(SPLIT)) {
        call.unknown("an argument that may be an option is known only at run time");
    }
    // The printed text is no variable; the argument of `-v` is.
    let from = match name.as_str() {
        "printf" => args.iter().position(|arg| arg.starts_with("-v")).unwrap_or(args.len()),
        _ => 0,
    };
    let to = if name == "printf" { from + 2 } else { args.len() };
    for arg in args.iter().take(to).skip(from) {
        let arg = arg.strip_prefix("-v").unwrap_or(arg.as_str());
        let end = arg.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(arg.len());
        if dangerous_variable(&arg[..end]) {
            call.act.touch(TouchKind::Environment, &arg[..end]);
        }
        if arg.contains([HOLE, SPLIT]) {
            call.unknown("which variable is set is known only at run time");
        }
    }
}
