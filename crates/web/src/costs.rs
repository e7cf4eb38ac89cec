//! `/costs`: costs, budgets, and the emergency stop.

use askama::Template;
use http::StatusCode;
use overmind_api::{Agent, Budget, Cost, HaltState};
use overmind_view::{CostChart, CostsPage};
use serde_json::{Value, json};

use crate::form::{Fields, encoded};
use crate::page::{Frame, Html, html, see_other};
use crate::port::{Call, Refusal};
use crate::site::Ask;

#[derive(Template)]
#[template(path = "costs.html")]
struct Page {
    frame: Frame,
    page: CostsPage,
    /// The values in the form: scope, dollars, tokens.
    typed: (String, String, String),
}

pub(crate) async fn show(
    ask: &Ask<'_>,
    failed: Option<(Refusal, &Fields)>,
) -> Result<Html, Refusal> {
    let get = |target: String| ask.port.call(ask.secret, Call::get(target));
    let agents: Vec<Agent> =
        get("/api/agents?limit=1000".to_owned()).await.value().unwrap_or_default();
    let names: Vec<(String, String)> =
        agents.into_iter().map(|agent| (agent.id.to_string(), agent.name)).collect();
    let mut charts = Vec::new();
    for (by, title) in [("day", "By day"), ("model", "By model"), ("agent", "By agent")] {
        let costs: Vec<Cost> = get(format!("/api/costs?by={by}&limit=30")).await.value()?;
        charts.push(CostChart::new(title, by == "day", &costs, &names));
    }
    let budgets: Vec<Budget> = get("/api/budgets".to_owned()).await.value()?;
    let halt: HaltState = get("/api/halt".to_owned()).await.value()?;
    let now = crate::lists::time(ask, halt.since).await;
    let page = CostsPage::new(charts, &budgets, &names, &halt, now);
    let status = failed.as_ref().map_or(StatusCode::OK, |(refusal, _)| refusal.status);
    let (refusal, typed) = match failed {
        Some((refusal, fields)) => {
            let of = |name: &str| fields.get(name).to_owned();
            (Some(refusal), (of("scope"), of("usd"), of("tokens")))
        }
        None => (None, Default::default()),
    };
    let frame = Frame::new("Costs", "/costs", ask.visitor, ask.secret, refusal);
    Ok(html(status, &Page { frame, page, typed }))
}

/// Sets or removes a budget, or starts or ends the emergency stop.
pub(crate) async fn act(ask: &Ask<'_>, verb: &str, fields: &Fields) -> Result<Html, Refusal> {
    let call = match verb {
        "halt" => Ok(Call::post(
            "/api/halt",
            json!({"reason": fields.get("reason"), "mode": fields.get("mode")}),
        )),
        "resume" => Ok(Call::post("/api/resume", json!({}))),
        "forget" => Ok(Call::delete(format!("/api/budgets/{}", encoded(fields.get("id"))))),
        _ => budget(fields).map(|body| Call::put("/api/budgets", body)),
    };
    let done = match call {
        Ok(call) => ask.port.call(ask.secret, call).await.check(),
        Err(refusal) => Err(refusal),
    };
    match done {
        Ok(()) => Ok(see_other("/costs")),
        Err(refusal) => show(ask, Some((refusal, fields))).await,
    }
}

fn budget(fields: &Fields) -> Result<Value, Refusal> {
    let mut body = json!({"scope": fields.get("scope"), "per": fields.get("per"),
        "soft": fields.get("soft") == "on"});
    for (name, whole) in [("usd", false), ("tokens", true)] {
        let text = fields.get(name);
        if text.is_empty() {
            continue;
        }
        let number = match whole {
            true => text.parse::<u64>().ok().map(Value::from),
            false => text.parse::<f64>().ok().map(Value::from),
        };
        let number = number.ok_or_else(|| Refusal {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            message: format!("{name} must be a number, not `{text}`"),
        })?;
        if let Value::Object(body) = &mut body {
            body.insert(name.to_owned(), number);
        }
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_becomes_a_budget_of_the_api() {
        let read = |text: &str| budget(&Fields::parse(text));
        let want = json!({"scope": "swarm", "per": "day", "soft": true, "usd": 2.5});
        assert_eq!(read("scope=swarm&per=day&usd=2.5&tokens=&soft=on").unwrap(), want);
        let wrong = read("scope=swarm&per=day&tokens=1e3").unwrap_err();
        assert_eq!(wrong.message, "tokens must be a number, not `1e3`");
    }
}
