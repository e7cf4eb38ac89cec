//! Stores the master keys in the keyring of the operating system: the Secret Service of Linux
//! desktops (GNOME Keyring, KWallet, KeePassXC), through libsecret's program `secret-tool`.
//!
//! A program is used instead of a library: D-Bus with session encryption would add a third of a
//! megabyte to every binary, for one query at the start. The key goes through pipes and is in no
//! argument. The kernel's keyring is not used, because it is empty after the next boot and secrets
//! must outlive that. The keyrings of macOS and Windows are not supported.

use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use crate::keyfile::Wrong;

/// The longest wait for the keyring, which may have to ask a person at a screen.
const PATIENCE: Duration = Duration::from_secs(30);
/// The interval of checks whether it has answered.
const LOOK: Duration = Duration::from_millis(5);
/// Longest answer that is read, in bytes.
const MAX_BYTES: u64 = 256 * 1024;

/// One entry of the keyring of the user that the server runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyring {
    /// The path or name of `secret-tool`.
    pub program: PathBuf,
    /// Distinguishes this vault's entry from others.
    pub entry: String,
}

/// The output of the program.
struct Said {
    status: ExitStatus,
    out: Zeroizing<Vec<u8>>,
    err: String,
}

impl Keyring {
    /// A keyring with the entry of this name.
    pub fn new(entry: impl Into<String>) -> Self {
        Self { program: PathBuf::from("secret-tool"), entry: entry.into() }
    }

    /// The arguments that identify the entry.
    fn attributes(&self) -> [&str; 4] {
        ["application", "overmind", "vault", &self.entry]
    }

    /// The entry's text; `None` if there is no entry.
    pub(crate) fn read(&self) -> Result<Option<Zeroizing<String>>, Wrong> {
        let said = self.ask(&["lookup"], None)?;
        if said.status.success() && !said.out.is_empty() {
            let text = std::str::from_utf8(&said.out).map_err(|_| "is damaged: it is not text")?;
            return Ok(Some(Zeroizing::new(text.trim_end().to_owned())));
        }
        let locked = "is locked: unlock the keyring of the user that the server runs as, then run \
                      `overmind vault unlock --key-file`";
        if said.err.contains("locked object") {
            return Err(locked.to_owned());
        }
        if !said.err.is_empty() {
            return Err(refused(&said.err));
        }
        // Some keyrings report nothing about an entry that they do not open.
        match self.ask(&["search", "--all"], None)?.out.starts_with(b"[") {
            true => Err(locked.to_owned()),
            false => Ok(None),
        }
    }

    /// Replaces the entry's text.
    pub(crate) fn write(&self, text: &str) -> Result<(), Wrong> {
        let label = format!("--label=Overmind vault {}", self.entry);
        let said = self.ask(&["store", &label], Some(text))?;
        if !said.status.success() {
            return Err(refused(&said.err));
        }
        match self.read()? {
            Some(kept) if *kept == text => Ok(()),
            Some(_) | None => Err("was written, and does not say the same when it is read".into()),
        }
    }

    fn ask(&self, words: &[&str], input: Option<&str>) -> Result<Said, Wrong> {
        let mut command = Command::new(&self.program);
        command.args(words).args(self.attributes());
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|err| match err.kind() {
            io::ErrorKind::NotFound => format!(
                "cannot be asked for: there is no program `{}`; Debian has it in libsecret-tools",
                self.program.display()
            ),
            _ => format!("cannot be asked for: {}: {err}", self.program.display()),
        })?;
        if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
            // If the program has failed, the error follows below.
            let _ = stdin.write_all(text.as_bytes());
        }
        let broken = |err: io::Error| format!("cannot be asked for: {err}");
        let status = ended(&mut child).map_err(broken)?.ok_or_else(|| {
            format!(
                "was not told within {} s: the keyring may wait for somebody to unlock it",
                PATIENCE.as_secs()
            )
        })?;
        let mut out = Zeroizing::new(Vec::with_capacity(4096));
        let mut err = String::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(MAX_BYTES).read_to_end(&mut out).map_err(broken)?;
        }
        if let Some(stderr) = child.stderr.take() {
            // Its error text is for people, so an invalid one is not fatal.
            let _ = stderr.take(MAX_BYTES).read_to_string(&mut err);
        }
        Ok(Said { status, out, err: err.trim().to_owned() })
    }
}

/// Waits for the exit status; `None` if it did not end in time and was killed. Its output fits into
/// a pipe.
fn ended(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

/// Explains an error of the program, and what to do.
fn refused(err: &str) -> Wrong {
    let line: String = err.lines().next().unwrap_or_default().chars().take(300).collect();
    format!(
        "cannot be had: {line}; a server that is no part of a session of a desktop needs its \
         DBUS_SESSION_BUS_ADDRESS, or `vault.key = \"file\"`"
    )
}
