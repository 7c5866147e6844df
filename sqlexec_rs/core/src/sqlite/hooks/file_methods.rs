//! File methods for SQLite: our temporary files may be written, within the meter's limit; any other file may only be
//! read and locked. A read-only connection is not sufficient: even for readers, SQLite deletes the log of an empty
//! database, truncates an unused index, and sets the mode of an empty file.
//!
//! Two kinds of databases have further methods. A database in WAL mode without a log presents its header as that of a
//! database with a rollback journal, so that SQLite reads the file alone, under its locks. (If there is a log when it
//! takes the lock, it reads the log too, whatever the header says.) A database with a log but without its index,
//! which SQLite would create on disk, has a separate index in memory for each connection.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Mutex;

use rusqlite::ffi;

use super::open;
use crate::locks::lock;
use crate::sqlite::meter;

/// SQLite's method tables and our copies; there are only a few per process.
static METHODS: Mutex<Vec<&'static MethodTable>> = Mutex::new(Vec::new());

/// The header bytes with the format versions, and their values in WAL mode and with a journal.
const FORMAT_AT: std::ops::Range<i64> = 18..20;
const WITH_WAL: u8 = 2;
const WITH_JOURNAL: u8 = 1;

/// File controls that query a handle or set its own state. Others change a file, or may do so in a later SQLite.
const HARMLESS_CONTROLS: [c_int; 10] = [
    ffi::SQLITE_FCNTL_BUSYHANDLER,
    ffi::SQLITE_FCNTL_EXTERNAL_READER,
    ffi::SQLITE_FCNTL_HAS_MOVED,
    ffi::SQLITE_FCNTL_LAST_ERRNO,
    ffi::SQLITE_FCNTL_LOCKSTATE,
    ffi::SQLITE_FCNTL_MMAP_SIZE,
    ffi::SQLITE_FCNTL_PERSIST_WAL,
    ffi::SQLITE_FCNTL_POWERSAFE_OVERWRITE,
    ffi::SQLITE_FCNTL_PRAGMA,
    ffi::SQLITE_FCNTL_VFSNAME,
];

/// A method table, of which SQLite sees the first part.
#[repr(C)]
struct MethodTable {
    methods: ffi::sqlite3_io_methods,
    original: *const ffi::sqlite3_io_methods,
    kind: MethodKind,
    /// Bytes of the default layer's file handles; ours are followed by a [`FileState`].
    handle_bytes: usize,
}

/// The kind of file that methods belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MethodKind {
    /// A temporary file, which is metered.
    Temporary,
    /// A database, a log or a journal.
    Foreign,
    /// A database without a log.
    WithoutLog,
    /// A database whose log has no index.
    WithoutIndex,
}

// SAFETY: a method table is never modified after its creation, and SQLite's own are constant.
unsafe impl Send for MethodTable {}
// SAFETY: as above.
unsafe impl Sync for MethodTable {}

/// Our state of an open file.
#[derive(Default)]
pub(super) struct FileState {
    /// Bytes of a temporary file on disk.
    growth: i64,
    /// The index of a log, in regions with stable addresses.
    index: Vec<Box<[u64]>>,
}

/// Installs the methods of a kind for an open file.
///
/// # Safety
/// `file` must have been opened by the default layer, with room for a [`FileState`] after `handle_bytes`.
pub(super) unsafe fn wrap(file: *mut ffi::sqlite3_file, handle_bytes: usize, kind: MethodKind) {
    // SAFETY: see the function; the methods of an open file are those of the default layer.
    unsafe {
        (*file).pMethods = (&raw const *wrapped_methods((*file).pMethods, handle_bytes, kind)).cast();
        file_state(file).write(FileState::default());
    }
}

/// Returns our copy of a method table.
unsafe fn wrapped_methods(
    original: *const ffi::sqlite3_io_methods,
    handle_bytes: usize,
    kind: MethodKind,
) -> &'static MethodTable {
    let mut known = lock(&METHODS);
    if let Some(wrapped_methods) =
        known.iter().find(|wrapped_methods| ptr::eq(wrapped_methods.original, original) && wrapped_methods.kind == kind)
    {
        return wrapped_methods;
    }
    // SAFETY: SQLite's method tables are constant.
    let original_methods = unsafe { *original };
    let foreign = ffi::sqlite3_io_methods {
        xWrite: Some(refuse_write),
        xTruncate: Some(refuse_truncate),
        xSync: Some(refuse_sync),
        xFileControl: Some(control_harmlessly),
        xShmMap: original_methods.xShmMap.and(Some(map_index_to_read)),
        xShmUnmap: original_methods.xShmUnmap.and(Some(unmap_index)),
        ..original_methods
    };
    let methods = match kind {
        MethodKind::Temporary => {
            ffi::sqlite3_io_methods { xWrite: Some(write), xClose: Some(close), ..original_methods }
        }
        MethodKind::Foreign => foreign,
        MethodKind::WithoutLog => ffi::sqlite3_io_methods { xRead: Some(read_without_log), ..foreign },
        MethodKind::WithoutIndex => ffi::sqlite3_io_methods {
            xShmMap: Some(map_index),
            xShmLock: Some(lock_index),
            xShmBarrier: Some(order_index),
            xShmUnmap: Some(forget_index),
            ..foreign
        },
    };
    let wrapped_methods = Box::leak(Box::new(MethodTable { methods, original, kind, handle_bytes }));
    known.push(wrapped_methods);
    wrapped_methods
}

