//! One rule, prepared for matching.

use overmind_core::gate::{Decision, GateRequest, Risk, TouchKind};
use serde_json::Value;

use super::BUILT_IN;
use super::file::RuleFile;
use super::judge::is_command;
use crate::glob::{Fit, Glob};
use crate::shell::Act;
use crate::shell::expand::{HOLE, SPLIT, is_static};

/// Kinds that an `allow` without `effects` does not cover: unknown actions, and those that outlive
/// or leave the sandbox, must be allowed explicitly.
const BY_NAME: [TouchKind; 3] = [TouchKind::Unknown, TouchKind::Privilege, TouchKind::Persistence];

#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) file: RuleFile,
    pub(super) place: String,
    tools: Vec<Glob>,
    programs: Vec<Glob>,
    paths: Vec<(Domain, Glob)>,
    /// The `paths` that do not apply in a session's own environment.
    shared: Vec<Glob>,
    hosts: Vec<Glob>,
    agents: Vec<Glob>,
    colonies: Vec<Glob>,
    arguments: Option<Value>,
    /// One bit for each kind; the highest is `none`.
    kinds: u32,
}

/// The location of a path. A pattern matches only one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Domain {
    Workspace,
    Home,
    Absolute,
}

fn domain(path: &str) -> Domain {
    match path.chars().next() {
        Some('/') => Domain::Absolute,
        Some('~') => Domain::Home,
        Some(_) | None => Domain::Workspace,
    }
}

fn bit(kind: Option<TouchKind>) -> u32 {
    let place = kind.and_then(|kind| TouchKind::ALL.iter().position(|other| *other == kind));
    1 << place.unwrap_or(31)
}

impl Rule {
    pub(super) fn new(file: RuleFile, place: String) -> Result<Self, String> {
        let id = &file.id;
        if id.is_empty()
            || id.len() > 80
            || !id.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        {
            return Err("an id is 1 to 80 letters, digits, `-`, `_` and `.`".to_owned());
        }
        let globs = |patterns: &[String]| -> Result<Vec<Glob>, String> {
            let wrong =
                |pattern: &String, why| format!("rule `{id}`: the pattern `{pattern}`: {why}");
            patterns.iter().map(|p| Glob::new(p).map_err(|why| wrong(p, why))).collect()
        };
        let (mut paths, mut shared) = (Vec::new(), Vec::new());
        for pattern in &file.paths {
            let wrong = |why: &str| format!("rule `{id}`: the path `{pattern}`: {why}");
            if pattern.split('/').any(|part| part == ".." || part == ".") && pattern != "." {
                return Err(wrong("write it without `.` and `..`"));
            }
            let forms = match pattern.strip_prefix("@any/") {
                Some(rest) => {
                    vec![format!("**/{rest}"), format!("/**/{rest}"), format!("~/**/{rest}")]
                }
                None => match pattern.strip_prefix("@shared/") {
                    Some(rest) => {
                        let glob = Glob::new(&format!("**/{rest}")).map_err(|why| wrong(&why))?;
                        shared.push(glob);
                        vec![format!("/**/{rest}"), format!("~/**/{rest}")]
                    }
                    None => vec![pattern.clone()],
                },
            };
            for form in forms {
                let glob = Glob::new(&form).map_err(|why| wrong(&why))?;
                paths.push((domain(&form), glob));
            }
        }
        let mut kinds: u32 =
            file.effects.iter().map(|name| bit(name.0)).fold(0, |all, bit| all | bit);
        if file.effects.is_empty() {
            kinds = match file.verdict {
                Decision::Allow => {
                    BY_NAME.iter().fold(u32::MAX, |all, kind| all & !bit(Some(*kind)))
                }
                Decision::Ask | Decision::Deny => u32::MAX,
            };
        }
        let arguments = match &file.arguments {
            None => None,
            Some(text) => Some(
                serde_json::from_str(text)
                    .map_err(|err| format!("rule `{id}`: `arguments` is not JSON: {err}"))?,
            ),
        };
        Ok(Self {
            tools: globs(&file.tools)?,
            programs: globs(&file.programs)?,
            hosts: globs(&file.hosts)?,
            agents: globs(&file.agents)?,
            colonies: globs(&file.colonies)?,
            paths,
            shared,
            arguments,
            kinds,
            file,
            place,
        })
    }

