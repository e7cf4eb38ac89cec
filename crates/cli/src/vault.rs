//! `overmind vault`: secrets, services, grants.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use overmind_api::{
    GrantInfo, GrantPut, SecretImport, SecretInfo, SecretPut, SecretRotate, SecretText,
    ServiceInfo, ServicePut, VaultInfo, VaultPassphrase,
};
use overmind_core::vault::import;
use serde_json::json;

use crate::args_vault::{
    VaultCommand, VaultDeclareArgs, VaultGrantArgs, VaultRotateArgs, VaultSetArgs,
};
use crate::asked;
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::{Table, Tone};
use crate::output::when;
use crate::remote::Remote;
use crate::show::{self, cell, dim};

/// # Errors
///
/// Returns an error if the command fails. No message holds a value.
pub async fn run(cx: &Context, command: VaultCommand) -> Outcome {
    match command {
        VaultCommand::Set(args) => set(cx, args).await,
        VaultCommand::List => {
            let all = Remote::connect(cx)?.secrets().await?;
            secrets(cx, &all)
        }
        VaultCommand::Rm { name } => {
            Remote::connect(cx)?.client().secret_remove(&name).await?;
            cx.out.note(&format!("the secret `{name}` is removed"));
            Ok(Exit::Done)
        }
        VaultCommand::Rotate(args) => rotate(cx, args).await,
        VaultCommand::Import { file, env } => bring(cx, file.as_deref(), env).await,
        VaultCommand::Grant(args) => {
            let made = Remote::connect(cx)?.client().grant_put(&grant(args)).await?;
            grants(cx, &[made])
        }
        VaultCommand::Revoke(args) => {
            let grant = grant(args);
            Remote::connect(cx)?.client().grant_revoke(&grant).await?;
            cx.out.note(&format!("the grant of `{}` is revoked", grant.agent));
            Ok(Exit::Done)
        }
        VaultCommand::Grants => {
            let all = Remote::connect(cx)?.grants().await?;
            grants(cx, &all)
        }
        VaultCommand::Services => {
            let all = Remote::connect(cx)?.services().await?;
            services(cx, &all)
        }
        VaultCommand::Declare(args) => declare(cx, args).await,
        VaultCommand::Undeclare { name } => {
            Remote::connect(cx)?.client().service_remove(&name).await?;
            cx.out.note(&format!("the declaration of `{name}` is removed"));
            Ok(Exit::Done)
        }
        VaultCommand::Status => {
            let status = Remote::connect(cx)?.client().vault_status().await?;
            vault(cx, &status)
        }
        VaultCommand::Unlock { from_stdin, key_file } => {
            let passphrase = match (from_stdin, key_file) {
                (true, _) => Some(asked::of_stdin()?),
                (false, true) => None,
                (false, false) => Some(asked::ask("Passphrase of the vault", false)?),
            };
            let with = VaultPassphrase { passphrase };
            let status = Remote::connect(cx)?.client().vault_unlock(&with).await?;
            vault(cx, &status)
        }
    }
}

/// A value that was written beside a name, or in it, is not repeated: it is a secret.
fn in_the_open(name: &str, refused: &[String]) -> Result<(), Failure> {
    if refused.is_empty() && !name.contains('=') {
        return Ok(());
    }
    let text = "a value cannot be an argument: it would be in the shell's history and in the list \
        of processes, which everybody on this machine can read";
    Err(Failure::usage(text).hint(
        "treat the value that you typed as leaked. `overmind vault set NAME` asks for a value; \
            --from-stdin and --from-file read it",
    ))
}

async fn set(cx: &Context, args: VaultSetArgs) -> Outcome {
    in_the_open(&args.name, &args.refused)?;
    let remote = Remote::connect(cx)?;
    let value = asked::value(&args.value, &args.name)?;
    let put = SecretPut { value, keep: args.keep };
    secrets(cx, &[remote.client().secret_put(&args.name, &put).await?])
}

async fn rotate(cx: &Context, args: VaultRotateArgs) -> Outcome {
    let name = args.name.unwrap_or_default();
    in_the_open(&name, &args.refused)?;
    let remote = Remote::connect(cx)?;
    if args.master {
        let passphrase = match args.passphrase {
            true => Some(asked::ask("New passphrase of the vault", true)?),
            false => None,
        };
        let with = VaultPassphrase { passphrase };
        return vault(cx, &remote.client().vault_rotate_master(&with).await?);
    }
    let rotate = match args.to {
        Some(version) => SecretRotate { restore: Some(version), ..SecretRotate::default() },
        None => {
            let value = Some(asked::value(&args.value, &name)?);
            SecretRotate { value, keep: args.keep, ..SecretRotate::default() }
        }
    };
    secrets(cx, &[remote.client().secret_rotate(&name, &rotate).await?])
}

async fn bring(cx: &Context, file: Option<&Path>, env: bool) -> Outcome {
    let wrong = |err: import::ImportError| Failure::usage(err.to_string());
    let all = match (file, env) {
        (Some(file), _) => import::from_env_file(&read(file)?).map_err(wrong)?,
        (None, _) => {
            let found = cx.env.beginning_with(&import::PREFIXES);
            let pairs = found.iter().map(|(name, value)| (name.as_str(), value.expose()));
            import::from_pairs(pairs).map_err(wrong)?
        }
    };
    if all.is_empty() {
        return Err(Failure::new(Exit::NotFound, "there is nothing to import"));
    }
    let found: BTreeMap<String, SecretText> = all
        .iter()
        .map(|(name, secret)| (name.to_string(), SecretText::new(secret.expose())))
        .collect();
    let count = found.len();
    let import = SecretImport { secrets: found };
    let changed = Remote::connect(cx)?.client().secret_import(&import).await?;
    let same = count - changed.len();
    if same > 0 {
        cx.out.note(&format!("{same} already had these values"));
    }
    secrets(cx, &changed)
}

