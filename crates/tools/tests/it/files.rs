//! Reading, writing, editing and listing, without attacks.

use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::{Value, json};

use crate::support::{Bench, error, is, names_in};

#[tokio::test]
async fn a_file_is_written_and_read_back_to_the_byte() {
    let bench = Bench::new();
    let content = "  leading, trailing \r\n\t é\u{0}\n\n";
    let args = json!({"path": "a/b/c.txt", "content": content});
    let wrote = bench.good("write_file", args).await;
    assert_eq!(wrote, json!({"ok": true, "path": "a/b/c.txt", "bytes": content.len()}));
    assert_eq!(bench.get("a/b/c.txt"), content);
    let read = bench.good("read_file", json!({"path": "./a//b/c.txt"})).await;
    assert_eq!(read, json!({"ok": true, "path": "a/b/c.txt", "content": content}));
    assert_eq!(names_in(&bench.path("a/b")), ["c.txt"], "no temporary file stays");
}

#[tokio::test]
async fn an_empty_file_is_a_file() {
    let bench = Bench::new();
    bench.good("write_file", json!({"path": "empty", "content": ""})).await;
    assert_eq!(bench.good("read_file", json!({"path": "empty"})).await["content"], json!(""));
}

#[tokio::test]
async fn content_at_the_limit_is_accepted_and_one_byte_more_is_not() {
    let bench = Bench::new();
    // 50,000 characters of two bytes: the limit counts bytes.
    let full = "é".repeat(50_000);
    bench.good("write_file", json!({"path": "full", "content": full})).await;
    assert_eq!(bench.good("read_file", json!({"path": "full"})).await["content"], json!(full));
    let more = format!("{full}x");
    let got = bench.bad("write_file", json!({"path": "more", "content": more})).await;
    assert_eq!(got, is("size_limit", "content exceeds max size"));
    assert!(!bench.path("more").exists());
    bench.put("more", &more);
    let got = bench.bad("read_file", json!({"path": "more"})).await;
    assert_eq!(got, is("size_limit", "file exceeds max size"));
}

#[tokio::test]
async fn missing_files_and_directories_are_not_found() {
    let bench = Bench::new();
    bench.put("dir/file", "x");
    for path in ["no", "no/file", "dir", ".", "dir/file/below", "/workspace/no"] {
        for tool in ["read_file", "edit_file"] {
            let mut args = json!({"path": path});
            if tool == "edit_file" {
                args["old"] = json!("a");
                args["new"] = json!("b");
            }
            assert_eq!(bench.bad(tool, args).await, is("not_found", "file not found"), "{path}");
        }
    }
}

#[tokio::test]
async fn text_that_is_not_utf_8_names_the_position() {
    let bench = Bench::new();
    bench.put("latin", b"caf\xe9 au lait");
    let wanted = "the file is not UTF-8 text: byte 0xe9 at position 3 is not valid";
    assert_eq!(bench.bad("read_file", json!({"path": "latin"})).await, is("tool_error", wanted));
    bench.put("later", b"one\ntwo\nca\xff\n");
    let wanted = "the file is not UTF-8 text: byte 0xff at position 10 is not valid";
    let args = json!({"path": "later", "start_line": 2});
    assert_eq!(bench.bad("read_file", args).await, is("tool_error", wanted));
    let fine = bench.good("read_file", json!({"path": "later", "end_line": 2})).await;
    assert_eq!(fine["content"], json!("one\ntwo\n"));
}

