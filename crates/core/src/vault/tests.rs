use proptest::prelude::*;

use super::catalogue::built_in;
use super::resolve::{HeaderFate, Placed, Refused};
use super::service::{Allow, AuthPlacement, Limits, Method, Service};
use super::{Secret, SecretName};

/// A service that allows everything: what is refused then is refused for its form.
fn open(auth: AuthPlacement) -> Service {
    let methods = vec![Method::Get, Method::Post];
    let all = ["/", "/**"].map(|path| Allow { methods: methods.clone(), path: path.into() });
    Service {
        base_url: "https://api.example.com/v1".into(),
        auth,
        allow: all.into(),
        ..built_in().remove(0)
    }
}

#[test]
fn the_catalogue_is_sorted_and_every_entry_is_callable() {
    let all = built_in();
    let names: Vec<&str> = all.iter().map(|service| service.name.as_str()).collect();
    assert!(names.is_sorted());
    for wanted in [
        "anthropic",
        "apollo",
        "brave_search",
        "deepseek",
        "gemini",
        "gemini-native",
        "groq",
        "hunter",
        "mistral",
        "moonshot",
        "ollama",
        "openai",
        "openrouter",
        "vllm",
        "xai",
    ] {
        assert!(names.contains(&wanted), "{wanted}");
    }
    for service in &all {
        service.check().unwrap_or_else(|err| panic!("{}: {err}", service.name));
        let text = serde_json::to_string(service).unwrap();
        assert_eq!(serde_json::from_str::<Service>(&text).unwrap(), *service);
    }
}

#[test]
fn only_declared_services_can_be_called() {
    let all = built_in();
    let find = |name: &str| all.iter().find(|service| service.name == name).unwrap();
    let openai = find("openai");
    let resolved = openai.resolve(Method::Post, "/chat/completions", None).unwrap();
    assert_eq!(resolved.url, "https://api.openai.com/v1/chat/completions");
    assert_eq!(resolved.host, "api.openai.com");
    let models = openai.resolve(Method::Get, "/models/org/name", Some("limit=3")).unwrap();
    assert_eq!(models.url, "https://api.openai.com/v1/models/org/name?limit=3");
    for (method, path) in [
        (Method::Get, "/chat/completions"),
        (Method::Delete, "/models/gpt"),
        (Method::Post, "/files"),
        (Method::Post, "/chat/completions/x"),
        (Method::Post, "/organization/admin_api_keys"),
    ] {
        let refused = openai.resolve(method, path, None).unwrap_err();
        assert!(matches!(refused, Refused::NotAllowed { .. }), "{path}: {refused}");
        assert!(refused.to_string().contains("POST /chat/completions"), "{refused}");
    }
    let hunter = find("hunter");
    let resolved = hunter.resolve(Method::Get, "/domain-search", Some("domain=a.com")).unwrap();
    let Placed::Url(url) = hunter.place(&resolved, &Secret::new("k&y=1 2?").unwrap()) else {
        panic!("the key stands in the query")
    };
    assert_eq!(
        *url,
        "https://api.hunter.io/v2/domain-search?domain=a.com&api_key=k%26y%3D1%202%3F"
    );
}

#[test]
fn keys_are_inserted_where_the_declaration_says() {
    let key = Secret::new("s3cret-key").unwrap();
    let placed = |auth: &str| {
        let service = open(auth.parse().unwrap());
        let resolved = service.resolve(Method::Get, "/a", None).unwrap();
        match service.place(&resolved, &key) {
            Placed::Header { name, value } => format!("{name}: {}", *value),
            Placed::Url(url) => url.to_string(),
            Placed::Nothing => "nothing".to_owned(),
        }
    };
    assert_eq!(placed("bearer"), "authorization: Bearer s3cret-key");
    assert_eq!(placed("header X-Api-Key"), "x-api-key: s3cret-key");
    assert_eq!(placed("query key"), "https://api.example.com/v1/a?key=s3cret-key");
    assert_eq!(placed("basic ann"), "authorization: Basic YW5uOnMzY3JldC1rZXk=");
    assert_eq!(placed("basic"), "authorization: Basic OnMzY3JldC1rZXk=");
    assert_eq!(placed("none"), "nothing");
    let service = open(AuthPlacement::Bearer);
    let resolved = service.resolve(Method::Get, "/a", None).unwrap();
    assert!(!format!("{:?}", service.place(&resolved, &key)).contains("s3cret"));
}

