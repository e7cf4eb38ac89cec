//! Commands that live, in an enclosure: started here as a keeper starts them.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overmind_core::attest::CheckName;
use overmind_core::enclosure::{Enclose as _, EnclosePlan, Enclosed, Network, Surroundings};
use overmind_core::ids::SessionId;
use overmind_core::sandbox::{SandboxError, SandboxLevel};
use overmind_sandbox::{Enclosures, Options};
use rustix::process::{Pid, Signal};
use rustix::pty::OpenptFlags;
use tempfile::TempDir;

use crate::support::init_program;

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

pub(crate) struct Place {
    dir: TempDir,
    pub(crate) enclosures: Enclosures,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["work/sub", "other", "data", "tools/bin"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        for name in ["secret", "other/secret", "data/secret", "tools/secret"] {
            std::fs::write(dir.path().join(name), "a-secret").unwrap();
        }
        let options = Options {
            init_program: init_program(),
            private: vec![dir.path().join("data")],
            ..Options::default()
        };
        let (homes, door) = (dir.path().join("homes"), dir.path().join("data/agents.sock"));
        let enclosures = Enclosures::new(options, homes, Vec::new(), Some(door));
        Self { dir, enclosures }
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    pub(crate) fn plan(&self, script: &str) -> EnclosePlan {
        let seen = Surroundings { workspace: self.at("work"), ..Surroundings::default() };
        EnclosePlan {
            argv: ["sh", "-c", script].map(str::to_owned).into(),
            env: vec![("PATH".to_owned(), PATH.to_owned())],
            cwd: self.at("work"),
            network: Network::Host,
            server: true,
            ..seen.plan(SessionId::from_u128(7), SandboxLevel::Namespace)
        }
    }

    pub(crate) async fn command(&self, plan: EnclosePlan) -> Command {
        command(&plan.env.clone(), self.enclosures.enclose(plan).await.unwrap())
    }

    /// Runs it to its end, behind pipes.
    pub(crate) async fn run(&self, plan: EnclosePlan) -> (ExitStatus, String) {
        let mut command = self.command(plan).await;
        let output = command.stdin(Stdio::null()).output().unwrap();
        let both = [output.stdout, output.stderr].concat();
        (output.status, String::from_utf8(both).unwrap())
    }

    async fn refused(&self, plan: EnclosePlan) -> String {
        match self.enclosures.enclose(plan).await {
            Err(SandboxError::BadConfig { message, .. }) => message,
            other => panic!("{other:?}"),
        }
    }
}

/// The program that a shim starts.
pub(crate) fn command(env: &[(String, String)], enclosed: Enclosed) -> Command {
    let mut command = Command::new(&enclosed.argv[0]);
    command.args(&enclosed.argv[1..]).env_clear().current_dir(enclosed.cwd);
    command.envs(env.iter().cloned()).envs(enclosed.tells).envs(enclosed.needs);
    command
}

pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(since.elapsed() < Duration::from_secs(30), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Processes of the whole machine whose command line contains `mark`.
fn marked(mark: &str) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    all.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(mark).then_some(pid)
    })
    .collect()
}

/// A number that no other test, and no other run, sleeps for.
fn mark(n: u32) -> String {
    format!("{}.{n}", 100_000 + std::process::id())
}

