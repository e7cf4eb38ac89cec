//! One exchange: request, redirects and response, each with limits.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE,
    HeaderMap, HeaderValue, LOCATION, USER_AGENT,
};
use reqwest::{Method, StatusCode, Url};
use serde_json::json;

use super::decode::Decoder;
use super::rule::{HostRule, Refused, allowed};
use super::{Address, Egress, Resolve, SETTING};
use crate::answer::{Failure, brief, cut};

/// Longest URL, and longest `Location` of a redirect.
const MAX_URL_BYTES: usize = 8192;
/// Maximum number of addresses of one name that are tried.
const MAX_ADDRESSES: usize = 16;
/// Compressed bytes that may arrive beyond the limit of decompressed ones: a body that decompresses
/// to nothing must end, too.
const PACKED_SLACK: usize = 64 << 10;
/// Headers that may follow a redirect to another origin. Every other header that a caller set may
/// be a credential, whatever its name is.
const PORTABLE: [reqwest::header::HeaderName; 4] =
    [ACCEPT, ACCEPT_LANGUAGE, ACCEPT_ENCODING, USER_AGENT];

/// A request of a tool.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Vec<u8>>,
    /// The time limit for everything: look-ups, connections, redirects, the body's last byte.
    pub(crate) timeout: Duration,
    /// Maximum number of bytes of the body to keep; the egress settings may lower it.
    pub(crate) max_bytes: usize,
}

/// The response.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The URL after all redirects.
    pub(crate) url: Url,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The decompressed body, cut at the limit.
    pub(crate) body: Vec<u8>,
    pub(crate) truncated: bool,
    pub(crate) redirects: Vec<String>,
    /// A redirect that was not followed, because it would have sent a body to another origin.
    pub(crate) unfollowed: Option<String>,
}

/// The egress client: the rules, the resolver, and the TLS trust.
#[derive(Debug)]
pub(crate) struct Door {
    egress: Egress,
    resolver: Arc<dyn Resolve>,
    /// Read once, because reading a machine's certificates takes milliseconds.
    tls: OnceLock<Result<rustls::ClientConfig, String>>,
}

/// A resolver that finds nothing: every name is resolved before a client is made.
struct NoLookups;

impl reqwest::dns::Resolve for NoLookups {
    fn resolve(&self, _: reqwest::dns::Name) -> reqwest::dns::Resolving {
        Box::pin(std::future::ready(Err("the name was not resolved by the egress rules".into())))
    }
}

impl Door {
    pub(crate) fn new(egress: Egress, resolver: Arc<dyn Resolve>) -> Self {
        Self { egress, resolver, tls: OnceLock::new() }
    }

    pub(crate) fn egress(&self) -> &Egress {
        &self.egress
    }

