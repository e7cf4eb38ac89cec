//! Writes the generated pages of the reference into the directory that it is given.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let dir =
        std::env::args_os().nth(1).ok_or_else(|| std::io::Error::other("name a directory"))?;
    std::fs::create_dir_all(&dir)?;
    for (name, text) in overmind_cli::reference::pages() {
        std::fs::write(Path::new(&dir).join(name), text)?;
    }
    Ok(())
}
