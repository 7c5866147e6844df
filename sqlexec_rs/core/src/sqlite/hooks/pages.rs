//! SQLite's own page cache, with a call of the meter before each page. Counting the pages of a table is one
//! instruction of the virtual machine for any number of pages, and in a hostile file their chain may be endless.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::OnceLock;

use rusqlite::ffi;

use crate::sqlite::meter;

type FetchFn = unsafe extern "C" fn(*mut ffi::sqlite3_pcache, c_uint, c_int) -> *mut ffi::sqlite3_pcache_page;

static SQLITES_FETCH: OnceLock<FetchFn> = OnceLock::new();

pub(super) fn configure() -> c_int {
    let mut methods = std::mem::MaybeUninit::<ffi::sqlite3_pcache_methods2>::zeroed();
    // SAFETY: SQLite fills in its methods and copies ours; zeros are a valid value of the struct (no methods).
    unsafe {
        let code = ffi::sqlite3_config(ffi::SQLITE_CONFIG_GETPCACHE2, methods.as_mut_ptr());
        if code != ffi::SQLITE_OK {
            return code;
        }
        let mut methods = methods.assume_init();
        let Some(original) = methods.xFetch else { return ffi::SQLITE_INTERNAL };
        if SQLITES_FETCH.set(original).is_err() {
            return ffi::SQLITE_MISUSE;
        }
        methods.xFetch = Some(fetch);
        ffi::sqlite3_config(ffi::SQLITE_CONFIG_PCACHE2, &raw const methods)
    }
}

unsafe extern "C" fn fetch(
    cache: *mut ffi::sqlite3_pcache,
    page: c_uint,
    create: c_int,
) -> *mut ffi::sqlite3_pcache_page {
    let Some(original) = SQLITES_FETCH.get() else { return ptr::null_mut() };
    // SAFETY: SQLite's own arguments, passed on to SQLite's own method.
    let fetch = || unsafe { original(cache, page, create) };
    // Without `create`, null would mean that the page is not cached, which is no refusal and may be wrong.
    if create == 0 { fetch() } else { meter::fetch_page(fetch).unwrap_or(ptr::null_mut()) }
}
