//! A Redis of the session's own, and indexes of a shared one.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use overmind_testkit::real::counterpart;
use overmind_workspace::lease::TreeEnd;

use crate::support::Bench;

fn ask(url: &str, command: &str) -> String {
    let rest = url.strip_prefix("redis://:").unwrap();
    let (password, rest) = rest.split_once('@').unwrap();
    let (address, index) = rest.split_once('/').unwrap();
    let mut stream = BufReader::new(TcpStream::connect(address).unwrap());
    let mut line = String::new();
    for command in [&format!("AUTH {password}"), &format!("SELECT {index}"), command] {
        line.clear();
        write!(stream.get_mut(), "{command}\r\n").unwrap();
        stream.read_line(&mut line).unwrap();
    }
    line.trim().to_owned()
}

#[tokio::test]
async fn needs_redis_a_session_gets_its_own_server_or_an_index_of_a_shared_one() {
    let Some(_) = counterpart("REDIS") else { return };
    let bench = Bench::new();
    let workspace = bench.workspace();
    let own = "services: {cache: {strategy: database, engine: redis}}\nenv: {R: '${cache.url}'}\n";
    let lease = workspace.build(bench.request("host", own), &bench.told).await.unwrap();
    let shared = lease.env["R"].clone();
    assert_eq!(ask(&shared, "SET a 1"), "+OK");
    // Index 1 belongs to a foreign program.
    let taken = shared.replace("/0", "/1");
    assert_eq!(ask(&taken, "SET theirs 1"), "+OK");

    let text = format!(
        "services: {{cache: {{strategy: database, engine: redis, server: '{shared}'}}}}\nenv: {{R: '${{cache.url}}'}}\n"
    );
    let mut urls = Vec::new();
    for session in ["s1", "s2"] {
        let lease = workspace.build(bench.request(session, &text), &bench.told).await.unwrap();
        let url = lease.env["R"].clone();
        assert_eq!(ask(&url, "DBSIZE"), ":0");
        assert_eq!(ask(&url, &format!("SET {session} 1")), "+OK");
        assert_eq!(ask(&url, "DBSIZE"), ":1");
        urls.push(url);
    }
    assert!(urls[0].ends_with("/2") && urls[1].ends_with("/3"), "{urls:?}");
    workspace.teardown("s1", TreeEnd::Park, &bench.told).await.unwrap();
    assert_eq!((ask(&urls[0], "DBSIZE"), ask(&urls[1], "DBSIZE")), (":0".into(), ":1".into()));
    workspace.teardown("s2", TreeEnd::Park, &bench.told).await.unwrap();
    assert_eq!(ask(&taken, "DBSIZE"), ":1", "theirs is untouched");
    workspace.teardown("host", TreeEnd::Park, &bench.told).await.unwrap();
    bench.assert_nothing_left(&workspace).await;
}
