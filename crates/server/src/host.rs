//! Whether a request means this server: the Host header, and the Origin of a browser.
//!
//! A web page can make a browser send requests to a loopback address, under the page's own host
//! name if its DNS answers with that address (rebinding). The Host check stops the second, the
//! Origin check the first; the token would stop both, and these do not rely on it.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};
use overmind_api::ProblemKind;

use crate::fault::Fault;

/// Browsers reach loopback by these. The second is the dashboard's own, so that what runs serve on
/// other ports of `localhost` never sees its cookie.
const OURS: [&str; 2] = ["localhost", "overmind.localhost"];

/// The names that mean this server.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostRules {
    /// Lower case, without port.
    names: Vec<String>,
}

/// `name[:port]` taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Authority<'a> {
    /// The written form; an IPv6 address without its brackets.
    name: &'a str,
    port: Option<u16>,
}

impl<'a> Authority<'a> {
    /// Strict: no user, no path, no empty name, digits only in the port.
    fn parse(text: &'a str) -> Option<Self> {
        let (name, port) = if let Some(rest) = text.strip_prefix('[') {
            let (name, port) = rest.split_once(']')?;
            name.parse::<std::net::Ipv6Addr>().ok()?;
            (name, port)
        } else {
            let end = text.find(':').unwrap_or(text.len());
            let (name, port) = text.split_at(end);
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
            if name.is_empty() || name.len() > 253 || !name.bytes().all(plain) {
                return None;
            }
            (name, port)
        };
        let port = match port.strip_prefix(':') {
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                Some(digits.parse().ok()?)
            }
            Some(_) => return None,
            None if port.is_empty() => None,
            None => return None,
        };
        Some(Self { name, port })
    }
}

impl HostRules {
    pub(crate) fn new(names: &[String]) -> Self {
        let plain = |name: &String| name.trim_end_matches('.').to_ascii_lowercase();
        Self { names: names.iter().map(plain).collect() }
    }

    /// Checks both headers. `local` is the address that the client reached, on TCP.
    pub(crate) fn check(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        local: Option<IpAddr>,
    ) -> Result<(), Fault> {
        let host = single(headers, &header::HOST)?
            .ok_or_else(|| Fault::new(ProblemKind::BadRequest, "the request has no Host header"))?;
        let authority = Authority::parse(host).ok_or_else(|| {
            Fault::new(ProblemKind::BadRequest, "the Host header is not `name` or `name:port`")
        })?;
        self.check_name(&authority, local)?;
        if let Some(target) = uri.authority()
            && !target.as_str().eq_ignore_ascii_case(host)
        {
            let text = "the request's target and its Host header name different hosts";
            return Err(Fault::new(ProblemKind::BadRequest, text));
        }
        if let Some(origin) = single(headers, &header::ORIGIN)? {
            check_origin(origin, &authority)?;
        }
        Ok(())
    }

