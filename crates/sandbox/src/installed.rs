//! Finds programs that are installed on this machine, and the files that they need to run.
//!
//! A sandbox shows the system but no home, while package managers of languages install into homes.
//! Of a home only the program's package or its single file is shown, and the interpreter that its
//! first line names.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::enclosure::is_program;

/// The directory in which packages of Node.js are, beside those that they need.
const MODULES: &str = "node_modules";
/// Longest first line that names an interpreter, which is the kernel's own limit.
const FIRST_LINE: usize = 256;

/// A program, and the paths that must be shown so that it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The program's file, with all links resolved.
    pub program: PathBuf,
    pub needs: Vec<PathBuf>,
}

/// Finds a program by its name in a `PATH`; `None` if no directory contains it.
pub fn find(path: &str, name: &str) -> Option<Installed> {
    let (_, program) = look_up(path, name)?;
    let mut needs = vec![package(&program)];
    if let Some(interpreter) = interpreter(&program) {
        match interpreter.is_absolute() {
            true => needs.push(interpreter),
            // Inside, it is searched again by the path at which it was found here.
            false => needs.extend(look_up(path, interpreter.to_str()?).map(|(place, _)| place)),
        }
    }
    Some(Installed { program, needs })
}

/// Finds a name in a `PATH`, and the file that it leads to. Relative directories depend on the
/// searching process and are ignored.
fn look_up(path: &str, name: &str) -> Option<(PathBuf, PathBuf)> {
    let places = path.split(':').map(|dir| Path::new(dir).join(name));
    let mut found = places.filter(|place| place.is_absolute() && is_program(place));
    found.find_map(|place| {
        let file = place.canonicalize().ok()?;
        Some((place, file))
    })
}

/// The paths that belong to a program's file: its packages, or nothing else.
fn package(program: &Path) -> PathBuf {
    let packages = program.ancestors().filter(|path| path.file_name() == Some(MODULES.as_ref()));
    packages.last().unwrap_or(program).to_owned()
}

/// The interpreter that a script's first line names: a path, or a name to search for.
fn interpreter(program: &Path) -> Option<PathBuf> {
    let mut first = Vec::new();
    File::open(program).ok()?.take(FIRST_LINE as u64).read_to_end(&mut first).ok()?;
    let line = first.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
        .map(|word| Path::new(OsStr::from_bytes(word)));
    let interpreter = words.next()?;
    match interpreter.file_name() == Some("env".as_ref()) {
        true => words.find(|word| !word.as_os_str().as_bytes().starts_with(b"-")),
        false => Some(interpreter),
    }
    .map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn program(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn an_installed_program_needs_only_its_package_and_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let (bin, modules) = (top.join("home/bin"), top.join("home/lib/node_modules"));
        let script = modules.join("@org/agent/node_modules/inner/cli.js");
        program(&script, "#!/usr/bin/env -S node --flag\nx");
        program(&bin.join("node"), "ELF");
        symlink(&script, bin.join("agent")).unwrap();
        let single = top.join("home/share/agent/versions/2.1");
        program(&single, "ELF");
        symlink(&single, bin.join("single")).unwrap();
        program(&bin.join("shell"), "#!/bin/sh\n");
        std::fs::write(bin.join("no-program"), "x").unwrap();
        let path = format!(":.:/nowhere:{}", bin.display());
        assert_eq!(
            find(&path, "agent"),
            Some(Installed { program: script, needs: vec![modules, bin.join("node")] })
        );
        assert_eq!(
            find(&path, "single"),
            Some(Installed { program: single.clone(), needs: vec![single] })
        );
        let shell = bin.join("shell");
        assert_eq!(
            find(&path, "shell"),
            Some(Installed { program: shell.clone(), needs: vec![shell, "/bin/sh".into()] })
        );
        assert_eq!([find(&path, "no-program"), find(&path, "none")], [None, None]);
    }
}
