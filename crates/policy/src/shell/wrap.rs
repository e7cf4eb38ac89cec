//! Programs that run other programs: the wrapper is removed, and the inner program is analysed
//! instead.

use overmind_core::gate::TouchKind;

use super::expand::{FOUND, HOLE, SPLIT, is_private, is_static, shown};
use super::run::{Call, is_option};
use super::walk::Stdin;

/// How a wrapper reads its own arguments before the program's.
struct Prefix {
    /// Options without a value.
    flags: &'static [&'static str],
    /// Options whose value is the next argument (or follows `=` or a letter).
    valued: &'static [&'static str],
    /// The number of arguments before the program: 1 for `timeout 5 program`.
    first: usize,
    /// The touch of the wrapper itself.
    touch: Option<TouchKind>,
}

fn prefix_of(name: &str) -> Prefix {
    let plain = Prefix { flags: &[], valued: &[], first: 0, touch: None };
    match name {
        "nice" | "gnice" => Prefix { valued: &["-n", "--adjustment"], ..plain },
        "ionice" => Prefix {
            flags: &["-t"],
            valued: &["-c", "-n", "-p", "--class", "--classdata"],
            ..plain
        },
        "nohup" | "fakeroot" | "eatmydata" | "noglob" | "nocorrect" | "dbus-run-session"
        | "catchsegv" | "rlwrap" | "caffeinate" | "linux32" | "linux64" | "i386" | "x86_64"
        | "unbuffer" | "builtin" => plain,
        "setsid" => Prefix { flags: &["-c", "-f", "-w", "--fork", "--wait", "--ctty"], ..plain },
        "stdbuf" => {
            Prefix { valued: &["-i", "-o", "-e", "--input", "--output", "--error"], ..plain }
        }
        "timeout" | "gtimeout" => Prefix {
            flags: &["--foreground", "--preserve-status", "-v", "--verbose"],
            valued: &["-k", "-s", "--kill-after", "--signal"],
            first: 1,
            ..plain
        },
        "time" => Prefix {
            flags: &["-p", "-v", "--portability", "--verbose"],
            valued: &["-f", "--format"],
            ..plain
        },
        "exec" => Prefix { flags: &["-c", "-l"], valued: &["-a"], ..plain },
        "command" => Prefix { flags: &["-p"], ..plain },
        "taskset" | "chrt" => {
            Prefix { flags: &["-c", "-f", "-r", "-o", "-b", "-i"], first: 1, ..plain }
        }
        "numactl" => plain,
        "choom" => Prefix { valued: &["-n"], ..plain },
        "sudo" => Prefix {
            flags: &[
                "-E",
                "-H",
                "-n",
                "-S",
                "-b",
                "-k",
                "-A",
                "-i",
                "-s",
                "--preserve-env",
                "--login",
                "--shell",
                "--non-interactive",
            ],
            valued: &[
                "-u", "-g", "-p", "-C", "-D", "-h", "-R", "-T", "-U", "-r", "-t", "--user",
                "--group", "--prompt", "--chdir",
            ],
            touch: Some(TouchKind::Privilege),
            ..plain
        },
        "doas" => Prefix {
            flags: &["-n", "-s", "-L"],
            valued: &["-u", "-C"],
            touch: Some(TouchKind::Privilege),
            ..plain
        },
        "pkexec" | "run0" => Prefix {
            flags: &["--disable-internal-agent", "--keep-cwd"],
            valued: &["--user"],
            touch: Some(TouchKind::Privilege),
            ..plain
        },
        "gosu" | "su-exec" | "setuidgid" | "chpst" | "s6-setuidgid" => {
            Prefix { first: 1, touch: Some(TouchKind::Privilege), ..plain }
        }
        "chroot" => Prefix {
            valued: &["--userspec", "--groups"],
            first: 1,
            touch: Some(TouchKind::Privilege),
            ..plain
        },
        "unshare" | "nsenter" => Prefix {
            flags: &[
                "-r",
                "-m",
                "-n",
                "-p",
                "-u",
                "-i",
                "-U",
                "-f",
                "-C",
                "-F",
                "-a",
                "--map-root-user",
                "--fork",
                "--net",
                "--mount",
                "--pid",
                "--user",
                "--mount-proc",
                "--all",
            ],
            valued: &["-t", "--target", "-S", "-G"],
            touch: Some(TouchKind::Privilege),
            ..plain
        },
        "setpriv" | "capsh" | "proot" | "firejail" | "bwrap" | "systemd-run" | "cgexec" => {
            Prefix { touch: Some(TouchKind::Privilege), ..plain }
        }
        "strace" | "ltrace" | "perf" | "valgrind" => Prefix {
            flags: &["-f", "-q", "-c", "-y"],
            valued: &["-e", "-s"],
            touch: Some(TouchKind::Process),
            ..plain
        },
        "torsocks" | "torify" | "proxychains" | "proxychains4" => {
            Prefix { touch: Some(TouchKind::Network), ..plain }
        }
        _ => plain,
    }
}

