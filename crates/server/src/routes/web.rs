//! The dashboard's pages: they call this API inside the process, as the signed-in user.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use hyper::upgrade::OnUpgrade;
use overmind_api::ProblemKind;
use overmind_core::row::Role;
use overmind_engine::{Caller, EngineError, SIGN_IN_LASTS, is_of_a_sign_in};
use overmind_web::{Answer, Call, Fut, Incoming, Pass, Port, Refusal, Reply, SignIn, Visitor};
use tower::ServiceExt;

use super::Template;
use crate::cx::Cx;
use crate::extract::sender_of;
use crate::fault::Fault;

/// Longest form in bytes.
const MAX_FORM: usize = 1 << 20;
/// The name of a page in the log and the metrics.
const PAGE: Template = Template("page");

/// The headers of a WebSocket's handshake that the API reads.
const HANDSHAKE: [HeaderName; 5] = [
    header::CONNECTION,
    header::UPGRADE,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_VERSION,
    header::SEC_WEBSOCKET_PROTOCOL,
];

pub(crate) use overmind_web::{is_stray, serves};

/// Answers a request to a page. `counted`: it counts for the rate of its caller.
pub(crate) async fn answer(
    cx: &Arc<Cx>,
    router: &Router,
    request: Request,
    tls: bool,
    counted: bool,
) -> Result<Response, Fault> {
    let sender = sender_of(&request);
    let (mut parts, body) = request.into_parts();
    let upgrade = parts.extensions.remove::<OnUpgrade>();
    let body = match parts.method {
        // The client is not authenticated yet.
        Method::POST => {
            let within = cx.config.body_timeout;
            cx.forms.read(&parts.headers, body, sender, MAX_FORM, within).await?.bytes
        }
        _ => Bytes::new(),
    };
    let api = Api { cx, router, counted };
    let resume = parts.headers.get("last-event-id").cloned();
    let answer = overmind_web::answer(&api, Incoming { parts: &parts, body, secure: tls }).await;
    let mut response = match answer {
        Answer::Page(page) => page.map(Body::from),
        Answer::Stream { secret, target } => {
            let mut headers = HeaderMap::new();
            if let Some(resume) = resume {
                headers.insert("last-event-id", resume);
            }
            api.ask(&secret, Method::GET, &target, None, headers).await?
        }
        Answer::Socket { secret, target } => {
            let mut headers = HeaderMap::new();
            for name in HANDSHAKE.iter().filter(|name| parts.headers.contains_key(*name)) {
                headers.insert(name, parts.headers[name].clone());
            }
            let request = api.request(&secret, Method::GET, &target, None, headers);
            let mut request = request.await?;
            if let Some(upgrade) = upgrade {
                request.extensions_mut().insert(upgrade);
            }
            api.routed(request).await?
        }
    };
    response.extensions_mut().insert(PAGE);
    Ok(response)
}

/// The API, called in the process.
struct Api<'a> {
    cx: &'a Arc<Cx>,
    router: &'a Router,
    counted: bool,
}

