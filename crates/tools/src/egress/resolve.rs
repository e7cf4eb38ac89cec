//! The port for name resolution, so that tests can replace a name server.

use std::fmt;
use std::net::IpAddr;

use overmind_core::Fut;

/// Finds the addresses of a name.
pub trait Resolve: Send + Sync + fmt::Debug {
    /// All addresses of `host`, in the order in which they should be tried.
    ///
    /// # Errors
    ///
    /// Explains in words why the name has no address.
    fn resolve<'a>(&'a self, host: &'a str) -> Fut<'a, Result<Vec<IpAddr>, String>>;
}

/// The machine's own resolver: `/etc/hosts`, then the configured name servers.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> Fut<'a, Result<Vec<IpAddr>, String>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await.map_err(|err| err.to_string())?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}
