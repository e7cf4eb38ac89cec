//! The attestation of the `namespace` driver: what a whole sandbox is found to give, that each
//! missing layer is noticed, and what a record is worth.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use overmind_core::attest::{Attested, CheckName, Notary};
use overmind_core::sandbox::{Sandbox, SandboxError, SandboxLevel};
use overmind_sandbox::attest::{NOT_ATTESTED, Program};
use overmind_sandbox::{Layer, Mutation, Namespace, Options, RunAs};

use crate::support::{Place, device_with_state, host_has, init_program, open_to_all};

fn options() -> Options {
    Options { init_program: init_program(), ..Options::default() }
}

async fn attested(driver: &Namespace) -> Arc<Attested> {
    driver.attest().await.unwrap().expect("this driver is measured")
}

fn measured(attested: &Attested, name: CheckName) -> &str {
    let mut checks = attested.attestation.checks.iter();
    &checks.find(|check| check.name == name).unwrap().measured
}

#[tokio::test]
async fn a_complete_sandbox_passes_every_check_and_the_record_lists_the_findings() {
    let attested = attested(&Namespace::new(options())).await;
    let attestation = &attested.attestation;
    assert_eq!(attestation.failed().count(), 0);
    assert_eq!(attestation.checks.len(), CheckName::ALL.len());
    assert_eq!(attestation.asked, SandboxLevel::Namespace);
    assert_eq!(attestation.achieved, SandboxLevel::Namespace);
    assert_eq!(measured(&attested, CheckName::Network), "lo; no route");
    assert_eq!(measured(&attested, CheckName::HostProcesses), "2 to be seen");
    assert_eq!(measured(&attested, CheckName::Namespaces), "shared with the host: none");
    assert_eq!(measured(&attested, CheckName::User), "user 1000, group 1000, groups []");
    assert_eq!(measured(&attested, CheckName::Environment), "PATH");
    assert_eq!(measured(&attested, CheckName::Descriptors), "none");
    assert!(attested.signature.is_none(), "nobody was given to sign");
    for limit in ["memory_bytes", "cpus", "pids", "tmp_bytes", "timeout"] {
        let bound = attestation.bounds.iter().find(|bound| bound.limit == limit).unwrap();
        assert!(bound.enforced_by.is_some() || !bound.remark.is_empty(), "{bound:?}");
    }
}

#[tokio::test]
async fn an_ordinary_users_sandbox_passes_the_same_checks() {
    if !rustix::process::geteuid().is_root() {
        return; // The test above was it.
    }
    let dir = tempfile::tempdir().unwrap();
    open_to_all(dir.path());
    let program = dir.path().join("init");
    std::fs::copy(init_program(), &program).unwrap();
    let run_as = Some(RunAs { uid: 54321, gid: 54321 });
    let driver = Namespace::new(Options { init_program: program, run_as, ..options() });
    assert_eq!(attested(&driver).await.attestation.failed().count(), 0);
}

/// Runs with a broken sandbox, which must be refused for `expected` at least, and run nothing.
async fn refused(mutation: Mutation, options: Options, expected: &[CheckName]) {
    let label = format!("{mutation:?}");
    let driver = Namespace::broken(options, mutation);
    let place = Place::new();
    let mut request = place.sh("echo ran > hello");
    request.writable = Some(".".into());
    let answers = [
        driver.run(request).await.map(drop),
        driver.attest().await.map(drop),
        driver.check().await,
    ];
    for answer in answers {
        match answer {
            Err(SandboxError::Unavailable { code, reason, message, remedy }) => {
                assert_eq!(code, NOT_ATTESTED, "{label}: {message}");
                let names = reason.strip_prefix("attestation_failed: ").unwrap();
                let names: Vec<&str> = names.split(", ").collect();
                for name in expected {
                    assert!(names.contains(&name.as_str()), "{label}: {name} not in {message}");
                }
                assert!(message.contains(&format!("{} (expected: ", names[0])), "{message}");
                assert!(!remedy.is_empty());
            }
            other => panic!("{label}: {other:?}"),
        }
    }
    let untouched = std::fs::read_to_string(place.workspace().join("hello")).unwrap();
    assert_eq!(untouched, "hello\n", "{label}: nothing runs in less than was asked for");
}

/// One test for each layer: without it, the named checks must fail.
macro_rules! missing {
    ($($name:ident: $layer:ident => $($check:ident)+;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                let expected = [$(CheckName::$check),+];
                refused(Mutation::Without(Layer::$layer), options(), &expected).await;
            }
        )*
    };
}

