//! Build tools and package managers, by their subcommands.

use overmind_core::gate::TouchKind;

use super::expand::{HOLE, SPLIT, is_open, shown};
use super::programs::Does;
use super::run::{Call, has_option, is_option, value_of};

type Table = &'static [(&'static str, Does)];

const CARGO: Table = {
    use Does::{Delete, Install, Network, Nothing, Project, Publish, Write};
    &[
        ("build", Project),
        ("b", Project),
        ("check", Project),
        ("c", Project),
        ("test", Project),
        ("t", Project),
        ("run", Project),
        ("r", Project),
        ("clippy", Project),
        ("bench", Project),
        ("doc", Project),
        ("nextest", Project),
        ("fmt", Write),
        ("fix", Project),
        ("tree", Nothing),
        ("metadata", Nothing),
        ("version", Nothing),
        ("help", Nothing),
        ("locate-project", Nothing),
        ("pkgid", Nothing),
        ("read-manifest", Nothing),
        ("verify-project", Nothing),
        ("new", Write),
        ("init", Write),
        ("expand", Project),
        ("llvm-cov", Project),
        ("miri", Project),
        ("machete", Nothing),
        ("deny", Project),
        ("audit", Network),
        ("outdated", Network),
        ("add", Network),
        ("remove", Write),
        ("rm", Write),
        ("update", Network),
        ("generate-lockfile", Network),
        ("fetch", Network),
        ("search", Network),
        ("info", Network),
        ("vendor", Network),
        ("package", Project),
        ("install", Install),
        ("uninstall", Install),
        ("binstall", Install),
        ("publish", Publish),
        ("yank", Publish),
        ("owner", Publish),
        ("login", Publish),
        ("clean", Delete),
        ("rustc", Project),
        ("rustdoc", Project),
        ("xtask", Project),
        ("insta", Project),
        ("hack", Project),
        ("tarpaulin", Project),
        ("sqlx", Project),
    ]
};
const NODE: Table = {
    use Does::{Install, Network, Nothing, Project, Publish};
    &[
        ("test", Project),
        ("t", Project),
        ("run", Project),
        ("run-script", Project),
        ("start", Project),
        ("build", Project),
        ("lint", Project),
        ("dev", Project),
        ("format", Project),
        ("typecheck", Project),
        ("check", Project),
        ("ls", Nothing),
        ("list", Nothing),
        ("ll", Nothing),
        ("why", Nothing),
        ("explain", Nothing),
        ("root", Nothing),
        ("bin", Nothing),
        ("prefix", Nothing),
        ("help", Nothing),
        ("version", Project),
        ("pkg", Project),
        ("pack", Project),
        ("outdated", Network),
        ("audit", Network),
        ("view", Network),
        ("info", Network),
        ("search", Network),
        ("ping", Network),
        ("install", Install),
        ("i", Install),
        ("ci", Install),
        ("add", Install),
        ("update", Install),
        ("up", Install),
        ("upgrade", Install),
        ("remove", Install),
        ("rm", Install),
        ("uninstall", Install),
        ("un", Install),
        ("link", Install),
        ("dlx", Install),
        ("init", Install),
        ("create", Install),
        ("rebuild", Install),
        ("dedupe", Install),
        ("publish", Publish),
        ("unpublish", Publish),
        ("deprecate", Publish),
        ("login", Publish),
        ("adduser", Publish),
        ("token", Publish),
        ("owner", Publish),
    ]
};
const PIP: Table = {
    use Does::{Install, Network, Nothing};
    &[
        ("list", Nothing),
        ("show", Nothing),
        ("freeze", Nothing),
        ("check", Nothing),
        ("help", Nothing),
        ("inspect", Nothing),
        ("install", Install),
        ("uninstall", Install),
        ("download", Install),
        ("wheel", Install),
        ("index", Network),
        ("search", Network),
        ("inject", Install),
        ("upgrade", Install),
    ]
};
const POETRY: Table = {
    use Does::{Exec, Install, Nothing, Project, Publish, Write};
    &[
        ("run", Exec),
        ("exec", Exec),
        ("show", Nothing),
        ("check", Nothing),
        ("version", Nothing),
        ("env", Nothing),
        ("build", Project),
        ("test", Project),
        ("fmt", Write),
        ("install", Install),
        ("add", Install),
        ("remove", Install),
        ("update", Install),
        ("lock", Install),
        ("sync", Install),
        ("pip", Install),
        ("tool", Install),
        ("venv", Project),
        ("publish", Publish),
        ("list", Nothing),
        ("outdated", Nothing),
        ("tree", Nothing),
        ("info", Nothing),
        ("help", Nothing),
    ]
};
const GO: Table = {
    use Does::{Delete, Install, Nothing, Project, Write};
    &[
        ("build", Project),
        ("test", Project),
        ("run", Project),
        ("vet", Project),
        ("fmt", Write),
        ("list", Project),
        ("version", Nothing),
        ("env", Nothing),
        ("doc", Nothing),
        ("help", Nothing),
        ("mod", Project),
        ("generate", Project),
        ("tool", Project),
        ("work", Project),
        ("fix", Write),
        ("install", Install),
        ("get", Install),
        ("clean", Delete),
    ]
};
const JVM: Table = {
    use Does::{Delete, Install, Project, Publish};
    &[
        ("test", Project),
        ("compile", Project),
        ("package", Project),
        ("verify", Project),
        ("build", Project),
        ("check", Project),
        ("assemble", Project),
        ("install", Project),
        ("tasks", Project),
        ("dependencies", Project),
        ("run", Project),
        ("dependency:tree", Project),
        ("clean", Delete),
        ("deploy", Publish),
        ("publish", Publish),
        ("release:perform", Publish),
        ("restore", Install),
        ("add", Install),
        ("new", Project),
        ("format", Project),
        ("tool", Install),
        ("deps.get", Install),
        ("repl", Project),
        ("console", Project),
    ]
};
const SYSTEM: Table = {
    use Does::{Install, Nothing, Publish};
    &[
        ("list", Nothing),
        ("search", Nothing),
        ("show", Nothing),
        ("policy", Nothing),
        ("info", Nothing),
        ("depends", Nothing),
        ("rdepends", Nothing),
        ("-l", Nothing),
        ("help", Nothing),
        ("push", Publish),
        ("install", Install),
        ("remove", Install),
        ("purge", Install),
        ("update", Install),
        ("upgrade", Install),
        ("full-upgrade", Install),
        ("dist-upgrade", Install),
        ("autoremove", Install),
        ("source", Install),
        ("download", Install),
        ("build-dep", Install),
        ("reinstall", Install),
        ("tap", Install),
        ("default", Install),
        ("toolchain", Install),
        ("target", Install),
        ("component", Install),
        ("override", Install),
        ("self", Install),
        ("create", Install),
        ("env", Install),
        ("activate", Nothing),
    ]
};
const CLOUD: Table = {
    use Does::{Delete, Network, Nothing, Project, Publish};
    &[
        ("version", Nothing),
        ("help", Nothing),
        ("fmt", Project),
        ("validate", Project),
        ("lint", Project),
        ("template", Project),
        ("plan", Network),
        ("init", Network),
        ("get", Network),
        ("describe", Network),
        ("logs", Network),
        ("list", Network),
        ("ls", Network),
        ("status", Network),
        ("apply", Publish),
        ("install", Publish),
        ("upgrade", Publish),
        ("create", Publish),
        ("rollout", Publish),
        ("destroy", Delete),
        ("delete", Delete),
        ("uninstall", Delete),
        ("exec", Network),
    ]
};

