//! Further pages of a run: its changes, artifacts, log and steps.

use askama::Template;
use http::StatusCode;
use overmind_api::{Agent, Artifact, Diff, Event, RoomWork, Run, Step, VerifyReport};
use overmind_view::{
    Answer, ArtifactRow, Changes, Compared, LogRow, Row, StepView, TerminalPanel, Verdict,
};
use serde_json::{Map, Value, json};

use crate::form::{Fields, decoded, encoded};
use crate::page::{Frame, Html, html, see_other};
use crate::port::{Call, Refusal};
use crate::run::{self, Head, head, last_event};
use crate::site::Ask;

/// Events per page of the log.
const WINDOW: u64 = 200;

fn base(id: &str) -> String {
    format!("/api/runs/{}", encoded(id))
}

fn status(failed: Option<&Refusal>) -> StatusCode {
    failed.map_or(StatusCode::OK, |refusal| refusal.status)
}

fn with_nothing(failed: Option<Refusal>) -> Option<(Refusal, String)> {
    failed.map(|refusal| (refusal, String::new()))
}

#[derive(Template)]
#[template(path = "changes.html")]
struct ChangesPage {
    frame: Frame,
    head: Head,
    /// The changes, or why there are none.
    changes: Result<Changes, String>,
    /// The values in the form: branch, message, name, step.
    typed: (String, String, String, String),
}

/// Shows the page `/runs/{id}/changes`.
pub(crate) async fn changes(
    ask: &Ask<'_>,
    id: &str,
    failed: Option<(Refusal, &Fields)>,
) -> Result<Html, Refusal> {
    let typed = failed.as_ref().map(|(_, fields)| {
        let of = |name: &str| fields.get(name).to_owned();
        (of("into"), of("message"), of("name"), of("to"))
    });
    let failed = failed.map(|(refusal, _)| refusal);
    let status = status(failed.as_ref());
    let (mut frame, head, _, _) = head(ask, id, "changes", with_nothing(failed)).await?;
    frame.said = match ask.query.get("did") {
        "undo" => Some("The files are as they were at that step. What they were before is saved: undo again to bring it back.".to_owned()),
        _ => None,
    };
    let call = Call::get(format!("{}/work", base(id)));
    let work = ask.port.call(ask.secret, call).await.value::<RoomWork>();
    let changes = work.map(|work| Changes::new(&work)).map_err(|refusal| refusal.message);
    let typed = typed.unwrap_or_default();
    Ok(html(status, &ChangesPage { frame, head, changes, typed }))
}

/// Decides about the work of a run, or restores its files.
pub(crate) async fn decide(
    ask: &Ask<'_>,
    id: &str,
    verb: &str,
    fields: &Fields,
) -> Result<Html, Refusal> {
    let mut body = Map::new();
    let keys: &[&str] = match verb {
        "done" => &["action", "into", "message", "name"],
        _ => &["to"],
    };
    for key in keys.iter().filter(|key| !fields.get(key).is_empty()) {
        body.insert((*key).to_owned(), fields.get(key).into());
    }
    let accept: Vec<String> = fields.all("accept").map(decoded).collect();
    if !accept.is_empty() {
        body.insert("accept".to_owned(), json!(accept));
    }
    let call = Call::post(format!("{}/{verb}", base(id)), Value::Object(body));
    match ask.port.call(ask.secret, call).await.check() {
        Ok(()) if fields.get("next") == "/" => Ok(see_other("/")),
        Ok(()) => {
            let did = if verb == "undo" { "?did=undo" } else { "" };
            Ok(see_other(&format!("/runs/{}/changes{did}", encoded(id))))
        }
        Err(refusal) => changes(ask, id, Some((refusal, fields))).await,
    }
}

#[derive(Template)]
#[template(path = "artifacts.html")]
struct ArtifactsPage {
    frame: Frame,
    head: Head,
    /// The artifacts, each with its path.
    rows: Vec<(ArtifactRow, String)>,
}

/// Shows the page `/runs/{id}/artifacts`.
pub(crate) async fn artifacts(ask: &Ask<'_>, id: &str) -> Result<Html, Refusal> {
    let (frame, head, _, now) = head(ask, id, "artifacts", None).await?;
    let call = Call::get(format!("{}/artifacts?limit=1000", base(id)));
    let all: Vec<Artifact> = ask.port.call(ask.secret, call).await.value()?;
    let rows = all.iter().map(|one| {
        let parts: Vec<&str> = one.name.split('/').collect();
        // A browser would walk up. No name that the API takes has such a part.
        let path = match parts.iter().any(|part| matches!(*part, "" | "." | "..")) {
            true => format!("{}/artifacts", head.run.link),
            false => {
                let path = parts.into_iter().map(encoded).collect::<Vec<_>>().join("/");
                format!("{}/artifacts/{path}", head.run.link)
            }
        };
        (ArtifactRow::new(one, now), path)
    });
    let rows = rows.collect();
    Ok(html(StatusCode::OK, &ArtifactsPage { frame, head, rows }))
}

#[derive(Template)]
#[template(path = "terminal.html")]
struct TerminalPage {
    frame: Frame,
    head: Head,
    panel: TerminalPanel,
    /// The last lines of its output, without control sequences.
    text: String,
}

