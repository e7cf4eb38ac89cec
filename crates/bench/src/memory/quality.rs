//! How good the rankings are: nDCG@10 of words, vectors and both over [`Corpus`].

use std::collections::HashMap;
use std::sync::Arc;

use overmind_core::ids::{ColonyId, IdSource};
use overmind_core::memory::{Memory, MemoryError, MemoryQuery};
use overmind_core::store::Store;
use overmind_core::time::Clock;
use overmind_memory::{Embedder, Fusion, MemoryService};

use super::corpus::{Corpus, Question};
use super::speed::fill;

const COLLECTION: &str = "manual";
/// The number of list places that the search for weights uses.
const DEPTH: usize = 25;

/// nDCG@10 of the three rankings over some questions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scores {
    pub(crate) questions: u32,
    pub(crate) words: f64,
    pub(crate) vectors: f64,
    pub(crate) hybrid: f64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Quality {
    pub(crate) pages: usize,
    /// The half that was not used for tuning: all questions, known items, and hand-written ones.
    pub(crate) held_out: [Scores; 3],
    /// The results for the other half.
    pub(crate) tuning: Scores,
    /// The best weights for the other half, and their score there.
    pub(crate) best: (Fusion, f64),
}

/// The external resources that the measurement needs.
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn IdSource>,
    pub(crate) embedder: Arc<dyn Embedder>,
}

/// Stores the corpus and asks all questions in three ways.
///
/// # Errors
///
/// [`MemoryError`].
pub(crate) async fn measure(parts: Parts, corpus: &Corpus) -> Result<Quality, MemoryError> {
    let memory = |embedder: Option<Arc<dyn Embedder>>| {
        let Parts { store, clock, ids, .. } = &parts;
        MemoryService::new(Arc::clone(store), Arc::clone(clock), Arc::clone(ids), embedder)
    };
    let both = memory(Some(Arc::clone(&parts.embedder)));
    let words = memory(None);
    let only = Fusion { words: 0.0, ..Fusion::default() };
    let vectors = memory(Some(Arc::clone(&parts.embedder))).with_fusion(only);
    let texts = corpus.pages.iter().map(|(name, text)| format!("{name}\n{text}"));
    fill(&parts, COLLECTION, texts).await?;
    let mut asked = Vec::with_capacity(corpus.questions.len());
    for question in &corpus.questions {
        asked.push(Asked {
            question,
            words: ask(&words, question, DEPTH).await?,
            vectors: ask(&vectors, question, DEPTH).await?,
            hybrid: ask(&both, question, 10).await?,
        });
    }
    let tuning: Vec<&Asked<'_>> = asked.iter().filter(|asked| asked.question.tuning).collect();
    let held_out = |wanted: &dyn Fn(&Question) -> bool| {
        let of = asked.iter().filter(|asked| !asked.question.tuning && wanted(asked.question));
        scores(&of.collect::<Vec<_>>())
    };
    Ok(Quality {
        pages: corpus.pages.len(),
        held_out: [
            held_out(&|_| true),
            held_out(&|question| question.known_item),
            held_out(&|question| !question.known_item),
        ],
        tuning: scores(&tuning),
        best: best(&tuning),
    })
}

struct Asked<'a> {
    question: &'a Question,
    words: Vec<String>,
    vectors: Vec<String>,
    hybrid: Vec<String>,
}

/// The names of the pages found. What only fills up a list counts for nothing.
async fn ask(
    memory: &MemoryService,
    question: &Question,
    top_k: usize,
) -> Result<Vec<String>, MemoryError> {
    let text = question.text.clone();
    let query = MemoryQuery::new(ColonyId::DEFAULT, COLLECTION.into(), text, top_k);
    let hits = memory.search(query).await?;
    let found = hits.iter().filter(|hit| hit.score > 0.0);
    let name = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    Ok(found.map(|hit| name(&hit.item.text)).collect())
}

fn scores(asked: &[&Asked<'_>]) -> Scores {
    type List = for<'a> fn(&'a Asked<'_>) -> &'a [String];
    let mean = |list: List| {
        let all: f64 = asked.iter().map(|asked| ndcg(list(asked), asked.question)).sum();
        all / f64::from(u32::try_from(asked.len().max(1)).unwrap_or(u32::MAX))
    };
    Scores {
        questions: u32::try_from(asked.len()).unwrap_or(u32::MAX),
        words: mean(|asked| &asked.words),
        vectors: mean(|asked| &asked.vectors),
        hybrid: mean(|asked| &asked.hybrid),
    }
}

/// The score over the ten best: 1 if all relevant items are first, 0 if none is among them.
fn ndcg(found: &[String], question: &Question) -> f64 {
    let gain = |place: usize| 1.0 / f64::from(u32::try_from(place).unwrap_or(u32::MAX) + 2).log2();
    let places = found.iter().take(10).enumerate();
    let got: f64 =
        places.filter(|(_, name)| question.wanted.contains(*name)).map(|(n, _)| gain(n)).sum();
    let most: f64 = (0..question.wanted.len().min(10)).map(gain).sum();
    got / most
}

/// The weights that rank these questions best.
fn best(asked: &[&Asked<'_>]) -> (Fusion, f64) {
    let mut best = (Fusion::default(), 0.0);
    for damping in [1.0, 5.0, 10.0, 20.0, 60.0] {
        for meaning in [0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 1.0, 1.5, 2.0] {
            let fusion = Fusion { damping, words: 1.0, meaning };
            let all: f64 = asked.iter().map(|a| ndcg(&fuse(fusion, a), a.question)).sum();
            let score = all / f64::from(u32::try_from(asked.len().max(1)).unwrap_or(u32::MAX));
            if score > best.1 {
                best = (fusion, score);
            }
        }
    }
    best
}

fn fuse(fusion: Fusion, asked: &Asked<'_>) -> Vec<String> {
    let mut scores: HashMap<&String, f64> = HashMap::new();
    for (weight, list) in [(fusion.words, &asked.words), (fusion.meaning, &asked.vectors)] {
        for (place, name) in (1_u32..).zip(list) {
            *scores.entry(name).or_default() += weight / (fusion.damping + f64::from(place));
        }
    }
    let mut names: Vec<(&String, f64)> = scores.into_iter().collect();
    names.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    names.into_iter().map(|(name, _)| name.clone()).collect()
}
