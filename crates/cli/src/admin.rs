//! The server as a whole: `status`, `backup`, `restore`, `audit verify`.

use std::path::Path;

use overmind_api::{AuditReport, Status};
use overmind_core::store::Store as _;
use overmind_node::app::gate;
use overmind_node::app::lock::{self, DataLock, Holder};

use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::Tone;
use crate::output::{clean, when};
use crate::progress::spin;
use crate::remote::Remote;
use crate::show::{self, cell};
use crate::{ids, story};

/// # Errors
///
/// Returns an error if the server could not be asked; one that is not ready is [`Exit::Failed`].
pub async fn status(cx: &Context) -> Outcome {
    let remote = Remote::connect(cx)?;
    let status = remote.status().await?;
    show::one(&cx.out, &status, &status.ready.state, || lines(cx, &remote, &status))?;
    Ok(if status.ready.ok { Exit::Done } else { Exit::Failed })
}

fn lines(cx: &Context, remote: &Remote, status: &Status) -> Vec<(&'static str, (String, Tone))> {
    let ready = match (&status.ready.ok, &status.ready.reason) {
        (true, _) => (status.ready.state.clone(), Tone::Good),
        (false, Some(reason)) => (format!("{}: {reason}", status.ready.state), Tone::Bad),
        (false, None) => (status.ready.state.clone(), Tone::Bad),
    };
    let store = &status.store;
    let mut lines = vec![
        ("state", ready),
        ("version", cell(&status.version)),
        ("at", cell(remote.place())),
        ("up for", cell(when::ago(status.started_at, cx.now()))),
        ("running", cell(format!("{} of {}", status.running, status.capacity))),
        ("queued", cell(status.queued.to_string())),
        ("policy", policy(status)),
        ("agents", cell(store.agents.to_string())),
        ("events", cell(when::thousands(store.events))),
        ("memory items", cell(when::thousands(store.memory_items))),
        ("database", cell(format!("{}, {}", store.location, when::bytes(store.bytes)))),
    ];
    for count in store.runs.iter().filter(|count| count.count > 0) {
        let name = match count.status.as_str() {
            "awaiting_input" => "await input",
            "awaiting_approval" => "await approval",
            other => other,
        };
        if !matches!(name, "running" | "queued") {
            lines.push((name, (when::thousands(count.count), story::tone(count.status))));
        }
    }
    if cx.out.wide() {
        lines.push(("streams", cell(when::thousands(store.streams))));
        lines.push(("schema", cell(store.schema.to_string())));
        let checkpoint = store.last_checkpoint.map_or("none yet".into(), |n| n.to_string());
        lines.push(("checkpoint", cell(checkpoint)));
        lines.push(("tools", cell(status.tools.join(", "))));
    }
    lines
}

fn policy(status: &Status) -> (String, Tone) {
    let Some(policy) = &status.policy else { return (gate::OFF.to_owned(), Tone::Bad) };
    let holds = match (policy.source.as_str(), &policy.file) {
        ("off", _) => return (gate::OFF.to_owned(), Tone::Bad),
        (_, Some(file)) => file,
        (_, None) => "built in",
    };
    match (&policy.refused, &policy.file) {
        (None, _) => cell(holds),
        (Some(why), None) => (format!("{holds}; the policy file is refused: {why}"), Tone::Bad),
        (Some(why), Some(_)) => {
            (format!("the last valid version of {holds}; the file is refused: {why}"), Tone::Bad)
        }
    }
}

/// # Errors
///
/// Returns an error if the backup could not be written.
pub async fn backup(cx: &Context, file: &Path) -> Outcome {
    let remote = Remote::connect(cx)?;
    let path = cx.cwd.join(file);
    // Tidied where this machine knows the directory; the server judges it in any case.
    let path = match (path.parent().map(Path::canonicalize), path.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => path,
    };
    let text =
        path.to_str().ok_or_else(|| Failure::usage(format!("{} is not UTF-8", path.display())))?;
    let done = spin(&cx.out, "writing the backup", remote.backup(text)).await?;
    show::one(&cx.out, &done, &done.path, || {
        vec![("backup", cell(format!("{}, {}", done.path, when::bytes(done.bytes))))]
    })?;
    Ok(Exit::Done)
}