    /// Parses the URL of a call.
    pub(crate) fn target(given: &str) -> Result<Url, Failure> {
        if given.len() > MAX_URL_BYTES {
            return Err(Failure::bad_args(format!("url must not exceed {MAX_URL_BYTES} bytes")));
        }
        // The parser would silently drop some of them.
        if given.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(Failure::bad_args(
                "url must not contain white space or control characters; percent-encode them",
            ));
        }
        let url = Url::parse(given)
            .map_err(|err| Failure::bad_args(format!("url is not a URL: {err}")))?;
        proper(url).map_err(|why| Failure::bad_args(format!("url {why}")))
    }

    /// Makes one exchange.
    ///
    /// # Errors
    ///
    /// `egress_denied` if a rule is missing or an address is refused, before anything is sent
    /// there; `timeout`, `network_error`, `too_many_redirects`, `unsupported_content`,
    /// `size_limit`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection. Effects at the other side remain.
    pub(crate) async fn fetch(&self, request: Request) -> Result<Fetched, Failure> {
        let limit = request.timeout;
        let what = format!("{} {}", request.method, brief(request.url.as_str()));
        match tokio::time::timeout(limit, self.hops(request)).await {
            Ok(done) => done,
            Err(_) => Err(Failure::new(
                "timeout",
                format!("{what} did not end within {} s", limit.as_secs()),
            )
            .with_details(json!({"timeout_s": limit.as_secs()}))),
        }
    }

    async fn hops(&self, request: Request) -> Result<Fetched, Failure> {
        let Request { mut method, mut url, mut headers, mut body, max_bytes, .. } = request;
        let bound = self.egress.max_request_bytes;
        if let Some(bytes) = body.as_ref().map(Vec::len).filter(|bytes| *bytes > bound) {
            return Err(Failure::new("size_limit", "body exceeds max size")
                .with_details(json!({"bytes": bytes, "max_bytes": bound})));
        }
        headers
            .entry(USER_AGENT)
            .or_insert(HeaderValue::from_static(concat!("overmind/", env!("CARGO_PKG_VERSION"))));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate"));
        let mut redirects: Vec<String> = Vec::new();
        loop {
            let from = redirects.last().map(String::as_str);
            let rule = self.rule(&method, &url, from)?;
            let addresses = self.addresses(rule, &method, &url, from).await?;
            let client = self.client(&url, &addresses)?;
            let mut sending = client.request(method.clone(), url.clone()).headers(headers.clone());
            if let Some(body) = &body {
                sending = sending.body(body.clone());
            }
            let response = sending.send().await.map_err(|err| lost(&method, &url, err))?;
            let next = match target_of(&response, &url) {
                None => None,
                Some(Err(why)) => return Err(bad_redirect(&method, &url, &why)),
                Some(Ok(next)) => Some(next),
            };
            let Some(next) = next else {
                return self.answer(response, &method, url, redirects, None, max_bytes).await;
            };
            let status = response.status().as_u16();
            let to_get = match status {
                303 => method != Method::HEAD && method != Method::GET,
                301 | 302 => method == Method::POST,
                _ => false,
            };
            let elsewhere = next.origin() != url.origin();
            if elsewhere && body.is_some() && !to_get {
                let unfollowed = Some(next.to_string());
                return self.answer(response, &method, url, redirects, unfollowed, max_bytes).await;
            }
            if redirects.len() == self.egress.max_redirects {
                return Err(Failure::new(
                    "too_many_redirects",
                    format!(
                        "{method} {} was redirected more than {} times",
                        brief(redirects.first().map_or(url.as_str(), String::as_str)),
                        self.egress.max_redirects
                    ),
                ));
            }
            if to_get {
                (method, body) = (Method::GET, None);
                headers.remove(CONTENT_TYPE);
            }
            if elsewhere {
                let kept = PORTABLE.iter().filter_map(|name| {
                    headers.get(name).map(|value| (name.clone(), value.clone()))
                });
                headers = kept.collect();
            }
            redirects.push(next.to_string());
            url = next;
        }
    }

    fn rule(
        &self,
        method: &Method,
        url: &Url,
        redirected: Option<&str>,
    ) -> Result<&HostRule, Failure> {
        let why = match allowed(&self.egress.rules, method, url) {
            Ok(rule) => return Ok(rule),
            Err(Refused::Host) if self.egress.rules.is_empty() => {
                format!("{SETTING} is empty, so nothing outside can be reached")
            }
            Err(Refused::Host) => format!("no rule of {SETTING} names this host"),
            Err(Refused::Origin(origins)) => {
                format!("{SETTING} allows this host only as {}", several(origins))
            }
            Err(Refused::Method(methods)) => {
                format!("{SETTING} allows only {} there", several(methods))
            }
        };
        Err(denied(method, url, redirected, &format!("is not allowed: {why}")))
    }

    async fn addresses(
        &self,
        rule: &HostRule,
        method: &Method,
        url: &Url,
        redirected: Option<&str>,
    ) -> Result<Vec<SocketAddr>, Failure> {
        let host = url.host_str().unwrap_or_default();
        let found = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(ip) => vec![ip],
            Err(_) => self.resolver.resolve(host).await.map_err(|why| {
                Failure::new(
                    "network_error",
                    format!("looking up {}: {}", brief(host), cut(&why, 300)),
                )
            })?,
        };
        if found.is_empty() {
            return Err(Failure::new(
                "network_error",
                format!("looking up {}: the name has no address", brief(host)),
            ));
        }
        // One bad address makes the name unusable, because the connected one would be a matter of
        // chance.
        for ip in &found {
            if let Err(what) = rule.reaches(*ip) {
                let hint = match Address::of(*ip) {
                    Address::Private(_) => {
                        format!("; a rule of {SETTING} that begins with `private` would allow it")
                    }
                    Address::Public | Address::Never(_) => String::new(),
                };
                let why = format!("leads to {ip}, {what}, and is not connected to{hint}");
                return Err(denied(method, url, redirected, &why));
            }
        }
        let port = url.port_or_known_default().unwrap_or(0);
        Ok(found.into_iter().take(MAX_ADDRESSES).map(|ip| SocketAddr::new(ip, port)).collect())
    }

    /// A client for one hop, which can connect only to these addresses.
    fn client(&self, url: &Url, addresses: &[SocketAddr]) -> Result<reqwest::Client, Failure> {
        let tls = match url.scheme() {
            "https" => self.tls.get_or_init(|| verified(&self.egress)).clone(),
            _ => unused(),
        };
        let made = tls.and_then(|tls| {
            reqwest::Client::builder()
                .no_proxy()
                .redirect(reqwest::redirect::Policy::none())
                .retry(reqwest::retry::never())
                .referer(false)
                .http1_only()
                .pool_max_idle_per_host(0)
                .connect_timeout(self.egress.connect_timeout)
                .tls_backend_preconfigured(tls)
                .dns_resolver(Arc::new(NoLookups))
                .resolve_to_addrs(url.host_str().unwrap_or_default(), addresses)
                .build()
                .map_err(|err| chain(&err))
        });
        made.map_err(|why| Failure::tool_error(format!("preparing a connection: {why}")))
    }

    async fn answer(
        &self,
        mut response: reqwest::Response,
        method: &Method,
        url: Url,
        redirects: Vec<String>,
        unfollowed: Option<String>,
        max_bytes: usize,
    ) -> Result<Fetched, Failure> {
        let max = max_bytes.min(self.egress.max_response_bytes);
        let mut encodings = response.headers().get_all(CONTENT_ENCODING).iter();
        let encoding = encodings.next().and_then(|value| value.to_str().ok()).unwrap_or("");
        let unsupported = |name: &str| {
            Failure::new(
                "unsupported_content",
                format!(
                    "{method} {} came back packed as `{name}`, which was not asked for",
                    brief(url.as_str())
                ),
            )
            .outside(&url)
        };
        if encodings.next().is_some() {
            return Err(unsupported("several layers"));
        }
        let mut decoder = match *method == Method::HEAD {
            true => Decoder::new("", max),
            false => Decoder::new(encoding, max),
        }
        .map_err(|name| unsupported(&name))?;
        let (mut packed, mut truncated) = (0_usize, false);
        while let Some(piece) =
            response.chunk().await.map_err(|err| lost(method, &url, err).outside(&url))?
        {
            packed += piece.len();
            let more = decoder.push(&piece).map_err(|err| damaged(method, &url, &err))?;
            if !more || packed > max + PACKED_SLACK {
                truncated = true;
                break;
            }
        }
        let body = decoder.finish(!truncated).map_err(|err| damaged(method, &url, &err))?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        Ok(Fetched { url, status, headers, body, truncated, redirects, unfollowed })
    }
}

