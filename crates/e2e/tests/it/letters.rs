//! Letters under kills: senders, publishers and readers of several agents on a real server that is
//! killed again and again, and a model of what they were promised.
//!
//! Nothing that was answered is lost; what was acknowledged does not come back; one id is one letter
//! in every delivery; first deliveries keep each sender's order; nobody gets a letter more than five
//! times, and then it is dead; subscriptions stay.
//!
//! `OVERMIND_SEED` chooses the schedule (chance in the machine's timing remains).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use overmind_api::{
    AgentCreate, AgentMessage, Letter, LetterIds, LetterListQuery, LetterReceive, MeshEvent,
    Subscription,
};
use overmind_client::{Client, ClientError};
use overmind_core::ids::LetterId;
use overmind_core::mesh::ATTEMPTS;
use overmind_testkit::soak;
use serde_json::{Value, json};

use crate::crash::daemon::{Daemon, Places, Setup, Start, pause};
use crate::crash::{rng::Rng, setting};

/// Deaths by SIGKILL in every run of the tests, and in one of `cargo xtask soak`.
const KILLS: (u32, u32) = (3, 48);
const AGENTS: [&str; 3] = ["ann", "bob", "eve"];
/// The senders, one message after the other.
const SENDERS: usize = 3;
/// One letter in so many is never acknowledged.
const POISON: u64 = 12;

/// Letters in a mailbox before senders only look: it takes 1,000, and readers may be slower.
const OPEN: usize = 200;

/// Longest time without the end of a message while some are left.
const STUCK: Duration = Duration::from_secs(60);

