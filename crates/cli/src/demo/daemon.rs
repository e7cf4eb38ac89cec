//! The demo's server: a real process of its own, that can be killed for real.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use overmind_node::app::lock::ServerFile;

use crate::exit::Failure;
use crate::up::first_line;

/// The time that the server may take to be ready.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server in the background that ends with this value.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    pub server: ServerFile,
}

/// Arguments of a server besides its data directory.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The program; this one when none is named.
    pub program: Option<PathBuf>,
    /// More arguments of `up`.
    pub args: Vec<String>,
    /// Variables; those of the person at the machine that would change the scene are taken out.
    pub env: Vec<(&'static str, String)>,
}

impl Daemon {
    /// Starts `up` of the program on `data` and waits until it is ready.
    ///
    /// # Errors
    ///
    /// When it does not become ready.
    pub fn start(data: &Path, setup: &Setup) -> Result<Self, Failure> {
        let program = match &setup.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().map_err(|err| {
                Failure::failed(format!("finding this program's own file: {err}"))
            })?,
        };
        let log = data.join("overmind.log");
        let opened = overmind_node::app::logs::open_file(&log)
            .map_err(|err| Failure::failed(format!("opening the log {}: {err}", log.display())))?;
        let mut command = Command::new(program);
        command.arg("up").arg("--data").arg(data).args(["-o", "json", "--log-format", "json"]);
        for name in overmind_node::config::env::NAMES {
            if name.starts_with("OVERMIND_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args(&setup.args)
            .envs(setup.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(opened)
            .spawn()
            .map_err(|err| Failure::failed(format!("starting the server: {err}")))?;
        let pipe = child.stdout.take().expect("the pipe was asked for");
        let server = read_ready(pipe);
        match server {
            Some(server) => Ok(Self { child, server }),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let last = said.lines().last().unwrap_or("it said nothing").to_owned();
                Err(Failure::failed(format!("the server did not start: {last}")))
            }
        }
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it as the kernel would: no warning, no cleaning up.
    ///
    /// # Errors
    ///
    /// When it cannot be killed or waited for.
    pub fn kill(mut self) -> std::io::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Leaves it running when this program ends.
    pub fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the pretty-printed JSON that `up -o json` answers with.
fn read_ready(pipe: impl std::io::Read + Send + 'static) -> Option<ServerFile> {
    first_line(pipe, PATIENCE).and_then(|line| serde_json::from_str(&line).ok())
}
