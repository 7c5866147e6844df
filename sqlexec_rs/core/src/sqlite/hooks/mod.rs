//! Callbacks through which SQLite requests permissions and resources. Each is a C function of a few lines. The
//! authorizer decides what a statement may do; the [`meter`](crate::sqlite::meter) decides about memory, pages and
//! disk space.
//!
//! SQLite accepts another allocator and page cache only before its first use in a process. So they are installed when
//! the program is loaded, and [`install`] only confirms this.

#![allow(unsafe_code, reason = "SQLite accepts only C callbacks; each block states why it is sound")]

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

use crate::error::PoolError;
use crate::sqlite::classify::check_code;

pub(crate) use authorizer::{Action, Authorizer, set_authorizer};
pub(crate) use bytes::{open_bytes, read_main_file};
pub(crate) use files::{WalState, take_clock_was_read, vfs};
pub(crate) use open::{open_file, take_refused};

/// Removes a virtual table module from a connection.
pub(crate) fn remove_module(connection: &Connection, name: &CStr) -> rusqlite::Result<()> {
    // SAFETY: the connection is open. Null methods remove the module, if it exists.
    check_code(unsafe {
        ffi::sqlite3_create_module_v2(connection.handle(), name.as_ptr(), ptr::null(), ptr::null_mut(), None)
    })
}

static ONCE: Once = Once::new();
static RESULT: AtomicI32 = AtomicI32::new(ffi::SQLITE_MISUSE);

/// Ensures that SQLite uses the meter. Fails if other code in this process used SQLite before it could be configured.
pub(crate) fn install() -> Result<(), PoolError> {
    ONCE.call_once(|| RESULT.store(configure(), Ordering::Release));
    match RESULT.load(Ordering::Acquire) {
        ffi::SQLITE_OK => options::check_options(),
        code => Err(PoolError::CannotStart(format!("SQLite does not accept a counting allocator (code {code})"))),
    }
}

fn configure() -> c_int {
    match memory::configure() {
        ffi::SQLITE_OK => pages::configure(),
        code => code,
    }
}

extern "C" fn install_at_load() {
    // A failure is stored and reported by the first pool.
    let _ = install();
}

/// The loader calls the functions listed in these sections, before `main` or while a library is loaded.
// SAFETY: the sections hold pointers to functions without arguments, such as this one. It uses no Rust runtime state
// that exists only after main starts: an atomic, a Once, and calls into the linked SQLite.
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
static AT_LOAD: extern "C" fn() = install_at_load;
