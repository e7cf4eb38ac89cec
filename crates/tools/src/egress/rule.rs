//! One rule of the allow-list.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use reqwest::{Method, Url};

use super::Address;

/// The requests that one rule allows: `[private] [METHODS] [scheme://]host[:port]`.
///
/// ```text
/// docs.rs                              https, port 443, GET and HEAD
/// *.example.com                        any name below example.com, but not example.com itself
/// GET|POST https://api.example.com     more methods
/// http://mirror.example.com:8080       another scheme and port
/// private http://localhost:3000        loopback and private addresses, by name …
/// private http://127.0.0.1:3000        … or as they are
/// *                                    every public name
/// ```
///
/// * Without a scheme, it is https. Without a port, it is the scheme's own.
/// * Methods default to `GET|HEAD`; GET, HEAD, POST, PUT, PATCH, DELETE and OPTIONS may be named.
/// * `*` is used alone or as the first label, for names only: an address needs its own rule.
/// * `private` lets the name resolve to loopback and private addresses. Link-local, metadata,
///   multicast and reserved addresses stay unreachable.
#[derive(Clone, Debug, PartialEq)]
pub struct HostRule {
    host: Host,
    https: bool,
    port: u16,
    methods: Vec<Method>,
    private: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Host {
    Any,
    /// Includes the leading dot.
    Below(String),
    Exactly(String),
}

/// Why a text is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reading the rule `{rule}` of tools.allow_hosts: {why}")]
pub struct RuleError {
    rule: String,
    why: String,
}

pub(crate) const METHODS: [Method; 7] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
];

/// What a request needs but no rule allows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Refused {
    Host,
    /// The scheme or the port; contains the origins that are allowed for this host.
    Origin(Vec<String>),
    /// The method; contains the methods that are allowed there.
    Method(Vec<String>),
}

/// The rule that allows a request, or what is missing.
pub(super) fn allowed<'a>(
    rules: &'a [HostRule],
    method: &Method,
    url: &Url,
) -> Result<&'a HostRule, Refused> {
    let host = url.host_str().unwrap_or_default();
    let by_host: Vec<&HostRule> = rules.iter().filter(|rule| rule.host.covers(host)).collect();
    if by_host.is_empty() {
        return Err(Refused::Host);
    }
    let here = |rule: &&&HostRule| {
        rule.https == (url.scheme() == "https") && url.port_or_known_default() == Some(rule.port)
    };
    let by_origin: Vec<&HostRule> = by_host.iter().filter(here).copied().collect();
    if by_origin.is_empty() {
        return Err(Refused::Origin(by_host.iter().map(|rule| rule.origin()).collect()));
    }
    // An exact rule comes before a pattern, because its `private` is meant for this host.
    let mut fitting: Vec<&HostRule> =
        by_origin.iter().filter(|rule| rule.methods.contains(method)).copied().collect();
    fitting.sort_by_key(|rule| match rule.host {
        Host::Exactly(_) => 0,
        Host::Below(_) => 1,
        Host::Any => 2,
    });
    fitting.first().copied().ok_or_else(|| {
        let methods = by_origin.iter().flat_map(|rule| &rule.methods).map(Method::to_string);
        Refused::Method(methods.collect())
    })
}

impl HostRule {
    /// Checks whether a connection by this rule may go to `ip`; the error names the class of the
    /// address.
    pub(super) fn reaches(&self, ip: IpAddr) -> Result<(), &'static str> {
        match Address::of(ip) {
            Address::Public => Ok(()),
            Address::Private(_) if self.private => Ok(()),
            Address::Private(what) | Address::Never(what) => Err(what),
        }
    }

    fn origin(&self) -> String {
        format!("{}://{}:{}", if self.https { "https" } else { "http" }, self.host, self.port)
    }
}

impl Host {
    fn covers(&self, host: &str) -> bool {
        match self {
            Self::Any => !is_address(host),
            Self::Below(domain) => {
                !is_address(host) && host.len() > domain.len() && host.ends_with(domain.as_str())
            }
            Self::Exactly(name) => host == name,
        }
    }
}

fn is_address(host: &str) -> bool {
    host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Below(domain) => write!(f, "*{domain}"),
            Self::Exactly(name) => f.write_str(name),
        }
    }
}

/// Writes the form that is parsed to the same rule.
impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.private {
            f.write_str("private ")?;
        }
        let methods: Vec<&str> = self.methods.iter().map(Method::as_str).collect();
        write!(f, "{} {}", methods.join("|"), self.origin())
    }
}

