//! `logs` of a built-in agent: its story in words, of which `--tail`, `--since` and `--grep` show a part.

use std::collections::VecDeque;

use overmind_api::{RunStatus, Timeline};
use overmind_core::time::Timestamp;
use regex::{Regex, RegexBuilder};
use serde_json::Value;

use crate::args::{Format, LogsArgs};
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::remote::Remote;
use crate::story::Story;
use crate::watch::{self, Place, Until};
use crate::{command, session, show};

/// Maximum size of a compiled pattern in bytes, as for the logs of commands.
const PATTERN_BYTES: usize = 1 << 20;

/// # Errors
///
/// [`Exit::Usage`] for a time or a pattern that cannot be read; otherwise as [`watch::follow`].
pub async fn logs(cx: &Context, remote: &Remote, id: &str, args: &LogsArgs) -> Outcome {
    let until = if args.follow { Until::Rested } else { Until::Now };
    if args.tail.is_none() && args.since.is_none() && args.grep.is_none() {
        watch::follow(cx, remote, id, until).await?;
        return Ok(Exit::Done);
    }
    let mut part = Part::new(cx, args)?;
    let mut place = Place::None;
    watch::each(cx, remote, id, Until::Now, &mut place, &mut |entry| {
        part.take(entry).into_iter().try_for_each(|line| line.show(cx))
    })
    .await?;
    part.rest().into_iter().try_for_each(|line| line.show(cx))?;
    let mut run = remote.run(id).await?;
    if args.follow {
        // An idle run sends no further event.
        let settled = session::ended(run.status) || run.status == RunStatus::Idle;
        let until = if settled { Until::Now } else { Until::Rested };
        watch::each(cx, remote, id, until, &mut place, &mut |entry| {
            part.take(entry).into_iter().try_for_each(|line| line.show(cx))
        })
        .await?;
        run = remote.run(id).await?;
    }
    if cx.out.for_people() {
        watch::epilogue(cx, remote, &run).await;
    }
    Ok(Exit::Done)
}

/// A line for people, or an entry for programs.
#[derive(Debug, PartialEq)]
enum Line {
    Words(String),
    Entry(Value),
}

impl Line {
    fn show(&self, cx: &Context) -> Result<(), Failure> {
        match self {
            Self::Words(words) => cx.out.line(words)?,
            Self::Entry(_) if cx.out.format == Format::Name => {}
            Self::Entry(entry) => cx.out.streamed(entry)?,
        }
        Ok(())
    }
}

/// Chooses lines of a story, entry by entry. Every entry is read, because later ones refer to it.
#[derive(Debug)]
struct Part {
    story: Story,
    /// Without colour, because patterns ignore colours.
    plain: Story,
    people: bool,
    since: Option<Timestamp>,
    grep: Option<Regex>,
    /// How many lines are kept until [`Part::rest`]; `None`: they are shown as they come.
    tail: Option<usize>,
    /// At most `tail` lines.
    kept: VecDeque<Line>,
}

impl Part {
    fn new(cx: &Context, args: &LogsArgs) -> Result<Self, Failure> {
        let verbose = cx.out.verbose || cx.out.wide();
        let since = args.since.as_deref().map(command::since_of).transpose()?;
        let grep = args.grep.as_deref().map(pattern).transpose()?;
        let tail = args.tail.map(|tail| usize::try_from(tail).unwrap_or(usize::MAX));
        let (story, plain) = (Story::new(cx.out.colour, verbose), Story::new(false, verbose));
        let people = cx.out.for_people();
        Ok(Self { story, plain, people, since, grep, tail, kept: VecDeque::new() })
    }

    /// The lines of the next entry that are shown now.
    fn take(&mut self, entry: &Timeline) -> Vec<Line> {
        let (words, plain) = (self.story.tell(entry), self.plain.tell(entry));
        if self.since.is_some_and(|since| entry.ts < since) {
            return Vec::new();
        }
        let fits = |line: &str| self.grep.as_ref().is_none_or(|grep| grep.is_match(line));
        let lines = match self.people {
            true => {
                let lines = words.lines().zip(plain.lines()).filter(|(_, plain)| fits(plain));
                lines.map(|(words, _)| Line::Words(words.to_owned())).collect()
            }
            false if self.grep.is_none() || plain.lines().any(fits) => {
                vec![Line::Entry(show::to_value(entry))]
            }
            false => Vec::new(),
        };
        let Some(tail) = self.tail else { return lines };
        self.kept.extend(lines);
        self.kept.drain(..self.kept.len().saturating_sub(tail));
        Vec::new()
    }

