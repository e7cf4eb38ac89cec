//! The findings of the probe. They contain no judgement and no file content.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::MAX_ANSWER_BYTES;

/// The answer of the probe. Lists contain what is *open* to the command, so empty lists are good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The nonce of the questions, which shows that this is their answer.
    pub nonce: String,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// The user's id in the parent user namespace, as far as the kernel shows it.
    pub uid_outside: Option<u32>,
    pub gid_outside: Option<u32>,
    /// The inheritable, permitted, effective, bounding and ambient set, as in `/proc`.
    pub capabilities: BTreeMap<String, u64>,
    pub no_new_privileges: bool,
    /// 0 is off, 1 strict, 2 filter.
    pub seccomp: u32,
    /// Maps each kind to its identity, such as `net` to `net:[4026531840]`.
    pub namespaces: BTreeMap<String, String>,
    /// Identifies this boot of this kernel; empty if `/proc` does not show it.
    pub boot_id: String,
    pub interfaces: Vec<String>,
    /// Documentation addresses to which there is a route.
    pub routes: Vec<String>,
    /// Metadata addresses to which there is a route.
    pub metadata_routes: Vec<String>,
    /// The traps on the host's loopback and abstract socket that answered.
    pub host_services: Vec<String>,
    /// If the network is the mesh: its listeners, such as `tcp 127.0.0.1:80`.
    pub listeners: Vec<String>,
    /// How many texts passed the proxy unchanged and were answered; `door_lost` counts the others.
    pub door_kept: usize,
    pub door_lost: usize,
    /// The same count for all forwarded ports together.
    pub reaches_kept: usize,
    pub reaches_lost: usize,
    pub sockets: Vec<String>,
    pub visible_processes: u32,
    pub daemon_visible: bool,
    pub homes: Vec<String>,
    /// Paths through which the trap's file was readable.
    pub trap_file_at: Vec<String>,
    /// Files of the server that were readable or writable, with the path used.
    pub server_files: Vec<String>,
    /// Whether the file beside a hidden one was visible, which shows that the workspace was the
    /// right one.
    pub beside_hidden: bool,
    /// Names of the variables, sorted.
    pub variables: Vec<String>,
    /// The places where the trap's variable was found.
    pub trap_variable_in: Vec<String>,
    /// Places outside of the writable ones where a file could be created or opened for writing.
    pub writable: Vec<String>,
    /// Descriptors besides the standard streams, with their targets.
    pub descriptors: Vec<String>,
    pub proc_escapes: Vec<String>,
    pub devices: Vec<String>,
    /// The results of tracing process 1 and the daemon.
    pub traces: Vec<Refused>,
    /// The results of system calls that no command needs.
    pub calls: Vec<Refused>,
    pub key_rings: Vec<Refused>,
    pub mounts: u32,
    /// Mount points outside of the writable ones that are not read-only, whatever their
    /// permissions.
    pub mounts_writable: Vec<String>,
    /// Mount points on which a set-user-id bit would have an effect, but for no-new-privileges.
    pub mounts_with_suid: Vec<String>,
    /// The kernel's version of Landlock; 0 if it has none.
    pub landlock_abi: i32,
    /// The result of making a block device with number 0: only Landlock refuses it with `EACCES`.
    pub landlock_effect: i32,
    /// For a virtual machine: the findings of its first process, outside of any sandbox in it.
    pub machine: Option<MachineFacts>,
    /// Checks that the probe could not make, and why.
    pub unknown: Vec<String>,
}

/// The devices that the emulator gave to a virtual machine, as seen by its root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineFacts {
    pub interfaces: Vec<String>,
    /// Devices on its buses, and disks, besides those that every such machine has.
    pub devices: Vec<String>,
    /// Shared directories in which root of the guest could create a file.
    pub writable: Vec<String>,
}

/// One attempt: its name and the resulting error number; 0 is success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub what: String,
    pub errno: i32,
}

impl Facts {
    /// Parses the probe's standard output.
    ///
    /// # Errors
    ///
    /// Fails if it is no answer, is too long, or answers other questions.
    pub fn parse(stdout: &[u8], nonce: &str) -> Result<Self, String> {
        if stdout.len() >= MAX_ANSWER_BYTES {
            return Err("the probe's answer is too long to be one".to_owned());
        }
        let facts: Self = serde_json::from_slice(stdout)
            .map_err(|err| format!("the probe's answer cannot be read: {err}"))?;
        if facts.nonce != nonce {
            return Err("the probe answered other questions".to_owned());
        }
        Ok(facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_only_for_the_requested_questions() {
        let facts = Facts { nonce: "n".to_owned(), uid: 7, ..Facts::default() };
        let text = serde_json::to_vec(&facts).unwrap();
        assert_eq!(Facts::parse(&text, "n"), Ok(facts));
        assert!(Facts::parse(&text, "m").unwrap_err().contains("other questions"));
        assert!(Facts::parse(b"", "n").unwrap_err().contains("cannot be read"));
        assert!(Facts::parse(&vec![b' '; MAX_ANSWER_BYTES], "n").unwrap_err().contains("too long"));
    }
}
