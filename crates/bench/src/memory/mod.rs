//! Memory: how good its rankings are and how fast it is at 100,000 items.
//!
//! Both need a static model on disk (`--embedding-model DIR`, see `docs/memory.md`) and manual
//! pages, which are the corpus (`--manual DIR`, by default those of the machine).

mod corpus;
mod floors;
mod quality;
mod speed;

use std::path::Path;
use std::sync::Arc;

use overmind_cli::exit::Failure;
use overmind_core::memory::MemoryError;
use overmind_core::store::Store;
use overmind_memory::FileEmbedder;
use overmind_node::app::clock::{SystemClock, SystemIds};
use overmind_store::{Options, Sqlite};

use self::corpus::Corpus;
use self::quality::{Parts, Quality, Scores};
use super::process::mib;
use super::process::rss;
use super::{Figure, Goal, Setting, ms, percentile};

/// Items of the speed figures.
const ITEMS: u32 = 100_000;

fn parts(setting: &Setting, place: &str, model: &Path) -> Result<(Arc<Sqlite>, Parts), Failure> {
    let dir = setting.place(place)?;
    let store = Arc::new(Sqlite::open(Options::new(dir.join("bench.db")))?);
    let parts = Parts {
        store: Arc::clone(&store) as Arc<dyn Store>,
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        embedder: Arc::new(FileEmbedder::new(model.to_owned())),
    };
    Ok((store, parts))
}

/// The locations of the model and the pages.
#[derive(Clone, Debug)]
pub(super) struct Sources<'a> {
    pub(super) model: &'a Path,
    pub(super) manual: &'a Path,
}

/// Reads the corpus; it starts a small program for each page, so off the runtime's threads.
async fn corpus(manual: &Path, quick: bool) -> Result<Corpus, Failure> {
    let manual = manual.to_owned();
    let read = tokio::task::spawn_blocking(move || Corpus::read(&manual, quick)).await;
    read.map_err(|err| Failure::failed(format!("reading the manual's pages: {err}")))?
        .map_err(Failure::failed)
}

fn failed(err: MemoryError) -> Failure {
    Failure::failed(format!("measuring memory: {err}"))
}

pub(super) async fn quality(setting: &Setting, from: &Sources<'_>) -> Result<Vec<Figure>, Failure> {
    let corpus = corpus(from.manual, setting.quick).await?;
    let (store, parts) = parts(setting, "memory-quality", from.model)?;
    let found = quality::measure(parts, &corpus).await.map_err(failed)?;
    store.close().await?;
    Ok(figures_of(&found))
}

fn figures_of(found: &Quality) -> Vec<Figure> {
    let Quality { pages, held_out: [all, known, by_hand], tuning, best: (fusion, score) } = found;
    let of = |scores: &Scores| {
        format!(
            "{:.3}, {:.3}, {:.3} of {}",
            scores.words, scores.vectors, scores.hybrid, scores.questions
        )
    };
    let about = format!(
        "manual pages of this machine, {pages}; the half of the questions by which nothing was \
         chosen"
    );
    vec![
        Figure::new("memory-quality words", all.words, "nDCG@10").note(about),
        Figure::new("memory-quality vectors", all.vectors, "nDCG@10"),
        Figure::new("memory-quality hybrid", all.hybrid, "nDCG@10")
            .goal(Goal::Least(all.words.max(all.vectors)))
            .note(format!(
                "words, vectors, hybrid: known items {}; by hand {}; the other half {}; best \
                 weights for that half: damping {}, meaning {} ({score:.3})",
                of(known),
                of(by_hand),
                of(tuning),
                fusion.damping,
                fusion.meaning
            )),
    ]
}

pub(super) async fn speed(setting: &Setting, from: &Sources<'_>) -> Result<Vec<Figure>, Failure> {
    let corpus = corpus(from.manual, setting.quick).await?;
    let (store, parts) = parts(setting, "memory-speed", from.model)?;
    let items = setting.count(ITEMS) as usize;
    let before = rss(std::process::id());
    let found = speed::measure(&parts, &corpus, items).await.map_err(failed)?;
    let after = rss(std::process::id());
    store.close().await?;
    // Afterwards, for they need memory of their own.
    let dir = setting.dir.clone();
    let floors = tokio::task::spawn_blocking(move || {
        floors::words(&dir, &corpus, items).map(|words| (words, floors::scan(items, found.dims)))
    });
    let (bare_words, bare_scan) = floors
        .await
        .map_err(|err| Failure::failed(format!("measuring the floors of memory: {err}")))?
        .map_err(|err| Failure::failed(format!("measuring bare FTS5: {err}")))?;
    let at = |sorted: &[std::time::Duration], part| ms(percentile(sorted, part));
    Ok(vec![
        Figure::new("memory-speed words p50", at(&found.words, 0.5), "ms")
            .floor("bare FTS5, bm25 of all words", ms(bare_words))
            .goal(Goal::Most(5.0))
            .note(format!("{} items of one collection, 5 results", found.items)),
        Figure::new("memory-speed words p99", at(&found.words, 0.99), "ms"),
        Figure::new("memory-speed hybrid p50", at(&found.hybrid, 0.5), "ms")
            .floor("one pass over bare f32 vectors", ms(bare_scan))
            .goal(Goal::Most(25.0))
            .note("with the query's own embedding by the model on disk; exact, not approximate"),
        Figure::new("memory-speed hybrid p99", at(&found.hybrid, 0.99), "ms"),
        Figure::new("memory-speed first search", ms(found.first), "ms")
            .note("reads all vectors and the model once"),
        Figure::new("memory-speed rss", mib(after.saturating_sub(before)), "MiB")
            .note("growth: the model, the vectors, the readers' caches, storing included"),
    ])
}

#[cfg(test)]
mod tests {
    use overmind_testkit::real::counterpart;

    use super::*;

    #[tokio::test]
    async fn needs_embedding_model_both_rankings_together_are_no_worse_than_either() {
        let (Some(model), Some(manual)) = (counterpart("EMBEDDING_MODEL"), counterpart("MANUAL"))
        else {
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let setting =
            Setting { dir: dir.path().to_owned(), quick: true, program: "overmind".into() };
        let mut corpus = Corpus::read(Path::new(&manual), true).unwrap();
        let by_hand = corpus.questions.iter().filter(|question| !question.known_item).count();
        assert!(by_hand >= 200, "{by_hand} questions by hand find their pages");
        // The half by which the weights were chosen proves nothing.
        corpus.questions.retain(|question| !question.tuning);
        let (store, parts) = parts(&setting, "quality", Path::new(&model)).unwrap();
        let found = quality::measure(parts, &corpus).await.unwrap();
        store.close().await.unwrap();
        let [all, _, by_hand] = found.held_out;
        // Both must be worth joining, and a model or pages of another version may move a little.
        for scores in [all, by_hand] {
            assert!(scores.questions >= 100, "{scores:?}");
            assert!(scores.words > 0.3 && scores.vectors > 0.2, "{scores:?}");
            assert!(scores.hybrid > scores.words.max(scores.vectors) - 0.01, "{scores:?}");
        }
    }
}
