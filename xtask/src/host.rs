//! The machine and the checkout, as found once at the start. Nothing else reads the environment.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The working directory, and the current user.
#[derive(Clone, Debug)]
pub struct Host {
    /// The checkout's top directory.
    pub root: PathBuf,
    /// The target directory of cargo: outside the checkout in CI, `target/` at home.
    pub target: PathBuf,
    /// Downloads that outlive one run: images, the model, the model server.
    pub cache: PathBuf,
    pub is_root: bool,
    /// Whether `CI` is set: then a missing counterpart is a failure.
    pub in_ci: bool,
    /// The directories that are searched for programs; the `sbin` directories come last.
    pub path: Vec<PathBuf>,
    /// A Docker socket that the person brought along, instead of one of ours.
    pub docker: Option<String>,
    /// A model server that the person brought along, instead of ours.
    pub llama: Option<String>,
    /// A directory with `node_modules` of MCP servers, instead of ours.
    pub mcp_node: Option<String>,
    /// A directory of Python packages with `mcp`, instead of ours.
    pub mcp_python: Option<String>,
    /// A directory of Python packages with `openai` and `anthropic`, instead of ours.
    pub python_sdks: Option<String>,
    /// The same with `opentelemetry-proto`.
    pub python_otlp: Option<String>,
    /// A directory with the program `claude`, instead of ours.
    pub claude_code: Option<String>,
    /// A directory with the program `codex`, instead of ours.
    pub codex: Option<String>,
    /// A directory of Node packages with `playwright-core` and `axe-core`, instead of ours.
    pub chromium: Option<String>,
    /// A directory with the program `gemini`, instead of ours.
    pub gemini_cli: Option<String>,
    /// A directory with the program `opencode`, instead of ours.
    pub opencode: Option<String>,
    /// Directory with a static embedding model.
    pub embedding_model: Option<String>,
    /// A directory with sections of manual pages, instead of those of some packages.
    pub manual: Option<String>,
    /// A directory with a kernel package that the person brought along.
    pub microvm: Option<String>,
}

impl Host {
    /// Reads the environment.
    ///
    /// # Errors
    ///
    /// When there is no home directory to keep downloads in.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub fn from_environment() -> Result<Self> {
        let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let home = var("HOME").context("finding the cache directory: HOME is not set")?;
        // Asked at run time, not with `env!`: a target directory may be shared by checkouts.
        let manifest = var("CARGO_MANIFEST_DIR")
            .context("finding the checkout: start this with `cargo xtask`, which tells where")?;
        let root = Path::new(&manifest)
            .parent()
            .context("finding the checkout: CARGO_MANIFEST_DIR has no parent")?
            .to_path_buf();
        let target =
            var("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        let cache =
            var("XDG_CACHE_HOME").map_or_else(|| Path::new(&home).join(".cache"), PathBuf::from);
        let path = var("PATH").unwrap_or_default();
        let path =
            std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from)).collect();
        Ok(Self {
            root,
            target,
            cache: cache.join("overmind-test"),
            is_root: rustix::process::geteuid().is_root(),
            in_ci: var("CI").is_some_and(|value| value != "false"),
            path,
            docker: var("OVERMIND_TEST_DOCKER"),
            llama: var("OVERMIND_TEST_LLAMA"),
            mcp_node: var("OVERMIND_TEST_MCP_NODE"),
            mcp_python: var("OVERMIND_TEST_MCP_PYTHON"),
            python_sdks: var("OVERMIND_TEST_PYTHON_SDKS"),
            python_otlp: var("OVERMIND_TEST_PYTHON_OTLP"),
            claude_code: var("OVERMIND_TEST_CLAUDE_CODE"),
            codex: var("OVERMIND_TEST_CODEX"),
            chromium: var("OVERMIND_TEST_CHROMIUM"),
            gemini_cli: var("OVERMIND_TEST_GEMINI_CLI"),
            opencode: var("OVERMIND_TEST_OPENCODE"),
            embedding_model: var("OVERMIND_TEST_EMBEDDING_MODEL"),
            manual: var("OVERMIND_TEST_MANUAL"),
            microvm: var("OVERMIND_TEST_MICROVM"),
        })
    }

    /// The full path of a program, if it is installed.
    pub fn which(&self, program: &str) -> Option<PathBuf> {
        self.path.iter().map(|dir| dir.join(program)).find(|path| path.is_file())
    }

    /// A cargo command at the checkout's top. No stdin: nothing here may wait for a person.
    pub fn cargo(&self) -> Command {
        let mut cargo = Command::new("cargo");
        cargo
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            .stdin(std::process::Stdio::null());
        // Set by the `cargo run` that started us. They describe the wrong package, and build scripts
        // that read them would run again, and all that depends on them with them.
        let ours = |name: &str| {
            ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|start| name.starts_with(start))
        };
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(ours) {
                cargo.env_remove(name);
            }
        }
        cargo
    }
}
