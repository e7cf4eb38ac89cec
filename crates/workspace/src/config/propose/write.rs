//! Writes the text of a proposal, with comments that explain each part.

use std::fmt::Write as _;

use super::files::{ComposeEntry, Engine};
use super::{Draft, DraftKind};

pub(super) fn text(draft: &Draft) -> String {
    let mut out = String::from(
        "# What each session of this project gets for itself. Read it, change it, commit it:\n\
         # `overmind` uses this file for each session, and changes nothing of other sessions.\n\
         version: 1\n",
    );
    worktree(&mut out, draft);
    if let Some(range) = &draft.range {
        let _ = writeln!(
            out,
            "\n# Where the ports of all sessions come from.\nports: {{range: {range}}}"
        );
    }
    if !draft.ports.is_empty() {
        out.push_str("\n# Each name is a variable with a port of its own.\n");
        let _ = writeln!(out, "ports: [{}]", draft.ports.join(", "));
    }
    if !draft.services.is_empty() {
        out.push_str("\nservices:\n");
        for service in &draft.services {
            let _ = writeln!(out, "  # From {}.", service.from);
            let _ = writeln!(out, "  {}:", service.name);
            match &service.kind {
                DraftKind::Process { command, port } => {
                    out.push_str("    strategy: process\n");
                    let _ = writeln!(out, "    command: {}", scalar(command));
                    if *port {
                        out.push_str(
                            "    # Its number is new for each session and reaches the command as \
                             $PORT.\n    ports: [http]\n",
                        );
                    }
                }
                DraftKind::Container(entry) => container(&mut out, entry),
                DraftKind::Database(Engine::Postgres) => out.push_str(
                    "    # A database of the session's own in one server that Overmind runs. For \
                     the image\n    # itself, write `strategy: container` with `image` and `ports`.\n    \
                     strategy: database\n    engine: postgres\n    server: embedded\n    # \
                     template:            # filled once, then copied for each session\n    #   \
                     files: [\"db/migrate/**\"]\n    #   command: bin/migrate\n",
                ),
                DraftKind::Database(Engine::Redis) => out.push_str(
                    "    # A server of the session's own, from the machine's redis-server.\n    \
                     strategy: database\n    engine: redis\n    server: embedded\n",
                ),
            }
            if !service.depends_on.is_empty() {
                let _ = writeln!(out, "    depends_on: [{}]", service.depends_on.join(", "));
            }
        }
    }
    if !draft.env.is_empty() {
        out.push_str(
            "\n# Variables of every command of the session; `${service.field}` is a value that it \
             was given.\nenv:\n",
        );
        for (name, value) in &draft.env {
            let _ = writeln!(out, "  {name}: {}", scalar(value));
        }
        out.push_str(
            "# Also written to a file, for tools that read one:\n# env_file: .env.local\n",
        );
    }
    if !draft.setup.is_empty() {
        out.push_str("\n# Run once in the new worktree, before the processes start.\nsetup:\n");
        for command in &draft.setup {
            let _ = writeln!(out, "  - {}", scalar(command));
        }
    }
    if !draft.notes.is_empty() {
        out.push_str("\n# Not carried over:\n");
        for note in &draft.notes {
            let _ = writeln!(out, "# - {}", note.replace(['\n', '\r'], " "));
        }
    }
    out
}

fn worktree(out: &mut String, draft: &Draft) {
    out.push_str(
        "\n# Sandboxes withhold secrets (.env, keys, credentials) but those that are named here:\n# \
         secrets: [\".env\"]\n\nworktree:\n  # Ignored files that a session needs a copy of.\n  \
         include: [\".env\", \".env.*\"]\n",
    );
    if !draft.directories.is_empty() {
        out.push_str(
            "  # Large directories: `copy` (cheap where the file system can), `share`, `skip`.\n",
        );
        out.push_str("  directories:\n");
        for (path, strategy) in &draft.directories {
            let _ = writeln!(out, "    {path}: {strategy}");
        }
    }
}

fn container(out: &mut String, entry: &ComposeEntry) {
    out.push_str("    strategy: container\n");
    let _ = writeln!(out, "    image: {}", scalar(entry.image.as_deref().unwrap_or_default()));
    if let Some(command) = &entry.command {
        let words: Vec<String> =
            command.iter().map(|word| json(&word.replace('$', "$$"))).collect();
        let _ = writeln!(out, "    command: [{}]", words.join(", "));
    }
    if !entry.ports.is_empty() {
        out.push_str("    # The ports inside; outside, each session has its own.\n    ports:\n");
        for port in &entry.ports {
            let _ = writeln!(out, "      {}: {}", port.name, port.target);
        }
    }
    if !entry.volumes.is_empty() {
        let volumes: Vec<String> = entry.volumes.iter().map(|volume| json(volume)).collect();
        let _ = writeln!(out, "    volumes: [{}]", volumes.join(", "));
    }
    if !entry.mounts.is_empty() {
        out.push_str("    mounts:\n");
        for (source, target) in &entry.mounts {
            let _ = writeln!(out, "      {}: {}", json(source), json(target));
        }
    }
    if !entry.env.is_empty() {
        out.push_str("    env:\n");
        for (name, value) in &entry.env {
            let _ = writeln!(out, "      {name}: {}", scalar(&value.replace('$', "$$")));
        }
    }
}

/// A text that every YAML parser reads as exactly this text.
fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./ ".contains(c);
    let safe = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(plain)
        && !text.ends_with(' ')
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
            .contains(&text.to_ascii_lowercase().as_str());
    if safe { text.to_owned() } else { json(text) }
}

/// Quotes as JSON, which is valid in YAML's double quotes.
fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
