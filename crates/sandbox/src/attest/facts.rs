//! What the probe found. Findings only: no judgement, nothing of a file's content.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::MAX_ANSWER_BYTES;

/// The answer of the probe. Lists hold what was found *open*; an empty one is good news.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The nonce of the questions: this is no answer to others.
    pub nonce: String,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Who user and group are one user namespace further out, as far as the kernel says.
    pub uid_outside: Option<u32>,
    pub gid_outside: Option<u32>,
    /// Inheritable, permitted, effective, bounding and ambient set, as `/proc` has them.
    pub capabilities: BTreeMap<String, u64>,
    pub no_new_privileges: bool,
    /// 0 off, 1 strict, 2 filter.
    pub seccomp: u32,
    /// Kind to identity, such as `net` to `net:[4026531840]`.
    pub namespaces: BTreeMap<String, String>,
    /// Names this boot of this kernel; empty where `/proc` does not say.
    pub boot_id: String,
    pub interfaces: Vec<String>,
    /// Documentation addresses that there is a route to.
    pub routes: Vec<String>,
    /// Metadata addresses that there is a route to.
    pub metadata_routes: Vec<String>,
    /// The traps on the host's loopback and abstract socket that answered.
    pub host_services: Vec<String>,
    /// Where the network is the mesh: what listens in it, such as `tcp 127.0.0.1:80`.
    pub listeners: Vec<String>,
    /// Words that came through the door to where it leads as they were said, and were answered; and
    /// those that did not.
    pub door_kept: usize,
    pub door_lost: usize,
    /// The same of ports that are let out, all together.
    pub reaches_kept: usize,
    pub reaches_lost: usize,
    pub sockets: Vec<String>,
    pub visible_processes: u32,
    pub daemon_visible: bool,
    pub homes: Vec<String>,
    /// Paths through which the trap's file could be read.
    pub trap_file_at: Vec<String>,
    /// Files of the server that could be read or written, and by which path.
    pub server_files: Vec<String>,
    /// What stands beside something hidden was to be seen: the workspace is the one that was meant.
    pub beside_hidden: bool,
    /// Names of the variables, sorted.
    pub variables: Vec<String>,
    /// Where the trap's variable was found.
    pub trap_variable_in: Vec<String>,
    /// Places outside the writable ones where a file could be made or opened for writing.
    pub writable: Vec<String>,
    /// Descriptors besides the standard streams, with what they lead to.
    pub descriptors: Vec<String>,
    pub proc_escapes: Vec<String>,
    pub devices: Vec<String>,
    /// How tracing process 1 and the daemon ended.
    pub traces: Vec<Refused>,
    /// How calls ended that no command needs.
    pub calls: Vec<Refused>,
    pub key_rings: Vec<Refused>,
    pub mounts: u32,
    /// Mount points outside the writable ones that are not read-only, whoever may write there.
    pub mounts_writable: Vec<String>,
    /// Mount points where a set-user-id bit would count, but for no-new-privileges.
    pub mounts_with_suid: Vec<String>,
    /// The kernel's version of Landlock; 0 without.
    pub landlock_abi: i32,
    /// How making a block device without a number ended: only Landlock refuses it with `EACCES`.
    pub landlock_effect: i32,
    /// Of a virtual machine: what its first process found, outside of any sandbox in there.
    pub machine: Option<MachineFacts>,
    /// What the probe could not look at, and why.
    pub unknown: Vec<String>,
}

/// What a virtual machine was given by its emulator, found by its root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineFacts {
    pub interfaces: Vec<String>,
    /// Devices on its buses, and disks, beyond those that every machine here has.
    pub devices: Vec<String>,
    /// Shared directories in which root of the guest could make a file.
    pub writable: Vec<String>,
}

/// One try: its name, and the error number that it ended with; 0 is success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub what: String,
    pub errno: i32,
}

impl Facts {
    /// Reads what the probe wrote to standard output.
    ///
    /// # Errors
    ///
    /// When it is no answer, too long a one, or an answer to other questions.
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
    fn an_answer_counts_only_for_the_questions_that_were_asked() {
        let facts = Facts { nonce: "n".to_owned(), uid: 7, ..Facts::default() };
        let text = serde_json::to_vec(&facts).unwrap();
        assert_eq!(Facts::parse(&text, "n"), Ok(facts));
        assert!(Facts::parse(&text, "m").unwrap_err().contains("other questions"));
        assert!(Facts::parse(b"", "n").unwrap_err().contains("cannot be read"));
        assert!(Facts::parse(&vec![b' '; MAX_ANSWER_BYTES], "n").unwrap_err().contains("too long"));
    }
}