impl Api<'_> {
    /// One request to a route, with the rights of the key's holder now.
    async fn ask(
        &self,
        secret: &str,
        method: Method,
        target: &str,
        body: Option<Vec<u8>>,
        headers: HeaderMap,
    ) -> Result<Response, Fault> {
        self.routed(self.request(secret, method, target, body, headers).await?).await
    }

    async fn request(
        &self,
        secret: &str,
        method: Method,
        target: &str,
        body: Option<Vec<u8>>,
        headers: HeaderMap,
    ) -> Result<Request, Fault> {
        let caller = self.cx.engine.authenticate(secret).await?;
        let mut request = Request::new(Body::from(body.unwrap_or_default()));
        *request.method_mut() = method;
        *request.uri_mut() = target.parse().map_err(|_| {
            Fault::new(ProblemKind::BadRequest, format!("`{target}` is no path of the API"))
        })?;
        *request.headers_mut() = headers;
        let bearer = HeaderValue::from_str(&format!("Bearer {secret}"))
            .map_err(|_| Fault::new(ProblemKind::Unauthenticated, "the cookie holds no key"))?;
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::AUTHORIZATION, bearer);
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        request.extensions_mut().insert(caller);
        Ok(request)
    }

    async fn routed(&self, request: Request) -> Result<Response, Fault> {
        match self.router.clone().oneshot(request).await {
            Ok(mut response) => match response.extensions_mut().remove::<Fault>() {
                Some(fault) => Err(fault),
                None => Ok(response),
            },
            Err(never) => match never {},
        }
    }

    async fn reply(&self, secret: &str, call: Call) -> Reply {
        let Call { method, target, body, most } = call;
        let body = body.map(|body| body.to_string().into_bytes());
        let asked = self.ask(secret, method, &target, body, HeaderMap::new()).await;
        let response = asked.unwrap_or_else(|fault| fault.render("page"));
        let status = response.status();
        let link = response.headers().get(header::LINK).and_then(|value| value.to_str().ok());
        let link = link.map(str::to_owned);
        let mut read = BytesMut::new();
        let mut pieces = response.into_body().into_data_stream();
        while let Some(Ok(piece)) = pieces.next().await {
            let left = most.saturating_sub(read.len());
            read.extend_from_slice(piece.get(..left.min(piece.len())).unwrap_or_default());
            if piece.len() >= left {
                break;
            }
        }
        Reply { status, link, body: read.freeze() }
    }

    async fn pass(&self, by: &Caller) -> Result<Pass, Refusal> {
        let (engine, by) = (self.cx.engine.clone(), by.clone());
        let work = async move { engine.sign_in(&by, SIGN_IN_LASTS).await };
        let made = self.cx.detached(work).await.map_err(|fault| refusal(&fault))?;
        Ok(Pass { secret: made.secret, seconds: SIGN_IN_LASTS.as_secs() })
    }
}

impl Port for Api<'_> {
    fn visitor<'a>(&'a self, secret: &'a str) -> Fut<'a, Result<Visitor, Refusal>> {
        Box::pin(async move {
            // A cookie contains the key of a sign-in, and no other token.
            if !is_of_a_sign_in(secret) {
                let message = "this is not the key of a sign-in".to_owned();
                return Err(Refusal { status: StatusCode::UNAUTHORIZED, message });
            }
            let caller = self.cx.engine.authenticate(secret).await.map_err(refused)?;
            if self.counted {
                self.cx.admit_caller(&caller).map_err(|fault| refusal(&fault))?;
            }
            Ok(Visitor { role: role(&caller).into(), name: caller.name })
        })
    }

    fn invited<'a>(&'a self, code: &'a str) -> Fut<'a, Result<Visitor, Refusal>> {
        Box::pin(async move {
            let token = self.cx.links.look(code).ok_or_else(used_up)?;
            let caller = self.cx.engine.authenticate(&token).await.map_err(refused)?;
            Ok(Visitor { role: role(&caller).into(), name: caller.name })
        })
    }

    fn sign_in<'a>(&'a self, by: SignIn<'a>) -> Fut<'a, Result<Pass, Refusal>> {
        Box::pin(async move {
            let token = match by {
                SignIn::Key(key) => key.to_owned(),
                SignIn::Code(code) => self.cx.links.take(code).ok_or_else(used_up)?,
            };
            // It would outlive the one that it is made with, and the revocation of that.
            if is_of_a_sign_in(&token) {
                let message =
                    "this is the key of a sign-in: sign in with the key that it was made with";
                return Err(Refusal { status: StatusCode::FORBIDDEN, message: message.to_owned() });
            }
            let caller = self.cx.engine.authenticate(&token).await.map_err(refused)?;
            self.pass(&caller).await
        })
    }

    fn sign_out<'a>(&'a self, secret: &'a str) -> Fut<'a, Result<(), Refusal>> {
        let (engine, secret) = (self.cx.engine.clone(), secret.to_owned());
        Box::pin(async move {
            let work = async move { engine.sign_out(&secret).await };
            self.cx.detached(work).await.map_err(|fault| refusal(&fault))
        })
    }

    fn call<'a>(&'a self, secret: &'a str, call: Call) -> Fut<'a, Reply> {
        Box::pin(self.reply(secret, call))
    }
}

/// A run's own token cannot sign in, and could see nothing.
fn role(caller: &Caller) -> Role {
    caller.role().unwrap_or(Role::Model)
}

fn used_up() -> Refusal {
    let message =
        "this link was used before, or is older than a minute: run `overmind dash` for another";
    Refusal { status: StatusCode::UNAUTHORIZED, message: message.to_owned() }
}

fn refused(err: EngineError) -> Refusal {
    refusal(&Fault::from(err))
}

fn refusal(fault: &Fault) -> Refusal {
    let problem = fault.problem();
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Refusal { status, message: problem.error.clone() }
}
