//! The port to processes that outlive the daemon that supervises them: any command in a terminal or
//! with pipes, all its descendants, its output on disk, and its real exit status, even if the
//! daemon was killed.
//!
//! An *attempt* (`life` in names) is one start of one session's command: [`ProcessKey`]. Every
//! message about a process contains its key, so a late message about an old attempt never affects a
//! new one. Each session has one log for all its attempts. The log is on disk and is read by
//! offset, so a slow reader delays nobody.
//!
//! [`restart`] decides when to start again, and [`prompt`] whether a silent program waits for a
//! person; both are pure. The engine decides what is run, and whether it may be.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Fut;
use crate::ids::SessionId;
use crate::time::Timestamp;

pub mod prompt;
pub mod provider;
pub mod restart;

/// One attempt of a session's process. Ordered by session, then by attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessKey {
    pub session: SessionId,
    /// Number of the attempt, from 1.
    pub epoch: u32,
}

impl fmt::Display for ProcessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.session, self.epoch)
    }
}

/// Size of a terminal in columns and rows of characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}

impl Default for TerminalSize {
    /// Returns the usual default size of a terminal.
    fn default() -> Self {
        Self { columns: 80, rows: 24 }
    }
}

/// The standard streams of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessIo {
    /// All three streams are a new terminal.
    Terminal(TerminalSize),
    /// The streams are pipes. They are cheaper, and no terminal edits lines.
    Pipes { stdin: StdinKind, stderr: StderrKind },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdinKind {
    /// A pipe that stays open until [`Processes::close_input`].
    Open,
    /// The file `/dev/null`.
    Null,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StderrKind {
    /// The same pipe as standard output, so that the order of both is kept.
    Merged,
    /// A pipe of its own, marked in the log. The order of the two streams is then only the order in
    /// which they were read.
    Tagged,
}

/// Limits of a session's log. The oldest segments are removed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimits {
    /// Maximum number of bytes of all segments together, data and index. At least two segments are
    /// kept.
    pub total_bytes: u64,
    /// Size after which the next segment begins, at a line end.
    pub segment_bytes: u64,
    /// Age of the last output after which a segment is removed.
    pub max_age: Duration,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            total_bytes: 256 << 20,
            segment_bytes: 8 << 20,
            max_age: Duration::from_secs(30 * 24 * 3600),
        }
    }
}

/// How processes are handled that still run when the main process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// They get TERM, and are killed after the grace period.
    End { grace: Duration },
    /// The attempt continues until the last of them has ended. Its exit status is that of the main
    /// process.
    Keep,
}

impl Default for Leftovers {
    fn default() -> Self {
        Self::End { grace: Duration::from_secs(2) }
    }
}

/// Whether the processes get a control group, by which all of them are found and measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GroupWish {
    Never,
    /// Without limits, and only if this machine permits it.
    IfPossible,
    /// With limits. The start fails if they cannot be set.
    Bounded(GroupLimits),
}

/// Limits of a process tree. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupLimits {
    pub memory_bytes: Option<u64>,
    pub pids: Option<u32>,
    /// Number of processors: `0.5` is half of one.
    pub cpus: Option<f64>,
}

/// A user and a group by number, for a daemon that runs as root and runs its commands as another
/// user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUser {
    pub uid: u32,
    pub gid: u32,
}

