//! The targets. To add one: write a function, give it a line in [`TARGETS`] with seeds that pass
//! its parser, and an entry file in `fuzz_targets/`.

mod replies;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use overmind_core::Fut;
use overmind_core::ids::{
    AgentId, ApprovalId, ColonyId, EffectId, HiveId, MemoryId, SessionId, StepId,
};
use overmind_core::memory::{
    Memory, MemoryDraft, MemoryError, MemoryHit, MemoryItem, MemoryQuery, Reembedded,
};
use overmind_core::off_limits::OffLimits;
use overmind_core::policy::rules;
use overmind_core::replay::Replayer;
use overmind_core::sandbox::{SandboxLevel, SandboxLimits};
use overmind_core::session::Toolset;
use overmind_core::time::Timestamp;
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec, Toolbox};
use overmind_tools::{Gateway, Parts};
use serde_json::Value;

use crate::Target;

/// Every target, by name.
pub const TARGETS: &[Target] = &[
    Target {
        name: "bodies",
        run: bodies,
        seeds: &[
            r#"{"name":"a","role":"b","model":"deterministic","tools_allowed":["run_shell"],"limits":{"max_steps":5}}"#,
            r#"{"agent_id":"agt_019000000000700080000000000000ff","task":"do it","step_limit":3,"workspace":"/x"}"#,
            r#"{"collection":"default","text":"x","metadata":{"a":1},"query":"x","top_k":5}"#,
            r#"{"message":"yes","approve":true,"reason":"r","at":2,"model":"m","prompt":"p"}"#,
        ],
        words: &[
            "\"name\":",
            "\"limits\":",
            "\"top_k\":",
            "\"metadata\":",
            "\"workspace\":",
            "\"tools_allowed\":[",
        ],
    },
    Target {
        name: "cassette",
        run: cassette,
        seeds: &[
            r#"{"name":"greet","turns":[{"reasoning":"r","text":"t","calls":[{"name":"read_file","args":{"path":"a"}}]},{"expect":{"last_tool_contains":"h"},"text":"x","usage":{"input_tokens":1,"output_tokens":2},"delay_ms":200},{"fail":{"code":"overloaded","message":"busy","transient":true}}]}"#,
        ],
        words: &["\"text\":", "\"calls\":[", "\"name\":", "\"args\":", "\"usage\":"],
    },
    Target {
        name: "ids",
        run: ids,
        seeds: &[
            "ses_019000000000700080000000000000ff",
            "hive_00000000000070008000000000000001",
            "2026-11-21T20:19:55.182849+00:00",
        ],
        words: &["ses_", "agt_", "apr_", "eff_", "mem_", "col_", "T", "Z", "+00:00", "-99999"],
    },
    Target {
        name: "log",
        run: log,
        seeds: &[
            "run.queued {\"run_id\":\"ses_019000000000700080000000000000ff\",\"colony\":\"col_00000000000070008000000000000001\",\"agent_id\":\"agt_019000000000700080000000000000ff\",\"agent_version\":1,\"agent\":{\"name\":\"a\",\"role\":\"r\",\"model\":\"deterministic\",\"tools_allowed\":[\"run_shell\"]},\"task\":\"shell: ls\",\"step_limit\":5,\"workspace\":\"/w\",\"created_by\":\"u\",\"toolset\":\"t\"}\nrun.started {\"epoch\":1,\"hive\":\"hive_00000000000070008000000000000001\"}\ntool.called {\"effect\":0,\"allowed\":true,\"latency_ms\":3,\"result\":{\"ok\":true}}\nrun.recovered {\"epoch\":2,\"hive\":\"hive_00000000000070008000000000000001\"}",
            "run.queued {\"run_id\":\"ses_019000000000700080000000000000ff\",\"colony\":\"col_00000000000070008000000000000001\",\"agent_id\":\"agt_019000000000700080000000000000ff\",\"agent_version\":1,\"agent\":{\"name\":\"a\",\"role\":\"r\",\"model\":\"m\",\"tools_allowed\":[\"run_shell\"],\"approvals\":[\"*\"]},\"task\":\"t\",\"step_limit\":0,\"workspace\":\"/w\",\"created_by\":\"u\",\"toolset\":\"t\"}\nrun.started {\"epoch\":1,\"hive\":\"hive_00000000000070008000000000000001\"}\nmodel.infer.completed {\"effect\":0,\"latency_ms\":1,\"reply\":{\"text\":\"\",\"calls\":[{\"id\":\"c\",\"name\":\"run_shell\",\"args\":{\"command\":\"ls\"}}],\"usage\":{\"input_tokens\":1,\"output_tokens\":1},\"stop\":\"tool_calls\",\"model\":\"m\",\"provider\":\"p\"}}\nrun.canceled {\"by\":\"u\"}",
        ],
        words: &[
            "\nrun.input_received {\"message\":\"m\",\"by\":\"u\",\"epoch\":2,\"hive\":\"hive_00000000000070008000000000000001\"}",
            "\nrun.time_limit_reached {}",
            "\nrun.forked {}",
            "\nmodel.infer.failed {\"effect\":0,\"latency_ms\":1,\"error\":{\"code\":\"timeout\",\"message\":\"m\",\"transient\":true}}",
            "\"effect\":1",
            "\"epoch\":2",
        ],
    },
    Target {
        name: "gate",
        run: gate,
        seeds: &[
            "env nice -n 5 sh -c 'rm -rf src' && git -c core.pager='x' log | xargs -0 cat",
            "for f in *.rs; do cat <<EOF \"$f\" $(echo `id`)\n${x:-$(rm a)}\nEOF\ndone",
            "case $x in a|b) find . -exec rm {} \\;; esac; [[ -f x ]] && ((i++)); f() { ls; }; f",
            "version = 1\n[[rule]]\nid = \"a\"\nverdict = \"deny\"\npaths = [\"src/**\"]\nhosts = [\"*.x\"]\n",
        ],
        words: &[
            "$(",
            ")",
            "`",
            "'",
            "\"",
            "${x:-",
            "}",
            "<<EOF\n",
            "\nEOF\n",
            " && ",
            " | ",
            "; ",
            "sh -c ",
            "env ",
            "eval ",
            "{a,b}",
            "$'\\x41'",
            "((",
            "))",
            "if ",
            "; then ",
            "; fi",
            "xargs ",
            "[[ ",
            " ]]",
            "sed ",
            "awk ",
            "[[rule]]\n",
            "**",
        ],
    },
    Target {
        name: "redact",
        run: redact,
        seeds: &["Authorization: Bearer abc", "key=AKIAIOSFODNN7EXAMPLE", "{\"token\":\"x\"}"],
        words: &[
            "sk-",
            "sk-ant-",
            "ghp_",
            "Bearer ",
            "AKIA",
            "-----BEGIN PRIVATE KEY-----",
            "password=",
            "[redacted:",
            "]",
        ],
    },
    Target {
        name: "replies",
        run: replies::run,
        // The first byte: format (chat, responses, messages) and then status and content type.
        seeds: &[
            "\u{0}data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\",\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
            "\u{1}event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"item_id\":\"m\",\"output_index\":0,\"content_index\":0,\"delta\":\"Hi\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"status\":\"completed\",\"model\":\"m\",\"output\":[{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"Hi\"}]},{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}],\"usage\":{\"input_tokens\":1,\"output_tokens\":2}}}\n\n",
            "\u{2}event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"model\":\"m\",\"usage\":{\"input_tokens\":1}}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\nevent: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":2}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
            "\u{3}{\"choices\":[{\"message\":{\"content\":\"Hi\"},\"finish_reason\":\"stop\"}]}",
            "\u{6}{\"error\":{\"message\":\"no key-that-nobody-may-see\",\"type\":\"invalid_request_error\"}}",
            "\u{9}slow down, key-that-nobody-may-see",
        ],
        words: &[
            "data: ",
            "\n\n",
            "\"delta\":",
            "\"error\":",
            "key-that-nobody-may-see",
            "\"index\":",
            "[DONE]",
            "\"arguments\":\"{\"",
        ],
    },
    Target {
        name: "rules",
        run: rules,
        seeds: &[
            "shell: ls -l",
            "write: a.txt: hello",
            "recall: notes: find the run",
            "curl http://x/'y",
            "save it to a.txt",
        ],
        words: &["shell:", "write:", "read:", "recall:", "remember:", " to ", "curl ", "https://"],
    },
    Target {
        name: "sse",
        run: sse,
        seeds: &[
            "event: message\ndata: {\"a\":1}\n\n: ping\n\ndata: x\ndata: y\r\n\r\ndata: [DONE]\n\n",
            "\u{feff}data:a\rdata\r\rid: 1\nretry: 5\n\n",
        ],
        words: &["data: ", "event: ", "\n\n", "\r\n\r\n", ": ping\n", "data: [DONE]"],
    },
    Target {
        name: "terms",
        run: terms,
        seeds: &["title:\"drop table\" NEAR(x, 3) OR -y*", "cafe\u{301} Straße İ 日本語"],
        words: &[" OR ", " NEAR ", "\"", "*", "^", "\u{301}", "İ"],
    },
    Target {
        name: "tools",
        run: tools,
        seeds: &[
            r#"read_file {"path":"a.txt","offset":1,"limit":5}"#,
            r#"list_files {"path":".","recursive":true}"#,
            r#"edit_file {"path":"a.txt","old":"x","new":"y"}"#,
            r#"verify {"checks":[{"type":"file_entropy_min","path":"a.txt","min_entropy":1.5}]}"#,
            r#"read_file {"path":"out/secret.txt"}"#,
            r#"read_file {"path":"dir/../../secret.txt"}"#,
            r#"final_answer {"text":"done"}"#,
            r#"run_shell {"command":"ls","timeout_s":9.0}"#,
        ],
        words: &[
            "read_file ",
            "list_files ",
            "verify ",
            "\"path\":",
            "../",
            "out/",
            "secret.txt",
            "dir/",
            "/proc/self/root/",
            "./",
            "link",
        ],
    },
];

