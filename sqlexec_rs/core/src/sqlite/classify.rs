//! Tells what SQLite's error codes and messages mean for the one who wrote the SQL.

use std::ffi::c_int;

use rusqlite::{ErrorCode, ffi};

use crate::outcome::{Outcome, Status};

/// When an error came: SQLite uses one code for both, but a message at run time is never about syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Prepare,
    Execute,
}

/// Messages that say a name is missing or ambiguous in this schema.
const SCHEMA_MESSAGES: [&str; 12] = [
    "no such table",
    "no such column",
    "no such function",
    "no such collation sequence",
    "no such index",
    "no such module",
    "no such table column",
    "no such view",
    "no such database",
    "unknown database",
    "ambiguous column name",
    "wrong number of arguments to function",
];

/// Fragments of messages that say the same inside a longer sentence.
const SCHEMA_FRAGMENTS: [&str; 2] = ["column not present in both tables", "no such hidden column"];

/// Messages by which SQLite refuses what is not reading: where it does so before the authorizer is asked, too.
const FORBIDDEN_FRAGMENTS: [&str; 6] =
    ["prohibited", "not authorized", "unsafe use of", "may not be modified", "may not be dropped", "cannot modify"];

/// Messages by which SQLite refuses a statement that exceeds one of its limits.
const SIZE_FRAGMENTS: [&str; 12] = [
    "too many columns",
    "too many terms",
    "too many FROM clause terms",
    "too many RIGHT JOINs",
    "aggregate terms",
    "Expression tree is too large",
    "nested too deep",
    "too many arguments on function",
    "too complex",
    "tables in a join",
    "parser stack overflow",
    "Recursion limit",
];

/// Codes of databases that a writer must repair before they can be read; SQLite calls them attempts to write.
const NEEDS_REPAIR: [(c_int, &str); 3] = [
    (
        ffi::SQLITE_READONLY_ROLLBACK,
        "a program crashed while it wrote to this database, and its journal (the file of the same name and -journal) must \
            be rolled back: keep both files together, and read the database once with a program that may write, such as \
            `sqlite3 FILE 'PRAGMA user_version'`",
    ),
    (ffi::SQLITE_READONLY_RECOVERY, NEEDS_RECOVERY),
    (ffi::SQLITE_READONLY_CANTINIT, NEEDS_RECOVERY),
];
const NEEDS_RECOVERY: &str = "the index of this database's log (the file of the same name and -shm) must be recovered, as a \
    program crashed that wrote to it: keep the database, -wal and -shm together, and read the database once with a program \
    that may write, such as `sqlite3 FILE 'PRAGMA user_version'`";

/// Returns whether a log's index was not ready, as for a moment when a writer comes.
pub(crate) fn waits_for_index(outcome: &Outcome) -> bool {
    outcome.status == Status::DbError && outcome.error.as_ref().is_some_and(|error| error.ends_with(NEEDS_RECOVERY))
}

/// Makes an error of a code of SQLite that is not `SQLITE_OK`.
pub(crate) fn check_code(code: c_int) -> rusqlite::Result<()> {
    match code {
        ffi::SQLITE_OK => Ok(()),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
    }
}

/// Makes the outcome of a rusqlite error.
pub(crate) fn outcome_of(error: rusqlite::Error, phase: Phase) -> Outcome {
    match error {
        rusqlite::Error::SqlInputError { error, msg, offset, .. } => Outcome {
            error_offset: u32::try_from(offset).ok(),
            ..Outcome::failed(status_of(error.code, &msg, phase), msg)
        },
        rusqlite::Error::SqliteFailure(error, message) => {
            let repair = NEEDS_REPAIR.iter().find(|(code, _)| *code == error.extended_code);
            let message = repair.map(|(_, text)| (*text).to_owned()).or(message).unwrap_or_else(|| error.to_string());
            Outcome::failed(status_of(error.code, &message, phase), message)
        }
        other => Outcome::failed(Status::RuntimeError, other.to_string()),
    }
}

fn status_of(code: ErrorCode, message: &str, phase: Phase) -> Status {
    match code {
        ErrorCode::AuthorizationForStatementDenied => Status::Forbidden,
        ErrorCode::OperationInterrupted => Status::Timeout,
        ErrorCode::TooBig | ErrorCode::OutOfMemory => Status::TooLarge,
        ErrorCode::DatabaseCorrupt
        | ErrorCode::NotADatabase
        | ErrorCode::CannotOpen
        | ErrorCode::SystemIoFailure
        | ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::PermissionDenied
        | ErrorCode::FileLockingProtocolFailed
        | ErrorCode::NoLargeFileSupport
        | ErrorCode::DiskFull
        // Nothing that writes is prepared, so this is a database that needs recovery by a writer.
        | ErrorCode::ReadOnly => Status::DbError,
        _ => status_of_message(message, phase),
    }
}

fn status_of_message(message: &str, phase: Phase) -> Status {
    if message.starts_with("malformed database schema") || message.starts_with("unsupported file format") {
        Status::DbError
    } else if FORBIDDEN_FRAGMENTS.iter().any(|fragment| message.contains(fragment)) {
        Status::Forbidden
    } else if SIZE_FRAGMENTS.iter().any(|fragment| message.contains(fragment)) {
        Status::TooLarge
    } else if phase == Phase::Execute {
        Status::RuntimeError
    } else if SCHEMA_MESSAGES.iter().any(|start| message.starts_with(start))
        || SCHEMA_FRAGMENTS.iter().any(|fragment| message.contains(fragment))
    {
        Status::SchemaError
    } else {
        Status::SyntaxError
    }
}
