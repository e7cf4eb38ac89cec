//! A fake of the port of environments: it creates nothing, records its requests, and fails or hangs
//! on request of a test.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overmind_core::Fut;
use overmind_core::attest::Attested;
use overmind_core::ids::{ColonyId, SessionId};
use overmind_core::record::Name;
use overmind_core::room::history::{RoomMark, RoomSnapshot, RoomUndone};
use overmind_core::room::trust::{RoomTrust, TrustedProjects};
use overmind_core::room::{
    Leak, RoomClosed, RoomDone, RoomEnd, RoomError, RoomErrorKind, RoomMade, RoomOrder,
    RoomOutcome, RoomProgress, RoomReach, RoomSink, RoomWitness, RoomWork, Rooms,
};
use tokio::sync::Notify;

/// The events in order, over all fakes that share the list.
#[derive(Clone, Debug, Default)]
pub struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    pub fn write(&self, what: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what.into());
    }

    pub fn read(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn has(&self, what: &str) -> bool {
        self.read().iter().any(|line| line == what)
    }

    pub fn count(&self, what: &str) -> usize {
        self.read().iter().filter(|line| *line == what).count()
    }
}

/// The instructions of a test for the next calls, by their name: `prepare`, `close`,
/// `environment`, `done`.
#[derive(Debug, Default)]
struct Wishes {
    fail: HashSet<&'static str>,
    hang: HashSet<&'static str>,
    /// The commands in the file of any project.
    orders: Vec<String>,
    trusted: TrustedProjects,
}

/// Rooms that exist in memory only. Survives the engine that uses it, as real ones do.
#[derive(Debug, Default)]
pub struct FakeRooms {
    pub journal: Journal,
    wishes: Mutex<Wishes>,
    /// Wakes hanging calls.
    go: Notify,
    /// Existing environments; false: incomplete.
    open: Mutex<HashMap<SessionId, bool>>,
    witness: Mutex<Option<Arc<dyn RoomWitness>>>,
    /// The result of a close.
    pub leaks: Mutex<Vec<Leak>>,
}

impl FakeRooms {
    pub fn new(journal: Journal) -> Arc<Self> {
        Arc::new(Self { journal, ..Self::default() })
    }

    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self) -> MutexGuard<'_, HashMap<SessionId, bool>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn fail(&self, call: &'static str) {
        self.wishes().fail.insert(call);
    }

    /// Calls of this name do what they should again.
    pub fn succeed(&self, call: &'static str) {
        self.wishes().fail.remove(call);
    }

    /// Calls of this name do not return until [`FakeRooms::let_go`].
    pub fn hang(&self, call: &'static str) {
        self.wishes().hang.insert(call);
    }

    pub fn let_go(&self) {
        self.wishes().hang.clear();
        self.go.notify_waiters();
    }

    /// From now on any project orders this.
    pub fn order(&self, order: &str) {
        self.wishes().orders.push(order.to_owned());
    }

    /// Existing environments, complete or incomplete.
    pub fn left(&self) -> usize {
        self.opened().len()
    }

    /// Tells what the sandbox of a program is measured to give, as if it began now.
    pub async fn attest(&self, session: SessionId, of: &str, attested: Arc<Attested>) {
        let witness = self.witness.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(witness) = witness {
            witness.attested(session, of.to_owned(), attested).await;
        }
    }

    async fn call(&self, call: &'static str) -> Result<(), RoomError> {
        self.journal.write(call);
        loop {
            let woken = self.go.notified();
            if !self.wishes().hang.contains(call) {
                break;
            }
            woken.await;
        }
        match self.wishes().fail.contains(call) {
            true => Err(RoomError::new(RoomErrorKind::Failed, format!("{call} fails as wanted"))),
            false => Ok(()),
        }
    }
}

impl Rooms for FakeRooms {
    fn witness(&self, witness: Arc<dyn RoomWitness>) {
        *self.witness.lock().unwrap_or_else(PoisonError::into_inner) = Some(witness);
    }

    fn trusted(&self, projects: TrustedProjects) {
        self.wishes().trusted = projects;
    }

