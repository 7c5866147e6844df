//! A database as bytes: read through the handle by which SQLite has its file open, and opened again from memory.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use rusqlite::{Connection, ffi};

use crate::sqlite::classify::check_code;

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Reads the main file of a connection; `None` when it has no bytes, more than `max_bytes`, or they find no room.
///
/// It is SQLite's handle that reads: opening the file again and closing it would take away the process's locks on it. The
/// caller has a read transaction open, so that nobody writes meanwhile.
pub(crate) fn read_main_file(connection: &Connection, max_bytes: u64) -> rusqlite::Result<Option<Vec<u8>>> {
    let mut file: *mut ffi::sqlite3_file = ptr::null_mut();
    let mut size = 0;
    // SAFETY: the connection is open, and SQLite writes a pointer that is valid while it is; its methods are a constant.
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
    // SAFETY: an open file and its own method.
    check_code(unsafe { size_of(file, &raw mut size) })?;
    let mut bytes = Vec::new();
    let len = usize::try_from(size).unwrap_or(0);
    if len == 0 || len as u64 > max_bytes || bytes.try_reserve_exact(len).is_err() {
        return Ok(None);
    }
    bytes.resize(len, 0);
    for (chunk, start) in bytes.chunks_mut(CHUNK_BYTES).zip((0..).step_by(CHUNK_BYTES)) {
        // SAFETY: the chunk has room for as many bytes as are asked for.
        check_code(unsafe { read(file, chunk.as_mut_ptr().cast(), chunk.len() as c_int, start) })?;
    }
    Ok(Some(bytes))
}

/// Makes these bytes the main database of a connection in memory, which can only read them.
///
/// It attaches, so it goes before the walls that forbid that.
pub(crate) fn open_bytes<B: AsRef<[u8]> + Send + Sync>(
    connection: &Connection,
    owner: &Arc<B>,
) -> rusqlite::Result<()> {
    let bytes = (**owner).as_ref();
    let (start, len) = (bytes.as_ptr().cast_mut(), bytes.len() as i64);
    let data = Arc::into_raw(Arc::clone(owner)).cast_mut().cast::<c_void>();
    // SAFETY: the connection is open. It owns a reference to the bytes, which it drops when it closes, after its last
    // statement: what SQLite does to a file in memory then does not look into it. (If it cannot take the reference, `forget`
    // has been called and the bytes are not opened.) Under READONLY SQLite never writes to them, and without FREEONCLOSE
    // never frees them.
    unsafe {
        let db = connection.handle();
        check_code(ffi::sqlite3_set_clientdata(db, c"sqlexec_bytes".as_ptr(), data, Some(forget::<B>)))?;
        check_code(ffi::sqlite3_deserialize(db, c"main".as_ptr(), start, len, len, ffi::SQLITE_DESERIALIZE_READONLY))
    }
}

unsafe extern "C" fn forget<B>(data: *mut c_void) {
    // SAFETY: made by `Arc::into_raw` in `open_bytes`, given back once.
    drop(unsafe { Arc::from_raw(data.cast_const().cast::<B>()) });
}
