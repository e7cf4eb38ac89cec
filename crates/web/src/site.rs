//! Dispatches requests to pages.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};

use crate::form::{self, Fields};
use crate::page::{Html, see_other};
use crate::port::{Port, Refusal, Visitor};
use crate::{
    agents, assets, costs, lists, login, memory, mesh, now, page, resources, run, run_pages, start,
};

/// Longest form that is read, in bytes.
const MAX_FORM: usize = 1 << 20;

/// A request to a page, with its body.
pub struct Incoming<'a> {
    pub parts: &'a Parts,
    pub body: Bytes,
    /// Whether it came over TLS, so that cookies may be `Secure`.
    pub secure: bool,
}

/// The result of a request.
pub enum Answer {
    /// A page, a redirect or a file.
    Page(http::Response<Bytes>),
    /// The API's streamed answer at this target, requested with this key.
    Stream { secret: String, target: String },
    /// The API's WebSocket at this target, with this key and the headers of its handshake.
    Socket { secret: String, target: String },
}

impl std::fmt::Debug for Incoming<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (method, path) = (&self.parts.method, self.parts.uri.path());
        f.debug_struct("Incoming")
            .field("method", method)
            .field("path", &path)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Page(response) => f.debug_tuple("Page").field(&response.status()).finish(),
            Self::Socket { target, .. } => f.debug_tuple("Socket").field(target).finish(),
            Self::Stream { target, .. } => f.debug_tuple("Stream").field(target).finish(),
        }
    }
}

/// The context of a page's handler.
pub(crate) struct Ask<'a> {
    pub(crate) port: &'a dyn Port,
    pub(crate) secret: &'a str,
    pub(crate) visitor: &'a Visitor,
    pub(crate) query: Fields,
}

/// Returns whether a path belongs to the dashboard. The API has `/api`, `/mesh`, `/mcp`, `/llm`,
/// `/metrics` and the health paths.
pub fn serves(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    path.starts_with('/')
        && !path.starts_with("//")
        && matches!(
            first,
            "" | "login"
                | "logout"
                | "runs"
                | "agents"
                | "resources"
                | "memory"
                | "board"
                | "costs"
                | "settings"
                | "inbox"
                | "live"
                | "assets"
                | "favicon.ico"
        )
}

/// Returns whether a path belongs neither to the dashboard nor to the API. A browser that requests
/// it gets a page that says so.
pub fn is_stray(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    let api = ["api", "mesh", "mcp", "llm", "metrics", "health", "healthz", "readyz"];
    path.starts_with('/') && !path.starts_with("//") && !serves(path) && !api.contains(&first)
}

