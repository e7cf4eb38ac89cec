//! Protocol output of agents' programs in words: `logs`, `run` and `send --wait` of Claude Code,
//! Codex and programs that print lines of `{"overmind": {…}}`.

use overmind_api::Run;
use overmind_core::process::prompt::Provider;
use overmind_core::process::provider::{self, Asked, Fact, Spent};
use overmind_node::config::env;
use serde_json::Value;

use crate::context::Context;
use crate::exit::Failure;
use crate::look;
use crate::output::table::Tone;
use crate::output::{clean, paint, when};
use crate::remote::Remote;
use crate::story::Story;

/// Characters of a sent text that are shown.
const SENT: usize = 100;
/// The note for Claude Code without a key and a login.
const NO_LOGIN: &str = "failed: Claude Code has no key and no login. `overmind vault set anthropic_api_key` gives \
                        its runs a key; or log in once with `claude` on this machine. Then start the run again.";

/// Tells a program's lines one by one, in their order.
#[derive(Debug)]
pub struct Spoken {
    provider: Provider,
    story: Story,
    colour: bool,
    conversation: String,
    /// The exit code in a line of Codex, beside the command's output.
    exit: Option<i64>,
    /// The directory in which the run works, its worktree first: paths are shown relative to it.
    roots: Vec<String>,
    /// Its last attempt failed: the next is a restart, and not the answer to what was sent.
    failed: bool,
    /// What a person sent was shown, and starts the next attempt.
    sent: bool,
    /// The reader of these lines is `admin`.
    is_admin: bool,
    /// The tool calls for which it asked a person.
    asked: Asked,
    /// The last text of the program, which many programs repeat as their answer.
    said: String,
    /// It reports the end of a turn: behind a terminal it draws a screen instead of lines.
    pub tells_turns: bool,
}

/// A line in words.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// With line breaks; empty if it contains nothing for people.
    pub text: String,
    /// The turn is over, or the program asks: the previous text is its answer.
    pub over: bool,
}

impl Spoken {
    pub fn new(provider: Provider, colour: bool, verbose: bool) -> Self {
        let story = Story::new(colour, verbose);
        let (conversation, said) = (String::new(), String::new());
        let (exit, roots, failed, sent) = (None, Vec::new(), false, false);
        let (asked, tells_turns, is_admin) = (Asked::default(), true, false);
        Self {
            provider,
            story,
            colour,
            conversation,
            exit,
            roots,
            failed,
            sent,
            is_admin,
            asked,
            said,
            tells_turns,
        }
    }

    /// For a run whose program speaks such a protocol; `None` for all others.
    ///
    /// # Errors
    ///
    /// When the run's first event cannot be read.
    pub async fn of(cx: &Context, remote: &Remote, run: &Run) -> Result<Option<Self>, Failure> {
        let Some(mut command) = look::command_of(remote, run).await? else { return Ok(None) };
        let provider = serde_json::from_value(command["provider"].take()).unwrap_or_default();
        if provider == Provider::Raw {
            return Ok(None);
        }
        let colour = cx.out.colour && cx.out.for_people();
        let mut spoken = Self::new(provider, colour, cx.out.verbose || cx.out.wide());
        spoken.tells_turns = command["terminal"] != true;
        spoken.is_admin = remote.is_here() && cx.env.text(env::TOKEN).is_none();
        let room = run.room.as_ref();
        spoken.root(room.and_then(|room| room.worktree.as_deref()));
        spoken.root(Some(run.workspace.as_str()));
        Ok(Some(spoken))
    }

    /// A new one for another part of the log, with nothing shown yet.
    #[must_use]
    pub fn anew(&self) -> Self {
        let new = Self::new(self.provider, self.colour, false);
        let (roots, tells_turns) = (self.roots.clone(), self.tells_turns);
        Self { roots, tells_turns, is_admin: self.is_admin, ..new }
    }

    /// One more place that paths are shown from.
    fn root(&mut self, path: Option<&str>) {
        let path = path.unwrap_or_default().trim_end_matches('/');
        if !path.is_empty() && !self.roots.iter().any(|root| root == path) {
            self.roots.push(path.to_owned());
        }
    }