/// The command to start, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessSpec {
    pub key: ProcessKey,
    /// Program and arguments. A program without `/` is searched in the `PATH` of `env`. One
    /// argument may have 128 KiB, and all arguments and the environment together about 2 MiB, so
    /// pass long texts through standard input.
    pub argv: Vec<String>,
    /// The working directory: absolute and existing. Any other is an error.
    pub cwd: PathBuf,
    /// The whole environment. Nothing is inherited from the daemon. A variable is added that marks
    /// the processes of this attempt ([`MARK`]).
    pub env: Vec<(String, String)>,
    /// Values that are masked in the log before they are written to disk: see [`crate::masking`].
    pub secrets: Vec<String>,
    pub io: ProcessIo,
    pub log: LogLimits,
    /// A first line for the log, such as `--- restart #2 at … ---`.
    pub opening: Option<(NoteKind, String)>,
    pub leftovers: Leftovers,
    pub group: GroupWish,
    /// The user. `None`: the daemon's own user.
    pub user: Option<ProcessUser>,
    /// Whether `argv` is a sandbox launcher, which runs the command in a process namespace of its
    /// own: as the first child of its first child. Settings for the command then apply to that
    /// process.
    pub enclosed: bool,
    /// Time at which the program starts, at most some milliseconds in the future. Everything is
    /// prepared before that time. A past time is ignored.
    pub not_before: Option<Timestamp>,
}

impl ProcessSpec {
    /// Creates the spec of a command with pipes, closed input, merged errors, an empty environment
    /// and defaults.
    pub fn new(key: ProcessKey, argv: Vec<String>, cwd: PathBuf) -> Self {
        Self {
            key,
            argv,
            cwd,
            env: Vec::new(),
            secrets: Vec::new(),
            io: ProcessIo::Pipes { stdin: StdinKind::Null, stderr: StderrKind::Merged },
            log: LogLimits::default(),
            opening: None,
            leftovers: Leftovers::default(),
            group: GroupWish::IfPossible,
            user: None,
            enclosed: false,
            not_before: None,
        }
    }
}

/// The variable that every process of an attempt has, unless it cleared its environment; its value
/// is the key. Without a control group, it identifies the processes of a killed supervisor process.
pub const MARK: &str = "OVERMIND_LIFE";

/// An attempt that has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    pub key: ProcessKey,
    /// Id of the main process.
    pub pid: u32,
    pub at: Timestamp,
    /// Offset in the session's log at which the output of this attempt begins.
    pub offset: u64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    Code(i32),
    Signal(i32),
}

impl ExitStatus {
    /// Returns the code that a shell shows: for a signal, 128 plus its number.
    pub const fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }

    /// Returns whether the process reports success.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }
}

/// Who ended an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// The process itself, or a signal from outside.
    Itself,
    Stop,
    Kill,
}

/// The real end of an attempt: none of its processes is left, except `survivors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessExit {
    /// Status of the main process.
    pub status: ExitStatus,
    pub by: EndedBy,
    pub started_at: Timestamp,
    /// Time at which the main process ended.
    pub ended_at: Timestamp,
    /// Processor time of all processes together.
    pub user: Duration,
    pub system: Duration,
    /// Largest memory of any one process.
    pub max_resident_bytes: u64,
    /// Number of processes that the main process left running.
    pub leftovers: u32,
    /// Number of processes that could not be ended: they belong to another user, or hang in the
    /// kernel.
    pub survivors: u32,
    /// Offset in the session's log at which the output of this attempt ends.
    pub offset: u64,
    /// Whether somebody removed a part of that log while it was written.
    pub log_removed: bool,
}

/// The end of an attempt, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Exited(ProcessExit),
    /// The supervisor process itself was killed. Its processes were ended, and the exit status of
    /// the command is not known.
    Lost {
        reason: String,
        killed: u32,
    },
}

/// The state in which an attempt was found after a restart of the daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum Adopted {
    Live(Started),
    /// It ended while no daemon ran, or its end was never acknowledged.
    Ended(ProcessKey, Ended),
    /// It runs, but this daemon cannot communicate with its supervisor process. It is left
    /// unchanged.
    Unreachable {
        key: ProcessKey,
        reason: String,
    },
}

/// The subject of a marker in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// Input that a person sent, shown as `[human] …`.
    Human,
    Restart,
    /// The supervisor ended it, with the reason.
    Killed,
    /// The end of an attempt.
    Ended,
    /// Any other note for readers.
    Note,
}

