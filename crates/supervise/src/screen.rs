//! Draws the end of the log as a viewer would see it now.

use std::path::Path;

use overmind_core::process::prompt::Screen;
use overmind_core::process::{LogKind, Painted, TerminalSize};

use crate::log::reader::{Cursor, extent};
use crate::log::strip::strip;

/// How many bytes at the log's end are drawn. Programs that draw whole screens need far less.
const DRAWN: u64 = 64 << 10;

/// The same for a viewer, with more bytes so that colours set long before are found.
const PAINTED: u64 = 256 << 10;

/// Draws what a terminal shows in `epoch`, as bytes for a viewer's terminal. Returns it with the
/// offset in the log up to which it was drawn. Blocks; it takes some milliseconds.
pub(crate) fn paint(dir: &Path, size: TerminalSize, epoch: u32) -> std::io::Result<(Painted, u64)> {
    let end = extent(dir)?.to;
    let from = end.saturating_sub(PAINTED);
    let mut cursor = Cursor::new(dir.to_owned(), from);
    let mut bytes = Vec::new();
    // It reads up to the end at the start of this call, because a permanent writer would never let
    // it finish.
    while cursor.offset < end {
        let chunks = cursor.next(128 << 10)?;
        if chunks.is_empty() {
            break;
        }
        for chunk in chunks {
            let drawn = match chunk.record.kind {
                LogKind::Output | LogKind::Stderr => chunk.record.epoch == epoch,
                LogKind::Note(_) => false,
            };
            if drawn {
                bytes.extend_from_slice(&chunk.bytes);
            }
        }
    }
    let painted = Painted { bytes: painted(&bytes, size), size, skipped: 0 };
    Ok((painted, cursor.offset))
}

fn painted(bytes: &[u8], size: TerminalSize) -> Vec<u8> {
    // It resets the viewer's terminal: no alternate screen, no scrolling region, plain text.
    let mut out = b"\x1b[?1049l\x1b[r\x1b[m".to_vec();
    let mut parser = vt100::Parser::new(size.rows.max(2), size.columns.max(2), 0);
    parser.process(bytes);
    if parser.screen().alternate_screen() {
        // The main screen is drawn first, so that it is visible when the program leaves the
        // alternate one.
        let above = parser.screen().contents_formatted();
        let modes = parser.screen().input_mode_formatted();
        parser.process(b"\x1b[?1049l");
        out.extend(parser.screen().contents_formatted());
        out.extend(b"\x1b[?1049h");
        out.extend(above);
        out.extend(modes);
    } else {
        out.extend(parser.screen().state_formatted());
    }
    out
}

/// Draws the end of a log. Blocks; it takes about a millisecond.
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
                    // Output of an earlier epoch is not on this screen.
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
    // A parser without rows or columns could not draw.
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

/// Shows the last lines of a command with pipes.
fn plain(bytes: &[u8], rows: u16) -> Screen {
    let text = strip(bytes);
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<String> = text.split('\n').map(|line| line.trim_end().to_owned()).collect();
    // The "cursor" is after the last line end.
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
    fn overwritten_text_is_not_on_the_screen() {
        let size = TerminalSize { columns: 20, rows: 5 };
        let bytes = b"one\r\ntwo\r\n\x1b[1A\x1b[2Kthree\r\n\x1b[31mPassword: \x1b[0m";
        let screen = drawn(bytes, size, 24);
        assert_eq!(screen.lines, ["one", "three", "Password:"]);
        assert_eq!(screen.cursor, Some(2));
        let last = drawn(bytes, size, 1);
        assert_eq!((last.lines, last.cursor), (vec!["Password:".to_owned()], Some(0)));
    }

    #[test]
    fn a_serialised_screen_redraws_the_same_screen() {
        let size = TerminalSize { columns: 20, rows: 5 };
        let written =
            b"$ edit\r\n\x1b[?1049h\x1b[?2004h\x1b[2J\x1b[3;4H\x1b[31mred\x1b[m text\x1b[?25l";
        let mut first = vt100::Parser::new(5, 20, 0);
        first.process(written);
        // A viewer that was in the middle of something else.
        let mut viewer = vt100::Parser::new(5, 20, 0);
        viewer.process(b"old\r\nthings\x1b[?1049h\x1b[2;3r\x1b[7mmore");
        viewer.process(&painted(written, size));
        let (one, two) = (first.screen(), viewer.screen());
        assert_eq!(one.contents_formatted(), two.contents_formatted());
        assert_eq!(one.input_mode_formatted(), two.input_mode_formatted());
        assert!(two.alternate_screen() && two.bracketed_paste() && two.hide_cursor());
        for parser in [&mut first, &mut viewer] {
            parser.process(b"\x1b[?1049l");
        }
        assert_eq!(first.screen().contents(), viewer.screen().contents());
        assert_eq!(viewer.screen().contents(), "$ edit");
    }

    #[test]
    fn for_pipes_the_last_lines_are_the_screen() {
        let screen = plain(b"a\nb\nOk to proceed? (y) ", 2);
        assert_eq!(screen.lines, ["b", "Ok to proceed? (y)"]);
        assert_eq!(screen.cursor, Some(1));
        let screen = plain(b"a\nb\n", 9);
        assert_eq!((screen.lines.len(), screen.cursor), (2, Some(2)));
    }
}
