//! Columns that no query may read, and the other parts of a database that expose their values.
//!
//! The authorizer refuses a column by name wherever SQLite calls it. SQLite does not call it for generated columns,
//! virtual tables over a hidden column, and their shadow tables; these are found when a database is opened. It does
//! not call it for the columns of USING and NATURAL either, which are found in the text of the statement.

use crate::locks::lock;
use crate::scan::is_among;
use std::sync::{Mutex, MutexGuard, OnceLock};

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Row, ToSql};

use crate::sqlite::hidden_text::{Definition, Token, mentions_name, mentions_table, segments, tokens};
use crate::sqlite::meter;

/// A column, or a whole table, that no query may read. Applies to each database that contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenColumn {
    /// The table or view, compared case-insensitively like SQLite does.
    pub table: String,
    /// The column; `None` hides the table.
    pub column: Option<String>,
}

/// Columns of SQLite's system tables that hold sampled values or a largest key.
const SYSTEM_COLUMNS: [(&[u8], &[u8]); 3] =
    [(b"sqlite_stat4", b"sample"), (b"sqlite_stat3", b"sample"), (b"sqlite_sequence", b"seq")];

/// Keywords of a column definition after which values may follow.
const VALUE_WORDS: [&str; 4] = ["default", "check", "as", "generated"];

/// Queries for the definitions of a database, and for the columns of a table with their defaults and kinds.
const DEFINITIONS: &str = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL";
const COLUMNS: &str = "SELECT name, dflt_value IS NOT NULL, hidden IN (2, 3) FROM pragma_table_xinfo(?1)";

/// The hidden columns of the open database, and the first one that the statement being prepared would read.
#[derive(Debug, Default)]
pub(crate) struct HiddenColumnCheck {
    covered: OnceLock<Option<HiddenInDatabase>>,
    refused: Mutex<Option<String>>,
}

impl HiddenColumnCheck {
    /// Determines once which of the hidden columns the database contains.
    pub(crate) fn detect(&self, connection: &Connection, hidden: &[HiddenColumn]) -> rusqlite::Result<()> {
        if !hidden.is_empty() && self.covered.get().is_none() {
            let covered = HiddenInDatabase::read(connection, hidden)?;
            self.covered.get_or_init(|| covered);
        }
        Ok(())
    }

    /// Returns whether the database contains any.
    pub(crate) fn is_active(&self) -> bool {
        self.present_columns().is_some()
    }

    /// Forgets the previous statement.
    pub(crate) fn reset(&self) {
        if self.is_active() {
            *self.lock() = None;
        }
    }

    /// Returns whether a column is hidden.
    pub(crate) fn hides(&self, table: &str, column: &str) -> bool {
        self.present_columns().is_some_and(|covered| covered.refusal(table.as_bytes(), column.as_bytes()).is_some())
    }

    /// Returns the hidden column that a statement reads without a call of the authorizer.
    pub(crate) fn read_by_text(&self, sql: &str) -> Option<String> {
        self.present_columns()?.find_joined_column(sql.as_bytes())
    }

    /// Returns the hidden column that the statement would read.
    pub(crate) fn refused_column(&self) -> Option<String> {
        self.present_columns()?;
        self.lock().clone()
    }

    /// Records the refusal and returns false, or returns true without a refusal.
    pub(crate) fn allows(&self, refusal: impl FnOnce(&HiddenInDatabase) -> Option<String>) -> bool {
        let Some(refused) = self.present_columns().and_then(refusal) else { return true };
        self.lock().get_or_insert(refused);
        false
    }

    fn present_columns(&self) -> Option<&HiddenInDatabase> {
        self.covered.get()?.as_ref()
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        lock(&self.refused)
    }
}

