//! `apply`, `diff -f` and `edit`: documents that become resources.

use std::path::{Path, PathBuf};

use overmind_api::{Resource, ResourceApplied, ResourceApply, ResourcesApplied};
use overmind_client::ClientError;
use overmind_core::record::Selector;
use overmind_node::config::env;
use serde_json::{Value, json};
use similar::TextDiff;

use crate::args::Format;
use crate::args_resource::{ApplyArgs, EditArgs, FileArgs};
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::yaml;
use crate::remote::Remote;
use crate::resource::{kind, split};
use crate::resource_file::{Document, Mistake, read_all};
use crate::show;

/// # Errors
///
/// Every mistake of every document, each with its place; nothing is applied then.
pub async fn apply(cx: &Context, args: &ApplyArgs) -> Outcome {
    if args.from.files.is_empty() {
        return Err(Failure::usage("apply needs -f FILE")
            .hint("-f takes a file, a directory, or - for standard input"));
    }
    let (documents, mut mistakes) = read_all(&cx.cwd, &args.from.files, args.from.recursive)?;
    let dry_run = args.dry_run.as_deref().is_some_and(|word| word != "none");
    if let Some(text) = &args.selector {
        let selector = Selector::parse(text).map_err(|err| Failure::usage(err.to_string()))?;
        mistakes.extend(
            documents.iter().filter(|one| !selector.matches(&labels_of(&one.value))).map(|one| {
                one.mistake("metadata.labels", format!("metadata.labels do not match -l {text}"))
            }),
        );
    }
    let remote = Remote::connect(cx)?;
    let prune = args.selector.as_deref().filter(|_| args.prune);
    let ResourcesApplied { results, pruned } =
        sent(&remote, &documents, mistakes, prune, dry_run, "applied").await?;
    for one in &results {
        match cx.out.format {
            Format::Name => cx.out.line(&one.resource.reference())?,
            Format::Json | Format::Yaml => cx.out.streamed(&show::to_value(&one.resource))?,
            Format::Table | Format::Wide => {
                let dry = if dry_run { " (dry run)" } else { "" };
                cx.out.line(&format!("{} {}{dry}", one.resource.reference(), one.outcome))?;
            }
        }
    }
    warn_of_masks(cx, &documents, &results);
    for one in &pruned {
        let gone = one.metadata.finalizers.is_empty();
        match cx.out.format {
            Format::Name => cx.out.line(&one.reference())?,
            Format::Json | Format::Yaml => {
                let (kind, name) = (one.kind.to_ascii_lowercase(), &one.metadata.name);
                let gone = gone && !dry_run;
                cx.out.streamed(&json!({"kind": kind, "name": name, "gone": gone}))?;
            }
            Format::Table | Format::Wide => {
                let dry = if dry_run { " (dry run)" } else { "" };
                let held = if gone { "" } else { "; it waits until its finalizers are done" };
                cx.out.line(&format!("{} pruned{dry}{held}", one.reference()))?;
            }
        }
    }
    Ok(Exit::Done)
}

