//! Analyses one program with its arguments by its table entry.

use overmind_core::gate::TouchKind;

use super::expand::{HOLE, SPLIT, STAR, is_open, is_private, is_static, shown};
use super::path::in_workspace;
use super::programs::{Does, Spec, find};
use super::walk::{Stdin, Walk};
use super::{Act, path};

/// A program call that is being analysed, as its table entry sees it.
pub(super) struct Call<'w, 'p> {
    pub(super) walk: &'w mut Walk<'p>,
    pub(super) act: Act,
    pub(super) stdin: &'w Stdin,
}

impl Call<'_, '_> {
    pub(super) fn name(&self) -> &str {
        &self.act.program
    }

    /// A copy of the arguments without the program, because entries change the action while they
    /// read.
    pub(super) fn args(&self) -> Vec<String> {
        self.act.args.clone()
    }

    pub(super) fn path(&mut self, kind: TouchKind, path: &str) {
        let mut act = std::mem::take(&mut self.act);
        self.walk.touch_path(&mut act, kind, path);
        self.act = act;
    }

    pub(super) fn unknown(&mut self, why: &str) {
        self.act.unknown(why);
    }

    /// Analyses another program that this one starts. It is recorded before this one, which only
    /// wraps it.
    pub(super) fn inner(&mut self, argv: &[String]) {
        let via = self.act.program.clone();
        self.inner_as(&via, argv);
    }

    pub(super) fn inner_as(&mut self, via: &str, argv: &[String]) {
        self.walk.via.push(via.to_owned());
        if self.walk.enter() {
            self.walk.run(argv, self.stdin, Vec::new());
        }
        self.walk.depth -= 1;
        self.walk.via.pop();
    }

    /// Analyses a text that is run in a shell.
    pub(super) fn text(&mut self, text: &str) {
        let via = self.act.program.clone();
        self.walk.via.push(via);
        self.walk.inner_text(text);
        self.walk.via.pop();
    }

    /// Whether an argument that is known only later could be an option here.
    pub(super) fn any_open(&self) -> bool {
        self.act.args.iter().any(|arg| arg.contains(SPLIT) || arg.starts_with(HOLE))
    }
}

/// The file that an option's own text may name: `--from-file=.env`, `-f.env`; many programs read
/// their arguments from `@file`. Only plausible file names count, because every touch is shown to
/// people.
pub(super) fn named_in_option(arg: &str) -> Option<&str> {
    let looks_like_a_file = |text: &str| text.contains(['.', '/', '_', super::expand::HOME]);
    let named = match arg.strip_prefix("--") {
        Some(long) => {
            let (name, value) = long.split_once('=')?;
            let silent =
                name.starts_with("exclude") && !name.contains("file") && name != "exclude-from"
                    || matches!(name, "regexp" | "format" | "date" | "color" | "colour");
            let said = ["file", "from", "source", "input"].iter().any(|word| name.contains(word));
            (!silent && (said || looks_like_a_file(value))).then_some(value)
        }
        None => match arg.strip_prefix('@') {
            Some(file) => Some(file),
            None => arg.strip_prefix('-').and_then(|short| {
                let value = short.get(short.chars().next()?.len_utf8()..)?;
                (!short.starts_with('e') && looks_like_a_file(value)).then_some(value)
            }),
        },
    }?;
    let plain = !named.is_empty()
        && is_static(named)
        && !named.contains(['*', '[', ' ', '\n', ',', '='])
        && !named.chars().all(|c| c.is_ascii_digit() || c == '.');
    plain.then_some(named)
}

/// The path in an argument without dashes, or after `=`, if it could be one.
pub(super) fn value_of(arg: &str) -> &str {
    match arg.split_once('=') {
        Some((left, right)) if left.starts_with('-') => right,
        _ => arg,
    }
}

pub(super) fn is_option(arg: &str) -> bool {
    arg.len() > 1 && arg.starts_with('-')
}