/// Programs that connect to a forge or a registry, except with these commands.
pub(super) fn forge(call: &mut Call<'_, '_>) {
    let args = call.args();
    let first = args.iter().find(|arg| !is_option(arg)).map(String::as_str);
    match first {
        Some("help" | "version" | "completion") | None => {}
        Some("build" | "check") => call.project(),
        Some(_) => {
            call.act.touch(TouchKind::Publish, shown(&args.join(" ")));
            call.act.touch(TouchKind::Network, HOLE.to_string());
        }
    }
}

pub(super) fn tool(call: &mut Call<'_, '_>) {
    let args = call.args();
    let name = call.name().to_owned();
    if let Some(first) = args.iter().find(|arg| !is_option(arg))
        && is_open(first)
    {
        call.unknown("a subcommand that is known only at run time");
    }
    match name.as_str() {
        "cargo" => {
            // `+nightly` picks a toolchain.
            if args.first().is_some_and(|arg| arg.starts_with('+')) {
                call.act.args.remove(0);
            }
            if has_option(&args, "", &["--config"]) || has_option(&args, "Z", &[]) {
                call.act.touch(TouchKind::Code, "settings on the command line");
            }
            let cleans = args.iter().find(|arg| !is_option(arg)).is_some_and(|arg| arg == "clean");
            if cleans && !args.iter().any(|arg| arg.starts_with("--t") || arg.starts_with("--m")) {
                call.path(TouchKind::Delete, "target");
            } else {
                call.subcommand(CARGO, &["--color", "-C", "--manifest-path", "--target-dir"]);
            }
            call.act.args = args.clone();
            manifest(call, &args, &["-C", "--manifest-path", "--path"]);
        }
        "npm" | "pnpm" | "yarn" => {
            if let Some(at) = args.iter().position(|arg| arg == "exec" || arg == "x") {
                let inner: Vec<String> =
                    args[at + 1..].iter().skip_while(|arg| *arg == "--").cloned().collect();
                return package_runner(call, &inner);
            }
            if name == "yarn" && args.is_empty() {
                return call.act.touch(TouchKind::Install, ".");
            }
            if args.first().is_some_and(|arg| arg == "config" || arg == "set") {
                return call.act.touch(TouchKind::Persistence, shown(&args.join(" ")));
            }
            call.subcommand(NODE, &["--prefix", "-C", "--filter", "-w", "--workspace"]);
            manifest(call, &args, &["--prefix", "-C", "--dir", "--cwd"]);
        }
        "npx" | "bunx" | "pnpx" | "uvx" => package_runner(call, &args),
        "pip" | "pip3" | "pipx" => {
            // Another Python runs it, or it writes a log file.
            if has_option(&args, "", &["--python", "--log", "--log-file"]) {
                call.unknown("an option that runs a program or writes a file");
            }
            if name == "pipx" && args.first().is_some_and(|arg| arg == "run") {
                return package_runner(call, &args[1..]);
            }
            call.subcommand(PIP, &["--python", "--log", "--proxy", "--cert", "--timeout"]);
        }
        "poetry" | "uv" | "pdm" | "hatch" | "bundle" | "pipenv" => {
            // Options of `run` may install packages.
            if args.get(1).is_some_and(|arg| is_option(arg)) && args[0] == "run" {
                return call.unknown("a wrapper has an option that is not known");
            }
            let asks = ["info", "list", "show"];
            if args.first().is_some_and(|arg| arg == "env")
                && args.get(1).is_some_and(|arg| !asks.contains(&arg.as_str()))
            {
                // `env use /tmp/x` runs it to see which Python it is.
                return call.act.touch(TouchKind::Code, shown(&args.join(" ")));
            }
            call.subcommand(POETRY, &[]);
        }
        "go" => {
            call.subcommand(GO, &["-C"]);
            if args.first().is_some_and(|arg| arg == "env")
                && args.iter().any(|arg| arg == "-w" || arg == "-u")
            {
                call.act.touch(TouchKind::Persistence, "go env");
            }
            if args.first().is_some_and(|arg| arg == "run")
                && args.iter().any(|arg| arg.contains('@'))
            {
                call.act.touch(TouchKind::Install, shown(&args.join(" ")));
            }
            if args.first().is_some_and(|arg| arg == "mod")
                && args.iter().any(|arg| arg == "download" || arg == "tidy")
            {
                call.act.touch(TouchKind::Network, HOLE.to_string());
            }
        }
        "mvn" | "gradle" | "dotnet" | "sbt" | "lein" | "mix" | "stack" | "cabal" => {
            let words: Vec<String> = args.iter().filter(|arg| !is_option(arg)).cloned().collect();
            let known: Vec<_> =
                words.iter().filter_map(|word| JVM.iter().find(|(name, _)| name == word)).collect();
            if known.len() < words.len() {
                call.act.touch(TouchKind::Code, shown(&words.join(" ")));
            }
            for (_, does) in known {
                call.does(*does, &[]);
            }
            call.project();
            manifest(call, &args, &["-f", "--file", "-p", "--project-dir", "-I", "--init-script"]);
        }
        "gem" | "composer" | "apt" | "apt-get" | "apt-cache" | "brew" | "rustup" | "conda"
        | "mamba" => {
            call.subcommand(SYSTEM, &[]);
            if name.starts_with("apt") && has_option(&args, "oc", &["--option", "--config-file"]) {
                call.unknown("settings on the command line, which may run programs");
            }
        }
        "dpkg" => {
            if !matches!(
                args.first().map(String::as_str),
                Some(
                    "-l" | "-L"
                        | "-s"
                        | "-S"
                        | "--list"
                        | "--print-architecture"
                        | "--get-selections"
                )
            ) {
                call.act.touch(TouchKind::Install, shown(&args.join(" ")));
            }
        }
        "terraform" | "tofu" | "helm" | "kubectl" | "ansible" | "ansible-playbook" => {
            call.subcommand(CLOUD, &["-n", "--namespace", "--context", "-chdir"]);
            let here = ["version", "help", "fmt", "validate", "lint", "template"];
            let first = args.iter().find(|arg| !is_option(arg)).map_or("", String::as_str);
            if name == "kubectl" || !(first.is_empty() || here.contains(&first)) {
                call.act.touch(TouchKind::Network, HOLE.to_string());
            }
            if name.starts_with("ansible") {
                call.unknown("it runs programs on other machines");
            }
            if let Some(at) = args.iter().position(|arg| arg == "--") {
                call.inner(&args[at + 1..]);
            }
        }
        "make" | "gmake" => make(call, &args),
        "cmake" => {
            if has_option(&args, "PE", &[]) && !args.iter().any(|arg| arg.starts_with("--preset")) {
                call.act.touch(TouchKind::Code, shown(&args.join(" ")));
            }
            call.project();
            manifest(call, &args, &["-S", "-B", "-C", "--install"]);
        }
        // For task runners, the executed code is in the workspace, unless it is in the arguments.
        _ => {
            call.project();
            given_to_a_runner(call, &name, &args);
            if args.iter().any(|arg| matches!(arg.as_str(), "clean" | "clobber" | "distclean")) {
                call.act.touch(TouchKind::Delete, "what was built");
            }
            if matches!(name.as_str(), "pre-commit") {
                match args.iter().find(|arg| !is_option(arg)).map(String::as_str) {
                    Some("run" | "validate-config" | "validate-manifest" | "help") => {}
                    Some("try-repo") => {
                        call.act.touch(TouchKind::Install, shown(&args.join(" ")));
                        call.act.touch(TouchKind::Network, HOLE.to_string());
                    }
                    Some(_) | None => call.act.touch(TouchKind::Persistence, "hooks"),
                }
            }
            manifest(
                call,
                &args,
                &["-f", "--file", "-C", "--justfile", "--rakefile", "-c", "--directory", "-t"],
            );
        }
    }
}

