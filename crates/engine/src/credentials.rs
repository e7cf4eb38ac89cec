//! Secrets of this server that agents may name for the environment of their commands.

use std::collections::BTreeMap;
use std::fmt;

/// Credentials by name. Never printed, stored or sent: a Hive looks them up when it starts a
/// command.
#[derive(Clone, Default)]
pub struct Credentials(BTreeMap<String, String>);

impl Credentials {
    pub fn new(all: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(all.into_iter().collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Credentials").field(&self.0.len()).finish()
    }
}
