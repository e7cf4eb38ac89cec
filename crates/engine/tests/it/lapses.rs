//! Calls that are passed on while their key is revoked: at each moment, and at any.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use overmind_core::Fut;
use overmind_core::budget::NoPrices;
use overmind_core::ids::ApiKeyId;
use overmind_core::model::{DeltaSink, ModelFailure, ModelReply, ModelRequest, Models, Usage};
use overmind_core::relay::{
    Answer, Call, Cut, Dialect, Endpoint, Hop, Offered, Peek, Pieces, Refusal, RefusalKind, Sent,
    Tally, Upstreams, Worst,
};
use overmind_core::row::Role;
use overmind_core::store::{EventQuery, Store, StreamId};
use overmind_core::time::Timestamp;
use overmind_engine::{Caller, Config, Credentials, Engine, Parts, Proved, RelayError};
use overmind_store::{Options, Sqlite};
use overmind_testkit::ids::SeededIds;
use overmind_testkit::ports::{FakeTools, NoMemory, WallClock};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const PIECES: [&str; 4] = ["data: one\n\n", "data: tw", "o\n\n", "data: [DONE]\n\n"];

/// A provider that takes a step when it is let.
#[derive(Debug)]
struct Stepping {
    steps: Arc<Semaphore>,
    asked: AtomicUsize,
}

impl Models for Stepping {
    fn complete<'a>(
        &'a self,
        _: &'a ModelRequest,
        _: DeltaSink<'a>,
    ) -> Fut<'a, Result<ModelReply, ModelFailure>> {
        Box::pin(std::future::pending())
    }

    fn check(&self, _: &str) -> Result<(), ModelFailure> {
        Ok(())
    }

    fn upstreams(&self) -> Option<&dyn Upstreams> {
        Some(self)
    }
}

impl Upstreams for Stepping {
    fn plan(&self, endpoint: Endpoint, model: &str) -> Result<Vec<Hop>, Refusal> {
        Ok(vec![Hop { provider: "p".into(), endpoint, model: model.into() }])
    }

    fn cost(&self, _: &Hop, usage: &Usage) -> Option<u64> {
        Some(usage.input_tokens + usage.output_tokens)
    }

    fn worst(&self, _: &Hop, usage: &Usage) -> Worst {
        Worst::Costs(usage.input_tokens + usage.output_tokens)
    }

    fn open<'a>(&'a self, call: &'a Call, _: &'a [Hop]) -> Fut<'a, Result<Answer, Refusal>> {
        Box::pin(async move {
            call.sent.mark();
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.steps.acquire().await.unwrap().forget();
            let kind = HeaderValue::from_static("text/event-stream");
            let headers = HeaderMap::from_iter([(http::header::CONTENT_TYPE, kind)]);
            let told = Told { steps: Arc::clone(&self.steps), left: PIECES.into(), said: 0 };
            Ok(Answer { hop: 0, status: 200, headers, body: Box::new(told) })
        })
    }

    fn offered(&self, _: Dialect) -> Vec<Offered> {
        Vec::new()
    }

    fn is_ready(&self, _: Dialect) -> bool {
        true
    }

    fn capture(&self) -> usize {
        0
    }
}

struct Told {
    steps: Arc<Semaphore>,
    left: VecDeque<&'static str>,
    said: u64,
}

impl Pieces for Told {
    fn next(&mut self) -> Fut<'_, Result<Option<Bytes>, Cut>> {
        Box::pin(async {
            self.steps.acquire().await.unwrap().forget();
            let piece = self.left.pop_front();
            self.said += piece.map_or(0, |piece| piece.len() as u64);
            Ok(piece.map(|piece| Bytes::from_static(piece.as_bytes())))
        })
    }

    fn tally(&self) -> Tally {
        let is_final = self.left.is_empty();
        let usage = Usage { input_tokens: 9, output_tokens: 3, ..Usage::default() };
        let usage = is_final.then_some(usage);
        Tally { usage, is_final, said_bytes: self.said, ..Tally::default() }
    }
}

