//! The form of a directory of a repository's objects. Repositories name such directories of others,
//! and sandboxes show the named directories, so they are recognised by their content.

/// Whether an entry belongs into such a directory, by its name and whether it is a directory itself:
/// packs, loose objects by the first two digits of their ids, lists of what else there is, and what git
/// is about to write. Links, sockets and pipes belong into none.
pub fn belongs(name: &[u8], is: Is) -> bool {
    let of_git = |prefix: &[u8]| name.starts_with(prefix);
    match is {
        Is::Directory => {
            let digits = name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            matches!(name, b"pack" | b"info")
                || (name.len() == 2 && digits)
                || of_git(b"tmp_objdir-")
                || of_git(b"incoming-")
        }
        // Files of tools and file systems beside them do not matter.
        Is::File => {
            of_git(b"tmp_")
                || of_git(b".nfs")
                || name.ends_with(b".lock")
                || matches!(name, b".gitkeep" | b".DS_Store")
        }
        Is::Else => false,
    }
}

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Is {
    Directory,
    File,
    Else,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_and_loose_objects_are_recognised_as_object_files() {
        for (name, is) in [
            ("pack", Is::Directory),
            ("info", Is::Directory),
            ("0f", Is::Directory),
            ("tmp_objdir-incoming-a", Is::Directory),
            ("tmp_obj_x1", Is::File),
            ("maintenance.lock", Is::File),
        ] {
            assert!(belongs(name.as_bytes(), is), "{name}");
        }
        for (name, is) in [
            ("pack", Is::File),
            ("0F", Is::Directory),
            ("0f", Is::Else),
            ("0f0", Is::Directory),
            ("ssh", Is::Directory),
            ("shadow", Is::File),
            ("docker.sock", Is::Else),
        ] {
            assert!(!belongs(name.as_bytes(), is), "{name}");
        }
    }
}