/// Whether the arguments contain one of the given options. Clusters of letters and shortened long
/// names count.
pub(super) fn has_option(args: &[String], shorts: &str, longs: &[&str]) -> bool {
    args.iter().take_while(|arg| *arg != "--").any(|arg| match arg.strip_prefix("--") {
        Some(name) => {
            let name = name.split('=').next().unwrap_or_default();
            longs.iter().any(|long| {
                let long = long.trim_start_matches('-');
                long == name || (name.len() >= 2 && long.starts_with(name))
            })
        }
        None => is_option(arg) && arg.chars().any(|c| shorts.contains(c)),
    })
}

impl Walk<'_> {
    /// Analyses one command whose words are expanded. `touches` come from its redirects and
    /// assignments.
    pub(super) fn run(
        &mut self,
        argv: &[String],
        stdin: &Stdin,
        touches: Vec<(TouchKind, String)>,
    ) {
        let Some((first, args)) = argv.split_first() else {
            return self.unknown("sh", "a wrapper without a program");
        };
        let mut act = Act {
            args: args.to_vec(),
            via: self.via.clone(),
            cwds: self.cwds.clone(),
            touches,
            ..Act::default()
        };
        let name = match self.program(first, &mut act) {
            Some(name) => name,
            None => {
                act.program = first.clone();
                return self.record(act);
            }
        };
        act.program = name;
        // This only prints help or a version, in every program that we know.
        if let [only] = args
            && (only == "--version" || only == "--help")
            && find(&act.program).is_some()
            && !matches!(act.program.as_str(), "echo" | "eval" | "source" | ".")
        {
            return self.record(act);
        }
        let Some(spec) = find(&act.program) else {
            let why = format!("`{}` is not a program that this policy knows", shown(&act.program));
            act.unknown(why);
            return self.record(act);
        };
        let mut call = Call { walk: self, act, stdin };
        match spec {
            Spec::Inert => {}
            Spec::Reads { skip, shorts, longs } => call.reads(skip, shorts, longs),
            Spec::Writes => call.each_path(TouchKind::Write),
            Spec::Deletes => call.each_path(TouchKind::Delete),
            Spec::Project => call.project(),
            Spec::Does(kind) => {
                let target = shown(&call.act.args.join(" "));
                let target = if target.is_empty() { call.name().to_owned() } else { target };
                call.act.touch(kind, target);
            }
            Spec::Commands(table) => call.subcommand(table, &[]),
            Spec::By(run) => run(&mut call),
        }
        let act = call.act;
        self.record(act);
    }

    /// The plain name of the program, or `None` if the action is complete: it is a file of the
    /// workspace, or unknown.
    fn program(&self, first: &str, act: &mut Act) -> Option<String> {
        if first.chars().any(is_private) {
            // A path from home may still be known; names that the shell makes are not.
            act.unknown("which program runs is known only at run time");
            return None;
        }
        if !first.is_ascii() {
            act.garbled("the program's name has letters that look like others");
            return None;
        }
        if !first.contains('/') {
            return Some(first.to_owned());
        }
        let mut found = None;
        for path in self.paths(first) {
            let system = ["/bin/", "/usr/bin/", "/usr/local/bin/", "/sbin/", "/usr/sbin/"]
                .iter()
                .find_map(|dir| path.strip_prefix(dir));
            match system {
                Some(name) if !name.contains('/') && !name.is_empty() => {
                    found = Some(name.to_owned());
                }
                _ if in_workspace(&path) && path != "." => act.touch(TouchKind::Project, path),
                _ => act.unknown(format!("`{}` is a program from an unusual place", shown(&path))),
            }
        }
        let ours = act.touches.iter().any(|(kind, _)| *kind == TouchKind::Project);
        if found.is_some() && ours {
            act.unknown("which program runs depends on the directory");
        }
        // The program depends on the directory: only the certain case is analysed further.
        if act
            .touches
            .iter()
            .any(|(kind, _)| matches!(kind, TouchKind::Project | TouchKind::Unknown))
        {
            self.outside_arguments(act);
            return None;
        }
        found
    }

    /// Code of the workspace reads the outside files that it is given.
    fn outside_arguments(&self, act: &mut Act) {
        for arg in act.args.clone() {
            let value = value_of(&arg);
            if value.contains('/') && !value.contains("://") {
                for path in self.paths(value) {
                    if !in_workspace(&path) {
                        act.touch(TouchKind::Read, path);
                    }
                }
            }
        }
    }
}

