//! Worktrees of leases: the lease's port to trees, over [`Trees`].
//!
//! A tree is planned before the lease begins, for its journal must hold what undoing needs. How a
//! tree ended is written down before the lease is gone ([`Maker::ended`]): a close that was cut
//! off behind that is asked for again, and answers the same.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::process::ProcessUser;
use overmind_core::room::{RoomClosed, RoomError, RoomMade, RoomOrigin};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::time::Clock;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::say;
use crate::copy;
use crate::git::GitError;
use crate::leaks::{Finding, LeakKind};
use crate::lease::{MadeTree, Progress, Sink, Tree, TreeEnd, chain};
use crate::owner;
use crate::secrets;
use crate::tree::{
    Ending, Listed, Origin, Plan, Request, TreeError, TreeIntent, Trees, session_env,
};

/// How long it is remembered how a session's tree ended. Whoever asks does so after a restart.
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 3600);

/// The journal entry of a tree that is to be created.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Intent {
    session: String,
    #[serde(flatten)]
    whose: Whose,
    sandbox: Option<SandboxLevel>,
    /// User and group that it is given to, if its programs run as another one than we do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<(u32, u32)>,
    /// Patterns of secrets that the session is given. `None`: without a sandbox all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secrets: Option<Vec<String>>,
    tree: TreeIntent,
    /// It exists already, and that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    again: Option<Again>,
}

/// The run whose work is in a tree, for people and for messages of commits.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Whose {
    /// The name of the session.
    pub(super) name: String,
    /// See [`RoomOrder::about`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) about: String,
    /// See [`RoomOrder::agent`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) agent: String,
}

impl Intent {
    /// For a session outside of a sandbox, which works as any user.
    fn of(session: &str, whose: Whose, tree: TreeIntent) -> Self {
        let session = session.to_owned();
        Self { session, whose, sandbox: None, user: None, secrets: None, tree, again: None }
    }
}

/// A tree that is reopened.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Again {
    cwd: PathBuf,
    borrowed: Vec<PathBuf>,
    #[serde(default)]
    bounded: bool,
    withheld: Vec<String>,
}

/// The properties of a tree that was created.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Details {
    /// The directory in which the session's command starts.
    pub(super) cwd: PathBuf,
    pub(super) warnings: Vec<String>,
    pub(super) sandbox: Option<SandboxLevel>,
    /// Outside of the tree, and needed by it.
    #[serde(default)]
    pub(super) borrowed: Vec<PathBuf>,
    #[serde(default)]
    pub(super) bounded: bool,
    #[serde(default)]
    pub(super) origin: Option<RoomOrigin>,
    /// Secrets that are withheld, from the top of the tree.
    #[serde(default)]
    pub(super) withheld: Vec<String>,
}

fn origin_of(tree: &TreeIntent) -> RoomOrigin {
    match &tree.origin {
        Origin::Repository { common, .. } => RoomOrigin::Repository(common.as_path().to_owned()),
        Origin::Directory { .. } => RoomOrigin::Directory,
    }
}

/// How a session's tree ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) closed: RoomClosed,
    /// The repository that its work went to. A session within a session has a project that is gone
    /// with the other one.
    #[serde(default)]
    pub(super) primary: Option<PathBuf>,
}

/// Makes and ends the trees of leases. Clones share everything.
#[derive(Clone, Debug)]
pub(super) struct Maker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    trees: Trees,
    /// The directory with the records of how trees ended: a file for each session.
    endings: PathBuf,
    clock: Arc<dyn Clock>,
    /// Decided, and not begun.
    plans: Mutex<HashMap<PathBuf, Plan>>,
    /// Places that sessions were promised and that may not be on the disk yet.
    promised: Mutex<HashSet<PathBuf>>,
    /// One step at a time on each place, also if its caller no longer waits.
    steps: Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
}

/// A place that a session was promised; free again when it is dropped, unless it was
/// [used](Promise::used).
#[derive(Debug)]
pub(super) struct Promise {
    maker: Maker,
    place: PathBuf,
    used: bool,
}

