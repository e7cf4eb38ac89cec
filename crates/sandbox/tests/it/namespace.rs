//! The `namespace` driver: the suite as the caller and as an ordinary user, and special cases.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overmind_core::sandbox::{Exit, HOME, HomeFile, Sandbox, SandboxError};
use overmind_sandbox::{Namespace, Options, RunAs};
use tempfile::TempDir;

use crate::conformance::suite;
use crate::support::{
    NAMESPACE, Place, Subject, device_with_state, host_has, init_program, marker, open_to_all,
    processes_with, until,
};

fn options() -> Options {
    Options { init_program: init_program(), ..Options::default() }
}

fn with(options: Options) -> Subject {
    let sandbox = Arc::new(Namespace::new(options));
    Subject { sandbox, gives: NAMESPACE, inside: Some("/workspace"), _keep: None, close: None }
}

async fn subject() -> Option<Subject> {
    Some(with(options()))
}

suite!(subject);

#[tokio::test]
async fn server_files_in_the_workspace_are_empty_inside_the_sandbox() {
    let place = Place::new();
    let at = |name: &str| place.workspace().join(name);
    for (name, text) in [("deep/er/admin.token", "own"), ("out/policy.toml", "own")] {
        std::fs::write(at(name), text).unwrap();
    }
    std::fs::create_dir_all(at("deep/er/rooms/one")).unwrap();
    std::os::unix::fs::symlink("deep/er", at("link")).unwrap();
    let driver = Namespace::new(Options {
        private: vec![at("deep/er")],
        private_files: vec![at("out/policy.toml"), at("missing")],
        rooms: vec![at("deep/er/rooms")],
        ..options()
    });
    let mut request = place.sh(
        "ls deep/er; for f in deep/er/admin.token link/admin.token deep//er/./admin.token \
         /proc/self/cwd/deep/er/admin.token out/policy.toml; do cat $f; echo changed > $f; done; \
         echo new > deep/er/new; mv deep/er moved; ln out/policy.toml again; grep -r own .; \
         cat hello; mv deep elsewhere && ls elsewhere/er",
    );
    request.writable = Some(".".into());
    let result = driver.run(request).await.unwrap();
    assert_eq!(result.stdout.text, "hello\n", "{}", result.stderr.text);
    assert_eq!(std::fs::read_to_string(at("elsewhere/er/admin.token")).unwrap(), "own");
    assert_eq!(std::fs::read_to_string(at("out/policy.toml")).unwrap(), "own");
    std::fs::rename(at("elsewhere"), at("deep")).unwrap();

    // Only one environment of the data directory is shown, and nothing else of it.
    let within = |name: &str| {
        let mut request = place.sh("pwd");
        request.workspace = at(name);
        driver.run(request)
    };
    assert_eq!(within("deep/er/rooms/one").await.unwrap().stdout.text, "/workspace\n");
    let all = within("deep/er").await.unwrap();
    assert_eq!((all.exit, all.stdout.text.as_str()), (Exit::Code(0), "/workspace\n"));
    let err = within("deep/er/rooms").await.unwrap_err().to_string();
    assert!(err.contains("is the server's own") && err.contains("work in another"), "{err}");
}

/// Each case in an init that has waited.
mod in_an_init_that_waited {
    use overmind_core::Fut;

    use super::*;
    use crate::support::Warmed;

    async fn subject() -> Option<Subject> {
        let driver = Arc::new(Namespace::new(Options { waiting: 2, ..options() }));
        let closing = Arc::clone(&driver);
        let close = Box::new(move || -> Fut<'static, ()> {
            closing.settled();
            Box::pin(std::future::ready(()))
        });
        let sandbox = Arc::new(Warmed { driver, warmth: Namespace::warmth });
        let inside = Some("/workspace");
        Some(Subject { sandbox, gives: NAMESPACE, inside, _keep: None, close: Some(close) })
    }

    suite!(subject);
}