    fn trust_of(
        &self,
        project: PathBuf,
        _reach: RoomReach,
    ) -> Fut<'_, Result<RoomTrust, RoomError>> {
        let wishes = self.wishes();
        let (orders, given) = (wishes.orders.clone(), wishes.trusted.get(&project).cloned());
        let hash = (!orders.is_empty()).then(|| orders.join("\n"));
        let trust =
            RoomTrust { project, repository: true, hash, orders, borrows: Vec::new(), given };
        Box::pin(std::future::ready(Ok(trust)))
    }

    fn keep(&self, wanted: Vec<SessionId>) -> Fut<'_, ()> {
        Box::pin(async move {
            self.journal.write(format!("keep {}", wanted.len()));
            self.opened().retain(|session, whole| wanted.contains(session) && *whole);
        })
    }

    fn prepare(&self, order: RoomOrder, sink: RoomSink) -> Fut<'_, Result<RoomMade, RoomError>> {
        Box::pin(async move {
            self.opened().entry(order.session).or_insert(false);
            sink(RoomProgress::Step("setup: npm ci".into()));
            let line = "added 3 packages".to_owned();
            sink(RoomProgress::Line { source: "npm ci".into(), line });
            sink(RoomProgress::Warning("two files were left out".into()));
            if let Err(err) = self.call("prepare").await {
                self.opened().remove(&order.session);
                return Err(err);
            }
            self.opened().insert(order.session, true);
            self.journal.write("prepared");
            Ok(RoomMade {
                directory: order.project.join("room"),
                worktree: Some(order.project.join("room")),
                branch: Some(format!("overmind/{}", order.name)),
                base: order.wish.base,
                ports: BTreeMap::from([("PORT".to_owned(), 20_001)]),
                urls: BTreeMap::from([("web".to_owned(), "http://127.0.0.1:20001".to_owned())]),
                ..RoomMade::default()
            })
        })
    }

    fn environment(&self, session: SessionId) -> Fut<'_, Result<Vec<(String, String)>, RoomError>> {
        Box::pin(async move {
            self.call("environment").await?;
            if self.opened().get(&session) != Some(&true) {
                return Ok(Vec::new());
            }
            let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
            Ok(vec![
                of("PORT", "20001"),
                of("DATABASE_URL", "postgres://app:hush@127.0.0.1/app"),
                of("OVERMIND_SESSION_ID", "of-a-room"),
                of("COLOR", "of-a-room"),
            ])
        })
    }

    fn lend(
        &self,
        session: SessionId,
        files: Vec<(String, String)>,
    ) -> Fut<'_, Result<PathBuf, RoomError>> {
        Box::pin(async move {
            self.call("lend").await?;
            self.journal.write(format!("lent {}", files.len()));
            Ok(PathBuf::from("/lent").join(session.to_string()))
        })
    }

    fn claim(&self, colony: ColonyId, name: Name) -> Fut<'_, Result<PathBuf, RoomError>> {
        Box::pin(async move {
            self.call("claim").await?;
            Ok(PathBuf::from("/claims").join(colony.to_string()).join(name.as_str()))
        })
    }

    fn keep_lent(&self, _wanted: Vec<SessionId>) -> Fut<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn returned(&self, _session: SessionId) -> Fut<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn close(
        &self,
        session: SessionId,
        end: RoomEnd,
        sink: RoomSink,
    ) -> Fut<'_, Result<RoomClosed, RoomError>> {
        Box::pin(async move {
            sink(RoomProgress::Step("services".into()));
            self.call("close").await?;
            let whole = self.opened().remove(&session);
            self.journal.write("closed");
            Ok(RoomClosed {
                kept: (whole == Some(true) && end == RoomEnd::Keep).then(|| "/kept".into()),
                branch: (whole == Some(true)).then(|| "overmind/kept".to_owned()),
                leaks: self.leaks.lock().unwrap_or_else(PoisonError::into_inner).clone(),
                ..RoomClosed::default()
            })
        })
    }

    fn work<'a>(
        &'a self,
        order: &'a RoomOrder,
        made: &'a RoomMade,
        _closed: Option<&'a RoomClosed>,
    ) -> Fut<'a, Result<RoomWork, RoomError>> {
        let (branch, base) = (made.branch.clone(), order.wish.base.clone());
        let (files, insertions, diff) = (1, 2, "+a\n+b\n".to_owned());
        let work = RoomWork { branch, base, files, insertions, diff, ..RoomWork::default() };
        Box::pin(std::future::ready(Ok(work)))
    }

    fn done<'a>(
        &'a self,
        _order: &'a RoomOrder,
        made: &'a RoomMade,
        _closed: Option<&'a RoomClosed>,
        done: RoomDone,
    ) -> Fut<'a, Result<RoomOutcome, RoomError>> {
        Box::pin(async move {
            self.call("done").await?;
            let said = match &done {
                RoomDone::Merge { .. } => "merged",
                RoomDone::PrBranch { .. } => "on its branch",
                RoomDone::Keep => "kept",
                RoomDone::Park => "put aside",
                RoomDone::Discard => "discarded",
            };
            let (branch, commit) = (made.branch.clone(), Some("c0ffee".to_owned()));
            Ok(RoomOutcome { said: said.into(), branch, commit, ..RoomOutcome::default() })
        })
    }

    fn snapshot(
        &self,
        _session: SessionId,
        _mark: RoomMark,
    ) -> Fut<'_, Result<Option<RoomSnapshot>, RoomError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn kept(&self) -> Fut<'_, Result<Vec<SessionId>, RoomError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn restore(
        &self,
        _session: SessionId,
        _step: u32,
    ) -> Fut<'_, Result<Option<RoomUndone>, RoomError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn undo<'a>(
        &'a self,
        _order: &'a RoomOrder,
        _made: &'a RoomMade,
        _closed: Option<&'a RoomClosed>,
        _to: Option<&'a str>,
    ) -> Fut<'a, Result<RoomUndone, RoomError>> {
        let none = RoomError::new(RoomErrorKind::NotFound, "nothing is saved of a made-up room");
        Box::pin(std::future::ready(Err(none)))
    }

    fn files_at<'a>(
        &'a self,
        _order: &'a RoomOrder,
        _made: &'a RoomMade,
        _step: u32,
    ) -> Fut<'a, Result<Option<RoomSnapshot>, RoomError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn leaks(&self) -> Fut<'_, Vec<Leak>> {
        let leaks = self.leaks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(std::future::ready(leaks))
    }

    fn fix(&self) -> Fut<'_, Vec<Leak>> {
        let mut leaks = self.leaks.lock().unwrap_or_else(PoisonError::into_inner);
        leaks.retain(|leak| !leak.fixable);
        Box::pin(std::future::ready(leaks.clone()))
    }
}
