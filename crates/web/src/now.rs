//! `/`: what needs a person, which runs work, and which are done; also the answers to items.

use askama::Template;
use http::StatusCode;
use overmind_api::{Cost, InboxItem, Resource, Run, RunBasic, Status};
use overmind_view::{Answer, FOLDED, Group, Now, NowData, clean};
use serde_json::{Value, json};

use crate::form::{self, Fields};
use crate::page::{self, Frame, Html, html, see_other};
use crate::port::{Call, Refusal};
use crate::site::Ask;

/// Maximum number of runs in each column.
const WORKING: usize = 60;
const DONE: usize = 15;
/// Number of newest runs among which the last ended ones are searched.
const ENDED: usize = 300;
/// Bytes at the end of a log that are read for its last line.
const TAIL: usize = 16 << 10;

#[derive(Template)]
#[template(path = "now.html")]
struct Page {
    frame: Frame,
    now: Now,
    /// The id of a card, and the text that was typed into it.
    draft: (String, String),
}

pub(crate) async fn show(
    ask: &Ask<'_>,
    failed: Option<(Refusal, String, String)>,
) -> Result<Html, Refusal> {
    let get = |target: String| ask.port.call(ask.secret, Call::get(target));
    let status = get("/api/status".to_owned()).await;
    // A key of the scope `runs` may not read it; the page needs it for the time alone.
    let now = match status.value::<Status>() {
        Ok(status) => Some(status.now),
        Err(_) => None,
    };
    let inbox: Vec<InboxItem> = get("/api/inbox?limit=100".to_owned()).await.value()?;
    let active = "queued,running,awaiting_input,awaiting_approval,idle";
    let active: Vec<Run> =
        get(format!("/api/runs?limit={WORKING}&status={active}")).await.value()?;
    let ended = ended(ask).await?;
    let groups = groups(ask, &active).await;
    let today = get("/api/costs?by=day&limit=1".to_owned()).await.value::<Vec<Cost>>().ok();
    let newest = active.iter().chain(&ended).map(|run| run.finished_at.unwrap_or(run.created_at));
    let now = now.or_else(|| newest.max()).unwrap_or_default();
    let mut rows = Vec::with_capacity(active.len());
    for run in active {
        let last = match run.process.is_some() {
            true => last_line(ask, &run.id.to_string()).await,
            false => None,
        };
        rows.push((run, last));
    }
    let date = now.to_string();
    let spent = today.map(|rows| {
        let row = rows.iter().find(|row| date.starts_with(&row.key));
        row.map_or((0.0, false), |row| (overmind_api::usd_of(row.microusd), row.is_at_most()))
    });
    let now = Now::new(NowData { inbox, active: rows, ended, groups, spent_today: spent, now });
    let (refusal, draft) = match failed {
        Some((refusal, id, text)) => (Some(refusal), (id, text)),
        None => (None, Default::default()),
    };
    let code = refusal.as_ref().map_or(StatusCode::OK, |refusal| refusal.status);
    let count = now.needs.len();
    let title = if count > 0 { format!("({count}) Now") } else { "Now".to_owned() };
    let frame = Frame::new(title, "/", ask.visitor, ask.secret, refusal);
    Ok(html(code, &Page { frame, now, draft }))
}

/// Returns the fleets, lineages and sentinels, if any resource has so many runs that they may become
/// a fold.
async fn groups(ask: &Ask<'_>, active: &[Run]) -> Vec<Group> {
    let mut owners: Vec<String> =
        active.iter().filter_map(|run| run.owner.map(|owner| owner.to_string())).collect();
    owners.sort_unstable();
    let many: Vec<&str> =
        owners.chunk_by(PartialEq::eq).filter(|of| of.len() > FOLDED).map(|of| &*of[0]).collect();
    let mut groups = Vec::new();
    for kind in ["fleet", "lineage", "sentinel"] {
        if groups.len() == many.len() {
            break;
        }
        let call = Call::get(format!("/api/resources/{kind}?limit=1000"));
        let all = ask.port.call(ask.secret, call).await.value::<Vec<Resource>>();
        let all = all.unwrap_or_default().into_iter().map(|one| one.metadata);
        let all = all.filter(|one| many.contains(&one.uid.as_str()));
        groups.extend(all.map(|one| Group { uid: one.uid, kind, name: one.name }));
    }
    groups
}

