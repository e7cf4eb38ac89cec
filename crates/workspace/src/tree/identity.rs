//! The authors of a session's commits: the identity of the user's own git in the project.

use std::collections::BTreeMap;
use std::path::Path;

use crate::git::Git;

/// Names and addresses are shorter.
const LONGEST: usize = 1024;
/// All settings of that kind in all files of a user.
const ANSWER: u64 = 64 << 10;

/// The variables, and by which settings git answers each where it is not set.
const VARIABLES: [(&str, [&str; 2]); 4] = [
    ("GIT_AUTHOR_NAME", ["author.name", "user.name"]),
    ("GIT_AUTHOR_EMAIL", ["author.email", "user.email"]),
    ("GIT_COMMITTER_NAME", ["committer.name", "user.name"]),
    ("GIT_COMMITTER_EMAIL", ["committer.email", "user.email"]),
];

/// Variables that make git in a session commit as it would in the project, without the user's
/// configuration files. `git_dir` is the project's, if it has one; `environment` is the user's own.
/// Missing settings are left out.
pub(super) fn variables(
    git: &Git,
    git_dir: Option<&Path>,
    environment: &BTreeMap<String, String>,
) -> Vec<(&'static str, String)> {
    let asked = VARIABLES.iter().all(|(name, _)| environment.contains_key(*name));
    let settings = if asked { BTreeMap::new() } else { settings(git, git_dir, environment) };
    let of = |name: &str, keys: &[&str]| {
        let said = keys.iter().find_map(|key| settings.get(*key));
        let value = environment.get(name).or(said)?.trim();
        let fits = !value.is_empty() && value.len() <= LONGEST && !value.contains(['\0', '\n']);
        fits.then(|| value.to_owned())
    };
    VARIABLES.iter().filter_map(|(name, keys)| Some((*name, of(name, keys)?))).collect()
}

/// The settings that the user's git reads, the last of each.
fn settings(
    git: &Git,
    git_dir: Option<&Path>,
    environment: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let home = environment.get("HOME").map(Path::new);
    let mut call = git.call("read whose commits these are").for_user(home).limit(ANSWER);
    if let Some(git_dir) = git_dir {
        call = call.repo(git_dir);
    }
    // The machine's own file counts as well: its settings run no program.
    call = call.env("GIT_CONFIG_NOSYSTEM", "0").accept(&[0, 1]);
    let pattern = r"^(user|author|committer)\.(name|email)$";
    match call.args(["config", "-z", "--get-regexp", pattern]).run() {
        Ok(answer) => {
            let parts = answer.parts().filter_map(|part| std::str::from_utf8(part).ok());
            let pairs = parts.filter_map(|part| part.split_once('\n'));
            pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
        }
        Err(err) => {
            tracing::debug!(error = %err, "git in a session has no identity");
            BTreeMap::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::gitdir::{self, Layout, Setting};

    #[test]
    fn commits_have_the_identity_of_the_users_git_in_the_project() {
        let dir = tempfile::tempdir().unwrap();
        let (home, project) = (dir.path().join("home"), dir.path().join("project.git"));
        std::fs::create_dir(&home).unwrap();
        let git = Git::default();
        let mut environment =
            BTreeMap::from([("HOME".to_owned(), home.to_string_lossy().into_owned())]);
        let of = |git_dir: Option<&Path>, environment: &BTreeMap<String, String>| {
            let all = variables(&git, git_dir, environment);
            all.into_iter().map(|(_, value)| value).collect::<Vec<_>>().join(" ")
        };
        // If this machine's settings contain no identity.
        if !Path::new("/etc/gitconfig").exists() {
            assert_eq!(of(None, &environment), "");
        }
        std::fs::write(
            home.join(".gitconfig"),
            "[user]\nname = Old\nname = Ann \u{c4}\nemail = a@b\n[alias]\nx = !touch y\n",
        )
        .unwrap();
        assert_eq!(of(None, &environment), "Ann \u{c4} a@b Ann \u{c4} a@b");
        let own = [
            Setting::new("core", None, "repositoryformatversion", "0"),
            Setting::new("user", None, "email", "ann@work"),
            Setting::new("committer", None, "name", "Bot"),
        ];
        let layout = Layout { head: "refs/heads/x", settings: &own, ..Layout::default() };
        gitdir::write(&project, &layout).unwrap();
        assert_eq!(of(Some(&project), &environment), "Ann \u{c4} ann@work Bot ann@work");
        environment.insert("GIT_AUTHOR_NAME".to_owned(), "Eve".to_owned());
        assert_eq!(of(Some(&project), &environment), "Eve ann@work Bot ann@work");
        assert_eq!(of(Some(&dir.path().join("gone")), &environment), "Eve a@b Ann \u{c4} a@b");
    }
}
