//! `artifact`: files that runs leave behind.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};

use overmind_api::{Artifact, ListQuery, MAX_ARTIFACT, RunBasic};
use overmind_node::config::env;
use serde_json::json;

use crate::args_artifact::{ArtifactCommand, ArtifactGetArgs, ArtifactOfRun, ArtifactSaveArgs};
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::Table;
use crate::output::{clean, when};
use crate::remote::Remote;
use crate::show::{self, cell};

/// # Errors
///
/// Returns an error if the command fails.
pub async fn run(cx: &Context, command: ArtifactCommand) -> Outcome {
    let remote = Remote::connect(cx)?;
    match command {
        ArtifactCommand::List { run, limit } => {
            let run = match run {
                Some(run) => remote.find_run(&run).await?,
                None => match own_run(cx) {
                    Ok(own) => own,
                    Err(_) => newest(cx, &remote).await?,
                },
            };
            list(cx, &remote, &run, limit).await?;
        }
        ArtifactCommand::Get(args) => get(cx, &remote, &args).await?,
        ArtifactCommand::Save(args) => save(cx, &remote, args).await?,
        ArtifactCommand::Rm(of) => {
            let (run, name) = named(cx, &remote, &of).await?;
            remote.client().artifact_delete(&run, &name).await?;
            let done = json!({"ok": true, "run_id": run, "name": name});
            show::one(&cx.out, &done, &name, || vec![("deleted", cell(name.as_str()))])?;
        }
    }
    Ok(Exit::Done)
}

/// The run that this command was started in.
fn own_run(cx: &Context) -> Result<String, Failure> {
    let own = cx.env.text(env::SESSION_ID).or_else(|| cx.env.text(env::SESSION));
    own.map(str::to_owned).ok_or_else(|| {
        Failure::usage("no run is given, and this command does not run inside one")
            .hint("name one: `overmind ps --all` lists them")
    })
}

/// The newest run, as `overmind logs` takes it.
async fn newest(cx: &Context, remote: &Remote) -> Result<String, Failure> {
    let runs: Vec<RunBasic> = remote.runs(&[], None, 1).await?;
    let Some(run) = runs.first() else {
        return Err(Failure::new(Exit::NotFound, "there are no runs yet")
            .hint("overmind run AGENT TASK starts one"));
    };
    cx.out.note(&format!(
        "of `{}`, the newest run; name another: overmind artifact list RUN",
        run.name
    ));
    Ok(run.id.to_string())
}

async fn named(
    cx: &Context,
    remote: &Remote,
    of: &ArtifactOfRun,
) -> Result<(String, String), Failure> {
    match of.of.as_slice() {
        [run, name] => Ok((remote.find_run(run).await?, name.clone())),
        [name] => Ok((own_run(cx)?, name.clone())),
        _ => Err(Failure::usage("give a run and the artifact's name")),
    }
}

async fn list(cx: &Context, remote: &Remote, run: &str, limit: u32) -> Result<(), Failure> {
    let client = remote.client();
    let query = ListQuery { limit: Some(limit.min(1000)), cursor: None };
    let mut page = client.artifact_list(run, &query).await?;
    let mut all: Vec<Artifact> = Vec::new();
    loop {
        let more = all.len() + page.items.len() < limit as usize;
        let next = if more { client.page_next(&page).await? } else { None };
        all.extend(page.items);
        match next {
            Some(next) => page = next,
            None => break,
        }
    }
    all.truncate(limit as usize);
    show::list(
        &cx.out,
        &all,
        |one| one.name.clone(),
        |wide| {
            let mut columns = vec!["NAME", "VERSION", "SIZE", "TYPE", "BY"];
            if wide {
                columns.extend(["SAVED", "BLAKE3"]);
            }
            let mut table = Table::new(&columns);
            for one in &all {
                let mut row = vec![
                    cell(one.name.as_str()),
                    cell(one.version.to_string()),
                    cell(when::bytes(one.size)),
                    cell(one.media_type.as_str()),
                    cell(one.author.as_str()),
                ];
                if wide {
                    row.extend([cell(one.updated_at.to_string()), cell(one.blake3.as_str())]);
                }
                table.row(row);
            }
            table
        },
        "this run has saved no artifacts",
    )
}

