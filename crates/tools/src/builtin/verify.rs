//! `verify`: checks on files that a program can decide, executed in order.

use std::io::Read;

use overmind_core::Fut;
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::answer::{Answer, Failure, brief, fields};
use crate::gateway::Tool;
use crate::schema::{parse, some_integer};
use crate::workspace::{Opened, PathError, Root, Workspace, blocking};

/// Bytes that one entropy check reads.
const MAX_ENTROPY_BYTES: u64 = 256 << 20;
const PNG_SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

#[derive(Debug)]
pub(crate) struct Verify;

#[derive(Debug, Deserialize)]
struct Args {
    checks: Vec<Check>,
}

#[derive(Clone, Debug, Deserialize)]
struct Check {
    #[serde(rename = "type")]
    kind: Kind,
    path: String,
    #[serde(default, deserialize_with = "some_integer")]
    min_bytes: Option<u64>,
    #[serde(default, deserialize_with = "some_integer")]
    min_width: Option<u64>,
    #[serde(default, deserialize_with = "some_integer")]
    min_height: Option<u64>,
    #[serde(default)]
    min_entropy: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    FileExists,
    FileMinBytes,
    PngSignature,
    PngDimensionsMin,
    FileEntropyMin,
}

impl Tool for Verify {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "verify".into(),
            description:
                "Check files of the workspace before you call a task done. The checks run \
                          in order and the first that does not hold ends the call with an error. \
                          file_exists; file_min_bytes (min_bytes); png_signature; \
                          png_dimensions_min (min_width, min_height); file_entropy_min \
                          (min_entropy, Shannon bits per byte, 0 to 8: tells a blank picture from \
                          a drawn one)."
                    .into(),
            schema: json!({
                "type": "object",
                "properties": {
                    "checks": {
                        "type": "array", "minItems": 1, "maxItems": 32,
                        "items": {
                            "type": "object",
                            "properties": {
                                "type": {
                                    "type": "string",
                                    "enum": [
                                        "file_exists", "file_min_bytes", "png_signature",
                                        "png_dimensions_min", "file_entropy_min",
                                    ],
                                },
                                "path": {
                                    "type": "string", "minLength": 1,
                                    "description": "File relative to the workspace.",
                                },
                                "min_bytes": {"type": "integer", "minimum": 0, "default": 1},
                                "min_width": {"type": "integer", "minimum": 1, "default": 1},
                                "min_height": {"type": "integer", "minimum": 1, "default": 1},
                                "min_entropy": {
                                    "type": "number", "minimum": 0, "maximum": 8, "default": 1.0,
                                },
                            },
                            "required": ["type", "path"],
                            "additionalProperties": false,
                        },
                    },
                    "on_fail_prompt": {
                        "type": ["string", "null"], "minLength": 1, "default": null,
                        "description": "What to ask the human when a check does not hold; without \
                                        it you are told and go on.",
                    },
                },
                "required": ["checks"],
                "additionalProperties": false,
            }),
            class: EffectClass::Pure,
            internal: true,
        }
    }

    fn call<'a>(&'a self, context: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(async move {
            let Args { checks } = parse(args)?;
            let root = Root::of(context);
            blocking(move || {
                let workspace = Workspace::open(&root)?;
                let mut done = Vec::new();
                for (index, check) in checks.iter().enumerate() {
                    done.push(run(&workspace, check).map_err(|why| failed(index, check, &why))?);
                }
                Ok(fields(json!({"checks": done})))
            })
            .await
        })
    }
}

fn failed(index: usize, check: &Check, why: &str) -> Failure {
    let name = json!(check.kind);
    let message = format!("{} {}: {why}", name.as_str().unwrap_or_default(), brief(&check.path));
    Failure::new("verification_failed", message)
        .with_details(json!({"check": index, "type": name, "path": brief(&check.path)}))
}

