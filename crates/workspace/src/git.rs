//! Runs git with a clean environment, a time limit, and bounded output.
//!
//! Every call names its repository (`Call::repo`), so git searches for none and follows no `.git`
//! that a session created. Everything that a configuration could make git *run* is switched off in
//! every call: hooks, the file system monitor, `ssh`, credential helpers, pagers, editors, signing,
//! every transport, and fetching of missing objects. Filters and diff drivers are switched off by a
//! configuration of our own that names none (see `tree::gitdir`) or, in a user's own checkout, by
//! overriding each one that the repository names (see `tree::filters`).
//!
//! There is no shell and no thread: input is a file in memory, and output is read while git runs. A
//! child of git that keeps a descriptor open causes no delay, and a call with too much output is
//! ended.
//!
//! Git resolves a path and opens it later. A process that works in the tree could create a link in
//! between, to a file that only we may read. So if a process may be active there, git is started in
//! a view of the file system in which no link of that tree is followed (`Call::plain`).
//!
//! A git process survives the kill of its daemon. By its mark the next daemon ends it before it
//! changes anything (`Git::end_left`), or waits for it if it changes a user's repository
//! (`Call::finishes`).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::services::tree::{signal, stat, telling, variable};
use crate::sys;
use crate::tree::Source;

/// Bytes of git's error output that are kept.
const SAID: u64 = 64 << 10;
/// The default limit of an answer in bytes.
const ANSWER: u64 = 64 << 20;

/// The variable that marks each git process of one directory of worktrees.
const MARK: &str = "OVERMIND_TREES";
/// Follows the mark of a process that may finish.
const FINISHES: &str = "/finishes";
/// How long a process that may finish is waited for.
const FINISH: Duration = Duration::from_secs(30);
/// How long a process may take to remove its locks, and then to end.
const TIDY: Duration = Duration::from_secs(2);
const KILL: Duration = Duration::from_secs(10);

/// The identity in every commit and reflog entry that Overmind makes.
pub const NAME: &str = "Overmind";
/// See [`NAME`].
pub const EMAIL: &str = "overmind@localhost";

/// The settings that are switched off in every call, whatever a configuration contains.
const OFF: &[(&str, &str)] = &[
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.untrackedCache", "false"),
    ("core.sshCommand", "false"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("core.askPass", "false"),
    ("core.alternateRefsCommand", "true"),
    ("credential.helper", ""),
    ("protocol.allow", "never"),
    ("commit.gpgSign", "false"),
    ("tag.gpgSign", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("submodule.recurse", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("diff.external", ""),
    ("index.sparse", "false"),
    ("core.splitIndex", "false"),
    ("advice.detachedHead", "false"),
];

/// The same for the user's own filter of large files: it uses files on this machine, and merged
/// work cannot choose a server by its own `.lfsconfig`.
const OFF_FOR_USERS: &[(&str, &str)] = &[
    ("lfs.url", "none://nowhere"),
    ("lfs.pushurl", "none://nowhere"),
    ("lfs.locksverify", "false"),
    ("lfs.transfer.maxretries", "1"),
    ("http.proxy", "none://nowhere"),
];

/// Why a call of git failed.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error("starting {} to {what}: is git installed?", program.display())]
    Start {
        program: PathBuf,
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("communicating with git, to {what}")]
    Talk {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("git did not {what} within {} s and was ended", after.as_secs())]
    TimedOut { what: String, after: Duration },
    #[error("the output of git exceeded {limit} bytes; git was asked to {what}")]
    TooMuch { what: String, limit: u64 },
    #[error(
        "{} exists, so git could not {what}: another git process runs there, or was killed; \
         remove the file if none runs",
        lock.display()
    )]
    Locked { what: String, lock: PathBuf },
    #[error("git could not {what}: {said}")]
    Failed { what: String, said: String },
}

