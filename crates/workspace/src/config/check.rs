//! Checks across parts of a file: dependencies, references, unique names.

use std::collections::BTreeSet;

use overmind_core::nearest::nearest;

use super::reader::Reader;
use super::yaml::{At, Node};
use super::{CommandLine, Config, DatabaseService, Phase, Service, Strategy};
use crate::env::Template;

pub(super) fn check(reader: &mut Reader, config: &Config, node: &Node) {
    let place = |keys: &[&str]| at(node, keys);
    for service in &config.services {
        let path = format!("services.{}", service.name);
        let here = place(&["services", &service.name]);
        depends(reader, config, service, here, &path);
        for (name, template) in &service.env {
            let here = place(&["services", &service.name, "env", name]);
            references(
                reader,
                config,
                Some(service),
                template,
                here,
                &format!("{path}.env.{name}"),
            );
        }
        let words = match &service.strategy {
            Strategy::Process(process) => match &process.command {
                CommandLine::Words(words) => words.as_slice(),
                CommandLine::Shell(_) => &[],
            },
            Strategy::Container(container) => container.command.as_deref().unwrap_or_default(),
            Strategy::Database(_) | Strategy::Compose(_) => &[],
        };
        let here = place(&["services", &service.name, "command"]);
        for word in words {
            references(reader, config, Some(service), word, here, &format!("{path}.command"));
        }
    }
    cycles(reader, config, node);
    for (name, template) in &config.env {
        references(reader, config, None, template, place(&["env", name]), &format!("env.{name}"));
    }
    for name in &config.ports.names {
        if config.env.iter().any(|(known, _)| known == name) {
            let path = format!("env.{name}");
            reader.problem(place(&["env", name]), &path, "is also the name of a port");
        }
    }
    let wanted =
        config.ports.names.len() + config.services.iter().map(|s| s.ports().len()).sum::<usize>();
    let there = usize::from(*config.ports.range.end() - *config.ports.range.start()) + 1;
    if wanted > there {
        let what = format!("has {there} ports, and one session wants {wanted}");
        reader.problem(place(&["ports", "range"]), "ports.range", what);
    }
}

/// The position of the value under `keys`, or of the deepest of them that exists.
fn at(node: &Node, keys: &[&str]) -> At {
    let mut here = node;
    for key in keys {
        match here.get(key) {
            Some(next) => here = next,
            None => break,
        }
    }
    here.at
}

fn depends(reader: &mut Reader, config: &Config, service: &Service, at: At, path: &str) {
    let names: Vec<&str> = config.services.iter().map(|service| service.name.as_str()).collect();
    let path = format!("{path}.depends_on");
    for name in &service.depends_on {
        let Some(other) = config.service(name) else {
            let hint = match nearest(name, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are: {}", names.join(", ")),
            };
            reader.hinted(at, &path, format!("there is no service `{name}`"), hint);
            continue;
        };
        if service.phase == Phase::BeforeSetup && other.phase == Phase::AfterSetup {
            reader.hinted(
                at,
                &path,
                format!("starts before the setup, and `{name}` after it"),
                format!("give `{name}` the line `start: before_setup`"),
            );
        }
    }
}

fn cycles(reader: &mut Reader, config: &Config, node: &Node) {
    let mut done: BTreeSet<&str> = BTreeSet::new();
    loop {
        let before = done.len();
        for service in &config.services {
            if service.depends_on.iter().all(|name| done.contains(name.as_str())) {
                done.insert(&service.name);
            }
        }
        if done.len() == before {
            break;
        }
    }
    // A dependency on a missing service was already reported.
    let known = |name: &String| config.service(name).is_some();
    let waits: Vec<&str> = config
        .services
        .iter()
        .filter(|service| !done.contains(service.name.as_str()))
        .filter(|service| service.depends_on.iter().all(known))
        .map(|service| service.name.as_str())
        .collect();
    if let Some(first) = waits.first() {
        let what = format!("these wait for each other: {}", waits.join(", "));
        reader.problem(at(node, &["services", first]), "services", what);
    }
}

