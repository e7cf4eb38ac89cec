//! The documentation holds together: every link leads to a file and a heading that exist, the README
//! is short, and its picture shows the recorded journey.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::fixture;

/// The text outside of code blocks.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut lines = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push_str(line);
            lines.push('\n');
        }
    }
    lines
}

/// The texts between `open` and `close`.
fn between<'a>(text: &'a str, open: &str, close: char) -> Vec<&'a str> {
    text.split(open).skip(1).filter_map(|rest| rest.split(close).next()).collect()
}

/// The anchors of a page: those of its headings, as code hosts derive them, and those it declares.
fn anchors(text: &str) -> BTreeSet<String> {
    let prose = prose(text);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let derived = headings.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    });
    derived.chain(between(&prose, "<a id=\"", '"').into_iter().map(str::to_owned)).collect()
}

/// A path without `.` and `..`.
fn resolved(path: &Path) -> PathBuf {
    let mut whole = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(whole.pop()),
            Component::CurDir => {}
            part => whole.push(part),
        }
    }
    whole
}

/// The links of one page that lead nowhere.
fn broken(root: &Path, page: &Path) -> Vec<String> {
    let text = fixture::read(page);
    let prose = prose(&text);
    let links = between(&prose, "](", ')');
    let leads_nowhere = |link: &&str| {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = match path {
            "" => page.to_path_buf(),
            path => resolved(&page.parent().expect("a page lies in a directory").join(path)),
        };
        let is_page = target.extension().is_some_and(|kind| kind == "md");
        !target.exists()
            || is_page && !anchor.is_empty() && !anchors(&fixture::read(&target)).contains(anchor)
    };
    let inside = links.into_iter().filter(|link| !link.contains(':') && !link.contains(' '));
    let name = page.strip_prefix(root).expect("below the root").display().to_string();
    inside.filter(leads_nowhere).map(|link| format!("{name}: {link}")).collect()
}

/// All pages of the directory and of those below it.
fn pages(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            pages(&path, into);
        } else if path.extension().is_some_and(|kind| kind == "md") {
            into.push(path);
        }
    }
}

#[test]
fn every_link_of_the_documentation_leads_somewhere() {
    let root = fixture::root();
    let tops = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];
    let mut all: Vec<PathBuf> = tops.iter().map(|name| root.join(name)).collect();
    pages(&root.join("docs"), &mut all);
    assert!(all.len() > 40, "only {} pages", all.len());
    let broken: Vec<String> = all.iter().flat_map(|page| broken(&root, page)).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn a_link_to_a_missing_page_or_heading_is_found() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("a.md");
    fixture::write(&dir.path().join("below/b.md"), "# The `one` heading\n\n<a id=\"old\"></a>\n");
    fixture::write(
        &page,
        "[1](below/b.md#the-one-heading) [2](below/b.md#old) [3](#own) [4](https://x.example/y)\n\
         # Own\n[5](below/c.md) [6](below/b.md#two) [7](#other)\n```\n[8](gone.md)\n```\n",
    );
    assert_eq!(
        broken(dir.path(), &page),
        ["a.md: below/c.md", "a.md: below/b.md#two", "a.md: #other"]
    );
}

#[test]
fn the_readme_and_the_guides_are_short() {
    let root = fixture::root();
    let mut guides = Vec::new();
    pages(&root.join("docs/guides"), &mut guides);
    assert!(guides.len() >= 5, "{guides:?}");
    let bounds = guides.into_iter().map(|guide| (guide, 100));
    for (page, bound) in bounds.chain([(root.join("README.md"), 80)]) {
        let lines = fixture::read(&page).lines().count();
        assert!(lines <= bound, "{} has {lines} lines; at most {bound}", page.display());
    }
}

#[test]
fn the_picture_of_the_readme_shows_the_recorded_journey() {
    let root = fixture::root();
    let drawn = Command::new("sh").arg(root.join("docs/picture.sh")).output().expect("sh runs");
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    assert!(
        drawn.stdout == fixture::read(&root.join("docs/picture.svg")).into_bytes(),
        "the journey has changed: sh docs/picture.sh > docs/picture.svg"
    );
}