/// Bodies of requests. What is accepted must be writable again.
fn bodies(data: &[u8]) {
    macro_rules! body {
        ($($name:ident),*) => {$(
            if let Ok(body) = serde_json::from_slice::<overmind_api::$name>(data) {
                let _ = body.check();
                serde_json::to_string(&body).expect("what was read can be written");
            }
        )*};
    }
    body!(
        AgentCreate,
        AgentPatch,
        RunCreate,
        RunInput,
        ApprovalAnswer,
        ForkRequest,
        MemorySearch,
        MemoryStore,
        KeyCreate
    );
}

/// Cassettes: files that a user hands in. What one cassette is parsed to, it is parsed to again.
fn cassette(data: &[u8]) {
    let parsed = overmind_llm::Cassette::parse("fuzz", data);
    match (&parsed, overmind_llm::Cassette::parse("fuzz", data)) {
        (Ok(one), Ok(again)) => assert_eq!(*one, again),
        (Err(one), Err(again)) => assert_eq!(one.to_string(), again.to_string()),
        (one, again) => panic!("{one:?} and then {again:?}"),
    }
}

/// Ids and times. One spelling each: what parses prints the same.
fn ids(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    macro_rules! id {
        ($($name:ident),*) => {$(
            match text.parse::<$name>() {
                Ok(id) => assert_eq!(id.to_string(), text),
                Err(err) => assert!(err.to_string().len() < 1000, "an error must stay short"),
            }
        )*};
    }
    id!(AgentId, ApprovalId, ColonyId, EffectId, HiveId, MemoryId, SessionId, StepId);
    if let Ok(time) = text.parse::<Timestamp>() {
        assert_eq!(time.to_string().parse(), Ok(time));
    }
}

