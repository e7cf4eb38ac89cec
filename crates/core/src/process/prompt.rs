//! Decides whether a silent program waits for a person: at a permission prompt, a password, a menu.
//!
//! The inputs are the screen, the time since the last output, and the provider. A wrong "waits"
//! calls a person for nothing, and a wrong "works" can stop an agent for hours. So a prompt must
//! look like a question *and* have the cursor where a program leaves it when it asks. A compiler
//! that is silent for minutes shows neither and is [`Judged::Unknown`]; then the watchdog decides,
//! which also measures processor time.
//!
//! An idle agent (an empty input box, a shell's `$`) does not ask for permission, so it is also
//! unknown.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The last lines of a terminal, as a person sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Screen {
    /// The lines without control sequences and trailing blanks; the lowest line is the last.
    pub lines: Vec<String>,
    /// Index in `lines` of the line with the cursor. For pipes: the last line, if it has no line
    /// end.
    pub cursor: Option<usize>,
}

/// The program that writes the screen, if known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    #[default]
    Raw,
    Claude,
    Codex,
    /// Any program that prints lines of `{"overmind": {…}}`.
    Lines,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The program waits for an answer.
    Waiting(Question),
    Working,
    Unknown,
}

/// A question to a person.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The text, one line of at most 300 characters.
    pub text: String,
    /// The choices in the screen's order; empty for a free answer.
    pub options: Vec<String>,
    /// Whether the answer is a secret, which must not be logged.
    pub secret: bool,
}

/// Silence below which a screen is not judged: it may still change, and nobody has read the
/// question.
const SETTLE: Duration = Duration::from_millis(800);
/// Silence after which a line that only ends like a question counts as one.
const SLOW: Duration = Duration::from_secs(3);
/// Number of lines from the bottom that are examined.
const LOOKED_AT: usize = 24;

/// Judges a screen that has not changed for `silence`.
pub fn judge(screen: &Screen, provider: Provider, silence: Duration) -> Judged {
    let lines: Vec<&str> = screen.lines.iter().map(|line| bare(line)).collect();
    let from = lines.len().saturating_sub(LOOKED_AT);
    let seen = &lines[from..];
    if silence < SETTLE || seen.iter().rev().take(8).any(|line| is_busy(line)) {
        return Judged::Working;
    }
    if let Some(question) = menu(seen, provider) {
        return Judged::Waiting(question);
    }
    // A one-line question: the cursor is behind it.
    let Some(last) = lines.iter().rposition(|line| !line.is_empty()) else {
        return Judged::Unknown;
    };
    if screen.cursor != Some(last) {
        return Judged::Unknown;
    }
    asking_line(lines[last], silence).map_or(Judged::Unknown, Judged::Waiting)
}

/// Returns a line without blanks and without the frame that some programs draw around questions.
fn bare(line: &str) -> &str {
    line.trim_matches(|c: char| {
        c.is_whitespace() || matches!(c, '│' | '┃' | '║' | '|' | '╭' | '╮' | '╰' | '╯' | '─' | '━')
    })
}

/// Returns whether a line shows that an agent works, whatever follows below it.
fn is_busy(line: &str) -> bool {
    let line = line.to_lowercase();
    line.contains("esc to interrupt") || line.contains("ctrl+c to interrupt")
}

fn bounded(text: &str) -> String {
    text.chars().take(300).collect()
}

/// Finds a list with a marked line below a question.
fn menu(lines: &[&str], provider: Provider) -> Option<Question> {
    let marked = lines.iter().rposition(|line| marked_option(line).is_some())?;
    // Below the options there is no output: at most hints and a frame.
    let below = lines[marked + 1..].iter().filter(|line| !line.is_empty());
    if below.filter(|line| option_text(line).is_none() && !is_hint(line)).count() > 1 {
        return None;
    }
    let first = (0..marked).rev().take_while(|n| option_text(lines[*n]).is_some()).last();
    let first = first.unwrap_or(marked);
    let options: Vec<String> = lines[first..]
        .iter()
        .map_while(|line| marked_option(line).or_else(|| option_text(line)))
        .map(bounded)
        .collect();
    let above = || lines[..first].iter().rev().filter(|line| !line.is_empty());
    let asked = above().take(12).find(|line| line.ends_with('?') || is_survey(line));
    let hinted = lines.iter().any(|line| is_hint(line));
    let agent = !matches!(provider, Provider::Raw);
    // One marked line alone is a quotation or an input box. A list without any question is a menu
    // only where a hint says how to choose, or where the agent is known to ask so.
    let is_menu = options.len() >= 2 && (asked.is_some() || hinted || agent);
    let is_menu = is_menu || (asked.is_some_and(|line| is_survey(line)) && hinted);
    if !is_menu {
        return None;
    }
    let text = asked.or_else(|| above().next())?;
    Some(Question { text: bounded(survey_text(text)), options, secret: false })
}

