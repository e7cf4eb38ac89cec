//! Prints `docs/roles.md` as the table of routes makes it.

use std::io::Write;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(overmind_server::roles_document().as_bytes())
}
