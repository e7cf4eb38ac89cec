//! Derives actions from a tool and its arguments.

use overmind_core::gate::{GateRequest, TouchKind};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::tool_traits::{Paths, Touches, traits};
use serde_json::Value;

use crate::shell::expand::{HOLE, is_private};
use crate::shell::path::resolve;
use crate::shell::{Act, Place, analyse, analyse_program, host_of};

/// Everything that the call would do.
pub(crate) fn acts_of(request: &GateRequest, place: &Place) -> Vec<Act> {
    let text = |key: &str| request.args.get(key).and_then(Value::as_str);
    let mut act = Act { program: request.tool.clone(), ..Act::default() };
    let path = |act: &mut Act, kind: TouchKind, path: Option<&str>| match path {
        // A file tool resolves the path from the workspace, never from the shell's directory.
        Some(path) if !path.chars().any(is_private) => {
            act.touch(kind, resolve(path, ".", &place.workspace))
        }
        Some(_) | None => act.garbled("a path is missing or has hidden characters"),
    };
    let paths = |act: &mut Act, kind: TouchKind, paths: Paths| match paths {
        Paths::Of(name) => path(act, kind, text(name)),
        Paths::OrWorkspace(name) => path(act, kind, Some(text(name).unwrap_or("."))),
        Paths::IfGiven(name) if request.args.get(name).is_none_or(Value::is_null) => {}
        Paths::IfGiven(name) => path(act, kind, text(name)),
        Paths::Each(list, name) => match request.args.get(list).and_then(Value::as_array) {
            Some(all) => {
                all.iter().for_each(|one| path(act, kind, one.get(name).and_then(Value::as_str)));
            }
            None => act.garbled("the checks are missing"),
        },
    };
    match traits(&request.tool).map(|row| row.touches) {
        Some(Touches::Command) => return command(request, place, act),
        Some(Touches::Reads(of)) => paths(&mut act, TouchKind::Read, of),
        Some(Touches::Writes(of)) => paths(&mut act, TouchKind::Write, of),
        Some(Touches::Host(name)) => {
            act.touch(TouchKind::Network, text(name).map_or(HOLE.to_string(), host_of));
        }
        Some(Touches::Overmind) => {}
        None => act.touch(TouchKind::External, request.tool.clone()),
    }
    vec![act]
}

/// The action of a command: the directory that it may write to, and the one where it starts, are
/// touches of their own.
fn command(request: &GateRequest, place: &Place, mut act: Act) -> Vec<Act> {
    let args = &request.args;
    let text = |key: &str| args.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let mut place = place.clone();
    // This follows the tools: they refuse anything but a boolean. In an environment of its own a
    // command may write to the whole workspace unless the call says otherwise.
    let own = request.room && request.sandbox == SandboxLevel::Namespace;
    if args.get("allow_write").and_then(Value::as_bool).unwrap_or(own) {
        match text("write_subdir").filter(|dir| !dir.trim().is_empty()) {
            Some(dir) => {
                place.cwd = inside(dir, &place);
                act.touch(TouchKind::Write, place.cwd.clone());
            }
            None if own => {
                act.touch(TouchKind::Write, place.cwd.clone());
                act.merely = true;
            }
            None => place.cwd = resolve(&request.scratch, ".", &place.workspace),
        }
    }
    let run = if request.tool == "run_shell" {
        text("command").map(|command| analyse(command, &place))
    } else {
        if let Some(cwd) = text("cwd") {
            place.cwd = inside(cwd, &place);
        }
        text("program").and_then(|program| {
            let rest = match args.get("args") {
                None | Some(Value::Null) => Some(Vec::new()),
                Some(rest) => serde_json::from_value(rest.clone()).ok(),
            };
            rest.map(|rest: Vec<String>| {
                let argv: Vec<String> = std::iter::once(program.to_owned()).chain(rest).collect();
                analyse_program(&argv, text("stdin"), &place)
            })
        })
    };
    match run {
        Some(acts) if act.touches.is_empty() => acts,
        Some(acts) => std::iter::once(act).chain(acts).collect(),
        None => {
            act.garbled("the command is missing");
            vec![act]
        }
    }
}

/// A directory as the tools read it: an absolute path outside means the same path in the workspace.
fn inside(dir: &str, place: &Place) -> String {
    if dir.chars().any(is_private) {
        return HOLE.to_string();
    }
    match resolve(dir, ".", &place.workspace) {
        path if path.starts_with('/') => {
            resolve(dir.trim_start_matches('/'), ".", &place.workspace)
        }
        path => path,
    }
}
