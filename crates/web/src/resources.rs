//! `/resources`: pages for resources of every kind, from the general view model.

use askama::Template;
use http::StatusCode;
use overmind_api::{
    Event, KindView, Problem, Resource, ResourceApplied, ResourceOwned, ResourcesApplied,
};
use overmind_view::{KindRow, ResourcePage, ResourceTable, documents};
use serde_json::{Map, Value, json};

use crate::fleet;
use crate::form::{Fields, encoded};
use crate::page::{Frame, Html, html, see_other};
use crate::port::{Call, Refusal};
use crate::site::Ask;

/// Rows per page.
const ROWS: usize = 200;
/// The section of these pages.
const SECTION: &str = "/resources";
/// The kinds whose replicas and revisions can be changed on their page.
const FLEETS: [&str; 2] = ["fleet", "lineage"];
/// Largest weight of one document; see [`documents::MAX_WEIGHT`].
const WEIGHT: usize = 4 << 20;

#[derive(Template)]
#[template(path = "kinds.html")]
struct Kinds {
    frame: Frame,
    declared: Vec<KindRow>,
    shown: Vec<KindRow>,
}

async fn kinds_of(ask: &Ask<'_>) -> Result<Vec<KindView>, Refusal> {
    ask.port.call(ask.secret, Call::get("/api/kinds")).await.value()
}

/// Returns the kind for any of its names in a path.
async fn kind(ask: &Ask<'_>, word: &str) -> Result<KindView, Refusal> {
    let kinds = kinds_of(ask).await?;
    let is = |kind: &KindView| {
        kind.name == word || kind.plural == word || kind.aliases.iter().any(|one| one == word)
    };
    kinds.into_iter().find(is).ok_or_else(|| Refusal {
        status: StatusCode::NOT_FOUND,
        message: format!("there is no kind `{word}`; the list of kinds is at {SECTION}"),
    })
}

/// Shows the page `/resources` with all kinds.
pub(crate) async fn kinds(ask: &Ask<'_>) -> Result<Html, Refusal> {
    let kinds = kinds_of(ask).await?;
    let (shown, declared): (Vec<_>, Vec<_>) =
        kinds.iter().map(KindRow::new).partition(|kind| kind.changed_by.is_some());
    let frame = Frame::new("Resources", SECTION, ask.visitor, ask.secret, None);
    Ok(html(StatusCode::OK, &Kinds { frame, declared, shown }))
}

#[derive(Template)]
#[template(path = "resources.html")]
struct Table {
    frame: Frame,
    table: ResourceTable,
    selector: String,
    next: Option<String>,
    /// The typed document of a new resource. Its mistakes are in `mistakes`.
    document: String,
    mistakes: Vec<String>,
}

/// Shows the page `/resources/{kind}`: a table with the columns of the kind.
pub(crate) async fn table(
    ask: &Ask<'_>,
    word: &str,
    typed: Option<(&str, Checked)>,
) -> Result<Html, Refusal> {
    let kind = kind(ask, word).await?;
    let selector = ask.query.get("l");
    let mut target = format!("/api/resources/{}?limit={ROWS}", kind.name);
    for (key, name) in [("selector", "l"), ("cursor", "cursor")] {
        if !ask.query.get(name).is_empty() {
            target.push_str(&format!("&{key}={}", encoded(ask.query.get(name))));
        }
    }
    let reply = ask.port.call(ask.secret, Call::get(target)).await;
    let (rows, refusal) = match reply.value::<Vec<Resource>>() {
        Ok(rows) => (rows, None),
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
            (Vec::new(), Some(refusal))
        }
        Err(refusal) => return Err(refusal),
    };
    let now =
        crate::lists::time(ask, rows.first().map(|one| one.metadata.creation_timestamp)).await;
    let next = reply.next().map(|cursor| format!("?cursor={cursor}&l={}", encoded(selector)));
    let mut frame = Frame::new(kind.kind.clone(), SECTION, ask.visitor, ask.secret, refusal);
    let (document, mistakes, status) = match typed {
        Some((document, checked)) => {
            frame.said = checked.said;
            (document.to_owned(), checked.mistakes, checked.status)
        }
        None => (skeleton(&kind), Vec::new(), StatusCode::OK),
    };
    let selector = selector.to_owned();
    let table = ResourceTable::new(&kind, &rows, now);
    Ok(html(status, &Table { frame, table, selector, next, document, mistakes }))
}

