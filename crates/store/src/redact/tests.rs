use overmind_testkit::soak;
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// A key-like tail, put together here so that no scanner takes this file for a leak.
const TAIL: &str = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6";

fn masked(text: &str) -> String {
    let mut text = text.to_owned();
    Redactor::default().text(&mut text);
    text
}

#[test]
fn a_growing_text_is_settled_up_to_the_line_that_may_begin_a_secret() {
    let redactor = Redactor::new(&["first line\nsecond line\nthird".to_owned()]);
    let begin = format!("-----BEGIN {}-----", "RSA PRIVATE KEY");
    let end = format!("-----END {}-----", "RSA PRIVATE KEY");
    for (text, settled) in [
        (String::new(), 0),
        ("no end".into(), 0),
        ("a\nb".into(), 2),
        ("50%\r60%".into(), 4),
        (format!("a\nkey: {begin}\nMIIE\n"), 2),
        (format!("a\n{begin}\nMIIE\n{end}\nb\n"), 2 + begin.len() + 6 + end.len() + 3),
        ("x\nthe first line\n".into(), 2),
        ("x\nfirst line\nsecond line\n".into(), 2),
        ("x\nfirst line\nother\n".into(), 19),
        ("x\nfirst line\nsecond line\nthird\n".into(), 31),
    ] {
        assert_eq!(redactor.settled(&text), settled, "{text:?}");
    }
}

#[test]
fn each_known_secret_format_is_masked_in_place() {
    let upper = TAIL.to_uppercase();
    for (secret, kind) in [
        (format!("sk-{TAIL}"), "openai-key"),
        (format!("sk-proj-{TAIL}"), "openai-key"),
        (format!("sk-ant-api03-{TAIL}"), "anthropic-key"),
        (format!("ghp_{TAIL}"), "github-token"),
        (format!("github_pat_{TAIL}_{TAIL}"), "github-token"),
        (format!("AKIA{}", &upper[..16]), "aws-key-id"),
        (format!("xoxb-{TAIL}"), "slack-token"),
        (format!("AIza{TAIL}abc"), "google-key"),
        (format!("glpat-{TAIL}"), "gitlab-token"),
        (format!("hf_{TAIL}"), "huggingface-token"),
        (format!("sk_live_{TAIL}"), "stripe-key"),
        (format!("eyJ{TAIL}.eyJ{TAIL}.{TAIL}"), "jwt"),
        (format!("ovk_{TAIL}"), "api-key"),
        (format!("ova_{TAIL}"), "admin-token"),
        (format!("ovs_{TAIL}"), "session-token"),
        (format!("ovs_{}.12.{TAIL}", "0a".repeat(16)), "session-token"),
        (format!("sk-ovm-{TAIL}-1-tracker-{TAIL}"), "placeholder"),
        (format!("sk-ant-ovm-{TAIL}-1-anthropic-{TAIL}"), "placeholder"),
        (format!("npm_{TAIL}abcd"), "npm-token"),
        (format!("pypi-{TAIL}{TAIL}"), "pypi-token"),
        (format!("SG.{}.{TAIL}{TAIL}", &TAIL[..22]), "sendgrid-key"),
        (format!("ya29.{TAIL}"), "google-token"),
        (format!("GOCSPX-{TAIL}"), "google-secret"),
        (format!("dop_v1_{}", "0a1b2c3d".repeat(8)), "digitalocean-token"),
        (format!("glsa_{TAIL}_ab12cd34"), "grafana-token"),
        (format!("shpat_{}", "0a1b2c3d".repeat(4)), "shopify-token"),
        (format!("AGE-SECRET-KEY-1{upper}{upper}"), "age-key"),
        (format!("hooks.slack.com/services/T0123ABCD/B0123ABCD/{TAIL}"), "slack-webhook"),
        (format!("ovm-canary-{}", "0a1b2c3d".repeat(4)), "canary"),
    ] {
        assert_eq!(
            masked(&format!("export KEY='{secret}' # mine")),
            format!("export KEY='[redacted:{kind}]' # mine")
        );
        assert_eq!(masked(&secret), format!("[redacted:{kind}]"));
    }
}

#[test]
fn the_token_after_bearer_is_masked_and_the_word_kept() {
    let header = format!("authorization: Bearer {TAIL}\r\naccept: */*");
    assert_eq!(masked(&header), "authorization: Bearer [redacted:bearer]\r\naccept: */*");
}

