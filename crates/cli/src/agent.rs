//! `overmind agent …`: what runs are started from.

use std::collections::HashMap;
use std::io::Read as _;

use overmind_api::{Agent, AgentCreate, AgentId, AgentPatch, AgentStatus, SandboxLevel};
use overmind_core::budget::Prices as _;
use overmind_core::nearest::nearest;
use serde_json::{Map, Value, json};

use crate::args_more::{AgentCommand, AgentFlags, spelled};
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::init_agent::{Found, KEYS, TOOLS};
use crate::output::table::{Table, Tone};
use crate::output::{clean, when};
use crate::programs;
use crate::remote::Remote;
use crate::show::{self, cell, dim, or_dash};

/// # Errors
///
/// Returns an error if the command fails.
pub async fn run(cx: &Context, command: AgentCommand) -> Outcome {
    let remote = Remote::connect(cx)?;
    match command {
        AgentCommand::Create(flags) => {
            let given = draft(&flags)?;
            let chose_tools = given.contains_key("tools_allowed");
            let found = match given.keys().any(|key| key == "model" || key == "command") {
                true => Found::default(),
                false => found(cx, &remote).await,
            };
            let (draft, note) = new_draft(&flags, || found)?;
            if let Some(note) = note {
                cx.out.note(&note);
            }
            let draft: AgentCreate =
                serde_json::from_value(draft).map_err(|err| wrong("the agent", &err))?;
            known_tools(&remote, flags.tools.as_deref()).await?;
            let agent = remote.agent_create(&draft).await.map_err(|failure| {
                let name = &draft.name;
                let ways = format!(
                    "overmind agent edit {name} changes it, overmind agent rm {name} removes it"
                );
                if failure.exit == Exit::Conflict { failure.hint(ways) } else { failure }
            })?;
            changed(cx, &agent, "created")?;
            if cx.out.for_people()
                && !chose_tools
                && let Some(note) = tools_note(&agent)
            {
                cx.out.note(&note);
            }
            Ok(Exit::Done)
        }
        AgentCommand::List { limit } => {
            list(cx, &remote, limit).await?;
            Ok(Exit::Done)
        }
        AgentCommand::Get { agent } => {
            let agent = remote.find_agent(&agent).await?;
            let levels = levels(cx, &remote, std::slice::from_ref(&agent)).await;
            describe(cx, &agent, &levels)?;
            Ok(Exit::Done)
        }
        AgentCommand::Edit { agent, flags, enable, if_version } => {
            let mut patch = Value::Object(draft(&flags)?);
            if enable {
                patch["status"] = json!(AgentStatus::Active);
            }
            if patch.as_object().is_none_or(Map::is_empty) {
                return Err(Failure::usage("nothing to change was given")
                    .hint("`overmind agent edit --help` lists the options"));
            }
            let agent = remote.find_agent(&agent).await?;
            // Limits are replaced as a whole: keep those that were not named.
            if let Some(limits) = patch.get_mut("limits").and_then(Value::as_object_mut)
                && flags.file.is_none()
            {
                let mut all = show::to_value(&agent.limits);
                for (name, value) in std::mem::take(limits) {
                    all[name] = value;
                }
                *limits = all.as_object().cloned().unwrap_or_default();
            }
            let patch: AgentPatch =
                serde_json::from_value(patch).map_err(|err| wrong("the change", &err))?;
            known_tools(&remote, flags.tools.as_deref()).await?;
            let agent = remote.agent_patch(&agent, &patch, if_version).await?;
            changed(cx, &agent, "changed")
        }
        AgentCommand::Disable { agents } => {
            for agent in agents {
                let agent = remote.find_agent(&agent).await?;
                let agent = remote.agent_disable(&agent).await?;
                changed(cx, &agent, "disabled")?;
            }
            Ok(Exit::Done)
        }
        AgentCommand::Enable { agents } => {
            for agent in agents {
                let agent = remote.find_agent(&agent).await?;
                let patch =
                    AgentPatch { status: Some(AgentStatus::Active), ..AgentPatch::default() };
                let agent = remote.agent_patch(&agent, &patch, None).await?;
                changed(cx, &agent, "enabled")?;
            }
            Ok(Exit::Done)
        }
        AgentCommand::Rm { agents } => {
            for agent in agents {
                let agent = remote.find_agent(&agent).await?;
                let agent = remote.agent_remove(&agent).await?;
                changed(cx, &agent, "removed")?;
            }
            Ok(Exit::Done)
        }
        AgentCommand::Versions { agent } => {
            let agent = remote.find_agent(&agent).await?;
            let versions = remote.agent_versions(&agent).await?;
            let now = cx.now();
            let id = |agent: &Agent| format!("{}@{}", agent.id, agent.version);
            let levels = levels(cx, &remote, &versions).await;
            show::list(&cx.out, &versions, id, |wide| table(&versions, &levels, now, wide), "")?;
            Ok(Exit::Done)
        }
    }
}

