//! Programs that read, copy, pack and change files and need more than a table entry.

use overmind_core::gate::TouchKind;

use super::expand::{HOLE, SPLIT, is_static};
use super::path::{anywhere, in_workspace};
use super::run::{Call, has_option, is_option, value_of};

pub(super) fn date(call: &mut Call<'_, '_>) {
    let args = call.args();
    let sets = args.iter().any(|arg| {
        arg == "-s"
            || arg.starts_with("--se")
            || (is_option(arg) && !arg.starts_with("--") && arg.contains('s'))
    });
    if sets
        && !args.iter().any(|arg| {
            arg == "--iso-8601" || arg.starts_with("--iso-8601=") || arg.starts_with("-Is")
        })
    {
        call.act.touch(TouchKind::Privilege, "sets the clock");
    }
    for arg in args.iter().filter(|arg| is_option(arg)) {
        if let Some(named) = super::run::named_in_option(arg) {
            call.path(TouchKind::Read, named);
        }
    }
    if let Some(at) = args.iter().position(|arg| arg == "-f" || arg == "-r" || arg == "--file") {
        let file = args.get(at + 1).cloned().unwrap_or_default();
        call.path(TouchKind::Read, &file);
    }
}

/// `info` shows one topic; its options write files and read settings.
pub(super) fn info(call: &mut Call<'_, '_>) {
    if call.any_open() || call.args().iter().any(|arg| is_option(arg)) {
        call.unknown("an option that may write a file");
    }
}

/// `grep` and similar programs: the first argument is a pattern unless an option provides it.
pub(super) fn grep(call: &mut Call<'_, '_>) {
    let args = call.args();
    if call.name() == "rg" && has_option(&args, "", &["--pre", "--hostname-bin"]) {
        call.unknown("an option that runs a program");
    }
    if call.name() == "ag" && has_option(&args, "", &["--pager"]) {
        call.unknown("an option that runs a program");
    }
    if call.name() != "grep" && call.name() != "egrep" && call.name() != "fgrep" && call.any_open()
    {
        call.unknown("an argument that may be an option is known only at run time");
    }
    let brings = args.iter().any(|arg| match arg.strip_prefix("--") {
        Some(long) => {
            let name = long.split('=').next().unwrap_or_default();
            name.len() >= 2
                && ("regexp".starts_with(name)
                    || "file".starts_with(name)
                    || "files".starts_with(name))
        }
        None => is_option(arg) && arg.contains(['e', 'f']),
    });
    call.read_paths(&args, usize::from(!brings));
    // An attached file of patterns: `-f/etc/shadow` is found by its slash; `-f x` is an argument.
}

pub(super) fn sort(call: &mut Call<'_, '_>) {
    let args = call.args();
    if has_option(&args, "", &["--compress-program"]) {
        call.unknown("an option that runs a program");
    }
    if call.any_open() {
        call.unknown("an argument that may be an option is known only at run time");
    }
    output_option(call, &args, 'o', "--output");
    call.read_paths(&args, 0);
}

/// Records the write to the value of `-o x`, `-ox`, `--output=x`.
fn output_option(call: &mut Call<'_, '_>, args: &[String], letter: char, long: &str) {
    for (n, arg) in args.iter().enumerate() {
        let name = arg.split('=').next().unwrap_or_default();
        if name.len() > 2 && name.starts_with("--") && long.starts_with(name) {
            let value = match arg.split_once('=') {
                Some((_, value)) => value.to_owned(),
                None => args.get(n + 1).cloned().unwrap_or_default(),
            };
            call.path(TouchKind::Write, &value);
        } else if is_option(arg)
            && !arg.starts_with("--")
            && let Some(at) = arg.find(letter)
        {
            let rest = &arg[at + 1..];
            let value = if rest.is_empty() {
                args.get(n + 1).cloned().unwrap_or_default()
            } else {
                rest.to_owned()
            };
            call.path(TouchKind::Write, &value);
        }
    }
}

pub(super) fn uniq(call: &mut Call<'_, '_>) {
    let args = call.args();
    let named: Vec<&String> = args.iter().filter(|arg| !is_option(arg)).collect();
    if call.any_open() {
        call.unknown("an argument that may be a file to write is known only at run time");
    }
    call.read_paths(&args, 0);
    // The form is `uniq in out`; a number may be the value of an option.
    for out in named.iter().skip(1).filter(|arg| !arg.chars().all(|c| c.is_ascii_digit())) {
        let out = (*out).clone();
        call.path(TouchKind::Write, &out);
    }
}

