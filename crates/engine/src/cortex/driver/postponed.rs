//! A model call that waits for a budget: what is in its way is only reserved, by calls under way, and
//! is free again when they have cost less. The session stays as it is meanwhile, and hears orders.

use std::time::Duration;

use overmind_core::bus::ToHive;
use overmind_core::effect::{Effect, EffectAction};
use overmind_core::ids::EffectId;
use overmind_core::model::ModelFailure;
use overmind_core::time::Timestamp;
use tokio::sync::watch;

use super::{Driver, Stop};
use crate::budgets::Unheld;

/// How long nothing need be freed before it is looked again: a window ends by the clock alone.
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
    /// Reserves for a model call. `Ok(false)`: it waits for its turn, and is not to be begun now.
    ///
    /// # Errors
    ///
    /// What the session hears in place of a reply.
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

    /// Waits until a call that was postponed may be tried again; for ever where there is none.
    pub(super) async fn may_try_again(&self) {
        let Some(postponed) = &self.postponed else { return std::future::pending().await };
        // A copy has seen what the first has seen.
        let mut freed = postponed.freed.clone();
        tokio::select! {
            // Closed only with the budgets themselves, which this driver keeps.
            _ = freed.changed() => {}
            () = self.cortex.clock.sleep_until(postponed.again) => {}
        }
    }

    /// Tries a call again that was postponed.
    pub(super) async fn try_again(&mut self) -> Result<(), Stop> {
        let Some(postponed) = self.postponed.take() else { return Ok(()) };
        let mut effect = postponed.effect;
        // Who was stopped meanwhile wants it no more.
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
