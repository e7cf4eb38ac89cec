//! What a viewer would see now: the end of the log, drawn.

use std::path::Path;

use overmind_core::process::prompt::Screen;
use overmind_core::process::{LogKind, TerminalSize};

use crate::log::reader::{Cursor, extent};
use crate::log::strip::strip;

/// How much of the log's end is drawn. Programs that draw whole screens do so in far less.
const DRAWN: u64 = 64 << 10;

/// Draws the end of a log. Blocking; costs about a millisecond.
pub(crate) fn draw(
    dir: &Path,
    terminal: Option<TerminalSize>,
    rows: u16,
) -> std::io::Result<Screen> {
    let end = extent(dir)?.to;
    let mut cursor = Cursor::new(dir.to_owned(), end.saturating_sub(DRAWN));
    let mut bytes = Vec::new();
    let mut epoch = 0;
    loop {
        let chunks = cursor.next(128 << 10)?;
        if chunks.is_empty() {
            break;
        }
        for chunk in chunks {
            match chunk.record.kind {
                LogKind::Output | LogKind::Stderr => {
                    // Of an earlier life nothing is on the screen of this one.
                    if chunk.record.epoch != epoch {
                        epoch = chunk.record.epoch;
                        bytes.clear();
                    }
                    bytes.extend_from_slice(&chunk.bytes);
                }
                LogKind::Note(_) => {}
            }
        }
    }
    Ok(match terminal {
        Some(size) => drawn(&bytes, size, rows),
        None => plain(&bytes, rows),
    })
}

fn drawn(bytes: &[u8], size: TerminalSize, rows: u16) -> Screen {
    // A parser without any rows or columns has nowhere to draw.
    let (height, width) = (size.rows.max(2), size.columns.max(2));
    let mut parser = vt100::Parser::new(height, width, 0);
    parser.process(bytes);
    let screen = parser.screen();
    let mut lines: Vec<String> =
        screen.rows(0, width).map(|line| line.trim_end().to_owned()).collect();
    let cursor = usize::from(screen.cursor_position().0);
    let used = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    lines.truncate(used.max(cursor + 1));
    let cut = lines.len().saturating_sub(usize::from(rows));
    lines.drain(..cut);
    Screen { lines, cursor: cursor.checked_sub(cut) }
}

/// Behind pipes: the last lines.
fn plain(bytes: &[u8], rows: u16) -> Screen {
    let text = strip(bytes);
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<String> = text.split('\n').map(|line| line.trim_end().to_owned()).collect();
    // What stands behind the last line end is where the "cursor" is.
    if lines.last().is_some_and(String::is_empty) {
        lines.pop();
        let cut = lines.len().saturating_sub(usize::from(rows));
        lines.drain(..cut);
        return Screen { cursor: Some(lines.len()), lines };
    }
    let cut = lines.len().saturating_sub(usize::from(rows));
    lines.drain(..cut);
    Screen { cursor: lines.len().checked_sub(1), lines }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_overwritten_is_not_seen() {
        let size = TerminalSize { columns: 20, rows: 5 };
        let bytes = b"one\r\ntwo\r\n\x1b[1A\x1b[2Kthree\r\n\x1b[31mPassword: \x1b[0m";
        let screen = drawn(bytes, size, 24);
        assert_eq!(screen.lines, ["one", "three", "Password:"]);
        assert_eq!(screen.cursor, Some(2));
        let last = drawn(bytes, size, 1);
        assert_eq!((last.lines, last.cursor), (vec!["Password:".to_owned()], Some(0)));
    }

    #[test]
    fn behind_pipes_the_last_lines_count() {
        let screen = plain(b"a\nb\nOk to proceed? (y) ", 2);
        assert_eq!(screen.lines, ["b", "Ok to proceed? (y)"]);
        assert_eq!(screen.cursor, Some(1));
        let screen = plain(b"a\nb\n", 9);
        assert_eq!((screen.lines.len(), screen.cursor), (2, Some(2)));
    }
}
