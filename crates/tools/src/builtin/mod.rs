//! The built-in tools, one file each. To add one, implement [`Tool`] in a new file here, and add it
//! to [`all`]. Its description tells a model what it must know to use it well. Declare the
//! properties in the order in which their errors should be reported, and choose the effect class by
//! the effect of a second run.

use std::sync::Arc;

use crate::egress::Door;
use crate::gateway::{Parts, Tool};
use crate::options::Options;

mod artifacts;
mod command;
mod edit_file;
mod http_request;
mod list_files;
mod memory;
mod mesh;
mod parts;
mod read_file;
mod run_command;
mod run_shell;
mod talk;
mod verify;
mod web_fetch;
mod write_file;

pub use mesh::mesh_tools;

/// Every built-in tool.
pub(crate) fn all(parts: Parts, options: Options) -> Vec<Arc<dyn Tool>> {
    let Parts { sandboxes, memory } = parts;
    let Options { egress, resolver, commands, files, canaries } = options;
    let door = Arc::new(Door::new(egress, resolver));
    let labels = Arc::new(files);
    let shell = command::Runner::new(sandboxes, labels.clone(), canaries);
    vec![
        Arc::new(run_shell::RunShell::new(shell.clone())),
        Arc::new(run_command::RunCommand::new(shell, commands)),
        Arc::new(read_file::ReadFile { labels: labels.clone() }),
        Arc::new(write_file::WriteFile),
        Arc::new(edit_file::EditFile { labels }),
        Arc::new(list_files::ListFiles),
        Arc::new(http_request::HttpRequest::new(door.clone())),
        Arc::new(web_fetch::WebFetch::new(door)),
        Arc::new(memory::StoreMemory::new(memory.clone())),
        Arc::new(memory::SearchMemory::new(memory)),
        Arc::new(verify::Verify),
        Arc::new(talk::AskUser),
        Arc::new(talk::FinalAnswer),
    ]
}
