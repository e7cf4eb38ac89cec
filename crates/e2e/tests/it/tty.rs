//! A person at a terminal: a pseudo-terminal with the program in it, and eyes on its screen.

#![allow(clippy::unwrap_used, reason = "clippy sees tests, not the functions that they share")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::{Termios, Winsize};

use crate::home::{Home, PATIENCE, until, until_within};

/// The screen that the person sees, and everything that was ever written.
struct Seen {
    screen: vt100::Parser,
    written: Vec<u8>,
}

pub(crate) struct Person {
    master: File,
    /// Kept open: the settings of a terminal are lost once nobody has it open.
    slave: OwnedFd,
    seen: Arc<Mutex<Seen>>,
    child: Child,
    before: Termios,
}

/// The settings of a terminal whose loss a person notices.
fn settings(of: &Termios) -> String {
    format!(
        "{:?} {:?} {:?} {:?}",
        of.input_modes, of.output_modes, of.control_modes, of.local_modes
    )
}

impl Person {
    /// Starts the program in a terminal of so many columns and rows.
    pub(crate) fn at(home: &Home, columns: u16, rows: u16, args: &[&str]) -> Self {
        Self::with(home.command(args), columns, rows)
    }

    /// Starts this, in its environment and directory.
    pub(crate) fn with(program: Command, columns: u16, rows: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(&name, flags, Mode::empty()).unwrap();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&master, size).unwrap();
        let before = rustix::termios::tcgetattr(&slave).unwrap();
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        // A separate session with this terminal, so that the kernel reports a new size to it.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program.get_program()).args(program.get_args()).env_clear();
        let vars = program.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.envs(vars).env("TERM", "xterm-256color");
        command.current_dir(program.get_current_dir().unwrap());
        let child = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
        let screen = vt100::Parser::new(rows, columns, 0);
        let seen = Arc::new(Mutex::new(Seen { screen, written: Vec::new() }));
        let (eyes, mut from) = (Arc::clone(&seen), File::from(master.try_clone().unwrap()));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                let mut seen = eyes.lock().unwrap();
                seen.screen.process(&buffer[..count]);
                seen.written.extend_from_slice(&buffer[..count]);
            }
        });
        Self { master: File::from(master), slave, seen, child, before }
    }

    /// Types keys.
    pub(crate) fn types(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Makes the window another size.
    pub(crate) fn resizes(&mut self, columns: u16, rows: u16) {
        self.seen.lock().unwrap().screen.screen_mut().set_size(rows, columns);
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(self.master.as_fd(), size).unwrap();
    }

    pub(crate) fn screen(&self) -> String {
        self.seen.lock().unwrap().screen.screen().contents()
    }

    /// Whether a program's own screen is shown.
    pub(crate) fn on_alternate(&self) -> bool {
        self.seen.lock().unwrap().screen.screen().alternate_screen()
    }

    pub(crate) fn written(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap().written).into_owned()
    }

    /// Whether the last that was written has this text.
    pub(crate) fn has_written(&self, text: &str) -> bool {
        let seen = self.seen.lock().unwrap();
        let last = &seen.written[seen.written.len().saturating_sub(64)..];
        String::from_utf8_lossy(last).contains(text)
    }

    /// Waits until the screen has this text.
    #[track_caller]
    pub(crate) fn sees(&self, text: &str) -> String {
        let place = std::panic::Location::caller();
        let start = std::time::Instant::now();
        loop {
            let screen = self.screen();
            if screen.contains(text) {
                return screen;
            }
            let patience = std::time::Duration::from_secs(30);
            assert!(start.elapsed() < patience, "{place}: no `{text}` on:\n{screen}");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits until the program has ended, sees that the terminal is as it was, and answers the exit
    /// code.
    #[track_caller]
    pub(crate) fn leaves(&mut self) -> i32 {
        let screen = Arc::clone(&self.seen);
        let what = move || {
            let seen = screen.lock().unwrap().screen.screen().contents();
            format!("the program ends; on the screen:\n{seen}")
        };
        let status = until_within(PATIENCE, what, || self.child.try_wait().unwrap());
        let after = rustix::termios::tcgetattr(&self.slave).unwrap();
        assert_eq!(settings(&self.before), settings(&after), "the terminal is not as it was");
        // Its last words may still be on their way here.
        until("the own screen and its cursor are there again", || {
            let hidden = self.seen.lock().unwrap().screen.screen().hide_cursor();
            (!self.on_alternate() && !hidden).then_some(())
        });
        status.code().unwrap_or(-1)
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