impl Promise {
    /// The journal contains it now, so undoing releases it.
    pub(super) fn used(mut self) {
        self.used = true;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if !self.used {
            self.maker.let_go(&self.place);
        }
    }
}

impl Maker {
    pub(super) fn new(trees: Trees, endings: PathBuf, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner {
            trees,
            endings,
            clock,
            plans: Mutex::default(),
            promised: Mutex::default(),
            steps: Mutex::default(),
        }))
    }

    pub(super) fn trees(&self) -> &Trees {
        &self.0.trees
    }

    /// Decides about a session's tree. Blocks.
    pub(super) fn plan(
        &self,
        (session, whose): (&str, &Whose),
        sandbox: Option<SandboxLevel>,
        user: Option<ProcessUser>,
        secrets: Option<&[String]>,
        mut request: Request,
    ) -> Result<(Value, Promise), TreeError> {
        let name = whose.name.clone();
        // If two sessions with one name are planned at once, the second gets a number.
        for number in 1..100 {
            request.name = if number == 1 { name.clone() } else { format!("{name}-{number}") };
            let plan = self.0.trees.plan(&request)?.owned_by(session);
            let place = plan.intent().place.as_path().to_owned();
            let mut promised = self.0.promised.lock().unwrap_or_else(PoisonError::into_inner);
            if !promised.insert(place.clone()) {
                continue;
            }
            drop(promised);
            let promise = Promise { maker: self.clone(), place: place.clone(), used: false };
            let intent = Intent {
                sandbox,
                user: user.map(|user| (user.uid, user.gid)),
                secrets: secrets.map(<[String]>::to_vec),
                ..Intent::of(session, whose.clone(), plan.intent().clone())
            };
            let intent = serde_json::to_value(&intent)
                .map_err(|source| TreeError::Notes { place: place.clone(), source })?;
            self.plans().insert(place, plan);
            return Ok((intent, promise));
        }
        Err(TreeError::NameTaken { session: name })
    }

    /// The session's own earlier tree, to be reopened; `None` if it was removed, or belongs to
    /// another session. Blocks.
    pub(super) fn again(
        &self,
        session: &str,
        whose: &Whose,
        user: Option<ProcessUser>,
        before: &RoomMade,
    ) -> Result<Option<(Value, Promise)>, TreeError> {
        let Some(worktree) = &before.worktree else { return Ok(None) };
        let Some(found) = self.own(session, worktree)? else { return Ok(None) };
        let place = found.intent.place.as_path().to_owned();
        let intent = Intent {
            sandbox: before.sandbox,
            user: user.map(|user| (user.uid, user.gid)),
            again: Some(Again {
                cwd: before.directory.clone(),
                borrowed: before.borrowed.clone(),
                bounded: before.bounded,
                withheld: before.withheld.clone(),
            }),
            ..Intent::of(session, whose.clone(), found.intent)
        };
        let intent = serde_json::to_value(&intent)
            .map_err(|source| TreeError::Notes { place: place.clone(), source })?;
        self.0.promised.lock().unwrap_or_else(PoisonError::into_inner).insert(place.clone());
        Ok(Some((intent, Promise { maker: self.clone(), place, used: false })))
    }

    /// Reopens an existing tree.
    fn take_up(&self, intent: &Intent, again: &Again) -> Result<MadeTree, String> {
        let tree = &intent.tree;
        self.0.trees.keep(tree, false).map_err(|err| chain(&err))?;
        let details = Details {
            cwd: again.cwd.clone(),
            warnings: Vec::new(),
            sandbox: intent.sandbox,
            borrowed: again.borrowed.clone(),
            bounded: again.bounded,
            origin: Some(origin_of(tree)),
            withheld: again.withheld.clone(),
        };
        Ok(MadeTree {
            path: tree.tree(),
            branch: Some(tree.branch.clone()),
            base: tree.base.clone(),
            env: self.env_of(tree),
            borrowed: again.borrowed.clone(),
            bounded: again.bounded,
            details: serde_json::to_value(&details).map_err(|err| err.to_string())?,
        })
    }

    /// Variables of a tree: they keep its git within it, and set the author of commits.
    fn env_of(&self, tree: &TreeIntent) -> BTreeMap<String, String> {
        let within = session_env(tree)
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.into_string().ok()?)));
        let by = self.0.trees.by(tree.source().as_ref());
        within.chain(by.into_iter().map(|(name, value)| (name.to_owned(), value))).collect()
    }

    fn plans(&self) -> std::sync::MutexGuard<'_, HashMap<PathBuf, Plan>> {
        self.0.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn let_go(&self, place: &Path) {
        self.plans().remove(place);
        self.0.promised.lock().unwrap_or_else(PoisonError::into_inner).remove(place);
    }

    /// The session's own finished tree with this working tree, if it exists. Blocks.
    pub(super) fn own(&self, session: &str, worktree: &Path) -> Result<Option<Listed>, TreeError> {
        let found = self.0.trees.at(worktree)?;
        // Another session of the same name may have got the place since.
        Ok(found.filter(|one| one.exists && one.intent.owner.as_deref() == Some(session)))
    }

    /// How a session's tree ended; `None` when nothing is remembered.
    pub(super) fn ended(&self, session: &str) -> Option<Ended> {
        let text = std::fs::read(ending_file(&self.0.endings, session)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Records how a session's tree ended; the location of its work stays as recorded before.
    pub(super) fn note_ended(&self, session: &str, closed: &RoomClosed) -> io::Result<()> {
        let primary = self.ended(session).and_then(|known| known.primary);
        self.note_ending(session, &Ended { closed: closed.clone(), primary })
    }

    fn note_ending(&self, session: &str, ended: &Ended) -> io::Result<()> {
        std::fs::create_dir_all(&self.0.endings)?;
        let path = ending_file(&self.0.endings, session);
        let half = path.with_extension("half");
        std::fs::write(&half, serde_json::to_vec(ended)?)?;
        std::fs::rename(&half, &path)
    }

    pub(super) fn forget_ended(&self, session: &str) {
        // Not there is what was wanted.
        let _ = std::fs::remove_file(ending_file(&self.0.endings, session));
    }

    /// Forgets how trees ended a long time ago. Blocks.
    pub(super) fn forget_old(&self) {
        let before = self.0.clock.now().as_micros() / 1_000_000
            - i64::try_from(REMEMBERED.as_secs()).unwrap_or(i64::MAX);
        for entry in std::fs::read_dir(&self.0.endings).into_iter().flatten().flatten() {
            let old = entry
                .metadata()
                .is_ok_and(|meta| std::os::unix::fs::MetadataExt::mtime(&meta) < before);
            if old {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Seconds since 1970.
    pub(super) fn now(&self) -> i64 {
        self.0.clock.now().as_micros() / 1_000_000
    }

    /// Runs one blocking step on a place, after any step that still runs there.
    async fn step<T: Send + 'static>(
        &self,
        place: PathBuf,
        run: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, String> {
        let lock = {
            let mut steps = self.0.steps.lock().unwrap_or_else(PoisonError::into_inner);
            steps.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(steps.entry(place).or_default())
        };
        let alone = lock.lock_owned().await;
        let maker = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let done = run(&maker);
            drop(alone);
            done
        });
        done.await.map_err(|err| format!("the step was cut off: {err}"))
    }

    fn make_now(&self, intent: &Intent) -> Result<(MadeTree, Vec<String>), String> {
        if let Some(again) = &intent.again {
            return Ok((self.take_up(intent, again)?, Vec::new()));
        }
        let plan = self.plans().remove(intent.tree.place.as_path());
        // Planned by an earlier daemon: such a lease is undone and not continued.
        let plan = plan.ok_or("its plan is not known any more: prepare the session again")?;
        let made = self.0.trees.make(&plan).map_err(|err| chain(&err))?;
        let mut warnings: Vec<String> = made.warnings.iter().map(ToString::to_string).collect();
        let borrowed = [made.borrowed, made.shared].concat();
        if let Some((uid, gid)) = intent.user {
            let user = ProcessUser { uid, gid };
            let given = owner::hand_over(self.0.trees.root(), &made.path, &borrowed, user);
            given.map_err(|err| chain(&err))?;
        }
        let withheld = self.set_aside(intent, &made.path)?;
        if !withheld.is_empty() {
            warnings.push(say::withheld(&withheld));
        }
        let details = Details {
            withheld,
            cwd: made.cwd,
            warnings: warnings.clone(),
            sandbox: intent.sandbox,
            borrowed: borrowed.clone(),
            bounded: made.bounded,
            origin: Some(origin_of(&made.intent)),
        };
        let env = self.env_of(&made.intent);
        let tree = MadeTree {
            path: made.path,
            branch: Some(made.intent.branch),
            base: made.intent.base,
            env,
            borrowed,
            bounded: made.bounded,
            details: serde_json::to_value(&details).map_err(|err| err.to_string())?,
        };
        Ok((tree, warnings))
    }

    /// Notes the secrets that a new tree has, and answers those that are withheld. Git in the tree
    /// takes them for unchanged, though it sees something else there.
    fn set_aside(&self, intent: &Intent, tree: &Path) -> Result<Vec<String>, String> {
        let Some(grants) = &intent.secrets else { return Ok(Vec::new()) };
        let failed = |err: io::Error| format!("looking for secrets in the tree: {err}");
        let mut noted = secrets::Noted::of(tree, grants).map_err(failed)?;
        let withheld: Vec<PathBuf> =
            noted.withheld.iter().map(|secret| secret.path.clone()).collect();
        let tracked = self.0.trees.take_for_unchanged(tree, &withheld);
        let tracked = tracked.map_err(|err| chain(&err))?;
        for secret in &mut noted.withheld {
            secret.tracked = tracked.iter().any(|path| path.starts_with(&secret.path));
        }
        noted.write(intent.tree.place.as_path()).map_err(failed)?;
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        Ok(withheld.into_iter().map(text).collect())
    }

    /// Ends a tree in whatever state it is. What cannot be saved stays where it is.
    fn end_now(&self, intent: &Intent, end: TreeEnd) -> Result<(), String> {
        let tree = &intent.tree;
        let there = self.0.trees.at(&tree.tree()).map_err(|err| chain(&err))?;
        if let Some(other) = &there
            && other.intent.owner.as_deref() != Some(&intent.session)
        {
            // Its place was free, and another session got it.
            self.let_go(tree.place.as_path());
            return Ok(());
        }
        // A partial release restores the earlier state, and a person's choice has precedence over ours.
        let asked_to_stay = there.as_ref().is_some_and(|one| one.ending == Some(Ending::Kept));
        let end = match end {
            TreeEnd::Park | TreeEnd::Decide if asked_to_stay => TreeEnd::Keep,
            TreeEnd::Park if intent.again.is_some() => TreeEnd::Decide,
            end => end,
        };
        let mut closed = RoomClosed::default();
        if there.is_some() {
            let saved = match end {
                TreeEnd::Keep => self.keep_now(tree, &mut closed),
                TreeEnd::Decide => self.keep_work(tree, &mut closed),
                TreeEnd::Park => self.park_now(intent, &mut closed),
                TreeEnd::Discard => self.discard_now(tree, &mut closed),
            };
            if let Err(err) = saved {
                self.stay_or_fail(tree, err, &mut closed)?;
            }
        } else if let Some(known) = self.ended(&intent.session) {
            // Saved and removed before a crash.
            closed = known.closed;
        }
        let source = tree.source();
        let primary = source.map(|source| source.top.unwrap_or(source.common));
        let note = |closed: &RoomClosed| {
            let ended = Ended { closed: closed.clone(), primary: primary.clone() };
            self.note_ending(&intent.session, &ended).map_err(|err| err.to_string())
        };
        if closed.kept.is_none() {
            // Recorded before it is removed: afterwards nothing shows where its work is.
            note(&closed)?;
            if let Err(err) = self.0.trees.undo(tree) {
                self.stay_or_fail(tree, err, &mut closed)?;
            }
        }
        if closed.kept.is_some() {
            note(&closed)?;
        }
        self.let_go(tree.place.as_path());
        Ok(())
    }

    fn keep_now(&self, tree: &TreeIntent, closed: &mut RoomClosed) -> Result<(), TreeError> {
        self.0.trees.keep(tree, true)?;
        closed.kept = Some(tree.tree());
        Ok(())
    }

    /// Removes a tree without work; one with work stays.
    fn keep_work(&self, tree: &TreeIntent, closed: &mut RoomClosed) -> Result<(), TreeError> {
        match self.0.trees.remove(tree) {
            Ok(_) => Ok(()),
            Err(TreeError::Unsaved { .. }) => {
                closed.undecided = true;
                closed.changes = self.0.trees.changed(tree);
                self.keep_now(tree, closed)
            }
            Err(err) => Err(err),
        }
    }

    /// Saves the work of a tree that stayed on its branch, and removes it. Blocks.
    pub(super) fn park_kept(
        &self,
        session: &str,
        whose: Whose,
        tree: &TreeIntent,
    ) -> Result<RoomClosed, String> {
        let intent = Intent::of(session, whose, tree.clone());
        self.0.trees.keep(tree, false).map_err(|err| chain(&err))?;
        self.end_now(&intent, TreeEnd::Park)?;
        Ok(self.ended(session).map(|known| known.closed).unwrap_or_default())
    }

    fn park_now(&self, intent: &Intent, closed: &mut RoomClosed) -> Result<(), TreeError> {
        let message = say::message(&intent.whose);
        let parked = match self.0.trees.park(&intent.tree, &message, self.now()) {
            // Its files were removed on request; `undo` saves what is known.
            Err(TreeError::Gone { .. }) => return Ok(()),
            parked => parked?,
        };
        closed.commit = parked.commit;
        if closed.commit.is_some() {
            closed.changes = self.0.trees.changed(&intent.tree);
        }
        closed.parked = parked.wip && closed.commit.is_some();
        match (intent.tree.source(), parked.saved_as) {
            (Some(_), saved_as) => closed.branch = saved_as,
            (None, Some(file)) => closed.warnings.push(format!(
                "the project is not in a repository; the work is in {file}, which `git clone` can read"
            )),
            (None, None) => {}
        }
        if !parked.others.is_empty() {
            closed.warnings.push(format!(
                "other branches, tags and stashes of the session: {}",
                parked.others.join(", ")
            ));
        }
        Ok(())
    }

    fn discard_now(&self, tree: &TreeIntent, closed: &mut RoomClosed) -> Result<(), TreeError> {
        let discarded = match self.0.trees.discard(tree, self.now()) {
            Err(TreeError::Gone { .. }) => return Ok(()),
            discarded => discarded?,
        };
        closed.commit = super::work::last_commit(self, tree)?;
        closed.warnings.push(brought_back(&discarded.saved_as));
        Ok(())
    }

    /// If a second attempt would not help, the tree stays and is reported; everything else of the
    /// session can be released nevertheless.
    fn stay_or_fail(
        &self,
        tree: &TreeIntent,
        err: TreeError,
        closed: &mut RoomClosed,
    ) -> Result<(), String> {
        let lasting = match &err {
            TreeError::Unsaved { .. }
            | TreeError::Kept { .. }
            | TreeError::TooLarge { .. }
            | TreeError::RepositoryGone { .. }
            | TreeError::Unsound { .. }
            | TreeError::Led { .. }
            | TreeError::Beyond { .. }
            | TreeError::NotOurs { .. }
            | TreeError::OffLimits { .. }
            | TreeError::Git(GitError::Failed { .. } | GitError::TooMuch { .. }) => true,
            TreeError::Git(
                GitError::Start { .. }
                | GitError::Talk { .. }
                | GitError::TimedOut { .. }
                | GitError::Locked { .. },
            )
            | TreeError::File { .. }
            | TreeError::BrokenRedirect { .. }
            | TreeError::NoSuchBase { .. }
            | TreeError::NameTaken { .. }
            | TreeError::Gone { .. }
            | TreeError::InUse { .. }
            | TreeError::Busy { .. }
            | TreeError::ContainsUs { .. }
            | TreeError::NoRepository { .. }
            | TreeError::NoSuchBranch { .. }
            | TreeError::NoBranch { .. }
            | TreeError::CheckoutUnknown { .. }
            | TreeError::BadBranch { .. }
            | TreeError::BranchTaken { .. }
            | TreeError::Uncommitted { .. }
            | TreeError::CheckedOut { .. }
            | TreeError::WorkGone { .. }
            | TreeError::PrimaryBusy { .. }
            | TreeError::PrimaryInTheWay { .. }
            | TreeError::NoFilesAt { .. }
            | TreeError::Notes { .. } => false,
        };
        if !lasting {
            return Err(chain(&err));
        }
        self.keep_now(tree, closed)
            .map_err(|second| format!("{}; {}", chain(&err), chain(&second)))?;
        let text = format!(
            "{} stays, for not all in it can be saved: {}",
            tree.tree().display(),
            chain(&err)
        );
        closed.warnings.push(text);
        Ok(())
    }
}

/// How discarded work comes back.
pub(super) fn brought_back(saved_as: &str) -> String {
    if saved_as.starts_with("refs/") {
        format!("its last state is kept for a while: `git branch NAME {saved_as}` brings it back")
    } else {
        format!("its last state is kept in {saved_as}, which `git clone` reads")
    }
}

fn ending_file(dir: &Path, session: &str) -> PathBuf {
    dir.join(format!("{session}.json"))
}

fn read(intent: &Value) -> Result<Intent, String> {
    serde_json::from_value(intent.clone())
        .map_err(|err| format!("the journal's words on the worktree cannot be read: {err}"))
}

impl Tree for Maker {
    fn make<'a>(
        &'a self,
        intent: &'a Value,
        sink: &'a dyn Sink,
    ) -> Fut<'a, Result<MadeTree, String>> {
        Box::pin(async move {
            let intent = read(intent)?;
            let place = intent.tree.place.as_path().to_owned();
            let (tree, warnings) = self.step(place, move |maker| maker.make_now(&intent)).await??;
            for text in &warnings {
                sink.tell(Progress::Warning { text });
            }
            Ok(tree)
        })
    }

    fn undo<'a>(
        &'a self,
        intent: &'a Value,
        _: Option<&'a MadeTree>,
        end: TreeEnd,
    ) -> Fut<'a, Result<(), String>> {
        Box::pin(async move {
            let intent = read(intent)?;
            let place = intent.tree.place.as_path().to_owned();
            self.step(place, move |maker| maker.end_now(&intent, end)).await?
        })
    }

    fn is_tracked<'a>(&'a self, file: &'a Path) -> Fut<'a, Result<Option<bool>, String>> {
        Box::pin(async move {
            let (maker, file) = (self.clone(), file.to_owned());
            let asked = tokio::task::spawn_blocking(move || maker.0.trees.is_tracked(&file));
            asked.await.map_err(|err| err.to_string())?.map_err(|err| chain(&err))
        })
    }

    fn leave_out<'a>(&'a self, file: &'a Path, out: bool) -> Fut<'a, Result<bool, String>> {
        Box::pin(async move {
            let (maker, file) = (self.clone(), file.to_owned());
            let done = tokio::task::spawn_blocking(move || maker.0.trees.leave_out(&file, out));
            done.await.map_err(|err| err.to_string())?.map_err(|err| chain(&err))
        })
    }

    fn leaks<'a>(&'a self, live: &'a BTreeSet<String>) -> Fut<'a, Vec<Finding>> {
        Box::pin(async move {
            let maker = self.clone();
            let live = live.clone();
            looked(self, tokio::task::spawn_blocking(move || maker.left(&live)).await)
        })
    }

    fn references(&self) -> Fut<'_, Vec<Finding>> {
        Box::pin(async move {
            let maker = self.clone();
            looked(self, tokio::task::spawn_blocking(move || maker.borrowed()).await)
        })
    }

    fn fix<'a>(&'a self, finding: &'a Finding) -> Fut<'a, Result<(), String>> {
        Box::pin(async move {
            if finding.kind == LeakKind::Branch {
                let maker = self.clone();
                let release = move || maker.0.trees.release_unused_bases();
                return match tokio::task::spawn_blocking(release).await {
                    Ok(done) => done.map_err(|err| chain(&err)),
                    Err(err) => Err(err.to_string()),
                };
            }
            let worktree = PathBuf::from(&finding.what);
            let place = worktree.parent().unwrap_or(Path::new("/")).to_owned();
            self.step(place, move |maker| {
                let found = maker.0.trees.at(&worktree).map_err(|err| chain(&err))?;
                let Some(found) = found else { return Ok(()) };
                let session = found.intent.owner.clone().unwrap_or_default();
                let name = found.intent.session.clone();
                let whose = Whose { name, ..Whose::default() };
                maker.fix_now(&Intent::of(&session, whose, found.intent))
            })
            .await?
        })
    }
}

