//! How SQLite opens files: only regular files.
//!
//! Opening a pipe blocks until another process opens its other end, and no handler is called meanwhile. A path may
//! change between a check and the open, so the check is on the opened file, which is opened without blocking.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
use std::fs::File;
use std::mem::{self, ManuallyDrop};
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libc::mode_t;
use rusqlite::ffi;
use rustix::fs::OFlags;

type OpenFn = unsafe extern "C" fn(*const c_char, c_int, c_int) -> c_int;

type ChownFn = extern "C" fn(c_int, c_uint, c_uint) -> c_int;

type ChmodFn = extern "C" fn(c_int, mode_t) -> c_int;

/// SQLite's own open function, which calls the system's.
static SQLITES_OPEN: OnceLock<OpenFn> = OnceLock::new();

/// Devices that SQLite itself opens, for random numbers and to occupy low descriptors.
const DEVICES: [&[u8]; 2] = [b"/dev/urandom", b"/dev/null"];

thread_local! {
    /// The last refusal on this thread.
    static REFUSED: RefCell<Option<RefusedAction>> = const { RefCell::new(None) };
    /// Whether this thread opens files read-only.
    static ONLY_READS: Cell<bool> = const { Cell::new(false) };
}

/// A refused action of SQLite.
#[derive(Debug, thiserror::Error)]
pub(super) enum RefusedAction {
    #[error("{}: not a regular file", .0.display())]
    Opening(PathBuf),
    #[error("the database file is empty, and {} is not: it is being copied over, or its content was lost; run the query \
        again when the copy is complete, or restore the file", .0.display())]
    Deletion(PathBuf),
}

/// Records a refusal.
pub(super) fn record_refusal(refused: RefusedAction) {
    let _ = REFUSED.try_with(|last| last.replace(Some(refused)));
}

/// Runs `work`, in which files are opened read-only and never created.
pub(super) fn only_to_read<T>(work: impl FnOnce() -> T) -> T {
    ONLY_READS.set(true);
    let result = work();
    ONLY_READS.set(false);
    result
}

/// Makes the default layer open files through `open_regular`.
///
/// # Safety
/// `layer` must be the default layer for Unix.
pub(super) unsafe fn configure(layer: *mut ffi::sqlite3_vfs) -> c_int {
    let name = c"open".as_ptr();
    // SAFETY: the layer belongs to SQLite and lives as long as the process. Its system calls are stored as untyped
    // functions; the one named "open" has this type.
    unsafe {
        let (Some(get), Some(set)) = ((*layer).xGetSystemCall, (*layer).xSetSystemCall) else {
            return ffi::SQLITE_ERROR;
        };
        let Some(original) = get(layer, name) else { return ffi::SQLITE_ERROR };
        if SQLITES_OPEN.set(mem::transmute::<unsafe extern "C" fn(), OpenFn>(original)).is_err() {
            return ffi::SQLITE_MISUSE;
        }
        match set(layer, name, Some(mem::transmute::<OpenFn, unsafe extern "C" fn()>(open_regular))) {
            ffi::SQLITE_OK => {}
            code => return code,
        }
        match set(layer, c"fchmod".as_ptr(), Some(mem::transmute::<ChmodFn, unsafe extern "C" fn()>(leave_mode))) {
            ffi::SQLITE_OK => {}
            code => return code,
        }
        set(layer, c"fchown".as_ptr(), Some(mem::transmute::<ChownFn, unsafe extern "C" fn()>(leave_owner)))
    }
}

/// Does nothing; SQLite would give an empty log or index the mode of its database.
extern "C" fn leave_mode(_: c_int, _: mode_t) -> c_int {
    0
}

/// Does nothing; SQLite would give a log the owner of its database, which changes the log's times even if it is the
/// same.
extern "C" fn leave_owner(_: c_int, _: c_uint, _: c_uint) -> c_int {
    0
}

/// Returns the last refusal on this thread as a message, and clears it.
pub(crate) fn take_refused() -> Option<String> {
    REFUSED.with_borrow_mut(Option::take).map(|refused| refused.to_string())
}

/// Opens a regular file with `options` without blocking; `None` if it is not a regular file.
pub(crate) fn open_file(path: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = OFlags::NONBLOCK.bits() as c_int;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    file.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(file)
}

unsafe extern "C" fn open_regular(name: *const c_char, flags: c_int, mode: c_int) -> c_int {
    const WRITES: OFlags = OFlags::WRONLY.union(OFlags::RDWR).union(OFlags::CREATE).union(OFlags::TRUNC);
    let Some(original) = SQLITES_OPEN.get() else { return -1 };
    // SAFETY: SQLite's own arguments, passed on; the name is a NUL-terminated string. The descriptor belongs to
    // SQLite, so it is only examined, and closed here only if SQLite does not receive it.
    unsafe {
        if ONLY_READS.get() && flags & WRITES.bits() as c_int != 0 {
            return original(c"".as_ptr(), 0, mode); // SQLite then opens it read-only
        }
        let descriptor = original(name, flags | OFlags::NONBLOCK.bits() as c_int, mode);
        if descriptor < 0 {
            return descriptor;
        }
        let file = ManuallyDrop::new(File::from_raw_fd(descriptor));
        let name = CStr::from_ptr(name).to_bytes();
        // SQLite opens folders too, to sync them.
        let is_fine = file.metadata().is_ok_and(|metadata| metadata.is_file() || metadata.is_dir());
        if is_fine || DEVICES.contains(&name) {
            return descriptor;
        }
        drop(ManuallyDrop::into_inner(file));
        record_refusal(RefusedAction::Opening(PathBuf::from(OsStr::from_bytes(name))));
        original(c"".as_ptr(), flags & !OFlags::CREATE.bits() as c_int, mode) // fails and sets `errno`
    }
}
