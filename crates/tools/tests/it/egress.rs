//! The hosts that `http_request` reaches and does not reach, against a real server on loopback.

use std::net::IpAddr;

use overmind_core::tool::Labels;
use serde_json::{Value, json};

use crate::site::{LOOPBACK, Names, Site, Way};
use crate::support::{Bench, error, is};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[tokio::test]
async fn hosts_without_a_rule_are_unreachable() {
    let bench = Bench::new();
    let refused = bench.bad("http_request", json!({"url": "https://example.com/x"})).await;
    let wanted = "https://example.com is not allowed: tools.allow_hosts is empty, so nothing \
                  outside can be reached; nothing was sent";
    assert_eq!(refused, is("egress_denied", wanted));
    let refused = bench.bad("web_fetch", json!({"url": "https://example.com/x"})).await;
    assert_eq!(refused, is("egress_denied", wanted));
}

#[tokio::test]
async fn a_rule_is_for_one_scheme_port_and_set_of_methods_and_a_missing_rule_is_named() {
    let site = Site::start();
    let (bench, names) = site.bench(&["GET|POST api.test", "*.below.test"], Names::none());
    for (method, url, why) in [
        ("GET", "https://other.test/", "no rule of tools.allow_hosts names this host"),
        ("GET", "https://below.test/", "no rule of tools.allow_hosts names this host"),
        ("GET", "https://api.test.evil.net/", "no rule of tools.allow_hosts names this host"),
        (
            "GET",
            "http://api.test/",
            "tools.allow_hosts allows this host only as https://api.test:443",
        ),
        (
            "GET",
            "https://api.test:8443/",
            "tools.allow_hosts allows this host only as https://api.test:443",
        ),
        ("DELETE", "https://api.test/", "tools.allow_hosts allows only GET, POST there"),
        ("POST", "https://a.below.test/", "tools.allow_hosts allows only GET, HEAD there"),
        ("GET", "https://127.0.0.1/", "no rule of tools.allow_hosts names this host"),
    ] {
        let origin = url.trim_end_matches('/');
        let refused = bench.bad("http_request", json!({"url": url, "method": method})).await;
        let wanted = format!("{origin} is not allowed: {why}; nothing was sent");
        assert_eq!(refused, is("egress_denied", &wanted), "{method} {url}");
    }
    assert!(names.asked().is_empty(), "a name that is not allowed is not even looked up");
}

#[tokio::test]
async fn an_http_result_has_status_headers_body_and_labels() {
    let site = Site::start();
    site.route("/a?b=1", Way::with("content-type: text/plain\r\nx-one: 1\r\nx-one: 2\r\n", "hi"));
    let (bench, _) = site.bench(&[], Names::none());
    let args = json!({
        "url": site.url("/a?b=1#part"), "method": "POST", "body": "{\"q\":1}",
        "headers": {"Content-Type": "application/json", "X-Api-Key": "k"},
    });
    let outcome = bench.call("http_request", args).await;
    assert_eq!(outcome.labels(), Labels { untrusted: true, private: false });
    let result = outcome.result;
    assert_eq!(result["ok"], true, "{result}");
    assert_eq!(result["status"], 200);
    assert_eq!(result["body"], "hi");
    assert_eq!(result["body_bytes"], 2);
    assert_eq!(result["truncated"], false);
    assert_eq!(result["headers"]["x-one"], "1, 2");
    assert_eq!(result["source"], site.url("/a"), "the query is no part of the source");
    let seen = site.seen().remove(0);
    assert!(seen.starts_with("POST /a?b=1 HTTP/1.1\r\n"), "{seen}");
    for part in [
        &format!("host: site.test:{}\r\n", site.port()),
        "content-type: application/json\r\n",
        "x-api-key: k\r\n",
        "user-agent: overmind/",
        "accept-encoding: gzip, deflate\r\n",
        "\r\n\r\n{\"q\":1}",
    ] {
        assert!(seen.contains(part), "{part:?} in {seen}");
    }
}

#[tokio::test]
async fn a_status_of_400_or_more_is_a_result_without_an_error() {
    let site = Site::start();
    let (bench, _) = site.bench(&[], Names::none());
    let outcome = bench.call("http_request", json!({"url": site.url("/none")})).await;
    assert!(outcome.allowed && !outcome.ok());
    assert_eq!(outcome.result["status"], 404);
    assert_eq!(outcome.result["body"], "no such page");
    assert!(outcome.result.get("error").is_none());
}

