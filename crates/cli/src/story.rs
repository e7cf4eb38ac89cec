//! A run's timeline as a story: what it did, in words, one line after another.
//!
//! `logs`, `run --follow`, `replay` and the demo tell it from the same entries, so a run reads
//! the same while it happens and a year later.

use std::time::Duration;

use overmind_api::{Event, ModelCall, RunStatus, Step, StepType, Timeline, TimelineData, ToolCall};
use serde_json::Value;

use crate::action::{action, action_from};
use crate::live::{self, Live};
use crate::output::table::Tone;
use crate::output::{bold, clean, paint, when};

/// The step of an environment that makes its tree.
const WORKTREE: &str = "the worktree";

/// Tells entries one by one, in their order.
#[derive(Debug)]
pub struct Story {
    colour: bool,
    verbose: bool,
    /// Whether what the run waits for is shown by the prompt at the terminal.
    asked: bool,
    /// The text shown so far for calls that have not ended.
    live: Live,
    /// The model's last words, shown already.
    said: String,
    /// The environment is being removed.
    closing: bool,
}

impl Story {
    pub fn new(colour: bool, verbose: bool) -> Self {
        let (live, said) = (Live::new(verbose), String::new());
        Self { colour, verbose, asked: false, live, said, closing: false }
    }

    /// Omits questions of the run, which are asked at the terminal.
    #[must_use]
    pub fn asked(mut self, asked: bool) -> Self {
        self.asked = asked;
        self
    }

    /// The lines for one entry, with line breaks; empty if it contains nothing new.
    pub fn tell(&mut self, entry: &Timeline) -> String {
        let (text, goes_on) = match &entry.data {
            TimelineData::Event(event) => match self.live(event) {
                Some(said) => said,
                None => {
                    let text = self.event(event);
                    self.other(text)
                }
            },
            TimelineData::Step(step) => {
                let text = self.step(step);
                self.other(text)
            }
            TimelineData::ToolCall(call) => self.tool(call),
            TimelineData::ModelCall(call) => {
                let text = self.model(call);
                self.other(text)
            }
        };
        if text.is_empty() {
            return text;
        }
        let stamp = self.dim(&clock(&entry.ts.to_string()));
        let mut told = String::new();
        for (n, line) in text.lines().enumerate() {
            // Text that continues the previous lines needs no time of its own.
            match n {
                0 if !goes_on => told.push_str(&format!("{stamp}  ")),
                _ => told.push_str("          "),
            }
            told.push_str(line);
            told.push('\n');
        }
        told
    }

    /// Text that does not continue the previous lines.
    fn other(&mut self, text: String) -> (String, bool) {
        if !text.is_empty() {
            self.live.interrupted();
        }
        (text, false)
    }

    /// The live output of a call, and whether it continues the previous lines.
    fn live(&mut self, event: &Event) -> Option<(String, bool)> {
        let payload = event.payload_json.value();
        let said = self.live.event(&event.kind, &payload)?;
        let goes_on = said.header.is_none();
        let mut lines: Vec<String> = said.header.into_iter().collect();
        lines.extend(said.lines.iter().map(|line| self.output(line)));
        Some((lines.join("\n"), goes_on))
    }

