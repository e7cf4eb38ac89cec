//! The vault on disk: files, wrong keys, swapped and damaged rows, rotation.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use overmind_core::vault::{Protection, SealError, Sealed, Sealer as _, Secret, SecretName};
use overmind_vault::{Argon2, Options, Vault};
use proptest::prelude::*;

/// Quick, and as weak as it is.
const CHEAP: Argon2 = Argon2 { memory_kib: 64, passes: 1, lanes: 1 };

fn options(dir: &Path, passphrase: Option<&str>) -> Options {
    let passphrase = passphrase.map(secret);
    Options { passphrase, argon2: CHEAP, ..Options::new(dir.join("vault.key")) }
}

fn vault(dir: &Path, passphrase: Option<&str>, needed: &[&Sealed]) -> Result<Vault, SealError> {
    let vault = Vault::new(options(dir, passphrase));
    let needed: Vec<String> = needed.iter().map(|sealed| sealed.master.clone()).collect();
    vault.unlock(&needed, None)?;
    Ok(vault)
}

fn secret(text: &str) -> Secret {
    Secret::new(text).unwrap()
}

fn name(text: &str) -> SecretName {
    text.parse().unwrap()
}

fn key_file(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("vault.key")).unwrap()
}

#[test]
fn a_secret_survives_a_restart_and_is_never_stored_in_plain_text() {
    for passphrase in [None, Some("correct horse")] {
        let dir = tempfile::tempdir().unwrap();
        let first = vault(dir.path(), passphrase, &[]).unwrap();
        assert!(!dir.path().join("vault.key").exists(), "made at first use");
        assert_eq!(first.protection(), None);
        let sealed = first.seal(&name("a"), 1, &secret("the-plain-text")).unwrap();
        let mode = dir.path().join("vault.key").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let all = [sealed.wrapped.as_slice(), &sealed.body].concat();
        assert!(!all.windows(9).any(|part| part == b"the-plain"));
        let again = vault(dir.path(), passphrase, &[&sealed]).unwrap();
        assert_eq!(again.open(&name("a"), 1, &sealed).unwrap().expose(), "the-plain-text");
        let kept = if passphrase.is_some() { Protection::Passphrase } else { Protection::File };
        assert_eq!(again.protection(), Some(kept));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no drafts are left");
        assert!(!format!("{again:?} {sealed:?}").contains("plain-text"));
    }
}

#[test]
fn swapped_and_changed_rows_cannot_be_decrypted() {
    let dir = tempfile::tempdir().unwrap();
    let vault = vault(dir.path(), None, &[]).unwrap();
    let one = vault.seal(&name("one"), 1, &secret("secret-of-one")).unwrap();
    let two = vault.seal(&name("two"), 1, &secret("secret-of-two")).unwrap();
    let newer = vault.seal(&name("one"), 2, &secret("newer-secret")).unwrap();
    let damaged = |name_is: &str, version, sealed: &Sealed| {
        let opened = vault.open(&name(name_is), version, sealed);
        assert!(
            matches!(opened, Err(SealError::Damaged { .. })),
            "{name_is} {version}: {opened:?}"
        );
    };
    // Another's row, an older version's row, and mixtures of two rows.
    damaged("one", 1, &two);
    damaged("two", 1, &one);
    damaged("one", 2, &one);
    damaged("one", 1, &newer);
    damaged("one", 1, &Sealed { body: two.body.clone(), ..one.clone() });
    damaged("one", 1, &Sealed { wrapped: two.wrapped.clone(), ..one.clone() });
    damaged("one", 1, &Sealed { body: newer.body.clone(), ..one.clone() });
    for at in 0..one.body.len() {
        let mut body = one.body.clone();
        body[at] ^= 1;
        damaged("one", 1, &Sealed { body, ..one.clone() });
    }
    for at in 0..one.wrapped.len() {
        let mut wrapped = one.wrapped.clone();
        wrapped[at] ^= 0x80;
        damaged("one", 1, &Sealed { wrapped, ..one.clone() });
    }
    for cut in [0, 1, 11, 12, 27, one.body.len() - 1] {
        damaged("one", 1, &Sealed { body: one.body[..cut].to_vec(), ..one.clone() });
        damaged("one", 1, &Sealed { wrapped: one.wrapped[..cut].to_vec(), ..one.clone() });
    }
    assert_eq!(vault.open(&name("one"), 1, &one).unwrap().expose(), "secret-of-one");
}

