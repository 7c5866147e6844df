//! Maps errors of PostgreSQL to statuses.

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorResponseBody;

use crate::outcome::{Outcome, Status};

/// An error message of the server.
#[derive(Debug, Default)]
pub(super) struct ServerError {
    /// The SQLSTATE: five characters that classify the error.
    pub(super) code: String,
    message: String,
    hint: Option<String>,
    /// Position in the query, in characters, starting at 1.
    position: Option<usize>,
    /// The server function that reported the error.
    routine: String,
    is_fatal: bool,
}

impl ServerError {
    pub(super) fn of(body: &ErrorResponseBody) -> Self {
        let mut error = Self::default();
        let mut fields = body.fields();
        while let Ok(Some(field)) = fields.next() {
            let text = || String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                b'C' => error.code = text(),
                b'M' => error.message = text(),
                b'H' => error.hint = Some(text()),
                b'P' => error.position = text().parse().ok(),
                b'R' => error.routine = text(),
                b'V' => error.is_fatal = matches!(field.value_bytes(), b"FATAL" | b"PANIC"),
                _ => {}
            }
        }
        error
    }

    /// Returns whether the server closes the connection.
    pub(super) fn is_fatal(&self) -> bool {
        self.is_fatal
    }

    /// Returns whether the server ended the statement because of its time limit or our request.
    pub(super) fn is_cancellation(&self) -> bool {
        self.code == "57014"
    }

    /// Returns the message on one line.
    pub(super) fn text(&self) -> String {
        self.message.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Returns the outcome for a SQL text that was sent after a prefix of `n_before` characters.
    pub(super) fn outcome(&self, sql: &str, n_before: usize) -> Outcome {
        let status = self.status(sql);
        let error = match status {
            Status::Forbidden if self.code == "42601" && self.is_multiple_statements() => {
                "the text holds more than one SQL statement".to_owned()
            }
            Status::Forbidden if self.code == "42601" && !self.is_select_into() => {
                "only SELECT, VALUES, TABLE and WITH are run".to_owned()
            }
            _ => self.text(),
        };
        let index = self.position.and_then(|position| position.checked_sub(n_before + 1));
        let error_offset = index.and_then(|index| sql.char_indices().map(|(at, _)| at as u32).nth(index));
        Outcome { error_offset, hint: self.hint.clone(), ..Outcome::failed(status, error) }
    }

    fn is_multiple_statements(&self) -> bool {
        self.routine == "exec_parse_message"
    }

    /// Returns whether the query would have created a table.
    fn is_select_into(&self) -> bool {
        self.routine == "transformSelectStmt"
    }

    fn status(&self, sql: &str) -> Status {
        match self.code.as_str() {
            // The grammar of a cursor accepts only queries.
            "42601" if self.is_multiple_statements() || self.is_select_into() || !begins_like_a_query(sql) => {
                Status::Forbidden
            }
            "42601" | "42P02" => Status::SyntaxError,
            // Unsupported features, such as tables of another database; privileges; a cursor for a query that writes
            // or locks; server-start settings; writes inside a read-only function.
            "0A000" | "42501" | "42P11" | "55P02" | "2F002" | "2F003" | "2F004" | "38002" | "38003" | "38004" => {
                Status::Forbidden
            }
            // Wrong number of parameter values.
            "08P01" => Status::RuntimeError,
            // Exceeds a setting or the disk. An allocation above the per-process maximum has no separate code.
            "53000" | "53100" | "53200" | "53400" => Status::TooLarge,
            "XX000" if self.message.starts_with("invalid memory alloc request size") => Status::TooLarge,
            // A lock or old row versions held by other sessions; an idle session that the server ended.
            "55P03" | "72000" | "25P03" => Status::DbError,
            code => status_of_class(code),
        }
    }
}

/// Returns the status of a SQLSTATE class, the first two characters.
fn status_of_class(code: &str) -> Status {
    match code.get(..2).unwrap_or_default() {
        // Roles and grants, transactions, authentication.
        "0L" | "0P" | "25" | "28" | "2D" => Status::Forbidden,
        "54" => Status::TooLarge,
        "42" | "3F" | "3D" => Status::SchemaError,
        // Connections, other sessions, resources, operators, the system, settings, foreign servers, server faults.
        "08" | "40" | "53" | "57" | "58" | "F0" | "HV" | "XX" => Status::DbError,
        _ => Status::RuntimeError,
    }
}