/// The kind of a piece of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// Output of the terminal, of standard output, or of both streams merged.
    Output,
    /// Standard error, if it is separate.
    Stderr,
    Note(NoteKind),
}

/// Bytes of one kind as they were written, with colours and incomplete lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPiece {
    /// Offset of its first byte in the session's log. The first byte of a log has offset 0.
    pub offset: u64,
    /// Time at which it was written, exact to 50 ms.
    pub at: Timestamp,
    pub epoch: u32,
    pub kind: LogKind,
    pub bytes: Vec<u8>,
}

/// One line without its line end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Offset at which to continue reading after this line.
    pub next: u64,
    /// Number of the line in the session's whole log, from 0. A line that another stream interrupts
    /// counts once for each part.
    pub number: u64,
    pub at: Timestamp,
    pub epoch: u32,
    pub kind: LogKind,
    pub text: Vec<u8>,
    /// Whether it has no line end: the last line of an attempt, a prompt, or a line that exceeds
    /// the reader's limit.
    pub partial: bool,
}

/// An item that a log reader returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogItem {
    Line(LogLine),
    /// Output that is missing, because the log's limits removed it or the reader was too slow.
    Gap {
        from: u64,
        to: u64,
        lines: Option<u64>,
    },
}

/// The position from which a log is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFrom {
    Start,
    Offset(u64),
    Since(Timestamp),
    /// The last lines, this many.
    Tail(u64),
    End,
}

/// A query of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogQuery {
    pub from: LogFrom,
    /// Waits at the end for more, until the session's attempt has ended.
    pub follow: bool,
    /// Returns only lines that match this regular expression after stripping.
    pub grep: Option<String>,
    /// Removes colours and other control sequences.
    pub strip: bool,
    /// Also returns markers, which are not output.
    pub notes: bool,
}

impl Default for LogQuery {
    fn default() -> Self {
        Self { from: LogFrom::Start, follow: false, grep: None, strip: false, notes: true }
    }
}

/// The facts about an attempt that are known without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// The last known end of the log. Without a reader it is updated once a second.
    pub offset: u64,
    /// Time of the last output, or of the start if there was none.
    pub last_output_at: Timestamp,
}

/// The resources that a process tree uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since the start, including ended processes.
    pub cpu: Duration,
    pub resident_bytes: u64,
    pub processes: u32,
}

/// How to end a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// TERM to all processes, and KILL after the grace period.
    Stop { grace: Duration },
    /// KILL to all processes at once.
    Kill,
}

/// Why an operation on a process failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcessError {
    #[error("session {} already runs attempt {}: stop it first", live.session, live.epoch)]
    AlreadyLive { live: ProcessKey },
    /// A later attempt is known.
    #[error("attempt {epoch} of session {session} has ended; the current attempt is {newest}", session = asked.session, epoch = asked.epoch)]
    Stale { asked: ProcessKey, newest: u32 },
    #[error("process {0} is not alive")]
    NotAlive(ProcessKey),
    #[error("starting `{program}`: {step}: {reason}")]
    Refused { program: String, step: &'static str, reason: String },
    #[error("{what} of process {key}: {reason}")]
    Keeper { key: ProcessKey, what: &'static str, reason: String },
    #[error("the shim of {key} uses protocol {theirs}, this daemon {ours}: {remedy}")]
    Protocol { key: ProcessKey, theirs: u32, ours: u32, remedy: &'static str },
    #[error(
        "writing to {key}: {taken} of {given} bytes accepted in time: the program does not read"
    )]
    InputFull { key: ProcessKey, taken: usize, given: usize },
    #[error("writing to {key}: {reason}")]
    InputRefused { key: ProcessKey, reason: String },
    #[error("this viewer of {0} is read-only")]
    ReadOnly(ProcessKey),
    #[error("process {0} has no terminal")]
    NoTerminal(ProcessKey),
    #[error("the directory of processes at {}: {reason}", path.display())]
    Directory { path: PathBuf, reason: String },
    #[error("reading the log of {session}: {reason}")]
    Log { session: SessionId, reason: String },
    #[error("`{pattern}` is not a regular expression: {reason}")]
    Pattern { pattern: String, reason: String },
}

