//! Renders a result as text: aligned columns, one line per row, cut to a width.

use std::fmt::Write;

use unicode_width::UnicodeWidthChar;

use crate::memory::{check_room_for, unwind_if_oom};
use crate::result::table::Table;
use crate::result::value::Value;

/// Maximum number of characters of a cell if the table has no maximum width.
const MAX_CELL: usize = 10_000;

/// Minimum width of a column when there is too little room.
const MIN_COLUMN: usize = 4;

/// Bytes of a cell's text without its characters, of an escaped character, and of a terminal column when a text
/// doubles.
const CELL_ROOM: usize = 64;
const LONGEST_ESCAPE: usize = 10;
const BYTES_PER_WIDTH: usize = 8;

const BETWEEN: &str = " | ";
const CUT: char = '…';

impl Table {
    /// Renders the first `max_rows` rows, cut to lines of `max_width` characters; `None` means no bound.
    ///
    /// NULL is shown as `NULL`, a blob as `x'00ff'`. Numbers are right-aligned, line ends in text are escaped, and a
    /// cut text ends in `…`. The last line counts the rows. If memory is short, [`catch`](crate::memory::catch)
    /// returns the error.
    pub fn pretty(&self, max_rows: Option<usize>, max_width: Option<usize>) -> String {
        let n_shown = max_rows.unwrap_or(usize::MAX).min(self.n_rows());
        let n_columns = max_width.map_or(self.width(), |width| columns_that_fit(self.width(), width));
        let cap = max_width.unwrap_or(MAX_CELL).min(MAX_CELL);
        // A text per cell, escaped in the worst case, and a line per row, filled to the columns' widths.
        let cells = n_shown.saturating_mul(n_columns);
        unwind_if_oom(check_room_for(cells.saturating_mul(CELL_ROOM) + LONGEST_ESCAPE * self.bytes()));
        let columns: Vec<TextColumn> =
            (0..n_columns).map(|column| TextColumn::new(self, column, n_shown, cap)).collect();
        let mut widths: Vec<usize> = columns.iter().map(TextColumn::width).collect();
        if let Some(max_width) = max_width {
            narrow(&mut widths, max_width.saturating_sub(if n_columns < self.width() { 4 } else { 0 }));
        }
        let is_cut = n_columns < self.width();
        let line = widths.iter().sum::<usize>() + BETWEEN.len() * (n_columns + 1);
        unwind_if_oom(check_room_for(n_shown.saturating_mul(line).saturating_mul(BYTES_PER_WIDTH)));
        let mut text = String::new();
        let cells = |pick: &dyn Fn(&TextColumn) -> String| -> Vec<String> {
            columns.iter().zip(&widths).map(|(column, width)| column.fit(&pick(column), *width)).collect()
        };
        push_line(&mut text, &cells(&|column| column.name.clone()), BETWEEN, is_cut);
        let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        push_line(&mut text, &rules, "-+-", false);
        for row in 0..n_shown {
            push_line(&mut text, &cells(&|column| column.cells[row].clone()), BETWEEN, is_cut);
        }
        text + &self.count_line(n_shown, n_columns)
    }

    fn count_line(&self, n_shown: usize, n_columns: usize) -> String {
        let n = self.n_rows();
        let mut line = format!("({n} {}", if n == 1 { "row" } else { "rows" });
        if n_shown < n {
            let _ = write!(line, ", {n_shown} shown"); // writing to a String cannot fail
        }
        if n_columns < self.width() {
            let _ = write!(line, ", {n_columns} of {} columns shown", self.width());
        }
        line + ")"
    }
}

/// A column's name and its visible cells, as text.
struct TextColumn {
    name: String,
    cells: Vec<String>,
    is_number: bool,
}

impl TextColumn {
    fn new(table: &Table, column: usize, n_shown: usize, cap: usize) -> Self {
        let values = || (0..n_shown).map(|row| table.value(row, column));
        let is_text = |value: Value<'_>| matches!(value, Value::Text(_) | Value::Blob(_));
        Self {
            name: escape(&table.columns()[column], cap),
            cells: values().map(|value| cell_text(value, cap)).collect(),
            is_number: !values().any(is_text),
        }
    }

    fn width(&self) -> usize {
        self.cells.iter().chain([&self.name]).map(|cell| text_width(cell)).max().unwrap_or(0)
    }

    /// Cuts or pads a cell to a width.
    fn fit(&self, cell: &str, width: usize) -> String {
        let mut cell_width = text_width(cell);
        let mut cell = cell.to_owned();
        if cell_width > width {
            while cell_width >= width {
                let Some(last) = cell.pop() else { break };
                cell_width -= char_width(last);
            }
            cell.push(CUT);
            cell_width += 1;
        }
        let space = " ".repeat(width.saturating_sub(cell_width));
        if self.is_number { space + &cell } else { cell + &space }
    }
}

