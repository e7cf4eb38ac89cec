//! Events as spans: the exported spans of any log are consistent.

use overmind_core::ids::{AgentId, CallId, EffectId, SessionId};
use overmind_core::session::Spec;
use overmind_core::store::{LogEvent, StreamId};
use overmind_core::telemetry::{Attr, Known, Lens, TOLD, Told, told};
use overmind_core::time::Timestamp;
use overmind_core::trace::{SpanId, TraceId, Traceparent};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::rules;

const SESSION: SessionId = SessionId::from_u128(0x70_0000);
const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn event(stream: StreamId, seq: u64, kind: &str, payload: &Value) -> LogEvent {
    LogEvent {
        global: seq,
        stream,
        seq,
        kind: kind.into(),
        ts: Timestamp::from_micros(1_800_000_000_000_000),
        payload: payload.to_string().into(),
        hash: [0; 32],
    }
}

fn spec(trace: Option<&str>) -> Spec {
    let mut spec = rules("do it").spec;
    spec.trace = trace.map(|text| Traceparent::parse(text).expect("a header"));
    spec
}

fn known(trace: Option<&str>) -> Known {
    let payload = serde_json::to_value(spec(trace)).expect("a payload");
    Known::of(&[event(StreamId::Session(SESSION), 1, "run.queued", &payload)])
        .expect("a session that began")
}

fn tell(known: Option<&Known>, event: &LogEvent, content: bool) -> Told {
    let address = |name: &str| (name == "openai").then(|| ("api.openai.com".to_owned(), 443));
    told(event, &Lens { known, above: None, row: None, call: None, content, address: &address })
}

fn attr<'a>(told: &'a Told, name: &str) -> Option<&'a Attr> {
    let span = told.span.as_ref().expect("a span");
    span.attrs.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

fn settled(session: Option<SessionId>, caller: &str, more: &Value) -> Value {
    let mut payload = json!({
        "call_id": CallId::from_u128(9), "run_id": session, "caller": caller, "provider": "openai",
        "model": "gpt-5-2025", "requested_model": "gpt-5", "format": "chat",
        "spent": {"microusd": 1500, "tokens": 30},
        "usage": {"input_tokens": 20, "output_tokens": 10}, "ended": "completed", "status": 200,
        "first_byte_ms": 3, "total_ms": 40,
    });
    for (name, value) in more.as_object().expect("an object") {
        payload[name] = value.clone();
    }
    payload
}

#[test]
fn a_gateway_call_is_a_child_of_its_callers_span_or_of_its_session() {
    let own = known(None);
    let stream = StreamId::Session(SESSION);
    let plain = settled(Some(SESSION), "ses", &json!({}));
    let done = tell(Some(&own), &event(stream, 5, "budget.settled", &plain), false);
    let span = done.span.as_ref().unwrap();
    assert_eq!((span.trace, span.parent), (TraceId::of_session(SESSION), Some(own.here.span)));
    assert_eq!(span.id, SpanId::of_call(CallId::from_u128(9)));
    assert_eq!(span.name, "chat gpt-5");
    assert_eq!(attr(&done, "server.address"), Some(&Attr::Text("api.openai.com".into())));
    assert_eq!(attr(&done, "overmind.cost.usd"), Some(&Attr::Float(0.0015)));
    assert_eq!(attr(&done, "gen_ai.response.model"), Some(&Attr::Text("gpt-5-2025".into())));
    let under = settled(Some(SESSION), "ses", &json!({"traceparent": GIVEN}));
    let done = tell(Some(&own), &event(stream, 5, "budget.settled", &under), false);
    let (span, given) = (done.span.unwrap(), Traceparent::parse(GIVEN).unwrap());
    assert_eq!((span.trace, span.parent), (given.trace, Some(given.span)));
    assert_eq!(span.links, [own.here], "and its session is not lost");
    // Without a session it is its own trace.
    let alone = settled(None, "admin", &json!({}));
    let done = tell(None, &event(StreamId::System, 5, "budget.settled", &alone), false);
    assert_eq!(done.span.unwrap().parent, None);
    // The session exports the engine's own calls.
    let engines = settled(Some(SESSION), "engine", &json!({}));
    assert_eq!(
        tell(None, &event(StreamId::System, 5, "budget.settled", &engines), false),
        Told::default()
    );
}

#[test]
fn failures_have_a_type_and_no_text_without_consent() {
    let own = known(Some(GIVEN));
    let stream = StreamId::Session(SESSION);
    let refused = settled(Some(SESSION), "ses", &json!({"ended": "failed", "status": 429}));
    let done = tell(Some(&own), &event(stream, 5, "budget.released", &refused), false);
    assert_eq!(attr(&done, "error.type"), Some(&Attr::Text("429".into())));
    assert_eq!(done.measured.unwrap().error.as_deref(), Some("429"));
    let failed = json!({"run_id": SESSION, "error": {"code": "boom", "message": "a secret"}});
    for (content, words) in [(false, "boom"), (true, "a secret")] {
        let done = tell(Some(&own), &event(stream, 6, "run.failed", &failed), content);
        let span = done.span.unwrap();
        assert_eq!(span.error.as_deref(), Some(words));
        assert_eq!(span.parent, Traceparent::parse(GIVEN).map(|given| given.span));
        let said = span.attrs.iter().any(|(name, _)| name.ends_with(".messages"));
        assert_eq!(said, content);
    }
}