/// `nice -n 5 program …` and wrappers with the same form.
pub(super) fn prefix(call: &mut Call<'_, '_>) {
    let name = call.name().to_owned();
    if matches!(name.as_str(), "env" | "genv") {
        return env(call);
    }
    let args = call.args();
    let Prefix { flags, valued, first, touch } = prefix_of(&name);
    if let Some(kind) = touch {
        call.act.touch(kind, name.clone());
    }
    // `command -v program` is only a query.
    if name == "command" && args.first().is_some_and(|arg| arg == "-v" || arg == "-V") {
        return;
    }
    let Some(mut n) = options(call, &args, flags, valued) else { return };
    // sudo accepts assignments before the program.
    while name == "sudo"
        && args.get(n).is_some_and(|arg| arg.contains('=') && !arg.starts_with('/'))
    {
        let (variable, value) = args[n].split_once('=').unwrap_or((&args[n], ""));
        call.walk.environment(variable, Some(value));
        n += 1;
    }
    n += first;
    if args.iter().take(n).any(|arg| arg.contains(SPLIT)) {
        call.unknown("which program a wrapper runs is known only at run time");
    }
    match args.get(n..) {
        Some(inner) if !inner.is_empty() => call.inner(inner),
        // `exec >file`, `sudo -i` and `time` run nothing further.
        Some(_) | None if matches!(name.as_str(), "exec" | "time" | "command" | "coproc") => {}
        Some(_) | None => call.unknown("a wrapper without a program"),
    }
}

/// Skips a wrapper's own options. `None` if one is not known, which is recorded as unknown.
fn options(
    call: &mut Call<'_, '_>,
    args: &[String],
    flags: &[&str],
    valued: &[&str],
) -> Option<usize> {
    let mut n = 0;
    while let Some(arg) = args.get(n) {
        if arg == "--" {
            return Some(n + 1);
        }
        if arg.starts_with([HOLE, SPLIT]) {
            call.unknown("which program a wrapper runs is known only at run time");
            return None;
        }
        if !is_option(arg) {
            return Some(n);
        }
        let long = arg.starts_with("--");
        let name = arg.split('=').next().unwrap_or_default();
        let known = |list: &[&str]| list.contains(&name);
        let letter: String = arg.chars().take(2).collect();
        if known(valued) {
            n += if long && arg.contains('=') { 1 } else { 2 };
        } else if known(flags) {
            n += 1;
        } else if !long && valued.contains(&letter.as_str()) {
            n += 1; // `-n5`
        } else if !long
            && call.name() == "nice"
            && arg[1..].chars().all(|c| c.is_ascii_digit() || c == '-')
        {
            n += 1; // `-5`
        } else if !long && arg[1..].chars().all(|c| flags.contains(&format!("-{c}").as_str())) {
            n += 1; // a cluster of flags
        } else {
            call.unknown("a wrapper has an option that is not known");
            return None;
        }
    }
    Some(n)
}

