//! `overmind sandbox …`: what this machine can give, measured here and now, without a server; and
//! what was measured for a run, which the server knows.

use overmind_api::RoomAttested;
use overmind_core::attest::{Attestation, Attested, Seal};
use overmind_core::sandbox::{SandboxError, SandboxLevel};
use overmind_node::app;
use overmind_sandbox::{Sandboxes, levels};
use serde_json::{Value, json};

use crate::args_more::SandboxCommand;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::clean;
use crate::output::table::{Table, Tone};
use crate::remote::Remote;
use crate::sandbox_image;
use crate::show::{self, cell, dim};

/// # Errors
///
/// When the configuration is wrong, or a level that was asked for by name is not given.
pub async fn run(cx: &Context, command: SandboxCommand) -> Outcome {
    let config = cx.config(None)?;
    let all = Sandboxes::new(
        app::sandbox_options(&config),
        app::docker_options(&config, "looks"),
        app::microvm_options(&config),
    );
    match command {
        SandboxCommand::Verify { run, of } => return verify(cx, &run, of.as_deref()).await,
        SandboxCommand::Image(command) => return sandbox_image::run(cx, command).await,
        SandboxCommand::Levels => {
            let reports = all.levels().await;
            if cx.out.for_people() {
                cx.out.text(&levels::text(&reports))?;
            } else {
                let strongest = levels::strongest(&reports).as_str();
                cx.out.value(&json!({"strongest": strongest, "levels": reports}))?;
            }
        }
        SandboxCommand::Attest { level } => {
            let driver = all.by_name(&level).map_err(not_given)?;
            match driver.attest().await.map_err(not_given)? {
                Some(attested) => show(cx, &attested)?,
                None => {
                    driver.check().await.map_err(not_given)?;
                    cx.out.note(&format!(
                        "the level {level} is available here, and is not \
                        measured"
                    ));
                    if !cx.out.for_people() {
                        cx.out.value(&Value::Null)?;
                    }
                }
            }
        }
    }
    Ok(Exit::Done)
}

/// The record on a run, and whether it is the one that was signed.
async fn verify(cx: &Context, run: &str, of: Option<&str>) -> Outcome {
    let remote = Remote::connect(cx)?;
    let id = remote.find_run(run).await?;
    let record = match (remote.run_attestation(&id, of).await, of) {
        (Err(err), Some(of)) if err.exit == Exit::NotFound => {
            return Err(nothing_of(&remote, &id, of, err).await);
        }
        (record, _) => record?,
    };
    let attestation: Attestation = serde_json::from_str(record.attestation.as_str())
        .map_err(|err| Failure::failed(format!("the record cannot be read: {err}")))?;
    if cx.out.for_people() {
        tables(cx, &attestation)?;
    }
    let holds = record.seal == Seal::Holds.as_str();
    let signature = record.signature.as_ref();
    let signer = signature.and_then(|one| one["signer"].as_str()).unwrap_or("nobody").to_owned();
    show::one(&cx.out, &record, &record.digest, || {
        vec![
            ("run", cell(&id)),
            ("of", cell(of.unwrap_or("its commands"))),
            ("record", cell(&record.digest)),
            ("driver", cell(&attestation.driver)),
            ("asked", cell(attestation.asked.as_str())),
            ("proved", proved(attestation.achieved)),
            ("measured at", cell(attestation.at.to_string())),
            ("kernel", cell(&attestation.kernel)),
            ("signed by", cell(signer)),
            ("signature", (record.seal.clone(), if holds { Tone::Good } else { Tone::Bad })),
        ]
    })?;
    if holds {
        return Ok(Exit::Done);
    }
    Err(Failure::failed(format!("attestation {}: its signature is {}", record.digest, record.seal))
        .hint("it was changed, or signed by another key: `overmind audit verify` says which"))
}

/// A program of an environment and its sandbox, on a line.
pub(super) fn measured(one: &RoomAttested) -> (String, Tone) {
    let RoomAttested { of, driver, attestation } = one;
    let (of, driver) = (clean::line(of), clean::line(driver));
    let digest = clean::cut(&attestation.digest, 16);
    cell(format!("{of}: {} by {driver}, record {digest}", attestation.achieved))
}

/// There is no such program: says which there are.
async fn nothing_of(remote: &Remote, id: &str, of: &str, err: Failure) -> Failure {
    let Ok(run) = remote.run(id).await else { return err };
    let known: Vec<String> =
        run.room.into_iter().flat_map(|room| room.attested).map(|one| one.of).collect();
    let failure = Failure::new(
        Exit::NotFound,
        format!(
            "there is no measurement of `{of}` of \
        {id}"
        ),
    );
    failure.hint(match known.as_slice() {
        [] => "no program of its environment ran in a sandbox".to_owned(),
        known => format!("there are: {}", known.join(", ")),
    })
}

fn proved(level: SandboxLevel) -> (String, Tone) {
    match level {
        SandboxLevel::None => ("none: commands are NOT ISOLATED".to_owned(), Tone::Bad),
        SandboxLevel::Namespace | SandboxLevel::Docker | SandboxLevel::Microvm => {
            (level.as_str().to_owned(), Tone::Good)
        }
    }
}

fn show(cx: &Context, attested: &Attested) -> Result<(), Failure> {
    if !cx.out.for_people() {
        return Ok(cx.out.value(&json!(attested))?);
    }
    if attested.attestation.achieved == SandboxLevel::None {
        cx.out.note(
            "the level `none` isolates nothing: commands run as the server's user, with all its \
                rights; below is what they can reach",
        );
    }
    tables(cx, &attested.attestation)
}

fn tables(cx: &Context, attestation: &Attestation) -> Result<(), Failure> {
    let mut table = Table::new(&["CHECK", "PASS", "EXPECTED", "FOUND"]);
    for check in &attestation.checks {
        let tone = if check.pass { Tone::Plain } else { Tone::Bad };
        let pass = if check.pass { "yes" } else { "no" };
        let mut row = vec![cell(check.name.as_str()), (pass.to_owned(), tone)];
        row.extend([cell(&check.expected), cell(&check.measured)]);
        table.row(row);
    }
    cx.out.table(&table)?;
    let mut table = Table::new(&["LIMIT", "ENFORCED BY", "REMARK"]);
    for bound in &attestation.bounds {
        let by = bound.enforced_by.as_deref().map_or_else(|| dim("nothing"), cell);
        table.row(vec![cell(&bound.limit), by, cell(&bound.remark)]);
    }
    Ok(cx.out.table(&table)?)
}

fn not_given(err: SandboxError) -> Failure {
    match err {
        SandboxError::Unavailable { message, remedy, .. } => Failure::failed(message).hint(remedy),
        SandboxError::BadConfig { message, .. } => Failure::usage(message),
        SandboxError::Failed { .. } => Failure::failed(err.to_string()),
    }
}
