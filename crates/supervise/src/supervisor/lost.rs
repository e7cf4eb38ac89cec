//! Cleans up after a supervisor process that was killed.
//!
//! The kernel killed its main process with it. Other processes are found by the cgroup, below the
//! main process, and by the mark in the environment of every process that did not clear it.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use overmind_core::process::{NoteKind, ProcessKey};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::group::{self, Bases};
use crate::log::writer::Writer;
use crate::proc::{self, Look, Stat};
use crate::record::{self, Kind, Life, mark};
use crate::wire::Limits;

/// A process whose supervisor process was killed.
#[derive(Clone, Debug)]
pub(crate) struct LostLife {
    pub(crate) key: ProcessKey,
    pub(crate) dir: PathBuf,
}

/// A process that cannot be killed in this time is stuck in the kernel.
const WITHIN: Duration = Duration::from_secs(5);

/// Kills all remaining processes of lost ones, and returns how many each had. Blocks.
///
/// The environments of all processes are read once for all of them, and again until nothing more is
/// found.
pub(crate) fn clean(lost: &[LostLife], bases: &Bases, limits: Limits) -> HashMap<ProcessKey, u32> {
    let mut killed: HashMap<ProcessKey, HashSet<i32>> = HashMap::new();
    let marks: HashMap<String, ProcessKey> = lost.iter().map(|l| (mark(l.key), l.key)).collect();
    let wanted: HashSet<String> = marks.keys().cloned().collect();
    let lives: Vec<(ProcessKey, Option<Life>, Vec<PathBuf>)> = lost
        .iter()
        .map(|LostLife { key, dir }| {
            let dir = record::open_dir(dir).ok();
            let life = dir.and_then(|dir| record::read::<Life>(dir, Kind::Life, key.epoch));
            let mut groups = bases.possible(*key);
            groups.extend(life.iter().flat_map(|life| life.groups.clone()));
            groups.sort();
            groups.dedup();
            (*key, life, groups)
        })
        .collect();
    let until = Instant::now() + WITHIN;
    loop {
        let mut found: Vec<(ProcessKey, i32)> = Vec::new();
        for (key, _, groups) in &lives {
            for directory in groups {
                found.extend(group::processes(directory).into_iter().map(|pid| (*key, pid)));
            }
        }
        for (key, life, _) in &lives {
            let main = life.as_ref().and_then(|life| {
                Stat::of(life.pid).filter(|stat| stat.started == life.started_ticks)
            });
            if let Some(main) = main {
                found.extend(
                    proc::descendants(main.pid, Look::All).into_iter().map(|stat| (*key, stat.pid)),
                );
                found.push((*key, main.pid));
            }
        }
        for (found_mark, pid) in proc::marked(&wanted) {
            if let Some(key) = marks.get(&found_mark) {
                found.push((*key, pid.as_raw_nonzero().get()));
            }
        }
        found.retain(|(_, pid)| Stat::of(*pid).is_some_and(|stat| stat.is_alive()));
        if found.is_empty() || Instant::now() >= until {
            break;
        }
        // They are counted first, because the kernel kills quickly.
        for (_, _, groups) in &lives {
            for directory in groups {
                group::kill(directory);
            }
        }
        for (key, pid) in found {
            kill(pid);
            killed.entry(key).or_default().insert(pid);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    for (_, _, groups) in &lives {
        for directory in groups {
            if !group::remove(directory) {
                tracing::warn!(directory = %directory.display(), "a control group is not empty");
            }
        }
    }
    let counts: HashMap<ProcessKey, u32> = lost
        .iter()
        .map(|LostLife { key, .. }| {
            let count = killed.get(key).map_or(0, HashSet::len);
            (*key, u32::try_from(count).unwrap_or(u32::MAX))
        })
        .collect();
    for LostLife { key, dir } in lost {
        let text = format!("lost: {REASON}; {} of its processes were killed", counts[key]);
        if let Err(err) = write_note(dir, limits, key.epoch, NoteKind::Ended, &text) {
            tracing::warn!(%key, %err, "the end of a lost life could not be written to its log");
        }
    }
    counts
}

pub(crate) const REASON: &str = "its keeper was killed, so how it would have ended is not known";

fn kill(pid: i32) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    if let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        // It has ended or may not be signalled, which the next round shows.
        let _ = rustix::process::pidfd_send_signal(&handle, Signal::KILL);
    }
}

/// Writes a note if no supervisor process does.
pub(crate) fn write_note(
    dir: &std::path::Path,
    limits: Limits,
    epoch: u32,
    kind: NoteKind,
    text: &str,
) -> std::io::Result<()> {
    let dir = record::open_dir(dir)?;
    // The lock is held as long as `dir` is open. A supervisor process that is about to end releases
    // it soon; one that continues writes the notes itself.
    let until = Instant::now() + Duration::from_secs(1);
    while let Err(err) =
        rustix::fs::flock(&dir, rustix::fs::FlockOperation::NonBlockingLockExclusive)
    {
        if Instant::now() >= until {
            return Err(err.into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let now_us = crate::keeper::now_us();
    let mut log = Writer::open(dir.try_clone()?)?;
    log.is_of(limits, epoch);
    log.note(kind, text, now_us)
}
