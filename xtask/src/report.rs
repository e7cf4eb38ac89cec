//! What nextest's JUnit report says of a run: counts, the slowest tests, and what passed only when
//! it was tried again.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::say;

/// How many of the slowest tests are listed.
const SLOWEST: usize = 20;

/// One run of the tests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub passed: usize,
    pub failed: usize,
    /// Tests that passed, but not on their first try.
    pub flaky: Vec<Flaky>,
    /// Every test with the time of its last try.
    pub times: Vec<(String, Duration)>,
}

/// A test that failed at first and passed when it was tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaky {
    /// `package::binary module::name`
    pub name: String,
    /// The first line of what the first try said.
    pub failure: String,
    /// All that the first try wrote.
    pub output: String,
}

impl Report {
    /// Reads a report; one that was not written counts nothing.
    ///
    /// # Errors
    ///
    /// When the file is there and is no JUnit report.
    pub fn read(file: &Path) -> Result<Self> {
        match std::fs::read_to_string(file) {
            Ok(text) => {
                Self::parse(&text).with_context(|| format!("reading the report {}", file.display()))
            }
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(err) => Err(err).with_context(|| format!("reading {}", file.display())),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let document = roxmltree::Document::parse(text)?;
        let mut report = Self::default();
        for case in document.descendants().filter(|node| node.has_tag_name("testcase")) {
            let attribute = |name| case.attribute(name).unwrap_or_default();
            let name = format!("{} {}", attribute("classname"), attribute("name"));
            let seconds = attribute("time").parse().unwrap_or_default();
            report
                .times
                .push((name.clone(), Duration::try_from_secs_f64(seconds).unwrap_or_default()));
            let child = |name| case.children().find(|node| node.has_tag_name(name));
            if child("failure").or(child("error")).is_some() {
                report.failed += 1;
                continue;
            }
            report.passed += 1;
            if let Some(first) = child("flakyFailure").or(child("flakyError")) {
                let said = |stream| {
                    let stream = first.children().find(|node| node.has_tag_name(stream));
                    stream.and_then(|node| node.text()).unwrap_or_default()
                };
                let output = format!("{}{}", said("system-out"), said("system-err"));
                let failure = failure_in(&output)
                    .or_else(|| first.attribute("message").map(str::to_owned))
                    .unwrap_or_else(|| "it said nothing".to_owned());
                report.flaky.push(Flaky { name, failure, output });
            }
        }
        Ok(report)
    }

    /// The sum of all tests' times.
    pub fn test_time(&self) -> Duration {
        self.times.iter().map(|(_, time)| *time).sum()
    }

    /// Prints the slowest tests and the flaky ones, and keeps the output of each flaky test's first
    /// try in a file of `directory`.
    ///
    /// # Errors
    ///
    /// When such a file cannot be written.
    pub fn tell(&self, directory: &Path) -> Result<()> {
        let mut slowest = self.times.clone();
        slowest.sort_by(|(_, a), (_, b)| b.cmp(a));
        say::note(&format!(
            "\n{} tests took {:.0} s of test time, the slowest:",
            self.times.len(),
            self.test_time().as_secs_f64()
        ));
        for (name, time) in slowest.iter().take(SLOWEST) {
            say::note(&format!("  {:>6.1} s  {name}", time.as_secs_f64()));
        }
        for Flaky { name, failure, output } in &self.flaky {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("making {}", directory.display()))?;
            let file = directory.join(name.replace([' ', ':', '/'], "-") + ".txt");
            std::fs::write(&file, output).with_context(|| format!("writing {}", file.display()))?;
            say::note(&format!(
                "flaky: {name}: first failure: {failure} (all of it: {})",
                file.display()
            ));
        }
        Ok(())
    }
}

/// The line that tells why a test failed: what follows a panic's place, or else an error's own line.
fn failure_in(output: &str) -> Option<String> {
    let mut lines = output.lines().map(str::trim);
    let after_panic = lines.by_ref().find(|line| line.contains(" panicked at ")).and(lines.next());
    after_panic
        .or_else(|| output.lines().map(str::trim).find(|line| line.starts_with("Error: ")))
        .map(|line| line.chars().take(200).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="0" time="3.0">
    <testsuite name="a::it" tests="3" disabled="0" errors="0" failures="1">
        <testcase name="one" classname="a::it" timestamp="2026-01-01T00:00:00+00:00" time="0.5"/>
        <testcase name="two" classname="a::it" timestamp="2026-01-01T00:00:00+00:00" time="1.25">
            <flakyFailure timestamp="2026-01-01T00:00:00+00:00" time="2" type="test failure with exit code 101">
                <system-out>running 1 test
</system-out>
                <system-err>thread 'two' (7) panicked at src/lib.rs:1:2:
assertion failed: 1 &lt; 1
note: run with a backtrace
</system-err>
            </flakyFailure>
        </testcase>
        <testcase name="three" classname="a::it" timestamp="2026-01-01T00:00:00+00:00" time="1">
            <rerunFailure timestamp="2026-01-01T00:00:00+00:00" time="2" type="x"/>
            <failure type="test failure with exit code 101">gone</failure>
        </testcase>
    </testsuite>
</testsuites>"#;

    #[test]
    fn a_report_counts_failures_once_and_names_tests_that_passed_on_retry() {
        let report = Report::parse(REPORT).expect("a report");
        assert_eq!((report.passed, report.failed), (2, 1));
        assert_eq!(report.test_time(), Duration::from_millis(2750));
        let [flaky] = report.flaky.as_slice() else { panic!("{:?}", report.flaky) };
        assert_eq!(flaky.name, "a::it two");
        assert_eq!(flaky.failure, "assertion failed: 1 < 1");
        assert!(flaky.output.contains("running 1 test") && flaky.output.contains("panicked"));

        let dir = tempfile::tempdir().expect("a temporary directory");
        report.tell(dir.path()).expect("telling");
        let kept = std::fs::read_to_string(dir.path().join("a--it-two.txt")).expect("its output");
        assert_eq!(kept, flaky.output);
    }

    #[test]
    fn a_missing_report_counts_nothing_and_an_invalid_one_is_an_error() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("junit.xml");
        assert_eq!(Report::read(&file).expect("none"), Report::default());
        std::fs::write(&file, "<testsuites").expect("writing");
        assert!(Report::read(&file).is_err());
    }
}
