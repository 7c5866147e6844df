//! SQLite asks the authorizer about each thing a statement would do while the statement is prepared.
//!
//! Names come as the bytes they are: in a hostile schema they need not be UTF-8.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use rusqlite::{Connection, ffi};

use crate::sqlite::classify::check_code;

/// What a statement would do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action<'a> {
    /// Select, read a column, or recurse.
    Read,
    /// Read a column of a table, where columns are hidden; an empty name means no column.
    Column(&'a [u8], &'a [u8]),
    /// Call the named function.
    Function(&'a [u8]),
    /// Ask the named PRAGMA, with its argument.
    Pragma(&'a [u8], Option<&'a [u8]>),
    /// Write to the named table.
    Write(&'a [u8]),
    /// Begin or end a transaction.
    Transaction,
    /// Everything else.
    Other,
}

/// Decides whether a statement may do something.
pub(crate) trait Authorizer: Send + Sync {
    /// Answers; `is_in_view` tells that a view or a trigger would do it.
    fn allows(&self, action: Action<'_>, is_in_view: bool) -> bool;

    /// Returns whether it asks for the names of columns that are read.
    fn hides_columns(&self) -> bool;
}

/// Lets `authorizer` decide on every statement of a connection.
pub(crate) fn set_authorizer<A: Authorizer>(connection: &Connection, authorizer: &Arc<A>) -> rusqlite::Result<()> {
    let data = Arc::into_raw(Arc::clone(authorizer)).cast_mut().cast::<c_void>();
    // SAFETY: the connection is open. It owns a reference to the authorizer, which it drops when it closes, after the last
    // question; if it cannot take it (no memory), `forget` has been called, and nothing is asked.
    unsafe {
        let db = connection.handle();
        check_code(ffi::sqlite3_set_clientdata(db, c"sqlexec_authorizer".as_ptr(), data, Some(forget::<A>)))?;
        check_code(ffi::sqlite3_set_authorizer(db, Some(ask::<A>), data))
    }
}

unsafe extern "C" fn forget<A: Authorizer>(data: *mut c_void) {
    // SAFETY: made by `Arc::into_raw` in `set_authorizer`, given back once.
    drop(unsafe { Arc::from_raw(data.cast_const().cast::<A>()) });
}

unsafe extern "C" fn ask<A: Authorizer>(
    data: *mut c_void,
    code: c_int,
    first: *const c_char,
    second: *const c_char,
    _database: *const c_char,
    accessor: *const c_char,
) -> c_int {
    // SAFETY: SQLite's names are strings that end with NUL, or null, and live during the call.
    let bytes = |name: *const c_char| (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes());
    // SAFETY: the connection's reference keeps the authorizer alive.
    let authorizer = unsafe { &*data.cast_const().cast::<A>() };
    let action = match code {
        ffi::SQLITE_READ if authorizer.hides_columns() => {
            Action::Column(bytes(first).unwrap_or_default(), bytes(second).unwrap_or_default())
        }
        ffi::SQLITE_SELECT | ffi::SQLITE_READ | ffi::SQLITE_RECURSIVE => Action::Read,
        ffi::SQLITE_FUNCTION => Action::Function(bytes(second).unwrap_or_default()),
        ffi::SQLITE_PRAGMA => Action::Pragma(bytes(first).unwrap_or_default(), bytes(second)),
        ffi::SQLITE_INSERT | ffi::SQLITE_UPDATE | ffi::SQLITE_DELETE => Action::Write(bytes(first).unwrap_or_default()),
        ffi::SQLITE_TRANSACTION => Action::Transaction,
        _ => Action::Other,
    };
    if authorizer.allows(action, !accessor.is_null()) { ffi::SQLITE_OK } else { ffi::SQLITE_DENY }
}