/// Lists agents; also behind `overmind get agents`.
///
/// # Errors
///
/// Returns an error if they could not be listed.
pub async fn list(cx: &Context, remote: &Remote, limit: u32) -> Result<(), Failure> {
    let agents = remote.agents(limit).await?;
    let now = cx.now();
    let levels = levels(cx, remote, &agents).await;
    show::list(
        &cx.out,
        &agents,
        |agent| agent.id.to_string(),
        |wide| table(&agents, &levels, now, wide),
        "no agents yet; create one: overmind agent create --name coder --model deterministic \
            --tools run_shell",
    )?;
    show::tell_limit(&cx.out, agents.len(), limit);
    Ok(())
}

/// The sandboxes of agents whose runs have theirs chosen when they start, as far as they are known here.
type Levels = HashMap<AgentId, SandboxLevel>;

/// The sandbox that `run` would choose here now. No look-up is made for an agent with its own sandbox.
async fn levels(cx: &Context, remote: &Remote, agents: &[Agent]) -> Levels {
    let mut levels = Levels::new();
    for agent in agents.iter().filter(|agent| cx.out.for_people() && programs::is_chosen(agent)) {
        let known = levels.contains_key(&agent.id);
        if !known && let Ok(Some(chosen)) = programs::choose(cx, remote, agent, None, false).await {
            levels.insert(agent.id, chosen.sandbox);
        }
    }
    levels
}

/// The sandbox that an agent's runs get: `auto` where it is chosen at their start, with the level that
/// would be chosen now.
fn sandbox(agent: &Agent, levels: &Levels) -> String {
    match levels.get(&agent.id) {
        _ if !programs::is_chosen(agent) => agent.sandbox.to_string(),
        Some(level) => format!("auto ({level})"),
        None => "auto".to_owned(),
    }
}

/// The model that an agent's runs ask; of a program the one that it gets by name, or `auto` where the
/// program chooses.
fn model(agent: &Agent) -> String {
    let told = agent.command.as_ref().and_then(|command| command.model.clone());
    match told {
        Some(model) => model,
        None if programs::is_built_in(agent) => "auto".to_owned(),
        None => agent.model.clone(),
    }
}

fn table(agents: &[Agent], levels: &Levels, now: overmind_api::Timestamp, wide: bool) -> Table {
    let header: &[&str] = if wide {
        &[
            "ID",
            "NAME",
            "STATUS",
            "MODEL",
            "SANDBOX",
            "VERSION",
            "TOOLS",
            "APPROVALS",
            "UPDATED",
            "CREATED",
        ]
    } else {
        &["NAME", "STATUS", "MODEL", "SANDBOX", "VERSION", "TOOLS", "AGE"]
    };
    let mut table = Table::new(header).right("VERSION");
    for agent in agents {
        let status = match agent.status {
            AgentStatus::Active => (agent.status.to_string(), Tone::Good),
            AgentStatus::Disabled | AgentStatus::Removed => (agent.status.to_string(), Tone::Dim),
        };
        let list = |items: &[String]| or_dash((!items.is_empty()).then(|| items.join(",")));
        let mut row = vec![
            cell(&agent.name),
            status,
            cell(model(agent)),
            cell(sandbox(agent, levels)),
            cell(agent.version.to_string()),
        ];
        if wide {
            row.insert(0, cell(agent.id.to_string()));
            row.push(list(&agent.tools_allowed));
            row.push(list(&agent.approvals));
            row.push(cell(agent.updated_at.to_string()));
            row.push(cell(agent.created_at.to_string()));
        } else {
            row.push(match agent.tools_allowed.len() {
                0 => dim("-"),
                1..=3 => cell(agent.tools_allowed.join(",")),
                more => cell(format!("{},… ({more})", agent.tools_allowed[..2].join(","))),
            });
            row.push(cell(when::ago(agent.created_at, now)));
        }
        table.row(row);
    }
    table
}

