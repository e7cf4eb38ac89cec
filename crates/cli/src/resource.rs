//! Declared things of every kind: listed, described, labelled, deleted, explained.

use overmind_api::{
    KindView, MAX_LIMIT, ProblemKind, Resource, ResourceApplied, ResourceDeleteQuery,
    ResourceListQuery, kind_of,
};
use overmind_client::{ClientError, ResourceNews};
use overmind_core::nearest::nearest;
use overmind_core::record::condition::conditions;
use overmind_core::record::{Column, KindInfo};
use serde_json::{Value, json};

use crate::args::Format;
use crate::args_resource::{CascadeArg, DeleteArgs, DescribeArgs, ExplainArgs, GetArgs, LabelArgs};
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::{Table, Tone};
use crate::output::{clean, when, yaml};
use crate::remote::Remote;
use crate::resource_file;
use crate::show::{self, cell, dim};

/// Events of one resource that are shown.
const EVENTS: usize = 20;
/// How often a label is set again when others write the same resource.
const TRIES: u32 = 5;

/// A kind as this program or the server knows it.
pub(crate) struct KindNamed {
    /// Singular, as in paths.
    pub(crate) name: String,
    pub(crate) plural: String,
    info: Option<&'static KindInfo>,
}

/// The kind that a word means. Kinds that only the server knows are asked for.
pub(crate) async fn kind(remote: &Remote, word: &str) -> Result<KindNamed, Failure> {
    if let Ok(info) = kind_of(word) {
        let (name, plural) = (info.name.to_owned(), info.plural.to_owned());
        return Ok(KindNamed { name, plural, info: Some(info) });
    }
    let view = viewed(remote, word).await?;
    Ok(KindNamed { name: view.name, plural: view.plural, info: None })
}

fn words(kind: &KindView) -> impl Iterator<Item = &str> {
    [kind.name.as_str(), kind.plural.as_str()]
        .into_iter()
        .chain(kind.aliases.iter().map(String::as_str))
}

async fn viewed(remote: &Remote, word: &str) -> Result<KindView, Failure> {
    let kinds = remote.client().kind_list().await?;
    let small = word.to_ascii_lowercase();
    if let Some(kind) = kinds.iter().find(|kind| words(kind).any(|known| known == small)) {
        return Ok(kind.clone());
    }
    let others = ["keys", "tools"];
    let known = kinds.iter().flat_map(words).chain(others);
    let hint = match nearest(&small, known) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => "`overmind api-resources` lists all kinds".to_owned(),
    };
    Err(Failure::usage(format!("there is no kind `{word}`")).hint(hint))
}

/// `KIND NAME…` and `KIND/NAME` are the same.
pub(crate) fn split(kind: &str, names: &[String]) -> Result<(String, Vec<String>), Failure> {
    match kind.split_once('/') {
        None => Ok((kind.to_owned(), names.to_vec())),
        Some((kind, name)) if names.is_empty() && !name.is_empty() => {
            Ok((kind.to_owned(), vec![name.to_owned()]))
        }
        Some(_) => Err(Failure::usage(format!(
            "`{kind}` already has a name: give one kind and its names, or KIND/NAME"
        ))),
    }
}

/// # Errors
///
/// Returns an error if the things could not be listed.
pub async fn get(cx: &Context, args: &GetArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let (word, names) = split(&args.kind, &args.names)?;
    let kind = kind(&remote, &word).await?;
    if args.watch {
        return watch(cx, &remote, &kind, args, &names).await;
    }
    if let ([name], true) = (names.as_slice(), !cx.out.for_people()) {
        let found = remote.client().resource_fetch(&kind.name, name).await?;
        match cx.out.format {
            Format::Name => cx.out.line(&found.reference())?,
            _ => cx.out.value(&show::to_value(&found))?,
        }
        return Ok(Exit::Done);
    }
    let found = if names.is_empty() {
        listed(&remote, &kind.name, &selected(args.selector.as_deref())).await?
    } else {
        let mut found = Vec::new();
        for name in &names {
            found.push(remote.client().resource_fetch(&kind.name, name).await?);
        }
        found
    };
    match cx.out.format {
        Format::Json | Format::Yaml => {
            let list = json!({"apiVersion": "overmind/v1", "kind": "List", "items": found});
            cx.out.value(&list)?;
        }
        Format::Name => {
            for one in &found {
                cx.out.line(&one.reference())?;
            }
        }
        Format::Table | Format::Wide if found.is_empty() => {
            cx.out.note(&format!("no {} found", kind.plural));
        }
        Format::Table | Format::Wide => {
            cx.out.table(&table(cx, &kind, &found, args.all_colonies))?;
        }
    }
    Ok(Exit::Done)
}