    fn event(&mut self, event: &Event) -> String {
        let payload = event.payload_json.value();
        let text = |key: &str| payload.get(key).and_then(Value::as_str);
        match event.kind.as_str() {
            "run.started" => paint("started", Tone::Busy, self.colour),
            "run.recovered" => {
                let start = payload.get("epoch").and_then(Value::as_u64).unwrap_or(2);
                paint(&format!("goes on after a restart (start {start})"), Tone::Busy, self.colour)
            }
            "sandbox.attested" => self.attested(payload.get("attestation"), text("of")),
            "run.forked" => paint("goes on by itself from here", Tone::Busy, self.colour),
            "effect.redone" => {
                let tool = clean::line(text("tool_name").unwrap_or("the last action"));
                let from = match payload.get("restored") {
                    Some(Value::Bool(true)) => ", from the files as they were before it",
                    Some(_) | None => "",
                };
                self.dim(&format!("does {tool} again{from}: the restart hid its result"))
            }
            "run.idle" => paint("your turn", Tone::Good, self.colour),
            "run.restored" => self.dim("it had ended and is brought back"),
            "run.succeeded" => paint("done", Tone::Good, self.colour),
            "run.canceled" => {
                let by = clean::line(text("by").unwrap_or("someone"));
                let why = text("reason").map(|reason| format!(": {}", clean::line(reason)));
                let line = format!("stopped{}", why.unwrap_or_else(|| format!(" by {by}")));
                paint(&line, Tone::Waits, self.colour)
            }
            "run.failed" => {
                let why = error_text(payload.get("error").unwrap_or(&Value::Null));
                paint(&format!("failed: {why}"), Tone::Bad, self.colour)
            }
            "run.step_limit_reached" => paint("step limit reached", Tone::Bad, self.colour),
            "run.time_limit_reached" => paint("time limit reached", Tone::Bad, self.colour),
            "supervisor.stalled" => {
                let what = clean::line(text("what").unwrap_or_default()).into_owned();
                paint(&format!("goes in circles: {what}"), Tone::Waits, self.colour)
            }
            "run.awaiting_input" | "approval.requested" if self.asked => String::new(),
            "run.awaiting_input" => {
                let prompt = clean::block(text("prompt").unwrap_or_default()).into_owned();
                paint(&format!("asks: {prompt}"), Tone::Waits, self.colour)
            }
            "run.input_received" => {
                let message = clean::block(text("message").unwrap_or_default()).into_owned();
                let by = clean::line(text("by").unwrap_or("someone"));
                format!("{by} answers: {message}")
            }
            "run.told" => {
                let message = clean::block(text("message").unwrap_or_default()).into_owned();
                let by = clean::line(text("by").unwrap_or("someone"));
                format!("{by} says: {message}")
            }
            "approval.requested" => {
                let tool = clean::line(text("tool_name").unwrap_or("an action")).into_owned();
                let what = action(&tool, payload.get("args").unwrap_or(&Value::Null));
                let line = format!("waits for approval: {tool} {what}");
                let mut told = paint(&line, Tone::Waits, self.colour);
                if let (Some(why), Some(risk)) = (text("reason"), text("risk")) {
                    let why = format!("\n          {} ({risk} risk)", clean::line(why));
                    told.push_str(&self.dim(&why));
                }
                told
            }
            "approval.answered" => {
                let by = clean::line(text("by").unwrap_or("someone")).into_owned();
                let approved = payload.get("approve").and_then(Value::as_bool).unwrap_or(false);
                let (word, tone) =
                    if approved { ("approved", Tone::Good) } else { ("denied", Tone::Bad) };
                let reason = text("reason").map(|why| format!(": {}", clean::line(why)));
                paint(&format!("{word} by {by}{}", reason.unwrap_or_default()), tone, self.colour)
            }
            "room.progress" => match (text("step"), text("warning")) {
                // The worktree is shown once it exists; removing an environment is routine.
                (Some(step), _) if self.verbose || !(self.closing || step == WORKTREE) => {
                    self.dim(&format!("the environment: {}", clean::line(step)))
                }
                (None, Some(warning)) => paint(&clean::line(warning), Tone::Waits, self.colour),
                (Some(_) | None, _) => String::new(),
            },
            "room.ready" => {
                let made = |key: &str| payload.get("made")?.get(key)?.as_str();
                match (made("worktree"), made("branch")) {
                    (Some(tree), Some(branch)) => self.dim(&format!(
                        "works on branch {} in {}",
                        clean::line(branch),
                        clean::line(made("directory").unwrap_or(tree))
                    )),
                    (Some(tree), None) => {
                        self.dim(&format!("works in a copy, {}", clean::line(tree)))
                    }
                    (None, _) => String::new(),
                }
            }
            "room.closing" => {
                self.closing = true;
                String::new()
            }
            "room.failed" | "room.left" => {
                let why = error_text(payload.get("error").unwrap_or(&Value::Null));
                let what = match event.kind.as_str() {
                    "room.failed" => "the environment could not be created",
                    _ => "the environment could not be removed",
                };
                paint(&format!("{what}: {why}"), Tone::Bad, self.colour)
            }
            "room.leaked" => {
                let count = payload.get("leaks").and_then(Value::as_array).map_or(0, Vec::len);
                let line = format!("{count} things of the environment are left: overmind doctor");
                paint(&line, Tone::Bad, self.colour)
            }
            "room.snapshot" => {
                let label = payload.pointer("/snapshot/label").and_then(Value::as_str);
                let label = clean::line(label.unwrap_or_default()).into_owned();
                let out = payload.pointer("/snapshot/left_out").and_then(Value::as_array);
                let out: Vec<&str> = out.into_iter().flatten().filter_map(Value::as_str).collect();
                match out.is_empty() {
                    false => {
                        let line = format!("snapshot {label}, without {}", out.join(", "));
                        let line = format!("{}: too large", clean::line(&line));
                        paint(&line, Tone::Waits, self.colour)
                    }
                    true if self.verbose => self.dim(&format!("snapshot {label} of the files")),
                    true => String::new(),
                }
            }
            "room.forked" => self.dim(&clean::line(&forked_files(&payload))),
            "room.undone" => {
                let by = clean::line(text("by").unwrap_or("someone")).into_owned();
                let to = payload.pointer("/undone/to").and_then(Value::as_str).unwrap_or_default();
                let line = format!("{by} brought the files back to snapshot {}", clean::line(to));
                paint(&line, Tone::Waits, self.colour)
            }
            "room.done" => {
                let said = payload.pointer("/decision/outcome/said").and_then(Value::as_str);
                paint(&clean::line(said.unwrap_or("done")), Tone::Good, self.colour)
            }
            "canary.tripped" => {
                let tool = clean::line(text("tool_name").unwrap_or("a call")).into_owned();
                let what = clean::line(text("what").unwrap_or_default()).into_owned();
                let line = format!("ALARM: {tool} carried {what}; it was refused");
                paint(&line, Tone::Bad, self.colour)
            }
            "canary.seen" => {
                let who = match text("tool_name") {
                    Some(tool) => format!("{} read", clean::line(tool)),
                    None => "the model said".to_owned(),
                };
                let what = clean::line(text("what").unwrap_or_default()).into_owned();
                paint(&format!("alarm: {who} {what}"), Tone::Waits, self.colour)
            }
            "tool.retry" => {
                let error = payload.get("error").unwrap_or(&Value::Null);
                self.dim(&format!("tries again: {}", error_text(error)))
            }
            "agent.said" => {
                format!("“{}”", clean::block(text("text").unwrap_or_default()))
            }
            "agent.tool_use" => {
                let tool = clean::line(text("tool_name").unwrap_or("a tool")).into_owned();
                self.used(&tool, payload.get("args").unwrap_or(&Value::Null), &[])
            }
            "agent.tool_result" if payload.get("ok") == Some(&Value::Bool(false)) => {
                let output = clean::line(text("output").unwrap_or_default()).into_owned();
                paint(&format!("✗ {}", clean::cut(&output, 160)), Tone::Bad, self.colour)
            }
            "model.output.restarted" => {
                let why = clean::line(text("why").unwrap_or_default()).into_owned();
                self.dim(&format!("the model is asked again: {}", clean::cut(&why, 300)))
            }
            "model.unanswered" => {
                let why = clean::line(text("message").unwrap_or_default()).into_owned();
                let line = format!("its model calls fail: {}", clean::cut(&why, 400));
                paint(&line, Tone::Bad, self.colour)
            }
            "agent.error" => {
                let message = clean::line(text("message").unwrap_or_default()).into_owned();
                self.dim(&format!("trouble: {}", clean::cut(&message, 160)))
            }
            // The text is shown when it is complete, by the model call.
            other if self.verbose && !other.starts_with("model.output.") => {
                let shown = clean::line(event.payload_json.as_str()).into_owned();
                self.dim(&format!("{other} {}", clean::cut(&shown, 160)))
            }
            _ => String::new(),
        }
    }

