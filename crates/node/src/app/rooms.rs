//! The environments of sessions as configured: below the data directory, with the variables that
//! commands inherit.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use overmind_core::enclosure::Enclose;
use overmind_core::process::ProcessUser;
use overmind_core::time::Clock;
use overmind_server::{Backends, Found, Proxy, label};
use overmind_workspace::git::Git;
use overmind_workspace::rooms::{LocalRooms, Options, Serving};
use overmind_workspace::services::confine::Encloses;

use super::{StartError, docker_options, off_limits};
use crate::config::Config;

/// The time limit of one git call, which may be the first checkout of a large repository.
const GIT: Duration = Duration::from_mins(5);

/// The environments of this data directory. Nothing is read or made before the first session needs
/// one.
pub(super) fn open(
    config: &Config,
    clock: &Arc<dyn Clock>,
    enclosures: &Arc<dyn Enclose>,
) -> Arc<LocalRooms> {
    let inherited = |name: &str| {
        config.environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    let home = inherited("HOME").map(PathBuf::from);
    let usual = Git::default();
    Arc::new(LocalRooms::open(Options {
        docker: Some(docker_options(config, "rooms").socket),
        worktrees: config.rooms_worktrees.clone(),
        user: config.sandbox_run_as.map(|(uid, gid)| ProcessUser { uid, gid }),
        encloses: Encloses::by(Arc::clone(enclosures)),
        environment: config.environment.iter().cloned().collect(),
        // The credentials that a project's `url_env` may name: as with tools, only those meant for
        // that.
        secrets: config
            .credentials
            .iter()
            .map(|(name, secret)| (name.clone(), secret.expose().to_owned()))
            .collect(),
        off_limits: off_limits::of(config),
        servers: config.rooms_servers.clone(),
        excludes_file: home.map(|home| home.join(".config/git/ignore")),
        git: match inherited("PATH") {
            Some(path) => Git::new("git".into(), path.into(), GIT),
            None => usual,
        },
        ..Options::new(config.data.path(), Arc::clone(clock))
    }))
}

/// The proxy for the names of runs' services, if it is configured. It already listens.
pub(super) async fn proxy(
    config: &Config,
    rooms: &Arc<LocalRooms>,
) -> Result<Option<Proxy>, StartError> {
    let Some(address) = config.rooms_proxy else { return Ok(None) };
    let names = Arc::new(Names(Arc::clone(rooms)));
    Ok(Some(Proxy::bind(address, names).await?))
}

/// The names of open environments.
#[derive(Debug)]
struct Names(Arc<LocalRooms>);

impl Backends for Names {
    fn find(&self, run: &str, service: Option<&str>) -> Found {
        find(&self.0.serving(), run, service)
    }
}

fn find(serving: &[Serving], run: &str, service: Option<&str>) -> Found {
    // A run whose label equals another run's must not get that run's visitors.
    let called: Vec<_> = serving.iter().filter(|one| label(&one.name) == run).collect();
    let found = match called[..] {
        [found] => found,
        [] => return Found::NoRun { there: serving.iter().map(|one| label(&one.name)).collect() },
        _ => {
            return Found::SeveralRuns {
                there: called.iter().map(|one| one.name.clone()).collect(),
            };
        }
    };
    let port = match service {
        None => found.main(),
        Some(service) => {
            let mut called = found.services.iter().filter(|(name, _)| label(name) == service);
            called.next().filter(|_| called.next().is_none()).map(|(_, port)| *port)
        }
    };
    match port {
        Some(port) => Found::Port(port),
        None => Found::NoService { there: found.services.keys().map(|name| label(name)).collect() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serving(name: &str, services: &[(&str, u16)], port: Option<u16>) -> Serving {
        let services = services.iter().map(|(name, port)| ((*name).to_owned(), *port)).collect();
        Serving { name: name.to_owned(), services, port }
    }

    #[test]
    fn a_host_name_selects_the_only_service_or_a_port_of_a_run() {
        let all = [
            serving("fix login", &[("web", 1)], Some(9)),
            serving("two", &[("api_v1", 2), ("web", 3)], Some(4)),
            serving("none", &[], None),
        ];
        let there = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        for (run, service, wanted) in [
            ("fix-login", None, Found::Port(1)),
            ("fix-login", Some("web"), Found::Port(1)),
            ("two", None, Found::Port(4)),
            ("two", Some("api-v1"), Found::Port(2)),
            ("two", Some("x"), Found::NoService { there: there(&["api-v1", "web"]) }),
            ("none", None, Found::NoService { there: there(&[]) }),
            ("gone", None, Found::NoRun { there: there(&["fix-login", "two", "none"]) }),
        ] {
            assert_eq!(find(&all, run, service), wanted, "{service:?} of {run}");
        }
    }

    #[test]
    fn a_run_whose_name_looks_like_anothers_gets_none_of_its_visitors() {
        let all = [
            serving("shop-1", &[("web", 1)], None),
            serving("shop_1", &[("web", 2)], None),
            serving("other", &[("a_b", 3), ("a-b", 4), ("c", 5)], None),
        ];
        let there = vec!["shop-1".to_owned(), "shop_1".to_owned()];
        assert_eq!(find(&all, "shop-1", None), Found::SeveralRuns { there: there.clone() });
        assert_eq!(find(&all, "shop-1", Some("web")), Found::SeveralRuns { there });
        assert!(matches!(find(&all, "other", Some("a-b")), Found::NoService { .. }));
        assert_eq!(find(&all, "other", Some("c")), Found::Port(5));
    }
}