/// Answers one request. Never fails: an error becomes a page that describes it.
pub async fn answer(port: &dyn Port, incoming: Incoming<'_>) -> Answer {
    let Incoming { parts, body, secure } = incoming;
    let path = parts.uri.path();
    let query = Fields::parse(parts.uri.query().unwrap_or_default());
    let reads = matches!(parts.method, Method::GET | Method::HEAD);
    if let Some(name) = path.strip_prefix("/assets/") {
        return Answer::Page(assets::file(name).unwrap_or_else(not_here));
    }
    if path == "/favicon.ico" {
        return Answer::Page(assets::file("icon.svg").unwrap_or_else(not_here));
    }
    let posts = parts.method == Method::POST;
    if !reads && !posts {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "pages take GET, forms POST");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
        return Answer::Page(response);
    }
    if body.len() > MAX_FORM {
        return Answer::Page(plain(StatusCode::PAYLOAD_TOO_LARGE, "a form has at most 1 MiB"));
    }
    let text = String::from_utf8_lossy(&body);
    let fields = if posts { Fields::parse(&text) } else { Fields::default() };
    if path == "/login" {
        let door = login::Door { port, headers: &parts.headers, secure };
        return Answer::Page(if posts {
            door.enter(&fields).await
        } else {
            door.show(&query).await
        });
    }
    let secret = form::cookie(&parts.headers);
    let visitor = match &secret {
        Some(secret) => port.visitor(secret).await,
        None => Err(Refusal { status: StatusCode::UNAUTHORIZED, message: String::new() }),
    };
    let (secret, visitor) = match (secret, visitor) {
        (Some(secret), Ok(visitor)) => (secret, visitor),
        (secret, Err(refusal)) => {
            return Answer::Page(login::asked(secret.is_some(), &refusal, parts, fields));
        }
        (None, Ok(_)) => return Answer::Page(see_other("/login")),
    };
    if posts && !form::is_ours(&secret, fields.get("csrf")) {
        let message = "this form was not made for your sign-in; reload the page and send it again";
        let refusal = Refusal { status: StatusCode::FORBIDDEN, message: message.to_owned() };
        return Answer::Page(page::trouble(&visitor, &secret, &refusal));
    }
    let ask = Ask { port, secret: &secret, visitor: &visitor, query };
    let parts_of: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if let (false, ["runs", name, rest @ ..]) = (posts, parts_of.as_slice())
        && let Some(id) = run::id_of(&ask, name).await
    {
        let path: String = rest.iter().map(|part| format!("/{part}")).collect();
        let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        return Answer::Page(see_other(&format!("/runs/{id}{path}{query}")));
    }
    let done = match (posts, parts_of.as_slice()) {
        (false, []) => now::show(&ask, None).await,
        (false, ["live"]) => return stream(&secret, "/api/events/stream".to_owned()),
        (false, ["runs"]) => lists::runs(&ask).await,
        (false, ["runs", "new"]) => start::show(&ask, &Fields::default(), None).await,
        (false, ["runs", id]) => run::show(&ask, id, None).await,
        (false, ["runs", id, "changes"]) => run_pages::changes(&ask, id, None).await,
        (false, ["runs", id, "artifacts"]) => run_pages::artifacts(&ask, id).await,
        (false, ["runs", id, "artifacts", ..]) => {
            // The undecoded path: a name may contain escaped characters.
            let name = path.splitn(5, '/').nth(4).unwrap_or_default();
            let target = format!("/api/runs/{}/artifacts/{name}", form::encoded(id));
            return stream(&secret, target);
        }
        (false, ["runs", id, "terminal"]) => run_pages::terminal(&ask, id).await,
        (false, ["runs", id, "terminal", "socket"]) => {
            return match socket(&ask, id, parts) {
                Ok(target) => Answer::Socket { secret, target },
                Err(refusal) => Answer::Page(page::trouble(&visitor, &secret, &refusal)),
            };
        }
        (false, ["runs", id, "log"]) => run_pages::log(&ask, id, None).await,
        (false, ["runs", id, "replay"]) => run_pages::replay(&ask, id, None).await,
        (true, ["runs", id, verb @ ("done" | "undo")]) => {
            run_pages::decide(&ask, id, verb, &fields).await
        }
        (true, ["runs", id, "verify"]) => run_pages::verify(&ask, id).await,
        (true, ["runs", id, "fork"]) => run_pages::fork(&ask, id, &fields).await,
        (false, ["runs", id, "output"]) => {
            let id = form::encoded(id);
            return stream(&secret, format!("/api/runs/{id}/log?tail=0&follow=true"));
        }
        (false, ["agents"]) => lists::agents(&ask).await,
        (false, ["agents", "new"]) => agents::fresh(&ask),
        (false, ["agents", id]) => agents::one(&ask, id).await,
        (true, ["agents"]) => agents::write(&ask, None, &fields).await,
        (true, ["agents", id]) => agents::write(&ask, Some(id), &fields).await,
        (true, ["agents", id, verb @ ("disable" | "enable" | "remove")]) => {
            agents::act(&ask, id, verb).await
        }
        (false, ["resources"]) => resources::kinds(&ask).await,
        (false, ["resources", kind]) => resources::table(&ask, kind, None).await,
        (false, ["resources", kind, name]) => resources::one(&ask, kind, name, None, None).await,
        (true, ["resources", kind]) => resources::write(&ask, kind, None, &fields).await,
        (true, ["resources", kind, name]) => {
            resources::write(&ask, kind, Some(name), &fields).await
        }
        (
            true,
            [
                "resources",
                kind,
                name,
                verb @ ("delete" | "pause" | "resume" | "run" | "scale" | "restart" | "undo"),
            ],
        ) => resources::act(&ask, kind, name, verb, &fields).await,
        (false, ["memory"]) => memory::show(&ask, None).await,
        (true, ["memory"]) => memory::add(&ask, &fields).await,
        (true, ["memory", id, "forget"]) => memory::forget(&ask, id).await,
        (false, ["board"]) => mesh::show(&ask).await,
        (false, ["costs"]) => costs::show(&ask, None).await,
        (true, ["costs", verb @ ("halt" | "resume" | "budget" | "forget")]) => {
            costs::act(&ask, verb, &fields).await
        }
        (_, ["settings", rest @ ..]) => settings_pages(&ask, posts, rest, &fields).await,
        (false, ["inbox", "count"]) => now::count(&ask).await,
        (true, ["inbox", id]) => now::decide(&ask, id, &fields).await,
        (true, ["runs"]) => start::begin(&ask, &fields).await,
        (true, ["runs", id, verb @ ("stop" | "kill" | "send")]) => {
            run::act(&ask, id, verb, &fields).await
        }
        (true, ["logout"]) => match port.sign_out(&secret).await {
            Ok(()) => {
                let mut response = see_other("/login");
                let gone = form::set_cookie(&parts.headers, "", 0, secure);
                if let Ok(value) = HeaderValue::from_str(&gone) {
                    response.headers_mut().insert(header::SET_COOKIE, value);
                }
                Ok(response)
            }
            Err(refusal) => Err(refusal),
        },
        (_, _) => Err(no_page()),
    };
    let html = done.unwrap_or_else(|refusal| page::trouble(&visitor, &secret, &refusal));
    Answer::Page(html)
}