impl Fetched {
    pub(crate) fn content_type(&self) -> &str {
        self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The body's compressed size as the response declares it; `None` if it does not.
    pub(crate) fn told_bytes(&self) -> Option<u64> {
        self.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
    }
}

/// The media type without its parameters, in lower case.
pub(crate) fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether a body of this type, or without a type, is text.
pub(crate) fn is_text(media: &str, body: &[u8]) -> bool {
    let by_name = media.starts_with("text/")
        || media.ends_with("+json")
        || media.ends_with("+xml")
        || matches!(
            media,
            "application/json"
                | "application/xml"
                | "application/javascript"
                | "application/x-www-form-urlencoded"
                | "application/x-ndjson"
                | "application/yaml"
                | "application/toml"
        );
    by_name || (media.is_empty() && !body.contains(&0) && cut_utf8(body))
}

fn cut_utf8(body: &[u8]) -> bool {
    std::str::from_utf8(body).map_or_else(|err| err.error_len().is_none(), |_| true)
}

/// Checks every URL, given or from a redirect.
fn proper(mut url: Url) -> Result<Url, String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must begin with http:// or https://".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not contain credentials; put them in a header".into());
    }
    url.set_fragment(None);
    // `example.com.` is treated as `example.com`, by the rules as elsewhere.
    if let Some(host) = url.host_str().and_then(|host| host.strip_suffix('.')).map(str::to_owned) {
        url.set_host(Some(&host)).map_err(|err| format!("has no usable host: {err}"))?;
    }
    Ok(url)
}

