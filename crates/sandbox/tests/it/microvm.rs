//! The `microvm` driver: the suite and its own, emulated; its refusals without a machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use overmind_core::attest::CheckName;
use overmind_core::sandbox::{Exit, Sandbox, SandboxError, SandboxLevel};
use overmind_sandbox::attest::NOT_ATTESTED;
use overmind_sandbox::microvm::image::{Sources, build, current};
use overmind_sandbox::microvm::{Acceleration, Mutation, Options};
use overmind_sandbox::{Layer, Microvm, Mutation as Missing, Options as Outer};
use overmind_testkit::real::counterpart;

use crate::support::{MICROVM, Place, Subject, init_program, marker, processes_with, until};

/// Emulated: what is tested must be the same on every machine.
fn driver(dir: &str) -> Microvm {
    let options = Options {
        dir: PathBuf::from(dir),
        acceleration: Acceleration::Emulation,
        ..Options::default()
    };
    Microvm::new(options, Outer { init_program: init_program(), ..Outer::default() })
}

/// The directory with an image, made by the first test that asks.
fn home() -> Option<String> {
    let dir = counterpart("MICROVM")?;
    if current(Path::new(&dir)).is_none() {
        build(Path::new(&dir), &sources(&dir)).unwrap();
    }
    Some(dir)
}

/// The kernel package that was fetched for the tests.
fn sources(dir: &str) -> Sources {
    let packages = std::fs::read_dir(Path::new(dir).join("packages")).unwrap();
    let kernel_package = packages.map(|entry| entry.unwrap().path()).next();
    assert!(kernel_package.is_some(), "no kernel package in {dir}/packages");
    Sources { kernel_package, ..Sources::default() }
}

async fn subject() -> Option<Subject> {
    let dir = home()?;
    Some(Subject {
        sandbox: Arc::new(driver(&dir)),
        gives: MICROVM,
        inside: Some("/workspace"),
        _keep: None,
        close: None,
    })
}

mod needs_qemu_conformance {
    // Each run is a machine of its own, emulated: the cases that one or a few runs answer, and
    // not those that count on hundreds.
    crate::conformance::suite!(@ super::subject;
        a_signal_is_reported
        the_streams_are_kept_apart
        standard_input_arrives_whole_and_ends
        the_environment_is_the_requests
        a_workspace_is_read_only_unless_asked
        a_writable_directory_is_written_and_nothing_else_is
        a_writable_directory_outside_is_refused
        a_missing_program_is_refused_by_name
        a_hundred_megabytes_of_output_are_counted_and_not_kept
        the_hosts_network_is_out_of_reach
        the_hosts_files_are_out_of_sight
        the_command_has_no_privileges
        a_fork_bomb_ends_with_the_timeout
        memory_is_bounded
    );
}

#[tokio::test]
async fn needs_qemu_the_guest_is_another_kernel_with_the_hosts_tools_and_time() {
    let Some(dir) = home() else { return };
    let (driver, place) = (driver(&dir), Place::new());
    let script =
        "uname -r; date +%s; ls -d /usr/bin; ls /sys/class/net /dev/vd* 2>/dev/null; id -u";
    let result = driver.run(place.sh(script)).await.unwrap();
    let lines: Vec<&str> = result.stdout.text.lines().collect();
    let kernel = current(Path::new(&dir)).unwrap().manifest.kernel;
    assert_ne!(kernel, rustix::system::uname().release().to_str().unwrap());
    assert_eq!((lines[0], lines[2], lines[3]), (kernel.as_str(), "/usr/bin", "1000"), "{result:?}");
    let host = std::fs::metadata(place.workspace()).unwrap().modified().unwrap();
    let host = host.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let guest: u64 = lines[1].parse().unwrap();
    assert!(guest >= host && guest < host + 600, "host {host}, guest {guest}");
    let shown = result.shown_as.unwrap();
    assert!(shown.contains("-accel tcg") && shown.contains("no network"), "{shown}");
}

#[tokio::test]
async fn needs_qemu_two_guests_of_one_picture_draw_different_random_numbers() {
    let Some(dir) = home() else { return };
    let (driver, place) = (driver(&dir), Place::new());
    let script = "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/boot_id";
    let (one, two) = tokio::join!(driver.run(place.sh(script)), driver.run(place.sh(script)));
    let (one, two) = (one.unwrap().stdout.text, two.unwrap().stdout.text);
    assert_ne!(one.lines().next(), two.lines().next());
    assert_eq!(one.lines().count(), 2);
}

