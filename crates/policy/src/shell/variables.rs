//! Variables that change which programs later commands run, or what these do.
//!
//! A name that is missing here is deliberately harmless: any program may read any variable, and
//! every script sets some. Before you add one, ask whether its value can name a program, a library,
//! code, or a place where a program searches for those.

use overmind_core::gate::TouchKind;

use super::Act;

/// Adds the touch of such a variable, unless its value is one of the few harmless ones.
pub(super) fn environment(act: &mut Act, name: &str, value: Option<&str>) {
    let harmless: &[&str] = match name {
        "PAGER" | "GIT_PAGER" | "MANPAGER" => &["cat", "less", "more", ""],
        "GIT_EDITOR" | "EDITOR" | "VISUAL" | "GIT_SEQUENCE_EDITOR" => {
            &["true", ":", "vi", "vim", "nano", "cat"]
        }
        "GIT_OPTIONAL_LOCKS" | "GIT_TERMINAL_PROMPT" => &["0", "1"],
        "CC" | "CXX" => &["gcc", "clang", "cc", "g++", "clang++", "c++"],
        "RUSTFLAGS" => &["-D warnings", "-Dwarnings", "-C target-cpu=native", ""],
        "NODE_OPTIONS" => &["--max-old-space-size=4096", "--max-old-space-size=8192", ""],
        "PYTHONPATH" => &[".", "src", "./src", "lib"],
        "PS1" | "PS2" => &["$ ", "> ", ""],
        "IFS" => &["\n", ""],
        _ => &[],
    };
    if name.starts_with("BASH_FUNC_") {
        act.unknown("a function that comes by the environment");
    }
    // These are compiler flags, except those that load code or name another program.
    let plain_flags = matches!(name, "CFLAGS" | "CXXFLAGS" | "CPPFLAGS" | "LDFLAGS")
        && value.is_some_and(|value| {
            value.chars().all(|c| c.is_ascii_alphanumeric() || "-+=., _".contains(c))
                && !["plugin", "wrapper", "specs", "-B", "-fuse", "-Wl", "-Xl"]
                    .iter()
                    .any(|word| value.contains(word))
        });
    if !plain_flags && !value.is_some_and(|value| harmless.contains(&value)) {
        act.touch(TouchKind::Environment, name);
    }
}

