//! Calls of others, passed on: chains, retries, silence, and bytes as they are.

use std::time::Duration;

use bytes::Bytes;
use overmind_core::model::Models;
use overmind_core::relay::{
    Answer as Passed, Call, Dialect, Endpoint, Hop, Peek, Refusal, RefusalKind, Sent, Upstreams,
    Worst, head,
};
use overmind_core::time::Timestamp;
use overmind_llm::{Config, Format, Gateway, Provider, RelayLimits, Retry, Secret};
use overmind_testkit::upstream::{Answer, Say, Script, Upstream, Wire, stream_of};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::KEY;

fn provider(name: &str, upstream: &Upstream) -> Provider {
    Provider {
        name: name.to_owned(),
        models: vec![format!("{name}-*")],
        ..Provider::custom(&upstream.base_url(), Secret::new(KEY))
    }
}

fn gateway(providers: Vec<Provider>, change: impl FnOnce(&mut Config)) -> Gateway {
    let millis = Duration::from_millis;
    let mut config = Config {
        providers,
        retry: Retry { max_attempts: 4, base: millis(2), cap: millis(10) },
        ..Config::default()
    };
    change(&mut config);
    Gateway::new(config)
}

fn call(endpoint: Endpoint, body: &str) -> Call {
    let body = Bytes::from(body.to_owned());
    let mut headers = http::HeaderMap::new();
    headers.insert("content-type", http::HeaderValue::from_static("application/json"));
    Call {
        endpoint,
        query: None,
        headers: head::request(&headers).unwrap(),
        peek: Peek::of(endpoint, &body).unwrap(),
        body,
        at: Timestamp::from_micros(1_700_000_000_000_000),
        sent: Sent::default(),
    }
}

fn chat(model: &str, stream: bool) -> Call {
    let body = json!({
        "model": model, "stream": stream, "messages": [{"role": "user", "content": "hi"}],
    });
    call(Endpoint::Chat, &body.to_string())
}

async fn ask(gateway: &Gateway, call: &Call) -> Result<(Passed, Vec<Hop>), Refusal> {
    let hops = gateway.plan(call.endpoint, &call.peek.model)?;
    Ok((gateway.open(call, &hops).await?, hops))
}

/// All of an answer, or why it is cut.
async fn rest(answer: &mut Passed) -> (String, Option<String>) {
    let mut all = Vec::new();
    loop {
        match answer.body.next().await {
            Ok(Some(bytes)) => all.extend_from_slice(&bytes),
            Ok(None) => return (String::from_utf8(all).unwrap(), None),
            Err(cut) => return (String::from_utf8_lossy(&all).into_owned(), Some(cut.why)),
        }
    }
}

#[tokio::test]
async fn an_alias_falls_back_and_skips_a_failed_model() {
    let busy = Answer::status(503, "overloaded", "busy").header("retry-after", "30");
    let one = Upstream::start(Script::always(busy)).await;
    let two = Upstream::start(Script::always(Say::text("from two"))).await;
    let gateway = gateway(vec![provider("one", &one), provider("two", &two)], |config| {
        let chain = ["one-a", "two-a"].map(str::to_owned).to_vec();
        config.aliases.insert("fast".to_owned(), chain);
    });
    let call = chat("fast", false);
    let (mut answer, hops) = ask(&gateway, &call).await.unwrap();
    assert_eq!((answer.status, hops[answer.hop].provider.as_str()), (200, "two"));
    assert!(rest(&mut answer).await.0.contains("from two"));
    assert_eq!(two.requests()[0].body["model"], "two-a");
    ask(&gateway, &call).await.unwrap();
    assert_eq!(one.requests().len(), 1, "the first one rests");
    // A request that names only this model is still sent, and gets the provider's own error.
    let (mut answer, _) = ask(&gateway, &chat("one-a", false)).await.unwrap();
    assert_eq!((answer.status, answer.headers["retry-after"].to_str().unwrap()), (503, "30"));
    assert!(rest(&mut answer).await.0.contains("busy"));
}

#[tokio::test]
async fn request_errors_come_from_the_first_model_of_a_chain() {
    let wrong = Answer::status(400, "invalid_request_error", "no");
    let one = Upstream::start(Script::always(wrong)).await;
    let two = Upstream::start(Script::always(Say::text("never"))).await;
    let gateway = gateway(vec![provider("one", &one), provider("two", &two)], |config| {
        let chain = ["one-a", "two-a"].map(str::to_owned).to_vec();
        config.aliases.insert("fast".to_owned(), chain);
    });
    let (answer, _) = ask(&gateway, &chat("fast", false)).await.unwrap();
    assert_eq!(answer.status, 400);
    assert!(two.requests().is_empty());
}