/// Reads a log by lines. A reader holds only its position.
pub trait LogReader: Send + fmt::Debug {
    /// Returns the next items in order, about 256 KiB at most. Returns no items at the end; with
    /// `follow`, that is the end of the session's attempt.
    ///
    /// # Errors
    ///
    /// If the log cannot be read. A log that does not exist counts as empty.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    fn next(&mut self) -> Fut<'_, Result<Vec<LogItem>, ProcessError>>;
}

/// Reads a log as raw pieces, for providers' parsers and for copies.
pub trait PieceReader: Send + fmt::Debug {
    /// Returns the next pieces, as [`LogReader::next`]. After a gap, the offset of the next piece
    /// is not the end of the previous one.
    ///
    /// # Errors
    ///
    /// If the log cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    fn next(&mut self) -> Fut<'_, Result<Vec<LogPiece>, ProcessError>>;
}

/// Options for watching a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    pub read_only: bool,
    /// The viewer's own size. It is used while this viewer was the last active one.
    pub size: Option<TerminalSize>,
    /// Bytes of earlier output that are shown first.
    pub replay_bytes: u64,
    /// Starts with [`Seen::Screen`] in place of earlier output, and sends another one after skipped
    /// output. An error if there is no terminal.
    pub paint: bool,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self { read_only: false, size: None, replay_bytes: 64 << 10, paint: false }
    }
}

/// An item for a viewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Output(Vec<u8>),
    /// The viewer was too slow, and this many bytes were skipped. It should clear its screen.
    Skipped(u64),
    /// The present screen of the process's terminal, only if the viewer requested `paint`.
    Screen(Painted),
    Ended(Ended),
}

/// The contents of a terminal, as bytes that draw them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Painted {
    /// Clears the viewer's terminal, draws the contents, and sets the same modes: alternate screen,
    /// cursor, bracketed paste, mouse.
    pub bytes: Vec<u8>,
    /// Size of the process's terminal. A viewer of another size sees wrapped lines.
    pub size: TerminalSize,
    /// Bytes of output that were skipped because the viewer was slow.
    pub skipped: u64,
}

/// One viewer of a process. Dropping it ends the viewing.
pub trait Attachment: Send + fmt::Debug {
    /// Returns the next output, up to 64 KiB. After [`Seen::Ended`], it always returns that.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    fn next(&mut self) -> Fut<'_, Result<Seen, ProcessError>>;

    /// Sends typed input, and makes this viewer the active one.
    ///
    /// # Errors
    ///
    /// [`ProcessError::ReadOnly`], and the errors of [`Processes::write`].
    fn write(&mut self, bytes: Vec<u8>, limit: Duration) -> Fut<'_, Result<(), ProcessError>>;

    /// Sets the viewer's size, and makes it the active viewer unless it is read-only.
    fn resize(&mut self, size: TerminalSize) -> Fut<'_, Result<(), ProcessError>>;
}

/// Processes that outlive their supervisor.
pub trait Processes: Send + Sync + fmt::Debug {
    /// Starts an attempt. The program runs when this returns.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Refused`] with the reason; then nothing runs.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, an attempt that has started is killed.
    fn start(&self, spec: ProcessSpec) -> Fut<'_, Result<Started, ProcessError>>;

    /// Finds the attempts of earlier daemons. Call it once, before anything is started.
    ///
    /// # Errors
    ///
    /// If the directory cannot be read. An unreadable attempt is part of the result instead.
    fn adopt_all(&self) -> Fut<'_, Result<Vec<Adopted>, ProcessError>>;