/// The hidden columns of one database.
#[derive(Debug, Default)]
pub(crate) struct HiddenInDatabase {
    columns: Vec<(Vec<u8>, Vec<u8>)>,
    /// Tables and views that may not be read at all.
    whole: Vec<Vec<u8>>,
    /// The views among them, which SQLite may flatten before it calls the authorizer.
    views: Vec<Vec<u8>>,
    /// Tables whose hidden columns have defaults, which `PRAGMA table_info` would reveal.
    with_defaults: Vec<Vec<u8>>,
    /// Whether a definition may contain values of a hidden column, in a DEFAULT, a CHECK or a condition.
    has_values_in_definitions: bool,
}

impl HiddenInDatabase {
    /// Determines which of the hidden columns a database contains; `None` if none.
    pub(crate) fn read(connection: &Connection, hidden: &[HiddenColumn]) -> rusqlite::Result<Option<Self>> {
        let definitions = read_definitions(connection)?;
        let mut covered = Self::default();
        for definition in definitions.iter().filter(|entry| entry.is_table() || entry.is_view()) {
            let of_table = hidden.iter().filter(|entry| entry.table.as_bytes().eq_ignore_ascii_case(&definition.name));
            for entry in of_table {
                match &entry.column {
                    Some(column) if definition.is_view() => {
                        covered.columns.push((definition.name.clone(), column.clone().into_bytes()));
                    }
                    Some(column) if !definition.is_virtual() => {
                        covered.add(connection, definition, column.as_bytes())?;
                    }
                    _ => covered.add_to_whole(definition),
                }
            }
        }
        if covered.columns.is_empty() && covered.whole.is_empty() {
            return Ok(None);
        }
        let readers = covered.views_of_tables(&definitions);
        while covered.add_whole(&definitions, &readers) {}
        covered.has_values_in_definitions =
            definitions.iter().any(|definition| covered.may_hold_values(definition, &definitions));
        Ok(Some(covered))
    }

    /// Adds a column if the table has it, and the generated columns that are computed from it.
    fn add(&mut self, connection: &Connection, table: &Definition, column: &[u8]) -> rusqlite::Result<()> {
        let columns = read_columns(connection, &table.name)?;
        let Some(hidden_column) =
            columns.iter().find(|column_definition| column_definition.name.eq_ignore_ascii_case(column))
        else {
            return Ok(());
        };
        let mut names = vec![hidden_column.name.clone()];
        let parts = segments(&table.sql);
        let mut is_growing = true;
        while is_growing {
            let n_before = names.len();
            for generated in columns
                .iter()
                .filter(|column_definition| column_definition.is_generated && !names.contains(&column_definition.name))
            {
                let definition = parts.iter().find(|part| part.first().is_some_and(|token| token.is(&generated.name)));
                if definition.is_none_or(|part| names.iter().any(|name| part.iter().any(|token| token.is(name)))) {
                    names.push(generated.name.clone());
                    break;
                }
            }
            is_growing = names.len() > n_before;
        }
        if columns
            .iter()
            .any(|column_definition| column_definition.has_default && names.contains(&column_definition.name))
        {
            self.with_defaults.push(table.name.clone());
        }
        self.columns.extend(names.into_iter().map(|name| (table.name.clone(), name)));
        Ok(())
    }

    /// Returns the views that mention a table with a hidden column, or such a view.
    fn views_of_tables(&self, definitions: &[Definition]) -> Vec<Vec<u8>> {
        let mut rest: Vec<_> = definitions
            .iter()
            .filter(|definition| definition.is_view())
            .map(|definition| (&definition.name, tokens(&definition.sql)))
            .collect();
        let mut views: Vec<Vec<u8>> = Vec::new();
        loop {
            let n_before = views.len();
            let reads = |all: &[Token]| self.tables().chain(&views).any(|name| mentions_name(all, name));
            let (readers, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(_, all)| reads(all));
            views.extend(readers.into_iter().map(|(name, _)| name.clone()));
            rest = others;
            if views.len() == n_before {
                return views;
            }
        }
    }