#[tokio::test]
async fn only_failures_before_the_first_byte_are_retried() {
    let upstream = Upstream::start([
        Answer::status(500, "api_error", "oops"),
        Say::text("hello there").usage(9, 3).into(),
    ])
    .await;
    let gateway = gateway(vec![provider("one", &upstream)], |_| ());
    let (answer, _) = ask(&gateway, &chat("one-a", false)).await.unwrap();
    assert_eq!((answer.status, upstream.requests().len()), (200, 2));
    let cut = Answer::say(Say::text("one two three").usage(9, 3)).cut_after(2);
    upstream.push(cut);
    let (mut answer, _) = ask(&gateway, &chat("one-a", true)).await.unwrap();
    let (said, why) = rest(&mut answer).await;
    assert!(said.contains("data:") && why.is_some(), "{said}");
    assert_eq!(upstream.requests().len(), 3);
    assert!(!answer.body.tally().is_final);
    // It accepted the request without an answer: it may have acted, so it is not asked again.
    upstream.push(Answer::hang_up());
    let refusal = ask(&gateway, &chat("one-a", false)).await.unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Unreachable);
    assert_eq!(upstream.requests().len(), 4);
    assert!(!refusal.message.contains(KEY));
}

#[tokio::test]
async fn a_silent_provider_times_out_before_the_head_and_within_the_stream() {
    let say = Say::text("one two three").usage(9, 3);
    let upstream = Upstream::start([Answer::hang(), Answer::say(say).stall_after(2)]).await;
    let gateway = gateway(vec![provider("one", &upstream)], |config| {
        let brief = Duration::from_millis(100);
        config.relay = RelayLimits { idle: brief, head: brief, ..config.relay };
    });
    let refusal = ask(&gateway, &chat("one-a", true)).await.unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Silent);
    let (mut answer, _) = ask(&gateway, &chat("one-a", true)).await.unwrap();
    let (_, why) = rest(&mut answer).await;
    assert!(why.unwrap().contains("sent nothing"));
    upstream.idle().await;
}

#[tokio::test]
async fn chunks_and_pings_are_forwarded_at_once_whatever_their_cuts() {
    let say = Say::text("one two three four five").usage(90, 30);
    let slow = Answer::say(say.clone()).pings().drip(Duration::from_millis(5));
    let bytes = Answer::say(say).pings().crlf().every_byte();
    for answer in [slow, bytes] {
        let upstream = Upstream::start([answer]).await;
        let gateway = gateway(vec![provider("one", &upstream)], |_| ());
        let (mut answer, hops) = ask(&gateway, &chat("one-a", true)).await.unwrap();
        let mut pieces = 0;
        let mut said = Vec::new();
        while let Some(piece) = answer.body.next().await.unwrap() {
            pieces += 1;
            said.extend_from_slice(&piece);
        }
        assert!(pieces > 4, "{pieces}");
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains("\n:") || said.starts_with(':'), "comments pass: {said}");
        assert!(!said.contains("\"prompt_tokens\""), "{said}");
        let tally = answer.body.tally();
        assert_eq!(tally.usage.unwrap().input_tokens, 90);
        assert!(tally.is_final);
        assert_eq!(gateway.worst(&hops[0], &tally.usage.unwrap()), Worst::Unknown);
    }
}

#[tokio::test]
async fn invalid_data_is_forwarded_unless_it_must_be_translated() {
    let nonsense = "data: {\"choices\": [nonsense\n\nevent: what\ndata: 7\n\ndata: [DONE]\n\n";
    let raw = || Answer::raw(200, "text/event-stream", nonsense);
    let upstream = Upstream::start([raw(), raw()]).await;
    let gateway = gateway(vec![provider("one", &upstream)], |_| ());
    let (mut answer, _) = ask(&gateway, &chat("one-a", true)).await.unwrap();
    assert_eq!(rest(&mut answer).await, (nonsense.to_owned(), None));
    let body = json!({
        "model": "openai-chat:one-a", "max_tokens": 9, "stream": true,
        "messages": [{"role": "user", "content": "hi"}],
    });
    let call = call(Endpoint::Messages, &body.to_string());
    let (mut answer, _) = ask(&gateway, &call).await.unwrap();
    let (said, why) = rest(&mut answer).await;
    assert!(why.unwrap().contains("not JSON"));
    assert!(said.starts_with("event: error\n"), "a caller is told before it breaks off: {said}");
}