/// Returns the option behind the selection mark.
fn marked_option(line: &str) -> Option<&str> {
    let rest =
        ["❯", "›", "▌", "●", "▸", "➤", ">"].iter().find_map(|mark| line.strip_prefix(mark))?;
    let rest = rest.trim_start();
    (!rest.is_empty()).then(|| numbered(rest).unwrap_or(rest))
}

/// Returns an option without the mark: a numbered one, or a word that is common in such lists.
fn option_text(line: &str) -> Option<&str> {
    if let Some(rest) = line.strip_prefix('○').or_else(|| line.strip_prefix('◯')) {
        return Some(rest.trim_start());
    }
    numbered(line).or_else(|| {
        let word = line.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let known = ["Yes", "No", "Always", "Allow", "Deny", "Skip", "Cancel"].contains(&word);
        (known && line.chars().count() < 100 && !line.ends_with(['.', '?', ':'])).then_some(line)
    })
}

/// Returns `Yes` for `1. Yes`.
fn numbered(line: &str) -> Option<&str> {
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 || digits > 2 {
        return None;
    }
    line[digits..].strip_prefix(['.', ')'])?.strip_prefix(' ').map(str::trim_start)
}

/// Returns whether a line explains how to choose.
fn is_hint(line: &str) -> bool {
    let line = line.to_lowercase();
    [
        "enter to confirm",
        "esc to cancel",
        "use arrows",
        "arrow keys",
        "enter to select",
        "to navigate",
    ]
    .iter()
    .any(|hint| line.contains(hint))
}

/// Recognizes `? What account do you want to log into? [Use arrows to move, type to filter]`.
fn is_survey(line: &str) -> bool {
    line.starts_with("? ")
}

fn survey_text(line: &str) -> &str {
    let line = line.strip_prefix("? ").unwrap_or(line);
    line.split("  [Use arrows").next().unwrap_or(line).trim_end()
}

/// Finds a question that ends at the cursor.
fn asking_line(line: &str, silence: Duration) -> Option<Question> {
    let lower = line.to_lowercase();
    let question = |options: &[&str], secret| {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        Some(Question { text: bounded(survey_text(line)), options, secret })
    };
    let ends_open = line.ends_with([':', '?', '>']) || line.ends_with(')') || line.ends_with(']');
    if line.ends_with(':')
        && [
            "password",
            "passphrase",
            "passcode",
            " pin",
            "otp",
            "token",
            "one-time",
            "verification code",
        ]
        .iter()
        .any(|word| lower.contains(word))
    {
        return question(&[], true);
    }
    // `[Y/n]`, `(yes/no/[fingerprint])?`, `[y,n,q,a,d,e,?]?`, `Ok to proceed? (y)`
    if ends_open && let Some(options) = choices(&lower) {
        return question(&options, false);
    }
    let pause = ["press any key", "press enter", "press return", "hit enter", "[press "];
    if pause.iter().any(|words| lower.contains(words)) {
        return question(&[], false);
    }
    if lower.starts_with("--more--") || lower == "(end)" || lower.ends_with("(end)") {
        return question(&[], false);
    }
    let asks = [
        "username for",
        "enter ",
        "your name",
        "type ",
        "choose ",
        "select ",
        "pick ",
        "login:",
        "which ",
        "what ",
    ];
    let wants_text = line.ends_with(':') && asks.iter().any(|word| lower.contains(word));
    // `package name: (demo)`, `version: (1.0.0)`, `Is this OK? (yes)`: a default after the question.
    let with_default = line.ends_with(')')
        && line.rfind('(').is_some_and(|at| line[..at].trim_end().ends_with([':', '?']));
    if wants_text || with_default || is_survey(line) {
        return question(&[], false);
    }
    // Only ends like a question: a program that prints half a line and thinks looks the same.
    (silence >= SLOW && line.ends_with('?') && line.contains(' '))
        .then(|| Question { text: bounded(survey_text(line)), ..Question::default() })
}

