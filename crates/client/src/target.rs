//! The address of a server.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A Unix socket on this machine.
    Unix(PathBuf),
    Http(Origin),
}

/// Scheme, host and port of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub(crate) tls: bool,
    /// A name or an address. An IPv6 address has no brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The error for a text that is not a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a server: {why}; write http://HOST:PORT, https://HOST, or unix:/PATH")]
pub struct TargetError {
    given: String,
    why: &'static str,
}

impl Target {
    /// Returns the value of the Host header.
    pub(crate) fn authority(&self) -> String {
        match self {
            Self::Unix(_) => "localhost".to_owned(),
            Self::Http(origin) => origin.authority(),
        }
    }
}

impl Origin {
    fn authority(&self) -> String {
        let default = if self.tls { 443 } else { 80 };
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == default { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Http(origin) => {
                let scheme = if origin.tls { "https" } else { "http" };
                write!(f, "{scheme}://{}", origin.authority())
            }
        }
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let fail = |why| TargetError { given: text.chars().take(200).collect(), why };
        if let Some(path) = text.strip_prefix("unix:") {
            // `unix:///path` is what other tools print.
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(fail("the socket's path must be absolute"));
            }
            return Ok(Self::Unix(path.into()));
        }
        let (tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return Err(fail("the scheme must be http, https or unix")),
            None => return Err(fail("it has no scheme")),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) {
            return Err(fail("it must not have a path"));
        }
        if rest.contains('@') {
            return Err(fail("credentials do not belong into it"));
        }
        let (host, port) = if let Some(rest) = rest.strip_prefix('[') {
            let (host, port) = rest.split_once(']').ok_or(fail("the bracket is not closed"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(fail("in the brackets is not an IPv6 address"));
            }
            (host, port)
        } else {
            rest.split_at(rest.find(':').unwrap_or(rest.len()))
        };
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b':');
        if host.is_empty() || !host.bytes().all(plain) {
            return Err(fail("the host is missing or malformed"));
        }
        let port = match port.strip_prefix(':') {
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().map_err(|_| fail("the port is not a number from 0 to 65535"))?
            }
            Some(_) => return Err(fail("the port is not a number from 0 to 65535")),
            None if port.is_empty() => {
                if tls {
                    443
                } else {
                    80
                }
            }
            None => return Err(fail("the port is not a number from 0 to 65535")),
        };
        Ok(Self::Http(Origin { tls, host: host.to_owned(), port }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_parsed_and_printed_back() {
        for (text, printed, authority) in [
            ("http://127.0.0.1:8420", "http://127.0.0.1:8420", "127.0.0.1:8420"),
            ("http://localhost/", "http://localhost", "localhost"),
            ("https://hive.example.org:443", "https://hive.example.org", "hive.example.org"),
            ("http://[::1]:8420", "http://[::1]:8420", "[::1]:8420"),
            ("unix:/run/o.sock", "unix:/run/o.sock", "localhost"),
            ("unix:///run/o.sock", "unix:/run/o.sock", "localhost"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(
                (target.to_string().as_str(), target.authority().as_str()),
                (printed, authority)
            );
        }
    }

    #[test]
    fn an_invalid_target_is_refused_with_the_reason() {
        for (text, why) in [
            ("localhost:8420", "no scheme"),
            ("ftp://x", "the scheme"),
            ("http://", "the host"),
            ("http://a b", "the host"),
            ("http://x/api", "a path"),
            ("http://u:p@x", "credentials"),
            ("http://x:99999", "the port"),
            ("http://x:1:2", "the port"),
            ("http://[::1", "the bracket"),
            ("http://[x]", "not an IPv6 address"),
            ("unix:o.sock", "absolute"),
        ] {
            let err = text.parse::<Target>().unwrap_err().to_string();
            assert!(err.contains(why), "{text}: {err}");
        }
    }
}