/// Whether the variable may change which programs run, or what they run.
pub(super) fn dangerous_variable(name: &str) -> bool {
    const EXACT: &[&str] = &[
        "GLOBIGNORE",
        "FPATH",
        "RIPGREP_CONFIG_PATH",
        "JQ_LIBRARY_PATH",
        "GOROOT",
        "GOPATH",
        "GOENV",
        "GOBIN",
        "GOTOOLCHAIN",
        "GOCACHEPROG",
        "GOSUMDB",
        "GOINSECURE",
        "CFLAGS",
        "CXXFLAGS",
        "CPPFLAGS",
        "LDFLAGS",
        "CPP",
        "FC",
        "COMPILER_PATH",
        "GCC_EXEC_PREFIX",
        "JAVA_HOME",
        "JAVA_OPTS",
        "MAVEN_ARGS",
        "M2_HOME",
        "GRADLE_USER_HOME",
        "SBT_OPTS",
        "ANT_ARGS",
        "ANT_OPTS",
        "NODE_EXTRA_CA_CERTS",
        "NODE_REPL_EXTERNAL_MODULE",
        "GNUPGHOME",
        "MANPATH",
        "INFOPATH",
        "TERMINFO_DIRS",
        "GTK_MODULES",
        "QT_PLUGIN_PATH",
        "GIO_EXTRA_MODULES",
        "TEXINPUTS",
        "COVERAGE_PROCESS_START",
        "TF_CLI_CONFIG_FILE",
        "PATH",
        "IFS",
        "ENV",
        "BASH_ENV",
        "BASH_FUNC",
        "SHELLOPTS",
        "BASHOPTS",
        "PROMPT_COMMAND",
        "PS0",
        "PS1",
        "PS2",
        "PS4",
        "CDPATH",
        "HOME",
        "SHELL",
        "PAGER",
        "MANPAGER",
        "MANOPT",
        "EDITOR",
        "VISUAL",
        "FCEDIT",
        "BROWSER",
        "TAR_OPTIONS",
        "RSYNC_RSH",
        "MAKEFLAGS",
        "MAKEFILES",
        "MFLAGS",
        "GNUMAKEFLAGS",
        "MAKE",
        "CC",
        "CXX",
        "LD",
        "AR",
        "AS",
        "RUSTC",
        "RUSTDOC",
        "RUSTFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTUP_HOME",
        "CARGO_HOME",
        "CARGO",
        "JAVA_TOOL_OPTIONS",
        "_JAVA_OPTIONS",
        "JDK_JAVA_OPTIONS",
        "MAVEN_OPTS",
        "GRADLE_OPTS",
        "GOFLAGS",
        "GOPROXY",
        "PERL5OPT",
        "PERL5LIB",
        "PERL5DB",
        "PERLLIB",
        "RUBYOPT",
        "RUBYLIB",
        "NODE_OPTIONS",
        "NODE_PATH",
        "PHPRC",
        "PHP_INI_SCAN_DIR",
        "LUA_INIT",
        "LUA_PATH",
        "LUA_CPATH",
        "SSH_ASKPASS",
        "SUDO_ASKPASS",
        "SSH_AUTH_SOCK",
        "DOCKER_HOST",
        "KUBECONFIG",
        "INPUTRC",
        "TERMINFO",
        "TERMCAP",
        "HISTFILE",
        "GCONV_PATH",
        "LOCPATH",
        "NLSPATH",
        "RES_OPTIONS",
        "HOSTALIASES",
        "TMPDIR",
        "EXINIT",
        "VIMINIT",
        "AWKPATH",
        "AWKLIBPATH",
        "ZDOTDIR",
        "OPENSSL_CONF",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "CURL_CA_BUNDLE",
        "REQUESTS_CA_BUNDLE",
        "WGETRC",
        "CURL_HOME",
        "GREP_OPTIONS",
        "BASH_LOADABLES_PATH",
        "QEMU_LD_PREFIX",
        "DYLD_INSERT_LIBRARIES",
        "PARALLEL",
        "EMACSLOADPATH",
    ];
    const FAMILIES: &[&str] = &[
        "LESS",
        "BAT_",
        "XDG_",
        "CGO_",
        "CMAKE_",
        "PYTEST_",
        "TOX_",
        "ANSIBLE_",
        "SSH_",
        "RSYNC_",
        "TEXMF",
        "LD_",
        "DYLD_",
        "GIT_",
        "PYTHON",
        "PIP_",
        "UV_",
        "npm_config_",
        "NPM_CONFIG_",
        "CARGO_TARGET_",
        "CARGO_BUILD_",
        "CARGO_ALIAS_",
        "CARGO_REGISTR",
        "CARGO_PROFILE_",
        "BASH_FUNC_",
        "GLIBC_",
        "MALLOC_",
        "BUNDLE_",
        "GEM_",
        "COMPOSER_",
    ];
    const HARMLESS: &[&str] = &[
        "GIT_AUTHOR_NAME",
        "GIT_AUTHOR_EMAIL",
        "GIT_AUTHOR_DATE",
        "GIT_COMMITTER_NAME",
        "GIT_COMMITTER_EMAIL",
        "GIT_COMMITTER_DATE",
        "PYTHONUNBUFFERED",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONHASHSEED",
        "PYTHONIOENCODING",
        "PYTHONUTF8",
        "CARGO_TARGET_DIR",
        "CARGO_BUILD_JOBS",
        "CGO_ENABLED",
        "CMAKE_BUILD_TYPE",
        "CMAKE_BUILD_PARALLEL_LEVEL",
        "CMAKE_EXPORT_COMPILE_COMMANDS",
        "CMAKE_COLOR_DIAGNOSTICS",
        "LESSCHARSET",
        "PYTEST_XDIST_WORKER_COUNT",
        "MALLOC_ARENA_MAX",
    ];
    // By convention they name a program.
    const ENDINGS: &[&str] = &["PAGER", "EDITOR", "_RSH", "_ASKPASS", "PRELOAD", "_LAUNCHER"];
    let proxy = name.len() > 6 && name.to_ascii_lowercase().ends_with("_proxy");
    proxy
        || ENDINGS.iter().any(|ending| name.ends_with(ending))
        || EXACT.contains(&name)
        || (FAMILIES.iter().any(|family| name.starts_with(family)) && !HARMLESS.contains(&name))
}
