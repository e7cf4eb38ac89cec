//! The port to processes that outlive their supervisor: any command in a terminal or behind
//! pipes, its whole tree, its output on disk, and its true end, also after the daemon was killed.
//!
//! A *life* is one start of one session's command: [`ProcessKey`]. Everything that is said about a
//! process carries its key, so a late word about an old life never touches a new one. What was
//! written stands in one log per session that goes on over all its lives; the log belongs to the
//! disk and is read by offset, so nobody who reads slowly holds anybody up.
//!
//! When to start again is decided by [`restart`], whether a silent program waits for a person by
//! [`prompt`]; both are pure. What is run, and whether it may be, is the engine's business.

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

/// One life of a session's process. Ordered by session, then by life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessKey {
    pub session: SessionId,
    /// How often the session was started; the first life is 1.
    pub epoch: u32,
}

impl fmt::Display for ProcessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.session, self.epoch)
    }
}

/// Columns and rows of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}

impl Default for TerminalSize {
    /// What programs expect of a terminal that says nothing.
    fn default() -> Self {
        Self { columns: 80, rows: 24 }
    }
}

/// What the command's standard streams are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessIo {
    /// A terminal of its own, which all three streams are.
    Terminal(TerminalSize),
    /// Pipes: cheaper, and with no terminal's editing of lines in between.
    Pipes { stdin: StdinKind, stderr: StderrKind },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdinKind {
    /// A pipe, open until [`Processes::close_input`].
    Open,
    /// `/dev/null`.
    Null,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StderrKind {
    /// The same pipe as standard output: the order of both is kept.
    Merged,
    /// A pipe of its own, told apart in the log. The order of the two streams is then only that
    /// in which they were read.
    Tagged,
}

/// Bounds of a session's log. The oldest segments go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimits {
    /// All segments together, data and index; at least two segments are kept.
    pub total_bytes: u64,
    /// After this much the next segment begins, at a line's end.
    pub segment_bytes: u64,
    /// Segments whose last output is older are dropped.
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

/// What becomes of processes that the main process leaves behind when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// They are asked to end (TERM), and killed after the grace.
    End { grace: Duration },
    /// The life goes on until the last of them has ended. Its exit is still that of the main one.
    Keep,
}

impl Default for Leftovers {
    fn default() -> Self {
        Self::End { grace: Duration::from_secs(2) }
    }
}

/// Whether the tree gets a control group, by which it is found and counted whatever it does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GroupWish {
    Never,
    /// If this machine lets us, without bounds.
    IfPossible,
    /// With bounds; refused where they cannot be set.
    Bounded(GroupLimits),
}

/// Bounds of a tree. `None` is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupLimits {
    pub memory_bytes: Option<u64>,
    pub pids: Option<u32>,
    /// In processors: `0.5` is half of one.
    pub cpus: Option<f64>,
}

/// A user and a group by number, for a daemon that runs as root and does not want its commands
/// to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUser {
    pub uid: u32,
    pub gid: u32,
}

/// What to start.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessSpec {
    pub key: ProcessKey,
    /// Program and arguments. A program without `/` is looked for in the `PATH` of `env`. One
    /// argument may have 128 KiB, all of them and the environment together about 2 MiB: long
    /// texts go through standard input.
    pub argv: Vec<String>,
    /// Absolute, and there: a directory that is not is an error, not a crash.
    pub cwd: PathBuf,
    /// The whole environment. Nothing is inherited from the daemon; a variable that marks the
    /// tree as this life's ([`MARK`]) is added.
    pub env: Vec<(String, String)>,
    /// Values that are masked in the log before they are on the disk: see [`crate::masking`].
    pub secrets: Vec<String>,
    pub io: ProcessIo,
    pub log: LogLimits,
    /// Written into the log before anything else, such as `--- restart #2 at … ---`.
    pub opening: Option<(NoteKind, String)>,
    pub leftovers: Leftovers,
    pub group: GroupWish,
    /// `None`: the daemon's own user.
    pub user: Option<ProcessUser>,
    /// `argv` stands for a command that runs below it in a process namespace of its own: the first
    /// child of its first child. Wishes for the command are meant for that one.
    pub enclosed: bool,
    /// Everything is made ready, and the program begins at this time if it is not past: some
    /// milliseconds ahead, and not more.
    pub not_before: Option<Timestamp>,
}

