//! Reads `/proc` for data about processes.
//!
//! A whole scan costs about five microseconds for each process of the machine, so other means are
//! used where possible (a cgroup, or `wait` without any children).

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use overmind_core::process::Usage;
use rustix::process::Pid;

/// The needed fields of one `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    /// The process group.
    pub(crate) group: i32,
    /// `Z` means that it has ended and must be reaped.
    pub(crate) state: char,
    /// Processor ticks of the process and of children that it has waited for.
    ticks: u64,
    /// The start time in ticks since the boot. Together with the number it identifies a process
    /// permanently.
    pub(crate) started: u64,
    resident_pages: u64,
}

impl Stat {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name in the second field may contain anything, so it is cut at its last parenthesis.
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.rsplit_once(") ")?;
        let (pid, _name) = before.split_once(" (")?;
        // The numbers are those of proc(5), where the state is field 3.
        let mut fields = after.split(' ');
        let state = fields.next()?.chars().next()?;
        let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let mut number = |skip: usize| fields.nth(skip)?.parse::<u64>().ok();
        let ticks = number(14 - 6)? + number(0)? + number(0)? + number(0)?;
        let (started, resident_pages) = (number(22 - 18)?, number(24 - 23)?);
        Some(Self { pid: pid.parse().ok()?, parent, group, state, ticks, started, resident_pages })
    }

    pub(crate) fn cpu(&self) -> Duration {
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_micros(self.ticks.saturating_mul(1_000_000) / per_second)
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
        self.resident_pages.saturating_mul(page)
    }

    #[cfg(test)]
    pub(crate) fn for_a_test(pid: i32, parent: i32) -> Self {
        Self { pid, parent, group: pid, state: 'S', ticks: 0, started: 0, resident_pages: 0 }
    }

    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

/// Selects the processes that are examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Processes whose numbers were assigned after this one, unless the numbers have wrapped around
    /// more than once since. They are few for a young tree.
    After(i32),
    /// Every process of the machine.
    All,
}

fn look(look: Look) -> Vec<Stat> {
    let last = last_number();
    let wanted = |pid: i32| match look {
        Look::All => true,
        // The last number is smaller if the numbers have wrapped around.
        Look::After(first) if last < first => pid >= first || pid <= last,
        Look::After(first) => pid >= first,
    };
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|pid| wanted(*pid)).filter_map(Stat::of).collect()
}

/// The process number that was assigned last.
fn last_number() -> i32 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().last().and_then(|last| last.parse().ok()).unwrap_or(i32::MAX)
}

/// The processes with the last `count` assigned numbers, the newest first.
pub(crate) fn youngest(count: i32) -> impl Iterator<Item = Stat> {
    let last = last_number();
    // A few more are included, because processes are created meanwhile. At a wrap-around a few are
    // missed.
    (last.saturating_sub(count)..=last.saturating_add(4))
        .rev()
        .filter(|pid| *pid > 1)
        .filter_map(Stat::of)
}

/// All selected processes below `root`, without `root` itself.
pub(crate) fn descendants(root: i32, which: Look) -> Vec<Stat> {
    below(look(which), root)
}

fn below(all: Vec<Stat>, root: i32) -> Vec<Stat> {
    take_below(&mut by_parent(all), root)
}

fn by_parent(all: Vec<Stat>) -> HashMap<i32, Vec<Stat>> {
    let mut children: HashMap<i32, Vec<Stat>> = HashMap::new();
    for stat in all {
        children.entry(stat.parent).or_default().push(stat);
    }
    children
}

fn take_below(children: &mut HashMap<i32, Vec<Stat>>, root: i32) -> Vec<Stat> {
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        for stat in children.remove(&pid).unwrap_or_default() {
            open.push(stat.pid);
            found.push(stat);
        }
    }
    found
}

/// The resource usage of the trees of these main processes. Each tree is below its supervisor
/// process, which is its main process's parent and reaps all ended processes in it, so their time
/// is in its count.
pub(crate) fn usages<K: Copy>(mains: &[(K, i32)]) -> Vec<(K, Usage)> {
    summed(look(Look::All), mains)
}

