//! Measures a sandbox from inside: the questions, the probe that answers them, the verdict.
//!
//! A driver does four things, and this module has the parts:
//!
//! 1. [`Traps::set`] creates things on the host that a good sandbox hides: a file beside other
//!    sessions' files, a variable, a listener on the loopback and one on an abstract socket.
//! 2. The driver runs the probe as it would run any command, with [`Traps::questions`] as standard
//!    input. The probe is the daemon's own program with [`ARGUMENT`]. If the image lacks files that
//!    it needs, [`Program::find`] names the few files to show inside, and the argv that works in
//!    any image.
//! 3. [`Facts::parse`] reads the probe's output.
//! 4. [`judge()`] compares it with the guarantees of the level and makes the record;
//!    [`refuse_unless_kept`] returns the refusal if a guarantee is broken.
//!
//! The probe reports and does not judge; the host decides which findings are acceptable. The probe
//! sends no packet (a route is looked up but not used) and leaves nothing behind.
//!
//! The probe cannot find holes that it does not look for. It proves that each layer is present by
//! one effect, not that the kernel below has no bugs.

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

/// The first argument that makes this program the probe. The probe reads questions from standard
/// input, writes [`Facts`] as JSON to standard output and ends.
pub const ARGUMENT: &str = "__sandbox-probe";

/// The longest accepted answer. Real ones have some kilobytes.
pub const MAX_ANSWER_BYTES: usize = 256 << 10;