/// Task runners that accept a whole command on their command line.
fn given_to_a_runner(call: &mut Call<'_, '_>, name: &str, args: &[String]) {
    let word = |at: usize| args.iter().filter(|arg| !is_option(arg)).nth(at).map(String::as_str);
    let after = |found: &dyn Fn(&str) -> bool| args.iter().position(|arg| found(arg));
    let inner = match name {
        "nx" | "lerna" | "turbo" if word(0) == Some("exec") => after(&|arg| arg == "exec"),
        "meson" if word(0) == Some("devenv") => after(&|arg| arg == "devenv"),
        "tox" if matches!(word(0), Some("exec" | "e")) => after(&|arg| arg == "--"),
        "just" => after(&|arg| arg == "-c" || arg == "--command"),
        _ => None,
    };
    let settings = match name {
        "tox" => has_option(args, "x", &["--override"]) || matches!(word(0), Some("exec" | "e")),
        "rake" => has_option(args, "eEp", &["--execute", "--execute-print", "--execute-continue"]),
        "just" => has_option(args, "", &["--shell", "--shell-arg", "--chooser"]),
        _ => false,
    };
    if settings || inner.is_some() {
        call.act.touch(TouchKind::Code, shown(&args.join(" ")));
    }
    if let Some(at) = inner {
        let words: Vec<String> =
            args[at + 1..].iter().skip_while(|arg| *arg == "--").cloned().collect();
        if !words.is_empty() {
            call.inner(&words);
        }
    }
}

