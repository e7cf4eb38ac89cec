//! Walks a parsed text in order and tracks the state that later statements depend on: the
//! directory, plain variables, functions and aliases, standard input.

use std::collections::{HashMap, HashSet};

use overmind_core::gate::TouchKind;

use super::ast::{
    Chain, Command, Compound, Join, Piece, RedirectKind, Script, Shape, Simple, Word,
};
use super::expand::{self, HOLE, SPLIT, expand, is_open, is_static};
use super::parse::{MAX_DEPTH, parse};
use super::path::{anywhere, in_workspace, resolve};
use super::variables::{dangerous_variable, environment};
use super::{Act, Place};

/// Maximum number of programs that one text may run. A loop counts each of its rounds.
const MAX_ACTS: usize = 256;
/// Maximum number of values of a loop's variable that are analysed one by one.
const MAX_VALUES: usize = 8;
/// Maximum number of links of one text that are followed.
const MAX_LINKS: usize = 64;
/// Maximum number of possible directories of the shell that are followed.
const MAX_CWDS: usize = 6;

/// The standard input of a command.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stdin {
    /// The input of the whole text, which is not relevant.
    Inherited,
    Pipe {
        /// Whether it consists of names of files in the workspace, one a line.
        names: bool,
    },
    /// A here-document or here-string.
    Text(String),
    File(String),
}