/// A test that runs as root covers the plain user too; one that does not is one.
mod as_a_plain_user {
    use super::*;

    async fn subject() -> Option<Subject> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        // The build's directory is often closed to others.
        let dir = tempfile::tempdir().unwrap();
        open_to_all(dir.path());
        let program = dir.path().join("init");
        std::fs::hard_link(init_program(), &program)
            .or_else(|_| std::fs::copy(init_program(), &program).map(drop))
            .unwrap();
        let run_as = Some(RunAs { uid: 54321, gid: 54321 });
        let options = Options { init_program: program, run_as, ..options() };
        Some(Subject { _keep: Some(dir), ..with(options) })
    }

    suite!(subject);

    #[tokio::test]
    async fn files_written_by_the_command_belong_to_its_user() {
        use std::os::unix::fs::MetadataExt;
        let Some(subject) = subject().await else { return };
        let place = Place::new();
        let mut request = place.sh("echo x > out/x; id -u; id -un");
        request.writable = Some("out".into());
        let result = subject.run(request).await;
        assert_eq!(result.stdout.text, "1000\nsandbox\n", "what it sees itself as");
        let written = std::fs::metadata(place.workspace().join("out/x")).unwrap();
        assert_eq!((written.uid(), written.gid()), (54321, 54321));
    }
}

#[tokio::test]
async fn a_healthy_machine_passes_the_check() {
    assert_eq!(Namespace::new(options()).check().await, Ok(()));
}

/// Tries the system calls that the filter must refuse, and prints each call's error number.
const CALLS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#define TRY(name, call) do { errno = 0; long r = (call); \
    printf("%s %d\n", name, r < 0 ? errno : 0); } while (0)
