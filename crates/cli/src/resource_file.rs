//! Files with documents of resources: which, and reading them.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use overmind_view::documents::{MAX_WEIGHT, parse};

use crate::exit::{Exit, Failure};

pub use overmind_view::documents::{At, Document, Mistake};

/// Largest file, in bytes.
const MAX_FILE: u64 = 16 << 20;

/// All documents of what `-f` named, and all that cannot be read as one.
///
/// # Errors
///
/// When a file cannot be read.
pub fn read_all(
    cwd: &Path,
    names: &[PathBuf],
    recursive: bool,
) -> Result<(Vec<Document>, Vec<Mistake>), Failure> {
    let (mut documents, mut mistakes) = (Vec::new(), Vec::new());
    let mut weight = MAX_WEIGHT;
    for name in names {
        if name.as_os_str() == "-" {
            let mut bytes = Vec::new();
            let stdin = std::io::stdin().lock().take(MAX_FILE + 1).read_to_end(&mut bytes);
            stdin.map_err(|err| Failure::failed(format!("reading standard input: {err}")))?;
            take("-", bytes, &mut weight, &mut documents, &mut mistakes);
            continue;
        }
        for file in files(&cwd.join(name), recursive, 0)? {
            let shown = file.strip_prefix(cwd).unwrap_or(&file).display().to_string();
            let bytes = std::fs::File::open(&file).and_then(|open| {
                let mut bytes = Vec::new();
                open.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
                Ok(bytes)
            });
            let bytes = bytes.map_err(|err| unread(&file, &err))?;
            take(&shown, bytes, &mut weight, &mut documents, &mut mistakes);
        }
    }
    if documents.is_empty() && mistakes.is_empty() {
        let names: Vec<_> = names.iter().map(|name| name.display().to_string()).collect();
        let message = format!("there is no document in {}", names.join(", "));
        return Err(Failure::usage(message)
            .hint("a document has apiVersion, kind, metadata.name and spec; files end in .yaml, .yml or .json"));
    }
    Ok((documents, mistakes))
}

fn unread(file: &Path, err: &std::io::Error) -> Failure {
    let exit = match err.kind() {
        std::io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::Failed,
    };
    Failure::new(exit, format!("reading {}: {err}", file.display()))
}

/// The file, or the files of a directory by name.
fn files(path: &Path, recursive: bool, depth: usize) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut entries: Vec<_> =
        entries.map_err(|err| unread(path, &err))?.into_iter().map(|entry| entry.path()).collect();
    entries.sort();
    let mut found = Vec::new();
    for entry in entries {
        let suffix = entry.extension().and_then(|suffix| suffix.to_str()).unwrap_or_default();
        if entry.is_dir() {
            if recursive && depth < 16 {
                found.extend(files(&entry, true, depth + 1)?);
            }
        } else if matches!(suffix, "yaml" | "yml" | "json") {
            found.push(entry);
        }
    }
    Ok(found)
}

fn take(
    file: &str,
    bytes: Vec<u8>,
    weight: &mut usize,
    documents: &mut Vec<Document>,
    mistakes: &mut Vec<Mistake>,
) {
    let wrong = |at, text: &str| Mistake { file: file.to_owned(), at, text: text.to_owned() };
    if bytes.len() as u64 > MAX_FILE {
        return mistakes.push(wrong((1, 1), "is larger than 16 MiB"));
    }
    match String::from_utf8(bytes) {
        Ok(text) => {
            let (found, more) = parse(file, &text, weight);
            documents.extend(found);
            mistakes.extend(more);
        }
        Err(err) => {
            let valid = err.as_bytes().get(..err.utf8_error().valid_up_to()).unwrap_or_default();
            let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
            mistakes.push(wrong((line, 1), "is not UTF-8"));
        }
    }
}
