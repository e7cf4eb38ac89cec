//! The built-in tools, one file each. To add one: implement [`Tool`] in a new file here, and
//! put it into [`all`]. Say in its description what a model must know to use it well, declare
//! the properties in the order in which their errors should be told, and choose the effect class
//! by what a second run would do.

use std::sync::Arc;

use crate::gateway::{Parts, Tool};

mod edit_file;
mod list_files;
mod memory;
mod read_file;
mod run_shell;
mod talk;
mod verify;
mod write_file;

/// Every built-in tool.
pub(crate) fn all(parts: Parts) -> Vec<Arc<dyn Tool>> {
    let Parts { sandboxes, memory } = parts;
    vec![
        Arc::new(run_shell::RunShell::new(sandboxes)),
        Arc::new(read_file::ReadFile),
        Arc::new(write_file::WriteFile),
        Arc::new(edit_file::EditFile),
        Arc::new(list_files::ListFiles),
        Arc::new(memory::StoreMemory::new(memory.clone())),
        Arc::new(memory::SearchMemory::new(memory)),
        Arc::new(verify::Verify),
        Arc::new(talk::AskUser),
        Arc::new(talk::FinalAnswer),
    ]
}
