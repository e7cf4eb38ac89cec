//! Whatever the text: an answer, in bounded time and stack, and no wrapper that loosens it.

use std::sync::LazyLock;

use overmind_core::gate::Decision;
use overmind_policy::Policy;
use overmind_testkit::soak;
use proptest::prelude::*;

use super::corpus::{bypasses, harmless, shell};

static POLICY: LazyLock<Policy> = LazyLock::new(Policy::default);

const WRAPPERS: &[&str] = &[
    "env @",
    "env A=1 @",
    "nice -n 5 @",
    "timeout 5 @",
    "nohup @",
    "setsid @",
    "stdbuf -oL @",
    "time @",
    "command @",
    "exec @",
    "busybox @",
    "sh -c '@'",
    "bash -lc '@'",
    "env sh -c '@'",
    "eval '@'",
    "( @ )",
    "{ @; }",
    "if true; then @; fi",
    "for i in 1; do @; done",
    "while @; do :; done",
    "wrapped() { @; }; wrapped",
    "echo $( @ )",
    "echo \"$( @ )\"",
    "x=$( @ )",
    "cat <( @ )",
    "true && @",
    "false || @",
    "ls; @",
    "@ &",
    "! @",
    "trap '@' EXIT",
    "case x in x) @;; esac",
    "sh <<'EOF'\n@\nEOF\n",
    "bash <<< '@'",
    "sudo @",
    "ssh host.example '@'",
    "cat <<EOF\n$( @ )\nEOF\n",
    "nice env timeout 3 sh -c '@'",
];

/// Whether the words of a command may follow a wrapper that takes words, or stand in its quotes.
fn fits(wrapper: &str, command: &str) -> bool {
    let quoted = wrapper.contains("'@'");
    let words = !quoted && wrapper.ends_with(" @") && !wrapper.contains([';', '&', '|', '!']);
    let lists = [';', '&', '|', '\n', '(', '{', '!', '[', '<', '>', '=']
        .iter()
        .any(|c| command.contains(*c))
        || [
            "if ", "for ", "while ", "case ", "until ", "select ", "time ", "set ", "export ",
            "cd ", "source ", ". ", "eval ", "trap ", "alias ", "type ", "true",
        ]
        .iter()
        .any(|word| command.starts_with(word));
    let breaks_quotes = quoted && command.contains('\'');
    let breaks_words = words && lists;
    let breaks_lines = command.contains(['\n', '#', '\0']);
    !breaks_quotes && !breaks_words && !breaks_lines
}

#[test]
fn wrappers_never_loosen_a_verdict() {
    let policy = &*POLICY;
    // All of them are tried by `cargo xtask soak`; here each wrapper meets one command in five.
    let stride = soak::count(5, 1);
    let commands = bypasses().into_iter().map(|(_, command)| command).chain(harmless());
    let mut problems = Vec::new();
    let mut compared = 0;
    for command in commands.step_by(stride) {
        let bare = policy.judge(&shell(&command)).decision;
        for wrapper in WRAPPERS.iter().filter(|wrapper| fits(wrapper, &command)) {
            let wrapped = wrapper.replace('@', &command);
            let decision = policy.judge(&shell(&wrapped)).decision;
            compared += 1;
            if decision < bare {
                problems.push(format!("{wrapped:?} is {decision}, {command:?} is {bare}"));
            }
        }
    }
    assert!(compared > 10_000 / stride, "{compared}");
    assert!(
        problems.is_empty(),
        "{} of {compared}:\n{}",
        problems.len(),
        problems[..problems.len().min(40)].join("\n")
    );
}