fn labels_of(document: &Value) -> std::collections::BTreeMap<String, String> {
    let labels = document.pointer("/metadata/labels").and_then(Value::as_object);
    let texts = labels.into_iter().flatten();
    texts.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Applies documents. With mistakes that are known already nothing is written, and those that the
/// server finds are reported with them.
async fn sent(
    remote: &Remote,
    documents: &[Document],
    mut mistakes: Vec<Mistake>,
    prune: Option<&str>,
    dry_run: bool,
    word: &str,
) -> Result<ResourcesApplied, Failure> {
    let apply = ResourceApply {
        documents: documents.iter().map(|one| one.value.clone()).collect(),
        dry_run: dry_run || !mistakes.is_empty(),
        prune: prune.map(str::to_owned),
    };
    match remote.client().resource_apply(&apply).await {
        Ok(done) if mistakes.is_empty() => return Ok(done),
        Ok(_) => {}
        Err(ClientError::Refused(problem)) if !problem.errors.is_empty() => {
            mistakes.extend(problem.errors.iter().map(|error| placed(documents, error)));
        }
        Err(err) if mistakes.is_empty() => return Err(err.into()),
        Err(_) => {}
    }
    mistakes.sort();
    let count = match mistakes.len() {
        1 => "1 mistake".to_owned(),
        count => format!("{count} mistakes"),
    };
    let mut message = format!("nothing was {word}: {count}");
    for mistake in &mistakes {
        message.push_str(&format!("\n  {mistake}"));
    }
    Err(Failure::usage(message))
}

/// A mistake that the server names by document and path.
fn placed(documents: &[Document], error: &overmind_api::FieldError) -> Mistake {
    let place = || {
        let (at, path) = error.field.strip_prefix("documents[")?.split_once(']')?;
        let document = documents.get(at.parse::<usize>().ok()?)?;
        Some((document, path.strip_prefix('.').unwrap_or(path)))
    };
    match place() {
        Some((document, path)) => document.mistake(path, format!("{path} {}", error.message)),
        None => Mistake {
            file: documents.first().map(|one| one.file.clone()).unwrap_or_default(),
            at: (1, 1),
            text: format!("{} {}", error.field, error.message),
        },
    }
}

/// A text that looks like a secret is not stored; the author of the document gets a warning.
fn warn_of_masks(cx: &Context, documents: &[Document], results: &[ResourceApplied]) {
    for (document, result) in documents.iter().zip(results) {
        let written = document.value.get("spec").filter(|spec| !spec.is_null());
        if written.is_some_and(|spec| *spec != result.resource.spec) {
            cx.out.warn(&format!(
                "{} contains something that looks like a secret; it was masked. Keep secrets in \
                    the vault: overmind vault set",
                result.resource.reference()
            ));
        }
    }
}

/// The content of a document, as it is compared and edited.
fn text_of(resource: &Resource) -> String {
    let meta = &resource.metadata;
    let mut metadata = json!({"name": meta.name});
    if let Some(fields) = metadata.as_object_mut() {
        let mut add = |key: &str, value: Value, empty: bool| {
            if !empty {
                fields.insert(key.to_owned(), value);
            }
        };
        add("labels", json!(meta.labels), meta.labels.is_empty());
        add("annotations", json!(meta.annotations), meta.annotations.is_empty());
        add("finalizers", json!(meta.finalizers), meta.finalizers.is_empty());
    }
    yaml::to_string(&json!({
        "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata,
        "spec": resource.spec,
    }))
}

fn diff_of(before: &str, after: &str, old: &str, new: &str) -> String {
    TextDiff::from_lines(before, after)
        .unified_diff()
        .context_radius(3)
        .header(old, new)
        .to_string()
}

/// Shows what an apply of the files would change. Exit code 1 if there are changes.
///
/// # Errors
///
/// See [`apply`].
pub async fn diff(cx: &Context, from: &FileArgs) -> Outcome {
    let (documents, mistakes) = read_all(&cx.cwd, &from.files, from.recursive)?;
    let remote = Remote::connect(cx)?;
    let mut exit = Exit::Done;
    for one in sent(&remote, &documents, mistakes, None, true, "compared").await?.results {
        if one.outcome == "unchanged" {
            continue;
        }
        exit = Exit::Failed;
        let (kind, name) = (&one.resource.kind, &one.resource.metadata.name);
        let before = match remote.client().resource_fetch(kind, name).await {
            Ok(found) => text_of(&found),
            Err(err) if err.status() == Some(404) => String::new(),
            Err(err) => return Err(err.into()),
        };
        let reference = one.resource.reference();
        let (old, new) = (format!("{reference} (now)"), format!("{reference} (applied)"));
        cx.out.text(&diff_of(&before, &text_of(&one.resource), &old, &new))?;
    }
    Ok(exit)
}

/// # Errors
///
/// [`Exit::Conflict`] if another caller changed it meanwhile. The edited text is saved in a file.
pub async fn edit(cx: &Context, args: &EditArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let (word, names) = split(&args.kind, args.name.as_slice())?;
    let kind = kind(&remote, &word).await?.name;
    let Some(name) = names.first() else {
        return Err(Failure::usage(format!("which {kind}?")).hint("overmind edit KIND NAME"));
    };
    let found = remote.client().resource_fetch(&kind, name).await?;
    let before = text_of(&found);
    let file =
        tempfile::Builder::new().prefix(&format!("{kind}-{name}-")).suffix(".yaml").tempfile();
    let file = file.map_err(|err| Failure::failed(format!("making a file to edit: {err}")))?;
    // Kept until the change is written.
    let (_, path) =
        file.keep().map_err(|err| Failure::failed(format!("making a file to edit: {err}")))?;
    let done = edited(cx, &remote, &found, &before, &path).await;
    match done {
        Ok(exit) => {
            let _ = std::fs::remove_file(&path);
            Ok(exit)
        }
        Err(mut failure) => {
            failure.message.push_str(&format!("\nyour text is kept in {}", path.display()));
            Err(failure)
        }
    }
}

async fn edited(
    cx: &Context,
    remote: &Remote,
    found: &Resource,
    before: &str,
    path: &Path,
) -> Outcome {
    std::fs::write(path, before)
        .map_err(|err| Failure::failed(format!("writing {}: {err}", path.display())))?;
    let editor = cx.env.text(env::VISUAL).or_else(|| cx.env.text(env::EDITOR)).unwrap_or("vi");
    // Like git: the variable is a command line for the shell.
    let status = std::process::Command::new("sh")
        .args(["-c", &format!("{editor} \"$1\""), "sh"])
        .arg(path)
        .status()
        .map_err(|err| Failure::failed(format!("starting {editor}: {err}")))?;
    if !status.success() {
        return Err(Failure::failed(format!("{editor} ended with {status}; nothing was changed")));
    }
    let (mut documents, mistakes) = read_all(path, &[PathBuf::from(path)], false)?;
    if let ([document], Some(version)) =
        (documents.as_mut_slice(), &found.metadata.resource_version)
        && let Some(metadata) = document.value.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.insert("resourceVersion".into(), json!(version));
    }
    let same = documents.first().is_some_and(|one| {
        one.value.get("kind").and_then(Value::as_str) == Some(&found.kind)
            && one.value.pointer("/metadata/name").and_then(Value::as_str)
                == Some(&found.metadata.name)
    });
    if mistakes.is_empty() && (!same || documents.len() != 1) {
        return Err(Failure::usage("kind and name must stay as they are")
            .hint("`overmind apply -f` creates another one"));
    }
    match sent(remote, &documents, mistakes, None, false, "changed").await {
        Ok(done) => {
            for one in done.results {
                let word = if one.outcome == "unchanged" { "unchanged" } else { "edited" };
                cx.out.line(&format!("{} {word}", one.resource.reference()))?;
            }
            Ok(Exit::Done)
        }
        Err(mut failure) if failure.exit == Exit::Conflict => {
            let (kind, name) = (&found.kind, &found.metadata.name);
            if let Ok(now) = remote.client().resource_fetch(kind, name).await {
                let diff = diff_of(before, &text_of(&now), "as you opened it", "as it is now");
                failure
                    .message
                    .push_str(&format!("\nsomebody else has changed it meanwhile:\n{diff}"));
            }
            Err(failure)
        }
        Err(failure) => Err(failure),
    }
}