#[tokio::test]
async fn addresses_that_are_not_public_are_refused_after_resolution() {
    let site = Site::start();
    for (address, what, hint) in [
        ("127.0.0.1", "a loopback address", true),
        ("10.1.2.3", "a private address", true),
        ("100.64.0.1", "a shared (carrier NAT) address", true),
        ("fd12::1", "a private (unique local) address", true),
        ("169.254.169.254", "a cloud metadata address", false),
        ("169.254.0.9", "a link-local address", false),
        ("224.0.0.1", "a multicast address", false),
        ("0.0.0.0", "an unspecified address", false),
        ("::ffff:127.0.0.1", "an IPv6 address that wraps an IPv4 address", false),
        ("64:ff9b::7f00:1", "an IPv6 address that wraps an IPv4 address", false),
        ("2002:7f00:1::", "an IPv6 address that wraps an IPv4 address", false),
    ] {
        let names = Names::none().with("evil.test", &[ip(address)]);
        let (bench, _) = site.bench(&["http://evil.test:{port}"], names);
        let url = format!("http://evil.test:{}", site.port());
        let refused = bench.bad("http_request", json!({"url": url})).await;
        let hint = match hint {
            true => "; a rule of tools.allow_hosts that begins with `private` would allow it",
            false => "",
        };
        let shown = ip(address);
        let wanted = format!(
            "{url} leads to {shown}, {what}, and is not connected to{hint}; nothing was sent"
        );
        assert_eq!(refused, is("egress_denied", &wanted));
    }
    assert!(site.seen().is_empty());
}

#[tokio::test]
async fn a_private_rule_excludes_metadata_addresses_and_one_bad_address_refuses_a_name() {
    let site = Site::start();
    let names = Names::none()
        .with("meta.test", &[ip("169.254.169.254")])
        .with("mixed.test", &[LOOPBACK, ip("fe80::1")]);
    let rules = ["private http://meta.test:{port}", "private http://mixed.test:{port}"];
    let (bench, _) = site.bench(&rules, names);
    for (name, what) in [
        ("meta.test", "169.254.169.254, a cloud metadata address"),
        ("mixed.test", "fe80::1, a link-local address"),
    ] {
        let url = format!("http://{name}:{}", site.port());
        let (code, message) = bench.bad("http_request", json!({"url": url})).await;
        assert_eq!(code, "egress_denied");
        assert!(message.contains(what), "{message}");
    }
    assert!(site.seen().is_empty());
}

#[tokio::test]
async fn ipv6_wrapped_addresses_are_decoded() {
    let site = Site::start();
    let (bench, _) = site.bench(&["http://*:{port}"], Names::none());
    for host in ["127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "[::1]", "[::ffff:7f00:1]"] {
        let url = format!("http://{host}:{}/", site.port());
        let (code, message) = bench.bad("http_request", json!({"url": url})).await;
        assert_eq!(code, "egress_denied", "{host}: {message}");
    }
    assert!(site.seen().is_empty());
}

#[tokio::test]
async fn a_name_is_resolved_once_and_only_the_checked_address_is_connected() {
    let site = Site::start();
    // The first address has no listener; a second look-up would find the site.
    let names = Names::none().with("re.test", &[ip("127.0.0.2")]).with("re.test", &[LOOPBACK]);
    let (bench, names) = site.bench(&["private http://re.test:{port}"], names);
    let url = format!("http://re.test:{}/", site.port());
    let (code, message) = bench.bad("http_request", json!({"url": url})).await;
    assert_eq!(code, "network_error", "{message}");
    assert_eq!(names.asked(), ["re.test"]);
    assert!(site.seen().is_empty(), "the second answer was never asked for");
}

#[tokio::test]
async fn a_name_that_becomes_private_between_redirects_is_refused() {
    let site = Site::start();
    let names =
        Names::none().with("turn.test", &[LOOPBACK]).with("turn.test", &[ip("169.254.169.254")]);
    let (bench, names) = site.bench(&["private http://turn.test:{port}"], names);
    let url = format!("http://turn.test:{}", site.port());
    site.route("/", Way::redirect("302 Found", "/latest/meta-data"));
    let outcome = bench.call("http_request", json!({"url": url})).await;
    let wanted = format!(
        "redirected to {url}, which leads to 169.254.169.254, a cloud metadata address, and is \
         not connected to; nothing was sent there"
    );
    assert_eq!(error(&outcome), is("egress_denied", &wanted));
    assert!(outcome.labels().untrusted, "somebody outside chose where to");
    assert_eq!(names.asked().len(), 2);
    assert_eq!(site.seen().len(), 1);
}

