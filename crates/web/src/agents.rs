//! `/agents/new` and `/agents/{id}`: creates, changes, disables and removes agents.

use askama::Template;
use http::{Method, StatusCode};
use overmind_api::{Agent, AgentStatus, Problem, SandboxLevel};
use overmind_view::{AgentPage, clean};
use serde_json::{Map, Value, json};

use crate::form::{Fields, encoded};
use crate::page::{Frame, Html, html, see_other};
use crate::port::{Call, Refusal};
use crate::site::Ask;

/// The section of these pages.
const SECTION: &str = "/agents";
/// Maximum number of versions that are listed.
const VERSIONS: usize = 50;

/// The values in the form.
#[derive(Debug, Default)]
struct Typed {
    name: String,
    role: String,
    model: String,
    /// Names of tools, separated by commas.
    tools: String,
    approvals: String,
    /// Arguments, one per line.
    argv: String,
    sandbox: String,
    effort: String,
    tokens: String,
}

impl Typed {
    fn of(fields: &Fields) -> Self {
        let of = |name: &str| fields.get(name).to_owned();
        Self {
            name: of("name"),
            role: fields.raw("role").to_owned(),
            model: of("model"),
            tools: of("tools"),
            approvals: of("approvals"),
            argv: fields.raw("argv").to_owned(),
            sandbox: of("sandbox"),
            effort: of("effort"),
            tokens: of("tokens"),
        }
    }

    /// Fills the form from an agent, without control characters. A form that is sent back unchanged
    /// therefore changes nothing.
    fn from_agent(agent: &Agent) -> Self {
        let tokens = agent.max_output_tokens.map(|tokens| tokens.to_string());
        let line = |text: &str| clean::line(text).trim().to_owned();
        let argv = agent.command.as_ref().map(|it| it.argv.join("\n")).unwrap_or_default();
        Self {
            name: line(&agent.name),
            role: clean::block(&agent.role).into_owned(),
            model: line(&agent.model),
            tools: line(&agent.tools_allowed.join(", ")),
            approvals: line(&agent.approvals.join(", ")),
            argv: clean::block(&argv).into_owned(),
            sandbox: agent.sandbox.as_str().to_owned(),
            effort: line(agent.reasoning_effort.as_deref().unwrap_or_default()),
            tokens: tokens.unwrap_or_default(),
        }
    }

    fn sandboxes(&self) -> Vec<(&'static str, bool)> {
        let level = |level: &SandboxLevel| (level.as_str(), level.as_str() == self.sandbox);
        SandboxLevel::ALL.iter().map(level).collect()
    }
}

#[derive(Template)]
#[template(path = "agent.html")]
struct Page {
    frame: Frame,
    /// The agent's page; `None` for a new agent.
    page: Option<AgentPage>,
    link: String,
    /// Whether it runs a program.
    program: bool,
    typed: Typed,
    sandboxes: Vec<(&'static str, bool)>,
    /// The mistakes in the fields.
    mistakes: Vec<String>,
    open: bool,
}

/// A form that the API refused.
struct Failed<'a> {
    fields: &'a Fields,
    refusal: Refusal,
    mistakes: Vec<String>,
}

/// Shows the page `/agents/new`.
pub(crate) fn fresh(ask: &Ask<'_>) -> Result<Html, Refusal> {
    new(ask, None)
}

fn new(ask: &Ask<'_>, failed: Option<Failed<'_>>) -> Result<Html, Refusal> {
    if !ask.visitor.changes() {
        let message = format!("`{}` may look and not make agents", ask.visitor.name);
        return Err(Refusal { status: StatusCode::FORBIDDEN, message });
    }
    let (status, typed, mistakes, notice) = parts(failed, Typed::default);
    let frame = Frame::new("New agent", SECTION, ask.visitor, ask.secret, notice);
    let (sandboxes, link) = (typed.sandboxes(), SECTION.to_owned());
    let page =
        Page { frame, page: None, link, program: false, typed, sandboxes, mistakes, open: true };
    Ok(html(status, &page))
}

fn parts(
    failed: Option<Failed<'_>>,
    otherwise: impl FnOnce() -> Typed,
) -> (StatusCode, Typed, Vec<String>, Option<Refusal>) {
    match failed {
        Some(Failed { fields, refusal, mistakes }) => {
            let notice = mistakes.is_empty().then(|| refusal.clone());
            (refusal.status, Typed::of(fields), mistakes, notice)
        }
        None => (StatusCode::OK, otherwise(), Vec::new(), None),
    }
}

