//! The probe's program, and how to run it without the host's libc.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ARGUMENT;

/// The files that must be shown inside, read-only, so that the probe runs in any image.
///
/// A dynamically linked program needs its loader and libraries. They are shown beside it, and the
/// loader is started directly, so the probe runs in an image with another libc or with none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub files: Vec<ProgramFile>,
    /// The argv with paths inside.
    pub argv: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramFile {
    pub host: PathBuf,
    /// An absolute path beneath [`Program::DIRECTORY`].
    pub inside: String,
}

/// After [`ARGUMENT`], this makes the program list its own files and end.
pub(super) const LIST_FILES: &str = "files";

impl Program {
    /// The directory inside in which the files are shown.
    pub const DIRECTORY: &str = "/overmind-probe";

    /// Starts `init_program` once to ask it for its files.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be started, does not call
    /// [`main_if_requested`](crate::init::main_if_requested), or was removed since its start.
    pub async fn find(init_program: &Path) -> io::Result<Self> {
        let output = tokio::process::Command::new(init_program)
            .args([ARGUMENT, LIST_FILES])
            .env_clear()
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output()
            .await?;
        let files: Vec<PathBuf> = serde_json::from_slice(&output.stdout).map_err(|err| {
            io::Error::other(format!(
                "{} does not name the probe's files: {err}",
                init_program.display()
            ))
        })?;
        Self::of(&files)
    }

    /// The first of `files` is the program itself.
    fn of(files: &[PathBuf]) -> io::Result<Self> {
        let inside = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            format!("{}/{name}", Self::DIRECTORY)
        };
        let program = files.first().ok_or_else(|| io::Error::other("it names no program"))?;
        if !program.exists() {
            return Err(io::Error::other(format!(
                "{} is gone: start the daemon again after an upgrade",
                program.display()
            )));
        }
        let loader = files.iter().skip(1).find(|path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|n| n.starts_with("ld"))
        });
        let mut argv = match loader {
            Some(loader) => {
                vec![inside(loader), "--library-path".to_owned(), Self::DIRECTORY.to_owned()]
            }
            None => Vec::new(),
        };
        argv.extend([inside(program), ARGUMENT.to_owned()]);
        let files = files
            .iter()
            .map(|host| ProgramFile { host: host.clone(), inside: inside(host) })
            .collect();
        Ok(Self { files, argv })
    }
}

/// The program of this process and all files that the loader mapped for it.
pub(super) fn own_files() -> io::Result<Vec<PathBuf>> {
    let program = std::fs::read_link("/proc/self/exe")?;
    let mut files = vec![program];
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        let Some(at) = line.find('/') else { continue };
        let path = PathBuf::from(&line[at..]);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let library = name.starts_with("ld") || name.contains(".so");
        if library && !files.contains(&path) {
            files.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_programs_start_through_their_loader() {
        let files = ["/proc/self/exe", "/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        let dynamic = Program::of(&files.map(PathBuf::from)).unwrap();
        assert_eq!(
            dynamic.argv,
            [
                "/overmind-probe/ld-linux-x86-64.so.2",
                "--library-path",
                "/overmind-probe",
                "/overmind-probe/exe",
                ARGUMENT
            ]
        );
        assert_eq!(dynamic.files[1].inside, "/overmind-probe/libc.so.6");
        let alone = Program::of(&[PathBuf::from("/proc/self/exe")]).unwrap();
        assert_eq!(alone.argv, ["/overmind-probe/exe", ARGUMENT]);
        assert!(Program::of(&[]).is_err());
        let gone = Program::of(&[PathBuf::from("/nowhere/overmind")]).unwrap_err().to_string();
        assert!(gone.contains("upgrade"), "{gone}");
    }

    #[test]
    fn this_process_names_itself_first() {
        let files = own_files().unwrap();
        assert_eq!(files[0], std::env::current_exe().unwrap());
        assert!(files.iter().all(|file| file.exists()));
    }
}
