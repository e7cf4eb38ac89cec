//! The first start is killed while it creates its files; the next one must work.

use std::path::Path;
use std::time::{Duration, Instant};

use overmind_testkit::soak;

use super::daemon::{Daemon, Places, Setup, Start, pause};
use super::evidence::data_directory;
use super::rng::Rng;

/// The files that a first start creates, in order. It is killed a moment after each appears.
const MADE: &[&str] = &[
    "overmind.pid",
    "admin.token",
    "token.key",
    "overmind.sock",
    "agents.sock",
    "overmind.db",
    "overmind.db-journal",
    "overmind.db-wal",
    "checkpoint.key.new",
    "checkpoint.key",
    "overmind.db.witness",
    "processes",
    "server.json",
];
/// The file that a first start has for the shortest time, and at the most delicate one: a kill
/// then leaves a database that only a writer can read.
const DELICATE: &str = "overmind.db-journal";

/// Wanted kills at that moment in every run of the tests and in one of `cargo xtask soak`, and how many
/// first starts may be killed to get them.
const HOT: (u32, u32) = (1, 4);
const TRIES: usize = 80;

/// Kills first starts at each of these moments, then starts each data directory again.
pub(crate) async fn kill_first_starts(rng: &mut Rng) {
    let (every, wanted) = soak::count((3, HOT.0), (1, HOT.1));
    let first = usize::try_from(rng.below(every as u64)).expect("less than 3");
    for made in MADE.iter().skip(first).step_by(every) {
        let after = rng.millis(0, 3);
        kill_when(made, after, |data| data.join(made).exists()).await;
    }
    let mut hot = 0;
    for _ in 0..TRIES {
        hot += u32::from(kill_when(DELICATE, Duration::ZERO, is_hot).await);
        if hot == wanted {
            return;
        }
    }
    panic!("of {TRIES} kills, {hot} came while the database was made, and {wanted} are wanted");
}

/// The database has its first page, and a journal to roll it back.
fn is_hot(data: &Path) -> bool {
    let begun = std::fs::metadata(data.join("overmind.db")).is_ok_and(|found| found.len() > 0);
    begun && data.join(DELICATE).exists()
}

/// One first start that is killed so long after `moment`, and a second one. Whether the kill left
/// a hot journal.
async fn kill_when(made: &str, after: Duration, moment: impl Fn(&Path) -> bool) -> bool {
    let places = Places::new();
    let (data, setup) = (places.data(), Setup { max_running: 4, ..Setup::default() });
    let mut daemon = Daemon::spawn(&places, &setup);
    let began = Instant::now();
    // Looked for without a pause: some moments last less than a millisecond.
    while !moment(&data) && !data.join("server.json").exists() && daemon.ended().is_none() {
        assert!(began.elapsed() < Duration::from_secs(30), "{made}:\n{}", places.log_tail());
    }
    if !after.is_zero() {
        pause(after).await;
    }
    daemon.kill(&places).await;
    let hot = is_hot(&data);

    let mut daemon = Daemon::spawn(&places, &setup);
    match daemon.ready(&places).await {
        Start::Ready(client) => {
            let audit = client.audit_verify().await.expect("a ready daemon answers");
            assert_eq!(audit.findings, [], "killed after {made}");
        }
        Start::Died(status) => {
            panic!("killed after {made}, it never starts again ({status}):\n{}", places.log_tail())
        }
    }
    daemon.ask_to_stop();
    assert!(daemon.wait().await.success(), "{}", places.log_tail());
    let left = data_directory(&data, true);
    assert_eq!(left, (Vec::new(), Vec::new()), "litter and locks, killed after {made}");
    hot
}