/// The git program, with its time limit.
#[derive(Clone, Debug)]
pub struct Git {
    program: PathBuf,
    search: OsString,
    timeout: Duration,
    mark: Option<String>,
}

impl Default for Git {
    fn default() -> Self {
        Self {
            program: "git".into(),
            search: "/usr/local/bin:/usr/bin:/bin".into(),
            timeout: Duration::from_mins(2),
            mark: None,
        }
    }
}

impl Git {
    /// Git as `program`, searched in `search` if it is a bare name; each call may take `timeout`.
    pub fn new(program: PathBuf, search: OsString, timeout: Duration) -> Self {
        Self { program, search, timeout, mark: None }
    }

    /// Marks every git process that is started from now on.
    pub(crate) fn marked(self, mark: &str) -> Self {
        Self { mark: Some(mark.to_owned()), ..self }
    }

    /// Ends git processes that an earlier daemon with this mark has left. One that changes a user's
    /// repository is waited for first. Returns whether none is left.
    ///
    /// The caller holds a lock that the earlier daemon held, so none of its children can still
    /// become git: until then each of them also holds that lock.
    pub(crate) fn end_left(&self) -> bool {
        let Some(mark) = &self.mark else { return true };
        let finishes = format!("{mark}{FINISHES}");
        let gone = |mark: &str, with: Option<Signal>, limit: Duration| {
            let until = Instant::now() + limit;
            loop {
                let me = std::process::id();
                let is = |pid: &u32| {
                    // Helpers of a user's git may stay permanently (`fsmonitor--daemon`), in their
                    // own session.
                    let pid = *pid;
                    pid != me
                        && variable(pid, MARK).as_deref() == Some(mark)
                        && stat(pid).is_some_and(|stat| !stat.zombie && stat.session != pid)
                };
                let look = || telling().filter(is).collect::<Vec<u32>>();
                // The second scan finds a process that was created during the first.
                let left = [look(), look()].concat();
                if left.is_empty() {
                    return true;
                }
                if Instant::now() >= until {
                    return false;
                }
                if let Some(with) = with {
                    left.into_iter().for_each(|pid| signal(pid, with));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let ended = |mark: &str| {
            gone(mark, Some(Signal::TERM), TIDY) || gone(mark, Some(Signal::KILL), KILL)
        };
        ended(mark) && (gone(&finishes, None, FINISH) || ended(&finishes))
    }

    /// The first program of this name in the search path.
    pub(crate) fn program_beside(&self, name: &str) -> Option<PathBuf> {
        std::env::split_paths(&self.search)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(name))
            .find(|path| path.is_file())
    }

    /// Begins a call. `what` completes "git could not …".
    pub(crate) fn call(&self, what: impl Into<String>) -> Call<'_> {
        Call {
            git: self,
            what: what.into(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: PathBuf::from("/"),
            input: Input::Nothing,
            output: None,
            limit: ANSWER,
            cut: false,
            accept: &[0],
            owner: None,
            home: None,
            users: false,
            finishes: false,
            within: None,
            plain: Vec::new(),
            settings: Vec::new(),
        }
    }

    /// Whether this machine lets a program make its own mounts. If not, there is no namespace
    /// sandbox either: commands have all rights of this process, or are in containers.
    fn has_views(&self, top: &Path) -> bool {
        static HAS: OnceLock<bool> = OnceLock::new();
        *HAS.get_or_init(|| {
            let mut command = Command::new(&self.program);
            command.env_clear().env("PATH", &self.search).arg("version");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let tops = [top.to_owned()];
            let tried = sys::follow_no_links(&mut command, &tops, Path::new("/"), None);
            let Err(err) = tried.and_then(|()| command.status()) else { return true };
            // Other errors at the start are reported by the actual call.
            let refused = [Errno::PERM, Errno::ACCESS, Errno::NOSYS, Errno::INVAL];
            if !Errno::from_io_error(&err).is_some_and(|errno| refused.contains(&errno)) {
                return true;
            }
            tracing::warn!(
                %err,
                "this machine lets no program have mounts of its own: a command that works in a tree could \
                 lead git out of it"
            );
            false
        })
    }
}

/// One call of git that is being built.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    git: &'a Git,
    what: String,
    args: Vec<OsString>,
    env: Vec<(&'static str, OsString)>,
    cwd: PathBuf,
    input: Input,
    output: Option<File>,
    limit: u64,
    cut: bool,
    accept: &'a [i32],
    owner: Option<(u32, u32)>,
    home: Option<PathBuf>,
    users: bool,
    finishes: bool,
    within: Option<Duration>,
    /// Directories in which no link is followed.
    plain: Vec<PathBuf>,
    /// Settings in addition to those that are switched off.
    settings: Vec<(String, String)>,
}

#[derive(Debug)]
enum Input {
    Nothing,
    Bytes(Vec<u8>),
    File(File),
}

/// The answer of git.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    /// Whether there was more output than the call asked for.
    pub(crate) cut: bool,
}

impl Answer {
    /// The answer as one line.
    pub(crate) fn line(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end_matches('\n').to_owned()
    }

