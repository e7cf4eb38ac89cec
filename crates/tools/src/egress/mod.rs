//! The only network access of tools: decides what a tool may reach, and contains the only code that
//! connects.
//!
//! [`Egress`] holds the rules; `Door::fetch` makes one exchange by them. The order is fixed, at the
//! first request and at every redirect: the URL's form, the rule that allows scheme, host, port and
//! method, the addresses of the name, the connection. A name is resolved once per hop through the
//! port [`Resolve`], every returned address is checked ([`Address::of`]), and the connection goes
//! to exactly these addresses: there is no second look-up that a rebinding name server could answer
//! differently. The library's own look-ups and proxies from the environment are switched off.
//!
//! Everything is refused until a rule allows it. Always refused are URLs with credentials;
//! addresses that are not public (a rule may say `private` for loopback and private networks);
//! link-local, metadata, multicast and reserved addresses; and bodies that exceed their limit, also
//! after decompression.
//!
//! Not supported are HTTP/2, cookies, caches, client certificates and NAT64 (an address that wraps
//! an IPv4 address is refused, so an IPv6-only network behind NAT64 reaches nothing).

mod address;
mod decode;
mod fetch;
mod resolve;
mod rule;
mod services;

pub use address::Address;
pub use resolve::{Resolve, SystemResolver};
pub use rule::{HostRule, RuleError};
pub use services::Services;

pub(crate) use decode::{charset_of, text_of};
pub(crate) use fetch::{Door, Fetched, Request, is_text, media_type};
pub(crate) use rule::METHODS;

use std::time::Duration;

use rustls::pki_types::CertificateDer;

/// The setting that error messages name.
pub(crate) const SETTING: &str = "tools.allow_hosts";

/// What tools may reach on the network, with limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Egress {
    /// The allow-list; everything else is unreachable.
    pub rules: Vec<HostRule>,
    /// Maximum number of redirects followed in one call.
    pub max_redirects: usize,
    /// The time limit for one connection, including TLS.
    pub connect_timeout: Duration,
    /// Maximum number of bytes of a request's body.
    pub max_request_bytes: usize,
    /// Maximum number of bytes of a response's body that are read, both compressed and
    /// decompressed.
    pub max_response_bytes: usize,
    /// Certificates that are trusted in addition to the machine's.
    pub extra_roots: Vec<CertificateDer<'static>>,
}

impl Default for Egress {
    /// Allows nothing.
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            max_redirects: 5,
            connect_timeout: Duration::from_secs(10),
            max_request_bytes: 1 << 20,
            max_response_bytes: 4 << 20,
            extra_roots: Vec::new(),
        }
    }
}

impl Egress {
    /// Reads rules in the form of the setting `tools.allow_hosts`, one text each; [`HostRule`]
    /// describes the form.
    ///
    /// # Errors
    ///
    /// [`RuleError`] for the first text that is no rule.
    pub fn allowing<S: AsRef<str>>(rules: &[S]) -> Result<Self, RuleError> {
        let rules = rules.iter().map(|rule| rule.as_ref().parse()).collect::<Result<_, _>>()?;
        Ok(Self { rules, ..Self::default() })
    }
}
