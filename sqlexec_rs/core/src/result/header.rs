//! The names and declared types of a result's columns, shared between results with equal columns.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rusqlite::Statement;

/// The names and types of columns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Header {
    names: Vec<String>,
    types: ColumnTypes,
}

/// Concatenated declared types: one allocation for all, none for a result of expressions.
#[derive(Clone, Debug, Default)]
struct ColumnTypes {
    text: String,
    n_columns: usize,
    n_ends: usize,
}

impl ColumnTypes {
    /// Separates types. No declared type contains it or is empty.
    const END: char = '\0';

    fn push(&mut self, name: Option<&str>) {
        if let Some(name) = name {
            while self.n_ends < self.n_columns {
                self.text.push(Self::END);
                self.n_ends += 1;
            }
            self.text.push_str(name);
        }
        self.n_columns += 1;
    }

    /// Iterates over the types; missing trailing types are omitted.
    fn iter(&self) -> impl Iterator<Item = Option<&str>> {
        self.text.split(Self::END).map(|name| (!name.is_empty()).then_some(name))
    }
}

impl Header {
    /// Creates the header of columns without types.
    pub(crate) fn new(names: Vec<String>) -> Self {
        Self { names, types: ColumnTypes::default() }
    }

    /// Reads the header of a statement's result; `None` if a name is not valid UTF-8.
    pub(crate) fn of(statement: &Statement<'_>) -> Option<Self> {
        // rusqlite panics on a name that is not valid UTF-8, which a damaged schema may contain.
        let read = || statement.column_names().map(str::to_owned).collect();
        let mut header = Self::new(catch_unwind(AssertUnwindSafe(read)).ok()?);
        // A declared type may panic too, but rows do not need it.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            statement.columns().for_each(|column| header.push_type(column.decl_type()));
        }));
        Some(header)
    }

    /// Returns whether this is the header of a statement's result.
    pub(crate) fn matches_statement(&self, statement: &Statement<'_>) -> bool {
        let is_same = || {
            let mut types = self.types.iter();
            statement
                .columns()
                .zip(&self.names)
                .all(|(column, name)| column.name() == name && column.decl_type() == types.next().flatten())
        };
        // A panic counts as different: `of` then handles it.
        statement.column_count() == self.names.len() && catch_unwind(AssertUnwindSafe(is_same)).unwrap_or(false)
    }

    /// Sets the declared type of the next column.
    pub(crate) fn push_type(&mut self, name: Option<&str>) {
        self.types.push(name);
    }

    /// Returns the names.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the declared type of a column.
    pub(crate) fn column_type(&self, column: usize) -> Option<&str> {
        self.types.iter().nth(column).flatten()
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn header_differs_from_others() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t(a INT, b, c TEXT); CREATE TABLE u(a INT, b TEXT, c)").unwrap();
        let statement = |sql| connection.prepare(sql).unwrap();
        let header = Header::of(&statement("SELECT a, b, c FROM t")).unwrap();
        assert_eq!(header.names(), ["a", "b", "c"]);
        assert_eq!([0, 1, 2, 3].map(|column| header.column_type(column)), [Some("INT"), None, Some("TEXT"), None]);
        assert!(header.matches_statement(&statement("SELECT * FROM t ORDER BY b")));
        for sql in ["SELECT a, b FROM t", "SELECT a, b, c, c FROM t", "SELECT a, b, c AS d FROM t", "SELECT * FROM u"] {
            assert!(!header.matches_statement(&statement(sql)), "{sql}");
        }
        let untyped = Header::of(&statement("SELECT 1 AS a")).unwrap();
        assert!(
            untyped.matches_statement(&statement("SELECT 2 AS a"))
                && !untyped.matches_statement(&statement("SELECT a FROM t"))
        );
    }
}
