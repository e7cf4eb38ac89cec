//! Style sheets and scripts, embedded in the program.

use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{self, HeaderValue};

use crate::page::Html;

const STYLE: &str =
    concat!(include_str!("../assets/tokens.css"), include_str!("../assets/app.css"));
const SCRIPT: &str = include_str!("../assets/app.js");
const NOTIFY: &str = include_str!("../assets/notify.js");
const TERMINAL: &str = include_str!("../assets/terminal.js");
const XTERM: &str = include_str!("../assets/vendor/xterm/xterm.mjs");
const XTERM_FIT: &str = include_str!("../assets/vendor/xterm/addon-fit.mjs");
const XTERM_STYLE: &str = include_str!("../assets/vendor/xterm/xterm.css");
const XTERM_LICENCE: &str = include_str!("../assets/vendor/xterm/LICENSE");
const ICON: &str = include_str!("../assets/icon.svg");

/// A hash of all files. Pages add it to the names of files, so browsers may cache them.
pub(crate) static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hash = blake3::Hasher::new();
    hash.update(STYLE.as_bytes()).update(SCRIPT.as_bytes());
    hash.update(NOTIFY.as_bytes()).update(ICON.as_bytes());
    hash.update(TERMINAL.as_bytes()).update(XTERM.as_bytes());
    hash.update(XTERM_FIT.as_bytes()).update(XTERM_STYLE.as_bytes());
    hash.finalize().to_hex().chars().take(12).collect()
});

/// Returns the file of `/assets/{name}`.
pub(crate) fn file(name: &str) -> Option<Html> {
    let (kind, text) = match name {
        "app.css" => ("text/css; charset=utf-8", STYLE),
        "app.js" => ("text/javascript; charset=utf-8", SCRIPT),
        "notify.js" => ("text/javascript; charset=utf-8", NOTIFY),
        "terminal.js" => ("text/javascript; charset=utf-8", TERMINAL),
        "xterm.mjs" => ("text/javascript; charset=utf-8", XTERM),
        "xterm-fit.mjs" => ("text/javascript; charset=utf-8", XTERM_FIT),
        "xterm.css" => ("text/css; charset=utf-8", XTERM_STYLE),
        "xterm-licence.txt" => ("text/plain; charset=utf-8", XTERM_LICENCE),
        "icon.svg" => ("image/svg+xml", ICON),
        _ => return None,
    };
    let mut response = http::Response::new(Bytes::from_static(text.as_bytes()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    let keep = HeaderValue::from_static("public, max-age=31536000, immutable");
    headers.insert(header::CACHE_CONTROL, keep);
    Some(response)
}