fn describe(cx: &Context, agent: &Agent, levels: &Levels) -> Result<(), Failure> {
    show::one(&cx.out, agent, &agent.id.to_string(), || {
        let list = |items: &[String]| or_dash((!items.is_empty()).then(|| items.join(", ")));
        let or_none =
            |number: u32| if number == 0 { "none".to_owned() } else { number.to_string() };
        let limits = &agent.limits;
        vec![
            ("name", cell(&agent.name)),
            ("id", cell(agent.id.to_string())),
            ("status", cell(agent.status.to_string())),
            ("version", cell(agent.version.to_string())),
            ("model", cell(model(agent))),
            ("policy", cell(agent.policy.as_str())),
            ("tools", list(&agent.tools_allowed)),
            ("approvals", list(&agent.approvals)),
            ("sandbox", cell(sandbox(agent, levels))),
            ("on unknown", cell(agent.on_unknown.as_str())),
            ("max steps", cell(or_none(limits.max_steps))),
            ("max seconds", cell(or_none(limits.max_seconds))),
            ("failure budget", cell(limits.failure_budget.to_string())),
            ("max attempts", cell(limits.max_attempts.to_string())),
            ("created", cell(agent.created_at.to_string())),
            ("updated", cell(agent.updated_at.to_string())),
            ("role", cell(&agent.role)),
        ]
    })
}

/// Reports a change: the value, the id, or a sentence.
fn changed(cx: &Context, agent: &Agent, what: &str) -> Outcome {
    for warning in &agent.warnings {
        cx.out.warn(warning);
    }
    let model = format!("model `{}`", agent.model);
    let is_guessed = |warning: &String| warning.contains("Did you mean");
    if agent.warnings.iter().any(|warning| warning.contains(&model) && !is_guessed(warning))
        && let Some(near) = meant(cx, &agent.model)
    {
        cx.out.note(&format!("did you mean the model `{near}`?"));
    }
    show::one(&cx.out, agent, &agent.id.to_string(), || {
        let text = format!("{} {what} (version {}, {})", agent.name, agent.version, agent.id);
        vec![("agent", cell(text))]
    })?;
    Ok(Exit::Done)
}

/// A line that names the tools of an agent for which nobody chose any. A command has none.
fn tools_note(agent: &Agent) -> Option<String> {
    let tools = match agent.tools_allowed.as_slice() {
        _ if agent.command.is_some() => return None,
        [] => "none".to_owned(),
        tools => tools.join(", "),
    };
    Some(format!("tools: {tools} (choose with --tools)"))
}

/// Refuses an agent whose model no provider can serve now, before anything is started.
///
/// # Errors
///
/// [`Exit::Usage`], with the ways to get a key.
pub fn servable(cx: &Context, agent: &Agent) -> Result<(), Failure> {
    let model = format!("model `{}`", agent.model);
    let says = |warning: &&String| {
        let why = ["it has no key", "no provider is configured"];
        warning.contains(&model) && why.iter().any(|why| warning.contains(why))
    };
    let Some(why) = agent.warnings.iter().find(says) else {
        // Unknown, and perhaps newer than the known versions.
        for warning in agent.warnings.iter().filter(|warning| warning.contains(&model)) {
            cx.out.warn(&clean::line(warning));
        }
        return Ok(());
    };
    Err(Failure::usage(format!("{}; nothing was started", clean::line(why))).hint(
        "a secret of the vault takes effect at once; a variable only after a restart of the \
            server: overmind down; overmind up -d",
    ))
}

/// The model that was probably meant, among those with a known price.
fn meant(cx: &Context, model: &str) -> Option<String> {
    let models = overmind_node::app::models(&cx.config(None).ok()?, None).ok()?;
    let known = models.table();
    let names = || known.iter().map(|row| row.model.as_str());
    if names().any(|name| name == model) {
        return None;
    }
    nearest(model, names()).map(str::to_owned)
}

/// The definition from the file and the flags, in the API's keys; flags override the file.
fn draft(flags: &AgentFlags) -> Result<Map<String, Value>, Failure> {
    let mut draft = match &flags.file {
        Some(path) => read_file(path)?,
        None => Map::new(),
    };
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            draft.insert(key.to_owned(), value);
        }
    };
    put("name", flags.name.clone().map(Into::into));
    put("role", flags.role.clone().map(Into::into));
    put("model", flags.model.clone().map(Into::into));
    put("tools_allowed", flags.tools.as_deref().map(names));
    put("policy", flags.policy.map(|policy| spelled(policy).into()));
    put("sandbox", flags.sandbox.map(|level| spelled(level).into()));
    put("approvals", flags.approvals.as_deref().map(names));
    put("on_unknown", flags.on_unknown.map(|unknown| spelled(unknown).into()));
    put("reasoning_effort", flags.reasoning_effort.clone().map(Into::into));
    put("max_output_tokens", flags.max_output_tokens.map(Into::into));
    for (key, value) in [
        ("max_steps", flags.max_steps),
        ("max_seconds", flags.max_seconds),
        ("max_concurrent", flags.max_concurrent),
        ("failure_budget", flags.failure_budget),
        ("max_attempts", flags.max_attempts),
    ] {
        if let Some(value) = value {
            let limits = draft.entry("limits").or_insert_with(|| json!({}));
            let Some(limits) = limits.as_object_mut() else {
                return Err(Failure::usage("`limits` in the file is not a table"));
            };
            limits.insert(key.to_owned(), value.into());
        }
    }
    Ok(draft)
}

