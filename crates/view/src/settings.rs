//! The pages of settings: model providers and their keys, MCP servers, the policy with explained
//! calls, and API keys.

use overmind_api::{
    Key, PolicyExplained, PolicyStatus, ProviderKeyView, SecretInfo, Timestamp, VaultInfo,
};
use serde_json::Value;

use crate::clean;
use crate::parts::{Pill, Tone};
use crate::when::When;

/// Longest line of outside text that is shown, in characters.
const LINE: usize = 300;

fn line(text: &str) -> String {
    clean::cut(&clean::line(text), LINE).into_owned()
}

/// A provider of models. It contains at most the last four characters of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderRow {
    pub name: &'static str,
    pub pill: Pill,
    /// `…` and the last four characters; empty for a key of eight characters or fewer.
    pub ends: String,
    /// The origin, `environment: OPENAI_API_KEY`; empty if the key is not set.
    pub source: String,
    /// The secret of the vault that sets the key.
    pub secret: String,
}

impl ProviderRow {
    /// Creates the row. `id` is the provider's name in the API.
    pub fn new(id: &str, name: &'static str, key: &ProviderKeyView) -> Self {
        let ends = key.masked.split_once("...").map_or("", |(_, end)| end);
        let (tone, shape, text) = match key.configured {
            true => (Tone::Good, "●", "set"),
            false => (Tone::Flat, "○", "not set"),
        };
        Self {
            name,
            pill: Pill::new(tone, shape, text),
            ends: if ends.is_empty() { String::new() } else { format!("…{}", line(ends)) },
            source: line(&key.source),
            secret: format!("{id}_api_key"),
        }
    }
}

/// A secret of the vault, without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRow {
    pub name: String,
    pub pill: Pill,
    pub version: u32,
    pub by: String,
    pub set: When,
    pub uses: String,
    pub used: Option<When>,
    /// Why it cannot be used; empty if it can.
    pub problem: String,
}

impl SecretRow {
    pub fn new(secret: &SecretInfo, now: Timestamp) -> Self {
        let pill = match secret.problem {
            None => Pill::new(Tone::Good, "●", "usable"),
            Some(_) => Pill::new(Tone::Bad, "✕", "not usable"),
        };
        Self {
            name: line(&secret.name),
            pill,
            version: secret.version,
            by: line(&secret.created_by),
            set: When::new(secret.created_at, now),
            uses: crate::thousands(secret.uses),
            used: secret.last_used_at.map(|at| When::new(at, now)),
            problem: line(secret.problem.as_deref().unwrap_or_default()),
        }
    }
}

/// Returns the state of the vault in one line: whether it is unlocked, and how its key is
/// protected.
pub fn vault(info: &VaultInfo) -> (Pill, String) {
    match (&info.locked, &info.protection) {
        (Some(why), _) => (Pill::new(Tone::Bad, "✕", "locked"), line(why)),
        (None, Some(by)) => {
            let by = format!("its key is protected by: {}", line(by).replace('_', " "));
            (Pill::new(Tone::Good, "●", "open"), by)
        }
        (None, None) => (Pill::new(Tone::Flat, "○", "empty"), "no secret was set yet".to_owned()),
    }
}

/// An MCP server with its tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRow {
    pub id: String,
    pub pill: Pill,
    /// Its command or its URL.
    pub runs: String,
    /// Why it does not work; empty if it does.
    pub reason: String,
    /// Whether some of its tools wait for approval.
    pub needs_approval: bool,
    pub tools: Vec<ToolRow>,
}

/// A tool of an MCP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolRow {
    pub name: String,
    pub pill: Pill,
    pub description: String,
    /// The beginning of the hash of its present definition, and the whole hash.
    pub short: String,
    pub hash: String,
    /// Whether its present definition is approved.
    pub pinned: bool,
    /// Whether it can be approved and is not.
    pub pinnable: bool,
    /// What has changed since the approval, or why it is refused.
    pub detail: String,
}