fn env(call: &mut Call<'_, '_>) {
    let args = call.args();
    let mut n = 0;
    let cwds = call.walk.cwds.clone();
    while let Some(arg) = args.get(n) {
        n += 1;
        match arg.as_str() {
            "--" => break,
            "-" | "-i" | "--ignore-environment" | "-0" | "--null" | "-v" | "--debug" => {}
            "-u" | "--unset" => n += 1,
            "-C" | "--chdir" => {
                let to = args.get(n).cloned();
                n += 1;
                call.walk.change_directory(to.as_deref());
            }
            "-S" | "--split-string" => {
                // Its quoting rules are close to a shell's, so the text is analysed as shell text,
                // and the rest follows.
                let rest: Vec<String> = args[n..].to_vec();
                return split_string(call, &rest);
            }
            arg if arg.starts_with("-u") || arg.starts_with("--unset=") => {}
            arg if arg.starts_with("-S")
                || arg.starts_with("--split-string=")
                || arg.starts_with("-vS") =>
            {
                let text = arg
                    .trim_start_matches("--split-string=")
                    .trim_start_matches("-vS")
                    .trim_start_matches("-S");
                let mut rest = vec![text.to_owned()];
                rest.extend_from_slice(&args[n..]);
                return split_string(call, &rest);
            }
            arg if is_option(arg) || arg.starts_with([HOLE, SPLIT]) => {
                return call.unknown("a wrapper has an option that is not known");
            }
            arg => match arg.split_once('=') {
                Some((name, value)) => {
                    if super::variables::dangerous_variable(name) {
                        call.walk.environment(name, Some(value));
                    }
                    if name.chars().any(is_private) {
                        call.unknown("which variable is set is known only at run time");
                    }
                }
                None => {
                    n -= 1;
                    break;
                }
            },
        }
    }
    if let Some(inner) = args.get(n..).filter(|inner| !inner.is_empty()) {
        call.inner(inner);
    }
    call.walk.cwds = cwds;
}

fn split_string(call: &mut Call<'_, '_>, rest: &[String]) {
    if rest.iter().any(|arg| arg.chars().any(is_private))
        || rest.first().is_none_or(|text| text.contains(['\\', '$']))
    {
        return call.unknown("which program a wrapper runs is known only at run time");
    }
    call.text(&rest.join(" "));
}

/// `sh -c text`, `sh file`, `… | sh`.
pub(super) fn shell(call: &mut Call<'_, '_>) {
    let args = call.args();
    let mut n = 0;
    let mut text = false;
    let mut reads_input = false;
    while let Some(arg) = args.get(n) {
        if arg == "--" || arg == "-" {
            n += 1;
            break;
        }
        if arg == "-o" || arg == "+o" || arg == "-O" || arg == "+O" {
            if arg == "-O"
                && !args.get(n + 1).is_some_and(|name| super::builtins::tame_option(name))
            {
                call.unknown("a setting of the shell that changes what patterns stand for");
            }
            n += 2;
            continue;
        }
        if matches!(arg.as_str(), "--login" | "--noprofile" | "--norc" | "--posix" | "--noediting")
        {
            n += 1;
            continue;
        }
        let Some(letters) = arg.strip_prefix(['-', '+']).filter(|letters| !letters.is_empty())
        else {
            break;
        };
        if !letters.chars().all(|c| "abcefhiklmnpstuvxBCEHPT".contains(c)) {
            return call.unknown("a shell has an option that is not known");
        }
        text |= letters.contains('c') && arg.starts_with('-');
        reads_input |= letters.contains('s');
        if letters.contains('i') {
            call.unknown("an interactive shell reads its start files");
        }
        n += 1;
    }
    if args.iter().take(n + 1).any(|arg| arg.contains(SPLIT)) {
        call.unknown("what a shell runs is known only at run time");
    }
    match args.get(n) {
        Some(script) if text => {
            call.text(script);
        }
        Some(file) if !reads_input => script_file(call, file, &args[n + 1..]),
        Some(_) | None => match call.stdin.clone() {
            Stdin::Text(script) => call.text(&script),
            Stdin::Pipe { .. } => {
                call.act.touch(TouchKind::Code, "what comes through a pipe");
                call.unknown("a shell runs what comes through a pipe");
            }
            Stdin::File(file) => script_file(call, &file, &[]),
            Stdin::Inherited => call.unknown("a shell without a script"),
        },
    }
}

/// A script: in the workspace it is the project's code, elsewhere it is code from outside.
pub(super) fn script_file(call: &mut Call<'_, '_>, file: &str, args: &[String]) {
    for path in call.walk.paths(file) {
        let ours = super::path::in_workspace(&path) && is_static(&path);
        call.act.touch(if ours { TouchKind::Project } else { TouchKind::Code }, path);
    }
    if file == "-" || file.starts_with("/dev/") || file.starts_with("/proc/") {
        call.unknown("a script that comes from a pipe");
    }
    for arg in args {
        let value = super::run::value_of(arg);
        if value.starts_with(['/', super::expand::HOME]) || value.starts_with("..") {
            call.path(TouchKind::Read, value);
        }
    }
}

pub(super) fn busybox(call: &mut Call<'_, '_>) {
    let args = call.args();
    match args.first() {
        Some(first) if first == "--list" || first == "--help" => {}
        Some(first) if first.starts_with("--") => {
            call.unknown("a wrapper has an option that is not known");
        }
        Some(_) => call.inner(&args),
        None => {}
    }
}

