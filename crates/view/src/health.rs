//! The health of the server: its checks, each with a remedy if it failed.

use overmind_api::{AuditReport, Leaks, Loop, LoopState, Status, Timestamp, VaultInfo};

use crate::clean;
use crate::log::bytes;
use crate::parts::{Pill, Tone, thousands};
use crate::when::When;

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckRow {
    pub name: &'static str,
    pub pill: Pill,
    /// The result in one line.
    pub found: String,
    /// What to do; empty if nothing has to be done.
    pub remedy: String,
}

/// A loop of the server: a task that it repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopRow {
    pub name: String,
    pub pill: Pill,
    pub passes: String,
    pub last: Option<When>,
    pub said: String,
}

/// The page of the server's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthPage {
    pub version: String,
    pub started: When,
    pub checks: Vec<CheckRow>,
    pub loops: Vec<LoopRow>,
    /// The location of the store, as a hint for the path of a backup.
    pub location: String,
}

/// The data of the page; `None` if the reader may not see it, or did not request it.
#[derive(Clone, Debug, Default)]
pub struct HealthData<'a> {
    pub loops: &'a [Loop],
    pub vault: Option<&'a VaultInfo>,
    pub leaks: Option<&'a Leaks>,
    /// Only after *Verify*, because it reads the whole log.
    pub audit: Option<&'a AuditReport>,
}

fn fine(name: &'static str, found: impl Into<String>) -> CheckRow {
    let pill = Pill::new(Tone::Good, "✓", "good");
    CheckRow { name, pill, found: found.into(), remedy: String::new() }
}

