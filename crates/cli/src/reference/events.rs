//! Every type of event in the log, from `events.txt` beside this file.
//!
//! Payloads are built where events are written, so no type lists their fields: tests keep the list
//! true. One test here finds every type in the sources; a test of the whole program checks the
//! events that it has written.

use std::fmt::Write as _;

use super::{cell, code, head};

/// `# stream` begins a stream; then a line for each type: `type | fields | meaning`. A field that is not
/// always there ends in `?`.
const TABLE: &str = include_str!("events.txt");

/// `docs/reference/events.md`.
pub(super) fn page() -> String {
    let mut text = head(
        "Events",
        "The log has one stream for each run, and one each for the mesh, for resources and for the system. An event \
         has `id`, `type`, `ts`, `payload_json`, `seq` in its stream, `global` in the whole log, and `hash`. `overmind events RUN -o json` prints those of a run, \
         `overmind events -o json` the newest of all streams, and `GET /api/stream` sends them as they \
         happen. Fields that end in `?` are not always there. Secrets are masked before an event is written.",
    );
    text.push_str(
        "\nOlder words that stay for compatibility: `life` is an attempt of a program, `room` an \
         environment, `letter` and `mail` a message, `hive` the machine.\n",
    );
    for line in TABLE.lines() {
        if let Some(stream) = line.strip_prefix("# ") {
            let _ = write!(text, "\n## {}\n\n", title(stream));
            text.push_str("| type | payload | meaning |\n|---|---|---|\n");
            continue;
        }
        let mut parts = line.split(" | ");
        let (kind, fields) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let fields: Vec<String> = fields.split_whitespace().map(code).collect();
        let meaning = cell(parts.next().unwrap_or_default());
        let _ = writeln!(text, "| {} | {} | {meaning} |", code(kind), fields.join(", "));
    }
    text
}

fn title(stream: &str) -> &str {
    match stream {
        "session" => "Streams of runs",
        "mesh" => "Stream of the mesh",
        "records" => "Stream of resources",
        "system" => "Stream of the system",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::TABLE;
    use crate::pages::repository;

    /// Words in the sources that look like event types and are not: failpoints, files, fields.
    const OTHERS: &[&str] = &[
        "mcp.json",
        "artifact.kept",
        "artifact.written",
        "key.asc",
        "mcp.bank.pay",
        "mcp.mail.send",
        "memory.embeddings",
        "model.safetensors",
        "room.base",
        "run.sh",
        "store.after_commit_before_ack",
        "store.after_commit_before_promise",
        "store.before_commit",
        "store.in_group",
        "store.wal_copy",
        "store.wal_restart",
    ];

    fn listed() -> BTreeSet<&'static str> {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split(" | ").next().unwrap_or_default()).collect()
    }

    /// Every string of dotted words in the sources below `dir`, without tests.
    fn strings(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                strings(&path, found);
                continue;
            }
            if path.extension().is_none_or(|kind| kind != "rs") || path.ends_with("tests.rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let words = code.split('"');
            let dotted = |word: &&str| {
                let mut parts = word.split('.');
                parts.clone().count() > 1
                    && parts.all(|part| {
                        !part.is_empty()
                            && part.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
                    })
            };
            found.extend(words.filter(dotted).map(str::to_owned));
        }
    }

    #[test]
    fn exactly_the_event_types_in_the_sources_are_listed() {
        let mut found = BTreeSet::new();
        for name in ["core", "engine", "mcp", "memory", "store"] {
            strings(&repository().join("crates").join(name).join("src"), &mut found);
        }
        let listed = listed();
        let first = |word: &str| word.split('.').next().unwrap_or_default().to_owned();
        let areas: BTreeSet<String> = listed.iter().map(|kind| first(kind)).collect();
        let missing: Vec<&String> = found
            .iter()
            .filter(|word| areas.contains(&first(word)) && !listed.contains(word.as_str()))
            .filter(|word| !OTHERS.contains(&word.as_str()))
            .collect();
        assert!(missing.is_empty(), "not in events.txt: {missing:?}");
        let gone: Vec<&&str> = listed.iter().filter(|kind| !found.contains(**kind)).collect();
        assert!(gone.is_empty(), "no source writes these of events.txt: {gone:?}");
    }

    #[test]
    fn the_event_list_is_well_formed_and_has_no_duplicates() {
        let mut seen = BTreeSet::new();
        let mut stream = "";
        for line in TABLE.lines() {
            if let Some(name) = line.strip_prefix("# ") {
                stream = name;
                continue;
            }
            let parts: Vec<&str> = line.split(" | ").collect();
            assert_eq!(parts.len(), 3, "{line}");
            assert!(!parts[1].is_empty() && parts[2].ends_with('.'), "{line}");
            assert!(seen.insert((stream, parts[0])), "twice: {line}");
        }
        assert!(seen.len() > 120, "{}", seen.len());
    }
}
