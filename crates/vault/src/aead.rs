//! AES-256-GCM for short texts, in the form `nonce ‖ ciphertext ‖ tag`.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroizing;

/// A key that is wiped when it is dropped.
pub(crate) type Key = Zeroizing<[u8; 32]>;

/// The error if the system provides no randomness.
#[derive(Debug)]
pub(crate) struct NoRandomness;

pub(crate) fn random<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

pub(crate) fn new_key() -> Result<Key, NoRandomness> {
    random().map(Zeroizing::new)
}

fn cipher(key: &Key) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, key.as_ref()).expect("it has 32 bytes");
    LessSafeKey::new(key)
}

/// Encrypts a text, bound to `about`. Nonces are random: a data key encrypts once and a master key
/// a few thousand times, far below the number at which 96 random bits are likely to repeat.
pub(crate) fn seal(key: &Key, about: &[u8], plain: &[u8]) -> Result<Vec<u8>, NoRandomness> {
    let nonce: [u8; NONCE_LEN] = random()?;
    // The buffer has room for the tag: if it grew, a copy of the plain text would be left in
    // memory.
    let mut body = Vec::with_capacity(plain.len() + AES_256_GCM.tag_len());
    body.extend_from_slice(plain);
    cipher(key)
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(about), &mut body)
        .expect("texts of a vault are far shorter than the cipher's bound");
    Ok([nonce.as_slice(), &body].concat())
}

/// Decrypts; `None` if the key is wrong or anything was changed.
pub(crate) fn open(key: &Key, about: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (nonce, body) = sealed.split_at_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let mut body = Zeroizing::new(body.to_vec());
    let plain = cipher(key).open_in_place(nonce, Aad::from(about), &mut body).ok()?.len();
    body.truncate(plain);
    Some(body)
}

/// The context to which a ciphertext is bound. Lengths are included, so `("a", "bc")` and `("ab",
/// "c")` differ.
pub(crate) fn about(domain: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut all = Vec::new();
    for part in [domain.as_bytes()].iter().chain(parts) {
        all.extend_from_slice(&(part.len() as u64).to_be_bytes());
        all.extend_from_slice(part);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_ciphertexts_cannot_be_decrypted() {
        let (key, other) = (new_key().unwrap(), new_key().unwrap());
        let about_one = about("d", &[b"name", &1_u32.to_be_bytes()]);
        let sealed = seal(&key, &about_one, b"plain text").unwrap();
        assert_eq!(open(&key, &about_one, &sealed).unwrap().as_slice(), b"plain text");
        assert!(open(&other, &about_one, &sealed).is_none());
        for elsewhere in [
            about("d", &[b"name", &2_u32.to_be_bytes()]),
            about("e", &[b"name", &1_u32.to_be_bytes()]),
            about("d", &[b"nam", b"e", &1_u32.to_be_bytes()]),
        ] {
            assert!(open(&key, &elsewhere, &sealed).is_none());
        }
        for at in 0..sealed.len() {
            for bit in 0..8 {
                let mut changed = sealed.clone();
                changed[at] ^= 1 << bit;
                assert!(open(&key, &about_one, &changed).is_none(), "byte {at}, bit {bit}");
            }
            assert!(open(&key, &about_one, &sealed[..at]).is_none());
        }
        assert_ne!(sealed, seal(&key, &about_one, b"plain text").unwrap(), "nonces differ");
    }
}
