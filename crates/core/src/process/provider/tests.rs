//! Lines as Claude Code 2.1 and Codex 0.169 wrote them, shortened, and invented lines.

use super::*;
use crate::command::{CommandKind, CommandSpec};
use crate::time::Timestamp;

const CLAUDE: &str = r#"{"type":"system","subtype":"init","cwd":"/work","session_id":"6eb75c4c-8775-4142-b897-1a4e75e390bc","tools":["Bash","Edit"],"model":"claude-opus-4-8","permissionMode":"acceptEdits"}
{"type":"assistant","message":{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"tool_use","id":"toolu_1","name":"Bash","input":{"command":"echo made > made.txt","description":"Write a file"}}],"usage":{"input_tokens":10,"output_tokens":1}},"parent_tool_use_id":null,"session_id":"6eb75c4c-8775-4142-b897-1a4e75e390bc"}
{"type":"user","message":{"role":"user","content":[{"tool_use_id":"toolu_1","type":"tool_result","content":"(Bash completed with no output)","is_error":false}]},"parent_tool_use_id":null,"session_id":"6eb75c4c-8775-4142-b897-1a4e75e390bc"}
{"type":"assistant","message":{"id":"msg_1","role":"assistant","content":[{"type":"text","text":"All done."}]},"parent_tool_use_id":null,"session_id":"6eb75c4c-8775-4142-b897-1a4e75e390bc"}
{"type":"result","subtype":"success","is_error":false,"num_turns":2,"result":"All done.","session_id":"6eb75c4c-8775-4142-b897-1a4e75e390bc","total_cost_usd":0.0003895,"usage":{"input_tokens":20,"cache_creation_input_tokens":6,"cache_read_input_tokens":4,"output_tokens":10},"permission_denials":[]}
"#;

const CODEX: &str = r#"{"type":"thread.started","thread_id":"01a20447-5f76-7352-8f32-1fee22c0bba0"}
{"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5` not found."}}
{"type":"turn.started"}
{"type":"item.started","item":{"id":"item_1","type":"command_execution","command":"/bin/bash -lc 'echo made > made.txt'","aggregated_output":"","exit_code":null,"status":"in_progress"}}
{"type":"item.completed","item":{"id":"item_1","type":"command_execution","command":"/bin/bash -lc 'echo made > made.txt'","aggregated_output":"","exit_code":0,"status":"completed"}}
{"type":"item.completed","item":{"id":"item_2","type":"agent_message","text":"All done."}}
{"type":"turn.completed","usage":{"input_tokens":24,"cached_input_tokens":8,"cache_write_input_tokens":0,"output_tokens":6,"reasoning_output_tokens":2}}
"#;

const LINES: &str = r#"an ordinary line
{"overmind":{"conversation":"c-1","model":"small"}}
{"overmind":{"tool":{"id":"1","name":"grep","args":{"pattern":"x"}}}}
{"overmind":{"tool_result":{"id":"1","ok":false,"output":"nothing"},"said":"Not found."}}
{"overmind":{"asks":{"id":"q","text":"Delete it?","options":["yes","no"]}}}
{"overmind":{"answered":"q","usage":{"input_tokens":5,"output_tokens":2},"cost_usd":0.25}}
{"overmind":{"result":{"files":2}}}
"#;

const ASKS: &str = r#"{"type":"control_request","request_id":"5d34","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"touch ../x\nrm y"},"tool_use_id":"toolu_1"}}"#;

fn piece(offset: u64, bytes: &[u8]) -> LogPiece {
    let (at, kind) = (Timestamp::from_micros(0), LogKind::Output);
    LogPiece { offset, at, epoch: 1, kind, bytes: bytes.to_vec() }
}

fn read(provider: Provider, text: &str) -> Vec<Fact> {
    let mut reader = Reader::new(provider, 0);
    let mut facts = Vec::new();
    reader.piece(&piece(0, text.as_bytes()), &mut facts);
    assert_eq!(reader.upto(), text.len() as u64);
    facts
}

