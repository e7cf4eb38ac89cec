//! The deterministic policy: text rules that turn a task into one action, without a model.
//!
//! An explicit prefix always wins. Keywords match only whole words. (An earlier system searched for
//! parts of words, so that `recall:notes:find the run` became a shell command.)

use serde_json::{Value, json};

/// The separator between a task and the person's answer to its question.
pub const ANSWER: &str = "\n\nUser input: ";

/// The decision of the rules.
#[derive(Clone, Debug, PartialEq)]
pub enum Decided {
    Tool { name: &'static str, args: Value },
    Ask { prompt: &'static str },
}

/// Decides the one action of `task`.
///
/// Prefix forms: `shell: CMD`, `write: PATH: CONTENT`, `read: PATH`, `recall: [COLL:] QUERY`,
/// `remember: [COLL:] TEXT`. Otherwise the first group of words that occurs: shell, run,
/// execute, cmd, command · write, save, append · read, open, cat, show · recall, search, find,
/// lookup · remember, store, memorize. Otherwise the task is stored in the collection `runs`.
pub fn decide(task: &str) -> Decided {
    by_prefix(task).or_else(|| by_curl(task)).unwrap_or_else(|| by_word(task))
}

/// Decides the one action of `task` after a person has answered the question that it led to. `task`
/// ends with the answer. An answer with a prefix form is used alone.
pub fn decide_answered(task: &str, answer: &str) -> Decided {
    by_prefix(answer).or_else(|| by_curl(task)).unwrap_or_else(|| by_word(task))
}

fn tool(name: &'static str, args: Value) -> Decided {
    Decided::Tool { name, args }
}

fn by_prefix(task: &str) -> Option<Decided> {
    let text = task.trim_start();
    let (head, rest) = text.split_once(':')?;
    let trimmed = rest.trim();
    let decided = match head.trim_end().to_ascii_lowercase().as_str() {
        "shell" => tool("run_shell", json!({"command": trimmed})),
        "read" => tool("read_file", json!({"path": trimmed})),
        "write" => {
            let (path, content) = rest.split_once(':').unwrap_or((rest, ""));
            // One space after the colon is the form's; every other byte is the content's.
            let content = content.strip_prefix(' ').unwrap_or(content);
            tool("write_file", json!({"path": path.trim(), "content": content}))
        }
        "recall" => {
            let (collection, query) = collection_and_text(rest);
            tool("search_memory", json!({"collection": collection, "query": query, "top_k": 5}))
        }
        "remember" => {
            let (collection, text) = collection_and_text(rest);
            tool("store_memory", json!({"collection": collection, "text": text}))
        }
        _ => return None,
    };
    Some(decided)
}

fn collection_and_text(rest: &str) -> (&str, &str) {
    let (collection, text) = rest.split_once(':').unwrap_or(("", rest));
    let collection = collection.trim();
    (if collection.is_empty() { "default" } else { collection }, text.trim())
}

fn by_curl(task: &str) -> Option<Decided> {
    words(task).any(|word| word == "curl").then(|| {
        let scheme = |word: &&str| word.starts_with("http://") || word.starts_with("https://");
        let url = task.split_whitespace().find(scheme).map(ToOwned::to_owned);
        match url.or_else(|| host_of_answer(task)) {
            Some(url) => {
                // Quoted: a URL is outside text, and this is a shell command.
                let quoted = format!("'{}'", url.replace('\'', "'\\''"));
                tool("run_shell", json!({"command": format!("curl -L --max-time 20 {quoted}")}))
            }
            None => Decided::Ask { prompt: "Please provide the full URL to fetch." },
        }
    })
}

/// Returns an answer that is a host without a scheme: `example.com/docs`.
fn host_of_answer(task: &str) -> Option<String> {
    let (_, answer) = task.rsplit_once(ANSWER)?;
    let host = answer.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/?#@!$&()*+,;=%".contains(c);
    let named = host.split(['/', ':']).next().is_some_and(|name| name.contains('.'));
    (named && host.chars().all(plain)).then(|| format!("https://{host}"))
}

fn by_word(task: &str) -> Decided {
    let has = |group: &[&str]| words(task).any(|word| group.contains(&word.as_str()));
    if has(&["shell", "run", "execute", "cmd", "command"]) {
        tool("run_shell", json!({"command": task}))
    } else if has(&["write", "save", "append"]) {
        let (path, content) = content_to_path(task).unwrap_or(("notes.txt", task));
        tool("write_file", json!({"path": path, "content": content}))
    } else if has(&["read", "open", "cat", "show"]) {
        tool("read_file", json!({"path": quoted(task).unwrap_or_else(|| last_word(task))}))
    } else if has(&["recall", "search", "find", "lookup"]) {
        tool("search_memory", json!({"collection": "default", "query": task, "top_k": 5}))
    } else if has(&["remember", "store", "memorize"]) {
        tool("store_memory", json!({"collection": "default", "text": task}))
    } else {
        tool(
            "store_memory",
            json!({"collection": "runs", "text": task, "metadata": {"source": "task"}}),
        )
    }
}

/// Returns the whole words in lower case: sequences of letters, digits and `_`.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

/// Splits `<content> to <path>` at the last ` to ` that is followed by a single word.
fn content_to_path(task: &str) -> Option<(&str, &str)> {
    let (content, path) = task.trim().rsplit_once(" to ")?;
    let path = path.trim();
    if path.is_empty() || path.contains(char::is_whitespace) {
        return None;
    }
    let content = content.trim();
    let verb = content.split_whitespace().next().unwrap_or("");
    let bare = ["write", "save", "append"].iter().any(|v| verb.eq_ignore_ascii_case(v));
    Some((path, if bare { content[verb.len()..].trim_start() } else { content }))
}

fn quoted(task: &str) -> Option<&str> {
    let start = task.find(['"', '\'', '`'])?;
    let mark = task[start..].chars().next()?;
    let rest = &task[start + 1..];
    rest.find(mark).map(|end| &rest[..end]).filter(|text| !text.is_empty())
}

fn last_word(task: &str) -> &str {
    task.split_whitespace().last().unwrap_or("")
}

/// Returns the answer of a session whose one action succeeded: a short summary of the result.
pub fn summary(tool_name: &str, result: &Value) -> String {
    const BODY: usize = 800;
    let text = |key: &str| result.get(key).and_then(Value::as_str).unwrap_or("").trim().to_owned();
    let body = match tool_name {
        "run_shell" => {
            let code = result.get("exit_code").and_then(Value::as_i64).unwrap_or(0);
            let out = text("stdout");
            let out = if out.is_empty() { text("stderr") } else { out };
            format!("Tool completed with exit_code={code}\n{out}")
        }
        "read_file" => text("content"),
        "write_file" => {
            let bytes = result.get("bytes").and_then(Value::as_u64).unwrap_or(0);
            format!("Wrote {bytes} bytes to {}", text("path"))
        }
        "search_memory" => {
            let hits = result.get("results").and_then(Value::as_array);
            let lines: Vec<_> = hits
                .into_iter()
                .flatten()
                .filter_map(|hit| hit.get("text").and_then(Value::as_str))
                .map(|text| format!("- {text}"))
                .collect();
            if lines.is_empty() { "Nothing found.".into() } else { lines.join("\n") }
        }
        "store_memory" => "Stored.".into(),
        _ => result.to_string(),
    };
    let body = body.trim();
    match body.char_indices().nth(BODY) {
        Some((end, _)) => format!("{}…", &body[..end]),
        None => body.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(task: &str, name: &str, args: Value) {
        match decide(task) {
            Decided::Tool { name: got, args: got_args } => {
                assert_eq!((got, got_args), (name, args), "{task}");
            }
            Decided::Ask { prompt } => panic!("{task} asks: {prompt}"),
        }
    }

    #[test]
    fn an_explicit_prefix_overrides_all_keywords() {
        check("shell:echo hi", "run_shell", json!({"command": "echo hi"}));
        check("Shell : echo read", "run_shell", json!({"command": "echo read"}));
        check(
            "remember:notes:find x",
            "store_memory",
            json!({"collection": "notes", "text": "find x"}),
        );
        check(
            "recall:notes:find the run",
            "search_memory",
            json!({"collection": "notes", "query": "find the run", "top_k": 5}),
        );
        check(
            "recall:: q",
            "search_memory",
            json!({"collection": "default", "query": "q", "top_k": 5}),
        );
        check("read:seed.txt", "read_file", json!({"path": "seed.txt"}));
    }

    #[test]
    fn written_content_keeps_its_whitespace() {
        check(
            "write: a/b.txt:  two spaces and a line\n",
            "write_file",
            json!({"path": "a/b.txt", "content": " two spaces and a line\n"}),
        );
        check("write:a.txt:x: y", "write_file", json!({"path": "a.txt", "content": "x: y"}));
    }

    #[test]
    fn keywords_match_whole_words_in_order() {
        check(
            "prune the brunch list",
            "store_memory",
            json!({"collection": "runs", "text": "prune the brunch list", "metadata": {"source": "task"}}),
        );
        check("run and read", "run_shell", json!({"command": "run and read"}));
        check(
            "write hello world to out/a.txt",
            "write_file",
            json!({"path": "out/a.txt", "content": "hello world"}),
        );
        check("save it", "write_file", json!({"path": "notes.txt", "content": "save it"}));
        check("please show \"a b.txt\" now", "read_file", json!({"path": "a b.txt"}));
        check("open README.md", "read_file", json!({"path": "README.md"}));
        check(
            "find sqlite",
            "search_memory",
            json!({"collection": "default", "query": "find sqlite", "top_k": 5}),
        );
    }

    #[test]
    fn curl_needs_a_url_and_quotes_it() {
        check(
            "curl https://a.example/x?y='z'",
            "run_shell",
            json!({"command": "curl -L --max-time 20 'https://a.example/x?y='\\''z'\\'''"}),
        );
        assert_eq!(
            decide("curl that page"),
            Decided::Ask { prompt: "Please provide the full URL to fetch." }
        );
    }

    #[test]
    fn an_answer_is_evaluated_together_with_its_task() {
        let curl = |url: &str| Decided::Tool {
            name: "run_shell",
            args: json!({"command": format!("curl -L --max-time 20 '{url}'")}),
        };
        let asks = Decided::Ask { prompt: "Please provide the full URL to fetch." };
        for (answer, wanted) in [
            ("https://a.example/x", curl("https://a.example/x")),
            ("a.example/x?y=z", curl("https://a.example/x?y=z")),
            ("the usual one", asks.clone()),
            ("no idea. sorry", asks),
            ("read: a.txt", tool("read_file", json!({"path": "a.txt"}))),
        ] {
            let task = format!("curl a website{ANSWER}{answer}");
            assert_eq!(decide_answered(&task, answer), wanted, "{answer}");
        }
    }

    proptest! {
        #[test]
        fn every_text_gives_a_decision(task in "\\PC*") {
            let _ = decide(&task);
        }
    }
}
