//! Compares the analyser's prediction with the programs that the kernel saw.
//!
//! The runnable part of the corpus runs under `strace`, as nobody, in namespaces without a
//! network, where every directory of programs is replaced by one with shells, wrappers, and
//! stand-ins that only exit. Each program that is executed must be one that the analyser named, or
//! the command must hold something that it did not understand or runs code of its own.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use overmind_core::gate::{GateVerdict, TouchKind};
use overmind_policy::Policy;
use overmind_testkit::soak;

use super::corpus::{bypasses, harmless, shell};

/// Real programs: they run others, and have no other unconfined effect.
const REAL: &[&str] = &[
    "sh", "bash", "dash", "env", "nice", "ionice", "nohup", "setsid", "stdbuf", "timeout", "xargs",
    "find", "echo", "printf", "cat", "seq", "true", "false", "base64", "rev", "sed", "awk", "mawk",
    "gawk", "xxd", "head", "tr", "sort",
];

/// Runs one command where it can do no harm; returns the names of the executed programs.
fn executed(root: &Path, strace: &str, command: &str) -> Option<BTreeSet<String>> {
    let trace = root.join("trace/log");
    let _ = fs::remove_file(&trace);
    // Mounts are private to the namespace; the real directories of programs are out of sight, and
    // so is every file that a redirect could reach but the scratch ones.
    let setup = r#"
        set -e
        mount --make-rprivate /
        # The machine's own temporary files are out of sight, too: what others left there must not
        # answer to a pattern, and what a command leaves there is gone with it. The place of this
        # test may lie beneath, so it is put back by where it is, not by its name.
        cd "$R"
        mount -t tmpfs -o mode=1777 tmpfs /tmp
        mkdir -p "$R"
        mount --no-canonicalize --bind . "$R"
        mount --bind "$R/trace" "$R/trace"
        mount -o remount,bind,ro /
        # A login shell's start files are the machine's, and no command's.
        [ ! -e /etc/profile ] || mount --bind /dev/null /etc/profile
        cd "$R/home"
        exec "$STRACE" -f -qq -e trace=execve -e signal=none -s 300 -o "$R/trace/log" \
            setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs \
            env -i PATH="$R/bin" HOME="$R/home" LC_ALL=C timeout -s KILL 3 bash -c "$C"
    "#;
    Command::new("unshare")
        .args([
            "--mount",
            "--net",
            "--pid",
            "--ipc",
            "--uts",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            setup,
        ])
        .env("R", root)
        .env("C", command)
        .env("STRACE", strace)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .ok()?;
    let log = fs::read_to_string(&trace).ok()?;
    let mut names = BTreeSet::new();
    for line in log.lines().filter(|line| line.contains("execve(\"") && line.contains(" = 0")) {
        let path = line.split("execve(\"").nth(1)?.split('"').next()?;
        names.insert(path.rsplit('/').next()?.to_owned());
    }
    Some(names)
}

/// Whether a command may run here at all: nothing with an absolute path, whatever it would do.
fn runnable(command: &str) -> bool {
    // A program with an absolute path would be the machine's own and no stand-in.
    !command.contains(['\0', '\r', '\u{1b}'])
        && !command.contains("/bin")
        && !command.contains("/sbin")
        && !command.contains("/???")
        && !command.contains("/b*")
        && !command.contains("/lib")
        && !command.contains("/opt")
        && !command.contains(":|:")
        && !command.contains("PATH")
        && !command.contains("/proc")
        && !command.contains("/dev/sd")
}