#[test]
fn retries_of_claudes_model_calls_are_reported() {
    let line = |rest: &str| {
        format!(
            "{{\"type\":\"system\",\"subtype\":\"api_retry\",\"attempt\":2,\"max_retries\":10{rest}}}\n"
        )
    };
    let told = |rest: &str| read(Provider::Claude, &line(rest));
    let trouble = |message: &str| [Fact::Trouble { message: message.into() }];
    assert_eq!(
        told(r#","error_status":502,"error":"server_error""#),
        trouble("the model's API answers 502 (server_error); Claude Code tries again, 2 of 10")
    );
    assert_eq!(
        told(r#","error_status":null"#),
        trouble("the model's API does not answer; Claude Code tries again, 2 of 10")
    );
}

#[test]
fn claude_output_is_parsed() {
    let facts = read(Provider::Claude, CLAUDE);
    let id = "6eb75c4c-8775-4142-b897-1a4e75e390bc".to_owned();
    let usage = Usage {
        input_tokens: 30,
        output_tokens: 10,
        cached_input_tokens: 4,
        cache_write_tokens: 6,
        ..Usage::default()
    };
    let expected = [
        Fact::Conversation { id: id.clone(), model: Some("claude-opus-4-8".into()) },
        Fact::ToolUse {
            id: "toolu_1".into(),
            name: "Bash".into(),
            args: json!({"command": "echo made > made.txt", "description": "Write a file"}),
        },
        Fact::ToolResult {
            id: "toolu_1".into(),
            name: None,
            ok: true,
            output: "(Bash completed with no output)".into(),
        },
        Fact::Said { text: "All done.".into(), within: None },
        Fact::Spent(Spent { usage: Some(usage), calls: 2, ..Spent::default() }),
        Fact::Spent(Spent { scope: Scope::Life, cost_microusd: Some(390), ..Spent::default() }),
        Fact::Result { text: "All done.".into(), is_error: false },
    ];
    assert_eq!(facts, expected);
    let told = Told::new(9, &facts);
    assert_eq!((told.upto, told.conversation), (9, Some(id)));
    assert_eq!(told.answer, Some(Answer { text: "All done.".into(), is_error: false }));
}

#[test]
fn claude_failures_keep_their_message() {
    let lost = r#"{"type":"result","subtype":"error_during_execution","is_error":true,"errors":["No conversation found with session ID: 1"]}"#;
    let wrong = |line: &str| read(Provider::Claude, &format!("{line}\n")).pop();
    let error = |text: &str| Some(Fact::Result { text: text.into(), is_error: true });
    assert_eq!(wrong(lost), error("No conversation found with session ID: 1"));
    let api = r#"{"type":"result","subtype":"success","is_error":true,"result":"API Error: 401"}"#;
    assert_eq!(wrong(api), error("API Error: 401"));
    let bare = r#"{"type":"result","subtype":"error_max_turns","is_error":true}"#;
    assert_eq!(wrong(bare), error("it used all the turns that it may take"));
}

#[test]
fn claude_asks_for_permission_and_gets_the_answer_in_its_protocol() {
    let facts = read(Provider::Claude, &format!("x\n{ASKS}\n"));
    let options = vec!["yes".to_owned(), "no".to_owned()];
    let question = Question { text: "Allow Bash: touch ../x".into(), options, secret: false };
    let tool_use = Some("toolu_1".to_owned());
    assert_eq!(facts, [Fact::Asks(Ask { id: "5d34".into(), question, at: 2, tool_use })]);
    let answer = |said: &str| -> Value {
        let line = launch::answer(Provider::Claude, ASKS.as_bytes(), said).unwrap();
        assert!(line.ends_with('\n'));
        serde_json::from_str(&line).unwrap()
    };
    let yes = answer("Yes");
    assert_eq!(yes["response"]["request_id"], "5d34");
    assert_eq!(yes["response"]["response"]["behavior"], "allow");
    assert_eq!(yes["response"]["response"]["updatedInput"]["command"], "touch ../x\nrm y");
    assert_eq!(answer("n")["response"]["response"]["behavior"], "deny");
    let else_ = answer("use cat");
    assert_eq!(else_["response"]["response"]["message"], "use cat");
    assert_eq!(launch::answer(Provider::Claude, b"not a question", "y"), None);
    // Taken back before anybody answered.
    let gone = format!("{ASKS}\n{{\"type\":\"control_cancel_request\",\"request_id\":\"5d34\"}}\n");
    let told = Told::new(1, &read(Provider::Claude, &gone));
    assert_eq!((told.asks, told.gone), (vec![], vec!["5d34".to_owned()]));
}

const DENIED: &str = r#"{"type":"result","subtype":"success","is_error":false,"result":"Done without it.","permission_denials":[{"tool_name":"Bash","tool_use_id":"toolu_1","tool_input":{"command":"touch ../x"}}]}"#;

#[test]
fn a_denial_by_a_person_is_no_failure_and_other_denials_are() {
    let last = |reader: Reader, text: &str| {
        let mut reader = reader;
        let mut facts = Vec::new();
        reader.piece(&piece(reader.next(), text.as_bytes()), &mut facts);
        facts.pop()
    };
    let new = || Reader::new(Provider::Claude, 0);
    let good = Some(Fact::Result { text: "Done without it.".into(), is_error: false });
    assert_eq!(last(new(), &format!("{ASKS}\n{DENIED}\n")), good);
    let why = "it was not permitted: Bash: touch ../x. Its last words: Done without it.";
    let bad = Some(Fact::Result { text: why.into(), is_error: true });
    assert_eq!(last(new(), &format!("{DENIED}\n")), bad);
    let other = ASKS.replace("toolu_1", "toolu_2");
    assert_eq!(last(new(), &format!("{other}\n{DENIED}\n")), bad);
    // A reader that starts after the question gets the ids from its caller.
    let ids = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect::<Asked>();
    assert_eq!(last(new().after(ids(&["toolu_1"])), &format!("{DENIED}\n")), good);
    let mut many = ids(&["toolu_1"]);
    many.extend((0..MOST_ASKED).map(|n| format!("later-{n}")));
    assert_eq!(many.iter().count(), MOST_ASKED);
    assert_eq!(last(new().after(many), &format!("{DENIED}\n")), bad);
}

/// A line in which the model asks a person these questions.
fn asks_questions(questions: &Value) -> String {
    let input = json!({"questions": questions});
    let request = json!({"subtype": "can_use_tool", "tool_name": "AskUserQuestion",
        "input": input, "tool_use_id": "toolu_1"});
    json!({"type": "control_request", "request_id": "r", "request": request}).to_string()
}

/// The reply to the tool for a person's answer.
fn tool_input(asking: &str, said: &str) -> Value {
    let line = launch::answer(Provider::Claude, asking.as_bytes(), said).unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    let response = &line["response"]["response"];
    assert_eq!(response["behavior"], "allow", "{line}");
    response["updatedInput"].clone()
}

fn database(several: bool) -> Value {
    json!({"question": "Which database?", "header": "DB", "multiSelect": several, "options": [
        {"label": "PostgreSQL", "description": "as in production"},
        {"label": "SQLite, in memory"},
    ]})
}

#[test]
fn a_question_of_claudes_model_accepts_a_label_a_number_or_text() {
    let asking = asks_questions(&json!([database(false)]));
    let told = Told::new(0, &read(Provider::Claude, &format!("{asking}\n")));
    let question = &told.asks[0].question;
    assert_eq!(
        question.text,
        "Which database?\n  1) PostgreSQL: as in production\n  2) SQLite, in memory\n\
        Answer with an option, its number, or your own words."
    );
    assert_eq!(question.options, ["PostgreSQL", "SQLite, in memory"]);
    for (said, answer) in [
        ("postgresql", "PostgreSQL"),
        ("2", "SQLite, in memory"),
        (" 2) ", "SQLite, in memory"),
        ("sqlite, in memory", "SQLite, in memory"),
        ("3", "3"),
        ("0", "0"),
        ("no", "no"),
        ("MySQL, if you can; else none", "MySQL, if you can; else none"),
    ] {
        let input = tool_input(&asking, said);
        assert_eq!(input["answers"], json!({"Which database?": answer}), "{said}");
        assert_eq!(input["questions"], json!([database(false)]));
    }
    let line = launch::answer(Provider::Claude, asking.as_bytes(), "  ").unwrap();
    assert!(line.contains(r#""behavior":"deny""#), "{line}");
}

#[test]
fn several_questions_with_options_are_answered_together() {
    let name = json!({"question": "Which name?", "options": [{"label": "a"}, {"label": "b"}]});
    let asking = asks_questions(&json!([database(true), name]));
    let told = Told::new(0, &read(Provider::Claude, &format!("{asking}\n")));
    let question = &told.asks[0].question;
    assert!(question.text.contains("1. Which database?") && question.options.is_empty());
    assert!(question.text.contains("\n2. Which name?\n  1) a\n  2) b\n"), "{question:?}");
    for separated in ["1, SQLite; B", "1,SQLite\nb"] {
        let answers = json!({"Which database?": "PostgreSQL, SQLite", "Which name?": "b"});
        assert_eq!(tool_input(&asking, separated)["answers"], answers, "{separated}");
    }
    let both = &tool_input(&asking, "1, 2; own")["answers"]["Which database?"];
    assert_eq!(*both, "PostgreSQL, SQLite, in memory");
    let words = tool_input(&asking, "decide yourself");
    assert_eq!((&words["response"], &words["answers"]), (&json!("decide yourself"), &Value::Null));
}

#[test]
fn a_tool_without_readable_questions_is_a_request_for_permission() {
    for questions in [json!([]), json!("x"), json!([{"question": " "}]), json!([1])] {
        let asking = asks_questions(&questions);
        let told = Told::new(0, &read(Provider::Claude, &format!("{asking}\n")));
        assert_eq!(told.asks[0].question.options, ["yes", "no"], "{questions}");
        assert!(launch::answer(Provider::Claude, asking.as_bytes(), "no").is_some());
    }
}

#[test]
fn codex_output_is_parsed() {
    let facts = read(Provider::Codex, CODEX);
    let usage = Usage {
        input_tokens: 24,
        output_tokens: 6,
        cached_input_tokens: 8,
        cache_write_tokens: 0,
        reasoning_tokens: 2,
    };
    let command = json!({"command": "/bin/bash -lc 'echo made > made.txt'"});
    let expected = [
        Fact::Conversation { id: "01a20447-5f76-7352-8f32-1fee22c0bba0".into(), model: None },
        Fact::Trouble { message: "Model metadata for `gpt-5` not found.".into() },
        Fact::ToolUse { id: "item_1".into(), name: "shell".into(), args: command },
        Fact::ToolResult {
            id: "item_1".into(),
            name: Some("shell".into()),
            ok: true,
            output: String::new(),
        },
        Fact::Said { text: "All done.".into(), within: None },
        Fact::Answer { text: "All done.".into() },
        Fact::Spent(Spent {
            scope: Scope::Conversation,
            usage: Some(usage),
            cost_microusd: None,
            calls: 1,
        }),
    ];
    assert_eq!(facts, expected);
    assert_eq!(Told::new(0, &facts).answer.unwrap().text, "All done.");
    let failed = r#"{"type":"turn.failed","error":{"message":"out of credit"}}"#;
    let failed = read(Provider::Codex, &format!("{failed}\n"));
    assert_eq!(failed, [Fact::Result { text: "out of credit".into(), is_error: true }]);
}

#[test]
fn any_program_can_report_its_actions() {
    let facts = read(Provider::Lines, LINES);
    let kinds: Vec<&str> = facts.iter().filter_map(|fact| Some(fact.event()?.0)).collect();
    let expected = ["conversation", "tool_use", "said", "tool_result", "usage", "result"];
    assert_eq!(kinds, expected.map(|kind| format!("agent.{kind}")));
    assert!(kinds.iter().all(|kind| EVENTS.contains(kind)));
    let told = Told::new(0, &facts);
    assert_eq!(told.answer.unwrap().text, r#"{"files":2}"#);
    assert_eq!((told.asks, told.gone), (vec![], vec!["q".to_owned()]));
    assert_eq!(told.spent[0].cost_microusd, Some(250_000));
    assert_eq!(told.spent[0].usage.unwrap().output_tokens, 2);
}

#[test]
fn a_replaced_half_character_loses_no_fact() {
    let result = r#"{"type":"result","subtype":"success","is_error":true,"result":"I could not \ud92c","num_turns":1,"total_cost_usd":0.25,"usage":{"input_tokens":10.0,"output_tokens":5}}"#;
    let told = Told::new(0, &read(Provider::Claude, &format!("{result}\n")));
    let answer = Answer { text: "I could not \u{fffd}".into(), is_error: true };
    assert_eq!(told.answer, Some(answer));
    assert_eq!(told.spent[0].usage.unwrap().input_tokens, 10);
    assert_eq!(told.spent[1].cost_microusd, Some(250_000));
    let asks =
        r#"{"overmind":{"asks":{"text":"Delete \ud83d all?","options":["yes","no"],"id":"q"}}}"#;
    let told = Told::new(0, &read(Provider::Lines, &format!("{asks}\n")));
    assert_eq!(told.asks[0].question.text, "Delete \u{fffd} all?");
    let said = r#"{"type":"item.completed","item":{"type":"agent_message","text":"\udc00 done"}}"#;
    let told = Told::new(0, &read(Provider::Codex, &format!("{said}\n")));
    assert_eq!(told.answer.unwrap().text, "\u{fffd} done");
    let asking = ASKS.replace("touch", r"\ud83d touch");
    assert!(launch::answer(Provider::Claude, asking.as_bytes(), "y").is_some());
}

#[test]
fn an_unreadable_result_line_is_reported_and_is_no_success() {
    for (provider, line, is_result) in [
        (Provider::Claude, r#"{"type":"result","is_error":false,"result":"done"#, true),
        (Provider::Claude, r#"{"type":"assistant","message":{"content":[}"#, false),
        (Provider::Codex, r#"{"type":"turn.failed","error":{"message":"out of"#, true),
        (
            Provider::Codex,
            r#"{"type":"item.completed","item":{"type":"agent_message","text":"a"#,
            true,
        ),
        (Provider::Lines, r#"{"overmind":{"result":"3 places}}"#, true),
        (Provider::Lines, r#"{"overmind":{"asks":{"text":"Delete?"}"#, false),
    ] {
        let facts = read(provider, &format!("{line}\n"));
        assert!(facts.iter().any(|fact| matches!(fact, Fact::Trouble { .. })), "{line}");
        let failed = Told::new(0, &facts).answer.is_some_and(|answer| answer.is_error);
        assert_eq!(failed, is_result, "{line}");
    }
    for line in ["{ not ours", "{\"type\": 1", "{\"overmind"] {
        assert_eq!(read(Provider::Lines, &format!("{line}\n")), [], "{line}");
    }
    // The last one counts: one that follows and can be read is the result.
    let text = "{\"overmind\":{\"result\":\n{\"overmind\":{\"result\":\"yes\"}}\n";
    let told = Told::new(0, &read(Provider::Lines, text));
    assert_eq!(told.answer, Some(Answer { text: "yes".into(), is_error: false }));
}

#[test]
fn a_resumed_reader_finds_the_same_facts() {
    for (provider, text) in
        [(Provider::Claude, CLAUDE), (Provider::Codex, CODEX), (Provider::Lines, LINES)]
    {
        let whole = read(provider, text);
        for cut in 0..=text.len() {
            let (first, rest) = text.as_bytes().split_at(cut);
            let mut facts = Vec::new();
            let mut reader = Reader::new(provider, 0);
            reader.piece(&piece(0, first), &mut facts);
            // The same reader; and another one, after a crash.
            let mut same = facts.clone();
            let upto = reader.upto();
            reader.piece(&piece(cut as u64, rest), &mut same);
            assert_eq!(same, whole, "{provider:?} cut at {cut}");
            let mut other = Reader::new(provider, upto);
            let rest = &text.as_bytes()[usize::try_from(upto).unwrap()..];
            other.piece(&piece(upto, rest), &mut facts);
            assert_eq!(facts, whole, "{provider:?} read again at {upto}");
        }
    }
}

#[test]
fn errors_notes_gaps_and_earlier_attempts_are_not_parsed_as_lines() {
    let line = "{\"overmind\":{\"said\":\"whole\"}}\n";
    let (a, b) = line.split_at(9);
    let mut reader = Reader::new(Provider::Lines, 0);
    let mut facts = Vec::new();
    reader.piece(&piece(0, a.as_bytes()), &mut facts);
    // Typed text and error messages appear between two halves of a line.
    let note = NoteLike { kind: LogKind::Note(crate::process::NoteKind::Human), bytes: b"hi\n" };
    let stderr = NoteLike { kind: LogKind::Stderr, bytes: b"{\"overmind\":{\"said\":\"no\"}}\n" };
    let mut at = 9;
    for NoteLike { kind, bytes } in [note, stderr] {
        reader.piece(&LogPiece { kind, ..piece(at, bytes) }, &mut facts);
        at += bytes.len() as u64;
    }
    assert_eq!(reader.upto(), 0, "the line is not over");
    reader.piece(&piece(at, b.as_bytes()), &mut facts);
    assert_eq!(facts, [Fact::Said { text: "whole".into(), within: None }]);
    // Half a line, and then a hole or another life: it never ends.
    facts.clear();
    at = reader.next();
    reader.piece(&piece(at, a.as_bytes()), &mut facts);
    reader.piece(&piece(at + 500, line.as_bytes()), &mut facts);
    assert_eq!(facts.len(), 1);
    at = reader.next();
    reader.piece(&piece(at, a.as_bytes()), &mut facts);
    reader.piece(&LogPiece { epoch: 2, ..piece(at + 9, line.as_bytes()) }, &mut facts);
    assert_eq!(facts.len(), 2);
    // A piece that was read already reports nothing again, and the last line needs no end.
    reader.piece(&piece(0, line.as_bytes()), &mut facts);
    at = reader.next();
    let last = line.trim_end().as_bytes();
    reader.piece(&LogPiece { epoch: 2, ..piece(at, last) }, &mut facts);
    assert_eq!(facts.len(), 2);
    reader.end(&mut facts);
    assert_eq!(facts.len(), 3);
}

struct NoteLike {
    kind: LogKind,
    bytes: &'static [u8],
}

#[test]
fn too_long_and_too_deep_values_are_dropped() {
    let long = "x".repeat(MAX_LINE + 10);
    let said = |text: &str| format!("{}\n", json!({"overmind": {"said": text}}));
    let text = said(&long) + &said("after");
    let mut reader = Reader::new(Provider::Lines, 0);
    let mut facts = Vec::new();
    for (at, part) in text.as_bytes().chunks(64 << 10).enumerate() {
        reader.piece(&piece((at * (64 << 10)) as u64, part), &mut facts);
    }
    let [Fact::Trouble { message }, after] = &facts[..] else { panic!("{facts:?}") };
    assert!(message.contains(r#"bytes; it begins {"overmind":{"said":"xxx"#), "{message}");
    assert_eq!(*after, Fact::Said { text: "after".into(), within: None });

    let text = format!("{}é", "x".repeat(MAX_TEXT - 1));
    let facts = read(Provider::Lines, &said(&text));
    assert_eq!(facts, [Fact::Said { text: "x".repeat(MAX_TEXT - 1), within: None }]);

    let mut deep = json!("x".repeat(MAX_ARG * 2));
    for _ in 0..60 {
        deep = json!({ "a": deep });
    }
    let tool = json!({"overmind": {"tool": {"name": "t", "args": deep}}});
    let facts = read(Provider::Lines, &format!("{tool}\n"));
    let Some(Fact::ToolUse { args, .. }) = facts.first() else { panic!("{facts:?}") };
    assert!(args.to_string().len() < 1000, "{args}");
    let many: Vec<String> = (0..50).map(|_| "x".repeat(1000)).collect();
    let tool = json!({"overmind": {"tool": {"name": "t", "args": many}}});
    let facts = read(Provider::Lines, &format!("{tool}\n"));
    let Some(Fact::ToolUse { args, .. }) = facts.first() else { panic!("{facts:?}") };
    assert_eq!(args.as_str().map(str::len), Some(MAX_ARGS));
}

/// Tests random changes of real lines, random pieces and random bytes: nothing panics, and every
/// fact can be recorded within its limits.
#[test]
fn any_output_is_parsed_without_a_panic() {
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = |most: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % most as u64).unwrap()
    };
    let asks = format!("{ASKS}\n");
    let samples = [CLAUDE, CODEX, LINES, &asks];
    let words = ["null", "{}", "[]", "-1", "1e400", "\"\"", "true", "{\"a\":", "\\u0000", "\u{e9}"];
    for round in 0..4000 {
        let mut text = samples[below(samples.len())].as_bytes().to_vec();
        for _ in 0..below(6) {
            let at = below(text.len() + 1);
            match below(4) {
                0 => text.truncate(at),
                1 => drop(text.splice(at..at, words[below(words.len())].bytes())),
                2 => {
                    let end = (at + below(40)).min(text.len());
                    text.drain(at..end);
                }
                _ => text.insert(at, u8::try_from(below(256)).unwrap()),
            }
            if text.is_empty() {
                text.push(b'{');
            }
        }
        for provider in [Provider::Raw, Provider::Claude, Provider::Codex, Provider::Lines] {
            let mut reader = Reader::new(provider, 0);
            let (mut facts, mut at) = (Vec::new(), 0);
            while at < text.len() {
                let end = (at + 1 + below(200)).min(text.len());
                reader.piece(&piece(at as u64, &text[at..end]), &mut facts);
                assert!(reader.upto() <= end as u64);
                at = end;
            }
            reader.end(&mut facts);
            assert!(provider != Provider::Raw || facts.is_empty());
            for event in facts.iter().filter_map(Fact::event) {
                let size = Value::Object(event.1).to_string().len();
                assert!(size < 8 * MAX_TEXT, "round {round}: {} of {size}", event.0);
            }
            let told = serde_json::to_string(&Told::new(1, &facts)).unwrap();
            assert_eq!(serde_json::from_str::<Told>(&told).unwrap(), Told::new(1, &facts));
        }
        let _ = launch::answer(Provider::Claude, &text, "yes");
    }
}

#[test]
fn an_unfinished_turn_fails_with_the_reason() {
    let ended = |fields: Value| {
        let mut event = json!({"type": "result", "subtype": "success", "is_error": false,
            "result": "I am done.", "stop_reason": "end_turn", "permission_denials": []});
        event.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        match read(Provider::Claude, &format!("{event}\n")).pop() {
            Some(Fact::Result { text, is_error }) => (text, is_error),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ended(json!({})), ("I am done.".to_owned(), false));
    let denied = |count: usize| {
        let one = json!({"tool_name": "Bash", "tool_use_id": "t",
            "tool_input": {"command": "make test\nrm x"}});
        json!({"permission_denials": vec![one; count]})
    };
    for (fields, why) in [
        (denied(1), "it was not permitted: Bash: make test. Its last words: I am done."),
        (denied(7), "Bash: make test; and 2 more. Its last words: I am done."),
        (json!({"subtype": "error_max_turns", "result": null}), "it used all the turns"),
        (json!({"subtype": "error_during_execution", "result": null}), "ended with error_during"),
        (json!({"subtype": "error_max_turns", "result": "", "is_error": true}), "all the turns"),
        (json!({"subtype": "e", "is_error": true, "result": "", "errors": ["a", "b"]}), "a; b"),
        (json!({"stop_reason": "max_turns"}), "it used all the turns"),
        (json!({"stop_reason": "max_tokens"}), "cut off"),
        (json!({"stop_reason": "refusal"}), "refused to answer"),
    ] {
        let (text, is_error) = ended(fields.clone());
        assert!(is_error && text.contains(why), "{fields}: {text}");
    }
}

fn own(provider: Provider, argv: &[&str]) -> CommandSpec {
    let argv = argv.iter().map(|arg| (*arg).to_owned()).collect();
    CommandSpec { argv, provider, terminal: true, ..CommandSpec::default() }
}

#[test]
fn programs_are_started_with_the_arguments_that_they_need() {
    let claude = own(Provider::Claude, &[]);
    assert!(launch::is_own(&claude) && launch::is_read(&claude) && !launch::has_terminal(&claude));
    // In a sandbox no question is asked.
    let line = launch::line(&claude, true, "", "-do it", None, None);
    let words =
        "claude -p --output-format stream-json --verbose --permission-mode bypassPermissions --";
    let expected: Vec<&str> = words.split(' ').chain(["-do it"]).collect();
    assert_eq!((line.argv.iter().map(String::as_str).collect(), line.first), (expected, None));
    assert_eq!(launch::input_of(&claude, true), launch::Input::Closed);
    // A later attempt continues the conversation, which contains the task.
    let again = launch::line(&claude, true, "", "-do it", Some("c-1"), None).argv;
    assert_eq!(again[again.len() - 4..], ["--resume", "c-1", "--", launch::GO_ON]);
    // In none a person is, and the task is typed.
    let line = launch::line(&claude, false, "", "-do it", None, None);
    let words = "claude -p --input-format stream-json --output-format stream-json --verbose \
                 --permission-mode acceptEdits --permission-prompt-tool stdio";
    assert_eq!(line.argv.join(" "), words);
    let typed = |text: &str| {
        let message = json!({"role": "user", "content": text});
        json!({"type": "user", "message": message}).to_string() + "\n"
    };
    assert_eq!(line.first, Some(typed("-do it")));
    let again = launch::line(&claude, false, "", "-do it", Some("c-1"), None);
    assert_eq!(again.first, Some(typed(launch::GO_ON)));
    assert_eq!(launch::input_of(&claude, false), launch::Input::UntilAnswer);
    // An agent that names another permission tool keeps it.
    let asked = own(Provider::Claude, &["--permission-prompt-tool", "mcp__a__b"]);
    let line = launch::line(&asked, false, "", "do", None, None);
    assert_eq!((launch::input_of(&asked, false), line.first), (launch::Input::Closed, None));

    let model = Some("opus".to_owned());
    let argv = &["--dangerously-skip-permissions"];
    let kind = CommandKind::Session;
    let session = CommandSpec { model, kind, ..own(Provider::Claude, argv) };
    let line = launch::line(&session, true, "", "hello", None, None);
    let text = line.argv.join(" ");
    assert!(!text.contains("--permission-mode") && text.contains("--model opus"), "{text}");
    assert!(text.ends_with(argv[0]) && text.contains("--input-format stream-json"), "{text}");
    let first = line.first.unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&first).unwrap(),
        json!({"type": "user", "message": {"role": "user", "content": "hello"}})
    );
    let later = launch::line(&session, false, "", "hello", Some("c"), None);
    assert_eq!(later.first, None, "it was said already");
    assert_eq!(launch::input_of(&session, true), launch::Input::Open);

    let codex = own(Provider::Codex, &["-c", "x=1"]);
    for (enclosed, sandbox) in
        [(false, "--sandbox workspace-write"), (true, "--dangerously-bypass-approvals-and-sandbox")]
    {
        let line = launch::line(&codex, enclosed, "", "do", Some("t-1"), None).argv.join(" ");
        let begin = format!("codex exec --json --skip-git-repo-check {sandbox} -c x=1 resume");
        assert_eq!(line, format!("{begin} t-1 -- {}", launch::GO_ON));
        assert_eq!(launch::input_of(&codex, enclosed), launch::Input::Closed);
    }
    let other = CommandSpec { kind, ..codex };
    assert!(other.check().is_err(), "codex takes no input");

    // Any other program is run as it is written.
    let custom = own(Provider::Claude, &["my-claude", "-p"]);
    assert!(!launch::is_own(&custom) && launch::has_terminal(&custom));
    assert!(!launch::is_read(&custom), "a screen is not read");
    for enclosed in [false, true] {
        let line = launch::line(&custom, enclosed, "", "x", Some("c"), None);
        assert_eq!(line.argv, ["my-claude", "-p", "x"]);
    }
    assert!(own(Provider::Lines, &[]).check().is_err());
    assert!(own(Provider::Claude, &[]).check().is_ok());
}

#[test]
fn context_instructions_reach_the_models_of_claude_and_codex() {
    let text = "Say \"why\".\nC:\\x";
    let of =
        |command: &CommandSpec, said: &str| launch::line(command, true, said, "do", None, None);
    let claude = of(&own(Provider::Claude, &["--effort", "low"]), text).argv;
    assert_eq!(claude[claude.len() - 4..], ["--append-system-prompt", text, "--", "do"]);
    // Text that the agent itself appends is kept, in either spelling.
    let own_words = own(Provider::Claude, &["--append-system-prompt", "Own."]);
    let argv = of(&own_words, text).argv;
    let said = format!("Own.\n\n{text}");
    assert_eq!(argv[argv.len() - 4..], ["--append-system-prompt", said.as_str(), "--", "do"]);
    let argv = of(&own(Provider::Claude, &["--append-system-prompt=Own."]), text).argv;
    assert_eq!(argv[argv.len() - 3], format!("--append-system-prompt={said}"));
    // In a later life, too: a conversation does not keep them.
    let again = launch::line(&own_words, true, text, "do", Some("c-1"), None).argv;
    assert!(again.contains(&said), "{again:?}");

    let codex = own(Provider::Codex, &["-c", "developer_instructions=\"Own.\""]);
    let argv = launch::line(&codex, true, text, "do", Some("c-1"), None).argv;
    let given = r#"developer_instructions="Say \"why\".\nC:\\x""#;
    let places: Vec<_> =
        argv.iter().enumerate().filter(|(_, arg)| arg.starts_with("dev")).collect();
    assert_eq!(places[0].1, given);
    assert!(places[1].1.ends_with("\"Own.\"") && argv.len() > places[1].0 + 1, "{argv:?}");
    for command in [own(Provider::Claude, &[]), own(Provider::Codex, &[])] {
        let argv = of(&command, "").argv.join(" ");
        assert!(!argv.contains("append") && !argv.contains("developer"), "{argv}");
    }
    // A command that names its program is started as it is.
    let named = own(Provider::Claude, &["claude", "-p", "{task}"]);
    assert_eq!(of(&named, text).argv, ["claude", "-p", "do"]);
}
