//! `git`: most of it is harmless, but a considerable part runs programs.

use overmind_core::gate::TouchKind;

use super::expand::{HOLE, SPLIT, is_open, shown};
use super::net::host_of;
use super::run::{Call, has_option, is_option, value_of};

/// Options of any subcommand that run a program, write a file, or reach another machine.
const RUNS: &[&str] = &[
    "--output",
    "--open-files-in-pager",
    "--ext-diff",
    "--textconv",
    "--exec",
    "--upload-pack",
    "--receive-pack",
    "--exec-path",
    "--config-env",
    "--template",
    "--separate-git-dir",
    "--extcmd",
    "--tool",
    "--trailer",
    "--output-directory",
    "--work-tree",
    "--git-dir",
    "--filter",
    "--config",
    "--remote",
    "--reference",
    "--upload-archive",
    "--unsafe-paths",
    "--directory",
    "--pathspec-from-file",
];

/// Whether a setting only changes how output looks.
fn harmless_setting(setting: &str) -> bool {
    let (key, value) = setting.split_once('=').unwrap_or((setting, "true"));
    let key = key.to_ascii_lowercase();
    !is_open(value)
        && (matches!(
            key.as_str(),
            "user.name"
                | "user.email"
                | "core.quotepath"
                | "commit.gpgsign"
                | "tag.gpgsign"
                | "init.defaultbranch"
                | "core.autocrlf"
                | "log.date"
                | "diff.algorithm"
                | "merge.conflictstyle"
                | "diff.renames"
                | "core.abbrev"
                | "status.short"
                | "column.ui"
                | "advice.detachedhead"
                | "pull.rebase"
        ) || key.starts_with("color.")
            || key.starts_with("advice.")
            || (key == "core.pager" && matches!(value, "cat" | "less" | ""))
            || (key == "core.editor" && matches!(value, "true" | ":"))
            || (key == "sequence.editor" && matches!(value, "true" | ":")))
}

pub(super) fn git(call: &mut Call<'_, '_>) {
    let args = call.args();
    let cwds = call.walk.cwds.clone();
    let mut n = 0;
    while let Some(arg) = args.get(n) {
        n += 1;
        match arg.as_str() {
            "--no-pager"
            | "-P"
            | "--bare"
            | "--no-replace-objects"
            | "--literal-pathspecs"
            | "--no-optional-locks"
            | "--version"
            | "--help"
            | "--html-path"
            | "--man-path"
            | "--info-path"
            | "--exec-path"
            | "-v" => {}
            "-C" => {
                let to = args.get(n).cloned().unwrap_or_default();
                n += 1;
                call.path(TouchKind::Read, &to);
                call.walk.change_directory(Some(&to));
            }
            "-c" => {
                let setting = args.get(n).cloned().unwrap_or_default();
                n += 1;
                command_line_setting(call, &setting);
            }
            arg if arg.starts_with("-c") => command_line_setting(call, &arg[2..]),
            arg if is_option(arg) || is_open(arg) => {
                call.unknown("an option of git that may change what it runs");
            }
            _ => {
                n -= 1;
                break;
            }
        }
    }
    if let Some(command) = args.get(n) {
        let rest = args[n + 1..].to_vec();
        subcommand(call, command, &rest);
    }
    call.walk.cwds = cwds;
}

fn command_line_setting(call: &mut Call<'_, '_>, setting: &str) {
    if harmless_setting(setting) {
        return;
    }
    let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
    let key = shown(key);
    call.unknown(&format!("the setting `{key}` may run a program"));
    let text = value.trim_start_matches('!');
    if !text.is_empty() && text.contains([' ', '/']) || value.starts_with('!') {
        call.text(text);
    }
}