    /// The answer's parts, separated by zero bytes.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.stdout.split(|byte| *byte == 0).filter(|part| !part.is_empty())
    }
}

impl<'a> Call<'a> {
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets the git directory. Without it git gets a directory that does not exist.
    pub(crate) fn repo(mut self, git_dir: &Path) -> Self {
        self.env.push(("GIT_DIR", git_dir.into()));
        self
    }

    /// Sets the working tree, and its index.
    pub(crate) fn work(mut self, tree: &Path, index: &Path) -> Self {
        self.env.push(("GIT_WORK_TREE", tree.into()));
        self.env.push(("GIT_INDEX_FILE", index.into()));
        self.cwd = tree.to_owned();
        self
    }

    pub(crate) fn env(mut self, key: &'static str, value: impl Into<OsString>) -> Self {
        self.env.push((key, value.into()));
        self
    }

    pub(crate) fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Input::Bytes(bytes.into());
        self
    }

    /// Uses a file as standard input, for a pack that need not fit in memory.
    pub(crate) fn input_file(mut self, file: File) -> Self {
        self.input = Input::File(file);
        self
    }

    /// Writes standard output to a file instead of returning it.
    pub(crate) fn output_file(mut self, file: File) -> Self {
        self.output = Some(file);
        self
    }

    /// Limits the answer's bytes; more is an error.
    pub(crate) fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// Limits the answer's bytes; the rest is dropped, and [`Answer::cut`] is set.
    pub(crate) fn cut_at(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self.cut = true;
        self
    }

    /// Sets exit codes that are no failure.
    pub(crate) fn accept(mut self, codes: &'a [i32]) -> Self {
        self.accept = codes;
        self
    }

    /// Runs as this user and group, which then own the written files.
    pub(crate) fn owner(mut self, owner: Option<(u32, u32)>) -> Self {
        self.owner = owner;
        self
    }

    /// Sets the call's time limit instead of git's own.
    pub(crate) fn within(mut self, longest: Duration) -> Self {
        self.within = Some(longest);
        self
    }

    /// Lets the call finish if the daemon dies: it changes a user's repository, and a partial
    /// change would be worse than a complete one.
    pub(crate) fn finishes(mut self) -> Self {
        self.finishes = true;
        self
    }

    /// Follows no link within this directory, whichever process changes it meanwhile.
    pub(crate) fn plain(self, top: &Path) -> Self {
        self.plain_in(&[top])
    }

    /// The same for several directories.
    pub(crate) fn plain_in(mut self, tops: &[&Path]) -> Self {
        self.plain.extend(tops.iter().map(|top| (*top).to_owned()));
        self
    }

    /// Uses a project's repository: the shared parts of its working trees are taken from where they
    /// were found, and not from where a file in it points now.
    pub(crate) fn source(self, source: &Source) -> Self {
        self.repo(&source.git_dir).env("GIT_COMMON_DIR", &source.common).plain_in(&source.places())
    }

    /// The same, without the parts of a single working tree.
    pub(crate) fn shared(self, source: &Source) -> Self {
        self.repo(&source.common).env("GIT_COMMON_DIR", &source.common).plain_in(&source.places())
    }

    /// Adds settings that override any configuration.
    pub(crate) fn settings(mut self, settings: Vec<(String, String)>) -> Self {
        self.settings = settings;
        self
    }

    /// Works in the user's own checkout as the user's git would: with the configuration in this
    /// home and the system's, their filters, and their index in its present form.
    pub(crate) fn for_user(mut self, home: Option<&Path>) -> Self {
        self.home = home.map(Path::to_owned);
        self.users = true;
        // A missing large file stays a pointer.
        self.env("GIT_LFS_SKIP_SMUDGE", "0").env("GIT_LFS_SKIP_DOWNLOAD_ERRORS", "1")
    }
}

