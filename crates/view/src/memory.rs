//! The page of the memory: its texts, each with source and trust.

use overmind_api::{MemoryItem, MemoryMatch, Timestamp};

use crate::clean;
use crate::parts::{Pill, Tone};
use crate::when::When;

/// Longest text of an item that is shown, in characters.
const MOST: usize = 2_000;

/// One remembered text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryRow {
    pub id: String,
    pub text: String,
    pub collection: String,
    /// The kind of author.
    pub trust: Pill,
    pub author: String,
    /// The page of the run that stored it.
    pub run: Option<String>,
    /// The event from which it was taken.
    pub event: Option<String>,
    /// The score of a search result, with two decimals.
    pub score: Option<String>,
    pub created: When,
    pub expires: Option<When>,
    /// Whether another item has replaced it.
    pub replaced: bool,
}

impl MemoryRow {
    pub fn new(item: &MemoryItem, now: Timestamp) -> Self {
        let line = |text: &str| clean::cut(&clean::line(text), 200).into_owned();
        Self {
            id: item.id.to_string(),
            text: clean::cut(&clean::block(item.text.trim()), MOST).into_owned(),
            collection: line(&item.collection),
            trust: trust(&item.trust),
            author: line(&item.author),
            run: item.source_run_id.map(|run| format!("/runs/{run}")),
            event: item.source_event.as_deref().map(line),
            score: None,
            created: When::new(item.created_at, now),
            expires: item.expires_at.map(|at| When::until(at, now)),
            replaced: item.superseded_by.is_some(),
        }
    }

    /// Creates the row of a search result. Items of a blank query, and scores that would show as
    /// 0.00, have no score.
    pub fn found(found: &MemoryMatch, now: Timestamp) -> Self {
        let score = (found.score >= 0.01).then(|| format!("{:.2}", found.score));
        Self { score, ..Self::new(&found.item, now) }
    }
}

/// Returns a label of trust with tone and shape. An unknown label is shown as untrusted.
fn trust(label: &str) -> Pill {
    let (tone, shape) = match label {
        "user" => (Tone::Good, "●"),
        "agent" => (Tone::Busy, "◐"),
        "tool" => (Tone::Flat, "◇"),
        _ => (Tone::Ask, "▲"),
    };
    Pill::new(tone, shape, clean::cut(&clean::line(label), 40).into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_memory_item_shows_its_source_and_author() {
        let at = "2026-11-25T16:00:00+00:00";
        let id = |kind: &str| format!("{kind}_00000000000000000000000000000001");
        let found: MemoryMatch = serde_json::from_value(json!({
            "id": id("mem"), "collection": "notes", "text": " use \u{1b}[2Jtabs ", "embedding": [],
            "embedding_model": "fts5-bm25", "dims": 0, "metadata_json": {}, "created_at": at,
            "source_run_id": id("ses"), "colony": id("col"), "author": "fix\u{7}er",
            "trust": "untrusted", "source_event": "ses_1.4", "score": 1.239}))
        .unwrap();
        let row = MemoryRow::found(&found, at.parse().unwrap());
        assert_eq!((row.text.as_str(), row.author.as_str()), ("use \\u{1b}[2Jtabs", "fix\\u{7}er"));
        assert_eq!((row.trust.tone, row.trust.text.as_str()), (Tone::Ask, "untrusted"));
        assert_eq!(row.run, Some(format!("/runs/{}", id("ses"))));
        assert_eq!((row.score.as_deref(), row.replaced), (Some("1.24"), false));
        let shapes = ["user", "agent", "tool", "untrusted"].map(|word| trust(word).shape);
        assert!(shapes.iter().enumerate().all(|(n, one)| !shapes[..n].contains(one)));
    }
}
