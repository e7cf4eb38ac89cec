//! The `none` driver.

use std::sync::Arc;

use overmind_sandbox::{Options, Unconfined};

use crate::conformance::suite;
use crate::support::{NONE, Subject, init_program};

async fn subject() -> Option<Subject> {
    let options = Options { init_program: init_program(), ..Options::default() };
    let sandbox = Arc::new(Unconfined::new(options));
    Some(Subject { sandbox, gives: NONE, inside: None, _keep: None, close: None })
}

suite!(subject);
