//! Long tests come in two sizes: a few rounds in every run of the tests, so that they take seconds,
//! and many in `cargo xtask soak`, which looks for what happens rarely.

/// `few`, or `many` when the environment variable `OVERMIND_TEST_SOAK` is set and not empty.
#[expect(clippy::disallowed_methods, reason = "the size of a test is chosen by the environment")]
pub fn count<T>(few: T, many: T) -> T {
    let soaking = std::env::var_os("OVERMIND_TEST_SOAK").is_some_and(|value| !value.is_empty());
    if soaking { many } else { few }
}
