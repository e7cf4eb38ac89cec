//! Where the program is that these tests drive.

use std::fs::{metadata, read_to_string};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

/// Set, the path of the program to test, whatever its age.
const CHOSEN: &str = "OVERMIND_TEST_PROGRAM";

/// The path of `overmind`: the one that a variable names, else the one that cargo puts above the
/// directory of this test's own program.
///
/// # Panics
///
/// When there is none, or when one of its sources is newer.
pub(crate) fn program() -> &'static str {
    static FOUND: OnceLock<String> = OnceLock::new();
    FOUND.get_or_init(|| {
        #[expect(clippy::disallowed_methods, reason = "a test is told what to test by a variable")]
        if let Some(chosen) = std::env::var_os(CHOSEN) {
            return chosen.into_string().expect("the path of the program is text");
        }
        let program = beside(&std::env::current_exe().expect("this program has a path"));
        if let Some(why) = unfit(&program) {
            panic!("{why}: run `cargo build`, or name another program by {CHOSEN}");
        }
        program.into_os_string().into_string().expect("the path of the program is text")
    })
}

/// `TARGET/PROFILE/deps/it-HASH` has it at `TARGET/PROFILE/overmind`.
fn beside(test: &Path) -> PathBuf {
    let profile = test.parent().and_then(Path::parent).expect("a test lies in `deps`");
    profile.join("overmind")
}

/// Why the program is not what the sources say. Cargo writes beside it which sources it was made
/// from; those of other packages may be newer.
fn unfit(program: &Path) -> Option<String> {
    let Ok(built) = metadata(program).and_then(|about| about.modified()) else {
        return Some(format!("there is no program at {}", program.display()));
    };
    let sources = read_to_string(program.with_extension("d")).ok()?;
    let newer = newer(&sources, built)?;
    Some(format!("{} is older than its source {newer}", program.display()))
}

/// The first source in a rule as of a makefile, `program: source source`, that changed after `built`
/// or is gone.
fn newer(rule: &str, built: SystemTime) -> Option<String> {
    let (_, sources) = rule.lines().next()?.split_once(": ")?;
    // A space within a path stands behind a backslash.
    let sources = sources.replace("\\ ", "\0");
    sources.split(' ').map(|source| source.replace('\0', " ")).find(|source| {
        let changed = metadata(source).and_then(|about| about.modified());
        !changed.is_ok_and(|changed| changed <= built)
    })
}

#[test]
fn a_program_that_is_missing_or_older_than_its_sources_is_told() {
    let dir = tempfile::tempdir().expect("a directory is made");
    let at = |name: &str| dir.path().join(name);
    let program = beside(&at("deps/it-0"));
    assert_eq!(program, at("overmind"));
    assert!(unfit(&program).is_some_and(|why| why.contains("no program at")));

    let write = |name: &str, text: &str| std::fs::write(at(name), text).expect("it is written");
    let set = |name: &str, seconds: u64| {
        let file = std::fs::File::options().append(true).open(at(name)).expect("it is there");
        let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        file.set_modified(time).expect("its time is set");
    };
    write("overmind", "");
    assert_eq!(unfit(&program), None, "nothing is known of its sources");
    let [old, new] = ["old.rs", "new.rs"].map(at);
    write("overmind.d", &format!("x: {} {}\n", old.display(), new.display()));
    assert!(unfit(&program).is_some_and(|why| why.contains("old.rs")), "it is gone");
    for (name, seconds) in [("old.rs", 1), ("overmind", 2), ("new.rs", 2)] {
        write(name, "");
        set(name, seconds);
    }
    assert_eq!(unfit(&program), None);
    set("new.rs", 3);
    assert!(unfit(&program).is_some_and(|why| why.contains("new.rs")));
}