    /// The stored lines. Later ones are shown at once.
    fn rest(&mut self) -> VecDeque<Line> {
        self.tail = None;
        std::mem::take(&mut self.kept)
    }
}

fn pattern(text: &str) -> Result<Regex, Failure> {
    RegexBuilder::new(text).size_limit(PATTERN_BYTES).build().map_err(|err| {
        // The last line names the error, the lines before it show the position.
        let why = err.to_string();
        let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
        Failure::usage(format!("--grep `{text}` is not a regular expression: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn part(people: bool, colour: bool) -> Part {
        Part {
            story: Story::new(colour, false),
            plain: Story::new(false, false),
            people,
            since: None,
            grep: None,
            tail: None,
            kept: VecDeque::new(),
        }
    }

    /// A text of the agent in this second.
    fn said(second: u32, text: &str) -> Timeline {
        let ts = format!("2026-11-21T20:19:{second:02}.000000+00:00");
        serde_json::from_value(json!({"kind": "event", "ts": ts, "data": {
            "id": "x.1", "run_id": null, "type": "agent.said", "payload_json": {"text": text}, "ts": ts,
            "seq": 1, "global": 1, "hash": "",
        }}))
        .unwrap()
    }

    fn words(lines: impl IntoIterator<Item = Line>) -> Vec<String> {
        let words = lines.into_iter().map(|line| match line {
            Line::Words(words) => words,
            Line::Entry(entry) => {
                entry["data"]["payload_json"]["text"].as_str().unwrap().to_owned()
            }
        });
        words.collect()
    }

    #[test]
    fn the_tail_shows_the_last_lines_and_then_new_lines() {
        let mut tail = Part { tail: Some(2), ..part(true, false) };
        for second in 0..5 {
            assert!(tail.take(&said(second, "a\nb")).is_empty());
            assert!(tail.kept.len() <= 2);
        }
        assert_eq!(words(tail.rest()), ["20:19:04  “a", "          b”"]);
        assert_eq!(words(tail.take(&said(5, "more"))), ["20:19:05  “more”"]);
        let mut none = Part { tail: Some(0), ..part(true, false) };
        none.take(&said(1, "a"));
        assert!(none.rest().is_empty());
    }

    #[test]
    fn since_hides_earlier_lines() {
        let since = Some("2026-11-21T20:19:02Z".parse().unwrap());
        let mut part = Part { since, ..part(true, false) };
        let shown: Vec<Line> = (1..4).flat_map(|second| part.take(&said(second, "x"))).collect();
        assert_eq!(words(shown), ["20:19:02  “x”", "20:19:03  “x”"]);
    }

    #[test]
    fn a_pattern_selects_lines_in_text_and_entries_in_json_and_ignores_colours() {
        let entries = [said(1, "red\ngreen"), said(2, "blue")];
        let grep = || Some(pattern("^ +green|^20:19:02").unwrap());
        let mut people = Part { grep: grep(), ..part(true, true) };
        let shown: Vec<Line> = entries.iter().flat_map(|entry| people.take(entry)).collect();
        assert_eq!(words(shown), ["          green”", "\u{1b}[90m20:19:02\u{1b}[0m  “blue”"]);
        let mut programs = Part { grep: Some(pattern("green").unwrap()), ..part(false, false) };
        let shown: Vec<Line> = entries.iter().flat_map(|entry| programs.take(entry)).collect();
        assert_eq!(words(shown), ["red\ngreen"]);
        let wrong = pattern("(").unwrap_err();
        assert_eq!(wrong.exit, Exit::Usage);
        assert!(
            wrong.message.contains("`(` is not a regular expression: unclosed group"),
            "{wrong:?}"
        );
    }
}
