//! Teeth: the evidence of a clean run is spoiled in one way at a time, and the rule that is
//! meant for it must object. A checker that sees nothing would pass every crash test.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use overmind_api::RunStatus;
use overmind_core::ids::SessionId;
use overmind_core::row::SessionStatus;
use rusqlite::{Connection, params};

use super::check::{Rule, check};
use super::daemon::leftovers;
use super::evidence::{Evidence, Outside, Story};
use super::harness::{Harness, copy_store};
use super::ledger::Order;

type InStore = fn(&Connection, &Evidence);
type InWorld = fn(&mut Outside, &Evidence);

/// Manipulations of the rows and the log.
const STORE: &[(&str, Rule, InStore)] = &[
    ("a session and all of it is deleted", Rule::Acknowledged, |db, evidence| {
        let id = blob(some(evidence, |_| true).row.id);
        run(db, "DELETE FROM steps WHERE session = ?1", &id);
        run(db, "DELETE FROM sessions WHERE id = ?1", &id);
        run(db, "DELETE FROM events WHERE stream = (SELECT n FROM streams WHERE name = ?1)", &id);
        run(db, "DELETE FROM streams WHERE name = ?1", &id);
    }),
    ("an ended session runs again", Rule::Settled, |db, evidence| {
        let id = blob(succeeded(evidence).row.id);
        run(db, "UPDATE sessions SET status = 'running', finished_at = NULL WHERE id = ?1", &id);
    }),
    ("one byte of a payload is another", Rule::Audit, |db, evidence| {
        let id = blob(succeeded(evidence).row.id);
        run(db, &format!("UPDATE events SET payload = payload || ' ' {OF} AND seq = 2"), &id);
    }),
    ("an event in the middle is deleted", Rule::Sequence, |db, evidence| {
        let id = blob(succeeded(evidence).row.id);
        run(db, &format!("DELETE FROM events {OF} AND seq = 4"), &id);
    }),
    ("the last event is deleted", Rule::OneEnd, |db, evidence| {
        let id = blob(succeeded(evidence).row.id);
        run(db, &format!("DELETE FROM events {OF} AND kind = 'run.succeeded'"), &id);
    }),
    ("a status is flipped", Rule::OneEnd, |db, evidence| {
        let id = blob(succeeded(evidence).row.id);
        run(db, "UPDATE sessions SET status = 'failed' WHERE id = ?1", &id);
    }),
    ("a session ends twice", Rule::OneEnd, |db, evidence| {
        let id = blob(succeeded(evidence).row.id);
        run(db, &copy_event("run.succeeded"), &id);
    }),
    ("a decision says something else", Rule::Replay, |db, evidence| {
        let id = blob(succeeded(evidence).row.id);
        let sql = "UPDATE events SET payload = replace(payload, '\"idx\":0', '\"idx\":1')";
        run(db, &format!("{sql} {OF} AND kind = 'step.started'"), &id);
    }),
    ("a row counts other tokens", Rule::RowIsLog, |db, evidence| {
        let id = blob(succeeded(evidence).row.id);
        run(db, "UPDATE sessions SET input_tokens = input_tokens + 1 WHERE id = ?1", &id);
    }),
    ("a step's input is another", Rule::RowIsLog, |db, evidence| {
        let id = blob(succeeded(evidence).row.id);
        run(db, "UPDATE steps SET input = '{}' WHERE session = ?1 AND idx = 1", &id);
    }),
    ("a step is deleted", Rule::Steps, |db, evidence| {
        let id = blob(succeeded(evidence).row.id);
        run(db, "DELETE FROM steps WHERE session = ?1 AND idx = 1", &id);
    }),
    ("a step never ended", Rule::Steps, |db, evidence| {
        let id = blob(succeeded(evidence).row.id);
        let sql = "UPDATE steps SET finished_at = NULL, output = NULL";
        run(db, &format!("{sql} WHERE session = ?1 AND idx = 1"), &id);
    }),
    ("a result is taken twice", Rule::ToolCalls, |db, evidence| {
        let id = blob(some(evidence, |story| story.tool_events().count() > 0).row.id);
        run(db, &copy_event("tool.called"), &id);
    }),
    ("a step has an output that nothing gave", Rule::ToolCalls, |db, evidence| {
        let id = blob(some(evidence, |story| story.tool_events().count() > 0).row.id);
        let sql = "UPDATE steps SET output = '{\"ok\":true,\"made\":\"up\"}'";
        run(db, &format!("{sql} WHERE session = ?1 AND kind = 'tool'"), &id);
    }),
    ("a model call is not counted", Rule::ModelCalls, |db, evidence| {
        let id = blob(some(evidence, |story| story.row.model_calls > 1).row.id);
        run(db, "UPDATE sessions SET model_calls = model_calls - 1 WHERE id = ?1", &id);
    }),
    ("an epoch is another", Rule::Epochs, |db, evidence| {
        let id = blob(succeeded(evidence).row.id);
        run(db, "UPDATE sessions SET epoch = epoch + 1 WHERE id = ?1", &id);
    }),
    ("an answered item is open again", Rule::Inbox, |db, evidence| {
        let id = blob(some(evidence, |story| !story.inbox.is_empty()).row.id);
        run(db, "UPDATE inbox SET state = 'open' WHERE session = ?1", &id);
    }),
    ("an item is deleted", Rule::Inbox, |db, evidence| {
        let id = blob(some(evidence, |story| !story.inbox.is_empty()).row.id);
        run(db, "DELETE FROM inbox WHERE session = ?1", &id);
    }),
    ("a note is remembered twice", Rule::Memory, |db, _| {
        db.execute_batch(
            "CREATE TEMP TABLE twin AS SELECT * FROM memory_items LIMIT 1; \
             UPDATE twin SET n = n + 1000000, id = randomblob(16); \
             INSERT INTO memory_items SELECT * FROM twin",
        )
        .expect("the item is copied");
    }),
    ("a note is forgotten", Rule::Memory, |db, _| {
        db.execute_batch("DELETE FROM memory_items WHERE n = (SELECT min(n) FROM memory_items)")
            .expect("the item is deleted");
    }),
    ("a consent was a denial", Rule::Approvals, |db, evidence| {
        let ran = |story: &Story| {
            story.of_kind("approval.requested").count() > 0 && story.tool_events().count() > 0
        };
        let id = blob(some(evidence, ran).row.id);
        let sql =
            "UPDATE events SET payload = replace(payload, '\"approve\":true', '\"approve\":false')";
        run(db, &format!("{sql} {OF} AND kind = 'approval.answered'"), &id);
    }),
];

