//! The names in a schema, read once per connection and again when the schema changes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::Connection;

use super::nearest::NameKey;

/// Maximum number of tables and views whose names are read.
const MAX_TABLES: usize = 1_000;

/// Maximum number of columns whose names are read.
const MAX_COLUMNS: usize = 4_096;

// Only the names of views and virtual tables are read, because listing their columns would run their definitions.
const TABLES: &str =
    "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite^_%' ESCAPE '^' LIMIT ?1";
const COLUMNS: &str = "SELECT s.name, c.name FROM sqlite_schema AS s JOIN pragma_table_info(s.name) AS c \
     WHERE s.type = 'table' AND s.sql LIKE 'CREATE TABLE%' LIMIT ?1";

/// The names of tables and columns, in the order of the schema.
#[derive(Debug, Default)]
pub(super) struct Names {
    tables: Vec<(String, NameKey)>,
    columns: Vec<NamedColumn>,
}

#[derive(Debug)]
struct NamedColumn {
    table: usize,
    name: String,
    key: NameKey,
}

impl Names {
    fn read(connection: &Connection, is_hidden: &dyn Fn(&str, &str) -> bool) -> rusqlite::Result<Self> {
        let mut names = Self::default();
        let mut statement = connection.prepare(TABLES)?;
        let mut rows = statement.query([MAX_TABLES as i64])?;
        while let Some(row) = rows.next()? {
            // A name that is not valid UTF-8 cannot have been meant.
            names.tables.extend(row.get_ref(0)?.as_str().ok().map(with_key));
        }
        let numbers: HashMap<&str, usize> = names.tables.iter().map(|(name, _)| name.as_str()).zip(0..).collect();
        let mut statement = connection.prepare(COLUMNS)?;
        let mut rows = statement.query([MAX_COLUMNS as i64])?;
        while let Some(row) = rows.next()? {
            if let (Ok(table), Ok(column)) = (row.get_ref(0)?.as_str(), row.get_ref(1)?.as_str())
                && let Some(number) = numbers.get(table)
                && !is_hidden(table, column)
            {
                names.columns.push(NamedColumn::new(*number, column));
            }
        }
        Ok(names)
    }

    #[cfg(test)]
    pub(super) fn of(tables: &[&str]) -> Self {
        Self { tables: tables.iter().copied().map(with_key).collect(), columns: Vec::new() }
    }

    /// Iterates over the keys of the tables and their numbers.
    pub(super) fn tables(&self) -> impl Iterator<Item = (usize, &NameKey)> {
        self.tables.iter().map(|(_, key)| key).enumerate()
    }

    /// Iterates over the columns: position, table number and key.
    pub(super) fn columns(&self) -> impl Iterator<Item = (usize, (usize, &NameKey))> {
        self.columns.iter().map(|column| (column.table, &column.key)).enumerate()
    }

    /// Returns the name of a table.
    pub(super) fn table(&self, number: usize) -> &str {
        &self.tables[number].0
    }

    /// Returns the table number and the name of the column at a position.
    pub(super) fn column(&self, position: usize) -> (usize, &str) {
        let column = &self.columns[position];
        (column.table, &column.name)
    }

    /// Finds a table by name, ignoring case.
    pub(super) fn find_table(&self, name: &str) -> Option<usize> {
        self.tables.iter().position(|(table, _)| table.eq_ignore_ascii_case(name))
    }

    /// Returns whether a table has a column of this name, ignoring case.
    pub(super) fn has_column(&self, table: usize, name: &str) -> bool {
        self.columns.iter().any(|column| column.table == table && column.name.eq_ignore_ascii_case(name))
    }
}

impl NamedColumn {
    fn new(table: usize, name: &str) -> Self {
        Self { table, name: name.to_owned(), key: NameKey::of(name) }
    }
}

fn with_key(name: &str) -> (String, NameKey) {
    (name.to_owned(), NameKey::of(name))
}

/// The names that a connection has read, with the schema version.
#[derive(Debug, Default)]
pub(crate) struct NameCache(RefCell<Option<(i64, Arc<Names>)>>);

impl NameCache {
    /// Returns the names of the current schema, excluding hidden columns; `None` if they cannot be read.
    pub(super) fn get(&self, connection: &Connection, is_hidden: &dyn Fn(&str, &str) -> bool) -> Option<Arc<Names>> {
        let version = connection.query_row("PRAGMA schema_version", [], |row| row.get(0)).ok()?;
        if let Some((cached_version, names)) = &*self.0.borrow()
            && *cached_version == version
        {
            return Some(Arc::clone(names));
        }
        let names = Arc::new(Names::read(connection, is_hidden).ok()?);
        *self.0.borrow_mut() = Some((version, Arc::clone(&names)));
        Some(names)
    }
}

/// Formats a name for SQL: quoted if it is not a plain word.
pub(super) fn quote_name(name: &str) -> String {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80);
    if is_plain && !name.is_empty() && !name.as_bytes()[0].is_ascii_digit() {
        name.to_owned()
    } else {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}
