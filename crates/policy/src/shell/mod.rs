//! Determines what a command text would do: its *effective actions*.
//!
//! [`analyse`] is the entry point. It parses the text with its own grammar ([`parse`]), removes
//! wrappers ([`wrap`]), and looks up what each program does with its arguments ([`programs`] and
//! the modules of single programs). It runs nothing and accesses no disk.
//!
//! The one rule of this module: **everything that is not understood is [`TouchKind::Unknown`]**.
//! That applies to a text that does not parse, a program that is not in the table, an unknown
//! option where options may run commands, and a name that only the running shell knows. If a shell
//! reads a text differently from this module, that is a bug here; so is a program that does more
//! than its table entry says. The sandbox protects in such cases.

mod ast;
mod builtins;
pub(crate) mod expand;
mod files;
mod git;
mod interp;
mod lex;
mod net;
mod parse;
pub(crate) mod path;
mod programs;
mod run;
mod scripts;
mod tools;
mod variables;
mod walk;
mod wrap;

pub(crate) use self::net::host_of;

use overmind_core::gate::TouchKind;

/// The directory in which a command starts, as the command sees it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Absolute and without a slash at its end.
    pub(crate) workspace: String,
    /// In the form that [`path::resolve`] returns.
    pub(crate) cwd: String,
}

impl Place {
    pub(crate) fn new(workspace: &str, cwd: &str) -> Self {
        let workspace = match path::resolve(workspace, "/", "\0") {
            path if path.starts_with('/') => path,
            _ => "/workspace".to_owned(),
        };
        let cwd = path::resolve(if cwd.is_empty() { "." } else { cwd }, ".", &workspace);
        Self { workspace, cwd }
    }
}

/// One program that would run. Texts are as in [`expand`]: with private characters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Act {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) via: Vec<String>,
    /// The possible directories in which it starts.
    pub(crate) cwds: Vec<String>,
    pub(crate) touches: Vec<(TouchKind, String)>,
    /// Whether it deletes only single files that the command names, and no directory with its
    /// contents.
    pub(crate) single: bool,
    /// Whether an unknown host may be one of the run's own services: the program connects only to
    /// the host that it is given.
    pub(crate) near: bool,
    /// Whether it is unknown because the text hides something or cannot be read, not because of a
    /// program.
    pub(crate) garbled: bool,
    /// Whether the call only may do it without saying so: it counts if no rule allows it.
    pub(crate) merely: bool,
}

impl Act {
    pub(crate) fn touch(&mut self, kind: TouchKind, target: impl Into<String>) {
        let touch = (kind, target.into());
        if self.touches.contains(&touch) {
            return;
        }
        if kind == TouchKind::Code {
            for host in net::hosts_in_code(&touch.1) {
                self.touch(TouchKind::Network, host);
            }
        }
        self.touches.push(touch);
    }

    /// Marks a text that hides what it does, or that is no command.
    pub(crate) fn garbled(&mut self, why: impl Into<String>) {
        self.garbled = true;
        self.unknown(why);
    }

    pub(crate) fn unknown(&mut self, why: impl Into<String>) {
        self.touch(TouchKind::Unknown, why);
    }
}

/// All programs that the text would run, in the order of the text.
pub(crate) fn analyse(text: &str, place: &Place) -> Vec<Act> {
    let mut walk = walk::Walk::new(place);
    walk.text(text);
    walk.acts
}

/// The actions of one program that is started without a shell, so its arguments are literal.
pub(crate) fn analyse_program(argv: &[String], stdin: Option<&str>, place: &Place) -> Vec<Act> {
    let mut walk = walk::Walk::new(place);
    let stdin = stdin.map_or(walk::Stdin::Inherited, |text| walk::Stdin::Text(text.to_owned()));
    if argv.iter().any(|arg| arg.chars().any(expand::is_private)) {
        walk.garbled(&argv[0], "an argument has hidden characters");
    } else {
        walk.run(argv, &stdin, Vec::new());
    }
    walk.acts
}
