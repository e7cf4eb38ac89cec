//! What a command text would do: its *effective actions*.
//!
//! [`analyse`] is the entry point. It reads the text with a grammar of its own ([`parse`]), takes
//! off wrappers ([`wrap`]), and looks up what each program does with its arguments
//! ([`programs`] and the modules of single programs). It runs nothing and looks at no disk.
//!
//! The one rule of this module: **what is not understood is [`TouchKind::Unknown`]**. That holds
//! for a text that does not parse, a program that is not in the table, an option that is not
//! known where options may run commands, a name that only the running shell knows. A shell that
//! reads a text differently from us is a bug of ours; a program that does more than its table
//! says, too. The sandbox is what holds then.

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

/// Where a command starts, as it sees it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Absolute and without a slash at its end.
    pub(crate) workspace: String,
    /// As [`path::resolve`] answers.
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
    /// Where it starts: each directory that is possible.
    pub(crate) cwds: Vec<String>,
    pub(crate) touches: Vec<(TouchKind, String)>,
    /// What it deletes are single files that the command names, and no directory with what is in it.
    pub(crate) single: bool,
    /// A host that is not known may be one of the run's own services: the program speaks to whatever
    /// it is told, and goes nowhere by itself.
    pub(crate) near: bool,
    /// It is unknown because the text hides or cannot be read, not because it runs some program.
    pub(crate) garbled: bool,
    /// The call may do it, and does not say that it does: it counts where a rule does not allow it.
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

    /// A text that hides what it does, or that is no command.
    pub(crate) fn garbled(&mut self, why: impl Into<String>) {
        self.garbled = true;
        self.unknown(why);
    }

    pub(crate) fn unknown(&mut self, why: impl Into<String>) {
        self.touch(TouchKind::Unknown, why);
    }
}

/// Everything that the text would run, in the order of the text.
pub(crate) fn analyse(text: &str, place: &Place) -> Vec<Act> {
    let mut walk = walk::Walk::new(place);
    walk.text(text);
    walk.acts
}

/// What one program would do that no shell reads: its arguments are what they are.
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