async fn get(cx: &Context, remote: &Remote, args: &ArtifactGetArgs) -> Result<(), Failure> {
    let (run, name) = named(cx, remote, &args.of).await?;
    if let Some(path) = &args.file
        && !args.force
        && path.symlink_metadata().is_ok()
    {
        let message = format!("{} exists already", path.display());
        return Err(Failure::new(Exit::Conflict, message).hint("--force writes over it"));
    }
    let mut download = remote.client().artifact_get(&run, &name).await?;
    match &args.file {
        Some(path) => {
            let failed = |err| Failure::failed(format!("writing {}: {err}", path.display()));
            // Under another name until it is whole.
            let part = part_of(path)?;
            let mut file = create(&part).map_err(failed)?;
            let mut bytes = 0;
            let done = async {
                while let Some(piece) = download.next().await? {
                    bytes += piece.len() as u64;
                    file.write_all(&piece).map_err(failed)?;
                }
                std::fs::rename(&part, path).map_err(failed)
            };
            if let Err(err) = done.await {
                let _ = std::fs::remove_file(&part);
                return Err(err);
            }
            let said = format!("{} in {}", when::bytes(bytes), path.display());
            cx.out.note(&clean::line(&said));
        }
        None if std::io::stdout().is_terminal() => {
            let mut all = Vec::new();
            while let Some(piece) = download.next().await? {
                all.extend(piece);
            }
            let text = String::from_utf8(all).map_err(|_| {
                Failure::usage(format!("{name} is not text, and standard output is a terminal"))
                    .hint("--file PATH writes it to a file")
            })?;
            // Nobody's words may steer the terminal.
            cx.out.text(&clean::block(&text))?;
        }
        None => {
            while let Some(piece) = download.next().await? {
                cx.out.bytes(&piece)?;
            }
        }
    }
    Ok(())
}

fn part_of(path: &Path) -> Result<PathBuf, Failure> {
    let name = path
        .file_name()
        .ok_or_else(|| Failure::usage(format!("{} is not a file path", path.display())))?;
    let mut part = name.to_owned();
    part.push(format!(".part-{}", std::process::id()));
    Ok(path.with_file_name(part))
}

fn create(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

async fn save(cx: &Context, remote: &Remote, args: ArtifactSaveArgs) -> Result<(), Failure> {
    let (run, name) = named(cx, remote, &args.of).await?;
    let content = content(args.file.as_deref())?;
    let saved =
        remote.client().artifact_put(&run, &name, content, args.media_type.as_deref()).await?;
    let artifact = &saved.artifact;
    show::one(&cx.out, &saved, &artifact.name, || {
        let mut lines = vec![
            ("artifact", cell(artifact.name.as_str())),
            ("version", cell(artifact.version.to_string())),
            ("size", cell(when::bytes(artifact.size))),
            ("type", cell(artifact.media_type.as_str())),
        ];
        if artifact.masked {
            lines.push(("masked", cell("secrets in it were masked")));
        }
        match (&saved.shared, &saved.not_shared) {
            (Some(key), _) => lines.push(("shared as", cell(key.as_str()))),
            (None, Some(why)) => lines.push(("not shared", cell(why.as_str()))),
            (None, None) => {}
        }
        lines
    })
}

fn content(path: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let mut content = Vec::new();
    let what = path.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    // One byte more than fits: then it is too large.
    let most = MAX_ARTIFACT as u64 + 1;
    let read = match path {
        Some(path) => File::open(path).and_then(|file| file.take(most).read_to_end(&mut content)),
        None => std::io::stdin().lock().take(most).read_to_end(&mut content),
    };
    read.map_err(|err| Failure::failed(format!("reading {what}: {err}")))?;
    if content.len() > MAX_ARTIFACT {
        let message = format!("{what} has more than {MAX_ARTIFACT} bytes, the most of an artifact");
        return Err(Failure::usage(message));
    }
    Ok(content)
}
