//! The cost of running a command isolated from the host, at every level.

use std::path::Path;

use overmind_cli::bench::sandbox::{PAUSE, call, calls, namespace, pause, reason, request};
use overmind_cli::exit::Failure;
use overmind_core::sandbox::Sandbox as _;
use overmind_sandbox::microvm::Acceleration;
use overmind_sandbox::{Docker, Microvm, Options, docker, microvm};

use super::{Figure, Goal, Setting, ms, percentile};

/// The options with which the product creates its drivers.
pub(super) struct Drivers {
    pub(super) namespace: Options,
    pub(super) docker: docker::Options,
    pub(super) microvm: microvm::Options,
}

/// `wanted` says whether a figure is asked for by its name; a level of which none is, is not
/// measured.
pub(super) async fn measure(
    setting: &Setting,
    drivers: Drivers,
    wanted: impl Fn(&str) -> bool,
    note: impl Fn(&str),
) -> Result<Vec<Figure>, Failure> {
    let level = |name: &str| super::SANDBOX.iter().any(|one| one.starts_with(name) && wanted(one));
    let place = setting.place("sandbox")?;
    // Containers run as another user than root.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&place, open)
        .map_err(|err| Failure::failed(format!("opening {}: {err}", place.display())))?;
    let Drivers { namespace: outer, docker, microvm } = drivers;
    let mut figures = Vec::new();
    if level("namespace") {
        figures.extend(namespace(setting, &outer, &place, &note).await?);
    }
    if level("docker") {
        match Docker::new(docker.clone()).check().await {
            Ok(()) => figures.extend(containers(setting, docker, &place).await?),
            Err(err) => note(&format!("docker left out: {}", reason(&err))),
        }
    }
    if level("microvm") {
        figures.extend(both_machines(setting, &microvm, &outer, &place, &note).await?);
    }
    Ok(figures)
}

async fn containers(
    setting: &Setting,
    options: docker::Options,
    place: &Path,
) -> Result<Vec<Figure>, Failure> {
    let rounds = setting.count(40);
    let named = |what: &str, waiting| docker::Options {
        instance: format!("bench-{what}-{}", std::process::id()),
        waiting,
        ..options.clone()
    };
    let cold = Docker::new(named("cold", 0));
    // In turns and at the same pace, so that whatever else the machine and the engine are at
    // weighs on both alike. The first call pays for what is kept from then on.
    let mut bare = Vec::new();
    let mut without = Vec::new();
    call(&cold, place).await?;
    for _ in 0..rounds {
        pause(PAUSE).await;
        bare.push(cold.bare(&request(place)).await?);
        pause(PAUSE).await;
        without.push(call(&cold, place).await?);
    }
    bare.sort_unstable();
    without.sort_unstable();
    cold.settled().await;
    let keeping = Docker::new(named("warm", options.waiting.max(1)));
    let warm = calls(&keeping, place, rounds, || keeping.warmth().waiting > 0).await?;
    let served = keeping.warmth().served;
    keeping.settled().await;
    let floor = ms(percentile(&bare, 0.5));
    let engine = "the engine alone";
    Ok(vec![
        Figure::new("docker call p50", ms(percentile(&warm, 0.5)), "ms")
            .floor(engine, floor)
            .goal(Goal::Most(60.0))
            .note(format!(
                "`true` in a container that waited ({served} of {} calls), until it is removed",
                rounds + 1
            )),
        Figure::new("docker call without waiting", ms(percentile(&without, 0.5)), "ms")
            .floor(engine, floor)
            .goal(Goal::TimesFloor(1.1))
            .note("floor: the same container made, started, awaited and removed"),
    ])
}

/// By KVM and emulated, as far as the configuration allows it and the machine gives it.
async fn both_machines(
    setting: &Setting,
    options: &microvm::Options,
    outer: &Options,
    place: &Path,
    note: &impl Fn(&str),
) -> Result<Vec<Figure>, Failure> {
    let kinds: &[(Acceleration, &str, [&'static str; 2])] = &[
        (Acceleration::Kvm, "microvm by KVM", ["microvm call p50", "microvm call that boots"]),
        (
            Acceleration::Emulation,
            "microvm emulated",
            ["microvm emulated call p50", "microvm emulated call that boots"],
        ),
    ];
    let mut figures = Vec::new();
    for (acceleration, kind, names) in kinds {
        let allowed = match options.acceleration {
            Acceleration::KvmOrEmulation => true,
            only @ (Acceleration::Kvm | Acceleration::Emulation) => only == *acceleration,
        };
        if !allowed {
            note(&format!("{kind} left out: sandbox.microvm_emulation = \"yes\" measures it too"));
            continue;
        }
        let options = microvm::Options { acceleration: *acceleration, ..options.clone() };
        match Microvm::new(options.clone(), outer.clone()).check().await {
            Ok(()) => figures.extend(machines(setting, &options, outer, place, *names).await?),
            Err(err) => note(&format!("{kind} left out: {}", reason(&err))),
        }
    }
    Ok(figures)
}

async fn machines(
    setting: &Setting,
    options: &microvm::Options,
    outer: &Options,
    place: &Path,
    [restores_as, boots_as]: [&'static str; 2],
) -> Result<Vec<Figure>, Failure> {
    let rounds = setting.count(10);
    let booting = microvm::Options { pictures: false, ..options.clone() };
    let booting = Microvm::new(booting, outer.clone());
    let boots = percentile(&calls(&booting, place, rounds, || true).await?, 0.5);
    let restoring = Microvm::new(options.clone(), outer.clone());
    let restored = percentile(&calls(&restoring, place, rounds, || true).await?, 0.5);
    Ok(vec![
        Figure::new(restores_as, ms(restored), "ms").note("`true`, from a picture"),
        Figure::new(boots_as, ms(boots), "ms").note(format!(
            "{:.0} % of it is the boot that a picture leaves out",
            100.0 * (1.0 - restored.as_secs_f64() / boots.as_secs_f64()).max(0.0)
        )),
    ])
}
