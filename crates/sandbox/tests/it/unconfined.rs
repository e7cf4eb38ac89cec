//! The `none` driver.

use std::sync::Arc;

use overmind_core::attest::CheckName;
use overmind_core::sandbox::{HomeFile, Sandbox, SandboxLevel};
use overmind_sandbox::{Options, Unconfined};

use crate::conformance::suite;
use crate::support::{NONE, Subject, init_program};

async fn subject() -> Option<Subject> {
    let options = Options { init_program: init_program(), ..Options::default() };
    let sandbox = Arc::new(Unconfined::new(options));
    Some(Subject { sandbox, gives: NONE, inside: None, _keep: None, close: None })
}

suite!(subject);

#[tokio::test]
async fn the_record_of_none_states_that_nothing_is_isolated() {
    let home = tempfile::tempdir().unwrap();
    let private = vec![home.path().to_owned()];
    let driver =
        Unconfined::new(Options { init_program: init_program(), private, ..Options::default() });
    let attested = driver.attest().await.unwrap().expect("this level is measured too");
    let attestation = &attested.attestation;
    assert_eq!((attestation.asked, attestation.achieved), (SandboxLevel::None, SandboxLevel::None));
    let check = |name| attestation.checks.iter().find(|check| check.name == name).unwrap();
    assert!(check(CheckName::Homes).measured.contains(home.path().to_str().unwrap()));
    assert!(check(CheckName::HostProcesses).measured.contains("the daemon among them"));
    assert!(check(CheckName::HostServices).measured.contains("tcp 127.0.0.1"));
    assert_eq!(check(CheckName::Kernel).measured, "the host's");
    for check in &attestation.checks {
        assert_eq!(check.expected, "nothing is promised");
    }
    assert!(std::fs::read_dir(home.path()).unwrap().next().is_none(), "nothing is made there");
}

#[tokio::test]
async fn home_files_are_refused_if_the_home_is_the_hosts() {
    let driver = Unconfined::new(Options { init_program: init_program(), ..Options::default() });
    let mut request = crate::support::Place::new().sh("true");
    request.home = vec![HomeFile { path: ".a".into(), content: Vec::new() }];
    let err = driver.run(request).await.unwrap_err();
    assert!(err.to_string().contains("no home of its own"), "{err}");
}
