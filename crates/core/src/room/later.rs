//! Finds files of a project that other programs run automatically after a merge: hooks, tasks of
//! editors, workflows, settings of coding agents. A person who merges a change to one is warned
//! first.

/// The position of such a file in the worktree, in lower case.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// A file with this name, in any directory.
    Name(&'static str),
    /// A file whose name has this ending, in any directory.
    Ending(&'static str),
    /// Anything below a directory with this name, in any directory; also something else with that
    /// name, such as a link to another directory.
    Below(&'static str),
}

use Place::{Below, Ending, Name};

const OVERMIND: &str = "Overmind runs its setup and services for new runs";
const SHELL: &str = "your shell executes it when you enter the directory";
const AGENTS: &str = "coding agents execute commands from it";
const EDITOR: &str = "your editor may execute it";
const REPL: &str = "interpreters that start in its directory execute it";
const DEBUGGER: &str = "your debugger runs it";
const CI: &str = "the CI service runs it";
const HOOKS: &str = "git executes it as a hook";
const GIT: &str = "git fetches what it names";
const PACKAGES: &str = "a package manager or build tool executes commands from it";

const FILES: &[(Place, &str)] = &[
    (Name(".overmind.yml"), OVERMIND),
    (Name(".envrc"), SHELL),
    (Name(".autoenv.zsh"), SHELL),
    (Name("mise.toml"), SHELL),
    (Name(".mise.toml"), SHELL),
    (Name("mise.local.toml"), SHELL),
    (Name(".mise.local.toml"), SHELL),
    (Below(".mise"), SHELL),
    (Below(".config/mise"), SHELL),
    (Name(".autoenv"), SHELL),
    (Name(".env.zsh"), SHELL),
    (Name(".autoenv_leave.zsh"), SHELL),
    (Name(".in"), SHELL),
    (Name(".out"), SHELL),
    (Name(".rtx.toml"), SHELL),
    (Below(".config/rtx.toml"), SHELL),
    (Name(".mcp.json"), AGENTS),
    (Name("mcp.json"), AGENTS),
    (Below(".amp"), AGENTS),
    (Below(".factory"), AGENTS),
    (Below(".kilocode"), AGENTS),
    (Below(".amazonq"), AGENTS),
    (Below(".augment"), AGENTS),
    (Below(".junie"), AGENTS),
    (Below(".trae"), AGENTS),
    (Name("opencode.json"), AGENTS),
    (Name("opencode.jsonc"), AGENTS),
    (Below(".claude"), AGENTS),
    (Below(".codex"), AGENTS),
    (Below(".cursor"), AGENTS),
    (Below(".gemini"), AGENTS),
    (Below(".opencode"), AGENTS),
    (Below(".kiro"), AGENTS),
    (Below(".roo"), AGENTS),
    (Below(".qwen"), AGENTS),
    (Below(".windsurf"), AGENTS),
    (Below(".continue"), AGENTS),
    (Below(".crush"), AGENTS),
    (Name("crush.json"), AGENTS),
    (Name(".crush.json"), AGENTS),
    (Name(".aider.conf.yml"), AGENTS),
    (Below(".vscode"), EDITOR),
    (Below(".idea"), EDITOR),
    (Below(".fleet"), EDITOR),
    (Below(".zed"), EDITOR),
    (Below(".devcontainer"), EDITOR),
    (Name(".devcontainer.json"), EDITOR),
    (Name(".vimrc"), EDITOR),
    (Name(".nvim.lua"), EDITOR),
    (Name(".exrc"), EDITOR),
    (Name(".nvimrc"), EDITOR),
    (Name(".gdbinit"), DEBUGGER),
    (Name(".lldbinit"), DEBUGGER),
    (Name(".pdbrc"), DEBUGGER),
    (Name(".perldb"), DEBUGGER),
    (Name(".byebugrc"), DEBUGGER),
    (Name(".jdbrc"), DEBUGGER),
    (Name(".dir-locals.el"), EDITOR),
    (Name(".dir-locals-2.el"), EDITOR),
    (Name(".emacs.desktop"), EDITOR),
    (Name(".lvimrc"), EDITOR),
    (Name(".luarc.json"), EDITOR),
    (Name(".neoconf.json"), EDITOR),
    (Below(".helix"), EDITOR),
    (Below(".theia"), EDITOR),
    (Ending(".code-workspace"), EDITOR),
    (Ending(".sublime-project"), EDITOR),
    (Name(".rprofile"), REPL),
    (Name(".renviron"), REPL),
    (Name(".pryrc"), REPL),
    (Name(".irbrc"), REPL),
    (Name(".ghci"), REPL),
    (Name(".ocamlinit"), REPL),
    (Name(".iex.exs"), REPL),
    (Name(".erlang"), REPL),
    (Name(".octaverc"), REPL),
    (Name(".gnuplot"), REPL),
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
    (Name(".cirrus.yml"), CI),
    (Name(".appveyor.yml"), CI),
    (Name("appveyor.yml"), CI),
    (Name("jenkinsfile"), CI),
    (Below(".husky"), HOOKS),
    (Below(".githooks"), HOOKS),
    (Name(".pre-commit-config.yaml"), HOOKS),
    (Name("lefthook.yml"), HOOKS),
    (Name("lefthook.yaml"), HOOKS),
    (Name(".lefthook.yml"), HOOKS),
    (Name("hgrc"), HOOKS),
    (Below(".jj"), HOOKS_OF),
    (Name(".gitmodules"), GIT),
    (Name(".lfsconfig"), GIT),
    (Name(".npmrc"), PACKAGES),
    (Name(".yarnrc"), PACKAGES),
    (Name(".yarnrc.yml"), PACKAGES),
    (Name(".pnpmfile.cjs"), PACKAGES),
    (Name("pip.conf"), PACKAGES),
    (Below(".yarn"), PACKAGES),
    (Name(".pnp.cjs"), PACKAGES),
    (Name("bunfig.toml"), PACKAGES),
    (Name(".bazelrc"), PACKAGES),
    (Name("rust-toolchain.toml"), PACKAGES),
    (Name("rust-toolchain"), PACKAGES),
    (Below(".cargo"), PACKAGES),
    (Below(".mvn"), PACKAGES),
    (Below(".bundle"), PACKAGES),
    (Name(".bazelversion"), PACKAGES),
    (Name(".bazeliskrc"), PACKAGES),
    (Below("tools/bazel"), PACKAGES),
    (Name(".buckconfig"), PACKAGES),
    (Name(".pnpmfile.mjs"), PACKAGES),
    (Name(".jvmopts"), PACKAGES),
    (Name(".sbtopts"), PACKAGES),
];

/// Returns the paths that are settings of a repository inside the worktree. `git status` runs
/// commands that such settings name.
pub fn settings_of_repositories<'a>(paths: &[&'a str]) -> Vec<(&'a str, &'static str)> {
    let is_there = |dir: &str, name: &str| {
        let wanted = format!("{dir}{name}");
        paths.iter().any(|path| **path == wanted || path.starts_with(&format!("{wanted}/")))
    };
    let of_one = |path: &&'a str| {
        let dir = path.strip_suffix("config").filter(|dir| dir.is_empty() || dir.ends_with('/'))?;
        let is = is_there(dir, "HEAD") || is_there(dir, "objects") || is_there(dir, "refs");
        is.then_some((*path, HOOKS_OF))
    };
    paths.iter().filter_map(of_one).collect()
}

