//! The OpenAPI document: the served text, and its generator.
//!
//! The second is there only with the feature `openapi`, which the crate's own tests and the example
//! of the same name have: a program that is installed carries the text.

use std::io::Read;

#[cfg(feature = "openapi")]
mod bounds;
#[cfg(feature = "openapi")]
mod from_code;

#[cfg(feature = "openapi")]
pub use from_code::openapi_from_code;

/// The OpenAPI 3.1 document as indented JSON with a line break at its end: `docs/openapi.json`
/// as it was when this program was built.
pub fn openapi() -> String {
    let packed: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/openapi.json.gz"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed)
        .read_to_string(&mut text)
        .expect("the build packed a text");
    text
}