/// Returns the method table of one of our files.
unsafe fn table<'a>(file: *mut ffi::sqlite3_file) -> &'a MethodTable {
    // SAFETY: only files whose methods `wrap` set reach this, and these methods are the first field of a
    // `MethodTable`.
    #[allow(clippy::cast_ptr_alignment, reason = "it points to a MethodTable")]
    unsafe {
        &*(*file).pMethods.cast::<MethodTable>()
    }
}

/// Returns the default layer's methods for one of our files.
unsafe fn original<'a>(file: *mut ffi::sqlite3_file) -> &'a ffi::sqlite3_io_methods {
    // SAFETY: as above; the default layer's methods are constant.
    unsafe { &*table(file).original }
}

/// Returns our state of an open file.
#[allow(clippy::cast_ptr_alignment, reason = "handles are aligned to 8 bytes, and handle_bytes is a multiple of that")]
unsafe fn file_state(file: *mut ffi::sqlite3_file) -> *mut FileState {
    // SAFETY: as above; a handle has room for a `FileState` after the default layer's part.
    unsafe { file.cast::<u8>().add(table(file).handle_bytes).cast() }
}

unsafe extern "C" fn write(file: *mut ffi::sqlite3_file, data: *const c_void, bytes: c_int, at: i64) -> c_int {
    // SAFETY: one of our files, followed by its growth; only one connection's thread uses it at a time.
    unsafe {
        let size = &mut (*file_state(file)).growth;
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
    // SAFETY: as above; the default layer's `xClose` may clear the methods, so they are read first.
    unsafe {
        meter::record_temp_removal((*file_state(file)).growth);
        original(file).xClose.map_or(ffi::SQLITE_MISUSE, |close| close(file))
    }
}

unsafe extern "C" fn read_without_log(file: *mut ffi::sqlite3_file, data: *mut c_void, bytes: c_int, at: i64) -> c_int {
    // SAFETY: one of our files and SQLite's own arguments: the buffer has room for that many bytes, and all are
    // written, with zeros beyond the end of the file.
    unsafe {
        let code = original(file).xRead.map_or(ffi::SQLITE_MISUSE, |read| read(file, data, bytes, at));
        if code == ffi::SQLITE_OK || code == ffi::SQLITE_IOERR_SHORT_READ {
            for offset in FORMAT_AT.filter(|offset| (at..at + i64::from(bytes)).contains(offset)) {
                let byte = &mut *data.cast::<u8>().add((offset - at) as usize);
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
    // SAFETY: one of our files, followed by our state, used by one connection's thread at a time. A region is as
    // large as SQLite requests, initially zero, and stays until `forget_index`: the vector moves its pointer but not
    // its bytes.
    unsafe {
        let index = &mut (*file_state(file)).index;
        let (number, n_words) = (usize::try_from(number).unwrap_or(0), usize::try_from(bytes).unwrap_or(0).div_ceil(8));
        if may_grow != 0 && index.len() <= number {
            index.resize_with(number + 1, || vec![0; n_words].into_boxed_slice());
        }
        region.write(index.get_mut(number).map_or(ptr::null_mut(), |region| region.as_mut_ptr().cast()));
    }
    ffi::SQLITE_OK
}

/// Does nothing: no other connection uses this index.
unsafe extern "C" fn lock_index(_: *mut ffi::sqlite3_file, _: c_int, _: c_int, _: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn order_index(_: *mut ffi::sqlite3_file) {}

unsafe extern "C" fn forget_index(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    // SAFETY: as above; SQLite calls this when it needs no region any more, before it closes the file.
    unsafe { (*file_state(file)).index = Vec::new() };
    ffi::SQLITE_OK
}

unsafe extern "C" fn refuse_write(_: *mut ffi::sqlite3_file, _: *const c_void, _: c_int, _: i64) -> c_int {
    ffi::SQLITE_READONLY
}

unsafe extern "C" fn refuse_truncate(_: *mut ffi::sqlite3_file, _: i64) -> c_int {
    ffi::SQLITE_READONLY
}

/// Does nothing: no write could need a sync.
unsafe extern "C" fn refuse_sync(_: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    ffi::SQLITE_READONLY
}

unsafe extern "C" fn control_harmlessly(file: *mut ffi::sqlite3_file, operation: c_int, data: *mut c_void) -> c_int {
    if !HARMLESS_CONTROLS.contains(&operation) {
        return ffi::SQLITE_NOTFOUND;
    }
    // SAFETY: one of our files and SQLite's own arguments, passed on.
    unsafe { original(file).xFileControl.map_or(ffi::SQLITE_NOTFOUND, |control| control(file, operation, data)) }
}

/// Maps an existing index. It is opened read-only, so it neither grows nor is truncated. SQLite treats an index that
/// nobody else has open as missing.
unsafe extern "C" fn map_index_to_read(
    file: *mut ffi::sqlite3_file,
    number: c_int,
    bytes: c_int,
    _may_grow: c_int,
    region: *mut *mut c_void,
) -> c_int {
    // SAFETY: one of our files and SQLite's own arguments, passed on.
    open::only_to_read(|| unsafe {
        original(file).xShmMap.map_or(ffi::SQLITE_MISUSE, |map| map(file, number, bytes, 0, region))
    })
}

/// Unmaps an index without deleting its file.
unsafe extern "C" fn unmap_index(file: *mut ffi::sqlite3_file, _deletes: c_int) -> c_int {
    // SAFETY: one of our files.
    unsafe { original(file).xShmUnmap.map_or(ffi::SQLITE_MISUSE, |unmap| unmap(file, 0)) }
}