    /// Adds virtual tables over hidden columns or over `readers` (tables that store their content), and views whose
    /// joins read them. Returns whether any was added.
    fn add_whole(&mut self, definitions: &[Definition], readers: &[Vec<u8>]) -> bool {
        let n_before = self.whole.len();
        for definition in definitions.iter().filter(|definition| definition.is_table() || definition.is_view()) {
            if is_among(&definition.name, &self.whole) {
                continue;
            }
            let is_reached = if definition.is_virtual() {
                let all = tokens(&definition.sql);
                self.tables().chain(readers).any(|table| mentions_name(&all, table))
            } else if definition.is_view() {
                let all = tokens(&definition.sql);
                self.find_joined_column(&definition.sql).is_some()
                    || self.whole.iter().any(|table| mentions_table(&all, table))
            } else {
                definitions
                    .iter()
                    .filter(|other| other.is_virtual() && is_among(&other.name, &self.whole))
                    .any(|other| is_shadow(&definition.name, &other.name))
            };
            if is_reached {
                self.add_to_whole(definition);
            }
        }
        self.whole.len() > n_before
    }

    fn add_to_whole(&mut self, definition: &Definition) {
        self.whole.push(definition.name.clone());
        if definition.is_view() {
            self.views.push(definition.name.clone());
        }
    }

    fn tables(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.columns.iter().map(|(table, _)| table).chain(&self.whole)
    }

    /// Returns whether a definition mentions a hidden column next to literal values.
    fn may_hold_values(&self, definition: &Definition, definitions: &[Definition]) -> bool {
        let all = tokens(&definition.sql);
        let is_about = |part: &[Token]| {
            let has = |(table, column): &(Vec<u8>, Vec<u8>)| mentions_name(&all, table) && mentions_name(part, column);
            self.columns.iter().any(has) || self.whole.iter().any(|table| mentions_name(&all, table))
        };
        if definition.is_table() {
            let has_word = |part: &[Token]| VALUE_WORDS.iter().any(|word| part.iter().any(|token| token.is_word(word)));
            return segments(&definition.sql).iter().any(|part| has_word(part) && is_about(part));
        }
        let is_text = |token: &Token| token.is_literal() && !is_name(token, definition, definitions);
        let may_hold = |token: &Token| {
            if definition.is_index() { token.is_word("where") || is_text(token) } else { token.is_literal() }
        };
        is_about(&all) && all.iter().any(may_hold)
    }

    /// Returns the hidden name that reading a column would expose. An empty column means a row without columns.
    pub(crate) fn refusal(&self, table: &[u8], column: &[u8]) -> Option<String> {
        let is = |(t, c): &(&[u8], &[u8])| t.eq_ignore_ascii_case(table) && c.eq_ignore_ascii_case(column);
        if is_among(table, &self.whole) {
            let owner = self.whole.iter().find(|owner| is_shadow(table, owner));
            return Some(name_of(owner.map_or(table, Vec::as_slice), b""));
        }
        if self.columns.iter().any(|(t, c)| is(&(t.as_slice(), c.as_slice()))) || SYSTEM_COLUMNS.iter().any(is) {
            return Some(name_of(table, column));
        }
        let is_definition = [b"sqlite_master".as_slice(), b"sqlite_schema"].iter().any(|name| is(&(*name, b"sql")));
        (is_definition && self.has_values_in_definitions).then(|| name_of(table, column))
    }

    /// Returns the hidden name whose values a PRAGMA would expose.
    pub(crate) fn refusal_of_pragma(&self, pragma: &[u8], argument: Option<&[u8]>) -> Option<String> {
        let shows_defaults = pragma.eq_ignore_ascii_case(b"table_info") || pragma.eq_ignore_ascii_case(b"table_xinfo");
        let has_defaults = |table: &[u8]| is_among(table, &self.with_defaults) || is_among(table, &self.whole);
        let table = argument.filter(|table| shows_defaults && has_defaults(table))?;
        Some(format!("the defaults of {}", name_of(table, b"")))
    }

