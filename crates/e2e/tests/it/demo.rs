//! The demo must work on every machine that runs the tests.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use crate::home::Home;

#[test]
fn the_demo_completes_after_the_kill() {
    let home = Home::new();
    let start = Instant::now();
    let place = home.path().join("tmp");
    std::fs::create_dir(&place).unwrap();
    let done = home.run_env(&[("TMPDIR", place.to_str().unwrap())], &["demo", "--fast"]).ok();
    for text in [
        "2 of 6 failed",
        "sandbox namespace",
        "✓ read_file lib/slug.sh",
        "kill -9 ",
        "goes on after a restart (start 2)",
        "does run_shell again",
        "✓ edit_file lib/slug.sh",
        "+         tr -cs 'a-z0-9' '-' |",
        "answers: The test was right",
        "all 6 passed",
        "The test passes; we ran it ourselves",
        "each one the same",
        "no byte changed",
    ] {
        done.shows(text);
    }
    assert!(start.elapsed() < Duration::from_secs(60));
    assert_eq!(std::fs::read_dir(place).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let home = Home::new();
    let place = home.path().join("tmp");
    std::fs::create_dir(&place).unwrap();
    let mut demo = home
        .command(&["demo", "--scripted"])
        .env("TMPDIR", &place)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = std::io::BufReader::new(demo.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("overmind up: pid") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut told, &mut line).unwrap() > 0, "it ended early");
    }
    let server = line.split("pid ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let pid = rustix::process::Pid::from_child(&demo);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let done = crate::home::done(demo.wait_with_output().unwrap());
    assert_eq!(done.code, 130, "{done:?}");
    done.says("its server and its directory are gone");
    assert_eq!(std::fs::read_dir(place).unwrap().count(), 0, "nothing is left behind");
    assert!(!std::path::Path::new(&format!("/proc/{server}")).exists(), "nor its server");
}

#[test]
fn the_demo_runs_without_the_kill_and_without_a_sandbox() {
    let home = Home::new();
    let done = home.run(&["demo", "--fast", "--no-crash", "--sandbox", "none"]).ok();
    assert!(!done.out.contains("kill -9"));
    done.shows("sandbox none: commands run as you, without isolation");
}

#[test]
fn the_results_of_the_demo_can_be_inspected() {
    let home = Home::new();
    let done = home.run(&["demo", "--fast", "--no-crash", "--keep"]).ok();
    let data = done.out.lines().find_map(|line| line.split("--data ").nth(1)?.split(' ').next());
    let data = data.expect("it says where").to_owned();
    let place = std::path::Path::new(&data).parent().unwrap().to_owned();
    home.run(&["--data", &data, "logs"]).ok().shows("answers: The test was right");
    home.run(&["--data", &data, "down"]).ok();
    assert!(place.file_name().unwrap().to_string_lossy().starts_with("overmind-demo-"));
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn a_missing_model_server_is_reported_before_the_demo_starts() {
    let home = Home::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}/v1");
    let done = home.run(&["demo", "--fast", "--base-url", &url, "--model", "nobody"]).fails(1);
    done.says(&format!("nobody answers at {url}"));
    assert_eq!(done.out, "");
    home.run(&["demo", "--base-url", &url]).fails(2).says("--model");
}

#[test]
fn a_refusing_model_ends_the_demo_with_the_reason() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            if stream.read(&mut head).unwrap_or(0) == 0 {
                continue; // the look whether someone is there
            }
            let body = r#"{"error":{"message":"wrong key","code":"invalid_api_key"}}"#;
            let answer = format!(
                "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let home = Home::new();
    let args = ["demo", "--fast", "--base-url", &url, "--model", "nobody"];
    let done = home.run(&args).fails(1);
    done.says("the run is failed").says("wrong key").says("hint: `overmind demo --keep`");
}