    /// The text of a shim's note in the log for people: the end of a turn is visible in its answer,
    /// and a sent message starts the program again without being shown as a restart. `None`:
    /// nothing.
    pub fn note(&mut self, kind: Option<&str>, text: &str) -> Option<String> {
        match kind {
            Some("ended") => {
                self.failed = !text.contains("exit code 0");
                self.failed.then(|| text.to_owned())
            }
            Some("human") => {
                // A person who attaches prints nothing.
                self.sent |= text.contains(": ");
                Some(self.sent(text))
            }
            Some("restart") => {
                let sent = std::mem::take(&mut self.sent);
                match (std::mem::take(&mut self.failed), sent) {
                    (true, _) => Some(text.to_owned()),
                    // Its own line gives the reason.
                    (false, true) => None,
                    (false, false) => Some("--- goes on ---".to_owned()),
                }
            }
            Some(_) | None => Some(text.to_owned()),
        }
    }

    /// A message of a person, in one line: the sender, and the beginning of the text.
    fn sent(&self, text: &str) -> String {
        let text = text.strip_prefix("[human] ").unwrap_or(text);
        let text = match text.strip_prefix("admin: ").filter(|_| self.is_admin) {
            Some(own) => format!("you: {own}"),
            None => text.to_owned(),
        };
        format!("--- {}", clean::cut(&clean::line(&text), SENT))
    }

    /// One line of its output. A line that is not of its protocol is printed unchanged.
    pub fn tell(&mut self, line: &str) -> Words {
        let mut facts = Vec::new();
        if self.provider == Provider::Claude && line.contains("\"cwd\"") {
            let first: Value = serde_json::from_str(line).unwrap_or_default();
            self.root(first["cwd"].as_str().filter(|_| first["type"] == "system"));
        }
        provider::line(self.provider, line.as_bytes(), 0, &mut self.asked, &mut facts);
        if facts.is_empty() {
            let text = if self.is_ours(line) { String::new() } else { format!("{line}\n") };
            return Words { text, over: false };
        }
        self.exit = (self.provider == Provider::Codex)
            .then(|| serde_json::from_str::<Value>(line).ok()?.pointer("/item/exit_code")?.as_i64())
            .flatten();
        let mut words = Words::default();
        let mut spent = Vec::new();
        for fact in &facts {
            if let Fact::Spent(one) = fact {
                spent.extend(costs(one));
                continue;
            }
            words.over |= matches!(fact, Fact::Result { .. } | Fact::Asks(_));
            self.fact(fact, &mut words.text);
        }
        if !spent.is_empty() {
            words.text.push_str(&format!("{}\n", self.dim(&spent.join(", "))));
        }
        words
    }

    /// Text with the time of day before it, as for a built-in agent.
    pub fn timed(&self, words: &str, at: Option<&str>) -> String {
        let Some(clock) = at.map(crate::story::clock) else { return words.to_owned() };
        let lines = words.lines().enumerate().map(|(n, line)| match n {
            0 => format!("{}  {line}\n", self.dim(&clock)),
            _ => format!("          {line}\n"),
        });
        lines.collect()
    }

    /// Whether a line has only come in part so far.
    pub fn is_half(line: &str) -> bool {
        line.trim_start().starts_with('{') && serde_json::from_str::<Value>(line).is_err()
    }

    /// Whether a line is of the protocol, though it says nothing.
    fn is_ours(&self, line: &str) -> bool {
        let Ok(Value::Object(event)) = serde_json::from_str(line.trim()) else { return false };
        match self.provider {
            Provider::Raw => false,
            Provider::Claude | Provider::Codex => event.get("type").is_some_and(Value::is_string),
            Provider::Lines => event.get("overmind").is_some_and(Value::is_object),
        }
    }