/// The measured value, or why the check fails. It also fails if a path escapes.
fn run(workspace: &Workspace, check: &Check) -> Result<Value, String> {
    let mut opened = workspace
        .relative(&check.path)
        .and_then(|path| workspace.open_file(&path))
        .map_err(|err| err.to_string())?;
    let (kind, path) = (json!(check.kind), opened.shown.clone());
    match check.kind {
        Kind::FileExists => Ok(json!({"type": kind, "path": path})),
        Kind::FileMinBytes => {
            let (bytes, wanted) = (opened.bytes, check.min_bytes.unwrap_or(1));
            if bytes < wanted {
                return Err(format!("{bytes} bytes, wanted at least {wanted}"));
            }
            Ok(json!({"type": kind, "path": path, "bytes": bytes}))
        }
        Kind::PngSignature => {
            head(&mut opened)?;
            Ok(json!({"type": kind, "path": path}))
        }
        Kind::PngDimensionsMin => {
            let (width, height) = dimensions(&head(&mut opened)?)?;
            let min = (check.min_width.unwrap_or(1), check.min_height.unwrap_or(1));
            if u64::from(width) < min.0 || u64::from(height) < min.1 {
                return Err(format!(
                    "{width} x {height} pixels, wanted at least {} x {}",
                    min.0, min.1
                ));
            }
            Ok(json!({"type": kind, "path": path, "width": width, "height": height}))
        }
        Kind::FileEntropyMin => {
            let (entropy, wanted) = (entropy(&opened)?, check.min_entropy.unwrap_or(1.0));
            if entropy < wanted {
                return Err(format!("{entropy:.3} bits per byte, wanted at least {wanted}"));
            }
            Ok(json!({"type": kind, "path": path, "entropy": entropy}))
        }
    }
}

/// Reads the first bytes of a PNG: signature, then the header's length, name, width and height.
fn head(opened: &mut Opened) -> Result<Vec<u8>, String> {
    let mut head = Vec::with_capacity(24);
    (&opened.file).take(24).read_to_end(&mut head).map_err(|err| reading(opened, err))?;
    if head.starts_with(&PNG_SIGNATURE) { Ok(head) } else { Err("not a PNG signature".into()) }
}

fn dimensions(head: &[u8]) -> Result<(u32, u32), String> {
    let at = |from: usize| -> Option<u32> {
        Some(u32::from_be_bytes(head.get(from..from + 4)?.try_into().ok()?))
    };
    if head.get(12..16) != Some(b"IHDR") {
        return Err("a PNG without a header chunk (IHDR)".into());
    }
    at(16).zip(at(20)).ok_or_else(|| "a PNG whose header chunk is cut off".to_owned())
}

/// The Shannon entropy of the bytes, in bits per byte; 0 for an empty file.
fn entropy(opened: &Opened) -> Result<f64, String> {
    if opened.bytes > MAX_ENTROPY_BYTES {
        return Err(format!(
            "{} bytes, more than the {MAX_ENTROPY_BYTES} read for it",
            opened.bytes
        ));
    }
    let mut counts = [0_u64; 256];
    let mut reader = (&opened.file).take(MAX_ENTROPY_BYTES);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = reader.read(&mut buffer).map_err(|err| reading(opened, err))?;
        if read == 0 {
            return Ok(bits_per_byte(&counts));
        }
        for byte in &buffer[..read] {
            counts[usize::from(*byte)] += 1;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn bits_per_byte(counts: &[u64; 256]) -> f64 {
    let total = counts.iter().sum::<u64>() as f64;
    counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| *count as f64 / total)
        .map(|p| -p * p.log2())
        // The sum starts at +0, because an empty sum would be -0.
        .fold(0.0, |sum, bits| sum + bits)
}

fn reading(opened: &Opened, source: std::io::Error) -> String {
    PathError::Io { attempt: "reading", path: opened.shown.clone(), source }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_is_zero_for_one_byte_value_and_eight_for_uniform_values() {
        let mut counts = [0; 256];
        assert_eq!(bits_per_byte(&counts), 0.0);
        counts[7] = 1000;
        assert_eq!(bits_per_byte(&counts), 0.0);
        counts[8] = 1000;
        assert_eq!(bits_per_byte(&counts), 1.0);
        assert_eq!(bits_per_byte(&[5; 256]), 8.0);
    }

    #[test]
    fn a_truncated_png_header_is_an_error() {
        let mut whole = PNG_SIGNATURE.to_vec();
        whole.extend(b"\0\0\0\x0dIHDR\0\0\x01\0\0\0\0\x40");
        assert_eq!(dimensions(&whole), Ok((256, 64)));
        for cut in 0..whole.len() {
            assert!(dimensions(&whole[..cut]).is_err(), "{cut} bytes");
        }
    }
}
