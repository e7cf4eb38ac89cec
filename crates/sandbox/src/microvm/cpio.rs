//! Writes an initial file system for a kernel: the `newc` form of cpio, uncompressed.
//!
//! It is uncompressed because the kernel would decompress it at each boot, on a processor that may
//! be emulated. The same content gives the same bytes (no times, no owners, counted inodes).

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;

/// An archive that is being built.
#[derive(Debug, Default)]
pub(crate) struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

impl Cpio {
    /// Adds a directory. Paths have no leading slash; a directory comes before its contents.
    pub(crate) fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY, &[]);
    }

    pub(crate) fn program(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, content);
    }

    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, FILE, content);
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("a guest's files are some megabytes");
        let name = u32::try_from(path.len() + 1).expect("paths are short");
        // The fields are inode, mode, user, group, links, time, size, two devices of two numbers,
        // name, sum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_the_archive_is_the_same_each_time() {
        let make = || {
            let mut archive = Cpio::default();
            archive.directory("bin");
            archive.program("bin/a", b"12345");
            archive.finish()
        };
        let bytes = make();
        assert_eq!(bytes, make());
        assert_eq!(bytes.len() % 512, 0);
        // Header 110 bytes, `bin` with its zero 4: the next entry begins at 116.
        assert_eq!(&bytes[116..122], b"070701");
        assert_eq!(&bytes[14..22], b"000041ed", "a directory, 0755");
        let begin = 116 + (110 + 6usize).next_multiple_of(4);
        assert_eq!(&bytes[begin..begin + 8], b"12345\0\0\0");
        assert_eq!(&bytes[begin + 8..begin + 14], b"070701", "the trailer");
    }
}
