//! Derives a verdict from a request.

use overmind_core::gate::{
    Action, Decision, GateRequest, GateVerdict, Risk, RuleRef, Touch, TouchKind,
};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::tool_traits;

use super::rule::Rule;
use super::{BUILT_IN, Policy};
use overmind_core::imports::{Language, candidates};

use crate::calls::acts_of;
use crate::glob::Fit;
use crate::shell::expand::{is_private, is_static, shown};
use crate::shell::path::in_workspace;
use crate::shell::{Act, Place};

const MAX_FILES: usize = 64;
const MAX_ARGS: usize = 32;
const MAX_ARG_CHARS: usize = 200;
/// Maximum number of other programs of a call that its reason names.
const MAX_OTHERS: usize = 2;
const LATER: &str = "a file that is known only at run time";

/// The decision about one touch, and the rule that made it.
struct Said<'p> {
    decision: Decision,
    rule: Option<&'p Rule>,
    /// Whether a rule denies something that only happens when the call runs, so that it may not
    /// apply.
    perhaps: bool,
}

/// The reason for refusing a command that needs a network: a human's answer could not help.
const NO_NETWORK: &str = "commands of this agent run in a sandbox without network, so it cannot work, \
    whoever approves it. Leave it out; the tool `http_request` fetches a page where the agent has it, and \
    `overmind done RUN --pr-branch` hands work on. Who wants a command to have the network starts a run of \
    a command with `overmind run --sandbox namespace --network host -- COMMAND`, or an agent with \
    `--sandbox none`";

/// Whether a call needs a network for this that its sandbox does not have.
fn needs_network(request: &GateRequest, kind: TouchKind) -> bool {
    // Installing from elsewhere is also a touch of the network; `make install` is not.
    let leaves = matches!(kind, TouchKind::Network | TouchKind::Publish);
    is_command(request) && leaves && request.sandbox != SandboxLevel::None
}

/// Whether the call is a command, which the sandbox limits.
pub(crate) fn is_command(request: &GateRequest) -> bool {
    tool_traits::is_command(&request.tool)
}

/// The risk of one touch.
pub(crate) fn risk_of(request: &GateRequest, act: &Act, kind: TouchKind, target: &str) -> Risk {
    match kind {
        // In an environment, an unknown program can do no more than code from anywhere.
        TouchKind::Unknown if request.room && is_command(request) && !act.garbled => Risk::High,
        // It is no worse than a write, which may empty the file.
        TouchKind::Delete if act.single && in_workspace(target) => Risk::Medium,
        TouchKind::Read if in_workspace(target) => Risk::Low,
        TouchKind::Read => Risk::Medium,
        TouchKind::Write | TouchKind::Project if in_workspace(target) => Risk::Medium,
        TouchKind::Write
        | TouchKind::Project
        | TouchKind::Delete
        | TouchKind::Network
        | TouchKind::Code
        | TouchKind::Process
        | TouchKind::Install
        | TouchKind::Publish
        | TouchKind::External
        | TouchKind::Environment => Risk::High,
        TouchKind::Privilege | TouchKind::Persistence | TouchKind::Unknown => Risk::Critical,
    }
}

