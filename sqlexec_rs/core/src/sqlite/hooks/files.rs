//! The files that SQLite opens for the sandbox's connections: the default file system layer, with another way to open.
//!
//! Nothing is ever created but temporary files (a database in WAL mode would get a log only to be read), and those get
//! methods that ask the meter before they write: large sorts and intermediate tables go to disk, and a query without end
//! would fill it.
//!
//! Who asks for the time is remembered, as its result must not be kept.
//!
//! A second layer is for databases in WAL mode that have no log: it shows their header as that of a database with a
//! rollback journal, so that SQLite reads the file alone, under its locks. (Where there is a log when it takes the lock, it
//! reads that, too, whatever the header says.)

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use rusqlite::ffi;

use super::open;
use crate::sqlite::classify::check;
use crate::sqlite::meter;

const NAME: &CStr = c"sqlexec";
const NAME_WITHOUT_LOG: &CStr = c"sqlexec-no-log";

/// The layers, once they are registered.
static LAYER: OnceLock<Result<Layer, c_int>> = OnceLock::new();

/// SQLite's method tables and our copies of them; there are a few in a process.
static METHODS: Mutex<Vec<&'static Ours>> = Mutex::new(Vec::new());

/// Where a database's header says how it is written and read, and what it says there in WAL mode and with a journal.
const FORMAT_AT: std::ops::Range<i64> = 18..20;
const WITH_WAL: u8 = 2;
const WITH_JOURNAL: u8 = 1;

/// Whether a database in WAL mode has a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    Possible,
    Missing,
}

struct Layer {
    /// The default layer, which does the work.
    default: *mut ffi::sqlite3_vfs,
    /// Bytes of the default layer's file handles; ours have a [`Growth`] behind.
    handle_bytes: usize,
}

// SAFETY: the pointer leads to a layer that SQLite keeps for the process's life, and SQLite calls it from any thread.
unsafe impl Send for Layer {}
// SAFETY: as above; nothing here writes through it.
unsafe impl Sync for Layer {}

/// A method table; SQLite sees its beginning.
#[repr(C)]
struct Ours {
    methods: ffi::sqlite3_io_methods,
    original: *const ffi::sqlite3_io_methods,
    kind: Kind,
}

/// Whose methods they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A temporary file's, which are metered.
    Temporary,
    /// A database's whose log is missing.
    WithoutLog,
}

// SAFETY: a method table is never written after it was made, and SQLite's own are constants.
unsafe impl Send for Ours {}
// SAFETY: as above.
unsafe impl Sync for Ours {}

/// Bytes that a temporary file takes on disk.
#[repr(C)]
struct Growth(i64);

thread_local! {
    /// A statement of this thread has asked for the time.
    static CLOCK_WAS_READ: Cell<bool> = const { Cell::new(false) };
}

/// Tells whether a statement of this thread has asked for the time since the last call: the date functions do, for `now` or
/// without an argument, however the word came to them, and what stands for the present day and time.
pub(crate) fn take_clock_was_read() -> bool {
    CLOCK_WAS_READ.replace(false)
}

/// Registers the layers on first use and returns the name of the one for such a database.
pub(crate) fn vfs(log: Log) -> rusqlite::Result<&'static CStr> {
    check(LAYER.get_or_init(register).as_ref().map_or_else(|code| *code, |_| ffi::SQLITE_OK))?;
    Ok(if log == Log::Missing { NAME_WITHOUT_LOG } else { NAME })
}