    /// Returns the hidden name that a statement reads without a call of the authorizer: in a view that SQLite
    /// flattens, or in the columns of USING and NATURAL.
    pub(crate) fn find_joined_column(&self, sql: &[u8]) -> Option<String> {
        let all = tokens(sql);
        if let Some(view) = self.views.iter().find(|view| mentions_table(&all, view)) {
            return Some(name_of(view, b""));
        }
        let is_natural = all.iter().any(|token| token.is_word("natural"));
        let using = using_names(&all);
        if !is_natural && using.is_empty() {
            return None;
        }
        let whole = self.whole.iter().find(|table| mentions_table(&all, table)).map(|table| name_of(table, b""));
        whole.or_else(|| {
            let joins = |(table, column): &&(Vec<u8>, Vec<u8>)| {
                mentions_table(&all, table) && (is_natural || using.iter().any(|token| token.is(column)))
            };
            self.columns.iter().find(joins).map(|(table, column)| name_of(table, column))
        })
    }
}

/// Returns whether a token in double quotes is the index's name or a name in a table definition; otherwise it is a
/// text.
fn is_name(token: &Token, index: &Definition, definitions: &[Definition]) -> bool {
    let Token::Quoted(b'"', name) = token else { return false };
    token.is(&index.name)
        || definitions
            .iter()
            .any(|other| other.is_table() && (token.is(&other.name) || mentions_name(&tokens(&other.sql), name)))
}

/// Returns the names in the lists after USING.
fn using_names(all: &[Token]) -> Vec<&Token> {
    let mut names = Vec::new();
    for (at, _) in all.iter().enumerate().filter(|(_, token)| token.is_word("using")) {
        if all.get(at + 1).is_some_and(|token| token.is_mark(b'(')) {
            names.extend(all[at + 2..].iter().take_while(|token| !token.is_mark(b')')));
        }
    }
    names
}

/// Returns whether a table has the name of one that stores the content of a virtual table.
fn is_shadow(name: &[u8], owner: &[u8]) -> bool {
    let (start, end) = name.split_at(owner.len().min(name.len()));
    start.eq_ignore_ascii_case(owner) && end.starts_with(b"_")
}

fn name_of(table: &[u8], column: &[u8]) -> String {
    let table = String::from_utf8_lossy(table);
    if column.is_empty() { table.into_owned() } else { format!("{table}.{}", String::from_utf8_lossy(column)) }
}

struct ColumnDefinition {
    name: Vec<u8>,
    has_default: bool,
    is_generated: bool,
}

fn read_definitions(connection: &Connection) -> rusqlite::Result<Vec<Definition>> {
    let mut statement = connection.prepare(DEFINITIONS)?;
    let mut rows = statement.raw_query();
    let mut definitions = Vec::new();
    while let Some(row) = rows.next()? {
        let [kind, name, sql] = [0, 1, 2].map(|at| read_text(row, at));
        definitions.push(Definition { kind: kind?, name: name?, sql: sql? });
    }
    Ok(definitions)
}

fn read_columns(connection: &Connection, table: &[u8]) -> rusqlite::Result<Vec<ColumnDefinition>> {
    let mut statement = connection.prepare(COLUMNS)?;
    let mut rows = statement.query([Name(table)])?;
    let mut columns = Vec::new();
    while let Some(row) = rows.next()? {
        let name = read_text(row, 0)?;
        columns.push(ColumnDefinition { name, has_default: row.get(1)?, is_generated: row.get(2)? });
    }
    Ok(columns)
}

/// Copies a text, which may not be valid UTF-8.
fn read_text(row: &Row<'_>, at: usize) -> rusqlite::Result<Vec<u8>> {
    meter::set_lenient(true); // reading a value may need memory, and rusqlite panics if it gets none
    let text = row.get_ref(at).map(|value| value.as_bytes().unwrap_or_default().to_vec());
    meter::set_lenient(false);
    text
}

/// A name in the spelling of the database.
struct Name<'a>(&'a [u8]);

impl ToSql for Name<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0)))
    }
}
