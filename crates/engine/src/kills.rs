//! Ends many sessions: named ones, all running ones, or all below one.
//!
//! Each is requested separately and in parallel: their commits share disk writes, and one that
//! cannot be ended does not stop the others.

use std::collections::BTreeSet;

use futures_util::StreamExt as _;
use futures_util::stream;
use overmind_core::ids::SessionId;
use overmind_core::row::{Role, SessionRow, SessionStatus};
use overmind_core::store::{Page, SessionFilter};

use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::cortex::Order;
use crate::error::EngineError;
use crate::sessions::{is_closing, open_statuses};

/// Maximum number of sessions that one request kills, or reads.
pub const MAX_KILLS: usize = 1000;
/// Maximum number of sessions below one that are ended at the same time.
const AT_ONCE: usize = 512;
/// Sessions that are read at once.
const SCAN: u32 = 1000;

/// Selects the sessions to kill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kills {
    /// At most [`MAX_KILLS`], each once.
    Named(Vec<SessionId>),
    /// All whose command is running or will run, among the next [`MAX_KILLS`] that are not idle and
    /// have not ended: newest first, those older than `after`.
    All { after: Option<SessionId> },
}

/// The results.
#[derive(Debug)]
pub struct Killed {
    pub each: Vec<(SessionId, Result<SessionRow, EngineError>)>,
    /// The session after which there may be more.
    pub next: Option<SessionId>,
}

impl Engine {
    /// Kills the commands of many sessions, and cancels those without a command; with `cascade`
    /// cancels them and all that were started for them. Returns when that is durable; a session
    /// ends when its processes have. If a session of [`Kills::All`] ended by itself meanwhile, that
    /// is no failure.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] for no session, more than [`MAX_KILLS`], or a repeated one.
    pub async fn session_kill_each(
        &self,
        by: &Caller,
        which: Kills,
        cascade: bool,
    ) -> Result<Killed, EngineError> {
        let own = match by.rights {
            Rights::Role(_) | Rights::System(_) => {
                by.require(Role::Operator)?;
                None
            }
            Rights::Session { session, .. } => Some(session),
        };
        let (sessions, next, all) = match which {
            Kills::Named(ids) => {
                if ids.is_empty() || ids.len() > MAX_KILLS {
                    let message = format!("ids must name 1 to {MAX_KILLS} runs");
                    return Err(EngineError::invalid("ids", message));
                }
                if ids.iter().collect::<BTreeSet<_>>().len() != ids.len() {
                    return Err(EngineError::invalid("ids", "ids must name each run once"));
                }
                (ids, None, false)
            }
            Kills::All { after } => {
                let (sessions, next) = self.open_commands(by, own, after).await?;
                (sessions, next, true)
            }
        };
        let one = async |id: SessionId| {
            let killed = match cascade {
                true => self.session_cancel_all(by, id).await,
                false => self.kill(by, id).await,
            };
            match killed {
                Err(err @ EngineError::Conflict { .. }) if all => {
                    let row = self.find_session(id).await?;
                    let gone = row.status.is_terminal() || is_closing(&row);
                    if gone { Ok(row) } else { Err(err) }
                }
                killed => killed,
            }
        };
        let each = sessions.into_iter().map(async |id| (id, one(id).await));
        Ok(Killed { each: stream::iter(each).buffered(AT_ONCE).collect().await, next })
    }

    async fn kill(&self, by: &Caller, id: SessionId) -> Result<SessionRow, EngineError> {
        self.orders(by, Role::Operator, id).await?;
        self.is_there(id).await?;
        let row = self.cortex.order(id, Order::Kill { by: by.name.clone() }).await?;
        // Between two processes there is nothing to end first.
        if is_closing(&row) { self.ended(row).await } else { Ok(row) }
    }

