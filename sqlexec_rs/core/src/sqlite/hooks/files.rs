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
//!
//! A third is for those that have a log and no index of it, which SQLite would make beside them: the index is in memory, and
//! each connection's own.

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
const NAME_WITHOUT_INDEX: &CStr = c"sqlexec-no-shm";

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
    /// There is one, and no index (`-shm`) of it: nobody has the database open.
    WithoutIndex,
}

struct Layer {
    /// The default layer, which does the work.
    default: *mut ffi::sqlite3_vfs,
    /// Bytes of the default layer's file handles; ours have an [`Extra`] behind.
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
    /// A database's whose log has no index.
    WithoutIndex,
}

// SAFETY: a method table is never written after it was made, and SQLite's own are constants.
unsafe impl Send for Ours {}
// SAFETY: as above.
unsafe impl Sync for Ours {}

/// What belongs to a file of ours.
#[derive(Default)]
struct Extra {
    /// Bytes that a temporary file takes on disk.
    growth: i64,
    /// The index of a log, in regions that stay where they are.
    index: Vec<Box<[u64]>>,
}

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
    Ok(match log {
        Log::Possible => NAME,
        Log::Missing => NAME_WITHOUT_LOG,
        Log::WithoutIndex => NAME_WITHOUT_INDEX,
    })
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
        let handle_bytes = usize::try_from((*default).szOsFile).unwrap_or(0).next_multiple_of(align_of::<Extra>());
        for name in [NAME, NAME_WITHOUT_LOG, NAME_WITHOUT_INDEX] {
            let ours = Box::leak(Box::new(ffi::sqlite3_vfs {
                pNext: ptr::null_mut(),
                zName: name.as_ptr(),
                szOsFile: (handle_bytes + size_of::<Extra>()) as c_int,
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
    // SAFETY: SQLite's own arguments, handed on; the handle has room for the default layer's and for an Extra.
    unsafe {
        let Some(default_open) = (*layer.default).xOpen else { return ffi::SQLITE_MISUSE };
        let is_temporary = flags & ffi::SQLITE_OPEN_DELETEONCLOSE != 0;
        let flags = if is_temporary { flags } else { flags & !ffi::SQLITE_OPEN_CREATE };
        let code = default_open(layer.default, name, file, flags, out_flags);
        let is_main_of = |name: &CStr| flags & ffi::SQLITE_OPEN_MAIN_DB != 0 && ptr::eq((*vfs).zName, name.as_ptr());
        let kind = match is_temporary {
            true => Kind::Temporary,
            _ if is_main_of(NAME_WITHOUT_LOG) => Kind::WithoutLog,
            _ if is_main_of(NAME_WITHOUT_INDEX) => Kind::WithoutIndex,
            _ => return code,
        };
        if code == ffi::SQLITE_OK && !(*file).pMethods.is_null() {
            extra(layer, file).write(Extra::default());
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
    let theirs = unsafe { *original };
    let methods = match kind {
        Kind::Temporary => ffi::sqlite3_io_methods { xWrite: Some(write), xClose: Some(close), ..theirs },
        Kind::WithoutLog => ffi::sqlite3_io_methods { xRead: Some(read_without_log), ..theirs },
        Kind::WithoutIndex => ffi::sqlite3_io_methods {
            xShmMap: Some(map_index),
            xShmLock: Some(lock_index),
            xShmBarrier: Some(order_index),
            xShmUnmap: Some(forget_index),
            ..theirs
        },
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

/// Returns what belongs to a file of ours.
#[allow(clippy::cast_ptr_alignment, reason = "handles are aligned to 8 bytes, and handle_bytes is a multiple of that")]
unsafe fn extra(layer: &Layer, file: *mut ffi::sqlite3_file) -> *mut Extra {
    // SAFETY: a handle has room for an Extra behind the default layer's part.
    unsafe { file.cast::<u8>().add(layer.handle_bytes).cast() }
}

unsafe extern "C" fn write(file: *mut ffi::sqlite3_file, data: *const c_void, bytes: c_int, at: i64) -> c_int {
    let Some(Ok(layer)) = LAYER.get() else { return ffi::SQLITE_MISUSE };
    // SAFETY: a file of ours, with its growth behind it; one connection's thread at a time uses it.
    unsafe {
        let size = &mut (*extra(layer, file)).growth;
        let end = at.saturating_add(i64::from(bytes));
        let more = (end - *size).max(0);
        if !meter::may_write_temp(i64::from(bytes), more) {
            return ffi::SQLITE_FULL;
        }
        *size += more;
        let methods = original(file);
        methods.xWrite.map_or(ffi::SQLITE_MISUSE, |write| write(file, data, bytes, at))
    }
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    let Some(Ok(layer)) = LAYER.get() else { return ffi::SQLITE_MISUSE };
    // SAFETY: as above; the default layer's `xClose` may clear the methods, so they are read before.
    unsafe {
        meter::removed_temp((*extra(layer, file)).growth);
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

unsafe extern "C" fn map_index(
    file: *mut ffi::sqlite3_file,
    number: c_int,
    bytes: c_int,
    may_grow: c_int,
    region: *mut *mut c_void,
) -> c_int {
    let Some(Ok(layer)) = LAYER.get() else { return ffi::SQLITE_MISUSE };
    // SAFETY: a file of ours, with what belongs to it behind, which one connection's thread at a time uses. A region is as
    // large as SQLite asks, zeros at first, and stays until `forget_index`: the vector moves its pointer and not its bytes.
    unsafe {
        let index = &mut (*extra(layer, file)).index;
        let (number, words) = (usize::try_from(number).unwrap_or(0), usize::try_from(bytes).unwrap_or(0).div_ceil(8));
        if may_grow != 0 && index.len() <= number {
            index.resize_with(number + 1, || vec![0; words].into_boxed_slice());
        }
        region.write(index.get_mut(number).map_or(ptr::null_mut(), |region| region.as_mut_ptr().cast()));
    }
    ffi::SQLITE_OK
}

/// Nobody else has the index.
unsafe extern "C" fn lock_index(_: *mut ffi::sqlite3_file, _: c_int, _: c_int, _: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn order_index(_: *mut ffi::sqlite3_file) {}

unsafe extern "C" fn forget_index(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    let Some(Ok(layer)) = LAYER.get() else { return ffi::SQLITE_MISUSE };
    // SAFETY: as above; SQLite does this once it has no use for any region, before it closes the file.
    unsafe { (*extra(layer, file)).index = Vec::new() };
    ffi::SQLITE_OK
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
