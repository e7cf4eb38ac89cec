//! Which files a piece of code may load when it starts, as far as its text says so.
//!
//! An approval of a script covers what the script loads ([`crate::gate::Binding`]). This reads no
//! files and runs nothing: it names candidates, also those that are not there, because a file that
//! appears later would be loaded just as well. What a program computes at run time is not seen.

/// A language whose imports are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Python,
    /// JavaScript and TypeScript.
    Node,
    Shell,
}

/// Maximum number of bytes of a string literal that can be a path.
const MAX_PATH: usize = 200;

impl Language {
    /// By the name of an interpreter: `python3.12`, `node`, `bash`.
    pub fn of_program(name: &str) -> Option<Self> {
        match name {
            name if name.starts_with("py") => Some(Self::Python),
            "node" | "nodejs" | "deno" | "bun" => Some(Self::Node),
            "sh" | "bash" | "dash" | "zsh" | "ksh" => Some(Self::Shell),
            _ => None,
        }
    }

    /// By the name of a file, or by its first line where the name does not say.
    pub fn of_file(path: &str, text: &str) -> Option<Self> {
        match path.rsplit('/').next()?.rsplit_once('.') {
            Some((_, "py" | "pyw")) => Some(Self::Python),
            Some((_, "js" | "mjs" | "cjs" | "ts" | "mts" | "cts" | "jsx" | "tsx")) => {
                Some(Self::Node)
            }
            Some((_, "sh" | "bash" | "zsh" | "ksh")) => Some(Self::Shell),
            _ => {
                let words = text.strip_prefix("#!")?.lines().next()?.split_whitespace();
                words.filter_map(|word| Self::of_program(word.rsplit('/').next()?)).next()
            }
        }
    }
}

/// Candidates for what the code loads, each once and sorted. `dir` is where the code lies or, for code
/// without a file, where it starts: a path relative to the workspace, as the candidates are.
pub fn candidates(language: Language, code: &str, dir: &str) -> Vec<String> {
    let mut found = match language {
        Language::Python => python(code, dir),
        Language::Node => node(code, dir),
        Language::Shell => shell(code, dir),
    };
    found.sort();
    found.dedup();
    found
}

/// Joins without leaving the workspace; `None` when the path leads out of it.
fn join(dir: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in dir.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

fn python(code: &str, dir: &str) -> Vec<String> {
    let mut found = Vec::new();
    let quotes = ['"', '\'', '(', ')', ',', '\\'];
    for statement in code.split(['\n', ';']) {
        let words: Vec<&str> = statement
            .split(|c: char| c.is_whitespace() || quotes.contains(&c))
            .filter(|word| !word.is_empty())
            .collect();
        for (n, word) in words.iter().enumerate() {
            let rest = words.get(n + 1..).unwrap_or_default();
            match (*word, rest) {
                ("from", [module, "import", names @ ..]) => {
                    modules(&mut found, dir, module, names);
                }
                ("import", names) if n < 2 || words.get(n - 2) != Some(&"from") => {
                    for name in names {
                        modules(&mut found, dir, name, &[]);
                    }
                }
                ("-m", [module, ..]) => modules(&mut found, dir, module, &["__main__"]),
                _ => {}
            }
        }
    }
    found
}

/// The files that can be `module`, and `names` within it. A module of dots is relative.
fn modules(found: &mut Vec<String>, dir: &str, module: &str, names: &[&str]) {
    let relative = module.trim_start_matches('.');
    let up = "../".repeat((module.len() - relative.len()).saturating_sub(1));
    let sound =
        |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let parts: Vec<&str> = relative.split('.').filter(|part| !part.is_empty()).collect();
    if !parts.iter().all(sound) {
        return;
    }
    let mut path = up;
    let mut add = |path: &str| {
        for end in [".py", "/__init__.py"] {
            found.extend(join(dir, &format!("{path}{end}")));
        }
    };
    for part in parts {
        path.push_str(part);
        add(&path);
        path.push('/');
    }
    for name in names.iter().filter(|name| sound(name)) {
        add(&format!("{path}{name}"));
    }
}

/// Every literal that begins like a relative path.
fn node(code: &str, dir: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, quote) in code.match_indices(['"', '\'', '`']) {
        let Some(rest) = code.get(at + 1..) else { continue };
        if !(rest.starts_with("./") || rest.starts_with("../")) {
            continue;
        }
        let Some(path) = rest.split(quote).next().filter(|path| path.len() <= MAX_PATH) else {
            continue;
        };
        let ends =
            ["", ".js", ".mjs", ".cjs", ".json", ".ts", "/index.js", "/index.ts", "/package.json"];
        found.extend(ends.iter().filter_map(|end| join(dir, &format!("{path}{end}"))));
    }
    found
}

/// Every word that looks like a path: sourced files, and started programs.
fn shell(code: &str, dir: &str) -> Vec<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '_' | '-');
    let mut found = Vec::new();
    let mut sourced = false;
    for word in code.split(|c: char| !plain(c)).filter(|word| !word.is_empty()) {
        let file = word.contains('/')
            || [".sh", ".bash", ".py", ".js", ".mjs"].iter().any(|end| word.ends_with(end));
        if (file || sourced) && !word.starts_with('/') && word.len() <= MAX_PATH {
            found.extend(join(dir, word));
            found.extend(join("", word));
        }
        sourced = matches!(word, "." | "source");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_imports_name_every_possible_file() {
        let names = |code, dir| candidates(Language::Python, code, dir);
        assert_eq!(names("import helper", "."), ["helper.py", "helper/__init__.py"]);
        assert_eq!(names("-c import helper; helper.go()", "lib")[0], "lib/helper.py");
        assert_eq!(names("try: import a.b as c", ".")[..2], ["a.py", "a/__init__.py"]);
        assert!(names("import a.b", ".").contains(&"a/b/__init__.py".to_owned()));
        let from = names("from .pkg import (one,\n two)\nfrom ..up import x", "s/t");
        for file in ["s/t/pkg.py", "s/t/pkg/one.py", "s/up.py", "s/up/x.py"] {
            assert!(from.contains(&file.to_owned()), "{file}: {from:?}");
        }
        assert!(names("-m tool.run", ".").contains(&"tool/run/__main__.py".to_owned()));
        assert!(names("from ....x import y", "a").is_empty(), "out of the workspace");
        assert!(names("print('nothing')", ".").is_empty());
    }

    #[test]
    fn node_literals_and_shell_words_name_files() {
        let node = candidates(
            Language::Node,
            "require('./x'); import y from \"../lib/y.mjs\"; import('fs'); const z = 'a.js'",
            "src",
        );
        assert!(node.contains(&"src/x.js".to_owned()) && node.contains(&"lib/y.mjs".to_owned()));
        assert!(!node.iter().any(|name| name.contains("fs") || name.contains("a.js")), "{node:?}");
        let shell =
            candidates(Language::Shell, "set -e\n. ./env\nsource defs\nbash 'run.sh' $X", "bin");
        assert_eq!(shell, ["bin/defs", "bin/env", "bin/run.sh", "defs", "env", "run.sh"]);
    }

    #[test]
    fn the_language_of_a_file_follows_from_its_name_or_first_line() {
        assert_eq!(Language::of_file("a/b.py", ""), Some(Language::Python));
        assert_eq!(Language::of_file("tool", "#!/usr/bin/env python3\n"), Some(Language::Python));
        assert_eq!(Language::of_file("tool", "#!/bin/bash -e\n"), Some(Language::Shell));
        assert_eq!(Language::of_file("notes.txt", "import x"), None);
    }
}
