//! SQLite's allocator: the system's allocator with the size stored before each allocation, so that the meter can
//! count bytes.

#![allow(clippy::cast_ptr_alignment, reason = "the layout of every allocation has the header's alignment")]

use std::alloc::{Layout, alloc, dealloc, realloc};
use std::ffi::{c_int, c_void};
use std::ptr;

use rusqlite::ffi;

use crate::sqlite::meter;

/// Bytes for the size before an allocation; also the alignment that SQLite requires.
const HEADER: usize = 8;

pub(super) fn configure() -> c_int {
    let methods = ffi::sqlite3_mem_methods {
        xMalloc: Some(allocate),
        xFree: Some(release),
        xRealloc: Some(resize),
        xSize: Some(size),
        xRoundup: Some(round_up),
        xInit: Some(init),
        xShutdown: Some(shutdown),
        pAppData: ptr::null_mut(),
    };
    // SAFETY: SQLite copies the methods. It is configured before its first use or returns an error code. Its own
    // statistics are disabled: they cost a process-wide lock per allocation, and the meter counts already.
    unsafe {
        match ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw const methods) {
            ffi::SQLITE_OK => ffi::sqlite3_config(ffi::SQLITE_CONFIG_MEMSTATUS, 0 as c_int),
            code => code,
        }
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(HEADER)?, HEADER).ok()
}

unsafe extern "C" fn allocate(bytes: c_int) -> *mut c_void {
    let Some((bytes, layout)) = usize::try_from(bytes).ok().and_then(|n| Some((n, layout(n)?))) else {
        return ptr::null_mut();
    };
    if !meter::may_allocate(bytes + HEADER) {
        return ptr::null_mut();
    }
    // SAFETY: the layout is not empty, because it includes the header.
    let start = unsafe { alloc(layout) };
    if start.is_null() {
        meter::record_free(bytes + HEADER);
        return ptr::null_mut();
    }
    // SAFETY: the allocation starts with room for the aligned header, followed by the caller's part.
    unsafe {
        start.cast::<usize>().write(bytes);
        start.add(HEADER).cast()
    }
}

unsafe extern "C" fn release(piece: *mut c_void) {
    if piece.is_null() {
        return;
    }
    // SAFETY: SQLite frees each result of `allocate` or `resize` once. The size is stored before it and determines
    // the layout.
    unsafe {
        let start = piece.cast::<u8>().sub(HEADER);
        let bytes = start.cast::<usize>().read();
        meter::record_free(bytes + HEADER);
        dealloc(start, Layout::from_size_align_unchecked(bytes + HEADER, HEADER));
    }
}

unsafe extern "C" fn resize(piece: *mut c_void, bytes: c_int) -> *mut c_void {
    let Some(bytes) = usize::try_from(bytes).ok().filter(|bytes| layout(*bytes).is_some()) else {
        return ptr::null_mut();
    };
    // SAFETY: SQLite resizes only allocations from here; it handles null and sizes of zero itself.
    unsafe {
        let start = piece.cast::<u8>().sub(HEADER);
        let old = start.cast::<usize>().read();
        if bytes > old && !meter::may_grow(old, bytes) {
            return ptr::null_mut();
        }
        let moved = realloc(start, Layout::from_size_align_unchecked(old + HEADER, HEADER), bytes + HEADER);
        if moved.is_null() {
            meter::record_free(bytes.saturating_sub(old));
            return ptr::null_mut();
        }
        meter::record_free(old.saturating_sub(bytes));
        moved.cast::<usize>().write(bytes);
        moved.add(HEADER).cast()
    }
}

unsafe extern "C" fn size(piece: *mut c_void) -> c_int {
    // SAFETY: as for `release`; the size came from a c_int.
    unsafe { piece.cast::<u8>().sub(HEADER).cast::<usize>().read() as c_int }
}

unsafe extern "C" fn round_up(bytes: c_int) -> c_int {
    bytes.saturating_add(7) & !7
}

unsafe extern "C" fn init(_: *mut c_void) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn shutdown(_: *mut c_void) {}
