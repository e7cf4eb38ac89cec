//! Finding by meaning, over the wire.

use std::sync::Arc;

use overmind_core::budget::Behalf;
use overmind_core::ids::SessionId;
use overmind_core::memory::{Memory, MemoryDraft, MemoryError, MemoryQuery};
use overmind_memory::{EmbedError, Embedder, HttpEmbedder};
use serde_json::json;

use crate::endpoint::{Books, Endpoint, KEY, config, meaning, respond, vector};
use crate::support::{Bench, ask, draft, keyed};

async fn error_of(answer: impl Fn() -> String + Send + Sync + 'static) -> EmbedError {
    let endpoint = Endpoint::start(move |_| Some(answer())).await;
    endpoint
        .embedder("m", None)
        .embed("x", &Behalf::default())
        .await
        .expect_err("the endpoint does not answer well")
}

#[tokio::test]
async fn the_request_matches_the_openai_documentation() {
    let endpoint = Endpoint::start(|_| vector(&[3.0, 4.0])).await;
    let found = endpoint
        .embedder("text-embedding-3-small", None)
        .embed(" some text ", &Behalf::default())
        .await;
    assert_eq!(found, Ok(vec![3.0, 4.0]));
    let request = endpoint.last();
    assert!(request.head.starts_with("post /v1/embeddings http/1.1\r\n"), "{}", request.head);
    assert!(request.head.contains(&format!("authorization: bearer {KEY}")), "{}", request.head);
    assert!(request.head.contains("content-type: application/json"), "{}", request.head);
    assert_eq!(request.body, json!({"model": "text-embedding-3-small", "input": " some text "}));
    let sized = endpoint.embedder("m", Some("2"));
    assert_eq!(sized.embed("x", &Behalf::default()).await, Ok(vec![3.0, 4.0]));
    assert_eq!(endpoint.last().body, json!({"model": "m", "input": "x", "dimensions": 2}));
}

#[tokio::test]
async fn a_text_is_found_by_meaning_without_a_common_word() {
    let endpoint = Endpoint::start(meaning).await;
    let bench = Bench::new(Some(endpoint.embedder("m", None)));
    bench.add("a boat under sail").await;
    bench.add("flour for the oven").await;
    bench.add("our kitten sleeps").await;
    let hits = bench.find("puppy", 3).await;
    assert_eq!(hits[0].item.text, "our kitten sleeps");
    assert_eq!(hits.len(), 3, "all items have vectors");
    assert!(hits.windows(2).all(|pair| pair[0].score > pair[1].score));
    // Words and meaning together beat meaning alone.
    let hits = bench.find("boat", 3).await;
    assert_eq!(hits[0].item.text, "a boat under sail");
    let best = (1.0 + 0.75) / (5.0 + 1.0);
    assert!((hits[0].score - best).abs() < 1e-9, "first in both lists: {}", hits[0].score);
}

#[tokio::test]
async fn the_vector_is_normalised_and_its_model_and_size_are_recorded() {
    let endpoint = Endpoint::start(|_| vector(&[3.0, 0.0, 4.0])).await;
    let bench = Bench::new(Some(endpoint.embedder("model-a", None)));
    let item = bench.add("x").await;
    assert_eq!(item.embedding, [0.6, 0.0, 0.8]);
    assert_eq!(item.embedding_model, "model-a");
    assert_eq!(bench.store.memory_fetch(item.id).await.unwrap(), Some(item));
    let payload = bench.stored_events().await[0].value();
    assert_eq!((&payload["embedding_model"], &payload["dims"]), (&json!("model-a"), &json!(3)));
}

#[tokio::test]
async fn items_of_another_mode_or_model_are_still_found_by_their_words() {
    let bench = Bench::local();
    bench.add("an old note about a cat").await;
    let endpoint = Endpoint::start(meaning).await;
    let first = bench.beside(Some(endpoint.embedder("model-a", None)));
    first.store(draft("a kitten for model a")).await.unwrap();
    let second = bench.beside(Some(endpoint.embedder("model-b", None)));
    second.store(draft("bread for model b")).await.unwrap();

    let texts = async |memory: &dyn Memory, query: &str| -> Vec<String> {
        let hits = memory.search(ask(query, 10)).await.unwrap();
        hits.into_iter().map(|hit| hit.item.text).collect()
    };
    // The word is in the old note only; the vectors of model b are compared, those of a are not.
    let found = texts(&second, "cat").await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.contains(&"an old note about a cat".to_owned()));
    assert!(found.contains(&"bread for model b".to_owned()));
    assert_eq!(texts(&first, "dog").await, ["a kitten for model a"]);
    // And without an embedder everything is words.
    assert_eq!(texts(&bench.memory, "kitten").await[0], "a kitten for model a");
}

