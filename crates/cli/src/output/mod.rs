//! The one place that writes output for people and scripts.
//!
//! Results go to standard output and nothing else does; remarks, progress and errors go to
//! standard error. A reader that went away (`overmind ps | head -1`) ends the program quietly.
//!
//! All output here was filtered by [`clean`], so that no command needs to do it: text of agents and
//! programs cannot control a terminal.

pub mod jsonpath;
pub mod table;
pub mod when;
pub mod yaml;

use std::io::{self, IsTerminal as _, Write as _};

use overmind_node::config::env::{self, Env};
pub use overmind_view::clean;
use serde_json::Value;

use crate::args::{Format, Global, When};
use jsonpath::Template;
use table::{Table, Tone};

/// The format and the destination of output; created once from the flags.
#[derive(Clone, Debug)]
pub struct Output {
    pub format: Format,
    /// The treatment of values instead of JSON.
    pub template: Option<Template>,
    pub colour: bool,
    /// Colour on standard error.
    pub err_colour: bool,
    pub quiet: bool,
    pub verbose: bool,
    /// A person watches standard error: progress may be drawn there.
    pub watched: bool,
}

impl Output {
    pub fn new(global: &Global, env: &Env) -> Self {
        let plain = env.text(env::NO_COLOR).is_some() || env.text(env::TERM) == Some("dumb");
        let forced = env.text(env::CLICOLOR_FORCE).is_some_and(|value| value != "0");
        let colour = |terminal: bool| match global.color {
            When::Always => true,
            When::Never => false,
            When::Auto => (terminal || forced) && !plain,
        };
        Self {
            format: global.output.format,
            template: global.output.template.clone(),
            colour: colour(io::stdout().is_terminal()),
            err_colour: colour(io::stderr().is_terminal()),
            quiet: global.quiet,
            verbose: global.verbose,
            watched: io::stderr().is_terminal() && !global.quiet,
        }
    }

    /// Columns are wanted, short or long.
    pub fn for_people(&self) -> bool {
        match self.format {
            Format::Table | Format::Wide => true,
            Format::Json | Format::Yaml | Format::Name => false,
        }
    }

    pub fn wide(&self) -> bool {
        self.format == Format::Wide
    }

    /// Writes text to standard output.
    ///
    /// # Errors
    ///
    /// The result of a write, which may be a closed pipe.
    pub fn text(&self, text: &str) -> io::Result<()> {
        self.bytes(clean::passing(text, self.colour).as_bytes())
    }

    /// Writes bytes as they are to standard output: what is no text for people.
    ///
    /// # Errors
    ///
    /// See [`Output::text`].
    pub fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }

    /// Writes one line to standard output.
    ///
    /// # Errors
    ///
    /// See [`Output::text`].
    pub fn line(&self, text: &str) -> io::Result<()> {
        self.bytes(format!("{}\n", clean::passing(text, self.colour)).as_bytes())
    }

    /// Writes a value as JSON or YAML.
    ///
    /// # Errors
    ///
    /// See [`Output::text`].
    pub fn value(&self, value: &Value) -> io::Result<()> {
        if let Some(template) = &self.template {
            return self.text(&template.render(value));
        }
        match self.format {
            Format::Yaml => self.text(&yaml::to_string(value)),
            Format::Json | Format::Table | Format::Wide | Format::Name => {
                self.line(&clean::json(&format!("{value:#}")))
            }
        }
    }

    /// Writes one value of an endless row of them: a line of JSON, or a YAML document.
    ///
    /// # Errors
    ///
    /// See [`Output::text`].
    pub fn streamed(&self, value: &Value) -> io::Result<()> {
        if let Some(template) = &self.template {
            return self.text(&template.render(value));
        }
        match self.format {
            Format::Yaml => self.text(&format!("---\n{}", yaml::to_string(value))),
            Format::Json | Format::Table | Format::Wide | Format::Name => {
                self.line(&clean::json(&value.to_string()))
            }
        }
    }

    /// Writes a table to standard output.
    ///
    /// # Errors
    ///
    /// See [`Output::text`].
    pub fn table(&self, table: &Table) -> io::Result<()> {
        self.text(&table.render(self.colour))
    }

    /// Says something to the person at the terminal, unless they asked for quiet.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.err(text);
        }
    }

    /// Prints the subject of a question, also with `--quiet`, because nobody can answer without it.
    pub fn question(&self, text: &str) {
        self.err(text);
    }

    /// Says something that only `-v` asks for.
    pub fn detail(&self, text: &str) {
        if self.verbose {
            self.err(&paint(text, Tone::Dim, self.err_colour));
        }
    }

    /// Prints an error and its remedy.
    pub fn error(&self, message: &str, hint: Option<&str>) {
        let head = paint("error:", Tone::Bad, self.err_colour);
        self.err(&format!("{head} {}", clean::block(message)));
        if let Some(hint) = hint {
            let head = paint("hint:", Tone::Busy, self.err_colour);
            self.err(&format!("{head} {}", clean::block(hint)));
        }
    }

    /// A remark that something is not as it should be, though it works.
    pub fn warn(&self, text: &str) {
        let head = paint("warning:", Tone::Waits, self.err_colour);
        self.note(&format!("{head} {}", clean::block(text)));
    }

    fn err(&self, text: &str) {
        let text = clean::passing(text, self.err_colour);
        // If standard error is closed, nobody can be informed.
        let _ = writeln!(io::stderr().lock(), "{text}");
    }
}

/// The text in a colour, if colours are wanted.
pub fn paint(text: &str, tone: Tone, colour: bool) -> String {
    let code = match tone {
        Tone::Plain => return text.to_owned(),
        Tone::Good => "32",
        Tone::Bad => "31",
        Tone::Waits => "33",
        Tone::Busy => "36",
        Tone::Dim => "90",
    };
    if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// The text in bold, if colours are wanted.
pub fn bold(text: &str, colour: bool) -> String {
    if colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}