/// Returns the answers in the last bracket of a line; `None` if there is no such bracket.
fn choices(lower: &str) -> Option<Vec<&str>> {
    let open = trimmed(lower);
    let close = open.chars().next_back().filter(|c| matches!(c, ')' | ']'))?;
    let opening = if close == ')' { '(' } else { '[' };
    let start = open.rfind(opening)?;
    let inside = &open[start + 1..open.len() - 1];
    let words: Vec<&str> = inside
        .split(['/', ',', '|'])
        .map(|word| word.trim_matches(|c: char| c.is_whitespace() || matches!(c, '[' | ']')))
        .filter(|word| !word.is_empty())
        .collect();
    let is_answer = |word: &str| {
        matches!(word, "y" | "n" | "yes" | "no" | "a" | "all" | "q" | "o" | "ok" | "i" | "v" | "s")
    };
    let answers = words.iter().filter(|word| is_answer(word)).count();
    let single = words.len() == 1 && answers == 1 && open[..start].trim_end().ends_with(['?', ':']);
    ((words.len() >= 2 && answers >= 2) || single).then_some(words)
}

/// Returns a line without the text that may follow the bracket.
fn trimmed(line: &str) -> &str {
    line.trim_end_matches(|c: char| matches!(c, '?' | ':' | '>') || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_secs(5);

    /// Creates a screen whose cursor is at the end of its last line, as after a prompt.
    fn at_prompt(text: &str) -> Screen {
        let lines: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).collect();
        let cursor = lines.iter().rposition(|line| !line.is_empty());
        Screen { lines, cursor }
    }

    /// Creates a screen whose last line has a line end, so that the cursor is below it.
    fn printed(text: &str) -> Screen {
        let lines: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).collect();
        Screen { cursor: Some(lines.len()), lines }
    }

    #[track_caller]
    fn asks(screen: &Screen, provider: Provider, text: &str) -> Question {
        match judge(screen, provider, QUIET) {
            Judged::Waiting(question) => {
                assert_eq!(question.text, text);
                question
            }
            other @ (Judged::Working | Judged::Unknown) => panic!("{other:?} of {screen:?}"),
        }
    }

    #[test]
    fn claudes_permission_menu_is_a_question_with_its_options() {
        let framed = "\
● I'll run the tests now.

╭──────────────────────────────────────────────────────────────────╮
│ Bash command                                                     │
│                                                                  │
│   npm test                                                       │
│   Run the test suite                                             │
│                                                                  │
│ Do you want to proceed?                                          │
│ ❯ 1. Yes                                                         │
│   2. Yes, and don't ask again for npm test commands in /srv/app  │
│   3. No, and tell Claude what to do differently (esc)            │
╰──────────────────────────────────────────────────────────────────╯
";
        let question = asks(&printed(framed), Provider::Claude, "Do you want to proceed?");
        assert_eq!(question.options.len(), 3);
        assert_eq!(question.options[0], "Yes");
        let plain = "\
 Do you want to make this edit to main.rs?
 ❯ 1. Yes
   2. Yes, allow all edits during this session (shift+tab)
   3. No

 Esc to cancel · Tab to amend
";
        asks(&printed(plain), Provider::Claude, "Do you want to make this edit to main.rs?");
        // Also without knowing who it is.
        asks(&printed(plain), Provider::Raw, "Do you want to make this edit to main.rs?");
        let trust = "\
 Do you trust the files in this folder?

 /srv/app

 ❯ 1. Yes, proceed
   2. No, exit

 Enter to confirm · Esc to exit
";
        asks(&printed(trust), Provider::Claude, "Do you trust the files in this folder?");
    }

    #[test]
    fn codexs_approval_is_a_question() {
        let text = "\
  Would you like to run the following command?

  $ cargo test --workspace

› 1. Yes, proceed (y)
  2. Yes, and don't ask again for this command (a)
  3. No, and tell Codex what to do differently (esc)

  Press enter to confirm or esc to cancel
";
        let question =
            asks(&printed(text), Provider::Codex, "Would you like to run the following command?");
        assert_eq!(question.options.len(), 3);
    }

    #[test]
    fn a_working_agent_is_never_reported_as_waiting() {
        for text in [
            "● Reading files\n\n✻ Pondering… (12s · ↑ 1.2k tokens · esc to interrupt)\n\n❯ 1. Yes\n  2. No\n",
            "• Working (3s • esc to interrupt)\n\n› Find and fix a bug in @filename\n",
        ] {
            assert_eq!(judge(&printed(text), Provider::Claude, QUIET), Judged::Working, "{text}");
        }
        let asked = at_prompt("Do you want to continue? [Y/n]");
        assert_eq!(judge(&asked, Provider::Raw, Duration::from_millis(100)), Judged::Working);
    }

    #[test]
    fn an_idle_agent_has_no_question() {
        for text in [
            "● Done. All tests pass.\n\n╭────────╮\n│ >      │\n╰────────╯\n  ? for shortcuts\n",
            "● Done.\n\n──────────\n❯ Try \"fix lint errors\"\n──────────\n  ? for shortcuts\n",
        ] {
            assert_eq!(judge(&printed(text), Provider::Claude, QUIET), Judged::Unknown, "{text}");
        }
        for prompt in ["root@box:~# ", "bob@box:/srv$", ">>>", "%", "(gdb)"] {
            let judged = judge(&at_prompt(prompt), Provider::Raw, QUIET);
            assert_eq!(judged, Judged::Unknown, "{prompt}");
        }
    }

    #[test]
    fn one_line_questions_are_found_with_their_answers() {
        for (line, options) in [
            ("Do you want to continue? [Y/n]", &["y", "n"][..]),
            (
                "Are you sure you want to continue connecting (yes/no/[fingerprint])?",
                &["yes", "no", "fingerprint"],
            ),
            ("(1/1) Stage this hunk [y,n,q,a,d,e,p,?]?", &["y", "n", "q", "a", "d", "e", "p", "?"]),
            ("Ok to proceed? (y)", &["y"]),
            ("? Submit? (Y/n)", &["y", "n"]),
            ("Overwrite? (y/N):", &["y", "n"]),
            ("rm: remove write-protected regular file 'a'?", &[]),
            ("package name: (demo)", &[]),
            ("Is this OK? (yes)", &["yes"]),
            ("Username for 'https://github.com':", &[]),
            ("Press Enter to continue...", &[]),
            ("Press RETURN to continue or any other key to abort", &[]),
            ("--More--(45%)", &[]),
            ("? Paste an authentication description:", &[]),
        ] {
            let screen = at_prompt(&format!("Reading package lists... Done\n{line} "));
            let question = asks(&screen, Provider::Raw, line.trim_start_matches("? "));
            assert_eq!(question.options, options, "{line}");
            assert!(!question.secret, "{line}");
        }
    }

    #[test]
    fn prompts_for_secrets_are_marked() {
        for line in [
            "[sudo] password for bob:",
            "bob@example.org's password:",
            "Enter passphrase for key '/home/bob/.ssh/id_ed25519':",
            "Password for 'https://bob@github.com':",
            "? Paste your authentication token:",
            "This operation requires a one-time password.\nEnter OTP:",
        ] {
            let last = line.lines().last().unwrap();
            let question = asks(&at_prompt(line), Provider::Raw, last.trim_start_matches("? "));
            assert!(question.secret, "{line}");
        }
    }

    #[test]
    fn ghs_menu_is_a_question() {
        let text = "\
? What account do you want to log into?  [Use arrows to move, type to filter]
> GitHub.com
  GitHub Enterprise Server
";
        let question = asks(&printed(text), Provider::Raw, "What account do you want to log into?");
        assert_eq!(question.options[0], "GitHub.com");
    }

    #[test]
    fn a_quiet_compile_is_not_a_prompt() {
        let long = Duration::from_secs(600);
        for text in [
            "   Compiling serde v1.0.0\n   Compiling overmind v0.1.0\n    Building [=====>   ] 14/20: overmind(bin)",
            "[ 45%] Building CXX object src/CMakeFiles/a.dir/b.cpp.o",
            "Downloading: ",
            "Linking... ",
            "npm warn deprecated inflight@1.0.6: do not use it (leaks memory)",
            "test the_answer_is_42 ... ",
            "remote: Counting objects: 100% (12/12)",
            "warning: unused variable: `x` (run with --explain?)",
            "Progress: [ 12/100 ]",
            "12%",
        ] {
            for screen in [at_prompt(text), printed(text)] {
                assert_eq!(judge(&screen, Provider::Raw, long), Judged::Unknown, "{text}");
            }
        }
        // A question that was printed with its line end is output, not a prompt.
        let printed_question = printed("Do you want to continue? [Y/n]\n");
        assert_eq!(judge(&printed_question, Provider::Raw, long), Judged::Unknown);
        let list = printed("Results:\n> 1. first match\n  2. second match\nmore text\nand more\n");
        assert_eq!(judge(&list, Provider::Raw, long), Judged::Unknown);
        assert_eq!(judge(&Screen::default(), Provider::Raw, long), Judged::Unknown);
    }
}
