//! What a driver weighs. There is one for each session that moves, and that of a command moves for
//! days: what is awaited once or seldom is boxed, and what few sessions have as well.

use super::*;

fn size<A, B, C, D, E, F>(_: impl FnOnce(A, B, C, D, E) -> F) -> usize {
    size_of::<F>()
}

#[test]
fn a_driver_that_waits_holds_little() {
    let driving = size(drive);
    assert!(driving <= 800, "{driving} bytes");
}

#[test]
fn a_session_is_held_where_it_is_and_not_in_each_step_on_the_way() {
    let held = size_of::<Driver>();
    assert!(held <= 160, "{held} bytes");
}
