//! A mailbox in random schedules: readers that acknowledge, forget and give back, time that passes,
//! people who revive the dead.
//!
//! Whatever happens, each letter ends: acknowledged, or dead for a reason. It is handed out at most
//! [`ATTEMPTS`] times without a revival, never while somebody holds it, never after its time, and it
//! dies at the very moment that was foretold.

use std::time::Duration;

use overmind_core::ids::{AgentId, ColonyId, LetterId};
use overmind_core::mesh::{
    ATTEMPTS, Dead, LAST_REDELIVERY, Letter, LetterMark, LetterState, Priority,
};
use overmind_core::time::Timestamp;
use serde_json::Value;

use crate::properties::rng::Rng;

/// Schedules in every run, and in `cargo xtask soak`.
const SCHEDULES: (u64, u64) = (20_000, 200_000);
const STEPS: u64 = 60;
const SEED: u64 = 4711;

fn letter(rng: &mut Rng, n: u128, now: Timestamp) -> Letter {
    let ttl = Duration::from_secs(1 + rng.below(2_000));
    Letter {
        id: LetterId::from_u128(n),
        colony: ColonyId::DEFAULT,
        to: AgentId::from_u128(1),
        from: "a".into(),
        topic: None,
        kind: "query".into(),
        payload: Value::Null,
        workflow: None,
        reply_to: None,
        priority: Priority::Normal,
        sent_at: now,
        expires_at: (rng.below(3) == 0).then(|| now.after(ttl)),
        mark: LetterMark::fresh(now),
        place: u64::try_from(n).expect("a few"),
    }
}

/// One message with the deliveries that its readers got.
struct Sent {
    letter: Letter,
    /// Since it was sent, or revived.
    readings: u32,
    held_until: Timestamp,
    gone: bool,
}

/// The effect of the sweep on it.
fn bury(sent: &mut Sent, now: Timestamp) {
    if let Some(why) = sent.letter.fate(now) {
        let foretold = sent.letter.dies_at().expect("what dies was going to");
        assert!(foretold <= now, "it died before its time");
        match why {
            Dead::Unacknowledged => assert_eq!(sent.readings, ATTEMPTS),
            Dead::Expired => assert!(sent.letter.expires_at.is_some_and(|at| at <= now)),
        }
        sent.letter.mark =
            LetterMark { dead: Some(why), holder: None, session: None, ..sent.letter.mark };
    } else if sent.letter.mark.dead.is_none() {
        assert!(sent.letter.dies_at().is_none_or(|at| at > now), "it should have died");
    }
}

fn step(rng: &mut Rng, sent: &mut Sent, now: Timestamp) {
    let dead = sent.letter.mark.dead;
    match rng.below(8) {
        0..4 => {
            let readable =
                sent.letter.state(now) == LetterState::Waiting && sent.letter.fate(now).is_none();
            if !readable {
                return;
            }
            assert!(now >= sent.held_until, "somebody holds it");
            assert!(sent.letter.expires_at.is_none_or(|at| at > now), "its time was over");
            sent.letter.mark = sent.letter.mark.read(now, None, None);
            sent.readings += 1;
            assert!(sent.readings <= ATTEMPTS, "handed out too often");
            assert_eq!(sent.letter.mark.attempts, sent.readings);
            sent.held_until = sent.letter.mark.visible_at;
            assert_eq!(sent.letter.state(now), LetterState::Held);
        }
        4 => sent.gone = rng.one_in(12),
        5 | 6 if dead.is_none() => {
            let wait = Duration::from_secs(rng.below(60));
            sent.letter.mark = sent.letter.mark.given_back(now, wait);
            sent.held_until = now.after(wait);
        }
        5 => {
            // A person revives it: its deliveries start from zero, and it does not expire again at once.
            sent.letter.mark = LetterMark::fresh(now);
            sent.letter.expires_at = sent.letter.expires_at.filter(|at| *at > now);
            (sent.readings, sent.held_until) = (0, now);
        }
        _ => bury(sent, now),
    }
}

#[test]
fn twenty_thousand_schedules_end_every_message_within_its_deliveries() {
    let (mut acknowledged, mut unacknowledged, mut expired) = (0_u32, 0_u32, 0_u32);
    for schedule in 0..crate::count(SCHEDULES.0, SCHEDULES.1) {
        let mut rng = Rng::new(SEED + schedule);
        let mut now = Timestamp::from_micros(0);
        let mut sent =
            Sent { letter: letter(&mut rng, 1, now), readings: 0, held_until: now, gone: false };
        for _ in 0..STEPS {
            if sent.gone {
                break;
            }
            // A crash is no step: the state of a message is its stored state.
            step(&mut rng, &mut sent, now);
            now = now.after(Duration::from_millis(rng.below(120_000)));
        }
        // Left alone with readers that forget, it ends after a bounded time.
        let bound = LAST_REDELIVERY * (ATTEMPTS + 1);
        let end = now.after(bound);
        while !sent.gone && sent.letter.mark.dead.is_none() {
            assert!(now <= end, "schedule {schedule}: {:?} does not end", sent.letter);
            bury(&mut sent, now);
            if sent.letter.state(now) == LetterState::Waiting {
                sent.letter.mark = sent.letter.mark.read(now, None, None);
                sent.readings += 1;
            }
            now = sent.letter.mark.visible_at.max(now.after(Duration::from_millis(1)));
        }
        match sent.letter.mark.dead {
            _ if sent.gone => acknowledged += 1,
            Some(Dead::Unacknowledged) => unacknowledged += 1,
            Some(Dead::Expired) => expired += 1,
            None => unreachable!("it has ended"),
        }
    }
    // Schedules without any end of one kind would prove nothing about it.
    assert!(
        acknowledged > 20 && unacknowledged > 20 && expired > 20,
        "{acknowledged} {unacknowledged} {expired}"
    );
}