/// Further effects of programs that run the project's code, caused by an argument.
pub(super) fn more_than_the_project(call: &mut Call<'_, '_>, args: &[String]) {
    let name = call.name().to_owned();
    let word = |at: usize| args.iter().filter(|arg| !is_option(arg)).nth(at).map(String::as_str);
    let code = match name.as_str() {
        "ghc" | "kotlinc" => args.iter().any(|arg| arg == "-e" || arg == "-expression"),
        "latexmk" | "pdflatex" => args.iter().any(|arg| {
            arg == "-e" || arg.contains('\\') || arg.contains("shell-escape") || arg.contains('%')
        }),
        "nim" => args.iter().any(|arg| arg == "e" || arg.starts_with("--eval")),
        "cmake" => args.iter().any(|arg| arg.contains(';')),
        "ctest" => has_option(args, "S", &["--script", "--test-command", "--build-and-test"]),
        _ => false,
    };
    if code {
        call.act.touch(TouchKind::Code, shown(&args.join(" ")));
    }
    match (name.as_str(), word(0), word(1)) {
        ("mkdocs", Some("gh-deploy"), _)
        | ("wasm-pack", Some("publish" | "login"), _)
        | ("hugo", Some("deploy"), _)
        | ("dart" | "flutter", Some("pub"), Some("publish" | "login" | "token")) => {
            call.act.touch(TouchKind::Publish, shown(&args.join(" ")));
        }
        ("playwright" | "cypress", Some("install"), _)
        | ("dart" | "flutter", Some("pub"), Some(_)) => {
            call.act.touch(TouchKind::Install, shown(&args.join(" ")));
        }
        _ => {}
    }
    let fetches = matches!(
        name.as_str(),
        "ffmpeg" | "convert" | "magick" | "pandoc" | "zig" | "latexmk" | "pdflatex" | "hugo"
    );
    for arg in args.iter().filter(|arg| fetches && arg.contains("://")) {
        call.act.touch(TouchKind::Network, super::net::host_of(value_of(arg)));
    }
    // It first empties the directory.
    for (n, arg) in args.iter().enumerate().filter(|(_, arg)| arg.starts_with("--baset")) {
        let to = arg.split_once('=').map(|(_, to)| to.to_owned());
        let to = to.or_else(|| args.get(n + 1).cloned()).unwrap_or_default();
        call.path(TouchKind::Delete, &to);
    }
}

