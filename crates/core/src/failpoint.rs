//! Named places where a test may make the process die.
//!
//! Not the `fail` crate: its points exist only behind a cargo feature, so the binary that is
//! crash-tested would not be the binary that is shipped. Here a point costs one relaxed load.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static ARMED: AtomicBool = AtomicBool::new(false);
static HANDLER: OnceLock<Box<dyn Fn(&'static str) + Send + Sync>> = OnceLock::new();

/// Arms all points with `handler`, which is called with the point's name and may end the
/// process. Only the binary calls this, once, when its hidden setting says so.
pub fn arm(handler: Box<dyn Fn(&'static str) + Send + Sync>) {
    if HANDLER.set(handler).is_ok() {
        ARMED.store(true, Ordering::Release);
    }
}

/// A place where the process may be made to die.
#[inline]
pub fn point(name: &'static str) {
    if ARMED.load(Ordering::Relaxed)
        && let Some(handler) = HANDLER.get()
    {
        handler(name);
    }
}