#[tokio::test]
async fn a_command_sees_only_its_own_directory() {
    let place = Place::new();
    let script = "pwd; echo $HOME $USER; ls -A ~; touch made ~/kept /tmp/t && echo wrote; \
                  touch /usr/x /etc/x /x 2>/dev/null || echo read-only; \
                  id -u; ls /home; test -e /root || echo no root; ls /proc | grep -c '^[0-9]'; \
                  env | grep -c OVERMIND_ENCLOSURE; exit 7";
    let (status, out) = place.run(place.plan(script)).await;
    let work = place.at("work").display().to_string();
    let told =
        format!("{work}\n/home/sandbox sandbox\nwrote\nread-only\n1000\nsandbox\nno root\n4\n0\n");
    assert_eq!((status.code(), out.as_str()), (Some(7), told.as_str()));
    assert!(place.at("work/made").exists(), "the workspace is the real one");
    for hidden in ["secret", "other", "data", "tools", "homes"] {
        let path = place.at(hidden);
        let (_, out) = place.run(place.plan(&format!("ls {} 2>&1", path.display()))).await;
        assert!(out.contains("No such file"), "{hidden}: {out}");
    }
    // Its home survives an attempt and is private.
    let (_, out) = place.run(place.plan("ls ~")).await;
    assert_eq!(out, "kept\n");
    let other = EnclosePlan { session: SessionId::from_u128(8), ..place.plan("ls ~") };
    assert_eq!(place.run(other).await.1, "");
    let mut kept = place.enclosures.kept().await;
    kept.sort();
    assert_eq!(kept, [7, 8].map(SessionId::from_u128));
    place.enclosures.ended(SessionId::from_u128(8)).await;
    assert_eq!(place.enclosures.kept().await, [SessionId::from_u128(7)]);
    // Whatever is in it.
    let closed = "mkdir -p ~/a/b; chmod 0 ~/a";
    place.run(place.plan(closed)).await;
    place.enclosures.ended(SessionId::from_u128(7)).await;
    assert_eq!(std::fs::read_dir(place.at("homes")).unwrap().count(), 0);
}

#[tokio::test]
async fn the_exit_status_is_the_commands_own() {
    let place = Place::new();
    assert_eq!(place.run(place.plan("exit 0")).await.0.code(), Some(0));
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV, libc::SIGUSR1] {
        let (status, _) = place.run(place.plan(&format!("kill -{signal} $$"))).await;
        assert_eq!((status.code(), status.signal()), (None, Some(signal)));
    }
    let (status, out) =
        place.run(EnclosePlan { argv: vec!["./nothing".into()], ..place.plan("") }).await;
    assert_eq!(status.code(), Some(127), "{out}");
    assert!(out.contains("cannot start `./nothing`") && out.contains("command.read"), "{out}");
}

#[tokio::test]
async fn granted_paths_are_visible_with_the_granted_access() {
    let place = Place::new();
    let tool = place.at("tools/bin/tool");
    std::fs::write(&tool, "#!/bin/sh\necho the tool\n").unwrap();
    std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let argv = vec![tool.display().to_string()];
    let plan = EnclosePlan { argv, ..place.plan("") };
    let why = place.refused(plan.clone()).await;
    let grant = format!("\"read\": [\"{}\"]", place.at("tools").display());
    assert!(why.contains(&grant), "{why}");
    let granted = EnclosePlan { read: vec![place.at("tools/bin")], ..plan.clone() };
    assert_eq!(place.run(granted).await.1, "the tool\n");

    // An installed program is shown, and files beside it are not. The command's own `PATH` does not
    // select the program.
    let beside = place.at("tools/bin/beside");
    std::fs::write(beside, "a-secret").unwrap();
    std::fs::write(&tool, "#!/bin/sh\necho the tool\ncat ${0%/*}/beside ${0%/*}/../secret\n")
        .unwrap();
    let installed = Some(format!("/nowhere:{}:{PATH}", place.at("tools/bin").display()));
    let plan = EnclosePlan { argv: vec!["tool".to_owned()], ..plan };
    let why = place.refused(plan.clone()).await;
    assert!(why.contains("there is no `tool`"), "{why}");
    let (_, out) = place.run(EnclosePlan { installed, ..plan }).await;
    assert!(out.starts_with("the tool\n") && !out.contains("a-secret"), "{out}");
    let bin = place.at("tools/bin");
    let env = vec![("PATH".to_owned(), format!("{}:{PATH}", bin.display()))];
    let plan = EnclosePlan { argv: vec!["tool".to_owned()], env, ..place.plan("") };
    let why = place.refused(EnclosePlan { installed: Some(PATH.to_owned()), ..plan }).await;
    assert!(why.contains("which a sandbox does not show"), "{why}");

    let (read, write) = (vec![place.at("other")], vec![place.at("tools"), place.at("secret")]);
    let script = format!(
        "cd {}; cat other/secret; touch other/x 2>&1; cat tools/secret; echo more > tools/new; \
         echo changed > secret; ls",
        place.at("").display()
    );
    let plan = EnclosePlan { read, write, ..place.plan(&script) };
    let (_, out) = place.run(plan).await;
    assert!(out.starts_with("a-secrettouch: ") && out.contains("Read-only"), "{out}");
    assert!(out.ends_with("a-secretother\nsecret\ntools\nwork\n"), "{out}");
    assert_eq!(std::fs::read_to_string(place.at("tools/new")).unwrap(), "more\n");
    assert_eq!(std::fs::read_to_string(place.at("secret")).unwrap(), "changed\n");
}