#[tokio::test]
async fn a_blank_query_does_not_call_the_embedder() {
    let endpoint = Endpoint::start(meaning).await;
    let bench = Bench::new(Some(endpoint.embedder("m", None)));
    bench.add("one").await;
    assert_eq!(bench.texts(" ", 5).await, ["one"]);
    assert_eq!(endpoint.count(), 1, "the one that stored");
}

#[tokio::test]
async fn a_repeated_key_does_not_call_the_embedder() {
    let endpoint = Endpoint::start(meaning).await;
    let bench = Bench::new(Some(endpoint.embedder("m", None)));
    let first = bench.memory.store(keyed("one", 3)).await.unwrap();
    assert_eq!(bench.memory.store(keyed("one", 3)).await.unwrap(), first);
    assert_eq!(endpoint.count(), 1);
}

#[tokio::test]
async fn secrets_are_not_sent_to_the_embedder() {
    let endpoint = Endpoint::start(meaning).await;
    let bench = Bench::new(Some(endpoint.embedder("m", None)));
    bench.add("say hunter2-is-my-password twice").await;
    let sent = endpoint.last().body["input"].as_str().unwrap().to_owned();
    assert!(sent.starts_with("say ") && sent.ends_with(" twice"), "{sent}");
    bench.find("hunter2-is-my-password", 1).await;
    for request in endpoint.requests.lock().unwrap().iter() {
        assert!(!request.body.to_string().contains("hunter2"), "{}", request.body);
    }
}

#[tokio::test]
async fn a_long_text_is_embedded_by_its_start_and_an_empty_one_as_a_space() {
    let endpoint = Endpoint::start(meaning).await;
    let bench = Bench::new(Some(endpoint.embedder("m", None)));
    bench.add(&format!("a{}", "é".repeat(40_000))).await;
    assert_eq!(endpoint.last().body["input"].as_str().map(str::len), Some(15_999));
    bench.add("").await;
    assert_eq!(endpoint.last().body["input"], json!(" "));
}

#[tokio::test]
async fn if_the_endpoint_is_down_nothing_is_stored_and_an_error_is_returned() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/v1/embeddings", listener.local_addr().unwrap())
    };
    let embedder = Arc::new(HttpEmbedder::new(config(&closed, "m", None), Arc::<Books>::default()));
    let bench = Bench::new(Some(embedder));
    for result in [
        bench.memory.store(draft("x")).await.map(|_| ()),
        bench.memory.search(ask("x", 1)).await.map(|_| ()),
    ] {
        let err = result.expect_err("there is nobody to ask");
        let text = err.to_string();
        assert!(matches!(err, MemoryError::Embedding { transient: true, .. }), "{text}");
        let wanted =
            format!("embedding the text: the embeddings endpoint {closed} cannot be asked");
        assert!(text.starts_with(&wanted), "{text}");
        assert!(text.contains("Connection refused"), "{text}");
        assert!(!text.contains(KEY), "{text}");
    }
    assert!(bench.find("", 5).await.is_empty());
    assert!(bench.stored_events().await.is_empty());
}

#[tokio::test]
async fn endpoint_errors_are_returned_without_the_key() {
    let down = error_of(|| respond("503 Service Unavailable", "{\"error\": \"overloaded\"}")).await;
    assert!(down.transient);
    assert!(
        down.message.ends_with("answered 503 Service Unavailable: {\"error\": \"overloaded\"}")
    );
    assert!(error_of(|| respond("429 Too Many Requests", "slow down")).await.transient);
    let denied =
        error_of(|| respond("401 Unauthorized", &format!("wrong key {KEY}, buy one"))).await;
    assert!(!denied.transient);
    assert!(
        denied.message.ends_with("401 Unauthorized: wrong key …, buy one"),
        "{}",
        denied.message
    );
    let long = error_of(|| respond("400 Bad Request", &"x".repeat(100_000))).await;
    assert!(long.message.len() < 700, "{} bytes", long.message.len());
}

#[tokio::test]
async fn an_answer_without_embedding_is_an_error() {
    for (body, wanted) in [
        ("<html>", "answered something other than embeddings"),
        ("{\"data\": []}", "answered without an embedding"),
        ("{\"data\": [{\"embedding\": []}]}", "answered without an embedding"),
        ("{\"data\": [{\"embedding\": [\"a\"]}]}", "answered something other than embeddings"),
    ] {
        let err = error_of(move || respond("200 OK", body)).await;
        assert!(err.message.contains(wanted), "{}", err.message);
        assert!(!err.transient);
    }
    let large = error_of(|| respond("200 OK", &" ".repeat(9 << 20))).await;
    assert!(large.message.contains("answered more than 8388608 bytes"), "{}", large.message);
}

#[tokio::test]
async fn a_zero_vector_is_an_error() {
    let endpoint = Endpoint::start(|_| vector(&[0.0, 0.0])).await;
    let bench = Bench::new(Some(endpoint.embedder("m", None)));
    let err = bench.memory.store(draft("x")).await.unwrap_err().to_string();
    assert_eq!(err, "embedding the text: the model m answered a vector of length zero");
}