fn push_line(text: &mut String, cells: &[String], between: &str, is_cut: bool) {
    let mut line = cells.join(between);
    if is_cut {
        line += BETWEEN;
        line.push(CUT);
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Returns how many columns fit when each has its minimum width.
fn columns_that_fit(n_columns: usize, max_width: usize) -> usize {
    let needed = |n: usize| n * (MIN_COLUMN + BETWEEN.len());
    if needed(n_columns) <= max_width + BETWEEN.len() {
        n_columns
    } else {
        (1..n_columns).rev().find(|n| needed(*n) < max_width).unwrap_or(n_columns.min(1))
    }
}

/// Narrows the widest columns until the line fits.
fn narrow(widths: &mut [usize], max_width: usize) {
    let room = max_width.saturating_sub(BETWEEN.len() * widths.len().saturating_sub(1));
    let mut sorted = widths.to_vec();
    sorted.sort_unstable();
    let (mut left, mut cap) = (room, usize::MAX);
    for (i, width) in sorted.iter().enumerate() {
        let share = left / (sorted.len() - i);
        if *width > share {
            cap = share.max(MIN_COLUMN);
            break;
        }
        left -= width;
    }
    for width in widths {
        *width = (*width).min(cap);
    }
}

fn cell_text(value: Value<'_>, cap: usize) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Integer(i) => i.to_string(),
        Value::Real(r) => format!("{r:?}"),
        Value::Text(bytes) => escape(&String::from_utf8_lossy(&bytes[..bytes.len().min(4 * cap + 4)]), cap),
        Value::Blob(bytes) => {
            let mut text = "x'".to_owned();
            for byte in bytes.iter().take(cap) {
                let _ = write!(text, "{byte:02x}");
            }
            text + "'"
        }
    }
}

/// Escapes control characters and characters that change the text direction. Slightly more than `cap` characters are
/// enough to make the cut visible.
fn escape(text: &str, cap: usize) -> String {
    let mut escaped = String::new();
    for c in text.chars().take(cap.saturating_add(1)) {
        if c.is_control() || turns(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    escaped
}

/// Returns whether a character ends a line or changes the direction of the text after it.
fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn text_width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

/// Returns the terminal columns of a character: zero for combining marks, two for wide East Asian characters.
fn char_width(c: char) -> usize {
    c.width().unwrap_or(0) // control characters have no width and are escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: &[&str], rows: &[&[Value<'_>]]) -> Table {
        let mut table = Table::new(columns.iter().map(|name| (*name).to_owned()).collect());
        for row in rows {
            row.iter().for_each(|value| table.push(*value));
            table.end_row();
        }
        table
    }

    #[test]
    fn columns_are_aligned_and_rows_counted() {
        let t = table(
            &["name", "n"],
            &[
                &[Value::Text("é\n".as_bytes()), Value::Integer(-12)],
                &[Value::Text("東京".as_bytes()), Value::Real(0.5)],
                &[Value::Null, Value::Null],
                &[Value::Blob(b"\x00\xff"), Value::Integer(7)],
            ],
        );
        let all =
            "name    |    n\n--------+-----\né\\n     |  -12\n東京    |  0.5\nNULL    | NULL\nx'00ff' |    7\n(4 rows)";
        assert_eq!(t.pretty(None, None), all);
        assert_eq!(t.pretty(Some(1), Some(80)), "name |   n\n-----+----\né\\n  | -12\n(4 rows, 1 shown)");
        assert_eq!(table(&["a"], &[]).pretty(Some(5), Some(9)), "a\n-\n(0 rows)");
        let hidden =
            table(&["\u{202e}a"], &[&[Value::Text("\u{1b}[31m".as_bytes())], &[Value::Text("\u{2066}".as_bytes())]]);
        assert_eq!(hidden.pretty(None, None), "\\u{202e}a\n----------\n\\u{1b}[31m\n\\u{2066}\n(2 rows)");
        assert_eq!(table(&[], &[]).pretty(None, None), "\n\n(0 rows)");
    }

    #[test]
    fn lines_respect_the_width() {
        let long = "x".repeat(500);
        let row = [Value::Text(long.as_bytes()), Value::Integer(1), Value::Text(long.as_bytes())];
        let text = table(&["a", "b", "c"], &[&row]).pretty(None, Some(40));
        assert!(text.lines().all(|line| text_width(line) <= 40), "{text}");
        assert!(text.contains("x… | 1 | xxx"), "{text}");
        let names: Vec<String> = (0..30).map(|i| format!("column {i}")).collect();
        let row = [Value::Integer(1_000_000); 30];
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let text = table(&names, &[&row]).pretty(None, Some(60));
        assert!(text.lines().all(|line| text_width(line) <= 60), "{text}");
        assert!(text.ends_with("(1 row, 8 of 30 columns shown)"), "{text}");
        for width in 0..20 {
            assert!(!table(&names, &[&row]).pretty(None, Some(width)).is_empty());
        }
    }
}