/// The models for a new agent here. The server calls the models: a key that it has counts, and one that
/// only this shell has does not.
async fn found(cx: &Context, remote: &Remote) -> Found {
    let mut found = cx.config(None).map(|config| Found::of(&config)).unwrap_or_default();
    let mut keys = Vec::new();
    for (provider, key) in KEYS {
        match remote.has_key(provider).await {
            Ok(true) => keys.push(key),
            Ok(false) => {}
            // A caller without permission to ask gets the settings of this shell.
            Err(_) => return found,
        }
    }
    (found.keys, found.of_server) = (keys, true);
    found
}

/// A new agent. What it needs and is not given is what `overmind init` would propose: a model that
/// there is a key for, and the tools of an agent that works on files. With what to tell of that.
fn new_draft(
    flags: &AgentFlags,
    found: impl FnOnce() -> Found,
) -> Result<(Value, Option<String>), Failure> {
    let (mut draft, mut note) = (draft(flags)?, None);
    if !draft.contains_key("name") {
        return Err(Failure::usage("an agent needs a name")
            .hint("give --name, or `name` in a file with -f"));
    }
    if !draft.contains_key("model") && !draft.contains_key("command") {
        let Some((model, why)) = found().model() else {
            return Err(Failure::usage("an agent needs a model, and no key of a provider is set")
                .hint(
                    "give --model, or set a key: `overmind vault set anthropic_api_key`, or start \
                        the server with ANTHROPIC_API_KEY, OPENAI_API_KEY or DEEPSEEK_API_KEY; or \
                        configure a model server in overmind.toml",
                ));
        };
        note = Some(format!("its model is {model}, because {why}"));
        draft.insert("model".to_owned(), model.into());
    }
    draft.entry("role").or_insert_with(|| "You do the task you are given.".into());
    if flags.file.is_none() {
        draft.entry("tools_allowed").or_insert_with(|| TOOLS.split(',').collect());
    }
    Ok((Value::Object(draft), note))
}

/// Refuses tools of `--tools` that the server does not have. Those of MCP servers come and go with their
/// server, and a key that may not list tools is believed.
async fn known_tools(remote: &Remote, given: Option<&[String]>) -> Result<(), Failure> {
    let Some(given) = given else { return Ok(()) };
    let known = match remote.tools().await {
        Ok(tools) => tools,
        Err(failure) if failure.exit == Exit::Denied => return Ok(()),
        Err(failure) => return Err(failure),
    };
    let known: Vec<&str> = known.iter().map(|tool| tool.name.as_str()).collect();
    unknown_tools(given, &known).map_or(Ok(()), Err)
}

