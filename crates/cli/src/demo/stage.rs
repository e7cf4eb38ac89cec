//! How the demo is shown: headings, remarks, pauses that let a person read.

use std::io;
use std::time::Duration;

use overmind_core::time::Clock as _;
use overmind_node::app::clock::SystemClock;

use crate::output::table::Tone;
use crate::output::{Output, bold, clean, paint};

/// The narrator of the demo.
#[derive(Debug)]
pub(super) struct Stage<'a> {
    out: &'a Output,
    fast: bool,
    scene: u32,
}

impl<'a> Stage<'a> {
    pub(super) fn new(out: &'a Output, fast: bool) -> Self {
        Self { out, fast, scene: 0 }
    }

    /// A heading: what happens now.
    pub(super) async fn scene(&mut self, title: &str) -> io::Result<()> {
        if self.scene > 0 {
            self.pause(500).await;
        }
        self.scene += 1;
        let number = paint(&format!("{}.", self.scene), Tone::Busy, self.out.colour);
        self.out.line(&format!("\n{number} {}", bold(title, self.out.colour)))
    }

    /// A line of the narrator.
    pub(super) fn say(&self, text: &str) -> io::Result<()> {
        self.out.line(&format!("   {text}"))
    }

    /// The same, of little weight.
    pub(super) fn aside(&self, text: &str) -> io::Result<()> {
        self.say(&paint(text, Tone::Dim, self.out.colour))
    }

    pub(super) fn good(&self, text: &str) -> io::Result<()> {
        self.say(&format!("{} {text}", paint("✓", Tone::Good, self.out.colour)))
    }

    pub(super) fn bad(&self, text: &str) -> io::Result<()> {
        self.say(&paint(text, Tone::Bad, self.out.colour))
    }

    /// Something as it is, indented.
    pub(super) fn show(&self, text: &str) -> io::Result<()> {
        for line in text.lines() {
            self.say(&format!("{} {line}", paint("│", Tone::Dim, self.out.colour)))?;
        }
        Ok(())
    }

    /// A unified diff in its colours.
    pub(super) fn diff(&self, diff: &str) -> io::Result<()> {
        for line in diff.lines() {
            let tone = match line.as_bytes().first() {
                Some(b'+') => Tone::Good,
                Some(b'-') => Tone::Bad,
                Some(b'@') => Tone::Busy,
                Some(_) | None => Tone::Dim,
            };
            self.say(&paint(&clean::block(line), tone, self.out.colour))?;
        }
        Ok(())
    }

    /// Time to read, unless it should go fast.
    pub(super) async fn pause(&self, ms: u64) {
        if !self.fast {
            SystemClock.sleep_until(SystemClock.now().after(Duration::from_millis(ms))).await;
        }
    }
}