#[tokio::test]
async fn a_range_reads_part_of_a_large_file() {
    let bench = Bench::new();
    let all: String = (1..=200_000).map(|n| format!("line {n}\n")).collect();
    bench.put("big", &all);
    let args = json!({"path": "big", "start_line": 150_000, "end_line": 150_001});
    assert_eq!(
        bench.good("read_file", args).await,
        json!({
            "ok": true, "path": "big", "content": "line 150000\nline 150001\n",
            "start_line": 150_000, "end_line": 150_001, "more": true,
        })
    );
    let last = bench.good("read_file", json!({"path": "big", "start_line": 200_000})).await;
    assert_eq!((&last["content"], &last["more"]), (&json!("line 200000\n"), &json!(false)));
    let beyond = bench.good("read_file", json!({"path": "big", "start_line": 200_001})).await;
    assert_eq!(beyond["content"], json!(""));
    assert_eq!(beyond["end_line"], json!(200_000));
    let outcome = bench.call("read_file", json!({"path": "big", "start_line": 2})).await;
    assert_eq!(error(&outcome), is("size_limit", "the lines asked for exceed max size"));
}

#[tokio::test]
async fn the_last_line_needs_no_line_end() {
    let bench = Bench::new();
    bench.put("f", "one\ntwo");
    let got = bench.good("read_file", json!({"path": "f", "start_line": 2, "end_line": 9})).await;
    assert_eq!((&got["content"], &got["end_line"]), (&json!("two"), &json!(2)));
    let got = bench.good("read_file", json!({"path": "f", "end_line": 1})).await;
    assert_eq!((&got["content"], &got["more"]), (&json!("one\n"), &json!(true)));
}

