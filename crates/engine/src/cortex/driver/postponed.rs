//! Model calls that wait for a budget, because running calls have reserved it and may cost less.
//! Meanwhile the session does not change and still handles requests.

use std::time::Duration;

use overmind_core::bus::ToHive;
use overmind_core::effect::{Effect, EffectAction};
use overmind_core::ids::EffectId;
use overmind_core::model::ModelFailure;
use overmind_core::time::Timestamp;
use tokio::sync::watch;

use super::{Driver, Stop};
use crate::budgets::Unheld;

/// The longest time until the next attempt without any release: a window ends by the clock alone.
const AGAIN: Duration = Duration::from_secs(30);

pub(super) struct Postponed {
    effect: Effect,
    freed: watch::Receiver<u64>,
    again: Timestamp,
}

impl Postponed {
    pub(super) fn is_of(&self, effect: EffectId) -> bool {
        self.effect.id == effect
    }
}

impl Driver {
    /// Reserves for a model call. `Ok(false)` means that it waits and must not be begun now.
    ///
    /// # Errors
    ///
    /// Returns the failure that the session gets instead of a reply.
    pub(super) async fn reserve(&mut self, effect: &mut Effect) -> Result<bool, ModelFailure> {
        let EffectAction::Model(request) = &mut effect.action else { return Ok(true) };
        let row = self.session().row().clone();
        match Box::pin(self.cortex.budgets.hold(&row, effect.id, request)).await {
            Ok(held) => {
                self.reserved = Some(Box::new(held));
                Ok(true)
            }
            Err(Unheld::Refused(failure)) => Err(failure),
            Err(Unheld::Later(freed)) => {
                let again = self.cortex.clock.now().after(AGAIN);
                self.postponed = Some(Box::new(Postponed { effect: effect.clone(), freed, again }));
                Ok(false)
            }
        }
    }

    /// Waits until a postponed call may be tried again; forever if there is none.
    pub(super) async fn may_try_again(&self) {
        let Some(postponed) = &self.postponed else { return std::future::pending().await };
        // A clone has seen the same value as the original.
        let mut freed = postponed.freed.clone();
        tokio::select! {
            // It is closed only with the budgets themselves, which this driver holds.
            _ = freed.changed() => {}
            () = self.cortex.clock.sleep_until(postponed.again) => {}
        }
    }

    /// Tries a postponed call again.
    pub(super) async fn try_again(&mut self) -> Result<(), Stop> {
        let Some(postponed) = self.postponed.take() else { return Ok(()) };
        let mut effect = postponed.effect;
        // A session that was stopped meanwhile no longer needs it.
        let Some(number) = self.session().effect_number(effect.id) else { return Ok(()) };
        match self.reserve(&mut effect).await {
            Ok(true) => {
                let (session, epoch) = (self.id, self.session().row().epoch);
                self.tell(ToHive::Perform { session, epoch, effect, token: None }).await;
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(failure) => Box::pin(self.never_asked(number, failure)).await,
        }
    }
}
