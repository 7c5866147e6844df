//! Finds the single statement in SQL source, with MariaDB's rules for comments and quotes, and its first keyword.

use super::blank::{comment_end, skip_blank};
use super::sessions::shows_sessions;
use crate::outcome::{Outcome, Status};
use crate::request::OutputKind;

/// Keywords that start a query.
const QUERIES: [&str; 4] = ["select", "with", "values", "table"];

/// Keywords that start other read-only statements, which have no plan.
const OTHERS: [&str; 4] = ["explain", "show", "describe", "desc"];

/// Keywords that start any other statement. Another first word is a syntax error rather than an attempt to write.
const COMMANDS: &str = "\
    alter analyze backup begin binlog cache call change check checksum commit create deallocate delete do drop \
    execute flush get grant handler help import insert install kill load lock optimize prepare purge release \
    rename repair replace reset resignal restart revoke rollback savepoint set shutdown signal slave start stop \
    truncate uninstall unlock update use xa declare if loop while return fetch";

/// Fragments of statements that may leave state in their session, or read state that another left (except
/// `FOUND_ROWS()`, whose count survives a reset).
const TRACES: [&str; 7] = ["@", "lock", "insert_id", "into", "show", "session", "lastval"];

/// Returns whether a statement neither leaves nor reads session state. Function names match with and without accents,
/// so only ASCII texts qualify.
pub(super) fn is_plain(statement: &str) -> bool {
    let lower = statement.to_ascii_lowercase();
    statement.is_ascii() && !TRACES.iter().any(|trace| lower.contains(trace))
}

/// Returns the single statement in `sql`, with leading comments; or the reason for refusing to run or plan it.
///
/// The server's grammar accepts only one statement too. But `SET STATEMENT max_statement_time=0 FOR …` is a single
/// statement, and so is one with a comment that only some versions execute.
pub(super) fn statement(sql: &str, output: OutputKind) -> Result<&str, Box<Outcome>> {
    let refused = |reason: &str| Err(Box::new(Outcome::failed(Status::Forbidden, reason)));
    let bytes = sql.as_bytes();
    if has_executable_comment(sql) {
        return refused("executable comments, /*! … */, are refused");
    }
    if shows_sessions(sql) {
        return refused("the text reads the queries of other sessions");
    }
    let mut start = skip_blank(bytes, 0);
    if bytes[start..].iter().all(|byte| *byte == b';' || byte.is_ascii_whitespace()) {
        return Err(Box::new(Outcome::failed(Status::NoSql, "the text holds no SQL statement")));
    }
    while bytes.get(start) == Some(&b'(') {
        start = skip_blank(bytes, start + 1);
    }
    let length = bytes[start..].iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
    let word = sql[start..start + length].to_ascii_lowercase();
    let is_other = OTHERS.contains(&word.as_str());
    if is_other && output == OutputKind::Plan {
        return refused("only SELECT, WITH, VALUES and TABLE have a plan");
    }
    if !is_other && !QUERIES.contains(&word.as_str()) {
        if COMMANDS.split(' ').any(|command| command == word) {
            return refused("only SELECT, WITH, VALUES, TABLE, EXPLAIN, SHOW and DESCRIBE are run");
        }
        let error = format!("a query does not begin with {:?}", sql[start..].chars().take(20).collect::<String>());
        return Err(Box::new(Outcome {
            error_offset: Some(start as u32),
            ..Outcome::failed(Status::SyntaxError, error)
        }));
    }
    let end = statement_end(bytes, start);
    let mut rest = end;
    while rest < bytes.len() && bytes[rest] == b';' {
        rest = skip_blank(bytes, rest + 1);
    }
    if rest < bytes.len() { refused("the text holds more than one SQL statement") } else { Ok(&sql[..end]) }
}

/// Returns the position of the statement's semicolon, or the end.
fn statement_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b';' => return at,
            b'\'' | b'"' | b'`' => at = quote_end(bytes, at, Escapes::DEFAULT),
            _ => {
                let next = skip_blank(bytes, at);
                at = if next == at { at + 1 } else { next };
            }
        }
    }
    bytes.len()
}

/// The quotes in which a backslash escapes the next character, as set by the session's `sql_mode`.
#[derive(Clone, Copy)]
pub(super) struct Escapes {
    single: bool,
    double: bool,
}

impl Escapes {
    /// By default both quotes enclose string literals.
    pub(super) const DEFAULT: Self = Self { single: true, double: true };

    /// The default; `ANSI_QUOTES`, under which double quotes enclose names; and `NO_BACKSLASH_ESCAPES`.
    const ALL: [Self; 3] = [Self::DEFAULT, Self { single: true, double: false }, Self { single: false, double: false }];

    /// Returns all ways in which servers may read the quotes of some SQL.
    fn of(sql: &str) -> &'static [Self] {
        if sql.contains('\\') { &Self::ALL } else { &Self::ALL[..1] }
    }

    /// Returns how a session with this `sql_mode` reads string literals. The server expands combined modes such as `ANSI`.
    pub(super) fn of_mode(sql_mode: &str) -> Self {
        let has = |name: &str| sql_mode.split(',').any(|mode| mode == name);
        let single = !has("NO_BACKSLASH_ESCAPES");
        Self { single, double: single && !has("ANSI_QUOTES") }
    }
}

