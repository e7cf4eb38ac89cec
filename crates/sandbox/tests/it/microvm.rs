//! The `microvm` driver: the suite and its own, emulated, and by KVM where it runs guests; what is
//! tried before KVM is used; refusals without a machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use overmind_core::attest::CheckName;
use overmind_core::sandbox::{
    Exit, HOME, HomeFile, Sandbox, SandboxError, SandboxLevel, SandboxRequest,
};
use overmind_sandbox::attest::NOT_ATTESTED;
use overmind_sandbox::microvm::image::{Sources, build, current};
use overmind_sandbox::microvm::{Acceleration, Execution, Mutation, Options};
use overmind_sandbox::{Layer, Microvm, Mutation as Missing, Namespace, Options as Outer, RunAs};
use overmind_testkit::real::counterpart;

use crate::support::{
    MICROVM, Place, Subject, init_program, marker, open_to_all, processes_with, until,
};

fn outer() -> Outer {
    Outer { init_program: init_program(), ..Outer::default() }
}

fn driver_with(dir: &str, acceleration: Acceleration) -> Microvm {
    let options = Options { dir: PathBuf::from(dir), acceleration, ..Options::default() };
    Microvm::new(options, outer())
}

/// Emulated, so that the tests are the same on every machine.
fn driver(dir: &str) -> Microvm {
    driver_with(dir, Acceleration::Emulation)
}