pub(super) fn getent(call: &mut Call<'_, '_>) {
    let args = call.args();
    let base = args.iter().find(|arg| !is_option(arg)).cloned().unwrap_or_default();
    match base.as_str() {
        "passwd" | "group" | "services" | "protocols" => {}
        "hosts" | "ahosts" | "ahostsv4" | "ahostsv6" | "networks" => {
            call.act.touch(TouchKind::Network, HOLE.to_string())
        }
        _ => call.path(TouchKind::Read, "/etc/shadow"),
    }
}

pub(super) fn xxd(call: &mut Call<'_, '_>) {
    let args = call.args();
    if has_option(&args, "r", &["-revert"]) {
        return call.each_path(TouchKind::Write);
    }
    uniq(call);
}

/// `chmod`, `chown`: the first argument that is no option is the mode or the owner.
pub(super) fn chmod(call: &mut Call<'_, '_>) {
    let args = call.args();
    let mut first = true;
    if call.name() == "chown" || call.name() == "chgrp" || call.name() == "chattr" {
        let name = call.name().to_owned();
        call.act.touch(TouchKind::Privilege, name);
    }
    call.wildcard_option();
    for arg in &args {
        let mode = !arg.starts_with("--")
            && arg.trim_start_matches('-').chars().all(|c| "rwxXst".contains(c));
        if is_option(arg) && !mode {
            if let Some(value) = Some(value_of(arg)).filter(|value| value.contains('/')) {
                call.path(TouchKind::Read, value);
            }
        } else if first {
            first = false;
            let bits = arg.len() >= 4
                && arg.trim_start_matches('0').len() >= 4
                && arg.chars().all(|c| c.is_ascii_digit());
            if (arg.contains('s') && !is_option(arg)) || bits || arg.contains([HOLE, SPLIT]) {
                call.act.touch(TouchKind::Privilege, "lets a program run as its owner");
            }
        } else {
            call.path(TouchKind::Write, arg);
        }
    }
}

/// Whether this argument of `install` is a mode with which the file runs as its owner or group.
fn sets_id(args: &[String], n: usize, arg: &str) -> bool {
    let mode = match arg.split_once('=') {
        Some((name, mode)) if name.len() > 2 && "--mode".starts_with(name) => mode,
        _ => match arg.strip_prefix("--") {
            Some(name) if !name.is_empty() && "mode".starts_with(name) => {
                args.get(n + 1).map_or("", String::as_str)
            }
            Some(_) => return false,
            None => match arg.strip_prefix('-').and_then(|short| short.split_once('m')) {
                Some((_, "")) => args.get(n + 1).map_or("", String::as_str),
                Some((_, mode)) => mode,
                None => return false,
            },
        },
    };
    match u32::from_str_radix(mode, 8) {
        Ok(mode) => mode & 0o6000 != 0,
        Err(_) => mode.contains(['s', HOLE, SPLIT]),
    }
}

/// `dmesg` and `journalctl` show logs of the machine and its services, which do not belong to the
/// project.
pub(super) fn machine_log(call: &mut Call<'_, '_>) {
    let args = call.args();
    let changes = [
        "--clear",
        "--read-clear",
        "--console-off",
        "--console-on",
        "--vacuum-size",
        "--vacuum-time",
        "--vacuum-files",
        "--rotate",
        "--flush",
        "--setup-keys",
        "--update-catalog",
        "--relinquish-var",
        "--sync",
    ];
    let shorts = if call.name() == "dmesg" { "CcDEn" } else { "" };
    if has_option(&args, shorts, &changes) || call.any_open() {
        call.unknown("an option that changes the machine's log");
    }
    let log = if call.name() == "dmesg" { "/dev/kmsg" } else { "/var/log/journal" };
    call.path(TouchKind::Read, log);
}