#[tokio::test]
async fn forbidden_paths_are_refused_with_the_reason() {
    let place = Place::new();
    let plan = || place.plan("true");
    let cases = [
        (EnclosePlan { level: SandboxLevel::Docker, ..plan() }, "runs in no `docker`"),
        (EnclosePlan { level: SandboxLevel::Microvm, ..plan() }, "runs in no `microvm`"),
        (EnclosePlan { workspace: place.at(""), ..plan() }, "which no sandbox may show"),
        (EnclosePlan { workspace: "/".into(), ..plan() }, "which no sandbox may show"),
        (EnclosePlan { workspace: "/root".into(), cwd: "/root".into(), ..plan() }, "the home"),
        (EnclosePlan { cwd: place.at("other"), ..plan() }, "is not in"),
        (EnclosePlan { read: vec![place.at("data")], ..plan() }, "the server's own"),
        (EnclosePlan { write: vec![place.at("data/secret")], ..plan() }, "the server's own"),
        (EnclosePlan { read: vec![place.at("nowhere")], ..plan() }, "cannot show"),
        (EnclosePlan { read: vec!["/proc/1".into()], ..plan() }, "has a /proc of its own"),
        (EnclosePlan { argv: vec!["no-such-thing".into()], ..plan() }, "there is no `no-such"),
    ];
    for (plan, words) in cases {
        let why = place.refused(plan).await;
        assert!(why.contains(words), "{words}: {why}");
    }
}

#[tokio::test]
async fn the_network_is_the_hosts_or_none_and_recorded() {
    let place = Place::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}' 2>/dev/null && echo reached");
    for (network, reached) in [(Network::Host, "reached\n"), (Network::None, "")] {
        let plan = EnclosePlan { network, ..place.plan(&script) };
        let enclosed = place.enclosures.enclose(plan.clone()).await.unwrap();
        let attestation = &enclosed.attested.attestation;
        assert_eq!(attestation.achieved, SandboxLevel::Namespace);
        assert!(attestation.driver.contains(network.as_str()), "{}", attestation.driver);
        let check = |name| attestation.checks.iter().find(|check| check.name == name).unwrap();
        let services = check(CheckName::HostServices);
        assert_eq!(services.measured.contains("tcp"), network == Network::Host, "{services:?}");
        assert_eq!(check(CheckName::Homes).measured, "none");
        assert_eq!(check(CheckName::OtherSessions).measured, "none");
        let again = place.enclosures.enclose(plan.clone()).await.unwrap();
        assert_eq!(again.attested.digest, enclosed.attested.digest, "measured once");
        assert_eq!(place.run(plan).await.1, reached);
    }
}

/// A terminal of which the command is started as the leader, as a keeper does it.
fn in_a_terminal(inner: Command) -> (Child, File) {
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(inner.get_program()).args(inner.get_args()).env_clear();
    let variables = inner.get_envs().filter_map(|(name, value)| Some((name, value?)));
    command.envs(variables).current_dir(inner.get_current_dir().unwrap());
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let slave: OwnedFd = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
    let size = rustix::termios::Winsize { ws_row: 30, ws_col: 90, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&master, size).unwrap();
    let stream = || Stdio::from(slave.try_clone().unwrap());
    command.stdin(stream()).stdout(stream()).stderr(stream());
    let child = command.spawn().unwrap();
    (child, File::from(master))
}

