//! The services that are built in. Their base URLs are the vendors' documented ones; an operator
//! may declare a service of the same name, which then stands in its place.

use std::collections::BTreeMap;

use super::service::{Action, Allow, AuthPlacement, Limits, LlmFormat, Method, Params, Service};

/// Model servers take long prompts and answer for long.
const MODEL_LIMITS: Limits = Limits {
    request_bytes: 32 << 20,
    response_bytes: 32 << 20,
    timeout_ms: 900_000,
    per_minute: 0,
};

/// The common declaration of servers that speak OpenAI's format.
const OPENAI: &[(&[Method], &str)] = &[
    (&[Method::Post], "/chat/completions"),
    (&[Method::Post], "/completions"),
    (&[Method::Post], "/responses"),
    (&[Method::Post], "/embeddings"),
    (&[Method::Get], "/models"),
    (&[Method::Get], "/models/**"),
];

const ANTHROPIC: &[(&[Method], &str)] = &[
    (&[Method::Post], "/v1/messages"),
    (&[Method::Post], "/v1/messages/count_tokens"),
    (&[Method::Get], "/v1/models"),
    (&[Method::Get], "/v1/models/*"),
];

/// With the version, which Google's own clients put behind the base URL.
const GEMINI: &[(&[Method], &str)] = &[
    (&[Method::Post], "/v1beta/models/*:generateContent"),
    (&[Method::Post], "/v1beta/models/*:streamGenerateContent"),
    (&[Method::Post], "/v1beta/models/*:countTokens"),
    (&[Method::Post], "/v1beta/models/*:embedContent"),
    (&[Method::Post], "/v1beta/models/*:batchEmbedContents"),
    (&[Method::Get], "/v1beta/models"),
    (&[Method::Get], "/v1beta/models/*"),
    (&[Method::Post], "/v1/models/*:generateContent"),
    (&[Method::Post], "/v1/models/*:streamGenerateContent"),
    (&[Method::Post], "/v1/models/*:countTokens"),
    (&[Method::Post], "/v1/models/*:embedContent"),
    (&[Method::Post], "/v1/models/*:batchEmbedContents"),
    (&[Method::Get], "/v1/models"),
    (&[Method::Get], "/v1/models/*"),
];

/// All of them, by name.
pub fn built_in() -> Vec<Service> {
    let bearer = || AuthPlacement::Bearer;
    let header = |name: &str| AuthPlacement::Header(name.to_owned());
    let openai = Some(LlmFormat::Openai);
    let model = |name: &str, url: &str, secret: &str| Service {
        limits: MODEL_LIMITS,
        kind: openai,
        ..service(name, url, bearer(), secret, OPENAI)
    };
    let mut all = vec![
        model("openai", "https://api.openai.com/v1", "openai_api_key"),
        Service {
            limits: MODEL_LIMITS,
            kind: Some(LlmFormat::Anthropic),
            ..service(
                "anthropic",
                "https://api.anthropic.com",
                header("x-api-key"),
                "anthropic_api_key",
                ANTHROPIC,
            )
        },
        model("groq", "https://api.groq.com/openai/v1", "groq_api_key"),
        model("xai", "https://api.x.ai/v1", "xai_api_key"),
        // Google's own OpenAI-compatible endpoint, and its own format.
        model(
            "gemini",
            "https://generativelanguage.googleapis.com/v1beta/openai",
            "gemini_api_key",
        ),
        Service {
            limits: MODEL_LIMITS,
            kind: Some(LlmFormat::Gemini),
            ..service(
                "gemini-native",
                "https://generativelanguage.googleapis.com",
                header("x-goog-api-key"),
                "gemini_api_key",
                GEMINI,
            )
        },
        model("moonshot", "https://api.moonshot.ai/v1", "moonshot_api_key"),
        model("deepseek", "https://api.deepseek.com/v1", "deepseek_api_key"),
        model("openrouter", "https://openrouter.ai/api/v1", "openrouter_api_key"),
        model("mistral", "https://api.mistral.ai/v1", "mistral_api_key"),
        // Local servers, at their default addresses.
        Service {
            key_optional: true,
            ..model("ollama", "http://127.0.0.1:11434/v1", "ollama_api_key")
        },
        Service { key_optional: true, ..model("vllm", "http://127.0.0.1:8000/v1", "vllm_api_key") },
        Service {
            actions: vec![action(
                "search_people",
                Method::Post,
                "/mixed_people/search",
                Params::Body,
            )],
            ..service(
                "apollo",
                "https://api.apollo.io/api/v1",
                header("x-api-key"),
                "apollo_api_key",
                &[(&[Method::Post], "/mixed_people/search")],
            )
        },
        Service {
            actions: vec![action("domain_search", Method::Get, "/domain-search", Params::Query)],
            ..service(
                "hunter",
                "https://api.hunter.io/v2",
                AuthPlacement::Query("api_key".into()),
                "hunter_api_key",
                &[
                    (&[Method::Get], "/domain-search"),
                    (&[Method::Get], "/email-finder"),
                    (&[Method::Get], "/email-verifier"),
                ],
            )
        },
        Service {
            actions: vec![action("*", Method::Get, "/web/search", Params::Query)],
            ..service(
                "brave_search",
                "https://api.search.brave.com/res/v1",
                header("x-subscription-token"),
                "brave_search_api_key",
                &[
                    (&[Method::Get], "/web/search"),
                    (&[Method::Get], "/news/search"),
                    (&[Method::Get], "/images/search"),
                ],
            )
        },
    ];
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn service(
    name: &str,
    base_url: &str,
    auth: AuthPlacement,
    secret: &str,
    allow: &[(&[Method], &str)],
) -> Service {
    let allow = allow
        .iter()
        .map(|(methods, path)| Allow { methods: methods.to_vec(), path: (*path).to_owned() })
        .collect();
    Service {
        name: name.to_owned(),
        base_url: base_url.to_owned(),
        auth,
        secret: secret.parse().expect("the catalogue's names are names"),
        key_optional: false,
        plaintext: false,
        private: false,
        allow,
        headers: BTreeMap::new(),
        limits: Limits::default(),
        kind: None,
        actions: Vec::new(),
    }
}

fn action(name: &str, method: Method, path: &str, params: Params) -> Action {
    Action { name: name.to_owned(), method, path: path.to_owned(), params }
}
