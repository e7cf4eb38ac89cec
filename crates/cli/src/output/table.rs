//! Columns without borders, for people.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr as _;

use super::clean;

/// Blanks between two columns.
const GAP: usize = 2;

/// The meaning of a cell's colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
    Waits,
    Busy,
    Dim,
}

/// Rows under one header. Cells are made safe for a terminal here, once.
#[derive(Debug)]
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<(String, Tone)>>,
    right: Vec<usize>,
}

impl Table {
    pub fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new(), right: Vec::new() }
    }

    /// Aligns a column of numbers to the right.
    pub fn right(mut self, column: &str) -> Self {
        self.right.extend(self.header.iter().position(|name| *name == column));
        self
    }

    pub fn row(&mut self, cells: Vec<(String, Tone)>) {
        debug_assert_eq!(cells.len(), self.header.len(), "a row has a cell for each column");
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, without trailing blanks: a column is as wide as its widest cell, two blanks stand
    /// between it and the next.
    pub fn render(&self, colour: bool) -> String {
        let header = self.header.iter().map(|name| (Cow::Borrowed(*name), Tone::Dim)).collect();
        let rows = self.rows.iter().map(|row| {
            row.iter().map(|(text, tone)| (clean::line(text.trim_end()), *tone)).collect::<Vec<_>>()
        });
        let lines: Vec<Vec<_>> = std::iter::once(header).chain(rows).collect();
        let mut widths = vec![0; self.header.len()];
        for line in &lines {
            for (widest, (text, _)) in widths.iter_mut().zip(line) {
                *widest = text.width().max(*widest);
            }
        }
        let mut text = String::with_capacity(lines.len() * (widths.iter().sum::<usize>() + 32));
        for line in &lines {
            // Blanks are owed until something follows them.
            let mut owed = 0;
            for (n, (cell, tone)) in line.iter().enumerate() {
                let lacking = widths[n].saturating_sub(cell.width());
                let (before, after) =
                    if self.right.contains(&n) { (lacking, 0) } else { (0, lacking) };
                owed += before;
                if !cell.is_empty() {
                    text.extend(std::iter::repeat_n(' ', owed));
                    text.push_str(&super::paint(cell, *tone, colour));
                    owed = 0;
                }
                owed += after + GAP;
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_without_borders_and_hostile_cells_stay_in_their_column() {
        let mut table = Table::new(&["ID", "STEPS", "TASK"]).right("STEPS");
        table.row(vec![
            ("a".into(), Tone::Good),
            ("7".into(), Tone::Plain),
            ("x\x1b[2J\ny".into(), Tone::Plain),
        ]);
        table.row(vec![
            ("bbbb".into(), Tone::Bad),
            ("12".into(), Tone::Plain),
            ("z".into(), Tone::Plain),
        ]);
        let wanted = "ID    STEPS  TASK\na         7  x\\u{1b}[2J⏎y\nbbbb     12  z\n";
        assert_eq!(table.render(false), wanted);
        let painted = table.render(true);
        assert!(painted.contains("\n\x1b[32ma\x1b[0m         7  x"), "{painted:?}");
    }

    #[test]
    fn column_widths_count_terminal_cells_and_lines_have_no_trailing_spaces() {
        let mut table = Table::new(&["NAME", "N", "LAST"]).right("N");
        table.row(vec![
            ("獺".into(), Tone::Plain),
            ("1".into(), Tone::Plain),
            (String::new(), Tone::Dim),
        ]);
        table.row(vec![
            ("e\u{301}".into(), Tone::Plain),
            (String::new(), Tone::Plain),
            ("x ".into(), Tone::Plain),
        ]);
        table.row(vec![
            (String::new(), Tone::Plain),
            ("23".into(), Tone::Plain),
            ("y".into(), Tone::Plain),
        ]);
        assert_eq!(
            table.render(false),
            "NAME   N  LAST\n獺     1\ne\u{301}         x\n      23  y\n"
        );
    }
}
