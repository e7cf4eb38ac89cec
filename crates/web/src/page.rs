//! The common parts of all pages: the frame, and the headers of an answer.

use askama::Template;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};
use overmind_view::clean;

use crate::assets;
use crate::form;
use crate::port::{Refusal, Visitor};
use crate::sections::SECTIONS;

/// An answer with a complete body.
pub(crate) type Html = http::Response<Bytes>;

/// The content security policy: pages may load nothing inline and nothing from elsewhere.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; \
     base-uri 'none'";

/// The frame around a page.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) title: String,
    pub(crate) nav: Vec<Nav>,
    pub(crate) name: String,
    pub(crate) role: &'static str,
    /// The visitor's rights: to act on runs, to change other objects, and to change global
    /// settings.
    pub(crate) acts: bool,
    pub(crate) changes: bool,
    pub(crate) rules: bool,
    pub(crate) csrf: String,
    /// The error of the last form.
    pub(crate) notice: Option<String>,
    /// The result of the last form.
    pub(crate) said: Option<String>,
    pub(crate) version: &'static str,
    /// The run of the page, for the script.
    pub(crate) run: String,
}

#[derive(Debug)]
pub(crate) struct Nav {
    pub(crate) title: &'static str,
    pub(crate) path: &'static str,
    pub(crate) key: &'static str,
    pub(crate) current: bool,
}

impl Frame {
    /// Creates the frame. `here`: the path of the section to which the page belongs.
    pub(crate) fn new(
        title: impl Into<String>,
        here: &str,
        visitor: &Visitor,
        secret: &str,
        notice: Option<Refusal>,
    ) -> Self {
        let shown = SECTIONS.iter().filter(|section| (section.shown)(visitor.role));
        let nav = shown.map(|section| Nav {
            title: section.title,
            path: section.path,
            key: section.key,
            current: section.path == here,
        });
        Self {
            title: clean::line(&title.into()).into_owned(),
            nav: nav.collect(),
            name: clean::line(&visitor.name).into_owned(),
            role: visitor.role.as_str(),
            acts: visitor.acts(),
            changes: visitor.changes(),
            rules: visitor.rules(),
            said: None,
            csrf: form::csrf(secret),
            notice: notice.map(|refusal| clean::block(&refusal.message).into_owned()),
            version: assets::VERSION.as_str(),
            run: String::new(),
        }
    }
}

/// Renders a page with the common headers.
pub(crate) fn html(status: StatusCode, template: &impl Template) -> Html {
    let (status, text) = match template.render() {
        Ok(text) => (status, text),
        Err(err) => (StatusCode::INTERNAL_SERVER_ERROR, format!("this page failed: {err}")),
    };
    let failed = status == StatusCode::INTERNAL_SERVER_ERROR;
    let mut response = http::Response::new(Bytes::from(text));
    *response.status_mut() = status;
    let kind = if failed { "text/plain; charset=utf-8" } else { "text/html; charset=utf-8" };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    let opener = HeaderName::from_static("cross-origin-opener-policy");
    headers.insert(opener, HeaderValue::from_static("same-origin"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns JSON for one of the dashboard's scripts.
pub(crate) fn json(value: &serde_json::Value) -> Html {
    let mut response = http::Response::new(Bytes::from(value.to_string()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let sniff = HeaderName::from_static("x-content-type-options");
    headers.insert(sniff, HeaderValue::from_static("nosniff"));
    response
}

/// Redirects the browser after a form, so that reloading repeats nothing.
pub(crate) fn see_other(path: &str) -> Html {
    let mut response = http::Response::new(Bytes::new());
    *response.status_mut() = StatusCode::SEE_OTHER;
    if let Ok(target) = HeaderValue::from_str(form::own_path(path)) {
        response.headers_mut().insert(header::LOCATION, target);
    }
    response
}

#[derive(Template)]
#[template(path = "trouble.html")]
struct Trouble {
    frame: Frame,
    status: u16,
    message: String,
}

/// Renders the page for a request that failed, with the reason.
pub(crate) fn trouble(visitor: &Visitor, secret: &str, refusal: &Refusal) -> Html {
    let frame = Frame::new("Not shown", "", visitor, secret, None);
    let (status, message) = (refusal.status.as_u16(), clean::block(&refusal.message).into_owned());
    html(refusal.status, &Trouble { frame, status, message })
}
