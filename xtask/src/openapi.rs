//! `docs/openapi.json`: written from the code, and compared in CI so that it cannot drift.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::host::Host;
use crate::steps::{output, succeed};

fn path(host: &Host) -> PathBuf {
    host.root.join("docs/openapi.json")
}

/// The document as generated from the code, indented, with a line break at the end.
fn from_code(host: &Host) -> Result<String> {
    // Of the whole workspace, as the tests are: the same artifacts, and no second build.
    let build = ["build", "--quiet", "--workspace", "--locked", "--example", "openapi"];
    succeed(host.cargo().args(build)).context("building what makes the OpenAPI document")?;
    let json = output(&mut Command::new(host.target.join("debug/examples/openapi")))
        .context("asking the code for its OpenAPI document")?;
    // Through a value, so that what stands in the file is JSON whatever was printed.
    let value: serde_json::Value =
        serde_json::from_slice(&json).context("reading the document as JSON")?;
    let text = serde_json::to_string_pretty(&value).context("writing the OpenAPI document")?;
    Ok(text + "\n")
}

/// Writes the file anew.
///
/// # Errors
///
/// When the binary does not build or run, or the file cannot be written.
pub fn write(host: &Host) -> Result<()> {
    let path = path(host);
    std::fs::write(&path, from_code(host)?).with_context(|| format!("writing {}", path.display()))
}

/// Compares the file with the code.
///
/// # Errors
///
/// When they differ, with the first line that does.
pub fn check(host: &Host) -> Result<()> {
    let path = path(host);
    let file =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    match first_difference(&file, &from_code(host)?) {
        None => Ok(()),
        Some((line, file, code)) => bail!(
            "docs/openapi.json is not what the code says, from line {line} on:\n  file: {file}\n  \
             code: {code}\nif the change is meant, run `cargo xtask openapi` and review the diff"
        ),
    }
}

/// The first line, counted from 1, in which two texts differ, as each has it.
fn first_difference<'a>(file: &'a str, code: &'a str) -> Option<(usize, &'a str, &'a str)> {
    let (mut file, mut code) = (file.lines(), code.lines());
    let mut line = 0;
    loop {
        line += 1;
        match (file.next(), code.next()) {
            (None, None) => return None,
            (file, code) if file == code => {}
            (file, code) => {
                return Some((line, file.unwrap_or("(ends here)"), code.unwrap_or("(ends here)")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_differing_line_is_reported() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some((2, "b", "c")));
        assert_eq!(first_difference("a\n", "a\nc\n"), Some((2, "(ends here)", "c")));
        assert_eq!(first_difference("a\nb\n", ""), Some((1, "a", "(ends here)")));
    }
}