/// With KVM, where it runs guests. Otherwise the same was proven with emulation.
async fn kvm_driver(dir: &str) -> Option<Microvm> {
    let driver = driver_with(dir, Acceleration::Kvm);
    match driver.execution().await {
        Ok(Execution::Kvm) => Some(driver),
        Ok(other) => panic!("not asked for: {other}"),
        Err(SandboxError::Unavailable { reason, message, .. }) => {
            assert_eq!(reason, "kvm_unusable", "{message}");
            eprintln!("skipped: {message}");
            None
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// The directory with an image, built by the first test that needs it.
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

fn subject_of(driver: Microvm) -> Subject {
    Subject {
        sandbox: Arc::new(driver),
        gives: MICROVM,
        inside: Some("/workspace"),
        _keep: None,
        close: None,
    }
}

async fn subject() -> Option<Subject> {
    Some(subject_of(driver(&home()?)))
}

async fn subject_by_kvm() -> Option<Subject> {
    Some(subject_of(kvm_driver(&home()?).await?))
}

/// Each case separately, emulated; and one after the other where KVM runs guests.
macro_rules! cases {
    ($($case:ident)*) => {
        mod needs_qemu_conformance {
            crate::conformance::suite!(@ super::subject; $($case)*);
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn needs_qemu_conformance_by_kvm() {
            let Some(subject) = subject_by_kvm().await else { return };
            $(
                eprintln!("{}", stringify!($case));
                crate::conformance::$case(&subject).await;
            )*
        }
    };
}

// Each run is a machine of its own: the cases that one or a few runs answer, and not those that
// count on hundreds.
cases!(
    a_signal_is_reported
    the_streams_are_kept_apart
    standard_input_arrives_whole_and_ends
    the_environment_is_the_requests
    a_workspace_is_read_only_unless_asked
    a_writable_directory_is_written_and_nothing_else_is
    a_writable_directory_outside_is_refused
    a_missing_program_is_refused_by_name
    a_hundred_megabytes_of_output_are_counted_and_not_kept
    binary_output_becomes_text
    both_streams_are_bounded_each
    output_is_handed_over_while_the_command_runs
    the_hosts_network_is_out_of_reach
    the_hosts_files_are_out_of_sight
    the_command_has_no_privileges
    a_fork_bomb_ends_with_the_timeout
    memory_is_bounded
);

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
async fn needs_qemu_files_of_the_home_are_there() {
    let Some(dir) = home() else { return };
    let (driver, place) = (driver(&dir), Place::new());
    let mut request = place.sh("cat ~/.a/b; stat -c %a ~/.a/b");
    request.env.push(("HOME".to_owned(), HOME.to_owned()));
    request.home = vec![HomeFile { path: ".a/b".into(), content: b"decoy\n".to_vec() }];
    let result = driver.run(request).await.unwrap();
    assert_eq!(result.stdout.text, "decoy\n600\n", "{result:?}");
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
async fn needs_qemu_a_booted_guest_behaves_like_one_from_a_snapshot() {
    let Some(dir) = home() else { return };
    let options = Options {
        dir: PathBuf::from(dir),
        acceleration: Acceleration::Emulation,
        pictures: false,
        ..Options::default()
    };
    let place = Place::new();
    let mut request = place.sh("cat; echo err >&2; echo made > out/made; exit 7");
    request.stdin = b"in".to_vec();
    request.writable = Some("out".into());
    let result = Microvm::new(options, outer()).run(request).await.unwrap();
    assert_eq!(result.exit, Exit::Code(7), "{result:?}");
    assert_eq!((result.stdout.text.as_str(), result.stderr.text.as_str()), ("in", "err\n"));
    assert_eq!(std::fs::read(place.workspace().join("out/made")).unwrap(), b"made\n");
}

#[tokio::test]
async fn needs_qemu_the_guest_boots_if_no_snapshot_works() {
    let Some(dir) = home() else { return };
    let own = tempfile::tempdir().unwrap();
    build(own.path(), &sources(&dir)).unwrap();
    let place = Place::new();
    let own = own.path().to_str().unwrap();
    driver(own).run(place.sh("true")).await.unwrap();
    let pictures: Vec<_> = std::fs::read_dir(Path::new(own).join("pictures"))
        .unwrap()
        .map(|entry| entry.unwrap().path().join("picture"))
        .collect();
    assert!(!pictures.is_empty());
    for picture in &pictures {
        std::fs::write(picture, "what a full disk left").unwrap();
    }
    let driver = driver(own);
    for _ in 0..2 {
        let result = driver.run(place.sh("echo ran")).await.unwrap();
        assert_eq!((result.exit, result.stdout.text.as_str()), (Exit::Code(0), "ran\n"));
    }
}

#[tokio::test]
async fn needs_qemu_a_second_build_changes_nothing() {
    let Some(dir) = home() else { return };
    let own = tempfile::tempdir().unwrap();
    let one = build(own.path(), &sources(&dir)).unwrap();
    let made = std::fs::metadata(one.dir.join("vmlinux")).unwrap().modified().unwrap();
    let two = build(own.path(), &sources(&dir)).unwrap();
    assert_eq!(one, two);
    assert_eq!(std::fs::metadata(two.dir.join("vmlinux")).unwrap().modified().unwrap(), made);
    let mut names: Vec<_> =
        std::fs::read_dir(own.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), 3, "the image, the name of it, and a lock: {names:?}");
}

/// A driver whose emulators can be distinguished from all others by their name.
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
    (Microvm::new(options, outer()), mark, program)
}

#[tokio::test]
async fn needs_qemu_no_machine_is_left_after_a_timeout_or_a_dropped_call() {
    let Some(dir) = home() else { return };
    let (driver, mark, program) = marked(&dir);
    let place = Place::new();
    let mut slow = place.sh("echo begun; trap '' TERM; sleep 300; :");
    slow.timeout = Duration::from_secs(3);
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
async fn missing_kvm_is_reported_and_emulation_is_announced() {
    let dir = tempfile::tempdir().unwrap();
    let without = |options| Microvm::new(options, outer());
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

    // The part of an image that is checked before a machine is started.
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
async fn needs_qemu_a_machine_passes_every_check_and_has_its_own_kernel() {
    let Some(dir) = home() else { return };
    keeps_every_promise(driver(&dir), "the configuration asks for it").await;
}

#[tokio::test]
async fn needs_qemu_a_kvm_machine_passes_every_check() {
    let Some(dir) = home() else { return };
    let Some(driver) = kvm_driver(&dir).await else { return };
    keeps_every_promise(driver, "run by the processor (KVM)").await;
}

async fn keeps_every_promise(driver: Microvm, execution: &str) {
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
    let cpus = attestation.bounds.iter().find(|bound| bound.limit == "cpus").unwrap();
    assert!(cpus.remark.contains(execution), "{cpus:?}");
    let second = driver.attest().await.unwrap().unwrap();
    assert!(Arc::ptr_eq(&first, &second), "measured once");
}

#[tokio::test]
async fn needs_qemu_a_machine_without_a_layer_is_refused_and_runs_nothing() {
    let Some(dir) = home() else { return };
    each_lacking_a_layer_is_refused(&dir, Acceleration::Emulation).await;
}

#[tokio::test]
async fn needs_qemu_a_kvm_machine_without_a_layer_is_refused() {
    let Some(dir) = home() else { return };
    if kvm_driver(&dir).await.is_some() {
        each_lacking_a_layer_is_refused(&dir, Acceleration::Kvm).await;
    }
}

/// Each layer of a machine left out, or a forbidden device added.
async fn each_lacking_a_layer_is_refused(dir: &str, acceleration: Acceleration) {
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
        // KVM's device is one that may be there; this one is not.
        (Mutation::Around(Missing::Shows("/dev/kmsg".into())), vec![CheckName::Devices]),
    ];
    for (mutation, expected) in broken {
        let label = format!("{mutation:?}");
        let options = Options {
            dir: PathBuf::from(dir),
            acceleration,
            // With other devices, a snapshot does not fit.
            pictures: !matches!(mutation, Mutation::MoreDevices),
            ..Options::default()
        };
        let driver = Microvm::broken(options, outer(), mutation);
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

/// A driver that would use KVM if this were its device.
fn with_device(dir: &str, acceleration: Acceleration, kvm: &Path, outer: Outer) -> Microvm {
    let dir = PathBuf::from(dir);
    Microvm::new(Options { dir, acceleration, kvm: kvm.to_owned(), ..Options::default() }, outer)
}

async fn why_emulated(driver: &Microvm) -> String {
    match driver.execution().await {
        Ok(Execution::Emulated { why }) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn needs_qemu_without_kvm_access_it_is_refused_or_emulated_with_the_reason() {
    let Some(dir) = home() else { return };
    // It can be opened, and is in the sandbox; only the emulator knows that it is not KVM's.
    let null = Path::new("/dev/null");
    let place = Place::new();
    let strict = with_device(&dir, Acceleration::Kvm, null, outer());
    match strict.run(place.sh("echo ran > out/ran")).await {
        Err(SandboxError::Unavailable { code, reason, message, remedy }) => {
            assert_eq!((code.as_str(), reason.as_str()), ("microvm_unavailable", "kvm_unusable"));
            assert!(message.contains("Could not access KVM"), "{message}");
            assert!(remedy.contains("sandbox.microvm_emulation"), "{remedy}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!place.workspace().join("out/ran").exists());

    let lenient = with_device(&dir, Acceleration::KvmOrEmulation, null, outer());
    assert!(why_emulated(&lenient).await.contains("Could not access KVM"));
    let result = lenient.run(place.sh("echo ran")).await.unwrap();
    assert_eq!((result.exit, result.stdout.text.as_str()), (Exit::Code(0), "ran\n"));
    assert!(result.shown_as.unwrap().contains("-accel tcg"));
    let attested = lenient.attest().await.unwrap().unwrap();
    let told = attested.attestation.bounds.iter().any(|bound| {
        bound.remark.contains("EMULATED") && bound.remark.contains("Could not access KVM")
    });
    assert!(told, "{:?}", attested.attestation.bounds);
}

#[tokio::test]
async fn needs_qemu_kvm_is_tested_as_the_command_user_and_in_the_sandbox() {
    let Some(dir) = home() else { return };
    let lenient = |kvm: &Path, outer| with_device(&dir, Acceleration::KvmOrEmulation, kvm, outer);
    let place = Place::new();
    for (path, expected) in [("missing", "No such file"), ("hello", "is no device")] {
        let why = why_emulated(&lenient(&place.workspace().join(path), outer())).await;
        assert!(why.contains(expected), "{why}");
    }

    let kvm = Path::new("/dev/kvm");
    if std::fs::File::options().read(true).write(true).open(kvm).is_err() {
        eprintln!("skipped: this user may not open /dev/kvm");
        return;
    }
    // It reaches the emulator. What that makes of it is this machine's affair, but opening it and
    // making a machine with it worked, or the emulator says why not.
    let driver = lenient(kvm, outer());
    let first = driver.execution().await.unwrap();
    match &first {
        Execution::Kvm => {}
        Execution::Emulated { why } => assert!(!why.contains("Could not access KVM"), "{why}"),
    }
    assert_eq!(driver.execution().await.unwrap(), first, "tried once");

    // The same device, closed to other users by its mode.
    let closed = std::os::unix::fs::PermissionsExt::mode(&kvm.metadata().unwrap().permissions());
    if rustix::process::geteuid().is_root() && closed & 0o006 == 0 {
        let open = tempfile::tempdir().unwrap();
        open_to_all(open.path());
        let program = open.path().join("init");
        std::fs::copy(init_program(), &program).unwrap();
        let run_as = Some(RunAs { uid: 54321, gid: 54321 });
        let other = Outer { init_program: program, run_as, ..Outer::default() };
        let why = why_emulated(&lenient(kvm, other)).await;
        assert!(why.contains("Permission denied"), "{why}");
    }
}

/// The machine of the trial, around a firmware of sixteen bytes.
fn small_machine(firmware: &str) -> String {
    format!(
        "{{ head -c 65520 /dev/zero; printf '{firmware}'; }} > /tmp/firmware-$$; \
         machine='qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none \
         -M pc,usb=off,vmport=off -accel kvm -cpu host,-vmx,-svm,-arch-capabilities -m 64 \
         -device isa-debug-exit,iobase=0xf4,iosize=1 -bios /tmp/firmware-'$$; \
         filter='-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny'; "
    )
}

/// Counts to a thousand, and ends the emulator with the code 33.
const COUNT: &str = r"\146\271\350\003\000\000\146\111\165\374\260\020\346\364\353\376";
/// Waits for a byte on its serial line, and ends the emulator with the code 33.
const WAIT: &str = r"\272\375\003\354\250\001\164\373\260\020\346\364\353\376\000\000";

/// The counting machine without a sandbox; `None` where there is no KVM for this user at all.
fn counted_outside() -> Option<(i32, String)> {
    let kvm = Path::new("/dev/kvm");
    let opened = std::fs::File::options().read(true).write(true).open(kvm);
    if home().is_none() || opened.is_err() {
        eprintln!("skipped: this user may not open /dev/kvm");
        return None;
    }
    let script = format!("{}$machine -monitor none", small_machine(COUNT));
    let script = format!("{script}; code=$?; rm /tmp/firmware-$$; exit $code");
    let outside = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    let words = String::from_utf8_lossy(&outside.stderr).into_owned();
    Some((outside.status.code().unwrap(), words))
}

fn in_the_emulators_sandbox(place: &Place, script: &str) -> (Namespace, SandboxRequest) {
    let mut request = place.sh(script);
    request.limits.memory_bytes = 1 << 30;
    request.writable = Some("out".into());
    let with_kvm = Outer { devices: vec!["/dev/kvm".into()], ..outer() };
    (Namespace::new(with_kvm), request)
}

#[tokio::test]
async fn needs_qemu_kvm_works_in_the_emulators_sandbox_as_outside() {
    let Some((code, words)) = counted_outside() else { return };
    let place = Place::new();
    let script = format!("{}$machine $filter -monitor none", small_machine(COUNT));
    let (driver, request) = in_the_emulators_sandbox(&place, &script);
    let inside = driver.run(request.clone()).await.unwrap();
    assert_eq!(inside.exit, Exit::Code(code), "{words} {inside:?}");
    let without = Namespace::new(outer()).run(request).await.unwrap();
    assert_ne!(without.exit, Exit::Code(33));
    assert!(without.stderr.text.contains("Could not access KVM"), "{without:?}");
}

#[tokio::test]
async fn needs_qemu_a_kvm_machine_starts_from_its_snapshot_in_the_emulators_sandbox() {
    let Some((code, words)) = counted_outside() else { return };
    if code != 33 {
        eprintln!("skipped: KVM runs nothing here: {words}");
        return;
    }
    let place = Place::new();
    // The machine that ends is the one that starts from the snapshot: the first got no input.
    let script = format!(
        "{}{{ echo 'migrate \"exec:cat > out/picture\"'; echo 'info migrate'; echo quit; }} \
         | $machine -serial null -monitor stdio | grep -o 'Migration status: completed'; \
         while printf x 2>/dev/null; do sleep 0.1; done \
         | $machine $filter -monitor none -serial stdio -incoming fd:7 7<out/picture",
        small_machine(WAIT)
    );
    let (driver, request) = in_the_emulators_sandbox(&place, &script);
    let result = driver.run(request).await.unwrap();
    assert_eq!(
        result.stdout.text.lines().next(),
        Some("Migration status: completed"),
        "{result:?}"
    );
    assert_eq!(result.exit, Exit::Code(33), "{result:?}");
}
