//! Finds what the emulator gave to this machine, as root and before any sandbox is made in it.
//!
//! The command is in a sandbox that hides most of this. With a network card or a writable share,
//! one hole in that sandbox would be an escape, so the machine itself must have none.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::mount::MountFlags;

use crate::attest::MachineFacts;

/// The devices of every machine of [`super::machine`], by maker and model, with their number: the
/// board's own bridges, disk controller and power management, two shared directories, the ports.
const BOARD: &[(&str, u32)] = &[
    ("80861237", 1),
    ("80867000", 1),
    ("80867010", 1),
    ("80867113", 1),
    ("1af41009", 2),
    ("1af41003", 1),
];

/// Examines the machine. Needs root; something that cannot be read is a finding.
pub(crate) fn facts() -> MachineFacts {
    let mut found = MachineFacts::default();
    match std::fs::read_to_string("/proc/net/dev") {
        Ok(text) => {
            let names = text.lines().skip(2).filter_map(|line| line.split(':').next());
            found.interfaces = names.map(|name| name.trim().to_owned()).collect();
        }
        Err(err) => found.interfaces.push(format!("unknown ({err})")),
    }
    match std::fs::read_to_string("/proc/bus/pci/devices") {
        Ok(text) => found.devices = beyond_the_board(&text),
        Err(err) => found.devices.push(format!("unknown ({err})")),
    }
    match std::fs::read_to_string("/proc/partitions") {
        Ok(text) => {
            let names = text.lines().skip(2).filter_map(|line| line.split_whitespace().nth(3));
            found.devices.extend(names.map(|name| format!("disk {name}")));
        }
        Err(err) => found.devices.push(format!("disks unknown ({err})")),
    }
    found.writable = writable();
    found
}

/// The devices in the kernel's list that are not expected.
fn beyond_the_board(list: &str) -> Vec<String> {
    let mut left: BTreeMap<&str, u32> = BOARD.iter().copied().collect();
    let models = list.lines().filter_map(|line| line.split_whitespace().nth(1));
    models
        .filter(|model| match left.get_mut(model) {
            Some(count) if *count > 0 => {
                *count -= 1;
                false
            }
            Some(_) | None => true,
        })
        .map(|model| format!("{}:{}", &model[..4.min(model.len())], &model[4.min(model.len())..]))
        .collect()
}

/// The writable shares. The guest itself mounts the root read-only, which proves nothing about the
/// emulator. So the root is made writable here first, as an attacker who escaped would do.
fn writable() -> Vec<String> {
    let mut found = Vec::new();
    let name = format!(".overmind-probe-{}", std::process::id());
    let flags = MountFlags::NOSUID;
    if rustix::mount::mount_remount("/", flags, "").is_ok() {
        for place in ["/", "/tmp", "/dev/shm"] {
            if can_make(&Path::new(place).join(&name)) {
                found.push(format!("root share at {place}"));
            }
        }
        // The sandbox creates its own root from it, and makes that read-only itself.
        let _ = rustix::mount::mount_remount("/", flags | MountFlags::RDONLY, "");
    }
    if can_make(&Path::new("/workspace").join(&name)) {
        found.push("workspace share".to_owned());
    }
    found
}

fn can_make(path: &Path) -> bool {
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(path).is_ok();
    if made {
        let _ = std::fs::remove_file(path);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_beyond_the_board_are_findings() {
        let line = |model: &str| format!("0000\t{model}\tb\t0 0\n");
        let board: String =
            BOARD.iter().flat_map(|(model, count)| (0..*count).map(|_| line(model))).collect();
        assert_eq!(beyond_the_board(&board), [""; 0]);
        let more = format!("{board}{}{}", line("1af41009"), line("8086100e"));
        assert_eq!(beyond_the_board(&more), ["1af4:1009", "8086:100e"]);
    }
}
