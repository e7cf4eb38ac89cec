//! The engine with everything behind it, in this process: steps a second, one step alone, and
//! how fast a recorded session is decided again.

use std::time::{Duration, Instant};

use overmind_cli::bench::engine::{ROUNDS, alone};
use overmind_cli::exit::Failure;
use overmind_core::ids::SessionId;
use overmind_engine::{Caller, Engine};

pub(super) use overmind_cli::bench::engine::{agent, many, prepared, start_app, start_app_with};

use super::approval;
use super::floors::Floors;
use super::{Figure, Goal, Setting, rate};

const SESSIONS: u32 = 64;

pub(super) async fn measure(setting: &Setting, floors: &Floors) -> Result<Vec<Figure>, Failure> {
    let dir = setting.place("engine")?;
    let (short, long) = (setting.count(60).max(10), setting.count(400));
    let app = start_app(&dir).await?;
    prepared(&dir, long, &[("short", short), ("long", long)])?;
    let engine = app.engine();
    for name in ["short", "long"] {
        agent(engine, name).await?;
    }
    // Warm: the first session pays for caches and threads.
    many(engine, "short", 2).await?;

    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let (steps, elapsed) = many(engine, "short", SESSIONS).await?;
        rounds.push(rate(steps, elapsed));
    }
    rounds.sort_by(f64::total_cmp);
    let (step, alone) = alone(engine, "long", floors).await?;
    let verify = verify(engine, alone.id, setting.time(Duration::from_secs(3))).await?;
    let approval = approval::measure(setting, floors, &dir, engine).await?;
    let _ = app.stop(std::future::pending()).await;
    Ok(vec![
        Figure::new("agent steps", rounds[ROUNDS / 2], "steps/s").goal(Goal::Least(2_000.0)).note(
            format!(
                "{SESSIONS} sessions at once, scripted model, one read_file a step, each step \
                 durable before the next; the middle of {ROUNDS} rounds, from {:.0} to {:.0}",
                rounds[0],
                rounds[ROUNDS - 1]
            ),
        ),
        step,
        verify,
        approval,
    ])
}

async fn verify(engine: &Engine, id: SessionId, time: Duration) -> Result<Figure, Failure> {
    let (mut events, mut rounds) = (0_u64, 0_u32);
    let start = Instant::now();
    while rounds == 0 || start.elapsed() < time {
        let report = engine.session_verify(&Caller::admin(), id).await?;
        if let Some(divergence) = report.divergence {
            return Err(Failure::failed(format!("the replay differs at event {}", divergence.seq)));
        }
        events += report.events;
        rounds += 1;
    }
    let each = events / u64::from(rounds);
    let total = f64::from(u32::try_from(events).unwrap_or(u32::MAX));
    Ok(Figure::new("replay verify", rate(total, start.elapsed()), "events/s")
        .goal(Goal::Least(200_000.0))
        .note(format!(
            "one session of {each} events, read from the store and decided again, {rounds} times"
        )))
}
