//! The authorizer callback, which SQLite calls for each action of a statement while the statement is prepared.
//!
//! Names are passed as bytes, because a hostile schema may contain invalid UTF-8.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use rusqlite::{Connection, ffi};

use crate::sqlite::classify::check_code;

/// An action of a statement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action<'a> {
    /// Select, read a column, or recurse.
    Read,
    /// Read a column of a table, if columns are hidden; an empty name means no column.
    Column(&'a [u8], &'a [u8]),
    /// Call the named function.
    Function(&'a [u8]),
    /// Run the named PRAGMA, with its argument.
    Pragma(&'a [u8], Option<&'a [u8]>),
    /// Write to the named table.
    Write(&'a [u8]),
    /// Begin or end a transaction.
    Transaction,
    /// Everything else.
    Other,
}

/// Decides which actions a statement may take.
pub(crate) trait Authorizer: Send + Sync {
    /// Returns whether the action is allowed. `is_in_view` means that a view or a trigger would take it.
    fn allows(&self, action: Action<'_>, is_in_view: bool) -> bool;

    /// Returns whether the authorizer needs the names of columns that are read.
    fn hides_columns(&self) -> bool;
}

/// Installs `authorizer` for every statement of a connection.
pub(crate) fn set_authorizer<A: Authorizer>(connection: &Connection, authorizer: &Arc<A>) -> rusqlite::Result<()> {
    let data = Arc::into_raw(Arc::clone(authorizer)).cast_mut().cast::<c_void>();
    // SAFETY: the connection is open. It owns a reference to the authorizer and drops it when it closes, after the
    // last call. If it cannot take the reference (no memory), `forget` has been called, and the callback is not
    // installed.
    unsafe {
        let db = connection.handle();
        check_code(ffi::sqlite3_set_clientdata(db, c"sqlexec_authorizer".as_ptr(), data, Some(forget::<A>)))?;
        check_code(ffi::sqlite3_set_authorizer(db, Some(authorize::<A>), data))
    }
}

unsafe extern "C" fn forget<A: Authorizer>(data: *mut c_void) {
    // SAFETY: created by `Arc::into_raw` in `set_authorizer`, dropped once.
    drop(unsafe { Arc::from_raw(data.cast_const().cast::<A>()) });
}

unsafe extern "C" fn authorize<A: Authorizer>(
    data: *mut c_void,
    code: c_int,
    first: *const c_char,
    second: *const c_char,
    _database: *const c_char,
    accessor: *const c_char,
) -> c_int {
    // SAFETY: SQLite's names are null or NUL-terminated strings that live during the call.
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
