//! Signing in: with a key, or by a link that is valid once.

use askama::Template;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use crate::assets;
use crate::form::{self, Fields};
use crate::page::{Html, html, see_other};
use crate::port::{Pass, Port, Refusal, SignIn, Visitor};

#[derive(Template)]
#[template(path = "login.html")]
struct Login {
    version: &'static str,
    notice: Option<String>,
    /// The path to open after the sign-in.
    next: String,
    /// The path and fields of the form that was interrupted.
    kept_path: String,
    kept: String,
}

/// The page of a sign-in link. Opening the link does nothing; only its button signs in, so the
/// sender of a link cannot sign anybody in.
#[derive(Template)]
#[template(path = "invited.html")]
struct Invited {
    version: &'static str,
    name: String,
    role: &'static str,
    code: String,
    next: String,
}

#[derive(Template)]
#[template(path = "resume.html")]
struct Resume {
    version: &'static str,
    path: String,
    csrf: String,
    fields: Vec<(String, String)>,
}

/// The sign-in page.
pub(crate) struct Door<'a> {
    pub(crate) port: &'a dyn Port,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) secure: bool,
}

impl Door<'_> {
    pub(crate) async fn show(&self, query: &Fields) -> Html {
        let code = query.get("code");
        if code.is_empty() {
            return page(StatusCode::OK, None, query.get("next"), "", "");
        }
        match self.port.invited(code).await {
            Ok(Visitor { name, role }) => {
                let invited = Invited {
                    version: assets::VERSION.as_str(),
                    name,
                    role: role.as_str(),
                    code: code.to_owned(),
                    next: form::own_path(query.get("next")).to_owned(),
                };
                html(StatusCode::OK, &invited)
            }
            Err(refusal) => page(refusal.status, Some(refusal.message), query.get("next"), "", ""),
        }
    }

    pub(crate) async fn enter(&self, fields: &Fields) -> Html {
        let (next, kept_path, kept) =
            (fields.get("next"), fields.get("kept_path"), fields.raw("kept"));
        let done = match (fields.get("code"), fields.get("key")) {
            ("", "") => Err(Refusal {
                status: StatusCode::UNPROCESSABLE_ENTITY,
                message: "enter a key".to_owned(),
            }),
            ("", key) => self.port.sign_in(SignIn::Key(key)).await,
            (code, _) => self.port.sign_in(SignIn::Code(code)).await,
        };
        match done {
            Err(refusal) => page(refusal.status, Some(refusal.message), next, kept_path, kept),
            Ok(pass) if kept_path.is_empty() => self.let_in(&pass, see_other(next)),
            Ok(pass) => {
                let fields = Fields::parse(kept);
                let own = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
                let resume = Resume {
                    version: assets::VERSION.as_str(),
                    path: form::own_path(kept_path).to_owned(),
                    csrf: form::csrf(&pass.secret),
                    fields: fields.iter().map(own).collect(),
                };
                self.let_in(&pass, html(StatusCode::OK, &resume))
            }
        }
    }

    fn let_in(&self, pass: &Pass, mut response: Html) -> Html {
        let cookie = form::set_cookie(self.headers, &pass.secret, pass.seconds, self.secure);
        if let Ok(value) = HeaderValue::from_str(&cookie) {
            response.headers_mut().insert(header::SET_COOKIE, value);
        }
        response
    }
}

fn page(
    status: StatusCode,
    notice: Option<String>,
    next: &str,
    kept_path: &str,
    kept: &str,
) -> Html {
    let login = Login {
        version: assets::VERSION.as_str(),
        notice,
        next: form::own_path(next).to_owned(),
        kept_path: kept_path.to_owned(),
        kept: kept.to_owned(),
    };
    html(status, &login)
}

/// Returns the sign-in page for a visitor who is not signed in. The fields of an interrupted form
/// are kept in the page, and are sent after the sign-in.
pub(crate) fn asked(had_cookie: bool, refusal: &Refusal, parts: &Parts, fields: Fields) -> Html {
    let path = parts.uri.path_and_query().map_or("/", |whole| whole.as_str());
    if parts.method != Method::POST {
        if refusal.status != StatusCode::UNAUTHORIZED {
            return page(refusal.status, Some(refusal.message.clone()), path, "", "");
        }
        // Streams and scripts see the status; people see the page.
        let notice = had_cookie.then(|| "your sign-in has ended".to_owned());
        return page(StatusCode::UNAUTHORIZED, notice, path, "", "");
    }
    let notice = "your sign-in has ended; what you typed is kept and sent after you sign in";
    let (next, kept) = (fields.get("next").to_owned(), fields.without("csrf").to_string());
    page(StatusCode::UNAUTHORIZED, Some(notice.to_owned()), &next, path, &kept)
}