#[test]
fn masking_keeps_the_name_before_a_secret() {
    let aws = format!("{TAIL}/+abcd12");
    let azure = "0aB/".repeat(21);
    for (before, secret, after, kind) in [
        ("postgres://app:", "hunter2!", "@db.test:5432/x", "url-password"),
        ("see https://:", "token-x", "@h.test/", "url-password"),
        ("aws_secret_access_key = ", aws.as_str(), "\n", "aws-secret-key"),
        ("AWS_SECRET_ACCESS_KEY='", aws.as_str(), "'", "aws-secret-key"),
        (r#"{\"SecretAccessKey\": \""#, aws.as_str(), r#"\"}"#, "aws-secret-key"),
        ("EndpointSuffix=x;AccountKey=", azure.as_str(), ";", "azure-key"),
        ("authorization: Basic ", "dXNlcjpwYXNzd29yZA==", "\r\n", "basic-auth"),
        ("bot123456789:", &format!("AA{TAIL}_"), "/getMe", "telegram-token"),
    ] {
        let wanted = format!("{before}[redacted:{kind}]{after}");
        assert_eq!(masked(&format!("{before}{secret}{after}")), wanted);
    }
}

#[test]
fn a_similar_kind_does_not_hide_another_kind() {
    let key = format!("AKIA{}", &TAIL.to_uppercase()[..16]);
    for (text, wanted) in [
        (format!("basic {key}"), "basic [redacted:aws-key-id]"),
        (
            format!("https://ghp_{TAIL}:x@h.test"),
            "https://[redacted:github-token]:[redacted:url-password]@h.test",
        ),
        (format!("https://ghp_{TAIL}:$X@h.test"), "https://[redacted:github-token]:$X@h.test"),
    ] {
        assert_eq!(masked(&text), wanted, "{text}");
    }
}

#[test]
fn hashes_ids_images_and_addresses_are_not_masked() {
    let picture = format!("data:image/png;base64,{}", "iVBORw0KGgoAAAANSUhEUgAAAAUA".repeat(40));
    let digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    for text in [
        "commit 37d98a2f1c0b5e6d7a8b9c0d1e2f3a4b5c6d7e8f",
        "018f4e2a-7c1b-7d3e-9f00-1234567890ab",
        "ses_018f4e2a7c1b7d3e9f001234567890ab eff_018f4e2a7c1b7d3e9f001234567890ab",
        digest,
        &format!("docker://alpine:3.20@sha256:{digest}"),
        &format!("\"integrity\": \"sha512-{}==\"", "Ab3/".repeat(21)),
        &picture,
        "http://localhost:3000/@scope/pkg and http://127.0.0.1:8080?mail=a@b.test",
        "https://registry.test:443/@types/node",
        "git+ssh://git@host.test:org/repo.git",
        "postgres://app:$PASSWORD@db/x postgres://app:<password>@db/x",
        "Basic understanding of authentication",
        "basic configuration: x",
        "12:AA is a time, 5:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA is none",
        "npm_config_registry npm_lifecycle_event pypi-publish SG.x ya29 AccountKey=",
        "aws_secret_access_key = your-key-goes-here",
        "fn parse(text: &str) -> Result<std::ops::Range<usize>, Error>",
    ] {
        assert_eq!(masked(text), text);
    }
}

#[test]
fn a_learned_secret_is_masked_in_every_usual_encoding() {
    let secret = "pa55/word+with=marks";
    let redactor = Redactor::new(&[secret.into()]);
    for text in [
        // hex, HEX, base64 alone and inside something longer, percent-encoded.
        "706135352f776f72642b776974683d6d61726b73",
        "706135352F776F72642B776974683D6D61726B73",
        "pa55%2Fword%2Bwith%3Dmarks",
        "pa55%2fword%2bwith%3dmarks",
        "cGE1NS93b3JkK3dpdGg9bWFya3M=",
    ] {
        let mut text = format!("x={text}&y");
        assert!(redactor.text(&mut text), "{text}");
        assert!(text.contains("[redacted:secret]"), "{text}");
    }
    for before in ["", "u", "us", "use", "user:"] {
        let whole = overmind_core::encoded::forms(&format!("{before}{secret}#tail"));
        for mut text in whole {
            let shown = text.clone();
            assert!(redactor.text(&mut text), "{shown}");
        }
    }
}

#[test]
fn a_truncated_secret_is_masked_from_half_its_length() {
    let redactor = Redactor::new(&["one-long-secret-value".into()]);
    for (text, wanted) in [
        ("KEY=one-long-secret", "KEY=[redacted:secret]"),
        ("secret-value\nnext", "[redacted:secret]\nnext"),
        ("KEY=one-long", "KEY=one-long"),
        ("value\nnext", "value\nnext"),
        ("KEY=one-long-secret no cut", "KEY=one-long-secret no cut"),
    ] {
        let mut text = text.to_owned();
        redactor.text(&mut text);
        assert_eq!(text, wanted);
        assert!(!redactor.text(&mut text), "once is enough");
    }
}

#[test]
fn private_keys_are_masked_whole_even_when_cut_off() {
    let (begin, end) = ("-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----");
    let block = format!("{begin}\nProc-Type: 4,ENCRYPTED\n\n{TAIL}\n{TAIL}==\n{end}");
    assert_eq!(masked(&format!("key: {block}\nthen ls")), "key: [redacted:private-key]\nthen ls");
    assert_eq!(masked(&format!("{begin}\n{TAIL}\n{TAIL}")), "[redacted:private-key]");
    let escaped = block.replace('\n', "\\n");
    assert_eq!(masked(&format!("\"{escaped}\"")), "\"[redacted:private-key]\"");
    let public = block.replace("PRIVATE", "PUBLIC");
    assert_eq!(masked(&public), public);
}

#[test]
fn ordinary_words_are_not_masked() {
    for text in [
        "risk-management-framework-2024-edition",
        "class='sk-folding-cube-container'",
        "the bearer responsibilities of a node",
        "ovs_vswitchd_interface_name",
        "ghp_short",
        "AKIA is a prefix",
        "task-0123456789012345678901234",
    ] {
        assert_eq!(masked(text), text);
    }
}

#[test]
fn learned_secrets_are_masked_in_values_and_not_in_object_keys() {
    let redactor = Redactor::new(&["hunter2-hunter2".into()]);
    assert!(!redactor.learn("short"), "too short to mask");
    assert!(!redactor.learn("redacted:s"), "part of a mask");
    assert!(redactor.learn("two\nlines \"quoted\""));
    let mut value = json!({
        "hunter2-hunter2": ["a hunter2-hunter2 b", 7, null],
        "raw": "{\"x\":\"two\\nlines \\\"quoted\\\"\"}",
        "plain": "two\nlines \"quoted\"",
    });
    redactor.value(&mut value);
    assert_eq!(
        value,
        json!({
            "hunter2-hunter2": ["a [redacted:secret] b", 7, null],
            "raw": "{\"x\":\"[redacted:secret]\"}",
            "plain": "[redacted:secret]",
        })
    );
    assert!(!format!("{redactor:?}").contains("hunter2"));
}

#[test]
fn a_long_ordinary_text_is_searched_in_linear_time() {
    // A quadratic pattern would need hours for these.
    for unit in [
        "-----BEGIN PRIVATE KEY----- ",
        "sk-",
        "eyJaaaaaaaaaa.",
        "Bearer ",
        "ghp_a ",
        "://a:b",
        "://",
        ":AA",
        "basic ",
        "AccountKey=",
        "SecretAccessKey=",
    ] {
        let text = unit.repeat((1 << 17) / unit.len());
        let _ = masked(&text);
    }
}

fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("sk-".to_owned()),
        Just("sk-ant-".to_owned()),
        Just("ghp_".to_owned()),
        Just("AKIA".to_owned()),
        Just("Bearer ".to_owned()),
        Just("eyJ".to_owned()),
        Just(".".to_owned()),
        Just("[redacted:".to_owned()),
        Just("]".to_owned()),
        Just("-----BEGIN PRIVATE KEY-----".to_owned()),
        Just("-----END PRIVATE KEY-----".to_owned()),
        Just("hunter2-hunter2".to_owned()),
        Just("hunter2-hu".to_owned()),
        Just("://".to_owned()),
        Just(":AA".to_owned()),
        Just(":".to_owned()),
        Just("@".to_owned()),
        Just("Basic dXNlcjpwYXNz".to_owned()),
        Just("AWS_SECRET_ACCESS_KEY=".to_owned()),
        Just("] 12345678".to_owned()),
        "[A-Z0-9]{1,24}",
        "[a-z0-9]{1,24}",
        "\\PC{0,6}",
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak::count(100, 5000)))]

    #[test]
    fn masking_is_idempotent(text in pieces()) {
        let redactor = Redactor::new(&["hunter2-hunter2".into(), "] 12345678".into()]);
        let mut once = text.clone();
        redactor.text(&mut once);
        let mut twice = once.clone();
        prop_assert!(!redactor.text(&mut twice), "{text:?} gave {once:?}, then {twice:?}");
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn a_partial_secret_at_the_end_is_masked(
        secret in "[ab]{9,20}", text in "[ab]{0,12}", cut in 0_usize..20, ends in any::<bool>(),
    ) {
        let (least, cut) = (secret.len().div_ceil(2).max(MIN_SECRET_BYTES), cut.min(secret.len()));
        let text = if ends { text + &secret[..cut] } else { secret[cut..].to_owned() + &text };
        let stands = (least..secret.len()).any(|n| {
            text.ends_with(&secret[..n]) || text.starts_with(&secret[secret.len() - n..])
        });
        prop_assert!(!stands || may_be_cut(secret.as_bytes(), text.as_bytes(), least));
    }

    #[test]
    fn keys_are_masked_in_any_context(before in "\\PC{0,30}", after in "\\PC{0,30}") {
        let secret = format!("sk-ant-{TAIL}");
        let out = masked(&format!("{before} {secret} {after}"));
        prop_assert!(!out.contains(TAIL), "{out}");
    }
}