#[test]
fn a_canceled_run_has_a_span_in_every_phase() {
    let own = known(None);
    for (kind, payload) in [
        ("run.canceled", json!({"run_id": SESSION, "by": "admin"})),
        ("run.stopped", json!({"run_id": SESSION, "by": "admin", "exit_code": null, "signal": 9})),
    ] {
        let done = tell(Some(&own), &event(StreamId::Session(SESSION), 6, kind, &payload), false);
        assert_eq!(attr(&done, "error.type"), Some(&Attr::Text("canceled".into())), "{kind}");
        let span = done.span.unwrap();
        assert_eq!((span.id, span.trace), (own.here.span, own.here.trace), "{kind}");
    }
}

#[test]
fn a_gateway_call_has_its_finish_reason_and_error() {
    let own = known(None);
    let stream = StreamId::Session(SESSION);
    let more = json!({"response_id": "resp-1", "finish_reasons": ["stop", "length"]});
    let done = settled(Some(SESSION), "ses", &more);
    let done = tell(Some(&own), &event(stream, 5, "budget.settled", &done), false);
    assert_eq!(attr(&done, "gen_ai.response.id"), Some(&Attr::Text("resp-1".into())));
    let reasons = Attr::Texts(vec!["stop".into(), "length".into()]);
    assert_eq!(attr(&done, "gen_ai.response.finish_reasons"), Some(&reasons));
    assert_eq!(attr(&done, "error.type"), None);
    // In the middle of an answer, and instead of one.
    let error = json!({"type": "overloaded_error", "message": "busy with a secret"});
    for (ended, status) in [("completed", 200), ("failed", 529), ("cut", 200)] {
        let more = json!({"error": error, "ended": ended, "status": status});
        let failed = settled(Some(SESSION), "ses", &more);
        for (content, words) in [(false, "overloaded_error"), (true, "busy with a secret")] {
            let done = tell(Some(&own), &event(stream, 5, "budget.settled", &failed), content);
            let kind = Attr::Text("overloaded_error".into());
            assert_eq!(attr(&done, "error.type"), Some(&kind));
            assert_eq!(done.span.unwrap().error.as_deref(), Some(words));
        }
    }
}

#[test]
fn an_unsampled_trace_has_no_spans_and_still_counts() {
    let quiet = known(Some(&GIVEN.replace("-01", "-00")));
    let payload = settled(Some(SESSION), "ses", &json!({}));
    let event = event(StreamId::Session(SESSION), 5, "budget.settled", &payload);
    let done = tell(Some(&quiet), &event, false);
    assert!(done.span.is_none() && done.measured.is_some());
}

#[test]
fn events_repeated_by_a_fork_are_not_exported_again() {
    let mut forked = spec(None);
    forked.fork = serde_json::from_value(json!({"from": SESSION, "at": 1})).unwrap();
    let stream = StreamId::Session(SESSION);
    let first = event(stream, 1, "run.queued", &serde_json::to_value(forked).unwrap());
    let end = event(stream, 7, "run.forked", &json!({"run_id": SESSION}));
    let known = Known::of(&[first, end]).unwrap();
    let payload = settled(Some(SESSION), "ses", &json!({}));
    let at = |seq| tell(Some(&known), &event(stream, seq, "budget.settled", &payload), false);
    assert_eq!(at(7), Told::default());
    assert!(at(8).span.is_some());
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::hash_map("[a-z_]{1,8}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_event_panics_and_a_span_ends_after_its_start(
        kind in 0..TOLD.len(),
        seq in 0_u64..10,
        latency: u64,
        effect: u64,
        args in value(),
        result in value(),
        content: bool,
        ok: bool,
    ) {
        let own = known(None);
        let payload = json!({
            "run_id": SESSION, "effect": effect, "tool_name": "t", "args": args, "result": result,
            "ok": ok, "allowed": true, "latency_ms": latency, "error": result,
            "call_id": EffectId::from_u128(3),
        });
        for stream in [StreamId::System, StreamId::Session(SESSION)] {
            let event = event(stream, seq, TOLD[kind], &payload);
            let first = tell(Some(&own), &event, content);
            prop_assert_eq!(&first, &tell(Some(&own), &event, content), "the same each time");
            if let Some(span) = first.span {
                prop_assert!(span.start <= span.end);
                let mut names: Vec<&str> = span.attrs.iter().map(|(name, _)| *name).collect();
                names.sort_unstable();
                names.dedup();
                prop_assert_eq!(names.len(), span.attrs.len(), "each attribute once");
            }
        }
        let raw = event(StreamId::Session(SESSION), seq, TOLD[kind], &args);
        tell(None, &raw, content);
    }

    #[test]
    fn usage_of_a_provider_is_exported_unchanged(
        input in 0_u64..1 << 40, output in 0_u64..1 << 40, took in 0_u64..1 << 30,
    ) {
        let own = known(None);
        let payload = settled(Some(SESSION), "ses", &json!({
            "usage": {"input_tokens": input, "output_tokens": output}, "total_ms": took,
        }));
        let done = tell(
            Some(&own), &event(StreamId::Session(SESSION), 5, "budget.settled", &payload), false,
        );
        let measured = done.measured.clone().unwrap();
        prop_assert_eq!(
            (measured.input_tokens, measured.output_tokens, measured.took_ms), (input, output, took)
        );
        prop_assert_eq!(attr(&done, "gen_ai.usage.input_tokens"), Some(&Attr::from(input)));
    }
}

#[test]
fn span_ids_are_derived_from_the_session_id() {
    let own = known(None);
    assert_eq!(own.here.trace, TraceId::of_session(SESSION));
    assert_eq!(own.here.span, SpanId::of_session(SESSION));
    assert_eq!((own.agent, own.copied), (AgentId::from_u128(2), 0));
}