impl Call<'_, '_> {
    fn reads(&mut self, skip: usize, shorts: &str, longs: &[&str]) {
        let args = self.args();
        if has_option(&args, shorts, longs) {
            self.unknown("an option that may write a file or run a program");
        }
        if (!shorts.is_empty() || !longs.is_empty()) && self.any_open() {
            self.unknown("an argument that may be an option is known only at run time");
        }
        let program = self.name().to_owned();
        if matches!(program.as_str(), "less" | "more")
            && args.iter().any(|arg| arg.starts_with('+'))
        {
            self.unknown("a command of the pager");
        }
        if program == "jq"
            && args.iter().any(|arg| arg.contains("import") || arg.contains("include"))
        {
            self.unknown("an expression that reads modules or data from elsewhere");
        }
        if matches!(program.as_str(), "ls" | "dir" | "vdir" | "du" | "stat") {
            // These programs show names and no file content; a pattern counts as its directory.
            for arg in args.iter().filter(|arg| !is_option(arg)) {
                match arg.find([STAR, super::expand::ONE]) {
                    Some(at) => {
                        let dir = arg[..at].rfind('/').map_or(".", |slash| &arg[..=slash]);
                        self.path(TouchKind::Read, dir);
                    }
                    None => self.path(TouchKind::Read, arg),
                }
            }
            let options: Vec<String> = args.iter().filter(|arg| is_option(arg)).cloned().collect();
            return self.read_paths(&options, 0);
        }
        if program == "ffprobe" && args.iter().any(|arg| arg.contains("://")) {
            self.act.touch(TouchKind::Network, HOLE.to_string());
        }
        if program == "yq" && args.iter().any(|arg| arg.contains("load") || arg.contains("env")) {
            self.unknown("an expression that reads files or the environment");
        }
        self.read_paths(&args, skip);
    }

    /// Records a read of every argument that names a file, including the values of options.
    pub(super) fn read_paths(&mut self, args: &[String], mut skip: usize) {
        let mut ended = false;
        for arg in args {
            if !ended && arg == "--" {
                ended = true;
            } else if !ended && is_option(arg) {
                let value = value_of(arg);
                // `-f/etc/shadow`, `--file=/etc/shadow`
                let value = match value.find(['/', super::expand::HOME]) {
                    Some(at) if value.starts_with('-') => &value[at..],
                    _ => value,
                };
                if !is_option(value) && (value.contains('/') || value.contains(super::expand::HOME))
                {
                    self.path(TouchKind::Read, value);
                }
                if arg.contains([HOLE, SPLIT]) {
                    self.path(TouchKind::Read, &HOLE.to_string());
                }
                if let Some(named) = named_in_option(arg) {
                    self.path(TouchKind::Read, named);
                }
            } else if skip > 0 {
                skip -= 1;
                if arg.contains(SPLIT) {
                    self.path(TouchKind::Read, &HOLE.to_string());
                }
            } else if arg != "-" {
                self.path(TouchKind::Read, arg);
                if let Some(named) = arg.strip_prefix('@').filter(|named| !named.is_empty()) {
                    self.path(TouchKind::Read, named);
                }
            }
        }
    }

