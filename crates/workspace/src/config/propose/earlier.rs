//! The earlier dialect of `.overmind.yml`: services with a `command` or a `docker` image and a
//! `port`, and a range of ports, without a version.

use super::files::{ComposeEntry, ComposePort, engine_of, interpolated};
use super::{Draft, DraftKind, DraftService};
use crate::config::yaml::{Node, Value};
use crate::env::template::is_name;

/// The content of the file, if all of it is in the earlier dialect. `None` for anything else, so
/// that an error in a file of the present dialect is reported as such.
pub(super) fn draft(root: &Node) -> Option<Draft> {
    only(root, &["services", "isolation"])?;
    let mut draft = Draft::default();
    if let Some(isolation) = root.get("isolation") {
        only(isolation, &["strategy", "port_range"])?;
        let strategy = isolation.get("strategy").map_or(Some("ports"), Node::text)?;
        if strategy != "ports" {
            return None;
        }
        draft.range = match isolation.get("port_range") {
            Some(range) => Some(range_of(range.text()?)?),
            None => None,
        };
    }
    let services = root.get("services").filter(|services| !services.is_null());
    for (name, _, node) in services.map(Node::entries).unwrap_or_default() {
        only(node, &["command", "docker", "port"])?;
        let port = match node.get("port") {
            Some(port) => Some(port.text()?.parse::<u16>().ok().filter(|port| *port > 0)?),
            None => None,
        };
        let text = |key: &str| node.get(key).and_then(Node::text);
        let kind = match (text("docker"), text("command")) {
            (Some(image), command) => container(name, image, command, port),
            (None, Some(command)) => {
                DraftKind::Process { command: command.to_owned(), port: port.is_some() }
            }
            (None, None) => return None,
        };
        if !is_name(name) {
            return None;
        }
        let variable = name.to_uppercase().replace('-', "_");
        if port.is_some() || matches!(kind, DraftKind::Database(_)) {
            draft.env.push((format!("{variable}_PORT"), format!("${{{name}.port}}")));
        }
        if matches!(kind, DraftKind::Database(_)) {
            draft.env.push((format!("{variable}_URL"), format!("${{{name}.url}}")));
        }
        let from = "the earlier dialect of this file";
        let depends_on = Vec::new();
        draft.services.push(DraftService { name: name.to_owned(), from, kind, depends_on });
    }
    // Containers were started before the commands.
    let process = |one: &DraftService| matches!(one.kind, DraftKind::Process { .. });
    let others = draft.services.iter().filter(|one| !process(one));
    let backing: Vec<String> = others.map(|one| one.name.clone()).collect();
    for service in draft.services.iter_mut().filter(|one| process(one)) {
        service.depends_on.clone_from(&backing);
    }
    (!draft.services.is_empty() || draft.range.is_some()).then_some(draft)
}

fn container(name: &str, image: &str, command: Option<&str>, port: Option<u16>) -> DraftKind {
    let image = interpolated(image);
    if let (Some(engine), None) = (engine_of(&image), command) {
        return DraftKind::Database(engine);
    }
    let port = port.map(|target| ComposePort { name: "port".to_owned(), published: None, target });
    DraftKind::Container(ComposeEntry {
        name: name.to_owned(),
        image: Some(image),
        engine: None,
        command: command.map(|line| line.split_whitespace().map(ToOwned::to_owned).collect()),
        env: Vec::new(),
        ports: port.into_iter().collect(),
        volumes: Vec::new(),
        mounts: Vec::new(),
        depends_on: Vec::new(),
    })
}

/// Checks that a node is a map with no other keys than these.
fn only(node: &Node, keys: &[&str]) -> Option<()> {
    matches!(node.value, Value::Map(_)).then_some(())?;
    node.entries().iter().all(|(key, ..)| keys.contains(key)).then_some(())
}

fn range_of(text: &str) -> Option<String> {
    let (low, high) = text.split_once('-')?;
    let (low, high) = (low.trim().parse::<u16>().ok()?, high.trim().parse::<u16>().ok()?);
    (low >= 1024 && low <= high).then(|| format!("{low}-{high}"))
}