fn skeleton(kind: &KindView) -> String {
    format!("apiVersion: {}\nkind: {}\nmetadata:\n  name: \nspec:\n  ", kind.api_version, kind.kind)
}

#[derive(Template)]
#[template(path = "resource.html")]
struct One {
    frame: Frame,
    page: ResourcePage,
    link: String,
    document: String,
    mistakes: Vec<String>,
    /// Whether the editor is open.
    open: bool,
}

/// Shows the page `/resources/{kind}/{name}`.
pub(crate) async fn one(
    ask: &Ask<'_>,
    word: &str,
    name: &str,
    typed: Option<(&str, Checked)>,
    failed: Option<Refusal>,
) -> Result<Html, Refusal> {
    let kind = kind(ask, word).await?;
    let base = format!("/api/resources/{}/{}", kind.name, encoded(name));
    let get = |part: &str| ask.port.call(ask.secret, Call::get(format!("{base}{part}")));
    let resource: Resource = get("").await.value()?;
    let owned: Vec<ResourceOwned> = get("/owned").await.value().unwrap_or_default();
    let events: Vec<Event> = get("/events").await.value().unwrap_or_default();
    let now = crate::lists::time(ask, Some(resource.metadata.creation_timestamp)).await;
    let mut page = ResourcePage::new(&kind, &resource, &owned, &events, now);
    if FLEETS.contains(&kind.name.as_str()) {
        let packs = fleet::packs(ask, &resource).await?;
        page = page.with_packs(&resource, &packs, now);
    }
    let refused = failed.as_ref().map_or(StatusCode::OK, |refusal| refusal.status);
    let mut frame = Frame::new(name, SECTION, ask.visitor, ask.secret, failed);
    let open = typed.is_some();
    let (document, mistakes, status) = match typed {
        Some((document, checked)) => {
            frame.said = checked.said;
            (document.to_owned(), checked.mistakes, checked.status)
        }
        None => (page.document.clone(), Vec::new(), refused),
    };
    let link = format!("/resources/{}/{}", kind.name, encoded(name));
    Ok(html(status, &One { frame, page, link, document, mistakes, open }))
}

/// The result of checking or applying a document.
pub(crate) struct Checked {
    status: StatusCode,
    said: Option<String>,
    /// The mistakes, such as `3:5: spec.schedule …`.
    mistakes: Vec<String>,
}

impl Checked {
    fn refused(status: StatusCode, mistakes: Vec<String>) -> Self {
        Self { status, said: None, mistakes }
    }
}

/// Sends a document, either for a check or to apply it. `Ok(name)`: it was applied.
async fn apply(ask: &Ask<'_>, text: &str, check: bool) -> Result<(String, String), Checked> {
    let wrong = StatusCode::UNPROCESSABLE_ENTITY;
    let mut weight = WEIGHT;
    let (read, mistakes) = documents::parse("", text, &mut weight);
    let place = |mistake: documents::Mistake| format!("line {}: {}", mistake.at.0, mistake.text);
    if !mistakes.is_empty() {
        return Err(Checked::refused(wrong, mistakes.into_iter().map(place).collect()));
    }
    let [document] = read.as_slice() else {
        let text = format!("there are {} documents here; write one", read.len());
        return Err(Checked::refused(wrong, vec![text]));
    };
    let body = json!({"documents": [document.value], "dryRun": check});
    let reply = ask.port.call(ask.secret, Call::post("/api/resources", body)).await;
    let applied = match reply.value::<ResourcesApplied>() {
        Ok(applied) => applied,
        Err(refusal) => {
            let problem = serde_json::from_slice::<Problem>(&reply.body).ok();
            let errors = problem.map(|problem| problem.errors).unwrap_or_default();
            let told = errors.into_iter().map(|error| {
                let field = error.field.trim_start_matches("documents[0].").to_owned();
                place(document.mistake(&field, format!("{field} {}", error.message)))
            });
            let mut told: Vec<String> = told.collect();
            if told.is_empty() {
                told.push(refusal.message);
            }
            return Err(Checked::refused(refusal.status, told));
        }
    };
    let Some(ResourceApplied { outcome, resource }) = applied.results.into_iter().next() else {
        return Err(Checked::refused(StatusCode::BAD_GATEWAY, vec!["nothing was applied".into()]));
    };
    if check {
        let said = match outcome.as_str() {
            "unchanged" => "This is right, and changes nothing.".to_owned(),
            other => format!("This is right: it would be {other}."),
        };
        return Err(Checked { status: StatusCode::OK, said: Some(said), mistakes: Vec::new() });
    }
    Ok((resource.kind.to_ascii_lowercase(), resource.metadata.name))
}

