//! Connections that leave a sandbox whose network is the mesh: to services and databases of its own session.
//! The same for the session's command, for its services and for its hooks.

use std::collections::BTreeMap;

use overmind_core::enclosure::{MAX_REACHED, may_be_reached};

use crate::env::Values;

/// Values that are of no service.
const OF_NO_SERVICE: [&str; 2] = ["session", "ports"];

/// The addresses of the services and databases of a lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    /// On this machine's loopback.
    pub(crate) ports: Vec<u16>,
    /// Those that no port of the loopback leads to, and where they are: on another machine, at a
    /// socket of a directory, or more than can be let out.
    pub(crate) beyond: Vec<String>,
}

impl Reached {
    /// `leased` is every port of the lease: those of services are called `service/port`, others
    /// the session serves on itself.
    pub(crate) fn of(leased: &BTreeMap<String, u16>, values: &Values) -> Self {
        // The owner of each port. Leased ports belong to processes, containers and compose
        // projects: a program or an engine binds them on 127.0.0.1.
        let leased = leased.iter().filter_map(|(name, port)| {
            let (service, _) = name.split_once('/')?;
            Some((*port, service))
        });
        let mut here: BTreeMap<u16, &str> = leased.collect();
        let mut beyond = Vec::new();
        for (service, fields) in values.all() {
            let Some(host) = fields.get("host") else { continue };
            if OF_NO_SERVICE.contains(&service.as_str()) {
                continue;
            }
            let port = fields.get("port").map(String::as_str);
            if !matches!(host.as_str(), "127.0.0.1" | "localhost") {
                beyond.push(format!("{service} at {host}:{}", port.unwrap_or_default()));
            } else if let Some(port) = port.and_then(|port| port.parse().ok()) {
                here.insert(port, service);
            }
        }
        let mut ports = Vec::new();
        for (port, service) in here {
            if may_be_reached(port) && ports.len() < MAX_REACHED {
                ports.push(port);
            } else {
                beyond.push(format!("{service} at 127.0.0.1:{port}"));
            }
        }
        Self { ports, beyond }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(leased: &[(&str, u16)], values: &[(&str, &str, &str)]) -> Reached {
        let mut all = Values::default();
        for (service, field, value) in values {
            all.set(service, field, *value);
        }
        let leased = leased.iter().map(|(name, port)| ((*name).to_owned(), *port)).collect();
        Reached::of(&leased, &all)
    }

    #[test]
    fn local_services_and_databases_are_reachable_and_session_ports_are_not() {
        let leased = [
            ("PORT", 20_000),
            ("web/http", 20_001),
            ("web/metrics", 20_002),
            ("st/web_80", 20_003),
        ];
        let values = [
            ("web", "host", "127.0.0.1"),
            ("web", "port", "20001"),
            ("db", "host", "127.0.0.1"),
            ("db", "port", "20009"),
            ("cache", "host", "localhost"),
            ("cache", "port", "6379"),
            // Its ports are leased, each under its name.
            ("st", "host", "127.0.0.1"),
            ("st", "web_80", "20003"),
            // A file, a service without ports, and a port that the session calls so.
            ("local", "file", "/srv/a.sqlite3"),
            ("quiet", "host", "127.0.0.1"),
            ("ports", "host", "20000"),
        ];
        let ports = vec![6379, 20_001, 20_002, 20_003, 20_009];
        assert_eq!(of(&leased, &values), Reached { ports, beyond: Vec::new() });
        assert_eq!(of(&[("PORT", 1)], &[]), Reached { ports: Vec::new(), beyond: Vec::new() });
    }

    #[test]
    fn databases_beyond_loopback_are_reported() {
        for host in ["db.example", "10.0.0.7", "::1", "127.0.0.2", "/run/postgresql", "0.0.0.0"] {
            let there = [("db", "host", host), ("db", "port", "5432")];
            let beyond = vec![format!("db at {host}:5432")];
            let wanted = Reached { ports: vec![20_001], beyond };
            assert_eq!(of(&[("web/http", 20_001)], &there), wanted, "{host}");
        }
        // Taken inside.
        let beyond = vec!["db at 127.0.0.1:80".to_owned()];
        let wanted = Reached { ports: Vec::new(), beyond };
        assert_eq!(of(&[], &[("db", "host", "localhost"), ("db", "port", "80")]), wanted);
        let many: Vec<(String, u16)> = (20_000..20_033).map(|n| (format!("s/{n}"), n)).collect();
        let many: Vec<(&str, u16)> = many.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        let Reached { ports, beyond } = of(&many, &[]);
        assert_eq!((ports.len(), beyond), (MAX_REACHED, vec!["s at 127.0.0.1:20032".to_owned()]));
        assert_eq!(of(&many[1..], &[]).beyond, [] as [&str; 0]);
    }
}
