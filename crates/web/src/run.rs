//! `/runs/{id}`: the timeline of a run, and the actions on it.

use askama::Template;
use http::StatusCode;
use overmind_api::{Event, InboxItem, Run, Timeline, Timestamp};
use overmind_view::{Answer, RunPage, Story, clean, story};
use serde_json::json;

use crate::form::{Fields, encoded};
use crate::page::{Frame, Html, html, see_other};
use crate::port::{Call, Refusal};
use crate::site::Ask;

/// Events per page of the timeline.
const WINDOW: u64 = 400;
/// Largest part of a timeline or a log that is read at once, in bytes.
const MOST: usize = 4 << 20;
const LOG: usize = 64 << 10;

/// The summary at the top of each page of a run.
pub(crate) struct Head {
    pub(crate) run: RunPage,
    /// Title, path and whether it is the page that is shown.
    pub(crate) tabs: Vec<(&'static str, String, bool)>,
    /// The typed values, if they could not be sent.
    pub(crate) draft: (String, String),
}

/// The pages of a run: the last part of the path, and the title.
const TABS: &[(&str, &str)] = &[
    ("", "Timeline"),
    ("terminal", "Terminal"),
    ("changes", "Changes"),
    ("artifacts", "Artifacts"),
    ("log", "Log"),
    ("replay", "Replay"),
];

/// Returns a run, the frame of a page of it, and the present time.
pub(crate) async fn head(
    ask: &Ask<'_>,
    id: &str,
    tab: &str,
    failed: Option<(Refusal, String)>,
) -> Result<(Frame, Head, Run, Timestamp), Refusal> {
    let target = format!("/api/runs/{}", encoded(id));
    let run: Run = ask.port.call(ask.secret, Call::get(target)).await.value()?;
    let target = format!("/api/inbox?run_id={}&limit=20", run.id);
    let waits = ask.port.call(ask.secret, Call::get(target)).await.value();
    let waits: Vec<InboxItem> = waits.unwrap_or_default();
    let now = crate::lists::time(ask, Some(run.finished_at.unwrap_or(run.created_at))).await;
    let view = RunPage::new(&run, &waits, now);
    let shown = TABS.iter().filter(|(part, _)| match *part {
        "changes" => view.has_room,
        "terminal" => view.has_log,
        _ => true,
    });
    let tabs = shown.map(|(part, title)| {
        let path = match *part {
            "" => view.link.clone(),
            part => format!("{}/{part}", view.link),
        };
        (*title, path, *part == tab)
    });
    let (refusal, draft) = match failed {
        Some((refusal, text)) => (Some(refusal), text),
        None => (None, String::new()),
    };
    let head = Head { tabs: tabs.collect(), draft: (String::new(), draft), run: view };
    let title = TABS.iter().find(|(part, _)| *part == tab && !tab.is_empty());
    let title = title
        .map_or_else(|| head.run.name.clone(), |(_, title)| format!("{title} · {}", head.run.name));
    let frame = Frame {
        run: head.run.id.clone(),
        ..Frame::new(title, "/runs", ask.visitor, ask.secret, refusal)
    };
    Ok((frame, head, run, now))
}

/// Returns the id of the newest run with this name; `None` if it is an id already, or no run has
/// the name.
pub(crate) async fn id_of(ask: &Ask<'_>, name: &str) -> Option<String> {
    // An id has an underscore.
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name == "new" || !name.bytes().all(is_name) {
        return None;
    }
    let call = Call::get(format!("/api/runs?view=basic&limit=1&name={name}"));
    let found: Vec<overmind_api::RunBasic> = ask.port.call(ask.secret, call).await.value().ok()?;
    found.first().map(|run| run.id.to_string())
}

#[derive(Template)]
#[template(path = "run.html")]
struct Page {
    frame: Frame,
    head: Head,
    story: Story,
    /// The query of the earlier part.
    earlier: Option<String>,
    /// Whether this is not the latest part.
    old: bool,
    /// The end of its command's output.
    log: String,
}

pub(crate) async fn show(
    ask: &Ask<'_>,
    id: &str,
    failed: Option<(Refusal, String)>,
) -> Result<Html, Refusal> {
    let base = format!("/api/runs/{}", encoded(id));
    let status = failed.as_ref().map_or(StatusCode::OK, |(refusal, _)| refusal.status);
    let (frame, head, run, now) = head(ask, id, "", failed).await?;
    let before = ask.query.get("before").parse::<u64>().ok();
    let end = match before {
        Some(before) => before,
        None => last_event(ask, &base).await?,
    };
    let from = end.saturating_sub(WINDOW);
    let items = timeline(ask, &base, from, before).await?;
    let log = match head.run.has_log {
        true => log(ask, &base).await,
        false => String::new(),
    };
    let page = Page {
        frame,
        story: story(&items, run.created_at, now),
        earlier: (from > 0).then(|| format!("?before={from}")),
        old: before.is_some(),
        head,
        log,
    };
    Ok(html(status, &page))
}

/// Returns the number of the run's last event. A run may have several hundred thousand, so this is
/// a binary search that reads only a few rows.
pub(crate) async fn last_event(ask: &Ask<'_>, base: &str) -> Result<u64, Refusal> {
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

/// Returns the entries after one event, up to another. The result is cut after an entry if it is
/// longer than [`MOST`].
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

pub(crate) async fn log(ask: &Ask<'_>, base: &str) -> String {
    let call = Call::get(format!("{base}/log?tail=200&strip=true")).most(LOG);
    let reply = ask.port.call(ask.secret, call).await;
    match reply.check() {
        Ok(()) => clean::passing(&String::from_utf8_lossy(&reply.body), false).into_owned(),
        Err(_) => String::new(),
    }
}

/// Stops or kills a run, or sends a message to it.
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
        Ok(()) if fields.get("next") == "/" => Ok(see_other("/")),
        Ok(()) => Ok(see_other(&format!("/runs/{}", encoded(id)))),
        Err(refusal) => show(ask, id, Some((refusal, fields.raw("text").to_owned()))).await,
    }
}
