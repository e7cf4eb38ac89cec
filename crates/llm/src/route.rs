//! Finds the provider, the wire format and the name on the wire from a model's name.
//!
//! 1. `scripted:NAME` is a cassette.
//! 2. `PROVIDER:NAME` selects that provider, with its usual format. `PROVIDER/NAME` does the same
//!    if the provider has its key; otherwise the slash is part of the name, as proxies write it.
//! 3. `openai-responses:NAME`, `openai-chat:NAME` and `anthropic-messages:NAME` force the format;
//!    the provider is found as below among those that speak it.
//! 4. The provider that claims the name is called if it has its key; else a [`Rest::TakeAll`]
//!    server; else the call fails and names the missing key. A name that no provider claims goes
//!    to a [`Rest::TakeUnclaimed`] provider.
//!
//! A colon after anything else belongs to the name: `qwen3:8b`.

use overmind_core::model::ModelFailure;

use crate::config::{Format, Provider, Rest};
use crate::fail::{UNCONFIGURED, UNKNOWN, failure};

/// The target of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Route<'a> {
    Cassette { name: &'a str },
    Http { provider: &'a Provider, format: Format, model: &'a str },
}

/// Finds the route of `model`, without I/O.
pub(crate) fn route<'a>(
    providers: &'a [Provider],
    model: &'a str,
) -> Result<Route<'a>, ModelFailure> {
    routed(providers, model, &|provider, format| provider.url(format).map(drop))
}

/// Checks whether a provider has a valid URL for a format; the error describes what is wrong with
/// it.
pub(crate) type Sound<'a> = &'a dyn Fn(&Provider, Format) -> Result<(), String>;

/// Finds the route of `model` with a check of URLs that the caller passes in.
pub(crate) fn routed<'a>(
    providers: &'a [Provider],
    model: &'a str,
    sound: Sound<'_>,
) -> Result<Route<'a>, ModelFailure> {
    let name = model.trim();
    if name.is_empty() {
        return Err(failure(UNKNOWN, false, "the agent names no model; give it one".to_owned()));
    }
    if let Some(name) = name.strip_prefix("scripted:") {
        return Ok(Route::Cassette { name });
    }
    if let Some((head, tail)) = name.split_once([':', '/']).filter(|(_, tail)| !tail.is_empty()) {
        let slash = name.as_bytes()[head.len()] == b'/';
        if let Some(format) = format_named(head) {
            return choose(providers, tail, Some(format), sound);
        }
        if let Some(provider) = providers.iter().find(|p| p.name.eq_ignore_ascii_case(head))
            && (!slash || ready(provider))
        {
            return http(provider, provider.format, tail, sound);
        }
    }
    choose(providers, name, None, sound)
}

fn choose<'a>(
    providers: &'a [Provider],
    name: &'a str,
    format: Option<Format>,
    sound: Sound<'_>,
) -> Result<Route<'a>, ModelFailure> {
    let able = || providers.iter().filter(|p| format.is_none_or(|f| p.speaks.contains(&f)));
    let found = able()
        .find(|p| p.claims(name) && ready(p))
        .or_else(|| able().find(|p| p.rest == Rest::TakeAll && ready(p)))
        .or_else(|| able().find(|p| p.claims(name)))
        .or_else(|| able().find(|p| p.rest == Rest::TakeUnclaimed && ready(p)));
    match found {
        Some(provider) => http(provider, format.unwrap_or(provider.format), name, sound),
        None => Err(failure(
            UNCONFIGURED,
            false,
            format!(
                "no provider is configured for model `{name}`: set OPENAI_API_KEY, \
                 ANTHROPIC_API_KEY, DEEPSEEK_API_KEY or a base URL (OVERMIND_MODEL_BASE_URL), or use the model \
                 `deterministic`, which needs none"
            ),
        )),
    }
}

fn http<'a>(
    provider: &'a Provider,
    format: Format,
    model: &'a str,
    sound: Sound<'_>,
) -> Result<Route<'a>, ModelFailure> {
    let wrong = |why: &str| {
        let name = &provider.name;
        failure(UNCONFIGURED, false, format!("provider {name} cannot serve model `{model}`: {why}"))
    };
    sound(provider, format).map_err(|why| wrong(&why))?;
    if let Some(hint) = provider.key_hint.as_ref().filter(|_| provider.key.is_none()) {
        return Err(wrong(&format!("it has no key; {hint}")));
    }
    Ok(Route::Http { provider, format, model })
}

fn ready(provider: &Provider) -> bool {
    provider.key.is_some() || provider.key_hint.is_none()
}

pub(crate) fn format_named(head: &str) -> Option<Format> {
    Some(match head {
        "openai-responses" => Format::OpenAiResponses,
        "openai-chat" => Format::OpenAiChat,
        "anthropic-messages" => Format::AnthropicMessages,
        _ => return None,
    })
}

