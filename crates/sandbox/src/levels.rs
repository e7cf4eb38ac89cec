//! Reports which levels this machine supports, and why others are missing, before an agent needs
//! one.
//!
//! [`Sandboxes::levels`](crate::Sandboxes::levels) asks each driver; [`report`] and [`text`] are
//! pure.

use std::fmt::Write as _;
use std::sync::Arc;

use overmind_core::attest::Attested;
use overmind_core::sandbox::{SandboxError, SandboxLevel};
use serde::Serialize;

/// One level, available or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LevelReport {
    pub level: SandboxLevel,
    /// Whether commands run at this level on this machine now.
    pub given: bool,
    pub why_not: Option<WhyNot>,
    /// The measurement; `None` for a driver that is not measured.
    pub attested: Option<Arc<Attested>>,
}

/// Why a level is not available, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WhyNot {
    /// The reason, for programs.
    pub reason: String,
    pub message: String,
    /// The remedy, which may be empty if none is known.
    pub remedy: String,
}

/// Converts a driver's answer to a report about its level.
pub fn report(
    level: SandboxLevel,
    answer: Result<Option<Arc<Attested>>, SandboxError>,
) -> LevelReport {
    let why_not = |reason: String, message: String, remedy: String| LevelReport {
        level,
        given: false,
        why_not: Some(WhyNot { reason, message, remedy }),
        attested: None,
    };
    match answer {
        Ok(attested) => LevelReport { level, given: true, why_not: None, attested },
        Err(SandboxError::Unavailable { code: _, message, reason, remedy }) => {
            why_not(reason, message, remedy)
        }
        Err(SandboxError::BadConfig { code, message }) => {
            why_not(code, message, "mend the configuration".to_owned())
        }
        Err(err @ SandboxError::Failed { .. }) => {
            why_not("failed".to_owned(), err.to_string(), String::new())
        }
    }
}

/// The strongest available level.
pub fn strongest(reports: &[LevelReport]) -> SandboxLevel {
    let given = reports.iter().filter(|report| report.given).map(|report| report.level);
    given.max().unwrap_or(SandboxLevel::None)
}

/// The reports for a terminal: a line for each level, and below it the resources that are not
/// limited, or the remedy.
pub fn text(reports: &[LevelReport]) -> String {
    let mut out = String::new();
    for report in reports {
        let level = report.level.as_str();
        // Writing to a string does not fail.
        let _ = match (&report.why_not, &report.attested) {
            (Some(why), _) => {
                let _ = writeln!(out, "{level:10} no   {}: {}", why.reason, why.message);
                if why.remedy.is_empty() {
                    Ok(())
                } else {
                    writeln!(out, "{:15} to do: {}", "", why.remedy)
                }
            }
            (None, _) if report.level == SandboxLevel::None => {
                writeln!(
                    out,
                    "{level:10} yes  NO ISOLATION AT ALL: a command sees and changes what this user can"
                )
            }
            (None, Some(attested)) => {
                let checks = attested.attestation.checks.len();
                writeln!(
                    out,
                    "{level:10} yes  measured in {:.1} ms, {checks} checks passed ({})",
                    f64::from(u32::try_from(attested.attestation.took_us).unwrap_or(u32::MAX))
                        / 1000.0,
                    &attested.digest[..16]
                )
            }
            (None, None) => writeln!(out, "{level:10} yes  not measured"),
        };
        let bounds = report.attested.iter().flat_map(|attested| &attested.attestation.bounds);
        for bound in bounds.filter(|bound| !bound.remark.is_empty()) {
            let by = bound.enforced_by.as_deref().unwrap_or("not bounded");
            let _ = writeln!(out, "{:15} {}: {by} ({})", "", bound.limit, bound.remark);
        }
    }
    let _ = writeln!(out, "strongest: {}", strongest(reports).as_str());
    out
}

#[cfg(test)]
mod tests {
    use overmind_core::attest::{Attestation, Bound};

    use super::*;
    use crate::attest::now;

    fn measured() -> Arc<Attested> {
        let bound = Bound {
            limit: "cpus".to_owned(),
            enforced_by: None,
            remark: "no cgroup can be made: read-only".to_owned(),
        };
        let attestation = Attestation {
            version: Attestation::VERSION,
            driver: "namespace".to_owned(),
            asked: SandboxLevel::Namespace,
            achieved: SandboxLevel::Namespace,
            at: now(),
            took_us: 12_345,
            kernel: String::new(),
            boot: String::new(),
            config: String::new(),
            checks: Vec::new(),
            bounds: vec![bound],
        };
        Arc::new(Attested::new(attestation, None))
    }

    #[test]
    fn each_level_is_listed_with_reason_and_remedy() {
        let refused = SandboxError::Unavailable {
            code: "c".to_owned(),
            message: "there is no engine".to_owned(),
            reason: "socket_missing".to_owned(),
            remedy: "start one".to_owned(),
        };
        let reports = [
            report(SandboxLevel::Docker, Err(refused)),
            report(SandboxLevel::Namespace, Ok(Some(measured()))),
            report(SandboxLevel::None, Ok(None)),
        ];
        assert_eq!(strongest(&reports), SandboxLevel::Namespace);
        let text = text(&reports);
        for expected in [
            "docker     no   socket_missing: there is no engine\n",
            "to do: start one\n",
            "namespace  yes  measured in 12.3 ms, 0 checks passed",
            "cpus: not bounded (no cgroup can be made: read-only)\n",
            "none       yes  NO ISOLATION AT ALL: a command sees and changes what this user can\n",
            "strongest: namespace\n",
        ] {
            assert!(text.contains(expected), "{expected:?} in\n{text}");
        }
    }

    #[test]
    fn without_any_level_the_strongest_level_is_none() {
        let failed = || SandboxError::Failed { level: "namespace", message: "x".to_owned() };
        let reports = [report(SandboxLevel::Namespace, Err(failed()))];
        assert_eq!(strongest(&reports), SandboxLevel::None);
        assert_eq!(reports[0].why_not.as_ref().unwrap().reason, "failed");
    }
}