/// Returns the runs that ended last. Lists are sorted by creation, and the full form of a run
/// contains its whole answer, so the order is computed from the short form.
async fn ended(ask: &Ask<'_>) -> Result<Vec<Run>, Refusal> {
    let target = format!("/api/runs?view=basic&limit={ENDED}&status=succeeded,failed,canceled");
    let mut rows: Vec<RunBasic> = ask.port.call(ask.secret, Call::get(target)).await.value()?;
    rows.sort_by_key(|run| std::cmp::Reverse(run.finished_at));
    let mut ended = Vec::with_capacity(DONE);
    for row in rows.iter().take(DONE) {
        let call = Call::get(format!("/api/runs/{}", row.id));
        // One that was pruned meanwhile is gone.
        ended.extend(ask.port.call(ask.secret, call).await.value::<Run>().ok());
    }
    Ok(ended)
}

/// Returns the last line of a command's output.
async fn last_line(ask: &Ask<'_>, id: &str) -> Option<String> {
    let call = Call::get(format!("/api/runs/{id}/log?tail=3&strip=true&notes=false")).most(TAIL);
    let reply = ask.port.call(ask.secret, call).await;
    reply.check().ok()?;
    let text = String::from_utf8_lossy(&reply.body);
    let text = clean::passing(&text, false).into_owned();
    text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
}

/// Returns the open items as `{"items": [{"id", "title"}]}`, for the script that counts them.
pub(crate) async fn count(ask: &Ask<'_>) -> Result<Html, Refusal> {
    let call = Call::get("/api/inbox?limit=100");
    let inbox: Vec<InboxItem> = ask.port.call(ask.secret, call).await.value()?;
    let call = Call::get("/api/runs?view=basic&limit=100&status=idle");
    let rests: Vec<RunBasic> = ask.port.call(ask.secret, call).await.value()?;
    let line = |text: &str| clean::cut(&clean::line(text), 120).into_owned();
    let asked =
        inbox.iter().map(|item| json!({"id": item.id.to_string(), "title": line(&item.title)}));
    let rests = rests.iter().map(
        |run| json!({"id": run.id.to_string(), "title": line(&format!("{}: your turn", run.name))}),
    );
    Ok(page::json(&json!({"items": asked.chain(rests).collect::<Vec<_>>()})))
}

/// Answers one item, and returns to the page of the form.
pub(crate) async fn decide(ask: &Ask<'_>, id: &str, fields: &Fields) -> Result<Html, Refusal> {
    let body = match decision(fields) {
        Ok(body) => body,
        Err(refusal) => return again(ask, refusal, id, fields).await,
    };
    let target = format!("/api/inbox/{}/answer", form::encoded(id));
    let reply = ask.port.call(ask.secret, Call::post(target, body)).await;
    match reply.check() {
        Ok(()) => Ok(see_other(fields.get("next"))),
        Err(refusal) => again(ask, refusal, id, fields).await,
    }
}

/// Shows the page again with the typed values.
async fn again(
    ask: &Ask<'_>,
    refusal: Refusal,
    id: &str,
    fields: &Fields,
) -> Result<Html, Refusal> {
    let typed = [fields.raw("message"), fields.raw("reason")].join("");
    show(ask, Some((refusal, id.to_owned(), typed))).await
}

fn decision(fields: &Fields) -> Result<Value, Refusal> {
    let decision = fields.get("decision");
    let mut body = json!({"decision": decision});
    let mut put = |key: &str, value: Value| {
        if let Value::Object(body) = &mut body {
            body.insert(key.to_owned(), value);
        }
    };
    if decision == "answer" {
        put("message", fields.raw("message").into());
    } else if !fields.get("reason").is_empty() {
        put("reason", fields.get("reason").into());
    }
    for (name, whole) in [("usd", false), ("tokens", true)] {
        let text = fields.get(name);
        if text.is_empty() || decision != "approve" {
            continue;
        }
        let number = match whole {
            true => text.parse::<u64>().ok().map(Value::from),
            false => text.parse::<f64>().ok().map(Value::from),
        };
        let number = number.ok_or_else(|| Refusal {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            message: format!("the amount must be a number, not `{text}`"),
        })?;
        put("raise", json!({name: number}));
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_becomes_an_answer_of_the_api() {
        let read = |text: &str| decision(&Fields::parse(text));
        let deny = read("decision=deny&reason=not+here").unwrap();
        assert_eq!(deny, json!({"decision": "deny", "reason": "not here"}));
        let answer = read("decision=answer&message=+yes%0A").unwrap();
        assert_eq!(answer, json!({"decision": "answer", "message": " yes\n"}));
        let raise = read("decision=approve&usd=1.5").unwrap();
        assert_eq!(raise, json!({"decision": "approve", "raise": {"usd": 1.5}}));
        assert!(read("decision=approve&usd=much").unwrap_err().message.contains("`much`"));
    }
}