#[derive(Debug)]
pub(super) struct Walk<'a> {
    pub(super) place: &'a Place,
    pub(super) acts: Vec<Act>,
    pub(super) depth: usize,
    /// The wrappers around the current command.
    pub(super) via: Vec<String>,
    /// The possible directories of the shell.
    pub(super) cwds: Vec<String>,
    pub(super) functions: HashSet<String>,
    /// Functions whose bodies are being analysed.
    inside: Vec<String>,
    pub(super) aliases: HashSet<String>,
    /// Links that the text has made, each with its path and target.
    links: Vec<(String, String)>,
    variables: HashMap<String, String>,
    /// How often each name occurs in the text without a dollar before it.
    bare_names: HashMap<String, u32>,
    /// Whether the position is in a body that may run several times or not at all.
    repeated: u32,
    full: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(place: &'a Place) -> Self {
        Self {
            place,
            acts: Vec::new(),
            depth: 0,
            via: Vec::new(),
            cwds: vec![place.cwd.clone()],
            functions: HashSet::new(),
            inside: Vec::new(),
            aliases: HashSet::new(),
            links: Vec::new(),
            variables: HashMap::new(),
            bare_names: HashMap::new(),
            repeated: 0,
            full: false,
        }
    }

    /// Analyses a whole text, as `sh -c` would run it.
    pub(super) fn text(&mut self, text: &str) {
        if text.chars().any(expand::is_private) {
            // Nobody types such characters; texts that a wrapper composes may have unknown parts.
            match self.depth {
                0 => self.garbled("sh", "it has hidden characters"),
                _ => self.unknown("sh", "a shell runs a text that is known only at run time"),
            }
            return;
        }
        match parse(text, self.depth) {
            Ok(script) => {
                let variables = std::mem::take(&mut self.variables);
                let names = std::mem::replace(&mut self.bare_names, bare_names(text));
                self.script(&script);
                self.variables = variables;
                self.bare_names = names;
            }
            Err(why) => self.garbled("sh", &format!("the command was not understood: {}", why.0)),
        }
    }

    /// Analyses a text that a wrapper runs in a shell of its own.
    pub(super) fn inner_text(&mut self, text: &str) {
        if self.enter() {
            let (cwds, functions) = (self.cwds.clone(), self.functions.clone());
            self.text(text);
            (self.cwds, self.functions) = (cwds, functions);
        }
        self.depth -= 1;
    }

    /// Goes one level deeper. The caller must decrease `depth` again in any case.
    pub(super) fn enter(&mut self) -> bool {
        self.depth += 1;
        let fits = self.depth <= MAX_DEPTH;
        if !fits {
            self.garbled("sh", "it is nested too deeply");
        }
        fits
    }

    /// Records an action of which nothing is known.
    pub(super) fn unknown(&mut self, program: &str, why: &str) {
        let mut act = Act { program: program.to_owned(), via: self.via.clone(), ..Act::default() };
        act.unknown(why);
        self.record(act);
    }

    /// Records a text that hides what it does, or that is no command.
    pub(super) fn garbled(&mut self, program: &str, why: &str) {
        let mut act = Act { program: program.to_owned(), via: self.via.clone(), ..Act::default() };
        act.garbled(why);
        self.record(act);
    }

    pub(super) fn record(&mut self, act: Act) {
        if self.acts.len() < MAX_ACTS {
            self.acts.push(act);
        } else if !self.full {
            self.full = true;
            let mut act = Act { program: "sh".to_owned(), ..Act::default() };
            act.garbled("it runs too many programs to look at");
            self.acts.push(act);
        }
    }

    /// The path, resolved from each possible directory of the shell.
    pub(super) fn paths(&self, path: &str) -> Vec<String> {
        let mut all: Vec<String> = Vec::with_capacity(1);
        for cwd in &self.cwds {
            let path = resolve(path, cwd, &self.place.workspace);
            if !all.contains(&path) {
                all.push(path);
            }
        }
        all
    }

    pub(super) fn touch_path(&self, act: &mut Act, kind: TouchKind, path: &str) {
        for path in self.paths(path) {
            for to in self.behind_links(&path, kind) {
                act.touch(kind, to);
            }
            act.touch(kind, path);
        }
    }

    /// Records that a link at `link` leads to `target`. The target is relative to the link's
    /// directory or, for a hard link, to the shell's: both are recorded.
    pub(super) fn link(&mut self, link: &str, target: &str) {
        for at in self.paths(link) {
            let parent = at.rsplit_once('/').map_or(".", |(parent, _)| parent).to_owned();
            let mut leads = self.paths(target);
            leads.push(resolve(target, &parent, &self.place.workspace));
            let further: Vec<String> =
                leads.iter().flat_map(|to| self.behind_links(to, TouchKind::Read)).collect();
            leads.extend(further);
            for to in leads {
                if self.links.len() == MAX_LINKS {
                    self.unknown("ln", "it makes more links than are followed");
                    return;
                }
                if at != "." && at != to && !in_workspace(&to) {
                    self.links.push((at.clone(), to));
                }
            }
        }
    }

    /// The targets of the text's links that `path` goes through. Deleting a link does not affect
    /// its target.
    fn behind_links(&self, path: &str, kind: TouchKind) -> Vec<String> {
        let through = |(link, to): &(String, String)| match path.strip_prefix(link.as_str())? {
            "" if kind == TouchKind::Delete => None,
            "" => Some(to.clone()),
            rest if rest.starts_with('/') => Some(format!("{to}{rest}")),
            _ => None,
        };
        self.links.iter().filter_map(through).collect()
    }

    fn script(&mut self, script: &Script) {
        for chain in &script.chains {
            if self.full {
                return;
            }
            self.chain(chain);
        }
    }

    fn chain(&mut self, chain: &Chain) {
        let before = self.cwds.clone();
        let functions = (chain.pipelines.len() > 1
            || chain.pipelines.iter().any(|(_, p)| p.len() > 1))
        .then(|| self.functions.clone());
        for (join, pipeline) in &chain.pipelines {
            if *join == Join::Or {
                self.may_be_in(&before);
            }
            match pipeline.as_slice() {
                [command] => self.command(command, &Stdin::Inherited),
                pipeline => {
                    let mut names = false;
                    for (n, command) in pipeline.iter().enumerate() {
                        let cwds = self.cwds.clone();
                        let stdin = if n == 0 { Stdin::Inherited } else { Stdin::Pipe { names } };
                        self.command(command, &stdin);
                        self.cwds = cwds;
                        names = lists_names(command, names);
                    }
                }
            }
        }
        // A failed `cd` leaves the rest of the list in the old directory, and a function that may
        // not have been defined hides no program.
        self.may_be_in(&before);
        if let Some(functions) = functions {
            self.functions = functions;
        }
    }

    fn may_be_in(&mut self, cwds: &[String]) {
        for cwd in cwds {
            if !self.cwds.contains(cwd) {
                self.cwds.push(cwd.clone());
            }
        }
        if self.cwds.len() > MAX_CWDS {
            // Known directories are kept, so that a denial there stays a denial.
            self.cwds.truncate(MAX_CWDS);
            self.cwds.push(anywhere());
        }
    }

    /// Handles `cd path`. In a body that runs again, a relative one leads further each time.
    pub(super) fn change_directory(&mut self, path: Option<&str>) {
        let to = match path {
            None => vec!["~/".to_owned()],
            Some(path) if is_static(path) && path != "-" && self.repeated == 0 => self.paths(path),
            Some(path) if is_static(path) && path != "-" && !path.starts_with('/') => {
                let mut to = self.paths(path);
                to.push(anywhere());
                to
            }
            Some(path) if path.starts_with('/') && is_static(path) => self.paths(path),
            Some(path)
                if path.starts_with(expand::HOME)
                    && is_static(&path[expand::HOME.len_utf8()..]) =>
            {
                self.paths(path)
            }
            Some(_) => vec![anywhere()],
        };
        if self.repeated > 0 {
            self.may_be_in(&to);
        } else {
            self.cwds = to;
        }
    }

    fn command(&mut self, command: &Command, stdin: &Stdin) {
        match command {
            Command::Simple(simple) => self.simple(simple, stdin),
            Command::Compound(compound) => self.compound(compound, stdin),
            Command::Function { name, body } => {
                // From now on, a function with the name of a program replaces it.
                self.functions.insert(name.clone());
                self.inside.push(name.clone());
                self.repeated += 1;
                let cwds = self.cwds.clone();
                self.script(body);
                self.may_be_in(&cwds);
                self.repeated -= 1;
                self.inside.pop();
            }
        }
    }

    fn compound(&mut self, compound: &Compound, stdin: &Stdin) {
        let mut act = Act { program: String::new(), via: self.via.clone(), ..Act::default() };
        for word in &compound.words {
            self.substitutions(word);
            if compound.shape == Shape::Test && hides_code(word) {
                act.unknown("a test evaluates a text that holds a command");
            }
        }
        let given = self.redirects(&compound.redirects, &mut act);
        if !act.touches.is_empty() {
            self.record(act);
        }
        // Commands inside share the input of the whole, so the part for each is not known.
        let reads = given.as_ref().unwrap_or(stdin) != &Stdin::Inherited;
        let cwds = self.cwds.clone();
        let functions = (compound.shape != Shape::Group).then(|| self.functions.clone());
        match compound.shape {
            Shape::Group => self.bodies(compound, reads),
            Shape::Subshell => {
                self.bodies(compound, reads);
                self.cwds = cwds;
            }
            Shape::Test => {}
            Shape::Branch => {
                self.repeated += 1;
                self.bodies(compound, reads);
                self.repeated -= 1;
                self.may_be_in(&cwds);
            }
            Shape::Loop => {
                self.repeated += 1;
                self.rounds(compound, reads);
                self.repeated -= 1;
                self.may_be_in(&cwds);
            }
        }
        if let Some(functions) = functions {
            self.functions = functions;
        }
    }

    /// Analyses the body of a loop once for each value of its variable, if they are few and known.
    fn rounds(&mut self, compound: &Compound, reads: bool) {
        let Some(name) = &compound.variable else { return self.bodies(compound, reads) };
        let values: Vec<String> =
            compound.words.iter().flat_map(|word| expand(word, &self.variables)).collect();
        let few = values.len() <= MAX_VALUES && !values.iter().any(|value| is_open(value));
        if !few || !self.is_set_once(name) || dangerous_variable(name) {
            if dangerous_variable(name) {
                self.environment(name, None);
            }
            self.variables.remove(name);
            return self.bodies(compound, reads);
        }
        for value in values {
            self.variables.insert(name.clone(), value);
            self.bodies(compound, reads);
        }
        self.variables.remove(name);
    }

    fn bodies(&mut self, compound: &Compound, reads: bool) {
        for body in &compound.bodies {
            // The first command of a group that reads its input gets a pipe's data, whichever that
            // is.
            if reads {
                for chain in &body.chains {
                    self.chain_reading(chain);
                }
            } else {
                self.script(body);
            }
        }
    }

    fn chain_reading(&mut self, chain: &Chain) {
        let before = self.cwds.clone();
        for (_, pipeline) in &chain.pipelines {
            for command in pipeline {
                self.command(command, &Stdin::Pipe { names: false });
            }
        }
        self.may_be_in(&before);
    }

    fn is_set_once(&self, name: &str) -> bool {
        self.bare_names.get(name).is_none_or(|&count| count <= 1)
    }

    /// Analyses the commands in the substitutions of a word.
    fn substitutions(&mut self, word: &Word) {
        for piece in &word.pieces {
            match piece {
                Piece::Output { script, .. } | Piece::Process { script } => {
                    if self.enter() {
                        let (cwds, functions) = (self.cwds.clone(), self.functions.clone());
                        self.script(script);
                        (self.cwds, self.functions) = (cwds, functions);
                    }
                    self.depth -= 1;
                }
                Piece::Text { .. } | Piece::Variable { .. } | Piece::Opaque { .. } => {}
            }
        }
    }

    fn simple(&mut self, simple: &Simple, stdin: &Stdin) {
        let mut act = Act { via: self.via.clone(), ..Act::default() };
        for assign in &simple.assigns {
            for value in &assign.values {
                self.substitutions(value);
                if hides_code(value) {
                    act.unknown("a variable holds the text of a command");
                }
            }
            let value = match assign.values.as_slice() {
                [value] if !assign.opaque => Some(expand(value, &self.variables).join(" ")),
                _ => None,
            };
            if dangerous_variable(&assign.name) {
                environment(&mut act, &assign.name, value.as_deref());
            }
            // An assignment alone stays; before a command it applies only to that command.
            if simple.words.is_empty() {
                match value {
                    Some(value) if !is_open(&value) && self.is_set_once(&assign.name) => {
                        self.variables.insert(assign.name.clone(), value);
                    }
                    Some(_) | None => {
                        self.variables.remove(&assign.name);
                    }
                }
            }
        }
        for word in &simple.words {
            self.substitutions(word);
        }
        let given = self.redirects(&simple.redirects, &mut act);
        let stdin = given.as_ref().unwrap_or(stdin);
        let mut argv: Vec<String> =
            simple.words.iter().flat_map(|word| expand(word, &self.variables)).collect();
        if argv.is_empty() {
            if !simple.words.is_empty() {
                act.unknown("the program's name is empty or only known when it runs");
            }
            if !act.touches.is_empty() {
                self.record(act);
            }
            return;
        }
        // With escapes, `$'…'` can put line breaks in a name; no program has such a name.
        if argv[0].contains('\n') {
            argv[0] = HOLE.to_string();
        }
        let evaluates = matches!(
            argv[0].as_str(),
            "test"
                | "["
                | "let"
                | "printf"
                | "read"
                | "unset"
                | "declare"
                | "typeset"
                | "local"
                | "wait"
        );
        if evaluates && simple.words.iter().any(hides_code) {
            act.unknown("a builtin evaluates a text that holds a command");
        }
        if self.inside.contains(&argv[0]) {
            act.program = argv[0].clone();
            act.garbled("a function calls itself");
            return self.record(act);
        }
        if self.functions.contains(&argv[0]) && super::programs::find(&argv[0]).is_none() {
            // Its body was analysed where it was defined.
            if !act.touches.is_empty() {
                self.record(act);
            }
            return;
        }
        if self.aliases.contains(&argv[0]) {
            act.unknown("an alias may stand behind the name");
        }
        self.run(&argv, stdin, act.touches);
    }

    /// Adds the touches of redirects; returns what they put on standard input.
    fn redirects(&mut self, redirects: &[super::ast::Redirect], act: &mut Act) -> Option<Stdin> {
        let mut stdin = None;
        for redirect in redirects {
            self.substitutions(&redirect.target);
            let here = redirect.kind == RedirectKind::Here;
            let targets = if here { Vec::new() } else { expand(&redirect.target, &self.variables) };
            let target = match targets.as_slice() {
                [one] => one.clone(),
                _ => SPLIT.to_string(),
            };
            let kinds: &[TouchKind] = match redirect.kind {
                RedirectKind::Here => {
                    let text = redirect.target.literal();
                    stdin = Some(Stdin::Text(text.unwrap_or_else(|| HOLE.to_string())));
                    continue;
                }
                RedirectKind::Read => &[TouchKind::Read],
                RedirectKind::Write => &[TouchKind::Write],
                RedirectKind::ReadWrite => &[TouchKind::Read, TouchKind::Write],
                RedirectKind::Duplicate => {
                    let number = target.trim_end_matches('-');
                    if number.chars().all(|c| c.is_ascii_digit()) {
                        continue;
                    }
                    &[TouchKind::Read, TouchKind::Write]
                }
            };
            if redirect.kind != RedirectKind::Write {
                // `< <(…)` reads from a program, like a pipe.
                let process =
                    redirect.target.pieces.iter().any(|p| matches!(p, Piece::Process { .. }));
                stdin = Some(if process {
                    Stdin::Pipe { names: false }
                } else {
                    Stdin::File(target.clone())
                });
            }
            let host = ["/dev/tcp/", "/dev/udp/"].iter().find_map(|dev| target.strip_prefix(dev));
            for path in self.paths(&target) {
                if let Some(host) = host {
                    act.touch(TouchKind::Network, host.split('/').next().unwrap_or_default());
                } else if path.starts_with("/dev/tcp") || path.starts_with("/dev/udp") {
                    act.touch(TouchKind::Network, HOLE.to_string());
                } else if !is_sink(&path) {
                    for &kind in kinds {
                        for to in self.behind_links(&path, kind) {
                            act.touch(kind, to);
                        }
                        act.touch(kind, path.clone());
                    }
                }
            }
        }
        stdin
    }

    /// Records that a variable which affects programs was set.
    pub(super) fn environment(&mut self, name: &str, value: Option<&str>) {
        let mut act = Act { via: self.via.clone(), ..Act::default() };
        environment(&mut act, name, value);
        if !act.touches.is_empty() {
            self.record(act);
        }
    }
}

