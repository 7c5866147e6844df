//! The names and declared types of a result's columns. Results of one shape share them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rusqlite::Statement;

/// Names and types.
#[derive(Clone, Debug, Default)]
pub(crate) struct Header {
    names: Vec<String>,
    types: Types,
}

/// Declared types, end to end: a result needs one allocation for all, and one of expressions none.
#[derive(Clone, Debug, Default)]
struct Types {
    text: String,
    n_columns: usize,
    n_ends: usize,
}

impl Types {
    /// Stands after each type but the last; no name in SQLite holds it, and none is empty.
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

    /// Iterates over the types; those after the last that there is are left out.
    fn iter(&self) -> impl Iterator<Item = Option<&str>> {
        self.text.split(Self::END).map(|name| (!name.is_empty()).then_some(name))
    }
}

impl Header {
    /// Makes the header of columns without types.
    pub(crate) fn new(names: Vec<String>) -> Self {
        Self { names, types: Types::default() }
    }

    /// Reads the header of a statement's result; `None` where a name is not valid UTF-8.
    pub(crate) fn of(statement: &Statement<'_>) -> Option<Self> {
        // A name from a damaged schema may be no UTF-8, which rusqlite answers with a panic.
        let read = || statement.column_names().map(str::to_owned).collect();
        let mut header = Self::new(catch_unwind(AssertUnwindSafe(read)).ok()?);
        // The same of a declared type, but rows need none.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            statement.columns().for_each(|column| header.push_type(column.decl_type()));
        }));
        Some(header)
    }

    /// Tells whether it is the header of a statement's result.
    pub(crate) fn is_of(&self, statement: &Statement<'_>) -> bool {
        let is_same = || {
            let mut types = self.types.iter();
            statement
                .columns()
                .zip(&self.names)
                .all(|(column, name)| column.name() == name && column.decl_type() == types.next().flatten())
        };
        // As above: what cannot be read is read by `of`, which has an answer.
        statement.column_count() == self.names.len() && catch_unwind(AssertUnwindSafe(is_same)).unwrap_or(false)
    }

    /// Sets the declared type of the column after those that have had theirs set.
    pub(crate) fn push_type(&mut self, name: Option<&str>) {
        self.types.push(name);
    }

    /// Returns the names.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the type that a column was declared with.
    pub(crate) fn column_type(&self, column: usize) -> Option<&str> {
        self.types.iter().nth(column).flatten()
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn a_header_is_told_from_others() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t(a INT, b, c TEXT); CREATE TABLE u(a INT, b TEXT, c)").unwrap();
        let statement = |sql| connection.prepare(sql).unwrap();
        let header = Header::of(&statement("SELECT a, b, c FROM t")).unwrap();
        assert_eq!(header.names(), ["a", "b", "c"]);
        assert_eq!([0, 1, 2, 3].map(|column| header.column_type(column)), [Some("INT"), None, Some("TEXT"), None]);
        assert!(header.is_of(&statement("SELECT * FROM t ORDER BY b")));
        for sql in ["SELECT a, b FROM t", "SELECT a, b, c, c FROM t", "SELECT a, b, c AS d FROM t", "SELECT * FROM u"] {
            assert!(!header.is_of(&statement(sql)), "{sql}");
        }
        let untyped = Header::of(&statement("SELECT 1 AS a")).unwrap();
        assert!(untyped.is_of(&statement("SELECT 2 AS a")) && !untyped.is_of(&statement("SELECT a FROM t")));
    }
}
