//! `overmind mcp`: servers of tools.

use std::io::Read as _;

use overmind_api::{McpPin, McpServerPut, McpUnpin};
use serde_json::{Map, Value, json};

use crate::args_mcp::{McpAddArgs, McpCommand};
use crate::args_more::spelled;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::{Table, Tone};
use crate::remote::Remote;
use crate::show::{self, cell, dim};

/// # Errors
///
/// Returns an error if the command fails. A server that was added and has failed is
/// [`Exit::Failed`].
pub async fn run(cx: &Context, command: McpCommand) -> Outcome {
    let remote = Remote::connect(cx)?;
    match command {
        McpCommand::Add(args) => return add(cx, &remote, *args).await,
        McpCommand::List => servers(cx, &remote.mcp_list().await?)?,
        McpCommand::Tools { id } => {
            let servers = match id {
                Some(id) => vec![remote.mcp_fetch(&id).await?],
                None => remote.mcp_list().await?,
            };
            tools(cx, &servers)?;
        }
        McpCommand::Pin { id: Some(id), tool, hash, .. } => {
            let server = remote.mcp_pin(&id, &McpPin { tool, hash }).await?;
            tools(cx, &[server])?;
        }
        McpCommand::Pin { id: None, .. } => {
            let mut pinned = Vec::new();
            for server in remote.mcp_list().await? {
                if server["needs_approval"] == true {
                    let all = McpPin { tool: None, hash: None };
                    pinned.push(remote.mcp_pin(&text(&server, "id"), &all).await?);
                }
            }
            tools(cx, &pinned)?;
        }
        McpCommand::Unpin { id, tool } => {
            let server = remote.mcp_unpin(&id, &McpUnpin { tool }).await?;
            tools(cx, &[server])?;
        }
        McpCommand::Serve => crate::mcp_serve::serve(cx, &remote).await?,
        McpCommand::Rm { id } => {
            remote.mcp_remove(&id).await?;
            cx.out.note(&format!("MCP server `{id}` is removed"));
        }
    }
    Ok(Exit::Done)
}

async fn add(cx: &Context, remote: &Remote, args: McpAddArgs) -> Outcome {
    let config = match &args.file {
        Some(file) => from_file(file)?,
        None => from_flags(&args)?,
    };
    let id = config["id"].as_str().unwrap_or_default().to_owned();
    let before = remote.mcp_list().await?.into_iter().find(|server| server["id"] == *id);
    let all = remote.mcp_put(&McpServerPut(config)).await?;
    let added: Vec<Value> = all.into_iter().filter(|server| server["id"] == *id).collect();
    let failed = added.iter().any(|server| server["state"] == "failed");
    if failed && !args.keep {
        match before {
            Some(before) => {
                remote.mcp_put(&McpServerPut(before["config"].clone())).await?;
            }
            None => remote.mcp_remove(&id).await?,
        }
        let why = added.iter().find_map(|server| server["reason"].as_str()).unwrap_or("no reason");
        let failure =
            Failure::failed(format!("`{id}` was not added, because it does not start: {why}"));
        return Err(failure.hint("--keep adds it anyway"));
    }
    if cx.out.for_people() {
        for server in &added {
            if let Some(reason) = server["reason"].as_str() {
                cx.out.error(&format!("`{id}` has failed: {reason}"), None);
            }
        }
        tools(cx, &added)?;
        if added.iter().any(|server| server["needs_approval"] == true) {
            cx.out.note(&format!("tools wait for approval: overmind mcp pin {id}"));
        }
    } else {
        servers(cx, &added)?;
    }
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

fn from_file(file: &std::path::Path) -> Result<Value, Failure> {
    let mut text = String::new();
    let read = if file == std::path::Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map(drop)
    } else {
        std::fs::read_to_string(file).map(|read| text = read)
    };
    read.map_err(|err| Failure::failed(format!("reading {}: {err}", file.display())))?;
    serde_json::from_str(&text)
        .map_err(|err| Failure::usage(format!("{} is not JSON: {err}", file.display())))
}