/// Shows the page `/agents/{id}`.
pub(crate) async fn one(ask: &Ask<'_>, id: &str) -> Result<Html, Refusal> {
    show(ask, id, None).await
}

async fn show(ask: &Ask<'_>, id: &str, failed: Option<Failed<'_>>) -> Result<Html, Refusal> {
    let base = format!("/api/agents/{}", encoded(id));
    let agent: Agent = ask.port.call(ask.secret, Call::get(&base)).await.value()?;
    let call = Call::get(format!("{base}/versions?limit={VERSIONS}"));
    let versions: Vec<Agent> = ask.port.call(ask.secret, call).await.value()?;
    let now = crate::lists::time(ask, Some(agent.updated_at)).await;
    let open = failed.is_some();
    let (status, typed, mistakes, notice) = parts(failed, || Typed::from_agent(&agent));
    let frame = Frame::new(agent.name.clone(), SECTION, ask.visitor, ask.secret, notice);
    let page = Page {
        frame,
        page: Some(AgentPage::new(&agent, &versions, now)),
        link: format!("{SECTION}/{}", agent.id),
        program: agent.command.is_some(),
        sandboxes: typed.sandboxes(),
        typed,
        mistakes,
        open,
    };
    Ok(html(status, &page))
}

/// Creates an agent, or changes the one with `id`.
pub(crate) async fn write(
    ask: &Ask<'_>,
    id: Option<&str>,
    fields: &Fields,
) -> Result<Html, Refusal> {
    let call = match id {
        None => body(fields, None).map(|body| Call::post("/api/agents", body)),
        Some(id) => {
            let base = format!("/api/agents/{}", encoded(id));
            let agent: Agent = ask.port.call(ask.secret, Call::get(&base)).await.value()?;
            body(fields, Some(&agent)).map(|body| Call::patch(base, body))
        }
    };
    let (refusal, mistakes) = match call {
        Err(refusal) => (refusal, Vec::new()),
        Ok(call) => {
            let reply = ask.port.call(ask.secret, call).await;
            match reply.value::<Agent>() {
                Ok(agent) => return Ok(see_other(&format!("{SECTION}/{}", agent.id))),
                Err(refusal) => {
                    let problem = serde_json::from_slice::<Problem>(&reply.body).ok();
                    let errors = problem.map(|problem| problem.errors).unwrap_or_default();
                    let told = errors.iter().map(|one| {
                        clean::line(&format!("{}: {}", one.field, one.message)).into_owned()
                    });
                    (refusal, told.collect())
                }
            }
        }
    };
    let failed = Some(Failed { fields, refusal, mistakes });
    match id {
        None => new(ask, failed),
        Some(id) => show(ask, id, failed).await,
    }
}

/// Converts a form to a request of the API. For a change, it contains the fields that differ from
/// `agent`.
fn body(fields: &Fields, agent: Option<&Agent>) -> Result<Value, Refusal> {
    let typed = Typed::of(fields);
    let was = agent.map(Typed::from_agent).unwrap_or_default();
    let mut body = Map::new();
    let texts = [
        ("name", &typed.name, &was.name),
        ("role", &typed.role, &was.role),
        ("model", &typed.model, &was.model),
        ("sandbox", &typed.sandbox, &was.sandbox),
        ("reasoning_effort", &typed.effort, &was.effort),
    ];
    for (key, is, was) in texts {
        // Browsers send line ends as `\r\n`.
        let (is, was) = (is.replace("\r\n", "\n"), was.replace("\r\n", "\n"));
        let always = agent.is_none() && matches!(key, "name" | "role" | "model");
        if always || is != was {
            body.insert(key.to_owned(), is.into());
        }
    }
    let lists = [
        ("tools_allowed", &typed.tools, &was.tools),
        ("approvals", &typed.approvals, &was.approvals),
    ];
    for (key, is, was) in lists {
        if is != was {
            let names = is.split(',').map(str::trim).filter(|name| !name.is_empty());
            body.insert(key.to_owned(), json!(names.collect::<Vec<_>>()));
        }
    }
    if typed.tokens != was.tokens {
        let tokens = typed.tokens.parse::<u32>().map_err(|_| Refusal {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            message: format!("output tokens must be a whole number, not `{}`", typed.tokens),
        })?;
        body.insert("max_output_tokens".to_owned(), tokens.into());
    }
    let argv = words(&typed.argv);
    if !argv.is_empty() && argv != words(&was.argv) {
        let mut command = agent
            .and_then(|agent| agent.command.as_ref())
            .and_then(|command| serde_json::to_value(command).ok())
            .unwrap_or_else(|| json!({}));
        if let Value::Object(command) = &mut command {
            command.insert("argv".to_owned(), json!(argv));
        }
        body.insert("command".to_owned(), command);
    }
    Ok(Value::Object(body))
}

