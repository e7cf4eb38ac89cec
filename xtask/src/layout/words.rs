//! Words that have a plain equivalent: refused in documentation, help, errors, comments and names of tests.
//!
//! A word in `code` is a name on the wire, on disk or in the code, and allowed: names stay for compatibility.
//! Crates become clean one after the other; [`CLEAN`] lists those that are, and it only grows.

use super::{File, Tree};

/// The refused words, in lower case, and their replacements.
const WORDS: &[(&[&str], &str)] = &[
    (&["room", "rooms"], "environment"),
    (&["life", "lives"], "attempt, or run"),
    (&["letter", "letters"], "message"),
    (&["keeper", "keepers"], "shim"),
    (&["figure", "figures"], "metric, or number"),
    (&["park", "parks", "parked", "parking"], "save"),
    (&["postmaster", "postmasters"], "dispatcher"),
    (&["mend", "mends", "mended", "mending"], "fix"),
    (&["anew"], "again"),
    (&["lapse", "lapses", "lapsed"], "expire"),
    (&["told"], "shown, sent or reported"),
    (&["door", "doors"], "proxy, endpoint, route, client, handle or peer"),
];

/// Phrases in which a word of [`WORDS`] has its ordinary meaning.
const PHRASES: &[&str] = &[
    "lower-case letter",
    "upper-case letter",
    "capital letter",
    "small letter",
    "first letter",
    "ascii letter",
    "dead letter",
    "letters and digits",
    "letters, digits",
    "letters of other scripts",
    "begins with a letter",
    "without a letter",
    "and a letter",
    "a small letter",
];

/// Files and directories in which the rule holds. The rest of the tree follows crate by crate.
const CLEAN: &[&str] = &[
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "crates/api/src/",
    "crates/cli/src/",
    "crates/client/",
    "crates/node/src/",
    "crates/overmind/",
    "crates/view/src/",
    "crates/web/src/",
    "docs/",
];

/// Of these, what is excepted, and why.
const NOT_YET: &[(&str, &str)] = &[
    ("CONTRIBUTING.md", "quotes sentences to show what they should have been"),
    ("docs/benchmarks.md", "written by the bench, whose metrics keep their names"),
    ("docs/open.md", "about code whose names have not changed yet"),
    ("docs/reference/events.md", "explains the older words that events have"),
];

/// A listed word where it is refused, with its place.
pub(super) fn plain_words(tree: &Tree) -> Vec<String> {
    found(tree, CLEAN, NOT_YET)
}

fn found(tree: &Tree, clean: &[&str], not_yet: &[(&str, &str)]) -> Vec<String> {
    let within = |path: &str, of: &str| path == of || (of.ends_with('/') && path.starts_with(of));
    let mut problems = Vec::new();
    for of in clean {
        if !tree.files.iter().any(|file| within(&file.path, of)) {
            problems.push(format!("{of}: listed as free of unplain words but does not exist"));
        }
    }
    for (path, _) in not_yet.iter().filter(|(path, _)| tree.get(path).is_none()) {
        problems.push(format!("{path}: excepted from the plain words but does not exist"));
    }
    for File { path, text } in &tree.files {
        let is_clean = clean.iter().any(|of| within(path, of));
        if !is_clean || not_yet.iter().any(|(known, _)| known == path) {
            continue;
        }
        let lines = match path.rsplit_once('.').map(|(_, kind)| kind) {
            Some("md") => markdown(text),
            Some("rs") => rust(text, path.contains("/tests/") || path.ends_with("/tests.rs")),
            _ => continue,
        };
        for (n, line) in lines {
            for (word, instead) in words(&line) {
                problems.push(format!("{path}:{n}: write {instead}, not `{word}`"));
            }
        }
    }
    problems
}

/// The listed words of a line of text, each with what to write instead.
fn words(line: &str) -> Vec<(&'static str, &'static str)> {
    let mut line = without_code(line).to_lowercase();
    for phrase in PHRASES {
        line = line.replace(phrase, "");
    }
    // A path, a flag or a name with an underscore is one word.
    let all = line.split(|c: char| !(c.is_alphanumeric() || "_-/.".contains(c)));
    let all: Vec<&str> = all.map(|word| word.trim_matches(['.', '-', '/'])).collect();
    let listed =
        WORDS.iter().flat_map(|(words, instead)| words.iter().map(move |word| (*word, *instead)));
    listed.filter(|(word, _)| all.contains(word)).collect()
}

/// The line without what stands between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Numbered lines of prose: no blocks of code, no targets of links.
fn markdown(text: &str) -> Vec<(usize, String)> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (n, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code && !line.starts_with("    ") {
            let mut parts = line.split("](");
            let mut prose = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                prose.push(' ');
                prose.push_str(part.split_once(')').map_or("", |(_, after)| after));
            }
            // An anchor is a name that other pages use.
            lines.push((n + 1, prose.split("<a id=").next().unwrap_or_default().to_owned()));
        }
    }
    lines
}