#[tokio::test]
async fn every_redirect_is_checked_like_a_first_request() {
    let site = Site::start();
    let names = Names::none().with("inner.test", &[LOOPBACK]);
    let (bench, _) = site.bench(&["http://inner.test:{port}"], names);
    let port = site.port();
    for (to, wanted) in [
        (
            format!("http://127.0.0.1:{port}/"),
            format!(
                "redirected to http://127.0.0.1:{port}, which is not allowed: no rule of \
                 tools.allow_hosts names this host; nothing was sent there"
            ),
        ),
        (
            format!("http://inner.test:{port}/"),
            format!(
                "redirected to http://inner.test:{port}, which leads to 127.0.0.1, a loopback \
                 address, and is not connected to; a rule of tools.allow_hosts that begins with \
                 `private` would allow it; nothing was sent there"
            ),
        ),
        (
            "file:///etc/passwd".into(),
            format!(
                "GET {} was redirected to a URL that must begin with http:// or https://",
                site.url("/r")
            ),
        ),
        (
            format!("http://a:b@site.test:{port}/"),
            format!(
                "GET {} was redirected to a URL that must not contain credentials; put them in a \
                 header",
                site.url("/r")
            ),
        ),
        (
            "http://[nonsense/".into(),
            format!("GET {} was redirected to something that is not a URL", site.url("/r")),
        ),
    ] {
        site.route("/r", Way::redirect("302 Found", &to));
        let refused = bench.bad("http_request", json!({"url": site.url("/r")})).await;
        assert_eq!(refused, is("egress_denied", &wanted), "{to}");
    }
    assert!(site.seen().iter().all(|seen| seen.starts_with("GET /r ")));
}

#[tokio::test]
async fn redirects_are_followed_up_to_a_limit() {
    let site = Site::start();
    for n in 0..5 {
        site.route(&format!("/{n}"), Way::redirect("302 Found", &format!("{}", n + 1)));
    }
    site.route("/5", Way::page("text/plain", "there"))
        .route("/loop", Way::redirect("301 Moved", "loop"));
    let (bench, _) = site.bench(&[], Names::none());
    let result = bench.good("http_request", json!({"url": site.url("/0")})).await;
    assert_eq!(result["body"], "there");
    assert_eq!(result["url"], site.url("/5"));
    assert_eq!(result["redirects"].as_array().unwrap().len(), 5);
    let refused = bench.bad("http_request", json!({"url": site.url("/loop")})).await;
    let wanted = format!("GET {} was redirected more than 5 times", site.url("/loop"));
    assert_eq!(refused, is("too_many_redirects", &wanted));
}

#[tokio::test]
async fn a_redirect_to_another_origin_carries_no_possible_credential() {
    let site = Site::start();
    let names = Names::none().with("two.test", &[LOOPBACK]);
    let (bench, _) = site.bench(&["private http://two.test:{port}"], names);
    site.route("/to", Way::page("text/plain", "x"))
        .route("/other", Way::redirect("302 Found", &format!("http://two.test:{}/to", site.port())))
        .route("/same", Way::redirect("302 Found", "/to"));
    let headers = json!({
        "authorization": "Bearer one", "cookie": "a=1", "x-api-key": "key", "accept": "text/x",
    });
    for (path, kept) in [("/same", true), ("/other", false)] {
        bench.good("http_request", json!({"url": site.url(path), "headers": headers})).await;
        let seen = site.seen().pop().unwrap();
        assert!(seen.contains("accept: text/x"), "{seen}");
        for name in ["authorization", "cookie", "x-api-key"] {
            assert_eq!(seen.contains(&format!("\r\n{name}:")), kept, "{path} {name}: {seen}");
        }
    }
}

#[tokio::test]
async fn a_body_is_resent_only_to_its_own_origin() {
    let site = Site::start();
    let names = Names::none().with("two.test", &[LOOPBACK]);
    let (bench, _) = site.bench(&["private POST|GET http://two.test:{port}"], names);
    let other = format!("http://two.test:{}/to", site.port());
    site.route("/to", Way::page("text/plain", "x"))
        .route("/307", Way::redirect("307 Temporary Redirect", "/to"))
        .route("/303", Way::redirect("303 See Other", "/to"))
        .route("/307o", Way::redirect("307 Temporary Redirect", &other))
        .route("/302o", Way::redirect("302 Found", &other));
    let call = |path: &str| {
        let headers = json!({"content-type": "text/plain"});
        let args =
            json!({"url": site.url(path), "method": "POST", "body": "B", "headers": headers});
        bench.call("http_request", args)
    };
    assert!(call("/307").await.ok());
    let seen = site.seen().pop().unwrap();
    assert!(seen.starts_with("POST /to ") && seen.ends_with("\r\n\r\nB"), "{seen}");
    for path in ["/303", "/302o"] {
        assert!(call(path).await.ok());
        let seen = site.seen().pop().unwrap();
        assert!(seen.starts_with("GET /to ") && !seen.contains("content-"), "{seen}");
    }
    let before = site.seen().len();
    let outcome = call("/307o").await;
    assert_eq!(outcome.result["status"], 307);
    assert_eq!(outcome.result["redirect_not_followed"], other.as_str());
    assert_eq!(site.seen().len(), before + 1, "nothing went to the other origin");
}