pub(crate) fn selected(selector: Option<&str>) -> ResourceListQuery {
    ResourceListQuery { selector: selector.map(str::to_owned), ..ResourceListQuery::default() }
}

/// All of a kind that a query finds.
pub(crate) async fn listed(
    remote: &Remote,
    kind: &str,
    query: &ResourceListQuery,
) -> Result<Vec<Resource>, Failure> {
    let query = ResourceListQuery { limit: Some(MAX_LIMIT), ..query.clone() };
    let mut page = remote.client().resource_list(kind, &query).await?;
    let mut found = std::mem::take(&mut page.items);
    while let Some(mut next) = remote.client().page_next(&page).await? {
        found.append(&mut next.items);
        page = next;
    }
    Ok(found)
}

fn table(cx: &Context, kind: &KindNamed, found: &[Resource], colonies: bool) -> Table {
    let columns: &[Column] = kind.info.map_or(&[], |info| info.columns);
    let wide = cx.out.wide();
    let columns: Vec<&Column> = columns.iter().filter(|column| wide || !column.is_wide).collect();
    let mut header = vec!["NAME"];
    if colonies {
        header.insert(0, "COLONY");
    }
    header.extend(columns.iter().map(|column| column.name));
    header.push("AGE");
    if wide {
        header.push("LABELS");
    }
    let mut table = Table::new(&header);
    for one in found {
        let record = one.to_record();
        let mut row = vec![cell(&one.metadata.name)];
        if colonies {
            row.insert(0, dim(&one.metadata.colony));
        }
        row.extend(columns.iter().map(|column| match &record {
            Some(record) => cell((column.cell)(record, cx.now())),
            None => dim("-"),
        }));
        row.push(match one.metadata.deletion_timestamp {
            Some(_) => ("deleting".to_owned(), Tone::Waits),
            None if wide => cell(one.metadata.creation_timestamp.to_string()),
            None => cell(when::ago(one.metadata.creation_timestamp, cx.now())),
        });
        if wide {
            row.push(cell(pairs(&one.metadata.labels)));
        }
        table.row(row);
    }
    table
}

fn pairs(map: &std::collections::BTreeMap<String, String>) -> String {
    map.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

async fn watch(
    cx: &Context,
    remote: &Remote,
    kind: &KindNamed,
    args: &GetArgs,
    names: &[String],
) -> Outcome {
    let wanted = |name: &str| names.is_empty() || names.iter().any(|known| known == name);
    'anew: loop {
        let selector = args.selector.as_deref();
        let mut stream = remote.client().resource_watch(&kind.name, selector, None, 10).await?;
        let (mut first, mut known) = (Some(Vec::new()), std::collections::BTreeSet::new());
        while let Some(news) = stream.next().await {
            let news = match news {
                Ok(news) => news,
                // Too much has happened since: everything there is shown again.
                Err(ClientError::Refused(problem))
                    if problem.known_kind() == Some(ProblemKind::Gone) =>
                {
                    continue 'anew;
                }
                Err(err) => return Err(err.into()),
            };
            match news {
                ResourceNews::Put(one) if wanted(&one.metadata.name) => {
                    known.insert(one.metadata.name.clone());
                    match &mut first {
                        Some(found) if cx.out.for_people() => found.push(*one),
                        _ => told(cx, kind, &one, args.all_colonies)?,
                    }
                }
                ResourceNews::Gone(gone) if known.remove(&gone.name) => match cx.out.format {
                    Format::Json | Format::Yaml => {
                        cx.out.streamed(&json!({"deleted": gone}))?;
                    }
                    _ => cx.out.note(&format!("{}/{} deleted", kind.name, gone.name)),
                },
                ResourceNews::Snapshot(_) => {
                    if let Some(found) = first.take().filter(|found| !found.is_empty()) {
                        cx.out.table(&table(cx, kind, &found, args.all_colonies))?;
                    }
                }
                ResourceNews::Put(_) | ResourceNews::Gone(_) => {}
            }
        }
        return Ok(Exit::Failed);
    }
}

/// One that changed: a row without the header.
fn told(cx: &Context, kind: &KindNamed, one: &Resource, colonies: bool) -> Result<(), Failure> {
    match cx.out.format {
        Format::Json | Format::Yaml => cx.out.streamed(&show::to_value(one))?,
        Format::Name => cx.out.line(&one.reference())?,
        Format::Table | Format::Wide => {
            let rows = table(cx, kind, std::slice::from_ref(one), colonies).render(cx.out.colour);
            cx.out.text(rows.split_once('\n').map_or("", |(_, row)| row))?;
        }
    }
    Ok(())
}

