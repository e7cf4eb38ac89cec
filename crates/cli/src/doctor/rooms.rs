//! The remains of runs that no longer exist, as the server reports them.

use overmind_api::Leak;
use overmind_node::app::lock::Holder;
use overmind_node::config::DataDir;

use super::Finding;
use crate::exit::Failure;
use crate::remote::Remote;

const CHECK: &str = "leaks";

/// One finding for each thing that is left; with `fix` after the server has removed what is ours
/// for certain. Nothing is said of a server that makes no environments.
pub(super) async fn leaks(data: &DataDir, held: &Holder, fix: bool) -> Vec<Finding> {
    let Holder::Server { file: Some(file), .. } = held else {
        let why = "only a running server knows which runs exist";
        return match fix {
            true => vec![Finding::broken(CHECK, why, "`overmind up -d`, and again")],
            false => Vec::new(),
        };
    };
    let asked = async {
        let remote = Remote::to_server(file, data.path())?;
        if fix { remote.room_fix().await } else { remote.room_leaks().await }
    };
    match asked.await {
        Ok(found) if found.leaks.is_empty() => {
            vec![Finding::fine(CHECK, "removed runs have left nothing behind")]
        }
        Ok(found) => found.leaks.iter().map(|leak| told(leak, fix)).collect(),
        Err(Failure { message, .. }) if message.contains("makes no environments") => Vec::new(),
        Err(Failure { message, hint, .. }) => {
            let remedy = hint.unwrap_or_else(|| "the log of the server says more".to_owned());
            vec![Finding::broken(CHECK, message, remedy)]
        }
    }
}

fn told(leak: &Leak, fix: bool) -> Finding {
    let mut found = format!("{} {}", leak.kind, leak.what);
    if let Some(session) = &leak.session {
        found.push_str(&format!(" of {session}"));
    }
    if let Some(bytes) = leak.bytes {
        found.push_str(&format!(", {}", crate::output::when::bytes(bytes)));
    }
    // Checks that could not be made need not find anything.
    if leak.kind == "unchecked" {
        return Finding::warning(CHECK, found, leak.how.clone());
    }
    let remedy = match leak.fixable && !fix {
        true => format!("{}; `overmind doctor --fix` does", leak.how),
        false => leak.how.clone(),
    };
    Finding::broken(CHECK, found, remedy)
}
