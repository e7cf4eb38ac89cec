//! Columns without borders, for people.

use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table as Grid};

use super::clean;

/// What a cell's colour means.
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

    /// The lines, without trailing blanks.
    pub fn render(&self, colour: bool) -> String {
        let mut grid = Grid::new();
        grid.load_style(comfy_table::presets::NOTHING);
        grid.set_content_arrangement(ContentArrangement::Disabled);
        if colour {
            grid.enforce_styling();
        } else {
            grid.force_no_tty();
        }
        grid.set_header(self.header.iter().map(|name| Cell::new(*name).fg(Color::DarkGrey)));
        for row in &self.rows {
            grid.add_row(row.iter().map(|(text, tone)| {
                let cell = Cell::new(clean::line(text));
                match tone {
                    Tone::Plain => cell,
                    Tone::Good => cell.fg(Color::Green),
                    Tone::Bad => cell.fg(Color::Red),
                    Tone::Waits => cell.fg(Color::Yellow),
                    Tone::Busy => cell.fg(Color::Cyan),
                    Tone::Dim => cell.fg(Color::DarkGrey),
                }
            }));
        }
        for (n, column) in grid.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if self.right.contains(&n) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut text = String::new();
        for line in grid.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_without_borders_and_hostile_cells_stay_in_theirs() {
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
        assert!(table.render(true).contains("\x1b[38;5;10m"), "{:?}", table.render(true));
    }
}
