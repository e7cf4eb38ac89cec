//! Checks of a request that every driver makes, with the same messages.

use std::path::{Component, Path};

use overmind_core::sandbox::{SandboxError, SandboxRequest};

/// The code of a request that cannot be run as it is.
pub(crate) const BAD_CONFIG: &str = "bad_config";

pub(crate) fn bad_config(message: impl Into<String>) -> SandboxError {
    SandboxError::BadConfig { code: BAD_CONFIG.to_owned(), message: message.into() }
}

/// Checks everything that needs no access to the file system.
///
/// Whether directories exist and are inside of the workspace is checked when they are opened, so
/// that nothing can change in between.
pub(crate) fn check(request: &SandboxRequest) -> Result<(), SandboxError> {
    if request.argv.first().is_none_or(String::is_empty) {
        return Err(bad_config("the command is empty"));
    }
    if request.argv.iter().any(|argument| argument.contains('\0')) {
        return Err(bad_config("an argument contains a NUL byte"));
    }
    for (key, value) in &request.env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            return Err(bad_config(format!("`{}` cannot be a variable", key.escape_debug())));
        }
    }
    if request.timeout.is_zero() {
        return Err(bad_config("timeout must be above 0"));
    }
    if !request.workspace.is_absolute() {
        return Err(bad_config(format!(
            "the workspace {} is not an absolute path",
            request.workspace.display()
        )));
    }
    for path in [Some(&request.workspace), request.writable.as_ref(), Some(&request.cwd)] {
        if path.is_some_and(|path| path.to_str().is_none_or(|text| text.contains('\0'))) {
            return Err(bad_config("a path is not UTF-8, or contains a NUL byte"));
        }
    }
    if let Some(file) = request.home.iter().find(|file| !may_lie_in_home(&file.path)) {
        let path = file.path.display();
        return Err(bad_config(format!("a file of the home escapes it, or has no name: {path}")));
    }
    if request.writable.as_ref().is_some_and(|path| !stays_beneath(path)) {
        return Err(bad_config("write_subdir escapes workspace"));
    }
    if !stays_beneath(&request.cwd) {
        return Err(bad_config("working directory escapes workspace"));
    }
    let limits = &request.limits;
    let cpus_make_sense = limits.cpus.is_finite() && limits.cpus > 0.0;
    let nothing = [
        ("memory", limits.memory_bytes == 0),
        ("processors", !cpus_make_sense),
        ("processes", limits.pids == 0),
        ("memory for /tmp", limits.tmp_bytes == 0),
        ("open files", limits.open_files == 0),
    ];
    match nothing.iter().find(|(_, nothing)| *nothing) {
        Some((what, _)) => Err(bad_config(format!("the limit of {what} must be above 0"))),
        None => Ok(()),
    }
}

fn may_lie_in_home(path: &Path) -> bool {
    let plain = |part| matches!(part, Component::Normal(_));
    path.file_name().is_some()
        && path.to_str().is_some_and(|text| !text.contains('\0') && !text.ends_with('/'))
        && path.components().all(plain)
}

/// Whether a path, by its text alone, is relative and without `..`.
fn stays_beneath(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use overmind_core::sandbox::{HomeFile, SandboxLimits};

    use super::*;

    fn request() -> SandboxRequest {
        SandboxRequest {
            argv: vec!["true".to_owned()],
            workspace: PathBuf::from("/w"),
            writable: Some(PathBuf::from("a/./b")),
            cwd: PathBuf::from("."),
            env: vec![("A".to_owned(), String::new())],
            home: Vec::new(),
            stdin: Vec::new(),
            timeout: Duration::from_millis(1),
            limits: SandboxLimits::default(),
        }
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut SandboxRequest), expected: &str) {
        let mut request = request();
        change(&mut request);
        match check(&request) {
            Err(SandboxError::BadConfig { code, message }) => {
                assert_eq!((code.as_str(), message.as_str()), (BAD_CONFIG, expected));
            }
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn a_valid_request_is_accepted() {
        assert_eq!(check(&request()), Ok(()));
    }

    #[test]
    fn an_unrunnable_command_is_refused_with_the_reason() {
        refused(|r| r.argv.clear(), "the command is empty");
        refused(|r| r.argv = vec![String::new()], "the command is empty");
        refused(|r| r.argv.push("a\0b".to_owned()), "an argument contains a NUL byte");
        refused(|r| r.env.push(("A=B".to_owned(), String::new())), "`A=B` cannot be a variable");
        refused(|r| r.timeout = Duration::ZERO, "timeout must be above 0");
        refused(|r| r.workspace = "w".into(), "the workspace w is not an absolute path");
        for escape in ["..", "a/../../b", "/etc"] {
            refused(|r| r.writable = Some(escape.into()), "write_subdir escapes workspace");
            refused(|r| r.cwd = escape.into(), "working directory escapes workspace");
        }
    }

    #[test]
    fn a_home_file_stays_inside_the_home() {
        let with = |path: &str| {
            let file = HomeFile { path: path.into(), content: Vec::new() };
            check(&SandboxRequest { home: vec![file], ..request() })
        };
        assert_eq!(with(".aws/credentials"), Ok(()));
        for path in ["", "/etc/passwd", "../a", "a/../../b", ".", "a/"] {
            assert!(with(path).is_err(), "{path}");
        }
    }

    #[test]
    fn zero_never_means_no_limit() {
        refused(|r| r.limits.memory_bytes = 0, "the limit of memory must be above 0");
        refused(|r| r.limits.cpus = f64::NAN, "the limit of processors must be above 0");
        refused(|r| r.limits.pids = 0, "the limit of processes must be above 0");
        refused(|r| r.limits.tmp_bytes = 0, "the limit of memory for /tmp must be above 0");
        refused(|r| r.limits.open_files = 0, "the limit of open files must be above 0");
    }
}