impl Policy {
    /// Judges one call. It is pure, and its cost is bounded by the length of the call's text.
    pub fn judge(&self, request: &GateRequest) -> GateVerdict {
        let place = Place::new(&request.workspace, &request.cwd);
        let acts: Vec<Act> = acts_of(request, &place)
            .into_iter()
            .filter(|act| !act.merely || !self.allows(request, act))
            .collect();
        let mut actions = Vec::with_capacity(acts.len());
        // The strictest decision and, of equal ones, the riskiest.
        let mut worst: Option<(Said<'_>, Risk, usize, Option<usize>)> = None;
        // Equally strict decisions about other programs, which the question shows.
        let mut alike: Vec<(Decision, usize, Option<usize>)> = Vec::new();
        // A touch that would be asked about but cannot happen, whatever the answer is.
        let mut cut: Option<(usize, usize)> = None;
        let mut risk = Risk::Low;
        for (n, act) in acts.iter().enumerate() {
            let mut decision = Decision::Allow;
            let mut says = Vec::new();
            if act.touches.is_empty() {
                says.push((self.say(request, act, None, Risk::Low), Risk::Low, None));
            }
            for (at, (kind, target)) in act.touches.iter().enumerate() {
                let harm = risk_of(request, act, *kind, target);
                risk = risk.max(harm);
                says.push((self.say(request, act, Some((*kind, target)), harm), harm, Some(at)));
            }
            let mut top: Option<(Decision, Option<usize>)> = None;
            for (said, harm, touch) in says {
                if let Some(at) = touch
                    && said.decision == Decision::Ask
                    && needs_network(request, act.touches[at].0)
                    // A known host is more informative than an unknown one.
                    && cut.is_none_or(|(n, at)| !is_static(&acts[n].touches[at].1))
                {
                    cut = Some((n, at));
                }
                if touch.is_some() && top.is_none_or(|(strict, _)| said.decision > strict) {
                    top = Some((said.decision, touch));
                }
                decision = decision.max(said.decision);
                if worst.as_ref().is_none_or(|(worst, most, _, _)| {
                    (said.decision, harm) > (worst.decision, *most)
                }) {
                    worst = Some((said, harm, n, touch));
                }
            }
            alike.extend(top.map(|(strict, touch)| (strict, n, touch)));
            actions.push(recorded(act, decision));
        }
        let nothing = Said { decision: self.default, rule: None, perhaps: false };
        let (said, _, act, touch) = worst.unwrap_or((nothing, Risk::Low, 0, None));
        let mut decision = said.decision;
        let mut rule = match said.rule {
            Some(rule) => RuleRef { id: rule.file.id.clone(), place: rule.place.clone() },
            None => RuleRef { id: "default".to_owned(), place: BUILT_IN.to_owned() },
        };
        let what = acts.get(act).map(|act| told(act, touch)).unwrap_or_default();
        let why = match said.rule {
            Some(rule) => {
                let why = rule.file.reason.clone();
                let why = why.unwrap_or_else(|| format!("rule `{}`", rule.file.id));
                if said.perhaps { format!("it may be one that is denied: {why}") } else { why }
            }
            None => "no rule allows it".to_owned(),
        };
        let mut reason = format!("{what}; {why}");
        let others = alike.iter().filter(|(strict, n, _)| {
            *n != act && *strict == said.decision && said.decision > Decision::Allow
        });
        for (_, n, touch) in others.take(MAX_OTHERS) {
            reason.push_str(&format!(". Also, {}", told(&acts[*n], *touch)));
        }
        if let Some(way) = self.trifecta_of(request, &acts)
            && self.trifecta > decision
        {
            decision = self.trifecta;
            risk = risk.max(Risk::High);
            rule = RuleRef { id: "trifecta".to_owned(), place: BUILT_IN.to_owned() };
            reason = format!(
                "{way}: the session holds private data and text from strangers, so nothing may leave unasked"
            );
        }
        if let Some((n, at)) = cut.filter(|_| decision == Decision::Ask) {
            decision = Decision::Deny;
            rule = RuleRef { id: "no-network".to_owned(), place: BUILT_IN.to_owned() };
            reason = format!("{}; {NO_NETWORK}", told(&acts[n], Some(at)));
        }
        let advice = match decision {
            Decision::Deny if cut.is_some() && rule.id == "no-network" => reason.clone(),
            Decision::Allow => String::new(),
            Decision::Ask => format!("{what}. A person must approve this first."),
            Decision::Deny => format!(
                "{what}. This is not permitted here; do not try it in another form, choose a way that does without it."
            ),
        };
        GateVerdict {
            decision,
            rule,
            risk,
            reason,
            advice,
            files: files_of(&acts),
            actions,
            policy: self.version.clone(),
            group: None,
        }
    }

    /// Whether each touch of an action is allowed.
    fn allows(&self, request: &GateRequest, act: &Act) -> bool {
        act.touches.iter().all(|(kind, target)| {
            let harm = risk_of(request, act, *kind, target);
            let said = self.say(request, act, Some((*kind, target)), harm);
            said.decision == Decision::Allow
        })
    }

    fn say(
        &self,
        request: &GateRequest,
        act: &Act,
        touch: Option<(TouchKind, &String)>,
        risk: Risk,
    ) -> Said<'_> {
        // In an environment only the run's own services are reachable.
        let own = request.room && is_command(request) && act.near;
        let touch = touch.map(|(kind, target)| match kind {
            TouchKind::Network if own && !is_static(target) => (kind, "localhost"),
            _ => (kind, target.as_str()),
        });
        let mut strict: Option<Said<'_>> = None;
        let mut allow: Option<&Rule> = None;
        for rule in &self.rules {
            if rule.file.verdict == Decision::Allow && allow.is_some() {
                continue;
            }
            let fit = rule.fits(request, act, touch, risk);
            let decision = match (rule.file.verdict, fit) {
                (_, Fit::No) | (Decision::Allow, Fit::May) => continue,
                (Decision::Allow, Fit::Must) => {
                    allow = Some(rule);
                    continue;
                }
                (Decision::Ask, Fit::May | Fit::Must) | (Decision::Deny, Fit::May) => Decision::Ask,
                (Decision::Deny, Fit::Must) => Decision::Deny,
            };
            if strict.as_ref().is_none_or(|said| decision > said.decision) {
                let perhaps = decision < rule.file.verdict;
                strict = Some(Said { decision, rule: Some(rule), perhaps });
            }
        }
        if let Some(said) = strict {
            return said;
        }
        if let Some(rule) = allow {
            return Said { decision: Decision::Allow, rule: Some(rule), perhaps: false };
        }
        // An unknown action is never allowed by default.
        let unknown = touch.is_some_and(|(kind, _)| kind == TouchKind::Unknown);
        let decision = if unknown { self.default.max(Decision::Ask) } else { self.default };
        Said { decision, rule: None, perhaps: false }
    }