fn make(call: &mut Call<'_, '_>, args: &[String]) {
    call.project();
    if args.iter().any(|arg| arg.starts_with("--ev") || arg == "-E" || arg.starts_with("--ex")) {
        call.act.touch(TouchKind::Code, shown(&args.join(" ")));
    }
    // Variables with a blank may contain a program and its arguments.
    for arg in args {
        if let Some((name, value)) = arg.split_once('=').filter(|(name, _)| !name.starts_with('-'))
            && (value.contains([' ', ';', '|', '&', '`', '$'])
                || matches!(
                    name.trim_end_matches([':', '+', '?', '!']),
                    "SHELL" | ".SHELLFLAGS" | "MAKE"
                ))
        {
            call.act.touch(TouchKind::Code, shown(arg));
        }
    }
    if args.iter().any(|arg| arg == "install" || arg == "uninstall") {
        call.act.touch(TouchKind::Install, "make install");
    }
    if args.iter().any(|arg| arg == "publish" || arg == "deploy" || arg == "release") {
        call.act.touch(TouchKind::Publish, shown(&args.join(" ")));
    }
    manifest(call, args, &["-f", "--file", "--makefile", "-C", "--directory", "-I"]);
    if args.iter().any(|arg| arg == "-f" || arg == "-f-" || arg == "--file=-")
        && args.iter().any(|arg| arg == "-" || arg.ends_with('-'))
    {
        call.unknown("rules that come from a pipe");
    }
}

/// Runs a package: the workspace's own if it is one of the well-known tools, otherwise one that is
/// downloaded now.
fn package_runner(call: &mut Call<'_, '_>, args: &[String]) {
    let at = args.iter().position(|arg| !is_option(arg));
    let options = &args[..at.unwrap_or(args.len())];
    let plain = options
        .iter()
        .all(|arg| matches!(arg.as_str(), "--no-install" | "--no" | "-q" | "--offline"));
    match at {
        Some(at) if plain => {
            let known =
                matches!(super::programs::find(&args[at]), Some(super::programs::Spec::Project));
            if known {
                call.inner(&args[at..]);
            } else {
                call.act.touch(TouchKind::Install, shown(&args[at]));
                call.act.touch(TouchKind::Network, HOLE.to_string());
            }
        }
        Some(_) | None => call.unknown("it fetches and runs a package"),
    }
}

/// Values of options that name the project's directory: code outside is not the project's.
fn manifest(call: &mut Call<'_, '_>, args: &[String], names: &[&str]) {
    for (n, arg) in args.iter().enumerate() {
        if !names.contains(&arg.as_str()) {
            continue;
        }
        let value = args.get(n + 1).cloned().unwrap_or_else(|| SPLIT.to_string());
        for path in call.walk.paths(&value) {
            if !super::path::in_workspace(&path) {
                call.act.touch(TouchKind::Code, path);
            }
        }
    }
}