impl ServerRow {
    /// Creates the row from a server of `GET /api/settings/mcp/servers`.
    pub fn new(server: &Value) -> Self {
        let text = |name: &str| line(server[name].as_str().unwrap_or_default());
        let state = text("state");
        let (tone, shape) = match state.as_str() {
            "ready" => (Tone::Good, "●"),
            "failed" => (Tone::Bad, "✕"),
            "starting" => (Tone::Busy, "◐"),
            _ => (Tone::Flat, "○"),
        };
        let args = server["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let words: Vec<&str> = server["command"].as_str().into_iter().chain(args).collect();
        let url = &server["config"]["transport"]["url"];
        let runs = if words.is_empty() { url.as_str().unwrap_or_default() } else { "" };
        let runs = if runs.is_empty() { line(&words.join(" ")) } else { line(runs) };
        let tools = server["tools"].as_array().into_iter().flatten();
        Self {
            id: text("id"),
            pill: Pill::new(tone, shape, state),
            runs,
            reason: text("reason"),
            needs_approval: server["needs_approval"] == true,
            tools: tools.map(ToolRow::new).collect(),
        }
    }
}

impl ToolRow {
    fn new(tool: &Value) -> Self {
        let text = |name: &str| line(tool[name].as_str().unwrap_or_default());
        let state = text("state");
        let (tone, shape) = match state.as_str() {
            "ready" => (Tone::Good, "●"),
            "new" | "changed" => (Tone::Ask, "▲"),
            "refused" => (Tone::Bad, "✕"),
            _ => (Tone::Flat, "○"),
        };
        let detail = tool["diff"].as_str().or(tool["reason"].as_str()).unwrap_or_default();
        let hash = text("hash");
        Self {
            name: text("name"),
            short: hash.chars().take(12).collect(),
            hash,
            pinned: state == "ready",
            pinnable: matches!(state.as_str(), "new" | "changed"),
            pill: Pill::new(tone, shape, state),
            description: text("description"),
            detail: clean::cut(&clean::block(detail), 4_000).into_owned(),
        }
    }
}

/// The policy in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRow {
    pub pill: Pill,
    /// Its source, in words.
    pub source: String,
    pub version: String,
    /// Why the newest content of the file is not in force; empty if it is.
    pub refused: String,
}

impl PolicyRow {
    pub fn new(policy: &PolicyStatus) -> Self {
        let file = line(policy.file.as_deref().unwrap_or_default());
        let (mut pill, source) = match policy.source.as_str() {
            "builtin" => (Pill::new(Tone::Good, "●", "built in"), "the built-in policy".to_owned()),
            "off" => {
                let source = "switched off: every call is allowed".to_owned();
                (Pill::new(Tone::Bad, "✕", "off"), source)
            }
            _ => (Pill::new(Tone::Good, "●", "file"), file),
        };
        let refused = clean::block(policy.refused.as_deref().unwrap_or_default()).into_owned();
        if !refused.is_empty() {
            pill = Pill::new(Tone::Ask, "▲", "file refused");
        }
        Self { pill, source, version: line(&policy.version), refused }
    }
}

/// The policy's decision about a call that was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedCall {
    pub pill: Pill,
    pub reason: String,
    pub rule: String,
    pub risk: String,
    /// The assumed agent and sandbox: `fixer` at `namespace`.
    pub assumed: String,
    pub actions: Vec<ExplainedAction>,
    /// The answer to the model; empty if the call is allowed.
    pub advice: String,
    pub files: Vec<String>,
}

/// One program that would run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedAction {
    pub pill: Pill,
    /// The program with its arguments, after its wrappers: `sudo → rm -rf src`.
    pub command: String,
    /// Its effects, such as `deletes src`.
    pub touches: Vec<String>,
}

/// A decision of the policy.
fn decision(word: &str) -> Pill {
    match word {
        "allow" => Pill::new(Tone::Good, "●", "allowed"),
        "ask" => Pill::new(Tone::Ask, "▲", "asks a person"),
        "deny" => Pill::new(Tone::Bad, "✕", "denied"),
        _ => Pill::new(Tone::Flat, "?", line(word)),
    }
}

impl ExplainedCall {
    pub fn new(said: &PolicyExplained) -> Self {
        let actions = said.actions.iter().map(|action| {
            let own = format!("{} {}", action.program, action.args.join(" "));
            let mut words = action.via.clone();
            words.push(own.trim_end().to_owned());
            let touches = action.touches.iter();
            ExplainedAction {
                pill: decision(&action.decision),
                command: line(&words.join(" → ")),
                touches: touches
                    .map(|touch| line(&format!("{}: {}", touch.kind, touch.target)))
                    .collect(),
            }
        });
        let level = said.sandbox.as_str();
        Self {
            pill: decision(&said.decision),
            reason: clean::block(&said.reason).into_owned(),
            rule: line(&format!("{} ({})", said.rule.id, said.rule.place)),
            risk: line(&said.risk),
            assumed: match &said.agent {
                Some(agent) => line(&format!("{agent} at {level}")),
                None => format!("any agent at {level}"),
            },
            actions: actions.collect(),
            advice: match said.decision.as_str() {
                "allow" => String::new(),
                _ => clean::block(&said.advice).into_owned(),
            },
            files: said.files.iter().map(|file| line(file)).collect(),
        }
    }
}

/// An API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRow {
    pub id: String,
    pub name: String,
    pub role: &'static str,
    pub made: When,
    /// Whether a sign-in in a browser created it.
    pub sign_in: bool,
}

/// The valid keys, with those of sign-ins last, and the number of revoked ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeysPage {
    pub keys: Vec<KeyRow>,
    pub sign_ins: Vec<KeyRow>,
    pub revoked: usize,
}

