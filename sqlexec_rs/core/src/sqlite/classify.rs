//! Maps SQLite's error codes and messages to statuses.

use std::ffi::c_int;

use rusqlite::{ErrorCode, ffi};

use crate::outcome::{Outcome, Status};

/// The phase in which an error occurred. SQLite uses one code for both, but messages at run time are never about
/// syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Prepare,
    Execute,
}

/// Prefixes of messages about a missing or ambiguous name in the schema.
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

/// Fragments of longer messages with the same meaning.
const SCHEMA_FRAGMENTS: [&str; 2] = ["column not present in both tables", "no such hidden column"];

/// Messages by which SQLite refuses statements that do more than read, also before it calls the authorizer.
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

/// Codes for databases that a writer must repair before they can be read. SQLite reports them as attempts to write.
const NEEDS_REPAIR: [(c_int, &str); 3] = [
    (
        ffi::SQLITE_READONLY_ROLLBACK,
        "a program crashed while writing to this database, so its journal (the database's name with -journal) must \
            be rolled back: keep both files together and read the database once with a program that may write, such as \
            `sqlite3 FILE 'PRAGMA user_version'`",
    ),
    (ffi::SQLITE_READONLY_RECOVERY, NEEDS_RECOVERY),
    (ffi::SQLITE_READONLY_CANTINIT, NEEDS_RECOVERY),
];
const NEEDS_RECOVERY: &str = "the index of this database's log (the database's name with -shm) must be recovered because \
    a program crashed while writing: keep the database, -wal and -shm together and read the database once with a \
    program that may write, such as `sqlite3 FILE 'PRAGMA user_version'`";

/// Returns whether a log's index was not ready, which happens briefly when a writer opens the database.
pub(crate) fn waits_for_index(outcome: &Outcome) -> bool {
    outcome.status == Status::DbError && outcome.error.as_ref().is_some_and(|error| error.ends_with(NEEDS_RECOVERY))
}

/// Converts an SQLite result code other than `SQLITE_OK` to an error.
pub(crate) fn check_code(code: c_int) -> rusqlite::Result<()> {
    match code {
        ffi::SQLITE_OK => Ok(()),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
    }
}

/// Converts a rusqlite error to an outcome.
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
        // Nothing that writes is prepared, so this database needs recovery by a writer.
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
