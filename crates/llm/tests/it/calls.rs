//! Replies: text, calls, reasoning, usage, in each format and with any cuts.

use std::time::Duration;

use overmind_core::model::{ModelDelta, StopReason, Usage};
use overmind_testkit::upstream::{Answer, Say, Script, Upstream, Wire, stream_of};
use serde_json::{Value, json};

use crate::support::{ask, ask_with_tools, complete, gateway, model, reply, streamed, user};

#[tokio::test]
async fn text_is_streamed_in_chunks_and_returned_whole() {
    for wire in Wire::ALL {
        let upstream =
            Upstream::start(Say::text("grüße from a 🦀, and then some").usage(12, 7)).await;
        let (result, deltas) =
            complete(&gateway(&upstream), &ask(model(wire), vec![user("hi")])).await;
        let reply = result.unwrap();
        assert_eq!(reply.text, "grüße from a 🦀, and then some", "{wire:?}");
        assert_eq!(reply.stop, StopReason::End);
        assert_eq!(reply.model, "upstream-1");
        assert_eq!(reply.usage, Usage { input_tokens: 12, output_tokens: 7, ..Usage::default() });
        assert_eq!((reply.calls.len(), reply.provider_state.as_ref()), (0, None));
        assert_eq!(reply.cost_microusd, None, "nobody knows the price of small-1");
        assert!(deltas.len() > 5, "{wire:?}: {deltas:?}");
        assert_eq!(streamed(&deltas).0, reply.text);
        upstream.assert_clean();
    }
}

#[tokio::test]
async fn deltas_arrive_while_the_provider_still_speaks() {
    for wire in Wire::ALL {
        // The reply never ends; the text so far must be available nevertheless.
        let n_events = stream_of(wire, &Say::text("first words"), false).len();
        let upstream =
            Upstream::start(Answer::say(Say::text("first words")).stall_after(n_events - 3)).await;
        let gateway = gateway(&upstream);
        let request = ask(model(wire), vec![user("hi")]);
        let (seen, mut words) = tokio::sync::mpsc::unbounded_channel();
        let sink = move |delta| drop(seen.send(delta));
        let call = overmind_core::model::Models::complete(&gateway, &request, &sink);
        let mut text = String::new();
        tokio::select! {
            result = call => panic!("{wire:?} has an end: {result:?}"),
            () = async {
                while text.len() < 8 {
                    if let Some(ModelDelta::Text(piece)) = words.recv().await {
                        text.push_str(&piece);
                    }
                }
            } => {}
        }
        assert!("first words".starts_with(&text), "{wire:?}: {text}");
    }
}

#[tokio::test]
async fn a_tool_call_has_its_arguments_as_an_object() {
    for wire in Wire::ALL {
        let args = json!({ "path": "src/größe.rs", "n": [1, 2.5, null], "deep": { "a": true } });
        let upstream = Upstream::start(Say::text("Looking.").call("c1", "read_file", &args)).await;
        let request = ask_with_tools(model(wire), vec![user("look")], &["read_file"]);
        let (result, deltas) = complete(&gateway(&upstream), &request).await;
        let reply = result.unwrap();
        assert_eq!(reply.stop, StopReason::ToolCalls, "{wire:?}");
        assert_eq!(reply.text, "Looking.");
        let [call] = reply.calls.as_slice() else { panic!("{:?}", reply.calls) };
        assert_eq!((call.id.as_str(), call.name.as_str(), &call.args), ("c1", "read_file", &args));
        let (_, _, streamed) = streamed(&deltas);
        assert_eq!(streamed, [("read_file".to_owned(), args.to_string())], "{wire:?}");
        upstream.assert_clean();
    }
}