#[test]
fn a_missing_key_file_is_reported_and_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let sealed = vault(dir.path(), None, &[]).unwrap().seal(&name("a"), 1, &secret("text-text"));
    let sealed = sealed.unwrap();
    std::fs::rename(dir.path().join("vault.key"), dir.path().join("elsewhere")).unwrap();
    let lost = Vault::new(options(dir.path(), None));
    let err = lost.unlock(std::slice::from_ref(&sealed.master), None).unwrap_err().to_string();
    assert!(err.contains("vault.key is missing") && err.contains("bring it back"), "{err}");
    assert!(lost.seal(&name("b"), 1, &secret("text-text")).unwrap_err().to_string() == err);
    assert!(lost.open(&name("a"), 1, &sealed).unwrap_err().to_string() == err);
    assert!(!dir.path().join("vault.key").exists());
    // Back again, without a restart.
    std::fs::rename(dir.path().join("elsewhere"), dir.path().join("vault.key")).unwrap();
    lost.unlock(std::slice::from_ref(&sealed.master), None).unwrap();
    assert_eq!(lost.open(&name("a"), 1, &sealed).unwrap().expose(), "text-text");
}

#[test]
fn a_key_file_of_another_database_has_its_own_error() {
    let (mine, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let sealed = vault(mine.path(), None, &[]).unwrap().seal(&name("a"), 1, &secret("text-text"));
    let sealed = sealed.unwrap();
    vault(other.path(), None, &[]).unwrap().seal(&name("x"), 1, &secret("text-text")).unwrap();
    let vault = vault(other.path(), None, &[&sealed]).unwrap();
    let err = vault.open(&name("a"), 1, &sealed).unwrap_err();
    assert!(
        matches!(&err, SealError::Locked { reason } if reason.contains(&sealed.master)),
        "{err}"
    );
}

#[test]
fn a_key_file_that_others_can_read_is_refused_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vault.key");
    vault(dir.path(), None, &[]).unwrap().seal(&name("a"), 1, &secret("text-text")).unwrap();
    for mode in [0o640, 0o604, 0o660, 0o601] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let err = vault(dir.path(), None, &[]).unwrap_err().to_string();
        assert!(err.contains(&format!("mode {mode:04o}")) && err.contains("chmod 600"), "{err}");
    }
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o400)).unwrap();
    vault(dir.path(), None, &[]).unwrap();
}

#[test]
fn a_key_file_of_another_user_is_refused() {
    // Only root can give a file away.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    vault(dir.path(), None, &[]).unwrap().seal(&name("a"), 1, &secret("text-text")).unwrap();
    std::os::unix::fs::chown(dir.path().join("vault.key"), Some(12_345), None).unwrap();
    let err = vault(dir.path(), None, &[]).unwrap_err().to_string();
    assert!(err.contains("belongs to user 12345"), "{err}");
}

#[test]
fn a_wrong_passphrase_is_reported_and_the_right_one_unlocks_later() {
    let dir = tempfile::tempdir().unwrap();
    let right = "correct horse";
    let sealed = vault(dir.path(), Some(right), &[]).unwrap();
    let sealed = sealed.seal(&name("a"), 1, &secret("text-text")).unwrap();
    assert!(!key_file(dir.path()).contains(right));
    let needed = [sealed.master.clone()];
    let none = Vault::new(options(dir.path(), None));
    let err = none.unlock(&needed, None).unwrap_err().to_string();
    assert!(err.contains("needs its passphrase") && err.contains("vault unlock"), "{err}");
    let err = none.unlock(&needed, Some(&secret("wrong horse"))).unwrap_err();
    assert!(matches!(err, SealError::WrongPassphrase { .. }), "{err}");
    let err = err.to_string();
    assert!(err.contains("passphrase is wrong") && !err.contains("horse"), "{err}");
    assert!(none.open(&name("a"), 1, &sealed).is_err());
    none.unlock(&needed, Some(&secret(right))).unwrap();
    assert_eq!(none.open(&name("a"), 1, &sealed).unwrap().expose(), "text-text");
    // A later wrong one does not lock an open vault.
    assert!(none.unlock(&needed, Some(&secret("wrong horse"))).is_err());
    assert!(none.open(&name("a"), 1, &sealed).is_ok());
}