/// The target of a redirect, if the response is one.
fn target_of(response: &reqwest::Response, url: &Url) -> Option<Result<Url, String>> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(LOCATION)?;
    let read = || {
        let text = location.to_str().map_err(|_| "to something that is not a URL".to_owned())?;
        if text.len() > MAX_URL_BYTES {
            return Err(format!("to a URL of more than {MAX_URL_BYTES} bytes"));
        }
        let next = url.join(text).map_err(|_| "to something that is not a URL".to_owned())?;
        proper(next).map_err(|why| format!("to a URL that {why}"))
    };
    Some(read())
}

fn bad_redirect(method: &Method, url: &Url, why: &str) -> Failure {
    let message = format!("{method} {} was redirected {why}", brief(url.as_str()));
    Failure::new("egress_denied", message).outside(url)
}

fn denied(method: &Method, url: &Url, redirected: Option<&str>, why: &str) -> Failure {
    let origin = url.origin().ascii_serialization();
    let details = json!({"host": url.host_str(), "method": method.as_str(), "setting": SETTING});
    match redirected {
        None => Failure::new("egress_denied", format!("{origin} {why}; nothing was sent"))
            .with_details(details),
        Some(_) => {
            let message = format!("redirected to {origin}, which {why}; nothing was sent there");
            Failure::new("egress_denied", message).with_details(details).outside(url)
        }
    }
}

fn lost(method: &Method, url: &Url, err: reqwest::Error) -> Failure {
    let code = if err.is_timeout() { "timeout" } else { "network_error" };
    let why = chain(&err.without_url());
    Failure::new(code, format!("{method} {}: {}", brief(url.as_str()), cut(&why, 300)))
}

fn damaged(method: &Method, url: &Url, err: &std::io::Error) -> Failure {
    let message = format!("{method} {}: the packed body is damaged: {err}", brief(url.as_str()));
    Failure::new("network_error", message).outside(url)
}

fn several(mut all: Vec<String>) -> String {
    all.sort();
    all.dedup();
    all.truncate(5);
    all.join(", ")
}

/// Joins an error and its causes, each once.
fn chain(err: &dyn std::error::Error) -> String {
    let (mut text, mut next) = (err.to_string(), err.source());
    while let Some(err) = next {
        let more = err.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = err.source();
    }
    text
}

/// The TLS trust: the machine's certificates, and those of the settings.
fn verified(egress: &Egress) -> Result<rustls::ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls_platform_verifier::Verifier::new_with_extra_roots(
        egress.extra_roots.iter().cloned(),
        Arc::clone(&provider),
    )
    .map_err(|err| format!("reading this machine's certificates: {err}"))?;
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|err| err.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// A hop without TLS cannot become one with TLS.
fn unused() -> Result<rustls::ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|err| err.to_string())?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth())
}
