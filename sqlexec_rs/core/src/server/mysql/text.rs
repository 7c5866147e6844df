//! Finds the one statement in a SQL text, with MariaDB's rules for comments and quotes, and the word with which it begins.

use super::blank::{comment_end, skip_blank};
use super::sessions::shows_sessions;
use crate::outcome::{Outcome, Status};
use crate::request::OutputKind;

/// Words with which a query begins.
const QUERIES: [&str; 4] = ["select", "with", "values", "table"];

/// Words with which another statement begins that only reads, and that has no plan.
const OTHERS: [&str; 4] = ["explain", "show", "describe", "desc"];

/// Words that begin another statement. Any other is a mistake, and no attempt to write.
const COMMANDS: &str = "\
    alter analyze backup begin binlog cache call change check checksum commit create deallocate delete do drop \
    execute flush get grant handler help import insert install kill load lock optimize prepare purge release \
    rename repair replace reset resignal restart revoke rollback savepoint set shutdown signal slave start stop \
    truncate uninstall unlock update use xa declare if loop while return fetch";

/// What stands in a text that may leave something in its session, or that tells what another left there (but for the
/// count of `FOUND_ROWS()`, which a reset leaves, too).
const TRACES: [&str; 7] = ["@", "lock", "insert_id", "into", "show", "session", "lastval"];

/// Tells whether a statement leaves nothing in its session, and finds nothing there. Names of functions are the same with
/// and without accents, so only a text of ASCII is known.
pub(super) fn is_plain(statement: &str) -> bool {
    let lower = statement.to_ascii_lowercase();
    statement.is_ascii() && !TRACES.iter().any(|trace| lower.contains(trace))
}

/// Returns the statement of a text, which begins where the text does; or why it is not run, or not planned.
///
/// The server's own grammar takes one statement as well; but `SET STATEMENT max_statement_time=0 FOR …` is one, and so is
/// what a comment makes that only some versions read.
pub(super) fn statement(sql: &str, wanted: OutputKind) -> Result<&str, Box<Outcome>> {
    let refused = |why: &str| Err(Box::new(Outcome::failed(Status::Forbidden, why)));
    let bytes = sql.as_bytes();
    if has_run_comment(sql) {
        return refused("comments that a server runs, /*! … */, are not");
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
    if is_other && wanted == OutputKind::Plan {
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

/// Returns where the statement's semicolon is, or the end.
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

/// In which quotes a backslash escapes the next character. The session's `sql_mode` decides.
#[derive(Clone, Copy)]
pub(super) struct Escapes {
    single: bool,
    double: bool,
}

impl Escapes {
    /// By default both quotes hold texts.
    pub(super) const DEFAULT: Self = Self { single: true, double: true };

    /// The default; `ANSI_QUOTES`, where double quotes hold names; and `NO_BACKSLASH_ESCAPES`.
    const ALL: [Self; 3] = [Self::DEFAULT, Self { single: true, double: false }, Self { single: false, double: false }];

    /// Returns the ways in which some server reads a text.
    fn of(sql: &str) -> &'static [Self] {
        if sql.contains('\\') { &Self::ALL } else { &Self::ALL[..1] }
    }

    /// Returns how a session with a `sql_mode` reads texts; the server expands combined modes such as `ANSI`.
    pub(super) fn of_mode(sql_mode: &str) -> Self {
        let has = |name: &str| sql_mode.split(',').any(|mode| mode == name);
        let single = !has("NO_BACKSLASH_ESCAPES");
        Self { single, double: single && !has("ANSI_QUOTES") }
    }
}

/// Returns whether some server would run a part of a text that others take for a comment.
fn has_run_comment(sql: &str) -> bool {
    let bytes = sql.as_bytes();
    let begins_run_comment = |at: usize| bytes[at..].starts_with(b"/*!") || bytes[at..].starts_with(b"/*M!");
    let has_run_comment = |escapes: &Escapes| {
        let mut at = 0;
        while at < bytes.len() {
            match bytes[at] {
                b'\'' | b'"' | b'`' => at = quote_end(bytes, at, *escapes),
                b'/' if begins_run_comment(at) => return true,
                b'/' | b'-' | b'#' => at = comment_end(bytes, at).unwrap_or(at + 1),
                _ => at += 1,
            }
        }
        false
    };
    // Most texts have none, wherever it may be.
    memchr::memmem::find_iter(bytes, b"/*").any(begins_run_comment) && Escapes::of(sql).iter().any(has_run_comment)
}

/// Returns where a quote ends that begins here. A doubled one is two that touch.
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
    fn one_statement_that_reads_is_found() {
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
    fn what_may_leave_something_is_not_plain() {
        assert!(is_plain("SELECT name, COUNT(*) FROM item GROUP BY 1"));
        let traces = ["SELECT @a := 1", "SELECT Get_Lock('a', 1)", "SELECT gét_lØck('a', 1)", "SHOW WARNINGS"];
        assert!(!traces.iter().any(|sql| is_plain(sql)));
    }

    #[test]
    fn anything_else_is_refused() {
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
            // Under NO_BACKSLASH_ESCAPES the first quote ends behind the backslash.
            ("SELECT '\\' /*! , 1 */ -- '", Status::Forbidden),
            ("SELECT `\\` /*! , 1 */ FROM t -- `", Status::Forbidden),
            // Under ANSI_QUOTES a backslash escapes in texts, and not in names.
            ("SELECT '\\'', 1 AS \"a\\\" /*! , 2 */ -- \"", Status::Forbidden),
            ("SET STATEMENT max_statement_time=0 FOR SELECT 1", Status::Forbidden),
            ("(DELETE FROM t)", Status::Forbidden),
            ("analyze SELECT 1", Status::Forbidden),
            ("SELEC 1", Status::SyntaxError),
            ("'select'", Status::SyntaxError),
            ("é", Status::SyntaxError),
        ];
        for (sql, expected) in cases {
            for wanted in [OutputKind::Rows, OutputKind::Plan] {
                assert_eq!(statement(sql, wanted).map_err(|outcome| outcome.status), Err(expected), "{sql}");
            }
        }
        for sql in ["EXPLAIN SELECT 1", "(show tables", "DESC t", "FOR CONNECTION 5", "FORMAT=JSON SELECT 1"] {
            assert!(statement(sql, OutputKind::Plan).is_err(), "{sql}");
        }
    }
}