/// Handles the form with the document of an existing or a new resource.
pub(crate) async fn write(
    ask: &Ask<'_>,
    kind: &str,
    name: Option<&str>,
    fields: &Fields,
) -> Result<Html, Refusal> {
    let text = fields.raw("document").replace("\r\n", "\n");
    match (apply(ask, &text, fields.get("do") == "check").await, name) {
        (Ok((kind, name)), _) => {
            Ok(see_other(&format!("/resources/{}/{}", encoded(&kind), encoded(&name))))
        }
        (Err(checked), Some(name)) => one(ask, kind, name, Some((&text, checked)), None).await,
        (Err(checked), None) => table(ask, kind, Some((&text, checked))).await,
    }
}

/// Deletes a resource; pauses, resumes or starts a ritual; or performs an action of [`fleet::act`].
pub(crate) async fn act(
    ask: &Ask<'_>,
    word: &str,
    name: &str,
    verb: &str,
    fields: &Fields,
) -> Result<Html, Refusal> {
    let kind = kind(ask, word).await?.name;
    let base = format!("/api/resources/{kind}/{}", encoded(name));
    let here = format!("/resources/{kind}/{}", encoded(name));
    if verb == "delete" {
        ask.port.call(ask.secret, Call::delete(base)).await.check()?;
        return Ok(see_other(&format!("/resources/{kind}")));
    }
    if FLEETS.contains(&kind.as_str()) {
        return match fleet::act(ask, &base, verb, fields).await {
            Ok(()) => Ok(see_other(&here)),
            Err(refusal) => one(ask, &kind, name, None, Some(refusal)).await,
        };
    }
    let ritual: Resource = ask.port.call(ask.secret, Call::get(&base)).await.value()?;
    if verb == "run" {
        let quest = run_now(ask, &ritual).await?;
        return Ok(see_other(&format!("/resources/quest/{}", encoded(&quest))));
    }
    let set = |spec: &mut Map<String, Value>| match verb == "pause" {
        true => drop(spec.insert("suspend".to_owned(), Value::Bool(true))),
        false => drop(spec.remove("suspend")),
    };
    fleet::change(ask, &base, ritual, set).await?;
    Ok(see_other(&here))
}

/// Creates a quest of the ritual, named after the present second, as `overmind cron run` does.
async fn run_now(ask: &Ask<'_>, ritual: &Resource) -> Result<String, Refusal> {
    let now = crate::lists::time(ask, Some(ritual.metadata.creation_timestamp)).await;
    let second = now.as_micros().div_euclid(1_000_000);
    let short: String = ritual.metadata.name.chars().take(200).collect();
    let mut labels = ritual.metadata.labels.clone();
    labels.insert("overmind/manual".to_owned(), "true".to_owned());
    let template = ritual.spec.get("template").cloned().unwrap_or_else(|| json!({}));
    let mut last = None;
    for further in 0..10 {
        let quest = match further {
            0 => format!("{short}-manual-{second}"),
            _ => format!("{short}-manual-{second}-{further}"),
        };
        let body = json!({"apiVersion": "overmind/v1", "kind": "Quest", "metadata": {
            "name": quest, "labels": labels, "resourceVersion": "0",
            "ownerReferences": [{"uid": ritual.metadata.uid}]}, "spec": template});
        let target = format!("/api/resources/quest/{quest}");
        match ask.port.call(ask.secret, Call::put(target, body)).await.check() {
            Ok(()) => return Ok(quest),
            Err(refusal) if refusal.status == StatusCode::CONFLICT => last = Some(refusal),
            Err(refusal) => return Err(refusal),
        }
    }
    Err(last.unwrap_or_else(|| Refusal {
        status: StatusCode::CONFLICT,
        message: "it was started ten times within a second".to_owned(),
    }))
}