    /// Only a warning, except in verbose output.
    fn attested(&self, attestation: Option<&Value>, of: Option<&str>) -> String {
        let text = |key: &str| attestation?.get(key)?.as_str();
        let level = clean::line(text("achieved").unwrap_or("none")).into_owned();
        if level == "none" {
            return paint("commands are NOT ISOLATED (sandbox none)", Tone::Bad, self.colour);
        }
        if !self.verbose {
            return String::new();
        }
        let digest = clean::cut(text("digest").unwrap_or_default(), 16).into_owned();
        let of = of.map(|of| format!("{}: ", clean::line(of))).unwrap_or_default();
        self.dim(&format!("{of}sandbox {level} measured and kept its promises ({digest})"))
    }

    fn step(&mut self, step: &Step) -> String {
        let finished = step.finished_at.is_some();
        if step.kind == StepType::Tool && !finished {
            let part = |key| step.input_json.get(key).unwrap_or(&Value::Null);
            let tool = part("tool_name").as_str().unwrap_or_default();
            let line = self.call_line(tool, part("args"));
            self.live.begins(step.id.to_string(), line);
        }
        match step.kind {
            // A tool step is shown with its call; here only the reason why it was not called.
            StepType::Tool => match (&step.error, finished) {
                (Some(error), true) if self.verbose => paint(
                    &format!("step {} ended: {}", step.idx, clean::line(error)),
                    Tone::Bad,
                    self.colour,
                ),
                _ => String::new(),
            },
            // Shown by the model's words, the question, and the call of the tool.
            StepType::Plan | StepType::AskUser | StepType::Verify => String::new(),
            StepType::Eval => {
                let Some(output) = step.output_json.as_ref().filter(|_| finished) else {
                    return String::new();
                };
                match output.get("final_answer").and_then(Value::as_str) {
                    Some(answer) if answer.trim() == self.said => String::new(),
                    Some(answer) => {
                        format!("{} {}", bold("answers:", self.colour), clean::block(answer))
                    }
                    None => String::new(),
                }
            }
        }
    }

