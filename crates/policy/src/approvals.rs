//! Reduces the questions for humans: groups similar requests, and proposes a rule after enough
//! equal answers.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use overmind_core::gate::{Decision, GateRequest, GateVerdict, TouchKind};

use crate::calls::acts_of;
use crate::policy::Policy;
use crate::shell::expand::{is_static, shown};
use crate::shell::{Act, Place};

/// The key of a group of requests that may be shown and answered together.
///
/// Requests with equal keys have the same tool, the same risk, the same deciding rule under the
/// same policy version, and the same programs with the same kinds of effects on the same class of
/// targets. Their arguments may differ, so each request is still bound and shown separately.
pub fn group_key(request: &GateRequest, verdict: &GateVerdict) -> String {
    let mut shape = BTreeSet::new();
    for action in &verdict.actions {
        for touch in &action.touches {
            let class = match touch.kind {
                TouchKind::Read
                | TouchKind::Write
                | TouchKind::Delete
                | TouchKind::Project
                | TouchKind::Code => match touch.target.chars().next() {
                    Some('/' | '~' | '…') => "outside",
                    Some(_) | None => "inside",
                },
                TouchKind::Network | TouchKind::Environment => touch.target.as_str(),
                TouchKind::Privilege
                | TouchKind::Process
                | TouchKind::Install
                | TouchKind::Publish
                | TouchKind::Persistence
                | TouchKind::External
                | TouchKind::Unknown => "",
            };
            shape.insert(format!("{} {} {class}", action.program, touch.kind));
        }
    }
    let mut hash = blake3::Hasher::new_derive_key("overmind 2026 approval group v1");
    let parts = [
        request.tool.as_str(),
        request.colony.as_str(),
        verdict.risk.as_str(),
        verdict.decision.as_str(),
        &verdict.rule.id,
        &verdict.policy.0,
    ];
    for part in parts.into_iter().chain(shape.iter().map(String::as_str)) {
        hash.update(&(part.len() as u64).to_be_bytes()).update(part.as_bytes());
    }
    hash.finalize().to_hex()[..16].to_owned()
}

/// Why no rule can cover the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoProposal {
    #[error("there are not enough equal approvals yet")]
    TooFew,
    #[error("the requests are not equal")]
    NotEqual,
    #[error(
        "a part of the command is known only at run time, or was not understood, or is in a session's own directory"
    )]
    NotKnown,
    #[error("the action gains privileges, persists, or is denied: no rule is proposed")]
    TooMuch,
}

/// The text of rules that would have allowed exactly these requests.
///
/// All requests must be equal in tool, arguments, agent, colony, sandbox and place. The rules apply
/// to that agent in that colony, for programs with exactly these arguments. The rules are only a
/// proposal; a human decides.
///
/// # Errors
///
/// [`NoProposal`] tells why there is no such rule.
pub fn propose(
    policy: &Policy,
    approved: &[GateRequest],
    enough: usize,
) -> Result<String, NoProposal> {
    let (first, others) = approved.split_first().ok_or(NoProposal::TooFew)?;
    if approved.len() < enough.max(2) {
        return Err(NoProposal::TooFew);
    }
    let equal =
        |other: &GateRequest| GateRequest { labels: first.labels, ..other.clone() } == *first;
    if !others.iter().all(equal) {
        return Err(NoProposal::NotEqual);
    }
    let verdict = policy.judge(first);
    match verdict.decision {
        Decision::Ask => {}
        Decision::Allow => return Err(NoProposal::TooFew),
        Decision::Deny => return Err(NoProposal::TooMuch),
    }
    let place = Place::new(&first.workspace, &first.cwd);
    let acts = acts_of(first, &place);
    let mut text = String::new();
    for (act, action) in acts.iter().zip(&verdict.actions) {
        if action.decision != Decision::Allow {
            rule(&mut text, first, act)?;
        }
    }
    // The proposal must have an effect: an `ask` of another rule, or the trifecta, is stricter than
    // it.
    let whole = format!("version = 1\n{text}");
    match Policy::parse(&whole, "proposal").map(|proposed| {
        proposed.judge(&GateRequest { labels: Default::default(), ..first.clone() }).decision
    }) {
        Ok(Decision::Allow) => Ok(text),
        Ok(Decision::Ask | Decision::Deny) | Err(_) => Err(NoProposal::TooMuch),
    }
}