    /// One page of the sessions that work and whose command is running or will run, and the start of
    /// the next page. A session that is idle waits for a person and keeps its conversation. If an environment is being removed, nothing more can be ended.
    /// With `own`, only sessions below it.
    async fn open_commands(
        &self,
        by: &Caller,
        own: Option<SessionId>,
        after: Option<SessionId>,
    ) -> Result<(Vec<SessionId>, Option<SessionId>), EngineError> {
        let works = |status: &SessionStatus| *status != SessionStatus::Idle;
        let statuses = open_statuses().into_iter().filter(works).collect();
        let filter = SessionFilter {
            colony: by.sight().only(),
            statuses,
            tree: own,
            ..SessionFilter::default()
        };
        let limit = u32::try_from(MAX_KILLS).unwrap_or(SCAN);
        let rows = self.cortex.store.session_list(filter, Page { after, limit }).await?;
        let full = rows.len() >= MAX_KILLS;
        let next = rows.last().map(|row| row.id).filter(|_| full);
        let found = rows
            .iter()
            .filter(|row| {
                // A session whose environment is being created may be a command.
                let prepares = row.room.as_ref().is_some_and(|room| room.made.is_none());
                (row.command.is_some() || prepares) && !is_closing(row) && own != Some(row.id)
            })
            .map(|row| row.id);
        Ok((found.collect(), next))
    }

    /// Cancels a session and all that were started for it, those first. Sessions that ended by
    /// themselves meanwhile are no failure. Sessions that are started for one of them meanwhile are
    /// found too, because an ended session can have no new children.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if all of them had already ended.
    pub async fn session_cancel_all(
        &self,
        by: &Caller,
        id: SessionId,
    ) -> Result<SessionRow, EngineError> {
        self.orders(by, Role::Operator, id).await?;
        self.find_session(id).await?;
        let below = self.open_below(id).await?;
        let mut canceled = self.cancel_each(by, below).await?;
        let own = self.cortex.order(id, Order::Cancel { by: by.name.clone(), reason: None }).await;
        loop {
            let below = self.open_below(id).await?;
            if below.is_empty() {
                break;
            }
            canceled += self.cancel_each(by, below).await?;
        }
        match own {
            Err(EngineError::Conflict { .. }) if canceled > 0 => self.find_session(id).await,
            Err(err) => Err(err),
            Ok(row) => self.ended(row).await,
        }
    }

    /// Cancels these, one generation after the other, and returns how many; those that have ended
    /// are no failure.
    async fn cancel_each(
        &self,
        by: &Caller,
        generations: Vec<Vec<SessionId>>,
    ) -> Result<usize, EngineError> {
        let mut canceled = 0;
        for sessions in generations {
            let one =
                |id| self.cortex.order(id, Order::Cancel { by: by.name.clone(), reason: None });
            let mut canceling = stream::iter(sessions).map(one).buffer_unordered(AT_ONCE);
            while let Some(done) = canceling.next().await {
                match done {
                    Ok(_) => canceled += 1,
                    Err(EngineError::Conflict { .. }) => {}
                    Err(err) => return Err(err),
                }
            }
        }
        Ok(canceled)
    }

    /// All descendants of `id` that have not ended, by generation, the youngest first.
    async fn open_below(&self, id: SessionId) -> Result<Vec<Vec<SessionId>>, EngineError> {
        let (mut parents, mut open) = (vec![id], Vec::new());
        while !parents.is_empty() {
            let (mut children, mut still) = (Vec::new(), Vec::new());
            for parent in parents {
                let filter = SessionFilter { parent: Some(parent), ..SessionFilter::default() };
                let mut after = None;
                loop {
                    let page = Page { after, limit: SCAN };
                    let rows = self.cortex.store.session_list(filter.clone(), page).await?;
                    let Some(last) = rows.last() else { break };
                    after = Some(last.id);
                    // Ended ones are included in the search, because their children may still run.
                    children.extend(rows.iter().map(|row| row.id));
                    // A session whose environment is being removed no longer runs.
                    let goes_on = rows
                        .iter()
                        .filter(|row| !row.status.is_terminal() && !is_closing(row))
                        .map(|row| row.id);
                    still.extend(goes_on);
                }
            }
            if !still.is_empty() {
                open.push(still);
            }
            parents = children;
        }
        open.reverse();
        Ok(open)
    }
}
