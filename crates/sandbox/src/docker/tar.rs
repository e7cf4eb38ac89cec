//! The part of the ustar format that a small image needs. It stores no times and no owners, so the
//! same content gives the same bytes.

#[derive(Debug, Default)]
pub(crate) struct Tar(Vec<u8>);

impl Tar {
    pub(crate) fn directory(&mut self, path: &str, mode: u32) {
        self.entry(&format!("{path}/"), mode, b'5', "", &[]);
    }

    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entry(path, mode, b'0', "", content);
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.entry(path, 0o777, b'2', target, &[]);
    }

    fn entry(&mut self, path: &str, mode: u32, kind: u8, link: &str, content: &[u8]) {
        assert!(path.len() <= 100 && link.len() <= 100, "only short names are put in here");
        let mut header = [0u8; 512];
        let mut put = |at: usize, text: &str| {
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        put(0, path);
        put(100, &format!("{mode:07o}"));
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{:011o}", content.len()));
        put(136, "00000000000");
        put(148, "        ");
        put(157, link);
        put(257, "ustar\x0000");
        header[156] = kind;
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    /// The archive without its end mark, so that another archive can follow.
    pub(crate) fn without_end(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}