fn from_flags(args: &McpAddArgs) -> Result<Value, Failure> {
    let transport = match (&args.url, args.command.split_first()) {
        (Some(url), _) => json!({
            "kind": "http", "url": url, "headers": values(&args.header, &args.secret_header)?,
        }),
        (None, Some((command, rest))) => json!({
            "kind": "stdio", "command": command, "args": rest,
            "env": values(&args.env, &args.secret_env)?, "sandbox": spelled(args.sandbox),
            "read_only": args.read_only, "writes_workspace": args.writes_workspace,
        }),
        (None, None) => {
            return Err(Failure::usage("neither a program nor a --url was given")
                .hint("overmind mcp add NAME -- COMMAND ARGUMENTS…"));
        }
    };
    Ok(json!({
        "id": args.id, "enabled": !args.disabled, "transport": transport,
        "scope": spelled(args.scope), "approve": if args.manual { "manual" } else { "first_use" },
    }))
}

/// `NAME=VALUE` pairs; those of `secret` name where the value is.
fn values(plain: &[String], secret: &[String]) -> Result<Value, Failure> {
    let mut all = Map::new();
    let pair = |text: &str| {
        let found = text.split_once('=').filter(|(name, _)| !name.is_empty());
        let found = found.map(|(name, value)| (name.to_owned(), value.to_owned()));
        found.ok_or_else(|| Failure::usage(format!("`{text}` is not NAME=VALUE")))
    };
    for text in plain {
        let (name, value) = pair(text)?;
        all.insert(name, json!(value));
    }
    for text in secret {
        let (name, value) = pair(text)?;
        all.insert(name, json!({"secret": value}));
    }
    Ok(Value::Object(all))
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn servers(cx: &Context, servers: &[Value]) -> Result<(), Failure> {
    show::list(
        &cx.out,
        servers,
        |server| text(server, "id"),
        |wide| {
            let mut head = vec!["ID", "STATE", "TOOLS", "WHAT"];
            if wide {
                head.extend(["PROTOCOL", "SERVER"]);
            }
            let mut table = Table::new(&head);
            for server in servers {
                let state = text(server, "state");
                let all = server["tools"].as_array().map_or(&[][..], Vec::as_slice);
                let ready = all.iter().filter(|tool| tool["state"] == "ready").count();
                let tone = match (state.as_str(), server["needs_approval"] == true) {
                    ("ready", false) => Tone::Good,
                    ("failed", _) => Tone::Bad,
                    ("ready", true) => Tone::Waits,
                    _ => Tone::Dim,
                };
                let what = match (server["command"].as_str(), server["reason"].as_str()) {
                    (_, Some(reason)) => reason.to_owned(),
                    (Some(command), None) => command.to_owned(),
                    (None, None) => text(&server["config"]["transport"], "url"),
                };
                let mut row = vec![
                    cell(text(server, "id")),
                    (state, tone),
                    cell(format!("{ready}/{}", all.len())),
                    cell(what),
                ];
                if wide {
                    row.push(cell(text(server, "protocol")));
                    row.push(cell(text(server, "server_info")));
                }
                table.row(row);
            }
            table
        },
        "no MCP servers; add one: overmind mcp add NAME -- COMMAND",
    )
}

fn tools(cx: &Context, servers: &[Value]) -> Result<(), Failure> {
    let all: Vec<Value> = servers
        .iter()
        .flat_map(|server| server["tools"].as_array().cloned().unwrap_or_default())
        .collect();
    show::list(
        &cx.out,
        &all,
        |tool| text(tool, "full_name"),
        |wide| {
            let mut table = Table::new(&["TOOL", "STATE", "WHAT"]);
            for tool in &all {
                let state = text(tool, "state");
                let tone = match state.as_str() {
                    "ready" => Tone::Good,
                    "changed" | "refused" => Tone::Bad,
                    "new" => Tone::Waits,
                    _ => Tone::Dim,
                };
                let what = match tool["diff"].as_str().or(tool["reason"].as_str()) {
                    Some(why) if wide => why.to_owned(),
                    Some(why) => why.lines().next().unwrap_or_default().to_owned(),
                    None if wide => text(tool, "description"),
                    None => text(tool, "description").lines().next().unwrap_or_default().to_owned(),
                };
                table.row(vec![cell(text(tool, "full_name")), (state, tone), dim(what)]);
            }
            table
        },
        "no tools",
    )
}
