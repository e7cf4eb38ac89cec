//! Reads `[services.NAME]`: external services that a secret opens, as the operator declares them.
//! Fields that a table omits keep the built-in service's values.

use overmind_core::vault::catalogue;
use overmind_core::vault::service::{Allow, AuthPlacement, Limits, LlmFormat, Method, Service};

use super::error::ConfigError;
use super::layers::Layers;

/// All declared services, each checked.
pub(super) fn declared(layers: &Layers) -> Result<Vec<Service>, ConfigError> {
    let mut names: Vec<&str> = layers
        .0
        .keys()
        .filter_map(|key| key.strip_prefix("services.")?.split_once('.').map(|(name, _)| name))
        .collect();
    names.dedup(); // the map is sorted
    let built_in = catalogue::built_in();
    names
        .into_iter()
        .map(|name| one(name, built_in.iter().find(|service| service.name == name), layers))
        .collect()
}

fn wrong(name: &str, key: &str, what: impl std::fmt::Display) -> ConfigError {
    ConfigError::Together {
        message: format!("`services.{name}.{key}`: {what}"),
        hint: "docs/vault.md shows a declaration".into(),
    }
}

fn one(name: &str, base: Option<&Service>, layers: &Layers) -> Result<Service, ConfigError> {
    let key = |field: &str| format!("services.{name}.{field}");
    let text = |field: &str| layers.text_of(&key(field));
    let missing = |field: &str| wrong(name, field, "it is not given");
    let allow = match layers.list_of(&key("allow")) {
        rules if rules.is_empty() => {
            base.map(|base| base.allow.clone()).ok_or_else(|| missing("allow"))?
        }
        rules => rules.iter().map(|rule| allowed(name, rule)).collect::<Result<_, _>>()?,
    };
    let auth = match text("auth") {
        Some(text) => text.parse::<AuthPlacement>().map_err(|err| wrong(name, "auth", err))?,
        None => base.map_or(AuthPlacement::Bearer, |base| base.auth.clone()),
    };
    let secret = match text("secret") {
        Some(text) => text.parse().map_err(|err| wrong(name, "secret", err))?,
        None => base.map(|base| base.secret.clone()).ok_or_else(|| missing("secret"))?,
    };
    let base_url = text("base_url").or(base.map(|base| base.base_url.as_str()));
    let yes = |field: &str, usual: bool| text(field).map_or(usual, |text| text == "yes");
    let usual = base.map_or_else(Limits::default, |base| base.limits);
    let whole = |field: &str, usual: u64| layers.whole_of(&key(field)).unwrap_or(usual);
    let small =
        |field: &str, usual: u32| u32::try_from(whole(field, u64::from(usual))).unwrap_or(u32::MAX);
    let service = Service {
        name: name.to_owned(),
        base_url: base_url.ok_or_else(|| missing("base_url"))?.trim_end_matches('/').to_owned(),
        auth,
        secret,
        key_optional: yes("key_optional", base.is_some_and(|base| base.key_optional)),
        plaintext: yes("plaintext", false),
        private: yes("private", false),
        allow,
        headers: base.map(|base| base.headers.clone()).unwrap_or_default(),
        limits: Limits {
            request_bytes: whole("request_bytes", usual.request_bytes),
            response_bytes: whole("response_bytes", usual.response_bytes),
            timeout_ms: small("timeout_ms", usual.timeout_ms),
            per_minute: small("per_minute", usual.per_minute),
        },
        kind: match text("kind") {
            Some("openai") => Some(LlmFormat::Openai),
            Some("anthropic") => Some(LlmFormat::Anthropic),
            Some("gemini") => Some(LlmFormat::Gemini),
            Some(_) | None => base.and_then(|base| base.kind),
        },
        actions: base.map(|base| base.actions.clone()).unwrap_or_default(),
    };
    service.check().map_err(|err| wrong(name, err.field, err.problem))?;
    Ok(service)
}

fn allowed(name: &str, rule: &str) -> Result<Allow, ConfigError> {
    let odd = || wrong(name, "allow", format!("`{rule}` is not `METHODS PATH`, as in `GET /a/*`"));
    let (methods, path) = rule.trim().split_once(' ').ok_or_else(odd)?;
    let methods = methods
        .split('|')
        .map(|method| Method::parse(&method.to_ascii_uppercase()))
        .collect::<Option<Vec<Method>>>();
    Ok(Allow { methods: methods.ok_or_else(odd)?, path: path.trim().to_owned() })
}