#[tokio::test]
async fn parallel_calls_stay_separate_and_in_order() {
    for wire in Wire::ALL {
        let say = Say::nothing()
            .call("a", "read_file", &json!({ "path": "one two three four" }))
            .call("b", "list_files", &json!({}))
            .call("c", "read_file_2", &json!({ "path": "x" }));
        let upstream = Upstream::start(say).await;
        let request = ask_with_tools(
            model(wire),
            vec![user("look")],
            &["read_file", "list_files", "read_file_2"],
        );
        let (result, deltas) = complete(&gateway(&upstream), &request).await;
        let calls = result.unwrap().calls;
        let shown: Vec<_> =
            calls.iter().map(|c| (c.id.as_str(), c.name.as_str(), c.args.to_string())).collect();
        let want = [
            ("a", "read_file", r#"{"path":"one two three four"}"#.to_owned()),
            ("b", "list_files", "{}".to_owned()),
            ("c", "read_file_2", r#"{"path":"x"}"#.to_owned()),
        ];
        assert_eq!(shown, want, "{wire:?}");
        let (_, _, mut args) = streamed(&deltas);
        args.sort();
        let mut names: Vec<_> =
            want.iter().map(|(_, name, args)| ((*name).to_owned(), args.clone())).collect();
        names.sort();
        assert_eq!(args, names, "{wire:?}");
    }
}

#[tokio::test]
async fn reasoning_is_streamed_separately_from_the_text() {
    for wire in Wire::ALL {
        let say = Say::text("42").reasoning("Six times seven is what?");
        let upstream = Upstream::start(say).await;
        let (result, deltas) =
            complete(&gateway(&upstream), &ask(model(wire), vec![user("?")])).await;
        let reply = result.unwrap();
        assert_eq!(
            (reply.text.as_str(), reply.reasoning.as_str()),
            ("42", "Six times seven is what?"),
            "{wire:?}"
        );
        assert_eq!(streamed(&deltas), (reply.text.clone(), reply.reasoning.clone(), vec![]));
        assert!(reply.provider_state.is_some(), "{wire:?}");
    }
}

#[tokio::test]
async fn missing_usage_is_estimated() {
    let stream = |usage: &str| {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"face \\ud83d\"}}}}]}}\n\n\
             data: {{\"choices\":[{{\"delta\":{{\"content\":\"\\ude00 end\"}},\"finish_reason\":\"stop\"}}],\"usage\":{usage}}}\n\n\
             data: [DONE]\n\n"
        )
    };
    for (usage, input, output) in [
        (r#"{"prompt_tokens":1000.0,"completion_tokens":7}"#, 1000..=1000, 7),
        (r#"{"prompt_tokens":9,"completion_tokens":0}"#, 9..=9, 5),
        (r#"{"prompt_tokens":-5,"completion_tokens":7}"#, 1000..=2000, 5),
        (r#"{"prompt_tokens":0,"completion_tokens":0}"#, 1000..=2000, 5),
        ("null", 1000..=2000, 5),
    ] {
        let upstream =
            Upstream::start([Answer::raw(200, "text/event-stream", stream(usage))]).await;
        let reply = reply(&gateway(&upstream), &ask(model(Wire::Chat), vec![user("?")])).await;
        assert_eq!(reply.text, "face 😀 end");
        assert!(input.contains(&reply.usage.input_tokens), "{usage}: {:?}", reply.usage);
        assert_eq!(reply.usage.output_tokens, output, "{usage}");
    }
}

#[tokio::test]
async fn usage_counts_cached_written_and_reasoning_tokens_as_parts() {
    for wire in Wire::ALL {
        let say = Say::text("ok").usage(1000, 50).usage_details(800, 100, 30);
        let upstream = Upstream::start(say).await;
        let usage = reply(&gateway(&upstream), &ask(model(wire), vec![user("?")])).await.usage;
        let want = Usage {
            input_tokens: 1000,
            output_tokens: 50,
            cached_input_tokens: 800,
            cache_write_tokens: 100,
            reasoning_tokens: 30,
        };
        assert_eq!(usage, want, "{wire:?}");
    }
}

#[tokio::test]
async fn the_finish_reason_of_the_provider_is_returned() {
    for wire in Wire::ALL {
        for (stop, calls) in [
            (StopReason::MaxTokens, false),
            (StopReason::Refusal, false),
            (StopReason::MaxTokens, true),
        ] {
            let say = Say::text("as far as it goes").stop(stop);
            // Cut in the middle of its arguments.
            let say = if calls { say.raw_call("c", "read_file", r#"{"path": "a"#) } else { say };
            let upstream = Upstream::start(say).await;
            let request = ask_with_tools(model(wire), vec![user("?")], &["read_file"]);
            let reply = reply(&gateway(&upstream), &request).await;
            assert_eq!(reply.stop, stop, "{wire:?}");
            assert_eq!(reply.text, "as far as it goes", "{wire:?}");
        }
    }
}

#[tokio::test]
async fn unparsable_arguments_are_returned_as_text() {
    for wire in Wire::ALL {
        for raw in [r#"{"path": "a"#, "not json", "[1]", "\"text\""] {
            let upstream = Upstream::start(Say::nothing().raw_call("c", "read_file", raw)).await;
            let request = ask_with_tools(model(wire), vec![user("?")], &["read_file"]);
            let reply = reply(&gateway(&upstream), &request).await;
            assert_eq!(reply.calls[0].args, Value::String(raw.to_owned()), "{wire:?}");
        }
        let upstream = Upstream::start(Say::nothing().raw_call("c", "read_file", "")).await;
        let request = ask_with_tools(model(wire), vec![user("?")], &["read_file"]);
        assert_eq!(reply(&gateway(&upstream), &request).await.calls[0].args, json!({}), "{wire:?}");
    }
}

#[tokio::test]
async fn calls_of_unknown_tools_are_passed_on() {
    for wire in Wire::ALL {
        let upstream = Upstream::start(Say::nothing().call("c", "made_up", &json!({}))).await;
        let request = ask_with_tools(model(wire), vec![user("?")], &["read_file"]);
        assert_eq!(reply(&gateway(&upstream), &request).await.calls[0].name, "made_up");
    }
}

/// Everything at once, for the tests that cut streams.
fn rich() -> Say {
    Say::text("Grüße 🦀 and\nlines")
        .reasoning("hm … 日本")
        .call("c1", "read_file", &json!({ "path": "größe" }))
        .call("c2", "list_files", &json!({}))
        .usage(100, 20)
        .usage_details(10, 5, 3)
}

#[tokio::test]
async fn pings_line_ends_and_cuts_change_nothing() {
    for wire in Wire::ALL {
        let request = ask_with_tools(model(wire), vec![user("?")], &["read_file", "list_files"]);
        let plain = Upstream::start(rich()).await;
        let (want, want_deltas) = complete(&gateway(&plain), &request).await;
        assert!(want.is_ok());
        let len: usize = stream_of(wire, &rich(), false).iter().map(String::len).sum();
        let answers = [
            Answer::say(rich()).every_byte(),
            Answer::say(rich()).every_byte().crlf().pings(),
            Answer::say(rich()).pings(),
            Answer::say(rich()).split_at([]),
            Answer::say(rich()).split_at((0..len).step_by(7)),
            Answer::say(rich()).split_at((0..len).step_by(1000)).crlf(),
            Answer::say(rich()).drip(Duration::from_millis(1)),
        ];
        let n_answers = answers.len();
        let upstream = Upstream::start(answers).await;
        let gateway = gateway(&upstream);
        for n in 0..n_answers {
            let (got, deltas) = complete(&gateway, &request).await;
            assert_eq!(got, want, "{wire:?}, way {n}");
            assert_eq!(deltas, want_deltas, "{wire:?}, way {n}");
        }
        upstream.assert_clean();
    }
}

#[tokio::test]
async fn an_unstreamed_reply_is_parsed_too() {
    for wire in Wire::ALL {
        let request = ask_with_tools(model(wire), vec![user("?")], &["read_file", "list_files"]);
        let plain = Upstream::start(rich()).await;
        let (want, want_deltas) = complete(&gateway(&plain), &request).await;
        let upstream = Upstream::start(Answer::say(rich()).whole()).await;
        let (got, deltas) = complete(&gateway(&upstream), &request).await;
        assert_eq!(got, want, "{wire:?}");
        assert_eq!(streamed(&deltas), streamed(&want_deltas), "{wire:?}");
    }
}

#[tokio::test]
async fn call_ids_are_unique_in_the_conversation() {
    for wire in Wire::ALL {
        let say = || {
            Say::nothing().call("", "t", &json!({})).call("same", "t", &json!({})).call(
                "same",
                "t",
                &json!({}),
            )
        };
        let upstream = Upstream::start([say().into(), say().into()]).await;
        let gateway = gateway(&upstream);
        let first = ask_with_tools(model(wire), vec![user("?")], &["t"]);
        let first_reply = reply(&gateway, &first).await;
        let ids: Vec<&str> = first_reply.calls.iter().map(|call| call.id.as_str()).collect();
        // Two calls of one id at different places of a chat stream are two calls; the other
        // formats say so by themselves.
        assert_eq!(ids, ["call_1", "same", "same_2"], "{wire:?}");
        let mut messages = vec![user("?"), crate::support::said(&first_reply)];
        messages.extend(ids.iter().map(|id| crate::support::result(id, "ok")));
        let second = reply(&gateway, &ask_with_tools(model(wire), messages, &["t"])).await;
        let ids: Vec<&str> = second.calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["call_5", "same_3", "same_4"], "{wire:?}");
        upstream.assert_clean();
    }
}

#[tokio::test]
async fn one_connection_serves_successive_calls() {
    let upstream = Upstream::start(Script::always(Say::text("ok"))).await;
    let gateway = gateway(&upstream);
    for n in 0..30 {
        let wire = Wire::ALL[n % 3];
        reply(&gateway, &ask(model(wire), vec![user("?")])).await;
    }
    upstream.assert_clean();
    assert_eq!(upstream.connections(), 1, "each call made a connection of its own");
}