struct World {
    engine: Engine,
    store: Arc<dyn Store>,
    provider: Arc<Stepping>,
    _dir: TempDir,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let sqlite = Arc::new(Sqlite::open(Options::new(dir.path().join("s.db"))).unwrap());
        let store: Arc<dyn Store> = Arc::clone(&sqlite) as Arc<_>;
        let steps = Arc::new(Semaphore::new(0));
        let provider = Arc::new(Stepping { steps, asked: AtomicUsize::new(0) });
        let parts = Parts {
            store: Arc::clone(&store),
            records: sqlite,
            models: Arc::clone(&provider) as Arc<_>,
            tools: FakeTools::ok(),
            tool_servers: None,
            memory: Arc::new(NoMemory),
            gate: None,
            clock: Arc::new(WallClock),
            ids: Arc::new(SeededIds::new(1)),
            processes: None,
            enclosures: None,
            rooms: None,
            prices: Arc::new(NoPrices),
            config: Config {
                environment: Vec::new(),
                credentials: Credentials::default(),
                max_running: 1,
                max_running_per_agent: 1,
                max_running_per_colony: 1,
                approval_ttl: None,
                traced: false,
                propose_after: 3,
                workspace: dir.path().to_owned(),
                private: false,
                off_limits: Default::default(),
                token_key: [7; 32],
                admin_hash: [0; 32],
                canaries: None,
            },
        };
        let engine = Engine::start(parts).await.unwrap();
        Self { engine, store, provider, _dir: dir }
    }

    /// Somebody with a key of that name.
    async fn somebody(&self, name: &str) -> (Proved, ApiKeyId) {
        let made = self.engine.key_create(&Caller::admin(), name, Role::Operator).await.unwrap();
        (self.engine.relay_caller(&made.secret).await.unwrap(), made.key.id)
    }

    async fn revoke(&self, key: ApiKeyId) {
        self.engine.key_revoke(&Caller::admin(), key).await.unwrap();
    }

    /// The ends of calls, by caller, once all are written. Ends the world.
    async fn ends(&self) -> BTreeMap<String, Vec<(String, Value)>> {
        let mut ends: BTreeMap<String, Vec<(String, Value)>> = BTreeMap::new();
        let read = async {
            let query = EventQuery {
                stream: Some(StreamId::System),
                after: 0,
                kinds: &["budget.settled", "budget.released"],
                limit: 5_000,
            };
            for event in self.store.events(query).await.unwrap() {
                let told = event.value();
                let by = told["caller"].as_str().unwrap().to_owned();
                ends.entry(by).or_default().push((event.kind.to_string(), told));
            }
            let open = self.store.budget_snapshot().await.unwrap().open;
            assert_eq!(open, [], "nothing stays reserved");
        };
        assert_eq!(self.engine.drain_and(Duration::from_secs(60), read).await, 0);
        ends
    }
}

