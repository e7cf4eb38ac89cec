//! What tests of every room share: a manual clock, seeded ids, and how a test learns where the
//! real counterparts run. Fakes live here only where no real one can run, and then they speak
//! the wire protocol over a socket.

pub mod clock;
pub mod ids;
pub mod ports;
pub mod processes;
pub mod real;
pub mod rooms;
pub mod soak;
pub mod store_conformance;
pub mod upstream;