impl KeysPage {
    pub fn new(keys: &[Key], now: Timestamp) -> Self {
        let mut page = Self::default();
        for key in keys {
            if key.revoked_at.is_some() {
                page.revoked += 1;
                continue;
            }
            let sign_in = key.name.contains("@web-");
            let row = KeyRow {
                id: key.id.to_string(),
                name: line(&key.name),
                role: key.role.as_str(),
                made: When::new(key.created_at, now),
                sign_in,
            };
            if sign_in { &mut page.sign_ins } else { &mut page.keys }.push(row);
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const AT: &str = "2026-11-25T16:00:00+00:00";

    #[test]
    fn only_the_last_characters_of_a_provider_key_are_shown() {
        let key = |masked: &str| ProviderKeyView {
            ok: true,
            configured: true,
            masked: masked.to_owned(),
            source: "environment: OPENAI_API_KEY".to_owned(),
        };
        let row = ProviderRow::new("openai", "OpenAI", &key("sk-p...9xYz"));
        assert_eq!((row.ends.as_str(), row.secret.as_str()), ("…9xYz", "openai_api_key"));
        assert!(!format!("{row:?}").contains("sk-p"), "{row:?}");
        assert_eq!(ProviderRow::new("openai", "OpenAI", &key("********")).ends, "");
    }

    #[test]
    fn a_tool_server_shows_unapproved_tools_and_their_changes() {
        let row = ServerRow::new(&json!({"id": "files", "state": "ready", "command": "npx",
            "args": ["-y", "files\u{1b}[2J"], "needs_approval": true, "config": {}, "tools": [
                {"name": "read", "state": "ready", "hash": "0123456789abcdef", "description": "r"},
                {"name": "write", "state": "changed", "hash": "ff", "diff": "-a\n+b"},
                {"name": "x", "state": "refused", "reason": "hidden text"}]}));
        assert_eq!(row.runs, "npx -y files\\u{1b}[2J");
        assert_eq!(row.pill.tone, Tone::Good);
        let tools: Vec<_> = row.tools.iter().map(|t| (t.pill.tone, t.pinned, t.pinnable)).collect();
        let want = [(Tone::Good, true, false), (Tone::Ask, false, true), (Tone::Bad, false, false)];
        assert_eq!(tools, want);
        assert_eq!(row.tools[0].short, "0123456789ab");
        assert_eq!((&*row.tools[1].detail, &*row.tools[2].detail), ("-a\n+b", "hidden text"));
    }

    #[test]
    fn a_verdict_shows_its_rule_its_programs_and_their_targets() {
        let said: PolicyExplained = serde_json::from_value(json!({"decision": "ask",
            "reason": "It deletes work.", "advice": "Wait.", "risk": "high",
            "rule": {"id": "delete", "place": "built in"}, "policy": "p1", "tool": "run_shell",
            "agent": "fixer", "sandbox": "namespace", "files": ["a.sh"], "actions": [
                {"program": "rm", "args": ["-rf", "src"], "via": ["sudo"], "decision": "ask",
                    "touches": [{"kind": "delete", "target": "src"}]}]}))
        .unwrap();
        let call = ExplainedCall::new(&said);
        assert_eq!((call.pill.tone, call.pill.text.as_str()), (Tone::Ask, "asks a person"));
        assert_eq!((&*call.rule, &*call.assumed), ("delete (built in)", "fixer at namespace"));
        assert_eq!(call.actions[0].command, "sudo → rm -rf src");
        assert_eq!((&*call.actions[0].touches[0], &*call.advice), ("delete: src", "Wait."));
        let allowed = PolicyExplained { decision: "allow".into(), ..said };
        assert_eq!(ExplainedCall::new(&allowed).advice, "");
    }

    #[test]
    fn sign_in_keys_are_listed_separately_and_revoked_ones_counted() {
        let key = |n: u8, name: &str, revoked: bool| -> Key {
            let revoked = revoked.then_some(AT);
            serde_json::from_value(json!({"id": format!("key_{n:032x}"), "name": name,
                "role": "viewer", "created_at": AT, "revoked_at": revoked,
                "colony": format!("col_{:032x}", 1)}))
            .unwrap()
        };
        let keys = [key(1, "ci", false), key(2, "ann@web-1", false), key(3, "old", true)];
        let page = KeysPage::new(&keys, AT.parse().unwrap());
        assert_eq!((page.keys.len(), page.sign_ins.len(), page.revoked), (1, 1, 1));
        assert_eq!((&*page.keys[0].name, &*page.sign_ins[0].name), ("ci", "ann@web-1"));
    }

    #[test]
    fn a_disabled_or_refused_policy_is_shown_as_a_problem() {
        let policy = |source: &str, refused: Option<&str>| PolicyStatus {
            source: source.to_owned(),
            file: Some("policy.toml".to_owned()),
            version: "p1".to_owned(),
            refused: refused.map(str::to_owned),
        };
        let tone = |source, refused| PolicyRow::new(&policy(source, refused)).pill.tone;
        assert_eq!(tone("builtin", None), Tone::Good);
        assert_eq!(tone("off", None), Tone::Bad);
        assert_eq!(tone("file", Some("line 3: x")), Tone::Ask);
        assert_eq!(PolicyRow::new(&policy("file", None)).source, "policy.toml");
    }
}
