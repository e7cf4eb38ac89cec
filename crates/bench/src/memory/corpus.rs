//! A real corpus with labels: the manual pages of this machine.
//!
//! Two kinds of questions are asked of it. *Known items*: a page's one-line description, without
//! the words of the page's own name, asks for that page; the section with that line is not in
//! the indexed text. *Questions*: written by hand beside this file, each with the pages that
//! answer it. No model had a part in either. Half of all, chosen by hash, is there for tuning;
//! figures are of the other half.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const QUESTIONS: &str = include_str!("questions.txt");
/// One program with thousands of pages would be most of the corpus: so many of a family at most.
const FAMILY: usize = 200;
/// Bytes of a page that are indexed, after its description.
const TEXT: usize = 2_000;
/// Known items that are asked for.
const KNOWN_ITEMS: usize = 300;

#[derive(Debug)]
pub(crate) struct Corpus {
    /// Name with section, and indexed text.
    pub(crate) pages: Vec<(String, String)>,
    pub(crate) questions: Vec<Question>,
}

#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) text: String,
    /// Pages that answer it, all of them in the corpus.
    pub(crate) wanted: HashSet<String>,
    pub(crate) known_item: bool,
    /// For choosing weights; figures are of the others.
    pub(crate) tuning: bool,
}

impl Corpus {
    /// Reads the pages below `root`, where sections are directories; a tenth of them when `quick`.
    ///
    /// # Errors
    ///
    /// A text when there are too few pages to say anything.
    pub(crate) fn read(root: &Path, quick: bool) -> Result<Self, String> {
        let questions: Vec<(HashSet<String>, &str)> = QUESTIONS
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once(" | "))
            .map(|(pages, text)| (pages.split(' ').map(str::to_owned).collect(), text))
            .collect();
        let asked: HashSet<&String> = questions.iter().flat_map(|(pages, _)| pages).collect();
        let mut families: BTreeMap<String, usize> = BTreeMap::new();
        let (mut pages, mut known) = (Vec::new(), Vec::new());
        for (name, path) in files(root) {
            let asked = asked.contains(&name);
            let family = name.split(['-', '_', '.']).next().unwrap_or_default().to_owned();
            let count = families.entry(family).or_default();
            *count += 1;
            let skip = *count > FAMILY || (quick && !hash(&name).is_multiple_of(10));
            if skip && !asked {
                continue;
            }
            let Some((description, text)) = unpack(&path).as_deref().and_then(parse) else {
                continue;
            };
            if let Some(text) = without_name(&name, &description) {
                known.push((name.clone(), text));
            }
            pages.push((name, text));
        }
        if pages.len() < 200 {
            let found = pages.len();
            return Err(format!(
                "there are {found} readable pages in {} and 200 are needed; install what Debian \
                 calls manpages and manpages-dev, or name another directory with --manual",
                root.display()
            ));
        }
        let there: HashSet<&String> = pages.iter().map(|(name, _)| name).collect();
        known.sort_by_key(|(name, _)| hash(name));
        let known = known.into_iter().take(KNOWN_ITEMS).map(|(name, text)| Question {
            tuning: hash(&text).is_multiple_of(2),
            text,
            wanted: HashSet::from([name]),
            known_item: true,
        });
        let by_hand = questions.into_iter().map(|(wanted, text)| Question {
            tuning: hash(text).is_multiple_of(2),
            text: text.to_owned(),
            wanted: wanted.into_iter().filter(|page| there.contains(page)).collect(),
            known_item: false,
        });
        let questions =
            known.chain(by_hand).filter(|question| !question.wanted.is_empty()).collect();
        Ok(Self { pages, questions })
    }
}

/// Pages of sections 1 to 8 that are files of their own, in the order of their names.
fn files(root: &Path) -> BTreeMap<String, PathBuf> {
    let sections = (1..=8).filter_map(|n| std::fs::read_dir(root.join(format!("man{n}"))).ok());
    sections
        .flatten()
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .map(|entry| entry.path())
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            Some((name.strip_suffix(".gz").unwrap_or(name).to_owned(), path.clone()))
        })
        .collect()
}

