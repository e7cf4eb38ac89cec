//! The queue of decisions on their way to the one task that writes them.
//!
//! What nobody waits for does not wake that task while it gathers a group anyway: a wake-up for each
//! reservation and each end is a good part of what they cost.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::writer::Op;

/// The end that is sent to.
#[derive(Debug)]
pub(super) struct Queue(Arc<Shared>);

/// What waits to be made durable, until [`Budgets::write`](super::Budgets) runs. Dropped, it is closed,
/// and what is left in it is let go of.
#[derive(Debug)]
pub(crate) struct Waiting(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    bell: Notify,
}

#[derive(Debug)]
struct State {
    ops: VecDeque<Op>,
    closed: bool,
    rings: Rings,
}

/// What the writer wants to be woken by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rings {
    Anything,
    /// It gathers: by what somebody waits for, what cannot be in a group, and a full group of so many.
    /// `busy`: also by what is not idle.
    Gathering {
        busy: bool,
        room: usize,
    },
}

impl State {
    fn rings(&self, op: &Op) -> bool {
        match self.rings {
            Rings::Anything => true,
            Rings::Gathering { busy, room } => {
                self.ops.len() >= room
                    || op.is_waited_for()
                    || op.is_alone()
                    || (busy && !op.is_idle())
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one step that cannot stop halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An empty queue.
pub(super) fn queue() -> (Queue, Waiting) {
    let state = State { ops: VecDeque::new(), closed: false, rings: Rings::Anything };
    let shared = Arc::new(Shared { state: Mutex::new(state), bell: Notify::new() });
    (Queue(Arc::clone(&shared)), Waiting(shared))
}

impl Queue {
    /// Puts a decision at the end.
    ///
    /// # Errors
    ///
    /// Gives it back when nobody writes any more.
    pub(super) fn send(&self, op: Op) -> Result<(), Box<Op>> {
        let rings = {
            let mut state = self.0.state();
            if state.closed {
                return Err(Box::new(op));
            }
            let before = state.ops.len();
            state.ops.push_back(op);
            let rings = state.rings(&state.ops[before]);
            if rings {
                // Once is enough until the writer has looked.
                state.rings = Rings::Gathering { busy: false, room: usize::MAX };
            }
            rings
        };
        if rings {
            self.0.bell.notify_one();
        }
        Ok(())
    }
}

impl Waiting {
    pub(super) fn try_recv(&mut self) -> Option<Op> {
        self.0.state().ops.pop_front()
    }

    /// Waits for the next decision.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped takes nothing.
    pub(super) async fn recv(&mut self) -> Op {
        loop {
            {
                let mut state = self.0.state();
                if let Some(op) = state.ops.pop_front() {
                    return op;
                }
                state.rings = Rings::Anything;
            }
            self.0.bell.notified().await;
        }
    }

    /// Waits until something that `rings` stands in the queue.
    ///
    /// # Cancel safety
    ///
    /// As [`recv`](Self::recv).
    pub(super) async fn disturbed(&mut self, rings: Rings) {
        loop {
            {
                let mut state = self.0.state();
                state.rings = rings;
                if state.ops.iter().any(|op| state.rings(op)) {
                    return;
                }
            }
            self.0.bell.notified().await;
        }
    }

    /// Takes no more; what is there can still be had.
    pub(super) fn close(&mut self) {
        self.0.state().closed = true;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let left = {
            let mut state = self.0.state();
            state.closed = true;
            std::mem::take(&mut state.ops)
        };
        // Tickets in it look at the queue again when they go.
        drop(left);
    }
}
