//! Where SQLite asks before it does something: callbacks in C's manner, each of a few lines. The authorizer is asked what a
//! statement may do, the [`meter`](crate::sqlite::meter) before memory, a page or space on disk is taken.
//!
//! SQLite accepts another allocator and another page cache only before its first use in a process. They are therefore
//! installed when the program is loaded, and [`install`] only confirms that they are in place.

#![allow(unsafe_code, reason = "SQLite takes callbacks from C only; each block says why it is sound")]

mod authorizer;
mod bytes;
mod file_methods;
mod files;
mod memory;
mod open;
pub mod options;
mod pages;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

use rusqlite::{Connection, ffi};

use crate::error::Fault;
use crate::sqlite::classify::check_code;

pub(crate) use authorizer::{Action, Authorizer, set_authorizer};
pub(crate) use bytes::{open_bytes, read_main_file};
pub(crate) use files::{Log, take_clock_was_read, vfs};
pub(crate) use open::{open_file, take_refused};

/// Takes a virtual table module away from a connection.
pub(crate) fn remove_module(connection: &Connection, name: &CStr) -> rusqlite::Result<()> {
    // SAFETY: the connection is open; no methods means that the module is removed, if there is one.
    check_code(unsafe {
        ffi::sqlite3_create_module_v2(connection.handle(), name.as_ptr(), ptr::null(), ptr::null_mut(), None)
    })
}

static ONCE: Once = Once::new();
static RESULT: AtomicI32 = AtomicI32::new(ffi::SQLITE_MISUSE);

/// Makes sure that SQLite asks the meter; an error if something in this process used SQLite before it could be told to.
pub(crate) fn install() -> Result<(), Fault> {
    ONCE.call_once(|| RESULT.store(configure(), Ordering::Release));
    match RESULT.load(Ordering::Acquire) {
        ffi::SQLITE_OK => options::check_options(),
        code => Err(Fault::CannotStart(format!("SQLite refuses its memory to be counted (code {code})"))),
    }
}

fn configure() -> c_int {
    match memory::configure() {
        ffi::SQLITE_OK => pages::configure(),
        code => code,
    }
}

extern "C" fn install_at_load() {
    // A failure is kept, and told by the first pool.
    let _ = install();
}

/// The loader calls what is listed in these sections, before `main` or while a library is loaded.
// SAFETY: the sections hold pointers to functions without arguments, and this is one. It touches no Rust runtime state that
// exists only after main began: an atomic, a Once, and calls into SQLite, which is linked in.
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
static AT_LOAD: extern "C" fn() = install_at_load;
