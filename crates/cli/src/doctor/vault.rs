//! The locations of the vault's master keys, and whether they are available.

use overmind_node::app;
use overmind_node::config::Config;
use overmind_vault::{Found, Kept};

use super::Finding;

pub(super) fn key(config: &Config) -> Finding {
    const CHECK: &str = "vault";
    let file = config.vault_key_file.display();
    let found = match app::vault::places(config).look() {
        Ok(found) => found,
        Err(why) => {
            let remedy = "docs/vault.md#at-rest says what each place needs; `overmind vault status` \
                          asks the server";
            return Finding::broken(CHECK, why, remedy);
        }
    };
    let on_top =
        |Found { passphrase, .. }| if passphrase { ", and a passphrase opens it" } else { "" };
    match (found, &config.vault_keyring) {
        (None, None) => Finding::fine(
            CHECK,
            format!(
                "no key yet; the first secret creates \
            {file}"
            ),
        ),
        (None, Some(entry)) => {
            let text = format!(
                "no key yet; the first secret creates the keyring's entry \
                `{entry}`"
            );
            Finding::fine(CHECK, text)
        }
        (Some(found @ Found { kept: Kept::Keyring, .. }), Some(entry)) => {
            let text = format!("the key is in the keyring's entry `{entry}`{}", on_top(found));
            Finding::fine(CHECK, text)
        }
        (Some(_), Some(entry)) => Finding::warning(
            CHECK,
            format!("the key is still in {file}, the keyring has no entry `{entry}`"),
            "`overmind vault rotate --master` creates a new one in the keyring; then remove the \
                file",
        ),
        (Some(found), None) => {
            Finding::fine(CHECK, format!("the key is in {file}{}", on_top(found)))
        }
    }
}
