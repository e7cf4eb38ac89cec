//! The rules, and their tables of exceptions. A line added to a table needs a reason in review.

use super::code::{code_only, lines_with};
use super::graph::{EDGES, Package, graph_problems};
use super::{File, Tree};

/// Rust files that may have more than 800 lines.
pub const LONG_FILES: &[&str] = &[];

/// The only files that may use `unsafe`: one `sys` module in each crate that must.
pub const UNSAFE_FILES: &[&str] = &[
    "crates/node/src/sys.rs",
    "crates/sandbox/src/sys.rs",
    "crates/store/src/sys.rs",
    "crates/supervise/src/sys.rs",
    "crates/workspace/src/sys.rs",
];

/// Files of the crates for workspaces and MCP that open paths by themselves, and what these are. Whatever lies in a
/// workspace or a repository is opened by the opener: as the host's user, the server would follow a link.
const OPENING_FILES: &[(&str, &str)] = &[
    ("crates/mcp/src/artifacts.rs", "the opener of files and directories of MCP servers"),
    ("crates/workspace/src/opener.rs", "the opener"),
    ("crates/workspace/src/database/cluster.rs", "the own database server's directory"),
    ("crates/workspace/src/leaks/mod.rs", "the kernel's tables, our marks"),
    ("crates/workspace/src/lease/journal.rs", "our journals"),
    ("crates/workspace/src/lease/mod.rs", "our ids"),
    ("crates/workspace/src/lease/undo.rs", "our marks"),
    (
        "crates/workspace/src/owner.rs",
        "the top of a tree of ours; what is beneath, through no link",
    ),
    ("crates/workspace/src/ports/registry.rs", "the machine's list of ports"),
    ("crates/workspace/src/rooms/maker.rs", "our notes of ends"),
    ("crates/workspace/src/secrets.rs", "our notes beside a tree"),
    ("crates/workspace/src/services/cgroup.rs", "control groups"),
    ("crates/workspace/src/services/ready.rs", "our logs of services"),
    ("crates/workspace/src/services/runner.rs", "our logs of services"),
    ("crates/workspace/src/services/tree.rs", "the kernel's tables"),
    ("crates/workspace/src/tree/adopt.rs", "our git directory beside a tree"),
    (
        "crates/workspace/src/tree/build.rs",
        "a tree that no session has yet, and what lies beside it",
    ),
    ("crates/workspace/src/tree/carry.rs", "a tree that no session has yet"),
    ("crates/workspace/src/tree/finish.rs", "our git directory beside a tree"),
    ("crates/workspace/src/tree/history.rs", "our git directory beside a tree"),
    ("crates/workspace/src/tree/mod.rs", "our locks"),
    ("crates/workspace/src/tree/notes.rs", "our notes beside a tree"),
    ("crates/workspace/src/tree/pack.rs", "our packs on their way"),
    ("crates/workspace/src/tree/primary.rs", "our notes beside a tree"),
    ("crates/workspace/src/tree/upkeep.rs", "our notes of a project"),
];

/// Calls that open a path, or read its content.
const OPENS: &[&str] = &[
    "fs::read",
    "fs::read_to_string",
    "fs::copy",
    "fs::open",
    "fs::openat2",
    "fs::OpenOptions",
    "File::open",
    "File::options",
    "OpenOptions::new",
];

/// Texts that no tracked file may contain, and the reasons. Joined from halves, so that this file may.
pub const FORBIDDEN: &[(&[&str], &str)] = &[
    (&["/work/", "main"], "a path of one machine"),
    (&["/work/", "shared"], "a path of one machine"),
    (&["/root/", ".c"], "a path of one machine"),
    (&["deb.deb", "ian.org"], "a registry's host: take it from the system's own configuration"),
    (&["pypi", ".org"], "a registry's host: use the client by package name"),
    (&["registry.npm", "js.org"], "a registry's host: use the client by package name"),
    (&["<<<<", "<<< "], "a merge that was not finished"),
    (&[">>>>", ">>> "], "a merge that was not finished"),
];

/// Marks of unfinished code. They are searched in Rust sources, comments included.
const UNFINISHED: &[&[&str]] =
    &[&["TO", "DO"], &["FIX", "ME"], &["todo", "!("], &["unimplemented", "!("]];

/// How the reason of an ignored test may begin. Such a test asserts nothing that CI needs.
const MAY_IGNORE: &[&str] = &["the other half of ", "the crash test runs it", "prints figures"];

const MAX_LINES: usize = 800;

/// Crates that core may not depend on: it has no runtime and no I/O.
const NOT_IN_CORE: &[&str] =
    &["axum", "bollard", "hyper", "libc", "reqwest", "rusqlite", "rustix", "tokio", "tokio-util"];