/// Whether a model thinks before it answers, judged by its name. Such a model is silent for longer,
/// accepts an effort and refuses a temperature.
pub(crate) fn is_reasoning(model: &str) -> bool {
    let model = model.to_ascii_lowercase();
    let name = model.rsplit('/').next().unwrap_or(&model);
    if [
        "reasoner",
        "reasoning",
        "thinking",
        "gpt-oss",
        "deepseek-r",
        "deepseek-v4",
        "deepseek-flash",
        "qwq",
    ]
    .iter()
    .any(|part| name.contains(part))
    {
        return true;
    }
    if let Some(version) = name.strip_prefix("gpt-") {
        let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
        return version[..digits].parse::<u32>().is_ok_and(|n| n >= 5) && !name.contains("-chat");
    }
    let mut chars = name.chars();
    if chars.next() == Some('o') {
        let rest = chars.as_str();
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        return digits > 0 && rest[digits..].chars().next().is_none_or(|c| c == '-');
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Secret};

    fn keyed(names: &[&str], base_url: bool) -> Vec<Provider> {
        let mut config = Config::default();
        if base_url {
            config = config.with_base_url("http://127.0.0.1:9", None);
        }
        for provider in &mut config.providers {
            if names.contains(&provider.name.as_str()) {
                provider.key = Secret::new("a-key");
            }
        }
        config.providers
    }

    /// `provider/format model`, or the failure's code.
    fn routed(providers: &[Provider], model: &str) -> String {
        match route(providers, model) {
            Ok(Route::Cassette { name }) => format!("cassette {name}"),
            Ok(Route::Http { provider, format, model }) => {
                format!("{}/{} {model}", provider.name, format.as_str())
            }
            Err(failure) => failure.code,
        }
    }

    #[test]
    fn a_model_name_selects_the_provider_with_a_matching_pattern() {
        let all = keyed(&["openai", "anthropic", "deepseek"], false);
        for (model, want) in [
            ("claude-opus-4-5", "anthropic/messages claude-opus-4-5"),
            ("deepseek-v4-pro", "deepseek/chat deepseek-v4-pro"),
            ("gpt-5", "openai/responses gpt-5"),
            ("GPT-4o", "openai/responses GPT-4o"),
            ("o3", "openai/responses o3"),
            ("o4-mini", "openai/responses o4-mini"),
            // An earlier system sent every other name to OpenAI once it had a key.
            ("unheard-of", "openai/responses unheard-of"),
            ("openai-chat:gpt-4o", "openai/chat gpt-4o"),
            ("openai-responses:x", "openai/responses x"),
            ("anthropic:claude-x", "anthropic/messages claude-x"),
            ("openai/gpt-5", "openai/responses gpt-5"),
            ("scripted:fix bug", "cassette fix bug"),
            (" gpt-5 ", "openai/responses gpt-5"),
            ("", UNKNOWN),
        ] {
            assert_eq!(routed(&all, model), want, "{model}");
        }
    }

    #[test]
    fn models_without_their_own_key_use_the_base_url() {
        let both = keyed(&["openai"], true);
        for (model, want) in [
            ("gpt-5", "openai/responses gpt-5"),
            ("qwen3:8b", "custom/chat qwen3:8b"),
            ("deepseek-r1:8b", "custom/chat deepseek-r1:8b"),
            ("claude-opus-4-5", "custom/chat claude-opus-4-5"),
            ("anthropic/claude-opus-4.5", "custom/chat anthropic/claude-opus-4.5"),
            ("custom:gpt-5", "custom/chat gpt-5"),
            ("openai-chat:qwen3", "custom/chat qwen3"),
            ("openai-chat:gpt-5", "openai/chat gpt-5"),
            ("openai-responses:qwen3", "custom/responses qwen3"),
            ("anthropic-messages:qwen3", "custom/messages qwen3"),
            ("anthropic:claude-x", UNCONFIGURED),
        ] {
            assert_eq!(routed(&both, model), want, "{model}");
        }
    }

    #[test]
    fn a_missing_key_failure_names_the_variable_to_set() {
        let none = keyed(&[], false);
        for (model, says) in [
            ("claude-opus-4-5", "ANTHROPIC_API_KEY"),
            ("gpt-5", "OPENAI_API_KEY"),
            ("deepseek-v4-pro", "DEEPSEEK_API_KEY"),
            ("openai:anything", "OPENAI_API_KEY"),
            ("qwen3", "base URL"),
        ] {
            let failure = route(&none, model).unwrap_err();
            assert_eq!(failure.code, UNCONFIGURED);
            assert!(failure.message.contains(says), "{}", failure.message);
        }
        // Another provider's key does not make a Claude of a GPT.
        assert_eq!(routed(&keyed(&["openai"], false), "claude-opus-4-5"), UNCONFIGURED);
    }

    #[test]
    fn reasoning_models_are_recognised_by_name() {
        for model in [
            "o1",
            "o3-mini",
            "o4-mini-2025-04-16",
            "gpt-5",
            "gpt-5-nano",
            "gpt-6.1-sol",
            "gpt-10",
            "deepseek-reasoner",
            "deepseek-v4-pro",
            "openai/gpt-oss-20b",
            "grok-4-reasoning",
            "vendor/o3",
        ] {
            assert!(is_reasoning(model), "{model}");
        }
        for model in [
            "gpt-4o",
            "gpt-4.1",
            "gpt-5-chat-latest",
            "olmo-2",
            "o",
            "omega",
            "claude-opus-4-5",
            "deepseek-chat",
            "qwen3",
            "o3x",
        ] {
            assert!(!is_reasoning(model), "{model}");
        }
    }
}