/// Numbered lines of comments, texts for people and names of tests.
fn rust(text: &str, is_test: bool) -> Vec<(usize, String)> {
    let code = super::code_only(text);
    let tests = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    let (mut lines, mut at, mut after_test) = (Vec::new(), 0, false);
    for (n, (line, code)) in text.lines().zip(code.lines()).enumerate() {
        let shown = |text: &str| (n + 1, text.to_owned());
        if let Some(comment) = comment(line, code) {
            lines.push(shown(comment));
        }
        // Texts of tests are input and what is expected.
        if !is_test && at < tests {
            let prose = literal(line, code).filter(|text| text.trim().contains(' '));
            lines.extend(prose.map(|text| (n + 1, text)));
        }
        let trimmed = code.trim_start();
        if trimmed.starts_with("#[test]") || trimmed.starts_with("#[tokio::test") {
            after_test = true;
        } else if let Some((_, name)) = code.split_once("fn ").filter(|_| after_test) {
            lines.push((n + 1, name.split('(').next().unwrap_or_default().replace('_', " ")));
            after_test = false;
        }
        at += line.len() + 1;
    }
    lines
}

/// The comment of a line: what the scan has blanked from `//` on.
fn comment<'a>(line: &'a str, code: &str) -> Option<&'a str> {
    let start = line.match_indices("//").map(|(at, _)| at).find(|&at| {
        // Inside of a literal the quote before it is blank, and code follows or the line ends there.
        let before = &line[..at];
        before.matches('"').count().is_multiple_of(2) && blank(code, line, at)
    })?;
    Some(&line[start..])
}

/// Whether the rest of the line from the byte `at` is blank in the scan.
fn blank(code: &str, line: &str, at: usize) -> bool {
    let chars = line[..at].chars().count();
    code.chars().skip(chars).all(|c| c == ' ')
}

/// What the scan has blanked of a line, apart from a comment: those literals that have several words.
fn literal(line: &str, code: &str) -> Option<String> {
    const CODE: char = '\u{1}';
    let upto = comment(line, code).map_or(line.len(), |comment| line.len() - comment.len());
    let pairs = line[..upto].chars().zip(code.chars());
    let text: String = pairs.map(|(c, kept)| if kept == ' ' { c } else { CODE }).collect();
    let parts = text.split(CODE).map(|part| part.trim().trim_matches('"').trim());
    let parts: Vec<&str> = parts.filter(|part| part.contains(' ')).collect();
    (!parts.is_empty()).then(|| parts.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let file =
            |(path, text): &(&str, &str)| File { path: (*path).into(), text: (*text).into() };
        Tree { files: files.iter().map(file).collect() }
    }

    #[test]
    fn a_listed_word_is_found_in_text_and_not_in_code() {
        for (line, count) in [
            ("The room of a run.", 1),
            ("The `room` of a run, see docs/rooms.md and room_id", 0),
            ("ROOMS, doors.", 2),
            ("a lower-case letter, letters and digits", 0),
            ("It lives as long as the roommate.", 1),
        ] {
            assert_eq!(words(line).len(), count, "{line}");
        }
        for (all, _) in WORDS {
            for word in *all {
                assert_eq!(words(&format!("x {word}, y")).len(), 1, "{word}");
            }
        }
    }

    #[test]
    fn documents_comments_texts_and_test_names_are_checked() {
        let page = "A room.\n```sh\nroom\n```\n    room\n[a](room.md) <a id=\"room\"></a>\n";
        let source = "/// A room.\nfn room() {\n    say(\"the room\", \"room\"); // a door\n}\n\
            #[cfg(test)]\nmod tests {\n    #[test]\n    fn a_room_is_made() {\n        run(\"in a room\");\n    }\n}\n";
        let files = tree(&[("docs/a.md", page), ("crates/a/src/a.rs", source), ("other.md", page)]);
        let problems = found(&files, &["docs/", "crates/a/src/"], &[]);
        let lines: Vec<&str> = problems.iter().filter_map(|line| line.split(": ").next()).collect();
        let expected = ["docs/a.md:1", "a.rs:1", "a.rs:3", "a.rs:3", "a.rs:8"];
        assert_eq!(lines.len(), expected.len(), "{problems:?}");
        assert!(lines.iter().zip(expected).all(|(line, end)| line.ends_with(end)), "{lines:?}");
    }

    #[test]
    fn an_exception_is_not_checked_and_must_exist() {
        let files = tree(&[("docs/a.md", "A room.")]);
        assert!(found(&files, &["docs/"], &[("docs/a.md", "old")]).is_empty());
        let problems = found(&files, &["docs/", "crates/b/"], &[("docs/b.md", "old")]);
        assert_eq!(problems.len(), 3, "{problems:?}");
    }
}