/// The page's source. Every system with compressed pages has gzip.
fn unpack(path: &Path) -> Option<String> {
    let bytes = if path.extension().is_some_and(|end| end == "gz") {
        let gzip = Command::new("gzip").arg("-dc").arg(path).stdin(Stdio::null()).output().ok()?;
        gzip.stdout
    } else {
        std::fs::read(path).ok()?
    };
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The one-line description, and the text after the section that holds it.
fn parse(source: &str) -> Option<(String, String)> {
    let (mut section, mut name, mut text) = (String::new(), String::new(), String::new());
    for line in source.lines() {
        if line.starts_with(".\\\"") || line.starts_with("'\\\"") {
            continue;
        }
        let words = plain(line);
        if let Some(title) = line.strip_prefix(".SH").or_else(|| line.strip_prefix(".Sh")) {
            section = title.trim().trim_matches('"').to_uppercase();
        } else if section == "NAME" {
            name.push_str(&words);
            name.push(' ');
        } else if !section.is_empty() && text.len() < TEXT {
            text.push_str(&words);
            text.push('\n');
        }
    }
    let (_, description) = name.split_once(" - ").or_else(|| name.split_once(" \u{2013} "))?;
    let description = description.trim().to_owned();
    text.truncate(text.floor_char_boundary(TEXT));
    // Text that repeats the description literally would make the test too easy.
    let text = text.replace(&description, " ");
    (!description.is_empty() && text.len() > 200).then_some((description, text))
}

/// A line without its markup.
fn plain(line: &str) -> String {
    let mut line = line;
    if line.starts_with(['.', '\'']) {
        // `.B text`, `.Nd text`: the request is removed, its text is kept.
        let request = line.split(' ').next().unwrap_or_default();
        if request == ".Nd" {
            return format!(" - {}", &line[request.len()..]);
        }
        line = &line[request.len()..];
    }
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(if c == '"' { ' ' } else { c });
            continue;
        }
        match chars.next() {
            Some('f') => match chars.next() {
                Some('(') => drop(chars.nth(1)),
                Some('[') => drop(chars.find(|c| *c == ']')),
                Some(_) | None => {}
            },
            Some('-') => out.push('-'),
            Some('(') => match (chars.next(), chars.next()) {
                (Some('a'), Some('q')) => out.push('\''),
                (Some('e'), Some('n' | 'm')) => out.push('-'),
                _ => out.push(' '),
            },
            Some('e') => out.push('\\'),
            Some('s') => drop(chars.next()),
            Some('*') => out.push(' '),
            Some('&' | '/' | ',' | '|' | '^' | ':') | None => {}
            Some(other) => out.push(other),
        }
    }
    out
}

/// A description without the words of the page's name; `None` when little is left.
fn without_name(page: &str, description: &str) -> Option<String> {
    let of_name: HashSet<String> = words(page).collect();
    let left: Vec<String> = words(description).filter(|word| !of_name.contains(word)).collect();
    (left.len() >= 3).then(|| left.join(" "))
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

/// The same on every machine and in every run.
fn hash(text: &str) -> u64 {
    let bytes = blake3::hash(text.as_bytes());
    let (first, _) = bytes.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
    u64::from_le_bytes(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_text_has_no_markup_and_no_description() {
        let body = "copies each file. ".repeat(20);
        let source = format!(
            ".\\\" a comment\n.TH CP 1\n.SH NAME\ncp \\- copy files\n.SH DESCRIPTION\n\
             .B Cp\n\\fIsource\\fP and \\(aqcopy files\\(aq\n{body}\n"
        );
        let (description, text) = parse(&source).unwrap();
        assert_eq!(description, "copy files");
        assert!(text.starts_with(" Cp\nsource and ' '\ncopies"), "{text}");
        assert_eq!(parse(".SH NAME\ncp\n"), None);
        let mdoc = format!(".Sh NAME\n.Nm nc\n.Nd arbitrary connections\n.Sh TEXT\n{body}\n");
        assert_eq!(parse(&mdoc).unwrap().0, "arbitrary connections");
    }

    #[test]
    fn the_query_for_a_known_item_does_not_contain_its_name() {
        let asked = without_name("git-log.1", "Show the Git commit logs of git log").unwrap();
        assert_eq!(asked, "show the commit logs of");
        assert_eq!(without_name("cp.1", "copy cp"), None);
    }

    #[test]
    fn the_questions_are_complete_and_unique() {
        let lines: Vec<&str> = QUESTIONS.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(lines.len() >= 60, "{}", lines.len());
        let texts: HashSet<&str> =
            lines.iter().map(|line| line.split_once(" | ").expect("page | question").1).collect();
        assert_eq!(texts.len(), lines.len());
        for line in lines {
            let (pages, _) = line.split_once(" | ").expect("page | question");
            assert!(pages.split(' ').all(|page| page.contains('.')), "{line}");
        }
    }
}
