//! `/runs/{id}`: what one run did, and what can be done with it.

use askama::Template;
use http::StatusCode;
use overmind_api::{Event, InboxItem, Run, Timeline};
use overmind_view::{Answer, RunPage, Story, clean, story};
use serde_json::json;

use crate::form::{Fields, encoded};
use crate::page::{Frame, Html, html, see_other};
use crate::port::{Call, Refusal};
use crate::site::Ask;

/// Events of a page of the timeline.
const WINDOW: u64 = 400;
/// Most bytes of the timeline that are read at once, and of a log.
const MOST: usize = 4 << 20;
const LOG: usize = 64 << 10;

#[derive(Template)]
#[template(path = "run.html")]
struct Page {
    frame: Frame,
    run: RunPage,
    story: Story,
    /// The query of the part before this one.
    earlier: Option<String>,
    /// This is not the end.
    old: bool,
    /// The end of what its command wrote.
    log: String,
    /// What was typed, if it could not be sent.
    draft: (String, String),
}

pub(crate) async fn show(
    ask: &Ask<'_>,
    id: &str,
    failed: Option<(Refusal, String)>,
) -> Result<Html, Refusal> {
    let base = format!("/api/runs/{}", encoded(id));
    let get = |target: String| ask.port.call(ask.secret, Call::get(target));
    let run: Run = get(base.clone()).await.value()?;
    let waits: Vec<InboxItem> =
        get(format!("/api/inbox?run_id={}&limit=20", run.id)).await.value().unwrap_or_default();
    let now = crate::lists::time(ask, Some(run.finished_at.unwrap_or(run.created_at))).await;
    let before = ask.query.get("before").parse::<u64>().ok();
    let end = match before {
        Some(before) => before,
        None => last_event(ask, &base).await?,
    };
    let from = end.saturating_sub(WINDOW);
    let items = timeline(ask, &base, from, before).await?;
    let view = RunPage::new(&run, &waits, now);
    let log = match view.has_log {
        true => log(ask, &base).await,
        false => String::new(),
    };
    let (refusal, draft) = match failed {
        Some((refusal, text)) => (Some(refusal), text),
        None => (None, String::new()),
    };
    let status = refusal.as_ref().map_or(StatusCode::OK, |refusal| refusal.status);
    let frame = Frame {
        run: view.id.clone(),
        ..Frame::new(view.name.clone(), "/runs", ask.visitor, ask.secret, refusal)
    };
    let page = Page {
        frame,
        story: story(&items, now),
        earlier: (from > 0).then(|| format!("?before={from}")),
        old: before.is_some(),
        run: view,
        log,
        draft: (String::new(), draft),
    };
    Ok(html(status, &page))
}

/// The number of the run's last event. Runs have up to some hundred thousand: the number is
/// searched for, so that a page costs a handful of rows.
async fn last_event(ask: &Ask<'_>, base: &str) -> Result<u64, Refusal> {
    let any_after = async |seq: u64| {
        let call = Call::get(format!("{base}/events?limit=1&cursor={seq}"));
        let events: Vec<Event> = ask.port.call(ask.secret, call).await.value()?;
        Ok::<bool, Refusal>(!events.is_empty())
    };
    let (mut low, mut high) = (0, WINDOW);
    while any_after(high).await? {
        (low, high) = (high, high.saturating_mul(2));
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if any_after(middle).await? { low = middle } else { high = middle }
    }
    Ok(high)
}

/// The entries after one event, up to another. What is longer than [`MOST`] is cut at an entry.
async fn timeline(
    ask: &Ask<'_>,
    base: &str,
    from: u64,
    before: Option<u64>,
) -> Result<Vec<Timeline>, Refusal> {
    let target = format!("{base}/replay?last_event_id={from}.254");
    let reply = ask.port.call(ask.secret, Call::get(target).most(MOST)).await;
    if reply.status == StatusCode::NO_CONTENT {
        return Ok(Vec::new());
    }
    reply.check()?;
    let text = String::from_utf8_lossy(&reply.body);
    let mut items = Vec::new();
    for message in text.split("\n\n") {
        let lines = message.lines();
        let id = lines.clone().find_map(|line| line.strip_prefix("id: ")).unwrap_or_default();
        let seq = id.split('.').next().and_then(|seq| seq.parse::<u64>().ok());
        if before.is_some() && seq.is_some_and(|seq| Some(seq) > before) {
            break;
        }
        let data: Vec<&str> = lines.filter_map(|line| line.strip_prefix("data: ")).collect();
        if let Ok(item) = serde_json::from_str(&data.join("\n")) {
            items.push(item);
        }
    }
    Ok(items)
}

async fn log(ask: &Ask<'_>, base: &str) -> String {
    let call = Call::get(format!("{base}/log?tail=200&strip=true")).most(LOG);
    let reply = ask.port.call(ask.secret, call).await;
    match reply.check() {
        Ok(()) => clean::passing(&String::from_utf8_lossy(&reply.body), false).into_owned(),
        Err(_) => String::new(),
    }
}

/// Stops, kills, or says more.
pub(crate) async fn act(
    ask: &Ask<'_>,
    id: &str,
    verb: &str,
    fields: &Fields,
) -> Result<Html, Refusal> {
    let base = format!("/api/runs/{}", encoded(id));
    let (target, body) = match verb {
        "stop" => (format!("{base}/stop"), json!({})),
        "kill" => (format!("{base}/stop"), json!({"kill": true})),
        _ => (format!("{base}/send"), json!({"text": fields.raw("text")})),
    };
    match ask.port.call(ask.secret, Call::post(target, body)).await.check() {
        Ok(()) => Ok(see_other(&format!("/runs/{}", encoded(id)))),
        Err(refusal) => show(ask, id, Some((refusal, fields.raw("text").to_owned()))).await,
    }
}
