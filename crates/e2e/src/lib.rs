//! Tests of the whole product, from outside: they start the program `overmind`, speak to it, and kill
//! it. They stand apart from it because they link nothing of it: when the product changes, only the
//! program is built again, and when a test changes, only the tests.
//!
//! There is no code here. Where to start: `tests/it/home.rs`, a data directory with a server, and
//! `tests/it/program.rs`, how the program is found.
