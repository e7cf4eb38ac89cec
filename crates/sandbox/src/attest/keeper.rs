//! Caches one attestation for each driver and configuration, made when first needed.

use std::sync::Arc;

use overmind_core::attest::{Attestation, Attested, Notary};
use overmind_core::sandbox::SandboxError;
use overmind_core::time::Timestamp;
use tokio::sync::Mutex;

use super::refusal::refuse_unless_kept;

/// The newest attestation of one driver. Refusals are not cached, so when a person fixes the cause,
/// the next command runs.
#[derive(Debug, Default)]
pub struct Keeper {
    kept: Mutex<Option<(String, Arc<Attested>)>>,
}

impl Keeper {
    /// The attestation for `config`; `measure` makes it if there is none. Concurrent calls wait for
    /// one measurement.
    ///
    /// # Errors
    ///
    /// The error of `measure`, or the refusal if a guarantee is not met.
    ///
    /// # Cancel safety
    ///
    /// If dropped, nothing is cached, and the next call measures.
    pub async fn get(
        &self,
        config: &str,
        notary: Option<&Notary>,
        measure: impl Future<Output = Result<Attestation, SandboxError>>,
    ) -> Result<Arc<Attested>, SandboxError> {
        let mut kept = self.kept.lock().await;
        if let Some((of, attested)) = kept.as_ref()
            && of == config
        {
            return Ok(Arc::clone(attested));
        }
        *kept = None;
        let attestation = measure.await?;
        refuse_unless_kept(&attestation)?;
        let attested = Arc::new(Attested::new(attestation, notary));
        *kept = Some((config.to_owned(), Arc::clone(&attested)));
        Ok(attested)
    }
}

/// Identifies the running kernel and its boot. It is a part of every configuration, because a
/// measurement is valid for them only.
pub fn this_kernel() -> String {
    let uname = rustix::system::uname();
    format!(
        "{} {} landlock {}",
        uname.release().to_string_lossy(),
        uname.version().to_string_lossy(),
        crate::sys::landlock_abi()
    )
}

/// The current time, which a record contains; no decision uses it.
#[expect(clippy::disallowed_methods, reason = "a time to be shown; drivers have no clock")]
pub fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let micros = since.unwrap_or_default().as_micros();
    Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use overmind_core::attest::{Check, CheckName};
    use overmind_core::sandbox::SandboxLevel;

    use super::*;

    fn attestation(pass: bool) -> Attestation {
        Attestation {
            version: Attestation::VERSION,
            driver: "namespace".to_owned(),
            asked: SandboxLevel::Namespace,
            achieved: SandboxLevel::Namespace,
            at: now(),
            took_us: 0,
            kernel: String::new(),
            boot: String::new(),
            config: String::new(),
            checks: vec![Check {
                name: CheckName::Network,
                expected: String::new(),
                measured: String::new(),
                pass,
            }],
            bounds: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_passed_measurement_is_reused_and_a_failed_one_is_not() {
        let keeper = Keeper::default();
        let measured = AtomicU32::new(0);
        let ask = |config: &'static str, pass| {
            let (keeper, measured) = (&keeper, &measured);
            async move {
                let measure = async {
                    measured.fetch_add(1, Ordering::Relaxed);
                    Ok(attestation(pass))
                };
                keeper.get(config, None, measure).await
            }
        };
        assert!(ask("a", false).await.is_err());
        let first = ask("a", true).await.unwrap();
        assert_eq!(ask("a", false).await.unwrap(), first, "not measured again");
        assert_eq!(measured.load(Ordering::Relaxed), 2);
        assert!(ask("b", false).await.is_err(), "another configuration is another sandbox");
        assert!(ask("a", false).await.is_err(), "and the old one is forgotten");
        assert_eq!(measured.load(Ordering::Relaxed), 4);
    }
}