/// Dispatches the pages of `/settings` and their forms.
async fn settings_pages(
    ask: &Ask<'_>,
    posts: bool,
    rest: &[&str],
    fields: &Fields,
) -> Result<Html, Refusal> {
    use crate::{settings as all, settings_admin as admin};

    match (posts, rest) {
        (false, []) => all::health(ask, all::Done::default()).await,
        (true, [verb @ ("verify" | "backup")]) => all::act(ask, verb, fields).await,
        (false, ["policy"]) => all::policy(ask, None).await,
        (true, ["policy"]) => all::policy(ask, Some(fields)).await,
        (false, ["tools"]) => admin::tools(ask, None).await,
        (true, ["tools", verb @ ("add" | "remove" | "pin" | "unpin")]) => {
            admin::tools_act(ask, verb, fields).await
        }
        (_, ["models" | "keys", ..]) if let Err(refusal) = admin::admins_only(ask) => Err(refusal),
        (false, ["models"]) => admin::models(ask, None).await,
        (true, ["models", verb @ ("set" | "remove")]) => admin::models_act(ask, verb, fields).await,
        (false, ["keys"]) => admin::keys(ask, None, None).await,
        (true, ["keys", verb @ ("create" | "revoke")]) => admin::keys_act(ask, verb, fields).await,
        (_, _) => Err(no_page()),
    }
}

fn no_page() -> Refusal {
    let message = "there is no such page".to_owned();
    Refusal { status: StatusCode::NOT_FOUND, message }
}

/// Returns the API's WebSocket for the terminal of a run. It is read-only unless the request asks
/// to type.
///
/// # Errors
///
/// Returns the refusal of a handshake without an origin, because a cookie alone must not open a
/// terminal. The server has already refused other origins.
fn socket(ask: &Ask<'_>, id: &str, parts: &Parts) -> Result<String, Refusal> {
    if !parts.headers.contains_key(header::ORIGIN) {
        let message = "a terminal is opened by the page of its run; use `overmind attach RUN`";
        let status = StatusCode::FORBIDDEN;
        return Err(Refusal { status, message: message.to_owned() });
    }
    let mode = if ask.query.get("mode") == "write" { "write" } else { "read" };
    let mut target = format!("/api/runs/{}/attach?mode={mode}", form::encoded(id));
    for name in ["columns", "rows"] {
        if !ask.query.get(name).is_empty() {
            target.push_str(&format!("&{name}={}", form::encoded(ask.query.get(name))));
        }
    }
    Ok(target)
}

fn stream(secret: &str, target: String) -> Answer {
    Answer::Stream { secret: secret.to_owned(), target }
}

fn not_here() -> Html {
    plain(StatusCode::NOT_FOUND, "there is no such file")
}

fn plain(status: StatusCode, text: &'static str) -> Html {
    let mut response = http::Response::new(Bytes::from_static(text.as_bytes()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_served_by_the_dashboard_and_api_paths_are_not() {
        for path in ["/", "/login", "/runs", "/runs/ses_1/stop", "/inbox/inb_1", "/assets/app.css"]
        {
            assert!(serves(path), "{path}");
        }
        for path in
            ["/api/runs", "/mesh/x", "/mcp", "/llm/x", "/metrics", "/health", "//runs", "runs"]
        {
            assert!(!serves(path), "{path}");
        }
        for path in ["/nope", "/run/x", "/index.html"] {
            assert!(is_stray(path), "{path}");
        }
        for path in ["/", "/runs/x", "/api/nope", "/mesh/x", "/mcp", "/metrics", "//x", "x"] {
            assert!(!is_stray(path), "{path}");
        }
    }
}
