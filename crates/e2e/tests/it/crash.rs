//! The crash test: the real binary under load, killed again and again, then examined.
//!
//! Each round starts `overmind up` on the same data directory, loads it through the API, and
//! kills it with SIGKILL: at a random moment, while it starts, while it shuts down in good order,
//! or at a failpoint, by itself. A harness in the place of the users repeats requests that were
//! cut off (with the same Idempotency-Key) and answers what runs ask, honestly: asked whether a
//! command was done, it looks at the mark that the command makes. In the end one daemon brings
//! everything to its end, and a checker compares what was acknowledged, what the log says, what
//! the rows say and what the world shows ([`check::Rule`] lists the rules).
//!
//! The second test feeds the checker doctored copies: it must object to each of them.
//!
//! SIGKILL leaves the page cache alone, so this says nothing about a power cut; that the store
//! asks for an fsync at every commit is the store's own test.
//!
//! `OVERMIND_SEED` chooses the schedule (chance in the machine's timing remains). `cargo xtask soak kills`
//! kills often enough that each failpoint kills at least once; every run of the tests kills a few times.

mod agents;
mod check;
pub(crate) mod daemon;
mod doctor;
mod evidence;
mod first_start;
mod harness;
mod ledger;
mod load;
pub(crate) mod rng;

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Instant;

use check::check;
use evidence::Evidence;
use harness::Harness;
use overmind_testkit::soak;

/// Deaths by SIGKILL in every run of the tests, and in one of `cargo xtask soak`.
const KILLS: (u32, u32) = (6, 200);
/// Events that a run of this test must contain to be meaningful.
const MUST_SEE: &[&str] = &[
    "approval.answered",
    "effect.redone",
    "memory.stored",
    "run.awaiting_input",
    "run.input_received",
    "run.recovered",
];
/// How often the store of a killed daemon is examined in place.
const LOOKS: u32 = 4;

#[expect(clippy::disallowed_methods, reason = "a number from the person at the keyboard")]
pub(crate) fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`, not a number")))
}

fn seed() -> u64 {
    let seed = setting("OVERMIND_SEED").unwrap_or_else(|| RandomState::new().hash_one("crash"));
    eprintln!("crash test: OVERMIND_SEED={seed}");
    seed
}

#[track_caller]
fn assert_clean(when: &str, evidence: &Evidence, harness: &Harness) {
    let violations = check(evidence);
    if violations.is_empty() {
        return;
    }
    let shown: Vec<_> =
        violations.iter().take(20).map(|violation| format!("{violation:?}")).collect();
    // The whole story of the first session that is wrong: it will not happen again on demand.
    let story = evidence.stories.iter().find_map(|(session, story)| {
        let name = session.to_string();
        violations.iter().any(|violation| violation.about.starts_with(&name)).then_some(story)
    });
    let story: Vec<_> = story
        .into_iter()
        .flat_map(|story| &story.events)
        .map(|event| {
            let payload: String = event.log.payload.chars().take(400).collect();
            format!("{:4} {} {} {payload}", event.log.seq, event.log.ts, event.kind())
        })
        .collect();
    panic!(
        "{when}, {} violations:\n{}\n\nthe first one's log:\n{}\n\nthe daemons said:\n{}",
        violations.len(),
        shown.join("\n"),
        story.join("\n"),
        harness.world.places.log_tail()
    );
}

#[tokio::test]
async fn kills_at_any_moment_lose_nothing_and_double_nothing() {
    let kills = soak::count(KILLS.0, KILLS.1);
    let soaking = kills == KILLS.1;
    let began = Instant::now();
    let mut harness = Harness::new(seed());
    harness.prepare().await;
    let mut next_look = kills / (LOOKS + 1);
    // Kills during the preparation come first.
    let kills = harness.tally.kills + kills;
    while harness.tally.kills < kills || (soaking && harness.unfired().is_some()) {
        assert!(harness.tally.kills < kills * 3, "{:?} does not fire", harness.unfired());
        harness.round().await;
        if harness.tally.kills >= next_look && harness.tally.kills < kills {
            next_look += kills / (LOOKS + 1);
            let evidence = harness.evidence(false).await;
            let when = format!("after {} kills", harness.tally.kills);
            assert_clean(&when, &evidence, &harness);
        }
    }
    let loaded = began.elapsed();
    let evidence = harness.settle().await;
    assert_clean("in the end", &evidence, &harness);

    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for story in evidence.stories.values() {
        *ends.entry(story.row.status.as_str()).or_default() += 1;
        for event in &story.events {
            *seen.entry(event.kind()).or_default() += 1;
        }
    }
    let answers = harness.world.ledger.borrow().answers.clone();
    eprintln!(
        "crash test: {:?}\n{} sessions {ends:?}, {} events {seen:?}, answers {answers:?}; \
         {loaded:.1?} of load, {:.1?} in all",
        harness.tally,
        evidence.stories.len(),
        evidence.globals.len(),
        began.elapsed(),
    );
    // Otherwise a test without interesting crashes would pass.
    assert!(ends.contains_key("succeeded"), "no run has come to its end: {ends:?}");
    if soaking {
        for kind in MUST_SEE {
            assert!(seen.contains_key(kind), "no crash had to do with `{kind}`");
        }
        assert!(answers.contains_key("unknown"), "no command was ever caught in the middle");
    }
}

#[tokio::test]
async fn a_killed_first_start_does_not_prevent_the_next_start() {
    first_start::kill_first_starts(&mut rng::Rng::new(seed())).await;
}

#[tokio::test]
async fn the_checker_rejects_every_manipulated_copy() {
    let mut harness = Harness::new(seed());
    harness.prepare().await;
    // Not those that only a large log passes: the copies are to be small.
    harness.tally.fired.retain(|name, _| !name.starts_with("store.wal"));
    for _ in 0..soak::count(2, 8) {
        harness.round().await;
    }
    // Enough of each agent that something of every kind happens.
    harness.plan_some_of_each(3);
    let evidence = harness.settle().await;
    assert_clean("before doctoring", &evidence, &harness);
    doctor::every_rule_has_teeth(&evidence, &harness).await;
}