#[test]
fn paths_that_lead_to_another_target_are_refused() {
    let service = open(AuthPlacement::Query("key".into()));
    for path in [
        "",
        "a",
        "https://evil.example/",
        "//evil.example/a",
        "/a//b",
        "//",
        "/../admin",
        "/a/..",
        "/a/../b",
        "/./a",
        "/%2e%2e/admin",
        "/%2E./a",
        "/.%2e/a",
        "/a/%2e",
        "/a%2fb",
        "/a%2Fb",
        "/a%5cb",
        "/a\\b",
        "/\\evil.example",
        "/@evil.example/%2f",
        "/a%00b",
        "/a%0d%0aHost: x",
        "/a\r\nHost: x",
        "/a b",
        "/a?x=1",
        "/a#b",
        "/a%23b",
        "/a%3fb",
        "/%252e%252e/a",
        "/a%2",
        "/a%zz",
        "/..;/admin",
        "/..;x=1/admin",
        "/a%ff",
        "/ü",
    ] {
        let refused = service.resolve(Method::Get, path, None);
        assert!(matches!(refused, Err(Refused::Path(_))), "{path}: {refused:?}");
    }
    assert!(service.resolve(Method::Get, &format!("/{}", "a".repeat(2048)), None).is_err());
    for path in ["/", "/a", "/a/", "/a/b.c", "/a/...", "/a/%C3%BC", "/models/g:gen", "/user@host"] {
        let resolved = service.resolve(Method::Get, path, None).unwrap();
        assert_eq!(resolved.url, format!("https://api.example.com/v1{path}"));
    }
}

#[test]
fn queries_cannot_name_the_key_or_end_the_request_line() {
    let service = open(AuthPlacement::Query("key".into()));
    for query in [
        "key=mine",
        "a=1&key=mine",
        "KEY=mine",
        "%6bey=mine",
        "a=1;key=mine",
        "+key=mine",
        "key",
        "a=1#b",
        "a=1 b",
        "a=\r\n",
        "a%0d=1",
        "a=%00",
        "a=%2",
        "a=%ff",
        "ü=1",
    ] {
        let refused = service.resolve(Method::Get, "/a", Some(query));
        assert!(matches!(refused, Err(Refused::Query(_))), "{query}: {refused:?}");
    }
    for query in ["", "a=1&b=2", "q=x%20y+z", "k=e&keys=1", "f[]=1|2"] {
        assert!(service.resolve(Method::Get, "/a", Some(query)).is_ok(), "{query}");
    }
}

#[test]
fn headers_that_identify_the_caller_or_the_host_are_dropped() {
    let service = open(AuthPlacement::Header("x-own-key".into()));
    for name in [
        "Host",
        "authorization",
        "Proxy-Authorization",
        "cookie",
        "X-Forwarded-Host",
        "x-api-key",
        "X-Own-Key",
        "content-length",
        "Transfer-Encoding",
        "connection",
        "x-rewrite-url",
        "x-original-host",
        "X-HTTP-Method",
        "X_HTTP_Method_Override",
        "x-method-override",
        "X_Token",
        "X-HTTP-Method-Override",
        "x-overmind-session",
        "X-Mesh-Internal",
    ] {
        assert_eq!(service.header_fate(name, b"v"), HeaderFate::Drop, "{name}");
    }
    for name in ["anthropic-beta", "content-type", "accept", "x-request-id", "user-agent"] {
        assert_eq!(service.header_fate(name, b"v"), HeaderFate::Forward, "{name}");
    }
    for (name, value) in [("x-a", &b"v\r\nHost: e"[..]), ("x a", b"v"), (":path", b"v"), ("", b"v")]
    {
        assert_eq!(service.header_fate(name, value), HeaderFate::Refuse, "{name}");
    }
}