#[tokio::test]
async fn invalid_usage_is_not_free() {
    let stream = |usage: &str| {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"twelve \\ud83d!!\"}},\"finish_reason\":\"stop\"}}]}}\n\n\
             data: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n"
        )
    };
    for (usage, input, output) in [
        (r#"{"prompt_tokens":1000.0,"completion_tokens":5.0}"#, 1000, 5),
        (r#"{"prompt_tokens":-5,"completion_tokens":5}"#, 77, 4),
        (r#"{"prompt_tokens":"many","completion_tokens":5}"#, 77, 4),
        (r#"{"prompt_tokens":9,"completion_tokens":12.5}"#, 77, 4),
        (r#"{"prompt_tokens":0,"completion_tokens":0}"#, 77, 4),
        (r#"{"prompt_tokens":9,"completion_tokens":0}"#, 9, 4),
    ] {
        let upstream =
            Upstream::start([Answer::raw(200, "text/event-stream", stream(usage))]).await;
        let gateway = gateway(vec![provider("one", &upstream)], |_| ());
        let (mut answer, _) = ask(&gateway, &chat("one-a", true)).await.unwrap();
        assert_eq!(rest(&mut answer).await.1, None);
        let settled = answer.body.tally().settled(77);
        assert_eq!((settled.input_tokens, settled.output_tokens), (input, output), "{usage}");
    }
}

#[tokio::test]
async fn a_stream_closed_before_its_last_event_is_truncated() {
    let say = Say::text("one two").usage(9, 3);
    for (endpoint, wire, last) in [
        (Endpoint::Chat, Wire::Chat, "[DONE]"),
        (Endpoint::Messages, Wire::Messages, "message_stop"),
        (Endpoint::Responses, Wire::Responses, "response.completed"),
    ] {
        let n_events = stream_of(wire, &say, false).len();
        let upstream = Upstream::start(Script::new([]).for_strangers()).await;
        let gateway = gateway(vec![provider("one", &upstream)], |_| ());
        for figures in [false, true] {
            let mut body = json!({"model": "one-a", "stream": true, "max_tokens": 9, "input": "hi",
                "messages": [{"role": "user", "content": "hi"}]});
            if figures {
                body["stream_options"] = json!({"include_usage": true});
            }
            let call = call(endpoint, &body.to_string());
            for n in 0..=n_events {
                upstream.push(Answer::say(say.clone()).end_after(n));
                let (mut answer, _) = ask(&gateway, &call).await.unwrap();
                let (said, why) = rest(&mut answer).await;
                // Some servers of chat end with the reason to stop.
                let whole = said.contains(last) || said.contains("\"finish_reason\":\"stop\"");
                assert_eq!(why.is_none(), whole, "{endpoint:?} after {n}: {why:?} {said}");
                assert!(whole || why.unwrap().contains("too early"));
                assert!(whole || n < n_events);
            }
        }
    }
}

#[tokio::test]
async fn bytes_are_forwarded_unchanged_in_both_directions() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/v1", listener.local_addr().unwrap());
    let provider = Provider {
        speaks: vec![Format::AnthropicMessages],
        ..Provider::custom(&base, Secret::new(KEY))
    };
    let gateway = gateway(vec![provider], |_| ());
    let text = "{\"model\" : \"m\",  \"n\":1 ,\"s\":\"\\u00e9\\/\" }";
    let mut call = call(Endpoint::Messages, text);
    call.query = Some("beta=true".to_owned());
    call.headers.insert("anthropic-beta", http::HeaderValue::from_static("a-1,b-2"));
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-odd:  v \r\n\
         x-debug: Bearer {KEY}\r\ncontent-length: 24\r\n\r\n{{ \"usage\" : {{}}  , \"a\":1}}"
    );
    let hops = gateway.plan(call.endpoint, "m").unwrap();
    let server = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut seen = Vec::new();
        let mut piece = [0; 4096];
        while !seen.ends_with(text.as_bytes()) {
            let n = socket.read(&mut piece).await.unwrap();
            assert_ne!(n, 0, "{}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&piece[..n]);
        }
        socket.write_all(answer.as_bytes()).await.unwrap();
        (String::from_utf8(seen).unwrap(), socket)
    };
    let (opened, (seen, _socket)) = tokio::join!(gateway.open(&call, &hops), server);
    let mut opened = opened.unwrap();
    assert!(seen.starts_with("POST /v1/messages?beta=true HTTP/1.1\r\n"), "{seen}");
    assert!(seen.contains("anthropic-beta: a-1,b-2\r\n"), "{seen}");
    assert!(seen.contains("anthropic-version: 2023-06-01\r\n"), "{seen}");
    assert!(seen.contains(&format!("x-api-key: {KEY}\r\n")), "{seen}");
    assert!(seen.ends_with(text), "{seen}");
    assert_eq!(opened.headers["x-odd"], "v");
    assert!(!opened.headers.contains_key("x-debug"), "it quotes the provider's key");
    assert_eq!(rest(&mut opened).await.0, "{ \"usage\" : {}  , \"a\":1}");
}

#[tokio::test]
async fn a_server_without_stream_options_is_asked_without_them_afterwards() {
    let refuses = Answer::status(400, "invalid_request_error", "unknown field stream_options");
    let say = || Answer::from(Say::text("hello"));
    let upstream = Upstream::start([refuses, say(), say()]).await;
    let gateway = gateway(vec![provider("one", &upstream)], |_| ());
    for _ in 0..2 {
        let (answer, _) = ask(&gateway, &chat("one-a", true)).await.unwrap();
        assert_eq!(answer.status, 200);
    }
    let asked: Vec<bool> = upstream
        .requests()
        .iter()
        .map(|request| request.body.get("stream_options").is_some())
        .collect();
    assert_eq!(asked, [true, false, false]);
}

#[tokio::test]
async fn plans_use_only_formats_that_the_provider_supports() {
    let upstream = Upstream::start(Script::default()).await;
    let only = |name: &str, format| Provider {
        models: vec![format!("{name}-*")],
        key: Secret::new(KEY),
        ..Provider::new(name, format, &upstream.base_url())
    };
    let gateway = gateway(
        vec![only("chat", Format::OpenAiChat), only("messages", Format::AnthropicMessages)],
        |_| (),
    );
    let plan = |endpoint, model: &str| {
        gateway.plan(endpoint, model).map(|hops| hops[0].endpoint).map_err(|no| no.kind)
    };
    use Endpoint::{Chat, CountTokens, Embeddings, Messages, Responses};
    for (endpoint, model, wanted) in [
        (Chat, "chat-a", Ok(Chat)),
        (Chat, "messages-a", Ok(Messages)),
        (Messages, "chat-a", Ok(Chat)),
        (Responses, "chat-a", Ok(Chat)),
        (Responses, "messages-a", Ok(Messages)),
        (Embeddings, "chat-a", Ok(Embeddings)),
        (Embeddings, "messages-a", Err(RefusalKind::NotFound)),
        (CountTokens, "messages-a", Ok(CountTokens)),
        (CountTokens, "chat-a", Err(RefusalKind::NotFound)),
        (Chat, "nobody-knows", Err(RefusalKind::NotFound)),
    ] {
        assert_eq!(plan(endpoint, model), wanted, "{endpoint:?} {model}");
    }
    assert!(gateway.upstreams().is_some());
    assert!(!gateway.is_ready(Dialect::Anthropic), "none of them is Anthropic's own");
}

#[tokio::test]
async fn recorded_calls_are_replayed_without_a_provider() {
    let dir = tempfile::tempdir().unwrap();
    let tape = dir.path().join("calls.jsonl");
    let upstream = Upstream::start([
        Say::text("the first").usage(9, 3).into(),
        Say::text("the second").usage(9, 3).into(),
        Answer::status(400, "invalid_request_error", "no"),
    ])
    .await;
    let recording = gateway(vec![provider("one", &upstream)], |config| {
        config.record = Some(tape.clone());
    });
    let calls = [chat("one-a", true), chat("one-a", false), chat("one-b", false)];
    let mut said = Vec::new();
    for call in &calls {
        let (mut answer, _) = ask(&recording, call).await.unwrap();
        said.push((answer.status, rest(&mut answer).await.0));
    }
    let text = std::fs::read_to_string(&tape).unwrap();
    assert!(!text.contains(KEY) && text.lines().count() == 3, "{text}");

    let playing = gateway(Vec::new(), |config| config.replay = Some(tape.clone()));
    for (call, said) in calls.iter().zip(&said) {
        let (mut answer, hops) = ask(&playing, call).await.unwrap();
        assert_eq!(&(answer.status, rest(&mut answer).await.0), said);
        assert_eq!(playing.worst(&hops[answer.hop], &Default::default()), Worst::Costs(0));
    }
    // The same body gets the same answer; another one gets the next answer, and then none.
    let (mut answer, _) = ask(&playing, &calls[0]).await.unwrap();
    assert_eq!(rest(&mut answer).await.0, said[0].1);
    let playing = gateway(Vec::new(), |config| config.replay = Some(tape));
    let other = json!({"model": "one-a", "stream": true, "now": 17, "messages": []}).to_string();
    let other = call(Endpoint::Chat, &other);
    for said in &said[..2] {
        let (mut answer, _) = ask(&playing, &other).await.unwrap();
        assert_eq!(rest(&mut answer).await.0, said.1);
    }
    let refusal = ask(&playing, &other).await.unwrap_err();
    assert!(refusal.message.contains("no further answer"), "{refusal}");
    assert_eq!(upstream.requests().len(), 3);
}
