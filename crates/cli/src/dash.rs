//! `overmind dash`: a link that signs a browser in to the dashboard.

use overmind_client::Target;
use overmind_node::app::lock::read_server_file;
use serde_json::json;

use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::remote::Remote;

/// Makes a link and prints it.
///
/// # Errors
///
/// When the server listens on its socket alone: no browser reaches it there.
pub async fn run(cx: &Context) -> Outcome {
    let remote = Remote::connect(cx)?;
    let url = match remote.client().target() {
        Target::Unix(_) => read_server_file(&cx.data()?).and_then(|file| file.url),
        other => Some(other.to_string()),
    };
    let url = url.ok_or_else(|| {
        Failure::failed("the server listens only on its Unix socket, which a browser cannot open")
            .hint("start it with `overmind up --listen 127.0.0.1:8420`")
    })?;
    let link = remote.client().sign_in_link().await.map_err(Failure::from)?;
    let url = format!("{}{}", browsed(&url), link.path);
    let value = json!({"url": url, "expires_at": link.expires_at});
    if cx.out.for_people() {
        cx.out.line(&url)?;
        cx.out.note("it can sign in one browser, once, within a minute");
    } else {
        cx.out.value(&value)?;
    }
    Ok(Exit::Done)
}

/// The address to open. Browsers share cookies between all ports of a host, and runs serve pages on
/// ports of 127.0.0.1 and localhost: so the dashboard has a loopback name of its own.
fn browsed(url: &str) -> String {
    let port = ["http://127.0.0.1:", "http://localhost:", "http://[::1]:"]
        .iter()
        .find_map(|loopback| url.strip_prefix(loopback));
    match port {
        Some(port) => format!("http://overmind.localhost:{}", port.trim_end_matches('/')),
        None => url.trim_end_matches('/').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_address_gets_a_host_name_that_no_run_uses() {
        for (url, opened) in [
            ("http://127.0.0.1:8420", "http://overmind.localhost:8420"),
            ("http://localhost:1/", "http://overmind.localhost:1"),
            ("https://127.0.0.1:8420", "https://127.0.0.1:8420"),
            ("https://hive.example.org/", "https://hive.example.org"),
        ] {
            assert_eq!(browsed(url), opened);
        }
    }
}
