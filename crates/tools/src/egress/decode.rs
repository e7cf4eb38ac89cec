//! Decodes bytes from the network to text: content encodings within a limit, and character sets.

use std::io::{self, Write};

use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};
use flate2::write::{MultiGzDecoder, ZlibDecoder};

/// Collects a body, up to a limit.
#[derive(Debug)]
pub(super) struct Bounded {
    kept: Vec<u8>,
    max: usize,
    full: bool,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.max - self.kept.len();
        self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            self.full = true;
            // This ends the decompression: the rest is neither produced nor kept.
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decompresses a body as it arrives.
#[derive(Debug)]
pub(super) enum Decoder {
    Plain(Bounded),
    Gzip(Box<MultiGzDecoder<Bounded>>),
    Deflate(Box<ZlibDecoder<Bounded>>),
}

impl Decoder {
    /// A decoder for a `Content-Encoding`; the error is its name if it was not requested.
    pub(super) fn new(encoding: &str, max: usize) -> Result<Self, String> {
        let sink = Bounded { kept: Vec::new(), max, full: false };
        match encoding.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(Self::Plain(sink)),
            "gzip" | "x-gzip" => Ok(Self::Gzip(Box::new(MultiGzDecoder::new(sink)))),
            "deflate" => Ok(Self::Deflate(Box::new(ZlibDecoder::new(sink)))),
            other => Err(other.chars().filter(|c| !c.is_control()).take(40).collect()),
        }
    }

    /// Takes one piece; returns `false` if no more fits.
    ///
    /// # Errors
    ///
    /// Fails if the compressed data is damaged.
    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let done = match self {
            Self::Plain(sink) => sink.write_all(bytes),
            Self::Gzip(decoder) => decoder.write_all(bytes).and_then(|()| decoder.flush()),
            Self::Deflate(decoder) => decoder.write_all(bytes).and_then(|()| decoder.flush()),
        };
        match done {
            _ if self.sink().full => Ok(false),
            Ok(()) => Ok(true),
            Err(err) => Err(err),
        }
    }

    /// Returns the kept bytes.
    ///
    /// # Errors
    ///
    /// Fails with `whole` if the compressed data ends too early.
    pub(super) fn finish(self, whole: bool) -> io::Result<Vec<u8>> {
        match self {
            Self::Plain(sink) => Ok(sink.kept),
            Self::Gzip(decoder) if whole => Ok(decoder.finish()?.kept),
            Self::Deflate(decoder) if whole => Ok(decoder.finish()?.kept),
            Self::Gzip(mut decoder) => Ok(std::mem::take(&mut decoder.get_mut().kept)),
            Self::Deflate(mut decoder) => Ok(std::mem::take(&mut decoder.get_mut().kept)),
        }
    }

    fn sink(&self) -> &Bounded {
        match self {
            Self::Plain(sink) => sink,
            Self::Gzip(decoder) => decoder.get_ref(),
            Self::Deflate(decoder) => decoder.get_ref(),
        }
    }
}

/// The character set of a text, from the first of these: a byte order mark, the header's parameter,
/// the document's own declaration in its first 1024 bytes, UTF-8 if it is valid, windows-1252.
pub(crate) fn charset_of(bytes: &[u8], content_type: &str, is_html: bool) -> &'static Encoding {
    if let Some((encoding, _)) = Encoding::for_bom(bytes) {
        return encoding;
    }
    let told = parameter(content_type).or_else(|| is_html.then(|| in_document(bytes)).flatten());
    if let Some(encoding) = told {
        return encoding;
    }
    // The last character may be incomplete.
    let valid = match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(err) => err.error_len().is_none(),
    };
    if valid { UTF_8 } else { WINDOWS_1252 }
}

fn parameter(content_type: &str) -> Option<&'static Encoding> {
    let at = content_type.to_ascii_lowercase().find("charset=")? + "charset=".len();
    label(&content_type.as_bytes()[at..])
}