/// Masking: a secret that is known is gone, whatever stands around it, and stays gone.
fn redact(data: &[u8]) {
    static REDACTOR: OnceLock<overmind_store::redact::Redactor> = OnceLock::new();
    let redactor =
        REDACTOR.get_or_init(|| overmind_store::redact::Redactor::new(&[SECRET.to_owned()]));
    let text = String::from_utf8_lossy(data);
    let middle = (0..=text.len() / 2).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let mut masked = format!("{}{SECRET}{}", &text[..middle], &text[middle..]);
    redactor.text(&mut masked);
    assert!(!masked.contains(SECRET), "{masked:?}");
    let mut again = masked.clone();
    redactor.text(&mut again);
    assert_eq!(again, masked, "masking twice is masking once");
}

/// A session's log as lines `kind payload`: read, decided again and compared.
fn log(data: &[u8]) {
    static TOOLSET: OnceLock<Arc<Toolset>> = OnceLock::new();
    let toolset = TOOLSET.get_or_init(|| {
        let tool = ToolSpec {
            name: "run_shell".into(),
            description: String::new(),
            schema: Value::Null,
            class: EffectClass::Once,
            internal: false,
        };
        Arc::new(Toolset::new([tool].into()))
    });
    let Ok(text) = std::str::from_utf8(data) else { return };
    for verify in [false, true] {
        let redact = |_: &mut Value| {};
        let mut replayer = Replayer::default();
        for (seq, line) in text.lines().enumerate() {
            let (kind, payload) = line.split_once(' ').unwrap_or((line, ""));
            let seq = seq as u64;
            let at = Timestamp::from_micros(0);
            let found = |_: &str| Some(toolset.clone());
            let verify: Option<overmind_core::replay::Redact<'_>> =
                if verify { Some(&redact) } else { None };
            if replayer.event(seq, kind, at, payload, verify, &found).is_err() {
                return;
            }
        }
        let _ = replayer.finish(0);
    }
}

