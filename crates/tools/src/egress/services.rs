//! Calls services of the vault with the same egress code as the tools' requests: one origin each,
//! no redirect, and addresses are checked before anything is sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use overmind_core::Fut;
use overmind_core::vault::outbound::{Outbound, OutboundCall, OutboundError, OutboundReply};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};

use super::{Door, Egress, Request, Resolve};

/// Maximum number of origins whose clients are cached, because each has read the machine's
/// certificates.
const MOST: usize = 256;
/// The size limit of any body; the calls have their own limits.
const MAX_BODY: usize = 64 << 20;

/// Makes the calls. It is cheap to create.
#[derive(Debug)]
pub struct Services {
    resolver: Arc<dyn Resolve>,
    doors: Mutex<HashMap<(String, bool), Arc<Door>>>,
}

impl Services {
    pub fn new(resolver: Arc<dyn Resolve>) -> Self {
        Self { resolver, doors: Mutex::default() }
    }

    /// The client for this origin only.
    fn door(&self, url: &Url, private: bool) -> Result<Arc<Door>, OutboundError> {
        let origin = url.origin().ascii_serialization();
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(door) = doors.get(&(origin.clone(), private)) {
            return Ok(Arc::clone(door));
        }
        let methods = "GET|HEAD|POST|PUT|PATCH|DELETE";
        let rule = match private {
            true => format!("private {methods} {origin}"),
            false => format!("{methods} {origin}"),
        };
        let egress = Egress {
            max_redirects: 0,
            max_request_bytes: MAX_BODY,
            max_response_bytes: MAX_BODY,
            ..Egress::allowing(&[rule])
                .map_err(|_| OutboundError::Refused("its URL is none that a rule can name"))?
        };
        let door = Arc::new(Door::new(egress, Arc::clone(&self.resolver)));
        if doors.len() >= MOST {
            doors.clear();
        }
        doors.insert((origin, private), Arc::clone(&door));
        Ok(door)
    }

    async fn exchange(&self, call: OutboundCall) -> Result<OutboundReply, OutboundError> {
        let OutboundCall { method, url, headers, body, timeout, max_response, private } = call;
        let url = Url::parse(&url).map_err(|_| OutboundError::Refused("its URL is none"))?;
        let door = self.door(&url, private)?;
        let mut map = HeaderMap::new();
        for (name, value) in &headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            let value = HeaderValue::from_bytes(value);
            let (Ok(name), Ok(mut value)) = (name, value) else {
                return Err(OutboundError::Refused("a header holds what HTTP does not allow"));
            };
            value.set_sensitive(true);
            map.append(name, value);
        }
        let request = Request {
            method: Method::from_bytes(method.as_str().as_bytes()).expect("it is a usual one"),
            url,
            headers: map,
            body: (!body.is_empty()).then_some(body),
            timeout,
            max_bytes: max_response,
        };
        let done = door.fetch(request).await.map_err(|failure| match failure.code() {
            "egress_denied" => OutboundError::Refused("its address is not public"),
            "timeout" => OutboundError::Timeout,
            "too_many_redirects" => OutboundError::Redirect,
            "unsupported_content" | "size_limit" => OutboundError::Broken,
            _ => OutboundError::Unreachable,
        })?;
        if done.unfollowed.is_some() {
            return Err(OutboundError::Redirect);
        }
        let headers = done.headers.iter();
        Ok(OutboundReply {
            status: done.status.as_u16(),
            headers: headers
                .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
                .collect(),
            body: done.body,
            truncated: done.truncated,
        })
    }
}

impl Outbound for Services {
    fn send(&self, call: OutboundCall) -> Fut<'_, Result<OutboundReply, OutboundError>> {
        Box::pin(self.exchange(call))
    }
}