#[tokio::test]
async fn overwriting_keeps_the_mode_and_a_symlink() {
    let bench = Bench::new();
    bench.put("bin/run.sh", "old");
    let mode = std::fs::Permissions::from_mode(0o750);
    std::fs::set_permissions(bench.path("bin/run.sh"), mode).unwrap();
    symlink("bin/run.sh", bench.path("run")).unwrap();
    let got = bench.good("write_file", json!({"path": "run", "content": "new"})).await;
    assert_eq!(got["path"], json!("bin/run.sh"));
    assert!(std::fs::symlink_metadata(bench.path("run")).unwrap().is_symlink());
    assert_eq!(bench.get("bin/run.sh"), "new");
    let mode = std::fs::metadata(bench.path("bin/run.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o750);
    assert_eq!(names_in(&bench.path("bin")), ["run.sh"]);
}

#[tokio::test]
async fn a_file_is_replaced_atomically() {
    let bench = Bench::new();
    bench.put("f", "old");
    let reader = std::fs::File::open(bench.path("f")).unwrap();
    bench.good("write_file", json!({"path": "f", "content": "new"})).await;
    // A process that had the old file open continues to read the old bytes.
    assert_eq!(std::io::read_to_string(reader).unwrap(), "old");
    assert_eq!(bench.get("f"), "new");
}

#[tokio::test]
async fn a_temporary_file_of_a_crash_is_removed_by_the_repeated_call() {
    let bench = Bench::new();
    let left = format!(".overmind-tmp-{}", crate::support::EFFECT);
    bench.put(&left, "half writ");
    bench.good("write_file", json!({"path": "f", "content": "whole"})).await;
    assert_eq!(names_in(&bench.context.workspace), ["f"]);
    assert_eq!(bench.get("f"), "whole");
}

#[tokio::test]
async fn a_failed_write_names_the_reason() {
    let bench = Bench::new();
    bench.put("dir/file", "x");
    symlink("nowhere", bench.path("dangling")).unwrap();
    for (path, wanted) in [
        ("dir", "dir is a directory"),
        ("dir/", "dir/ is a directory"),
        (".", ". is a directory"),
        ("dir/..", "dir/.. is a directory"),
        ("dir/file/x", "dir/file is not a directory"),
    ] {
        let got = bench.bad("write_file", json!({"path": path, "content": "y"})).await;
        assert_eq!(got, is("invalid_path", wanted), "{path}");
    }
    let got = bench.bad("write_file", json!({"path": "dangling", "content": "y"})).await;
    let wanted = "following the symlink dangling: No such file or directory (os error 2)";
    assert_eq!(got, is("tool_error", wanted));
    assert_eq!(bench.get("dir/file"), "x");
}

#[tokio::test]
async fn an_edit_replaces_exactly_one_occurrence() {
    let bench = Bench::new();
    bench.put("m.py", "def a():\n    return 1\n\ndef b():\n    return 2\n");
    let args = json!({"path": "m.py", "old": "    return 2\n", "new": "    return 3\n"});
    let got = bench.good("edit_file", args).await;
    assert_eq!(
        got,
        json!({"ok": true, "path": "m.py", "replacements": 1, "first_line": 5, "bytes": 45})
    );
    assert_eq!(bench.get("m.py"), "def a():\n    return 1\n\ndef b():\n    return 3\n");
    // White space alone may be a piece.
    bench.good("edit_file", json!({"path": "m.py", "old": "\n\n", "new": "\n"})).await;
    assert_eq!(bench.get("m.py"), "def a():\n    return 1\ndef b():\n    return 3\n");
}

#[tokio::test]
async fn an_edit_keeps_line_ends_the_byte_order_mark_and_other_text() {
    let bench = Bench::new();
    let before = "\u{feff}first\r\nsecond\nthird\r\n\r\nno end";
    bench.put("f", before);
    let args = json!({"path": "f", "old": "second\n", "new": "2nd\n"});
    bench.good("edit_file", args).await;
    assert_eq!(bench.get("f"), before.replace("second", "2nd"));
    let read = bench.good("read_file", json!({"path": "f"})).await;
    assert_eq!(read["content"], before.replace("second", "2nd"));
    // The mark is part of the first line, and an edit of that line keeps its position.
    bench.good("edit_file", json!({"path": "f", "old": "first", "new": "1st"})).await;
    assert!(bench.get("f").starts_with("\u{feff}1st\r\n"));
}

#[tokio::test]
async fn a_text_that_occurs_twice_is_refused_with_its_lines() {
    let bench = Bench::new();
    bench.put("f", "x = 1\ny = 2\nx = 1\n");
    let args = json!({"path": "f", "old": "x = 1", "new": "x = 9"});
    let wanted = "`old` occurs 2 times in f (lines 1, 3): take in more lines around the one you \
                  mean, or set replace_all";
    assert_eq!(bench.bad("edit_file", args).await, is("not_unique", wanted));
    assert_eq!(bench.get("f"), "x = 1\ny = 2\nx = 1\n");
    let args = json!({"path": "f", "old": "x = 1", "new": "x = 9", "replace_all": true});
    assert_eq!(bench.good("edit_file", args).await["replacements"], json!(2));
    assert_eq!(bench.get("f"), "x = 9\ny = 2\nx = 9\n");
}

#[tokio::test]
async fn a_missing_text_is_refused_with_the_likeliest_reason() {
    let bench = Bench::new();
    bench.put("f", "fn main() {\n\tprintln!();\n}\n");
    bench.put("dos", "one\r\ntwo\r\n");
    bench.put("empty", "");
    for (path, old, wanted) in [
        ("f", "absent", "`old` was not found in f: read the file again and copy the piece exactly"),
        (
            "f",
            "    println!();\n}",
            "`old` was not found in f: line 2 matches when white space at the ends of lines is \
             ignored; it reads \"\\tprintln!();\"",
        ),
        (
            "dos",
            "one\ntwo",
            "`old` was not found in dos: the file's lines end in \\r\\n; write them so in `old` and `new`",
        ),
        ("empty", "x", "`old` was not found in empty: the file is empty"),
    ] {
        let got = bench.bad("edit_file", json!({"path": path, "old": old, "new": "y"})).await;
        assert_eq!(got, is("no_match", wanted));
    }
}

#[tokio::test]
async fn an_edit_that_exceeds_the_size_limit_is_refused() {
    let bench = Bench::new();
    bench.put("f", "a".repeat(50_000));
    let args = json!({"path": "f", "old": "a", "new": "b".repeat(100), "replace_all": true});
    assert_eq!(bench.bad("edit_file", args).await, is("size_limit", "content exceeds max size"));
    assert_eq!(bench.get("f").len(), 50_000);
    bench.put("big", "a".repeat(1_000_001));
    let args = json!({"path": "big", "old": "b", "new": "c"});
    assert_eq!(bench.bad("edit_file", args).await, is("size_limit", "file exceeds max size"));
}

fn paths(listed: &Value) -> Vec<&str> {
    let entries = listed["entries"].as_array().unwrap();
    entries.iter().map(|entry| entry["path"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_directory_is_listed_sorted_with_kinds_and_sizes() {
    let bench = Bench::new();
    bench.put("b.txt", "four");
    bench.put("a/deep/x.rs", "");
    bench.put(".git/config", "");
    symlink("b.txt", bench.path("c")).unwrap();
    let listed = bench.good("list_files", json!({})).await;
    assert_eq!(
        listed,
        json!({"ok": true, "path": ".", "truncated": false, "entries": [
            {"path": ".git", "type": "dir"},
            {"path": "a", "type": "dir"},
            {"path": "b.txt", "type": "file", "bytes": 4},
            {"path": "c", "type": "symlink"},
        ]})
    );
    let listed = bench.good("list_files", json!({"depth": 20})).await;
    assert_eq!(paths(&listed), [".git", "a", "a/deep", "a/deep/x.rs", "b.txt", "c"]);
    let listed = bench.good("list_files", json!({"depth": 2, "include_git": true})).await;
    assert_eq!(paths(&listed), [".git", ".git/config", "a", "a/deep", "b.txt", "c"]);
    let listed = bench.good("list_files", json!({"path": "/workspace/a", "depth": 2})).await;
    assert_eq!(paths(&listed), ["a/deep", "a/deep/x.rs"]);
}

#[tokio::test]
async fn a_glob_selects_by_name_or_by_relative_path() {
    let bench = Bench::new();
    for path in ["src/a.rs", "src/b/c.rs", "src/b/c.txt", "d.rs"] {
        bench.put(path, "");
    }
    let list = async |path: &str, glob: &str| {
        let args = json!({"path": path, "glob": glob, "depth": 9});
        let listed = bench.good("list_files", args).await;
        paths(&listed).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(list(".", "*.rs").await, ["d.rs", "src/a.rs", "src/b/c.rs"]);
    assert_eq!(list(".", "src/*.rs").await, ["src/a.rs"]);
    assert_eq!(list(".", "src/**/*.rs").await, ["src/a.rs", "src/b/c.rs"]);
    assert_eq!(list("src", "b/*").await, ["src/b/c.rs", "src/b/c.txt"]);
}

#[tokio::test]
async fn a_truncated_list_says_so() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("many")).unwrap();
    for n in 0..1001 {
        std::fs::write(bench.path(&format!("many/{n:04}")), "").unwrap();
    }
    let listed = bench.good("list_files", json!({"path": "many"})).await;
    assert_eq!(listed["truncated"], json!(true));
    assert_eq!(paths(&listed).len(), 1000);
    assert_eq!(paths(&listed)[999], "many/0999");
    std::fs::remove_file(bench.path("many/0500")).unwrap();
    let listed = bench.good("list_files", json!({"path": "many"})).await;
    assert_eq!((paths(&listed).len(), &listed["truncated"]), (1000, &json!(false)));
}

#[tokio::test]
async fn listing_a_file_is_an_error() {
    let bench = Bench::new();
    bench.put("f", "");
    let got = bench.bad("list_files", json!({"path": "f"})).await;
    assert_eq!(got, is("invalid_path", "f is not a directory"));
    let got = bench.bad("list_files", json!({"path": "no"})).await;
    assert_eq!(got, is("not_found", "file not found"));
}