fn register() -> Result<Layer, c_int> {
    // SAFETY: the default layer lives as long as the process, and so does our copy, which is leaked. All its methods but
    // `xOpen` work on any layer with the same data, and `xOpen` of the default one is given the default layer.
    unsafe {
        let default = ffi::sqlite3_vfs_find(ptr::null());
        if default.is_null() {
            return Err(ffi::SQLITE_ERROR);
        }
        match open::configure(default) {
            ffi::SQLITE_OK => {}
            code => return Err(code),
        }
        let handle_bytes = usize::try_from((*default).szOsFile).unwrap_or(0).next_multiple_of(align_of::<Growth>());
        for name in [NAME, NAME_WITHOUT_LOG] {
            let ours = Box::leak(Box::new(ffi::sqlite3_vfs {
                pNext: ptr::null_mut(),
                zName: name.as_ptr(),
                szOsFile: (handle_bytes + size_of::<Growth>()) as c_int,
                xOpen: Some(open),
                xCurrentTime: Some(current_time),
                xCurrentTimeInt64: Some(current_time_int64),
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
    let Some(Ok(layer)) = LAYER.get() else { return ffi::SQLITE_MISUSE };
    // SAFETY: SQLite's own arguments, handed on; the handle has room for the default layer's and for a Growth.
    unsafe {
        let Some(default_open) = (*layer.default).xOpen else { return ffi::SQLITE_MISUSE };
        let is_temporary = flags & ffi::SQLITE_OPEN_DELETEONCLOSE != 0;
        let flags = if is_temporary { flags } else { flags & !ffi::SQLITE_OPEN_CREATE };
        let code = default_open(layer.default, name, file, flags, out_flags);
        let hides_log = flags & ffi::SQLITE_OPEN_MAIN_DB != 0 && ptr::eq((*vfs).zName, NAME_WITHOUT_LOG.as_ptr());
        let kind = match (is_temporary, hides_log) {
            (true, _) => Kind::Temporary,
            (_, true) => Kind::WithoutLog,
            _ => return code,
        };
        if code == ffi::SQLITE_OK && !(*file).pMethods.is_null() {
            growth(layer, file).write(Growth(0));
            (*file).pMethods = (&raw const *ours((*file).pMethods, kind)).cast();
        }
        code
    }
}

/// Returns our copy of a method table.
unsafe fn ours(original: *const ffi::sqlite3_io_methods, kind: Kind) -> &'static Ours {
    let mut known = METHODS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = known.iter().find(|ours| ptr::eq(ours.original, original) && ours.kind == kind) {
        return found;
    }
    // SAFETY: SQLite's method tables are constants.
    let methods = match kind {
        Kind::Temporary => unsafe { ffi::sqlite3_io_methods { xWrite: Some(write), xClose: Some(close), ..*original } },
        Kind::WithoutLog => unsafe { ffi::sqlite3_io_methods { xRead: Some(read_without_log), ..*original } },
    };
    let made = Box::leak(Box::new(Ours { methods, original, kind }));
    known.push(made);
    made
}

/// Returns the methods of the default layer for a file of ours.
unsafe fn original<'a>(file: *mut ffi::sqlite3_file) -> &'a ffi::sqlite3_io_methods {
    // SAFETY: only files that `open` gave our methods come here, and those are the beginning of an Ours.
    #[allow(clippy::cast_ptr_alignment, reason = "it points to an Ours")]
    unsafe {
        &*(*(*file).pMethods.cast::<Ours>()).original
    }
}

/// Returns where a file of ours keeps its growth.
#[allow(clippy::cast_ptr_alignment, reason = "handles are aligned to 8 bytes, and handle_bytes is a multiple of that")]
unsafe fn growth(layer: &Layer, file: *mut ffi::sqlite3_file) -> *mut Growth {
    // SAFETY: a handle has room for a Growth behind the default layer's part.
    unsafe { file.cast::<u8>().add(layer.handle_bytes).cast() }
}

unsafe extern "C" fn write(file: *mut ffi::sqlite3_file, data: *const c_void, bytes: c_int, at: i64) -> c_int {
    let Some(Ok(layer)) = LAYER.get() else { return ffi::SQLITE_MISUSE };
    // SAFETY: a file of ours, with its growth behind it; one connection's thread at a time uses it.
    unsafe {
        let size = &mut *growth(layer, file);
        let end = at.saturating_add(i64::from(bytes));
        let more = (end - size.0).max(0);
        if !meter::may_write_temp(i64::from(bytes), more) {
            return ffi::SQLITE_FULL;
        }
        size.0 += more;
        let methods = original(file);
        methods.xWrite.map_or(ffi::SQLITE_MISUSE, |write| write(file, data, bytes, at))
    }
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    let Some(Ok(layer)) = LAYER.get() else { return ffi::SQLITE_MISUSE };
    // SAFETY: as above; the default layer's `xClose` may clear the methods, so they are read before.
    unsafe {
        meter::removed_temp((*growth(layer, file)).0);
        original(file).xClose.map_or(ffi::SQLITE_MISUSE, |close| close(file))
    }
}

unsafe extern "C" fn read_without_log(file: *mut ffi::sqlite3_file, data: *mut c_void, bytes: c_int, at: i64) -> c_int {
    // SAFETY: a file of ours and SQLite's own arguments: there is room for so many bytes, all of which are written, zeros
    // where the file is shorter.
    unsafe {
        let code = original(file).xRead.map_or(ffi::SQLITE_MISUSE, |read| read(file, data, bytes, at));
        if code == ffi::SQLITE_OK || code == ffi::SQLITE_IOERR_SHORT_READ {
            for place in FORMAT_AT.filter(|place| (at..at + i64::from(bytes)).contains(place)) {
                let byte = &mut *data.cast::<u8>().add((place - at) as usize);
                if *byte == WITH_WAL {
                    *byte = WITH_JOURNAL;
                }
            }
        }
        code
    }
}

unsafe extern "C" fn current_time(_: *mut ffi::sqlite3_vfs, days: *mut f64) -> c_int {
    let Some(Ok(layer)) = LAYER.get() else { return ffi::SQLITE_MISUSE };
    CLOCK_WAS_READ.set(true);
    // SAFETY: SQLite's own argument, handed on to the default layer.
    unsafe { (*layer.default).xCurrentTime.map_or(ffi::SQLITE_ERROR, |ask| ask(layer.default, days)) }
}

unsafe extern "C" fn current_time_int64(_: *mut ffi::sqlite3_vfs, milliseconds: *mut i64) -> c_int {
    let Some(Ok(layer)) = LAYER.get() else { return ffi::SQLITE_MISUSE };
    CLOCK_WAS_READ.set(true);
    // SAFETY: as above.
    unsafe { (*layer.default).xCurrentTimeInt64.map_or(ffi::SQLITE_ERROR, |ask| ask(layer.default, milliseconds)) }
}
