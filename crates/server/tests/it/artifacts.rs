//! Artifacts over HTTP: raw bytes in and out, and headers for browsers.

use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn content_is_uploaded_and_downloaded_as_a_non_executable_file() {
    let world = World::new().await;
    let run = world.ended_run().await;
    let path = format!("/api/runs/{run}/artifacts/out/page%20%C3%BC.html");
    let mut put = world.request("PUT", &path).json("<script>alert(1)</script>");
    put = put.header("Content-Type", "text/html; charset=utf-8");
    let saved = put.send().await.fine();
    assert_eq!((&saved["name"], &saved["version"]), (&json!("out/page ü.html"), &json!(1)));
    assert_eq!((&saved["size"], &saved["author"]), (&json!(25), &json!("admin")));
    assert_eq!((&saved["run_id"], &saved["text"]), (&json!(run), &json!(true)));
    assert_eq!(saved["shared"], json!(null));
    assert!(
        saved["not_shared"].as_str().is_some_and(|why| why.contains("cannot write")),
        "{saved}"
    );

    let got = world.get(&path).await;
    assert_eq!((got.status, got.body.as_str()), (200, "<script>alert(1)</script>"));
    let tag = format!("\"{}\"", saved["blake3"].as_str().expect("a hash"));
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        ("content-length", "25"),
        ("etag", tag.as_str()),
        ("content-disposition", "attachment; filename*=UTF-8''page%20%C3%BC.html"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; sandbox"),
        ("cross-origin-resource-policy", "same-origin"),
        ("accept-ranges", "bytes"),
    ] {
        assert_eq!(got.header(name), Some(value), "{name}");
    }
    let part = world.request("GET", &path).header("Range", "bytes=1-6").send().await;
    assert_eq!((part.status, part.body.as_str()), (206, "script"));
    assert_eq!(part.header("content-range"), Some("bytes 1-6/25"));
    let nowhere = world.request("GET", &path).header("Range", "bytes=25-").send().await;
    assert_eq!((nowhere.status, nowhere.header("content-range")), (416, Some("bytes */25")));
    let known = world.request("GET", &path).header("If-None-Match", &tag).send().await;
    assert_eq!((known.status, known.body.as_str()), (304, ""));
    let other = world.request("GET", &path).header("Range", "bytes=1-6");
    let whole = other.header("If-Range", "\"another\"").send().await;
    assert_eq!((whole.status, whole.body.len()), (200, 25));
    let head = world.request("HEAD", &path).send().await;
    assert_eq!((head.status, head.header("content-length")), (200, Some("25")));
    assert_eq!(head.body, "");

    assert_eq!(world.request("DELETE", &path).send().await.fine(), json!({"ok": true}));
    let gone = world.get(&path).await.problem(404);
    assert_eq!(gone, "Artifact not found: out/page ü.html");
}

#[tokio::test]
async fn large_contents_stream_and_larger_ones_are_refused() {
    let world = World::new().await;
    let run = world.ended_run().await;
    let path = format!("/api/runs/{run}/artifacts/large.txt");
    let content = "0123456789abcde\n".repeat(1 << 20);
    assert_eq!(content.len(), 16 << 20);
    let saved = world.request("PUT", &path).json(&content).send().await.fine();
    assert_eq!(saved["size"], 16 << 20);
    let got = world.get(&path).await;
    assert_eq!((got.status, got.body == content), (200, true));
    let end = world.request("GET", &path).header("Range", "bytes=-16").send().await;
    assert_eq!((end.status, end.body.as_str()), (206, "0123456789abcde\n"));
    let more = format!("{content}x");
    let larger = world.request("PUT", &path).json(&more).send().await.problem(413);
    assert_eq!(larger, "the content is larger than 16777216 bytes, the most of one artifact");
}

#[tokio::test]
async fn lists_have_pages_and_names_and_roles_are_checked() {
    let world = World::new().await;
    let run = world.ended_run().await;
    let base = format!("/api/runs/{run}/artifacts");
    for name in ["a", "b", "c"] {
        let put = world.request("PUT", &format!("{base}/{name}")).json("{}");
        // The default type of curl is ignored.
        let put = put.header("Content-Type", "application/x-www-form-urlencoded");
        assert_eq!(put.send().await.fine()["media_type"], "text/plain; charset=utf-8");
    }
    let page = world.get(&format!("{base}?limit=2")).await;
    let names = |page: &serde_json::Value| {
        let rows = page.as_array().expect("a list").iter();
        rows.map(|row| row["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&page.fine()), ["c", "b"]);
    let link = page.header("link").expect("a next page").to_owned();
    let next = link.strip_prefix('<').and_then(|link| link.split_once('>')).expect("a link").0;
    assert_eq!(names(&world.get(next).await.fine()), ["a"]);
    assert_eq!(names(&world.get(&format!("/api/sessions/{run}/artifacts")).await.fine()).len(), 3);

    for (name, says) in [
        ("..%2Fup", "has a segment `.` or `..`"),
        ("a%2F%2Fb", "has an empty segment"),
        ("a%00b", "has the character '\\0'"),
        ("%E2%80%AEgpj.exe", "which cannot be seen"),
    ] {
        for method in ["GET", "PUT", "DELETE"] {
            let request = world.request(method, &format!("{base}/{name}")).json("x");
            let error = request.send().await.problem(422);
            assert!(error.contains(says), "{method} {name}: {error}");
        }
    }
    let case = world.request("PUT", &format!("{base}/A")).json("x").send().await.problem(409);
    assert!(case.contains("only in case"), "{case}");
    let nobody = "ses_01900000000070008000000000000000";
    let path = format!("/api/runs/{nobody}/artifacts");
    assert_eq!(world.get(&path).await.problem(404), "Run not found");
    let put = world.request("PUT", &format!("{path}/a")).json("x").send().await;
    assert_eq!(put.problem(404), "Run not found");

    let key = world.post("/api/keys", r#"{"name":"v","role":"viewer"}"#).await.fine();
    let key = key["secret"].as_str().expect("it shows its secret").to_owned();
    for method in ["PUT", "DELETE"] {
        let request = world.request(method, &format!("{base}/a")).json("x").token(&key);
        request.send().await.problem(403);
    }
    let seen = world.request("GET", &format!("{base}/a")).token(&key).send().await;
    assert_eq!((seen.status, seen.body.as_str()), (200, "{}"));
}