fn subcommand(call: &mut Call<'_, '_>, command: &str, rest: &[String]) {
    let has = |names: &[&str]| rest.iter().any(|arg| names.contains(&arg.as_str()));
    // Git accepts shortened names, so they count if they make a call worse. If they make it better,
    // only exact names count.
    let may = |names: &[&str]| {
        has(names)
            || rest.iter().any(|arg| {
                arg.len() > 3
                    && arg.starts_with("--")
                    && names.iter().any(|name| name.starts_with(arg.as_str()))
            })
    };
    let letter = |letters: &str| has_option(rest, letters, &[]);
    let first = rest.iter().find(|arg| !is_option(arg)).map(String::as_str);
    // The argument after `-m` is a message, whatever it begins with.
    let message = |n: usize| {
        n > 0
            && (rest[n - 1] == "--message"
                || (!rest[n - 1].starts_with("--")
                    && is_option(&rest[n - 1])
                    && rest[n - 1].ends_with('m')))
    };
    if rest
        .iter()
        .enumerate()
        .any(|(n, arg)| arg.contains(SPLIT) || (arg.starts_with(HOLE) && !message(n)))
    {
        call.unknown("an argument that may be an option is known only at run time");
    }
    let exact = !matches!(command, "commit" | "config");
    let dangerous = rest.iter().take_while(|arg| *arg != "--").any(|arg| {
        let name = arg.split('=').next().unwrap_or_default();
        name.starts_with("--")
            && name.len() > 3
            && RUNS.iter().any(|run| {
                // Shortened names count: git accepts them if they are unambiguous.
                *run == name || run.starts_with(name)
            })
    });
    if command == "archive" && rest.iter().any(|arg| arg.starts_with("--rem")) {
        call.act.touch(TouchKind::Network, HOLE.to_string());
    }
    if dangerous && exact {
        call.unknown("an option of git that runs a program or writes a file");
    }
    let writes = |call: &mut Call<'_, '_>| {
        for path in call.walk.paths(".") {
            call.act.touch(TouchKind::Write, path);
        }
    };
    let deletes = |call: &mut Call<'_, '_>| {
        let target = shown(&rest.join(" "));
        call.act.touch(TouchKind::Delete, format!("git {command} {target}").trim_end().to_owned());
    };
    match command {
        "status" | "log" | "diff" | "show" | "blame" | "annotate" | "ls-files" | "ls-tree"
        | "rev-parse" | "rev-list" | "describe" | "shortlog" | "cat-file" | "name-rev"
        | "merge-base" | "diff-tree" | "diff-index" | "diff-files" | "for-each-ref"
        | "count-objects" | "check-ignore" | "check-attr" | "help" | "version" | "whatchanged"
        | "range-diff" | "show-ref" | "cherry" | "show-branch" | "var" | "verify-commit"
        | "fsck" | "grep" | "hash-object" | "merge-tree" | "stripspace" => {
            if command == "grep" && letter("O")
                || command == "cat-file" && has(&["--textconv", "--filters"])
            {
                call.unknown("an option of git that runs a program");
            }
            if matches!(command, "diff" | "grep" | "hash-object" | "blame") {
                // Outside of the repository these commands read plain files.
                for arg in rest.iter().filter(|arg| !is_option(arg)) {
                    if arg.starts_with(['/', super::expand::HOME])
                        || arg.contains("..") && arg.contains('/')
                    {
                        call.path(TouchKind::Read, arg);
                    }
                }
            }
            for arg in rest.iter().filter(|arg| is_option(arg)) {
                let value = value_of(arg);
                if value.starts_with(['/', super::expand::HOME]) {
                    call.path(TouchKind::Read, value);
                }
            }
            for arg in rest.iter().filter(|arg| !is_option(arg)) {
                // A revision is treated like a harmless path.
                call.path(TouchKind::Read, arg);
            }
            // `git show HEAD:.env`, `git show :0:.env` and `git log -L1,5:.env` show earlier
            // content of the file.
            for arg in rest {
                for (at, _) in arg.match_indices(':').filter(|_| !arg.contains(['%', ' '])) {
                    call.path(TouchKind::Read, &arg[at + 1..]);
                }
            }
        }
        "branch" => match () {
            () if letter("dD") || may(&["--delete"]) => deletes(call),
            () => writes(call),
        },
        "tag" => match () {
            () if letter("d") || may(&["--delete"]) => deletes(call),
            () => {
                writes(call);
                message_files(call, rest);
            }
        },
        "reflog" => {
            if has(&["expire", "delete"]) {
                deletes(call);
            }
        }
        "remote" => match first {
            None | Some("get-url") => {}
            Some("show" | "update" | "prune") => {
                call.act.touch(TouchKind::Network, HOLE.to_string())
            }
            Some(_) => call
                .act
                .touch(TouchKind::Environment, format!("git remote {}", shown(&rest.join(" ")))),
        },
        "config" => config(call, rest),
        "stash" => match first {
            Some("list" | "show") => {}
            Some("drop" | "clear") => deletes(call),
            Some(_) | None => writes(call),
        },
        "add" | "merge" | "cherry-pick" | "revert" | "apply" | "am" | "mv" | "init" | "bisect"
        | "notes" | "rebase" | "commit" | "switch" | "checkout" | "restore" | "reset"
        | "worktree" | "update-index" | "sparse-checkout" | "read-tree" | "write-tree"
        | "format-patch" | "archive" | "rerere" | "maintenance" | "pack-refs" | "gc" | "prune"
        | "symbolic-ref" | "replace" => {
            writes(call);
            let lost = match command {
                "checkout" => {
                    letter("fB")
                        || may(&["--force", ".", "--"])
                        || rest.len() > 1
                            && !letter("b")
                            && !has(&["--orphan", "--detach", "--track", "-q", "-t"])
                }
                "restore" => !has(&["--staged", "-S"]) || may(&["--worktree", "-W"]),
                "reset" => may(&["--hard", "--merge", "--keep"]),
                "switch" => {
                    letter("fC") || may(&["--force", "--discard-changes", "--force-create"])
                }
                "worktree" => has(&["remove", "prune"]),
                "read-tree" => letter("u") || may(&["--reset"]),
                "gc" | "prune" => true,
                _ => false,
            };
            if lost {
                deletes(call);
            }
            match command {
                "rebase" if letter("x") => {
                    call.unknown("a rebase that runs a program at each commit")
                }
                "bisect" if rest.first().is_some_and(|arg| arg == "run") => call.inner(&rest[1..]),
                "maintenance" => call.act.touch(TouchKind::Persistence, "git maintenance"),
                "archive" | "format-patch" if letter("o") => {
                    call.unknown("an option of git that writes a file")
                }
                _ => {}
            }
            message_files(call, rest);
            // Files that are staged, packed or renamed are read.
            for arg in rest.iter().filter(|arg| !is_option(arg)) {
                if matches!(command, "add" | "archive" | "mv") {
                    call.path(TouchKind::Read, arg);
                }
                if command == "mv" {
                    call.path(TouchKind::Write, arg);
                }
            }
            // Hooks and filters of the repository may run.
            if matches!(
                command,
                "commit"
                    | "merge"
                    | "rebase"
                    | "am"
                    | "cherry-pick"
                    | "revert"
                    | "checkout"
                    | "switch"
            ) {
                call.act.touch(TouchKind::Project, ".");
            }
            for arg in rest.iter().filter(|arg| !is_option(arg)) {
                if arg.starts_with(['/', super::expand::HOME]) || arg.starts_with("..") {
                    call.path(TouchKind::Write, arg);
                    call.path(TouchKind::Read, arg);
                }
            }
        }
        "rm" if has(&["--cached"]) => writes(call),
        "rm" => {
            let paths: Vec<String> = rest.iter().filter(|arg| !is_option(arg)).cloned().collect();
            paths.iter().for_each(|path| call.path(TouchKind::Delete, path));
            if paths.is_empty() {
                deletes(call);
            }
        }
        "clean" => match () {
            () if letter("n") && !letter("f") || has(&["--dry-run"]) => {}
            () => deletes(call),
        },
        "send-email" | "imap-send" => call.act.touch(TouchKind::Network, HOLE.to_string()),
        "push" => {
            call.act.touch(TouchKind::Publish, shown(&rest.join(" ")));
            remote_hosts(call, rest);
        }
        "fetch" | "pull" | "clone" | "ls-remote" | "submodule" | "lfs" | "archive-remote"
        | "request-pull" => {
            if command == "submodule" && first.is_none_or(|arg| arg == "status" || arg == "summary")
            {
                return;
            }
            if letter("uc") && command != "pull" && command != "fetch" || dangerous {
                call.unknown("an option of git that runs a program");
            }
            if command == "submodule" && first == Some("foreach") {
                let text: Vec<String> =
                    rest.iter().filter(|arg| !is_option(arg)).skip(1).cloned().collect();
                call.text(&text.join(" "));
            }
            writes(call);
            remote_hosts(call, rest);
            for arg in rest.iter().filter(|arg| !is_option(arg)) {
                if arg.starts_with(['/', super::expand::HOME]) {
                    call.path(TouchKind::Write, arg);
                }
            }
        }
        _ => {
            let why = format!("`git {}` is not known, or an alias", shown(command));
            call.unknown(&why);
        }
    }
}