impl ProcessSpec {
    /// A command in pipes with closed input, merged errors, an empty environment and defaults.
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

/// The variable that every process of a life has, unless it cleared its environment; its value is
/// the key. By it the tree of a keeper that was killed is found where there is no control group.
pub const MARK: &str = "OVERMIND_LIFE";

/// A life that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    pub key: ProcessKey,
    /// The main process.
    pub pid: u32,
    pub at: Timestamp,
    /// Where the output of this life begins in the session's log.
    pub offset: u64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    Code(i32),
    Signal(i32),
}

impl ExitStatus {
    /// As a shell shows it: a signal is 128 and its number.
    pub const fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }

    /// Whether the process says that all went well.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }
}

/// Who ended a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// The process itself, or somebody outside.
    Itself,
    Stop,
    Kill,
}

/// The true end of a life: nothing of the tree is left, but for `survivors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessExit {
    /// Of the main process.
    pub status: ExitStatus,
    pub by: EndedBy,
    pub started_at: Timestamp,
    /// When the main process ended.
    pub ended_at: Timestamp,
    /// Processor time of the whole tree.
    pub user: Duration,
    pub system: Duration,
    /// The largest that any one process of the tree was.
    pub max_resident_bytes: u64,
    /// Processes that the main one left behind.
    pub leftovers: u32,
    /// Processes that could not be ended: of another user, or stuck in the kernel.
    pub survivors: u32,
    /// Where this life's output ends in the session's log.
    pub offset: u64,
    /// Somebody removed a part of that log while it was written.
    pub log_removed: bool,
}

/// How a life ended, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Exited(ProcessExit),
    /// The keeper itself was killed. What it held has been ended; how the command would have
    /// ended nobody knows.
    Lost {
        reason: String,
        killed: u32,
    },
}

/// What was found of one life after a restart of the daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum Adopted {
    Live(Started),
    /// It ended while nobody looked, or its end was never acknowledged.
    Ended(ProcessKey, Ended),
    /// It lives, and this daemon cannot speak with its keeper. It is left as it is.
    Unreachable {
        key: ProcessKey,
        reason: String,
    },
}

/// What a marker in the log is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// Input that a person sent: shown as `[human] …`.
    Human,
    Restart,
    /// Ended by the supervisor, and why.
    Killed,
    /// How a life ended.
    Ended,
    /// Anything else that a reader should know.
    Note,
}

/// What a piece of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// Of the terminal, of standard output, or of both streams merged.
    Output,
    /// Of standard error, where it is told apart.
    Stderr,
    Note(NoteKind),
}

/// Bytes of one kind, as they were written: colours, half lines and all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPiece {
    /// Of its first byte, in the session's log. The log's first byte ever is 0.
    pub offset: u64,
    /// About when it was written; exact to 50 ms.
    pub at: Timestamp,
    pub epoch: u32,
    pub kind: LogKind,
    pub bytes: Vec<u8>,
}

/// One line, without its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Where to go on reading after this line.
    pub next: u64,
    /// Counted from 0 over the session's whole log; lines cut in two by another stream count as
    /// often as they were cut.
    pub number: u64,
    pub at: Timestamp,
    pub epoch: u32,
    pub kind: LogKind,
    pub text: Vec<u8>,
    /// No line end came: the last line of a life, a prompt, or a line longer than the reader takes.
    pub partial: bool,
}

/// Something in a log that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogItem {
    Line(LogLine),
    /// What stood here is gone by the log's limits, or was skipped because the reader is slow.
    Gap {
        from: u64,
        to: u64,
        lines: Option<u64>,
    },
}

/// From where a log is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFrom {
    Start,
    Offset(u64),
    Since(Timestamp),
    /// The last so many lines.
    Tail(u64),
    End,
}

/// What of a log is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogQuery {
    pub from: LogFrom,
    /// Wait for more at the end, until the session's life has ended.
    pub follow: bool,
    /// Only lines in which this regular expression is found, after stripping.
    pub grep: Option<String>,
    /// Without colours and other control sequences.
    pub strip: bool,
    /// Also what is not output: markers.
    pub notes: bool,
}

impl Default for LogQuery {
    fn default() -> Self {
        Self { from: LogFrom::Start, follow: false, grep: None, strip: false, notes: true }
    }
}