/// Keywords that start a statement other than a query. Another first word is a syntax error rather than an attempt to
/// write.
const COMMANDS: [&str; 48] = [
    "abort",
    "alter",
    "analyze",
    "begin",
    "call",
    "checkpoint",
    "close",
    "cluster",
    "comment",
    "commit",
    "copy",
    "create",
    "deallocate",
    "declare",
    "delete",
    "discard",
    "do",
    "drop",
    "end",
    "execute",
    "explain",
    "fetch",
    "grant",
    "import",
    "insert",
    "listen",
    "load",
    "lock",
    "merge",
    "move",
    "notify",
    "prepare",
    "reassign",
    "refresh",
    "reindex",
    "release",
    "reset",
    "revoke",
    "rollback",
    "savepoint",
    "security",
    "set",
    "show",
    "start",
    "truncate",
    "unlisten",
    "update",
    "vacuum",
];

/// Returns whether the first word starts a query, ignoring comments and parentheses.
fn begins_like_a_query(sql: &str) -> bool {
    let mut rest = sql.trim_start();
    loop {
        if let Some(comment) = rest.strip_prefix("--") {
            rest = comment.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
        } else if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, rest)| rest).trim_start();
        } else if let Some(inner) = rest.strip_prefix('(') {
            rest = inner.trim_start();
        } else {
            break;
        }
    }
    let word: String = rest.chars().take_while(char::is_ascii_alphabetic).collect();
    !COMMANDS.contains(&word.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: &str, position: Option<usize>) -> ServerError {
        ServerError { code: code.to_owned(), message: "so\n it is".to_owned(), position, ..ServerError::default() }
    }

    #[test]
    fn codes_map_to_statuses() {
        let status = |code, sql| error(code, None).outcome(sql, 0).status;
        let cases = [
            ("42601", "SELEC 1", Status::SyntaxError),
            ("42601", "SELECT FROM WHERE", Status::SyntaxError),
            ("42601", " /* a */ -- b\n (Delete from t", Status::Forbidden),
            ("42P01", "SELECT", Status::SchemaError),
            ("42703", "SELECT", Status::SchemaError),
            ("42501", "SELECT", Status::Forbidden),
            ("25006", "SELECT", Status::Forbidden),
            ("22012", "SELECT", Status::RuntimeError),
            ("54001", "SELECT", Status::TooLarge),
            ("53300", "SELECT", Status::DbError),
            ("57P01", "SELECT", Status::DbError),
            ("0A000", "SELECT", Status::Forbidden),
            ("25P02", "SELECT", Status::Forbidden),
            ("2F003", "SELECT", Status::Forbidden),
            ("55P02", "SELECT", Status::Forbidden),
            ("54023", "SELECT", Status::TooLarge),
            ("54002", "SELECT", Status::TooLarge),
            ("40001", "SELECT", Status::DbError),
            ("40P01", "SELECT", Status::DbError),
            ("55P03", "SELECT", Status::DbError),
            ("57000", "SELECT", Status::DbError),
            ("72000", "SELECT", Status::DbError),
            ("HV00N", "SELECT", Status::DbError),
            ("XX000", "SELECT", Status::DbError),
            ("55000", "SELECT", Status::RuntimeError),
            ("P0001", "SELECT", Status::RuntimeError),
            ("08P01", "SELECT", Status::RuntimeError),
            ("", "SELECT", Status::RuntimeError),
        ];
        for (code, sql, expected) in cases {
            assert_eq!(status(code, sql), expected, "{code} {sql}");
        }
    }

    #[test]
    fn error_offset_is_in_bytes() {
        let offset = |position| error("42703", Some(position)).outcome("é x", 10).error_offset;
        assert_eq!((offset(13), offset(11), offset(5), offset(99)), (Some(3), Some(0), None, None));
        assert_eq!(error("42703", None).outcome("", 0).error.as_deref(), Some("so it is"));
    }
}