/// # Errors
///
/// Returns an error if the backup could not be put in place; in this case nothing changed.
pub async fn restore(cx: &Context, file: &Path, force: bool) -> Outcome {
    let config = cx.config(None)?;
    config.data.prepare()?;
    // Held to the end: no server may start in the middle.
    let _lock = match DataLock::take(&config.data)? {
        Ok(lock) => lock,
        Err(pid) => {
            return Err(Failure::new(
                Exit::Conflict,
                format!("a server runs on {} (pid {pid})", config.data.path().display()),
            )
            .hint("stop it first: overmind down"));
        }
    };
    let (from, to) = (cx.cwd.join(file), config.store_path.clone());
    let replace =
        if force { overmind_store::Replace::KeepAside } else { overmind_store::Replace::Never };
    let work = {
        let (from, to) = (from.clone(), to.clone());
        tokio::task::spawn_blocking(move || overmind_store::restore(&from, &to, replace))
    };
    let done = spin(&cx.out, "checking and copying the backup", work)
        .await
        .map_err(|err| Failure::failed(format!("restoring failed: {err}")))?;
    let aside = done.map_err(|err| restore_failure(err, force))?;
    let value = serde_json::json!({"ok": true, "restored": to, "from": from, "kept_aside": aside});
    show::one(&cx.out, &value, &to.display().to_string(), || {
        let mut lines = vec![("restored", cell(to.display().to_string()))];
        if let Some(aside) = &aside {
            lines.push(("old one", cell(aside.display().to_string())));
        }
        lines
    })?;
    cx.out.note("start the server: overmind up -d");
    Ok(Exit::Done)
}

fn restore_failure(err: overmind_core::store::StoreError, force: bool) -> Failure {
    use overmind_core::store::StoreError;
    let message = err.to_string();
    match err {
        StoreError::Conflict { .. } if !force => Failure::new(Exit::Conflict, message)
            .hint("--force puts the backup in its place and keeps the old one aside"),
        StoreError::Conflict { .. } | StoreError::Locked { .. } => {
            Failure::new(Exit::Conflict, message)
        }
        StoreError::NotFound { .. } => Failure::new(Exit::NotFound, message),
        StoreError::Full { .. }
        | StoreError::ReadOnly { .. }
        | StoreError::Corrupt { .. }
        | StoreError::Lost { .. }
        | StoreError::TooNew { .. }
        | StoreError::Closed { .. }
        | StoreError::Other { .. } => Failure::failed(message),
    }
}

/// # Errors
///
/// Returns an error if the log could not be read; findings are [`Exit::Failed`].
pub async fn audit(cx: &Context) -> Outcome {
    let report = if cx.global.server.is_some() || served(cx)? {
        let remote = Remote::connect(cx)?;
        spin(&cx.out, "reading the log", remote.audit()).await?
    } else {
        spin(&cx.out, "reading the log", offline(cx)).await?
    };
    show::one(&cx.out, &report, if report.ok { "ok" } else { "damaged" }, || {
        report_lines(&report)
    })?;
    if report.ok {
        return Ok(Exit::Done);
    }
    for finding in &report.findings {
        cx.out.error(&finding.message, None);
    }
    Err(Failure::failed(format!("the log has {} damages", report.findings.len()))
        .hint("`overmind restore` restores a backup; keep this database to see what happened"))
}

fn served(cx: &Context) -> Result<bool, Failure> {
    Ok(cx.env.text(overmind_node::config::env::SERVER).is_some()
        || matches!(lock::holder(&cx.data()?), Holder::Server { .. }))
}

/// Opens the database of a server that does not run.
async fn offline(cx: &Context) -> Result<AuditReport, Failure> {
    let config = cx.config(None)?;
    if !config.store_path.exists() {
        return Err(Failure::new(
            Exit::NotFound,
            format!("there is no database at {}", config.store_path.display()),
        )
        .hint("`overmind up` creates one; --data names another directory"));
    }
    let _lock = DataLock::take(&config.data)?.map_err(|pid| {
        Failure::new(Exit::Conflict, format!("a server has just started (pid {pid}): try again"))
    })?;
    let mut options = overmind_store::Options::new(&config.store_path);
    options.on_loss = overmind_store::OnLoss::ReadOnly;
    let open = tokio::task::spawn_blocking(move || overmind_store::Sqlite::open(options));
    let store =
        open.await.map_err(|err| Failure::failed(format!("opening the database: {err}")))??;
    let report = store.audit().await?;
    match store.close().await {
        // The report says so.
        Ok(()) | Err(overmind_core::store::StoreError::Lost { .. }) => {}
        Err(err) => return Err(err.into()),
    }
    Ok(report.into())
}

fn report_lines(report: &AuditReport) -> Vec<(&'static str, (String, Tone))> {
    let verdict = if report.ok {
        ("intact".to_owned(), Tone::Good)
    } else {
        (format!("{} damages", report.findings.len()), Tone::Bad)
    };
    vec![
        ("log", verdict),
        ("events", cell(when::thousands(report.events))),
        ("chains", cell(when::thousands(report.streams))),
        ("checkpoints", cell(report.checkpoints.to_string())),
        ("attestations", cell(report.attestations.to_string())),
        ("not yet signed", cell(format!("{} events", when::thousands(report.unsigned_tail)))),
        ("signing key", cell(ids::short(&clean::line(&report.key)))),
    ]
}