/// What is known of a life without asking anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// The end of the log, as last heard. While nobody reads, it is told once a second.
    pub offset: u64,
    /// When output last came; the start, if none has.
    pub last_output_at: Timestamp,
}

/// What a tree uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since the start, ended processes included.
    pub cpu: Duration,
    pub resident_bytes: u64,
    pub processes: u32,
}

/// How a process is to be ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// TERM to the whole tree, and KILL after the grace.
    Stop { grace: Duration },
    /// KILL to the whole tree, at once.
    Kill,
}

/// Why something could not be done to a process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcessError {
    #[error("session {} already has a live process, life {}: stop it first", live.session, live.epoch)]
    AlreadyLive { live: ProcessKey },
    /// The newest life that is known is a later one.
    #[error("life {epoch} of session {session} is over: the session is in life {newest}", session = asked.session, epoch = asked.epoch)]
    Stale { asked: ProcessKey, newest: u32 },
    #[error("process {0} is not alive")]
    NotAlive(ProcessKey),
    #[error("starting `{program}`: {step}: {reason}")]
    Refused { program: String, step: &'static str, reason: String },
    #[error("{what} of process {key}: {reason}")]
    Keeper { key: ProcessKey, what: &'static str, reason: String },
    #[error("the keeper of {key} speaks protocol {theirs}, this daemon {ours}: {remedy}")]
    Protocol { key: ProcessKey, theirs: u32, ours: u32, remedy: &'static str },
    #[error(
        "writing to {key}: {taken} of {given} bytes were taken in time: the program does not read"
    )]
    InputFull { key: ProcessKey, taken: usize, given: usize },
    #[error("writing to {key}: {reason}")]
    InputRefused { key: ProcessKey, reason: String },
    #[error("this viewer of {0} may only look")]
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

/// Reads a log. Nothing is held for it but its place.
pub trait LogReader: Send + fmt::Debug {
    /// The next items, in their order; empty at the end, which with `follow` is the end of the
    /// session's life. At most about 256 KiB at once.
    ///
    /// # Errors
    ///
    /// When the log cannot be read. A log that does not exist is empty.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    fn next(&mut self) -> Fut<'_, Result<Vec<LogItem>, ProcessError>>;
}

/// Reads a log as raw pieces: for providers' parsers and for copies.
pub trait PieceReader: Send + fmt::Debug {
    /// As [`LogReader::next`]. A gap is told as the piece after it: its offset is not where the
    /// last one ended.
    ///
    /// # Errors
    ///
    /// When the log cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    fn next(&mut self) -> Fut<'_, Result<Vec<LogPiece>, ProcessError>>;
}

/// How to watch a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    pub read_only: bool,
    /// The viewer's own size; used while it is the latest active one.
    pub size: Option<TerminalSize>,
    /// How much of what came before is shown first.
    pub replay_bytes: u64,
    /// Begin with [`Seen::Screen`] in place of what came before, and go on with one where something
    /// was left out. Refused where there is no terminal.
    pub paint: bool,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self { read_only: false, size: None, replay_bytes: 64 << 10, paint: false }
    }
}

/// What a viewer gets to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Output(Vec<u8>),
    /// The viewer was too slow: so many bytes were left out. It should clear its screen.
    Skipped(u64),
    /// What the process's terminal shows now; only for those that wanted it.
    Screen(Painted),
    Ended(Ended),
}

/// A terminal's contents, as what draws them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Painted {
    /// Clears a terminal, draws this one's contents on it, and leaves it in the same modes: the
    /// alternate screen, the cursor, bracketed paste, the mouse.
    pub bytes: Vec<u8>,
    /// Of the process's terminal: a viewer of another size sees it wrapped.
    pub size: TerminalSize,
    /// Bytes of output that were left out because the viewer was slow.
    pub skipped: u64,
}

/// One viewer of a process. Dropped, it has left.
pub trait Attachment: Send + fmt::Debug {
    /// The next output, up to 64 KiB; after [`Seen::Ended`] always that.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    fn next(&mut self) -> Fut<'_, Result<Seen, ProcessError>>;

    /// Types. Makes this viewer the active one.
    ///
    /// # Errors
    ///
    /// [`ProcessError::ReadOnly`], and as [`Processes::write`].
    fn write(&mut self, bytes: Vec<u8>, limit: Duration) -> Fut<'_, Result<(), ProcessError>>;