    fn fact(&mut self, fact: &Fact, into: &mut String) {
        let line = match fact {
            Fact::Conversation { id, model } => {
                if *id == self.conversation {
                    return;
                }
                self.conversation.clone_from(id);
                let model = model.as_ref().map(|model| format!(", {}", clean::line(model)));
                self.dim(&format!("conversation {id}{}", model.unwrap_or_default()))
            }
            Fact::Said { text, within } => {
                let text = clean::block(text).into_owned();
                match within {
                    Some(_) => text.lines().map(|line| format!("  {line}\n")).collect(),
                    None => {
                        self.said.clone_from(&text);
                        text
                    }
                }
            }
            Fact::ToolUse { name, args, id: _ } => self.story.used(name, args, &self.roots),
            Fact::ToolResult { ok: true, output, .. } => self.story.excerpt(output),
            Fact::ToolResult { ok: false, output, .. } => {
                // A command with a non-zero exit code has run as requested.
                let (code, rest) = match (self.exit, exit_code(output)) {
                    (Some(code), _) => (Some(code), output.as_str()),
                    (None, Some((code, rest))) => (Some(code), rest),
                    (None, None) => (None, output.as_str()),
                };
                let head = match code {
                    Some(code) => paint(&format!("exit {code}"), Tone::Waits, self.colour),
                    None => paint("✗ failed", Tone::Bad, self.colour),
                };
                format!("{head}\n{}", self.story.excerpt(rest))
            }
            Fact::Asks(ask) => {
                let mut text = format!("asks: {}", clean::block(&ask.question.text));
                // A text of several lines lists its options itself.
                if !ask.question.options.is_empty() && !ask.question.text.contains('\n') {
                    let options = ask.question.options.join(", ");
                    text.push_str(&format!(" ({})", clean::line(&options)));
                }
                paint(&text, Tone::Waits, self.colour)
            }
            Fact::Trouble { message } => {
                paint(&format!("error: {}", clean::line(message)), Tone::Bad, self.colour)
            }
            // It refers to a command of its own screen, which is not shown here.
            Fact::Result { text, is_error: true }
                if self.provider == Provider::Claude && text.contains("run /login") =>
            {
                paint(NO_LOGIN, Tone::Bad, self.colour)
            }
            Fact::Result { text, is_error: true } => {
                paint(&format!("failed: {}", clean::block(text)), Tone::Bad, self.colour)
            }
            Fact::Result { text, is_error: false } => {
                let text = clean::block(text);
                if text.trim() == self.said.trim() { String::new() } else { text.into_owned() }
            }
            Fact::AskGone { .. } | Fact::Answer { .. } | Fact::Spent(_) => String::new(),
        };
        let line = line.trim_end();
        if !line.is_empty() {
            into.push_str(line);
            into.push('\n');
        }
    }

    fn dim(&self, text: &str) -> String {
        paint(text, Tone::Dim, self.colour)
    }
}

/// The exit code at the beginning of a command's output, and the rest of the output.
fn exit_code(output: &str) -> Option<(i64, &str)> {
    let rest = output.strip_prefix("Exit code ").or_else(|| output.strip_prefix("exit code "))?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(rest.len());
    let (code, rest) = rest.split_at(end);
    Some((code.parse().ok()?, rest.trim_start_matches([':', '\n'])))
}

