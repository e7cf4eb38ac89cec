//! `/memory`: searches, adds and removes items of the memory.

use askama::Template;
use http::StatusCode;
use overmind_api::{MemoryFound, MemoryItem, MemorySearch};
use overmind_view::MemoryRow;
use serde_json::{Map, Value, json};

use crate::form::{Fields, encoded};
use crate::page::{Frame, Html, html, see_other};
use crate::port::{Call, Refusal};
use crate::site::Ask;

/// Items per page of the list and of a search.
const ROWS: usize = 100;
const FOUND: u32 = 50;
/// The kinds of authors.
const TRUST: [&str; 4] = ["user", "agent", "tool", "untrusted"];

#[derive(Template)]
#[template(path = "memory.html")]
struct Page {
    frame: Frame,
    rows: Vec<MemoryRow>,
    query: String,
    collection: String,
    /// Whether the page shows a search.
    searched: bool,
    /// The query of the next page.
    next: Option<String>,
    /// The values in the form: collection, text, seconds.
    typed: (String, String, String),
    /// Each kind of author, and whether it is selected.
    trust: Vec<(&'static str, bool)>,
    /// Whether the form for a new item is open.
    open: bool,
}

/// Shows the page `/memory`.
pub(crate) async fn show(
    ask: &Ask<'_>,
    failed: Option<(Refusal, &Fields)>,
) -> Result<Html, Refusal> {
    let (query, collection) = (ask.query.get("q"), ask.query.get("collection"));
    let now = crate::lists::time(ask, None).await;
    let searched = !query.is_empty();
    let mut next = None;
    let mut refusal = None;
    let rows = if searched {
        let search = MemorySearch::new(collection, query, FOUND);
        let call = Call::post("/api/memory/search", json!(search));
        match ask.port.call(ask.secret, call).await.value::<MemoryFound>() {
            Ok(found) => found.results.iter().map(|one| MemoryRow::found(one, now)).collect(),
            Err(wrong) if wrong.status.is_client_error() => {
                refusal = Some(wrong);
                Vec::new()
            }
            Err(wrong) => return Err(wrong),
        }
    } else {
        let mut filter = String::new();
        if !collection.is_empty() {
            filter.push_str(&format!("&collection={}", encoded(collection)));
        }
        let mut target = format!("/api/memory?limit={ROWS}{filter}");
        if !ask.query.get("cursor").is_empty() {
            target.push_str(&format!("&cursor={}", encoded(ask.query.get("cursor"))));
        }
        let reply = ask.port.call(ask.secret, Call::get(target)).await;
        next = reply.next().map(|cursor| format!("?cursor={cursor}{filter}"));
        let items: Vec<MemoryItem> = reply.value()?;
        items.iter().map(|item| MemoryRow::new(item, now)).collect()
    };
    let open = failed.is_some();
    let (typed, chosen) = match &failed {
        Some((_, fields)) => {
            let text = fields.raw("text").to_owned();
            let typed = (fields.get("into").to_owned(), text, fields.get("ttl").to_owned());
            (typed, fields.get("trust"))
        }
        None => ((collection.to_owned(), String::new(), String::new()), "user"),
    };
    let trust = TRUST.iter().map(|word| (*word, *word == chosen)).collect();
    let refusal = failed.map(|(refusal, _)| refusal).or(refusal);
    let status = refusal.as_ref().map_or(StatusCode::OK, |refusal| refusal.status);
    let mut frame = Frame::new("Memory", "/memory", ask.visitor, ask.secret, refusal);
    frame.said = match ask.query.get("did") {
        "added" => Some("It is remembered.".to_owned()),
        "forgotten" => Some("It is forgotten.".to_owned()),
        _ => None,
    };
    let (query, collection) = (query.to_owned(), collection.to_owned());
    let page = Page { frame, rows, query, collection, searched, next, typed, trust, open };
    Ok(html(status, &page))
}

/// Adds an item.
pub(crate) async fn add(ask: &Ask<'_>, fields: &Fields) -> Result<Html, Refusal> {
    let body = match draft(fields) {
        Ok(body) => body,
        Err(refusal) => return show(ask, Some((refusal, fields))).await,
    };
    match ask.port.call(ask.secret, Call::post("/api/memory/store", body)).await.check() {
        Ok(()) => {
            let into = encoded(fields.get("into"));
            Ok(see_other(&format!("/memory?did=added&collection={into}")))
        }
        Err(refusal) => show(ask, Some((refusal, fields))).await,
    }
}

/// Removes an item for good.
pub(crate) async fn forget(ask: &Ask<'_>, id: &str) -> Result<Html, Refusal> {
    let call = Call::delete(format!("/api/memory/{}", encoded(id)));
    ask.port.call(ask.secret, call).await.check()?;
    Ok(see_other("/memory?did=forgotten"))
}

/// Converts a form to a request of the API.
///
/// # Errors
///
/// Returns the mistake if the text is blank or the seconds are not a number.
fn draft(fields: &Fields) -> Result<Value, Refusal> {
    let wrong = |message: &str| Refusal {
        status: StatusCode::UNPROCESSABLE_ENTITY,
        message: message.to_owned(),
    };
    if fields.get("text").is_empty() {
        return Err(wrong("write what is to be remembered"));
    }
    let mut body = Map::new();
    body.insert("collection".to_owned(), fields.get("into").into());
    body.insert("text".to_owned(), fields.raw("text").into());
    if !fields.get("trust").is_empty() {
        body.insert("trust".to_owned(), fields.get("trust").into());
    }
    match fields.get("ttl") {
        "" => {}
        text => {
            let seconds = text.parse::<u64>().map_err(|_| wrong("seconds are a whole number"))?;
            body.insert("ttl_seconds".to_owned(), seconds.into());
        }
    }
    Ok(Value::Object(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_becomes_a_memory_item_of_the_api() {
        let read = |text: &str| draft(&Fields::parse(text));
        let whole = read("into=notes&text=+tabs&trust=tool&ttl=60").unwrap();
        let want =
            json!({"collection": "notes", "text": " tabs", "trust": "tool", "ttl_seconds": 60});
        assert_eq!(whole, want);
        assert_eq!(read("text=x&ttl=").unwrap(), json!({"collection": "", "text": "x"}));
        assert!(read("text=+").unwrap_err().message.contains("write what"));
        assert!(read("text=x&ttl=soon").unwrap_err().message.contains("whole number"));
    }
}