pub(super) fn su(call: &mut Call<'_, '_>) {
    let name = call.name().to_owned();
    call.act.touch(TouchKind::Privilege, name);
    let args = call.args();
    let at = args.iter().position(|arg| {
        arg == "--command" || (is_option(arg) && !arg.starts_with("--") && arg.ends_with('c'))
    });
    if let Some(text) = at.and_then(|at| args.get(at + 1)) {
        call.text(text);
    } else if let Some(text) = args.iter().find_map(|arg| arg.strip_prefix("--command=")) {
        call.text(text);
    } else {
        call.unknown("it runs a shell, or a program after its own options");
    }
}

pub(super) fn xargs(call: &mut Call<'_, '_>) {
    let args = call.args();
    let flags: &[&str] =
        &["-0", "-r", "-t", "-x", "--null", "--no-run-if-empty", "--verbose", "--exit"];
    let valued: &[&str] = &[
        "-n",
        "-P",
        "-L",
        "-I",
        "-d",
        "-s",
        "-E",
        "--max-args",
        "--max-procs",
        "--max-lines",
        "--replace",
        "--delimiter",
        "--max-chars",
    ];
    let Some(n) = options(call, &args, flags, valued) else { return };
    if args[..n.min(args.len())].iter().any(|arg| arg.contains(SPLIT)) {
        call.unknown("which program a wrapper runs is known only at run time");
    }
    let n = n.min(args.len());
    let replaced = args[..n].iter().enumerate().find_map(|(at, arg)| match arg.as_str() {
        "-I" => args.get(at + 1).cloned(),
        arg if arg.starts_with("-I") => Some(arg[2..].to_owned()),
        arg if arg.starts_with("--replace") => Some("{}".to_owned()),
        _ => None,
    });
    let names = matches!(call.stdin, Stdin::Pipe { names: true });
    let given = if names { FOUND.to_string() } else { SPLIT.to_string() };
    let mut inner: Vec<String> = args[n..].to_vec();
    if inner.is_empty() {
        inner.push("echo".to_owned());
    }
    match replaced {
        Some(mark) if !mark.is_empty() => {
            for arg in &mut inner {
                if *arg == mark {
                    arg.clone_from(&given);
                } else if arg.contains(&mark) {
                    *arg = arg.replace(&mark, &HOLE.to_string());
                }
            }
        }
        Some(_) | None => inner.push(given),
    }
    call.inner(&inner);
}

pub(super) fn parallel(call: &mut Call<'_, '_>) {
    // Its templates are shell text into which inputs are inserted. The program is recorded if it is
    // plain, and the rest is not analysed.
    let args = call.args();
    let inner: Vec<String> = args
        .iter()
        .skip_while(|arg| is_option(arg))
        .take_while(|arg| !arg.starts_with(":::"))
        .cloned()
        .collect();
    if !inner.is_empty() {
        call.text(&inner.join(" ").replace("{}", "\"$1\""));
    }
    call.unknown("`parallel` builds commands from its input");
}

/// Programs that run a text or a program in ways that are not fully analysed.
pub(super) fn by_text(call: &mut Call<'_, '_>) {
    let args = call.args();
    let name = call.name().to_owned();
    match name.as_str() {
        "watch" | "hyperfine" | "entr" | "flock" | "script" | "tmux" | "screen" => {
            // Each argument with a blank may be a text; the rest may be a program.
            for arg in args.iter().filter(|arg| arg.contains(' ')) {
                call.text(arg);
            }
            let program = args.iter().position(|arg| super::programs::find(arg).is_some());
            match program {
                Some(at) if !args[at].contains(' ') => call.inner(&args[at..]),
                Some(_) | None => {}
            }
        }
        "at" | "batch" | "start-stop-daemon" | "daemonize" => {
            call.act.touch(TouchKind::Persistence, name.clone())
        }
        "socat" | "ncat" => call.act.touch(TouchKind::Network, HOLE.to_string()),
        _ => {}
    }
    let why = format!("`{}` runs programs in ways that are not followed", shown(&name));
    call.unknown(&why);
}

