//! The file system layer (VFS) of the sandbox's connections: the default layer with a different open.
//!
//! Only temporary files are created, written and deleted. Any other file (a database, a log, its index or a journal)
//! is opened read-only and never deleted, whatever SQLite requests (see [`file_methods`](super::file_methods)).
//! Otherwise reading would create a log for a database in WAL mode, and would delete the log of an empty database,
//! which every database seems to be while it is being copied over.
//!
//! Reads of the clock are recorded, because the result of such a statement must not be cached.
//!
//! There is a layer for each state of a database's log.

use std::cell::Cell;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use rusqlite::ffi;

use super::file_methods::{FileState, MethodKind, wrap};
use super::open::{self, RefusedAction};
use crate::sqlite::classify::check_code;

const NAME: &CStr = c"sqlexec";
const NAME_WITHOUT_LOG: &CStr = c"sqlexec-no-log";
const NAME_WITHOUT_INDEX: &CStr = c"sqlexec-no-shm";

/// The layers after their registration.
static LAYER: OnceLock<Result<Layer, c_int>> = OnceLock::new();

/// The state of the log of a database in WAL mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalState {
    Possible,
    Missing,
    /// There is a log without an index (`-shm`): nobody has the database open.
    WithoutIndex,
}

struct Layer {
    /// The default layer, which does the work.
    default: *mut ffi::sqlite3_vfs,
    /// Bytes of the default layer's file handles; ours are followed by a [`FileState`].
    handle_bytes: usize,
}

// SAFETY: the pointer refers to a layer that lives as long as the process, and SQLite calls it from any thread.
unsafe impl Send for Layer {}
// SAFETY: as above; nothing is written through it.
unsafe impl Sync for Layer {}

thread_local! {
    /// Whether a statement of this thread has read the clock.
    static CLOCK_WAS_READ: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether a statement of this thread has read the clock since the last call. Date functions do for `now` or
/// without an argument, and so do the keywords for the current date and time.
pub(crate) fn take_clock_was_read() -> bool {
    CLOCK_WAS_READ.replace(false)
}

/// Registers the layers on first use and returns the name of the one for this state of the log.
pub(crate) fn vfs(log: WalState) -> rusqlite::Result<&'static CStr> {
    check_code(LAYER.get_or_init(register_layer).as_ref().map_or_else(|code| *code, |_| ffi::SQLITE_OK))?;
    Ok(match log {
        WalState::Possible => NAME,
        WalState::Missing => NAME_WITHOUT_LOG,
        WalState::WithoutIndex => NAME_WITHOUT_INDEX,
    })
}

/// Returns the layer, once it is registered.
fn layer() -> Option<&'static Layer> {
    LAYER.get()?.as_ref().ok()
}

fn register_layer() -> Result<Layer, c_int> {
    // SAFETY: the default layer lives as long as the process, and so does our leaked copy. All its methods except
    // `xOpen` work on any layer with the same data, and the default `xOpen` is called with the default layer. Version
    // 2 has no methods that replace system calls, which would affect every layer.
    unsafe {
        let default = ffi::sqlite3_vfs_find(ptr::null());
        if default.is_null() {
            return Err(ffi::SQLITE_ERROR);
        }
        match open::configure(default) {
            ffi::SQLITE_OK => {}
            code => return Err(code),
        }
        let handle_bytes = usize::try_from((*default).szOsFile).unwrap_or(0).next_multiple_of(align_of::<FileState>());
        for name in [NAME, NAME_WITHOUT_LOG, NAME_WITHOUT_INDEX] {
            let ours = Box::leak(Box::new(ffi::sqlite3_vfs {
                iVersion: 2,
                pNext: ptr::null_mut(),
                zName: name.as_ptr(),
                szOsFile: (handle_bytes + size_of::<FileState>()) as c_int,
                xOpen: Some(open),
                xDelete: Some(refuse_delete),
                xCurrentTime: Some(current_time),
                xCurrentTimeInt64: Some(current_time_int64),
                xSetSystemCall: None,
                xGetSystemCall: None,
                xNextSystemCall: None,
                ..*default
            }));
            match ffi::sqlite3_vfs_register(ours, 0) {
                ffi::SQLITE_OK => {}
                code => return Err(code),
            }
        }
        Ok(Layer { default, handle_bytes })
    }
}

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    const WRITES: c_int = ffi::SQLITE_OPEN_CREATE | ffi::SQLITE_OPEN_EXCLUSIVE | ffi::SQLITE_OPEN_READWRITE;
    let Some(layer) = layer() else { return ffi::SQLITE_MISUSE };
    // SAFETY: SQLite's own arguments, passed on; the handle has room for the default layer's part and a `FileState`.
    unsafe {
        (*file).pMethods = ptr::null();
        let Some(default_open) = (*layer.default).xOpen else { return ffi::SQLITE_MISUSE };
        let is_temporary = flags & ffi::SQLITE_OPEN_DELETEONCLOSE != 0;
        if is_temporary && !name.is_null() {
            return ffi::SQLITE_READONLY; // a file of that name may exist and would be deleted
        }
        let is_main_of = |name: &CStr| flags & ffi::SQLITE_OPEN_MAIN_DB != 0 && ptr::eq((*vfs).zName, name.as_ptr());
        let kind = match is_temporary {
            true => MethodKind::Temporary,
            _ if is_main_of(NAME_WITHOUT_LOG) => MethodKind::WithoutLog,
            _ if is_main_of(NAME_WITHOUT_INDEX) => MethodKind::WithoutIndex,
            _ => MethodKind::Foreign,
        };
        let code = if is_temporary {
            default_open(layer.default, name, file, flags, out_flags)
        } else {
            let flags = flags & !WRITES | ffi::SQLITE_OPEN_READONLY;
            open::only_to_read(|| default_open(layer.default, name, file, flags, out_flags))
        };
        if code == ffi::SQLITE_OK && !(*file).pMethods.is_null() {
            wrap(file, layer.handle_bytes, kind);
        }
        code
    }
}

/// Deletes nothing. When SQLite deletes a log because its database is empty, this is an error, unless the log is
/// empty too.
unsafe extern "C" fn refuse_delete(_: *mut ffi::sqlite3_vfs, name: *const c_char, _sync_folder: c_int) -> c_int {
    if name.is_null() {
        return ffi::SQLITE_MISUSE;
    }
    // SAFETY: SQLite's name is a NUL-terminated string.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()));
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => ffi::SQLITE_IOERR_DELETE_NOENT,
        Ok(file) if file.is_file() && file.len() == 0 => ffi::SQLITE_OK,
        _ => {
            open::record_refusal(RefusedAction::Deletion(path.to_owned()));
            ffi::SQLITE_IOERR_DELETE
        }
    }
}

unsafe extern "C" fn current_time(_: *mut ffi::sqlite3_vfs, days: *mut f64) -> c_int {
    let Some(layer) = layer() else { return ffi::SQLITE_MISUSE };
    CLOCK_WAS_READ.set(true);
    // SAFETY: SQLite's own argument, passed on to the default layer.
    unsafe { (*layer.default).xCurrentTime.map_or(ffi::SQLITE_ERROR, |method| method(layer.default, days)) }
}

unsafe extern "C" fn current_time_int64(_: *mut ffi::sqlite3_vfs, milliseconds: *mut i64) -> c_int {
    let Some(layer) = layer() else { return ffi::SQLITE_MISUSE };
    CLOCK_WAS_READ.set(true);
    // SAFETY: as above.
    unsafe {
        (*layer.default).xCurrentTimeInt64.map_or(ffi::SQLITE_ERROR, |method| method(layer.default, milliseconds))
    }
}