impl FromStr for HostRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let wrong = |why: String| RuleError { rule: text.to_owned(), why };
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let private = words.first() == Some(&"private");
        if private {
            words.remove(0);
        }
        let (methods, target) = match words[..] {
            [target] => (vec![Method::GET, Method::HEAD], target),
            [methods, target] => {
                let named: Result<Vec<Method>, RuleError> = methods
                    .split('|')
                    .map(|name| {
                        METHODS.iter().find(|method| method.as_str() == name).cloned().ok_or_else(
                            || wrong(format!("`{name}` is not a method that can be allowed")),
                        )
                    })
                    .collect();
                (named?, target)
            }
            _ => {
                return Err(wrong(
                    "it must read [private] [METHOD|METHOD] [scheme://]host[:port]".into(),
                ));
            }
        };
        let (https, rest) = match target.split_once("://") {
            None => (true, target),
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            Some((scheme, _)) => {
                return Err(wrong(format!("the scheme `{scheme}` is neither http nor https")));
            }
        };
        if rest.contains(['/', '?', '#', '@']) {
            return Err(wrong("a rule names a host and a port, no path and no user".into()));
        }
        let (pattern, rest) = match rest.strip_prefix('*') {
            Some("") => return Ok(Self::new(Host::Any, https, None, methods, private)),
            Some(rest) if rest.starts_with('.') => (true, &rest[1..]),
            Some(rest) if rest.starts_with(':') => {
                let port = rest[1..]
                    .parse()
                    .map_err(|_| wrong("the port is not a number from 1 to 65535".into()))?;
                return Ok(Self::new(Host::Any, https, Some(port), methods, private));
            }
            Some(_) => {
                return Err(wrong("`*` must be the whole host or its beginning `*.`".into()));
            }
            None => (false, rest),
        };
        if rest.contains('*') {
            return Err(wrong("`*` must be the whole host or its beginning `*.`".into()));
        }
        // The URL parser is used, so that a host is spelt here as in a request.
        let scheme = if https { "https" } else { "http" };
        let url = Url::parse(&format!("{scheme}://{rest}/"))
            .map_err(|err| wrong(format!("its host is not a valid name or address: {err}")))?;
        let host = url.host_str().unwrap_or_default().trim_end_matches('.').to_owned();
        if host.is_empty() || (pattern && is_address(&host)) {
            return Err(wrong("its host is not a valid name or address".into()));
        }
        let host = if pattern { Host::Below(format!(".{host}")) } else { Host::Exactly(host) };
        Ok(Self::new(host, https, url.port(), methods, private))
    }
}

impl HostRule {
    fn new(
        host: Host,
        https: bool,
        port: Option<u16>,
        methods: Vec<Method>,
        private: bool,
    ) -> Self {
        let port = port.unwrap_or(if https { 443 } else { 80 });
        Self { host, https, port, methods, private }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_printed_as_it_is_parsed() {
        for (text, wanted) in [
            ("docs.rs", "GET|HEAD https://docs.rs:443"),
            ("*.Example.com", "GET|HEAD https://*.example.com:443"),
            ("*", "GET|HEAD https://*:443"),
            ("http://*:8080", "GET|HEAD http://*:8080"),
            ("GET|POST https://api.example.com:8443", "GET|POST https://api.example.com:8443"),
            ("private http://localhost:3000", "private GET|HEAD http://localhost:3000"),
            ("private POST http://[::1]", "private POST http://[::1]:80"),
            ("http://0x7f.1", "GET|HEAD http://127.0.0.1:80"),
            ("bücher.example", "GET|HEAD https://xn--bcher-kva.example:443"),
            ("example.com.", "GET|HEAD https://example.com:443"),
        ] {
            let rule: HostRule = text.parse().unwrap();
            assert_eq!(rule.to_string(), wanted, "{text}");
            assert_eq!(wanted.parse::<HostRule>().unwrap(), rule, "{text}");
        }
    }

    #[test]
    fn an_invalid_rule_names_the_error() {
        for (text, why) in [
            ("", "it must read [private] [METHOD|METHOD] [scheme://]host[:port]"),
            ("a b c", "it must read [private] [METHOD|METHOD] [scheme://]host[:port]"),
            ("TRACE docs.rs", "`TRACE` is not a method that can be allowed"),
            ("ftp://docs.rs", "the scheme `ftp` is neither http nor https"),
            ("docs.rs/path", "a rule names a host and a port, no path and no user"),
            ("me@docs.rs", "a rule names a host and a port, no path and no user"),
            ("a.*.com", "`*` must be the whole host or its beginning `*.`"),
            ("*docs.rs", "`*` must be the whole host or its beginning `*.`"),
            ("*.127.0.0.1", "its host is not a valid name or address"),
            ("*:x", "the port is not a number from 1 to 65535"),
        ] {
            let err = text.parse::<HostRule>().unwrap_err();
            let wanted = format!("reading the rule `{text}` of tools.allow_hosts: {why}");
            assert_eq!(err.to_string(), wanted);
        }
    }

    #[test]
    fn a_pattern_covers_subdomains_and_no_address() {
        for (rule, host, wanted) in [
            ("*.example.com", "a.example.com", true),
            ("*.example.com", "a.b.example.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", "badexample.com", false),
            ("example.com", "example.com", true),
            ("example.com", "example.com.evil.net", false),
            ("*", "anything.net", true),
            ("*", "8.8.8.8", false),
            ("*", "[2606:4700::1]", false),
            ("8.8.8.8", "8.8.8.8", true),
        ] {
            let parsed: HostRule = rule.parse().unwrap();
            assert_eq!(parsed.host.covers(host), wanted, "{rule} on {host}");
        }
    }
}