/// Records files that become a message: `-F x`, `-aFx`, `--file=x`, `-t x`.
fn message_files(call: &mut Call<'_, '_>, rest: &[String]) {
    let mut message = false;
    for arg in rest {
        if message {
            call.path(TouchKind::Read, arg);
        }
        message = match arg.strip_prefix("--") {
            Some(long) => match long.split_once('=') {
                Some((name, file)) => {
                    if !name.is_empty()
                        && ("file".starts_with(name) || "template".starts_with(name))
                    {
                        call.path(TouchKind::Read, file);
                    }
                    false
                }
                None => {
                    !long.is_empty() && ("file".starts_with(long) || "template".starts_with(long))
                }
            },
            None => match arg.strip_prefix('-').and_then(|short| short.split_once(['F', 't'])) {
                Some((_, file)) => {
                    if !file.is_empty() {
                        call.path(TouchKind::Read, file);
                    }
                    file.is_empty()
                }
                None => false,
            },
        };
    }
}

fn config(call: &mut Call<'_, '_>, rest: &[String]) {
    // After `--` come names and values, whatever they look like.
    let options: Vec<String> = rest.iter().take_while(|arg| *arg != "--").cloned().collect();
    let named: Vec<&String> = options
        .iter()
        .filter(|arg| !is_option(arg))
        .chain(rest.iter().skip(options.len() + 1))
        .collect();
    let asks = named.first().is_some_and(|word| *word == "get" || *word == "list")
        || options.iter().any(|arg| {
            matches!(
                arg.as_str(),
                "--get" | "--get-all" | "--get-regexp" | "--list" | "-l" | "--show-origin"
            )
        });
    let elsewhere = has_option(&options, "f", &["--file", "--blob"]);
    let asks = asks && !elsewhere && !has_option(&options, "e", &["--edit"]);
    if asks || (named.len() == 1 && rest.len() == 1) {
        return;
    }
    let setting = match named.as_slice() {
        [key, value, ..] => format!("{key}={value}"),
        _ => String::new(),
    };
    let local = !elsewhere && !has_option(&options, "", &["--global", "--system", "--worktree"]);
    if local && harmless_setting(&setting) {
        for path in call.walk.paths(".") {
            call.act.touch(TouchKind::Write, path);
        }
    } else {
        call.act.touch(TouchKind::Persistence, format!("git config {}", shown(&rest.join(" "))));
    }
}

fn remote_hosts(call: &mut Call<'_, '_>, rest: &[String]) {
    let address = rest.iter().find(|arg| !is_option(arg) && arg.contains(':'));
    match address {
        Some(arg) if arg.contains("::") => {
            call.unknown("an address that runs a program");
            call.act.touch(TouchKind::Network, HOLE.to_string());
        }
        Some(arg) if arg.contains("://") => call.act.touch(TouchKind::Network, host_of(arg)),
        Some(arg) => {
            call.act.touch(TouchKind::Network, host_of(arg.split(':').next().unwrap_or_default()))
        }
        None => call.act.touch(TouchKind::Network, HOLE.to_string()),
    }
}
