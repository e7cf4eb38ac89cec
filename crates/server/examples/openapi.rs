//! Prints the OpenAPI document that the code makes. `cargo xtask openapi` writes it down.

use std::io::Write;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(overmind_server::openapi_from_code().as_bytes())
}