/// # Errors
///
/// Returns an error if the things could not be shown.
pub async fn describe(cx: &Context, args: &DescribeArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let (word, names) = split(&args.kind, &args.names)?;
    let kind = kind(&remote, &word).await?;
    let found = if names.is_empty() {
        listed(&remote, &kind.name, &selected(None)).await?
    } else {
        let mut found = Vec::new();
        for name in &names {
            found.push(remote.client().resource_fetch(&kind.name, name).await?);
        }
        found
    };
    if found.is_empty() && cx.out.for_people() {
        cx.out.note(&format!("no {} found", kind.plural));
    }
    for (n, one) in found.iter().enumerate() {
        if n > 0 && cx.out.for_people() {
            cx.out.line("")?;
        }
        show::one(&cx.out, one, &one.reference(), || described(cx, one))?;
        if cx.out.for_people() {
            further(cx, &remote, &kind.name, one).await?;
        }
    }
    Ok(Exit::Done)
}

/// The objects that it owns, and its events.
async fn further(cx: &Context, remote: &Remote, kind: &str, one: &Resource) -> Result<(), Failure> {
    let name = match kind {
        // Runs that have ended share names.
        "session" => &one.metadata.uid,
        _ => &one.metadata.name,
    };
    let owned = remote.client().resource_owned(kind, name).await?;
    if !owned.is_empty() {
        let mut table = Table::new(&["OWNS", "STATUS", "AGE"]);
        for one in &owned {
            let reference = format!("{}/{}", one.kind.to_ascii_lowercase(), one.name);
            let age = when::ago(one.creation_timestamp, cx.now());
            table.row(vec![cell(reference), show::or_dash(one.phase.clone()), cell(age)]);
        }
        cx.out.line("")?;
        cx.out.table(&table)?;
    }
    let events = remote.client().resource_events(kind, name).await?;
    if !events.is_empty() {
        let mut table = Table::new(&["EVENT", "AGE", "BY", "DETAILS"]);
        let superfluous = events.len().saturating_sub(EVENTS);
        for event in events.iter().skip(superfluous) {
            let payload = event.payload_json.value();
            let by = payload.get("by").and_then(Value::as_str).unwrap_or_default();
            table.row(vec![
                cell(&event.kind),
                cell(when::ago(event.ts, cx.now())),
                dim(by),
                cell(clean::cut(&details(&payload), 100)),
            ]);
        }
        cx.out.line("")?;
        cx.out.table(&table)?;
    }
    Ok(())
}

/// The text of an event: the conditions that changed, or the generation of a spec.
fn details(payload: &Value) -> String {
    let changed = conditions(payload);
    if !changed.is_empty() {
        let said = changed
            .iter()
            .map(|one| format!("{}={:?} {} {}", one.kind, one.status, one.reason, one.message));
        return said.collect::<Vec<_>>().join("; ");
    }
    match payload.get("generation").and_then(Value::as_u64) {
        Some(generation) => format!("generation {generation}"),
        None => String::new(),
    }
}

fn described(cx: &Context, one: &Resource) -> Vec<(&'static str, (String, Tone))> {
    let meta = &one.metadata;
    let mut lines = vec![
        ("name", cell(&meta.name)),
        ("kind", cell(&one.kind)),
        ("colony", cell(&meta.colony)),
        ("uid", dim(&meta.uid)),
    ];
    let created = meta.creation_timestamp;
    lines.push(("created", cell(format!("{created} ({} ago)", when::ago(created, cx.now())))));
    let version = meta.resource_version.clone().unwrap_or_default();
    lines.push(("generation", cell(format!("{} (resource version {version})", meta.generation))));
    let owners: Vec<&str> = meta.owner_references.iter().map(|owner| owner.uid.as_str()).collect();
    for (name, text) in [
        ("labels", pairs(&meta.labels)),
        ("annotations", pairs(&meta.annotations)),
        ("owner", owners.join(", ")),
        ("finalizers", meta.finalizers.join(", ")),
    ] {
        if !text.is_empty() {
            lines.push((name, cell(text)));
        }
    }
    if let Some(since) = meta.deletion_timestamp {
        lines.push(("deleting", (format!("since {since}"), Tone::Waits)));
    }
    lines.push(("spec", cell(yaml::to_string(&one.spec))));
    for condition in conditions(&one.status) {
        let text = format!(
            "{}={:?} {} {} ({} ago)",
            condition.kind,
            condition.status,
            condition.reason,
            condition.message,
            when::ago(condition.last_transition, cx.now()),
        );
        lines.push(("condition", cell(text)));
    }
    let mut status = one.status.clone();
    if let Some(fields) = status.as_object_mut() {
        fields.remove("conditions");
    }
    if status.as_object().is_some_and(|fields| !fields.is_empty()) {
        lines.push(("status", cell(yaml::to_string(&status))));
    }
    lines
}