#[test]
fn every_changed_byte_of_the_key_file_is_detected() {
    for passphrase in [None, Some("correct horse")] {
        let dir = tempfile::tempdir().unwrap();
        let made = vault(dir.path(), passphrase, &[]).unwrap();
        let sealed = made.seal(&name("a"), 1, &secret("text-text")).unwrap();
        let whole = std::fs::read(dir.path().join("vault.key")).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(dir.path().join("vault.key"), &changed).unwrap();
            // Except for a changed layout, nothing can be decrypted, and no content is revealed.
            if changed[at].is_ascii_whitespace() || whole[at].is_ascii_whitespace() {
                continue;
            }
            let opened = vault(dir.path(), passphrase, &[&sealed])
                .and_then(|vault| vault.open(&name("a"), 1, &sealed));
            let err = opened.expect_err(&format!("byte {at} does not matter")).to_string();
            let secret = String::from_utf8_lossy(&whole);
            let secret = secret.split("\"key\": \"").nth(1).unwrap();
            assert!(!err.contains(&secret[..20]), "{err}");
        }
    }
}

#[test]
fn an_interrupted_rotation_of_the_master_key_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let vault_now = vault(dir.path(), None, &[]).unwrap();
    let old = vault_now.seal(&name("a"), 1, &secret("text-text")).unwrap();
    vault_now.master_new(None).unwrap();
    // Interrupted here: values sealed before can be opened, and new ones use the new key.
    let after = vault(dir.path(), None, &[&old]).unwrap();
    assert_eq!(after.open(&name("a"), 1, &old).unwrap().expose(), "text-text");
    let new = after.rewrap(&name("a"), 1, &old).unwrap();
    assert_ne!(new.master, old.master);
    assert_ne!(new.wrapped, old.wrapped);
    assert_eq!(after.seal(&name("b"), 1, &secret("text-text")).unwrap().master, new.master);
    after.master_forget_old().unwrap();
    let last = vault(dir.path(), None, &[&new]).unwrap();
    assert_eq!(last.open(&name("a"), 1, &new).unwrap().expose(), "text-text");
    assert!(matches!(last.open(&name("a"), 1, &old), Err(SealError::Locked { .. })));
    assert!(!key_file(dir.path()).contains(&old.master));
    // Bound to its place under the new key, too.
    assert!(last.rewrap(&name("b"), 1, &new).is_err());
}