fn warns(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> CheckRow {
    let pill = Pill::new(Tone::Ask, "▲", "look at it");
    CheckRow { name, pill, found: found.into(), remedy: remedy.into() }
}

fn broken(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> CheckRow {
    let pill = Pill::new(Tone::Bad, "✕", "broken");
    CheckRow { name, pill, found: found.into(), remedy: remedy.into() }
}

impl HealthPage {
    pub fn new(status: &Status, data: &HealthData<'_>) -> Self {
        let now = status.now;
        let mut checks = vec![ready(status), runs(status), store(status), policy(status)];
        checks.push(match status.answers.as_slice() {
            [] => {
                let remedy = "Set a key under Models and keys; programs with a login of their own need none.";
                warns("models", "no provider's API is answered here", remedy)
            }
            answers => {
                let names: Vec<_> = answers.iter().map(|name| clean::line(name)).collect();
                fine("models", format!("answers calls of the APIs of {}", names.join(", ")))
            }
        });
        checks.extend(data.vault.map(vault));
        checks.push(loops(data.loops));
        checks.extend(data.leaks.map(leaks));
        checks.extend(data.audit.map(audit));
        Self {
            version: clean::line(&status.version).into_owned(),
            started: When::new(status.started_at, now),
            checks,
            loops: data.loops.iter().map(|one| LoopRow::new(one, now)).collect(),
            location: clean::line(&status.store.location).into_owned(),
        }
    }
}

fn ready(status: &Status) -> CheckRow {
    let reason = clean::line(status.ready.reason.as_deref().unwrap_or_default());
    match (status.ready.ok, reason.is_empty()) {
        (true, _) => fine("server", clean::line(&status.ready.state).into_owned()),
        (false, true) => {
            let state = clean::line(&status.ready.state).into_owned();
            broken("server", state, "Look at its log.")
        }
        (false, false) => {
            let remedy = "It takes no new work until this is solved; its log says more.";
            broken("server", format!("{}: {reason}", clean::line(&status.ready.state)), remedy)
        }
    }
}

fn runs(status: &Status) -> CheckRow {
    let (running, queued) = (u64::from(status.running), status.queued);
    let found = format!(
        "{} at work of {} at once, {} queued",
        thousands(running),
        thousands(u64::from(status.capacity)),
        thousands(queued)
    );
    if queued > 0 && status.running >= status.capacity {
        return warns(
            "runs",
            found,
            "Raise `engine.max_running`, or end runs that are not needed.",
        );
    }
    fine("runs", found)
}

fn store(status: &Status) -> CheckRow {
    let store = &status.store;
    let found = format!(
        "{} events in {} streams, {} on disk",
        thousands(store.events),
        thousands(store.streams),
        bytes(store.bytes)
    );
    fine("store", found)
}

fn policy(status: &Status) -> CheckRow {
    let Some(policy) = &status.policy else {
        return broken("policy", "there is none", "Restart the server with its own policy.");
    };
    if let Some(why) = &policy.refused {
        let remedy = "The policy before it holds. Correct the file; it is read again at once.";
        return warns("policy", clean::line(why).into_owned(), remedy);
    }
    match policy.source.as_str() {
        "off" => warns(
            "policy",
            "switched off: every call is allowed",
            "Take `policy.file = none` out of the configuration.",
        ),
        "builtin" => fine("policy", "the built-in policy"),
        _ => fine("policy", clean::line(policy.file.as_deref().unwrap_or("a file")).into_owned()),
    }
}

fn vault(info: &VaultInfo) -> CheckRow {
    if let Some(why) = &info.locked {
        return broken("vault", clean::line(why).into_owned(), "overmind vault unlock");
    }
    if info.damaged > 0 {
        let found = format!("{} of {} secrets do not open", info.damaged, info.secrets);
        return broken("vault", found, "Set them again, or restore a backup with its key.");
    }
    fine("vault", format!("{} secrets", thousands(info.secrets)))
}

fn loops(loops: &[Loop]) -> CheckRow {
    let of = |state: LoopState| {
        let names = loops.iter().filter(|one| one.state == state).map(|one| clean::line(&one.name));
        names.collect::<Vec<_>>().join(", ")
    };
    let (failing, paused) = (of(LoopState::Failing), of(LoopState::Paused));
    if !failing.is_empty() {
        let remedy = "The table below has the error of the last pass.";
        return broken("loops", format!("failing: {failing}"), remedy);
    }
    if !paused.is_empty() {
        return warns("loops", format!("paused: {paused}"), "overmind loop resume NAME");
    }
    fine("loops", format!("{} loops", loops.len()))
}

fn leaks(leaks: &Leaks) -> CheckRow {
    match leaks.leaks.as_slice() {
        [] => fine("environments", "no run that is gone has left anything"),
        all => {
            let first = all.first().map(|one| format!("{} {}", one.kind, one.what));
            let first = first.unwrap_or_default();
            let found = match all.len() {
                1 => format!("left by a run that is gone: {first}"),
                many => format!("{many} things are left by runs that are gone: {first}, …"),
            };
            warns("environments", clean::line(&found).into_owned(), "overmind doctor --fix")
        }
    }
}

fn audit(report: &AuditReport) -> CheckRow {
    if report.ok {
        let found = format!(
            "{} events in {} streams have the right hashes and signatures",
            thousands(report.events),
            thousands(report.streams)
        );
        return fine("log", found);
    }
    let first = report.findings.first().map_or("", |one| one.message.as_str());
    let found = format!("{} damages: {}", report.findings.len(), clean::line(first));
    broken("log", found, "overmind audit verify lists them; overmind restore restores a backup.")
}

impl LoopRow {
    fn new(one: &Loop, now: Timestamp) -> Self {
        let (tone, shape, text) = match one.state {
            LoopState::Running => (Tone::Busy, "◐", "running"),
            LoopState::Waiting => (Tone::Good, "●", "waiting"),
            LoopState::Paused => (Tone::Ask, "‖", "paused"),
            LoopState::Failing => (Tone::Bad, "✕", "failing"),
        };
        Self {
            name: clean::line(&one.name).into_owned(),
            pill: Pill::new(tone, shape, text),
            passes: thousands(one.passes),
            last: one.last.as_ref().map(|pass| When::new(pass.began_at, now)),
            said: one
                .last
                .as_ref()
                .map_or(String::new(), |pass| clean::line(&pass.said).into_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(more: serde_json::Value) -> Status {
        let at = "2026-11-25T16:00:00+00:00";
        let mut status = json!({"version": "1", "started_at": at, "now": at,
            "ready": {"ok": true, "state": "ready"}, "running": 1, "queued": 0, "capacity": 8,
            "store": {"events": 1200, "streams": 3, "runs": [], "agents": 1, "memory_items": 0,
                "bytes": 4096, "schema": 1, "last_checkpoint": null, "location": "/d/overmind.db"},
            "policy": {"source": "builtin", "version": "p"}, "answers": ["openai"], "tools": []});
        status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(status).unwrap()
    }

    fn of(page: &HealthPage, name: &str) -> CheckRow {
        page.checks.iter().find(|check| check.name == name).unwrap().clone()
    }

    #[test]
    fn a_healthy_server_shows_no_actions() {
        let page = HealthPage::new(&status(json!({})), &HealthData::default());
        for check in &page.checks {
            assert_eq!((check.pill.tone, check.remedy.as_str()), (Tone::Good, ""), "{check:?}");
        }
        assert_eq!(of(&page, "store").found, "1,200 events in 3 streams, 4.0 KiB on disk");
        assert!(page.checks.iter().all(|check| check.name != "log"), "the log is read on demand");
    }

    #[test]
    fn a_problem_is_shown_with_its_remedy() {
        let more = json!({"ready": {"ok": false, "state": "degraded", "reason": "disk \u{1b}full"},
            "running": 8, "queued": 3, "answers": [],
            "policy": {"source": "file", "version": "p", "refused": "line 3"}});
        let failing: Loop = serde_json::from_value(json!({"name": "retention", "state": "failing",
            "every_ms": 1000, "passes": 4, "errors": 2, "last":
                {"began_at": "2026-11-25T15:00:00+00:00", "took_ms": 3, "ok": false, "said": "x"}}))
        .unwrap();
        let locked = VaultInfo {
            locked: Some("no key file".into()),
            protection: None,
            secrets: 1,
            damaged: 0,
        };
        let leak = json!({"leaks": [{"kind": "port", "what": "8080", "session": null, "how": "x",
            "fixable": true, "bytes": null}]});
        let leaks: Leaks = serde_json::from_value(leak).unwrap();
        let loops = [failing];
        let data =
            HealthData { loops: &loops, vault: Some(&locked), leaks: Some(&leaks), audit: None };
        let page = HealthPage::new(&status(more), &data);
        assert_eq!(of(&page, "server").found, "degraded: disk \\u{1b}full");
        for (name, tone) in [
            ("server", Tone::Bad),
            ("runs", Tone::Ask),
            ("policy", Tone::Ask),
            ("models", Tone::Ask),
            ("vault", Tone::Bad),
            ("loops", Tone::Bad),
            ("environments", Tone::Ask),
        ] {
            let check = of(&page, name);
            assert_eq!(check.pill.tone, tone, "{check:?}");
            assert!(!check.remedy.is_empty(), "{check:?}");
        }
        assert_eq!(page.loops[0].last.as_ref().unwrap().ago, "1 h");
    }
}
