//! Where real counterparts run. `cargo xtask test` starts them and says so in the environment.

/// The address of a real counterpart, or `None` when the test should end early.
///
/// `name` is the part after `OVERMIND_TEST_`, for example `DOCKER` (a socket's path) or `LLAMA`
/// (a base URL). In strict mode (`OVERMIND_TEST_STRICT=1`, what CI uses) a missing counterpart
/// is a failure and never a skip.
///
/// # Panics
///
/// In strict mode, when the counterpart is missing.
#[expect(clippy::disallowed_methods, reason = "tests learn of counterparts by the environment")]
pub fn counterpart(name: &str) -> Option<String> {
    if let Ok(address) = std::env::var(format!("OVERMIND_TEST_{name}")) {
        return Some(address);
    }
    let strict = std::env::var("OVERMIND_TEST_STRICT").is_ok_and(|v| v == "1");
    assert!(!strict, "this test needs {name}: `cargo xtask test` starts it");
    eprintln!("skipped: needs {name}, which `cargo xtask test` starts");
    None
}
