//! Declared things: applying many, keeping many silent, fleets of many runs that stay.

use std::time::{Duration, Instant};

use overmind_api::{ResourceApply, RunListQuery};
use overmind_cli::exit::Failure;
use overmind_core::time::Clock as _;
use overmind_node::app::clock::SystemClock;
use serde_json::{Value, json};

use super::lives::{AGENT, Place};
use super::process::{cpu, mib, rss};
use super::{Figure, Goal, Setting, ms, percentile, rate};

/// Documents of one request.
const AT_ONCE: u32 = 1_000;
const SETTLE: Duration = Duration::from_secs(4);
/// At least two passes of each loop over records that own runs, which come every 20 seconds.
const SILENCE: Duration = Duration::from_secs(45);

pub(super) async fn measure(setting: &Setting) -> Result<Vec<Figure>, Failure> {
    let place = Place::open(setting, "resources").await?;
    let applied = setting.count(1_000);
    let took = apply(&place, 0..applied, |n| {
        document(
            "Context",
            &format!("c{n}"),
            &json!({
                "values": {"TONGUE": "en"}, "prompt": "Answer in one line.",
            }),
        )
    })
    .await?;
    let mut figures = vec![
        Figure::new("apply of 1000 resources", ms(took), "ms")
            .goal(Goal::Most(500.0))
            .note("one request, one commit, until it is answered"),
    ];

    sleep(SETTLE).await;
    let before = rss(place.pid());
    let silent = setting.count(10_000);
    apply(&place, 0..silent, |n| {
        document(
            "Ritual",
            &format!("r{n}"),
            &json!({
                "schedule": format!("{} {} 1 1 *", n % 60, n % 24),
                "template": {"agent": AGENT, "task": "x"},
            }),
        )
    })
    .await?;
    // Each ritual's status is written once; only then are they silent.
    let busy = silence(&place).await?;
    let grown = rss(place.pid()).saturating_sub(before);
    figures.push(
        Figure::new("idle cpu of 10000 rituals", busy, "%")
            .goal(Goal::Most(1.0))
            .note("of one processor, while none of them is due"),
    );
    figures.push(
        Figure::new("rss of 10000 rituals", mib(grown), "MiB")
            .goal(Goal::Most(40.0))
            .note("of the server, beyond what it held before"),
    );
    figures.extend(fleet(&place, setting).await?);
    drop(place);
    figures.push(weaver(setting).await?);
    Ok(figures)
}

/// On a separate server, because each pass over fleets reads all of them.
async fn weaver(setting: &Setting) -> Result<Figure, Failure> {
    let place = Place::open(setting, "weaver").await?;
    // A fleet has a pack with the template of its revision.
    apply(&place, 0..setting.count(5_000), |n| {
        document(
            "Fleet",
            &format!("f{n}"),
            &json!({
                "replicas": 0, "template": {"agent": AGENT, "command": ["/bin/cat"]},
            }),
        )
    })
    .await?;
    let busy = silence(&place).await?;
    Ok(Figure::new("idle cpu of 10000 objects of the weaver", busy, "%")
        .goal(Goal::Most(1.0))
        .note("of one processor: 5,000 fleets without runs and the pack of each, while nothing changes"))
}

/// The processor share of the server at rest, in percent.
async fn silence(place: &Place) -> Result<f64, Failure> {
    quiet(place).await?;
    let (worked, began) = (cpu(place.pid()), Instant::now());
    sleep(SILENCE).await;
    let worked = cpu(place.pid()).saturating_sub(worked);
    Ok(worked.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
}

async fn fleet(place: &Place, setting: &Setting) -> Result<Vec<Figure>, Failure> {
    let wanted = setting.count(1_000);
    let began = Instant::now();
    apply(place, 0..1, |_| {
        document(
            "Fleet",
            "bench",
            &json!({
                "replicas": wanted,
                "template": {"agent": AGENT, "command": ["/bin/cat"], "labels": {"app": "bench"}},
            }),
        )
    })
    .await?;
    loop {
        let fleet = place.client.resource_fetch("fleet", "bench").await?;
        let ready = fleet.status.get("ready").and_then(Value::as_u64).unwrap_or_default();
        if ready >= u64::from(wanted) {
            break;
        }
        place.patient(began, "a fleet to start")?;
        sleep(Duration::from_millis(20)).await;
    }
    let started = rate(wanted, began.elapsed());
    let mut took = Vec::new();
    for n in 0..setting.count(40).max(5) {
        let name = format!("bench-{n}");
        let (id, pid) = of_name(place, &name).await?;
        let began = Instant::now();
        let kill = overmind_api::RunStop { kill: true, grace: None };
        place.client.run_stop(&id, kill).await?;
        loop {
            let (now, other) = of_name(place, &name).await?;
            if now != id && other.is_some() && other != pid {
                break;
            }
            place.patient(began, "a run of a fleet to come back")?;
            sleep(Duration::from_millis(2)).await;
        }
        took.push(began.elapsed());
    }
    took.sort_unstable();
    let how = overmind_api::ResourceDeleteQuery::default();
    place.client.resource_delete("fleet", "bench", &how).await?;
    place.end().await?;
    Ok(vec![
        Figure::new("fleet of 1000 runs", started, "runs/s")
            .goal(Goal::Least(300.0))
            .note("of /bin/cat, from the apply until the fleet says that all are ready"),
        Figure::new("heal of one run", ms(percentile(&took, 0.5)), "ms")
            .goal(Goal::Most(50.0))
            .note("in a fleet of a thousand: from the kill until its successor's program runs"),
    ])
}

/// The newest run of a name: its id, and its process while it has one.
async fn of_name(place: &Place, name: &str) -> Result<(String, Option<u32>), Failure> {
    let query =
        RunListQuery { name: Some(name.to_owned()), limit: Some(1), ..RunListQuery::default() };
    let found = place.client.run_list(&query).await?.items;
    let run = found.first().ok_or_else(|| Failure::failed(format!("no run is called {name}")))?;
    Ok((run.id.to_string(), run.process.as_ref().and_then(|process| process.pid)))
}

fn document(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "overmind/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Applies documents, a thousand in a request, and answers how long the first request took.
async fn apply(
    place: &Place,
    numbers: std::ops::Range<u32>,
    document: impl Fn(u32) -> Value,
) -> Result<Duration, Failure> {
    let all: Vec<Value> = numbers.map(document).collect();
    let mut first = None;
    for documents in all.chunks(AT_ONCE as usize) {
        let began = Instant::now();
        let apply = ResourceApply { documents: documents.to_vec(), dry_run: false, prune: None };
        place.client.resource_apply(&apply).await?;
        first.get_or_insert(began.elapsed());
    }
    Ok(first.unwrap_or_default())
}

/// Waits until the server does next to nothing.
async fn quiet(place: &Place) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        let worked = cpu(place.pid());
        sleep(Duration::from_secs(2)).await;
        if cpu(place.pid()).saturating_sub(worked) < Duration::from_millis(100) {
            return Ok(());
        }
        place.patient(began, "the server to come to rest")?;
    }
}

async fn sleep(time: Duration) {
    SystemClock.sleep_until(SystemClock.now().after(time)).await;
}
