//! The path of the program that these tests run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Set, the path of the program to test, whatever its age.
const CHOSEN: &str = "OVERMIND_TEST_PROGRAM";
/// Explains why a program is outdated; nextest builds it with the same function.
const STALE: &str = include_str!("../../stale.sh");

/// The path of `overmind`: the one that a variable names, else the one that cargo puts above the
/// directory of this test's own program.
///
/// # Panics
///
/// Fails if the program does not exist, or one of its sources is newer.
pub(crate) fn program() -> &'static str {
    static FOUND: OnceLock<String> = OnceLock::new();
    FOUND.get_or_init(|| {
        #[expect(clippy::disallowed_methods, reason = "a test is told what to test by a variable")]
        if let Some(chosen) = std::env::var_os(CHOSEN) {
            return chosen.into_string().expect("the path of the program is text");
        }
        let program = beside(&std::env::current_exe().expect("this program has a path"));
        let why = stale(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")), &program);
        assert!(why.is_empty(), "{why}: run `cargo build`, or name another program by {CHOSEN}");
        program.into_os_string().into_string().expect("the path of the program is text")
    })
}

/// `TARGET/PROFILE/deps/it-HASH` has it at `TARGET/PROFILE/overmind`.
fn beside(test: &Path) -> PathBuf {
    let profile = test.parent().and_then(Path::parent).expect("a test lies in `deps`");
    profile.join("overmind")
}

/// Why the program is older than the sources of this workspace; empty if it is current.
fn stale(workspace: &Path, program: &Path) -> String {
    let mut shell = Command::new("sh");
    let said = shell.args(["-c", STALE, "stale.sh"]).arg(program).current_dir(workspace).output();
    let said = said.expect("there is a shell").stdout;
    String::from_utf8_lossy(&said).trim().to_owned()
}

#[test]
fn a_missing_or_outdated_program_is_reported() {
    let dir = tempfile::tempdir().expect("a directory is made");
    let at = |name: &str| dir.path().join(name);
    let program = beside(&at("target/debug/deps/it-0"));
    assert_eq!(program, at("target/debug/overmind"));
    let write = |name: &str, text: &str, seconds: u64| {
        std::fs::create_dir_all(at(name).parent().expect("a file")).expect("it is made");
        std::fs::write(at(name), text).expect("it is written");
        let file = std::fs::File::options().append(true).open(at(name)).expect("it is there");
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        file.set_modified(time).expect("its time is set");
    };
    let stale = || stale(dir.path(), &program);
    assert!(stale().contains("there is no program at"), "{}", stale());

    write("crates/overmind/src/main.rs", "", 1);
    write("target/debug/overmind", "", 2);
    let run = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, run).expect("it may run");
    let found = |line: &str| {
        let line = format!("/t/deps/{line}: crates/a/src/lib.rs crates/a/src/gone.rs\n\nmore:\n");
        write("target/debug/deps/overmind_a-0.d", &line, 1);
    };
    found("libovermind_a-0.rlib");
    write("crates/a/src/lib.rs", "", 2);
    assert_eq!(stale(), "");
    write("crates/a/src/lib.rs", "", 3);
    assert!(stale().ends_with("is older than its source crates/a/src/lib.rs"), "{}", stale());
    found("overmind_a-0");
    assert_eq!(stale(), "", "it is a test's");
    write("crates/overmind/src/main.rs", "", 3);
    assert!(stale().contains("main.rs"), "{}", stale());
}