/// The text rules: the same decision every time, and arguments that are an object.
fn rules(data: &[u8]) {
    let Ok(task) = std::str::from_utf8(data) else { return };
    let decided = rules::decide(task);
    assert_eq!(decided, rules::decide(task));
    match decided {
        rules::Decided::Tool { args, .. } => assert!(args.is_object()),
        rules::Decided::Ask { prompt } => assert!(!prompt.is_empty()),
    }
}

/// A command and a policy: whatever they say, there is a verdict, always the same, and a subshell
/// around the command does not make it milder.
fn gate(data: &[u8]) {
    static POLICY: OnceLock<overmind_policy::Policy> = OnceLock::new();
    let Ok(text) = std::str::from_utf8(data) else { return };
    let judge = |command: &str| {
        POLICY.get_or_init(Default::default).judge(&overmind_policy::request(
            "run_shell",
            serde_json::json!({ "command": command }),
        ))
    };
    let verdict = judge(text);
    assert_eq!(verdict, judge(text));
    // One level more may be one too many, which is asked: so a denial may become that, no more. After
    // a backslash the line goes on, and what stands in the subshell is another command.
    if !text.ends_with('\\') {
        let inner = judge(&format!("(\n{text}\n)")).decision;
        assert!(inner >= verdict.decision.min(overmind_core::gate::Decision::Ask));
    }
    // What is no policy is refused with a place in the text.
    if let Err(err) = overmind_policy::Policy::parse(text, "p") {
        assert!(err.line >= 1 && err.column >= 1);
    }
}

/// Server-sent events: the pieces in which they come change nothing.
fn sse(data: &[u8]) {
    let whole = overmind_llm::sse::parse_all(data, data.len());
    for piece in [1, 2, 3, 7] {
        assert_eq!(overmind_llm::sse::parse_all(data, piece), whole, "in pieces of {piece}");
    }
}

/// A memory query: whatever it says, words come out, and few.
fn terms(data: &[u8]) {
    let words = overmind_memory::terms(&String::from_utf8_lossy(data));
    assert!(words.len() <= overmind_memory::MAX_TERMS);
    for word in &words {
        assert!(
            !word.is_empty()
                && !word.contains(|c: char| c.is_ascii_punctuation() || c.is_whitespace()),
            "{word:?}"
        );
    }
}

/// A tool call as `name arguments`, on a workspace with ways out of it. Nothing from outside the
/// workspace may come back, whatever the path says.
fn tools(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (name, args) = text.split_once(' ').unwrap_or((text, "{}"));
    // Writing is left to its own tests: random names would fill the disk.
    if matches!(name, "write_file" | "edit_file") {
        return;
    }
    let args: Value = serde_json::from_str(args).unwrap_or_else(|_| Value::String(args.to_owned()));
    let place = Place::get();
    let outcome = place.runtime.block_on(place.gateway.call(&place.context, name, &args));
    let result = outcome.result.to_string();
    assert!(!result.contains(SECRET), "a file outside the workspace was read: {result}");
    assert!(outcome.result["ok"].is_boolean(), "no envelope: {result}");
}

const SECRET: &str = "outside-and-secret";

struct Place {
    runtime: tokio::runtime::Runtime,
    gateway: Gateway,
    context: ToolContext,
    _dir: tempfile::TempDir,
}

impl Place {
    fn get() -> &'static Self {
        static PLACE: OnceLock<Place> = OnceLock::new();
        PLACE.get_or_init(|| {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let workspace = dir.path().join("workspace");
            let write =
                |path: &Path, text: &str| std::fs::write(path, text).expect("writing a file");
            std::fs::create_dir_all(workspace.join("dir")).expect("making a directory");
            write(&dir.path().join("secret.txt"), SECRET);
            write(&workspace.join("a.txt"), "one\ntwo\n");
            write(&workspace.join("dir/b.bin"), "\u{0}\u{1}");
            let link = |to: &Path, at: &str| {
                std::os::unix::fs::symlink(to, workspace.join(at)).expect("making a link");
            };
            link(dir.path(), "out");
            link(Path::new(".."), "dir/up");
            link(Path::new("../../secret.txt"), "dir/link");
            link(Path::new("/proc/self/root"), "root");
            link(Path::new("a.txt"), "link");
            let gateway =
                Gateway::new(Parts { sandboxes: Arc::new(|_| None), memory: Arc::new(NoMemory) });
            let allowed = gateway.specs().iter().map(|spec| spec.name.clone()).collect();
            let context = ToolContext {
                colony: ColonyId::DEFAULT,
                session: SessionId::from_u128(1),
                agent: AgentId::from_u128(1),
                effect: EffectId::from_u128(1),
                allowed,
                workspace,
                sandbox: SandboxLevel::Namespace,
                driver: None,
                limits: SandboxLimits::default(),
                claims: Default::default(),
                live: overmind_core::live::LiveSink::default(),
                traceparent: None,
                variables: Arc::default(),
                off_limits: OffLimits::default(),
            };
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime starts");
            Self { runtime, gateway, context, _dir: dir }
        })
    }
}