/// `cp`, `mv`, `ln`: all arguments but the last are read, the last is written.
pub(super) fn copy(call: &mut Call<'_, '_>) {
    let args = call.args();
    let moves = matches!(call.name(), "mv" | "rename");
    let links = matches!(call.name(), "ln" | "link");
    let links_copies =
        call.name() == "cp" && has_option(&args, "sl", &["--symbolic-link", "--link"]);
    if call.name() == "rename" {
        call.unknown("`rename` may run Perl");
    }
    if call.name() == "install" && has_option(&args, "s", &["--strip-program", "--strip"]) {
        call.unknown("an option that runs a program");
    }
    if call.name() == "install" && args.iter().enumerate().any(|(n, arg)| sets_id(&args, n, arg)) {
        call.act.touch(TouchKind::Privilege, "lets a program run as its owner");
    }
    if call.any_open() {
        call.unknown("an argument that may be an option is known only at run time");
    }
    let mut named = Vec::new();
    let mut target = None;
    let mut n = 0;
    let mut ended = false;
    while let Some(arg) = args.get(n) {
        n += 1;
        if ended || !is_option(arg) {
            named.push(arg.clone());
        } else if arg == "--" {
            ended = true;
        } else if arg.starts_with("--t") {
            target = Some(match arg.split_once('=') {
                Some((_, value)) => value.to_owned(),
                None => args.get(n).cloned().unwrap_or_default(),
            });
        } else if !arg.starts_with("--")
            && let Some(at) = arg.find('t')
        {
            let rest = &arg[at + 1..];
            target = Some(if rest.is_empty() {
                args.get(n).cloned().unwrap_or_default()
            } else {
                rest.to_owned()
            });
        }
    }
    let directories = call.name() == "install" && has_option(&args, "d", &["--directory"]);
    if directories {
        named.iter().for_each(|path| call.path(TouchKind::Write, path));
        return;
    }
    let last = match target {
        Some(target) => Some(target),
        // `ln -s x` links into the working directory.
        None if links && named.len() == 1 => Some(".".to_owned()),
        None => named.pop(),
    };
    // The file leaves its place. Inside of the workspace that is a normal change; a move out of it
    // may remove a whole directory from the workspace.
    let away = |to: &String| call.walk.paths(to).iter().any(|to| !in_workspace(to));
    let leaves = if last.as_ref().is_some_and(away) { TouchKind::Delete } else { TouchKind::Write };
    for path in &named {
        if moves {
            call.path(leaves, path);
        }
        call.path(TouchKind::Read, path);
    }
    match last {
        Some(last) => {
            // In a directory, the copy has the name of its source.
            call.path(TouchKind::Write, &last);
            for path in &named {
                let name = path.rsplit('/').next().unwrap_or_default();
                if !name.is_empty() && last != *path && !matches!(name, "." | "..") {
                    call.path(TouchKind::Write, &format!("{last}/{name}"));
                }
                if links || links_copies {
                    call.walk.link(&last, path);
                    call.walk.link(&format!("{last}/{name}"), path);
                }
            }
        }
        None => call.unknown("what it copies is not named"),
    }
}

/// `rm`, `rmdir`, `unlink`.
pub(super) fn remove(call: &mut Call<'_, '_>) {
    let args = call.args();
    call.each_path(TouchKind::Delete);
    // `find` replaces the argument by the files that it found below its start directory.
    let named = args.iter().all(|arg| is_static(arg))
        && !call.act.via.iter().any(|via| matches!(via.as_str(), "find" | "fd" | "fdfind"));
    call.act.single = named && !has_option(&args, "rR", &["--recursive"]);
}

pub(super) fn dd(call: &mut Call<'_, '_>) {
    for arg in call.args() {
        match arg.split_once('=') {
            Some(("if", path)) => call.path(TouchKind::Read, path),
            Some(("of", path)) => {
                let kind =
                    if path.starts_with("/dev/") { TouchKind::Delete } else { TouchKind::Write };
                call.path(kind, path);
            }
            Some((
                "bs" | "ibs" | "obs" | "count" | "skip" | "seek" | "conv" | "status" | "iflag"
                | "oflag" | "cbs",
                _,
            )) => {}
            Some(_) | None => call.unknown("an operand of `dd` that is not known"),
        }
    }
}

