//! Describes the findings in words for people.

use overmind_core::attest::CheckName;

use super::facts::{Facts, Refused};
use super::judge::is_refusal;
use super::probe::{boot_id, own_namespaces};

/// Describes the findings of one check.
pub(super) fn measured(name: CheckName, facts: &Facts) -> String {
    match name {
        CheckName::Homes => listed(&facts.homes),
        CheckName::OtherSessions => listed(&facts.trap_file_at),
        CheckName::WriteOutside => {
            let shares = match &facts.machine {
                Some(found) => format!("; shares of the machine: {}", listed(&found.writable)),
                None => String::new(),
            };
            format!(
                "files could be made: {}; mounts that are not read-only: {}{shares}",
                listed(&facts.writable),
                listed(&facts.mounts_writable)
            )
        }
        CheckName::Environment if facts.trap_variable_in.is_empty() => listed(&facts.variables),
        CheckName::Environment => {
            format!("the daemon's in {}", listed(&facts.trap_variable_in))
        }
        CheckName::Descriptors => listed(&facts.descriptors),
        CheckName::Network => {
            let machine = match &facts.machine {
                Some(found) => format!("; the machine: {}", listed(&found.interfaces)),
                None => String::new(),
            };
            let routes = match facts.routes.as_slice() {
                [] => "no route".to_owned(),
                some => format!("routes to {}", listed(some)),
            };
            format!("{}{machine}; {routes}", listed(&facts.interfaces))
        }
        CheckName::HostServices if !facts.listeners.is_empty() => {
            let door = facts.door_kept + facts.door_lost;
            let door = match door {
                0 => String::new(),
                _ => format!(
                    "; through the door {} of {door} words came to the server as they were said",
                    facts.door_kept
                ),
            };
            let out = facts.reaches_kept + facts.reaches_lost;
            let out = match out {
                0 => String::new(),
                _ => format!(
                    "; through its own ports {} of {out} to its services",
                    facts.reaches_kept
                ),
            };
            let listening = facts.listeners.join(", ");
            format!("{}; listening: {listening}{door}{out}", listed(&facts.host_services))
        }
        CheckName::HostServices => listed(&facts.host_services),
        CheckName::MetadataService => listed(&facts.metadata_routes),
        CheckName::EngineSockets => listed(&facts.sockets),
        CheckName::HostProcesses => {
            let daemon = if facts.daemon_visible { ", the daemon among them" } else { "" };
            format!("{} to be seen{daemon}", facts.visible_processes)
        }
        CheckName::Trace => ends(&facts.traces),
        CheckName::Namespaces => {
            let host = own_namespaces();
            let shared: Vec<String> = facts
                .namespaces
                .iter()
                .filter(|(kind, inside)| host.get(*kind) == Some(inside))
                .map(|(kind, _)| kind.clone())
                .collect();
            format!("shared with the host: {}", listed(&shared))
        }
        CheckName::Kernel if facts.boot_id.is_empty() => "not told".to_owned(),
        CheckName::Kernel if facts.boot_id == boot_id() => "the host's".to_owned(),
        CheckName::Kernel => "its own".to_owned(),
        CheckName::User => {
            let outside = match (facts.uid, facts.uid_outside) {
                (0, Some(id)) => format!(" (outside {id})"),
                _ => String::new(),
            };
            let (uid, gid, groups) = (facts.uid, facts.gid, &facts.groups);
            format!("user {uid}{outside}, group {gid}, groups {groups:?}")
        }
        CheckName::Capabilities => {
            let some: Vec<String> = facts
                .capabilities
                .iter()
                .filter(|(_, set)| **set != 0)
                .map(|(name, set)| format!("{name} {set:x}"))
                .collect();
            listed(&some)
        }
        CheckName::NoNewPrivileges => {
            if facts.no_new_privileges { "set" } else { "not set" }.to_owned()
        }
        CheckName::SetUserId => format!(
            "no-new-privileges {}, mounts without nosuid: {}",
            if facts.no_new_privileges { "set" } else { "not set" },
            listed(&facts.mounts_with_suid)
        ),
        CheckName::SystemCalls => {
            let open: Vec<String> = facts
                .calls
                .iter()
                .filter(|one| !is_refusal(one.errno))
                .map(|one| one.what.clone())
                .collect();
            format!("filter mode {}, not refused: {}", facts.seccomp, listed(&open))
        }
        CheckName::Landlock => match (facts.landlock_abi, facts.landlock_effect) {
            (0, _) => "the kernel has none".to_owned(),
            (abi, libc::EACCES) => format!("version {abi}, in force"),
            (abi, 0 | libc::EPERM) => format!("version {abi}, not in force"),
            (abi, errno) => format!(
                "version {abi}, not proved to be in force: {}",
                std::io::Error::from_raw_os_error(errno)
            ),
        },
        CheckName::ProcEscapes => listed(&facts.proc_escapes),
        CheckName::Devices => match &facts.machine {
            Some(found) => format!("beyond the machine's own: {}", listed(&found.devices)),
            None => listed(&facts.devices),
        },
        CheckName::KeyRings => ends(&facts.key_rings),
        CheckName::ServerFiles => listed(&facts.server_files),
    }
}

pub(super) fn listed(found: &[String]) -> String {
    const MOST: usize = 8;
    match found {
        [] => "none".to_owned(),
        few if few.len() <= MOST => few.join(", "),
        many => format!("{}, and {} more", many[..MOST].join(", "), many.len() - MOST),
    }
}

fn ends(tries: &[Refused]) -> String {
    let told: Vec<String> = tries
        .iter()
        .map(|one| match one.errno {
            0 => format!("{}: allowed", one.what),
            errno => format!("{}: {}", one.what, std::io::Error::from_raw_os_error(errno)),
        })
        .collect();
    listed(&told)
}