/// Manipulations of the harness's own findings.
const WORLD: &[(&str, Rule, InWorld)] = &[
    ("a session that nobody asked for", Rule::Acknowledged, |outside, _| {
        outside.ledger.plans[0].request.task = "something else".into();
    }),
    ("a request that was never answered", Rule::Acknowledged, |outside, _| {
        outside.ledger.acknowledged.pop_first();
    }),
    ("a mark is made twice", Rule::Marks, |outside, evidence| {
        *outside.marks.entry(a_mark(evidence)).or_default() += 1;
    }),
    ("a mark is not made", Rule::Marks, |outside, evidence| {
        outside.marks.remove(&a_mark(evidence));
    }),
    ("a mark is made by nobody", Rule::Marks, |outside, evidence| {
        outside.marks.insert(format!("{}-99", succeeded(evidence).row.id), 1);
    }),
    ("a file is edited twice", Rule::Files, |outside, evidence| {
        edited(outside, evidence).push('+');
    }),
    ("a cancellation that was acknowledged is lost", Rule::Orders, |outside, evidence| {
        outside.ledger.orders.push((succeeded(evidence).row.id, Order::Cancel));
    }),
    ("an answer that was acknowledged is lost", Rule::Orders, |outside, evidence| {
        let order = Order::Answer("an answer that no log has".into());
        outside.ledger.orders.push((succeeded(evidence).row.id, order));
    }),
    ("the API shows another status", Rule::Views, |outside, evidence| {
        let view = outside.ledger.views.get_mut(&succeeded(evidence).row.id);
        view.expect("all were viewed").status = RunStatus::Failed;
    }),
    ("the API's verification fails", Rule::Views, |outside, evidence| {
        let view = outside.ledger.views.get_mut(&succeeded(evidence).row.id);
        view.expect("all were viewed").verified = Err("it differs".into());
    }),
    ("two answers contradict each other", Rule::Complaints, |outside, _| {
        outside.ledger.contradictions.push("ended, then running".into());
    }),
];

/// The events of the session that is the statement's first parameter.
const OF: &str = "WHERE stream = (SELECT n FROM streams WHERE name = ?1)";

/// Repeats an event of this kind at the end of its stream and of the log.
fn copy_event(kind: &str) -> String {
    format!(
        "INSERT INTO events SELECT (SELECT max(global) + 1 FROM events), stream, \
         (SELECT max(seq) + 1 FROM events {OF}), ts, hash, kind, payload FROM events \
         {OF} AND kind = '{kind}' LIMIT 1"
    )
}

fn blob(id: SessionId) -> [u8; 16] {
    id.as_u128().to_be_bytes()
}

/// Changes the rows of one session that `sql` selects; there must be some.
#[track_caller]
fn run(db: &Connection, sql: &str, id: &[u8; 16]) {
    let changed = db.execute(sql, params![id]).expect("the statement is SQL");
    assert!(changed > 0, "nothing to change for: {sql}");
}

#[track_caller]
fn some(evidence: &Evidence, fits: impl Fn(&Story) -> bool) -> &Story {
    evidence.stories.values().find(|story| fits(story)).expect("a clean run has one of each")
}

#[track_caller]
fn succeeded(evidence: &Evidence) -> &Story {
    some(evidence, |story| story.row.status == SessionStatus::Succeeded && story.row.steps > 2)
}

