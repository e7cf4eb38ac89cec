//! Failures of providers and of the network, and their handling.

use std::time::{Duration, Instant};

use overmind_core::model::{ModelDelta, ModelRequest, Models};
use overmind_llm::{Config, Gateway, Provider, Secret};
use overmind_testkit::upstream::{Answer, Say, Script, Upstream, Wire, stream_of};
use serde_json::{Value, json};

use crate::support::{
    KEY, ask, ask_with_tools, assistant, complete, config_of, failure, gateway, gateway_of, model,
    reply, result, said, streamed, user,
};

fn restarts(deltas: &[ModelDelta]) -> Vec<(u32, &str)> {
    deltas
        .iter()
        .filter_map(|delta| match delta {
            ModelDelta::Restarted { attempt, why, .. } => Some((*attempt, why.as_str())),
            ModelDelta::Text(_) | ModelDelta::Reasoning(_) | ModelDelta::ToolArgs { .. } => None,
        })
        .collect()
}

#[tokio::test]
async fn transient_errors_are_retried() {
    for wire in Wire::ALL {
        let upstream = Upstream::start([
            Answer::status(429, "rate_limit_error", "slow down"),
            Answer::status(529, "overloaded_error", "Overloaded"),
            Answer::hang_up(),
            Say::text("at last").into(),
        ])
        .await;
        let (result, deltas) =
            complete(&gateway(&upstream), &ask(model(wire), vec![user("hi")])).await;
        assert_eq!(result.unwrap().text, "at last", "{wire:?}");
        let restarts = restarts(&deltas);
        assert_eq!(restarts.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [2, 3, 4]);
        assert!(restarts[0].1.contains("status 429: slow down"), "{restarts:?}");
        upstream.assert_clean();
    }
}

#[tokio::test]
async fn the_fourth_failure_is_returned() {
    for wire in Wire::ALL {
        let upstream =
            Upstream::start(Script::always(Answer::status(503, "overloaded_error", "busy"))).await;
        let failure = failure(&gateway(&upstream), &ask(model(wire), vec![user("hi")])).await;
        assert_eq!(
            (failure.code.as_str(), failure.status, failure.transient),
            ("overloaded", Some(503), true)
        );
        let body: Value = serde_json::from_str(&failure.body.unwrap()).unwrap();
        assert_eq!(body["error"]["message"], "busy");
        assert_eq!(upstream.requests().len(), 4);
    }
}

#[tokio::test]
async fn permanent_errors_are_not_retried() {
    for wire in Wire::ALL {
        for (status, kind, message, code) in [
            (400, "invalid_request_error", "no", "bad_request"),
            (400, "context_length_exceeded", "too long", "context_length"),
            (401, "authentication_error", "bad key", "auth"),
            (403, "permission_error", "not you", "auth"),
            (404, "not_found_error", "model: none", "model_unknown"),
            (429, "insufficient_quota", "pay", "rate_limited"),
        ] {
            let upstream =
                Upstream::start(Script::always(Answer::status(status, kind, message))).await;
            let failure = failure(&gateway(&upstream), &ask(model(wire), vec![user("hi")])).await;
            assert_eq!(
                (failure.code.as_str(), failure.status, failure.transient),
                (code, Some(status), false),
                "{wire:?}"
            );
            assert!(
                failure.message.contains(message) && failure.message.contains("small-1"),
                "{}",
                failure.message
            );
            assert_eq!(upstream.requests().len(), 1, "{wire:?} {status}");
        }
        let stubborn = Answer::status(500, "api_error", "no").header("x-should-retry", "false");
        let upstream = Upstream::start(Script::always(stubborn)).await;
        failure(&gateway(&upstream), &ask(model(wire), vec![user("hi")])).await;
        assert_eq!(upstream.requests().len(), 1);
    }
}