int main(void) {
    char page[256] = {0};
    TRY("mount", syscall(SYS_mount, "none", "/tmp", "tmpfs", 0, 0));
    TRY("umount2", syscall(SYS_umount2, "/tmp", 0));
    TRY("pivot_root", syscall(SYS_pivot_root, ".", "."));
    TRY("chroot", syscall(SYS_chroot, "/tmp"));
    TRY("fsopen", syscall(430, "tmpfs", 0));
    TRY("open_tree", syscall(428, -100, "/", 1));
    TRY("mount_setattr", syscall(442, -1, "", 0, page, 32));
    TRY("unshare", syscall(SYS_unshare, CLONE_NEWUSER));
    TRY("clone-newuser", syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
    TRY("clone-newnet", syscall(SYS_clone, CLONE_NEWNET | SIGCHLD, 0, 0, 0, 0));
    TRY("setns", syscall(SYS_setns, 0, 0));
    TRY("ptrace", syscall(SYS_ptrace, 0, 0, 0, 0));
    TRY("process_vm_readv", syscall(SYS_process_vm_readv, 1, page, 1, page, 1, 0));
    TRY("bpf", syscall(SYS_bpf, 0, page, 64));
    TRY("perf_event_open", syscall(SYS_perf_event_open, page, 0, -1, -1, 0));
    TRY("keyctl", syscall(SYS_keyctl, 0, -3, 0));
    TRY("add_key", syscall(SYS_add_key, "user", "a", "b", 1, -3));
    TRY("kexec_load", syscall(SYS_kexec_load, 0, 0, 0, 0));
    TRY("init_module", syscall(SYS_init_module, page, 0, ""));
    TRY("reboot", syscall(SYS_reboot, 0, 0, 0, 0));
    TRY("swapon", syscall(SYS_swapon, "/tmp", 0));
    TRY("userfaultfd", syscall(SYS_userfaultfd, 0));
    TRY("io_uring_setup", syscall(425, 8, page));
    TRY("open_by_handle_at", syscall(SYS_open_by_handle_at, -100, page, 0));
    TRY("netlink", socket(AF_NETLINK, SOCK_RAW, 0));
    TRY("packet", socket(AF_PACKET, SOCK_RAW, 0));
    TRY("vsock", socket(40, SOCK_STREAM, 0));
    TRY("alg", socket(AF_ALG, SOCK_SEQPACKET, 0));
    TRY("clone3", syscall(435, page, 88));
    TRY("openat2", syscall(437, -100, "/tmp", page, 24));
    TRY("unknown", syscall(9999));
    TRY("x32", syscall(0x40000000 | 39));
    TRY("setuid-create", open("/tmp/s", O_CREAT | O_WRONLY, 04755));
    TRY("setgid-create", syscall(SYS_openat, -100, "/tmp/s", O_CREAT | O_WRONLY, 02755));
    TRY("tmpfile-setuid", open("/tmp", O_TMPFILE | O_WRONLY, 04755));
    TRY("mknod-setuid", mknod("/tmp/n", S_IFREG | 04755, 0));
    TRY("inet", socket(AF_INET, SOCK_STREAM, 0));
    TRY("inet6", socket(AF_INET6, SOCK_DGRAM, 0));
    TRY("unix", socket(AF_UNIX, SOCK_STREAM, 0));
    TRY("create", open("/tmp/c", O_CREAT | O_WRONLY, 0755));
    TRY("chmod-setuid", chmod("/tmp/c", 04755));
    TRY("chmod-setgid", chmod("/tmp/c", 02755));
    TRY("fchmodat-setuid", fchmodat(AT_FDCWD, "/tmp/c", 06755, 0));
    TRY("chmod", chmod("/tmp/c", 0700));
    return 0;
}
"#;

#[tokio::test]
async fn dangerous_system_calls_are_refused_and_missing_ones_fall_back() {
    if !host_has("cc") {
        return;
    }
    let place = Place::new();
    std::fs::write(place.workspace().join("calls.c"), CALLS).unwrap();
    let subject = with(options());
    // The compiler runs inside as well.
    let said = subject.says(&place, "cc -o /tmp/calls calls.c && /tmp/calls").await;
    let missing = ["clone3", "openat2", "unknown", "x32"];
    let allowed = ["inet", "inet6", "unix", "create", "chmod"];
    let mut seen = 0;
    for line in said.lines() {
        let (name, errno) = line.split_once(' ').unwrap();
        let expected = match name {
            name if missing.contains(&name) => libc::ENOSYS,
            name if allowed.contains(&name) => 0,
            _ => libc::EPERM,
        };
        assert_eq!(errno.parse(), Ok(expected), "{name}");
        seen += 1;
    }
    assert_eq!(seen, CALLS.matches("    TRY(").count());
}

#[tokio::test]
async fn process_one_can_be_neither_killed_nor_read() {
    let subject = with(options());
    let place = Place::new();
    let said = subject
        .says(
            &place,
            "kill -KILL 1; kill -TERM 1; \
             for f in mem environ maps fd/0; do cat /proc/1/$f >/dev/null 2>&1 && echo read $f; done; \
             readlink /proc/1/fd/* /proc/1/exe /proc/1/cwd; echo alive",
        )
        .await;
    assert_eq!(said, "alive\n");
}

#[tokio::test]
async fn the_command_sees_only_itself_and_its_init() {
    let said = with(options()).says(&Place::new(), "set -- /proc/[0-9]*; echo $#; hostname").await;
    assert_eq!(said, "2\nsandbox\n");
}

#[tokio::test]
async fn the_loopback_works_inside() {
    if !host_has("python3") {
        return;
    }
    let script = "import socket\n\
                  a = socket.create_server(('127.0.0.1', 0))\n\
                  b = socket.create_connection(a.getsockname())\n\
                  b.sendall(b'hi'); print(a.accept()[0].recv(2).decode())";
    let place = Place::new();
    let result = with(options()).run(place.request(&["/usr/bin/python3", "-c", script])).await;
    assert_eq!(result.stdout.text, "hi\n", "{result:?}");
}

/// The mechanism that enforces a limit here.
fn enforced(limit: &str) -> Option<String> {
    let bounds = Namespace::new(options()).bounds();
    bounds.into_iter().find(|bound| bound.limit == limit).unwrap().enforced_by
}

#[tokio::test]
async fn memory_is_limited_for_the_whole_tree_if_cgroups_work() {
    let by_group = enforced("memory_bytes").unwrap().contains("cgroup");
    if !host_has("python3") {
        return;
    }
    // Each within the bound, all together far above it.
    let script = "for i in 1 2 3 4; do \
                    /usr/bin/python3 -c 'import time; x = bytearray(60 << 20); time.sleep(1)' & \
                    all=\"$all $!\"; \
                  done; \
                  killed=0; for one in $all; do wait $one || killed=$((killed+1)); done; \
                  echo $killed";
    let mut request = Place::new().sh(script);
    let place = Place::new();
    request.workspace = place.workspace();
    request.limits.memory_bytes = 128 << 20;
    let result = with(options()).run(request).await;
    let killed: u32 = result.stdout.text.trim().parse().unwrap();
    assert_eq!(killed > 0, by_group, "{result:?}");
}

#[tokio::test]
async fn the_processor_share_is_limited_if_cgroups_work() {
    let by_group = enforced("cpus").is_some();
    if !host_has("python3") || !by_group {
        return;
    }
    let script = "import time\nend = time.monotonic() + 1.5\n\
                  while time.monotonic() < end: pass\nprint(time.process_time())";
    let place = Place::new();
    let mut request = place.request(&["/usr/bin/python3", "-c", script]);
    request.limits.cpus = 0.1;
    let result = with(options()).run(request).await;
    let used: f64 = result.stdout.text.trim().parse().unwrap();
    assert!(used < 0.6, "{used} s of processor time in at least 1.5 s");
}

/// Runs a tool inside with the default bounds and wants it to succeed.
async fn runs(program: &str, script: &str, expected: &str) {
    if !host_has(program) {
        return;
    }
    let place = Place::new();
    let mut request = place.sh(script);
    request.writable = Some("out".into());
    request.env.push(("HOME".to_owned(), "/tmp".to_owned()));
    let result = with(options()).run(request).await;
    assert_eq!(result.exit, Exit::Code(0), "{result:?}");
    assert_eq!(result.stdout.text.trim(), expected, "{result:?}");
}

#[tokio::test]
async fn git_runs() {
    let script = "cd out && git init -q . && echo a > a && git add a && \
                  git -c user.name=n -c user.email=e commit -qm first && git log --format=%s";
    runs("git", script, "first").await;
}

#[tokio::test]
async fn python_runs_with_threads_and_processes() {
    let script = "/usr/bin/python3 -c 'import concurrent.futures as f, multiprocessing as m\n\
                  with f.ThreadPoolExecutor(4) as p: t = sum(p.map(int, \"123\"))\n\
                  with m.Pool(2) as p: t += sum(p.map(int, \"123\"))\n\
                  print(t)'";
    runs("python3", script, "12").await;
}

#[tokio::test]
async fn node_runs() {
    let script = "node -e 'const {execSync} = require(\"child_process\"); \
                  setTimeout(() => console.log(execSync(\"echo hi\").toString()), 1)'";
    runs("node", script, "hi").await;
}

#[tokio::test]
async fn a_login_shell_runs() {
    let place = Place::new();
    let result = with(options()).run(place.request(&["sh", "-lc", "echo hi"])).await;
    assert_eq!((result.stdout.text.as_str(), result.stderr.text.as_str()), ("hi\n", ""));
}

/// A compiler in a home directory is invisible, and becomes visible by an option.
#[tokio::test]
async fn cargo_builds_if_its_directory_is_shown() {
    if !host_has("cc") {
        return;
    }
    let sysroot =
        std::process::Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    let sysroot = PathBuf::from(String::from_utf8(sysroot.stdout).unwrap().trim());
    let place = Place::new();
    let package = place.workspace().join("out");
    std::fs::create_dir(package.join("src")).unwrap();
    open_to_all(&package.join("src"));
    let manifest = "[package]\nname = \"x\"\nedition = \"2024\"\n[workspace]\n";
    std::fs::write(package.join("Cargo.toml"), manifest).unwrap();
    std::fs::write(package.join("src/main.rs"), "fn main() { println!(\"built\"); }").unwrap();
    let mut request = place.sh("cd out && cargo run --offline --quiet");
    request.writable = Some("out".into());
    request.env = vec![
        ("PATH".to_owned(), format!("{}/bin:/usr/bin:/bin", sysroot.display())),
        ("CARGO_HOME".to_owned(), "/tmp/cargo".to_owned()),
    ];
    request.limits.memory_bytes = 1 << 30;
    request.timeout = Duration::from_secs(120);

    let hidden = with(options()).run(request.clone()).await;
    if !sysroot.starts_with("/usr") {
        assert_eq!(hidden.exit, Exit::Code(127), "{hidden:?}");
    }
    let shown = Options { read_only: vec![sysroot], ..options() };
    let result = with(shown).run(request).await;
    assert_eq!(
        (result.exit, result.stdout.text.as_str()),
        (Exit::Code(0), "built\n"),
        "{result:?}"
    );
}

#[tokio::test]
async fn a_granted_device_can_be_opened_and_is_unchanged() {
    let Some(device) = device_with_state() else { return };
    let place = Place::new();
    let path = device.to_str().unwrap();
    let script = format!(
        "(exec 3<>{path}) 2>/dev/null && echo open; chmod 777 {path} 2>/dev/null && echo changed; \
         ls -d /dev/kvm /dev/fuse /dev/net/tun /dev/kmsg 2>/dev/null; true"
    );
    let given = Options { devices: vec![device.clone()], ..options() };
    assert_eq!(with(given.clone()).says(&place, &script).await, format!("open\n{path}\n"));
    assert_eq!(with(options()).says(&place, &script).await, "");

    if path == "/dev/kvm" && host_has("python3") {
        // Calls to the driver pass Landlock and the filter: this one asks for its version.
        let ask = "python3 -c 'import fcntl, os; \
                   print(fcntl.ioctl(os.open(\"/dev/kvm\", os.O_RDWR), 0xAE00))'";
        assert_eq!(with(given).says(&place, ask).await, "12\n");
    }
}

#[tokio::test]
async fn only_character_devices_in_dev_are_passed_to_the_sandbox() {
    let place = Place::new();
    let secret = place.secret();
    for (path, why) in [
        (secret.as_path(), "not an absolute path in /dev"),
        (Path::new("/dev/../etc/passwd"), "not an absolute path in /dev"),
        (Path::new("dev/null"), "not an absolute path in /dev"),
        (Path::new("/dev/shm"), "not a character device"),
        (Path::new("/dev/no-such-device"), "there is none"),
    ] {
        let options = Options { devices: vec![path.to_owned()], ..options() };
        let message = with(options).refusal(place.sh("true")).await;
        let expected = format!("cannot give the device {} to a sandbox: it is", path.display());
        assert!(message.contains(why), "{message}");
        assert!(why == "there is none" || message.starts_with(&expected), "{message}");
    }
}

/// An init that is started in surroundings where one step of the set-up is refused.
fn wrapped(dir: &TempDir, surroundings: &str) -> Options {
    use std::os::unix::fs::PermissionsExt;
    let program = dir.path().join("init");
    let init = init_program();
    let script = format!(
        "#!/bin/sh\nexec /usr/bin/unshare --user --map-root-user --mount \
         /bin/sh -c '{surroundings} && exec {} __sandbox-init'\n",
        init.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    Options { init_program: program, ..Options::default() }
}

async fn refused_here(surroundings: &str, expected: &str) {
    if !host_has("unshare") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new();
    let namespace = Namespace::new(wrapped(&dir, surroundings));
    let mut request = place.sh("echo ran > hello");
    request.writable = Some(".".into());
    for result in [namespace.check().await, namespace.run(request.clone()).await.map(drop)] {
        match result {
            Err(SandboxError::Unavailable { code, reason, remedy, .. }) => {
                assert_eq!((code.as_str(), reason.as_str()), ("namespace_unavailable", expected));
                assert!(!remedy.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }
    let untouched = std::fs::read_to_string(place.workspace().join("hello")).unwrap();
    assert_eq!(untouched, "hello\n", "nothing ran in a weaker sandbox");
}

#[tokio::test]
async fn empty_directories_are_accepted() {
    if !host_has("unshare") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Namespace::new(wrapped(&dir, "true")).check().await, Ok(()));
}

#[tokio::test]
async fn a_machine_without_user_namespaces_is_reported_and_runs_nothing() {
    let surroundings = "echo 0 > /proc/sys/user/max_user_namespaces";
    refused_here(surroundings, "user_namespaces_exhausted").await;
}

#[tokio::test]
async fn a_masked_proc_is_reported_and_runs_nothing() {
    // As in a container: the cover is locked by one more namespace in between.
    let surroundings = "mount -t tmpfs none /proc/sys && \
                        exec /usr/bin/unshare --user --map-root-user --mount";
    if !host_has("unshare") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut options = wrapped(&dir, "true");
    let script = std::fs::read_to_string(&options.init_program).unwrap();
    let script = script.replace("true && exec", &format!("{surroundings} "));
    options.init_program = dir.path().join("masked");
    std::fs::write(&options.init_program, script).unwrap();
    open_to_all(&options.init_program);
    match Namespace::new(options).check().await {
        Err(SandboxError::Unavailable { reason, .. }) => assert_eq!(reason, "proc_masked"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_missing_init_is_reported_by_name() {
    let options = Options { init_program: "/nowhere/init".into(), ..Options::default() };
    match Namespace::new(options).check().await {
        Err(SandboxError::Unavailable { message, reason, .. }) => {
            assert_eq!(reason, "init_not_started");
            assert!(message.starts_with("cannot start the sandbox's init /nowhere/init: "));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_program_without_init_fails() {
    let options = Options { init_program: "/bin/true".into(), ..Options::default() };
    match Namespace::new(options).run(Place::new().sh("true")).await {
        Err(SandboxError::Failed { level, message }) => {
            assert_eq!(level, "namespace");
            assert!(message.starts_with("the init ended before the command ran"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_init_ends_with_an_error_when_started_by_hand() {
    let output = std::process::Command::new(init_program()).arg("__sandbox-init").output().unwrap();
    assert!(!output.status.success());
    assert!(!std::process::Command::new(init_program()).output().unwrap().status.success());
}

/// The message of the test below to its other half, in the directory where that starts.
const ORDER: &str = "order-for-the-daemon";

/// Not a separate test: a daemon with two running sandboxes, which the test below kills.
#[tokio::test]
#[ignore = "the other half of a_killed_daemon_leaves_nothing_running"]
async fn daemon() {
    let order = std::fs::read_to_string(ORDER).unwrap();
    let (marker, workspace) = order.split_once('\n').unwrap();
    let place = Place::new();
    let script = format!(
        "(setsid sh -c 'trap \"\" TERM HUP; sleep 300; :' {marker} </dev/null >/dev/null 2>&1 &); \
         sleep 300; : {marker}"
    );
    let mut request = place.sh(&script);
    request.workspace = workspace.into();
    request.timeout = Duration::from_secs(600);
    let none = overmind_sandbox::Unconfined::new(options());
    let namespace = Namespace::new(options());
    let _ = tokio::join!(namespace.run(request.clone()), none.run(request));
}

#[tokio::test]
async fn a_killed_daemon_leaves_nothing_running() {
    let place = Place::new();
    let marker = marker();
    let order = format!("{marker}\n{}", place.workspace().display());
    std::fs::write(place.workspace().join(ORDER), order).unwrap();
    let mut daemon = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "namespace::daemon", "--ignored"])
        .current_dir(place.workspace())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // The command and its own daemon in each sandbox.
    until("both trees run", || processes_with(&marker).len() >= 4).await;
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    until("nothing is left", || processes_with(&marker).is_empty()).await;
}

#[tokio::test]
async fn a_workspace_below_a_replaced_directory_works() {
    // The workspace of these tests is beneath /tmp, which is another one inside.
    let place = Place::new();
    assert!(place.workspace().starts_with(std::env::temp_dir()));
    let said = with(options()).says(&place, "cat hello; ls -A /tmp").await;
    assert_eq!(said, "hello\n");
    assert!(!Path::new("/tmp/overmind-nothing").exists());
}

/// `cargo nextest run --release -p overmind-sandbox --run-ignored only figures --no-capture`
#[tokio::test]
#[ignore = "prints figures; only meaningful in a release build on a quiet machine"]
async fn figures() {
    const ROUNDS: usize = 200;
    let place = Place::new();
    let none = overmind_sandbox::Unconfined::new(options());
    let namespace = Namespace::new(options());
    for driver in [Namespace::new(options()), Namespace::new(options()), Namespace::new(options())]
    {
        // A plain first run would be the same without the probe.
        let attested = driver.attest().await.unwrap().unwrap();
        eprintln!("attestation {} us, once", attested.attestation.took_us);
    }
    assert!(namespace.attest().await.is_ok());
    let kinds = ["fork+exec", "pid namespace", "none", "namespace"];
    let mut times: [Vec<Duration>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let status = tokio::process::Command::new("/bin/true").status().await.unwrap();
        times[0].push(start.elapsed());
        assert!(status.success());
        // The floor of a user's own solution: one program that creates the namespace and waits.
        let start = Instant::now();
        let status = tokio::process::Command::new("/usr/bin/unshare")
            .args(["--user", "--pid", "--fork", "/bin/true"])
            .status()
            .await
            .unwrap();
        times[1].push(start.elapsed());
        assert!(status.success());
        for (driver, into) in [(&none as &dyn Sandbox, 2), (&namespace, 3)] {
            let start = Instant::now();
            let result = driver.run(place.request(&["/bin/true"])).await.unwrap();
            times[into].push(start.elapsed());
            assert_eq!(result.exit, Exit::Code(0));
        }
    }
    for (name, mut times) in kinds.into_iter().zip(times) {
        times.sort_unstable();
        let at = |percent: usize| times[(ROUNDS - 1) * percent / 100];
        eprintln!("{name:14} p50 {:?} p90 {:?} p99 {:?}", at(50), at(90), at(99));
    }
}

#[tokio::test]
async fn home_files_belong_to_the_command_and_are_removed_with_it() {
    let place = Place::new();
    let driver = with(options());
    let script = "cat ~/.a/b; stat -c %a:%u ~/.a/b; id -u; echo more >> ~/.a/b; wc -c < ~/.a/b";
    let mut request = place.sh(script);
    request.env.push(("HOME".to_owned(), HOME.to_owned()));
    request.home = vec![HomeFile { path: ".a/b".into(), content: b"decoy\n".to_vec() }];
    for _ in 0..2 {
        let result = driver.run(request.clone()).await;
        assert_eq!(result.stdout.text, "decoy\n600:1000\n1000\n11\n", "{result:?}");
    }
    request.home.clear();
    request.argv = ["sh", "-c", "ls -A ~"].map(str::to_owned).to_vec();
    assert_eq!(driver.run(request.clone()).await.stdout.text, "");
    // A home that is too small for them is an error of the call, and nothing runs.
    request.limits.tmp_bytes = 4096;
    request.home = vec![HomeFile { path: "big".into(), content: vec![b'x'; 1 << 20] }];
    let err = driver.sandbox.run(request).await.unwrap_err();
    assert!(err.to_string().contains("tmp/big"), "{err}");
}