impl Call<'_> {
    /// Runs git to its end.
    ///
    /// # Errors
    ///
    /// [`GitError`]: git was not started, was too slow, had too much output, met a lock of another
    /// git, or refused.
    pub(crate) fn run(mut self) -> Result<Answer, GitError> {
        let what = std::mem::take(&mut self.what);
        let talk = |source: io::Error| GitError::Talk { what: what.clone(), source };
        let input = match std::mem::replace(&mut self.input, Input::Nothing) {
            Input::Nothing => Stdio::null(),
            Input::File(file) => file.into(),
            Input::Bytes(bytes) => filled(&bytes).map_err(talk)?.into(),
        };
        let mut command = self.command();
        match self.plain.first().filter(|top| self.git.has_views(top)) {
            Some(_) => {
                self.plain.sort();
                self.plain.dedup();
                sys::follow_no_links(&mut command, &self.plain, &self.cwd, self.owner)
                    .map_err(talk)?;
            }
            None => {
                if let Some((user, group)) = self.owner {
                    command.uid(user).gid(group);
                }
            }
        }
        command.stdin(input).stderr(Stdio::piped());
        match self.output.take() {
            Some(file) => command.stdout(file),
            None => command.stdout(Stdio::piped()),
        };
        let mut child = command.spawn().map_err(|source| GitError::Start {
            program: self.git.program.clone(),
            what: what.clone(),
            source,
        })?;
        drop(command);
        let timeout = self.within.unwrap_or(self.git.timeout);
        let mut out = Heard { from: child.stdout.take().map(OwnedFd::from), ..Heard::default() };
        let mut said = Heard { from: child.stderr.take().map(OwnedFd::from), ..Heard::default() };
        let ended = listen(&child, (&mut out, self.limit), &mut said, Instant::now() + timeout);
        if !matches!(ended, Ok(End::Exited)) {
            // The group is git's own, and git was not reaped, so the number cannot be another's.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        }
        let status = child.wait().map_err(talk)?;
        let cut = match ended.map_err(talk)? {
            End::Exited => false,
            End::TooMuch if self.cut => true,
            End::TooMuch => return Err(GitError::TooMuch { what, limit: self.limit }),
            End::Late => return Err(GitError::TimedOut { what, after: timeout }),
        };
        let code = status.code().unwrap_or(-1);
        if !cut && !self.accept.contains(&code) {
            return Err(refused(what, &String::from_utf8_lossy(&said.bytes)));
        }
        Ok(Answer { code, stdout: out.bytes, cut })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.git.program);
        command.env_clear().current_dir(&self.cwd).process_group(0);
        command
            .env("PATH", &self.git.search)
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ALLOW_PROTOCOL", "none")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("GIT_LITERAL_PATHSPECS", "1")
            .env("GIT_LFS_SKIP_SMUDGE", "1")
            .env("GIT_PAGER", "cat")
            .env("GIT_EDITOR", "false")
            .env("GIT_DIR", "/nonexistent")
            .env("GIT_AUTHOR_NAME", NAME)
            .env("GIT_AUTHOR_EMAIL", EMAIL)
            .env("GIT_COMMITTER_NAME", NAME)
            .env("GIT_COMMITTER_EMAIL", EMAIL);
        if self.users {
            command.env_remove("GIT_CONFIG_NOSYSTEM");
        }
        match &self.home {
            Some(home) => command.env("HOME", home),
            None => command.env("HOME", "/nonexistent").env("GIT_CONFIG_GLOBAL", "/dev/null"),
        };
        // Settings from the environment come last, so they override all configuration.
        let form = ["core.untrackedCache", "core.splitIndex", "index.sparse"];
        let off = OFF.iter().filter(|(key, _)| !(self.users && form.contains(key))).copied();
        let more = self.settings.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let users = if self.users { OFF_FOR_USERS } else { &[] };
        let off = off.chain(users.iter().copied()).chain(more);
        let mut count = 0;
        for (index, (key, value)) in off.enumerate() {
            command.env(format!("GIT_CONFIG_KEY_{index}"), key);
            command.env(format!("GIT_CONFIG_VALUE_{index}"), value);
            count = index + 1;
        }
        command.env("GIT_CONFIG_COUNT", count.to_string());
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        if let Some(mark) = &self.git.mark {
            let finishes = if self.finishes { FINISHES } else { "" };
            command.env(MARK, format!("{mark}{finishes}"));
        }
        command.args(&self.args);
        command
    }
}

