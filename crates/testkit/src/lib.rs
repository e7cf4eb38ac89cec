//! Shared parts of all tests: a manual clock, seeded ids, and the addresses of real counterparts.
//! Fakes exist only where no real counterpart can run, and then they use the wire protocol over a
//! socket.

pub mod clock;
pub mod ids;
pub mod ports;
pub mod processes;
pub mod real;
pub mod rooms;
pub mod soak;
pub mod store_conformance;
pub mod upstream;
