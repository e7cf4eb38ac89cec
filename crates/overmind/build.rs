//! Links the program small: functions of equal code are one, and relocations are packed where the
//! C library can read them.
//!
//! Panic locations and vtables make some 80,000 relocations: 1.9 MB of the file, all of it read at
//! every start. Packed they take a tenth. The GNU C library understands them from 2.36 on, so a
//! program built where it is older is linked as ever.

use std::process::Command;

#[expect(clippy::disallowed_methods, reason = "cargo speaks to a build script by variables")]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = std::env::var("TARGET").unwrap_or_default();
    let said = |name: &str| std::env::var(name).unwrap_or_default();
    // The linker that comes with Rust on this target knows it; another one may not. Nothing here
    // compares functions by their addresses.
    let usual =
        said("RUSTC_LINKER").is_empty() && !said("CARGO_ENCODED_RUSTFLAGS").contains("link");
    if target == "x86_64-unknown-linux-gnu" && usual && said("PROFILE") == "release" {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
    let native = std::env::var("HOST").is_ok_and(|host| host == target);
    if native && target.ends_with("-linux-gnu") && glibc().is_some_and(|at| at >= (2, 36)) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of the C library here: `getconf` says `glibc 2.36`.
fn glibc() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    let (major, minor) = said.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