/// The costs, in words.
fn costs(spent: &Spent) -> Vec<String> {
    let mut told = Vec::new();
    if let Some(usage) = &spent.usage {
        let cached = match usage.cached_input_tokens {
            0 => String::new(),
            cached => format!(" ({} cached)", when::thousands(cached)),
        };
        told.push(format!(
            "{} tokens in{cached}, {} out",
            when::thousands(usage.input_tokens),
            when::thousands(usage.output_tokens)
        ));
    }
    told.extend(spent.cost_microusd.map(|cost| format!("{} so far", when::dollars(cost))));
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(spoken: &mut Spoken, lines: &[&str]) -> String {
        lines.iter().map(|line| spoken.tell(line).text).collect()
    }

    #[test]
    fn output_of_claude_code_is_shown_in_words_with_tools_and_costs() {
        let mut spoken = Spoken::new(Provider::Claude, false, false);
        let lines = [
            r#"{"type":"system","subtype":"init","session_id":"c-1","model":"sonnet"}"#,
            "a warning of the program itself",
            r#"{"type":"assistant","message":{"content":[{"type":"text","text":"I look first."},
               {"type":"tool_use","id":"t1","name":"Bash","input":{"command":"make test"}}]}}"#,
            r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1",
               "is_error":true,"content":"1 failed"}]}}"#,
            r#"{"type":"rate_limit_event"}"#,
            r#"{"type":"assistant","message":{"content":[{"type":"text","text":"Mended."}]}}"#,
        ];
        assert_eq!(
            told(&mut spoken, &lines),
            "conversation c-1, sonnet\na warning of the program itself\nI look first.\n\
             ▸ Bash make test\n✗ failed\n│ 1 failed\nMended.\n"
        );
        let edit = r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t2","name":"Edit","input":
            {"replace_all":false,"file_path":"/w/tree/src/price.py","old_string":"41","new_string":"42"}}]}}"#;
        let begins = r#"{"type":"system","subtype":"init","session_id":"c-1","cwd":"/w/tree"}"#;
        assert_eq!(told(&mut spoken, &[begins, edit]), "▸ Edit src/price.py\n  - 41\n  + 42\n");
        let login =
            r#"{"type":"result","is_error":true,"result":"Not logged in · Please run /login"}"#;
        assert!(told(&mut spoken, &[login]).contains("`overmind vault set anthropic_api_key`"));
        let exit = r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1",
            "is_error":true,"content":"Exit code 1\nfalse"}]}}"#;
        assert_eq!(told(&mut spoken, &[exit]), "exit 1\n│ false\n");
        let at = Some("2026-11-21T20:19:55.182849+00:00");
        assert_eq!(spoken.timed("a\nb\n", at), "20:19:55  a\n          b\n");
        let end = r#"{"type":"result","result":"Mended.","total_cost_usd":0.0123,"num_turns":2,
            "usage":{"input_tokens":1000,"cache_read_input_tokens":500,"output_tokens":20}}"#;
        let end = spoken.tell(end);
        assert_eq!(end.text, "1,500 tokens in (500 cached), 20 out, $0.0123 so far\n");
        assert!(end.over, "the answer is there");
        // The next turn begins as the first did: that is no news.
        assert_eq!(told(&mut spoken, &lines[..1]), "");
        let failed = r#"{"type":"result","is_error":true,"result":"no credit"}"#;
        assert_eq!(spoken.tell(failed), Words { text: "failed: no credit\n".into(), over: true });
    }

    #[test]
    fn a_sent_message_is_shown_instead_of_the_restart_that_it_causes() {
        let mut spoken = Spoken::new(Provider::Claude, false, false);
        let again = "--- restart #1 at 2026-11-28T05:36:13.893864+00:00 ---";
        let mut note = |kind: &str, text: &str| spoken.note(Some(kind), text);
        let words = |text: &str| Some(text.to_owned());
        assert_eq!(note("restart", again), words("--- goes on ---"));
        assert_eq!(note("ended", "--- ended: exit code 0 ---"), None);
        assert_eq!(
            note("human", "[human] bob: and add\na \u{1b}[2Jtest"),
            words("--- bob: and add⏎a \\u{1b}[2Jtest")
        );
        assert_eq!(note("restart", again), None, "the line before says why");
        assert_eq!(note("restart", again), words("--- goes on ---"));
        let killed = "--- ended: signal 9 ---";
        assert_eq!(note("ended", killed), words(killed));
        assert_eq!(note("restart", again), words(again));
        assert_eq!(note("note", "the sandbox: x"), words("the sandbox: x"));
        let long = note("human", &format!("[human] admin: {}", "x".repeat(500))).unwrap();
        assert!(long.starts_with("--- admin: xx") && long.chars().count() <= 4 + SENT, "{long}");
        spoken.is_admin = true;
        assert_eq!(spoken.note(Some("human"), "[human] admin: more"), words("--- you: more"));
    }

    #[test]
    fn protocol_lines_are_shown_in_words_and_other_text_unchanged() {
        let mut spoken = Spoken::new(Provider::Lines, false, false);
        let lines = [
            r#"{"overmind":{"said":"half way"}}"#,
            r#"{"overmind":{"asks":{"text":"go on?","options":["yes","no"]}}}"#,
            r#"{"overmind":{"error":"lost it"}}"#,
            r#"{"other":"object"}"#,
            r#"{"overmind":{"unknown":1}}"#,
            r#"{"overmind":{"result":"42"}}"#,
        ];
        assert_eq!(
            told(&mut spoken, &lines),
            "half way\nasks: go on? (yes, no)\nerror: lost it\n{\"other\":\"object\"}\n42\n"
        );
    }
}
