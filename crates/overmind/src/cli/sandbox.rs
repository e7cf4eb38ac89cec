//! `overmind sandbox …`: what this machine can give, measured here and now. Needs no server.

use overmind_core::attest::Attested;
use overmind_core::sandbox::SandboxError;
use overmind_sandbox::{Sandboxes, levels};
use serde_json::{Value, json};

use super::args_more::SandboxCommand;
use super::context::Context;
use super::exit::{Exit, Failure, Outcome};
use super::sandbox_image;
use super::show::{cell, dim};
use crate::app;
use crate::output::table::{Table, Tone};

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
                    cx.out.note(&format!("the level {level} is given here, and is not measured"));
                    if !cx.out.for_people() {
                        cx.out.value(&Value::Null)?;
                    }
                }
            }
        }
    }
    Ok(Exit::Done)
}

fn show(cx: &Context, attested: &Attested) -> Result<(), Failure> {
    if !cx.out.for_people() {
        return Ok(cx.out.value(&json!(attested))?);
    }
    let mut table = Table::new(&["CHECK", "PASS", "EXPECTED", "FOUND"]);
    for check in &attested.attestation.checks {
        let tone = if check.pass { Tone::Plain } else { Tone::Bad };
        let pass = if check.pass { "yes" } else { "no" };
        let mut row = vec![cell(check.name.as_str()), (pass.to_owned(), tone)];
        row.extend([cell(&check.expected), cell(&check.measured)]);
        table.row(row);
    }
    cx.out.table(&table)?;
    let mut table = Table::new(&["LIMIT", "ENFORCED BY", "REMARK"]);
    for bound in &attested.attestation.bounds {
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
