//! Interpreters: a script of the workspace is the project's code; a text on the command line or
//! from a pipe is code from anywhere.

use overmind_core::gate::TouchKind;

use super::expand::{is_open, shown};
use super::run::{Call, is_option};
use super::walk::Stdin;
use super::wrap::script_file;

/// How one interpreter accepts code on its command line.
struct Inline {
    /// Letters of options with code, alone or in a cluster.
    letters: &'static str,
    longs: &'static [&'static str],
    /// Options without a value.
    flags: &'static str,
    /// Options whose value is the next argument.
    valued: &'static [&'static str],
}

fn inline_of(name: &str) -> Option<Inline> {
    Some(match name {
        name if name.starts_with("py") => {
            Inline { letters: "c", longs: &[], flags: "BEIOPSsuvVbdqx", valued: &["-W", "-X"] }
        }
        "node" | "nodejs" => Inline {
            letters: "epri",
            longs: &[
                "--eval",
                "--print",
                "--require",
                "--import",
                "--loader",
                "--experimental-loader",
                "--env-file",
                "--interactive",
            ],
            flags: "vch",
            valued: &[],
        },
        "perl" => Inline { letters: "eEnpaiMmIxs", longs: &[], flags: "wcTWv", valued: &[] },
        "ruby" => Inline { letters: "enpairIxsCS", longs: &[], flags: "wcvW", valued: &[] },
        "php" => Inline {
            letters: "rRBEFdzaS",
            longs: &["--run", "--process-code"],
            flags: "lvnimq",
            valued: &[],
        },
        "lua" | "luajit" => Inline { letters: "eil", longs: &[], flags: "vE", valued: &[] },
        "Rscript" | "julia" => Inline {
            letters: "eELpi",
            longs: &["--eval", "--print", "--load"],
            flags: "v",
            valued: &[],
        },
        _ => return None,
    })
}

pub(super) fn interpreter(call: &mut Call<'_, '_>) {
    let args = call.args();
    let name = call.name().to_owned();
    if name == "deno" || name == "bun" {
        return script_runner(call, &args);
    }
    if name == "java" {
        return java(call, &args);
    }
    let Some(inline) = inline_of(&name) else {
        call.act.touch(TouchKind::Code, shown(&args.join(" ")));
        let why = format!("`{name}` can run any program");
        return call.unknown(&why);
    };
    let mut n = 0;
    while let Some(arg) = args.get(n).filter(|arg| is_option(arg) || is_open(arg)) {
        if is_open(arg) {
            return call.unknown("what an interpreter runs is known only at run time");
        }
        if name.starts_with("py") && arg.starts_with("-m") {
            let module = if arg == "-m" {
                args.get(n + 1).cloned().unwrap_or_default()
            } else {
                arg[2..].to_owned()
            };
            let rest = args.get(n + if arg == "-m" { 2 } else { 1 }..).unwrap_or_default().to_vec();
            return module_of_python(call, &module, &rest);
        }
        let letters = arg.trim_start_matches('-');
        let long = arg.starts_with("--");
        if !long && letters.contains(|c| inline.letters.contains(c))
            || long && inline.longs.iter().any(|known| arg.split('=').next() == Some(known))
        {
            call.act.touch(TouchKind::Code, shown(&args[n..].join(" ")));
            return;
        }
        if inline.valued.contains(&arg.as_str()) {
            n += 2;
        } else if !long && letters.chars().all(|c| inline.flags.contains(c)) {
            n += 1;
        } else if matches!(
            arg.as_str(),
            "--test"
                | "--check"
                | "--watch"
                | "--max-old-space-size=4096"
                | "--enable-source-maps"
                | "--no-warnings"
                | "--experimental-strip-types"
        ) {
            if arg == "--test" && args.len() == n + 1 {
                call.act.touch(TouchKind::Project, ".");
                return;
            }
            n += 1;
        } else if matches!(arg.as_str(), "-") {
            break;
        } else {
            return call.unknown("an interpreter has an option that is not known");
        }
    }
    if args.iter().take(n + 1).any(|arg| arg.contains(super::expand::SPLIT)) {
        call.unknown("what an interpreter runs is known only at run time");
    }
    match args.get(n) {
        Some(file) if file != "-" => script_file(call, file, &args[n + 1..]),
        None if args.iter().any(|arg| matches!(arg.as_str(), "-V" | "-v" | "-VV")) => {}
        Some(_) | None => {
            let code = match call.stdin.clone() {
                Stdin::Text(text) => shown(&text),
                Stdin::File(path) => return script_file(call, &path, &[]),
                Stdin::Pipe { .. } => "what comes through a pipe".to_owned(),
                Stdin::Inherited => "what is typed".to_owned(),
            };
            call.act.touch(TouchKind::Code, code);
        }
    }
}

