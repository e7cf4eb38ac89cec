//! Checks the files that `docker compose config` reads itself, as the server's user, before it is
//! called. Each must be below the worktree, reached without links, and not one of the server's.

use std::path::{Component, Path, PathBuf};

use crate::config::yaml::{self, Node};
use crate::opener::{self, Dir, Own};

/// Maximum number of files of one project, and the deepest nesting.
const MOST: usize = 32;
/// The longest compose file.
const LONGEST: u64 = 1 << 20;

/// Checks a compose file and all that it names; both relative to the worktree. The error contains
/// the file and the reason.
pub(crate) fn look(worktree: &Path, file: &Path, own: &Own) -> Result<(), (PathBuf, String)> {
    let top = Dir::open(worktree).map_err(|err| (PathBuf::new(), opener::why(&err)))?;
    let top = top.without(own);
    let base = file.parent().unwrap_or(Path::new("")).to_owned();
    let mut known = vec![(file.to_owned(), base)];
    let mut at = 0;
    while let Some((file, base)) = known.get(at).cloned() {
        at += 1;
        let refuse = |why: String| (file.clone(), why);
        if at > MOST {
            return Err(refuse(format!("is one of more than {MOST} files of one project")));
        }
        let bytes = top.read(&file, LONGEST).map_err(|err| refuse(opener::why(&err)))?;
        let bytes = bytes.ok_or_else(|| refuse("is not there".to_owned()))?;
        let text = String::from_utf8(bytes).map_err(|_| refuse("is not text".to_owned()))?;
        let node = yaml::parse(&text)
            .map_err(|bad| refuse(format!("is not YAML: line {}: {}", bad.at.line, bad.why)))?;
        let mut named = Named { base: &base, files: Vec::new(), more: Vec::new() };
        named.of(&node).map_err(refuse)?;
        for plain in named.files {
            let found = match top.stat(&plain) {
                Ok(None) => continue,
                Ok(Some(_)) => top.file(&plain).map(drop),
                Err(err) => Err(err),
            };
            found.map_err(|err| (plain.clone(), opener::why(&err)))?;
        }
        for more in named.more {
            if !known.contains(&more) {
                known.push(more);
            }
        }
    }
    Ok(())
}

struct Named<'a> {
    base: &'a Path,
    /// Files that are read unchanged.
    files: Vec<PathBuf>,
    /// Files that are read as compose files, each with the directory of its relative paths.
    more: Vec<(PathBuf, PathBuf)>,
}

impl Named<'_> {
    fn of(&mut self, node: &Node) -> Result<(), String> {
        for (key, _, value) in node.entries() {
            match key {
                "include" => value.items().iter().try_for_each(|item| self.include(item))?,
                "services" => {
                    for (_, _, service) in value.entries() {
                        self.service(service)?;
                    }
                }
                "secrets" | "configs" => {
                    for (_, _, one) in value.entries() {
                        self.keys(one, &["file"])?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn service(&mut self, service: &Node) -> Result<(), String> {
        for (key, _, value) in service.entries() {
            match key {
                "env_file" | "label_file" => self.plain(value)?,
                "extends" => {
                    for (key, _, value) in value.entries() {
                        if key == "file" {
                            let file = self.beneath(value)?;
                            let base = file.parent().unwrap_or(Path::new("")).to_owned();
                            self.more.push((file, base));
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn include(&mut self, item: &Node) -> Result<(), String> {
        let mut paths = Vec::new();
        let mut base = None;
        if item.text().is_some() {
            paths.push(self.beneath(item)?);
        }
        for (key, _, value) in item.entries() {
            match key {
                "path" if value.items().is_empty() => paths.push(self.beneath(value)?),
                "path" => {
                    for one in value.items() {
                        paths.push(self.beneath(one)?);
                    }
                }
                "project_directory" => base = Some(self.beneath(value)?),
                "env_file" => self.plain(value)?,
                _ => {}
            }
        }
        let above = paths.first().and_then(|path| path.parent()).map(Path::to_owned);
        let base = base.or(above).unwrap_or_default();
        // Compose uses it if no other is named.
        self.files.push(base.join(".env"));
        self.more.extend(paths.into_iter().map(|path| (path, base.clone())));
        Ok(())
    }

    fn keys(&mut self, node: &Node, keys: &[&str]) -> Result<(), String> {
        for (key, _, value) in node.entries() {
            if keys.contains(&key) {
                self.plain(value)?;
            }
        }
        Ok(())
    }

    /// Parses a file, a list of files, or of mappings with a `path`.
    fn plain(&mut self, value: &Node) -> Result<(), String> {
        if value.is_null() {
            return Ok(());
        }
        if value.text().is_some() {
            let path = self.beneath(value)?;
            self.files.push(path);
        }
        for item in value.items() {
            if item.text().is_some() {
                let path = self.beneath(item)?;
                self.files.push(path);
            }
            self.keys(item, &["path"])?;
        }
        self.keys(value, &["path"])
    }

    fn beneath(&self, value: &Node) -> Result<PathBuf, String> {
        let text = value.text().ok_or("names a file by something else than a text")?;
        if text.contains(['$', ':', '~', '\0']) {
            return Err(format!(
                "names the file `{text}`: only files of the worktree, without variables"
            ));
        }
        let mut path = PathBuf::new();
        let leads_out = || format!("names the file `{text}`, which leads out of the worktree");
        for part in self.base.join(text).components() {
            match part {
                Component::Normal(name) => path.push(name),
                Component::CurDir => {}
                Component::ParentDir if path.pop() => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(leads_out());
                }
            }
        }
        Ok(path)
    }
}