    /// An ended call: the rest of its output, and its result; and whether that continues the
    /// previous lines.
    fn tool(&mut self, call: &ToolCall) -> (String, bool) {
        let result = &call.result_json;
        let (output, goes_on) = self.live.ended(&call.id.to_string(), result);
        let what = self.call_line(&call.tool_name, &call.args_json);
        let mut lines = Vec::new();
        if !output.is_empty() && !goes_on {
            lines.push(format!("▸ {what}"));
        }
        let named = goes_on || !output.is_empty();
        lines.extend(output.iter().map(|line| self.output(line)));
        let mut end = Vec::new();
        if !named {
            end.push(what);
        }
        if let Some(code) = result.get("exit_code").and_then(Value::as_i64) {
            let tone = if code == 0 { Tone::Good } else { Tone::Bad };
            end.push(paint(&format!("exit {code}"), tone, self.colour));
        }
        end.push(self.dim(&when::precise(Duration::from_millis(call.latency_ms))));
        if !call.allowed {
            end.push(paint("not allowed", Tone::Bad, self.colour));
        }
        let ok = result.get("ok").and_then(Value::as_bool).unwrap_or(false);
        let (mark, tone) = if ok { ("✓", Tone::Good) } else { ("✗", Tone::Bad) };
        lines.push(format!("{} {}", paint(mark, tone, self.colour), end.join("  ")));
        if let Some(error) = result.get("error") {
            lines.push(paint(&error_text(error), Tone::Bad, self.colour));
        }
        let mut told = lines.join("\n");
        if call.tool_name == "edit_file" {
            told.push_str(&self.change(&call.args_json));
        }
        (told, goes_on)
    }

    /// A tool and what it is called with, on one line.
    fn call_line(&self, tool: &str, args: &Value) -> String {
        format!("{} {}", bold(&clean::line(tool), self.colour), action(tool, args))
    }

    /// A tool call of an agent's program, shown like a built-in one: its main argument, with paths
    /// relative to the first of `roots` that contains them, and the changes of an edit.
    pub(super) fn used(&self, tool: &str, args: &Value, roots: &[String]) -> String {
        let mut told = format!("▸ {} {}", clean::line(tool), action_from(tool, args, roots));
        match tool {
            "Edit" => told.push_str(&self.change(args)),
            "MultiEdit" => {
                let edits = args.get("edits").and_then(Value::as_array);
                told.extend(edits.into_iter().flatten().map(|edit| self.change(edit)));
            }
            _ => {}
        }
        told
    }