/// The output of the terminal until `text`.
fn read_until(terminal: &mut File, text: &str) -> String {
    let mut seen = Vec::new();
    let mut piece = [0u8; 1024];
    while !String::from_utf8_lossy(&seen).contains(text) {
        let count = terminal.read(&mut piece).unwrap_or(0);
        assert!(count > 0, "{text:?} never came: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..count]);
    }
    String::from_utf8_lossy(&seen).into_owned()
}

#[tokio::test]
async fn the_command_controls_its_terminal_with_keys_sizes_and_jobs() {
    let place = Place::new();
    let script = "trap 'echo interrupted' INT; trap 'stty size' WINCH; stty size; \
                  sh -c 'echo through tty > /dev/tty'; echo ready; \
                  until read a; do :; done; read b; echo got $b; exit 9";
    let plan = EnclosePlan { terminal: true, ..place.plan(script) };
    let (mut child, mut terminal) = in_a_terminal(place.command(plan).await);
    let seen = read_until(&mut terminal, "ready");
    assert!(seen.starts_with("30 90\r\nthrough tty\r\n"), "{seen}");
    // The interrupt key reaches only the command.
    terminal.write_all(&[3]).unwrap();
    read_until(&mut terminal, "interrupted");
    let size = rustix::termios::Winsize { ws_row: 40, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&terminal, size).unwrap();
    read_until(&mut terminal, "40 100");
    terminal.write_all(b"one\ntwo\n").unwrap();
    read_until(&mut terminal, "got ");
    assert_eq!(child.wait().unwrap().code(), Some(9));

    // An interactive shell has jobs; terminals can be created inside.
    let argv = ["bash", "--norc", "-i"].map(str::to_owned).into();
    let plan = EnclosePlan { terminal: true, argv, ..place.plan("") };
    let (mut child, mut terminal) = in_a_terminal(place.command(plan).await);
    read_until(&mut terminal, "$ ");
    terminal.write_all(b"sleep 600 & jobs; script -qc tty /dev/null; echo all'' done\n").unwrap();
    let seen = read_until(&mut terminal, "all done");
    assert!(seen.contains("Running") && seen.contains("/dev/pts/0"), "{seen}");
    assert!(!seen.contains("no job control"), "{seen}");
    terminal.write_all(b"exit 4\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

#[tokio::test]
async fn signals_are_forwarded_and_the_tree_ends_with_the_launcher() {
    let place = Place::new();
    let sleeps = mark(1);
    let script = format!(
        "trap 'echo asked; exit 3' TERM; (setsid sh -c 'trap \"\" TERM HUP; sleep {sleeps}' &) ; \
         echo up; while :; do sleep 0.02; done"
    );
    let start = async || {
        let mut command = place.command(place.plan(&script)).await;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        let mut up = [0u8; 3];
        out.read_exact(&mut up).unwrap();
        until("the daemon runs", || (marked(&sleeps).len() >= 5).then_some(()));
        (child, out)
    };
    let (mut child, mut out) = start().await;
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "asked\n");
    assert_eq!(marked(&sleeps), [0i32; 0], "the end takes what left its session along");

    let (mut child, _out) = start().await;
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    until("all of it is gone", || marked(&sleeps).is_empty().then_some(()));
}

#[tokio::test]
async fn a_sandbox_with_a_way_out_is_refused() {
    let place = Place::new();
    let script = "unshare -U true 2>/dev/null || echo no namespaces; \
                  mount -t tmpfs x /tmp 2>/dev/null || echo no mounts; \
                  chmod u+s made 2>/dev/null || echo no set-user-id; \
                  cat /proc/1/environ 2>/dev/null || echo not its parent; \
                  grep -h -e NoNewPrivs -e 'Seccomp:' -e CapEff /proc/self/status | tr -d '\\n'";
    std::fs::write(place.at("work/made"), "").unwrap();
    let (_, out) = place.run(place.plan(script)).await;
    let told = "no namespaces\nno mounts\nno set-user-id\nnot its parent\n\
                CapEff:\t0000000000000000NoNewPrivs:\t1Seccomp:\t2";
    assert_eq!(out, told);
}

#[tokio::test]
async fn addresses_can_be_looked_up_if_there_is_a_network() {
    let place = Place::new();
    let script = "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); print('route')\n\
                  try: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9); print('audit')\n\
                  except PermissionError: print('refused')";
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("passed over: there is no python3");
        return;
    }
    let argv: Vec<String> = ["python3", "-c", script].map(str::to_owned).into();
    let plan = EnclosePlan { argv: argv.clone(), ..place.plan("") };
    assert_eq!(place.run(plan).await.1, "route\nrefused\n");
    let plan = EnclosePlan { argv, network: Network::None, ..place.plan("") };
    assert!(place.run(plan).await.1.contains("PermissionError"));
}

/// No assertion: prints the cost of a sandbox beside a plain start.
#[tokio::test]
async fn figures_of_a_start() {
    let place = Place::new();
    place.run(place.plan("true")).await;
    let mut medians = Vec::new();
    for enclosed in [false, true] {
        let mut times = Vec::new();
        for _ in 0..20 {
            let mut command = match enclosed {
                true => {
                    place.command(EnclosePlan { argv: vec!["true".into()], ..place.plan("") }).await
                }
                false => Command::new("true"),
            };
            let began = Instant::now();
            assert!(command.status().unwrap().success());
            times.push(began.elapsed());
        }
        times.sort();
        medians.push(times[times.len() / 2]);
    }
    eprintln!("`true`, start to end: {:?}; enclosed: {:?}", medians[0], medians[1]);
}

#[tokio::test]
async fn borrowed_objects_are_shown_and_links_lead_only_to_objects() {
    let place = Place::new();
    for made in ["lent/pack", "lent/0f", "settings/ssh", "outer/real"] {
        std::fs::create_dir_all(place.at(made)).unwrap();
    }
    std::fs::write(place.at("settings/ssh/key"), "secret").unwrap();
    std::fs::write(place.at("lent/pack/p"), "packed").unwrap();
    for (target, link) in [("lent", "objects"), ("settings", "evil"), ("outer", "way")] {
        std::os::unix::fs::symlink(place.at(target), place.at(link)).unwrap();
    }
    let borrowing = |path: &str, script: &str| EnclosePlan {
        read: vec![place.at(path)],
        borrowed: vec![place.at(path)],
        ..place.plan(&format!("{script} '{}'", place.at(path).display()))
    };
    for (path, wanted) in [("lent", "pack"), ("objects", "pack"), ("settings", "ssh")] {
        let (status, out) = place.run(borrowing(path, "ls")).await;
        assert!(status.success() && out.contains(wanted), "{path}: {out}");
    }
    for path in ["evil", "evil/ssh", "way/real"] {
        let why = place.refused(borrowing(path, "ls -R")).await;
        assert!(why.contains(path) && why.contains("real path"), "{why}");
    }
    // The measured directory is not the one that is there later.
    let plan = borrowing("lent", "ls");
    let mut command = place.command(plan).await;
    std::fs::rename(place.at("lent"), place.at("lent-before")).unwrap();
    std::os::unix::fs::symlink(place.at("settings"), place.at("lent")).unwrap();
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(!output.status.success() && !said.contains("ssh"), "{said}");
    // Nor is a granted path shown through a link, which a command may have created.
    let granted = EnclosePlan { borrowed: Vec::new(), ..borrowing("evil", "ls") };
    let why = place.refused(granted).await;
    assert!(why.contains("is a link to") && why.contains("real path"), "{why}");
}

/// Puts a link in place of a directory.
fn replace(place: &Place, directory: &str, target: &str) {
    let kept = place.at(&format!("{}-before", directory.replace('/', "-")));
    std::fs::rename(place.at(directory), kept).unwrap();
    std::os::unix::fs::symlink(place.at(target), place.at(directory)).unwrap();
}

#[tokio::test]
async fn a_path_that_became_a_link_after_the_check_is_not_mounted() {
    type Make = fn(&Place) -> EnclosePlan;
    let tries: [(&str, Make); 4] = [
        ("work/sub", |place| EnclosePlan {
            workspace: place.at("work/sub"),
            cwd: place.at("work/sub"),
            ..place.plan("cat secret; echo T > planted")
        }),
        // Also above it.
        ("work", |place| EnclosePlan {
            workspace: place.at("work/sub"),
            cwd: place.at("work/sub"),
            ..place.plan("cat secret; echo T > planted")
        }),
        ("tools", |place| EnclosePlan {
            write: vec![place.at("tools")],
            ..place.plan("cd ../tools; cat secret; echo T > planted")
        }),
        ("tools", |place| EnclosePlan {
            read: vec![place.at("tools/bin")],
            ..place.plan("cd ../tools/bin; cat secret")
        }),
    ];
    for (index, (directory, plan)) in tries.into_iter().enumerate() {
        let place = Place::new();
        std::fs::create_dir_all(place.at("outside/sub")).unwrap();
        std::fs::create_dir_all(place.at("outside/bin")).unwrap();
        for name in ["outside/secret", "outside/sub/secret", "outside/bin/secret"] {
            std::fs::write(place.at(name), "outside").unwrap();
        }
        let mut command = place.command(plan(&place)).await;
        replace(&place, directory, "outside");
        let output = command.current_dir("/").stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!output.status.success() && said.contains("a link leads there"), "{index}: {said}");
        assert!(said.contains("real path"), "{index}: {said}");
        for planted in ["outside/planted", "outside/sub/planted"] {
            assert!(!place.at(planted).exists(), "{index}: {planted}");
        }
        // And from now on it is refused before anything is started.
        let why = place.refused(plan(&place)).await;
        assert!(why.contains("is a link to") && why.contains("real path"), "{index}: {why}");
    }
}

