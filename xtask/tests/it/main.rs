//! The checks of the whole workspace: the map, the lints, the profiles, the scripts.
#![allow(clippy::disallowed_methods, reason = "a test reads where cargo put things")]

mod fixture;
mod layout;
mod licences;
mod links;
mod lints;
mod profiles;
mod security;
