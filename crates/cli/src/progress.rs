//! Progress of work that takes longer than half a second, on a terminal only.

use std::pin::pin;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{Output, clean};

/// Work shorter than this shows nothing.
const PATIENCE: Duration = Duration::from_millis(500);

/// Waits for `work`; shows a person at a terminal that it continues, and for how long.
pub async fn spin<T>(out: &Output, text: &str, work: impl Future<Output = T>) -> T {
    if !out.watched {
        return work.await;
    }
    let mut work = pin!(work);
    if let Ok(done) = tokio::time::timeout(PATIENCE, &mut work).await {
        return done;
    }
    let bar = bar(text, None);
    let done = work.await;
    bar.finish_and_clear();
    done
}

/// A bar of `len` steps, or a spinner, on standard error.
pub fn bar(text: &str, len: Option<u64>) -> ProgressBar {
    let bar = match len {
        Some(len) => ProgressBar::new(len).with_style(
            ProgressStyle::with_template("{msg} {bar:30} {pos}/{len}")
                .expect("the template is a constant"),
        ),
        None => ProgressBar::new_spinner().with_style(
            ProgressStyle::with_template("{spinner} {msg} {elapsed}")
                .expect("the template is a constant"),
        ),
    };
    bar.set_message(clean::line(text).into_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;

    #[tokio::test]
    async fn work_returns_its_value_with_or_without_a_progress_display() {
        let mut out = Output {
            template: None,
            format: Format::Table,
            colour: false,
            err_colour: false,
            quiet: false,
            verbose: false,
            watched: false,
        };
        assert_eq!(spin(&out, "x", async { 1 }).await, 1);
        out.watched = true;
        assert_eq!(spin(&out, "x", async { 2 }).await, 2);
    }
}