/// # Errors
///
/// Returns an error if one could not be deleted; those before it are.
pub async fn delete(cx: &Context, args: &DeleteArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let targets = targets(cx, &remote, args).await?;
    for (kind, name) in targets {
        deleted(cx, &remote, (&kind, &name), args.cascade, args.ignore_not_found, "deleted")
            .await?;
    }
    Ok(Exit::Done)
}

async fn targets(
    cx: &Context,
    remote: &Remote,
    args: &DeleteArgs,
) -> Result<Vec<(String, String)>, Failure> {
    let Some(word) = &args.kind else {
        let (documents, mistakes) =
            resource_file::read_all(&cx.cwd, &args.from.files, args.from.recursive)?;
        if let Some(mistake) = mistakes.first() {
            return Err(Failure::usage(mistake.to_string()));
        }
        let mut targets = Vec::new();
        for document in documents {
            let name = document.value.pointer("/metadata/name").and_then(Value::as_str);
            let word = document.value.get("kind").and_then(Value::as_str);
            let (Some(word), Some(name)) = (word, name) else {
                let text = "a document needs kind and metadata.name".to_owned();
                return Err(Failure::usage(document.mistake("metadata", text).to_string()));
            };
            targets.push((kind(remote, word).await?.name, name.to_owned()));
        }
        return Ok(targets);
    };
    let (word, names) = split(word, &args.names)?;
    let kind = kind(remote, &word).await?.name;
    let names = match (&args.selector, names.is_empty()) {
        (Some(selector), true) => {
            let found = listed(remote, &kind, &selected(Some(selector))).await?;
            found.into_iter().map(|one| one.metadata.name).collect()
        }
        (None, true) => {
            return Err(
                Failure::usage(format!("which {kind}?")).hint("name it, or use -l SELECTOR")
            );
        }
        (_, false) => names,
    };
    Ok(names.into_iter().map(|name| (kind.clone(), name)).collect())
}

/// Deletes a resource and reports it.
pub(crate) async fn deleted(
    cx: &Context,
    remote: &Remote,
    (kind, name): (&str, &str),
    cascade: CascadeArg,
    ignore_missing: bool,
    word: &str,
) -> Result<(), Failure> {
    let cascade = match cascade {
        CascadeArg::Background => "background",
        CascadeArg::Foreground => "foreground",
        CascadeArg::Orphan => "orphan",
    };
    let query = ResourceDeleteQuery { cascade: Some(cascade.to_owned()), resource_version: None };
    let done = match remote.client().resource_delete(kind, name, &query).await {
        Ok(done) => done,
        Err(err) if ignore_missing && err.status() == Some(404) => return Ok(()),
        Err(err) => return Err(err.into()),
    };
    let reference = format!("{kind}/{name}");
    match cx.out.format {
        Format::Name => cx.out.line(&reference)?,
        Format::Json | Format::Yaml => {
            cx.out.streamed(&json!({"kind": kind, "name": name, "gone": done.gone}))?;
        }
        Format::Table | Format::Wide if done.gone => cx.out.line(&format!("{reference} {word}"))?,
        Format::Table | Format::Wide => {
            cx.out.line(&format!(
                "{reference} is being deleted; it waits for its finalizers or for resources that \
                    it owns"
            ))?;
        }
    }
    Ok(())
}