/// Words that core's sources may not contain.
const NOT_IN_CORES_CODE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::process",
    "std::thread",
    "Instant::now",
    "SystemTime",
];

/// Every problem of the tree, by every rule.
pub fn all_rules(tree: &Tree, packages: &[Package]) -> Vec<String> {
    let mut problems = graph_problems(EDGES, packages, tree);
    problems.extend(long_files(tree, LONG_FILES));
    problems.extend(manifests(tree));
    problems.extend(test_modules(tree));
    problems.extend(ignored_tests(tree));
    problems.extend(core_is_pure(tree, packages));
    problems.extend(unsafety(tree, UNSAFE_FILES));
    problems.extend(openings(tree, OPENING_FILES));
    problems.extend(forbidden_words(tree));
    problems.extend(super::words::plain_words(tree));
    problems
}

fn long_files(tree: &Tree, allowed: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    for File { path, text } in tree.rust() {
        let lines = text.lines().count();
        let excepted = allowed.contains(&path.as_str());
        if lines > MAX_LINES && !excepted {
            problems.push(format!("{path}: {lines} lines, more than {MAX_LINES}: split it"));
        }
        if lines <= MAX_LINES && excepted {
            problems.push(format!("{path}: short again, so it needs no exception"));
        }
    }
    problems
}

/// Every crate takes the workspace's lints; a crate without them would be checked by none.
fn manifests(tree: &Tree) -> Vec<String> {
    let manifests = tree.files.iter().filter(|file| {
        ["fuzz/Cargo.toml", "xtask/Cargo.toml"].contains(&file.path.as_str())
            || (file.path.starts_with("crates/") && file.path.ends_with("/Cargo.toml"))
    });
    let mut problems = Vec::new();
    let mut seen = 0_usize;
    for File { path, text } in manifests {
        seen += 1;
        let after = text.split_once("\n[lints]\n").map_or("", |(_, after)| after);
        if after.lines().next().map(str::trim) != Some("workspace = true") {
            problems.push(format!("{path}: needs `[lints]` with `workspace = true`"));
        }
    }
    if seen == 0 {
        problems.push("no crate's Cargo.toml found: the check saw nothing".to_owned());
    }
    problems
}

/// One integration-test binary per crate, and no file beside it that nobody compiles.
fn test_modules(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for File { path, .. } in tree.rust() {
        let Some((krate, inside)) = path.split_once("/tests/") else { continue };
        let Some(module) = inside.strip_prefix("it/") else {
            problems.push(format!("{path}: integration tests live in {krate}/tests/it/"));
            continue;
        };
        // A directory's files are reached through its own `mod.rs` or `name.rs`.
        let Some(name) = module.strip_suffix(".rs").filter(|name| !name.contains('/')) else {
            continue;
        };
        if name == "main" {
            continue;
        }
        let main = tree.get(&format!("{krate}/tests/it/main.rs"));
        let named = |main: &File| code_only(&main.text).contains(&format!("mod {name};"));
        if !main.is_some_and(named) {
            problems.push(format!(
                "{path}: not a module of {krate}/tests/it/main.rs, so it never runs"
            ));
        }
    }
    problems
}

fn ignored_tests(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for File { path, text } in tree.rust() {
        // The reason is a literal, which the scan blanks: it is read from the source's own line.
        for (n, (code, line)) in code_only(text).lines().zip(text.lines()).enumerate() {
            let excused = MAY_IGNORE.iter().any(|reason| line.contains(&format!("= \"{reason}")));
            if code.contains("#[ignore") && !excused {
                problems.push(format!(
                    "{path}:{}: an ignored test tests nothing: mend or delete it",
                    n + 1
                ));
            }
        }
    }
    problems
}

fn core_is_pure(tree: &Tree, packages: &[Package]) -> Vec<String> {
    let mut problems = Vec::new();
    let core = packages.iter().find(|package| package.name == "overmind-core");
    for used in core.into_iter().flat_map(|core| &core.uses) {
        if NOT_IN_CORE.contains(&used.as_str()) {
            problems.push(format!("crates/core/Cargo.toml: core may not use {used}"));
        }
    }
    for File { path, text } in tree.rust().filter(|file| file.path.starts_with("crates/core/src/"))
    {
        let code = code_only(text);
        for word in NOT_IN_CORES_CODE {
            for line in lines_with(&code, word) {
                problems.push(format!(
                    "{path}:{line}: core may not mention {word}: take it as an argument"
                ));
            }
        }
    }
    problems
}