fn references(
    reader: &mut Reader,
    config: &Config,
    own: Option<&Service>,
    template: &Template,
    at: At,
    path: &str,
) {
    for (service, field) in template.references() {
        let fields: Vec<String> = match service {
            "session" => SESSION_FIELDS.iter().map(|&field| field.to_owned()).collect(),
            "ports" => config.ports.names.clone(),
            "self" => match own {
                Some(own) if dynamic(own) => continue,
                Some(own) => fields_of(own),
                None => {
                    reader.problem(at, path, "`self` means something only within a service");
                    continue;
                }
            },
            name => match config.service(name) {
                Some(other) if dynamic(other) => continue,
                Some(other) => fields_of(other),
                None => {
                    let mut names: Vec<&str> = vec!["session", "ports"];
                    names.extend(config.services.iter().map(|service| service.name.as_str()));
                    let hint = match nearest(name, names.iter().copied()) {
                        Some(near) => format!("did you mean `{near}`?"),
                        None => format!("there are: {}", names.join(", ")),
                    };
                    let what = format!("`${{{service}.{field}}}`: there is no service `{name}`");
                    reader.hinted(at, path, what, hint);
                    continue;
                }
            },
        };
        if !fields.iter().any(|known| known == field) {
            let known: Vec<&str> = fields.iter().map(String::as_str).collect();
            let hint = match nearest(field, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("it has: {}", known.join(", ")),
            };
            let what = format!("`${{{service}.{field}}}`: `{service}` has no `{field}`");
            reader.hinted(at, path, what, hint);
        }
    }
}

/// Whether its fields are known only once it runs.
fn dynamic(service: &Service) -> bool {
    matches!(service.strategy, Strategy::Compose(_))
}

/// The fields of `${session.…}`.
pub(crate) const SESSION_FIELDS: &[&str] =
    &["id", "name", "project", "worktree", "branch", "base", "tmp"];

/// The fields of `${service.…}`, for a service whose fields are known before it runs.
fn fields_of(service: &Service) -> Vec<String> {
    let own = |fields: &[&str]| fields.iter().map(|&field| field.to_owned()).collect();
    match &service.strategy {
        Strategy::Process(_) | Strategy::Container(_) => {
            let mut fields: Vec<String> = own(&["host"]);
            if !service.ports().is_empty() {
                fields.extend(["port".to_owned(), "url".to_owned()]);
            }
            for port in service.ports() {
                if port != "port" {
                    fields.push(port.to_owned());
                }
            }
            fields
        }
        Strategy::Database(DatabaseService::Postgres(_)) => {
            own(&["host", "port", "name", "user", "password", "url"])
        }
        Strategy::Database(DatabaseService::Sqlite(_)) => own(&["file", "url"]),
        Strategy::Database(DatabaseService::Redis { .. }) => own(&["host", "port", "index", "url"]),
        Strategy::Compose(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn problems(text: &str) -> Vec<String> {
        let problems = Config::parse(text).unwrap_err();
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn references_and_dependencies_must_exist() {
        let told = problems(
            "version: 1\n\
             services:\n\
             \x20 db:\n\
             \x20   strategy: database\n\
             \x20   engine: postgres\n\
             \x20 web:\n\
             \x20   strategy: process\n\
             \x20   command: [serve, '--port=${self.prt}']\n\
             \x20   ports: [http]\n\
             \x20   depends_on: [bd]\n\
             env:\n\
             \x20 DATABASE_URL: ${db.uri}\n\
             \x20 CACHE: ${cache.url}\n\
             \x20 SELF: ${self.port}\n",
        );
        assert_eq!(
            told,
            [
                "7:5: services.web.depends_on: there is no service `bd`; did you mean `db`?",
                "8:14: services.web.command: `${self.prt}`: `self` has no `prt`; did you mean `port`?",
                "12:17: env.DATABASE_URL: `${db.uri}`: `db` has no `uri`; did you mean `url`?",
                "13:10: env.CACHE: `${cache.url}`: there is no service `cache`; there are: session, \
                 ports, db, web",
                "14:9: env.SELF: `self` means something only within a service",
            ]
        );
    }

    #[test]
    fn services_with_circular_dependencies_are_refused() {
        let service = |name: &str, other: &str| {
            format!("  {name}: {{strategy: process, command: x, depends_on: {other}}}\n")
        };
        let text = format!("version: 1\nservices:\n{}{}", service("a", "b"), service("b", "a"));
        assert_eq!(problems(&text), ["3:6: services: these wait for each other: a, b"]);
    }

    #[test]
    fn a_service_before_setup_cannot_depend_on_one_after_setup() {
        let told = problems(
            "version: 1\n\
             services:\n\
             \x20 web: {strategy: process, command: x}\n\
             \x20 box: {strategy: container, image: x, depends_on: web}\n",
        );
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("give `web` the line `start: before_setup`"), "{told:?}");
    }
}