/// A memory that refuses everything: what is fuzzed lies before it.
#[derive(Debug)]
struct NoMemory;

impl NoMemory {
    fn refuse<T: Send + 'static>() -> Fut<'static, Result<T, MemoryError>> {
        Box::pin(std::future::ready(Err(MemoryError::Invalid { message: "none here".into() })))
    }
}

impl Memory for NoMemory {
    fn store(&self, _: MemoryDraft) -> Fut<'_, Result<MemoryItem, MemoryError>> {
        Self::refuse()
    }

    fn search(&self, _: MemoryQuery) -> Fut<'_, Result<Vec<MemoryHit>, MemoryError>> {
        Self::refuse()
    }

    fn reembed(&self, _: u32) -> Fut<'_, Result<Reembedded, MemoryError>> {
        Self::refuse()
    }

    fn collect(&self, _: u32) -> Fut<'_, Result<u64, MemoryError>> {
        Self::refuse()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use overmind_core::session::{Input, Recorded};

    use super::*;

    fn seeds(name: &str) -> &'static [&'static str] {
        crate::target(name).expect("a target").seeds
    }

    #[test]
    fn every_target_has_a_libfuzzer_entry_and_passes_on_its_seeds() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz_targets");
        let files: BTreeSet<String> = std::fs::read_dir(dir)
            .expect("the directory of entries")
            .map(|entry| entry.expect("an entry").path())
            .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
            .collect();
        assert_eq!(files, TARGETS.iter().map(|target| target.name.to_owned()).collect());
        for target in TARGETS {
            assert!(!target.seeds.is_empty(), "{} starts from nothing", target.name);
            for seed in target.seeds {
                (target.run)(seed.as_bytes());
            }
        }
    }

    #[test]
    fn every_target_passes_on_earlier_crashes_and_new_inputs() {
        let seed = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        for target in TARGETS {
            let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(target.name);
            for file in std::fs::read_dir(old).into_iter().flatten() {
                let file = file.expect("an entry").path();
                eprintln!("{}", file.display());
                (target.run)(&std::fs::read(file).expect("a regression"));
            }
            let mut mutator = crate::Mutator::new(target, seed);
            for _ in 0..200 {
                let input = mutator.next_input();
                eprintln!("{}, seed {seed}: {:?}", target.name, String::from_utf8_lossy(&input));
                (target.run)(&input);
            }
        }
    }

    // What follows proves that the seeds get through the front door: a target whose seeds are all
    // refused at once would test nothing.

    #[test]
    fn the_seeds_of_cassette_and_log_are_valid() {
        for seed in seeds("cassette") {
            overmind_llm::Cassette::parse("seed", seed.as_bytes()).expect("a good cassette");
        }
        for seed in seeds("log") {
            let mut inputs = 0;
            for line in seed.lines() {
                let (kind, payload) = line.split_once(' ').expect("kind and payload");
                match Recorded::decode(kind, payload).expect("a good payload") {
                    Recorded::Input(Input::Started { .. }) | Recorded::Input(_) => inputs += 1,
                    Recorded::Queued(_) => {}
                    other => panic!("{kind} is {other:?}"),
                }
            }
            assert!(inputs >= 3, "{seed}");
        }
    }

    #[test]
    fn the_seeds_of_tools_reach_the_workspace_and_nothing_outside() {
        let place = Place::get();
        let result = |seed: &str| {
            let (name, args) = seed.split_once(' ').expect("name and arguments");
            let args: Value = serde_json::from_str(args).expect("arguments are JSON");
            let call = place.gateway.call(&place.context, name, &args);
            place.runtime.block_on(call).result
        };
        let inside = result(r#"read_file {"path":"a.txt"}"#);
        assert!(inside.to_string().contains("two"), "{inside}");
        let outside = result(r#"read_file {"path":"out/secret.txt"}"#);
        assert_eq!(outside["ok"], false, "{outside}");
        // The check that looks for the secret would see it.
        let secret = place.context.workspace.parent().expect("a parent").join("secret.txt");
        assert_eq!(std::fs::read_to_string(secret).expect("it is there"), SECRET);
    }
}