#[tokio::test]
async fn needs_qemu_a_guest_that_boots_does_what_one_from_a_picture_does() {
    let Some(dir) = home() else { return };
    let options = Options {
        dir: PathBuf::from(dir),
        acceleration: Acceleration::Emulation,
        pictures: false,
        ..Options::default()
    };
    let outer = Outer { init_program: init_program(), ..Outer::default() };
    let place = Place::new();
    let mut request = place.sh("cat; echo err >&2; echo made > out/made; exit 7");
    request.stdin = b"in".to_vec();
    request.writable = Some("out".into());
    let result = Microvm::new(options, outer).run(request).await.unwrap();
    assert_eq!(result.exit, Exit::Code(7), "{result:?}");
    assert_eq!((result.stdout.text.as_str(), result.stderr.text.as_str()), ("in", "err\n"));
    assert_eq!(std::fs::read(place.workspace().join("out/made")).unwrap(), b"made\n");
}

#[tokio::test]
async fn needs_qemu_a_second_build_changes_nothing() {
    let Some(dir) = home() else { return };
    let own = tempfile::tempdir().unwrap();
    let one = build(own.path(), &sources(&dir)).unwrap();
    let made = std::fs::metadata(one.dir.join("manifest.json")).unwrap().modified().unwrap();
    let two = build(own.path(), &sources(&dir)).unwrap();
    assert_eq!(one, two);
    assert_eq!(std::fs::metadata(two.dir.join("manifest.json")).unwrap().modified().unwrap(), made);
    let mut names: Vec<_> =
        std::fs::read_dir(own.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), 2, "the image and the name of it: {names:?}");
}

/// A driver whose emulators can be told from all others by their name.
fn marked(dir: &str) -> (Microvm, String, PathBuf) {
    let mark = marker();
    let program = Path::new(dir).join(&mark);
    std::os::unix::fs::symlink("/usr/bin/qemu-system-x86_64", &program).unwrap();
    let options = Options {
        dir: PathBuf::from(dir),
        program: program.clone(),
        acceleration: Acceleration::Emulation,
        pictures: false,
        ..Options::default()
    };
    let outer = Outer { init_program: init_program(), ..Outer::default() };
    (Microvm::new(options, outer), mark, program)
}

#[tokio::test]
async fn needs_qemu_no_machine_is_left_after_a_timeout_or_a_dropped_call() {
    let Some(dir) = home() else { return };
    let (driver, mark, program) = marked(&dir);
    let place = Place::new();
    let mut slow = place.sh("echo begun; trap '' TERM; sleep 300; :");
    slow.timeout = Duration::from_millis(500);
    let result = driver.run(slow).await.unwrap();
    assert_eq!((result.exit, result.stdout.text.as_str()), (Exit::TimedOut, "begun\n"));
    assert_eq!(processes_with(&mark), [0u32; 0]);

    tokio::select! {
        result = driver.run(place.sh("sleep 300; :")) => panic!("ended by itself: {result:?}"),
        () = until("it runs", || !processes_with(&mark).is_empty()) => {}
    }
    until("it is gone", || processes_with(&mark).is_empty()).await;
    std::fs::remove_file(program).unwrap();
}

