//! `verify`: the five checks.

use serde_json::{Value, json};

use crate::support::{Bench, error, is};

fn png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
    bytes.extend(width.to_be_bytes());
    bytes.extend(height.to_be_bytes());
    bytes.extend([8, 6, 0, 0, 0]);
    bytes
}

fn one(check: Value) -> Value {
    json!({"checks": [check]})
}

#[tokio::test]
async fn passed_checks_report_their_measurement() {
    let bench = Bench::new();
    bench.put("a.png", png(640, 480));
    bench.put("half", [0, 1].repeat(500));
    let result = bench
        .good(
            "verify",
            json!({"checks": [
                {"type": "file_exists", "path": "a.png"},
                {"type": "file_min_bytes", "path": "half", "min_bytes": 1000.0},
                {"type": "png_signature", "path": "/workspace/a.png"},
                {"type": "png_dimensions_min", "path": "a.png", "min_width": 640, "min_height": 480},
                {"type": "file_entropy_min", "path": "half"},
            ]}),
        )
        .await;
    assert_eq!(
        result,
        json!({"ok": true, "checks": [
            {"type": "file_exists", "path": "a.png"},
            {"type": "file_min_bytes", "path": "half", "bytes": 1000},
            {"type": "png_signature", "path": "a.png"},
            {"type": "png_dimensions_min", "path": "a.png", "width": 640, "height": 480},
            {"type": "file_entropy_min", "path": "half", "entropy": 1.0},
        ]})
    );
}

#[tokio::test]
async fn each_check_fails_with_its_reason() {
    let bench = Bench::new();
    bench.put("a.png", png(640, 480));
    bench.put("cut.png", &png(1, 1)[..20]);
    bench.put("empty", "");
    bench.put("flat", "aaaa");
    std::fs::create_dir(bench.path("dir")).unwrap();
    for (check, wanted) in [
        (json!({"type": "file_exists", "path": "no"}), "file_exists no: file not found"),
        (json!({"type": "file_exists", "path": "dir"}), "file_exists dir: file not found"),
        (
            json!({"type": "file_exists", "path": "../ws/a.png"}),
            "file_exists ../ws/a.png: Path escapes workspace",
        ),
        (
            json!({"type": "file_min_bytes", "path": "empty"}),
            "file_min_bytes empty: 0 bytes, wanted at least 1",
        ),
        (
            json!({"type": "png_signature", "path": "flat"}),
            "png_signature flat: not a PNG signature",
        ),
        (
            json!({"type": "png_dimensions_min", "path": "a.png", "min_width": 641}),
            "png_dimensions_min a.png: 640 x 480 pixels, wanted at least 641 x 1",
        ),
        (
            json!({"type": "png_dimensions_min", "path": "cut.png"}),
            "png_dimensions_min cut.png: a PNG whose header chunk is cut off",
        ),
        (
            json!({"type": "file_entropy_min", "path": "flat"}),
            "file_entropy_min flat: 0.000 bits per byte, wanted at least 1",
        ),
        (
            json!({"type": "file_entropy_min", "path": "empty", "min_entropy": 0.5}),
            "file_entropy_min empty: 0.000 bits per byte, wanted at least 0.5",
        ),
    ] {
        assert_eq!(bench.bad("verify", one(check)).await, is("verification_failed", wanted));
    }
}

#[tokio::test]
async fn the_first_failure_ends_the_checks() {
    let bench = Bench::new();
    bench.put("a", "x");
    let outcome = bench
        .call(
            "verify",
            json!({"on_fail_prompt": "Is it there?", "checks": [
                {"type": "file_exists", "path": "a"},
                {"type": "file_exists", "path": "b"},
                {"type": "file_exists", "path": "c"},
            ]}),
        )
        .await;
    assert_eq!(error(&outcome), is("verification_failed", "file_exists b: file not found"));
    let details = &outcome.result["error"]["details"];
    assert_eq!(*details, json!({"check": 1, "type": "file_exists", "path": "b"}));
}