fn rule(text: &mut String, request: &GateRequest, act: &Act) -> Result<(), NoProposal> {
    let kinds: BTreeSet<TouchKind> = act.touches.iter().map(|(kind, _)| *kind).collect();
    let words = || std::iter::once(&act.program).chain(&act.args);
    if kinds.contains(&TouchKind::Unknown) || !words().all(|word| is_static(word)) {
        return Err(NoProposal::NotKnown);
    }
    // A rule cannot contain the value of a variable.
    const NEVER: [TouchKind; 3] =
        [TouchKind::Privilege, TouchKind::Persistence, TouchKind::Environment];
    if NEVER.iter().any(|kind| kinds.contains(kind)) || !act.via.is_empty() {
        return Err(NoProposal::TooMuch);
    }
    // The next session has another directory of its own, so no rule can name it.
    let own = |path: &str| path.starts_with(request.scratch.as_str());
    if act.cwds.iter().any(|cwd| own(cwd)) || act.touches.iter().any(|(_, target)| own(target)) {
        return Err(NoProposal::NotKnown);
    }
    let line = shown(&act.args.join(" "));
    let mut paths = BTreeSet::new();
    let mut hosts = BTreeSet::new();
    for (kind, target) in &act.touches {
        match kind {
            TouchKind::Read | TouchKind::Write | TouchKind::Delete | TouchKind::Project => {
                if !is_static(target) || target.contains(['*', '?', '[']) {
                    return Err(NoProposal::NotKnown);
                }
                paths.insert(shown(target));
            }
            TouchKind::Network => {
                if !is_static(target) {
                    return Err(NoProposal::NotKnown);
                }
                hosts.insert(target.clone());
            }
            // Code in a file or from standard input may differ the next time.
            TouchKind::Code if target.starts_with(['/', '~']) || !line.contains(&shown(target)) => {
                return Err(NoProposal::TooMuch);
            }
            TouchKind::Code
            | TouchKind::Privilege
            | TouchKind::Process
            | TouchKind::Install
            | TouchKind::Publish
            | TouchKind::Environment
            | TouchKind::Persistence
            | TouchKind::External
            | TouchKind::Unknown => {}
        }
    }
    // Paths, hosts and the rest each get their own rule, because a rule with paths applies to paths
    // only.
    let of = |wanted: &dyn Fn(TouchKind) -> bool| -> Vec<&str> {
        kinds.iter().filter(|kind| wanted(**kind)).map(|kind| kind.as_str()).collect()
    };
    let is_path = |kind| {
        matches!(kind, TouchKind::Read | TouchKind::Write | TouchKind::Delete | TouchKind::Project)
    };
    let groups = [
        ("paths", of(&is_path), paths.into_iter().collect::<Vec<_>>()),
        ("hosts", of(&|kind| kind == TouchKind::Network), hosts.into_iter().collect()),
        ("", of(&|kind| !is_path(kind) && kind != TouchKind::Network), Vec::new()),
    ];
    for (key, effects, targets) in groups {
        if effects.is_empty() {
            continue;
        }
        let id = blake3::hash(
            format!("{request:?} {words:?} {key}", words = words().collect::<Vec<_>>()).as_bytes(),
        );
        let list = |items: &[String]| toml::Value::from(items.to_vec()).to_string();
        let one = |item: &str| list(std::slice::from_ref(&item.to_owned()));
        let argv: Vec<String> = words().cloned().collect();
        let effects: Vec<String> = effects.into_iter().map(str::to_owned).collect();
        let mut add = |key: &str, value: String| {
            writeln!(text, "{key} = {value}").expect("writing to a string");
        };
        add(
            "\n[[rule]]\nid",
            toml::Value::from(format!("approved-{}", &id.to_hex()[..12])).to_string(),
        );
        add("verdict", "\"allow\"".to_owned());
        add("tools", one(&literal(&request.tool)?));
        add("agents", one(&literal(&request.agent)?));
        add("colonies", one(&literal(&request.colony)?));
        add("sandbox", one(request.sandbox.as_str()));
        if request.tool == "run_shell" {
            add("argv", list(&argv));
            // The same words do something else in another directory.
            match act.cwds.as_slice() {
                [cwd] if is_static(cwd) => add("cwd", toml::Value::from(cwd.as_str()).to_string()),
                _ => return Err(NoProposal::NotKnown),
            }
        } else {
            add("arguments", toml::Value::from(request.args.to_string()).to_string());
        }
        add("effects", list(&effects));
        if !key.is_empty() {
            add(key, list(&targets));
        }
        add("reason", "\"approved before, in exactly this form\"".to_owned());
    }
    Ok(())
}

/// The name as a pattern that only this name matches.
fn literal(name: &str) -> Result<String, NoProposal> {
    // An empty name would match everything.
    if name.is_empty() || name.contains(['*', '?']) {
        Err(NoProposal::NotKnown)
    } else {
        Ok(name.to_owned())
    }
}
