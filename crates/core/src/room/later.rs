//! Files of a project that other programs run by themselves once they are merged: hooks, tasks of
//! editors, workflows, settings of coding agents. Whoever merges a change to one is told first.

/// Where such a file stands in the tree, in lower case.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// A file of this name, in any directory.
    Name(&'static str),
    /// Anything below a directory of this name, in any directory.
    Below(&'static str),
}

use Place::{Below, Name};

const OVERMIND: &str = "Overmind runs its setup and services for new runs";
const SHELL: &str = "your shell runs it when you enter the directory";
const AGENTS: &str = "coding agents run what it names";
const EDITOR: &str = "your editor may run it";
const CI: &str = "the CI service runs it";
const HOOKS: &str = "git runs it as a hook";
const GIT: &str = "git fetches what it names";
const PACKAGES: &str = "a package manager or build tool runs what it names";

const FILES: &[(Place, &str)] = &[
    (Name(".overmind.yml"), OVERMIND),
    (Name(".envrc"), SHELL),
    (Name(".autoenv.zsh"), SHELL),
    (Name("mise.toml"), SHELL),
    (Name(".mise.toml"), SHELL),
    (Name(".mcp.json"), AGENTS),
    (Name("opencode.json"), AGENTS),
    (Name("opencode.jsonc"), AGENTS),
    (Below(".claude"), AGENTS),
    (Below(".codex"), AGENTS),
    (Below(".cursor"), AGENTS),
    (Below(".gemini"), AGENTS),
    (Below(".opencode"), AGENTS),
    (Below(".vscode"), EDITOR),
    (Below(".idea"), EDITOR),
    (Below(".fleet"), EDITOR),
    (Below(".zed"), EDITOR),
    (Below(".devcontainer"), EDITOR),
    (Name(".devcontainer.json"), EDITOR),
    (Name(".vimrc"), EDITOR),
    (Name(".nvim.lua"), EDITOR),
    (Name(".exrc"), EDITOR),
    (Name(".dir-locals.el"), EDITOR),
    (Below(".github/workflows"), CI),
    (Below(".github/actions"), CI),
    (Below(".gitea/workflows"), CI),
    (Below(".forgejo/workflows"), CI),
    (Below(".gitlab/ci"), CI),
    (Below(".circleci"), CI),
    (Below(".buildkite"), CI),
    (Below(".woodpecker"), CI),
    (Below(".teamcity"), CI),
    (Name(".gitlab-ci.yml"), CI),
    (Name(".travis.yml"), CI),
    (Name(".drone.yml"), CI),
    (Name(".woodpecker.yml"), CI),
    (Name("azure-pipelines.yml"), CI),
    (Name("bitbucket-pipelines.yml"), CI),
    (Name("cloudbuild.yaml"), CI),
    (Name("jenkinsfile"), CI),
    (Below(".husky"), HOOKS),
    (Below(".githooks"), HOOKS),
    (Name(".pre-commit-config.yaml"), HOOKS),
    (Name("lefthook.yml"), HOOKS),
    (Name("lefthook.yaml"), HOOKS),
    (Name(".lefthook.yml"), HOOKS),
    (Name(".gitmodules"), GIT),
    (Name(".npmrc"), PACKAGES),
    (Name(".yarnrc"), PACKAGES),
    (Name(".yarnrc.yml"), PACKAGES),
    (Name(".pnpmfile.cjs"), PACKAGES),
    (Name("pip.conf"), PACKAGES),
    (Below(".cargo"), PACKAGES),
    (Below(".mvn"), PACKAGES),
];

/// Who runs a file by itself once it is merged; `None`: nothing does. `path` is from the top of the
/// tree, with `/`. Case does not count: some file systems do not see it.
pub fn runs_by_itself(path: &str) -> Option<&'static str> {
    let path = path.to_lowercase();
    let holds = |place: Place| match place {
        Name(name) => path.rsplit('/').next() == Some(name),
        Below(dir) => path.match_indices(dir).any(|(at, _)| {
            let begins = at == 0 || path.get(..at).is_some_and(|before| before.ends_with('/'));
            begins && path.get(at + dir.len()..).is_some_and(|rest| rest.starts_with('/'))
        }),
    };
    FILES.iter().find(|(place, _)| holds(*place)).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_tools_run_by_themselves_are_known_wherever_they_stand() {
        for path in [
            ".overmind.yml",
            ".envrc",
            "web/.envrc",
            ".ENVRC",
            ".claude/settings.json",
            ".claude/hooks/a.sh",
            "packages/a/.vscode/tasks.json",
            ".github/workflows/ci.yml",
            ".GitHub/Workflows/ci.yml",
            ".husky/pre-commit",
            "sub/.cargo/config.toml",
            "Jenkinsfile",
            ".gitmodules",
        ] {
            assert!(runs_by_itself(path).is_some(), "{path}");
        }
        for path in [
            "src/main.rs",
            "envrc",
            "docs/.overmind.yml.md",
            "claude/settings.json",
            ".claude",
            ".github/CODEOWNERS",
            "my.vscode/tasks.json",
            ".vscodes/tasks.json",
            "package.json",
        ] {
            assert_eq!(runs_by_itself(path), None, "{path}");
        }
    }
}