fn unknown_tools(given: &[String], known: &[&str]) -> Option<Failure> {
    let given = given.iter().map(|name| name.trim());
    let unknown: Vec<&str> = given
        .filter(|name| !name.is_empty() && *name != "none" && !known.contains(name))
        .filter(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        .filter(|name| !name.contains("__"))
        .collect();
    // `shell` is a part of `run_shell`, which is nearer than any misspelling.
    let near = |word: &str| {
        let part = |tool: &&&str| tool.split('_').any(|part| part == word);
        nearest(word, known.iter().copied()).or_else(|| known.iter().find(part).copied())
    };
    let said: Vec<String> = unknown
        .iter()
        .map(|word| match near(word) {
            Some(near) => format!("`{word}` (did you mean `{near}`?)"),
            None => format!("`{word}`"),
        })
        .collect();
    (!said.is_empty()).then(|| {
        Failure::usage(format!("no tool is called {}; nothing was changed", said.join(", ")))
            .hint("`overmind tool list` lists them")
    })
}

/// Names of a list flag; `none` and `""` are the empty list.
fn names(given: &[String]) -> Value {
    given
        .iter()
        .map(|name| name.trim())
        .filter(|name| !name.is_empty() && *name != "none")
        .collect()
}

fn read_file(path: &std::path::Path) -> Result<Map<String, Value>, Failure> {
    let unreadable =
        |err| Failure::failed(format!("reading the agent from {}: {err}", path.display()));
    let stdin = path == std::path::Path::new("-");
    let mut text = String::new();
    if stdin {
        std::io::stdin().lock().read_to_string(&mut text).map_err(unreadable)?;
    } else {
        text = std::fs::read_to_string(path).map_err(unreadable)?;
    }
    let is_json = stdin || path.extension().is_some_and(|ext| ext == "json");
    let value: Result<Value, String> = if is_json {
        serde_json::from_str(&text).map_err(|err| err.to_string())
    } else {
        toml::from_str(&text).map_err(|err| err.to_string())
    };
    match value {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => {
            Err(Failure::usage(format!("{} does not contain a table of settings", path.display())))
        }
        Err(why) => Err(Failure::usage(format!(
            "{} is not {}: {}",
            path.display(),
            if is_json { "JSON" } else { "TOML" },
            why.trim()
        ))),
    }
}

fn wrong(what: &str, err: &serde_json::Error) -> Failure {
    Failure::usage(format!("{what} cannot be read: {err}"))
        .hint("the keys are those of the API: name, role, model, tools_allowed, sandbox, limits, …")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_the_file_and_limits_are_merged() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.toml");
        let text =
            "name = \"x\"\nmodel = \"m\"\ntools_allowed = [\"a\"]\n[limits]\nmax_steps = 5\n";
        std::fs::write(&file, text).unwrap();
        let flags = AgentFlags {
            file: Some(file),
            model: Some("n".into()),
            tools: Some(vec![String::new()]),
            max_seconds: Some(9),
            ..AgentFlags::default()
        };
        let wanted = json!({
            "name": "x", "model": "n", "tools_allowed": [],
            "limits": {"max_steps": 5, "max_seconds": 9}, "role": "You do the task you are given.",
        });
        assert_eq!(new_draft(&flags, Found::default).unwrap(), (wanted, None));
    }

    #[test]
    fn a_new_agent_gets_tools_and_a_model_whose_key_is_set() {
        let flags = |name: &str| AgentFlags { name: Some(name.into()), ..AgentFlags::default() };
        let found = || Found { keys: vec!["OPENAI_API_KEY"], ..Found::default() };
        let (made, note) = new_draft(&flags("a"), found).unwrap();
        assert_eq!(made["model"], "gpt-5.5");
        assert!(note.unwrap().contains("OPENAI_API_KEY is set"));
        let at_server = || Found { of_server: true, ..found() };
        let (_, note) = new_draft(&flags("a"), at_server).unwrap();
        assert_eq!(note.unwrap(), "its model is gpt-5.5, because the server has a key of openai");
        assert_eq!(made["tools_allowed"].as_array().unwrap().len(), 5);
        let none = AgentFlags { tools: Some(vec!["none".into()]), ..flags("a") };
        assert_eq!(new_draft(&none, found).unwrap().0["tools_allowed"], json!([]));
        let err = new_draft(&flags("a"), Found::default).unwrap_err();
        assert!(err.hint.unwrap().contains("with ANTHROPIC_API_KEY"));
        let err = new_draft(&AgentFlags::default(), Found::default).unwrap_err();
        assert_eq!((err.exit, err.message.as_str()), (Exit::Usage, "an agent needs a name"));
        assert!(draft(&AgentFlags::default()).unwrap().is_empty());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.json");
        std::fs::write(&file, "{\"name\": }").unwrap();
        let flags = AgentFlags { file: Some(file), ..AgentFlags::default() };
        let err = draft(&flags).unwrap_err();
        assert!(err.message.contains("a.json is not JSON: expected value"), "{}", err.message);
    }

    #[test]
    fn unknown_tools_are_refused_with_the_nearest_name() {
        let known = ["run_shell", "read_file", "write_file", "grep"];
        let given =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let failure =
            unknown_tools(&given(&["shell", "reed_file", "zzz", "grep"]), &known).unwrap();
        assert_eq!(
            failure.message,
            "no tool is called `shell` (did you mean `run_shell`?), `reed_file` (did you mean \
             `read_file`?), `zzz`; nothing was changed"
        );
        // Tools of an MCP server that is not connected now, and the words for no tools.
        let fine = given(&["run_shell", " grep", "none", "", "docs__search", "docs.search"]);
        assert!(unknown_tools(&fine, &known).is_none());
    }
}