#[tokio::test]
async fn invalid_urls_and_headers_are_refused_before_sending() {
    let site = Site::start();
    let (bench, names) = site.bench(&[], Names::none());
    let url = site.url("/");
    let header = |name: &str, value: &str| json!({"url": url, "headers": {name: value}});
    for (args, wanted) in [
        (
            json!({"url": "https://me:pw@site.test/"}),
            "url must not contain credentials; put them in a header",
        ),
        (json!({"url": "ftp://site.test/"}), "url must begin with http:// or https://"),
        (json!({"url": "/x"}), "url is not a URL: relative URL without a base"),
        (
            json!({"url": "https://site.test/a b"}),
            "url must not contain white space or control characters; percent-encode them",
        ),
        (
            json!({"url": "https://site.test/a\r\nHost: evil"}),
            "url must not contain white space or control characters; percent-encode them",
        ),
        (
            json!({"url": format!("https://{}.test/", "a".repeat(8200))}),
            "url must not exceed 8192 bytes",
        ),
        (
            header("x-a", "1\r\nx-evil: 2"),
            "headers: the value of `x-a` must be ASCII without line ends and control characters",
        ),
        (
            header("x-a", "ü"),
            "headers: the value of `x-a` must be ASCII without line ends and control characters",
        ),
        (header("x a", "1"), "headers: \"x a\" is not the name of a header"),
        (header("Host", "evil.test"), "headers: `host` is set by the tool and cannot be given"),
        (
            header("Transfer-Encoding", "chunked"),
            "headers: `transfer-encoding` is set by the tool and cannot be given",
        ),
        (
            header("Proxy-Authorization", "x"),
            "headers: `proxy-authorization` is set by the tool and cannot be given",
        ),
        (header("x-long", &"a".repeat(9000)), "headers must not exceed 8192 bytes in all"),
        (json!({"url": url, "body": "x"}), "body must not be given with GET"),
        (json!({"url": url, "headers": {"x-a": "1", "X-A": "2"}}), "headers: `x-a` is given twice"),
    ] {
        let refused = bench.bad("http_request", args.clone()).await;
        assert_eq!(refused, is("bad_args", wanted), "{args}");
    }
    let refused = bench.bad("http_request", json!({"url": url, "method": "TRACE"})).await;
    assert_eq!(refused.0, "bad_args");
    assert!(site.seen().is_empty() && names.asked().is_empty());
}

#[tokio::test]
async fn bodies_are_limited_in_both_directions_with_a_note() {
    let site = Site::start();
    let chunk = b"1000\r\n".iter().copied().chain([b'x'; 0x1000]).chain(*b"\r\n").collect();
    site.route("/long", Way::page("text/plain", "é".repeat(1000)))
        .route(
            "/endless",
            Way::Endless(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
                    .to_vec(),
                chunk,
            ),
        )
        .route("/bytes", Way::page("image/png", [0, 159, 146, 150]));
    let (bench, _) = site.bench_with(&[], Names::none(), |egress| egress.max_request_bytes = 10);
    let result =
        bench.good("http_request", json!({"url": site.url("/long"), "max_bytes": 101})).await;
    assert_eq!(result["body"], "é".repeat(50), "cut at a character");
    assert_eq!(
        (&result["truncated"], &result["body_bytes"], &result["content_length"]),
        (&json!(true), &json!(101), &json!(2000))
    );
    let result = bench.good("http_request", json!({"url": site.url("/endless")})).await;
    assert_eq!((&result["truncated"], &result["body_bytes"]), (&json!(true), &json!(100_000)));
    let result = bench.good("http_request", json!({"url": site.url("/bytes")})).await;
    assert_eq!((&result["binary"], &result["body_bytes"]), (&json!(true), &json!(4)));
    assert_eq!(result.get("body"), None);
    let args = json!({"url": site.url("/long"), "method": "POST", "body": "12345678901"});
    let refused = bench.bad("http_request", args).await;
    assert_eq!(refused, is("size_limit", "body exceeds max size"));
}