    /// Records a touch of every argument that is no option, and of values of options that look like
    /// paths.
    pub(super) fn each_path(&mut self, kind: TouchKind) {
        let args = self.args();
        let mut ended = false;
        let mut seen = false;
        for arg in &args {
            if !ended && arg == "--" {
                ended = true;
                continue;
            }
            if !ended && is_option(arg) {
                let value = value_of(arg);
                if value != arg.as_str() && (value.contains('/') || is_open(value)) {
                    self.path(kind, value);
                    // Files of options such as `--reference=FILE` count as read.
                    self.path(TouchKind::Read, value);
                } else if let Some(at) = arg.find(['/', super::expand::HOME]) {
                    self.path(kind, &arg[at..]);
                } else if let Some(named) = named_in_option(arg) {
                    self.path(kind, named);
                    self.path(TouchKind::Read, named);
                }
                continue;
            }
            if arg != "-" && !super::walk::is_sink(arg) {
                self.path(kind, arg);
                seen = true;
            }
        }
        if !seen && kind == TouchKind::Delete {
            self.act.touch(kind, path::anywhere());
        }
    }

    /// Records that code of the workspace runs; code outside that it is given is code from outside.
    pub(super) fn project(&mut self) {
        let args = self.args();
        self.act.touch(TouchKind::Project, ".");
        const RUNS: &[&str] = &[
            "--eval",
            "--exec",
            "-exec",
            "-toolexec",
            "--toolexec",
            "--script-shell",
            "--node-options",
            "--config",
            "--prefix",
            "--require",
            "--import",
            "--loader",
            "--rulesdir",
            "--plugin",
            "-fplugin",
            "--pager",
            "--rustc-wrapper",
            "--resolve-plugins-relative-to",
            "--pdb",
            "--compiler",
            "--wrapper",
            "-wrapper",
            "--use-ld",
            "-fuse-ld",
            "--checker",
            "-B",
            "--run_under",
            "--bazelrc",
            "--workspace_status_command",
            "--test-command",
            "--build-and-test",
            "--wrap",
            "--exe-wrapper",
        ];
        super::tools::more_than_the_project(self, &args);
        for arg in &args {
            let name = arg.split('=').next().unwrap_or_default();
            let value = value_of(arg);
            let local = value != arg.as_str() && is_static(value) && {
                self.walk.paths(value).iter().all(|path| in_workspace(path)) && !value.contains(' ')
            };
            // `-B` is the directory of a compiler's parts, and the build directory for CMake.
            let parts = arg != "-B" || self.name() != "cmake";
            let beside = || {
                let next = args.iter().skip_while(|other| *other != arg).nth(1);
                matches!(name, "--config" | "--rulesdir")
                    && next.is_some_and(|next| {
                        is_static(next)
                            && self.walk.paths(next).iter().all(|path| in_workspace(path))
                    })
            };
            if RUNS.contains(&name) && parts && !local && !(value == arg.as_str() && beside()) {
                self.act.touch(TouchKind::Code, shown(arg));
            }
            if arg.contains("$(")
                || arg.contains('`')
                || arg.contains(SPLIT)
                || arg.starts_with(HOLE)
            {
                self.act.touch(TouchKind::Code, shown(arg));
            }
            // `CC=…`, `-o/x`, `--manifest-path=/x`, `@/x`
            let tail = match arg.find(['/', super::expand::HOME]) {
                Some(0) => Some(arg.as_str()),
                Some(at)
                    if arg[..at].ends_with(['=', '@', ':', ','])
                        || (is_option(arg) && !arg[..at].contains('.')) =>
                {
                    Some(&arg[at..])
                }
                Some(_) | None => None,
            };
            let named =
                if value.contains("..") && !value.contains("...") { Some(value) } else { tail };
            if let Some(named) = named.filter(|named| !named.starts_with("//")) {
                for path in self.walk.paths(named) {
                    if !in_workspace(&path) && !super::walk::is_sink(&path) {
                        self.act.touch(TouchKind::Code, path);
                    }
                }
            }
            self.named_by_project(arg, value);
            if let Some((name, value)) = arg.split_once('=')
                && super::variables::dangerous_variable(name)
            {
                let mut act = std::mem::take(&mut self.act);
                super::variables::environment(&mut act, name, Some(value));
                self.act = act;
            }
        }
    }