fn unsafety(tree: &Tree, allowed: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    for File { path, text } in tree.rust() {
        let code = code_only(text);
        let mut lines = lines_with(&code, "unsafe");
        lines.extend(lines_with(&code, "unsafe_code"));
        let excepted = allowed.contains(&path.as_str());
        if let (Some(line), false) = (lines.first(), excepted) {
            problems.push(format!("{path}:{line}: `unsafe` outside the listed sys modules"));
        }
        if lines.is_empty() && excepted {
            problems.push(format!("{path}: no `unsafe` any more, so it needs no exception"));
        }
    }
    for path in allowed.iter().filter(|path| tree.get(path).is_none()) {
        problems.push(format!("{path}: listed as a sys module but does not exist"));
    }
    problems
}

/// Only the opener opens paths of workspaces. Tests create the files that they read.
fn openings(tree: &Tree, allowed: &[(&str, &str)]) -> Vec<String> {
    let mut problems = Vec::new();
    let of = ["crates/workspace/src/", "crates/mcp/src/"];
    let sources = tree.rust().filter(|file| of.iter().any(|of| file.path.starts_with(of)));
    for File { path, text } in sources {
        let code = code_only(text);
        let code = code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let line = OPENS.iter().flat_map(|word| lines_with(code, word)).min();
        let excepted = allowed.iter().any(|(known, _)| known == path);
        match line {
            Some(line) if !excepted => problems.push(format!(
                "{path}:{line}: opens a path by itself: use the crate's opener, or say in the table of \
                 exceptions whose path it is"
            )),
            None if excepted => {
                problems.push(format!("{path}: opens nothing any more, so it needs no exception"));
            }
            Some(_) | None => {}
        }
    }
    for (path, _) in allowed.iter().filter(|(path, _)| tree.get(path).is_none()) {
        problems.push(format!("{path}: listed as opening paths but does not exist"));
    }
    problems
}

