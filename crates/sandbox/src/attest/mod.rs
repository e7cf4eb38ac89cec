//! Measuring a sandbox from inside: the questions, the probe that answers them, the verdict.
//!
//! A driver does four things, and this module has the pieces:
//!
//! 1. [`Traps::set`] lays out, on the host, what a good sandbox hides: a file beside other
//!    sessions' files, a variable, a listener on the loopback and one on an abstract socket;
//! 2. it runs the probe as it would run any command, with [`Traps::questions`] as standard
//!    input. The probe is the daemon's own program with [`ARGUMENT`]; where the image has not
//!    got what that needs, [`Program::find`] names the few files to show inside, and the argv
//!    that works in any image;
//! 3. [`Facts::parse`] reads what it wrote;
//! 4. [`judge()`] compares with what the level promises and makes the record;
//!    [`refuse_unless_kept`] turns a broken promise into the refusal.
//!
//! The probe reports and does not judge: which findings are acceptable is the host's to say. It
//! sends no packet to anyone (a route is looked up, not used) and leaves nothing behind.
//!
//! What it cannot find: holes that it does not look for. It proves the presence of each layer by
//! one effect, not the absence of all bugs in the kernel below.

mod door;
mod facts;
mod inquiry;
mod judge;
mod keeper;
mod probe;
mod program;
mod questions;
mod refusal;
mod words;

pub use facts::{Facts, MachineFacts, Refused};
pub use judge::{Subject, judge};
pub use keeper::{Keeper, now, this_kernel};
pub use program::{Program, ProgramFile};
pub use questions::{Questions, TRAP_VARIABLE, Traps};
pub use refusal::{NOT_ATTESTED, refuse_unless_kept, remedy};

pub(crate) use door::DoorTrap;
pub(crate) use inquiry::{Inquiry, failed};
pub(crate) use probe::become_probe;
pub(crate) use questions::homes;

/// The first argument that turns the program into the probe. It then reads questions from
/// standard input, writes [`Facts`] as JSON to standard output and ends.
pub const ARGUMENT: &str = "__sandbox-probe";

/// The longest answer that is read. Real ones have some kilobytes.
pub const MAX_ANSWER_BYTES: usize = 256 << 10;