    /// The lines that an edit removed and added.
    fn change(&self, args: &Value) -> String {
        let side = |keys: [&str; 3]| {
            keys.iter().find_map(|key| args.get(*key)).and_then(Value::as_str).unwrap_or_default()
        };
        let (old, new) =
            (side(["old", "old_text", "old_string"]), side(["new", "new_text", "new_string"]));
        let mut told = String::new();
        for change in similar::TextDiff::from_lines(old, new).iter_all_changes() {
            let (sign, tone) = match change.tag() {
                similar::ChangeTag::Delete => ('-', Tone::Bad),
                similar::ChangeTag::Insert => ('+', Tone::Good),
                similar::ChangeTag::Equal => (' ', Tone::Dim),
            };
            let line = change.value().trim_end_matches('\n');
            let line = format!("{sign} {}", clean::line(line));
            told.push_str(&format!("\n  {}", paint(&line, tone, self.colour)));
        }
        told
    }

    fn model(&mut self, call: &ModelCall) -> String {
        let mut told = String::new();
        let response = &call.response_json;
        let text = |key: &str| response.get(key).and_then(Value::as_str).unwrap_or("").trim();
        text("text").clone_into(&mut self.said);
        if let Some(error) = &call.error {
            // If the run fails, its error says the rest.
            let why = error_text(error);
            let why = if self.verbose { why.as_str().into() } else { clean::cut(&why, 100) };
            let line = format!("model {}: {why}", clean::line(&call.model));
            told = paint(&line, Tone::Bad, self.colour);
        }
        for (key, tone) in [("reasoning", Tone::Dim), ("text", Tone::Plain)] {
            if !text(key).is_empty() {
                if !told.is_empty() {
                    told.push('\n');
                }
                let line = clean::block(text(key)).into_owned();
                told.push_str(&paint(&format!("“{line}”"), tone, self.colour));
            }
        }
        let count = |key: &str| call.usage_json.get(key).and_then(Value::as_u64).unwrap_or(0);
        let tokens = format!(
            "model {}: {} tokens in, {} out, {}",
            clean::line(&call.model),
            when::thousands(count("input_tokens")),
            when::thousands(count("output_tokens")),
            when::precise(Duration::from_millis(call.latency_ms)),
        );
        if self.verbose {
            if !told.is_empty() {
                told.push('\n');
            }
            told.push_str(&self.dim(&tokens));
        }
        told
    }

    /// The first and last lines of an output, with line breaks between them.
    pub(super) fn excerpt(&self, text: &str) -> String {
        let lines = live::excerpt(text, self.verbose);
        lines.iter().map(|line| self.output(line)).collect::<Vec<_>>().join("\n")
    }

    /// A line of what a call wrote.
    fn output(&self, line: &str) -> String {
        format!("{} {line}", self.dim("│"))
    }

    fn dim(&self, text: &str) -> String {
        paint(text, Tone::Dim, self.colour)
    }
}

/// With which files a fork begins, in the words of its event.
pub fn forked_files(payload: &Value) -> String {
    let text = |key: &str| payload.get(key).and_then(Value::as_str).unwrap_or_default();
    let (from, step) = (text("from"), payload.get("step").and_then(Value::as_u64).unwrap_or(0));
    match payload.pointer("/snapshot/label").and_then(Value::as_str) {
        Some(label) => format!(
            "begins with the files of {} as they were before step {step} (snapshot {label})",
            crate::ids::short(from)
        ),
        None => format!(
            "begins where {} began: its files before step {step} were not saved",
            crate::ids::short(from)
        ),
    }
}

/// The message of an error, in either of its shapes: a text, or `{"code","message"}`.
pub fn error_text(error: &Value) -> String {
    let text = match error {
        Value::String(text) => text.clone(),
        other => match (other.get("message"), other.get("error"), other.get("code")) {
            (Some(Value::String(message)), _, _) => message.clone(),
            (_, Some(inner), _) => return error_text(inner),
            (_, _, Some(Value::String(code))) => code.clone(),
            _ => other.to_string(),
        },
    };
    clean::line(&text).into_owned()
}

/// The time of day of a timestamp, in UTC.
pub(crate) fn clock(stamp: &str) -> String {
    stamp.get(11..19).unwrap_or(stamp).to_owned()
}

