//! The cost of measuring a sandbox, once per start of the server.

use std::time::{Duration, Instant};

use overmind_cli::exit::Failure;
use overmind_core::sandbox::{Exit, Sandbox as _, SandboxLimits, SandboxRequest};
use overmind_sandbox::{Namespace, Options};

use super::{Figure, Goal, Setting, ms, percentile};

pub(super) async fn measure(setting: &Setting) -> Result<Vec<Figure>, Failure> {
    let dir = setting.place("attestation")?;
    let request = SandboxRequest {
        argv: vec!["/bin/true".to_owned()],
        workspace: dir,
        writable: None,
        cwd: std::path::PathBuf::new(),
        env: Vec::new(),
        home: Vec::new(),
        stdin: Vec::new(),
        timeout: Duration::from_secs(30),
        limits: SandboxLimits::default(),
    };
    let once = async |driver: &Namespace| -> Result<Duration, Failure> {
        let start = Instant::now();
        let result = driver.run(request.clone()).await;
        match result {
            Ok(result) if result.exit == Exit::Code(0) => Ok(start.elapsed()),
            Ok(result) => Err(Failure::failed(format!("/bin/true ended with {:?}", result.exit))),
            Err(err) => Err(Failure::failed(err.to_string())),
        }
    };
    let rounds = setting.count(100).max(10);
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        // The first command of a server: the machine was not measured yet.
        let driver = Namespace::new(Options::default());
        first.push(once(&driver).await?);
        later.push(once(&driver).await?);
    }
    first.sort_unstable();
    later.sort_unstable();
    let later = ms(percentile(&later, 0.5));
    Ok(vec![
        Figure::new("first command", ms(percentile(&first, 0.5)), "ms")
            .floor("a later one", later)
            .goal(Goal::OverFloor(20.0))
            .note("at the level namespace, measured before it runs, in the middle"),
        Figure::new("first command p90", ms(percentile(&first, 0.9)), "ms")
            .floor("a later one", later),
    ])
}