/// Returns whether some server would execute a comment of the SQL.
fn has_executable_comment(sql: &str) -> bool {
    let bytes = sql.as_bytes();
    let begins_executable_comment = |at: usize| bytes[at..].starts_with(b"/*!") || bytes[at..].starts_with(b"/*M!");
    let has_executable_comment = |escapes: &Escapes| {
        let mut at = 0;
        while at < bytes.len() {
            match bytes[at] {
                b'\'' | b'"' | b'`' => at = quote_end(bytes, at, *escapes),
                b'/' if begins_executable_comment(at) => return true,
                b'/' | b'-' | b'#' => at = comment_end(bytes, at).unwrap_or(at + 1),
                _ => at += 1,
            }
        }
        false
    };
    // most texts contain none
    memchr::memmem::find_iter(bytes, b"/*").any(begins_executable_comment)
        && Escapes::of(sql).iter().any(has_executable_comment)
}

/// Returns the end of a quote that starts here. A doubled quote counts as two adjacent quoted tokens.
pub(super) fn quote_end(bytes: &[u8], begin: usize, escapes: Escapes) -> usize {
    let quote = bytes[begin];
    let has_escapes = (quote == b'\'' && escapes.single) || (quote == b'"' && escapes.double);
    let mut at = begin + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if has_escapes => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_single_read_only_statement() {
        let cases = [
            ("select 1", "select 1"),
            (
                " # a\n-- b\n/* c; */ (( SELECT ';', \"a;\\\";\", `;` )) ; -- so",
                " # a\n-- b\n/* c; */ (( SELECT ';', \"a;\\\";\", `;` )) ",
            ),
            ("SELECT 5--1;;", "SELECT 5--1"),
            ("WITH a AS (SELECT 1) SELECT * FROM a; # ;", "WITH a AS (SELECT 1) SELECT * FROM a"),
            ("SELECT 'it''s'", "SELECT 'it''s'"),
            ("SELECT 'it\\'s; so'", "SELECT 'it\\'s; so'"),
            ("SHOW TABLES", "SHOW TABLES"),
            ("SELECT 1 --", "SELECT 1 --"),
            ("SELECT '/*!', \"/*M!\", `/*!`", "SELECT '/*!', \"/*M!\", `/*!`"),
            ("SELECT 'it''s /*! so'", "SELECT 'it''s /*! so'"),
            ("SELECT '\\\\ /*!'", "SELECT '\\\\ /*!'"),
            ("SELECT 1 /* a /*! b */ -- /*! c\n # /*M! d", "SELECT 1 /* a /*! b */ -- /*! c\n # /*M! d"),
            ("SELECT 8 / 2 - 1 /*+ a */", "SELECT 8 / 2 - 1 /*+ a */"),
            ("SELECT 'open; ", "SELECT 'open; "),
        ]; // fmt: skip
        for (sql, expected) in cases {
            assert_eq!(statement(sql, OutputKind::Rows).ok(), Some(expected), "{sql}");
        }
    }

    #[test]
    fn statements_with_session_state_are_not_plain() {
        assert!(is_plain("SELECT name, COUNT(*) FROM item GROUP BY 1"));
        let traces = ["SELECT @a := 1", "SELECT Get_Lock('a', 1)", "SELECT gét_lØck('a', 1)", "SHOW WARNINGS"];
        assert!(!traces.iter().any(|sql| is_plain(sql)));
    }

    #[test]
    fn other_statements_are_refused() {
        let cases = [
            ("", Status::NoSql),
            (" ;; ", Status::NoSql),
            ("# only a comment", Status::NoSql),
            ("/* open", Status::NoSql),
            ("SELECT 1; SELECT 2", Status::Forbidden),
            ("SELECT 1;-- a\nDROP TABLE t", Status::Forbidden),
            ("SELECT 'a\\'; DROP TABLE t; -- '; DROP TABLE t", Status::Forbidden),
            ("SELECT /*!50000 1 */", Status::Forbidden),
            ("SELECT /*M! 1 */", Status::Forbidden),
            ("SELECT 'a' /*!50000 , 1 */", Status::Forbidden),
            ("SELECT 1--/*! 1 */", Status::Forbidden),
            ("SELECT '/*' /*! , 1 */", Status::Forbidden),
            // Under NO_BACKSLASH_ESCAPES the first quote ends after the backslash.
            ("SELECT '\\' /*! , 1 */ -- '", Status::Forbidden),
            ("SELECT `\\` /*! , 1 */ FROM t -- `", Status::Forbidden),
            // Under ANSI_QUOTES a backslash escapes in string literals but not in names.
            ("SELECT '\\'', 1 AS \"a\\\" /*! , 2 */ -- \"", Status::Forbidden),
            ("SET STATEMENT max_statement_time=0 FOR SELECT 1", Status::Forbidden),
            ("(DELETE FROM t)", Status::Forbidden),
            ("analyze SELECT 1", Status::Forbidden),
            ("SELEC 1", Status::SyntaxError),
            ("'select'", Status::SyntaxError),
            ("é", Status::SyntaxError),
        ];
        for (sql, expected) in cases {
            for output in [OutputKind::Rows, OutputKind::Plan] {
                assert_eq!(statement(sql, output).map_err(|outcome| outcome.status), Err(expected), "{sql}");
            }
        }
        for sql in ["EXPLAIN SELECT 1", "(show tables", "DESC t", "FOR CONNECTION 5", "FORMAT=JSON SELECT 1"] {
            assert!(statement(sql, OutputKind::Plan).is_err(), "{sql}");
        }
    }
}
