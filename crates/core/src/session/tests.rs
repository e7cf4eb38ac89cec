//! Tests of the session machine.
