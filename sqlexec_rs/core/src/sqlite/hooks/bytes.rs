//! A database as bytes: reads the main file through SQLite's own handle, and opens a database from memory.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use rusqlite::{Connection, ffi};

use crate::sqlite::classify::check_code;

/// Bytes per read.
const CHUNK_BYTES: usize = 1 << 20;

/// Reads the main file of a connection; `None` if it is empty, larger than `max_bytes`, or memory is short.
///
/// SQLite's handle reads the file, because opening and closing it again would release the process's locks on it. The
/// caller has an open read transaction, so nobody writes meanwhile.
pub(crate) fn read_main_file(connection: &Connection, max_bytes: u64) -> rusqlite::Result<Option<Vec<u8>>> {
    let mut file: *mut ffi::sqlite3_file = ptr::null_mut();
    let mut size = 0;
    // SAFETY: the connection is open. SQLite writes a pointer that is valid as long as the connection; its methods
    // are constant.
    let methods = unsafe {
        let out = (&raw mut file).cast::<c_void>();
        check_code(ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_FILE_POINTER,
            out,
        ))?;
        if file.is_null() || (*file).pMethods.is_null() {
            return Ok(None);
        }
        &*(*file).pMethods
    };
    let (Some(read), Some(size_of)) = (methods.xRead, methods.xFileSize) else { return Ok(None) };
    // SAFETY: an open file with its own method.
    check_code(unsafe { size_of(file, &raw mut size) })?;
    let mut bytes = Vec::new();
    let len = usize::try_from(size).unwrap_or(0);
    if len == 0 || len as u64 > max_bytes || bytes.try_reserve_exact(len).is_err() {
        return Ok(None);
    }
    bytes.resize(len, 0);
    for (chunk, start) in bytes.chunks_mut(CHUNK_BYTES).zip((0..).step_by(CHUNK_BYTES)) {
        // SAFETY: the chunk has room for the requested number of bytes.
        check_code(unsafe { read(file, chunk.as_mut_ptr().cast(), chunk.len() as c_int, start) })?;
    }
    Ok(Some(bytes))
}

/// Opens these bytes as the read-only main database of an in-memory connection.
///
/// This attaches a database, so it must precede the restrictions that forbid that.
pub(crate) fn open_bytes<B: AsRef<[u8]> + Send + Sync>(
    connection: &Connection,
    owner: &Arc<B>,
) -> rusqlite::Result<()> {
    let bytes = (**owner).as_ref();
    let (start, len) = (bytes.as_ptr().cast_mut(), bytes.len() as i64);
    let data = Arc::into_raw(Arc::clone(owner)).cast_mut().cast::<c_void>();
    // SAFETY: the connection is open. It owns a reference to the bytes and drops it when it closes, after its last
    // statement; closing an in-memory file does not read the bytes. If it cannot take the reference, `forget` has
    // been called and the bytes are not opened. With READONLY SQLite never writes to the bytes, and without
    // FREEONCLOSE it never frees them.
    unsafe {
        let db = connection.handle();
        check_code(ffi::sqlite3_set_clientdata(db, c"sqlexec_bytes".as_ptr(), data, Some(forget::<B>)))?;
        check_code(ffi::sqlite3_deserialize(db, c"main".as_ptr(), start, len, len, ffi::SQLITE_DESERIALIZE_READONLY))
    }
}

unsafe extern "C" fn forget<B>(data: *mut c_void) {
    // SAFETY: created by `Arc::into_raw` in `open_bytes`, dropped once.
    drop(unsafe { Arc::from_raw(data.cast_const().cast::<B>()) });
}