    /// Requests the end, and returns when the supervisor process has received the request.
    /// [`ended`](Self::ended) waits for the end. The reason becomes a marker in the log. A kill
    /// overrides an earlier stop; a stop after a kill has no effect.
    fn end(
        &self,
        key: ProcessKey,
        how: End,
        reason: Option<String>,
    ) -> Fut<'_, Result<(), ProcessError>>;

    /// Sends a signal to the terminal's foreground group, or to the main process's group.
    fn signal(&self, key: ProcessKey, signal: i32) -> Fut<'_, Result<(), ProcessError>>;

    /// Writes to the command's input in order, and returns when all of it was accepted.
    ///
    /// # Errors
    ///
    /// [`ProcessError::InputFull`] if it takes longer than `limit`; the rest is not written.
    /// [`ProcessError::InputRefused`] if the command has no open input.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a part may have been written.
    fn write(
        &self,
        key: ProcessKey,
        bytes: Vec<u8>,
        limit: Duration,
    ) -> Fut<'_, Result<(), ProcessError>>;

    /// Closes the command's input: closes the pipe, or types the terminal's end-of-file.
    fn close_input(&self, key: ProcessKey) -> Fut<'_, Result<(), ProcessError>>;

    fn resize(&self, key: ProcessKey, size: TerminalSize) -> Fut<'_, Result<(), ProcessError>>;

    /// Writes a marker into the session's log as a separate line, even after the last attempt.
    fn note(
        &self,
        session: SessionId,
        kind: NoteKind,
        text: String,
    ) -> Fut<'_, Result<(), ProcessError>>;

    fn usage(&self, key: ProcessKey) -> Fut<'_, Result<Usage, ProcessError>>;

    /// Returns the present resource usage of many attempts from one scan of the machine, which
    /// costs about the same for one and for thousands. Attempts without a main process are left
    /// out.
    fn usages(
        &self,
        keys: Vec<ProcessKey>,
    ) -> Fut<'_, Result<Vec<(ProcessKey, Usage)>, ProcessError>>;

    /// Returns the facts that are known without a request; `None` for an unknown attempt.
    fn activity(&self, key: ProcessKey) -> Option<Activity>;

    /// Waits for the end of an attempt. Any number of callers may wait, also after the end, until
    /// [`acknowledge`](Self::acknowledge).
    ///
    /// # Errors
    ///
    /// [`ProcessError::NotAlive`] for an attempt that is not known.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    fn ended(&self, key: ProcessKey) -> Fut<'_, Result<Ended, ProcessError>>;

    /// Confirms that the end of this attempt was recorded durably elsewhere. Its supervisor process
    /// and its files, except the log, are removed. Without it, the end is reported again after the
    /// next restart.
    fn acknowledge(&self, key: ProcessKey) -> Fut<'_, Result<(), ProcessError>>;

    /// Reads the session's log by lines.
    fn log(
        &self,
        session: SessionId,
        query: LogQuery,
    ) -> Fut<'_, Result<Box<dyn LogReader>, ProcessError>>;

    /// Reads the session's log by pieces from an offset. An offset before the oldest stored byte
    /// means that byte.
    fn pieces(
        &self,
        session: SessionId,
        from: u64,
        follow: bool,
    ) -> Fut<'_, Result<Box<dyn PieceReader>, ProcessError>>;

    /// Returns the last `rows` lines that a viewer would see, without control sequences. For
    /// [`prompt::judge`] and for summaries.
    fn screen(
        &self,
        session: SessionId,
        rows: u16,
    ) -> Fut<'_, Result<prompt::Screen, ProcessError>>;

    fn attach(
        &self,
        key: ProcessKey,
        options: AttachOptions,
    ) -> Fut<'_, Result<Box<dyn Attachment>, ProcessError>>;

    /// Removes all files of a session without a running process, including its log.
    fn forget(&self, session: SessionId) -> Fut<'_, Result<(), ProcessError>>;
}
