//! The pure state machines, through the crate's public face.
//!
//! Start at [`world`]: it plays everything outside a session, is the one place that calls
//! [`overmind_core::session::Session::step`], and checks after every single step what must hold
//! always. The other modules are tables of cases, and [`properties`] plays random schedules.

mod approvals;
mod budget;
mod cancel;
mod conversations;
mod fork;
mod letters;
mod limits;
mod lives;
mod lives_answers;
mod lives_rest;
mod lives_rooms;
mod model_turns;
mod properties;
mod recovery;
mod replay;
mod retries;
mod rules;
mod telemetry;
mod world;

/// `few`, or `many` for `cargo xtask soak`: testkit's `soak::count`, for core's tests do without testkit.
#[expect(clippy::disallowed_methods, reason = "the size of a test is chosen by the environment")]
fn count(few: u64, many: u64) -> u64 {
    let soaking = std::env::var_os("OVERMIND_TEST_SOAK").is_some_and(|value| !value.is_empty());
    if soaking { many } else { few }
}