#[test]
fn deep_and_long_texts_ask_and_do_not_crash() {
    let policy = &*POLICY;
    let deep = [
        "( ".repeat(50_000),
        "$(".repeat(50_000),
        "{ ".repeat(50_000),
        "if ".repeat(50_000),
        "`".repeat(50_000),
        "\"$(".repeat(20_000),
        "${x:-".repeat(20_000),
        "env ".repeat(10_000) + "rm -r x",
        "eval ".repeat(10_000) + "rm -r x",
        "sh -c ".repeat(10_000) + "rm",
        "f() { ".repeat(10_000),
        "!".repeat(50_000),
        "! ".repeat(30_000) + "rm -r x",
        "{a,b}".repeat(1000) + " x",
        "{".repeat(60_000),
        "a=".repeat(30_000) + "; rm -r x",
        "[".repeat(60_000),
        "rm -r x;".repeat(10_000),
        "for i in 1 2 3 4 5 6 7 8; do ".repeat(20) + "rm -r x" + &"; done".repeat(20),
        "rm -r ".to_owned() + &"a/../".repeat(12_000),
        "x".repeat(70_000),
        "case x in x) ".repeat(5_000),
        "rm -r *".to_owned() + &"*?".repeat(1000),
        "<<A ".repeat(10_000),
        "cat <<A\n$(cat <<B\n".repeat(2_000),
        "\\".repeat(60_001),
        "$((".repeat(20_000),
        "find . -exec ".repeat(5_000) + "rm -r x ;",
    ];
    for text in deep {
        let verdict = policy.judge(&shell(&text));
        assert_ne!(
            verdict.decision,
            Decision::Allow,
            "{}…",
            text.chars().take(20).collect::<String>()
        );
    }
}

/// Pieces of shell texts, so that random texts reach deep.
fn texts() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "rm",
        " -rf ",
        "src",
        " ",
        ";",
        "&&",
        "||",
        "|",
        "&",
        "\n",
        "(",
        ")",
        "{",
        "}",
        "$(",
        "`",
        "\"",
        "'",
        "\\",
        "$",
        "${x}",
        "${x:-",
        "$((",
        "))",
        "<<EOF\n",
        "\nEOF\n",
        "<<<",
        "<",
        ">",
        ">>",
        "if ",
        "; then ",
        "; fi",
        "for x in ",
        "; do ",
        "; done",
        "while ",
        "case ",
        " in ",
        "esac",
        ";;",
        "[[ ",
        " ]]",
        "env ",
        "sh -c ",
        "sudo ",
        "xargs ",
        "find . -exec ",
        "\\;",
        "git -c ",
        "eval ",
        "=",
        "x=",
        "{a,b}",
        "*",
        "?",
        "[a-z]",
        "~",
        "/etc/shadow",
        "..",
        "$'\\x41'",
        "#",
        "é",
        "\u{200b}",
        "\0",
        "function f ",
        "f()",
        "!",
        "time ",
        "cd ",
        "-",
        "--",
        "curl ",
        "trap ",
        "alias a=",
        "awk ",
        "sed ",
        "1e id",
        "tar ",
        "python3 -c ",
        "@",
        "%",
        ",",
        "{1..9}",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: soak::count(400, 10000), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_text_has_one_reproducible_verdict(text in texts()) {
        let policy = &*POLICY;
        let verdict = policy.judge(&shell(&text));
        prop_assert_eq!(&verdict, &policy.judge(&shell(&text)));
        prop_assert!(!verdict.actions.is_empty() || text.trim().is_empty() || verdict.decision != Decision::Deny);
    }

    #[test]
    fn random_characters_get_a_verdict(text in "\\PC{0,80}") {
        let _ = POLICY.judge(&shell(&text));
    }

    #[test]
    fn a_subshell_of_a_random_text_is_as_strict_as_the_text(text in texts()) {
        // A backslash at its end takes the line's end along, and the wrapped text is another one:
        // `time \` alone is cut off, and in a subshell it is `time )`, which bash refuses.
        let escapes = text.chars().rev().take_while(|c| *c == '\\').count();
        prop_assume!(escapes % 2 == 0);
        let policy = &*POLICY;
        let bare = policy.judge(&shell(&text)).decision;
        let wrapped = policy.judge(&shell(&format!("(\n{text}\n)"))).decision;
        // One level more may exceed the limit, which asks.
        prop_assert!(wrapped >= bare.min(Decision::Ask), "{:?}: {} then {}", text, bare, wrapped);
    }

    #[test]
    fn a_dangerous_line_after_a_random_line_is_never_missed(text in texts()) {
        let policy = &*POLICY;
        let verdict = policy.judge(&shell(&format!("rm -rf src\n{text}")));
        prop_assert_ne!(verdict.decision, Decision::Allow);
    }
}