impl Maker {
    /// Trees whose session no longer exists, with their sizes.
    fn left(&self, live: &BTreeSet<String>) -> Result<Vec<Finding>, TreeError> {
        let left = self.0.trees.list()?.into_iter().filter(|one| {
            let lives = one.intent.owner.as_ref().is_some_and(|owner| live.contains(owner));
            !lives && one.ending != Some(Ending::Kept)
        });
        let found = left.map(|one| Finding {
            kind: LeakKind::Worktree,
            what: one.intent.tree().display().to_string(),
            bytes: copy::used(one.intent.place.as_path()),
            session: one.intent.owner,
            how: "`overmind doctor --fix` saves what is in it on its branch and removes it"
                .to_owned(),
            fixable: true,
        });
        Ok(found.collect())
    }

    /// References in projects that keep commits for nobody. Branches of parked work are no leak: they
    /// are what a session was for.
    fn borrowed(&self) -> Result<Vec<Finding>, TreeError> {
        let unused = self.0.trees.unused_bases()?.into_iter();
        let found = unused.map(|(repo, name)| Finding {
            kind: LeakKind::Branch,
            what: format!("{name} in {}", repo.display()),
            session: None,
            how: "no session borrows this commit: `overmind doctor --fix` lets go of it".to_owned(),
            fixable: true,
            bytes: None,
        });
        Ok(found.collect())
    }

