//! The master keys in the keyring of the operating system: the Secret Service of Linux desktops
//! (GNOME Keyring, KWallet, KeePassXC), asked by libsecret's own program `secret-tool`.
//!
//! A program and no library: D-Bus with its encryption of a session would be a third of a megabyte
//! more in every binary, for one question at the start. The key goes through pipes and is in no
//! argument. Not the kernel's keyring: what is in there is gone after the next boot, and secrets
//! are to outlive it. macOS and Windows have keyrings of other kinds, which nothing here speaks to.

use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use crate::keyfile::Wrong;

/// Longest that the keyring may take: it asks a person perhaps, if there is one at a screen.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks whether it has answered.
const LOOK: Duration = Duration::from_millis(5);
/// Longest answer that is read, in bytes.
const MAX_BYTES: u64 = 256 * 1024;

/// One entry of the keyring of the user that the server runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyring {
    /// `secret-tool`, or where it is.
    pub program: PathBuf,
    /// Tells this vault's entry from those of others.
    pub entry: String,
}

/// What the program said.
struct Said {
    status: ExitStatus,
    out: Zeroizing<Vec<u8>>,
    err: String,
}

impl Keyring {
    /// The entry called so.
    pub fn new(entry: impl Into<String>) -> Self {
        Self { program: PathBuf::from("secret-tool"), entry: entry.into() }
    }

    /// What finds the entry, as arguments.
    fn attributes(&self) -> [&str; 4] {
        ["application", "overmind", "vault", &self.entry]
    }

    /// The entry's text; `None` when there is none.
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
        // Some keyrings say nothing at all of an entry that they do not open.
        match self.ask(&["search", "--all"], None)?.out.starts_with(b"[") {
            true => Err(locked.to_owned()),
            false => Ok(None),
        }
    }

    /// Puts this text in the place of the entry's.
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
            // A program that has failed already says why below.
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
            // What it says in a text of its own is for people; a broken one is no reason to stop.
            let _ = stderr.take(MAX_BYTES).read_to_string(&mut err);
        }
        Ok(Said { status, out, err: err.trim().to_owned() })
    }
}

/// How it ended; `None` when it did not, and was killed. Its answer fits into a pipe.
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

/// What the program says when it cannot, and what to do.
fn refused(err: &str) -> Wrong {
    let line: String = err.lines().next().unwrap_or_default().chars().take(300).collect();
    format!(
        "cannot be had: {line}; a server that is no part of a session of a desktop needs its \
         DBUS_SESSION_BUS_ADDRESS, or `vault.key = \"file\"`"
    )
}