/// A message as its sender knows it: the sender, and its number.
type Mark = (u64, u64);
type Key = (&'static str, LetterId);

#[derive(Default)]
struct Model {
    /// The answers, by recipient.
    sent: BTreeMap<Key, Mark>,
    /// Sending was cut off, or is in progress.
    maybe: HashSet<(&'static str, Mark)>,
    poison: HashSet<Mark>,
    acknowledged: HashSet<Key>,
    /// Answered, not poison, and not acknowledged by anyone yet; by recipient.
    open: HashMap<&'static str, usize>,
    maybe_acknowledged: HashSet<Key>,
    /// The newest attempt that a reader saw.
    attempts: HashMap<Key, u32>,
    /// The newest number of a first delivery, by recipient and sender.
    newest: HashMap<(&'static str, u64), u64>,
    next: u64,
    deliveries: u64,
    again: u64,
}

fn mark(letter: &Letter) -> Mark {
    let number = |name: &str| letter.payload[name].as_u64().expect("a number");
    (number("sender"), number("n"))
}

impl Model {
    fn fresh(&mut self, rng: &mut Rng, sender: u64) -> (Mark, Value) {
        self.next += 1;
        let mark = (sender, self.next);
        if rng.one_in(POISON) {
            self.poison.insert(mark);
        }
        (mark, json!({"sender": sender, "n": self.next}))
    }

    fn answered(&mut self, agent: &'static str, id: LetterId, mark: Mark) {
        self.maybe.remove(&(agent, mark));
        self.sent.insert((agent, id), mark);
        if !self.poison.contains(&mark) {
            *self.open.entry(agent).or_default() += 1;
        }
    }

    /// Its word is on its way, and may be lost with the server.
    fn acknowledging(&mut self, key: Key) {
        self.maybe_acknowledged.insert(key);
        if let Some(open) = self.open.get_mut(key.0) {
            *open = open.saturating_sub(1);
        }
    }

    fn acknowledged(&mut self, key: Key) {
        self.maybe_acknowledged.remove(&key);
        self.acknowledged.insert(key);
    }

    fn is_crowded(&self) -> bool {
        self.open.values().any(|open| *open >= OPEN)
    }

    fn known(&self, key: Key, mark: Mark) {
        match self.sent.get(&key) {
            Some(sent) => assert_eq!(*sent, mark, "{key:?} is another letter than before"),
            None => assert!(self.maybe.contains(&(key.0, mark)), "nobody sent {key:?} {mark:?}"),
        }
    }

    fn delivered(&mut self, agent: &'static str, letter: &Letter) {
        let (key, (sender, n)) = ((agent, letter.id), mark(letter));
        self.known(key, (sender, n));
        assert!(!self.acknowledged.contains(&key), "{key:?} came after it was acknowledged");
        assert!(letter.attempt <= ATTEMPTS, "{key:?} came {} times", letter.attempt);
        let before = self.attempts.insert(key, letter.attempt).unwrap_or(0);
        assert!(letter.attempt > before, "{key:?}: attempt {} after {before}", letter.attempt);
        self.deliveries += 1;
        if letter.attempt > 1 {
            // An earlier one was cut off perhaps, so that others overtook it.
            self.again += 1;
            return;
        }
        let newest = self.newest.insert((agent, sender), n).unwrap_or(0);
        assert!(n > newest, "{agent} got {n} of sender {sender} after {newest}");
    }
}

/// Ends a part of the load when the server has ended; any other error is a failure.
fn gone(err: &ClientError) {
    assert_eq!(err.status(), None, "{err}");
}

async fn send(client: &Client, model: &RefCell<Model>, mut rng: Rng, sender: u64) {
    loop {
        if model.borrow().is_crowded() {
            let query = LetterListQuery {
                agent_id: Some(AGENTS[0].to_owned()),
                limit: Some(1),
                ..LetterListQuery::default()
            };
            if let Err(err) = client.message_list(&query).await {
                return gone(&err);
            }
            continue;
        }
        let (mark, payload) = model.borrow_mut().fresh(&mut rng, sender);
        if rng.one_in(4) {
            model.borrow_mut().maybe.extend(AGENTS.map(|agent| (agent, mark)));
            let event = json!({"topic": "news.all", "payload": payload});
            let event: MeshEvent = serde_json::from_value(event).expect("an event");
            let told = match client.topic_publish(&event).await {
                Ok(told) => told,
                Err(err) => return gone(&err),
            };
            assert_eq!((told.subscribers_notified, told.full.len()), (3, 0), "all subscribed");
            let id = told.id.expect("somebody has a letter");
            let mut model = model.borrow_mut();
            AGENTS.into_iter().for_each(|agent| model.answered(agent, id, mark));
        } else {
            let to = *rng.pick(&AGENTS);
            model.borrow_mut().maybe.insert((to, mark));
            let told = match client.message_send(&AgentMessage::new(to, "event", payload)).await {
                Ok(told) => told,
                Err(err) => return gone(&err),
            };
            model.borrow_mut().answered(to, told.id, mark);
        }
    }
}

fn ids(agent: &str, ids: Vec<LetterId>) -> LetterIds {
    LetterIds { agent_id: Some(agent.to_owned()), ids }
}

async fn receive(
    client: &Client,
    agent: &str,
    limit: u64,
    wait_ms: u64,
) -> Result<Vec<Letter>, ClientError> {
    let limit = Some(u32::try_from(limit).expect("a few"));
    let wish = LetterReceive { agent_id: Some(agent.to_owned()), limit, wait_ms };
    client.message_receive(&wish).await
}

/// Reads messages, acknowledges most and returns those that cannot be processed.
async fn read(
    client: &Client,
    model: &RefCell<Model>,
    rng: &mut Rng,
    agent: &'static str,
    most: u64,
) -> Result<usize, ClientError> {
    let limit = if most > 0 { 1 + rng.below(8) } else { 100 };
    let letters = receive(client, agent, limit, most).await?;
    let (mut done, mut back) = (Vec::new(), Vec::new());
    for letter in &letters {
        let mut model = model.borrow_mut();
        model.delivered(agent, letter);
        match model.poison.contains(&mark(letter)) {
            true => back.push(letter.id),
            // Forgotten now and then, as by a reader that dies.
            false if most > 0 && rng.one_in(10) => {}
            false => done.push(letter.id),
        }
    }
    if !done.is_empty() {
        done.iter().for_each(|id| model.borrow_mut().acknowledging((agent, *id)));
        let told = client.message_ack(&ids(agent, done.clone())).await?;
        assert_eq!(told.ids, done, "{agent} holds them");
        let mut model = model.borrow_mut();
        done.into_iter().for_each(|id| model.acknowledged((agent, id)));
    }
    if !back.is_empty() {
        client.message_requeue(&ids(agent, back)).await?;
    }
    Ok(letters.len())
}

async fn reader(client: &Client, model: &RefCell<Model>, mut rng: Rng, agent: &'static str) {
    loop {
        if let Err(err) = read(client, model, &mut rng, agent, 50).await {
            return gone(&err);
        }
    }
}

/// All letters of an agent.
async fn all(client: &Client, agent: &str, dead: bool) -> Vec<Letter> {
    let query = LetterListQuery {
        agent_id: Some(agent.to_owned()),
        dead: Some(dead),
        limit: Some(1000),
        ..LetterListQuery::default()
    };
    let mut found = Vec::new();
    let mut page = client.message_list(&query).await.expect("the server is there");
    loop {
        found.append(&mut page.items);
        match client.page_next(&page).await.expect("the server is there") {
            Some(next) => page = next,
            None => return found,
        }
    }
}

/// Returns messages whose readers were cut off: their time would expire anyway, only later.
async fn unhold(client: &Client, agent: &str) -> usize {
    let living = all(client, agent, false).await;
    let held: Vec<LetterId> =
        living.iter().filter(|one| one.state == "held").map(|one| one.id).collect();
    for held in held.chunks(100) {
        client.message_requeue(&ids(agent, held.to_vec())).await.expect("they are there");
    }
    living.len()
}

async fn started(places: &Places) -> (Daemon, Client) {
    let mut daemon = Daemon::spawn(places, &Setup { max_running: 2, ..Setup::default() });
    match daemon.ready(places).await {
        Start::Ready(client) => (daemon, client),
        Start::Died(status) => panic!("{status}: {}", places.log_tail()),
    }
}

async fn subscriptions(client: &Client) -> BTreeSet<String> {
    let all: Vec<Subscription> = client.topic_list(None).await.expect("the server is there");
    all.into_iter().map(|one| serde_json::to_value(one).expect("it is JSON").to_string()).collect()
}

async fn prepare(client: &Client) {
    for agent in AGENTS {
        let made = json!({"name": agent, "role": "reads", "model": "deterministic"});
        let made: AgentCreate = serde_json::from_value(made).expect("an agent");
        client.agent_create(&made, None).await.expect("it is made");
        let may = json!({"can_subscribe": ["news.*"], "on_message": "queue"});
        let may = serde_json::from_value(may).expect("permissions");
        client.acl_put(agent, &may, None).await.expect("an admin may");
        let wish = json!({"topic": "news.*", "agent_id": agent});
        let wish = serde_json::from_value(wish).expect("a wish");
        assert!(client.topic_subscribe(&wish).await.expect("it subscribes").subscribed);
    }
}

/// All messages are read: valid ones are acknowledged, and others die.
async fn settle(client: &Client, model: &RefCell<Model>, rng: &mut Rng) {
    for agent in AGENTS {
        let (mut least, mut moved) = (usize::MAX, Instant::now());
        loop {
            while read(client, model, rng, agent, 0).await.expect("the server is there") > 0 {}
            let left = unhold(client, agent).await;
            if left == 0 {
                break;
            }
            if left < least {
                (least, moved) = (left, Instant::now());
            }
            assert!(moved.elapsed() < STUCK, "{agent}: {left} letters neither end nor die");
            // The sweep buries those that are due.
            pause(Duration::from_millis(50)).await;
        }
    }
}

async fn check(client: &Client, model: &Model) {
    let mut dead: HashMap<Key, Letter> = HashMap::new();
    for agent in AGENTS {
        for letter in all(client, agent, true).await {
            let key = (agent, letter.id);
            model.known(key, mark(&letter));
            assert_eq!(letter.why_dead.as_deref(), Some("unacknowledged"), "{letter:?}");
            assert_eq!(letter.attempt, ATTEMPTS, "{letter:?}");
            assert!(!model.acknowledged.contains(&key), "{key:?} is dead and was acknowledged");
            dead.insert(key, letter);
        }
    }
    for (key, mark) in &model.sent {
        let ended = model.acknowledged.contains(key) || model.maybe_acknowledged.contains(key);
        assert!(ended || dead.contains_key(key), "{key:?} {mark:?} is lost");
        let poison = model.poison.contains(mark);
        assert!(!poison || dead.contains_key(key), "{key:?} {mark:?} was never acknowledged");
    }
}

#[tokio::test]
async fn kills_lose_no_message_and_restore_no_deleted_one() {
    let seed = setting("OVERMIND_SEED").unwrap_or_else(|| RandomState::new().hash_one("letters"));
    eprintln!("letters: OVERMIND_SEED={seed}");
    let mut rng = Rng::new(seed);
    let (places, model) = (Places::new(), RefCell::new(Model::default()));
    let (mut daemon, mut client) = started(&places).await;
    prepare(&client).await;
    let subscribed = subscriptions(&client).await;
    assert_eq!(subscribed.len(), AGENTS.len());
    for _ in 0..soak::count(KILLS.0, KILLS.1) {
        let mut own = || Rng::new(rng.next());
        let (senders, readers) = ([(); SENDERS].map(|()| own()), AGENTS.map(|_| own()));
        let life = rng.millis(20, 500);
        let numbered = senders.into_iter().zip(0..);
        let sends = numbered.map(|(rng, sender)| send(&client, &model, rng, sender));
        let reads = readers.into_iter().zip(AGENTS);
        let reads = reads.map(|(rng, agent)| reader(&client, &model, rng, agent));
        let death = async {
            pause(life).await;
            assert!(daemon.kill(&places).await, "it was alive");
        };
        tokio::join!(
            futures_util::future::join_all(sends),
            futures_util::future::join_all(reads),
            death
        );
        (daemon, client) = started(&places).await;
        assert_eq!(subscriptions(&client).await, subscribed, "subscriptions stay");
        for agent in AGENTS {
            unhold(&client, agent).await;
        }
    }
    settle(&client, &model, &mut rng).await;
    let model = model.into_inner();
    check(&client, &model).await;
    eprintln!(
        "letters: {} answered, {} cut off, {} acknowledged, {} deliveries, {} of them again",
        model.sent.len(),
        model.maybe.len(),
        model.acknowledged.len(),
        model.deliveries,
        model.again,
    );
    // Otherwise a test without interesting crashes would pass.
    assert!(!model.sent.is_empty() && model.deliveries > 0, "nothing was sent");
    let cut_off = !model.maybe.is_empty() && model.again > 0;
    assert!(cut_off || soak::count(true, false), "no kill came in the middle of anything");
    daemon.kill_if_alive().await;
}
