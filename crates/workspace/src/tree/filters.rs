//! Which programs git may run where it writes the user's own files: those of the user, and none that the
//! repository names.
//!
//! An agent in the checkout, or anybody else who can write a repository's configuration, could name
//! a filter there that git runs outside of every sandbox. So every program in the repository's own
//! configuration is overridden: with the user's or the system's setting, or with nothing. Large
//! files (LFS) are filtered if the repository requests it, by the program in our search path.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::source::Source;
use crate::git::{Git, GitError};

/// The program of a filter, and whether it must work.
const OF_FILTER: &[&str] = &["clean", "smudge", "process", "required"];
/// Other programs, by the section and the last part of their keys.
const PROGRAMS: &[(&str, &str)] =
    &[("merge", "driver"), ("diff", "command"), ("diff", "textconv"), ("hook", "command")];
/// Larger configurations are no user's.
const ANSWER: u64 = 1 << 20;

/// Settings, by their keys as git lists them.
type All = BTreeMap<String, String>;

/// Settings that leave a call in a checkout the filters of the user, whose home is given, and of the
/// system.
///
/// # Errors
///
/// Returns an error if git cannot list the settings.
pub(crate) fn of_user(
    git: &Git,
    source: &Source,
    home: Option<&Path>,
) -> Result<Vec<(String, String)>, GitError> {
    let git_dir = &source.git_dir;
    let list = git
        .call(format!("read the settings of {}", git_dir.display()))
        .source(source)
        .for_user(home)
        .args(["config", "--list", "--show-scope", "-z"])
        .limit(ANSWER)
        .run()?;
    let (mut users, mut repositorys) = (All::new(), All::new());
    let mut parts = list.stdout.split(|byte| *byte == 0);
    while let (Some(scope), Some(setting)) = (parts.next(), parts.next()) {
        let text = String::from_utf8_lossy(setting);
        let key = setting.split(|byte| *byte == b'\n').next().unwrap_or_default();
        if matches!(scope, b"local" | b"worktree") && std::str::from_utf8(key).is_err() {
            // Setting it again under its shown name would not change it.
            return Err(GitError::Failed {
                what: format!("tell which programs {} names", git_dir.display()),
                said: format!(
                    "its configuration has a name that is not UTF-8: {}. Remove that setting",
                    String::from_utf8_lossy(key).escape_debug()
                ),
            });
        }
        // A key alone is switched on.
        let (key, value) = text.split_once('\n').unwrap_or((&text, "true"));
        match scope {
            b"local" | b"worktree" => repositorys.insert(key.to_owned(), value.to_owned()),
            b"system" | b"global" => users.insert(key.to_owned(), value.to_owned()),
            _ => None,
        };
    }
    Ok(anew(&users, &repositorys, git.program_beside("git-lfs").as_deref()))
}

/// The section, the text between the first and the last dot, and the rest of a key.
fn parts(key: &str) -> Option<(&str, &str, &str)> {
    let (section, rest) = key.split_once('.')?;
    let (name, last) = rest.rsplit_once('.')?;
    Some((section, name, last))
}

fn anew(users: &All, repositorys: &All, lfs: Option<&Path>) -> Vec<(String, String)> {
    let mut set = Vec::new();
    let mut filters = BTreeSet::new();
    for key in repositorys.keys() {
        let Some((section, name, last)) = parts(key) else { continue };
        if section == "filter" {
            filters.insert(name);
        } else if PROGRAMS.contains(&(section, last)) {
            set.push((key.clone(), users.get(key).cloned().unwrap_or_default()));
        }
    }
    for name in filters {
        let key = |last: &str| format!("filter.{name}.{last}");
        let is_users = OF_FILTER.iter().any(|last| users.contains_key(&key(last)));
        let lfs = lfs.and_then(Path::to_str).filter(|_| name == "lfs" && !is_users);
        for last in OF_FILTER {
            let ours = lfs.map(|program| match *last {
                "process" => format!("'{program}' filter-process"),
                "required" => "true".to_owned(),
                last => format!("'{program}' {last} -- %f"),
            });
            let users = users.get(&key(last)).cloned();
            // Without a named program, nothing could fail.
            let nothing = if *last == "required" { "false" } else { "" };
            if repositorys.contains_key(&key(last)) || ours.is_some() {
                set.push((key(last), ours.or(users).unwrap_or_else(|| nothing.to_owned())));
            }
        }
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pairs: &[(&str, &str)]) -> All {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn programs_configured_by_a_repository_run_only_if_the_user_configured_them() {
        let users = all(&[("filter.mine.clean", "users"), ("merge.m.driver", "users")]);
        let repositorys = all(&[
            ("filter.a.b.smudge", "evil"),
            ("filter.a.b.required", "true"),
            ("filter.mine.clean", "evil"),
            ("merge.m.driver", "evil"),
            ("diff.d.textconv", "evil"),
            ("hook.h.command", "evil"),
            ("core.autocrlf", "input"),
            ("filter.lfs.process", "evil"),
        ]);
        let set: All = anew(&users, &repositorys, None).into_iter().collect();
        let wanted = [
            ("filter.a.b.smudge", ""),
            ("filter.a.b.required", "false"),
            ("filter.mine.clean", "users"),
            ("merge.m.driver", "users"),
            ("diff.d.textconv", ""),
            ("hook.h.command", ""),
            ("filter.lfs.process", ""),
        ];
        assert_eq!(set, all(&wanted));
        let set: All =
            anew(&users, &repositorys, Some(Path::new("/b/git-lfs"))).into_iter().collect();
        assert_eq!(set["filter.lfs.process"], "'/b/git-lfs' filter-process");
        assert_eq!(set["filter.lfs.smudge"], "'/b/git-lfs' smudge -- %f");
    }
}