    /// The touch by which data could leave, if the session holds data that must not leave.
    fn trifecta_of(&self, request: &GateRequest, acts: &[Act]) -> Option<String> {
        if !(request.labels.untrusted && request.labels.private) {
            return None;
        }
        for act in acts {
            for (n, (kind, target)) in act.touches.iter().enumerate() {
                let trusted = *kind == TouchKind::Network
                    && self.trusted.iter().any(|glob| glob.fits(target) == Fit::Must);
                // Without a sandbox the project's code also reaches the network.
                let open = *kind == TouchKind::Project && request.sandbox == SandboxLevel::None;
                if (kind.is_egress() || open) && !trusted {
                    return Some(told(act, Some(n)));
                }
            }
        }
        None
    }
}

/// Describes what one action does: "`rm` would delete `src`".
fn told(act: &Act, touch: Option<usize>) -> String {
    let program = if act.program.is_empty() {
        "the command".to_owned()
    } else {
        format!("`{}`", clip(&shown(&act.program)))
    };
    let Some((kind, target)) = touch.and_then(|n| act.touches.get(n)) else {
        return format!("{program} changes nothing");
    };
    let known = is_static(target) || target.chars().any(|c| !is_private(c));
    let named = !target.trim().is_empty();
    let target = clip(&shown(target));
    let file = if known { format!("`{target}`") } else { LATER.to_owned() };
    match kind {
        TouchKind::Read => format!("{program} would read {file}"),
        TouchKind::Write => format!("{program} would write {file}"),
        TouchKind::Delete => format!("{program} would delete {file}"),
        TouchKind::Network if known => {
            format!("{program} would reach `{target}` over the network")
        }
        TouchKind::Network => format!("{program} would reach another machine over the network"),
        TouchKind::Project => format!("{program} would run code of the workspace (`{target}`)"),
        TouchKind::Code if target.starts_with(['/', '~']) => {
            format!("{program} would run code from outside the workspace: `{target}`")
        }
        TouchKind::Code if known => {
            format!("{program} would run code that it is given: `{target}`")
        }
        TouchKind::Code => format!("{program} would run code that is known only at run time"),
        TouchKind::Privilege => format!("{program} would gain privileges"),
        TouchKind::Process => format!("{program} would act on other processes"),
        TouchKind::Install if named => format!("{program} would install `{target}`"),
        TouchKind::Install => format!("{program} would install packages"),
        TouchKind::Publish if named => format!("{program} would publish `{target}`"),
        TouchKind::Publish => format!("{program} would send work away"),
        TouchKind::Environment => format!("{program} would run with `{target}` changed"),
        TouchKind::Persistence => format!("{program} would leave something behind: `{target}`"),
        TouchKind::External => format!("`{target}` is a tool of another program"),
        TouchKind::Unknown => format!("{program} cannot be judged: {target}"),
    }
}

fn clip(text: &str) -> String {
    match text.char_indices().nth(MAX_ARG_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

fn recorded(act: &Act, decision: Decision) -> Action {
    let touches = act.touches.iter();
    Action {
        program: clip(&shown(&act.program)),
        args: act.args.iter().take(MAX_ARGS).map(|arg| clip(&shown(arg))).collect(),
        via: act.via.clone(),
        touches: touches
            .map(|(kind, target)| Touch { kind: *kind, target: clip(&shown(target)) })
            .collect(),
        decision,
    }
}

/// The files that an approval depends on, as [`GateVerdict::files`] explains. If there are too
/// many, files that are read and executed come first.
fn files_of(acts: &[Act]) -> Vec<String> {
    let named = |target: &str| is_static(target) && target != "." && !target.contains([' ', '\n']);
    let (mut files, mut places) = (Vec::new(), Vec::new());
    for act in acts {
        for (kind, target) in &act.touches {
            match kind {
                TouchKind::Read | TouchKind::Project | TouchKind::Code if named(target) => {
                    files.push(target.clone());
                }
                TouchKind::Write | TouchKind::Delete if named(target) => {
                    places.push(format!("{}/", target.trim_end_matches('/')));
                }
                _ => {}
            }
        }
        files.extend(imported(act));
    }
    for names in [&mut files, &mut places] {
        names.sort();
        names.dedup();
        names.truncate(MAX_FILES);
    }
    places.truncate(MAX_FILES - files.len());
    files.append(&mut places);
    files.sort();
    files
}

/// The modules that code on the command line may import, from each directory in which it can start.
fn imported(act: &Act) -> Vec<String> {
    let runs_code = act.touches.iter().any(|(kind, _)| *kind == TouchKind::Code);
    let name = act.program.rsplit('/').next().unwrap_or_default();
    let Some(language) = Language::of_program(name).filter(|_| runs_code) else {
        return Vec::new();
    };
    if language == Language::Shell {
        return Vec::new(); // its text is analysed, and what it runs are acts of their own
    }
    let code = act.args.join(" ");
    let cwds = act.cwds.iter().filter(|cwd| is_static(cwd) && !cwd.starts_with('/'));
    cwds.flat_map(|cwd| candidates(language, &code, cwd)).collect()
}
