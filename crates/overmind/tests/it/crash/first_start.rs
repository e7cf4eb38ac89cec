//! The first start of all is killed while it makes its files; the next one must not mind.

use std::time::{Duration, Instant};

use super::daemon::{Daemon, Places, Setup, Start, pause};
use super::evidence::data_directory;
use super::rng::Rng;

/// What a first start makes, one after the other. It is killed a moment after each appears.
const MADE: &[&str] = &[
    "overmind.pid",
    "admin.token",
    "token.key",
    "overmind.sock",
    "overmind.db",
    "overmind.db-journal",
    "overmind.db-wal",
    "checkpoint.key.new",
    "checkpoint.key",
    "server.json",
];
/// The file that a first start has for the shortest time, and at the most delicate one: a kill
/// then leaves a database that only a writer can read.
const DELICATE: &str = "overmind.db-journal";

pub(crate) async fn kill_first_starts(rng: &mut Rng) {
    let delicate = std::iter::repeat_n(DELICATE, 16);
    let mut journals = 0;
    for made in MADE.iter().copied().chain(MADE.iter().copied()).chain(delicate) {
        let places = Places::new();
        let setup = Setup { max_running: 4, ..Setup::default() };
        let mut daemon = Daemon::spawn(&places, &setup);
        let file = places.data().join(made);
        let began = Instant::now();
        // Looked for without a pause: some are there for less than a millisecond.
        while !file.exists() && daemon.ended().is_none() {
            assert!(began.elapsed() < Duration::from_secs(30), "{made}:\n{}", places.log_tail());
            if places.data().join("server.json").exists() {
                break;
            }
        }
        pause(rng.millis(0, 3)).await;
        daemon.kill(&places).await;
        journals += u32::from(places.data().join(DELICATE).exists());

        let mut daemon = Daemon::spawn(&places, &setup);
        match daemon.ready(&places).await {
            Start::Ready(client) => {
                let audit = client.audit_verify().await.expect("a ready daemon answers");
                assert_eq!(audit.findings, [], "killed after {made}");
            }
            Start::Died(status) => {
                panic!(
                    "killed after {made}, it never starts again ({status}):\n{}",
                    places.log_tail()
                );
            }
        }
        daemon.ask_to_stop();
        assert!(daemon.wait().await.success(), "{}", places.log_tail());
        let (litter, locks) = data_directory(&places.data(), true);
        assert_eq!((litter, locks), (Vec::new(), Vec::new()), "killed after {made}");
    }
    assert!(journals > 0, "no kill came while the database was made");
}
