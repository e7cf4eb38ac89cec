//! What exactly a call would do: the hash that an approval is bound to.

use std::io::Read as _;
use std::path::Path;

use overmind_core::gate::{Binding, PolicyVersion};
use overmind_core::tool::ToolContext;
use serde_json::Value;

use crate::workspace::{Root, Workspace, blocking};

/// Most bytes of one file that are read for its hash. Of a larger one, size and time of change
/// count instead: whoever can fake both can do without.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// What a program would be started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Execution {
    pub argv: Vec<String>,
    /// Relative to the workspace.
    pub cwd: String,
    pub env: Vec<(String, String)>,
}

pub(crate) async fn bind(
    context: &ToolContext,
    tool: &str,
    args: &Value,
    execution: Execution,
    files: &[String],
    policy: &PolicyVersion,
) -> String {
    let (root, names) = (Root::of(context), files.to_vec());
    let hashed = blocking(move || {
        let workspace = Workspace::open(&root).ok();
        let hash = |name: String| {
            let content = workspace.as_ref().and_then(|workspace| content(workspace, &name));
            (name, content)
        };
        Ok(names.into_iter().map(hash).collect::<Vec<_>>())
    });
    // Only a shutdown keeps it from being done, and then nobody waits for the hash.
    let files = hashed.await.unwrap_or_default();
    let Execution { argv, cwd, env } = execution;
    Binding { tool, args, argv: &argv, cwd: &cwd, env: &env, files: &files, policy }.hash()
}

/// The hash of a file's content; `None` when it is not there, no file, or not in the workspace:
/// what is outside, a command in a sandbox cannot have changed.
fn content(workspace: &Workspace, name: &str) -> Option<String> {
    let path = workspace.relative(name).ok()?;
    let opened = workspace.open_file(Path::new(&path)).ok()?;
    if opened.bytes > MAX_FILE_BYTES {
        return Some(format!("{:?}", opened.seen()));
    }
    let mut hash = blake3::Hasher::new();
    hash.update_reader((&opened.file).take(MAX_FILE_BYTES + 1)).ok()?;
    Some(hash.finalize().to_hex().to_string())
}