fn in_document(bytes: &[u8]) -> Option<&'static Encoding> {
    let head = &bytes[..bytes.len().min(1024)];
    let lower = head.to_ascii_lowercase();
    let meta = lower.windows(5).position(|window| window == b"<meta")?;
    let at = lower[meta..].windows(8).position(|window| window == b"charset=")? + meta + 8;
    // If the declaration is readable as ASCII, the document is not UTF-16, whatever it declares.
    label(&head[at..]).map(|found| if found.is_ascii_compatible() { found } else { UTF_8 })
}

fn label(rest: &[u8]) -> Option<&'static Encoding> {
    let rest = rest.strip_prefix(b"\"").or_else(|| rest.strip_prefix(b"'")).unwrap_or(rest);
    let end = rest.iter().position(|byte| b"\"'; />,\r\n\t".contains(byte)).unwrap_or(rest.len());
    Encoding::for_label(&rest[..end.min(40)])
}

/// The text of `bytes`; invalid characters become U+FFFD. An incomplete last character is dropped
/// if the body was `cut`.
pub(crate) fn text_of(bytes: &[u8], encoding: &'static Encoding, cut: bool) -> String {
    let bytes = match std::str::from_utf8(bytes) {
        Err(err) if cut && encoding == UTF_8 && err.error_len().is_none() => {
            &bytes[..err.valid_up_to()]
        }
        Ok(_) | Err(_) => bytes,
    };
    encoding.decode(bytes).0.into_owned()
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_decompression_bomb_is_unpacked_only_to_its_limit() {
        let bomb = gzip(&vec![0; 64 << 20]);
        assert!(bomb.len() < 100_000);
        let mut decoder = Decoder::new("gzip", 1000).unwrap();
        assert!(!decoder.push(&bomb).unwrap());
        assert_eq!(decoder.finish(false).unwrap().len(), 1000);
    }

    #[test]
    fn every_encoding_is_decoded_in_chunks() {
        let text = b"one two three".repeat(50);
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(&text).unwrap();
        let zlib = zlib.finish().unwrap();
        for (encoding, packed) in [
            ("gzip", gzip(&text)),
            ("Deflate", zlib),
            ("", text.clone()),
            ("identity", text.clone()),
        ] {
            let mut decoder = Decoder::new(encoding, 10_000).unwrap();
            for piece in packed.chunks(7) {
                assert!(decoder.push(piece).unwrap(), "{encoding}");
            }
            assert_eq!(decoder.finish(true).unwrap(), text, "{encoding}");
        }
        assert_eq!(Decoder::new("br", 1).unwrap_err(), "br");
    }

    #[test]
    fn damaged_and_truncated_bodies_are_errors() {
        let mut decoder = Decoder::new("gzip", 100).unwrap();
        assert!(decoder.push(b"this is no gzip at all, not at all").is_err());
        let mut decoder = Decoder::new("gzip", 100).unwrap();
        let whole = gzip(b"hello hello");
        assert!(decoder.push(&whole[..whole.len() - 6]).unwrap());
        assert!(decoder.finish(true).is_err());
    }

    #[test]
    fn the_character_set_is_taken_from_the_most_trusted_source() {
        for (bytes, content_type, wanted) in [
            (&b"\xef\xbb\xbfx"[..], "text/html; charset=latin1", "UTF-8"),
            (b"x", "text/html; charset=\"Shift_JIS\"", "Shift_JIS"),
            (b"<meta charset='koi8-r'>", "text/html", "KOI8-R"),
            (
                b"<META http-equiv=x content=\"text/html; charset=iso-8859-2\">",
                "text/html",
                "ISO-8859-2",
            ),
            (b"<meta charset=utf-16>", "text/html", "UTF-8"),
            (b"<meta charset=nonsense>", "text/html", "UTF-8"),
            (b"caf\xc3\xa9", "text/html", "UTF-8"),
            (b"caf\xe9 au lait", "text/html", "windows-1252"),
            (b"caf\xc3", "text/html", "UTF-8"),
        ] {
            let found = charset_of(bytes, content_type, true).name();
            assert_eq!(found, wanted, "{content_type} {bytes:?}");
        }
        assert_eq!(text_of(b"caf\xe9!", WINDOWS_1252, false), "café!");
        assert_eq!(text_of(b"caf\xc3", UTF_8, true), "caf");
        assert_eq!(text_of(b"caf\xc3", UTF_8, false), "caf\u{fffd}");
    }
}