/// # Errors
///
/// Returns an error if the labels could not be set.
pub async fn label(cx: &Context, args: &LabelArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let (word, mut words) = match args.kind.contains('/') {
        true => {
            let (kind, mut name) = split(&args.kind, &[])?;
            name.extend(args.words.iter().cloned());
            (kind, name)
        }
        false => (args.kind.clone(), args.words.clone()),
    };
    let name = if words.is_empty() { String::new() } else { words.remove(0) };
    if words.is_empty() {
        return Err(
            Failure::usage("no label is given").hint("KEY=VALUE sets a label, KEY- removes it")
        );
    }
    let kind = kind(&remote, &word).await?;
    let set = |found: &mut Resource| {
        for word in &words {
            match (word.split_once('='), word.strip_suffix('-')) {
                (Some((key, value)), _) => {
                    found.metadata.labels.insert(key.to_owned(), value.to_owned());
                }
                (None, Some(key)) => drop(found.metadata.labels.remove(key)),
                (None, None) => {
                    return Err(Failure::usage(format!("`{word}` is not a label"))
                        .hint("KEY=VALUE sets a label, KEY- removes it"));
                }
            }
        }
        Ok(())
    };
    let done = change(&remote, &kind.name, &name, set).await?;
    let said = if done.outcome == "unchanged" { "not labelled" } else { "labelled" };
    match cx.out.for_people() {
        true => cx.out.line(&format!("{} {said}", done.resource.reference()))?,
        false => show::one(&cx.out, &done.resource, &done.resource.reference(), Vec::new)?,
    }
    Ok(Exit::Done)
}

/// Changes one, however often others write it meanwhile.
///
/// # Errors
///
/// The output of `set`, or the error that prevented the write.
pub(crate) async fn change(
    remote: &Remote,
    kind: &str,
    name: &str,
    set: impl Fn(&mut Resource) -> Result<(), Failure>,
) -> Result<ResourceApplied, Failure> {
    for _ in 0..TRIES {
        let mut found = remote.client().resource_fetch(kind, name).await?;
        set(&mut found)?;
        match remote.client().resource_put(kind, name, &show::to_value(&found)).await {
            Ok(done) => return Ok(done),
            Err(err) if err.status() == Some(409) && found.metadata.resource_version.is_some() => {}
            Err(err) => return Err(err.into()),
        }
    }
    let text = format!("{kind}/{name} was changed by others at each attempt");
    Err(Failure::new(Exit::Conflict, text))
}

/// # Errors
///
/// When there is no such kind or field.
pub async fn explain(cx: &Context, args: &ExplainArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let mut parts = args.field.split('.');
    let word = parts.next().unwrap_or_default();
    let kind = viewed(&remote, word).await?;
    let spec = kind.schema.clone();
    let mut here = json!({
        "description": spec.get("description"),
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "description": "overmind/v1"},
            "kind": {"type": "string", "description": kind.kind},
            "metadata": {"type": "object", "description": "name, labels, annotations, finalizers; \
                the server fills in the rest"},
            "spec": spec,
            "status": {"type": "object", "description": "The observed state, written by the \
                server"},
        },
    });
    let mut path = kind.name.clone();
    for part in parts {
        let known = here.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
        let next = known
            .get(part)
            .or_else(|| here.get("additionalProperties").filter(|more| more.is_object()));
        let Some(next) = next else {
            let failure = Failure::new(Exit::NotFound, format!("{path} has no field `{part}`"));
            return Err(match nearest(part, known.keys().map(String::as_str)) {
                Some(meant) => failure.hint(format!("did you mean `{meant}`?")),
                None => failure.hint(format!("`overmind explain {path}` lists its fields")),
            });
        };
        here = next.clone();
        path = format!("{path}.{part}");
    }
    if !cx.out.for_people() {
        show::one(&cx.out, &here, &path, Vec::new)?;
        return Ok(Exit::Done);
    }
    let text =
        |of: &Value, key: &str| of.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    show::facts(
        &cx.out,
        vec![
            ("field", cell(&path)),
            ("type", cell(text(&here, "type"))),
            ("description", cell(text(&here, "description"))),
        ],
    )?;
    let fields = here.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    if !fields.is_empty() {
        let mut table = Table::new(&["FIELD", "TYPE", "DESCRIPTION"]);
        for (name, field) in &fields {
            table.row(vec![cell(name), dim(text(field, "type")), cell(text(field, "description"))]);
        }
        cx.out.line("")?;
        cx.out.table(&table)?;
    }
    Ok(Exit::Done)
}

/// # Errors
///
/// Returns an error if the kinds could not be listed.
pub async fn kinds(cx: &Context) -> Outcome {
    let kinds = Remote::connect(cx)?.client().kind_list().await?;
    show::list(
        &cx.out,
        &kinds,
        |kind| kind.plural.clone(),
        |_| {
            let mut table = Table::new(&["NAME", "SHORT NAMES", "API VERSION", "KIND"]);
            for kind in &kinds {
                let names = kind.aliases.join(",");
                table.row(vec![
                    cell(&kind.plural),
                    dim(names),
                    cell(&kind.api_version),
                    cell(&kind.kind),
                ]);
            }
            table
        },
        "this server has no kinds",
    )?;
    Ok(Exit::Done)
}