#[test]
fn a_passphrase_is_set_and_changed_by_a_rotation() {
    let dir = tempfile::tempdir().unwrap();
    let plain = vault(dir.path(), None, &[]).unwrap();
    let sealed = plain.seal(&name("a"), 1, &secret("text-text")).unwrap();
    plain.master_new(Some(&secret("first phrase"))).unwrap();
    assert_eq!(plain.protection(), Some(Protection::Passphrase));
    assert!(vault(dir.path(), None, &[&sealed]).is_err());
    let opened = vault(dir.path(), Some("first phrase"), &[&sealed]).unwrap();
    opened.master_new(Some(&secret("second phrase"))).unwrap();
    assert!(vault(dir.path(), Some("first phrase"), &[&sealed]).is_err());
    let opened = vault(dir.path(), Some("second phrase"), &[&sealed]).unwrap();
    assert_eq!(opened.open(&name("a"), 1, &sealed).unwrap().expose(), "text-text");
    // One that keeps its passphrase keeps it.
    opened.master_new(None).unwrap();
    assert!(vault(dir.path(), Some("second phrase"), &[&sealed]).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_sealed_secret_opens_only_with_its_own_name_and_version(
        texts in prop::collection::vec("[!-~][ -~\n\u{e4}\u{2603}]{6,80}[!-~]", 1..6),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let vault = vault(dir.path(), None, &[]).unwrap();
        let sealed: Vec<(SecretName, u32, Sealed)> = texts
            .iter()
            .zip(1..)
            .map(|(text, n)| {
                let name = name(&format!("n{}", n % 2));
                (name.clone(), n, vault.seal(&name, n, &secret(text)).unwrap())
            })
            .collect();
        for (at, (name, version, _)) in sealed.iter().enumerate() {
            for (other, (_, _, row)) in sealed.iter().enumerate() {
                let opened = vault.open(name, *version, row);
                match at == other {
                    true => prop_assert!(opened.unwrap().expose() == texts[at]),
                    false => prop_assert!(opened.is_err()),
                }
            }
        }
    }
}

/// A stand-in for `secret-tool` that keeps its entry in a file beside it.
fn keyring(dir: &Path, script: &str) -> Options {
    let program = dir.join("secret-tool");
    std::fs::write(&program, format!("#!/bin/sh\nat=\"$(dirname \"$0\")/entry\"\n{script}\n"))
        .unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let keyring = overmind_vault::Keyring { program, entry: "x".into() };
    Options { keyring: Some(keyring), ..options(dir, None) }
}

const KEEPS: &str = "case \"$1\" in lookup) cat \"$at\" 2>/dev/null;; store) cat > \"$at\";; esac";

#[test]
fn a_keyring_key_is_stored_only_in_the_keyring_and_rotated() {
    let dir = tempfile::tempdir().unwrap();
    let options = keyring(dir.path(), KEEPS);
    let open = |needed: &[&Sealed]| {
        let vault = Vault::new(options.clone());
        let needed: Vec<String> = needed.iter().map(|sealed| sealed.master.clone()).collect();
        vault.unlock(&needed, None).map(|()| vault)
    };
    assert_eq!(options.look(), Ok(None));
    let first = open(&[]).unwrap();
    let sealed = first.seal(&name("a"), 1, &secret("the-plain-text")).unwrap();
    assert!(!dir.path().join("vault.key").exists());
    let again = open(&[&sealed]).unwrap();
    assert_eq!(again.protection(), Some(Protection::Keyring));
    again.master_new(None).unwrap();
    let newer = again.rewrap(&name("a"), 1, &sealed).unwrap();
    again.master_forget_old().unwrap();
    let last = open(&[&newer]).unwrap();
    assert_eq!(last.open(&name("a"), 1, &newer).unwrap().expose(), "the-plain-text");
    // Missing: reported, and none is created in its place.
    std::fs::remove_file(dir.path().join("entry")).unwrap();
    let err = open(&[&newer]).unwrap_err().to_string();
    assert!(err.contains("the keyring's entry `x` is missing"), "{err}");
    assert!(!dir.path().join("entry").exists());
}

#[test]
fn an_unusable_keyring_is_reported_with_the_reason() {
    for (script, says) in [
        ("echo 'secret-tool: Cannot autolaunch D-Bus' >&2; exit 1", "Cannot autolaunch D-Bus"),
        ("echo 'secret-tool: Cannot get secret of a locked object' >&2; exit 1", "is locked"),
        ("case \"$1\" in search) echo '[/1]';; *) exit 1;; esac", "is locked"),
        ("case \"$1\" in lookup) echo nonsense;; esac", "is damaged"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::new(keyring(dir.path(), script));
        let err = vault.unlock(&[], None).unwrap_err().to_string();
        assert!(err.contains(says) && err.contains("entry `x`"), "{err}");
        assert!(vault.seal(&name("a"), 1, &secret("text-text")).is_err(), "nothing is made");
    }
    let dir = tempfile::tempdir().unwrap();
    // A store that does not return what it was given cannot hold a key.
    let forgetful = Vault::new(keyring(dir.path(), "cat > /dev/null; exit 1"));
    forgetful.unlock(&[], None).unwrap();
    let err = forgetful.seal(&name("a"), 1, &secret("text-text")).unwrap_err().to_string();
    assert!(err.contains("making the vault's key"), "{err}");
    let mut absent = keyring(dir.path(), KEEPS);
    absent.keyring.as_mut().unwrap().program = dir.path().join("no-such-program");
    let err = absent.look().unwrap_err();
    assert!(err.contains("libsecret-tools"), "{err}");
}