#[tokio::test]
async fn requested_dimensions_are_enforced() {
    let endpoint = Endpoint::start(|_| vector(&[1.0, 0.0, 0.0])).await;
    let err = endpoint.embedder("m", Some("2")).embed("x", &Behalf::default()).await.unwrap_err();
    let wanted = "answered 3 dimensions where OVERMIND_EMBEDDING_DIMS wants 2";
    assert!(err.message.ends_with(wanted), "{}", err.message);
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Endpoint::start(meaning).await;
    let to = format!("307 Temporary Redirect\r\nlocation: {}", elsewhere.url);
    let err = error_of(move || respond(&to, "")).await;
    assert!(err.message.contains("answered 307 Temporary Redirect"), "{}", err.message);
    assert_eq!(elsewhere.count(), 0, "the key went nowhere else");
}

#[tokio::test]
async fn a_server_without_tls_behind_an_https_url_is_an_error_and_not_a_panic() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/v1/embeddings", listener.local_addr().unwrap());
    let embedder = HttpEmbedder::new(config(&url, "m", None), Arc::<Books>::default());
    let behalf = Behalf::default();
    let (asked, accepted) = tokio::join!(embedder.embed("x", &behalf), async {
        // A machine without root certificates never reaches this.
        let accept = tokio::time::timeout(std::time::Duration::from_secs(5), listener.accept());
        drop(accept.await);
    });
    let () = accepted;
    let message = asked.unwrap_err().message;
    assert!(message.contains(&url) || message.contains("embeddings client"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_call_to_a_silent_endpoint_times_out_after_ten_seconds() {
    let endpoint = Endpoint::start(|_| None).await;
    let begun = tokio::time::Instant::now();
    let err = endpoint.embedder("m", None).embed("x", &Behalf::default()).await.unwrap_err();
    assert!(begun.elapsed() <= std::time::Duration::from_secs(11), "{:?}", begun.elapsed());
    assert!(err.transient);
    assert!(err.message.ends_with("did not answer within 10 s"), "{}", err.message);
}

#[tokio::test]
async fn each_embedding_call_is_charged_to_its_caller() {
    let endpoint = Endpoint::start(|_| {
        let body = r#"{"data":[{"embedding":[3.0,4.0]}],"usage":{"prompt_tokens":7.0}}"#;
        Some(respond("200 OK", body))
    })
    .await;
    let books = Arc::<Books>::default();
    let bench = Bench::new(Some(endpoint.embedder_in("m", &books)));
    let session = Some(SessionId::from_u128(5));
    bench.memory.store(MemoryDraft { source: session, ..draft("Oslo") }).await.unwrap();
    let (caller, wanted) = ("ada".to_owned(), ask("Oslo", 1));
    bench.memory.search(MemoryQuery { caller, ..wanted }).await.unwrap();
    let told = books.told();
    assert_eq!(told.len(), 4, "{told:?}");
    let by_session = format!("openai m embeddings for {session:?} of ``: 1020 tokens at most");
    assert_eq!(told[0], by_session);
    assert_eq!(told[2], "openai m embeddings for None of `ada`: 1020 tokens at most");
    assert!(told[1].contains("input_tokens: 7") && told[1] == told[3], "{told:?}");
}

#[tokio::test]
async fn a_call_that_the_budget_refuses_is_not_sent() {
    let endpoint = Endpoint::start(meaning).await;
    let books = Books::closed();
    let bench = Bench::new(Some(endpoint.embedder_in("m", &books)));
    let err = bench.memory.store(draft("x")).await.unwrap_err();
    assert!(matches!(err, MemoryError::Embedding { transient: false, .. }), "{err}");
    assert!(err.to_string().contains("halted by admin"), "{err}");
    assert_eq!(endpoint.count(), 0);
}

#[tokio::test]
async fn refused_calls_cost_nothing_and_unanswered_calls_count_in_full() {
    for (status, ended) in
        [("429 Too Many Requests", "Unbilled(429)"), ("200 OK", "Answered(None)")]
    {
        let endpoint = Endpoint::start(move |_| Some(respond(status, "{}"))).await;
        let books = Arc::<Books>::default();
        let embedder = endpoint.embedder_in("m", &books);
        embedder.embed("x", &Behalf::default()).await.unwrap_err();
        assert_eq!(books.told()[1..], [ended], "{status}");
    }
    // It takes the request, and closes the connection.
    let endpoint = Endpoint::start(|_| Some(String::new())).await;
    let books = Arc::<Books>::default();
    endpoint.embedder_in("m", &books).embed("x", &Behalf::default()).await.unwrap_err();
    assert_eq!(books.told()[1..], ["forgotten"]);
}