/// A status in its colour.
pub fn tone(status: RunStatus) -> Tone {
    match status {
        RunStatus::Queued => Tone::Dim,
        RunStatus::Running => Tone::Busy,
        RunStatus::AwaitingInput | RunStatus::AwaitingApproval | RunStatus::Idle => Tone::Waits,
        RunStatus::Succeeded => Tone::Good,
        RunStatus::Failed => Tone::Bad,
        RunStatus::Canceled => Tone::Waits,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(kind: &str, data: Value) -> Timeline {
        let ts = "2026-11-21T20:19:55.182849+00:00";
        serde_json::from_value(json!({"kind": kind, "ts": ts, "data": data})).unwrap()
    }

    fn event(kind: &str, payload: Value) -> Timeline {
        let ts = "2026-11-21T20:19:55.182849+00:00";
        entry(
            "event",
            json!({"id": "x.1", "run_id": null, "type": kind, "payload_json": payload, "ts": ts,
                   "seq": 1, "global": 1, "hash": ""}),
        )
    }

    fn call(tool: &str, args: Value, result: Value) -> Timeline {
        let id = "eff_0190b2c4d5e67000800000000000002a";
        entry(
            "tool_call",
            json!({"id": id, "run_id": "ses_0190b2c4d5e67000800000000000002a", "step_id": null,
                   "tool_name": tool, "args_json": args, "result_json": result, "allowed": true,
                   "latency_ms": 34, "created_at": "2026-11-21T20:19:55.182849+00:00", "seq": 2}),
        )
    }

    #[test]
    fn a_command_is_shown_with_its_exit_and_its_output() {
        let mut story = Story::new(false, false);
        let result = json!({"ok": false, "exit_code": 1, "stdout": "a\nb\n", "stderr": ""});
        assert_eq!(
            story.tell(&call("run_shell", json!({"command": "make\ntest"}), result)),
            "20:19:55  ▸ run_shell make⏎test\n          │ a\n          │ b\n          ✗ exit 1  34ms\n"
        );
    }

    #[test]
    fn long_output_shows_its_ends_and_cannot_move_the_cursor() {
        let mut story = Story::new(false, false);
        let lines: String = (0..40).map(|n| format!("line {n}\n")).collect();
        let told = story.tell(&call("run_shell", json!({}), json!({"ok": true, "stdout": lines})));
        assert!(told.contains("line 0\n") && told.contains("line 39\n"), "{told}");
        assert!(told.contains("line 19\n          │ … goes on …\n          │ line 32\n"), "{told}");
        let hostile = json!({"ok": true, "stdout": "\u{1b}[2Jgone"});
        let told = story.tell(&call("run_shell", json!({"command": "\u{1b}]0;x\u{7}"}), hostile));
        assert!(!told.contains('\u{1b}') && !told.contains('\u{7}'), "{told}");
    }

    #[test]
    fn an_edit_is_shown_as_removed_and_added_lines() {
        let mut story = Story::new(false, false);
        let args = json!({"path": "a.sh", "old": "x\ny\n", "new": "x\nz\n"});
        let told = story.tell(&call("edit_file", args, json!({"ok": true})));
        assert!(
            told.contains("    x\n") && told.contains("- y\n") && told.contains("+ z\n"),
            "{told}"
        );
    }

    #[test]
    fn tool_calls_of_programs_are_shown_with_their_main_argument() {
        let story = Story::new(false, false);
        let roots = ["/t/tree".to_owned(), "/t".to_owned()];
        let used = |tool: &str, args: Value| story.used(tool, &args, &roots);
        for (tool, args, wanted) in [
            ("Read", json!({"limit": 9, "file_path": "/t/tree/src/a.py"}), "▸ Read src/a.py"),
            ("Write", json!({"file_path": "/t/other", "content": "x"}), "▸ Write other"),
            ("Read", json!({"file_path": "/t/treeless/a"}), "▸ Read treeless/a"),
            ("Read", json!({"file_path": "/etc/hosts"}), "▸ Read /etc/hosts"),
            ("LS", json!({"path": "/t/tree"}), "▸ LS ."),
            ("Grep", json!({"path": "/t/tree", "pattern": "fn x"}), "▸ Grep fn x"),
            ("Glob", json!({"pattern": "**/*.rs"}), "▸ Glob **/*.rs"),
            ("Bash", json!({"description": "tests", "command": "pytest -q"}), "▸ Bash pytest -q"),
            ("Task", json!({"prompt": "long", "description": "look"}), "▸ Task look"),
            ("TodoWrite", json!({"todos": [{"content": "a"}]}), "▸ TodoWrite 1 item"),
            ("mesh.send", json!({"to": "b"}), "▸ mesh.send {\"to\":\"b\"}"),
            (
                "file_change",
                json!({"changes": [{"path": "/t/tree/a", "kind": "update"}, {"path": "b", "kind": "add"}]}),
                "▸ file_change a, b (add)",
            ),
        ] {
            assert_eq!(used(tool, args), wanted);
        }
        let edit = json!({"replace_all": false, "file_path": "/t/tree/a", "old_string": "x = 41\ny\n",
                          "new_string": "x = 42\ny\n"});
        assert_eq!(used("Edit", edit.clone()), "▸ Edit a\n  - x = 41\n  + x = 42\n    y");
        let many = json!({"file_path": "/t/tree/a", "edits": [edit]});
        assert!(used("MultiEdit", many).ends_with("- x = 41\n  + x = 42\n    y"));
        let hostile = json!({"file_path": "a", "old_string": "\u{1b}[2J", "new_string": "b"});
        assert!(!used("Edit", hostile).contains('\u{1b}'));
    }

    #[test]
    fn important_events_are_shown_and_bookkeeping_is_hidden() {
        let mut story = Story::new(false, false);
        let mut tell = |kind, payload| story.tell(&event(kind, payload));
        let said = tell("agent.said", json!({"text": "I look first."}));
        assert_eq!(said, "20:19:55  “I look first.”\n");
        let used = json!({"tool_name": "Bash", "args": {"command": "ls"}});
        assert_eq!(tell("agent.tool_use", used), "20:19:55  ▸ Bash ls\n");
        let failed = json!({"ok": false, "output": "no such file"});
        assert_eq!(tell("agent.tool_result", failed), "20:19:55  ✗ no such file\n");
        assert_eq!(tell("agent.tool_result", json!({"ok": true})), "");
        assert_eq!(
            tell("run.awaiting_input", json!({"prompt": "which port?"})),
            "20:19:55  asks: which port?\n"
        );
        let wait = json!({"tool_name": "run_shell", "args": {"command": "rm -rf x"}});
        assert_eq!(
            tell("approval.requested", wait),
            "20:19:55  waits for approval: run_shell rm -rf x\n"
        );
        let answer = json!({"approve": false, "by": "admin", "reason": "no"});
        assert_eq!(tell("approval.answered", answer), "20:19:55  denied by admin: no\n");
        assert_eq!(
            tell("run.failed", json!({"error": {"code": "x", "message": "why"}})),
            "20:19:55  failed: why\n"
        );
        assert_eq!(tell("model.output.delta", json!({"delta": "x"})), "");
        assert_eq!(tell("supervisor.decided", json!({})), "");
        let mut verbose = Story::new(false, true);
        assert!(verbose.tell(&event("supervisor.decided", json!({"x": 1}))).contains("{\"x\":1}"));
    }

    const STEP: &str = "stp_0190b2c4d5e67000800000000000002a";

    fn delta(epoch: u64, offset: u64, text: &str) -> Timeline {
        let id = "eff_0190b2c4d5e67000800000000000002a";
        let payload = json!({"call_id": id, "step_id": STEP, "epoch": epoch, "stream": "stdout",
                             "offset": offset, "text": text});
        event("tool.output.delta", payload)
    }

    #[test]
    fn output_that_was_shown_as_it_arrived_is_not_shown_again() {
        let mut story = Story::new(false, false);
        assert_eq!(
            story.tell(&delta(1, 0, "one\r50%\rtwo\n\u{1b}[2J\n")),
            "20:19:55  ▸ a command\n          │ two\n          │ \\u{1b}[2J\n"
        );
        assert_eq!(story.tell(&delta(1, 9, "three")), "          │ three\n");
        let result = json!({"ok": true, "exit_code": 0, "stdout": "two\n\nthree"});
        let told = story.tell(&call("run_shell", json!({"command": "make"}), result.clone()));
        assert_eq!(told, "          ✓ exit 0  34ms\n");
        let told = story.tell(&call("run_shell", json!({"command": "make"}), result));
        assert!(told.contains("│ two"), "another call is told whole: {told}");
    }

    #[test]
    fn a_call_is_shown_the_same_way_live_and_afterwards() {
        let args = json!({"command": "make"});
        let step = json!({
            "id": STEP, "run_id": "ses_0190b2c4d5e67000800000000000002a", "idx": 0, "type": "tool",
            "input_json": {"tool_name": "run_shell", "args": args}, "output_json": null,
            "started_at": "2026-11-21T20:19:55.182849+00:00", "finished_at": null, "error": null,
            "turn": 0,
        });
        for (count, verbose) in [(0, false), (3, false), (22, false), (500, false), (500, true)] {
            let text: String = (0..count).map(|n| format!("line {n}\n\n")).collect();
            let result = json!({"ok": false, "exit_code": 1, "stdout": text, "stderr": "why"});
            let end = call("run_shell", args.clone(), result);
            let told = |pieces: &[&str]| {
                let mut story = Story::new(true, verbose);
                let mut told = story.tell(&entry("step", step.clone()));
                for piece in pieces {
                    told.push_str(&story.tell(&delta(1, 0, piece)));
                }
                told + &story.tell(&end)
            };
            let at_once = told(&[]);
            let (first, rest) = text.split_at(text.len() / 2);
            let (end, begin) = rest.split_once('\n').unwrap_or((rest, ""));
            let first = format!("{first}{end}\n");
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            for pieces in [&lines[..], &[&text], &[&first], &[&first, begin]] {
                assert_eq!(told(pieces), at_once, "{count} lines");
            }
        }
        // Text after other output names its source again.
        let mut story = Story::new(false, false);
        story.tell(&delta(1, 0, "one\n"));
        story.tell(&event("agent.said", json!({"text": "Meanwhile."})));
        assert_eq!(story.tell(&delta(1, 4, "two\n")), "20:19:55  ▸ a command\n          │ two\n");
        story.tell(&event("agent.said", json!({"text": "And now."})));
        let result = json!({"ok": true, "exit_code": 0, "stdout": "one\ntwo\n"});
        let end = call("run_shell", args, result);
        assert_eq!(story.tell(&end), "20:19:55  ✓ run_shell make  exit 0  34ms\n");
    }

    #[test]
    fn long_live_output_shows_the_start_at_once_and_the_rest_at_the_end() {
        let mut story = Story::new(false, false);
        let lines = |n: u32| (0..n).map(|n| format!("line {n}\n")).collect::<String>();
        let told = story.tell(&delta(1, 0, &lines(500)));
        assert!(told.contains("line 19\n") && !told.contains("line 20\n"), "{told}");
        assert!(told.ends_with("… goes on …\n"), "{told}");
        assert_eq!(story.tell(&delta(1, 5000, &lines(500))), "");
        let result = json!({"ok": true, "exit_code": 0, "stdout": lines(1000)});
        let told = story.tell(&call("run_shell", json!({}), result));
        assert!(told.contains("line 999") && told.contains("line 992"), "{told}");
        assert!(!told.contains("line 991"), "{told}");
    }

    #[test]
    fn progress_and_alarms_are_shown() {
        let mut story = Story::new(false, false);
        let progress = json!({"call_id": "c", "step_id": "s", "epoch": 1, "progress": 1.0,
                              "total": 4.0, "message": "half a\nway"});
        let told = story.tell(&event("tool.progress", progress));
        assert!(told.ends_with("│ 25 %: half a⏎way\n"), "{told}");
        let alarm = json!({"tool_name": "http_request", "what": "the canary of `env X` at /url"});
        assert_eq!(
            story.tell(&event("canary.tripped", alarm)),
            "20:19:55  ALARM: http_request carried the canary of `env X` at /url; it was refused\n"
        );
    }

    #[test]
    fn errors_are_parsed_in_all_their_shapes() {
        for error in [
            json!("why"),
            json!({"message": "why"}),
            json!({"error": {"message": "why"}}),
            json!({"error": "why"}),
            json!({"code": "why"}),
        ] {
            assert_eq!(error_text(&error), "why");
        }
        assert_eq!(error_text(&json!({"x": 1})), "{\"x\":1}");
    }
}