/// Returns the arguments of a program, one per line.
fn words(text: &str) -> Vec<&str> {
    text.lines().map(str::trim_end).filter(|word| !word.is_empty()).collect()
}

/// Disables, enables or removes an agent.
pub(crate) async fn act(ask: &Ask<'_>, id: &str, verb: &str) -> Result<Html, Refusal> {
    let base = format!("/api/agents/{}", encoded(id));
    let call = match verb {
        "disable" => Call::post(format!("{base}/disable"), json!({})),
        "enable" => Call::patch(base, json!({"status": AgentStatus::Active})),
        _ => Call::delete(base),
    };
    let removed = call.method == Method::DELETE;
    match ask.port.call(ask.secret, call).await.check() {
        Ok(()) if removed => Ok(see_other(SECTION)),
        Ok(()) => Ok(see_other(&format!("{SECTION}/{}", encoded(id)))),
        Err(refusal) => {
            let agent: Agent = {
                let call = Call::get(format!("/api/agents/{}", encoded(id)));
                ask.port.call(ask.secret, call).await.value()?
            };
            let fields = Fields::default();
            let mistakes = vec![clean::block(&refusal.message).into_owned()];
            let failed = Failed { fields: &fields, refusal, mistakes };
            shown_again(ask, &agent, failed).await
        }
    }
}

/// Shows the agent's page again, with the refusal and the agent's present values.
async fn shown_again(ask: &Ask<'_>, agent: &Agent, failed: Failed<'_>) -> Result<Html, Refusal> {
    let typed = Typed::from_agent(agent);
    let pairs = [
        ("name", typed.name),
        ("role", typed.role),
        ("model", typed.model),
        ("tools", typed.tools),
        ("approvals", typed.approvals),
        ("argv", typed.argv),
        ("sandbox", typed.sandbox),
        ("effort", typed.effort),
        ("tokens", typed.tokens),
    ];
    let text = pairs.map(|(key, value)| format!("{key}={}", encoded(&value))).join("&");
    let fields = Fields::parse(&text);
    show(ask, &agent.id.to_string(), Some(Failed { fields: &fields, ..failed })).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent() -> Agent {
        serde_json::from_value(
            json!({"id": "agt_00000000000000000000000000000001", "name": "fixer",
            "role": "one\ntwo", "model": "m", "tools_allowed": ["a", "b"], "status": "active",
            "created_at": "2026-11-25T16:00:00+00:00", "updated_at": "2026-11-25T16:00:00+00:00",
            "version": 1, "policy": "auto", "sandbox": "none", "limits": {}, "on_unknown": "ask",
            "approvals": [], "reasoning_effort": null, "max_output_tokens": 9,
            "colony": "col_00000000000000000000000000000001"}),
        )
        .unwrap()
    }

    #[test]
    fn a_form_becomes_the_agent_of_the_api_and_a_change_only_the_differences() {
        let read = |text: &str, of| body(&Fields::parse(text), of);
        let made = read("name=f&role=r&model=m&tools=a,+b&argv=make%0D%0A%7Btask%7D", None);
        let want = json!({"name": "f", "role": "r", "model": "m", "tools_allowed": ["a", "b"],
            "command": {"argv": ["make", "{task}"]}});
        assert_eq!(made.unwrap(), want);
        let same = "name=fixer&role=one%0D%0Atwo&model=m&tools=a,+b&sandbox=none";
        let agent = agent();
        assert_eq!(read(&format!("{same}&tokens=9"), Some(&agent)).unwrap(), json!({}));
        let changed = read(&format!("{same}&tokens=20&effort=low"), Some(&agent)).unwrap();
        assert_eq!(changed, json!({"max_output_tokens": 20, "reasoning_effort": "low"}));
        let wrong = read(&format!("{same}&tokens=many"), Some(&agent)).unwrap_err();
        assert!(wrong.message.contains("`many`"));
    }
}