fn module_of_python(call: &mut Call<'_, '_>, module: &str, rest: &[String]) {
    match module {
        "pip" | "pipx" | "uv" | "poetry" | "pytest" | "black" | "ruff" | "mypy" | "flake8"
        | "isort" | "pylint" | "coverage" | "tox" | "nox" | "pre_commit" | "pyright" => {
            let mut argv = vec![module.to_owned()];
            argv.extend_from_slice(rest);
            call.inner(&argv);
        }
        "json.tool" | "tokenize" | "ast" | "dis" | "calendar" | "platform" | "site"
        | "sysconfig" | "tabnanny" | "py_compile" | "compileall" => {
            call.read_paths(rest, 0);
            if module == "json.tool" {
                // Its second name is written.
                for out in rest.iter().filter(|arg| !is_option(arg)).skip(1) {
                    call.path(TouchKind::Write, out);
                }
            }
        }
        "venv" | "virtualenv" | "build" | "unittest" | "doctest" | "timeit_file"
        | "cProfile_file" => call.project(),
        "http.server" => {
            call.act.near = true;
            call.act.touch(TouchKind::Network, super::expand::HOLE.to_string());
        }
        "twine" => {
            let mut argv = vec![module.to_owned()];
            argv.extend_from_slice(rest);
            call.inner(&argv);
        }
        "smtpd" | "ensurepip" | "webbrowser" | "ftplib" => {
            call.act.touch(TouchKind::Network, super::expand::HOLE.to_string());
        }
        module
            if !module.is_empty()
                && module.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.') =>
        {
            // The module may belong to the project or be installed; the text does not show which.
            call.act.touch(TouchKind::Code, format!("module {module}"));
        }
        _ => call.unknown("a module that is known only at run time"),
    }
}

fn script_runner(call: &mut Call<'_, '_>, args: &[String]) {
    // Scripts can also be named by addresses.
    for address in args.iter().filter(|arg| arg.contains("://")) {
        call.act.touch(TouchKind::Network, super::net::host_of(address));
        call.act.touch(TouchKind::Code, shown(address));
    }
    match args.first().map(String::as_str) {
        Some("test" | "fmt" | "lint" | "check" | "bench" | "build" | "task") => call.project(),
        Some("install" | "add" | "i" | "upgrade" | "update" | "remove" | "x") => {
            call.act.touch(TouchKind::Install, shown(&args.join(" ")));
        }
        Some("run") => match args.get(1).filter(|arg| !is_option(arg)) {
            Some(file) => {
                let file = file.clone();
                script_file(call, &file, &args[2..]);
            }
            None => call.unknown("an interpreter has an option that is not known"),
        },
        Some(file) if !is_option(file) && file.contains('.') => {
            let file = file.to_owned();
            script_file(call, &file, &args[1..]);
        }
        Some(_) | None => {
            call.act.touch(TouchKind::Code, shown(&args.join(" ")));
            call.unknown("what an interpreter runs is not known");
        }
    }
}

fn java(call: &mut Call<'_, '_>, args: &[String]) {
    match args {
        [one] if one == "-version" => {}
        [flag, jar, rest @ ..] if flag == "-jar" => {
            let jar = jar.clone();
            let rest = rest.to_vec();
            script_file(call, &jar, &rest);
        }
        _ => call.project(),
    }
}