/// The data from a pipe.
#[derive(Default)]
struct Heard {
    from: Option<OwnedFd>,
    bytes: Vec<u8>,
}

enum End {
    Exited,
    TooMuch,
    Late,
}

impl Heard {
    /// Reads the available data; returns `false` if it exceeds the limit.
    fn read(&mut self, limit: u64, drop_rest: bool) -> io::Result<bool> {
        let Some(from) = &self.from else { return Ok(true) };
        let mut buffer = [0; 64 << 10];
        loop {
            match rustix::io::read(from, &mut buffer) {
                Ok(0) => {
                    self.from = None;
                    return Ok(true);
                }
                Ok(count) => {
                    let left = usize::try_from(limit).unwrap_or(usize::MAX) - self.bytes.len();
                    self.bytes.extend_from_slice(&buffer[..count.min(left)]);
                    if count > left && !drop_rest {
                        return Ok(false);
                    }
                }
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Reads git's output until it has ended, is too slow, or writes too much.
fn listen(
    child: &Child,
    (out, limit): (&mut Heard, u64),
    said: &mut Heard,
    deadline: Instant,
) -> io::Result<End> {
    let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    for pipe in [&out.from, &said.from].into_iter().flatten() {
        ioctl_fionbio(pipe, true)?;
    }
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut ended = false;
        {
            let pipes = [&out.from, &said.from].into_iter().flatten();
            let mut fds: Vec<PollFd<'_>> =
                pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)).collect();
            fds.push(PollFd::new(&handle, PollFlags::IN));
            match poll(&mut fds, Some(&left)) {
                Ok(0) => return Ok(End::Late),
                Ok(_) => ended |= fds.last().is_some_and(|fd| !fd.revents().is_empty()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        // This is also done after its end, because the last output is still in the pipes.
        if !out.read(limit, false)? {
            return Ok(End::TooMuch);
        }
        said.read(SAID, true)?;
        if ended {
            return Ok(End::Exited);
        }
    }
}

fn filled(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"git", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

fn refused(what: String, stderr: &str) -> GitError {
    let lock = stderr.lines().find_map(|line| {
        let (_, rest) = line.split_once("Unable to create '")?;
        let (path, why) = rest.split_once(".lock'")?;
        why.contains("exists").then(|| PathBuf::from(format!("{path}.lock")))
    });
    if let Some(lock) = lock {
        return GitError::Locked { what, lock };
    }
    let lines: Vec<&str> =
        stderr.lines().map(str::trim).filter(|line| !line.is_empty()).take(8).collect();
    let said = if lines.is_empty() { "it gave no reason".to_owned() } else { lines.join("; ") };
    GitError::Failed { what, said }
}

/// A path that git printed.
pub(crate) fn path_of(bytes: &[u8]) -> PathBuf {
    OsStr::from_bytes(bytes).into()
}

/// Whether the text is an object id, SHA-1 or SHA-256.
pub(crate) fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64)
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_output_above_the_limit_is_refused_or_truncated_as_requested() {
        let git = Git::default();
        let all = git.call("say its version").arg("version").run().unwrap();
        assert!(all.line().starts_with("git version"));
        let err = git.call("say its version").arg("version").limit(4).run().unwrap_err();
        assert!(matches!(err, GitError::TooMuch { limit: 4, .. }), "{err}");
        let cut = git.call("say its version").arg("version").cut_at(4).run().unwrap();
        assert!(cut.cut);
        assert!(cut.stdout.len() <= 4);
    }

    #[test]
    fn a_hanging_git_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let slow = dir.path().join("git");
        let mark = dir.path().join("mark");
        std::fs::write(&slow, format!("#!/bin/sh\n(sleep 3; touch {}) & wait\n", mark.display()))
            .unwrap();
        std::fs::set_permissions(&slow, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let git = Git::new(slow, "/usr/bin:/bin".into(), Duration::from_millis(50));
        let err = git.call("wait").run().unwrap_err();
        assert!(matches!(err, GitError::TimedOut { .. }), "{err}");
        assert!(!mark.exists());
    }

    #[test]
    fn links_in_a_tree_never_lead_git_outside() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, other) = (dir.path().join("tree"), dir.path().join("other"));
        std::fs::create_dir_all(tree.join("own")).unwrap();
        std::fs::create_dir(&other).unwrap();
        for at in [&tree.join("own"), &other] {
            std::fs::write(at.join("file"), "text").unwrap();
        }
        std::os::unix::fs::symlink(&other, tree.join("out")).unwrap();
        std::os::unix::fs::symlink("own", tree.join("in")).unwrap();
        let git = Git::default();
        let hash = |plain: bool, path: &str| {
            let call = git.call("hash").work(&tree, &tree.join("index"));
            let call = if plain { call.plain(&tree) } else { call };
            call.args(["hash-object", "--no-filters", path]).run()
        };
        assert_eq!(hash(true, "own/file").unwrap().line(), hash(false, "own/file").unwrap().line());
        assert!(hash(false, "out/file").is_ok(), "git itself goes through a link");
        for path in ["out/file", "in/file"] {
            let err = hash(true, path).unwrap_err().to_string();
            assert!(err.contains("symbolic links"), "{path}: {err}");
        }
        // The type of a file is read without following it.
        let text = std::fs::read_link(tree.join("out")).unwrap();
        assert_eq!(text, other, "and the mounts were its own");
    }

    #[test]
    fn a_lock_of_another_git_is_reported_by_name() {
        let err = refused(
            "add".to_owned(),
            "fatal: Unable to create '/r/.git/index.lock': File exists.\n\nAnother git process",
        );
        assert!(
            matches!(&err, GitError::Locked { lock, .. } if lock == Path::new("/r/.git/index.lock"))
        );
    }

    #[test]
    fn git_does_not_inherit_the_servers_environment() {
        let git = Git::default();
        let answer = git.call("list its settings").args(["config", "--list", "-z"]).run().unwrap();
        let text = String::from_utf8_lossy(&answer.stdout).into_owned();
        assert!(text.contains("core.hookspath\n/dev/null"), "{text}");
        assert!(!text.contains("user.name"), "{text}");
    }
}
