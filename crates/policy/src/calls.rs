//! From a tool and its arguments to actions.

use overmind_core::gate::{GateRequest, TouchKind};
use serde_json::Value;

use crate::shell::expand::{HOLE, is_private};
use crate::shell::path::resolve;
use crate::shell::{Act, Place, analyse, host_of};

/// Everything that the call would do.
pub(crate) fn acts_of(request: &GateRequest, place: &Place) -> Vec<Act> {
    let text = |key: &str| request.args.get(key).and_then(Value::as_str);
    let mut act = Act { program: request.tool.clone(), ..Act::default() };
    let path = |act: &mut Act, kind: TouchKind, path: Option<&str>| match path {
        // A file tool takes the path as it is: from the workspace, never from the shell's place.
        Some(path) if !path.chars().any(is_private) => {
            act.touch(kind, resolve(path, ".", &place.workspace))
        }
        Some(_) | None => act.unknown("a path is missing or has hidden characters"),
    };
    match request.tool.as_str() {
        "run_shell" => {
            return match text("command") {
                Some(command) => analyse(command, place),
                None => {
                    act.unknown("the command is missing");
                    vec![act]
                }
            };
        }
        "read_file" => path(&mut act, TouchKind::Read, text("path")),
        "list_files" => path(&mut act, TouchKind::Read, Some(text("path").unwrap_or("."))),
        "write_file" | "edit_file" => path(&mut act, TouchKind::Write, text("path")),
        "verify" => match request.args.get("checks").and_then(Value::as_array) {
            Some(checks) => {
                for check in checks {
                    path(&mut act, TouchKind::Read, check.get("path").and_then(Value::as_str));
                }
            }
            None => act.unknown("the checks are missing"),
        },
        "http_request" | "web_fetch" => {
            let host = text("url").map_or(HOLE.to_string(), host_of);
            act.touch(TouchKind::Network, host);
        }
        // They touch nothing but Overmind itself.
        "echo" | "ask_user" | "final_answer" | "store_memory" | "search_memory" => {}
        _ => act.touch(TouchKind::External, request.tool.clone()),
    }
    vec![act]
}