    /// How certainly the rule matches this touch of this action.
    pub(super) fn fits(
        &self,
        request: &GateRequest,
        act: &Act,
        touch: Option<(TouchKind, &str)>,
        risk: Risk,
    ) -> Fit {
        let kind = touch.map(|(kind, _)| kind);
        if self.kinds & bit(kind) == 0 {
            return Fit::No;
        }
        let plain = |globs: &[Glob], text: &str| {
            globs.is_empty() || globs.iter().any(|glob| glob.fits(text) == Fit::Must)
        };
        let file = &self.file;
        if !(plain(&self.tools, &request.tool)
            && plain(&self.agents, &request.agent)
            && plain(&self.colonies, &request.colony)
            && (file.sandbox.is_empty() || file.sandbox.contains(&request.sandbox))
            && file.room.is_none_or(|room| room == request.room))
        {
            return Fit::No;
        }
        if let Some(bound) = file.risk {
            let within = match file.verdict {
                Decision::Allow => risk <= bound,
                Decision::Ask | Decision::Deny => risk >= bound,
            };
            if !within {
                return Fit::No;
            }
        }
        if !file.argv.is_empty() {
            let exact = file.argv[0] == act.program
                && file.argv[1..] == act.args[..]
                && act.args.iter().all(|arg| is_static(arg))
                && act.via.is_empty();
            if !exact {
                return Fit::No;
            }
        }
        if file.cwd.as_ref().is_some_and(|cwd| act.cwds.as_slice() != std::slice::from_ref(cwd)) {
            return Fit::No;
        }
        if self.arguments.as_ref().is_some_and(|arguments| *arguments != request.args) {
            return Fit::No;
        }
        let mut fit = Fit::Must;
        if !self.programs.is_empty() {
            fit = fit.min(best(&self.programs, &act.program));
        }
        let (kind, target) = touch.map_or((None, ""), |(kind, target)| (Some(kind), target));
        if !self.paths.is_empty() {
            let about_path = match kind {
                Some(
                    TouchKind::Read
                    | TouchKind::Write
                    | TouchKind::Delete
                    | TouchKind::Project
                    | TouchKind::Code,
                ) => true,
                Some(
                    TouchKind::Network
                    | TouchKind::Privilege
                    | TouchKind::Process
                    | TouchKind::Install
                    | TouchKind::Publish
                    | TouchKind::Environment
                    | TouchKind::Persistence
                    | TouchKind::External
                    | TouchKind::Unknown,
                )
                | None => false,
            };
            fit = fit.min(if about_path { self.path_fits(target, request) } else { Fit::No });
        }
        if !self.hosts.is_empty() {
            let hosts =
                if kind == Some(TouchKind::Network) { best(&self.hosts, target) } else { Fit::No };
            fit = fit.min(hosts);
        }
        fit
    }

    /// Handles a path without a known beginning, in a command of an environment. The sandbox limits
    /// where it leads, and withheld files stay withheld by any path. So the built-in rules match
    /// its known end only.
    fn end_fits(&self, target: &str) -> Fit {
        if self.file.verdict == Decision::Allow {
            return if self.file.room == Some(true) { Fit::Must } else { Fit::May };
        }
        let end = target.rsplit([HOLE, SPLIT]).next().unwrap_or_default();
        let end = end.trim_start_matches('/');
        let said = |(domain, glob): &(Domain, Glob)| {
            *domain == Domain::Workspace && glob.fits(end) == Fit::Must
        };
        if !end.is_empty() && self.paths.iter().any(said) { Fit::May } else { Fit::No }
    }

    fn path_fits(&self, target: &str, request: &GateRequest) -> Fit {
        let room = request.room;
        if target.contains([HOLE, SPLIT]) {
            if room && is_command(request) && self.place == BUILT_IN {
                return self.end_fits(target);
            }
            // The location is unknown. In an environment secrets are withheld by any path, and
            // outside of the workspace there is only the system.
            let withheld = room && self.file.verdict == Decision::Deny && !self.shared.is_empty();
            return if withheld { Fit::No } else { Fit::May };
        }
        let there = domain(target);
        let of_domain = self.paths.iter().filter(|(domain, _)| *domain == there);
        let shared = self.shared.iter().filter(|_| !room && there == Domain::Workspace);
        of_domain
            .map(|(_, glob)| glob)
            .chain(shared)
            .map(|glob| glob.fits(target))
            .max()
            .unwrap_or(Fit::No)
    }
}

fn best(globs: &[Glob], text: &str) -> Fit {
    globs.iter().map(|glob| glob.fits(text)).max().unwrap_or(Fit::No)
}