#[test]
fn declarations_that_leak_or_cannot_work_are_refused() {
    let good = open(AuthPlacement::Bearer);
    good.check().unwrap();
    for url in [
        "ftp://a.b",
        "https://",
        "https://u:p@h/v1",
        "https://h/v1?x=1",
        "https://h/#f",
        "https://h:0/",
        "https://h:99999",
        "https://h:/",
        "https://h:8a",
        "https://H.example",
        "https://h/../x",
        "https://h//x",
        "https://h\\@evil",
        "https://a b",
        "https://-a.b",
        "https://2130706433",
        "https://0x7f.1",
        "https://1.2.3",
        "https://[::1",
        "https://[x]",
        "https://h%2eexample",
        "https://h.example.",
        "http://example.com/v1",
        "http://127.evil.example",
        "//h",
        "h",
    ] {
        let bad = Service { base_url: url.into(), ..good.clone() };
        assert_eq!(bad.check().unwrap_err().field, "base_url", "{url}");
    }
    for url in ["https://h/v1/", "http://127.0.0.1:80", "http://[::1]:1/a", "http://localhost"] {
        let fine = Service { base_url: url.into(), ..good.clone() };
        assert!(fine.check().is_ok(), "{url}: {:?}", fine.check());
    }
    let lan = Service { base_url: "http://gpu.lan:8000".into(), ..good.clone() };
    assert!(lan.check().is_err());
    assert!(Service { plaintext: true, ..lan }.check().is_ok());
    let with = |path: &str| Service {
        allow: vec![Allow { methods: vec![Method::Get], path: path.into() }],
        ..good.clone()
    };
    for path in ["a", "//a", "/a/../b", "/a?b", "/a%2fb", "/a//b"] {
        assert_eq!(with(path).check().unwrap_err().field, "allow", "{path}");
    }
    let header = |name: &str| Service {
        headers: [(name.to_owned(), "v".to_owned())].into(),
        ..good.clone()
    };
    assert!(header("anthropic-version").check().is_ok());
    for name in ["host", "Authorization", "cookie", "a b"] {
        assert_eq!(header(name).check().unwrap_err().field, "headers", "{name}");
    }
    assert!(
        Service { auth: AuthPlacement::Header("host".into()), ..good.clone() }.check().is_err()
    );
    assert!(Service { name: "Up".into(), ..good.clone() }.check().is_err());
    let limits = Limits { request_bytes: 0, ..Limits::default() };
    assert!(Service { limits, ..good }.check().is_err());
}

#[test]
fn secret_names_are_normalised_and_bounded() {
    assert_eq!("OPENAI_API_KEY".parse::<SecretName>().unwrap().as_str(), "openai_api_key");
    for bad in ["", "_a", "-a", ".a", "a b", "a/b", "ü", &"a".repeat(65)] {
        assert!(bad.parse::<SecretName>().is_err(), "{bad}");
    }
    assert!("a".repeat(64).parse::<SecretName>().is_ok());
}

#[test]
fn a_secret_and_its_errors_never_print_the_value() {
    let secret = Secret::new("  hunter2-hunter2\n").unwrap();
    assert_eq!(secret.expose(), "hunter2-hunter2");
    assert_eq!(format!("{secret:?}"), "Secret(…)");
    for bad in ["", " \n", "short", "with\0nul-in-it", &"x".repeat(32_769)] {
        let err = Secret::new(bad).unwrap_err();
        assert!(bad.trim().is_empty() || !err.to_string().contains(bad), "{err}");
    }
}

