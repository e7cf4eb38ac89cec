//! Prepared inits: the same sandbox as without them, for one call, without remains.

use std::path::PathBuf;

use overmind_core::sandbox::{Exit, Sandbox, SandboxLimits, SandboxRequest};
use overmind_sandbox::attest::{Facts, Traps};
use overmind_sandbox::{Namespace, Options};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Place, init_program, until};

fn driver(waiting: usize) -> Namespace {
    Namespace::new(Options { init_program: init_program(), waiting, ..Options::default() })
}

async fn warmed(driver: &Namespace, place: &Place) {
    driver.run(place.sh("true")).await.unwrap();
    until("an init waits", || driver.warmth().waiting == 1).await;
}

/// The probe looks from inside, as a command, with and without the wait.
#[tokio::test]
async fn the_probe_finds_the_same_in_a_prepared_init() {
    let dir = tempfile::Builder::new().prefix("shown-").tempdir_in("/opt").unwrap();
    let program = dir.path().join("init");
    std::fs::copy(init_program(), &program).unwrap();
    let options = Options {
        init_program: init_program(),
        read_only: vec![dir.path().to_owned()],
        waiting: 1,
        ..Options::default()
    };
    let driver = Namespace::new(options);
    let place = Place::new();
    let writable = ["/tmp", "/dev/shm"].map(PathBuf::from);
    let look = async || {
        let traps = Traps::set(&[], &[], &writable).unwrap();
        let mut request =
            place.request(&[program.to_str().unwrap(), overmind_sandbox::attest::ARGUMENT]);
        request.stdin = traps.stdin();
        let result = driver.run(request).await.unwrap();
        assert_eq!(result.exit, Exit::Code(0), "{result:?}");
        let nonce = &traps.questions().nonce;
        let mut facts = Facts::parse(result.stdout.text.as_bytes(), nonce).unwrap();
        facts.nonce.clear();
        // Each sandbox has its own; the probe of the attestation compares them with the host's.
        for identity in facts.namespaces.values_mut() {
            identity.clear();
        }
        facts
    };
    let cold = look().await;
    assert_eq!(driver.warmth().served, 0);
    until("an init waits", || driver.warmth().waiting == 1).await;
    let warm = look().await;
    assert_eq!(driver.warmth().served, 1);
    assert_eq!(warm, cold);
}

#[tokio::test]
async fn an_init_serves_one_call_with_the_limits_of_that_call() {
    let driver = driver(1);
    let (one, other) = (Place::new(), Place::new());
    std::fs::write(other.workspace().join("hello"), "other\n").unwrap();
    warmed(&driver, &one).await;
    let look = |place: &Place, limits: SandboxLimits| {
        let script = "ls /tmp /dev/shm; touch /tmp/mark /dev/shm/mark; cat hello; \
                      df -k /tmp | tail -1 | awk '{ print $2 }'; ulimit -n";
        SandboxRequest { limits, ..place.sh(script) }
    };
    for (place, says, kib, files) in
        [(&one, "hello", 1 << 10, 100), (&other, "other", 8 << 10, 200), (&one, "hello", 64, 50)]
    {
        until("an init waits", || driver.warmth().waiting == 1).await;
        let limits =
            SandboxLimits { tmp_bytes: kib << 10, open_files: files, ..SandboxLimits::default() };
        let result = driver.run(look(place, limits)).await.unwrap();
        let expected = format!("/dev/shm:\n\n/tmp:\n{says}\n{kib}\n{files}\n");
        assert_eq!(result.stdout.text, expected, "{result:?}");
    }
    assert_eq!(driver.warmth().served, 3);
}

#[tokio::test]
async fn a_replaced_workspace_directory_is_shown_in_its_new_state() {
    let driver = driver(1);
    let place = Place::new();
    warmed(&driver, &place).await;
    let workspace = place.workspace();
    std::fs::rename(&workspace, workspace.with_extension("old")).unwrap();
    std::fs::create_dir(&workspace).unwrap();
    std::fs::write(workspace.join("hello"), "new\n").unwrap();
    let result = driver.run(place.sh("cat hello")).await.unwrap();
    assert_eq!(result.stdout.text, "new\n");
    assert_eq!(driver.warmth().served, 1);
}

#[tokio::test]
async fn a_prepared_init_that_ended_is_replaced() {
    let driver = driver(1);
    let place = Place::new();
    warmed(&driver, &place).await;
    let (launchers, inits) = family().await;
    for launcher in &launchers {
        kill_process(*launcher, Signal::KILL).unwrap();
    }
    let all = || launchers.iter().chain(&inits).all(|pid| ended(*pid));
    until("it has ended", all).await;
    let result = driver.run(place.sh("echo ran")).await.unwrap();
    assert_eq!((result.exit, result.stdout.text.as_str()), (Exit::Code(0), "ran\n"));
    assert_eq!(driver.warmth().served, 0);
}

#[tokio::test]
async fn an_init_that_ends_after_its_order_is_replaced() {
    let driver = driver(1);
    let place = Place::new();
    warmed(&driver, &place).await;
    let (launchers, inits) = family().await;
    let all: Vec<Pid> = launchers.iter().chain(&inits).copied().collect();
    // They wait as before, and read nothing any more.
    for pid in &all {
        kill_process(*pid, Signal::STOP).unwrap();
    }
    let end = async {
        until("the call has taken it", || driver.warmth().served == 1).await;
        for pid in &all {
            kill_process(*pid, Signal::KILL).unwrap();
        }
    };
    let (result, ()) = tokio::join!(driver.run(place.sh("echo ran")), end);
    let result = result.unwrap();
    assert_eq!((result.exit, result.stdout.text.as_str()), (Exit::Code(0), "ran\n"));
}

#[tokio::test]
async fn the_end_discards_prepared_sandboxes() {
    let driver = driver(1);
    let place = Place::new();
    warmed(&driver, &place).await;
    let launchers = children(std::process::id());
    assert!(!launchers.is_empty());
    driver.settled();
    assert_eq!(driver.warmth().waiting, 0);
    until("all have ended", || launchers.iter().all(|pid| ended(*pid))).await;
    driver.run(place.sh("true")).await.unwrap();
    assert_eq!(driver.warmth().waiting, 0, "and none is kept any more");
}

/// The children of a process. Each test is a separate process.
fn children(of: u32) -> Vec<Pid> {
    let of = of.to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let (_, rest) = stat.rsplit_once(')').unwrap();
        if rest.split_ascii_whitespace().nth(1) == Some(&of) {
            found.extend(Pid::from_raw(entry.file_name().to_string_lossy().parse().unwrap()));
        }
    }
    found
}

/// The processes that started inits, and the inits, once there is one: a launcher counts as waiting before
/// its init is there.
async fn family() -> (Vec<Pid>, Vec<Pid>) {
    let launchers = children(std::process::id());
    let inits =
        || -> Vec<Pid> { launchers.iter().flat_map(|pid| children(number(*pid))).collect() };
    until("the init is there", || !inits().is_empty()).await;
    let inits = inits();
    (launchers, inits)
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_pid().unsigned_abs()
}

fn ended(pid: Pid) -> bool {
    match std::fs::read_to_string(format!("/proc/{}/stat", number(pid))) {
        Ok(stat) => stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z")),
        Err(_) => true,
    }
}
