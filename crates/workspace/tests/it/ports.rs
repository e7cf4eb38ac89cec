//! Leases of ports, across processes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use overmind_workspace::ports::{Owner, Ports, Registry, RegistryError, is_free};

use crate::support::{range, variable};

fn owner(dir: &Path, home: &str, session: &str) -> Owner {
    let alive = dir.join(format!("{home}-{session}"));
    std::fs::write(&alive, "").unwrap();
    Owner { home: home.to_owned(), session: session.to_owned(), alive }
}

fn bounds(dir: &Path) -> (u16, u16) {
    let text = range(dir);
    let (low, high) = text.split_once('-').unwrap();
    (low.parse().unwrap(), high.parse().unwrap())
}

fn ports(dir: &Path) -> Ports {
    Ports::new(Registry::open(dir.join("registry")).unwrap())
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("P{n}")).collect()
}

#[test]
fn fifty_takers_in_five_processes_never_share_a_port() {
    let dir = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..5)
        .map(|n| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "ports::a_process_that_takes", "--ignored", "--nocapture"])
                .env("OVERMIND_TEST_DIR", dir.path())
                .env("OVERMIND_TEST_HOME", format!("home{n}"))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut all = Vec::new();
    for mut child in children {
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let taken = lines.map_while(Result::ok).filter_map(|line| {
            line.split_once("took ").and_then(|(_, port)| port.trim().parse::<u16>().ok())
        });
        all.extend(taken);
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(all.len(), 50);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 50, "{all:?}");
}

#[test]
#[ignore = "the other half of fifty_takers_in_five_processes_never_share_a_port"]
fn a_process_that_takes() {
    let Some(dir) = variable("OVERMIND_TEST_DIR") else { return };
    let home = variable("OVERMIND_TEST_HOME").unwrap();
    let dir = Path::new(&dir);
    let (low, _) = bounds(dir);
    let ports = ports(dir);
    // A range with little more room than needed, so that everybody meets everybody.
    let range = low..=low + 59;
    std::thread::scope(|scope| {
        for n in 0..10 {
            let (ports, range, home) = (&ports, &range, &home);
            scope.spawn(move || {
                let owner = owner(dir, home, &format!("s{n}"));
                let taken = ports.take(&names(1), range, &owner).unwrap();
                println_port(taken["P0"]);
            });
        }
    });
}

fn println_port(port: u16) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "took {port}").unwrap();
}

#[test]
fn ports_in_use_are_never_leased() {
    let dir = tempfile::tempdir().unwrap();
    let (low, high) = bounds(dir.path());
    let ports = ports(dir.path());
    for address in ["127.0.0.1", "::1", "0.0.0.0", "::"] {
        let listener = (low..=high).find_map(|port| TcpListener::bind((address, port)).ok());
        let Some(listener) = listener else { continue };
        let port = listener.local_addr().unwrap().port();
        assert!(!is_free(port), "{address}:{port} is bound");
        let one = owner(dir.path(), "h", "s");
        let err = ports.take(&names(1), &(port..=port), &one).unwrap_err().to_string();
        assert!(err.contains("is free for `P0`"), "{err}");
        drop(listener);
        assert!(is_free(port));
        let taken = ports.take(&names(1), &(port..=port), &one).unwrap();
        assert_eq!(taken["P0"], port);
        ports.release([port], &one);
    }
}

#[test]
fn two_data_directories_share_a_range_and_ports_of_dead_owners_are_freed() {
    let dir = tempfile::tempdir().unwrap();
    let (low, _) = bounds(dir.path());
    let low = (low..low + 90).find(|port| is_free(*port)).unwrap();
    let (one, two) = (owner(dir.path(), "h1", "s"), owner(dir.path(), "h2", "s"));
    // Like two daemons: each opens the registry separately.
    let (first, second) = (ports(dir.path()), ports(dir.path()));
    assert_eq!(first.take(&names(1), &(low..=low), &one).unwrap()["P0"], low);
    assert!(second.take(&names(1), &(low..=low), &two).is_err());
    // A release by another owner does nothing.
    second.release([low], &two);
    assert!(second.take(&names(1), &(low..=low), &two).is_err());
    // Without its journal, the port is free again.
    std::fs::remove_file(&one.alive).unwrap();
    assert_eq!(second.take(&names(1), &(low..=low), &two).unwrap()["P0"], low);
    assert_eq!(second.list(), [(low, two)]);
}

#[test]
fn a_port_lease_is_stable_and_renewed_after_a_reboot() {
    let dir = tempfile::tempdir().unwrap();
    let (low, high) = bounds(dir.path());
    let ports = ports(dir.path());
    let (one, two) = (owner(dir.path(), "h1", "s"), owner(dir.path(), "h2", "s"));
    let taken = ports.take(&names(3), &(low..=high), &one).unwrap();
    let numbers: Vec<u16> = taken.values().copied().collect();
    // The directory for temporary files is emptied.
    std::fs::remove_dir_all(dir.path().join("registry/ports")).unwrap();
    assert_eq!(ports.reassert(numbers.clone(), &one).unwrap(), Vec::<u16>::new());
    assert_eq!(ports.list().len(), 3);
    // And another caller gets the error for a port that is no longer available.
    assert_eq!(ports.reassert([numbers[0]], &two).unwrap(), [numbers[0]]);
    assert_eq!(ports.release_all(&one), 3);
    assert_eq!(ports.list(), []);
}

#[test]
fn a_partly_written_lease_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let (low, _) = bounds(dir.path());
    let low = (low..low + 90).find(|port| is_free(*port)).unwrap();
    let ports = ports(dir.path());
    let one = owner(dir.path(), "h1", "s");
    std::fs::create_dir_all(dir.path().join("registry/ports")).unwrap();
    std::fs::write(dir.path().join(format!("registry/ports/{low}")), "{\"home\":\"h").unwrap();
    assert_eq!(ports.take(&names(1), &(low..=low), &one).unwrap()["P0"], low);
}

#[test]
fn links_and_directories_writable_by_others_are_refused() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = tempfile::tempdir().unwrap();
    let (low, _) = bounds(dir.path());
    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(Registry::open(&open), Err(RegistryError::Unsafe { .. })));
    let linked = dir.path().join("linked");
    symlink(dir.path(), &linked).unwrap();
    assert!(matches!(Registry::open(&linked), Err(RegistryError::Unsafe { .. })));
    // A link in place of a lease's file is not followed, and the number passed over.
    let ports = ports(dir.path());
    let one = owner(dir.path(), "h", "s");
    let target = dir.path().join("target");
    std::fs::write(&target, "precious").unwrap();
    std::fs::create_dir_all(dir.path().join("registry/ports")).unwrap();
    symlink(&target, dir.path().join(format!("registry/ports/{low}"))).unwrap();
    assert!(ports.take(&names(1), &(low..=low), &one).is_err());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
}