/// Shows the page `/runs/{id}/terminal`. The page's script attaches to the terminal; without
/// JavaScript, the page shows the last lines.
pub(crate) async fn terminal(ask: &Ask<'_>, id: &str) -> Result<Html, Refusal> {
    let (frame, head, run, _) = head(ask, id, "terminal", None).await?;
    // The agent may have been removed since, or changed: then attaching finds out.
    let call = Call::get(format!("/api/agents/{}", run.agent_id));
    let agent = ask.port.call(ask.secret, call).await.value::<Agent>().ok();
    let agent = agent.filter(|agent| agent.version == run.agent_version);
    let terminal = agent.and_then(|agent| agent.command).map(|command| command.terminal);
    let panel = TerminalPanel::new(&run, terminal, ask.visitor.role);
    let text = run::log(ask, &base(id)).await;
    Ok(html(StatusCode::OK, &TerminalPage { frame, head, panel, text }))
}

#[derive(Template)]
#[template(path = "log.html")]
struct LogPage {
    frame: Frame,
    head: Head,
    rows: Vec<LogRow>,
    /// The event number before which the earlier page ends.
    earlier: Option<u64>,
    old: bool,
    verdict: Option<Verdict>,
}

/// Shows the page `/runs/{id}/log`.
pub(crate) async fn log(
    ask: &Ask<'_>,
    id: &str,
    verdict: Option<Verdict>,
) -> Result<Html, Refusal> {
    let (frame, head, _, now) = head(ask, id, "log", None).await?;
    let before = ask.query.get("before").parse::<u64>().ok();
    let end = match before {
        Some(before) => before,
        None => last_event(ask, &base(id)).await?,
    };
    let from = end.saturating_sub(WINDOW);
    let call = Call::get(format!("{}/events?limit={WINDOW}&cursor={from}", base(id)));
    let events: Vec<Event> = ask.port.call(ask.secret, call).await.value()?;
    let events = events.iter().filter(|event| before.is_none_or(|before| event.seq <= before));
    let page = LogPage {
        rows: events.map(|event| LogRow::new(event, now)).collect(),
        earlier: (from > 0).then_some(from),
        old: before.is_some(),
        frame,
        head,
        verdict,
    };
    Ok(html(StatusCode::OK, &page))
}

/// Replays the decisions of the run from its log, and shows the result.
pub(crate) async fn verify(ask: &Ask<'_>, id: &str) -> Result<Html, Refusal> {
    let call = Call::get(format!("{}/verify", base(id)));
    let report: VerifyReport = ask.port.call(ask.secret, call).await.value()?;
    log(ask, id, Some(Verdict::new(&report))).await
}

#[derive(Template)]
#[template(path = "replay.html")]
struct ReplayPage {
    frame: Frame,
    head: Head,
    chosen: Option<StepView>,
    /// The number of the last step.
    last: u32,
    compared: Option<Compared>,
    /// The values in the form: model, role.
    typed: (String, String),
}

/// Shows the page `/runs/{id}/replay`: one step with all details, and the form for a fork.
pub(crate) async fn replay(
    ask: &Ask<'_>,
    id: &str,
    failed: Option<(Refusal, &Fields)>,
) -> Result<Html, Refusal> {
    let typed = failed
        .as_ref()
        .map(|(_, fields)| (fields.get("model").to_owned(), fields.raw("prompt").to_owned()));
    let at = failed.as_ref().map_or(ask.query.get("at"), |(_, fields)| fields.get("at"));
    let at = at.parse::<u32>().ok();
    let mut failed = failed.map(|(refusal, _)| refusal);
    let mut compared = None;
    if !ask.query.get("with").is_empty() {
        match compare(ask, id, ask.query.get("with")).await {
            Ok(found) => compared = Some(found),
            Err(refusal) => failed = Some(refusal),
        }
    }
    let status = status(failed.as_ref());
    let (frame, head, run, _) = head(ask, id, "replay", with_nothing(failed)).await?;
    let last = run.step_count.saturating_sub(1);
    let at = at.unwrap_or(last).min(last);
    let after = at.checked_sub(1).map_or_else(String::new, |before| format!("&cursor={before}"));
    let call = Call::get(format!("{}/steps?limit=1{after}", base(id)));
    let steps: Vec<Step> = ask.port.call(ask.secret, call).await.value()?;
    let chosen = steps.first().map(StepView::new);
    let typed = typed.unwrap_or_default();
    Ok(html(status, &ReplayPage { frame, head, chosen, last, compared, typed }))
}

async fn compare(ask: &Ask<'_>, id: &str, with: &str) -> Result<Compared, Refusal> {
    let a: Run = ask.port.call(ask.secret, Call::get(base(id))).await.value()?;
    let b: Run = ask.port.call(ask.secret, Call::get(base(with))).await.value()?;
    let call = Call::get(format!("/api/diff?a={}&b={}", a.id, b.id));
    let diff: Diff = ask.port.call(ask.secret, call).await.value()?;
    Ok(Compared::new(&diff))
}

/// Creates a run that repeats everything before a step.
pub(crate) async fn fork(ask: &Ask<'_>, id: &str, fields: &Fields) -> Result<Html, Refusal> {
    let at = fields.get("at").parse::<u32>().unwrap_or(0);
    let mut body = json!({"at": at});
    for key in ["model", "prompt"] {
        if let (false, Value::Object(body)) = (fields.get(key).is_empty(), &mut body) {
            body.insert(key.to_owned(), fields.get(key).into());
        }
    }
    let call = Call::post(format!("{}/fork", base(id)), body);
    match ask.port.call(ask.secret, call).await.value::<Run>() {
        Ok(run) => Ok(see_other(&format!("/runs/{}", run.id))),
        Err(refusal) => replay(ask, id, Some((refusal, fields))).await,
    }
}