missing! {
    a_shared_network_is_refused: NetworkNamespace => Namespaces HostServices;
    a_shared_ipc_namespace_is_refused: IpcNamespace => Namespaces;
    a_shared_host_name_is_refused: UtsNamespace => Namespaces;
    a_shared_cgroup_namespace_is_refused: CgroupNamespace => Namespaces;
    shared_processes_are_refused: ProcessNamespace => Namespaces HostProcesses Trace;
    the_hosts_proc_is_refused: FreshProc => HostProcesses;
    the_hosts_root_is_refused: OwnRoot => Homes OtherSessions WriteOutside HostProcesses;
    a_writable_root_is_refused: ReadOnlyRoot => WriteOutside;
    a_writable_proc_is_refused: ReadOnlyProc => WriteOutside;
    mounts_with_set_user_id_are_refused: NoSuidMounts => SetUserId;
    a_command_that_is_root_inside_is_refused: PlainUser => User;
    kept_capabilities_are_refused: Capabilities => Capabilities;
    a_sandbox_that_may_gain_privileges_is_refused: NoNewPrivileges => NoNewPrivileges SetUserId SystemCalls;
    missing_landlock_rules_are_refused: Landlock => Landlock;
    a_missing_filter_is_refused: Filter => SystemCalls KeyRings;
    missing_refusals_by_argument_are_refused: Refusals => SystemCalls;
    a_missing_allow_list_is_refused: AllowList => SystemCalls;
    a_descriptor_left_open_is_refused: CloseOnExec => Descriptors;
    a_leaked_environment_is_refused: CleanEnvironment => Environment;
    a_server_file_left_in_what_is_shown_is_refused: Masks => ServerFiles;
}

#[tokio::test]
async fn a_mounted_home_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let options = Options { private: vec![home.path().to_owned()], ..options() };
    refused(Mutation::Shows(home.path().to_owned()), options, &[CheckName::Homes]).await;
}

#[tokio::test]
async fn a_visible_server_file_is_refused() {
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("admin.token"), "secret").unwrap();
    let of_data = Options { private: vec![data.path().to_owned()], ..options() };
    let shown = Mutation::Shows(data.path().join("admin.token"));
    refused(shown.clone(), of_data, &[CheckName::ServerFiles]).await;
    let elsewhere = Options { private_files: vec![data.path().join("admin.token")], ..options() };
    refused(shown, elsewhere, &[CheckName::ServerFiles]).await;
}

#[tokio::test]
async fn a_visible_directory_of_other_sessions_is_refused() {
    let expected = [CheckName::OtherSessions];
    refused(Mutation::Shows(std::env::temp_dir()), options(), &expected).await;
}

#[tokio::test]
async fn a_visible_engine_socket_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("engine.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let options = Options { sockets: vec![path.clone()], ..options() };
    refused(Mutation::Shows(path), options, &[CheckName::EngineSockets]).await;
}

#[tokio::test]
async fn a_visible_device_with_state_is_refused() {
    let device = PathBuf::from("/dev/kmsg");
    if std::fs::File::open(&device).is_err() {
        return; // Closed to this user, so it is to the sandbox.
    }
    refused(Mutation::Shows(device), options(), &[CheckName::Devices]).await;
}

#[tokio::test]
async fn a_granted_device_is_accepted_and_another_one_is_refused() {
    let Some(device) = device_with_state() else { return };
    let given = || Options { devices: vec![device.clone()], ..options() };
    let record = attested(&Namespace::new(given())).await;
    assert_eq!(record.attestation.failed().count(), 0);
    let name = device.display().to_string();
    let check = record.attestation.checks.iter().find(|check| check.name == CheckName::Devices);
    assert_eq!(check.unwrap().expected, format!("none with state but {name}"));
    assert_eq!(measured(&record, CheckName::Devices), name);

    // Shown nevertheless, it is not the directory that was given.
    refused(Mutation::Shows(device.clone()), options(), &[CheckName::Devices]).await;
    let other = PathBuf::from("/dev/kmsg");
    if std::fs::File::open(&other).is_ok() {
        refused(Mutation::Shows(other), given(), &[CheckName::Devices]).await;
    }
}

#[tokio::test]
async fn the_record_is_signed_cached_and_renewed_for_another_program() {
    let sign = |digest: &[u8; 32]| blake3::keyed_hash(&[3; 32], digest).as_bytes().to_vec();
    let notary = Notary { signer: "three".to_owned(), sign: Arc::new(sign) };
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("init");
    std::fs::copy(init_program(), &program).unwrap();
    let options =
        Options { init_program: program.clone(), notary: Some(notary), ..Options::default() };
    let driver = Namespace::new(options);
    let first = attested(&driver).await;
    let verify = |signer: &str, digest: &[u8; 32], signature: &[u8]| {
        signer == "three" && sign(digest) == signature
    };
    assert!(first.holds(verify));
    assert!(Arc::ptr_eq(&first, &attested(&driver).await), "measured once");

    let newer = dir.path().join("newer");
    std::fs::copy(init_program(), &newer).unwrap();
    std::fs::rename(&newer, &program).unwrap();
    let second = attested(&driver).await;
    assert_ne!(first.attestation.config, second.attestation.config);
    assert_ne!(first.digest, second.digest);
    assert!(second.holds(verify));
}

/// Like a container engine: the files are shown in an empty root, without anything else.
#[tokio::test]
async fn the_probe_runs_without_libraries_of_the_host() {
    if !host_has("unshare") {
        return;
    }
    let program = Program::find(&init_program()).await.unwrap();
    let root = tempfile::tempdir().unwrap();
    for file in &program.files {
        let inside = root.path().join(file.inside.strip_prefix('/').unwrap());
        std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
        std::fs::copy(&file.host, &inside).unwrap();
    }
    let output = std::process::Command::new("/usr/bin/unshare")
        .args(["--user", "--map-root-user", "--root"])
        .arg(root.path())
        .args(&program.argv)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    // It reached its questions, of which there were none.
    assert!(words.contains("the sandbox probe: "), "{output:?}");
    assert_eq!(output.status.code(), Some(1));
}