#[tokio::test]
async fn a_decompression_bomb_is_truncated_and_an_empty_body_ends() {
    let bomb = gzip(&vec![b'0'; 50 << 20]);
    let empty = gzip(b"");
    let site = Site::start();
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-encoding: gzip\r\n\r\n";
    site.route("/bomb", Way::with("content-type: text/plain\r\ncontent-encoding: gzip\r\n", bomb))
        .route("/empty", Way::Endless(head.to_vec(), empty.repeat(100)))
        .route("/br", Way::with("content-encoding: br\r\n", "x"))
        .route("/bad", Way::with("content-encoding: gzip\r\n", "this is not packed at all"));
    let (bench, _) = site.bench(&[], Names::none());
    let result = bench.good("http_request", json!({"url": site.url("/bomb")})).await;
    assert_eq!((&result["truncated"], &result["body_bytes"]), (&json!(true), &json!(100_000)));
    let result = bench.good("http_request", json!({"url": site.url("/empty")})).await;
    assert_eq!((&result["truncated"], &result["body_bytes"]), (&json!(true), &json!(0)));
    let refused = bench.bad("http_request", json!({"url": site.url("/br")})).await;
    let wanted =
        format!("GET {} came back packed as `br`, which was not asked for", site.url("/br"));
    assert_eq!(refused, is("unsupported_content", &wanted));
    let (code, message) = bench.bad("http_request", json!({"url": site.url("/bad")})).await;
    assert_eq!(code, "network_error");
    assert!(message.contains("the packed body is damaged"), "{message}");
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn a_slow_or_silent_site_is_dropped_at_its_timeout() {
    let site = Site::start();
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n".to_vec();
    site.route("/drip", Way::Drip(head, b"x".to_vec()))
        .route("/head", Way::Drip(b"HTTP/1.1 200 OK\r\n".to_vec(), b"x: y\r\n".to_vec()));
    let (bench, _) = site.bench(&[], Names::none());
    for path in ["/drip", "/head"] {
        let outcome =
            bench.call("http_request", json!({"url": site.url(path), "timeout_s": 1})).await;
        let (code, message) = error(&outcome);
        // A head that never ends may also meet the bound on headers, on a slow day.
        assert!(matches!(&*code, "timeout" | "network_error"), "{code} {message}");
        if path == "/drip" {
            let wanted = format!("GET {} did not end within 1 s", site.url(path));
            assert_eq!((code, message), is("timeout", &wanted));
            assert_eq!(outcome.result["error"]["details"], json!({"timeout_s": 1}));
        }
    }
}

#[tokio::test]
async fn an_endless_head_and_a_dropped_connection_are_network_errors() {
    let site = Site::start();
    let lines = b"x-header: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n";
    site.route("/head", Way::Endless(b"HTTP/1.1 200 OK\r\n".to_vec(), lines.to_vec()))
        .route("/gone", Way::Answer(Vec::new()))
        .route("/half", Way::Answer(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc".to_vec()));
    let (bench, _) = site.bench(&[], Names::none());
    for path in ["/head", "/gone", "/half"] {
        let (code, message) = bench.bad("http_request", json!({"url": site.url(path)})).await;
        assert_eq!(code, "network_error", "{path}: {message}");
        let start = format!("GET {}: ", site.url(path));
        assert!(message.starts_with(&start) && message.len() < 600, "{message}");
    }
}

#[tokio::test]
async fn an_unresolvable_name_is_reported() {
    let site = Site::start();
    let names = Names::none().with("void.test", &[]);
    let (bench, _) = site.bench(&["void.test", "none.test"], names);
    for (host, why) in [("none.test", "no such name"), ("void.test", "the name has no address")] {
        let refused = bench.bad("http_request", json!({"url": format!("https://{host}/")})).await;
        assert_eq!(refused, is("network_error", &format!("looking up {host}: {why}")));
    }
}

#[tokio::test]
async fn a_head_request_has_headers_and_no_body() {
    let site = Site::start();
    site.route("/a", Way::Answer(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\ncontent-encoding: gzip\r\ncontent-type: text/plain\r\n\r\n".to_vec()));
    let (bench, _) = site.bench(&[], Names::none());
    let args = json!({"url": site.url("/a"), "method": "HEAD"});
    let result: Value = bench.good("http_request", args).await;
    assert_eq!(result["body"], "");
    assert_eq!(result["headers"]["content-length"], "7");
}