/// A directory with stand-ins for every named program, so that executed programs are recorded.
fn stage(names: &BTreeSet<String>) -> tempfile::TempDir {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path();
    for dir in ["bin", "home", "trace"] {
        fs::create_dir(root.join(dir)).unwrap();
    }
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(root.join("home"), fs::Permissions::from_mode(0o777)).unwrap();
    let real = |name: &str| {
        let all = ["/usr/bin", "/bin"].iter().map(|dir| Path::new(dir).join(name));
        all.into_iter().find(|path| path.exists())
    };
    for name in REAL {
        if let Some(path) = real(name) {
            std::os::unix::fs::symlink(path, root.join("bin").join(name)).unwrap();
        }
    }
    let quiet = real("true").expect("every system has `true`");
    for name in names {
        let path = root.join("bin").join(name);
        if !path.exists() {
            std::os::unix::fs::symlink(&quiet, path).unwrap();
        }
    }
    scratch
}

/// The programs of these commands that ran without being predicted, and the number of all programs.
fn surprises(
    strace: &str,
    names: &BTreeSet<String>,
    cases: &[(String, GateVerdict)],
) -> (Vec<String>, usize) {
    let scratch = stage(names);
    let mut problems = Vec::new();
    let mut programs = 0;
    for (command, verdict) in cases {
        let Some(names) = executed(scratch.path(), strace, command) else {
            problems.push(format!("{command:?} left no trace"));
            continue;
        };
        // The machinery of this test: setpriv, env, timeout and the shell around the command.
        let mut known: BTreeSet<&str> = ["setpriv", "env", "timeout", "bash"].into();
        known.extend(verdict.actions.iter().map(|action| action.program.as_str()));
        known.extend(verdict.actions.iter().flat_map(|action| &action.via).map(String::as_str));
        programs += names.len();
        let missed: Vec<_> = names.iter().filter(|name| !known.contains(name.as_str())).collect();
        if !missed.is_empty() {
            problems.push(format!("{command:?} ran {missed:?}, foreseen {known:?}"));
        }
    }
    (problems, programs)
}

#[test]
fn needs_strace_every_executed_program_was_predicted() {
    let Some(strace) = overmind_testkit::real::counterpart("STRACE") else { return };
    let policy = Policy::default();
    let all = bypasses().into_iter().map(|(_, command)| command).chain(harmless());
    let all: Vec<String> = all.filter(|command| runnable(command)).collect();
    let mut names = BTreeSet::new();
    let mut cases = Vec::new();
    for command in all {
        let verdict = policy.judge(&shell(&command));
        names.extend(
            command
                .split(|c: char| !c.is_ascii_alphanumeric() && !"._-+".contains(c))
                .map(str::to_owned),
        );
        names.extend(verdict.actions.iter().map(|action| action.program.clone()));
        // If any program may run, every program that runs was predicted.
        let open = |kind| matches!(kind, TouchKind::Unknown | TouchKind::Code | TouchKind::Project);
        if !verdict.actions.iter().flat_map(|action| &action.touches).any(|touch| open(touch.kind))
        {
            cases.push((command, verdict));
        }
    }
    names.retain(|name| {
        !name.is_empty() && name.is_ascii() && !name.contains('/') && !name.starts_with(['.', '-'])
    });
    // A tenth of them from a random one on; all of them for `cargo xtask soak`.
    let (found, stride) = (cases.len(), soak::count(10, 1));
    let first = usize::try_from(RandomState::new().hash_one("first")).unwrap() % stride;
    let cases: Vec<_> = cases.into_iter().skip(first).step_by(stride).collect();
    let share = cases.len().div_ceil(4);
    let parts: Vec<(Vec<String>, usize)> = std::thread::scope(|scope| {
        let (strace, names) = (&strace, &names);
        let threads: Vec<_> = cases
            .chunks(share)
            .map(|cases| scope.spawn(move || surprises(strace, names, cases)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let programs: usize = parts.iter().map(|(_, programs)| programs).sum();
    let problems: Vec<String> = parts.into_iter().flat_map(|(problems, _)| problems).collect();
    eprintln!("{} commands ran {programs} programs", cases.len());
    assert!(
        found > 300 && programs > 4 * cases.len(),
        "{} of {found} commands, {programs} programs",
        cases.len()
    );
    assert!(problems.is_empty(), "{}:\n{}", problems.len(), problems.join("\n"));
}