/// `find`: its tests are harmless, its actions run programs, delete, or write.
pub(super) fn find(call: &mut Call<'_, '_>) {
    const ALONE: &[&str] = &[
        "-print",
        "-print0",
        "-prune",
        "-ls",
        "-a",
        "-o",
        "-and",
        "-or",
        "-not",
        "!",
        "(",
        ")",
        ",",
        "-depth",
        "-d",
        "-mount",
        "-xdev",
        "-empty",
        "-true",
        "-false",
        "-follow",
        "-quit",
        "-executable",
        "-readable",
        "-writable",
        "-nouser",
        "-nogroup",
        "-daystart",
        "-noleaf",
        "-ignore_readdir_race",
        "-H",
        "-L",
        "-P",
    ];
    const VALUED: &[&str] = &[
        "-name",
        "-iname",
        "-path",
        "-ipath",
        "-wholename",
        "-regex",
        "-iregex",
        "-regextype",
        "-type",
        "-xtype",
        "-size",
        "-mtime",
        "-atime",
        "-ctime",
        "-mmin",
        "-amin",
        "-cmin",
        "-newer",
        "-anewer",
        "-cnewer",
        "-newermt",
        "-perm",
        "-user",
        "-group",
        "-uid",
        "-gid",
        "-links",
        "-inum",
        "-samefile",
        "-lname",
        "-ilname",
        "-maxdepth",
        "-mindepth",
        "-printf",
        "-fstype",
        "-used",
    ];
    let args = call.args();
    let mut n = args.iter().take_while(|arg| matches!(arg.as_str(), "-H" | "-L" | "-P")).count();
    let mut roots = Vec::new();
    while let Some(arg) =
        args.get(n).filter(|arg| !is_option(arg) && !matches!(arg.as_str(), "!" | "("))
    {
        roots.push(arg.clone());
        n += 1;
    }
    if roots.is_empty() {
        roots.push(".".to_owned());
    }
    if args.iter().any(|arg| arg.contains(SPLIT)) {
        call.unknown("an argument that may be an action is known only at run time");
    }
    for root in &roots {
        if root.contains(SPLIT) || root.starts_with(HOLE) {
            call.unknown("an argument that may be an action is known only at run time");
        }
        call.path(TouchKind::Read, root);
    }
    // The reader of the names may read the files that are searched by name.
    let mut found = Vec::new();
    for (at, test) in args.iter().enumerate() {
        let name = args.get(at + 1).map_or("", String::as_str);
        if name.contains([HOLE, SPLIT]) || name.is_empty() {
            continue;
        }
        let glob = |name: &str| name.chars().map(super::expand::glob).collect::<String>();
        match test.as_str() {
            "-name" | "-iname" if !name.contains('/') => {
                found.extend(roots.iter().map(|root| format!("{root}/{}", glob(name))));
            }
            // If the beginning of a path is unknown, its end is what matters.
            "-path" | "-ipath" | "-wholename" | "-iwholename"
                if at == 0 || !matches!(args[at - 1].as_str(), "-not" | "!") =>
            {
                let name = name.trim_start_matches(['.', '*']).trim_start_matches('/');
                let name = if name.is_empty() { "*" } else { name };
                found.extend(roots.iter().map(|root| format!("{root}/{}", glob(name))));
                if !name.starts_with('.') {
                    found.extend(roots.iter().map(|root| format!("{root}/.{}", glob(name))));
                }
            }
            _ => {}
        }
    }
    found.iter().for_each(|path| call.path(TouchKind::Read, path));
    while let Some(arg) = args.get(n) {
        n += 1;
        match arg.as_str() {
            "-exec" | "-execdir" | "-ok" | "-okdir" => {
                let end = args[n..].iter().position(|arg| arg == ";" || arg == "+");
                let Some(end) = end else {
                    return call.unknown("an action that does not end");
                };
                let mut inner = Vec::new();
                for arg in &args[n..n + end] {
                    if arg == "{}" && !inner.is_empty() {
                        inner.extend(roots.iter().chain(&found).cloned());
                    } else if arg.contains("{}") {
                        inner.push(HOLE.to_string());
                    } else {
                        inner.push(arg.clone());
                    }
                }
                n += end + 1;
                call.inner(&inner);
            }
            "-delete" => roots.iter().for_each(|root| call.path(TouchKind::Delete, root)),
            "-fprint" | "-fprint0" | "-fls" | "-fprintf" => {
                let to = args.get(n).cloned().unwrap_or_default();
                call.path(TouchKind::Write, &to);
                n += if arg == "-fprintf" { 2 } else { 1 };
            }
            arg if ALONE.contains(&arg) => {}
            arg if VALUED.contains(&arg) => n += 1,
            _ => return call.unknown("a test or action of `find` that is not known"),
        }
    }
}
