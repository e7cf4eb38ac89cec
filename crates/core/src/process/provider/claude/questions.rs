//! Questions of Claude Code's model to a person: the tool `AskUserQuestion`.
//!
//! The tool asks 1 to 4 questions at once, each with 2 to 4 options. It is answered through the
//! same protocol as a request for permission: the tool is allowed, and its input gets `answers`,
//! a map from a question's text to the label of the option, to several labels separated by commas,
//! or to the person's own words. `response` contains an answer to all questions together.

use serde_json::{Map, Value, json};

use super::super::{Question, cut};

const TOOL: &str = "AskUserQuestion";
/// Most questions and most options that are shown. The tool itself permits 4 of each.
const MOST: usize = 10;
/// Longest question, label or description, in bytes.
const MAX_PART: usize = 1 << 10;

/// One question of the tool's input.
struct One<'a> {
    text: &'a str,
    options: Vec<Choice<'a>>,
    /// Whether several options may be chosen.
    several: bool,
}

struct Choice<'a> {
    label: &'a str,
    description: &'a str,
}

/// Returns the question to a person; `None` if this is another tool or its input has no question.
/// The text has several lines: each question with its numbered options, and how to answer.
pub(super) fn of(tool: &str, args: &Value) -> Option<Question> {
    let asked = read(tool, args)?;
    let many = asked.len() > 1;
    let mut lines = Vec::new();
    for (at, one) in asked.iter().enumerate() {
        let number = if many { format!("{}. ", at + 1) } else { String::new() };
        lines.push(format!("{number}{}", cut(one.text, MAX_PART)));
        lines.extend(one.options.iter().enumerate().map(|(at, choice)| choice.line(at + 1)));
    }
    lines.push(how(&asked));
    let options = match asked.as_slice() {
        [one] => one.options.iter().map(|choice| cut(choice.label, MAX_PART)).collect(),
        _ => Vec::new(),
    };
    Some(Question { text: lines.join("\n"), options, secret: false })
}

/// Returns the decision for an answer to the tool's questions; `None` if this is another tool or
/// its input has no question. A blank answer denies the tool.
pub(super) fn answered(tool: &str, args: &Value, answer: &str) -> Option<Value> {
    let asked = read(tool, args)?;
    let answer = answer.trim();
    if answer.is_empty() {
        return Some(
            json!({"behavior": "deny", "message": "A person was asked, and said nothing."}),
        );
    }
    let mut input = args.as_object()?.clone();
    match parts(&asked, answer) {
        Some(parts) => {
            let answers: Map<String, Value> = asked
                .iter()
                .zip(parts)
                .map(|(one, part)| (one.text.to_owned(), Value::String(one.chosen(part))))
                .collect();
            input.insert("answers".to_owned(), Value::Object(answers));
        }
        // Words to all of the questions.
        None => {
            input.insert("response".to_owned(), json!(answer));
        }
    }
    Some(json!({"behavior": "allow", "updatedInput": input}))
}

/// Returns the answer to each question, in their order; `None` if the answer has another number of
/// parts. The parts are lines, or else separated by semicolons.
fn parts<'a>(asked: &[One<'_>], answer: &'a str) -> Option<Vec<&'a str>> {
    if asked.len() == 1 {
        return Some(vec![answer]);
    }
    let separator = if answer.contains('\n') { '\n' } else { ';' };
    let parts = answer.split(separator).map(str::trim).filter(|part| !part.is_empty());
    let parts: Vec<&str> = parts.collect();
    (parts.len() == asked.len()).then_some(parts)
}

fn read<'a>(tool: &str, args: &'a Value) -> Option<Vec<One<'a>>> {
    if tool != TOOL {
        return None;
    }
    let text =
        |value: &'a Value, name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    let asked: Vec<One<'a>> = args
        .get("questions")?
        .as_array()?
        .iter()
        .take(MOST)
        .map(|question| {
            let options = question.get("options").and_then(Value::as_array);
            let options = options.into_iter().flatten().take(MOST).map(|option| Choice {
                label: text(option, "label"),
                description: text(option, "description"),
            });
            One {
                text: text(question, "question"),
                options: options.filter(|choice| !choice.label.trim().is_empty()).collect(),
                several: question.get("multiSelect").and_then(Value::as_bool) == Some(true),
            }
        })
        .filter(|one| !one.text.trim().is_empty())
        .collect();
    (!asked.is_empty()).then_some(asked)
}

/// Returns the line that explains how to answer.
fn how(asked: &[One<'_>]) -> String {
    let several = match asked.iter().any(|one| one.several) {
        true => "; separate several options of one question by commas",
        false => "",
    };
    match (asked, asked.iter().all(|one| one.options.is_empty())) {
        ([_], true) => "Answer in your own words.".to_owned(),
        ([_], false) => {
            format!("Answer with an option, its number, or your own words{several}.")
        }
        (_, _) => format!(
            "Answer the {} questions in this order, separated by semicolons: each with an option, \
            its number, or your own words{several}.",
            asked.len()
        ),
    }
}

impl Choice<'_> {
    fn line(&self, number: usize) -> String {
        let label = cut(self.label, MAX_PART);
        match self.description.trim() {
            "" => format!("  {number}) {label}"),
            description => format!("  {number}) {label}: {}", cut(description, MAX_PART)),
        }
    }
}

impl One<'_> {
    /// Returns the answer as the tool expects it: labels in place of numbers, other words as they
    /// are.
    fn chosen(&self, answer: &str) -> String {
        match self.option(answer) {
            Some(label) => label.to_owned(),
            None if self.several => {
                let parts = answer.split(',').map(str::trim).filter(|part| !part.is_empty());
                let labels = parts.map(|part| self.option(part).unwrap_or(part));
                labels.collect::<Vec<_>>().join(", ")
            }
            None => answer.to_owned(),
        }
    }

    /// Returns the label of the option that is meant: by its label in any case, or by its number,
    /// from 1.
    fn option(&self, answer: &str) -> Option<&str> {
        let lower = answer.to_lowercase();
        let named = self.options.iter().find(|choice| choice.label.to_lowercase() == lower);
        let numbered = || {
            let number: usize = answer.trim_end_matches([')', '.']).parse().ok()?;
            self.options.get(number.checked_sub(1)?)
        };
        named.or_else(numbered).map(|choice| choice.label)
    }
}