fn summed<K: Copy>(all: Vec<Stat>, mains: &[(K, i32)]) -> Vec<(K, Usage)> {
    let keepers: HashMap<i32, i32> = all.iter().map(|stat| (stat.pid, stat.parent)).collect();
    let ended: HashMap<i32, Duration> = all.iter().map(|stat| (stat.pid, stat.cpu())).collect();
    let mut children = by_parent(all);
    let used = |(key, main): &(K, i32)| {
        let keeper = *keepers.get(main)?;
        let tree = take_below(&mut children, keeper);
        let mut usage = Usage { cpu: *ended.get(&keeper)?, ..Usage::default() };
        for stat in &tree {
            usage.cpu += stat.cpu();
        }
        for stat in tree.iter().filter(|stat| stat.is_alive()) {
            usage.resident_bytes += stat.resident_bytes();
            usage.processes += 1;
        }
        Some((*key, usage))
    };
    mains.iter().filter_map(used).collect()
}

/// Whether `pid` is a descendant of `root`.
pub(crate) fn is_below(pid: i32, root: i32) -> bool {
    let mut at = pid;
    // This is deeper than any real tree; the limit protects against a chain that changes meanwhile.
    for _ in 0..1000 {
        match Stat::of(at) {
            Some(stat) if stat.parent == root => return true,
            Some(stat) if stat.parent > 1 => at = stat.parent,
            Some(_) | None => return false,
        }
    }
    false
}

/// The processes whose environment contains one of `marks` (`NAME=value`).
///
/// Only the environment at the start of a program is visible, and only for processes that we may
/// inspect.
pub(crate) fn marked(marks: &HashSet<String>) -> Vec<(String, Pid)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| **name != own) else { continue };
        let Some(pid) = name.parse().ok().and_then(Pid::from_raw) else { continue };
        let of_it = Path::new("/proc").join(name);
        let status = std::fs::read_to_string(of_it.join("status"));
        if !status.is_ok_and(|status| overmind_core::enclosure::tells_whose(&status)) {
            continue;
        }
        let Ok(environment) = std::fs::read(of_it.join("environ")) else { continue };
        let mark = environment.split(|byte| *byte == 0).find_map(|variable| {
            let variable = std::str::from_utf8(variable).ok()?;
            marks.contains(variable).then(|| variable.to_owned())
        });
        if let Some(mark) = mark {
            found.push((mark, pid));
        }
    }
    found
}

/// Whether a process ignores a signal.
pub(crate) fn ignores(pid: i32, signal: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(pid: i32, parent: i32) -> Stat {
        Stat::for_a_test(pid, parent)
    }

    #[test]
    fn a_process_name_may_contain_brackets_and_spaces() {
        let line = "42 (a) b) S 7 42 42 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 999 1000 55 \
                    18446744073709551615 0 0";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.pid, stat.parent, stat.state), (42, 7, 'S'));
        assert_eq!((stat.ticks, stat.started, stat.resident_pages), (100, 999, 55));
        assert_eq!(Stat::parse("nonsense"), None);
    }

    #[test]
    fn a_tree_contains_all_descendants_of_its_root() {
        let all = vec![stat(2, 1), stat(3, 2), stat(4, 3), stat(5, 1), stat(6, 3)];
        let mut found: Vec<i32> = below(all, 2).into_iter().map(|stat| stat.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [3, 4, 6]);
    }

    #[test]
    fn usage_is_summed_per_tree_without_ended_processes() {
        let per_second = rustix::param::clock_ticks_per_second();
        let busy =
            |pid, parent, seconds: u64| Stat { ticks: seconds * per_second, ..stat(pid, parent) };
        let page = u64::try_from(rustix::param::page_size()).unwrap();
        let large = |stat: Stat| Stat { resident_pages: 10, ..stat };
        let all = vec![
            busy(1, 0, 100),
            busy(10, 1, 1), // a keeper
            large(busy(11, 10, 2)),
            large(busy(12, 11, 3)),
            Stat { state: 'Z', ..busy(13, 10, 4) },
            busy(20, 1, 0), // another
            busy(21, 20, 5),
        ];
        let found = summed(all, &[("one", 11), ("two", 21), ("gone", 31)]);
        let usage = |seconds, pages, processes| Usage {
            cpu: Duration::from_secs(seconds),
            resident_bytes: pages * page,
            processes,
        };
        assert_eq!(found, [("one", usage(10, 20, 2)), ("two", usage(5, 0, 1))]);
    }

    #[test]
    fn this_process_is_listed_below_its_parent() {
        let own = i32::try_from(std::process::id()).unwrap();
        let stat = Stat::of(own).unwrap();
        assert!(stat.is_alive() && stat.resident_bytes() > 0);
        assert!(is_below(own, stat.parent));
        assert!(!is_below(stat.parent, own));
    }
}