#[track_caller]
fn assert_unavailable(result: Result<(), SandboxError>, expected: &str, help: &str) {
    match result {
        Err(SandboxError::Unavailable { code, reason, remedy, .. }) => {
            assert_eq!((code.as_str(), reason.as_str()), ("microvm_unavailable", expected));
            assert!(remedy.contains(help), "{remedy}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_a_machine_lacks_is_named_and_emulation_is_never_silent() {
    let dir = tempfile::tempdir().unwrap();
    let outer = Outer { init_program: init_program(), ..Outer::default() };
    let without = |options| Microvm::new(options, outer.clone());
    let base = Options {
        dir: dir.path().to_owned(),
        kvm: dir.path().join("kvm"),
        program: dir.path().join("qemu"),
        ..Options::default()
    };
    let place = Place::new();

    let kvm = without(base.clone());
    assert_unavailable(kvm.check().await, "kvm_unusable", "sandbox.microvm_emulation");
    let ran = kvm.run(place.sh("true")).await.map(drop);
    assert_unavailable(ran, "kvm_unusable", "much slower");

    let emulated = Options { acceleration: Acceleration::KvmOrEmulation, ..base };
    let no_image = without(emulated.clone());
    assert_unavailable(no_image.check().await, "image_missing", "overmind sandbox image build");

    // As much of an image as is looked at before a machine is started.
    std::fs::create_dir(dir.path().join("image")).unwrap();
    let manifest = r#"{"hash":"x","kernel":"6.1","package":"p.deb","bytes":1}"#;
    for (name, content) in [
        ("current", "image"),
        ("image/manifest.json", manifest),
        ("image/vmlinux", ""),
        ("image/initrd.cpio", ""),
    ] {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    let no_emulator = without(emulated);
    assert_unavailable(no_emulator.check().await, "qemu_missing", "qemu-system-x86");
}

#[tokio::test]
async fn needs_qemu_a_machine_keeps_every_promise_and_its_kernel_is_its_own() {
    let Some(dir) = home() else { return };
    let driver = driver(&dir);
    let first = driver.attest().await.unwrap().expect("this driver is measured");
    let attestation = &first.attestation;
    assert_eq!(attestation.failed().count(), 0);
    assert_eq!(attestation.achieved, SandboxLevel::Microvm);
    let measured = |name| {
        let mut checks = attestation.checks.iter();
        checks.find(|check| check.name == name).unwrap().measured.as_str()
    };
    assert_eq!(measured(CheckName::Kernel), "its own");
    assert_eq!(measured(CheckName::Network), "lo; the machine: lo; no route");
    assert_eq!(measured(CheckName::Devices), "beyond the machine's own: none");
    let second = driver.attest().await.unwrap().unwrap();
    assert!(Arc::ptr_eq(&first, &second), "measured once");
}

/// Each layer of a machine left out, or something given to it that it must not have.
#[tokio::test]
async fn needs_qemu_a_machine_that_lacks_a_layer_is_refused_and_runs_nothing() {
    let Some(dir) = home() else { return };
    let broken = [
        (Mutation::MoreDevices, vec![CheckName::Devices]),
        (Mutation::WritableRoot, vec![CheckName::WriteOutside]),
        (Mutation::Inside(Missing::Without(Layer::Capabilities)), vec![CheckName::Capabilities]),
        (Mutation::Inside(Missing::Without(Layer::Refusals)), vec![CheckName::SystemCalls]),
        (
            Mutation::Around(Missing::Without(Layer::NetworkNamespace)),
            vec![CheckName::Namespaces, CheckName::HostServices],
        ),
        (Mutation::Around(Missing::Without(Layer::Filter)), vec![CheckName::SystemCalls]),
    ];
    for (mutation, expected) in broken {
        let label = format!("{mutation:?}");
        let options = Options {
            dir: PathBuf::from(&dir),
            acceleration: Acceleration::Emulation,
            // Where the devices are others a picture does not fit.
            pictures: !matches!(mutation, Mutation::MoreDevices),
            ..Options::default()
        };
        let outer = Outer { init_program: init_program(), ..Outer::default() };
        let driver = Microvm::broken(options, outer, mutation);
        let place = Place::new();
        let mut request = place.sh("echo ran > hello");
        request.writable = Some(".".into());
        match driver.run(request).await {
            Err(SandboxError::Unavailable { code, reason, message, remedy }) => {
                assert_eq!(code, NOT_ATTESTED, "{label}: {message}");
                let names = reason.strip_prefix("attestation_failed: ").unwrap();
                let names: Vec<&str> = names.split(", ").collect();
                for name in &expected {
                    assert!(names.contains(&name.as_str()), "{label}: no {name} in {message}");
                }
                assert!(!remedy.is_empty());
                if label == "MoreDevices" {
                    for device in ["8086:100e", "1af4:1001", "1af4:1009"] {
                        assert!(message.contains(device), "{device} not in {message}");
                    }
                }
            }
            other => panic!("{label}: {other:?}"),
        }
        let untouched = std::fs::read_to_string(place.workspace().join("hello")).unwrap();
        assert_eq!(untouched, "hello\n", "{label}: nothing runs in less than was asked for");
    }
}