/// Texts that a hostile caller might send to be parsed differently elsewhere.
fn hostile() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("/"),
        Just("//"),
        Just("\\"),
        Just(".."),
        Just("."),
        Just("%2e"),
        Just("%2F"),
        Just("%5c"),
        Just("@"),
        Just(":"),
        Just("evil.example"),
        Just("https:"),
        Just("http://"),
        Just("#"),
        Just("?"),
        Just("%00"),
        Just("\r\n"),
        Just("%0d%0a"),
        Just(";"),
        Just("%25"),
        Just("[::1]"),
        Just("a"),
        Just("v1"),
        Just("&"),
        Just("="),
        Just("key"),
        Just("\t"),
        Just("\u{ff0f}"),
        Just("\u{202e}"),
        Just("+"),
        Just("%6bey"),
        Just("Host: e"),
        Just(""),
    ];
    prop_oneof![
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat()),
        ".{0,40}",
        prop::collection::vec(any::<char>(), 0..20).prop_map(|all| all.into_iter().collect()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// The oracle is the parser that HTTP clients use: whatever is let through, it sees the
    /// declared origin, below the declared path, with the caller's query and one key.
    #[test]
    fn no_caller_moves_a_key(path in hostile(), slash: bool, query in prop::option::of(hostile())) {
        let path = if slash { format!("/{path}") } else { path };
        let key = Secret::new("the-real-key").unwrap();
        for auth in ["bearer", "query key", "header x-k"] {
            let service = open(auth.parse().unwrap());
            let Ok(resolved) = service.resolve(Method::Get, &path, query.as_deref()) else {
                continue;
            };
            let whole = match service.place(&resolved, &key) {
                Placed::Url(url) => url.to_string(),
                Placed::Header { name, value } => {
                    prop_assert!(!name.contains(['\r', '\n']) && !value.contains(['\r', '\n']));
                    resolved.url.clone()
                }
                Placed::Nothing => unreachable!("a key was given"),
            };
            let seen = url::Url::parse(&whole).unwrap();
            prop_assert_eq!(seen.scheme(), "https");
            prop_assert_eq!(seen.host_str(), Some("api.example.com"));
            prop_assert_eq!(seen.port(), None);
            prop_assert!(seen.username().is_empty() && seen.password().is_none());
            prop_assert_eq!(seen.fragment(), None);
            prop_assert!(seen.path().starts_with("/v1/"), "{}", seen);
            // No part was split or joined in another way.
            prop_assert_eq!(seen.as_str(), whole.as_str());
            if auth == "query key" {
                let keys = seen.query_pairs().filter(|(name, _)| name == "key").count();
                prop_assert_eq!(keys, 1);
            }
        }
    }

    #[test]
    fn accepted_base_urls_are_read_the_same_by_http_clients(
        rest in hostile(), host in "[a-z0-9.\\[\\]:%@-]{0,20}", https: bool,
    ) {
        let scheme = if https { "https" } else { "http" };
        let service = Service {
            base_url: format!("{scheme}://{host}{rest}"), plaintext: true,
            ..open(AuthPlacement::Bearer)
        };
        if service.check().is_ok() {
            let base = service.base().unwrap();
            let seen = url::Url::parse(&service.base_url).unwrap();
            prop_assert_eq!(seen.scheme(), scheme);
            prop_assert_eq!(seen.host_str(), Some(base.host));
            let usual = if https { 443 } else { 80 };
            prop_assert_eq!(seen.port_or_known_default(), Some(base.port.unwrap_or(usual)));
            prop_assert_eq!(seen.path().trim_end_matches('/'), base.path);
        }
    }

    #[test]
    fn headers_with_line_ends_are_refused(name in hostile(), value in hostile()) {
        let service = open(AuthPlacement::Bearer);
        if service.header_fate(&name, value.as_bytes()) == HeaderFate::Forward {
            prop_assert!(!value.contains(['\r', '\n', '\0']));
            prop_assert!(!name.to_ascii_lowercase().contains("host") || !name.is_empty());
            prop_assert!(name.bytes().all(|b| b.is_ascii_graphic() && b != b':'));
        }
    }
}