const HOOKS_OF: &str = "git or jj executes commands from it when you use that directory";

/// Returns the program that runs a file automatically after a merge; `None` if there is none.
/// `path` is relative to the top of the worktree, with `/`. Case is ignored, because some file
/// systems ignore it.
pub fn runs_by_itself(path: &str) -> Option<&'static str> {
    let path = path.to_lowercase();
    let holds = |place: Place| match place {
        Name(name) => path.rsplit('/').next() == Some(name),
        Ending(ending) => path.ends_with(ending),
        Below(dir) => path.match_indices(dir).any(|(at, _)| {
            let begins = at == 0 || path.get(..at).is_some_and(|before| before.ends_with('/'));
            begins
                && path
                    .get(at + dir.len()..)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }),
    };
    FILES.iter().find(|(place, _)| holds(*place)).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn autorun_files_are_recognised_at_any_path() {
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
            ".lfsconfig",
            ".config/mise/config.toml",
            "rust-toolchain.toml",
            // A link to a directory of another name.
            ".vscode",
            "web/.claude",
            ".dir-locals-2.el",
            "analysis/.Rprofile",
            ".pryrc",
            ".irbrc",
            ".bundle/config",
            ".bazelversion",
            "tools/bazel",
            ".jj/repo/config.toml",
            ".amp/settings.json",
            ".factory/mcp.json",
            ".rtx.toml",
            ".config/rtx.toml",
            ".theia/tasks.json",
            "My.code-workspace",
        ] {
            assert!(runs_by_itself(path).is_some(), "{path}");
        }
        for path in [
            "src/main.rs",
            "envrc",
            "docs/.overmind.yml.md",
            "claude/settings.json",
            "src/mise/a.toml",
            ".github/CODEOWNERS",
            "my.vscode/tasks.json",
            ".vscodes/tasks.json",
            "package.json",
            "tools/bazel.md",
            "src/tools/bazelrc",
            "code-workspace.md",
            "main.in",
        ] {
            assert_eq!(runs_by_itself(path), None, "{path}");
        }
    }

    #[test]
    fn a_nested_repository_is_recognised_by_its_config() {
        let paths =
            ["docs/x/HEAD", "docs/x/config", "docs/x/refs/heads/k", "etc/config", "a/myconfig"];
        let found = settings_of_repositories(&paths);
        assert_eq!(found.iter().map(|(path, _)| *path).collect::<Vec<_>>(), ["docs/x/config"]);
    }
}
