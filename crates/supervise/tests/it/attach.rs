//! Viewers.

use std::time::Duration;

use overmind_core::process::{
    AttachOptions, Attachment, End, Ended, ProcessError, ProcessKey, ProcessSpec, Processes, Seen,
    TerminalSize,
};

use crate::common::{PATIENCE, Place, TERMINAL, first, session, shell};

const LIMIT: Duration = Duration::from_secs(10);

fn sized(columns: u16, rows: u16) -> AttachOptions {
    AttachOptions { size: Some(TerminalSize { columns, rows }), ..AttachOptions::default() }
}

/// Reads until something was seen, and answers all that was.
async fn until(viewer: &mut Box<dyn Attachment>, what: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(what) {
        let next = tokio::time::timeout(PATIENCE, viewer.next()).await;
        match next.unwrap_or_else(|_| panic!("{what}: {}", String::from_utf8_lossy(&seen))).unwrap()
        {
            Seen::Output(bytes) => seen.extend(bytes),
            other => panic!("{other:?} before {what}"),
        }
    }
    String::from_utf8(seen).unwrap()
}

async fn echo(place: &Place) -> ProcessKey {
    let key = first(session());
    let script = "stty -echo; trap 'stty size' WINCH; echo ready; while :; do read line && echo \"<$line>\"; done";
    place.supervisor.start(ProcessSpec { io: TERMINAL, ..shell(key, script) }).await.unwrap();
    place.until_says(key.session, "ready").await;
    key
}

