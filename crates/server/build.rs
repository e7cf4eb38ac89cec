//! Packs the OpenAPI document, so that the program contains the text and not its generator.
//!
//! Making it from the code takes half a megabyte of code of its own; packed, the text takes a
//! twentieth of that. `cargo xtask openapi` makes it, and a test compares it with the code.

use std::io::Write;
use std::path::Path;

#[expect(clippy::disallowed_methods, reason = "cargo speaks to a build script by variables")]
fn main() {
    let document = "../../docs/openapi.json";
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={document}");
    let text = std::fs::read(document).expect("docs/openapi.json is part of the sources");
    let out = std::env::var_os("OUT_DIR").expect("cargo names a directory for what is built");
    let packed = std::fs::File::create(Path::new(&out).join("openapi.json.gz"))
        .expect("the directory for what is built can be written");
    let mut packed = flate2::write::GzEncoder::new(packed, flate2::Compression::best());
    packed.write_all(&text).and_then(|()| packed.finish().map(drop)).expect("writing a file");
}