/// The mark of a step that went well, of an agent that never repeats by itself.
fn a_mark(evidence: &Evidence) -> String {
    let wanted = |story: &Story| {
        story.row.status == SessionStatus::Succeeded
            && story.spec().pointer("/agent/name").is_some_and(|name| name == "chatty")
            && story.steps.iter().all(|step| step.error.is_none())
    };
    format!("{}-1", some(evidence, wanted).row.id)
}

/// The content of a file that a session has edited.
fn edited<'a>(outside: &'a mut Outside, evidence: &Evidence) -> &'a mut String {
    let wanted = |story: &Story| story.row.status == SessionStatus::Succeeded;
    let edit = |story: &Story| {
        story.steps.iter().any(|step| {
            step.error.is_none()
                && step.input.get("tool_name").is_some_and(|name| name == "edit_file")
        })
    };
    let story = some(evidence, |story| wanted(story) && edit(story));
    let number = outside.ledger.plan_of(story.row.id).expect("it was acknowledged").number;
    let seed = outside
        .files
        .get_mut(&number)
        .and_then(|files| files.get_mut(std::path::Path::new("seed.txt")));
    seed.expect("every workspace has it")
}

/// A copy of the evidence's store, spoiled.
async fn doctored(evidence: &Evidence, harness: &Harness, spoil: InStore) -> Evidence {
    let copy = harness.world.places.fresh();
    copy_store(evidence.copy.path(), copy.path());
    let db = Connection::open(copy.path().join("overmind.db")).expect("a copy of the database");
    db.execute_batch("PRAGMA foreign_keys = OFF").expect("a pragma");
    spoil(&db, evidence);
    db.close().expect("the copy closes");
    Evidence::read(copy, evidence.outside.clone()).await
}

#[track_caller]
fn must_object(name: &str, rule: Rule, evidence: &Evidence, bitten: &mut BTreeSet<Rule>) {
    let violations = check(evidence);
    assert!(
        violations.iter().any(|violation| violation.rule == rule),
        "{name}: {rule:?} does not object; these do: {violations:?}"
    );
    bitten.insert(rule);
}

/// Ended when dropped: a process that a crash left behind.
struct Orphan(Child);

impl Orphan {
    fn new(words: &str) -> Self {
        let line = format!("sleep 100; : {words}");
        let child = Command::new("sh").args(["-c", &line]).process_group(0).spawn();
        Self(child.expect("sh starts"))
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        // The shell's own child is in its group, and ends with it.
        let group = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

pub(crate) async fn every_rule_has_teeth(evidence: &Evidence, harness: &Harness) {
    let mut bitten = BTreeSet::new();
    for (name, rule, spoil) in STORE {
        let spoiled = Box::pin(doctored(evidence, harness, *spoil)).await;
        must_object(name, *rule, &spoiled, &mut bitten);
    }
    for (name, rule, spoil) in WORLD {
        let mut outside = evidence.outside.clone();
        spoil(&mut outside, evidence);
        must_object(name, *rule, &evidence.with(outside), &mut bitten);
    }
    // Data gathered from the machine is manipulated here, to test the gathering as well.
    let places = &harness.world.places;
    let look = |processes| {
        evidence.with(Outside::look(places, evidence.outside.ledger.clone(), processes, true))
    };
    let tag = harness.world.tag.as_str();
    assert_eq!(check(&look(leftovers(&[], Some(tag)))), [], "clean before it is spoiled");

    let orphan = Orphan::new(tag);
    must_object(
        "a command lives on",
        Rule::Processes,
        &look(leftovers(&[], Some(tag))),
        &mut bitten,
    );
    drop(orphan);
    let orphan = Orphan::new("__sandbox-init");
    let group = [orphan.0.id()];
    must_object("a sandbox lives on", Rule::Processes, &look(leftovers(&group, None)), &mut bitten);
    drop(orphan);

    let draft = places.data().join(".tmpAbCdEf");
    std::fs::write(&draft, "").expect("a file in the data directory");
    must_object("a draft is left", Rule::Litter, &look(Vec::new()), &mut bitten);
    std::fs::remove_file(&draft).expect("it is there");
    let draft = places.workspace(0).join(".overmind-tmp-eff_00000000000080008000000000000000");
    std::fs::write(&draft, "").expect("a file in a workspace");
    must_object("half a file is left", Rule::Litter, &look(Vec::new()), &mut bitten);
    std::fs::remove_file(&draft).expect("it is there");

    let pid = OpenOptions::new().read(true).open(places.data().join("overmind.pid"));
    let pid = pid.expect("the file stays when its daemon is gone");
    pid.lock().expect("nobody has it");
    must_object("a lock is held", Rule::Locks, &look(Vec::new()), &mut bitten);
    drop(pid);

    let mut log = OpenOptions::new().append(true).open(places.log()).expect("there is a log");
    writeln!(log, "thread 'overmind' panicked at nowhere").expect("the log takes a line");
    must_object("a daemon panicked", Rule::Complaints, &look(Vec::new()), &mut bitten);

    assert!(
        bitten.iter().eq(&Rule::ALL),
        "rules that were never seen to object: {:?}",
        Rule::ALL.iter().filter(|rule| !bitten.contains(rule)).collect::<Vec<_>>()
    );
}