#[tokio::test]
async fn two_viewers_see_the_same_and_a_read_only_viewer_cannot_type() {
    let place = Place::new();
    let key = echo(&place).await;
    let mut one = place.supervisor.attach(key, AttachOptions::default()).await.unwrap();
    let looking = AttachOptions { read_only: true, ..AttachOptions::default() };
    let mut two = place.supervisor.attach(key, looking).await.unwrap();
    one.write(b"hello\n".to_vec(), LIMIT).await.unwrap();
    let seen = until(&mut one, "<hello>").await;
    assert!(seen.starts_with("ready\r\n"), "what came before is shown first: {seen}");
    assert_eq!(until(&mut two, "<hello>").await, seen);
    let refused = two.write(b"x".to_vec(), LIMIT).await.unwrap_err();
    assert!(matches!(refused, ProcessError::ReadOnly(_)), "{refused}");
    place.supervisor.end(key, End::Kill, None).await.unwrap();
    for viewer in [&mut one, &mut two] {
        loop {
            match tokio::time::timeout(PATIENCE, viewer.next()).await.unwrap().unwrap() {
                Seen::Output(_) => {}
                Seen::Ended(Ended::Exited(_)) => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(viewer.next().await, Ok(Seen::Ended(_))), "and again");
    }
    assert!(place.supervisor.attach(key, AttachOptions::default()).await.is_err());
}

#[tokio::test]
async fn the_terminal_has_the_size_of_the_last_active_viewer() {
    let place = Place::new();
    let key = echo(&place).await;
    let mut small = place.supervisor.attach(key, sized(90, 20)).await.unwrap();
    until(&mut small, "20 90").await;
    let mut large = place.supervisor.attach(key, sized(200, 50)).await.unwrap();
    until(&mut large, "50 200").await;
    // A read-only viewer has no influence.
    let looking = AttachOptions { read_only: true, ..sized(10, 10) };
    let mut idle = place.supervisor.attach(key, looking).await.unwrap();
    idle.resize(TerminalSize { columns: 11, rows: 11 }).await.unwrap();
    small.write(b"mine\n".to_vec(), LIMIT).await.unwrap();
    let seen = until(&mut small, "<mine>").await;
    assert!(seen.contains("20 90") && !seen.contains("11 11"), "{seen}");
    small.resize(TerminalSize { columns: 91, rows: 21 }).await.unwrap();
    until(&mut small, "21 91").await;
    // It disconnects: the other viewer's size counts again.
    drop(small);
    let seen = until(&mut large, "21 91").await;
    // Both sizes may have arrived in one piece.
    if !seen.rsplit("21 91").next().is_some_and(|after| after.contains("50 200")) {
        until(&mut large, "50 200").await;
    }
    place.supervisor.end(key, End::Kill, None).await.unwrap();
    place.exit(key).await;
}

#[tokio::test]
async fn a_slow_viewer_does_not_block_others_and_gets_a_gap() {
    let place = Place::new();
    let key = first(session());
    let script = "echo begin; read x; seq 1 1500000; echo finished; read y";
    place.supervisor.start(ProcessSpec { io: TERMINAL, ..shell(key, script) }).await.unwrap();
    let mut slow = place.supervisor.attach(key, AttachOptions::default()).await.unwrap();
    until(&mut slow, "begin").await;
    place.supervisor.write(key, b"\n".to_vec(), LIMIT).await.unwrap();
    // It reads nothing at all, and the program still ends.
    place.supervisor.log(key.session, Default::default()).await.unwrap();
    crate::common::eventually("it has written all", async || {
        place.supervisor.screen(key.session, 3).await.unwrap().lines.iter().any(|l| l == "finished")
    })
    .await;
    let mut skipped = 0;
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("finished") {
        match tokio::time::timeout(PATIENCE, slow.next()).await.unwrap().unwrap() {
            Seen::Output(bytes) => seen.extend(bytes),
            Seen::Skipped(bytes) => skipped += bytes,
            other @ (Seen::Screen(_) | Seen::Ended(_)) => panic!("{other:?}"),
        }
    }
    assert!(skipped > 5 << 20, "{skipped}");
    assert!(seen.len() < 2 << 20, "{}", seen.len());
    place.supervisor.end(key, End::Kill, None).await.unwrap();
    place.exit(key).await;
}

/// The screen that a person sees through a viewer.
struct Person {
    viewer: Box<dyn Attachment>,
    screen: vt100::Parser,
    /// How often the screen was redrawn, and how much was left out.
    painted: u32,
    skipped: u64,
}

impl Person {
    async fn at(place: &Place, key: ProcessKey, options: AttachOptions) -> Self {
        let options = AttachOptions { paint: true, ..options };
        let viewer = place.supervisor.attach(key, options).await.unwrap();
        Self { viewer, screen: vt100::Parser::new(24, 80, 0), painted: 0, skipped: 0 }
    }

    async fn sees(&mut self, what: &str) {
        while !self.screen.screen().contents().contains(what) {
            let next = tokio::time::timeout(PATIENCE, self.viewer.next()).await;
            let seen =
                next.unwrap_or_else(|_| panic!("{what}: {}", self.screen.screen().contents()));
            match seen.unwrap() {
                Seen::Output(bytes) => self.screen.process(&bytes),
                Seen::Screen(painted) => {
                    self.painted += 1;
                    self.skipped += painted.skipped;
                    self.screen.process(&painted.bytes);
                }
                other @ (Seen::Skipped(_) | Seen::Ended(_)) => panic!("{other:?} before {what}"),
            }
        }
    }
}

#[tokio::test]
async fn a_late_viewer_gets_the_current_screen() {
    let place = Place::new();
    let key = first(session());
    let script = "stty -echo; echo beneath; printf '\\033[?1049h\\033[2J\\033[5;10Habove\\033[?25l'; \
                  read line; printf '\\033[?1049l'; echo \"left with $line\"; read line";
    place.supervisor.start(ProcessSpec { io: TERMINAL, ..shell(key, script) }).await.unwrap();
    place.until_says(key.session, "above").await;
    let mut late = Person::at(&place, key, AttachOptions::default()).await;
    late.sees("above").await;
    let screen = late.screen.screen();
    assert!(screen.alternate_screen() && screen.hide_cursor());
    assert_eq!(screen.contents().trim(), "above");
    assert_eq!(screen.rows(0, 80).nth(4).unwrap(), "         above");
    // The program leaves the alternate screen, and the earlier screen is visible.
    late.viewer.write(b"words\n".to_vec(), LIMIT).await.unwrap();
    late.sees("left with words").await;
    assert_eq!(late.screen.screen().contents().trim(), "beneath\nleft with words");
    assert_eq!((late.painted, late.skipped), (1, 0));
    place.supervisor.end(key, End::Kill, None).await.unwrap();
    place.exit(key).await;
    // For pipes there is no screen.
    let piped = first(session());
    place.supervisor.start(shell(piped, "sleep 100")).await.unwrap();
    let options = AttachOptions { paint: true, ..AttachOptions::default() };
    let refused = place.supervisor.attach(piped, options).await.unwrap_err();
    assert!(matches!(refused, ProcessError::NoTerminal(_)), "{refused}");
    place.supervisor.end(piped, End::Kill, None).await.unwrap();
    place.exit(piped).await;
}

#[tokio::test]
async fn a_slow_viewer_gets_the_current_screen() {
    let place = Place::new();
    let key = first(session());
    let script = "echo begin; read x; seq 1 1500000; echo finished; read y";
    place.supervisor.start(ProcessSpec { io: TERMINAL, ..shell(key, script) }).await.unwrap();
    let mut slow = Person::at(&place, key, AttachOptions::default()).await;
    slow.sees("begin").await;
    slow.viewer.write(b"\n".to_vec(), LIMIT).await.unwrap();
    crate::common::eventually("it has written all", async || {
        place.supervisor.screen(key.session, 3).await.unwrap().lines.iter().any(|l| l == "finished")
    })
    .await;
    slow.sees("1499990\n1499991").await;
    slow.sees("1500000\nfinished").await;
    assert!(slow.painted > 1 && slow.skipped > 5 << 20, "{} {}", slow.painted, slow.skipped);
    place.supervisor.end(key, End::Kill, None).await.unwrap();
    place.exit(key).await;
}