    /// Tells the viewer's size, and makes it the active one unless it may only look.
    fn resize(&mut self, size: TerminalSize) -> Fut<'_, Result<(), ProcessError>>;
}

/// Processes that outlive their supervisor.
pub trait Processes: Send + Sync + fmt::Debug {
    /// Starts a life. The program runs when this answers.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Refused`] with what did not work; nothing runs then.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the answer, the life is killed if it had begun.
    fn start(&self, spec: ProcessSpec) -> Fut<'_, Result<Started, ProcessError>>;

    /// Finds what earlier daemons left: to be called once, before anything is started.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read. A single life that cannot be is one of the answers.
    fn adopt_all(&self) -> Fut<'_, Result<Vec<Adopted>, ProcessError>>;

    /// Asks for the end and answers when the keeper knows; [`ended`](Self::ended) waits for it.
    /// The reason becomes a marker in the log. A kill after a stop is one; a stop after a kill is
    /// nothing.
    fn end(
        &self,
        key: ProcessKey,
        how: End,
        reason: Option<String>,
    ) -> Fut<'_, Result<(), ProcessError>>;

    /// Sends a signal to the terminal's foreground group, or to the main process's group.
    fn signal(&self, key: ProcessKey, signal: i32) -> Fut<'_, Result<(), ProcessError>>;

    /// Writes to the command's input, in order, and answers when it has all been taken.
    ///
    /// # Errors
    ///
    /// [`ProcessError::InputFull`] when that takes longer than `limit`: the rest is then not
    /// written. [`ProcessError::InputRefused`] when there is no input to write to.
    ///
    /// # Cancel safety
    ///
    /// Dropped, part of it may have been written.
    fn write(
        &self,
        key: ProcessKey,
        bytes: Vec<u8>,
        limit: Duration,
    ) -> Fut<'_, Result<(), ProcessError>>;

    /// Ends the command's input: closes the pipe, or types the terminal's end-of-file.
    fn close_input(&self, key: ProcessKey) -> Fut<'_, Result<(), ProcessError>>;

    fn resize(&self, key: ProcessKey, size: TerminalSize) -> Fut<'_, Result<(), ProcessError>>;

    /// Writes a marker into the session's log, as a line of its own. Also after its last life.
    fn note(
        &self,
        session: SessionId,
        kind: NoteKind,
        text: String,
    ) -> Fut<'_, Result<(), ProcessError>>;

    fn usage(&self, key: ProcessKey) -> Fut<'_, Result<Usage, ProcessError>>;

    /// What many trees use now, by one look at the machine: it costs about the same for one and for
    /// thousands. Those whose main process is gone are left out.
    fn usages(
        &self,
        keys: Vec<ProcessKey>,
    ) -> Fut<'_, Result<Vec<(ProcessKey, Usage)>, ProcessError>>;

    /// What is known without asking; `None` if the life is not.
    fn activity(&self, key: ProcessKey) -> Option<Activity>;

    /// Waits for the end of a life. Any number may wait, also after it has come, until
    /// [`acknowledge`](Self::acknowledge).
    ///
    /// # Errors
    ///
    /// [`ProcessError::NotAlive`] for a life that is not known (any more).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    fn ended(&self, key: ProcessKey) -> Fut<'_, Result<Ended, ProcessError>>;

    /// The end of this life has been recorded elsewhere, durably: its keeper and what it left,
    /// but for the log, goes. Without it the end is told again after the next restart.
    fn acknowledge(&self, key: ProcessKey) -> Fut<'_, Result<(), ProcessError>>;

    /// Reads the session's log by lines.
    fn log(
        &self,
        session: SessionId,
        query: LogQuery,
    ) -> Fut<'_, Result<Box<dyn LogReader>, ProcessError>>;

    /// Reads the session's log by pieces, from an offset; one before the log's beginning is its
    /// beginning.
    fn pieces(
        &self,
        session: SessionId,
        from: u64,
        follow: bool,
    ) -> Fut<'_, Result<Box<dyn PieceReader>, ProcessError>>;

    /// The last `rows` lines that a viewer would see, without control sequences: for
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

    /// Removes all that is left of a session without a live process, its log included.
    fn forget(&self, session: SessionId) -> Fut<'_, Result<(), ProcessError>>;
}