fn read(file: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().take(1 << 20).read_to_string(&mut text).map(drop),
        false => std::fs::read_to_string(file).map(|read| text = read),
    };
    read.map_err(|err| Failure::failed(format!("reading {}: {err}", file.display())))?;
    Ok(text)
}

fn grant(args: VaultGrantArgs) -> GrantPut {
    let VaultGrantArgs { agent, secret, service } = args;
    GrantPut { agent, secret, service }
}

async fn declare(cx: &Context, args: VaultDeclareArgs) -> Outcome {
    let mut allow = Vec::new();
    for rule in &args.allow {
        let Some((methods, path)) = rule.trim().split_once(' ') else {
            return Err(Failure::usage(format!("`{rule}` is not METHODS PATH"))
                .hint("for example --allow 'GET|POST /issues/**'"));
        };
        let methods: Vec<String> = methods.split(['|', ',']).map(str::to_ascii_uppercase).collect();
        allow.push(json!({ "methods": methods, "path": path.trim() }));
    }
    let mut service = json!({
        "base_url": args.base_url, "auth": args.auth, "secret": args.secret, "allow": allow,
    });
    if args.plaintext {
        service["plaintext"] = json!(true);
    }
    let remote = Remote::connect(cx)?;
    services(cx, &[remote.client().service_put(&args.name, &ServicePut(service)).await?])
}

fn secrets(cx: &Context, all: &[SecretInfo]) -> Outcome {
    show::list(
        &cx.out,
        all,
        |secret| secret.name.clone(),
        |wide| {
            let mut head = vec!["NAME", "VERSION", "SET", "USES", "LAST USED"];
            if wide {
                head.extend(["KEPT", "BY"]);
            }
            head.push("NOTE");
            let mut table = Table::new(&head);
            for secret in all {
                let time = |at| match wide {
                    true => format!("{at}"),
                    false => when::ago(at, cx.now()),
                };
                let mut row = vec![
                    cell(&secret.name),
                    cell(secret.version.to_string()),
                    cell(time(secret.created_at)),
                    cell(secret.uses.to_string()),
                    show::or_dash(secret.last_used_at.map(time)),
                ];
                if wide {
                    let kept = secret.versions.iter().map(u32::to_string).collect::<Vec<_>>();
                    row.push(cell(kept.join(" ")));
                    row.push(cell(&secret.created_by));
                }
                row.push(match (&secret.problem, secret.shadows_environment) {
                    (Some(problem), _) => (problem.clone(), Tone::Bad),
                    (None, true) => dim("overrides the one in the server's environment"),
                    (None, false) => dim(""),
                });
                table.row(row);
            }
            table
        },
        "no secrets; set one: overmind vault set NAME",
    )?;
    Ok(Exit::Done)
}

fn grants(cx: &Context, all: &[GrantInfo]) -> Outcome {
    show::list(
        &cx.out,
        all,
        |grant| format!("{} {} {}", grant.agent, grant.kind, grant.object),
        |_| {
            let mut table = Table::new(&["AGENTS", "MAY USE", "NAMES", "SINCE", "BY"]);
            for grant in all {
                table.row(vec![
                    cell(&grant.agent),
                    cell(&grant.kind),
                    cell(&grant.object),
                    cell(when::ago(grant.created_at, cx.now())),
                    dim(&grant.created_by),
                ]);
            }
            table
        },
        "no grants: agents may use no secret and no service",
    )?;
    Ok(Exit::Done)
}

fn services(cx: &Context, all: &[ServiceInfo]) -> Outcome {
    let text = |service: &ServiceInfo, key: &str| {
        service.service[key].as_str().unwrap_or_default().to_owned()
    };
    show::list(
        &cx.out,
        all,
        |service| service.name.clone(),
        |wide| {
            let mut head = vec!["NAME", "KEY", "SECRET", "URL", "FROM"];
            if wide {
                head.push("AUTH");
            }
            let mut table = Table::new(&head);
            for service in all {
                let key = match service.ready {
                    true => ("ready".to_owned(), Tone::Good),
                    false => dim("missing"),
                };
                let mut row = vec![
                    cell(&service.name),
                    key,
                    cell(text(service, "secret")),
                    cell(text(service, "base_url")),
                    dim(&service.origin),
                ];
                if wide {
                    row.push(cell(text(service, "auth")));
                }
                table.row(row);
            }
            table
        },
        "no services",
    )?;
    Ok(Exit::Done)
}

fn vault(cx: &Context, status: &VaultInfo) -> Outcome {
    let state = match &status.locked {
        Some(reason) => (format!("locked: {reason}"), Tone::Bad),
        None => ("open".to_owned(), Tone::Good),
    };
    show::one(&cx.out, status, if status.locked.is_some() { "locked" } else { "open" }, || {
        let mut lines = vec![
            ("vault", state),
            ("key", show::or_dash(status.protection.clone())),
            ("secrets", cell(status.secrets.to_string())),
        ];
        if status.damaged > 0 {
            lines.push(("damaged", (status.damaged.to_string(), Tone::Bad)));
        }
        lines
    })?;
    Ok(if status.locked.is_some() { Exit::Failed } else { Exit::Done })
}