    /// A file of the workspace that is passed to a build is read; a hidden one may be its output.
    fn named_by_project(&mut self, arg: &str, value: &str) {
        let named = if is_option(arg) && value == arg { named_in_option(arg) } else { Some(value) };
        let Some(named) = named.filter(|named| {
            is_static(named)
                && !named.contains([' ', '\n', '*', '$', '(', '`'])
                && !named.contains("://")
                && named.contains(['.', '/'])
                && !matches!(*named, "." | ".." | "./..." | "...")
        }) else {
            return;
        };
        for path in self.walk.paths(named.trim_start_matches('@')) {
            if !in_workspace(&path) || path == "." {
                continue;
            }
            let hidden = path.split('/').any(|part| part.starts_with('.'));
            self.act.touch(TouchKind::Read, path.clone());
            if hidden {
                self.act.touch(TouchKind::Write, path);
            }
        }
    }

    /// Decides by the first argument that is no option. `valued` are options whose value is the
    /// next argument; any other option before the subcommand must have no value.
    pub(super) fn subcommand(&mut self, table: &[(&str, Does)], valued: &[&str]) {
        let args = self.args();
        let mut n = 0;
        while let Some(arg) = args.get(n) {
            if !is_option(arg) {
                break;
            }
            n += 1 + usize::from(valued.contains(&arg.as_str()));
        }
        let Some(name) = args.get(n) else {
            if args.iter().any(|arg| arg.chars().any(is_private)) {
                self.unknown("an argument that may be a command is known only at run time");
            } else if !args.iter().all(|arg| {
                matches!(
                    arg.as_str(),
                    "--version" | "-V" | "-v" | "--help" | "-h" | "--list" | "-q"
                )
            }) {
                self.unknown("options without a command");
            }
            return;
        };
        let rest = args.get(n + 1..).unwrap_or_default().to_vec();
        match table.iter().find(|(known, _)| known == name) {
            Some((_, does)) => self.does(*does, &rest),
            None => {
                let why = format!("`{} {}` is not known", shown(&self.act.program), shown(name));
                self.unknown(&why);
            }
        }
    }

    pub(super) fn does(&mut self, does: Does, rest: &[String]) {
        let shown_rest = || shown(&rest.join(" "));
        match does {
            Does::Nothing => {
                if rest.iter().any(|arg| arg.contains(SPLIT)) {
                    self.unknown("an argument that may be an option is known only at run time");
                }
                // Named files outside are read.
                for arg in rest {
                    let value = value_of(arg);
                    if value.starts_with(['/', super::expand::HOME]) || value.starts_with("../") {
                        self.path(TouchKind::Read, value);
                    }
                }
            }
            Does::Write => {
                self.act.touch(TouchKind::Write, ".");
                self.project_arguments();
            }
            Does::Delete => {
                let target = shown_rest();
                self.act
                    .touch(TouchKind::Delete, if target.is_empty() { ".".into() } else { target });
            }
            Does::Project => self.project(),
            Does::Network => self.act.touch(TouchKind::Network, HOLE.to_string()),
            Does::Install => {
                self.act.touch(TouchKind::Install, shown_rest());
                self.act.touch(TouchKind::Network, HOLE.to_string());
            }
            Does::Publish => {
                self.act.touch(TouchKind::Publish, shown_rest());
                self.act.touch(TouchKind::Network, HOLE.to_string());
            }
            Does::Exec => self.inner(rest),
        }
    }

    /// Checks arguments as [`Call::project`] does, without running code.
    fn project_arguments(&mut self) {
        let before = self.act.touches.clone();
        self.project();
        if !before.contains(&(TouchKind::Project, ".".to_owned())) {
            self.act.touches.retain(|touch| touch != &(TouchKind::Project, ".".to_owned()));
        }
    }

    /// A pattern as the first name may become an option: `tar cf x *` with a file `--to-command=…`.
    pub(super) fn wildcard_option(&mut self) {
        if self.act.args.iter().any(|arg| arg.starts_with([STAR, super::expand::ONE])) {
            self.unknown("a pattern may become an option that runs a program");
        }
    }
}
