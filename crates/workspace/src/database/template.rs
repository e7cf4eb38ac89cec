//! Detects that a template is out of date, with a key over everything from which it is made.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use crate::config::{CommandLine, DatabaseTemplate};
use crate::opener::{self, Dir, Entry};

/// Maximum number of files that a template's patterns may match.
const MAX_FILES: usize = 20_000;
/// The size limit of each of them.
pub(crate) const LARGEST: u64 = 256 << 20;
/// The deepest nesting of directories that is searched.
const MAX_DEPTH: usize = 32;

/// Why the files of a template could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TemplateFilesError {
    #[error("{} is named by the database's template, and {why}", path.display())]
    Read { path: PathBuf, why: String },
    #[error("the patterns of the database's template name more than {MAX_FILES} files")]
    TooMany,
    #[error("no file of the worktree is named by {patterns}: check `template.files`")]
    Nothing { patterns: String },
}

/// A key that changes with every file, statement or value from which the template is made.
///
/// `more` contains other relevant values: the server's version, extensions.
pub(crate) fn key(
    worktree: &Path,
    template: &DatabaseTemplate,
    more: &str,
) -> Result<String, TemplateFilesError> {
    let mut hasher = blake3::Hasher::new();
    let mut add = |bytes: &[u8]| {
        hasher.update(&u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(bytes);
    };
    add(b"template 1");
    add(more.as_bytes());
    match &template.command {
        Some(CommandLine::Shell(line)) => add(line.as_bytes()),
        Some(words @ CommandLine::Words(_)) => add(words.shown().as_bytes()),
        None => add(b""),
    }
    let tree = Dir::open(worktree).map_err(|err| TemplateFilesError::Read {
        path: worktree.into(),
        why: opener::why(&err),
    })?;
    let found = matching(&tree, &template.files)?;
    if found.is_empty() && !template.files.is_empty() {
        return Err(TemplateFilesError::Nothing { patterns: template.files.join(", ") });
    }
    for path in template.sql.iter().chain(&found) {
        let full = worktree.join(path);
        let content = tree
            .read_within(path.as_ref(), LARGEST)
            .and_then(|text| text.ok_or_else(|| io::ErrorKind::NotFound.into()))
            .map_err(|source| TemplateFilesError::Read { path: full, why: opener::why(&source) })?;
        add(path.as_os_str().as_encoded_bytes());
        add(&content);
    }
    Ok(hasher.finalize().to_hex().as_str()[..16].to_owned())
}

/// The files below `root` that one of the patterns matches, sorted.
fn matching(root: &Dir, patterns: &[String]) -> Result<Vec<PathBuf>, TemplateFilesError> {
    let mut found = Vec::new();
    for pattern in patterns {
        let Some(expression) = expression(pattern) else { continue };
        // Directories before the first wildcard need no search.
        let fixed: PathBuf = Path::new(pattern)
            .components()
            .take_while(|part| !part.as_os_str().to_string_lossy().contains(['*', '?']))
            .collect();
        walk(root, &fixed, 0, &expression, &mut found)?;
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn walk(
    root: &Dir,
    path: &Path,
    depth: usize,
    expression: &regex::Regex,
    found: &mut Vec<PathBuf>,
) -> Result<(), TemplateFilesError> {
    // Links are not followed: they may lead out of the worktree, or in circles.
    let kind = match path.as_os_str().is_empty() {
        true => FileType::Directory,
        false => match root.stat(path) {
            Ok(Some(stat)) => FileType::from_raw_mode(stat.st_mode),
            Ok(None) | Err(_) => return Ok(()),
        },
    };
    if kind == FileType::RegularFile && expression.is_match(&path.to_string_lossy()) {
        found.push(path.to_owned());
        if found.len() > MAX_FILES {
            return Err(TemplateFilesError::TooMany);
        }
    } else if kind == FileType::Directory && depth < MAX_DEPTH {
        let entries = root.sub(path).and_then(|dir| dir.entries()).map_err(|err| {
            TemplateFilesError::Read { path: path.to_owned(), why: opener::why(&err) }
        })?;
        for Entry { name, .. } in entries {
            if name != ".git" {
                walk(root, &path.join(name), depth + 1, expression, found)?;
            }
        }
    }
    Ok(())
}

/// `*` matches a part of a name, `?` one character of it, `**` any directories.
pub(crate) fn expression(pattern: &str) -> Option<regex::Regex> {
    let pattern = pattern.trim_start_matches("./");
    let mut out = String::from("^");
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("**/") {
            out.push_str("(?:.*/)?");
            rest = after;
        } else if let Some(after) = rest.strip_prefix("**") {
            out.push_str(".*");
            rest = after;
        } else {
            match c {
                '*' => out.push_str("[^/]*"),
                '?' => out.push_str("[^/]"),
                other => out.push_str(&regex::escape(&other.to_string())),
            }
            rest = &rest[c.len_utf8()..];
        }
    }
    // A directory includes everything in it.
    out.push_str("(?:/.*)?$");
    regex::Regex::new(&out).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn patterns_name_files_in_directories() {
        let is = |pattern: &str, path: &str| expression(pattern).unwrap().is_match(path);
        assert!(is("db/migrate/**", "db/migrate/a/b.rb"));
        assert!(is("db/migrate", "db/migrate/1.rb"));
        assert!(is("**/*.sql", "a.sql") && is("**/*.sql", "x/y/a.sql"));
        assert!(is("db/*.sql", "db/a.sql") && !is("db/*.sql", "db/x/a.sql"));
        assert!(!is("db/?.sql", "db/ab.sql") && !is("db", "dbx/a"));
    }

    #[test]
    fn the_template_key_changes_only_with_content_names_and_command() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("db/m")).unwrap();
        std::fs::write(root.join("db/m/1.sql"), "one").unwrap();
        let template = DatabaseTemplate {
            files: vec!["db/m/**".to_owned()],
            sql: Vec::new(),
            command: Some(CommandLine::Shell("migrate".to_owned())),
            timeout: Duration::from_secs(1),
        };
        let first = key(root, &template, "15").unwrap();
        std::fs::write(root.join("other"), "x").unwrap();
        assert_eq!(key(root, &template, "15").unwrap(), first);
        assert_ne!(key(root, &template, "16").unwrap(), first);
        let other = DatabaseTemplate {
            command: Some(CommandLine::Shell("migrate2".to_owned())),
            ..template.clone()
        };
        assert_ne!(key(root, &other, "15").unwrap(), first);
        std::fs::write(root.join("db/m/1.sql"), "two").unwrap();
        let second = key(root, &template, "15").unwrap();
        assert_ne!(second, first);
        std::fs::rename(root.join("db/m/1.sql"), root.join("db/m/2.sql")).unwrap();
        assert_ne!(key(root, &template, "15").unwrap(), second);
        std::fs::remove_file(root.join("db/m/2.sql")).unwrap();
        let nothing = key(root, &template, "15").unwrap_err().to_string();
        assert!(nothing.contains("db/m/**"), "{nothing}");
    }
}