fn call() -> Call {
    let body = Bytes::from_static(br#"{"model":"m","max_tokens":50,"stream":true,"messages":[]}"#);
    let peek = Peek::of(Endpoint::Chat, &body).unwrap();
    let headers = HeaderMap::new();
    let at = Timestamp::from_micros(0);
    Call { endpoint: Endpoint::Chat, query: None, headers, body, peek, at, sent: Sent::default() }
}

fn is_over(err: &RelayError) -> bool {
    matches!(err, RelayError::Refused(refusal) if refusal.kind == RefusalKind::Unauthenticated)
}

#[tokio::test]
async fn revoking_a_key_ends_its_call_in_every_phase_and_settles_it_once() {
    let world = World::new().await;
    let steps = &world.provider.steps;
    // Before it is sent: nothing was billed.
    let (by, key) = world.somebody("before").await;
    world.revoke(key).await;
    assert!(is_over(&world.engine.relay(&by, call()).await.unwrap_err()));
    assert_eq!(world.provider.asked.load(Ordering::SeqCst), 0);
    // Before its head: the usage is unknown.
    let (by, key) = world.somebody("waits").await;
    let revoked = async {
        while world.provider.asked.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        world.revoke(key).await;
    };
    let (asked, ()) = tokio::join!(world.engine.relay(&by, call()), revoked);
    assert!(is_over(&asked.unwrap_err()));
    // After this number of pieces.
    for heard in 0..=PIECES.len() {
        let (by, key) = world.somebody(&format!("hears {heard}")).await;
        steps.add_permits(1 + heard);
        let mut body = world.engine.relay(&by, call()).await.unwrap().body;
        for piece in &PIECES[..heard] {
            assert_eq!(body.next().await.unwrap().unwrap(), piece.as_bytes());
        }
        world.revoke(key).await;
        // Further output of the provider is dropped.
        steps.add_permits(1);
        let last = body.next().await;
        match heard {
            // It is all there.
            4 => assert_eq!(last, None),
            // Within an event, no error can be sent.
            2 => assert!(last.unwrap().unwrap_err().why.contains("no longer valid")),
            _ => {
                let text = String::from_utf8(last.unwrap().unwrap().to_vec()).unwrap();
                assert!(text.starts_with("data: {\"error\":") && text.ends_with("}\n\n"), "{text}");
            }
        }
        assert_eq!(body.next().await, None);
        assert_eq!(steps.available_permits(), 1, "the provider was not asked for more");
        steps.forget_permits(1);
    }
    // After its end.
    let (by, key) = world.somebody("after").await;
    steps.add_permits(2 + PIECES.len());
    let mut body = world.engine.relay(&by, call()).await.unwrap().body;
    while let Some(piece) = body.next().await {
        piece.unwrap();
    }
    world.revoke(key).await;
    assert_eq!(body.next().await, None);
    drop(body);

    let ends = world.ends().await;
    assert_eq!(ends.len(), 8, "{ends:?}");
    for (by, ends) in &ends {
        let [(kind, told)] = ends.as_slice() else { panic!("{by}: {ends:?}") };
        let (ended, error) = (told["ended"].as_str().unwrap(), told["error"]["type"].as_str());
        let over = Some("unauthenticated");
        let (wanted, why) = match by.as_str() {
            "before" => (("budget.released", "failed"), over),
            "hears 4" | "after" => (("budget.settled", "completed"), None),
            _ => (("budget.settled", "cut"), over),
        };
        assert_eq!(((kind.as_str(), ended), error), (wanted, why), "{by}: {told}");
        // If the provider did not report its last usage, the cost is unknown.
        assert_eq!(told.get("at_most"), (why == over && by != "before").then_some(&true.into()));
        let (spent, output) = (&told["spent"], told["usage"]["output_tokens"].as_u64().unwrap());
        match by.as_str() {
            "waits" => assert_eq!(*spent, told["reserved"], "at its worst"),
            "hears 0" => assert_eq!(output, 0, "{told}"),
            "hears 2" => assert_eq!(output, 7, "three bytes a token: {told}"),
            "hears 4" | "after" => assert_eq!(spent["tokens"], 12, "{told}"),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_ends_once_whenever_its_key_is_revoked() {
    let world = Arc::new(World::new().await);
    world.provider.steps.add_permits(1_000_000);
    let mut calls = JoinSet::new();
    for n in 0..200 {
        let (by, key) = world.somebody(&format!("key {n}")).await;
        let (asks, revokes) = (Arc::clone(&world), Arc::clone(&world));
        calls.spawn(async move {
            // Some start a little later.
            for _ in 0..n % 16 {
                tokio::task::yield_now().await;
            }
            match asks.engine.relay(&by, call()).await {
                Ok(mut relayed) => while let Some(Ok(_)) = relayed.body.next().await {},
                Err(err) => assert!(is_over(&err), "{err}"),
            }
        });
        calls.spawn(async move { revokes.revoke(key).await });
    }
    while let Some(done) = calls.join_next().await {
        done.unwrap();
    }
    let ends = world.ends().await;
    assert_eq!(ends.len(), 200, "each call has an end");
    let (mut whole, mut others) = (0, 0);
    for (by, ends) in &ends {
        assert_eq!(ends.len(), 1, "{by}: {ends:?}");
        match ends[0].1["ended"].as_str().unwrap() {
            "completed" => whole += 1,
            "cut" | "failed" => others += 1,
            other => panic!("{by}: {other}"),
        }
    }
    assert_eq!(whole + others, 200);
}