fn forbidden_words(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for File { path, text } in &tree.files {
        let words = FORBIDDEN.iter().map(|(halves, why)| (halves.concat(), (*why).to_owned()));
        let unfinished = UNFINISHED
            .iter()
            .filter(|_| path.ends_with(".rs"))
            .map(|halves| (halves.concat(), "unfinished: finish it or open an issue".to_owned()));
        for (word, why) in words.chain(unfinished) {
            if let Some(n) = text.lines().position(|line| line.contains(&word)) {
                problems.push(format!("{path}:{}: `{word}` is {why}", n + 1));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let file =
            |(path, text): &(&str, &str)| File { path: (*path).into(), text: (*text).into() };
        Tree { files: files.iter().map(file).collect() }
    }

    fn package(name: &str, uses: &[&str]) -> Package {
        let uses: std::collections::BTreeSet<String> =
            uses.iter().map(|&name| name.into()).collect();
        let ours = uses.iter().filter(|name| name.starts_with("our-")).cloned().collect();
        Package { name: name.into(), uses, uses_of_ours: ours }
    }

    #[test]
    fn missing_unused_and_unknown_edges_are_found() {
        let drawn: &[(&str, &[&str])] = &[("our-a", &["our-b"]), ("our-b", &[]), ("our-gone", &[])];
        let map = "text\n```edges\nour-b -> our-a\n\nour-x -> our-y\n```\n";
        let packages =
            [package("our-a", &["serde"]), package("our-b", &["our-a"]), package("our-new", &[])];
        assert_eq!(
            graph_problems(drawn, &packages, &tree(&[("ARCHITECTURE.md", map)])),
            [
                "crate graph: our-a -> our-b is drawn but not used",
                "crate graph: our-b -> our-a is not drawn",
                "crate graph: `our-new` is not in the table of edges",
                "crate graph: `our-gone` is drawn but does not exist",
                "ARCHITECTURE.md: the edge our-x -> our-y does not exist",
            ]
        );
        let one = [package("our-a", &["our-b"]), package("our-b", &[])];
        assert_eq!(
            graph_problems(&drawn[..2], &one, &tree(&[("ARCHITECTURE.md", "\n```edges\n\n```")])),
            ["ARCHITECTURE.md: the edge our-a -> our-b is missing"]
        );
        assert_eq!(
            graph_problems(&drawn[..2], &one, &tree(&[])),
            ["ARCHITECTURE.md: no fenced block labelled `edges`"]
        );
        let edge = |to: &str| ("our-a".to_owned(), to.to_owned());
        let both = crate::layout::edges_in("\n```edges\nour-a -> our-b, our-c\n```");
        assert_eq!(both, Some([edge("our-b"), edge("our-c")].into()));
    }

    #[test]
    fn a_long_file_and_an_unneeded_exception_are_found() {
        let (long, short) = ("x\n".repeat(801), "x\n".repeat(800));
        let files = tree(&[("a.rs", &long), ("b.rs", &short), ("c.md", &long)]);
        assert_eq!(long_files(&files, &[]), ["a.rs: 801 lines, more than 800: split it"]);
        let both = long_files(&files, &["a.rs", "b.rs"]);
        assert_eq!(both, ["b.rs: short again, so it needs no exception"]);
    }

    #[test]
    fn a_path_opened_without_the_opener_is_found() {
        let opens = "fn f() {\n    std::fs::read_to_string(x);\n}\n";
        let tests = "fn f() {}\n#[cfg(test)]\nmod tests {\n    std::fs::read(x);\n}\n";
        let dir = "crates/workspace/src";
        let [a, b, c] = ["a", "b", "c"].map(|name| format!("{dir}/{name}.rs"));
        let files = tree(&[(&a, opens), (&b, tests), ("crates/store/src/a.rs", opens)]);
        let found = openings(&files, &[]);
        assert!(found.len() == 1 && found[0].starts_with(&format!("{a}:2: ")), "{found:?}");
        let all = [(a.as_str(), "ours"), (&b, "ours"), (&c, "ours")];
        assert_eq!(
            openings(&files, &all),
            [
                format!("{b}: opens nothing any more, so it needs no exception"),
                format!("{c}: listed as opening paths but does not exist"),
            ]
        );
    }

    #[test]
    fn a_crate_without_the_lints_is_found() {
        let good = "[package]\n[lints]\nworkspace = true\n";
        let files = tree(&[("crates/a/Cargo.toml", good), ("crates/b/Cargo.toml", "[package]\n")]);
        assert_eq!(
            manifests(&files),
            ["crates/b/Cargo.toml: needs `[lints]` with `workspace = true`"]
        );
        assert_eq!(manifests(&tree(&[])).len(), 1, "seeing nothing is a problem");
    }

    #[test]
    fn a_test_file_outside_every_build_is_found() {
        let files = tree(&[
            ("crates/a/tests/it/main.rs", "mod one;\n// mod two;\nmod dir;"),
            ("crates/a/tests/it/one.rs", ""),
            ("crates/a/tests/it/two.rs", ""),
            ("crates/a/tests/it/dir/mod.rs", ""),
            ("crates/a/tests/other.rs", ""),
        ]);
        assert_eq!(
            test_modules(&files),
            [
                "crates/a/tests/it/two.rs: not a module of crates/a/tests/it/main.rs, so it never runs",
                "crates/a/tests/other.rs: integration tests live in crates/a/tests/it/",
            ]
        );
    }

    #[test]
    fn an_ignored_test_is_found_but_not_one_in_a_comment() {
        let files = tree(&[
            ("a.rs", "x\n#[ignore = \"slow\"]"),
            ("b.rs", "// #[ignore]"),
            ("c.rs", "#[ignore = \"the other half of a_daemon_ends\"]"),
        ]);
        assert_eq!(
            ignored_tests(&files),
            ["a.rs:2: an ignored test tests nothing: mend or delete it"]
        );
    }

    #[test]
    fn core_with_a_runtime_or_a_clock_is_found() {
        let files =
            tree(&[("crates/core/src/a.rs", "// SystemTime\nuse std::fs;\nSystemTime::now()")]);
        assert_eq!(
            core_is_pure(&files, &[package("overmind-core", &["serde", "tokio"])]),
            [
                "crates/core/Cargo.toml: core may not use tokio",
                "crates/core/src/a.rs:2: core may not mention std::fs: take it as an argument",
                "crates/core/src/a.rs:3: core may not mention SystemTime: take it as an argument",
            ]
        );
    }

    #[test]
    fn unsafe_code_outside_the_list_and_unused_list_entries_are_found() {
        let files =
            tree(&[("a.rs", "\nunsafe {}"), ("sys.rs", "unsafe {}"), ("old/sys.rs", "fn f() {}")]);
        assert_eq!(
            unsafety(&files, &["sys.rs", "old/sys.rs", "gone/sys.rs"]),
            [
                "a.rs:2: `unsafe` outside the listed sys modules",
                "old/sys.rs: no `unsafe` any more, so it needs no exception",
                "gone/sys.rs: listed as a sys module but does not exist",
            ]
        );
        let allows = tree(&[("a.rs", "#![allow(unsafe_code)]")]);
        assert_eq!(unsafety(&allows, &[]).len(), 1);
    }

    #[test]
    fn every_forbidden_word_is_found() {
        for (halves, why) in FORBIDDEN {
            let text = format!("fine\nx{}y", halves.concat());
            let found = forbidden_words(&tree(&[("README.md", &text)]));
            assert_eq!(found, [format!("README.md:2: `{}` is {why}", halves.concat())]);
        }
        for halves in UNFINISHED {
            let word = halves.concat();
            assert_eq!(forbidden_words(&tree(&[("a.rs", &word)])).len(), 1, "{word}");
            assert!(forbidden_words(&tree(&[("a.md", &word)])).is_empty(), "{word}");
        }
    }
}