#[tokio::test]
async fn retry_after_is_waited_out() {
    let upstream = Upstream::start([
        Answer::status(429, "rate_limit_error", "slow down").header("retry-after", "0.3"),
        Say::text("ok").into(),
    ])
    .await;
    let started = Instant::now();
    reply(&gateway(&upstream), &ask("m", vec![user("hi")])).await;
    assert!(started.elapsed() >= Duration::from_millis(300), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_retry_delay_beyond_the_timeout_ends_the_call() {
    let upstream = Upstream::start(
        Answer::status(429, "rate_limit_error", "slow down").header("retry-after", "3600"),
    )
    .await;
    let started = Instant::now();
    let failure = failure(&gateway(&upstream), &ask("m", vec![user("hi")])).await;
    assert_eq!((failure.code.as_str(), failure.transient), ("rate_limited", true));
    assert!(failure.message.contains("3600 s"), "{}", failure.message);
    assert!(started.elapsed() < Duration::from_secs(10));
    upstream.assert_clean();
}

#[tokio::test]
async fn a_broken_stream_is_restarted_from_the_beginning() {
    for wire in Wire::ALL {
        let say = || Say::text("the whole story").call("c", "t", &json!({ "a": "bcd" }));
        let n_events = stream_of(wire, &say(), false).len();
        let request = ask_with_tools(model(wire), vec![user("hi")], &["t"]);
        let broken: Vec<Answer> = vec![
            Answer::say(say()).cut_after(n_events / 2),
            Answer::say(say()).end_after(n_events / 2),
            Answer::say(say()).error_after(n_events / 2, "overloaded_error", "Overloaded"),
            Answer::say(say()).cut_after(0),
        ];
        for answer in broken {
            let upstream = Upstream::start([answer.clone(), say().into()]).await;
            let (result, deltas) = complete(&gateway(&upstream), &request).await;
            let reply = result.unwrap_or_else(|failure| panic!("{wire:?} {answer:?}: {failure:?}"));
            assert_eq!(reply.text, "the whole story");
            assert_eq!(restarts(&deltas).len(), 1, "{wire:?}: {deltas:?}");
            let (text, _, args) = streamed(&deltas);
            assert_eq!(
                (text.as_str(), args.len()),
                ("the whole story", 1),
                "what came before is forgotten"
            );
            upstream.assert_clean();
        }
    }
}

#[tokio::test]
async fn truncated_streams_are_never_complete() {
    for wire in Wire::ALL {
        let say = Say::text("some text").call("c", "t", &json!({ "a": 1 })).usage(5, 5);
        let n_events = stream_of(wire, &say, false).len();
        let one = |n| Answer::say(say.clone()).cut_after(n);
        // The last events: chat sends its finish reason two events before its end, Anthropic one.
        let telling = match wire {
            Wire::Chat => n_events - 2,
            Wire::Responses => n_events,
            Wire::Messages => n_events,
        };
        for n in 0..telling {
            let upstream = Upstream::start(Script::always(one(n))).await;
            let mut config = config_of(Provider::custom(&upstream.base_url(), None));
            config.retry.max_attempts = 1;
            let failure = failure(
                &Gateway::new(config),
                &ask_with_tools(model(wire), vec![user("hi")], &["t"]),
            )
            .await;
            assert_eq!(
                (failure.code.as_str(), failure.transient),
                ("connection_lost", true),
                "{wire:?} after {n} events: {failure:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_stream_without_its_final_marker_is_complete_if_it_has_a_finish_reason() {
    // `[DONE]` and `message_stop` contain no new information.
    for wire in [Wire::Chat, Wire::Messages] {
        let say = Say::text("all of it").usage(5, 5);
        let n_events = stream_of(wire, &say, false).len();
        let upstream = Upstream::start(Answer::say(say).end_after(n_events - 1)).await;
        let reply = reply(&gateway(&upstream), &ask(model(wire), vec![user("hi")])).await;
        assert_eq!((reply.text.as_str(), reply.usage.output_tokens), ("all of it", 5), "{wire:?}");
    }
}

#[tokio::test]
async fn a_permanent_error_within_the_stream_ends_the_call() {
    for wire in Wire::ALL {
        let upstream = Upstream::start(Answer::say(Say::text("so far")).error_after(
            3,
            "invalid_request_error",
            "bad prompt",
        ))
        .await;
        let failure = failure(&gateway(&upstream), &ask(model(wire), vec![user("hi")])).await;
        assert_eq!((failure.code.as_str(), failure.transient), ("bad_request", false), "{wire:?}");
        assert!(
            failure.message.contains("bad prompt") && failure.body.unwrap().contains("bad prompt")
        );
        upstream.assert_clean();
    }
}

#[tokio::test]
async fn silence_is_a_timeout_and_a_slow_stream_is_not() {
    for wire in Wire::ALL {
        let idle = |millis| ModelRequest {
            idle_timeout: Duration::from_millis(millis),
            ..ask(model(wire), vec![user("hi")])
        };
        for silent in
            [Answer::hang(), Answer::say(Say::text("so far and no further")).stall_after(4)]
        {
            let upstream = Upstream::start(Script::always(silent)).await;
            let mut config = config_of(Provider::custom(&upstream.base_url(), None));
            config.retry.max_attempts = 2;
            let failure = failure(&Gateway::new(config), &idle(80)).await;
            assert_eq!((failure.code.as_str(), failure.transient), ("timeout", true), "{wire:?}");
            assert!(failure.message.contains("nothing for 0.08 s"), "{}", failure.message);
            assert_eq!(upstream.requests().len(), 2);
        }
        // All of it takes longer than the idle timeout, but no piece does.
        let n_events = stream_of(wire, &Say::text("slow"), false).len();
        let drip = Duration::from_millis(1500) / u32::try_from(n_events).unwrap();
        let upstream = Upstream::start(Answer::say(Say::text("slow")).drip(drip)).await;
        assert_eq!(reply(&gateway(&upstream), &idle(1000)).await.text, "slow", "{wire:?}");
    }
}

#[tokio::test]
async fn a_call_ends_at_its_total_timeout_and_reports_earlier_failures() {
    let upstream =
        Upstream::start([Answer::status(500, "api_error", "hiccup"), Answer::hang()]).await;
    let request =
        ModelRequest { total_timeout: Duration::from_millis(400), ..ask("m", vec![user("hi")]) };
    let failure = failure(&gateway(&upstream), &request).await;
    assert_eq!((failure.code.as_str(), failure.transient), ("timeout", true));
    assert!(
        failure.message.contains("0.4 s") && failure.message.contains("hiccup"),
        "{}",
        failure.message
    );
}

#[tokio::test]
async fn a_providers_own_idle_timeout_replaces_the_requests() {
    let upstream = Upstream::start(Script::always(Answer::hang())).await;
    let provider = Provider {
        idle_timeout: Some(Duration::from_millis(60)),
        reasoning_idle_timeout: Some(Duration::from_millis(90)),
        ..Provider::custom(&upstream.base_url(), None)
    };
    let gateway = gateway_of(provider);
    let plain = failure(&gateway, &ask("m", vec![user("hi")])).await;
    assert!(plain.message.contains("nothing for 0.06 s"), "{}", plain.message);
    let thinker = failure(&gateway, &ask("deepseek-reasoner", vec![user("hi")])).await;
    assert!(thinker.message.contains("nothing for 0.09 s"), "{}", thinker.message);
}

#[tokio::test]
async fn a_missing_server_is_a_network_error() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let gateway =
        gateway_of(Provider::custom(&format!("http://127.0.0.1:{port}"), Secret::new(KEY)));
    let (result, deltas) = complete(&gateway, &ask("m", vec![user("hi")])).await;
    let failure = result.unwrap_err();
    assert_eq!((failure.code.as_str(), failure.transient), ("network_error", true));
    assert!(failure.message.contains(&format!("127.0.0.1:{port}")), "{}", failure.message);
    assert_eq!(restarts(&deltas).len(), 3);
}

#[tokio::test]
async fn tls_to_a_server_without_it_is_a_network_error_and_shows_no_key() {
    let upstream = Upstream::start(Script::always(Say::text("ok"))).await;
    let url = upstream.base_url().replace("http:", "https:");
    let failure =
        failure(&gateway_of(Provider::custom(&url, Secret::new(KEY))), &ask("m", vec![user("hi")]))
            .await;
    assert_eq!(failure.code, "network_error", "{}", failure.message);
    assert_eq!(upstream.requests().len(), 0);
}

#[tokio::test]
async fn an_unparsable_answer_is_reported_as_such() {
    let mut cases = vec![
        ("text/html", "<html>welcome</html>"),
        ("text/event-stream", "data: {\"choices\": [\n\n"),
        ("text/event-stream", "data: {\"what\": 1}\n\n"),
        ("application/json", "not json"),
        ("application/json", "{}"),
    ];
    for wire in Wire::ALL {
        for (kind, body) in &cases {
            let upstream = Upstream::start(Script::always(Answer::raw(200, kind, *body))).await;
            let failure = failure(&gateway(&upstream), &ask(model(wire), vec![user("hi")])).await;
            assert_eq!(failure.code, "bad_response", "{wire:?} {kind} {body}: {}", failure.message);
        }
        cases.rotate_left(1);
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_gets_no_key() {
    for wire in Wire::ALL {
        for status in [301, 302, 303, 307, 308] {
            let elsewhere = Upstream::start(Script::always(Say::text("gotcha"))).await;
            let to = elsewhere.base_url().replace("127.0.0.1", "localhost");
            let upstream =
                Upstream::start(Answer::redirect(status, &format!("{to}/v1/chat/completions")))
                    .await;
            let failure = failure(&gateway(&upstream), &ask(model(wire), vec![user("hi")])).await;
            assert_eq!((failure.code.as_str(), failure.status), ("bad_response", Some(status)));
            assert!(failure.message.contains("redirects are not followed"), "{}", failure.message);
            assert_eq!(elsewhere.requests().len(), 0, "{status}: the other host was asked");
            assert_eq!(elsewhere.connections(), 0);
            upstream.assert_clean();
        }
    }
}

#[tokio::test]
async fn each_key_goes_to_its_own_provider() {
    let custom = Upstream::start(Script::always(Say::text("ok"))).await;
    let openai = Upstream::start(Script::always(Say::text("ok")).key("key-of-openai")).await;
    let anthropic = Upstream::start(Script::always(Say::text("ok")).key("key-of-anthropic")).await;
    let deepseek = Upstream::start(Script::always(Say::text("ok")).key("key-of-deepseek")).await;
    let vars = |name: &str| -> Option<String> {
        Some(match name {
            "OPENAI_API_KEY" => "key-of-openai".into(),
            "ANTHROPIC_API_KEY" => "key-of-anthropic".into(),
            "DEEPSEEK_API_KEY" => "key-of-deepseek".into(),
            "OVERMIND_OPENAI_RESPONSES_URL" => format!("{}/v1/responses", openai.base_url()),
            "OVERMIND_ANTHROPIC_MESSAGES_URL" => format!("{}/v1/messages", anthropic.base_url()),
            "OVERMIND_DEEPSEEK_CHAT_COMPLETIONS_URL" => {
                format!("{}/chat/completions", deepseek.base_url())
            }
            "OVERMIND_MODEL_BASE_URL" => custom.base_url(),
            _ => return None,
        })
    };
    let gateway = Gateway::new(Config::from_vars(&vars).unwrap());
    for (name, upstream, provider) in [
        ("gpt-5", &openai, "openai/responses"),
        ("claude-opus-4-5", &anthropic, "anthropic/messages"),
        ("deepseek-v4-pro", &deepseek, "deepseek/chat"),
        ("qwen3:8b", &custom, "custom/chat"),
        ("anthropic-messages:qwen3", &custom, "custom/messages"),
    ] {
        let before = upstream.requests().len();
        assert_eq!(gateway.check(name), Ok(()));
        assert_eq!(reply(&gateway, &ask(name, vec![user("hi")])).await.provider, provider);
        assert_eq!(upstream.requests().len(), before + 1, "{name}");
    }
    for request in custom.requests() {
        assert!(!format!("{request:?}").contains("key-of"), "{request:?}");
    }
}

#[tokio::test]
async fn a_key_repeated_by_a_provider_is_masked() {
    for wire in Wire::ALL {
        let echo = format!("Incorrect API key provided: {KEY}.");
        for answer in [
            Answer::status(401, "authentication_error", &echo),
            Answer::say(Say::text("x")).error_after(2, "authentication_error", &echo),
            Answer::raw(500, "text/plain", echo.clone()),
        ] {
            let upstream = Upstream::start(Script::always(answer)).await;
            let gateway = gateway(&upstream);
            let (result, deltas) = complete(&gateway, &ask(model(wire), vec![user("hi")])).await;
            let failure = result.unwrap_err();
            assert!(failure.message.contains("[redacted]"), "{}", failure.message);
            let all = format!("{failure:?} {deltas:?} {gateway:?}");
            assert!(!all.contains(KEY), "{all}");
        }
    }
}

#[tokio::test]
async fn a_providers_long_error_is_kept_up_to_4_kib() {
    let upstream = Upstream::start(Answer::raw(400, "text/plain", "ü".repeat(100_000))).await;
    let failure = failure(&gateway(&upstream), &ask("m", vec![user("hi")])).await;
    assert_eq!(failure.body.unwrap().len(), 4096);
    assert!(failure.message.len() < 1200, "{}", failure.message.len());
}

#[tokio::test]
async fn a_missing_provider_is_reported_with_the_setting_by_calls_and_by_check() {
    let gateway = Gateway::new(Config::default());
    for name in ["gpt-5", "claude-opus-4-5", "deepseek-v4-pro", "qwen3", ""] {
        let failure = failure(&gateway, &ask(name, vec![user("hi")])).await;
        assert_eq!(gateway.check(name), Err(failure));
    }
    let broken = gateway_of(Provider::custom("http://user:hunter22@h/v1", None));
    let failure = broken.check("m").unwrap_err();
    assert_eq!(failure.code, "model_unconfigured");
    assert!(!failure.message.contains("hunter22"), "{}", failure.message);
    let odd = gateway_of(Provider::custom("http://127.0.0.1:1", Secret::new("bad\u{7f}key")));
    let failure = crate::support::failure(&odd, &ask("m", vec![user("hi")])).await;
    assert_eq!(failure.code, "model_unconfigured", "{}", failure.message);
}

#[tokio::test]
async fn a_parameter_that_a_model_refuses_is_left_out_from_then_on() {
    let cases: [(Wire, &str, &str, &str); 6] = [
        (
            Wire::Chat,
            "small-1",
            "temperature",
            "Unsupported value: 'temperature' does not support 0.0",
        ),
        (Wire::Chat, "small-1", "stream_options", "Unrecognized request argument: stream_options"),
        (Wire::Chat, "o3", "reasoning_effort", "reasoning_effort is not supported"),
        (Wire::Responses, "o3", "include", "Encrypted content is not supported with this model."),
        (Wire::Responses, "small-1", "temperature", "Unsupported parameter: 'temperature'"),
        (Wire::Messages, "small-1", "temperature", "temperature: Extra inputs are not permitted"),
    ];
    for (wire, name, field, message) in cases {
        let upstream = Upstream::start([
            Answer::status(400, "invalid_request_error", message),
            Say::text("without it").into(),
            Say::text("still without it").into(),
        ])
        .await;
        let gateway = gateway(&upstream);
        let request = ModelRequest {
            reasoning_effort: (field == "reasoning_effort").then(|| "low".to_owned()),
            ..ask(&model(wire).replace("small-1", name), vec![user("hi")])
        };
        assert_eq!(reply(&gateway, &request).await.text, "without it", "{field}");
        assert_eq!(reply(&gateway, &request).await.text, "still without it", "{field}");
        let with: Vec<bool> =
            upstream.requests().iter().map(|r| r.body.get(field).is_some()).collect();
        assert_eq!(with, [true, false, false], "{wire:?} {field}");
        upstream.assert_clean();
    }
}

#[tokio::test]
async fn the_output_limit_is_renamed_for_a_server_that_knows_the_other_name() {
    let upstream = Upstream::start([
        Answer::status(
            400,
            "invalid_request_error",
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
        ),
        Say::text("ok").into(),
    ])
    .await;
    let request = ModelRequest { max_output_tokens: Some(5), ..ask("m", vec![user("hi")]) };
    reply(&gateway(&upstream), &request).await;
    assert_eq!(upstream.requests()[1].body["max_completion_tokens"], 5);
    assert_eq!(upstream.requests()[1].body.get("max_tokens"), None);
}

#[tokio::test]
async fn reasoning_that_a_provider_no_longer_accepts_is_left_out_once() {
    let thinking = || Answer::say(Say::nothing().reasoning("deep").call("c", "t", &json!({})));
    let upstream = Upstream::start([
        thinking(),
        Answer::status(
            400,
            "invalid_request_error",
            "messages.1.content.0: Invalid `signature` in `thinking` block",
        ),
        Say::text("go on").into(),
        Say::text("and on").into(),
    ])
    .await;
    let gateway = gateway(&upstream);
    let name = model(Wire::Messages);
    let first = reply(&gateway, &ask_with_tools(name, vec![user("?")], &["t"])).await;
    let history = vec![user("?"), said(&first), result("c", "r")];
    reply(&gateway, &ask_with_tools(name, history.clone(), &["t"])).await;
    reply(&gateway, &ask_with_tools(name, history, &["t"])).await;
    let with: Vec<bool> =
        upstream.requests().iter().map(|r| r.body.to_string().contains("\"signature\"")).collect();
    // The reasoning of the next conversation is independent: nothing is learnt from this one.
    assert_eq!(with, [false, true, false, true]);
    upstream.assert_clean();
}

#[tokio::test]
async fn refusals_before_sending_are_not_retried() {
    let upstream = Upstream::start(Answer::status(
        400,
        "invalid_request_error",
        "reasoning_effort: bad; thinking: bad",
    ))
    .await;
    let history = vec![user("?"), assistant("a", &[]), user("b")];
    let failure = failure(&gateway(&upstream), &ask("m", history)).await;
    assert_eq!(failure.code, "bad_request");
    upstream.assert_clean();
}

#[tokio::test]
async fn a_dropped_call_closes_its_connection() {
    let upstream =
        Upstream::start(Script::always(Answer::say(Say::text("endless")).stall_after(3))).await;
    let gateway = gateway(&upstream);
    let request = ask("m", vec![user("hi")]);
    let seen = tokio::sync::Notify::new();
    let sink = |_| seen.notify_one();
    tokio::select! {
        result = gateway.complete(&request, &sink) => panic!("{result:?}"),
        () = seen.notified() => {}
    }
    tokio::time::timeout(Duration::from_secs(10), upstream.idle())
        .await
        .expect("the connection is closed");
}
