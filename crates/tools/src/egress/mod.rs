//! The one door to the network: what a tool may reach, and the only code that connects.
//!
//! [`Egress`] says what is allowed; `Door::fetch` does one exchange by it. The order is fixed
//! and the same at the first request and at every redirect: the URL's form, the rule that allows
//! scheme, host, port and method, the addresses behind the name, the connection. A name is
//! resolved once per hop through the port [`Resolve`], every address of the answer is judged
//! ([`Address::of`]), and the connection is made to those very addresses: there is no second
//! look-up that a rebinding name server could answer differently. The library's own look-ups are
//! switched off, and so are proxies from the environment.
//!
//! What it refuses: everything, until a rule allows it. Beyond the rules: URLs with credentials,
//! addresses that are not public (a rule may say `private` for loopback and private networks),
//! link-local, metadata, multicast and reserved addresses always, bodies that grow beyond their
//! bound, also when they unpack to it.
//!
//! What it does not do: HTTP/2, cookies, caches, client certificates, NAT64 (an address that
//! wraps an IPv4 address is refused, so an IPv6-only network behind NAT64 reaches nothing).

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

/// What the tools that reach out may reach, and their bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Egress {
    /// Nothing is reachable that no rule allows.
    pub rules: Vec<HostRule>,
    /// Redirects followed in one call.
    pub max_redirects: usize,
    /// For one connection, TLS included.
    pub connect_timeout: Duration,
    /// Most bytes of a request's body.
    pub max_request_bytes: usize,
    /// Most bytes of a response's body that are read, packed and unpacked alike.
    pub max_response_bytes: usize,
    /// Certificates that are trusted besides the machine's own.
    pub extra_roots: Vec<CertificateDer<'static>>,
}

impl Default for Egress {
    /// Nothing is allowed.
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
    /// Reads rules as the setting `tools.allow_hosts` holds them, one text each; see
    /// [`HostRule`] for the form.
    ///
    /// # Errors
    ///
    /// [`RuleError`] of the first text that is no rule.
    pub fn allowing<S: AsRef<str>>(rules: &[S]) -> Result<Self, RuleError> {
        let rules = rules.iter().map(|rule| rule.as_ref().parse()).collect::<Result<_, _>>()?;
        Ok(Self { rules, ..Self::default() })
    }
}