pub(super) fn is_sink(path: &str) -> bool {
    matches!(
        path,
        "/dev/null" | "/dev/stdout" | "/dev/stderr" | "/dev/stdin" | "/dev/tty" | "/dev/fd/63"
    )
}

/// Whether a quoted text contains code that arithmetic or a prompt would run.
fn hides_code(word: &Word) -> bool {
    word.pieces.iter().any(|piece| match piece {
        Piece::Text { text, quoted: true } => text.contains("$(") || text.contains('`'),
        Piece::Text { quoted: false, .. }
        | Piece::Variable { .. }
        | Piece::Opaque { .. }
        | Piece::Output { .. }
        | Piece::Process { .. } => false,
    })
}

/// Whether a part of a pipe prints names of files in the workspace; `given` is whether it reads
/// such names.
fn lists_names(command: &Command, given: bool) -> bool {
    let Command::Simple(simple) = command else { return false };
    let words: Vec<&str> = simple.words.iter().map_while(Word::bare).collect();
    // Files in a hidden directory, or outside, are not just any files of the workspace.
    let literals: Vec<String> =
        simple.words.iter().map(|word| word.literal().unwrap_or_default()).collect();
    let elsewhere = literals.iter().enumerate().skip(1).any(|(n, word)| {
        let left_out = n > 1 && matches!(literals[n - 2].as_str(), "-not" | "!")
            || literals.get(n + 1).is_some_and(|next| next == "-prune");
        let hidden = |part: &str| part.starts_with('.') && part != ".";
        !left_out && (word.starts_with(['/', '~']) || word.split('/').any(hidden))
    });
    if elsewhere {
        return false;
    }
    match words.as_slice() {
        ["git", "ls-files", ..] | ["git", "diff", "--name-only", ..] => true,
        ["find", rest @ ..] => {
            // Only commands that print plain names are accepted.
            let all = simple.words.iter().map(|word| word.literal().unwrap_or_default());
            let all: Vec<String> = all.collect();
            !rest.is_empty()
                && !all.iter().any(|a| a.starts_with("-printf") || a.starts_with("-exec"))
        }
        ["ls" | "fd", ..] => true,
        ["rg" | "grep", rest @ ..]
            if rest.iter().any(|&arg| {
                matches!(
                    arg,
                    "-l" | "-rl"
                        | "-lr"
                        | "--files-with-matches"
                        | "--files"
                        | "-ril"
                        | "-rlE"
                        | "-L"
                )
            }) =>
        {
            true
        }
        ["sort" | "uniq" | "head" | "tail" | "grep", ..] => given,
        _ => false,
    }
}

/// How often each name occurs in a text without a dollar sign before it.
fn bare_names(text: &str) -> HashMap<String, u32> {
    let mut names = HashMap::new();
    let mut name = String::new();
    let mut before = ' ';
    let mut last = ' ';
    for c in text.chars().chain([' ']) {
        if c == '_' || c.is_ascii_alphanumeric() {
            if name.is_empty() {
                before = last;
            }
            name.push(c);
        } else {
            if !name.is_empty() && before != '$' && before != '{' {
                *names.entry(std::mem::take(&mut name)).or_insert(0) += 1;
            }
            name.clear();
        }
        last = c;
    }
    names
}