pub(super) fn tar(call: &mut Call<'_, '_>) {
    let args = call.args();
    const RUNS: &[&str] = &[
        "--to-command",
        "--checkpoint-action",
        "--use-compress-program",
        "--rsh-command",
        "--rmt-command",
        "--info-script",
        "--new-volume-script",
        "--absolute-names",
        "--files-from",
        "--transform",
        "--xform",
        "--one-top-level",
        "--unlink-first",
        "--recursive-unlink",
        "--remove-files",
        "--index-file",
        "--volno-file",
        "--listed-incremental",
    ];
    let old = args.first().is_some_and(|arg| !arg.starts_with('-'));
    let letters: String = args
        .iter()
        .enumerate()
        .filter(|(n, arg)| (*n == 0 && old) || (is_option(arg) && !arg.starts_with("--")))
        .map(|(_, arg)| arg.trim_start_matches('-'))
        .collect();
    if has_option(&args, "", RUNS) || letters.contains(['I', 'F', 'P', 'T', 'g']) {
        call.unknown("an option that may run a program or write anywhere");
    }
    if call.any_open() {
        call.unknown("an argument that may be an option is known only at run time");
    }
    call.wildcard_option();
    let long = |name: &str| args.iter().any(|arg| arg == name);
    let shortened = |arg: &String| {
        arg.len() > 4 && "--directory".starts_with(arg.split('=').next().unwrap_or_default())
    };
    // In `xfC x.tar dir` and `-xC dir` it is not determined which name is the directory.
    if letters.contains('C') && !long("-C") || args.iter().any(shortened) {
        for arg in args.iter().skip(usize::from(old)) {
            let named = arg.split_once('=').map_or(arg.as_str(), |(_, value)| value);
            if !is_option(named) {
                call.path(TouchKind::Write, named);
            }
        }
    }
    let extracts = letters.contains('x') || long("--extract") || long("--get");
    let lists = letters.contains('t') || long("--list");
    if !extracts {
        // The archive is the name after the options that contain an `f`.
        let f = args.iter().enumerate().position(|(n, arg)| {
            ((n == 0 && old) || (is_option(arg) && !arg.starts_with("--"))) && arg.contains('f')
        });
        let made = f.and_then(|at| args[at + 1..].iter().find(|arg| !is_option(arg)));
        for arg in args.iter().skip(usize::from(old)).filter(|arg| !is_option(arg)) {
            let archive = arg.contains(".tar") || arg.ends_with(".tgz") || Some(arg) == made;
            call.path(if archive && !lists { TouchKind::Write } else { TouchKind::Read }, arg);
            // The archive is remote: `host:file`.
            if arg.contains(':') {
                call.act.touch(TouchKind::Network, arg.clone());
            }
        }
        if !lists {
            call.path(TouchKind::Write, ".");
        }
    } else {
        let to = args.iter().position(|arg| arg == "-C" || arg == "--directory");
        let to = to.and_then(|at| args.get(at + 1)).cloned();
        let attached = args.iter().find_map(|arg| {
            arg.strip_prefix("--directory=")
                .or_else(|| arg.strip_prefix("-C").filter(|to| !to.is_empty()))
        });
        let to = to.or(attached.map(str::to_owned)).unwrap_or_else(|| ".".to_owned());
        call.path(TouchKind::Write, &to);
        for arg in args.iter().skip(usize::from(old)).filter(|arg| !is_option(arg)) {
            call.path(TouchKind::Read, arg);
        }
    }
    for arg in args.iter().filter(|arg| is_option(arg)) {
        if let Some(at) = arg.find(['/', super::expand::HOME]) {
            call.path(TouchKind::Read, &arg[at..]);
            call.path(TouchKind::Write, &arg[at..]);
        }
    }
}

pub(super) fn archive(call: &mut Call<'_, '_>) {
    let args = call.args();
    let name = call.name().to_owned();
    let runs = match name.as_str() {
        "zip" => has_option(&args, "T", &["--test", "--unzip-command", "-TT"]),
        "unzip" => has_option(&args, ":", &[]),
        "cpio" => has_option(
            &args,
            "FHI",
            &["--rsh-command", "--file", "--to-stdout", "--absolute-filenames"],
        ),
        _ => true,
    };
    if runs {
        call.unknown("an option that may run a program or write anywhere");
    }
    if call.any_open() {
        call.unknown("an argument that may be an option is known only at run time");
    }
    call.wildcard_option();
    if name == "cpio" && !has_option(&args, "ot", &["--create", "--list"]) {
        call.unknown("what it unpacks may lie anywhere");
    }
    if name == "unzip" && has_option(&args, "lptZv", &[]) {
        return call.read_paths(&args, 0);
    }
    call.path(TouchKind::Write, ".");
    call.each_path(TouchKind::Write);
    call.read_paths(&args, 0);
}

pub(super) fn patch(call: &mut Call<'_, '_>) {
    let args = call.args();
    if has_option(&args, "eo", &["--ed", "--output", "--get"]) || call.any_open() {
        call.unknown("an option that may run a program or write anywhere");
    }
    call.path(TouchKind::Write, ".");
    // The first name is changed, and other options name files to write.
    call.each_path(TouchKind::Write);
    call.read_paths(&args, 0);
    if let Some(at) = args.iter().position(|arg| arg == "-d" || arg == "--directory") {
        let to = args.get(at + 1).cloned().unwrap_or_else(anywhere);
        call.path(TouchKind::Write, &to);
    }
    for arg in args.iter().filter(|arg| is_option(arg)) {
        if let Some(at) = arg.find('/') {
            call.path(TouchKind::Write, &arg[at..]);
        }
    }
}

/// `split` writes pieces with the prefix, or passes them to a program.
pub(super) fn split(call: &mut Call<'_, '_>) {
    let args = call.args();
    if has_option(&args, "", &["--filter"]) || call.any_open() {
        call.unknown("an option that runs a program");
    }
    call.path(TouchKind::Write, ".");
    call.each_path(TouchKind::Write);
}
