//! The person's own terminal while it shows another one: every key is passed on, and the terminal
//! is restored at the end in every case.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;

use overmind_api::TerminalSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use super::modes::Modes;

/// Pieces of typed text that wait; a person who types more waits too.
const TYPED: usize = 64;

/// The terminal as every key is handed on. Dropped, also by a panic, it is as it was before.
#[derive(Debug)]
pub struct Raw {
    before: Termios,
    /// The modes that the program changed; restored at the end.
    modes: Modes,
}

impl Raw {
    /// # Errors
    ///
    /// When standard input is no terminal.
    pub fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin().as_fd())?;
        let raw = Self { before, modes: Modes::default() };
        raw.again()?;
        Ok(raw)
    }

    /// Scrolls the current screen away, so that it is not overwritten.
    ///
    /// # Errors
    ///
    /// When the terminal is gone.
    pub fn scroll_away(&self) -> io::Result<()> {
        let rows = size().map_or(0, |size| size.rows);
        write("\r\n".repeat(usize::from(rows)).as_bytes())
    }

    /// Reads every key again, after another program changed the terminal.
    ///
    /// # Errors
    ///
    /// When standard input is gone.
    pub fn again(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        Ok(tcsetattr(io::stdin().as_fd(), OptionalActions::Now, &raw)?)
    }

    /// Writes what a program wrote.
    ///
    /// # Errors
    ///
    /// When the terminal is gone.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.modes.written(bytes);
        write(bytes)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let mut bytes = self.modes.undo();
        // A separate line for the next output, without output of the program below it.
        bytes.extend(b"\r\n\x1b[J");
        // A terminal that no longer exists needs nothing.
        let _ = write(&bytes);
        let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, &self.before);
    }
}

/// Writes to standard output at once.
///
/// # Errors
///
/// The result of a write.
pub fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// The size of the terminal, if there is one that knows it.
pub fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(io::stdout().as_fd()).ok()?;
    let size = TerminalSize { columns: size.ws_col, rows: size.ws_row };
    size.is_sound().then_some(size)
}

/// The typed input, as it comes; the channel ends with standard input.
///
/// A thread of its own, which ends with the program: a read of a terminal cannot be called off, and
/// the runtime would wait for one of its own.
///
/// # Errors
///
/// When there are no more threads.
pub fn typed() -> io::Result<mpsc::Receiver<Vec<u8>>> {
    let (tell, told) = mpsc::channel(TYPED);
    std::thread::Builder::new().name("typed".to_owned()).spawn(move || {
        let mut buffer = [0; 4096];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    if tell.blocking_send(buffer[..count].to_vec()).is_err() {
                        return;
                    }
                }
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    })?;
    Ok(told)
}