#[test]
fn a_directory_that_is_swapped_with_a_link_during_two_hundred_starts_leads_nowhere() {
    let place = Place::new();
    let (dir, link) = (place.at("work/dd"), place.at("work/ll"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::create_dir(place.at("outside")).unwrap();
    std::fs::write(place.at("outside/secret"), "outside").unwrap();
    std::os::unix::fs::symlink(place.at("outside"), &link).unwrap();
    let plan = || EnclosePlan {
        workspace: dir.clone(),
        cwd: dir.clone(),
        ..place.plan("echo began; cat secret; echo T > planted")
    };
    // Half of them were judged before.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let judged = runtime.block_on(place.enclosures.enclose(plan())).unwrap();
    let stop = AtomicBool::new(false);
    let (mut refused, mut ran) = (0, 0);
    let swap = || {
        let (here, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
        rustix::fs::renameat_with(here, &dir, here, &link, flags).unwrap();
    };
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                swap();
                swap();
            }
        });
        for round in 0..200 {
            let enclosed = match round % 2 {
                0 => Ok(judged.clone()),
                _ => runtime.block_on(place.enclosures.enclose(plan())),
            };
            all.push(enclosed.map(|enclosed| {
                let mut command = command(&plan().env, enclosed);
                command.current_dir("/").stdin(Stdio::null()).output()
            }));
        }
        stop.store(true, Ordering::Relaxed);
    });
    for one in all {
        match one {
            Ok(output) => {
                let output = output.unwrap();
                let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
                assert!(!said.contains("outside"), "{said}");
                match said.contains("began") {
                    true => ran += 1,
                    false => refused += 1,
                }
            }
            Err(SandboxError::BadConfig { .. }) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    eprintln!("{refused} refused, {ran} ran");
    assert!(refused > 0, "no start met the link");
    assert!(!place.at("outside/planted").exists());
    let (status, said) =
        runtime.block_on(place.run(EnclosePlan { argv: vec!["pwd".into()], ..plan() }));
    assert!(status.success() && said.trim() == dir.to_str().unwrap(), "{said}");
}