    fn fix_now(&self, intent: &Intent) -> Result<(), String> {
        if !intent.session.is_empty() {
            return self.end_now(intent, TreeEnd::Park);
        }
        let mut closed = RoomClosed::default();
        self.park_now(intent, &mut closed).map_err(|err| chain(&err))?;
        self.0.trees.undo(&intent.tree).map(drop).map_err(|err| chain(&err))
    }
}

fn looked(
    maker: &Maker,
    done: Result<Result<Vec<Finding>, TreeError>, tokio::task::JoinError>,
) -> Vec<Finding> {
    match done {
        Ok(Ok(found)) => found,
        Ok(Err(err)) => vec![unchecked(maker, chain(&err))],
        Err(err) => vec![unchecked(maker, err.to_string())],
    }
}

fn unchecked(maker: &Maker, why: String) -> Finding {
    Finding {
        kind: LeakKind::Unchecked,
        what: maker.0.trees.root().display().to_string(),
        session: None,
        how: format!("worktrees were not looked for: {why}"),
        fixable: false,
        bytes: None,
    }
}

/// A step of trees for the port, where blocking is allowed.
pub(super) async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, TreeError> + Send + 'static,
) -> Result<T, RoomError> {
    match tokio::task::spawn_blocking(run).await {
        Ok(done) => done.map_err(|err| say::of_tree(&err)),
        Err(err) => Err(say::failed(format!("the step was cut off: {err}"))),
    }
}