    fn check_name(&self, host: &Authority<'_>, local: Option<IpAddr>) -> Result<(), Fault> {
        let name = host.name.strip_suffix('.').unwrap_or(host.name);
        // An address cannot be rebound, so the one that was reached, and loopback, are fine.
        let known = match name.parse::<IpAddr>() {
            Ok(ip) => ip.is_loopback() || local == Some(ip) || self.has(name),
            Err(_) => OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) || self.has(name),
        };
        if known {
            return Ok(());
        }
        let text = format!("this server does not answer for the host `{name}`");
        Err(Fault::new(ProblemKind::Misdirected, text)
            .with_hint("if this name belongs to the server, add it to `server.allowed_hosts`"))
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// A browser's Origin must be the very host and port that it calls.
fn check_origin(origin: &str, host: &Authority<'_>) -> Result<(), Fault> {
    let foreign = || {
        let shown: String = origin.chars().take(100).collect();
        Fault::new(ProblemKind::Forbidden, format!("requests from `{shown}` are refused"))
            .with_hint("only pages that this server itself serves may call it from a browser")
    };
    let (rest, default_port) = match origin.split_once("://") {
        Some(("http", rest)) => (rest, 80),
        Some(("https", rest)) => (rest, 443),
        _ => return Err(foreign()), // `null` too: sandboxed frames and files have no origin
    };
    let from = Authority::parse(rest).ok_or_else(foreign)?;
    let same = from.name.eq_ignore_ascii_case(host.name)
        && from.port.unwrap_or(default_port) == host.port.unwrap_or(default_port);
    if same { Ok(()) } else { Err(foreign()) }
}

/// A header's only value as text. Two of them would let two readers see different requests.
pub(crate) fn single<'a>(
    headers: &'a HeaderMap,
    name: &header::HeaderName,
) -> Result<Option<&'a str>, Fault> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|_| values.next().is_none());
    text.map(Some).ok_or_else(|| {
        let text = format!("the request has more than one {name} header, or one that is not text");
        Fault::new(ProblemKind::BadRequest, text)
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn verdict(host: &[&str], origin: Option<&str>, local: Option<&str>) -> Result<(), u16> {
        let mut headers = HeaderMap::new();
        for host in host {
            headers.append(header::HOST, HeaderValue::from_str(host).unwrap());
        }
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        let rules = HostRules::new(&["Hive.Example.org".into()]);
        let local = local.map(|ip| ip.parse().unwrap());
        rules
            .check(&Uri::from_static("/x"), &headers, local)
            .map_err(|fault| fault.problem().status)
    }

    #[test]
    fn loopback_the_bound_address_and_configured_names_are_accepted_hosts() {
        for host in [
            "localhost",
            "LOCALHOST:8420",
            "localhost.",
            "127.0.0.1:8420",
            "127.8.9.1",
            "[::1]:8420",
            "[::1]",
            "hive.example.org",
            "hive.example.org.:443",
            "10.1.2.3:8420",
        ] {
            assert_eq!(verdict(&[host], None, Some("10.1.2.3")), Ok(()), "{host}");
        }
    }

    #[test]
    fn foreign_hosts_are_421_and_invalid_ones_400() {
        for host in ["evil.example", "localhost.evil.example", "10.9.9.9", "[2001:db8::1]"] {
            assert_eq!(verdict(&[host], None, Some("10.1.2.3")), Err(421), "{host}");
        }
        for host in [
            "",
            ":8420",
            "a b",
            "user@localhost",
            "localhost:",
            "localhost:99999",
            "localhost:-1",
            "localhost:1:2",
            "[::1",
            "[localhost]",
            "localhost/",
            "[::1]x",
        ] {
            // An empty port is legal in a URI, and nothing sends it.
            let want = if host == "localhost:" { Ok(()) } else { Err(400) };
            let got = verdict(&[host], None, None);
            assert!(got == want || got == Err(400), "{host}: {got:?}");
        }
        assert_eq!(verdict(&[], None, None), Err(400));
        assert_eq!(verdict(&["localhost", "localhost"], None, None), Err(400));
    }

    #[test]
    fn an_origin_must_equal_the_host_and_port() {
        let ok = |host, origin| verdict(&[host], Some(origin), None);
        assert_eq!(ok("localhost:8420", "http://localhost:8420"), Ok(()));
        assert_eq!(ok("localhost", "http://LOCALHOST:80"), Ok(()));
        assert_eq!(ok("hive.example.org", "https://hive.example.org"), Ok(()));
        for origin in [
            "null",
            "http://localhost:3000",
            "http://localhost",
            "http://127.0.0.1:8420",
            "https://evil.example",
            "file://localhost:8420",
            "http://localhost:8420/",
            "http://localhost:8420@evil.example",
            "",
        ] {
            assert_eq!(ok("localhost:8420", origin), Err(403), "{origin}");
        }
    }

    #[test]
    fn a_target_with_another_host_than_the_header_is_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
        let target = Uri::from_static("http://evil.example/api/runs");
        let fault = HostRules::default().check(&target, &headers, None).unwrap_err();
        assert_eq!(fault.problem().status, 400);
    }

    proptest! {
        #[test]
        fn no_header_text_panics_and_unknown_names_are_refused(host in "[ -~]{0,40}", origin in "[ -~]{0,40}") {
            let passed = verdict(&[&host], Some(&origin), None).is_ok();
            let own = host.to_ascii_lowercase();
            let ours = ["localhost", "127.", "[::1]", "hive.example.org"];
            prop_assert!(!passed || ours.iter().any(|name| own.starts_with(name)));
        }
    }
}
